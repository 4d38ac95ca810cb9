use percale_client::get::GetOptions;
use percale_client::{Client, ClientOptions, RetryPolicy};
use percale_core::state::ReplicaState;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use crate::ahead::{client, pulls};
use crate::site::{TestSite, content, expect, expect_problem};

const GROUP: usize = 1 << 20;

async fn replica_state(site: &TestSite, path: &str) -> String {
    let entry: Value = expect(site.request(Method::GET, &format!("/v1/entries{path}")), StatusCode::OK)
        .await
        .json()
        .await
        .unwrap();
    entry["replicas"][0]["state"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_byte_is_never_served() {
    let site = TestSite::start().await;
    let bytes = content(1, 3 * GROUP);
    site.put_new("/demo/x", bytes.clone()).await;
    let file = site.root().join("demo/x");
    let mut damaged = bytes.clone();
    damaged[2 * GROUP + 7] ^= 0x10;
    std::fs::write(&file, &damaged).unwrap();

    // The first groups are right and may arrive; the damaged one never does.
    let mut response = site.get("/v1/data/demo/x").await;
    let mut got = Vec::new();
    while let Ok(Some(piece)) = response.chunk().await {
        got.extend_from_slice(&piece);
    }
    assert!(got.len() <= 2 * GROUP, "{} bytes were served", got.len());
    assert_eq!(got, bytes[..got.len()]);
    assert_eq!(replica_state(&site, "/demo/x").await, ReplicaState::Suspect.as_str());
    let problem = expect_problem(site.request(Method::GET, "/v1/data/demo/x"), "integrity").await;
    assert!(problem["detail"].as_str().unwrap().contains("damaged"), "{problem:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_damaged_object_gives_an_error_and_no_bytes() {
    let site = TestSite::start().await;
    site.put_new("/demo/x", "0123456789").await;
    std::fs::write(site.root().join("demo/x"), "0123456780").unwrap();
    let response = site.get("/v1/data/demo/x").await;
    let ended = response.bytes().await;
    assert!(ended.is_err() || !ended.unwrap().starts_with(b"0123"), "damaged bytes were served");
    assert_eq!(replica_state(&site, "/demo/x").await, "suspect");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_file_is_lost_not_empty() {
    let site = TestSite::start().await;
    site.put_new("/demo/x", content(2, 10)).await;
    std::fs::remove_file(site.root().join("demo/x")).unwrap();
    expect_problem(site.request(Method::GET, "/v1/data/demo/x"), "integrity").await;
    assert_eq!(replica_state(&site, "/demo/x").await, "lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_hash_tree_is_made_anew() {
    let mut site = TestSite::start().await;
    let bytes = content(3, 2 * GROUP + 1);
    site.put_new("/demo/x", bytes.clone()).await;
    let trees = crate::site::files_below(&site.root().join(".percale/trees"));
    assert_eq!(trees.len(), 1);
    std::fs::write(&trees[0], "not a tree").unwrap();
    // Another process, which does not have it in memory.
    site.restart().await;
    assert_eq!(site.read("/demo/x").await, bytes);
    assert_eq!(std::fs::read(&trees[0]).unwrap(), percale_core::tree::HashTree::of(&bytes).encode());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_native_file_that_changed_is_a_retryable_conflict_and_then_a_new_version() {
    let site = TestSite::start_with("native", None, |_| {}).await;
    let old = content(4, 2 * GROUP);
    let made = site.put_new("/demo/x", old.clone()).await;
    assert_eq!(site.read("/demo/x").await, old);
    let new = content(5, 3 * GROUP);
    std::fs::write(site.root().join("demo/x"), &new).unwrap();
    let problem = expect_problem(site.request(Method::GET, "/v1/data/demo/x"), "version_changed").await;
    assert_eq!(problem["retryable"], true);

    let response = expect(site.request(Method::GET, "/v1/data/demo/x"), StatusCode::OK).await;
    assert_eq!(response.headers()["percale-replica-state"], "unverified");
    assert_ne!(response.headers()["percale-version"], made["version"].to_string());
    assert_eq!(response.bytes().await.unwrap(), new);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_native_file_that_changes_while_it_is_read_is_never_spliced() {
    let site = TestSite::start_with("native", None, |_| {}).await;
    // Larger than everything between the disk and the client can hold.
    let len = 64 * GROUP;
    site.put_new("/demo/x", vec![b'a'; len]).await;
    let mut response = site.get("/v1/data/demo/x").await;
    let mut got = response.chunk().await.unwrap().unwrap().to_vec();
    std::fs::write(site.root().join("demo/x"), vec![b'b'; len]).unwrap();
    let ended = loop {
        match response.chunk().await {
            Ok(Some(piece)) => got.extend_from_slice(&piece),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    assert!(ended.is_err(), "the body ended as if it were whole after {} bytes", got.len());
    assert!(got.iter().all(|byte| *byte == b'a'), "bytes of two versions");
}

/// A client compares what it gets itself, and has the site do it where something does not fit.
#[tokio::test(flavor = "multi_thread")]
async fn the_site_finds_out_about_damage_that_only_a_client_has_seen() {
    let site = TestSite::start().await;
    let mut options = ClientOptions::new(site.url(""));
    options.token = Some(site.token().to_owned().into());
    // Nothing else is asked for twice.
    options.retry = RetryPolicy::never();
    // Which of them brings the damaged group is left to chance.
    options.streams = Some(4);
    let client = Client::new(options).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let large = (0..8).map(|number| (format!("large-{number}"), 12 * GROUP));
    for (name, size) in [("small".into(), 10), ("some".into(), 3 * GROUP)].into_iter().chain(large) {
        let path = format!("/demo/{name}");
        site.put_new(&path, content(4, size)).await;
        let mut damaged = content(4, size);
        damaged[size - 1] ^= 1;
        std::fs::write(site.root().join(&path[1..]), &damaged).unwrap();

        let before = pulls(&site).await;
        let local = folder.path().join(&name);
        let report = client.get_file(&path.parse().unwrap(), &local, &GetOptions::default()).await.unwrap();
        assert_eq!((report.done, report.failed), (0, 1), "{path}: {report:?}");
        assert!(!local.exists(), "{path} came, damaged");
        assert_eq!(replica_state(&site, &path).await, "suspect", "{path}");
        if name == "small" {
            assert_eq!(pulls(&site).await - before, 2, "first not compared at the site, then compared");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_object_of_many_fails_alone() {
    let site = TestSite::start().await;
    let client = client(&site);
    let sizes = [GROUP, 10, 2 * GROUP + 5, 3 * GROUP, 0, 70_000];
    for (number, size) in sizes.into_iter().enumerate() {
        site.put_new(&format!("/demo/{number}"), content(number as u64, size)).await;
    }
    for damaged in [1, 3] {
        let file = site.root().join(format!("demo/{damaged}"));
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[9] ^= 1;
        std::fs::write(&file, bytes).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let local = folder.path().join("got");
    let report = client.get_tree(&"/demo".parse().unwrap(), &local, &GetOptions::default()).await.unwrap();
    assert_eq!((report.done, report.failed), (4, 2), "{report:?}");
    for (number, size) in sizes.into_iter().enumerate() {
        let got = std::fs::read(local.join(number.to_string())).ok();
        let whole = content(number as u64, size);
        assert!(got == (!matches!(number, 1 | 3)).then_some(whole), "{number}");
        let state = if matches!(number, 1 | 3) { "suspect" } else { "good" };
        assert_eq!(replica_state(&site, &format!("/demo/{number}")).await, state, "{number}");
    }
}
