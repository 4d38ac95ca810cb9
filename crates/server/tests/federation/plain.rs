//! Integrity only: copies come without encryption between two sites that have agreed on it, and nothing is believed for that.

use std::time::Duration;

use percale_api::plain::{HELLO, ID_LEN};
use percale_server::Config;
use percale_server::config::FederationConfig;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::{Client, bytes, eventually};
use crate::fabric::Site;
use crate::limits::two;
use crate::meddler::{Alter, Meddler, Passing};
use crate::tasks::{assert_ended, content, copies, damage, good_at, large, nothing_left, run, write_small};

const SMALL: usize = 30;
const LARGE: usize = 24 << 20;

fn agrees(with: &str) -> impl FnOnce(&mut FederationConfig) {
    move |config| config.integrity_only = vec![with.to_owned()]
}

/// Alps behind somebody who meddles, and baltic, each with these settings; data in alps.
async fn with_data(
    alps: impl FnOnce(&mut FederationConfig),
    baltic: impl FnOnce(&mut FederationConfig),
) -> ([Site; 2], Meddler, Client) {
    let meddler = Meddler::start().await;
    let url = meddler.url();
    // It has to lead somewhere before the site that it leads to is joined.
    let alps_config = |config: &mut Config| {
        config.http.listen = free_address();
        meddler.lead_to(config.http.listen);
        config.federation.urls = vec![url];
        alps(&mut config.federation);
    };
    let sites = two(alps_config, |config| baltic(&mut config.federation)).await;
    let alice = sites[0].user("alice").await;
    write_small(&alice, "run7", SMALL).await;
    alice.write("/climate/run7/large", large(LARGE)).await.expect(201);
    // What came before is of no interest.
    meddler.forget();
    (sites, meddler, alice)
}

fn free_address() -> std::net::SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

async fn replicate(client: &Client) -> Value {
    let task = run(client, json!({"kind": "replicate", "path": "/climate/run7", "to": "baltic"})).await;
    assert_ended(&task, "succeeded", SMALL as u64 + 1, 0);
    task
}

/// Checks that baltic has everything, as it is.
async fn is_right(baltic: &Site, what: &str) {
    let there = baltic.user("alice").await;
    good_at(&there, "/climate/run7", &["alps", "baltic"]).await;
    assert!(bytes(&there, "/v1/data/climate/run7/large").await == large(LARGE), "{what}");
    for number in 0..SMALL {
        let read = bytes(&there, &format!("/v1/data/climate/run7/{number:04}")).await;
        assert_eq!(read, content(number), "{what}");
    }
    nothing_left(baltic).await;
}

async fn evict(client: &Client) {
    let task = run(client, json!({"kind": "evict", "path": "/climate/run7", "from": "baltic"})).await;
    assert_ended(&task, "succeeded", SMALL as u64 + 1, 0);
}

async fn suspect(client: &Client) -> Vec<(String, Vec<String>)> {
    let mut copies = copies(client, "/climate/run7", "suspect").await;
    copies.retain(|(_, sites)| !sites.is_empty());
    copies
}

fn contains(all: &[u8], part: &[u8]) -> bool {
    all.windows(part.len()).any(|window| window == part)
}

#[tokio::test(flavor = "multi_thread")]
async fn where_both_sites_agree_copies_come_without_encryption_and_nothing_secret_does() {
    let ([_alps, baltic], meddler, alice) = with_data(agrees("baltic"), agrees("alps")).await;
    let before = baltic.admin.get("/v1/sites/alps").await.expect(200);
    assert_eq!(before["transport"], "integrity_only", "{before}");
    let task = replicate(&alice).await;
    assert_eq!(task["activity"]["transport"], "integrity_only", "{task}");
    is_right(&baltic, "it came without encryption").await;
    // The connections are kept for the next task.
    evict(&alice).await;
    replicate(&alice).await;
    let shown = baltic.admin.get("/v1/sites/alps").await.expect(200);
    assert_eq!(shown["transport"], "integrity_only", "{shown}");

    {
        let seen = meddler.seen();
        // Whoever is on the way has read all of it, and of the requests only ids.
        assert!(seen.back.len() > LARGE, "{}", seen.back.len());
        assert!(contains(&seen.back, &content(SMALL - 1)) && contains(&seen.back, b"/climate/run7/large"));
        let ids = seen.there.len() - seen.connections * HELLO.len();
        assert!(
            ids.is_multiple_of(ID_LEN),
            "{} bytes over {} connections",
            seen.there.len(),
            seen.connections
        );
        let streams = ids / ID_LEN;
        assert!(
            streams > seen.connections,
            "connections are used again: {streams} over {}",
            seen.connections
        );
        // Statements, delegations and tokens are all JWTs.
        assert!(!contains(&seen.there, b"eyJ") && !contains(&seen.back, b"eyJ"));
    }

    // Each site reads its own copies back.
    let spec = json!({"kind": "verify", "path": "/climate/run7"});
    assert_ended(&run(&alice, spec).await, "succeeded", 2 * (SMALL as u64 + 1), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_only_one_site_agrees_all_is_encrypted() {
    let nobody = |_: &mut FederationConfig| {};
    // The source alone: it is not even asked.
    let ([_alps, baltic], meddler, alice) = with_data(agrees("baltic"), nobody).await;
    let task = replicate(&alice).await;
    assert_eq!((&task["activity"]["transport"], meddler.seen().connections), (&json!("tls"), 0), "{task}");
    assert!(task["activity"]["transport_reason"].is_null(), "{task}");
    is_right(&baltic, "only the source agrees").await;

    // The destination alone, or the source with another site.
    for with in [Vec::new(), vec!["coast".to_owned()]] {
        let alps = |config: &mut FederationConfig| config.integrity_only = with;
        let ([_alps, baltic], meddler, alice) = with_data(alps, agrees("alps")).await;
        let task = replicate(&alice).await;
        assert_eq!(task["activity"]["transport"], "tls", "{task}");
        let reason = task["activity"]["transport_reason"].as_str().unwrap();
        assert!(reason.contains("federation.integrity_only"), "{reason}");
        is_right(&baltic, "only the destination agrees").await;
        let shown = baltic.admin.get("/v1/sites/alps").await.expect(200);
        assert_eq!(shown["transport"], "tls", "{shown}");
        assert!(meddler.seen().back.is_empty(), "no frame came without encryption");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_altered_of_small_objects_is_noticed_and_comes_again_over_tls() {
    whatever_is_altered_comes_again(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_altered_of_a_large_object_is_noticed_and_comes_again_over_tls() {
    whatever_is_altered_comes_again(true).await;
}

async fn whatever_is_altered_comes_again(is_large: bool) {
    let ([_alps, mut baltic], meddler, alice) = with_data(agrees("baltic"), agrees("alps")).await;
    let all = [
        Alter::Item,
        Alter::Offset,
        Alter::Length,
        Alter::Hash,
        Alter::Tag,
        Alter::Group,
        Alter::Drop,
        Alter::Repeat,
        Alter::Swap,
        Alter::Replace,
        Alter::Cut,
    ];
    for alter in all {
        meddler.forget();
        meddler.seen().alter = Some((alter, is_large));
        let task = replicate(&alice).await;
        assert_eq!(meddler.seen().alter, None, "{alter:?} was done");
        is_right(&baltic, &format!("{alter:?}")).await;
        assert_eq!(task["activity"]["transport"], "mixed", "{alter:?}: {task}");
        let shown = baltic.admin.get("/v1/sites/alps").await.expect(200);
        assert_eq!(shown["transport"], "tls", "{alter:?}: {shown}");
        let reason = shown["transport_reason"].as_str().unwrap();
        let is_told =
            reason.contains("not what was sent") || (alter == Alter::Cut && reason.contains("broke"));
        assert!(is_told, "{alter:?}: {reason}");
        evict(&baltic.user("alice").await).await;
        // So that it tries without encryption again, at once.
        baltic.stop().await;
        baltic.resume().await;
        baltic.reaches(&["alps"]).await;
    }
    let metrics = baltic.admin.get("/metrics").await;
    assert!(metrics.text.contains("percale_altered_streams_total"), "{}", metrics.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_damaged_at_its_source_is_no_alteration() {
    let ([alps, baltic], _meddler, alice) = with_data(agrees("baltic"), agrees("alps")).await;
    damage(&alps, &large(LARGE));
    let task = run(&alice, json!({"kind": "replicate", "path": "/climate/run7", "to": "baltic"})).await;
    assert_ended(&task, "partial", SMALL as u64, 1);
    // Only what was damaged was asked for over TLS, and alps has found out by itself.
    assert_eq!(task["activity"]["transport"], "mixed", "{task}");
    assert_eq!(suspect(&alice).await, [("/climate/run7/large".to_owned(), vec!["alps".to_owned()])]);
    let shown = baltic.admin.get("/v1/sites/alps").await.expect(200);
    assert!(!shown["transport_reason"].as_str().unwrap().contains("not what was sent"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_connection_without_tls_gets_through_all_is_encrypted() {
    let ([_alps, mut baltic], meddler, alice) = with_data(agrees("baltic"), agrees("alps")).await;
    for passing in [Passing::Silent, Passing::Closed] {
        meddler.seen().passing = passing;
        let task = replicate(&alice).await;
        assert_eq!(task["activity"]["transport"], "tls", "{passing:?}: {task}");
        let reason = task["activity"]["transport_reason"].as_str().unwrap();
        assert!(reason.contains("connection without encryption"), "{passing:?}: {reason}");
        is_right(&baltic, &format!("{passing:?}")).await;
        evict(&baltic.user("alice").await).await;
        baltic.stop().await;
        baltic.resume().await;
        baltic.reaches(&["alps"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_that_only_dials_out_is_read_over_tls() {
    let outgoing = |config: &mut Config| {
        config.federation.outgoing_only = true;
        agrees("alps")(&mut config.federation);
    };
    let [alps, baltic] = two(|config| agrees("baltic")(&mut config.federation), outgoing).await;
    let (here, there) = (alps.user("alice").await, baltic.user("alice").await);
    baltic.sees(&there, "/v1/spaces/climate").await;
    there.write("/climate/a", large(3 << 20)).await.expect(201);
    alps.sees(&here, "/v1/entries/climate/a").await;
    let task = run(&here, json!({"kind": "replicate", "path": "/climate/a", "to": "alps"})).await;
    assert_ended(&task, "succeeded", 1, 0);
    assert_eq!(task["activity"]["transport"], "tls", "{task}");
    let shown = alps.admin.get("/v1/sites/baltic").await.expect(200);
    assert!(shown["transport_reason"].as_str().unwrap().contains("cannot be dialled"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_without_encryption() {
    let [alps, _baltic] = two(
        |config| {
            config.transfers.limit = Some("40Mbit/s".parse().unwrap());
            agrees("baltic")(&mut config.federation);
        },
        |config| agrees("alps")(&mut config.federation),
    )
    .await;
    let alice = alps.user("alice").await;
    alice.write("/climate/large", large(5 << 20)).await.expect(201);
    let task = run(&alice, json!({"kind": "replicate", "path": "/climate/large", "to": "baltic"})).await;
    assert_ended(&task, "succeeded", 1, 0);
    assert_eq!(task["activity"]["transport"], "integrity_only", "{task}");
    assert!(task["activity"]["average"].as_u64().unwrap() < 6_000_000, "{task}");
}

/// Waits until a connection is closed without a word that is no TLS alert.
async fn is_closed(connection: &mut TcpStream) {
    let mut rest = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), connection.read_to_end(&mut rest)).await;
    read.expect("it is closed in time").unwrap_or_default();
    assert!(rest.len() < 64 && !contains(&rest, b"PCFRAME"), "{rest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_closed_and_in_nobodys_way() {
    let alps = |config: &mut Config| {
        config.http.header_timeout = Duration::from_secs(1);
        agrees("baltic")(&mut config.federation);
    };
    let [alps, baltic] = two(alps, |config| agrees("alps")(&mut config.federation)).await;
    let alice = alps.user("alice").await;
    alice.write("/climate/large", large(3 << 20)).await.expect(201);
    let address = alps.running.as_ref().unwrap().address();
    let mut strangers = Vec::new();
    // More than are let in at once.
    for _ in 0..300 {
        let mut silent = TcpStream::connect(address).await.unwrap();
        silent.write_all(b"P").await.unwrap();
        strangers.push(silent);
        strangers.push(TcpStream::connect(address).await.unwrap());
    }
    for junk in [
        &b"PUT / HTTP/1.1\r\n\r\n"[..],
        b"PCPLAIN1",
        b"PCPLAIN1an id of nobody.and more than that",
        b"PCPLAIN2an id of nobody.",
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\x16\x03\x01\x00\x05junk!",
        b"\0",
    ] {
        let mut stranger = TcpStream::connect(address).await.unwrap();
        // It may be closed already.
        let _ = stranger.write_all(junk).await;
        strangers.push(stranger);
    }
    // Meanwhile the site answers, and copies are made; how they come is told.
    alps.admin.get("/v1/sites").await.expect(200);
    let task = run(&alice, json!({"kind": "replicate", "path": "/climate/large", "to": "baltic"})).await;
    assert_ended(&task, "succeeded", 1, 0);
    for stranger in &mut strangers {
        is_closed(stranger).await;
    }
    let evicted = run(&alice, json!({"kind": "evict", "path": "/climate/large", "from": "baltic"})).await;
    assert_ended(&evicted, "succeeded", 1, 0);
    // And afterwards all is as it was.
    let mut baltic = baltic;
    baltic.stop().await;
    baltic.resume().await;
    baltic.reaches(&["alps"]).await;
    eventually("a copy comes without encryption again", || async {
        let task = run(&alice, json!({"kind": "replicate", "path": "/climate/large", "to": "baltic"})).await;
        (task["activity"]["transport"] == "integrity_only").then_some(())
    })
    .await;
}
