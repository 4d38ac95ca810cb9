//! What the engines are asked to do: questions, and changes that are committed in groups.

use std::collections::HashMap;
use std::future::Future;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use tokio::sync::oneshot;

use super::Tx;
use crate::batch::{Batch, IdCache, Wants, Written};
use crate::error::{Error, Fault, Result};
use crate::model::{Answer, AnswerKey};
use crate::rows::told::{self, LateAnswer};

/// A question. May be asked again if the connection breaks.
pub(crate) trait Query: Send + Sync + 'static {
    /// The answer.
    type Out: Send + 'static;
    /// Whether its statements must see one moment. Not needed by a question of one statement.
    const SNAPSHOT: bool = true;
    /// Whether it is people who say what is looked at, so that a statement may take as long as they like. Then it takes no longer than
    /// [`CatalogConfig::search_timeout`](crate::CatalogConfig::search_timeout), and fails with `InvalidRequest`. Only with a snapshot.
    const IS_SEARCH: bool = false;
    /// Finds the answer.
    fn run<T: Tx>(&self, tx: &T) -> impl Future<Output = Result<Self::Out>> + Send;
}

/// A change. It is decided within a batch of others, and may be decided again if the batch is repeated.
///
/// - An error that is not a fault of the database refuses this change alone, so everything must be decided before
///   anything is written.
pub(crate) trait Change: Send + Sync + 'static {
    /// What was decided, before the journal has numbers.
    type Draft: Send + Sync + 'static;
    /// What the caller gets.
    type Out: Send + 'static;
    /// Whether it must not share its transaction with other changes.
    const ALONE: bool = false;

    /// Names what it will look at, so that it is loaded together with what others want.
    fn want(&self, _wants: &mut Wants) {}

    /// Decides and writes.
    fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> impl Future<Output = Result<Self::Draft>> + Send;

    /// Returns the answers to keep under idempotency keys in the same transaction.
    fn answers(&self, _draft: &Self::Draft, _written: &Written) -> Result<Vec<(AnswerKey, Answer)>> {
        Ok(Vec::new())
    }

    /// Returns what other sites are told about their arrivals, to keep in the same transaction.
    fn told(&self, _draft: &Self::Draft, _written: &Written) -> Vec<LateAnswer> {
        Vec::new()
    }

    /// Makes what the caller gets.
    fn finish(self, draft: Self::Draft, written: &Written) -> Self::Out;
}

/// A change of any kind on its way through an engine's queue.
pub(crate) trait Job<T: Tx>: Send {
    fn is_alone(&self) -> bool;
    fn want(&self, wants: &mut Wants);
    fn run<'a>(&'a mut self, batch: &'a mut Batch<'_, T>) -> BoxFuture<'a, Result<()>>;
    fn answers(&self, written: &Written) -> Result<Vec<(AnswerKey, Answer)>>;
    fn told(&self, written: &Written) -> Vec<LateAnswer>;
    /// Tells the caller what became of it, once that is durable.
    fn deliver(self: Box<Self>, written: &Written);
    /// Tells the caller that nothing of it happened, or that it is not known.
    fn fail(self: Box<Self>, error: Error);
    fn submitted(&self) -> Instant;
}

/// A change with the way back to its caller.
pub(crate) struct Ticket<C: Change> {
    change: C,
    draft: Option<Result<C::Draft>>,
    reply: oneshot::Sender<Result<C::Out>>,
    submitted: Instant,
}

impl<C: Change> Ticket<C> {
    /// Makes a ticket and the caller's end of it.
    pub fn new(change: C) -> (Self, oneshot::Receiver<Result<C::Out>>) {
        let (reply, answer) = oneshot::channel();
        (Self { change, draft: None, reply, submitted: Instant::now() }, answer)
    }
}

impl<T: Tx, C: Change> Job<T> for Ticket<C> {
    fn is_alone(&self) -> bool {
        C::ALONE
    }

    fn want(&self, wants: &mut Wants) {
        self.change.want(wants);
    }

    fn run<'a>(&'a mut self, batch: &'a mut Batch<'_, T>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let draft = self.change.run(batch).await;
            match draft {
                Err(error) if error.fault().is_some() => Err(error),
                draft => {
                    self.draft = Some(draft);
                    Ok(())
                }
            }
        })
    }

    fn answers(&self, written: &Written) -> Result<Vec<(AnswerKey, Answer)>> {
        match &self.draft {
            Some(Ok(draft)) => self.change.answers(draft, written),
            _ => Ok(Vec::new()),
        }
    }

    fn told(&self, written: &Written) -> Vec<LateAnswer> {
        match &self.draft {
            Some(Ok(draft)) => self.change.told(draft, written),
            _ => Vec::new(),
        }
    }

    fn deliver(self: Box<Self>, written: &Written) {
        let Ticket { change, draft, reply, .. } = *self;
        let answer = match draft {
            Some(Ok(draft)) => Ok(change.finish(draft, written)),
            Some(Err(error)) => Err(error),
            None => Err(Error::internal("a change was committed without having been decided")),
        };
        // A caller that went away does not hear of it; the change stands.
        let _ = reply.send(answer);
    }

    fn fail(self: Box<Self>, error: Error) {
        let _ = self.reply.send(Err(error));
    }

    fn submitted(&self) -> Instant {
        self.submitted
    }
}

/// Runs the changes of one batch in a transaction that the caller begins and ends.
///
/// # Errors
/// Only those that end the transaction. The others are kept in the jobs.
pub(crate) async fn run_jobs<T: Tx>(
    tx: &T,
    jobs: &mut [Box<dyn Job<T>>],
    ids: &mut IdCache,
) -> Result<Written> {
    let mut wants = Wants::default();
    for job in jobs.iter() {
        job.want(&mut wants);
    }
    let mut batch = Batch::new(tx, ids);
    batch.load(wants).await?;
    for job in jobs.iter_mut() {
        job.run(&mut batch).await?;
    }
    batch.flush().await?;
    let written = batch.write_journal().await?;
    let mut answers = HashMap::new();
    let mut told = Vec::new();
    for job in jobs.iter() {
        answers.extend(job.answers(&written)?);
        told.extend(job.told(&written));
    }
    told::set(tx, told).await?;
    if !answers.is_empty() {
        crate::idempotency::keep(tx, answers).await?;
    }
    Ok(written)
}

/// For how long and how often a batch is repeated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// For how long while the database is away, counted from when the oldest change of the batch was submitted.
    pub budget: Duration,
}

/// Most repetitions of a batch that loses races. Each time somebody else has won one.
const MAX_RACES: u32 = 20;

/// What to do after a batch failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// Begin it again after this pause.
    Repeat(Duration),
    /// Run each change in a transaction of its own, so that one that the database refuses fails alone.
    Separate,
    /// Tell all callers.
    GiveUp,
}

/// Counts the attempts of a batch.
#[derive(Debug)]
pub(crate) struct Attempts {
    races: u32,
    connections: u32,
    deadline: Instant,
}

impl Attempts {
    /// Begins to count for changes of which the oldest was submitted at `submitted`.
    pub fn new(limits: Limits, submitted: Instant) -> Self {
        Self { races: 0, connections: 0, deadline: submitted + limits.budget }
    }

    /// Decides what comes after an error.
    pub fn after(&mut self, error: &Error, jobs: usize) -> After {
        match error.fault() {
            Some(Fault::Race | Fault::Unique) if self.races < MAX_RACES && Instant::now() < self.deadline => {
                self.races += 1;
                // A little longer each time, and not the same for two servers that met.
                let spread = uuid::Uuid::new_v4().as_u128() % 1000;
                let spread = u64::try_from(spread).unwrap_or_default();
                After::Repeat(Duration::from_micros(u64::from(self.races) * (500 + spread)))
            }
            Some(Fault::Connection) => {
                let pause = Duration::from_millis(25u64 << self.connections.min(5));
                self.connections += 1;
                if Instant::now() + pause < self.deadline { After::Repeat(pause) } else { After::GiveUp }
            }
            Some(Fault::Full) => After::GiveUp,
            _ if jobs > 1 => After::Separate,
            _ => After::GiveUp,
        }
    }

    /// Marks an error that was met again and again.
    pub fn last_word(&self, error: Error) -> Error {
        if self.races + self.connections > 0 { error.exhausted() } else { error }
    }

    /// Until when the database may be away.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
}
