//! Grants: who may do what on a path and below it.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, Uri};
use percale_api::Page;
use percale_api::access::{Grant, NewGrant};
use percale_core::access::Subject;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{Auth, Session};
use super::extract::{Json, NamespacePath, Query};
use super::paging::page;
use super::position_header;
use crate::{AppState, OnPath as _, Result};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(get_grants, set_grant, remove_grant))
}

/// Returns the grants on a path and those it inherits. Needs `manage` on it.
#[utoipa::path(get, path = "/v1/grants/{*path}", tag = "grants", params(("path" = String, Path, description = "path of a collection or object")), responses((status = 200, description = "the grants", body = Page<Grant>)))]
async fn get_grants(
    State(app): State<AppState>,
    Auth(caller): Auth,
    NamespacePath(path): NamespacePath,
    uri: Uri,
) -> Result<Response> {
    let grants = app.catalog.grants(&caller, &path).await.on_path(&path)?;
    let grants = grants.into_iter().map(|grant| Grant {
        subject: grant.subject,
        permission: grant.permission,
        path: grant.path.to_string(),
    });
    Ok(page(&uri, grants.collect(), None))
}

/// Gives a permission on a path and all below it, in place of what the subject had there. Needs `manage`.
#[utoipa::path(put, path = "/v1/grants/{*path}", tag = "grants", params(("path" = String, Path, description = "path of a collection or object")), request_body = NewGrant, responses((status = 200, description = "the grant", body = Grant)))]
async fn set_grant(
    State(app): State<AppState>,
    session: Session,
    NamespacePath(path): NamespacePath,
    Json(new): Json<NewGrant>,
) -> Result<Response> {
    let NewGrant { subject, permission } = new;
    let named = session.named_here(&app, &subject);
    let position = app.catalog.set_grant(&session.caller, &path, named, permission).await.on_path(&path)?;
    Ok((position_header(position), Json(Grant { subject, permission, path: path.to_string() }))
        .into_response())
}

/// Whose grant.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Whose {
    /// The subject, such as `group:wp3`.
    #[param(value_type = String)]
    subject: Subject,
}

/// Takes back what was given on exactly this path. Needs `manage`.
#[utoipa::path(delete, path = "/v1/grants/{*path}", tag = "grants", params(("path" = String, Path, description = "path of a collection or object"), Whose), responses((status = 204, description = "it is taken back")))]
async fn remove_grant(
    State(app): State<AppState>,
    session: Session,
    NamespacePath(path): NamespacePath,
    Query(whose): Query<Whose>,
) -> Result<Response> {
    let named = session.named_here(&app, &whose.subject);
    let position = app.catalog.remove_grant(&session.caller, &path, &named).await.on_path(&path)?;
    Ok((StatusCode::NO_CONTENT, position_header(position)).into_response())
}
