//! Spaces and stores.

use percale_core::Timestamp;
use percale_core::access::Subject;
use percale_core::ids::{SpaceId, StoreId};
use percale_core::path::SpaceName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::NewGrant;

/// Who sees a space.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SpaceScope {
    /// Its owner, until others are granted something.
    #[default]
    Private,
    /// Those it is granted to.
    Members,
    /// Everybody may read.
    Public,
}

/// When the headers of objects are read for what they say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Extraction {
    /// Only when somebody asks.
    #[default]
    Off,
    /// Soon after they were written.
    Async,
    /// Before a write is answered.
    Sync,
}

/// A root of the namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Space {
    /// Its id.
    #[schema(value_type = String, format = "uuid")]
    pub id: SpaceId,
    /// Its name, the first component of its paths.
    #[schema(value_type = String, example = "climate")]
    pub name: SpaceName,
    /// Its owner.
    #[schema(value_type = String, example = "user:alice")]
    pub owner: Subject,
    /// Who sees it.
    pub scope: SpaceScope,
    /// The store that new data goes to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// When the headers of its objects are read for what they say.
    #[serde(default)]
    pub extraction: Extraction,
    /// How many records of its journal were not looked at for objects to read; absent where this server does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread: Option<u64>,
    /// How many bytes its objects may have together, in their current versions; absent without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
    /// How many they have.
    #[serde(default)]
    pub used: u64,
    /// The site that orders all changes in it.
    #[serde(default)]
    pub home: String,
    /// The journal position up to which this is true.
    pub position: String,
    /// When it was made.
    #[schema(value_type = String, format = "date-time")]
    pub created: Timestamp,
}

/// Moves a space to another home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewHome {
    /// The name of the site.
    pub site: String,
}

/// A space that has another home now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Promoted {
    /// The space.
    #[schema(value_type = String)]
    pub space: SpaceName,
    /// Its home.
    pub home: String,
    /// The journal behind the change.
    pub position: String,
    /// Where the new home stood before.
    pub before: String,
    /// The last position of the old home that was heard of. What is between the two is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard: Option<String>,
    /// Records known to be lost.
    pub lost: u64,
}

/// Makes a space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSpace {
    /// Its name.
    #[schema(value_type = String, example = "climate")]
    pub name: SpaceName,
    /// Its owner; the caller if absent.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "user:alice")]
    pub owner: Option<Subject>,
    /// A space that it is made like: its scope, its store, its quota, when headers are read, and the grants and rules on its root, but for grants to its
    /// owner. Needs `manage` on that.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "project")]
    pub template: Option<SpaceName>,
    /// Who sees it; as the template, or `private`, if absent.
    #[serde(default)]
    pub scope: Option<SpaceScope>,
    /// The store that new data goes to; that of the template, or the site's first store, if absent.
    #[serde(default)]
    pub store: Option<String>,
    /// When the headers of its objects are read for what they say; as the template, or `async`, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extraction: Option<Extraction>,
    /// How many bytes its objects may have together; as the template, or without a limit, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
    /// Who else gets what on it, in place of what the template gives them; at most [`NewSpace::MOST_MEMBERS`].
    #[serde(default)]
    pub members: Vec<NewGrant>,
}

impl NewSpace {
    /// The most members that a space is made with.
    pub const MOST_MEMBERS: usize = 1000;

    /// A private space of the caller, on the site's first store.
    pub fn new(name: SpaceName) -> Self {
        Self {
            name,
            owner: None,
            template: None,
            scope: None,
            store: None,
            extraction: None,
            quota: None,
            members: Vec::new(),
        }
    }
}

/// Changes a space; absent fields stay.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SpaceChange {
    /// Who sees it.
    #[serde(default)]
    pub scope: Option<SpaceScope>,
    /// The store that new data goes to.
    #[serde(default)]
    pub store: Option<String>,
    /// When the headers of its objects are read for what they say.
    #[serde(default)]
    pub extraction: Option<Extraction>,
    /// How many bytes its objects may have together; `null` takes the limit away. For administrators.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    #[schema(value_type = Option<u64>)]
    pub quota: Option<Option<u64>>,
}

/// Reads a field that is there, also as `null`.
fn nullable<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Option<u64>>, D::Error> {
    Option::<u64>::deserialize(deserializer).map(Some)
}

/// How a store keeps files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// Versions are immutable; only Percale writes.
    #[default]
    Managed,
    /// Jobs at the site write too; a file has one live generation.
    Native,
}

/// Whether a store takes new data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StoreState {
    /// Reads and writes.
    #[default]
    Active,
    /// Reads only.
    Draining,
}

/// A configured storage at the site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Store {
    /// Its id.
    #[schema(value_type = String, format = "uuid")]
    pub id: StoreId,
    /// Its name.
    pub name: String,
    /// The kind of storage: `posix`, `memory` or `s3`.
    pub connector: String,
    /// How it keeps files.
    pub layout: Layout,
    /// Whether it takes new data.
    pub state: StoreState,
    /// The connector's settings, without secrets.
    #[schema(value_type = Object)]
    pub config: serde_json::Value,
    /// Bytes in all, as far as the storage tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// Bytes that are free, as far as the storage tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
}

/// Adds a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewStore {
    /// Its name: 1 to 63 of `a-z`, `0-9`, `.`, `_`, `-`.
    #[schema(example = "lustre")]
    pub name: String,
    /// The kind of storage: `posix`, `memory` or `s3`.
    #[schema(example = "posix")]
    pub connector: String,
    /// How it keeps files.
    #[serde(default)]
    pub layout: Layout,
    /// The connector's settings: for `posix` `root`; for `s3` `bucket`, `endpoint`, `region`, `prefix`.
    #[schema(value_type = Object)]
    pub config: serde_json::Value,
    /// The connector's secret: for `s3` `access_key_id` and `secret_access_key`. Kept sealed at the site, never given
    /// out.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub secret: Option<serde_json::Value>,
}

/// Changes a store; absent fields stay.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StoreChange {
    /// Whether it takes new data.
    #[serde(default)]
    pub state: Option<StoreState>,
}
