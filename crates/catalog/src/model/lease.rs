//! Rights that end by themselves.

use percale_core::Timestamp;
use percale_core::ids::{Fence, LeaseId};
use serde_json::Value;

use super::words;

words!(
    /// What a lease is for.
    LeaseKind {
        /// A server process: what it has in hand.
        Server = "server",
        /// A client's resumable upload.
        Upload = "upload",
        /// A large object that a task brings, whose holder is the task's id. It ends with the task.
        Task = "task",
        /// A mount: what it has staged and not published yet.
        Mount = "mount",
    }
);

/// A lease.
#[derive(Debug, Clone, PartialEq)]
pub struct Lease {
    /// Its id.
    pub id: LeaseId,
    /// What it is for.
    pub kind: LeaseKind,
    /// Who has it, as text.
    pub holder: String,
    /// Its fence: larger than that of every lease before it.
    pub fence: Fence,
    /// When it ends, by the database's clock.
    pub expires: Timestamp,
    /// What its holder keeps with it, a JSON object.
    pub body: Value,
}

/// A lease that was taken over from a holder that did not renew it.
#[derive(Debug, Clone, PartialEq)]
pub struct LapsedLease {
    /// The lease with its new holder and new fence.
    pub lease: Lease,
    /// The fence that the old holder had, and that its temporary names carry.
    pub old_fence: Fence,
    /// The old holder.
    pub old_holder: String,
}
