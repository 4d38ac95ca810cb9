//! Spaces, collections, lists, moves, removals, over HTTP.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

mod common;

use std::io::Write as _;

use common::{Client, Server, send};
use reqwest::Method;
use serde_json::{Value, json};

fn names(page: &Value) -> Vec<&str> {
    page["items"].as_array().unwrap().iter().map(|item| item["path"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_and_spaces_are_made_changed_and_removed() {
    let server = Server::start().await;
    let admin = &server.admin;
    server.add_store("disk").await;
    let store = admin.get("/v1/stores/disk").await.expect(200);
    assert_eq!((&store["connector"], &store["state"]), (&json!("posix"), &json!("active")));
    assert!(store["free_bytes"].as_u64().unwrap() > 0);
    let taken = json!({"name": "disk", "connector": "memory", "config": {}});
    admin.post("/v1/stores", taken).await.expect_problem("already_exists");
    for (store, why) in [
        (json!({"name": "A b", "connector": "posix", "config": {"root": "/x"}}), "name of a store"),
        (json!({"name": "x", "connector": "tape", "config": {}}), "tape"),
        (json!({"name": "x", "connector": "posix", "config": {}}), "root"),
        (json!({"name": "x", "connector": "posix", "config": 7}), "object"),
        (json!({"name": "x", "connector": "posix", "config": {"root": "/x", "rot": 1}}), "rot"),
    ] {
        let problem = admin.post("/v1/stores", store).await.expect_problem("invalid_request");
        assert!(problem["detail"].as_str().unwrap().contains(why), "{problem}");
    }
    // What cannot be opened is not added.
    let unusable = json!({"name": "x", "connector": "posix", "config": {"root": "/proc/none"}});
    let refused = admin.post("/v1/stores", unusable).await;
    assert!(
        !refused.status.is_success() && refused.json()["detail"].as_str().unwrap().contains("add store x")
    );
    admin.get("/v1/stores/x").await.expect_problem("not_found");

    let made =
        admin.post("/v1/spaces", json!({"name": "climate", "owner": "user:alice", "store": "disk"})).await;
    let space = made.expect(201);
    assert_eq!(made.header("location"), "/v1/spaces/climate");
    assert_eq!(
        (&space["owner"], &space["store"], &space["scope"]),
        (&json!("user:alice"), &json!("disk"), &json!("private"))
    );
    admin.post("/v1/spaces", json!({"name": "climate"})).await.expect_problem("already_exists");
    admin.post("/v1/spaces", json!({"name": "x", "store": "none"})).await.expect_problem("invalid_request");
    admin.post("/v1/spaces", json!({"name": "Not A Name"})).await.expect_problem("invalid_request");
    admin.post("/v1/spaces", json!({"name": "x", "colour": 1})).await.expect_problem("invalid_request");
    assert_eq!(
        admin.patch("/v1/spaces/climate", json!({"scope": "public"})).await.expect(200)["scope"],
        "public"
    );
    assert_eq!(names(&server.anonymous().get("/v1/list/").await.expect(200)), ["/climate"]);
    server.anonymous().get("/v1/entries/climate").await.expect(200);

    assert_eq!(
        admin.patch("/v1/stores/disk", json!({"state": "draining"})).await.expect(200)["state"],
        "draining"
    );
    admin.delete("/v1/spaces/climate").await.expect(204);
    admin.get("/v1/spaces/climate").await.expect_problem("space_not_found");
    admin.delete("/v1/stores/disk").await.expect(204);
    assert_eq!(admin.get("/v1/stores").await.expect(200)["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_list_is_compressed_for_who_can_read_that() {
    let server = Server::with_space().await;
    for n in 0..30 {
        server.admin.write(&format!("/s/{n}"), vec![0; 8192]).await.expect(201);
    }
    let http = reqwest::Client::builder().no_proxy().no_gzip().build().unwrap();
    let raw = Client { http, ..server.admin.clone() };
    let get = async |path: &str, encoding: &str| {
        let request = raw.request(Method::GET, path).header("accept-encoding", encoding);
        let response = request.send().await.unwrap();
        let said = response.headers().get("content-encoding").map(|said| said.to_str().unwrap().to_owned());
        (said, response.bytes().await.unwrap())
    };
    let gzip = Some("gzip".to_owned());
    let (plain, compressed) = (get("/v1/list/s", "identity").await, get("/v1/list/s", "gzip").await);
    assert_eq!((&plain.0, &compressed.0), (&None, &gzip));
    assert!(4 * compressed.1.len() < plain.1.len(), "{} of {}", compressed.1.len(), plain.1.len());
    // The other client reads it without being asked.
    assert_eq!(server.admin.get("/v1/list/s").await.text.as_bytes(), plain.1);
    // What is short, and what is content.
    assert_eq!(get("/v1/entries/s/1", "gzip").await.0, None);
    let content = get("/v1/data/s/1", "gzip").await;
    assert_eq!((content.0, content.1.len()), (None, 8192));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_many_objects_may_be_compressed() {
    let server = Server::with_space().await;
    server.admin.write("/s/a", b"content".to_vec()).await.expect(201);
    let gzip = |json: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(json).unwrap();
        encoder.finish().unwrap()
    };
    let pull = async |body: Vec<u8>, coding: &str| {
        let request = server.admin.request(Method::POST, "/v1/frames/pull");
        let request = request.header("content-type", "application/json").header("content-encoding", coding);
        send(request.body(body)).await
    };
    let wanted = json!({"items": vec![json!({"path": "/s/a"}); 500]}).to_string();
    let answer = pull(gzip(wanted.as_bytes()), "gzip").await;
    assert_eq!((answer.status.as_u16(), answer.header("accept-encoding")), (200, "gzip"));
    assert_eq!(answer.text.matches("content").count(), 500);
    // Whatever is the matter with it, what comes out is not more than may be sent as it is.
    let many = [b"{\"items\": [", &*vec![b' '; 5 << 20]].concat();
    pull(gzip(&many), "gzip").await.expect_problem("payload_too_large");
    let whole = gzip(wanted.as_bytes());
    pull(whole[..whole.len() / 2].to_vec(), "gzip").await.expect_problem("invalid_request");
    pull(wanted.clone().into(), "gzip").await.expect_problem("invalid_request");
    pull(whole, "br").await.expect_problem("invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn collections_are_made_listed_moved_and_removed() {
    let server = Server::with_space().await;
    let alice = server.user("alice").await;
    let made = alice.mkdir("/s/a").await;
    assert_eq!(made.expect(201)["kind"], "collection");
    assert!(made.header("percale-position").contains(".1."), "{:?}", made.headers);
    alice.mkdir("/s/a").await.expect(200);
    alice.mkdir("/s/x/y/z").await.expect_problem("not_found");
    alice.mkdir("/s/x/y/z?parents").await.expect(201);
    assert_eq!(names(&alice.get("/v1/list/s").await.expect(200)), ["/s/a", "/s/x"]);
    assert_eq!(
        names(&alice.get("/v1/list/s?recursive=true").await.expect(200)),
        ["/s/a", "/s/x", "/s/x/y", "/s/x/y/z"]
    );

    let id = alice.get("/v1/entries/s/x").await.expect(200)["id"].clone();
    let moved = alice.post("/v1/move", json!({"from": "/s/x", "to": "/s/a/b"})).await.expect(200);
    assert_eq!((&moved["path"], &moved["id"]), (&json!("/s/a/b"), &id));
    alice.get("/v1/entries/s/a/b/y/z").await.expect(200);
    alice.get("/v1/entries/s/x").await.expect_problem("not_found");
    alice.post("/v1/move", json!({"from": "/s/a", "to": "/s/a/b/c"})).await.expect_problem("invalid_request");
    alice.post("/v1/move", json!({"from": "/s/none", "to": "/s/n"})).await.expect_problem("not_found");

    alice.delete("/v1/entries/s/a").await.expect_problem("not_empty");
    alice.delete("/v1/entries/s/a?recursive=maybe").await.expect_problem("invalid_request");
    alice.delete("/v1/entries/s/a?recursive").await.expect(204);
    assert_eq!(names(&alice.get("/v1/list/s").await.expect(200)), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_hold_every_entry_once_and_link_to_the_next() {
    let server = Server::with_space().await;
    let alice = server.user("alice").await;
    let mut expected = Vec::new();
    for name in ["a", "b b", "c&d=e", "ü", "z%2F", "日本"] {
        let path = format!("/s/{name}");
        let encoded: String = percent(&path);
        alice.mkdir(&encoded).await.expect(201);
        expected.push(path);
    }
    expected.sort();
    let mut seen = Vec::new();
    let mut address = "/v1/list/s?limit=2".to_owned();
    for _ in 0..10 {
        let answer = alice.get(&address).await;
        let page = answer.expect(200);
        seen.extend(names(&page).into_iter().map(str::to_owned));
        let link = answer.header("link");
        assert_eq!(page.get("next").is_some(), !link.is_empty());
        let Some(next) = link.strip_prefix('<').and_then(|link| link.split_once(">; rel=\"next\"")) else {
            break;
        };
        address = next.0.to_owned();
    }
    assert_eq!(seen, expected);
    for query in ["limit=0", "limit=10001", "limit=x", "colour=red"] {
        let answer = alice.get(&format!("/v1/list/s?{query}")).await;
        answer.expect_problem("invalid_request");
    }
}

/// Sends a request line as it is and returns the answer.
async fn raw(server: &Server, client: &Client, line: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(server.running.address()).await.unwrap();
    let token = client.token.as_deref().unwrap();
    let head =
        format!("{line} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

fn percent(path: &str) -> String {
    path.bytes()
        .map(|byte| match byte {
            b'/' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_cannot_leave_the_namespace() {
    let server = Server::with_space().await;
    let alice = server.user("alice").await;
    let long = "x".repeat(256);
    let deep = "/y".repeat(2100);
    for path in [
        "/s/%2e%2e/etc/passwd",
        "/s/a%2F..%2Fb",
        "/s/%2e",
        "/s/a%00b",
        "/s/%ff%fe",
        "/s/%c0%af",
        "/%2e%2e/%2e%2e/etc",
        "/S/a",
        &format!("/s/{long}"),
        &format!("/s{deep}"),
    ] {
        for (method, door) in [
            ("GET", "entries"),
            ("GET", "list"),
            ("PUT", "collections"),
            ("DELETE", "entries"),
            ("GET", "grants"),
        ] {
            // Not by the client library, which resolves dots before it sends.
            let answer = raw(&server, &alice, &format!("{method} /v1/{door}{path}")).await;
            assert!(answer.starts_with("HTTP/1.1 400 "), "{method} {path}: {answer}");
            assert!(answer.contains("\"code\":\"invalid_path\"") && answer.len() < 2500, "{answer}");
        }
    }
    for path in ["/s/../x", "relative", "/s/a\u{0}b", ""] {
        alice.post("/v1/move", json!({"from": path, "to": "/s/x"})).await.expect_problem("invalid_request");
    }
    // Names that only look dangerous are names.
    for name in ["/s/..%20", "/s/a%5Cb", "/s/%2E%2E%2E", "/s/a%3Fb%23c", "/s/%25"] {
        alice.mkdir(name).await.expect(201);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn times_and_bits_of_an_object_are_set() {
    let server = Server::with_space().await;
    let alice = server.user("alice").await;
    alice.write("/s/x", "content").await.expect(201);
    let before = alice.get("/v1/entries/s/x").await.expect(200);
    assert!(before["content"].get("mode").is_none(), "nobody said any");
    let wanted = json!({"mode": "0750", "mtime": "2020-01-02T03:04:05Z"});
    let answer = alice.patch("/v1/entries/s/x", wanted).await;
    let after = answer.expect(200);
    assert!(answer.header("percale-position").contains('.'));
    assert_eq!(
        (&after["content"]["mode"], &after["content"]["mtime"]),
        (&json!("0750"), &json!("2020-01-02T03:04:05Z"))
    );
    assert_eq!(before["content"]["version"], after["content"]["version"]);
    for wrong in
        [json!({"mode": "4755"}), json!({"mode": 493}), json!({"mode": "0799"}), json!({"owner": "bob"})]
    {
        alice.patch("/v1/entries/s/x", wrong).await.expect_problem("invalid_request");
    }
    alice.patch("/v1/entries/s", json!({"mode": "0750"})).await.expect_problem("is_collection");
    alice.patch("/v1/entries/s/none", json!({"mode": "0750"})).await.expect_problem("not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn removal_honours_if_match() {
    let server = Server::with_space().await;
    let alice = server.user("alice").await;
    let first = alice.write("/s/o", "one").await;
    first.expect(201);
    let entry = alice.get("/v1/entries/s/o").await;
    assert_eq!(entry.header("etag"), first.header("etag"));
    let body = entry.expect(200);
    assert_eq!(body["content"]["size"], 3);
    assert_eq!(body["replicas"][0]["state"], "good");
    assert_eq!(body["replicas"][0]["store"], "disk");
    assert_eq!(body["replicas"][0]["key"], "s/o");

    let bob = server.user("bob").await;
    alice.put("/v1/grants/s", json!({"subject": "user:bob", "permission": "read"})).await.expect(200);
    let seen = bob.get("/v1/list/s?replicas=true").await.expect(200);
    assert_eq!(seen["items"][0]["replicas"][0]["state"], "good");
    assert!(seen["items"][0]["replicas"][0].get("key").is_none(), "a reader learns where the file lies");

    let remove =
        |tag: &str| send(alice.request(Method::DELETE, "/v1/entries/s/o").header("if-match", tag.to_owned()));
    remove("\"0000\"").await.expect_problem("precondition_failed");
    remove(entry.header("etag")).await.expect(204);
    remove("*").await.expect_problem("not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn links_are_made_and_who_reads_is_sent_on() {
    let server = Server::with_space().await;
    let admin = &server.admin;
    admin.write("/s/run 1/x.txt", "hello").await.expect(201);
    let made = admin.put("/v1/links/s/latest", json!({"target": "run 1"})).await.expect(201);
    assert_eq!((&made["kind"], &made["target"]), (&json!("link"), &json!("run 1")));
    admin.put("/v1/links/s/latest", json!({"target": "run 1"})).await.expect(200);
    admin.put("/v1/links/s/latest", json!({"target": "run 2"})).await.expect_problem("already_exists");
    for wrong in
        [json!({"target": ""}), json!({"target": "a\u{0}b"}), json!({"target": "x".repeat(4096)}), json!({})]
    {
        admin.put("/v1/links/s/wrong", wrong).await.expect_problem("invalid_request");
    }
    assert_eq!(admin.get("/v1/entries/s/latest").await.expect(200)["target"], "run 1");
    // Clients that follow redirects get there by themselves.
    let read = admin.get("/v1/data/s/latest/x.txt").await;
    assert_eq!((read.status.as_u16(), read.text.as_str()), (200, "hello"));
    assert_eq!(names(&admin.get("/v1/list/s/latest?limit=5").await.expect(200)), ["/s/run 1/x.txt"]);
    let http = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
    let stop = common::Client { http: http.build().unwrap(), ..admin.clone() };
    for (asked, location) in [
        ("/v1/data/s/latest/x.txt", "/v1/data/s/run%201/x.txt"),
        ("/v1/list/s/latest?recursive=true", "/v1/list/s/run%201?recursive=true"),
        ("/v1/entries/s/latest/x.txt", "/v1/entries/s/run%201/x.txt"),
    ] {
        let answer = stop.get(asked).await;
        assert_eq!((answer.status.as_u16(), answer.header("location")), (307, location), "{asked}");
        let problem = answer.json();
        assert_eq!(problem["code"], "is_link");
        assert!(problem["leads_to"].as_str().unwrap().starts_with("/s/run 1"), "{problem}");
    }
    // What changes something goes by the path that is meant.
    for refused in [
        stop.delete("/v1/entries/s/latest/x.txt").await,
        stop.mkdir("/s/latest/new").await,
        stop.write("/s/latest/new", "x").await,
        stop.write("/s/latest", "x").await,
        stop.patch("/v1/entries/s/latest", json!({"mode": "0700"})).await,
    ] {
        assert_eq!((refused.status.as_u16(), &refused.json()["code"]), (409, &json!("is_link")));
    }
    admin.put("/v1/links/s/host", json!({"target": "/etc/passwd"})).await.expect(201);
    let nowhere = stop.get("/v1/data/s/host").await;
    assert_eq!((nowhere.status.as_u16(), &nowhere.json()["leads_to"]), (409, &Value::Null));
    // Who may not read where a link leads is told so there.
    admin.post("/v1/spaces", json!({"name": "open", "scope": "public"})).await.expect(201);
    admin.put("/v1/links/open/x", json!({"target": "../s/run 1/x.txt"})).await.expect(201);
    admin.put("/v1/grants/open", json!({"subject": "anyone", "permission": "read"})).await.expect(200);
    let anyone = server.anonymous();
    assert_eq!(anyone.get("/v1/entries/open/x").await.expect(200)["kind"], "link");
    anyone.get("/v1/data/open/x").await.expect_problem("unauthenticated");
}
