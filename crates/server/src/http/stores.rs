//! Stores: added after they were opened once, listed, drained, removed. For administrators.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, Uri, header};
use percale_api::Page;
use percale_api::spaces::{Layout, NewStore, Store, StoreChange, StoreState};
use percale_catalog::SealedSecret;
use percale_core::ErrorCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{Session, require_admin};
use super::extract::{Json, Param};
use super::header_value;
use super::idempotency::{Made, once};
use super::paging::page;
use crate::config::is_plain_name;
use crate::stores::SECRET_PURPOSE;
use crate::{ApiError, AppState, Result};

/// Largest configuration of a store, in bytes of JSON.
const MAX_CONFIG_BYTES: usize = 64 * 1024;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list_stores, add_store)).routes(routes!(
        get_store,
        change_store,
        remove_store
    ))
}

/// Lists the stores, by name.
#[utoipa::path(get, path = "/v1/stores", tag = "stores", responses((status = 200, description = "the stores", body = Page<Store>)))]
async fn list_stores(State(app): State<AppState>, session: Session, uri: Uri) -> Result<Response> {
    session.require_admin("listing stores")?;
    let mut stores = Vec::new();
    for row in app.catalog.stores().await? {
        stores.push(describe(&app, row).await);
    }
    Ok(page(&uri, stores, None))
}

async fn describe(app: &AppState, row: percale_catalog::Store) -> Store {
    // A store that is away is listed all the same.
    let usage = app.stores.usage(row.id).await;
    Store {
        id: row.id,
        name: row.name,
        connector: row.connector,
        layout: match row.layout {
            percale_catalog::StoreLayout::Managed => Layout::Managed,
            percale_catalog::StoreLayout::Native => Layout::Native,
        },
        state: match row.state {
            percale_catalog::StoreState::Online => StoreState::Active,
            percale_catalog::StoreState::ReadOnly | percale_catalog::StoreState::Offline => {
                StoreState::Draining
            }
        },
        config: row.config,
        total_bytes: usage.map(|usage| usage.total.0),
        free_bytes: usage.map(|usage| usage.free.0),
    }
}

/// Adds a store.
///
/// It is opened once before; what cannot be opened is not added.
#[utoipa::path(post, path = "/v1/stores", tag = "stores", request_body = NewStore, responses((status = 201, description = "the store", body = Store)))]
async fn add_store(
    State(app): State<AppState>,
    session: Session,
    headers: HeaderMap,
    Json(new): Json<NewStore>,
) -> Result<Response> {
    require_admin(&session.caller, "adding a store")?;
    check(&new)?;
    let work = {
        let (app, new) = (app.clone(), new.clone());
        async move {
            let row = add(&app, new).await?;
            Ok(Made { status: StatusCode::CREATED, body: describe(&app, row).await })
        }
    };
    let (made, replayed) = once(&app, &session.caller, &headers, ("/v1/stores", &new), work).await?;
    let location = header_value(&format!("/v1/stores/{}", made.body.name));
    Ok((replayed, [(header::LOCATION, location)], made).into_response())
}

fn check(new: &NewStore) -> Result<()> {
    if !is_plain_name(&new.name) {
        let shown: String = new.name.chars().take(80).collect();
        return Err(ApiError::invalid(format!(
            "'{shown}' cannot be the name of a store: 1 to 63 of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit"
        )));
    }
    let too_large = |value: &serde_json::Value| value.to_string().len() > MAX_CONFIG_BYTES;
    for (field, value) in [("config", Some(&new.config)), ("secret", new.secret.as_ref())] {
        let Some(value) = value else { continue };
        if !value.is_object() {
            return Err(ApiError::invalid(format!(
                "cannot add store {}: {field} is not a JSON object",
                new.name
            )));
        }
        if too_large(value) {
            return Err(ApiError::invalid(format!(
                "cannot add store {}: {field} has more than {MAX_CONFIG_BYTES} bytes",
                new.name
            )));
        }
    }
    Ok(())
}

async fn add(app: &AppState, new: NewStore) -> Result<percale_catalog::Store> {
    let attempted = format!("cannot add store {}", new.name);
    let taken = app.catalog.stores().await?.into_iter().any(|store| store.name == new.name);
    if taken {
        return Err(ApiError::new(ErrorCode::AlreadyExists, format!("{attempted}: the name is taken")));
    }
    let secret = match &new.secret {
        Some(secret) => Some(SealedSecret(app.sealer.seal(SECRET_PURPOSE, secret.to_string().as_bytes())?)),
        None => None,
    };
    let layout = match new.layout {
        Layout::Managed => percale_catalog::StoreLayout::Managed,
        Layout::Native => percale_catalog::StoreLayout::Native,
    };
    let row = percale_catalog::NewStore {
        name: new.name,
        connector: new.connector,
        layout,
        config: new.config,
        secret,
    };
    app.stores.add(row).await.map_err(|error| error.context(attempted))
}

/// Returns a store.
#[utoipa::path(get, path = "/v1/stores/{name}", tag = "stores", params(("name" = String, Path, description = "the store's name")), responses((status = 200, description = "the store", body = Store)))]
async fn get_store(
    State(app): State<AppState>,
    session: Session,
    Param(name): Param<String>,
) -> Result<Json<Store>> {
    session.require_admin("looking at a store")?;
    let row = app.stores.named(&name).await?;
    Ok(Json(describe(&app, row).await))
}

/// Changes whether a store takes new data.
#[utoipa::path(patch, path = "/v1/stores/{name}", tag = "stores", params(("name" = String, Path, description = "the store's name")), request_body = StoreChange, responses((status = 200, description = "the store as it is now", body = Store)))]
async fn change_store(
    State(app): State<AppState>,
    session: Session,
    Param(name): Param<String>,
    Json(change): Json<StoreChange>,
) -> Result<Json<Store>> {
    session.require_admin("changing a store")?;
    let row = app.stores.named(&name).await?;
    let state = change.state.map(|state| match state {
        StoreState::Active => percale_catalog::StoreState::Online,
        StoreState::Draining => percale_catalog::StoreState::ReadOnly,
    });
    let change = percale_catalog::StoreChange { state, ..Default::default() };
    let row = app.catalog.update_store(row.id, change).await?;
    app.stores.forget(row.id);
    Ok(Json(describe(&app, row).await))
}

/// Removes a store that holds nothing any more. What is in the storage stays there.
#[utoipa::path(delete, path = "/v1/stores/{name}", tag = "stores", params(("name" = String, Path, description = "the store's name")), responses((status = 204, description = "it is removed")))]
async fn remove_store(
    State(app): State<AppState>,
    session: Session,
    Param(name): Param<String>,
) -> Result<StatusCode> {
    session.require_admin("removing a store")?;
    let row = app.stores.named(&name).await?;
    app.catalog.remove_store(row.id).await?;
    app.stores.forget(row.id);
    Ok(StatusCode::NO_CONTENT)
}
