//! A large object is on its way to another site, and is stopped at half of it: what is safe there is not sent again, and what
//! cannot be believed is.

use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use percale_catalog::LeaseKind;
use percale_testkit::link::{Link, Way};
use serde_json::json;

use crate::common::{Client, bytes};
use crate::cuts::{ended, linked, lists, outgoing, soon, space};
use crate::fabric::Site;
use crate::medium::writes_wrong;
use crate::tasks::{assert_ended, nothing_left, submit};

const MIB: usize = 1 << 20;
const SIZE: usize = 40 * MIB;
const PATH: &str = "/climate/large";
/// Slow enough to stop it at half, and for the receiver to keep up.
const RATE: u32 = 30_000_000;

/// No two groups are alike.
fn content(seed: usize) -> Vec<u8> {
    (0..SIZE).map(|at| ((at % 251) + (at >> 20) * 7 + seed) as u8).collect()
}

/// Two sites, the second of which dials the first over a link, and alice at both.
struct Pair {
    link: Link,
    alps: Site,
    baltic: Site,
    here: Client,
    there: Client,
}

impl Pair {
    async fn start(stores: &str) -> Self {
        let ((alps, link), baltic) = tokio::join!(linked("alps"), outgoing("baltic"));
        if stores == "native" {
            let root = alps.directory.path().join("native");
            let store =
                json!({"name": "native", "connector": "posix", "layout": "native", "config": {"root": root}});
            alps.admin.post("/v1/stores", store).await.expect(201);
            let space = json!({"name": "climate", "owner": "user:alice", "store": "native"});
            alps.admin.post("/v1/spaces", space).await.expect(201);
            let grant = json!({"subject": "user:alice@site:baltic", "permission": "manage"});
            alps.admin.put("/v1/grants/climate", grant).await.expect(200);
        } else {
            space(&alps, "climate", &["baltic"]).await;
        }
        baltic.join(&alps.invite().await).await;
        let (here, there) = (alps.user("alice").await, baltic.user("alice").await);
        here.write(PATH, content(0)).await.expect(201);
        lists(&there, "/climate", 1).await;
        link.limit(RATE);
        Self { link, alps, baltic, here, there }
    }

    /// Begins to copy the object, and cuts the link without a word once half of it has passed.
    async fn cut_at_half(&self, spec: serde_json::Value) -> String {
        self.link.cut_after(Way::Back, SIZE / 2);
        let id = submit(&self.there, spec).await;
        soon("the link to be cut", || async { self.link.is_cut().then_some(()) }).await;
        id
    }

    /// The leases of objects that were brought in part.
    async fn leases(&self) -> usize {
        let app = self.baltic.running.as_ref().unwrap().app();
        app.catalog.leases(LeaseKind::Task).await.unwrap().len()
    }

    /// Waits until nothing is left of any unfinished object.
    async fn is_tidy(&self) {
        nothing_left(&self.baltic).await;
        soon("leases to end", || async { (self.leases().await == 0).then_some(()) }).await;
    }

    /// Stops the receiver in order, and returns its staged file, which has a marker then.
    async fn stop_receiver(&mut self) -> PathBuf {
        self.baltic.stop().await;
        let stage = self.baltic.directory.path().join("disk/.percale/stage");
        let folders = std::fs::read_dir(stage).unwrap().map(|folder| folder.unwrap().path());
        let staged: Vec<PathBuf> =
            folders.map(|folder| folder.join("copy")).filter(|file| file.exists()).collect();
        assert_eq!(staged.len(), 1, "{staged:?}");
        assert!(marker(&staged[0]).exists());
        staged[0].clone()
    }

    /// Starts the receiver again, over a link that is whole.
    async fn resume_receiver(&mut self) {
        self.link.mend();
        self.baltic.resume().await;
        self.there = Client {
            url: self.baltic.admin.url.clone(),
            http: self.baltic.admin.http.clone(),
            ..self.there.clone()
        };
    }

    async fn succeeds(&self, id: &str) {
        assert_ended(&ended(&self.there, id).await, "succeeded", 1, 0);
    }
}

fn marker(staged: &std::path::Path) -> PathBuf {
    staged.with_extension("marker")
}

fn replicate() -> serde_json::Value {
    json!({"kind": "replicate", "path": PATH, "to": "baltic"})
}

/// A little is also said besides.
const BESIDES: usize = 2 * MIB;

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_link_costs_only_what_was_on_its_way() {
    let pair = Pair::start("managed").await;
    for (spec, path) in [
        (replicate(), PATH),
        (json!({"kind": "copy", "from": PATH, "to": "/climate/other"}), "/climate/other"),
    ] {
        if path != PATH {
            // The copy here would be the source of the second one.
            let evict = json!({"kind": "evict", "path": PATH, "from": "baltic"});
            let evicted = submit(&pair.there, evict).await;
            assert_ended(&ended(&pair.there, &evicted).await, "succeeded", 1, 0);
        }
        let id = pair.cut_at_half(spec).await;
        pair.link.mend();
        pair.succeeds(&id).await;
        let passed = pair.link.passed(Way::Back);
        assert!(passed < SIZE / 2 + 16 * MIB + BESIDES, "{passed} bytes passed after the cut");
        assert!(bytes(&pair.there, &format!("/v1/data{path}")).await == content(0));
        pair.is_tidy().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_stopped_goes_on_within_the_object() {
    let mut pair = Pair::start("managed").await;
    let id = pair.cut_at_half(replicate()).await;
    pair.stop_receiver().await;
    pair.resume_receiver().await;
    pair.succeeds(&id).await;
    let passed = pair.link.passed(Way::Back);
    assert!(passed < SIZE / 2 + 16 * MIB + BESIDES, "{passed} bytes passed after the cut");
    assert!(bytes(&pair.there, &format!("/v1/data{PATH}")).await == content(0));
    pair.is_tidy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_goes_on_is_read_back_whole_and_has_one_line_in_the_receipt() {
    let pair = Pair::start("managed").await;
    // Wrong on the disk is what the first attempt writes, and the first that the second one does.
    writes_wrong(&pair.baltic, 25);
    let mut spec = replicate();
    spec["verify"] = json!("medium");
    let id = pair.cut_at_half(spec).await;
    pair.link.mend();
    pair.succeeds(&id).await;
    assert!(bytes(&pair.there, &format!("/v1/data{PATH}")).await == content(0));
    let entry = pair.there.get(&format!("/v1/entries{PATH}")).await.expect(200);
    let receipt = pair.there.get(&format!("/v1/tasks/{id}/receipt")).await;
    let lines = receipt.text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!((&lines[1]["verified"], &lines[1]["sources"]), (&json!("frames+medium"), &json!(["alps"])));
    let content = &entry["content"];
    assert_eq!(lines[1]["version"], content["version"]);
    assert_eq!((&lines[1]["blake3"], &lines[1]["size"]), (&content["root"], &json!(SIZE)));
    pair.is_tidy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_marker_says_is_believed_only_as_far_as_it_is_so() {
    for damage in ["the marker", "the bytes", "another marker"] {
        let mut pair = Pair::start("managed").await;
        let id = pair.cut_at_half(replicate()).await;
        let staged = pair.stop_receiver().await;
        let marked = std::fs::read(marker(&staged)).unwrap();
        match damage {
            "the marker" => {
                let mut damaged = marked;
                damaged[20] ^= 1;
                std::fs::write(marker(&staged), damaged).unwrap();
            }
            "another marker" => {
                use percale_core::tree::RootHash;
                let size = percale_core::ByteCount(SIZE as u64);
                let mut other = percale_mover::Held::new(size, RootHash([9; 32]));
                (0..40).for_each(|group| other.insert(group));
                std::fs::write(marker(&staged), other.encode()).unwrap();
            }
            _ => {
                // Everywhere; the marker names at least some of it.
                let file = std::fs::File::options().write(true).open(&staged).unwrap();
                (0..40).for_each(|group| file.write_all_at(b"wrong", (group * MIB + 4096) as u64).unwrap());
            }
        }
        pair.resume_receiver().await;
        pair.succeeds(&id).await;
        let passed = pair.link.passed(Way::Back);
        assert!(passed >= SIZE, "{damage}: only {passed} bytes passed again");
        assert!(bytes(&pair.there, &format!("/v1/data{PATH}")).await == content(0), "{damage}");
        pair.is_tidy().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_after_the_last_marker_is_found_again() {
    let mut pair = Pair::start("managed").await;
    let id = pair.cut_at_half(replicate()).await;
    let staged = pair.stop_receiver().await;
    let stored = std::fs::read(marker(&staged)).unwrap();
    // As a server leaves it that is killed: the marker is behind by two groups of each stream.
    let content_now = pair.here.get(&format!("/v1/entries{PATH}")).await.expect(200)["content"].clone();
    let root = content_now["root"].as_str().unwrap().parse().unwrap();
    let held = percale_mover::Held::decode(&stored, percale_core::ByteCount(SIZE as u64), root).unwrap();
    let groups: std::collections::BTreeSet<u64> = held.groups().collect();
    let mut behind = held.clone();
    let is_end = |end: &u64| {
        !groups.contains(&(end + 1)) && (end - 2..*end).all(|before| groups.contains(&before)) && *end < 39
    };
    for end in groups.range(2..).filter(|end| is_end(end)) {
        (end - 1..=*end).for_each(|group| behind.remove(group));
    }
    assert!(behind.total().0 > 0 && behind.total() < held.total(), "{groups:?}");
    std::fs::write(marker(&staged), behind.encode()).unwrap();
    // And a stream has begun elsewhere since.
    let begun: Vec<usize> = (38..40).collect();
    assert!((36..40).all(|group| !groups.contains(&group)), "{groups:?}");
    let file = std::fs::File::options().write(true).open(&staged).unwrap();
    for group in &begun {
        file.write_all_at(&content(0)[group * MIB..][..MIB], (group * MIB) as u64).unwrap();
    }
    pair.resume_receiver().await;
    pair.succeeds(&id).await;
    let passed = pair.link.passed(Way::Back);
    let missing = held.missing().total().0 as usize - begun.len() * MIB;
    assert!(passed < missing + MIB, "{passed} bytes passed for the {missing} that were missing: {groups:?}");
    assert!(bytes(&pair.there, &format!("/v1/data{PATH}")).await == content(0));
    pair.is_tidy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_was_replaced_meanwhile_is_given_up_whole() {
    let mut pair = Pair::start("managed").await;
    let id = pair.cut_at_half(replicate()).await;
    pair.stop_receiver().await;
    pair.here.write(PATH, content(1)).await.expect(428);
    let put = pair.here.request(reqwest::Method::PUT, &format!("/v1/data{PATH}")).header("if-match", "*");
    assert!(crate::common::send(put.body(content(1))).await.status.is_success());
    pair.resume_receiver().await;
    let task = ended(&pair.there, &id).await;
    // An attempt that began before the change was known here has nobody who still has the old version.
    if task["state"] == "partial" {
        let items = pair.there.get(&format!("/v1/tasks/{id}/items")).await.expect(200);
        eprintln!("the old version was refused: {items}");
        let version =
            pair.here.get(&format!("/v1/entries{PATH}")).await.expect(200)["content"]["version"].clone();
        assert!(version.is_number(), "{version}");
        soon("the new version to be known", || async {
            let known = pair.there.get(&format!("/v1/entries{PATH}")).await.expect(200);
            (known["content"]["version"] == version).then_some(())
        })
        .await;
        pair.there.post(&format!("/v1/tasks/{id}/retry"), json!({})).await.expect(200);
        pair.succeeds(&id).await;
    }
    soon("the new version to be read here", || async {
        (bytes(&pair.there, &format!("/v1/data{PATH}")).await == content(1)).then_some(())
    })
    .await;
    pair.is_tidy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_native_source_that_changes_is_noticed_and_never_spliced() {
    let mut pair = Pair::start("native").await;
    let id = pair.cut_at_half(replicate()).await;
    pair.stop_receiver().await;
    let file = pair.alps.directory.path().join("native").join(PATH.trim_start_matches('/'));
    std::fs::write(&file, content(2)).unwrap();
    pair.resume_receiver().await;
    // Nobody has hashed what is there now, so no copy is made of it.
    let task = ended(&pair.there, &id).await;
    assert_ended(&task, "partial", 0, 1);
    assert!(bytes(&pair.here, &format!("/v1/data{PATH}")).await == content(2));
    assert!(bytes(&pair.there, &format!("/v1/data{PATH}")).await == content(2));
    pair.is_tidy().await;
    assert!(crate::tasks::files(&pair.baltic).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_cancelled_leaves_nothing_of_an_object() {
    let mut pair = Pair::start("managed").await;
    // While it runs, and while its server is stopped.
    for is_stopped in [false, true] {
        let id = pair.cut_at_half(replicate()).await;
        assert_eq!(pair.leases().await, 1);
        if is_stopped {
            pair.stop_receiver().await;
            // Still cut: nothing can be brought.
            pair.baltic.resume().await;
            let (url, http) = (pair.baltic.admin.url.clone(), pair.baltic.admin.http.clone());
            pair.there = Client { url, http, ..pair.there.clone() };
        }
        pair.there.post(&format!("/v1/tasks/{id}/cancel"), json!({})).await.expect(200);
        assert_eq!(ended(&pair.there, &id).await["state"], "cancelled");
        pair.is_tidy().await;
        assert!(crate::tasks::files(&pair.baltic).is_empty());
        pair.link.mend();
        let there = &pair.there;
        soon("alps to be reached again", || async {
            (there.get(&format!("/v1/entries{PATH}")).await.status.as_u16() == 200).then_some(())
        })
        .await;
    }
}
