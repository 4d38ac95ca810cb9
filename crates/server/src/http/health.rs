//! Whether the process lives, whether it can serve, and its metrics. None of it needs a sign-in or names a path or a user.

use std::time::{Duration, Instant};

use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use percale_api::site::{Check, Readiness, Version};
use percale_core::ErrorCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::Json;
use super::observe;
use crate::{ApiError, AppState, Result};

/// A part that does not answer for so long counts as not working.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(livez))
        .routes(routes!(readyz))
        .routes(routes!(metrics))
        .routes(routes!(version))
}

/// Tells that the process lives and answers.
#[utoipa::path(get, path = "/livez", tag = "health", responses((status = 200, description = "it lives", body = String, content_type = "text/plain")))]
async fn livez() -> &'static str {
    "ok\n"
}

/// Tells whether the server can serve: its catalog answers and it holds its lease.
#[utoipa::path(
    get, path = "/readyz", tag = "health",
    params(("verbose" = Option<String>, Query, description = "also what was looked at")),
    responses(
        (status = 200, description = "it can serve", body = Readiness),
        (status = 503, description = "it cannot", body = Readiness),
    )
)]
async fn readyz(State(app): State<AppState>, RawQuery(query): RawQuery) -> Response {
    let verbose = query.unwrap_or_default().split('&').any(|part| part.split('=').next() == Some("verbose"));
    let begun = Instant::now();
    let catalog = match tokio::time::timeout(PATIENCE, app.catalog.ping()).await {
        Ok(Ok(())) => (true, format!("answered in {:.1} ms", begun.elapsed().as_secs_f64() * 1000.0)),
        // The database's own words may name hosts and users; they are in the log.
        Ok(Err(error)) => (false, format!("failed: {}", error.code())),
        Err(_) => (false, format!("no answer within {} s", PATIENCE.as_secs())),
    };
    let lease = match app.lease.current() {
        Ok(holder) => (true, format!("held with fence {}", holder.fence)),
        Err(error) => (false, error.detail().to_owned()),
    };
    let running = match app.stopping.is_cancelled() {
        false => (true, "running".to_owned()),
        true => (false, "stopping".to_owned()),
    };
    let checks: Vec<_> = [("catalog", catalog), ("lease", lease), ("process", running)]
        .into_iter()
        .map(|(name, (ok, detail))| Check { name: name.to_owned(), ok, detail })
        .collect();
    let ready = checks.iter().all(|check| check.ok);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Readiness { ready, checks: if verbose { checks } else { Vec::new() } })).into_response()
}

/// Returns the metrics in the text form of Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "health", responses((status = 200, description = "the metrics", body = String, content_type = "text/plain")))]
async fn metrics() -> Result<Response> {
    let Some(handle) = observe::metrics() else {
        return Err(ApiError::new(ErrorCode::Unsupported, "this process keeps its metrics elsewhere"));
    };
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], handle.render())
        .into_response())
}

/// Returns the release and the layout of its database.
#[utoipa::path(get, path = "/version", tag = "health", responses((status = 200, description = "the release", body = Version)))]
async fn version(State(app): State<AppState>) -> Result<Json<Version>> {
    let catalog = match app.config.catalog_url()?.starts_with("sqlite") {
        true => "sqlite",
        false => "postgres",
    };
    Ok(Json(Version {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        schema: app.catalog.schema_version().await?,
        catalog: catalog.to_owned(),
    }))
}
