//! Registering files of a storage in place.

use percale_core::access::Caller;
use percale_core::ids::StoreId;
use percale_core::tree::RootHash;
use percale_core::{ByteCount, FileMode, ObjectPath, Position};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Problem;

/// Makes objects of the files that lie in a directory of a native store, and keeps the catalog true to what is there: files
/// that changed are new versions, files that are gone are lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Import {
    /// The directory, as the site's hosts name it: an absolute path in the root of a native store of this site, or `s3://BUCKET/PREFIX` in
    /// the bucket of one.
    #[schema(example = "/data/run7")]
    pub source: String,
    /// The collection that gets what is in it; made if it is missing.
    #[schema(value_type = String)]
    pub to: ObjectPath,
    /// The name of the site that the directory is at. Default that where the task is submitted; another one is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// When the files are hashed. Default `later`.
    #[serde(default, skip_serializing_if = "Hashing::is_default")]
    pub hash: Hashing,
    /// Which files. Default all.
    #[serde(default, skip_serializing_if = "Selection::is_everything")]
    pub select: Selection,
    /// Whether the headers of what is new or changed are read before it ends, whatever the space says. Default no.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub extract: bool,
    /// Whether it is only found out what would be done. Default no.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// After how many seconds it is done again, until it is cancelled. Default never; from 5 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_s: Option<u32>,
}

/// When files that are registered in place are hashed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Hashing {
    /// Before they are registered: their copies are good from the beginning.
    Now,
    /// By another task once all are registered.
    #[default]
    Later,
    /// Not by this task: their copies stay unverified until somebody reads or checks them.
    Never,
}

impl Hashing {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A part of a tree. The first rule that matches decides; what none matches is in, unless a rule includes something.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Selection {
    /// The rules, in their order; at most 1000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// Leaves out smaller files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub min_size: Option<ByteCount>,
    /// Leaves out larger files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub max_size: Option<ByteCount>,
}

impl Selection {
    /// Tells whether nothing is left out.
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }
}

/// What is in or out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rule {
    /// Whether what matches is in.
    pub include: bool,
    /// Without a slash it is compared with names, else with paths below the source; with one at its end it matches only
    /// directories.
    #[schema(example = "*.nc")]
    pub pattern: String,
}

/// Asks the home of a space to register files that lie at the asking site.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RegisterFiles {
    /// Who registers them, as the home calls that user.
    pub caller: Caller,
    /// The store where they lie.
    pub store: StoreId,
    /// The collection that all of them belong under.
    pub within: ObjectPath,
    /// The files.
    pub folders: Vec<Folder>,
}

/// A directory of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Folder {
    /// The collection that its files go to.
    pub path: ObjectPath,
    /// Its key on the store; nothing means the top.
    pub key: Option<String>,
    /// Its files, in the order of their names.
    pub files: Vec<FoundFile>,
}

/// A file as it was found on a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundFile {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size: ByteCount,
    /// What tells this content from the next.
    pub generation: String,
    /// When it was last modified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtime_us: Option<i64>,
    /// Its permission bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FileMode>,
    /// The root of its hash tree, if it was hashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<RootHash>,
}

/// What became of files that were to be registered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Registered {
    /// Objects that were made.
    pub created: u64,
    /// Objects that got new versions.
    pub changed: u64,
    /// Files that were registered before.
    pub unchanged: u64,
    /// What could not be registered.
    pub failed: Vec<NotRegistered>,
    /// The journal behind it.
    pub position: Option<Position>,
}

/// A file that could not be registered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NotRegistered {
    /// The number of its folder in the request.
    pub folder: usize,
    /// Its number there; nothing means all of the folder.
    pub file: Option<usize>,
    /// Why.
    pub problem: Problem,
}
