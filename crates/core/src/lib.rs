//! The vocabulary that every other crate speaks. No I/O, no async, no dependency on another Percale crate.
//!
//! | module | holds |
//! |---|---|
//! | [`ids`] | identifiers of spaces, sites, entries, versions, … |
//! | [`path`] | [`ObjectPath`], the normalised path of the namespace |
//! | [`range`] | [`ByteCount`] and [`ByteRange`] |
//! | [`rate`] | [`Rate`], a speed that people set |
//! | [`digest`] | whole-content digests that clients ask for, several in one pass |
//! | [`tree`] | the BLAKE3 tree over 1 MiB groups that makes any part of a version verifiable alone |
//! | [`access`] | subjects, permissions, and the one function that decides |
//! | [`state`] | the states of replicas, leases and tasks, and which may follow which |
//! | [`attribute`] | typed names and values that say what an object is about |
//! | [`query`] | what is searched for: the tree that the query language gives and a catalog answers |
//! | [`position`] | a place in a space's journal |
//! | [`link`] | where symbolic links lead |
//! | [`FileMode`] | permission bits that programs see |
//! | [`time`] | [`Timestamp`], microseconds since 1970 |
//! | [`ErrorCode`] | the stable codes of `spec/errors.yaml` |

pub mod access;
pub mod attribute;
pub mod digest;
mod error_codes;
pub mod ids;
pub mod link;
mod mode;
pub mod path;
pub mod position;
pub mod query;
pub mod range;
pub mod rate;
pub mod state;
pub mod time;
pub mod tree;

pub use attribute::{AttributeName, AttributeValue};
pub use error_codes::{ErrorCode, UnknownErrorCode};
pub use link::LinkTarget;
pub use mode::{FileMode, InvalidFileMode};
pub use path::ObjectPath;
pub use position::Position;
pub use range::{ByteCount, ByteRange};
pub use rate::Rate;
pub use time::Timestamp;
