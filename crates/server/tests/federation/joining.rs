//! Sites join, are drained and removed.

use percale_core::ErrorCode;
use serde_json::json;

use crate::common::eventually;
use crate::fabric::{Site, three};

#[tokio::test(flavor = "multi_thread")]
async fn sites_join_with_one_line_and_all_hear_of_each_other() {
    let [alps, baltic, coast] = three().await;
    for site in [&alps, &baltic, &coast] {
        let sites = site.admin.get("/v1/sites").await.expect(200);
        let names: Vec<_> =
            sites["items"].as_array().unwrap().iter().map(|site| site["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["alps", "baltic", "coast"]);
        let own = site.admin.get(&format!("/v1/sites/{}", site.name)).await.expect(200);
        assert_eq!((own["is_self"].as_bool(), own["route"].as_str()), (Some(true), Some("self")));
    }
    // Only administrators invite, join and remove.
    let alice = alps.user("alice").await;
    alice.post("/v1/sites/invitations", json!({})).await.expect_problem("forbidden");
    alice.delete("/v1/sites/coast").await.expect_problem("forbidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invitation_is_good_once_until_it_ends_and_unaltered() {
    let (alps, baltic, coast) =
        tokio::join!(Site::start("alps"), Site::start("baltic"), Site::start("coast"));
    let line = alps.invite().await;
    baltic.join(&line).await;
    // The same site may ask again, since it may not have heard the answer; another one may not.
    baltic.join(&line).await;
    let join = |line: String| coast.admin.post("/v1/sites/join", json!({"invitation": line}));
    join(line.clone()).await.expect(400);
    let short = alps.admin.post("/v1/sites/invitations", json!({"life_s": 1})).await.expect(201);
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    join(short["invitation"].as_str().unwrap().to_owned()).await.expect(400);
    let fresh = alps.invite().await;
    for at in [20, fresh.len() / 2, fresh.len() - 2] {
        let mut altered = fresh.clone().into_bytes();
        altered[at] = if altered[at] == b'A' { b'B' } else { b'A' };
        let answer = join(String::from_utf8(altered).unwrap()).await;
        assert!(!answer.status.is_success(), "{}", answer.text);
    }
    alps.admin.post("/v1/sites/invitations", json!({"life_s": 31 * 24 * 3600})).await.expect(400);
    // Nothing of that let it in.
    alps.admin.get("/v1/sites/coast").await.expect(404);
    join(fresh).await.expect(200);
    alps.admin.get("/v1/sites/coast").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_site_is_refused_by_all_for_good() {
    let [alps, baltic, coast] = three().await;
    let space = json!({"name": "open", "owner": "user:alice", "scope": "public"});
    alps.admin.post("/v1/spaces", space).await.expect(201);
    let alice = coast.user("alice").await;
    coast.sees(&alice, "/v1/spaces/open").await;
    baltic.admin.delete("/v1/sites/coast").await.expect(204);
    eventually("alps hears of the removal", || async {
        (alps.admin.get("/v1/sites/coast").await.status.as_u16() == 404).then_some(())
    })
    .await;
    // What it asks is refused, and it cannot come back under its key.
    alps.admin
        .post("/v1/spaces", json!({"name": "later", "owner": "user:alice", "scope": "public"}))
        .await
        .expect(201);
    tokio::time::sleep(crate::fabric::WHILE).await;
    coast.admin.get("/v1/spaces/later").await.expect(404);
    let again = coast.admin.post("/v1/sites/join", json!({"invitation": alps.invite().await})).await;
    assert_eq!(again.json()["code"], ErrorCode::SiteRefused.to_string(), "{}", again.text);
}
