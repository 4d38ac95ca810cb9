//! The JSON inside frames (`docs/design/frames.md`): what an item is, and what is said when all of it was sent.

use percale_core::digest::Digest;
use percale_core::ids::VersionId;
use percale_core::tree::RootHash;
use percale_core::{ObjectPath, Timestamp};
use serde::{Deserialize, Serialize};

use crate::uploads::Condition;

/// ITEM of `POST /v1/frames/push`: one whole object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushItem {
    /// Where the object will be.
    pub path: ObjectPath,
    /// What must hold for it to be written.
    #[serde(default)]
    pub condition: Condition,
    /// Whether missing collections above it are made.
    #[serde(default)]
    pub parents: bool,
    /// When its owner last modified it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtime: Option<Timestamp>,
    /// Its root, if the sender knows it already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<RootHash>,
}

/// ITEM 0 of `POST /v1/uploads/{id}/frames`: the upload itself, of which the address says all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadItem {}

/// ITEM of the answer to `POST /v1/frames/pull`; its number is that of the request's item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PulledItem {
    /// Its path.
    pub path: ObjectPath,
    /// The version that is sent.
    pub version: VersionId,
    /// The version's root, once it was hashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<RootHash>,
    /// When its owner last modified it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtime: Option<Timestamp>,
}

/// DONE: what the sender found when it had sent all of an item.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemDone {
    /// The root of the whole content, if the sender saw all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<RootHash>,
    /// Further digests that must hold, `algorithm:hex`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<Digest>,
}
