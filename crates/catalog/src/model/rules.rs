//! Rules of collections: what is read of the headers of objects below them, and what people may say of these objects
//! (docs/decisions/2026-11-23-rules-are-attributes.md).

use std::collections::BTreeMap;

use percale_core::ObjectPath;
use percale_core::attribute::{AttributeName, AttributeValue};

use super::{ExtractionMode, NamePattern, words};

/// How the names of attributes begin that are rules of the collection that has them.
pub const RULES: &str = "rules.";

words!(
    /// What the values of an attribute have to be.
    ValueType {
        /// Whole numbers.
        Integer = "integer",
        /// Numbers, whole or not.
        Float = "float",
        /// Text.
        Text = "text",
        /// Times.
        Time = "time",
        /// Yes or no.
        Bool = "bool",
    }
);

impl ValueType {
    const fn is_of(self, value: &AttributeValue) -> bool {
        matches!(
            (self, value),
            (Self::Integer | Self::Float, AttributeValue::Integer(_))
                | (Self::Float, AttributeValue::Float(_))
                | (Self::Text, AttributeValue::Text(_))
                | (Self::Time, AttributeValue::Time(_))
                | (Self::Bool, AttributeValue::Bool(_))
        )
    }
}

/// The rules of a collection, or those that hold for an object.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    extraction: Option<ExtractionMode>,
    keep: Option<Vec<NamePattern>>,
    names: Option<Vec<NamePattern>>,
    required: Option<Vec<AttributeName>>,
    types: BTreeMap<AttributeName, ValueType>,
    values: BTreeMap<AttributeName, Vec<AttributeValue>>,
}

impl Rules {
    /// Takes a rule: the name of an attribute behind [`RULES`], and its values, of which there is one at least.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(crate) fn add(&mut self, rule: &str, values: &[AttributeValue]) -> Result<(), String> {
        let texts = || -> Result<Vec<&str>, String> {
            let each = values.iter().map(|value| match value {
                AttributeValue::Text(text) => Ok(text.as_str()),
                other => Err(format!("'{RULES}{rule}' has texts, not {} {other}", other.type_name())),
            });
            each.collect()
        };
        let patterns = || -> Result<Vec<NamePattern>, String> {
            let pattern = |text| NamePattern::new(text).map_err(|error| format!("'{RULES}{rule}': {error}"));
            texts()?.into_iter().map(pattern).collect()
        };
        let name =
            |text: &str| text.parse::<AttributeName>().map_err(|error| format!("'{RULES}{rule}': {error}"));
        let word = || match texts()?.as_slice() {
            [word] => Ok(*word),
            _ => Err(format!("'{RULES}{rule}' has one value")),
        };
        match rule {
            "extraction" => {
                let mode = word()?;
                let wrong = |_| format!("'{RULES}extraction' is async, sync or off, not '{mode}'");
                self.extraction = Some(mode.parse().map_err(wrong)?);
            }
            "keep" => self.keep = Some(patterns()?),
            "names" => self.names = Some(patterns()?),
            "required" => self.required = Some(texts()?.into_iter().map(name).collect::<Result<_, _>>()?),
            rule => match (rule.strip_prefix("type."), rule.strip_prefix("values.")) {
                (Some(of), _) => {
                    let kind = word()?;
                    let wrong =
                        |_| format!("'{RULES}{rule}' is integer, float, text, time or bool, not '{kind}'");
                    self.types.insert(name(of)?, kind.parse().map_err(wrong)?);
                }
                (_, Some(of)) => drop(self.values.insert(name(of)?, values.to_vec())),
                _ => {
                    return Err(format!(
                        "there is no rule '{RULES}{rule}'; there are {RULES}extraction, {RULES}keep, {RULES}names, {RULES}required, \
                         {RULES}type.NAME and {RULES}values.NAME"
                    ));
                }
            },
        }
        Ok(())
    }

    /// Gathers rules that are stored. One that this release does not know is passed over.
    pub(crate) fn stored<'a>(
        said: impl IntoIterator<Item = (&'a AttributeName, &'a [AttributeValue])>,
    ) -> Self {
        let mut rules = Self::default();
        for (name, values) in said {
            if let Some(rule) = name.as_str().strip_prefix(RULES) {
                let _ = rules.add(rule, values);
            }
        }
        rules
    }

    /// Puts the rules of a collection further down over these. Of each rule the nearest one holds.
    pub(crate) fn put_over(&mut self, nearer: &Self) {
        self.extraction = nearer.extraction.or(self.extraction);
        for (rule, nearer) in [(&mut self.keep, &nearer.keep), (&mut self.names, &nearer.names)] {
            if nearer.is_some() {
                rule.clone_from(nearer);
            }
        }
        if nearer.required.is_some() {
            self.required.clone_from(&nearer.required);
        }
        self.types.extend(nearer.types.iter().map(|(name, kind)| (name.clone(), *kind)));
        self.values.extend(nearer.values.iter().map(|(name, values)| (name.clone(), values.clone())));
    }

    /// Returns when headers are read, if a rule says so.
    pub const fn extraction(&self) -> Option<ExtractionMode> {
        self.extraction
    }

    /// Tells whether an attribute of a header is kept. The format is, what describes the object, and what is said of the reading itself.
    pub fn keeps(&self, name: &str) -> bool {
        let Some(keep) = &self.keep else { return true };
        name == "format"
            || name == "described_by"
            || name.starts_with("extraction.")
            || keep.iter().any(|pattern| pattern.is_match(name))
    }

    /// Checks what people are about to say of an object: `set`, where `has` tells which attributes it has then.
    ///
    /// # Errors
    /// Which rule does not hold, in words.
    pub(crate) fn check<'a>(
        &self,
        set: impl IntoIterator<Item = (&'a AttributeName, &'a [AttributeValue])>,
        has: impl Fn(&AttributeName) -> bool,
    ) -> Result<(), String> {
        for (name, values) in set {
            if let Some(names) = &self.names
                && !names.iter().any(|pattern| pattern.is_match(name.as_str()))
            {
                return Err(format!("'{name}' is none of the names that {RULES}names allows"));
            }
            if let Some(kind) = self.types.get(name)
                && let Some(wrong) = values.iter().find(|value| !kind.is_of(value))
            {
                return Err(format!(
                    "'{name}' is of the type {kind} by {RULES}type.{name}, and {} '{wrong}' is not",
                    wrong.type_name()
                ));
            }
            if let Some(allowed) = self.values.get(name)
                && let Some(wrong) = values.iter().find(|value| !allowed.contains(value))
            {
                let allowed: Vec<String> = allowed.iter().take(20).map(ToString::to_string).collect();
                return Err(format!(
                    "'{name}' has one of the values {} by {RULES}values.{name}, not '{wrong}'",
                    allowed.join(", ")
                ));
            }
        }
        let lacking: Vec<String> = self
            .required
            .iter()
            .flatten()
            .filter(|name| !has(name))
            .map(|name| format!("'{name}'"))
            .collect();
        match lacking.is_empty() {
            true => Ok(()),
            false => Err(format!("{} would be missing, which {RULES}required names", lacking.join(", "))),
        }
    }
}

/// The rules in a space.
#[derive(Debug, Clone, Default)]
pub struct SpaceRules {
    /// Those of each collection that has any; of two, the one above first.
    pub(crate) placed: Vec<(ObjectPath, Rules)>,
}

impl SpaceRules {
    /// Returns what holds for an object.
    pub fn at(&self, path: &ObjectPath) -> Rules {
        let mut rules = Rules::default();
        self.placed
            .iter()
            .filter(|(top, _)| path.is_within(top))
            .for_each(|(_, nearer)| rules.put_over(nearer));
        rules
    }

    /// Tells whether a rule says of any object that headers are read in a way.
    pub fn any(&self, is: impl Fn(ExtractionMode) -> bool) -> bool {
        self.placed.iter().any(|(_, rules)| rules.extraction.is_some_and(&is))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> AttributeName {
        name.parse().unwrap()
    }

    fn text(text: &str) -> AttributeValue {
        AttributeValue::Text(text.into())
    }

    fn rules(said: &[(&str, &[AttributeValue])]) -> Result<Rules, String> {
        let mut rules = Rules::default();
        said.iter().try_for_each(|(rule, values)| rules.add(rule, values))?;
        Ok(rules)
    }

    fn check(rules: &Rules, set: &str, values: &[AttributeValue]) -> Result<(), String> {
        let set = name(set);
        rules.check([(&set, values)], |other| *other == set)
    }

    #[test]
    fn what_is_no_rule_is_refused_with_those_that_there_are() {
        assert!(rules(&[("extraction", &[text("off")]), ("keep", &[text("var.*"), text("title")])]).is_ok());
        let wrong: [(&str, &[AttributeValue]); 7] = [
            ("extraction", &[text("never")]),
            ("extraction", &[text("off"), text("sync")]),
            ("keep", &[AttributeValue::Integer(1)]),
            ("keep", &[text("[")]),
            ("required", &[text("")]),
            ("type.level", &[text("number")]),
            ("require", &[text("level")]),
        ];
        for (rule, values) in wrong {
            assert!(rules(&[(rule, values)]).unwrap_err().contains(RULES), "{rule}");
        }
    }

    #[test]
    fn what_people_say_is_checked_by_name_type_and_value() {
        let rules = rules(&[
            ("names", &[text("level"), text("instrument"), text("note.*"), text("weight")]),
            ("required", &[text("instrument")]),
            ("type.level", &[text("integer")]),
            ("type.weight", &[text("float")]),
            ("values.instrument", &[text("MODIS"), text("VIIRS")]),
        ])
        .unwrap();
        assert_eq!(check(&rules, "instrument", &[text("MODIS")]), Ok(()));
        let wrong = check(&rules, "instrument", &[text("MODIS"), text("modis")]).unwrap_err();
        assert!(wrong.contains("MODIS, VIIRS") && wrong.contains("'modis'"), "{wrong}");
        assert!(check(&rules, "colour", &[text("red")]).unwrap_err().contains("rules.names"));
        assert!(check(&rules, "level", &[text("high")]).unwrap_err().contains("rules.type.level"));
        // What is right in itself is not enough where something is missing.
        assert!(check(&rules, "level", &[AttributeValue::Integer(1)]).unwrap_err().contains("'instrument'"));
        assert!(rules.check([(&name("weight"), &[AttributeValue::Integer(1)][..])], |_| true).is_ok());
        assert!(rules.check([(&name("note.a"), &[][..])], |_| true).is_ok());
    }

    #[test]
    fn of_each_rule_the_nearest_one_holds() {
        let top =
            rules(&[("extraction", &[text("sync")]), ("keep", &[text("a*")]), ("type.a", &[text("text")])]);
        let below = rules(&[("extraction", &[text("off")]), ("type.b", &[text("bool")])]);
        let space = SpaceRules {
            placed: vec![
                (ObjectPath::parse("/s").unwrap(), top.unwrap()),
                (ObjectPath::parse("/s/d").unwrap(), below.unwrap()),
            ],
        };
        let at = |path: &str| space.at(&ObjectPath::parse(path).unwrap());
        assert_eq!(at("/s/x").extraction(), Some(ExtractionMode::Sync));
        assert_eq!(at("/s/d/x").extraction(), Some(ExtractionMode::Off));
        assert!(at("/s/d/x").keeps("abc") && !at("/s/d/x").keeps("bc"));
        assert!(at("/s/d/x").keeps("format") && at("/s/d/x").keeps("extraction.error"));
        assert!(check(&at("/s/d/x"), "a", &[AttributeValue::Bool(true)]).is_err());
        assert!(check(&at("/s/x"), "b", &[text("x")]).is_ok());
        assert!(
            space.any(|mode| mode == ExtractionMode::Sync)
                && !space.any(|mode| mode == ExtractionMode::Async)
        );
    }
}
