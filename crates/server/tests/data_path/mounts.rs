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
