//! Tasks (docs/design/tasks.md).

mod later;

use std::time::Duration;

use percale_core::access::Caller;
use percale_core::ids::{LeaseId, TaskId};
use percale_core::state::TaskState;
use percale_core::{ErrorCode, Timestamp};
use serde_json::json;

use crate::batch::{Batch, Wants, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Query, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{
    LeaseKind, MAX_TASK_ITEMS, MAX_VAIN_ATTEMPTS, NewTask, Page, Task, TaskCopies, TaskCopy, TaskEvent,
    TaskFault, TaskFilter, TaskHolder, TaskItem, TaskOutcome, TaskProgress, TaskReport,
};
use crate::publish::prove_lease;
use crate::rows::Lock;
use crate::rows::publish::actor;
use crate::rows::{lease, task};

/// Longest wait before a new attempt.
const MAX_WAIT: Duration = Duration::from_secs(300);
/// Tasks that are ended together, at most.
const MAX_ENDED: usize = 100;
/// Most tasks or items in a page.
const MAX_PAGE: usize = 1000;

/// Tasks (docs/design/tasks.md). A task is its owner's and the administrators'; to all others it does not exist.
impl Catalog {
    /// Submits a task, or returns the one that was submitted with the same idempotency key or id.
    ///
    /// # Errors
    /// `InvalidRequest` for somebody who did not sign in, `Conflict` if the id is another owner's task.
    pub async fn submit_task(&self, caller: &Caller, new: NewTask) -> Result<Task> {
        self.change(Submit { caller: caller.clone(), new }).await
    }

    /// Returns a task.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn task(&self, caller: &Caller, id: TaskId) -> Result<Task> {
        self.ask(OfCaller { caller: caller.clone(), id }).await
    }

    /// Returns the caller's tasks, all of them for an administrator, the newest first; at most 1000 in a page.
    pub async fn tasks(
        &self,
        caller: &Caller,
        filter: TaskFilter,
        after: Option<String>,
        limit: usize,
    ) -> Result<Page<Task>> {
        let wrong = |_| Error::invalid("the page's cursor is not one of a list of tasks");
        let before = after.map(|text| text.parse()).transpose().map_err(wrong)?;
        let limit = limit.clamp(1, MAX_PAGE);
        self.ask(List { caller: caller.clone(), filter, before, limit }).await
    }

    /// Takes a queued task of one of these kinds (of any, without a kind), if one may run now.
    ///
    /// - Owners take turns: it is one of the owner of whom the fewest tasks run, then of the one whose last turn is the
    ///   longest ago; of these the task that has waited longest.
    /// - Of no owner do more than `per_owner` run under this lease.
    /// - Those behind their deadline are passed over ([`Catalog::end_overdue_tasks`]).
    ///
    /// # Errors
    /// `LeaseExpired`.
    pub async fn claim_task(
        &self,
        holder: TaskHolder,
        kinds: &[String],
        per_owner: Option<u32>,
    ) -> Result<Option<Task>> {
        self.change(Claim { holder, kinds: kinds.to_vec(), per_owner }).await
    }

    /// Ends tasks that wait, for a worker or for another attempt, though their deadline is over. Returns how many.
    pub async fn end_overdue_tasks(&self) -> Result<usize> {
        let mut ended = 0;
        // Mostly there is none, and nothing is written.
        while self.ask(IsAnyOverdue).await? {
            match self.change(EndOverdue).await? {
                // Another server is about to.
                0 => break,
                count => ended += count,
            }
        }
        Ok(ended)
    }

    /// Records what was done, and returns the task.
    ///
    /// # Errors
    /// `LeaseExpired` if the lease is lost or the task does not run under it any more, for example since it was
    /// cancelled: the worker stops.
    pub async fn record_progress(&self, id: TaskId, holder: TaskHolder, report: TaskReport) -> Result<Task> {
        self.change(Progress { id, holder, report, outcome: None }).await
    }

    /// Ends an attempt.
    ///
    /// # Errors
    /// As [`Catalog::record_progress`].
    pub async fn finish_task(
        &self,
        id: TaskId,
        holder: TaskHolder,
        report: TaskReport,
        outcome: TaskOutcome,
    ) -> Result<Task> {
        self.change(Progress { id, holder, report, outcome: Some(outcome) }).await
    }

    /// Cancels a task that has not ended.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` if it has ended.
    pub async fn cancel_task(&self, caller: &Caller, id: TaskId) -> Result<Task> {
        self.change(Steer { caller: caller.clone(), id, to: TaskState::Cancelled }).await
    }

    /// Puts a task that was not wholly successful back into the queue, with its attempts counted anew. It goes on
    /// from the beginning: what failed is not behind the recorded cursor.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` if it has not ended or was successful.
    pub async fn retry_task(&self, caller: &Caller, id: TaskId) -> Result<Task> {
        self.change(Steer { caller: caller.clone(), id, to: TaskState::Queued }).await
    }

    /// Returns the items that did not succeed, at most 1000 in a page.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn task_items(
        &self,
        caller: &Caller,
        id: TaskId,
        after: Option<String>,
        limit: usize,
    ) -> Result<Page<TaskItem>> {
        let wrong = |_| Error::invalid("the page's cursor is not one of a list of items");
        let after: u64 = after.map(|text| text.parse()).transpose().map_err(wrong)?.unwrap_or_default();
        self.ask(Items {
            of: OfCaller { caller: caller.clone(), id },
            after,
            limit: limit.clamp(1, MAX_PAGE),
        })
        .await
    }

    /// Returns how much a task has brought, over all its attempts.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn task_copy_sums(&self, caller: &Caller, id: TaskId) -> Result<TaskCopies> {
        self.ask(CopySums { of: OfCaller { caller: caller.clone(), id } }).await
    }

    /// Returns some of what a task has brought behind copy number `after` (0: from the first one), at most
    /// [`MAX_TASK_COPIES`](crate::MAX_TASK_COPIES), with the number of the last one; nothing at the end.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn task_copies(
        &self,
        caller: &Caller,
        id: TaskId,
        after: u64,
    ) -> Result<Option<(u64, Vec<TaskCopy>)>> {
        self.ask(Copies { of: OfCaller { caller: caller.clone(), id }, after }).await
    }

    /// Returns what happened to a task behind event number `after` (0: from the beginning), at most 10 000 events.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn task_events(&self, caller: &Caller, id: TaskId, after: u64) -> Result<Vec<TaskEvent>> {
        self.ask(Events { of: OfCaller { caller: caller.clone(), id }, after }).await
    }
}

fn not_found(id: TaskId) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no task {id}"))
}

fn is_of(caller: &Caller, task: &Task) -> bool {
    caller.is_admin() || (caller.user.is_some() && caller.user == task.caller.user)
}

struct Submit {
    caller: Caller,
    new: NewTask,
}

impl Change for Submit {
    type Draft = Task;
    type Out = Task;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Task> {
        let Self { caller, new } = self;
        if caller.user.is_none() {
            return Err(Error::invalid("a task needs an owner: sign in"));
        }
        if !new.spec.is_object() || new.kind.is_empty() || new.kind.len() > 40 {
            return Err(Error::invalid(
                "a task needs a kind of 1 to 40 bytes and a specification that is an object",
            ));
        }
        let is_bad = |key: &String| key.is_empty() || key.len() > 255 || key.chars().any(char::is_control);
        if new.idempotency_key.as_ref().is_some_and(is_bad) {
            return Err(Error::invalid("an idempotency key has 1 to 255 bytes and no control characters"));
        }
        let owner = actor(caller);
        let key = new.idempotency_key.as_deref();
        if let Some(key) = key
            && let Some(first) = task::by_key(batch.tx, &owner, key).await?
        {
            return Ok(first);
        }
        if let Some(id) = new.id
            && let Some(first) = task::by_id(batch.tx, id, Lock::None).await?
        {
            if actor(&first.caller) == owner {
                return Ok(first);
            }
            let message = format!("the id {id} is another's task");
            return Err(Error::new(ErrorKind::Conflict { version: None }, message));
        }
        let now = batch.now();
        let task = Task {
            id: new.id.unwrap_or_else(TaskId::new),
            kind: new.kind.clone(),
            state: TaskState::Queued,
            caller: caller.clone(),
            spec: new.spec.clone(),
            cursor: None,
            progress: TaskProgress::default(),
            fault: None,
            lease: None,
            attempt: 0,
            vain: 0,
            not_before: now,
            deadline: new.deadline,
            created: now,
            changed: now,
        };
        task::insert(batch.tx, &task, &owner, key).await?;
        task::insert_event(batch.tx, task.id, now, "submitted", &json!({ "v": 1 })).await?;
        Ok(task)
    }

    fn finish(self, task: Task, _written: &Written) -> Task {
        task
    }
}

struct Claim {
    holder: TaskHolder,
    kinds: Vec<String>,
    per_owner: Option<u32>,
}

impl Change for Claim {
    type Draft = Option<Task>;
    type Out = Option<Task>;

    fn want(&self, wants: &mut Wants) {
        wants.lease(self.holder.lease);
    }

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Option<Task>> {
        let TaskHolder { lease, fence } = self.holder;
        prove_lease(batch, lease, fence).await?;
        let now = batch.now();
        let next = task::next(batch.tx, now, self.kinds.clone(), lease, self.per_owner).await?;
        let Some(mut task) = next else { return Ok(None) };
        task.state = TaskState::Running;
        task.lease = Some(lease);
        task.attempt += 1;
        // Until it achieves something; a server that dies cannot say any more.
        task.vain += 1;
        task.changed = now;
        task::update(batch.tx, &task).await?;
        task::claimed(batch.tx, task.id, now).await?;
        let detail = json!({ "v": 1, "attempt": task.attempt, "lease": lease });
        task::insert_event(batch.tx, task.id, now, "claimed", &detail).await?;
        Ok(Some(task))
    }

    fn finish(self, task: Option<Task>, _written: &Written) -> Option<Task> {
        task
    }
}

struct IsAnyOverdue;

impl Query for IsAnyOverdue {
    type Out = bool;

    async fn run<T: Tx>(&self, tx: &T) -> Result<bool> {
        task::is_any_overdue(tx, tx.now()).await
    }
}

struct EndOverdue;

impl Change for EndOverdue {
    type Draft = usize;
    type Out = usize;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<usize> {
        let overdue = task::overdue(batch.tx, batch.now(), MAX_ENDED).await?;
        let count = overdue.len();
        for mut task in overdue {
            let detail = "its deadline passed before it could be done".to_owned();
            let fault = TaskFault { code: ErrorCode::Timeout, detail };
            end(batch, &mut task, TaskState::Failed, Some(fault)).await?;
        }
        Ok(count)
    }

    fn finish(self, count: usize, _written: &Written) -> usize {
        count
    }
}

/// Ends a task in one of its final states, and with it the leases of what it has brought in part: whoever takes them over
/// removes that.
async fn end<T: Tx>(
    batch: &mut Batch<'_, T>,
    task: &mut Task,
    state: TaskState,
    fault: Option<TaskFault>,
) -> Result<()> {
    let now = batch.now();
    task.state = state;
    task.fault = fault;
    task.lease = None;
    task.changed = now;
    task::update(batch.tx, task).await?;
    lease::expire(batch.tx, LeaseKind::Task, &task.id.to_string(), now).await?;
    let detail = json!({ "v": 1, "fault": task.fault, "progress": task.progress });
    task::insert_event(batch.tx, task.id, now, state.as_str(), &detail).await
}

/// Puts a running task back into the queue, or ends it if too many attempts in a row achieved nothing.
async fn again<T: Tx>(batch: &mut Batch<'_, T>, task: &mut Task, fault: TaskFault) -> Result<()> {
    if task.vain >= MAX_VAIN_ATTEMPTS {
        return end(batch, task, TaskState::Failed, Some(fault)).await;
    }
    let wait = Duration::from_secs(1 << task.vain.saturating_sub(1).min(10)).min(MAX_WAIT);
    requeue(batch, task, wait, Some(fault)).await
}

async fn requeue<T: Tx>(
    batch: &mut Batch<'_, T>,
    task: &mut Task,
    wait: Duration,
    fault: Option<TaskFault>,
) -> Result<()> {
    let now = batch.now();
    task.state = TaskState::Queued;
    task.lease = None;
    task.not_before = now.after(wait);
    task.changed = now;
    task.fault = fault;
    task::update(batch.tx, task).await?;
    let detail = json!({ "v": 1, "not_before": task.not_before, "fault": task.fault });
    task::insert_event(batch.tx, task.id, now, "requeued", &detail).await
}

/// Puts the running tasks of a lease back into the queue: after a wait if its holder died, at once if it gave the lease
/// back, which does not count as an attempt.
pub(crate) async fn requeue_of_lease<T: Tx>(
    batch: &mut Batch<'_, T>,
    lease: LeaseId,
    died: bool,
) -> Result<()> {
    for mut task in task::under_lease(batch.tx, lease).await? {
        if died {
            let detail = "the server that worked on it stopped".to_owned();
            again(batch, &mut task, TaskFault { code: ErrorCode::LeaseExpired, detail }).await?;
        } else {
            task.attempt = task.attempt.saturating_sub(1);
            task.vain = task.vain.saturating_sub(1);
            requeue(batch, &mut task, Duration::ZERO, None).await?;
        }
    }
    Ok(())
}

struct Progress {
    id: TaskId,
    holder: TaskHolder,
    report: TaskReport,
    outcome: Option<TaskOutcome>,
}

impl Change for Progress {
    type Draft = Task;
    type Out = Task;

    fn want(&self, wants: &mut Wants) {
        wants.lease(self.holder.lease);
    }

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Task> {
        let Self { id, holder, report, outcome } = self;
        prove_lease(batch, holder.lease, holder.fence).await?;
        let task = task::by_id(batch.tx, *id, Lock::Update).await?;
        let mut task = task.ok_or_else(|| not_found(*id))?;
        if task.state != TaskState::Running || task.lease != Some(holder.lease) {
            let message = format!("task {id} does not run under lease {} any more", holder.lease);
            return Err(Error::new(ErrorKind::LeaseExpired, message));
        }
        if report.begins_anew {
            task::forget_items(batch.tx, *id).await?;
        }
        if !report.items.is_empty() {
            let known = task::item_count(batch.tx, *id).await?;
            let room = usize::try_from(MAX_TASK_ITEMS.saturating_sub(known)).unwrap_or(usize::MAX);
            let kept = report.items.get(..room.min(report.items.len())).unwrap_or_default();
            task::insert_items(batch.tx, *id, known, kept).await?;
        }
        if !report.copies.is_empty() {
            task::insert_copies(batch.tx, *id, &report.copies).await?;
        }
        if report.cursor.is_some() {
            task.cursor = report.cursor.clone();
        }
        task.progress = report.progress.clone();
        if report.is_further {
            task.vain = 0;
        }
        match outcome {
            None => {
                task.changed = batch.now();
                task::update(batch.tx, &task).await?;
            }
            Some(TaskOutcome::Succeeded) => end(batch, &mut task, TaskState::Succeeded, None).await?,
            Some(TaskOutcome::Partial) => end(batch, &mut task, TaskState::Partial, None).await?,
            Some(TaskOutcome::Failed(fault)) => {
                end(batch, &mut task, TaskState::Failed, Some(fault.clone())).await?;
            }
            Some(TaskOutcome::Again(fault)) => again(batch, &mut task, fault.clone()).await?,
            Some(TaskOutcome::Later(wait, fault)) => {
                later::later(batch, &mut task, *wait, fault.clone()).await?
            }
        }
        Ok(task)
    }

    fn finish(self, task: Task, _written: &Written) -> Task {
        task
    }
}

struct Steer {
    caller: Caller,
    id: TaskId,
    to: TaskState,
}

impl Change for Steer {
    type Draft = Task;
    type Out = Task;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Task> {
        let Self { caller, id, to } = self;
        let task = task::by_id(batch.tx, *id, Lock::Update).await?;
        let mut task = task.filter(|task| is_of(caller, task)).ok_or_else(|| not_found(*id))?;
        // A running task also becomes queued when its server dies, but its owner may only retry one that has ended.
        let may = match to {
            TaskState::Queued => task.state.is_final() && task.state.may_become(*to),
            to => task.state.may_become(*to),
        };
        if !may {
            let message = format!("task {id} is {} and cannot become {to}", task.state);
            return Err(Error::new(ErrorKind::Conflict { version: None }, message));
        }
        if *to == TaskState::Cancelled {
            end(batch, &mut task, TaskState::Cancelled, None).await?;
            return Ok(task);
        }
        let now: Timestamp = batch.now();
        task.state = TaskState::Queued;
        (task.cursor, task.fault, task.progress) = (None, None, TaskProgress::default());
        // Attempts are counted on: what an earlier one made is not taken for somebody else's.
        (task.vain, task.not_before, task.changed) = (0, now, now);
        // To try again what came too late is to want it late.
        task.deadline = task.deadline.filter(|deadline| *deadline > now);
        task::forget_items(batch.tx, *id).await?;
        task::update(batch.tx, &task).await?;
        task::insert_event(batch.tx, *id, now, "retried", &json!({ "v": 1 })).await?;
        Ok(task)
    }

    fn finish(self, task: Task, _written: &Written) -> Task {
        task
    }
}

struct OfCaller {
    caller: Caller,
    id: TaskId,
}

impl Query for OfCaller {
    type Out = Task;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Task> {
        let task = task::by_id(tx, self.id, Lock::None).await?;
        task.filter(|task| is_of(&self.caller, task)).ok_or_else(|| not_found(self.id))
    }
}

struct List {
    caller: Caller,
    filter: TaskFilter,
    before: Option<TaskId>,
    limit: usize,
}

impl Query for List {
    type Out = Page<Task>;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Page<Task>> {
        let Self { caller, filter, before, limit } = self;
        if caller.user.is_none() {
            return Ok(Page { items: Vec::new(), next: None, position: None });
        }
        let owner = (!caller.is_admin()).then(|| actor(caller));
        let states = filter.states.iter().map(|state| state.as_str().to_owned()).collect();
        let items = task::list(tx, owner, *before, filter.kind.clone(), states, *limit).await?;
        let next = items.last().filter(|_| items.len() == *limit).map(|task| task.id.to_string());
        Ok(Page { items, next, position: None })
    }
}

struct Items {
    of: OfCaller,
    after: u64,
    limit: usize,
}

impl Query for Items {
    type Out = Page<TaskItem>;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Page<TaskItem>> {
        self.of.run(tx).await?;
        let items = task::items(tx, self.of.id, self.after, self.limit).await?;
        let next = items.last().filter(|_| items.len() == self.limit).map(|(number, _)| number.to_string());
        Ok(Page { items: items.into_iter().map(|(_, item)| item).collect(), next, position: None })
    }
}

struct Events {
    of: OfCaller,
    after: u64,
}

impl Query for Events {
    type Out = Vec<TaskEvent>;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<TaskEvent>> {
        self.of.run(tx).await?;
        task::events(tx, self.of.id, self.after).await
    }
}

struct CopySums {
    of: OfCaller,
}

impl Query for CopySums {
    type Out = TaskCopies;
    async fn run<T: Tx>(&self, tx: &T) -> Result<TaskCopies> {
        self.of.run(tx).await?;
        task::copy_sums(tx, self.of.id).await
    }
}

struct Copies {
    of: OfCaller,
    after: u64,
}

impl Query for Copies {
    type Out = Option<(u64, Vec<TaskCopy>)>;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Self::Out> {
        self.of.run(tx).await?;
        task::copies(tx, self.of.id, self.after).await
    }
}
