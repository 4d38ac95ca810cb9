//! Removing objects and collections.

use std::collections::HashSet;
use std::sync::Arc;

use percale_core::ObjectPath;
use percale_core::access::{Caller, Permission};
use percale_core::ids::EntryId;

use crate::access::through_object;
use crate::batch::{Batch, Mark, PathLock, Wants, Written, raced};
use crate::catalog::Catalog;
use crate::engine::{Change, Tx};
use crate::error::{Error, ErrorKind, Result, missing};
use crate::model::{MAX_REMOVE, RemoveOptions, Removed};
use crate::namespace::require_empty;
use crate::record::{Items, RemovedItem, kind};
use crate::rows::Lock;
use crate::rows::entry::{self, EntryRow};
use crate::rows::publish::actor;

/// Removing.
impl Catalog {
    /// Removes an object or collection. The bytes of its versions become garbage.
    ///
    /// # Errors
    /// - `NotEmpty` for a collection with entries, unless [`RemoveOptions::recursive`].
    /// - `Unsupported` if it is recursive and there are more than [`MAX_REMOVE`]: [`Catalog::remove_some`] does it in
    ///   steps.
    /// - `PreconditionFailed` if another version is current.
    pub async fn remove(
        &self,
        caller: &Caller,
        path: &ObjectPath,
        options: RemoveOptions,
    ) -> Result<Removed> {
        self.change(Remove { caller: caller.clone(), path: path.clone(), options }).await
    }

    /// Removes at most `max` entries of a tree, the leaves first; to be repeated until [`Removed::is_done`]. The tree
    /// stays connected in between.
    ///
    /// # Errors
    /// `NotFound` once nothing is there.
    pub async fn remove_some(&self, caller: &Caller, path: &ObjectPath, max: usize) -> Result<Removed> {
        let max = max.clamp(1, MAX_REMOVE);
        self.change(RemoveSome { caller: caller.clone(), path: path.clone(), max }).await
    }
}

pub(crate) struct Draft {
    entries: u64,
    is_done: bool,
    mark: Mark,
}

fn finish(draft: Draft, written: &Written) -> Removed {
    let Draft { entries, is_done, mark } = draft;
    Removed { entries, is_done, position: written.position(mark) }
}

struct Remove {
    caller: Caller,
    path: ObjectPath,
    options: RemoveOptions,
}

/// Returns what is to be removed at a path, locked.
async fn target<T: Tx>(
    batch: &mut Batch<'_, T>,
    caller: &Caller,
    path: &ObjectPath,
) -> Result<Arc<EntryRow>> {
    let walk = batch.enter(caller, Permission::Write, path, PathLock::CHANGE).await?;
    match walk.target() {
        Some(target) if target.parent != 0 => Ok(target.clone()),
        Some(_) => {
            Err(Error::invalid(format!("cannot remove {path}: the root of a space goes with the space")))
        }
        None if !walk.last()?.is_collection() => Err(through_object(path)),
        None => Err(Error::new(ErrorKind::NotFound, missing(path))),
    }
}

impl Change for Remove {
    type Draft = Draft;
    type Out = Removed;

    fn want(&self, wants: &mut Wants) {
        wants.path(&self.path, PathLock::CHANGE, &self.caller);
    }

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Draft> {
        let Self { caller, path, options } = self;
        let target = target(batch, caller, path).await?;
        if let Some(wanted) = options.if_version
            && target.version() != Some(wanted)
        {
            let kind = ErrorKind::PreconditionFailed { version: target.version() };
            return Err(Error::new(kind, format!("{path} does not have version {wanted}")));
        }
        let doomed = if !target.is_collection() {
            vec![target]
        } else if options.recursive {
            whole_tree(batch, path, &target).await?
        } else {
            require_empty(batch, path, &target).await?;
            vec![target]
        };
        remove_all(batch, caller, doomed, true).await
    }

    fn finish(self, draft: Draft, written: &Written) -> Removed {
        finish(draft, written)
    }
}

/// Returns a collection, which is locked, with everything below it, all locked.
async fn whole_tree<T: Tx>(
    batch: &mut Batch<'_, T>,
    path: &ObjectPath,
    top: &Arc<EntryRow>,
) -> Result<Vec<Arc<EntryRow>>> {
    batch.flush().await?;
    let mut known: HashSet<u64> = HashSet::new();
    loop {
        let ids = entry::subtree(batch.tx, top.sp, top.id, MAX_REMOVE + 1).await?;
        if ids.len() > MAX_REMOVE {
            let message = format!("cannot remove {path} in one step: it has more than {MAX_REMOVE} entries");
            return Err(Error::unsupported(message));
        }
        // Another server may have added something to a collection before that was locked. Once all are locked and
        // nothing new is found, nothing can be added any more.
        if ids.iter().all(|id| known.contains(id)) {
            break;
        }
        let keys: Vec<(i64, u64)> = ids.iter().map(|id| (top.sp, *id)).collect();
        batch.load_entries(&keys, Lock::Update).await?;
        known = ids.into_iter().collect();
    }
    let mut doomed = Vec::with_capacity(known.len());
    for id in known {
        doomed.extend(batch.entry(top.sp, id, Lock::Update).await?);
    }
    Ok(doomed)
}

/// Removes entries that are locked.
async fn remove_all<T: Tx>(
    batch: &mut Batch<'_, T>,
    caller: &Caller,
    mut doomed: Vec<Arc<EntryRow>>,
    is_done: bool,
) -> Result<Draft> {
    doomed.sort_by_key(|entry| entry.id);
    let Some(sp) = doomed.first().map(|entry| entry.sp) else {
        return Err(Error::internal("nothing was found to remove"));
    };
    let versions = batch.remove(&doomed).await?;
    let items = doomed.iter().zip(versions);
    let items = items.map(|(entry, versions)| RemovedItem { id: EntryId(entry.id), versions }).collect();
    let mark = batch.record(sp, &actor(caller), kind::ENTRIES_REMOVED, &Items { items })?;
    Ok(Draft { entries: doomed.len() as u64, is_done, mark })
}

struct RemoveSome {
    caller: Caller,
    path: ObjectPath,
    max: usize,
}

impl Change for RemoveSome {
    type Draft = Draft;
    type Out = Removed;
    // A long one: others should not wait for its locks any longer than they must.
    const ALONE: bool = true;

    fn want(&self, wants: &mut Wants) {
        wants.path(&self.path, PathLock::CHANGE, &self.caller);
    }

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Draft> {
        let Self { caller, path, max } = self;
        let top = target(batch, caller, path).await?;
        let mut doomed: Vec<Arc<EntryRow>> = Vec::new();
        // Collections that were entered, the deepest last, each with the name to go on behind.
        let mut open: Vec<(Arc<EntryRow>, String)> = Vec::new();
        if top.is_collection() {
            open.push((top, String::new()));
        } else {
            doomed.push(top);
        }
        while let Some((collection, after)) = open.pop() {
            // Besides what is doomed, the open collections themselves are to go.
            let room = max.saturating_sub(doomed.len() + open.len()).max(usize::from(doomed.is_empty()));
            if room == 0 {
                open.push((collection, after));
                break;
            }
            let key = (collection.sp, collection.id);
            let children = entry::children(batch.tx, key, &after, room, Lock::Update).await?;
            let is_last = children.len() < room;
            // A name that changed while its row was waited for is out of order, and others could be passed over.
            let mut names =
                std::iter::once(after.as_str()).chain(children.iter().map(|child| child.name.as_str()));
            if !names.clone().skip(1).zip(&mut names).all(|(next, before)| before < next) {
                return Err(raced("an entry was renamed while its collection was being removed"));
            }
            let mut inner = None;
            for child in children {
                let child = batch.learn_locked(child)?;
                if child.is_collection() {
                    inner = Some(child);
                    break;
                }
                doomed.push(child);
            }
            match inner {
                Some(inner) => {
                    open.push((collection, inner.name.clone()));
                    open.push((inner, String::new()));
                }
                None if is_last && doomed.len() < *max => doomed.push(collection),
                None => {
                    open.push((collection, after));
                    break;
                }
            }
        }
        remove_all(batch, caller, doomed, open.is_empty()).await
    }

    fn finish(self, draft: Draft, written: &Written) -> Removed {
        finish(draft, written)
    }
}
