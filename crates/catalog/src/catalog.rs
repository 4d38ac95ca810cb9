//! Opening and closing, and the way from a call to its engine.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use percale_core::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::engine::postgres::Postgres;
use crate::engine::sqlite::Sqlite;
use crate::engine::{Change, Notify, Query, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::CatalogConfig;

/// How soon records that another server wrote are noticed while somebody waits for them.
const POLL: Duration = Duration::from_millis(100);

/// Snapshots of spaces that are written at once. Each holds a connection for as long as its reader takes, and SQLite has
/// four.
const SNAPSHOTS: usize = 2;

/// The catalog of a site.
#[derive(Clone)]
pub struct Catalog {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Engine,
    notify: Notify,
    snapshots: Arc<Semaphore>,
}

enum Engine {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.inner.engine {
            Engine::Sqlite(_) => "Catalog(sqlite)",
            Engine::Postgres(_) => "Catalog(postgres)",
        })
    }
}

/// Opening and closing.
impl Catalog {
    /// Opens the catalog, makes it if it is new, and brings its schema up to date under a lock.
    ///
    /// # Errors
    /// `InvalidConfiguration` for a URL that cannot be used or a schema of a newer release, `Unavailable`.
    pub async fn open(config: &CatalogConfig) -> Result<Self> {
        let notify = Notify(Arc::new(tokio::sync::watch::channel(0).0));
        let url = config.url.as_str();
        let engine = if let Some(path) = url.strip_prefix("sqlite:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() || path.contains('?') || path.starts_with(':') {
                let message = "a catalog URL for SQLite is sqlite:/path/to/file.db";
                return Err(Error::new(ErrorKind::InvalidConfiguration, message));
            }
            Engine::Sqlite(Sqlite::open(Path::new(path), config, notify.clone()).await?)
        } else if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            Engine::Postgres(Postgres::open(config, notify.clone()).await?)
        } else {
            let message = "a catalog URL begins with sqlite: or postgres://";
            return Err(Error::new(ErrorKind::InvalidConfiguration, message));
        };
        let snapshots = Arc::new(Semaphore::new(SNAPSHOTS));
        let catalog = Self { inner: Arc::new(Inner { engine, notify, snapshots }) };
        if matches!(catalog.inner.engine, Engine::Postgres(_)) {
            tokio::spawn(watch_others(Arc::downgrade(&catalog.inner)));
        }
        Ok(catalog)
    }

    /// Ends all work: changes that were taken are finished, later ones are refused.
    pub async fn close(&self) {
        match &self.inner.engine {
            Engine::Sqlite(sqlite) => sqlite.close().await,
            Engine::Postgres(postgres) => postgres.close().await,
        }
    }

    /// Asks the database for a sign of life, without repeating.
    pub async fn ping(&self) -> Result<()> {
        match &self.inner.engine {
            Engine::Sqlite(sqlite) => sqlite.ask(Clock).await.map(drop),
            Engine::Postgres(postgres) => postgres.ask_once(&Clock).await.map(drop),
        }
    }

    /// Returns the version of the schema.
    pub async fn schema_version(&self) -> Result<u32> {
        Ok(match &self.inner.engine {
            Engine::Sqlite(sqlite) => sqlite.schema(),
            Engine::Postgres(postgres) => postgres.schema(),
        })
    }

    /// Returns the database's time, which leases go by.
    pub async fn now(&self) -> Result<Timestamp> {
        self.ask(Clock).await
    }

    /// Returns a number that grows when any journal grew, by this or another server, or a store of this site was changed by
    /// this one. Others' records are noticed within 100 ms while somebody holds a receiver.
    pub fn watch(&self) -> tokio::sync::watch::Receiver<u64> {
        self.inner.notify.0.subscribe()
    }

    /// Says to those that [watch](Self::watch) that something changed of which no journal tells.
    pub(crate) fn notice(&self) {
        self.inner.notify.changed();
    }

    /// Waits until a snapshot may be written.
    pub(crate) async fn snapshot_permit(&self) -> Result<OwnedSemaphorePermit> {
        let permit = self.inner.snapshots.clone().acquire_owned().await;
        permit.map_err(|error| Error::internal("snapshots cannot be counted").with_source(error))
    }

    /// Returns the folder for what is received and not checked yet.
    pub(crate) fn spool_folder(&self) -> PathBuf {
        match &self.inner.engine {
            Engine::Sqlite(sqlite) => sqlite.folder(),
            Engine::Postgres(_) => std::env::temp_dir(),
        }
    }

    /// Answers a question.
    pub(crate) async fn ask<Q: Query>(&self, query: Q) -> Result<Q::Out> {
        match &self.inner.engine {
            Engine::Sqlite(sqlite) => sqlite.ask(query).await,
            Engine::Postgres(postgres) => postgres.ask(query).await,
        }
    }

    /// Makes a change and waits until it is durable.
    pub(crate) async fn change<C: Change>(&self, change: C) -> Result<C::Out> {
        match &self.inner.engine {
            Engine::Sqlite(sqlite) => sqlite.change(change).await,
            Engine::Postgres(postgres) => postgres.change(change).await,
        }
    }
}

struct Clock;

impl Query for Clock {
    type Out = Timestamp;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Timestamp> {
        // A row that must be there: a connection that answers from nothing is not enough.
        crate::rows::site::site(tx).await?;
        Ok(tx.now())
    }
}

struct JournalSum;

impl Query for JournalSum {
    type Out = u64;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<u64> {
        crate::rows::site::journal_sum(tx).await
    }
}

/// Notices what other servers wrote. Ends with the catalog.
async fn watch_others(catalog: Weak<Inner>) {
    let mut known = None;
    loop {
        tokio::time::sleep(POLL).await;
        let Some(inner) = catalog.upgrade() else { return };
        let Engine::Postgres(postgres) = &inner.engine else { return };
        if postgres.is_closed() {
            return;
        }
        if inner.notify.0.receiver_count() == 0 {
            known = None;
            continue;
        }
        // Whoever asks in earnest reports that the database is away; this only waits for it.
        if let Ok(sum) = postgres.ask_once(&JournalSum).await
            && known.replace(sum).is_none_or(|before| before != sum)
        {
            inner.notify.changed();
        }
    }
}
