//! Copies that arrive on own stores, at the site that owns the store.

use std::time::Duration;

use percale_catalog::*;
use percale_core::ids::{Fence, LeaseId, SiteId, SpaceId, VersionId};
use percale_core::{ByteCount, Position};
use percale_testkit::wait::until_async;
use serde_json::json;

use crate::site::{HOUR, Site, kind, path, root, user};

/// A publication into the space `lab`, which is at home elsewhere, under the server's lease.
fn publication(site: &Site, at: &str) -> NewArrival {
    NewArrival {
        lease: site.lease.id,
        fence: site.lease.fence,
        space: site.space.id,
        store: site.store,
        path: Some(path(at)),
        version: None,
        token: format!("token of {at}"),
        identity: Some("8:15".into()),
        body: ArrivalBody::Publication(Box::new(Publication {
            caller: user("alice"),
            path: path(at),
            parents: true,
            condition: Condition::New,
            size: ByteCount(7),
            root: Some(root(7)),
            mtime: None,
            mode: None,
            digests: Vec::new(),
        })),
    }
}

/// A further copy of a version.
fn copy(site: &Site, at: &str, version: u64) -> NewArrival {
    NewArrival {
        version: Some(VersionId(version)),
        body: ArrivalBody::Copy { size: ByteCount(7), root: root(7) },
        ..publication(site, at)
    }
}

async fn reserve(site: &Site, wanted: NewArrival) -> Result<Arrival> {
    site.catalog.reserve_arrivals(vec![wanted]).await.pop().unwrap()
}

async fn settle(site: &Site, id: ArrivalId, key: Option<&str>) -> Result<()> {
    let settled = Settled { id, key: key.map(Into::into), generation: Some("1".into()) };
    site.catalog.settle_arrivals(vec![settled]).await.pop().unwrap()
}

async fn tell(site: &Site, id: ArrivalId, version: u64, position: Position) -> Result<()> {
    let told = ToldArrival { id, version: VersionId(version), position };
    site.catalog.note_told(vec![told]).await.pop().unwrap()
}

async fn end(site: &Site, id: ArrivalId, end: ArrivalEnd) -> Result<()> {
    site.catalog.end_arrivals(vec![id], end).await.pop().unwrap()
}

async fn adopt(site: &Site, id: ArrivalId, lease: LeaseId, fence: Fence) -> Result<()> {
    site.catalog.adopt_arrivals(vec![id], lease, fence).await.pop().unwrap()
}

/// Gives the space `lab` to another site and returns that.
async fn give_away(site: &Site) -> SiteId {
    let home = SiteId::new();
    site.set_home(site.space.id, home).await;
    home
}

/// The position at which the rows of `lab` stand, moved on by some records.
async fn position(site: &Site, further: u64) -> Position {
    let at = site.catalog.position(site.space.id).await.unwrap();
    Position { seq: at.seq + further, ..at }
}

/// Lets the space stand at a position, as applying records up to there does.
async fn follow_to(site: &Site, at: Position) {
    site.tamper(&format!("UPDATE space SET term = {}, seq = {} WHERE name = 'lab'", at.term, at.seq)).await;
}

async fn all_steps_of_a_publication(site: Site) {
    let home = give_away(&site).await;
    let arrival = reserve(&site, publication(&site, "/lab/d/x")).await.unwrap();
    assert_eq!((arrival.state, arrival.home), (ArrivalState::Reserved, Some(home)));
    assert_eq!((arrival.key.as_str(), arrival.version, arrival.told), ("lab/d/x", None, None));
    assert_eq!(site.catalog.arrivals_of(site.lease.id).await.unwrap(), std::slice::from_ref(&arrival));
    assert_eq!(site.catalog.written_arrivals(10, None).await.unwrap(), [], "its bytes are not there yet");
    let early = tell(&site, arrival.id, 4, position(&site, 1).await).await;
    assert!(matches!(kind(early), ErrorKind::Conflict { .. }), "nothing is told before it is on disk");

    settle(&site, arrival.id, None).await.unwrap();
    settle(&site, arrival.id, None).await.unwrap();
    let written = site.catalog.written_arrivals(10, None).await.unwrap();
    assert_eq!((written[0].state, written[0].generation.as_deref()), (ArrivalState::Written, Some("1")));
    assert_eq!(site.catalog.written_arrivals(10, Some(arrival.id)).await.unwrap(), []);
    let done = end(&site, arrival.id, ArrivalEnd::Done).await;
    assert!(matches!(kind(done), ErrorKind::Conflict { .. }), "the home has not said anything");

    let at = position(&site, 1).await;
    tell(&site, arrival.id, 4, at).await.unwrap();
    tell(&site, arrival.id, 4, at).await.unwrap();
    assert!(matches!(kind(tell(&site, arrival.id, 5, at).await), ErrorKind::Conflict { .. }));
    let written = site.catalog.written_arrivals(10, None).await.unwrap();
    assert_eq!((written[0].version, written[0].told), (Some(VersionId(4)), Some(at)));
    assert_eq!(site.catalog.finish_arrived().await.unwrap(), 0, "the record was not applied yet");
    for refused in [ArrivalEnd::Garbage, ArrivalEnd::Removed] {
        let promised = end(&site, arrival.id, refused).await;
        assert!(matches!(kind(promised), ErrorKind::Conflict { .. }), "{refused:?}");
    }

    follow_to(&site, at).await;
    site.tamper(
        "INSERT INTO replica (sp, version, st, entry, key, state) \
         SELECT sp, version, st, 3, key, 'good' FROM arrival",
    )
    .await;
    assert_eq!(site.catalog.finish_arrived().await.unwrap(), 1);
    assert_eq!(site.catalog.finish_arrived().await.unwrap(), 0);
    end(&site, arrival.id, ArrivalEnd::Done).await.unwrap();
    assert_eq!(kind(settle(&site, arrival.id, None).await), ErrorKind::NotFound);
    tell(&site, arrival.id, 4, at).await.unwrap();
    assert!(site.catalog.garbage(site.store, 10).await.unwrap().is_empty());
    assert!(site.catalog.arrivals_of(site.lease.id).await.unwrap().is_empty());
}

/// One server ends arrivals while another applies what the home recorded.
async fn a_record_that_is_applied_meanwhile_is_not_taken_for_one_whose_copy_has_gone(site: Site) {
    give_away(&site).await;
    let second = site.second().await;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let rounds = async {
        for round in 0..60 {
            let (at, version) = (position(&site, 1).await, 10 + round);
            let arrival = reserve(&site, copy(&site, &format!("/lab/{round}"), version)).await.unwrap();
            settle(&site, arrival.id, None).await.unwrap();
            tell(&site, arrival.id, version, at).await.unwrap();
            site.tamper(&format!(
                "BEGIN; UPDATE space SET term = {}, seq = {} WHERE name = 'lab'; \
                 INSERT INTO replica (sp, version, st, entry, key, state) \
                 SELECT sp, version, st, 3, key, 'good' FROM arrival WHERE version = {version}; COMMIT",
                at.term, at.seq
            ))
            .await;
            until_async("the arrival to end", Duration::from_secs(20), || async {
                site.catalog.arrivals_of(site.lease.id).await.unwrap().is_empty().then_some(())
            })
            .await;
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    let finish = async {
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            second.finish_arrived().await.unwrap();
        }
    };
    tokio::join!(rounds, finish);
    assert_eq!(site.catalog.garbage(site.store, 10).await.unwrap(), [], "the bytes of copies");
}

async fn what_cannot_be_reserved(site: Site) {
    let home_here = reserve(&site, publication(&site, "/lab/x")).await;
    assert_eq!(kind(home_here), ErrorKind::InvalidRequest, "published in the ordinary way");
    give_away(&site).await;
    let unnamed = NewArrival { version: None, ..copy(&site, "/lab/x", 4) };
    assert_eq!(kind(reserve(&site, unnamed).await), ErrorKind::InvalidRequest);
    let too_much = NewArrival { version: Some(VersionId(4)), ..publication(&site, "/lab/x") };
    assert_eq!(kind(reserve(&site, too_much).await), ErrorKind::InvalidRequest);
    let nowhere = NewArrival { space: SpaceId::new(), ..publication(&site, "/lab/x") };
    assert_eq!(kind(reserve(&site, nowhere).await), ErrorKind::SpaceNotFound);
    let late = NewArrival { fence: Fence(site.lease.fence.0 + 1), ..publication(&site, "/lab/x") };
    assert_eq!(kind(reserve(&site, late).await), ErrorKind::LeaseExpired);
    let owner = SiteId::new();
    let store = site.add_foreign_store("theirs", owner).await;
    let foreign = NewArrival { store, ..publication(&site, "/lab/x") };
    assert_eq!(kind(reserve(&site, foreign).await), ErrorKind::Foreign { home: owner });
    let closed = StoreChange { state: Some(StoreState::ReadOnly), ..Default::default() };
    site.catalog.update_store(site.store, closed).await.unwrap();
    assert_eq!(kind(reserve(&site, publication(&site, "/lab/x")).await), ErrorKind::ReadOnly);
    assert!(site.catalog.arrivals_of(site.lease.id).await.unwrap().is_empty());
}

async fn keys_are_taken_once(site: Site) {
    site.put("/lab/old", 1).await;
    let prepared = site.prepare(site.wanted("/lab/new", Condition::New)).await.unwrap();
    give_away(&site).await;
    let of_copy = reserve(&site, publication(&site, "/lab/old")).await.unwrap();
    assert_eq!(of_copy.key, format!(".percale/arrivals/{}", of_copy.id));
    let of_intent = reserve(&site, publication(&site, &format!("/{}", prepared.key))).await.unwrap();
    assert!(of_intent.key.starts_with(".percale/arrivals/"));
    let both =
        site.catalog.reserve_arrivals(vec![publication(&site, "/lab/x"), publication(&site, "/lab/x")]).await;
    let keys: Vec<_> = both.into_iter().map(|arrival| arrival.unwrap().key).collect();
    assert_eq!(keys[0], "lab/x");
    assert!(keys[1].starts_with(".percale/arrivals/"), "one call is no exception");
    let no_path = NewArrival { path: None, ..publication(&site, "/lab/y") };
    assert!(reserve(&site, no_path).await.unwrap().key.starts_with(".percale/arrivals/"));

    let taken = settle(&site, of_copy.id, Some("lab/old")).await;
    assert!(matches!(kind(taken), ErrorKind::Conflict { .. }));
    settle(&site, of_copy.id, Some("lab/free")).await.unwrap();
    let moved = settle(&site, of_copy.id, Some("lab/other")).await;
    assert!(matches!(kind(moved), ErrorKind::Conflict { .. }), "it is settled");
    let second = reserve(&site, publication(&site, "/lab/free")).await.unwrap();
    assert_ne!(second.key, "lab/free");
    site.assert_sound().await;
}

async fn two_servers_never_take_one_key(site: Site) {
    give_away(&site).await;
    let second = site.second().await;
    for round in 0..20 {
        let wanted = publication(&site, &format!("/lab/{round}"));
        let (one, two) = tokio::join!(
            site.catalog.reserve_arrivals(vec![wanted.clone()]),
            second.reserve_arrivals(vec![wanted]),
        );
        let (one, two) = (one.into_iter().next().unwrap().unwrap(), two.into_iter().next().unwrap().unwrap());
        assert_ne!(one.key, two.key);
        let natural = format!("lab/{round}");
        assert_eq!([one.key, two.key].iter().filter(|key| **key == natural).count(), 1);
    }
    site.assert_sound().await;
}

async fn an_arrival_outlives_its_holder(site: Site) {
    give_away(&site).await;
    let dead = site.catalog.acquire_lease(LeaseKind::Server, "dead", HOUR, json!({ "v": 1 })).await.unwrap();
    let under = |at: &str| NewArrival { lease: dead.id, fence: dead.fence, ..publication(&site, at) };
    let reserved = reserve(&site, under("/lab/reserved")).await.unwrap();
    let written = reserve(&site, under("/lab/written")).await.unwrap();
    settle(&site, written.id, None).await.unwrap();
    let (mine, fence) = (site.lease.id, site.lease.fence);
    assert!(matches!(kind(adopt(&site, written.id, mine, fence).await), ErrorKind::Conflict { .. }));
    let held = site.catalog.release_lease(dead.id, dead.fence).await;
    assert_eq!(kind(held), ErrorKind::NotEmpty, "arrivals lie under it");

    site.tamper(&format!("UPDATE lease SET expires = 1 WHERE id = {}", site.uuid(dead.id.0))).await;
    let lapsed = site.catalog.take_over_lapsed(None, "next", HOUR, 10).await.unwrap().remove(0);
    assert_eq!((lapsed.lease.id, lapsed.old_fence), (dead.id, dead.fence));
    assert_eq!(kind(settle(&site, reserved.id, None).await), ErrorKind::LeaseExpired, "its holder came late");
    let left = site.catalog.arrivals_of(dead.id).await.unwrap();
    assert_eq!(left.iter().map(|arrival| arrival.state).collect::<Vec<_>>(), {
        let mut states = [(reserved.id, ArrivalState::Reserved), (written.id, ArrivalState::Written)];
        states.sort();
        states.map(|(_, state)| state)
    });
    // The file at the reserved key was removed if it was ours; the settled one goes on under the recoverer's lease.
    end(&site, reserved.id, ArrivalEnd::Removed).await.unwrap();
    end(&site, reserved.id, ArrivalEnd::Removed).await.unwrap();
    let wrong = Fence(fence.0 + 999);
    assert_eq!(kind(adopt(&site, written.id, mine, wrong).await), ErrorKind::LeaseExpired);
    adopt(&site, written.id, mine, fence).await.unwrap();
    adopt(&site, written.id, mine, fence).await.unwrap();
    assert_eq!(kind(adopt(&site, reserved.id, mine, fence).await), ErrorKind::NotFound);
    assert_eq!(site.catalog.arrivals_of(mine).await.unwrap()[0].id, written.id);
    site.catalog.release_lease(dead.id, lapsed.lease.fence).await.unwrap();
    site.assert_sound().await;
}

async fn bytes_become_garbage_only_when_nobody_counts_on_them(site: Site) {
    give_away(&site).await;
    let arrival = reserve(&site, publication(&site, "/lab/x")).await.unwrap();
    let early = end(&site, arrival.id, ArrivalEnd::Garbage).await;
    assert!(matches!(kind(early), ErrorKind::Conflict { .. }), "the file there may be another's");
    settle(&site, arrival.id, None).await.unwrap();
    end(&site, arrival.id, ArrivalEnd::Garbage).await.unwrap();
    end(&site, arrival.id, ArrivalEnd::Garbage).await.unwrap();
    let again = reserve(&site, publication(&site, "/lab/x")).await.unwrap();
    assert_ne!(again.key, "lab/x", "until the collector was there");
    assert_eq!(
        site.collect().await.iter().map(|garbage| garbage.key.as_str()).collect::<Vec<_>>(),
        ["lab/x"]
    );
    assert_eq!(reserve(&site, publication(&site, "/lab/x")).await.unwrap().key, "lab/x");
    site.assert_sound().await;
}

async fn a_copy_with_a_name_is_never_garbage(site: Site) {
    let x = site.put("/lab/x", 7).await;
    let other =
        reserve(&site, NewArrival { path: None, ..copy(&site, "/lab/x", x.version.0) }).await.unwrap();
    settle(&site, other.id, None).await.unwrap();
    // As applying the home's record leaves it.
    let key = &other.key;
    site.tamper(&format!("UPDATE replica SET key = '{key}' WHERE version = {}", x.version)).await;
    site.assert_sound().await;
    end(&site, other.id, ArrivalEnd::Garbage).await.unwrap();
    assert!(site.catalog.garbage(site.store, 10).await.unwrap().is_empty());
    assert!(site.catalog.arrivals_of(site.lease.id).await.unwrap().is_empty());
    site.assert_sound().await;
}

async fn a_promise_of_a_replaced_home_is_void(site: Site) {
    give_away(&site).await;
    let publish = async |at: &str| {
        let arrival = reserve(&site, publication(&site, at)).await.unwrap();
        settle(&site, arrival.id, None).await.unwrap();
        tell(&site, arrival.id, 4, position(&site, 1).await).await.unwrap();
        arrival.id
    };
    let (lost, told_anew) = (publish("/lab/x").await, publish("/lab/y").await);
    let at = position(&site, 1).await;
    let promoted = Position { term: at.term + 1, ..at };
    follow_to(&site, promoted).await;
    tell(&site, told_anew, 9, Position { seq: promoted.seq + 1, ..promoted }).await.unwrap();
    assert_eq!(site.catalog.finish_arrived().await.unwrap(), 0, "the record was another home's");
    let told = async || {
        let written = site.catalog.written_arrivals(10, None).await.unwrap();
        written.into_iter().map(|arrival| (arrival.id, arrival.version)).collect::<Vec<_>>()
    };
    let mut expected = vec![(lost, None), (told_anew, Some(VersionId(9)))];
    expected.sort();
    assert_eq!(told().await, expected, "what it had promised is forgotten");
    end(&site, lost, ArrivalEnd::Garbage).await.unwrap();
    let kept = end(&site, told_anew, ArrivalEnd::Garbage).await;
    assert!(matches!(kind(kept), ErrorKind::Conflict { .. }));
    assert_eq!(site.collect().await.len(), 1);
}

async fn a_copy_that_was_promised_by_a_replaced_home_is_told_again(site: Site) {
    give_away(&site).await;
    let arrival = reserve(&site, copy(&site, "/lab/x", 4)).await.unwrap();
    settle(&site, arrival.id, None).await.unwrap();
    let at = position(&site, 1).await;
    tell(&site, arrival.id, 4, at).await.unwrap();
    assert_eq!(site.catalog.finish_arrived().await.unwrap(), 0);
    assert_eq!(site.catalog.written_arrivals(10, None).await.unwrap()[0].told, Some(at));
    follow_to(&site, Position { term: at.term + 1, ..at }).await;
    assert_eq!(site.catalog.finish_arrived().await.unwrap(), 0);
    let again = site.catalog.written_arrivals(10, None).await.unwrap();
    assert_eq!((again[0].told, again[0].version), (None, Some(VersionId(4))));
}

async fn a_copy_that_came_and_went_leaves_garbage(site: Site) {
    give_away(&site).await;
    let arrival = reserve(&site, publication(&site, "/lab/x")).await.unwrap();
    settle(&site, arrival.id, None).await.unwrap();
    let at = position(&site, 1).await;
    tell(&site, arrival.id, 4, at).await.unwrap();
    // A snapshot as of later, when the version was gone.
    follow_to(&site, Position { seq: at.seq + 9, ..at }).await;
    assert_eq!(site.catalog.finish_arrived().await.unwrap(), 1);
    assert_eq!(
        site.collect().await.iter().map(|garbage| garbage.key.as_str()).collect::<Vec<_>>(),
        ["lab/x"]
    );
}

async fn a_follower_that_is_behind_finishes_nothing(site: Site) {
    give_away(&site).await;
    let arrival = reserve(&site, publication(&site, "/lab/x")).await.unwrap();
    settle(&site, arrival.id, None).await.unwrap();
    tell(&site, arrival.id, 4, position(&site, 0).await).await.unwrap();
    site.tamper("UPDATE space SET behind = 'restored'").await;
    assert_eq!(site.catalog.finish_arrived().await.unwrap(), 0, "its rows may lack the copy");
    site.tamper("UPDATE space SET behind = NULL").await;
    assert_eq!(site.catalog.finish_arrived().await.unwrap(), 1);
}

on_both!(
    all_steps_of_a_publication,
    a_record_that_is_applied_meanwhile_is_not_taken_for_one_whose_copy_has_gone,
    what_cannot_be_reserved,
    keys_are_taken_once,
    two_servers_never_take_one_key,
    an_arrival_outlives_its_holder,
    bytes_become_garbage_only_when_nobody_counts_on_them,
    a_copy_with_a_name_is_never_garbage,
    a_promise_of_a_replaced_home_is_void,
    a_copy_that_was_promised_by_a_replaced_home_is_told_again,
    a_copy_that_came_and_went_leaves_garbage,
    a_follower_that_is_behind_finishes_nothing,
);
