//! The server of a site: where the catalog, the stores and the HTTP interface meet. The binary is in `crates/cli`.
//!
//! | module | holds |
//! |---|---|
//! | [`config`] | everything that can be set, where it is read from, and where each value came from |
//! | [`app`] | what every request shares |
//! | [`http`] | the interface of `docs/design/rest.md`, one file for each kind of thing |
//! | [`error`] | [`ApiError`], which becomes a problem document |
//! | [`logging`] | the process's log |

pub mod app;
pub mod config;
pub mod error;
pub mod http;
pub mod logging;

pub use app::AppState;
pub use config::Config;
pub use error::{ApiError, OnPath, Result};
