//! Sites that only dial out.

use percale_api::directions::Dial;
use percale_core::ErrorCode;
use serde_json::json;

use crate::common::bytes;
use crate::fabric::{Site, WHILE};
use crate::liar::Liar;
use crate::tasks::{assert_ended, begun, ended, good_at, large, nothing_left, submit};
use crate::trust::id_of;

/// One site that can be dialled and two that cannot, which reach each other through it.
async fn behind_firewalls() -> [Site; 3] {
    let outgoing = |name| Site::with(name, |config| config.federation.outgoing_only = true);
    let (alps, coast, delta) = tokio::join!(Site::start("alps"), outgoing("coast"), outgoing("delta"));
    coast.join(&alps.invite().await).await;
    delta.join(&alps.invite().await).await;
    for site in [&alps, &coast, &delta] {
        site.reaches(&["alps", "coast", "delta"]).await;
    }
    [alps, coast, delta]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_that_only_dials_out_is_a_full_member() {
    let [alps, coast, delta] = behind_firewalls().await;
    let route = async |site: &Site, to: &str| {
        site.admin.get(&format!("/v1/sites/{to}")).await.expect(200)["route"].as_str().unwrap().to_owned()
    };
    assert_eq!(route(&alps, "coast").await, "reverse");
    assert_eq!(route(&coast, "alps").await, "direct");
    assert_eq!(route(&coast, "delta").await, "relay");
    coast.admin.post("/v1/sites/invitations", json!({})).await.expect_problem_at("unsupported", "coast");

    // Its space is seen, changed and read by all, also by one that can only be reached through the third.
    coast.admin.post("/v1/spaces", json!({"name": "deep", "owner": "user:alice"})).await.expect(201);
    for site in ["alps", "delta"] {
        let grant = json!({"subject": format!("user:alice@site:{site}"), "permission": "manage"});
        coast.admin.put("/v1/grants/deep", grant).await.expect(200);
    }
    let content: Vec<u8> = (0..2_500_000_u32).map(|at| (at % 253) as u8).collect();
    coast.user("alice").await.write("/deep/a", content.clone()).await.expect(201);
    for site in [&alps, &delta] {
        let alice = site.user("alice").await;
        site.sees(&alice, "/v1/entries/deep/a").await;
        assert!(bytes(&alice, "/v1/data/deep/a").await == content, "read at {}", site.name);
        alice.mkdir(&format!("/deep/{}", site.name)).await.expect(201);
        alice.get(&format!("/v1/entries/deep/{}", site.name)).await.expect(200);
        alice.write(&format!("/deep/{}/b", site.name), content.clone()).await.expect(201);
    }
    let alice = coast.user("alice").await;
    for site in ["alps", "delta"] {
        assert!(bytes(&alice, &format!("/v1/data/deep/{site}/b")).await == content, "read from {site}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_reached_again_after_either_side_was_away() {
    let alps = Site::start("alps").await;
    let mut coast = Site::with("coast", |config| config.federation.outgoing_only = true).await;
    coast.join(&alps.invite().await).await;
    alps.reaches(&["coast"]).await;
    coast
        .admin
        .post("/v1/spaces", json!({"name": "deep", "owner": "user:alice@site:alps"}))
        .await
        .expect(201);
    let alice = alps.user("alice").await;
    alps.sees(&alice, "/v1/spaces/deep").await;
    let mut alps = alps;
    alps.stop().await;
    alps.resume().await;
    alps.reaches(&["coast"]).await;
    let alice = alps.user("alice").await;
    alice.mkdir("/deep/one").await.expect(201);
    coast.stop().await;
    alice.mkdir("/deep/two").await.expect_problem_at("site_unavailable", "alps");
    coast.resume().await;
    crate::common::eventually("alps changes a space at coast", || async {
        (alice.mkdir("/deep/two").await.status.as_u16() == 201).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_goes_on_after_its_relay_was_away() {
    let [mut alps, coast, delta] = behind_firewalls().await;
    coast.admin.post("/v1/spaces", json!({"name": "deep", "owner": "user:alice"})).await.expect(201);
    let grant = json!({"subject": "user:alice@site:delta", "permission": "write"});
    coast.admin.put("/v1/grants/deep", grant).await.expect(200);
    let here = coast.user("alice").await;
    for number in 0..10 {
        here.write(&format!("/deep/{number}"), large(4_000_000 + number)).await.expect(201);
    }
    let there = delta.user("alice").await;
    delta.sees(&there, "/v1/entries/deep/9").await;
    let limited = json!({"kind": "replicate", "path": "/deep", "to": "delta", "limit": "80Mbit/s"});
    let id = submit(&there, limited).await;
    begun(&delta).await;
    alps.stop().await;
    tokio::time::sleep(WHILE).await;
    let state = delta.admin.get(&format!("/v1/tasks/{id}")).await.expect(200)["state"].clone();
    assert!(state == "queued" || state == "running", "its relay went in the middle: {state}");
    alps.resume().await;
    assert_ended(&ended(&there, &id).await, "succeeded", 10, 0);
    good_at(&there, "/deep", &["coast", "delta"]).await;
    for number in 0..10 {
        assert!(bytes(&there, &format!("/v1/data/deep/{number}")).await == large(4_000_000 + number));
    }
    nothing_left(&delta).await;
}

/// Returns the ways between a site and another one, as the first one finds them: out and in.
fn ways(found: &serde_json::Value, site: &str) -> (Option<bool>, Option<bool>) {
    let item = found["items"].as_array().unwrap().iter().find(|item| item["site"] == site).unwrap();
    let open = |dialled: &serde_json::Value| {
        let dialled = dialled.as_array()?;
        (!dialled.is_empty()).then(|| dialled.iter().any(|one| one["fault"].is_null()))
    };
    (open(&item["outgoing"]), open(&item["incoming"]))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_that_nobody_can_dial_is_told_so() {
    // A port that nobody listens on, as behind a firewall that answers.
    let shut = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", shut.local_addr().unwrap());
    drop(shut);
    let behind = Site::with("coast", |config| config.federation.urls = vec![url.clone()]);
    let outgoing = Site::with("delta", |config| config.federation.outgoing_only = true);
    let (alps, baltic, coast, delta) =
        tokio::join!(Site::start("alps"), Site::start("baltic"), behind, outgoing);
    for site in [&baltic, &coast, &delta] {
        site.join(&alps.invite().await).await;
    }
    for site in [&alps, &baltic] {
        site.reaches(&["alps", "baltic", "delta"]).await;
    }
    coast.reaches(&["alps", "baltic"]).await;
    let look = async |site: &Site| site.admin.post("/v1/sites/directions", json!({})).await.expect(200);
    let found = look(&coast).await;
    assert_eq!(ways(&found, "alps"), (Some(true), Some(false)), "{found}");
    assert_eq!(ways(&found, "baltic"), (Some(true), Some(false)), "{found}");
    assert_eq!((&found["is_unreachable"], &found["urls"]), (&json!(true), &json!([url])), "{found}");
    assert!(found["remedy"].as_str().unwrap().contains("federation.outgoing_only = true"), "{found}");

    // To the others it is one that they cannot dial; they themselves can be.
    let found = look(&alps).await;
    assert_eq!(ways(&found, "baltic"), (Some(true), Some(true)), "{found}");
    assert_eq!(ways(&found, "delta"), (None, Some(true)), "{found}");
    assert_eq!(ways(&found, "coast").0, Some(false), "{found}");
    assert_eq!((&found["is_unreachable"], &found["remedy"]), (&json!(false), &json!(null)), "{found}");

    // One that says that it only dials out has nothing to mend.
    let found = look(&delta).await;
    assert_eq!(ways(&found, "alps"), (Some(true), None), "{found}");
    assert_eq!((&found["is_unreachable"], &found["remedy"]), (&json!(false), &json!(null)), "{found}");

    alps.user("alice")
        .await
        .post("/v1/sites/directions", json!({}))
        .await
        .expect_problem_at("forbidden", "alps");
    let dial = json!({"nonce": "ab".repeat(16)});
    for path in ["/v1/peer/dial", "/v1/peer/hello"] {
        alps.admin.post(path, dial.clone()).await.expect_problem_at("site_refused", "alps");
    }

    // The remedy helps.
    let mut coast = coast;
    coast.stop().await;
    (coast.config.federation.urls, coast.config.federation.outgoing_only) = (Vec::new(), true);
    coast.resume().await;
    alps.reaches(&["coast"]).await;
    let found = look(&alps).await;
    assert_eq!(ways(&found, "coast"), (None, Some(true)), "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_is_dialled_only_where_the_roster_says_and_reached_only_by_its_key() {
    let (alps, baltic) = tokio::join!(Site::start("alps"), Site::start("baltic"));
    let liar = Liar::new("delta");
    // It says that it is where another site is.
    let client = liar.join_at(&alps, vec![baltic.admin.url.clone()]).await;
    let dial = Dial { nonce: "0123456789abcdef".repeat(2) };
    let silent = client.peer_dial(&dial).await.unwrap_err();
    assert_eq!(silent.code(), ErrorCode::SiteRefused, "nobody said who asks");
    let client = liar.saying(&client, &liar.statement(id_of(&alps).await, None));
    let answer = client.peer_dial(&dial).await.unwrap();
    let [dialled] = &answer.dialled[..] else { panic!("{answer:?}") };
    assert_eq!(dialled.url, baltic.admin.url);
    assert!(dialled.fault.is_some(), "the server there does not have the liar's key");
    for nonce in [String::new(), "0".repeat(33), "no hexadecimal digits in this one".into()] {
        let refused = client.peer_dial(&Dial { nonce: nonce.clone() }).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::InvalidRequest, "{nonce}");
    }
}
