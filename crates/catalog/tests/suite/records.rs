//! Records of another home: each once, in order, and only those that fit.

use std::sync::atomic::{AtomicBool, Ordering};

use percale_catalog::*;
use percale_core::ids::{SiteId, SpaceId};
use percale_core::{ErrorCode, Position};
use serde_json::json;

use crate::pair::{HOME, OWN, Pair};
use crate::site::{Site, kind, root};

fn records_end(records: &[Record]) -> Position {
    records.last().unwrap().position
}

/// Asserts that a call was refused as one that does not fit, and that nothing came of it.
async fn assert_unfit(pair: &Pair, what: &str, outcome: Result<Followed>) {
    let error = outcome.expect_err(what);
    assert_eq!(*error.kind(), ErrorKind::DoesNotFit, "{what}: {error}");
    assert_eq!(error.code(), ErrorCode::Integrity);
    pair.assert_same().await;
}

async fn kind_of_promotion(pair: &Pair) -> ErrorKind {
    kind(pair.own.catalog.promote(pair.space()).await)
}

async fn records_count_once_and_in_order(home: Site) {
    let pair = Pair::of(home).await;
    let before = pair.stands().await;
    for n in 0..6 {
        pair.home.put(&format!("/lab/{n}"), n).await;
    }
    pair.home.rename("/lab/1", "/lab/one", false).await.unwrap();
    let records = pair.records(before, 100).await;
    let part = |from: usize, to: usize| records[from..to].to_vec();
    assert_eq!(pair.follow(part(0, 3)).await.unwrap().position, records[2].position);
    for (what, records) in [
        ("a missing one", part(4, 6)),
        ("one missing in between", [part(3, 4), part(5, 7)].concat()),
        ("the wrong order", [part(4, 5), part(3, 4)].concat()),
        ("one that comes twice at once", [part(3, 4), part(3, 4)].concat()),
    ] {
        let error = pair.follow(records).await.expect_err(what);
        assert_eq!(*error.kind(), ErrorKind::DoesNotFit, "{what}");
        assert_eq!(pair.stands().await, records_end(&part(0, 3)), "{what}");
    }
    let other_term = |record: &Record| {
        let position = Position { term: 2, ..record.position };
        Record { position, ..record.clone() }
    };
    assert_eq!(kind(pair.follow(part(3, 7).iter().map(other_term).collect()).await), ErrorKind::DoesNotFit);
    let other_space = |record: &Record| {
        let position = Position { space: SpaceId::new(), ..record.position };
        Record { position, ..record.clone() }
    };
    assert_eq!(kind(pair.follow(part(3, 4).iter().map(other_space).collect()).await), ErrorKind::DoesNotFit);
    // What came before is passed over, alone and before news.
    assert_eq!(pair.follow(part(0, 2)).await.unwrap().position, records[2].position);
    assert_eq!(pair.follow(part(0, 7)).await.unwrap().position, records[6].position);
    assert_eq!(pair.follow(Vec::new()).await.unwrap().position, records[6].position);
    pair.assert_same().await;
    // They are kept as they were.
    let kept = pair.own.catalog.journal(&pair.own.admin, pair.space(), Some(before), 100).await.unwrap();
    assert_eq!(kept, records);
    // Of whom they come matters.
    let elsewhere = SiteId::new();
    let refused = pair.own.catalog.follow(pair.space(), elsewhere, "coral", OWN, Vec::new()).await;
    assert_eq!(kind(refused), ErrorKind::Foreign { home: pair.home_id });
    let refused = pair.own.catalog.follow(pair.own.space.id, pair.home_id, HOME, OWN, Vec::new()).await;
    assert_eq!(kind(refused), ErrorKind::Foreign { home: pair.own_id });
    let unknown = pair.own.catalog.follow(SpaceId::new(), pair.home_id, HOME, OWN, Vec::new()).await;
    assert_eq!(kind(unknown), ErrorKind::SpaceNotFound);
}

async fn records_that_do_not_fit_change_nothing(home: Site) {
    let pair = Pair::of(home).await;
    let store = pair.home.store;
    let done = pair.home.put("/lab/run/x", 1).await;
    pair.home.put("/lab/run/y", 2).await;
    pair.home.mkdir("/lab/run/deep/er").await;
    pair.catch_up(100).await;
    let (x, version) = (done.entry, done.version);
    let entry = async |at: &str| pair.home.stat(at).await.unwrap().id;
    let (run, deep, deeper) =
        (entry("/lab/run").await, entry("/lab/run/deep").await, entry("/lab/run/deep/er").await);
    let y = entry("/lab/run/y").await;
    let replica = json!({ "version": 100, "store": store, "state": "good", "key": "lab/z" });
    let publish = |change: serde_json::Value| {
        let mut item = json!({ "id": 99, "parent": run, "name": "z", "version": 100, "size": 1, "root": null, "mtime": null,
            "base": null, "replica": replica });
        item.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        ("objects.published", json!({ "items": [item] }))
    };
    let item = |kind: &'static str, item: serde_json::Value| (kind, json!({ "items": [item] }));
    let at = "2026-11-21T08:30:00Z";
    for (what, (kind, body)) in [
        ("no body of its form", ("entries.moved", json!({ "items": 7 }))),
        ("a space made again", ("space.created", serde_json::to_value(json!({})).unwrap())),
        ("a name that is taken", publish(json!({ "name": "y" }))),
        ("a name that is none", publish(json!({ "name": ".." }))),
        ("a collection that is not there", publish(json!({ "parent": 7777 }))),
        ("an object as a collection", publish(json!({ "parent": x }))),
        ("an id that is used", publish(json!({ "id": y }))),
        ("a size that cannot be", publish(json!({ "size": u64::MAX }))),
        ("an id that cannot be", publish(json!({ "id": u64::MAX }))),
        ("a base that is not there", publish(json!({ "base": version }))),
        ("another base", publish(json!({ "id": x, "name": "x", "base": 7777 }))),
        ("another name than the base", publish(json!({ "id": x, "name": "q", "base": version }))),
        ("a copy of another version", publish(json!({ "version": 101 }))),
        (
            "a key that is none",
            publish(
                json!({ "replica": { "version": 100, "store": store, "state": "good", "key": "a/../../b" } }),
            ),
        ),
        (
            "a key that is taken",
            publish(
                json!({ "replica": { "version": 100, "store": store, "state": "good", "key": "lab/run/x" } }),
            ),
        ),
        (
            "a collection under a taken name",
            item("entries.created", json!({ "id": 99, "parent": run, "name": "x", "at": at })),
        ),
        (
            "a collection with a used id",
            item("entries.created", json!({ "id": deep, "parent": run, "name": "n", "at": at })),
        ),
        (
            "a move of nothing",
            item("entries.moved", json!({ "id": 7777, "parent": run, "name": "n", "replaced": null })),
        ),
        (
            "a move of the root",
            item("entries.moved", json!({ "id": 1, "parent": run, "name": "n", "replaced": null })),
        ),
        (
            "a move to nowhere",
            item("entries.moved", json!({ "id": x, "parent": 7777, "name": "n", "replaced": null })),
        ),
        (
            "a move below itself",
            item("entries.moved", json!({ "id": run, "parent": deeper, "name": "n", "replaced": null })),
        ),
        (
            "a move to a taken name",
            item("entries.moved", json!({ "id": x, "parent": run, "name": "y", "replaced": null })),
        ),
        (
            "a move in place of another",
            item("entries.moved", json!({ "id": x, "parent": run, "name": "y", "replaced": deep })),
        ),
        (
            "a move in place of itself",
            item("entries.moved", json!({ "id": x, "parent": run, "name": "x", "replaced": x })),
        ),
        (
            "a move in place of what is not empty",
            item("entries.moved", json!({ "id": deeper, "parent": 1, "name": "run", "replaced": run })),
        ),
        ("a removal of nothing", item("entries.removed", json!({ "id": 7777, "versions": [] }))),
        ("a removal of the root", item("entries.removed", json!({ "id": 1, "versions": [] }))),
        ("a removal of what is not empty", item("entries.removed", json!({ "id": deep, "versions": [] }))),
        (
            "a removal twice",
            (
                "entries.removed",
                json!({ "items": [{ "id": y, "versions": [] }, { "id": y, "versions": [] }] }),
            ),
        ),
        (
            "a copy of no version",
            item("replicas.changed", json!({ "version": 7777, "store": store, "state": "good", "key": "k" })),
        ),
        (
            "another root",
            item(
                "replicas.changed",
                json!({ "version": version, "store": store, "state": "good", "key": "lab/run/x", "root": root(77) }),
            ),
        ),
        (
            "the end of no copy",
            item("replicas.removed", json!({ "version": version, "store": pair.home_id })),
        ),
        (
            "a grant on nothing",
            item("grants.changed", json!({ "entry": 7777, "subject": "anyone", "permission": "read" })),
        ),
        (
            "a new term",
            (
                "space.promoted",
                json!({ "home": pair.home_id, "from": pair.home_id, "before": pair.stands().await }),
            ),
        ),
    ] {
        let first = pair
            .record(
                "entries.created",
                json!({ "items": [{ "id": 50, "parent": run, "name": "ok", "at": at }] }),
            )
            .await;
        let mut second = pair.record(kind, body).await;
        second.position.seq += 1;
        assert_unfit(&pair, what, pair.follow(vec![first, second]).await).await;
    }
    assert_eq!(pair.own.catalog.all_stores().await.unwrap().len(), 2, "nor are stores learned of");
}

async fn what_is_not_known_is_kept_and_a_snapshot_heals(home: Site) {
    let pair = Pair::of(home).await;
    pair.home.put("/lab/x", 1).await;
    for (kind, v) in [("stars.aligned", 1), ("entries.moved", 2)] {
        pair.catch_up(100).await;
        let before = pair.stands().await;
        let mut known = pair
            .record(
                "grants.changed",
                json!({ "items": [{ "entry": 1, "subject": "anyone", "permission": "read" }] }),
            )
            .await;
        let mut unknown = pair.record(kind, json!({ "sky": "clear" })).await;
        unknown.v = v;
        unknown.position.seq += 1;
        known.position.seq = before.seq + 1;
        let mut later = known.clone();
        later.position.seq += 2;
        let followed = pair.follow(vec![known, unknown.clone(), later.clone()]).await.unwrap();
        assert_eq!(followed.position, unknown.position);
        assert!(followed.behind.as_ref().unwrap().contains(kind), "{followed:?}");
        let space = pair.own.catalog.followed_space(pair.space()).await.unwrap().unwrap();
        assert_eq!((space.behind.clone(), space.position), (followed.behind.clone(), followed.position));
        assert_eq!(pair.own.catalog.followed(pair.home_id).await.unwrap(), [], "it cannot go on");
        assert_eq!(pair.follow(vec![later]).await.unwrap(), followed, "nor does it");
        let kept = pair.own.catalog.journal(&pair.own.admin, pair.space(), Some(before), 10).await.unwrap();
        assert_eq!((kept.len(), &kept[1]), (2, &unknown));
        assert_eq!(kind_of_promotion(&pair).await, ErrorKind::PreconditionFailed { version: None });
        pair.take_snapshot().await.unwrap();
        assert_eq!(pair.own.catalog.followed(pair.home_id).await.unwrap().len(), 1);
        pair.assert_same().await;
        pair.home.put("/lab/y", 1).await;
    }
}

async fn a_thousand_renames_while_following(home: Site) {
    let pair = Pair::of(home).await;
    pair.home.put_many(&(0..20).map(|n| format!("/lab/d{}/{n}", n % 4)).collect::<Vec<_>>()).await;
    let is_done = AtomicBool::new(false);
    let renames = async {
        for n in 0..1000u64 {
            let (from, to) = (n % 4, (n * 7 + 1) % 20);
            // Objects change places with each other, and collections go through each other.
            let at = async |n: u64| match pair
                .home
                .tree("/lab")
                .await
                .into_iter()
                .filter(|at| !at.ends_with('/'))
                .nth(n as usize)
            {
                Some(at) => at,
                None => "/lab/none".into(),
            };
            let moved = match n % 3 {
                0 => pair.home.rename(&at(from).await, &format!("/lab/d{}/r{n}", to % 4), true).await,
                1 => pair.home.rename(&format!("/lab/d{from}"), "/lab/aside", false).await,
                _ => pair.home.rename("/lab/aside", &format!("/lab/d{}", (n - 1) % 4), false).await,
            };
            drop(moved);
        }
        is_done.store(true, Ordering::Relaxed);
    };
    let following = async {
        let mut limit = 1;
        while !is_done.load(Ordering::Relaxed) {
            pair.catch_up(limit).await;
            limit = limit % 9 + 1;
        }
    };
    tokio::join!(renames, following);
    pair.catch_up(1000).await;
    pair.assert_same().await;
}

on_both!(
    records_count_once_and_in_order,
    records_that_do_not_fit_change_nothing,
    what_is_not_known_is_kept_and_a_snapshot_heals,
    a_thousand_renames_while_following,
);
