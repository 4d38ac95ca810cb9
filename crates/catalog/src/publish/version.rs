//! What makes a new version of an object, wherever its bytes lie: the place it goes to, and its rows and record.

use std::collections::HashMap;

use percale_core::ObjectPath;
use percale_core::access::{Caller, Permission};
use percale_core::ids::{EntryId, StoreId, VersionId};
use percale_core::state::ReplicaState;
use serde::Serialize;

use crate::access::{is_link, through};
use crate::batch::{Batch, Mark, PathLock, Walk, Written};
use crate::engine::Tx;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Committed, Condition, Content, EntryKind, Replica, SpaceState};
use crate::namespace::{exists, make_parents, require_parent};
use crate::record::{CreatedItem, Items, PublishedItem, ReplicaItem, kind};
use crate::rows::Lock;
use crate::rows::entry::EntryRow;
use crate::rows::publish::actor;
use crate::rows::replica::ReplicaRow;

/// Items for the journal, packed as far as their order within each space allows.
#[derive(Debug)]
pub(crate) struct Runs<I> {
    runs: Vec<(i64, String, Vec<I>)>,
    /// The last run of each space.
    last: HashMap<i64, usize>,
}

impl<I> Default for Runs<I> {
    fn default() -> Self {
        Self { runs: Vec::new(), last: HashMap::new() }
    }
}

impl<I: Serialize> Runs<I> {
    /// Adds an item and returns the number of the record that it will be in.
    pub fn push(&mut self, sp: i64, actor: &str, item: I) -> usize {
        let open = self.last.get(&sp).and_then(|at| Some((*at, self.runs.get_mut(*at)?)));
        if let Some((at, (_, of, items))) = open
            && of == actor
        {
            items.push(item);
            return at;
        }
        let at = self.runs.len();
        self.runs.push((sp, actor.to_owned(), vec![item]));
        self.last.insert(sp, at);
        at
    }

    /// Writes the records, and returns the mark of each.
    pub fn record<T: Tx>(self, batch: &mut Batch<'_, T>, kind: &'static str) -> Result<Vec<Mark>> {
        let write =
            |(sp, actor, items): (i64, String, Vec<I>)| batch.record(sp, &actor, kind, &Items { items });
        self.runs.into_iter().map(write).collect()
    }
}

/// Where a new version goes.
#[derive(Debug)]
pub(crate) struct Place {
    pub sp: i64,
    /// The collection.
    pub parent: EntryId,
    /// The object's name in it.
    pub name: String,
    /// The object: the one that is there, or the id that a new one gets.
    pub entry: EntryId,
    /// The id of the new version.
    pub version: VersionId,
}

/// Walks to a path, decides whether a version may be made there, and returns the one that it replaces. `what` is the
/// condition, and whether missing collections may be made.
pub(crate) async fn enter<T: Tx>(
    batch: &mut Batch<'_, T>,
    caller: &Caller,
    path: &ObjectPath,
    lock: PathLock,
    what: (Condition, bool),
) -> Result<(Walk, Option<VersionId>)> {
    let walk = batch.enter(caller, Permission::Write, path, lock).await?;
    if path.is_space() {
        return Err(Error::new(ErrorKind::IsCollection, format!("{path} is the root of a space")));
    }
    let base = check_condition(path, what.0, what.1, &walk)?;
    Ok((walk, base))
}

/// Checks what must be at the path and returns the version that is.
fn check_condition(
    path: &ObjectPath,
    condition: Condition,
    parents: bool,
    walk: &Walk,
) -> Result<Option<VersionId>> {
    let failed =
        |version, message: String| Err(Error::new(ErrorKind::PreconditionFailed { version }, message));
    let Some(target) = walk.target() else {
        let last = walk.last()?;
        if !last.is_collection() {
            return Err(through(path, last, walk.missing.len()));
        }
        return match condition {
            Condition::Match(version) => failed(None, format!("{path} does not have version {version}")),
            Condition::Existing => failed(None, format!("{path} does not exist")),
            Condition::New | Condition::Any if parents => Ok(None),
            Condition::New | Condition::Any => require_parent(path, walk).map(|()| None),
        };
    };
    if let Some(leads_to) = &target.target {
        return Err(is_link(path, leads_to, 0));
    }
    let version = target.version();
    match (target.kind, condition) {
        (EntryKind::Collection, _) => {
            Err(Error::new(ErrorKind::IsCollection, format!("cannot write {path}: it is a collection")))
        }
        (_, Condition::New) => Err(exists(path, version)),
        (_, Condition::Match(wanted)) if Some(wanted) != version => {
            failed(version, format!("{path} does not have version {wanted}"))
        }
        _ => Ok(version),
    }
}

/// Gives ids, and makes the collections above the object that are missing. Nothing may be refused after it.
pub(crate) async fn place<T: Tx>(
    batch: &mut Batch<'_, T>,
    caller: &Caller,
    path: &ObjectPath,
    walk: &Walk,
    made: &mut Runs<CreatedItem>,
) -> Result<Place> {
    let sp = walk.space.sp;
    let name = path.name().unwrap_or_default().to_owned();
    let (parent, entry) = match walk.target() {
        Some(object) => (object.parent, object.id),
        None => {
            let (items, parent) = make_parents(batch, path, walk, 1).await?;
            for item in items {
                made.push(sp, &actor(caller), item);
            }
            (parent.id, batch.next_id(sp).await?)
        }
    };
    let version = VersionId(batch.next_id(sp).await?);
    Ok(Place { sp, parent: EntryId(parent), name, entry: EntryId(entry), version })
}

/// The first copy of a version.
#[derive(Debug)]
pub(crate) struct FirstCopy<'a> {
    pub store: StoreId,
    pub st: i64,
    pub is_own: bool,
    pub key: String,
    /// The key that is taken for it already.
    pub reserved: Option<&'a str>,
    pub generation: Option<String>,
}

/// A publication that is decided.
pub(crate) struct Decided {
    sp: i64,
    actor: String,
    item: PublishedItem,
    path: ObjectPath,
}

/// A publication whose record has no number yet.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub sp: i64,
    path: ObjectPath,
    pub entry: EntryId,
    pub version: VersionId,
    pub created: bool,
    /// The record; a later one, if that belongs to it, too.
    pub mark: Mark,
}

impl Draft {
    pub fn to_committed(&self, written: &Written) -> Committed {
        let Draft { path, entry, version, created, mark, .. } = self;
        Committed {
            path: path.clone(),
            entry: *entry,
            version: *version,
            position: written.position(*mark),
            created: *created,
        }
    }
}

/// Makes a version current that replaces `base`, with its first copy.
///
/// # Errors
/// `Conflict` if another version than `base` is current or the key is taken, `NotFound`, `ReadOnly`, `QuotaExceeded`, `InvalidRequest`.
/// Then nothing was changed.
pub(crate) async fn add<T: Tx>(
    batch: &mut Batch<'_, T>,
    actor: &str,
    place: Place,
    base: Option<VersionId>,
    content: Content,
    copy: FirstCopy<'_>,
) -> Result<Decided> {
    let Place { sp, parent, name, entry, version } = place;
    let space = batch.space(sp).await?;
    space.require_home()?;
    if space.is_removed || space.space.state != SpaceState::Active {
        let message = format!("cannot publish '{name}': the space {} takes no writes", space.space.name);
        return Err(Error::new(ErrorKind::ReadOnly, message));
    }
    match batch.entry(sp, parent.0, Lock::Share).await? {
        Some(parent) if parent.is_collection() => {}
        _ => {
            let message = format!("cannot publish '{name}': its collection was removed");
            return Err(Error::new(ErrorKind::NotFound, message));
        }
    }
    let current = batch.child(sp, parent.0, &name, Lock::Update).await?;
    let current_version = current.as_ref().and_then(|entry| entry.version());
    if current_version != base || current.as_ref().is_some_and(|entry| entry.kind != EntryKind::Object) {
        let message = format!("cannot publish '{name}': it was changed by somebody else in the meantime");
        return Err(Error::new(ErrorKind::Conflict { version: current_version }, message));
    }
    if copy.reserved != Some(copy.key.as_str()) && batch.is_taken(copy.st, &copy.key).await? {
        let message = format!("cannot publish '{name}': the key '{}' is taken", copy.key);
        return Err(Error::new(ErrorKind::Conflict { version: current_version }, message));
    }
    let parent_path = batch.path_of(sp, parent.0).await?;
    let path = parent_path
        .join(&name)
        .map_err(|error| Error::invalid(format!("cannot publish '{name}'")).with_source(error))?;
    let now = batch.now();
    let mut content = content;
    if content.size.get() > i64::MAX as u64 {
        return Err(Error::invalid(format!("cannot publish '{name}': its size is more than 2^63 - 1 bytes")));
    }
    batch.require_quota(&space, path.as_str(), current.as_deref(), content.size).await?;
    batch.grew(sp, current.as_deref(), content.size);
    let entry = match current {
        Some(entry) => {
            if let Some(old) = &entry.content {
                content.mode = content.mode.or(old.mode);
                batch.supersede(sp, entry.id, old, entry.modified).await?;
            }
            batch.change(EntryRow { modified: now, content: Some(content.clone()), ..(*entry).clone() })
        }
        None => batch.add(EntryRow {
            sp,
            id: entry.0,
            parent: parent.0,
            name: name.clone(),
            kind: EntryKind::Object,
            created: now,
            modified: now,
            content: Some(content.clone()),
            target: None,
        }),
    };
    let FirstCopy { store, st, is_own, key, generation, .. } = copy;
    let replica = Replica {
        version,
        store,
        key,
        state: if content.root.is_some() { ReplicaState::Good } else { ReplicaState::Unverified },
        generation,
        checked: content.root.map(|_| now),
    };
    let item = PublishedItem {
        id: EntryId(entry.id),
        parent,
        name,
        version,
        size: content.size,
        root: content.root,
        mtime: content.mtime,
        mode: content.mode,
        base,
        replica: ReplicaItem::new(&replica, None),
        digests: content.digests,
    };
    batch.add_replica(ReplicaRow { sp, st, entry: entry.id, is_own, replica });
    Ok(Decided { sp, actor: actor.to_owned(), item, path })
}

/// Writes the records of publications, in their order.
pub(crate) fn record<T: Tx>(
    batch: &mut Batch<'_, T>,
    decided: Vec<Result<Decided>>,
) -> Result<Vec<Result<Draft>>> {
    let mut runs = Runs::default();
    let mut drafts = Vec::with_capacity(decided.len());
    for one in decided {
        drafts.push(one.map(|Decided { sp, actor, item, path }| {
            let (entry, version, created) = (item.id, item.version, item.base.is_none());
            (sp, path, entry, version, created, runs.push(sp, &actor, item))
        }));
    }
    let marks = runs.record(batch, kind::OBJECTS_PUBLISHED)?;
    let finish = |(sp, path, entry, version, created, run): (_, _, _, _, _, usize)| {
        let mark = marks.get(run).copied();
        let mark = mark.ok_or_else(|| Error::internal("a publication has no record"))?;
        Ok(Draft { sp, path, entry, version, created, mark })
    };
    Ok(drafts.into_iter().map(|draft| draft.and_then(finish)).collect())
}
