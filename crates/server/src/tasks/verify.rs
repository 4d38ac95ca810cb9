//! Reads every copy below a path from its store and hashes it; copies of other sites are read by these, who are asked. What
//! is found is noted in the catalog copy by copy, and replaced from a good copy if that is wanted.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};

use futures::future::{BoxFuture, join_all};
use futures::{FutureExt, StreamExt as _, stream};
use percale_api::peer::{CheckCopies, CheckLine, Checked, Outcome, VersionOf};
use percale_catalog::{EntryKind, Listed, OpenVersion, Replica};
use percale_core::access::Permission;
use percale_core::ids::{SiteId, StoreId};
use percale_core::state::ReplicaState;
use percale_core::tree::RootHash;
use percale_core::{ErrorCode, ObjectPath, Position};
use percale_federation::{Acting, tell};

use super::Attempt;
use crate::abroad::{Copied, from_problem};
use crate::app::system_caller;
use crate::authorize::limited;
use crate::fetch::{Become, Brought, Fetch, Flow, Wanted};
use crate::{ApiError, AppState, Result};

/// Entries in one step.
const STEP: usize = 100;
/// Copies that are read at once.
pub(crate) const AT_ONCE: usize = 4;

/// A good copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// Bytes that were read.
    pub bytes: u64,
    /// Whether it was made anew.
    pub is_repaired: bool,
    /// The root of its hash tree.
    pub root: Option<RootHash>,
}

/// `unverified`: only copies that were not hashed yet are looked at.
pub(super) async fn run(attempt: &Attempt, path: &ObjectPath, repair: bool, unverified: bool) -> Result<()> {
    let mut after = attempt.progress.after();
    loop {
        let page = attempt.list(path, after, STEP).await?;
        let position = page.position;
        let mut own = Vec::new();
        let mut others: BTreeMap<SiteId, Vec<OpenVersion>> = BTreeMap::new();
        let objects = page.items.into_iter().filter(|listed| listed.entry.kind == EntryKind::Object);
        for mut version in objects.filter_map(|listed| opened(listed, position)) {
            if unverified {
                version.replicas.retain(|replica| replica.state == ReplicaState::Unverified);
            }
            for replica in version.replicas.clone() {
                match attempt.app.stores.site_of(replica.store).await {
                    Ok(None) => own.push((version.clone(), replica)),
                    Ok(Some(site)) => {
                        let versions = others.entry(site).or_default();
                        // That site looks at all of its copies of a version.
                        if versions.last().is_none_or(|last| last.version != version.version) {
                            versions.push(version.clone());
                        }
                    }
                    Err(error) => attempt.failed(&version.path, "failed", &error),
                }
            }
        }
        let here = own.into_iter().map(|(version, replica)| check_own(attempt, version, replica, repair));
        let here: Vec<BoxFuture<'_, ()>> = here.map(FutureExt::boxed).collect();
        let elsewhere =
            others.into_iter().map(|(site, versions)| ask_site(attempt, path, site, versions, repair));
        let elsewhere: Vec<BoxFuture<'_, ()>> = elsewhere.map(FutureExt::boxed).collect();
        tokio::join!(stream::iter(here).buffer_unordered(AT_ONCE).collect::<Vec<()>>(), join_all(elsewhere));
        attempt.step(page.next.clone())?;
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// A line of a listing as a version to be read.
pub(super) fn opened(listed: Listed, position: Option<Position>) -> Option<OpenVersion> {
    let Listed { path, entry, replicas } = listed;
    let content = entry.content?;
    Some(OpenVersion {
        path,
        space: entry.space,
        entry: entry.id,
        version: content.version,
        is_current: true,
        size: content.size,
        root: content.root,
        digests: content.digests,
        mtime: content.mtime,
        mode: content.mode,
        modified: entry.modified,
        replicas,
        position: position.unwrap_or(Position { space: entry.space, term: 0, seq: 0 }),
    })
}

fn note(attempt: &Attempt, path: &ObjectPath, found: Result<Found>) {
    match found {
        Ok(found) => attempt.progress.done(1, found.bytes),
        Err(error) => {
            let outcome = match error.code() {
                ErrorCode::Integrity | ErrorCode::DataLost => "damaged",
                ErrorCode::Conflict | ErrorCode::Offline | ErrorCode::VersionChanged => "skipped",
                _ => "failed",
            };
            attempt.progress.failed(path, outcome, &error);
        }
    }
}

async fn check_own(attempt: &Attempt, version: OpenVersion, replica: Replica, repair: bool) {
    let repair = repair.then_some(&attempt.acting);
    let found = check_copy(&attempt.app, &version, &replica, repair).await;
    note(attempt, &version.path, found);
}

/// Reads a copy on an own store, and notes whether it is right. `repair` is for whom a good copy is asked for, if one that is
/// damaged or lost is to be replaced.
///
/// # Errors
/// - `Conflict`, `Offline`, `VersionChanged` for a copy that is not looked at in its state.
/// - `Integrity` if it is damaged or lost, and was not replaced.
/// - What the store answers.
pub(crate) async fn check_copy(
    app: &AppState,
    version: &OpenVersion,
    replica: &Replica,
    repair: Option<&Acting>,
) -> Result<Found> {
    let skipped = match replica.state {
        ReplicaState::Writing => Some((ErrorCode::Conflict, "this copy is being written")),
        ReplicaState::Offline | ReplicaState::Nearline => {
            Some((ErrorCode::Offline, "this copy is on a store that is away, or on tape"))
        }
        ReplicaState::Stale => Some((ErrorCode::VersionChanged, "this copy holds an older version")),
        _ => None,
    };
    if let Some((code, why)) = skipped {
        return Err(ApiError::new(code, format!("{why} (store {})", replica.store)).permanent());
    }
    match (app.reader.check(version, replica).await, repair) {
        (Ok(tree), _) => Ok(Found { bytes: version.size.0, is_repaired: false, root: Some(tree.root()) }),
        (Err(error), Some(acting)) if error.code() == ErrorCode::Integrity => {
            replace(app, version, replica, acting).await.map_err(|fault| {
                let detail = format!("{}; it cannot be repaired: {}", error.detail(), fault.detail());
                ApiError::new(ErrorCode::Integrity, detail)
            })
        }
        (Err(error), _) => Err(error),
    }
}

/// Replaces a copy on an own store, which is known to be bad, by a good one from elsewhere.
async fn replace(app: &AppState, version: &OpenVersion, replica: &Replica, acting: &Acting) -> Result<Found> {
    let name = version.path.space().ok_or_else(|| ApiError::invalid("it is in no space"))?;
    let space = app.catalog.space(&system_caller(), &name).await?;
    let store = app.stores.get(replica.store).await?;
    if space.home.is_some() {
        // The home takes a copy in place of another only once it knows that the other is bad; else it says so.
        if let Err(error) = tell::flush(&app.fabric).await {
            tracing::debug!(%error, "cannot tell homes what was found of copies");
        }
    }
    let mut version = version.clone();
    version.replicas.retain(|other| other.store != replica.store);
    let (bytes, root) = (version.size.0, version.root);
    let outcome: Mutex<Option<Result<Brought>>> = Mutex::new(None);
    let fetch = Fetch::new(
        app.clone(),
        Become::Copies(Box::new(space)),
        acting.clone(),
        None,
        Flow::new(app.traffic.clone(), None, None),
    );
    fetch
        .all(vec![Wanted { version, store, object: None }], &|_, copied| {
            outcome.lock().unwrap_or_else(PoisonError::into_inner).replace(copied);
        })
        .await;
    match outcome.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(Ok(Brought { copied: Copied::At(_), .. })) => Ok(Found { bytes, is_repaired: true, root }),
        Some(Ok(Brought { copied: Copied::NotWanted, .. })) => {
            let detail = "the home of the space does not take another copy of it now";
            Err(ApiError::new(ErrorCode::Conflict, detail))
        }
        Some(Err(error)) => Err(error),
        None => Err(ApiError::internal("a copy ended without a result")),
    }
}

/// Has another site look at its copies of versions.
async fn ask_site(
    attempt: &Attempt,
    path: &ObjectPath,
    site: SiteId,
    versions: Vec<OpenVersion>,
    repair: bool,
) {
    // What is left when the answer ends is what nothing was heard of.
    let mut left: HashSet<(usize, StoreId)> = HashSet::new();
    for (at, version) in versions.iter().enumerate() {
        for replica in &version.replicas {
            if matches!(attempt.app.stores.site_of(replica.store).await, Ok(Some(owner)) if owner == site) {
                left.insert((at, replica.store));
            }
        }
    }
    let heard = |item: usize, store: Option<StoreId>, found: Result<Found>| {
        match store {
            // A copy that came since is none that this task looks at.
            Some(store) if !left.remove(&(item, store)) => return,
            Some(_) => {}
            None => left.retain(|(at, _)| *at != item),
        }
        if let Some(version) = versions.get(item) {
            note(attempt, &version.path, found);
        }
    };
    let error = match hear_site(attempt, site, &versions, repair.then_some(path), heard).await {
        Ok(()) => {
            ApiError::new(ErrorCode::Integrity, "the site that should have this copy knows nothing of it")
        }
        Err(error) => error,
    };
    for (at, store) in left {
        if let Some(version) = versions.get(at) {
            let error = error.clone().context(format!("cannot check the copy on store {store}"));
            match error.code() {
                ErrorCode::Integrity => note(attempt, &version.path, Err(error)),
                _ => attempt.failed(&version.path, "failed", &error),
            }
        }
    }
}

/// Has another site look at its copies of versions, and calls `heard` with the number of the version, the store, and what was found there;
/// without a store for a version that the site could not look at. What is damaged or lost below a path is to be `repaired` by it.
///
/// # Errors
/// As the site answers; then it says nothing of some.
pub(super) async fn hear_site(
    attempt: &Attempt,
    site: SiteId,
    versions: &[OpenVersion],
    repaired: Option<&ObjectPath>,
    mut heard: impl FnMut(usize, Option<StoreId>, Result<Found>),
) -> Result<()> {
    let (app, task) = (&attempt.app, &attempt.task);
    let member = app.fabric.member(site)?;
    let position = versions.first().map(|version| version.position);
    let repair = match repaired {
        Some(path) => {
            let caller = limited(&task.caller, path, Permission::Write)?;
            Some(app.fabric.delegate(task.id, &member, &caller, task.deadline)?.0)
        }
        None => None,
    };
    let items = versions.iter().map(|version| VersionOf { space: version.space, version: version.version });
    let asked = CheckCopies { items: items.collect(), repair };
    let from = |error: percale_client::Error| ApiError::from(percale_federation::Error::from(error));
    let failed = |problem| from_problem(problem).context(format!("at site {}", member.name));
    let client = app.fabric.client_at(site, &attempt.acting, position)?;
    let mut answer = client.peer_check(&asked).await.map_err(from)?;
    while let Some(line) = answer.next().await.map_err(from)? {
        match line {
            CheckLine::Copy { item, store, outcome } => {
                let found = match outcome {
                    Outcome::Done(Checked { bytes, is_repaired, root }) => {
                        Ok(Found { bytes, is_repaired, root })
                    }
                    Outcome::Failed(problem) => Err(failed(problem)),
                };
                heard(item, Some(store), found);
            }
            CheckLine::Version { item, problem } => heard(item, None, Err(failed(problem))),
            CheckLine::End { .. } => {}
        }
    }
    Ok(())
}
