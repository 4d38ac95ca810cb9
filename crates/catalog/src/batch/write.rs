//! What changes do to a batch, and writing it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use percale_core::Position;
use percale_core::ids::VersionId;
use percale_core::state::ReplicaState;
use serde::Serialize;

use super::{Batch, Dirty, Mark, Slot, Written};
use crate::engine::{Tx, to_json};
use crate::error::Result;
use crate::model::{Content, IntentId, Replica};
use crate::rows::Lock;
use crate::rows::entry::EntryRow;
use crate::rows::journal::NewRecord;
use crate::rows::publish::StoredIntent;
use crate::rows::replica::{GarbageRow, ReplicaRow, VersionRow};
use crate::rows::{attribute, entry, grant, publish, replica};

impl<T: Tx> Batch<'_, T> {
    /// Adds an entry under an id that was never used.
    pub fn add(&mut self, entry: EntryRow) -> Arc<EntryRow> {
        let key = (entry.sp, entry.id);
        let names = self.names.entry((entry.sp, entry.parent)).or_default();
        names.insert(entry.name.clone(), Some(entry.id));
        let entry = Arc::new(entry);
        let slot = Slot { row: Some(entry.clone()), lock: Lock::Update, dirty: Dirty::New };
        self.entries.insert(key, slot);
        self.pending.entries.push(key);
        self.grants.insert(key, Arc::new([]));
        entry
    }

    /// Puts an entry, which was looked up with [`Lock::Update`], in place of what it was.
    pub fn change(&mut self, entry: EntryRow) -> Arc<EntryRow> {
        let key = (entry.sp, entry.id);
        let before = self.entries.get(&key).cloned();
        if let Some(before) = before.as_ref().and_then(|slot| slot.row.as_ref())
            && (before.parent != entry.parent || before.name != entry.name)
        {
            self.names.entry((before.sp, before.parent)).or_default().insert(before.name.clone(), None);
        }
        let names = self.names.entry((entry.sp, entry.parent)).or_default();
        names.insert(entry.name.clone(), Some(entry.id));
        let dirty = match before.map(|slot| slot.dirty) {
            Some(Dirty::New) => Dirty::New,
            _ => Dirty::Changed,
        };
        let entry = Arc::new(entry);
        self.entries.insert(key, Slot { row: Some(entry.clone()), lock: Lock::Update, dirty });
        self.pending.entries.push(key);
        entry
    }

    /// Takes an entry, which was looked up with [`Lock::Update`], and the grants on it and what is said of it away.
    fn take_away(&mut self, entry: &EntryRow) {
        let key = (entry.sp, entry.id);
        let was_new = self.entries.get(&key).is_some_and(|slot| slot.dirty == Dirty::New);
        let dirty = if was_new { Dirty::Clean } else { Dirty::Gone };
        self.entries.insert(key, Slot { row: None, lock: Lock::Update, dirty });
        self.names.entry((entry.sp, entry.parent)).or_default().insert(entry.name.clone(), None);
        self.pending.entries.push(key);
        self.pending.names_gone.push(key);
        self.grants.remove(&key);
    }

    /// Makes history of a version that another one replaces: its bytes on own stores become garbage, and it is remembered until they
    /// are collected. Other sites do the same with theirs.
    ///
    /// A native file that a mount writes at this moment stays where it lies, and only loses its name: what is being written is
    /// nowhere else.
    pub async fn supersede(
        &mut self,
        sp: i64,
        entry: u64,
        content: &Content,
        created: percale_core::Timestamp,
    ) -> Result<()> {
        let replicas = self.replicas(sp, content.version).await?;
        let (written, others): (Vec<_>, Vec<_>) =
            replicas.into_iter().partition(|row| row.replica.state == ReplicaState::Writing);
        if !written.is_empty() {
            written.iter().for_each(|row| self.leave(row));
            self.replicas.insert((sp, content.version), others);
        }
        self.retire(sp, entry, content, created).await
    }

    /// Makes history of a version, with all of its bytes.
    async fn retire(
        &mut self,
        sp: i64,
        entry: u64,
        content: &Content,
        created: percale_core::Timestamp,
    ) -> Result<()> {
        let now = self.now();
        let version = content.version;
        let replicas = self.replicas(sp, version).await?;
        if replicas.is_empty() {
            return Ok(());
        }
        let is_kept = replicas.iter().any(|row| row.is_own);
        replicas.into_iter().for_each(|row| self.discard(row));
        self.replicas.insert((sp, version), Vec::new());
        if !is_kept {
            return Ok(());
        }
        let (size, root) = (content.size, content.root);
        self.pending.versions.push(VersionRow {
            sp,
            id: version,
            entry,
            size,
            root,
            created,
            superseded: now,
        });
        Ok(())
    }

    /// Takes a copy away, and makes garbage of it if it is on an own store.
    pub fn discard(&mut self, row: ReplicaRow) {
        if !row.is_own {
            return self.leave(&row);
        }
        self.unname(&row);
        let (ReplicaRow { sp, st, replica, .. }, since) = (row, self.now());
        let Replica { version, key, state, generation, .. } = replica;
        // The generation of what is being written in place is not known.
        let generation = generation.filter(|_| state != ReplicaState::Writing);
        self.taken.insert((st, key.clone()), true);
        self.pending.garbage.push(GarbageRow { st, key, sp, version, generation, since });
    }

    /// Takes a copy away, and leaves its bytes to others.
    fn leave(&mut self, row: &ReplicaRow) {
        self.unname(row);
        self.pending.versions_less.push((row.sp, row.replica.version));
    }

    fn unname(&mut self, row: &ReplicaRow) {
        let key = (row.sp, row.replica.version, row.st);
        self.pending.replicas_changed.remove(&key);
        if self.pending.replicas_new.remove(&key).is_none() {
            self.pending.replicas_gone.push(key);
        }
    }

    /// Takes a copy away as [`Batch::discard`], and knows the others of its version still.
    pub fn remove_copy(&mut self, row: ReplicaRow) {
        if let Some(of_version) = self.replicas.get_mut(&(row.sp, row.replica.version)) {
            of_version.retain(|known| known.st != row.st);
        }
        self.discard(row);
    }

    /// Takes objects and collections, which were looked up with [`Lock::Update`], away, and makes garbage of the bytes of
    /// all their versions. Returns the versions that each had, the current one first.
    pub async fn remove(&mut self, entries: &[Arc<EntryRow>]) -> Result<Vec<Vec<VersionId>>> {
        if self.pending.has_former_copies {
            self.flush().await?;
        }
        let tx = self.tx;
        let objects = entries.iter().filter(|entry| !entry.is_collection());
        let former = replica::of_former(tx, objects.map(|entry| (entry.sp, entry.id)).collect());
        let current = entries.iter().filter_map(|entry| Some((entry.sp, entry.version()?)));
        let (former, ()) = futures::try_join!(former, self.load_replicas(current.collect()))?;
        let mut of_entry: HashMap<(i64, u64), BTreeSet<VersionId>> = HashMap::new();
        for row in former {
            of_entry.entry((row.sp, row.entry)).or_default().insert(row.replica.version);
            self.replicas.remove(&(row.sp, row.replica.version));
            self.discard(row);
        }
        let mut versions = Vec::with_capacity(entries.len());
        for entry in entries {
            self.take_away(entry);
            let mut had = Vec::new();
            if let Some(content) = &entry.content {
                had.push(content.version);
                self.retire(entry.sp, entry.id, content, entry.modified).await?;
            }
            had.extend(of_entry.remove(&(entry.sp, entry.id)).unwrap_or_default());
            versions.push(had);
        }
        Ok(versions)
    }

    /// Adds a copy.
    pub fn add_replica(&mut self, row: ReplicaRow) {
        let version = row.replica.version;
        self.taken.insert((row.st, row.replica.key.clone()), true);
        self.replicas.entry((row.sp, version)).or_default().push(row.clone());
        self.pending.replicas_new.insert((row.sp, version, row.st), row);
    }

    /// Puts a copy in place of what it was.
    pub fn change_replica(&mut self, row: ReplicaRow) {
        let version = row.replica.version;
        let of_version = self.replicas.entry((row.sp, version)).or_default();
        for known in of_version.iter_mut().filter(|known| known.st == row.st) {
            *known = row.clone();
        }
        let key = (row.sp, version, row.st);
        if let Some(new) = self.pending.replicas_new.get_mut(&key) {
            *new = row;
        } else {
            self.pending.replicas_changed.insert(key, row);
        }
    }

    /// Marks all readable copies of a version stale, and leaves them.
    pub async fn make_stale(&mut self, sp: i64, version: VersionId) -> Result<Vec<ReplicaRow>> {
        let mut changed = Vec::new();
        for mut row in self.replicas(sp, version).await? {
            if row.replica.state.may_become(ReplicaState::Stale) && row.replica.state != ReplicaState::Stale {
                row.replica.state = ReplicaState::Stale;
                self.change_replica(row.clone());
                changed.push(row);
            }
        }
        Ok(changed)
    }

    /// Moves a copy from one version to another: the file has new content.
    pub async fn move_replica(&mut self, old: &ReplicaRow, new: ReplicaRow) -> Result<()> {
        let key = (old.sp, old.replica.version, old.st);
        self.pending.replicas_changed.remove(&key);
        if self.pending.replicas_new.remove(&key).is_none() {
            self.pending.replicas_gone.push(key);
        }
        if let Some(of_version) = self.replicas.get_mut(&(old.sp, old.replica.version)) {
            of_version.retain(|row| row.st != old.st);
        }
        self.replicas(new.sp, new.replica.version).await?;
        self.add_replica(new);
        Ok(())
    }

    /// Remembers a version that is not current any more and still has copies.
    pub fn remember_version(&mut self, version: VersionRow) {
        self.pending.has_former_copies = true;
        self.pending.versions.push(version);
    }

    /// Adds an intent.
    pub fn add_intent(&mut self, intent: StoredIntent) {
        let id = intent.row.intent.id;
        let intent = Arc::new(intent);
        self.taken.insert((intent.st, intent.row.intent.key.clone()), true);
        self.intents.insert(id, Some(intent.clone()));
        self.pending.intents_new.insert(id, intent);
    }

    /// Deletes an intent.
    pub fn end_intent(&mut self, id: IntentId) {
        self.intents.insert(id, None);
        if self.pending.intents_new.remove(&id).is_none() {
            self.pending.intents_gone.push(id);
        }
    }

    /// Adds a record to the journal of a space.
    pub fn record<B: Serialize>(
        &mut self,
        sp: i64,
        actor: &str,
        kind: &'static str,
        body: &B,
    ) -> Result<Mark> {
        let body = to_json(body)?;
        let records = self.records.entry(sp).or_default();
        let index = records.len() as u64;
        records.push(NewRecord { actor: actor.to_owned(), kind, v: 1, body });
        Ok(Mark { sp, index: Some(index) })
    }

    /// Returns the end of a space's journal as it is for a change that changes nothing. It may lie behind records of the
    /// same batch.
    pub fn no_record(&self, sp: i64) -> Mark {
        let index = self.records.get(&sp).map(|records| records.len() as u64).unwrap_or_default();
        Mark { sp, index: index.checked_sub(1) }
    }

    /// Notes that a change wrote to a journal itself, so that listeners hear of it.
    pub fn journal_grew(&mut self) {
        self.has_grown = true;
    }

    /// Writes what was decided so far, so that statements see it.
    ///
    /// What gives names, keys and rows free goes before what takes them.
    pub async fn flush(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        let tx = self.tx;
        let (mut new, mut changed, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        for key in pending.entries {
            let Some(slot) = self.entries.get_mut(&key) else { continue };
            match (slot.dirty, slot.row.clone()) {
                (Dirty::New, Some(row)) => new.push(row),
                (Dirty::Changed, Some(row)) => changed.push(row),
                (Dirty::Gone, _) => gone.push(key),
                _ => {}
            }
            // An entry may be named more than once; the first mention writes it.
            slot.dirty = Dirty::Clean;
        }
        let changed: Vec<&EntryRow> = changed.iter().map(Arc::as_ref).collect();
        let new: Vec<&EntryRow> = new.iter().map(Arc::as_ref).collect();
        let replicas_new: Vec<&ReplicaRow> = pending.replicas_new.values().collect();
        let replicas_changed: Vec<&ReplicaRow> = pending.replicas_changed.values().collect();
        let intents: Vec<&StoredIntent> = pending.intents_new.values().map(Arc::as_ref).collect();
        // One round trip: sent in this order, and what has nothing to write is not sent.
        let writes =
            [&entry::WRITES[..], &replica::WRITES, &publish::WRITES, &grant::WRITES, &attribute::WRITES]
                .concat();
        tx.prepare(&writes).await?;
        let gone_too = pending.names_gone.clone();
        let (_, _, _, _, _, updated, ..) = futures::try_join!(
            publish::delete(tx, pending.intents_gone),
            entry::delete(tx, gone),
            replica::delete(tx, pending.replicas_gone),
            grant::remove_of_entries(tx, pending.names_gone),
            attribute::remove_of_entries(tx, gone_too),
            entry::update(tx, &changed),
            entry::insert(tx, &new),
            replica::insert(tx, &replicas_new),
            replica::update(tx, &replicas_changed),
            replica::insert_versions(tx, &pending.versions),
            replica::insert_garbage(tx, &pending.garbage),
            publish::insert(tx, &intents),
        )?;
        if updated != changed.len() as u64 {
            return Err(super::raced("an entry was gone when its change was written"));
        }
        replica::forget_versions(tx, pending.versions_less).await
    }

    /// Numbers and writes the journal. The rows of the spaces are locked here, last of all, in the order of their
    /// numbers, so that numbers are in the order of commits.
    pub async fn write_journal(&mut self) -> Result<Written> {
        let mut written = Written { has_records: self.has_grown, ..Written::default() };
        for (sp, records) in std::mem::take(&mut self.records) {
            let count = records.len() as u64;
            let Some((last, term)) = self.tx.append(sp, &records).await? else {
                return Err(super::raced(
                    "a space was removed or got another home before a change of it was written",
                ));
            };
            let before = last.saturating_sub(count);
            let space = self.space(sp).await?.space.id;
            written.first.insert(sp, Position { space, term, seq: before });
            written.has_records = true;
        }
        for (sp, space) in &self.spaces {
            written.first.entry(*sp).or_insert(space.space.position);
        }
        Ok(written)
    }
}
