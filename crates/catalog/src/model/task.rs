//! Managed work.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use percale_core::access::Caller;
use percale_core::ids::{Fence, LeaseId, SiteId, TaskId, VersionId};
use percale_core::state::TaskState;
use percale_core::tree::RootHash;
use percale_core::{ErrorCode, ObjectPath, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Work that is to be done.
#[derive(Debug, Clone)]
pub struct NewTask {
    /// Its id, if it has one already; else it gets one. Submitting an id again gives the first task again.
    pub id: Option<TaskId>,
    /// What kind of work: `verify`, `delete`, `copy`, `sync`, `replicate`, `evict`, `empty`, `import`.
    pub kind: String,
    /// What exactly, a JSON object whose form the kind defines.
    pub spec: Value,
    /// When to give up.
    pub deadline: Option<Timestamp>,
    /// Submitting again with the same key gives the first task again.
    pub idempotency_key: Option<String>,
}

/// How far a task is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskProgress {
    /// Items that succeeded.
    pub items_done: u64,
    /// Items that failed for good.
    pub items_failed: u64,
    /// Items in all, once that is known.
    pub items_total: Option<u64>,
    /// Bytes worked on.
    pub bytes_done: u64,
    /// Bytes in all, once that is known.
    pub bytes_total: Option<u64>,
    /// What became of items, by words that the kind defines.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u64>,
    /// What it is busy with, or was at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activity: Option<TaskActivity>,
}

/// What the attempt in hand is busy with, as its worker saw it last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskActivity {
    /// Bytes a second, over the last few seconds.
    pub rate: u64,
    /// Bytes a second, over the whole attempt.
    pub average: u64,
    /// Streams that are open.
    pub streams: u32,
    /// Why so many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams_reason: Option<String>,
    /// How the streams travelled: a word of the worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Why so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport_reason: Option<String>,
    /// What holds it up: a word of the worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bottleneck: Option<String>,
    /// Why that is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Why a task failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskFault {
    /// The code.
    pub code: ErrorCode,
    /// What was attempted on what.
    pub detail: String,
}

/// A task.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// What kind of work.
    pub kind: String,
    /// Its state.
    pub state: TaskState,
    /// On whose behalf, with the grants and scopes of the submission.
    pub caller: Caller,
    /// What exactly.
    pub spec: Value,
    /// Where the next attempt goes on: whatever the worker recorded last.
    pub cursor: Option<Value>,
    /// How far it is.
    pub progress: TaskProgress,
    /// Why it failed last.
    pub fault: Option<TaskFault>,
    /// The lease of the server that works on it.
    pub lease: Option<LeaseId>,
    /// The number of the attempt, from 1 once it was claimed.
    pub attempt: u32,
    /// How many attempts in a row, with the present one, have achieved nothing so far. These are what patience is
    /// measured by: waits grow with them, and after [`MAX_VAIN_ATTEMPTS`] the task has failed.
    pub vain: u32,
    /// It is not claimed before this time.
    pub not_before: Timestamp,
    /// When to give up.
    pub deadline: Option<Timestamp>,
    /// When it was submitted.
    pub created: Timestamp,
    /// When it was last changed.
    pub changed: Timestamp,
}

/// Which tasks to list.
#[derive(Debug, Clone, Default)]
pub struct TaskFilter {
    /// Only in these states; empty means any.
    pub states: Vec<TaskState>,
    /// Only of this kind.
    pub kind: Option<String>,
}

/// Proof of a claim: a server's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskHolder {
    /// The server's lease.
    pub lease: LeaseId,
    /// Its fence.
    pub fence: Fence,
}

/// An item of a task that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskItem {
    /// Its path.
    pub path: String,
    /// What became of it: `failed`, `skipped`, `damaged` or another word that the kind defines.
    pub outcome: String,
    /// Why.
    pub code: Option<ErrorCode>,
    /// Why, in words.
    pub detail: String,
}

/// How it was made sure that a copy has the bytes of its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verified {
    /// Every group was compared with the version's tree when it came, before it was written.
    #[serde(rename = "frames")]
    Frames,
    /// Besides, the whole was flushed, read back from the medium, and compared.
    #[serde(rename = "frames+medium")]
    Medium,
    /// A later attempt found it where it belongs: an earlier one of the same task had brought it and could not say so any more,
    /// or somebody else did.
    #[serde(rename = "found")]
    Found,
}

/// An object that a task has brought.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskCopy {
    /// Its path when it was brought.
    pub path: ObjectPath,
    /// Its version; of an object that the task made, the new one.
    pub version: VersionId,
    /// Bytes.
    pub size: u64,
    /// The root of its hash tree.
    pub root: RootHash,
    /// The sites that gave bytes of it to the attempt that ended it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SiteId>,
    /// The store that it went to, unless it was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// How it was verified.
    pub verified: Verified,
    /// When it had its name.
    pub at_us: i64,
}

/// How much a task has brought.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskCopies {
    /// Copies.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The sites that they came from.
    pub sources: BTreeSet<SiteId>,
}

/// Most copies in one record of what a task has brought.
pub const MAX_TASK_COPIES: usize = 500;

/// Most items that are kept for a task.
pub const MAX_TASK_ITEMS: u64 = 10_000;

/// Something that happened to a task.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskEvent {
    /// Its number in the task, from 1.
    pub number: u64,
    /// When.
    pub at: Timestamp,
    /// What: `submitted`, `claimed`, `requeued`, `succeeded`, `partial`, `failed`, `cancelled`, `retried`, or a word of
    /// the worker.
    pub kind: String,
    /// More about it, a JSON object.
    pub detail: Value,
}

/// What a worker has done since it last said so.
#[derive(Debug, Clone, Default)]
pub struct TaskReport {
    /// Where a repetition may go on.
    pub cursor: Option<Value>,
    /// How far the whole task is.
    pub progress: TaskProgress,
    /// Items that did not succeed, since the last report.
    pub items: Vec<TaskItem>,
    /// What was brought since the last report.
    pub copies: Vec<TaskCopy>,
    /// Whether something was achieved since the last report that no later attempt has to do again.
    pub is_further: bool,
    /// Whether the task has begun anew since the last report: what was recorded of items before is forgotten.
    pub begins_anew: bool,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskOutcome {
    /// All items are done.
    Succeeded,
    /// Some items failed.
    Partial,
    /// A permanent fault.
    Failed(TaskFault),
    /// A fault that a later attempt may not meet; the task goes back to the queue, or fails if its attempts are used up.
    Again(TaskFault),
    /// It is done for now, and is done again from the beginning after this time, until somebody cancels it.
    Later(Duration, Option<TaskFault>),
}

/// Most attempts in a row that achieve nothing.
pub const MAX_VAIN_ATTEMPTS: u32 = 20;
