//! Objects are copied from one space to another, and collections kept alike, by tasks of the site that gets the bytes.

use serde_json::{Value, json};

use crate::common::{Client, bytes, eventually};
use crate::fabric::Site;
use crate::tasks::{
    assert_ended, begun, content, damage, ended, files, good_at, large, nothing_left, run, submit,
    with_space, write_small, write_some,
};

/// A second space, whose home is baltic, which alice may write from everywhere.
async fn with_archive() -> [Site; 3] {
    let sites = with_space().await;
    sites[1].admin.post("/v1/spaces", json!({"name": "archive", "owner": "user:alice"})).await.expect(201);
    for site in ["alps", "coast"] {
        let grant = json!({"subject": format!("user:alice@site:{site}"), "permission": "write"});
        sites[1].admin.put("/v1/grants/archive", grant).await.expect(200);
    }
    sites
}

/// Returns the paths below a collection, with an `/` behind those of collections.
async fn names(client: &Client, path: &str) -> Vec<String> {
    let page = client.get(&format!("/v1/list{path}?recursive=true&limit=10000")).await.expect(200);
    let name = |item: &Value| {
        let below = item["path"].as_str().unwrap().strip_prefix(path).unwrap();
        format!("{below}{}", if item["kind"] == "collection" { "/" } else { "" })
    };
    page["items"].as_array().unwrap().iter().map(name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_holds_at_every_site() {
    let [alps, baltic, coast] = with_archive().await;
    let (there, elsewhere) = (baltic.user("alice").await, coast.user("alice").await);
    coast.sees(&elsewhere, "/v1/entries/archive").await;
    baltic.admin.patch("/v1/spaces/archive", json!({"quota": 10_000_000})).await.expect(200);
    there.patch("/v1/spaces/archive", json!({"quota": null})).await.expect_problem_at("forbidden", "baltic");
    elsewhere.write("/archive/first", large(6_000_000)).await.expect(201);
    eventually("the quota is known everywhere", async || {
        let space = elsewhere.get("/v1/spaces/archive").await.expect(200);
        ((&space["quota"], &space["used"]) == (&json!(10_000_000), &json!(6_000_000))).then_some(())
    })
    .await;
    for (client, site) in [(&elsewhere, "coast"), (&there, "baltic")] {
        client.write("/archive/second", large(6_000_000)).await.expect_problem_at("quota_exceeded", site);
        for size in [9_000_000, 6_000_000] {
            let over = client.request(reqwest::Method::PUT, "/v1/data/archive/first").header("if-match", "*");
            crate::common::send(over.body(large(size))).await.expect(200);
        }
    }
    // What a task brings counts as well.
    let here = alps.user("alice").await;
    here.write("/climate/x", large(6_000_000)).await.expect(201);
    baltic.sees(&there, "/v1/entries/climate/x").await;
    let copy = json!({"kind": "copy", "from": "/climate/x", "to": "/archive/x", "at": "coast"});
    assert_ended(&run(&there, copy).await, "partial", 0, 1);
    baltic.admin.patch("/v1/spaces/archive", json!({"quota": null})).await.expect(200);
    elsewhere.write("/archive/second", large(6_000_000)).await.expect(201);
    nothing_left(&coast).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_takes_the_path_of_an_object_whose_file_is_still_there() {
    let [alps, baltic, coast] = with_space().await;
    let (home, elsewhere) = (alps.user("alice").await, coast.user("alice").await);
    coast.sees(&elsewhere, "/v1/entries/climate").await;
    elsewhere.write("/climate/a", "one").await.expect(201);
    home.post("/v1/move", json!({"from": "/climate/a", "to": "/climate/b"})).await.expect(200);
    coast.sees(&elsewhere, "/v1/entries/climate/b").await;
    elsewhere.write("/climate/a/x", "two").await.expect(201);
    for site in [&alps, &baltic, &coast] {
        let client = site.user("alice").await;
        site.sees(&client, "/v1/entries/climate/a/x").await;
        assert_eq!(bytes(&client, "/v1/data/climate/a/x").await, b"two");
        assert_eq!(bytes(&client, "/v1/data/climate/b").await, b"one");
    }
    nothing_left(&coast).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_that_was_raised_holds_at_once_at_every_site() {
    let [_alps, baltic, coast] = with_archive().await;
    let elsewhere = coast.user("alice").await;
    coast.sees(&elsewhere, "/v1/entries/archive").await;
    for round in 0..10 {
        baltic.admin.patch("/v1/spaces/archive", json!({"quota": 1000})).await.expect(200);
        eventually("the quota is known", async || {
            let space = elsewhere.get("/v1/spaces/archive").await.expect(200);
            (space["quota"] == 1000).then_some(())
        })
        .await;
        let upload = json!({"path": format!("/archive/{round}"), "size": 2000});
        let refused = elsewhere.post("/v1/uploads", upload.clone()).await;
        refused.expect_problem_at("quota_exceeded", "coast");
        baltic.admin.patch("/v1/spaces/archive", json!({"quota": 1_000_000})).await.expect(200);
        elsewhere.post("/v1/uploads", upload).await.expect(201);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_is_copied_into_the_space_of_another_home_by_a_third_site() {
    let [alps, baltic, coast] = with_archive().await;
    let (here, there, elsewhere) =
        (alps.user("alice").await, baltic.user("alice").await, coast.user("alice").await);
    write_small(&here, "run7/a", 120).await;
    let whole = large(5_300_000);
    here.write("/climate/run7/large", whole.clone()).await.expect(201);
    here.mkdir("/climate/run7/empty").await.expect(201);
    baltic.sees(&there, "/v1/entries/climate/run7/empty").await;
    baltic.sees(&there, "/v1/grants/archive").await;
    coast.sees(&elsewhere, "/v1/entries/archive").await;

    // Asked for at baltic, whose alice coast knows by her delegation only; the home of the names is baltic.
    let copy = json!({"kind": "copy", "from": "/climate/run7", "to": "/archive/run7", "at": "coast"});
    let task = run(&there, copy.clone()).await;
    assert_ended(&task, "succeeded", 123, 0);
    coast.admin.get(&format!("/v1/tasks/{}", task["id"].as_str().unwrap())).await.expect(200);
    assert_eq!(there.get("/v1/tasks").await.expect(200)["items"], json!([]));
    let listed = there.get("/v1/tasks?site=coast&state=succeeded").await.expect(200);
    assert_eq!(listed["items"][0]["id"], task["id"], "{listed}");
    assert_eq!(here.get("/v1/tasks?site=coast").await.expect(200)["items"], json!([]), "another alice's");
    assert_eq!(names(&there, "/archive/run7").await, names(&here, "/climate/run7").await);
    good_at(&there, "/archive/run7", &["coast"]).await;
    good_at(&there, "/climate/run7", &["alps"]).await;
    assert_eq!(files(&coast).len(), 121);
    assert!(bytes(&there, "/v1/data/archive/run7/large").await == whole);
    assert!(bytes(&here, "/v1/data/archive/run7/a/0007").await == content(7));
    there.post("/v1/tasks", copy).await.expect_problem_at("already_exists", "baltic");

    // Asked for at the home of the source, by the site that has the bytes: they are read where they are.
    let copy = json!({"kind": "copy", "from": "/climate/run7", "to": "/archive/run8"});
    assert_ended(&run(&here, copy).await, "succeeded", 123, 0);
    good_at(&there, "/archive/run8", &["alps"]).await;
    nothing_left(&alps).await;
    nothing_left(&coast).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_is_kept_like_another() {
    let [alps, baltic, coast] = with_archive().await;
    let (here, there, elsewhere) =
        (alps.user("alice").await, baltic.user("alice").await, coast.user("alice").await);
    write_small(&here, "run7/a", 30).await;
    let whole = large(3_300_000);
    here.write("/climate/run7/large", whole.clone()).await.expect(201);
    coast.sees(&elsewhere, "/v1/entries/climate/run7/large").await;
    coast.sees(&elsewhere, "/v1/entries/archive").await;
    let sync = |delete: bool| json!({"kind": "sync", "from": "/climate/run7", "to": "/archive/run7", "delete": delete});
    assert_ended(&run(&elsewhere, sync(false)).await, "succeeded", 32, 0);
    good_at(&there, "/archive/run7", &["coast"]).await;
    let idle = run(&elsewhere, sync(true)).await;
    assert_ended(&idle, "succeeded", 32, 0);
    assert_eq!(idle["progress"]["bytes_done"], 0);

    // One object changes, one is added, one goes; two and a collection are only at the destination.
    let over = here.request(reqwest::Method::PUT, "/v1/data/climate/run7/a/0003").header("if-match", "*");
    crate::common::send(over.body("other content")).await.expect(200);
    here.write("/climate/run7/b/new", "new").await.expect(201);
    here.delete("/v1/entries/climate/run7/a/0004").await.expect(204);
    for path in ["extra", "a/extra", "c/d/extra"] {
        there.write(&format!("/archive/run7/{path}"), "extra").await.expect(201);
    }
    coast.sees(&elsewhere, "/v1/entries/climate/run7/b/new").await;
    coast.sees(&elsewhere, "/v1/entries/archive/run7/c/d/extra").await;
    eventually("coast sees the removal", || async {
        (elsewhere.get("/v1/entries/climate/run7/a/0004").await.status.as_u16() == 404).then_some(())
    })
    .await;
    let task = run(&elsewhere, sync(false)).await;
    assert_ended(&task, "succeeded", 33, 0);
    assert_eq!(task["progress"]["bytes_done"], "other content".len() + "new".len());
    assert_eq!(there.get("/v1/data/archive/run7/a/0003").await.text, "other content");
    there.get("/v1/data/archive/run7/a/0004").await.expect(200);

    // With an object that cannot be read nothing is removed.
    damage(&alps, &content(5));
    there.delete("/v1/entries/archive/run7/a/0005").await.expect(204);
    eventually("coast sees the removal", || async {
        (elsewhere.get("/v1/entries/archive/run7/a/0005").await.status.as_u16() == 404).then_some(())
    })
    .await;
    let task = run(&elsewhere, sync(true)).await;
    assert_eq!(task["state"], "partial", "{task}");
    there.get("/v1/data/archive/run7/extra").await.expect(200);

    here.delete("/v1/entries/climate/run7/a/0005").await.expect(204);
    eventually("coast sees the removal", || async {
        (elsewhere.get("/v1/entries/climate/run7/a/0005").await.status.as_u16() == 404).then_some(())
    })
    .await;
    assert_eq!(run(&elsewhere, sync(true)).await["state"], "succeeded");
    eventually("both are alike", || async {
        (names(&there, "/archive/run7").await == names(&here, "/climate/run7").await).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_goes_on_after_its_site_and_the_home_were_stopped() {
    let [alps, mut baltic, mut coast] = with_archive().await;
    let here = alps.user("alice").await;
    write_some(&here).await;
    let elsewhere = coast.user("alice").await;
    coast.sees(&elsewhere, "/v1/entries/climate/run7/large9").await;
    coast.sees(&elsewhere, "/v1/entries/archive").await;
    alps.sees(&here, "/v1/entries/archive").await;
    let copy = json!({"kind": "copy", "from": "/climate/run7", "to": "/archive/run7", "at": "coast"});
    let id = submit(&here, copy).await;
    begun(&coast).await;
    baltic.stop().await;
    coast.stop().await;
    coast.resume().await;
    baltic.resume().await;
    assert_ended(&ended(&here, &id).await, "succeeded", 50, 0);
    let there = baltic.user("alice").await;
    assert_eq!(names(&there, "/archive/run7").await, names(&here, "/climate/run7").await);
    good_at(&there, "/archive/run7", &["coast"]).await;
    nothing_left(&coast).await;
    eventually("each object has one file", || async { (files(&coast).len() == 50).then_some(()) }).await;
    let task = run(&there, json!({"kind": "verify", "path": "/archive/run7"})).await;
    assert_ended(&task, "succeeded", 50, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_does_no_more_than_its_user_may() {
    let [alps, baltic, coast] = with_archive().await;
    let here = alps.user("alice").await;
    write_small(&here, "run7", 2).await;
    alps.sees(&here, "/v1/entries/archive").await;
    let bob = alps.user("bob").await;
    here.put("/v1/grants/climate", json!({"subject": "user:bob", "permission": "read"})).await.expect(200);
    let copy = json!({"kind": "copy", "from": "/climate/run7", "to": "/archive/run7", "at": "coast"});
    bob.post("/v1/tasks", copy.clone()).await.expect(404);
    let grant = json!({"subject": "user:bob@site:alps", "permission": "read"});
    baltic.admin.put("/v1/grants/archive", grant).await.expect(200);
    eventually("coast knows the grants", || async {
        (bob.post("/v1/tasks", copy.clone()).await.status.as_u16() == 403).then_some(())
    })
    .await;
    // A token that reads the one and writes the other is enough; one that only writes is not.
    for (scopes, status) in [
        (vec!["write:/archive"], 403),
        (vec!["read:/climate/run7"], 403),
        (vec!["read:/climate/run7", "write:/archive/other"], 403),
        (vec!["read:/climate/run7", "write:/archive/run7"], 201),
    ] {
        let token = json!({"subject": "user:alice", "scopes": scopes});
        let issued = alps.admin.post("/v1/tokens", token).await.expect(201);
        let limited = alps.admin.as_token(issued["secret"].as_str().unwrap());
        let answer = limited.post("/v1/tasks", copy.clone()).await;
        assert_eq!(answer.status.as_u16(), status, "{scopes:?}: {}", answer.text);
        if status == 201 {
            assert_ended(&ended(&limited, answer.json()["id"].as_str().unwrap()).await, "succeeded", 2, 0);
        }
    }
    for (from, to) in [("/climate/run7", "/climate/run7/x"), ("/climate/run7", "/climate")] {
        let wrong = json!({"kind": "sync", "from": from, "to": to, "delete": true});
        here.post("/v1/tasks", wrong).await.expect_problem_at("invalid_request", "alps");
    }
    drop(coast);
}
