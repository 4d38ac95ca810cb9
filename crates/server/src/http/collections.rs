//! Collections are made, entries renamed.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use percale_api::entries::{Entry, Move};
use percale_catalog::{Changed, EntryKind, RenameOptions};
use percale_core::ErrorCode;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::Auth;
use super::entries::describe;
use super::extract::{Json, NamespacePath, Query};
use super::paging::Flag;
use super::position_header;
use crate::{ApiError, AppState, OnPath as _, Result};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(create_collection)).routes(routes!(move_entry))
}

/// How to make a collection.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct CreateQuery {
    /// Also the missing collections above it.
    #[serde(default)]
    #[param(value_type = Option<bool>)]
    parents: Flag,
}

/// Makes a collection. One that is there already is no error.
#[utoipa::path(
    put, path = "/v1/collections/{*path}", tag = "entries",
    params(("path" = String, Path, description = "path of the collection"), CreateQuery),
    responses(
        (status = 201, description = "it was made", body = Entry),
        (status = 200, description = "it was there", body = Entry),
    )
)]
async fn create_collection(
    State(app): State<AppState>,
    Auth(caller): Auth,
    NamespacePath(path): NamespacePath,
    Query(query): Query<CreateQuery>,
) -> Result<Response> {
    let changed = match app.catalog.create_collection(&caller, &path, query.parents.0).await {
        // Made before, by this caller or another: the wish holds, unless an object is in the way.
        Err(error) if error.code() == ErrorCode::AlreadyExists => {
            let entry = app.catalog.stat(&caller, &path).await.on_path(&path)?;
            if entry.kind != EntryKind::Collection {
                return Err(ApiError::from(error).with_path(&path));
            }
            let position = app.catalog.position(entry.space).await?;
            Changed { entry, is_changed: false, position }
        }
        changed => changed.on_path(&path)?,
    };
    let status = if changed.is_changed { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, position_header(changed.position), Json(describe(path, changed.entry))).into_response())
}

/// Renames an entry within its space, in one step. No bytes are moved.
#[utoipa::path(post, path = "/v1/move", tag = "entries", request_body = Move, responses((status = 200, description = "the entry at its new path", body = Entry)))]
async fn move_entry(
    State(app): State<AppState>,
    Auth(caller): Auth,
    headers: HeaderMap,
    Json(wanted): Json<Move>,
) -> Result<Response> {
    if headers.contains_key(header::IF_MATCH) {
        return Err(ApiError::invalid("a move takes no If-Match").with_path(&wanted.from));
    }
    let Move { from, to, overwrite, entry } = wanted;
    let options = RenameOptions::default().overwrite(overwrite).entry(entry);
    let changed = app.catalog.rename(&caller, &from, &to, options).await.map_err(|error| {
        ApiError::from(error).context(format!("cannot move {from} to {to}")).with_path(&from)
    })?;
    Ok((position_header(changed.position), Json(describe(to, changed.entry))).into_response())
}
