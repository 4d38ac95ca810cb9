//! The site and its health.

use percale_core::ids::SiteId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A site of the fabric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Site {
    /// Its id.
    #[schema(value_type = String, format = "uuid")]
    pub id: SiteId,
    /// Its name.
    pub name: String,
    /// The release that answers.
    pub version: String,
}

/// Build and schema of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// The release.
    pub version: String,
    /// The number of the database layout.
    pub schema: u32,
    /// The catalog's engine: `sqlite` or `postgres`.
    pub catalog: String,
}

/// One part of the server's readiness.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Check {
    /// What was looked at.
    pub name: String,
    /// Whether it works.
    pub ok: bool,
    /// What is wrong, or how long it took.
    pub detail: String,
}

/// Whether the server can serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Readiness {
    /// Whether every check is well.
    pub ready: bool,
    /// The checks; only with `?verbose`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
}
