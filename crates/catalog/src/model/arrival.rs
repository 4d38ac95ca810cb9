//! What is on its way between the site that owns a store and the home of a space (docs/design/following.md).

use std::fmt;
use std::str::FromStr;

use percale_core::access::Caller;
use percale_core::digest::Digest;
use percale_core::ids::{Fence, LeaseId, SiteId, SpaceId, StoreId, VersionId};
use percale_core::state::ReplicaState;
use percale_core::tree::RootHash;
use percale_core::{ByteCount, FileMode, ObjectPath, Position, Timestamp};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Condition, ReplicaReport, words};

/// A copy that arrived on an own store and is told to the home of its space. The home knows it by this id, so that it may
/// be told as often as needed. A UUIDv7: the home goes by the time in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ArrivalId(pub Uuid);

impl ArrivalId {
    /// Makes a new id.
    #[allow(clippy::new_without_default, reason = "an id has no default")]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// Returns when it was made, by the clock of its maker. Nothing for an id that is not a UUIDv7.
    pub fn made(&self) -> Option<Timestamp> {
        let (seconds, nanos) = self.0.get_timestamp().filter(|_| self.0.get_version_num() == 7)?.to_unix();
        let micros = i64::try_from(seconds).ok()?.checked_mul(1_000_000)?;
        Some(Timestamp::from_micros(micros.checked_add(i64::from(nanos / 1000))?))
    }
}

impl fmt::Display for ArrivalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for ArrivalId {
    type Err = uuid::Error;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::parse_str(text).map(Self)
    }
}

words!(
    /// How far an arrival is.
    ArrivalState {
        /// Its key is taken; the bytes may be there or not.
        Reserved = "reserved",
        /// The bytes are good and durable at its key.
        Written = "written",
    }
);

/// A new version that was written at a site which is not the home of its space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publication {
    /// Who publishes, as the site that reads it names users.
    pub caller: Caller,
    /// Where.
    pub path: ObjectPath,
    /// Make the collections above it that are missing.
    pub parents: bool,
    /// What must be there.
    pub condition: Condition,
    /// How many bytes there are.
    pub size: ByteCount,
    /// The root of their hash tree. Without one the replica is `unverified`.
    pub root: Option<RootHash>,
    /// The modification time to keep.
    #[serde(default)]
    pub mtime: Option<Timestamp>,
    /// The permission bits to keep; nothing leaves those of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FileMode>,
    /// Further digests.
    #[serde(default)]
    pub digests: Vec<Digest>,
}

/// What has arrived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ArrivalBody {
    /// A new version.
    Publication(Box<Publication>),
    /// A further copy of a version.
    Copy {
        /// How many bytes there are.
        size: ByteCount,
        /// The root of their hash tree.
        root: RootHash,
    },
}

/// A copy that is about to get its key on an own store.
#[derive(Debug, Clone)]
pub struct NewArrival {
    /// The lease under which it is done.
    pub lease: LeaseId,
    /// The fence of that lease.
    pub fence: Fence,
    /// The space.
    pub space: SpaceId,
    /// The store, one of this site.
    pub store: StoreId,
    /// Use this path as key, if that is free. Nothing for a store whose files have no identity.
    pub path: Option<ObjectPath>,
    /// The version, for a further copy.
    pub version: Option<VersionId>,
    /// The name of the staged file.
    pub token: String,
    /// What identifies the staged file (device and inode), for undoing.
    pub identity: Option<String>,
    /// What it is.
    pub body: ArrivalBody,
}

/// A copy on an own store of which its home may not know yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// Its id.
    pub id: ArrivalId,
    /// How far it is.
    pub state: ArrivalState,
    /// The lease it lies under.
    pub lease: LeaseId,
    /// The fence of that lease.
    pub fence: Fence,
    /// The space.
    pub space: SpaceId,
    /// The site that orders the space now and is to be told; nothing if that is this one.
    pub home: Option<SiteId>,
    /// The store.
    pub store: StoreId,
    /// The key that it has there.
    pub key: String,
    /// The name of the staged file.
    pub token: String,
    /// What identifies the staged file.
    pub identity: Option<String>,
    /// The version, once it is known.
    pub version: Option<VersionId>,
    /// What tells its content from the next, on a native store.
    pub generation: Option<String>,
    /// The position behind the home's record of it, once the home has answered. It is forgotten by
    /// [`Catalog::finish_arrived`](crate::Catalog::finish_arrived) if that home was replaced before others heard of the copy.
    pub told: Option<Position>,
    /// What it is.
    pub body: ArrivalBody,
}

/// An arrival whose bytes are good and durable.
#[derive(Debug, Clone)]
pub struct Settled {
    /// The arrival.
    pub id: ArrivalId,
    /// Where the bytes are, if not at the key that was reserved.
    pub key: Option<String>,
    /// What tells its content from the next, on a native store.
    pub generation: Option<String>,
}

/// What the home answered about an arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToldArrival {
    /// The arrival.
    pub id: ArrivalId,
    /// The version that it is a copy of.
    pub version: VersionId,
    /// The position behind the home's record of it.
    pub position: Position,
}

/// How an arrival ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrivalEnd {
    /// The home's record of the copy was applied here.
    Done,
    /// The home does not want it: its bytes become garbage.
    Garbage,
    /// Its bytes never came to its key, or were removed from there.
    Removed,
}

/// A publication as the home of its space gets it from the site where it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotePublication {
    /// The arrival at that site.
    pub id: ArrivalId,
    /// What is published. The caller is named as at this site.
    pub publication: Publication,
    /// The store, one of that site.
    pub store: StoreId,
    /// Where the bytes are on the store.
    pub key: String,
    /// What tells this content of a native file from the next.
    pub generation: Option<String>,
}

/// A further copy of a version, for the home of its space. Every byte of it was hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCopy {
    /// The arrival at the site that owns the store.
    pub id: ArrivalId,
    /// The space.
    pub space: SpaceId,
    /// The version.
    pub version: VersionId,
    /// The store.
    pub store: StoreId,
    /// Where the bytes are on the store.
    pub key: String,
    /// What tells its content from the next, on a native store.
    pub generation: Option<String>,
    /// The root of its hash tree.
    pub root: RootHash,
}

/// What became of a new copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum CopyAnswer {
    /// It has a name, now or since before.
    Added {
        /// The journal behind it.
        position: Position,
    },
    /// The store has a copy of the version under another key: this one is not needed.
    Known {
        /// The key of that copy.
        key: String,
    },
    /// The version is gone: the copy is not needed any more.
    Gone,
}

/// What became of a copy that was to be taken away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum EvictAnswer {
    /// It is no copy any more. Its bytes are garbage, at another site once that has applied the record.
    Removed {
        /// The journal behind it.
        position: Position,
    },
    /// It was none.
    Gone,
}

/// What the home answers to a report about a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum ReportAnswer {
    /// The copy is as it was reported.
    Noted {
        /// The journal behind the report.
        position: Position,
    },
    /// The report does not follow from what the home knows, which stands.
    Refused {
        /// The state that the home knows.
        state: ReplicaState,
        /// The generation that the home knows.
        generation: Option<String>,
        /// The journal when it was refused.
        position: Position,
    },
    /// The version or the copy is gone.
    Gone,
}

/// A report that its home has not answered yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    /// Its number. A number is never used again.
    pub number: u64,
    /// The home of the space.
    pub home: SiteId,
    /// The report.
    pub report: ReplicaReport,
}

/// A report that its home has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxDone {
    /// Its number.
    pub number: u64,
    /// The answer.
    pub answer: ReportAnswer,
}
