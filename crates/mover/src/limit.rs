//! Holds a flow of bytes down to a speed.
//!
//! One [`Bucket`] is shared by all streams that the speed is for. Each takes what it is about to move, in pieces of at most a
//! few MiB, and goes on when everything that was taken before, by whomever, has been paid for. So those who wait are served in
//! the order in which they came, and a stream that is slow anyway leaves its share to the others.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use percale_core::Rate;
use percale_core::tree::GROUP_SIZE;
use tokio::time::Instant;

/// What an idle flow saves up: bytes of so much time may go at once. Long enough that the resolution of timers does not show,
/// short enough that nobody sees a burst.
const BURST: Duration = Duration::from_millis(100);

/// Each stream is to get a group at least that often: one that stands still for longer may be given up by its other end.
const GROUP_EVERY: Duration = Duration::from_secs(4);

/// Returns how many streams a speed keeps busy, at least one.
pub fn most_streams(rate: Rate) -> usize {
    let bytes = rate.bytes_per_second().saturating_mul(GROUP_EVERY.as_secs());
    usize::try_from(bytes / GROUP_SIZE).unwrap_or(usize::MAX).max(1)
}

/// A speed and what was taken of it.
pub struct Bucket {
    rate: Box<dyn Fn() -> Option<Rate> + Send + Sync>,
    /// When all that was taken is paid for.
    paid: Mutex<Option<Instant>>,
}

impl Bucket {
    /// Holds to one speed.
    pub fn new(rate: Rate) -> Self {
        Self::following(move || Some(rate))
    }

    /// Holds to the speed that `rate` says at the moment; to none where it says nothing. What waits already is not told again.
    pub fn following(rate: impl Fn() -> Option<Rate> + Send + Sync + 'static) -> Self {
        Self { rate: Box::new(rate), paid: Mutex::new(None) }
    }

    /// Returns the speed at the moment.
    pub fn rate(&self) -> Option<Rate> {
        (self.rate)()
    }

    /// Takes bytes, and waits until they may move.
    ///
    /// # Cancellation
    /// What was taken stays taken.
    pub async fn take(&self, bytes: u64) {
        let Some(rate) = self.rate() else { return };
        let cost = Duration::from_secs_f64(bytes as f64 / rate.bytes_per_second() as f64);
        let until = {
            let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let earliest = now.checked_sub(BURST).unwrap_or(now);
            let until = paid.map_or(earliest, |paid| paid.max(earliest)) + cost;
            *paid = Some(until);
            until
        };
        tokio::time::sleep_until(until).await;
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bucket").field("rate", &self.rate()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const MB: u64 = 1_000_000;

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    /// Moves pieces of 1 MB, by so many streams that share a bucket. Returns the time that it took by the paused clock.
    async fn moved(bucket: &Arc<Bucket>, streams: u64, pieces: u64) -> Duration {
        let began = Instant::now();
        let streams: Vec<_> = (0..streams)
            .map(|_| {
                let bucket = bucket.clone();
                tokio::spawn(async move {
                    for _ in 0..pieces {
                        bucket.take(MB).await;
                    }
                })
            })
            .collect();
        for stream in streams {
            stream.await.unwrap();
        }
        began.elapsed()
    }

    /// The clock of a paused runtime goes on in milliseconds.
    fn assert_is(took: Duration, seconds: f64) {
        assert!((took.as_secs_f64() - seconds).abs() < 0.002, "{took:?} is not {seconds} s");
    }

    #[tokio::test(start_paused = true)]
    async fn all_streams_together_keep_to_the_speed() {
        let bucket = Arc::new(Bucket::new(rate("10MB/s")));
        assert_is(moved(&bucket, 1, 50).await, 5.0 - 0.1);
        assert_is(moved(&bucket, 10, 5).await, 5.0);
        assert_is(moved(&bucket, 50, 1).await, 5.0);
    }

    #[test]
    fn a_slow_flow_has_few_streams() {
        for (text, streams) in [("1Mbit/s", 1), ("8Mbit/s", 3), ("100Mbit/s", 47), ("1000Gbit/s", 476_837)] {
            assert_eq!(most_streams(rate(text)), streams, "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_saves_up_no_more_than_a_burst() {
        let bucket = Arc::new(Bucket::new(rate("10MB/s")));
        moved(&bucket, 1, 1).await;
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_is(moved(&bucket, 2, 10).await, 2.0 - 0.1);
    }

    #[tokio::test(start_paused = true)]
    async fn streams_take_turns() {
        let bucket = Arc::new(Bucket::new(rate("1MB/s")));
        let (big, small) = (bucket.clone(), bucket.clone());
        let greedy = tokio::spawn(async move {
            for _ in 0..1000 {
                big.take(MB).await;
            }
        });
        let began = Instant::now();
        let modest = tokio::spawn(async move {
            for _ in 0..10 {
                small.take(MB).await;
            }
            began.elapsed()
        });
        // One of each in turn: 20 pieces, not 1010.
        assert!(modest.await.unwrap() < Duration::from_secs(21));
        greedy.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_speed_that_changes_is_followed_and_none_is_no_limit() {
        let is_open = Arc::new(AtomicBool::new(false));
        let watched = is_open.clone();
        let limited = rate("1MB/s");
        let bucket = Bucket::following(move || (!watched.load(Ordering::Relaxed)).then_some(limited));
        let bucket = Arc::new(bucket);
        assert_is(moved(&bucket, 2, 2).await, 4.0 - 0.1);
        is_open.store(true, Ordering::Relaxed);
        assert_eq!(moved(&bucket, 2, 1000).await, Duration::ZERO);
        is_open.store(false, Ordering::Relaxed);
        assert_is(moved(&bucket, 2, 2).await, 4.0);
    }
}
