//! Where the workspace is and which files belong to it.

use std::path::{Path, PathBuf};

/// Returns the folder of the workspace: the parent of this package.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_path_buf()
}
