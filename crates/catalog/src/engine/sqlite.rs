//! SQLite: one file, one writing thread, a few connections that only read.

mod tx;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use futures::executor::block_on;
use tokio::sync::{Semaphore, mpsc};

use super::{Change, Job, Limits, Query, Ticket};
use crate::error::{Error, ErrorKind, Result};
use crate::model::CatalogConfig;

pub(crate) use tx::SqliteTx;
use tx::{open_reader, open_writer};

/// Connections that only read. A read takes tens of microseconds, so more would not be busy.
const READERS: usize = 4;

/// The embedded engine.
pub(crate) struct Sqlite {
    path: PathBuf,
    queue: Mutex<Option<mpsc::Sender<Box<dyn Job<SqliteTx>>>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
    readers: Arc<Mutex<Vec<SqliteTx>>>,
    permits: Arc<Semaphore>,
    search_timeout: Duration,
    schema: u32,
}

fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the catalog is closed")
}

impl Sqlite {
    /// Opens or makes the file and brings its schema up to date.
    pub async fn open(path: &Path, config: &CatalogConfig, notify: super::Notify) -> Result<Self> {
        let (file, limits) = (path.to_owned(), Limits { budget: config.retry_budget });
        let (connection, schema) = run_blocking(move || open_writer(&file)).await?;
        let (queue, jobs) = mpsc::channel(config.queue.max(1));
        let batch = config.batch.max(1);
        let writer = std::thread::Builder::new()
            .name("catalog-writer".into())
            .spawn(move || writer::run(connection, jobs, batch, limits, notify))
            .map_err(|error| Error::internal("cannot start the catalog's writer").with_source(error))?;
        let readers = READERS.min(config.pool_size.max(1));
        Ok(Self {
            path: path.to_owned(),
            queue: Mutex::new(Some(queue)),
            writer: Mutex::new(Some(writer)),
            readers: Arc::default(),
            permits: Arc::new(Semaphore::new(readers)),
            search_timeout: config.search_timeout,
            schema,
        })
    }

    /// Returns the version of the schema.
    pub fn schema(&self) -> u32 {
        self.schema
    }

    /// Returns the folder that the file is in.
    pub fn folder(&self) -> PathBuf {
        match self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            Some(folder) => folder.to_owned(),
            None => PathBuf::from("."),
        }
    }

    /// Answers a question on a connection that only reads.
    pub async fn ask<Q: Query>(&self, query: Q) -> Result<Q::Out> {
        let permit = self.permits.clone().acquire_owned().await.map_err(|_| closed())?;
        let (readers, path) = (self.readers.clone(), self.path.clone());
        let within = Q::IS_SEARCH.then_some(self.search_timeout);
        run_blocking(move || {
            let idle = readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let reader = match idle {
                Some(reader) => reader,
                None => open_reader(&path)?,
            };
            let answer = if Q::SNAPSHOT {
                reader.begin_read(within)?;
                let answer = block_on(query.run(&reader));
                reader.roll_back()?;
                answer
            } else {
                reader.look_at_clock();
                block_on(query.run(&reader))
            };
            readers.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
            drop(permit);
            super::in_time(answer, within)
        })
        .await
    }

    /// Hands a change to the writer and waits until it is durable.
    pub async fn change<C: Change>(&self, change: C) -> Result<C::Out> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (ticket, answer) = Ticket::new(change);
        queue.ok_or_else(closed)?.send(Box::new(ticket)).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    /// Finishes what was taken and ends the writer.
    pub async fn close(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer {
            // The writer's own errors went to its callers.
            let _ = tokio::task::spawn_blocking(move || writer.join()).await;
        }
        self.permits.close();
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

async fn run_blocking<R: Send + 'static>(work: impl FnOnce() -> Result<R> + Send + 'static) -> Result<R> {
    match tokio::task::spawn_blocking(work).await {
        Ok(answer) => answer,
        Err(error) => Err(Error::internal("a read of the catalog broke off").with_source(error)),
    }
}
