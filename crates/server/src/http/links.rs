//! Symbolic links: made here, and followed by whoever asks.
//!
//! What is read by a path that leads over a link is answered with the address of what is meant, so that whoever may read
//! the link learns no more than where it leads, and is asked for its permission there. What changes something is refused
//! with the path in its stead.

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode, header};
use percale_api::entries::{Entry, NewLink};
use percale_client::encode_path;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::Auth;
use super::entries::describe;
use super::extract::{Json, NamespacePath};
use super::{header_value, position_header};
use crate::{ApiError, AppState, OnPath as _, Result};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(create_link))
}

/// Makes a symbolic link. One that is there already and leads to the same place is no error. Nothing need be at its target.
#[utoipa::path(
    put, path = "/v1/links/{*path}", tag = "entries", request_body = NewLink,
    params(("path" = String, Path, description = "path of the link")),
    responses(
        (status = 201, description = "it was made", body = Entry),
        (status = 200, description = "it was there", body = Entry),
    )
)]
async fn create_link(
    State(app): State<AppState>,
    Auth(caller): Auth,
    NamespacePath(path): NamespacePath,
    Json(NewLink { target }): Json<NewLink>,
) -> Result<Response> {
    let changed = app.catalog.create_link(&caller, &path, target).await.on_path(&path)?;
    let status = if changed.is_changed { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, position_header(changed.position), Json(describe(path, changed.entry))).into_response())
}

/// Sends those who read something by a path that leads over a link on to where it leads. The problem comes with it, for
/// clients that follow links themselves.
pub(super) async fn layer(request: Request, next: Next) -> Response {
    let is_read = request.method() == Method::GET || request.method() == Method::HEAD;
    let route = request.extensions().get::<MatchedPath>().cloned();
    let query = request.uri().query().map(str::to_owned);
    let mut response = next.run(request).await;
    let to = response.extensions().get::<ApiError>().and_then(ApiError::leads_to);
    let prefix = route.as_ref().and_then(|route| route.as_str().strip_suffix("/{*path}"));
    let (true, Some(to), Some(prefix)) = (is_read, to, prefix) else { return response };
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    let location = header_value(&format!("{}{query}", encode_path(prefix, to)));
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    response.headers_mut().insert(header::LOCATION, location);
    response
}
