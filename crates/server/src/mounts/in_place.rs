//! Files of native stores that a mount writes where they lie.
//!
//! While it does, the copy is `writing`, and nobody reads it through the site. Afterwards the file is registered again: if it has
//! changed, it is a new version (`docs/decisions/2026-11-22-native-files-are-written-in-place.md`).

use std::collections::BTreeMap;
use std::sync::Arc;

use percale_api::mounts::{MountChange, MountDone};
use percale_catalog::{
    Catalog, NativeFile, NativeFolder, OpenVersion, Register, Replica, ReplicaReport, StoreLayout,
    StoredReplica,
};
use percale_core::access::{Caller, Permission};
use percale_core::ids::{SiteId, SpaceId, StoreId};
use percale_core::state::ReplicaState;
use percale_core::tree::GROUP_SIZE;
use percale_core::{ErrorCode, ObjectPath};

use super::done;
use crate::app::system_caller;
use crate::publish::key;
use crate::stores::OpenStore;
use crate::tasks::import::{found, hash_one, reason, register_at, settle};
use crate::{ApiError, AppState, Result};

/// A copy on a native store of this site, and the version that it is of.
struct Copy {
    version: OpenVersion,
    replica: Replica,
    store: Arc<OpenStore>,
}

/// What is registered together: files that lie in one directory of a store, and in one collection.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Folder {
    home: Option<SiteId>,
    store: StoreId,
    path: ObjectPath,
    key: Option<String>,
}

/// Has files that mounts wrote in place, and do not write any more, read again. Whoever reads them notices if they have changed.
///
/// # Errors
/// Those of the catalog.
pub async fn end_writing(catalog: &Catalog) -> Result<()> {
    for store in catalog.stores().await? {
        if store.layout != StoreLayout::Native {
            continue;
        }
        let written = catalog.written_in_place(store.id).await?;
        let report = |copy: &StoredReplica| state_of(copy.space, &copy.replica, ReplicaState::Unverified);
        let reports = written.iter().map(report).collect();
        for outcome in catalog.report_replicas(&system_caller(), reports).await {
            outcome?;
        }
    }
    Ok(())
}

/// Says which state a copy has.
fn state_of(space: SpaceId, replica: &Replica, state: ReplicaState) -> ReplicaReport {
    ReplicaReport {
        space,
        version: replica.version,
        store: replica.store,
        key: Some(replica.key.clone()),
        state,
        generation: None,
        root: None,
        is_checked: false,
    }
}

/// Notes that files are written.
pub(super) async fn begin(
    app: &AppState,
    caller: &Caller,
    changes: Vec<MountChange>,
) -> Vec<Result<MountDone>> {
    let mut outcomes = Vec::with_capacity(changes.len());
    for (path, copy) in copies(app, caller, &changes).await {
        let marked = match copy {
            Ok(copy) => mark(app, &copy, ReplicaState::Writing).await.map(|()| MountDone::default()),
            Err(error) => Err(error),
        };
        outcomes.push(marked.map_err(|error| error.with_path(path)));
    }
    outcomes
}

/// Registers what files have become that are not written any more.
pub(super) async fn end(
    app: &AppState,
    caller: &Caller,
    changes: Vec<MountChange>,
) -> Vec<Result<MountDone>> {
    let mut outcomes: Vec<Result<MountDone>> = Vec::with_capacity(changes.len());
    let mut folders: BTreeMap<Folder, Vec<(NativeFile, usize)>> = BTreeMap::new();
    for (path, copy) in copies(app, caller, &changes).await {
        let looked = match copy {
            Ok(copy) => look(app, &copy).await.map(|file| (file, copy)),
            Err(error) => Err(error),
        };
        outcomes.push(match looked {
            Ok((Some((folder, file)), _)) => {
                folders.entry(folder).or_default().push((file, outcomes.len()));
                Ok(MountDone::default())
            }
            // It is what it was.
            Ok((None, Copy { version, .. })) => Ok(described(&version)),
            Err(error) => {
                if !error.is_retryable() {
                    unmark(app, changes.get(outcomes.len())).await;
                }
                Err(error.with_path(path))
            }
        });
    }
    let mut changed: Vec<usize> = Vec::new();
    for (folder, mut files) in folders {
        files.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
        let (files, places): (Vec<_>, Vec<usize>) = files.into_iter().unzip();
        let failed = register(app, caller, folder, files).await;
        for (at, place) in places.into_iter().enumerate() {
            let is_it = |file: Option<usize>| file.is_none_or(|file| file == at);
            let error = match &failed {
                Ok(failed) => failed.iter().find(|(file, _)| is_it(*file)).map(|(_, error)| error),
                Err(error) => Some(error),
            };
            match (error, outcomes.get_mut(place), changes.get(place)) {
                (Some(error), Some(outcome), Some(change)) => {
                    *outcome = Err(error.clone().with_path(change.path()));
                }
                _ => changed.push(place),
            }
        }
    }
    let paths: Vec<ObjectPath> =
        changed.iter().filter_map(|at| changes.get(*at)).map(|change| change.path().clone()).collect();
    let versions = app.catalog.open_many(caller, &paths).await;
    let mut unverified = Vec::new();
    for (at, version) in changed.into_iter().zip(versions) {
        let Some(outcome) = outcomes.get_mut(at) else { continue };
        *outcome = match version {
            Ok(version) => {
                let done = described(&version);
                unverified.push(version);
                Ok(done)
            }
            // Removed meanwhile.
            Err(error) => Err(error.into()),
        };
    }
    hash_in_background(app, unverified);
    outcomes
}

/// Finds the copies that changes are about, each of which its caller may change.
async fn copies(app: &AppState, caller: &Caller, changes: &[MountChange]) -> Vec<(ObjectPath, Result<Copy>)> {
    let paths: Vec<ObjectPath> = changes.iter().map(|change| change.path().clone()).collect();
    let versions = app.catalog.open_many(caller, &paths).await;
    let mut found = Vec::with_capacity(paths.len());
    for ((path, change), version) in paths.into_iter().zip(changes).zip(versions) {
        let copy = match version {
            Ok(version) => copy_of(app, caller, change, version).await,
            Err(error) => Err(error.into()),
        };
        found.push((path, copy));
    }
    found
}

async fn copy_of(
    app: &AppState,
    caller: &Caller,
    change: &MountChange,
    version: OpenVersion,
) -> Result<Copy> {
    let (MountChange::Writing { path, store } | MountChange::Written { path, store }) = change else {
        return Err(ApiError::internal("only files are written in place"));
    };
    if app.catalog.permission(caller, path).await?.is_none_or(|permission| permission < Permission::Write) {
        return Err(ApiError::new(ErrorCode::Forbidden, "you may read it, and not change it"));
    }
    let store = app.stores.get(*store).await?;
    if store.is_managed() {
        let detail = format!("files of the managed store {} are not written in place", store.row.name);
        return Err(ApiError::new(ErrorCode::Unsupported, detail));
    }
    let replica = version.replicas.iter().find(|replica| replica.store == store.row.id).cloned();
    let none = || {
        let detail = format!("its current version has no copy on store {}", store.row.name);
        // For good: a file that was replaced elsewhere meanwhile is not published.
        ApiError::new(ErrorCode::PreconditionFailed, detail)
    };
    let replica = replica.ok_or_else(none)?;
    Ok(Copy { version, replica, store })
}

/// Notes the state of a copy.
async fn mark(app: &AppState, copy: &Copy, state: ReplicaState) -> Result<()> {
    if copy.replica.state == state {
        return Ok(());
    }
    let report = state_of(copy.version.space, &copy.replica, state);
    for outcome in app.catalog.report_replicas(&system_caller(), vec![report]).await {
        outcome?;
    }
    Ok(())
}

/// Notes that a file is not written any more, also where whoever wrote it may not say what it has become: nobody could read it else.
async fn unmark(app: &AppState, change: Option<&MountChange>) {
    let Some(MountChange::Written { path, store }) = change else { return };
    let versions = app.catalog.open_many(&system_caller(), std::slice::from_ref(path)).await;
    let reports = versions.into_iter().flatten().flat_map(|version| {
        let is_marked =
            |replica: &&Replica| replica.store == *store && replica.state == ReplicaState::Writing;
        let marked = version.replicas.iter().filter(is_marked);
        let unmarked = marked.map(|copy| state_of(version.space, copy, ReplicaState::Unverified));
        unmarked.collect::<Vec<_>>()
    });
    let reports = reports.collect();
    for outcome in app.catalog.report_replicas(&system_caller(), reports).await {
        if let Err(error) = outcome {
            tracing::warn!(%path, %error, "a copy that was written in place cannot be read until its mount ends");
        }
    }
}

/// Looks at a file that is not written any more. Returns it if it has changed.
async fn look(app: &AppState, copy: &Copy) -> Result<Option<(Folder, NativeFile)>> {
    let Copy { version, replica, store } = copy;
    let at = key(&replica.key)?;
    let meta = store.store.stat(&at).await?;
    let is_same =
        meta.generation.as_ref().map(|generation| generation.as_str()) == replica.generation.as_deref();
    if is_same && replica.state != ReplicaState::Writing {
        return Ok(None);
    }
    let state = match version.root {
        Some(_) if is_same => ReplicaState::Good,
        _ => ReplicaState::Unverified,
    };
    mark(app, copy, state).await?;
    if is_same {
        return Ok(None);
    }
    let mut file = found(at.name(), &meta, None);
    if file.size.0 <= GROUP_SIZE {
        file = match hash_one(&store.store, &replica.key, file).await {
            // Somebody goes on writing it beside the mount; what else was written does not wait for that.
            Err(error) if error.code() == ErrorCode::VersionChanged => {
                found(at.name(), &store.store.stat(&at).await?, None)
            }
            hashed => hashed?,
        };
    }
    let name = version.path.space().ok_or_else(|| ApiError::internal("an object is in no space"))?;
    let home = app.catalog.space(&system_caller(), &name).await?.home;
    let path = version.path.parent().ok_or_else(|| ApiError::internal("an object is in no collection"))?;
    let key = at.parent().map(|parent| parent.to_string());
    Ok(Some((Folder { home, store: replica.store, path, key }, file)))
}

/// Registers files of a folder. Returns which could not be, and why; no number stands for all of them.
async fn register(
    app: &AppState,
    caller: &Caller,
    folder: Folder,
    files: Vec<NativeFile>,
) -> Result<Vec<(Option<usize>, ApiError)>> {
    let Folder { home, store, path, key } = folder;
    let name = path.space().ok_or_else(|| ApiError::internal("a collection is in no space"))?;
    // Wherever in the space the object is: it may have been renamed.
    let within = ObjectPath::of_space(&name);
    let folders = vec![NativeFolder { path, key, files }];
    let answer = register_at(app, home, Register { caller: caller.clone(), store, within, folders }).await?;
    if let Some(position) = answer.position {
        settle(app, position).await;
    }
    Ok(answer.failed.into_iter().map(|failed| (failed.file, reason(failed))).collect())
}

fn described(version: &OpenVersion) -> MountDone {
    MountDone {
        entry: Some(version.entry),
        version: Some(version.version),
        root: version.root,
        ..done(version.position)
    }
}

/// Hashes copies that were too large to be hashed before others saw them.
fn hash_in_background(app: &AppState, versions: Vec<OpenVersion>) {
    let app = app.clone();
    let mut unverified = Vec::new();
    for version in versions {
        let replicas = version.replicas.iter().filter(|replica| replica.state == ReplicaState::Unverified);
        unverified.extend(replicas.cloned().map(|replica| (version.clone(), replica)).collect::<Vec<_>>());
    }
    if unverified.is_empty() {
        return;
    }
    app.background.clone().spawn(async move {
        for (version, replica) in unverified {
            let checked = tokio::select! {
                checked = app.reader.check(&version, &replica) => checked,
                () = app.stopping.cancelled() => return,
            };
            if let Err(error) = checked {
                // Written again, or removed; else whoever reads it hashes it.
                tracing::debug!(path = %version.path, %error, "a file that was written in place is not hashed yet");
            }
        }
    });
}
