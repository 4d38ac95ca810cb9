//! Resumable uploads, and the answers to frames.

use percale_core::digest::Digest;
use percale_core::ids::{LeaseId, SpaceId, VersionId};
use percale_core::range::RangeSet;
use percale_core::tree::{GroupHash, RootHash};
use percale_core::{ByteRange, FileMode, ObjectPath, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Problem;

/// What must hold for a write to go ahead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// Nothing is there yet.
    #[default]
    New,
    /// This version is current.
    #[schema(value_type = u64)]
    Match(VersionId),
    /// Whatever is there is replaced.
    Any,
}

/// Opens a resumable upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewUpload {
    /// Its id, a UUID of version 7 that was never used; the server makes one up if absent. Who chooses it may send frames
    /// and the commit beside this request, with `Prefer: wait=SECONDS`, and may send this request again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub id: Option<LeaseId>,
    /// Where the object will be.
    #[schema(value_type = String)]
    pub path: ObjectPath,
    /// Bytes.
    pub size: u64,
    /// What must hold when it is opened and again when it is committed.
    #[serde(default)]
    pub condition: Condition,
    /// Whether missing collections above it are made.
    #[serde(default)]
    pub parents: bool,
    /// When its owner last modified it.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = "date-time")]
    pub mtime: Option<Timestamp>,
    /// Its permission bits; those of the object that is there if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "0644")]
    pub mode: Option<FileMode>,
}

/// A resumable upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Upload {
    /// Its id.
    #[schema(value_type = String, format = "uuid")]
    pub id: LeaseId,
    /// Where the object will be.
    #[schema(value_type = String)]
    pub path: ObjectPath,
    /// Bytes in all.
    pub size: u64,
    /// What has not arrived yet.
    #[schema(value_type = Vec<Range>)]
    pub missing: RangeSet,
    /// When it ends, unless more bytes arrive.
    #[schema(value_type = String, format = "date-time")]
    pub expires: Timestamp,
    /// Whether pieces may come in any order and over several streams. If not, they come in order over one.
    pub positioned: bool,
}

/// A range of bytes on the wire, `start..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Range {
    /// The first byte.
    pub start: u64,
    /// Behind the last byte.
    pub end: u64,
}

/// Groups that were sent before and are missing, since the server that had written them was killed before it had noted that.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SentGroups {
    /// At most [`SentGroups::MOST`].
    pub groups: Vec<SentGroup>,
}

impl SentGroups {
    /// The most that one request may name: 1 GiB is read back for it.
    pub const MOST: usize = 1024;
}

/// A group of 1 MiB of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SentGroup {
    /// Its number, from 0.
    pub group: u64,
    /// Its hash, as in the frame that brought it.
    #[schema(value_type = String)]
    pub hash: GroupHash,
}

/// Completes an upload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommitUpload {
    /// The root that the sender computed; compared with what arrived.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub root: Option<RootHash>,
    /// Further digests that must hold, `algorithm:hex`.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub digests: Vec<Digest>,
}

/// A version that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Committed {
    /// Its path.
    #[schema(value_type = String)]
    pub path: ObjectPath,
    /// The version.
    #[schema(value_type = u64)]
    pub version: VersionId,
    /// Bytes.
    pub size: u64,
    /// The root of its hash tree.
    #[schema(value_type = String)]
    pub root: RootHash,
    /// Where the change stands in the journal.
    pub position: String,
    /// Whether the object is new.
    pub created: bool,
}

/// What an ITEM frame of a push says of its object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PushItem {
    /// Where the object will be.
    #[schema(value_type = String)]
    pub path: ObjectPath,
    /// What must hold.
    #[serde(default)]
    pub condition: Condition,
    /// Whether missing collections above it are made.
    #[serde(default)]
    pub parents: bool,
    /// When its owner last modified it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "date-time")]
    pub mtime: Option<Timestamp>,
    /// Its permission bits; those of the object that is there if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "0644")]
    pub mode: Option<FileMode>,
}

/// What a DONE frame says: the root of all that was sent of the item.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ItemDone {
    /// The root; absent where only parts were sent, or nobody hashed the whole yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub root: Option<RootHash>,
}

/// What an ITEM frame of a pull says of its object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PulledItem {
    /// Its path.
    #[schema(value_type = String)]
    pub path: ObjectPath,
    /// The version that is sent.
    #[schema(value_type = u64)]
    pub version: VersionId,
    /// The root of its tree; absent while nobody hashed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub root: Option<RootHash>,
    /// When its owner last modified it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "date-time")]
    pub mtime: Option<Timestamp>,
}

/// What became of one item of a push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PushResult {
    /// It was committed.
    Committed(Committed),
    /// It was not.
    Failed(Problem),
}

/// The answer to a push of whole objects, one result for each item in their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PushResults {
    /// The results.
    pub items: Vec<PushResult>,
}

/// Asks for bytes as frames.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Pull {
    /// What is wanted; at most 4 MiB of JSON and 65 536 items.
    pub items: Vec<PullItem>,
}

/// One wanted object, or parts of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PullItem {
    /// Its path.
    #[schema(value_type = String)]
    pub path: ObjectPath,
    /// The version; the current one if absent. Another than the current one is refused once its bytes are gone.
    #[serde(default)]
    #[schema(value_type = Option<u64>)]
    pub version: Option<VersionId>,
    /// The space, for a version that is meant wherever its object is by now; then the path is only shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub space: Option<SpaceId>,
    /// The wanted ranges, widened to whole groups of 1 MiB; all if absent.
    #[serde(default)]
    #[schema(value_type = Option<Vec<Range>>)]
    pub ranges: Option<Vec<ByteRange>>,
}
