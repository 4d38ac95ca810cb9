//! What was accepted once and may not be accepted again.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Mutex, PoisonError};

use percale_core::Timestamp;
use percale_core::ids::TokenId;

use super::MAX_CLOCK_ALLOWANCE;

/// Remembers the ids of statements that were accepted, until they could not be accepted any more.
///
/// - Keeps a bounded number. When it is full of such as are still valid, everything further is refused: better a request
///   that has to be repeated than one that is executed twice. One guard for each signing site keeps a site that signs
///   too much from hindering others.
/// - Knows only of this process and since it started. Whatever a statement asks for that must never be done twice
///   needs an idempotency key besides.
#[derive(Debug)]
pub struct ReplayGuard {
    capacity: usize,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    ids: HashSet<TokenId>,
    by_end: BTreeSet<(Timestamp, TokenId)>,
}

impl ReplayGuard {
    /// Makes a guard that remembers at most `capacity` ids, at about 100 bytes each.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, seen: Mutex::default() }
    }

    /// Tells whether this id comes for the first time, and remembers it until `expires` and the most that clocks may be
    /// apart. Only to be asked about what was verified, or anybody could fill the guard.
    pub fn first_use(&self, id: TokenId, expires: Timestamp, now: Timestamp) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((end, over)) = seen.by_end.first().copied().filter(|(end, _)| *end <= now) {
            seen.by_end.remove(&(end, over));
            seen.ids.remove(&over);
        }
        if seen.ids.len() >= self.capacity || !seen.ids.insert(id) {
            return false;
        }
        seen.by_end.insert((expires.after(MAX_CLOCK_ALLOWANCE), id));
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn an_id_is_accepted_once_as_long_as_it_could_be_used() {
        let guard = ReplayGuard::new(100);
        let (id, now) = (TokenId::new(), Timestamp::now());
        let expires = now.after(5 * MINUTE);
        assert!(guard.first_use(id, expires, now));
        assert!(!guard.first_use(id, expires, now));
        assert!(!guard.first_use(id, expires, now.after(19 * MINUTE)), "clocks may be 15 minutes apart");
        assert!(guard.first_use(TokenId::new(), expires, now));
        guard.first_use(TokenId::new(), expires, now.after(20 * MINUTE));
        assert_eq!(guard.seen.lock().unwrap().ids.len(), 1, "what is over is forgotten");
    }

    #[test]
    fn a_full_guard_refuses_until_there_is_room() {
        let guard = ReplayGuard::new(3);
        let now = Timestamp::now();
        for minute in 1..=3 {
            assert!(guard.first_use(TokenId::new(), now.after(minute * MINUTE), now));
        }
        let id = TokenId::new();
        assert!(!guard.first_use(id, now.after(5 * MINUTE), now));
        assert!(guard.first_use(id, now.after(5 * MINUTE), now.after(16 * MINUTE)));
        let seen = guard.seen.lock().unwrap();
        assert_eq!((seen.ids.len(), seen.by_end.len()), (3, 3));
    }

    #[test]
    fn of_many_at_once_one_is_first() {
        let guard = ReplayGuard::new(100);
        let (id, now) = (TokenId::new(), Timestamp::now());
        let firsts = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| guard.first_use(id, now, now))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).filter(|first| *first).count()
        });
        assert_eq!(firsts, 1);
    }
}
