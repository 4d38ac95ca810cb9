//! Managed tasks and events.

use percale_core::ids::TaskId;
use percale_core::state::TaskState;
use percale_core::{ObjectPath, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
    },
    /// Removes an entry and all below it.
    Delete {
        /// What to remove.
        #[schema(value_type = String)]
        path: ObjectPath,
    },
    /// Copies an entry and all below it within the site.
    Copy {
        /// What to copy.
        #[schema(value_type = String)]
        from: ObjectPath,
        /// Where to; must not exist.
        #[schema(value_type = String)]
        to: ObjectPath,
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
    /// Bytes handled.
    pub bytes_done: u64,
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
