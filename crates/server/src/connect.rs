//! From a store's row to what reads and writes it: the one place that knows every connector.

use std::path::PathBuf;
use std::sync::Arc;

use percale_catalog::{Store, StoreLayout};
use percale_connectors::s3::{S3, S3Config, S3Credential};
use percale_store::SharedStore;
use percale_store::memory::Memory;
use percale_store::posix::{Layout, Ownership, Posix, PosixConfig};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::{ApiError, Result};

/// The connectors that a site may use.
pub const CONNECTORS: [&str; 3] = ["posix", "memory", "s3"];

/// Whether a store is one that was used before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It was; if its root is not there, or is another's, the file system is not mounted or the wrong one is.
    MustBeThere,
    /// It is being added: its root is made and claimed.
    MayBeNew,
}

/// The settings of a POSIX store.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PosixSettings {
    /// The directory; absolute.
    root: PathBuf,
    /// As whom files are read and written.
    #[serde(default)]
    identity: Ownership,
}

/// Opens a store.
///
/// # Errors
/// `InvalidRequest` for an unknown connector or settings it cannot use, else what the storage answers.
pub async fn open(row: &Store, secret: Option<&[u8]>, existing: Existing) -> Result<SharedStore> {
    match row.connector.as_str() {
        "posix" => {
            let PosixSettings { root, identity } = settings(row)?;
            let layout = match row.layout {
                StoreLayout::Managed => Layout::Managed,
                StoreLayout::Native => Layout::Native,
            };
            let mut config = PosixConfig::new(root, layout).ownership(identity).store_id(row.id);
            if existing == Existing::MayBeNew {
                config = config.create();
            }
            Ok(Arc::new(Posix::open(config).await?))
        }
        "memory" => Ok(Arc::new(Memory::file_system())),
        "s3" => {
            let config: S3Config = settings(row)?;
            let credential: Option<S3Credential> = secret.map(serde_json::from_slice).transpose().map_err(|_| {
                ApiError::invalid("the secret of an s3 store has access_key_id and secret_access_key, and may have session_token")
            })?;
            Ok(Arc::new(S3::open(config, credential).await?))
        }
        other => Err(ApiError::invalid(format!(
            "no connector '{}': this release has {}",
            other.chars().take(40).collect::<String>(),
            CONNECTORS.join(", ")
        ))),
    }
}

/// Returns the directory that a store is, on the hosts that see it; nothing for other storages, and where files belong to mapped
/// accounts.
pub fn directory(row: &Store) -> Option<PathBuf> {
    let settings: PosixSettings = (row.connector == "posix").then(|| settings(row).ok())??;
    matches!(settings.identity, Ownership::Service { .. }).then_some(settings.root)
}

fn settings<T: DeserializeOwned>(row: &Store) -> Result<T> {
    serde_path_to_error::deserialize(&row.config)
        .map_err(|error| ApiError::invalid(format!("cannot use the settings of store {}: {error}", row.name)))
}
