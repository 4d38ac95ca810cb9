//! How small objects are cut into requests.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use percale_mover::tuning::next_request;

use crate::publish::MAX_BATCH;
use crate::reading::in_batches;

/// Bytes that one request asks for at most.
const REQUEST_BYTES: u64 = 32 << 20;
/// The same of the last ones, which begin when so much is left for each stream. None of these ends before the others, and so no connection
/// stands idle for a round trip.
const LAST_BYTES: u64 = 128 << 20;
/// What one of them has at least: less is not worth a stream.
const LEAST_BYTES: u64 = 4 << 20;

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
    let last = in_parts(all.split_off(all.len() - last), size, streams);
    let first = in_batches(all, size, || {
        (next_request(requests.fetch_add(1, Relaxed), streams, MAX_BATCH), REQUEST_BYTES)
    });
    requests.fetch_add(last.len(), Relaxed);
    (first, last)
}

/// Cuts objects into as many parts as are worth a stream, at most so many, about equal in bytes and number.
pub(super) fn in_parts<T>(all: Vec<T>, size: fn(&T) -> u64, streams: usize) -> Vec<Vec<T>> {
    let bytes: u64 = all.iter().map(size).sum();
    let worth = bytes.div_ceil(LEAST_BYTES).max(all.len().div_ceil(MAX_BATCH) as u64);
    let parts = worth.clamp(1, streams as u64);
    // One is worth as much as others in bytes, and as much again in number.
    let (mean, mut passed) = (bytes / all.len().max(1) as u64 + 1, 0);
    let whole = mean * all.len() as u64 + bytes;
    let mut cut: Vec<Vec<T>> = (0..parts).map(|_| Vec::new()).collect();
    for one in all {
        let part = passed * parts / whole;
        passed += mean + size(&one);
        cut[part as usize].push(one);
    }
    cut.retain(|part| !part.is_empty());
    cut
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

    #[test]
    fn parts_are_about_equal_in_bytes_and_number() {
        let sizes: Vec<u64> = (0..400).map(|at| if at < 20 { MIB } else { 10 }).collect();
        let parts = in_parts(sizes, |size| *size, 4);
        let parts: Vec<(usize, u64)> = parts.iter().map(|part| (part.len(), part.iter().sum())).collect();
        assert_eq!(parts.len(), 4);
        assert!(parts.iter().all(|(count, bytes)| *count <= 200 && *bytes <= 10 * MIB), "{parts:?}");
    }
}
