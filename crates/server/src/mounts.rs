//! Mounts: hosts that write straight into the stores that they see, and have published what they wrote.
//!
//! A mount holds a lease, whose fence names the directory in which it stages files. What it asks to publish is hashed here and goes the
//! way of all publications (`docs/design/publishing.md`).

mod in_place;
mod staged;

pub use in_place::end_writing;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use percale_api::entries::{Entry, Move, NewLink};
use percale_api::fields;
use percale_api::mounts::{Mount, MountChange, MountDone, MountResult, MountStore, NewMount};
use percale_catalog::{Lease, LeaseKind, RemoveOptions, RenameOptions, StoreLayout, StoreState};
use percale_client::encode_path;
use percale_core::access::Caller;
use percale_core::ids::LeaseId;
use percale_core::{ErrorCode, ObjectPath, Position};
use percale_federation::Member;
use percale_store::failpoint::failpoint;
use percale_store::{SmallFile, StageToken};

use crate::abroad::from_problem;
use crate::http::auth::{Session, require_user};
use crate::http::entries::attributes;
use crate::http::extract::{MAX_JSON_BYTES, parse_json};
use crate::http::forward::{home_of, to_site};
use crate::stores::OpenStore;
use crate::upload::owner_of;
use crate::{ApiError, AppState, Result};

/// How long the host of a mount may be away without losing what it had not published: as long as a client's upload.
fn ttl(app: &AppState) -> Duration {
    app.config.uploads.lease
}

/// Longest name of a host, in bytes: what DNS allows.
const MAX_HOST_BYTES: usize = 255;

/// Whose turn it is: the requests of one mount are answered one after the other. One that is sent again while the first goes on waits for
/// what that makes, and does not publish the same file beside it.
#[derive(Debug, Default)]
pub struct Turns(Mutex<HashMap<LeaseId, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    async fn take(&self, id: LeaseId) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            turns.entry(id).or_default().clone()
        };
        turn.lock_owned().await
    }
}

/// Opens a session, and lays into each store what tells a host that it sees the store.
///
/// # Errors
/// `unauthenticated` for somebody who did not sign in; `invalid_request` for a name that is none; those of the catalog.
pub async fn open(app: &AppState, caller: &Caller, new: NewMount) -> Result<Mount> {
    // It is told where stores lie, and has files laid there.
    require_user(caller, "mounting")?;
    if new.host.is_empty() || new.host.len() > MAX_HOST_BYTES || new.host.chars().any(char::is_control) {
        return Err(ApiError::invalid(format!("a host's name has 1 to {MAX_HOST_BYTES} bytes")));
    }
    let body = serde_json::json!({ "v": 1, "host": new.host });
    let lease = app.catalog.acquire_lease(LeaseKind::Mount, &owner_of(caller), ttl(app), body).await?;
    describe(app, &lease).await
}

/// Returns a session of the caller, and renews it.
///
/// # Errors
/// `not_found` if there is none, or it is another's; `lease_expired` if it lapsed.
pub async fn renew(app: &AppState, caller: &Caller, id: LeaseId) -> Result<Mount> {
    let lease = find(app, caller, id).await?;
    let lease = app.catalog.renew_lease(lease.id, lease.fence, ttl(app)).await?;
    describe(app, &lease).await
}

/// Ends a session. What is staged under it is removed. With the last one, no file is written in place any more.
///
/// # Errors
/// As [`renew`].
pub async fn end(app: &AppState, caller: &Caller, id: LeaseId) -> Result<()> {
    let lease = find(app, caller, id).await?;
    app.stores.discard_fences(&[lease.fence]).await?;
    app.catalog.release_lease(lease.id, lease.fence).await?;
    if app.catalog.leases(LeaseKind::Mount).await?.is_empty() {
        end_writing(&app.catalog).await?;
    }
    Ok(())
}

/// Fails if a session of the caller is not there, so that nobody takes it for an entry that is not.
///
/// # Errors
/// `precondition_failed` if there is none, or it is another's.
pub async fn require(app: &AppState, caller: &Caller, id: LeaseId) -> Result<()> {
    match find(app, caller, id).await {
        Err(error) if error.code() == ErrorCode::NotFound => {
            Err(ApiError::new(ErrorCode::PreconditionFailed, error.detail()))
        }
        found => found.map(drop),
    }
}

/// Returns a session of the caller.
///
/// # Errors
/// `not_found` if there is none, or it is another's.
pub async fn find(app: &AppState, caller: &Caller, id: LeaseId) -> Result<Lease> {
    let missing =
        || ApiError::new(ErrorCode::NotFound, format!("no mount {id}: it ended, or was never opened"));
    let lease = app.catalog.lease(id).await.map_err(|error| match error.code() {
        ErrorCode::NotFound => missing(),
        _ => error.into(),
    })?;
    let is_allowed = caller.is_admin() || lease.holder == owner_of(caller);
    if lease.kind == LeaseKind::Mount && is_allowed { Ok(lease) } else { Err(missing()) }
}

async fn describe(app: &AppState, lease: &Lease) -> Result<Mount> {
    let mut stores = Vec::new();
    for row in app.catalog.stores().await? {
        let Some(root) = crate::connect::directory(&row) else { continue };
        // A store that is away can be seen once it is back.
        let Ok(open) = app.stores.get(row.id).await else { continue };
        if let Err(error) = prove(&open, lease).await {
            tracing::debug!(store = %row.name, %error, "a mount cannot see a store");
            continue;
        }
        stores.push(MountStore {
            id: row.id,
            name: row.name,
            root: root.display().to_string(),
            takes_data: row.state == StoreState::Online,
            is_native: row.layout == StoreLayout::Native,
        });
    }
    Ok(Mount { id: lease.id, fence: lease.fence, expires: lease.expires, stores })
}

/// Lays the session's id into its stage directory of a store.
async fn prove(store: &OpenStore, lease: &Lease) -> Result<()> {
    let token = token(lease, Mount::PROOF)?;
    let id = Bytes::from(lease.id.to_string());
    store.store.discard(&token).await?;
    let staged = store.store.stage_small(vec![SmallFile { token, key: None, bytes: id }]).await?;
    staged.into_iter().try_for_each(|one| one.map(drop))?;
    Ok(())
}

fn token(lease: &Lease, name: &str) -> Result<StageToken> {
    StageToken::new(lease.fence, name)
        .map_err(|error| ApiError::invalid(format!("'{name}' cannot be the name of a staged file: {error}")))
}

/// Makes changes, in their order, each with its own result. Files that follow one another are published together, and what follows one
/// another and does not depend on it is removed or described together. After a change that failed and may succeed later no other is
/// begun, since it might need that one; whoever asked asks again for all of these.
///
/// # Errors
/// As [`renew`].
pub async fn change(
    app: &AppState,
    session: &Session,
    id: LeaseId,
    changes: Vec<MountChange>,
) -> Result<Vec<MountResult>> {
    let lease = find(app, &session.caller, id).await?;
    let _turn = app.turns.take(id).await;
    let count = changes.len();
    let mut results: Vec<Result<MountDone>> = Vec::with_capacity(count);
    for run in runs(changes) {
        results.extend(alike(app, session, &lease, run).await);
        if results.iter().any(|result| result.as_ref().is_err_and(ApiError::is_retryable)) {
            break;
        }
    }
    failpoint("mount.before_answer");
    let waits = || ApiError::new(ErrorCode::Conflict, "a change before it could not be made yet");
    results.resize_with(count, || Err(waits()));
    let result = |result: Result<MountDone>| match result {
        Ok(done) => MountResult::Done(done),
        Err(error) => MountResult::Failed(error.to_problem()),
    };
    Ok(results.into_iter().map(result).collect())
}

/// Cuts changes into runs of one kind; in none is a path published twice.
fn runs(changes: Vec<MountChange>) -> Vec<Vec<MountChange>> {
    let mut runs: Vec<Vec<MountChange>> = Vec::new();
    let mut paths = HashSet::new();
    for change in changes {
        let is_alike = runs
            .last()
            .and_then(|run| run.last())
            .is_some_and(|last| std::mem::discriminant(last) == std::mem::discriminant(&change));
        if !is_alike || paths.contains(change.path()) {
            paths.clear();
            runs.push(Vec::new());
        }
        paths.insert(change.path().clone());
        if let Some(run) = runs.last_mut() {
            run.push(change);
        }
    }
    runs
}

/// Makes changes of one kind. There are fewer results than changes if one failed that may succeed later, and those behind it need it.
async fn alike(
    app: &AppState,
    session: &Session,
    lease: &Lease,
    changes: Vec<MountChange>,
) -> Vec<Result<MountDone>> {
    match changes.first() {
        None => Vec::new(),
        Some(MountChange::Publish { .. }) => staged::publish_all(app, &session.caller, lease, changes).await,
        Some(MountChange::Writing { .. }) => in_place::begin(app, &session.caller, changes).await,
        Some(MountChange::Written { .. }) => in_place::end(app, &session.caller, changes).await,
        // None of them is about the same object.
        Some(MountChange::SetAttributes { .. }) => {
            futures::future::join_all(changes.into_iter().map(|change| one(app, session, change))).await
        }
        // Of moves, and of collections and links in one another, each needs the one before.
        Some(
            MountChange::Move { .. } | MountChange::MakeCollection { .. } | MountChange::MakeLink { .. },
        ) => {
            let steps = changes.into_iter().map(|change| vec![change]).collect();
            in_steps(steps, |change| one(app, session, change)).await
        }
        // Submitted side by side, they share a transaction.
        Some(MountChange::Remove { .. }) => {
            in_steps(apart(changes), |change| remove(app, session, change)).await
        }
    }
}

/// Cuts removals into steps; in none is an entry in another, since a collection goes once what is in it has gone.
fn apart(removals: Vec<MountChange>) -> Vec<Vec<MountChange>> {
    let mut steps: Vec<Vec<MountChange>> = Vec::new();
    let mut parents = HashSet::new();
    for change in removals {
        if steps.is_empty() || parents.contains(change.path()) {
            parents.clear();
            steps.push(Vec::new());
        }
        parents.extend(change.path().parent());
        if let Some(step) = steps.last_mut() {
            step.push(change);
        }
    }
    steps
}

/// Makes changes step by step, those of a step side by side, up to the step in which one failed that may succeed later.
async fn in_steps<T, F>(steps: Vec<Vec<T>>, make: impl Fn(T) -> F) -> Vec<Result<MountDone>>
where
    F: Future<Output = Result<MountDone>>,
{
    let mut results: Vec<Result<MountDone>> = Vec::new();
    for step in steps {
        results.extend(futures::future::join_all(step.into_iter().map(&make)).await);
        if results.iter().any(|result| result.as_ref().is_err_and(ApiError::is_retryable)) {
            break;
        }
    }
    results
}

/// Renames, makes a collection or link, or sets what its owner says of an object.
async fn one(app: &AppState, session: &Session, change: MountChange) -> Result<MountDone> {
    let path = change.path().clone();
    if let Some(home) = home_of_path(app, &path).await? {
        let request = match change {
            MountChange::Move { from, to, overwrite, entry } => {
                let wanted = Move { from, to, overwrite, entry };
                http::Request::post("/v1/move").body(serde_json::to_vec(&wanted).unwrap_or_default())
            }
            MountChange::SetAttributes { attributes, .. } => {
                let body = serde_json::to_vec(&attributes).unwrap_or_default();
                http::Request::patch(encode_path("/v1/entries", &path)).body(body)
            }
            MountChange::MakeLink { target, .. } => {
                let body = serde_json::to_vec(&NewLink { target }).unwrap_or_default();
                http::Request::put(encode_path("/v1/links", &path)).body(body)
            }
            _ => http::Request::put(encode_path("/v1/collections", &path)).body(Vec::new()),
        };
        return at_home(app, session, &home, request).await.map_err(|error| error.with_path(path));
    }
    let caller = &session.caller;
    let changed = match change {
        MountChange::Move { from, to, overwrite, entry } => {
            let options = RenameOptions::default().overwrite(overwrite).entry(entry);
            app.catalog.rename(caller, &from, &to, options).await
        }
        MountChange::SetAttributes { attributes: wanted, .. } => {
            app.catalog.set_attributes(caller, &path, attributes(wanted)).await
        }
        MountChange::MakeLink { target, .. } => app.catalog.create_link(caller, &path, target).await,
        change => app.catalog.create_collection(caller, change.path(), false).await,
    };
    let changed = changed.map_err(|error| ApiError::from(error).with_path(&path))?;
    Ok(MountDone { entry: Some(changed.entry.id), ..done(changed.position) })
}

async fn remove(app: &AppState, session: &Session, change: MountChange) -> Result<MountDone> {
    let MountChange::Remove { path, entry } = &change else {
        return Err(ApiError::internal("only entries are removed"));
    };
    if let Some(home) = home_of_path(app, path).await? {
        let mut uri = encode_path("/v1/entries", path);
        if let Some(entry) = entry {
            uri.push_str(&format!("?entry={entry}"));
        }
        let request = http::Request::delete(uri).body(Vec::new());
        return at_home(app, session, &home, request).await.map_err(|error| error.with_path(path));
    }
    let removed = app.catalog.remove(&session.caller, path, RemoveOptions::default().entry(*entry)).await;
    Ok(done(removed.map_err(|error| ApiError::from(error).with_path(path))?.position))
}

fn done(position: Position) -> MountDone {
    MountDone { position: Some(position.to_string()), ..MountDone::default() }
}

/// Returns the site that orders a path's space, if it is another one.
async fn home_of_path(app: &AppState, path: &ObjectPath) -> Result<Option<Arc<Member>>> {
    let none = || ApiError::new(ErrorCode::InvalidPath, format!("{path} is in no space"));
    home_of(app, &path.space().ok_or_else(none)?).await
}

/// Has another site make a change, and waits until this one sees it.
async fn at_home(
    app: &AppState,
    session: &Session,
    home: &Member,
    request: http::Result<http::Request<Vec<u8>>>,
) -> Result<MountDone> {
    let unwritten =
        |error| ApiError::internal("a request for another site cannot be written").with_source(error);
    let (mut parts, body) = request.map_err(unwritten)?.into_parts();
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let makes = parts.uri.path().starts_with("/v1/collections/");
    let response = to_site(app, session, home, parts, body.into()).await?;
    let (status, position) = (response.status(), response.headers().get(fields::POSITION).cloned());
    let unread = |error| ApiError::internal("the answer of another site cannot be read").with_source(error);
    let body = axum::body::to_bytes(response.into_body(), MAX_JSON_BYTES).await.map_err(unread)?;
    if !status.is_success() {
        return Err(from_problem(parse_json(&body)?));
    }
    if makes && status != StatusCode::CREATED {
        return Err(ApiError::new(ErrorCode::AlreadyExists, "it is there already"));
    }
    let entry = if body.is_empty() { None } else { Some(parse_json::<Entry>(&body)?.id) };
    let position = position.and_then(|position| position.to_str().ok().map(str::to_owned));
    Ok(MountDone { entry, position, ..MountDone::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_is_made_after_what_failed_and_may_succeed_later() {
        // `mv log.1 log.2; mv log log.1`, while the catalog is away for a moment.
        let made = Mutex::new(Vec::new());
        let results = in_steps(vec![vec!["log.1"], vec!["log"]], |from| {
            made.lock().unwrap().push(from);
            std::future::ready(Err(ApiError::new(ErrorCode::CatalogUnavailable, "it is away")))
        });
        assert_eq!(results.await.len(), 1);
        assert_eq!(made.into_inner().unwrap(), ["log.1"], "the older log is not overwritten");
        let refused = |_| std::future::ready(Err(ApiError::new(ErrorCode::NotFound, "it is not there")));
        assert_eq!(in_steps(vec![vec!["a", "b"], vec!["c"]], refused).await.len(), 3);
    }

    #[test]
    fn a_collection_is_removed_after_what_is_in_it() {
        let removal = |path: &str| MountChange::Remove { path: path.parse().unwrap(), entry: None };
        let paths = ["/lab/a/x", "/lab/a/y", "/lab/a", "/lab/b"];
        let steps = apart(paths.map(removal).into());
        assert_eq!(steps.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
    }
}
