//! Copies of versions, and garbage.

use std::collections::BTreeMap;

use percale_core::Position;
use percale_core::access::Caller;
use percale_core::ids::{EntryId, StoreId, VersionId};
use percale_core::state::ReplicaState;

use crate::batch::{Batch, Mark, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Query, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{
    Committed, Content, Garbage, NativeChange, Replica, ReplicaReport, StoreLayout, StoredReplica,
};
use crate::record::{Items, PublishedItem, ReplicaItem, kind};
use crate::rows::Lock;
use crate::rows::entry::EntryRow;
use crate::rows::publish::actor;
use crate::rows::replica::{self, ReplicaRow, VersionRow};
use crate::rows::site;

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

    /// Notes what a store's site says about copies, each with its own outcome.
    ///
    /// # Errors
    /// For each: `NotFound`, `Conflict` if the state may not follow the one that is known (docs/design/replicas.md) or
    /// the root is not the version's.
    pub async fn report_replicas(
        &self,
        actor: &Caller,
        reports: Vec<ReplicaReport>,
    ) -> Vec<Result<Position>> {
        let count = reports.len();
        match self.change(Report { actor: actor.clone(), reports }).await {
            Ok(outcomes) => outcomes,
            Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
        }
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

    /// Notes that a native file has new content: a new version is current, and copies elsewhere become stale.
    ///
    /// # Errors
    /// `Conflict` if the version is not current any more, `Unsupported` for a managed store.
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

struct Report {
    actor: Caller,
    reports: Vec<ReplicaReport>,
}

impl Change for Report {
    type Draft = Vec<Result<Mark>>;
    type Out = Vec<Result<Position>>;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Self::Draft> {
        let mut decided = Vec::with_capacity(self.reports.len());
        for report in &self.reports {
            match report_one(batch, report).await {
                Err(error) if error.fault().is_some() => return Err(error),
                outcome => decided.push(outcome),
            }
        }
        let mut items: BTreeMap<i64, Vec<&ReplicaItem>> = BTreeMap::new();
        for (sp, item) in decided.iter().flatten() {
            items.entry(*sp).or_default().extend(item);
        }
        let mut marks = BTreeMap::new();
        for (sp, items) in items {
            let mark = match items.is_empty() {
                true => batch.no_record(sp),
                false => batch.record(sp, &actor(&self.actor), kind::REPLICAS_CHANGED, &Items { items })?,
            };
            marks.insert(sp, mark);
        }
        let mark_of =
            |sp: i64| marks.get(&sp).copied().ok_or_else(|| Error::internal("a report has no record"));
        Ok(decided.into_iter().map(|outcome| outcome.and_then(|(sp, _)| mark_of(sp))).collect())
    }

    fn finish(self, draft: Self::Draft, written: &Written) -> Self::Out {
        draft.into_iter().map(|draft| draft.map(|mark| written.position(mark))).collect()
    }
}

/// Finds a space by id for a change.
async fn space_of<T: Tx>(batch: &mut Batch<'_, T>, id: percale_core::ids::SpaceId) -> Result<i64> {
    let found = site::space_by_id(batch.tx, id).await?.filter(|row| !row.is_removed);
    let missing = || Error::new(ErrorKind::SpaceNotFound, format!("there is no space {id}"));
    let found = found.ok_or_else(missing)?;
    found.require_home()?;
    batch.space(found.sp).await.map(|space| space.sp)
}

/// Finds the copy of a version on a store, with the object locked.
async fn copy_of<T: Tx>(
    batch: &mut Batch<'_, T>,
    sp: i64,
    version: VersionId,
    store: StoreId,
) -> Result<ReplicaRow> {
    let st = batch.store(store).await?.st;
    let find = |rows: Vec<ReplicaRow>| rows.into_iter().find(|row| row.st == st);
    let missing = || {
        let message = format!("there is no copy of version {version} on store {store}");
        Error::new(ErrorKind::NotFound, message)
    };
    let copy = find(batch.replicas(sp, version).await?).ok_or_else(missing)?;
    // The object's row stands for all its copies. What was read before it was locked is read again.
    batch.entry(sp, copy.entry, Lock::Update).await?;
    batch.reload_replicas(sp, version);
    find(batch.replicas(sp, version).await?).ok_or_else(missing)
}

/// Decides on one report. Returns what is new, if anything is.
async fn report_one<T: Tx>(
    batch: &mut Batch<'_, T>,
    report: &ReplicaReport,
) -> Result<(i64, Option<ReplicaItem>)> {
    let ReplicaReport { version, store, state, .. } = report;
    let sp = space_of(batch, report.space).await?;
    let row = copy_of(batch, sp, *version, *store).await?;
    if !row.replica.state.may_become(*state) {
        let message = format!(
            "the copy of version {version} on store {store} is {} and cannot become {state}",
            row.replica.state
        );
        return Err(Error::new(ErrorKind::Conflict { version: Some(*version) }, message));
    }
    let entry = batch.entry(sp, row.entry, Lock::Update).await?;
    let current = entry.filter(|entry| entry.version() == Some(*version));
    let mut new_root = None;
    if let Some(root) = report.root {
        let known = match &current {
            Some(entry) => entry.content.as_ref().and_then(|content| content.root),
            None => replica::version(batch.tx, sp, *version).await?.and_then(|former| former.root),
        };
        match known {
            Some(known) if known != root => {
                let message = format!(
                    "the copy of version {version} on store {store} does not have the version's root"
                );
                return Err(Error::new(ErrorKind::Conflict { version: Some(*version) }, message));
            }
            Some(_) => {}
            None => new_root = Some(root),
        }
    }
    let mut new = row.clone();
    new.replica.state = *state;
    if report.generation.is_some() {
        new.replica.generation = report.generation.clone();
    }
    if report.is_checked {
        new.replica.checked = Some(batch.now());
    }
    if let Some(root) = new_root {
        match current {
            Some(entry) => {
                let content = entry.content.clone().map(|content| Content { root: Some(root), ..content });
                batch.change(EntryRow { content, ..(*entry).clone() });
            }
            None => drop(replica::set_version_root(batch.tx, sp, *version, root).await?),
        }
    }
    let is_news = new_root.is_some()
        || new.replica.state != row.replica.state
        || new.replica.generation != row.replica.generation;
    let item = is_news.then(|| ReplicaItem::new(&new.replica, new_root));
    if new != row {
        batch.change_replica(new);
    }
    Ok((sp, item))
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
        let NativeChange { version, store, size, generation, mtime, state, .. } = &self.change;
        if batch.store(*store).await?.store.layout != StoreLayout::Native {
            return Err(Error::unsupported(format!("files on the managed store {store} do not change")));
        }
        if !matches!(state, ReplicaState::Writing | ReplicaState::Unverified) {
            return Err(Error::invalid("a file that changed is being written or not verified"));
        }
        let sp = space_of(batch, self.change.space).await?;
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
        let path = batch.path_of(sp, entry.id).await?;
        let (now, new_version) = (batch.now(), VersionId(batch.next_id(sp).await?));
        let replica = Replica {
            version: new_version,
            state: *state,
            generation: Some(generation.clone()),
            checked: None,
            ..row.replica.clone()
        };
        let new = ReplicaRow { replica: replica.clone(), ..row.clone() };
        batch.move_replica(&row, new).await?;
        let stale = batch.make_stale(sp, *version).await?;
        if !batch.replicas(sp, *version).await?.is_empty() {
            batch.remember_version(VersionRow {
                sp,
                id: *version,
                entry: entry.id,
                size: old.size,
                root: old.root,
                created: entry.modified,
                superseded: now,
            });
        }
        let content =
            Content { version: new_version, size: *size, root: None, mtime: *mtime, digests: Vec::new() };
        batch.change(EntryRow { modified: now, content: Some(content), ..(*entry).clone() });
        let who = actor(&self.actor);
        if !stale.is_empty() {
            let items = stale.iter().map(|row| ReplicaItem::new(&row.replica, None)).collect();
            batch.record(sp, &who, kind::REPLICAS_CHANGED, &Items::<ReplicaItem> { items })?;
        }
        let item = PublishedItem {
            id: EntryId(entry.id),
            parent: EntryId(entry.parent),
            name: entry.name.clone(),
            version: new_version,
            size: *size,
            root: None,
            mtime: *mtime,
            base: Some(*version),
            replica: ReplicaItem::new(&replica, None),
            digests: Vec::new(),
        };
        let mark = batch.record(sp, &who, kind::OBJECTS_PUBLISHED, &Items { items: vec![item] })?;
        Ok(NativeDraft { path, entry: EntryId(entry.id), version: new_version, mark })
    }

    fn finish(self, draft: NativeDraft, written: &Written) -> Committed {
        let NativeDraft { path, entry, version, mark } = draft;
        Committed { path, entry, version, position: written.position(mark), created: false }
    }
}
