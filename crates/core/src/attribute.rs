//! Typed names and values that say what an object is about.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// Longest name of an attribute, in bytes.
pub const MAX_ATTRIBUTE_NAME: usize = 255;
/// Longest text that one value has, in bytes.
pub const MAX_ATTRIBUTE_TEXT: usize = 8192;
/// Most values of one attribute.
pub const MAX_ATTRIBUTE_VALUES: usize = 256;
/// Most attributes of one object.
pub const MAX_ATTRIBUTES: usize = 1000;
/// Most bytes of all names and values of one object: [`AttributeValue::size`].
pub const MAX_ATTRIBUTE_BYTES: usize = 1024 * 1024;
/// Most attributes that are taken out of the bytes of one object.
pub const MAX_HEADER_ATTRIBUTES: usize = 20_000;
/// Most bytes of all their names and values.
pub const MAX_HEADER_BYTES: usize = 4 * 1024 * 1024;

/// The name of an attribute: 1 to 255 bytes of text without control characters, white space at its ends, or a back quote, by which
/// queries quote it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AttributeName(String);

impl AttributeName {
    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Text that is no name of an attribute.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' cannot name an attribute: {1}")]
pub struct InvalidAttributeName(String, &'static str);

impl FromStr for AttributeName {
    type Err = InvalidAttributeName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |why| Err(InvalidAttributeName(text.chars().take(40).collect(), why));
        if text.is_empty() || text.len() > MAX_ATTRIBUTE_NAME {
            return wrong("a name has 1 to 255 bytes");
        }
        if text.trim() != text {
            return wrong("it begins or ends with white space");
        }
        if text.chars().any(|char| char.is_control() || char == '`') {
            return wrong("a name has no control characters and no back quote");
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for AttributeName {
    type Error = InvalidAttributeName;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<AttributeName> for String {
    fn from(name: AttributeName) -> Self {
        name.0
    }
}

impl fmt::Display for AttributeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A value of an attribute. On the wire and in the journal it is an object with one field, named by the type: `{"integer":7}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttributeValue {
    /// A whole number.
    Integer(i64),
    /// Another number, also `NaN` and infinities.
    Float(Float),
    /// Text, of at most 8192 bytes.
    Text(String),
    /// A point in time.
    Time(Timestamp),
    /// Yes or no.
    Bool(bool),
}

impl AttributeValue {
    /// Returns the name of its type.
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::Integer(_) => "integer",
            Self::Float(_) => "float",
            Self::Text(_) => "text",
            Self::Time(_) => "time",
            Self::Bool(_) => "bool",
        }
    }

    /// Returns how many bytes it counts for.
    pub const fn size(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Integer(_) | Self::Float(_) | Self::Time(_) | Self::Bool(_) => 8,
        }
    }

    /// Reads what a person writes: a whole number, another number, `true` or `false`, a time in RFC 3339, or else text.
    pub fn guess(text: &str) -> Self {
        if let Ok(number) = text.parse() {
            return Self::Integer(number);
        }
        // `parse` takes words such as `inf` and `nan`, which a person means as text.
        let is_number = text.starts_with(|char: char| char.is_ascii_digit() || "+-.".contains(char))
            && text.ends_with(|char: char| char.is_ascii_digit() || char == '.');
        if let Some(number) = text.parse().ok().filter(|_| is_number) {
            return Self::Float(Float(number));
        }
        match text {
            "true" => Self::Bool(true),
            "false" => Self::Bool(false),
            _ => text.parse().map_or_else(|_| Self::Text(text.to_owned()), Self::Time),
        }
    }

    /// Fails if it is larger than a value may be.
    ///
    /// # Errors
    /// In words.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Text(text) if text.len() > MAX_ATTRIBUTE_TEXT => Err(format!(
                "a text of an attribute has at most {MAX_ATTRIBUTE_TEXT} bytes, not {}",
                text.len()
            )),
            // Databases cannot hold it.
            Self::Text(text) if text.contains('\0') => Err("a text of an attribute has no zero byte".into()),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for AttributeValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => number.fmt(f),
            Self::Float(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
            Self::Time(time) => time.fmt(f),
            Self::Bool(is_so) => is_so.fmt(f),
        }
    }
}

/// A number of 64 bits. JSON has no words for what is not finite: these are the texts `NaN`, `Infinity` and `-Infinity`. Two that are
/// no number are equal.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(from = "FloatText", into = "FloatText")]
pub struct Float(pub f64);

impl PartialEq for Float {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0 || (self.0.is_nan() && other.0.is_nan())
    }
}

impl fmt::Display for Float {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NotFinite::of(self.0) {
            Some(word) => f.write_str(word.text()),
            // Such that it is read as what it was, and not as a whole number.
            None => write!(f, "{:?}", self.0),
        }
    }
}

impl FromStr for Float {
    type Err = std::num::ParseFloatError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum NotFinite {
    NaN,
    Infinity,
    #[serde(rename = "-Infinity")]
    NegativeInfinity,
}

impl NotFinite {
    fn of(number: f64) -> Option<Self> {
        match number {
            _ if number.is_nan() => Some(Self::NaN),
            f64::INFINITY => Some(Self::Infinity),
            f64::NEG_INFINITY => Some(Self::NegativeInfinity),
            _ => None,
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::NaN => "NaN",
            Self::Infinity => "Infinity",
            Self::NegativeInfinity => "-Infinity",
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum FloatText {
    Number(f64),
    Word(NotFinite),
}

impl From<Float> for FloatText {
    fn from(number: Float) -> Self {
        NotFinite::of(number.0).map_or(Self::Number(number.0), Self::Word)
    }
}

impl From<FloatText> for Float {
    fn from(text: FloatText) -> Self {
        Self(match text {
            FloatText::Number(number) => number,
            FloatText::Word(NotFinite::NaN) => f64::NAN,
            FloatText::Word(NotFinite::Infinity) => f64::INFINITY,
            FloatText::Word(NotFinite::NegativeInfinity) => f64::NEG_INFINITY,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_text() {
        for name in ["a", "sea surface temperature", "Größe", "a.b:c/d", &"x".repeat(255)] {
            assert_eq!(name.parse::<AttributeName>().unwrap().as_str(), name);
        }
        for name in ["", " a", "a ", "a\nb", "a`b", "a\0b", &"x".repeat(256)] {
            assert!(name.parse::<AttributeName>().is_err(), "{name:?}");
        }
    }

    #[test]
    fn values_come_back_as_they_were() {
        let values = [
            AttributeValue::Integer(i64::MAX),
            AttributeValue::Integer(i64::MIN),
            AttributeValue::Float(Float(0.1)),
            AttributeValue::Float(Float(1.0)),
            AttributeValue::Float(Float(f64::NAN)),
            AttributeValue::Float(Float(f64::INFINITY)),
            AttributeValue::Float(Float(f64::NEG_INFINITY)),
            AttributeValue::Text("Größe".into()),
            AttributeValue::Time(Timestamp::EPOCH),
            AttributeValue::Bool(true),
        ];
        for value in values {
            let text = serde_json::to_string(&value).unwrap();
            assert_eq!(serde_json::from_str::<AttributeValue>(&text).unwrap(), value, "{text}");
            if let AttributeValue::Float(number) = value {
                assert_eq!(number.to_string().parse::<Float>().unwrap(), number);
            }
        }
        assert_eq!(
            serde_json::to_string(&AttributeValue::Float(Float(f64::NAN))).unwrap(),
            r#"{"float":"NaN"}"#
        );
    }

    #[test]
    fn what_a_person_writes_has_the_type_that_it_looks_like() {
        let types = [
            ("7", "integer"),
            ("-7", "integer"),
            ("7.5", "float"),
            ("1e3", "float"),
            ("true", "bool"),
            ("nan", "text"),
            ("2024-06-01T12:00:00Z", "time"),
            ("2024-06-01x", "text"),
            ("MODIS", "text"),
            ("", "text"),
            ("inf", "text"),
            ("-", "text"),
        ];
        for (text, wanted) in types {
            assert_eq!(AttributeValue::guess(text).type_name(), wanted, "{text}");
        }
    }

    #[test]
    fn texts_are_bounded() {
        assert!(AttributeValue::Text("x".repeat(MAX_ATTRIBUTE_TEXT)).check().is_ok());
        assert!(AttributeValue::Text("x".repeat(MAX_ATTRIBUTE_TEXT + 1)).check().is_err());
        assert!(AttributeValue::Text("a\0".into()).check().is_err());
    }
}
