//! Sites that only dial out.

use serde_json::json;

use crate::common::bytes;
use crate::fabric::Site;

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
