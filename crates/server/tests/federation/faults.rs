//! Faults between sites.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::server::Acceptor;

use crate::common::{Client, bytes, eventually, send};
use crate::fabric::{Site, three};
use crate::liar::Liar;
use crate::namespace::shared_space;

/// The files of a site's store, without the folders of its own.
fn files(site: &Site) -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => walk(&path, found),
                false => found.push(path),
            }
        }
    }
    let mut found = Vec::new();
    walk(&site.directory.path().join("disk"), &mut found);
    found.retain(|path| !path.ends_with(".percale/store"));
    found
}

async fn replica(client: &Client, path: &str) -> Value {
    client.get(&format!("/v1/entries{path}")).await.expect(200)["replicas"][0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_sites_that_create_one_path_at_once_one_does() {
    let [alps, baltic, coast] = three().await;
    shared_space(&alps).await;
    let (left, right) = (baltic.user("alice").await, coast.user("alice").await);
    baltic.sees(&left, "/v1/spaces/climate").await;
    coast.sees(&right, "/v1/spaces/climate").await;
    for round in 0..10 {
        let path = format!("/climate/{round}");
        let (one, other) = tokio::join!(left.write(&path, "left"), right.write(&path, "right"));
        let statuses = [one.status.as_u16(), other.status.as_u16()];
        assert!(statuses == [201, 428] || statuses == [428, 201], "{} {}", one.text, other.text);
        let content = if statuses[0] == 201 { "left" } else { "right" };
        for (site, client) in [(&baltic, &left), (&coast, &right)] {
            site.sees(client, &format!("/v1/entries{path}")).await;
            assert_eq!(client.get(&format!("/v1/data{path}")).await.text, content);
        }
    }
    // What lost leaves nothing behind.
    eventually("as many files as objects", || async {
        (files(&baltic).len() + files(&coast).len() == 10).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_copy_at_another_site_is_never_served_and_all_hear_of_it() {
    let [alps, baltic, coast] = three().await;
    shared_space(&alps).await;
    let there = baltic.user("alice").await;
    baltic.sees(&there, "/v1/spaces/climate").await;
    let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 249) as u8).collect();
    there.write("/climate/a", content.clone()).await.expect(201);
    let elsewhere = coast.user("alice").await;
    coast.sees(&elsewhere, "/v1/entries/climate/a").await;
    assert!(bytes(&elsewhere, "/v1/data/climate/a").await == content);

    let key = replica(&there, "/climate/a").await["key"].as_str().unwrap().to_owned();
    let file =
        std::fs::File::options().write(true).open(baltic.directory.path().join("disk").join(key)).unwrap();
    file.write_all_at(b"X", 1_500_000).unwrap();
    let response = elsewhere.request(reqwest::Method::GET, "/v1/data/climate/a").send().await.unwrap();
    let read = response.bytes().await;
    assert!(
        read.is_err(),
        "the body must end before the first wrong byte: {:?} bytes",
        read.map(|bytes| bytes.len())
    );
    for (site, client) in [(&alps, alps.user("alice").await), (&coast, elsewhere)] {
        eventually(&format!("{} hears of the damage", site.name), || async {
            (replica(&client, "/climate/a").await["state"] == "suspect").then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_while_the_home_was_away_leaves_nothing_behind() {
    let [mut alps, baltic, _coast] = three().await;
    shared_space(&alps).await;
    let there = baltic.user("alice").await;
    baltic.sees(&there, "/v1/spaces/climate").await;
    alps.stop().await;
    for round in 0..5 {
        there
            .write(&format!("/climate/{round}"), "lost")
            .await
            .expect_problem_at("site_unavailable", "baltic");
    }
    alps.resume().await;
    eventually("baltic forgets what was given up", || async { files(&baltic).is_empty().then_some(()) })
        .await;
    assert!(there.get("/v1/list/climate").await.expect(200)["items"].as_array().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_goes_on_when_the_home_is_back() {
    let [mut alps, mut baltic, _coast] = three().await;
    shared_space(&alps).await;
    let there = baltic.user("alice").await;
    baltic.sees(&there, "/v1/spaces/climate").await;
    let content = vec![7_u8; 2_000_000];
    let open = json!({"path": "/climate/up", "size": content.len(), "parents": false});
    let upload = there.post("/v1/uploads", open).await.expect(201);
    let id = upload["id"].as_str().unwrap().to_owned();
    let part = there
        .request(reqwest::Method::PATCH, &format!("/v1/uploads/{id}"))
        .header("content-type", "application/offset+octet-stream")
        .header("upload-offset", "0")
        .body(content.clone());
    assert!(send(part).await.status.is_success());
    alps.stop().await;
    let commit = format!("/v1/uploads/{id}/commit");
    there.post(&commit, json!({})).await.expect_problem_at("site_unavailable", "baltic");
    // The site where the bytes lie is started anew in between.
    baltic.stop().await;
    baltic.resume().await;
    alps.resume().await;
    let there = Client { url: baltic.admin.url.clone(), ..there };
    eventually("the upload is committed", || async {
        let answer = there.post(&commit, json!({})).await;
        (answer.status.as_u16() == 201).then_some(())
    })
    .await;
    // Asked again, the answer is the same.
    there.post(&commit, json!({})).await.expect(201);
    assert!(bytes(&there, "/v1/data/climate/up").await == content);
    assert_eq!(files(&baltic).len(), 2, "the content and its tree");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_space_that_cannot_be_followed_does_not_keep_others_back() {
    let (alps, baltic) = tokio::join!(Site::start("alps"), Site::start("baltic"));
    for site in [&alps, &baltic] {
        site.admin.post("/v1/spaces", json!({"name": "same", "owner": "user:alice"})).await.expect(201);
    }
    let open = json!({"name": "open", "owner": "user:alice@site:baltic"});
    alps.admin.post("/v1/spaces", open).await.expect(201);
    baltic.join(&alps.invite().await).await;
    let there = baltic.user("alice").await;
    baltic.sees(&there, "/v1/spaces/open").await;
    eventually("baltic says which name is taken", || async {
        let site = baltic.admin.get("/v1/sites/alps").await.json();
        let is_told = site["fault"].as_str().is_some_and(|fault| fault.contains("'same'"));
        (is_told && site["route"] == "direct").then_some(())
    })
    .await;
    // The follower would pause if it took this for a fault of the site, and the reads would not see the changes.
    for round in 0..20 {
        there.mkdir(&format!("/open/{round}")).await.expect(201);
        there.get(&format!("/v1/entries/open/{round}")).await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_that_answers_garbage_harms_nobody() {
    let [alps, baltic, _coast] = three().await;
    shared_space(&alps).await;
    // It can be dialled, shows its key, and says nonsense to everything.
    let liar = Liar::new("delta");
    let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", tcp.local_addr().unwrap());
    let tls = liar.server_configs();
    let server = tokio::spawn(async move {
        loop {
            let (stream, _) = tcp.accept().await.unwrap();
            let tls = tls.clone();
            tokio::spawn(async move {
                let start = LazyConfigAcceptor::new(Acceptor::default(), stream).await;
                let Ok(start) = start else { return };
                let config = tls.choose(&start.client_hello());
                let Ok(mut stream) = start.into_stream(config).await else { return };
                let mut request = [0; 4096];
                while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                    let body = r#"{"spaces": [{"space": "nonsense"}], "members": 7}"#;
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    liar.join_at(&alps, vec![url]).await;
    eventually("the nonsense is noticed", || async {
        let site = alps.admin.get("/v1/sites/delta").await.expect(200);
        site["fault"].as_str().map(|fault| assert!(!fault.is_empty()))
    })
    .await;
    // The others go on as if nothing were.
    let there = baltic.user("alice").await;
    baltic.sees(&there, "/v1/spaces/climate").await;
    there.write("/climate/a", "one").await.expect(201);
    assert_eq!(alps.user("alice").await.get("/v1/data/climate/a").await.text, "one");
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.abort();
}
