//! Spaces get other homes.

use serde_json::json;

use crate::common::eventually;
use crate::fabric::three;
use crate::namespace::shared_space;

#[tokio::test(flavor = "multi_thread")]
async fn a_space_moves_to_another_home_and_nothing_is_lost() {
    let [alps, baltic, coast] = three().await;
    shared_space(&alps).await;
    let (here, there) = (alps.user("alice").await, baltic.user("alice").await);
    baltic.sees(&there, "/v1/spaces/climate").await;
    here.write("/climate/a", "one").await.expect(201);
    there.post("/v1/spaces/climate/home", json!({"site": "baltic"})).await.expect(403);
    baltic
        .admin
        .post("/v1/spaces/climate/home", json!({"site": "coast"}))
        .await
        .expect_problem_at("not_home", "baltic");
    let moved = alps.admin.post("/v1/spaces/climate/home", json!({"site": "baltic"})).await.expect(200);
    assert_eq!((moved["home"].as_str(), moved["lost"].as_u64()), (Some("baltic"), Some(0)));
    assert_eq!(there.get("/v1/spaces/climate").await.expect(200)["home"], "baltic");
    for site in [&alps, &coast] {
        let alice = site.user("alice").await;
        eventually(&format!("{} follows the new home", site.name), || async {
            let space = alice.get("/v1/spaces/climate").await.json();
            (space["home"] == "baltic").then_some(())
        })
        .await;
        eventually(&format!("{} changes the space", site.name), || async {
            let made = alice.mkdir(&format!("/climate/{}", site.name)).await;
            made.status.is_success().then_some(())
        })
        .await;
        assert_eq!(alice.get("/v1/data/climate/a").await.text, "one");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_takes_the_place_of_a_lost_home_which_follows_when_it_returns() {
    let [mut alps, baltic, coast] = three().await;
    shared_space(&alps).await;
    let (here, there) = (alps.user("alice").await, baltic.user("alice").await);
    baltic.sees(&there, "/v1/spaces/climate").await;
    here.mkdir("/climate/before").await.expect(201);
    baltic.sees(&there, "/v1/entries/climate/before").await;
    alps.admin.post("/v1/spaces/climate/promote", json!({})).await.expect_problem("already_exists");
    alps.stop().await;
    let made = baltic.admin.post("/v1/spaces/climate/promote", json!({})).await.expect(200);
    assert_eq!(made["home"], "baltic");
    there.write("/climate/after", "two").await.expect(201);
    let elsewhere = coast.user("alice").await;
    coast.sees(&elsewhere, "/v1/entries/climate/after").await;

    alps.resume().await;
    let here = alps.user("alice").await;
    eventually("alps follows", || async {
        let space = here.get("/v1/spaces/climate").await.json();
        (space["home"] == "baltic").then_some(())
    })
    .await;
    alps.sees(&here, "/v1/entries/climate/after").await;
    here.get("/v1/entries/climate/before").await.expect(200);
    assert_eq!(here.get("/v1/data/climate/after").await.text, "two");
    eventually("alps changes the space at its new home", || async {
        here.mkdir("/climate/again").await.status.is_success().then_some(())
    })
    .await;
    let aside = std::fs::read_dir(alps.config.site.state_dir.as_path()).unwrap();
    let aside = aside
        .filter(|file| file.as_ref().unwrap().file_name().to_string_lossy().starts_with("set-aside-climate"));
    assert_eq!(aside.count(), 1, "what gave way is set aside");
}
