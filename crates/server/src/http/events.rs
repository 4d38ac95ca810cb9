//! The journal of a space, live: server-sent events (WHATWG HTML, section 9.2).
//!
//! Each record is an event whose id is its position. `Last-Event-ID` goes on behind one; a position that cannot be gone
//! on from (an older term, or records that are not kept any more) is a problem, and its holder begins from a listing.

use std::collections::VecDeque;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use percale_api::tasks::Event;
use percale_catalog::Record;
use percale_core::access::{Caller, Permission};
use percale_core::ids::SpaceId;
use percale_core::path::SpaceName;
use percale_core::{ErrorCode, ObjectPath, Position, Timestamp};
use serde::Deserialize;
use tokio::sync::watch;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::Session;
use super::extract::Query;
use crate::authorize::authorize;
use crate::{ApiError, AppState, Result};

/// An idle stream says so that often, so that proxies keep it open.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(15);
/// Records that are asked for at once.
const BATCH: usize = 256;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(get_events))
}

/// Whose journal, and from where.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventQuery {
    /// The space.
    #[param(value_type = String)]
    space: SpaceName,
    /// A position to go on behind, for clients that cannot send `Last-Event-ID`; `<space id>.<term>.0` is the beginning.
    /// Absent: what happens from now on.
    #[param(value_type = Option<String>)]
    after: Option<Position>,
}

/// Sends the records of a space's journal as they are made. Needs `read` on the space.
///
/// `Last-Event-ID` sends what came behind that record first.
#[utoipa::path(
    get, path = "/v1/events", tag = "events",
    params(EventQuery, ("Last-Event-ID" = Option<String>, Header, description = "the last position that was seen")),
    responses((status = 200, description = "one event for each record", body = Event, content_type = "text/event-stream"))
)]
async fn get_events(
    State(app): State<AppState>,
    session: Session,
    Query(query): Query<EventQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let root = ObjectPath::of_space(&query.space);
    authorize(&app.catalog, &session.caller, &root, Permission::Read).await?;
    let space = app.catalog.space(&session.caller, &query.space).await?;
    let after = match headers.get("last-event-id").filter(|value| !value.is_empty()) {
        Some(value) => {
            let text = value.to_str().unwrap_or_default();
            text.parse().map_err(|error| ApiError::invalid(format!("cannot read Last-Event-ID: {error}")))?
        }
        None => query.after.unwrap_or(space.position),
    };
    if after.space != space.id {
        let detail = format!("the position {after} is of another space than {}", query.space);
        return Err(ApiError::invalid(detail).with_path(root));
    }
    let mut reader = JournalReader {
        expires: session.token.map(|token| token.expires),
        caller: session.caller,
        space: space.id,
        name: query.space,
        after,
        changes: app.catalog.watch(),
        waiting: VecDeque::new(),
        ended: false,
        app,
    };
    // Asked once before the answer begins, so that a position that cannot be gone on from is a problem.
    reader.read().await.map_err(|error| error.with_path(&root))?;
    let events = stream::unfold(reader, |mut reader| async move {
        let event = reader.next().await?;
        Some((Ok::<_, std::convert::Infallible>(event), reader))
    });
    let keep_alive = KeepAlive::new().interval(HEARTBEAT).text("still here");
    let headers = [
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    Ok((headers, Sse::new(events).keep_alive(keep_alive)).into_response())
}

/// Follows the journal of one space for one caller.
struct JournalReader {
    app: AppState,
    caller: Caller,
    expires: Option<Timestamp>,
    space: SpaceId,
    name: SpaceName,
    after: Position,
    changes: watch::Receiver<u64>,
    waiting: VecDeque<Record>,
    ended: bool,
}

impl JournalReader {
    /// Asks for what is new. The catalog decides each time whether the caller may still read.
    async fn read(&mut self) -> Result<()> {
        self.changes.mark_unchanged();
        let records = self.app.catalog.journal(&self.caller, self.space, Some(self.after), BATCH).await?;
        if let Some(last) = records.last() {
            self.after = last.position;
        }
        self.waiting.extend(records);
        Ok(())
    }

    /// Waits for the next event. After an error there is one that tells of it, and then the end.
    async fn next(&mut self) -> Option<SseEvent> {
        loop {
            if self.ended {
                return None;
            }
            if let Some(record) = self.waiting.pop_front() {
                return Some(self.event(record));
            }
            if self.expires.is_some_and(|expires| expires <= Timestamp::now()) {
                return Some(self.end(&ApiError::new(ErrorCode::TokenExpired, "the token expired")));
            }
            if let Err(error) = self.read().await {
                return Some(self.end(&error));
            }
            if !self.waiting.is_empty() {
                continue;
            }
            tokio::select! {
                () = self.app.stopping.cancelled() => return None,
                changed = self.changes.changed() => {
                    if changed.is_err() {
                        return None;
                    }
                }
                // Also to notice that the token expired or the grant is gone.
                () = tokio::time::sleep(HEARTBEAT) => {}
            }
        }
    }

    fn event(&self, record: Record) -> SseEvent {
        let id = record.position.to_string();
        let event = Event {
            position: id.clone(),
            space: self.name.to_string(),
            at: record.at,
            actor: record.actor,
            kind: record.kind,
            v: u16::try_from(record.v).unwrap_or(u16::MAX),
            body: record.body,
        };
        let data = serde_json::to_string(&event).unwrap_or_default();
        SseEvent::default().id(id).event(event.kind).data(data)
    }

    fn end(&mut self, error: &ApiError) -> SseEvent {
        self.ended = true;
        let data = serde_json::to_string(&error.to_problem()).unwrap_or_default();
        SseEvent::default().event("problem").data(data)
    }
}
