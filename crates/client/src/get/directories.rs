//! The directories of a tree that is got.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::lock;
use crate::error::Error;
use crate::upload::blocking;

/// Makes directories below a destination, and never through a symbolic link: one that an earlier run made may lie where
/// a collection is by now.
#[derive(Debug, Clone)]
pub(super) struct Directories {
    root: Arc<Path>,
    /// Those that were made or found. None of them becomes a link later: links replace no directory.
    known: Arc<Mutex<HashSet<PathBuf>>>,
}

impl Directories {
    /// Of a destination, which itself may be a link: whoever named it wants that.
    pub fn below(root: &Path) -> Self {
        Self { root: root.into(), known: Arc::default() }
    }

    /// Returns the destination.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Makes a directory and those above it, as far as they are not there.
    ///
    /// # Errors
    /// Something else is in its way, or in that of one above it.
    pub async fn make(&self, directory: &Path) -> crate::Result<()> {
        if directory == &*self.root || lock(&self.known).contains(directory) {
            return Ok(());
        }
        let (own, directory) = (self.clone(), directory.to_owned());
        blocking("make a local directory", move || own.make_now(&directory)).await
    }

    fn make_now(&self, directory: &Path) -> crate::Result<()> {
        let below = directory.strip_prefix(&self.root).unwrap_or(directory);
        let mut at = self.root.to_path_buf();
        for name in below {
            at.push(name);
            if !lock(&self.known).contains(&at) {
                make_one(&at).map_err(|error| Error::local("make a local directory", &at, error))?;
                lock(&self.known).insert(at.clone());
            }
        }
        Ok(())
    }
}

fn make_one(path: &Path) -> io::Result<()> {
    let Err(error) = std::fs::create_dir(path) else { return Ok(()) };
    match std::fs::symlink_metadata(path) {
        Ok(there) if there.is_dir() => Ok(()),
        Ok(there) if there.is_symlink() => {
            let detail = "it is a symbolic link, and nothing is written through one";
            Err(io::Error::new(io::ErrorKind::NotADirectory, detail))
        }
        _ => Err(error),
    }
}

/// Makes a directory and all above it, whatever they lead through.
pub(super) async fn make_all(path: PathBuf) -> crate::Result<()> {
    blocking("make a local directory", move || {
        std::fs::create_dir_all(&path).map_err(|error| Error::local("make a local directory", &path, error))
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use percale_core::ErrorCode;

    use super::*;

    #[tokio::test]
    async fn nothing_is_made_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("outside");
        fs::create_dir(&outside).unwrap();
        symlink(&outside, folder.path().join("named")).unwrap();
        let root = folder.path().join("named/root");
        make_all(root.clone()).await.unwrap();
        let directories = Directories::below(&root);
        directories.make(&root).await.unwrap();
        directories.make(&root.join("a/b")).await.unwrap();
        // Again, by a run that does not know of it.
        Directories::below(&root).make(&root.join("a/b/c")).await.unwrap();
        assert!(outside.join("root/a/b/c").is_dir(), "the destination itself may lie behind a link");

        fs::create_dir(outside.join("deep")).unwrap();
        symlink(&outside, root.join("away")).unwrap();
        fs::write(root.join("file"), "x").unwrap();
        for (way, code) in [
            ("away", ErrorCode::NotACollection),
            ("away/new", ErrorCode::NotACollection),
            ("away/deep/new", ErrorCode::NotACollection),
            ("file", ErrorCode::AlreadyExists),
        ] {
            assert_eq!(directories.make(&root.join(way)).await.unwrap_err().code(), code, "{way}");
        }
        assert!(!outside.join("new").exists() && !outside.join("deep/new").exists());
    }
}
