use std::io::Write;
use std::time::Duration;

use percale_testkit::wait;
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::site::{TestSite, content, expect, expect_problem};

const GROUP: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn what_was_put_is_got_whole_and_in_ranges() {
    let site = TestSite::start().await;
    for len in [0, 1, 1000, GROUP - 1, GROUP, GROUP + 1, 3 * GROUP + 5] {
        let bytes = content(len as u64, len);
        let path = format!("/demo/sizes/{len}");
        let made = site.put_new(&path, bytes.clone()).await;
        let root = blake3::hash(&bytes).to_hex().to_string();
        assert_eq!(made["root"], root.as_str(), "the root is plain BLAKE3");

        let response = expect(site.request(Method::GET, &format!("/v1/data{path}")), StatusCode::OK).await;
        assert_eq!(response.headers()["etag"], format!("\"{root}\""));
        assert_eq!(response.headers()["content-length"], len.to_string());
        assert_eq!(response.bytes().await.unwrap(), bytes, "{len} bytes");

        let head = expect(site.request(Method::HEAD, &format!("/v1/data{path}")), StatusCode::OK).await;
        assert_eq!(head.headers()["content-length"], len.to_string());

        for (start, end) in
            [(0, 1), (len / 2, len / 2 + 10), (len.saturating_sub(3), len), (GROUP - 2, GROUP + 2)]
        {
            let (start, end) = (start.min(len), end.min(len));
            if start >= end {
                continue;
            }
            let range = format!("bytes={start}-{}", end - 1);
            let request = site.request(Method::GET, &format!("/v1/data{path}")).header("range", &range);
            let response = expect(request, StatusCode::PARTIAL_CONTENT).await;
            assert_eq!(response.headers()["content-range"], format!("bytes {start}-{}/{len}", end - 1));
            assert_eq!(response.bytes().await.unwrap(), bytes[start..end], "{range} of {len}");
        }
    }
    let request = site.request(Method::GET, "/v1/data/demo/sizes/1000").header("range", "bytes=1000-");
    let response = expect(request, StatusCode::RANGE_NOT_SATISFIABLE).await;
    assert_eq!(response.headers()["content-range"], "bytes */1000");
    assert!(site.staged().is_empty(), "nothing is left staged: {:?}", site.staged());
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_are_honoured() {
    let site = TestSite::start().await;
    let path = "/v1/data/demo/a";
    site.put_new("/demo/a", "one").await;
    let tag = expect(site.request(Method::HEAD, path), StatusCode::OK).await.headers()["etag"].clone();

    let request = site.request(Method::GET, path).header("if-none-match", &tag);
    expect(request, StatusCode::NOT_MODIFIED).await;
    let request = site.request(Method::GET, path).header("if-match", "\"other\"");
    expect_problem(request, "precondition_failed").await;
    let request =
        site.request(Method::GET, path).header("if-range", "\"other\"").header("range", "bytes=0-0");
    expect(request, StatusCode::OK).await;

    expect_problem(site.request(Method::PUT, path).body("two"), "precondition_required").await;
    let request = site.request(Method::PUT, path).header("if-none-match", "*").body("two");
    expect_problem(request, "precondition_failed").await;
    let request = site.request(Method::PUT, path).header("if-match", "\"other\"").body("two");
    expect_problem(request, "precondition_failed").await;
    let request = site.request(Method::PUT, "/v1/data/demo/b").header("if-match", "*").body("two");
    expect_problem(request, "precondition_failed").await;
    assert_eq!(site.read("/demo/a").await, b"one");

    expect(site.request(Method::PUT, path).header("if-match", &tag).body("two"), StatusCode::OK).await;
    expect(site.request(Method::PUT, path).header("if-match", "*").body("three"), StatusCode::OK).await;
    assert_eq!(site.read("/demo/a").await, b"three");
    let request = site.request(Method::PUT, path).header("if-match", &tag).body("four");
    expect_problem(request, "precondition_failed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn digests_are_given_and_checked() {
    let site = TestSite::start().await;
    // "abc": FIPS 180-4 and RFC 1950.
    let sha256 = "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=";
    site.put_new("/demo/abc", "abc").await;
    let request =
        site.request(Method::GET, "/v1/data/demo/abc").header("want-repr-digest", "unixsum=9, sha-256=5");
    let response = expect(request, StatusCode::OK).await;
    assert_eq!(response.headers()["repr-digest"], format!("sha-256=:{sha256}:"));
    let request = site.request(Method::HEAD, "/v1/data/demo/abc").header("want-digest", "adler32, md5;q=0.5");
    assert_eq!(expect(request, StatusCode::OK).await.headers()["digest"], "adler32=024d0127");

    let put = |path: &str| site.request(Method::PUT, &format!("/v1/data/demo/{path}"));
    expect(
        put("right").header("repr-digest", format!("sha-256=:{sha256}:")).body("abc"),
        StatusCode::CREATED,
    )
    .await;
    expect(put("md5").header("content-md5", "kAFQmDzST7DWlj99KOF/cg==").body("abc"), StatusCode::CREATED)
        .await;
    for (field, value) in [
        ("repr-digest", format!("sha-256=:{sha256}:")),
        ("digest", "adler32=00000000".into()),
        ("content-md5", "kAFQmDzST7DWlj99KOF/cg==".into()),
    ] {
        expect_problem(put("wrong").header(field, value).body("abd"), "digest_mismatch").await;
    }
    expect_problem(put("wrong").header("repr-digest", "sha-256=:AAAA:").body("abc"), "invalid_request").await;
    assert!(!site.is_there("/demo/wrong").await);
    assert!(site.staged().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_writers_one_wins_and_nothing_is_mixed() {
    let site = std::sync::Arc::new(TestSite::start().await);
    for round in 0..5 {
        let path = format!("/demo/race-{round}");
        let writers = (0..8u64).map(|writer| {
            let (site, path) = (site.clone(), path.clone());
            tokio::spawn(async move { (writer, site.put(&path, content(writer, 300_000)).await.status()) })
        });
        let mut winners = Vec::new();
        for writer in writers.collect::<Vec<_>>() {
            match writer.await.unwrap() {
                (writer, StatusCode::CREATED) => winners.push(writer),
                (
                    _,
                    StatusCode::CONFLICT
                    | StatusCode::PRECONDITION_REQUIRED
                    | StatusCode::PRECONDITION_FAILED,
                ) => {}
                (writer, status) => panic!("writer {writer} got {status}"),
            }
        }
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        assert_eq!(site.read(&path).await, content(winners[0], 300_000));
    }
    assert!(site.staged().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_stops_half_way_leaves_nothing() {
    let site = TestSite::start().await;
    for announced in [100_000, 5 * GROUP] {
        let address = site.running().address();
        let token = site.token().to_owned();
        tokio::task::spawn_blocking(move || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            write!(
                stream,
                "PUT /v1/data/demo/half HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: {announced}\r\n\r\n"
            )
            .unwrap();
            stream.write_all(&content(1, announced / 2)).unwrap();
        })
        .await
        .unwrap();
        wait::until_async("staged bytes to be removed", Duration::from_secs(20), async || {
            site.staged().is_empty().then_some(())
        })
        .await;
        assert!(!site.is_there("/demo/half").await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_lead_nowhere_else() {
    let site = TestSite::start().await;
    for path in [
        "/v1/data/demo/..%2F..%2Fetc%2Fpasswd",
        "/v1/data/demo/x%2F.%2Fy",
        "/v1/data/demo/a%00b",
        "/v1/data/demo/%FF",
    ] {
        expect_problem(site.request(Method::PUT, path).body("x"), "invalid_path").await;
        expect_problem(site.request(Method::GET, path), "invalid_path").await;
    }
    let long = format!("/v1/data/demo/{}", "x".repeat(256));
    expect_problem(site.request(Method::PUT, &long).body("x"), "invalid_path").await;
    for name in ["con aux", "ü–ö.nc", "a'b\"c", "new\nline", ".hidden", "~tilde", "%41"] {
        let path = format!("/demo/names/{}", percent(name));
        site.put_new(&path, name.to_owned()).await;
        assert_eq!(site.read(&path).await, name.as_bytes());
        assert_eq!(std::fs::read(site.root().join("demo/names").join(name)).unwrap(), name.as_bytes());
    }
    // Reserved names of the store are ordinary names of the namespace.
    site.put_new("/demo/.percale/x", "y").await;
    assert_eq!(site.read("/demo/.percale/x").await, b"y");
}

fn percent(text: &str) -> String {
    text.bytes()
        .map(
            |byte| {
                if byte.is_ascii_alphanumeric() {
                    char::from(byte).to_string()
                } else {
                    format!("%{byte:02X}")
                }
            },
        )
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn overwriting_and_removing_give_the_room_back() {
    let site = TestSite::start().await;
    site.put_new("/demo/x", content(1, 2 * GROUP)).await;
    let request =
        site.request(Method::PUT, "/v1/data/demo/x").header("if-match", "*").body(content(2, 2 * GROUP));
    expect(request, StatusCode::OK).await;
    assert_eq!(site.read("/demo/x").await, content(2, 2 * GROUP));
    expect(site.request(Method::DELETE, "/v1/entries/demo/x"), StatusCode::NO_CONTENT).await;
    expect_problem(site.request(Method::GET, "/v1/data/demo/x"), "not_found").await;
    wait::until_async("the bytes of all versions to be collected", Duration::from_secs(30), async || {
        let left = crate::site::files_below(site.root());
        let left: Vec<_> = left.iter().filter(|path| !path.ends_with(".percale/store")).collect();
        left.is_empty().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_takes_the_path_of_an_object_whose_file_is_still_there() {
    let mut site = TestSite::start().await;
    site.put_new("/demo/a", "one").await;
    let moved = json!({"from": "/demo/a", "to": "/demo/b"});
    expect(site.request(Method::POST, "/v1/move").json(&moved), StatusCode::OK).await;
    assert!(site.root().join("demo/a").is_file(), "files keep their keys");
    site.put_new("/demo/a/small", "two").await;
    let large = content(7, 3 * GROUP);
    site.put_new("/demo/a/large", large.clone()).await;
    // Its file goes some seconds later.
    site.put_new("/demo/c", "three").await;
    expect(site.request(Method::DELETE, "/v1/entries/demo/c"), StatusCode::NO_CONTENT).await;
    site.put_new("/demo/c/d", "four").await;
    for _ in 0..2 {
        assert_eq!(site.read("/demo/b").await, b"one");
        assert_eq!(site.read("/demo/a/small").await, b"two");
        assert_eq!(site.read("/demo/a/large").await, large);
        assert_eq!(site.read("/demo/c/d").await, b"four");
        site.restart().await;
    }
    assert!(site.staged().is_empty(), "{:?}", site.staged());
}
