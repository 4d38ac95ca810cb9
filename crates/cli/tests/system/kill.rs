//! The server, or its database, is killed again and again while four clients write and rename.
//!
//! `PERCALE_KILLS` is the number of kills (200 for the full run), `PERCALE_SEED` repeats a schedule. Only kills that cut
//! off at least one request count; each is logged with what was in flight.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use percale_client::{Client, Outcome, Report};
use percale_core::tree::RootHash;
use percale_testkit::faults::{self, Schedule};

use crate::ledger::{Ledger, Resolved, State};
use crate::world::{World, is_whole, local_file, noting, path};

const KINDS: [Kind; 4] = [Kind::Small, Kind::Batch, Kind::Large, Kind::Overwrite];
/// Every so many kills, all replicas are hashed and all rows compared with the disk.
const DEEP_EVERY: u32 = 20;

/// What a client does, besides renaming what it has put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Small new objects, one by one.
    Small,
    /// Trees of small objects.
    Batch,
    /// Resumable uploads.
    Large,
    /// New contents for the same few paths.
    Overwrite,
}

/// One client and its book.
struct Actor {
    kind: Kind,
    client: Client,
    schedule: Schedule,
    local: PathBuf,
    ledger: Ledger,
    number: u64,
    shared: Arc<Shared>,
}

/// What the one who kills sees of an actor.
#[derive(Default)]
struct Shared {
    /// Grows by one when a request begins and again when it ends: odd while it is in flight.
    requests: AtomicU64,
    what: Mutex<String>,
    stop: AtomicBool,
}

impl Actor {
    fn name(&self) -> String {
        format!("{:?}", self.kind).to_lowercase()
    }

    /// Works until told to stop, or until something was not answered: then nothing more is known of those paths.
    async fn work(&mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.number += 1;
            let rename = self.number > 3 && self.schedule.chance(0.3);
            let answered = if rename { self.rename().await } else { self.put().await };
            if !answered {
                return;
            }
        }
    }

    async fn put(&mut self) -> bool {
        let number = self.number;
        let seed = self.schedule.number(1..u64::MAX);
        match self.kind {
            Kind::Small => {
                let size = self.schedule.number(0..40_000);
                self.put_one(&format!("small/{:02}/{number:05}", number % 20), seed, size).await
            }
            Kind::Large => {
                let size = self.schedule.number(9 << 20..33 << 20);
                self.put_one(&format!("large/{number:05}"), seed, size).await
            }
            Kind::Overwrite => {
                let size = self.schedule.number(0..3 << 20);
                self.put_one(&format!("overwrite/{}", number % 5), seed, size).await
            }
            Kind::Batch => self.put_batch(number, seed).await,
        }
    }

    async fn put_one(&mut self, name: &str, seed: u64, size: u64) -> bool {
        let local = self.local.join("file");
        let target = path(name);
        let root = local_file(&local, seed, size);
        let (mut options, _) = noting();
        options.overwrite = self.kind == Kind::Overwrite;
        options.state_dir = Some(self.local.join("state"));
        self.begin(format!("put {target} ({size} bytes)"));
        let outcome = self.client.put_file(&local, &target, &options).await;
        self.end();
        let after = State::from([(target, Some(root))]);
        let answered = outcome.as_ref().is_ok_and(is_whole);
        self.book(after, answered, &said(&outcome))
    }

    /// Each object of a tree is a change of its own.
    async fn put_batch(&mut self, number: u64, seed: u64) -> bool {
        let folder = self.local.join("tree");
        let _ = std::fs::remove_dir_all(&folder);
        let mut wanted = BTreeMap::new();
        let collection = path(&format!("batch/{number:05}"));
        for part in 0..self.schedule.number(2..40) {
            let name = format!("part-{part:03}");
            let root =
                local_file(&folder.join(&name), seed.wrapping_add(part), self.schedule.number(0..200_000));
            wanted.insert(path(&format!("batch/{number:05}/{name}")), root);
        }
        let (options, acknowledged) = noting();
        self.begin(format!("put {} objects into {collection}", wanted.len()));
        let outcome = self.client.put_tree(&folder, &collection, &options).await;
        self.end();
        for (path, root) in acknowledged.lock().unwrap().drain(..) {
            assert_eq!(wanted.remove(&path), Some(root), "{path} was acknowledged with another content");
            self.ledger.acknowledged(State::from([(path, Some(root))]));
        }
        let answered = outcome.as_ref().is_ok_and(is_whole);
        // Where only the answer was lost, the client finds its own content there and says so; that is an answer too.
        for (path, root) in wanted {
            self.book(State::from([(path, Some(root))]), answered, &said(&outcome));
        }
        answered
    }

    /// Renames an object, or a whole collection of a batch.
    async fn rename(&mut self) -> bool {
        let mut moved: Vec<(String, RootHash)> = Vec::new();
        let (from, to) = match self.kind {
            Kind::Batch => {
                let collections: Vec<String> = self
                    .ledger
                    .objects()
                    .filter_map(|(path, _)| {
                        path.as_str().rsplit_once('/').map(|(collection, _)| collection.to_owned())
                    })
                    .collect();
                let Some(from) = some_of(&mut self.schedule, collections) else { return true };
                let to = path(&format!("batch/moved-{:05}", self.number)).as_str().to_owned();
                for (path, root) in self.ledger.objects() {
                    if let Some(name) = path.as_str().strip_prefix(&format!("{from}/")) {
                        moved.push((format!("/{name}"), root));
                    }
                }
                (from, to)
            }
            _ => {
                let objects = self.ledger.objects().map(|(path, _)| path.as_str().to_owned()).collect();
                let Some(from) = some_of(&mut self.schedule, objects) else { return true };
                // Of one overwritten path to another that is free, so that its next put makes it anew.
                let to = path(&format!("{}/renamed-{:05}", self.name(), self.number)).as_str().to_owned();
                let root = self.ledger.at(&from.parse().unwrap()).unwrap();
                moved.push((String::new(), root));
                (from, to)
            }
        };
        let mut after = State::new();
        for (rest, root) in moved {
            after.insert(format!("{from}{rest}").parse().unwrap(), None);
            after.insert(format!("{to}{rest}").parse().unwrap(), Some(root));
        }
        self.begin(format!("rename {from} to {to}"));
        let outcome = self.client.rename(&from.parse().unwrap(), &to.parse().unwrap(), false).await;
        self.end();
        let said = outcome.as_ref().err().map(ToString::to_string).unwrap_or_default();
        self.book(after, outcome.is_ok(), &said)
    }

    fn book(&mut self, after: State, answered: bool, outcome: &str) -> bool {
        if answered {
            self.ledger.acknowledged(after);
        } else {
            assert!(
                self.shared.stop.load(Ordering::Relaxed),
                "{}: failed although the server ran: {outcome}",
                self.shared.what.lock().unwrap()
            );
            // Every client tries again until the server is back, so few changes end here.
            eprintln!("unanswered: {}: {outcome}", self.shared.what.lock().unwrap());
            self.ledger.unanswered(after);
        }
        answered
    }

    fn begin(&self, what: String) {
        *self.shared.what.lock().unwrap() = what;
        self.shared.requests.fetch_add(1, Ordering::SeqCst);
    }

    fn end(&self) {
        self.shared.requests.fetch_add(1, Ordering::SeqCst);
    }
}

/// What a put ended with, in short.
fn said(outcome: &percale_client::Result<Report>) -> String {
    match outcome {
        Ok(report) => match report.failures.first().map(|item| &item.outcome) {
            Some(Outcome::Failed(error)) => error.to_string(),
            other => format!("{other:?}"),
        },
        Err(error) => error.to_string(),
    }
}

fn some_of(schedule: &mut Schedule, names: Vec<String>) -> Option<String> {
    (!names.is_empty()).then(|| schedule.pick(&names).clone())
}

/// A kill, and what it cut off.
struct Kill {
    cut_off: Vec<String>,
    staged_files: usize,
    staged_bytes: u64,
}

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Server,
    Database,
}

/// Kills at a moment when requests are in flight, and proves afterwards that they were.
fn kill(world: &mut World, victim: Victim, actors: &[Arc<Shared>]) -> Kill {
    let in_flight =
        || -> Vec<u64> { actors.iter().map(|actor| actor.requests.load(Ordering::SeqCst)).collect() };
    let before = in_flight();
    match victim {
        Victim::Server => world.site.kill(),
        Victim::Database => world.postgres.as_mut().unwrap().kill(),
    }
    let after = in_flight();
    let cut_off = actors
        .iter()
        .zip(before.iter().zip(&after))
        // The same request as before the kill, still without an answer after the process was gone.
        .filter(|(_, (before, after))| before == after && **before % 2 == 1)
        .map(|(actor, _)| actor.what.lock().unwrap().clone())
        .collect();
    let staged = world.staged();
    let staged_bytes = staged.iter().map(|(_, bytes)| bytes).sum();
    Kill { cut_off, staged_files: staged.len(), staged_bytes }
}

/// Waits until bytes of some write are staged, for at most 5 s.
async fn bytes_in_flight(world: &World) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline && world.staged().iter().all(|(_, bytes)| *bytes == 0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Compares each actor's book with what is there, and reads what changed.
async fn settle(world: &World, actors: &mut [Actor]) -> Resolved {
    let entries = world.objects().await;
    let mut total = Resolved::default();
    for actor in actors.iter_mut() {
        let name = actor.name();
        let prefix = path(&name);
        let own: Vec<_> = entries.iter().filter(|entry| entry.path.is_within(&prefix)).cloned().collect();
        let resolved = actor.ledger.settle(&name, &own);
        total.done += resolved.done;
        total.undone += resolved.undone;
        // A listing tells the catalog's side; of some, the bytes.
        let objects: Vec<_> = actor.ledger.objects().map(|(path, root)| (path.clone(), root)).collect();
        for _ in 0..objects.len().min(5) {
            let (path, root) = actor.schedule.pick(&objects).clone();
            assert_eq!(world.read(&path).await, root, "{path} has other bytes than acknowledged");
        }
    }
    let owned: usize = actors.iter().map(|actor| actor.ledger.objects().count()).sum();
    assert_eq!(owned, entries.len(), "there are objects of nobody");
    total
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_acknowledged_is_lost_and_nothing_partial_is_seen() {
    let world = World::new(World::options()).await;
    run(world, Victim::Server, faults::rounds("PERCALE_KILLS", 40)).await;
}

/// Here a server that died leaves a lease that lives for another 15 seconds, and the new server works beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_same_on_postgresql() {
    let Some(world) = World::on_postgres(World::options()).await else { return };
    run(world, Victim::Server, faults::rounds("PERCALE_KILLS", 40).div_ceil(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_same_when_the_database_is_killed() {
    let Some(world) = World::on_postgres(World::options()).await else { return };
    run(world, Victim::Database, faults::rounds("PERCALE_KILLS", 40).div_ceil(5)).await;
}

async fn run(mut world: World, victim: Victim, kills: u32) {
    let schedule = Schedule::new(faults::seed("kill"));
    let work = tempfile::tempdir().unwrap();
    let mut killer = schedule.actor(99);
    let mut actors: Vec<Actor> = KINDS
        .iter()
        .zip(0..)
        .map(|(kind, number)| Actor {
            kind: *kind,
            client: world.client(),
            schedule: schedule.actor(number),
            local: work.path().join(format!("{kind:?}")),
            ledger: Ledger::default(),
            number: 0,
            shared: Arc::default(),
        })
        .collect();

    let mut totals = Resolved::default();
    let (mut landed, mut missed, mut with_bytes) = (0, 0, 0);
    // The lot may pass over the writes of bytes: then the next kill waits for some, and there may be a few more of them.
    let behind = |with_bytes: u32, landed: u32| with_bytes * 2 < landed;
    while landed < kills || (behind(with_bytes, landed) && landed < 2 * kills) {
        let shared: Vec<_> = actors.iter().map(|actor| actor.shared.clone()).collect();
        for actor in &shared {
            actor.stop.store(false, Ordering::Relaxed);
        }
        let mut running = tokio::task::JoinSet::new();
        for mut actor in actors.drain(..) {
            running.spawn(async move {
                actor.work().await;
                actor
            });
        }
        let pause = killer.pause(Duration::from_millis(5)..Duration::from_millis(400));
        let began = Instant::now();
        tokio::time::sleep(pause).await;
        if behind(with_bytes, landed + 1) {
            bytes_in_flight(&world).await;
        }
        // From here on a failure is no surprise, and each actor ends what it has begun.
        for actor in &shared {
            actor.stop.store(true, Ordering::Relaxed);
        }
        let kill = kill(&mut world, victim, &shared);
        let after = began.elapsed();
        // Sometimes the clients notice while the server is away, sometimes when it is back.
        if killer.chance(0.5) {
            tokio::time::sleep(killer.pause(Duration::from_millis(1)..Duration::from_millis(200))).await;
        }
        world = tokio::task::spawn_blocking(move || {
            match victim {
                Victim::Server => world.site.restart(),
                Victim::Database => {
                    world.postgres.as_mut().unwrap().start_again();
                    world.site.wait_until_ready();
                }
            }
            world
        })
        .await
        .unwrap();
        while let Some(actor) = running.join_next().await {
            actors.push(actor.unwrap());
        }
        let resolved = settle(&world, &mut actors).await;
        totals.done += resolved.done;
        totals.undone += resolved.undone;
        if kill.cut_off.is_empty() {
            missed += 1;
            assert!(missed < 20 + kills, "the kills do not hit anything");
            continue;
        }
        landed += 1;
        with_bytes += u32::from(kill.staged_bytes > 0);
        eprintln!(
            "kill {landed} after {after:?}: cut off {}; {} bytes in {} staged files; of the unanswered {} were done and {} not",
            kill.cut_off.join(", "),
            kill.staged_bytes,
            kill.staged_files,
            resolved.done,
            resolved.undone
        );
        if landed % DEEP_EVERY == 0 {
            world.wait_until_tidy().await;
            world.check_everything();
        }
    }
    world.wait_until_tidy().await;
    let objects: Vec<_> = actors
        .iter()
        .flat_map(|actor| actor.ledger.objects().map(|(path, root)| (path.clone(), root)).collect::<Vec<_>>())
        .collect();
    for (path, root) in &objects {
        assert_eq!(world.read(path).await, *root, "{path} has other bytes than acknowledged");
    }
    world.check_everything();
    assert!(world.site.stop().success());
    eprintln!(
        "{landed} kills ({missed} further ones hit nothing and do not count), {with_bytes} of them with bytes in flight; \
         {} unanswered changes were done, {} were not; {} acknowledged objects read back",
        totals.done,
        totals.undone,
        objects.len()
    );
    assert!(!behind(with_bytes, landed), "too few kills met bytes in flight");
}
