//! Many callers at once, of one server and of two, and callers that go away.

use std::sync::Arc;
use std::time::Duration;

use percale_catalog::*;
use percale_core::ByteCount;
use percale_testkit::faults::{Schedule, seed};

use crate::journal::Follower;
use crate::site::{Site, kind, path};

fn a_path(schedule: &mut Schedule) -> String {
    const NAMES: [&str; 3] = ["a", "b", "c"];
    let depth = *schedule.pick(&[1, 2, 3]);
    let names: Vec<&str> = (0..depth).map(|_| *schedule.pick(&NAMES)).collect();
    format!("/lab/{}", names.join("/"))
}

/// One operation that may meet those of others, with any outcome that is not a fault.
async fn act(site: &Site, catalog: &Catalog, schedule: &mut Schedule) {
    let (one, other) = (a_path(schedule), a_path(schedule));
    let admin = &site.admin;
    let outcome = match *schedule.pick(&[0, 1, 1, 1, 2, 2, 3, 4]) {
        0 => catalog.create_collection(admin, &path(&one), true).await.map(drop),
        1 => put(site, catalog, &one).await,
        2 => {
            let options = RenameOptions::default().overwrite(*schedule.pick(&[true, false]));
            catalog.rename(admin, &path(&one), &path(&other), options).await.map(drop)
        }
        3 => {
            let options = RemoveOptions::default().recursive(*schedule.pick(&[true, false]));
            catalog.remove(admin, &path(&one), options).await.map(drop)
        }
        _ => catalog.remove_some(admin, &path(&one), 2).await.map(drop),
    };
    if let Err(error) = outcome {
        let is_expected = matches!(
            error.kind(),
            ErrorKind::NotFound
                | ErrorKind::AlreadyExists { .. }
                | ErrorKind::NotEmpty
                | ErrorKind::IsCollection
                | ErrorKind::NotACollection
                | ErrorKind::Conflict { .. }
                | ErrorKind::InvalidRequest
        );
        assert!(is_expected, "{error:?}");
    }
}

async fn put(site: &Site, catalog: &Catalog, at: &str) -> Result<()> {
    let intent = catalog.prepare(vec![site.wanted(at, Condition::Any)]).await.remove(0)?;
    let commit = Commit::new(intent.id, ByteCount(1), None);
    let done = catalog.commit(vec![commit]).await.remove(0);
    if done.is_err() {
        catalog.abandon(vec![intent.id]).await?;
    }
    done.map(drop)
}

async fn random_operations_at_once_leave_a_sound_catalog(site: Site) {
    let schedule = Schedule::new(seed("random_operations_at_once"));
    let second = site.second().await;
    let site = Arc::new(site);
    let mut workers = Vec::new();
    for number in 0..8 {
        let (site, mut schedule) = (site.clone(), schedule.actor(number));
        let catalog = if number % 2 == 0 { site.catalog.clone() } else { second.clone() };
        workers.push(tokio::spawn(async move {
            for _ in 0..60 {
                act(&site, &catalog, &mut schedule).await;
            }
        }));
    }
    for worker in workers {
        worker.await.unwrap();
    }
    site.assert_sound().await;
    Follower::of(&site).await.assert_same(&site).await;
    assert!(site.catalog.intents_of(site.lease.id).await.unwrap().is_empty());
}

async fn calls_that_are_dropped_leave_nothing_behind(site: Site) {
    let mut schedule = Schedule::new(seed("calls_that_are_dropped"));
    for n in 0..300 {
        let patience = schedule.pause(Duration::ZERO..Duration::from_millis(3));
        let at = format!("/lab/{}/{}", n % 7, n % 13);
        let paths = [path(&at)];
        let _ = tokio::time::timeout(patience, site.catalog.open_many(&site.admin, &paths)).await;
        let _ = tokio::time::timeout(patience, put(&site, &site.catalog, &at)).await;
        let _ =
            tokio::time::timeout(patience, site.catalog.list(&site.admin, &paths[0], ListOptions::default()))
                .await;
    }
    // What was sent may still be on its way; the writer takes it in order.
    let end = site.mkdir("/lab/end").await;
    assert_eq!(site.stat("/lab/end").await.unwrap(), end, "no call sees the snapshot of another");
    for row in site.catalog.intents_of(site.lease.id).await.unwrap() {
        site.catalog.delete_intent(row.intent.id).await.unwrap();
    }
    site.assert_sound().await;
    Follower::of(&site).await.assert_same(&site).await;
}

async fn many_writers_share_their_commits(site: Site) {
    let site = Arc::new(site);
    let mut writers = Vec::new();
    for writer in 0..32 {
        let site = site.clone();
        writers.push(tokio::spawn(async move {
            let mut positions = Vec::new();
            for n in 0..20 {
                positions.push(site.put(&format!("/lab/{}/{writer}-{n}", writer % 4), n).await.position.seq);
            }
            assert!(positions.is_sorted(), "each sees its own writes in order");
            positions
        }));
    }
    let mut positions = Vec::new();
    for writer in writers {
        positions.extend(writer.await.unwrap());
    }
    positions.sort_unstable();
    positions.dedup();
    assert_eq!(positions.len(), 32 * 20, "each publication has its own record");
    assert_eq!(site.tree("/lab").await.len(), 32 * 20 + 4);
}

async fn one_change_that_cannot_be_does_not_hurt_the_others(site: Site) {
    // 0 is not text for PostgreSQL: the statement fails, and with it the transaction of all that came together.
    let bad = site.catalog.acquire_lease(LeaseKind::Upload, "a\0b", crate::site::HOUR, serde_json::json!({}));
    let paths: Vec<_> = (0..20).map(|n| path(&format!("/lab/{n}"))).collect();
    let good = paths.iter().map(|at| site.catalog.create_collection(&site.admin, at, false));
    let (bad, good) = tokio::join!(bad, futures::future::join_all(good));
    assert!(good.iter().all(Result::is_ok));
    if site.is_postgres() {
        assert_eq!(kind(bad), ErrorKind::InvalidRequest);
    }
    assert_eq!(site.names("/lab").await.len(), 20);
    site.assert_sound().await;
}

on_both!(
    random_operations_at_once_leave_a_sound_catalog,
    calls_that_are_dropped_leave_nothing_behind,
    many_writers_share_their_commits,
    one_change_that_cannot_be_does_not_hurt_the_others,
);
