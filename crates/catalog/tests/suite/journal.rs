//! The journal rebuilds the namespace.

use std::collections::BTreeMap;

use percale_catalog::*;
use percale_core::access::{Permission, Subject};
use percale_core::ids::{EntryId, StoreId, VersionId};
use percale_core::state::ReplicaState;
use percale_core::tree::RootHash;
use percale_core::{ByteCount, ObjectPath};

use crate::site::{Site, path};

/// An object as a follower knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Object {
    version: VersionId,
    size: ByteCount,
    root: Option<RootHash>,
    replicas: BTreeMap<StoreId, (String, ReplicaState)>,
}

/// A follower: what the records say, and nothing else.
#[derive(Debug, Default)]
pub struct Follower {
    entries: BTreeMap<EntryId, (EntryId, String, Option<Object>)>,
    grants: BTreeMap<(EntryId, String), Permission>,
    unknown: usize,
    next: u64,
}

impl Follower {
    pub fn apply(&mut self, record: &Record) {
        assert_eq!(record.position.seq, self.next + 1, "no gaps");
        self.next = record.position.seq;
        match record.change().unwrap() {
            RecordChange::SpaceCreated(_) => {
                drop(self.entries.insert(EntryId::ROOT, (EntryId(0), String::new(), None)))
            }
            RecordChange::SpaceChanged(_) => {}
            RecordChange::SpaceRemoved => self.entries.clear(),
            RecordChange::EntriesCreated(items) => {
                for item in items {
                    let before = self.entries.insert(item.id, (item.parent, item.name, None));
                    assert!(before.is_none(), "an id is used once");
                }
            }
            RecordChange::ObjectsPublished(items) => items.into_iter().for_each(|item| self.publish(item)),
            RecordChange::EntriesMoved(items) => {
                for item in items {
                    if let Some(replaced) = item.replaced {
                        self.remove(replaced);
                    }
                    let entry = self.entries.get_mut(&item.id).expect("what is moved is there");
                    (entry.0, entry.1) = (item.parent, item.name);
                }
            }
            RecordChange::EntriesRemoved(items) => {
                for item in items {
                    let versions =
                        self.entries[&item.id].2.iter().map(|object| object.version).collect::<Vec<_>>();
                    assert!(item.versions.starts_with(&versions), "the current version first");
                    self.remove(item.id);
                }
            }
            RecordChange::ReplicasChanged(items) => {
                for item in items {
                    let objects = self.entries.values_mut().filter_map(|entry| entry.2.as_mut());
                    for object in objects.filter(|object| object.version == item.version) {
                        object.replicas.insert(item.store, (item.key.clone(), item.state));
                        object.root = object.root.or(item.root);
                    }
                }
            }
            RecordChange::ReplicasRemoved(items) => {
                for item in items {
                    let objects = self.entries.values_mut().filter_map(|entry| entry.2.as_mut());
                    for object in objects.filter(|object| object.version == item.version) {
                        object.replicas.remove(&item.store);
                    }
                }
            }
            RecordChange::GrantsChanged(items) => {
                for item in items {
                    let key = (item.entry, item.subject.to_string());
                    match item.permission {
                        Some(permission) => drop(self.grants.insert(key, permission)),
                        None => drop(self.grants.remove(&key)),
                    }
                }
            }
            _ => self.unknown += 1,
        }
    }

    fn publish(&mut self, item: PublishedItem) {
        let before =
            self.entries.get(&item.id).and_then(|entry| entry.2.as_ref()).map(|object| object.version);
        assert_eq!(before, item.base, "the base is what was current");
        let replicas = [(item.replica.store, (item.replica.key, item.replica.state))].into();
        let object = Object { version: item.version, size: item.size, root: item.root, replicas };
        self.entries.insert(item.id, (item.parent, item.name, Some(object)));
    }

    fn remove(&mut self, id: EntryId) {
        assert!(self.entries.remove(&id).is_some(), "what is removed is there");
        self.grants.retain(|(entry, _), _| *entry != id);
    }

    /// Asserts that the catalog holds what the records say.
    pub async fn assert_same(&self, site: &Site) {
        let mut options = ListOptions::default();
        (options.recursive, options.replicas, options.limit) = (true, true, MAX_LIST);
        let page = site.catalog.list(&site.admin, &path("/lab"), options).await.unwrap();
        assert_eq!(page.next, None, "the test looks at one page");
        let mut entries = BTreeMap::from([(EntryId::ROOT, (EntryId(0), String::new(), None))]);
        for Listed { entry, replicas, .. } in page.items {
            let object = entry.content.map(|content| Object {
                version: content.version,
                size: content.size,
                root: content.root,
                replicas: replicas
                    .into_iter()
                    .map(|replica| (replica.store, (replica.key, replica.state)))
                    .collect(),
            });
            entries.insert(entry.id, (entry.parent, entry.name, object));
        }
        assert_eq!(self.entries, entries);
        for ((entry, subject), permission) in &self.grants {
            let at = self.path(*entry);
            let grants = site.catalog.grants(&site.admin, &at).await.unwrap();
            let subject: Subject = subject.parse().unwrap();
            let given = grants.iter().find(|grant| grant.entry == *entry && grant.subject == subject);
            assert_eq!(given.map(|grant| grant.permission), Some(*permission), "{at} {subject}");
        }
        assert_eq!(self.unknown, 0);
    }

    fn path(&self, id: EntryId) -> ObjectPath {
        let mut names = Vec::new();
        let mut at = id;
        while at != EntryId::ROOT {
            names.push(self.entries[&at].1.clone());
            at = self.entries[&at].0;
        }
        names.push("lab".into());
        names.reverse();
        path(&format!("/{}", names.join("/")))
    }

    /// Reads all records of the site's space.
    pub async fn of(site: &Site) -> Self {
        let mut follower = Self::default();
        let mut after = None;
        loop {
            let records = site.catalog.journal(&site.admin, site.space.id, after, 100).await.unwrap();
            let Some(last) = records.last() else { return follower };
            after = Some(last.position);
            records.iter().for_each(|record| follower.apply(record));
        }
    }
}

async fn the_journal_rebuilds_the_namespace(site: Site) {
    site.put_many(&(0..100).map(|n| format!("/lab/{}/{}/{n}", n % 3, n % 4)).collect::<Vec<_>>()).await;
    site.put("/lab/0/0/0", 5).await;
    site.rename("/lab/0", "/lab/1/zero", false).await.unwrap();
    site.rename("/lab/1/1/1", "/lab/2/2/2", true).await.unwrap();
    site.remove("/lab/2/0", true).await.unwrap();
    site.mkdir("/lab/e/f").await;
    let catalog = &site.catalog;
    for permission in [Permission::Read, Permission::Write] {
        catalog.set_grant(&site.admin, &path("/lab/1"), Subject::Anyone, permission).await.unwrap();
        catalog.set_grant(&site.admin, &path("/lab/e"), Subject::Anyone, permission).await.unwrap();
    }
    catalog.remove_grant(&site.admin, &path("/lab/1"), &Subject::Anyone).await.unwrap();
    let version = site.version("/lab/1/zero/0/0").await;
    let report = ReplicaReport {
        space: site.space.id,
        version,
        store: site.store,
        key: None,
        state: ReplicaState::Suspect,
        generation: None,
        root: None,
        is_checked: true,
    };
    catalog.report_replicas(&site.admin, vec![report]).await.pop().unwrap().unwrap();
    while !catalog.remove_some(&site.admin, &path("/lab/2"), 7).await.unwrap().is_done {}
    Follower::of(&site).await.assert_same(&site).await;
    site.assert_sound().await;
}

on_both!(the_journal_rebuilds_the_namespace);
