//! Managed tasks: claimed under this server's lease, worked on, recorded (`docs/design/tasks.md`).
//!
//! A task's work goes in steps. After each one it records where a repetition would go on, with the counts up to there; a
//! server that dies repeats at most one step, and counts nothing twice.

mod activity;
mod copy;
mod delete;
mod empty;
mod evict;
mod extract;
mod home;
pub(crate) mod import;
mod progress;
mod replicate;
mod steps;
mod unhashed;
mod verify;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use percale_api::tasks::{TaskSpec, Verification};
use percale_catalog::{ListOptions, Listed, Page, Task, TaskFault, TaskHolder, TaskOutcome, TaskReport};
use percale_core::ids::{SiteId, TaskId};
use percale_core::state::TaskState;
use percale_core::{ErrorCode, ObjectPath, Rate, Timestamp};
use percale_federation::Acting;
use quick_cache::sync::Cache;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::app::system_caller;
use crate::fetch::{Become, Fetch, Flow, ForTask};
use crate::http::auth::delegated_here;
use crate::{ApiError, AppState, OnPath as _, Result};
use activity::Activity;
pub(crate) use empty::may_be_emptied;
use progress::Progress;
pub(crate) use verify::{AT_ONCE, Found, check_copy};

/// Tasks of other servers, or whose time to be tried again has come, are looked for that often.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Progress is recorded that often.
const RECORD_EVERY: Duration = Duration::from_secs(1);
/// A result that cannot be recorded is tried again for so long; then the lease has lapsed anyway.
const FINISH_TRIES: u32 = 5;
/// Attempts in a row that achieve nothing and end where an item could not be done now, but later: some two minutes. From then
/// on it counts as failed, and the others are done.
const PATIENT_ATTEMPTS: u32 = 8;
/// Tasks at other sites whose place is remembered.
const MAX_ELSEWHERE: usize = 10_000;

/// A task's order, as the catalog keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stored {
    v: u16,
    /// What is to be done.
    pub spec: TaskSpec,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// With what other sites are asked on behalf of a user for whom another site vouches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegation: Option<String>,
    /// How fast it may bring bytes from other sites.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Rate>,
    /// How its copies are verified.
    #[serde(default, skip_serializing_if = "Verification::is_default")]
    pub verify: Verification,
}

impl Stored {
    pub fn new(spec: TaskSpec) -> Self {
        Self { v: 1, spec, label: None, delegation: None, limit: None, verify: Verification::default() }
    }

    pub fn read(stored: &Value) -> Result<Self> {
        match stored.get("v").and_then(Value::as_u64) {
            Some(1) => serde_json::from_value(stored.clone()).map_err(|error| {
                ApiError::new(ErrorCode::Integrity, "its order cannot be read").with_source(error)
            }),
            _ => Err(ApiError::new(
                ErrorCode::Unsupported,
                "its order has a form that this release does not know",
            )),
        }
    }

    pub fn write(&self) -> Result<Value> {
        serde_json::to_value(self)
            .map_err(|error| ApiError::internal("cannot write a task's order").with_source(error))
    }

    /// Returns the word under which tasks of this kind are claimed.
    pub fn kind(&self) -> &'static str {
        match self.spec {
            TaskSpec::Verify { .. } => "verify",
            TaskSpec::Delete { .. } => "delete",
            TaskSpec::Copy { .. } => "copy",
            TaskSpec::Sync { .. } => "sync",
            TaskSpec::Replicate { .. } => "replicate",
            TaskSpec::Evict { .. } => "evict",
            TaskSpec::Empty { .. } => "empty",
            TaskSpec::Import(_) => "import",
            TaskSpec::Extract { .. } => "extract",
            _ => "unknown",
        }
    }

    /// Tells whether a task of this kind brings bytes, of which its receipt tells.
    pub fn brings_bytes(&self) -> bool {
        brings_bytes(&self.spec)
    }
}

fn brings_bytes(spec: &TaskSpec) -> bool {
    use TaskSpec::{Copy, Empty, Replicate, Sync};
    matches!(spec, Replicate { .. } | Copy { .. } | Sync { .. } | Empty { .. })
}

/// The kinds that this release works on.
const KINDS: &[&str] =
    &["verify", "delete", "copy", "sync", "replicate", "evict", "empty", "import", "extract"];

/// The tasks that this server works on.
pub struct Tasks {
    wake: Notify,
    /// Told when an attempt at a task ended here.
    ended: Notify,
    running: Mutex<HashMap<TaskId, CancellationToken>>,
    /// Where tasks run that were asked for here and run at another site. What is not remembered is looked for.
    elsewhere: Cache<TaskId, SiteId>,
}

impl Default for Tasks {
    fn default() -> Self {
        let elsewhere = Cache::new(MAX_ELSEWHERE);
        Self { wake: Notify::default(), ended: Notify::default(), running: Mutex::default(), elsewhere }
    }
}

impl Tasks {
    /// Says that there may be a task to be claimed.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Stops the work on a task that was cancelled, if it is done here. Other servers notice by themselves.
    pub fn stop(&self, id: TaskId) {
        if let Some(stop) = self.running.lock().unwrap_or_else(PoisonError::into_inner).get(&id) {
            stop.cancel();
        }
    }

    /// Waits until an attempt at any task ended here, from when the future is first polled or enabled. Other servers of the site may work
    /// on one, and whoever cancels it ends it too: so this is no more than a reason to look again.
    pub fn ended(&self) -> Notified<'_> {
        self.ended.notified()
    }

    /// Remembers at which site a task runs.
    pub fn note_elsewhere(&self, id: TaskId, site: SiteId) {
        self.elsewhere.insert(id, site);
    }

    /// Returns at which other site a task runs, if that is remembered.
    pub fn elsewhere(&self, id: TaskId) -> Option<SiteId> {
        self.elsewhere.get(&id)
    }

    fn begin(&self, id: TaskId, stop: CancellationToken) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).insert(id, stop);
    }

    fn end(&self, id: TaskId) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }
}

/// Claims and works on tasks, and ends those whose deadline passes while they wait, until the server ends.
pub async fn run(app: AppState) {
    if app.config.tasks.workers > 0 {
        tokio::join!(claim(app.clone()), end_overdue(app));
    }
}

/// Also while no worker is free.
async fn end_overdue(app: AppState) {
    while app.stopping.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
        match app.catalog.end_overdue_tasks().await {
            Ok(0) => {}
            Ok(_) => app.tasks.ended.notify_waiters(),
            Err(error) => tracing::warn!(%error, "cannot end tasks behind their deadline; will try again"),
        }
    }
}

async fn claim(app: AppState) {
    let room = Arc::new(Semaphore::new(app.config.tasks.workers));
    // One worker is left for others, who would else wait until a long task has ended.
    let per_owner = u32::try_from(app.config.tasks.workers.saturating_sub(1).max(1)).unwrap_or(u32::MAX);
    let kinds: Vec<String> = KINDS.iter().map(|kind| (*kind).to_owned()).collect();
    loop {
        let room = tokio::select! {
            () = app.stopping.cancelled() => return,
            room = room.clone().acquire_owned() => room,
        };
        let Ok(room) = room else { return };
        let claimed = match app.lease.current() {
            Ok(holder) => {
                let claimed = app.catalog.claim_task(holder, &kinds, Some(per_owner)).await;
                claimed.map(|task| task.map(|task| (holder, task)))
            }
            // Without a lease nothing may be claimed; it comes back by itself.
            Err(_) => Ok(None),
        };
        match claimed {
            Ok(Some((holder, task))) => {
                let work = work_on(app.clone(), holder, task);
                app.background.spawn(async move {
                    work.await;
                    drop(room);
                });
                continue;
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "cannot look for tasks; will look again"),
        }
        drop(room);
        tokio::select! {
            () = app.stopping.cancelled() => return,
            () = app.tasks.wake.notified() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// One attempt at one task.
pub(crate) struct Attempt {
    app: AppState,
    task: Task,
    holder: TaskHolder,
    progress: Progress,
    stop: CancellationToken,
    acting: Acting,
    flow: Flow,
    verify: Verification,
    activity: Activity,
    /// After how long it is done again, though it ends well.
    again: OnceLock<Duration>,
    /// Why nothing more can be brought: a store is full.
    full: OnceLock<ApiError>,
}

async fn work_on(app: AppState, holder: TaskHolder, task: Task) {
    let id = task.id;
    let stop = app.stopping.child_token();
    app.tasks.begin(id, stop.clone());
    let progress = Progress::new(&task);
    let acting = Acting::User(task.caller.clone());
    let flow = Flow::new(app.traffic.clone(), None, None);
    let activity = Activity::new(progress.bytes_done());
    let verify = Verification::default();
    let (again, full) = (OnceLock::new(), OnceLock::new());
    let mut attempt = Attempt {
        app: app.clone(),
        task,
        holder,
        progress,
        stop,
        acting,
        flow,
        verify,
        activity,
        again,
        full,
    };
    let spec = attempt.begin();
    let attempt = attempt;
    tracing::info!(task = %id, kind = attempt.task.kind, attempt = attempt.task.attempt, "task begun");
    let outcome = tokio::select! {
        outcome = attempt.work(spec) => Some(outcome),
        // Whatever the work was waiting for is dropped; each of its steps may be repeated.
        () = attempt.stop.cancelled() => None,
        outcome = attempt.keep_records() => outcome.map(Err),
    };
    app.tasks.end(id);
    let Some(outcome) = outcome else {
        if app.stopping.is_cancelled() {
            attempt.hand_back().await;
        }
        tracing::info!(task = %id, "work on a task stopped");
        return;
    };
    attempt.finish(outcome).await;
}

impl Attempt {
    /// Finds out what is to be done and for whom other sites are asked.
    fn begin(&mut self) -> Result<TaskSpec> {
        let stored = Stored::read(&self.task.spec)?;
        let owner = self.task.caller.user.as_ref().map(ToString::to_string);
        self.flow = Flow::new(self.app.traffic.clone(), stored.limit, owner);
        self.verify = stored.verify;
        if let Some(delegation) = stored.delegation {
            // The site that signed it may have been removed meanwhile, or its time be over.
            delegated_here(&self.app, &delegation)?;
            self.acting = Acting::Task(delegation);
        }
        Ok(stored.spec)
    }

    /// Finds out what the receipt lists already, and what of it the step does again that the last attempt did not end.
    async fn look_at_receipt(&self) -> Result<()> {
        let (catalog, caller, id) = (&self.app.catalog, system_caller(), self.task.id);
        let listed = catalog.task_copy_sums(&caller, id).await?.count;
        let mut of_this_step = None;
        if self.task.attempt > 1 {
            let mut known = HashSet::new();
            let mut after = self.progress.listed();
            while let Some((last, copies)) = catalog.task_copies(&caller, id, after).await? {
                known.extend(copies.into_iter().map(|copy| (copy.path, copy.version)));
                after = last;
            }
            of_this_step = Some(known);
        }
        self.progress.listed_before(listed, of_this_step);
        Ok(())
    }

    async fn work(&self, spec: Result<TaskSpec>) -> Result<()> {
        let spec = spec?;
        if brings_bytes(&spec) {
            self.look_at_receipt().await?;
        }
        match spec {
            TaskSpec::Verify { path, repair, unverified } => {
                verify::run(self, &path, repair, unverified).await
            }
            TaskSpec::Delete { path } => delete::run(self, &path).await,
            TaskSpec::Copy { from, to, .. } => copy::run(self, &from, &to).await,
            TaskSpec::Sync { from, to, compare, delete, .. } => {
                copy::sync(self, &from, &to, compare, delete).await
            }
            TaskSpec::Replicate { path, from, .. } => replicate::run(self, &path, from.as_deref()).await,
            TaskSpec::Evict { path, .. } => evict::run(self, &path).await,
            TaskSpec::Empty { store } => empty::run(self, &store).await,
            TaskSpec::Import(import) => import::run(self, &import).await,
            TaskSpec::Extract { path } => extract::run(self, &path).await,
            _ => Err(ApiError::new(ErrorCode::Unsupported, "this release does not know this kind of task")),
        }
    }

    /// Returns a page of what is at a path and below it, with the copies, as its user sees it.
    async fn list(&self, path: &ObjectPath, after: Option<String>, limit: usize) -> Result<Page<Listed>> {
        let mut options = ListOptions::default();
        options.after = after;
        options.limit = limit;
        options.recursive = true;
        options.replicas = true;
        self.app.catalog.list(&self.task.caller, path, options).await.on_path(path)
    }

    /// Returns what lets the task publish in the name of a user of another site.
    fn delegation(&self) -> Option<String> {
        match &self.acting {
            Acting::Task(text) => Some(text.clone()),
            _ => None,
        }
    }

    /// Returns what brings bytes for this task. `first` is the site that is asked before others.
    fn fetch(&self, goal: Become, first: Option<SiteId>) -> Fetch {
        let task = ForTask { id: self.task.id, safe: self.progress.safe() };
        let fetch = Fetch::new(self.app.clone(), goal, self.acting.clone(), first, self.flow.clone());
        fetch.for_task(task).verifying(self.verify)
    }

    /// Says that the task is done again from the beginning, so long after this attempt has ended.
    fn do_again_in(&self, wait: Duration) {
        // Said once in an attempt.
        let _ = self.again.set(wait);
    }

    /// Notes an item that was not done. If it may be done later, this step is repeated by the next attempt, until some
    /// attempts in a row have achieved nothing.
    fn failed(&self, path: &ObjectPath, outcome: &str, error: &ApiError) {
        self.progress.failed(path, outcome, error);
        if error.is_retryable() && self.task.vain < PATIENT_ATTEMPTS {
            self.progress.repeat(error.clone().context(path));
        }
    }

    /// The same of one whose bytes were not brought. If there was no room for them, there is none for the others either, and
    /// the attempt ends with its step.
    fn not_brought(&self, path: &ObjectPath, error: &ApiError) {
        if error.code() == ErrorCode::NoSpace {
            let _ = self.full.set(error.clone());
        }
        self.failed(path, "failed", error);
    }

    /// Goes on only if no store was found full.
    ///
    /// # Errors
    /// `NoSpace`. What failed is recorded with the step, which is not done with.
    fn has_room(&self) -> Result<()> {
        match self.full.get() {
            Some(error) => {
                self.progress.step(self.progress.after());
                Err(error.clone())
            }
            None => Ok(()),
        }
    }

    /// Ends a step behind which a repetition goes on.
    ///
    /// # Errors
    /// `NoSpace`, or that of an item of the step which may be done later: the step has to be repeated.
    fn step(&self, after: Option<String>) -> Result<()> {
        self.has_room()?;
        match self.progress.to_repeat() {
            Some(error) => Err(error),
            None => {
                self.progress.step(after);
                Ok(())
            }
        }
    }

    /// Records progress each second. Ends with an error that ends the attempt, or with nothing if the task is not ours
    /// any more.
    async fn keep_records(&self) -> Option<ApiError> {
        loop {
            tokio::time::sleep(RECORD_EVERY).await;
            if let Some(deadline) = self.task.deadline.filter(|deadline| *deadline <= Timestamp::now()) {
                return Some(
                    ApiError::new(ErrorCode::Timeout, format!("its deadline {deadline} is over")).permanent(),
                );
            }
            match self.record().await {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) if error.code() == ErrorCode::LeaseExpired => return None,
                Err(error) => tracing::warn!(task = %self.task.id, %error, "cannot record a task's progress"),
            }
        }
    }

    /// Returns what has not been reported yet.
    fn report(&self, has_ended: bool) -> TaskReport {
        let mut report = self.progress.take();
        let progress = &mut report.progress;
        progress.activity = Some(self.activity.look(&self.flow, progress.bytes_done, has_ended));
        progress.bytes_done += self.flow.meter().bytes_in_hand();
        report
    }

    /// Records how far the task is; tells whether to go on.
    async fn record(&self) -> Result<bool> {
        let report = self.report(false);
        match self.app.catalog.record_progress(self.task.id, self.holder, report.clone()).await {
            Ok(task) => Ok(task.state == TaskState::Running),
            Err(error) => {
                self.progress.give_back(report);
                Err(error.into())
            }
        }
    }

    /// Gives the task to the next server at an orderly end.
    async fn hand_back(&self) {
        let fault = TaskFault { code: ErrorCode::Interrupted, detail: "the server was stopped".to_owned() };
        let report = self.report(true);
        let back = TaskOutcome::Again(fault);
        if let Err(error) = self.app.catalog.finish_task(self.task.id, self.holder, report, back).await {
            tracing::info!(task = %self.task.id, %error, "a task was not handed back; it is taken over when the lease lapses");
        }
    }

    async fn finish(&self, outcome: Result<()>) {
        let outcome = match (outcome, self.again.get()) {
            (Ok(()), Some(wait)) => {
                self.progress.complete();
                TaskOutcome::Later(*wait, None)
            }
            (Ok(()), None) => {
                self.progress.complete();
                match self.progress.has_failures() {
                    false => TaskOutcome::Succeeded,
                    true => TaskOutcome::Partial,
                }
            }
            (Err(error), again) => {
                let fault = TaskFault { code: error.code(), detail: error.detail().to_owned() };
                match (error.is_retryable(), again) {
                    (true, Some(wait)) => TaskOutcome::Later(*wait, Some(fault)),
                    (true, None) => TaskOutcome::Again(fault),
                    (false, _) => TaskOutcome::Failed(fault),
                }
            }
        };
        let report = self.report(true);
        for attempt in 1..=FINISH_TRIES {
            let finished = self
                .app
                .catalog
                .finish_task(self.task.id, self.holder, report.clone(), outcome.clone())
                .await;
            match finished {
                Ok(task) => {
                    tracing::info!(task = %task.id, state = %task.state, "task attempt ended");
                    self.app.tasks.wake();
                    self.app.tasks.ended.notify_waiters();
                    return;
                }
                Err(error) if error.code().is_retryable() && attempt < FINISH_TRIES => {
                    tokio::time::sleep(RECORD_EVERY * attempt).await;
                }
                Err(error) => {
                    tracing::warn!(task = %self.task.id, %error, "cannot record a task's end; it is repeated when the lease lapses");
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_back_and_a_newer_form_is_refused() {
        let verify = TaskSpec::Verify { path: "/s/a".parse().unwrap(), repair: false, unverified: false };
        let stored = Stored { label: Some("x".into()), ..Stored::new(verify) };
        let value = stored.write().unwrap();
        assert_eq!(
            value,
            serde_json::json!({"v": 1, "spec": {"kind": "verify", "path": "/s/a"}, "label": "x"})
        );
        assert_eq!(Stored::read(&value).unwrap(), stored);
        let evict = TaskSpec::Evict { path: "/s/a".parse().unwrap(), from: "baltic".into() };
        let limit = Some("200Mbit/s".parse().unwrap());
        let verify = Verification::Medium;
        let stored = Stored { delegation: Some("eyJ".into()), limit, verify, ..Stored::new(evict) };
        let value = stored.write().unwrap();
        let expected = serde_json::json!({
            "v": 1, "spec": {"kind": "evict", "path": "/s/a", "from": "baltic"}, "delegation": "eyJ",
            "limit": "200Mbit/s", "verify": "medium"
        });
        assert_eq!(value, expected);
        assert_eq!(Stored::read(&value).unwrap(), stored);
        assert_eq!(Stored::read(&serde_json::json!({"v": 2})).unwrap_err().code(), ErrorCode::Unsupported);
        assert_eq!(Stored::read(&serde_json::json!({"v": 1})).unwrap_err().code(), ErrorCode::Integrity);
    }
}
