//! Tasks of many items between two sites: some items cannot be read, a task is cancelled half-way, and a site is drained or its
//! server stopped in order while a task runs.
//!
//! `PERCALE_ITEMS` is the number of items: 2000 and 5000 if it is not set; 100 000 and 1 000 000 are the full runs of the first
//! two tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use percale_testkit::process::{Site, SiteOptions};
use percale_testkit::{faults, postgres, wait};
use serde_json::Value;

use crate::fabric_kill::nothing_held;
use crate::sites::{SETTLE, ended, run, run_soon, task, try_run};
use crate::world::{files_below, local_file};

/// Items that cannot be read at the source.
const BAD: usize = 37;
/// Bytes of a small item. They come many in a stream, and are done together.
const SMALL: u64 = 1000;
/// Bytes of a large one, and how many there are. Each is done by itself.
const LARGE: u64 = 1_100_000;
const LARGE_ITEMS: usize = 50;
const TREE: &str = "percale:/lab/tree";

fn options(name: &str) -> SiteOptions {
    SiteOptions::new(env!("CARGO_BIN_EXE_percale")).set("site.name", &format!("\"{name}\""))
}

/// Two sites, a tree at the first one, and nothing at the second one.
struct Pair {
    source: Site,
    target: Site,
    /// Where the stores lie.
    work: tempfile::TempDir,
    items: usize,
}

impl Pair {
    fn start(items: u32) -> Self {
        let work = tempfile::tempdir().unwrap();
        Self::with(items, work, options("baltic"))
    }

    fn with(items: u32, work: tempfile::TempDir, target: SiteOptions) -> Self {
        let items = items as usize;
        let (source, target) = (Site::start(options("alps")), Site::start(target));
        for (site, name) in [(&source, "alps"), (&target, "baltic")] {
            run(site, &["store", "add", "disk", "--posix", work.path().join(name).to_str().unwrap()]);
        }
        let invitation = run(&source, &["-q", "site", "invite"]);
        run(&target, &["site", "join", invitation.trim()]);
        run(&source, &["space", "create", "lab"]);
        run(&source, &["grant", "add", "percale:/lab", "user:admin@site:baltic", "manage"]);
        let tree = work.path().join("tree");
        for item in 0..items {
            let size = if item % (items / LARGE_ITEMS) == 7 { LARGE } else { SMALL };
            local_file(&tree.join(format!("{:03}/{item:07}", item / 1000)), item as u64, size);
        }
        run(&source, &["put", "-q", "-r", tree.to_str().unwrap(), "percale:/lab/"]);
        fs::remove_dir_all(tree).unwrap();
        let pair = Self { source, target, work, items };
        wait::until("the tree to be known", SETTLE, || (pair.listed().len() == items).then_some(()));
        pair
    }

    fn store(&self, site: &str) -> PathBuf {
        self.work.path().join(site)
    }

    /// The objects as the second site lists them, by path.
    fn listed(&self) -> BTreeMap<String, Listed> {
        let listed = run_soon(&self.target, &["ls", "-R", "-L", "--json", "percale:/lab"]);
        let rows = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let objects = rows.filter(|row| row["kind"] == "object");
        objects.map(|row| (row["path"].as_str().unwrap().to_owned(), Listed::of(&row))).collect()
    }

    /// How many objects the second site has a good copy of. Each of them has the bytes of the one that it was made from.
    fn copied(&self) -> usize {
        let keys = self.listed().into_values().filter_map(|listed| Some((listed.key?, listed.copy?)));
        let read = |site: &str, key: &str| fs::read(self.store(site).join(key)).unwrap();
        let same = |(key, copy): &(String, String)| read("alps", key) == read("baltic", copy);
        keys.inspect(|keys| assert!(same(keys), "{keys:?} differ")).count()
    }

    /// Begins to make copies, so slowly that it takes so many seconds.
    fn begin(&self, seconds: u64) -> String {
        let bytes = self.items as u64 * SMALL + LARGE_ITEMS as u64 * LARGE;
        let limit = format!("{}bit/s", (bytes * 8 / seconds).max(1_000_000));
        let arguments = ["-q", "replicate", TREE, "--to", "baltic", "--limit", &limit, "--detach"];
        run(&self.target, &arguments).trim().to_owned()
    }

    /// Waits until so many items are done, and returns how many are: not all.
    fn is_at(&self, id: &str, least: usize) -> usize {
        let (state, done) = wait::until("some items to be done", SETTLE, || {
            let (state, done, _) = task(&self.target, id)?;
            let is_there = state == "running" && done as usize >= least;
            (is_there || state != "queued" && state != "running").then_some((state, done as usize))
        });
        assert!(state == "running" && done < self.items, "it was in its middle: {state}, {done} done");
        done
    }

    /// Every item has a copy, all bytes are right, and there is nothing else.
    fn is_whole(&self) {
        wait::until("all copies to be known", SETTLE, || (self.copied() == self.items).then_some(()));
        assert_eq!(contents(&self.store("baltic")).len(), self.items);
    }

    /// The task has made all copies, counted each once, and its receipt lists so many as it has brought.
    fn is_done(&self, id: &str) {
        assert_eq!(ended(&self.target, id), "succeeded", "{}", run(&self.target, &["task", "show", id]));
        let shown = run(&self.target, &["task", "show", "--json", id]);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["progress"]["items_done"], self.items, "{shown}");
        assert_eq!(self.listed_by(id), self.items);
        self.is_whole();
    }

    /// How many copies the receipt of a task lists.
    fn listed_by(&self, id: &str) -> usize {
        run(&self.target, &["task", "receipt", id]).lines().count() - 2
    }

    fn is_tidy(&self) {
        nothing_held(&self.source, 1);
        nothing_held(&self.target, 1);
        wait::until("nothing to be staged", SETTLE, || {
            files_below(&self.store("baltic").join(".percale/stage")).is_empty().then_some(())
        });
    }
}

/// An object in a listing.
struct Listed {
    /// The key of its copy at the first site.
    key: Option<String>,
    /// The key of its good copy at the second site.
    copy: Option<String>,
}

impl Listed {
    fn of(row: &Value) -> Self {
        let copies = || row["replicas"].as_array().unwrap().iter().filter(|copy| copy["state"] == "good");
        let key = |site: &str| {
            let copy = copies().find(|copy| copy["site"] == site)?;
            Some(copy["key"].as_str().unwrap().to_owned())
        };
        Self { key: key("alps"), copy: key("baltic") }
    }
}

/// The files of objects in a store, without those that it keeps for itself.
fn contents(store: &Path) -> Vec<PathBuf> {
    let own = [store.join(".percale/store"), store.join(".percale/trees")];
    let files = files_below(store).into_iter().map(|(file, _)| file);
    files.filter(|file| !own.iter().any(|own| file.starts_with(own))).collect()
}

/// The items that a task says were not done, each with the code of its error.
fn errors(site: &Site, id: &str) -> BTreeMap<String, String> {
    let items = run(site, &["task", "errors", "--json", id]);
    let items = items.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let text = |item: &Value, field: &str| item[field].as_str().unwrap().to_owned();
    items.map(|item| (text(&item, "path"), text(&item, "code"))).collect()
}

#[test]
fn what_cannot_be_read_is_named_and_the_rest_arrives() {
    let pair = Pair::start(faults::rounds("PERCALE_ITEMS", 2000));
    // Spread over all, and among them one of several groups: gone, cut short, or with a wrong byte.
    let objects = pair.listed();
    let mut bad = BTreeSet::new();
    for (number, (path, listed)) in objects.iter().skip(7).step_by(pair.items / BAD).take(BAD).enumerate() {
        let file = pair.store("alps").join(listed.key.as_ref().unwrap());
        let mut bytes = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        match number % 3 {
            0 => {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                fs::write(&file, bytes).unwrap();
            }
            1 => fs::write(&file, &bytes[..bytes.len() - 1]).unwrap(),
            _ => {}
        }
        bad.insert(path.clone());
    }
    assert_eq!(bad.len(), BAD);

    let output = pair.target.command(&["replicate", TREE, "--to", "baltic", "--json"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(6), "{said}");
    let ended: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(ended["state"], "partial", "{ended}");
    assert_eq!(ended["progress"]["items_failed"], BAD, "{ended}");
    assert_eq!(ended["progress"]["items_done"], pair.items - BAD, "{ended}");
    let id = ended["id"].as_str().unwrap();
    let errors = errors(&pair.target, id);
    assert_eq!(errors.keys().cloned().collect::<BTreeSet<_>>(), bad, "{errors:?}");
    let wait = pair.target.command(&["task", "wait", id]).output().unwrap();
    assert_eq!(wait.status.code(), Some(6), "{}", String::from_utf8_lossy(&wait.stderr));
    // All others have a copy, and of these there is nothing.
    wait::until("the copies to be known", SETTLE, || (pair.copied() == pair.items - BAD).then_some(()));
    let copied = pair.listed().into_iter().filter(|(_, listed)| listed.copy.is_some());
    assert!(copied.into_iter().all(|(path, _)| !bad.contains(&path)));
    assert_eq!(contents(&pair.store("baltic")).len(), pair.items - BAD);
    pair.is_tidy();
}

#[test]
fn a_task_that_is_cancelled_half_way_leaves_whole_copies_and_is_done_to_the_end_later() {
    let pair = Pair::start(faults::rounds("PERCALE_ITEMS", 5000));
    let id = pair.begin(20);
    pair.is_at(&id, pair.items / 4);
    run(&pair.target, &["task", "cancel", &id]);
    assert_eq!(ended(&pair.target, &id), "cancelled");
    pair.is_tidy();
    // What there is of it is seen as a copy, and nothing more.
    let files = || contents(&pair.store("baltic")).len();
    wait::until("every file to be a copy", SETTLE, || (pair.copied() == files()).then_some(()));
    let (before, all) = (files(), pair.items);
    assert!((all / 4..all).contains(&before), "{before} of {all}");
    // What was on its way when it was cancelled arrived, and is no part of its receipt.
    assert!(pair.listed_by(&id) <= before);

    // Again, it brings what is missing, and only that.
    let output = run(&pair.target, &["replicate", TREE, "--to", "baltic", "--json"]);
    let again: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(again["state"], "succeeded", "{again}");
    assert_eq!(again["progress"]["items_done"], all, "{again}");
    assert_eq!(pair.listed_by(again["id"].as_str().unwrap()), all - before);
    pair.is_whole();
    pair.is_tidy();
}

#[test]
fn a_task_goes_on_while_its_sites_are_drained_and_after_its_server_was_stopped() {
    let mut pair = Pair::start(faults::rounds("PERCALE_ITEMS", 2000));
    let id = pair.begin(12);
    let done = pair.is_at(&id, 1);
    // Both take no new tasks that bring copies; what they have can be read, and what they took on they do.
    for name in ["alps", "baltic"] {
        run(&pair.source, &["site", "drain", name]);
    }
    wait::until("baltic to hear that it is drained", SETTLE, || {
        let shown = run(&pair.target, &["site", "show", "--json", "baltic"]);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        (shown["state"] == "drained").then_some(())
    });
    let refused = try_run(&pair.target, &["replicate", TREE, "--to", "baltic", "--detach"]).unwrap_err();
    assert!(refused.contains("drained"), "{refused}");
    pair.is_at(&id, done + 1);
    assert!(pair.target.stop().success(), "{}", pair.target.log_tail());
    nothing_staged_by_servers(&pair.store("baltic"));
    pair.target.restart();
    pair.is_done(&id);
    pair.is_tidy();
}

#[test]
fn another_server_goes_on_with_the_task_of_one_that_is_stopped() {
    let Some(database) = postgres::Server::start() else { return };
    let work = tempfile::tempdir().unwrap();
    let mut target = options("baltic");
    target.catalog_url = Some(database.database());
    target.state_directory = Some(work.path().join("state"));
    let mut pair = Pair::with(faults::rounds("PERCALE_ITEMS", 2000), work, target.clone());
    // The task is claimed by the only server that there is.
    let id = pair.begin(12);
    let done = pair.is_at(&id, 1);
    let other = Site::start(target);
    assert!(pair.target.stop().success(), "{}", pair.target.log_tail());
    nothing_staged_by_servers(&pair.store("baltic"));
    let _stopped = std::mem::replace(&mut pair.target, other);
    pair.is_at(&id, done);
    pair.is_done(&id);
}

/// Nothing lies staged but what tasks keep for their next attempt.
fn nothing_staged_by_servers(store: &Path) {
    let staged = files_below(&store.join(".percale/stage"));
    let left: Vec<_> = staged.iter().filter(|(file, _)| !file.ends_with("copy")).collect();
    assert!(left.is_empty(), "{left:?}");
}
