//! Generated files: one table of path and generator.
//!
//! A generator is a function of the workspace's root to the whole text of its file. Its only
//! inputs are what lies in `spec/` and the code itself, so that `check` can run it and compare.

mod errors;
mod openapi;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Makes the text of one generated file.
type Generator = fn(&Path) -> Result<String>;

/// Every generated file, relative to the root. Add a line here for a new one.
pub const GENERATED: &[(&str, Generator)] = &[
    ("crates/core/src/error_codes.rs", errors::rust),
    ("docs/errors.md", errors::markdown),
    ("spec/openapi.json", openapi::json),
];

/// Writes every generated file whose text has changed.
pub fn write_all(root: &Path) -> Result<()> {
    for (path, generate) in GENERATED {
        let text = generate(root).with_context(|| format!("cannot generate {path}"))?;
        let target = root.join(path);
        if fs::read_to_string(&target).is_ok_and(|old| old == text) {
            println!("{path}: up to date");
            continue;
        }
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        fs::write(&target, text).with_context(|| format!("cannot write {path}"))?;
        println!("{path}: written");
    }
    Ok(())
}

/// Formats Rust source with the workspace's settings, so that `cargo fmt --check` agrees with the generator.
fn rustfmt(root: &Path, source: &str) -> Result<String> {
    let mut child = Command::new("rustfmt")
        .args(["--edition", "2024", "--emit", "stdout"])
        .current_dir(root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start rustfmt")?;
    // The source is small against the pipe's buffer plus rustfmt's own reading: it reads all before it writes.
    child.stdin.take().context("rustfmt has no stdin")?.write_all(source.as_bytes())?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("rustfmt failed: {}", output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}
