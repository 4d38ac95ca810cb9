//! The one HTTP client of Percale, control and bulk: for the command line, the mount, Python, and between sites.
//!
//! | module | holds |
//! |---|---|
//! | [`client`] | [`Client`]: connections, retries, errors |
//! | `call` | one request, before it is sent |
//! | `control` | the typed calls: one method of [`Client`] for each address |
//! | `mounts` | the calls of a mount |
//! | [`put`] | local files and trees into the fabric |
//! | [`get`] | objects and trees out of the fabric |
//! | [`read`] | verified bytes of one object as a stream |
//! | `elsewhere` | reading from the site that the one that was asked names |
//! | [`pull`] | frames as they come, for whoever stores them itself |
//! | `plain` | connections to another site without encryption |
//! | [`peer`] | calls between sites |
//! | [`events`] | what changes in a space, as it happens |
//! | [`receipt`] | receipts of tasks, fetched and checked |
//! | [`progress`] | how far a transfer is, for whoever shows it |
//! | [`error`] | [`Error`] |
//!
//! Everything bulk travels as frames (`docs/design/frames.md`), every group of 1 MiB verified alone. Memory is bounded:
//! a few megabytes for each stream, and for a tree one directory's listing on each level.

mod answer;
mod bases;
mod body;
mod call;
pub mod client;
mod compression;
mod control;
mod elsewhere;
pub mod error;
pub mod events;
pub mod extra;
mod feed;
pub mod get;
mod local;
mod mounts;
pub mod peer;
mod plain;
pub mod progress;
pub mod pull;
mod push;
pub mod put;
pub mod read;
pub mod receipt;
pub mod report;
mod retry;
pub mod selection;
mod sites;
mod upload;
mod walk;

pub use body::Passed;
pub use call::encode_path;
pub use client::{Client, ClientOptions};
pub use control::{ListOptions, Raw, Search};
pub use error::{Error, ErrorKind, Retry};
pub use mounts::Listing;
pub use plain::{PlainState, Transport};
pub use progress::Progress;
pub use report::{Item, Outcome, Report};
pub use retry::RetryPolicy;

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;
