//! Copies of versions, and bytes that have lost their name.

use percale_core::Timestamp;
use percale_core::ids::{SpaceId, StoreId, VersionId};
use percale_core::state::ReplicaState;
use percale_core::tree::RootHash;

/// One copy of a version on one store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// The version.
    pub version: VersionId,
    /// The store.
    pub store: StoreId,
    /// Where it is on the store.
    pub key: String,
    /// Its state.
    pub state: ReplicaState,
    /// What tells one content of a native file from the next.
    pub generation: Option<String>,
    /// When its bytes were last looked at.
    pub checked: Option<Timestamp>,
}

/// Which copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CopyId {
    /// The space.
    pub space: SpaceId,
    /// The version.
    pub version: VersionId,
    /// The store.
    pub store: StoreId,
}

/// What a store's site says about a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaReport {
    /// The space.
    pub space: SpaceId,
    /// The version.
    pub version: VersionId,
    /// The store.
    pub store: StoreId,
    /// Where the copy lies that was looked at. A report about one whose place was taken by another is of no effect there;
    /// nothing means the one that is known.
    pub key: Option<String>,
    /// Its state now.
    pub state: ReplicaState,
    /// What tells its content from the next; nothing leaves the known one.
    pub generation: Option<String>,
    /// The root of its hash tree, if it was hashed. Becomes the version's if that has none yet.
    pub root: Option<RootHash>,
    /// Whether its bytes were looked at for this report.
    pub is_checked: bool,
}

/// A copy as `fsck` of a store and repair see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredReplica {
    /// The space.
    pub space: SpaceId,
    /// The copy.
    pub replica: Replica,
    /// The version's size.
    pub size: percale_core::ByteCount,
    /// The root of the version's hash tree, once it was hashed.
    pub root: Option<RootHash>,
    /// Whether the version is current.
    pub is_current: bool,
}

/// Bytes that have lost their last name and wait for the collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Garbage {
    /// The store.
    pub store: StoreId,
    /// Where they are on the store.
    pub key: String,
    /// The space of the version.
    pub space: SpaceId,
    /// The version that they were.
    pub version: VersionId,
    /// What told their content from the next when they lost their name: on a native store, a file of another generation is
    /// not what they were. Nothing if a mount was writing the file.
    pub generation: Option<String>,
    /// Since when.
    pub since: Timestamp,
}
