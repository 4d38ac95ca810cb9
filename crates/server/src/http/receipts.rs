//! What a task has brought, signed with the site's key: one line for each copy, in constant memory.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream;
use http::{HeaderValue, header};
use percale_api::receipt::{End, FORM, Header, Item, Line, MEDIA_TYPE, Site};
use percale_catalog::{Task, TaskCopies, Verified};
use percale_core::access::{Caller, Subject};
use percale_core::ids::{SiteId, TaskId};
use percale_core::tree::TreeHasher;
use percale_core::{ErrorCode, Timestamp};
use percale_trust::ReceiptSeal;
use serde::Serialize;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::Session;
use super::extract::Param;
use super::tasks::elsewhere;
use crate::tasks::Stored;
use crate::{ApiError, AppState, Result};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(get_receipt))
}

/// Returns the receipt of a task of this site or another one that has ended and brings bytes: `replicate`, `copy`, `sync` and
/// `empty`. It has JSON lines: first what the task was, then each copy, then the BLAKE3 of all lines before, signed with the
/// key of the site where the task ran.
///
/// An answer that ends without that last line was cut.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/receipt", tag = "tasks",
    params(("id" = String, Path, description = "the task's id")),
    responses((status = 200, description = "the receipt", body = Line, content_type = "application/jsonl"))
)]
async fn get_receipt(
    State(app): State<AppState>,
    session: Session,
    Param(id): Param<TaskId>,
    request: Request,
) -> Result<Response> {
    let task = match app.catalog.task(&session.caller, id).await {
        Ok(task) => task,
        Err(error) => return elsewhere(&app, &session, id, request, error).await,
    };
    let stored = Stored::read(&task.spec)?;
    if !stored.brings_bytes() {
        let detail = format!("a task of the kind {} brings no bytes, so it has no receipt", stored.kind());
        return Err(ApiError::new(ErrorCode::Unsupported, detail));
    }
    if !task.state.is_final() {
        let detail = format!("task {id} is {}; it has a receipt once it has ended", task.state);
        return Err(ApiError::new(ErrorCode::Conflict, detail));
    }
    let sums = app.catalog.task_copy_sums(&session.caller, id).await?;
    let events = app.catalog.task_events(&session.caller, id, 0).await?;
    let started = events.iter().find(|event| event.kind == "claimed").map(|event| event.at);
    let mut writer = Writer {
        caller: session.caller,
        hasher: TreeHasher::new(),
        lines: 0,
        after: 0,
        has_ended: false,
        sums,
        task,
        app,
    };
    let first = writer.header(stored, started)?;
    let body = stream::try_unfold((Some(first), writer), |(first, mut writer)| async move {
        let piece = match first {
            Some(first) => Some(first),
            None => writer.next().await?,
        };
        Ok::<_, ApiError>(piece.map(|piece| (piece, (None, writer))))
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((headers, Body::from_stream(body)).into_response())
}

/// Writes a receipt, some lines at a time.
struct Writer {
    app: AppState,
    caller: Caller,
    task: Task,
    sums: TaskCopies,
    hasher: TreeHasher,
    lines: u64,
    /// The number of the last copy that was written.
    after: u64,
    has_ended: bool,
}

impl Writer {
    fn header(&mut self, stored: Stored, started: Option<Timestamp>) -> Result<Bytes> {
        let task = &self.task;
        let owner = task.caller.user.clone().map(|user| Subject::User(user).to_string());
        let header = Header {
            percale_receipt: FORM,
            task: task.id,
            spec: stored.spec,
            label: stored.label,
            owner: owner.unwrap_or_else(|| "anyone".to_owned()),
            state: task.state,
            site: self.site(self.app.site.id),
            sources: self.sums.sources.iter().map(|id| self.site(*id)).collect(),
            submitted: task.created,
            started,
            ended: task.changed,
            items_done: task.progress.items_done,
            items_failed: task.progress.items_failed,
            listed: self.sums.count,
            listed_bytes: self.sums.bytes,
        };
        let mut out = Vec::new();
        self.line(&mut out, &header)?;
        Ok(out.into())
    }

    /// Returns the next lines, or nothing behind the last one.
    async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.has_ended {
            return Ok(None);
        }
        let mut out = Vec::new();
        match self.app.catalog.task_copies(&self.caller, self.task.id, self.after).await? {
            Some((last, copies)) => {
                for copy in copies {
                    self.after += 1;
                    let verified = match copy.verified {
                        Verified::Frames => "frames",
                        Verified::Medium => "frames+medium",
                        Verified::Found => "found",
                    };
                    let item = Item {
                        n: self.after,
                        path: copy.path,
                        version: copy.version,
                        size: copy.size,
                        blake3: copy.root,
                        sources: copy.sources.iter().map(|id| self.site(*id).name).collect(),
                        store: copy.store,
                        verified: verified.to_owned(),
                        at: Timestamp::from_micros(copy.at_us),
                    };
                    self.line(&mut out, &item)?;
                }
                if self.after != last {
                    let detail = "what the task has brought is not all in the catalog";
                    return Err(ApiError::new(ErrorCode::Integrity, detail));
                }
            }
            None => {
                self.has_ended = true;
                // Somebody may have tried it again meanwhile: the first line would be wrong then.
                let now = self.app.catalog.task(&self.caller, self.task.id).await?;
                if now.changed != self.task.changed || self.after != self.sums.count {
                    let detail = "the task was tried again meanwhile; ask once it has ended";
                    return Err(ApiError::new(ErrorCode::Conflict, detail));
                }
                self.end(&mut out)?;
            }
        }
        Ok(Some(out.into()))
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let digest = std::mem::take(&mut self.hasher).finish().root();
        let seal = ReceiptSeal {
            site: self.app.site.id,
            task: self.task.id,
            lines: self.lines,
            digest,
            signed: Timestamp::now(),
        };
        let signature = seal
            .sign(&self.app.fabric.key().key)
            .map_err(|error| ApiError::internal("cannot sign a receipt").with_source(error))?;
        let end = Line::End(End { lines: self.lines, blake3: digest, signature });
        self.line(out, &end)
    }

    fn line(&mut self, out: &mut Vec<u8>, line: &impl Serialize) -> Result<()> {
        let from = out.len();
        serde_json::to_writer(&mut *out, line)
            .map_err(|error| ApiError::internal("cannot write a receipt").with_source(error))?;
        out.push(b'\n');
        self.hasher.update(out.get(from..).unwrap_or_default());
        self.lines += 1;
        Ok(())
    }

    fn site(&self, id: SiteId) -> Site {
        let name = match id == self.app.site.id {
            true => Some(self.app.site.name.to_string()),
            false => self.app.fabric.roster().known(id).map(|member| member.name.clone()),
        };
        Site { name: name.unwrap_or_else(|| id.to_string()), id }
    }
}
