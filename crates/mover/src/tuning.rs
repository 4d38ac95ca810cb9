//! How many connections a transfer takes.
//!
//! A connection never carries more than one window in a round trip: `rate = window / rtt`. The window is what the sender's
//! kernel keeps of unacknowledged bytes, and that is bounded by `net.ipv4.tcp_wmem`, 4 MiB on an untuned host, whatever the
//! line could carry. So the number of connections that fill a line is `rate × rtt / window`.

use std::collections::VecDeque;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::time::Duration;

use percale_core::ByteRange;
use percale_core::range::RangeSet;
use percale_core::tree::GROUP_SIZE;

/// The rate that a pair of servers is made to reach, in bytes a second: 5 Gbit/s, what two cores encrypt and verify. A
/// faster path only takes longer to fill if its window is small.
const TARGET_RATE: f64 = 625e6;
/// Of the kernel's limit, which also counts its own bookkeeping, so much is bytes: 3.3 MB of 4 MiB were measured in flight.
const USABLE: f64 = 0.8;
/// What is assumed where the kernel does not tell: Linux's default.
const DEFAULT_WINDOW: u64 = 4 << 20;
/// On a short path as many as keep the disks and cores of both sides busy.
const LEAST: usize = 4;
/// Each connection holds a few groups of 1 MiB in memory on both sides.
const MOST: usize = 16;

/// A number of connections, with its reason.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Streams {
    /// How many.
    pub count: usize,
    /// The round trip that it was chosen for; nothing where none was measured.
    pub rtt: Option<Duration>,
    /// Bytes that one connection keeps in flight at most.
    pub window: u64,
}

impl Streams {
    /// Chooses for a path with this round trip and a window of so many bytes.
    pub fn choose(rtt: Option<Duration>, window: u64) -> Self {
        let needed = rtt.map_or(0.0, |rtt| TARGET_RATE * rtt.as_secs_f64() / window.max(1) as f64);
        let count = (needed.ceil() as usize).clamp(LEAST, MOST);
        Self { count, rtt, window }
    }

    /// Chooses for a path with this round trip, by the window of the sender, or that of this host where the sender does not say.
    pub fn for_path(rtt: Option<Duration>, sender: Option<u64>) -> Self {
        // Whatever a site says of itself, there is one, and the product below stays a number.
        Self::choose(rtt, sender.map_or_else(window, |window| window.clamp(64 << 10, 1 << 40)))
    }
}

impl fmt::Display for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let window = self.window as f64 / 1e6;
        match self.rtt {
            Some(rtt) => {
                let rtt = rtt.as_secs_f64() * 1e3;
                write!(
                    f,
                    "{} streams: a round trip of {rtt:.1} ms, {window:.1} MB in flight each",
                    self.count
                )
            }
            None => write!(f, "{} streams: no round trip was measured yet", self.count),
        }
    }
}

/// What a stream asks for, or sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Whole groups.
    pub range: ByteRange,
    /// Whether it is one of the last, which the sender hands out to whichever stream has room ([`crate::share`]).
    pub is_shared: bool,
}

/// Bytes that are left for each stream when the sender begins to hand out. Streams of one path differ in speed by a fifth and more; over this
/// much, some seconds at 10 MB/s, that makes some MiB, which the sender evens out.
const HANDED_OUT: u64 = 32 << 20;

/// Cuts what is missing of a content into segments of whole groups, for streams that take one after the other. Each is half
/// of what is then left for each stream, as far as the `share` of bytes of a segment allows: large ones first, so that little
/// is asked for anew, and small ones last, so that all streams end together. Where the sender may hand out the last ones, there is one of those
/// for each stream, and they end together all the same.
pub fn cut(
    missing: &RangeSet,
    streams: usize,
    share: RangeInclusive<u64>,
    may_share: bool,
) -> VecDeque<Segment> {
    let streams = streams.max(1) as u64;
    let mut left = missing.total().0;
    let mut last = None;
    let mut segments = VecDeque::new();
    for range in missing.iter() {
        let mut at = range.start();
        while at < range.end() {
            if may_share && last.is_none() && left <= streams * HANDED_OUT {
                last = Some(left.div_ceil(streams));
            }
            let wanted = last.unwrap_or(left / (2 * streams));
            let len = wanted.clamp(*share.start(), *share.end()).div_ceil(GROUP_SIZE) * GROUP_SIZE;
            let end = (at + len).min(range.end());
            let is_shared = last.is_some();
            segments.extend(ByteRange::new(at, end).map(|range| Segment { range, is_shared }));
            left -= end - at;
            at = end;
        }
    }
    segments
}

/// What is cut at least from contents that are brought side by side, so that a round trip for each piece does not show.
const SHARED: u64 = 8 << 20;

/// Returns how many streams one of `beside` contents takes that share them all, and how it is cut: into pieces as many times
/// larger, since the others keep the streams busy while the last of one comes.
pub fn share_of(streams: usize, beside: usize, alone: &RangeInclusive<u64>) -> (usize, RangeInclusive<u64>) {
    let beside = beside.max(1);
    let least = (alone.start() * beside as u64).min(SHARED.max(*alone.start()));
    (streams.div_ceil(beside), least..=*alone.end())
}

/// Names of small objects that the first requests carry: they fit the window that a connection begins with, 14 kB.
const FIRST_NAMES: usize = 64;

/// Returns how many small objects the next request asks for, after so many requests over these streams: few at first, so
/// that all streams are soon busy, twice as many each time that every stream has had a request.
pub fn next_request(requests: usize, streams: usize, most: usize) -> usize {
    let doubled = (requests / streams.max(1)).min(16);
    (FIRST_NAMES << doubled).min(most)
}

/// Returns how many bytes a connection of this host keeps in flight at most. Read once.
pub fn window() -> u64 {
    static WINDOW: OnceLock<u64> = OnceLock::new();
    *WINDOW.get_or_init(|| {
        let limits = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").unwrap_or_default();
        let most = limits.split_whitespace().nth(2).and_then(|most| most.parse().ok());
        (most.unwrap_or(DEFAULT_WINDOW) as f64 * USABLE) as u64
    })
}

/// Returns the size to ask the kernel for, of a socket's buffer that is to hold so many bytes. The kernel takes twice of what it is asked for
/// ([socket(7)](https://man7.org/linux/man-pages/man7/socket.7.html), `SO_SNDBUF`).
pub fn buffer_for(window: u64) -> usize {
    (window as f64 / USABLE / 2.0) as usize
}

#[cfg(test)]
mod tests {
    use percale_core::ByteCount;

    use super::*;
    use crate::ReceivedGroups;

    #[test]
    fn segments_are_whole_groups_and_cover_what_is_missing() {
        let size = ByteCount((1 << 30) + 17);
        let missing = ReceivedGroups::new(size).missing();
        let share = 4 << 20..=64 << 20;
        for streams in [0, 1, 4, 16, 1000] {
            let segments: Vec<_> =
                cut(&missing, streams, share.clone(), false).iter().map(|segment| segment.range).collect();
            let mut at = 0;
            for segment in &segments {
                assert_eq!((segment.start(), segment.start() % GROUP_SIZE), (at, 0));
                assert!(segment.len() <= *share.end());
                at = segment.end();
            }
            assert_eq!(at, size.0);
            let first = segments[0].len();
            assert!(segments.iter().all(|segment| segment.len() <= first));
        }
        let five = ReceivedGroups::new(ByteCount(5 << 20)).missing();
        assert_eq!(cut(&five, 10, share, false).len(), 2);
    }

    #[test]
    fn the_last_segments_are_one_for_each_stream() {
        let of = |mib: u64| {
            let missing = ReceivedGroups::new(ByteCount((mib << 20) + 17)).missing();
            let segments = cut(&missing, 10, 1 << 20..=64 << 20, true);
            let all: RangeSet = segments.iter().map(|segment| segment.range).collect();
            assert_eq!(all.iter().collect::<Vec<_>>(), missing.iter().collect::<Vec<_>>());
            let (shared, first): (Vec<_>, Vec<_>) = segments.iter().partition(|segment| segment.is_shared);
            (
                first.len(),
                shared.len(),
                shared.iter().map(|segment: &&Segment| segment.range.len()).max().unwrap(),
            )
        };
        assert_eq!(of(4), (0, 5, 1 << 20));
        assert_eq!(of(100), (0, 10, 11 << 20));
        let (first, shared, longest) = of(10_000);
        assert!(first > 150 && shared == 10, "{first} and {shared}");
        assert!(longest <= HANDED_OUT);
    }

    #[test]
    fn contents_side_by_side_share_the_streams_and_are_cut_larger() {
        let alone = 1 << 20..=64 << 20;
        assert_eq!(share_of(10, 0, &alone), (10, alone.clone()));
        assert_eq!(share_of(10, 1, &alone), (10, alone.clone()));
        assert_eq!(share_of(10, 4, &alone), (3, 4 << 20..=64 << 20));
        assert_eq!(share_of(10, 40, &alone), (1, 8 << 20..=64 << 20));
        assert_eq!(share_of(10, 40, &(16 << 20..=64 << 20)), (1, 16 << 20..=64 << 20));
    }

    #[test]
    fn requests_grow_as_often_as_each_stream_has_had_one() {
        let asked = [0, 9, 10, 20, 1000].map(|requests| next_request(requests, 10, 500));
        assert_eq!(asked, [64, 64, 128, 256, 500]);
        assert_eq!(next_request(7, 0, 1 << 20), 64 << 7);
    }

    #[test]
    fn a_long_path_with_small_windows_takes_more_connections() {
        let count = |ms: u64, window: u64| Streams::choose(Some(Duration::from_millis(ms)), window).count;
        let small = (4 << 20) * 8 / 10;
        assert_eq!(count(0, small), LEAST);
        assert_eq!(count(10, small), LEAST);
        assert_eq!(count(50, small), 10);
        assert_eq!(count(300, small), MOST);
        // Buffers of 64 MiB, as on hosts that are made for it.
        assert_eq!(count(50, 53 << 20), LEAST);
        assert_eq!(Streams::choose(None, small).count, LEAST);
        // What the sender says counts, as far as it makes sense.
        let path = |sender| Streams::for_path(Some(Duration::from_millis(50)), sender);
        assert_eq!((path(Some(64 << 20)).count, path(None).window), (LEAST, window()));
        assert_eq!(path(Some(0)).count, MOST);
        assert_eq!(count(50, 0), MOST);
    }

    #[test]
    fn the_reason_is_told() {
        let streams = Streams::choose(Some(Duration::from_millis(50)), 3_355_443);
        assert_eq!(streams.to_string(), "10 streams: a round trip of 50.0 ms, 3.4 MB in flight each");
    }
}
