//! The HTTP interface: `docs/design/rest.md`.

pub mod auth;
pub mod extract;
pub mod observe;
