//! How an object gets a new version: prepare, then commit.

use std::fmt;

use percale_core::access::Caller;
use percale_core::digest::Digest;
use percale_core::ids::{EntryId, Fence, LeaseId, SpaceId, StoreId, VersionId};
use percale_core::state::ReplicaState;
use percale_core::tree::RootHash;
use percale_core::{ByteCount, FileMode, ObjectPath, Position, Timestamp};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{AnswerKey, FoundAttribute};

/// An intention to publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IntentId(pub Uuid);

impl IntentId {
    pub(crate) fn new() -> Self {
        Self(Uuid::now_v7())
    }
}

impl fmt::Display for IntentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What must be at the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    /// Nothing; else `AlreadyExists`.
    New,
    /// An object with this current version; else `PreconditionFailed`.
    Match(VersionId),
    /// An object, whatever its version; else `PreconditionFailed`.
    Existing,
    /// Nothing or an object.
    Any,
}

/// What is to be published.
#[derive(Debug, Clone)]
pub struct Prepare {
    /// Who publishes.
    pub caller: Caller,
    /// Where.
    pub path: ObjectPath,
    /// Make the collections above it that are missing.
    pub parents: bool,
    /// What must be there now.
    pub condition: Condition,
    /// The lease under which it is done.
    pub lease: LeaseId,
    /// The fence of that lease.
    pub fence: Fence,
    /// The store that gets the first copy.
    pub store: StoreId,
    /// Use the object's own path as key, if that is free.
    pub natural_key: bool,
    /// The name of the staged file.
    pub token: String,
    /// What identifies the staged file (device and inode), for undoing.
    pub identity: Option<String>,
    /// Its size, if known.
    pub size: Option<ByteCount>,
    /// The modification time to keep.
    pub mtime: Option<Timestamp>,
    /// The permission bits to keep; nothing leaves those of the object.
    pub mode: Option<FileMode>,
}

/// A prepared publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    /// Its id.
    pub id: IntentId,
    /// The space.
    pub space: SpaceId,
    /// The object: the one that is there, or the id that a new one will have.
    pub entry: EntryId,
    /// The version that this will be.
    pub version: VersionId,
    /// The store.
    pub store: StoreId,
    /// The key that is reserved on the store.
    pub key: String,
    /// The version that it replaces.
    pub base: Option<VersionId>,
}

/// An intention as it is stored, for undoing it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntentRow {
    /// What was prepared.
    pub intent: Intent,
    /// The lease it was prepared under.
    pub lease: LeaseId,
    /// The fence of the lease at that time.
    pub fence: Fence,
    /// The collection that the object is in.
    pub parent: EntryId,
    /// The object's name.
    pub name: String,
    /// The name of the staged file.
    pub token: String,
    /// What identifies the staged file.
    pub identity: Option<String>,
    /// The path at the time of preparation.
    pub path: Option<ObjectPath>,
}

/// What was written, so that it can become visible.
#[derive(Debug, Clone)]
pub struct Commit {
    /// The prepared publication.
    pub intent: IntentId,
    /// Where the bytes are, if not at the key that was reserved.
    pub key: Option<String>,
    /// How many there are.
    pub size: ByteCount,
    /// The root of their hash tree. Without one the replica is `unverified`.
    pub root: Option<RootHash>,
    /// Further digests.
    pub digests: Vec<Digest>,
    /// What tells this content of a native file from the next.
    pub generation: Option<String>,
    /// The modification time to keep; nothing leaves the one of the preparation.
    pub mtime: Option<Timestamp>,
    /// Records the answer under this idempotency key in the same transaction: status 201 or 200, the body is the
    /// [`Committed`] as JSON.
    pub answer: Option<AnswerKey>,
    /// What the bytes say of the object, if they were looked at: searchable with the version.
    pub found: Option<Vec<FoundAttribute>>,
}

impl Commit {
    /// Makes a commit with only what every one needs.
    pub fn new(intent: IntentId, size: ByteCount, root: Option<RootHash>) -> Self {
        Self {
            intent,
            key: None,
            size,
            root,
            digests: Vec::new(),
            generation: None,
            mtime: None,
            answer: None,
            found: None,
        }
    }
}

/// A publication that is visible and durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// Where the object is now.
    pub path: ObjectPath,
    /// The object.
    pub entry: EntryId,
    /// Its current version.
    pub version: VersionId,
    /// The journal behind the publication.
    pub position: Position,
    /// Whether there was no object before.
    pub created: bool,
}

/// A native file that was found with other content than the catalog knows.
#[derive(Debug, Clone)]
pub struct NativeChange {
    /// The space.
    pub space: SpaceId,
    /// The version that the file had.
    pub version: VersionId,
    /// The store.
    pub store: StoreId,
    /// Its size now.
    pub size: ByteCount,
    /// Its generation now.
    pub generation: String,
    /// Its modification time now.
    pub mtime: Option<Timestamp>,
    /// Its permission bits now.
    pub mode: Option<FileMode>,
    /// The state of the copy: `writing` while it is open for writing, else `unverified`.
    pub state: ReplicaState,
}
