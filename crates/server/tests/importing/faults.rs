//! Who may, and what cannot be imported.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::common::Server;
use crate::{Site, ended};

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_registered_is_named_and_the_rest_is_done() {
    let site = Site::start().await;
    site.write("run/good", b"good");
    site.write("other/inside", b"inside");
    std::fs::write(site.server.directory.path().join("outside"), "secret").unwrap();
    std::fs::write(site.raw.join("run").join(std::ffi::OsStr::from_bytes(b"bad\xff")), b"x").unwrap();
    symlink("../other/inside", site.raw.join("run/link")).unwrap();
    symlink(site.server.directory.path().join("outside"), site.raw.join("run/escape")).unwrap();
    symlink("../../outside", site.raw.join("run/escape-too")).unwrap();
    symlink("../other", site.raw.join("run/to-collection")).unwrap();
    symlink("nothing", site.raw.join("run/dangling")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, site.raw.join("run/pipe"), rustix::fs::Mode::RUSR).unwrap();
    let done = site.import(json!({"hash": "now"})).await;
    assert_eq!(done["state"], "partial", "{done}");
    assert_eq!(done["progress"]["counts"], json!({"registered": 2}));
    assert_eq!(site.tree().await, ["/s/run/good", "/s/run/link"]);
    assert_eq!(site.admin().get("/v1/data/s/run/link").await.text, "inside");
    let mut items = site.items(&done).await;
    items.sort();
    let codes: Vec<_> =
        items.iter().map(|(path, code, _)| (path.rsplit('/').next().unwrap(), code.as_str())).collect();
    let expected = [
        ("bad\u{fffd}", "invalid_path"),
        ("dangling", "unsupported"),
        ("escape", "unsupported"),
        ("escape-too", "unsupported"),
        ("pipe", "unsupported"),
        ("to-collection", "unsupported"),
    ];
    assert_eq!(codes, expected, "{items:?}");
    assert!(items[0].2.contains("EILSEQ"), "{items:?}");
    assert!(
        items[0].0.starts_with(site.raw.join("run").to_str().unwrap()),
        "as the site names it: {items:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_while_it_is_hashed_is_named() {
    let site = Site::start().await;
    site.write("run/busy", &vec![1; 32 << 20]);
    site.write("run/calm", b"calm");
    let stop = Arc::new(AtomicBool::new(false));
    let (path, stopped) = (site.raw.join("run/busy"), stop.clone());
    let writer = std::thread::spawn(move || {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        let mut n = 0u8;
        while !stopped.load(Ordering::Relaxed) {
            n = n.wrapping_add(1);
            std::os::unix::fs::FileExt::write_at(&file, &[n], 5).unwrap();
        }
    });
    let done = site.import(json!({"hash": "now"})).await;
    let items = site.items(&done).await;
    assert_eq!(done["progress"]["counts"], json!({"registered": 1}), "{items:?}");
    assert!(matches!(items.as_slice(), [(_, code, _)] if code == "version_changed"), "{items:?}");
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    let done = site.import(json!({"hash": "now"})).await;
    assert_eq!(done["progress"]["counts"], json!({"registered": 1, "unchanged": 1}));
    assert_eq!(site.state("/s/run/busy").await, "good");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_administrators_import_and_only_from_native_stores() {
    let site = Site::start().await;
    site.write("run/x", b"x");
    let order = |source: &str, to: &str| json!({"kind": "import", "source": source, "to": to});
    let run = site.raw.join("run");
    let run = run.to_str().unwrap();
    let alice = site.server.user("alice").await;
    alice.post("/v1/tasks", order(run, "/s/run")).await.expect_problem("forbidden");
    let admin = site.admin();
    admin.post("/v1/tasks", order("/nowhere/at/all", "/s/run")).await.expect_problem("not_found");
    admin.post("/v1/tasks", order("run", "/s/run")).await.expect_problem("invalid_request");
    admin
        .post("/v1/tasks", order(&format!("{run}/../../disk"), "/s/run"))
        .await
        .expect_problem("invalid_request");
    let managed = site.server.directory.path().join("disk");
    admin.post("/v1/tasks", order(managed.to_str().unwrap(), "/s/run")).await.expect_problem("unsupported");
    admin.post("/v1/tasks", order(run, "/")).await.expect_problem("invalid_request");
    let mut elsewhere = order(run, "/s/run");
    elsewhere["at"] = json!("baltic");
    admin.post("/v1/tasks", elsewhere).await.expect_problem("not_found");
    for (source, code) in [(format!("{run}/none"), "not_found"), (format!("{run}/x"), "not_a_collection")] {
        let task = admin.post("/v1/tasks", order(&source, "/s/run")).await.expect(201);
        let done = ended(admin, &task).await;
        assert_eq!((&done["state"], &done["problem"]["code"]), (&json!("failed"), &json!(code)), "{done}");
    }
    admin.post("/v1/tasks", order(run, "/none/run")).await.expect_problem("not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_imports_at_once_register_everything_once() {
    let site = Site::start().await;
    for n in 0..3000 {
        site.write(&format!("run/{n:04}"), b"");
    }
    let (left, right) =
        tokio::join!(site.submit(json!({"hash": "never"})), site.submit(json!({"hash": "never"})));
    let (left, right) = (ended(site.admin(), &left).await, ended(site.admin(), &right).await);
    assert_eq!(
        (&left["state"], &right["state"]),
        (&json!("succeeded"), &json!("succeeded")),
        "{left} {right}"
    );
    let registered =
        |task: &serde_json::Value| task["progress"]["counts"]["registered"].as_u64().unwrap_or_default();
    assert_eq!(registered(&left) + registered(&right), 3000);
    assert_eq!(site.tree().await.len(), 3000);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_goes_on_where_its_server_stopped() {
    let site = Site::start().await;
    for n in 0..30_000 {
        site.write(&format!("run/{:02}/{n:05}", n / 1000), b"");
    }
    let task = site.submit(json!({"hash": "never"})).await;
    let address = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
    crate::common::eventually("some files are registered", || async {
        let page = site.admin().get("/v1/list/s/run").await;
        (page.status.as_u16() == 200).then_some(())
    })
    .await;
    let Site { server, raw } = site;
    let Server { running, directory, .. } = server;
    let config = running.app().config.clone();
    running.shutdown().await;
    let server = Server::with(directory, (*config).clone()).await;
    let site = Site { server, raw };
    let task = site.admin().get(&address).await.expect(200);
    let done = ended(site.admin(), &task).await;
    assert_eq!(
        (&done["state"], &done["progress"]["items_failed"]),
        (&json!("succeeded"), &json!(0)),
        "{done}"
    );
    assert_eq!(done["progress"]["items_done"], 30_000, "{done}");
    assert_eq!(site.counts().await, json!({"unchanged": 30_000}));
}
