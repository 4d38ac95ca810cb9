use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use percale_api::uploads::{Committed, Upload};
use percale_catalog::LeaseKind;
use percale_core::ByteCount;
use percale_core::ids::LeaseId;
use percale_core::tree::{group_count, group_range, hash_group};
use percale_mover::Encoder;
use percale_testkit::wait;
use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::site::{TestSite, content, expect, expect_problem, files_below};

const GROUP: usize = 1 << 20;

async fn open(site: &TestSite, path: &str, size: usize) -> Upload {
    let new = json!({"path": path, "size": size, "parents": true});
    expect(site.request(Method::POST, "/v1/uploads").json(&new), StatusCode::CREATED)
        .await
        .json()
        .await
        .unwrap()
}

/// The groups with these numbers as a stream of frames.
fn frames(bytes: &[u8], groups: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let size = ByteCount(bytes.len() as u64);
    let mut encoder = Encoder::new();
    encoder.item(size, b"{}");
    for group in groups {
        let range = group_range(size, group);
        let part = &bytes[range.start() as usize..range.end() as usize];
        encoder.data(0, range.start(), hash_group(size, group, part), Bytes::copy_from_slice(part));
    }
    encoder.end();
    std::iter::from_fn(|| encoder.next()).flat_map(|piece| piece.to_vec()).collect()
}

fn send(site: &TestSite, upload: &Upload, body: Vec<u8>) -> reqwest::RequestBuilder {
    site.request(Method::POST, &format!("/v1/uploads/{}/frames", upload.id))
        .header("content-type", percale_api::media::FRAMES)
        .body(body)
}

async fn commit(site: &TestSite, upload: &Upload, bytes: &[u8]) -> Committed {
    let body = json!({"root": blake3::hash(bytes).to_hex().to_string()});
    let request = site.request(Method::POST, &format!("/v1/uploads/{}/commit", upload.id)).json(&body);
    expect(request, StatusCode::CREATED).await.json().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_arrive_in_any_order_over_several_streams() {
    let site = TestSite::start().await;
    let bytes = content(1, 9 * GROUP + 77);
    let upload = open(&site, "/demo/deep/er/big", bytes.len()).await;
    assert!(upload.positioned);
    let (odd, even): (Vec<u64>, Vec<u64>) =
        (0..group_count(ByteCount(bytes.len() as u64))).rev().partition(|group| group % 2 == 1);
    let (first, second) = tokio::join!(
        expect(send(&site, &upload, frames(&bytes, odd)), StatusCode::OK),
        expect(send(&site, &upload, frames(&bytes, even)), StatusCode::OK),
    );
    drop((first, second));
    assert!(!site.is_there("/demo/deep/er/big").await, "nothing is visible before the commit");
    let committed = commit(&site, &upload, &bytes).await;
    assert_eq!(committed.size, bytes.len() as u64);
    assert_eq!(site.read("/demo/deep/er/big").await, bytes);
    assert!(site.staged().is_empty());
    // The answer was lost: asking again gives it again.
    assert_eq!(commit(&site, &upload, &bytes).await, committed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_waits_for_what_is_on_its_way() {
    let site = TestSite::start().await;
    let bytes = content(6, 3 * GROUP);
    let upload = open(&site, "/demo/x", bytes.len()).await;
    let body = json!({"root": blake3::hash(&bytes).to_hex().to_string()});
    let path = format!("/v1/uploads/{}/commit", upload.id);
    let commit = |wait: &str| site.request(Method::POST, &path).header("prefer", wait).json(&body);

    expect(send(&site, &upload, frames(&bytes, [0, 2])), StatusCode::OK).await;
    for wait in ["wait=0", "respond-async", "wait=soon", "wait=1"] {
        expect_problem(commit(wait), "upload_incomplete").await;
    }
    let early = commit("respond-async, wait=30").send();
    let last = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        expect(send(&site, &upload, frames(&bytes, [1])), StatusCode::OK).await;
    };
    let (early, ()) = tokio::join!(early, last);
    assert_eq!(early.unwrap().status(), StatusCode::CREATED);
    assert_eq!(site.read("/demo/x").await, bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_and_the_commit_may_be_there_before_the_upload_is_opened() {
    let site = TestSite::start().await;
    let bytes = content(8, 3 * GROUP);
    let id = LeaseId::new();
    let path = format!("/v1/uploads/{id}");
    let new = |path: &str, id: &str| {
        let new = json!({"id": id, "path": path, "size": bytes.len()});
        site.request(Method::POST, "/v1/uploads").json(&new)
    };
    let frames = |wait: &str, groups: &[u64]| {
        site.request(Method::POST, &format!("{path}/frames"))
            .header("content-type", percale_api::media::FRAMES)
            .header("prefer", wait)
            .body(frames(&bytes, groups.iter().copied()))
    };
    let root = json!({"root": blake3::hash(&bytes).to_hex().to_string()});
    let commit =
        site.request(Method::POST, &format!("{path}/commit")).header("prefer", "wait=30").json(&root);

    expect_problem(frames("wait=0", &[0]), "not_found").await;
    expect_problem(frames("wait=1", &[0]), "not_found").await;
    let opening = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        expect(new("/demo/x", &id.to_string()), StatusCode::CREATED).await.json::<Upload>().await.unwrap()
    };
    let (first, rest, committed, upload) = tokio::join!(
        frames("wait=30", &[2]).send(),
        frames("wait=30", &[0, 1]).send(),
        commit.send(),
        opening
    );
    assert_eq!(upload.id, id);
    for response in [first, rest] {
        assert_eq!(response.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(committed.unwrap().status(), StatusCode::CREATED);
    assert_eq!(site.read("/demo/x").await, bytes);
}

/// Many at once, so that requests look for their uploads while these are being opened.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_while_an_upload_is_opened_is_known_to_its_commit() {
    let site = TestSite::start().await;
    let bytes = content(9, 1000);
    let root = json!({"root": blake3::hash(&bytes).to_hex().to_string()});
    let whole = async |n: usize| {
        let id = LeaseId::new();
        let path = format!("/v1/uploads/{id}");
        let new = json!({"id": id, "path": format!("/demo/{n}"), "size": bytes.len()});
        let frames = site
            .request(Method::POST, &format!("{path}/frames"))
            .header("content-type", percale_api::media::FRAMES)
            .header("prefer", "wait=30")
            .body(frames(&bytes, [0]));
        let opened = site.request(Method::POST, "/v1/uploads").json(&new);
        let (sent, opened) = tokio::join!(frames.send(), opened.send());
        assert_eq!(opened.unwrap().status(), StatusCode::CREATED);
        assert_eq!(sent.unwrap().status(), StatusCode::OK);
        expect(site.request(Method::POST, &format!("{path}/commit")).json(&root), StatusCode::CREATED).await;
    };
    futures::stream::iter(0..1000).for_each_concurrent(32, whole).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_its_sender_chose_opens_one_upload() {
    let mut site = TestSite::start().await;
    let bytes = content(9, 2 * GROUP);
    let id = LeaseId::new().to_string();
    let new = |site: &TestSite, path: &str, size: usize, id: &str| {
        site.request(Method::POST, "/v1/uploads").json(&json!({"id": id, "path": path, "size": size}))
    };
    // Two at once, as when the first one's answer is late: one upload, whichever is told so.
    let (one, two) = tokio::join!(
        new(&site, "/demo/x", bytes.len(), &id).send(),
        new(&site, "/demo/x", bytes.len(), &id).send()
    );
    let mut answers = [one.unwrap().status(), two.unwrap().status()];
    answers.sort();
    assert_eq!(answers[0], StatusCode::CREATED);
    assert!(matches!(answers[1], StatusCode::CREATED | StatusCode::CONFLICT), "{answers:?}");
    let upload: Upload =
        expect(new(&site, "/demo/x", bytes.len(), &id), StatusCode::CREATED).await.json().await.unwrap();
    assert_eq!(upload.id.to_string(), id);
    expect(send(&site, &upload, frames(&bytes, [0])), StatusCode::OK).await;

    expect_problem(new(&site, "/demo/y", bytes.len(), &id), "conflict").await;
    expect_problem(new(&site, "/demo/x", bytes.len() + 1, &id), "conflict").await;
    for wrong in ["00000000-0000-0000-0000-000000000000", "6ba7b810-9dad-41d1-80b4-00c04fd430c8"] {
        expect_problem(new(&site, "/demo/y", bytes.len(), wrong), "invalid_request").await;
    }
    site.restart().await;
    let again: Upload =
        expect(new(&site, "/demo/x", bytes.len(), &id), StatusCode::CREATED).await.json().await.unwrap();
    assert_eq!(again.id, upload.id);
    expect(send(&site, &upload, frames(&bytes, [0, 1])), StatusCode::OK).await;
    commit(&site, &upload, &bytes).await;
    assert_eq!(site.read("/demo/x").await, bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_there_is_said_before_bytes_are_sent() {
    let site = TestSite::start().await;
    let bytes = content(7, GROUP);
    let upload = open(&site, "/demo/deep/x", bytes.len()).await;
    expect(send(&site, &upload, frames(&bytes, [0])), StatusCode::OK).await;
    commit(&site, &upload, &bytes).await;
    let new = |path: &str| site.request(Method::POST, "/v1/uploads").json(&json!({"path": path, "size": 5}));
    expect_problem(new("/demo/deep/x"), "already_exists").await;
    expect_problem(new("/demo/deep"), "is_collection").await;
    let over = json!({"path": "/demo/deep/x", "size": 5, "condition": {"match": 1}});
    expect(site.request(Method::POST, "/v1/uploads").json(&over), StatusCode::CREATED).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_survives_the_server() {
    let mut site = TestSite::start().await;
    let (bytes, other) = (content(2, 130 * GROUP), content(3, 130 * GROUP));
    let upload = open(&site, "/demo/big", bytes.len()).await;
    expect(send(&site, &upload, frames(&bytes, 0..100)), StatusCode::OK).await;
    site.restart().await;
    let path = format!("/v1/uploads/{}", upload.id);
    let now: Upload = expect(site.request(Method::GET, &path), StatusCode::OK).await.json().await.unwrap();
    let missing = now.missing.total().0 / GROUP as u64;
    assert!(
        (30..=66).contains(&missing),
        "at most what came after the last marker is missing, not {missing} MiB"
    );
    // What was written after it lies there, and is found by its hashes: not what never came, nor what has another hash.
    let size = ByteCount(bytes.len() as u64);
    let sent = |group: u64, of: &[u8]| {
        let range = group_range(size, group);
        let hash = hash_group(size, group, &of[range.start() as usize..range.end() as usize]);
        json!({"group": group, "hash": hash})
    };
    let recall = |groups: Vec<serde_json::Value>| {
        site.request(Method::POST, &format!("{path}/groups")).json(&json!({"groups": groups}))
    };
    expect_problem(recall(vec![sent(0, &bytes); 1025]), "invalid_request").await;
    let behind = json!({"group": 130, "hash": "00".repeat(32)});
    expect_problem(recall(vec![behind]), "invalid_request").await;
    let first = now.missing.iter().next().unwrap().start() / GROUP as u64;
    let groups = (0..110).map(|group| sent(group, if group == first { &other } else { &bytes }));
    let now: Upload = expect(recall(groups.collect()), StatusCode::OK).await.json().await.unwrap();
    let missing: Vec<u64> =
        now.missing.iter().flat_map(|hole| hole.start() / GROUP as u64..hole.end() / GROUP as u64).collect();
    let expected = (100..130).chain((first < 100).then_some(first));
    assert_eq!(missing.iter().copied().collect::<BTreeSet<u64>>(), expected.collect());
    expect(send(&site, &upload, frames(&bytes, missing)), StatusCode::OK).await;
    commit(&site, &upload, &bytes).await;
    assert_eq!(site.read("/demo/big").await, bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_refused_and_can_be_mended() {
    let site = TestSite::start().await;
    let bytes = content(3, 3 * GROUP);
    let upload = open(&site, "/demo/x", bytes.len()).await;
    let path = |rest: &str| format!("/v1/uploads/{}{rest}", upload.id);
    let commit_request = |body: &serde_json::Value| site.request(Method::POST, &path("/commit")).json(body);

    let mut damaged = frames(&bytes, [0]);
    let at = damaged.len() / 2;
    damaged[at] ^= 1;
    expect_problem(send(&site, &upload, damaged), "digest_mismatch").await;
    let whole = frames(&bytes, [0]);
    expect_problem(send(&site, &upload, whole[..whole.len() - 10].to_vec()), "upload_incomplete").await;
    expect_problem(send(&site, &upload, frames(&content(9, 3 * GROUP), [0])), "version_changed").await;
    expect_problem(send(&site, &upload, frames(&content(9, 5 * GROUP), [0])), "invalid_request").await;
    expect_problem(commit_request(&json!({})), "upload_incomplete").await;

    expect(send(&site, &upload, frames(&bytes, [1, 2])), StatusCode::OK).await;
    expect_problem(commit_request(&json!({"root": "00".repeat(32)})), "digest_mismatch").await;
    expect_problem(
        commit_request(&json!({"digests": [format!("sha-256:{}", "00".repeat(32))]})),
        "digest_mismatch",
    )
    .await;
    assert!(!site.is_there("/demo/x").await);
    commit(&site, &upload, &bytes).await;
    assert_eq!(site.read("/demo/x").await, bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_clients_send_pieces_in_order() {
    let site = TestSite::start().await;
    let bytes = content(4, 2 * GROUP + 500);
    let upload = open(&site, "/demo/x", bytes.len()).await;
    let path = format!("/v1/uploads/{}", upload.id);
    let patch = |offset: usize, part: &[u8]| {
        site.request(Method::PATCH, &path).header("upload-offset", offset.to_string()).body(part.to_vec())
    };
    let response = expect(patch(0, &bytes[..GROUP + 10]), StatusCode::NO_CONTENT).await;
    assert_eq!(response.headers()["upload-offset"], GROUP.to_string(), "whole groups count");
    expect_problem(patch(5, b"x"), "conflict").await;
    expect_problem(patch(GROUP, &content(1, 2 * GROUP)), "invalid_request").await;
    let head = expect(site.request(Method::HEAD, &path), StatusCode::OK).await;
    let stands: usize = head.headers()["upload-offset"].to_str().unwrap().parse().unwrap();
    // The refused piece began with a whole group of other bytes; they are what the upload now has.
    expect(site.request(Method::DELETE, &path), StatusCode::NO_CONTENT).await;
    assert!(stands >= GROUP);

    let upload = open(&site, "/demo/x", bytes.len()).await;
    let path = format!("/v1/uploads/{}", upload.id);
    let request = site.request(Method::PATCH, &path).header("upload-offset", "0").body(bytes.clone());
    expect(request, StatusCode::NO_CONTENT).await;
    commit(&site, &upload, &bytes).await;
    assert_eq!(site.read("/demo/x").await, bytes);
    assert!(site.staged().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_nobody_finishes_ends_by_itself() {
    let site =
        TestSite::start_with("managed", None, |config| config.uploads.lease = Duration::from_secs(1)).await;
    let bytes = content(5, 2 * GROUP);
    let upload = open(&site, "/demo/x", bytes.len()).await;
    expect(send(&site, &upload, frames(&bytes, [0])), StatusCode::OK).await;
    assert!(!site.staged().is_empty());
    wait::until_async("the lapsed upload to be removed", Duration::from_secs(40), async || {
        site.staged().is_empty().then_some(())
    })
    .await;
    let error = send(&site, &upload, frames(&bytes, [1])).send().await.unwrap();
    assert!(error.status().is_client_error(), "{}", error.status());
    assert!(!site.is_there("/demo/x").await);
}

/// Those at the other stores go at once, and the rest when the store is back, though the lease has had other fences since.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_staged_at_a_store_that_is_away_goes_once_it_is_back() {
    let mut site =
        TestSite::start_with("managed", None, |config| config.uploads.lease = Duration::from_secs(1)).await;
    let folder = tempfile::tempdir().unwrap();
    let (root, away) = (folder.path().join("root"), folder.path().join("away"));
    std::fs::create_dir(&root).unwrap();
    let store = json!({"name": "far", "connector": "posix", "layout": "managed", "config": {"root": root}});
    expect(site.request(Method::POST, "/v1/stores").json(&store), StatusCode::CREATED).await;
    let space = json!({"name": "far", "store": "far"});
    expect(site.request(Method::POST, "/v1/spaces").json(&space), StatusCode::CREATED).await;
    let bytes = content(6, 2 * GROUP);
    for path in ["/demo/x", "/far/x"] {
        let upload = open(&site, path, bytes.len()).await;
        expect(send(&site, &upload, frames(&bytes, [0])), StatusCode::OK).await;
    }
    let staged = |root: &std::path::Path| files_below(&root.join(".percale/stage"));
    assert!(!site.staged().is_empty() && !staged(&root).is_empty());
    std::fs::rename(&root, &away).unwrap();
    std::fs::write(&root, "no directory").unwrap();
    site.restart().await;
    let patience = Duration::from_secs(60);
    wait::until_async("what is staged here to be removed", patience, async || {
        site.staged().is_empty().then_some(())
    })
    .await;
    // Taken over again at least once.
    let fences = async || site.running().app().catalog.leases(LeaseKind::Upload).await.unwrap();
    let first = fences().await.first().unwrap().fence;
    wait::until_async("a second attempt", patience, async || {
        fences().await.iter().any(|lease| lease.fence > first).then_some(())
    })
    .await;
    assert!(!staged(&away).is_empty());
    std::fs::remove_file(&root).unwrap();
    std::fs::rename(&away, &root).unwrap();
    wait::until_async("what is staged there to be removed", patience, async || {
        (staged(&root).is_empty() && fences().await.is_empty()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_writer_may_be_first() {
    let site = TestSite::start().await;
    let bytes = content(6, 2 * GROUP);
    let upload = open(&site, "/demo/x", bytes.len()).await;
    expect(send(&site, &upload, frames(&bytes, [0, 1])), StatusCode::OK).await;
    site.put_new("/demo/x", "first").await;
    let request = site.request(Method::POST, &format!("/v1/uploads/{}/commit", upload.id)).json(&json!({}));
    let refused = request.send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::CONFLICT);
    assert_eq!(site.read("/demo/x").await, b"first");
    assert!(site.staged().is_empty(), "the loser's bytes are gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_is_asked_for_twice_at_once_gives_one_answer() {
    let site = TestSite::start().await;
    for n in 0..5 {
        let path = format!("/demo/twice/{n}");
        let bytes = content(n, 3 * GROUP);
        let upload = open(&site, &path, bytes.len()).await;
        expect(send(&site, &upload, frames(&bytes, 0..3)), StatusCode::OK).await;
        let (one, other) = tokio::join!(commit(&site, &upload, &bytes), commit(&site, &upload, &bytes));
        assert_eq!(one, other);
        let read = site.get(&format!("/v1/data{path}")).await.bytes().await.unwrap();
        assert!(read == bytes, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_goes_on_when_its_client_goes_away() {
    let site = TestSite::start().await;
    let bytes = content(7, 3 * GROUP);
    let uploads = async |n: usize| {
        let upload = open(&site, &format!("/demo/left/{n}"), bytes.len()).await;
        expect(send(&site, &upload, frames(&bytes, 0..3)), StatusCode::OK).await;
        upload
    };
    let body = json!({"root": blake3::hash(&bytes).to_hex().to_string()}).to_string();
    let address = site.running().url().trim_start_matches("http://").trim_end_matches('/').to_owned();
    for n in 0..20 {
        let upload = uploads(n).await;
        let request = format!(
            "POST /v1/uploads/{}/commit HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            upload.id,
            site.token(),
            body.len()
        );
        let mut connection = TcpStream::connect(&address).await.unwrap();
        connection.write_all(request.as_bytes()).await.unwrap();
        // Before, while and after the upload is taken.
        tokio::time::sleep(Duration::from_micros(500 * n as u64)).await;
        drop(connection);
        let made = commit(&site, &upload, &bytes).await;
        assert_eq!(made.path.to_string(), format!("/demo/left/{n}"));
    }
}
