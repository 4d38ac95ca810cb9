//! Requests that another site answers (`docs/design/federation.md`, "Which site answers").
//!
//! A change of names, grants or settings goes to the home of its space; a read that must see a change waits for this
//! site's follower, and goes to the home if that takes too long. What a site asks that cannot reach another one is passed
//! on as it is. A request is forwarded once.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use percale_api::entries::Move;
use percale_api::fields;
use percale_client::{Client, Passed};
use percale_core::path::SpaceName;
use percale_core::{ErrorCode, Position};
use percale_federation::{Acting, Member, follow};

use super::auth::Session;
use super::extract::{parse_json, read_json};
use super::ticket;
use crate::app::system_caller;
use crate::listener::PeerKey;
use crate::{ApiError, AppState, Result};

/// How long a request waits for this site's follower to see a change.
pub(super) const CATCH_UP: Duration = Duration::from_secs(1);

/// Answers a request, here or by the site that it is for.
pub(super) async fn layer(State(app): State<AppState>, request: Request, next: Next) -> Response {
    match answer(&app, request, next).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

async fn answer(app: &AppState, request: Request, next: Next) -> Result<Response> {
    if request.headers().contains_key(fields::TO) {
        return relay(app, request).await;
    }
    let is_sent = ticket::is_brought(request.headers(), request.uri());
    if is_sent || request.extensions().get::<PeerKey>().is_some() {
        // A site speaks of what its follower has seen, and this one may be behind.
        if let Some(position) = asked_position(request.headers(), request.uri())? {
            drop(follow::caught_up(&app.fabric, position, CATCH_UP).await);
        }
        return Ok(next.run(request).await);
    }
    let is_read = request.method() == Method::GET || request.method() == Method::HEAD;
    if is_read && !request.headers().contains_key(fields::POSITION) {
        return Ok(next.run(request).await);
    }
    let (mut parts, body) = request.into_parts();
    if is_read {
        return match must_ask_home(app, &parts).await? {
            Some(home) => {
                let session = Session::from_request_parts(&mut parts, app).await?;
                to_site(app, &session, &home, parts, Bytes::new()).await
            }
            None => Ok(next.run(Request::from_parts(parts, body)).await),
        };
    }
    let Some(about) = changed(&parts.method, &parts.uri) else {
        return Ok(next.run(Request::from_parts(parts, body)).await);
    };
    let (space, body) = match about {
        About::Space(space) => (Some(space), body),
        About::Move => {
            let bytes = read_json(Request::from_parts(parts.clone(), body)).await?;
            (parse_json::<Move>(&bytes)?.from.space(), Body::from(bytes))
        }
    };
    let home = match &space {
        Some(space) => home_of(app, space).await?,
        None => None,
    };
    let Some(home) = home else { return Ok(next.run(Request::from_parts(parts, body)).await) };
    let session = Session::from_request_parts(&mut parts, app).await?;
    let bytes = read_body(body).await?;
    to_site(app, &session, &home, parts, bytes).await
}

/// What a change is about.
enum About {
    Space(SpaceName),
    /// The body names it.
    Move,
}

/// Tells which space a request changes the names, grants or settings of.
fn changed(method: &Method, uri: &Uri) -> Option<About> {
    let rest = uri.path().strip_prefix("/v1/")?;
    let (kind, path) = rest.split_once('/').unwrap_or((rest, ""));
    let is_change = match kind {
        "entries" => method == Method::DELETE || method == Method::PATCH,
        "attributes" => method == Method::PATCH,
        "collections" | "links" => method == Method::PUT,
        "grants" => method == Method::PUT || method == Method::DELETE,
        "spaces" => method == Method::PATCH || method == Method::DELETE,
        "move" => return (method == Method::POST && path.is_empty()).then_some(About::Move),
        _ => false,
    };
    // A name that is no space's is refused where the request is answered.
    let name = path.split(['/', '%']).next().filter(|_| is_change)?;
    SpaceName::parse(name).ok().map(About::Space)
}

/// Returns the site that orders a space, if it is another one.
///
/// # Errors
/// Those of the catalog; `site_refused` if the home is no member any more.
pub(crate) async fn home_of(app: &AppState, space: &SpaceName) -> Result<Option<Arc<Member>>> {
    match app.catalog.space(&system_caller(), space).await {
        Ok(space) => {
            // A space that was just handed over to this site is nobody else's.
            let home = space.home.filter(|home| *home != app.site.id);
            Ok(home.map(|home| app.fabric.member(home)).transpose()?)
        }
        // Whoever answers says so.
        Err(error) if matches!(error.code(), ErrorCode::SpaceNotFound | ErrorCode::NotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the position that a request must see.
fn asked_position(headers: &HeaderMap, uri: &Uri) -> Result<Option<Position>> {
    let text = match headers.get(fields::POSITION) {
        Some(field) => Some(Cow::from(field.to_str().unwrap_or_default())),
        None => ticket::position_in(uri),
    };
    let Some(text) = text else { return Ok(None) };
    let position = text.parse().ok();
    position
        .map(Some)
        .ok_or_else(|| ApiError::invalid(format!("cannot read {}: it is no position", fields::POSITION)))
}

/// Waits for this site's follower if a read names a position that it has not reached; tells whom to ask if it does not
/// get there.
async fn must_ask_home(app: &AppState, parts: &Parts) -> Result<Option<Arc<Member>>> {
    match asked_position(&parts.headers, &parts.uri)? {
        Some(position) => Ok(follow::caught_up(&app.fabric, position, CATCH_UP).await?),
        None => Ok(None),
    }
}

/// Sends a request to another site on behalf of its caller, and waits for this site to see what it changed.
///
/// # Errors
/// `site_unavailable` if that site does not answer. What it answers is no error.
pub(crate) async fn to_site(
    app: &AppState,
    session: &Session,
    site: &Member,
    parts: Parts,
    body: Bytes,
) -> Result<Response> {
    let acting = match session.caller.user {
        Some(_) => Acting::User(session.caller.clone()),
        None => Acting::Site,
    };
    let client = app.fabric.client(site.id, &acting)?;
    let mut headers = end_to_end(&parts.headers);
    // What was for this site only.
    for name in [header::AUTHORIZATION, header::COOKIE] {
        headers.remove(name);
    }
    let response = send(&client, site, &parts, headers, Passed::whole(body)).await?;
    if response.status().is_success() && parts.method != Method::GET && parts.method != Method::HEAD {
        let position = response.headers().get(fields::POSITION).and_then(|text| text.to_str().ok());
        if let Some(position) = position.and_then(|text| text.parse().ok()) {
            // It is done in any case; whoever reads with the position of the answer is sent to the home.
            drop(follow::caught_up(&app.fabric, position, CATCH_UP).await);
        }
    }
    Ok(response)
}

/// Passes the request of one site on to another that it cannot reach.
async fn relay(app: &AppState, request: Request) -> Result<Response> {
    let refuse = |detail: &str| ApiError::new(ErrorCode::SiteRefused, detail);
    let Some(PeerKey(key)) = request.extensions().get::<PeerKey>() else {
        return Err(refuse("only members of the fabric are relayed, over a connection of their own"));
    };
    let from = app.fabric.roster().with_key(key).cloned();
    let from = from.ok_or_else(|| refuse("the site on this connection is not a member of the fabric"))?;
    if request.headers().contains_key(fields::VIA) {
        return Err(refuse("the request was relayed once already"));
    }
    let name = request.headers().get(fields::TO).and_then(|name| name.to_str().ok()).unwrap_or_default();
    let target = app.fabric.named(name)?;
    if target.id == app.site.id || target.id == from.id {
        return Err(refuse("a request is not relayed to this site, or back to where it came from"));
    }
    let (parts, body) = request.into_parts();
    let client = app.fabric.passing(target.id)?;
    let mut headers = end_to_end(&parts.headers);
    headers.remove(fields::TO);
    let via = HeaderValue::from_str(&app.site.name)
        .map_err(|error| ApiError::internal("the site's name cannot be sent").with_source(error))?;
    headers.insert(HeaderName::from_static(fields::VIA), via);
    let body = Passed::stream(body.into_data_stream());
    send(&client, &target, &parts, headers, body).await
}

async fn send(
    client: &Client,
    site: &Member,
    parts: &Parts,
    headers: HeaderMap,
    body: Passed,
) -> Result<Response> {
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let answer = client.pass_on(parts.method.clone(), target, headers, body).await.map_err(|error| {
        let detail = format!("the site {} does not answer: {}", site.name, error.detail());
        ApiError::new(ErrorCode::SiteUnavailable, detail).with_source(error)
    })?;
    let status = answer.status();
    let headers = end_to_end(answer.headers());
    let mut response = (status, Body::from_stream(client.passed_back(answer))).into_response();
    *response.headers_mut() = headers;
    Ok(response)
}

/// Returns the fields that are not about one connection (RFC 9110, section 7.6.1).
fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let mut kept = headers.clone();
    let fixed = [
        header::CONNECTION,
        header::HOST,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        header::EXPECT,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
    ];
    for name in fixed.iter().chain(&named) {
        kept.remove(name);
    }
    kept
}

/// Reads a body that is small or none.
async fn read_body(body: Body) -> Result<Bytes> {
    let limit = super::extract::MAX_JSON_BYTES;
    axum::body::to_bytes(body, limit).await.map_err(|error| {
        let detail = format!("cannot read the body, of which at most {limit} bytes are taken");
        ApiError::new(ErrorCode::PayloadTooLarge, detail).with_source(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_names_go_to_the_home_and_bytes_do_not() {
        let about = |method: Method, path: &'static str| match changed(&method, &Uri::from_static(path)) {
            Some(About::Space(space)) => Some(space.to_string()),
            Some(About::Move) => Some("move".to_owned()),
            None => None,
        };
        assert_eq!(about(Method::DELETE, "/v1/entries/climate/a/b?recursive").as_deref(), Some("climate"));
        assert_eq!(about(Method::PUT, "/v1/collections/climate").as_deref(), Some("climate"));
        assert_eq!(about(Method::PUT, "/v1/grants/climate%2Fa").as_deref(), Some("climate"));
        assert_eq!(about(Method::PATCH, "/v1/spaces/climate").as_deref(), Some("climate"));
        assert_eq!(about(Method::POST, "/v1/move").as_deref(), Some("move"));
        for (method, path) in [
            (Method::GET, "/v1/entries/climate/a"),
            (Method::PUT, "/v1/data/climate/a"),
            (Method::POST, "/v1/spaces"),
            (Method::DELETE, "/v1/tokens/climate"),
            (Method::POST, "/v1/peer/changes"),
        ] {
            assert_eq!(about(method, path), None, "{path}");
        }
    }

    #[test]
    fn fields_of_one_connection_stay_behind() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("te", "trailers"),
            ("accept", "*/*"),
            ("host", "a"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let kept = end_to_end(&headers);
        assert_eq!(kept.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }
}
