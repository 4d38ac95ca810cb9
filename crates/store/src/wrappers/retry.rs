//! Repeating what may succeed later.

use std::time::Duration;

use super::layer::{Layer, Work, Wrapped};
use crate::{Error, Operation, Result, RetryClass, SharedStore};

/// A store that repeats operations whose error is temporary, by its class alone, and marks the last error as exhausted.
///
/// Reads and listings that break are opened again where they stopped: reads only where a generation proves that it is
/// the same file. Renames, and writes that name no place, are not repeated. A repeated `delete` or `mkdir` whose first
/// answer was lost says that nothing was there to do.
pub type Retry = Wrapped<RetryLayer>;

/// How often and how fast operations are repeated.
#[derive(Debug, Clone, Copy)]
pub struct RetryPolicy {
    /// Attempts in all, the first included (default 4).
    pub attempts: u32,
    /// The wait after the first attempt (default 50 ms), doubled each time.
    pub first_wait: Duration,
    /// The longest wait (default 2 s).
    pub longest_wait: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { attempts: 4, first_wait: Duration::from_millis(50), longest_wait: Duration::from_secs(2) }
    }
}

impl RetryPolicy {
    /// The wait after an attempt that failed, or nothing if it was the last. Half of it is random, so that those who
    /// failed together do not come back together.
    fn wait(&self, error: &Error, attempt: u32) -> Option<Duration> {
        if !error.is_temporary() || attempt + 1 >= self.attempts {
            return None;
        }
        let whole = self.first_wait.saturating_mul(2u32.saturating_pow(attempt)).min(self.longest_wait);
        Some(whole.mul_f64(0.5 + fastrand::f64() / 2.0))
    }
}

#[derive(Debug)]
#[doc(hidden)]
pub struct RetryLayer(RetryPolicy);

impl Retry {
    /// Wraps a store.
    pub fn new(store: SharedStore, policy: RetryPolicy) -> Self {
        Self::over(store, RetryLayer(policy))
    }
}

fn count(operation: Operation) {
    metrics::counter!("percale_store_retries_total", "operation" => operation.as_str()).increment(1);
}

impl Layer for RetryLayer {
    fn step<'a, T: Send + 'a>(&'a self, _operation: Operation, work: Work<'a, T>) -> Work<'a, T> {
        work
    }

    fn call<'a, T, W>(&'a self, operation: Operation, work: W) -> Work<'a, T>
    where
        T: Send + 'a,
        W: Fn() -> Work<'a, T> + Send + Sync + 'a,
    {
        Box::pin(async move {
            let mut attempt = 0;
            loop {
                let error = match work().await {
                    Ok(done) => return Ok(done),
                    Err(error) => error,
                };
                let Some(wait) = self.0.wait(&error, attempt) else { return Err(self.give_up(error)) };
                count(operation);
                tokio::time::sleep(wait).await;
                attempt += 1;
            }
        })
    }

    fn batch<'a, I, T, W>(&'a self, operation: Operation, items: Vec<I>, work: W) -> Work<'a, Vec<Result<T>>>
    where
        I: Clone + Send + Sync + 'a,
        T: Send + 'a,
        W: Fn(Vec<I>) -> Work<'a, Vec<Result<T>>> + Send + Sync + 'a,
    {
        Box::pin(async move {
            let mut results: Vec<Option<Result<T>>> = items.iter().map(|_| None).collect();
            let mut open: Vec<usize> = (0..items.len()).collect();
            let mut attempt = 0;
            loop {
                let now: Vec<I> = open.iter().filter_map(|index| items.get(*index).cloned()).collect();
                let done = match work(now).await {
                    Ok(done) => done,
                    Err(error) => {
                        let Some(wait) = self.0.wait(&error, attempt) else {
                            return Err(self.give_up(error));
                        };
                        count(operation);
                        tokio::time::sleep(wait).await;
                        attempt += 1;
                        continue;
                    }
                };
                let mut again = Vec::new();
                let mut longest = Duration::ZERO;
                for (index, result) in open.iter().zip(done) {
                    let wait = result.as_ref().err().and_then(|error| self.0.wait(error, attempt));
                    match (wait, results.get_mut(*index)) {
                        (Some(wait), _) => {
                            longest = longest.max(wait);
                            again.push(*index);
                        }
                        (None, Some(place)) => *place = Some(result.map_err(|error| self.give_up(error))),
                        (None, None) => {}
                    }
                }
                if again.is_empty() {
                    break;
                }
                count(operation);
                tokio::time::sleep(longest).await;
                open = again;
                attempt += 1;
            }
            let missing =
                || Err(Error::new(crate::ErrorKind::Other, operation).detail("the store gave no result"));
            Ok(results.into_iter().map(|result| result.unwrap_or_else(missing)).collect())
        })
    }

    fn resume_after(&self, error: &Error, attempt: u32) -> Option<Duration> {
        self.0.wait(error, attempt)
    }

    fn give_up(&self, error: Error) -> Error {
        if error.is_temporary() { error.retry(RetryClass::Exhausted) } else { error }
    }
}
