//! Links between sites are cut without a word in the middle of each thing that sites ask of each other, stay so for a while,
//! and are mended. Nobody does anything about it, and all ends as it would have.
//!
//! `PERCALE_CUT_SECONDS` says how long a link stays cut: 2 s, or 60 for the full run, which cuts at more places too.

use std::time::Duration;

use percale_testkit::faults::rounds;
use percale_testkit::link::{Link, Way};
use percale_testkit::wait::until_async;
use serde_json::{Value, json};

use crate::common::{Client, bytes, send};
use crate::fabric::Site;
use crate::tasks::{assert_ended, content, copies, files, large, nothing_left, submit, write_small};

fn cut_for() -> Duration {
    Duration::from_secs(u64::from(rounds("PERCALE_CUT_SECONDS", 2)))
}

/// Waits until something is so, also if a task was tried in vain a few times: it waits ever longer.
pub async fn soon<T, F: Future<Output = Option<T>>>(what: &str, ask: impl FnMut() -> F) -> T {
    until_async(what, Duration::from_secs(30) + 3 * cut_for(), ask).await
}

/// A site that others reach over a link.
pub async fn linked(name: &'static str) -> (Site, Link) {
    let link = Link::start().await;
    let site = Site::with(name, |config| {
        config.federation.urls = vec![link.url()];
        config.federation.stall_timeout = Duration::from_secs(1);
    })
    .await;
    link.lead_to(site.running.as_ref().unwrap().address());
    (site, link)
}

pub async fn outgoing(name: &'static str) -> Site {
    Site::with(name, |config| {
        config.federation.outgoing_only = true;
        config.federation.stall_timeout = Duration::from_secs(1);
    })
    .await
}

/// Waits until a link is cut, and mends it after a while.
async fn mended(link: &Link, when: &str) {
    soon(&format!("the link to be cut {when}"), || async { link.is_cut().then_some(()) }).await;
    tokio::time::sleep(cut_for()).await;
    assert!(link.is_cut());
    link.mend();
}

pub async fn space(home: &Site, name: &str, others: &[&str]) {
    home.admin.post("/v1/spaces", json!({"name": name, "owner": "user:alice"})).await.expect(201);
    for site in others {
        let grant = json!({"subject": format!("user:alice@site:{site}"), "permission": "manage"});
        home.admin.put(&format!("/v1/grants/{name}"), grant).await.expect(200);
    }
}

/// Waits until a site knows of so many objects.
pub async fn lists(client: &Client, path: &str, count: usize) {
    soon(&format!("{count} objects in {path}"), || async {
        if client.get(&format!("/v1/entries{path}")).await.status.as_u16() != 200 {
            return None;
        }
        (copies(client, path, "good").await.len() == count).then_some(())
    })
    .await;
}

pub async fn ended(client: &Client, id: &str) -> Value {
    soon("the task to end", || async {
        let task = client.get(&format!("/v1/tasks/{id}")).await.json();
        ["succeeded", "partial", "failed", "cancelled"]
            .iter()
            .any(|end| task["state"] == *end)
            .then_some(task)
    })
    .await
}

/// Joins. The server tries for 40 s; where the link is cut for longer, the administrator says it again.
async fn joins(site: &Site, invitation: &str) {
    soon("the site to join", || async {
        let request = site.admin.request(reqwest::Method::POST, "/v1/sites/join");
        let request = request.json(&json!({"invitation": invitation})).timeout(Duration::from_secs(100));
        let answer = send(request).await;
        assert!([200, 503, 504].contains(&answer.status.as_u16()), "{}", answer.text);
        let is_over = answer.status.as_u16() == 200;
        assert!(is_over || cut_for() > Duration::from_secs(30), "{}", answer.text);
        is_over.then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn joining_goes_on_where_it_was_cut() {
    let (alps, link) = linked("alps").await;
    space(&alps, "climate", &["s0", "s1", "s2", "s3"]).await;
    for (name, way, bytes) in [
        ("s0", Way::There, 0),
        ("s1", Way::There, 1500),
        // The site has joined, and does not hear of it.
        ("s2", Way::Back, 1),
        ("s3", Way::Back, 2000),
    ] {
        let site = outgoing(name).await;
        let invitation = alps.invite().await;
        link.cut_after(way, bytes);
        tokio::join!(joins(&site, &invitation), mended(&link, "while a site joins"));
        site.reaches(&["alps"]).await;
        alps.reaches(&[name]).await;
        let alice = site.user("alice").await;
        site.sees(&alice, "/v1/spaces/climate").await;
    }
    let sites = alps.admin.get("/v1/sites").await.expect(200);
    assert_eq!(sites["items"].as_array().unwrap().len(), 5, "{sites}");
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_and_rosters_go_on_where_they_were_cut() {
    let ((alps, link), (baltic, back)) = tokio::join!(linked("alps"), linked("baltic"));
    space(&alps, "climate", &["baltic"]).await;
    let here = alps.user("alice").await;
    write_small(&here, "first", 200).await;
    // Within the snapshot of the space, which is far more than all else.
    let invitation = alps.invite().await;
    link.cut_after(Way::Back, 40_000);
    tokio::join!(joins(&baltic, &invitation), mended(&link, "while a snapshot is taken"));
    let there = baltic.user("alice").await;
    lists(&there, "/climate", 200).await;

    // Within records that are new.
    for (way, bytes) in [(Way::Back, 9_000), (Way::There, 1)] {
        link.cut_after(way, bytes);
        let collection = format!("more-{bytes}");
        tokio::join!(write_small(&here, &collection, 50), mended(&link, "while records come"));
        lists(&there, &format!("/climate/{collection}"), 50).await;
    }
    lists(&there, "/climate", 300).await;
    for number in [0, 49] {
        let read = bytes(&there, &format!("/v1/data/climate/more-1/{number:04}")).await;
        assert!(read == content(number));
    }

    // While rosters are exchanged, both ways.
    let drained = |state: &str| alps.admin.patch("/v1/sites/alps", json!({"state": state}));
    for state in ["drained", "active"] {
        link.cut_after(Way::There, 1);
        back.cut_after(Way::There, 1);
        drained(state).await.expect(200);
        tokio::join!(mended(&link, "by a roster"), mended(&back, "by a roster"));
        soon("baltic to hear of it", || async {
            (baltic.admin.get("/v1/sites/alps").await.expect(200)["state"] == state).then_some(())
        })
        .await;
    }
}

/// Copies are brought to a site again and again, and the link is cut at these parts of what passes in each direction.
async fn replicated_with_cuts(
    task: &str,
    from: &Site,
    to: &Site,
    link: &Link,
    count: usize,
    parts: &[(Way, f64)],
) {
    let (source, target) = (from.user("alice").await, to.user("alice").await);
    lists(&target, "/climate/run7", count).await;
    let before = files(to).len();
    let both = |way| link.passed(way);
    let mut whole = [0; 2];
    for (round, cut) in std::iter::once(None).chain(parts.iter().map(Some)).enumerate() {
        let begun = [both(Way::There), both(Way::Back)];
        if let Some((way, part)) = cut {
            link.cut_after(*way, ((whole[*way as usize] as f64) * part) as usize);
        }
        let spec = json!({"kind": "replicate", "path": "/climate/run7", "to": to.name});
        let id = submit(&target, spec).await;
        if let Some(cut) = cut {
            mended(link, &format!("by {task} at {cut:?} of {whole:?}")).await;
        }
        let ended = ended(&target, &id).await;
        assert_ended(&ended, "succeeded", count as u64, 0);
        if cut.is_none() {
            whole = [both(Way::There) - begun[0], both(Way::Back) - begun[1]];
        }
        let mut all = [from.name, to.name];
        all.sort_unstable();
        for client in [&source, &target] {
            soon("all to know of the copies", || async {
                let found = copies(client, "/climate/run7", "good").await;
                found.iter().all(|(_, at)| at == &all).then_some(())
            })
            .await;
        }
        nothing_left(to).await;
        soon("as many files as objects", || async { (files(to).len() == before + count).then_some(()) })
            .await;
        if round < parts.len() {
            let spec = json!({"kind": "evict", "path": "/climate/run7", "from": to.name});
            assert_ended(
                &self::ended(&target, &submit(&target, spec).await).await,
                "succeeded",
                count as u64,
                0,
            );
            soon("the files to go", || async { (files(to).len() == before).then_some(()) }).await;
        }
    }
    let id = submit(&target, json!({"kind": "verify", "path": "/climate/run7"})).await;
    assert_ended(&ended(&target, &id).await, "succeeded", 2 * count as u64, 0);
}

/// Where frames, trees and reports of copies are on their way.
fn parts() -> &'static [(Way, f64)] {
    const ALL: [(Way, f64); 5] =
        [(Way::Back, 0.5), (Way::There, 0.97), (Way::Back, 0.95), (Way::There, 0.02), (Way::Back, 0.02)];
    if cut_for() > Duration::from_secs(2) { &ALL } else { &ALL[..2] }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_many_small_objects_goes_on_where_it_was_cut() {
    let ((alps, link), baltic) = tokio::join!(linked("alps"), outgoing("baltic"));
    space(&alps, "climate", &["baltic"]).await;
    write_small(&alps.user("alice").await, "run7", 300).await;
    baltic.join(&alps.invite().await).await;
    replicated_with_cuts("small objects", &alps, &baltic, &link, 300, parts()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_object_goes_on_where_it_was_cut() {
    let ((alps, link), baltic) = tokio::join!(linked("alps"), outgoing("baltic"));
    space(&alps, "climate", &["baltic"]).await;
    alps.user("alice").await.write("/climate/run7/large", large(12_000_000)).await.expect(201);
    baltic.join(&alps.invite().await).await;
    replicated_with_cuts("a large object", &alps, &baltic, &link, 1, parts()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reverse_connection_goes_on_where_it_was_cut() {
    let ((alps, link), coast) = tokio::join!(linked("alps"), outgoing("coast"));
    coast.join(&alps.invite().await).await;
    space(&coast, "climate", &["alps"]).await;
    let there = coast.user("alice").await;
    write_small(&there, "run7", 30).await;
    there.write("/climate/run7/large", large(6_000_000)).await.expect(201);
    alps.reaches(&["coast"]).await;
    // The control session.
    let here = alps.user("alice").await;
    lists(&here, "/climate/run7", 31).await;
    link.cut_after(Way::There, 0);
    here.mkdir("/climate/while-cut").await.expect_problem_at("site_unavailable", "alps");
    mended(&link, "at once").await;
    soon("a change through the firewall", || async {
        (here.mkdir("/climate/mended").await.status.as_u16() == 201).then_some(())
    })
    .await;
    // Here the bytes go from who dialled.
    let parts = [(Way::There, 0.6), (Way::Back, 0.5)];
    replicated_with_cuts("reversed bytes", &coast, &alps, &link, 31, &parts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writing_at_another_site_and_handing_tasks_over_go_on_where_they_were_cut() {
    let ((alps, link), (baltic, back)) = tokio::join!(linked("alps"), linked("baltic"));
    space(&alps, "climate", &["baltic"]).await;
    baltic.join(&alps.invite().await).await;
    let (here, there) = (alps.user("alice").await, baltic.user("alice").await);
    baltic.sees(&there, "/v1/spaces/climate").await;
    let whole = large(2_500_000);
    let mut objects = 0;
    for (way, bytes_before) in [(Way::There, 0), (Way::There, 400), (Way::Back, 1)] {
        let path = format!("/climate/up-{objects}");
        let open = json!({"path": path, "size": whole.len(), "parents": false});
        let id = there.post("/v1/uploads", open).await.expect(201)["id"].as_str().unwrap().to_owned();
        let part = there
            .request(reqwest::Method::PATCH, &format!("/v1/uploads/{id}"))
            .header("content-type", "application/offset+octet-stream")
            .header("upload-offset", "0")
            .body(whole.clone());
        assert!(send(part).await.status.is_success());
        link.cut_after(way, bytes_before);
        let commit = format!("/v1/uploads/{id}/commit");
        let committed = soon_committed(&there, &commit);
        let (version, ()) = tokio::join!(committed, mended(&link, "while a version is published"));
        // Asked again, it is the same version; and there is one of each.
        assert_eq!(soon_committed(&there, &commit).await, version);
        objects += 1;
        lists(&here, "/climate", objects).await;
        lists(&there, "/climate", objects).await;
        assert!(bytes(&here, &format!("/v1/data{path}")).await == whole);
    }
    // Without an upload, whoever writes hears that it may not have been done; either way nothing is half there.
    link.cut_after(Way::Back, 1);
    let put = async {
        let answer = there.write("/climate/put", "put").await;
        assert!([201, 503, 504].contains(&answer.status.as_u16()), "{}", answer.text);
    };
    tokio::join!(put, mended(&link, "while a version is published"));
    soon("it to be there or not", || async {
        let is_there = here.get("/v1/entries/climate/put").await.status.as_u16() == 200;
        let known = there.get("/v1/entries/climate/put").await.status.as_u16() == 200;
        (is_there == known && files(&baltic).len() == objects + usize::from(is_there)).then_some(())
    })
    .await;

    // A task is given to the site that it is for, once.
    let hand_over = |key: &'static str| {
        let spec = json!({"kind": "replicate", "path": "/climate/up-0", "to": "baltic"});
        let request = here.request(reqwest::Method::POST, "/v1/tasks").header("idempotency-key", key);
        send(request.json(&spec))
    };
    for (key, way) in [("one", Way::There), ("two", Way::Back)] {
        back.cut_after(way, 1);
        let asked = soon("the task to be taken", || async {
            let answer = hand_over(key).await;
            (answer.status.as_u16() == 201).then(|| answer.json()["id"].as_str().unwrap().to_owned())
        });
        let (id, ()) = tokio::join!(asked, mended(&back, "while a task is handed over"));
        assert_ended(&ended(&here, &id).await, "succeeded", 1, 0);
    }
    let tasks = baltic.admin.get("/v1/tasks").await.expect(200);
    assert_eq!(tasks["items"].as_array().unwrap().len(), 2, "{tasks}");
}

/// Commits an upload, as often as it needs.
async fn soon_committed(client: &Client, commit: &str) -> Value {
    soon("the upload to be committed", || async {
        let answer = client.post(commit, json!({})).await;
        (answer.status.as_u16() == 201).then(|| answer.json()["version"].clone())
    })
    .await
}
