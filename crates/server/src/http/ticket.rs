//! Tickets: another site sent the client here for bytes (`docs/design/trust.md`, "What is signed").
//!
//! A ticket comes in `Percale-Ticket`, or within the address of content. It takes the place of a sign-in, and is good for
//! content alone. What it lets its user do here is decided here. Its text is not kept, logged or answered.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Uri, header};
use percale_api::fields;
use percale_catalog::OpenVersion;
use percale_core::ids::VersionId;
use percale_core::{ByteRange, ErrorCode, ObjectPath, Timestamp};
use percale_trust::signed::{Clock, Ticket, TicketOp};

use super::auth::{Session, one_field, signed};
use crate::listener::PeerKey;
use crate::{ApiError, AppState, Result};

/// What the addresses of content begin with.
const CONTENT: &str = "/v1/data/";

/// Who asks for content: whoever asks for anything else, or the bearer of a ticket.
#[derive(Debug, Clone)]
pub struct Reading {
    /// The caller. That of a ticket is as the site said that signed it, and is given what is on own stores.
    pub session: Session,
    ticket: Option<Arc<Brought>>,
}

#[derive(Debug)]
struct Brought {
    ticket: Ticket,
    /// When it ends at the latest, by this site's clock.
    ends: Timestamp,
}

impl FromRequestParts<AppState> for Reading {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self> {
        // Sites ask with statements.
        if parts.extensions.get::<PeerKey>().is_none()
            && let Some(text) = text_of(parts).map_err(of_ticket)?
        {
            return of_text(app, &text).map_err(of_ticket);
        }
        let session = Session::from_request_parts(parts, app).await?;
        Ok(Self { session, ticket: None })
    }
}

impl Reading {
    /// Tells whether another site sent the client.
    pub fn is_sent(&self) -> bool {
        self.ticket.is_some()
    }

    /// Checks that a ticket is for an object, and returns the version that is wanted: that of the ticket if none is named.
    ///
    /// # Errors
    /// `ticket_refused`.
    pub fn wanted(&self, path: &ObjectPath, version: Option<VersionId>) -> Result<Option<VersionId>> {
        let Some(brought) = &self.ticket else { return Ok(version) };
        let allowed = brought.ticket.allows(TicketOp::Read, path, version);
        allowed.map_err(|why| refused(why).with_path(path))?;
        Ok(version.or(brought.ticket.version))
    }

    /// Checks that a ticket is for what was found, and for all of these bytes of it.
    ///
    /// # Errors
    /// `ticket_refused`.
    pub fn check(&self, found: &OpenVersion, ranges: &[ByteRange]) -> Result<()> {
        let Some(brought) = &self.ticket else { return Ok(()) };
        let ticket = &brought.ticket;
        let allowed = ticket.allows(TicketOp::Read, &found.path, Some(found.version));
        let beyond = ranges.iter().find(|range| !ticket.covers(**range));
        let allowed = match (allowed, beyond) {
            (Ok(()), _) if ticket.space != found.space => Err("the ticket is for another space".to_owned()),
            (Ok(()), Some(range)) => Err(format!("the ticket is not for the bytes {range}")),
            (allowed, _) => allowed,
        };
        allowed.map_err(|why| refused(why).with_path(&found.path))
    }

    /// Checks once more that the time of a ticket is not over: what comes before a body may take long.
    ///
    /// # Errors
    /// `ticket_expired`.
    pub fn begin_body(&self) -> Result<()> {
        match &self.ticket {
            Some(brought) if Timestamp::now() >= brought.ends => {
                let detail =
                    format!("the ticket expired at {} before the body began", brought.ticket.expires);
                Err(ApiError::new(ErrorCode::TicketExpired, detail))
            }
            _ => Ok(()),
        }
    }

    /// Keeps what is served by a ticket from caches that others use, and its address from other sites.
    pub fn mark(&self, headers: &mut HeaderMap) {
        if self.is_sent() {
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private"));
            headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        }
    }
}

/// Tells whether a request for content brings a ticket, good or not.
pub fn is_brought(headers: &HeaderMap, uri: &Uri) -> bool {
    let is_content = uri.path().starts_with(CONTENT) || uri.path() == "/v1/frames/pull";
    is_content && (headers.contains_key(fields::TICKET) || in_query(uri, "ticket").next().is_some())
}

/// Returns the position that the address of content names.
pub fn position_in(uri: &Uri) -> Option<Cow<'_, str>> {
    in_query(uri, "position").next()
}

/// The values of a parameter in the address of content; nothing in others, which have no ticket.
fn in_query<'a>(uri: &'a Uri, name: &'static str) -> impl Iterator<Item = Cow<'a, str>> {
    let query = uri.query().filter(|_| uri.path().starts_with(CONTENT)).unwrap_or_default();
    form_urlencoded::parse(query.as_bytes()).filter(move |(key, _)| key == name).map(|(_, value)| value)
}

fn text_of(parts: &Parts) -> Result<Option<Cow<'_, str>>> {
    let mut brought = in_query(&parts.uri, "ticket").chain(one_field(parts, fields::TICKET)?.map(Cow::from));
    let first = brought.next();
    match brought.next() {
        Some(_) => Err(refused("there is more than one".to_owned())),
        None => Ok(first),
    }
}

fn of_text(app: &AppState, text: &str) -> Result<Reading> {
    let (signer, (ticket, ends)) = signed(app, text, |signatory, clock: &Clock| {
        let ticket = Ticket::verify(text, signatory, app.site.id, clock)?;
        let ends = ticket.expires.after(clock.allowance());
        Ok((ticket, ends))
    })?;
    let session = Session { caller: ticket.user.clone(), token: None, site: Some(signer), delegation: None };
    Ok(Reading { session, ticket: Some(Arc::new(Brought { ticket, ends })) })
}

fn refused(why: String) -> ApiError {
    of_ticket(ApiError::new(ErrorCode::TicketRefused, why))
}

/// Says of a ticket what was said of something signed.
fn of_ticket(error: ApiError) -> ApiError {
    let code = match error.code() {
        ErrorCode::TokenExpired => ErrorCode::TicketExpired,
        ErrorCode::TokenInvalid => ErrorCode::TicketRefused,
        code => code,
    };
    const WHAT: &str = "cannot use the ticket";
    let detail = error.detail();
    ApiError::new(
        code,
        if detail.starts_with(WHAT) { detail.to_owned() } else { format!("{WHAT}: {detail}") },
    )
}
