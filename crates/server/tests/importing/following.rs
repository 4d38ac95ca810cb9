//! Imports that are done again and again.

use serde_json::json;

use crate::Site;
use crate::common::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_at_the_site_appears_by_itself() {
    let site = Site::start().await;
    site.write("run/a", b"a");
    let task = site.submit(json!({"hash": "never", "follow_s": 5})).await;
    let address = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
    eventually("the first pass", || async {
        let entry = site.admin().get("/v1/entries/s/run/a").await;
        (entry.status.as_u16() == 200).then_some(())
    })
    .await;
    site.write("run/b", b"b");
    std::fs::remove_file(site.raw.join("run/a")).unwrap();
    eventually("the next pass", || async {
        let entry = site.admin().get("/v1/entries/s/run/b").await;
        (entry.status.as_u16() == 200).then_some(())
    })
    .await;
    assert_eq!(site.state("/s/run/a").await, "lost");
    eventually("the wait for another pass", || async {
        let task = site.admin().get(&address).await.expect(200);
        (task["state"] == "queued" && task["progress"]["counts"]["registered"] == 1).then_some(())
    })
    .await;
    site.admin().post(&format!("{address}/cancel"), json!({})).await.expect(200);
    let refused = json!({"kind": "import", "source": site.raw.join("run"), "to": "/s/run", "follow_s": 1});
    site.admin().post("/v1/tasks", refused).await.expect_problem("invalid_request");
}
