//! Loading ahead what the changes of a batch will look at.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use percale_core::ObjectPath;
use percale_core::ids::{EntryId, LeaseId, StoreId, VersionId};

use super::{Batch, Dirty, Slot};
use crate::engine::Tx;
use crate::error::Result;
use crate::model::IntentId;
use crate::rows::Lock;
use crate::rows::entry::EntryRow;
use crate::rows::{entry, grant, lease, publish, replica, site};

/// How the rows of a path are locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PathLock {
    /// The collections above what is at the path.
    pub chain: Lock,
    /// What is at the path.
    pub target: Lock,
}

impl PathLock {
    /// For looking only.
    pub const NONE: Self = Self { chain: Lock::None, target: Lock::None };
    /// For adding something at the path.
    pub const ADD: Self = Self { chain: Lock::Share, target: Lock::Share };
    /// For changing or removing what is at the path.
    pub const CHANGE: Self = Self { chain: Lock::Share, target: Lock::Update };
}

/// What the changes of a batch will look at.
#[derive(Debug, Default)]
pub(crate) struct Wants {
    paths: Vec<(ObjectPath, PathLock, bool)>,
    stores: BTreeSet<StoreId>,
    leases: BTreeSet<LeaseId>,
    intents: BTreeSet<IntentId>,
    keys: Vec<(StoreId, String)>,
}

impl Wants {
    /// A path, and the grants along it unless an administrator asks.
    pub fn path(&mut self, path: &ObjectPath, lock: PathLock, caller: &percale_core::access::Caller) {
        self.paths.push((path.clone(), lock, !caller.is_admin()));
    }

    /// A store.
    pub fn store(&mut self, id: StoreId) {
        self.stores.insert(id);
    }

    /// A lease.
    pub fn lease(&mut self, id: LeaseId) {
        self.leases.insert(id);
    }

    /// An intent with all that its commit looks at.
    pub fn intent(&mut self, id: IntentId) {
        self.intents.insert(id);
    }

    /// Whether a key is taken.
    pub fn key(&mut self, store: StoreId, key: String) {
        self.stores.insert(store);
        self.keys.push((store, key));
    }
}

/// A path on its way down.
struct Descent<'w> {
    sp: i64,
    at: u64,
    names: Vec<&'w str>,
    lock: PathLock,
    wants_grants: bool,
}

impl<T: Tx> Batch<'_, T> {
    /// Loads what is wanted, level by level for all paths together.
    pub async fn load(&mut self, wants: Wants) -> Result<()> {
        let Wants { paths, stores, leases, intents, keys } = wants;
        let spaces: BTreeSet<String> =
            paths.iter().filter_map(|(path, ..)| Some(path.space()?.as_str().to_owned())).collect();
        let spaces: Vec<String> = spaces.into_iter().collect();
        let tx = self.tx;
        let (found_spaces, found_stores, found_leases, found_intents) = futures::try_join!(
            site::spaces_by_name(tx, spaces.clone()),
            site::stores_by_id(tx, stores.iter().copied().collect()),
            lease::by_ids(tx, leases.iter().copied().collect(), Lock::Share),
            publish::by_ids(tx, intents.iter().copied().collect(), Lock::Update),
        )?;
        self.learn_spaces(spaces, found_spaces);
        self.stores.extend(stores.into_iter().map(|id| (id, None)));
        self.stores.extend(found_stores.into_iter().map(|store| (store.store.id, Some(Arc::new(store)))));
        self.leases.extend(leases.into_iter().map(|id| (id, None)));
        self.leases.extend(found_leases.into_iter().map(|lease| (lease.id, Some(Arc::new(lease)))));
        self.intents.extend(intents.into_iter().map(|id| (id, None)));
        let found_intents =
            found_intents.into_iter().map(|intent| (intent.row.intent.id, Some(Arc::new(intent))));
        self.intents.extend(found_intents);
        self.load_of_intents().await?;
        let mut wanted_keys: BTreeSet<(i64, String)> = BTreeSet::new();
        for (store, key) in keys {
            if let Some(Some(store)) = self.stores.get(&store) {
                wanted_keys.insert((store.st, key));
            }
        }
        self.load_paths(&paths, wanted_keys).await
    }

    /// Loads what the commits of the loaded intents look at.
    async fn load_of_intents(&mut self) -> Result<()> {
        let intents: Vec<_> = self.intents.values().flatten().cloned().collect();
        if intents.is_empty() {
            return Ok(());
        }
        let mut parents: BTreeSet<(i64, u64)> = BTreeSet::new();
        let mut targets: BTreeSet<(i64, u64, String)> = BTreeSet::new();
        let mut bases: BTreeSet<(i64, VersionId)> = BTreeSet::new();
        let mut stores: BTreeSet<StoreId> = BTreeSet::new();
        let mut leases: BTreeSet<LeaseId> = BTreeSet::new();
        let mut spaces: BTreeSet<i64> = BTreeSet::new();
        for intent in &intents {
            let row = &intent.row;
            parents.insert((intent.sp, row.parent.0));
            targets.insert((intent.sp, row.parent.0, row.name.clone()));
            bases.extend(row.intent.base.map(|base| (intent.sp, base)));
            spaces.insert(intent.sp);
            if !self.stores.contains_key(&row.intent.store) {
                stores.insert(row.intent.store);
            }
            if !self.leases.contains_key(&row.lease) {
                leases.insert(row.lease);
            }
        }
        spaces.retain(|sp| !self.spaces.contains_key(sp));
        let tx = self.tx;
        let parents: Vec<_> = parents.into_iter().collect();
        let targets: Vec<_> = targets.into_iter().collect();
        // One round trip, in this order: the lease before the entries, as everywhere, and copies after the objects' rows
        // are locked. The collections are locked, those above them are only named.
        tx.prepare(&[&lease::LOOKS[..], &entry::LOOKS, &replica::LOOKS].concat()).await?;
        let (found_spaces, found_stores, found_leases, ancestors, locked, found, replicas) = futures::try_join!(
            site::spaces_by_sp(tx, spaces.into_iter().collect()),
            site::stores_by_id(tx, stores.into_iter().collect()),
            lease::by_ids(tx, leases.iter().copied().collect(), Lock::Share),
            entry::with_ancestors(tx, parents.clone()),
            entry::by_ids(tx, parents.clone(), Lock::Share),
            entry::by_names(tx, targets.clone(), Lock::Update),
            replica::of_versions(tx, bases.iter().copied().collect()),
        )?;
        self.learn_spaces(Vec::new(), found_spaces);
        self.stores.extend(found_stores.into_iter().map(|store| (store.store.id, Some(Arc::new(store)))));
        self.leases.extend(leases.into_iter().map(|id| (id, None)));
        self.leases.extend(found_leases.into_iter().map(|lease| (lease.id, Some(Arc::new(lease)))));
        self.learn_all(ancestors, Lock::None)?;
        self.learn_ids(&parents, locked, Lock::Share)?;
        self.learn_names(targets, found, Lock::Update)?;
        for base in bases {
            self.replicas.entry(base).or_default();
        }
        for replica in replicas {
            self.replicas.entry((replica.sp, replica.replica.version)).or_default().push(replica);
        }
        Ok(())
    }

    /// Loads what is on paths, then the grants there, and which keys are taken.
    async fn load_paths(
        &mut self,
        paths: &[(ObjectPath, PathLock, bool)],
        wanted_keys: BTreeSet<(i64, String)>,
    ) -> Result<()> {
        let mut descents = Vec::with_capacity(paths.len());
        for (path, lock, wants_grants) in paths {
            let space =
                path.space().and_then(|space| self.space_names.get(space.as_str()).copied().flatten());
            let Some(sp) = space else { continue };
            let names: Vec<&str> = path.within_space().collect();
            let (at, lock, wants_grants) = (EntryId::ROOT.0, *lock, *wants_grants);
            descents.push(Descent { sp, at, names, lock, wants_grants });
        }
        let mut on_the_way: HashSet<(i64, u64)> = HashSet::new();
        let mut roots: HashMap<(i64, u64), Lock> = HashMap::new();
        for descent in &descents {
            let lock = if descent.names.is_empty() { descent.lock.target } else { descent.lock.chain };
            let strongest = roots.entry((descent.sp, descent.at)).or_insert(lock);
            *strongest = lock.max(*strongest);
            if descent.wants_grants {
                on_the_way.insert((descent.sp, descent.at));
            }
        }
        for lock in [Lock::Update, Lock::Share, Lock::None] {
            let keys: Vec<_> = roots
                .iter()
                .filter(|(key, of)| **of == lock && self.is_news(key, lock))
                .map(|(key, _)| *key)
                .collect();
            let found = entry::by_ids(self.tx, keys.clone(), lock).await?;
            self.learn_ids(&keys, found, lock)?;
        }
        let mut depth = 0;
        while descents.iter().any(|descent| depth < descent.names.len()) {
            self.load_level(&descents, depth).await?;
            descents.retain_mut(|descent| {
                let Some(name) = descent.names.get(depth) else { return false };
                let names = self.names.get(&(descent.sp, descent.at));
                let Some(Some(id)) = names.and_then(|names| names.get(*name)) else { return false };
                descent.at = *id;
                if descent.wants_grants {
                    on_the_way.insert((descent.sp, *id));
                }
                true
            });
            depth += 1;
        }
        on_the_way.retain(|key| !self.grants.contains_key(key));
        let keys: Vec<_> = on_the_way.into_iter().collect();
        let mut by_entry: HashMap<(i64, u64), Vec<_>> = keys.iter().map(|key| (*key, Vec::new())).collect();
        let (grants, taken) = futures::try_join!(
            grant::of_entries(self.tx, keys),
            publish::taken(self.tx, wanted_keys.iter().cloned().collect()),
        )?;
        let taken: HashSet<_> = taken.into_iter().collect();
        self.taken.extend(wanted_keys.into_iter().map(|key| {
            let is_taken = taken.contains(&key);
            (key, is_taken)
        }));
        for grant in grants {
            by_entry.entry((grant.sp, grant.entry)).or_default().push(grant);
        }
        self.grants.extend(by_entry.into_iter().map(|(key, grants)| (key, grants.into())));
        Ok(())
    }

    async fn load_level(&mut self, descents: &[Descent<'_>], depth: usize) -> Result<()> {
        let mut wanted: HashMap<(i64, u64, &str), Lock> = HashMap::new();
        for descent in descents {
            let Some(name) = descent.names.get(depth) else { continue };
            let is_last = depth + 1 == descent.names.len();
            let lock = if is_last { descent.lock.target } else { descent.lock.chain };
            let strongest = wanted.entry((descent.sp, descent.at, name)).or_insert(lock);
            *strongest = lock.max(*strongest);
        }
        for lock in [Lock::Update, Lock::Share, Lock::None] {
            let mut keys = Vec::new();
            for ((sp, parent, name), of) in &wanted {
                let known = self.names.get(&(*sp, *parent)).and_then(|names| names.get(*name));
                let is_news = match known {
                    None => true,
                    Some(None) => false,
                    Some(Some(id)) => self.is_news(&(*sp, *id), lock),
                };
                if *of == lock && is_news {
                    keys.push((*sp, *parent, (*name).to_owned()));
                }
            }
            let found = entry::by_names(self.tx, keys.clone(), lock).await?;
            self.learn_names(keys, found, lock)?;
        }
        Ok(())
    }

    /// Tells whether an entry is not known, or not locked as strongly.
    pub fn is_news(&self, key: &(i64, u64), lock: Lock) -> bool {
        self.entries.get(key).is_none_or(|slot| slot.row.is_some() && slot.lock < lock)
    }

    /// Loads entries by collection and name that are not known, locked for changing.
    pub async fn load_children(&mut self, mut keys: Vec<(i64, u64, String)>) -> Result<()> {
        keys.retain(|(sp, parent, name)| {
            !self.names.get(&(*sp, *parent)).is_some_and(|names| names.contains_key(name))
        });
        let found = entry::by_names(self.tx, keys.clone(), Lock::Update).await?;
        self.learn_names(keys, found, Lock::Update)
    }

    pub fn learn_all(&mut self, found: Vec<EntryRow>, lock: Lock) -> Result<()> {
        for entry in found {
            self.check_unmoved(&entry)?;
            let known = self.entries.get(&(entry.sp, entry.id)).map(|slot| slot.lock);
            self.learn(entry, known.map_or(lock, |known| known.max(lock)));
        }
        Ok(())
    }

    pub fn learn_ids(&mut self, asked: &[(i64, u64)], found: Vec<EntryRow>, lock: Lock) -> Result<()> {
        let there: HashSet<_> = found.iter().map(|entry| (entry.sp, entry.id)).collect();
        for key in asked.iter().filter(|key| !there.contains(*key)) {
            if self.entries.get(key).is_some_and(|slot| slot.row.is_some()) {
                return Err(super::raced("an entry was removed before it was locked"));
            }
            self.entries.insert(*key, Slot { row: None, lock, dirty: Dirty::Clean });
        }
        self.learn_all(found, lock)
    }

    fn learn_names(
        &mut self,
        asked: Vec<(i64, u64, String)>,
        found: Vec<EntryRow>,
        lock: Lock,
    ) -> Result<()> {
        self.learn_all(found, lock)?;
        for (sp, parent, name) in asked {
            self.names.entry((sp, parent)).or_default().entry(name).or_insert(None);
        }
        Ok(())
    }
}
