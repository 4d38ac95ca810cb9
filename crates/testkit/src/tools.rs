//! What `scripts/bootstrap` installs for tests.

use std::path::{Path, PathBuf};

/// Returns a program, whether it is there or not: what `scripts/bootstrap test` installs, in `.tools` or where `PERCALE_TEST_TOOLS` says.
pub fn tool(name: &str) -> PathBuf {
    folder().join("bin").join(name)
}

/// The same of one of the Python environment.
pub fn python_tool(name: &str) -> PathBuf {
    folder().join("venv/bin").join(name)
}

fn folder() -> PathBuf {
    let tools = std::env::var_os("PERCALE_TEST_TOOLS").map(PathBuf::from);
    let tools = tools.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools"));
    tools.canonicalize().unwrap_or(tools)
}

/// Returns the Python that has the libraries which tests compare with.
pub fn python() -> PathBuf {
    python_tool("python3")
}
