//! Doing only so much at once.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use percale_core::ByteCount;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::layer::{Layer, Work, Wrapped};
use crate::{Error, ErrorKind, Operation, SharedStore};

/// A store that does only so many operations at once, and so many bytes a second.
///
/// A stream holds a permit while it fetches a piece, not while its reader is busy with one.
pub type Limit = Wrapped<LimitLayer>;

/// How much is done at once.
#[derive(Debug, Clone, Copy)]
pub struct LimitPolicy {
    /// Operations at once.
    pub concurrency: NonZeroU32,
    /// Bytes read and written a second together (default: no limit).
    pub bytes_per_second: Option<ByteCount>,
}

impl LimitPolicy {
    /// So many operations at once, at least one, and no limit of bytes.
    pub fn new(concurrency: u32) -> Self {
        Self { concurrency: NonZeroU32::new(concurrency).unwrap_or(NonZeroU32::MIN), bytes_per_second: None }
    }
}

#[derive(Debug)]
#[doc(hidden)]
pub struct LimitLayer {
    permits: Semaphore,
    bytes_per_second: Option<ByteCount>,
    /// When the bytes let through so far will have been paid for.
    paid_until: Mutex<Option<Instant>>,
}

impl Limit {
    /// Wraps a store.
    pub fn new(store: SharedStore, policy: LimitPolicy) -> Self {
        let layer = LimitLayer {
            permits: Semaphore::new(policy.concurrency.get() as usize),
            bytes_per_second: policy.bytes_per_second.filter(|rate| rate.0 > 0),
            paid_until: Mutex::new(None),
        };
        Self::over(store, layer)
    }
}

impl Layer for LimitLayer {
    fn step<'a, T: Send + 'a>(&'a self, operation: Operation, work: Work<'a, T>) -> Work<'a, T> {
        Box::pin(async move {
            let closed = |closed| Error::new(ErrorKind::Other, operation).caused_by(closed);
            let _permit = self.permits.acquire().await.map_err(closed)?;
            work.await
        })
    }

    fn shows_files(&self) -> bool {
        self.bytes_per_second.is_none()
    }

    async fn moved(&self, _operation: Operation, bytes: u64) {
        let Some(rate) = self.bytes_per_second else { return };
        let until = {
            let mut paid_until = self.paid_until.lock().unwrap_or_else(PoisonError::into_inner);
            let from = paid_until.unwrap_or_else(Instant::now).max(Instant::now());
            let until = from + Duration::from_secs_f64(bytes as f64 / rate.0 as f64);
            *paid_until = Some(until);
            until
        };
        tokio::time::sleep_until(until).await;
    }
}
