//! Small files that wait for a stream.
//!
//! The streams of a put take files as they get rid of those before, so that all of them are busy until the last file.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use percale_api::entries::Content;
use percale_api::uploads::{Committed, Condition};
use percale_core::ObjectPath;
use tokio::sync::Notify;

use crate::report::{Item, Outcome};

/// Files that wait at most, so that a walk of millions takes constant memory.
const MOST: usize = 2048;
/// What is worth a stream of its own: as many files, or as many bytes. Less than that travels with others, since each stream
/// ends with a transaction and a flush of its own.
const SHARE_FILES: usize = 64;
const SHARE_BYTES: u64 = 2 << 20;

/// A file that is to be sent.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub local: PathBuf,
    pub target: ObjectPath,
    pub size: u64,
    /// What is there and is to be replaced.
    pub existing: Option<Content>,
}

impl Wanted {
    pub fn condition(&self) -> Condition {
        self.existing.as_ref().map_or(Condition::New, |content| Condition::Match(content.version))
    }

    pub fn item(&self, outcome: Outcome) -> Item {
        let (from, to) = (self.local.display().to_string(), self.target.to_string());
        Item { from, to, bytes: self.size, outcome }
    }

    pub fn committed(&self, committed: Committed) -> Item {
        let mut item = self.item(Outcome::Done {
            version: Some(committed.version),
            root: Some(committed.root),
            replaced: !committed.created,
        });
        item.bytes = committed.size;
        item
    }
}

/// A queue between the walk and the streams.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    waiting: Mutex<Waiting>,
    added: Condvar,
    drained: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    files: VecDeque<Wanted>,
    bytes: u64,
    takers: usize,
    has_ended: bool,
}

impl Feed {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, file: Wanted) {
        let mut waiting = self.waiting();
        waiting.bytes += file.size;
        waiting.files.push_back(file);
        drop(waiting);
        self.added.notify_one();
    }

    /// Says that no more files come.
    pub fn end(&self) {
        self.waiting().has_ended = true;
        self.added.notify_all();
    }

    /// Returns whether more may be added. Else [`Feed::drained`] says when to ask again.
    pub fn has_room(&self) -> bool {
        self.waiting().files.len() < MOST
    }

    /// Waits until there is room again.
    pub async fn drained(&self) {
        self.drained.notified().await;
    }

    /// Returns whether files wait that nobody takes.
    pub fn is_left_alone(&self) -> bool {
        let waiting = self.waiting();
        waiting.takers == 0 && !waiting.files.is_empty()
    }

    /// Returns how many more streams are worth their while now.
    pub fn lacks(&self) -> usize {
        let waiting = self.waiting();
        let shares = (waiting.files.len() / SHARE_FILES)
            .max(usize::try_from(waiting.bytes / SHARE_BYTES).unwrap_or(usize::MAX))
            .max(usize::from(waiting.has_ended && !waiting.files.is_empty()));
        shares.saturating_sub(waiting.takers)
    }

    /// Makes somebody who takes files.
    pub fn taker(self: &Arc<Self>) -> Taker {
        self.waiting().takers += 1;
        Taker(self.clone())
    }
}

/// Somebody who takes files, until it is dropped.
#[derive(Debug)]
pub(crate) struct Taker(Arc<Feed>);

impl Taker {
    /// Takes the next file, if there is one within this time that is not larger. Blocks.
    pub fn next(&self, most_bytes: u64, wait: Duration) -> Option<Wanted> {
        let waiting = self.0.waiting();
        let (mut waiting, _) = self
            .0
            .added
            .wait_timeout_while(waiting, wait, |waiting| waiting.files.is_empty() && !waiting.has_ended)
            .unwrap_or_else(PoisonError::into_inner);
        if waiting.files.front()?.size > most_bytes {
            return None;
        }
        let file = waiting.files.pop_front()?;
        waiting.bytes -= file.size;
        if waiting.files.len() + 1 == MOST {
            self.0.drained.notify_one();
        }
        Some(file)
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        self.0.waiting().takers -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_WAIT: Duration = Duration::ZERO;

    fn file(size: u64) -> Wanted {
        let target = "/lab/x".parse().unwrap();
        Wanted { local: "x".into(), target, size, existing: None }
    }

    #[test]
    fn files_are_taken_in_their_order_and_once() {
        let feed = Arc::new(Feed::default());
        (1..=3).for_each(|size| feed.add(file(size)));
        let (one, other) = (feed.taker(), feed.taker());
        let taken = [one.next(9, NO_WAIT), other.next(9, NO_WAIT), one.next(9, NO_WAIT)];
        assert_eq!(taken.map(|file| file.unwrap().size), [1, 2, 3]);
        assert!(other.next(9, NO_WAIT).is_none());
    }

    #[test]
    fn what_is_too_large_is_left_for_the_next() {
        let feed = Arc::new(Feed::default());
        feed.add(file(5));
        assert!(feed.taker().next(4, NO_WAIT).is_none());
        assert_eq!(feed.taker().next(5, NO_WAIT).unwrap().size, 5);
    }

    #[test]
    fn few_files_are_worth_one_stream_and_many_more() {
        let feed = Arc::new(Feed::default());
        assert_eq!(feed.lacks(), 0);
        feed.add(file(1));
        assert_eq!(feed.lacks(), 0, "others may come");
        assert!(feed.is_left_alone());
        feed.end();
        assert_eq!(feed.lacks(), 1);
        let taker = feed.taker();
        assert_eq!((feed.lacks(), feed.is_left_alone()), (0, false));
        (1..3 * SHARE_FILES).for_each(|_| feed.add(file(1)));
        assert_eq!(feed.lacks(), 2, "one takes already");
        feed.add(file(8 * SHARE_BYTES));
        assert_eq!(feed.lacks(), 7);
        drop(taker);
        assert_eq!(feed.lacks(), 8);
    }

    #[tokio::test]
    async fn who_waits_for_room_is_woken() {
        let feed = Arc::new(Feed::default());
        (0..MOST).for_each(|_| feed.add(file(1)));
        assert!(!feed.has_room());
        let taker = feed.taker();
        taker.next(1, NO_WAIT).unwrap();
        feed.drained().await;
        assert!(feed.has_room());
    }
}
