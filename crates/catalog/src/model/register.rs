//! Files of native stores that are registered in place.

use percale_core::access::Caller;
use percale_core::ids::{EntryId, SpaceId, StoreId, VersionId};
use percale_core::state::ReplicaState;
use percale_core::tree::RootHash;
use percale_core::{ByteCount, FileMode, ObjectPath, Position, Timestamp};
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// Files of one native store that are to be objects of one space.
#[derive(Debug, Clone)]
pub struct Register {
    /// Who registers.
    pub caller: Caller,
    /// The store where they lie.
    pub store: StoreId,
    /// The collection that all of them belong under. What is known by its key counts as registered wherever its object is
    /// below it, since objects may be renamed.
    pub within: ObjectPath,
    /// The collections of the store that the files are in, each once.
    pub folders: Vec<NativeFolder>,
}

/// A collection of a native store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeFolder {
    /// The collection of the namespace that its files go to; made if it is missing, even for no files.
    pub path: ObjectPath,
    /// Its key on the store; nothing means the top.
    pub key: Option<String>,
    /// Files in it, in the order of their names.
    pub files: Vec<NativeFile>,
}

impl NativeFolder {
    /// Returns the key of a file in it.
    pub fn key_of(&self, name: &str) -> String {
        match &self.key {
            Some(key) => format!("{key}/{name}"),
            None => name.to_owned(),
        }
    }
}

/// A file of a native store, as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeFile {
    /// Its name, in the store and in the namespace.
    pub name: String,
    /// Its size.
    pub size: ByteCount,
    /// What tells this content from the next.
    pub generation: String,
    /// When it was last modified.
    pub mtime: Option<Timestamp>,
    /// Its permission bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FileMode>,
    /// The root of its hash tree, if it was hashed. Without one its copy is `unverified`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<RootHash>,
}

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Registered {
    /// It is an object now.
    Created,
    /// Its object has a new version.
    Changed,
    /// It was registered before, with this content.
    Unchanged,
}

/// What became of files.
#[derive(Debug, Clone)]
pub struct RegisterAnswer {
    /// For each folder what became of its files, or why none could be registered.
    pub folders: Vec<Result<Vec<Result<Registered>>>>,
    /// The journal behind what was registered; nothing if no folder could be looked at.
    pub position: Option<Position>,
}

/// What is known of a file of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownFile {
    /// Its key.
    pub key: String,
    /// What tells its content from the next.
    pub generation: Option<String>,
    /// The state of the copy that it is.
    pub state: ReplicaState,
    /// The version that it is a copy of.
    pub version: VersionId,
    /// The space of the object.
    pub space: SpaceId,
    /// The collection that the object is in.
    pub parent: EntryId,
    /// The object's name there.
    pub name: String,
    /// Whether the version is current.
    pub is_current: bool,
}
