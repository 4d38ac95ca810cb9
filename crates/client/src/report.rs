//! What became of a transfer.

use std::sync::Arc;

use percale_core::ids::VersionId;
use percale_core::tree::RootHash;

use crate::error::Error;

/// Most failures that a [`Report`] keeps with their texts; more are only counted.
pub const MAX_FAILURES: usize = 10_000;

/// What became of one file, collection or object.
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// It was transferred.
    Done {
        /// The version that was made or read.
        version: Option<VersionId>,
        /// Its root; absent for an object that was not hashed yet.
        root: Option<RootHash>,
        /// Whether something was there before.
        replaced: bool,
    },
    /// The same content is there already.
    Same,
    /// A dry run: it would be transferred.
    Planned {
        /// Whether something would be replaced.
        replaces: bool,
    },
    /// It was removed, since the source has nothing of that name; in a dry run, it would be.
    Removed,
    /// It is passed over: not a file (a symbolic link, a device), or a partial file of a transfer.
    PassedOver(&'static str),
    /// It was not transferred.
    Failed(Error),
}

/// One file, collection or object of a transfer.
#[derive(Debug)]
#[non_exhaustive]
pub struct Item {
    /// Where it comes from.
    pub from: String,
    /// Where it goes.
    pub to: String,
    /// Bytes.
    pub bytes: u64,
    /// What became of it.
    pub outcome: Outcome,
}

/// Is called with each item as it ends, from any thread; must not block for long.
pub type OnItem = Arc<dyn Fn(&Item) + Send + Sync>;

/// What became of a whole transfer.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Objects or files transferred, or planned in a dry run.
    pub done: u64,
    /// Bytes transferred, or planned in a dry run.
    pub bytes: u64,
    /// What was the same already.
    pub same: u64,
    /// What was removed, or would be in a dry run.
    pub removed: u64,
    /// What was passed over.
    pub passed_over: u64,
    /// What failed.
    pub failed: u64,
    /// Whether it was stopped before its end.
    pub interrupted: bool,
    /// The failed ones, at most [`MAX_FAILURES`].
    pub failures: Vec<Item>,
}

impl Report {
    pub(crate) fn add(&mut self, item: Item) {
        match &item.outcome {
            Outcome::Done { .. } | Outcome::Planned { .. } => {
                self.done += 1;
                self.bytes += item.bytes;
            }
            Outcome::Same => self.same += 1,
            Outcome::Removed => self.removed += 1,
            Outcome::PassedOver(_) => self.passed_over += 1,
            Outcome::Failed(_) => {
                self.failed += 1;
                if self.failures.len() < MAX_FAILURES {
                    self.failures.push(item);
                }
            }
        }
    }
}
