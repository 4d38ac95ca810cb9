//! Where the time of a transfer's streams goes.
//!
//! Whoever works for a stream holds a [`Timing`] while it waits for something. A wait counts while it lasts, not when it ends:
//! a stream that hangs is seen to hang.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What a stream may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Bytes of another site: its disk, or the line.
    Bytes,
    /// Bytes of an own store.
    OwnDisk,
    /// Hashing and comparing.
    Verify,
    /// The store that the bytes go to.
    Disk,
    /// The catalog here, or the space's home.
    Catalog,
    /// A limit on the speed.
    Limit,
    /// Other tasks that use the same source.
    Turn,
}

const WAITS: usize = 7;

/// Counts for all streams of a transfer.
#[derive(Debug)]
pub struct Meter {
    began: Instant,
    streams: Clock,
    waits: [Clock; WAITS],
    bytes: AtomicU64,
    items: AtomicU64,
    in_hand: AtomicU64,
}

/// The time that several spend at something, together. Under one lock, which is held for nanoseconds, since number and sum must
/// fit each other.
#[derive(Debug, Default)]
struct Clock(Mutex<Spent>);

#[derive(Debug, Default, Clone, Copy)]
struct Spent {
    /// How many are at it.
    now: u32,
    /// Ends minus beginnings, in nanoseconds since the meter began. Those who are at it have only begun.
    sum: i128,
}

impl Clock {
    fn lock(&self) -> MutexGuard<'_, Spent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn until(&self, at: Duration) -> (u32, Duration) {
        let Spent { now, sum } = *self.lock();
        let nanos = sum + i128::from(now) * at.as_nanos() as i128;
        (now, Duration::from_nanos(u64::try_from(nanos).unwrap_or_default()))
    }
}

/// Counts time until it is dropped.
#[derive(Debug)]
#[must_use = "time is counted until it is dropped"]
pub struct Timing<'a> {
    meter: &'a Meter,
    clock: &'a Clock,
}

impl Drop for Timing<'_> {
    fn drop(&mut self) {
        let now = self.meter.began.elapsed().as_nanos() as i128;
        let mut spent = self.clock.lock();
        spent.now -= 1;
        spent.sum += now;
    }
}

/// Bytes that came of something that is not whole yet.
#[derive(Debug)]
pub struct InHand<'a> {
    meter: &'a Meter,
    bytes: AtomicU64,
}

impl InHand<'_> {
    /// Counts bytes that were verified and written.
    pub fn add(&self, bytes: u64) {
        self.meter.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.meter.in_hand.fetch_add(bytes, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        self.meter.in_hand.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            streams: Clock::default(),
            waits: Default::default(),
            bytes: AtomicU64::default(),
            items: AtomicU64::default(),
            in_hand: AtomicU64::default(),
        }
    }
}

impl Meter {
    fn time<'a>(&'a self, clock: &'a Clock) -> Timing<'a> {
        let now = self.began.elapsed().as_nanos() as i128;
        let mut spent = clock.lock();
        spent.now += 1;
        spent.sum -= now;
        drop(spent);
        Timing { meter: self, clock }
    }

    /// Counts a stream while it is open.
    pub fn stream(&self) -> Timing<'_> {
        self.time(&self.streams)
    }

    /// Counts waiting by a stream.
    pub async fn waiting<T>(&self, wait: Wait, work: impl Future<Output = T>) -> T {
        let _timing = self.time(&self.waits[wait as usize]);
        work.await
    }

    /// Counts work that a stream does by itself.
    pub fn working<T>(&self, wait: Wait, work: impl FnOnce() -> T) -> T {
        let _timing = self.time(&self.waits[wait as usize]);
        work()
    }

    /// Counts time that was waited for one thing as spent on another.
    pub fn reassign(&self, from: Wait, to: Wait, time: Duration) {
        let nanos = time.as_nanos() as i128;
        self.waits[from as usize].lock().sum -= nanos;
        self.waits[to as usize].lock().sum += nanos;
    }

    /// Counts bytes that came and were found right.
    pub fn received(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts things that are whole.
    pub fn ended(&self, items: u64) {
        self.items.fetch_add(items, Ordering::Relaxed);
    }

    /// Begins to count bytes of one thing, which are in hand until it is whole or given up.
    pub fn in_hand(&self) -> InHand<'_> {
        InHand { meter: self, bytes: AtomicU64::default() }
    }

    /// Returns how many bytes came of what is not whole yet.
    pub fn bytes_in_hand(&self) -> u64 {
        self.in_hand.load(Ordering::Relaxed)
    }

    /// Returns what was counted up to now.
    pub fn sample(&self) -> Sample {
        let at = self.began.elapsed();
        let (open, streams) = self.streams.until(at);
        Sample {
            at,
            bytes: self.bytes.load(Ordering::Relaxed),
            items: self.items.load(Ordering::Relaxed),
            open,
            streams,
            waits: self.waits.each_ref().map(|clock| clock.until(at).1),
        }
    }
}

/// What a meter shows; the difference of two tells of the time between them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sample {
    /// How long the meter counted.
    pub at: Duration,
    /// Bytes that came.
    pub bytes: u64,
    /// Things that became whole.
    pub items: u64,
    /// Streams that are open.
    pub open: u32,
    /// How long streams were open, all together.
    pub streams: Duration,
    pub(crate) waits: [Duration; WAITS],
}

impl Sample {
    /// Returns for how long streams waited for something, all together.
    pub fn waited(&self, wait: Wait) -> Duration {
        self.waits[wait as usize]
    }

    /// Sets it, for those who make samples up.
    #[cfg(test)]
    pub(crate) fn with(mut self, wait: Wait, waited: Duration) -> Self {
        self.waits[wait as usize] = waited;
        self
    }

    /// Returns what happened since an earlier sample.
    pub fn since(&self, earlier: &Sample) -> Sample {
        let mut waits = self.waits;
        for (wait, before) in waits.iter_mut().zip(earlier.waits) {
            *wait = wait.saturating_sub(before);
        }
        Sample {
            at: self.at.saturating_sub(earlier.at),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            items: self.items.saturating_sub(earlier.items),
            open: self.open,
            streams: self.streams.saturating_sub(earlier.streams),
            waits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn waits_count_while_they_last() {
        let meter = Meter::default();
        let stream = meter.stream();
        let hanging = meter.waiting(Wait::Bytes, std::future::pending::<()>());
        tokio::select! {
            () = hanging => {}
            () = tokio::time::sleep(3 * SECOND) => {
                let now = meter.sample();
                assert_eq!((now.open, now.streams, now.waited(Wait::Bytes)), (1, 3 * SECOND, 3 * SECOND));
            }
        }
        // The wait was dropped, the stream goes on.
        meter.waiting(Wait::Disk, tokio::time::sleep(SECOND)).await;
        let before = meter.sample();
        assert_eq!((before.streams, before.waited(Wait::Disk)), (4 * SECOND, SECOND));
        assert_eq!(before.waited(Wait::Bytes), 3 * SECOND);
        drop(stream);
        tokio::time::advance(10 * SECOND).await;
        let later = meter.sample().since(&before);
        assert_eq!((later.at, later.open, later.streams), (10 * SECOND, 0, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn streams_add_up() {
        let meter = Meter::default();
        let (_one, _two) = (meter.stream(), meter.stream());
        tokio::join!(
            meter.waiting(Wait::Bytes, tokio::time::sleep(2 * SECOND)),
            meter.waiting(Wait::Bytes, tokio::time::sleep(SECOND)),
        );
        let now = meter.sample();
        assert_eq!((now.streams, now.waited(Wait::Bytes)), (4 * SECOND, 3 * SECOND));
        meter.reassign(Wait::Bytes, Wait::Verify, SECOND);
        let now = meter.sample();
        assert_eq!((now.waited(Wait::Bytes), now.waited(Wait::Verify)), (2 * SECOND, SECOND));
    }

    #[test]
    fn what_is_in_hand_is_let_go_with_its_thing() {
        let meter = Meter::default();
        let one = meter.in_hand();
        one.add(10);
        let two = meter.in_hand();
        two.add(5);
        assert_eq!((meter.bytes_in_hand(), meter.sample().bytes), (15, 15));
        drop(one);
        assert_eq!((meter.bytes_in_hand(), meter.sample().bytes), (5, 15));
    }
}
