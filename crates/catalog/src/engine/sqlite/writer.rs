//! The one thread that writes: it takes all changes that wait, commits them together, and answers each.

use std::panic::{AssertUnwindSafe, catch_unwind};

use futures::executor::block_on;
use tokio::sync::mpsc;

use super::SqliteTx;
use crate::batch::{IdCache, Written};
use crate::engine::{After, Attempts, Job, Limits, Notify, run_jobs};
use crate::error::{Error, Fault, Result};

type Jobs = Vec<Box<dyn Job<SqliteTx>>>;

/// Works until the queue is closed and empty.
pub(super) fn run(
    tx: SqliteTx,
    mut queue: mpsc::Receiver<Box<dyn Job<SqliteTx>>>,
    batch: usize,
    limits: Limits,
    notify: Notify,
) {
    let mut ids = IdCache::default();
    let mut held: Option<Box<dyn Job<SqliteTx>>> = None;
    while let Some(first) = held.take().or_else(|| queue.blocking_recv()) {
        let mut jobs: Jobs = vec![first];
        while jobs.len() < batch && !jobs.iter().any(|job| job.is_alone()) {
            let Ok(next) = queue.try_recv() else { break };
            if next.is_alone() {
                held = Some(next);
                break;
            }
            jobs.push(next);
        }
        work(&tx, jobs, &mut ids, limits, &notify);
    }
}

fn work(tx: &SqliteTx, mut jobs: Jobs, ids: &mut IdCache, limits: Limits, notify: &Notify) {
    let Some(oldest) = jobs.iter().map(|job| job.submitted()).min() else { return };
    let mut attempts = Attempts::new(limits, oldest);
    loop {
        let error = match attempt(tx, &mut jobs, ids) {
            Ok(written) => {
                for job in jobs {
                    job.deliver(&written);
                }
                if written.has_records() {
                    notify.changed();
                }
                return;
            }
            Err(error) => error,
        };
        ids.clear();
        match attempts.after(&error, jobs.len()) {
            After::Repeat(pause) => std::thread::sleep(pause),
            After::Separate => {
                for job in jobs {
                    work(tx, vec![job], ids, limits, notify);
                }
                return;
            }
            After::GiveUp => {
                tracing::warn!(%error, jobs = jobs.len(), "changes of the catalog failed");
                let error = attempts.last_word(error);
                for job in jobs {
                    job.fail(error.clone());
                }
                return;
            }
        }
    }
}

fn attempt(tx: &SqliteTx, jobs: &mut Jobs, ids: &mut IdCache) -> Result<Written> {
    tx.begin_write()?;
    // A fault of ours in one change must not end the thread that all others need.
    let outcome = catch_unwind(AssertUnwindSafe(|| block_on(run_jobs(tx, jobs, ids))));
    let outcome = outcome.unwrap_or_else(|_| {
        Err(Error::internal("a change of the catalog broke off").with_fault(Fault::Statement))
    });
    match outcome {
        Ok(written) => match tx.commit() {
            Ok(()) => Ok(written),
            Err(error) => {
                tx.roll_back()?;
                Err(error)
            }
        },
        Err(error) => {
            tx.roll_back()?;
            Err(error)
        }
    }
}
