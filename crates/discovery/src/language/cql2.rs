//! The Common Query Language of the Open Geospatial Consortium (CQL2, OGC 21-065r2,
//! <https://docs.ogc.org/is/21-065r2/21-065r2.html>), in which catalogs of STAC and OGC API are asked.
//!
//! Its text becomes its JSON, and that a [`Condition`]; every condition can be written as JSON that is read as the same. What the query
//! language has beyond CQL2 are functions: `has` (a word in a text), `regex`, `glob` (a pattern of paths), `text` (words anywhere) and `read` (a value that is read in each way
//! in which it can be).

mod lower;
mod text;
mod write;

pub use self::write::write;

use percale_core::Timestamp;
use percale_core::query::Condition;

use super::{QueryError, bounded, check, read_whole};

/// Reads a filter in the form `cql2-text`.
///
/// # Errors
/// As [`super::parse`]; also for what is part of CQL2 and not supported.
pub fn parse_text(filter: &str, now: Timestamp) -> Result<Condition, QueryError> {
    let json = read_whole("filter", filter, now, |reader| reader.cql2())?;
    lowered(&json, now)
}

/// Reads a filter in the form `cql2-json`.
///
/// # Errors
/// As [`parse_text`].
pub fn parse_json(filter: &str, now: Timestamp) -> Result<Condition, QueryError> {
    check(filter)?;
    let json = serde_json::from_str(filter).map_err(|error| {
        let at = filter.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
        QueryError { at, message: format!("the filter is no JSON: {error}") }
    })?;
    lowered(&json, now)
}

fn lowered(json: &serde_json::Value, now: Timestamp) -> Result<Condition, QueryError> {
    let error =
        |message| QueryError { at: 0, message: format!("the filter cannot be understood: {message}") };
    bounded(lower::condition(json, now, 0).map_err(error)?, 0)
}

#[cfg(test)]
mod tests;
