//! What objects and collections are about, and searching by it.

use std::time::Duration;

use percale_core::attribute::{AttributeName, AttributeValue};
use percale_core::ids::{EntryId, SiteId, VersionId};
use percale_core::path::SpaceName;
use percale_core::query::{Condition, Field};
use percale_core::{ObjectPath, Position, Timestamp};

use super::{Entry, OpenVersion, Page, words};
use crate::record::SetAttribute;

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

/// A change of what is said of an entry.
#[derive(Debug, Clone, PartialEq)]
pub struct AttributeEvent {
    /// When.
    pub at: Timestamp,
    /// Who changed it: `user:NAME`, or `system` for what was found in bytes.
    pub actor: String,
    /// Where in the journal.
    pub position: Position,
    /// Who says it since.
    pub source: AttributeSource,
    /// The attributes with their new values; without any the attribute was removed.
    pub set: Vec<SetAttribute>,
}

/// What bytes say of themselves under one name.
pub type FoundAttribute = (AttributeName, Vec<AttributeValue>);

/// What the bytes of a version say of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// The object.
    pub entry: EntryId,
    /// The version whose bytes they are.
    pub version: VersionId,
    /// The versions that the documents had which describe it ([`Described::as_of`]).
    pub as_of: Vec<VersionId>,
    /// The attributes, each once and with its values.
    pub found: Vec<FoundAttribute>,
    /// Not all could be read, so what is known under other names stays.
    pub is_partial: bool,
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
    /// Tells whether all objects of the space are being looked at, and not what the journal names.
    pub fn looks_at_all(&self) -> bool {
        self.scan.is_some()
    }

    /// Returns how many records up to a position were not looked at; nothing while all objects of the space are.
    pub fn left(&self, position: Position) -> Option<u64> {
        let is_same = self.scan.is_none() && self.term == position.term;
        is_same.then(|| position.seq.saturating_sub(self.seq))
    }
}

/// A version with the documents beside it that describe it.
#[derive(Debug, Clone, PartialEq)]
pub struct Described {
    /// The version.
    pub object: OpenVersion,
    /// The documents as they are now; the first of two that say different things has the word.
    pub by: Vec<OpenVersion>,
    /// Their versions, also of those that cannot be opened.
    pub as_of: Vec<VersionId>,
}

/// Versions whose bytes were not read yet.
#[derive(Debug, Clone)]
pub struct ToExtract {
    /// The next of them. There may be none although there are more.
    pub due: Vec<Described>,
    /// Where that is once these were read.
    pub place: ExtractionPlace,
    /// Whether all were, so that the place is as it was.
    pub is_done: bool,
}

/// Most facets that are counted at once.
pub const MAX_FACETS: usize = 20;

/// An entry that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Its path.
    pub path: ObjectPath,
    /// What it is.
    pub entry: Entry,
    /// Its attributes among those that were asked for, by name and source.
    pub attributes: Vec<Attribute>,
}

/// A page of what was found.
#[derive(Debug, Clone)]
pub struct FoundPage {
    /// The page.
    pub page: Page<Found>,
    /// The other sites that are homes of spaces that were searched.
    pub homes: Vec<SearchedHome>,
    /// Values that were passed over since they are of another type than what is compared with. On the first page,
    /// and not where there is an order.
    pub mismatches: Vec<Mismatch>,
}

/// Another site that is the home of spaces that were searched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchedHome {
    /// The site.
    pub site: SiteId,
    /// Why what is known here of one of the spaces cannot be trusted, if it cannot.
    pub behind: Option<String>,
}

/// Values of an attribute that are not compared with what a search compares with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The attribute.
    pub name: AttributeName,
    /// Whether they are texts; otherwise they are numbers, times or truths.
    pub are_text: bool,
    /// How many there are.
    pub count: usize,
    /// Whether no more were counted.
    pub is_most: bool,
}

/// How a space is searched.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedSpace {
    /// The space.
    pub space: SpaceName,
    /// The test that leads through an index to all that can be found; nothing if all entries of the space are gone through, or if which one it
    /// is depends on what the caller may not read.
    pub led_by: Option<Condition>,
    /// How many entries are looked at: those that it leads to, or all that there are. Nothing where the caller may not read all of the space.
    pub looked_at: Option<u64>,
}

/// What to count.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SummaryOptions {
    /// What must be true.
    pub condition: Condition,
    /// Of which fields the values are counted. Default: none, at most [`MAX_FACETS`].
    pub facets: Vec<Field>,
    /// How many values of each. Default 20.
    pub values: usize,
    /// How long to count before what was not looked at is estimated. Default 1 s.
    pub patience: Duration,
}

impl SummaryOptions {
    /// Counts what a condition holds for.
    pub fn new(condition: Condition) -> Self {
        Self { condition, facets: Vec::new(), values: 20, patience: Duration::from_secs(1) }
    }
}

/// How many entries a search finds.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// How many.
    pub count: u64,
    /// Whether there was no time to look at all of them, so that the numbers are what those that were looked at make probable.
    pub is_estimate: bool,
    /// The facets, in the order in which they were asked for.
    pub facets: Vec<Facet>,
    /// The other sites that are homes of spaces that were searched.
    pub homes: Vec<SearchedHome>,
}

/// How many of the entries have which values. One that has several counts for each of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Facet {
    /// The field.
    pub field: Field,
    /// The values that most have, with how many.
    pub values: Vec<(AttributeValue, u64)>,
    /// How often there is another value.
    pub others: u64,
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
    /// In which order. Default: in none that means anything.
    pub sort: Option<Sort>,
    /// The attributes that are told of each. Default: none.
    pub attributes: Vec<AttributeName>,
    /// How long a page is searched for before what was found is answered, if it is in no order: others wait meanwhile for a connection that
    /// reads. Default 300 ms.
    pub patience: Duration,
}

/// An order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sort {
    /// By what: an attribute, or name, size, created, modified or replicas. Of several values it is the first in the order. What has none
    /// comes last.
    pub field: Field,
    /// Whether the largest comes first.
    pub is_descending: bool,
}

impl SearchOptions {
    /// Finds what a condition holds for, from the beginning.
    pub fn new(condition: Condition) -> Self {
        let patience = Duration::from_millis(300);
        Self { condition, after: None, limit: 1000, sort: None, attributes: Vec::new(), patience }
    }
}
