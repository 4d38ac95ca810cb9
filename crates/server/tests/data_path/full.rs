//! A full disk is an error that helps, not damage: nothing half-written is seen, and all goes on once there is room.

use std::time::Duration;

use percale_testkit::tmpfs::SmallFileSystem;
use percale_testkit::wait;
use reqwest::{Method, StatusCode};

use crate::site::{TestSite, content, expect, expect_problem};

const MIB: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_refuses_and_recovers() {
    let Some(disk) = SmallFileSystem::mount(32 << 20) else { return };
    let root = disk.path().join("store");
    let site = TestSite::start_with("managed", Some(&root), |_| {}).await;
    site.put_new("/demo/before", content(1, MIB)).await;
    let filler = disk.fill_up(2 << 20);
    for (path, size) in [("streamed", 8 * MIB), ("announced", 20 * MIB)] {
        let request = site.request(Method::PUT, &format!("/v1/data/demo/{path}")).body(content(2, size));
        expect_problem(request, "no_space").await;
        assert!(!site.is_there(&format!("/demo/{path}")).await);
    }
    // Small ones, until there is no room for one more.
    let mut acknowledged = 0;
    loop {
        let response = site.put(&format!("/demo/small-{acknowledged}"), content(acknowledged, 200_000)).await;
        match response.status() {
            StatusCode::CREATED => acknowledged += 1,
            StatusCode::INSUFFICIENT_STORAGE => break,
            other => panic!("{other}: {}", response.text().await.unwrap()),
        }
        assert!(acknowledged < 100, "the disk never fills up");
    }
    for number in 0..acknowledged {
        assert_eq!(site.read(&format!("/demo/small-{number}")).await, content(number, 200_000));
    }
    assert_eq!(site.read("/demo/before").await, content(1, MIB));
    wait::until_async("staged bytes to be removed", Duration::from_secs(20), async || {
        site.staged().is_empty().then_some(())
    })
    .await;
    std::fs::remove_file(filler).unwrap();
    site.put_new("/demo/after", content(3, 8 * MIB)).await;
    assert_eq!(site.read("/demo/after").await, content(3, 8 * MIB));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_under_the_catalog_refuses_and_recovers() {
    let Some(disk) = SmallFileSystem::mount(32 << 20) else { return };
    let state = disk.path().join("state");
    let site = TestSite::start_with("managed", None, |config| config.site.state_dir = state).await;
    site.put_new("/demo/before", "before").await;
    let filler = disk.fill_up(0);
    let mut acknowledged = Vec::new();
    let mut refused = 0;
    for number in 0..2000 {
        let path = format!("/demo/{number:04}-{}", "x".repeat(200));
        match site.put(&path, "x").await.status() {
            StatusCode::CREATED => acknowledged.push(path),
            StatusCode::INSUFFICIENT_STORAGE | StatusCode::SERVICE_UNAVAILABLE => refused += 1,
            other => panic!("{other}"),
        }
        if refused > 3 {
            break;
        }
    }
    assert!(refused > 0, "the catalog's disk never filled up");
    std::fs::remove_file(filler).unwrap();
    wait::until_async("writes to be taken again", Duration::from_secs(60), async || {
        (site.put("/demo/after", "after").await.status() == StatusCode::CREATED).then_some(())
    })
    .await;
    for path in acknowledged {
        assert_eq!(site.read(&path).await, b"x");
    }
    expect(site.request(Method::GET, "/v1/data/demo/before"), StatusCode::OK).await;
}
