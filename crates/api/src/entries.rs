//! Collections, objects and their replicas.

use percale_core::digest::Digest;
use percale_core::ids::{EntryId, StoreId, VersionId};
use percale_core::state::ReplicaState;
use percale_core::tree::RootHash;
use percale_core::{FileMode, LinkTarget, ObjectPath, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A directory.
    Collection,
    /// A file.
    Object,
    /// A symbolic link.
    Link,
}

impl Kind {
    /// Returns its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Collection => "collection",
            Self::Object => "object",
            Self::Link => "link",
        }
    }
}

/// A collection, object or link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Entry {
    /// Its path.
    #[schema(value_type = String, example = "/climate/era5/2024.nc")]
    pub path: ObjectPath,
    /// What it is.
    pub kind: Kind,
    /// Its id, unique in its space and never used again.
    #[schema(value_type = u64)]
    pub id: EntryId,
    /// When it was made.
    #[schema(value_type = String, format = "date-time")]
    pub created: Timestamp,
    /// When it was last changed in the namespace.
    #[schema(value_type = String, format = "date-time")]
    pub modified: Timestamp,
    /// The current content; objects only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// Where it leads, as it was written; links only. What is relative is followed from the collection that holds the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "../runs/42")]
    pub target: Option<LinkTarget>,
    /// The copies of the current version; only where asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<Vec<Replica>>,
}

/// The content of a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Content {
    /// The version's id.
    #[schema(value_type = u64)]
    pub version: VersionId,
    /// Bytes.
    pub size: u64,
    /// The root of its BLAKE3 tree, once it was hashed; equals `b3sum`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub root: Option<RootHash>,
    /// When its owner last modified it.
    #[schema(value_type = String, format = "date-time")]
    pub mtime: Timestamp,
    /// The permission bits that its owner gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "0644")]
    pub mode: Option<FileMode>,
    /// Other digests that are known, `algorithm:hex`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub digests: Vec<Digest>,
}

/// One copy of a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Replica {
    /// The site that has it.
    pub site: String,
    /// The store's name.
    pub store: String,
    /// The store's id.
    #[schema(value_type = String, format = "uuid")]
    pub store_id: StoreId,
    /// Its state.
    #[schema(value_type = String, example = "good")]
    pub state: ReplicaState,
    /// When its bytes were last hashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "date-time")]
    pub checked: Option<Timestamp>,
    /// Where it lies in the store. Only for those who manage the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// What its owner says of an object, besides its bytes. What is absent stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Attributes {
    /// When it was modified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "date-time")]
    pub mtime: Option<Timestamp>,
    /// Its permission bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "0644")]
    pub mode: Option<FileMode>,
}

/// Makes a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewLink {
    /// Where it leads, kept as it is: 1 to 4095 bytes.
    #[schema(value_type = String, min_length = 1, max_length = 4095, example = "../runs/42")]
    pub target: LinkTarget,
}

/// Moves an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Move {
    /// What to move.
    #[schema(value_type = String)]
    pub from: ObjectPath,
    /// Its new path, in the same space.
    #[schema(value_type = String)]
    pub to: ObjectPath,
    /// Whether an object at the new path is replaced.
    #[serde(default)]
    pub overwrite: bool,
    /// Only the entry with this id. The request may then be repeated: if the entry is at the new path already, that is
    /// what was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub entry: Option<EntryId>,
}
