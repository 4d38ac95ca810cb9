//! The disk under a store is full while copies are brought to it from another site. Needs the right to mount; skipped aloud
//! otherwise.

use std::time::Duration;

use percale_testkit::process::{Site, SiteOptions};
use percale_testkit::tmpfs::SmallFileSystem;
use percale_testkit::wait;
use serde_json::Value;

use crate::sites::{ended, run, run_soon, try_run};
use crate::world::{files_below, local_file};

const SMALL: u64 = 60;

#[test]
fn copies_that_find_no_room_are_made_when_there_is_some() {
    let Some(small) = SmallFileSystem::mount(64 << 20) else { return };
    let [alps, baltic] = ["alps", "baltic"].map(|name| {
        let options = SiteOptions::new(env!("CARGO_BIN_EXE_percale"));
        Site::start(options.set("site.name", &format!("\"{name}\"")))
    });
    let store = small.path().join("store");
    run(&alps, &["store", "add", "disk", "--posix", alps.directory().join("store").to_str().unwrap()]);
    run(&baltic, &["store", "add", "disk", "--posix", store.to_str().unwrap()]);
    let invitation = run(&alps, &["-q", "site", "invite"]);
    run(&baltic, &["site", "join", invitation.trim()]);
    run(&alps, &["space", "create", "lab"]);
    run(&alps, &["grant", "add", "percale:/lab", "user:admin@site:baltic", "manage"]);
    let work = tempfile::tempdir().unwrap();
    for file in 0..SMALL {
        local_file(&work.path().join(format!("tree/small-{file:03}")), file, 200_000);
    }
    // The last one is large enough to lie under a lease of the task's own.
    for (file, size) in [(0, 6 << 20), (1, 6 << 20), (2, 18 << 20)] {
        local_file(&work.path().join(format!("tree/large-{file}")), 1000 + file, size);
    }
    run(&alps, &["put", "-r", work.path().join("tree").to_str().unwrap(), "percale:/lab/"]);
    run_soon(&baltic, &["stat", "percale:/lab/tree/small-059"]);

    // Room for one of the large ones and some of the small ones at most.
    let filler = small.fill_up(9 << 20);
    let id = run(&baltic, &["-q", "replicate", "percale:/lab/tree", "--to", "baltic", "--detach"]);
    let id = id.trim();
    // Not tried again and again by itself: room does not come from waiting.
    let state = ended(&baltic, id);
    let shown = run(&baltic, &["task", "show", id]);
    assert!(state == "failed" && shown.contains("no_space"), "{shown}");
    let items = run(&baltic, &["task", "items", "--json", id]);
    let items: Vec<Value> = items.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!items.is_empty());
    for item in &items {
        assert_eq!(item["code"], "no_space", "{item}");
    }
    // What has a copy has a whole one; of the rest there is nothing.
    let copies = || {
        let listed = run(&baltic, &["ls", "-R", "-L", "--json", "percale:/lab/tree"]);
        let rows = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let here = |row: &Value| {
            let replicas = row["replicas"].as_array().cloned().unwrap_or_default();
            replicas.iter().any(|replica| replica["site"] == "baltic" && replica["state"] == "good")
        };
        rows.filter(here).count()
    };
    let files = || {
        let found = files_below(&store);
        found
            .iter()
            .filter(|(path, _)| {
                !path.ends_with(".percale/store") && !path.starts_with(store.join(".percale/trees"))
            })
            .count()
    };
    wait::until("only whole copies to be left", Duration::from_secs(60), || {
        (files() == copies()).then_some(())
    });
    assert!(copies() < SMALL as usize + 3, "{}", copies());
    run(&baltic, &["check", "--deep", "percale:/lab"]);

    // It goes on when there is room, and somebody says so.
    std::fs::remove_file(filler).unwrap();
    run(&baltic, &["task", "retry", id]);
    assert_eq!(ended(&baltic, id), "succeeded", "{}", run(&baltic, &["task", "show", id]));
    wait::until("all copies to be known", Duration::from_secs(60), || {
        (copies() == SMALL as usize + 3).then_some(())
    });
    assert_eq!(files(), SMALL as usize + 3);
    run(&baltic, &["check", "--deep", "percale:/lab"]);
    let config = baltic.config_file();
    try_run(&baltic, &["admin", "fsck", "--config", config.to_str().unwrap()]).unwrap();
}
