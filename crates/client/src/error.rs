//! The error of this crate.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use percale_api::Problem;
use percale_core::{ErrorCode, ObjectPath};

type Source = Box<dyn std::error::Error + Send + Sync>;

/// What kind of fault it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The server answered with a problem.
    Problem,
    /// The server could not be reached, or the connection broke.
    Connection,
    /// No answer within the limit.
    Timeout,
    /// What answered does not speak as a Percale server does.
    Protocol,
    /// A local file could not be read or written.
    Local,
    /// Bytes do not have the hash they should have.
    Integrity,
    /// A local file changed while it was read.
    SourceChanged,
    /// The caller asked for something that cannot be, such as a token over a plain connection.
    Usage,
}

/// Whether the same call may be made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// A retry cannot help.
    Permanent,
    /// A retry may help.
    Temporary,
    /// A retry might have helped, but it was retried for as long as is sensible. Outer loops do not retry again.
    Exhausted,
}

/// A call or transfer that failed. Its text says what was attempted, on what, and why it failed.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    code: ErrorCode,
    retry: Retry,
    /// Completes "cannot …".
    operation: String,
    detail: String,
    problem: Option<Problem>,
    trace_id: Option<String>,
    retry_after: Option<Duration>,
    source: Option<Source>,
}

impl Error {
    /// `operation` completes "cannot …", such as "list /climate".
    pub(crate) fn new(
        kind: ErrorKind,
        code: ErrorCode,
        operation: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        let retry = match kind {
            ErrorKind::Connection | ErrorKind::Timeout => Retry::Temporary,
            _ => Retry::Permanent,
        };
        Self(Box::new(Inner {
            kind,
            code,
            retry,
            operation: operation.into(),
            detail: detail.into(),
            problem: None,
            trace_id: None,
            retry_after: None,
            source: None,
        }))
    }

    pub(crate) fn problem(operation: impl Into<String>, problem: Problem) -> Self {
        let code = problem.error_code();
        let mut error = Self::new(ErrorKind::Problem, code, operation, problem.detail.clone());
        if is_worth_repeating(code) {
            error.0.retry = Retry::Temporary;
        }
        error.0.trace_id.clone_from(&problem.trace_id);
        error.0.problem = Some(problem);
        error
    }

    pub(crate) fn local(operation: impl Into<String>, path: &Path, source: io::Error) -> Self {
        let code = match source.kind() {
            io::ErrorKind::NotFound => ErrorCode::NotFound,
            io::ErrorKind::PermissionDenied => ErrorCode::StoreDenied,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorCode::NoSpace,
            io::ErrorKind::AlreadyExists => ErrorCode::AlreadyExists,
            io::ErrorKind::IsADirectory => ErrorCode::IsCollection,
            io::ErrorKind::NotADirectory => ErrorCode::NotACollection,
            io::ErrorKind::ReadOnlyFilesystem => ErrorCode::ReadOnly,
            _ => ErrorCode::Internal,
        };
        let detail = format!("{}: {source}", path.display());
        Self::new(ErrorKind::Local, code, operation, detail).with_source(source)
    }

    /// `reqwest` puts the URL into its texts; it may hold a ticket, so only the site's address is named.
    pub(crate) fn transport(operation: impl Into<String>, error: reqwest::Error) -> Self {
        let address = error.url().map(|url| url.origin().ascii_serialization());
        let error = error.without_url();
        let (kind, code) = if error.is_timeout() {
            (ErrorKind::Timeout, ErrorCode::Timeout)
        } else if error.is_builder() {
            (ErrorKind::Usage, ErrorCode::InvalidRequest)
        } else {
            // Also what it calls a fault of decoding: no body is decoded there, so the connection broke within it.
            (ErrorKind::Connection, ErrorCode::SiteUnavailable)
        };
        let mut detail = match address {
            Some(address) if error.is_connect() => format!("no connection to {address}"),
            Some(address) => format!("{address}: {error}"),
            None => error.to_string(),
        };
        let mut cause: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(&error);
        while let Some(inner) = cause {
            let text = inner.to_string();
            // What a library calls its step says nothing beside what follows.
            if !detail.contains(&text) && text != "client error (Connect)" {
                detail = format!("{detail}: {text}");
            }
            cause = inner.source();
        }
        Self::new(kind, code, operation, detail).with_source(error)
    }

    pub(crate) fn with_source(mut self, source: impl Into<Source>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    pub(crate) fn with_trace(mut self, trace_id: &str) -> Self {
        self.0.trace_id.get_or_insert_with(|| trace_id.to_owned());
        self
    }

    pub(crate) fn with_retry(mut self, retry: Retry) -> Self {
        self.0.retry = retry;
        self
    }

    pub(crate) fn with_retry_after(mut self, wait: Option<Duration>) -> Self {
        self.0.retry_after = wait;
        self
    }

    /// Tells whether no connection came about, so that the request surely did not arrive.
    pub(crate) fn is_unreached(&self) -> bool {
        let source =
            std::error::Error::source(self).and_then(|source| source.downcast_ref::<reqwest::Error>());
        source.is_some_and(reqwest::Error::is_connect)
    }

    /// Returns what kind of fault it is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the code under which users see this error.
    pub fn code(&self) -> ErrorCode {
        self.0.code
    }

    /// Tells whether the same call may be made again.
    pub fn retry(&self) -> Retry {
        self.0.retry
    }

    /// Returns what was attempted; completes "cannot …".
    pub fn operation(&self) -> &str {
        &self.0.operation
    }

    /// Returns why it failed.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// Returns the server's problem, if it was the server that refused.
    pub fn as_problem(&self) -> Option<&Problem> {
        self.0.problem.as_ref()
    }

    /// Returns the path in whose stead one was named that leads over a link.
    pub fn leads_to(&self) -> Option<&ObjectPath> {
        self.as_problem()?.leads_to.as_ref()
    }

    /// Returns what finds the request in the server's log.
    pub fn trace_id(&self) -> Option<&str> {
        self.0.trace_id.as_deref()
    }

    /// Returns how long the server asked to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Returns what to do next.
    pub fn hint(&self) -> &str {
        self.0.problem.as_ref().map_or_else(|| self.0.code.remedy(), |problem| &problem.hint)
    }
}

/// Codes that a client repeats by itself: the service is at fault for the moment. `conflict` and `version_changed` may
/// be retried too, but by whoever knows what the new state means.
fn is_worth_repeating(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::RateLimited
            | ErrorCode::RequestTimeout
            | ErrorCode::Timeout
            | ErrorCode::StoreUnavailable
            | ErrorCode::CatalogUnavailable
            | ErrorCode::SiteUnavailable
    )
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attempted = format!("cannot {}: ", self.0.operation);
        // A site says it as well where others than this client may ask.
        write!(f, "{attempted}{}", self.0.detail.strip_prefix(&*attempted).unwrap_or(&self.0.detail))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
