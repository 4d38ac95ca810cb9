//! The stage area: files that nobody sees yet.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use percale_core::ids::Fence;
use percale_core::{ByteCount, ByteRange};
use rustix::fs::{Advice, AtFlags, FallocateFlags, Gid, Mode, OFlags, Statx};
use rustix::io::Errno;

use super::config::{Layout, Ownership, PosixConfig};
use super::root::{
    Fingerprint, Root, identity, make_dir, open_dir_at, path_error, statx_at, statx_fd, write_all_at,
};
use crate::key::STAGE;
use crate::{
    Error, ErrorKind, FileIdentity, Operation, Result, SmallFile, Stage, StageOptions, StageToken, Staged,
    StoreKey,
};

/// Directories of fences kept open. A server has one fence, and each unfinished upload another.
const OPEN_FENCES: usize = 64;

/// From this size on, room is set aside when staging begins, so that a full disk is found out before the bytes come.
/// Below it, the extra call costs more than what is lost.
const RESERVE_FROM: u64 = 8 << 20;

/// How much is written before flushing begins in the background, so that publishing a large file need not wait for all
/// of it. Large enough that a spinning disk is not made to seek for it.
const FLUSH_EVERY: u64 = 64 << 20;

/// Most files in a listing of the stage area.
const MAX_LISTED: usize = 100_000;

/// Most bytes of a restart marker that are read back. One of an upload has 40 bytes for each MiB, 2.5 GiB for an object of the
/// 64 TiB that are the most.
const MAX_MARKER_BYTES: u64 = 3 << 30;

const MARKER: &str = ".marker";
const NEW_MARKER: &str = ".marker-new";

#[derive(Debug)]
pub(super) struct StageArea {
    dir: OwnedFd,
    ownership: Ownership,
    fences: Mutex<HashMap<Fence, Arc<OwnedFd>>>,
}

/// Sets room aside for a file. Not every file system can; the disk may then be found full later.
fn reserve(file: &OwnedFd, size: u64) -> rustix::io::Result<()> {
    /// `TMPFS_MAGIC` of `linux/magic.h`.
    const TMPFS: rustix::fs::FsWord = 0x0102_1994;
    if rustix::fs::fstatfs(file)?.f_type != TMPFS {
        return rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, size);
    }
    // Memory would be cleared first, 0.2 s for 1 GB, so it is only seen whether there is enough.
    let there = (rustix::fs::fstat(file)?.st_blocks as u64).saturating_mul(512);
    let free = rustix::fs::fstatvfs(file)?;
    let room = free.f_bavail.saturating_mul(free.f_frsize);
    if room < size.saturating_sub(there) { Err(Errno::NOSPC) } else { Ok(()) }
}

fn fail(operation: Operation, token: &StageToken) -> impl Fn(Errno) -> Error {
    move |errno| path_error(operation, errno).on(token)
}

impl StageArea {
    pub(super) fn new(dir: OwnedFd, config: &PosixConfig) -> Self {
        Self { dir, ownership: config.ownership, fences: Mutex::default() }
    }

    fn fences(&self) -> MutexGuard<'_, HashMap<Fence, Arc<OwnedFd>>> {
        self.fences.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the directory of a fence, made if it is not there.
    pub(super) fn make_fence(&self, fence: Fence) -> rustix::io::Result<Arc<OwnedFd>> {
        if let Some(dir) = self.fences().get(&fence) {
            return Ok(dir.clone());
        }
        // Accounts stage files of their own beside each other; none may remove another's.
        let mode = if self.ownership == Ownership::Mapped { 0o1777 } else { 0o700 };
        let (dir, made) = make_dir(&self.dir, &fence.to_string(), Mode::from_raw_mode(mode))?;
        if made {
            rustix::fs::fsync(&self.dir)?;
        }
        let mut fences = self.fences();
        if fences.len() >= OPEN_FENCES {
            fences.clear();
        }
        Ok(fences.entry(fence).or_insert_with(|| Arc::new(dir)).clone())
    }

    /// Returns the directory of a fence, if it is there.
    pub(super) fn find_fence(&self, fence: Fence) -> rustix::io::Result<Option<Arc<OwnedFd>>> {
        if let Some(dir) = self.fences().get(&fence) {
            return Ok(Some(dir.clone()));
        }
        match open_dir_at(&self.dir, &fence.to_string()) {
            Ok(dir) => Ok(Some(Arc::new(dir))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn create(&self, dir: &OwnedFd, name: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o666))?;
        self.adopt(&file)?;
        Ok(file)
    }

    /// Gives a file the group and mode that those of the store have.
    fn adopt(&self, file: &OwnedFd) -> rustix::io::Result<()> {
        if let Ownership::Service { group, file_mode, .. } = self.ownership {
            if let Some(group) = group {
                rustix::fs::fchown(file, None, Some(Gid::from_raw(group)))?;
            }
            if let Some(mode) = file_mode {
                rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?;
            }
        }
        Ok(())
    }

    pub(super) fn open(&self, options: StageOptions) -> Result<PosixStage> {
        let StageOptions { token, size, resume, .. } = options;
        let dir = self.make_fence(token.fence()).map_err(fail(Operation::Stage, &token))?;
        let exclusive = if resume { OFlags::empty() } else { OFlags::EXCL };
        let file = self
            .create(&dir, token.name(), OFlags::RDWR | exclusive)
            .map_err(fail(Operation::Stage, &token))?;
        if let Some(size) = size.filter(|size| size.0 >= RESERVE_FROM) {
            let reserved = reserve(&file, size.0);
            if let Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) = reserved {
                if !resume {
                    remove(&dir, token.name()).map_err(fail(Operation::Stage, &token))?;
                }
                return Err(fail(Operation::Stage, &token)(errno));
            }
        }
        let stat = statx_fd(&file).map_err(fail(Operation::Stage, &token))?;
        let shared =
            Arc::new(Shared { file, flushing: AtomicBool::new(false), flush_error: OnceLock::new() });
        Ok(PosixStage {
            token,
            identity: identity(&stat),
            size,
            shared,
            dir,
            unflushed: AtomicU64::new(0),
            name_is_durable: Arc::default(),
        })
    }

    pub(super) fn write_small(&self, files: Vec<SmallFile>) -> Vec<Result<Staged>> {
        files.into_iter().map(|file| self.write_one(file)).collect()
    }

    fn write_one(&self, small: SmallFile) -> Result<Staged> {
        let token = small.token;
        let dir = self.make_fence(token.fence()).map_err(fail(Operation::StageSmall, &token))?;
        let file = self
            .create(&dir, token.name(), OFlags::WRONLY | OFlags::EXCL)
            .map_err(fail(Operation::StageSmall, &token))?;
        match write_all_at(&file, &small.bytes, 0).and_then(|()| statx_fd(&file)) {
            Ok(stat) => Ok(describe(token, &stat)),
            Err(errno) => {
                // A disk that is full stays so with the half-written file on it.
                let _ = remove(&dir, token.name());
                Err(fail(Operation::StageSmall, &token)(errno))
            }
        }
    }

    /// Reads the first bytes of a staged file; nothing if there is none.
    pub(super) fn read(&self, token: StageToken, most: ByteCount) -> Result<Option<(Staged, Bytes)>> {
        let wrong = fail(Operation::ReadStaged, &token);
        let Some(dir) = self.find_fence(token.fence()).map_err(&wrong)? else { return Ok(None) };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&dir, token.name(), flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(wrong(errno)),
        };
        let read = || {
            self.adopt(&file)?;
            let bytes = read_all_at(&file, 0, most.0.min(statx_fd(&file)?.stx_size))?;
            Ok((statx_fd(&file)?, bytes))
        };
        let (stat, bytes) = read().map_err(wrong)?;
        Ok(Some((describe(token, &stat), bytes)))
    }

    pub(super) fn clone_file(
        &self,
        root: &Root,
        from: &StoreKey,
        options: StageOptions,
    ) -> Result<PosixStage> {
        let (original, before) = root.open_file(from, Operation::Clone)?;
        let is_new = !options.resume;
        // Without its size: room that was set aside could not be shared with the original.
        let size = options.size;
        let mut stage = self.open(StageOptions { size: None, ..options })?;
        stage.size = size;
        let copied = copy(&original, &stage.shared.file, before.stx_size)
            .map_err(|errno| path_error(Operation::Clone, errno).on(from));
        let compared = copied.and_then(|()| {
            let after = statx_fd(&original).map_err(|errno| path_error(Operation::Clone, errno).on(from))?;
            if Fingerprint::of(Layout::Native, &after) == Fingerprint::of(Layout::Native, &before) {
                return Ok(());
            }
            Err(Error::new(ErrorKind::Changed, Operation::Clone).on(from))
        });
        if compared.is_err() && is_new {
            let _ = remove(&stage.dir, stage.token.name());
        }
        compared.map(|()| stage)
    }

    /// Opens a staged file such that its bytes come from the medium.
    pub(super) fn open_from_medium(&self, token: &StageToken) -> Result<(OwnedFd, StoreKey)> {
        let wrong = fail(Operation::ReadBack, token);
        let dir = self.find_fence(token.fence()).map_err(&wrong)?.ok_or_else(|| wrong(Errno::NOENT))?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&dir, token.name(), flags, Mode::empty()).map_err(&wrong)?;
        drop_from_memory(&file).map_err(&wrong)?;
        // Only named in errors.
        let key = StoreKey::parse(&format!("{STAGE}/{}/{}", token.fence(), token.name()));
        let key =
            key.map_err(|error| Error::new(ErrorKind::InvalidKey, Operation::ReadBack).caused_by(error))?;
        Ok((file, key))
    }

    pub(super) fn discard(&self, token: &StageToken) -> Result<bool> {
        let wrong = fail(Operation::Discard, token);
        let Some(dir) = self.find_fence(token.fence()).map_err(&wrong)? else { return Ok(false) };
        let was_there = remove(&dir, token.name()).map_err(&wrong)?;
        remove_markers(&dir, token.name()).map_err(wrong)?;
        Ok(was_there)
    }

    pub(super) fn discard_fence(&self, fence: Fence) -> Result<u64> {
        let name = fence.to_string();
        self.fences().remove(&fence);
        let mut removed = 0;
        let mut work = || {
            // Again if a holder that has not noticed yet makes files meanwhile; it cannot commit them.
            for _ in 0..16 {
                let dir = match open_dir_at(&self.dir, &name) {
                    Ok(dir) => dir,
                    Err(Errno::NOENT) => return Ok(()),
                    Err(errno) => return Err(errno),
                };
                for name in names_in(&dir)? {
                    if remove(&dir, &name)? && StageToken::new(fence, &name).is_ok() {
                        removed += 1;
                    }
                }
                match rustix::fs::unlinkat(&self.dir, name.as_str(), AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT) => return Ok(()),
                    Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                    Err(errno) => return Err(errno),
                }
            }
            Err(Errno::NOTEMPTY)
        };
        let done = work();
        done.map_err(|errno| path_error(Operation::Discard, errno).on(format_args!("fence {fence}")))?;
        Ok(removed)
    }

    pub(super) fn list(&self, only: Option<Fence>) -> Result<Vec<Staged>> {
        let wrong = |errno| path_error(Operation::Staged, errno);
        let fences: Vec<Fence> = match only {
            Some(fence) => vec![fence],
            None => names_in(&self.dir).map_err(wrong)?.iter().filter_map(|name| name.parse().ok()).collect(),
        };
        let mut listed = Vec::new();
        for fence in fences {
            let Some(dir) = self.find_fence(fence).map_err(wrong)? else { continue };
            for name in names_in(&dir).map_err(wrong)? {
                let Ok(token) = StageToken::new(fence, &name) else { continue };
                match statx_at(&dir, &name) {
                    Ok(stat) => listed.push(describe(token, &stat)),
                    Err(Errno::NOENT) => {}
                    Err(errno) => return Err(wrong(errno)),
                }
                if listed.len() >= MAX_LISTED {
                    return Ok(listed);
                }
            }
        }
        Ok(listed)
    }
}

fn describe(token: StageToken, stat: &Statx) -> Staged {
    Staged { token, size: ByteCount(stat.stx_size), identity: Some(identity(stat)) }
}

/// Flushes a file, and has the system forget what it holds of it in memory. Only what was flushed can be forgotten.
fn drop_from_memory(file: &OwnedFd) -> rustix::io::Result<()> {
    rustix::fs::fdatasync(file)?;
    rustix::fs::fadvise(file, 0, None, Advice::DontNeed)
}

/// Reads from a place to an end, or to that of the file.
fn read_all_at(file: &OwnedFd, from: u64, end: u64) -> rustix::io::Result<Bytes> {
    let mut bytes: Vec<u8> = Vec::with_capacity(end.saturating_sub(from) as usize);
    while from + (bytes.len() as u64) < end {
        let offset = from + bytes.len() as u64;
        match rustix::io::pread(file, rustix::buffer::spare_capacity(&mut bytes), offset) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    bytes.truncate(end.saturating_sub(from) as usize);
    Ok(bytes.into())
}

/// Removes a file; tells whether it was there.
pub(super) fn remove(dir: &OwnedFd, name: &str) -> rustix::io::Result<bool> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

pub(super) fn remove_markers(dir: &OwnedFd, name: &str) -> rustix::io::Result<()> {
    remove(dir, &format!("{name}{MARKER}"))?;
    remove(dir, &format!("{name}{NEW_MARKER}"))?;
    Ok(())
}

/// Returns the names in a directory of ours; what is not UTF-8 is not ours.
fn names_in(dir: &OwnedFd) -> rustix::io::Result<HashSet<String>> {
    let mut names = HashSet::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        match entry?.file_name().to_str() {
            Ok(name) if name != "." && name != ".." => names.insert(name.to_owned()),
            _ => false,
        };
    }
    Ok(names)
}

/// Copies the whole file: by sharing its blocks, else inside the kernel, else through memory.
fn copy(from: &OwnedFd, to: &OwnedFd, size: u64) -> rustix::io::Result<()> {
    if rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let mut at = 0;
    while at < size {
        let (mut read_at, mut write_at) = (at, at);
        let step = (size - at).min(128 << 20) as usize;
        match rustix::fs::copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), step) {
            Ok(0) => return Err(Errno::IO),
            Ok(copied) => at += copied as u64,
            Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => {
                let mut buffer: Vec<u8> = Vec::with_capacity(1 << 20);
                let read = rustix::io::pread(from, rustix::buffer::spare_capacity(&mut buffer), at)?;
                if read == 0 {
                    return Err(Errno::IO);
                }
                write_all_at(to, &buffer, at)?;
                at += read as u64;
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// A staged file that is being written.
#[derive(Debug)]
pub(super) struct PosixStage {
    token: StageToken,
    identity: FileIdentity,
    size: Option<ByteCount>,
    shared: Arc<Shared>,
    dir: Arc<OwnedFd>,
    unflushed: AtomicU64,
    name_is_durable: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Shared {
    file: OwnedFd,
    flushing: AtomicBool,
    /// The kernel reports a failed write-back once to each open file, so whoever meets it must keep it.
    flush_error: OnceLock<Errno>,
}

impl Shared {
    fn flush(&self) -> rustix::io::Result<()> {
        rustix::fs::fdatasync(&self.file).inspect_err(|errno| {
            let _ = self.flush_error.set(*errno);
        })?;
        self.flush_error.get().map_or(Ok(()), |errno| Err(*errno))
    }
}

impl PosixStage {
    async fn run<T: Send + 'static>(
        &self,
        operation: Operation,
        work: impl FnOnce(&Shared, &OwnedFd) -> rustix::io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (shared, dir) = (self.shared.clone(), self.dir.clone());
        match tokio::task::spawn_blocking(move || work(&shared, &dir)).await {
            Ok(done) => done.map_err(fail(operation, &self.token)),
            Err(panic) => Err(Error::new(ErrorKind::Other, operation).on(&self.token).caused_by(panic)),
        }
    }

    fn flush_in_background(&self, written: u64) {
        if self.unflushed.fetch_add(written, Ordering::Relaxed) + written < FLUSH_EVERY
            || self.shared.flushing.swap(true, Ordering::AcqRel)
        {
            return;
        }
        self.unflushed.store(0, Ordering::Relaxed);
        let shared = self.shared.clone();
        // Not awaited: what it meets is kept, and `finish` and `sync_progress` report it.
        tokio::task::spawn_blocking(move || {
            let _ = shared.flush();
            shared.flushing.store(false, Ordering::Release);
        });
    }
}

#[async_trait]
impl Stage for PosixStage {
    fn token(&self) -> &StageToken {
        &self.token
    }

    fn identity(&self) -> Option<&FileIdentity> {
        Some(&self.identity)
    }

    async fn size(&self) -> Result<ByteCount> {
        let stat = statx_fd(&self.shared.file).map_err(fail(Operation::Stage, &self.token))?;
        Ok(ByteCount(stat.stx_size))
    }

    async fn write_at(&self, offset: u64, bytes: Bytes) -> Result<()> {
        let len = bytes.len() as u64;
        let end = offset.checked_add(len).filter(|end| i64::try_from(*end).is_ok());
        if end.is_none_or(|end| self.size.is_some_and(|size| end > size.0)) {
            return Err(Error::new(ErrorKind::InvalidInput, Operation::Write)
                .on(&self.token)
                .detail(format!("{len} bytes at {offset} end behind the announced size")));
        }
        self.run(Operation::Write, move |shared, _| write_all_at(&shared.file, &bytes, offset)).await?;
        self.flush_in_background(len);
        Ok(())
    }

    async fn read_at(&self, range: ByteRange) -> Result<Bytes> {
        self.run(Operation::ReadStaged, move |shared, _| {
            let size = statx_fd(&shared.file)?.stx_size;
            read_all_at(&shared.file, range.start(), range.end().min(size))
        })
        .await
    }

    async fn sync_progress(&self) -> Result<()> {
        let name_is_durable = self.name_is_durable.clone();
        self.run(Operation::Sync, move |shared, dir| {
            shared.flush()?;
            if !name_is_durable.load(Ordering::Acquire) {
                rustix::fs::fsync(dir)?;
                name_is_durable.store(true, Ordering::Release);
            }
            Ok(())
        })
        .await
    }

    async fn write_marker(&self, marker: Bytes) -> Result<()> {
        let name = self.token.name().to_owned();
        self.run(Operation::Marker, move |_, dir| {
            let new = format!("{name}{NEW_MARKER}");
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(dir, new.as_str(), flags, Mode::from_raw_mode(0o600))?;
            write_all_at(&file, &marker, 0)?;
            rustix::fs::fdatasync(&file)?;
            rustix::fs::renameat(dir, new.as_str(), dir, format!("{name}{MARKER}"))?;
            rustix::fs::fsync(dir)
        })
        .await
    }

    async fn read_marker(&self) -> Result<Option<Bytes>> {
        let name = format!("{}{MARKER}", self.token.name());
        self.run(Operation::Marker, move |_, dir| {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = match rustix::fs::openat(dir, name.as_str(), flags, Mode::empty()) {
                Ok(file) => file,
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(errno),
            };
            let size = statx_fd(&file)?.stx_size;
            if size > MAX_MARKER_BYTES {
                return Err(Errno::FBIG);
            }
            let mut bytes: Vec<u8> = Vec::with_capacity(size as usize + 1);
            while rustix::io::read(&file, rustix::buffer::spare_capacity(&mut bytes))? > 0 {
                bytes.reserve(4096);
            }
            Ok(Some(bytes.into()))
        })
        .await
    }

    async fn finish(self: Box<Self>) -> Result<Staged> {
        if let Some(errno) = self.shared.flush_error.get() {
            return Err(fail(Operation::Finish, &self.token)(*errno));
        }
        let stat = statx_fd(&self.shared.file).map_err(fail(Operation::Finish, &self.token))?;
        match self.size {
            Some(size) if size.0 != stat.stx_size => {
                Err(Error::new(ErrorKind::Incomplete, Operation::Finish)
                    .on(&self.token)
                    .detail(format!("{} of {} bytes", stat.stx_size, size.0)))
            }
            _ => Ok(describe(self.token.clone(), &stat)),
        }
    }
}
