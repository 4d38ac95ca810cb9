//! Tasks across sites: copies are made, checked, repaired and let go.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::{Client, bytes, eventually};
use crate::fabric::{Site, three};

/// Three sites and alice's space at the first one, which she may use from all.
pub async fn with_space() -> [Site; 3] {
    let sites = three().await;
    sites[0].admin.post("/v1/spaces", json!({"name": "climate", "owner": "user:alice"})).await.expect(201);
    for site in ["baltic", "coast"] {
        let grant = json!({"subject": format!("user:alice@site:{site}"), "permission": "write"});
        sites[0].admin.put("/v1/grants/climate", grant).await.expect(200);
    }
    sites
}

pub fn content(number: usize) -> Vec<u8> {
    (0..200 + number).map(|at| ((at * 7 + number) % 251) as u8).collect()
}

pub fn large(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8).collect()
}

/// Writes small objects `/climate/COLLECTION/NUMBER`.
pub async fn write_small(client: &Client, collection: &str, count: usize) {
    use futures::StreamExt as _;
    futures::stream::iter(0..count)
        .for_each_concurrent(16, |number| async move {
            let path = format!("/climate/{collection}/{number:04}");
            client.write(&path, content(number)).await.expect(201);
        })
        .await;
}

pub async fn submit(client: &Client, spec: Value) -> String {
    let task = client.post("/v1/tasks", spec).await.expect(201);
    task["id"].as_str().unwrap().to_owned()
}

/// Waits for the end of a task.
pub async fn ended(client: &Client, id: &str) -> Value {
    eventually(&format!("task {id} ends"), || async {
        let task = client.get(&format!("/v1/tasks/{id}")).await;
        let state = task.json()["state"].clone();
        ["succeeded", "partial", "failed", "cancelled"].iter().any(|end| state == *end).then(|| task.json())
    })
    .await
}

pub async fn run(client: &Client, spec: Value) -> Value {
    let id = submit(client, spec).await;
    ended(client, &id).await
}

#[track_caller]
pub fn assert_ended(task: &Value, state: &str, done: u64, failed: u64) {
    let progress = &task["progress"];
    let is = (task["state"].as_str(), progress["items_done"].as_u64(), progress["items_failed"].as_u64());
    assert_eq!(is, (Some(state), Some(done), Some(failed)), "{task}");
}

/// Returns the sites of the copies of each object below a path that are in this state.
pub async fn copies(client: &Client, path: &str, state: &str) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    let mut cursor = String::new();
    loop {
        let page =
            client.get(&format!("/v1/list{path}?replicas=true&recursive=true{cursor}")).await.expect(200);
        for item in page["items"].as_array().unwrap().iter().filter(|item| item["kind"] == "object") {
            let replicas = item["replicas"].as_array().unwrap().iter();
            let mut sites: Vec<String> = replicas
                .filter(|replica| replica["state"] == state)
                .map(|replica| replica["site"].as_str().unwrap().to_owned())
                .collect();
            sites.sort();
            found.push((item["path"].as_str().unwrap().to_owned(), sites));
        }
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return found,
        }
    }
}

/// Waits until every object below a path has good copies at just these sites, as a site sees it.
pub async fn good_at(client: &Client, path: &str, sites: &[&str]) {
    let mut last = Vec::new();
    for _ in 0..500 {
        last = copies(client, path, "good").await;
        if last.iter().all(|(_, at)| at == sites) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let wrong: Vec<_> = last.into_iter().filter(|(_, at)| at != sites).take(5).collect();
    panic!("expected copies at {sites:?}: {wrong:?}");
}

/// Returns the files of a site's store, without those of hash trees.
pub fn files(site: &Site) -> Vec<PathBuf> {
    fn below(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => below(&path, found),
                false => found.push(path),
            }
        }
    }
    let root = site.directory.path().join("disk");
    let mut found = Vec::new();
    below(&root, &mut found);
    found.retain(|file| {
        let name = file.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
        !name.starts_with(".percale/trees/") && !name.starts_with(".percale/store")
    });
    found
}

/// Finds the file of an object in a site's store by its content, and damages it.
pub fn damage(site: &Site, content: &[u8]) -> PathBuf {
    let is_it = |file: &PathBuf| std::fs::read(file).is_ok_and(|bytes| bytes == content);
    let file = files(site).into_iter().find(is_it).unwrap();
    let mut bytes = content.to_vec();
    bytes[content.len() / 2] ^= 1;
    let mut permissions = std::fs::metadata(&file).unwrap().permissions();
    #[allow(clippy::permissions_set_readonly_false, reason = "a test's own file")]
    permissions.set_readonly(false);
    std::fs::set_permissions(&file, permissions).unwrap();
    std::fs::write(&file, bytes).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_is_replicated_checked_and_evicted_from_wherever_it_is_asked_for() {
    let [alps, baltic, coast] = with_space().await;
    let (here, there, elsewhere) =
        (alps.user("alice").await, baltic.user("alice").await, coast.user("alice").await);
    write_small(&here, "run7", 300).await;
    let whole = large(5_300_000);
    here.write("/climate/run7/large", whole.clone()).await.expect(201);
    coast.sees(&elsewhere, "/v1/entries/climate/run7/large").await;

    // Asked for at a third site, it runs where the bytes go, and is seen where it was asked for.
    let spec = json!({"kind": "replicate", "path": "/climate/run7", "to": "baltic"});
    let task = run(&elsewhere, spec.clone()).await;
    assert_ended(&task, "succeeded", 301, 0);
    let bytes_done: u64 =
        (0..300).map(|number| content(number).len() as u64).sum::<u64>() + whole.len() as u64;
    assert_eq!(task["progress"]["bytes_done"], bytes_done);
    let id = task["id"].as_str().unwrap();
    assert_eq!(
        baltic.admin.get(&format!("/v1/tasks/{id}")).await.expect(200)["owner"],
        "user:alice@site:coast"
    );
    here.get(&format!("/v1/tasks/{id}")).await.expect(404);
    for client in [&here, &there, &elsewhere] {
        good_at(client, "/climate/run7", &["alps", "baltic"]).await;
    }
    assert!(bytes(&there, "/v1/data/climate/run7/large").await == whole);
    assert_eq!(files(&baltic).len(), 301);

    // Again, it finds that all is there.
    let task = run(&elsewhere, spec).await;
    assert_ended(&task, "succeeded", 301, 0);
    assert_eq!(task["progress"]["bytes_done"], 0);
    assert_eq!(files(&baltic).len(), 301);

    // Each site reads its own copies.
    let task = run(&elsewhere, json!({"kind": "verify", "path": "/climate/run7"})).await;
    assert_ended(&task, "succeeded", 602, 0);

    // The copies at the home may go, since there are others; those at the other site then may not.
    let task = run(&elsewhere, json!({"kind": "evict", "path": "/climate/run7", "from": "alps"})).await;
    assert_ended(&task, "succeeded", 301, 0);
    good_at(&elsewhere, "/climate/run7", &["baltic"]).await;
    let task = run(&there, json!({"kind": "evict", "path": "/climate/run7", "from": "baltic"})).await;
    assert_ended(&task, "partial", 0, 301);
    let items =
        there.get(&format!("/v1/tasks/{}/items?limit=1", task["id"].as_str().unwrap())).await.expect(200);
    assert_eq!(items["items"][0]["code"], "conflict", "{items}");
    good_at(&there, "/climate/run7", &["baltic"]).await;
    eventually("the bytes at alps are collected", || async { files(&alps).is_empty().then_some(()) }).await;
    assert!(bytes(&here, "/v1/data/climate/run7/large").await == whole);

    // Back to the home, which orders the space and gets copies of its own.
    let task = run(&here, json!({"kind": "replicate", "path": "/climate/run7", "to": "alps"})).await;
    assert_ended(&task, "succeeded", 301, 0);
    good_at(&here, "/climate/run7", &["alps", "baltic"]).await;
    assert_eq!(files(&alps).len(), 301);
    let task = run(&elsewhere, json!({"kind": "evict", "path": "/climate/run7", "from": "baltic"})).await;
    assert_ended(&task, "succeeded", 301, 0);
    good_at(&elsewhere, "/climate/run7", &["alps"]).await;
    eventually("the bytes at baltic are collected", || async { files(&baltic).is_empty().then_some(()) })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_source_is_noticed_passed_over_and_repaired() {
    let [alps, baltic, coast] = with_space().await;
    let (here, there, elsewhere) =
        (alps.user("alice").await, baltic.user("alice").await, coast.user("alice").await);
    write_small(&here, "run7", 20).await;
    let whole = large(5_300_000);
    here.write("/climate/run7/large", whole.clone()).await.expect(201);
    let to_coast = json!({"kind": "replicate", "path": "/climate/run7", "to": "coast"});
    assert_ended(&run(&here, to_coast).await, "succeeded", 21, 0);
    good_at(&there, "/climate/run7", &["alps", "coast"]).await;

    // One small and one large object are damaged where they are read first: others' bytes are taken in their place.
    damage(&alps, &content(3));
    damage(&alps, &whole);
    let to_baltic = json!({"kind": "replicate", "path": "/climate/run7", "to": "baltic", "from": "alps"});
    assert_ended(&run(&elsewhere, to_baltic).await, "succeeded", 21, 0);
    assert!(bytes(&there, "/v1/data/climate/run7/large").await == whole);
    assert!(bytes(&there, "/v1/data/climate/run7/0003").await == content(3));
    let suspects = eventually("alps finds its copies suspect", || async {
        let found = copies(&here, "/climate/run7", "suspect").await;
        let suspects: Vec<_> = found.into_iter().filter(|(_, sites)| !sites.is_empty()).collect();
        (suspects.len() == 2).then_some(suspects)
    })
    .await;
    for (path, sites) in suspects {
        assert!(["/climate/run7/0003", "/climate/run7/large"].contains(&path.as_str()), "{path}");
        assert_eq!(sites, ["alps"]);
    }

    // A check says what is bad at which site, and with repair makes it good: at the home, at another site, and where a file
    // is gone.
    damage(&baltic, &content(5));
    let gone =
        files(&coast).into_iter().find(|file| std::fs::read(file).is_ok_and(|bytes| bytes == content(7)));
    std::fs::remove_file(gone.unwrap()).unwrap();
    let task = run(&elsewhere, json!({"kind": "verify", "path": "/climate/run7"})).await;
    assert_ended(&task, "partial", 3 * 21 - 4, 4);
    let items = elsewhere.get(&format!("/v1/tasks/{}/items", task["id"].as_str().unwrap())).await.expect(200);
    let mut bad: Vec<_> =
        items["items"].as_array().unwrap().iter().map(|item| item["path"].as_str().unwrap()).collect();
    bad.sort_unstable();
    let expected = ["0003", "0005", "0007", "large"].map(|name| format!("/climate/run7/{name}"));
    assert_eq!(bad, expected, "{items}");
    let task = run(&elsewhere, json!({"kind": "verify", "path": "/climate/run7", "repair": true})).await;
    assert_ended(&task, "succeeded", 3 * 21, 0);
    good_at(&elsewhere, "/climate/run7", &["alps", "baltic", "coast"]).await;
    let task = run(&here, json!({"kind": "verify", "path": "/climate/run7"})).await;
    assert_ended(&task, "succeeded", 3 * 21, 0);
    for site in [&alps, &baltic, &coast] {
        eventually("what was bad is collected", || async { (files(site).len() == 21).then_some(()) }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_just_put_at_its_home_is_found_by_a_task_elsewhere() {
    let [alps, baltic, _coast] = with_space().await;
    let (here, there) = (alps.user("alice").await, baltic.user("alice").await);
    baltic.sees(&there, "/v1/entries/climate").await;
    let spec =
        |number| json!({"kind": "replicate", "path": format!("/climate/new/{number}"), "to": "baltic"});
    for number in 0..25 {
        here.write(&format!("/climate/new/{number}"), content(number)).await.expect(201);
        // This site may not have heard of it yet.
        submit(&there, spec(number)).await;
    }
    there.post("/v1/tasks", spec(99)).await.expect_problem_at("not_found", "baltic");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_without_a_good_copy_fails_alone() {
    let [alps, _baltic, coast] = with_space().await;
    let (here, elsewhere) = (alps.user("alice").await, coast.user("alice").await);
    write_small(&here, "run7", 5).await;
    let whole = large(2_500_000);
    here.write("/climate/run7/large", whole.clone()).await.expect(201);
    damage(&alps, &content(2));
    damage(&alps, &whole);
    coast.sees(&elsewhere, "/v1/entries/climate/run7/large").await;
    let task = run(&elsewhere, json!({"kind": "replicate", "path": "/climate/run7", "to": "baltic"})).await;
    assert_ended(&task, "partial", 4, 2);
    let items = elsewhere.get(&format!("/v1/tasks/{}/items", task["id"].as_str().unwrap())).await.expect(200);
    for item in items["items"].as_array().unwrap() {
        assert_eq!(item["code"], "integrity", "{items}");
        assert!(item["detail"].as_str().unwrap().contains("alps"), "{items}");
    }
    // What cannot be repaired stays bad, and is said to be.
    let task = run(&here, json!({"kind": "verify", "path": "/climate/run7", "repair": true})).await;
    assert_ended(&task, "partial", 8, 2);
}

/// Waits until a task has begun to bring copies to a site.
pub async fn begun(site: &Site) {
    eventually("copies arrive", || async { (files(site).len() > 3).then_some(()) }).await;
}

/// Waits until nothing is staged or on its way at a site.
pub async fn nothing_left(site: &Site) {
    let app = site.running.as_ref().unwrap().app();
    eventually("arrivals end", || async {
        app.catalog.written_arrivals(10, None).await.unwrap().is_empty().then_some(())
    })
    .await;
    eventually("staged files go", || async {
        let mut staged = 0;
        for store in app.stores.all() {
            staged += store.store.staged(None).await.unwrap().len();
        }
        (staged == 0).then_some(())
    })
    .await;
}

/// Objects that take a while to be copied.
pub async fn write_some(client: &Client) {
    write_small(client, "run7", 40).await;
    for number in 0..10 {
        let path = format!("/climate/run7/large{number}");
        client.write(&path, large(6_000_000 + number)).await.expect(201);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_goes_on_after_its_site_and_its_source_were_stopped() {
    let [mut alps, mut baltic, coast] = with_space().await;
    write_some(&alps.user("alice").await).await;
    let elsewhere = coast.user("alice").await;
    coast.sees(&elsewhere, "/v1/entries/climate/run7/large9").await;
    let id = submit(&elsewhere, json!({"kind": "replicate", "path": "/climate/run7", "to": "baltic"})).await;
    begun(&baltic).await;
    baltic.stop().await;
    elsewhere.get(&format!("/v1/tasks/{id}")).await.expect_problem_at("site_unavailable", "coast");
    baltic.resume().await;
    let state = baltic.admin.get(&format!("/v1/tasks/{id}")).await.expect(200)["state"].clone();
    assert!(state == "queued" || state == "running", "it was stopped in the middle: {state}");
    eventually("it goes on", || async { (files(&baltic).len() > 5).then_some(()) }).await;
    alps.stop().await;
    tokio::time::sleep(crate::fabric::WHILE).await;
    alps.resume().await;
    assert_ended(&ended(&elsewhere, &id).await, "succeeded", 50, 0);
    good_at(&elsewhere, "/climate/run7", &["alps", "baltic"]).await;
    nothing_left(&baltic).await;
    assert_eq!(files(&baltic).len(), 50);
    let task = run(&elsewhere, json!({"kind": "verify", "path": "/climate/run7"})).await;
    assert_ended(&task, "succeeded", 100, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_goes_on_without_the_site_where_it_was_submitted() {
    let [alps, baltic, mut coast] = with_space().await;
    write_some(&alps.user("alice").await).await;
    let elsewhere = coast.user("alice").await;
    coast.sees(&elsewhere, "/v1/entries/climate/run7/large9").await;
    // Some seconds, so that it is far from its end when that site goes.
    let limited = json!({"kind": "replicate", "path": "/climate/run7", "to": "baltic", "limit": "160Mbit/s"});
    let id = submit(&elsewhere, limited).await;
    coast.stop().await;
    let state = baltic.admin.get(&format!("/v1/tasks/{id}")).await.expect(200)["state"].clone();
    assert!(state == "queued" || state == "running", "its submitter went in the middle: {state}");
    assert_ended(&ended(&baltic.admin, &id).await, "succeeded", 50, 0);
    // Who asked for it finds it done.
    coast.resume().await;
    let elsewhere = coast.user("alice").await;
    assert_ended(&ended(&elsewhere, &id).await, "succeeded", 50, 0);
    good_at(&elsewhere, "/climate/run7", &["alps", "baltic"]).await;
    nothing_left(&baltic).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_task_leaves_only_whole_copies() {
    let [alps, baltic, coast] = with_space().await;
    write_some(&alps.user("alice").await).await;
    let elsewhere = coast.user("alice").await;
    coast.sees(&elsewhere, "/v1/entries/climate/run7/large9").await;
    let spec = json!({"kind": "replicate", "path": "/climate/run7", "to": "baltic"});
    let id = submit(&elsewhere, spec.clone()).await;
    begun(&baltic).await;
    elsewhere.post(&format!("/v1/tasks/{id}/cancel"), json!({})).await.expect(200);
    assert_eq!(ended(&elsewhere, &id).await["state"], "cancelled");
    nothing_left(&baltic).await;
    let there = baltic.user("alice").await;
    // What was told to the home is seen here a moment later.
    let there = eventually("every file is a copy", || async {
        let whole = copies(&there, "/climate/run7", "good").await;
        let there = whole.iter().filter(|(_, sites)| sites.contains(&"baltic".to_owned())).count();
        (files(&baltic).len() == there).then_some(there)
    })
    .await;
    assert!(there < 50, "it was cancelled before its end");
    // Only its owner has it done to the end.
    let bob = coast.user("bob").await;
    bob.post(&format!("/v1/tasks/{id}/retry"), json!({})).await.expect(404);
    elsewhere.post(&format!("/v1/tasks/{id}/retry"), json!({})).await.expect(200);
    assert_ended(&ended(&elsewhere, &id).await, "succeeded", 50, 0);
    assert_eq!(files(&baltic).len(), 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_does_no_more_than_its_user_may() {
    let [alps, baltic, coast] = with_space().await;
    let here = alps.user("alice").await;
    write_small(&here, "run7", 2).await;
    let elsewhere = coast.user("alice").await;
    coast.sees(&elsewhere, "/v1/entries/climate/run7/0001").await;
    let replicate = json!({"kind": "replicate", "path": "/climate/run7", "to": "baltic"});
    let evict = json!({"kind": "evict", "path": "/climate/run7", "from": "alps"});
    // Without a grant there is nothing, with one to read no change; at whatever site it is decided.
    let bob = coast.user("bob").await;
    bob.post("/v1/tasks", replicate.clone()).await.expect(404);
    let grant = json!({"subject": "user:bob@site:coast", "permission": "read"});
    here.put("/v1/grants/climate", grant).await.expect(200);
    eventually("baltic knows the grant", || async {
        (bob.post("/v1/tasks", replicate.clone()).await.status.as_u16() == 403).then_some(())
    })
    .await;
    let problem = bob.post("/v1/tasks", evict.clone()).await.expect_problem_at("forbidden", "coast");
    assert!(problem["detail"].as_str().unwrap().contains("site alps"), "{problem}");
    // A token that is for other paths is of no use; one that is for more is cut down to the path.
    for (scope, status) in [("write:/climate/run8", 403), ("read:/climate", 403), ("manage:/climate", 201)] {
        let token = json!({"subject": "user:alice", "scopes": [scope]});
        let issued = coast.admin.post("/v1/tokens", token).await.expect(201);
        let limited = coast.admin.as_token(issued["secret"].as_str().unwrap());
        let answer = limited.post("/v1/tasks", replicate.clone()).await;
        assert_eq!(answer.status.as_u16(), status, "{scope}: {}", answer.text);
        if status == 201 {
            assert_ended(&ended(&limited, answer.json()["id"].as_str().unwrap()).await, "succeeded", 2, 0);
        }
    }
    good_at(&elsewhere, "/climate/run7", &["alps", "baltic"]).await;
    // An administrator of one site is an ordinary user at the others.
    coast.admin.post("/v1/tasks", evict).await.expect(404);
    elsewhere
        .post("/v1/tasks", json!({"kind": "replicate", "path": "/climate/run7", "to": "nowhere"}))
        .await
        .expect_problem_at("not_found", "coast");
    // The same idempotency key is one task, also at another site.
    let keyed = |spec: Value| {
        let request = elsewhere.request(reqwest::Method::POST, "/v1/tasks").header("idempotency-key", "k1");
        crate::common::send(request.json(&spec))
    };
    let first = keyed(replicate.clone()).await.expect(201);
    assert_eq!(keyed(replicate).await.expect(201)["id"], first["id"]);
    let other = json!({"kind": "replicate", "path": "/climate/run7", "to": "baltic", "from": "coast"});
    keyed(other).await.expect_problem_at("idempotency_mismatch", "coast");
    // What is removed step by step is removed by the home.
    let task = run(&elsewhere, json!({"kind": "delete", "path": "/climate/run7"})).await;
    assert_ended(&task, "succeeded", 3, 0);
    alps.admin.get(&format!("/v1/tasks/{}", task["id"].as_str().unwrap())).await.expect(200);
    for site in [&alps, &baltic] {
        eventually("the bytes are collected", || async { files(site).is_empty().then_some(()) }).await;
    }
}
