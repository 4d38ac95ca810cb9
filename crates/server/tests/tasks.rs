//! Managed tasks, from submission to result.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

mod common;

use std::time::Duration;

use common::{Client, Server, eventually, send};
use futures::StreamExt as _;
use percale_core::access::{Caller, Identity};
use percale_testkit::tmpfs::SmallFileSystem;
use reqwest::Method;
use serde_json::{Value, json};

async fn finished(client: &Client, task: &Value) -> Value {
    let address = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
    eventually("the end of the task", || async {
        let task = client.get(&address).await.expect(200);
        let state = task["state"].as_str().unwrap().to_owned();
        ["succeeded", "partial", "failed", "cancelled"].contains(&state.as_str()).then_some(task)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_finds_what_changed_behind_our_back() {
    let server = Server::with_space().await;
    let alice = server.user("alice").await;
    for name in ["one", "two", "three"] {
        alice.write(&format!("/s/d/{name}"), format!("content of {name}")).await.expect(201);
    }
    alice.write("/s/d/large", vec![5; 3 << 20]).await.expect(201);
    let submitted = alice.post("/v1/tasks", json!({"kind": "verify", "path": "/s", "label": "weekly"})).await;
    let task = submitted.expect(201);
    assert_eq!(submitted.header("location"), format!("/v1/tasks/{}", task["id"].as_str().unwrap()));
    assert_eq!((&task["label"], &task["owner"]), (&json!("weekly"), &json!("user:alice")));
    let done = finished(&alice, &task).await;
    assert_eq!(done["state"], "succeeded", "{done}");
    assert_eq!(done["progress"]["items_done"], 4);
    assert_eq!(done["progress"]["bytes_done"], (3 << 20) + 14 + 14 + 16);

    let root = server.directory.path().join("disk/s/d");
    std::fs::write(root.join("one"), "Content of one").unwrap();
    std::fs::remove_file(root.join("two")).unwrap();
    let task = alice.post("/v1/tasks", json!({"kind": "verify", "path": "/s/d"})).await.expect(201);
    let done = finished(&alice, &task).await;
    assert_eq!(done["state"], "partial", "{done}");
    assert_eq!((&done["progress"]["items_done"], &done["progress"]["items_failed"]), (&json!(2), &json!(2)));
    let items = alice.get(&format!("/v1/tasks/{}/items", task["id"].as_str().unwrap())).await.expect(200);
    let mut paths: Vec<_> =
        items["items"].as_array().unwrap().iter().map(|item| item["path"].as_str().unwrap()).collect();
    paths.sort_unstable();
    assert_eq!(paths, ["/s/d/one", "/s/d/two"], "{items}");
    let state = async |path: &str| {
        alice.get(&format!("/v1/entries{path}")).await.expect(200)["replicas"][0]["state"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(state("/s/d/one").await, "suspect");
    assert_eq!(state("/s/d/two").await, "lost");
    assert_eq!(state("/s/d/three").await, "good");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_is_copied_and_a_tree_removed() {
    let server = Server::with_space().await;
    let alice = server.user("alice").await;
    for number in 0..250 {
        alice
            .write(&format!("/s/d/{}/{number}", number % 3), format!("content of {number}"))
            .await
            .expect(201);
    }
    alice.write("/s/d/large", vec![9; (2 << 20) + 17]).await.expect(201);
    let copy = json!({"kind": "copy", "from": "/s/d", "to": "/s/e"});
    let task = alice.post("/v1/tasks", copy.clone()).await.expect(201);
    let done = finished(&alice, &task).await;
    assert_eq!(done["state"], "succeeded", "{done}");
    assert_eq!(done["progress"]["items_done"], 254, "251 objects and 3 collections: {done}");
    for path in ["1/7", "0/249", "large"] {
        let original = alice.get(&format!("/v1/data/s/d/{path}")).await;
        let copied = alice.get(&format!("/v1/data/s/e/{path}")).await;
        assert_eq!((original.status.as_u16(), copied.status.as_u16()), (200, 200));
        assert_eq!(original.text, copied.text);
    }
    alice.post("/v1/tasks", copy).await.expect_problem("already_exists");
    let into_itself = json!({"kind": "copy", "from": "/s/d", "to": "/s/d/x"});
    alice.post("/v1/tasks", into_itself).await.expect_problem("invalid_request");

    let task = alice.post("/v1/tasks", json!({"kind": "delete", "path": "/s/d"})).await.expect(201);
    let done = finished(&alice, &task).await;
    assert_eq!(done["state"], "succeeded", "{done}");
    alice.get("/v1/entries/s/d").await.expect_problem("not_found");
    alice.get("/v1/data/s/e/large").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_their_owners_and_decided_upon_at_once() {
    let server = Server::with_space().await;
    let (alice, bob) = (server.user("alice").await, server.user("bob").await);
    alice.mkdir("/s/a").await.expect(201);
    bob.post("/v1/tasks", json!({"kind": "verify", "path": "/s"})).await.expect_problem("not_found");
    alice.post("/v1/tasks", json!({"kind": "delete", "path": "/s"})).await.expect_problem("unsupported");
    alice.post("/v1/tasks", json!({"kind": "verify", "path": "/s/none"})).await.expect_problem("not_found");
    alice.put("/v1/grants/s", json!({"subject": "user:bob", "permission": "read"})).await.expect(200);
    bob.post("/v1/tasks", json!({"kind": "delete", "path": "/s/a"})).await.expect_problem("forbidden");

    let body = json!({"kind": "verify", "path": "/s"});
    let keyed = || send(alice.request(Method::POST, "/v1/tasks").header("idempotency-key", "k").json(&body));
    let (first, again) = (keyed().await.expect(201), keyed().await.expect(201));
    assert_eq!(first["id"], again["id"]);
    let other = alice.request(Method::POST, "/v1/tasks").header("idempotency-key", "k");
    send(other.json(&json!({"kind": "verify", "path": "/s/a"}))).await.expect_problem("idempotency_mismatch");
    finished(&alice, &first).await;
    let id = first["id"].as_str().unwrap();
    bob.get(&format!("/v1/tasks/{id}")).await.expect_problem("not_found");
    bob.post(&format!("/v1/tasks/{id}/cancel"), json!({})).await.expect_problem("not_found");
    assert_eq!(bob.get("/v1/tasks").await.expect(200)["items"], json!([]));
    assert_eq!(alice.get("/v1/tasks?state=succeeded&kind=verify").await.expect(200)["items"][0]["id"], *id);
    server.admin.get(&format!("/v1/tasks/{id}")).await.expect(200);
    alice.get(&format!("/v1/tasks/{id}/items?cursor=x")).await.expect_problem("invalid_request");
    // What has succeeded is neither cancelled nor tried again.
    assert!(alice.post(&format!("/v1/tasks/{id}/cancel"), json!({})).await.status.is_client_error());
    assert!(alice.post(&format!("/v1/tasks/{id}/retry"), json!({})).await.status.is_client_error());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_of_a_stopped_server_goes_on_after_the_restart() {
    let server = Server::with_space().await;
    let alice = server.user("alice").await;
    for number in 0..20 {
        alice.write(&format!("/s/d/{number}"), vec![number; 2 << 20]).await.expect(201);
    }
    let task = alice.post("/v1/tasks", json!({"kind": "verify", "path": "/s"})).await.expect(201);
    let Server { running, directory, .. } = server;
    running.shutdown().await;
    let again = common::config(&directory);
    let server = Server::with(directory, again).await;
    let alice = Client { url: server.running.url(), ..alice };
    let done = tokio::time::timeout(Duration::from_secs(30), finished(&alice, &task)).await.unwrap();
    assert_eq!(done["state"], "succeeded", "{done}");
    assert_eq!(done["progress"]["items_done"], 20, "an item is counted twice or not at all");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_collection_is_removed_by_a_task() {
    let server = Server::with_space().await;
    let alice = server.user("alice").await;
    alice.mkdir("/s/d").await.expect(201);
    let catalog = server.running.app().catalog.clone();
    let owner = Caller::user(Identity::local("alice"));
    let made = futures::stream::iter(0..10_500)
        .map(|number| {
            let (catalog, owner) = (catalog.clone(), owner.clone());
            async move {
                let path = format!("/s/d/{number}").parse().unwrap();
                catalog.create_collection(&owner, &path, false).await.unwrap();
            }
        })
        .buffer_unordered(512)
        .count()
        .await;
    assert_eq!(made, 10_500);
    let answer = alice.delete("/v1/entries/s/d?recursive=true").await;
    let task = answer.expect(202);
    assert_eq!(answer.header("location"), format!("/v1/tasks/{}", task["id"].as_str().unwrap()));
    let done = finished(&alice, &task).await;
    assert_eq!(
        (&done["state"], &done["progress"]["items_done"]),
        (&json!("succeeded"), &json!(10_501)),
        "{done}"
    );
    alice.get("/v1/entries/s/d").await.expect_problem("not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_task_is_cancelled_and_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = common::config(&directory);
    config.tasks.workers = 0;
    let server = Server::with(directory, config).await;
    server.admin.post("/v1/spaces", json!({"name": "s", "owner": "user:alice"})).await.expect(201);
    let alice = server.user("alice").await;
    let task = alice.post("/v1/tasks", json!({"kind": "verify", "path": "/s"})).await.expect(201);
    let address = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
    assert_eq!(alice.get(&address).await.expect(200)["state"], "queued");
    assert_eq!(alice.post(&format!("{address}/cancel"), json!({})).await.expect(200)["state"], "cancelled");
    assert_eq!(alice.post(&format!("{address}/retry"), json!({})).await.expect(200)["state"], "queued");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_emptied_and_removed_while_it_is_read() {
    let server = Server::with_space().await;
    let alice = server.user("alice").await;
    for number in 0..60 {
        alice.write(&format!("/s/d/{number}"), format!("content of {number}")).await.expect(201);
    }
    let large: Vec<u8> = (0..3_000_000).map(|at| (at % 251) as u8).collect();
    alice.write("/s/large", large.clone()).await.expect(201);
    let empty = json!({"kind": "empty", "store": "disk"});
    alice.post("/v1/tasks", empty.clone()).await.expect_problem("forbidden");
    server
        .admin
        .post("/v1/tasks", json!({"kind": "empty", "store": "none"}))
        .await
        .expect_problem("not_found");
    server.admin.post("/v1/tasks", empty.clone()).await.expect_problem("conflict");
    server.admin.patch("/v1/stores/disk", json!({"state": "draining"})).await.expect(200);

    // There is nowhere to go: it fails, and nothing is lost.
    let task = server.admin.post("/v1/tasks", empty.clone()).await.expect(201);
    let failed = finished(&server.admin, &task).await;
    assert_eq!(
        (&failed["state"], &failed["problem"]["code"]),
        (&json!("failed"), &json!("read_only")),
        "{failed}"
    );
    server.admin.delete("/v1/stores/disk").await.expect_problem("not_empty");

    server.add_store("other").await;
    let damaged = server.directory.path().join("disk/s/d/7");
    let mut permissions = std::fs::metadata(&damaged).unwrap().permissions();
    #[allow(clippy::permissions_set_readonly_false, reason = "a test's own file")]
    permissions.set_readonly(false);
    std::fs::set_permissions(&damaged, permissions).unwrap();
    std::fs::write(&damaged, "content of ?").unwrap();
    let task = server.admin.post("/v1/tasks", empty.clone()).await.expect(201);
    let mut reads = 0;
    loop {
        assert!(common::bytes(&alice, "/v1/data/s/large").await == large, "it can be read all the time");
        reads += 1;
        let now = server.admin.get(&format!("/v1/tasks/{}", task["id"].as_str().unwrap())).await.expect(200);
        if now["state"] != "queued" && now["state"] != "running" {
            assert_eq!(now["state"], "partial", "the damaged one is the last: {now}");
            assert_eq!(
                (&now["progress"]["items_done"], &now["progress"]["items_failed"]),
                (&json!(60), &json!(1))
            );
            break;
        }
    }
    assert!(reads > 0);
    for number in (0..60).filter(|number| *number != 7) {
        let read = alice.get(&format!("/v1/data/s/d/{number}")).await;
        assert_eq!(read.text, format!("content of {number}"));
    }
    let entry = alice.get("/v1/list/s?recursive=true&replicas=true&limit=100").await.expect(200);
    let on_other = |item: &&Value| {
        item["replicas"].as_array().is_some_and(|all| all.iter().all(|one| one["store"] == "other"))
    };
    assert_eq!(
        entry["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|item| item["kind"] == "object")
            .filter(on_other)
            .count(),
        60
    );

    alice.delete("/v1/entries/s/d/7").await.expect(204);
    common::eventually("nothing lies on it any more", || async {
        (server.admin.delete("/v1/stores/disk").await.status.as_u16() == 204).then_some(())
    })
    .await;
    assert!(common::bytes(&alice, "/v1/data/s/large").await == large);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_ends_a_task_that_brings_bytes() {
    let Some(disk) = SmallFileSystem::mount(4 << 20) else { return };
    let server = Server::with_space().await;
    let alice = server.user("alice").await;
    for number in 0..20 {
        alice.write(&format!("/s/d/{number}"), vec![number; 300_000]).await.expect(201);
    }
    let small = json!({"name": "small", "connector": "posix", "config": {"root": disk.path().join("store")}});
    server.admin.post("/v1/stores", small).await.expect(201);
    server.admin.patch("/v1/stores/disk", json!({"state": "draining"})).await.expect(200);
    let copy = json!({"kind": "copy", "from": "/s/d", "to": "/s/e"});
    let sync = json!({"kind": "sync", "from": "/s/d", "to": "/s/f"});
    let empty = json!({"kind": "empty", "store": "disk"});
    for (client, spec) in [(&alice, copy), (&alice, sync), (&server.admin, empty)] {
        let task = client.post("/v1/tasks", spec).await.expect(201);
        let task = finished(client, &task).await;
        let ended = (&task["state"], &task["problem"]["code"]);
        assert_eq!(ended, (&json!("failed"), &json!("no_space")), "{task}");
        let items =
            client.get(&format!("/v1/tasks/{}/items", task["id"].as_str().unwrap())).await.expect(200);
        assert!(items["items"].as_array().unwrap().iter().any(|item| item["code"] == "no_space"), "{items}");
    }
    for number in 0..20 {
        assert!(common::bytes(&alice, &format!("/v1/data/s/d/{number}")).await == vec![number; 300_000]);
    }
}
