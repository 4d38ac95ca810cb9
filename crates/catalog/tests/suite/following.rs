//! Following: a follower has the rows of the home, or says that it has not.

use percale_catalog::*;
use percale_core::ByteCount;
use percale_core::access::{Permission, Subject};
use percale_core::ids::StoreId;
use percale_core::state::ReplicaState;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::pair::Pair;
use crate::site::{Site, new_store, path, root, subject};

#[derive(Debug, Clone)]
enum Op {
    Make(String),
    Put(String, bool),
    PutMany(Vec<String>),
    Rename(String, String),
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
        5 => (a_path(), a_path()).prop_map(|(from, to)| Op::Rename(from, to)),
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
        Op::Rename(from, to) => drop(pair.home.rename(from, to, true).await),
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
            let change = SpaceChange { owner, scope, store, state: None };
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
