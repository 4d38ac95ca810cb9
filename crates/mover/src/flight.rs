//! How much a long transfer has on its way.
//!
//! TCP sends more and more until something is lost. Ten connections that do so fill whatever queue there is before the line: who else uses it
//! waits behind that, an eighth of the segments is dropped there, and what was on its way to a site that dies was sent in
//! vain. Once it is known what the line carries, half more than what it holds fills it as well
//! (`docs/decisions/2026-11-28-what-is-on-its-way-is-bounded.md`).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::tuning;

/// What is measured at a time: bytes that waited behind one that was lost go all at once, which evens out in this time.
const LOOK: Duration = Duration::from_secs(1);
/// How much may be on its way, of what a line of this rate and round trip holds. What is above 1 lets the rate grow, and stands in the queue
/// before the line. Measured at 50 ms and 1.2 Gbit/s, with a queue that holds as much as the line: at 1.5 next to nothing was
/// lost, and all was as fast as ever on a quiet machine and 1 % slower on a busy one; at 2 something was lost now and then, which cost a get 8 %.
const HEADROOM: f64 = 1.5;
/// What each connection may have in any case: less does not last while a busy host does something else.
const LEAST: u64 = 512 << 10;
/// On shorter paths little is on its way, and what a busy host needs is more.
const SHORT: Duration = Duration::from_millis(5);

/// A connection, and what it may have on its way. Who holds its socket keeps it to that.
#[derive(Debug, Clone)]
pub struct Line(Arc<LineState>);

#[derive(Debug)]
struct LineState {
    round_trip: Duration,
    /// Bytes; 0 for as many as the kernel likes.
    most: AtomicU64,
}

impl Line {
    /// A connection, with the round trip that it was seen to take.
    pub fn new(round_trip: Duration) -> Self {
        Self(Arc::new(LineState { round_trip, most: AtomicU64::new(0) }))
    }

    /// Returns how many bytes may be on their way at most; nothing for as many as the kernel likes.
    pub fn most(&self) -> Option<u64> {
        Some(self.0.most.load(Relaxed)).filter(|most| *most > 0)
    }
}

/// What this host has on its way, of one content or of what streams bring together, to one reader: so that all lines take the same path.
#[derive(Debug, Default)]
pub struct Flight(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    lines: Vec<Line>,
    /// Most lines that there were at once since the last look.
    widest: usize,
    looked: Option<Instant>,
    /// Bytes since then.
    bytes: u64,
    /// Bytes a second, the most that were seen; nothing before the second look. It never falls: who shares the line with somebody that
    /// fills its queue would else give way to them more and more.
    peak: Option<f64>,
}

/// A line while it takes part. Afterwards it is kept to nothing any more.
#[derive(Debug)]
pub struct Aboard {
    flight: Arc<Flight>,
    line: Line,
}

impl Flight {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a line take part.
    pub fn board(self: &Arc<Self>, line: Line) -> Aboard {
        let mut state = self.lock();
        state.lines.push(line.clone());
        state.widest = state.widest.max(state.lines.len());
        state.bound();
        drop(state);
        Aboard { flight: self.clone(), line }
    }
}

impl State {
    fn moved(&mut self, bytes: u64, now: Instant) {
        self.bytes += bytes;
        let looked = *self.looked.get_or_insert(now);
        let time = now - looked;
        if time < LOOK {
            return;
        }
        // What goes before the first look mostly fills the buffers of both ends.
        let rate = self.bytes as f64 / time.as_secs_f64();
        self.peak = Some(self.peak.map_or(0.0, |peak| peak.max(rate)));
        self.bound();
        (self.looked, self.bytes, self.widest) = (Some(now), 0, self.lines.len());
    }

    /// Says what each line may have on its way.
    fn bound(&self) {
        let round_trip = self.lines.iter().map(|line| line.0.round_trip).min();
        let Some(round_trip) = round_trip.filter(|round_trip| *round_trip >= SHORT) else { return };
        let Some(peak) = self.peak.filter(|peak| *peak > 0.0) else { return };
        let most = HEADROOM * peak * round_trip.as_secs_f64() / self.widest.max(1) as f64;
        let most = (most as u64).max(LEAST);
        // More than the kernel has on its way anyway is no bound.
        let most = if most < tuning::window() { most } else { 0 };
        self.lines.iter().for_each(|line| line.0.most.store(most, Relaxed));
    }
}

impl Aboard {
    /// Counts bytes that moved over the line.
    pub fn moved(&self, bytes: u64) {
        self.flight.lock().moved(bytes, Instant::now());
    }
}

impl Drop for Aboard {
    fn drop(&mut self) {
        let mut state = self.flight.lock();
        state.lines.retain(|line| !Arc::ptr_eq(&line.0, &self.line.0));
        self.line.0.most.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 145_000_000;
    const ROUND_TRIP: Duration = Duration::from_millis(50);

    fn lines(count: usize) -> Vec<Line> {
        (0..count).map(|at| Line::new(ROUND_TRIP + Duration::from_millis(at as u64))).collect()
    }

    /// Moves this much a second, evenly over all lines.
    async fn fly(aboard: &[Aboard], rate: u64, time: Duration) {
        let step = Duration::from_millis(10);
        for _ in 0..time.as_millis() / step.as_millis() {
            tokio::time::advance(step).await;
            aboard.iter().for_each(|line| line.moved(rate / 100 / aboard.len() as u64));
        }
    }

    fn board(flight: &Arc<Flight>, lines: &[Line]) -> Vec<Aboard> {
        lines.iter().map(|line| flight.board(line.clone())).collect()
    }

    /// What each of ten lines is to have at a rate.
    fn is_for(rate: u64, line: &Line) -> bool {
        let wanted = HEADROOM * rate as f64 * ROUND_TRIP.as_secs_f64() / 10.0;
        line.most().is_some_and(|most| (most as f64 / wanted - 1.0).abs() < 0.06)
    }

    #[tokio::test(start_paused = true)]
    async fn lines_share_what_the_path_holds_once_it_is_known() {
        let flight = Arc::new(Flight::default());
        let lines = lines(10);
        let mut aboard = board(&flight, &lines);
        // Buffers fill.
        fly(&aboard, 5 * RATE, Duration::from_millis(500)).await;
        fly(&aboard, RATE, Duration::from_millis(600)).await;
        assert!(lines.iter().all(|line| line.most().is_none()), "the first second does not count");
        fly(&aboard, RATE, Duration::from_secs(3)).await;
        assert!(lines.iter().all(|line| is_for(RATE, line)), "{lines:?}");

        // A slow time takes nothing away, and a faster one gives more.
        fly(&aboard, RATE / 10, Duration::from_secs(5)).await;
        assert!(lines.iter().all(|line| is_for(RATE, line)), "{lines:?}");
        fly(&aboard, 2 * RATE, Duration::from_secs(3)).await;
        assert!(lines.iter().all(|line| is_for(2 * RATE, line)), "{lines:?}");

        // Who is left alone may fill the line, who is gone is free, and who comes is bounded at once.
        aboard.truncate(1);
        assert!(lines[1..].iter().all(|line| line.most().is_none()), "{lines:?}");
        fly(&aboard, RATE, Duration::from_secs(3)).await;
        assert_eq!(lines[0].most(), None, "as much as the kernel likes");
        let back = board(&flight, &lines[1..]);
        assert!(lines.iter().all(|line| line.most().is_some()), "{lines:?}");
        drop((aboard, back));
        assert!(lines.iter().all(|line| line.most().is_none()), "{lines:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_and_short_paths_are_not_bounded_to_less_than_a_busy_host_needs() {
        let flight = Arc::new(Flight::default());
        let lines = lines(4);
        let aboard = board(&flight, &lines);
        fly(&aboard, 1_000_000, Duration::from_secs(5)).await;
        assert!(lines.iter().all(|line| line.most() == Some(LEAST)), "{lines:?}");
        // Nothing moves for long, and then something does.
        tokio::time::advance(Duration::from_secs(1000)).await;
        fly(&aboard, 1_000_000, Duration::from_secs(5)).await;
        assert!(lines.iter().all(|line| line.most() == Some(LEAST)), "{lines:?}");
        let short = Line::new(Duration::from_millis(1));
        let aboard = board(&Arc::default(), std::slice::from_ref(&short));
        fly(&aboard, RATE, Duration::from_secs(5)).await;
        assert_eq!(short.most(), None);
    }
}
