//! What the client does when the site that it asks names another one, and that one is not what it should be. The site that
//! is asked is a script of answers.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};

use bytes::Bytes;
use percale_api::away::Place;
use percale_api::entries::Entry;
use percale_client::get::GetOptions;
use percale_client::{Client, ClientOptions};
use percale_core::ids::SiteId;
use percale_core::tree::{HashTree, hash_group};
use percale_core::{ByteCount, Position, Timestamp};
use percale_mover::Encoder;
use percale_trust::tls::{CertificateSource, SiteCertificate, TlsConfigs};
use percale_trust::{ServerTls, SiteKey};

use crate::common::read_head;

const CONTENT: &[u8] = b"what is in the object";

/// What the site that is asked answers to the next request.
enum Answer {
    /// The entry of the object.
    Entry,
    /// Its bytes.
    Bytes,
    /// Other bytes.
    Wrong,
    /// The place where they are.
    Away(Place),
    /// A frame that names a place that was not described.
    Nowhere,
}

fn root() -> String {
    HashTree::of(CONTENT).root().to_string()
}

fn entry() -> String {
    let time = "2026-11-21T00:00:00Z";
    format!(
        r#"{{"path": "/s/a", "kind": "object", "id": 1, "modified": "{time}", "created": "{time}", "content":
        {{"version": 7, "size": {}, "root": "{}", "mtime": "{time}", "modified": "{time}", "digests": []}}}}"#,
        CONTENT.len(),
        root()
    )
}

fn frames(answer: &Answer) -> Vec<u8> {
    let mut encoder = Encoder::new();
    let info = format!(r#"{{"path": "/s/a", "version": 7, "root": "{}"}}"#, root());
    let size = ByteCount(CONTENT.len() as u64);
    let item = encoder.item(size, info.as_bytes());
    match answer {
        Answer::Away(place) => encoder.away(item, 0, &serde_json::to_vec(place).unwrap()),
        Answer::Nowhere => encoder.away(item, 3, b""),
        answer => {
            let mut bytes = CONTENT.to_vec();
            if matches!(answer, Answer::Wrong) {
                bytes.reverse();
            }
            let bytes = Bytes::from(bytes);
            encoder.data(item, 0, hash_group(size, 0, &bytes), bytes);
            encoder.done(item, b"{}");
        }
    }
    encoder.end();
    std::iter::from_fn(|| encoder.next()).flatten().collect()
}

fn reply(stream: &mut (impl Read + Write), answer: &Answer) -> String {
    let head = read_head(&mut *stream);
    let body = match answer {
        Answer::Entry => entry().into_bytes(),
        answer => frames(answer),
    };
    let len = body.len();
    let answer = format!("HTTP/1.1 200 X\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n");
    stream.write_all(answer.as_bytes()).unwrap();
    stream.write_all(&body).unwrap();
    stream.flush().unwrap();
    head
}

/// Serves the answers, one request each, and reports the requests' heads.
fn asked(answers: Vec<Answer>) -> (Client, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client =
        Client::new(ClientOptions::new(format!("http://{}", listener.local_addr().unwrap()))).unwrap();
    let (sender, heads) = channel();
    std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            sender.send(reply(&mut stream, &answer)).unwrap();
        }
    });
    (client, heads)
}

fn place(url: String, keys: Vec<String>) -> Place {
    let space = "0199a2b4-0000-7000-8000-000000000001".parse().unwrap();
    let position = Position { space, term: 1, seq: 2 };
    let ticket = "the.ticket.text".to_owned();
    Place { site: SiteId::new(), name: "baltic".into(), url, keys, ticket, life_s: 300, position }
}

/// Another site, of which there is a key and a port.
struct Other {
    listener: TcpListener,
    tls: TlsConfigs,
    key: String,
    _state: tempfile::TempDir,
}

impl Other {
    fn new() -> Self {
        percale_trust::install_crypto_provider();
        let state = tempfile::tempdir().unwrap();
        let key = SiteKey::load_or_create(state.path()).unwrap();
        let certificate = SiteCertificate::new(&key, SiteId::new(), Timestamp::now()).unwrap();
        let names = vec!["localhost".to_owned()];
        let source = CertificateSource::OwnCa { directory: state.path().join("tls"), names };
        let tls = ServerTls::load(source, Some(certificate), Timestamp::now()).unwrap().configs();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self { listener, tls, key: key.public().to_string(), _state: state }
    }

    fn url(&self) -> String {
        format!("https://{}", self.listener.local_addr().unwrap())
    }

    /// Serves the answers, one connection each, and reports the requests' heads; connections on which there is no request
    /// count as none.
    fn serve(self, answers: Vec<Answer>) -> Receiver<String> {
        let (sender, heads) = channel();
        std::thread::spawn(move || {
            for answer in answers {
                let (tcp, _) = self.listener.accept().unwrap();
                if let Some(mut stream) = accept(tcp, &self.tls) {
                    sender.send(reply(&mut stream, &answer)).unwrap();
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                }
            }
        });
        heads
    }
}

type Tls = rustls::StreamOwned<rustls::ServerConnection, TcpStream>;

fn accept(mut tcp: TcpStream, tls: &TlsConfigs) -> Option<Tls> {
    let mut acceptor = rustls::server::Acceptor::default();
    let accepted = loop {
        acceptor.read_tls(&mut tcp).ok()?;
        if let Some(accepted) = acceptor.accept().ok()? {
            break accepted;
        }
    };
    let config = tls.choose(&accepted.client_hello());
    let mut connection = accepted.into_connection(config).ok()?;
    while connection.is_handshaking() {
        connection.complete_io(&mut tcp).ok()?;
    }
    assert!(connection.peer_certificates().is_none(), "it shows nothing of its own");
    Some(rustls::StreamOwned::new(connection, tcp))
}

fn redirect(head: &str) -> Option<&str> {
    head.lines().find_map(|line| line.strip_prefix("percale-redirect: "))
}

async fn read(client: &Client) -> Vec<u8> {
    let entry: Entry = serde_json::from_str(&entry()).unwrap();
    let mut read = client.read_entry(&entry, None).await.unwrap();
    let mut got = Vec::new();
    while let Some(bytes) = read.next().await.unwrap() {
        got.extend_from_slice(&bytes);
    }
    got
}

async fn get(client: &Client, folder: &Path) -> Vec<u8> {
    let local = folder.join("got");
    let report = client.get_file(&"/s/a".parse().unwrap(), &local, &GetOptions::default()).await.unwrap();
    assert_eq!((report.done, report.failed), (1, 0), "{report:?}");
    let got = std::fs::read(&local).unwrap();
    std::fs::remove_file(&local).unwrap();
    got
}

#[tokio::test(flavor = "multi_thread")]
async fn it_goes_to_the_site_whose_key_it_was_told_with_the_ticket() {
    let other = Other::new();
    let place = place(other.url(), vec![Other::new().key, other.key.clone()]);
    let there = other.serve(vec![Answer::Bytes, Answer::Bytes]);
    let (client, here) = asked(vec![Answer::Away(place.clone()), Answer::Entry, Answer::Away(place)]);
    assert_eq!(read(&client).await, CONTENT);
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(get(&client, folder.path()).await, CONTENT);
    assert_eq!(redirect(&here.recv().unwrap()), Some("follow"));
    for _ in 0..2 {
        let head = there.recv().unwrap();
        assert!(head.starts_with("post /v1/frames/pull http"), "{head}");
        assert!(head.contains("percale-ticket: the.ticket.text"), "{head}");
        assert!(head.contains("percale-position: 0199a2b4-0000-7000-8000-000000000001.1.2"), "{head}");
        assert_eq!(redirect(&head), None, "it goes no further");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_had_there_comes_through_the_site_that_was_asked() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // Accepts connections, as the system does for it, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (another, wrong) = (Other::new(), Other::new());
    let key = another.key.clone();
    let at = |url: String| place(url, vec![key.clone()]);
    let cases = [
        at(format!("https://{closed}")),
        at(format!("https://{}", silent.local_addr().unwrap())),
        // Holds another key than the one that was named.
        place(another.url(), vec![wrong.key.clone()]),
        // Sends bytes that are not those of the version.
        place(wrong.url(), vec![wrong.key.clone()]),
    ];
    let at_another = another.serve(vec![Answer::Bytes]);
    let at_wrong = wrong.serve(vec![Answer::Wrong, Answer::Wrong]);
    let folder = tempfile::tempdir().unwrap();
    for case in cases {
        for is_file in [false, true] {
            let mut answers = vec![Answer::Away(case.clone()), Answer::Bytes, Answer::Bytes];
            if is_file {
                answers.insert(0, Answer::Entry);
            }
            let (client, heads) = asked(answers);
            match is_file {
                true => {
                    assert_eq!(get(&client, folder.path()).await, CONTENT);
                    heads.recv().unwrap();
                }
                false => assert_eq!(read(&client).await, CONTENT),
            }
            assert_eq!(redirect(&heads.recv().unwrap()), Some("follow"), "{case:?}");
            assert_eq!(redirect(&heads.recv().unwrap()), None, "{case:?}");
            // That site is not to be named to this client again.
            assert_eq!(read(&client).await, CONTENT);
            assert_eq!(redirect(&heads.recv().unwrap()), Some("follow; not=baltic"), "{case:?}");
        }
    }
    assert!(at_another.try_recv().is_err(), "a site with another key has heard nothing");
    assert_eq!(at_wrong.iter().count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_cannot_be_used_is_none() {
    let key = Other::new().key;
    let mut ended = place("https://127.0.0.1:1".into(), vec![key.clone()]);
    ended.life_s = 0;
    for wrong in [
        place("http://127.0.0.1:1".into(), vec![key.clone()]),
        place("file:///etc/passwd".into(), vec![key]),
        place("https://127.0.0.1:1".into(), vec!["junk".into()]),
        ended,
    ] {
        let (client, heads) = asked(vec![Answer::Away(wrong), Answer::Bytes]);
        assert_eq!(read(&client).await, CONTENT);
        heads.recv().unwrap();
        assert_eq!(redirect(&heads.recv().unwrap()), None);
    }
    let (client, _heads) = asked(vec![Answer::Nowhere]);
    let entry: Entry = serde_json::from_str(&entry()).unwrap();
    let error = client.read_entry(&entry, None).await.unwrap().next().await.unwrap_err();
    assert!(error.to_string().contains("did not say where"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_that_sends_on_unasked_is_not_asked_without_end() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let place = place(format!("https://{closed}"), vec![Other::new().key]);
    let entry_of = || serde_json::from_str::<Entry>(&entry()).unwrap();
    // Sent on, and sent on again by who was to fetch the bytes itself.
    let (client, heads) = asked(vec![Answer::Away(place.clone()), Answer::Away(place.clone())]);
    let error = client.read_entry(&entry_of(), None).await.unwrap().next().await.unwrap_err();
    assert!(error.to_string().contains("was not asked to"), "{error}");
    assert_eq!(redirect(&heads.recv().unwrap()), Some("follow"));
    assert_eq!(redirect(&heads.recv().unwrap()), None);
    let folder = tempfile::tempdir().unwrap();
    let (client, _heads) = asked(vec![Answer::Entry, Answer::Away(place.clone()), Answer::Away(place)]);
    let local = folder.path().join("got");
    let report = client.get_file(&"/s/a".parse().unwrap(), &local, &GetOptions::default()).await.unwrap();
    assert_eq!((report.done, report.failed), (0, 1), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_follow_does_not_say_so() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = ClientOptions::new(format!("http://{}", listener.local_addr().unwrap()));
    options.follow = false;
    let head = std::thread::spawn(move || reply(&mut listener.accept().unwrap().0, &Answer::Bytes));
    assert_eq!(read(&Client::new(options).unwrap()).await, CONTENT);
    assert_eq!(redirect(&head.join().unwrap()), None);
}
