//! Applying records of another home to the rows that are here.
//!
//! A record is decided against the rows as they are after the one before it, in the memory of one [`Batch`], with the
//! same parts that decide at home. What does not agree with the rows is never guessed.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use percale_core::ids::{EntryId, SpaceId, VersionId};
use percale_core::state::ReplicaState;
use percale_core::tree::RootHash;
use percale_core::{Position, Timestamp};

use super::Names;
use super::lines::{check_entry_name, check_key, check_number};
use super::stores::Places;
use crate::batch::Batch;
use crate::engine::Tx;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Content, EntryKind, Followed, Record, Replica, Space};
use crate::record::{
    AttributesItem, ChangedItem, CreatedItem, GrantItem, LinkItem, MovedItem, PublishedItem, RecordChange,
    RemovedItem, ReplicaItem, ReplicaRemovedItem, SpaceBody,
};
use crate::rows::arrival;
use crate::rows::entry::EntryRow;
use crate::rows::grant::{self, GrantRow};
use crate::rows::outbox::{self, Passed};
use crate::rows::replica::{self, ReplicaRow, VersionRow};
use crate::rows::site::{self, SpaceRow};
use crate::rows::{Lock, follow};

/// The records that make a row of the next one, and what they did.
struct Applier<'b, 'a, T: Tx> {
    batch: &'b mut Batch<'a, T>,
    sp: i64,
    space: Space,
    names: &'b Names,
    places: Places,
    /// Copies on own stores that got a name.
    named: Vec<ReplicaRow>,
    /// The greatest id that was seen.
    top: u64,
    /// The place of the record that is being applied.
    position: Position,
}

/// Applies records that are the next ones, and keeps them. Returns where the rows stand then.
pub(super) async fn apply<T: Tx>(
    batch: &mut Batch<'_, T>,
    row: SpaceRow,
    names: &Names,
    records: &[&Record],
) -> Result<Followed> {
    let sp = row.sp;
    let mut changes = Vec::with_capacity(records.len());
    let mut behind = None;
    let mut kept = 0;
    for record in records {
        kept += 1;
        match record.change() {
            Ok(RecordChange::Unknown) => {
                let Record { kind, position, .. } = record;
                behind = Some(format!("record {position} is of the kind '{kind}', which is not known"));
                break;
            }
            Ok(change) => changes.push((record.at, change)),
            Err(error) if *error.kind() == ErrorKind::Unsupported => {
                behind = Some(error.to_string());
                break;
            }
            Err(error) => return Err(Error::does_not_fit("a record cannot be read").with_source(error)),
        }
    }
    let records = records.get(..kept).unwrap_or(records);
    let mut applier = Applier {
        batch,
        sp,
        space: row.space.clone(),
        names,
        places: Places::default(),
        named: Vec::new(),
        top: 0,
        position: row.space.position,
    };
    applier.load(&changes).await?;
    for ((at, change), record) in changes.into_iter().zip(records) {
        let wrong = |error: Error| match error.kind() {
            ErrorKind::DoesNotFit => {
                let Record { position, kind, .. } = record;
                Error::does_not_fit(format!("record {position} of kind {kind} does not fit"))
                    .with_source(error)
            }
            _ => error,
        };
        applier.position = record.position;
        applier.change(at, change).await.map_err(wrong)?;
    }
    applier.batch.flush().await?;
    // What has a name needs no other protection.
    arrival::delete_named(applier.batch.tx, &applier.named).await?;
    let (top, position) = (applier.top, records.last().map_or(row.space.position, |last| last.position));
    let tx = batch.tx;
    follow::keep(tx, sp, records).await?;
    follow::stand(tx, sp, position, top + 1, behind.clone()).await?;
    Ok(Followed { position, behind })
}

/// Deletes all rows of a space but its journal, and makes garbage of its copies on own stores.
pub(super) async fn remove_space<T: Tx>(batch: &mut Batch<'_, T>, sp: i64, id: SpaceId) -> Result<()> {
    batch.flush().await?;
    let tx = batch.tx;
    follow::clear(tx, sp).await?;
    follow::discard_aside(tx, sp, batch.now()).await?;
    site::remove_space(tx, sp, id).await
}

fn unfit<R>(message: String) -> Result<R> {
    Err(Error::does_not_fit(message))
}

impl<T: Tx> Applier<'_, '_, T> {
    /// Loads what the records look at in few statements.
    async fn load(&mut self, changes: &[(Timestamp, RecordChange)]) -> Result<()> {
        let mut ids: BTreeSet<EntryId> = BTreeSet::new();
        let mut children: BTreeSet<(EntryId, &str)> = BTreeSet::new();
        let mut versions: BTreeSet<VersionId> = BTreeSet::new();
        let mut stores = BTreeSet::new();
        for (_, change) in changes {
            match change {
                RecordChange::EntriesCreated(items) => {
                    ids.extend(items.iter().flat_map(|item| [item.id, item.parent]));
                    children.extend(items.iter().map(|item| (item.parent, item.name.as_str())));
                }
                RecordChange::LinksCreated(items) => {
                    ids.extend(items.iter().flat_map(|item| [item.id, item.parent]));
                    children.extend(items.iter().map(|item| (item.parent, item.name.as_str())));
                }
                RecordChange::ObjectsPublished(items) => {
                    ids.extend(items.iter().flat_map(|item| [item.id, item.parent]));
                    children.extend(items.iter().map(|item| (item.parent, item.name.as_str())));
                    versions.extend(items.iter().filter_map(|item| item.base));
                    stores.extend(items.iter().map(|item| item.replica.store));
                }
                RecordChange::EntriesMoved(items) => {
                    ids.extend(items.iter().flat_map(|item| [item.id, item.parent]));
                    ids.extend(items.iter().filter_map(|item| item.replaced));
                    children.extend(items.iter().map(|item| (item.parent, item.name.as_str())));
                }
                RecordChange::ObjectsChanged(items) => ids.extend(items.iter().map(|item| item.id)),
                RecordChange::EntriesRemoved(items) => ids.extend(items.iter().map(|item| item.id)),
                RecordChange::ReplicasChanged(items) => {
                    versions.extend(items.iter().map(|item| item.version));
                    stores.extend(items.iter().map(|item| item.store));
                }
                RecordChange::ReplicasRemoved(items) => {
                    versions.extend(items.iter().map(|item| item.version));
                    stores.extend(items.iter().map(|item| item.store));
                }
                RecordChange::GrantsChanged(items) => ids.extend(items.iter().map(|item| item.entry)),
                RecordChange::AttributesChanged(items) => ids.extend(items.iter().map(|item| item.entry)),
                _ => {}
            }
        }
        let sp = self.sp;
        self.places.find(self.batch.tx, stores.into_iter()).await?;
        let ids: Vec<(i64, u64)> = ids.into_iter().map(|id| (sp, id.0)).collect();
        self.batch.load_entries(&ids, Lock::Update).await?;
        let children = children.into_iter().map(|(parent, name)| (sp, parent.0, name.to_owned()));
        self.batch.load_children(children.collect()).await?;
        self.batch.load_replicas(versions.into_iter().map(|version| (sp, version)).collect()).await
    }

    async fn change(&mut self, at: Timestamp, change: RecordChange) -> Result<()> {
        match change {
            RecordChange::SpaceChanged(body) => self.space_changed(body).await,
            RecordChange::SpaceRemoved => remove_space(self.batch, self.sp, self.space.id).await,
            RecordChange::SpaceMoved(body) => follow::leave(self.batch.tx, self.sp, body.to, None).await,
            RecordChange::EntriesCreated(items) => {
                for item in items {
                    self.created(item).await?;
                }
                Ok(())
            }
            RecordChange::LinksCreated(items) => {
                for item in items {
                    self.linked(item).await?;
                }
                Ok(())
            }
            RecordChange::ObjectsPublished(items) => {
                for item in items {
                    self.published(at, item).await?;
                }
                Ok(())
            }
            RecordChange::EntriesMoved(items) => {
                for item in items {
                    self.moved(item).await?;
                }
                Ok(())
            }
            RecordChange::ObjectsChanged(items) => {
                for item in items {
                    self.changed(item).await?;
                }
                Ok(())
            }
            RecordChange::EntriesRemoved(items) => self.removed(items).await,
            RecordChange::ReplicasChanged(items) => {
                for item in items {
                    self.copy_changed(item).await?;
                }
                Ok(())
            }
            RecordChange::ReplicasRemoved(items) => {
                for item in items {
                    self.copy_removed(item).await?;
                }
                Ok(())
            }
            RecordChange::GrantsChanged(items) => {
                for item in items {
                    self.grant_changed(item).await?;
                }
                Ok(())
            }
            RecordChange::AttributesChanged(items) => {
                for item in items {
                    self.attributes_changed(item).await?;
                }
                Ok(())
            }
            RecordChange::SpaceCreated(_) => unfit("the space is there already".into()),
            RecordChange::SpacePromoted(_) => unfit("it begins another term".into()),
            RecordChange::Unknown => Err(Error::internal("an unknown record was to be applied")),
        }
    }

    fn see(&mut self, id: u64) -> Result<()> {
        check_number(id)?;
        self.top = self.top.max(id);
        Ok(())
    }

    async fn space_changed(&mut self, body: SpaceBody) -> Result<()> {
        let SpaceBody { id, name, owner, scope, store, state, extraction, quota, .. } = body;
        if id != self.space.id {
            return unfit(format!("it is about space {id}"));
        }
        let owner = self.names.seen(&owner);
        self.space = Space { name, owner, scope, store, state, extraction, quota, ..self.space.clone() };
        follow::require_free_name(self.batch.tx, &self.space).await?;
        site::update_space(self.batch.tx, self.sp, &self.space).await
    }

    async fn entry(&mut self, id: EntryId) -> Result<Arc<EntryRow>> {
        match self.batch.entry(self.sp, id.0, Lock::Update).await? {
            Some(entry) => Ok(entry),
            None => unfit(format!("there is no entry {id}")),
        }
    }

    async fn require_collection(&mut self, id: EntryId) -> Result<()> {
        match self.entry(id).await?.is_collection() {
            true => Ok(()),
            false => unfit(format!("entry {id} is no collection")),
        }
    }

    /// Checks that a new entry can be in a collection under a name.
    async fn require_free(&mut self, id: EntryId, parent: EntryId, name: &str) -> Result<()> {
        self.see(id.0)?;
        check_entry_name(name)?;
        self.require_collection(parent).await?;
        if self.batch.entry(self.sp, id.0, Lock::Update).await?.is_some() {
            return unfit(format!("entry {id} is there already"));
        }
        self.require_free_name(parent, name).await
    }

    async fn require_free_name(&mut self, parent: EntryId, name: &str) -> Result<()> {
        match self.batch.child(self.sp, parent.0, name, Lock::Update).await? {
            Some(there) => unfit(format!("collection {parent} has entry {} under that name", there.id)),
            None => Ok(()),
        }
    }

    async fn created(&mut self, item: CreatedItem) -> Result<()> {
        let CreatedItem { id, parent, name, at } = item;
        self.require_free(id, parent, &name).await?;
        self.batch.add(EntryRow::collection(self.sp, id.0, parent.0, &name, at));
        Ok(())
    }

    async fn linked(&mut self, item: LinkItem) -> Result<()> {
        let LinkItem { id, parent, name, target, at } = item;
        self.require_free(id, parent, &name).await?;
        self.batch.add(EntryRow::link(self.sp, id.0, parent.0, &name, target, at));
        Ok(())
    }

    async fn published(&mut self, at: Timestamp, item: PublishedItem) -> Result<()> {
        let PublishedItem { id, parent, name, version, size, root, mtime, mode, base, replica, digests } =
            item;
        self.see(version.0)?;
        check_number(size.get())?;
        if replica.version != version {
            return unfit(format!("the copy of version {version} is one of version {}", replica.version));
        }
        let copy = self.new_copy(replica, id.0).await?;
        let content = Content { version, size, root, mtime, mode, digests };
        let Some(base) = base else {
            self.require_free(id, parent, &name).await?;
            self.batch.add(EntryRow {
                sp: self.sp,
                id: id.0,
                parent: parent.0,
                name,
                kind: EntryKind::Object,
                created: at,
                modified: at,
                content: Some(content),
                target: None,
            });
            self.batch.add_replica(copy);
            return Ok(());
        };
        let entry = self.entry(id).await?;
        let old = match &entry.content {
            Some(old) if old.version == base && entry.parent == parent.0 && entry.name == name => old.clone(),
            _ => {
                return unfit(format!(
                    "entry {id} is not '{name}' in collection {parent} with version {base}"
                ));
            }
        };
        let known = self.batch.replicas(self.sp, base).await?;
        let rewritten = known.iter().find(|row| row.st == copy.st && row.replica.key == copy.replica.key);
        match rewritten {
            // A native file has new content in place of the old: copies elsewhere stay, and are stale by the record before.
            Some(rewritten) => {
                self.batch.move_replica(rewritten, copy).await?;
                if known.len() > 1 {
                    self.batch.remember_version(VersionRow {
                        sp: self.sp,
                        id: base,
                        entry: id.0,
                        size: old.size,
                        root: old.root,
                        created: entry.modified,
                        superseded: at,
                    });
                }
            }
            None => {
                self.batch.supersede(self.sp, id.0, &old, entry.modified).await?;
                self.batch.add_replica(copy);
            }
        }
        self.batch.change(EntryRow { modified: at, content: Some(content), ..(*entry).clone() });
        Ok(())
    }

    async fn changed(&mut self, item: ChangedItem) -> Result<()> {
        let ChangedItem { id, mtime, mode } = item;
        let entry = self.entry(id).await?;
        let Some(content) = &entry.content else { return unfit(format!("entry {id} is no object")) };
        let content =
            Content { mtime: mtime.or(content.mtime), mode: mode.or(content.mode), ..content.clone() };
        self.batch.change(EntryRow { content: Some(content), ..(*entry).clone() });
        Ok(())
    }

    async fn attributes_changed(&mut self, item: AttributesItem) -> Result<()> {
        self.entry(item.entry).await?;
        for one in &item.set {
            crate::attribute::check_values(&one.name, &one.values).map_err(Error::does_not_fit)?;
        }
        // What was taken away before it must be gone, so that it does not take this with it.
        self.batch.flush().await?;
        crate::attribute::write(self.batch.tx, self.sp, &[item], |_, _| true).await
    }

    async fn moved(&mut self, item: MovedItem) -> Result<()> {
        let MovedItem { id, parent, name, replaced, .. } = item;
        check_entry_name(&name)?;
        let entry = self.entry(id).await?;
        if entry.parent == 0 {
            return unfit("the root of the space stays where it is".into());
        }
        self.require_collection(parent).await?;
        if entry.is_collection() {
            self.require_outside(id, parent).await?;
        }
        if let Some(replaced) = replaced {
            let there = self.entry(replaced).await?;
            if replaced == id || there.parent != parent.0 || there.name != name {
                return unfit(format!("entry {replaced} is not '{name}' in collection {parent}"));
            }
            self.batch.remove(std::slice::from_ref(&there)).await?;
            self.batch.flush().await?;
            self.require_empty(vec![replaced.0]).await?;
        } else if entry.parent != parent.0 || entry.name != name {
            self.require_free_name(parent, &name).await?;
        }
        self.batch.change(EntryRow { parent: parent.0, name, ..(*entry).clone() });
        // Written at once: bulk updates have no order, and two moves could meet in a name.
        self.batch.flush().await
    }

    /// Checks that a collection is neither another nor above it.
    async fn require_outside(&mut self, id: EntryId, mut at: EntryId) -> Result<()> {
        let mut seen = HashSet::new();
        while at.0 != 0 {
            if at == id || !seen.insert(at) {
                return unfit(format!("collection {id} would be below itself"));
            }
            at = EntryId(self.entry(at).await?.parent);
        }
        Ok(())
    }

    /// Checks that nothing is in collections that are gone.
    async fn require_empty(&mut self, gone: Vec<u64>) -> Result<()> {
        match follow::with_children(self.batch.tx, self.sp, gone).await? {
            Some(id) => unfit(format!("collection {id} is not empty")),
            None => Ok(()),
        }
    }

    async fn removed(&mut self, items: Vec<RemovedItem>) -> Result<()> {
        let mut doomed = Vec::with_capacity(items.len());
        let mut seen = HashSet::new();
        for RemovedItem { id, .. } in items {
            let entry = self.entry(id).await?;
            if entry.parent == 0 || !seen.insert(id) {
                return unfit(format!("entry {id} cannot be removed like this"));
            }
            doomed.push(entry);
        }
        let collections = doomed.iter().filter(|entry| entry.is_collection()).map(|entry| entry.id).collect();
        self.batch.remove(&doomed).await?;
        self.batch.flush().await?;
        self.require_empty(collections).await
    }

    /// Makes the row of a copy of a version that may have had another on the same store.
    async fn further_copy(&mut self, item: ReplicaItem, entry: u64) -> Result<ReplicaRow> {
        let row = self.new_copy(item, entry).await?;
        if row.is_own {
            let copy = (self.sp, row.replica.version, row.st);
            outbox::forget_overtaken(self.batch.tx, copy, &row.replica.key).await?;
        }
        Ok(row)
    }

    /// Makes the row of a copy that is not here yet.
    async fn new_copy(&mut self, item: ReplicaItem, entry: u64) -> Result<ReplicaRow> {
        let ReplicaItem { version, store, state, key, generation, .. } = item;
        check_key(&key)?;
        let place = self.places.get(store)?;
        if place.is_own && follow::is_garbage(self.batch.tx, place.st, &key).await? {
            return unfit(format!("the copy of version {version} is garbage here"));
        }
        let checked = (place.is_own && state == ReplicaState::Good).then(|| self.batch.now());
        let replica = Replica { version, store, key, state, generation, checked };
        let row = ReplicaRow { sp: self.sp, st: place.st, entry, is_own: place.is_own, replica };
        if row.is_own {
            self.named.push(row.clone());
        }
        Ok(row)
    }

    /// Returns the copies of a version, those on own stores as nobody else may change them from here on.
    async fn copies(&mut self, version: VersionId) -> Result<Vec<ReplicaRow>> {
        let rows = self.batch.replicas(self.sp, version).await?;
        let Some(own) = rows.iter().find(|row| row.is_own) else { return Ok(rows) };
        self.batch.entry(self.sp, own.entry, Lock::Update).await?;
        self.batch.reload_replicas(self.sp, version);
        self.batch.replicas(self.sp, version).await
    }

    async fn copy_changed(&mut self, item: ReplicaItem) -> Result<()> {
        let (version, root) = (item.version, item.root);
        let rows = self.copies(version).await?;
        let entry = match rows.first() {
            Some(row) => Some(row.entry),
            None => replica::version(self.batch.tx, self.sp, version).await?.map(|former| former.entry),
        };
        let Some(entry) = entry else {
            return unfit(format!("there is no copy of version {version}"));
        };
        let st = self.places.get(item.store)?.st;
        match rows.into_iter().find(|row| row.st == st) {
            None => {
                let copy = self.further_copy(item, entry).await?;
                self.batch.add_replica(copy);
            }
            // Other bytes took the place of those that were there.
            Some(row) if row.replica.key != item.key => {
                let copy = self.further_copy(item, entry).await?;
                self.batch.remove_copy(row);
                self.batch.add_replica(copy);
            }
            // Of its own stores this site knows more than the home, until that has answered.
            Some(row) if row.is_own && self.pass_over(&row, &item).await? => {}
            Some(mut row) => {
                row.replica.state = item.state;
                row.replica.generation = item.generation;
                self.batch.change_replica(row);
            }
        }
        match root {
            Some(root) => self.root_known(entry, version, root).await,
            None => Ok(()),
        }
    }

    /// Keeps what a record says of a copy with a report that waits, and tells whether there is one.
    async fn pass_over(&mut self, row: &ReplicaRow, item: &ReplicaItem) -> Result<bool> {
        let key = (self.sp, item.version, row.st);
        let (position, state, generation) = (self.position, item.state, item.generation.clone());
        outbox::pass(self.batch.tx, key, Passed { position, state, generation }).await
    }

    async fn root_known(&mut self, entry: u64, version: VersionId, root: RootHash) -> Result<()> {
        let entry = self.entry(EntryId(entry)).await?;
        let Some(content) = entry.content.clone().filter(|content| content.version == version) else {
            self.batch.flush().await?;
            return replica::set_version_root(self.batch.tx, self.sp, version, root).await.map(drop);
        };
        match content.root {
            Some(known) if known != root => unfit(format!("version {version} has another root")),
            Some(_) => Ok(()),
            None => {
                let content = Some(Content { root: Some(root), ..content });
                self.batch.change(EntryRow { content, ..(*entry).clone() });
                Ok(())
            }
        }
    }

    async fn copy_removed(&mut self, item: ReplicaRemovedItem) -> Result<()> {
        let ReplicaRemovedItem { version, store } = item;
        let place = self.places.get(store)?;
        match self.copies(version).await?.into_iter().find(|row| row.st == place.st) {
            Some(row) => self.batch.remove_copy(row),
            // This site may have let it go on the home's answer, before the record came.
            None if place.is_own => {}
            None => return unfit(format!("there is no copy of version {version} on store {store}")),
        }
        Ok(())
    }

    async fn grant_changed(&mut self, item: GrantItem) -> Result<()> {
        let GrantItem { entry, subject, permission } = item;
        let subject = self.names.seen(&subject);
        self.entry(entry).await?;
        let (sp, entry) = (self.sp, entry.0);
        match permission {
            Some(permission) => grant::set(self.batch.tx, &GrantRow { sp, entry, subject, permission }).await,
            None => grant::remove(self.batch.tx, sp, entry, &subject).await.map(drop),
        }
    }
}
