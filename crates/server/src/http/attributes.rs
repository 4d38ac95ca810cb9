//! What objects and collections are about: told and set.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::Uri;
use percale_api::Page;
use percale_api::attributes::{
    Attribute, AttributeChange, AttributeEvent, LeftOut, ObjectReferences, Reference, Source,
};
use percale_catalog::{AttributeSource, RULES};
use percale_discovery::references as found;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{Auth, Session};
use super::extract::{Json, NamespacePath, Query};
use super::paging::{Paging, limit, page};
use super::position_header;
use crate::extraction::references;
use crate::{AppState, OnPath as _, Result};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(get_attributes, change_attributes))
        .routes(routes!(history))
        .routes(routes!(get_references))
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
        source: described(attribute.source),
        values: attribute.values,
    });
    let attributes = page(&uri, attributes.collect::<Vec<_>>(), None);
    Ok((position_header(position), attributes).into_response())
}

fn described(source: AttributeSource) -> Source {
    match source {
        AttributeSource::Header => Source::Header,
        AttributeSource::Person => Source::Person,
    }
}

/// Returns the changes of what is said of an object or collection, the last one first, as far back as this site's journal of the space
/// goes. A page may have fewer than `limit` although there are more.
#[utoipa::path(get, path = "/v1/history/{*path}", tag = "attributes", params(("path" = String, Path, description = "path of a collection or object"), Paging), responses((status = 200, description = "the changes", body = Page<AttributeEvent>)))]
async fn history(
    State(app): State<AppState>,
    Auth(caller): Auth,
    NamespacePath(path): NamespacePath,
    Query(paging): Query<Paging>,
    uri: Uri,
) -> Result<Response> {
    let limit = limit(paging.limit)?;
    let found = app.catalog.attribute_history(&caller, &path, paging.cursor, limit).await.on_path(&path)?;
    let events = found.items.into_iter().map(|event| AttributeEvent {
        at: event.at,
        actor: event.actor,
        position: event.position,
        source: described(event.source),
        set: event.set.into_iter().map(|one| (one.name, one.values)).collect(),
    });
    let mut response = page(&uri, events.collect::<Vec<_>>(), found.next);
    response.headers_mut().extend(found.position.into_iter().flat_map(position_header));
    Ok(response)
}

/// Sets and removes what people say of an object or collection. Needs `write`, and `manage` for rules of a collection, whose names begin
/// with `rules.`. Answers with what is said of it then.
#[utoipa::path(patch, path = "/v1/attributes/{*path}", tag = "attributes", request_body = AttributeChange, params(("path" = String, Path, description = "path of a collection or object")), responses((status = 200, description = "the attributes", body = Page<Attribute>)))]
async fn change_attributes(
    State(app): State<AppState>,
    Auth(caller): Auth,
    NamespacePath(path): NamespacePath,
    uri: Uri,
    Json(wanted): Json<AttributeChange>,
) -> Result<Response> {
    let has_rules = wanted.set.keys().any(|name| name.as_str().starts_with(RULES));
    let change = percale_catalog::AttributeChange { set: wanted.set.into_iter().collect() };
    let position = app.catalog.change_attributes(&caller, &path, change).await.on_path(&path)?;
    if has_rules {
        app.extraction.note_rules(&app.catalog, position.space).await?;
    }
    get_attributes(State(app), Auth(caller), NamespacePath(path), uri).await
}

/// Returns where the chunks of the arrays of an object lie, which is HDF5, NetCDF-4 or NetCDF-3: the keys of a store of Zarr 2. Needs `read`.
///
/// The file is read for it now, in its current version. What cannot be read by ranges is named with the reason.
#[utoipa::path(get, path = "/v1/references/{*path}", tag = "attributes", params(("path" = String, Path, description = "path of an object")), responses((status = 200, description = "the references", body = ObjectReferences)))]
async fn get_references(
    State(app): State<AppState>,
    session: Session,
    NamespacePath(path): NamespacePath,
) -> Result<Response> {
    let open = app.catalog.open_object(&session.caller, &path, None).await.on_path(&path)?;
    let (version, size, position) = (open.version, open.size.0, open.position);
    let found::References { refs, values, left_out } =
        references(&app, &open, &session.reach()).await.on_path(&path)?;
    let reference = |(key, reference)| match reference {
        found::Reference::Text(text) => (key, Reference::Text(text)),
        found::Reference::Range(offset, len) => (key, Reference::Range([offset, len])),
    };
    let left = |found::LeftOut { variable, why }| LeftOut { variable, why };
    let answer = ObjectReferences {
        version,
        size,
        refs: refs.into_iter().map(reference).collect(),
        values,
        left_out: left_out.into_iter().map(left).collect(),
    };
    Ok((position_header(position), Json(answer)).into_response())
}
