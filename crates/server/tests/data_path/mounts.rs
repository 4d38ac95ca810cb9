//! Mounts as the server sees them: sessions, and files that a host staged.

use futures::future::join_all;
use percale_api::mounts::{Mount, MountResult, MountResults};
use percale_core::tree::HashTree;
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::site::{TestSite, content, expect, expect_problem};

#[tokio::test(flavor = "multi_thread")]
async fn nobody_mounts_without_a_sign_in() {
    let site = TestSite::start().await;
    let anonymous = reqwest::Client::new().post(site.url("/v1/mounts")).json(&json!({"host": "here"}));
    expect_problem(anonymous, "unauthenticated").await;
}

/// As a mount does whose first request took too long: the file is published once, and stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_published_by_two_requests_at_once_is_one_version() {
    let site = TestSite::start().await;
    let new = site.request(Method::POST, "/v1/mounts").json(&json!({"host": "here"}));
    let mount: Mount = expect(new, StatusCode::CREATED).await.json().await.unwrap();
    let mtime = "2026-01-02T03:04:05Z";
    for n in 0..10 {
        let (path, token) = (format!("/demo/{n}"), format!("{n}"));
        let bytes = content(n, 5 << 20);
        let staged = site.root().join(mount.stage_dir()).join(&token);
        std::fs::write(staged, &bytes).unwrap();
        let change = json!({
            "op": "publish", "path": path, "store": mount.stores[0].id, "token": token,
            "size": bytes.len(), "mtime": mtime
        });
        let ask = async || {
            let changes = json!({"changes": [change]});
            let request =
                site.request(Method::POST, &format!("/v1/mounts/{}/changes", mount.id)).json(&changes);
            let results: MountResults = expect(request, StatusCode::OK).await.json().await.unwrap();
            results.results.into_iter().next().unwrap()
        };
        let done = join_all((0..3).map(|_| ask())).await.into_iter().map(|result| match result {
            MountResult::Done(done) => (done.entry, done.version, done.root),
            MountResult::Failed(problem) => panic!("{problem:?}"),
        });
        let done: Vec<_> = done.collect();
        assert!(done.iter().all(|one| one == &done[0]), "{done:?}");
        assert_eq!(done[0].2, Some(HashTree::of(&bytes).root()));
        let read = site.get(&format!("/v1/data{path}")).await.bytes().await.unwrap();
        assert!(read == bytes, "{path}");
    }
}

/// As after the server died before it had answered.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_for_again_leaves_alone_what_came_after_it() {
    let site = TestSite::start().await;
    let new = site.request(Method::POST, "/v1/mounts").json(&json!({"host": "here"}));
    let mount: Mount = expect(new, StatusCode::CREATED).await.json().await.unwrap();
    let ask = async |change: serde_json::Value| {
        let changes = json!({"changes": [change]});
        let request = site.request(Method::POST, &format!("/v1/mounts/{}/changes", mount.id)).json(&changes);
        let results: MountResults = expect(request, StatusCode::OK).await.json().await.unwrap();
        match results.results.into_iter().next().unwrap() {
            MountResult::Done(done) => Ok(done.entry),
            MountResult::Failed(problem) => Err(problem.code),
        }
    };
    let publish = async |path: &str, token: &str| {
        std::fs::write(site.root().join(mount.stage_dir()).join(token), token).unwrap();
        let change = json!({
            "op": "publish", "path": path, "store": mount.stores[0].id, "token": token,
            "size": token.len(), "mtime": "2026-01-02T03:04:05Z"
        });
        ask(change).await.unwrap().unwrap()
    };
    let read = async |path: &str| site.get(&format!("/v1/data{path}")).await.text().await.unwrap();

    let entry = publish("/demo/a", "old").await;
    let removal = json!({"op": "remove", "path": "/demo/a", "entry": entry});
    ask(removal.clone()).await.unwrap();
    publish("/demo/a", "new").await;
    assert_eq!(ask(removal).await, Err("not_found".to_owned()));
    assert_eq!(read("/demo/a").await, "new");

    let entry = publish("/demo/log", "first").await;
    let rotation =
        json!({"op": "move", "from": "/demo/log", "to": "/demo/log.1", "overwrite": true, "entry": entry});
    assert_eq!(ask(rotation.clone()).await, Ok(Some(entry)));
    publish("/demo/log", "second").await;
    assert_eq!(ask(rotation.clone()).await, Ok(Some(entry)), "it is where it was to go");
    assert_eq!((read("/demo/log").await, read("/demo/log.1").await), ("second".into(), "first".into()));
    ask(json!({"op": "move", "from": "/demo/log.1", "to": "/demo/log.2"})).await.unwrap();
    assert_eq!(ask(rotation).await, Err("not_found".to_owned()), "it was moved on");
    assert_eq!(read("/demo/log").await, "second");
}
