//! What readers of the journal get.

use percale_core::{Position, Timestamp};
use serde_json::Value;

/// A record of the journal.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The place behind it.
    pub position: Position,
    /// When the transaction began, by the database's clock.
    pub at: Timestamp,
    /// Who caused it, as text.
    pub actor: String,
    /// What kind of change, such as `objects.published`.
    pub kind: String,
    /// The version of the body's form.
    pub v: u32,
    /// What changed. [`Record::change`](crate::Record::change) decodes the kinds that this release knows.
    pub body: Value,
}

/// Most records in one answer.
pub const MAX_JOURNAL: usize = 10_000;
