//! Makes copies at this site of what is below a path, of every object that has no good one here.
//!
//! Killed anywhere it goes on where its cursor stands; what was written and not told is told first, so that nothing is
//! fetched twice.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use percale_catalog::{ArrivalBody, EntryKind, OpenVersion, Space};
use percale_core::ids::{SiteId, VersionId};
use percale_core::{ErrorCode, ObjectPath, Position};
use percale_federation::follow;

use super::Attempt;
use super::unhashed::{batches, hashed};
use super::verify::opened;
use crate::abroad::Copied;
use crate::app::system_caller;
use crate::fetch::{Become, Brought, Fetch, OnEnd, Wanted};
use crate::{ApiError, OnPath as _, Result};

/// Entries of a page. The first is listed before anything is fetched.
const PAGE: usize = 2000;
/// Pages in one step: its last objects leave the line idle while they are written and told, so it is long; what it lists is in
/// memory, so it has an end.
const PAGES: usize = 16;
/// Pages of which objects are fetched at once.
const PAGES_AHEAD: usize = 3;
/// Batches of what nobody has hashed: one is hashed while another is fetched.
const BATCHES: usize = 2;
/// Arrivals that are looked at in one step.
const ARRIVALS: usize = 1000;
/// How long this site's follower is waited for at the end, so that whoever looks then sees the copies.
const CATCH_UP: Duration = Duration::from_secs(2);

pub(super) async fn run(attempt: &Attempt, path: &ObjectPath, from: Option<&str>) -> Result<()> {
    let app = &attempt.app;
    let space = space_of(attempt, path).await?;
    let first = match from {
        Some(name) if name != app.site.name => Some(app.fabric.named(name)?.id),
        _ => None,
    };
    let under_way = end_left_over(attempt, &space).await?;
    let fetch = attempt.fetch(Become::Copies(space.clone()), first);
    let furthest: Mutex<Option<Position>> = Mutex::new(None);
    let done = |version: &OpenVersion, outcome: Result<Brought>| match outcome {
        Ok(Brought { copied: Copied::At(position), copy }) => {
            let mut furthest = furthest.lock().unwrap_or_else(PoisonError::into_inner);
            if furthest.is_none_or(|known| (known.term, known.seq) < (position.term, position.seq)) {
                *furthest = Some(position);
            }
            attempt.progress.brought(copy);
        }
        // It was replaced or removed meanwhile, or somebody else brought it.
        Ok(Brought { copied: Copied::NotWanted, .. }) => attempt.progress.done(1, 0),
        Err(error) => attempt.not_brought(&version.path, &error),
    };
    let mut after = attempt.progress.after();
    loop {
        let step = Step::begin(attempt, path, &space, &under_way);
        let listing = (after.clone(), 0);
        let pages = stream::try_unfold(listing, |(after, pages)| step.page(after, pages).boxed()).boxed();
        let (step, fetch, done) = (&step, &fetch, &done);
        let brought = pages
            .map_ok(|wanted| bring(attempt, fetch, first, wanted, done).map(Ok).boxed())
            .try_buffer_unordered(PAGES_AHEAD);
        let listed = brought.try_collect::<()>().await;
        attempt.has_room()?;
        listed?;
        after = step.next();
        attempt.step(after.clone())?;
        if after.is_none() {
            break;
        }
    }
    let furthest = furthest.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(position) = furthest {
        drop(follow::caught_up(&app.fabric, position, CATCH_UP).await);
    }
    Ok(())
}

/// Fetches what was listed. What nobody has hashed is hashed where it lies while the rest is on its way, and each batch of it while the one
/// before is.
async fn bring(
    attempt: &Attempt,
    fetch: &Fetch,
    first: Option<SiteId>,
    wanted: Vec<Wanted>,
    done: OnEnd<'_>,
) {
    let (ready, unhashed): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|one| one.version.root.is_some());
    let mut late: Vec<BoxFuture<'_, ()>> = Vec::new();
    for batch in batches(unhashed) {
        late.push(async move { fetch.all(hashed(attempt, first, batch).await, done).await }.boxed());
    }
    tokio::join!(fetch.all(ready, done), stream::iter(late).buffer_unordered(BATCHES).collect::<Vec<()>>());
}

/// What is listed and fetched before the cursor moves on: several pages, of which the next is listed and fetched while the
/// last is written and told.
struct Step<'a> {
    attempt: &'a Attempt,
    path: &'a ObjectPath,
    space: &'a Space,
    under_way: &'a HashSet<VersionId>,
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

impl<'a> Step<'a> {
    fn begin(
        attempt: &'a Attempt,
        path: &'a ObjectPath,
        space: &'a Space,
        under_way: &'a HashSet<VersionId>,
    ) -> Self {
        let counts = Mutex::new(Counts { before: attempt.progress.ended(), ..Counts::default() });
        Self { attempt, path, space, under_way, counts }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns where the next step begins; nothing if this is the last.
    fn next(&self) -> Option<String> {
        self.counts().next.clone()
    }

    /// Lists a page, the first without a mark. Returns what is to be fetched of it, and what lists the next.
    async fn page(
        &self,
        after: Option<String>,
        pages: usize,
    ) -> Result<Option<(Vec<Wanted>, (Option<String>, usize))>> {
        if pages > 0 && (after.is_none() || pages >= PAGES) {
            return Ok(None);
        }
        let (attempt, app) = (self.attempt, &self.attempt.app);
        let page = attempt.list(self.path, after, PAGE).await?;
        let store = app.stores.for_new_data(&self.space.name).await?;
        let (mut wanted, mut items) = (Vec::new(), 0);
        for listed in page.items.into_iter().filter(|listed| listed.entry.kind == EntryKind::Object) {
            let Some(version) = opened(listed, page.position) else { continue };
            items += 1;
            if self.under_way.contains(&version.version) || app.stores.have(&version).await? {
                let OpenVersion { path, version, size, root, .. } = &version;
                attempt.progress.found_there(path, *version, size.0, *root);
                continue;
            }
            wanted.push(Wanted { version, store: store.clone() });
        }
        let mut counts = self.counts();
        counts.items += items;
        counts.bytes += wanted.iter().map(|one| one.version.size.0).sum::<u64>();
        counts.next.clone_from(&page.next);
        attempt.progress.found(counts.before, counts.items, counts.bytes, page.next.is_none());
        Ok(Some((wanted, (page.next, pages + 1))))
    }
}

/// Returns the space that a path is in.
pub(super) async fn space_of(attempt: &Attempt, path: &ObjectPath) -> Result<Space> {
    let name = path.space().ok_or_else(|| ApiError::invalid(format!("{path} is in no space")))?;
    attempt.app.catalog.space(&system_caller(), &name).await.on_path(path)
}

/// Has the home told of what an earlier attempt left written. Returns the versions of which it was told and that may not show
/// here yet.
///
/// # Errors
/// `SiteUnavailable` while the home does not answer: what is fetched now could not be told either.
async fn end_left_over(attempt: &Attempt, space: &Space) -> Result<HashSet<VersionId>> {
    let app = &attempt.app;
    app.abroad.tidy().await?;
    // What shows here already may have been let go since: its rows say what is true of it.
    app.catalog.finish_arrived().await?;
    let mut told = HashSet::new();
    let mut after = None;
    loop {
        let arrivals = app.catalog.written_arrivals(ARRIVALS, after).await?;
        let Some(last) = arrivals.last() else { return Ok(told) };
        after = Some(last.id);
        for arrival in arrivals.into_iter().filter(|arrival| arrival.space == space.id) {
            if !matches!(arrival.body, ArrivalBody::Copy { .. }) {
                continue;
            }
            match (arrival.told, arrival.version) {
                (Some(_), Some(version)) => drop(told.insert(version)),
                // Another task or server has it in hand, and tells of it.
                _ if app.abroad.is_going(arrival.id) || arrival.lease != attempt.holder.lease => {}
                _ => {
                    let detail = format!("the home of space {} does not take note of copies yet", space.name);
                    return Err(ApiError::new(ErrorCode::SiteUnavailable, detail));
                }
            }
        }
    }
}
