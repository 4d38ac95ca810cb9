//! Compares what lies on the stores with what the catalogue says lies there.
//!
//! Rows may change while it looks: a server may run. Intents are read before replicas and those before garbage, which is the way
//! that a key goes through them, and whatever seems wrong is looked at again before it is told.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use percale_catalog::{Catalog, LeaseKind, MAX_LIST};
use percale_core::ErrorCode;
use percale_core::state::ReplicaState;
use percale_server::stores::{OpenStore, Registry};
use percale_store::key::StoreKey;
use percale_store::{ErrorKind, ListOptions, Store};
use percale_trust::Sealer;
use serde::Serialize;

use crate::failure::{Failure, Result};

/// Where versions lie whose own path was taken (`docs/design/publishing.md`).
const VERSIONS: &str = ".percale/versions";

/// Something that does not agree.
#[derive(Debug, Serialize)]
pub struct FileFinding {
    /// `file_unknown`: no row names it. `file_missing`: a row does, and it is not there. `store_away`: the store cannot be
    /// opened, so nothing was compared.
    pub kind: &'static str,
    /// The store and the key.
    pub subject: String,
    /// In words.
    pub detail: String,
}

/// Compares every store that can be opened. One in the server's memory cannot be looked into from here.
pub async fn compare(catalog: &Catalog, state_dir: &Path) -> Result<Vec<FileFinding>> {
    let sealer =
        Sealer::load_or_create(state_dir).map_err(|error| Failure::new(error.code(), error.to_string()))?;
    let stores = Registry::new(catalog.clone(), Arc::new(sealer));
    let away = stores.open_all().await.map_err(|error| super::server_failure(&error))?;
    let mut findings: Vec<FileFinding> = away
        .into_iter()
        .map(|(name, error)| FileFinding { kind: "store_away", subject: name, detail: error.to_string() })
        .collect();
    for store in stores.all().iter().filter(|store| store.row.connector != "memory") {
        compare_one(catalog, store, &mut findings).await?;
    }
    Ok(findings)
}

async fn compare_one(catalog: &Catalog, store: &OpenStore, findings: &mut Vec<FileFinding>) -> Result {
    let (mut unknown, name) = (HashSet::new(), store.row.name.as_str());
    // A native store also holds what nobody registered; that is no fault.
    if store.is_managed() {
        let mut whole = ListOptions::default().recursive();
        add_files(&*store.store, whole.clone(), &mut unknown).await?;
        whole.prefix = Some(VERSIONS.parse().map_err(|error| internal(&format!("{error}")))?);
        add_files(&*store.store, whole, &mut unknown).await?;
    }
    for kind in [LeaseKind::Server, LeaseKind::Upload, LeaseKind::Mount] {
        for lease in catalog.leases(kind).await.map_err(super::failure)? {
            for row in catalog.intents_of(lease.id).await.map_err(super::failure)? {
                unknown.remove(row.intent.key.as_str());
            }
        }
    }
    let mut missing = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page =
            catalog.replicas_on(store.row.id, after.as_deref(), MAX_LIST).await.map_err(super::failure)?;
        let Some(last) = page.last() else { break };
        after = Some(last.replica.key.clone());
        for stored in page {
            let was_listed = unknown.remove(stored.replica.key.as_str());
            let is_expected = matches!(stored.replica.state, ReplicaState::Good | ReplicaState::Unverified);
            if !was_listed && is_expected {
                missing.push(stored.replica.key);
            }
        }
    }
    for garbage in catalog.garbage(store.row.id, usize::MAX >> 1).await.map_err(super::failure)? {
        unknown.remove(garbage.key.as_str());
    }
    let subject = |key: &str| format!("{name}:{key}");
    for key in missing {
        if !is_there(store, &key).await? {
            let detail = "the catalogue has a good copy there, but the file is gone".to_owned();
            findings.push(FileFinding { kind: "file_missing", subject: subject(&key), detail });
        }
    }
    let mut unknown: Vec<_> = unknown.into_iter().collect();
    unknown.sort_unstable();
    for key in unknown {
        if is_there(store, &key).await? {
            let detail = "no row of the catalogue names this file".to_owned();
            findings.push(FileFinding { kind: "file_unknown", subject: subject(&key), detail });
        }
    }
    Ok(())
}

async fn add_files(store: &dyn Store, options: ListOptions, files: &mut HashSet<Box<str>>) -> Result {
    let mut listing = match store.list(options).await {
        Ok(listing) => listing,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Failure::new(error.code(), error.to_string())),
    };
    while let Some(page) =
        listing.next().await.map_err(|error| Failure::new(error.code(), error.to_string()))?
    {
        files.extend(
            page.entries
                .into_iter()
                .filter(|entry| entry.meta.is_file())
                .map(|entry| entry.key.as_str().into()),
        );
    }
    Ok(())
}

async fn is_there(store: &OpenStore, key: &str) -> Result<bool> {
    let Ok(key) = key.parse::<StoreKey>() else { return Ok(false) };
    match store.store.stat(&key).await {
        Ok(meta) => Ok(meta.is_file()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotACollection) => Ok(false),
        Err(error) => Err(Failure::new(error.code(), error.to_string())),
    }
}

fn internal(detail: &str) -> Failure {
    Failure::new(ErrorCode::Internal, format!("cannot look at the stores: {detail}"))
}
