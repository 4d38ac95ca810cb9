//! Files of one site that are registered in a space of another.

use std::path::PathBuf;

use serde_json::json;

use crate::common::{Client, eventually};
use crate::fabric::{Site, three};
use crate::namespace::shared_space;
use crate::tasks::{assert_ended, good_at, run};

async fn administrator(site: &Site, name: &str) -> Client {
    let token = json!({"subject": format!("user:{name}"), "scopes": ["admin"]});
    let issued = site.admin.post("/v1/tokens", token).await.expect(201);
    site.admin.as_token(issued["secret"].as_str().unwrap())
}

async fn native_store(site: &Site) -> PathBuf {
    let raw = site.directory.path().join("raw");
    let store = json!({"name": "raw", "connector": "posix", "layout": "native", "config": {"root": raw}});
    site.admin.post("/v1/stores", store).await.expect(201);
    raw
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_one_site_become_objects_of_a_space_at_home_at_another() {
    let [alps, baltic, _coast] = three().await;
    shared_space(&alps).await;
    let raw = native_store(&baltic).await;
    for n in 0..5000 {
        let folder = raw.join(format!("run/{}", n % 5));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{n:04}")), format!("content {n:04}")).unwrap();
    }
    let (here, there) = (alps.user("alice").await, administrator(&baltic, "alice").await);
    baltic.sees(&there, "/v1/spaces/climate").await;
    let order = json!({"kind": "import", "source": raw.join("run"), "to": "/climate/run", "hash": "never"});
    let counts = async || run(&there, order.clone()).await["progress"]["counts"].clone();
    assert_eq!(counts().await, json!({"registered": 5000}));
    let entry = alps.sees(&here, "/v1/entries/climate/run/3/0003").await;
    let copy = &entry["replicas"][0];
    assert_eq!((&copy["site"], &copy["state"]), (&json!("baltic"), &json!("unverified")), "{entry}");
    assert_eq!(here.get("/v1/data/climate/run/3/0003").await.text, "content 0003");
    baltic.sees(&there, "/v1/entries/climate/run/4/4999").await;
    assert_eq!(counts().await, json!({"unchanged": 5000}));

    std::fs::write(raw.join("run/0/0000"), "CONTENT 0000").unwrap();
    std::fs::remove_file(raw.join("run/1/0001")).unwrap();
    assert_eq!(counts().await, json!({"changed": 1, "unchanged": 4998, "lost": 1}));
    eventually("the home hears of both", || async {
        let lost = here.get("/v1/entries/climate/run/1/0001").await.expect(200);
        let changed = here.get("/v1/data/climate/run/0/0000").await;
        (lost["replicas"][0]["state"] == "lost" && changed.text == "CONTENT 0000").then_some(())
    })
    .await;

    // An administrator of one site is an ordinary user at the home.
    let bob = administrator(&baltic, "bob").await;
    let mut order = order.clone();
    order["to"] = json!("/climate/bob");
    std::fs::remove_dir_all(raw.join("run")).unwrap();
    std::fs::create_dir_all(raw.join("run")).unwrap();
    std::fs::write(raw.join("run/new"), "new").unwrap();
    let done = run(&bob, order.clone()).await;
    assert_eq!((&done["state"], &done["progress"]["items_failed"]), (&json!("partial"), &json!(1)), "{done}");
    here.get("/v1/entries/climate/bob").await.expect_problem_at("not_found", "alps");
    // The paths of a storage are its own site's.
    order["at"] = json!("baltic");
    alps.admin.post("/v1/tasks", order).await.expect_problem_at("forbidden", "alps");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_has_hashed_is_replicated() {
    let [alps, baltic, coast] = three().await;
    shared_space(&alps).await;
    let raw = native_store(&baltic).await;
    let (good, bad) = (raw.join("run/good"), raw.join("run/bad"));
    std::fs::create_dir_all(&good).unwrap();
    std::fs::create_dir_all(&bad).unwrap();
    let content = "several groups of 1 MiB of text\n".repeat(5 << 15);
    std::fs::write(good.join("large"), &content).unwrap();
    for n in 0..1200 {
        std::fs::write(good.join(format!("{n:04}")), format!("content {n:04}")).unwrap();
    }
    std::fs::write(bad.join("gone"), "gone").unwrap();
    let (here, there) = (alps.user("alice").await, administrator(&baltic, "alice").await);
    baltic.sees(&there, "/v1/spaces/climate").await;
    let order = json!({"kind": "import", "source": raw.join("run"), "to": "/climate/run", "hash": "never"});
    assert_eq!(run(&there, order).await["progress"]["counts"], json!({"registered": 1202}));
    std::fs::remove_file(bad.join("gone")).unwrap();

    // To a site that is neither the home nor the one that has the bytes, and to the home.
    let far = coast.user("alice").await;
    coast.sees(&far, "/v1/entries/climate/run/good/large").await;
    let task = run(&far, json!({"kind": "replicate", "path": "/climate/run", "to": "coast"})).await;
    let items = far.get(&format!("/v1/tasks/{}/items", task["id"].as_str().unwrap())).await.expect(200);
    let items = items["items"].as_array().unwrap();
    assert_eq!(
        items.iter().map(|item| item["path"].as_str()).collect::<Vec<_>>(),
        [Some("/climate/run/bad/gone")],
        "{items:?}"
    );
    assert_ended(&task, "partial", 1201, 1);
    good_at(&far, "/climate/run/good", &["baltic", "coast"]).await;
    let task = run(&here, json!({"kind": "replicate", "path": "/climate/run/good", "to": "alps"})).await;
    assert_ended(&task, "succeeded", 1201, 0);
    good_at(&here, "/climate/run/good", &["alps", "baltic", "coast"]).await;
    std::fs::remove_dir_all(&good).unwrap();
    assert_eq!(here.get("/v1/data/climate/run/good/0007").await.text, "content 0007");
    assert!(here.get("/v1/data/climate/run/good/large").await.text == content);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_has_hashed_is_hashed_where_it_lies_before_it_is_copied() {
    let [alps, baltic, coast] = three().await;
    shared_space(&alps).await;
    let raw = native_store(&baltic).await;
    let run7 = raw.join("run");
    std::fs::create_dir_all(&run7).unwrap();
    let content = "several groups of 1 MiB of text\n".repeat(5 << 15);
    std::fs::write(run7.join("large"), &content).unwrap();
    std::fs::write(run7.join("small"), "small").unwrap();
    let there = administrator(&baltic, "alice").await;
    baltic.sees(&there, "/v1/spaces/climate").await;
    let order = json!({"kind": "import", "source": run7, "to": "/climate/run", "hash": "never"});
    assert_eq!(run(&there, order).await["progress"]["counts"], json!({"registered": 2}));
    // The site that has the bytes needs no root.
    let copy = json!({"kind": "copy", "from": "/climate/run", "to": "/climate/near", "at": "baltic"});
    assert_ended(&run(&there, copy).await, "succeeded", 2, 0);
    let root = async |client: &Client, path: &str| {
        client.get(&format!("/v1/entries/climate/{path}")).await.expect(200)["content"]["root"].clone()
    };
    assert_eq!(root(&there, "run/large").await, json!(null));

    let far = coast.user("alice").await;
    coast.sees(&far, "/v1/entries/climate/run/large").await;
    let copy = json!({"kind": "copy", "from": "/climate/run", "to": "/climate/far", "at": "coast"});
    assert_ended(&run(&far, copy).await, "succeeded", 2, 0);
    let here = alps.user("alice").await;
    for name in ["large", "small"] {
        let of_source = root(&here, &format!("run/{name}")).await;
        assert!(of_source.is_string(), "{name}: {of_source}");
        assert_eq!(of_source, root(&here, &format!("far/{name}")).await);
        assert_eq!(of_source, root(&here, &format!("near/{name}")).await);
    }
    assert!(here.get("/v1/data/climate/far/large").await.text == content);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_of_many_pages_is_copied_and_kept_alike() {
    let [alps, baltic, _coast] = three().await;
    shared_space(&alps).await;
    let raw = native_store(&baltic).await;
    let (here, there) = (alps.user("alice").await, administrator(&baltic, "alice").await);
    for n in 0..2500 {
        let folder = raw.join(format!("run/{}/{}", n % 10, n % 100));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{n:04}")), format!("content {n:04}")).unwrap();
    }
    baltic.sees(&there, "/v1/spaces/climate").await;
    let order = json!({"kind": "import", "source": raw.join("run"), "to": "/climate/run", "hash": "now"});
    assert_eq!(run(&there, order).await["progress"]["counts"], json!({"registered": 2500}));
    here.mkdir("/climate/run/empty").await.expect(201);
    for n in 0..300 {
        here.mkdir(&format!("/climate/run/empty/{n}")).await.expect(201);
        if n % 10 == 0 {
            let link = format!("/v1/links/climate/run/empty/{n}/0-link");
            here.put(&link, json!({"target": "../../0"})).await.expect(201);
        }
    }
    baltic.sees(&there, "/v1/entries/climate/run/empty/299").await;
    let names = async |path: &str| {
        let page = here.get(&format!("/v1/list{path}?recursive=true&limit=10000")).await.expect(200);
        let items = page["items"].as_array().unwrap();
        items.iter().map(|item| item["path"].as_str().unwrap()[path.len()..].to_owned()).collect::<Vec<_>>()
    };
    // The names are made by another site than the one that has the bytes.
    let copy = json!({"kind": "copy", "from": "/climate/run", "to": "/climate/copy", "at": "baltic"});
    let items = 2500 + 11 + 100 + 300 + 30;
    assert_ended(&run(&there, copy).await, "succeeded", items, 0);
    assert!(names("/climate/copy").await == names("/climate/run").await);
    assert_eq!(here.get("/v1/data/climate/copy/7/57/0757").await.text, "content 0757");

    // At the target are many things that are nowhere else, in each page.
    for folder in ["1", "2", "3", "4", "5"] {
        here.delete(&format!("/v1/entries/climate/run/{folder}?recursive=true")).await.expect(204);
    }
    for n in 0..25 {
        here.delete(&format!("/v1/entries/climate/run/9/9/{n:02}09")).await.expect(204);
    }
    here.delete("/v1/entries/climate/run/empty?recursive=true").await.expect(204);
    baltic.sees(&there, "/v1/entries/climate/copy/9").await;
    eventually("baltic hears of it", || async {
        (there.get("/v1/entries/climate/run/empty").await.status.as_u16() == 404).then_some(())
    })
    .await;
    let sync = json!({"kind": "sync", "from": "/climate/run", "to": "/climate/copy", "delete": true, "at": "baltic"});
    assert_eq!(run(&there, sync).await["state"], "succeeded");
    assert!(names("/climate/copy").await == names("/climate/run").await);
    assert_eq!(here.get("/v1/data/climate/copy/9/59/0759").await.text, "content 0759");
}
