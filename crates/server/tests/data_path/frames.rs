use bytes::Bytes;
use percale_api::uploads::{Committed, PushResult, PushResults};
use percale_core::ByteCount;
use percale_core::tree::{HashTree, group_count, group_range};
use percale_mover::{Decoder, Encoder, Frame};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::json;

use crate::site::{TestSite, content, expect, expect_problem};

const GROUP: usize = 1 << 20;

fn encode(objects: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut encoder = Encoder::new();
    for (path, bytes) in objects {
        let tree = HashTree::of(bytes);
        let item = encoder.item(tree.size(), json!({"path": path, "parents": true}).to_string().as_bytes());
        for (group, hash) in (0..).zip(tree.groups()) {
            let range = group_range(tree.size(), group);
            let part = &bytes[range.start() as usize..range.end() as usize];
            encoder.data(item, range.start(), *hash, Bytes::copy_from_slice(part));
        }
        encoder.done(item, json!({"root": tree.root()}).to_string().as_bytes());
    }
    encoder.end();
    std::iter::from_fn(|| encoder.next()).flat_map(|piece| piece.to_vec()).collect()
}

fn push(site: &TestSite, body: Vec<u8>) -> RequestBuilder {
    site.request(Method::POST, "/v1/frames/push")
        .header("content-type", percale_api::media::FRAMES)
        .body(body)
}

async fn pull(site: &TestSite, items: serde_json::Value) -> Vec<Frame> {
    let request = site.request(Method::POST, "/v1/frames/pull").json(&json!({"items": items}));
    let body = expect(request, StatusCode::OK).await.bytes().await.unwrap();
    let mut decoder = Decoder::new();
    decoder.feed(body);
    let mut frames = Vec::new();
    while let Some(frame) = decoder.next().unwrap() {
        if let Frame::Data(data) = &frame {
            data.verify().unwrap();
        }
        frames.push(frame);
    }
    decoder.finish().unwrap();
    frames
}

fn committed(result: &PushResult) -> &Committed {
    match result {
        PushResult::Committed(committed) => committed,
        PushResult::Failed(problem) => panic!("{problem:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_objects_go_in_and_out_in_one_stream() {
    let site = TestSite::start().await;
    let mut objects: Vec<_> =
        (0..1200).map(|n| (format!("/demo/{}/{n}", n % 7), content(n, (n * 37 % 9000) as usize))).collect();
    objects.push(("/demo/large".into(), content(1, 2 * GROUP + 3)));
    objects.push(("/demo/empty".into(), Vec::new()));
    let results: PushResults =
        expect(push(&site, encode(&objects)), StatusCode::OK).await.json().await.unwrap();
    assert_eq!(results.items.len(), objects.len());
    for (result, (path, bytes)) in results.items.iter().zip(&objects) {
        assert_eq!(committed(result).path.as_str(), path);
        assert_eq!(committed(result).root.0, *blake3::hash(bytes).as_bytes());
    }
    assert!(site.staged().is_empty());

    let wanted: Vec<_> = objects.iter().map(|(path, _)| json!({"path": path})).collect();
    let mut got = vec![Vec::new(); objects.len()];
    for frame in pull(&site, wanted.into()).await {
        match frame {
            Frame::Data(data) => got[data.item as usize].extend_from_slice(&data.bytes),
            Frame::Fail { problem, .. } => panic!("{problem:?}"),
            _ => {}
        }
    }
    for (got, (path, bytes)) in got.iter().zip(&objects) {
        assert!(got == bytes, "{path} differs");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_bad_item_does_not_harm_the_others() {
    let site = TestSite::start().await;
    site.put_new("/demo/there", "already").await;
    let objects = [
        ("/demo/there".to_owned(), b"new".to_vec()),
        ("/demo/fine".into(), b"fine".to_vec()),
        ("/demo".into(), b"x".to_vec()),
        ("/nowhere/x".into(), b"x".to_vec()),
    ];
    let results: PushResults =
        expect(push(&site, encode(&objects)), StatusCode::OK).await.json().await.unwrap();
    let code = |index: usize| match &results.items[index] {
        PushResult::Failed(problem) => problem.code.clone(),
        PushResult::Committed(_) => "committed".into(),
    };
    assert_eq!(
        (code(0).as_str(), code(1).as_str(), code(2).as_str()),
        ("already_exists", "committed", "invalid_path")
    );
    assert!(["not_found", "space_not_found"].contains(&code(3).as_str()), "{}", code(3));
    assert_eq!(site.read("/demo/there").await, b"already");

    let frames = pull(&site, json!([{"path": "/demo/missing"}, {"path": "/demo/fine"}])).await;
    assert!(frames.iter().any(|frame| matches!(frame, Frame::Fail { item: 0, .. })));
    assert!(
        frames
            .iter()
            .any(|frame| matches!(frame, Frame::Data(data) if data.item == 1 && data.bytes == "fine"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_and_cut_streams_are_refused() {
    let site = TestSite::start().await;
    let stream = encode(&[("/demo/a".into(), content(1, 50_000)), ("/demo/b".into(), content(2, 3 * GROUP))]);
    expect_problem(push(&site, stream[..stream.len() / 2].to_vec()), "upload_incomplete").await;
    let mut damaged = stream.clone();
    damaged[30_000] ^= 1;
    expect_problem(push(&site, damaged), "digest_mismatch").await;
    expect_problem(push(&site, b"hello".to_vec()), "upload_incomplete").await;
    expect_problem(push(&site, b"hello, this is no stream of frames".to_vec()), "invalid_request").await;
    let plain = site.request(Method::POST, "/v1/frames/push").body(stream);
    expect_problem(plain, "unsupported_media_type").await;
    for path in ["/demo/a", "/demo/b"] {
        assert!(!site.is_there(path).await, "{path}");
    }
    assert!(site.staged().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_are_pulled_by_whole_groups() {
    let site = TestSite::start().await;
    let bytes = content(3, 5 * GROUP + 9);
    site.put_new("/demo/x", bytes.clone()).await;
    let size = ByteCount(bytes.len() as u64);
    let ranges = json!([{"start": 10, "end": 20}, {"start": GROUP - 1, "end": GROUP + 1}, {"start": 5 * GROUP, "end": 99 * GROUP}]);
    let frames = pull(&site, json!([{"path": "/demo/x", "ranges": ranges}])).await;
    let groups: Vec<_> = frames
        .iter()
        .filter_map(|frame| match frame {
            Frame::Data(data) => Some(data.group()),
            _ => None,
        })
        .collect();
    assert_eq!(groups, [0, 1, 5]);
    assert_eq!(group_count(size), 6);
}

/// Asks for a part of an object, together with others that name the same id.
fn share(site: &TestSite, path: &str, range: std::ops::Range<usize>, id: &str) -> RequestBuilder {
    let items = json!({"items": [{"path": path, "ranges": [{"start": range.start, "end": range.end}]}]});
    site.request(Method::POST, "/v1/frames/pull").header("percale-share", id).json(&items)
}

/// Reads an answer to its end; returns the groups that came, each compared with what it should be.
async fn groups_of(answer: reqwest::Response, bytes: &[u8]) -> Vec<u64> {
    let mut decoder = Decoder::new();
    decoder.feed(answer.bytes().await.unwrap());
    let mut groups = Vec::new();
    while let Some(frame) = decoder.next().unwrap() {
        if let Frame::Data(data) = frame {
            assert_eq!(data.bytes, bytes[data.offset as usize..][..data.bytes.len()]);
            groups.push(data.group());
        }
    }
    decoder.finish().unwrap();
    groups
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_sends_what_another_one_has_no_room_for() {
    let site = TestSite::start().await;
    let count = 64;
    let bytes = content(4, count * GROUP - 5);
    site.put_new("/demo/x", bytes.clone()).await;
    let id = "0123456789abcdef";
    let ask = async |range: std::ops::Range<usize>, id: &str| {
        expect(share(&site, "/demo/x", range.start * GROUP..range.end * GROUP, id), StatusCode::OK).await
    };
    // Nobody reads what the first one sends.
    let slow = ask(0..60, id).await;
    // Another reader's, whatever is left there.
    assert_eq!(groups_of(ask(2..4, "another-reader-s").await, &bytes).await, [2, 3]);
    let fast = groups_of(ask(60..1000, id).await, &bytes).await;
    assert!(fast.starts_with(&[60, 61, 62, 63]) && fast.len() > 20, "{fast:?}");
    let slow = groups_of(slow, &bytes).await;
    assert!(slow.starts_with(&[0, 1]), "{slow:?}");
    let mut all = [slow, fast].concat();
    all.sort_unstable();
    assert_eq!(all, (0..count as u64).collect::<Vec<_>>(), "all, none twice");
    // What was sent is not kept.
    assert_eq!(groups_of(ask(5..7, id).await, &bytes).await, [5, 6]);
    expect_problem(share(&site, "/demo/x", 0..5, "short"), "invalid_request").await;

    site.put_new("/demo/small", "small").await;
    for (range, came) in [(3..4, vec![0]), (GROUP..9 * GROUP, vec![])] {
        let answer = expect(share(&site, "/demo/small", range, id), StatusCode::OK).await;
        assert_eq!(groups_of(answer, b"small").await, came);
    }
}

/// Reads an answer to its end; returns the paths of the objects that came, each compared, and of those that failed.
async fn objects_of(answer: reqwest::Response) -> (Vec<String>, Vec<String>) {
    let mut decoder = Decoder::new();
    decoder.feed(answer.bytes().await.unwrap());
    let (mut paths, mut came, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(frame) = decoder.next().unwrap() {
        match frame {
            Frame::Item { info, .. } => {
                let info: serde_json::Value = serde_json::from_slice(&info).unwrap();
                paths.push(info["path"].as_str().unwrap().to_owned());
            }
            Frame::Data(data) => {
                data.verify().unwrap();
                let path = &paths[data.item as usize];
                let number: u64 = path.rsplit('/').next().unwrap().parse().unwrap();
                assert!(data.bytes == content(number, GROUP - 7), "{path}");
                came.push(path.clone());
            }
            Frame::Fail { item, .. } => failed.push(paths[item as usize].clone()),
            _ => {}
        }
    }
    decoder.finish().unwrap();
    (came, failed)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_sends_whole_objects_that_another_one_has_no_room_for() {
    let site = TestSite::start().await;
    let paths: Vec<String> = (0..60).map(|number| format!("/demo/many/{number}")).collect();
    let objects: Vec<_> = (0..).zip(&paths).map(|(n, path)| (path.clone(), content(n, GROUP - 7))).collect();
    expect(push(&site, encode(&objects)), StatusCode::OK).await;
    let id = "0123456789abcdef";
    let request = |paths: &[String], id: &str| {
        let items: Vec<_> = paths.iter().map(|path| json!({"path": path})).collect();
        let request = site.request(Method::POST, "/v1/frames/pull").json(&json!({"items": items}));
        // From here, if it is here.
        request.header("percale-share", id).header("percale-redirect", "follow")
    };
    let ask = async |paths: &[String], id: &str| expect(request(paths, id), StatusCode::OK).await;
    // Nobody reads what the first one sends.
    let slow = ask(&paths[..56], id).await;
    // Another reader's, whatever is left there.
    assert_eq!(objects_of(ask(&paths[2..4], "another-reader-s").await).await.0, paths[2..4]);
    let nothing = [vec![paths[1].clone()], vec!["/demo/many/none".to_owned()]].concat();
    assert_eq!(
        objects_of(ask(&nothing, "another-reader-s").await).await,
        (vec![nothing[0].clone()], vec![nothing[1].clone()])
    );
    let (fast, _) = objects_of(ask(&paths[56..], id).await).await;
    assert!(fast.starts_with(&paths[56..]) && fast.len() > 20, "{fast:?}");
    let (slow, _) = objects_of(slow).await;
    assert!(slow.starts_with(&paths[..2]), "{slow:?}");
    let mut all = [slow, fast].concat();
    all.sort_by_key(|path| paths.iter().position(|known| known == path));
    assert_eq!(all, paths, "all, none twice");
    // What was sent is not kept.
    assert_eq!(objects_of(ask(&paths[5..7], id).await).await.0, paths[5..7]);
    // A stream that is given up takes what it had left with it.
    drop(ask(&paths[..50], id).await);
    let (came, _) = objects_of(ask(&paths[50..], id).await).await;
    assert!(came.starts_with(&paths[50..]), "{came:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_so_much_is_begun_and_not_done() {
    let site = TestSite::start().await;
    let begun = |count: usize, bytes: &[u8]| {
        let tree = HashTree::of(bytes);
        let mut encoder = Encoder::new();
        for n in 0..count {
            let info = json!({"path": format!("/demo/begun/{n}"), "parents": true}).to_string();
            let item = encoder.item(tree.size(), info.as_bytes());
            encoder.data(item, 0, tree.groups()[0], Bytes::copy_from_slice(bytes));
        }
        encoder.end();
        std::iter::from_fn(|| encoder.next()).flat_map(|piece| piece.to_vec()).collect::<Vec<u8>>()
    };
    // What ended without being done is told of each.
    let answer = expect(push(&site, begun(64, b"small")), StatusCode::OK).await;
    let results: PushResults = answer.json().await.unwrap();
    assert_eq!(results.items.len(), 64);
    assert!(results.items.iter().all(|result| matches!(result, PushResult::Failed(_))));
    for (count, bytes) in [(65, content(1, 5)), (7, content(2, GROUP))] {
        expect_problem(push(&site, begun(count, &bytes)), "payload_too_large").await;
    }
}
