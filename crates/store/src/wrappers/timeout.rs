//! Waiting only so long.

use std::time::Duration;

use super::layer::{Layer, Work, Wrapped};
use crate::{Error, ErrorKind, Operation, SharedStore};

/// A store whose operations fail with `TimedOut` instead of taking forever.
///
/// The work itself may go on: a system call on a dead network file system cannot be called back.
pub type Timeout = Wrapped<TimeoutLayer>;

/// How long operations may take.
#[derive(Debug, Clone, Copy)]
pub struct TimeoutPolicy {
    /// One operation, or one piece of a stream (default 60 s: more than a disk takes that spins up or a link that fails
    /// over).
    pub operation: Duration,
    /// One that flushes or copies, so takes as long as there are bytes (default 15 min).
    pub flush: Duration,
}

impl Default for TimeoutPolicy {
    fn default() -> Self {
        Self { operation: Duration::from_secs(60), flush: Duration::from_secs(15 * 60) }
    }
}

#[derive(Debug)]
#[doc(hidden)]
pub struct TimeoutLayer(TimeoutPolicy);

impl Timeout {
    /// Wraps a store.
    pub fn new(store: SharedStore, policy: TimeoutPolicy) -> Self {
        Self::over(store, TimeoutLayer(policy))
    }
}

impl Layer for TimeoutLayer {
    fn step<'a, T: Send + 'a>(&'a self, operation: Operation, work: Work<'a, T>) -> Work<'a, T> {
        let limit = match operation {
            Operation::Publish
            | Operation::Sync
            | Operation::Finish
            | Operation::Marker
            | Operation::Clone
            | Operation::StageSmall
            | Operation::Delete
            | Operation::Staged
            | Operation::Discard => self.0.flush,
            _ => self.0.operation,
        };
        Box::pin(async move {
            let late = |_| Err(Error::new(ErrorKind::TimedOut, operation).detail(format!("after {limit:?}")));
            tokio::time::timeout(limit, work).await.unwrap_or_else(late)
        })
    }
}
