//! The one error of this crate, and what a client sees of it.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use percale_api::{Problem, media};
use percale_catalog::ErrorKind as CatalogErrorKind;
use percale_core::access::Denied;
use percale_core::path::PathError;
use percale_core::{ErrorCode, ObjectPath};

use crate::http::observe;

/// What handlers and services return.
pub type Result<T, E = ApiError> = std::result::Result<T, E>;

/// Why something was not done: a code, what was attempted on what, and the cause for the log.
#[derive(Clone)]
pub struct ApiError(Box<Inner>);

#[derive(Clone)]
struct Inner {
    code: ErrorCode,
    detail: String,
    path: Option<String>,
    leads_to: Option<ObjectPath>,
    headers: HeaderMap,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    is_final: bool,
}

impl ApiError {
    /// Makes an error. `detail` says what was attempted on what and why it failed, lower case, without a full stop.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        let (detail, headers) = (detail.into(), HeaderMap::new());
        let (path, leads_to, source) = (None, None, None);
        Self(Box::new(Inner { code, detail, path, leads_to, headers, source, is_final: false }))
    }

    /// Makes the error of a request that cannot be understood.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidRequest, detail)
    }

    /// Makes the error of a case that should have been handled. Clients see `detail`; the cause is for the log.
    pub fn internal(detail: impl Into<String>) -> Self {
        Self::new(ErrorCode::Internal, detail)
    }

    /// Names the path that it is about.
    #[must_use]
    pub fn with_path(mut self, path: impl ToString) -> Self {
        self.0.path = Some(path.to_string());
        self
    }

    /// Returns the path in whose stead one was named that leads over a link.
    pub fn leads_to(&self) -> Option<&ObjectPath> {
        self.0.leads_to.as_ref()
    }

    /// Keeps the cause for the log.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Adds a header to the answer.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers.insert(name, value);
        self
    }

    /// Puts what was attempted before the detail: `cannot do x: <detail>`.
    #[must_use]
    pub fn context(mut self, attempted: impl fmt::Display) -> Self {
        self.0.detail = format!("{attempted}: {}", self.0.detail);
        self
    }

    /// Returns the code.
    pub fn code(&self) -> ErrorCode {
        self.0.code
    }

    /// Returns what was attempted on what and why it failed.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// Says that a repetition does not help, whatever the code says in general.
    #[must_use]
    pub fn permanent(mut self) -> Self {
        self.0.is_final = true;
        self
    }

    /// Tells whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        !self.0.is_final && self.0.code.is_retryable()
    }

    /// Returns what goes to the client, with the identity of the request that is being answered.
    pub fn to_problem(&self) -> Problem {
        let mut problem = Problem::new(self.0.code, self.0.detail.clone());
        problem.retryable = self.is_retryable();
        problem.path.clone_from(&self.0.path);
        problem.leads_to.clone_from(&self.0.leads_to);
        observe::fill(&mut problem);
        problem
    }

    /// Returns the causes, outermost first, for the log.
    pub(crate) fn causes(&self) -> String {
        let mut text = String::new();
        let mut cause: Option<&(dyn StdError + 'static)> = self.0.source.as_deref().map(|source| source as _);
        while let Some(error) = cause {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.detail)
    }
}

impl fmt::Debug for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiError")
            .field("code", &self.0.code)
            .field("detail", &self.0.detail)
            .field("path", &self.0.path)
            .field("source", &self.0.source)
            .finish()
    }
}

impl StdError for ApiError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

/// A problem document. The error rides along for the layer that logs it.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let problem = self.to_problem();
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media::PROBLEM));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, challenge(self.0.code));
        }
        if self.is_retryable() && matches!(status.as_u16(), 429 | 503) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        headers.extend(self.0.headers.clone());
        response.extensions_mut().insert(self);
        response
    }
}

/// RFC 6750, section 3: no error code where no token was sent.
fn challenge(code: ErrorCode) -> HeaderValue {
    match code {
        ErrorCode::Unauthenticated => HeaderValue::from_static("Bearer realm=\"percale\""),
        _ => HeaderValue::from_static("Bearer realm=\"percale\", error=\"invalid_token\""),
    }
}

impl From<percale_catalog::Error> for ApiError {
    fn from(error: percale_catalog::Error) -> Self {
        let new = |detail: String| {
            let mut made = Self::new(error.code(), detail);
            match error.kind() {
                CatalogErrorKind::IsLink { to } => {
                    made.0.leads_to.clone_from(to);
                    made
                }
                CatalogErrorKind::Denied(
                    Denied::NotSignedIn { path, .. }
                    | Denied::Scope { path, .. }
                    | Denied::NoGrant { path, .. },
                ) => made.with_path(path),
                _ => made,
            }
        };
        match error.kind() {
            // The database's own words are for the log: they name tables and hosts.
            CatalogErrorKind::Unavailable => {
                new("the catalog's database does not answer".into()).with_source(error)
            }
            CatalogErrorKind::Corrupt | CatalogErrorKind::Internal => {
                new("the catalog met a case that should not be; its log has the details".into())
                    .with_source(error)
            }
            _ => new(error.to_string()),
        }
    }
}

impl From<percale_store::Error> for ApiError {
    fn from(error: percale_store::Error) -> Self {
        Self::new(error.code(), error.to_string()).with_source(error)
    }
}

impl From<percale_trust::Error> for ApiError {
    fn from(error: percale_trust::Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<percale_federation::Error> for ApiError {
    fn from(error: percale_federation::Error) -> Self {
        let made = Self::new(error.code(), error.to_string());
        let made = if error.is_retryable() { made } else { made.permanent() };
        made.with_source(error)
    }
}

impl From<PathError> for ApiError {
    fn from(error: PathError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// Adds the path to what a call on it returned.
pub trait OnPath<T> {
    /// Converts the error and names the path.
    ///
    /// # Errors
    /// The error, if there was one.
    fn on_path(self, path: &ObjectPath) -> Result<T>;
}

impl<T, E: Into<ApiError>> OnPath<T> for Result<T, E> {
    fn on_path(self, path: &ObjectPath) -> Result<T> {
        self.map_err(|error| error.into().with_path(path))
    }
}
