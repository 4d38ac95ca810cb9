//! What the kernel asks. What can be answered from memory is answered at once; the rest runs beside.

use std::ffi::OsStr;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use percale_core::FileMode;
use percale_core::path::MAX_NAME_BYTES;
use rustix::fs::{OFlags, XattrFlags};

use crate::error::{from_io, from_rustix};
use crate::files::{Bytes, Obstacle, Opened};
use crate::names::{Keep, What};
use crate::requests::wanted_time;
use crate::state::Shared;
use crate::{probe, xattr};

/// The file system.
#[derive(Debug)]
pub struct Fs {
    shared: Arc<Shared>,
    /// Whether the kernel may be asked to read and write copies itself.
    wants_passthrough: bool,
    /// Held by the thread that answers the kernel and waits for a disk: one of them does at most, and another answers.
    waits_for_disk: Mutex<()>,
}

impl Fs {
    /// Makes it.
    pub fn new(shared: Arc<Shared>, wants_passthrough: bool) -> Self {
        Self { shared, wants_passthrough, waits_for_disk: Mutex::default() }
    }

    fn set_xattr(
        &self,
        ino: INodeNo,
        name: &OsStr,
        value: Option<Vec<u8>>,
        flags: XattrFlags,
        reply: ReplyEmpty,
    ) {
        match xattr::Name::parse(name.to_str().unwrap_or_default()) {
            Ok(name) => self.beside(async move |shared| {
                answer_empty(reply, xattr::set(&shared, ino.0, name, value, flags).await);
            }),
            Err(errno) => reply.error(if errno == Errno::ENODATA { Errno::EINVAL } else { errno }),
        }
    }

    /// Runs what takes time.
    fn beside<F: Future<Output = ()> + Send + 'static>(&self, work: impl FnOnce(Arc<Shared>) -> F) {
        self.shared.runtime.spawn(work(self.shared.clone()));
    }
}

/// Returns a name as the fabric has it: UTF-8, of at most 255 bytes.
fn text(name: &OsStr) -> Result<&str, Errno> {
    match name.to_str() {
        Some(name) if name.len() > MAX_NAME_BYTES => Err(Errno::ENAMETOOLONG),
        Some(name) => Ok(name),
        None => Err(Errno::EILSEQ),
    }
}

/// Returns why something that there is not here cannot be made.
fn refusal(name: &OsStr) -> Errno {
    text(name).err().unwrap_or(Errno::EPERM)
}

fn answer_entry(reply: ReplyEntry, outcome: Result<(Duration, FileAttr), Errno>) {
    match outcome {
        Ok((ttl, attr)) => reply.entry(&ttl, &attr, Generation(0)),
        Err(errno) => reply.error(errno),
    }
}

fn answer_attr(reply: ReplyAttr, outcome: Result<(Duration, FileAttr), Errno>) {
    match outcome {
        Ok((ttl, attr)) => reply.attr(&ttl, &attr),
        Err(errno) => reply.error(errno),
    }
}

fn answer_empty(reply: ReplyEmpty, outcome: Result<(), Errno>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn answer_open(reply: ReplyOpen, outcome: Result<Opened, Errno>) {
    match outcome {
        Ok(Opened { handle, passthrough: Some(id) }) => {
            reply.opened_passthrough(FileHandle(handle), FopenFlags::empty(), &id);
        }
        Ok(Opened { handle, passthrough: None }) => {
            reply.opened(FileHandle(handle), FopenFlags::FOPEN_KEEP_CACHE);
        }
        Err(errno) => reply.error(errno),
    }
}

fn answer_create(reply: ReplyCreate, outcome: Result<(Duration, FileAttr, Opened), Errno>) {
    match outcome {
        Ok((ttl, attr, Opened { handle, passthrough: Some(id) })) => {
            reply.created_passthrough(
                &ttl,
                &attr,
                Generation(0),
                FileHandle(handle),
                FopenFlags::empty(),
                &id,
            );
        }
        Ok((ttl, attr, Opened { handle, passthrough: None })) => {
            reply.created(&ttl, &attr, Generation(0), FileHandle(handle), FopenFlags::empty());
        }
        Err(errno) => reply.error(errno),
    }
}

impl Filesystem for Fs {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = [
            // Opening with O_TRUNC is one request, so that nothing is copied to be thrown away.
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_BIG_WRITES,
            InitFlags::FUSE_MAX_PAGES,
            // No file here has the bits and capabilities that a write takes away; else the kernel would ask before each write.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ];
        for flag in wanted {
            // An old kernel goes without.
            let _ = config.add_capabilities(flag);
        }
        let is_given = self.wants_passthrough && probe::ask_for_passthrough(config);
        let _ = self.shared.passthrough.set(is_given);
        // As much as it gives.
        if let Err(most) = config.set_max_readahead(16 << 20) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_write(1 << 20);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = match text(name) {
            Ok(name) => name,
            Err(Errno::ENAMETOOLONG) => return reply.error(Errno::ENAMETOOLONG),
            // Nothing has such a name.
            Err(_) => return reply.error(Errno::ENOENT),
        };
        match self.shared.find(parent.0, name) {
            Ok(Some(found)) => answer_entry(reply, Ok(found)),
            Err(errno) => reply.error(errno),
            Ok(None) => {
                let name = name.to_owned();
                self.beside(async move |shared| {
                    answer_entry(reply, shared.find_anyhow(parent.0, &name).await);
                });
            }
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.shared.state().names.forget(ino.0, nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        answer_attr(reply, self.shared.attr_of(ino.0));
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let owner = self.shared.owner;
        if uid.is_some_and(|uid| uid != owner.0) || gid.is_some_and(|gid| gid != owner.1) {
            return reply.error(Errno::EPERM);
        }
        let node = ino.0;
        let is_object = self.shared.state().names.object(node).is_some();
        if !is_object {
            // Bits and times of directories are not kept; those who set them need not be told.
            return answer_attr(reply, self.shared.attr_of(node));
        }
        self.beside(async move |shared| {
            let change = async {
                if let Some(mode) = mode {
                    shared
                        .insist(node, |shared| shared.set_mode(&mut shared.state(), node, FileMode::of(mode)))
                        .await?;
                }
                if let Some(size) = size {
                    let handle = fh.map(|fh| fh.0);
                    shared
                        .insist(node, |shared| shared.set_size(&mut shared.state(), (node, handle), size))
                        .await?;
                }
                // Only when it was read: that is not kept.
                if mtime.is_some() {
                    let times = rustix::fs::Timestamps {
                        last_access: wanted_time(atime),
                        last_modification: wanted_time(mtime),
                    };
                    shared.insist(node, |shared| shared.set_times(&mut shared.state(), node, &times)).await?;
                }
                shared.attr_of(node)
            };
            answer_attr(reply, change.await);
        });
    }

    fn mknod(
        &self,
        _req: &Request,
        _parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        // Regular files come by `create`.
        reply.error(refusal(name));
    }

    fn mkdir(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        match text(name) {
            Ok(name) => {
                let name = name.to_owned();
                self.beside(async move |shared| {
                    answer_entry(reply, shared.make_collection(parent.0, &name).await)
                });
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = match text(name) {
            Ok(name) => name,
            Err(errno) => return reply.error(errno),
        };
        if let Some(outcome) = self.shared.unlink_now(parent.0, name) {
            return answer_empty(reply, outcome);
        }
        let name = name.to_owned();
        self.beside(async move |shared| answer_empty(reply, shared.unlink(parent.0, &name).await));
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match text(name) {
            Ok(name) => {
                let name = name.to_owned();
                self.beside(async move |shared| {
                    answer_empty(reply, shared.remove_collection(parent.0, &name).await)
                });
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn symlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.to_str().ok_or(Errno::EILSEQ);
        let target = target.and_then(|target| target.parse().map_err(|_| Errno::ENAMETOOLONG));
        match (text(name), target) {
            (Ok(name), Ok(target)) => {
                let name = name.to_owned();
                self.beside(async move |shared| {
                    answer_entry(reply, shared.make_link(parent.0, &name, target).await)
                });
            }
            (Err(errno), _) | (_, Err(errno)) => reply.error(errno),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match &self.shared.state().names.get(ino.0).map(|node| &node.what) {
            Some(What::Link(link)) => reply.data(link.target.as_str().as_bytes()),
            Some(_) => reply.error(Errno::EINVAL),
            None => reply.error(Errno::ESTALE),
        }
    }

    fn link(&self, _req: &Request, _ino: INodeNo, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        reply.error(refusal(name));
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (name, newname) = match (text(name), text(newname)) {
            (Ok(name), Ok(newname)) => (name.to_owned(), newname.to_owned()),
            (Err(errno), _) | (_, Err(errno)) => return reply.error(errno),
        };
        if flags.contains(RenameFlags::RENAME_EXCHANGE) || flags.contains(RenameFlags::RENAME_WHITEOUT) {
            return reply.error(Errno::EINVAL);
        }
        let replaces = !flags.contains(RenameFlags::RENAME_NOREPLACE);
        self.beside(async move |shared| {
            let outcome = shared.rename((parent.0, &name), (newparent.0, &newname), replaces).await;
            answer_empty(reply, outcome);
        });
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let node = ino.0;
        let is_read = flags.acc_mode() == OpenAccMode::O_RDONLY;
        let is_truncated = OFlags::from_bits_retain(flags.0 as u32).contains(OFlags::TRUNC);
        let attempt = move |shared: &Shared, reply: &ReplyOpen| {
            let register = |file: &std::fs::File| reply.open_backing(file);
            let mut state = shared.state();
            match is_read {
                true => shared.open_to_read(&mut state, node, &register),
                false => shared.open_to_write(&mut state, node, is_truncated, &register),
            }
        };
        let is_ready = is_read || {
            let state = self.shared.state();
            let parent = state.names.get(node).map(|node| node.parent);
            parent.and_then(|parent| state.names.collection(parent)).is_some_and(|parent| parent.is_listed)
        };
        if is_ready {
            match attempt(&self.shared, &reply) {
                Ok(opened) => return answer_open(reply, Ok(opened)),
                Err(Obstacle::No(errno)) => return reply.error(errno),
                Err(_) => {}
            }
        }
        self.beside(async move |shared| {
            let opened = shared.insist(node, |shared| attempt(shared, &reply)).await;
            answer_open(reply, opened);
        });
    }

    fn create(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let name = match text(name) {
            Ok(name) => name,
            Err(errno) => return reply.error(errno),
        };
        let parent = parent.0;
        let mode = FileMode::of(mode & !umask);
        let attempt = move |shared: &Shared, name: &str, reply: &ReplyCreate| {
            shared.create_now((parent, name), (mode, flags), &|file| reply.open_backing(file))
        };
        let is_ready = self.shared.state().names.collection(parent).is_some_and(|parent| parent.is_listed);
        if is_ready && !self.shared.changes.is_full() {
            match attempt(&self.shared, name, &reply) {
                Ok(made) => return answer_create(reply, Ok(made)),
                Err(Obstacle::No(errno)) => return reply.error(errno),
                Err(_) => {}
            }
        }
        let name = name.to_owned();
        self.beside(async move |shared| {
            let made = shared.insist_on_name((parent, &name), |shared| attempt(shared, &name, &reply)).await;
            answer_create(reply, made);
        });
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let handle = match self.shared.handle(fh) {
            Ok(handle) => handle,
            Err(errno) => return reply.error(errno),
        };
        match &handle.bytes {
            Bytes::Here(file) => {
                let mut bytes = vec![0; size as usize];
                match read_full(file, &mut bytes, offset) {
                    Ok(len) => reply.data(bytes.get(..len).unwrap_or_default()),
                    Err(error) => reply.error(from_io(&error)),
                }
            }
            Bytes::Elsewhere(remote) => {
                let remote = remote.clone();
                self.beside(async move |shared| {
                    match shared.remote.read(&remote, offset, size.into()).await {
                        Ok(bytes) => reply.data(&bytes),
                        Err(errno) => reply.error(errno),
                    }
                });
            }
        }
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.shared.handle(fh).and_then(|handle| {
            let file = handle.to_write().ok_or(Errno::EBADF)?;
            file.write_all_at(data, offset).map_err(|error| from_io(&error))
        });
        match written {
            Ok(()) => reply.written(data.len() as u32),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // The kernel asks no more, and no program that closes a file waits: what is written is published later, so nothing can be told
        // then. Whether anything can be is told who opens a file to write it, or syncs one.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.shared.close(&mut self.shared.state(), fh.0);
        reply.ok();
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let handle = match self.shared.handle(fh) {
            Ok(handle) => handle,
            Err(errno) => return reply.error(errno),
        };
        if handle.is_writer && self.shared.session.is_lost() {
            // What is staged is removed by the site, or was.
            return reply.error(Errno::EIO);
        }
        let shared = self.shared.clone();
        let sync = move || -> std::io::Result<()> {
            if let Bytes::Here(file) = &handle.bytes {
                if datasync {
                    file.sync_data()?
                } else {
                    file.sync_all()?
                }
                // Where it belongs is kept as safely as what it is.
                shared.log.sync()?;
            }
            Ok(())
        };
        let answer = move || answer_empty(reply, sync().map_err(|error| from_io(&error)));
        // To hand it over costs as much as all the rest where there is no disk to wait for.
        if let Ok(_waits) = self.waits_for_disk.try_lock() {
            return answer();
        }
        self.shared.runtime.spawn_blocking(answer);
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.beside(async move |shared| match shared.directory(ino.0).await {
            Ok((listed, keep)) => {
                let mut state = shared.state();
                let handle = FileHandle(state.handles.add_directory(ino.0, listed));
                // The kernel is only told of what changes as long as the journal is followed.
                let is_believed = shared.ttl(&state, ino.0) > Duration::from_secs(60);
                let flags = match keep {
                    Keep::Kept if is_believed => FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
                    Keep::Anew if is_believed => FopenFlags::FOPEN_CACHE_DIR,
                    _ => FopenFlags::empty(),
                };
                reply.opened(handle, flags);
            }
            Err(errno) => reply.error(errno),
        });
    }

    fn readdir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let Some(listed) = self.shared.state().handles.directory(fh.0) else {
            return reply.error(Errno::EBADF);
        };
        for (at, entry) in listed.iter().enumerate().skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            if reply.add(INodeNo(entry.node), at as u64 + 1, entry.kind, &*entry.name) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let mut state = self.shared.state();
        let Some(listed) = state.handles.directory(fh.0) else { return reply.error(Errno::EBADF) };
        for (at, entry) in listed.iter().enumerate().skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            // What was removed since is not told of.
            let Some(attr) = self.shared.attr(&mut state, entry.node) else { continue };
            let ttl = self.shared.ttl(&state, entry.node);
            if reply.add(INodeNo(entry.node), at as u64 + 1, &*entry.name, &ttl, &attr, Generation(0)) {
                break;
            }
            if at >= 2 {
                state.names.looked_up(entry.node);
            }
        }
        drop(state);
        reply.ok();
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        let mut state = self.shared.state();
        let closed = state.handles.remove_directory(fh.0);
        if let Some(collection) = closed.and_then(|node| state.names.collection_mut(node)) {
            collection.closed();
        }
        reply.ok();
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.beside(async move |shared| answer_empty(reply, shared.sync_directory(ino.0).await));
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        const BLOCK: u64 = 4096;
        self.beside(async move |shared| match shared.room(ino.0).await {
            Ok((all, free)) => {
                let files = shared.state().names.len() as u64;
                reply.statfs(
                    all / BLOCK,
                    free / BLOCK,
                    free / BLOCK,
                    files,
                    u64::from(u32::MAX),
                    BLOCK as u32,
                    MAX_NAME_BYTES as u32,
                    BLOCK as u32,
                );
            }
            Err(errno) => reply.error(errno),
        });
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = match xattr::Name::parse(name.to_str().unwrap_or_default()) {
            Ok(name) => name,
            Err(errno) => return reply.error(errno),
        };
        self.beside(async move |shared| match xattr::value(&shared, ino.0, name).await {
            Ok(value) if size == 0 => reply.size(value.len() as u32),
            Ok(value) if value.len() <= size as usize => reply.data(value.as_bytes()),
            Ok(_) => reply.error(Errno::ERANGE),
            Err(errno) => reply.error(errno),
        });
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = xattr::names(&self.shared, ino.0);
        match size {
            0 => reply.size(names.len() as u32),
            size if names.len() <= size as usize => reply.data(names.as_bytes()),
            _ => reply.error(Errno::ERANGE),
        }
    }

    fn setxattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let flags = XattrFlags::from_bits_retain(flags as u32);
        self.set_xattr(ino, name, Some(value.to_vec()), flags, reply);
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.set_xattr(ino, name, None, XattrFlags::empty(), reply);
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let outcome = self.shared.handle(fh).and_then(|handle| {
            let file = handle.to_write().ok_or(Errno::EBADF)?;
            let flags = rustix::fs::FallocateFlags::from_bits_retain(mode as u32);
            rustix::fs::fallocate(file, flags, offset, length).map_err(from_rustix)
        });
        answer_empty(reply, outcome);
    }
}

fn read_full(file: &std::fs::File, bytes: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut len = 0;
    while let Some(rest) = bytes.get_mut(len..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + len as u64) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}
