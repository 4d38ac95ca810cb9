//! The catalog of a site: what is where, who may do what, who holds which right, and the journal of every change.
//!
//! [`Catalog`] is the whole interface. It is cheap to clone, and the same on both engines: SQLite in a file of its own,
//! or PostgreSQL, which several servers may share. Bytes never come here.
//!
//! - Every call that names a path takes a [`Caller`](percale_core::access::Caller) and decides inside, by
//!   [`percale_core::access::decide`], in the transaction of the change.
//! - A change that was answered is durable. Dropping the future of a call does not undo the change: it is made or not
//!   made, and the answer is lost.
//! - Changes that arrive together are committed together, each with its own outcome.
//!
//! Inside, from the outside in: a file for each kind of call, with the call and what it decides (`namespace`, `publish`,
//! `lease`, …); `batch`, one transaction of several changes; `rows`, the statements; `engine`, what runs them.

mod access;
mod admin;
mod arrival;
mod attribute;
mod batch;
mod catalog;
mod copies;
mod description;
mod engine;
mod error;
mod extraction;
mod find;
mod follow;
mod grant;
mod history;
mod idempotency;
mod journal;
mod lease;
mod list;
mod model;
mod move_home;
mod namespace;
mod peer;
mod publish;
mod read;
mod record;
mod register;
mod remote;
mod remove;
mod replica;
mod report;
mod rows;
mod search;
mod space;
mod store;
mod task;
mod token;

pub use catalog::Catalog;
pub use error::{Error, ErrorKind, Result, Retry};
pub use follow::SpaceSnapshot;
pub use model::*;
pub use publish::MAX_PUBLISH;
pub use record::{
    AttributesItem, ChangedItem, CreatedItem, FormerPlace, GrantItem, MovedItem, PublishedItem, RecordChange,
    RemovedItem, ReplicaItem, ReplicaRemovedItem, SetAttribute, SpaceBody, SpaceMovedBody, SpacePromotedBody,
};
pub use register::MAX_REGISTER;

/// For how long a request counts as in progress without an answer. After that its idempotency key may begin again,
/// since its server has died.
pub const IN_PROGRESS_FOR: std::time::Duration = std::time::Duration::from_secs(120);
