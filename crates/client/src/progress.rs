//! How far a transfer is. The transfer counts, whoever shows it looks when it likes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use crate::report::Outcome;

/// The counters of one transfer. Shared; every method is cheap.
#[derive(Debug, Default)]
pub struct Progress {
    planned_files: AtomicU64,
    planned_bytes: AtomicU64,
    is_planned: AtomicBool,
    done_files: AtomicU64,
    done_bytes: AtomicU64,
    same_files: AtomicU64,
    failed_files: AtomicU64,
    active: Mutex<Vec<Arc<FileProgress>>>,
}

/// How far one large file is.
#[derive(Debug)]
pub struct FileProgress {
    /// Its name, as the transfer's source calls it.
    pub name: String,
    /// Bytes in all.
    pub size: u64,
    done: AtomicU64,
}

impl FileProgress {
    /// Returns the bytes handled.
    pub fn done(&self) -> u64 {
        self.done.load(Relaxed).min(self.size)
    }
}

/// The counters at one moment.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// Files found so far.
    pub planned_files: u64,
    /// Bytes found so far.
    pub planned_bytes: u64,
    /// Whether everything was found.
    pub is_planned: bool,
    /// Files that ended, whether transferred, the same already, or failed.
    pub ended_files: u64,
    /// Bytes handled: moved, or found to be there.
    pub done_bytes: u64,
    /// Files that were the same already.
    pub same_files: u64,
    /// Files that failed.
    pub failed_files: u64,
    /// Large files under way.
    pub active: Vec<Arc<FileProgress>>,
}

impl Progress {
    /// Begins at zero.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn plan(&self, bytes: u64) {
        self.planned_files.fetch_add(1, Relaxed);
        self.planned_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn planned(&self) {
        self.is_planned.store(true, Relaxed);
    }

    pub(crate) fn moved(&self, bytes: u64) {
        self.done_bytes.fetch_add(bytes, Relaxed);
    }

    /// Takes back what was counted but must be moved again.
    pub(crate) fn retract(&self, bytes: u64) {
        let _ = self.done_bytes.fetch_update(Relaxed, Relaxed, |done| Some(done.saturating_sub(bytes)));
    }

    /// Counts what became of a file.
    pub(crate) fn ended(&self, outcome: &Outcome) {
        let files = match outcome {
            Outcome::Done { .. } => &self.done_files,
            Outcome::Same => &self.same_files,
            Outcome::Failed(_) => &self.failed_files,
            Outcome::Planned { .. } | Outcome::PassedOver(_) | Outcome::Removed => return,
        };
        files.fetch_add(1, Relaxed);
    }

    /// Shows a large file until the answer is dropped.
    pub(crate) fn begin(self: &Arc<Self>, name: impl Into<String>, size: u64) -> Active {
        let file = Arc::new(FileProgress { name: name.into(), size, done: AtomicU64::new(0) });
        self.lock().push(file.clone());
        Active { all: self.clone(), file }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<FileProgress>>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counters.
    pub fn snapshot(&self) -> Snapshot {
        let (same, failed) = (self.same_files.load(Relaxed), self.failed_files.load(Relaxed));
        Snapshot {
            planned_files: self.planned_files.load(Relaxed),
            planned_bytes: self.planned_bytes.load(Relaxed),
            is_planned: self.is_planned.load(Relaxed),
            ended_files: self.done_files.load(Relaxed) + same + failed,
            done_bytes: self.done_bytes.load(Relaxed),
            same_files: same,
            failed_files: failed,
            active: self.lock().clone(),
        }
    }
}

/// A large file under way; counts for the whole transfer too.
#[derive(Debug)]
pub(crate) struct Active {
    all: Arc<Progress>,
    file: Arc<FileProgress>,
}

impl Active {
    pub fn moved(&self, bytes: u64) {
        self.file.done.fetch_add(bytes, Relaxed);
        self.all.moved(bytes);
    }

    pub fn retract(&self, bytes: u64) {
        let _ = self.file.done.fetch_update(Relaxed, Relaxed, |done| Some(done.saturating_sub(bytes)));
        self.all.retract(bytes);
    }

    pub fn done(&self) -> u64 {
        self.file.done.load(Relaxed)
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.all.lock().retain(|file| !Arc::ptr_eq(file, &self.file));
    }
}
