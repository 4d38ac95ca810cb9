//! Spaces: the roots of the namespace.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, Uri, header};
use percale_api::Page;
use percale_api::spaces::{NewSpace, Space, SpaceChange, SpaceScope};
use percale_core::access::Subject;
use percale_core::ids::StoreId;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{Auth, Session};
use super::extract::{Json, SpaceParam};
use super::idempotency::{Made, once};
use super::paging::page;
use super::{header_value, position_header};
use crate::{ApiError, AppState, Result};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list_spaces, create_space)).routes(routes!(
        get_space,
        change_space,
        remove_space
    ))
}

/// The names of the site's stores, for telling them instead of ids.
async fn stores(app: &AppState) -> Result<Vec<percale_catalog::Store>> {
    Ok(app.catalog.stores().await?)
}

fn describe(space: percale_catalog::Space, stores: &[percale_catalog::Store]) -> Space {
    let store = space.store.and_then(|id| stores.iter().find(|store| store.id == id));
    Space {
        id: space.id,
        name: space.name,
        owner: space.owner,
        scope: match space.scope {
            percale_catalog::SpaceScope::Private => SpaceScope::Private,
            percale_catalog::SpaceScope::Members => SpaceScope::Members,
            percale_catalog::SpaceScope::Public => SpaceScope::Public,
        },
        store: store.map(|store| store.name.clone()),
        position: space.position.to_string(),
        created: space.created,
    }
}

fn scope(scope: SpaceScope) -> percale_catalog::SpaceScope {
    match scope {
        SpaceScope::Private => percale_catalog::SpaceScope::Private,
        SpaceScope::Members => percale_catalog::SpaceScope::Members,
        SpaceScope::Public => percale_catalog::SpaceScope::Public,
    }
}

fn store_id(stores: &[percale_catalog::Store], name: &str) -> Result<StoreId> {
    stores.iter().find(|store| store.name == name).map(|store| store.id).ok_or_else(|| {
        let shown: String = name.chars().take(80).collect();
        ApiError::invalid(format!("no store is named '{shown}'"))
    })
}

/// Lists the spaces that the caller may know of, by name.
#[utoipa::path(get, path = "/v1/spaces", tag = "spaces", responses((status = 200, description = "the spaces", body = Page<Space>)))]
async fn list_spaces(State(app): State<AppState>, Auth(caller): Auth, uri: Uri) -> Result<Response> {
    let stores = stores(&app).await?;
    let spaces = app.catalog.spaces(&caller).await?;
    Ok(page(&uri, spaces.into_iter().map(|space| describe(space, &stores)).collect(), None))
}

/// Makes a space. For administrators.
#[utoipa::path(post, path = "/v1/spaces", tag = "spaces", request_body = NewSpace, responses((status = 201, description = "the space", body = Space)))]
async fn create_space(
    State(app): State<AppState>,
    session: Session,
    headers: HeaderMap,
    Json(new): Json<NewSpace>,
) -> Result<Response> {
    let caller = session.require_admin("making a space")?.clone();
    let work = {
        let (app, new, caller) = (app.clone(), new.clone(), caller.clone());
        async move {
            let stores = stores(&app).await?;
            let store = new.store.as_deref().map(|name| store_id(&stores, name)).transpose()?;
            let owner = new.owner.or_else(|| caller.user.clone().map(Subject::User));
            let owner = owner.ok_or_else(|| ApiError::invalid("a space needs an owner"))?;
            let new = percale_catalog::NewSpace { name: new.name, owner, scope: scope(new.scope), store };
            let space = app.catalog.create_space(&caller, new).await?;
            Ok(Made { status: StatusCode::CREATED, body: describe(space, &stores) })
        }
    };
    let (made, replayed) = once(&app, &caller, &headers, ("/v1/spaces", &new), work).await?;
    let location = header_value(&format!("/v1/spaces/{}", made.body.name));
    Ok((replayed, [(header::LOCATION, location)], made).into_response())
}

/// Returns a space that the caller may know of.
#[utoipa::path(get, path = "/v1/spaces/{space}", tag = "spaces", params(("space" = String, Path, description = "the space's name")), responses((status = 200, description = "the space", body = Space)))]
async fn get_space(
    State(app): State<AppState>,
    Auth(caller): Auth,
    SpaceParam(name): SpaceParam,
) -> Result<Response> {
    let space = app.catalog.space(&caller, &name).await?;
    let position = position_header(space.position);
    Ok((position, Json(describe(space, &stores(&app).await?))).into_response())
}

/// Changes a space. Needs `manage` on its root; another store needs an administrator.
#[utoipa::path(patch, path = "/v1/spaces/{space}", tag = "spaces", params(("space" = String, Path, description = "the space's name")), request_body = SpaceChange, responses((status = 200, description = "the space as it is now", body = Space)))]
async fn change_space(
    State(app): State<AppState>,
    Auth(caller): Auth,
    SpaceParam(name): SpaceParam,
    Json(change): Json<SpaceChange>,
) -> Result<Response> {
    let stores = stores(&app).await?;
    let store = change.store.as_deref().map(|name| store_id(&stores, name)).transpose()?;
    let change = percale_catalog::SpaceChange {
        scope: change.scope.map(scope),
        store: store.map(Some),
        ..Default::default()
    };
    let space = app.catalog.update_space(&caller, &name, change).await?;
    app.stores.forget_space(&name);
    Ok((position_header(space.position), Json(describe(space, &stores))).into_response())
}

/// Removes an empty space. For administrators.
#[utoipa::path(delete, path = "/v1/spaces/{space}", tag = "spaces", params(("space" = String, Path, description = "the space's name")), responses((status = 204, description = "it is removed")))]
async fn remove_space(
    State(app): State<AppState>,
    Auth(caller): Auth,
    SpaceParam(name): SpaceParam,
) -> Result<StatusCode> {
    app.catalog.remove_space(&caller, &name).await?;
    app.stores.forget_space(&name);
    Ok(StatusCode::NO_CONTENT)
}
