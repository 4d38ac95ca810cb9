//! The description of the interface, made from the handlers.

use std::sync::OnceLock;

use axum::response::{IntoResponse, Response};
use http::header;
use percale_api::Problem;
use serde_json::json;
use utoipa::OpenApi as _;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, PathItem, Ref, RefOr, ResponseBuilder, SecurityRequirement};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::AppState;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(get_openapi)).routes(routes!(api_catalog))
}

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Percale",
        description = "The HTTP interface of a Percale site. Paths of the namespace stand in addresses percent-encoded by component.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    components(schemas(Problem)),
    tags(
        (name = "site", description = "The site and the caller"),
        (name = "sites", description = "The sites of the fabric"),
        (name = "tokens", description = "Tokens of the built-in issuer"),
        (name = "stores", description = "Stores; for administrators"),
        (name = "spaces", description = "Roots of the namespace"),
        (name = "grants", description = "Who may do what"),
        (name = "entries", description = "Collections and objects"),
        (name = "data", description = "Content"),
        (name = "uploads", description = "Resumable uploads"),
        (name = "frames", description = "Many objects or ranges in one stream"),
        (name = "tasks", description = "Managed work"),
        (name = "events", description = "The journal, live"),
        (name = "health", description = "For those who run the server"),
    )
)]
struct Description;

/// Returns the description of the whole interface. Needs no running server.
pub fn openapi() -> OpenApi {
    let mut api = Description::openapi();
    let routes = super::routes().into_openapi();
    api.paths = routes.paths;
    if let (Some(all), Some(more)) = (&mut api.components, routes.components) {
        all.schemas.extend(more.schemas);
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT").build();
        all.add_security_scheme("token", SecurityScheme::Http(bearer));
    }
    // A token is never needed by itself: what is public is answered without one.
    api.security = Some(vec![
        SecurityRequirement::new("token", std::iter::empty::<String>()),
        SecurityRequirement::default(),
    ]);
    let paths = std::mem::take(&mut api.paths.paths);
    for (path, mut item) in paths {
        for operation in operations(&mut item) {
            let answers = &mut operation.responses.responses;
            answers.entry("default".to_owned()).or_insert_with(problem);
        }
        // The router's sign for "also slashes" is not part of the description.
        api.paths.paths.insert(path.replace("{*", "{"), item);
    }
    api
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut utoipa::openapi::path::Operation> {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.head, &mut item.patch]
        .into_iter()
        .filter_map(Option::as_mut)
}

fn problem() -> RefOr<utoipa::openapi::Response> {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    RefOr::T(
        ResponseBuilder::new()
            .description("a problem (RFC 9457)")
            .content(percale_api::media::PROBLEM, content)
            .build(),
    )
}

/// Returns the description as it is kept in `spec/openapi.json`.
pub fn openapi_json() -> String {
    let mut text = serde_json::to_string_pretty(&openapi()).unwrap_or_default();
    text.push('\n');
    text
}

/// Returns this description.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "site", responses((status = 200, description = "OpenAPI 3.1", body = Object, content_type = "application/json")))]
async fn get_openapi() -> Response {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = TEXT.get_or_init(openapi_json);
    ([(header::CONTENT_TYPE, "application/json")], text.as_str()).into_response()
}

/// Tells where the interface is and where it is described (RFC 9727).
#[utoipa::path(get, path = "/.well-known/api-catalog", tag = "site", responses((status = 200, description = "a link set", body = Object, content_type = "application/linkset+json")))]
async fn api_catalog() -> Response {
    let links = json!({
        "linkset": [{
            "anchor": "/v1",
            "service-desc": [{"href": "/v1/openapi.json", "type": "application/json"}],
            "status": [{"href": "/readyz", "type": "application/json"}],
        }]
    });
    let kind = "application/linkset+json; profile=\"https://www.rfc-editor.org/info/rfc9727\"";
    ([(header::CONTENT_TYPE, kind)], links.to_string()).into_response()
}
