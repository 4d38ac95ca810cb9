//! `bench model` between two sites.

use percale_testkit::process::{Site, SiteOptions};
use serde_json::Value;

use crate::sites::{run, run_soon};

#[test]
fn a_model_between_two_sites_is_measured_whichever_is_asked() {
    let [alps, baltic] = ["alps", "baltic"].map(|name| {
        let options = SiteOptions::new(env!("CARGO_BIN_EXE_percale"));
        Site::start(options.set("site.name", &format!("\"{name}\"")))
    });
    for site in [&alps, &baltic] {
        let store = site.directory().join("store");
        run(site, &["store", "add", "disk", "--posix", store.to_str().unwrap()]);
    }
    let invitation = run(&alps, &["-q", "site", "invite"]);
    run(&baltic, &["site", "join", invitation.trim()]);
    run(&alps, &["space", "create", "lab"]);
    run(&alps, &["grant", "add", "percale:/lab", "user:admin@site:baltic", "manage"]);
    run_soon(&baltic, &["stat", "percale:/lab"]);
    let local = tempfile::tempdir().unwrap();

    // The files are generated at the site that is asked: once that is where they are wanted, once they must go there first.
    for (asked, from, to, end) in [
        (&alps, "alps", "baltic", &baltic),
        (&alps, "baltic", "alps", &alps),
        (&baltic, "alps", "baltic", &baltic),
    ] {
        let line = format!(
            "bench model percale:/lab --from {from} --to {to} --size 3MB --files 20 --rounds 1 --json --predict 1GB --local {}",
            local.path().display()
        );
        let said = run(asked, &line.split(' ').collect::<Vec<_>>());
        let model: Value = serde_json::from_str(&said).unwrap();
        assert_eq!((&model["from"], &model["to"]), (&from.into(), &to.into()));
        assert_eq!(model["probes"].as_array().unwrap().len(), 6);
        assert_eq!(model["predictions"].as_array().unwrap().len(), 1);
        // What was measured is tasks of the site that got the bytes, and each of them brought all of its own: the newest first.
        let tasks = run(end, &["task", "list", "--site", to, "--json"]);
        let brought: Vec<u64> = tasks
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .filter(|task| task["kind"] == "replicate" && task["from"] == from)
            .map(|task| task["progress"]["bytes_done"].as_u64().unwrap())
            .take(7)
            .collect();
        assert_eq!(brought, [3_000_000, 20_480, 10_240, 3_000_000, 1_500_000, 1024, 1024], "{tasks}");
        assert_eq!(run(asked, &["ls", "-R", "-q", "percale:/lab"]), "", "{from} to {to}");
        assert!(std::fs::read_dir(local.path()).unwrap().next().is_none(), "{from} to {to}");
    }
}
