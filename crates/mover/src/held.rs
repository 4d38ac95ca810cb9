//! Which bytes of a version whose hash tree is known a site has, and the restart marker that remembers it.
//!
//! The marker lies beside the partial data and names only bytes that were flushed to the disk before it was written. It has
//! no hashes, unlike that of an [upload](crate::received): they are in the version's tree, whose root it names. So it has a few
//! hundred bytes, whatever the size of the content, and may be written many times a second.
//!
//! **Stored form**, version 1, little-endian: `PCHELD` and the format number `1` as a byte, a zero byte, the version's size
//! (8 bytes) and root (32 bytes), the number of ranges that follow (8 bytes), then for each, in order, its start and end
//! (8 bytes each), then the first 8 bytes of the BLAKE3 hash of all before. A marker that is cut, damaged, or of another
//! version counts as none: the bytes are brought again.

use percale_core::range::RangeSet;
use percale_core::tree::{GROUP_SIZE, RootHash, group_range};
use percale_core::{ByteCount, ByteRange};

const MAGIC: &[u8; 8] = b"PCHELD\x01\x00";
const CHECK_LEN: usize = 8;
const RANGE_LEN: usize = 16;

/// The bytes of one version that are here: whole groups of its tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    size: ByteCount,
    root: RootHash,
    ranges: RangeSet,
}

impl Held {
    /// Begins with nothing of a version.
    pub fn new(size: ByteCount, root: RootHash) -> Self {
        Self { size, root, ranges: RangeSet::new() }
    }

    /// Notes that a group is here.
    pub fn insert(&mut self, group: u64) {
        self.ranges.insert(group_range(self.size, group));
    }

    /// Notes that a group is not here after all.
    pub fn remove(&mut self, group: u64) {
        self.ranges.remove(group_range(self.size, group));
    }

    /// Tells whether any of these bytes are here.
    pub fn has_any(&self, range: ByteRange) -> bool {
        self.ranges.overlaps(range)
    }

    /// Returns how many bytes are here.
    pub fn total(&self) -> ByteCount {
        self.ranges.total()
    }

    /// Returns the bytes that are not here.
    pub fn missing(&self) -> RangeSet {
        self.ranges.holes(self.size)
    }

    /// Tells whether all of it is here.
    pub fn is_complete(&self) -> bool {
        self.total() == self.size
    }

    /// Returns the groups that are here, in order.
    pub fn groups(&self) -> impl Iterator<Item = u64> + '_ {
        self.ranges.iter().flat_map(|range| range.start() / GROUP_SIZE..range.end().div_ceil(GROUP_SIZE))
    }

    /// Returns the stored form of the marker.
    pub fn encode(&self) -> Vec<u8> {
        let ranges: Vec<ByteRange> = self.ranges.iter().collect();
        let mut out = Vec::with_capacity(56 + RANGE_LEN * ranges.len() + CHECK_LEN);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.size.0.to_le_bytes());
        out.extend_from_slice(&self.root.0);
        out.extend_from_slice(&(ranges.len() as u64).to_le_bytes());
        for range in ranges {
            out.extend_from_slice(&range.start().to_le_bytes());
            out.extend_from_slice(&range.end().to_le_bytes());
        }
        let check = RootHash::of(&out);
        out.extend_from_slice(&check.0[..CHECK_LEN]);
        out
    }

    /// Reads the stored form, or nothing if it is not a whole marker of this version.
    pub fn decode(stored: &[u8], size: ByteCount, root: RootHash) -> Option<Self> {
        let (checked, check) = stored.split_last_chunk::<CHECK_LEN>()?;
        if !RootHash::of(checked).0.starts_with(check) {
            return None;
        }
        let rest = checked.strip_prefix(MAGIC)?;
        let (stored_size, rest) = rest.split_first_chunk::<8>()?;
        let (stored_root, rest) = rest.split_first_chunk::<32>()?;
        let (count, rest) = rest.split_first_chunk::<8>()?;
        let (ranges, cut) = rest.as_chunks::<RANGE_LEN>();
        let fits = u64::from_le_bytes(*stored_size) == size.0
            && *stored_root == root.0
            && u64::from_le_bytes(*count) == ranges.len() as u64
            && cut.is_empty();
        if !fits {
            return None;
        }
        let mut held = Self::new(size, root);
        let mut at = 0;
        for stored in ranges {
            let (start, end) = stored.split_first_chunk::<8>()?;
            let range = ByteRange::new(u64::from_le_bytes(*start), u64::from_le_bytes(end.try_into().ok()?))?;
            let is_whole_groups = range.align_out(GROUP_SIZE, size) == range;
            if range.start() < at || range.is_empty() || range.end() > size.0 || !is_whole_groups {
                return None;
            }
            at = range.end();
            held.ranges.insert(range);
        }
        Some(held)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: ByteCount = ByteCount(50 * GROUP_SIZE - 7);
    const ROOT: RootHash = RootHash([5; 32]);

    fn held(groups: impl IntoIterator<Item = u64>) -> Held {
        let mut held = Held::new(SIZE, ROOT);
        groups.into_iter().for_each(|group| held.insert(group));
        held
    }

    /// The stored sample of form 1. Never changed; a new form gets a sample of its own.
    #[test]
    fn a_marker_of_form_1_is_still_read_and_written() {
        let sample = include_bytes!("../samples/held-v1.bin");
        let expected = held([0, 1, 2, 7, 49]);
        assert_eq!(Held::decode(sample, SIZE, ROOT), Some(expected.clone()));
        assert_eq!(expected.encode(), sample);
    }

    #[test]
    fn what_is_here_and_what_is_not_make_the_whole() {
        let mut held = held([1, 2, 49]);
        assert_eq!(held.groups().collect::<Vec<_>>(), [1, 2, 49]);
        assert_eq!(held.total().0 + held.missing().total().0, SIZE.0);
        assert!(held.has_any(ByteRange::at(3 * GROUP_SIZE - 1, 5)));
        assert!(!held.has_any(ByteRange::at(3 * GROUP_SIZE, GROUP_SIZE)));
        held.remove(2);
        assert_eq!(held.groups().collect::<Vec<_>>(), [1, 49]);
        (0..50).for_each(|group| held.insert(group));
        assert!(held.is_complete());
        held.remove(49);
        assert!(!held.is_complete());
    }

    proptest! {
        #[test]
        fn a_marker_is_read_whole_or_not_at_all(groups in prop::collection::btree_set(0u64..50, 0..20), at in any::<prop::sample::Index>()) {
            let held = held(groups.clone());
            prop_assert_eq!(held.groups().collect::<Vec<_>>(), groups.into_iter().collect::<Vec<_>>());
            let stored = held.encode();
            prop_assert_eq!(Held::decode(&stored, SIZE, ROOT), Some(held));
            prop_assert_eq!(Held::decode(&stored, ByteCount(SIZE.0 + 1), ROOT), None);
            prop_assert_eq!(Held::decode(&stored, SIZE, RootHash([6; 32])), None);
            let at = at.index(stored.len());
            prop_assert_eq!(Held::decode(&stored[..at], SIZE, ROOT), None);
            let mut damaged = stored;
            damaged[at] ^= 4;
            prop_assert_eq!(Held::decode(&damaged, SIZE, ROOT), None);
        }
    }
}
