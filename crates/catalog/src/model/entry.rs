//! Collections, objects and what is read of them.

use percale_core::digest::Digest;
use percale_core::ids::{EntryId, SpaceId, VersionId};
use percale_core::tree::RootHash;
use percale_core::{ByteCount, FileMode, LinkTarget, ObjectPath, Position, Timestamp};

use super::{NamePattern, Replica, words};

words!(
    /// What an entry is.
    EntryKind {
        /// A directory of the namespace.
        Collection = "collection",
        /// A file of the namespace.
        Object = "object",
        /// A symbolic link.
        Link = "link",
    }
);

/// A collection, object or link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its space.
    pub space: SpaceId,
    /// Its id, which stays when it is renamed.
    pub id: EntryId,
    /// The collection that holds it; 0 for the root of a space.
    pub parent: EntryId,
    /// Its name in that collection; empty for the root of a space.
    pub name: String,
    /// What it is.
    pub kind: EntryKind,
    /// When it was made.
    pub created: Timestamp,
    /// When an object was last published; when a collection or link was made.
    pub modified: Timestamp,
    /// The current version of an object.
    pub content: Option<Content>,
    /// Where a link leads.
    pub target: Option<LinkTarget>,
}

/// The current version of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The version.
    pub version: VersionId,
    /// Its size.
    pub size: ByteCount,
    /// The root of its hash tree, once it was hashed.
    pub root: Option<RootHash>,
    /// The modification time that its owner gave it.
    pub mtime: Option<Timestamp>,
    /// The permission bits that its owner gave it.
    pub mode: Option<FileMode>,
    /// Further digests that were asked for when it was written.
    pub digests: Vec<Digest>,
}

/// What its owner says of an object, besides its bytes; nothing stays what it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileAttributes {
    /// When it was modified.
    pub mtime: Option<Timestamp>,
    /// Its permission bits.
    pub mode: Option<FileMode>,
}

/// Most entries in a page of a listing.
pub const MAX_LIST: usize = 10_000;

/// How to list a collection.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ListOptions {
    /// Where to go on: [`Page::next`](crate::Page) of the page before. Default: at the beginning.
    pub after: Option<String>,
    /// Most entries in the page. Default 1000, at most [`MAX_LIST`].
    pub limit: usize,
    /// Also list what is below the collections in it, each right before its contents. Default no.
    pub recursive: bool,
    /// Also return the replicas of the objects. Default no.
    pub replicas: bool,
}

impl Default for ListOptions {
    fn default() -> Self {
        Self { after: None, limit: 1000, recursive: false, replicas: false }
    }
}

/// What to find below a collection.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FindOptions {
    /// What names match.
    pub name: NamePattern,
    /// Where to go on: [`Page::next`](crate::Page) of the page before. Default: at the beginning.
    pub after: Option<String>,
    /// Most entries in the page. Default 1000, at most [`MAX_LIST`].
    pub limit: usize,
}

impl FindOptions {
    /// Finds what matches, from the beginning.
    pub fn new(name: NamePattern) -> Self {
        Self { name, after: None, limit: 1000 }
    }
}

/// One line of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its path.
    pub path: ObjectPath,
    /// What it is.
    pub entry: Entry,
    /// The replicas of its current version, if they were asked for.
    pub replicas: Vec<Replica>,
}

/// What is needed to read a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenVersion {
    /// Where the object is.
    pub path: ObjectPath,
    /// Its space.
    pub space: SpaceId,
    /// The object.
    pub entry: EntryId,
    /// The version.
    pub version: VersionId,
    /// Whether it is the current one.
    pub is_current: bool,
    /// Its size.
    pub size: ByteCount,
    /// The root of its hash tree, once it was hashed.
    pub root: Option<RootHash>,
    /// Further digests; none for a version that is not current.
    pub digests: Vec<Digest>,
    /// The modification time that its owner gave it; none for a version that is not current.
    pub mtime: Option<Timestamp>,
    /// The permission bits that its owner gave it; none for a version that is not current.
    pub mode: Option<FileMode>,
    /// When it was published.
    pub modified: Timestamp,
    /// Its copies, whatever their state.
    pub replicas: Vec<Replica>,
    /// The end of the space's journal when this was read.
    pub position: Position,
}

/// How to rename.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct RenameOptions {
    /// Replace an object or link, or an empty collection by a collection, that is at the new path. Default no.
    pub overwrite: bool,
    /// Only this entry. A rename that is repeated because its answer was lost then finds the entry at the new path and is
    /// no error. Default: whatever is at the old path.
    pub entry: Option<EntryId>,
}

impl RenameOptions {
    /// Sets [`RenameOptions::entry`].
    pub fn entry(mut self, entry: Option<EntryId>) -> Self {
        self.entry = entry;
        self
    }

    /// Sets [`RenameOptions::overwrite`].
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }
}

/// How to remove.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct RemoveOptions {
    /// Also what is inside a collection, if it is no more than [`MAX_REMOVE`] entries. Default no.
    pub recursive: bool,
    /// Only if this version is current. Default: whatever is there.
    pub if_version: Option<VersionId>,
    /// Only this entry. A removal that is repeated because its answer was lost then leaves alone what took its place.
    /// Default: whatever is there.
    pub entry: Option<EntryId>,
}

impl RemoveOptions {
    /// Sets [`RemoveOptions::recursive`].
    pub fn recursive(mut self, recursive: bool) -> Self {
        self.recursive = recursive;
        self
    }

    /// Sets [`RemoveOptions::entry`].
    pub fn entry(mut self, entry: Option<EntryId>) -> Self {
        self.entry = entry;
        self
    }

    /// Sets [`RemoveOptions::if_version`].
    pub fn if_version(mut self, version: Option<VersionId>) -> Self {
        self.if_version = version;
        self
    }
}

/// Most entries that one transaction removes. More are removed by a task, step by step.
pub const MAX_REMOVE: usize = 10_000;

/// What a removal did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// The entries that are gone.
    pub entries: u64,
    /// Whether all of it is gone, the path itself too.
    pub is_done: bool,
    /// The journal behind the removal.
    pub position: Position,
}

/// What a change of the namespace gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// The entry after the change.
    pub entry: Entry,
    /// Whether anything was changed at all.
    pub is_changed: bool,
    /// The journal behind the change.
    pub position: Position,
}
