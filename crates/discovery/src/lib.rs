//! Finding data by what it is about: the query language, and what files say of themselves.
//!
//! | module | holds |
//! |---|---|
//! | [`language`] | [`parse`]: what people write, as the conditions of [`percale_core::query`] |
//! | [`frame`] | what a server and the process that reads headers say to each other |
//! | [`header`], [`standard`] | attributes on their way out of a file, and those that all formats share |
//! | [`recognise`] | which format a file has, by its name and its first bytes |
//! | [`references`] | where the pieces of arrays lie in files, as a store of Zarr, and how those of many files are one |
//! | `formats`, `source` | what the header of a file says, by ranges of its bytes |
//! | `reader`, `sandbox` | the process that reads headers, and what shuts it in |
//!
//! The last two are behind the feature `formats`: only a program that runs as that process needs them.

#[cfg(feature = "formats")]
pub mod formats;
pub mod frame;
pub mod header;
pub mod language;
#[cfg(feature = "formats")]
pub mod reader;
pub mod recognise;
pub mod references;
#[cfg(feature = "formats")]
mod sandbox;
#[cfg(feature = "formats")]
pub mod source;
pub mod standard;

pub use language::{QueryError, both, cql2, parse, parse_attributes, parse_fields, write};

/// The release of what reads headers. It changes with what is found in the same bytes, so that they are read again.
pub const EXTRACTOR: u32 = 7;
