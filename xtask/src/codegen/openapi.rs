//! The handlers of `crates/server` to `spec/openapi.json`.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Makes `spec/openapi.json`. The description is made by the server's own code, which is built and asked: nothing of ours
/// is linked here.
pub fn json(root: &Path) -> Result<String> {
    let output = Command::new("cargo")
        .args(["run", "--quiet", "--package", "percale-server", "--example", "openapi"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo run")?;
    if !output.status.success() {
        bail!("cargo run --package percale-server --example openapi failed: {}", output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}
