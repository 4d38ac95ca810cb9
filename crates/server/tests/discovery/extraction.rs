//! Headers that are read while a store does not answer, and by another server of the site.

use std::sync::Arc;
use std::time::{Duration, Instant};

use percale_catalog::Header;
use percale_core::AttributeValue;
use percale_discovery::EXTRACTOR;
use percale_server::app::system_caller;
use percale_server::config::ExtractionConfig;
use percale_store::wrappers::{Chaos, ChaosPolicy};
use serde_json::json;

use crate::common::{Client, Server, config, eventually, read_headers};

async fn server(workers: usize) -> Server {
    server_with(workers, |_| {}).await
}

async fn server_with(workers: usize, change: impl FnOnce(&mut ExtractionConfig)) -> Server {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(&directory);
    read_headers(&mut config, directory.path(), workers);
    change(&mut config.extraction);
    Server::with(directory, config).await
}

async fn attributes(admin: &Client, path: &str) -> String {
    admin.get(&format!("/v1/attributes{path}")).await.expect(200).to_string()
}

async fn is_read(admin: &Client, path: &str) -> Option<()> {
    attributes(admin, path).await.contains("title").then_some(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_holds_up_no_other_space_and_its_objects_are_read_once_it_is_back() {
    let again = Duration::from_secs(1);
    let server = server_with(1, |config| config.again = again).await;
    let admin = &server.admin;
    for store in ["dead", "live"] {
        server.add_store(store).await;
        let space = json!({"name": store, "store": store, "extraction": "off"});
        admin.post("/v1/spaces", space).await.expect(201);
    }
    for n in 0..60 {
        admin.write(&format!("/dead/{n}.json"), b"bytes".to_vec()).await.expect(201);
    }
    let app = server.running.app();
    let stores = app.catalog.stores().await.unwrap();
    let dead = stores.into_iter().find(|store| store.name.as_str() == "dead").unwrap().id;
    let mut switch = None;
    app.stores.wrap(dead, |store| {
        // Each read takes its time before it fails.
        let policy =
            ChaosPolicy { errors: 1.0, stalls: 1.0, stall: Duration::from_secs(3), ..ChaosPolicy::default() };
        let (chaos, healer) = Chaos::new(store, policy);
        switch = Some(healer);
        Arc::new(chaos)
    });
    for space in ["dead", "live"] {
        admin.patch(&format!("/v1/spaces/{space}"), json!({"extraction": "async"})).await.expect(200);
    }
    // Long before all of the dead store have failed, one after the other.
    for n in 0..3 {
        let path = format!("/live/{n}.json");
        admin.write(&path, b"bytes".to_vec()).await.expect(201);
        eventually("the other space is read", || is_read(admin, &path)).await;
    }
    let is_left = async |path: &str| {
        let said = attributes(admin, path).await;
        (said.contains("extraction.unread") && said.contains("tried again")).then_some(())
    };
    eventually("what is away says so", || is_left("/dead/59.json")).await;
    assert!(is_left("/dead/0.json").await.is_some());
    // It stays so as long as the store does.
    tokio::time::sleep(2 * again).await;
    assert!(is_left("/dead/0.json").await.is_some());
    switch.unwrap().heal();
    for path in ["/dead/0.json", "/dead/59.json"] {
        eventually("what was away is read", || is_read(admin, path)).await;
        let said = attributes(admin, path).await;
        assert!(!said.contains("extraction."), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_before_its_store_went_away_is_still_said() {
    let server = server_with(1, |config| config.again = Duration::from_millis(200)).await;
    let admin = &server.admin;
    server.add_store("disk").await;
    admin.post("/v1/spaces", json!({"name": "s", "extraction": "async"})).await.expect(201);
    admin.write("/s/a.json", b"bytes".to_vec()).await.expect(201);
    eventually("it is read", || is_read(admin, "/s/a.json")).await;
    let app = server.running.app();
    let store = app.catalog.stores().await.unwrap().remove(0).id;
    let mut switch = None;
    app.stores.wrap(store, |store| {
        let (chaos, healer) = Chaos::new(store, ChaosPolicy { errors: 1.0, ..ChaosPolicy::default() });
        switch = Some(healer);
        Arc::new(chaos)
    });
    // Its format may be another one by its new name.
    admin.post("/v1/move", json!({"from": "/s/a.json", "to": "/s/b.json"})).await.expect(200);
    let said = async || attributes(admin, "/s/b.json").await;
    let is_left = async || said().await.contains("extraction.unread").then_some(());
    eventually("it cannot be read again", is_left).await;
    assert!(said().await.contains("title"));
    switch.unwrap().heal();
    let is_read = async || (!said().await.contains("extraction.")).then_some(());
    eventually("it is read again", is_read).await;
    assert!(said().await.contains("title"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sync_write_waits_for_the_server_that_reads() {
    let server = server(0).await;
    server.add_store("disk").await;
    server.admin.post("/v1/spaces", json!({"name": "s", "extraction": "sync"})).await.expect(201);
    let app = server.running.app().clone();
    let name = "s".parse().unwrap();
    let space = app.catalog.space(&system_caller(), &name).await.unwrap().id;
    // The other server.
    let other = tokio::spawn(async move {
        loop {
            let due = app.catalog.to_extract(space, EXTRACTOR, 100).await.unwrap();
            let header = |version: percale_catalog::Described| Header {
                entry: version.object.entry,
                version: version.object.version,
                as_of: version.as_of,
                found: vec![("title".parse().unwrap(), vec![AttributeValue::Text("found".into())])],
                is_partial: false,
            };
            let headers = due.due.into_iter().map(header).collect();
            app.catalog.extracted(space, Some(due.place), headers).await.unwrap();
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    });
    for n in 0..3 {
        let (path, began) = (format!("/s/{n}.bin"), Instant::now());
        server.admin.write(&path, b"bytes".to_vec()).await.expect(201);
        assert!(is_read(&server.admin, &path).await.is_some(), "{path} after {:?}", began.elapsed());
    }
    other.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_wait_while_objects_are_fetched() {
    let server = server_with(1, |config| {
        config.delay = Duration::from_secs(2);
        config.at_latest = Duration::from_secs(3600);
    })
    .await;
    let admin = &server.admin;
    server.add_store("disk").await;
    admin.post("/v1/spaces", json!({"name": "s", "extraction": "async"})).await.expect(201);
    admin.write("/s/x.json", b"{}".to_vec()).await.expect(201);
    let began = Instant::now();
    // Looked for every two seconds, and read at the second look at which nothing has changed.
    while began.elapsed() < Duration::from_secs(7) {
        admin.post("/v1/frames/pull", json!({"items": [{"path": "/s/x.json"}]})).await.expect(200);
        assert!(is_read(admin, "/s/x.json").await.is_none(), "after {:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eventually("it is read once they rest", || is_read(admin, "/s/x.json")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_goes_on_writing_has_headers_read_once_enough_wait() {
    const NEVER: (Duration, u64, u64) = (Duration::from_secs(3600), u64::MAX, u64::MAX);
    for enough in
        [(Duration::from_secs(1), NEVER.1, NEVER.2), (NEVER.0, 50, NEVER.2), (NEVER.0, NEVER.1, 50_000)]
    {
        let server = server_with(1, |config| {
            // Within which every writer writes something.
            config.delay = Duration::from_millis(300);
            (config.at_latest, config.at_count, config.at_bytes) = enough;
        })
        .await;
        server.add_store("disk").await;
        server.admin.post("/v1/spaces", json!({"name": "s", "extraction": "async"})).await.expect(201);
        let write = async |n: u64| {
            server.admin.write(&format!("/s/{n}.json"), vec![b' '; 1000]).await.expect(201);
        };
        write(0).await;
        eventually("what came before is read", || is_read(&server.admin, "/s/0.json")).await;
        write(1).await;
        let write = async {
            for n in 2.. {
                write(n).await;
            }
        };
        tokio::select! {
            () = write => {}
            () = eventually("the first is read", || is_read(&server.admin, "/s/1.json")) => {}
        }
    }
}
