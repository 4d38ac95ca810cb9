//! What all parts of a mount share, and what is asked of it most: attributes, paths and listings.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, INodeNo, Notifier};
use percale_api::entries::{Attributes, Content, Entry, Kind};
use percale_core::access::Permission;
use percale_core::ids::{EntryId, SpaceId};
use percale_core::path::{MAX_NAME_BYTES, SpaceName};
use percale_core::{FileMode, ObjectPath, Timestamp};
use rustix::fs::Statx;
use tokio::runtime::Handle as Runtime;

use crate::changes::Changes;
use crate::files::Handles;
use crate::left::Lefts;
use crate::log::Log;
use crate::names::{Collection, Link, Names, NodeId, SpaceNumber, TOP, What};
use crate::object::{LocalCopy, Object};
use crate::owned::Owned;
use crate::quota::Quota;
use crate::remote::Remote;
use crate::session::{Place, Session};

/// For how long the kernel believes what it was told, since it is told when it is not so any more.
const BELIEF: Duration = Duration::from_secs(3600);
/// The same while the journal of a space cannot be followed.
const BLIND_BELIEF: Duration = Duration::from_secs(1);

/// A space that is mounted.
#[derive(Debug)]
pub struct Space {
    /// Its name.
    pub name: SpaceName,
    /// Its id.
    pub id: SpaceId,
    /// The path of the collection that is mounted.
    pub top: ObjectPath,
    /// Whether its journal is followed. Else nothing that is known of it is believed for long.
    pub is_followed: bool,
    /// What is known of its quota.
    pub quota: Quota,
}

/// What changes, behind one lock.
#[derive(Debug)]
pub struct State {
    /// The nodes.
    pub names: Names,
    /// What programs have open.
    pub handles: Handles,
    /// The spaces, by their numbers.
    pub spaces: Vec<Space>,
    /// The names that are changed here.
    pub owned: Owned,
    /// Files of an earlier process that are not published, nor on their way.
    pub left: Lefts,
    /// Files that programs may still write by mappings that outlive the handles, and where they lie.
    pub mapped: Vec<(NodeId, Place)>,
}

/// A mount.
#[derive(Debug)]
pub struct Shared {
    /// Its session.
    pub session: Arc<Session>,
    state: Mutex<State>,
    /// What waits to be published.
    pub changes: Changes,
    /// What is read from other hosts.
    pub remote: Arc<Remote>,
    /// What is staged, for the next process of the same session.
    pub log: Log,
    /// Runs what takes time.
    pub runtime: Runtime,
    /// What the kernel is to be told.
    news: mpsc::Sender<News>,
    /// Held while a collection is listed.
    pub loads: Mutex<HashMap<NodeId, Arc<tokio::sync::Mutex<()>>>>,
    /// Who owns everything, as programs see it.
    pub owner: (u32, u32),
    /// Whether the kernel may read and write copies itself.
    pub passthrough: OnceLock<bool>,
    /// Whether nothing may be changed.
    pub is_read_only: bool,
    began: SystemTime,
}

impl Shared {
    /// Puts the parts together.
    pub fn new(
        session: Arc<Session>,
        state: State,
        changes: Changes,
        (remote, log): (Arc<Remote>, Log),
        (runtime, news): (Runtime, mpsc::Sender<News>),
        (owner, is_read_only): ((u32, u32), bool),
    ) -> Self {
        Self {
            session,
            state: Mutex::new(state),
            changes,
            remote,
            log,
            runtime,
            news,
            loads: Mutex::default(),
            owner,
            passthrough: OnceLock::new(),
            is_read_only,
            began: SystemTime::now(),
        }
    }

    /// Takes the lock. It is never held while anything is waited for.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns for how long the kernel may believe what it is told of a node.
    pub fn ttl(&self, state: &State, id: NodeId) -> Duration {
        let space = state.names.get(id).and_then(|node| node.space);
        let is_followed = |space: SpaceNumber| {
            state.spaces.get(usize::from(space.0)).is_some_and(|space| space.is_followed)
        };
        let is_restless = state.names.collection(id).is_some_and(|collection| collection.is_restless);
        match space {
            Some(space) if is_followed(space) && !is_restless && self.is_in_listed(state, id) => BELIEF,
            _ => BLIND_BELIEF,
        }
    }

    fn is_in_listed(&self, state: &State, id: NodeId) -> bool {
        let parent = state.names.get(id).and_then(|node| state.names.collection(node.parent));
        parent.is_some_and(|parent| parent.is_listed)
    }

    /// Returns what programs see of a node.
    pub fn attr(&self, state: &mut State, id: NodeId) -> Option<FileAttr> {
        let node = state.names.get(id)?;
        let is_linked = node.is_linked;
        let mut attr = FileAttr {
            ino: INodeNo(id),
            size: 0,
            blocks: 0,
            atime: self.began,
            mtime: self.began,
            ctime: self.began,
            crtime: self.began,
            kind: FileType::Directory,
            perm: 0o755,
            // How many directories are in it is not counted; programs take this for that, as on Btrfs.
            nlink: 1,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: 1 << 20,
            flags: 0,
        };
        match &node.what {
            What::Collection(collection) => {
                let is_closed =
                    collection.permission.is_some_and(|permission| permission < Permission::Write);
                if is_closed || self.is_read_only {
                    attr.perm = 0o555;
                }
                if let Some(modified) = collection.modified {
                    (attr.mtime, attr.ctime, attr.atime) = (time(modified), time(modified), time(modified));
                }
            }
            What::Link(Link { target, modified }) => {
                (attr.kind, attr.perm, attr.size) = (FileType::Symlink, 0o777, target.as_str().len() as u64);
                (attr.mtime, attr.ctime, attr.atime) = (time(*modified), time(*modified), time(*modified));
            }
            What::Object(_) => {
                let object = state.names.object_mut(id)?;
                attr.kind = FileType::RegularFile;
                attr.nlink = u32::from(is_linked);
                attr.size = object.size();
                attr.mtime = time(object.mtime());
                let staged =
                    object.work.as_ref().and_then(|work| self.session.stat_written(&work.place).ok());
                if let Some(stat) = staged {
                    attr.size = stat.stx_size;
                    // Of what is on its way to the site, the time that was set since is told after it, and not set on the file.
                    let sent =
                        object.publishing().filter(|publishing| !publishing.staged.place.is_the_copy());
                    attr.mtime = time(sent.map_or_else(|| modified(&stat), |sent| sent.staged.mtime));
                    object.mode.get_or_insert(FileMode::of(stat.stx_mode.into()));
                } else if let Some(publishing) = object.publishing() {
                    (attr.size, attr.mtime) = (publishing.staged.size, time(publishing.staged.mtime));
                } else if object.mode.is_none()
                    && let Some(copy) = &object.copy
                {
                    // Published before these were kept.
                    let stat = self.session.stat_copy(copy.store, &copy.key).ok();
                    object.mode = stat.map(|stat| FileMode::of(stat.stx_mode.into()));
                }
                attr.perm = object.mode.unwrap_or(FileMode::DEFAULT).bits();
                if self.is_read_only {
                    attr.perm &= !0o222;
                }
                attr.atime = attr.mtime;
                attr.ctime = object.changed.map_or(attr.mtime, |changed| changed.max(attr.mtime));
            }
        }
        attr.blocks = attr.size.div_ceil(512);
        Some(attr)
    }

    /// Returns where a node is in the fabric.
    pub fn path(&self, state: &State, id: NodeId) -> Option<ObjectPath> {
        let components = state.names.components(id)?;
        let space = state.names.get(id)?.space;
        match space {
            None => Some(ObjectPath::root()),
            Some(space) => {
                let space = state.spaces.get(usize::from(space.0))?;
                // In a mount of several, the first name is the space's.
                let below = match state.names.get(TOP)?.space {
                    Some(_) => &components[..],
                    None => components.get(1..)?,
                };
                crate::names::join(&space.top, below).ok()
            }
        }
    }

    /// Returns where something new in a collection would be.
    pub fn path_in(&self, state: &State, parent: NodeId, name: &str) -> Result<ObjectPath, Errno> {
        let path = self.path(state, parent).ok_or(Errno::ENOENT)?;
        path.join(name)
            .map_err(|_| if name.len() > MAX_NAME_BYTES { Errno::ENAMETOOLONG } else { Errno::EINVAL })
    }

    /// Fails if nothing may be changed in a collection, of which a page at least must have been listed.
    pub fn may_change(&self, state: &State, parent: NodeId) -> Result<SpaceNumber, Errno> {
        if self.is_read_only {
            return Err(Errno::EROFS);
        }
        // What is written could never be published.
        if self.session.is_lost() {
            return Err(Errno::EIO);
        }
        let node = state.names.get(parent).ok_or(Errno::ENOENT)?;
        let What::Collection(collection) = &node.what else { return Err(Errno::ENOTDIR) };
        if !node.is_linked {
            return Err(Errno::ENOENT);
        }
        if collection.permission.is_some_and(|permission| permission < Permission::Write) {
            return Err(Errno::EACCES);
        }
        // Spaces are made by other means.
        node.space.ok_or(Errno::EPERM)
    }

    /// Notes an entry of the catalog under its name. Something else that had the name loses it, unless it waits to be published.
    pub fn put(&self, state: &mut State, (parent, space): (NodeId, SpaceNumber), name: &str, entry: &Entry) {
        if let Some(other) = state.names.child(parent, name) {
            let node = state.names.get(other);
            let is_same = node.is_some_and(|node| node.entry == Some(entry.id));
            if !is_same && state.names.waits(other) {
                return self.come_back(state, other, (entry.id, entry.kind == Kind::Collection));
            }
            if !is_same {
                state.names.unlink(other);
            }
        }
        let known = state.names.of_entry(space, entry.id);
        if let Some(known) = known {
            if state.names.get(known).is_some_and(|node| node.parent != parent || *node.name != *name) {
                self.move_node(state, known, (parent, name));
            }
            if let Some(content) = &entry.content {
                self.overwritten(state, known, content.clone(), self.copy_of(entry));
                self.said(state, known, Attributes { mtime: Some(content.mtime), mode: content.mode });
            }
            return;
        }
        let what = match (&entry.kind, &entry.content) {
            (Kind::Collection, _) => What::Collection(Collection::new(Some(entry.modified)).into()),
            (Kind::Link, _) => {
                let Some(target) = entry.target.clone() else { return };
                What::Link(Link { target, modified: entry.modified })
            }
            (Kind::Object, content) => {
                let (content, copy) = (content.clone(), self.copy_of(entry));
                let mode = content.as_ref().and_then(|content| content.mode);
                What::Object(Box::new(Object { content, copy, mode, ..Object::default() }))
            }
        };
        state.names.add(parent, name, (space, entry.id), what);
    }

    /// Takes over that an entry has the name of a node that waits to be published. A collection takes the place of one that was removed,
    /// and what programs wrote below that is published in it; else it will be decided who was first.
    pub fn come_back(&self, state: &mut State, id: NodeId, (entry, is_collection): (EntryId, bool)) {
        let Some(node) = state.names.get(id) else { return };
        let is_known = node.space.is_some_and(|space| state.names.of_entry(space, entry).is_some());
        if !is_collection || node.entry.is_some() || is_known || state.names.collection(id).is_none() {
            return;
        }
        state.names.published(id, entry);
        // What else is in it is not known, and the kernel forgets with the name also what it was told not to be there.
        state.names.doubt(id);
        if let Some(node) = state.names.get(id) {
            self.forget_name(node.parent, node.name.clone());
        }
        for work in state.names.works_within(id) {
            self.end_work(state, work);
        }
    }

    /// Takes over which version of an object is the current one, as the catalog tells.
    pub fn overwritten(&self, state: &mut State, id: NodeId, content: Content, copy: Option<LocalCopy>) {
        let Some(node) = state.names.get(id) else { return };
        let (parent, name) = (node.parent, node.name.clone());
        let Some(object) = state.names.object_mut(id) else { return };
        if !crate::names::is_older(object.content.as_ref(), content.version) {
            // What this mount published itself, or knows already; but where it lies is told here.
            let is_known = object.content.as_ref().is_some_and(|known| known.version == content.version);
            if is_known && copy.is_some() {
                object.copy = copy;
            }
            return;
        }
        if object.work.is_some() {
            // Programs are writing it: what they write comes after this version.
            object.content = Some(content);
            object.copy = copy;
            return state.names.changed_version(id);
        }
        if object.is_open() {
            // Whoever has it open goes on with what it was.
            let other = Object::of_content(content, copy);
            state.names.replace(id, What::Object(Box::new(other)));
        } else {
            *object = Object { changed: object.changed, ..Object::of_content(content, copy) };
            state.names.changed_version(id);
            self.forget_content(id);
        }
        self.forget_name(parent, name);
    }

    /// Takes over what its owner says of an object, as the catalog tells.
    pub fn said(&self, state: &mut State, id: NodeId, attributes: Attributes) {
        let Some(object) = state.names.object_mut(id) else { return };
        let Some(content) = &mut object.content else { return };
        let before = (content.mtime, object.mode);
        content.mtime = attributes.mtime.unwrap_or(content.mtime);
        content.mode = attributes.mode.or(content.mode);
        object.mode = attributes.mode.or(object.mode);
        if before != (content.mtime, object.mode) {
            object.changed = Some(SystemTime::now());
            self.forget_content(id);
        }
    }

    /// Returns a copy that this host sees.
    fn copy_of(&self, entry: &Entry) -> Option<LocalCopy> {
        let replicas = entry.replicas.as_ref()?;
        replicas.iter().find_map(|replica| {
            let store = self.session.number(replica.store_id)?;
            self.session.is_usable(store, replica.state).then_some(())?;
            Some(LocalCopy { store, key: replica.key.as_deref()?.into() })
        })
    }

    /// Notes that a collection changes, for a listing that is being read.
    pub fn touch(&self, state: &mut State, parent: NodeId) {
        if let Some(collection) = state.names.collection_mut(parent) {
            collection.is_touched = true;
            collection.modified = Some(Timestamp::now());
        }
    }

    /// Adds the spaces to the top of a mount of several.
    pub fn add_space(&self, state: &mut State, number: SpaceNumber) {
        let Some(space) = state.spaces.get(usize::from(number.0)) else { return };
        let name = space.name.to_string();
        let what = What::Collection(Box::default());
        state.names.add(TOP, &name, (number, EntryId::ROOT), what);
    }

    /// Tells the kernel that a name means something else now.
    pub fn forget_name(&self, parent: NodeId, name: Box<str>) {
        self.tell(News::Name(parent, name));
    }

    /// Tells the kernel that a node has other attributes and content.
    pub fn forget_content(&self, id: NodeId) {
        self.tell(News::Content(id));
    }

    fn tell(&self, news: News) {
        // Nobody hears it once the mount ends.
        let _ = self.news.send(news);
    }
}

/// What the kernel is to be told.
#[derive(Debug)]
pub enum News {
    /// A name means something else.
    Name(NodeId, Box<str>),
    /// A node has other attributes and content.
    Content(NodeId),
}

/// Tells the kernel what it should not believe any more, until the mount ends. On a thread of its own: the kernel may not hear before it
/// has an answer of ours.
pub fn tell_kernel(notifier: &Notifier, news: &mpsc::Receiver<News>) {
    for one in news {
        // It need not know what it is told of.
        let _ = match one {
            News::Name(parent, name) => {
                let _ = notifier.inval_entry(INodeNo(parent), name.as_ref().as_ref());
                // And the listing that it keeps, if the name is new.
                notifier.inval_inode(INodeNo(parent), 0, 0)
            }
            News::Content(id) => notifier.inval_inode(INodeNo(id), 0, 0),
        };
    }
}

/// Returns a time as the kernel wants it.
pub fn time(at: Timestamp) -> SystemTime {
    let micros = at.as_micros();
    match u64::try_from(micros) {
        Ok(micros) => UNIX_EPOCH + Duration::from_micros(micros),
        Err(_) => UNIX_EPOCH - Duration::from_micros(micros.unsigned_abs()),
    }
}

/// Returns when a file was modified, in the microseconds that the catalog keeps, so that it is the same before and after it was
/// published.
pub fn modified(stat: &Statx) -> Timestamp {
    let at = stat.stx_mtime;
    Timestamp::from_micros(at.tv_sec * 1_000_000 + i64::from(at.tv_nsec) / 1000)
}
