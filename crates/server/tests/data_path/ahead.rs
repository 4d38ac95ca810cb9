//! A client that asks for the bytes of an object before it knows what is there.

use std::time::Duration;

use percale_client::get::GetOptions;
use percale_client::{Client, ClientOptions};
use percale_core::ObjectPath;
use percale_testkit::link::{Link, Way};
use reqwest::Method;

use crate::site::{TestSite, content};

const GROUP: usize = percale_core::tree::GROUP_SIZE as usize;

const STREAMS: usize = 5;

pub(crate) fn client(site: &TestSite) -> Client {
    let mut options = ClientOptions::new(site.url(""));
    options.token = Some(site.token().to_owned().into());
    options.streams = Some(STREAMS);
    Client::new(options).unwrap()
}

/// How many times frames were asked for.
pub(crate) async fn pulls(site: &TestSite) -> usize {
    let metrics = site.get("/metrics").await.text().await.unwrap();
    let line = metrics.lines().find(|line| line.contains("_count{") && line.contains("/v1/frames/pull"));
    line.map_or(0, |line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_comes_as_it_was_asked_for_before_it_was_looked_at() {
    let site = TestSite::start().await;
    let client = client(&site);
    let folder = tempfile::tempdir().unwrap();
    let mut asked = 0;
    for groups in [3, 5, 6, 70] {
        let bytes = content(groups, groups as usize * GROUP - 9);
        let path: ObjectPath = format!("/demo/{groups}").parse().unwrap();
        site.put_new(path.as_str(), bytes.clone()).await;
        let local = folder.path().join(groups.to_string());
        let ahead = client.ask_ahead(&path, &local);
        assert!(ahead.is_some());
        let entry = client.resolve(&path).await.unwrap();
        let report = client.get_found(entry, ahead, &local, &GetOptions::default()).await.unwrap();
        assert_eq!((report.done, report.failed), (1, 0), "{report:?}");
        assert!(std::fs::read(&local).unwrap() == bytes);
        assert!(client.ask_ahead(&path, &local).is_none(), "a file is there");
        asked += STREAMS;
        assert_eq!(pulls(&site).await, asked, "nothing was asked for again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_something_else_is_got_as_if_nobody_had_asked_ahead() {
    let site = TestSite::start().await;
    let client = client(&site);
    let folder = tempfile::tempdir().unwrap();
    let bytes = content(1, 9 * GROUP);
    let get = async |path: &str, ask: &str| {
        let (path, ask) = (path.parse().unwrap(), ask.parse().unwrap());
        let local = folder.path().join("got");
        let ahead = client.ask_ahead(&ask, &local);
        let entry = client.resolve(&path).await.unwrap();
        let report = client.get_found(entry, ahead, &local, &GetOptions::default()).await.unwrap();
        assert_eq!((report.done, report.failed), (1, 0), "{report:?}");
        let got = std::fs::read(&local).unwrap();
        std::fs::remove_file(&local).unwrap();
        got
    };
    site.put_new("/demo/a", bytes.clone()).await;
    site.put_new("/demo/b", content(2, 9 * GROUP)).await;
    site.put_new("/demo/small", "small").await;
    site.put_new("/demo/empty", "").await;
    // Of another object, of none, and of one that is no file of several groups.
    for ask in ["/demo/b", "/demo/nothing", "/nowhere", "/demo"] {
        assert!(get("/demo/a", ask).await == bytes, "{ask}");
    }
    assert_eq!(get("/demo/small", "/demo/small").await, b"small");
    assert_eq!(get("/demo/empty", "/demo/empty").await, b"");

    // Of an earlier version.
    let (path, local) = ("/demo/a".parse().unwrap(), folder.path().join("got"));
    let ahead = client.ask_ahead(&path, &local);
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let new = content(3, 9 * GROUP);
    let put = site.request(Method::PUT, "/v1/data/demo/a").header("if-match", "*").body(new.clone());
    assert!(put.send().await.unwrap().status().is_success());
    let entry = client.resolve(&path).await.unwrap();
    client.get_found(entry, ahead, &local, &GetOptions::default()).await.unwrap();
    assert!(std::fs::read(&local).unwrap() == new);
    // Nor is one asked for of which a part is here.
    std::fs::remove_file(&local).unwrap();
    std::fs::write(folder.path().join(".got.percale-part"), "x").unwrap();
    assert!(client.ask_ahead(&path, &local).is_none());
}

/// What is behind the last byte says only that the stream is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_get_does_not_wait_for_the_end_of_a_stream_that_brought_all() {
    let site = TestSite::start().await;
    let bytes = content(1, 12 * GROUP + 5);
    site.put_new("/demo/a", bytes.clone()).await;
    let path = "/demo/a".parse().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut silent_after = None;
    for name in ["all", "silent"] {
        let link = Link::start().await;
        link.lead_to(site.running().address());
        if let Some(bytes) = silent_after {
            link.silence_one_after(Way::Back, bytes);
        }
        let mut options = ClientOptions::new(link.url().replace("https", "http"));
        options.token = Some(site.token().to_owned().into());
        options.stall_timeout = Duration::from_secs(300);
        options.streams = Some(1);
        let client = Client::new(options).unwrap();
        let local = folder.path().join(name);
        let options = GetOptions::default();
        let got = client.get_file(&path, &local, &options);
        let report = tokio::time::timeout(Duration::from_secs(60), got).await.expect("it waits").unwrap();
        assert_eq!((report.done, report.failed), (1, 0), "{report:?}");
        assert!(!link.is_to_be_silenced() && std::fs::read(&local).unwrap() == bytes);
        // The end of the body is 5 bytes, that of the frames 20.
        silent_after = Some(link.passed(Way::Back) - 10);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_get_does_not_wait_for_a_connection_that_fell_silent() {
    let site = TestSite::start().await;
    let bytes = content(1, 30 * GROUP + 5);
    site.put_new("/demo/a", bytes.clone()).await;
    let path = "/demo/a".parse().unwrap();
    for is_ahead in [true, false] {
        let link = Link::start().await;
        link.lead_to(site.running().address());
        link.limit(20_000_000);
        link.silence_one_after(Way::Back, 15_000_000);
        let mut options = ClientOptions::new(link.url().replace("https", "http"));
        options.token = Some(site.token().to_owned().into());
        options.stall_timeout = Duration::from_secs(300);
        let client = Client::new(options).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let local = folder.path().join("got");
        let ahead = if is_ahead { client.ask_ahead(&path, &local) } else { None };
        assert_eq!(ahead.is_some(), is_ahead);
        let entry = client.resolve(&path).await.unwrap();
        let options = GetOptions::default();
        let got = client.get_found(entry, ahead, &local, &options);
        let report = tokio::time::timeout(Duration::from_secs(60), got).await.expect("it waits").unwrap();
        assert_eq!((report.done, report.failed), (1, 0), "{report:?}");
        assert!(!link.is_to_be_silenced() && std::fs::read(&local).unwrap() == bytes);
    }
}
