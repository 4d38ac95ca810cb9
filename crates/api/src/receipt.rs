//! Receipts of tasks: what was brought, line by line, signed by the site where the task ran (`docs/design/tasks.md`, "Receipts").
//!
//! A receipt is JSON lines: a [`Header`], an [`Item`] for each copy, an [`End`]. Each line ends with a line feed.

use percale_core::ids::{SiteId, TaskId, VersionId};
use percale_core::state::TaskState;
use percale_core::tree::RootHash;
use percale_core::{ObjectPath, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::tasks::TaskSpec;

/// The form of receipts that this release writes and reads.
pub const FORM: u32 = 1;

/// The media type of receipts.
pub const MEDIA_TYPE: &str = "application/jsonl";

/// A site, as receipts name it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Site {
    /// Its name when the receipt was made.
    pub name: String,
    /// Its id.
    #[schema(value_type = String, format = "uuid")]
    pub id: SiteId,
}

/// The first line of a receipt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Header {
    /// The form: 1.
    pub percale_receipt: u32,
    /// The task.
    #[schema(value_type = String, format = "uuid")]
    pub task: TaskId,
    /// What it was to do.
    pub spec: TaskSpec,
    /// What it was for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// On whose behalf, as the site calls them.
    pub owner: String,
    /// How it ended.
    #[schema(value_type = String, example = "succeeded")]
    pub state: TaskState,
    /// Where it ran, the bytes went, and the receipt is signed.
    pub site: Site,
    /// The sites that bytes came from.
    pub sources: Vec<Site>,
    /// When it was submitted.
    #[schema(value_type = String, format = "date-time")]
    pub submitted: Timestamp,
    /// When it was first begun; absent if it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "date-time")]
    pub started: Option<Timestamp>,
    /// When it ended.
    #[schema(value_type = String, format = "date-time")]
    pub ended: Timestamp,
    /// Items that are as they should be, also those that were so before and collections.
    pub items_done: u64,
    /// Items that failed.
    pub items_failed: u64,
    /// How many copies the receipt lists.
    pub listed: u64,
    /// Their bytes.
    pub listed_bytes: u64,
}

/// A copy that the task brought: one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Item {
    /// Its number, from 1.
    pub n: u64,
    /// The object's path when it was brought.
    #[schema(value_type = String)]
    pub path: ObjectPath,
    /// Its version; of an object that the task made, the new one.
    #[schema(value_type = u64)]
    pub version: VersionId,
    /// Bytes.
    pub size: u64,
    /// The root of its BLAKE3 hash tree, hexadecimal; equals `b3sum`.
    #[schema(value_type = String)]
    pub blake3: RootHash,
    /// The names of the sites that gave bytes of it to the attempt that ended it; none if an earlier attempt had all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    /// The store that it went to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// `frames`: every group was compared with the hash tree when it came. `frames+medium`: and the whole was read back from the
    /// medium and compared. `found`: a later attempt found it there.
    #[schema(example = "frames")]
    pub verified: String,
    /// When it had its name.
    #[schema(value_type = String, format = "date-time")]
    pub at: Timestamp,
}

/// The last line of a receipt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// How many lines are before this one.
    pub lines: u64,
    /// The BLAKE3 of these lines, with their line feeds.
    #[schema(value_type = String)]
    pub blake3: RootHash,
    /// The site's seal, a JWT of the type `percale-receipt+jwt` (`docs/design/trust.md`), which says both again.
    pub signature: String,
}

/// A line of a receipt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Line {
    /// The first one.
    Header(Box<Header>),
    /// One of those between.
    Item(Item),
    /// The last one.
    End(End),
}
