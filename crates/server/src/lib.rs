//! The server of a site: where the catalog, the stores and the HTTP interface meet. The binary is in `crates/cli`.
//!
//! | module | holds |
//! |---|---|
//! | [`config`] | everything that can be set, where it is read from, and where each value came from |
//! | [`app`] | what every request shares |
//! | [`http`] | the interface of `docs/design/rest.md`, one file for each kind of thing |
//! | [`error`] | [`ApiError`], which becomes a problem document |
//! | [`logging`] | the process's log |

pub mod abroad;
pub mod app;
pub mod authorize;
pub mod config;
pub mod connect;
pub mod error;
pub mod extraction;
pub mod fetch;
pub mod http;
pub mod keys;
pub mod lease;
pub mod listener;
pub mod logging;
pub mod mounts;
pub mod plain;
pub mod publish;
pub mod reading;
pub mod recovery;
pub mod start;
pub mod stores;
pub mod tasks;
pub mod traffic;
pub mod upload;

pub use app::AppState;
pub use config::Config;
pub use error::{ApiError, OnPath, Result};
pub use start::{Running, start};
