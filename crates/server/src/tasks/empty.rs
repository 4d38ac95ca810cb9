//! Moves everything off a store of this site, so that it can be removed.
//!
//! What has no good copy on another store of the site is copied to one; then the home of the space is asked to let the
//! copy go, which keeps it if it is the last good one. What is damaged goes if there is a good copy anywhere.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use percale_catalog::{CopyId, OpenVersion, Space, Store, StoreState, StoredReplica};
use percale_core::ids::{StoreId, VersionId};
use percale_core::path::SpaceName;
use percale_core::state::ReplicaState;
use percale_core::{ErrorCode, ObjectPath};

use super::Attempt;
use super::evict::{Own, let_go};
use crate::abroad::Copied;
use crate::app::system_caller;
use crate::fetch::{Become, Brought, Wanted};
use crate::{ApiError, AppState, OnPath as _, Result};

/// Copies in one step.
const STEP: usize = 500;

pub(super) async fn run(attempt: &Attempt, name: &str) -> Result<()> {
    let (app, system) = (&attempt.app, system_caller());
    let store = may_be_emptied(app, name).await?;
    let mut after = attempt.progress.after();
    loop {
        let page = app.catalog.replicas_on(store.id, after.as_deref(), STEP).await?;
        after = page.last().map(|stored| stored.replica.key.clone());
        let mut spaces: HashMap<SpaceName, Vec<(OpenVersion, StoredReplica)>> = HashMap::new();
        for stored in page {
            let opened = app.catalog.open_by_id(&system, stored.space, stored.replica.version).await;
            match opened {
                Ok(version) => {
                    if let Some(space) = version.path.space() {
                        spaces.entry(space).or_default().push((version, stored));
                    }
                }
                // It was removed meanwhile, and its bytes are garbage.
                Err(error) if error.code() == ErrorCode::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        for (space, copies) in spaces {
            let space = app.catalog.space(&system, &space).await?;
            move_away(attempt, &space, &store, copies).await?;
        }
        attempt.step(after.clone())?;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// Returns a store that may be emptied.
///
/// # Errors
/// `NotFound`; `Conflict` if it takes new data; `Unsupported` for a native one.
pub(crate) async fn may_be_emptied(app: &AppState, name: &str) -> Result<Store> {
    let store = app.stores.named(name).await?;
    if store.layout == percale_catalog::StoreLayout::Native {
        let detail = format!("store {name} is native: its files belong to those who wrote them");
        return Err(ApiError::new(ErrorCode::Unsupported, detail));
    }
    if store.state == StoreState::Online {
        let detail = format!("store {name} takes new data; it is emptied once it is draining");
        return Err(ApiError::new(ErrorCode::Conflict, detail));
    }
    Ok(store)
}

/// Moves copies of one space to other stores of this site.
async fn move_away(
    attempt: &Attempt,
    space: &Space,
    store: &Store,
    copies: Vec<(OpenVersion, StoredReplica)>,
) -> Result<()> {
    let (mut wanted, mut going) = (Vec::new(), Vec::new());
    for (mut version, stored) in copies {
        let own = own(&version.path, &stored, store.id);
        let is_readable = stored.replica.state.is_readable();
        if !is_readable || has_good_copy_here(attempt, &version, store.id).await? {
            if is_readable {
                attempt.progress.list_found(&version.path, version.version, version.size.0, version.root);
            }
            // The home keeps it if it is the last good one.
            going.push(own);
            continue;
        }
        if version.root.is_none() {
            // A copy is only made of what has a hash to be compared with.
            match attempt.app.reader.check(&version, &stored.replica).await {
                Ok(tree) => version.root = Some(tree.root()),
                Err(error) => {
                    attempt.failed(&version.path, "failed", &error);
                    continue;
                }
            }
        }
        let to = attempt.app.stores.in_place_of(&space.name, store.id).await.on_path(&version.path)?;
        wanted.push((own, Wanted { version, store: to, object: None }));
    }
    let (owns, wanted): (Vec<Own>, Vec<Wanted>) = wanted.into_iter().unzip();
    let moved: Mutex<HashMap<VersionId, Result<Brought>>> = Mutex::default();
    let goal = Become::Copies(Box::new(space.clone()));
    let fetch = attempt.fetch(goal, None);
    let done = |version: &OpenVersion, outcome: Result<Brought>| {
        if let Ok(Brought { copied: Copied::At(_), copy }) = &outcome {
            attempt.progress.list(copy.clone());
        }
        moved.lock().unwrap_or_else(PoisonError::into_inner).insert(version.version, outcome);
    };
    fetch.all(wanted, &done).await;
    let mut moved = moved.into_inner().unwrap_or_else(PoisonError::into_inner);
    for own in owns {
        match moved.remove(&own.copy.version) {
            Some(Err(error)) => attempt.not_brought(&own.path, &error),
            _ => going.push(own),
        }
    }
    let_go(attempt, space, &going).await.map(drop)
}

fn own(path: &ObjectPath, stored: &StoredReplica, store: StoreId) -> Own {
    let copy = CopyId { space: stored.space, version: stored.replica.version, store };
    Own { path: path.clone(), bytes: stored.size.0, copy }
}

async fn has_good_copy_here(attempt: &Attempt, version: &OpenVersion, besides: StoreId) -> Result<bool> {
    for replica in version.replicas.iter().filter(|replica| replica.store != besides) {
        if replica.state != ReplicaState::Good {
            continue;
        }
        if attempt.app.stores.is_own(replica.store).await? {
            return Ok(true);
        }
    }
    Ok(false)
}
