//! Files that are at their place whole or not at all.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::failure::{Failure, Result};

/// A file that is written beside its place, with a name that ends in `.partial`, and is removed unless it is put there.
#[derive(Debug)]
pub struct AtomicFile {
    partial: NamedTempFile,
    to: PathBuf,
}

impl AtomicFile {
    /// Begins a file that will be put in the place of what is there.
    ///
    /// # Errors
    /// If its folder cannot be written to.
    pub fn create(to: &Path) -> Result<Self> {
        let name = to.file_name().unwrap_or_default().to_string_lossy();
        // As any file that is made: what others may do with it is the umask's to say.
        let partial = tempfile::Builder::new()
            .prefix(&format!("{name}."))
            .suffix(".partial")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder_of(to));
        let partial = partial.map_err(|error| Failure::local("write", to, &error))?;
        Ok(Self { partial, to: to.to_owned() })
    }

    /// Returns where it will be.
    pub fn place(&self) -> &Path {
        &self.to
    }

    /// Returns the folder that it is in.
    pub fn folder(&self) -> &Path {
        folder_of(&self.to)
    }

    /// Returns the file, to write to it.
    pub fn file(&self) -> &File {
        self.partial.as_file()
    }

    /// Returns what to say of a file that cannot be written.
    pub fn failure(&self, error: &io::Error) -> Failure {
        Failure::local("write", &self.to, error)
    }

    /// Flushes it to the disk and puts it in its place.
    ///
    /// # Errors
    /// Whatever the file system answers; what was there before is still there then.
    pub fn put_in_place(self) -> Result {
        self.file().sync_all().map_err(|error| self.failure(&error))?;
        self.partial
            .persist(&self.to)
            .map(drop)
            .map_err(|error| Failure::local("write", &self.to, &error.error))
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}
