//! Following: a follower has the rows of the home, or says that it has not.

use percale_catalog::*;
use percale_core::access::{Permission, Subject};
use percale_core::attribute::Float;
use percale_core::ids::{SiteId, StoreId};
use percale_core::state::ReplicaState;
use percale_core::{AttributeValue, ByteCount, FileMode, LinkTarget, Timestamp};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

use crate::pair::{HOME, OWN, Pair, channel, described, other, snapshot};
use crate::site::{Site, kind, new_store, path, root, subject, user};

#[derive(Debug, Clone)]
enum Op {
    Make(String),
    Put(String, bool),
    PutMany(Vec<String>),
    Link(String, String),
    Rename(String, String),
    Say(String, Option<u16>),
    Describe(String, String, u8),
    Remove(String),
    RemoveSome(String, usize),
    Grant(String, u8, Option<Permission>),
    Settings(u8),
    Report(String, ReplicaState, bool),
    Rewrite(String),
    /// A second copy, as replication leaves it.
    Copy(String),
    Collect,
    Follow(usize),
    Snapshot,
}

fn a_path() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 1..4)
        .prop_map(|names| format!("/lab/{}", names.join("/")))
}

fn an_op() -> impl Strategy<Value = Op> {
    let permission = prop::sample::select(vec![None, Some(Permission::Read), Some(Permission::Manage)]);
    let state = prop::sample::select(ReplicaState::ALL.to_vec());
    prop_oneof![
        2 => a_path().prop_map(Op::Make),
        5 => (a_path(), any::<bool>()).prop_map(|(at, native)| Op::Put(at, native)),
        1 => prop::collection::vec(a_path(), 1..6).prop_map(Op::PutMany),
        2 => (a_path(), a_path()).prop_map(|(at, to)| Op::Link(at, to)),
        5 => (a_path(), a_path()).prop_map(|(from, to)| Op::Rename(from, to)),
        2 => (a_path(), prop::option::of(0u16..512)).prop_map(|(at, mode)| Op::Say(at, mode)),
        3 => (a_path(), prop::sample::select(vec!["x", "y"]), 0u8..5).prop_map(|(at, what, n)| Op::Describe(at, what.into(), n)),
        2 => a_path().prop_map(Op::Remove),
        1 => (a_path(), 1usize..4).prop_map(|(at, max)| Op::RemoveSome(at, max)),
        2 => (a_path(), 0u8..4, permission).prop_map(|(at, who, what)| Op::Grant(at, who, what)),
        1 => (0u8..8).prop_map(Op::Settings),
        2 => (a_path(), state, any::<bool>()).prop_map(|(at, state, root)| Op::Report(at, state, root)),
        3 => a_path().prop_map(Op::Rewrite),
        1 => a_path().prop_map(Op::Copy),
        1 => Just(Op::Collect),
        3 => (1usize..6).prop_map(Op::Follow),
        1 => Just(Op::Snapshot),
    ]
}

/// Whether an operation is refused is not what is tested here.
async fn step(pair: &Pair, native: StoreId, n: u64, op: &Op) {
    let Site { catalog, admin, store, space, .. } = &pair.home;
    let report = |version, state, hashed: bool| ReplicaReport {
        space: space.id,
        version,
        store: native,
        key: None,
        state,
        generation: Some(format!("generation {n}")),
        root: hashed.then(|| root(n)),
        is_checked: true,
    };
    match op {
        Op::Make(at) => drop(catalog.create_collection(admin, &path(at), true).await),
        Op::Put(at, false) => drop(pair.put_on(at, *store, n).await),
        Op::Put(at, true) => {
            let mut wanted = pair.home.wanted(at, Condition::Any);
            wanted.store = native;
            if let Ok(intent) = pair.home.prepare(wanted).await {
                let mut commit = Commit::new(intent.id, ByteCount(n), None);
                commit.generation = Some("first".into());
                catalog.commit(vec![commit]).await.pop().unwrap().unwrap();
            }
        }
        Op::PutMany(paths) => {
            let wanted = paths.iter().map(|at| pair.home.wanted(at, Condition::Any)).collect();
            let intents: Vec<Intent> = catalog.prepare(wanted).await.into_iter().flatten().collect();
            let commits = intents.iter().map(|intent| Commit::new(intent.id, ByteCount(n), Some(root(n))));
            for (done, intent) in catalog.commit(commits.collect()).await.into_iter().zip(&intents) {
                if done.is_err() {
                    catalog.abandon(vec![intent.id]).await.unwrap();
                }
            }
        }
        Op::Link(at, to) => {
            let target = LinkTarget::between(&path(at), &path(to)).unwrap();
            drop(catalog.create_link(admin, &path(at), target).await);
        }
        Op::Rename(from, to) => drop(pair.home.rename(from, to, true).await),
        Op::Say(at, mode) => {
            let mode = mode.map(|mode| FileMode::of(mode.into()));
            let said = FileAttributes { mtime: Some(Timestamp::from_micros(n as i64)), mode };
            drop(catalog.set_attributes(admin, &path(at), said).await);
        }
        Op::Describe(at, what, count) => {
            let values = [
                AttributeValue::Integer(n as i64),
                AttributeValue::Text(format!("{at} {n}")),
                AttributeValue::Float(Float(f64::NAN)),
                AttributeValue::Time(Timestamp::from_micros(n as i64)),
            ];
            let values = values.into_iter().take((*count).into()).collect();
            let set = vec![(what.parse().unwrap(), values)];
            drop(catalog.change_attributes(admin, &path(at), AttributeChange { set }).await);
        }
        Op::Remove(at) => drop(pair.home.remove(at, true).await),
        Op::RemoveSome(at, max) => drop(catalog.remove_some(admin, &path(at), *max).await),
        Op::Grant(at, who, permission) => {
            let texts = ["user:alice", "group:wp3@site:baltic", "user:bob@site:coral", "anyone"];
            let to: Subject = texts[usize::from(*who)].parse().unwrap();
            match permission {
                Some(permission) => drop(catalog.set_grant(admin, &path(at), to, *permission).await),
                None => drop(catalog.remove_grant(admin, &path(at), &to).await),
            }
        }
        Op::Settings(bits) => {
            let scope = if bits & 1 == 0 { SpaceScope::Private } else { SpaceScope::Public };
            let owner = if bits & 2 == 0 { subject("owner") } else { subject("other") };
            let store = if bits & 4 == 0 { None } else { Some(native) };
            let (owner, scope, store) = (Some(owner), Some(scope), Some(store));
            let extraction = if bits & 1 == 0 { None } else { Some(ExtractionMode::Sync) };
            let quota = if bits & 2 == 0 { None } else { Some(ByteCount(1 << 40)) };
            let change = SpaceChange { owner, scope, store, state: None, extraction, quota: Some(quota) };
            catalog.update_space(admin, &space.name, change).await.unwrap();
        }
        Op::Report(at, state, hashed) => {
            let Some(content) = pair.home.stat(at).await.ok().and_then(|entry| entry.content) else { return };
            drop(catalog.report_replicas(admin, vec![report(content.version, *state, *hashed)]).await);
        }
        Op::Rewrite(at) => {
            let Some(content) = pair.home.stat(at).await.ok().and_then(|entry| entry.content) else { return };
            let change = NativeChange {
                space: space.id,
                version: content.version,
                store: native,
                size: ByteCount(n),
                generation: format!("rewritten {n}"),
                mtime: None,
                mode: None,
                state: ReplicaState::Unverified,
            };
            drop(catalog.native_changed(admin, change).await);
        }
        Op::Copy(at) => {
            let Some(content) = pair.home.stat(at).await.ok().and_then(|entry| entry.content) else { return };
            let copy = format!(
                "INSERT INTO replica (sp, version, st, entry, key, state) SELECT r.sp, r.version, s.st, r.entry, \
                 'copy of {0}', 'good' FROM replica r, store s WHERE r.version = {0} AND s.name = 'disk' AND NOT EXISTS \
                 (SELECT 1 FROM replica o WHERE o.version = {0} AND o.st = s.st)",
                content.version
            );
            pair.home.tamper(&copy).await;
            pair.take_snapshot().await.unwrap();
        }
        Op::Collect => {
            for store in [*store, native] {
                let garbage = catalog.garbage(store, 1000).await.unwrap();
                catalog.collected(garbage).await.unwrap();
            }
        }
        Op::Follow(limit) => {
            let records = pair.records(pair.stands().await, *limit).await;
            pair.follow(records).await.unwrap();
        }
        Op::Snapshot => drop(pair.take_snapshot().await.unwrap()),
    }
}

fn run_all(cases: u32, open: impl AsyncFn() -> Option<Site>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut runner = TestRunner::new(Config { cases, max_shrink_iters: 100, ..Config::default() });
    let outcome = runner.run(&prop::collection::vec(an_op(), 1..60), |ops| {
        runtime.block_on(async {
            let Some(home) = open().await else { return };
            let native = home.catalog.add_store(new_store("native", StoreLayout::Native)).await.unwrap().id;
            let pair = Pair::of(home).await;
            for (n, op) in (1..).zip(&ops) {
                step(&pair, native, n, op).await;
            }
            pair.catch_up(7).await;
            pair.assert_same().await;
            // A follower that had nothing comes to the same.
            pair.take_snapshot().await.unwrap();
            pair.assert_same().await;
            pair.home.catalog.close().await;
            pair.own.catalog.close().await;
        });
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn a_follower_of_sqlite_has_the_rows_of_its_home() {
    run_all(percale_testkit::faults::rounds("PERCALE_FOLLOW_CASES", 24), async || Some(Site::sqlite().await));
}

#[test]
fn a_follower_of_postgres_has_the_rows_of_its_home() {
    run_all(percale_testkit::faults::rounds("PERCALE_FOLLOW_CASES", 24), async || Site::postgres().await);
}

async fn a_follower_answers_as_its_home_and_changes_nothing(home: Site) {
    let pair = Pair::of(home).await;
    pair.home.put("/lab/run/x", 1).await;
    let alice: Subject = "user:alice".parse().unwrap();
    let bob: Subject = "user:bob@site:baltic".parse().unwrap();
    let run = path("/lab/run");
    pair.home.catalog.set_grant(&pair.home.admin, &run, alice.clone(), Permission::Write).await.unwrap();
    pair.home.catalog.set_grant(&pair.home.admin, &run, bob, Permission::Read).await.unwrap();
    pair.catch_up(2).await;
    let Pair { own, home, .. } = &pair;
    let entry = own.stat("/lab/run/x").await.unwrap();
    assert_eq!(entry, home.stat("/lab/run/x").await.unwrap());
    // Each site's own users are called so there: the home's alice is another than this site's.
    assert_eq!(own.catalog.permission(&user("bob"), &run).await.unwrap(), Some(Permission::Read));
    assert_eq!(own.catalog.permission(&user("alice"), &run).await.unwrap(), None);
    let alice_here = user("alice").seen(HOME, OWN);
    assert_eq!(own.catalog.permission(&alice_here, &run).await.unwrap(), Some(Permission::Write));
    let space = own.catalog.followed_space(pair.space()).await.unwrap().unwrap();
    assert_eq!((space.home, space.owner.to_string()), (Some(pair.home_id), "user:owner@site:alps".into()));
    assert_eq!(own.catalog.followed(pair.home_id).await.unwrap(), [pair.stands().await]);
    assert_eq!(own.catalog.followed_space(own.space.id).await.unwrap(), None, "it is at home there");

    let foreign = ErrorKind::Foreign { home: pair.home_id };
    let admin = &own.admin;
    assert_eq!(kind(own.catalog.create_collection(admin, &path("/lab/new"), false).await), foreign);
    assert_eq!(kind(own.prepare(own.wanted("/lab/new", Condition::Any)).await), foreign);
    assert_eq!(kind(own.rename("/lab/run", "/lab/walk", false).await), foreign);
    assert_eq!(kind(own.remove("/lab/run", true).await), foreign);
    assert_eq!(kind(own.catalog.remove_some(admin, &run, 1).await), foreign);
    assert_eq!(kind(own.catalog.set_grant(admin, &run, alice, Permission::Read).await), foreign);
    let lab = "lab".parse().unwrap();
    assert_eq!(kind(own.catalog.update_space(admin, &lab, SpaceChange::default()).await), foreign);
    assert_eq!(kind(own.catalog.remove_space(admin, &lab).await), foreign);
    assert_eq!(kind(own.catalog.snapshot(pair.space()).await), foreign);
    let mut wanted = own.wanted("/own/x", Condition::Any);
    wanted.store = home.store;
    assert_eq!(kind(own.prepare(wanted).await), foreign, "a store of another site takes no writes here");
    pair.assert_same().await;
}

async fn a_name_that_another_space_has_is_refused_by_name(home: Site) {
    let pair = Pair::of(home).await;
    let Pair { own, home, .. } = &pair;
    // A space of the home that is called as one of this site.
    let new = NewSpace {
        name: "own".parse().unwrap(),
        owner: subject("owner"),
        scope: SpaceScope::Private,
        store: None,
        members: Vec::new(),
        extraction: ExtractionMode::Async,
        quota: None,
        rules: Vec::new(),
    };
    let theirs = home.catalog.create_space(&home.admin, new).await.unwrap().id;
    let pieces = snapshot(&home.catalog, theirs).await;
    let refused = own.catalog.follow_snapshot(theirs, pair.home_id, HOME, OWN, channel(pieces)).await;
    let error = refused.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::AlreadyExists { version: None });
    assert!(error.to_string().contains("at home at this site"), "{error}");
    // And one of a third site that is called as the home's.
    let third = other(home, "coral").await;
    let new = NewSpace {
        name: "lab".parse().unwrap(),
        owner: subject("owner"),
        scope: SpaceScope::Private,
        store: None,
        members: Vec::new(),
        extraction: ExtractionMode::Async,
        quota: None,
        rules: Vec::new(),
    };
    let theirs = third.catalog.create_space(&third.admin, new).await.unwrap().id;
    let pieces = snapshot(&third.catalog, theirs).await;
    let third_id = third.catalog.site().await.unwrap().id;
    let refused = own.catalog.follow_snapshot(theirs, third_id, "coral", OWN, channel(pieces)).await;
    let error = refused.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::AlreadyExists { version: None });
    assert!(error.to_string().contains("at the site 'alps'"), "{error}");
    assert_eq!(own.catalog.followed_space(theirs).await.unwrap(), None);
    pair.assert_same().await;
}

async fn a_removed_space_is_removed_here(home: Site) {
    let pair = Pair::of(home).await;
    pair.home.put("/lab/x", 1).await;
    pair.home.remove("/lab/x", false).await.unwrap();
    pair.home.collect().await;
    pair.home.catalog.remove_space(&pair.home.admin, &"lab".parse().unwrap()).await.unwrap();
    pair.catch_up(2).await;
    assert_eq!(pair.own.catalog.followed_space(pair.space()).await.unwrap(), None);
    assert_eq!(pair.own.catalog.followed(pair.home_id).await.unwrap(), []);
    assert_eq!(kind(pair.own.catalog.space_digest(pair.space()).await), ErrorKind::SpaceNotFound);
    assert_eq!(pair.own.catalog.spaces(&pair.own.admin).await.unwrap().len(), 1);
    pair.own.assert_sound().await;
    // Its journal is still there, its name is free, and nothing follows.
    let position = pair.stands().await;
    assert_eq!(position, pair.home.catalog.position(pair.space()).await.unwrap());
    assert_eq!(pair.follow(Vec::new()).await.unwrap().position, position);
    let new = NewSpace {
        name: "lab".parse().unwrap(),
        owner: subject("owner"),
        scope: SpaceScope::Private,
        store: None,
        members: Vec::new(),
        extraction: ExtractionMode::Async,
        quota: None,
        rules: Vec::new(),
    };
    pair.own.catalog.create_space(&pair.own.admin, new).await.unwrap();
}

async fn two_servers_that_follow_at_once_are_one(home: Site) {
    let pair = Pair::of(home).await;
    let before = pair.stands().await;
    for n in 0..30 {
        pair.home.put(&format!("/lab/{}", n % 4), n).await;
    }
    let records = pair.records(before, 100).await;
    let second = pair.own.second().await;
    let follow = async |catalog: &Catalog| {
        for chunk in records.chunks(3) {
            // Whoever comes later finds them applied.
            catalog.follow(pair.space(), pair.home_id, HOME, OWN, chunk.to_vec()).await.unwrap();
        }
    };
    tokio::join!(follow(&pair.own.catalog), follow(&second));
    pair.assert_same().await;
    let pieces = snapshot(&pair.home.catalog, pair.space()).await;
    let take = async |catalog: &Catalog| {
        catalog.follow_snapshot(pair.space(), pair.home_id, HOME, OWN, channel(pieces.clone())).await.unwrap()
    };
    tokio::join!(take(&pair.own.catalog), take(&second));
    pair.assert_same().await;
}

async fn stores_of_other_sites_are_learned(home: Site) {
    let pair = Pair::of(home).await;
    let catalog = &pair.own.catalog;
    let theirs = async || {
        let mut stores = catalog.all_stores().await.unwrap();
        stores.retain(|store| store.site == Some(pair.home_id));
        stores.into_iter().map(|store| (store.id, store.name, store.layout, store.state)).collect::<Vec<_>>()
    };
    let mut one = described(&pair.home.catalog).await.remove(0);
    assert_eq!(theirs().await, [(one.id, "disk".to_owned(), StoreLayout::Managed, StoreState::Online)]);
    assert_eq!(catalog.stores().await.unwrap().len(), 1, "only own ones are offered");
    (one.name, one.layout, one.state) = ("tape".into(), StoreLayout::Native, StoreState::ReadOnly);
    catalog.learn_stores(pair.home_id, vec![one.clone()]).await.unwrap();
    let changed = (one.id, "tape".to_owned(), StoreLayout::Native, StoreState::ReadOnly);
    assert_eq!(theirs().await, [changed]);
    // One that a record names before its site has told of it.
    let early = StoreId::new();
    pair.home.put("/lab/x", 1).await;
    pair.catch_up(10).await;
    let version = pair.home.version("/lab/x").await;
    let copy = json!({ "items": [{ "version": version, "store": early, "state": "good", "key": "k" }] });
    pair.apply("replicas.changed", copy).await.unwrap();
    let stores = catalog.all_stores().await.unwrap();
    let nobody = stores.iter().find(|store| store.id == early).unwrap();
    assert_eq!((nobody.site, nobody.state), (Some(SiteId(uuid::Uuid::nil())), StoreState::Offline));
    let coral = SiteId::new();
    let early = ForeignStore {
        id: early,
        name: "disk".into(),
        layout: StoreLayout::Managed,
        state: StoreState::Online,
    };
    catalog.learn_stores(coral, vec![early.clone()]).await.unwrap();
    let open = pair.own.catalog.open_object(&pair.own.admin, &path("/lab/x"), None).await.unwrap();
    assert_eq!(open.replicas.len(), 2);
    // What is not listed any more stays, and is offline.
    catalog.learn_stores(pair.home_id, Vec::new()).await.unwrap();
    assert_eq!(theirs().await[0].3, StoreState::Offline);
    assert_eq!(
        pair.own.catalog.open_object(&pair.own.admin, &path("/lab/x"), None).await.unwrap().replicas.len(),
        2
    );
    // Nobody claims what is another's, and then the others of the call do not count either.
    let mine = ForeignStore { id: pair.own.store, ..one.clone() };
    let new = ForeignStore { id: StoreId::new(), ..one.clone() };
    for claimed in [mine, early, new.clone()] {
        let refused = catalog.learn_stores(pair.home_id, vec![new.clone(), claimed]).await;
        assert_eq!(kind(refused), ErrorKind::InvalidRequest);
    }
    assert_eq!(kind(catalog.learn_stores(pair.own_id, vec![new]).await), ErrorKind::InvalidRequest);
    assert_eq!(theirs().await.len(), 1);
    let refused = catalog.update_store(one.id, StoreChange::default()).await;
    assert_eq!(kind(refused), ErrorKind::Foreign { home: pair.home_id });
    pair.own.assert_sound().await;
}

async fn a_rewritten_native_file_leaves_old_copies_elsewhere(home: Site) {
    let native = home.catalog.add_store(new_store("native", StoreLayout::Native)).await.unwrap().id;
    let pair = Pair::of(home).await;
    let at = "/lab/run/x".to_owned();
    let report = async |version, store, state, root| {
        let report = ReplicaReport {
            space: pair.space(),
            version,
            store,
            key: None,
            state,
            generation: None,
            root,
            is_checked: true,
        };
        pair.home.catalog.report_replicas(&pair.home.admin, vec![report]).await.pop().unwrap().unwrap();
    };
    step(&pair, native, 1, &Op::Put(at.clone(), true)).await;
    step(&pair, native, 2, &Op::Copy(at.clone())).await;
    let old = pair.home.version(&at).await;
    step(&pair, native, 3, &Op::Rewrite(at.clone())).await;
    pair.catch_up(1).await;
    pair.assert_same().await;
    let former = pair.own.catalog.open_object(&pair.own.admin, &path(&at), Some(old)).await.unwrap();
    let states: Vec<_> = former.replicas.iter().map(|copy| (copy.store, copy.state)).collect();
    assert_eq!(states, [(pair.home.store, ReplicaState::Stale)]);
    // What becomes known of both is known there too.
    let new = pair.home.version(&at).await;
    report(new, native, ReplicaState::Good, Some(root(3))).await;
    report(old, pair.home.store, ReplicaState::Suspect, None).await;
    pair.catch_up(1).await;
    pair.assert_same().await;
    let content = pair.own.stat(&at).await.unwrap().content.unwrap();
    assert_eq!((content.version, content.root), (new, Some(root(3))));
    // All of it goes with the object, and nothing of that is garbage here.
    pair.home.remove("/lab/run", true).await.unwrap();
    pair.catch_up(1).await;
    pair.assert_same().await;
    assert_eq!(pair.own.collect().await, []);
}

on_both!(
    a_follower_answers_as_its_home_and_changes_nothing,
    a_name_that_another_space_has_is_refused_by_name,
    a_removed_space_is_removed_here,
    two_servers_that_follow_at_once_are_one,
    stores_of_other_sites_are_learned,
    a_rewritten_native_file_leaves_old_copies_elsewhere,
);
