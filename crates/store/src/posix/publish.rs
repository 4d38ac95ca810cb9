//! Changes of names: publishing, deleting, renaming, collections. Each is flushed before it is acknowledged.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use percale_core::tree::GROUP_SIZE;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Statx};
use rustix::io::Errno;

use super::Inner;
use super::config::{Layout, Ownership};
use super::root::{meta, path_error, statx_at, statx_fd};
use super::stage::{StageArea, remove_markers};
use crate::error::refuse_stage;
use crate::failpoint::failpoint;
use crate::{
    Delete, Error, ErrorKind, FileIdentity, Generation, Meta, Operation, Publish, PublishMode, Published,
    Result, StoreKey,
};

/// Up to this many files or directories are flushed one by one, more by one flush of the file system. A flush of one
/// file costs a journal commit of some milliseconds on ext4, whatever its size.
const FLUSH_EACH_UP_TO: usize = 8;

/// Directories kept open within one batch.
const OPEN_DIRS: usize = 256;

/// For how long publishing begins again because somebody removes the empty directories on its way. Who does that in a loop
/// wins some hundred times in a row on a busy machine.
const RACE_FOR: Duration = Duration::from_secs(5);

/// The directories that one batch works in, and those that must be flushed at its end.
struct Dirs<'a> {
    inner: &'a Inner,
    open: HashMap<Option<String>, Arc<OwnedFd>>,
    /// By inode, so that each is flushed once however it was reached.
    changed: HashMap<u64, Arc<OwnedFd>>,
}

impl<'a> Dirs<'a> {
    fn new(inner: &'a Inner) -> Self {
        Self { inner, open: HashMap::new(), changed: HashMap::new() }
    }

    fn open(&mut self, path: Option<&str>) -> rustix::io::Result<Arc<OwnedFd>> {
        let path = path.map(str::to_owned);
        if let Some(dir) = self.open.get(&path) {
            return Ok(dir.clone());
        }
        let dir = Arc::new(self.inner.root.open_dir(path.as_deref())?);
        self.keep(path, dir.clone());
        Ok(dir)
    }

    /// Resolves every path again when it is wanted next.
    fn forget_all(&mut self) {
        self.open.clear();
    }

    fn keep(&mut self, path: Option<String>, dir: Arc<OwnedFd>) {
        if self.open.len() >= OPEN_DIRS {
            self.open.clear();
        }
        self.open.insert(path, dir);
    }

    /// Opens a directory, and makes it and those above it if they are not there. Tells whether it was made.
    fn make(&mut self, path: Option<&str>) -> rustix::io::Result<(Arc<OwnedFd>, bool)> {
        let Some(text) = path else { return self.open(None).map(|dir| (dir, false)) };
        match self.open(path) {
            Err(Errno::NOENT) => {}
            other => return other.map(|dir| (dir, false)),
        }
        let (above, name) = match text.rsplit_once('/') {
            Some((above, name)) => (Some(above), name),
            None => (None, text),
        };
        let (parent, _) = self.make(above)?;
        let made = match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o777)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(errno),
        };
        self.note_change(&parent)?;
        // Resolved again from the root, since what is there may be a link that somebody else made.
        let dir = self.open(path)?;
        if let (true, Ownership::Service { group, dir_mode, .. }) = (made, self.inner.config.ownership) {
            if let Some(group) = group {
                rustix::fs::fchown(&dir, None, Some(Gid::from_raw(group)))?;
            }
            if let Some(mode) = dir_mode {
                rustix::fs::fchmod(&dir, Mode::from_raw_mode(mode))?;
            }
        }
        Ok((dir, made))
    }

    fn note_change(&mut self, dir: &Arc<OwnedFd>) -> rustix::io::Result<()> {
        let inode = rustix::fs::fstat(dir)?.st_ino;
        self.changed.entry(inode).or_insert_with(|| dir.clone());
        Ok(())
    }

    /// Flushes every directory that was changed.
    fn flush(self) -> rustix::io::Result<()> {
        self.inner.flush(self.changed.into_values().map(Ok))
    }
}

/// Flushes of the whole file system, of which one runs at a time.
#[derive(Debug, Default)]
pub(super) struct Syncs {
    begun: AtomicU64,
    ended: Mutex<Ended>,
}

#[derive(Debug, Default)]
struct Ended {
    /// The number of the last one that is done.
    last: u64,
    /// Whether one failed, ever.
    has_failed: bool,
}

impl Syncs {
    /// Returns the number of the first flush that is sure to take in all that was written before.
    fn next(&self) -> u64 {
        // Those that were begun before may have missed what this caller wrote.
        self.begun.load(Ordering::SeqCst) + 1
    }

    /// Waits until the flush of this number or a later one is done: one of another caller, or its own. Tells whether it can be
    /// trusted that all was flushed.
    fn wait_for(&self, wanted: u64, sync: impl FnOnce() -> rustix::io::Result<()>) -> bool {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.last < wanted {
            let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
            ended.has_failed |= sync().is_err();
            ended.last = number;
        }
        !ended.has_failed
    }
}

impl Inner {
    /// Flushes files or directories: each, or the whole file system where there are many.
    ///
    /// Flushes that wait for another take part in the next one together.
    ///
    /// A failed write-back is reported by `syncfs` once to the open root, so only one caller at a time may ask. After the
    /// first failure each file is asked as well: the kernel keeps the failure with the file until then.
    fn flush<F>(&self, files: impl ExactSizeIterator<Item = rustix::io::Result<F>>) -> rustix::io::Result<()>
    where
        F: std::os::fd::AsFd,
    {
        if files.len() > FLUSH_EACH_UP_TO
            && self.syncs.wait_for(self.syncs.next(), || rustix::fs::syncfs(self.root.dir()))
        {
            return Ok(());
        }
        for file in files {
            match file {
                Ok(file) => rustix::fs::fsync(file)?,
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    pub(super) fn publish(&self, area: &StageArea, files: Vec<Publish>) -> Vec<Result<Published>> {
        let wrong = |errno, file: &Publish| path_error(Operation::Publish, errno).on(&file.key);
        let staged = files.iter().map(|file| {
            let dir = area.find_fence(file.token.fence())?.ok_or(Errno::NOENT)?;
            rustix::fs::openat(
                dir,
                file.token.name(),
                OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            )
        });
        if let Err(errno) = self.flush(staged) {
            return files.iter().map(|file| Err(wrong(errno, file))).collect();
        }
        failpoint("publish.after_flush");
        let mut dirs = Dirs::new(self);
        let mut results: Vec<Result<Published>> =
            files.iter().map(|file| self.publish_one(area, &mut dirs, file)).collect();
        failpoint("publish.after_rename");
        if let Err(errno) = dirs.flush() {
            for (result, file) in results.iter_mut().zip(&files) {
                if result.is_ok() {
                    *result = Err(wrong(errno, file));
                }
            }
        }
        failpoint("publish.after_dir_flush");
        results
    }

    fn publish_one(&self, area: &StageArea, dirs: &mut Dirs<'_>, file: &Publish) -> Result<Published> {
        let Publish { token, key, mode, identity } = file;
        refuse_stage(Operation::Publish, key)?;
        if *mode == PublishMode::Replace && self.config.layout == Layout::Managed {
            return Err(Error::unsupported(
                Operation::Publish,
                "files of a managed store are never replaced",
            )
            .on(key));
        }
        let wrong = |errno| path_error(Operation::Publish, errno).on(key);
        let (parent, name) = key.split();
        let from = area.find_fence(token.fence()).map_err(wrong)?;
        let is_staged = match &from {
            Some(from) => match statx_at(from, token.name()) {
                Ok(_) => true,
                Err(Errno::NOENT) => false,
                Err(errno) => return Err(wrong(errno)),
            },
            None => false,
        };
        let Some(from) = from.filter(|_| is_staged) else {
            return self.published_before(key, identity.as_ref());
        };
        let began = Instant::now();
        let to = loop {
            let errno = match dirs.make(parent) {
                Ok((to, _)) => match rename_no_replace(&from, token.name(), &to, name, *mode) {
                    Ok(()) => break to,
                    Err(Errno::XDEV) => {
                        let detail = "the key lies on another file system";
                        return Err(Error::unsupported(Operation::Publish, detail).on(key));
                    }
                    Err(errno) => errno,
                },
                Err(errno) => errno,
            };
            match errno {
                // The staged file is gone, or somebody removed the empty directory between these calls.
                Errno::NOENT if statx_at(&from, token.name()).is_err() => {
                    return self.published_before(key, identity.as_ref());
                }
                Errno::NOENT if began.elapsed() < RACE_FOR => {
                    dirs.forget_all();
                    std::thread::yield_now();
                }
                Errno::NOENT => {
                    let detail = "somebody removes the collections above it again and again";
                    return Err(Error::new(ErrorKind::Unavailable, Operation::Publish)
                        .on(key)
                        .detail(detail));
                }
                errno => return Err(wrong(errno)),
            }
        };
        dirs.note_change(&to).map_err(wrong)?;
        let stat = statx_at(&to, name).map_err(wrong)?;
        // What is left of a marker goes with its fence. Within one group nobody begins again, and looking for markers of small files took 7 % of
        // the processor's time of those who publish them (10 000 files of 10 kB, `perf`).
        if stat.stx_size >= GROUP_SIZE {
            let _ = remove_markers(&from, token.name());
        }
        Ok(Published { key: key.clone(), meta: meta(&stat) })
    }

    /// The answer where nothing is staged: fine if the key has the file that was.
    fn published_before(&self, key: &StoreKey, identity: Option<&FileIdentity>) -> Result<Published> {
        let there: Option<Meta> = self.root.stat(key).ok().filter(Meta::is_file);
        match there {
            Some(meta) if identity.is_some() && meta.identity.as_ref() == identity => {
                Ok(Published { key: key.clone(), meta })
            }
            _ => Err(Error::new(ErrorKind::NotFound, Operation::Publish).on(key).detail("nothing is staged")),
        }
    }

    pub(super) fn delete(&self, items: Vec<Delete>) -> Vec<Result<bool>> {
        let mut dirs = Dirs::new(self);
        let mut results: Vec<Result<bool>> =
            items.iter().map(|item| self.delete_one(&mut dirs, item)).collect();
        if let Err(errno) = dirs.flush() {
            for (result, item) in results.iter_mut().zip(&items) {
                if matches!(result, Ok(true)) {
                    *result = Err(path_error(Operation::Delete, errno).on(&item.key));
                }
            }
        }
        results
    }

    fn delete_one(&self, dirs: &mut Dirs<'_>, item: &Delete) -> Result<bool> {
        refuse_stage(Operation::Delete, &item.key)?;
        let wrong = |errno| path_error(Operation::Delete, errno).on(&item.key);
        let (parent, name) = item.key.split();
        let dir = match dirs.open(parent) {
            Ok(dir) => dir,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
            Err(errno) => return Err(wrong(errno)),
        };
        let stat: Statx = match statx_at(&dir, name) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(wrong(errno)),
        };
        if item.if_collection {
            item.check(&meta(&stat))?;
        }
        self.check_meant(item, &stat)?;
        let file_type = FileType::from_raw_mode(stat.stx_mode.into());
        let has_other_names = file_type == FileType::RegularFile && stat.stx_nlink > 1;
        let other_names = item.if_generation.as_ref().filter(|_| has_other_names).and_then(|known| {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            Some((known, rustix::fs::openat(&dir, name, flags, Mode::empty()).ok()?))
        });
        let is_dir = file_type == FileType::Directory;
        // Looked at by the kernel once more: a file that has just taken a collection's place stays.
        let flags = if is_dir || item.if_collection { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match rustix::fs::unlinkat(&dir, name, flags) {
            Ok(()) => {
                if let Some((known, file)) = other_names {
                    self.note_other_names(known, &stat, &file);
                }
                dirs.note_change(&dir).map(|()| true).map_err(wrong)
            }
            Err(Errno::NOENT) => Ok(false),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                Err(Error::new(ErrorKind::NotEmpty, Operation::Delete).on(&item.key))
            }
            Err(errno) => Err(wrong(errno)),
        }
    }

    /// Refuses to delete what is not meant.
    fn check_meant(&self, item: &Delete, stat: &Statx) -> Result<()> {
        let generation = item.if_generation.clone().map(|known| self.other_names.now(known));
        let item = item.clone().if_generation(generation);
        if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::Symlink {
            return item.check(&meta(stat));
        }
        // A link is known by the file that it leads to; with none there is nothing that could be lost but a name.
        match self.root.stat(&item.key) {
            Ok(file) if file.is_file() => item.check(&file),
            Ok(_) => item.if_generation(None).check(&meta(stat)),
            Err(_) => item.check(&meta(stat)),
        }
    }

    /// Remembers what the deletion of a name has made of the generation of a file, by which its other names are known.
    fn note_other_names(&self, known: &Generation, before: &Statx, file: &OwnedFd) {
        let Ok(now) = statx_fd(file) else { return };
        let content = |stat: &Statx| (stat.stx_ino, meta(stat).size, meta(stat).modified);
        if content(&now) == content(before)
            && let Some(generation) = meta(&now).generation
        {
            self.other_names.note(known.clone(), generation);
        }
    }

    pub(super) fn mkdir(&self, key: &StoreKey) -> Result<bool> {
        let mut dirs = Dirs::new(self);
        let made = dirs.make(Some(key.as_str())).and_then(|(_, made)| dirs.flush().map(|()| made));
        made.map_err(|errno| path_error(Operation::Mkdir, errno).on(key))
    }

    pub(super) fn rename(&self, from: &StoreKey, to: &StoreKey) -> Result<()> {
        if to.is_within(from) && to != from {
            return Err(Error::new(ErrorKind::InvalidInput, Operation::Rename)
                .on(to)
                .detail("lies below the old key"));
        }
        let wrong = |errno| path_error(Operation::Rename, errno).on(from);
        let mut dirs = Dirs::new(self);
        let ((old_parent, old_name), (new_parent, new_name)) = (from.split(), to.split());
        let old = dirs.open(old_parent).map_err(wrong)?;
        statx_at(&old, old_name).map_err(wrong)?;
        let (new, _) = dirs.make(new_parent).map_err(|errno| path_error(Operation::Rename, errno).on(to))?;
        match rustix::fs::renameat_with(&old, old_name, &new, new_name, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(Error::new(ErrorKind::AlreadyExists, Operation::Rename).on(to)),
            Err(Errno::INVAL | Errno::NOSYS) => {
                return Err(Error::unsupported(
                    Operation::Rename,
                    "the file system cannot rename without replacing",
                ));
            }
            Err(Errno::XDEV) => {
                return Err(
                    Error::unsupported(Operation::Rename, "the keys lie on different file systems").on(to)
                );
            }
            Err(errno) => return Err(wrong(errno)),
        }
        for dir in [&old, &new] {
            dirs.note_change(dir).map_err(wrong)?;
        }
        dirs.flush().map_err(wrong)
    }
}

fn rename_no_replace(
    from: &OwnedFd,
    old: &str,
    to: &OwnedFd,
    new: &str,
    mode: PublishMode,
) -> rustix::io::Result<()> {
    if mode == PublishMode::Replace {
        return rustix::fs::renameat(from, old, to, new);
    }
    match rustix::fs::renameat_with(from, old, to, new, RenameFlags::NOREPLACE) {
        // File systems without that flag, such as NFS: a link is never made over something, and is as atomic.
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(from, old, to, new, AtFlags::empty())?;
            rustix::fs::unlinkat(from, old, AtFlags::empty())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_while_a_flush_runs_shares_the_next_one() {
        let syncs = Syncs::default();
        let mut count = 0;
        let mut came = Vec::new();
        assert!(syncs.wait_for(syncs.next(), || {
            came.extend((0..8).map(|_| syncs.next()));
            Ok(())
        }));
        for wanted in came {
            assert!(syncs.wait_for(wanted, || {
                count += 1;
                Ok(())
            }));
        }
        assert_eq!(count, 1, "the running one does not do, and one does for all");
        assert!(syncs.wait_for(syncs.next(), || {
            count += 1;
            Ok(())
        }));
        assert_eq!(count, 2, "who comes after it needs another");
    }

    #[test]
    fn after_a_failure_none_is_trusted() {
        let syncs = Syncs::default();
        assert!(!syncs.wait_for(syncs.next(), || Err(Errno::IO)));
        assert!(!syncs.wait_for(syncs.next(), || Ok(())));
    }
}
