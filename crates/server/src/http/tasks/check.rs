//! What of a task would fail for certain, found out when it is submitted.

use percale_api::tasks::{TaskSpec, Verification};
use percale_catalog::{EntryKind, PeerState};
use percale_core::access::{Caller, Permission};
use percale_core::path::SpaceName;
use percale_core::{ErrorCode, ObjectPath, Position};
use percale_federation::{Acting, follow};

use super::super::auth::require_admin;
use super::super::forward::{self, CATCH_UP};
use crate::authorize::authorize;
use crate::extraction::may_extract;
use crate::fetch::may_verify;
use crate::tasks::import::may_import;
use crate::tasks::{Stored, may_be_emptied};
use crate::{ApiError, AppState, OnPath as _, Result};

/// Finds out at once what would fail for certain. Where something is missing of a space that another site orders, this
/// site may not have heard of it yet: its user has just put it there. Then it is looked for again once this site stands
/// where the home does.
pub(super) async fn check_caught_up(app: &AppState, caller: &Caller, spec: &TaskSpec) -> Result<()> {
    let error = match check(app, caller, spec).await {
        Err(error) if error.code() == ErrorCode::NotFound => error,
        outcome => return outcome,
    };
    let about = match spec {
        TaskSpec::Replicate { path, .. } | TaskSpec::Verify { path, .. } => path,
        TaskSpec::Copy { from, .. } | TaskSpec::Sync { from, .. } => from,
        _ => return Err(error),
    };
    let Some(space) = about.space() else { return Err(error) };
    // A home that does not answer soon has nothing to add.
    let asked = tokio::time::timeout(CATCH_UP, position_at_home(app, caller, &space)).await;
    let Ok(Ok(Some(position))) = asked else { return Err(error) };
    drop(follow::caught_up(&app.fabric, position, CATCH_UP).await);
    check(app, caller, spec).await
}

/// Returns where the home of a space stands, if that is another site.
async fn position_at_home(app: &AppState, caller: &Caller, space: &SpaceName) -> Result<Option<Position>> {
    let Some(home) = forward::home_of(app, space).await? else { return Ok(None) };
    let client = app.fabric.client_at(home.id, &Acting::User(caller.clone()), None)?;
    let shown = client.space(space).await.map_err(percale_federation::Error::from)?;
    Ok(shown.position.parse().ok())
}

/// Finds out whether what a task brings can be verified as is asked for.
pub(super) async fn may_be_read_back(app: &AppState, stored: &Stored) -> Result<()> {
    if stored.verify == Verification::Frames {
        return Ok(());
    }
    let to = match &stored.spec {
        TaskSpec::Replicate { path: to, .. } | TaskSpec::Copy { to, .. } | TaskSpec::Sync { to, .. } => to,
        // It goes to several stores, and each is asked when it is its turn.
        TaskSpec::Empty { .. } => return Ok(()),
        _ => {
            let detail =
                format!("cannot submit a task: one of the kind {} brings no bytes to verify", stored.kind());
            return Err(ApiError::invalid(detail));
        }
    };
    let Some(space) = to.space() else { return Ok(()) };
    match app.stores.for_new_data(&space).await {
        Ok(store) => may_verify(&store, stored.verify).on_path(to),
        // The task waits for a store as any other one does.
        Err(_) => Ok(()),
    }
}

/// Finds out at once what would fail for certain. The task's steps are decided upon again, one by one.
async fn check(app: &AppState, caller: &Caller, spec: &TaskSpec) -> Result<()> {
    let needs = async |path: &ObjectPath, permission| {
        authorize(&app.catalog, caller, path, permission).await?;
        app.catalog.stat(caller, path).await.on_path(path).map(|_| ())
    };
    match spec {
        // A check reads every byte from the storage and changes the state of copies.
        TaskSpec::Verify { path, repair: false, .. } => needs(path, Permission::Read).await,
        TaskSpec::Verify { path, repair: true, .. } => needs(path, Permission::Write).await,
        TaskSpec::Replicate { path, .. } | TaskSpec::Evict { path, .. } if path.is_root() => {
            Err(ApiError::invalid("copies are made and removed in one space: name it").with_path(path))
        }
        TaskSpec::Replicate { path, from, .. } => {
            if let Some(from) = from.as_ref().filter(|from| **from != app.site.name) {
                app.fabric.named(from)?;
            }
            takes_copies(app).on_path(path)?;
            needs(path, Permission::Write).await
        }
        TaskSpec::Evict { path, .. } => needs(path, Permission::Write).await,
        TaskSpec::Extract { path } if path.is_root() => {
            Err(ApiError::invalid("headers are read in one space: name it").with_path(path))
        }
        TaskSpec::Extract { path } => {
            needs(path, Permission::Write).await?;
            may_extract(app, path).await
        }
        TaskSpec::Import(import) => may_import(app, caller, import).await,
        TaskSpec::Empty { store } => {
            require_admin(caller, "emptying a store")?;
            may_be_emptied(app, store).await.map(drop)
        }
        TaskSpec::Delete { path } if path.is_space() => Err(ApiError::new(
            ErrorCode::Unsupported,
            format!("cannot remove the root of a space; DELETE /v1/spaces{path} removes an empty one"),
        )
        .with_path(path)),
        TaskSpec::Delete { path } => needs(path, Permission::Write).await,
        TaskSpec::Copy { from, to, .. } => {
            may_copy(app, caller, from, to).await?;
            match app.catalog.stat(caller, to).await {
                Ok(_) => Err(ApiError::new(
                    ErrorCode::AlreadyExists,
                    format!("cannot copy {from} to {to}: it exists"),
                )
                .with_path(to)),
                Err(error) if error.code() == ErrorCode::NotFound => Ok(()),
                Err(error) => Err(ApiError::from(error).with_path(to)),
            }
        }
        TaskSpec::Sync { from, to, .. } => {
            may_copy(app, caller, from, to).await?;
            let catalog = &app.catalog;
            let both = [catalog.stat_no_link(caller, from).await, catalog.stat_no_link(caller, to).await];
            for (path, entry) in [from, to].into_iter().zip(both) {
                match entry {
                    Ok(entry) if entry.kind == EntryKind::Object => {
                        let detail = format!("cannot sync {from} to {to}: {path} is not a collection");
                        return Err(ApiError::new(ErrorCode::NotACollection, detail).with_path(path));
                    }
                    Ok(_) => {}
                    Err(error) if path == to && error.code() == ErrorCode::NotFound => {}
                    Err(error) => return Err(ApiError::from(error).with_path(path)),
                }
            }
            Ok(())
        }
        _ => Err(ApiError::new(ErrorCode::Unsupported, "this release does not know this kind of task")),
    }
}

/// Finds out whether a tree may be copied to another place.
async fn may_copy(app: &AppState, caller: &Caller, from: &ObjectPath, to: &ObjectPath) -> Result<()> {
    takes_copies(app).on_path(to)?;
    if from.space().is_none() || to.space().is_none() {
        return Err(ApiError::invalid("copies are made from one space to another: name both"));
    }
    authorize(&app.catalog, caller, from, Permission::Read).await?;
    app.catalog.stat_no_link(caller, from).await.on_path(from)?;
    authorize(&app.catalog, caller, to, Permission::Write).await?;
    if to.is_within(from) || from.is_within(to) {
        let detail = format!("cannot copy {from} to {to}: one is in the other");
        return Err(ApiError::invalid(detail).with_path(to));
    }
    Ok(())
}

/// Fails if this site takes no new copies.
fn takes_copies(app: &AppState) -> Result<()> {
    match app.fabric.roster().get(app.site.id).map(|own| own.state) {
        Some(PeerState::Drained) => {
            let detail = format!("site {} is drained: it takes no new copies", app.site.name);
            Err(ApiError::new(ErrorCode::ReadOnly, detail))
        }
        _ => Ok(()),
    }
}
