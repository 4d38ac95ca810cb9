//! Removing objects and collections.

use std::collections::HashSet;
use std::sync::Arc;

use percale_core::ObjectPath;
use percale_core::access::{Caller, Permission};
use percale_core::ids::EntryId;

use crate::batch::{Batch, Mark, PathLock, Wants, Written, raced};
use crate::catalog::Catalog;
use crate::engine::{Change, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{MAX_REMOVE, RemoveOptions, Removed};
use crate::namespace::require_empty;
use crate::record::{FormerPlace, Items, RemovedItem, kind};
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
    /// - `PreconditionFailed` if another version is current; `NotFound` if another entry is there.
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
    let target = walk.existing(path)?;
    if target.parent == 0 {
        let message = format!("cannot remove {path}: the root of a space goes with the space");
        return Err(Error::invalid(message));
    }
    Ok(target)
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
        if options.entry.is_some_and(|wanted| wanted.0 != target.id) {
            let message = format!("cannot remove {path}: another entry is there by now");
            return Err(Error::new(ErrorKind::NotFound, message));
        }
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
    let gone: HashSet<u64> = doomed.iter().map(|entry| entry.id).collect();
    let items = doomed.iter().zip(versions).map(|(entry, versions)| RemovedItem {
        id: EntryId(entry.id),
        versions,
        from: (!gone.contains(&entry.parent))
            .then(|| FormerPlace { parent: EntryId(entry.parent), name: entry.name.clone() }),
    });
    let items = items.collect();
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
        // Collections that were entered, the deepest last.
        let mut open: Vec<Opened> = Vec::new();
        if top.is_collection() {
            open.push(Opened::new(top));
        } else {
            doomed.push(top);
        }
        while doomed.len() < *max
            && let Some(mut deepest) = open.pop()
        {
            match deepest.next(batch, max - doomed.len()).await? {
                Some(child) if child.is_collection() => open.extend([deepest, Opened::new(child)]),
                Some(child) => {
                    doomed.push(child);
                    open.push(deepest);
                }
                None => doomed.push(deepest.collection),
            }
        }
        remove_all(batch, caller, doomed, open.is_empty()).await
    }

    fn finish(self, draft: Draft, written: &Written) -> Removed {
        finish(draft, written)
    }
}

/// A collection whose children are removed before it.
struct Opened {
    collection: Arc<EntryRow>,
    /// Children that are locked, the next first.
    children: std::vec::IntoIter<EntryRow>,
    /// The name of the last of them; there are more behind it.
    after: Option<String>,
}

impl Opened {
    fn new(collection: Arc<EntryRow>) -> Self {
        Self { collection, children: Vec::new().into_iter(), after: Some(String::new()) }
    }

    /// Returns the next child, locked; `some` of them are read at a time.
    async fn next<T: Tx>(&mut self, batch: &mut Batch<'_, T>, some: usize) -> Result<Option<Arc<EntryRow>>> {
        if self.children.as_slice().is_empty()
            && let Some(after) = self.after.take()
        {
            let key = (self.collection.sp, self.collection.id);
            let found = entry::children(batch.tx, key, &after, some, Lock::Update).await?;
            // A name that changed while its row was waited for is out of order, and others could be passed over.
            let names = std::iter::once(&after).chain(found.iter().map(|child| &child.name));
            if !names.is_sorted_by(|before, next| before < next) {
                return Err(raced("an entry was renamed while its collection was being removed"));
            }
            self.after = found.last().filter(|_| found.len() == some).map(|last| last.name.clone());
            self.children = found.into_iter();
        }
        self.children.next().map(|child| batch.learn_locked(child)).transpose()
    }
}
