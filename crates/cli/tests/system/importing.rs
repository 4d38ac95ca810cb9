//! Imports of many files while the server is killed again and again, and on a disk that is full.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use percale_testkit::process::Site;
use percale_testkit::tmpfs::SmallFileSystem;
use percale_testkit::wait;
use serde_json::{Value, json};

use crate::sites::{SETTLE, ended, run, run_soon, try_run};
use crate::world::World;

const FILES: usize = 60_000;

/// Makes empty files in directories of a thousand, and returns their paths in the space.
fn files(run: &Path, count: usize) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    for n in 0..count {
        let name = format!("{:03}/{n:06}", n / 1000);
        let at = run.join(&name);
        if n % 1000 == 0 {
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        }
        std::fs::File::create(at).unwrap();
        paths.insert(format!("/lab/run/{name}"));
    }
    paths
}

fn start(site: &Site, raw: &Path) -> String {
    run(site, &["store", "add", "raw", "--native", "--posix", raw.to_str().unwrap()]);
    run(site, &["space", "create", "lab"]);
    import(site, raw)
}

fn import(site: &Site, raw: &Path) -> String {
    let from = format!("test:{}", raw.join("run").display());
    run(site, &["import", "--detach", "--hash", "never", &from, "percale:/lab/run"]).trim().to_owned()
}

fn listed(site: &Site) -> BTreeSet<String> {
    let listed = run_soon(site, &["ls", "-R", "--json", "percale:/lab/run"]);
    let rows = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.filter(|row| row["kind"] == "object").map(|row| row["path"].as_str().unwrap().to_owned()).collect()
}

fn progress(site: &Site, id: &str) -> Value {
    let task: Value = serde_json::from_str(&run_soon(site, &["task", "show", "--json", id])).unwrap();
    task["progress"].clone()
}

fn done(site: &Site, id: &str) -> u64 {
    let task = try_run(site, &["task", "show", "--json", id]).ok();
    let task = task.and_then(|task| serde_json::from_str::<Value>(&task).ok()).unwrap_or_default();
    task["progress"]["items_done"].as_u64().unwrap_or_default()
}

#[test]
fn an_import_goes_on_however_often_the_server_is_killed() {
    let work = tempfile::tempdir().unwrap();
    let raw = work.path().join("raw");
    let expected = files(&raw.join("run"), FILES);
    let mut site = Site::start(World::options());
    let id = start(&site, &raw);
    let mut before = 0;
    for _ in 0..3 {
        // Only once it has recorded that it is further: then there is something to go on from, and something to repeat.
        let further = wait::until("the import to get further", SETTLE, || {
            let done = done(&site, &id);
            (done > before).then_some(done)
        });
        if further >= FILES as u64 {
            break;
        }
        before = further;
        site.kill();
        site.restart();
    }
    assert_eq!(ended(&site, &id), "succeeded");
    let all = progress(&site, &id);
    assert_eq!((&all["items_done"], &all["items_failed"]), (&json!(FILES), &json!(0)), "{all}");
    assert!(listed(&site) == expected, "other files are listed than there are");
    let again = import(&site, &raw);
    assert_eq!(ended(&site, &again), "succeeded");
    assert_eq!(progress(&site, &again)["counts"], json!({"unchanged": FILES}));
    let config = site.config_file();
    let fsck = site.command(&["admin", "fsck", "--config"]).arg(config).output().unwrap();
    assert!(fsck.status.success(), "{}", String::from_utf8_lossy(&fsck.stderr));
}

#[test]
fn an_import_into_a_full_catalog_goes_on_when_there_is_room() {
    let Some(small) = SmallFileSystem::mount(48 << 20) else { return };
    let work = tempfile::tempdir().unwrap();
    let raw = work.path().join("raw");
    let expected = files(&raw.join("run"), 20_000);
    let mut options = World::options();
    options.directory = Some(small.path().join("site"));
    let site = Site::start(options);
    run(&site, &["store", "add", "raw", "--native", "--posix", raw.to_str().unwrap()]);
    run(&site, &["space", "create", "lab"]);
    let filler = small.fill_up(4 << 20);
    let id = import(&site, &raw);
    wait::until("the import to meet the full disk", SETTLE, || {
        let log = std::fs::read_to_string(site.log_file()).unwrap_or_default();
        (log.contains("cannot record") || log.contains("attempt ended")).then_some(())
    });
    assert!(site.is_running() && done(&site, &id) < 20_000, "the disk was never full");
    std::fs::remove_file(filler).unwrap();
    // Whether the task goes on by itself or has failed, nothing is half-done.
    if ended(&site, &id) != "succeeded" {
        run(&site, &["task", "retry", &id]);
        assert_eq!(ended(&site, &id), "succeeded");
    }
    assert!(listed(&site) == expected, "other files are listed than there are");
}

/// Nobody's account, as which a server is run that has to be refused something.
const NOBODY: u32 = 65534;

/// Starts a site as an account that mode bits hold for. Nothing, said aloud, where that cannot be.
fn start_as_nobody(work: &Path) -> Option<Site> {
    let mut options = World::options();
    if rustix::process::geteuid().is_root() {
        if !Path::new("/usr/bin/setpriv").exists() {
            eprintln!("SKIPPED: there is no setpriv, and root may read everything");
            return None;
        }
        let script = work.join("percale");
        let binary = options.binary.display().to_string();
        let account = format!("--reuid={NOBODY} --regid={NOBODY} --clear-groups");
        std::fs::write(&script, format!("#!/bin/sh\nexec setpriv {account} '{binary}' \"$@\"\n")).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        options.binary = script;
    }
    options.directory = Some(work.join("site"));
    for folder in [work.to_owned(), work.join("site"), work.join("site/state"), work.join("raw")] {
        std::fs::create_dir_all(&folder).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
    Some(Site::start(options))
}

#[test]
fn what_the_server_may_not_read_is_named_and_not_lost() {
    let work = tempfile::tempdir().unwrap();
    let Some(site) = start_as_nobody(work.path()) else { return };
    let raw = work.path().join("raw");
    for file in ["run/closed/inside", "run/good", "run/secret"] {
        std::fs::create_dir_all(raw.join(file).parent().unwrap()).unwrap();
        std::fs::write(raw.join(file), file).unwrap();
    }
    let id = start(&site, &raw);
    assert_eq!(ended(&site, &id), "succeeded");
    let mode = |name: &str, mode| {
        std::fs::set_permissions(raw.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    std::fs::write(raw.join("run/secret"), "changed").unwrap();
    mode("run/closed", 0o000);
    mode("run/secret", 0o000);
    let from = format!("test:{}", raw.join("run").display());
    let again = ["import", "--detach", "--hash", "now", &from, "percale:/lab/run"];
    let id = run(&site, &again).trim().to_owned();
    assert_eq!(ended(&site, &id), "partial");
    assert_eq!(progress(&site, &id)["counts"], json!({"unchanged": 1}));
    let items = run(&site, &["task", "items", "--json", &id]);
    let items = items.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let named: BTreeSet<_> = items
        .map(|item| {
            let name = item["path"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
            (name, item["code"].as_str().unwrap().to_owned())
        })
        .collect();
    let denied = |name: &str| (name.to_owned(), "store_denied".to_owned());
    assert_eq!(named, BTreeSet::from([denied("closed"), denied("secret")]));
    mode("run/closed", 0o755);
    mode("run/secret", 0o644);
    let id = run(&site, &again).trim().to_owned();
    assert_eq!(ended(&site, &id), "succeeded");
    assert_eq!(progress(&site, &id)["counts"], json!({"changed": 1, "unchanged": 2}));
}
