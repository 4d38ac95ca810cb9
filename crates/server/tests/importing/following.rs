//! Imports that are done again and again.

use serde_json::json;

use crate::Site;
use crate::common::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_tells_of_is_found_when_the_time_comes() {
    let site = Site::start().await;
    site.write("run/a", b"a");
    let task = site.submit(json!({"hash": "never", "follow_s": 5})).await;
    let address = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
    let version = async || {
        let entry = site.admin().get("/v1/entries/s/run/a").await.json();
        entry["content"]["version"].as_u64()
    };
    let first = eventually("the first pass", version).await;
    // The kernel tells of writes; this is none.
    let file = std::fs::File::open(site.raw.join("run/a")).unwrap();
    file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(60)).unwrap();
    eventually("the next pass", || async { (version().await != Some(first)).then_some(()) }).await;
    eventually("the wait for another pass", || async {
        let task = site.admin().get(&address).await.expect(200);
        (task["state"] == "queued").then_some(())
    })
    .await;
    site.admin().post(&format!("{address}/cancel"), json!({})).await.expect(200);
    let refused = json!({"kind": "import", "source": site.raw.join("run"), "to": "/s/run", "follow_s": 1});
    site.admin().post("/v1/tasks", refused).await.expect_problem("invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_on_this_host_need_not_wait_for_the_next_pass() {
    let site = Site::start().await;
    site.write("run/in/a", b"a");
    let task = site.submit(json!({"hash": "never", "follow_s": 3600})).await;
    let address = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
    for (n, what) in ["run/b", "run/in/c", "run/new/deep/d"].into_iter().enumerate() {
        eventually("the wait for another pass", || async {
            let task = site.admin().get(&address).await.expect(200);
            (task["state"] == "queued" && task["progress"]["items_done"] == n as u64 + 1).then_some(())
        })
        .await;
        site.write(what, what.as_bytes());
        eventually("the next pass", || async {
            let entry = site.admin().get(&format!("/v1/entries/s/{what}")).await;
            (entry.status.as_u16() == 200).then_some(())
        })
        .await;
    }
    std::fs::remove_file(site.raw.join("run/in/a")).unwrap();
    eventually("the loss", || async { (site.state("/s/run/in/a").await == "lost").then_some(()) }).await;
}
