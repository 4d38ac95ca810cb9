//! Authenticates the frames of a stream that is not encrypted: format 2 of `docs/design/frames.md`.
//!
//! A tag is the first 16 bytes of keyed BLAKE3 over the number of the frame in its stream (from 0, 8 bytes, little-endian), its
//! header, and what the tag follows: for DATA the group hash, for any other frame the whole payload. The bytes of a group are
//! covered by their hash, which whoever receives them compares in any case before it writes them: no pass over the bytes is
//! made for the tags.

use std::fmt;

use crate::frames::{FrameError, HEADER_LEN, TAG_LEN};

/// What keeps keys of this purpose apart from all others that are made of the same secret.
const CONTEXT: &str = "percale 2026-11-22 frames format 2, key of one stream";

/// The key of one stream. Good for one stream only: the number of a frame begins from 0 in each.
#[derive(Clone)]
pub struct StreamKey([u8; 32]);

impl StreamKey {
    /// Makes the key of the stream that has this id, of a secret that both sides know and nobody else.
    pub fn new(id: &[u8; 16], secret: &[u8; 32]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        hasher.update(secret);
        hasher.update(id);
        Self(*hasher.finalize().as_bytes())
    }
}

impl fmt::Debug for StreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamKey")
    }
}

/// Makes or checks the tags of one stream, in their order.
#[derive(Debug)]
pub(crate) struct Tags {
    key: StreamKey,
    frame: u64,
}

impl Tags {
    pub fn new(key: StreamKey) -> Self {
        Self { key, frame: 0 }
    }

    /// Returns the tag of the next frame.
    pub fn next(&mut self, header: &[u8; HEADER_LEN], covered: &[u8]) -> [u8; TAG_LEN] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key.0);
        hasher.update(&self.frame.to_le_bytes());
        hasher.update(header);
        hasher.update(covered);
        self.frame += 1;
        let mut tag = [0; TAG_LEN];
        hasher.finalize_xof().fill(&mut tag);
        tag
    }

    /// Compares the tag of the next frame with what it should be.
    ///
    /// # Errors
    /// [`FrameError::Altered`].
    pub fn check(&mut self, header: &[u8; HEADER_LEN], covered: &[u8], tag: &[u8]) -> Result<(), FrameError> {
        let frame = self.frame;
        let expected = self.next(header, covered);
        // One wrong tag ends the stream and its key with it, so how long the comparison takes is of no use to anybody.
        if expected == tag { Ok(()) } else { Err(FrameError::Altered { frame }) }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use percale_core::ByteCount;
    use percale_core::tree::{GROUP_SIZE, group_count, group_range, hash_group};

    use super::*;
    use crate::frames::{DATA, HASH_LEN, PREAMBLE_AUTHENTIC};
    use crate::{DataFrame, Decoder, Encoder, Frame};

    const ID: [u8; 16] = *b"id of one stream";
    const SECRET: [u8; 32] = *b"what both know and nobody else..";

    fn key() -> StreamKey {
        StreamKey::new(&ID, &SECRET)
    }

    fn content(len: usize) -> Bytes {
        (0..len).map(|at| (at * 7 % 251) as u8).collect::<Vec<_>>().into()
    }

    fn encode(items: &[Bytes], key: StreamKey) -> Vec<u8> {
        let mut encoder = Encoder::authentic(key);
        for bytes in items {
            let size = ByteCount(bytes.len() as u64);
            let item = encoder.item(size, b"{\"path\":\"/s/a\"}");
            for group in 0..group_count(size) {
                let range = group_range(size, group);
                let bytes = bytes.slice(range.start() as usize..range.end() as usize);
                encoder.data(item, range.start(), hash_group(size, group, &bytes), bytes);
            }
            match bytes.len() {
                7 => encoder.fail(item, b"{}"),
                _ => encoder.done(item, b"{}"),
            }
        }
        encoder.end();
        std::iter::from_fn(|| encoder.next()).collect::<Vec<_>>().concat()
    }

    /// Takes what verifies, as a receiver does, and tells why the rest was refused.
    fn receive(stream: &[u8], key: StreamKey) -> (Vec<Frame>, Option<FrameError>) {
        let mut decoder = Decoder::authentic(key);
        decoder.feed(Bytes::copy_from_slice(stream));
        let mut taken = Vec::new();
        loop {
            match decoder.next() {
                Ok(Some(Frame::Data(data))) => match data.verify() {
                    Ok(()) => taken.push(Frame::Data(data)),
                    Err(error) => return (taken, Some(error)),
                },
                Ok(Some(frame)) => taken.push(frame),
                Ok(None) => return (taken, decoder.finish().err()),
                Err(error) => return (taken, Some(error)),
            }
        }
    }

    /// Where each frame of a stream begins, and where it ends.
    fn frames(stream: &[u8]) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        let mut at = PREAMBLE_AUTHENTIC.len();
        while at < stream.len() {
            let len = u32::from_le_bytes(stream[at + 16..at + HEADER_LEN].try_into().unwrap()) as usize;
            let end = at + HEADER_LEN + len + TAG_LEN;
            found.push((at, end));
            at = end;
        }
        assert_eq!(at, stream.len());
        found
    }

    fn small() -> Vec<u8> {
        encode(&[content(100), content(0), content(7), content(300)], key())
    }

    /// The stored sample of format 2. Never changed; a new form gets a sample of its own.
    #[test]
    fn a_stream_of_format_2_is_still_read_and_written() {
        let sample = include_bytes!("../samples/frames-v2.bin");
        assert_eq!(small(), sample);
        let (taken, refused) = receive(sample, key());
        assert_eq!((taken.len(), refused), (13, None));
        let data =
            |frame: &&Frame| matches!(frame, Frame::Data(DataFrame { bytes, .. }) if bytes.len() == 300);
        assert_eq!(taken.iter().filter(data).count(), 1);
    }

    #[test]
    fn large_groups_pass_through_and_verify() {
        let whole = content(2 * GROUP_SIZE as usize + 5);
        let stream = encode(std::slice::from_ref(&whole), key());
        // In pieces as a reader takes them that reads each group into a buffer of its own.
        let mut decoder = Decoder::authentic(key());
        let (mut at, mut taken) = (0, Vec::new());
        loop {
            match decoder.next().unwrap() {
                Some(Frame::Data(data)) => {
                    data.verify().unwrap();
                    taken.extend_from_slice(&data.bytes);
                }
                Some(Frame::End { .. }) => break,
                Some(_) => {}
                None => {
                    let wanted = decoder.wanted();
                    assert!((1..=GROUP_SIZE as usize).contains(&wanted));
                    decoder.feed(Bytes::copy_from_slice(&stream[at..at + wanted]));
                    at += wanted;
                }
            }
        }
        decoder.finish().unwrap();
        assert_eq!((at, decoder.wanted()), (stream.len(), 0));
        assert!(taken == whole);
    }

    #[test]
    fn a_bit_that_is_flipped_anywhere_is_noticed_before_anything_wrong_is_taken() {
        let stream = small();
        let (good, _) = receive(&stream, key());
        for at in 0..stream.len() {
            let mut altered = stream.clone();
            altered[at] ^= 1 << (at % 8);
            let (taken, refused) = receive(&altered, key());
            assert!(refused.is_some(), "at {at}");
            assert_eq!(taken, good[..taken.len()], "at {at}");
        }
    }

    #[test]
    fn frames_that_are_dropped_repeated_swapped_or_of_another_stream_are_noticed() {
        let stream = small();
        let frames = frames(&stream);
        let good = receive(&stream, key()).0;
        let preamble = &stream[..PREAMBLE_AUTHENTIC.len()];
        let refused = |order: &[usize], what: &str| {
            let pieces = order.iter().map(|frame| &stream[frames[*frame].0..frames[*frame].1]);
            let altered = [preamble, &pieces.collect::<Vec<_>>().concat()].concat();
            let (taken, refused) = receive(&altered, key());
            assert!(refused.is_some(), "{what}");
            assert_eq!(taken, good[..taken.len()], "{what}");
            refused.unwrap()
        };
        let all: Vec<usize> = (0..frames.len()).collect();
        for frame in 0..all.len() {
            let mut order = all.clone();
            order.remove(frame);
            refused(&order, &format!("frame {frame} is dropped"));
            let mut order = all.clone();
            order.insert(frame, frame);
            refused(&order, &format!("frame {frame} is repeated"));
            for other in 0..frame {
                let mut order = all.clone();
                order.swap(frame, other);
                refused(&order, &format!("frames {frame} and {other} are swapped"));
            }
        }
        // Two that the rules of the format alone would let pass: the ends of two items.
        let ends: Vec<usize> = (0..all.len()).filter(|frame| stream[frames[*frame].0] == DATA).collect();
        let mut order = all;
        order.swap(ends[0], ends[0] + 1);
        assert!(matches!(refused(&order, "end before data"), FrameError::Altered { .. }));

        for other in [StreamKey::new(b"id of another 's", &SECRET), StreamKey::new(&ID, &[7; 32])] {
            let (taken, refused) = receive(&encode(&[content(100)], other), key());
            assert_eq!((taken.len(), refused), (0, Some(FrameError::Altered { frame: 0 })));
        }
    }

    #[test]
    fn neither_format_passes_for_the_other() {
        let mut encoder = Encoder::new();
        encoder.end();
        let plain = std::iter::from_fn(|| encoder.next()).collect::<Vec<_>>().concat();
        assert_eq!(receive(&plain, key()).1, Some(FrameError::Preamble));
        let mut decoder = Decoder::new();
        decoder.feed(small().into());
        assert_eq!(decoder.next(), Err(FrameError::Preamble));
    }

    #[test]
    fn every_cut_is_noticed() {
        let stream = small();
        for end in 0..stream.len() {
            assert_eq!(receive(&stream[..end], key()).1, Some(FrameError::Cut), "cut at {end}");
        }
        // A group hash and its tag alone say nothing yet.
        assert!(frames(&stream)[1].1 - frames(&stream)[1].0 > HEADER_LEN + HASH_LEN + TAG_LEN);
    }

    #[test]
    fn a_key_is_never_shown() {
        assert_eq!(format!("{:?}", Tags::new(key())), "Tags { key: StreamKey, frame: 0 }");
    }
}
