//! What objects and collections are about, and searching by it.

use percale_core::attribute::{AttributeName, AttributeValue};
use percale_core::query::Condition;

use super::words;

words!(
    /// Who says an attribute.
    AttributeSource {
        /// It was found in the bytes of the object.
        Header = "header",
        /// A person set it.
        Person = "person",
    }
);

/// An attribute of an entry.
#[derive(Debug, Clone, PartialEq)]
pub struct Attribute {
    /// Its name.
    pub name: AttributeName,
    /// Who says it.
    pub source: AttributeSource,
    /// Its values, in their order; at least one.
    pub values: Vec<AttributeValue>,
}

/// What is to be set and removed of what people say of an entry.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AttributeChange {
    /// Attributes with their new values, in place of those they had. One without values is removed.
    pub set: Vec<(AttributeName, Vec<AttributeValue>)>,
}

/// How to search.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SearchOptions {
    /// What must be true.
    pub condition: Condition,
    /// Where to go on: [`Page::next`](crate::Page) of the page before. Default: at the beginning.
    pub after: Option<String>,
    /// Most entries in the page. Default 1000, at most [`MAX_LIST`](crate::MAX_LIST).
    pub limit: usize,
}

impl SearchOptions {
    /// Finds what a condition holds for, from the beginning.
    pub fn new(condition: Condition) -> Self {
        Self { condition, after: None, limit: 1000 }
    }
}
