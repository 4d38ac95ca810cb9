//! Values that go into statements and come out of rows.

use std::str::FromStr;
use std::vec;

use percale_core::tree::RootHash;
use percale_core::{ByteCount, Timestamp};
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::error::{Error, Result};

/// A value of a column or parameter.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    /// NULL.
    Null,
    /// A 64-bit integer.
    Int(i64),
    /// A text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A UUID: 16 bytes in SQLite.
    Uuid(Uuid),
    /// Several texts, as a parameter: a JSON array in SQLite.
    Texts(Vec<String>),
}

macro_rules! from {
    ($($type:ty => |$value:ident| $made:expr;)*) => {
        $(impl From<$type> for Value {
            fn from($value: $type) -> Self {
                $made
            }
        })*
    };
}

// Ids, sizes and fences stay below 2^63: ids and fences count up from 1, and a size has passed `ByteCount` checks. A
// larger one is cut, and the statement then finds nothing.
from! {
    i64 => |value| Value::Int(value);
    u64 => |value| Value::Int(i64::try_from(value).unwrap_or(i64::MAX));
    u32 => |value| Value::Int(i64::from(value));
    usize => |value| Value::Int(i64::try_from(value).unwrap_or(i64::MAX));
    String => |value| Value::Text(value);
    &str => |value| Value::Text(value.to_owned());
    Vec<u8> => |value| Value::Bytes(value);
    Uuid => |value| Value::Uuid(value);
    Timestamp => |value| Value::Int(value.as_micros());
    ByteCount => |value| Value::from(value.get());
    RootHash => |value| Value::Bytes(value.0.to_vec());
    percale_core::ids::EntryId => |value| Value::from(value.0);
    percale_core::ids::VersionId => |value| Value::from(value.0);
    percale_core::ids::Fence => |value| Value::from(value.0);
    percale_core::ids::SpaceId => |value| Value::Uuid(value.0);
    percale_core::ids::StoreId => |value| Value::Uuid(value.0);
    percale_core::ids::SiteId => |value| Value::Uuid(value.0);
    percale_core::ids::LeaseId => |value| Value::Uuid(value.0);
    percale_core::ids::TaskId => |value| Value::Uuid(value.0);
    percale_core::ids::TokenId => |value| Value::Uuid(value.0);
    crate::model::IntentId => |value| Value::Uuid(value.0);
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Null, Into::into)
    }
}

/// Makes a row of parameters.
macro_rules! row {
    ($($value:expr),* $(,)?) => { vec![$($crate::engine::Value::from($value)),*] };
}
pub(crate) use row;

/// A row that came back; its columns are taken from left to right.
#[derive(Debug)]
pub(crate) struct Row {
    values: vec::IntoIter<Value>,
}

fn wrong(expected: &str) -> Error {
    Error::corrupt(format!("cannot read a row of the catalog: a column is not {expected}"))
}

impl Row {
    /// Makes a row of values.
    pub fn new(values: Vec<Value>) -> Self {
        Self { values: values.into_iter() }
    }

    /// Returns the bytes of the texts in it that were not taken yet.
    pub fn text_bytes(&self) -> usize {
        let texts = self.values.as_slice().iter();
        texts.map(|value| if let Value::Text(text) = value { text.len() } else { 0 }).sum()
    }

    /// Takes the next column, whatever it is.
    pub fn value(&mut self) -> Result<Value> {
        self.values.next().ok_or_else(|| wrong("there"))
    }

    /// Takes an integer.
    pub fn int(&mut self) -> Result<i64> {
        match self.value()? {
            Value::Int(value) => Ok(value),
            _ => Err(wrong("an integer")),
        }
    }

    /// Takes an integer that may be missing.
    pub fn opt_int(&mut self) -> Result<Option<i64>> {
        match self.value()? {
            Value::Int(value) => Ok(Some(value)),
            Value::Null => Ok(None),
            _ => Err(wrong("an integer or null")),
        }
    }

    /// Takes a number that is not negative.
    pub fn number(&mut self) -> Result<u64> {
        u64::try_from(self.int()?).map_err(|_| wrong("a number of 0 or more"))
    }

    /// Takes a number that may be missing.
    pub fn opt_number(&mut self) -> Result<Option<u64>> {
        let value = self.opt_int()?;
        value.map(|value| u64::try_from(value).map_err(|_| wrong("a number of 0 or more"))).transpose()
    }

    /// Takes a number of 32 bits.
    pub fn small(&mut self) -> Result<u32> {
        u32::try_from(self.int()?).map_err(|_| wrong("a number of 32 bits"))
    }

    /// Takes a time.
    pub fn time(&mut self) -> Result<Timestamp> {
        self.int().map(Timestamp::from_micros)
    }

    /// Takes a time that may be missing.
    pub fn opt_time(&mut self) -> Result<Option<Timestamp>> {
        Ok(self.opt_int()?.map(Timestamp::from_micros))
    }

    /// Takes a text.
    pub fn text(&mut self) -> Result<String> {
        match self.value()? {
            Value::Text(value) => Ok(value),
            _ => Err(wrong("a text")),
        }
    }

    /// Takes a text that may be missing.
    pub fn opt_text(&mut self) -> Result<Option<String>> {
        match self.value()? {
            Value::Text(value) => Ok(Some(value)),
            Value::Null => Ok(None),
            _ => Err(wrong("a text or null")),
        }
    }

    /// Takes bytes that may be missing.
    pub fn opt_bytes(&mut self) -> Result<Option<Vec<u8>>> {
        match self.value()? {
            Value::Bytes(value) => Ok(Some(value)),
            Value::Null => Ok(None),
            _ => Err(wrong("bytes or null")),
        }
    }

    /// Takes a UUID that may be missing.
    pub fn opt_uuid(&mut self) -> Result<Option<Uuid>> {
        match self.value()? {
            Value::Uuid(value) => Ok(Some(value)),
            Value::Bytes(value) => Uuid::from_slice(&value).map(Some).map_err(|_| wrong("a UUID")),
            Value::Null => Ok(None),
            _ => Err(wrong("a UUID")),
        }
    }

    /// Takes a UUID.
    pub fn uuid(&mut self) -> Result<Uuid> {
        self.opt_uuid()?.ok_or_else(|| wrong("a UUID"))
    }

    /// Takes a hash that may be missing.
    pub fn opt_root(&mut self) -> Result<Option<RootHash>> {
        let bytes = self.opt_bytes()?;
        bytes.map(|bytes| bytes.try_into().map(RootHash).map_err(|_| wrong("a hash of 32 bytes"))).transpose()
    }

    /// Takes a text and parses it.
    pub fn parse<T: FromStr>(&mut self) -> Result<T>
    where
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        let text = self.text()?;
        text.parse().map_err(|error| wrong("a known word").with_source(error))
    }

    /// Takes a JSON text and decodes it.
    pub fn json<T: DeserializeOwned>(&mut self) -> Result<T> {
        let text = self.text()?;
        serde_json::from_str(&text).map_err(|error| wrong("the expected JSON").with_source(error))
    }

    /// Takes a JSON text that may be missing and decodes it.
    pub fn opt_json<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let text = self.opt_text()?;
        text.map(|text| serde_json::from_str(&text))
            .transpose()
            .map_err(|error| wrong("the expected JSON").with_source(error))
    }
}

/// Writes a value as JSON text. The types given to it have only string keys and no maps that can fail.
pub(crate) fn to_json<T: serde::Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|error| Error::internal("cannot write a value as JSON").with_source(error))
}
