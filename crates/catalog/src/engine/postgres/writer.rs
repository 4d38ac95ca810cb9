//! A task that writes: it takes all changes that wait, commits them together, and answers each.
//!
//! Two of them take turns, so that one prepares its transaction while the other's reaches the disk. They are to each other
//! what two servers are.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::Pool;
use futures::FutureExt;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::PostgresTx;
use super::statistics::Statistics;
use super::tx::{Mode, convert, convert_pool};
use crate::batch::{IdCache, Written};
use crate::engine::{After, Attempts, Job, Limits, Notify, run_jobs};
use crate::error::{Error, ErrorKind, Fault, Result};

type Jobs = Vec<Box<dyn Job<PostgresTx>>>;

/// How many transactions there are between two removals of old outcomes.
const PRUNE_EVERY: u64 = 2000;
/// For how long outcomes are kept: far longer than anybody asks for one.
const KEEP_OUTCOMES: Duration = Duration::from_secs(3600);

/// The changes that wait, for all writers.
pub(super) struct Queue {
    receiver: mpsc::Receiver<Box<dyn Job<PostgresTx>>>,
    /// Taken from the queue, and must not share the transaction of those before it.
    held: Option<Box<dyn Job<PostgresTx>>>,
}

impl Queue {
    pub fn new(receiver: mpsc::Receiver<Box<dyn Job<PostgresTx>>>) -> Self {
        Self { receiver, held: None }
    }

    /// Takes what waits, at most `batch` changes, or waits for one. Nothing when the queue is closed and empty.
    async fn take(&mut self, batch: usize) -> Option<Jobs> {
        let first = match self.held.take() {
            Some(held) => held,
            None => self.receiver.recv().await?,
        };
        let mut jobs: Jobs = vec![first];
        while jobs.len() < batch && !jobs.iter().any(|job| job.is_alone()) {
            let Ok(next) = self.receiver.try_recv() else { break };
            if next.is_alone() {
                self.held = Some(next);
                break;
            }
            jobs.push(next);
        }
        Some(jobs)
    }
}

pub(super) struct Writer {
    pool: Pool,
    batch: usize,
    limits: Limits,
    notify: Notify,
    ids: IdCache,
    statistics: Arc<Statistics>,
    done: u64,
}

/// How an attempt failed.
enum Failure {
    /// Nothing of it happened.
    Undone(Error),
    /// The connection broke during COMMIT.
    Unknown { error: Error, id: Uuid, number: String, written: Written },
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Undone(error)
    }
}

impl Writer {
    pub fn new(
        pool: Pool,
        batch: usize,
        limits: Limits,
        notify: Notify,
        statistics: Arc<Statistics>,
    ) -> Self {
        Self { pool, batch, limits, notify, ids: IdCache::default(), statistics, done: 0 }
    }

    /// Works until the queue is closed and empty.
    pub async fn run(mut self, queue: Arc<tokio::sync::Mutex<Queue>>) {
        loop {
            let Some(jobs) = queue.lock().await.take(self.batch).await else { return };
            let mut separate = self.work(jobs).await;
            while let Some(job) = separate.pop() {
                self.work(vec![job]).await;
            }
            self.done += 1;
            if self.done.is_multiple_of(PRUNE_EVERY) {
                self.prune_outcomes().await;
            }
        }
    }

    /// Commits changes and answers them. Returns those that must be tried one by one, the first last.
    async fn work(&mut self, mut jobs: Jobs) -> Jobs {
        let Some(oldest) = jobs.iter().map(|job| job.submitted()).min() else { return Vec::new() };
        let mut attempts = Attempts::new(self.limits, oldest);
        loop {
            let error = match self.attempt(&mut jobs).await {
                Ok(written) => {
                    self.deliver(jobs, &written);
                    return Vec::new();
                }
                Err(Failure::Unknown { error, id, number, written }) => {
                    match self.outcome(id, &number, attempts.deadline()).await {
                        Some(true) => {
                            self.deliver(jobs, &written);
                            return Vec::new();
                        }
                        Some(false) => error,
                        None => {
                            let message =
                                "the database went away during a commit, and its outcome is not known";
                            let error =
                                Error::new(ErrorKind::Unavailable, message).with_source(error).exhausted();
                            self.fail(jobs, &error);
                            return Vec::new();
                        }
                    }
                }
                Err(Failure::Undone(error)) => error,
            };
            match attempts.after(&error, jobs.len()) {
                After::Repeat(pause) => tokio::time::sleep(pause).await,
                After::Separate => {
                    jobs.reverse();
                    return jobs;
                }
                After::GiveUp => {
                    self.fail(jobs, &attempts.last_word(error));
                    return Vec::new();
                }
            }
        }
    }

    fn deliver(&self, jobs: Jobs, written: &Written) {
        for job in jobs {
            job.deliver(written);
        }
        if written.has_records() {
            self.notify.changed();
        }
    }

    fn fail(&self, jobs: Jobs, error: &Error) {
        tracing::warn!(%error, jobs = jobs.len(), "changes of the catalog failed");
        for job in jobs {
            job.fail(error.clone());
        }
    }

    async fn attempt(&mut self, jobs: &mut Jobs) -> Result<Written, Failure> {
        let id = Uuid::new_v4();
        let mut tx = PostgresTx::connect(&self.pool).await?;
        let number = tx.begin(Mode::Write(id)).await?.unwrap_or_default();
        // A fault of ours in one change must not end the task that all others need.
        let outcome = AssertUnwindSafe(run_jobs(&tx, jobs, &mut self.ids)).catch_unwind().await;
        let outcome = outcome.unwrap_or_else(|_| {
            Err(Error::internal("a change of the catalog broke off").with_fault(Fault::Statement))
        });
        let written = match outcome {
            Ok(written) => written,
            Err(error) => {
                // A connection that cannot undo is thrown away, and PostgreSQL undoes.
                let _ = tx.roll_back().await;
                return Err(error.into());
            }
        };
        let changed = tx.changed();
        match tx.commit().await {
            Ok(()) => {
                self.statistics.note(changed, &self.pool);
                Ok(written)
            }
            Err(error) if error.fault() == Some(Fault::Connection) => {
                Err(Failure::Unknown { error, id, number, written })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Finds out whether a transaction was committed. Returns nothing if the database does not come back in time.
    async fn outcome(&self, id: Uuid, number: &str, deadline: Instant) -> Option<bool> {
        loop {
            match self.ask_outcome(id, number).await {
                Ok(Some(outcome)) => return Some(outcome),
                // It still runs, or the database is away.
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "cannot ask for the outcome of a commit yet"),
            }
            if Instant::now() >= deadline {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn ask_outcome(&self, id: Uuid, number: &str) -> Result<Option<bool>> {
        const STATUS: &str = "SELECT pg_xact_status($1::text::xid8)";
        const FOUND: &str = "SELECT id FROM outcome WHERE id = $1";
        let client = self.pool.get().await.map_err(convert_pool)?;
        // First whether it still runs, then whether it left its mark: in the other order it could commit in between. A
        // number that the server has not given out yet is from before a crash, and then it does not run.
        let is_running = match client.query_one(STATUS, &[&number]).await {
            Ok(row) => row.try_get::<_, Option<&str>>(0).ok().flatten() == Some("in progress"),
            Err(error) if error.code().is_some_and(|code| code.code() == "22023") => false,
            Err(error) => return Err(convert(STATUS, error)),
        };
        let found = client.query_opt(FOUND, &[&id]).await.map_err(|error| convert(FOUND, error))?;
        Ok(match (found, is_running) {
            (Some(_), _) => Some(true),
            (None, false) => Some(false),
            (None, true) => None,
        })
    }

    async fn prune_outcomes(&self) {
        const PRUNE: &str =
            "DELETE FROM outcome WHERE at < (EXTRACT(EPOCH FROM now()) * 1000000)::bigint - $1";
        let keep = i64::try_from(KEEP_OUTCOMES.as_micros()).unwrap_or(i64::MAX);
        if let Ok(client) = self.pool.get().await
            && let Err(error) = client.execute(PRUNE, &[&keep]).await
        {
            tracing::debug!(%error, "cannot remove old outcomes");
        }
    }
}
