//! Random junk for every endpoint: schemathesis makes requests from the interface's own description, valid and not. No
//! answer may be a fault of the server.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

#[path = "../common/mod.rs"]
mod common;

use std::process::Command;

use common::Server;
use percale_testkit::tools::python_tool;

/// Requests of each kind for each endpoint and parameter.
const EXAMPLES: &str = "12";

#[tokio::test(flavor = "multi_thread")]
async fn no_request_makes_the_server_fail() {
    if std::env::var_os("PERCALE_SKIP_SCHEMATHESIS").is_some() {
        eprintln!("SKIPPED: no_request_makes_the_server_fail, as PERCALE_SKIP_SCHEMATHESIS asks");
        return;
    }
    let program = python_tool("schemathesis");
    assert!(program.exists(), "{} is not there: `scripts/bootstrap test` installs it", program.display());

    let server = Server::with_space().await;
    let admin = &server.admin;

    let mut command = Command::new(program);
    command
        .current_dir(server.directory.path())
        .env("SCHEMATHESIS_HOOKS", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/junk/hooks.py"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .args(["run", &format!("{}/v1/openapi.json", admin.url)])
        .args(["--checks", "not_a_server_error", "--max-examples", EXAMPLES, "--no-color"])
        // A stream of events never ends; its parameters have tests of their own.
        .args(["--exclude-path", "/v1/events", "--request-timeout", "20"])
        .args(["--header", &format!("Authorization: Bearer {}", admin.token.as_deref().unwrap())]);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("passed"), "schemathesis tested nothing:\n{text}");
}
