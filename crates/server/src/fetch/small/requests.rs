//! How small objects are cut into requests.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use percale_mover::in_parts;
use percale_mover::tuning::next_request;

use crate::publish::MAX_BATCH;
use crate::reading::in_batches;

/// Bytes that one request asks for at most.
const REQUEST_BYTES: u64 = 32 << 20;
/// The same of the last ones, which begin when so much is left for each stream. None of these ends before the others, and so no connection
/// stands idle for a round trip.
const LAST_BYTES: u64 = 128 << 20;
/// What one of them has at least, in objects or in bytes: less is not worth a stream.
pub(super) const LEAST: (usize, u64) = (MAX_BATCH, 4 << 20);

/// Cuts small objects into requests, which `requests` counts, and into the last ones, which `streams` bring together.
pub(super) fn in_requests<T>(
    mut all: Vec<T>,
    size: fn(&T) -> u64,
    streams: usize,
    requests: &AtomicUsize,
) -> (Vec<Vec<T>>, Vec<Vec<T>>) {
    let streams = streams.max(1);
    let mut bytes = 0;
    let is_last = |one: &&T| {
        bytes += size(one);
        bytes <= streams as u64 * LAST_BYTES
    };
    let last = all.iter().rev().take(streams * MAX_BATCH).take_while(is_last).count();
    let last = in_parts(all.split_off(all.len() - last), size, streams, LEAST);
    let first = in_batches(all, size, || {
        (next_request(requests.fetch_add(1, Relaxed), streams, MAX_BATCH), REQUEST_BYTES)
    });
    requests.fetch_add(last.len(), Relaxed);
    (first, last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_last_requests_are_one_for_each_stream() {
        let of = |count: usize, size: u64| {
            let asked = AtomicUsize::new(0);
            let sizes = vec![size; count];
            let (first, last) = in_requests(sizes, |size| *size, 8, &asked);
            assert_eq!(first.iter().chain(&last).map(Vec::len).sum::<usize>(), count);
            assert_eq!(asked.into_inner(), first.len() + last.len());
            (first.iter().map(Vec::len).collect::<Vec<_>>(), last.iter().map(Vec::len).collect::<Vec<_>>())
        };
        assert_eq!(of(0, MIB), (vec![], vec![]));
        assert_eq!(of(1, MIB), (vec![], vec![1]));
        assert_eq!(of(10, MIB), (vec![], vec![4, 3, 3]));
        assert_eq!(of(1024 + 64, MIB), (vec![32; 2], vec![128; 8]));
        // Of tiny ones no stream has more than a request may name.
        let (first, last) = of(10_000, 100);
        assert_eq!((first[0], last), (64, vec![512; 8]));
    }
}
