//! Connections that fall silent while others go on.

use std::time::Duration;

use percale_testkit::link::{Link, Way};
use serde_json::json;

use crate::cuts::space;
use crate::fabric::Site;
use crate::tasks::{assert_ended, ended, good_at, large, submit};

/// A site at which nothing is taken for dead as long as a test waits for it.
async fn patient(name: &'static str, urls: Vec<String>) -> Site {
    Site::with(name, |config| {
        config.federation.outgoing_only = urls.is_empty();
        config.federation.urls = urls;
        config.federation.stall_timeout = Duration::from_secs(300);
    })
    .await
}

/// Replicates a collection over a link on which one connection falls silent after so many bytes.
async fn replicated_with_one_silent(objects: usize, bytes: usize, after: usize) {
    let link = Link::start().await;
    let (alps, baltic) = tokio::join!(patient("alps", vec![link.url()]), patient("baltic", Vec::new()));
    link.lead_to(alps.running.as_ref().unwrap().address());
    space(&alps, "climate", &["baltic"]).await;
    let (here, whole) = (alps.user("alice").await, large(bytes));
    for number in 0..objects {
        here.write(&format!("/climate/run7/{number:02}"), whole.clone()).await.expect(201);
    }
    baltic.join(&alps.invite().await).await;
    let there = baltic.user("alice").await;
    baltic.sees(&there, "/v1/entries/climate/run7/00").await;
    // Slow enough for the connection to fall silent before all is sent.
    link.limit(20_000_000);
    link.silence_one_after(Way::Back, after);
    let task = json!({"kind": "replicate", "path": "/climate/run7", "to": "baltic"});
    let id = submit(&there, task).await;
    let task = ended(&there, &id).await;
    assert!(!link.is_to_be_silenced());
    assert_ended(&task, "succeeded", objects as u64, 0);
    good_at(&there, "/climate/run7", &["alps", "baltic"]).await;
    let metrics = baltic.admin.get("/metrics").await.text;
    assert!(metrics.contains("percale_late_streams_total"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn small_objects_do_not_wait_for_a_connection_that_fell_silent() {
    replicated_with_one_silent(60, 400_000, 12_000_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_object_does_not_wait_for_a_connection_that_fell_silent() {
    replicated_with_one_silent(1, 30_000_000, 15_000_000).await;
}
