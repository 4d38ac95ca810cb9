//! Files that programs have open: how they are opened, written to a staged file, and handed over when the last writer closes them.
//!
//! What a program writes goes to a staged file, in the store that will have it where this host sees one; a copy on a native store is
//! written itself. The catalog's version stays what it is until the last handle that may write is closed and no mapping of a staged file
//! can be written any more: then it becomes a version. On this host every program sees what was written at once.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use fuser::{BackingId, Errno, FileType};
use percale_api::entries::{Attributes, Content};
use percale_api::mounts::MountChange;
use percale_core::{FileMode, Timestamp};

use crate::changes::Change;
use crate::error::{from_io, from_rustix};
use crate::names::{NodeId, What};
use crate::object::{LocalCopy, Object, Open};
use crate::remote::RemoteFile;
use crate::session::on_disk;
use crate::state::{Shared, State};

/// What programs have open, by the number that the kernel gives back.
#[derive(Debug, Default)]
pub struct Handles {
    files: HashMap<u64, Arc<Handle>>,
    directories: HashMap<u64, (NodeId, Arc<[Listed]>)>,
    last: u64,
}

/// A file that is open.
#[derive(Debug)]
pub struct Handle {
    /// The node.
    pub node: NodeId,
    /// Where its bytes are.
    pub bytes: Bytes,
    /// Whether it may be written.
    pub is_writer: bool,
    /// Whether it was, through this process: on kernels before 6.13 the times of a file do not tell what follows within a tick.
    pub was_written: AtomicBool,
}

impl Handle {
    fn new(node: NodeId, bytes: Bytes, is_writer: bool) -> Self {
        Self { node, bytes, is_writer, was_written: AtomicBool::new(false) }
    }

    /// Returns the file of this host, if it may be written, and notes that it is.
    pub fn to_write(&self) -> Option<&File> {
        match &self.bytes {
            Bytes::Here(file) if self.is_writer => {
                self.was_written.store(true, Ordering::Relaxed);
                Some(file)
            }
            _ => None,
        }
    }
}

/// Where the bytes of an open file are.
#[derive(Debug)]
pub enum Bytes {
    /// In a file of this host.
    Here(File),
    /// On another host.
    Elsewhere(Arc<RemoteFile>),
}

/// An entry of a directory, as it was when the directory was opened.
#[derive(Debug, Clone)]
pub struct Listed {
    /// Its name.
    pub name: Box<str>,
    /// The node.
    pub node: NodeId,
    /// What it is.
    pub kind: FileType,
}

/// A file that was opened.
#[derive(Debug)]
pub struct Opened {
    /// Its number.
    pub handle: u64,
    /// What the kernel reads and writes itself; nothing if it asks this process.
    pub passthrough: Option<Arc<BackingId>>,
}

/// What stands in the way of opening a file at once.
#[derive(Debug)]
pub enum Obstacle {
    /// It cannot be.
    No(Errno),
    /// What was written before is just being published; the number of that change.
    Publishing(u64),
    /// Its bytes have to be brought before they can be changed: from another host, or, if there are many, from another file.
    NeedsCopy,
}

impl From<Errno> for Obstacle {
    fn from(errno: Errno) -> Self {
        Self::No(errno)
    }
}

impl Handles {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Adds an open file.
    pub fn add(&mut self, handle: Handle) -> u64 {
        let number = self.next();
        self.files.insert(number, Arc::new(handle));
        number
    }

    /// Returns an open file.
    pub fn get(&self, number: u64) -> Option<Arc<Handle>> {
        self.files.get(&number).cloned()
    }

    /// Removes an open file.
    pub fn remove(&mut self, number: u64) -> Option<Arc<Handle>> {
        self.files.remove(&number)
    }

    /// Returns the numbers of all open files.
    pub fn numbers(&self) -> Vec<u64> {
        self.files.keys().copied().collect()
    }

    /// Tells whether an open file of a node is read over the network.
    pub fn is_remote(&self, node: NodeId) -> bool {
        self.files.values().any(|handle| handle.node == node && matches!(handle.bytes, Bytes::Elsewhere(_)))
    }

    /// Adds an open directory.
    pub fn add_directory(&mut self, node: NodeId, listed: Arc<[Listed]>) -> u64 {
        let number = self.next();
        self.directories.insert(number, (node, listed));
        number
    }

    /// Returns an open directory.
    pub fn directory(&self, number: u64) -> Option<Arc<[Listed]>> {
        self.directories.get(&number).map(|(_, listed)| listed.clone())
    }

    /// Removes an open directory, and returns its node.
    pub fn remove_directory(&mut self, number: u64) -> Option<NodeId> {
        self.directories.remove(&number).map(|(node, _)| node)
    }
}

/// Registers a file with the kernel.
pub type Register<'a> = &'a dyn Fn(&File) -> std::io::Result<BackingId>;

impl Shared {
    /// Makes a file and opens it. It must be known what has the name, and that is nothing.
    ///
    /// # Errors
    /// What programs are told.
    pub fn create(
        &self,
        state: &mut State,
        (parent, name): (NodeId, &str),
        (mode, is_exclusive): (FileMode, bool),
        register: Register<'_>,
    ) -> Result<(NodeId, Opened), Errno> {
        let space = self.may_change(state, parent)?;
        self.may_grow(state, space)?;
        let path = self.path_in(state, parent, name)?;
        let (file, mut work) = self.stage(mode)?;
        work.is_exclusive = is_exclusive;
        work.is_dirty = true;
        work.writers = 1;
        self.note(&work.place, &path);
        let object = Object { work: Some(work.into()), mode: Some(mode), ..Object::default() };
        let node = state.names.add_new(parent, name, space, What::Object(Box::new(object)));
        self.touch(state, parent);
        let opened = self.hand_out(state, node, (file, true), register);
        Ok((node, opened))
    }

    /// Gives out a handle on a file of this host, read and written by the kernel where that is possible.
    fn hand_out(
        &self,
        state: &mut State,
        node: NodeId,
        (file, is_writer): (File, bool),
        register: Register<'_>,
    ) -> Opened {
        let mut passthrough = None;
        if let Some(object) = state.names.object_mut(node) {
            object.open = match std::mem::take(&mut object.open) {
                Open::Daemon(count) => Open::Daemon(count + 1),
                Open::Passthrough(id, count) => {
                    passthrough = Some(id.clone());
                    Open::Passthrough(id, count + 1)
                }
                Open::No => {
                    // The kernel opens it anew for each handle. What it has registered must not count as one that writes.
                    let place = object.work.as_ref().map(|work| &work.place).filter(|_| is_writer);
                    let to_read = place.and_then(|place| self.session.open_to_read(place).ok());
                    match self.register(to_read.as_ref().unwrap_or(&file), register) {
                        Some(id) => {
                            passthrough = Some(id.clone());
                            Open::Passthrough(id, 1)
                        }
                        None => Open::Daemon(1),
                    }
                }
            };
        }
        let handle = state.handles.add(Handle::new(node, Bytes::Here(file), is_writer));
        Opened { handle, passthrough }
    }

    fn register(&self, file: &File, register: Register<'_>) -> Option<Arc<BackingId>> {
        if !self.passthrough.get().copied().unwrap_or_default() {
            return None;
        }
        match register(file) {
            Ok(id) => Some(Arc::new(id)),
            Err(error) => {
                tracing::debug!(%error, "the kernel does not take a file; it is read through this process");
                None
            }
        }
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// What stands in the way.
    pub fn open_to_read(
        &self,
        state: &mut State,
        node: NodeId,
        register: Register<'_>,
    ) -> Result<Opened, Obstacle> {
        let object = state.names.object(node).ok_or(Errno::EISDIR)?;
        if let Some(work) = &object.work {
            let file = self.open_work(work)?;
            return Ok(self.hand_out(state, node, (file, false), register));
        }
        let object = state.names.object(node).ok_or(Errno::EISDIR)?;
        if let Some(file) = self.open_here(object) {
            return Ok(self.hand_out(state, node, (file, false), register));
        }
        let content = object.content.clone().ok_or(Errno::ESTALE)?;
        let file = self.open_remote(state, node, content)?;
        let object = state.names.object_mut(node).ok_or(Errno::EISDIR)?;
        object.open = match std::mem::take(&mut object.open) {
            Open::No => Open::Daemon(1),
            Open::Daemon(count) => Open::Daemon(count + 1),
            // What the kernel reads is gone from the disk; whoever has it open goes on.
            Open::Passthrough(id, count) => {
                object.open = Open::Passthrough(id, count);
                return Err(Errno::ESTALE.into());
            }
        };
        let handle = Handle::new(node, Bytes::Elsewhere(file), false);
        Ok(Opened { handle: state.handles.add(handle), passthrough: None })
    }

    /// Opens a version of a file at another host.
    ///
    /// # Errors
    /// It has no path any more.
    pub fn open_remote(
        &self,
        state: &State,
        node: NodeId,
        content: Content,
    ) -> Result<Arc<RemoteFile>, Errno> {
        let path = self.path(state, node).ok_or(Errno::ENOENT)?;
        let space = state.names.get(node).and_then(|node| node.space).ok_or(Errno::ENOENT)?;
        let space = state.spaces.get(usize::from(space.0)).ok_or(Errno::ENOENT)?.id;
        Ok(self.remote.open(space, path, content))
    }

    /// Opens the copy of a version on this host, if it is still what the catalog knows; on a native store, as it is now.
    pub fn open_here(&self, object: &Object) -> Option<File> {
        let LocalCopy { store, key } = object.copy.as_ref()?;
        let file = self.session.open_copy(*store, key).ok()?;
        let meta = file.metadata().ok()?;
        let is_right = self.session.is_native(*store) || meta.size() == object.size();
        (meta.is_file() && is_right).then_some(file)
    }

    /// Opens a file for writing. It must be known that it still has its name.
    ///
    /// # Errors
    /// What stands in the way.
    pub fn open_to_write(
        &self,
        state: &mut State,
        node: NodeId,
        is_truncated: bool,
        register: Register<'_>,
    ) -> Result<Opened, Obstacle> {
        let file = self.to_work(state, node, is_truncated)?;
        if let Some(work) = state.names.object_mut(node).and_then(|object| object.work.as_mut()) {
            work.writers += 1;
        }
        Ok(self.hand_out(state, node, (file, true), register))
    }

    /// Notes that a program closed a file. What it wrote is published if it was the last that might.
    pub fn close(self: &Arc<Self>, state: &mut State, number: u64) {
        let Some(handle) = state.handles.remove(number) else { return };
        let (node, is_writer) = (handle.node, handle.is_writer);
        let mut is_writer_of_kernel = false;
        if let Some(object) = state.names.object_mut(node) {
            is_writer_of_kernel = is_writer && matches!(object.open, Open::Passthrough(..));
            object.closed();
            if is_writer && let Some(work) = &mut object.work {
                work.writers = work.writers.saturating_sub(1);
                work.is_dirty |= handle.was_written.load(Ordering::Relaxed);
            }
        }
        drop(handle);
        if is_writer_of_kernel {
            self.count_mapping(state, node);
        }
        self.end_work(state, node);
        state.names.drop_unused(node);
    }

    /// Closes what programs have open: after the mount is gone the kernel does not say any more that they closed it.
    pub fn close_all(self: &Arc<Self>) {
        let mut state = self.state();
        for number in state.handles.numbers() {
            self.close(&mut state, number);
        }
    }

    /// Sets when an object was modified, as a program wants it.
    ///
    /// # Errors
    /// What stands in the way.
    pub fn set_times(
        &self,
        state: &mut State,
        node: NodeId,
        times: &rustix::fs::Timestamps,
    ) -> Result<(), Obstacle> {
        let object = state.names.object(node).ok_or(Errno::EISDIR)?;
        let is_sent = object.publishing().is_some() && !self.recall(state, node);
        let object = state.names.object_mut(node).ok_or(Errno::EISDIR)?;
        if (object.work.is_none() || is_sent) && !self.is_native(object) {
            let mtime = instant(&times.last_modification);
            if let Some(publishing) = object.work.as_mut().and_then(|work| work.publishing.as_mut()) {
                publishing.staged.mtime = mtime;
            }
            return Ok(self.say(state, node, Attributes { mtime: Some(mtime), mode: None })?);
        }
        let file = self.to_work(state, node, false)?;
        rustix::fs::futimens(&file, times).map_err(from_rustix)?;
        if let Some(work) = state.names.object_mut(node).and_then(|object| object.work.as_mut()) {
            work.is_dirty = true;
        }
        self.end_work(state, node);
        Ok(())
    }

    /// Sets the permission bits of an object.
    ///
    /// # Errors
    /// What stands in the way.
    pub fn set_mode(&self, state: &mut State, node: NodeId, mode: FileMode) -> Result<(), Obstacle> {
        let parent = state.names.get(node).ok_or(Errno::ENOENT)?.parent;
        self.may_change(state, parent)?;
        // What waits is published with them, rather than told of twice.
        let is_recalled = self.recall(state, node);
        let is_set = self.set_bits(state, node, mode, is_recalled);
        if is_recalled && is_set.is_err() {
            self.end_work(state, node);
        }
        is_set
    }

    fn set_bits(
        &self,
        state: &mut State,
        node: NodeId,
        mode: FileMode,
        is_recalled: bool,
    ) -> Result<(), Obstacle> {
        let object = state.names.object(node).ok_or(Errno::EISDIR)?;
        let is_published = object.content.is_some() || object.is_publishing();
        let in_place = match &object.work {
            Some(work) => work.place.is_the_copy(),
            None => self.is_native(object),
        };
        let file = match &object.work {
            _ if in_place => Some(self.to_work(state, node, false)?),
            Some(work) => match self.session.open_written(&work.place) {
                // It has its place already, and its bits come after it.
                Err(rustix::io::Errno::NOENT) if is_published => None,
                file => Some(file.map_err(from_rustix)?),
            },
            None => None,
        };
        if let Some(file) = file {
            rustix::fs::fchmod(&file, on_disk(mode)).map_err(from_rustix)?;
        }
        let object = state.names.object_mut(node).ok_or(Errno::EISDIR)?;
        object.mode = Some(mode);
        object.changed = Some(SystemTime::now());
        if in_place || is_recalled {
            self.end_work(state, node);
        } else if is_published {
            self.say(state, node, Attributes { mtime: None, mode: Some(mode) })?;
        }
        Ok(())
    }

    /// Tells whether what is said of an object is said of a file of its owner, which this host sees.
    fn is_native(&self, object: &Object) -> bool {
        object.copy.as_ref().is_some_and(|copy| self.session.is_native(copy.store))
    }

    /// Has the catalog told what is said of an object.
    fn say(&self, state: &mut State, id: NodeId, attributes: Attributes) -> Result<(), Errno> {
        let node = state.names.get(id).ok_or(Errno::ENOENT)?;
        let (parent, name, is_linked) = (node.parent, node.name.clone(), node.is_linked);
        self.may_change(state, parent)?;
        if is_linked {
            let path = self.path(state, id).ok_or(Errno::ENOENT)?;
            let change = Change::Name(MountChange::SetAttributes { path, attributes });
            self.submit(state, change, vec![(parent, name)]);
        }
        let object = state.names.object_mut(id).ok_or(Errno::EISDIR)?;
        if let Some(content) = &mut object.content {
            content.mtime = attributes.mtime.unwrap_or(content.mtime);
        }
        object.changed = Some(SystemTime::now());
        Ok(())
    }

    /// Sets the size of an object.
    ///
    /// # Errors
    /// What stands in the way.
    pub fn set_size(
        &self,
        state: &mut State,
        (node, handle): (NodeId, Option<u64>),
        size: u64,
    ) -> Result<(), Obstacle> {
        if let Some(handle) = handle.and_then(|handle| state.handles.get(handle))
            && let Some(file) = handle.to_write()
        {
            file.set_len(size).map_err(|error| from_io(&error))?;
        } else {
            let file = self.to_work(state, node, size == 0)?;
            file.set_len(size).map_err(|error| from_io(&error))?;
        }
        if let Some(work) = state.names.object_mut(node).and_then(|object| object.work.as_mut()) {
            work.is_dirty = true;
        }
        self.end_work(state, node);
        Ok(())
    }
}

/// Returns the time that a program wants to be set.
fn instant(at: &rustix::fs::Timespec) -> Timestamp {
    match at.tv_nsec {
        rustix::fs::UTIME_NOW => Timestamp::now(),
        nanos => Timestamp::from_micros(at.tv_sec.saturating_mul(1_000_000).saturating_add(nanos / 1000)),
    }
}

/// Returns a time that a program wants.
pub fn timespec(at: Timestamp) -> rustix::fs::Timespec {
    let micros = at.as_micros();
    rustix::fs::Timespec {
        tv_sec: micros.div_euclid(1_000_000),
        tv_nsec: (micros.rem_euclid(1_000_000) * 1000) as _,
    }
}
