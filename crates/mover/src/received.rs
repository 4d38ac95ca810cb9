//! Which groups of a content have arrived, and the restart marker that remembers it.
//!
//! The marker lies beside the partial data and names only groups that were flushed to the disk before it was written.
//!
//! **Stored form**, version 1, little-endian: `PCMARK` and the format number `1` as a byte, a zero byte, the content's
//! size (8 bytes), the number of groups that follow (8 bytes), then for each its number (8 bytes) and hash (32 bytes), then the first
//! 8 bytes of the BLAKE3 hash of all before. A marker that is cut or damaged counts as none: the bytes are sent again.

use std::collections::BTreeMap;

use percale_core::range::RangeSet;
use percale_core::tree::{GroupHash, HashTree, RootHash, TreeError, group_count, group_range};
use percale_core::{ByteCount, ByteRange};

const MAGIC: &[u8; 8] = b"PCMARK\x01\x00";
const CHECK_LEN: usize = 8;
const ENTRY_LEN: usize = 8 + 32;

/// The groups of one content that have arrived, with their hashes: 32 bytes for each MiB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedGroups {
    size: ByteCount,
    groups: BTreeMap<u64, GroupHash>,
}

impl ReceivedGroups {
    /// Begins with nothing of a content of this size.
    pub fn new(size: ByteCount) -> Self {
        Self { size, groups: BTreeMap::new() }
    }

    /// Returns the size of the content.
    pub fn size(&self) -> ByteCount {
        self.size
    }

    /// Notes that a verified group was written. Returns whether it is new.
    pub fn insert(&mut self, group: u64, hash: GroupHash) -> bool {
        group < group_count(self.size) && self.groups.insert(group, hash).is_none()
    }

    /// Returns the hash under which a group arrived.
    pub fn get(&self, group: u64) -> Option<GroupHash> {
        self.groups.get(&group).copied()
    }

    /// Tells whether every group is there.
    pub fn is_complete(&self) -> bool {
        self.groups.len() as u64 == group_count(self.size)
    }

    /// Returns the bytes that have not arrived. An empty content that has not arrived has none missing; ask
    /// [`ReceivedGroups::is_complete`].
    pub fn missing(&self) -> RangeSet {
        let have: RangeSet = self.groups.keys().map(|group| group_range(self.size, *group)).collect();
        have.holes(self.size)
    }

    /// Returns how many bytes have arrived from the beginning without a hole.
    pub fn contiguous(&self) -> ByteCount {
        self.missing().iter().next().map_or(self.size, |hole: ByteRange| ByteCount(hole.start()))
    }

    /// Makes the tree of the content, all of which must have arrived.
    ///
    /// # Errors
    /// [`TreeError::GroupCount`] if something is missing.
    pub fn tree(&self) -> Result<HashTree, TreeError> {
        HashTree::from_groups(self.size, self.groups.values().copied().collect())
    }

    /// Returns the root of the content, all of which must have arrived.
    ///
    /// # Errors
    /// [`TreeError::GroupCount`] if something is missing.
    pub fn root(&self) -> Result<RootHash, TreeError> {
        self.tree().map(|tree| tree.root())
    }

    /// Returns the stored form of the marker.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24 + ENTRY_LEN * self.groups.len() + CHECK_LEN);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.size.0.to_le_bytes());
        out.extend_from_slice(&(self.groups.len() as u64).to_le_bytes());
        for (group, hash) in &self.groups {
            out.extend_from_slice(&group.to_le_bytes());
            out.extend_from_slice(&hash.0);
        }
        let check = RootHash::of(&out);
        out.extend_from_slice(&check.0[..CHECK_LEN]);
        out
    }

    /// Reads the stored form, or nothing if it is not a whole marker of a content of this size.
    pub fn decode(stored: &[u8], size: ByteCount) -> Option<Self> {
        let (checked, check) = stored.split_last_chunk::<CHECK_LEN>()?;
        if !RootHash::of(checked).0.starts_with(check) {
            return None;
        }
        let rest = checked.strip_prefix(MAGIC)?;
        let (stored_size, rest) = rest.split_first_chunk::<8>()?;
        let (count, rest) = rest.split_first_chunk::<8>()?;
        let (entries, cut) = rest.as_chunks::<ENTRY_LEN>();
        let fits = u64::from_le_bytes(*stored_size) == size.0
            && u64::from_le_bytes(*count) == entries.len() as u64
            && cut.is_empty();
        if !fits {
            return None;
        }
        let mut received = Self::new(size);
        for entry in entries {
            let (group, hash) = entry.split_first_chunk::<8>()?;
            received.insert(u64::from_le_bytes(*group), GroupHash(hash.try_into().ok()?)).then_some(())?;
        }
        Some(received)
    }
}

#[cfg(test)]
mod tests {
    use percale_core::tree::{GROUP_SIZE, hash_group};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn groups_in_any_order_make_the_tree() {
        let bytes = vec![3; 2 * GROUP_SIZE as usize + 9];
        let size = ByteCount(bytes.len() as u64);
        let mut received = ReceivedGroups::new(size);
        for group in [2, 0] {
            let range = group_range(size, group);
            let hash = hash_group(size, group, &bytes[range.start() as usize..range.end() as usize]);
            assert!(received.insert(group, hash));
            assert!(!received.insert(group, hash), "the same group again is not new");
        }
        assert_eq!(received.missing().iter().collect::<Vec<_>>(), [group_range(size, 1)]);
        assert_eq!(received.contiguous(), ByteCount(GROUP_SIZE));
        assert!(received.tree().is_err());
        let range = group_range(size, 1);
        received.insert(1, hash_group(size, 1, &bytes[range.start() as usize..range.end() as usize]));
        assert!(received.is_complete());
        assert_eq!(received.root(), Ok(RootHash::of(&bytes)));
        assert!(!received.insert(3, GroupHash([0; 32])), "there is no group 3");
    }

    #[test]
    fn an_empty_content_has_one_group() {
        let mut received = ReceivedGroups::new(ByteCount::ZERO);
        assert!(!received.is_complete());
        received.insert(0, hash_group(ByteCount::ZERO, 0, b""));
        assert_eq!(received.root(), Ok(RootHash::of(b"")));
    }

    proptest! {
        #[test]
        fn a_marker_is_read_whole_or_not_at_all(groups in prop::collection::btree_set(0u64..50, 0..20), at in any::<prop::sample::Index>()) {
            let size = ByteCount(50 * GROUP_SIZE);
            let mut received = ReceivedGroups::new(size);
            for group in groups {
                received.insert(group, GroupHash([group as u8; 32]));
            }
            let stored = received.encode();
            prop_assert_eq!(ReceivedGroups::decode(&stored, size), Some(received.clone()));
            prop_assert_eq!(ReceivedGroups::decode(&stored, ByteCount(size.0 + 1)), None);
            let at = at.index(stored.len());
            prop_assert_eq!(ReceivedGroups::decode(&stored[..at], size), None);
            let mut damaged = stored;
            damaged[at] ^= 4;
            prop_assert_eq!(ReceivedGroups::decode(&damaged, size), None);
        }
    }
}
