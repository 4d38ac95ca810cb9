//! Extractors whose refusals are problems: path, query and JSON body.

use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, RawQuery, Request};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use percale_api::fields;
use percale_core::path::SpaceName;
use percale_core::{ErrorCode, ObjectPath};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{ApiError, AppState, Result};

/// Largest JSON body, in bytes.
pub const MAX_JSON_BYTES: usize = 4 << 20;
/// Longest time that an answer is waited for.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// The path of the namespace behind the route's prefix: `/v1/data/climate/x` is `/climate/x`. `%2F` counts as `/`,
/// since no name has one.
#[derive(Debug, Clone)]
pub struct NamespacePath(pub ObjectPath);

impl<S: Send + Sync> FromRequestParts<S> for NamespacePath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        // An absent parameter is the route without a path: the root.
        let text = match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(text)) => text,
            Err(PathRejection::FailedToDeserializePathParams(error))
                if matches!(
                    error.kind(),
                    axum::extract::path::ErrorKind::WrongNumberOfParameters { got: 0, .. }
                ) =>
            {
                String::new()
            }
            Err(PathRejection::MissingPathParams(_)) => String::new(),
            Err(error) => return Err(bad_path(&error)),
        };
        let path = ObjectPath::parse(&format!("/{text}")).map_err(|error| {
            let shown: String = text.chars().take(120).collect();
            ApiError::new(error.code(), format!("cannot use the path '/{shown}': {error}"))
        })?;
        Ok(Self(path))
    }
}

/// One parameter of the route, such as an id.
#[derive(Debug, Clone, Copy)]
pub struct Param<T>(pub T);

impl<S: Send + Sync, T: std::str::FromStr<Err: std::fmt::Display>> FromRequestParts<S> for Param<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let Path(text) =
            Path::<String>::from_request_parts(parts, state).await.map_err(|error| bad_path(&error))?;
        let value = text.parse().map_err(|error| {
            let shown: String = text.chars().take(80).collect();
            ApiError::invalid(format!("cannot read '{shown}' in the address: {error}"))
        })?;
        Ok(Self(value))
    }
}

/// The name of a space in the route. A text that cannot be one is the name of no space.
#[derive(Debug, Clone)]
pub struct SpaceParam(pub SpaceName);

impl<S: Send + Sync> FromRequestParts<S> for SpaceParam {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let Path(text) =
            Path::<String>::from_request_parts(parts, state).await.map_err(|error| bad_path(&error))?;
        let name = SpaceName::parse(&text)?;
        Ok(Self(name))
    }
}

fn bad_path(error: &PathRejection) -> ApiError {
    ApiError::new(ErrorCode::InvalidPath, format!("cannot read the address: {}", lower(&error.body_text())))
}

/// The query. Unknown parameters are passed over only if the type says so.
#[derive(Debug, Clone, Copy)]
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        axum::extract::Query::<T>::from_request_parts(parts, state)
            .await
            .map(|axum::extract::Query(query)| Self(query))
            .map_err(|error| {
                ApiError::invalid(format!("cannot read the query: {}", lower(&error.body_text())))
            })
    }
}

/// The query's text, for making the address of the next page.
pub fn raw_query(query: RawQuery) -> String {
    query.0.unwrap_or_default()
}

/// A JSON body of at most [`MAX_JSON_BYTES`], or an answer in JSON.
#[derive(Debug, Clone, Copy)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<AppState> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &AppState) -> Result<Self> {
        let bytes = read_json(request).await?;
        parse_json(&bytes).map(Self)
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
            Err(error) => {
                ApiError::internal("cannot write the answer as JSON").with_source(error).into_response()
            }
        }
    }
}

/// Reads a body that is said to be JSON.
///
/// # Errors
/// `unsupported_media_type`, `payload_too_large`, `request_timeout`, or `invalid_request` for a body that was cut.
pub async fn read_json(request: Request) -> Result<Bytes> {
    let kind = request.headers().get(CONTENT_TYPE).map(|value| value.to_str().unwrap_or_default().to_owned());
    let essence = kind.as_deref().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let is_json = essence.eq_ignore_ascii_case("application/json")
        || (essence.len() > 5 && essence[essence.len().saturating_sub(5)..].eq_ignore_ascii_case("+json"));
    if !is_json {
        let sent =
            kind.map_or("none".to_owned(), |kind| format!("'{}'", kind.chars().take(80).collect::<String>()));
        return Err(ApiError::new(
            ErrorCode::UnsupportedMediaType,
            format!("the body must be of type application/json, its Content-Type is {sent}"),
        ));
    }
    let mut body = request.into_body().into_data_stream().map_err(body_error);
    let mut bytes = BytesMut::new();
    while let Some(piece) = body.next().await {
        bytes.extend_from_slice(&piece?);
        if bytes.len() > MAX_JSON_BYTES {
            drain(body).await;
            let detail = format!("the body is larger than {MAX_JSON_BYTES} bytes");
            return Err(ApiError::new(ErrorCode::PayloadTooLarge, detail));
        }
    }
    Ok(bytes.freeze())
}

/// Parses JSON, naming the field that is wrong.
///
/// # Errors
/// `invalid_request`.
pub fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| {
        let shown: String = error.to_string().chars().take(400).collect();
        ApiError::invalid(format!("cannot read the JSON body: {}", lower(&shown)))
    })
}

/// Bytes of a refused body that are still read, and for how long. Most clients read an answer only after they have sent
/// everything, and would see a broken connection instead of the reason.
const DRAIN_BYTES: usize = 32 << 20;
const DRAIN_WITHIN: Duration = Duration::from_secs(5);

/// Reads the rest of a body whose request was refused, within bounds.
pub async fn drain<S>(mut body: S)
where
    S: Stream<Item = Result<Bytes>> + Unpin,
{
    let mut left = DRAIN_BYTES;
    let reading = async {
        while let Some(Ok(piece)) = body.next().await {
            left = left.saturating_sub(piece.len());
            if left == 0 {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(DRAIN_WITHIN, reading).await;
}

/// Says why a body could not be read to its end.
pub fn body_error(error: impl Into<axum::BoxError>) -> ApiError {
    let error = error.into();
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&*error);
    while let Some(error) = cause {
        if error.is::<tower_http::timeout::TimeoutError>() {
            return ApiError::new(ErrorCode::RequestTimeout, "the body stood still for too long");
        }
        cause = error.source();
    }
    ApiError::invalid(format!("cannot read the body to its end: {error}"))
}

fn lower(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => String::new(),
    }
}

/// Returns what `Prefer: wait=SECONDS` says; other preferences are not ours and are passed over.
pub(super) fn preferred_wait(headers: &HeaderMap) -> Duration {
    let values = headers.get_all(fields::PREFER).iter().filter_map(|value| value.to_str().ok());
    let mut preferences = values.flat_map(|value| value.split([',', ';'])).map(str::trim);
    let wait = preferences.find_map(|preference| preference.strip_prefix("wait=")?.parse().ok());
    wait.map_or(Duration::ZERO, Duration::from_secs).min(MAX_WAIT)
}
