//! Mounts: sessions in which a host writes into the stores that it sees, and what is published from there.

use percale_core::ids::{EntryId, Fence, LeaseId, StoreId, VersionId};
use percale_core::tree::RootHash;
use percale_core::{FileMode, LinkTarget, ObjectPath, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Problem;
use crate::entries::Attributes;
use crate::uploads::Condition;

/// Opens a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMount {
    /// The host that mounts, for whoever looks at the sessions; at most 255 bytes.
    pub host: String,
}

/// A session of a mount. It ends by itself if it is not renewed, and what was staged under it goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Mount {
    /// Its id.
    #[schema(value_type = String, format = "uuid")]
    pub id: LeaseId,
    /// What the names of its staged files begin with.
    #[schema(value_type = u64)]
    pub fence: Fence,
    /// When it ends, unless it is renewed.
    #[schema(value_type = String, format = "date-time")]
    pub expires: Timestamp,
    /// The stores of this site that are directories. A host sees one if [`Mount::PROOF`] lies there and holds the session's id.
    pub stores: Vec<MountStore>,
}

impl Mount {
    /// The name, in the session's stage directory, of the file that says that a host sees a store.
    pub const PROOF: &'static str = "mount";

    /// Returns the directory, below a store's root, in which files are staged.
    pub fn stage_dir(&self) -> String {
        format!(".percale/stage/{}", self.fence)
    }
}

/// A store that is a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MountStore {
    /// Its id.
    #[schema(value_type = String, format = "uuid")]
    pub id: StoreId,
    /// Its name.
    pub name: String,
    /// Its root on the hosts that see it.
    pub root: String,
    /// Whether it takes new data.
    pub takes_data: bool,
    /// Whether its files may be written where they lie.
    #[serde(default)]
    pub is_native: bool,
}

/// Changes that were made through a mount, in the order in which they were made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MountChanges {
    /// At most [`MountChanges::MOST`].
    pub changes: Vec<MountChange>,
}

impl MountChanges {
    /// The most changes in one request.
    pub const MOST: usize = 1024;
}

/// One change. Each may be asked for again whose answer was lost, as long as nothing else was asked for at its paths since then. With the
/// id of its entry, a move or removal then also leaves alone what others have put there meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum MountChange {
    /// A staged file becomes a version.
    Publish {
        /// Where.
        #[schema(value_type = String)]
        path: ObjectPath,
        /// The store that it is staged in.
        #[schema(value_type = String, format = "uuid")]
        store: StoreId,
        /// Its name in the session's stage directory.
        token: String,
        /// Its bytes.
        size: u64,
        /// When it was last modified.
        #[schema(value_type = String, format = "date-time")]
        mtime: Timestamp,
        /// Its permission bits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>, example = "0644")]
        mode: Option<FileMode>,
        /// What must be there.
        #[serde(default)]
        condition: Condition,
    },
    /// A file of a native store is written where it lies. Its copy is not read from elsewhere meanwhile.
    Writing {
        /// The object's path.
        #[schema(value_type = String)]
        path: ObjectPath,
        /// The store.
        #[schema(value_type = String, format = "uuid")]
        store: StoreId,
    },
    /// A file of a native store is not written any more. If it has changed, it is a new version of its object.
    Written {
        /// The object's path.
        #[schema(value_type = String)]
        path: ObjectPath,
        /// The store.
        #[schema(value_type = String, format = "uuid")]
        store: StoreId,
    },
    /// Its owner says something else of an object, whose version stays.
    SetAttributes {
        /// Where.
        #[schema(value_type = String)]
        path: ObjectPath,
        /// What.
        attributes: Attributes,
    },
    /// A collection is made; one that is there is `already_exists`.
    MakeCollection {
        /// Where.
        #[schema(value_type = String)]
        path: ObjectPath,
    },
    /// A symbolic link is made; what is there already is `already_exists`, unless it is the same link.
    MakeLink {
        /// Where.
        #[schema(value_type = String)]
        path: ObjectPath,
        /// Where it leads.
        #[schema(value_type = String)]
        target: LinkTarget,
    },
    /// An entry gets another path in its space.
    Move {
        /// Its path.
        #[schema(value_type = String)]
        from: ObjectPath,
        /// Its new path.
        #[schema(value_type = String)]
        to: ObjectPath,
        /// Whether an object at the new path is replaced.
        #[serde(default)]
        overwrite: bool,
        /// Only the entry with this id: if it is at the new path already, that is what was asked for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<u64>)]
        entry: Option<EntryId>,
    },
    /// An object, a link, or a collection with nothing in it, is removed.
    Remove {
        /// Its path.
        #[schema(value_type = String)]
        path: ObjectPath,
        /// Only the entry with this id: if another is there, it is not found.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<u64>)]
        entry: Option<EntryId>,
    },
}

impl MountChange {
    /// Returns the path that it is about.
    pub fn path(&self) -> &ObjectPath {
        match self {
            Self::Publish { path, .. }
            | Self::Writing { path, .. }
            | Self::Written { path, .. }
            | Self::SetAttributes { path, .. }
            | Self::MakeCollection { path }
            | Self::MakeLink { path, .. }
            | Self::Remove { path, .. } => path,
            Self::Move { from, .. } => from,
        }
    }
}

/// What became of the changes, one result for each in their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MountResults {
    /// The results.
    pub results: Vec<MountResult>,
}

/// What became of one change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MountResult {
    /// It is visible.
    Done(MountDone),
    /// It is not.
    Failed(Problem),
}

/// A change that is visible.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MountDone {
    /// The entry; absent for what was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub entry: Option<EntryId>,
    /// The version that was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub version: Option<VersionId>,
    /// The root of its hash tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub root: Option<RootHash>,
    /// The journal behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<String>,
}
