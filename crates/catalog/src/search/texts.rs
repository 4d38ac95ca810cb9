//! Which texts tests lead to. They are looked up once, and entries are found by these texts, which are in an index as a whole.

use percale_core::attribute::AttributeName;
use percale_core::query::{Condition, Field, Test, TextPattern};

use super::sql::{Filters, escaped, like};
use crate::engine::Tx;
use crate::error::Result;
use crate::rows::attribute::fold;
use crate::rows::word::{self, NamedWord};

/// Most texts of one test. Where there are more, entries are gone through until enough are found.
const MOST: usize = 1000;

/// What is looked for in texts.
#[derive(Debug, PartialEq)]
enum Wanted {
    /// Anywhere in the texts of all attributes.
    Anywhere(String),
    /// A word of its own, in those of one.
    Word(AttributeName, String),
    /// A pattern that they match.
    Pattern(AttributeName, String),
    /// A regular expression that is found in them.
    Regex(AttributeName, TextPattern),
}

impl Wanted {
    fn of(name: &AttributeName, test: &Test) -> Option<Self> {
        match test {
            Test::Has(value) => Some(Self::Word(name.clone(), fold(&value.text))),
            Test::Matches(pattern) => Some(Self::Pattern(name.clone(), pattern.to_lowercase())),
            Test::Regex(pattern) => Some(Self::Regex(name.clone(), pattern.clone())),
            Test::Exists | Test::Compare(..) | Test::Between(..) => None,
        }
    }

    async fn find<T: Tx>(&self, tx: &T, sp: i64) -> Result<Option<Vec<NamedWord>>> {
        let within = |text: &str| format!("%{}%", escaped(text));
        match self {
            Self::Anywhere(text) => word::like(tx, sp, None, (&within(text), &[text]), MOST).await,
            Self::Word(name, text) => {
                let found = word::with(tx, sp, name, (&within(text), text), MOST).await?;
                Ok(found.map(|mut found| {
                    found.retain(|(_, other)| has_word(other, text));
                    found
                }))
            }
            Self::Pattern(name, pattern) => {
                let between: Vec<&str> = pattern.split(['*', '?']).collect();
                word::like(tx, sp, Some(name), (&like(pattern), &between), MOST).await
            }
            Self::Regex(name, pattern) => {
                let pieces: Vec<&str> = pattern.pieces().iter().map(String::as_str).collect();
                let like: String = pieces.iter().map(|piece| format!("{}%", escaped(piece))).collect();
                let found = word::like(tx, sp, Some(name), (&format!("%{like}"), &pieces), MOST).await?;
                Ok(found.map(|mut found| {
                    found.retain(|(_, text)| pattern.is_in(text));
                    found
                }))
            }
        }
    }
}

/// Tells whether a text has a word, between spaces or at an end.
fn has_word(text: &str, word: &str) -> bool {
    text == word
        || text.starts_with(&format!("{word} "))
        || text.ends_with(&format!(" {word}"))
        || text.contains(&format!(" {word} "))
}

/// The texts of a space that tests lead to, of those tests of which it is known.
#[derive(Debug, Default)]
pub(super) struct Texts(Vec<(Wanted, Vec<NamedWord>)>);

impl Texts {
    /// Where nothing is known.
    pub const NONE: &Self = &Self(Vec::new());

    /// Looks up the texts of the tests of attributes, and those of words in any of them if these are wanted: looking for a word that is in
    /// most texts takes longer than to find the first entries that have it.
    pub async fn find<T: Tx>(tx: &T, sp: i64, filters: &Filters, also_anywhere: bool) -> Result<Self> {
        let mut wanted = Vec::new();
        filters.each(&mut |condition| match condition {
            Condition::Is(Field::Attribute(name), test) => wanted.extend(Wanted::of(name, test)),
            Condition::Text(text) if also_anywhere => wanted.push(Wanted::Anywhere(text.to_lowercase())),
            _ => {}
        });
        let mut found = Vec::new();
        for one in wanted {
            if let Some(texts) = one.find(tx, sp).await? {
                found.push((one, texts));
            }
        }
        Ok(Self(found))
    }

    /// Returns those that a test of an attribute leads to.
    pub fn of_test(&self, name: &AttributeName, test: &Test) -> Option<Vec<String>> {
        let found = self.of(&Wanted::of(name, test)?)?;
        Some(found.iter().map(|(_, text)| text.clone()).collect())
    }

    /// Returns those that have something anywhere.
    pub fn with(&self, text: &str) -> Option<&[NamedWord]> {
        self.of(&Wanted::Anywhere(text.to_lowercase()))
    }

    fn of(&self, wanted: &Wanted) -> Option<&[NamedWord]> {
        self.0.iter().find(|(one, _)| one == wanted).map(|(_, texts)| texts.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::has_word;

    #[test]
    fn words_stand_between_spaces() {
        for text in ["sea", "sea ice", "the sea", "a sea b", "seas sea"] {
            assert!(has_word(text, "sea"), "{text}");
        }
        for text in ["seas", "oversea", "sea-ice", "", "overseas seasick"] {
            assert!(!has_word(text, "sea"), "{text}");
        }
    }
}
