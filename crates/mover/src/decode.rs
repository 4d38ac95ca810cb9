//! Bytes to frames.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use percale_core::ByteCount;
use percale_core::tree::{GROUP_SIZE, GroupHash, GroupHasher, group_count, group_range};

use crate::authentic::{StreamKey, Tags};
use crate::frames::{
    AWAY, DATA, DONE, DataFrame, END, ERROR, FAIL, Frame, FrameError, HASH_LEN, HEADER_LEN, ITEM,
    MAX_DATA_LEN, MAX_INFO_LEN, MAX_ITEMS, MAX_ITEMS_INFO_LEN, PREAMBLE, PREAMBLE_AUTHENTIC, TAG_LEN,
};

/// A group whose bytes come in small pieces is hashed so many at a time: BLAKE3 hashes 16 blocks of 1 KiB at once where the processor can,
/// if they begin at a multiple of that, and this much is still in the cache.
const HASHED_TOGETHER: usize = 64 << 10;

/// Reads a stream that comes in pieces of any size. Holds at most one frame.
///
/// Checks every rule of the format. Groups are hashed as they come, while their bytes are in the processor's cache; comparing is left to
/// whoever knows the hash, or to [`DataFrame::verify`]. In format 2, too, the bytes of a group are only known to be the sender's once they
/// were compared.
#[derive(Debug, Default)]
pub struct Decoder {
    pieces: VecDeque<Bytes>,
    buffered: usize,
    started: bool,
    ended: bool,
    header: Option<Header>,
    /// The group that is waited for, once its hash has come.
    coming: Option<Box<Coming>>,
    hashing: Duration,
    /// Nothing in format 1.
    tags: Option<Tags>,
    items: Vec<Announced>,
    info_bytes: usize,
    data_bytes: u64,
}

/// An item and what came of it.
#[derive(Debug, Clone, Copy)]
struct Announced {
    size: ByteCount,
    groups: u64,
    is_closed: bool,
}

/// A group of which not all has come.
#[derive(Debug)]
struct Coming {
    /// The hash that leads it.
    hash: GroupHash,
    hasher: GroupHasher,
    bytes: BytesMut,
    /// How many of the bytes were hashed.
    hashed: usize,
}

impl Coming {
    /// Takes the next bytes.
    fn extend(&mut self, piece: &[u8], len: usize) {
        self.bytes.reserve(len - self.bytes.len());
        self.bytes.extend_from_slice(piece);
    }

    /// Hashes what came up to the last boundary; all of it once the group is whole.
    fn hash(&mut self, len: usize) {
        let ready = match self.bytes.len() {
            all if all == len => all,
            some => some / HASHED_TOGETHER * HASHED_TOGETHER,
        };
        self.hasher.update(&self.bytes[self.hashed..ready]);
        self.hashed = ready;
    }
}

#[derive(Debug, Clone, Copy)]
struct Header {
    frame: u8,
    item: u32,
    offset: u64,
    len: usize,
    /// As it came.
    bytes: [u8; HEADER_LEN],
}

impl Decoder {
    /// Begins before the first byte.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins before the first byte of a stream of format 2, which ends with an error at the first frame that whoever has the
    /// key did not send there.
    pub fn authentic(key: StreamKey) -> Self {
        Self { tags: Some(Tags::new(key)), ..Self::default() }
    }

    /// Returns how many bytes are missing for what comes next; 0 if nothing comes any more. Whoever feeds just these, in one
    /// piece, has no group copied.
    pub fn wanted(&self) -> usize {
        let next = match self.header {
            _ if self.ended => 0,
            _ if !self.started => PREAMBLE.len(),
            None => HEADER_LEN,
            Some(header) if header.frame != DATA => header.len + self.tag_len(),
            Some(header) => match &self.coming {
                None => HASH_LEN + self.tag_len(),
                Some(coming) => header.len - HASH_LEN - coming.bytes.len(),
            },
        };
        next.saturating_sub(self.buffered)
    }

    fn tag_len(&self) -> usize {
        if self.tags.is_some() { TAG_LEN } else { 0 }
    }

    /// Takes the next piece. Call [`Decoder::next`] until it has no more before the next one.
    pub fn feed(&mut self, piece: Bytes) {
        self.buffered += piece.len();
        if !piece.is_empty() {
            self.pieces.push_back(piece);
        }
    }

    /// Returns the next frame, or nothing if more bytes are needed.
    ///
    /// # Errors
    /// [`FrameError`]; the stream is of no use after it.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        if !self.started {
            let Some(preamble) = self.take(PREAMBLE.len()) else { return Ok(None) };
            let expected = if self.tags.is_some() { PREAMBLE_AUTHENTIC } else { PREAMBLE };
            if preamble != expected.as_slice() {
                return Err(FrameError::Preamble);
            }
            self.started = true;
        }
        if self.ended {
            return if self.buffered == 0 {
                Ok(None)
            } else {
                Err(FrameError::Order("bytes behind the end"))
            };
        }
        let header = match self.header {
            Some(header) => header,
            None => match self.take(HEADER_LEN) {
                Some(bytes) => *self.header.insert(self.check(bytes)?),
                None => return Ok(None),
            },
        };
        if header.frame == DATA {
            return self.data(header);
        }
        let Some(mut payload) = self.take(header.len + self.tag_len()) else { return Ok(None) };
        let tag = payload.split_off(header.len);
        if let Some(tags) = &mut self.tags {
            tags.check(&header.bytes, &payload, &tag)?;
        }
        self.header = None;
        self.frame(header, payload).map(Some)
    }

    /// Takes what leads a group, then the group.
    fn data(&mut self, header: Header) -> Result<Option<Frame>, FrameError> {
        let size = self.items[header.item as usize].size;
        let mut coming = match self.coming.take() {
            Some(coming) => coming,
            None => {
                let Some(mut lead) = self.take(HASH_LEN + self.tag_len()) else { return Ok(None) };
                let mut hash = [0; HASH_LEN];
                lead.copy_to_slice(&mut hash);
                if let Some(tags) = &mut self.tags {
                    tags.check(&header.bytes, &hash, &lead)?;
                }
                let hasher = GroupHasher::new(size, header.offset / GROUP_SIZE);
                let bytes = BytesMut::new();
                Box::new(Coming { hash: GroupHash(hash), hasher, bytes, hashed: 0 })
            }
        };
        let Some(bytes) = self.group(&mut coming, header.len - HASH_LEN) else {
            self.coming = Some(coming);
            return Ok(None);
        };
        self.header = None;
        self.data_bytes += bytes.len() as u64;
        self.items[header.item as usize].groups += 1;
        let (item, offset) = (header.item, header.offset);
        let Coming { hash, hasher, .. } = *coming;
        Ok(Some(Frame::Data(DataFrame { item, size, offset, hash, found: hasher.finish(), bytes })))
    }

    /// Takes and hashes what has come of a group, and returns it once it is whole.
    fn group(&mut self, coming: &mut Coming, len: usize) -> Option<Bytes> {
        let in_one = coming.bytes.is_empty() && self.pieces.front().is_some_and(|front| front.len() >= len);
        let whole = if in_one { self.take(len) } else { None };
        while whole.is_none() && coming.bytes.len() < len {
            let Some(mut piece) = self.pieces.pop_front() else { break };
            let now = (len - coming.bytes.len()).min(piece.len());
            self.buffered -= now;
            coming.extend(&piece[..now], len);
            piece.advance(now);
            if !piece.is_empty() {
                self.pieces.push_front(piece);
            }
        }
        let began = Instant::now();
        match &whole {
            Some(bytes) => coming.hasher.update(bytes),
            None => coming.hash(len),
        }
        self.hashing += began.elapsed();
        whole.or_else(|| (coming.bytes.len() == len).then(|| std::mem::take(&mut coming.bytes).freeze()))
    }

    /// Returns how long groups have been hashed for since it was last asked.
    pub fn take_hashing(&mut self) -> Duration {
        std::mem::take(&mut self.hashing)
    }

    /// Says that no more pieces come.
    ///
    /// # Errors
    /// [`FrameError::Cut`], unless END or ERROR was the last frame.
    pub fn finish(&self) -> Result<(), FrameError> {
        if self.ended && self.buffered == 0 { Ok(()) } else { Err(FrameError::Cut) }
    }

    /// Checks a header before any of its payload is waited for, so that nobody makes us hold more than the limits.
    fn check(&self, mut bytes: Bytes) -> Result<Header, FrameError> {
        let mut raw = [0; HEADER_LEN];
        raw.copy_from_slice(&bytes);
        let frame = bytes.get_u8();
        let flags = u16::from(bytes.get_u8());
        let reserved = bytes.get_u16_le();
        let item = bytes.get_u32_le();
        let offset = bytes.get_u64_le();
        let len = bytes.get_u32_le() as usize;
        if flags != 0 || reserved != 0 {
            return Err(FrameError::UnknownFlags(flags | reserved));
        }
        let announced = self.items.get(item as usize).copied();
        match frame {
            ITEM => {
                if item as usize != self.items.len() {
                    return Err(FrameError::Order("items are numbered from 0 without gaps"));
                }
                if item >= MAX_ITEMS {
                    return Err(FrameError::TooLarge("at most 65536 items in a stream"));
                }
                if self.info_bytes + len > MAX_ITEMS_INFO_LEN {
                    return Err(FrameError::TooLarge("at most 4 MiB of item descriptions in a stream"));
                }
            }
            DATA | DONE | FAIL | AWAY if announced.is_none() => {
                return Err(FrameError::Order("item was not announced"));
            }
            // A stream has an end, whatever its sender wants.
            DATA | DONE | FAIL | AWAY if announced.is_some_and(|item| item.is_closed) => {
                return Err(FrameError::Order("the item was at its end already"));
            }
            DATA | DONE | FAIL | AWAY | ERROR => {}
            END if item as usize != self.items.len() || offset != self.data_bytes || len != 0 => {
                return Err(FrameError::Order("the end does not count what was sent"));
            }
            END => {}
            unknown => return Err(FrameError::UnknownType(unknown)),
        }
        if frame == DATA {
            if len > MAX_DATA_LEN {
                return Err(FrameError::TooLarge("at most one group of 1 MiB in a frame"));
            }
            let Announced { size, groups, .. } = self.items[item as usize];
            if groups >= group_count(size) {
                return Err(FrameError::Order("the item has more groups than its size allows"));
            }
            let group = offset / GROUP_SIZE;
            let is_group = offset.is_multiple_of(GROUP_SIZE)
                && group < group_count(size)
                && len == HASH_LEN + group_range(size, group).len() as usize;
            if !is_group {
                return Err(FrameError::NotAGroup { item, offset });
            }
        } else if len > MAX_INFO_LEN {
            return Err(FrameError::TooLarge("at most 64 KiB of description in a frame"));
        }
        Ok(Header { frame, item, offset, len, bytes: raw })
    }

    fn frame(&mut self, header: Header, payload: Bytes) -> Result<Frame, FrameError> {
        let Header { frame, item, offset, .. } = header;
        Ok(match frame {
            ITEM => {
                let size = ByteCount(offset);
                self.items.push(Announced { size, groups: 0, is_closed: false });
                self.info_bytes += payload.len();
                Frame::Item { item, size, info: payload }
            }
            DONE => {
                self.items[item as usize].is_closed = true;
                Frame::Done { item, info: payload }
            }
            FAIL => {
                self.items[item as usize].is_closed = true;
                Frame::Fail { item, problem: payload }
            }
            AWAY => {
                self.items[item as usize].is_closed = true;
                Frame::Away { item, place: offset, info: payload }
            }
            ERROR => {
                self.ended = true;
                Frame::Error { problem: payload }
            }
            END => {
                self.ended = true;
                Frame::End { items: item, bytes: offset }
            }
            unknown => return Err(FrameError::UnknownType(unknown)),
        })
    }

    /// Takes exactly `len` bytes, or nothing if they are not all there. Copies only across pieces.
    fn take(&mut self, len: usize) -> Option<Bytes> {
        if self.buffered < len {
            return None;
        }
        self.buffered -= len;
        match self.pieces.front_mut() {
            Some(front) if front.len() > len => return Some(front.split_to(len)),
            Some(front) if front.len() == len => return self.pieces.pop_front(),
            _ => {}
        }
        let mut joined = BytesMut::with_capacity(len);
        while joined.len() < len {
            let mut front = self.pieces.pop_front()?;
            let wanted = (len - joined.len()).min(front.len());
            joined.extend_from_slice(&front[..wanted]);
            front.advance(wanted);
            if !front.is_empty() {
                self.pieces.push_front(front);
            }
        }
        Some(joined.freeze())
    }
}

#[cfg(test)]
mod tests {
    use percale_core::tree::{HashTree, hash_group};
    use proptest::prelude::*;

    use super::*;
    use crate::Encoder;

    fn content(len: usize) -> Bytes {
        (0..len).map(|at| (at * 7 % 251) as u8).collect::<Vec<_>>().into()
    }

    fn encode(items: &[Bytes]) -> (Vec<Bytes>, Vec<Frame>) {
        let mut encoder = Encoder::new();
        let mut frames = Vec::new();
        for bytes in items {
            let size = ByteCount(bytes.len() as u64);
            let info = Bytes::from_static(b"{\"path\":\"/s/a\"}");
            let item = encoder.item(size, &info);
            frames.push(Frame::Item { item, size, info });
            for group in 0..group_count(size) {
                let range = group_range(size, group);
                let bytes = bytes.slice(range.start() as usize..range.end() as usize);
                let hash = hash_group(size, group, &bytes);
                encoder.data(item, range.start(), hash, bytes.clone());
                frames.push(Frame::Data(DataFrame {
                    item,
                    size,
                    offset: range.start(),
                    hash,
                    found: hash,
                    bytes,
                }));
            }
            encoder.done(item, b"{}");
            frames.push(Frame::Done { item, info: Bytes::from_static(b"{}") });
        }
        encoder.end();
        let bytes = items.iter().map(|bytes| bytes.len() as u64).sum();
        frames.push(Frame::End { items: items.len() as u32, bytes });
        (std::iter::from_fn(|| encoder.next()).collect(), frames)
    }

    fn decode(pieces: impl IntoIterator<Item = Bytes>) -> Result<Vec<Frame>, FrameError> {
        let mut decoder = Decoder::new();
        let mut frames = Vec::new();
        for piece in pieces {
            decoder.feed(piece);
            while let Some(frame) = decoder.next()? {
                frames.push(frame);
            }
        }
        decoder.finish()?;
        Ok(frames)
    }

    fn whole(pieces: &[Bytes]) -> Vec<u8> {
        pieces.concat()
    }

    #[test]
    fn frames_survive_and_verify() {
        let items = [content(0), content(10), content(20_000), content(3 * GROUP_SIZE as usize + 5)];
        let (pieces, frames) = encode(&items);
        let decoded = decode(pieces).unwrap();
        assert_eq!(decoded, frames);
        let mut hashes = vec![Vec::new(); items.len()];
        for frame in &decoded {
            if let Frame::Data(data) = frame {
                data.verify().unwrap();
                hashes[data.item as usize].push(data.hash);
            }
        }
        for (bytes, hashes) in items.iter().zip(hashes) {
            let tree = HashTree::from_groups(ByteCount(bytes.len() as u64), hashes).unwrap();
            assert_eq!(tree, HashTree::of(bytes));
        }
    }

    #[test]
    fn groups_are_hashed_as_they_come() {
        let group = GROUP_SIZE as usize;
        let (pieces, frames) =
            encode(&[content(3 * group + 5), content(100_000), content(group), content(9)]);
        let stream = whole(&pieces);
        for piece in [1, HASHED_TOGETHER - 1, HASHED_TOGETHER, 100_000, 3 * group] {
            assert_eq!(
                decode(stream.chunks(piece).map(Bytes::copy_from_slice)).as_ref(),
                Ok(&frames),
                "{piece}"
            );
        }
        let mut decoder = Decoder::new();
        decoder.feed(stream[..500_000].to_vec().into());
        while decoder.next().unwrap().is_some() {}
        assert!(!decoder.take_hashing().is_zero(), "it waits for the whole group");
        assert!(decoder.take_hashing().is_zero());
        // Whoever feeds just what is wanted gets the rest of the group.
        assert!((1..group).contains(&decoder.wanted()));
    }

    #[test]
    fn items_may_be_elsewhere() {
        let mut encoder = Encoder::new();
        let item = encoder.item(ByteCount(7), b"{}");
        encoder.away(item, 0, b"{\"site\":\"alps\"}");
        let item = encoder.item(ByteCount(8), b"{}");
        encoder.away(item, 0, b"");
        encoder.end();
        let frames = decode(std::iter::from_fn(|| encoder.next()).collect::<Vec<_>>()).unwrap();
        let info = Bytes::from_static(b"{\"site\":\"alps\"}");
        assert_eq!(frames[1], Frame::Away { item: 0, place: 0, info });
        assert_eq!(frames[3], Frame::Away { item: 1, place: 0, info: Bytes::new() });
        assert_eq!(frames[4], Frame::End { items: 2, bytes: 0 });
    }

    #[test]
    fn every_cut_is_noticed() {
        let stream = whole(&encode(&[content(100), content(5)]).0);
        for end in 0..stream.len() {
            assert_eq!(
                decode([Bytes::copy_from_slice(&stream[..end])]),
                Err(FrameError::Cut),
                "cut at {end}"
            );
        }
        let mut longer = stream;
        longer.push(0);
        assert!(decode([Bytes::from(longer)]).is_err());
    }

    #[test]
    fn damaged_bytes_do_not_verify() {
        let (pieces, _) = encode(&[content(1000)]);
        let mut stream = whole(&pieces);
        let at = stream.len() - 200;
        stream[at] ^= 1;
        let damaged = decode([Bytes::from(stream)]).unwrap();
        let data = damaged.iter().find_map(|frame| match frame {
            Frame::Data(data) => Some(data),
            _ => None,
        });
        assert_eq!(data.unwrap().verify(), Err(FrameError::Corrupt { item: 0, offset: 0 }));
    }

    #[test]
    fn limits_and_order_are_enforced_before_the_payload_is_held() {
        let frame = |frame: u8, item: u32, offset: u64, len: u32| {
            let mut bytes = PREAMBLE.to_vec();
            let mut add = |frame: u8, item: u32, offset: u64, len: u32| {
                bytes.extend([frame, 0, 0, 0]);
                bytes.extend(item.to_le_bytes());
                bytes.extend(offset.to_le_bytes());
                bytes.extend(len.to_le_bytes());
            };
            add(ITEM, 0, 5, 0);
            add(frame, item, offset, len);
            let mut decoder = Decoder::new();
            decoder.feed(bytes.into());
            decoder.next().unwrap();
            decoder.next()
        };
        assert!(matches!(frame(DATA, 0, 0, u32::MAX), Err(FrameError::TooLarge(_))));
        assert!(matches!(frame(DATA, 0, 7, 37), Err(FrameError::NotAGroup { .. })));
        assert!(matches!(frame(DATA, 0, u64::MAX, 37), Err(FrameError::NotAGroup { .. })));
        assert!(matches!(frame(DATA, 1, 0, 37), Err(FrameError::Order(_))));
        assert!(matches!(frame(ITEM, 2, 0, 0), Err(FrameError::Order(_))));
        assert!(matches!(frame(ITEM, 1, 0, u32::MAX), Err(FrameError::TooLarge(_))));
        assert!(matches!(frame(DONE, 0, 0, 1 << 20), Err(FrameError::TooLarge(_))));
        assert!(matches!(frame(AWAY, 0, 0, 1 << 20), Err(FrameError::TooLarge(_))));
        assert!(matches!(frame(AWAY, 1, 0, 0), Err(FrameError::Order(_))));
        assert!(matches!(frame(END, 0, 0, 0), Err(FrameError::Order(_))));
        assert_eq!(frame(77, 0, 0, 0), Err(FrameError::UnknownType(77)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn pieces_of_any_size_give_the_same_frames(sizes in prop::collection::vec(0usize..40_000, 0..8), piece in 1usize..9000) {
            let items: Vec<_> = sizes.into_iter().map(content).collect();
            let (pieces, frames) = encode(&items);
            let stream = whole(&pieces);
            let decoded = decode(stream.chunks(piece).map(Bytes::copy_from_slice));
            prop_assert_eq!(decoded, Ok(frames));
        }

        #[test]
        fn junk_never_panics(junk in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut stream = PREAMBLE.to_vec();
            stream.extend(junk);
            let _ = decode([Bytes::from(stream)]);
        }
    }
}
