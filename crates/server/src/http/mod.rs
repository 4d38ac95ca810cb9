//! The HTTP interface: `docs/design/rest.md`. One file for each kind of thing; each has its `routes`.

mod attributes;
pub mod auth;
mod collections;
mod compression;
pub mod data;
pub(crate) mod entries;
mod events;
pub mod extract;
pub(crate) mod forward;
pub mod frames;
mod grants;
mod health;
mod idempotency;
mod links;
mod mounts;
pub mod observe;
pub mod openapi;
mod paging;
mod peer;
pub mod pull;
pub mod put;
mod receipts;
mod redirect;
mod search;

mod site;
mod sites;
mod spaces;
mod stores;
mod task_events;
mod tasks;
mod ticket;
mod tokens;
pub mod uploads;

use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, Method, Uri};
use percale_api::fields;
use percale_core::{ErrorCode, Position};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::timeout::RequestBodyTimeoutLayer;
use utoipa_axum::router::OpenApiRouter;

use crate::listener::Place;
use crate::{ApiError, AppState};

/// Every route with its description.
pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .merge(health::routes())
        .merge(openapi::routes())
        .merge(site::routes())
        .merge(sites::routes())
        .merge(tokens::routes())
        .merge(stores::routes())
        .merge(spaces::routes())
        .merge(grants::routes())
        .merge(entries::routes())
        .merge(collections::routes())
        .merge(links::routes())
        .merge(attributes::routes())
        .merge(search::routes())
        .merge(data::routes())
        .merge(put::routes())
        .merge(uploads::routes())
        .merge(frames::routes())
        .merge(pull::routes().layer(compression::of_requests()))
        .merge(tasks::routes())
        .merge(task_events::routes())
        .merge(receipts::routes())
        .merge(events::routes())
        .merge(mounts::routes())
}

/// The whole interface, ready to be served.
pub fn router(app: AppState) -> Router {
    let stall: Duration = app.config.http.stall_timeout;
    let (router, _) = routes().split_for_parts();
    router
        .merge(peer::routes().layer(compression::of_requests()))
        .fallback(no_such_address)
        .method_not_allowed_fallback(no_such_method)
        .layer(axum::middleware::from_fn_with_state(app.clone(), forward::layer))
        .layer(axum::middleware::from_fn(links::layer))
        .layer(compression::layer())
        .layer(RequestBodyTimeoutLayer::new(stall))
        .layer(CatchPanicLayer::custom(observe::answer_panic))
        .layer(axum::middleware::from_fn_with_state(app.clone(), observe::layer))
        .layer(axum::middleware::from_fn_with_state(app.clone(), to_its_end))
        .with_state(app)
}

/// Lets a request that changes something go on to its end when its client goes away: cut off in the middle it would leave bytes and
/// intentions that nobody takes up as long as this server lives. Whoever asks again finds what it made.
async fn to_its_end(State(app): State<AppState>, request: Request, next: Next) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    let place = request.extensions().get::<Place>().cloned();
    let work = next.run(request);
    let spawned = app.background.spawn(async move {
        let _place = place;
        work.await
    });
    spawned.await.unwrap_or_else(|error| {
        ApiError::internal("the request's work ended early").with_source(error).into_response()
    })
}

async fn no_such_address(uri: Uri) -> ApiError {
    let shown: String = uri.path().chars().take(200).collect();
    ApiError::new(
        ErrorCode::NotFound,
        format!("there is no address {shown}; /v1/openapi.json lists what there is"),
    )
}

async fn no_such_method(method: Method, request: Request) -> impl IntoResponse {
    let shown: String = request.uri().path().chars().take(200).collect();
    ApiError::new(ErrorCode::MethodNotAllowed, format!("{shown} does not answer {method}"))
}

/// The header that says where a change stands in the journal.
pub(crate) fn position_header(position: Position) -> [(http::HeaderName, HeaderValue); 1] {
    let value = HeaderValue::from_str(&position.to_string()).expect("a position is ASCII");
    [(http::HeaderName::from_static(fields::POSITION), value)]
}

/// A header value of a text that was made here.
pub(crate) fn header_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}
