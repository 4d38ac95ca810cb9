//! What the kernel asks about names, attributes and files, as answers that may take time.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{Errno, FileAttr, FileHandle, FileType, INodeNo, TimeOrNow};
use percale_api::mounts::MountDone;
use percale_core::{FileMode, LinkTarget, Timestamp};
use rustix::fs::OFlags;

use crate::error::errno;
use crate::files::{Handle, Listed, Obstacle, Opened, timespec};
use crate::names::{Keep, Link, NodeId, TOP, What};
use crate::state::Shared;

/// A name that means nothing.
fn nothing(owner: (u32, u32)) -> FileAttr {
    let epoch = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: epoch,
        mtime: epoch,
        ctime: epoch,
        crtime: epoch,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: owner.0,
        gid: owner.1,
        rdev: 0,
        blksize: 512,
        flags: 0,
    }
}

impl Shared {
    /// Finds a name in a collection that was listed; nothing if it was not.
    pub fn find(&self, parent: NodeId, name: &str) -> Result<Option<(Duration, FileAttr)>, Errno> {
        let mut state = self.state();
        let collection = state.names.collection(parent).ok_or(Errno::ENOTDIR)?;
        let is_listed = collection.is_listed;
        let Some(child) = state.names.child(parent, name) else {
            // The kernel remembers that, too, until it is told of the name, or forgets the collection by its name. The top has none.
            let ttl = if parent == TOP { Duration::ZERO } else { self.ttl(&state, parent) };
            return Ok(is_listed.then(|| (ttl, nothing(self.owner))));
        };
        if !is_listed {
            return Ok(None);
        }
        state.names.looked_up(child);
        let attr = self.attr(&mut state, child).ok_or(Errno::ENOENT)?;
        Ok(Some((self.ttl(&state, child), attr)))
    }

    /// The same for one that was not: it is listed, or asked for the name alone if it is large.
    pub async fn find_anyhow(&self, parent: NodeId, name: &str) -> Result<(Duration, FileAttr), Errno> {
        let is_listed = self.list_for_a_name(parent).await?;
        if is_listed && let Some(found) = self.find(parent, name)? {
            return Ok(found);
        }
        let child = match is_listed {
            // It changes faster than it can be read; what is known is as good as any.
            true => self.state().names.child(parent, name),
            false => self.ask_for(parent, name).await?,
        };
        let mut state = self.state();
        let Some(child) = child else { return Ok((Duration::ZERO, nothing(self.owner))) };
        let attr = self.attr(&mut state, child).ok_or(Errno::ENOENT)?;
        state.names.looked_up(child);
        // What was asked for alone is asked for again: nothing would tell that the name means something else by now.
        let ttl = if is_listed { self.ttl(&state, child) } else { Duration::ZERO };
        Ok((ttl, attr))
    }

    pub fn attr_of(&self, node: NodeId) -> Result<(Duration, FileAttr), Errno> {
        let mut state = self.state();
        let attr = self.attr(&mut state, node).ok_or(Errno::ESTALE)?;
        Ok((self.ttl(&state, node), attr))
    }

    /// Makes and opens a file.
    pub fn create_now(
        &self,
        (parent, name): (NodeId, &str),
        (mode, flags): (FileMode, i32),
        register: crate::files::Register<'_>,
    ) -> Result<(Duration, FileAttr, Opened), Obstacle> {
        let has = |flag: OFlags| OFlags::from_bits_retain(flags as u32).contains(flag);
        let mut state = self.state();
        let (node, opened) = match state.names.child(parent, name) {
            Some(_) if has(OFlags::EXCL) => return Err(Errno::EEXIST.into()),
            Some(node) => {
                let opened = self.open_to_write(&mut state, node, has(OFlags::TRUNC), register)?;
                (node, opened)
            }
            None => self.create(&mut state, (parent, name), (mode, has(OFlags::EXCL)), register)?,
        };
        state.names.looked_up(node);
        let attr = self.attr(&mut state, node).ok_or(Errno::ENOENT)?;
        Ok((self.ttl(&state, node), attr, opened))
    }

    /// Waits until what stands in the way is not there any more.
    pub async fn clear(self: &Arc<Self>, node: NodeId, obstacle: Obstacle) -> Result<(), Errno> {
        match obstacle {
            Obstacle::No(errno) => Err(errno),
            Obstacle::Publishing(number) => {
                self.changes.until_done_or_away(Some(number)).await.map_err(errno)
            }
            Obstacle::NeedsCopy => self.bring(node).await,
        }
    }

    /// Does something to a file, and again once what stood in the way is not there any more.
    pub async fn insist<T>(
        self: &Arc<Self>,
        node: NodeId,
        mut attempt: impl FnMut(&Self) -> Result<T, Obstacle>,
    ) -> Result<T, Errno> {
        let place = {
            let state = self.state();
            let node = state.names.get(node).ok_or(Errno::ENOENT)?;
            node.is_linked.then(|| (node.parent, node.name.clone()))
        };
        if let Some((parent, name)) = place {
            self.know(parent, &name).await?;
        }
        loop {
            // Where it fails, what stood in the way is another thing each time, or told as an error.
            match attempt(self) {
                Ok(done) => return Ok(done),
                Err(obstacle) => self.clear(node, obstacle).await?,
            }
        }
    }

    /// Makes or opens what has a name, likewise.
    pub async fn insist_on_name<T>(
        self: &Arc<Self>,
        (parent, name): (NodeId, &str),
        mut attempt: impl FnMut(&Self) -> Result<T, Obstacle>,
    ) -> Result<T, Errno> {
        self.changes.room().await?;
        self.know(parent, name).await?;
        loop {
            match attempt(self) {
                Ok(done) => return Ok(done),
                Err(Obstacle::No(errno)) => return Err(errno),
                Err(obstacle) => {
                    let node = self.state().names.child(parent, name).ok_or(Errno::ESTALE)?;
                    self.clear(node, obstacle).await?;
                }
            }
        }
    }

    /// Opens a directory: what is in it now, and what the kernel may keep of that.
    pub async fn directory(&self, node: NodeId) -> Result<(Arc<[Listed]>, Keep), Errno> {
        self.list(node).await?;
        let mut state = self.state();
        let keep = state.names.collection_mut(node).ok_or(Errno::ENOTDIR)?.opened();
        let collection = state.names.collection(node).ok_or(Errno::ENOTDIR)?;
        let parent = state.names.get(node).map_or(node, |node| node.parent);
        let dots = [(".", node), ("..", parent)];
        let dots = dots.map(|(name, node)| Listed { name: name.into(), node, kind: FileType::Directory });
        let children = collection.children.iter().map(|(name, child)| {
            let kind = match state.names.get(*child).map(|node| &node.what) {
                Some(What::Collection(_)) => FileType::Directory,
                Some(What::Link(_)) => FileType::Symlink,
                _ => FileType::RegularFile,
            };
            Listed { name: name.clone(), node: *child, kind }
        });
        Ok((dots.into_iter().chain(children).collect(), keep))
    }

    pub fn handle(&self, number: FileHandle) -> Result<Arc<Handle>, Errno> {
        self.state().handles.get(number.0).ok_or(Errno::EBADF)
    }

    /// Makes a directory.
    pub async fn make_collection(&self, parent: NodeId, name: &str) -> Result<(Duration, FileAttr), Errno> {
        self.know(parent, name).await?;
        let done = self.ask_for_collection(parent, name)?.done(self).await?;
        self.made(parent, name, done, What::Collection(Box::default())).await
    }

    /// Makes a symbolic link.
    pub async fn make_link(
        &self,
        parent: NodeId,
        name: &str,
        target: LinkTarget,
    ) -> Result<(Duration, FileAttr), Errno> {
        self.know(parent, name).await?;
        let done = self.ask_for_link(parent, name, target.clone())?.done(self).await?;
        let link = Link { target, modified: Timestamp::now() };
        self.made(parent, name, done, What::Link(link)).await
    }

    /// Takes over something that was made under a name.
    async fn made(
        &self,
        parent: NodeId,
        name: &str,
        done: MountDone,
        what: What,
    ) -> Result<(Duration, FileAttr), Errno> {
        let entry = match done.entry {
            Some(entry) => entry,
            // Another site made it, and did not say.
            None => {
                let path = self.path_in(&self.state(), parent, name)?;
                self.session.client.stat(&path).await.map_err(|error| errno(error.code()))?.id
            }
        };
        let mut state = self.state();
        let space = state.names.get(parent).and_then(|node| node.space).ok_or(Errno::ENOENT)?;
        self.touch(&mut state, parent);
        let node = match state.names.of_entry(space, entry) {
            Some(node) => node,
            None => state.names.add(parent, name, (space, entry), what),
        };
        if let Some(collection) = state.names.collection_mut(node) {
            collection.modified.get_or_insert_with(Timestamp::now);
        }
        state.names.looked_up(node);
        let attr = self.attr(&mut state, node).ok_or(Errno::ENOENT)?;
        Ok((self.ttl(&state, node), attr))
    }
}

/// Returns a time that a program wants.
pub fn wanted_time(time: Option<TimeOrNow>) -> rustix::fs::Timespec {
    match time {
        None => rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        Some(TimeOrNow::Now) => rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        Some(TimeOrNow::SpecificTime(at)) => {
            let micros = match at.duration_since(SystemTime::UNIX_EPOCH) {
                Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
                // The part of a second counts forwards, also before 1970; fuser 0.18 takes it off (`system_time_from_time`).
                Err(before) => {
                    let (seconds, part) = (before.duration().as_secs(), before.duration().subsec_micros());
                    i64::from(part) - i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000_000)
                }
            };
            timespec(Timestamp::from_micros(micros))
        }
    }
}
