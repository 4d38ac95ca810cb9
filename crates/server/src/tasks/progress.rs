//! How far an attempt is, and from where it would be repeated.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use percale_catalog::{Task, TaskCopy, TaskItem, TaskProgress, TaskReport, Verified};
use percale_core::ids::VersionId;
use percale_core::tree::RootHash;
use percale_core::{ObjectPath, Timestamp};
use serde::{Deserialize, Serialize};

use crate::ApiError;

/// Where a repetition goes on, as the catalog keeps it: the end of the last step, with the counts up to there.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Cursor {
    v: u16,
    after: Option<String>,
    progress: TaskProgress,
    /// How many copies the receipt listed at the end of the step.
    #[serde(default)]
    listed: u64,
}

/// Counts what an attempt does. Items that failed are reported at the end of their step, together with the cursor.
pub(super) struct Progress {
    state: Mutex<State>,
    /// Bytes of unfinished items that the next attempt need not bring again.
    safe: Arc<AtomicU64>,
}

struct State {
    now: TaskProgress,
    cursor: Option<Cursor>,
    /// Failures of the step in hand.
    step: Vec<TaskItem>,
    /// Failures of steps that ended.
    items: Vec<TaskItem>,
    is_changed: bool,
    /// Whether something was achieved that has not been reported.
    is_further: bool,
    /// How many of the safe bytes were reported.
    reported: u64,
    /// Why the step in hand has to be repeated.
    repeat: Option<ApiError>,
    /// What was brought and not reported.
    copies: Vec<TaskCopy>,
    /// How many copies the receipt lists with these.
    listed: u64,
    /// Whether what was recorded of items before is to be forgotten.
    begins_anew: bool,
    /// Of the first step of a later attempt, which may have been begun before: what the receipt lists of it.
    begun: Option<HashSet<(ObjectPath, VersionId)>>,
}

impl Progress {
    /// Goes on from where the last attempt ended its last step.
    pub fn new(task: &Task) -> Self {
        let cursor: Option<Cursor> =
            task.cursor.clone().and_then(|cursor| serde_json::from_value(cursor).ok());
        let cursor = cursor.filter(|cursor| cursor.v == 1 && cursor.after.is_some());
        let now = cursor.as_ref().map(|cursor| cursor.progress.clone()).unwrap_or_default();
        let (step, items) = (Vec::new(), Vec::new());
        let (is_changed, is_further, reported, repeat) = (false, false, 0, None);
        let (copies, begun) = (Vec::new(), None);
        let listed = cursor.as_ref().map_or(0, |cursor| cursor.listed);
        let state = State {
            now,
            cursor,
            step,
            items,
            is_changed,
            is_further,
            reported,
            repeat,
            copies,
            listed,
            begins_anew: false,
            begun,
        };
        Self { state: Mutex::new(state), safe: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns where to go on.
    pub fn after(&self) -> Option<String> {
        self.lock().cursor.as_ref().and_then(|cursor| cursor.after.clone())
    }

    /// Returns what counts the bytes of unfinished items that the next attempt need not bring again.
    pub fn safe(&self) -> Arc<AtomicU64> {
        self.safe.clone()
    }

    /// Returns how many items and bytes are done with, well or not.
    pub fn ended(&self) -> (u64, u64) {
        let now = &self.lock().now;
        (now.items_done + now.items_failed, now.bytes_done)
    }

    /// Notes what there is to do since so much was done with; `is_all` if nothing comes behind it.
    pub fn found(&self, ended: (u64, u64), items: u64, bytes: u64, is_all: bool) {
        let now = &mut self.lock().now;
        now.items_total = Some(ended.0 + items);
        now.bytes_total = is_all.then_some(ended.1 + bytes);
    }

    /// Returns the bytes of what was done.
    pub fn bytes_done(&self) -> u64 {
        self.lock().now.bytes_done
    }

    /// Notes items that are as they should be, and were so before.
    pub fn done(&self, items: u64, bytes: u64) {
        let now = &mut self.lock().now;
        now.items_done += items;
        now.bytes_done += bytes;
    }

    /// Says that the task has begun anew: what was recorded of items before is forgotten.
    pub fn begin_anew(&self) {
        self.lock().begins_anew = true;
    }

    /// Notes what became of items, which are done with.
    pub fn count(&self, what: &str, items: u64) {
        if items == 0 {
            return;
        }
        let mut state = self.lock();
        state.now.items_done += items;
        match state.now.counts.get_mut(what) {
            Some(count) => *count += items,
            None => drop(state.now.counts.insert(what.to_owned(), items)),
        }
    }

    /// Returns of how many items that was noted.
    pub fn counted(&self, what: &str) -> u64 {
        self.lock().now.counts.get(what).copied().unwrap_or_default()
    }

    /// Names an item that nothing is the matter with.
    pub fn name(&self, path: String, what: &str) {
        let item = TaskItem { path, outcome: what.to_owned(), code: None, detail: String::new() };
        self.lock().step.push(item);
    }

    /// Notes items that this attempt has made as they should be: a later one finds them so.
    pub fn achieved(&self, items: u64, bytes: u64) {
        self.done(items, bytes);
        self.lock().is_further = true;
    }

    /// Returns how many copies the receipt listed when the last step ended.
    pub fn listed(&self) -> u64 {
        self.lock().listed
    }

    /// Says how many copies the receipt lists; of a later attempt also which of them belong to the step that it begins with.
    pub fn listed_before(&self, listed: u64, of_this_step: Option<HashSet<(ObjectPath, VersionId)>>) {
        let mut state = self.lock();
        (state.listed, state.begun) = (listed, of_this_step);
    }

    /// Notes an item that this attempt has brought: as [`achieved`](Self::achieved), with a line in the receipt.
    pub fn brought(&self, copy: TaskCopy) {
        self.achieved(1, copy.size);
        self.list(copy);
    }

    /// Notes an item that is as it should be: as [`done`](Self::done), perhaps with a line in the receipt.
    pub fn found_there(&self, path: &ObjectPath, version: VersionId, size: u64, root: Option<RootHash>) {
        self.done(1, 0);
        self.list_found(path, version, size, root);
    }

    /// Gives a copy a line in the receipt.
    pub fn list(&self, copy: TaskCopy) {
        let mut state = self.lock();
        state.listed += 1;
        state.copies.push(copy);
    }

    /// Gives a copy that was found a line in the receipt, where an earlier attempt may have brought it and was killed before
    /// it could say so.
    pub fn list_found(&self, path: &ObjectPath, version: VersionId, size: u64, root: Option<RootHash>) {
        let is_new = |known: &HashSet<_>| !known.contains(&(path.clone(), version));
        let may_be_ours = self.lock().begun.as_ref().is_some_and(is_new);
        if let Some(root) = root.filter(|_| may_be_ours) {
            let (path, verified, at_us) = (path.clone(), Verified::Found, Timestamp::now().as_micros());
            let (sources, store) = (Vec::new(), None);
            self.list(TaskCopy { path, version, size, root, sources, store, verified, at_us });
        }
    }

    /// Notes an item that was not done.
    pub fn failed(&self, path: &ObjectPath, outcome: &str, error: &ApiError) {
        self.failed_at(path.to_string(), outcome, error);
    }

    /// The same of one that has no path in the namespace.
    pub fn failed_at(&self, path: String, outcome: &str, error: &ApiError) {
        let mut state = self.lock();
        state.now.items_failed += 1;
        state.step.push(TaskItem {
            path,
            outcome: outcome.to_owned(),
            code: Some(error.code()),
            detail: error.detail().to_owned(),
        });
    }

    /// Says that the step in hand has to be repeated, since something in it may be done later.
    pub fn repeat(&self, error: ApiError) {
        self.lock().repeat.get_or_insert(error);
    }

    /// Returns why the step in hand has to be repeated, if it has.
    pub fn to_repeat(&self) -> Option<ApiError> {
        self.lock().repeat.clone()
    }

    /// Ends a step; a repetition goes on behind it.
    pub fn step(&self, after: Option<String>) {
        let mut state = self.lock();
        let failed = std::mem::take(&mut state.step);
        state.items.extend(failed);
        state.is_further |= state.cursor.as_ref().and_then(|cursor| cursor.after.as_ref()) != after.as_ref();
        state.cursor = Some(Cursor { v: 1, after, progress: state.now.clone(), listed: state.listed });
        state.is_changed = true;
        state.begun = None;
    }

    /// Ends the last step: a repetition, if somebody asks for one, begins anew.
    pub fn complete(&self) {
        self.step(None);
        let now = &mut self.lock().now;
        now.items_total = Some(now.items_done + now.items_failed);
        now.bytes_total = Some(now.bytes_done);
    }

    /// Tells whether anything failed.
    pub fn has_failures(&self) -> bool {
        self.lock().now.items_failed > 0
    }

    /// Returns what has not been reported yet.
    pub fn take(&self) -> TaskReport {
        let mut state = self.lock();
        let cursor = match std::mem::take(&mut state.is_changed) {
            true => state.cursor.as_ref().and_then(|cursor| serde_json::to_value(cursor).ok()),
            false => None,
        };
        let safe = self.safe.load(Ordering::Relaxed);
        let is_safer = std::mem::replace(&mut state.reported, safe) < safe;
        let is_further = std::mem::take(&mut state.is_further) || is_safer;
        TaskReport {
            cursor,
            progress: state.now.clone(),
            items: std::mem::take(&mut state.items),
            copies: std::mem::take(&mut state.copies),
            is_further,
            begins_anew: std::mem::take(&mut state.begins_anew),
        }
    }

    /// Takes back a report that did not arrive.
    pub fn give_back(&self, report: TaskReport) {
        let mut state = self.lock();
        state.is_changed |= report.cursor.is_some();
        state.is_further |= report.is_further;
        state.begins_anew |= report.begins_anew;
        let later = std::mem::replace(&mut state.items, report.items);
        state.items.extend(later);
        let later = std::mem::replace(&mut state.copies, report.copies);
        state.copies.extend(later);
    }
}

#[cfg(test)]
mod tests {
    use percale_core::Timestamp;
    use percale_core::access::Caller;
    use percale_core::ids::TaskId;
    use percale_core::state::TaskState;

    use super::*;

    fn task(cursor: Option<serde_json::Value>) -> Task {
        let now = Timestamp::EPOCH;
        Task {
            id: TaskId::new(),
            kind: "replicate".into(),
            state: TaskState::Running,
            caller: Caller::anonymous(),
            spec: serde_json::json!({}),
            cursor,
            progress: TaskProgress::default(),
            fault: None,
            lease: None,
            attempt: 1,
            vain: 1,
            not_before: now,
            deadline: None,
            created: now,
            changed: now,
        }
    }

    #[test]
    fn only_what_no_later_attempt_does_again_is_further() {
        let progress = Progress::new(&task(None));
        progress.done(5, 500);
        assert!(!progress.take().is_further, "it was so before");
        progress.achieved(1, 100);
        let report = progress.take();
        assert!(report.is_further && !progress.take().is_further, "once");
        progress.give_back(report);
        assert!(progress.take().is_further, "unless nobody heard of it");
        progress.safe().fetch_add(8, Ordering::Relaxed);
        assert!(progress.take().is_further && !progress.take().is_further);
        progress.step(Some("a".into()));
        let report = progress.take();
        assert!(report.is_further);
        // The next attempt begins there; a step that is repeated in vain leads nowhere.
        let progress = Progress::new(&task(report.cursor));
        progress.step(Some("a".into()));
        assert!(!progress.take().is_further);
        progress.step(Some("b".into()));
        assert!(progress.take().is_further);
    }
}
