//! A connection, its statements and its errors.

use std::borrow::Cow;
use std::future::{Future, ready};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use percale_core::Timestamp;
use percale_core::query::pattern;
use rusqlite::functions::FunctionFlags;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection, OpenFlags, ToSql, params_from_iter};

use crate::engine::{Row, Sql, Tx, Value, row};
use crate::error::{Error, ErrorKind, Fault, Result};
use crate::rows::journal::{self, NewRecord};

mod migrations {
    refinery::embed_migrations!("migrations/sqlite");
}

/// How long a statement waits for another process, such as `percale admin`, that holds the file's write lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Pages that the writing connection keeps, and each of the reading ones. What is not there is in the system's memory; a server with
/// all of its connections stays below 150 MiB.
const WRITER_CACHE_KIB: i64 = 12 << 10;
const READER_CACHE_KIB: i64 = 4 << 10;
/// One thread has a connection at a time.
const READ_ONLY: OpenFlags = OpenFlags::SQLITE_OPEN_READ_ONLY.union(OpenFlags::SQLITE_OPEN_NO_MUTEX);

/// After how many steps of a statement its time is looked at: about every 100 µs.
const STEPS: i32 = 1000;

/// A connection. The lock is never contended: a connection belongs to one thread at a time.
pub(crate) struct SqliteTx {
    connection: Mutex<Connection>,
    now: AtomicI64,
    /// How long each statement may take.
    within: Mutex<Option<Duration>>,
}

impl SqliteTx {
    fn new(connection: Connection) -> Self {
        connection.set_prepared_statement_cache_capacity(256);
        Self { connection: Mutex::new(connection), now: AtomicI64::new(0), within: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn batch(&self, text: &str) -> Result<()> {
        self.lock().execute_batch(text).map_err(|error| convert(text, error))
    }

    /// Notes the time for what comes next.
    pub fn look_at_clock(&self) {
        self.now.store(Timestamp::now().as_micros(), Ordering::Relaxed);
    }

    /// Begins a transaction that writes.
    pub fn begin_write(&self) -> Result<()> {
        self.batch("BEGIN IMMEDIATE")?;
        self.look_at_clock();
        Ok(())
    }

    /// Begins a transaction that sees one moment, each statement of which may take so long.
    pub fn begin_read(&self, within: Option<Duration>) -> Result<()> {
        self.batch("BEGIN DEFERRED")?;
        *self.within.lock().unwrap_or_else(PoisonError::into_inner) = within;
        self.look_at_clock();
        Ok(())
    }

    /// Makes the transaction durable.
    pub fn commit(&self) -> Result<()> {
        self.batch("COMMIT")
    }

    /// Undoes the transaction, if SQLite has not done so itself after an error.
    pub fn roll_back(&self) -> Result<()> {
        *self.within.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if self.lock().is_autocommit() { Ok(()) } else { self.batch("ROLLBACK") }
    }

    fn rows(&self, sql: &Sql, params: &[Vec<Value>]) -> Result<Vec<Row>> {
        let mut connection = self.lock();
        let wrong = |error| convert(&sql.sqlite, error);
        let until =
            self.within.lock().unwrap_or_else(PoisonError::into_inner).map(|within| Instant::now() + within);
        let is_late = until.map(|until| move || Instant::now() >= until);
        connection.progress_handler(STEPS, is_late).map_err(wrong)?;
        let mut statement = prepare(&connection, sql)?;
        let columns = statement.column_count();
        let mut found = Vec::new();
        for params in params {
            let mut rows = statement.query(params_from_iter(params)).map_err(wrong)?;
            while let Some(row) = rows.next().map_err(wrong)? {
                let mut values = Vec::with_capacity(columns);
                for column in 0..columns {
                    values.push(value(row.get_ref(column).map_err(wrong)?)?);
                }
                found.push(Row::new(values));
            }
        }
        if matches!(sql.sqlite, Cow::Owned(_)) {
            // Of statements that are made for a question there is no end; those that stand here stay ready.
            statement.discard();
        }
        Ok(found)
    }

    fn append_now(&self, sp: i64, records: &[NewRecord]) -> Result<Option<(u64, u32)>> {
        let advance = vec![Value::from(records.len()), Value::from(sp)];
        let mut rows = self.rows(&journal::ADVANCE, &[advance])?;
        let Some(row) = rows.first_mut() else { return Ok(None) };
        let (last, term) = (row.number()?, row.small()?);
        let first = (last + 1).saturating_sub(records.len() as u64);
        let at = Tx::now(self);
        let mut params = Vec::with_capacity(records.len());
        for (seq, record) in (first..).zip(records) {
            let NewRecord { actor, kind, v, body } = record;
            params.push(row![sp, seq, term, at, actor.as_str(), *kind, *v, body.as_str()]);
        }
        self.changes(&journal::INSERT, &params)?;
        Ok(Some((last, term)))
    }

    fn changes(&self, sql: &Sql, params: &[Vec<Value>]) -> Result<u64> {
        if params.is_empty() {
            return Ok(0);
        }
        let connection = self.lock();
        let mut statement = prepare(&connection, sql)?;
        let mut changed = 0;
        for params in params {
            let count = statement.execute(params_from_iter(params));
            changed += count.map_err(|error| convert(&sql.sqlite, error))? as u64;
        }
        Ok(changed)
    }
}

fn prepare<'c>(connection: &'c Connection, sql: &Sql) -> Result<CachedStatement<'c>> {
    let statement = connection.prepare_cached(&sql.sqlite).map_err(|error| convert(&sql.sqlite, error))?;
    // SQLite numbers `$1` by its first appearance, whatever its digits.
    debug_assert!(
        (1..=statement.parameter_count()).all(|at| statement.parameter_name(at) == Some(&format!("${at}"))),
        "parameters are out of order in {}",
        sql.sqlite
    );
    Ok(statement)
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Value::Null => ValueRef::Null,
            Value::Int(value) => ValueRef::Integer(*value),
            Value::Text(value) => ValueRef::Text(value.as_bytes()),
            Value::Bytes(value) => ValueRef::Blob(value),
            Value::Uuid(value) => ValueRef::Blob(value.as_bytes()),
            Value::Texts(values) => {
                let text = serde_json::to_string(values)
                    .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
                return Ok(ToSqlOutput::Owned(text.into()));
            }
        }))
    }
}

fn value(value: ValueRef<'_>) -> Result<Value> {
    Ok(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(value) => Value::Int(value),
        ValueRef::Text(value) => Value::Text(
            std::str::from_utf8(value)
                .map_err(|error| Error::corrupt("a text of the catalog is not UTF-8").with_source(error))?
                .to_owned(),
        ),
        ValueRef::Blob(value) => Value::Bytes(value.to_vec()),
        ValueRef::Real(_) => {
            return Err(Error::corrupt("a column of the catalog holds a floating-point number"));
        }
    })
}

impl Tx for SqliteTx {
    const LOOKS_UP_FAST: bool = true;
    const INDEXES_WORDS: bool = false;

    fn query(&self, sql: &Sql, params: Vec<Value>) -> impl Future<Output = Result<Vec<Row>>> + Send {
        ready(self.rows(sql, &[params]))
    }

    fn many(&self, sql: &Sql, params: Vec<Vec<Value>>) -> impl Future<Output = Result<Vec<Row>>> + Send {
        ready(if params.is_empty() { Ok(Vec::new()) } else { self.rows(sql, &params) })
    }

    fn execute(&self, sql: &Sql, params: Vec<Value>) -> impl Future<Output = Result<u64>> + Send {
        ready(self.changes(sql, &[params]))
    }

    fn execute_many(&self, sql: &Sql, params: Vec<Vec<Value>>) -> impl Future<Output = Result<u64>> + Send {
        ready(self.changes(sql, &params))
    }

    fn prepare(&self, _statements: &[&Sql]) -> impl Future<Output = Result<()>> + Send {
        ready(Ok(()))
    }

    fn append(
        &self,
        sp: i64,
        records: &[NewRecord],
    ) -> impl Future<Output = Result<Option<(u64, u32)>>> + Send {
        ready(self.append_now(sp, records))
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now.load(Ordering::Relaxed))
    }

    fn take_ids(&self, sp: i64, count: u64) -> impl Future<Output = Result<u64>> + Send {
        let params = vec![Value::from(count), Value::from(sp)];
        let next = self.rows(&crate::rows::site::TAKE_IDS, &[params]).and_then(|mut rows| {
            let row = rows.first_mut();
            row.ok_or_else(|| crate::batch::raced("a space was removed before ids of it were taken"))?
                .number()
        });
        ready(next.map(|next| next.saturating_sub(count)))
    }
}

/// Opens the connection that writes, makes the file if there is none, and brings its schema up to date. Returns the
/// version of the schema.
pub(super) fn open_writer(path: &Path) -> Result<(SqliteTx, u32)> {
    let shown = path.display();
    let io = |error: std::io::Error| {
        Error::new(ErrorKind::Unavailable, format!("cannot open the catalog {shown}")).with_source(error)
    };
    // Two processes that open a new file at once must not both make its tables.
    let lock_path = path.with_extension("lock");
    let lock =
        std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path).map_err(io)?;
    lock.lock().map_err(io)?;
    // Sealed secrets and names of people lie in it. SQLite gives its other files the mode of this one.
    let made = std::fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(path);
    match made {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(io(error)),
        _ => {}
    }
    let open = || -> rusqlite::Result<Connection> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        // A commit is on disk before it is answered.
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
        connection.pragma_update(None, "temp_store", "MEMORY")?;
        // 16 MiB of log between checkpoints, so that a hot page is written back once and not for each commit.
        connection.pragma_update(None, "wal_autocheckpoint", 4000)?;
        connection.pragma_update(None, "journal_size_limit", 67_108_864)?;
        lend_regex(&connection)?;
        Ok(connection)
    };
    let mut connection = open().map_err(|error| convert(&format!("open {shown}"), error))?;
    let schema = migrate(&mut connection)?;
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        // The name of a new file must survive a power cut as well.
        std::fs::File::open(parent).and_then(|folder| folder.sync_all()).map_err(io)?;
    }
    drop(lock);
    Ok((SqliteTx::new(connection), schema))
}

fn migrate(connection: &mut Connection) -> Result<u32> {
    let wrong = |error: refinery::Error| {
        Error::new(ErrorKind::Unavailable, "cannot bring the catalog's schema up to date").with_source(error)
    };
    let runner = migrations::migrations::runner();
    let known = runner.get_migrations().iter().map(|migration| migration.version()).max().unwrap_or_default();
    // Before the first migration there is no table to ask.
    let asked = "SELECT count(*) FROM sqlite_schema WHERE name = 'refinery_schema_history'";
    let tables: i64 =
        connection.query_row(asked, [], |row| row.get(0)).map_err(|error| convert(asked, error))?;
    let applied = match tables {
        0 => None,
        _ => runner.get_last_applied_migration(connection).map_err(wrong)?,
    };
    let known = crate::engine::check_schema(applied.map(|last| i64::from(last.version())), i64::from(known))?;
    runner.run(connection).map_err(wrong)?;
    Ok(known)
}

/// Opens a connection that only reads.
pub(super) fn open_reader(path: &Path) -> Result<SqliteTx> {
    let open = || -> rusqlite::Result<Connection> {
        let connection = Connection::open_with_flags(path, READ_ONLY)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.pragma_update(None, "cache_size", -READER_CACHE_KIB)?;
        connection.pragma_update(None, "temp_store", "MEMORY")?;
        lend_regex(&connection)?;
        Ok(connection)
    };
    let connection = open().map_err(|error| convert(&format!("open {}", path.display()), error))?;
    Ok(SqliteTx::new(connection))
}

/// Lends SQLite the function behind its operator REGEXP, which it calls with the expression first. An expression is compiled once for a
/// statement.
fn lend_regex(connection: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_scalar_function("regexp", 2, flags, |context| {
        type Failed = Box<dyn std::error::Error + Send + Sync>;
        let regex = context
            .get_or_create_aux(0, |portable| Ok::<_, Failed>(pattern::compile(portable.as_str()?)?))?;
        Ok(context.get_raw(1).as_str_or_null()?.map(|text| regex.is_match(text)))
    })
}

fn convert(statement: &str, error: rusqlite::Error) -> Error {
    use rusqlite::ErrorCode as Code;
    let code = match &error {
        rusqlite::Error::SqliteFailure(failure, _) => Some((failure.code, failure.extended_code)),
        _ => None,
    };
    let (kind, fault) = match code {
        // The shared memory of the log lies beside the file and meets the full disk with a code of its own.
        Some((Code::DiskFull, _)) | Some((_, rusqlite::ffi::SQLITE_IOERR_SHMSIZE)) => {
            (ErrorKind::NoSpace, Fault::Full)
        }
        Some((Code::OperationInterrupted, _)) => (ErrorKind::Unavailable, Fault::Late),
        Some((Code::DatabaseBusy | Code::DatabaseLocked, _)) => (ErrorKind::Unavailable, Fault::Race),
        Some((Code::ConstraintViolation, _)) => (ErrorKind::Conflict { version: None }, Fault::Unique),
        Some((Code::DatabaseCorrupt | Code::NotADatabase, _)) => (ErrorKind::Corrupt, Fault::Statement),
        Some((Code::SystemIoFailure | Code::CannotOpen | Code::ReadOnly | Code::OutOfMemory, _)) => {
            (ErrorKind::Unavailable, Fault::Statement)
        }
        _ => (ErrorKind::Internal, Fault::Statement),
    };
    let verb: String = statement.chars().take(60).collect();
    Error::new(kind, format!("the catalog's database failed at '{verb}'"))
        .with_source(error)
        .with_fault(fault)
}
