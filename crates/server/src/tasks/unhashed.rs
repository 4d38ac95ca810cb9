//! Versions that nobody has hashed, such as of files that were registered in place: the site that has one hashes it before it is brought, so
//! that it comes as any other, over several streams and on from where it was cut
//! ([why](../../../../docs/decisions/2026-11-26-what-is-replicated-is-hashed-first.md)).

use std::collections::BTreeMap;

use futures::future::{BoxFuture, join_all};
use futures::{FutureExt as _, StreamExt as _, stream};
use percale_api::peer::MAX_COPIES;
use percale_catalog::OpenVersion;
use percale_core::ErrorCode;
use percale_core::ids::SiteId;

use super::Attempt;
use super::verify::{Found, hear_site};
use crate::fetch::{Fetch, OnEnd, Wanted};
use crate::{ApiError, Result};

/// Bytes that a site hashes before the first of them are brought: a second or two of a disk.
const BATCH: u64 = 1 << 30;
/// Batches in hand: one is hashed while another is fetched.
const BATCHES: usize = 2;

/// Fetches versions. Those that nobody has hashed are hashed where they lie while the rest is on its way, and each batch of them while the
/// one before is.
pub(super) async fn bring(
    attempt: &Attempt,
    fetch: &Fetch,
    first: Option<SiteId>,
    wanted: Vec<Wanted>,
    done: OnEnd<'_>,
) {
    let (mut ready, mut unhashed) = (Vec::new(), Vec::new());
    for one in wanted {
        // What is read at this site is hashed on the way.
        let is_ready =
            one.version.root.is_some() || attempt.app.stores.have(&one.version).await.unwrap_or_default();
        if is_ready { &mut ready } else { &mut unhashed }.push(one);
    }
    let mut late: Vec<BoxFuture<'_, ()>> = Vec::new();
    for batch in batches(unhashed) {
        late.push(async move { fetch.all(hashed(attempt, first, batch).await, done).await }.boxed());
    }
    tokio::join!(fetch.all(ready, done), stream::iter(late).buffer_unordered(BATCHES).collect::<Vec<()>>());
}

/// Cuts what is wanted into batches, each of which is hashed before it is brought.
fn batches(wanted: Vec<Wanted>) -> Vec<Vec<Wanted>> {
    let mut batches: Vec<Vec<Wanted>> = Vec::new();
    let mut bytes = 0_u64;
    for one in wanted {
        let size = one.version.size.0;
        match batches
            .last_mut()
            .filter(|batch| batch.len() < MAX_COPIES && bytes.saturating_add(size) <= BATCH)
        {
            Some(batch) => {
                bytes += size;
                batch.push(one);
            }
            None => {
                bytes = size;
                batches.push(vec![one]);
            }
        }
    }
    batches
}

/// Has versions hashed at the sites that have them, `first` before others. Returns those that have a root now, and those at sites that cannot
/// do that; of the others it is noted why they have none.
async fn hashed(attempt: &Attempt, first: Option<SiteId>, wanted: Vec<Wanted>) -> Vec<Wanted> {
    let mut of_site: BTreeMap<SiteId, Vec<Wanted>> = BTreeMap::new();
    for one in wanted {
        match attempt.app.stores.other_site_of(&one.version, first).await {
            Some(site) => of_site.entry(site).or_default().push(one),
            None => {
                let error = ApiError::new(ErrorCode::Offline, "no copy of it can be read now");
                attempt.failed(&one.version.path, "failed", &error);
            }
        }
    }
    let asked = of_site.into_iter().map(|(site, wanted)| at_site(attempt, site, wanted).boxed());
    let asked: Vec<BoxFuture<'_, Vec<Wanted>>> = asked.collect();
    join_all(asked).await.concat()
}

async fn at_site(attempt: &Attempt, site: SiteId, mut wanted: Vec<Wanted>) -> Vec<Wanted> {
    let versions: Vec<OpenVersion> = wanted.iter().map(|one| one.version.clone()).collect();
    let mut faults: Vec<Option<ApiError>> = vec![None; wanted.len()];
    let heard = |item: usize, _, found: Result<Found>| {
        let (Some(one), Some(fault)) = (wanted.get_mut(item), faults.get_mut(item)) else { return };
        match found {
            Ok(found) => one.version.root = one.version.root.or(found.root),
            Err(error) => *fault = Some(error),
        }
    };
    let ended = hear_site(attempt, site, &versions, None, heard).await;
    let unheard = ended.err().unwrap_or_else(|| {
        ApiError::new(ErrorCode::Unsupported, "the site that has it cannot hash it: its release is older")
    });
    let mut hashed = Vec::with_capacity(wanted.len());
    for (one, fault) in wanted.into_iter().zip(faults) {
        if one.version.root.is_some() {
            hashed.push(one);
            continue;
        }
        let error = fault.unwrap_or_else(|| unheard.clone());
        match error.code() {
            // A copy that becomes an object of its own is hashed here; another is refused.
            ErrorCode::Unsupported => hashed.push(one),
            _ => {
                let error = error.context("cannot have it hashed before it is brought");
                attempt.failed(&one.version.path, "failed", &error);
            }
        }
    }
    hashed
}
