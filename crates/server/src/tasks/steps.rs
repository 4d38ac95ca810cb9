//! Tasks that do something with all that is below a path go through it page by page, several pages at once. The cursor moves on behind a
//! step of many pages.

use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};

use super::Attempt;
use crate::Result;

/// Entries of a page. The first is listed before anything is done.
pub(super) const PAGE: usize = 2000;
/// Pages in one step: its last objects leave the line idle while they are written and told, so it is long; what it lists is in
/// memory, so it has an end.
const PAGES: usize = 16;
/// Pages that are worked on at once.
const PAGES_AHEAD: usize = 3;

/// A page of what is below a path.
pub(super) struct Page<T> {
    /// What is to be done.
    pub work: T,
    /// How many items it has, also those with which nothing is to be done, and the bytes that are to be brought.
    pub items: u64,
    /// See `items`.
    pub bytes: u64,
    /// What lists the next.
    pub next: Option<String>,
}

/// What a task does with all that is below a path.
pub(super) trait Walk: Sync {
    /// What is to be done for a page.
    type Work: Send;

    /// Lists a page, the first without a mark, and finds out what is to be done. The next is listed while this one is worked on.
    fn page(&self, after: Option<String>) -> impl Future<Output = Result<Page<Self::Work>>> + Send;

    /// Does it, and notes what became of each item.
    fn work(&self, work: Self::Work) -> impl Future<Output = ()> + Send;

    /// Returns the cursor for what begins at a mark, or behind all.
    fn cursor(&self, next: Option<String>) -> Option<String> {
        next
    }
}

/// Goes through all from a mark on.
///
/// # Errors
/// Those of the listing; those with which a step ends ([`Attempt::step`]).
pub(super) async fn run(attempt: &Attempt, walk: &impl Walk, mut after: Option<String>) -> Result<()> {
    loop {
        let counts = Mutex::new(Counts { before: attempt.progress.ended(), ..Counts::default() });
        let step = &Step { attempt, walk, counts };
        let pages = stream::try_unfold((after, 0), |(after, pages)| step.page(after, pages).boxed()).boxed();
        let worked = pages.map_ok(|work| walk.work(work).map(Ok).boxed()).try_buffer_unordered(PAGES_AHEAD);
        let listed = worked.try_collect::<()>().await;
        attempt.has_room()?;
        listed?;
        after = step.counts().next.clone();
        attempt.step(walk.cursor(after.clone()))?;
        if after.is_none() {
            return Ok(());
        }
    }
}

struct Step<'a, W> {
    attempt: &'a Attempt,
    walk: &'a W,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Items and bytes of the steps before.
    before: (u64, u64),
    items: u64,
    bytes: u64,
    /// Where the next page begins.
    next: Option<String>,
}

impl<W: Walk> Step<'_, W> {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what is to be done for a page, and what lists the next; nothing behind the last of the step.
    async fn page(
        &self,
        after: Option<String>,
        pages: usize,
    ) -> Result<Option<(W::Work, (Option<String>, usize))>> {
        if pages > 0 && (after.is_none() || pages >= PAGES) {
            return Ok(None);
        }
        let Page { work, items, bytes, next } = self.walk.page(after).await?;
        let mut counts = self.counts();
        counts.items += items;
        counts.bytes += bytes;
        counts.next.clone_from(&next);
        self.attempt.progress.found(counts.before, counts.items, counts.bytes, next.is_none());
        Ok(Some((work, (next, pages + 1))))
    }
}
