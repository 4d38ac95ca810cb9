//! Figures of every operation.

use std::time::Instant;

use super::layer::{Layer, Work, Wrapped};
use crate::{Operation, Result, SharedStore};

/// A store whose operations are counted and timed.
///
/// - `percale_store_operation_duration_seconds`, a histogram, by `store`, `operation` and `result` (`ok`, the words of
///   [`crate::ErrorKind`], or `cancelled`). A batch has the result of its first failed item.
/// - `percale_store_bytes_total`, a counter, by `store` and `direction` (`read`, `write`).
pub type Observe = Wrapped<ObserveLayer>;

#[derive(Debug)]
#[doc(hidden)]
pub struct ObserveLayer {
    store: String,
}

impl Observe {
    /// Wraps a store, which has this name in the figures.
    pub fn new(store: SharedStore, name: impl Into<String>) -> Self {
        Self::over(store, ObserveLayer { store: name.into() })
    }
}

/// Records an operation when it ends, also if it ends by being dropped.
struct Timer<'a> {
    store: &'a str,
    operation: Operation,
    began: Instant,
    result: &'static str,
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        let operation = self.operation.as_str();
        tracing::trace!(store = self.store, operation, result = self.result, ?took, "store operation");
        metrics::histogram!(
            "percale_store_operation_duration_seconds",
            "store" => self.store.to_owned(), "operation" => operation, "result" => self.result
        )
        .record(took);
    }
}

impl ObserveLayer {
    fn timer(&self, operation: Operation) -> Timer<'_> {
        Timer { store: &self.store, operation, began: Instant::now(), result: "cancelled" }
    }
}

fn word<T>(result: &Result<T>) -> &'static str {
    result.as_ref().map_or_else(|error| error.kind().as_str(), |_| "ok")
}

impl Layer for ObserveLayer {
    fn step<'a, T: Send + 'a>(&'a self, operation: Operation, work: Work<'a, T>) -> Work<'a, T> {
        Box::pin(async move {
            let mut timer = self.timer(operation);
            let result = work.await;
            timer.result = word(&result);
            result
        })
    }

    fn batch<'a, I, T, W>(&'a self, operation: Operation, items: Vec<I>, work: W) -> Work<'a, Vec<Result<T>>>
    where
        I: Clone + Send + Sync + 'a,
        T: Send + 'a,
        W: Fn(Vec<I>) -> Work<'a, Vec<Result<T>>> + Send + Sync + 'a,
    {
        Box::pin(async move {
            let mut timer = self.timer(operation);
            let result = work(items).await;
            timer.result = match &result {
                Ok(results) => results.iter().find(|result| result.is_err()).map_or("ok", word),
                Err(_) => word(&result),
            };
            result
        })
    }

    async fn moved(&self, operation: Operation, bytes: u64) {
        let direction = match operation {
            Operation::Read | Operation::ReadSmall | Operation::ReadStaged => "read",
            _ => "write",
        };
        metrics::counter!("percale_store_bytes_total", "store" => self.store.clone(), "direction" => direction)
            .increment(bytes);
    }
}
