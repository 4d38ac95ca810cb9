//! Mounts: sessions, and the changes that are made through them.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use percale_api::Problem;
use percale_api::mounts::{Mount, MountChanges, MountResults, NewMount};
use percale_core::ids::LeaseId;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{Auth, Session};
use super::extract::{Json, Param};
use super::header_value;
use super::idempotency::{Made, once};
use crate::{ApiError, AppState, Result, mounts};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(open_mount))
        .routes(routes!(renew_mount, end_mount))
        .routes(routes!(change_by_mount))
}

/// Opens a session for a host that mounts spaces.
///
/// It tells which directories the site's stores are. A host that sees one of them reads there, and writes below `.percale/stage/FENCE`.
#[utoipa::path(
    post, path = "/v1/mounts", tag = "mounts", request_body = NewMount,
    responses(
        (status = 201, description = "the session", body = Mount),
        (status = "default", description = "a problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn open_mount(
    State(app): State<AppState>,
    Auth(caller): Auth,
    headers: HeaderMap,
    Json(new): Json<NewMount>,
) -> Result<Response> {
    let work = {
        let (app, caller, new) = (app.clone(), caller.clone(), new.clone());
        async move { Ok(Made { status: StatusCode::CREATED, body: mounts::open(&app, &caller, new).await? }) }
    };
    let (made, replayed) = once(&app, &caller, &headers, ("/v1/mounts", &new), work).await?;
    let location = header_value(&format!("/v1/mounts/{}", made.body.id));
    Ok((replayed, [(header::LOCATION, location)], made).into_response())
}

/// Renews a session. A mount does so now and then, and when it begins anew after its process was killed.
#[utoipa::path(
    post, path = "/v1/mounts/{id}", tag = "mounts",
    params(("id" = String, Path, description = "the session's id")),
    responses(
        (status = 200, description = "the session", body = Mount),
        (status = "default", description = "a problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn renew_mount(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Param(id): Param<LeaseId>,
) -> Result<Json<Mount>> {
    Ok(Json(mounts::renew(&app, &caller, id).await?))
}

/// Ends a session. What was staged and not published is removed.
#[utoipa::path(
    delete, path = "/v1/mounts/{id}", tag = "mounts",
    params(("id" = String, Path, description = "the session's id")),
    responses(
        (status = 204, description = "it is over"),
        (status = "default", description = "a problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn end_mount(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Param(id): Param<LeaseId>,
) -> Result<StatusCode> {
    mounts::end(&app, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes changes in the order given, each with its own result.
#[utoipa::path(
    post, path = "/v1/mounts/{id}/changes", tag = "mounts", request_body = MountChanges,
    params(("id" = String, Path, description = "the session's id")),
    responses(
        (status = 200, description = "what became of each", body = MountResults),
        (status = "default", description = "a problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn change_by_mount(
    State(app): State<AppState>,
    session: Session,
    Param(id): Param<LeaseId>,
    headers: HeaderMap,
    Json(wanted): Json<MountChanges>,
) -> Result<Response> {
    if wanted.changes.len() > MountChanges::MOST {
        let detail = format!("at most {} changes may come in one request", MountChanges::MOST);
        return Err(ApiError::invalid(detail));
    }
    let work = {
        let (app, session, changes) = (app.clone(), session.clone(), wanted.changes.clone());
        async move {
            let results = mounts::change(&app, &session, id, changes).await?;
            Ok(Made { status: StatusCode::OK, body: MountResults { results } })
        }
    };
    let (made, replayed) =
        once(&app, &session.caller, &headers, ("/v1/mounts/changes", &(id, &wanted)), work).await?;
    Ok((replayed, made).into_response())
}
