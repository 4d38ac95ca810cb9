//! What a database engine must do for the catalog, and nothing more.
//!
//! The catalog's logic is written once, against [`Tx`]: set-based statements, each with a text for either engine, kept
//! side by side in `src/rows/`. An engine runs them, numbers nothing, decides nothing.

mod change;
pub(crate) mod postgres;
pub(crate) mod sqlite;
mod value;

use std::borrow::Cow;
use std::future::Future;
use std::time::Duration;

use percale_core::Timestamp;

pub(crate) use change::{After, Attempts, Change, Job, Limits, Query, Ticket, run_jobs};
pub(crate) use value::{Row, Value, row, to_json};

use crate::error::{Error, ErrorKind, Fault, Result};
use crate::rows::journal::NewRecord;

/// A statement, in the words of each engine. Parameters are `$1`, `$2`, … in the order of their first appearance.
///
/// For [`Tx::many`] the SQLite text takes one row of parameters and is run once for each; the PostgreSQL text takes an
/// array for each parameter.
#[derive(Debug, Clone)]
pub(crate) struct Sql {
    /// For SQLite.
    pub sqlite: Cow<'static, str>,
    /// For PostgreSQL.
    pub postgres: Cow<'static, str>,
}

impl Sql {
    /// One text for both.
    pub const fn both(text: &'static str) -> Self {
        Self { sqlite: Cow::Borrowed(text), postgres: Cow::Borrowed(text) }
    }

    /// A text for each.
    pub const fn each(sqlite: &'static str, postgres: &'static str) -> Self {
        Self { sqlite: Cow::Borrowed(sqlite), postgres: Cow::Borrowed(postgres) }
    }
}

/// A transaction, or a connection that is only read from.
pub(crate) trait Tx: Send + Sync {
    /// Whether rows are looked up one by one sooner than many more are gone through to find them.
    const LOOKS_UP_FAST: bool;
    /// Whether texts are found by the words in them.
    const INDEXES_WORDS: bool;

    /// Runs a statement once and returns its rows.
    fn query(&self, sql: &Sql, params: Vec<Value>) -> impl Future<Output = Result<Vec<Row>>> + Send;

    /// Runs a statement for each row of parameters, in no stated order, and returns all rows. No parameters, no call.
    fn many(&self, sql: &Sql, params: Vec<Vec<Value>>) -> impl Future<Output = Result<Vec<Row>>> + Send;

    /// Runs a statement once and returns the number of rows it changed.
    fn execute(&self, sql: &Sql, params: Vec<Value>) -> impl Future<Output = Result<u64>> + Send;

    /// Runs a statement for each row of parameters, and returns the number of rows changed in all.
    fn execute_many(&self, sql: &Sql, params: Vec<Vec<Value>>) -> impl Future<Output = Result<u64>> + Send;

    /// Gets statements ready, so that calls joined in one future reach the database in the order in which they are named.
    fn prepare(&self, statements: &[&Sql]) -> impl Future<Output = Result<()>> + Send;

    /// Takes places of a space's journal and writes records there. Returns the number of the last and the term, or
    /// nothing if the space is gone or has another home. Locks the space's row.
    fn append(
        &self,
        sp: i64,
        records: &[NewRecord],
    ) -> impl Future<Output = Result<Option<(u64, u32)>>> + Send;

    /// Returns the database's time at the beginning of the transaction.
    fn now(&self) -> Timestamp;

    /// Takes `count` ids of a space and returns the first. Taken ids stay taken, or nothing of the transaction happens.
    fn take_ids(&self, sp: i64, count: u64) -> impl Future<Output = Result<u64>> + Send;
}

/// Makes an error of a search of which the database ended a statement that took longer than it may.
fn in_time<R>(answer: Result<R>, within: Option<Duration>) -> Result<R> {
    answer.map_err(|error| match (error.fault(), within) {
        (Some(Fault::Late), Some(within)) => Error::invalid(format!(
            "there is more to look at than can be looked at within {within:?}; search below a path, or for something that is rarer"
        )),
        _ => error,
    })
}

/// Tells listeners that journals grew.
#[derive(Debug, Clone)]
pub(crate) struct Notify(pub std::sync::Arc<tokio::sync::watch::Sender<u64>>);

impl Notify {
    /// Journals grew.
    pub fn changed(&self) {
        self.0.send_modify(|count| *count += 1);
    }
}

/// Compares the schema of a database with the newest that this program knows, and returns the latter.
fn check_schema(applied: Option<i64>, known: i64) -> Result<u32> {
    if let Some(applied) = applied.filter(|applied| *applied > known) {
        let message = format!("the catalog has schema {applied} of a newer release; this one knows {known}");
        return Err(Error::new(ErrorKind::InvalidConfiguration, message));
    }
    u32::try_from(known).map_err(|_| Error::internal("the schema has no number"))
}
