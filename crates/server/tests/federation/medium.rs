//! Copies are read back from the medium before they have a name, and what is wrong there is brought again.

use std::sync::Arc;

use percale_store::wrappers::{Chaos, ChaosPolicy};
use serde_json::{Value, json};

use crate::common::{Client, bytes};
use crate::fabric::Site;
use crate::tasks::{
    assert_ended, content, files, good_at, large, nothing_left, run, with_space, write_small,
};

/// The first so many pieces that are written to the site's disk are wrong there.
pub fn writes_wrong(site: &Site, first: u64) {
    let app = site.running.as_ref().unwrap().app();
    let id = app.stores.all().first().unwrap().row.id;
    let policy = ChaosPolicy { wrong_writes: first, ..ChaosPolicy::default() };
    app.stores.wrap(id, |store| Arc::new(Chaos::new(store, policy).0));
}

async fn verified(client: &Client, task: &Value) -> Vec<String> {
    let id = task["id"].as_str().unwrap();
    let text = client.get(&format!("/v1/tasks/{id}/receipt")).await.text;
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|line| Some(line["verified"].as_str()?.to_owned())).collect()
}

/// 20 small objects, one of several groups, and one that is kept for another attempt.
async fn some() -> [Site; 3] {
    let sites = with_space().await;
    let here = sites[0].user("alice").await;
    write_small(&here, "run7/small", 20).await;
    here.write("/climate/run7/large", large(3_300_000)).await.expect(201);
    here.write("/climate/run7/larger", large(18_000_000)).await.expect(201);
    let there = sites[1].user("alice").await;
    sites[1].sees(&there, "/v1/entries/climate/run7/larger").await;
    sites
}

fn replicate(path: &str, verify: &str) -> Value {
    json!({"kind": "replicate", "path": path, "to": "baltic", "verify": verify})
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_on_the_medium_is_brought_again() {
    let [alps, baltic, _coast] = some().await;
    let (here, there) = (alps.user("alice").await, baltic.user("alice").await);
    // All small objects, all groups of one large one, and some of the other are wrong when they are written first.
    for (below, wrong, objects) in [("small", 20, 20), ("large", 4, 1), ("larger", 3, 1)] {
        writes_wrong(&baltic, wrong);
        let task = run(&here, replicate(&format!("/climate/run7/{below}"), "medium")).await;
        assert_eq!(task["verify"], "medium");
        assert_ended(&task, "succeeded", objects, 0);
        assert_eq!(verified(&here, &task).await, vec!["frames+medium"; objects as usize]);
    }
    good_at(&there, "/climate/run7", &["alps", "baltic"]).await;
    let check = run(&there, json!({"kind": "verify", "path": "/climate/run7"})).await;
    assert_ended(&check, "succeeded", 44, 0);
    assert!(bytes(&there, "/v1/data/climate/run7/larger").await == large(18_000_000));
    assert!(bytes(&there, "/v1/data/climate/run7/small/0007").await == content(7));
    nothing_left(&baltic).await;

    // What is copied within the site is read back as well.
    writes_wrong(&baltic, 1);
    let copy = json!({"kind": "copy", "from": "/climate/run7", "to": "/climate/run8", "verify": "medium", "at": "baltic"});
    let task = run(&there, copy).await;
    assert_ended(&task, "succeeded", 23, 0);
    let check = run(&there, json!({"kind": "verify", "path": "/climate/run8"})).await;
    assert_ended(&check, "succeeded", 22, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stays_wrong_on_the_medium_fails_and_is_never_seen() {
    let [alps, baltic, _coast] = some().await;
    let (here, there) = (alps.user("alice").await, baltic.user("alice").await);
    writes_wrong(&baltic, u64::MAX);
    let task = run(&here, replicate("/climate/run7", "medium")).await;
    assert_ended(&task, "partial", 0, 22);
    let id = task["id"].as_str().unwrap();
    let items = here.get(&format!("/v1/tasks/{id}/items")).await.expect(200);
    for item in items["items"].as_array().unwrap() {
        assert_eq!(item["code"], "integrity", "{item}");
        assert!(item["detail"].as_str().unwrap().contains("read back from the medium"), "{item}");
    }
    good_at(&there, "/climate/run7", &["alps"]).await;
    nothing_left(&baltic).await;
    assert!(files(&baltic).is_empty(), "nothing of it was kept");

    // Frames alone do not see that: what came was right.
    let task = run(&here, replicate("/climate/run7", "frames")).await;
    assert_ended(&task, "succeeded", 22, 0);
    let check = run(&there, json!({"kind": "verify", "path": "/climate/run7"})).await;
    assert_eq!(
        (&check["state"], &check["progress"]["items_failed"]),
        (&json!("partial"), &json!(22)),
        "{check}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_cannot_be_read_back_says_so() {
    let [alps, baltic, _coast] = with_space().await;
    let here = alps.user("alice").await;
    here.write("/climate/a", "a").await.expect(201);
    let there = baltic.user("alice").await;
    baltic.sees(&there, "/v1/entries/climate/a").await;
    baltic
        .admin
        .post("/v1/stores", json!({"name": "quick", "connector": "memory", "config": {}}))
        .await
        .expect(201);
    baltic.admin.patch("/v1/stores/disk", json!({"state": "draining"})).await.expect(200);
    let task = json!({"kind": "replicate", "path": "/climate", "to": "baltic", "verify": "medium"});
    let problem = here.post("/v1/tasks", task.clone()).await.expect_problem_at("unsupported", "alps");
    assert!(problem["detail"].as_str().unwrap().contains("quick"), "{problem}");
    let delete = json!({"kind": "delete", "path": "/climate/a", "verify": "medium"});
    here.post("/v1/tasks", delete).await.expect_problem_at("invalid_request", "alps");
    let wrong = json!({"kind": "replicate", "path": "/climate", "to": "baltic", "verify": "twice"});
    here.post("/v1/tasks", wrong).await.expect_problem_at("invalid_request", "alps");
}
