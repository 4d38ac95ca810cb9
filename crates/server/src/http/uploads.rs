//! Resumable uploads: `/v1/uploads`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use percale_api::uploads::{CommitUpload, Committed, NewUpload, SentGroups, Upload};
use percale_api::{Problem, media};
use percale_core::ErrorCode;
use percale_core::ids::LeaseId;
use percale_mover::{Decoder, Frame};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::Auth;
use super::extract::{Json, Param, body_error, drain, preferred_wait};
use super::put::committed_response;
use crate::upload::Session;
use crate::{ApiError, AppState, Result};

/// The routes of this file.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(open_upload))
        .routes(routes!(get_upload, head_upload, patch_upload, delete_upload))
        .routes(routes!(upload_frames))
        .routes(routes!(recall_groups))
        .routes(routes!(commit_upload))
}

const UPLOAD_OFFSET: HeaderName = HeaderName::from_static("upload-offset");
const UPLOAD_LENGTH: HeaderName = HeaderName::from_static("upload-length");

/// Opens a resumable upload.
///
/// Nothing is visible until it is committed. It ends by itself some time after its last byte.
#[utoipa::path(
    post, path = "/v1/uploads", tag = "uploads", request_body = NewUpload,
    responses(
        (status = 201, description = "the upload", body = Upload),
        (status = "default", description = "a problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn open_upload(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Json(new): Json<NewUpload>,
) -> Result<Response> {
    let condition = condition(new.condition);
    let path = new.path.clone();
    let upload = app.uploads.open(&caller, new, condition).await.map_err(|error| error.with_path(path))?;
    let location = format!("/v1/uploads/{}", upload.id);
    let mut response = (StatusCode::CREATED, Json(upload)).into_response();
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// Returns what has not arrived yet.
#[utoipa::path(
    get, path = "/v1/uploads/{id}", tag = "uploads",
    params(("id" = String, Path, description = "the upload's id")),
    responses(
        (status = 200, description = "the upload", body = Upload),
        (status = "default", description = "a problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn get_upload(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Param(id): Param<LeaseId>,
) -> Result<Response> {
    let session = app.uploads.session(&caller, id).await?;
    Ok(offsets(&session, Json(session.describe()).into_response()))
}

/// Returns how far an upload is that is sent in order: `Upload-Offset` of `Upload-Length`.
#[utoipa::path(
    head, path = "/v1/uploads/{id}", tag = "uploads",
    params(("id" = String, Path, description = "the upload's id")),
    responses(
        (status = 200, description = "how far it is"),
        (status = "default", description = "a problem; HEAD has no body"),
    )
)]
async fn head_upload(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Param(id): Param<LeaseId>,
) -> Result<Response> {
    let session = app.uploads.session(&caller, id).await?;
    Ok(offsets(&session, StatusCode::OK.into_response()))
}

/// Sends the next bytes, beginning at `Upload-Offset`.
///
/// What was cut off within 1 MiB is sent again; the answer says where the upload stands.
#[utoipa::path(
    patch, path = "/v1/uploads/{id}", tag = "uploads",
    params(
        ("id" = String, Path, description = "the upload's id"),
        ("Upload-Offset" = u64, Header, description = "where these bytes begin: where the upload stands"),
    ),
    request_body(content = Vec<u8>, content_type = "application/offset+octet-stream"),
    responses(
        (status = 204, description = "how far it is now"),
        (status = "default", description = "a problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn patch_upload(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Param(id): Param<LeaseId>,
    request: Request,
) -> Result<Response> {
    let offset =
        request.headers().get(&UPLOAD_OFFSET).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let offset = offset.ok_or_else(|| {
        ApiError::invalid("PATCH of an upload needs the field Upload-Offset, a number of bytes")
    })?;
    let session = app.uploads.session(&caller, id).await?;
    let mut body = request.into_body().into_data_stream().map_err(body_error);
    let appended = app.uploads.append(&session, offset, &mut body).await;
    if appended.is_err() {
        drain(body).await;
    }
    // What arrived before the body was cut counts, so it is made to last before the client asks.
    session.mark().await?;
    appended?;
    Ok(offsets(&session, StatusCode::NO_CONTENT.into_response()))
}

/// Sends groups in any order, as frames of item 0. Several such requests may run side by side.
///
/// With `Prefer: wait=SECONDS` they may be here before the upload is opened, if the sender chose its id: it is waited for, 30 s at most. A store that takes bytes in order only refuses such a request with `upload_incomplete`.
#[utoipa::path(
    post, path = "/v1/uploads/{id}/frames", tag = "uploads",
    params(
        ("id" = String, Path, description = "the upload's id"),
        ("Prefer" = Option<String>, Header, description = "`wait=SECONDS`: how long it is waited for until the upload is opened"),
    ),
    request_body(content = Vec<u8>, content_type = "application/vnd.percale.frames"),
    responses(
        (status = 200, description = "what is still missing", body = Upload),
        (status = "default", description = "a problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn upload_frames(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Param(id): Param<LeaseId>,
    request: Request,
) -> Result<Json<Upload>> {
    let is_frames = require_frames(&request);
    let wait = preferred_wait(request.headers());
    let mut body = request.into_body().into_data_stream().map_err(body_error);
    let outcome = async {
        is_frames?;
        let session = app.uploads.session_within(&caller, id, wait).await?;
        if wait > Duration::ZERO && !session.is_positioned() {
            // Who sends before it knows the store may send over several connections, which this one cannot take.
            let detail =
                "these bytes go to a store that takes them in order, over one connection: send them so";
            return Err(ApiError::new(ErrorCode::UploadIncomplete, detail).with_path(session.path()));
        }
        take_frames(&app, &session, &mut body).await?;
        Ok(Json(session.describe()))
    };
    let outcome = outcome.await;
    if outcome.is_err() {
        drain(body).await;
    }
    outcome
}

async fn take_frames<S>(app: &AppState, session: &Arc<Session>, body: &mut S) -> Result<()>
where
    S: Stream<Item = Result<Bytes>> + Unpin + Send,
{
    let mut decoder = Decoder::new();
    while let Some(piece) = body.next().await {
        decoder.feed(piece?);
        app.traffic.note_moving();
        while let Some(frame) = decoder.next().map_err(|error| frame_error(session, &error))? {
            match frame {
                Frame::Data(group) => app.uploads.write(session, group).await?,
                Frame::Item { item: 0, size, .. } if size == session.size() => {}
                Frame::Item { .. } => {
                    let detail =
                        format!("an upload takes one item, of the {} that were announced", session.size());
                    return Err(ApiError::invalid(detail).with_path(session.path()));
                }
                Frame::Error { .. } | Frame::Fail { .. } | Frame::Away { .. } => {
                    let detail = "the sender gave up in the middle of the stream";
                    return Err(ApiError::new(ErrorCode::UploadIncomplete, detail).with_path(session.path()));
                }
                Frame::Done { .. } | Frame::End { .. } => {}
            }
        }
    }
    decoder.finish().map_err(|error| frame_error(session, &error))
}

/// Looks whether groups lie there that were sent before and are missing.
///
/// A server that is killed forgets what it wrote since it last flushed. What it wrote is mostly there: each group is read back, and has
/// arrived if it has the hash that its sender says. Others stay missing.
#[utoipa::path(
    post, path = "/v1/uploads/{id}/groups", tag = "uploads", request_body = SentGroups,
    params(("id" = String, Path, description = "the upload's id")),
    responses(
        (status = 200, description = "what is still missing", body = Upload),
        (status = "default", description = "a problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn recall_groups(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Param(id): Param<LeaseId>,
    Json(sent): Json<SentGroups>,
) -> Result<Json<Upload>> {
    let session = app.uploads.session(&caller, id).await?;
    app.uploads.recall(&session, sent).await?;
    Ok(Json(session.describe()))
}

/// Completes an upload: everything arrived, the digests hold, and the version is published.
///
/// With `Prefer: wait=SECONDS` ([RFC 7240](https://www.rfc-editor.org/rfc/rfc7240), section 4.3) what is still on its way is waited for, 30 s at most. Asked again within 24 hours, because the answer was lost, it gives the same answer.
#[utoipa::path(
    post, path = "/v1/uploads/{id}/commit", tag = "uploads", request_body = CommitUpload,
    params(
        ("id" = String, Path, description = "the upload's id"),
        ("Prefer" = Option<String>, Header, description = "`wait=SECONDS`: how long missing bytes are waited for"),
    ),
    responses(
        (status = 200, description = "a new version of the object", body = Committed),
        (status = 201, description = "a new object", body = Committed),
        (status = "default", description = "a problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn commit_upload(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Param(id): Param<LeaseId>,
    headers: HeaderMap,
    Json(claimed): Json<CommitUpload>,
) -> Result<Response> {
    let done = app.uploads.commit(&caller, id, claimed, preferred_wait(&headers)).await?;
    Ok(committed_response(done.committed, done.size, done.root))
}

/// Gives an upload up.
#[utoipa::path(
    delete, path = "/v1/uploads/{id}", tag = "uploads",
    params(("id" = String, Path, description = "the upload's id")),
    responses(
        (status = 204, description = "it is gone"),
        (status = "default", description = "a problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn delete_upload(
    State(app): State<AppState>,
    Auth(caller): Auth,
    Param(id): Param<LeaseId>,
) -> Result<StatusCode> {
    let session = app.uploads.session(&caller, id).await?;
    app.uploads.abort(&session).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Refuses a body that does not say it is frames.
///
/// # Errors
/// `UnsupportedMediaType`.
pub fn require_frames(request: &Request) -> Result<()> {
    let kind = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if kind == Some(media::FRAMES.as_bytes()) {
        return Ok(());
    }
    Err(ApiError::new(ErrorCode::UnsupportedMediaType, format!("the body must be of type {}", media::FRAMES)))
}

fn frame_error(session: &Session, error: &percale_mover::FrameError) -> ApiError {
    ApiError::new(error.code(), format!("cannot take the frames: {error}")).with_path(session.path())
}

fn offsets(session: &Session, mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(UPLOAD_OFFSET, HeaderValue::from(session.contiguous().0));
    headers.insert(UPLOAD_LENGTH, HeaderValue::from(session.size().0));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Returns what a condition on the wire means to the catalog.
pub fn condition(wire: percale_api::uploads::Condition) -> percale_catalog::Condition {
    use percale_api::uploads::Condition;
    match wire {
        Condition::New => percale_catalog::Condition::New,
        Condition::Match(version) => percale_catalog::Condition::Match(version),
        Condition::Any => percale_catalog::Condition::Any,
    }
}
