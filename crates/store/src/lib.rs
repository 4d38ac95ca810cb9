//! Storages behind one trait.
//!
//! A storage is a [`Store`]. It says in its [`Capabilities`] what it can do, and [`conformance`] proves it. Bytes are
//! *staged* under a token that nobody sees, then *published* under a key, whole and durable. [`posix`] is a directory
//! tree, [`memory`] is for tests; other storages are in `percale-connectors`. [`wrappers`] add retries, limits, timeouts,
//! metrics and injected faults to any store; [`wrappers::standard_stack`] puts them in the right order.

pub mod capabilities;
pub mod conformance;
pub mod error;
pub mod ext;
pub mod failpoint;
pub mod key;
pub mod memory;
pub mod posix;
pub mod store;
pub mod types;
pub mod wrappers;

pub use capabilities::{Capabilities, ReadCapabilities, WriteCapabilities};
pub use error::{Error, ErrorKind, Operation, Result, RetryClass};
pub use ext::StoreExt;
pub use key::{KeyError, RESERVED, STAGE, StageToken, StoreKey};
pub use store::{FileRange, ListStream, ReadStream, SharedStore, Stage, Store};
pub use types::{
    Delete, Entry, FileIdentity, Generation, Kind, ListOptions, ListPage, Meta, Publish, PublishMode,
    Published, ReadOptions, Skipped, SmallFile, StageOptions, Staged, Usage,
};
