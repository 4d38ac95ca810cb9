//! What the client makes of answers: problems, waiting, trying again, silence, junk. The server is a script of answers.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

mod common;

use std::io::Write;
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use percale_api::Problem;
use percale_api::peer::Changes;
use percale_api::spaces::NewSpace;
use percale_client::{Client, ClientOptions, ErrorKind, Retry};
use percale_core::ids::SpaceId;
use percale_core::{ErrorCode, Position};

use crate::common::read_head;

/// What the server does with the next request.
enum Step {
    /// Answers with this status, further header lines, and body.
    Answer(u16, &'static str, String),
    /// Closes the connection without an answer.
    Close,
    /// Says nothing for as long as the test lasts.
    Silence,
}

/// Serves the steps, one request each, and reports the requests' heads.
fn server(steps: Vec<Step>) -> (Client, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = ClientOptions::new(format!("http://{}", listener.local_addr().unwrap()));
    options.stall_timeout = Duration::from_millis(300);
    options.retry.give_up_after = Duration::from_secs(5);
    let (sender, heads) = mpsc::channel();
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for step in steps {
            let (mut stream, _) = listener.accept().unwrap();
            sender.send(read_head(&stream)).unwrap();
            match step {
                Step::Answer(status, fields, body) => {
                    let len = body.len();
                    let head = format!(
                        "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {len}\r\n{fields}\r\n"
                    );
                    stream.write_all(head.as_bytes()).unwrap();
                    stream.write_all(body.as_bytes()).unwrap();
                }
                Step::Close => {}
                Step::Silence => silent.push(stream),
            }
        }
    });
    (Client::new(options).unwrap(), heads)
}

fn problem(code: ErrorCode) -> String {
    serde_json::to_string(&Problem::new(code, "the reason")).unwrap()
}

fn ok(body: &str) -> Step {
    Step::Answer(200, "", body.to_owned())
}

const SITE: &str = r#"{"id": "01a1fc81-e7b4-726c-bd1f-42d64c73166c", "name": "alps", "version": "0.1.0"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_keeps_its_code_its_hint_and_its_trace() {
    let (client, heads) = server(vec![Step::Answer(404, "", problem(ErrorCode::NotFound))]);
    let error = client.stat(&"/s/a b".parse().unwrap()).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.code(), error.retry()),
        (ErrorKind::Problem, ErrorCode::NotFound, Retry::Permanent)
    );
    assert_eq!(error.to_string(), "cannot stat /s/a b: the reason");
    assert_eq!(error.hint(), ErrorCode::NotFound.remedy());
    let head = heads.recv().unwrap();
    assert!(head.starts_with("get /v1/entries/s/a%20b "), "{head}");
    let trace = error.trace_id().unwrap();
    assert!(head.contains(&format!("traceparent: 00-{trace}-")), "{head}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_away_is_asked_again_no_sooner_than_it_says() {
    let (client, _heads) = server(vec![
        Step::Answer(503, "Retry-After: 1\r\n", problem(ErrorCode::CatalogUnavailable)),
        Step::Answer(502, "", "<html>Bad Gateway</html>".to_owned()),
        Step::Close,
        ok(SITE),
    ]);
    let began = Instant::now();
    assert_eq!(client.site().await.unwrap().name, "alps");
    assert!(began.elapsed() >= Duration::from_secs(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_something_is_repeated_under_one_key() {
    let space = r#"{"id": "01a1fc81-e7b4-726c-bd1f-42d64c73166c", "name": "s", "owner": "user:a", "scope": "private",
        "position": "p", "created": "2026-11-21T00:00:00Z"}"#;
    let (client, heads) = server(vec![Step::Close, ok(space)]);
    let new = NewSpace::new("s".parse().unwrap());
    client.create_space(&new).await.unwrap();
    let key =
        |head: String| head.lines().find(|line| line.starts_with("idempotency-key:")).unwrap().to_owned();
    assert_eq!(key(heads.recv().unwrap()), key(heads.recv().unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_whose_answer_was_lost_is_done() {
    let (client, _heads) = server(vec![Step::Close, Step::Answer(404, "", problem(ErrorCode::NotFound))]);
    client.remove(&"/s/a".parse().unwrap(), false, None).await.unwrap();
    // But what was never there is an error.
    let (client, _heads) = server(vec![Step::Answer(404, "", problem(ErrorCode::NotFound))]);
    assert!(client.remove(&"/s/a".parse().unwrap(), false, None).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_ends_and_junk_is_no_site() {
    let (client, _heads) = server(vec![Step::Silence, ok(SITE)]);
    client.site().await.unwrap();

    let (client, _heads) = server(vec![ok("<html>It works!</html>")]);
    let error = client.site().await.unwrap_err();
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Protocol, Retry::Permanent));
    let (client, _heads) = server(vec![Step::Answer(302, "Location: http://elsewhere/\r\n", String::new())]);
    let error = client.site().await.unwrap_err();
    assert!(error.to_string().contains("302"), "{error}");
}

#[tokio::test]
async fn a_site_that_is_not_there_is_named() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut options = ClientOptions::new(format!("http://{closed}"));
    options.retry.give_up_after = Duration::ZERO;
    let error = Client::new(options).unwrap().whoami().await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Connection, ErrorCode::SiteUnavailable));
    let text = error.to_string();
    assert!(text.contains(&format!("no connection to http://{closed}: ")), "{text}");
    assert!(text.contains("refused") && !text.contains("client error"), "{text}");
}

#[tokio::test]
async fn what_is_long_is_compressed_for_a_site_that_says_so_and_sent_as_it_is_to_one_that_cannot_read_it() {
    const TAKES: &str = "Accept-Encoding: identity, GZip;q=0.5\r\n";
    let changed = || Step::Answer(200, TAKES, "{}".into());
    let refused = Step::Answer(400, "", problem(ErrorCode::InvalidRequest));
    let silent = || Step::Answer(200, "", String::new());
    let (client, heads) = server(vec![changed(), changed(), refused, silent(), silent()]);
    // To an address of loopback nothing is compressed. This one is none by its looks.
    let url = client.url().as_str().replace("127.0.0.1", "0.0.0.0");
    let client = Client::new(ClientOptions::new(url)).unwrap();
    let position = Position { space: SpaceId::new(), term: 1, seq: 1 };
    let ask = async |count| {
        let changes = Changes { positions: vec![position; count], known: None, wait_s: 0 };
        drop(client.peer_changes(&changes).await);
    };
    let next = || {
        let head = heads.recv_timeout(Duration::from_secs(10)).unwrap();
        let field = |name| head.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        (field("content-encoding: "), field("content-length: ").unwrap().parse::<usize>().unwrap())
    };
    ask(200).await;
    let (coding, len) = next();
    assert_eq!(coding, None, "it has not said anything yet");
    ask(200).await;
    let (compressed, short) = next();
    assert_eq!(compressed.as_deref(), Some("gzip"));
    assert!(short * 10 < len, "{short} of {len}");
    ask(200).await;
    assert_eq!(next().0.as_deref(), Some("gzip"));
    assert_eq!(next(), (None, len), "it is an older release now");
    ask(200).await;
    assert_eq!(next().0, None);
}
