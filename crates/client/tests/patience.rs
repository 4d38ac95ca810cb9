//! For how long a put goes on over a link that breaks again and again: as long as it gets on. The site is a small one of
//! this test, and cuts connections.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use percale_api::Problem;
use percale_client::put::PutOptions;
use percale_client::{Client, ClientOptions, Report};
use percale_core::tree::{GROUP_SIZE, HashTree, RootHash};
use percale_core::{ByteCount, ErrorCode};
use percale_mover::{Decoder, Frame, ReceivedGroups};
use serde_json::{Value, json};

/// After which time without progress a client gives up; and that of a request which is longer.
const PATIENCE: Duration = Duration::from_millis(500);
const LONG: Duration = Duration::from_millis(800);

/// A site that takes one file, and cuts the first so many requests with bytes.
struct Site {
    size: usize,
    root: RootHash,
    cuts: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    id: Value,
    received: Option<ReceivedGroups>,
    requests: usize,
}

impl Site {
    /// Starts it; `change` is made to the options of the client.
    fn start(content: &[u8], cuts: usize, change: impl FnOnce(&mut ClientOptions)) -> (Client, Arc<Self>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut options = ClientOptions::new(format!("http://{}", listener.local_addr().unwrap()));
        options.retry.give_up_after = PATIENCE;
        options.retry.first_pause = Duration::from_millis(1);
        options.retry.longest_pause = Duration::from_millis(1);
        options.streams = Some(1);
        change(&mut options);
        let received = Some(ReceivedGroups::new(ByteCount(content.len() as u64)));
        let state = Mutex::new(State { received, ..State::default() });
        let site = Arc::new(Self { size: content.len(), root: HashTree::of(content).root(), cuts, state });
        std::thread::spawn({
            let site = site.clone();
            move || {
                for stream in listener.incoming() {
                    let site = site.clone();
                    std::thread::spawn(move || site.answer(stream.unwrap()));
                }
            }
        });
        (Client::new(options).unwrap(), site)
    }

    fn requests(&self) -> usize {
        self.state.lock().unwrap().requests
    }

    /// Answers one request, or cuts the connection.
    fn answer(&self, mut stream: TcpStream) {
        let mut request = Request::read(stream.try_clone().unwrap());
        let Some((status, body)) = self.answer_to(&mut request) else { return };
        let body = body.to_string();
        let head =
            format!("HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
    }

    fn answer_to(&self, request: &mut Request) -> Option<(u16, Value)> {
        let problem = |status, code| {
            Some((status, serde_json::to_value(Problem::new(code, "as this site does")).unwrap()))
        };
        let committed = json!({"path": "/s/a", "version": 7, "size": self.size, "root": self.root,
            "position": "p", "created": true});
        match request.line.as_str() {
            line if line.starts_with("GET /v1/entries") => problem(404, ErrorCode::NotFound),
            line if line.starts_with("POST /v1/uploads ") => {
                self.state.lock().unwrap().id = request.json()["id"].clone();
                Some((201, self.upload()))
            }
            line if line.contains("/frames/push ") => {
                while request.piece().is_some() {}
                let number = self.begin();
                (number >= self.cuts).then(|| (200, json!({"items": [{"committed": committed}]})))
            }
            line if line.contains("/frames ") => self.frames(request),
            line if line.contains("/commit ") => match self.is_complete() {
                true => Some((200, committed)),
                false => problem(409, ErrorCode::UploadIncomplete),
            },
            _ => Some((200, self.upload())),
        }
    }

    /// Counts a request with bytes.
    fn begin(&self) -> usize {
        let mut state = self.state.lock().unwrap();
        state.requests += 1;
        state.requests - 1
    }

    /// Takes one group and cuts, the first times after long.
    fn frames(&self, request: &mut Request) -> Option<(u16, Value)> {
        let number = self.begin();
        if number < 2 {
            std::thread::sleep(LONG);
        }
        let mut decoder = Decoder::new();
        while let Some(piece) = request.piece() {
            decoder.feed(Bytes::from(piece));
            while let Some(frame) = decoder.next().unwrap() {
                let Frame::Data(data) = frame else { continue };
                data.verify().unwrap();
                let mut state = self.state.lock().unwrap();
                state.received.as_mut().unwrap().insert(data.group(), data.hash);
                if number < self.cuts {
                    return None;
                }
            }
        }
        Some((200, self.upload()))
    }

    fn is_complete(&self) -> bool {
        self.state.lock().unwrap().received.as_ref().unwrap().is_complete()
    }

    fn upload(&self) -> Value {
        let state = self.state.lock().unwrap();
        let missing = state.received.as_ref().unwrap().missing();
        json!({"id": state.id, "path": "/s/a", "size": self.size, "missing": missing,
            "expires": "2030-01-01T00:00:00Z", "positioned": true})
    }
}

/// A request whose body is read bit by bit.
struct Request {
    line: String,
    stream: BufReader<TcpStream>,
    len: usize,
    is_chunked: bool,
}

impl Request {
    fn read(stream: TcpStream) -> Self {
        let mut request =
            Self { line: String::new(), stream: BufReader::new(stream), len: 0, is_chunked: false };
        request.line = request.next_line();
        loop {
            let line = request.next_line().to_ascii_lowercase();
            if line.is_empty() {
                return request;
            }
            request.is_chunked |= line == "transfer-encoding: chunked";
            if let Some(len) = line.strip_prefix("content-length:") {
                request.len = len.trim().parse().unwrap();
            }
        }
    }

    fn next_line(&mut self) -> String {
        let mut line = String::new();
        let _ = self.stream.read_line(&mut line);
        line.trim_end().to_owned()
    }

    /// Returns the next bytes of a body in chunks; nothing at its end, or where the client broke off.
    fn piece(&mut self) -> Option<Vec<u8>> {
        assert!(self.is_chunked, "{}", self.line);
        let len = usize::from_str_radix(&self.next_line(), 16).ok().filter(|len| *len > 0)?;
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).ok()?;
        self.next_line();
        Some(bytes)
    }

    fn json(&mut self) -> Value {
        let mut bytes = vec![0; self.len];
        self.stream.read_exact(&mut bytes).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }
}

async fn put(client: &Client, content: &[u8]) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let local = folder.path().join("a");
    std::fs::write(&local, content).unwrap();
    client.put_file(&local, &"/s/a".parse().unwrap(), &PutOptions::default()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_file_goes_on_as_long_as_something_arrives() {
    // More often than a site may say the same again.
    let cuts = 70;
    let content: Vec<u8> = (0..72 * GROUP_SIZE).map(|at| (at >> 12) as u8).collect();
    let (client, site) = Site::start(&content, cuts, |_| {});
    let report = put(&client, &content).await;
    assert_eq!((report.done, report.failed), (1, 0), "{report:?}");
    assert!(site.requests() > cuts && site.is_complete());
}

#[tokio::test(flavor = "multi_thread")]
async fn small_files_are_sent_again_however_long_their_stream_lasted() {
    let content = vec![5; (GROUP_SIZE + GROUP_SIZE / 2) as usize];
    let limit = |options: &mut ClientOptions| options.limit = Some("8Mbit/s".parse().unwrap());
    let (client, site) = Site::start(&content, 2, limit);
    let began = std::time::Instant::now();
    let report = put(&client, &content).await;
    assert_eq!((report.done, report.failed), (1, 0), "{report:?}");
    assert!(site.requests() == 3 && began.elapsed() > 3 * PATIENCE, "{:?}", began.elapsed());
}
