//! One namespace over sites.

use serde_json::json;

use crate::common::eventually;
use crate::fabric::{Site, three};

/// A space of alice's at the first site, which she may use from the others.
pub async fn shared_space(home: &Site) {
    home.admin.post("/v1/spaces", json!({"name": "climate", "owner": "user:alice"})).await.expect(201);
    for site in ["baltic", "coast"] {
        let grant = json!({"subject": format!("user:alice@site:{site}"), "permission": "manage"});
        home.admin.put("/v1/grants/climate", grant).await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_site_answers_for_every_space() {
    let [alps, baltic, coast] = three().await;
    shared_space(&alps).await;
    let here = alps.user("alice").await;
    let there = baltic.user("alice").await;
    let elsewhere = coast.user("alice").await;
    here.write("/climate/run7/a.nc", "one").await.expect(201);
    baltic.sees(&there, "/v1/entries/climate/run7/a.nc").await;
    let listed = there.get("/v1/list/climate/run7?replicas=true").await.expect(200);
    assert_eq!(listed["items"][0]["path"], "/climate/run7/a.nc");
    assert_eq!(listed["items"][0]["replicas"][0]["site"], "alps");

    // A change at one site is made by the home, and the one who made it sees it at once.
    there.mkdir("/climate/new").await.expect(201);
    there.get("/v1/entries/climate/new").await.expect(200);
    let moved = json!({"from": "/climate/run7", "to": "/climate/run8"});
    there.post("/v1/move", moved).await.expect(200);
    there.get("/v1/entries/climate/run8/a.nc").await.expect(200);
    there.get("/v1/entries/climate/run7").await.expect_problem_at("not_found", "baltic");
    coast.sees(&elsewhere, "/v1/entries/climate/run8/a.nc").await;
    elsewhere.delete("/v1/entries/climate/new").await.expect(204);
    elsewhere.get("/v1/entries/climate/new").await.expect_problem_at("not_found", "coast");

    // Who has no grant sees nothing, at any site.
    let bob = baltic.user("bob").await;
    bob.get("/v1/entries/climate/run8").await.expect_problem_at("not_found", "baltic");
    bob.delete("/v1/entries/climate/run8").await.expect(404);
    // A grant names users as the site does where it is given.
    let grant = json!({"subject": "user:bob", "permission": "read"});
    there.put("/v1/grants/climate/run8", grant).await.expect(200);
    bob.get("/v1/entries/climate/run8/a.nc").await.expect(200);
    alps.user("bob").await.get("/v1/entries/climate/run8/a.nc").await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn content_is_read_at_any_site_and_written_near_its_writer() {
    let [alps, baltic, coast] = three().await;
    shared_space(&alps).await;
    let here = alps.user("alice").await;
    let there = baltic.user("alice").await;
    let large: Vec<u8> = (0..3_500_000_u32).map(|at| (at % 251) as u8).collect();
    here.write("/climate/large", large.clone()).await.expect(201);
    baltic.sees(&there, "/v1/entries/climate/large").await;
    let read = crate::common::bytes(&there, "/v1/data/climate/large").await;
    assert!(read == large, "the bytes of another site");

    there.write("/climate/from-baltic", large.clone()).await.expect(201);
    let entry = there.get("/v1/entries/climate/from-baltic").await.expect(200);
    assert_eq!(entry["replicas"][0]["site"], "baltic");
    let entry = here.get("/v1/entries/climate/from-baltic").await.expect(200);
    assert_eq!(entry["replicas"][0]["site"], "baltic");
    let elsewhere = coast.user("alice").await;
    coast.sees(&elsewhere, "/v1/entries/climate/from-baltic").await;
    for client in [&here, &there, &elsewhere] {
        assert!(crate::common::bytes(client, "/v1/data/climate/from-baltic").await == large);
    }
    // The same path again without a condition is refused, by the home's word.
    there.write("/climate/from-baltic", "x").await.expect_problem_at("precondition_required", "baltic");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_home_reads_go_on_and_writes_can_be_repeated() {
    let [mut alps, baltic, _coast] = three().await;
    shared_space(&alps).await;
    let there = baltic.user("alice").await;
    baltic.sees(&there, "/v1/spaces/climate").await;
    there.write("/climate/a", "one").await.expect(201);
    alps.stop().await;
    there.get("/v1/list/climate").await.expect(200);
    assert_eq!(there.get("/v1/data/climate/a").await.text, "one");
    let refused = there.write("/climate/b", "two").await;
    assert_eq!(refused.json()["code"], "site_unavailable", "{}", refused.text);
    assert_eq!(refused.json()["retryable"], true);
    there.mkdir("/climate/c").await.expect_problem_at("site_unavailable", "baltic");
    alps.resume().await;
    eventually("baltic writes again", || async {
        (there.write("/climate/b", "two").await.status.as_u16() == 201).then_some(())
    })
    .await;
    assert_eq!(there.get("/v1/data/climate/b").await.text, "two");
}
