//! The port by itself: how bodies arrive, what happens to clients that stand still.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::routing::{get, put};
use axum::{Extension, Router};
use bytes::Bytes;
use futures::StreamExt as _;
use percale_core::Timestamp;
use percale_mover::Line;
use percale_server::config::HttpConfig;
use percale_server::listener::Listener;
use percale_trust::ServerTls;
use percale_trust::tls::CertificateSource;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

fn limits() -> HttpConfig {
    HttpConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        stall_timeout: Duration::from_secs(1),
        drain_timeout: Duration::from_secs(1),
        ..HttpConfig::default()
    }
}

async fn serve(
    limits: HttpConfig,
    router: Router,
    tls: Option<&ServerTls>,
) -> (SocketAddr, CancellationToken) {
    let listener = Listener::bind(&limits, tls.map(ServerTls::configs)).await.unwrap();
    let address = listener.address().unwrap();
    let stop = CancellationToken::new();
    tokio::spawn(listener.serve(router, stop.clone()));
    (address, stop)
}

/// Notes how large the pieces of a body are.
fn measuring(sizes: Arc<Mutex<Vec<usize>>>) -> Router {
    let handler = move |body: Body| async move {
        let mut stream = body.into_data_stream();
        while let Some(Ok(piece)) = stream.next().await {
            // About as long as hashing and writing takes, during which more arrives.
            tokio::time::sleep(Duration::from_micros(piece.len() as u64 / 1000)).await;
            sizes.lock().unwrap().push(piece.len());
        }
    };
    Router::new().route("/", put(handler))
}

fn own_tls(directory: &Path) -> ServerTls {
    percale_trust::install_crypto_provider();
    let source = CertificateSource::OwnCa { directory: directory.into(), names: vec!["127.0.0.1".into()] };
    ServerTls::load(source, None, Timestamp::now()).unwrap()
}

/// Returns a client, and the scheme that it speaks.
fn client(tls: Option<&ServerTls>) -> (reqwest::Client, &'static str) {
    let client = reqwest::Client::builder().no_proxy();
    let client = match tls.and_then(ServerTls::ca_file) {
        Some(ca) => client.tls_backend_preconfigured(percale_trust::client_config(Some(&ca)).unwrap()),
        None => client,
    };
    (client.build().unwrap(), if tls.is_some() { "https" } else { "http" })
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_arrive_in_large_pieces_with_and_without_tls() {
    let directory = tempfile::tempdir().unwrap();
    let tls = own_tls(directory.path());
    for tls in [None, Some(&tls)] {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let (address, _stop) = serve(limits(), measuring(sizes.clone()), tls).await;
        let (client, scheme) = client(tls);
        let pieces =
            futures::stream::iter((0..64).map(|_| Ok::<_, std::io::Error>(Bytes::from(vec![1; 1 << 20]))));
        let request = client.put(format!("{scheme}://{address}/"));
        let answer = request.body(reqwest::Body::wrap_stream(pieces)).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let sizes = sizes.lock().unwrap();
        let mean = sizes.iter().sum::<usize>() / sizes.len();
        println!(
            "{scheme}: {} pieces, {mean} bytes on average, {:?} at most",
            sizes.len(),
            sizes.iter().max()
        );
        assert_eq!(sizes.iter().sum::<usize>(), 64 << 20);
        assert!(mean >= 64 * 1024, "{scheme}: {mean} bytes on average");
    }
}

/// Returns a number that the kernel says last of a setting.
fn setting(name: &str) -> u64 {
    let value = std::fs::read_to_string(format!("/proc/sys/net/{name}")).unwrap();
    value.split_whitespace().last().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_serves_a_request_may_bound_its_connection_where_the_kernel_lets_it() {
    let router = || {
        let line = |line: Option<Extension<Line>>| async move { line.is_some().to_string() };
        Router::new().route("/", get(line))
    };
    let directory = tempfile::tempdir().unwrap();
    let tls = own_tls(directory.path());
    let is_allowed = setting("core/wmem_max") >= setting("ipv4/tcp_wmem") / 2;
    for tls in [None, Some(&tls)] {
        let (address, _stop) = serve(limits(), router(), tls).await;
        let (client, scheme) = client(tls);
        let answer = client.get(format!("{scheme}://{address}/")).send().await.unwrap();
        let expected = tls.is_some() && is_allowed;
        assert_eq!(answer.text().await.unwrap(), expected.to_string(), "{scheme}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_take_its_answer_is_let_go() {
    let ended = CancellationToken::new();
    let guard = ended.clone();
    let endless = move || {
        let guard = guard.clone().drop_guard();
        async move {
            let pieces = futures::stream::repeat_with(move || {
                let _ = &guard;
                Ok::<_, std::io::Error>(Bytes::from(vec![0; 1 << 20]))
            });
            Body::from_stream(pieces)
        }
    };
    let (address, _stop) = serve(limits(), Router::new().route("/", get(endless)), None).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut head = [0; 15];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200 OK");
    // Nothing more is read; the answer's body must be dropped all the same.
    tokio::time::timeout(Duration::from_secs(10), ended.cancelled()).await.expect("the body is dropped");
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_end_no_connection_outlives_the_time_to_drain() {
    let waiting = || async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        "late"
    };
    let listener = Listener::bind(&limits(), None).await.unwrap();
    let address = listener.address().unwrap();
    let stop = CancellationToken::new();
    let router = Router::new().route("/", get(waiting)).route("/quick", get(|| async { "ok" }));
    let serving = tokio::spawn(listener.serve(router, stop.clone()));
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut idle = TcpStream::connect(address).await.unwrap();
    idle.write_all(b"GET /quick HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    idle.read_exact(&mut answer).await.unwrap();
    let begun = Instant::now();
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(10), serving).await.expect("it ends").unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(900), "the slow request was not waited for");
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).await.unwrap();
    assert_eq!(slow.read(&mut answer).await.unwrap_or(0), 0, "the slow request was answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_limit_connections_wait_and_are_served_later() {
    let limits = HttpConfig { max_connections: 1, ..limits() };
    let (address, _stop) = serve(limits, Router::new().route("/", get(|| async { "ok" })), None).await;
    let mut first = TcpStream::connect(address).await.unwrap();
    first.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = [0; 15];
    first.read_exact(&mut answer).await.unwrap();
    let mut second = TcpStream::connect(address).await.unwrap();
    second.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(300), second.read_exact(&mut answer)).await;
    assert!(early.is_err(), "the second connection was served beside the first");
    drop(first);
    tokio::time::timeout(Duration::from_secs(10), second.read_exact(&mut answer)).await.unwrap().unwrap();
}
