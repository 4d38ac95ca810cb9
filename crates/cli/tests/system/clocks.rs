//! Sites whose clocks are wrong.

use std::path::Path;
use std::time::Duration;

use percale_testkit::process::{Site, SiteOptions};
use percale_testkit::{clock, wait};
use serde_json::Value;

use crate::sites::{run, run_soon, try_run};
use crate::world::local_file;

const MINUTE: i64 = 60;
const PATIENCE: Duration = Duration::from_secs(60);

/// A site whose clock is so many seconds ahead.
fn site(name: &str, ahead_by: i64, outgoing_only: bool, shim: &Path) -> Site {
    let mut options = SiteOptions::new(env!("CARGO_BIN_EXE_percale"))
        .set("site.name", &format!("\"{name}\""))
        .set("federation.outgoing_only", &outgoing_only.to_string());
    options.environment = clock::ahead_by(ahead_by, shim);
    let site = Site::start(options);
    run(&site, &["store", "add", "disk", "--posix", site.directory().join("store").to_str().unwrap()]);
    site
}

fn status(site: &Site, of: &str) -> Option<Value> {
    serde_json::from_str(&try_run(site, &["site", "show", "--json", of]).ok()?).ok()
}

fn reaches(site: &Site, other: &str) {
    wait::until(&format!("{other} to be reached"), PATIENCE, || {
        (status(site, other)?["route"] != "unreachable").then_some(())
    });
}

/// Joins and waits until both reach each other; returns by how much the clock of the one that joins was found to be ahead.
fn joined(inviting: (&Site, &str), joining: (&Site, &str)) -> f64 {
    let invitation = run(inviting.0, &["-q", "site", "invite", "--life", "5m"]);
    run(joining.0, &["site", "join", invitation.trim()]);
    reaches(inviting.0, joining.1);
    reaches(joining.0, inviting.1);
    status(inviting.0, joining.1).unwrap()["clock_ms"].as_f64().unwrap()
}

#[test]
fn clocks_that_are_ten_minutes_apart_are_of_no_matter() {
    let shim = tempfile::tempdir().unwrap();
    let work = tempfile::tempdir().unwrap();
    local_file(&work.path().join("tree/small"), 1, 1000);
    local_file(&work.path().join("tree/large"), 2, 3_000_000);
    let tree = work.path().join("tree");
    let mut alps = site("alps", 0, false, shim.path());
    for (name, minutes, outgoing_only) in [("baltic", 10, false), ("coast", -10, true)] {
        let other = site(name, minutes * MINUTE, outgoing_only, shim.path());
        let clock_ms = joined((&alps, "alps"), (&other, name));
        assert!((clock_ms / 60_000.0 - minutes as f64).abs() < 0.5, "{clock_ms}");
        // Changes, bytes and tasks, in a space of each, asked for at each.
        for (home, guest, space) in
            [(&alps, name, format!("at-alps-{name}")), (&other, "alps", format!("at-{name}"))]
        {
            run(home, &["space", "create", &space]);
            run(
                home,
                &[
                    "grant",
                    "add",
                    &format!("percale:/{space}"),
                    &format!("user:admin@site:{guest}"),
                    "manage",
                ],
            );
            let there = if guest == "alps" { &alps } else { &other };
            run_soon(there, &["put", "-r", tree.to_str().unwrap(), &format!("percale:/{space}/")]);
            for site in [home, there] {
                run_soon(site, &["stat", &format!("percale:/{space}/tree/large")]);
                run(site, &["cat", &format!("percale:/{space}/tree/small")]);
            }
            for target in ["alps", name] {
                run(there, &["replicate", &format!("percale:/{space}/tree"), "--to", target]);
            }
            run(home, &["check", "--deep", &format!("percale:/{space}")]);
        }
        // What was measured is gone, and measured again.
        alps.kill();
        alps.restart();
        run_soon(&other, &["mkdir", &format!("percale:/at-alps-{name}/after")]);
        run_soon(&alps, &["mkdir", &format!("percale:/at-{name}/after")]);
    }
}

#[test]
fn clocks_that_are_twenty_minutes_apart_are_named() {
    let shim = tempfile::tempdir().unwrap();
    let alps = site("alps", 0, false, shim.path());
    let baltic = site("baltic", 20 * MINUTE, false, shim.path());
    let invitation = run(&alps, &["-q", "site", "invite"]);
    run(&baltic, &["site", "join", invitation.trim()]);
    for (site, other, way) in [(&alps, "baltic", "behind"), (&baltic, "alps", "ahead of")] {
        let fault = wait::until("the clocks to be named", PATIENCE, || {
            let status = status(site, other)?;
            assert_eq!(status["route"], "unreachable", "{status}");
            status["fault"].as_str().filter(|fault| fault.contains("the clock of")).map(str::to_owned)
        });
        // It is the other site that refuses, and speaks of its own view.
        assert!(fault.contains(way) && fault.contains("15 minutes"), "{fault}");
    }
    run(&alps, &["space", "create", "lab"]);
    try_run(&baltic, &["stat", "percale:/lab"]).unwrap_err();
}
