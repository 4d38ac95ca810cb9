//! A site that keeps its copies in a bucket.

use percale_testkit::s3::{ACCESS_KEY_ID, BUCKET, S3Server, SECRET_ACCESS_KEY};
use serde_json::json;

use crate::common::bytes;
use crate::fabric::Site;
use crate::tasks::{assert_ended, content, copies, good_at, large, run, with_space, write_small};

/// Alice's space, and coast, which keeps what is new in a bucket.
async fn with_bucket() -> Option<([Site; 3], S3Server)> {
    let server = S3Server::start()?;
    let sites = with_space().await;
    let secret = json!({"access_key_id": ACCESS_KEY_ID, "secret_access_key": SECRET_ACCESS_KEY});
    let config = json!({"bucket": BUCKET, "endpoint": server.endpoint()});
    let store = json!({"name": "cloud", "connector": "s3", "config": config, "secret": secret});
    sites[2].admin.post("/v1/stores", store).await.expect(201);
    sites[2].admin.patch("/v1/stores/disk", json!({"state": "draining"})).await.expect(200);
    Some((sites, server))
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_come_into_a_bucket_and_out_of_it() {
    let Some(([alps, _baltic, coast], server)) = with_bucket().await else { return };
    let (here, elsewhere) = (alps.user("alice").await, coast.user("alice").await);
    write_small(&here, "run7", 40).await;
    // Several parts of an upload, and several pieces on their way at once.
    let whole = large(45_300_017);
    here.write("/climate/run7/large", whole.clone()).await.expect(201);
    coast.sees(&elsewhere, "/v1/entries/climate/run7/large").await;
    let replicate = json!({"kind": "replicate", "path": "/climate/run7", "to": "coast"});
    let task = run(&elsewhere, replicate).await;
    assert_ended(&task, "succeeded", 41, 0);
    good_at(&here, "/climate/run7", &["alps", "coast"]).await;
    let streams = task["activity"]["streams_reason"].as_str().unwrap();
    assert!(streams.starts_with("4 streams: "), "{task}");
    assert!(bytes(&elsewhere, "/v1/data/climate/run7/large").await == whole);
    let range = elsewhere.request(reqwest::Method::GET, "/v1/data/climate/run7/large");
    let range = range.header("range", "bytes=30000000-30000009").send().await.unwrap();
    assert!(range.bytes().await.unwrap() == whole[30_000_000..30_000_010]);
    assert_ended(
        &run(&elsewhere, json!({"kind": "verify", "path": "/climate/run7"})).await,
        "succeeded",
        82,
        0,
    );

    // The bucket has the only copies, and others read them.
    let task = run(&here, json!({"kind": "evict", "path": "/climate/run7", "from": "alps"})).await;
    assert_ended(&task, "succeeded", 41, 0);
    assert!(bytes(&here, "/v1/data/climate/run7/large").await == whole);
    assert!(bytes(&here, "/v1/data/climate/run7/0007").await == content(7));
    let copy = json!({"kind": "copy", "from": "/climate/run7", "to": "/climate/near", "at": "coast"});
    assert_ended(&run(&elsewhere, copy).await, "succeeded", 41, 0);
    let copy = json!({"kind": "copy", "from": "/climate/run7", "to": "/climate/back", "at": "alps"});
    assert_ended(&run(&here, copy).await, "succeeded", 41, 0);
    good_at(&here, "/climate/near", &["coast"]).await;
    good_at(&here, "/climate/back", &["alps"]).await;
    assert!(bytes(&here, "/v1/data/climate/near/large").await == whole);
    assert!(bytes(&here, "/v1/data/climate/back/large").await == whole);

    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_is_away_costs_nothing_that_lies_elsewhere() {
    let Some(([alps, _baltic, coast], mut server)) = with_bucket().await else { return };
    let (here, elsewhere) = (alps.user("alice").await, coast.user("alice").await);
    write_small(&here, "run7", 3).await;
    let whole = large(2_300_000);
    here.write("/climate/run7/large", whole.clone()).await.expect(201);
    coast.sees(&elsewhere, "/v1/entries/climate/run7/large").await;
    run(&elsewhere, json!({"kind": "replicate", "path": "/climate/run7", "to": "coast"})).await;
    good_at(&elsewhere, "/climate/run7", &["alps", "coast"]).await;
    server.stop();
    assert!(bytes(&elsewhere, "/v1/data/climate/run7/0001").await == content(1));
    assert!(bytes(&elsewhere, "/v1/data/climate/run7/large").await == whole);
    // A bucket that does not answer is no proof of damage.
    assert_eq!(copies(&elsewhere, "/climate/run7", "good").await.len(), 4);
    good_at(&elsewhere, "/climate/run7", &["alps", "coast"]).await;
    elsewhere.write("/climate/new", "new").await.expect_problem_at("store_unavailable", "coast");
    here.get("/v1/entries/climate/new").await.expect(404);
}
