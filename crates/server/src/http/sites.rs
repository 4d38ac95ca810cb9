//! The sites of the fabric: listed, invited, joined, drained, removed.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, Uri};
use percale_api::Page;
use percale_api::directions::Directions;
use percale_api::peer::{
    Accept, Invitation, KeyConfirmation, KeyRotated, KeyRotation, MemberChange, MemberState, NewInvitation,
    SiteStatus,
};
use percale_catalog::PeerState;
use percale_client::Transport;
use percale_core::ErrorCode;
use percale_federation::{Member, Route, joining, roster};
use percale_trust::SitePublicKey;
use std::time::Duration;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{Auth, Session, require_user};
use super::extract::{Json, Param};
use super::paging::page;
use crate::keys;
use crate::{ApiError, AppState, Result};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list_sites))
        .routes(routes!(invite))
        .routes(routes!(join))
        .routes(routes!(look_at_directions))
        .routes(routes!(get_site, change_site, remove_site))
        .routes(routes!(rotate_key))
        .routes(routes!(confirm_key))
}

fn describe(app: &AppState, member: &Member) -> SiteStatus {
    let is_self = member.id == app.site.id;
    let contact = app.fabric.contact(member.id);
    let millis = |duration: Duration| duration.as_secs_f64() * 1000.0;
    let route = match app.fabric.route(member) {
        _ if is_self => "self",
        _ if !member.is_confirmed => "refused",
        // Whoever did not answer the last exchange is not there now.
        _ if contact.fault.is_some() || contact.seen.is_none() => "unreachable",
        Ok(Route::Direct(_)) => "direct",
        Ok(Route::Reverse) => "reverse",
        Ok(Route::Relay(_)) => "relay",
        Err(_) => "unreachable",
    };
    let (transport, transport_reason) = (!is_self).then(|| transport(app, member)).unzip();
    SiteStatus {
        member: roster::to_wire(member),
        is_self,
        route: route.to_owned(),
        seen: contact.seen,
        rtt_ms: contact.rtt.map(millis),
        clock_ms: contact.clock_us.map(|offset| offset as f64 / 1000.0),
        transport: transport.map(str::to_owned),
        transport_reason: transport_reason.flatten(),
        fault: contact.fault.or(contact.trouble),
        key_id: SitePublicKey(member.key).key_id(),
        key_trouble: app.fabric.key_trouble(member),
    }
}

/// Says how copies come from a member, and why so, where integrity only is configured here.
fn transport(app: &AppState, member: &Member) -> (&'static str, Option<String>) {
    if !app.fabric.may_be_plain(&member.name) {
        return ("tls", None);
    }
    if !matches!(app.fabric.route(member), Ok(Route::Direct(_))) {
        return (
            "tls",
            Some("it cannot be dialled, so there is no connection without encryption".to_owned()),
        );
    }
    let state = app.fabric.plain_state(member.id).unwrap_or_default();
    let streams = |count: u64| if count == 1 { "1 stream".to_owned() } else { format!("{count} streams") };
    let altered = (state.altered > 0)
        .then(|| format!("{} of {} not what was sent", state.altered, streams(state.streams)));
    match state.last {
        None => ("integrity_only", Some("no copy has come yet".to_owned())),
        Some(Transport::IntegrityOnly) => {
            ("integrity_only", Some(altered.unwrap_or_else(|| streams(state.streams))))
        }
        Some(Transport::Tls(why)) => {
            let why: Vec<String> = why.into_iter().chain(altered).collect();
            ("tls", Some(why.join("; ")))
        }
    }
}

/// Lists the sites of the fabric and how they are reached from here. Needs a sign-in.
#[utoipa::path(get, path = "/v1/sites", tag = "sites", responses((status = 200, description = "the sites", body = Page<SiteStatus>)))]
async fn list_sites(State(app): State<AppState>, Auth(caller): Auth, uri: Uri) -> Result<Response> {
    require_user(&caller, "listing sites")?;
    let roster = app.fabric.roster();
    let mut members: Vec<_> = roster.active().collect();
    members.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(page(&uri, members.into_iter().map(|member| describe(&app, member)).collect(), None))
}

/// Makes an invitation: one line for the administrator of another site, good once. For administrators.
#[utoipa::path(post, path = "/v1/sites/invitations", tag = "sites", request_body = NewInvitation, responses((status = 201, description = "the invitation", body = Invitation)))]
async fn invite(
    State(app): State<AppState>,
    session: Session,
    Json(new): Json<NewInvitation>,
) -> Result<Response> {
    let caller = session.require_admin("inviting a site")?;
    let life = new.life_s.map_or(joining::DEFAULT_LIFE, Duration::from_secs);
    let invitation = app.fabric.invite(caller, life).await?;
    let body = Invitation { invitation: invitation.to_string(), expires: invitation.expires };
    Ok((StatusCode::CREATED, Json(body)).into_response())
}

/// Joins the fabric of the site that made an invitation. For administrators.
#[utoipa::path(post, path = "/v1/sites/join", tag = "sites", request_body = Accept, responses((status = 200, description = "the sites", body = Page<SiteStatus>)))]
async fn join(
    State(app): State<AppState>,
    session: Session,
    uri: Uri,
    Json(accept): Json<Accept>,
) -> Result<Response> {
    let caller = session.require_admin("joining a fabric")?.clone();
    app.fabric.accept(&accept.invitation).await?;
    list_sites(State(app), Auth(caller), uri).await
}

/// Finds out which ways there are between this site and each other one: it dials the others, and they are asked to dial it, at the
/// URLs that the roster has. Takes some seconds. For administrators.
#[utoipa::path(post, path = "/v1/sites/directions", tag = "sites", responses((status = 200, description = "the ways, and what to do", body = Directions)))]
async fn look_at_directions(State(app): State<AppState>, session: Session) -> Result<Json<Directions>> {
    session.require_admin("looking at the ways between sites")?;
    Ok(Json(app.fabric.directions().await))
}

/// Returns a site and how it is reached from here. Needs a sign-in.
#[utoipa::path(get, path = "/v1/sites/{name}", tag = "sites", params(("name" = String, Path, description = "the site's name")), responses((status = 200, description = "the site", body = SiteStatus)))]
async fn get_site(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Param(name): Param<String>,
) -> Result<Json<SiteStatus>> {
    require_user(&caller, "looking at a site")?;
    let member = app.fabric.named(&name)?;
    Ok(Json(describe(&app, &member)))
}

/// Drains a site, or takes that back. A drained site takes no new data. For administrators.
#[utoipa::path(patch, path = "/v1/sites/{name}", tag = "sites", params(("name" = String, Path, description = "the site's name")), request_body = MemberChange, responses((status = 200, description = "the site as it is now", body = SiteStatus)))]
async fn change_site(
    State(app): State<AppState>,
    session: Session,
    Param(name): Param<String>,
    Json(change): Json<MemberChange>,
) -> Result<Json<SiteStatus>> {
    session.require_admin("changing a site")?;
    let member = app.fabric.named(&name)?;
    let state = match change.state {
        MemberState::Active => PeerState::Active,
        MemberState::Drained => PeerState::Drained,
        MemberState::Removed => {
            return Err(ApiError::invalid(format!("a site is removed by DELETE /v1/sites/{name}")));
        }
    };
    app.fabric.set_state(member.id, state).await?;
    let member = app.fabric.named(&name)?;
    Ok(Json(describe(&app, &member)))
}

/// Removes a site from the fabric, for good: nothing that it asks or signs is accepted any more. For administrators.
#[utoipa::path(delete, path = "/v1/sites/{name}", tag = "sites", params(("name" = String, Path, description = "the site's name")), responses((status = 204, description = "it is removed")))]
async fn remove_site(
    State(app): State<AppState>,
    session: Session,
    Param(name): Param<String>,
) -> Result<StatusCode> {
    session.require_admin("removing a site")?;
    let member = app.fabric.named(&name)?;
    if member.id == app.site.id {
        let detail = "a site does not remove itself; ask another member to";
        return Err(ApiError::new(ErrorCode::Unsupported, detail));
    }
    app.fabric.set_state(member.id, PeerState::Removed).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Changes the key of this site, and tells the others before the new one is used. The old key is accepted for 24 hours, or
/// not at all if others know it: then tokens and tasks that it signed are void, and an administrator of each other site
/// confirms the new one. For administrators.
#[utoipa::path(post, path = "/v1/site/key", tag = "sites", request_body = KeyRotation, responses((status = 200, description = "the new key, and which sites have heard of it", body = KeyRotated)))]
async fn rotate_key(
    State(app): State<AppState>,
    session: Session,
    Json(rotation): Json<KeyRotation>,
) -> Result<Json<KeyRotated>> {
    session.require_admin("changing the site's key")?;
    let from: SitePublicKey = rotation.key.parse().map_err(|error| ApiError::invalid(format!("{error}")))?;
    // To its end, whether or not somebody still waits for the answer.
    let changing = tokio::spawn(keys::rotate(app.clone(), from, rotation.compromised));
    let changed = changing.await.map_err(|error| {
        ApiError::internal("the change of the site's key ended early").with_source(error)
    })??;
    Ok(Json(KeyRotated {
        site: app.site.name.clone(),
        key: changed.key.to_string(),
        key_id: changed.key.key_id(),
        old_key_until: changed.old_until,
        told: changed.told,
        untold: changed.untold,
    }))
}

/// Says which key another site has, after it was compared with what that site shows. For a site that revoked its key, or
/// changed it more than once since it was heard of. For administrators.
#[utoipa::path(put, path = "/v1/sites/{name}/key", tag = "sites", params(("name" = String, Path, description = "the site's name")), request_body = KeyConfirmation, responses((status = 200, description = "the site as it is now", body = SiteStatus)))]
async fn confirm_key(
    State(app): State<AppState>,
    session: Session,
    Param(name): Param<String>,
    Json(confirmation): Json<KeyConfirmation>,
) -> Result<Json<SiteStatus>> {
    session.require_admin("confirming a site's key")?;
    let member = app.fabric.named(&name)?;
    app.fabric.confirm_key(&member, &confirmation.key).await?;
    let member = app.fabric.named(&name)?;
    Ok(Json(describe(&app, &member)))
}
