//! Frames to bytes.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use percale_core::ByteCount;
use percale_core::tree::GroupHash;

use crate::authentic::{StreamKey, Tags};
use crate::frames::{
    AWAY, DATA, DONE, END, ERROR, FAIL, HASH_LEN, HEADER_LEN, ITEM, PREAMBLE, PREAMBLE_AUTHENTIC,
};

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
    info_bytes: usize,
    data_bytes: u64,
    /// Nothing in format 1.
    tags: Option<Tags>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::begin(PREAMBLE, None)
    }
}

impl Encoder {
    /// Begins a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a stream of format 2, whose frames whoever has the key knows to be from here.
    pub fn authentic(key: StreamKey) -> Self {
        Self::begin(PREAMBLE_AUTHENTIC, Some(Tags::new(key)))
    }

    fn begin(preamble: &[u8], tags: Option<Tags>) -> Self {
        let mut gathered = BytesMut::with_capacity(GATHER);
        gathered.put_slice(preamble);
        Self { gathered, ready: VecDeque::new(), items: 0, info_bytes: 0, data_bytes: 0, tags }
    }

    /// Announces the next item and returns its number.
    pub fn item(&mut self, size: ByteCount, info: &[u8]) -> u32 {
        let item = self.items;
        self.items += 1;
        self.info_bytes += info.len();
        self.frame(ITEM, item, size.0, info);
        item
    }

    /// Returns how many bytes all descriptions of items have so far, of [`MAX_ITEMS_INFO_LEN`](crate::frames::MAX_ITEMS_INFO_LEN).
    pub fn items_info_len(&self) -> usize {
        self.info_bytes
    }

    /// Adds one whole group.
    pub fn data(&mut self, item: u32, offset: u64, hash: GroupHash, bytes: Bytes) {
        self.begin_data(item, offset, hash, bytes.len());
        if bytes.len() < PASS_THROUGH {
            self.gathered.put_slice(&bytes);
            self.flush_if_large();
        } else {
            self.flush();
            self.ready.push_back(bytes);
        }
    }

    /// Adds what leads a group of `len` bytes, which the caller sends itself, right behind all that is ready now.
    pub fn lead(&mut self, item: u32, offset: u64, hash: GroupHash, len: usize) {
        self.begin_data(item, offset, hash, len);
        self.flush();
    }

    fn begin_data(&mut self, item: u32, offset: u64, hash: GroupHash, len: usize) {
        let header = self.header(DATA, item, offset, HASH_LEN + len);
        self.gathered.put_slice(&hash.0);
        // Before the group, not behind it: a group goes out with what leads it in one write.
        self.tag(&header, &hash.0);
        self.data_bytes += len as u64;
    }

    /// Says that all of an item's bytes were sent.
    pub fn done(&mut self, item: u32, info: &[u8]) {
        self.frame(DONE, item, 0, info);
    }

    /// Says that an item cannot be sent.
    pub fn fail(&mut self, item: u32, problem: &[u8]) {
        self.frame(FAIL, item, 0, problem);
    }

    /// Says that an item is to be read from another place; `info` describes the place the first time, and is empty later.
    pub fn away(&mut self, item: u32, place: u64, info: &[u8]) {
        self.frame(AWAY, item, place, info);
    }

    /// Ends the stream early.
    pub fn error(&mut self, problem: &[u8]) {
        self.frame(ERROR, 0, 0, problem);
        self.flush();
    }

    /// Ends the stream.
    pub fn end(&mut self) {
        self.frame(END, self.items, self.data_bytes, b"");
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

    /// Adds any frame but DATA.
    fn frame(&mut self, frame: u8, item: u32, offset: u64, payload: &[u8]) {
        let header = self.header(frame, item, offset, payload.len());
        self.gathered.put_slice(payload);
        self.tag(&header, payload);
        self.flush_if_large();
    }

    fn flush_if_large(&mut self) {
        if self.gathered.len() >= GATHER {
            self.flush();
        }
    }

    fn header(&mut self, frame: u8, item: u32, offset: u64, len: usize) -> [u8; HEADER_LEN] {
        if self.gathered.len() + HEADER_LEN > GATHER {
            self.flush();
        }
        let mut header = [0; HEADER_LEN];
        let mut out = &mut header[..];
        out.put_u8(frame);
        out.put_u8(0);
        out.put_u16_le(0);
        out.put_u32_le(item);
        out.put_u64_le(offset);
        // Every caller stays below the format's limits, which fit 32 bits.
        out.put_u32_le(u32::try_from(len).unwrap_or(u32::MAX));
        self.gathered.put_slice(&header);
        header
    }

    fn tag(&mut self, header: &[u8; HEADER_LEN], covered: &[u8]) {
        if let Some(tags) = &mut self.tags {
            let tag = tags.next(header, covered);
            self.gathered.put_slice(&tag);
        }
    }
}
