//! When a call is made again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, ErrorKind, Retry};

/// How long and how often a call is repeated.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// Time after which nothing is begun again. Default 40 s: a catalog that fails over is away for up to 25 s.
    pub give_up_after: Duration,
    /// The same for a site that was never reached. Default 3 s: a wrong address or a server that is not up is told soon.
    pub first_contact: Duration,
    /// The first pause. Default 100 ms; each further one is twice as long.
    pub first_pause: Duration,
    /// The longest pause of our own. Default 5 s. A `Retry-After` may ask for more.
    pub longest_pause: Duration,
}

impl RetryPolicy {
    /// Never repeats: whoever calls does that, with what it knows.
    pub fn never() -> Self {
        Self { give_up_after: Duration::ZERO, first_contact: Duration::ZERO, ..Self::default() }
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            give_up_after: Duration::from_secs(40),
            first_contact: Duration::from_secs(3),
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(5),
        }
    }
}

/// The attempts of one call.
#[derive(Debug)]
pub(crate) struct Attempts {
    policy: RetryPolicy,
    /// Whether the site has ever answered.
    reached: Arc<AtomicBool>,
    began: Instant,
    warned: Instant,
    failed: u32,
}

/// A person who waits is told why after this time, and again each time it has passed.
const WARN_EVERY: Duration = Duration::from_secs(3);

impl Attempts {
    pub fn new(policy: RetryPolicy, reached: Arc<AtomicBool>) -> Self {
        let now = Instant::now();
        Self { policy, reached, began: now, warned: now, failed: 0 }
    }

    /// Tells how often it failed.
    pub fn failed(&self) -> u32 {
        self.failed
    }

    /// Begins to count anew, since something was achieved.
    pub fn progressed(&mut self) {
        self.began = Instant::now();
        self.failed = 0;
    }

    /// Leaves a time out of account that is no sign of a fault: bytes moved in it, though it is not known what became of them,
    /// or another call had its own attempts.
    pub fn leave_out(&mut self, time: Duration) {
        self.began = (self.began + time).min(Instant::now());
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    /// The error itself, if there is to be no further attempt.
    pub async fn pause_after(&mut self, error: Error) -> Result<(), Error> {
        if error.retry() != Retry::Temporary {
            return Err(error);
        }
        let pause = self.pause(error.retry_after());
        let policy = &self.policy;
        let is_first_contact = error.kind() == ErrorKind::Connection && !self.reached.load(Relaxed);
        let give_up_after = if is_first_contact {
            policy.give_up_after.min(policy.first_contact)
        } else {
            policy.give_up_after
        };
        if self.began.elapsed() + pause > give_up_after {
            return Err(error.with_retry(Retry::Exhausted));
        }
        self.failed += 1;
        if self.warned.elapsed() >= WARN_EVERY {
            self.warned = Instant::now();
            tracing::warn!("{error}; trying again");
        }
        tracing::debug!(%error, pause_ms = pause.as_millis() as u64, attempt = self.failed, "trying again");
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// A random part of the doubled pause ("full jitter"), so that many clients do not come back at once; never less
    /// than the server asked for.
    fn pause(&self, asked: Option<Duration>) -> Duration {
        let doubled = self.policy.first_pause.saturating_mul(1 << self.failed.min(16));
        let most = doubled.min(self.policy.longest_pause);
        let own = most.mul_f64(0.5 + fastrand::f64() / 2.0);
        asked.map_or(own, |asked| asked + own.min(Duration::from_millis(250)))
    }
}

#[cfg(test)]
mod tests {
    use percale_api::Problem;
    use percale_core::ErrorCode;

    use super::*;

    fn attempts(reached: bool) -> Attempts {
        Attempts::new(RetryPolicy::default(), Arc::new(AtomicBool::new(reached)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_site_that_was_never_reached_is_given_up_soon() {
        let refused = || Error::new(ErrorKind::Connection, ErrorCode::SiteUnavailable, "list /s", "refused");
        for (reached, seconds) in [(false, 0..=3), (true, 25..=40)] {
            let mut attempts = attempts(reached);
            let began = Instant::now();
            while attempts.pause_after(refused()).await.is_ok() {}
            assert!(seconds.contains(&began.elapsed().as_secs()), "{reached}: {:?}", began.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn gives_up_after_its_time_and_says_so() {
        let mut attempts = attempts(true);
        let began = Instant::now();
        let error = loop {
            let error = Error::problem("list /s", Problem::new(ErrorCode::CatalogUnavailable, "away"));
            if let Err(error) = attempts.pause_after(error).await {
                break error;
            }
        };
        assert_eq!(error.retry(), Retry::Exhausted);
        assert!(began.elapsed() > Duration::from_secs(25), "a failover is outlived: {:?}", began.elapsed());
        assert!(began.elapsed() <= Duration::from_secs(40));
        assert!(attempts.failed() < 20);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_out_does_not_count() {
        let mut attempts = attempts(true);
        let cut = || Error::new(ErrorKind::Connection, ErrorCode::SiteUnavailable, "put files", "cut");
        let round = Duration::from_secs(60);
        let mut rounds = 0;
        loop {
            tokio::time::sleep(round).await;
            attempts.leave_out(round);
            if attempts.pause_after(cut()).await.is_err() {
                break;
            }
            rounds += 1;
        }
        assert!((8..20).contains(&rounds), "{rounds} rounds: the pauses count");
        attempts.leave_out(round);
        assert!(attempts.began <= Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn waits_as_long_as_the_server_asks() {
        let mut attempts = attempts(true);
        let began = Instant::now();
        let error = Error::problem("list /s", Problem::new(ErrorCode::RateLimited, "slow down"));
        attempts.pause_after(error.with_retry_after(Some(Duration::from_secs(7)))).await.unwrap();
        assert!(began.elapsed() >= Duration::from_secs(7));
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_help_is_not_repeated() {
        for code in [ErrorCode::NotFound, ErrorCode::Conflict, ErrorCode::Forbidden, ErrorCode::NoSpace] {
            let mut attempts = attempts(true);
            let error = Error::problem("put /s/a", Problem::new(code, "no"));
            assert_eq!(attempts.pause_after(error).await.unwrap_err().retry(), Retry::Permanent);
        }
    }
}
