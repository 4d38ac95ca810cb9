//! Makes copies at this site of what is below a path, of every object that has no good one here.
//!
//! Killed anywhere it goes on where its cursor stands; what was written and not told is told first, so that nothing is
//! fetched twice.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use percale_catalog::{ArrivalBody, EntryKind, OpenVersion, Space};
use percale_core::ids::{SiteId, VersionId};
use percale_core::{ErrorCode, ObjectPath, Position};
use percale_federation::follow;

use super::Attempt;
use super::steps::{self, PAGE, Page, Walk};
use super::unhashed::bring;
use super::verify::opened;
use crate::abroad::Copied;
use crate::app::system_caller;
use crate::fetch::{Become, Brought, Fetch, OnEnd, Wanted};
use crate::{ApiError, OnPath as _, Result};

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
    let fetch = attempt.fetch(Become::Copies(Box::new(space.clone())), first);
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
    let replicator = Replicator { attempt, path, space: &space, first, under_way, fetch, done: &done };
    steps::run(attempt, &replicator, attempt.progress.after()).await?;
    let furthest = furthest.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(position) = furthest {
        drop(follow::caught_up(&app.fabric, position, CATCH_UP).await);
    }
    Ok(())
}

struct Replicator<'a> {
    attempt: &'a Attempt,
    path: &'a ObjectPath,
    space: &'a Space,
    first: Option<SiteId>,
    /// Versions of which the home was told that they are here.
    under_way: HashSet<VersionId>,
    fetch: Fetch,
    done: OnEnd<'a>,
}

impl Walk for Replicator<'_> {
    type Work = Vec<Wanted>;

    async fn page(&self, after: Option<String>) -> Result<Page<Vec<Wanted>>> {
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
            wanted.push(Wanted { version, store: store.clone(), object: None });
        }
        let bytes = wanted.iter().map(|one| one.version.size.0).sum();
        Ok(Page { work: wanted, items, bytes, next: page.next })
    }

    async fn work(&self, wanted: Vec<Wanted>) {
        bring(self.attempt, &self.fetch, self.first, wanted, self.done).await;
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
