//! A connection, its statements and its errors.

use std::borrow::Cow;
use std::error::Error as _;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::{Object, Pool, PoolError};
use futures::TryStreamExt as _;
use futures::future::ready;
use percale_core::Timestamp;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{BorrowToSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Row as PgRow, Statement};
use uuid::Uuid;

use crate::engine::{Row, Sql, Tx, Value};
use crate::error::{Error, ErrorKind, Fault, Result};
use crate::rows::journal::NewRecord;

/// Most statements that a connection keeps for the next transaction, each with its plan in the server's memory. The catalog has some two
/// hundred of its own; of those that are made for questions there is no end, and where there are too many, all are made anew.
const MOST_STATEMENTS: usize = 500;

/// What a transaction is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Reading as of one moment, each statement within this time.
    Snapshot { within: Option<Duration> },
    /// Writing. Its outcome can be asked for under this id.
    Write(Uuid),
}

/// A connection of the pool, and the transaction that is open on it.
pub(crate) struct PostgresTx {
    /// Present until it is dropped.
    client: Option<Object>,
    pool: Pool,
    now: AtomicI64,
    /// Rows that were changed.
    changed: AtomicU64,
    is_open: bool,
}

impl Drop for PostgresTx {
    fn drop(&mut self) {
        // A call that was dropped half-way must not leave its transaction to the next user of the connection.
        if self.is_open
            && let Some(client) = self.client.take()
        {
            drop(Object::take(client));
        }
    }
}

impl PostgresTx {
    /// Takes a connection.
    pub async fn connect(pool: &Pool) -> Result<Self> {
        let client = pool.get().await.map_err(convert_pool)?;
        // Not later: what a transaction has got ready must stay so.
        if client.statement_cache.size() > MOST_STATEMENTS {
            client.statement_cache.clear();
        }
        let (pool, now, changed) = (pool.clone(), AtomicI64::new(0), AtomicU64::new(0));
        Ok(Self { client: Some(client), pool, now, changed, is_open: false })
    }

    fn client(&self) -> &Object {
        self.client.as_ref().expect("the connection is taken away only when this is dropped")
    }

    /// Begins a transaction. Returns its number if it writes.
    pub(super) async fn begin(&mut self, mode: Mode) -> Result<Option<String>> {
        const CLOCK: &str = "SELECT (EXTRACT(EPOCH FROM now()) * 1000000)::bigint";
        const OUTCOME: &str = "INSERT INTO outcome (id, at) \
                               VALUES ($1, (EXTRACT(EPOCH FROM now()) * 1000000)::bigint) \
                               RETURNING at, pg_current_xact_id()::text";
        const READ: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        let (text, begin) = match mode {
            Mode::Snapshot { within: None } => (CLOCK, Cow::Borrowed(READ)),
            Mode::Snapshot { within: Some(within) } => {
                // None at all would be meant by 0.
                let timeout = within.as_millis().max(1);
                (CLOCK, format!("{READ}; SET LOCAL statement_timeout = {timeout}").into())
            }
            Mode::Write(_) => (OUTCOME, "BEGIN ISOLATION LEVEL READ COMMITTED".into()),
        };
        let statement = self.client().prepare_cached(text).await.map_err(|error| convert(text, error))?;
        self.is_open = true;
        let id = match mode {
            Mode::Snapshot { .. } => None,
            Mode::Write(id) => Some(id),
        };
        let params: Vec<&(dyn ToSql + Sync)> = id.iter().map(|id| id as &(dyn ToSql + Sync)).collect();
        let client = self.client();
        // Sent together: one round trip.
        let ((), row) =
            futures::try_join!(client.batch_execute(&begin), client.query_one(&statement, &params))
                .map_err(|error| convert(&begin, error))?;
        let now: i64 = row.try_get(0).map_err(|error| convert(text, error))?;
        self.now.store(now, Ordering::Relaxed);
        match id {
            None => Ok(None),
            Some(_) => row.try_get(1).map(Some).map_err(|error| convert(text, error)),
        }
    }

    /// Makes the transaction durable. An error with [`Fault::Connection`] leaves its outcome unknown.
    pub async fn commit(mut self) -> Result<()> {
        self.client().batch_execute("COMMIT").await.map_err(|error| convert("COMMIT", error))?;
        self.is_open = false;
        Ok(())
    }

    /// Undoes the transaction.
    pub async fn roll_back(mut self) -> Result<()> {
        self.client().batch_execute("ROLLBACK").await.map_err(|error| convert("ROLLBACK", error))?;
        self.is_open = false;
        Ok(())
    }

    /// Takes rows as they come, while the database makes the next ones.
    async fn rows<P>(&self, text: &str, statement: &Statement, params: P) -> Result<Vec<Row>>
    where
        P: IntoIterator<Item: BorrowToSql, IntoIter: ExactSizeIterator>,
    {
        let wrong = |error| convert(text, error);
        let stream = self.client().query_raw(statement, params).await.map_err(wrong)?;
        stream.map_err(wrong).and_then(|row| ready(decode(&row))).try_collect().await
    }

    async fn run(&self, sql: &Sql, statement: &Statement, params: &[&(dyn ToSql + Sync)]) -> Result<u64> {
        let changed = self.client().execute(statement, params).await;
        let changed = changed.map_err(|error| convert(&sql.postgres, error))?;
        self.changed.fetch_add(changed, Ordering::Relaxed);
        Ok(changed)
    }

    /// Returns how many rows were changed.
    pub(super) fn changed(&self) -> u64 {
        self.changed.load(Ordering::Relaxed)
    }

    /// Gets a statement ready, if the connection does not have it: questions of one shape have one text.
    async fn prepare_text(&self, text: &str) -> Result<Statement> {
        self.client().prepare_cached(text).await.map_err(|error| convert(text, error))
    }
}

/// A value as a parameter.
#[derive(Debug)]
struct Param<'a>(&'a Value);

impl ToSql for Param<'_> {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> std::result::Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self.0 {
            Value::Null => Ok(IsNull::Yes),
            Value::Int(value) => value.to_sql_checked(ty, out),
            Value::Text(value) => value.to_sql_checked(ty, out),
            Value::Bytes(value) => value.to_sql_checked(ty, out),
            Value::Uuid(value) => value.to_sql_checked(ty, out),
            Value::Texts(values) => values.to_sql_checked(ty, out),
        }
    }

    fn accepts(_ty: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// One array for each parameter, of rows of parameters.
fn columns(rows: &[Vec<Value>]) -> Vec<Vec<Param<'_>>> {
    let count = rows.first().map_or(0, Vec::len);
    let mut columns: Vec<Vec<Param<'_>>> = (0..count).map(|_| Vec::with_capacity(rows.len())).collect();
    for row in rows {
        for (column, value) in columns.iter_mut().zip(row) {
            column.push(Param(value));
        }
    }
    columns
}

fn decode(row: &PgRow) -> Result<Row> {
    let wrong =
        |error: tokio_postgres::Error| Error::corrupt("cannot read a row of the catalog").with_source(error);
    let mut values = Vec::with_capacity(row.len());
    for (at, column) in row.columns().iter().enumerate() {
        let value = match *column.type_() {
            Type::INT8 => row.try_get::<_, Option<i64>>(at).map_err(wrong)?.into(),
            Type::TEXT => row.try_get::<_, Option<String>>(at).map_err(wrong)?.into(),
            Type::BYTEA => row.try_get::<_, Option<Vec<u8>>>(at).map_err(wrong)?.into(),
            Type::UUID => row.try_get::<_, Option<Uuid>>(at).map_err(wrong)?.into(),
            ref other => {
                return Err(Error::corrupt(format!("column {} has the type {other}", column.name())));
            }
        };
        values.push(value);
    }
    Ok(Row::new(values))
}

impl Tx for PostgresTx {
    const LOOKS_UP_FAST: bool = false;
    const INDEXES_WORDS: bool = true;

    async fn query(&self, sql: &Sql, params: Vec<Value>) -> Result<Vec<Row>> {
        let statement = self.prepare_text(&sql.postgres).await?;
        let params: Vec<Param<'_>> = params.iter().map(Param).collect();
        self.rows(&sql.postgres, &statement, params).await
    }

    async fn many(&self, sql: &Sql, params: Vec<Vec<Value>>) -> Result<Vec<Row>> {
        if params.is_empty() {
            return Ok(Vec::new());
        }
        let statement = self.prepare_text(&sql.postgres).await?;
        self.rows(&sql.postgres, &statement, columns(&params)).await
    }

    async fn execute(&self, sql: &Sql, params: Vec<Value>) -> Result<u64> {
        let statement = self.prepare_text(&sql.postgres).await?;
        let params: Vec<Param<'_>> = params.iter().map(Param).collect();
        let params: Vec<&(dyn ToSql + Sync)> =
            params.iter().map(|param| param as &(dyn ToSql + Sync)).collect();
        self.run(sql, &statement, &params).await
    }

    async fn execute_many(&self, sql: &Sql, params: Vec<Vec<Value>>) -> Result<u64> {
        if params.is_empty() {
            return Ok(0);
        }
        let statement = self.prepare_text(&sql.postgres).await?;
        let columns = columns(&params);
        let params: Vec<&(dyn ToSql + Sync)> =
            columns.iter().map(|column| column as &(dyn ToSql + Sync)).collect();
        self.run(sql, &statement, &params).await
    }

    async fn prepare(&self, statements: &[&Sql]) -> Result<()> {
        for sql in statements {
            self.prepare_text(&sql.postgres).await?;
        }
        Ok(())
    }

    /// In one statement: the row of the space is locked for one round trip less.
    async fn append(&self, sp: i64, records: &[NewRecord]) -> Result<Option<(u64, u32)>> {
        const APPEND: &str = "WITH s AS (UPDATE space SET seq = seq + $1 WHERE sp = $2 AND home IS NULL \
                              RETURNING sp, seq, term) \
                              INSERT INTO journal (sp, seq, term, at, actor, kind, v, body) \
                              SELECT s.sp, s.seq - $1 + k.n, s.term, $3, k.actor, k.kind, k.v, k.body FROM s, \
                              UNNEST($4::text[], $5::text[], $6::bigint[], $7::text[]) WITH ORDINALITY \
                              AS k(actor, kind, v, body, n) RETURNING seq, term";
        let statement = self.prepare_text(APPEND).await?;
        let count = i64::try_from(records.len()).unwrap_or(i64::MAX);
        let actors: Vec<&str> = records.iter().map(|record| record.actor.as_str()).collect();
        let kinds: Vec<&str> = records.iter().map(|record| record.kind).collect();
        let forms: Vec<i64> = records.iter().map(|record| i64::from(record.v)).collect();
        let bodies: Vec<&str> = records.iter().map(|record| record.body.as_str()).collect();
        let at = self.now().as_micros();
        let params: [&(dyn ToSql + Sync); 7] = [&count, &sp, &at, &actors, &kinds, &forms, &bodies];
        let wrong = |error| convert(APPEND, error);
        let rows = self.client().query(&statement, &params).await.map_err(wrong)?;
        let mut end = None;
        for row in rows {
            let (seq, term): (i64, i64) = (row.try_get(0).map_err(wrong)?, row.try_get(1).map_err(wrong)?);
            end = end
                .max(Some((u64::try_from(seq).unwrap_or_default(), u32::try_from(term).unwrap_or_default())));
        }
        Ok(end)
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now.load(Ordering::Relaxed))
    }

    /// In a transaction of its own: the space's row stays unlocked until the end of this one.
    async fn take_ids(&self, sp: i64, count: u64) -> Result<u64> {
        let other = PostgresTx::connect(&self.pool).await?;
        let sql = &crate::rows::site::TAKE_IDS;
        let mut rows = other.query(sql, vec![Value::from(count), Value::from(sp)]).await?;
        match rows.first_mut() {
            Some(row) => Ok(row.number()?.saturating_sub(count)),
            None => Err(crate::batch::raced("a space was removed before ids of it were taken")),
        }
    }
}

/// Makes the catalog's error of one of the pool.
pub(super) fn convert_pool(error: PoolError) -> Error {
    match error {
        PoolError::Backend(error) => convert("connect", error),
        PoolError::Closed => {
            Error::new(ErrorKind::Unavailable, "the catalog is closed").with_fault(Fault::Statement)
        }
        error => {
            let message = "cannot get a connection to the catalog's database";
            Error::new(ErrorKind::Unavailable, message).with_source(error).with_fault(Fault::Connection)
        }
    }
}

/// Makes the catalog's error of one of the driver.
pub(super) fn convert(statement: &str, error: tokio_postgres::Error) -> Error {
    let (kind, fault) = match error.code() {
        Some(code) => classify(code),
        // A value that cannot be sent, and nothing of the server's doing.
        None if error.to_string().contains("error serializing parameter") => {
            (ErrorKind::Internal, Fault::Statement)
        }
        None => (ErrorKind::Unavailable, Fault::Connection),
    };
    let verb: String = statement.chars().take(60).collect();
    let detail = error.source().map(|cause| format!(" ({cause})")).unwrap_or_default();
    Error::new(kind, format!("the catalog's database failed at '{verb}'{detail}"))
        .with_source(error)
        .with_fault(fault)
}

fn classify(code: &SqlState) -> (ErrorKind, Fault) {
    // PostgreSQL, appendix A. Classes 08, 57P and the missing right to write mean that this server is going, starting or
    // not the primary any more.
    match code.code() {
        "23505" => (ErrorKind::Conflict { version: None }, Fault::Unique),
        "40001" | "40P01" | "55P03" => (ErrorKind::Conflict { version: None }, Fault::Race),
        "57P01" | "57P02" | "57P03" | "57P05" | "25006" | "53300" => {
            (ErrorKind::Unavailable, Fault::Connection)
        }
        "53100" => (ErrorKind::NoSpace, Fault::Full),
        "XX001" | "XX002" => (ErrorKind::Corrupt, Fault::Statement),
        "28P01" | "28000" | "3D000" => (ErrorKind::InvalidConfiguration, Fault::Statement),
        // A NUL in a text, which no name has but a cursor or key from outside may.
        "22021" => (ErrorKind::InvalidRequest, Fault::Statement),
        "53200" => (ErrorKind::Unavailable, Fault::Statement),
        "57014" => (ErrorKind::Unavailable, Fault::Late),
        code if code.starts_with("08") => (ErrorKind::Unavailable, Fault::Connection),
        _ => (ErrorKind::Internal, Fault::Statement),
    }
}
