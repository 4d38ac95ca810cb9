//! Small objects that a site sends over whichever stream it likes. The site is a script.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use bytes::Bytes;
use percale_api::uploads::Pull;
use percale_client::get::GetOptions;
use percale_client::report::Report;
use percale_client::{Client, ClientOptions};
use percale_core::tree::{HashTree, hash_group};
use percale_core::{ByteCount, ErrorCode};
use percale_mover::Encoder;

/// Objects below the collection that is got: more than two streams ask for each by itself before all are listed.
const COUNT: usize = 60;

/// A request for objects: their paths, the id of its streams, and where the answer goes.
struct Asked {
    paths: Vec<String>,
    share: Option<String>,
    answer: Sender<Vec<u8>>,
}

impl Asked {
    /// Sends these objects. One that is behind `!` fails.
    fn send(&self, paths: &[&str]) {
        let mut encoder = Encoder::new();
        for path in paths {
            let (path, fails) = (path.trim_start_matches('!'), path.starts_with('!'));
            let bytes = Bytes::from(path.to_owned());
            let version = if fails { 0 } else { 7 };
            let info = format!(r#"{{"path": "{path}", "version": {version}, "root": null}}"#);
            let size = ByteCount(bytes.len() as u64);
            let item = encoder.item(size, info.as_bytes());
            if fails {
                let problem = percale_api::Problem::new(ErrorCode::Forbidden, "not for you");
                encoder.fail(item, &serde_json::to_vec(&problem).unwrap());
            } else {
                encoder.data(item, 0, hash_group(size, 0, &bytes), bytes);
                encoder.done(item, b"{}");
            }
        }
        encoder.end();
        self.answer.send(std::iter::from_fn(|| encoder.next()).flatten().collect()).unwrap();
    }
}

fn list() -> Vec<u8> {
    let time = "2026-11-21T00:00:00Z";
    let entry = |at: usize| {
        let path = format!("/s/d/{at:02}");
        let (size, root) = (path.len(), HashTree::of(path.as_bytes()).root());
        format!(
            r#"{{"path": "{path}", "kind": "object", "id": {}, "modified": "{time}", "created": "{time}", "content":
            {{"version": 7, "size": {size}, "root": "{root}", "mtime": "{time}", "modified": "{time}", "digests": []}}}}"#,
            at + 1
        )
    };
    let entries: Vec<String> = (0..COUNT).map(entry).collect();
    format!(r#"{{"items": [{}], "next": null}}"#, entries.join(",")).into_bytes()
}

/// Answers one request of a connection.
fn answer(stream: TcpStream, asked: &Sender<Asked>) {
    let mut reader = BufReader::new(&stream);
    let (mut head, mut len) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap() == 0 {
            return;
        }
        let line = line.trim().to_ascii_lowercase();
        if let Some(said) = line.strip_prefix("content-length:") {
            len = said.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
        head += &line;
        head.push('\n');
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).unwrap();
    let body = if head.starts_with("post /v1/frames/pull ") {
        let Pull { items } = serde_json::from_slice(&body).unwrap();
        let share = head.lines().find_map(|line| line.strip_prefix("percale-share: ")).map(str::to_owned);
        let (answer, answers) = channel();
        let paths = items.into_iter().map(|item| item.path.to_string()).collect();
        asked.send(Asked { paths, share, answer }).unwrap();
        answers.recv().unwrap()
    } else {
        assert!(head.starts_with("get /v1/list/s/d?"), "{head}");
        list()
    };
    let head = format!("HTTP/1.1 200 X\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    (&stream).write_all(&[head.as_bytes(), &body].concat()).unwrap();
}

fn site() -> (Client, Receiver<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = ClientOptions::new(format!("http://{}", listener.local_addr().unwrap()));
    options.streams = Some(2);
    let (sender, asked) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let sender = sender.clone();
            std::thread::spawn(move || answer(stream.unwrap(), &sender));
        }
    });
    (Client::new(options).unwrap(), asked)
}

/// Gets the collection while a script answers.
async fn get(folder: &Path, script: impl FnOnce(Receiver<Asked>) + Send + 'static) -> Report {
    let (client, asked) = site();
    let script = tokio::task::spawn_blocking(move || script(asked));
    let report = client.get_tree(&"/s/d".parse().unwrap(), folder, &GetOptions::default()).await.unwrap();
    script.await.unwrap();
    for at in 0..COUNT {
        let (name, content) = (format!("{at:02}"), format!("/s/d/{at:02}"));
        let failed = report.failures.iter().any(|item| item.from == content);
        assert_eq!(std::fs::read_to_string(folder.join(name)).ok(), (!failed).then_some(content));
    }
    report
}

fn next(asked: &Receiver<Asked>) -> Asked {
    asked.recv_timeout(Duration::from_secs(20)).unwrap()
}

/// Answers what each stream asks for by itself, and returns what they then ask for together, with all paths of both.
fn pair(asked: &Receiver<Asked>) -> (Asked, Asked, Vec<String>) {
    let mut alone = 0;
    let one = loop {
        let one = next(asked);
        if one.share.is_some() {
            break one;
        }
        alone += one.paths.len();
        one.send(&refs(&one.paths));
    };
    let other = next(asked);
    assert_eq!(one.share, other.share);
    let mut paths: Vec<String> = one.paths.iter().chain(&other.paths).cloned().collect();
    paths.sort();
    assert!(one.paths.len() > 5 && other.paths.len() > 5, "{paths:?}");
    assert_eq!(alone + paths.len(), COUNT);
    (one, other, paths)
}

fn refs(paths: &[String]) -> Vec<&str> {
    paths.iter().map(String::as_str).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_come_over_whichever_stream_has_room() {
    let folder = tempfile::tempdir().unwrap();
    let report = get(folder.path(), |asked| {
        let (one, other, paths) = pair(&asked);
        one.send(&[]);
        let failing = format!("!{}", paths[3]);
        let mut sent = refs(&paths);
        sent[3] = &failing;
        other.send(&sent);
    });
    let report = report.await;
    assert_eq!((report.done, report.failed), (COUNT as u64 - 1, 1), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_stream_brought_is_asked_for_again() {
    let folder = tempfile::tempdir().unwrap();
    let report = get(folder.path(), |asked| {
        let (one, other, paths) = pair(&asked);
        let paths = refs(&paths);
        let last = paths.len() - 1;
        one.send(&paths[8..last]);
        other.send(&paths[1..8]);
        let again = next(&asked);
        let mut left = refs(&again.paths);
        left.sort_unstable();
        assert_eq!((&*left, &again.share), (&[paths[0], paths[last]][..], &None));
        again.send(&left);
    });
    let report = report.await;
    assert_eq!((report.done, report.failed), (COUNT as u64, 0), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_that_sends_what_it_was_not_asked_for_is_not_asked_again() {
    let folder = tempfile::tempdir().unwrap();
    let report = get(folder.path(), |asked| {
        let (one, other, paths) = pair(&asked);
        one.send(&refs(&paths)[1..]);
        // Once more what has come, and what there is not.
        other.send(&[&paths[1], "/s/d/none"]);
    });
    let report = report.await;
    assert_eq!((report.done, report.failed), (COUNT as u64 - 1, 1), "{report:?}");
}
