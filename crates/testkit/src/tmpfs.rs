//! A small file system that fills up.

use std::path::Path;
use std::process::Command;

/// A file system in memory, of a few megabytes, unmounted when it is dropped.
#[derive(Debug)]
pub struct SmallFileSystem {
    folder: tempfile::TempDir,
}

impl SmallFileSystem {
    /// Mounts one. Only root may mount: for others the answer is none, said aloud on standard error, and the test is to
    /// return.
    ///
    /// # Panics
    /// If root cannot mount either, except in a container that does not let it.
    pub fn mount(size_bytes: u64) -> Option<Self> {
        let skip = |why: &str| {
            eprintln!("SKIPPED: a small file system needs the right to mount: {why}");
            None
        };
        if !rustix::process::geteuid().is_root() {
            return skip("not root");
        }
        let folder =
            tempfile::Builder::new().prefix("percale-small-").tempdir().expect("cannot make a folder");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size_bytes},mode=0755"), "percale-test"])
            .arg(folder.path())
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self { folder }),
            Ok(output) => skip(String::from_utf8_lossy(&output.stderr).trim()),
            Err(error) => skip(&error.to_string()),
        }
    }

    /// Returns where it is mounted.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file that leaves only `free_bytes`; removing it makes room again.
    ///
    /// # Panics
    /// If the file system cannot be looked at.
    pub fn fill_up(&self, free_bytes: u64) -> std::path::PathBuf {
        let path = self.path().join(".filler");
        let stat = rustix::fs::statvfs(self.path()).expect("cannot look at the small file system");
        let free = stat.f_bavail * stat.f_frsize;
        let filler = std::fs::File::create(&path).expect("cannot create the filler");
        let len = free.saturating_sub(free_bytes);
        rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), 0, len.max(1))
            .expect("cannot fill up");
        path
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        // Lazily, since a process that is just ending may still have a file open.
        let _ = Command::new("umount").arg("-l").arg(self.folder.path()).output();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fills_up_and_has_room_again() {
        let Some(small) = SmallFileSystem::mount(1 << 20) else { return };
        let file = small.path().join("file");
        let filler = small.fill_up(4096);
        let error = std::fs::write(&file, vec![1; 64 << 10]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
        std::fs::remove_file(filler).unwrap();
        std::fs::write(&file, vec![1; 64 << 10]).unwrap();
    }
}
