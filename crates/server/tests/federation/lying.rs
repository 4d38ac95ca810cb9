//! A member whose server lies well: it shows the right key, knows who asks for what, and answers with what fits together
//! and is wrong. It was an honest site before, so that all know of good copies there.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use futures::stream;
use hyper_util::rt::TokioIo;
use percale_api::peer::{Changed, Changes, JournalRecord, Roster, SpaceChanges};
use percale_api::uploads::Pull;
use percale_core::ids::{SiteId, SpaceId};
use percale_core::tree::{GROUP_SIZE, HashTree, hash_group};
use percale_core::{ByteCount, Timestamp};
use percale_federation::Acting;
use percale_mover::Encoder;
use percale_trust::site_key::SITE_KEY_FILE;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::server::Acceptor;

use crate::common::{bytes, eventually};
use crate::fabric::Site;
use crate::liar::Liar;
use crate::tasks::{
    assert_ended, content, copies, ended, good_at, large, nothing_left, run, submit, with_space, write_small,
};

/// What is wrong with what it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// The hash tree of another content, good in itself.
    OtherTree,
    /// Other bytes of the same length, with the hashes of those.
    OtherBytes,
    /// Each item has the bytes of its neighbour.
    Swapped,
    /// Whole items of another length.
    Longer,
    Shorter,
    /// Items that were not asked for, besides those that were.
    Unasked,
    /// The same good group for ever.
    SameForEver,
    /// The same word for ever.
    DoneForEver,
    /// An end without what was asked for.
    Nothing,
}

#[derive(Default)]
struct Lies {
    now: Option<Lie>,
    told: usize,
    /// What it says is new, once.
    changes: Option<SpaceChanges>,
    snapshots: usize,
}

#[derive(Clone)]
struct World {
    roster: Roster,
    /// The true contents, by the last name of their path.
    contents: Arc<HashMap<String, Vec<u8>>>,
    lies: Arc<Mutex<Lies>>,
}

/// A site's server in place of the site's own.
struct Impostor {
    world: World,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Impostor {
    /// Takes a stopped site's place.
    async fn of(site: &Site, id: SiteId, roster: Roster, contents: HashMap<String, Vec<u8>>) -> Self {
        let tls =
            Liar::thief(site.name, id, &site.config.site.state_dir.join(SITE_KEY_FILE)).server_configs();
        let world = World { roster, contents: Arc::new(contents), lies: Arc::default() };
        let router = Router::new()
            .route("/v1/peer/roster", post(|State(world): State<World>| async move { Json(world.roster) }))
            .route("/v1/peer/changes", post(changes))
            .route("/v1/peer/snapshot/{space}", get(snapshot))
            .route("/v1/peer/trees/{space}/{version}", get(tree))
            .route("/v1/frames/pull", post(pull))
            .with_state(world.clone());
        let tcp = TcpListener::bind(site.config.http.listen).await.unwrap();
        let serving = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = tcp.accept().await.unwrap();
                let (tls, router) = (tls.clone(), router.clone());
                connections.spawn(async move {
                    let Ok(start) = LazyConfigAcceptor::new(Acceptor::default(), stream).await else {
                        return;
                    };
                    let config = tls.choose(&start.client_hello());
                    let Ok(stream) = start.into_stream(config).await else { return };
                    let service = hyper_util::service::TowerToHyperService::new(router);
                    let server = hyper::server::conn::http1::Builder::new();
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { world, serving }
    }

    fn lies(&self) -> std::sync::MutexGuard<'_, Lies> {
        self.world.lies.lock().unwrap()
    }
}

async fn changes(State(world): State<World>, Json(asked): Json<Changes>) -> Json<Changed> {
    let told = world.lies.lock().unwrap().changes.take();
    if told.is_none() && asked.known.is_some() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let now_us = Timestamp::now().as_micros();
    let spaces = told.into_iter().collect();
    Json(Changed { spaces, homes: None, stores: None, known: "nothing".into(), now_us, window: None })
}

async fn snapshot(State(world): State<World>, Path(_): Path<SpaceId>) -> Response {
    world.lies.lock().unwrap().snapshots += 1;
    http::StatusCode::NOT_FOUND.into_response()
}

fn altered(content: &[u8]) -> Vec<u8> {
    content.iter().map(|byte| byte ^ 1).collect()
}

async fn tree(State(world): State<World>) -> Response {
    let content = &world.contents["large"];
    let mut lies = world.lies.lock().unwrap();
    let tree = match lies.now {
        Some(Lie::OtherTree) => {
            lies.told += 1;
            HashTree::of(&altered(content))
        }
        _ => HashTree::of(content),
    };
    ([(http::header::CONTENT_TYPE, percale_api::media::TREE)], tree.encode()).into_response()
}

/// Adds a whole item whose hashes are those of its bytes.
fn add(encoder: &mut Encoder, content: &[u8]) {
    let size = ByteCount(content.len() as u64);
    let item = encoder.item(size, b"{}");
    for (group, bytes) in content.chunks(GROUP_SIZE as usize).enumerate() {
        let hash = hash_group(size, group as u64, bytes);
        encoder.data(item, group as u64 * GROUP_SIZE, hash, Bytes::copy_from_slice(bytes));
    }
    encoder.done(item, b"{}");
}

fn taken(encoder: &mut Encoder) -> Vec<u8> {
    encoder.flush();
    let mut pieces = Vec::new();
    while let Some(piece) = encoder.next() {
        pieces.extend_from_slice(&piece);
    }
    pieces
}

async fn pull(State(world): State<World>, Json(Pull { items }): Json<Pull>) -> Response {
    let lie = {
        let mut lies = world.lies.lock().unwrap();
        lies.told += 1;
        lies.now.unwrap()
    };
    let wanted: Vec<&Vec<u8>> = items.iter().map(|item| &world.contents[item.path.name().unwrap()]).collect();
    let mut encoder = Encoder::new();
    let mut for_ever = None;
    match lie {
        Lie::OtherTree | Lie::OtherBytes => {
            wanted.iter().for_each(|content| add(&mut encoder, &altered(content)));
        }
        Lie::Swapped => {
            for at in 0..wanted.len() {
                let (own, neighbour) = (wanted[at], wanted[(at + 1) % wanted.len()]);
                // Of the length that is expected.
                let mut bytes = neighbour.clone();
                bytes.resize(own.len(), 7);
                bytes.reverse();
                add(&mut encoder, &bytes);
            }
        }
        Lie::Longer => {
            wanted.iter().for_each(|content| add(&mut encoder, &[content.as_slice(), b"!"].concat()))
        }
        Lie::Shorter => wanted.iter().for_each(|content| add(&mut encoder, &content[1..])),
        Lie::Unasked => {
            for _ in 0..=wanted.len() {
                add(&mut encoder, &altered(wanted[0]));
            }
        }
        Lie::SameForEver | Lie::DoneForEver => {
            let first = &wanted[0][..wanted[0].len().min(GROUP_SIZE as usize)];
            let size = ByteCount(wanted[0].len() as u64);
            let item = encoder.item(size, b"{}");
            let begun = taken(&mut encoder);
            match lie {
                Lie::SameForEver => {
                    let hash = hash_group(size, 0, first);
                    encoder.data(item, 0, hash, Bytes::copy_from_slice(first));
                }
                _ => encoder.done(item, b"{}"),
            }
            for_ever = Some((Bytes::from(begun), Bytes::from(taken(&mut encoder))));
        }
        Lie::Nothing => {}
    }
    let body = match for_ever {
        Some((begun, again)) => {
            let again = stream::repeat(again);
            Body::from_stream(futures::StreamExt::map(
                futures::StreamExt::chain(stream::iter([begun]), again),
                Ok::<_, Infallible>,
            ))
        }
        None => {
            encoder.end();
            Body::from(taken(&mut encoder))
        }
    };
    ([(http::header::CONTENT_TYPE, percale_api::media::FRAMES)], body).into_response()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_lies_well_is_refused_and_another_one_used() {
    const SMALL: usize = 20;
    let [alps, mut baltic, coast] = with_space().await;
    let (here, elsewhere) = (alps.user("alice").await, coast.user("alice").await);
    write_small(&here, "run7", SMALL).await;
    let whole = large(2_500_000);
    here.write("/climate/run7/large", whole.clone()).await.expect(201);
    run(&here, json!({"kind": "replicate", "path": "/climate/run7", "to": "baltic"})).await;
    good_at(&elsewhere, "/climate/run7", &["alps", "baltic"]).await;
    let fabric = alps.running.as_ref().unwrap().app().fabric.clone();
    let id = fabric.named("baltic").unwrap().id;
    baltic.stop().await;
    let mut contents: HashMap<String, Vec<u8>> =
        (0..SMALL).map(|number| (format!("{number:04}"), content(number))).collect();
    contents.insert("large".into(), whole.clone());
    let impostor = Impostor::of(&baltic, id, fabric.roster().to_wire(), contents.clone()).await;

    for lie in [
        // The first, since who has a good tree keeps it.
        Lie::OtherTree,
        Lie::OtherBytes,
        Lie::Swapped,
        Lie::Longer,
        Lie::Shorter,
        Lie::Unasked,
        Lie::SameForEver,
        Lie::DoneForEver,
        Lie::Nothing,
    ] {
        *impostor.lies() = Lies { now: Some(lie), ..Lies::default() };
        let spec = json!({"kind": "replicate", "path": "/climate/run7", "to": "coast", "from": "baltic"});
        assert_ended(&run(&elsewhere, spec).await, "succeeded", SMALL as u64 + 1, 0);
        let told = impostor.lies().told;
        assert!(told >= 2, "{lie:?}: it was asked first for the small ones and for the large one: {told}");
        good_at(&elsewhere, "/climate/run7", &["alps", "baltic", "coast"]).await;
        for (name, content) in &contents {
            let read = bytes(&elsewhere, &format!("/v1/data/climate/run7/{name}")).await;
            assert!(read == *content, "{lie:?}: {name}");
        }
        nothing_left(&coast).await;
        let task = run(&elsewhere, json!({"kind": "evict", "path": "/climate/run7", "from": "coast"})).await;
        assert_ended(&task, "succeeded", SMALL as u64 + 1, 0);
    }

    // With no other source there is no copy, and an error that names the one that lies.
    *impostor.lies() = Lies { now: Some(Lie::OtherBytes), ..Lies::default() };
    let task = run(&here, json!({"kind": "evict", "path": "/climate/run7", "from": "alps"})).await;
    assert_ended(&task, "succeeded", SMALL as u64 + 1, 0);
    good_at(&elsewhere, "/climate/run7", &["baltic"]).await;
    let id = submit(&elsewhere, json!({"kind": "replicate", "path": "/climate/run7", "to": "coast"})).await;
    assert_ended(&ended(&elsewhere, &id).await, "partial", 0, SMALL as u64 + 1);
    let items = elsewhere.get(&format!("/v1/tasks/{id}/items")).await.expect(200);
    for item in items["items"].as_array().unwrap() {
        assert_eq!(item["code"], "integrity", "{items}");
        assert!(item["detail"].as_str().unwrap().contains("baltic"), "{items}");
    }
    good_at(&elsewhere, "/climate/run7", &["baltic"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_home_that_replays_records_moves_nobody() {
    let [alps, mut baltic, mut coast] = with_space().await;
    let here = alps.user("alice").await;
    here.write("/climate/kept", "kept").await.expect(201);
    let space = json!({"name": "sea", "owner": "user:alice"});
    let sea: SpaceId =
        baltic.admin.post("/v1/spaces", space).await.expect(201)["id"].as_str().unwrap().parse().unwrap();
    let there = baltic.user("alice").await;
    let grant = json!({"subject": "user:alice@site:alps", "permission": "manage"});
    baltic.admin.put("/v1/grants/sea", grant).await.expect(200);
    for name in ["a", "b", "c"] {
        there.write(&format!("/sea/{name}"), name).await.expect(201);
    }
    there.delete("/v1/entries/sea/b").await.expect(204);
    alps.sees(&here, "/v1/entries/sea/c").await;
    let app = alps.running.as_ref().unwrap().app().clone();
    let id = app.fabric.named("baltic").unwrap().id;
    let listed = async || {
        eventually("alps knows what there is", || async {
            let listed = copies(&here, "/sea", "good").await;
            (listed.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>() == ["/sea/a", "/sea/c"])
                .then_some(())
        })
        .await;
    };
    listed().await;
    // What the home has ever said, and of another space what its own home has said.
    let all = async |home: SiteId, space: SpaceId, term: u32| {
        let mut from = app.catalog.position(space).await.unwrap();
        (from.term, from.seq) = (term, 0);
        let asked = Changes { positions: vec![from], known: None, wait_s: 0 };
        let answer = app.fabric.client(home, &Acting::Site).unwrap().peer_changes(&asked).await.unwrap();
        answer.spaces.into_iter().find(|one| one.space == space).unwrap().records
    };
    let records: Vec<JournalRecord> = all(id, sea, 1).await;
    assert!(records.len() > 4, "{records:?}");
    let stands = app.catalog.position(sea).await.unwrap();
    assert_eq!(records.last().unwrap().position, stands);
    let climate: SpaceId =
        here.get("/v1/spaces/climate").await.expect(200)["id"].as_str().unwrap().parse().unwrap();
    let climate_stands = app.catalog.position(climate).await.unwrap();
    // It would hear what is meant for the first.
    coast.stop().await;
    baltic.stop().await;

    let impostor = Impostor::of(&baltic, id, app.fabric.roster().to_wire(), HashMap::new()).await;
    let moved = |by: u64, term: u32, space: SpaceId, records: &[JournalRecord]| {
        let mut records = records.to_vec();
        for record in &mut records {
            record.position.seq += by;
            record.position.term = term;
            record.position.space = space;
        }
        records
    };
    for (what, space, records) in [
        ("all of it again", sea, records.clone()),
        ("a part again", sea, records[2..4].to_vec()),
        ("in another order", sea, records.iter().rev().cloned().collect()),
        ("again, as if it were new", sea, moved(stands.seq, 1, sea, &records)),
        ("with a gap", sea, moved(stands.seq + 7, 1, sea, &records)),
        ("of an earlier term", sea, moved(stands.seq, 0, sea, &records)),
        ("of a term that nobody has", sea, moved(0, 9, sea, &records)),
        ("about a space of this site", climate, moved(climate_stands.seq, 1, climate, &records)),
    ] {
        impostor.lies().changes = Some(SpaceChanges { space, records, is_gone: false });
        eventually("it is told", || async { impostor.lies().changes.is_none().then_some(()) }).await;
        // The next question comes once the answer was taken, or refused.
        impostor.lies().changes = Some(SpaceChanges { space: sea, records: Vec::new(), is_gone: false });
        eventually("the next is asked", || async { impostor.lies().changes.is_none().then_some(()) }).await;
        assert_eq!(app.catalog.position(sea).await.unwrap(), stands, "{what}");
        assert_eq!(app.catalog.position(climate).await.unwrap(), climate_stands, "{what}");
        listed().await;
        assert_eq!(here.get("/v1/data/climate/kept").await.text, "kept", "{what}");
    }
    // What only a later release understands.
    let mut later = moved(stands.seq, 1, sea, &records[..1]);
    later[0].v = 99;
    impostor.lies().changes = Some(SpaceChanges { space: sea, records: later, is_gone: false });
    eventually("a search says that the site cannot be followed", || async {
        let page = here.get("/v1/search?q=name:a").await.expect(200);
        let away = &page["away"][0];
        (away["site"] == "baltic" && away["why"].is_string() && page["items"][0]["path"] == "/sea/a")
            .then_some(())
    })
    .await;
    drop(impostor);
    baltic.resume().await;
    baltic.user("alice").await.write("/sea/d", "d").await.expect(201);
    alps.sees(&here, "/v1/entries/sea/d").await;
    assert_eq!(here.get("/v1/data/sea/d").await.text, "d");
}
