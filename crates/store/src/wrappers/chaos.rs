//! A storage that misbehaves, from a seed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::layer::{Layer, Work, Wrapped};
use crate::{Error, ErrorKind, Operation, SharedStore};

/// A store with faults put in: failed operations, lost answers, stalls, short pieces, wrong bytes, a full disk.
///
/// The same seed and the same sequence of operations give the same faults.
pub type Chaos = Wrapped<ChaosLayer>;

/// Which faults there are, and how often. The default has none.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChaosPolicy {
    /// Where the random numbers begin.
    pub seed: u64,
    /// The share of operations that fail with `Unavailable`, nothing done.
    pub errors: f64,
    /// The share of operations that are done, and fail with `TimedOut`.
    pub lost_answers: f64,
    /// The share of operations that take longer by `stall`.
    pub stalls: f64,
    /// How long a stall is.
    pub stall: Duration,
    /// The share of pieces that are handed out in two.
    pub short_reads: f64,
    /// The share of pieces in which one bit is wrong.
    pub wrong_bytes: f64,
    /// The first so many pieces or small files that are written have a wrong bit on the storage, and nobody is told.
    pub wrong_writes: u64,
    /// The storage is full from this write on, counted from 1 over everything that needs room: staging, writing, markers,
    /// flushing, publishing, making collections.
    pub full_at_write: Option<u64>,
}

#[derive(Debug)]
#[doc(hidden)]
pub struct ChaosLayer {
    policy: ChaosPolicy,
    random: Mutex<fastrand::Rng>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    is_healed: AtomicBool,
    writes: AtomicU64,
    wrong_writes: AtomicU64,
}

/// Ends the faults of a [`Chaos`], and tells what was counted.
#[derive(Debug, Clone)]
pub struct ChaosSwitch(Arc<State>);

impl ChaosSwitch {
    /// Ends all faults.
    pub fn heal(&self) {
        self.0.is_healed.store(true, Ordering::SeqCst);
    }

    /// Returns how many operations needed room so far.
    pub fn writes(&self) -> u64 {
        self.0.writes.load(Ordering::SeqCst)
    }
}

impl Chaos {
    /// Wraps a store; the second ends the faults.
    pub fn new(store: SharedStore, policy: ChaosPolicy) -> (Self, ChaosSwitch) {
        let state = Arc::<State>::default();
        let random = Mutex::new(fastrand::Rng::with_seed(policy.seed));
        (Self::over(store, ChaosLayer { policy, random, state: state.clone() }), ChaosSwitch(state))
    }
}

impl ChaosLayer {
    fn is_healed(&self) -> bool {
        self.state.is_healed.load(Ordering::SeqCst)
    }

    fn random<T>(&self, draw: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        draw(&mut self.random.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn happens(&self, share: f64) -> bool {
        share > 0.0 && !self.is_healed() && self.random(|random| random.f64()) < share
    }

    fn with_wrong_bit(&self, bytes: &[u8]) -> Bytes {
        let mut wrong = bytes.to_vec();
        let at = self.random(|random| random.usize(0..wrong.len() * 8));
        if let Some(byte) = wrong.get_mut(at / 8) {
            *byte ^= 1 << (at % 8);
        }
        wrong.into()
    }

    fn is_full(&self, operation: Operation) -> bool {
        let needs_room = matches!(
            operation,
            Operation::Stage
                | Operation::StageSmall
                | Operation::Write
                | Operation::Marker
                | Operation::Sync
                | Operation::Publish
                | Operation::Mkdir
                | Operation::Clone
        );
        if !needs_room {
            return false;
        }
        let number = self.state.writes.fetch_add(1, Ordering::SeqCst) + 1;
        !self.is_healed() && self.policy.full_at_write.is_some_and(|full| number >= full)
    }
}

impl Layer for ChaosLayer {
    fn step<'a, T: Send + 'a>(&'a self, operation: Operation, work: Work<'a, T>) -> Work<'a, T> {
        Box::pin(async move {
            if self.happens(self.policy.stalls) {
                tokio::time::sleep(self.policy.stall).await;
            }
            if self.is_full(operation) {
                return Err(Error::new(ErrorKind::NoSpace, operation).detail("injected"));
            }
            if self.happens(self.policy.errors) {
                return Err(Error::new(ErrorKind::Unavailable, operation).detail("injected"));
            }
            let loses_answer = self.happens(self.policy.lost_answers);
            let result = work.await;
            if loses_answer {
                return Err(
                    Error::new(ErrorKind::TimedOut, operation).detail("injected: the answer was lost")
                );
            }
            result
        })
    }

    fn cut(&self, len: usize) -> usize {
        if len > 1 && self.happens(self.policy.short_reads) {
            self.random(|random| random.usize(1..len))
        } else {
            len
        }
    }

    fn alter_written(&self, bytes: Bytes) -> Bytes {
        if bytes.is_empty() || self.policy.wrong_writes == 0 || self.is_healed() {
            return bytes;
        }
        match self.state.wrong_writes.fetch_add(1, Ordering::SeqCst) < self.policy.wrong_writes {
            true => self.with_wrong_bit(&bytes),
            false => bytes,
        }
    }

    fn shows_files(&self) -> bool {
        false
    }

    fn alter(&self, piece: Bytes) -> Bytes {
        match piece.is_empty() || !self.happens(self.policy.wrong_bytes) {
            true => piece,
            false => self.with_wrong_bit(&piece),
        }
    }
}
