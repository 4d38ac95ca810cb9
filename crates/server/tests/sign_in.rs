//! Who is let in, as whom, and what strangers are told.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

mod common;

use std::time::Duration;

use common::{Server, send};
use percale_core::Timestamp;
use percale_core::access::Identity;
use percale_core::ids::SiteId;
use percale_trust::{IssueRequest, SiteKey, TokenIssuer};
use reqwest::Method;
use serde_json::json;

/// Issues with the site's own key, behind its back.
fn issuer(server: &Server, site: SiteId) -> TokenIssuer {
    TokenIssuer::new(&SiteKey::load_or_create(&server.directory.path().join("state")).unwrap(), site)
}

fn request(now: Timestamp) -> IssueRequest {
    IssueRequest {
        subject: Identity::local("alice"),
        groups: vec![],
        scopes: vec![],
        ttl: Duration::from_secs(600),
        now,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_good_tokens_are_taken() {
    let server = Server::with_space().await;
    let site: SiteId =
        server.anonymous().get("/v1/site").await.expect(200)["id"].as_str().unwrap().parse().unwrap();
    let issue = |site, now| issuer(&server, site).issue(request(now)).unwrap().secret.expose().clone();
    let now = Timestamp::now();
    let good = issue(site, now);
    let alice = server.admin.as_token(&good).get("/v1/whoami").await.expect(200);
    assert_eq!(alice["user"], "user:alice");
    assert!(alice["expires"].is_string());

    let long_ago = Timestamp::from_micros(now.as_micros() - 3_600_000_000);
    let stranger =
        TokenIssuer::new(&SiteKey::load_or_create(tempfile::tempdir().unwrap().path()).unwrap(), site);
    let forged = stranger.issue(request(now)).unwrap().secret.expose().clone();
    let (body, signature) = good.rsplit_once('.').unwrap();
    let altered = format!("{body}x.{signature}");
    for (token, code) in [
        (issue(site, long_ago), "token_expired"),
        (issue(SiteId::new(), now), "token_invalid"),
        (forged, "token_invalid"),
        (altered, "token_invalid"),
        ("junk".to_owned(), "token_invalid"),
        (String::new(), "token_invalid"),
        ("a".repeat(17_000), "token_invalid"),
    ] {
        // Also where nobody needs to sign in: a token that is not good is never passed over.
        for path in ["/v1/whoami", "/v1/list/s", "/v1/stores"] {
            let answer = server.admin.as_token(&token).get(path).await;
            answer.expect_problem(code);
            assert_eq!(answer.status, 401);
            assert!(answer.header("www-authenticate").starts_with("Bearer "), "{:?}", answer.headers);
            assert!(!answer.text.contains(signature), "the token is in the answer");
        }
    }
    let basic = server.anonymous().request(Method::GET, "/v1/whoami").basic_auth("a", Some("b"));
    send(basic).await.expect_problem("token_invalid");
    let twice = server.admin.request(Method::GET, "/v1/whoami").header("authorization", "Bearer x");
    send(twice).await.expect_problem("token_invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_is_refused_at_once() {
    let server = Server::start().await;
    let issued = server
        .admin
        .post("/v1/tokens", json!({"subject": "user:alice", "label": "laptop"}))
        .await
        .expect(201);
    let alice = server.admin.as_token(issued["secret"].as_str().unwrap());
    let listed = alice.get("/v1/tokens").await.expect(200);
    assert_eq!(listed["items"][0]["label"], "laptop");
    assert!(listed["items"][0].get("secret").is_none());

    let bob = server.user("bob").await;
    let id = issued["id"].as_str().unwrap();
    bob.delete(&format!("/v1/tokens/{id}")).await.expect_problem("not_found");
    alice.get("/v1/whoami").await.expect(200);
    alice.delete(&format!("/v1/tokens/{id}")).await.expect(204);
    alice.get("/v1/whoami").await.expect_problem("token_revoked");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_one_is_nobody_and_told_to_sign_in() {
    let server = Server::with_space().await;
    let nobody = server.anonymous();
    assert!(nobody.get("/v1/whoami").await.expect(200).get("user").is_none());
    for path in ["/v1/stores", "/v1/tokens", "/v1/tasks"] {
        let answer = nobody.get(path).await;
        answer.expect_problem("unauthenticated");
        assert_eq!(answer.header("www-authenticate"), "Bearer realm=\"percale\"");
    }
    nobody.post("/v1/spaces", json!({"name": "x"})).await.expect_problem("unauthenticated");
    assert_eq!(nobody.get("/v1/list/").await.expect(200)["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_may_not_read_is_not_there_and_what_one_may_not_do_is_forbidden() {
    let server = Server::with_space().await;
    let (alice, bob) = (server.user("alice").await, server.user("bob").await);
    alice.mkdir("/s/a").await.expect(201);

    // Bob cannot tell what is there from what is not.
    let hidden = bob.get("/v1/entries/s/a").await.expect_problem("not_found");
    let missing = bob.get("/v1/entries/s/b").await.expect_problem("not_found");
    assert_eq!(
        hidden["detail"].as_str().unwrap().replace("/s/a", "/s/b"),
        missing["detail"].as_str().unwrap(),
        "the words tell what is there"
    );
    bob.mkdir("/s/a/x").await.expect_problem("not_found");
    bob.delete("/v1/entries/s/a").await.expect_problem("not_found");
    bob.get("/v1/grants/s/a").await.expect_problem("not_found");

    alice.put("/v1/grants/s/a", json!({"subject": "user:bob", "permission": "read"})).await.expect(200);
    bob.get("/v1/entries/s/a").await.expect(200);
    let denied = bob.mkdir("/s/a/x").await;
    denied.expect_problem("forbidden");
    assert_eq!(denied.status, 403);
    bob.delete("/v1/entries/s/a").await.expect_problem("forbidden");
    bob.get("/v1/grants/s/a").await.expect_problem("forbidden");
    bob.put("/v1/grants/s/a", json!({"subject": "user:bob", "permission": "manage"}))
        .await
        .expect_problem("forbidden");
    bob.get("/v1/stores").await.expect_problem("forbidden");

    let grants = alice.get("/v1/grants/s/a").await.expect(200);
    assert_eq!(grants["items"].as_array().unwrap().len(), 2, "{grants}");
    alice.delete("/v1/grants/s/a?subject=user:bob").await.expect(204);
    bob.get("/v1/entries/s/a").await.expect_problem("not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn scopes_narrow_what_grants_give_and_cannot_be_shed() {
    let server = Server::with_space().await;
    let alice = server.user("alice").await;
    alice.mkdir("/s/a").await.expect(201);
    alice.mkdir("/s/b").await.expect(201);
    let issued = alice
        .post("/v1/tokens", json!({"scopes": ["read:/s/a"], "expires_in_seconds": 600}))
        .await
        .expect(201);
    let reader = server.admin.as_token(issued["secret"].as_str().unwrap());
    reader.get("/v1/entries/s/a").await.expect(200);
    assert_ne!(reader.get("/v1/entries/s/b").await.status, 200);
    assert_ne!(reader.mkdir("/s/a/x").await.status, 201);
    reader.post("/v1/tokens", json!({"scopes": ["write:/s/a"]})).await.expect_problem("forbidden");
    let again = reader.post("/v1/tokens", json!({})).await.expect(201);
    assert_eq!(again["scopes"], json!(["read:/s/a"]), "a token without scopes is not wider");
    reader.post("/v1/tokens", json!({"subject": "user:bob"})).await.expect_problem("forbidden");
    alice.post("/v1/tokens", json!({"scopes": ["admin"]})).await.expect_problem("forbidden");
}
