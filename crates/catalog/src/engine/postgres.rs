//! PostgreSQL: a pool of connections, and two tasks that write. Several servers may share a database.

mod statistics;
mod tx;
mod writer;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::NoTls;
use tokio_postgres::config::SslMode;

use super::{After, Attempts, Change, Job, Limits, Notify, Query, Ticket};
use crate::error::{Error, ErrorKind, Result};
use crate::model::CatalogConfig;

use statistics::Statistics;
use tx::Mode;
pub(crate) use tx::PostgresTx;
use writer::{Queue, Writer};

mod migrations {
    refinery::embed_migrations!("migrations/postgres");
}

/// The advisory lock under which the schema is changed: "percale" in ASCII, as a number.
const MIGRATION_LOCK: i64 = 0x0070_6572_6361_6c65;

/// Tasks that write. The space's row makes them take turns at the end of their transactions.
const WRITERS: usize = 2;

/// How plans are made. Every statement of the catalog finds its rows by an index; a plan made while a table was small
/// must not scan it for ever after. To start another process for a part of it takes longer than most of them do.
/// The lock timeout only ends what the deadlock detector cannot see.
const SESSION: &str = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_hashjoin=off \
                       -c enable_mergejoin=off -c jit=off -c max_parallel_workers_per_gather=0 -c lock_timeout=10s \
                       -c synchronous_commit=on -c client_min_messages=warning";

/// The engine for a site with a database server.
pub(crate) struct Postgres {
    pool: Pool,
    queue: Mutex<Option<mpsc::Sender<Box<dyn Job<PostgresTx>>>>>,
    writers: Mutex<Vec<JoinHandle<()>>>,
    limits: Limits,
    search_timeout: Duration,
    schema: u32,
}

fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the catalog is closed")
}

impl Postgres {
    /// Connects, and brings the schema up to date.
    pub async fn open(config: &CatalogConfig, notify: Notify) -> Result<Self> {
        let wrong = |message: &str| Error::new(ErrorKind::InvalidConfiguration, message);
        let mut postgres: tokio_postgres::Config = config
            .url
            .parse()
            .map_err(|error| wrong("cannot read the catalog's URL for PostgreSQL").with_source(error))?;
        if matches!(postgres.get_ssl_mode(), SslMode::Require) {
            return Err(wrong("connections to PostgreSQL with TLS are not built yet: use sslmode=disable"));
        }
        let options = format!("{} {SESSION}", postgres.get_options().unwrap_or_default());
        postgres
            .options(options)
            .application_name("percale")
            .connect_timeout(Duration::from_secs(5))
            .tcp_user_timeout(Duration::from_secs(10));
        let manager =
            Manager::from_config(postgres, NoTls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
        let pool = Pool::builder(manager)
            // Each writer and the ids it takes need one each.
            .max_size(config.pool_size.max(2 * WRITERS + 1))
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(Duration::from_secs(10)))
            .create_timeout(Some(Duration::from_secs(5)))
            .build()
            .map_err(|error| Error::internal("cannot make a pool of connections").with_source(error))?;
        let limits = Limits { budget: config.retry_budget };
        let schema = repeat(limits, || migrate(&pool)).await?;
        let (queue, jobs) = mpsc::channel(config.queue.max(1));
        let jobs = Arc::new(tokio::sync::Mutex::new(Queue::new(jobs)));
        let statistics = Arc::new(Statistics::default());
        let start = |_| {
            let (batch, statistics) = (config.batch.max(1), statistics.clone());
            let writer = Writer::new(pool.clone(), batch, limits, notify.clone(), statistics);
            tokio::spawn(writer.run(jobs.clone()))
        };
        let writers = Mutex::new((0..WRITERS).map(start).collect());
        let (queue, search_timeout) = (Mutex::new(Some(queue)), config.search_timeout);
        Ok(Self { pool, queue, writers, limits, search_timeout, schema })
    }

    /// Returns the version of the schema.
    pub fn schema(&self) -> u32 {
        self.schema
    }

    /// Tells whether [`Postgres::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.pool.is_closed()
    }

    /// Answers a question, and asks again while the database is away.
    pub async fn ask<Q: Query>(&self, query: Q) -> Result<Q::Out> {
        repeat(self.limits, || self.ask_once(&query)).await
    }

    /// Answers a question, without asking again.
    pub async fn ask_once<Q: Query>(&self, query: &Q) -> Result<Q::Out> {
        let mut tx = PostgresTx::connect(&self.pool).await?;
        if !Q::SNAPSHOT {
            return query.run(&tx).await;
        }
        let within = Q::IS_SEARCH.then_some(self.search_timeout);
        tx.begin(Mode::Snapshot { within }).await?;
        let answer = query.run(&tx).await;
        tx.roll_back().await?;
        super::in_time(answer, within)
    }

    /// Hands a change to the writer and waits until it is durable.
    pub async fn change<C: Change>(&self, change: C) -> Result<C::Out> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (ticket, answer) = Ticket::new(change);
        queue.ok_or_else(closed)?.send(Box::new(ticket)).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    /// Finishes what was taken and closes the connections.
    pub async fn close(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        let writers = std::mem::take(&mut *self.writers.lock().unwrap_or_else(PoisonError::into_inner));
        for writer in writers {
            // The writer's own errors went to its callers.
            let _ = writer.await;
        }
        self.pool.close();
    }
}

/// Repeats what fails because the database is away.
async fn repeat<R, F: Future<Output = Result<R>>>(limits: Limits, work: impl Fn() -> F) -> Result<R> {
    let mut attempts = Attempts::new(limits, Instant::now());
    loop {
        let error = match work().await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        match attempts.after(&error, 1) {
            After::Repeat(pause) => tokio::time::sleep(pause).await,
            _ => return Err(attempts.last_word(error)),
        }
    }
}

async fn migrate(pool: &Pool) -> Result<u32> {
    let mut client = pool.get().await.map_err(tx::convert_pool)?;
    let wrong = |error| tx::convert("lock the schema", error);
    client.execute("SELECT pg_advisory_lock($1)", &[&MIGRATION_LOCK]).await.map_err(wrong)?;
    let schema = migrate_locked(&mut client).await;
    client.execute("SELECT pg_advisory_unlock($1)", &[&MIGRATION_LOCK]).await.map_err(wrong)?;
    schema
}

async fn migrate_locked(client: &mut tokio_postgres::Client) -> Result<u32> {
    let wrong = |error: refinery::Error| {
        Error::new(ErrorKind::Unavailable, "cannot bring the catalog's schema up to date").with_source(error)
    };
    let runner = migrations::migrations::runner();
    let known = runner.get_migrations().iter().map(|migration| migration.version()).max().unwrap_or_default();
    // Asking a new database for its last migration is an error of refinery's.
    const IS_NEW: &str = "SELECT to_regclass('refinery_schema_history') IS NULL";
    let row = client.query_one(IS_NEW, &[]).await.map_err(|error| tx::convert(IS_NEW, error))?;
    let is_new: bool = row.try_get(0).map_err(|error| tx::convert(IS_NEW, error))?;
    let applied = match is_new {
        true => None,
        false => runner.get_last_applied_migration_async(client).await.map_err(wrong)?,
    };
    let known = super::check_schema(applied.map(|last| i64::from(last.version())), i64::from(known))?;
    runner.run_async(client).await.map_err(wrong)?;
    Ok(known)
}
