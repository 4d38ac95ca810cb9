//! Imports of many files while the server is killed again and again, and on a disk that is full.

use std::collections::BTreeSet;
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
