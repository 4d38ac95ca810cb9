//! Copies of versions, and garbage.

use std::collections::BTreeSet;

use percale_core::access::Caller;
use percale_core::ids::{EntryId, SpaceId, StoreId, VersionId};
use percale_core::state::ReplicaState;

use crate::batch::{Batch, Mark, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Query, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Committed, Content, Garbage, NativeChange, Replica, StoreLayout, StoredReplica};
use crate::record::{Items, PublishedItem, ReplicaItem, kind};
use crate::rows::Lock;
use crate::rows::entry::EntryRow;
use crate::rows::publish::actor;
use crate::rows::replica::{self, ReplicaRow, VersionRow};

/// Copies and garbage. These calls are the server's own; `actor` is only for the journal.
impl Catalog {
    /// Returns bytes on a store that the collector may delete, oldest first.
    pub async fn garbage(&self, store: StoreId, limit: usize) -> Result<Vec<Garbage>> {
        self.ask(ListGarbage { store, limit }).await
    }

    /// Notes that these bytes are deleted. A version of which nothing is left is forgotten.
    pub async fn collected(&self, deleted: Vec<Garbage>) -> Result<()> {
        self.change(Collected(deleted)).await
    }

    /// Returns the copies on a store in the order of their keys, behind the given key.
    pub async fn replicas_on(
        &self,
        store: StoreId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StoredReplica>> {
        let after = after.unwrap_or_default().to_owned();
        self.ask(OnStore { store, after, limit: limit.clamp(1, crate::MAX_LIST) }).await
    }

    /// Returns the copies on a store that are said to be written in place.
    pub async fn written_in_place(&self, store: StoreId) -> Result<Vec<StoredReplica>> {
        self.ask(WrittenInPlace { store }).await
    }

    /// Notes that a native file has new content: a new version is current, and copies elsewhere become stale.
    ///
    /// # Errors
    /// `Conflict` if the version is not current any more or its file is being written, `Unsupported` for a managed store.
    pub async fn native_changed(&self, actor: &Caller, change: NativeChange) -> Result<Committed> {
        self.change(NativeChanged { actor: actor.clone(), change }).await
    }
}

struct ListGarbage {
    store: StoreId,
    limit: usize,
}

impl Query for ListGarbage {
    type Out = Vec<Garbage>;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<Garbage>> {
        replica::garbage(tx, self.store, self.limit).await
    }
}

struct Collected(Vec<Garbage>);

impl Change for Collected {
    type Draft = ();
    type Out = ();

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<()> {
        // Garbage of changes before this one is in memory yet; it cannot be what was collected, but must not be lost.
        batch.flush().await?;
        let mut keys = Vec::with_capacity(self.0.len());
        for garbage in &self.0 {
            keys.push((batch.store(garbage.store).await?.st, garbage.key.clone()));
        }
        for (st, key) in &keys {
            batch.forget_key(*st, key);
        }
        let versions = replica::collected(batch.tx, keys).await?;
        replica::forget_versions(batch.tx, versions).await
    }

    fn finish(self, (): (), _written: &Written) {}
}

struct OnStore {
    store: StoreId,
    after: String,
    limit: usize,
}

impl Query for OnStore {
    type Out = Vec<StoredReplica>;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<StoredReplica>> {
        replica::on_store(tx, self.store, &self.after, self.limit).await
    }
}

struct WrittenInPlace {
    store: StoreId,
}

impl Query for WrittenInPlace {
    type Out = Vec<StoredReplica>;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<StoredReplica>> {
        replica::in_state(tx, self.store, ReplicaState::Writing).await
    }
}

/// Locks the objects of versions, each of which stands for all copies of it, and loads those copies. Spaces that are not
/// known are passed over.
pub(crate) async fn lock_copies<T: Tx>(
    batch: &mut Batch<'_, T>,
    versions: Vec<(SpaceId, VersionId)>,
) -> Result<()> {
    let mut keys = BTreeSet::new();
    for (space, version) in versions {
        keys.extend(batch.space_by_id(space).await?.map(|row| (row.sp, version)));
    }
    let keys: Vec<(i64, VersionId)> = keys.into_iter().collect();
    batch.load_replicas(keys.clone()).await?;
    let mut entries = BTreeSet::new();
    for (sp, version) in &keys {
        entries.extend(batch.replicas(*sp, *version).await?.first().map(|row| (*sp, row.entry)));
    }
    batch.load_entries(&entries.into_iter().collect::<Vec<_>>(), Lock::Update).await?;
    // What was read before the objects were locked is read again.
    for (sp, version) in &keys {
        batch.reload_replicas(*sp, *version);
    }
    batch.load_replicas(keys).await
}

/// Returns the copy of a version on a store.
pub(crate) async fn find_copy<T: Tx>(
    batch: &mut Batch<'_, T>,
    sp: i64,
    version: VersionId,
    store: StoreId,
) -> Result<Option<ReplicaRow>> {
    let st = batch.store(store).await?.st;
    Ok(batch.replicas(sp, version).await?.into_iter().find(|row| row.st == st))
}

/// The same for one that must be there.
pub(crate) async fn copy_of<T: Tx>(
    batch: &mut Batch<'_, T>,
    sp: i64,
    version: VersionId,
    store: StoreId,
) -> Result<ReplicaRow> {
    let missing = || {
        let message = format!("there is no copy of version {version} on store {store}");
        Error::new(ErrorKind::NotFound, message)
    };
    find_copy(batch, sp, version, store).await?.ok_or_else(missing)
}

struct NativeChanged {
    actor: Caller,
    change: NativeChange,
}

/// A publication whose record has no number yet.
pub(crate) struct NativeDraft {
    path: percale_core::ObjectPath,
    entry: EntryId,
    version: VersionId,
    mark: Mark,
}

impl Change for NativeChanged {
    type Draft = NativeDraft;
    type Out = Committed;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<NativeDraft> {
        let NativeChange { version, store, size, generation, mtime, mode, state, .. } = &self.change;
        if batch.store(*store).await?.store.layout != StoreLayout::Native {
            return Err(Error::unsupported(format!("files on the managed store {store} do not change")));
        }
        if !matches!(state, ReplicaState::Writing | ReplicaState::Unverified) {
            return Err(Error::invalid("a file that changed is being written or not verified"));
        }
        let missing = || {
            let message = format!("there is no space {}", self.change.space);
            Error::new(ErrorKind::SpaceNotFound, message)
        };
        let sp = crate::copies::home_space(batch, self.change.space).await?.ok_or_else(missing)?;
        lock_copies(batch, vec![(self.change.space, *version)]).await?;
        let row = copy_of(batch, sp, *version, *store).await?;
        let conflict = |current| {
            let message = format!("version {version} is not current any more");
            Error::new(ErrorKind::Conflict { version: current }, message)
        };
        let Some(entry) = batch.entry(sp, row.entry, Lock::Update).await? else { return Err(conflict(None)) };
        let old = match &entry.content {
            Some(content) if content.version == *version => content.clone(),
            content => return Err(conflict(content.as_ref().map(|content| content.version))),
        };
        if row.replica.state == ReplicaState::Writing && *state != ReplicaState::Writing {
            let message = format!("the file of version {version} is being written");
            return Err(Error::new(ErrorKind::Conflict { version: Some(*version) }, message));
        }
        let path = batch.path_of(sp, entry.id).await?;
        let file =
            FileState { size: *size, generation, mtime: *mtime, mode: *mode, state: *state, root: None };
        let (item, stale) = change_file(batch, &row, &entry, &old, file).await?;
        let new_version = item.version;
        let who = actor(&self.actor);
        if !stale.is_empty() {
            batch.record(sp, &who, kind::REPLICAS_CHANGED, &Items { items: stale })?;
        }
        let mark = batch.record(sp, &who, kind::OBJECTS_PUBLISHED, &Items { items: vec![item] })?;
        Ok(NativeDraft { path, entry: EntryId(entry.id), version: new_version, mark })
    }

    fn finish(self, draft: NativeDraft, written: &Written) -> Committed {
        let NativeDraft { path, entry, version, mark } = draft;
        Committed { path, entry, version, position: written.position(mark), created: false }
    }
}

/// A native file as it is now.
pub(crate) struct FileState<'a> {
    pub size: percale_core::ByteCount,
    pub generation: &'a str,
    pub mtime: Option<percale_core::Timestamp>,
    pub mode: Option<percale_core::FileMode>,
    pub state: ReplicaState,
    pub root: Option<percale_core::tree::RootHash>,
}

/// Makes a new version of what a native file has become: its copy moves there, all others become stale. `entry`, which is
/// locked, has the content `old`, of which `row` is the file. Returns the items for the journal.
pub(crate) async fn change_file<T: Tx>(
    batch: &mut Batch<'_, T>,
    row: &ReplicaRow,
    entry: &EntryRow,
    old: &Content,
    file: FileState<'_>,
) -> Result<(PublishedItem, Vec<ReplicaItem>)> {
    let FileState { size, generation, mtime, mode, state, root } = file;
    let mode = mode.or(old.mode);
    let sp = row.sp;
    let (now, version) = (batch.now(), VersionId(batch.next_id(sp).await?));
    let replica = Replica {
        version,
        state,
        generation: Some(generation.to_owned()),
        checked: root.map(|_| now),
        ..row.replica.clone()
    };
    batch.move_replica(row, ReplicaRow { replica: replica.clone(), ..row.clone() }).await?;
    let stale = batch.make_stale(sp, old.version).await?;
    if !batch.replicas(sp, old.version).await?.is_empty() {
        batch.remember_version(VersionRow {
            sp,
            id: old.version,
            entry: entry.id,
            size: old.size,
            root: old.root,
            created: entry.modified,
            superseded: now,
        });
    }
    let content = Content { version, size, root, mtime, mode, digests: Vec::new() };
    batch.change(EntryRow { modified: now, content: Some(content), ..entry.clone() });
    let item = PublishedItem {
        id: EntryId(entry.id),
        parent: EntryId(entry.parent),
        name: entry.name.clone(),
        version,
        size,
        root,
        mtime,
        mode,
        base: Some(old.version),
        replica: ReplicaItem::new(&replica, None),
        digests: Vec::new(),
    };
    Ok((item, stale.iter().map(|row| ReplicaItem::new(&row.replica, None)).collect()))
}
