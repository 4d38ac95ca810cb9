//! Conditions, written such that they are read as what they are.

use percale_core::Timestamp;
use percale_core::query::{Builtin, Condition, Field, Literal, Test, like_of_glob};

use super::{is_key, is_word, parse};

/// Writes a condition as a query: every test in full, everything in parentheses that belongs together.
pub fn write(condition: &Condition) -> String {
    match condition {
        Condition::All(parts) => joined(parts, " "),
        Condition::Any(parts) => joined(parts, " OR "),
        other => one(other),
    }
}

fn joined(parts: &[Condition], word: &str) -> String {
    parts.iter().map(one).collect::<Vec<_>>().join(word)
}

/// Writes what binds stronger than what stands beside it.
fn one(condition: &Condition) -> String {
    match condition {
        Condition::All(_) | Condition::Any(_) => format!("({})", write(condition)),
        Condition::Not(part) => format!("NOT {}", one(part)),
        Condition::Text(text) => quoted(text),
        // LIKE goes over slashes. Most patterns can stand behind a colon, but not one with blanks, or with `..`, which is a range there.
        Condition::Is(Field::Builtin(Builtin::Path), Test::Matches(pattern)) => {
            let short = format!("path:{pattern}");
            match parse(&short, Timestamp::EPOCH) {
                Ok(read) if read == *condition => short,
                _ => format!("path GLOB {}", quoted(pattern)),
            }
        }
        Condition::Is(field, test) => clause(&name(field), test),
    }
}

fn name(field: &Field) -> String {
    match field {
        Field::Builtin(builtin) => builtin.as_str().to_owned(),
        Field::Attribute(name) => match name.as_str() {
            plain if plain.chars().all(is_key) && plain.starts_with(is_word) => format!("@{plain}"),
            other => format!("`{other}`"),
        },
    }
}

fn clause(field: &str, test: &Test) -> String {
    match test {
        Test::Compare(comparison, value) => format!("{field}{}{}", comparison.sign(), literal(value)),
        Test::Between(low, high) => {
            let bound = |value: &Option<Literal>| value.as_ref().map_or_else(|| "*".to_owned(), literal);
            format!("{field}:[{} TO {}]", bound(low), bound(high))
        }
        Test::Has(value) => format!("{field}:{}", literal(value)),
        Test::Matches(pattern) => {
            format!("{field} LIKE {}", quoted(&like_of_glob(pattern)))
        }
        Test::Regex(pattern) => format!("{field} ~ {}", quoted(pattern.as_str())),
        Test::Exists => format!("{field}:*"),
    }
}

/// What is more than text was written without quotes.
fn literal(value: &Literal) -> String {
    if value.is_text_alone() { quoted(&value.text) } else { value.text.clone() }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}
