//! Spaces: the roots of the namespace.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, Uri, header};
use percale_api::Page;
use percale_api::spaces::{Extraction, NewHome, NewSpace, Promoted, Space, SpaceChange, SpaceScope};
use percale_catalog::{Attribute, AttributeSource, ExtractionMode, RULES};
use percale_core::access::{Caller, Subject};
use percale_core::ids::StoreId;
use percale_core::{ByteCount, ObjectPath, Position};
use percale_federation::{Acting, Member};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{Auth, Session};
use super::extract::{Json, SpaceParam};
use super::idempotency::{Made, once};
use super::paging::page;
use super::{header_value, position_header};
use crate::{ApiError, AppState, OnPath as _, Result};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list_spaces, create_space))
        .routes(routes!(get_space, change_space, remove_space))
        .routes(routes!(promote_space))
        .routes(routes!(move_space))
}

/// The names of the site's stores, for telling them instead of ids.
async fn stores(app: &AppState) -> Result<Vec<percale_catalog::Store>> {
    Ok(app.catalog.stores().await?)
}

async fn describe(
    app: &AppState,
    space: percale_catalog::Space,
    stores: &[percale_catalog::Store],
) -> Result<Space> {
    let used = app.catalog.used(vec![space.id]).await?.remove(&space.id).unwrap_or_default();
    Ok(describe_with(app, space, stores, used))
}

fn describe_with(
    app: &AppState,
    space: percale_catalog::Space,
    stores: &[percale_catalog::Store],
    used: ByteCount,
) -> Space {
    let home = match space.home {
        None => app.site.name.clone(),
        // A site that was removed is told by its id.
        Some(id) => app.fabric.member(id).map_or_else(|_| id.to_string(), |site| site.name.clone()),
    };
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
        extraction: match space.extraction {
            ExtractionMode::Off => Extraction::Off,
            ExtractionMode::Async => Extraction::Async,
            ExtractionMode::Sync => Extraction::Sync,
        },
        unread: app.extraction.left(space.position),
        quota: space.quota.map(|quota| quota.0),
        used: used.0,
        home,
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

fn extraction(mode: Extraction) -> ExtractionMode {
    match mode {
        Extraction::Off => ExtractionMode::Off,
        Extraction::Async => ExtractionMode::Async,
        Extraction::Sync => ExtractionMode::Sync,
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
    let used = app.catalog.used(spaces.iter().map(|space| space.id).collect()).await?;
    let describe = |space: percale_catalog::Space| {
        let used = used.get(&space.id).copied().unwrap_or_default();
        describe_with(&app, space, &stores, used)
    };
    Ok(page(&uri, spaces.into_iter().map(describe).collect(), None))
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
            let new = planned(&app, &caller, &stores, new).await?;
            let space = app.catalog.create_space(&caller, new).await?;
            note(&app, &space).await;
            Ok(Made { status: StatusCode::CREATED, body: describe(&app, space, &stores).await? })
        }
    };
    let (made, replayed) = once(&app, &caller, &headers, ("/v1/spaces", &new), work).await?;
    let location = header_value(&format!("/v1/spaces/{}", made.body.name));
    Ok((replayed, [(header::LOCATION, location)], made).into_response())
}

/// Returns what is to be made, with what its template gives.
async fn planned(
    app: &AppState,
    caller: &Caller,
    stores: &[percale_catalog::Store],
    new: NewSpace,
) -> Result<percale_catalog::NewSpace> {
    if new.members.len() > NewSpace::MOST_MEMBERS {
        let detail =
            format!("a space is made with at most {} members; grant the rest", NewSpace::MOST_MEMBERS);
        return Err(ApiError::invalid(detail));
    }
    let (mut like, mut members, mut rules) = (None, BTreeMap::new(), Vec::new());
    if let Some(template) = &new.template {
        let root = ObjectPath::of_space(template);
        let grants = app.catalog.grants(caller, &root).await.on_path(&root)?;
        let space = app.catalog.space(caller, template).await?;
        let is_given = |subject: &Subject| *subject != space.owner && *subject != Subject::Anyone;
        let given = grants.into_iter().filter(|grant| is_given(&grant.subject));
        members.extend(given.map(|grant| (grant.subject, grant.permission)));
        let (attributes, _) = app.catalog.attributes(caller, &root).await.on_path(&root)?;
        // What is said of the space counts more than its template, also more than a rule of that.
        let counts = |rule: &str| rule != "extraction" || new.extraction.is_none();
        let is_rule = |one: &Attribute| {
            one.source == AttributeSource::Person && one.name.as_str().strip_prefix(RULES).is_some_and(counts)
        };
        rules.extend(attributes.into_iter().filter(is_rule).map(|one| (one.name, one.values)));
        like = Some(space);
    }
    let like = like.as_ref();
    // One whose home is another site may have a store of that one.
    let like_store = like.and_then(|like| like.store.filter(|id| stores.iter().any(|one| one.id == *id)));
    members.extend(new.members.into_iter().map(|member| (member.subject, member.permission)));
    let store = new.store.as_deref().map(|name| store_id(stores, name)).transpose()?;
    let owner = new.owner.or_else(|| caller.user.clone().map(Subject::User));
    Ok(percale_catalog::NewSpace {
        name: new.name,
        owner: owner.ok_or_else(|| ApiError::invalid("a space needs an owner"))?,
        scope: new
            .scope
            .map(scope)
            .or(like.map(|like| like.scope))
            .unwrap_or(percale_catalog::SpaceScope::Private),
        store: store.or(like_store),
        members: members.into_iter().collect(),
        extraction: new
            .extraction
            .map(extraction)
            .or(like.map(|like| like.extraction))
            .unwrap_or(ExtractionMode::Async),
        quota: new.quota.map(ByteCount).or(like.and_then(|like| like.quota)),
        rules,
    })
}

/// Has what a space says of headers hold at once.
async fn note(app: &AppState, space: &percale_catalog::Space) {
    if let Err(error) = app.extraction.note(&app.catalog, space).await {
        tracing::debug!(%error, "what a space says of headers is learnt with the next look");
    }
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
    Ok((position, Json(describe(&app, space, &stores(&app).await?).await?)).into_response())
}

/// Changes a space. Needs `manage` on its root; another store or quota needs an administrator.
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
        extraction: change.extraction.map(extraction),
        quota: change.quota.map(|quota| quota.map(ByteCount)),
        ..Default::default()
    };
    let space = app.catalog.update_space(&caller, &name, change).await?;
    note(&app, &space).await;
    app.stores.forget_space(&name);
    Ok((position_header(space.position), Json(describe(&app, space, &stores).await?)).into_response())
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

/// Makes this site the home of a space whose home is lost. For administrators.
///
/// What the old home committed and this site has not heard of is lost. If the old home comes back, it follows this one.
#[utoipa::path(post, path = "/v1/spaces/{space}/promote", tag = "spaces", params(("space" = String, Path, description = "the space's name")), responses((status = 200, description = "what became of it", body = Promoted)))]
async fn promote_space(
    State(app): State<AppState>,
    session: Session,
    SpaceParam(name): SpaceParam,
) -> Result<Json<Promoted>> {
    session.require_admin("promoting a space")?;
    let space = app.catalog.space(&crate::app::system_caller(), &name).await?;
    let heard = app.fabric.heard(space.id);
    let promoted = app.catalog.promote(space.id).await?;
    app.stores.forget_space(&name);
    let lost = heard
        .filter(|heard| heard.term == promoted.before.term)
        .map_or(0, |heard| heard.seq.saturating_sub(promoted.before.seq));
    tracing::warn!(space = %name, position = %promoted.position, lost, "this site is the home of the space now");
    Ok(Json(Promoted {
        space: name,
        home: app.site.name.clone(),
        position: promoted.position.to_string(),
        before: promoted.before.to_string(),
        heard: heard.map(|heard| heard.to_string()),
        lost,
    }))
}

/// Makes another site the home of a space that is at home here; nothing is lost. For administrators.
#[utoipa::path(post, path = "/v1/spaces/{space}/home", tag = "spaces", params(("space" = String, Path, description = "the space's name")), request_body = NewHome, responses((status = 200, description = "what became of it", body = Promoted)))]
async fn move_space(
    State(app): State<AppState>,
    session: Session,
    SpaceParam(name): SpaceParam,
    Json(to): Json<NewHome>,
) -> Result<Json<Promoted>> {
    session.require_admin("moving a space")?;
    let space = app.catalog.space(&crate::app::system_caller(), &name).await?;
    let member = app.fabric.named(&to.site)?;
    if member.id == app.site.id {
        return Err(ApiError::invalid(format!(
            "the space {name} is to move to the site where it is asked for"
        )));
    }
    let before = app.catalog.hand_over(space.id, member.id).await?;
    app.stores.forget_space(&name);
    let mut asked = ask_to_take_over(&app, &member, before).await;
    for _ in 0..2 {
        if asked.as_ref().err().is_none_or(|error| !error.is_retryable()) {
            break;
        }
        // Asked again, it answers the same.
        asked = ask_to_take_over(&app, &member, before).await;
    }
    match asked {
        Ok(position) => Ok(Json(Promoted {
            space: name,
            home: member.name.clone(),
            position: position.to_string(),
            before: before.to_string(),
            heard: None,
            lost: 0,
        })),
        Err(error) if error.is_retryable() => {
            let what = format!(
                "it is not known whether {} took the space {name}, which nobody can change until it has; \
                 `percale space promote {name}` here takes it back",
                member.name
            );
            Err(ApiError::from(error).context(what))
        }
        Err(error) => {
            app.catalog.promote(space.id).await?;
            let what = format!("the space {name} stays here, since {} does not take it", member.name);
            Err(ApiError::from(error).context(what))
        }
    }
}

async fn ask_to_take_over(
    app: &AppState,
    member: &Member,
    position: Position,
) -> percale_federation::Result<Position> {
    Ok(app.fabric.client(member.id, &Acting::Site)?.peer_take_over(position).await?)
}
