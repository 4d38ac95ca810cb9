//! Managed tasks and events.

use std::collections::BTreeMap;

use percale_core::ids::TaskId;
use percale_core::state::TaskState;
use percale_core::tree::RootHash;
use percale_core::{ObjectPath, Rate, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::importing::Import;

/// What a task is to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "kind")]
#[non_exhaustive]
pub enum TaskSpec {
    /// Reads every replica under a path and hashes it, those of other sites by asking these.
    Verify {
        /// What to look at.
        #[schema(value_type = String)]
        path: ObjectPath,
        /// Whether copies that are damaged or lost are replaced from good ones. Default no.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        repair: bool,
        /// Whether only copies that were not hashed yet are looked at. Default no.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unverified: bool,
    },
    /// Removes an entry and all below it.
    Delete {
        /// What to remove.
        #[schema(value_type = String)]
        path: ObjectPath,
    },
    /// Copies an entry and all below it.
    Copy {
        /// What to copy.
        #[schema(value_type = String)]
        from: ObjectPath,
        /// Where to; must not exist.
        #[schema(value_type = String)]
        to: ObjectPath,
        /// The name of the site whose store gets the bytes. Default that where the task is submitted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<String>,
    },
    /// Makes a collection like another one: what is missing is copied, what differs replaced.
    Sync {
        /// The collection that is taken as it is.
        #[schema(value_type = String)]
        from: ObjectPath,
        /// The collection that is changed; made if it is missing.
        #[schema(value_type = String)]
        to: ObjectPath,
        /// When an object counts as the same. Default `content`.
        #[serde(default, skip_serializing_if = "Compare::is_default")]
        compare: Compare,
        /// Whether what only the changed collection has is removed, once all else is done without a failure. Default no.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        delete: bool,
        /// The name of the site whose store gets the bytes. Default that where the task is submitted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<String>,
    },
    /// Makes a copy of every object under a path at a site, of those that have no good one there.
    Replicate {
        /// What to copy.
        #[schema(value_type = String)]
        path: ObjectPath,
        /// The name of the site that gets the copies.
        to: String,
        /// The name of the site whose copies are read first; others are read where it has none that is good.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<String>,
    },
    /// Removes the copies of a site of every object under a path, except the last good one of each.
    Evict {
        /// What to remove the copies of.
        #[schema(value_type = String)]
        path: ObjectPath,
        /// The name of the site whose copies are removed.
        from: String,
    },
    /// Registers files of a storage of this site in place. For administrators.
    Import(Import),
    /// Reads the headers of all objects under a path again, for what they say.
    Extract {
        /// What to look at.
        #[schema(value_type = String)]
        path: ObjectPath,
    },
    /// Moves everything off a store of this site that is draining to its other stores. For administrators.
    Empty {
        /// The store's name.
        store: String,
    },
}

/// When an object counts as the same as another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compare {
    /// They have the same hash. Between objects of which one was not hashed yet: the same size and modification time.
    #[default]
    Content,
    /// They have the same size and modification time.
    Mtime,
    /// They have the same size.
    Size,
    /// Both are there.
    Exists,
}

impl Compare {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Tells whether two objects count as the same.
    pub fn is_same(self, left: Looks, right: Looks) -> bool {
        let same_size = left.size == right.size;
        let same_mtime = left.mtime.is_some() && left.mtime == right.mtime;
        match (self, left.root, right.root) {
            (Self::Exists, ..) => true,
            (Self::Size, ..) => same_size,
            (Self::Content, Some(left), Some(right)) => left == right,
            (Self::Content | Self::Mtime, ..) => same_size && same_mtime,
        }
    }
}

/// What [`Compare`] looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Looks {
    /// Bytes.
    pub size: u64,
    /// The root of its hash tree, once it was hashed.
    pub root: Option<RootHash>,
    /// When its owner last modified it.
    pub mtime: Option<Timestamp>,
}

/// Submits a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewTask {
    /// What it is to do.
    #[serde(flatten)]
    pub spec: TaskSpec,
    /// What it is for, shown in lists.
    #[serde(default)]
    pub label: Option<String>,
    /// When it gives up.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = "date-time")]
    pub deadline: Option<Timestamp>,
    /// How fast it may bring bytes from other sites. What the site sets for all holds besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "200Mbit/s")]
    pub limit: Option<Rate>,
    /// How the copies that it brings are verified: `replicate`, `copy`, `sync` and `empty`. Default `frames`.
    #[serde(default, skip_serializing_if = "Verification::is_default")]
    pub verify: Verification,
}

impl NewTask {
    /// Makes one without anything that may be left out.
    pub fn new(spec: TaskSpec) -> Self {
        Self { spec, label: None, deadline: None, limit: None, verify: Verification::default() }
    }
}

/// How it is made sure that a copy has the bytes of its version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verification {
    /// Every group is compared with the hash tree when it comes, before it is written.
    #[default]
    Frames,
    /// Besides, the whole is flushed, read back from the medium of the store and compared, before the copy has a name. A store
    /// that cannot is refused.
    Medium,
}

impl Verification {
    /// Tells whether it is what holds where nothing is said.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How far a task is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// Items found so far.
    pub items_total: u64,
    /// Items done well.
    pub items_done: u64,
    /// Items that failed.
    pub items_failed: u64,
    /// Bytes handled, also of what is not whole yet.
    pub bytes_done: u64,
    /// Bytes in all, once everything was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_total: Option<u64>,
    /// What became of items: of an import `registered`, `changed`, `unchanged` and `lost`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u64>,
}

/// What a task is busy with, and what holds it up. Renewed each second while it runs; afterwards what it was in all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Activity {
    /// Bytes a second, over the last seconds.
    pub rate: u64,
    /// Bytes a second, over the whole attempt.
    pub average: u64,
    /// Seconds that it takes to the end at this rate, once all was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    /// Streams that are open.
    pub streams: u32,
    /// Why so many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams_reason: Option<String>,
    /// How bytes came from other sites: `tls`, `integrity_only` (not encrypted, every byte authenticated) or `mixed`. Absent where
    /// none came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "tls")]
    pub transport: Option<String>,
    /// Why, where integrity only is configured and some came over TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport_reason: Option<String>,
    /// What holds it up: `network`, `source_or_network`, `source_disk`, `verification`, `destination_disk`, `catalog`,
    /// `small_files`, `limit`, `turn` or `unclear`; a later release may know others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "source_or_network")]
    pub bottleneck: Option<String>,
    /// The numbers that say so, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A managed task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Task {
    /// Its id.
    #[schema(value_type = String, format = "uuid")]
    pub id: TaskId,
    /// What it does.
    #[serde(flatten)]
    pub spec: TaskSpec,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Its state.
    #[schema(value_type = String, example = "running")]
    pub state: TaskState,
    /// Who started it.
    pub owner: String,
    /// How far it is.
    pub progress: Progress,
    /// What it is busy with; absent before it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<Activity>,
    /// Attempts begun.
    pub attempt: u32,
    /// Why it failed or waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<crate::Problem>,
    /// When it was submitted.
    #[schema(value_type = String, format = "date-time")]
    pub created: Timestamp,
    /// When something last happened to it.
    #[schema(value_type = String, format = "date-time")]
    pub changed: Timestamp,
    /// When it gives up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "date-time")]
    pub deadline: Option<Timestamp>,
    /// How fast it may bring bytes from other sites.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "200Mbit/s")]
    pub limit: Option<Rate>,
    /// How the copies that it brings are verified.
    #[serde(default, skip_serializing_if = "Verification::is_default")]
    pub verify: Verification,
}

/// An item of a task that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskItem {
    /// Its number in the task.
    pub number: u64,
    /// What it is about.
    pub path: String,
    /// What went wrong.
    pub code: String,
    /// In words.
    pub detail: String,
}

/// Something that happened to a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskEvent {
    /// Its number in the task, from 1.
    pub number: u64,
    /// When.
    #[schema(value_type = String, format = "date-time")]
    pub at: Timestamp,
    /// What: `submitted`, `claimed`, `requeued`, `succeeded`, `partial`, `failed`, `cancelled`, `retried`; a later release may
    /// know others.
    pub kind: String,
    /// More about it.
    #[schema(value_type = Object)]
    pub detail: serde_json::Value,
}

/// The data of an event of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum TaskUpdate {
    /// Of a `happened` event.
    Happened(TaskEvent),
    /// Of a `progress` event: the task as it is.
    Progress(Box<Task>),
}

/// A record of a space's journal, as `GET /v1/events` sends it; `docs/design/journal.md` has the kinds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its place; also the event's id, for `Last-Event-ID`.
    pub position: String,
    /// The space's name.
    pub space: String,
    /// When.
    #[schema(value_type = String, format = "date-time")]
    pub at: Timestamp,
    /// Who caused it.
    pub actor: String,
    /// What kind of change.
    pub kind: String,
    /// The version of the body's form.
    pub v: u16,
    /// The change.
    #[schema(value_type = Object)]
    pub body: serde_json::Value,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_compared_by_what_was_asked_for() {
        let looks = |size, root: Option<u8>, mtime: Option<i64>| Looks {
            size,
            root: root.map(|byte| RootHash([byte; 32])),
            mtime: mtime.map(Timestamp::from_micros),
        };
        use Compare::{Content, Exists, Mtime, Size};
        for (left, right, same) in [
            (looks(1, Some(1), Some(1)), looks(1, Some(1), Some(2)), vec![Content, Size, Exists]),
            (looks(1, Some(1), Some(1)), looks(1, Some(2), Some(1)), vec![Mtime, Size, Exists]),
            (looks(1, None, Some(1)), looks(1, Some(2), Some(1)), vec![Content, Mtime, Size, Exists]),
            (looks(1, None, None), looks(1, None, None), vec![Size, Exists]),
            (looks(1, None, Some(1)), looks(2, None, Some(1)), vec![Exists]),
        ] {
            for compare in [Content, Mtime, Size, Exists] {
                let expected = same.contains(&compare);
                assert_eq!(compare.is_same(left, right), expected, "{compare:?} {left:?} {right:?}");
            }
        }
    }
}
