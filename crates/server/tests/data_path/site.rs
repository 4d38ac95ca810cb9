//! A server in this process, with one store and the space `demo`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use percale_server::config::TlsMode;
use percale_server::start::Running;
use percale_server::{Config, start};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};

/// The site of one test.
pub struct TestSite {
    running: Option<Running>,
    config: Config,
    http: reqwest::Client,
    token: String,
    root: PathBuf,
    _directory: tempfile::TempDir,
}

impl TestSite {
    /// Starts a site with a managed store in a directory of its own.
    pub async fn start() -> Self {
        Self::start_with("managed", None, |_| {}).await
    }

    /// Starts a site with a store of this layout, at `root` if one is given.
    pub async fn start_with(layout: &str, root: Option<&Path>, change: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = root.map_or_else(|| directory.path().join("store"), Path::to_owned);
        let mut config = Config::default();
        config.site.name = "test".into();
        config.site.state_dir = directory.path().join("state");
        config.http.listen = "127.0.0.1:0".parse().unwrap();
        config.tls.mode = TlsMode::Off;
        change(&mut config);
        let running = start(config.clone()).await.unwrap();
        let token = std::fs::read_to_string(running.admin_token_path()).unwrap().trim().to_owned();
        let http = reqwest::Client::builder().timeout(Duration::from_secs(60)).build().unwrap();
        let site = Self { running: Some(running), config, http, token, root, _directory: directory };
        let store =
            json!({"name": "disk", "connector": "posix", "layout": layout, "config": {"root": site.root}});
        expect(site.request(Method::POST, "/v1/stores").json(&store), StatusCode::CREATED).await;
        let space = json!({"name": "demo", "store": "disk"});
        expect(site.request(Method::POST, "/v1/spaces").json(&space), StatusCode::CREATED).await;
        site
    }

    /// Ends the server and starts another one on the same state.
    pub async fn restart(&mut self) {
        self.running.take().unwrap().shutdown().await;
        self.running = Some(start(self.config.clone()).await.unwrap());
    }

    pub fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    /// The directory of the store.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.running().url())
    }

    /// A request as the administrator.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, self.url(path)).bearer_auth(&self.token)
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    pub async fn get(&self, path: &str) -> Response {
        self.request(Method::GET, path).send().await.unwrap()
    }

    pub async fn put(&self, path: &str, bytes: impl Into<reqwest::Body>) -> Response {
        self.request(Method::PUT, &format!("/v1/data{path}")).body(bytes).send().await.unwrap()
    }

    /// Puts an object that must be accepted as new, and returns the answer's body.
    pub async fn put_new(&self, path: &str, bytes: impl Into<reqwest::Body>) -> Value {
        let request = self.request(Method::PUT, &format!("/v1/data{path}?parents=true")).body(bytes);
        expect(request, StatusCode::CREATED).await.json().await.unwrap()
    }

    /// Reads an object that must be there.
    pub async fn read(&self, path: &str) -> Vec<u8> {
        let response = expect(self.request(Method::GET, &format!("/v1/data{path}")), StatusCode::OK).await;
        response.bytes().await.unwrap().to_vec()
    }

    pub async fn is_there(&self, path: &str) -> bool {
        match self.get(&format!("/v1/entries{path}")).await.status() {
            StatusCode::OK => true,
            StatusCode::NOT_FOUND => false,
            other => panic!("unexpected {other} for {path}"),
        }
    }

    /// The files that are staged on the store, by any lease.
    pub fn staged(&self) -> Vec<PathBuf> {
        files_below(&self.root.join(".percale/stage"))
    }
}

/// Every file below a directory; none if it is not there.
pub fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(files_below(&entry.path())),
            Ok(_) => found.push(entry.path()),
            Err(_) => {}
        }
    }
    found
}

/// Sends a request that must get this status.
pub async fn expect(request: RequestBuilder, status: StatusCode) -> Response {
    let response = request.send().await.unwrap();
    if response.status() == status {
        return response;
    }
    let (got, url) = (response.status(), response.url().clone());
    panic!("{url}: expected {status}, got {got}: {}", response.text().await.unwrap_or_default());
}

/// Sends a request that must fail with this code, and returns the problem.
pub async fn expect_problem(request: RequestBuilder, code: &str) -> Value {
    let response = request.send().await.unwrap();
    let (status, url) = (response.status(), response.url().clone());
    let text = response.text().await.unwrap();
    let problem: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{url}: {status}: {text}"));
    assert_eq!(problem["code"], code, "{url}: {problem:#}");
    assert_eq!(problem["status"], status.as_u16(), "{problem:#}");
    problem
}

/// Bytes that follow from a seed and differ everywhere.
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}
