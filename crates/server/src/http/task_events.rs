//! A task, live: server-sent events (WHATWG HTML, section 9.2) until it ends.
//!
//! `happened` tells what became of it, as the catalog keeps it, each once and in order; `progress` is the task as it is, which
//! changes about once a second while it runs. An event's id says what was seen up to there: the number of what happened last,
//! and when the task had changed last.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use http::{HeaderName, HeaderValue, StatusCode, header};
use percale_api::tasks::{TaskEvent, TaskUpdate};
use percale_core::access::Caller;
use percale_core::ids::TaskId;
use percale_core::{ErrorCode, Timestamp};
use tokio::time::Instant;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::Session;
use super::events::HEARTBEAT;
use super::extract::Param;
use super::tasks::{describe, elsewhere};
use crate::{ApiError, AppState, Result};

/// Between two looks at the task, a tenth of the time that it was watched, within these. Any server of the site may work on
/// it, and records once a second how far it is.
pub(super) const FIRST_LOOK: Duration = Duration::from_millis(50);
pub(super) const LAST_LOOK: Duration = Duration::from_secs(1);

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(get_task_events))
}

/// Follows a task of this site or another one until it ends. `happened` events carry a `TaskEvent`, `progress` events the task;
/// the last one is the task as it ended.
///
/// `Last-Event-ID` goes on behind that event; where nothing can come any more, the answer is 204.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/events", tag = "tasks",
    params(
        ("id" = String, Path, description = "the task's id"),
        ("Last-Event-ID" = Option<String>, Header, description = "the id of the last event that was seen"),
    ),
    responses(
        (status = 200, description = "one event for each change", body = TaskUpdate, content_type = "text/event-stream"),
        (status = 204, description = "the task has ended, and that was seen"),
    )
)]
async fn get_task_events(
    State(app): State<AppState>,
    session: Session,
    Param(id): Param<TaskId>,
    request: Request,
) -> Result<Response> {
    let task = match app.catalog.task(&session.caller, id).await {
        Ok(task) => task,
        Err(error) => return elsewhere(&app, &session, id, request, error).await,
    };
    let seen = match request.headers().get("last-event-id").filter(|value| !value.is_empty()) {
        Some(value) => value.to_str().unwrap_or_default().parse()?,
        None => Seen::default(),
    };
    if task.state.is_final() && seen.changed == task.changed.as_micros() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let follower = Follower {
        expires: session.token.map(|token| token.expires),
        caller: session.caller,
        app,
        id,
        seen,
        waiting: VecDeque::new(),
        ended: false,
    };
    let events = stream::unfold(follower, |mut follower| async move {
        let event = follower.next().await?;
        Some((Ok::<_, std::convert::Infallible>(event), follower))
    });
    let keep_alive = KeepAlive::new().interval(HEARTBEAT).text("still here");
    let headers = [
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    Ok((headers, Sse::new(events).keep_alive(keep_alive)).into_response())
}

/// What a client has seen of a task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    /// The number of what happened last.
    happened: u64,
    /// When the task had changed last, in microseconds since 1970.
    changed: i64,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.happened, self.changed)
    }
}

impl FromStr for Seen {
    type Err = ApiError;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || ApiError::invalid("Last-Event-ID is not the id of an event of a task");
        let (happened, changed) = text.split_once('.').ok_or_else(wrong)?;
        let happened = happened.parse().map_err(|_| wrong())?;
        Ok(Self { happened, changed: changed.parse().map_err(|_| wrong())? })
    }
}

struct Follower {
    app: AppState,
    caller: Caller,
    expires: Option<Timestamp>,
    id: TaskId,
    seen: Seen,
    waiting: VecDeque<SseEvent>,
    ended: bool,
}

impl Follower {
    /// Waits for the next event. After an error there is one that tells of it, and then the end.
    async fn next(&mut self) -> Option<SseEvent> {
        let began = Instant::now();
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            let looked = match self.expires.is_some_and(|expires| expires <= Timestamp::now()) {
                true => Err(ApiError::new(ErrorCode::TokenExpired, "the token expired")),
                false => self.look().await,
            };
            if let Err(error) = looked {
                self.ended = true;
                let data = serde_json::to_string(&error.to_problem()).unwrap_or_default();
                return Some(SseEvent::default().event("problem").data(data));
            }
            if !self.waiting.is_empty() {
                continue;
            }
            let pause = (began.elapsed() / 10).clamp(FIRST_LOOK, LAST_LOOK);
            tokio::select! {
                () = self.app.stopping.cancelled() => return None,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Looks for what is new.
    async fn look(&mut self) -> Result<()> {
        let task = self.app.catalog.task(&self.caller, self.id).await?;
        if task.changed.as_micros() == self.seen.changed {
            return Ok(());
        }
        for event in self.app.catalog.task_events(&self.caller, self.id, self.seen.happened).await? {
            self.seen.happened = event.number;
            let event =
                TaskEvent { number: event.number, at: event.at, kind: event.kind, detail: event.detail };
            self.push("happened", &event);
        }
        self.seen.changed = task.changed.as_micros();
        self.ended = task.state.is_final();
        self.push("progress", &describe(task)?);
        Ok(())
    }

    fn push(&mut self, name: &str, body: &impl serde::Serialize) {
        let data = serde_json::to_string(body).unwrap_or_default();
        self.waiting.push_back(SseEvent::default().id(self.seen.to_string()).event(name).data(data));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_what_was_seen() {
        let seen = Seen { happened: 3, changed: -5 };
        assert_eq!(seen.to_string().parse::<Seen>().unwrap(), seen);
        for text in ["", "3", "x.5", "3.", "3.5.7", "-1.5"] {
            assert_eq!(text.parse::<Seen>().unwrap_err().code(), ErrorCode::InvalidRequest, "{text}");
        }
    }
}
