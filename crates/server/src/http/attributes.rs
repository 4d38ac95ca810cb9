//! What objects and collections are about: told, set, and searched by.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::Uri;
use percale_api::Page;
use percale_api::attributes::{Attribute, AttributeChange, Source};
use percale_api::entries::Entry;
use percale_catalog::{AttributeSource, Listed, SearchOptions};
use percale_core::Timestamp;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::Auth;
use super::entries::describe;
use super::extract::{Json, NamespacePath, Query};
use super::paging::{limit, page};
use super::position_header;
use crate::{ApiError, AppState, OnPath as _, Result};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(get_attributes, change_attributes)).routes(routes!(search))
}

/// Returns what is said of an object or collection.
#[utoipa::path(get, path = "/v1/attributes/{*path}", tag = "attributes", params(("path" = String, Path, description = "path of a collection or object")), responses((status = 200, description = "the attributes", body = Page<Attribute>)))]
async fn get_attributes(
    State(app): State<AppState>,
    Auth(caller): Auth,
    NamespacePath(path): NamespacePath,
    uri: Uri,
) -> Result<Response> {
    let (attributes, position) = app.catalog.attributes(&caller, &path).await.on_path(&path)?;
    let attributes = attributes.into_iter().map(|attribute| Attribute {
        name: attribute.name,
        source: match attribute.source {
            AttributeSource::Header => Source::Header,
            AttributeSource::Person => Source::Person,
        },
        values: attribute.values,
    });
    let attributes = page(&uri, attributes.collect::<Vec<_>>(), None);
    Ok((position_header(position), attributes).into_response())
}

/// Sets and removes what people say of an object or collection. Needs `write`. Answers with what is said of it then.
#[utoipa::path(patch, path = "/v1/attributes/{*path}", tag = "attributes", request_body = AttributeChange, params(("path" = String, Path, description = "path of a collection or object")), responses((status = 200, description = "the attributes", body = Page<Attribute>)))]
async fn change_attributes(
    State(app): State<AppState>,
    Auth(caller): Auth,
    NamespacePath(path): NamespacePath,
    uri: Uri,
    Json(wanted): Json<AttributeChange>,
) -> Result<Response> {
    let change = percale_catalog::AttributeChange { set: wanted.set.into_iter().collect() };
    app.catalog.change_attributes(&caller, &path, change).await.on_path(&path)?;
    get_attributes(State(app), Auth(caller), NamespacePath(path), uri).await
}

/// What to search for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SearchQuery {
    /// The query, such as `instrument=MODIS size:>1GB`. Its language is described in `docs/search.md`.
    #[serde(default)]
    q: String,
    /// Most entries in the answer; 1000 if absent. There may be fewer although there are more.
    #[param(minimum = 1, maximum = 10_000)]
    limit: Option<u32>,
    /// Where to go on: `next` of the answer before.
    cursor: Option<String>,
}

/// Finds entries by what is known of them, in all spaces that this site has or follows and the caller may read.
#[utoipa::path(get, path = "/v1/search", tag = "attributes", params(SearchQuery), responses((status = 200, description = "the entries", body = Page<Entry>)))]
async fn search(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Query(query): Query<SearchQuery>,
    uri: Uri,
) -> Result<Response> {
    let condition = percale_discovery::parse(&query.q, Timestamp::now());
    let condition = condition.map_err(|error| ApiError::invalid(error.to_string()).with_source(error))?;
    let mut options = SearchOptions::new(condition);
    options.after = query.cursor;
    options.limit = limit(query.limit)?;
    let found = app.catalog.search(&caller, options).await?;
    let entries = found.items.into_iter().map(|Listed { path, entry, .. }| describe(path, entry));
    Ok(page(&uri, entries.collect(), found.next))
}
