//! Changing the namespace: collections, renames, removals.

use std::sync::Arc;

use percale_core::access::{Caller, Permission};
use percale_core::ids::{EntryId, VersionId};
use percale_core::{LinkTarget, ObjectPath};

use crate::access::{is_link, through};
use crate::batch::{Batch, Mark, PathLock, Walk, Wants, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Tx};
use crate::error::{Error, ErrorKind, Result, missing};
use crate::model::{Changed, Content, Entry, FileAttributes, RenameOptions};
use crate::record::{ChangedItem, CreatedItem, FormerPlace, Items, LinkItem, MovedItem, kind};
use crate::rows::Lock;
use crate::rows::entry::{self, EntryRow};
use crate::rows::publish::actor;

/// Changing the namespace.
impl Catalog {
    /// Makes a collection. With `parents` also those above it that are missing, and it may be there already.
    ///
    /// # Errors
    /// `AlreadyExists`, `NotFound` if the collection above is missing, `NotACollection` if it is an object.
    pub async fn create_collection(
        &self,
        caller: &Caller,
        path: &ObjectPath,
        parents: bool,
    ) -> Result<Changed> {
        self.change(Create { caller: caller.clone(), path: path.clone(), parents }).await
    }

    /// Makes a symbolic link. One that is there already and leads to the same place is no error. Nothing need be there.
    ///
    /// # Errors
    /// `AlreadyExists`, `NotFound` if the collection above is missing, `NotACollection` if it is an object.
    pub async fn create_link(
        &self,
        caller: &Caller,
        path: &ObjectPath,
        target: LinkTarget,
    ) -> Result<Changed> {
        self.change(CreateLink { caller: caller.clone(), path: path.clone(), target }).await
    }

    /// Renames within a space, atomically. Renaming something onto itself changes nothing.
    ///
    /// # Errors
    /// - `Unsupported` between spaces, `InvalidRequest` below itself or for the root of a space.
    /// - `AlreadyExists` unless [`RenameOptions::overwrite`]; then `NotEmpty`, `IsCollection`, `NotACollection`.
    pub async fn rename(
        &self,
        caller: &Caller,
        from: &ObjectPath,
        to: &ObjectPath,
        options: RenameOptions,
    ) -> Result<Changed> {
        if from.space() != to.space() && !from.is_root() && !to.is_root() {
            let message = format!("cannot rename {from} to {to}: they are in different spaces");
            return Err(Error::unsupported(message));
        }
        self.change(Rename { caller: caller.clone(), from: from.clone(), to: to.clone(), options }).await
    }

    /// Sets what its owner says of an object, whose version stays.
    ///
    /// # Errors
    /// `IsCollection`: of collections nothing is kept.
    pub async fn set_attributes(
        &self,
        caller: &Caller,
        path: &ObjectPath,
        attributes: FileAttributes,
    ) -> Result<Changed> {
        self.change(SetAttributes { caller: caller.clone(), path: path.clone(), attributes }).await
    }
}

struct CreateLink {
    caller: Caller,
    path: ObjectPath,
    target: LinkTarget,
}

impl Change for CreateLink {
    type Draft = Draft;
    type Out = Changed;

    fn want(&self, wants: &mut Wants) {
        wants.path(&self.path, PathLock::ADD, &self.caller);
    }

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Draft> {
        let Self { caller, path, target } = self;
        let walk = batch.enter(caller, Permission::Write, path, PathLock::ADD).await?;
        let (sp, space) = (walk.space.sp, walk.space.space.id);
        if let Some(there) = walk.target() {
            if there.target.as_ref() != Some(target) {
                return Err(exists(path, there.version()));
            }
            return Ok(Draft { entry: there.to_entry(space), is_changed: false, mark: batch.no_record(sp) });
        }
        let (_, parent) = missing_collections(batch, path, &walk, 1).await?;
        let (id, now) = (batch.next_id(sp).await?, batch.now());
        let name = path.name().unwrap_or_default();
        let entry = batch.add(EntryRow::link(sp, id, parent.id, name, target.clone(), now));
        let item = LinkItem {
            id: EntryId(id),
            parent: EntryId(parent.id),
            name: name.to_owned(),
            target: target.clone(),
            at: now,
        };
        let mark = batch.record(sp, &actor(caller), kind::LINKS_CREATED, &Items { items: vec![item] })?;
        Ok(Draft { entry: entry.to_entry(space), is_changed: true, mark })
    }

    fn finish(self, draft: Draft, written: &Written) -> Changed {
        finish(draft, written)
    }
}

/// An entry as it is after a change whose record has no number yet.
pub(crate) struct Draft {
    entry: Entry,
    is_changed: bool,
    mark: Mark,
}

fn finish(draft: Draft, written: &Written) -> Changed {
    let Draft { entry, is_changed, mark } = draft;
    Changed { entry, is_changed, position: written.position(mark) }
}

struct Create {
    caller: Caller,
    path: ObjectPath,
    parents: bool,
}

impl Change for Create {
    type Draft = Draft;
    type Out = Changed;

    fn want(&self, wants: &mut Wants) {
        wants.path(&self.path, PathLock::ADD, &self.caller);
    }

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Draft> {
        let Self { caller, path, parents } = self;
        let walk = batch.enter(caller, Permission::Write, path, PathLock::ADD).await?;
        let sp = walk.space.sp;
        if let Some(target) = walk.target() {
            if !target.is_collection() || !parents {
                return Err(exists(path, target.version()));
            }
            let entry = target.to_entry(walk.space.space.id);
            return Ok(Draft { entry, is_changed: false, mark: batch.no_record(sp) });
        }
        let keep = if *parents { 0 } else { 1 };
        let (collections, last) = missing_collections(batch, path, &walk, keep).await?;
        let name = walk.missing.last().filter(|_| keep == 1);
        let mut items = collections;
        let mut entry = last;
        if let Some(name) = name {
            let now = batch.now();
            let id = batch.next_id(sp).await?;
            entry = batch.add(EntryRow::collection(sp, id, entry.id, name, now));
            items.push(created(&entry));
        }
        let mark = batch.record(sp, &actor(caller), kind::ENTRIES_CREATED, &Items { items })?;
        Ok(Draft { entry: entry.to_entry(walk.space.space.id), is_changed: true, mark })
    }

    fn finish(self, draft: Draft, written: &Written) -> Changed {
        finish(draft, written)
    }
}

fn created(entry: &EntryRow) -> CreatedItem {
    CreatedItem {
        id: EntryId(entry.id),
        parent: EntryId(entry.parent),
        name: entry.name.clone(),
        at: entry.created,
    }
}

/// Makes the collections that a walk misses, but for the last `keep` names, and returns them with the last collection
/// that is then there. Without anything to make, checks that the collection for the last name exists.
///
/// The caller has decided everything else. The last entry that exists is locked here if something is put into it.
pub(crate) async fn make_parents<T: Tx>(
    batch: &mut Batch<'_, T>,
    path: &ObjectPath,
    walk: &Walk,
    keep: usize,
) -> Result<(Vec<CreatedItem>, Arc<EntryRow>)> {
    let last = walk.last()?;
    if !last.is_collection() {
        return Err(through(path, last, walk.missing.len()));
    }
    let make = walk.missing.len().saturating_sub(keep);
    if make == 0 {
        return Ok((Vec::new(), last.clone()));
    }
    let mut parent = match batch.entry(last.sp, last.id, Lock::Share).await? {
        Some(last) => last,
        None => return Err(Error::new(ErrorKind::NotFound, missing(path))),
    };
    let mut items = Vec::with_capacity(make);
    for name in walk.missing.iter().take(make) {
        let id = batch.next_id(parent.sp).await?;
        parent = batch.add(EntryRow::collection(parent.sp, id, parent.id, name, batch.now()));
        items.push(created(&parent));
    }
    Ok((items, parent))
}

/// As [`make_parents`] for `keep` 0; for `keep` 1 nothing is made, and what is missing must be only the last name.
async fn missing_collections<T: Tx>(
    batch: &mut Batch<'_, T>,
    path: &ObjectPath,
    walk: &Walk,
    keep: usize,
) -> Result<(Vec<CreatedItem>, Arc<EntryRow>)> {
    if keep == 1 {
        require_parent(path, walk)?;
    }
    make_parents(batch, path, walk, keep).await
}

/// Checks that only the last name of a path is missing.
pub(crate) fn require_parent(path: &ObjectPath, walk: &Walk) -> Result<()> {
    let last = walk.last()?;
    if !last.is_collection() {
        return Err(through(path, last, walk.missing.len()));
    }
    if walk.missing.len() > 1 {
        let parent = path.parent().unwrap_or_else(ObjectPath::root);
        return Err(Error::new(ErrorKind::NotFound, format!("the collection {parent} does not exist")));
    }
    Ok(())
}

/// The error for a name that is taken.
pub(crate) fn exists(path: &ObjectPath, version: Option<VersionId>) -> Error {
    Error::new(ErrorKind::AlreadyExists { version }, format!("{path} is there already"))
}

struct Rename {
    caller: Caller,
    from: ObjectPath,
    to: ObjectPath,
    options: RenameOptions,
}

impl Change for Rename {
    type Draft = Draft;
    type Out = Changed;

    fn want(&self, wants: &mut Wants) {
        wants.path(&self.from, PathLock::CHANGE, &self.caller);
        wants.path(&self.to, PathLock::CHANGE, &self.caller);
    }

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Draft> {
        let Self { caller, from, to, options } = self;
        let source = batch.enter(caller, Permission::Write, from, PathLock::CHANGE).await?;
        let target = batch.enter(caller, Permission::Write, to, PathLock::CHANGE).await?;
        let (sp, space) = (source.space.sp, source.space.space.id);
        let is_wanted = |id: u64| options.entry.is_none_or(|wanted| wanted.0 == id);
        if source.target().is_none_or(|there| !is_wanted(there.id))
            && let (Some(wanted), Some(there)) = (options.entry, target.target())
            && there.id == wanted.0
        {
            // Done before; only the answer was lost.
            return Ok(Draft { entry: there.to_entry(space), is_changed: false, mark: batch.no_record(sp) });
        }
        let entry = source.existing(from)?;
        if !is_wanted(entry.id) {
            let message = format!("cannot rename {from}: another entry is there by now");
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        if entry.parent == 0 || to.is_space() {
            return Err(Error::invalid(format!("cannot rename {from} to {to}: the root of a space stays")));
        }
        if target.target().is_some_and(|there| there.id == entry.id) {
            let mark = batch.no_record(sp);
            return Ok(Draft { entry: entry.to_entry(space), is_changed: false, mark });
        }
        if target.chain.iter().any(|above| above.id == entry.id) {
            return Err(Error::invalid(format!("cannot move {from} below itself, to {to}")));
        }
        let replaced = target.target().cloned();
        let parent = match &replaced {
            None => {
                require_parent(to, &target)?;
                target.last()?.id
            }
            Some(there) => {
                may_replace(batch, to, &entry, there, *options).await?;
                there.parent
            }
        };
        let name = to.name().unwrap_or_default().to_owned();
        if let Some(there) = &replaced {
            batch.remove(std::slice::from_ref(there)).await?;
        }
        let moved = EntryRow { parent, name: name.clone(), ..(*entry).clone() };
        let moved = batch.change(moved);
        // Written at once: bulk updates have no order, and two renames in one could meet in a name.
        batch.flush().await?;
        let item = MovedItem {
            id: EntryId(entry.id),
            parent: EntryId(parent),
            name,
            replaced: replaced.map(|there| EntryId(there.id)),
            from: Some(FormerPlace { parent: EntryId(entry.parent), name: entry.name.clone() }),
        };
        let mark = batch.record(sp, &actor(caller), kind::ENTRIES_MOVED, &Items { items: vec![item] })?;
        Ok(Draft { entry: moved.to_entry(space), is_changed: true, mark })
    }

    fn finish(self, draft: Draft, written: &Written) -> Changed {
        finish(draft, written)
    }
}

struct SetAttributes {
    caller: Caller,
    path: ObjectPath,
    attributes: FileAttributes,
}

impl Change for SetAttributes {
    type Draft = Draft;
    type Out = Changed;

    fn want(&self, wants: &mut Wants) {
        wants.path(&self.path, PathLock::CHANGE, &self.caller);
    }

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Draft> {
        let Self { caller, path, attributes: FileAttributes { mtime, mode } } = self;
        let walk = batch.enter(caller, Permission::Write, path, PathLock::CHANGE).await?;
        let (sp, space) = (walk.space.sp, walk.space.space.id);
        let entry = walk.existing(path)?;
        let Some(old) = &entry.content else {
            if let Some(target) = &entry.target {
                return Err(is_link(path, target, 0));
            }
            let message = format!("{path} is a collection, of which no times and permission bits are kept");
            return Err(Error::new(ErrorKind::IsCollection, message));
        };
        let content = Content { mtime: mtime.or(old.mtime), mode: mode.or(old.mode), ..old.clone() };
        if content == *old {
            return Ok(Draft { entry: entry.to_entry(space), is_changed: false, mark: batch.no_record(sp) });
        }
        let item = ChangedItem { id: EntryId(entry.id), mtime: *mtime, mode: *mode };
        let changed = batch.change(EntryRow { content: Some(content), ..(*entry).clone() });
        let mark = batch.record(sp, &actor(caller), kind::OBJECTS_CHANGED, &Items { items: vec![item] })?;
        Ok(Draft { entry: changed.to_entry(space), is_changed: true, mark })
    }

    fn finish(self, draft: Draft, written: &Written) -> Changed {
        finish(draft, written)
    }
}

/// Checks that one entry may take the place of another.
async fn may_replace<T: Tx>(
    batch: &mut Batch<'_, T>,
    to: &ObjectPath,
    entry: &EntryRow,
    there: &EntryRow,
    options: RenameOptions,
) -> Result<()> {
    if !options.overwrite {
        return Err(exists(to, there.version()));
    }
    match (entry.is_collection(), there.is_collection()) {
        (false, false) => Ok(()),
        (false, true) => {
            Err(Error::new(ErrorKind::IsCollection, format!("cannot put an object in place of {to}")))
        }
        (true, false) => {
            Err(Error::new(ErrorKind::NotACollection, format!("cannot put a collection in place of {to}")))
        }
        (true, true) => require_empty(batch, to, there).await,
    }
}

/// Checks that a collection, which is locked, is empty.
pub(crate) async fn require_empty<T: Tx>(
    batch: &mut Batch<'_, T>,
    path: &ObjectPath,
    collection: &EntryRow,
) -> Result<()> {
    // What the changes before this one did must be seen.
    batch.flush().await?;
    if entry::has_children(batch.tx, collection.sp, collection.id).await? {
        return Err(Error::new(ErrorKind::NotEmpty, format!("{path} is not empty")));
    }
    Ok(())
}
