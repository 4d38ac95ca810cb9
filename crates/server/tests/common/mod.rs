//! A server in this process, with its own directory, database and port.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use percale_server::config::{Config, TlsMode};
use percale_server::{Running, start};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A server and its administrator.
pub struct Server {
    pub running: Running,
    pub directory: TempDir,
    pub admin: Client,
}

/// Somebody who asks.
#[derive(Clone)]
pub struct Client {
    pub http: reqwest::Client,
    pub url: String,
    pub token: Option<String>,
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: reqwest::header::HeaderMap,
    pub text: String,
}

pub fn config(directory: &TempDir) -> Config {
    let mut config = Config::default();
    config.site.name = "alps".into();
    config.site.state_dir = directory.path().join("state");
    config.http.listen = "127.0.0.1:0".parse().unwrap();
    config.http.drain_timeout = Duration::from_secs(2);
    config.tls.mode = TlsMode::Off;
    config
}

/// A reader that finds the same title in each file.
pub const READER: &str = r#"#!/usr/bin/env python3
import json, struct, sys

def send(kind, content):
    data = json.dumps(content).encode()
    sys.stdout.buffer.write(kind + struct.pack("<I", len(data)) + data)
    sys.stdout.buffer.flush()

send(b"H", {"open": []})
while head := sys.stdin.buffer.read(5):
    sys.stdin.buffer.read(struct.unpack("<I", head[1:])[0])
    if head[:1] == b"B":
        send(b"D", {"found": [{"name": "title", "values": [{"text": "found"}]}]})
"#;

/// Has a server read headers by [`READER`].
pub fn read_headers(config: &mut Config, folder: &Path, workers: usize) {
    let program = folder.join("reader");
    std::fs::write(&program, READER).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    config.extraction.workers = workers;
    config.extraction.program = Some(program);
    config.extraction.delay = Duration::from_millis(50);
}

impl Server {
    pub async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = config(&directory);
        Self::with(directory, config).await
    }

    pub async fn with(directory: TempDir, config: Config) -> Self {
        let running = start(config).await.unwrap();
        let token = std::fs::read_to_string(running.admin_token_path()).unwrap();
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let admin = Client { http, url: running.url(), token: Some(token.trim().to_owned()) };
        Self { running, directory, admin }
    }

    /// Also a store and a space of alice's.
    pub async fn with_space() -> Self {
        let server = Self::start().await;
        server.add_store("disk").await;
        server.admin.post("/v1/spaces", json!({"name": "s", "owner": "user:alice"})).await.expect(201);
        server
    }

    pub async fn add_store(&self, name: &str) {
        let root = self.directory.path().join(name);
        let store = json!({"name": name, "connector": "posix", "config": {"root": root}});
        self.admin.post("/v1/stores", store).await.expect(201);
    }

    pub async fn user(&self, name: &str) -> Client {
        self.user_with(json!({"subject": format!("user:{name}")})).await
    }

    pub async fn user_with(&self, token: Value) -> Client {
        let issued = self.admin.post("/v1/tokens", token).await.expect(201);
        self.admin.as_token(issued["secret"].as_str().unwrap())
    }

    pub fn anonymous(&self) -> Client {
        Client { token: None, ..self.admin.clone() }
    }
}

impl Client {
    pub fn as_token(&self, token: &str) -> Client {
        Client { token: Some(token.to_owned()), ..self.clone() }
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request =
            self.http.request(method, format!("{}{path}", self.url)).timeout(Duration::from_secs(30));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        send(self.request(Method::GET, path)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        send(self.request(Method::DELETE, path)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        send(self.request(Method::POST, path).json(&body)).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Answer {
        send(self.request(Method::PUT, path).json(&body)).await
    }

    pub async fn patch(&self, path: &str, body: Value) -> Answer {
        send(self.request(Method::PATCH, path).json(&body)).await
    }

    pub async fn mkdir(&self, path: &str) -> Answer {
        send(self.request(Method::PUT, &format!("/v1/collections{path}"))).await
    }

    pub async fn write(&self, path: &str, bytes: impl Into<Vec<u8>>) -> Answer {
        send(self.request(Method::PUT, &format!("/v1/data{path}?parents=true")).body(bytes.into())).await
    }
}

pub async fn send(request: RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    let text = response.text().await.unwrap();
    Answer { status, headers, text }
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }

    /// Returns the body of an answer that must have this status.
    #[track_caller]
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        self.json()
    }

    /// Returns the problem of the site `alps`, which must have this code and all that a problem has.
    #[track_caller]
    pub fn expect_problem(&self, code: &str) -> Value {
        self.expect_problem_at(code, "alps")
    }

    /// The same of any site.
    #[track_caller]
    pub fn expect_problem_at(&self, code: &str, site: &str) -> Value {
        let problem = self.json();
        assert_eq!(problem["code"], code, "{} {}", self.status, self.text);
        assert_eq!(problem["status"], self.status.as_u16());
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert_eq!(problem["trace_id"].as_str().unwrap().len(), 32);
        assert_eq!(problem["site"], site);
        for field in ["type", "title", "detail", "hint"] {
            assert!(!problem[field].as_str().unwrap_or_default().is_empty(), "no {field} in {}", self.text);
        }
        problem
    }
}

/// Asks again until it holds, for at most 20 s.
pub async fn eventually<F: Future<Output = Option<T>>, T>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(value) = ask().await {
            return value;
        }
        assert!(tokio::time::Instant::now() < deadline, "{what} did not happen in time");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Reads a content whole.
pub async fn bytes(client: &Client, path: &str) -> Vec<u8> {
    let response = client.request(Method::GET, path).send().await.unwrap();
    let status = response.status();
    let bytes = response.bytes().await.unwrap_or_else(|error| panic!("{status}: {error}"));
    assert!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&bytes));
    bytes.to_vec()
}
