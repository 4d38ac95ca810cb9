//! Commands at one of several sites.

use std::time::{Duration, Instant};

use percale_testkit::process::Site;
use percale_testkit::wait;
use serde_json::Value;

/// Within this whatever was disturbed must be right again: tasks have ended, and every follower stands where its home does.
pub const SETTLE: Duration = Duration::from_secs(240);

/// Runs a command of the binary as the administrator.
pub fn try_run(site: &Site, arguments: &[&str]) -> Result<String, String> {
    let output = site.command(arguments).output().unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!(
            "percale {} at {}: {} {}",
            arguments.join(" "),
            site.url(),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

/// The same; it must succeed.
#[track_caller]
pub fn run(site: &Site, arguments: &[&str]) -> String {
    try_run(site, arguments).unwrap_or_else(|error| panic!("{error}"))
}

/// Asks again while a site that is needed for the answer is only just back.
#[track_caller]
pub fn run_soon(site: &Site, arguments: &[&str]) -> String {
    let began = Instant::now();
    loop {
        match try_run(site, arguments) {
            Ok(out) => return out,
            Err(error) if began.elapsed() > SETTLE => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

/// The state of a task at the site where it runs, and how many items and bytes it has done.
pub fn task(site: &Site, id: &str) -> Option<(String, u64, u64)> {
    let shown = try_run(site, &["task", "show", "--json", id]).ok()?;
    let task: Value = serde_json::from_str(&shown).ok()?;
    let done = |name: &str| task["progress"][name].as_u64().unwrap_or_default();
    Some((task["state"].as_str()?.to_owned(), done("items_done"), done("bytes_done")))
}

/// Waits until a task has ended, and returns its state.
pub fn ended(site: &Site, id: &str) -> String {
    wait::until("a task to end", SETTLE, || {
        let (state, ..) = task(site, id)?;
        (state != "queued" && state != "running").then_some(state)
    })
}
