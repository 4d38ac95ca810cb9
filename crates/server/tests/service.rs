//! The service around the endpoints: idempotency, events, limits, health, an orderly end.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{Client, Server, config, eventually, send};
use percale_server::config::TlsMode;
use percale_server::start;
use reqwest::Method;
use serde_json::{Value, json};

fn keyed(client: &Client, path: &str, key: &str, body: &Value) -> reqwest::RequestBuilder {
    client.request(Method::POST, path).header("idempotency-key", key).json(body)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_has_one_effect_and_one_answer() {
    let server = Server::start().await;
    let new = json!({"name": "s"});
    let first = send(keyed(&server.admin, "/v1/spaces", "k1", &new)).await;
    let again = send(keyed(&server.admin, "/v1/spaces", "k1", &new)).await;
    assert_eq!(first.expect(201), again.expect(201));
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(again.header("location"), "/v1/spaces/s");
    let other = send(keyed(&server.admin, "/v1/spaces", "k1", &json!({"name": "t"}))).await;
    other.expect_problem("idempotency_mismatch");
    // Another user's key is another key.
    let second_admin = server.user_with(json!({"subject": "user:root", "scopes": ["admin"]})).await;
    send(keyed(&second_admin, "/v1/spaces", "k1", &json!({"name": "t"}))).await.expect(201);
    // A failure is not kept.
    send(keyed(&server.admin, "/v1/spaces", "k2", &new)).await.expect_problem("already_exists");
    server.admin.delete("/v1/spaces/s").await.expect(204);
    send(keyed(&server.admin, "/v1/spaces", "k2", &new)).await.expect(201);
    for bad in ["", &"x".repeat(256)] {
        send(keyed(&server.admin, "/v1/spaces", bad, &new)).await.expect_problem("invalid_request");
    }
    let token = send(keyed(&server.admin, "/v1/tokens", "k3", &json!({}))).await;
    token.expect_problem("invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_with_one_key_have_one_effect() {
    let server = Server::start().await;
    let new = json!({"name": "s"});
    let answers: Vec<_> =
        futures::future::join_all((0..8).map(|_| send(keyed(&server.admin, "/v1/spaces", "same", &new))))
            .await;
    let ids: std::collections::HashSet<_> = answers
        .iter()
        .filter(|answer| answer.status == 201)
        .map(|answer| answer.json()["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(ids.len(), 1);
    for answer in answers.iter().filter(|answer| answer.status != 201) {
        answer.expect_problem("conflict");
    }
}

/// Reads events from a stream until it has seen so many.
async fn events(request: reqwest::RequestBuilder, count: usize) -> Vec<(String, Value)> {
    let mut response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert_eq!(response.headers()["x-accel-buffering"], "no");
    let mut text = String::new();
    let mut seen = Vec::new();
    while seen.len() < count {
        let chunk =
            tokio::time::timeout(Duration::from_secs(10), response.chunk()).await.expect("an event in time");
        text.push_str(std::str::from_utf8(&chunk.unwrap().expect("the stream goes on")).unwrap());
        while let Some((event, rest)) = text.split_once("\n\n") {
            let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            if let (Some(id), Some(data)) = (field("id:"), field("data:")) {
                seen.push((id.to_owned(), serde_json::from_str(data).unwrap()));
            }
            text = rest.to_owned();
        }
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_replayed_behind_the_last_one_seen_and_then_live() {
    let server = Server::with_space().await;
    let alice = server.user("alice").await;
    let space = alice.get("/v1/spaces/s").await.expect(200);
    let beginning = format!("{}.1.0", space["id"].as_str().unwrap());
    alice.mkdir("/s/a").await.expect(201);
    alice.mkdir("/s/b").await.expect(201);
    let all = events(alice.request(Method::GET, &format!("/v1/events?space=s&after={beginning}")), 4).await;
    let kinds: Vec<_> = all.iter().map(|(_, event)| event["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["space.created", "grants.changed", "entries.created", "entries.created"]);
    assert_eq!(all[2].1["body"]["items"][0]["name"], "a");
    assert_eq!(all[2].1["actor"], "user:alice");
    assert_eq!(all[2].0, all[2].1["position"].as_str().unwrap());

    let resumed = alice.request(Method::GET, "/v1/events?space=s").header("last-event-id", &all[2].0);
    let reading = tokio::spawn(events(resumed, 2));
    // The second of them is made only after the stream began.
    let alice2 = alice.clone();
    eventually("the stream is open", || async { (!reading.is_finished()).then_some(()) }).await;
    alice2.mkdir("/s/c").await.expect(201);
    let rest = reading.await.unwrap();
    assert_eq!(rest[0].1["body"]["items"][0]["name"], "b");
    assert_eq!(rest[1].1["body"]["items"][0]["name"], "c");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_only_for_those_who_may_read_the_space() {
    let server = Server::with_space().await;
    let bob = server.user("bob").await;
    let refused = bob.get("/v1/events?space=s").await;
    assert_eq!(refused.status, 404, "{}", refused.text);
    server.anonymous().get("/v1/events?space=s").await.expect_problem("unauthenticated");
    let alice = server.user("alice").await;
    alice.get("/v1/events").await.expect_problem("invalid_request");
    alice.get("/v1/events?space=none").await.expect_problem("not_found");
    let id = alice.get("/v1/spaces/s").await.expect(200)["id"].as_str().unwrap().to_owned();
    let at = |position: String| {
        send(alice.request(Method::GET, "/v1/events?space=s").header("last-event-id", position))
    };
    at("junk".into()).await.expect_problem("invalid_request");
    at(format!("{id}.0.1")).await.expect_problem("precondition_failed");
    at(format!("{}.1.0", percale_core::ids::SpaceId::new())).await.expect_problem("invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_metrics_and_description_need_no_sign_in() {
    let server = Server::start().await;
    let nobody = server.anonymous();
    assert_eq!(nobody.get("/livez").await.text, "ok\n");
    assert_eq!(nobody.get("/readyz").await.expect(200), json!({"ready": true}));
    let checks = nobody.get("/readyz?verbose").await.expect(200);
    assert!(checks["checks"].as_array().unwrap().iter().any(|check| check["name"] == "catalog"));
    let version = nobody.get("/version").await.expect(200);
    assert_eq!(version["catalog"], "sqlite");
    let api = nobody.get("/v1/openapi.json").await.expect(200);
    assert_eq!(api["openapi"], "3.1.0");
    let catalog = nobody.get("/.well-known/api-catalog").await.expect(200);
    assert_eq!(catalog["linkset"][0]["service-desc"][0]["href"], "/v1/openapi.json");
    nobody.get("/v1/entries/secret/name").await;
    let metrics = nobody.get("/metrics").await;
    assert!(metrics.text.contains("percale_build_info{version="), "{}", metrics.text);
    let measured = metrics.text.lines().find(|line| {
        line.starts_with("percale_http_request_duration_seconds_count")
            && line.contains("route=\"/v1/entries/{*path}\"")
    });
    assert!(measured.is_some_and(|line| line.contains("method=\"GET\"")), "{}", metrics.text);
    assert!(!metrics.text.contains("secret"), "a path is a label");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_is_kept_from_the_client_to_the_problem() {
    let server = Server::start().await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let request = server.admin.request(Method::GET, "/v1/nothing");
    let answer = send(request.header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"))).await;
    assert_eq!(answer.expect_problem("not_found")["trace_id"], trace);
    assert!(answer.header("traceparent").contains(trace));
}

#[tokio::test(flavor = "multi_thread")]
async fn junk_is_answered_with_a_problem() {
    let server = Server::with_space().await;
    let admin = &server.admin;
    admin.get("/nothing").await.expect_problem("not_found");
    admin.post("/v1/site", json!({})).await.expect_problem("method_not_allowed");
    let body = |kind: &str, body: &str| {
        send(
            admin
                .request(Method::POST, "/v1/spaces")
                .header("content-type", kind.to_owned())
                .body(body.to_owned()),
        )
    };
    body("text/plain", "{}").await.expect_problem("unsupported_media_type");
    body("application/json", "{").await.expect_problem("invalid_request");
    body("application/json", "[]").await.expect_problem("invalid_request");
    body("application/json", "{\"name\": 7}").await.expect_problem("invalid_request");
    body("application/json", "\u{0}").await.expect_problem("invalid_request");
    body("application/json", &"[".repeat(100_000)).await.expect_problem("invalid_request");
    let huge = format!("{{\"name\": \"{}\"}}", "x".repeat(5 << 20));
    let answer = body("application/json", &huge).await;
    assert_eq!(answer.status, 413);
    assert!(answer.expect_problem("payload_too_large")["detail"].as_str().unwrap().contains("4194304"));
    for path in ["/v1/tokens/x", "/v1/tokens/%ff", "/v1/tokens/00000000-0000-0000-0000-00000000000g"] {
        let answer = admin.delete(path).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
    }
    for path in ["/v1/tasks/x", "/v1/spaces/%2F", "/v1/spaces/NO", "/v1/grants/s?x=%ff"] {
        let status = admin.get(path).await.status;
        assert!(status.is_client_error() || status == 200, "{path}: {status}");
    }
    for task in [
        json!({"kind": "shred", "path": "/s"}),
        json!({"kind": "verify"}),
        json!({"kind": "verify", "path": "/s", "deadline": "2001-01-01T00:00:00Z"}),
        json!({"kind": "verify", "path": "/s", "deadline": "soon"}),
    ] {
        admin.post("/v1/tasks", task).await.expect_problem("invalid_request");
    }
}

/// Sends bytes as they are and returns all that comes back.
fn raw(server: &Server, sent: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.running.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(sent).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn header_limits_hold() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(&directory);
    config.http.header_timeout = Duration::from_secs(1);
    let server = Server::with(directory, config).await;
    let large = format!("GET /livez HTTP/1.1\r\nhost: x\r\nbig: {}\r\n\r\n", "x".repeat(70_000));
    assert!(raw(&server, large.as_bytes()).starts_with("HTTP/1.1 431"));
    let fits =
        format!("GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\nbig: {}\r\n\r\n", "x".repeat(60_000));
    assert!(raw(&server, fits.as_bytes()).starts_with("HTTP/1.1 200"));
    assert!(raw(&server, b"\x16\x03\x01junk\r\n\r\n").starts_with("HTTP/1.1 400"));
    let begun = Instant::now();
    assert_eq!(raw(&server, b"GET /livez HTTP/1.1\r\nhost"), "", "a header that never ends");
    assert!(
        (Duration::from_millis(900)..Duration::from_secs(6)).contains(&begun.elapsed()),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_still_sending_reads_why_it_was_refused() {
    let server = Server::with_space().await;
    let bob = server.user("bob").await;
    // Far more than fits into the buffers on the way: most of it is unread when the answer is there.
    for _ in 0..10 {
        bob.write("/s/large", vec![7; 24 << 20]).await.expect_problem("not_found");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sites_own_certificate_is_trusted_by_its_ca() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(&directory);
    config.tls.mode = TlsMode::Auto;
    let server = Server::with(directory, config).await;
    assert!(server.running.url().starts_with("https://127.0.0.1:"));
    let tls = percale_trust::client_config(server.running.ca_path()).unwrap();
    let http = reqwest::Client::builder().no_proxy().tls_backend_preconfigured(tls).build().unwrap();
    let trusting = Client { http, ..server.admin.clone() };
    assert_eq!(trusting.get("/v1/whoami").await.expect(200)["user"], "user:admin");
    // Over plain HTTP there is nothing.
    assert!(!raw(&server, b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").contains("200"));
    server.running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_state_directory_serves_one_server_and_a_restart_finds_everything() {
    let server = Server::with_space().await;
    let alice = server.user("alice").await;
    alice.mkdir("/s/a").await.expect(201);
    let Server { running, directory, admin } = server;
    let Err(second) = start(config(&directory)).await else { panic!("two servers on one state directory") };
    assert!(second.to_string().contains("another server"), "{second}");
    running.shutdown().await;
    assert!(admin.http.get(format!("{}/livez", admin.url)).send().await.is_err(), "the port is still open");

    let mut renamed = config(&directory);
    renamed.site.name = "baltic".into();
    let Err(error) = start(renamed).await else { panic!("a site changed its name") };
    assert!(error.to_string().contains("baltic"), "{error}");
    let again = config(&directory);
    let server = Server::with(directory, again).await;
    assert_eq!(server.admin.token, admin.token, "the administrator's token changed");
    let alice = Client { url: server.running.url(), ..alice };
    alice.get("/v1/entries/s/a").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orderly_end_lets_requests_end_and_streams_stop() {
    let server = Server::with_space().await;
    let alice = server.user("alice").await;
    let mut stream = alice.request(Method::GET, "/v1/events?space=s").send().await.unwrap();
    assert_eq!(stream.status(), 200);
    let begun = Instant::now();
    server.running.shutdown().await;
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(stream.chunk().await.unwrap(), None);
}
