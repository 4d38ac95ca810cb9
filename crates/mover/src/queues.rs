//! Whole objects that several streams send for one reader, and end together.
//!
//! As [`crate::share`] does with the groups of one object: a stream that has sent its own objects goes on with half of what another one
//! has left. An object is taken once, by whichever stream sends it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::flight::{Aboard, Flight, Line};

/// What the streams that send for one reader have not begun to send.
#[derive(Debug)]
pub struct Queues<T> {
    streams: Mutex<Vec<Arc<Waiting<T>>>>,
    flight: Arc<Flight>,
}

/// With the bytes of each.
type Waiting<T> = Mutex<VecDeque<(T, u64)>>;

/// The queue of one stream. What waits in it is sent by nobody once this is dropped.
#[derive(Debug)]
pub struct Queue<T> {
    queues: Arc<Queues<T>>,
    own: Arc<Waiting<T>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bytes_of<T>(waiting: &VecDeque<(T, u64)>) -> u64 {
    waiting.iter().map(|(_, bytes)| bytes).sum()
}

impl<T> Default for Queues<T> {
    fn default() -> Self {
        Self { streams: Mutex::default(), flight: Arc::default() }
    }
}

impl<T> Queues<T> {
    /// Adds a stream, with nothing in its queue.
    pub fn join(self: &Arc<Self>) -> Queue<T> {
        let own: Arc<Waiting<T>> = Arc::default();
        lock(&self.streams).push(own.clone());
        Queue { queues: self.clone(), own }
    }
}

impl<T> Queue<T> {
    /// Counts this stream's line among those that bring the objects.
    pub fn board(&self, line: Line) -> Aboard {
        self.queues.flight.board(line)
    }

    /// Adds objects that this stream is to send, each with its bytes.
    pub fn extend(&self, objects: impl IntoIterator<Item = (T, u64)>) {
        lock(&self.own).extend(objects);
    }

    /// Takes the next object of this stream's own, to be sent by it, with its bytes.
    pub fn pop(&self) -> Option<(T, u64)> {
        lock(&self.own).pop_front()
    }

    /// Takes half of what that stream has left which has most, one object at least and so many `most`, if that is `least` bytes or more, and
    /// more than the one object that it sends next itself; else nothing.
    pub fn help(&self, least: u64, most: usize) -> Vec<T> {
        let streams = lock(&self.queues.streams);
        let left = streams.iter().map(|stream| (bytes_of(&lock(stream)), stream));
        let Some((_, longest)) = left.max_by_key(|(left, _)| *left) else { return Vec::new() };
        let mut theirs = lock(longest);
        let left = bytes_of(&theirs);
        if left < least {
            return Vec::new();
        }
        let (mut taken, mut bytes) = (VecDeque::new(), 0);
        while theirs.len() > 1
            && taken.len() < most
            && let Some((object, len)) =
                theirs.pop_back_if(|(_, len)| bytes == 0 || bytes + *len <= left.div_ceil(2))
        {
            bytes += len;
            taken.push_front(object);
        }
        taken.into()
    }
}

impl<T> Drop for Queue<T> {
    fn drop(&mut self) {
        lock(&self.queues.streams).retain(|stream| !Arc::ptr_eq(stream, &self.own));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn of(queues: &Arc<Queues<u32>>, objects: std::ops::Range<u32>, bytes: u64) -> Queue<u32> {
        let queue = queues.join();
        queue.extend(objects.map(|object| (object, bytes)));
        queue
    }

    #[test]
    fn a_stream_that_is_done_takes_half_of_what_is_left() {
        let queues = Arc::default();
        let (long, done) = (of(&queues, 0..9, 10), of(&queues, 0..0, 0));
        of(&queues, 20..99, 10);
        assert_eq!(done.help(91, 9), [0; 0], "it is not worth it");
        assert_eq!(done.help(90, 9), [5, 6, 7, 8]);
        assert_eq!(done.help(0, 0), [0; 0]);
        assert_eq!((long.pop(), done.pop()), (Some((0, 10)), None));
        assert_eq!(done.help(0, 9), [3, 4]);
        assert_eq!((done.help(0, 9), done.help(0, 9)), (vec![2], vec![]), "each sends its next one itself");
        assert_eq!((long.pop(), long.pop()), (Some((1, 10)), None));
        // By bytes, not by number.
        long.extend([(0, 100), (1, 30), (2, 30)]);
        assert_eq!((done.help(0, 9), done.help(0, 9)), (vec![1, 2], vec![]));
        long.extend([(1, 1), (2, 300)]);
        assert_eq!(done.help(0, 9), [2], "what is more than half goes to whoever can begin with it");
    }

    #[test]
    fn what_a_stream_that_was_cut_had_left_is_sent_by_nobody() {
        let queues = Arc::default();
        let (cut, other) = (of(&queues, 0..9, 10), of(&queues, 9..10, 10));
        drop(cut);
        assert_eq!((other.pop(), other.help(0, 9)), (Some((9, 10)), vec![]));
    }

    #[tokio::test(start_paused = true)]
    async fn what_streams_have_on_their_way_is_bounded_for_all_of_them() {
        let (queues, others) = (Arc::default(), Arc::default());
        let lines: Vec<Line> = (0..3).map(|_| Line::new(Duration::from_millis(50))).collect();
        let joined = [&queues, &queues, &others].map(|queues| of(queues, 0..1, 10));
        let mut aboard: Vec<_> =
            joined.iter().zip(&lines).map(|(queue, line)| queue.board(line.clone())).collect();
        for _ in 0..30 {
            tokio::time::advance(Duration::from_millis(100)).await;
            aboard.iter().take(2).for_each(|line| line.moved(500_000));
        }
        let bounds: Vec<bool> = lines.iter().map(|line| line.most().is_some()).collect();
        assert_eq!((bounds, lines[0].most()), (vec![true, true, false], lines[1].most()));
        aboard.remove(0);
        assert_eq!(lines[0].most(), None, "it sends something else now");
    }

    #[test]
    fn each_object_is_sent_once_whoever_is_faster() {
        let queues = Arc::default();
        let pauses = [2000, 50, 10, 200].map(Duration::from_micros);
        let own = [0..10, 10..20, 20..200, 200..200].map(|own| of(&queues, own, 5));
        let send = |queue: &Queue<u32>, pause| {
            let mut sent = Vec::new();
            loop {
                while let Some((object, _)) = queue.pop() {
                    sent.push(object);
                    std::thread::sleep(pause);
                }
                match queue.help(0, 9) {
                    none if none.is_empty() => return sent,
                    more => queue.extend(more.into_iter().map(|object| (object, 5))),
                }
            }
        };
        let sent: Vec<Vec<u32>> = std::thread::scope(|scope| {
            let streams =
                own.iter().zip(pauses).map(|(queue, pause)| scope.spawn(move || send(queue, pause)));
            streams.collect::<Vec<_>>().into_iter().map(|stream| stream.join().unwrap()).collect()
        });
        let mut all = sent.concat();
        all.sort_unstable();
        assert_eq!(all, (0..200).collect::<Vec<_>>(), "all, none twice");
        assert!(sent[0].len() < 10 && sent[3].len() > 10, "{sent:?}");
    }
}
