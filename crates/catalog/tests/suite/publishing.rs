//! Prepare and commit.

use percale_catalog::*;
use percale_core::ids::{Fence, VersionId};
use percale_core::state::ReplicaState;
use percale_core::{ByteCount, Timestamp};

use crate::site::{Site, kind, path, root, subject, user};

async fn an_object_becomes_visible_with_its_commit(site: Site) {
    let mut wanted = site.wanted("/lab/run/1/x.h5", Condition::New);
    wanted.mtime = Some(Timestamp::from_micros(1_000_000));
    let intent = site.prepare(wanted).await.unwrap();
    assert_eq!(intent.key, "lab/run/1/x.h5", "the path itself");
    assert_eq!((intent.base, intent.space, intent.store), (None, site.space.id, site.store));
    assert_eq!(kind(site.stat("/lab/run/1/x.h5").await), ErrorKind::NotFound);
    let rows = site.catalog.intents_of(site.lease.id).await.unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].intent, intent);
    assert_eq!((rows[0].token.as_str(), rows[0].fence), ("token of /lab/run/1/x.h5", site.lease.fence));
    assert_eq!(rows[0].identity.as_deref(), Some("8:15"));

    let mut commit = Commit::new(intent.id, ByteCount(7), Some(root(7)));
    commit.digests = vec!["crc32c:00000007".parse().unwrap()];
    commit.generation = Some("gen".into());
    let done = site.catalog.commit(vec![commit.clone()]).await.pop().unwrap().unwrap();
    assert!(done.created);
    assert_eq!(
        (done.path, done.entry, done.version),
        (path("/lab/run/1/x.h5"), intent.entry, intent.version)
    );
    assert_eq!(done.position, site.catalog.position(site.space.id).await.unwrap());

    let entry = site.stat("/lab/run/1/x.h5").await.unwrap();
    let content = entry.content.unwrap();
    assert_eq!((content.version, content.size, content.root), (intent.version, ByteCount(7), Some(root(7))));
    assert_eq!(content.mtime, Some(Timestamp::from_micros(1_000_000)));
    assert_eq!(content.digests, commit.digests);
    let open = site.catalog.open_object(&site.admin, &path("/lab/run/1/x.h5"), None).await.unwrap();
    assert_eq!(open.replicas.len(), 1);
    assert_eq!(open.replicas[0].key, "lab/run/1/x.h5");
    assert_eq!((open.replicas[0].state, open.replicas[0].store), (ReplicaState::Good, site.store));
    assert_eq!(open.replicas[0].generation.as_deref(), Some("gen"));
    assert!(site.catalog.intents_of(site.lease.id).await.unwrap().is_empty());
    let again = site.catalog.commit(vec![commit]).await.pop().unwrap();
    assert_eq!(kind(again), ErrorKind::NotFound, "an intent commits once");
}

async fn conditions(site: Site) {
    let prepare = async |at: &str, condition| site.prepare(site.wanted(at, condition)).await;
    assert_eq!(
        kind(prepare("/lab/x", Condition::Existing).await),
        ErrorKind::PreconditionFailed { version: None }
    );
    let nine = Condition::Match(VersionId(9));
    assert_eq!(kind(prepare("/lab/x", nine).await), ErrorKind::PreconditionFailed { version: None });
    let x = site.put("/lab/x", 1).await;
    let there = Some(x.version);
    assert_eq!(kind(prepare("/lab/x", Condition::New).await), ErrorKind::AlreadyExists { version: there });
    assert_eq!(kind(prepare("/lab/x", nine).await), ErrorKind::PreconditionFailed { version: there });
    for condition in [Condition::Match(x.version), Condition::Existing, Condition::Any] {
        let intent = prepare("/lab/x", condition).await.unwrap();
        assert_eq!((intent.base, intent.entry), (there, x.entry));
        site.catalog.abandon(vec![intent.id]).await.unwrap();
    }
    site.mkdir("/lab/d").await;
    for condition in [Condition::New, Condition::Any] {
        assert_eq!(kind(prepare("/lab/d", condition).await), ErrorKind::IsCollection);
        assert_eq!(kind(prepare("/lab", condition).await), ErrorKind::IsCollection);
        assert_eq!(kind(prepare("/lab/x/y", condition).await), ErrorKind::NotACollection);
    }
    let mut wanted = site.wanted("/lab/no/parents", Condition::New);
    wanted.parents = false;
    assert_eq!(kind(site.prepare(wanted).await), ErrorKind::NotFound);
    assert_eq!(site.names("/lab").await, ["d", "x"], "refused preparations made nothing");
}

async fn overwriting_keeps_the_old_version_until_it_is_collected(site: Site) {
    let first = site.put("/lab/x", 1).await;
    let second = site.put("/lab/x", 2).await;
    assert!(!second.created);
    assert_eq!(second.entry, first.entry);
    let at = path("/lab/x");
    let open = site.catalog.open_object(&site.admin, &at, None).await.unwrap();
    assert_eq!((open.version, open.is_current, open.size), (second.version, true, ByteCount(2)));
    assert_eq!(
        open.replicas[0].key,
        format!(".percale/versions/{}/{}", site.space.id, second.version),
        "the path is taken by the first"
    );
    let old = site.catalog.open_object(&site.admin, &at, Some(first.version)).await.unwrap();
    assert_eq!((old.version, old.is_current, old.size), (first.version, false, ByteCount(1)));
    assert!(old.replicas.is_empty(), "its bytes are garbage");
    let garbage = site.catalog.garbage(site.store, 10).await.unwrap();
    assert_eq!(garbage.len(), 1);
    assert_eq!((garbage[0].key.as_str(), garbage[0].version), ("lab/x", first.version));

    // The key stays taken while the bytes are there, and is free after.
    site.rename("/lab/x", "/lab/y", false).await.unwrap();
    let intent = site.prepare(site.wanted("/lab/x", Condition::New)).await.unwrap();
    assert!(intent.key.starts_with(".percale/versions/"), "{}", intent.key);
    site.catalog.collected(garbage).await.unwrap();
    let gone = site.catalog.open_object(&site.admin, &path("/lab/y"), Some(first.version)).await;
    assert_eq!(kind(gone), ErrorKind::NotFound, "the version is forgotten with its last byte");
    let intent = site.prepare(site.wanted("/lab/x", Condition::New)).await.unwrap();
    assert_eq!(intent.key, "lab/x");
    let other = site.prepare(site.wanted("/lab/x", Condition::New)).await.unwrap();
    assert!(other.key.starts_with(".percale/versions/"), "reserved by the first: {}", other.key);
}

async fn of_two_writers_on_one_path_one_wins(site: Site) {
    let second = site.second().await;
    for (round, base) in [None, Some(()), Some(()), Some(())].into_iter().enumerate() {
        let condition = if base.is_some() { Condition::Existing } else { Condition::New };
        let mine = site.prepare(site.wanted("/lab/x", condition)).await.unwrap();
        let theirs = second.prepare(vec![site.wanted("/lab/x", condition)]).await.pop().unwrap().unwrap();
        assert_ne!(mine.version, theirs.version);
        let commit = |intent: &Intent| vec![Commit::new(intent.id, ByteCount(round as u64), None)];
        let (one, two) = tokio::join!(site.catalog.commit(commit(&mine)), second.commit(commit(&theirs)));
        let outcomes = [one.into_iter().next().unwrap(), two.into_iter().next().unwrap()];
        let winner = outcomes.iter().flatten().next().expect("somebody wins").version;
        let lost: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        assert_eq!(lost.len(), 1, "{outcomes:?}");
        assert_eq!(*lost[0].kind(), ErrorKind::Conflict { version: Some(winner) });
        assert_eq!(site.version("/lab/x").await, winner);
        let left = site.catalog.intents_of(site.lease.id).await.unwrap();
        assert_eq!(left.len(), 1, "the loser's intent stays for undoing");
        site.catalog.delete_intent(left[0].intent.id).await.unwrap();
    }
}

async fn a_holder_that_lost_its_lease_cannot_commit(site: Site) {
    let intent = site.prepare(site.wanted("/lab/x", Condition::New)).await.unwrap();
    let taken = site.catalog.take_over_all(LeaseKind::Server, "server 2", crate::site::HOUR).await.unwrap();
    assert_eq!(taken.len(), 1);
    assert_eq!((taken[0].old_fence, taken[0].old_holder.as_str()), (site.lease.fence, "server 1"));
    assert!(taken[0].lease.fence > site.lease.fence);
    assert_eq!(kind(site.commit(&intent, 1).await), ErrorKind::LeaseExpired);
    assert_eq!(kind(site.prepare(site.wanted("/lab/y", Condition::New)).await), ErrorKind::LeaseExpired);
    assert_eq!(kind(site.stat("/lab/x").await), ErrorKind::NotFound);
    let rows = site.catalog.intents_of(site.lease.id).await.unwrap();
    assert_eq!(rows.len(), 1, "the recoverer finds what to undo");
    assert_eq!(rows[0].path, Some(path("/lab/x")));
    let mut wanted = site.wanted("/lab/y", Condition::New);
    wanted.fence = Fence(site.lease.fence.0 + 100);
    assert_eq!(kind(site.prepare(wanted).await), ErrorKind::LeaseExpired, "a fence from nowhere");
}

async fn an_expired_lease_cannot_commit(site: Site) {
    let short = std::time::Duration::from_millis(300);
    let lease =
        site.catalog.acquire_lease(LeaseKind::Upload, "client", short, serde_json::json!({})).await.unwrap();
    let mut wanted = site.wanted("/lab/x", Condition::New);
    (wanted.lease, wanted.fence) = (lease.id, lease.fence);
    let intent = site.prepare(wanted).await.unwrap();
    percale_testkit::wait::until_async("the lease to lapse", crate::site::HOUR, async || {
        (site.catalog.now().await.unwrap() >= lease.expires).then_some(())
    })
    .await;
    assert_eq!(kind(site.commit(&intent, 1).await), ErrorKind::LeaseExpired);
    assert_eq!(kind(site.catalog.renew_lease(lease.id, lease.fence, short).await), ErrorKind::LeaseExpired);
}

async fn what_happens_to_the_collection_in_between(site: Site) {
    let moved = site.prepare(site.wanted("/lab/a/x", Condition::New)).await.unwrap();
    site.rename("/lab/a", "/lab/b", false).await.unwrap();
    let done = site.commit(&moved, 1).await.unwrap();
    assert_eq!(done.path, path("/lab/b/x"), "the object goes with its collection");
    let lost = site.prepare(site.wanted("/lab/c/x", Condition::New)).await.unwrap();
    site.remove("/lab/c", false).await.unwrap();
    assert_eq!(kind(site.commit(&lost, 1).await), ErrorKind::NotFound);
    site.mkdir("/lab/c").await;
    assert_eq!(
        kind(site.commit(&lost, 1).await),
        ErrorKind::NotFound,
        "another collection of that name is another"
    );
    let late = site.prepare(site.wanted("/lab/d", Condition::New)).await.unwrap();
    site.mkdir("/lab/d").await;
    assert_eq!(kind(site.commit(&late, 1).await), ErrorKind::Conflict { version: None });
    let overwrite = site.prepare(site.wanted("/lab/b/x", Condition::Existing)).await.unwrap();
    site.remove("/lab/b/x", false).await.unwrap();
    assert_eq!(kind(site.commit(&overwrite, 1).await), ErrorKind::Conflict { version: None });
}

async fn batches_are_one_transaction_with_an_outcome_for_each(site: Site) {
    site.put("/lab/there", 1).await;
    let before = site.catalog.position(site.space.id).await.unwrap();
    let wanted = (0..500).map(|n| match n {
        77 => site.wanted("/lab/there", Condition::New),
        n => site.wanted(&format!("/lab/{}/{n}", n % 5), Condition::New),
    });
    let intents = site.catalog.prepare(wanted.collect()).await;
    assert_eq!(intents.iter().filter(|intent| intent.is_ok()).count(), 499);
    assert!(intents[77].is_err());
    let after = site.catalog.position(site.space.id).await.unwrap();
    assert_eq!(after.seq, before.seq + 1, "five collections are one record");
    let mut commits: Vec<_> =
        intents.iter().flatten().map(|intent| Commit::new(intent.id, ByteCount(3), Some(root(3)))).collect();
    commits.push(commits[0].clone());
    let done = site.catalog.commit(commits).await;
    assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 499);
    assert!(done[499].is_err(), "the same intent twice");
    let end = site.catalog.position(site.space.id).await.unwrap();
    assert_eq!(end.seq, after.seq + 1, "499 publications are one record");
    assert!(done.iter().flatten().all(|done| done.position == end));
    assert_eq!(site.tree("/lab").await.len(), 5 + 499 + 1);
}

async fn the_same_path_twice_in_one_batch(site: Site) {
    let wanted = vec![site.wanted("/lab/x", Condition::New), site.wanted("/lab/x", Condition::New)];
    let intents: Vec<_> = site.catalog.prepare(wanted).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(intents[0].key, "lab/x");
    assert_ne!(intents[1].key, "lab/x");
    let commits = intents.iter().map(|intent| Commit::new(intent.id, ByteCount(1), None)).collect();
    let done = site.catalog.commit(commits).await;
    assert!(done[0].is_ok());
    let winner = intents[0].version;
    assert_eq!(*done[1].as_ref().unwrap_err().kind(), ErrorKind::Conflict { version: Some(winner) });
}

async fn another_key_than_the_reserved_one(site: Site) {
    site.put("/lab/x", 1).await;
    let intent = site.prepare(site.wanted("/lab/y", Condition::New)).await.unwrap();
    let with_key = |key: &str| {
        let mut commit = Commit::new(intent.id, ByteCount(1), None);
        commit.key = Some(key.into());
        vec![commit]
    };
    let taken = site.catalog.commit(with_key("lab/x")).await.pop().unwrap();
    assert!(matches!(kind(taken), ErrorKind::Conflict { .. }));
    let own = format!(".percale/versions/{}/{}", site.space.id, intent.version);
    site.catalog.commit(with_key(&own)).await.pop().unwrap().unwrap();
    let open = site.catalog.open_object(&site.admin, &path("/lab/y"), None).await.unwrap();
    assert_eq!(
        (open.replicas[0].key.as_str(), open.replicas[0].state),
        (own.as_str(), ReplicaState::Unverified)
    );
}

async fn an_answer_is_kept_with_the_commit(site: Site) {
    let key = AnswerKey { caller: "user:alice".into(), key: "k1".into() };
    assert_eq!(site.catalog.remember(&key, [1; 32]).await.unwrap(), Remembered::First);
    let intent = site.prepare(site.wanted("/lab/x", Condition::New)).await.unwrap();
    let mut commit = Commit::new(intent.id, ByteCount(1), None);
    commit.answer = Some(key.clone());
    let done = site.catalog.commit(vec![commit]).await.pop().unwrap().unwrap();
    let Remembered::Same(answer) = site.catalog.remember(&key, [1; 32]).await.unwrap() else {
        panic!("no answer")
    };
    assert_eq!(answer.status, 201);
    assert_eq!(serde_json::from_str::<Committed>(&answer.body).unwrap(), done);
}

async fn who_may_write(site: Site) {
    let alice = user("alice");
    let as_alice = |at: &str| Prepare { caller: alice.clone(), ..site.wanted(at, Condition::Any) };
    site.mkdir("/lab/hers").await;
    let denied = site.prepare(as_alice("/lab/hers/x")).await.unwrap_err();
    assert_eq!(denied.code(), percale_core::ErrorCode::NotFound);
    let grant = async |permission| {
        let at = path("/lab/hers");
        site.catalog.set_grant(&site.admin, &at, subject("alice"), permission).await.unwrap();
    };
    grant(percale_core::access::Permission::Read).await;
    let denied = site.prepare(as_alice("/lab/hers/x")).await.unwrap_err();
    assert_eq!(denied.code(), percale_core::ErrorCode::Forbidden);
    grant(percale_core::access::Permission::Write).await;
    let intent = site.prepare(as_alice("/lab/hers/deep/x")).await.unwrap();
    site.commit(&intent, 1).await.unwrap();
    let denied = site.prepare(as_alice("/lab/x")).await.unwrap_err();
    assert_eq!(denied.code(), percale_core::ErrorCode::NotFound);

    let read_only = StoreChange { state: Some(StoreState::ReadOnly), ..Default::default() };
    site.catalog.update_store(site.store, read_only).await.unwrap();
    assert_eq!(kind(site.prepare(as_alice("/lab/hers/y")).await), ErrorKind::ReadOnly);
    let online = StoreChange { state: Some(StoreState::Online), ..Default::default() };
    site.catalog.update_store(site.store, online).await.unwrap();
    let late = site.prepare(as_alice("/lab/hers/y")).await.unwrap();
    let change = SpaceChange { state: Some(SpaceState::ReadOnly), ..Default::default() };
    site.catalog.update_space(&site.admin, &site.space.name, change).await.unwrap();
    assert_eq!(kind(site.prepare(as_alice("/lab/hers/z")).await), ErrorKind::ReadOnly);
    assert_eq!(kind(site.commit(&late, 1).await), ErrorKind::ReadOnly);
}

on_both!(
    an_object_becomes_visible_with_its_commit,
    conditions,
    overwriting_keeps_the_old_version_until_it_is_collected,
    of_two_writers_on_one_path_one_wins,
    a_holder_that_lost_its_lease_cannot_commit,
    an_expired_lease_cannot_commit,
    what_happens_to_the_collection_in_between,
    batches_are_one_transaction_with_an_outcome_for_each,
    the_same_path_twice_in_one_batch,
    another_key_than_the_reserved_one,
    an_answer_is_kept_with_the_commit,
    who_may_write,
);
