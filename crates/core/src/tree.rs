//! The BLAKE3 tree over groups of 1 MiB, by which any group of a version is verified without the others.
//!
//! **Goals.** The root equals plain BLAKE3 over the content, so `b3sum` agrees. A group can be hashed knowing only its
//! index, its bytes and the content's size, so groups may arrive in any order over any number of streams.
//!
//! **Layout.** BLAKE3 is a binary tree over chunks of 1024 bytes whose left side is always the largest power of two
//! ([BLAKE3 paper](https://github.com/BLAKE3-team/BLAKE3-specs/blob/master/blake3.pdf), section 2.1). A group of 1024
//! chunks is thus always a whole subtree, and what is kept per group is the chaining value of that subtree. A content
//! of one group or less has no inner tree: its one group hash is the root itself.
//!
//! **Stored form**, version 1: `PCTREE` and the format number `1` as a byte, the base-2 logarithm of the group size as
//! a byte (20), the content's size as 8 bytes little-endian, the root (32 bytes), then 32 bytes for each group, none
//! if there is at most one, then the first 8 bytes of the BLAKE3 hash of all before. A reader refuses any other format
//! number or group size by name.

use std::fmt;
use std::str::FromStr;

use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use serde::{Deserialize, Serialize};

use crate::digest::{Algorithm, Digest};
use crate::{ByteCount, ByteRange};

/// Bytes in a group. A power of two times BLAKE3's chunk of 1024 bytes, as the tree demands. 1 MiB keeps a tree at
/// 32 bytes per MiB (0.003 %), and is what one read of a disk or one frame of a stream carries.
pub const GROUP_SIZE: u64 = 1 << 20;

const MAGIC: &[u8; 8] = b"PCTREE\x01\x14";
const HEADER_LEN: usize = 8 + 8 + 32;
const CHECK_LEN: usize = 8;

/// The BLAKE3 hash of a whole content: the root of its tree. Its text is hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RootHash(pub [u8; 32]);

/// The hash of one group, given the size of the whole: a chaining value, or the root if there is only one group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GroupHash(pub [u8; 32]);

/// A text that is not a hash of 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a BLAKE3 hash: expected 64 hexadecimal digits")]
pub struct HashTextError;

macro_rules! hash_text {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex::encode(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = HashTextError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let mut value = [0; 32];
                hex::decode_to_slice(text, &mut value).map_err(|_| HashTextError)?;
                Ok(Self(value))
            }
        }

        impl TryFrom<String> for $name {
            type Error = HashTextError;
            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(hash: $name) -> Self {
                hash.to_string()
            }
        }
    };
}

hash_text!(RootHash);
hash_text!(GroupHash);

impl RootHash {
    /// Hashes a whole content that is at hand.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// Returns it as a digest.
    pub fn to_digest(self) -> Digest {
        Digest::new(Algorithm::Blake3, self.0).expect("a root has the 32 bytes of a BLAKE3 digest")
    }
}

/// Returns how many groups a content of this size has: 1 for an empty one.
pub const fn group_count(size: ByteCount) -> u64 {
    if size.0 == 0 { 1 } else { size.0.div_ceil(GROUP_SIZE) }
}

/// Returns the bytes of group `index` of a content of this size; empty if there is no such group.
pub fn group_range(size: ByteCount, index: u64) -> ByteRange {
    let start = index.saturating_mul(GROUP_SIZE).min(size.0);
    ByteRange::at(start, GROUP_SIZE.min(size.0 - start))
}

/// Hashes one group.
///
/// `bytes` must be the whole of the group, that is [`group_range`] of the content.
pub fn hash_group(size: ByteCount, index: u64, bytes: &[u8]) -> GroupHash {
    let mut hasher = GroupHasher::new(size, index);
    hasher.update(bytes);
    hasher.finish()
}

/// Hashes one group whose bytes come in pieces. Fastest in multiples of 16 KiB.
#[derive(Debug)]
pub struct GroupHasher {
    hasher: blake3::Hasher,
    is_whole: bool,
}

impl GroupHasher {
    /// Begins group `index` of a content of this size.
    pub fn new(size: ByteCount, index: u64) -> Self {
        let is_whole = group_count(size) == 1;
        let mut hasher = blake3::Hasher::new();
        if !is_whole {
            hasher.set_input_offset(index.saturating_mul(GROUP_SIZE));
        }
        Self { hasher, is_whole }
    }

    /// Takes the next bytes of the group.
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    /// Returns the hash of what came, which must be the whole group.
    ///
    /// # Panics
    /// If nothing came, and the content is not empty.
    pub fn finish(&self) -> GroupHash {
        match self.is_whole {
            true => GroupHash(*self.hasher.finalize().as_bytes()),
            false => GroupHash(self.hasher.finalize_non_root()),
        }
    }
}

/// Why a tree or group was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// The bytes of a group do not have its hash.
    #[error("group {0} does not match its hash")]
    GroupMismatch(u64),
    /// The group hashes do not lead to the root.
    #[error("the group hashes do not lead to the root")]
    RootMismatch,
    /// The number of groups does not fit the size.
    #[error("the number of group hashes does not fit the size")]
    GroupCount,
    /// The stored form is cut, or not a tree.
    #[error("not a stored hash tree")]
    Malformed,
    /// The stored form has a format number or group size that this release does not know.
    #[error("stored hash tree has the unknown format {0:#06x}")]
    UnknownFormat(u16),
}

/// The tree of one content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashTree {
    size: ByteCount,
    root: RootHash,
    /// One for each group, also where there is only one.
    groups: Vec<GroupHash>,
}

impl HashTree {
    /// Makes the tree of a content from the hashes of all its groups, in order.
    ///
    /// # Errors
    /// [`TreeError::GroupCount`].
    pub fn from_groups(size: ByteCount, groups: Vec<GroupHash>) -> Result<Self, TreeError> {
        if groups.len() as u64 != group_count(size) {
            return Err(TreeError::GroupCount);
        }
        let root = match groups.as_slice() {
            [only] => RootHash(only.0),
            several => {
                let (left, right) = several.split_at(left_len(several.len()));
                RootHash(*merge_subtrees_root(&subtree(left), &subtree(right), Mode::Hash).as_bytes())
            }
        };
        Ok(Self { size, root, groups })
    }

    /// Makes the tree of a content that is at hand.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = TreeHasher::new();
        hasher.update(bytes);
        hasher.finish()
    }

    /// Makes the tree of a content of one group or less, for which the root says it all.
    ///
    /// # Errors
    /// [`TreeError::GroupCount`], if the content has more groups.
    pub fn of_single_group(size: ByteCount, root: RootHash) -> Result<Self, TreeError> {
        Self::from_groups(size, vec![GroupHash(root.0)])
    }

    /// Returns the size of the content.
    pub fn size(&self) -> ByteCount {
        self.size
    }

    /// Returns the root.
    pub fn root(&self) -> RootHash {
        self.root
    }

    /// Returns the hashes of the groups, in order.
    pub fn groups(&self) -> &[GroupHash] {
        &self.groups
    }

    /// Checks the bytes of one whole group.
    ///
    /// # Errors
    /// [`TreeError::GroupMismatch`], also if there is no such group or the number of bytes is not the group's.
    pub fn verify(&self, index: u64, bytes: &[u8]) -> Result<(), TreeError> {
        let is_group =
            index < group_count(self.size) && bytes.len() as u64 == group_range(self.size, index).len();
        if !is_group {
            return Err(TreeError::GroupMismatch(index));
        }
        self.verify_hash(index, hash_group(self.size, index, bytes))
    }

    /// Checks what the bytes of one whole group were hashed to.
    ///
    /// # Errors
    /// [`TreeError::GroupMismatch`], also if there is no such group.
    pub fn verify_hash(&self, index: u64, found: GroupHash) -> Result<(), TreeError> {
        let wanted = usize::try_from(index).ok().and_then(|index| self.groups.get(index));
        if wanted == Some(&found) { Ok(()) } else { Err(TreeError::GroupMismatch(index)) }
    }

    /// Returns the stored form (see the module's text).
    pub fn encode(&self) -> Vec<u8> {
        let groups = if self.groups.len() > 1 { self.groups.as_slice() } else { &[] };
        let mut out = Vec::with_capacity(HEADER_LEN + 32 * groups.len() + CHECK_LEN);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.size.0.to_le_bytes());
        out.extend_from_slice(&self.root.0);
        for group in groups {
            out.extend_from_slice(&group.0);
        }
        let check = blake3::hash(&out);
        out.extend_from_slice(&check.as_bytes()[..CHECK_LEN]);
        out
    }

    /// Reads the stored form and checks that the groups lead to the root.
    ///
    /// # Errors
    /// [`TreeError`]: malformed, unknown format, or groups that do not fit the size or the root.
    pub fn decode(stored: &[u8]) -> Result<Self, TreeError> {
        let (checked, check) = stored.split_last_chunk::<CHECK_LEN>().ok_or(TreeError::Malformed)?;
        let (header, rest) = checked.split_at_checked(HEADER_LEN).ok_or(TreeError::Malformed)?;
        let (magic, header) = header.split_at(8);
        if magic != MAGIC {
            return Err(match magic.strip_prefix(&MAGIC[..6]) {
                Some(&[format, group]) => TreeError::UnknownFormat(u16::from_be_bytes([format, group])),
                _ => TreeError::Malformed,
            });
        }
        if !blake3::hash(checked).as_bytes().starts_with(check) {
            return Err(TreeError::Malformed);
        }
        let (size, root) = header.split_at(8);
        let size = ByteCount(u64::from_le_bytes(size.try_into().map_err(|_| TreeError::Malformed)?));
        let root = RootHash(root.try_into().map_err(|_| TreeError::Malformed)?);
        if group_count(size) == 1 {
            return if rest.is_empty() {
                Self::of_single_group(size, root)
            } else {
                Err(TreeError::Malformed)
            };
        }
        let (hashes, cut) = rest.as_chunks::<32>();
        if !cut.is_empty() {
            return Err(TreeError::Malformed);
        }
        let tree = Self::from_groups(size, hashes.iter().map(|hash| GroupHash(*hash)).collect())?;
        if tree.root == root { Ok(tree) } else { Err(TreeError::RootMismatch) }
    }
}

/// The number of groups on the left side: the largest power of two below `count`, which is at least 2.
fn left_len(count: usize) -> usize {
    1 << (count - 1).ilog2()
}

fn subtree(groups: &[GroupHash]) -> [u8; 32] {
    match groups {
        [only] => only.0,
        several => {
            let (left, right) = several.split_at(left_len(several.len()));
            merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
        }
    }
}

/// Builds a tree from bytes that come in order, without knowing how many will come.
#[derive(Debug, Default)]
pub struct TreeHasher {
    current: blake3::Hasher,
    in_current: u64,
    done: Vec<GroupHash>,
}

impl TreeHasher {
    /// Begins an empty content.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            // A full group is closed only when more follows: if it is the only one, its hash is the root.
            if self.in_current == GROUP_SIZE {
                self.done.push(GroupHash(self.current.finalize_non_root()));
                // A new one: `reset` keeps the old input offset (blake3 1.8.7), and counts wrongly after it.
                self.current = blake3::Hasher::new();
                self.current.set_input_offset(self.done.len() as u64 * GROUP_SIZE);
                self.in_current = 0;
            }
            let room = usize::try_from(GROUP_SIZE - self.in_current).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.current.update(now);
            self.in_current += now.len() as u64;
            bytes = later;
        }
    }

    /// Returns the number of bytes taken.
    pub fn size(&self) -> ByteCount {
        ByteCount(self.done.len() as u64 * GROUP_SIZE + self.in_current)
    }

    /// Returns the tree of all bytes taken.
    pub fn finish(mut self) -> HashTree {
        let size = self.size();
        if self.done.is_empty() {
            let root = RootHash(*self.current.finalize().as_bytes());
            return HashTree { size, root, groups: vec![GroupHash(root.0)] };
        }
        self.done.push(GroupHash(self.current.finalize_non_root()));
        HashTree::from_groups(size, self.done).expect("one hash was kept for each group of the bytes counted")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn content(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        blake3::Hasher::new().update(b"content").finalize_xof().fill(&mut bytes);
        bytes
    }

    #[test]
    fn the_root_is_plain_blake3_at_every_group_boundary() {
        let group = GROUP_SIZE as usize;
        for len in [
            0,
            1,
            1023,
            1024,
            1025,
            group - 1,
            group,
            group + 1,
            2 * group,
            3 * group,
            5 * group + 17,
            8 * group,
        ] {
            let bytes = content(len);
            let tree = HashTree::of(&bytes);
            assert_eq!(tree.root(), RootHash::of(&bytes), "{len} bytes");
            assert_eq!(tree.groups().len() as u64, group_count(tree.size()));
            for (index, piece) in bytes.chunks(group).enumerate() {
                assert_eq!(tree.verify(index as u64, piece), Ok(()));
            }
            assert_eq!(HashTree::decode(&tree.encode()), Ok(tree));
        }
    }

    #[test]
    fn damage_is_found() {
        let mut bytes = content(3 * GROUP_SIZE as usize + 5);
        let tree = HashTree::of(&bytes);
        let group =
            |bytes: &[u8], index: usize| bytes.chunks(GROUP_SIZE as usize).nth(index).unwrap().to_vec();
        assert_eq!(tree.verify(0, &group(&bytes, 1)), Err(TreeError::GroupMismatch(0)));
        assert_eq!(tree.verify(3, &group(&bytes, 3)[..4]), Err(TreeError::GroupMismatch(3)));
        assert_eq!(tree.verify(9, b""), Err(TreeError::GroupMismatch(9)));
        bytes[GROUP_SIZE as usize] ^= 1;
        assert_eq!(tree.verify(1, &group(&bytes, 1)), Err(TreeError::GroupMismatch(1)));

        let stored = tree.encode();
        for at in 0..stored.len() {
            let mut damaged = stored.clone();
            damaged[at] ^= 0x40;
            assert!(HashTree::decode(&damaged).is_err(), "damage at byte {at} was not seen");
            assert!(HashTree::decode(&stored[..at]).is_err(), "a cut at byte {at} was not seen");
        }
        let mut newer = stored;
        newer[6] = 2;
        assert_eq!(HashTree::decode(&newer), Err(TreeError::UnknownFormat(0x0214)));
    }

    /// The stored sample of format 1: 1 MiB + 1 byte of zeros. Never changed; a new format gets a sample of its own.
    #[test]
    fn format_1_sample_is_still_read_and_written() {
        let sample = include_bytes!("../samples/tree-v1.bin");
        let tree = HashTree::decode(sample).unwrap();
        let zeros = vec![0; GROUP_SIZE as usize + 1];
        assert_eq!(tree.root(), RootHash::of(&zeros));
        assert_eq!(HashTree::of(&zeros).encode(), sample);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn groups_in_any_pieces_give_the_same_tree(len in 0usize..3_500_000, piece in 1usize..2_000_000) {
            let bytes = content(len);
            let mut hasher = TreeHasher::new();
            for part in bytes.chunks(piece) {
                hasher.update(part);
            }
            let size = ByteCount(len as u64);
            let groups = (0..group_count(size)).map(|index| {
                let range = group_range(size, index);
                hash_group(size, index, &bytes[range.start() as usize..range.end() as usize])
            });
            let tree = HashTree::from_groups(size, groups.collect()).unwrap();
            prop_assert_eq!(tree.root(), RootHash::of(&bytes));
            prop_assert_eq!(hasher.finish(), tree);
        }
    }
}
