//! What is said of data, and found by, at every site.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use percale_core::Timestamp;
use percale_server::config::Config;
use percale_store::wrappers::{Chaos, ChaosPolicy};
use serde_json::{Value, json};

use crate::common::{Client, READER, eventually, read_headers, send};
use crate::fabric::{Site, three};
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
    // Who said it, and when, is told by any of them.
    for site in [&alps, &baltic, &coast] {
        let alice = site.user("alice").await;
        let history = alice.get("/v1/history/climate/b.nc").await.expect(200);
        let [event] = &history["items"].as_array().unwrap()[..] else { panic!("{}: {history}", site.name) };
        assert_eq!(event["set"], json!({"draft": [{"bool": true}], "level": [{"float": 850.5}]}));
        assert!(event["actor"].as_str().unwrap().contains("alice"), "{history}");
        let bob = site.user("bob").await;
        bob.get("/v1/history/climate/b.nc").await.expect_problem_at("not_found", site.name);
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
async fn what_a_site_that_is_away_had_is_found_and_marked() {
    let [alps, baltic, mut coast] = three().await;
    let mut named = Vec::new();
    for (site, space) in [(&alps, "peaks"), (&baltic, "seas"), (&coast, "reefs")] {
        let body = json!({"name": space, "owner": "user:alice"});
        site.admin.post("/v1/spaces", body).await.expect(201);
        let grant = json!({"subject": "user:alice@site:baltic", "permission": "read"});
        site.admin.put(&format!("/v1/grants/{space}"), grant).await.expect(200);
        let alice = site.user("alice").await;
        alice.write(&format!("/{space}/x.nc"), "content").await.expect(201);
        say(&alice, &format!("/{space}/x.nc"), json!({"level": [{"integer": 500}]})).await;
        named.push(format!("/{space}/x.nc"));
    }
    named.sort();
    let alice = baltic.user("alice").await;
    eventually("each site's hit is there", || async {
        let page = alice.get(&query("level=500")).await;
        (page.status.is_success() && page.json()["items"].as_array().unwrap().len() == 3).then_some(())
    })
    .await;
    let page = alice.get(&query("level=500")).await.expect(200);
    assert!(page["away"].is_null(), "{page}");
    let sorted = alice.get("/v1/search?q=level%3D500&sort=-name&limit=2").await.expect(200);
    assert_eq!(sorted["items"].as_array().unwrap().len(), 2);
    alice.get("/v1/search?q=level%3D500&sort=path").await.expect_problem_at("invalid_request", "baltic");
    coast.stop().await;
    eventually("the site that is away is marked", || async {
        let page = alice.get(&query("level=500")).await.expect(200);
        (page["away"][0]["site"] == "coast").then_some(())
    })
    .await;
    assert_eq!(found(&alice, "level=500").await, named, "what is known of it is found");
    let lines = alice.request(Method::GET, "/v1/search?q=level%3E400").header("accept", "application/jsonl");
    let lines = send(lines).await;
    assert_eq!(lines.text.lines().count(), 3);
    let away: Value = serde_json::from_str(lines.header("percale-away")).unwrap();
    assert_eq!(away[0]["site"], "coast");
    assert_eq!(lines.header("percale-mismatches"), "");
    let summary = |client: Client, facets: &'static str| async move {
        client.get(&format!("/v1/search/summary?q=level%3D500&facets={facets}")).await.expect(200)
    };
    let counted = summary(alice, "space,site,level").await;
    assert_eq!((&counted["count"], &counted["is_estimate"]), (&json!(3), &json!(false)));
    assert_eq!(counted["away"][0]["site"], "coast");
    assert!(counted["away"][0]["seen"].is_string(), "{counted}");
    assert_eq!(counted["facets"][0]["values"].as_array().unwrap().len(), 3);
    assert_eq!(counted["facets"][2]["values"], json!([{"value": {"integer": 500}, "count": 3}]));
    // Who may read none of it learns of nothing, neither by numbers nor by which sites there are.
    let bob = baltic.user("bob").await;
    let page = bob.get(&query("type:object")).await.expect(200);
    assert_eq!(page, json!({"items": []}));
    let counted = bob.get("/v1/search/summary?q=type:object&facets=space,site,ext").await.expect(200);
    assert_eq!(counted["count"], 0);
    assert!(counted["away"].is_null(), "{counted}");
    assert!(
        counted["facets"].as_array().unwrap().iter().all(|facet| facet["values"] == json!([])),
        "{counted}"
    );
    for wrong in ["facets=size", "facets=,", "facets=ext&values=0", "within=61", "within=0", "q=(", "limit=5"]
    {
        bob.get(&format!("/v1/search/summary?{wrong}")).await.expect_problem_at("invalid_request", "baltic");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_is_found_comes_in_lines() {
    let server = crate::common::Server::with_space().await;
    let alice = server.user("alice").await;
    let names: Vec<String> = (0..450).map(|n| format!("n {n:03}, \"x\"")).collect();
    for part in names.chunks(50) {
        futures::future::join_all(part.iter().map(|name| async {
            let name: String = form_urlencoded::byte_serialize(name.as_bytes()).collect();
            alice.write(&format!("/s/{}", name.replace('+', "%20")), "content").await.expect(201);
        }))
        .await;
    }
    let ask = |query: &str, accept: &str| {
        send(alice.request(Method::GET, &format!("/v1/search?{query}")).header("accept", accept))
    };
    let lines = ask("q=type:object", "application/jsonl").await;
    assert_eq!((lines.status.as_u16(), lines.header("content-type")), (200, "application/jsonl"));
    let mut found: Vec<String> = lines
        .text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["path"].as_str().unwrap().to_owned())
        .collect();
    found.sort();
    let wanted: Vec<String> = names.iter().map(|name| format!("/s/{name}")).collect();
    assert_eq!(found, wanted, "each once, over several pages");
    assert_eq!(ask("q=type:object&limit=300", "application/x-ndjson").await.text.lines().count(), 300);
    let table = ask("q=type:object&sort=-name&limit=2", "text/csv;q=0.9, */*;q=0.1").await;
    let rows: Vec<&str> = table.text.lines().collect();
    assert_eq!(rows[0], "path,type,size,modified,root");
    assert!(rows[1].starts_with(r#""/s/n 449, ""x""",object,7,2"#), "{}", rows[1]);
    assert_eq!(rows.len(), 3);
    alice.write("/s/plain", "content").await.expect(201);
    say(&alice, "/s/plain", json!({"band": [{"integer": 1}, {"integer": 2}], "note": [{"text": "a,b"}]}))
        .await;
    let table = ask("q=name:plain&attributes=note,band", "text/csv").await;
    let rows: Vec<&str> = table.text.lines().collect();
    assert_eq!(rows[0], "path,type,size,modified,root,note,band");
    assert!(rows[1].starts_with("/s/plain,object,7,") && rows[1].ends_with(r#","a,b",1; 2"#), "{}", rows[1]);
    let many = (0..33).map(|n| format!("a{n}")).collect::<Vec<_>>().join(",");
    for wrong in ["size", "levle", ",", &many] {
        ask(&format!("q=x&attributes={wrong}"), "text/csv").await.expect_problem("invalid_request");
    }
    assert_eq!(ask("q=name:nothing", "text/csv").await.text.lines().count(), 1, "its heading");
    say(&alice, "/s/plain", json!({"dépth": [{"text": "deep"}]})).await;
    let table = ask("q=d%C3%A9pth%3E5", "text/csv").await;
    let told: Value = serde_json::from_str(table.header("percale-mismatches")).unwrap();
    assert_eq!(
        (&told[0]["name"], &told[0]["are_text"], &told[0]["count"]),
        (&json!("dépth"), &json!(true), &json!(1))
    );
    assert_eq!(table.header("percale-away"), "");
    ask("q=x&sort=name&limit=10001", "text/csv").await.expect_problem("invalid_request");
    ask("q=(", "text/csv").await.expect_problem("invalid_request");
    ask("q=x&limit=0", "text/csv").await.expect_problem("invalid_request");
    assert!(ask("q=type:object", "application/json, text/csv").await.json()["items"].is_array());
    ask("q=x&cursor=y", "application/jsonl").await.expect_problem("invalid_request");
    assert!(ask("q=type:object", "application/json").await.json()["items"].is_array());
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

#[tokio::test(flavor = "multi_thread")]
async fn filters_are_those_of_other_catalogs() {
    let [server, _, _] = three().await;
    shared_space(&server).await;
    let alice = server.user("alice").await;
    for (name, set) in [
        ("a.tif", json!({"eo:cloud_cover": [{"float": 4.5}], "taken": [{"time": "2024-06-01T10:00:00Z"}]})),
        ("b.tif", json!({"eo:cloud_cover": [{"integer": 40}], "taken": [{"time": "2024-07-01T10:00:00Z"}]})),
        ("c.tif", json!({"title": [{"text": "'; DROP TABLE attribute; --"}]})),
    ] {
        alice.write(&format!("/climate/{name}"), name).await.expect(201);
        say(&alice, &format!("/climate/{name}"), set).await;
    }
    let address = |what: &str, parameters: &[(&str, &str)]| {
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
        format!("/v1/search{what}?{query}")
    };
    let names = async |parameters: &[(&str, &str)]| {
        let page = alice.get(&address("", parameters)).await.expect(200);
        let items = page["items"].as_array().unwrap().clone();
        let mut names: Vec<String> =
            items.iter().map(|item| item["path"].as_str().unwrap().replace("/climate/", "")).collect();
        names.sort();
        names.join(" ")
    };
    let clear = r#"{"op": "<", "args": [{"property": "eo:cloud_cover"}, 10]}"#;
    let json = ("filter-lang", "cql2-json");
    assert_eq!(names(&[("filter", "eo:cloud_cover < 10")]).await, "a.tif");
    assert_eq!(names(&[("filter", clear), json]).await, "a.tif");
    assert_eq!(
        names(&[("filter", "ext:tif -size:0"), ("filter-lang", "percale")]).await,
        "a.tif b.tif c.tif"
    );
    assert_eq!(names(&[("filter", "T_AFTER(taken, DATE('2024-06-30'))")]).await, "b.tif");
    assert_eq!(names(&[("filter", "taken >= '2024-06-30T00:00:00Z'")]).await, "b.tif");
    // Both must hold.
    assert_eq!(names(&[("q", "ext:tif"), ("filter", "\"eo:cloud_cover\" IS NULL")]).await, "c.tif");
    assert_eq!(names(&[("filter", "title = '''; DROP TABLE attribute; --'")]).await, "c.tif");
    let summary = alice.get(&address("/summary", &[("filter", clear), json])).await.expect(200);
    assert_eq!(summary["count"], 1);
    // What a query means can be asked for elsewhere, and here again.
    let plan = alice.get(&address("/plan", &[("q", "`eo:cloud_cover`<10 taken:2024")])).await.expect(200);
    assert_eq!(names(&[("filter", &plan["filter"].to_string()), json]).await, "a.tif", "{plan}");
    for wrong in [
        &[("filter", "a = ")][..],
        &[("filter", "a = 1"), json],
        &[("filter", "a = 1"), ("filter-lang", "sql")],
        &[("filter", "a = 1"), ("filter-crs", "none")],
        &[("filter", "S_TOUCHES(geometry, BBOX(1,2,3,4))")],
    ] {
        let problem = alice.get(&address("", wrong)).await.expect_problem("invalid_request");
        assert!(!problem["detail"].as_str().unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_are_read_by_the_site_that_has_the_bytes() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let eager = |config: &mut Config| {
        read_headers(config, folders[0].path(), 1);
        config.extraction.again = Duration::from_secs(1);
    };
    let alps = Site::with("alps", eager).await;
    let mut baltic = Site::with("baltic", |config| read_headers(config, folders[1].path(), 1)).await;
    baltic.join(&alps.invite().await).await;
    for site in [&alps, &baltic] {
        site.reaches(&["alps", "baltic"]).await;
    }
    shared_space(&alps).await;
    let (here, there) = (alps.user("alice").await, baltic.user("alice").await);
    baltic.sees(&there, "/v1/spaces/climate").await;
    let space = alps.admin.get("/v1/spaces/climate").await.expect(200);
    assert_eq!(space["extraction"], "async", "{space}");
    let titled = async |wanted: usize| {
        eventually(&format!("{wanted} titles are found"), || async {
            let page = here.get(&query("title=found")).await;
            (page.status.is_success() && page.json()["items"].as_array().unwrap().len() == wanted)
                .then_some(())
        })
        .await;
    };
    for n in 0..120 {
        there.write(&format!("/climate/run/{n:03}.json"), format!("bytes {n}")).await.expect(201);
    }
    titled(120).await;
    // It is read by itself, also if the site is away first.
    there.write("/climate/late.json", "late").await.expect(201);
    baltic.stop().await;
    here.write("/climate/here.json", "here").await.expect(201);
    baltic.resume().await;
    titled(122).await;
    let failed = here.get(&query("extraction.error:*")).await.expect(200);
    assert_eq!(failed["items"], json!([]));
    // Nobody but the home may ask.
    let asked = json!({"space": space["id"], "versions": []});
    here.post("/v1/peer/headers", asked).await.expect_problem_at("site_refused", "alps");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_at_another_site_holds_up_nothing() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let eager = |config: &mut Config| {
        read_headers(config, folders[0].path(), 1);
        config.extraction.again = Duration::from_secs(1);
    };
    let alps = Site::with("alps", eager).await;
    // There it is not asked again at once, however often the home asks.
    let patient = |config: &mut Config| {
        read_headers(config, folders[1].path(), 1);
        config.extraction.again = Duration::from_secs(3600);
    };
    let baltic = Site::with("baltic", patient).await;
    baltic.join(&alps.invite().await).await;
    for site in [&alps, &baltic] {
        site.reaches(&["alps", "baltic"]).await;
    }
    shared_space(&alps).await;
    alps.admin.patch("/v1/spaces/climate", json!({"extraction": "off"})).await.expect(200);
    let (here, there) = (alps.user("alice").await, baltic.user("alice").await);
    baltic.sees(&there, "/v1/spaces/climate").await;
    for n in 0..120 {
        there.write(&format!("/climate/{n:03}.json"), format!("bytes {n}")).await.expect(201);
    }
    let app = baltic.running.as_ref().unwrap().app();
    let store = app.stores.all().first().unwrap().row.id;
    app.stores.wrap(store, |store| {
        // Each read takes its time before it fails: all of them two minutes, two at once.
        let policy =
            ChaosPolicy { errors: 1.0, stalls: 1.0, stall: Duration::from_secs(2), ..ChaosPolicy::default() };
        Arc::new(Chaos::new(store, policy).0)
    });
    alps.admin.patch("/v1/spaces/climate", json!({"extraction": "async"})).await.expect(200);
    let found = async |asked: &str| {
        let page = here.get(&query(asked)).await;
        // Until the first attribute of a name is there, none is known.
        page.status.is_success().then(|| page.json()["items"].as_array().unwrap().len())
    };
    eventually("all are marked", async || (found("extraction.unread=true").await? == 120).then_some(()))
        .await;
    for n in 1..=3 {
        here.write(&format!("/climate/here-{n}.json"), "here").await.expect(201);
        eventually("what is here is read", async || (found("title=found").await? == n).then_some(())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_that_takes_long_at_another_site_is_waited_for() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let impatient = |config: &mut Config| {
        read_headers(config, folders[0].path(), 1);
        config.federation.stall_timeout = Duration::from_secs(6);
    };
    let slow = |config: &mut Config| {
        read_headers(config, folders[1].path(), 1);
        let slow = READER.replace("send(b\"D\"", "import time; time.sleep(9); send(b\"D\"");
        std::fs::write(config.extraction.program.as_ref().unwrap(), slow).unwrap();
    };
    let (alps, baltic) = tokio::join!(Site::with("alps", impatient), Site::with("baltic", slow));
    baltic.join(&alps.invite().await).await;
    for site in [&alps, &baltic] {
        site.reaches(&["alps", "baltic"]).await;
    }
    shared_space(&alps).await;
    let (here, there) = (alps.user("alice").await, baltic.user("alice").await);
    baltic.sees(&there, "/v1/spaces/climate").await;
    there.write("/climate/slow.json", "slow").await.expect(201);
    eventually("the title is found", || async {
        let page = here.get(&query("title=found")).await;
        (page.status.is_success() && page.json()["items"][0]["path"] == "/climate/slow.json").then_some(())
    })
    .await;
}
