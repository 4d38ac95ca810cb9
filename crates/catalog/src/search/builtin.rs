//! What is known of every entry, as SQL.

use percale_core::digest::Algorithm;
use percale_core::query::{Builtin, Comparison, Literal, Test, like_of_glob};

use super::micros;
use super::sql::{Builder, FALSE, TRUE, escaped, exists, fold_name};
use crate::error::{Error, Result};
use crate::model::glob::Glob;

/// What stands behind the last dot of a name: what is left when no character but those is taken from the end.
pub(super) const EXT: &str = "CASE WHEN e.name LIKE '%.%' THEN \
     lower(substr(e.name, length(rtrim(e.name, replace(e.name, '.', ''))) + 1)) ELSE '' END";

impl Builder<'_> {
    /// Tests a field that every entry has.
    pub(super) fn builtin(&mut self, builtin: Builtin, test: &Test) -> Result<String> {
        match builtin {
            Builtin::Name => self.name(test),
            Builtin::Ext => self.ext(test),
            Builtin::Type => match word(builtin, test)?.as_str() {
                "object" | "file" => Ok("e.kind = 2".into()),
                "collection" | "directory" => Ok("e.kind = 1".into()),
                "link" => Ok("e.kind = 3".into()),
                other => Err(Error::invalid(format!(
                    "there is no type '{other}'; there are object, collection and link"
                ))),
            },
            Builtin::Size => self.number("e.size", "a size is compared with bytes, as in size:>10MB", test),
            Builtin::Created => self.time("e.created", builtin, test),
            Builtin::Modified => self.time("COALESCE(e.mtime, e.modified)", builtin, test),
            Builtin::Replicas => {
                let count = "(SELECT COUNT(*) FROM replica r WHERE r.sp = e.sp AND r.version = e.version \
                             AND r.state = 'good')";
                let is_so = self.number(count, "replicas are counted, as in replicas<2", test)?;
                Ok(format!("(e.version IS NOT NULL AND {is_so})"))
            }
            Builtin::State => {
                let state = self.param(word(builtin, test)?);
                Ok(exists(&format!(
                    "replica r WHERE r.sp = e.sp AND r.version = e.version AND r.state = {state}"
                )))
            }
            Builtin::Site => self.held(builtin, test, |(_, site, _)| site),
            Builtin::Store => self.held(builtin, test, |(_, _, store)| store),
            Builtin::Space => {
                let is_it = is_named(builtin, test, self.space.as_str())?;
                Ok(if is_it { TRUE } else { FALSE }.to_owned())
            }
            Builtin::Hash => self.hash(test),
            Builtin::Path => {
                Err(Error::invalid("a path can only be combined with other tests by AND, and negated"))
            }
        }
    }

    fn name(&mut self, test: &Test) -> Result<String> {
        const NAME: &str = "lower(e.name)";
        match test {
            Test::Exists => Ok(TRUE.into()),
            Test::Compare(comparison, value) => {
                Ok(format!("{NAME} {} {}", comparison.sign(), self.param(fold_name(&value.text))))
            }
            Test::Has(value) => Ok(format!("{NAME} = {}", self.param(fold_name(&value.text)))),
            Test::Matches(pattern) => {
                let pattern = self.param(like_of_glob(&fold_name(pattern)));
                Ok(format!("{NAME} LIKE {pattern} ESCAPE '\\'"))
            }
            Test::Regex(pattern) => Ok(self.regex(NAME, pattern)),
            Test::Between(low, high) => {
                let text = |value: &Option<Literal>| value.as_ref().map(|value| fold_name(&value.text));
                Ok(self.range(NAME, text(low), text(high)))
            }
        }
    }

    fn ext(&mut self, test: &Test) -> Result<String> {
        let pattern = match test {
            Test::Exists => "%.%".to_owned(),
            Test::Compare(Comparison::Equal, value) | Test::Has(value) => {
                format!("%.{}", escaped(&fold_name(value.text.trim_start_matches('.'))))
            }
            Test::Matches(pattern) => format!("%.{}", like_of_glob(&fold_name(pattern))),
            _ => return Err(Error::invalid("'ext' is compared with ':' or '=', as in ext:nc")),
        };
        let ends_so = format!("lower(e.name) LIKE {} ESCAPE '\\'", self.param(pattern));
        match test {
            // One that has a dot itself is of several endings, such as tar.*
            Test::Matches(pattern) if !pattern.contains('.') => {
                let pattern = self.param(like_of_glob(&fold_name(pattern)));
                Ok(format!("({ends_so} AND {EXT} LIKE {pattern} ESCAPE '\\')"))
            }
            _ => Ok(ends_so),
        }
    }

    fn number(&mut self, column: &str, hint: &str, test: &Test) -> Result<String> {
        let number = |value: &Literal| {
            value.number.ok_or_else(|| Error::invalid(format!("{hint}, not '{}'", value.text)))
        };
        match test {
            Test::Exists => Ok(format!("{column} IS NOT NULL")),
            Test::Compare(comparison, value) => {
                let number = number(value)?;
                // Between two whole numbers nothing is the same.
                let whole = match comparison {
                    Comparison::Equal if number.fract() != 0.0 => return Ok(FALSE.into()),
                    Comparison::Equal | Comparison::AtMost | Comparison::More => number.floor(),
                    Comparison::Less | Comparison::AtLeast => number.ceil(),
                };
                Ok(format!("{column} {} {}", comparison.sign(), self.param(whole as i64)))
            }
            Test::Has(value) => self.number(column, hint, &Test::Compare(Comparison::Equal, value.clone())),
            Test::Between(low, high) => {
                let low = low.as_ref().map(number).transpose()?.map(|number| number.ceil() as i64);
                let high = high.as_ref().map(number).transpose()?.map(|number| number.floor() as i64);
                Ok(self.range(column, low, high))
            }
            Test::Matches(_) | Test::Regex(_) => Err(Error::invalid(hint)),
        }
    }

    fn time(&mut self, column: &str, builtin: Builtin, test: &Test) -> Result<String> {
        let name = builtin.as_str();
        let hint = format!("'{name}' is compared with times, as in {name}:>-7d or {name}:2024-06");
        let span = |value: &Literal| value.span.map(micros).ok_or_else(|| Error::invalid(hint.clone()));
        match test {
            Test::Exists => Ok(TRUE.into()),
            Test::Compare(comparison, value) => {
                let span = span(value)?;
                Ok(format!("({})", self.in_span(column, *comparison, span)))
            }
            Test::Has(value) => {
                let span = span(value)?;
                Ok(format!("({})", self.in_span(column, Comparison::Equal, span)))
            }
            Test::Between(low, high) => {
                let first = low.as_ref().map(span).transpose()?.map(|span| span.0);
                let last = high.as_ref().map(span).transpose()?.map(|span| span.1 - 1);
                Ok(self.range(column, first, last))
            }
            Test::Matches(_) | Test::Regex(_) => Err(Error::invalid(hint.clone())),
        }
    }

    /// Tests who holds a copy.
    fn held(
        &mut self,
        builtin: Builtin,
        test: &Test,
        name: impl Fn(&(i64, String, String)) -> &String,
    ) -> Result<String> {
        let mut stores = Vec::new();
        for holder in &self.holders.0 {
            if is_named(builtin, test, name(holder))? {
                stores.push(holder.0);
            }
        }
        let stores: Vec<String> = stores.into_iter().map(|st| self.param(st)).collect();
        if stores.is_empty() {
            return Ok(FALSE.into());
        }
        let stores = stores.join(", ");
        Ok(exists(&format!("replica r WHERE r.sp = e.sp AND r.version = e.version AND r.st IN ({stores})")))
    }

    fn hash(&mut self, test: &Test) -> Result<String> {
        let wrong = || {
            Error::invalid(
                "a hash is hexadecimal: all of it, or at least 4 digits and '*', as in hash:9f86d0* or hash:sha-256:9f86d0*",
            )
        };
        let text = match test {
            Test::Exists => return Ok("e.root IS NOT NULL".into()),
            Test::Compare(Comparison::Equal, value) | Test::Has(value) => value.text.clone(),
            Test::Matches(pattern) if pattern.ends_with('*') => pattern.clone(),
            _ => return Err(wrong()),
        }
        .to_lowercase();
        let (text, is_begin) = match text.strip_suffix('*') {
            Some(begin) => (begin, true),
            None => (text.as_str(), false),
        };
        let (algorithm, digits) = match text.rsplit_once(':') {
            Some((name, digits)) => {
                (name.parse().map_err(|error| Error::invalid(format!("{error}")))?, digits)
            }
            None => (Algorithm::Blake3, text),
        };
        let whole = algorithm.value_len() * 2;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_long = if is_begin { (4..=whole).contains(&digits.len()) } else { digits.len() == whole };
        if !is_hex || !is_long {
            return Err(wrong());
        }
        if algorithm != Algorithm::Blake3 {
            // Digests are stored as a list in JSON, each as `algorithm:hex`.
            let pattern = format!("%\"{algorithm}:{digits}%");
            return Ok(format!("e.digests LIKE {}", self.param(pattern)));
        }
        let filled = |with: &str| {
            hex::decode(format!("{digits}{}", with.repeat(whole - digits.len()))).map_err(|_| wrong())
        };
        let (first, last) = (self.param(filled("0")?), self.param(filled("f")?));
        Ok(format!("(e.root >= {first} AND e.root <= {last})"))
    }
}

/// Returns the word that a field is to be the same as.
fn word(builtin: Builtin, test: &Test) -> Result<String> {
    match test {
        Test::Compare(Comparison::Equal, value) | Test::Has(value) => Ok(value.text.to_lowercase()),
        _ => {
            let name = builtin.as_str();
            Err(Error::invalid(format!("'{name}' is compared with ':' or '=' and a word")))
        }
    }
}

/// Tells whether a name is one that a test holds for.
fn is_named(builtin: Builtin, test: &Test, name: &str) -> Result<bool> {
    if let Test::Matches(pattern) = test {
        let glob = Glob::new(&format!("'{}'", builtin.as_str()), pattern, |glob| glob.case_insensitive(true));
        return Ok(glob?.is_match(name));
    }
    Ok(word(builtin, test)? == name.to_lowercase())
}
