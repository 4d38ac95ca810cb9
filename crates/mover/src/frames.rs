//! The frames of a stream: what there is, and the limits.

use bytes::Bytes;
use percale_core::tree::{GROUP_SIZE, GroupHash};
use percale_core::{ByteCount, ErrorCode};

/// The first bytes of every stream: a name and the format number 1.
pub const PREAMBLE: &[u8; 8] = b"PCFRAME\x01";
/// The first bytes of a stream of format 2, each frame of which is authenticated ([`crate::authentic`]).
pub const PREAMBLE_AUTHENTIC: &[u8; 8] = b"PCFRAME\x02";
/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 20;
/// Bytes of the group hash that leads the payload of a DATA frame.
pub const HASH_LEN: usize = 32;
/// Bytes of the tag of a frame of format 2.
pub const TAG_LEN: usize = 16;
/// Most bytes of a DATA payload: the hash and one group.
pub const MAX_DATA_LEN: usize = HASH_LEN + GROUP_SIZE as usize;
/// Most bytes of any other payload.
pub const MAX_INFO_LEN: usize = 64 << 10;
/// Most bytes of all ITEM payloads of a stream: the same as the largest JSON body, since it is the same kind of load.
pub const MAX_ITEMS_INFO_LEN: usize = 4 << 20;
/// Most items of a stream.
pub const MAX_ITEMS: u32 = 65_536;

pub(crate) const ITEM: u8 = 1;
pub(crate) const DATA: u8 = 2;
pub(crate) const DONE: u8 = 3;
pub(crate) const FAIL: u8 = 4;
pub(crate) const AWAY: u8 = 5;
pub(crate) const ERROR: u8 = 14;
pub(crate) const END: u8 = 15;

/// One frame. The JSON of `info` and `problem` is opaque here; `percale-api` has its types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Announces an item.
    Item {
        /// Its number: 0, 1, 2, …
        item: u32,
        /// Bytes of its content.
        size: ByteCount,
        /// JSON: what it is.
        info: Bytes,
    },
    /// One group of an item.
    Data(DataFrame),
    /// All of an item's bytes were sent.
    Done {
        /// The item.
        item: u32,
        /// JSON: its root and digests.
        info: Bytes,
    },
    /// The item cannot be sent; the stream goes on.
    Fail {
        /// The item.
        item: u32,
        /// JSON problem.
        problem: Bytes,
    },
    /// The item's bytes are to be read from another site; the stream goes on. Only sent to whoever asked for it.
    Away {
        /// The item.
        item: u32,
        /// Which of the places that this stream names: 0, 1, 2, … in the order in which they come up.
        place: u64,
        /// JSON: the place, where it comes up for the first time; else empty.
        info: Bytes,
    },
    /// The stream ends here, since something is wrong.
    Error {
        /// JSON problem.
        problem: Bytes,
    },
    /// The stream ends here, complete.
    End {
        /// Items announced.
        items: u32,
        /// Bytes of content sent.
        bytes: u64,
    },
}

/// One whole group of an item, with the hash it should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFrame {
    /// The item.
    pub item: u32,
    /// Bytes of the item's whole content.
    pub size: ByteCount,
    /// Where the group begins.
    pub offset: u64,
    /// The hash it should have.
    pub hash: GroupHash,
    /// The hash it has.
    pub found: GroupHash,
    /// The group's bytes.
    pub bytes: Bytes,
}

impl DataFrame {
    /// Returns the number of the group in its content.
    pub fn group(&self) -> u64 {
        self.offset / GROUP_SIZE
    }

    /// Compares the hash it has with the one it should have.
    ///
    /// # Errors
    /// [`FrameError::Corrupt`].
    pub fn verify(&self) -> Result<(), FrameError> {
        if self.found == self.hash {
            Ok(())
        } else {
            Err(FrameError::Corrupt { item: self.item, offset: self.offset })
        }
    }
}

/// Why a stream is refused. Whoever meets it stops reading.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The first bytes are not those of a stream of this format.
    #[error("not a stream of frames of the format that was asked for")]
    Preamble,
    /// The tag of a frame is not the one that its sender gave the frame at this place of the stream.
    #[error(
        "frame {frame} of the stream is not what was sent there: altered, repeated, left out or out of order"
    )]
    Altered {
        /// Its number in the stream, from 0.
        frame: u64,
    },
    /// A type that this release does not know.
    #[error("unknown frame type {0}")]
    UnknownType(u8),
    /// A flag that this release does not know.
    #[error("unknown frame flags {0:#06x}")]
    UnknownFlags(u16),
    /// A payload or the number of items is beyond a limit.
    #[error("frame beyond a limit: {0}")]
    TooLarge(&'static str),
    /// A frame that may not come here.
    #[error("frame out of order: {0}")]
    Order(&'static str),
    /// A DATA frame that is not exactly one group.
    #[error("frame of item {item} at {offset} is not a whole group")]
    NotAGroup {
        /// The item.
        item: u32,
        /// Where it should begin.
        offset: u64,
    },
    /// The bytes do not have the hash.
    #[error("bytes of item {item} at {offset} do not match their hash")]
    Corrupt {
        /// The item.
        item: u32,
        /// Where the group begins.
        offset: u64,
    },
    /// The stream stopped without END or ERROR.
    #[error("stream of frames was cut")]
    Cut,
}

impl FrameError {
    /// The code under which users see this error.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Corrupt { .. } | Self::Altered { .. } => ErrorCode::DigestMismatch,
            Self::TooLarge(_) => ErrorCode::PayloadTooLarge,
            Self::Cut => ErrorCode::UploadIncomplete,
            _ => ErrorCode::InvalidRequest,
        }
    }
}
