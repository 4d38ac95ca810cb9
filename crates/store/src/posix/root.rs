//! The root directory, and how paths below it are resolved.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use percale_core::{ByteCount, FileMode, Timestamp};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, StatxTimestamp};
use rustix::io::Errno;

use super::config::{Layout, Ownership, PosixConfig};
use crate::{
    Error, ErrorKind, FileIdentity, Generation, Kind, Meta, Operation, RESERVED, Result, StoreKey, Usage,
};

/// First line of `.percale/store`.
const MARKER_FORMAT: &str = "percale-store 1";

/// How many links are followed one after the other, as by the kernel (`path_resolution(7)`).
const MAX_FOLLOWED: usize = 40;

/// How often a resolution is repeated that a rename elsewhere disturbed (`EAGAIN` of openat2).
const RESOLVE_ATTEMPTS: u32 = 64;

pub(super) const STATX: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// Makes an error of the store from one of the kernel, met while resolving or using a path.
pub(super) fn path_error(operation: Operation, errno: Errno) -> Error {
    let io = std::io::Error::from(errno);
    match errno {
        Errno::XDEV => {
            Error::new(ErrorKind::Denied, operation).detail("leads out of the store").caused_by(io)
        }
        Errno::LOOP => {
            Error::new(ErrorKind::Denied, operation).detail("goes through a symbolic link").caused_by(io)
        }
        Errno::NXIO => Error::unsupported(operation, "not a regular file").caused_by(io),
        _ => Error::from_io(operation, io),
    }
}

#[derive(Debug)]
pub(super) struct Root {
    dir: OwnedFd,
    layout: Layout,
}

impl Root {
    pub(super) fn open(config: &PosixConfig) -> Result<Self> {
        let shown = config.root.display();
        if !config.root.is_absolute() {
            return Err(Error::new(ErrorKind::InvalidInput, Operation::Open)
                .on(shown)
                .detail("path is not absolute"));
        }
        if config.create {
            std::fs::create_dir_all(&config.root)
                .map_err(|error| Error::from_io(Operation::Open, error).on(config.root.display()))?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&config.root, flags, Mode::empty()).map_err(|errno| {
            let kind = if errno == Errno::ACCESS { ErrorKind::Denied } else { ErrorKind::Unavailable };
            Error::new(kind, Operation::Open).on(config.root.display()).caused_by(std::io::Error::from(errno))
        })?;
        let root = Self { dir, layout: config.layout };
        match root.resolve(".", flags, ResolveFlags::BENEATH) {
            Ok(_) => Ok(root),
            Err(Errno::NOSYS | Errno::PERM) => Err(Error::unsupported(
                Operation::Open,
                "the kernel has no openat2 (Linux 5.6), or a seccomp filter forbids it",
            )
            .on(config.root.display())),
            Err(errno) => Err(path_error(Operation::Open, errno).on(config.root.display())),
        }
    }

    /// Makes `.percale/stage` and compares whose root this is. Returns the stage directory, or nothing if the root
    /// cannot be written.
    pub(super) fn prepare(&self, config: &PosixConfig) -> Result<Option<OwnedFd>> {
        let is_mapped = config.ownership == Ownership::Mapped;
        let mode = Mode::from_raw_mode(if is_mapped { 0o711 } else { 0o700 });
        let fail = |errno| path_error(Operation::Open, errno).on(config.root.display());
        if let Some(expected) = config.store_id.filter(|_| !config.create) {
            self.check_marker(&expected.to_string(), config)?;
        }
        let reserved = match make_dir(&self.dir, RESERVED, mode) {
            Ok((reserved, _)) => reserved,
            Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => return Ok(None),
            Err(errno) => return Err(fail(errno)),
        };
        if let Some(id) = config.store_id.filter(|_| config.create) {
            self.claim(&reserved, &id.to_string(), config)?;
        }
        let stage = match make_dir(&reserved, "stage", mode) {
            Ok((stage, _)) => stage,
            Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => return Ok(None),
            Err(errno) => return Err(fail(errno)),
        };
        rustix::fs::fsync(&reserved).and_then(|()| rustix::fs::fsync(&self.dir)).map_err(fail)?;
        Ok(Some(stage))
    }

    fn check_marker(&self, expected: &str, config: &PosixConfig) -> Result<()> {
        let wrong = |detail: &str| {
            Err(Error::new(ErrorKind::Unavailable, Operation::Open).on(config.root.display()).detail(detail))
        };
        let marker = match self.open_reserved(".percale/store", OFlags::RDONLY) {
            Ok(marker) => marker,
            Err(Errno::NOENT) => {
                return wrong("the directory is not the root of a store; is its file system mounted?");
            }
            Err(errno) => return Err(path_error(Operation::Open, errno).on(config.root.display())),
        };
        let mut text = Vec::with_capacity(256);
        rustix::io::read(&marker, rustix::buffer::spare_capacity(&mut text))
            .map_err(|errno| path_error(Operation::Open, errno).on(config.root.display()))?;
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.lines();
        match (lines.next(), lines.next()) {
            (Some(MARKER_FORMAT), Some(id)) if id == expected => Ok(()),
            (Some(MARKER_FORMAT), Some(_)) => wrong("the directory is the root of another store"),
            _ => wrong("'.percale/store' has a format that this release does not know"),
        }
    }

    fn claim(&self, reserved: &OwnedFd, id: &str, config: &PosixConfig) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fail = |errno| path_error(Operation::Open, errno).on(config.root.display());
        let marker = match rustix::fs::openat(reserved, "store", flags, Mode::from_raw_mode(0o644)) {
            Ok(marker) => marker,
            Err(Errno::EXIST) => return self.check_marker(id, config),
            Err(errno) => return Err(fail(errno)),
        };
        let text = format!("{MARKER_FORMAT}\n{id}\n");
        write_all_at(&marker, text.as_bytes(), 0).and_then(|()| rustix::fs::fsync(&marker)).map_err(fail)
    }

    fn resolve(
        &self,
        path: impl AsRef<Path>,
        flags: OFlags,
        how: ResolveFlags,
    ) -> rustix::io::Result<OwnedFd> {
        let (path, flags) = (path.as_ref(), flags | OFlags::CLOEXEC);
        let how = how | ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        for _ in 1..RESOLVE_ATTEMPTS {
            match rustix::fs::openat2(&self.dir, path, flags, Mode::empty(), how) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other,
            }
        }
        rustix::fs::openat2(&self.dir, path, flags, Mode::empty(), how)
    }

    fn open_reserved(&self, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        self.resolve(path, flags, ResolveFlags::NO_SYMLINKS)
    }

    /// Opens what a key names, or the root itself for nothing. Never creates.
    pub(super) fn open_path(&self, path: Option<&str>, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let path = path.unwrap_or(".");
        let is_reserved = path.split('/').next() == Some(RESERVED);
        match self.layout {
            Layout::Native if !is_reserved => match self.resolve(path, flags, ResolveFlags::NO_SYMLINKS) {
                Err(Errno::LOOP) => {
                    let path = self.follow(path, flags.contains(OFlags::NOFOLLOW))?;
                    // Without links, so that what was found not to be reserved is what is opened.
                    self.resolve(&path, flags, ResolveFlags::NO_SYMLINKS)
                }
                opened => opened,
            },
            _ => self.open_reserved(path, flags),
        }
    }

    /// Follows the links of a path in native data, but for a last one if that `is_kept`. Returns a path without links.
    ///
    /// What is reserved lies below the same root. A link that leads there, or to the root itself, through which everything
    /// there could be named, leads out of what is the users'.
    fn follow(&self, path: &str, is_kept: bool) -> rustix::io::Result<PathBuf> {
        let mut ahead: Vec<OsString> = path.rsplit('/').map(OsString::from).collect();
        let mut found = PathBuf::new();
        let mut followed = 0;
        while let Some(name) = ahead.pop() {
            match name.as_bytes() {
                b"" | b"." => continue,
                // What was found has no links, so what is above it is where its name ends.
                b".." if found.pop() => continue,
                b".." => return Err(Errno::XDEV),
                _ => found.push(&name),
            }
            if is_kept && ahead.is_empty() {
                break;
            }
            let itself = self.resolve(&found, OFlags::PATH | OFlags::NOFOLLOW, ResolveFlags::NO_SYMLINKS)?;
            if FileType::from_raw_mode(statx_fd(&itself)?.stx_mode.into()) != FileType::Symlink {
                continue;
            }
            followed += 1;
            if followed > MAX_FOLLOWED {
                return Err(Errno::LOOP);
            }
            let target = rustix::fs::readlinkat(&itself, "", Vec::new())?;
            if target.as_bytes().starts_with(b"/") {
                return Err(Errno::XDEV);
            }
            found.pop();
            let names = target.as_bytes().rsplit(|byte| *byte == b'/');
            ahead.extend(names.map(|name| OsStr::from_bytes(name).to_owned()));
        }
        match found.iter().next() {
            Some(first) if first != RESERVED => Ok(found),
            _ => Err(Errno::XDEV),
        }
    }

    /// Opens a directory so that it can be listed, flushed and used as a starting point.
    pub(super) fn open_dir(&self, path: Option<&str>) -> rustix::io::Result<OwnedFd> {
        self.open_path(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Opens a file for reading. Does not wait for the other end of a pipe.
    pub(super) fn open_file(&self, key: &StoreKey, operation: Operation) -> Result<(OwnedFd, Statx)> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let open = || {
            let file = self.open_path(Some(key.as_str()), flags)?;
            let stat = statx_fd(&file)?;
            Ok((file, stat))
        };
        let (file, stat) = open().map_err(|errno| path_error(operation, errno).on(key))?;
        match FileType::from_raw_mode(stat.stx_mode.into()) {
            FileType::RegularFile => Ok((file, stat)),
            FileType::Directory => Err(Error::new(ErrorKind::IsACollection, operation).on(key)),
            _ => Err(Error::unsupported(operation, "not a regular file").on(key)),
        }
    }

    pub(super) fn stat(&self, key: &StoreKey) -> Result<Meta> {
        let path = Some(key.as_str());
        let found = match (self.layout, self.open_path(path, OFlags::PATH | OFlags::NOFOLLOW)) {
            // A link in native data: what it leads to, if that is inside.
            (Layout::Native, Ok(itself)) => match statx_fd(&itself) {
                Ok(stat) if FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Symlink => {
                    self.open_path(path, OFlags::PATH).or(Ok(itself))
                }
                _ => Ok(itself),
            },
            (_, found) => found,
        };
        let stat = found.and_then(|found| statx_fd(&found));
        stat.map(|stat| meta(&stat)).map_err(|errno| path_error(Operation::Stat, errno).on(key))
    }

    pub(super) fn usage(&self) -> Result<Usage> {
        let stat = rustix::fs::fstatvfs(&self.dir).map_err(|errno| path_error(Operation::Usage, errno))?;
        let bytes = |blocks: u64| ByteCount(blocks.saturating_mul(stat.f_frsize));
        Ok(Usage { total: bytes(stat.f_blocks), free: bytes(stat.f_bavail) })
    }

    pub(super) fn dir(&self) -> &OwnedFd {
        &self.dir
    }
}

/// Opens a directory, makes it if it is not there, and tells whether it did. A mode is set whatever the umask says.
pub(super) fn make_dir(parent: impl AsFd, name: &str, mode: Mode) -> rustix::io::Result<(OwnedFd, bool)> {
    let made = match rustix::fs::mkdirat(&parent, name, mode) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        // The directory may be there although nothing may be made beside it.
        Err(errno @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) => {
            return open_dir_at(parent, name).map(|dir| (dir, false)).map_err(|_| errno);
        }
        Err(errno) => return Err(errno),
    };
    let dir = open_dir_at(parent, name)?;
    if made {
        rustix::fs::fchmod(&dir, mode)?;
    }
    Ok((dir, made))
}

pub(super) fn open_dir_at(parent: impl AsFd, name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

pub(super) fn statx_fd(file: impl AsFd) -> rustix::io::Result<Statx> {
    rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, STATX)
}

pub(super) fn statx_at(dir: impl AsFd, name: &str) -> rustix::io::Result<Statx> {
    rustix::fs::statx(dir, name, AtFlags::SYMLINK_NOFOLLOW, STATX)
}

pub(super) fn write_all_at(file: impl AsFd, mut bytes: &[u8], mut offset: u64) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(&file, bytes, offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => {
                bytes = bytes.get(written..).unwrap_or_default();
                offset += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn nanos(time: StatxTimestamp) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

/// What of a file changes with its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint {
    inode: u64,
    size: u64,
    mtime: i128,
    /// Not compared in a managed store: there it moves when a file that is being read is deleted, and the bytes do not.
    ctime: Option<i128>,
}

impl Fingerprint {
    pub(super) fn of(layout: Layout, stat: &Statx) -> Self {
        Self {
            inode: stat.stx_ino,
            size: stat.stx_size,
            mtime: nanos(stat.stx_mtime),
            ctime: (layout == Layout::Native).then(|| nanos(stat.stx_ctime)),
        }
    }
}

impl Root {
    pub(super) fn layout(&self) -> Layout {
        self.layout
    }
}

pub(super) fn identity(stat: &Statx) -> FileIdentity {
    // Not the device: its number may be another after a restart. The birth time tells inodes apart that were used again.
    let birth = if stat.stx_mask & StatxFlags::BTIME.bits() != 0 { nanos(stat.stx_btime) } else { 0 };
    FileIdentity::new(format!("{}:{birth}", stat.stx_ino))
}

/// What a listing says of a file: all but which one it is.
pub(super) fn listed_meta(stat: &Statx) -> Meta {
    let kind = match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Collection,
        _ => Kind::Other,
    };
    let mut meta = Meta::new(kind, ByteCount(if kind == Kind::File { stat.stx_size } else { 0 }));
    let (mtime, ctime) = (nanos(stat.stx_mtime), nanos(stat.stx_ctime));
    meta.modified = Some(Timestamp::from_micros(i64::try_from(mtime.div_euclid(1000)).unwrap_or(i64::MAX)));
    if kind == Kind::File {
        meta.mode = Some(FileMode::of(stat.stx_mode.into()));
        meta.generation =
            Some(Generation::new(format!("{}:{}:{mtime}:{ctime}", stat.stx_ino, stat.stx_size)));
    }
    meta
}

pub(super) fn meta(stat: &Statx) -> Meta {
    let mut meta = listed_meta(stat);
    if meta.is_file() {
        meta.identity = Some(identity(stat));
    }
    meta
}
