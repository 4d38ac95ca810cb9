//! When the objects of a space are read while it is written to, or objects are moved: who has many is not held up, and what waits does
//! not grow for ever.

use std::time::{Duration, Instant};

use percale_core::{ByteCount, Position};

use crate::config::ExtractionConfig;

/// What waits in a space for its writing to pause.
#[derive(Debug, Clone, Default)]
pub(super) struct Pause {
    /// The end of the journal at the last look, and since when that is it.
    end: Option<(Position, Instant)>,
    /// Nothing while nothing waits.
    waiting: Option<Waiting>,
    /// Up to where in the journal it is read without waiting.
    due: Option<Position>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    since: Instant,
    /// What the space held then.
    used: ByteCount,
}

impl Pause {
    /// Tells whether a space is read now: it was not written to for a while, and nothing moved at this server, or enough waits.
    ///
    /// `rests` is for how long nothing moved; `left` is how many records of its journal were not looked at up to a position, if that is
    /// known; `end` is the end of the journal, and `used` what the space holds.
    pub(super) fn is_over(
        &mut self,
        config: &ExtractionConfig,
        rests: Duration,
        left: impl Fn(Position) -> Option<u64>,
        end: Position,
        used: ByteCount,
    ) -> bool {
        let since = self.end.filter(|(last, _)| *last == end).map_or_else(Instant::now, |(_, since)| since);
        self.end = Some((end, since));
        if self.due.is_some_and(|due| due.term == end.term && left(due) != Some(0)) {
            return true;
        }
        self.due = None;
        let does_rest = since.elapsed().min(rests) >= config.delay;
        let waiting = *self.waiting.get_or_insert_with(|| Waiting { since: Instant::now(), used });
        let is_enough = waiting.since.elapsed() >= config.at_latest
            || left(end).is_some_and(|records| records >= config.at_count)
            || used.0.saturating_sub(waiting.used.0) >= config.at_bytes;
        if does_rest || is_enough {
            (self.waiting, self.due) = (None, Some(end));
        }
        does_rest || is_enough
    }
}

#[cfg(test)]
mod tests {
    use percale_core::ids::SpaceId;
    use uuid::Uuid;

    use super::*;

    const LONG: Duration = Duration::from_secs(1000);

    fn at(seq: u64) -> Position {
        Position { space: SpaceId(Uuid::nil()), term: 1, seq }
    }

    fn read(to: u64) -> impl Fn(Position) -> Option<u64> {
        move |end| Some(end.seq.saturating_sub(to))
    }

    fn never() -> ExtractionConfig {
        let (delay, at_latest) = (Duration::from_secs(3600), Duration::from_secs(3600));
        ExtractionConfig { delay, at_latest, at_count: u64::MAX, at_bytes: u64::MAX, ..Default::default() }
    }

    #[test]
    fn a_space_is_read_when_it_rests() {
        let mut pause = Pause::default();
        for end in 1..5 {
            assert!(!pause.is_over(&never(), LONG, read(0), at(end), ByteCount(end)));
        }
        assert!(!pause.is_over(&never(), LONG, read(0), at(4), ByteCount(4)), "it has not rested for long");
        let soon = ExtractionConfig { delay: Duration::from_millis(1), ..never() };
        std::thread::sleep(soon.delay);
        assert!(!pause.is_over(&soon, Duration::ZERO, read(0), at(4), ByteCount(4)), "objects are moved");
        assert!(pause.is_over(&soon, LONG, read(0), at(4), ByteCount(4)));
    }

    #[test]
    fn it_is_read_although_it_does_not_rest_once_enough_waits() {
        let (first, next) = ((at(10), ByteCount(1000)), (at(20), ByteCount(1500)));
        for (config, is_over) in [
            (never(), false),
            (ExtractionConfig { at_latest: Duration::ZERO, ..never() }, true),
            (ExtractionConfig { at_count: 15, ..never() }, true),
            (ExtractionConfig { at_count: 21, ..never() }, false),
            (ExtractionConfig { at_bytes: 500, ..never() }, true),
            (ExtractionConfig { at_bytes: 501, ..never() }, false),
        ] {
            let mut pause = Pause::default();
            pause.is_over(&config, LONG, read(0), first.0, first.1);
            assert_eq!(pause.is_over(&config, LONG, read(0), next.0, next.1), is_over, "{config:?}");
        }
    }

    #[test]
    fn what_waited_is_read_to_its_end_and_what_came_since_waits() {
        let config = ExtractionConfig { at_count: 1000, ..never() };
        let mut pause = Pause::default();
        assert!(pause.is_over(&config, LONG, read(0), at(1000), ByteCount(0)));
        // Page by page, while it is written to.
        for page in [500, 999] {
            assert!(pause.is_over(&config, LONG, read(page), at(1001 + page), ByteCount(0)), "{page}");
        }
        assert!(!pause.is_over(&config, LONG, read(1000), at(1999), ByteCount(0)));
        // What waited in a journal that is over is in the new one.
        assert!(!pause.is_over(&config, LONG, |_| None, Position { term: 2, ..at(5) }, ByteCount(0)));
        assert!(pause.is_over(&config, LONG, read(1000), at(2000), ByteCount(0)));
    }
}
