//! Three sites, whose servers are killed again and again while copies of a tree are made at two of them.
//!
//! `PERCALE_FABRIC_KILLS` is the number of kills (100 for the full run), `PERCALE_FABRIC_FILES` that of the files (2000 for the
//! full run, about 1 GB), `PERCALE_SEED` repeats a schedule. A kill lands only on a participant of a task that runs; each is logged
//! with what the task had done.

use std::fs;
use std::time::{Duration, Instant};

use percale_testkit::faults::{self, Schedule};
use percale_testkit::process::{Site, SiteOptions};
use percale_testkit::wait;
use serde_json::Value;

use crate::sites::{self, SETTLE};
use crate::world::local_file;

const NAMES: [&str; 3] = ["alps", "baltic", "coast"];

struct Fabric {
    sites: Vec<Site>,
}

impl Fabric {
    fn start() -> Self {
        let sites: Vec<Site> = NAMES
            .iter()
            .map(|name| {
                let options = SiteOptions::new(env!("CARGO_BIN_EXE_percale"));
                Site::start(options.set("site.name", &format!("\"{name}\"")))
            })
            .collect();
        let fabric = Self { sites };
        for site in 0..NAMES.len() {
            let store = fabric.sites[site].directory().join("store");
            fabric.run(site, &["store", "add", "disk", "--posix", store.to_str().unwrap()]);
        }
        for site in 1..NAMES.len() {
            let invitation = fabric.run(0, &["-q", "site", "invite"]);
            fabric.run(site, &["site", "join", invitation.trim()]);
        }
        fabric
    }

    fn try_run(&self, site: usize, arguments: &[&str]) -> Result<String, String> {
        sites::try_run(&self.sites[site], arguments)
    }

    #[track_caller]
    fn run(&self, site: usize, arguments: &[&str]) -> String {
        sites::run(&self.sites[site], arguments)
    }

    #[track_caller]
    fn run_soon(&self, site: usize, arguments: &[&str]) -> String {
        sites::run_soon(&self.sites[site], arguments)
    }

    fn task(&self, site: usize, id: &str) -> Option<(String, u64, u64)> {
        sites::task(&self.sites[site], id)
    }
}

/// More would only make the pauses between attempts longer, during which nothing moves.
const KILLS_OF_A_ROUND: u32 = 4;

#[test]
fn tasks_across_sites_end_by_themselves_whoever_is_killed() {
    let kills = faults::rounds("PERCALE_FABRIC_KILLS", 6);
    let files = u64::from(faults::rounds("PERCALE_FABRIC_FILES", 120));
    let seed = faults::seed("fabric_kill");
    let mut schedule = Schedule::new(seed);
    let mut fabric = Fabric::start();
    let folder = tempfile::tempdir().unwrap();
    for file in 0..files {
        // Mostly small, some of several groups: 0.5 MB on average.
        let size =
            if file % 10 == 0 { schedule.number(2 << 20..6 << 20) } else { schedule.number(0..200_000) };
        let path = folder.path().join(format!("tree/{:02}/{file:05}", file % 17));
        local_file(&path, seed.wrapping_add(file), size);
    }
    fabric.run(0, &["space", "create", "lab"]);
    for site in &NAMES[1..] {
        fabric.run(0, &["grant", "add", "percale:/lab", &format!("user:admin@site:{site}"), "manage"]);
    }
    let tree = folder.path().join("tree");
    fabric.run(0, &["put", "-r", tree.to_str().unwrap(), "percale:/lab/"]);
    fabric.run_soon(1, &["stat", "percale:/lab/tree"]);
    fabric.run_soon(2, &["stat", "percale:/lab/tree"]);

    let (mut landed, mut round) = (0, 0);
    while landed < kills {
        round += 1;
        let tasks: Vec<(usize, String)> = [1, 2]
            .into_iter()
            .map(|site| {
                let arguments = ["-q", "replicate", "percale:/lab/tree", "--to", NAMES[site], "--detach"];
                (site, fabric.run_soon(site, &arguments).trim().to_owned())
            })
            .collect();
        let mut here = 0;
        while landed < kills && here < KILLS_OF_A_ROUND {
            let under_way: Vec<_> = tasks
                .iter()
                .filter_map(|(site, id)| Some((*site, fabric.task(*site, id)?)))
                .filter(|(_, (state, ..))| state == "queued" || state == "running")
                .collect();
            if under_way.is_empty() {
                break;
            }
            // Between two attempts nothing moves.
            let running: Vec<usize> = under_way
                .iter()
                .filter(|(_, (state, ..))| state == "running")
                .map(|(site, _)| *site)
                .collect();
            if running.is_empty() {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            std::thread::sleep(Duration::from_millis(schedule.number(0..300)));
            // The source, or one that gets copies.
            let participants: Vec<usize> = std::iter::once(0).chain(running).collect();
            let victim = participants[schedule.number(0..participants.len() as u64) as usize];
            landed += 1;
            here += 1;
            eprintln!(
                "kill {landed} of {kills} in round {round}, seed {seed}: {} while {under_way:?}",
                NAMES[victim]
            );
            fabric.sites[victim].kill();
            std::thread::sleep(Duration::from_millis(schedule.number(0..500)));
            fabric.sites[victim].restart();
        }
        for (site, id) in &tasks {
            let began = Instant::now();
            let ended = sites::ended(&fabric.sites[*site], id);
            eprintln!(
                "round {round}: the task at {} ended as {ended} after {:?}",
                NAMES[*site],
                began.elapsed()
            );
            assert_eq!(ended, "succeeded", "{}", fabric.run(*site, &["task", "show", id]));
        }
        settled(&fabric, files);
        if landed < kills {
            // The next round begins without the copies.
            for (site, _) in &tasks {
                let arguments = ["evict", "percale:/lab/tree", "--from", NAMES[*site], "-y"];
                fabric.run_soon(*site, &arguments);
            }
        }
    }
    for site in 0..NAMES.len() {
        fabric.run_soon(site, &["check", "--deep", "percale:/lab"]);
    }
    for (site, name) in NAMES.iter().enumerate() {
        nothing_held(&fabric.sites[site], 1);
        fabric.sites[site].stop();
        nothing_held(&fabric.sites[site], 0);
        let config = fabric.sites[site].config_file();
        fabric.run(site, &["admin", "fsck", "--config", config.to_str().unwrap()]);
        let stage = fabric.sites[site].directory().join("store/.percale/stage");
        // A server's folder may be there, but nothing in it.
        let folders = fs::read_dir(stage).unwrap().map(|folder| folder.unwrap().path());
        let staged: Vec<_> = folders.flat_map(|folder| fs::read_dir(folder).unwrap()).collect();
        assert!(staged.is_empty(), "something is staged at {name}: {staged:?}");
    }
}

/// Waits until a catalog holds no lease but those of so many live servers, and nothing that lies under one.
pub fn nothing_held(site: &Site, servers: u32) {
    let file = site.state_directory().join("catalog.db");
    let mut left = Vec::new();
    wait::until("nothing to be held any more", SETTLE, || {
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
        let catalog = rusqlite::Connection::open_with_flags(&file, flags).unwrap();
        catalog.busy_timeout(Duration::from_secs(10)).unwrap();
        let before = std::mem::take(&mut left);
        for (what, expected) in [
            ("lease WHERE kind = 'server'", servers),
            ("lease WHERE kind <> 'server'", 0),
            ("task WHERE lease IS NOT NULL OR state IN ('queued', 'running')", 0),
            ("intent", 0),
            ("arrival", 0),
            ("outbox", 0),
        ] {
            let query = format!("SELECT count(*) FROM {what}");
            let found: u32 = catalog.query_row(&query, [], |row| row.get(0)).unwrap();
            if found != expected {
                left.push(format!("{found} of {what}"));
            }
        }
        if before != left {
            eprintln!("at {}: {left:?}", site.url());
        }
        left.is_empty().then_some(())
    });
}

/// Every site lists the same, byte by byte, with a good copy of every file at each.
fn settled(fabric: &Fabric, files: u64) {
    let mut listings = vec![String::new(); NAMES.len()];
    wait::until("all sites to list the same", SETTLE, || {
        for (site, listing) in listings.iter_mut().enumerate() {
            *listing = fabric.try_run(site, &["ls", "-R", "-L", "--json", "percale:/lab"]).ok()?;
        }
        let rows = |listing: &String| -> Vec<Value> {
            listing
                .lines()
                .map(|line| {
                    let mut row: Value = serde_json::from_str(line).unwrap();
                    for replica in row["replicas"].as_array_mut().into_iter().flatten() {
                        // When a copy was last hashed is each site's own.
                        replica.as_object_mut().map(|replica| replica.remove("checked"));
                    }
                    if let Some(replicas) = row["replicas"].as_array_mut() {
                        replicas.sort_by_key(|replica| replica["store_id"].to_string());
                    }
                    row
                })
                .collect()
        };
        let first = rows(&listings[0]);
        let good = |row: &Value| {
            row["replicas"].as_array().is_some_and(|replicas| {
                replicas.len() == NAMES.len() && replicas.iter().all(|replica| replica["state"] == "good")
            })
        };
        let whole = first.iter().filter(|row| row["kind"] == "object" && good(row)).count() as u64;
        (whole == files && listings[1..].iter().all(|listing| rows(listing) == first)).then_some(())
    });
}
