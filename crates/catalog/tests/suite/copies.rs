//! Copies that come and go at the word of the sites that hold them.

use percale_catalog::*;
use percale_core::ids::{SiteId, StoreId, VersionId};
use percale_core::state::ReplicaState;
use percale_core::{ByteCount, ErrorCode, Timestamp};

use crate::site::{HOUR, Site, arrival_made, kind, new_store, path, root};

/// Another site with a store of its own.
struct Other {
    id: SiteId,
    store: StoreId,
}

impl Other {
    async fn of(site: &Site, name: &str) -> Self {
        let id = SiteId::new();
        Self { id, store: site.add_foreign_store(name, id).await }
    }

    /// A copy of a version that [`Site::put`] made with this size.
    fn copy(&self, site: &Site, version: VersionId, size: u64) -> NewCopy {
        NewCopy {
            id: ArrivalId::new(),
            space: site.space.id,
            version,
            store: self.store,
            key: format!("copy of/{version}/{}", uuid::Uuid::new_v4()),
            generation: None,
            root: root(size),
        }
    }

    async fn add(&self, site: &Site, copy: &NewCopy) -> Result<CopyAnswer> {
        site.catalog.add_copies(Some(self.id), &site.admin, vec![copy.clone()]).await.pop().unwrap()
    }

    async fn evict(&self, site: &Site, version: VersionId) -> Result<EvictAnswer> {
        remove(&site.catalog, site, Some(self.id), version, self.store).await
    }
}

async fn remove(
    catalog: &Catalog,
    site: &Site,
    of: Option<SiteId>,
    version: VersionId,
    store: StoreId,
) -> Result<EvictAnswer> {
    let copy = CopyId { space: site.space.id, version, store };
    catalog.remove_copies(of, &site.admin, vec![copy]).await.pop().unwrap()
}

/// The stores and states of the copies of what is at a path.
async fn copies(site: &Site, at: &str) -> Vec<(StoreId, ReplicaState)> {
    let open = site.catalog.open_object(&site.admin, &path(at), None).await.unwrap();
    open.replicas.into_iter().map(|copy| (copy.store, copy.state)).collect()
}

async fn set_state(site: &Site, version: VersionId, store: StoreId, state: ReplicaState) {
    site.tamper(&format!(
        "UPDATE replica SET state = '{state}' WHERE version = {version} \
         AND st = (SELECT st FROM store WHERE id = {})",
        site.uuid(store.0)
    ))
    .await;
}

async fn last_change(site: &Site) -> RecordChange {
    let records = site.catalog.journal(&site.admin, site.space.id, None, 1000).await.unwrap();
    records.last().unwrap().change().unwrap()
}

fn position(answer: Result<CopyAnswer>) -> percale_core::Position {
    match answer.unwrap() {
        CopyAnswer::Added { position } => position,
        answer => panic!("{answer:?}"),
    }
}

async fn a_copy_is_added_once(site: Site) {
    let other = Other::of(&site, "theirs").await;
    let x = site.put("/lab/x", 1).await;
    let copy = other.copy(&site, x.version, 1);
    let at = position(other.add(&site, &copy).await);
    assert_eq!(at, site.catalog.position(site.space.id).await.unwrap());
    let RecordChange::ReplicasChanged(items) = last_change(&site).await else {
        panic!("no copy in the journal")
    };
    assert_eq!((items[0].store, items[0].state, &items[0].key), (other.store, ReplicaState::Good, &copy.key));
    site.put("/lab/y", 1).await;
    assert_eq!(position(other.add(&site, &copy).await), at, "the same answer");
    assert_eq!(
        copies(&site, "/lab/x").await,
        [(site.store, ReplicaState::Good), (other.store, ReplicaState::Good)]
    );

    let second = other.copy(&site, x.version, 1);
    assert_eq!(other.add(&site, &second).await.unwrap(), CopyAnswer::Known { key: copy.key.clone() });
    let renamed = NewCopy { id: ArrivalId::new(), ..copy.clone() };
    assert!(
        position(other.add(&site, &renamed).await).seq > at.seq,
        "another arrival at its key is that copy"
    );
    let both = vec![other.copy(&site, site.version("/lab/y").await, 1); 2];
    let twice = site.catalog.add_copies(Some(other.id), &site.admin, both).await;
    assert_eq!(position(twice[0].clone()), position(twice[1].clone()));
    site.assert_sound().await;
}

async fn a_version_that_is_gone_needs_no_copy(site: Site) {
    let other = Other::of(&site, "theirs").await;
    let x = site.put("/lab/x", 1).await;
    let newer = site.put("/lab/x", 2).await;
    assert_eq!(other.add(&site, &other.copy(&site, x.version, 1)).await.unwrap(), CopyAnswer::Gone);
    site.remove("/lab/x", false).await.unwrap();
    assert_eq!(other.add(&site, &other.copy(&site, newer.version, 2)).await.unwrap(), CopyAnswer::Gone);
    site.collect().await;
    site.catalog.remove_space(&site.admin, &site.space.name).await.unwrap();
    assert_eq!(other.add(&site, &other.copy(&site, newer.version, 2)).await.unwrap(), CopyAnswer::Gone);
    assert_eq!(other.evict(&site, newer.version).await.unwrap(), EvictAnswer::Gone);
    let nowhere = NewCopy { space: percale_core::ids::SpaceId::new(), ..other.copy(&site, x.version, 1) };
    assert_eq!(kind(other.add(&site, &nowhere).await), ErrorKind::SpaceNotFound);
}

async fn a_site_that_lies_is_refused(site: Site) {
    let (other, third) = (Other::of(&site, "theirs").await, Other::of(&site, "thirds").await);
    let x = site.put("/lab/x", 1).await;
    let lie = other.copy(&site, x.version, 2);
    let refused = other.add(&site, &lie).await.unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (&ErrorKind::DoesNotFit, ErrorCode::Integrity));
    for store in [site.store, third.store] {
        let foreign = NewCopy { store, ..other.copy(&site, x.version, 1) };
        assert_eq!(kind(other.add(&site, &foreign).await), ErrorKind::NotAllowed);
        let evict = remove(&site.catalog, &site, Some(other.id), x.version, store).await;
        assert_eq!(kind(evict), ErrorKind::NotAllowed);
    }
    let strange = NewCopy { key: "../x".into(), ..other.copy(&site, x.version, 1) };
    assert_eq!(kind(other.add(&site, &strange).await), ErrorKind::InvalidRequest);
    let old = NewCopy { id: arrival_made(Timestamp::EPOCH), ..other.copy(&site, x.version, 1) };
    assert_eq!(kind(other.add(&site, &old).await), ErrorKind::InvalidRequest);
    let y = site.put("/lab/y", 1).await;
    let good = other.copy(&site, x.version, 1);
    position(other.add(&site, &good).await);
    let clash = NewCopy { key: good.key, ..other.copy(&site, y.version, 1) };
    assert!(matches!(kind(other.add(&site, &clash).await), ErrorKind::Conflict { .. }));
    let honest = NewCopy { id: lie.id, store: third.store, ..lie };
    assert_eq!(kind(third.add(&site, &honest).await), ErrorKind::DoesNotFit);
    let home = SiteId::new();
    site.set_home(site.space.id, home).await;
    assert_eq!(kind(other.add(&site, &other.copy(&site, y.version, 1)).await), ErrorKind::Foreign { home });
    assert_eq!(kind(other.evict(&site, x.version).await), ErrorKind::Foreign { home });
}

async fn a_bad_copy_is_replaced(site: Site) {
    let other = Other::of(&site, "theirs").await;
    let x = site.put("/lab/x", 1).await;
    let first = other.copy(&site, x.version, 1);
    position(other.add(&site, &first).await);
    for state in [ReplicaState::Suspect, ReplicaState::Lost] {
        set_state(&site, x.version, other.store, state).await;
        let repaired = other.copy(&site, x.version, 1);
        let before = site.catalog.position(site.space.id).await.unwrap();
        let after = position(other.add(&site, &repaired).await);
        assert_eq!(after.seq, before.seq + 1);
        let open = site.catalog.open_object(&site.admin, &path("/lab/x"), None).await.unwrap();
        let copy = open.replicas.iter().find(|copy| copy.store == other.store).unwrap();
        assert_eq!((copy.state, &copy.key), (ReplicaState::Good, &repaired.key));
    }
    assert!(site.collect().await.is_empty(), "the garbage is at the other site");
    site.assert_sound().await;
}

async fn the_root_of_a_version_is_not_anybodys_to_say(site: Site) {
    let (other, third) = (Other::of(&site, "theirs").await, Other::of(&site, "thirds").await);
    let intent = site.prepare(site.wanted("/lab/x", Condition::New)).await.unwrap();
    let commit = Commit::new(intent.id, ByteCount(1), None);
    let x = site.catalog.commit(vec![commit]).await.pop().unwrap().unwrap().version;
    let early = other.add(&site, &other.copy(&site, x, 1)).await.unwrap_err();
    assert_eq!(early.retry(), Retry::Temporary, "{early}");
    // Now as if its only copy were the other site's.
    site.tamper(&format!(
        "UPDATE replica SET st = (SELECT st FROM store WHERE id = {}) WHERE version = {x}",
        site.uuid(third.store.0)
    ))
    .await;
    assert!(other.add(&site, &other.copy(&site, x, 1)).await.is_err());
    let more = Other { id: third.id, store: site.add_foreign_store("thirds-too", third.id).await };
    position(more.add(&site, &more.copy(&site, x, 1)).await);
    assert_eq!(site.stat("/lab/x").await.unwrap().content.unwrap().root, Some(root(1)));
    let RecordChange::ReplicasChanged(items) = last_change(&site).await else {
        panic!("no copy in the journal")
    };
    assert_eq!(items[0].root, Some(root(1)));
    position(other.add(&site, &other.copy(&site, x, 1)).await);
    let late = Other::of(&site, "late").await;
    assert_eq!(kind(late.add(&site, &late.copy(&site, x, 2)).await), ErrorKind::DoesNotFit);
    site.assert_sound().await;
}

async fn an_own_copy_takes_its_arrivals_place(site: Site) {
    let disk2 = site.catalog.add_store(new_store("disk2", StoreLayout::Managed)).await.unwrap().id;
    let x = site.put("/lab/x", 1).await;
    let reserve = async || {
        let wanted = NewArrival {
            lease: site.lease.id,
            fence: site.lease.fence,
            space: site.space.id,
            store: disk2,
            path: Some(path("/lab/x")),
            version: Some(x.version),
            token: "token".into(),
            identity: None,
            body: ArrivalBody::Copy { size: ByteCount(1), root: root(1) },
        };
        site.catalog.reserve_arrivals(vec![wanted]).await.pop().unwrap().unwrap()
    };
    let arrival = reserve().await;
    let copy = NewCopy {
        id: arrival.id,
        space: site.space.id,
        version: x.version,
        store: disk2,
        key: arrival.key.clone(),
        generation: None,
        root: root(1),
    };
    let add = async |copy: &NewCopy| {
        site.catalog.add_copies(None, &site.admin, vec![copy.clone()]).await.pop().unwrap()
    };
    assert!(matches!(kind(add(&copy).await), ErrorKind::Conflict { .. }), "it is not on disk yet");
    let settle = async |id| {
        let settled = Settled { id, key: None, generation: None };
        site.catalog.settle_arrivals(vec![settled]).await.pop().unwrap().unwrap();
    };
    settle(arrival.id).await;
    position(add(&copy).await);
    assert!(site.catalog.arrivals_of(site.lease.id).await.unwrap().is_empty());
    position(add(&copy).await);
    assert_eq!(copies(&site, "/lab/x").await.len(), 2);
    site.assert_sound().await;

    let second = reserve().await;
    settle(second.id).await;
    let too_many = NewCopy { id: second.id, key: second.key, ..copy.clone() };
    assert_eq!(add(&too_many).await.unwrap(), CopyAnswer::Known { key: copy.key.clone() });
    assert_eq!(site.catalog.arrivals_of(site.lease.id).await.unwrap().len(), 1, "its bytes are still to go");
    let evicted = remove(&site.catalog, &site, None, x.version, disk2).await.unwrap();
    assert!(matches!(evicted, EvictAnswer::Removed { .. }));
    let garbage = site.catalog.garbage(disk2, 10).await.unwrap();
    assert_eq!(garbage.iter().map(|garbage| &garbage.key).collect::<Vec<_>>(), [&copy.key]);
    assert!(matches!(kind(add(&copy).await), ErrorKind::Conflict { .. }), "its bytes are gone");
    site.assert_sound().await;
}

async fn a_copy_that_was_evicted_does_not_come_back(site: Site) {
    let other = Other::of(&site, "theirs").await;
    let x = site.put("/lab/x", 1).await;
    let copy = other.copy(&site, x.version, 1);
    let at = position(other.add(&site, &copy).await);
    let EvictAnswer::Removed { position: evicted } = other.evict(&site, x.version).await.unwrap() else {
        panic!("it was there")
    };
    assert_eq!(evicted.seq, at.seq + 1);
    let removed = ReplicaRemovedItem { version: x.version, store: other.store };
    assert_eq!(last_change(&site).await, RecordChange::ReplicasRemoved(vec![removed]));
    assert_eq!(other.evict(&site, x.version).await.unwrap(), EvictAnswer::Gone);
    assert_eq!(position(other.add(&site, &copy).await), at, "a request that was on its way");
    assert_eq!(copies(&site, "/lab/x").await, [(site.store, ReplicaState::Good)]);
    position(other.add(&site, &other.copy(&site, x.version, 1)).await);
    assert_eq!(copies(&site, "/lab/x").await.len(), 2);
    site.assert_sound().await;
}

async fn the_last_good_copy_stays(site: Site) {
    let (other, third) = (Other::of(&site, "theirs").await, Other::of(&site, "thirds").await);
    let x = site.put("/lab/x", 1).await;
    let own = async || remove(&site.catalog, &site, None, x.version, site.store).await;
    let refused = own().await.unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Conflict { .. }), "{refused}");
    position(other.add(&site, &other.copy(&site, x.version, 1)).await);
    for state in ReplicaState::ALL.iter().filter(|state| **state != ReplicaState::Good) {
        set_state(&site, x.version, other.store, *state).await;
        assert!(own().await.is_err(), "{state} is not good");
    }
    assert!(matches!(other.evict(&site, x.version).await.unwrap(), EvictAnswer::Removed { .. }));

    position(third.add(&site, &third.copy(&site, x.version, 1)).await);
    site.tamper("UPDATE store SET state = 'offline' WHERE name = 'thirds'").await;
    assert!(own().await.is_err(), "its store is away");
    site.tamper("UPDATE store SET state = 'online' WHERE name = 'thirds'").await;
    let mut peer = Peer {
        id: third.id,
        name: "coral".into(),
        key: [7; 32],
        old_key: None,
        key_change: None,
        is_confirmed: true,
        urls: Vec::new(),
        is_dialable: true,
        issuers: Vec::new(),
        state: PeerState::Removed,
        changed: Timestamp::from_micros(1),
        changed_by: third.id,
    };
    site.catalog.merge_peers(vec![peer.clone()]).await.unwrap();
    assert!(own().await.is_err(), "its site was removed from the fabric");
    peer.id = other.id;
    peer.state = PeerState::Active;
    peer.name = "bora".into();
    site.catalog.merge_peers(vec![peer]).await.unwrap();
    position(other.add(&site, &other.copy(&site, x.version, 1)).await);
    assert!(matches!(own().await.unwrap(), EvictAnswer::Removed { .. }));
    assert_eq!(site.collect().await.len(), 1);
    assert_eq!(own().await.unwrap(), EvictAnswer::Gone);
    assert!(other.evict(&site, x.version).await.is_err());
    assert!(matches!(third.evict(&site, x.version).await.unwrap(), EvictAnswer::Removed { .. }));
    site.assert_sound().await;
}

async fn of_two_evictions_at_once_one_copy_is_left(site: Site) {
    let other = Other::of(&site, "theirs").await;
    let second = site.second().await;
    for round in 0..20 {
        let at = format!("/lab/{round}");
        let x = site.put(&at, 1).await;
        position(other.add(&site, &other.copy(&site, x.version, 1)).await);
        let (one, two) = tokio::join!(
            remove(&site.catalog, &site, None, x.version, site.store),
            remove(&second, &site, Some(other.id), x.version, other.store),
        );
        assert_ne!(one.is_ok(), two.is_ok(), "{one:?} {two:?}");
        assert_eq!(copies(&site, &at).await.len(), 1);
    }
    let y = site.put("/lab/y", 1).await;
    position(other.add(&site, &other.copy(&site, y.version, 1)).await);
    let space = site.space.id;
    let disk2 = site.catalog.add_store(new_store("disk2", StoreLayout::Managed)).await.unwrap().id;
    let own = |store| CopyId { space, version: y.version, store };
    let in_one = site
        .catalog
        .remove_copies(None, &site.admin, vec![own(disk2), own(site.store), own(site.store)])
        .await;
    assert_eq!(in_one[0].as_ref().unwrap(), &EvictAnswer::Gone);
    assert!(matches!(in_one[1].as_ref().unwrap(), EvictAnswer::Removed { .. }));
    assert_eq!(in_one[2].as_ref().unwrap(), &EvictAnswer::Gone);
    site.assert_sound().await;
}

async fn answers_about_copies_are_forgotten_in_time(site: Site) {
    let other = Other::of(&site, "theirs").await;
    let x = site.put("/lab/x", 1).await;
    let copy = other.copy(&site, x.version, 1);
    position(other.add(&site, &copy).await);
    let given_up = site.catalog.abandon_publications(other.id, vec![copy.id]).await;
    assert_eq!(kind(given_up), ErrorKind::InvalidRequest, "it is no publication");
    assert_eq!(site.catalog.prune(HOUR).await.unwrap(), 0);
    site.tamper("UPDATE told SET since = 0").await;
    assert_eq!(site.catalog.prune(HOUR).await.unwrap(), 1);
}

on_both!(
    a_copy_is_added_once,
    a_version_that_is_gone_needs_no_copy,
    a_site_that_lies_is_refused,
    a_bad_copy_is_replaced,
    the_root_of_a_version_is_not_anybodys_to_say,
    an_own_copy_takes_its_arrivals_place,
    a_copy_that_was_evicted_does_not_come_back,
    the_last_good_copy_stays,
    of_two_evictions_at_once_one_copy_is_left,
    answers_about_copies_are_forgotten_in_time,
);
