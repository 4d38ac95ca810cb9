//! Files that hold secrets: mode 0600, written whole or not at all.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use zeroize::Zeroizing;

use crate::{Error, ErrorKind};

/// Largest file that is read. A chain of certificates has a few kilobytes.
const MAX_BYTES: u64 = 256 * 1024;

/// Reads a file that only its owner may read.
pub fn read_private(what: &str, path: &Path) -> Result<Zeroizing<Vec<u8>>, Error> {
    let file = File::open(path).map_err(|error| Error::io(&format!("cannot read {what}"), path, error))?;
    // Asked of the open file, so that it cannot be exchanged in between.
    let mode =
        file.metadata().map_err(|error| Error::io(&format!("cannot read {what}"), path, error))?.mode()
            & 0o777;
    if mode & 0o077 != 0 {
        return Err(Error::new(
            ErrorKind::Exposed,
            format!(
                "refuses {what} at {}: mode {mode:04o} opens it to others, set it to 0600 and consider it known",
                path.display()
            ),
        ));
    }
    read_bounded(what, path, file)
}

/// Reads a file that is no secret.
pub fn read_public(what: &str, path: &Path) -> Result<Vec<u8>, Error> {
    let file = File::open(path).map_err(|error| Error::io(&format!("cannot read {what}"), path, error))?;
    read_bounded(what, path, file).map(|mut bytes| std::mem::take(&mut *bytes))
}

fn read_bounded(what: &str, path: &Path, file: File) -> Result<Zeroizing<Vec<u8>>, Error> {
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::io(&format!("cannot read {what}"), path, error))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::new(
            ErrorKind::Malformed,
            format!("cannot read {what} at {}: it has more than {MAX_BYTES} bytes", path.display()),
        ));
    }
    Ok(bytes)
}

/// Reads a secret file, or makes it with what `make` returns. Of several that make it at once one wins, and all get
/// that one's content. An existing file is never written over.
pub fn read_or_create(
    what: &str,
    path: &Path,
    make: impl FnOnce() -> Result<Zeroizing<Vec<u8>>, Error>,
) -> Result<Zeroizing<Vec<u8>>, Error> {
    match path.try_exists() {
        Ok(true) => return read_private(what, path),
        Ok(false) => {}
        Err(error) => return Err(Error::io(&format!("cannot read {what}"), path, error)),
    }
    let content = make()?;
    let cannot = format!("cannot create {what}");
    let staged = stage(path, &content, 0o600).map_err(|error| Error::io(&cannot, path, error))?;
    match staged.persist_noclobber(path) {
        Ok(_) => flush_parent(path).map_err(|error| Error::io(&cannot, path, error))?,
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(Error::io(&cannot, path, error.error)),
    }
    read_private(what, path)
}

/// Writes a file in one step, replacing what was there.
pub fn replace(what: &str, path: &Path, content: &[u8], mode: u32) -> Result<(), Error> {
    let write = || -> io::Result<()> {
        stage(path, content, mode)?.persist(path).map_err(|error| error.error)?;
        flush_parent(path)
    };
    write().map_err(|error| Error::io(&format!("cannot write {what}"), path, error))
}

/// Gives a file another name in one step, replacing what had it.
pub fn rename(what: &str, from: &Path, to: &Path) -> Result<(), Error> {
    fs::rename(from, to)
        .and_then(|()| flush_parent(to))
        .map_err(|error| Error::io(&format!("cannot rename {what} to {}", to.display()), from, error))
}

/// Removes a file. That it is not there is no error.
pub fn remove(what: &str, path: &Path) -> Result<(), Error> {
    let removed = match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        removed => removed,
    };
    removed
        .and_then(|()| flush_parent(path))
        .map_err(|error| Error::io(&format!("cannot remove {what}"), path, error))
}

/// Makes a directory that only its owner may enter, and those above it that are missing.
pub fn make_directory(path: &Path) -> Result<(), Error> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| Error::io("cannot make the directory", path, error))
}

fn stage(path: &Path, content: &[u8], mode: u32) -> io::Result<tempfile::NamedTempFile> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut staged = tempfile::Builder::new()
        .prefix(".new-")
        .permissions(fs::Permissions::from_mode(mode))
        .tempfile_in(parent)?;
    staged.write_all(content)?;
    // The mode again, since the process's umask was applied to the first one.
    staged.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
    staged.as_file().sync_all()?;
    Ok(staged)
}

fn flush_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(text: &str) -> Result<Zeroizing<Vec<u8>>, Error> {
        Ok(Zeroizing::new(text.as_bytes().to_vec()))
    }

    #[test]
    fn the_first_content_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        assert_eq!(*read_or_create("the key", &path, || make("one")).unwrap(), b"one");
        assert_eq!(*read_or_create("the key", &path, || make("two")).unwrap(), b"one");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the staged file is gone");
    }

    #[test]
    fn of_several_at_once_one_wins() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let contents: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|number| {
                    let path = &path;
                    scope.spawn(move || read_or_create("the key", path, || make(&format!("key {number}"))))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
        });
        assert!(contents.iter().all(|content| content == &contents[0]));
    }

    #[test]
    fn what_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        for mode in [0o640, 0o604, 0o644, 0o660] {
            replace("the key", &path, b"x", mode).unwrap();
            let error = read_private("the key", &path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Exposed, "{mode:o}");
            assert!(error.to_string().contains(&format!("{mode:04o}")), "{error}");
        }
        replace("the key", &path, b"x", 0o600).unwrap();
        assert_eq!(*read_private("the key", &path).unwrap(), b"x");
    }

    #[test]
    fn too_large_files_are_refused_and_a_missing_folder_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        replace("the key", &path, &vec![0; 300 * 1024], 0o600).unwrap();
        assert_eq!(read_private("the key", &path).unwrap_err().kind(), ErrorKind::Malformed);
        let nowhere = folder.path().join("missing/key");
        let error = read_or_create("the key", &nowhere, || make("x")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("missing/key"), "{error}");
    }
}
