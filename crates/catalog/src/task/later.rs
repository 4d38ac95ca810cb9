//! Tasks that are done again and again: they wait in the queue from one time to the next.

use std::time::Duration;

use percale_core::ids::TaskId;
use percale_core::state::TaskState;

use super::requeue;
use crate::batch::{Batch, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Tx};
use crate::error::Result;
use crate::model::{Task, TaskFault};
use crate::rows::{Lock, task};

impl Catalog {
    /// Ends the wait of a queued task. Tells whether it waited. This call is the server's own.
    pub async fn hasten_task(&self, id: TaskId) -> Result<bool> {
        self.change(Hasten(id)).await
    }
}

struct Hasten(TaskId);

impl Change for Hasten {
    type Draft = bool;
    type Out = bool;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<bool> {
        let now = batch.now();
        let task = task::by_id(batch.tx, self.0, Lock::Update).await?;
        let waits = |task: &Task| task.state == TaskState::Queued && task.not_before > now;
        let Some(mut task) = task.filter(waits) else { return Ok(false) };
        (task.not_before, task.changed) = (now, now);
        task::update(batch.tx, &task).await?;
        Ok(true)
    }

    fn finish(self, waited: bool, _written: &Written) -> bool {
        waited
    }
}

/// Puts a running task back into the queue to be done again from the beginning. Of what happened to it before only the
/// last is kept, since it goes on for ever.
pub(super) async fn later<T: Tx>(
    batch: &mut Batch<'_, T>,
    task: &mut Task,
    wait: Duration,
    fault: Option<TaskFault>,
) -> Result<()> {
    task::forget_turns(batch.tx, task.id).await?;
    (task.cursor, task.attempt, task.vain) = (None, 0, 0);
    requeue(batch, task, wait, fault).await
}
