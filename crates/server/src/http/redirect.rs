//! Clients are sent on to the site that has the bytes (`docs/design/federation.md`, "Redirects and relays").

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use percale_api::away::{Follow, Place};
use percale_api::fields;
use percale_catalog::OpenVersion;
use percale_client::encode_path;
use percale_core::access::{Caller, Permission, Scope};
use percale_core::ids::VersionId;
use percale_core::{ErrorCode, ObjectPath, Timestamp};
use percale_federation::{Member, TICKET_LIFE, roster};

use super::data::{etag, insert, text};
use super::ticket::Reading;
use crate::{ApiError, AppState, Result};

/// Returns where a client is willing to go: nowhere if it did not say, and not from where it was sent to.
pub fn willing(headers: &HeaderMap, reading: &Reading) -> Option<Follow> {
    let said = text(headers, &HeaderName::from_static(fields::REDIRECT))?;
    Follow::parse(said).filter(|_| !reading.is_sent() && reading.session.site.is_none())
}

async fn site_for(
    app: &AppState,
    reading: &Reading,
    follow: &Follow,
    open: &OpenVersion,
) -> Option<Arc<Member>> {
    let site = app.reader.elsewhere(open, &reading.session.reach(), &follow.not).await?;
    (!site.urls.is_empty()).then_some(site)
}

/// Answers a request for content by the address at the site that has it, if the client is to go there.
pub async fn answer(
    app: &AppState,
    reading: &Reading,
    headers: &HeaderMap,
    open: &OpenVersion,
) -> Option<Response> {
    let follow = willing(headers, reading)?;
    let site = site_for(app, reading, &follow, open).await?;
    match address(app, &reading.session.caller, &site, open) {
        Ok(response) => Some(response),
        Err(error) => {
            tracing::warn!(path = %open.path, site = site.name, %error, "a client cannot be sent on, its bytes are fetched");
            None
        }
    }
}

fn address(app: &AppState, caller: &Caller, site: &Member, open: &OpenVersion) -> Result<Response> {
    let Place { url, ticket, position, .. } = place(app, caller, site, open, &open.path, Some(open.version))?;
    // A ticket is made of characters that mean nothing in an address.
    let location = format!(
        "{}{}?version={}&position={position}&ticket={ticket}",
        url.trim_end_matches('/'),
        encode_path("/v1/data", &open.path),
        open.version
    );
    let location = HeaderValue::from_str(&location)
        .map_err(|_| ApiError::new(ErrorCode::Internal, "the address of the content cannot be sent"))?;
    let mut response = StatusCode::TEMPORARY_REDIRECT.into_response();
    let fields_out = response.headers_mut();
    fields_out.insert(header::LOCATION, location);
    insert(fields_out, header::ETAG, &etag(open.version, open.root));
    insert(fields_out, header::CACHE_CONTROL, "private, no-store");
    insert(fields_out, header::REFERRER_POLICY, "no-referrer");
    Ok(response)
}

/// Says where bytes are and signs what opens them there.
fn place(
    app: &AppState,
    caller: &Caller,
    site: &Member,
    open: &OpenVersion,
    path: &ObjectPath,
    version: Option<VersionId>,
) -> Result<Place> {
    let url = site.urls.first().cloned().unwrap_or_default();
    let ticket = app.fabric.ticket(site, caller, open.space, path, version)?;
    let keys = roster::keys_of(site, Timestamp::now()).iter().map(ToString::to_string).collect();
    metrics::counter!("percale_redirects_total").increment(1);
    Ok(Place {
        site: site.id,
        name: site.name.clone(),
        url,
        keys,
        ticket,
        life_s: TICKET_LIFE.as_secs(),
        position: open.position,
    })
}

/// Items that one ticket is for: at one site, in one space, below one of the scopes of the caller's token, so that it
/// opens nothing that the token does not.
struct Group<'a> {
    site: Arc<Member>,
    first: &'a OpenVersion,
    scope: Option<&'a Scope>,
    /// What is at and above all of them.
    above: ObjectPath,
    items: Vec<usize>,
}

/// Finds the places of the items that are not to be read here: for each of them the number of its place in the list.
pub async fn places(
    app: &AppState,
    reading: &Reading,
    follow: &Follow,
    opened: &[Result<OpenVersion>],
) -> (Vec<Place>, Vec<Option<usize>>) {
    let caller = &reading.session.caller;
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (at, open) in opened.iter().enumerate() {
        let Ok(open) = open else { continue };
        let Some(site) = site_for(app, reading, follow, open).await else { continue };
        let scope = scope_of(caller, &open.path);
        let group = groups
            .iter_mut()
            .find(|group| (group.site.id, group.first.space, group.scope) == (site.id, open.space, scope));
        match group {
            Some(group) => {
                group.items.push(at);
                while !open.path.is_within(&group.above) {
                    group.above = group.above.parent().unwrap_or_else(ObjectPath::root);
                }
            }
            None => {
                groups.push(Group { site, first: open, scope, above: open.path.clone(), items: vec![at] })
            }
        }
    }
    let (mut list, mut numbers) = (Vec::new(), vec![None; opened.len()]);
    for Group { site, first, above, items, .. } in groups {
        let version = (items.len() == 1).then_some(first.version);
        match place(app, caller, &site, first, &above, version) {
            Ok(place) => {
                items.into_iter().for_each(|item| numbers[item] = Some(list.len()));
                list.push(place);
            }
            Err(error) => {
                tracing::warn!(path = %above, site = site.name, %error, "a client cannot be sent on, its bytes are fetched");
            }
        }
    }
    (list, numbers)
}

/// Returns the scope by which a caller may read a path; none if its token is not limited.
fn scope_of<'a>(caller: &'a Caller, path: &ObjectPath) -> Option<&'a Scope> {
    if caller.is_admin() {
        return None;
    }
    let lets = |scope: &&Scope| matches!(scope, Scope::Path(most, root) if *most >= Permission::Read && path.is_within(root));
    caller.scopes.iter().find(lets)
}
