//! What is found, one after the other, got side by side.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use percale_core::ErrorCode;
use percale_mover::Slots;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::small::{self, Means};
use super::{Ahead, FOUND_AHEAD, GetOptions, Wanted, large};
use crate::client::{Client, MAX_STREAMS};
use crate::error::{Error, ErrorKind};
use crate::local::{Fingerprint, has_content};
use crate::put::Compare;
use crate::report::{Item, Outcome, Report};
use crate::upload::blocking;

/// Most objects of one request for small ones: compressed, their names fit the 14 kB that a connection begins with.
const BATCH_ITEMS: usize = 500;
/// And of the first on each stream: every stream gets some of those that are listed first ([`FIRST_PAGE`](super::FIRST_PAGE)), and the
/// windows of all connections open while the next are listed.
const FIRST_ITEMS: usize = 10;
/// Bytes of one.
const BATCH_BYTES: u64 = 16 << 20;
/// And of the last ones for each stream, which streams bring together so that they end together.
const LAST_BYTES: u64 = 128 << 20;
/// How long small objects wait for others to be listed, which are asked for with them.
const LISTED_SOON: Duration = Duration::from_millis(20);
/// For how many streams one more request is under way: a file of 10 to 20 MB comes for about a second over its share of a line of
/// 1.2 Gbit/s, and waits for a tenth of that at 50 ms.
const WAITING_SHARE: usize = 4;
/// What a job ends with.
enum Ended {
    Items(Vec<Item>),
    /// Those of a request for small objects that did not come.
    Small(Vec<Item>),
    /// Nothing is in the way.
    Fetch(Wanted),
}

/// What is got of a listing.
pub(super) struct Transfer<'a> {
    client: Client,
    options: &'a GetOptions,
    /// What was asked for of the only object.
    ahead: Option<Ahead>,
    /// Objects from this size on come alone.
    large: u64,
    slots: Arc<Slots>,
    larges: Arc<Slots>,
    jobs: JoinSet<Ended>,
    /// Small objects that nobody asked for yet.
    small: VecDeque<Wanted>,
    small_bytes: u64,
    /// Small objects that have come.
    done: (mpsc::UnboundedSender<Item>, mpsc::UnboundedReceiver<Item>),
    /// Requests for small objects under way.
    small_jobs: usize,
    /// Requests for small objects up to now.
    requests: usize,
    wrote_small: Arc<AtomicBool>,
}

impl<'a> Transfer<'a> {
    /// Gets what is found; objects of `large` bytes or more come alone. `ahead` is what was asked for of the only one.
    pub fn new(client: &Client, options: &'a GetOptions, large: u64, ahead: Option<Ahead>) -> Self {
        Self {
            client: client.clone(),
            options,
            ahead,
            large,
            slots: Arc::default(),
            larges: Arc::default(),
            jobs: JoinSet::new(),
            small: VecDeque::new(),
            small_bytes: 0,
            done: mpsc::unbounded_channel(),
            small_jobs: 0,
            requests: 0,
            wrote_small: Arc::default(),
        }
    }

    /// Tells, also when it was dropped, whether small files were written, which nobody has flushed.
    pub fn wrote_small(&self) -> Arc<AtomicBool> {
        self.wrote_small.clone()
    }

    /// Gets all that comes.
    pub async fn run(mut self, mut found: mpsc::Receiver<Result<Wanted, Item>>, report: &mut Report) {
        let mut listing = true;
        let (mut ready, mut in_the_way) = (VecDeque::new(), VecDeque::new());
        let mut found_last = Instant::now();
        loop {
            let most = under_way(self.client.streams());
            let may_find = ready.is_empty() && in_the_way.is_empty() && self.small.len() < FOUND_AHEAD;
            tokio::select! {
                biased;
                Some(joined) = self.jobs.join_next() => {
                    match joined {
                        Ok(Ended::Items(items)) => items.into_iter().for_each(|item| self.tell(report, item)),
                        Ok(Ended::Small(items)) => {
                            self.small_jobs -= 1;
                            items.into_iter().for_each(|item| self.tell(report, item));
                        }
                        Ok(Ended::Fetch(wanted)) => ready.push_back(wanted),
                        Err(error) => {
                            let error =
                                Error::new(ErrorKind::Local, ErrorCode::Internal, "get files", error.to_string());
                            let (from, to) = (String::new(), String::new());
                            self.tell(report, Item { from, to, bytes: 0, outcome: Outcome::Failed(error) });
                        }
                    }
                    // Whatever it was that did not end as it should.
                    self.small_jobs = self.small_jobs.min(self.jobs.len());
                }
                Some(item) = self.done.1.recv(), if !self.jobs.is_empty() => self.tell(report, item),
                next = found.recv(), if listing && may_find => match next {
                    Some(Ok(wanted)) => {
                        found_last = Instant::now();
                        self.options.progress.plan(wanted.content.size);
                        match looked_at(&wanted) {
                            None => ready.push_back(wanted),
                            Some(_) => in_the_way.push_back(Wanted { replaces: true, ..wanted }),
                        }
                    }
                    Some(Err(item)) => {
                        self.options.progress.plan(0);
                        self.tell(report, item);
                    }
                    None => {
                        listing = false;
                        self.options.progress.planned();
                    }
                },
                () = tokio::time::sleep_until(found_last + LISTED_SOON),
                    if !self.small.is_empty() && self.small_jobs < most => self.ask_for_small(listing),
                else => break,
            }
            while let Ok(item) = self.done.1.try_recv() {
                self.tell(report, item);
            }
            while self.may_begin()
                && let Some(wanted) = in_the_way.pop_front()
            {
                self.compare(wanted);
            }
            while (self.may_begin() || ready.front().is_some_and(|next| self.is_small(next)))
                && let Some(wanted) = ready.pop_front()
            {
                self.begin(wanted, report);
            }
            while self.small_jobs < most && self.has_batch(listing) {
                self.ask_for_small(listing);
            }
        }
    }

    fn may_begin(&self) -> bool {
        self.jobs.len() < under_way(self.client.streams())
    }

    fn is_small(&self, wanted: &Wanted) -> bool {
        wanted.content.size < self.large
    }

    fn tell(&self, report: &mut Report, item: Item) {
        self.options.progress.ended(&item.outcome);
        if let Some(on_item) = &self.options.on_item {
            on_item(&item);
        }
        report.add(item);
    }

    /// Finds out whether the local file is the same.
    fn compare(&mut self, wanted: Wanted) {
        let (compare, overwrite, progress) =
            (self.options.compare, self.options.overwrite, self.options.progress.clone());
        self.jobs.spawn(async move {
            let same = is_same(&wanted, compare).await;
            Ended::Items(vec![match same {
                Ok(true) => {
                    progress.moved(wanted.content.size);
                    wanted.item(Outcome::Same)
                }
                Ok(false) if overwrite => return Ended::Fetch(wanted),
                Ok(false) => {
                    let detail = format!(
                        "{} is there with another content; it is only replaced if asked for",
                        wanted.local.display()
                    );
                    let operation = format!("get {}", wanted.path);
                    let error = Error::new(ErrorKind::Usage, ErrorCode::AlreadyExists, operation, detail);
                    wanted.item(Outcome::Failed(error))
                }
                Err(error) => wanted.item(Outcome::Failed(error)),
            }])
        });
    }

    fn begin(&mut self, wanted: Wanted, report: &mut Report) {
        if self.options.dry_run {
            let replaces = wanted.replaces;
            self.tell(report, wanted.item(Outcome::Planned { replaces }));
        } else if !self.is_small(&wanted) {
            let (client, progress) = (self.client.clone(), self.options.progress.clone());
            let (slots, larges) = (self.slots.clone(), self.larges.clone());
            let ahead = self.ahead.take();
            self.jobs.spawn(async move {
                let _in_hand = larges.take(MAX_STREAMS).await;
                let outcome = large::get(&client, &wanted, ahead, (slots, larges), &progress).await;
                Ended::Items(vec![match outcome {
                    Ok(()) => wanted.done(),
                    Err(error) => wanted.item(Outcome::Failed(error)),
                }])
            });
        } else {
            self.small_bytes += wanted.content.size;
            self.small.push_back(wanted);
        }
    }

    /// Returns how many small objects the next request asks for at most.
    fn batch_items(&self) -> usize {
        if self.requests < self.client.streams() { FIRST_ITEMS } else { BATCH_ITEMS }
    }

    /// Tells whether there is enough for a request: all there will be, or as much as it may have.
    fn has_batch(&self, listing: bool) -> bool {
        let is_enough = self.small.len() >= self.batch_items() || self.small_bytes >= BATCH_BYTES;
        !self.small.is_empty() && (!listing || is_enough)
    }

    /// Tells whether what is left is so little that all of it is asked for, over all streams together.
    fn are_last(&self, listing: bool) -> bool {
        let streams = self.client.streams();
        !listing
            && self.small.len() <= streams * BATCH_ITEMS
            && self.small_bytes <= streams as u64 * LAST_BYTES
    }

    fn ask_for_small(&mut self, listing: bool) {
        let are_last = self.are_last(listing);
        let (most, mut room) =
            if are_last { (usize::MAX, u64::MAX) } else { (self.batch_items(), BATCH_BYTES) };
        let mut batch = Vec::new();
        while batch.len() < most
            && let Some(wanted) =
                self.small.pop_front_if(|next| batch.is_empty() || next.content.size <= room)
        {
            room = room.saturating_sub(wanted.content.size);
            self.small_bytes -= wanted.content.size;
            batch.push(wanted);
        }
        self.requests += 1;
        self.small_jobs += 1;
        self.wrote_small.store(true, Ordering::Relaxed);
        let streams = if are_last { self.client.streams() } else { 1 };
        let means = Means {
            client: self.client.clone(),
            slots: self.slots.clone(),
            progress: self.options.progress.clone(),
            done: self.done.0.clone(),
        };
        self.jobs.spawn(async move { Ended::Small(small::get(&means, batch, streams).await) });
    }
}

/// Returns how many requests are under way for so many streams: while one waits for its answer, the others fill the line.
pub(super) fn under_way(streams: usize) -> usize {
    streams + streams / WAITING_SHARE
}

/// Tells what is at the destination. One look at a directory that is in the cache takes microseconds.
fn looked_at(wanted: &Wanted) -> Option<std::fs::Metadata> {
    std::fs::symlink_metadata(&wanted.local).ok()
}

async fn is_same(wanted: &Wanted, compare: Compare) -> crate::Result<bool> {
    let (local, content) = (wanted.local.clone(), wanted.content.clone());
    blocking(&format!("compare {}", local.display()), move || {
        let cannot = |error| Error::local("look at", &local, error);
        let metadata = std::fs::metadata(&local).map_err(cannot)?;
        if metadata.is_dir() {
            return Err(cannot(std::io::Error::new(
                std::io::ErrorKind::IsADirectory,
                "a directory is in the way",
            )));
        }
        match compare {
            Compare::Exists => Ok(true),
            Compare::Size => Ok(content.size == metadata.len()),
            Compare::Mtime => {
                Ok(content.size == metadata.len() && content.mtime == Fingerprint::of(&metadata).mtime())
            }
            Compare::Content => has_content(&local, content.size, content.root),
        }
    })
    .await
}
