//! Frames to bytes.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use percale_core::ByteCount;
use percale_core::tree::GroupHash;

use crate::frames::{AWAY, DATA, DONE, END, ERROR, FAIL, HASH_LEN, HEADER_LEN, ITEM, PREAMBLE};

/// Payloads from this size on are passed through; smaller ones are gathered. A copy of 16 KiB costs less than the
/// separate write to the socket.
const PASS_THROUGH: usize = 16 << 10;
/// Gathered bytes are handed out from this size on: what one write to a TLS socket takes well (`bench/`).
const GATHER: usize = 256 << 10;

/// Writes a stream. Pieces come out by [`Encoder::next`], ready to be sent in order.
#[derive(Debug)]
pub struct Encoder {
    gathered: BytesMut,
    ready: VecDeque<Bytes>,
    items: u32,
    data_bytes: u64,
}

impl Default for Encoder {
    fn default() -> Self {
        let mut gathered = BytesMut::with_capacity(GATHER);
        gathered.put_slice(PREAMBLE);
        Self { gathered, ready: VecDeque::new(), items: 0, data_bytes: 0 }
    }
}

impl Encoder {
    /// Begins a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Announces the next item and returns its number.
    pub fn item(&mut self, size: ByteCount, info: &[u8]) -> u32 {
        let item = self.items;
        self.items += 1;
        self.header(ITEM, item, size.0, info.len());
        self.payload(info);
        item
    }

    /// Adds one whole group.
    pub fn data(&mut self, item: u32, offset: u64, hash: GroupHash, bytes: Bytes) {
        self.header(DATA, item, offset, HASH_LEN + bytes.len());
        self.gathered.put_slice(&hash.0);
        self.data_bytes += bytes.len() as u64;
        if bytes.len() < PASS_THROUGH {
            self.payload(&bytes);
        } else {
            self.flush();
            self.ready.push_back(bytes);
        }
    }

    /// Says that all of an item's bytes were sent.
    pub fn done(&mut self, item: u32, info: &[u8]) {
        self.header(DONE, item, 0, info.len());
        self.payload(info);
    }

    /// Says that an item cannot be sent.
    pub fn fail(&mut self, item: u32, problem: &[u8]) {
        self.header(FAIL, item, 0, problem.len());
        self.payload(problem);
    }

    /// Says that an item is to be read from another place; `info` describes the place the first time, and is empty later.
    pub fn away(&mut self, item: u32, place: u64, info: &[u8]) {
        self.header(AWAY, item, place, info.len());
        self.payload(info);
    }

    /// Ends the stream early.
    pub fn error(&mut self, problem: &[u8]) {
        self.header(ERROR, 0, 0, problem.len());
        self.payload(problem);
        self.flush();
    }

    /// Ends the stream.
    pub fn end(&mut self) {
        self.header(END, self.items, self.data_bytes, 0);
        self.flush();
    }

    /// Hands out what is gathered even if it is little, so that the other side is not kept waiting.
    pub fn flush(&mut self) {
        if !self.gathered.is_empty() {
            self.ready.push_back(self.gathered.split().freeze());
        }
    }

    /// Returns the next piece, if one is ready.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Bytes> {
        self.ready.pop_front()
    }

    fn header(&mut self, frame: u8, item: u32, offset: u64, len: usize) {
        if self.gathered.len() + HEADER_LEN > GATHER {
            self.flush();
        }
        self.gathered.put_u8(frame);
        self.gathered.put_u8(0);
        self.gathered.put_u16_le(0);
        self.gathered.put_u32_le(item);
        self.gathered.put_u64_le(offset);
        // Every caller stays below the format's limits, which fit 32 bits.
        self.gathered.put_u32_le(u32::try_from(len).unwrap_or(u32::MAX));
    }

    fn payload(&mut self, bytes: &[u8]) {
        self.gathered.put_slice(bytes);
        if self.gathered.len() >= GATHER {
            self.flush();
        }
    }
}
