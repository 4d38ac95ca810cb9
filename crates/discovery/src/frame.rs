//! What a server and the process that reads headers say to each other: frames over two pipes.
//!
//! Each frame is a letter, a length of four bytes, the least significant first, and so many bytes. The server sends an [`Asked`], which
//! file it is and what of it is wanted, as `F`, and its first bytes as `B`; the reader answers with `W` as often as it wants others ([`Range`]), each of which the
//! server answers with `B` and the bytes; and in the end with `D`, an [`Outcome`]. Where there are no bytes the server ends the process. The reader begins with `H`, a [`Hello`].

use serde::{Deserialize, Serialize};

use crate::header::Found;
use crate::references::References;

/// Longest frame.
pub const MAX_FRAME: usize = 64 << 20;
/// Bytes of a file that come with it, and that are asked for at once: what a pipe takes in one go. Headers lie in few places, and the next
/// bytes are often in the same block.
pub const BLOCK: u64 = 64 * 1024;
/// Bytes before the content of a frame.
pub const HEAD: usize = 5;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The reader is there.
    Hello,
    /// A file is to be read.
    File,
    /// A range of it is wanted.
    Want,
    /// The bytes of the range.
    Bytes,
    /// What was found.
    Done,
}

impl Kind {
    const ALL: [(Self, u8); 5] = [
        (Self::Hello, b'H'),
        (Self::File, b'F'),
        (Self::Want, b'W'),
        (Self::Bytes, b'B'),
        (Self::Done, b'D'),
    ];

    fn letter(self) -> u8 {
        Self::ALL.into_iter().find(|(kind, _)| *kind == self).map_or(0, |(_, letter)| letter)
    }
}

/// Returns what stands before the content of a frame.
pub fn head(kind: Kind, len: usize) -> [u8; HEAD] {
    let [a, b, c, d] = u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
    [kind.letter(), a, b, c, d]
}

/// Reads what stands before a content: the kind, and the length. Nothing for what is no frame.
pub fn read_head([letter, a, b, c, d]: [u8; HEAD]) -> Option<(Kind, usize)> {
    let kind = Kind::ALL.into_iter().find(|(_, of)| *of == letter)?.0;
    let len = u32::from_le_bytes([a, b, c, d]) as usize;
    (len <= MAX_FRAME).then_some((kind, len))
}

/// The reader is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// What of the shutting in did not work, since this system does not have it.
    pub open: Vec<String>,
}

/// A file that is to be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Its last name.
    pub name: String,
    /// Its bytes.
    pub size: u64,
    /// What of it is wanted.
    #[serde(default)]
    pub what: What,
}

/// What of a file is wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// What its header says.
    #[default]
    Header,
    /// Where the chunks of its arrays lie.
    References,
}

/// A range of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// Where it begins.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
}

/// What became of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// What its header says.
    Found(Vec<Found>),
    /// Where the chunks of its arrays lie.
    References(References),
    /// It has no format that is known.
    NoFormat,
    /// Its header cannot be read.
    Unreadable(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_back_and_others_are_refused() {
        for (kind, _) in Kind::ALL {
            assert_eq!(read_head(head(kind, 70_000)), Some((kind, 70_000)));
        }
        assert_eq!(read_head(head(Kind::Done, MAX_FRAME + 1)), None);
        assert_eq!(read_head([b'x', 0, 0, 0, 0]), None);
    }
}
