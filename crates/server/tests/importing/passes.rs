//! What one pass does, and the next.

use std::time::{Duration, SystemTime};

use serde_json::json;

use crate::common::eventually;
use crate::{Site, ended};

#[tokio::test(flavor = "multi_thread")]
async fn files_appear_where_they_lie_and_again_nothing_happens() {
    let site = Site::start().await;
    // `a.b` comes between `a` and `a/`: both sides have to count in the same order.
    for file in ["run/a/x", "run/a/deep/er/y", "run/a.b/z", "run/a-b", "run/a0", "run/z"] {
        site.write(file, file.as_bytes());
    }
    site.write("run-2/not", b"imported");
    std::fs::create_dir_all(site.raw.join("run/empty/in")).unwrap();
    let done = site.import(json!({"hash": "never"})).await;
    assert_eq!(done["state"], "succeeded", "{done}");
    assert_eq!(done["progress"]["counts"], json!({"registered": 6}));
    let expected = [
        "/s/run/a",
        "/s/run/a/deep",
        "/s/run/a/deep/er",
        "/s/run/a/deep/er/y",
        "/s/run/a/x",
        "/s/run/a-b",
        "/s/run/a.b",
        "/s/run/a.b/z",
        "/s/run/a0",
        "/s/run/empty",
        "/s/run/empty/in",
        "/s/run/z",
    ];
    assert_eq!(site.tree().await, expected);
    let content = site.admin().get("/v1/data/s/run/a/deep/er/y").await;
    assert_eq!(
        (content.text.as_str(), content.header("percale-replica-state")),
        ("run/a/deep/er/y", "unverified")
    );
    assert_eq!(site.state("/s/run/z").await, "unverified");
    assert!(!site.raw.join("run/.percale").exists() && site.raw.join("run/z").exists());

    let before = site.admin().get("/v1/spaces/s").await.expect(200)["position"].clone();
    assert_eq!(site.counts().await, json!({"unchanged": 6}));
    assert_eq!(site.admin().get("/v1/spaces/s").await.expect(200)["position"], before, "nothing was written");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changed_is_new_and_what_is_gone_is_lost() {
    let site = Site::start().await;
    for n in 0..20 {
        site.write(&format!("run/{n:02}"), format!("content {n:02}").as_bytes());
    }
    assert_eq!(site.counts().await, json!({"registered": 20}));
    // The same size, and the time of modification put back: only ctime tells.
    let hidden = site.raw.join("run/07");
    let mtime = std::fs::metadata(&hidden).unwrap().modified().unwrap();
    site.write("run/07", b"CONTENT 07");
    std::fs::File::options().write(true).open(&hidden).unwrap().set_modified(mtime).unwrap();
    std::fs::remove_file(site.raw.join("run/08")).unwrap();
    std::fs::rename(site.raw.join("run/09"), site.raw.join("run/0 9")).unwrap();
    site.write("run/new", b"new");
    let done = site.counts().await;
    assert_eq!(done, json!({"registered": 2, "changed": 1, "unchanged": 17, "lost": 2}));
    assert_eq!(site.admin().get("/v1/data/s/run/07").await.text, "CONTENT 07");
    assert_eq!(site.state("/s/run/08").await, "lost");
    assert_eq!(site.admin().get("/v1/data/s/run/0%209").await.text, "content 09");
    assert_eq!(site.counts().await, json!({"unchanged": 20}), "what was lost is not lost again");
    site.write("run/08", b"is back");
    assert_eq!(site.counts().await, json!({"changed": 1, "unchanged": 20}));
    assert_eq!(site.admin().get("/v1/data/s/run/08").await.text, "is back");

    // A renamed object stays where it is put.
    let moved = json!({"from": "/s/run/01", "to": "/s/run/one"});
    site.admin().post("/v1/move", moved).await.expect(200);
    assert_eq!(site.counts().await, json!({"unchanged": 21}));
    // The same directory elsewhere is another's.
    let again = json!({"kind": "import", "source": site.raw.join("run"), "to": "/s/other", "hash": "never"});
    let task = site.admin().post("/v1/tasks", again).await.expect(201);
    let done = ended(site.admin(), &task).await;
    assert_eq!(
        (&done["state"], &done["progress"]["items_failed"]),
        (&json!("partial"), &json!(21)),
        "{done}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_since_the_last_pass_is_not_removed_with_its_object() {
    let site = Site::start().await;
    for file in ["run/same", "run/overwritten", "run/replaced", "run/back"] {
        site.write(file, b"content");
    }
    std::fs::hard_link(site.raw.join("run/same"), site.raw.join("run/linked")).unwrap();
    assert_eq!(site.counts().await, json!({"registered": 5}));
    std::fs::remove_file(site.raw.join("run/back")).unwrap();
    assert_eq!(site.counts().await, json!({"lost": 1, "unchanged": 4}));
    site.write("run/overwritten", b"CONTENT");
    site.write("run/new", b"CONTENT");
    std::fs::rename(site.raw.join("run/new"), site.raw.join("run/replaced")).unwrap();
    site.write("run/back", b"CONTENT");
    for path in site.tree().await {
        site.admin().delete(&format!("/v1/entries{path}")).await.expect(204);
    }
    let left = || {
        let mut left: Vec<_> = std::fs::read_dir(site.raw.join("run")).unwrap().collect();
        left.sort_by_key(|file| file.as_ref().unwrap().file_name());
        left.into_iter().map(|file| file.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    eventually("the collection of what nobody changed", || async {
        (!["same", "linked"].iter().any(|name| left().contains(&(*name).to_owned()))).then_some(())
    })
    .await;
    // The collector has let them go, and they are objects again.
    eventually("an import of what is left", || async {
        (site.counts().await == json!({"registered": 3})).then_some(())
    })
    .await;
    assert_eq!(left(), ["back", "overwritten", "replaced"]);
    for name in left() {
        assert_eq!(site.admin().get(&format!("/v1/data/s/run/{name}")).await.text, "CONTENT");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_hashed_now_or_later() {
    let site = Site::start().await;
    site.write("run/small", b"x");
    site.write("run/large", &vec![7; (2 << 20) + 5]);
    let done = site.import(json!({"hash": "now"})).await;
    assert_eq!(done["progress"]["bytes_done"], (2 << 20) + 6, "{done}");
    assert_eq!(
        (site.state("/s/run/small").await, site.state("/s/run/large").await),
        ("good".into(), "good".into())
    );
    let entry = site.admin().get("/v1/entries/s/run/large").await.expect(200);
    assert_eq!(entry["content"]["root"].as_str().unwrap_or_default().len(), 64, "{entry}");
    let ranged =
        site.admin().request(reqwest::Method::GET, "/v1/data/s/run/large").header("range", "bytes=2097152-");
    assert_eq!(crate::common::send(ranged).await.text.len(), 5);

    site.write("run/later", b"later");
    let done = site.import(json!({})).await;
    assert_eq!(done["state"], "succeeded", "{done}");
    let verify = site.admin().get("/v1/tasks?kind=verify").await.expect(200);
    let verify = ended(site.admin(), &verify["items"][0]).await;
    assert_eq!(
        (&verify["state"], &verify["progress"]["items_done"]),
        (&json!("succeeded"), &json!(1)),
        "{verify}"
    );
    assert_eq!(site.state("/s/run/later").await, "good");
    site.import(json!({})).await;
    let tasks = site.admin().get("/v1/tasks?kind=verify").await.expect(200);
    assert_eq!(tasks["items"].as_array().unwrap().len(), 1, "nothing new, nothing to hash");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_is_chosen_and_a_dry_run_changes_nothing() {
    let site = Site::start().await;
    for file in ["run/a.nc", "run/a.tmp", "run/skip/b.nc", "run/in/c.nc", "run/in/d.txt"] {
        site.write(file, b"x");
    }
    let rules = json!({"select": {"rules": [
        {"include": false, "pattern": "skip/"}, {"include": true, "pattern": "*.nc"}
    ]}});
    let mut dry = rules.clone();
    dry["dry_run"] = json!(true);
    let done = site.import(dry).await;
    assert_eq!(done["progress"]["counts"], json!({"registered": 2}), "{done}");
    let named = site.items(&done).await;
    let named: Vec<_> =
        named.iter().map(|(path, what, _)| (path.rsplit('/').next().unwrap(), what.as_str())).collect();
    assert_eq!(named, [("a.nc", "registered"), ("c.nc", "registered")]);
    site.admin().get("/v1/entries/s/run").await.expect_problem("not_found");

    let mut never = rules;
    never["hash"] = json!("never");
    assert_eq!(site.import(never.clone()).await["progress"]["counts"], json!({"registered": 2}));
    assert_eq!(site.tree().await, ["/s/run/a.nc", "/s/run/in", "/s/run/in/c.nc"]);
    assert_eq!(site.counts().await, json!({"registered": 3, "unchanged": 2}));
    // What a filter leaves out is not said to be lost.
    std::fs::remove_dir_all(site.raw.join("run/skip")).unwrap();
    std::fs::remove_file(site.raw.join("run/a.nc")).unwrap();
    assert_eq!(site.import(never).await["progress"]["counts"], json!({"lost": 1, "unchanged": 1}));
    assert_eq!(site.state("/s/run/skip/b.nc").await, "unverified");
    let wrong = json!({"kind": "import", "source": site.raw.join("run"), "to": "/s/run",
        "select": {"rules": [{"include": true, "pattern": "[a"}]}});
    site.admin().post("/v1/tasks", wrong).await.expect_problem("invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_that_is_imported_page_by_page_is_whole() {
    let site = Site::start().await;
    let old = SystemTime::now() - Duration::from_secs(3600);
    for n in 0..9000 {
        site.write(&format!("run/{}/{n:05}", n % 3), b"");
    }
    std::fs::File::open(site.raw.join("run/0/00000")).unwrap().set_modified(old).unwrap();
    assert_eq!(site.counts().await, json!({"registered": 9000}));
    assert_eq!(site.counts().await, json!({"unchanged": 9000}));
    for n in [0, 4500, 8999] {
        std::fs::remove_file(site.raw.join(format!("run/{}/{n:05}", n % 3))).unwrap();
    }
    assert_eq!(site.counts().await, json!({"unchanged": 8997, "lost": 3}));
}
