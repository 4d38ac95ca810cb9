//! What objects and collections are about, and searching by it.

use percale_core::Position;
use percale_core::attribute::{AttributeName, AttributeValue};
use percale_core::ids::{EntryId, VersionId};
use percale_core::query::Condition;

use super::{OpenVersion, words};

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

/// What the bytes of a version say of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// The object.
    pub entry: EntryId,
    /// The version whose bytes they are.
    pub version: VersionId,
    /// The attributes, each once and with its values.
    pub found: Vec<(AttributeName, Vec<AttributeValue>)>,
}

/// How far attributes were taken out of the bytes of a space's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtractionPlace {
    /// The term of the journal.
    pub(crate) term: u32,
    /// Up to which record what was published was looked at.
    pub(crate) seq: u64,
    /// Behind which entry all objects are looked at, while they are.
    pub(crate) scan: Option<u64>,
    /// By which release of the extractor.
    pub(crate) extractor: u32,
}

impl ExtractionPlace {
    /// Returns how many records up to a position were not looked at; nothing while all objects of the space are.
    pub fn left(&self, position: Position) -> Option<u64> {
        let is_same = self.scan.is_none() && self.term == position.term;
        is_same.then(|| position.seq.saturating_sub(self.seq))
    }
}

/// Versions whose bytes were not read yet.
#[derive(Debug, Clone)]
pub struct ToExtract {
    /// The next of them. There may be none although there are more.
    pub due: Vec<OpenVersion>,
    /// Where that is once these were read.
    pub place: ExtractionPlace,
    /// Whether all were, so that the place is as it was.
    pub is_done: bool,
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
