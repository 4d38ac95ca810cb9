//! What is said of data, and found by, at every site.

use percale_core::Timestamp;
use serde_json::{Value, json};

use crate::common::{Client, eventually};
use crate::fabric::three;
use crate::namespace::shared_space;

fn query(text: &str) -> String {
    let query: String = form_urlencoded::byte_serialize(text.as_bytes()).collect();
    format!("/v1/search?q={query}")
}

async fn found(client: &Client, text: &str) -> Vec<String> {
    let page = client.get(&query(text)).await.expect(200);
    let mut paths: Vec<String> = page["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["path"].as_str().unwrap().to_owned())
        .collect();
    paths.sort();
    paths
}

async fn say(client: &Client, path: &str, set: Value) -> Value {
    client.patch(&format!("/v1/attributes{path}"), json!({ "set": set })).await.expect(200)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_site_finds_what_was_said_at_another() {
    let [alps, baltic, coast] = three().await;
    shared_space(&alps).await;
    let (here, there) = (alps.user("alice").await, baltic.user("alice").await);
    baltic.sees(&there, "/v1/spaces/climate").await;
    for name in ["a.nc", "b.nc", "c.txt"] {
        here.write(&format!("/climate/{name}"), name).await.expect(201);
    }
    say(&here, "/climate/a.nc", json!({"instrument": [{"text": "MODIS"}], "level": [{"integer": 500}]}))
        .await;
    baltic.sees(&there, "/v1/entries/climate/c.txt").await;
    // A site that is not the home has it said there, and sees it once it has answered.
    let said =
        say(&there, "/climate/b.nc", json!({"level": [{"float": 850.5}], "draft": [{"bool": true}]})).await;
    let level = json!({"name": "level", "source": "person", "values": [{"float": 850.5}]});
    assert_eq!(said["items"][1], level);
    assert_eq!(found(&there, "level>600").await, ["/climate/b.nc"]);
    assert_eq!(
        there.patch("/v1/entries/climate/b.nc", json!({"mode": "0750"})).await.expect(200)["content"]["mode"],
        "0750"
    );
    for site in [&alps, &baltic, &coast] {
        let alice = site.user("alice").await;
        eventually(&format!("{} finds everything", site.name), || async {
            let page = alice.get(&query("level:* OR instrument=modis")).await;
            (page.status.is_success() && page.json()["items"].as_array().unwrap().len() == 2).then_some(())
        })
        .await;
        assert_eq!(found(&alice, "instrument:modis ext:nc").await, ["/climate/a.nc"]);
        assert_eq!(found(&alice, "level:500..900 -draft=true").await, ["/climate/a.nc"]);
        assert_eq!(found(&alice, "site:alps type:object NOT level:*").await, ["/climate/c.txt"]);
        let bob = site.user("bob").await;
        assert_eq!(found(&bob, "").await, Vec::<String>::new(), "bob may read nothing");
        alice.get(&query("instrumnt=modis")).await.expect_problem_at("invalid_request", site.name);
    }
    // What is said otherwise is found otherwise, everywhere.
    say(&here, "/climate/c.txt", json!({"instrument": [{"text": "VIIRS"}]})).await;
    say(&here, "/climate/a.nc", json!({"instrument": []})).await;
    let elsewhere = coast.user("alice").await;
    eventually("what was removed is not found", || async {
        (found(&elsewhere, "instrument:*").await == ["/climate/c.txt"]).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_and_attributes_of_anybody_are_bounded() {
    let server = crate::common::Server::with_space().await;
    let alice = server.user("alice").await;
    alice.write("/s/x", "content").await.expect(201);
    for wrong in [
        json!({"set": {"a": ["text"]}}),
        json!({"set": {"a": [{"text": 5}]}}),
        json!({"set": {"a": [{"integer": 1.5}]}}),
        json!({"set": {"a": [{"integer": 9_223_372_036_854_775_808_u64}]}}),
        json!({"set": {"a": [{"float": "many"}]}}),
        json!({"set": {"a": [{"time": "today"}]}}),
        json!({"set": {"a": [{"color": "red"}]}}),
        json!({"set": {"": [{"text": "b"}]}}),
        json!({"set": {"a`": [{"text": "b"}]}}),
        json!({"set": {"a": [{"text": "x".repeat(8193)}]}}),
        json!({"set": {"a": vec![json!({"bool": true}); 257]}}),
        json!({"put": {}}),
    ] {
        let answer = alice.patch("/v1/attributes/s/x", wrong.clone()).await;
        answer.expect_problem("invalid_request");
    }
    alice.get("/v1/attributes/s/none").await.expect_problem("not_found");
    assert_eq!(alice.get("/v1/attributes/s/x").await.expect(200), json!({"items": []}));
    say(&alice, "/s/x", json!({"note": [{"text": "'; DROP TABLE attribute; --"}, {"float": "NaN"}]})).await;
    for wrong in ["(", "a=", "size:big", "x:[1 TO", "path:/s OR a=1", "@"] {
        let problem = alice.get(&query(wrong)).await.expect_problem("invalid_request");
        assert!(!problem["detail"].as_str().unwrap().is_empty());
    }
    alice.get(&query(&"(".repeat(10_000))).await.expect_problem("invalid_request");
    for injection in
        ["note=\"'; DROP TABLE attribute; --\"", "note like \"'; DROP%\"", "\"DROP TABLE\"", "`note`:*"]
    {
        assert_eq!(found(&alice, injection).await, ["/s/x"], "{injection}");
    }
    for harmless in ["note:'%'", "name:\"x' OR '1'='1\"", "note=\\"] {
        assert_eq!(found(&alice, harmless).await, Vec::<String>::new(), "{harmless}");
    }
    alice.get("/v1/search?q=x&limit=0").await.expect_problem("invalid_request");
    alice.get("/v1/search?q=x&cursor=y").await.expect_problem("invalid_request");
    alice.get("/v1/search?color=red").await.expect_problem("invalid_request");
    // The pages of a search are linked.
    alice.write("/s/y", "content").await.expect(201);
    let first = alice.get("/v1/search?q=type:object&limit=1").await;
    assert!(first.header("link").contains("cursor="), "{}", first.header("link"));
    assert_eq!(server.anonymous().get("/v1/search?q=").await.expect(200)["items"], json!([]));
    let hour = Timestamp::now().after(std::time::Duration::from_secs(3600));
    assert_eq!(found(&alice, &format!("modified<{hour} size=7")).await, ["/s/x", "/s/y"]);
}
