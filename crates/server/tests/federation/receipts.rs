//! What tasks have brought is listed and signed by the site where they ran.

use std::collections::{BTreeMap, BTreeSet};

use percale_api::receipt::{Header, Item};
use percale_client::receipt::read_receipt;
use percale_trust::SitePublicKey;
use serde_json::{Value, json};

use crate::common::{Client, eventually};
use crate::fabric::Site;
use crate::tasks::{
    assert_ended, begun, content, ended, good_at, large, run, submit, with_space, write_small, write_some,
};

/// Returns the key that a site is known to have at another one.
async fn key_of(site: &Site, known_at: &Client) -> SitePublicKey {
    let sites = known_at.get("/v1/sites").await.expect(200);
    let sites = sites["items"].as_array().unwrap().clone();
    let member = sites.iter().find(|member| member["name"] == site.name).unwrap();
    member["key"].as_str().unwrap().parse().unwrap()
}

/// Fetches a receipt and checks it with the key of the site that should have signed it.
async fn receipt(client: &Client, id: &str, by: &Site) -> (Header, Vec<Item>) {
    let answer = client.get(&format!("/v1/tasks/{id}/receipt")).await;
    assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, "application/jsonl"));
    let unproven = read_receipt(answer.text.as_bytes()).unwrap();
    unproven.prove(&[key_of(by, client).await]).unwrap();
    let lines: Vec<&str> = answer.text.lines().collect();
    let items = lines[1..lines.len() - 1].iter().map(|line| serde_json::from_str(line).unwrap());
    (unproven.header().clone(), items.collect())
}

/// Returns version, size and root of each object below a path, as the catalog has them.
async fn objects(client: &Client, path: &str) -> BTreeMap<String, (u64, u64, String)> {
    let page = client.get(&format!("/v1/list{path}?recursive=true&limit=10000")).await.expect(200);
    let objects = page["items"].as_array().unwrap().iter().filter(|item| item["kind"] == "object");
    let one = |item: &Value| {
        let number = |field: &str| item["content"][field].as_u64().unwrap();
        let root = item["content"]["root"].as_str().unwrap().to_owned();
        (item["path"].as_str().unwrap().to_owned(), (number("version"), number("size"), root))
    };
    objects.map(one).collect()
}

fn listed(items: &[Item]) -> BTreeMap<String, (u64, u64, String)> {
    let all: BTreeMap<_, _> = items
        .iter()
        .map(|item| (item.path.to_string(), (item.version.0, item.size, item.blake3.to_string())))
        .collect();
    assert_eq!(all.len(), items.len(), "each once");
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_says_what_came_from_where_and_only_to_whom_the_task_is() {
    let [alps, baltic, coast] = with_space().await;
    let (here, there, elsewhere) =
        (alps.user("alice").await, baltic.user("alice").await, coast.user("alice").await);
    write_small(&here, "run7", 120).await;
    here.write("/climate/run7/large", large(5_300_000)).await.expect(201);
    coast.sees(&elsewhere, "/v1/entries/climate/run7/large").await;
    let id = {
        let replicate =
            json!({"kind": "replicate", "path": "/climate/run7", "to": "baltic", "label": "für später"});
        let task = run(&elsewhere, replicate).await;
        assert_ended(&task, "succeeded", 121, 0);
        task["id"].as_str().unwrap().to_owned()
    };
    // Asked for where the task was submitted; it is of the site where it ran.
    let (header, items) = receipt(&elsewhere, &id, &baltic).await;
    assert_eq!((header.site.name.as_str(), header.owner.as_str()), ("baltic", "user:alice@site:coast"));
    assert_eq!(header.task.to_string(), id);
    assert_eq!(header.label.as_deref(), Some("für später"));
    assert_eq!((header.items_done, header.items_failed, header.listed), (121, 0, 121));
    let sources: Vec<&str> = header.sources.iter().map(|site| site.name.as_str()).collect();
    assert_eq!(sources, ["alps"]);
    assert!(header.submitted <= header.started.unwrap() && header.started.unwrap() <= header.ended);
    assert_eq!(listed(&items), objects(&there, "/climate/run7").await);
    for item in &items {
        assert_eq!((item.verified.as_str(), item.store.as_deref()), ("frames", Some("disk")), "{item:?}");
        assert_eq!(item.sources, ["alps"]);
        assert!(header.started.unwrap() <= item.at && item.at <= header.ended, "{item:?}");
    }
    assert_eq!(receipt(&baltic.admin, &id, &baltic).await.1, items);

    // To all others the task does not exist, and neither does its receipt.
    let bob = coast.user("bob").await;
    for stranger in [&bob, &here, &there] {
        let answer = stranger.get(&format!("/v1/tasks/{id}/receipt")).await;
        assert_eq!(answer.status.as_u16(), 404, "{}", answer.text);
    }
    let anonymous = Client { http: bob.http.clone(), url: bob.url.clone(), token: None };
    assert_ne!(anonymous.get(&format!("/v1/tasks/{id}/receipt")).await.status.as_u16(), 200);

    // Again nothing is brought: a receipt is of its own task.
    let replicate = json!({"kind": "replicate", "path": "/climate/run7", "to": "baltic"});
    let task = run(&elsewhere, replicate).await;
    let (header, items) = receipt(&elsewhere, task["id"].as_str().unwrap(), &baltic).await;
    assert_eq!((header.items_done, header.listed, items.len(), header.sources.len()), (121, 0, 0, 0));

    let verify = run(&here, json!({"kind": "verify", "path": "/climate/run7"})).await;
    let id = verify["id"].as_str().unwrap();
    here.get(&format!("/v1/tasks/{id}/receipt")).await.expect_problem("unsupported");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_tried_again_makes_what_it_has_not_made() {
    let [alps, baltic, _coast] = with_space().await;
    let (here, there) = (alps.user("alice").await, baltic.user("alice").await);
    write_small(&here, "run7", 20).await;
    let damaged = crate::tasks::damage(&alps, &content(5));
    baltic.sees(&there, "/v1/entries/climate/run7/0019").await;
    let copy = json!({"kind": "copy", "from": "/climate/run7", "to": "/climate/run8", "at": "baltic"});
    let id = submit(&here, copy).await;
    assert_ended(&ended(&here, &id).await, "partial", 19, 1);
    std::fs::write(damaged, content(5)).unwrap();
    run(&here, json!({"kind": "verify", "path": "/climate/run7"})).await;
    good_at(&there, "/climate/run7", &["alps"]).await;
    here.post(&format!("/v1/tasks/{id}/retry"), json!({})).await.expect(200);
    assert_ended(&ended(&here, &id).await, "succeeded", 20, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_of_a_copy_names_what_was_made_and_grows_with_a_retry() {
    let [alps, baltic, _coast] = with_space().await;
    let (here, there) = (alps.user("alice").await, baltic.user("alice").await);
    write_small(&here, "run7", 40).await;
    here.write("/climate/run7/large", large(3_300_000)).await.expect(201);
    let damaged = crate::tasks::damage(&alps, &content(5));
    baltic.sees(&there, "/v1/entries/climate/run7/large").await;
    let copy = json!({"kind": "sync", "from": "/climate/run7", "to": "/climate/run8", "at": "baltic"});
    let id = submit(&here, copy).await;
    // While it is not at its end there is no receipt.
    let early = here.get(&format!("/v1/tasks/{id}/receipt")).await;
    if early.status.as_u16() != 200 {
        early.expect_problem_at("conflict", "baltic");
    }
    assert_eq!(ended(&here, &id).await["state"], "partial");
    let (header, items) = receipt(&here, &id, &baltic).await;
    assert_eq!((header.state.as_str(), header.items_failed, items.len()), ("partial", 1, 40));
    assert!(items.iter().all(|item| !item.path.as_str().ends_with("/0005")));

    // What failed is mended, and the task tried again: the receipt is of both runs.
    std::fs::write(damaged, content(5)).unwrap();
    run(&here, json!({"kind": "verify", "path": "/climate/run7"})).await;
    good_at(&there, "/climate/run7", &["alps"]).await;
    here.post(&format!("/v1/tasks/{id}/retry"), json!({})).await.expect(200);
    assert_eq!(ended(&here, &id).await["state"], "succeeded");
    let (_, items) = receipt(&here, &id, &baltic).await;
    assert_eq!(listed(&items), objects(&there, "/climate/run8").await);
    let names: BTreeSet<&str> = items.iter().map(|item| item.verified.as_str()).collect();
    assert_eq!(names, BTreeSet::from(["frames"]));

    // Bytes of the site itself come from it.
    let copy = json!({"kind": "copy", "from": "/climate/run8", "to": "/climate/run9", "at": "baltic"});
    let id = submit(&there, copy).await;
    assert_ended(&ended(&there, &id).await, "succeeded", 41, 0);
    let (header, items) = receipt(&there, &id, &baltic).await;
    assert_eq!(header.sources.len(), 1);
    assert!(items.iter().all(|item| item.sources == ["baltic"]), "{items:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_lists_each_copy_once_though_its_site_was_stopped() {
    let [alps, mut baltic, _coast] = with_space().await;
    let here = alps.user("alice").await;
    write_some(&here).await;
    let there = baltic.user("alice").await;
    baltic.sees(&there, "/v1/entries/climate/run7/large9").await;
    let id = submit(&here, json!({"kind": "replicate", "path": "/climate/run7", "to": "baltic"})).await;
    begun(&baltic).await;
    baltic.stop().await;
    baltic.resume().await;
    let there = baltic.user("alice").await;
    assert_eq!(ended(&here, &id).await["state"], "succeeded");
    eventually("the copies show", || async {
        let all = objects(&there, "/climate/run7").await;
        let (header, items) = receipt(&here, &id, &baltic).await;
        assert_eq!(header.listed as usize, all.len());
        (listed(&items) == all).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_moved_off_a_store_is_listed_with_where_it_went() {
    let [alps, _baltic, _coast] = with_space().await;
    let here = alps.user("alice").await;
    write_small(&here, "run7", 30).await;
    here.write("/climate/run7/large", large(3_300_000)).await.expect(201);
    let root = alps.directory.path().join("disk2");
    let store = json!({"name": "disk2", "connector": "posix", "config": {"root": root}});
    alps.admin.post("/v1/stores", store).await.expect(201);
    alps.admin.patch("/v1/stores/disk", json!({"state": "draining"})).await.expect(200);
    let task = run(&alps.admin, json!({"kind": "empty", "store": "disk"})).await;
    assert_eq!(task["state"], "succeeded", "{task}");
    let (_, items) = receipt(&alps.admin, task["id"].as_str().unwrap(), &alps).await;
    assert_eq!(listed(&items), objects(&here, "/climate/run7").await);
    assert!(items.iter().all(|item| item.store.as_deref() == Some("disk2") && item.sources == ["alps"]));
}
