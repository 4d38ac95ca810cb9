//! Full disks, killed processes, a database that goes away.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use percale_catalog::*;
use percale_core::ByteCount;
use percale_testkit::faults::{Schedule, rounds, seed};
use percale_testkit::postgres::Server;
use percale_testkit::tmpfs::SmallFileSystem;

use crate::journal::Follower;
use crate::site::{HOUR, Site, kind, path};

/// Tells a child process which catalog to write to, and under which name.
const CHILD_URL: &str = "PERCALE_TEST_CHILD_URL";
const CHILD_NAME: &str = "PERCALE_TEST_CHILD_NAME";

/// Not a test: what the child processes of the tests below run. Says each path that was acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "only a child process of other tests runs it"]
async fn child_that_writes() {
    let (Ok(url), Ok(name)) = (std::env::var(CHILD_URL), std::env::var(CHILD_NAME)) else { return };
    let catalog = Catalog::open(&CatalogConfig::new(url)).await.unwrap();
    let admin = percale_core::access::Caller::admin(percale_core::access::Identity::local("child"));
    let store = catalog.stores().await.unwrap()[0].id;
    let lease = catalog.acquire_lease(LeaseKind::Server, &name, HOUR, serde_json::json!({})).await.unwrap();
    let writers = (0..8).map(|writer| {
        let (catalog, admin, name) = (catalog.clone(), admin.clone(), name.clone());
        tokio::spawn(async move {
            for n in 0.. {
                let at = path(&format!("/lab/{name}/{writer}/{n}"));
                let wanted = Prepare {
                    caller: admin.clone(),
                    path: at.clone(),
                    parents: true,
                    condition: Condition::New,
                    lease: lease.id,
                    fence: lease.fence,
                    store,
                    natural_key: true,
                    token: "t".into(),
                    identity: None,
                    size: None,
                    mtime: None,
                    mode: None,
                };
                let intent = catalog.prepare(vec![wanted]).await.remove(0).unwrap();
                let commit = Commit::new(intent.id, ByteCount(n), None);
                catalog.commit(vec![commit]).await.remove(0).unwrap();
                println!("ACK {at}");
            }
        })
    });
    futures::future::join_all(writers).await;
}

fn start_child(url: &str, name: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "faults::child_that_writes", "--ignored", "--nocapture"])
        .env(CHILD_URL, url)
        .env(CHILD_NAME, name)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Lets a child write, kills it after some acknowledgements, and returns all that it has said.
fn run_and_kill(url: &str, name: &str, after: usize) -> Vec<String> {
    let mut child = start_child(url, name);
    let mut acknowledged = Vec::new();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for line in lines.map_while(std::result::Result::ok) {
        // The test harness writes to the same pipe, and the last line may be cut.
        if let Some(at) = line.split("ACK ").nth(1).filter(|at| at.split('/').count() == 5) {
            acknowledged.push(at.to_owned());
        }
        if acknowledged.len() == after {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    acknowledged
}

async fn a_killed_process_loses_nothing_acknowledged(site: Site) {
    let mut schedule = Schedule::new(seed("a_killed_process"));
    let mut acknowledged = Vec::new();
    if !site.is_postgres() {
        site.catalog.close().await;
    }
    for round in 0..rounds("PERCALE_KILL_ROUNDS", 4) {
        let after =
            schedule.pause(Duration::from_micros(20)..Duration::from_micros(400)).as_micros() as usize;
        let (url, name) = (site.config.url.clone(), format!("child{round}"));
        let lines = tokio::task::spawn_blocking(move || run_and_kill(&url, &name, after)).await.unwrap();
        assert!(lines.len() >= after);
        acknowledged.extend(lines);
    }
    let catalog = Catalog::open(&site.config).await.unwrap();
    let site = Site { catalog, ..site };
    let there: BTreeSet<String> = site.tree("/lab").await.into_iter().collect();
    for at in &acknowledged {
        assert!(there.contains(at), "{at} was acknowledged and is gone");
    }
    // What was in hand is found under the leases of the dead.
    for lapsed in site.catalog.take_over_all(LeaseKind::Server, "recoverer", HOUR).await.unwrap() {
        for row in site.catalog.intents_of(lapsed.lease.id).await.unwrap() {
            site.catalog.delete_intent(row.intent.id).await.unwrap();
        }
        site.catalog.release_lease(lapsed.lease.id, lapsed.lease.fence).await.unwrap();
    }
    site.assert_sound().await;
    Follower::of(&site).await.assert_same(&site).await;
}

on_both!(a_killed_process_loses_nothing_acknowledged);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_killed_and_comes_back_loses_nothing() {
    let Some(mut server) = tokio::task::spawn_blocking(Server::start).await.unwrap() else { return };
    let site = Arc::new(Site::open(CatalogConfig::new(server.database()), None).await);
    let second = site.second().await;
    let mut schedule = Schedule::new(seed("a_database_that_is_killed"));
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let written = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let mut writers = Vec::new();
    for writer in 0..8 {
        let (site, stop, written) = (site.clone(), stop.clone(), written.clone());
        let catalog = if writer % 2 == 0 { site.catalog.clone() } else { second.clone() };
        writers.push(tokio::spawn(async move {
            let mut acknowledged = Vec::new();
            for n in 0u64.. {
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                let at = format!("/lab/{writer}/{n}");
                // Every call outlasts the outage, and what it answers is so.
                let intent = catalog.prepare(vec![site.wanted(&at, Condition::New)]).await.remove(0).unwrap();
                let commit = Commit::new(intent.id, ByteCount(n), None);
                acknowledged.push(catalog.commit(vec![commit]).await.remove(0).unwrap());
                assert!(site.stat(&at).await.is_ok(), "readers outlast it as well");
                written.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            acknowledged
        }));
    }
    for _ in 0..rounds("PERCALE_KILL_ROUNDS", 4) {
        // On a slow machine, too, something is written between two kills.
        let before = written.load(std::sync::atomic::Ordering::Relaxed);
        tokio::time::sleep(schedule.pause(Duration::from_millis(50)..Duration::from_millis(400))).await;
        while written.load(std::sync::atomic::Ordering::Relaxed) < before + 15
            && !writers.iter().any(|writer| writer.is_finished())
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        server = tokio::task::spawn_blocking(move || {
            server.kill();
            server.start_again();
            server
        })
        .await
        .unwrap();
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut acknowledged = Vec::new();
    for writer in writers {
        acknowledged.extend(writer.await.unwrap());
    }
    assert!(acknowledged.len() > 50, "{} writes", acknowledged.len());
    for done in &acknowledged {
        let entry = site.catalog.stat(&site.admin, &done.path).await.unwrap();
        assert_eq!(entry.content.unwrap().version, done.version);
    }
    assert_eq!(site.tree("/lab").await.len(), acknowledged.len() + 8, "and nothing twice");
    assert!(site.catalog.intents_of(site.lease.id).await.unwrap().is_empty());
    site.assert_sound().await;
    Follower::of(&site).await.assert_same(&site).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_stays_away_is_said_to_be() {
    let Some(mut server) = tokio::task::spawn_blocking(Server::start).await.unwrap() else { return };
    let mut config = CatalogConfig::new(server.database());
    config.retry_budget = Duration::from_millis(500);
    let site = Site::open(config, None).await;
    site.put("/lab/x", 1).await;
    server = tokio::task::spawn_blocking(move || {
        server.kill();
        server
    })
    .await
    .unwrap();
    let make = site.catalog.create_collection(&site.admin, &path("/lab/d"), false).await.unwrap_err();
    assert_eq!((make.kind(), make.retry()), (&ErrorKind::Unavailable, Retry::Exhausted));
    assert_eq!(make.code(), percale_core::ErrorCode::CatalogUnavailable);
    assert_eq!(kind(site.stat("/lab/x").await), ErrorKind::Unavailable);
    assert!(site.catalog.ping().await.is_err());
    let mut unreachable = site.config.clone();
    unreachable.retry_budget = Duration::from_millis(100);
    assert_eq!(kind(Catalog::open(&unreachable).await), ErrorKind::Unavailable);
    let server = tokio::task::spawn_blocking(move || {
        server.start_again();
        server
    });
    let _server = server.await.unwrap();
    assert!(site.stat("/lab/x").await.is_ok());
    site.mkdir("/lab/d").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_said_and_gets_over() {
    let Some(small) = SmallFileSystem::mount(48 << 20) else { return };
    let config = CatalogConfig::new(format!("sqlite:{}", small.path().join("catalog.db").display()));
    let site = Arc::new(Site::open(config, None).await);
    site.put_many(&(0..2000).map(|n| format!("/lab/before/{n}")).collect::<Vec<_>>()).await;
    for room in [0, 4096, 40 << 10, 300 << 10] {
        let filler = small.fill_up(room);
        let mut acknowledged = Vec::new();
        let failed = loop {
            let n = acknowledged.len();
            let paths: Vec<_> = (0..50).map(|m| path(&format!("/lab/{room}/{n}-{m}"))).collect();
            let calls = paths.iter().map(|at| site.catalog.create_collection(&site.admin, at, true));
            let (done, failed): (Vec<_>, Vec<_>) =
                futures::future::join_all(calls).await.into_iter().partition(Result::is_ok);
            acknowledged.extend(done.into_iter().map(Result::unwrap));
            if let Some(failed) = failed.into_iter().next() {
                break failed;
            }
        };
        assert_eq!(kind(failed), ErrorKind::NoSpace);
        assert!(site.stat("/lab/before/7").await.is_ok(), "what is there is still read");
        std::fs::remove_file(filler).unwrap();
        site.mkdir(&format!("/lab/{room}/after")).await;
        let names = site.names(&format!("/lab/{room}")).await;
        for made in &acknowledged {
            assert!(names.contains(&made.entry.name), "{} was acknowledged", made.entry.name);
        }
        site.assert_sound().await;
    }
    Follower::of(&site).await.assert_same(&site).await;
}

/// What the wire does to the next commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    No,
    /// The commit reaches the server; its answer is lost.
    Answer,
    /// The commit is lost.
    Commit,
}

/// Stands between a catalog and its database, and returns the port to use instead.
async fn cutting_proxy(port: u16, cut: Arc<std::sync::Mutex<Cut>>) -> u16 {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let own = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            tokio::spawn(relay(client, server, cut.clone()));
        }
    });
    own
}

async fn relay(
    mut client: tokio::net::TcpStream,
    mut server: tokio::net::TcpStream,
    cut: Arc<std::sync::Mutex<Cut>>,
) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (mut up, mut down) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let Ok(count @ 1..) = read else { return };
                let is_commit = up[..count].windows(7).any(|bytes| bytes == b"COMMIT\0");
                let now = if is_commit { std::mem::replace(&mut *cut.lock().unwrap(), Cut::No) } else { Cut::No };
                if now == Cut::Commit {
                    return;
                }
                if server.write_all(&up[..count]).await.is_err() {
                    return;
                }
                if now == Cut::Answer {
                    // It was carried out once the server says anything.
                    let _ = server.read(&mut down).await;
                    return;
                }
            }
            read = server.read(&mut down) => {
                let Ok(count @ 1..) = read else { return };
                if client.write_all(&down[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_to_a_commit_is_asked_for_and_not_guessed() {
    let Some(server) = tokio::task::spawn_blocking(percale_testkit::postgres::shared).await.unwrap() else {
        return;
    };
    let url = tokio::task::spawn_blocking(|| server.database()).await.unwrap();
    let port = url.rsplit(':').next().and_then(|rest| rest.split('/').next()).unwrap().to_owned();
    let cut = Arc::new(std::sync::Mutex::new(Cut::No));
    let own = cutting_proxy(port.parse().unwrap(), cut.clone()).await;
    let site =
        Site::open(CatalogConfig::new(url.replace(&format!(":{port}/"), &format!(":{own}/"))), None).await;
    for n in 0..30 {
        let before = site.catalog.position(site.space.id).await.unwrap();
        *cut.lock().unwrap() = if n % 2 == 0 { Cut::Answer } else { Cut::Commit };
        // Made again after it had been committed, this would be a name that is taken.
        let made =
            site.catalog.create_collection(&site.admin, &path(&format!("/lab/{n}")), false).await.unwrap();
        assert_eq!(*cut.lock().unwrap(), Cut::No, "the wire was cut");
        assert_eq!(made.position.seq, before.seq + 1, "once");
        assert_eq!(site.catalog.position(site.space.id).await.unwrap(), made.position);
        assert_eq!(site.stat(&format!("/lab/{n}")).await.unwrap(), made.entry);
    }
    site.assert_sound().await;
    Follower::of(&site).await.assert_same(&site).await;
}
