//! How a program reads a file, and what of it is worth fetching before it is asked for.

use percale_core::tree::GROUP_SIZE;

/// Groups that one request of a reader in order asks for. With eight on their way at once over 1.2 Gbit/s each takes a second, so that
/// a round trip of 50 ms between two of them costs little.
pub const RUN: u64 = 16;
/// How far a reader in order is read ahead of, at most, in groups: what fills 1 Gbit/s at a round trip of a second.
const AHEAD: u64 = 128;
/// A first read of so many bytes is one of a program that reads all of a file: the kernel asks for less at the beginning of others.
const BULK: u64 = 256 << 10;
/// How often it was as far from one piece to the next until the next ones are taken for known.
const SURE: u32 = 2;
/// How many pieces are fetched then, at most.
const PIECES: u64 = 16;

/// How a program reads.
#[derive(Debug, Default)]
pub struct Pattern {
    /// Where the piece begins that is read in order, and how far that went.
    begin: u64,
    next: u64,
    /// How far ahead it is fetched, in groups.
    ahead: u64,
    /// How far it is from the beginning of a piece to that of the next, how often that was so, and how long the last one was.
    stride: i64,
    times: u32,
    len: u64,
}

/// Groups that are worth fetching.
#[derive(Debug, PartialEq, Eq)]
pub struct Ahead {
    /// How many, from the one that is read on.
    pub following: u64,
    /// Others: the first one, and how many.
    pub pieces: Vec<(u64, u64)>,
}

impl Pattern {
    /// Learns from a read of a file of `size` bytes, of which it takes those from `offset` to `end`.
    pub fn learn(&mut self, offset: u64, end: u64, size: u64) -> Ahead {
        // Reads of several threads come a little out of order.
        let is_near = offset <= self.next + GROUP_SIZE && offset + 4 * GROUP_SIZE >= self.next;
        if !is_near {
            let stride = offset.cast_signed() - self.begin.cast_signed();
            self.times = if stride == self.stride { self.times + 1 } else { 1 };
            self.len = self.next - self.begin;
            (self.stride, self.begin, self.next, self.ahead) = (stride, offset, end, 1);
            let pieces = if self.times >= SURE { self.pieces(size) } else { Vec::new() };
            return Ahead { following: 1, pieces };
        }
        (self.begin, self.next) = (self.begin.min(offset), self.next.max(end));
        // Of pieces at equal distances no more is read than of the one before.
        let is_longer = self.next - self.begin > self.len;
        match is_longer {
            true => self.times = 0,
            false if self.times >= SURE => return Ahead { following: 1, pieces: Vec::new() },
            false => {}
        }
        self.ahead = match self.ahead {
            0 if end - offset >= BULK => AHEAD / 2,
            ahead => (ahead * 2).clamp(RUN, AHEAD),
        };
        Ahead { following: self.ahead, pieces: Vec::new() }
    }

    /// Returns the next pieces, more of them the longer it went on like this.
    fn pieces(&self, size: u64) -> Vec<(u64, u64)> {
        let many = PIECES.min(u64::from(self.times));
        let begins = (1..=many.cast_signed()).map_while(|step| {
            let begin = self.begin.checked_add_signed(self.stride.checked_mul(step)?)?;
            (begin < size).then_some(begin)
        });
        let groups = begins.map(|begin| {
            let (first, last) =
                (begin / GROUP_SIZE, (begin + self.len.max(1)).min(size).div_ceil(GROUP_SIZE));
            (first, (last - first).min(RUN))
        });
        groups.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SIZE: u64 = 1000 * MIB;

    fn after(reads: &[(u64, u64)]) -> Ahead {
        let mut pattern = Pattern::default();
        let mut last = None;
        for (offset, len) in reads {
            last = Some(pattern.learn(*offset, offset + len, SIZE));
        }
        last.unwrap()
    }

    fn following(groups: u64) -> Ahead {
        Ahead { following: groups, pieces: Vec::new() }
    }

    #[test]
    fn who_reads_in_order_is_read_ahead_of_more_and_more() {
        assert_eq!(after(&[(0, 4096)]), following(RUN));
        assert_eq!(after(&[(0, 4096), (4096, 4096)]), following(2 * RUN));
        assert_eq!(after(&[(0, MIB)]), following(AHEAD / 2));
        assert_eq!(after(&[(0, MIB), (2 * MIB, MIB), (MIB, MIB), (3 * MIB, MIB)]), following(AHEAD));
        assert_eq!(after(&[(500 * MIB, MIB)]), following(1));
        assert_eq!(after(&[(500 * MIB, MIB), (501 * MIB, MIB)]), following(RUN));
    }

    #[test]
    fn who_reads_anywhere_is_given_what_is_asked_for() {
        assert_eq!(
            after(&[(70 * MIB, 4096), (500 * MIB, 4096), (20 * MIB, 4096), (300 * MIB, 4096)]),
            following(1)
        );
    }

    #[test]
    fn pieces_at_equal_distances_are_fetched_before_they_are_asked_for() {
        let steps = |from: u64, step: i64, count: i64, len| -> Vec<(u64, u64)> {
            (0..count).map(|n| (from.checked_add_signed(n * step).unwrap(), len)).collect()
        };
        let step = 10 * MIB as i64;
        assert_eq!(after(&steps(0, step, 2, 4096)), following(1));
        assert_eq!(after(&steps(0, step, 3, 4096)), Ahead { following: 1, pieces: vec![(30, 1), (40, 1)] });
        // Each longer than a group, and across two.
        let pieces = vec![(110, 3), (120, 3), (130, 3)];
        assert_eq!(after(&steps(70 * MIB + 4096, step, 4, 2 * MIB)).pieces, pieces);
        // Backwards, to the beginning and not beyond.
        assert_eq!(after(&steps(45 * MIB, -step, 4, 4096)), Ahead { following: 1, pieces: vec![(5, 1)] });
        // To the end.
        assert_eq!(after(&steps(970 * MIB, step, 3, 4096)), following(1));
        let mut many = steps(0, step, 60, 4096);
        assert_eq!(after(&many).pieces.len() as u64, PIECES);
        // The program goes on in order from there.
        many.push((590 * MIB + 4096, 4096));
        assert_eq!(after(&many), following(RUN));
    }

    #[test]
    fn a_piece_that_comes_in_parts_is_one() {
        let parts = |n: u64| [(n * 10 * MIB, MIB), (n * 10 * MIB + MIB, MIB)];
        let mut reads: Vec<(u64, u64)> = (0..4).flat_map(parts).collect();
        assert_eq!(after(&reads), following(1));
        reads.pop();
        assert_eq!(after(&reads).pieces, [(40, 2), (50, 2), (60, 2)]);
    }
}
