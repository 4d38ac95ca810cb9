//! A large file is copied from one site to another, and one of the two servers is killed at half of it. What was safe on the disk
//! is not sent again.
//!
//! `PERCALE_RESTART_MIB` is the size of the file: 96, or 1024 for the full run.

use std::path::Path;
use std::time::Duration;

use percale_testkit::faults;
use percale_testkit::link::{Link, Way};
use percale_testkit::process::{Site, SiteOptions};
use percale_testkit::{postgres, wait};
use serde_json::Value;

use crate::sites::{SETTLE, ended, run, run_soon};
use crate::world::{files_below, local_file};

/// What may be sent again: the contract's 16 MiB.
const AGAIN: usize = 16 << 20;
/// Bytes that pass in a second: few enough for a debug build to keep up with, so that what has passed has arrived.
const RATE: u32 = 40_000_000;
const FILE: &str = "percale:/lab/large";

/// Two sites, of which the second one reads from the first one over a link.
struct Pair {
    link: Link,
    source: Site,
    target: Site,
    /// How the second one is started.
    options: SiteOptions,
    /// Where the stores and the file lie.
    work: tempfile::TempDir,
    size: usize,
}

impl Pair {
    async fn start() -> Self {
        Self::with(|_, _| {}).await
    }

    /// The same, with other options of the second site; they come with a folder that outlives its servers.
    async fn with(change: impl FnOnce(&mut SiteOptions, &Path)) -> Self {
        let size = (faults::rounds("PERCALE_RESTART_MIB", 96) as usize) << 20;
        let link = Link::start().await;
        let site = |name: &str| {
            SiteOptions::new(env!("CARGO_BIN_EXE_percale")).set("site.name", &format!("\"{name}\""))
        };
        let source = Site::start(site("alps").set("federation.urls", &format!("[\"{}\"]", link.url())));
        link.lead_to(source.url().trim_start_matches("https://").parse().unwrap());
        let work = tempfile::tempdir().unwrap();
        let mut options = site("baltic").set("federation.outgoing_only", "true");
        change(&mut options, work.path());
        let target = Site::start(options.clone());
        for (site, store) in [(&source, "alps"), (&target, "baltic")] {
            let store = work.path().join(store);
            run(site, &["store", "add", "disk", "--posix", store.to_str().unwrap()]);
        }
        let invitation = run(&source, &["-q", "site", "invite"]);
        run(&target, &["site", "join", invitation.trim()]);
        run(&source, &["space", "create", "lab"]);
        run(&source, &["grant", "add", "percale:/lab", "user:admin@site:baltic", "manage"]);
        let file = work.path().join("large");
        local_file(&file, 7, size as u64);
        run(&source, &["put", file.to_str().unwrap(), FILE]);
        run_soon(&target, &["stat", FILE]);
        link.limit(RATE);
        Self { link, source, target, options, work, size }
    }

    /// Begins to copy the file, and returns the task once half of it has passed.
    fn half(&self) -> String {
        let id = run(&self.target, &["-q", "replicate", FILE, "--to", "baltic", "--detach"]);
        let half = self.passed() + self.size / 2;
        wait::until("half of the file to pass", SETTLE, || (self.passed() >= half).then_some(()));
        id.trim().to_owned()
    }

    fn passed(&self) -> usize {
        self.link.passed(Way::Back)
    }

    /// Waits for the end of the task, and for the copy to be right and nothing else to be left. `begun` is how much had passed
    /// before it began.
    fn ends(&self, id: &str, begun: usize) {
        let state = ended(&self.target, id);
        assert_eq!(state, "succeeded", "{}", run(&self.target, &["task", "show", id]));
        // Frames, TLS and what else sites say to each other are 1 % at most.
        let passed = self.passed() - begun;
        let again = passed.saturating_sub(self.size + self.size / 100 + (1 << 20));
        eprintln!("{} of {} bytes passed: {again} again", passed, self.size);
        assert!(again <= AGAIN, "{again} bytes were sent again");
        run(&self.target, &["check", "--deep", FILE]);
        let listed = run(&self.target, &["ls", "-R", "-L", "--json", "percale:/lab"]);
        let row: Value = serde_json::from_str(&listed).unwrap();
        let replicas = row["replicas"].as_array().unwrap();
        assert!(replicas.iter().all(|replica| replica["state"] == "good") && replicas.len() == 2, "{row}");
        wait::until("nothing to be staged", Duration::from_secs(60), || {
            files_below(&self.work.path().join("baltic/.percale/stage")).is_empty().then_some(())
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_goes_on_within_the_file_when_its_destination_was_killed() {
    let mut pair = Pair::start().await;
    let begun = pair.passed();
    let id = pair.half();
    pair.target.kill();
    assert!(pair.passed() - begun < pair.size, "it was on its way");
    pair.target.restart();
    pair.ends(&id, begun);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_goes_on_within_the_file_when_its_source_was_killed() {
    let mut pair = Pair::start().await;
    let begun = pair.passed();
    let id = pair.half();
    pair.source.kill();
    assert!(pair.passed() - begun < pair.size, "it was on its way");
    pair.source.restart();
    pair.ends(&id, begun);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_server_of_the_site_goes_on_within_the_file() {
    let Some(database) = postgres::Server::start() else { return };
    let mut pair = Pair::with(|options, work| {
        options.catalog_url = Some(database.database());
        options.state_directory = Some(work.join("state"));
    })
    .await;
    let begun = pair.passed();
    let id = pair.half();
    pair.target.kill();
    assert!(pair.passed() - begun < pair.size, "it was on its way");
    let other = Site::start(pair.options.clone());
    let _dead = std::mem::replace(&mut pair.target, other);
    pair.ends(&id, begun);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_goes_on_within_the_file_when_its_server_was_killed() {
    let size = (faults::rounds("PERCALE_RESTART_MIB", 96) as usize) << 20;
    let link = Link::start().await;
    let mut site = Site::start(SiteOptions::new(env!("CARGO_BIN_EXE_percale")));
    link.lead_to(site.url().trim_start_matches("https://").parse().unwrap());
    let work = tempfile::tempdir().unwrap();
    run(&site, &["store", "add", "disk", "--posix", work.path().join("store").to_str().unwrap()]);
    run(&site, &["space", "create", "lab"]);
    let file = work.path().join("large");
    local_file(&file, 7, size as u64);
    link.limit(RATE);
    let mut put = site.command(&["put", "-q", file.to_str().unwrap(), FILE, "--url", &link.url()]);
    let mut put = put.stdout(std::process::Stdio::null()).spawn().unwrap();
    let passed = || link.passed(Way::There);
    wait::until("half of the file to pass", SETTLE, || (passed() >= size / 2).then_some(()));
    site.kill();
    assert!(passed() < size, "it was on its way");
    site.restart();
    assert!(put.wait().unwrap().success());
    let again = passed().saturating_sub(size + size / 100 + (1 << 20));
    eprintln!("{} of {size} bytes passed: {again} again", passed());
    assert!(again <= AGAIN, "{again} bytes were sent again");
    run(&site, &["check", "--deep", FILE]);
}
