//! One transaction of several changes.
//!
//! Three phases: what the changes want to look at is loaded in few statements; each change is decided in memory, on
//! what was loaded and what the changes before it did; what they did is written in few statements. What nobody asked
//! for in time is loaded when it is looked at, so loading ahead is only a matter of speed.

mod load;
mod write;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use percale_core::access::{Caller, Permission, decide};
use percale_core::ids::{EntryId, LeaseId, SpaceId, StoreId, VersionId};
use percale_core::{ByteCount, ObjectPath, Position, Timestamp};

pub(crate) use load::{PathLock, Wants};

use crate::access::through;
use crate::engine::Tx;
use crate::error::{Error, ErrorKind, Fault, Result, missing};
use crate::model::{IntentId, Lease, Space, SpaceState};
use crate::rows::Lock;
use crate::rows::entry::EntryRow;
use crate::rows::grant::GrantRow;
use crate::rows::journal::NewRecord;
use crate::rows::publish::StoredIntent;
use crate::rows::replica::{GarbageRow, ReplicaRow, VersionRow};
use crate::rows::site::{SpaceRow, StoreRow};

/// How many ids a server takes from a space at once.
const ID_BLOCK: u64 = 1000;

/// Ids that were taken and not used yet, by space: in which term, the next and the end.
#[derive(Debug, Default)]
pub(crate) struct IdCache(HashMap<i64, (u32, u64, u64)>);

impl IdCache {
    /// Forgets all: needed where taking ids was undone.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// A place in the journal that has no number yet, or the end of the journal as it was.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    sp: i64,
    index: Option<u64>,
}

/// The numbers that the journal gave.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// By space: the position before the first record of the batch.
    first: HashMap<i64, Position>,
    has_records: bool,
}

impl Written {
    /// Returns the position behind a record.
    pub fn position(&self, mark: Mark) -> Position {
        // A mark is only made for a space that the batch has seen.
        let nowhere = Position { space: SpaceId(uuid::Uuid::nil()), term: 0, seq: 0 };
        let before = self.first.get(&mark.sp).copied().unwrap_or(nowhere);
        Position { seq: before.seq + mark.index.map_or(0, |index| index + 1), ..before }
    }

    /// Tells whether any journal grew.
    pub fn has_records(&self) -> bool {
        self.has_records
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dirty {
    Clean,
    New,
    Changed,
    Gone,
}

/// What is known of an entry.
#[derive(Debug, Clone)]
struct Slot {
    row: Option<Arc<EntryRow>>,
    lock: Lock,
    dirty: Dirty,
}

/// A path, as far as it exists.
#[derive(Debug, Clone)]
pub(crate) struct Walk {
    pub space: Arc<SpaceRow>,
    /// The entries on the path that exist, the space's root first.
    pub chain: Vec<Arc<EntryRow>>,
    /// The names behind the last of them.
    pub missing: Vec<String>,
}

impl Walk {
    /// Returns what is at the path.
    pub fn target(&self) -> Option<&Arc<EntryRow>> {
        if self.missing.is_empty() { self.chain.last() } else { None }
    }

    /// Returns what is at the path, which is `path`.
    ///
    /// # Errors
    /// `NotFound`; `NotACollection` or `IsLink` if the path leads through an object or a link.
    pub fn existing(&self, path: &ObjectPath) -> Result<Arc<EntryRow>> {
        match self.target() {
            Some(target) => Ok(target.clone()),
            None if !self.last()?.is_collection() => Err(through(path, self.last()?, self.missing.len())),
            None => Err(Error::new(ErrorKind::NotFound, missing(path))),
        }
    }

    /// Returns the last entry that exists.
    pub fn last(&self) -> Result<&Arc<EntryRow>> {
        self.chain
            .last()
            .ok_or_else(|| Error::corrupt(format!("space {} has no root", self.space.space.name)))
    }
}

/// The changes that were decided and not written yet.
#[derive(Debug, Default)]
struct Pending {
    entries: Vec<(i64, u64)>,
    replicas_new: BTreeMap<(i64, VersionId, i64), ReplicaRow>,
    replicas_changed: BTreeMap<(i64, VersionId, i64), ReplicaRow>,
    replicas_gone: Vec<(i64, VersionId, i64)>,
    versions: Vec<VersionRow>,
    /// Whether one of `versions` has copies that were not made garbage.
    has_former_copies: bool,
    garbage: Vec<GarbageRow>,
    /// Versions that lost a copy of which no garbage was made: nothing may be left of them.
    versions_less: Vec<(i64, VersionId)>,
    intents_new: BTreeMap<IntentId, Arc<StoredIntent>>,
    intents_gone: Vec<IntentId>,
    /// Entries whose grants and attributes go.
    names_gone: Vec<(i64, u64)>,
}

/// A transaction with what it has seen and what it is about to write.
pub(crate) struct Batch<'a, T: Tx> {
    /// The transaction. Changes that write through it directly must not touch what this batch keeps in memory.
    pub tx: &'a T,
    ids: &'a mut IdCache,
    space_names: HashMap<String, Option<i64>>,
    spaces: HashMap<i64, Arc<SpaceRow>>,
    stores: HashMap<StoreId, Option<Arc<StoreRow>>>,
    leases: HashMap<LeaseId, Option<Arc<Lease>>>,
    intents: HashMap<IntentId, Option<Arc<StoredIntent>>>,
    entries: HashMap<(i64, u64), Slot>,
    names: HashMap<(i64, u64), HashMap<String, Option<u64>>>,
    grants: HashMap<(i64, u64), Arc<[GrantRow]>>,
    replicas: HashMap<(i64, VersionId), Vec<ReplicaRow>>,
    taken: HashMap<(i64, String), bool>,
    /// Bytes that spaces with a quota have, with what this batch adds.
    used: HashMap<i64, u64>,
    pending: Pending,
    records: BTreeMap<i64, Vec<NewRecord>>,
    has_grown: bool,
}

impl<'a, T: Tx> Batch<'a, T> {
    /// Begins with nothing known.
    pub fn new(tx: &'a T, ids: &'a mut IdCache) -> Self {
        Self {
            tx,
            ids,
            space_names: HashMap::new(),
            spaces: HashMap::new(),
            stores: HashMap::new(),
            leases: HashMap::new(),
            intents: HashMap::new(),
            entries: HashMap::new(),
            names: HashMap::new(),
            grants: HashMap::new(),
            replicas: HashMap::new(),
            taken: HashMap::new(),
            used: HashMap::new(),
            pending: Pending::default(),
            records: BTreeMap::new(),
            has_grown: false,
        }
    }

    /// Returns the database's time at the beginning of the transaction.
    pub fn now(&self) -> Timestamp {
        self.tx.now()
    }

    /// Returns an id of a space that was never used.
    pub async fn next_id(&mut self, sp: i64) -> Result<u64> {
        let now = self.space(sp).await?.space.position.term;
        let (term, next, end) = self.ids.0.get(&sp).copied().unwrap_or_default();
        // A space that was away goes on behind the ids that its home gave meanwhile.
        let (next, end) = match term == now && next < end {
            true => (next, end),
            false => {
                let first = self.tx.take_ids(sp, ID_BLOCK).await?;
                (first, first + ID_BLOCK)
            }
        };
        self.ids.0.insert(sp, (now, next + 1, end));
        Ok(next)
    }

    /// Checks that a space may have so many bytes in place of those of the version that an object has.
    ///
    /// What the same batch removes gives room for the next one only, and servers that write at the same moment do not see each other's
    /// bytes: a quota keeps a space from growing, not to the byte.
    ///
    /// # Errors
    /// `QuotaExceeded`
    pub async fn require_quota(
        &mut self,
        space: &SpaceRow,
        path: &str,
        object: Option<&EntryRow>,
        size: ByteCount,
    ) -> Result<()> {
        if space.space.quota.is_none() {
            return Ok(());
        }
        let used = match self.used.get(&space.sp) {
            Some(used) => *used,
            None => {
                let found = crate::rows::used::of_spaces(self.tx, vec![space.space.id]).await?;
                let used = found.get(&space.space.id).map_or(0, |used| used.0);
                self.used.insert(space.sp, used);
                used
            }
        };
        check_quota(&space.space, ByteCount(used), path, object, size)
    }

    /// Notes that an object gets a version of this size in place of the one that it has.
    pub fn grew(&mut self, sp: i64, object: Option<&EntryRow>, size: ByteCount) {
        if let Some(used) = self.used.get_mut(&sp) {
            *used = used.saturating_sub(size_of(object).0).saturating_add(size.0);
        }
    }

    /// Walks a path and decides whether the caller has a permission on it, before anything is said about what is there.
    pub async fn enter(
        &mut self,
        caller: &Caller,
        permission: Permission,
        path: &ObjectPath,
        lock: PathLock,
    ) -> Result<Walk> {
        let Some(walk) = self.walk(path, lock).await? else {
            return Err(no_space(caller, permission, path));
        };
        if !caller.is_admin() {
            let mut granted = Vec::new();
            for entry in &walk.chain {
                granted.push(self.grants_on(entry.sp, entry.id).await?);
            }
            let granted = granted.iter().flat_map(|grants| grants.iter());
            decide(caller, permission, path, granted.map(|grant| (&grant.subject, grant.permission)))?;
        }
        if permission != Permission::Read {
            walk.space.require_home()?;
        }
        if permission == Permission::Write && walk.space.space.state != SpaceState::Active {
            let message = format!("cannot change {path}: the space {} is read-only", walk.space.space.name);
            return Err(Error::new(ErrorKind::ReadOnly, message));
        }
        Ok(walk)
    }

    /// Walks a path as far as it exists. Returns nothing if the space does not.
    pub async fn walk(&mut self, path: &ObjectPath, lock: PathLock) -> Result<Option<Walk>> {
        let Some(space) = path.space() else {
            return Err(Error::invalid("'/' is the list of spaces, not a collection"));
        };
        let Some(space) = self.space_named(space.as_str()).await? else { return Ok(None) };
        let sp = space.sp;
        let names: Vec<&str> = path.within_space().collect();
        let first = if names.is_empty() { lock.target } else { lock.chain };
        let mut chain = Vec::with_capacity(names.len() + 1);
        chain.extend(self.entry(sp, EntryId::ROOT.0, first).await?);
        for (depth, name) in names.iter().enumerate() {
            let lock = if depth + 1 == names.len() { lock.target } else { lock.chain };
            let found = match chain.last() {
                Some(parent) if parent.is_collection() => self.child(sp, parent.id, name, lock).await?,
                _ => None,
            };
            let Some(found) = found else {
                let missing = names[depth..].iter().map(|name| (*name).to_owned()).collect();
                return Ok(Some(Walk { space, chain, missing }));
            };
            chain.push(found);
        }
        Ok(Some(Walk { space, chain, missing: Vec::new() }))
    }

    /// Returns the path of an entry.
    pub async fn path_of(&mut self, sp: i64, id: u64) -> Result<ObjectPath> {
        let mut names = Vec::new();
        let mut at = id;
        let mut seen = HashSet::new();
        while at != EntryId::ROOT.0 {
            let known = self.entries.get(&(sp, at)).and_then(|slot| slot.row.clone());
            let entry = match known {
                Some(entry) => Some(entry),
                None => self.entry(sp, at, Lock::None).await?,
            };
            let entry = entry.filter(|_| seen.insert(at)).ok_or_else(|| {
                Error::corrupt(format!("entry {id} is not connected to the root of its space"))
            })?;
            at = entry.parent;
            names.push(entry.name.clone());
        }
        let space = self.space(sp).await?;
        let mut text = format!("/{}", space.space.name);
        for name in names.iter().rev() {
            text.push('/');
            text.push_str(name);
        }
        // Longer than a path may be, after a rename above it: the entry is there but cannot be named.
        ObjectPath::parse(&text).map_err(|error| Error::invalid("path is too long").with_source(error))
    }

    /// Returns an entry by id.
    pub async fn entry(&mut self, sp: i64, id: u64, lock: Lock) -> Result<Option<Arc<EntryRow>>> {
        if let Some(slot) = self.entries.get(&(sp, id))
            && (slot.dirty != Dirty::Clean || slot.lock >= lock || slot.row.is_none())
        {
            return Ok(slot.row.clone());
        }
        let found = crate::rows::entry::by_ids(self.tx, vec![(sp, id)], lock).await?.pop();
        if let Some(known) = self.entries.get(&(sp, id)) {
            // What was decided on the row that was not locked may be wrong now.
            if known.row.as_deref() != found.as_ref() {
                return Err(raced("an entry changed before it was locked"));
            }
        }
        match found {
            Some(entry) => Ok(Some(self.learn(entry, lock))),
            None => {
                self.entries.insert((sp, id), Slot { row: None, lock, dirty: Dirty::Clean });
                Ok(None)
            }
        }
    }

    /// Returns an entry of a collection by name.
    pub async fn child(
        &mut self,
        sp: i64,
        parent: u64,
        name: &str,
        lock: Lock,
    ) -> Result<Option<Arc<EntryRow>>> {
        if let Some(known) = self.names.get(&(sp, parent)).and_then(|names| names.get(name)) {
            return match *known {
                Some(id) => self.entry(sp, id, lock).await,
                None => Ok(None),
            };
        }
        let keys = vec![(sp, parent, name.to_owned())];
        match crate::rows::entry::by_names(self.tx, keys, lock).await?.pop() {
            Some(entry) => {
                self.check_unmoved(&entry)?;
                Ok(Some(self.learn(entry, lock)))
            }
            None => {
                self.names.entry((sp, parent)).or_default().insert(name.to_owned(), None);
                Ok(None)
            }
        }
    }

    /// An entry found under a name must not be one that the batch knows elsewhere: then it was moved in between.
    fn check_unmoved(&self, found: &EntryRow) -> Result<()> {
        match self.entries.get(&(found.sp, found.id)) {
            Some(slot) if slot.row.as_deref() != Some(found) => {
                Err(raced("an entry moved while it was looked up"))
            }
            _ => Ok(()),
        }
    }

    /// Keeps an entry that was loaded.
    fn learn(&mut self, entry: EntryRow, lock: Lock) -> Arc<EntryRow> {
        let names = self.names.entry((entry.sp, entry.parent)).or_default();
        names.insert(entry.name.clone(), Some(entry.id));
        let entry = Arc::new(entry);
        let slot = Slot { row: Some(entry.clone()), lock, dirty: Dirty::Clean };
        self.entries.insert((entry.sp, entry.id), slot);
        entry
    }

    /// Returns the grants given on an entry.
    pub async fn grants_on(&mut self, sp: i64, id: u64) -> Result<Arc<[GrantRow]>> {
        if let Some(grants) = self.grants.get(&(sp, id)) {
            return Ok(grants.clone());
        }
        let grants: Arc<[GrantRow]> = crate::rows::grant::of_entries(self.tx, vec![(sp, id)]).await?.into();
        self.grants.insert((sp, id), grants.clone());
        Ok(grants)
    }

    /// Returns a space by name.
    pub async fn space_named(&mut self, name: &str) -> Result<Option<Arc<SpaceRow>>> {
        if !self.space_names.contains_key(name) {
            let found = crate::rows::site::spaces_by_name(self.tx, vec![name.to_owned()]).await?;
            self.learn_spaces(vec![name.to_owned()], found);
        }
        let sp = self.space_names.get(name).copied().flatten();
        Ok(sp.and_then(|sp| self.spaces.get(&sp)).cloned())
    }

    /// Returns a space by its number.
    pub async fn space(&mut self, sp: i64) -> Result<Arc<SpaceRow>> {
        if let Some(space) = self.spaces.get(&sp) {
            return Ok(space.clone());
        }
        let found = crate::rows::site::spaces_by_sp(self.tx, vec![sp]).await?;
        self.learn_spaces(Vec::new(), found);
        self.spaces.get(&sp).cloned().ok_or_else(|| Error::corrupt(format!("space number {sp} is missing")))
    }

    /// Returns a space by its id, also a removed one.
    pub async fn space_by_id(&mut self, id: SpaceId) -> Result<Option<Arc<SpaceRow>>> {
        // A batch has few spaces.
        if let Some(space) = self.spaces.values().find(|row| row.space.id == id) {
            return Ok(Some(space.clone()));
        }
        let found = crate::rows::site::space_by_id(self.tx, id).await?;
        let sp = found.as_ref().map(|row| row.sp);
        self.learn_spaces(Vec::new(), found.into_iter().collect());
        Ok(sp.and_then(|sp| self.spaces.get(&sp)).cloned())
    }

    fn learn_spaces(&mut self, asked: Vec<String>, found: Vec<SpaceRow>) {
        for name in asked {
            self.space_names.entry(name).or_insert(None);
        }
        for space in found {
            if !space.is_removed {
                self.space_names.insert(space.space.name.as_str().to_owned(), Some(space.sp));
            }
            self.spaces.insert(space.sp, Arc::new(space));
        }
    }

    /// Returns a store. # Errors: `NotFound`.
    pub async fn store(&mut self, id: StoreId) -> Result<Arc<StoreRow>> {
        if !self.stores.contains_key(&id) {
            let found = crate::rows::site::stores_by_id(self.tx, vec![id]).await?.pop();
            self.stores.insert(id, found.map(Arc::new));
        }
        self.stores
            .get(&id)
            .cloned()
            .flatten()
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no store {id}")))
    }

    /// Returns a lease, locked so that nobody takes it over before the transaction ends.
    pub async fn lease(&mut self, id: LeaseId) -> Result<Option<Arc<Lease>>> {
        if !self.leases.contains_key(&id) {
            let found = crate::rows::lease::by_ids(self.tx, vec![id], Lock::Share).await?.pop();
            self.leases.insert(id, found.map(Arc::new));
        }
        Ok(self.leases.get(&id).cloned().flatten())
    }

    /// Forgets what is known of a lease, since it is being changed.
    pub fn forget_lease(&mut self, id: LeaseId) {
        self.leases.remove(&id);
    }

    /// Returns an intent, locked.
    pub async fn intent(&mut self, id: IntentId) -> Result<Option<Arc<StoredIntent>>> {
        if !self.intents.contains_key(&id) {
            let found = crate::rows::publish::by_ids(self.tx, vec![id], Lock::Update).await?.pop();
            self.intents.insert(id, found.map(Arc::new));
        }
        Ok(self.intents.get(&id).cloned().flatten())
    }

    /// Returns the copies of a version.
    pub async fn replicas(&mut self, sp: i64, version: VersionId) -> Result<Vec<ReplicaRow>> {
        if !self.replicas.contains_key(&(sp, version)) {
            let found = crate::rows::replica::of_versions(self.tx, vec![(sp, version)]).await?;
            self.replicas.insert((sp, version), found);
        }
        Ok(self.replicas.get(&(sp, version)).cloned().unwrap_or_default())
    }

    /// Loads entries by id that are not known, or not locked as strongly.
    pub async fn load_entries(&mut self, keys: &[(i64, u64)], lock: Lock) -> Result<()> {
        let keys: Vec<_> = keys.iter().filter(|key| self.is_news(key, lock)).copied().collect();
        let found = crate::rows::entry::by_ids(self.tx, keys.clone(), lock).await?;
        self.learn_ids(&keys, found, lock)
    }

    /// Keeps an entry that a statement of a change found and locked.
    pub fn learn_locked(&mut self, entry: EntryRow) -> Result<Arc<EntryRow>> {
        self.check_unmoved(&entry)?;
        Ok(self.learn(entry, Lock::Update))
    }

    /// Loads the copies of versions that are not known.
    pub async fn load_replicas(&mut self, mut keys: Vec<(i64, VersionId)>) -> Result<()> {
        keys.retain(|key| !self.replicas.contains_key(key));
        let found = crate::rows::replica::of_versions(self.tx, keys.clone()).await?;
        for key in keys {
            self.replicas.insert(key, Vec::new());
        }
        for row in found {
            self.replicas.entry((row.sp, row.replica.version)).or_default().push(row);
        }
        Ok(())
    }

    /// Reads the copies of a version again, unless the batch itself changed them.
    pub fn reload_replicas(&mut self, sp: i64, version: VersionId) {
        let of_version = |key: &(i64, VersionId, i64)| key.0 == sp && key.1 == version;
        let pending = &self.pending;
        let is_dirty = pending.replicas_new.keys().any(of_version)
            || pending.replicas_changed.keys().any(of_version)
            || pending.replicas_gone.iter().any(of_version);
        if !is_dirty {
            self.replicas.remove(&(sp, version));
        }
    }

    /// Forgets whether a key is taken, since it may be free now.
    pub fn forget_key(&mut self, st: i64, key: &str) {
        self.taken.remove(&(st, key.to_owned()));
    }

    /// Tells whether anything has a key on a store: a copy, an intent, garbage or an arrival.
    pub async fn is_taken(&mut self, st: i64, key: &str) -> Result<bool> {
        let slot = (st, key.to_owned());
        if let Some(taken) = self.taken.get(&slot) {
            return Ok(*taken);
        }
        let taken = !crate::rows::publish::taken(self.tx, vec![slot.clone()]).await?.is_empty();
        self.taken.insert(slot, taken);
        Ok(taken)
    }
}

/// The error of a change that must be decided again, since what it was decided on has changed.
pub(crate) fn raced(message: &str) -> Error {
    Error::new(ErrorKind::Conflict { version: None }, message).with_fault(Fault::Race)
}

fn size_of(object: Option<&EntryRow>) -> ByteCount {
    object.and_then(|object| object.content.as_ref()).map_or(ByteCount::ZERO, |content| content.size)
}

/// Checks that a space which has so many bytes may have those of a version of this size, in place of the one that the object has. One that
/// is no larger always may.
///
/// # Errors
/// `QuotaExceeded`
pub(crate) fn check_quota(
    space: &Space,
    used: ByteCount,
    path: &str,
    object: Option<&EntryRow>,
    size: ByteCount,
) -> Result<()> {
    let before = size_of(object);
    match space.quota {
        Some(quota) if size > before && used.0.saturating_sub(before.0).saturating_add(size.0) > quota.0 => {
            let message = format!(
                "cannot write {path}, which has {size}: the space '{}' may have {quota} and has {used}",
                space.name
            );
            Err(Error::new(ErrorKind::QuotaExceeded, message))
        }
        _ => Ok(()),
    }
}

/// The error for a path in a space that does not exist: for those who may not know all spaces it is the same as for a
/// space that they may not read.
pub(crate) fn no_space(caller: &Caller, permission: Permission, path: &ObjectPath) -> Error {
    match decide(caller, permission, path, []) {
        Err(denied) => denied.into(),
        Ok(()) => {
            let space = path.space().map(|space| space.to_string()).unwrap_or_default();
            Error::new(ErrorKind::SpaceNotFound, format!("there is no space '{space}'"))
        }
    }
}
