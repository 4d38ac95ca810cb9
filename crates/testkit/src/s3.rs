//! A real S3 server, versitygw, on loopback, with one empty bucket.
//!
//! The server is what `scripts/bootstrap test` builds. Without it a test fails, unless `PERCALE_SKIP_S3=1`.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::tools::tool;

/// The name of the bucket.
pub const BUCKET: &str = "bucket";
/// The id of the key that may do everything.
pub const ACCESS_KEY_ID: &str = "percale-test";
/// Its secret.
pub const SECRET_ACCESS_KEY: &str = "percale-test-secret";

/// How long the server may take to listen.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server, ended with the test.
#[derive(Debug)]
pub struct S3Server {
    process: Child,
    port: u16,
    data: TempDir,
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.stop();
    }
}

impl S3Server {
    /// Starts one; nothing where the test is to be skipped.
    ///
    /// # Panics
    /// If there is no such program, or it does not listen.
    pub fn start() -> Option<Self> {
        let program = program()?;
        let data = tempfile::tempdir().expect("a directory for the bucket");
        std::fs::create_dir(data.path().join(BUCKET)).expect("a directory for the bucket");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let free = TcpListener::bind("127.0.0.1:0").and_then(|tcp| tcp.local_addr());
            let port = free.expect("a free port").port();
            let mut process = spawn(&program, port, data.path());
            // If another process took the port meanwhile, the server ends, and the next port is tried.
            while process.try_wait().expect("its state").is_none() {
                if TcpStream::connect(("127.0.0.1", port)).is_ok()
                    && process.try_wait().expect("its state").is_none()
                {
                    return Some(Self { process, port, data });
                }
                assert!(Instant::now() < deadline, "versitygw does not listen");
                std::thread::yield_now();
            }
            assert!(Instant::now() < deadline, "versitygw does not start");
        }
    }

    /// Returns its URL.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns the directory in which it keeps the bucket.
    pub fn folder(&self) -> &Path {
        self.data.path()
    }

    /// Starts it again at the same port, with what it had.
    ///
    /// # Panics
    /// If it does not listen.
    pub fn resume(&mut self) {
        let program = program().expect("it was there before");
        self.process = spawn(&program, self.port, self.data.path());
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < deadline, "versitygw does not listen");
            std::thread::yield_now();
        }
    }

    /// Puts an object into the bucket, as a program does that knows nothing of us.
    ///
    /// # Panics
    /// If it is refused.
    pub fn put(&self, key: &str, content: &[u8]) {
        let file = tempfile::NamedTempFile::new().expect("a file for the content");
        std::fs::write(file.path(), content).expect("a file for the content");
        self.curl(key, &["--upload-file", &file.path().to_string_lossy()]);
    }

    /// Removes an object from the bucket.
    ///
    /// # Panics
    /// If it is refused.
    pub fn delete(&self, key: &str) {
        self.curl(key, &["--request", "DELETE"]);
    }

    fn curl(&self, key: &str, arguments: &[&str]) {
        let ended = Command::new("curl")
            .args(["--silent", "--show-error", "--fail", "--aws-sigv4", "aws:amz:us-east-1:s3"])
            .args(["--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD"])
            .args(["--user", &format!("{ACCESS_KEY_ID}:{SECRET_ACCESS_KEY}")])
            .args(arguments)
            .arg(format!("{}/{BUCKET}/{key}", self.endpoint()))
            .status();
        assert!(ended.expect("curl starts").success(), "{key}: {arguments:?}");
    }

    /// Ends it.
    pub fn stop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(program: &Path, port: u16, data: &Path) -> Child {
    Command::new(program)
        .args(["--access", ACCESS_KEY_ID, "--secret", SECRET_ACCESS_KEY])
        .args(["--port", &format!("127.0.0.1:{port}"), "posix"])
        .arg(data)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("versitygw starts")
}

fn program() -> Option<PathBuf> {
    let program = tool("versitygw");
    if program.is_file() {
        return Some(program);
    }
    if std::env::var("PERCALE_SKIP_S3").is_ok_and(|value| value == "1") {
        eprintln!("SKIPPED: PERCALE_SKIP_S3=1, nothing is tested with S3");
        return None;
    }
    panic!(
        "there is no {}: `scripts/bootstrap test` builds it; set PERCALE_TEST_TOOLS to where bin/versitygw is, or skip this test with \
         PERCALE_SKIP_S3=1",
        program.display()
    );
}
