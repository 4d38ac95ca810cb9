//! Several streams that send what one reader wants, and end together.
//!
//! Each stream sends its own ranges in their order. One that has sent them goes on with half of what another one has not sent
//! yet, and in the end with single groups: so they go out on whichever connection has room, and no connection is idle while another still
//! has much to send. Only the sender knows which has room; a reader that hands the same groups out by asking for them loses a
//! round trip with each request.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use percale_core::ByteRange;
use percale_core::tree::GROUP_SIZE;

use crate::flight::{Aboard, Flight, Line};

/// What the streams that send for one reader have not sent yet. All ranges are of one content, and none is in two streams.
#[derive(Debug, Default)]
pub struct Share {
    streams: Mutex<Vec<Arc<Unsent>>>,
    flight: Arc<Flight>,
}

type Unsent = Mutex<VecDeque<ByteRange>>;

/// The part of one stream. What it has not sent is sent by nobody once this is dropped.
#[derive(Debug)]
pub struct Part {
    share: Arc<Share>,
    own: Arc<Unsent>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A range that has bytes.
fn between(start: u64, end: u64) -> Option<ByteRange> {
    ByteRange::new(start, end).filter(|range| !range.is_empty())
}

impl Share {
    /// Adds a stream that is to send these ranges, each of whole groups.
    pub fn join(self: &Arc<Self>, ranges: impl IntoIterator<Item = ByteRange>) -> Part {
        let ranges = ranges.into_iter().filter(|range| !range.is_empty());
        let own = Arc::new(Mutex::new(ranges.collect()));
        lock(&self.streams).push(own.clone());
        Part { share: self.clone(), own }
    }

    /// Counts a stream's line among those that bring the content.
    pub fn board(&self, line: Line) -> Aboard {
        self.flight.board(line)
    }
}

impl Part {
    /// Takes a group, or what there is of it, that is the next one of this stream's own. Not if another stream took it: then nothing
    /// behind it in the same range is left either.
    pub fn claim(&self, group: ByteRange) -> bool {
        let mut own = lock(&self.own);
        while let Some(first) = own.pop_front() {
            if !first.contains(group) {
                // What lies before was claimed, or passed over.
                if first.start() >= group.end() {
                    own.push_front(first);
                    return false;
                }
                continue;
            }
            if let Some(rest) = between(group.end(), first.end()) {
                own.push_front(rest);
            }
            return true;
        }
        false
    }

    /// Returns what this stream sends next, which it is to [claim](Self::claim) group by group: the first of its own ranges, or else half of
    /// what that stream has left which has most, if that is `least` bytes or more, and more than the group which that stream sends next itself. Nothing once all is sent or claimed.
    pub fn next(&self, least: u64) -> Option<ByteRange> {
        let streams = lock(&self.share.streams);
        if let Some(first) = lock(&self.own).front() {
            return Some(*first);
        }
        let left = |stream: &Arc<Unsent>| lock(stream).iter().map(|range| range.len()).sum::<u64>();
        let (left, longest) =
            streams.iter().map(|stream| (left(stream), stream)).max_by_key(|(left, _)| *left)?;
        let mut theirs = lock(longest);
        let last = theirs.pop_back_if(|_| left >= least && left > GROUP_SIZE)?;
        let half = last.end() - (left / 2).min(last.len());
        let start = half.div_ceil(GROUP_SIZE).min((last.end() - 1) / GROUP_SIZE) * GROUP_SIZE;
        let start = start.max(last.start());
        theirs.extend(between(last.start(), start));
        drop(theirs);
        let taken = between(start, last.end());
        lock(&self.own).extend(taken);
        taken
    }

    /// Passes over what this stream has left of a range that could not be sent.
    pub fn pass(&self, range: ByteRange) {
        lock(&self.own).retain(|own| !range.contains(*own));
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        lock(&self.share.streams).retain(|stream| !Arc::ptr_eq(stream, &self.own));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const G: u64 = GROUP_SIZE;

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange::new(start, end).unwrap()
    }

    #[test]
    fn a_stream_that_is_done_takes_half_of_what_is_left() {
        let share = Arc::new(Share::default());
        let long = share.join([range(0, 5 * G), range(8 * G, 9 * G + 7)]);
        let short = share.join([range(5 * G, 8 * G)]);
        assert_eq!(short.next(0), Some(range(5 * G, 8 * G)));
        assert!(short.claim(range(5 * G, 6 * G)));
        let done = share.join([range(9 * G, 9 * G)]);
        assert_eq!(done.next(7 * G), None, "it is not worth it");
        // Whole groups, the last one of what there is of it.
        assert_eq!(done.next(0), Some(range(8 * G, 9 * G + 7)));
        assert!(done.claim(range(8 * G, 9 * G)) && done.claim(range(9 * G, 9 * G + 7)));
        assert!(long.claim(range(0, G)));
        assert_eq!(done.next(0), Some(range(3 * G, 5 * G)));
        assert!(long.claim(range(G, 2 * G)) && long.claim(range(2 * G, 3 * G)));
        assert!(!long.claim(range(3 * G, 4 * G)), "another stream sends it");
        assert_eq!(long.next(0), Some(range(4 * G, 5 * G)));
        assert!(!done.claim(range(4 * G, 5 * G)) && long.claim(range(4 * G, 5 * G)));
        assert!(short.claim(range(6 * G, 7 * G)));
        done.pass(range(3 * G, 4 * G));
        assert_eq!(done.next(0), None, "each sends its next one itself");
        assert_eq!(short.next(0), Some(range(7 * G, 8 * G)));
    }

    #[test]
    fn what_a_stream_that_was_cut_had_left_is_sent_by_nobody() {
        let share = Arc::new(Share::default());
        let cut = share.join([range(0, 5 * G)]);
        let other = share.join([range(5 * G, 6 * G)]);
        assert!(cut.claim(range(0, G)));
        drop(cut);
        assert!(other.claim(range(5 * G, 6 * G)));
        assert_eq!(other.next(0), None);
    }

    /// Sends all that there is for a stream, with a pause behind each group; returns the groups.
    fn send(part: &Part, pause: Duration) -> Vec<u64> {
        let mut sent = Vec::new();
        while let Some(next) = part.next(0) {
            for group in next.start() / G..next.end() / G {
                if !part.claim(range(group * G, (group + 1) * G)) {
                    break;
                }
                sent.push(group);
                std::thread::sleep(pause);
            }
        }
        sent
    }

    #[test]
    fn each_group_is_sent_once_whoever_is_faster() {
        let share = Arc::new(Share::default());
        let pauses = [2000, 50, 10, 200].map(Duration::from_micros);
        // One has nearly all, since nobody knew how much there is.
        let own = [range(0, 10 * G), range(10 * G, 20 * G), range(20 * G, 200 * G), range(200 * G, 200 * G)];
        let parts = own.map(|own| share.join([own]));
        let sent: Vec<_> = std::thread::scope(|scope| {
            let streams =
                parts.iter().zip(pauses).map(|(part, pause)| scope.spawn(move || send(part, pause)));
            streams.collect::<Vec<_>>().into_iter().map(|stream| stream.join().unwrap()).collect()
        });
        let mut all: Vec<u64> = sent.iter().flatten().copied().collect();
        all.sort_unstable();
        assert_eq!(all, (0..200).collect::<Vec<_>>(), "all, none twice");
        assert!(sent[0].len() < 10 && sent[3].len() > 10, "{sent:?}");
    }
}
