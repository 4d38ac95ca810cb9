//! Copies on own stores in spaces of another home: what becomes of them is for both sites to say, each at its time.

use bytes::Bytes;
use percale_catalog::*;
use percale_core::ids::{StoreId, VersionId};
use percale_core::state::ReplicaState;
use serde_json::json;
use uuid::Uuid;

use crate::pair::{Pair, sealed, snapshot};
use crate::site::{Site, path, root};

/// Writes a UUID as the follower's database has it.
fn uuid_of(site: &Site, n: u128) -> String {
    let uuid = Uuid::from_u128(n);
    if site.is_postgres() { format!("'{uuid}'") } else { format!("x'{}'", uuid.simple()) }
}

const SP: &str = "(SELECT sp FROM space WHERE name = 'lab')";
const ST: &str = "(SELECT st FROM store WHERE site IS NULL)";

/// Publishes objects of these names at home, and lets the home's journal say that there is a copy of each, called
/// `copy of NAME`, on the follower's own store.
async fn copied<const N: usize>(pair: &Pair, names: [&str; N]) -> [VersionId; N] {
    let mut versions = [VersionId(0); N];
    for (name, version) in names.iter().zip(&mut versions) {
        *version = pair.home.put(&format!("/lab/{name}"), 1).await.version;
    }
    pair.catch_up(100).await;
    for (name, version) in names.iter().zip(versions) {
        let body = copy(pair.own.store, version, &format!("copy of {name}"), ReplicaState::Good);
        pair.apply("replicas.changed", body).await.unwrap();
    }
    versions
}

fn copy(store: StoreId, version: VersionId, key: &str, state: ReplicaState) -> serde_json::Value {
    json!({ "items": [{ "version": version, "store": store, "state": state, "key": key, "generation": "g" }] })
}

/// Returns the home's snapshot with further copies, on the follower's own store.
async fn with_copies(pair: &Pair, copies: &[(VersionId, &str)]) -> Vec<Bytes> {
    let text = snapshot(&pair.home.catalog, pair.space()).await.concat();
    let text = String::from_utf8(text).unwrap();
    let mut lines: Vec<String> =
        text.lines().map(str::to_owned).filter(|line| !line.starts_with("{\"end\"")).collect();
    for (version, key) in copies {
        let theirs = format!("{{\"replica\":{{\"version\":{version},");
        let at = lines.iter().position(|line| line.starts_with(&theirs)).unwrap();
        let entry =
            serde_json::from_str::<serde_json::Value>(&lines[at]).unwrap()["replica"]["entry"].clone();
        let store = pair.own.store;
        let line = format!(
            "{theirs}\"store\":\"{store}\",\"entry\":{entry},\"key\":\"{key}\",\"state\":\"good\",\"generation\":\"home\"}}}}"
        );
        lines.insert(at + usize::from(store > pair.home.store), line);
    }
    sealed(&lines)
}

/// Returns the copy of an object on the follower's own store.
async fn own_copy(pair: &Pair, at: &str) -> Option<Replica> {
    let open = pair.own.catalog.open_object(&pair.own.admin, &path(at), None).await.unwrap();
    open.replicas.into_iter().find(|replica| replica.store == pair.own.store)
}

async fn garbage(pair: &Pair) -> Vec<(String, VersionId)> {
    let found = pair.own.catalog.garbage(pair.own.store, 100).await.unwrap();
    pair.own.assert_sound().await;
    let is_told = |garbage: &Garbage| matches!(garbage.generation.as_deref(), Some("g" | "home"));
    assert!(found.iter().all(is_told), "{found:?}");
    let mut found: Vec<_> = found.into_iter().map(|garbage| (garbage.key, garbage.version)).collect();
    found.sort();
    found
}

async fn bytes_that_lose_their_version_are_garbage_where_they_are(home: Site) {
    let pair = Pair::of(home).await;
    let names = ["replaced", "removed", "let go", "moved over", "stays"];
    let copies = names.map(|name| format!("copy of {name}"));
    let mut versions: Vec<_> = copies.into_iter().zip(copied(&pair, names).await).collect();
    assert_eq!(garbage(&pair).await, []);
    let id = async |at: &str| pair.own.stat(at).await.unwrap().id;
    let replaced = json!({ "items": [{ "id": id("/lab/replaced").await, "parent": 1, "name": "replaced", "version": 9000,
        "size": 1, "root": null, "mtime": null, "base": versions[0].1,
        "replica": { "version": 9000, "store": pair.home.store, "state": "good", "key": "new" } }] });
    pair.apply("objects.published", replaced).await.unwrap();
    let removed = json!({ "items": [{ "id": id("/lab/removed").await, "versions": [versions[1].1] }] });
    pair.apply("entries.removed", removed).await.unwrap();
    let gone = json!({ "items": [{ "version": versions[2].1, "store": pair.own.store }] });
    pair.apply("replicas.removed", gone.clone()).await.unwrap();
    pair.apply("replicas.removed", gone).await.unwrap();
    let over = json!({ "items": [{ "id": id("/lab/replaced").await, "parent": 1, "name": "moved over",
        "replaced": id("/lab/moved over").await }] });
    pair.apply("entries.moved", over).await.unwrap();
    let mut expected = versions[..4].to_vec();
    expected.sort();
    assert_eq!(garbage(&pair).await, expected, "those on the home's store are the home's");
    // The rest goes with the space.
    pair.own
        .tamper(&format!(
            "INSERT INTO outbox (number, sp, version, st, body) VALUES (1, {SP}, {}, {ST}, '{{\"v\":1,\"state\":\"suspect\"}}')",
            versions[4].1
        ))
        .await;
    pair.apply("space.removed", json!({})).await.unwrap();
    versions.sort();
    assert_eq!(garbage(&pair).await, versions);
    assert_eq!(pair.own.collect().await.len(), 5);
    pair.own.assert_sound().await;
    // Nor is anybody left to be told: the number is free.
    pair.own
        .tamper(&format!("INSERT INTO outbox (number, sp, version, st, body) VALUES (1, 1, 1, {ST}, '{{\"v\":1,\"state\":\"suspect\"}}')"))
        .await;
}

async fn a_space_that_its_home_has_forgotten_goes(home: Site) {
    let pair = Pair::of(home).await;
    let [version] = copied(&pair, ["x"]).await;
    let refused = pair.own.catalog.unfollow(pair.space(), pair.own_id).await.unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::Foreign { home: pair.home_id });
    for _ in 0..2 {
        pair.own.catalog.unfollow(pair.space(), pair.home_id).await.unwrap();
        assert_eq!(pair.own.catalog.followed_space(pair.space()).await.unwrap(), None);
        assert_eq!(garbage(&pair).await, [("copy of x".to_owned(), version)]);
    }
    // It may come back.
    pair.take_snapshot().await.unwrap();
    pair.assert_same().await;
    assert_eq!(garbage(&pair).await.len(), 1);
}

async fn what_the_home_has_not_heard_of_is_not_undone(home: Site) {
    let pair = Pair::of(home).await;
    let [version] = copied(&pair, ["x"]).await;
    let copy_is = async || own_copy(&pair, "/lab/x").await.unwrap();
    assert!(copy_is().await.checked.is_some(), "it was looked at when it came");
    let found = "UPDATE replica SET state = 'suspect', checked = 77 WHERE key = 'copy of x'";
    let told = format!(
        "INSERT INTO outbox (number, sp, version, st, body) VALUES (1, {SP}, {version}, {ST}, '{{\"v\":1,\"state\":\"suspect\"}}')"
    );
    pair.own.tamper(&format!("{found}; {told}")).await;
    // Another's copy of the same version has no report that waits.
    let of_both = json!({ "items": [
        { "version": version, "store": pair.own.store, "state": "good", "key": "copy of x", "generation": "late" },
        { "version": version, "store": pair.home.store, "state": "lost", "key": "lab/x" },
    ] });
    pair.apply("replicas.changed", of_both).await.unwrap();
    assert_eq!(
        (copy_is().await.state, copy_is().await.generation.as_deref()),
        (ReplicaState::Suspect, Some("g"))
    );
    let open = pair.own.catalog.open_object(&pair.own.admin, &path("/lab/x"), None).await.unwrap();
    let theirs = open.replicas.iter().find(|replica| replica.store == pair.home.store).unwrap();
    assert_eq!(theirs.state, ReplicaState::Lost);
    // Nor does a snapshot undo it, nor forget when it was looked at.
    pair.give(with_copies(&pair, &[(version, "copy of x")]).await).await.unwrap();
    let kept = copy_is().await;
    assert_eq!((kept.state, kept.generation.as_deref()), (ReplicaState::Suspect, Some("g")));
    assert_eq!(kept.checked.map(|at| at.as_micros()), Some(77));
    pair.own.tamper("DELETE FROM outbox").await;
    pair.give(with_copies(&pair, &[(version, "copy of x")]).await).await.unwrap();
    let taken = copy_is().await;
    assert_eq!((taken.state, taken.generation.as_deref()), (ReplicaState::Good, Some("home")));
    assert_eq!(taken.checked.map(|at| at.as_micros()), Some(77));
    assert_eq!(garbage(&pair).await, []);
}

async fn a_snapshot_makes_garbage_of_what_the_home_does_not_know(home: Site) {
    let pair = Pair::of(home).await;
    let names = ["unknown", "known", "arriving", "rescued", "other"];
    let [unknown, known, arriving, rescued, other] = copied(&pair, names).await;
    let Site { lease, .. } = &pair.own;
    let arrival = format!(
        "INSERT INTO arrival (id, state, lease, fence, sp, st, key, token, version, body) VALUES ({}, 'written', {}, {}, {SP}, {ST}, \
         'copy of arriving', 'token', {arriving}, '{{\"v\":1,\"arrival\":{{\"kind\":\"copy\",\"size\":1,\"root\":\"{}\"}}}}')",
        uuid_of(&pair.own, 1),
        uuid_of(&pair.own, lease.id.0.as_u128()),
        lease.fence,
        root(1),
    );
    pair.own.tamper(&arrival).await;
    for version in [rescued, other] {
        let gone = json!({ "items": [{ "version": version, "store": pair.own.store }] });
        pair.apply("replicas.removed", gone).await.unwrap();
    }
    assert_eq!(garbage(&pair).await.len(), 2);
    // The home is one that was restored: it knows copies that were let go since, one under the name of another.
    let known_there = [(known, "copy of known"), (rescued, "copy of rescued"), (unknown, "copy of other")];
    pair.give(with_copies(&pair, &known_there).await).await.unwrap();
    assert_eq!(garbage(&pair).await, [("copy of unknown".to_owned(), unknown)]);
    let state = async |at: &str| own_copy(&pair, at).await.map(|copy| copy.state);
    assert_eq!(state("/lab/known").await, Some(ReplicaState::Good));
    assert_eq!(state("/lab/arriving").await, None, "its arrival has the bytes");
    assert_eq!(
        state("/lab/rescued").await,
        Some(ReplicaState::Unverified),
        "the collector may have been there"
    );
    assert_eq!(state("/lab/unknown").await, Some(ReplicaState::Suspect), "the bytes are another version's");
    // Taken back in the ordinary way, nothing is left over.
    pair.own.tamper("DELETE FROM arrival").await;
    pair.take_snapshot().await.unwrap();
    assert_eq!(garbage(&pair).await.len(), 4);
    pair.own.collect().await;
    pair.assert_same().await;
}

async fn a_copy_whose_key_is_garbage_does_not_fit(home: Site) {
    let pair = Pair::of(home).await;
    let [version] = copied(&pair, ["x"]).await;
    let gone = json!({ "items": [{ "version": version, "store": pair.own.store }] });
    pair.apply("replicas.removed", gone).await.unwrap();
    let again =
        pair.apply("replicas.changed", copy(pair.own.store, version, "copy of x", ReplicaState::Good)).await;
    assert_eq!(*again.unwrap_err().kind(), ErrorKind::DoesNotFit);
    assert_eq!(garbage(&pair).await, [("copy of x".to_owned(), version)]);
}

async fn a_copy_elsewhere_may_get_another_key(home: Site) {
    let pair = Pair::of(home).await;
    pair.home.put("/lab/x", 1).await;
    pair.catch_up(10).await;
    let version = pair.home.version("/lab/x").await;
    pair.apply("replicas.changed", copy(pair.home.store, version, "elsewhere", ReplicaState::Stale))
        .await
        .unwrap();
    let open = pair.own.catalog.open_object(&pair.own.admin, &path("/lab/x"), None).await.unwrap();
    let found: Vec<_> = open.replicas.iter().map(|copy| (copy.key.as_str(), copy.state)).collect();
    assert_eq!(found, [("elsewhere", ReplicaState::Stale)]);
    assert_eq!(garbage(&pair).await, []);
}

on_both!(
    bytes_that_lose_their_version_are_garbage_where_they_are,
    a_space_that_its_home_has_forgotten_goes,
    what_the_home_has_not_heard_of_is_not_undone,
    a_snapshot_makes_garbage_of_what_the_home_does_not_know,
    a_copy_whose_key_is_garbage_does_not_fit,
    a_copy_elsewhere_may_get_another_key,
);
