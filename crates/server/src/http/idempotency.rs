//! `Idempotency-Key`: a repeated request has one effect and one answer, for 24 hours.

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use percale_api::fields;
use percale_catalog::{Answer, AnswerKey, Remembered};
use percale_core::ErrorCode;
use percale_core::access::{Caller, Subject};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::extract::Json;
use crate::{ApiError, AppState, Result};

/// Longest key, in bytes.
const MAX_KEY_BYTES: usize = 255;

/// Says in an answer that it is that of an earlier request.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// What a request made.
pub struct Made<T> {
    /// The status.
    pub status: StatusCode,
    /// The answer.
    pub body: T,
}

/// Reads the key of a request.
///
/// # Errors
/// `invalid_request`: more than one, empty, longer than 255 bytes, or other characters than visible ASCII.
pub fn key(headers: &HeaderMap) -> Result<Option<String>> {
    let mut values = headers.get_all(fields::IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    if values.next().is_some() || !(1..=MAX_KEY_BYTES).contains(&text.len()) {
        return Err(ApiError::invalid(format!(
            "Idempotency-Key must be one text of 1 to {MAX_KEY_BYTES} visible ASCII characters"
        )));
    }
    Ok(Some(text.to_owned()))
}

/// Says whose key it is. Keys of different users, and of different kinds of request, are apart.
pub fn answer_key(caller: &Caller, key: String) -> Result<AnswerKey> {
    let user = caller.user.clone().ok_or_else(|| {
        ApiError::new(ErrorCode::Unauthenticated, "a request with an Idempotency-Key needs a sign-in")
    })?;
    Ok(AnswerKey { caller: Subject::User(user).to_string(), key })
}

/// Does what a request asks for, once for each key. `request` is its address and its body, which must be the same again.
///
/// The work goes on if the client goes away, as that of any request that changes something, so that the repetition finds its answer. A
/// failure is not kept: the same key may try again.
///
/// # Errors
/// Those of the work; `idempotency_mismatch`, and `conflict` while the first request is still in progress.
pub async fn once<T, F>(
    app: &AppState,
    caller: &Caller,
    headers: &HeaderMap,
    request: (&'static str, &impl Serialize),
    work: F,
) -> Result<(Made<T>, HeaderMap)>
where
    T: Serialize + DeserializeOwned,
    F: Future<Output = Result<Made<T>>>,
{
    let Some(key) = key(headers)? else {
        return Ok((work.await?, HeaderMap::new()));
    };
    let key = answer_key(caller, key)?;
    let unreadable = |error| ApiError::internal("cannot write the request as JSON").with_source(error);
    let request = serde_json::to_vec(&request).map_err(unreadable)?;
    match app.catalog.remember(&key, *blake3::hash(&request).as_bytes()).await? {
        Remembered::First => {}
        Remembered::Same(answer) => {
            let unreadable = |error| ApiError::internal("cannot read a kept answer").with_source(error);
            let body = serde_json::from_str(&answer.body).map_err(unreadable)?;
            let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
            let replayed = HeaderMap::from_iter([(REPLAYED, HeaderValue::from_static("true"))]);
            return Ok((Made { status, body }, replayed));
        }
        Remembered::InProgress => {
            return Err(ApiError::new(
                ErrorCode::Conflict,
                "a request with this idempotency key is still in progress; ask again later",
            ));
        }
        Remembered::Mismatch => {
            return Err(ApiError::new(
                ErrorCode::IdempotencyMismatch,
                "this idempotency key was used for another request",
            ));
        }
    }
    let outcome = work.await;
    let kept = match &outcome {
        Ok(made) => {
            let body = serde_json::to_string(&made.body).unwrap_or_default();
            app.catalog.answer(&key, Answer { status: made.status.as_u16(), body }).await
        }
        Err(_) => app.catalog.forget(&key).await,
    };
    if let Err(error) = kept {
        tracing::warn!(%error, "cannot keep the answer for an idempotency key; a repetition may be refused for a while");
    }
    Ok((outcome?, HeaderMap::new()))
}

impl<T: Serialize> IntoResponse for Made<T> {
    fn into_response(self) -> Response {
        (self.status, Json(self.body)).into_response()
    }
}
