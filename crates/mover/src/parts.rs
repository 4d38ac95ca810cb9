//! How objects are cut into what several streams are asked for.

/// Cuts objects into as many parts as are worth a stream, at most so many, about equal in bytes and number. A part is worth a stream from so many
/// objects or bytes on as `least` says.
pub fn in_parts<T>(all: Vec<T>, size: fn(&T) -> u64, streams: usize, least: (usize, u64)) -> Vec<Vec<T>> {
    let bytes: u64 = all.iter().map(size).sum();
    let worth = bytes.div_ceil(least.1).max(all.len().div_ceil(least.0) as u64);
    let parts = worth.clamp(1, streams.max(1) as u64);
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
    fn parts_are_about_equal_in_bytes_and_number() {
        let sizes: Vec<u64> = (0..400).map(|at| if at < 20 { MIB } else { 10 }).collect();
        let parts = in_parts(sizes, |size| *size, 4, (512, 4 * MIB));
        let parts: Vec<(usize, u64)> = parts.iter().map(|part| (part.len(), part.iter().sum())).collect();
        assert_eq!(parts.len(), 4);
        assert!(parts.iter().all(|(count, bytes)| *count <= 200 && *bytes <= 10 * MIB), "{parts:?}");
    }

    #[test]
    fn a_stream_has_something_that_is_worth_it() {
        let of = |count, size| -> Vec<usize> {
            let parts = in_parts(vec![size; count], |size| *size, 8, (10, MIB));
            parts.iter().map(Vec::len).collect()
        };
        assert_eq!(of(0, 1), [0; 0]);
        assert_eq!(of(1, 1), [1]);
        assert_eq!(of(20, 1), [10, 10]);
        assert_eq!(of(3, MIB), [1, 1, 1]);
        assert_eq!(of(800, 0), [100; 8]);
    }
}
