//! Sizes and ranges of bytes.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A number of bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ByteCount(pub u64);

impl ByteCount {
    /// No bytes.
    pub const ZERO: ByteCount = ByteCount(0);

    /// Makes a count of binary kilobytes (1024 bytes).
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// Makes a count of binary megabytes (1024² bytes).
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// Makes a count of binary gigabytes (1024³ bytes).
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    /// Returns the plain number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl Add for ByteCount {
    type Output = ByteCount;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for ByteCount {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for ByteCount {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::ZERO, Add::add)
    }
}

/// Decimal units as storage vendors and network people use them: `1.5 GB`, `820 B`.
impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        // 999.95 would print as 1000.0.
        while value >= 999.95 && unit + 1 < UNITS.len() {
            value /= 1000.0;
            unit += 1;
        }
        match unit {
            0 => write!(f, "{} B", self.0),
            _ if value < 9.995 => write!(f, "{value:.2} {}", UNITS[unit]),
            _ => write!(f, "{value:.1} {}", UNITS[unit]),
        }
    }
}

/// A text that is not a [`ByteCount`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a size: expected a number with an optional unit, such as 4096, 10kB, 1.5GB or 64MiB")]
pub struct ByteCountError(String);

/// Accepts what people write: `4096`, `10kB`, `1.5 GB`, `64MiB`; letters in any case, `B` optional.
impl FromStr for ByteCount {
    type Err = ByteCountError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ByteCountError(text.chars().take(40).collect());
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let factor: u64 = match unit.trim().to_ascii_lowercase().trim_end_matches('b') {
            "" => 1,
            "k" => 1_000,
            "m" => 1_000_000,
            "g" => 1_000_000_000,
            "t" => 1_000_000_000_000,
            "ki" => 1 << 10,
            "mi" => 1 << 20,
            "gi" => 1 << 30,
            "ti" => 1 << 40,
            _ => return Err(wrong()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Self).ok_or_else(wrong);
        }
        let value = number.parse::<f64>().map_err(|_| wrong())? * factor as f64;
        if value < u64::MAX as f64 { Ok(Self(value.round() as u64)) } else { Err(wrong()) }
    }
}

/// A half-open range of bytes, `start..end`, with `start <= end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ByteRange {
    start: u64,
    end: u64,
}

impl ByteRange {
    /// Makes the range `start..end`, or nothing if `end < start`.
    pub const fn new(start: u64, end: u64) -> Option<Self> {
        if start <= end { Some(Self { start, end }) } else { None }
    }

    /// Makes the range of `len` bytes from `start`; ends at `u64::MAX` if it would go beyond.
    pub const fn at(start: u64, len: u64) -> Self {
        Self { start, end: start.saturating_add(len) }
    }

    /// Makes the range of a whole content of this size.
    pub const fn whole(size: ByteCount) -> Self {
        Self { start: 0, end: size.0 }
    }

    /// Returns the first byte's offset.
    pub const fn start(self) -> u64 {
        self.start
    }

    /// Returns the offset behind the last byte.
    pub const fn end(self) -> u64 {
        self.end
    }

    /// Returns the number of bytes.
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// Tells whether there are no bytes in it.
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Tells whether `other` lies wholly inside.
    pub const fn contains(self, other: ByteRange) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Returns what both have, or nothing if they do not overlap.
    pub fn intersect(self, other: ByteRange) -> Option<ByteRange> {
        let start = self.start.max(other.start);
        let end = self.end.min(other.end);
        if start < end { Some(Self { start, end }) } else { None }
    }

    /// Returns the smallest range of whole blocks that covers this one, cut at `size`.
    pub fn align_out(self, block: u64, size: ByteCount) -> ByteRange {
        let start = self.start / block * block;
        let end = self.end.div_ceil(block).saturating_mul(block).min(size.0).max(self.end.min(size.0));
        Self { start: start.min(end), end }
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// A set of bytes as sorted ranges that neither touch nor overlap: what has arrived, what is missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeSet(Vec<ByteRange>);

impl RangeSet {
    /// Makes an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a range, joining it with its neighbours.
    pub fn insert(&mut self, range: ByteRange) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|have| have.end < range.start);
        let behind = self.0.partition_point(|have| have.start <= range.end);
        let joined = match self.0.get(first..behind) {
            Some([]) | None => range,
            Some(touching) => ByteRange {
                start: touching[0].start.min(range.start),
                end: touching[touching.len() - 1].end.max(range.end),
            },
        };
        self.0.splice(first..behind, [joined]);
    }

    /// Takes the bytes of a range out.
    pub fn remove(&mut self, range: ByteRange) {
        if range.is_empty() {
            return;
        }
        let cut = |have: &ByteRange| {
            let before = ByteRange::new(have.start, have.end.min(range.start));
            let behind = ByteRange::new(have.start.max(range.end), have.end);
            [before, behind].into_iter().flatten().filter(|rest| !rest.is_empty()).collect::<Vec<_>>()
        };
        self.0 = self.0.iter().flat_map(cut).collect();
    }

    /// Tells whether any byte of a range is in the set.
    pub fn overlaps(&self, range: ByteRange) -> bool {
        let first = self.0.partition_point(|have| have.end <= range.start);
        self.0.get(first).is_some_and(|have| have.intersect(range).is_some())
    }

    /// Returns the ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = ByteRange> + '_ {
        self.0.iter().copied()
    }

    /// Returns the number of bytes in the set.
    pub fn total(&self) -> ByteCount {
        self.iter().map(|range| ByteCount(range.len())).sum()
    }

    /// Returns the bytes of a content of this size that are not in the set.
    pub fn holes(&self, size: ByteCount) -> RangeSet {
        let mut holes = Vec::new();
        let mut at = 0;
        for have in self.iter().take_while(|have| have.start < size.0) {
            if at < have.start {
                holes.push(ByteRange { start: at, end: have.start });
            }
            at = have.end;
        }
        if at < size.0 {
            holes.push(ByteRange { start: at, end: size.0 });
        }
        RangeSet(holes)
    }
}

impl FromIterator<ByteRange> for RangeSet {
    fn from_iter<I: IntoIterator<Item = ByteRange>>(ranges: I) -> Self {
        let mut set = Self::new();
        for range in ranges {
            set.insert(range);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_printed_and_read_as_people_write_them() {
        for (text, bytes) in
            [("4096", 4096), ("10kB", 10_000), ("1.5 GB", 1_500_000_000), ("64MiB", 64 << 20)]
        {
            assert_eq!(text.parse(), Ok(ByteCount(bytes)));
        }
        for (bytes, text) in
            [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (999_960, "1.00 MB"), (50_000_000, "50.0 MB")]
        {
            assert_eq!(ByteCount(bytes).to_string(), text);
        }
        for text in ["", "x", "1 lightyear", "99999999999999999999", "1e400", "18446744073709551615k"] {
            assert!(text.parse::<ByteCount>().is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn alignment_covers_and_stops_at_the_end() {
        let size = ByteCount(2500);
        assert_eq!(ByteRange::at(1100, 10).align_out(1000, size), ByteRange::at(1000, 1000));
        assert_eq!(ByteRange::at(2400, 50).align_out(1000, size), ByteRange::at(2000, 500));
    }

    proptest! {
        #[test]
        fn a_range_set_equals_a_bitmap(
            changes in prop::collection::vec((any::<bool>(), 0u64..64, 0u64..16), 0..24),
            (start, len) in (0u64..64, 0u64..16),
        ) {
            let mut bits = [false; 96];
            let mut set = RangeSet::new();
            for (is_there, start, len) in changes {
                let range = ByteRange::at(start, len);
                if is_there { set.insert(range) } else { set.remove(range) }
                bits[start as usize..(start + len) as usize].fill(is_there);
            }
            let is_any = bits[start as usize..(start + len) as usize].contains(&true);
            prop_assert_eq!(set.overlaps(ByteRange::at(start, len)), is_any);
            let mut seen = [false; 96];
            let mut last_end = None;
            for range in set.iter() {
                prop_assert!(last_end.is_none_or(|end| end < range.start()), "ranges touch");
                last_end = Some(range.end());
                seen[range.start() as usize..range.end() as usize].fill(true);
            }
            prop_assert_eq!(seen, bits);
            for hole in set.holes(ByteCount(96)).iter() {
                prop_assert!(bits[hole.start() as usize..hole.end() as usize].iter().all(|bit| !bit));
            }
            prop_assert_eq!(set.total().0 + set.holes(ByteCount(96)).total().0, 96);
        }
    }
}
