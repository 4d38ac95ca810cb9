//! Local files: sources that must not change while they are read, and destinations that appear whole.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use percale_api::entries::Content;
use percale_core::tree::{GROUP_SIZE, HashTree, RootHash, TreeHasher, group_count, group_range};
use percale_core::{ByteCount, ErrorCode, FileMode, Timestamp};
use percale_mover::ReceivedGroups;

use crate::error::{Error, ErrorKind};

/// Ends the name of a file that is not complete yet.
const PART_SUFFIX: &str = ".percale-part";

/// Tells whether a name is that of a partial file of ours.
pub(crate) fn is_part_name(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(PART_SUFFIX)
}

/// What tells one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Fingerprint {
    pub device: u64,
    pub inode: u64,
    pub size: u64,
    pub mtime_seconds: i64,
    pub mtime_nanos: i64,
}

impl Fingerprint {
    pub fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            mtime_seconds: metadata.mtime(),
            mtime_nanos: metadata.mtime_nsec(),
        }
    }

    pub fn mtime(&self) -> Timestamp {
        let micros = self.mtime_seconds.saturating_mul(1_000_000).saturating_add(self.mtime_nanos / 1000);
        Timestamp::from_micros(micros)
    }
}

/// A local file that is read from beginning to end, or in pieces by several threads.
#[derive(Debug)]
pub(crate) struct Source {
    file: File,
    path: PathBuf,
    pub fingerprint: Fingerprint,
    pub mode: FileMode,
}

impl Source {
    pub fn open(path: &Path) -> crate::Result<Self> {
        let cannot = |error| Error::local("read a local file", path, error);
        let file = File::open(path).map_err(cannot)?;
        let metadata = file.metadata().map_err(cannot)?;
        if !metadata.is_file() {
            return Err(cannot(io::Error::new(io::ErrorKind::IsADirectory, "it is not a regular file")));
        }
        Ok(Self {
            file,
            path: path.to_owned(),
            fingerprint: Fingerprint::of(&metadata),
            mode: FileMode::of(metadata.mode()),
        })
    }

    pub fn size(&self) -> ByteCount {
        ByteCount(self.fingerprint.size)
    }

    /// Reads one whole group.
    pub fn group(&self, index: u64, pool: &mut Buffers) -> crate::Result<Bytes> {
        let range = group_range(self.size(), index);
        let len = usize::try_from(range.len()).unwrap_or(GROUP_SIZE as usize);
        let mut buffer = pool.take(len);
        self.file.read_exact_at(&mut buffer, range.start()).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.changed(),
            _ => Error::local("read a local file", &self.path, error),
        })?;
        Ok(pool.lend(buffer))
    }

    /// Fails if the file is not the one that was opened any more, or has been written to.
    pub fn check_unchanged(&self) -> crate::Result<()> {
        let cannot = |error| Error::local("read a local file", &self.path, error);
        let now = Fingerprint::of(&self.file.metadata().map_err(cannot)?);
        if now == self.fingerprint { Ok(()) } else { Err(self.changed()) }
    }

    fn changed(&self) -> Error {
        Error::new(
            ErrorKind::SourceChanged,
            ErrorCode::VersionChanged,
            format!("upload {}", self.path.display()),
            "the file was changed while it was read; nothing of it became visible",
        )
    }
}

/// Hashes a whole local file.
pub(crate) fn hash_file(path: &Path) -> crate::Result<HashTree> {
    let source = Source::open(path)?;
    let mut pool = Buffers::default();
    let mut hasher = TreeHasher::new();
    for index in 0..group_count(source.size()) {
        hasher.update(&source.group(index, &mut pool)?);
    }
    source.check_unchanged()?;
    Ok(hasher.finish())
}

/// Tells whether a local file has this content. Reads it only if the size is right.
pub(crate) fn has_content(path: &Path, size: u64, root: Option<RootHash>) -> crate::Result<bool> {
    let metadata = fs::metadata(path).map_err(|error| Error::local("read a local file", path, error))?;
    if !metadata.is_file() || metadata.len() != size {
        return Ok(false);
    }
    match root {
        Some(root) => Ok(hash_file(path)?.root() == root),
        None => Ok(false),
    }
}

/// Buffers of one group that are used again once whoever got their bytes has dropped them. New memory for each group
/// costs more than the read itself: 256 page faults.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    lent: Vec<Bytes>,
}

impl Buffers {
    /// Most buffers that are remembered; more are simply freed.
    const KEPT: usize = 12;

    fn take(&mut self, len: usize) -> BytesMut {
        if len < GROUP_SIZE as usize / 4 {
            return BytesMut::zeroed(len);
        }
        for _ in 0..self.lent.len() {
            match self.lent.remove(0).try_into_mut() {
                Ok(mut buffer) if buffer.capacity() >= len => {
                    buffer.resize(len, 0);
                    return buffer;
                }
                Ok(_) => {}
                Err(bytes) => self.lent.push(bytes),
            }
        }
        BytesMut::zeroed(len)
    }

    fn lend(&mut self, buffer: BytesMut) -> Bytes {
        let bytes = buffer.freeze();
        if bytes.len() >= GROUP_SIZE as usize / 4 && self.lent.len() < Self::KEPT {
            self.lent.push(bytes.clone());
        }
        bytes
    }
}

/// A file that is being received beside its destination, and takes its name only when it is complete.
#[derive(Debug)]
pub(crate) struct PartFile {
    file: File,
    part: PathBuf,
    destination: PathBuf,
    is_resumed: bool,
    keep: bool,
    behind: FlushBehind,
}

/// Flushing while more arrives, so that the disk works all the time and not only at the end.
#[derive(Debug, Default)]
struct FlushBehind {
    written: AtomicU64,
    running: Arc<AtomicBool>,
    /// A fault of the disk is told only once, to whoever flushes first: it is kept here, and the lock is held meanwhile.
    failed: Arc<Mutex<bool>>,
}

/// Bytes after which flushing begins.
const FLUSH_EVERY: u64 = 64 << 20;

impl PartFile {
    /// Opens the partial file, the one of an earlier attempt if there is one. Only one process may have it.
    pub fn open(destination: &Path, size: u64) -> crate::Result<Self> {
        let part = part_path(destination)?;
        let cannot = |error| Error::local("write a local file", &part, error);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            // A link of that name leads to a file that is not ours.
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(&part)
            .map_err(cannot)?;
        file.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => Error::new(
                ErrorKind::Local,
                ErrorCode::Conflict,
                format!("download to {}", destination.display()),
                "another process is downloading to it",
            ),
            fs::TryLockError::Error(error) => cannot(error),
        })?;
        let metadata = file.metadata().map_err(cannot)?;
        let is_resumed = metadata.len() > 0;
        // What is one write needs no room before it.
        if is_resumed || size > GROUP_SIZE {
            reserve(&file, &metadata, size).map_err(cannot)?;
        }
        Ok(Self {
            file,
            is_resumed,
            part,
            destination: destination.to_owned(),
            keep: true,
            behind: FlushBehind::default(),
        })
    }

    /// Tells whether an earlier attempt may have left something in it.
    pub fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// Finds the groups that are there already, by hashing them: a group either is that of the wanted version or is
    /// fetched again, so that bytes of two versions are never mixed, whatever the partial file is from.
    pub fn received(&self, tree: &HashTree) -> crate::Result<ReceivedGroups> {
        let mut received = ReceivedGroups::new(tree.size());
        let mut buffer = vec![0; GROUP_SIZE as usize];
        for (index, hash) in (0..).zip(tree.groups()) {
            let range = group_range(tree.size(), index);
            let Some(bytes) = buffer.get_mut(..range.len() as usize) else { break };
            if self.file.read_exact_at(bytes, range.start()).is_ok() && tree.verify(index, bytes).is_ok() {
                received.insert(index, *hash);
            }
        }
        Ok(received)
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) -> crate::Result<()> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(|error| Error::local("write a local file", &self.part, error))?;
        let written = self.behind.written.fetch_add(bytes.len() as u64, Relaxed) + bytes.len() as u64;
        if written >= FLUSH_EVERY && !self.behind.running.swap(true, Relaxed) {
            self.behind.written.store(0, Relaxed);
            self.flush_behind();
        }
        Ok(())
    }

    /// Flushes on another thread what was written so far.
    fn flush_behind(&self) {
        let (running, failed) = (self.behind.running.clone(), self.behind.failed.clone());
        let (Ok(file), Ok(runtime)) = (self.file.try_clone(), tokio::runtime::Handle::try_current()) else {
            return;
        };
        runtime.spawn_blocking(move || {
            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
            *failed |= file.sync_data().is_err();
            drop(failed);
            running.store(false, Relaxed);
        });
    }

    /// Flushes the bytes, gives the file what the owner said of its content, and its name.
    pub fn publish(self, content: &Content, overwrite: bool, flush: bool) -> crate::Result<()> {
        let cannot = |error| Error::local("write a local file", &self.destination, error);
        set_mtime(&self.file, content.mtime).map_err(cannot)?;
        if let Some(mode) = content.mode {
            set_mode(&self.file, mode).map_err(cannot)?;
        }
        if flush {
            let failed = self.behind.failed.lock().unwrap_or_else(PoisonError::into_inner);
            self.file.sync_all().map_err(cannot)?;
            if *failed {
                return Err(cannot(io::Error::other("the disk did not take what was written")));
            }
        }
        rename(&self.part, &self.destination, overwrite).map_err(cannot)?;
        if flush {
            let parent = self.destination.parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(parent.unwrap_or(Path::new(".")))
                .and_then(|parent| parent.sync_all())
                .map_err(cannot)?;
        }
        Ok(())
    }

    /// Removes the partial file when it is dropped unpublished, as it is of no use for a resume.
    pub fn discard(mut self) {
        self.keep = false;
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if !self.keep {
            let _ = fs::remove_file(&self.part);
        }
    }
}

/// Returns the path of the partial file for a destination.
pub(crate) fn part_path(destination: &Path) -> crate::Result<PathBuf> {
    let Some(name) = destination.file_name() else {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "it has no file name");
        return Err(Error::local("write a local file", destination, error));
    };
    let mut hidden = std::ffi::OsString::from(".");
    // A name may have 255 bytes; what is beyond cannot be told apart, and need not be: the lock does.
    let name = name.to_string_lossy();
    let room = 255 - 1 - PART_SUFFIX.len();
    let end = (0..=room.min(name.len())).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    hidden.push(&name[..end]);
    hidden.push(PART_SUFFIX);
    Ok(destination.with_file_name(hidden))
}

/// Sets the permission bits, as far as the user's mask lets new files have them: whoever may read may also execute.
fn set_mode(file: &File, mode: FileMode) -> io::Result<()> {
    let made_with = file.metadata()?.mode();
    let allowed = made_with | ((made_with & 0o444) >> 2);
    let wanted = u32::from(mode.bits()) & allowed;
    if wanted == made_with & 0o7777 {
        return Ok(());
    }
    file.set_permissions(fs::Permissions::from_mode(wanted))
}

/// Sets the modification time.
fn set_mtime(file: &File, mtime: Timestamp) -> io::Result<()> {
    let since = Duration::from_micros(mtime.as_micros().unsigned_abs());
    let time = if mtime.as_micros() < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(since)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(since)
    };
    match time {
        Some(time) => file.set_times(fs::FileTimes::new().set_modified(time)),
        None => Ok(()),
    }
}

/// Gives the file its full length, and refuses if there is no room for it, so that a full disk is met now and not after
/// hours. Room is not taken at once (`fallocate`): that would clear memory on a file system that lives there, and hinders
/// others in placing what arrives out of order.
fn reserve(file: &File, metadata: &fs::Metadata, size: u64) -> io::Result<()> {
    if metadata.len() != size {
        file.set_len(size)?;
    }
    let wanted = size.saturating_sub(metadata.blocks().saturating_mul(512));
    let there = rustix::fs::fstatvfs(file)?;
    if there.f_bavail.saturating_mul(there.f_frsize) < wanted {
        return Err(io::Error::from(io::ErrorKind::StorageFull));
    }
    Ok(())
}

fn rename(from: &Path, to: &Path, overwrite: bool) -> io::Result<()> {
    if overwrite {
        return fs::rename(from, to);
    }
    let flags = rustix::fs::RenameFlags::NOREPLACE;
    match rustix::fs::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, to, flags) {
        Ok(()) => Ok(()),
        // A file system without it, such as NFS: a link does not replace either.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            fs::hard_link(from, to)?;
            fs::remove_file(from)
        }
        Err(error) => Err(error.into()),
    }
}

/// Flushes the file system that holds a directory: one call for a whole tree of small files.
pub(crate) fn flush_file_system(directory: &Path) -> crate::Result<()> {
    let cannot = |error| Error::local("flush the files in", directory, error);
    let directory = File::open(directory).map_err(cannot)?;
    rustix::fs::syncfs(&directory).map_err(|error| cannot(error.into()))
}

#[cfg(test)]
mod tests {
    use percale_core::ids::VersionId;

    use super::*;

    #[test]
    fn buffers_are_used_again_only_when_nobody_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let content: Vec<u8> = (0..5 * GROUP_SIZE as usize + 3).map(|at| (at / 1000) as u8).collect();
        fs::write(&path, &content).unwrap();
        let source = Source::open(&path).unwrap();
        let mut pool = Buffers::default();
        let mut held = Vec::new();
        for round in 0..20 {
            for index in 0..6 {
                let range = group_range(source.size(), index);
                let bytes = source.group(index, &mut pool).unwrap();
                assert_eq!(bytes, content[range.start() as usize..range.end() as usize]);
                if round % 2 == 0 {
                    held.push((index, bytes));
                }
            }
            for (index, bytes) in &held {
                let range = group_range(source.size(), *index);
                assert_eq!(bytes, &content[range.start() as usize..range.end() as usize]);
            }
            if round % 5 == 4 {
                held.clear();
            }
        }
        assert!(pool.lent.len() <= Buffers::KEPT);
    }

    #[test]
    fn a_changed_source_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "one").unwrap();
        let source = Source::open(&path).unwrap();
        source.check_unchanged().unwrap();
        fs::write(&path, "one and more").unwrap();
        let error = source.check_unchanged().unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::SourceChanged, ErrorCode::VersionChanged));
        fs::write(&path, "o").unwrap();
        assert_eq!(source.group(0, &mut Buffers::default()).unwrap_err().kind(), ErrorKind::SourceChanged);
    }

    #[test]
    fn a_part_file_is_resumed_by_content_and_never_replaces_unasked() {
        let folder = tempfile::tempdir().unwrap();
        let destination = folder.path().join("a.nc");
        let content: Vec<u8> = (0..3 * GROUP_SIZE as usize).map(|at| (at / 7) as u8).collect();
        let tree = HashTree::of(&content);
        let group = GROUP_SIZE as usize;
        let part = PartFile::open(&destination, content.len() as u64).unwrap();
        assert_eq!(PartFile::open(&destination, 1).unwrap_err().code(), ErrorCode::Conflict);
        part.write(GROUP_SIZE, &content[group..2 * group]).unwrap();
        drop(part);

        let part = PartFile::open(&destination, content.len() as u64).unwrap();
        let received = part.received(&tree).unwrap();
        assert_eq!(received.missing().total().0, 2 * GROUP_SIZE);
        part.write(0, &content[..group]).unwrap();
        part.write(2 * GROUP_SIZE, &content[2 * group..]).unwrap();
        assert!(part.received(&tree).unwrap().is_complete());
        let mtime: Timestamp = "2001-02-03T04:05:06.789Z".parse().unwrap();
        let said = |mode| Content {
            version: VersionId(1),
            size: content.len() as u64,
            root: None,
            mtime,
            mode,
            digests: Vec::new(),
        };
        part.publish(&said(Some(FileMode::of(0o750))), false, true).unwrap();
        assert_eq!(fs::metadata(&destination).unwrap().mode() & 0o700, 0o700);
        assert_eq!(fs::read(&destination).unwrap(), content);
        assert_eq!(Fingerprint::of(&fs::metadata(&destination).unwrap()).mtime(), mtime);

        let part = PartFile::open(&destination, 1).unwrap();
        part.write(0, b"x").unwrap();
        assert_eq!(part.publish(&said(None), false, false).unwrap_err().code(), ErrorCode::AlreadyExists);
        assert_eq!(fs::read(&destination).unwrap(), content);
        PartFile::open(&destination, 1).unwrap().discard();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

        std::os::unix::fs::symlink(&destination, part_path(&destination).unwrap()).unwrap();
        PartFile::open(&destination, 1).unwrap_err();
        assert_eq!(fs::read(&destination).unwrap(), content, "nothing is written through a link");
    }

    #[test]
    fn part_names_fit_and_are_recognised() {
        let long = PathBuf::from("d").join("ä".repeat(127));
        let part = part_path(&long).unwrap();
        let name = part.file_name().unwrap().to_str().unwrap();
        assert!(name.len() <= 255 && is_part_name(name), "{name}");
        assert!(part_path(Path::new("..")).is_err());
        assert!(!is_part_name("a.nc") && !is_part_name(".hidden"));
    }
}
