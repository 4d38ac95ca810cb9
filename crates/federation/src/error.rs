//! The error of this crate.

use std::fmt;

use percale_core::ErrorCode;

/// What the calls of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something between sites was not done.
#[derive(Debug)]
pub struct Error {
    code: ErrorCode,
    detail: String,
    is_retryable: bool,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// Makes an error; `detail` says what was attempted on what and why it failed.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), is_retryable: code.is_retryable(), source: None }
    }

    pub(crate) fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// Returns the code under which users see it.
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// Tells whether asking again may help.
    pub fn is_retryable(&self) -> bool {
        self.is_retryable
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl From<percale_client::Error> for Error {
    fn from(error: percale_client::Error) -> Self {
        let is_retryable = error.retry() != percale_client::Retry::Permanent;
        Self { code: error.code(), detail: error.to_string(), is_retryable, source: Some(Box::new(error)) }
    }
}

impl From<percale_catalog::Error> for Error {
    fn from(error: percale_catalog::Error) -> Self {
        Self::new(error.code(), error.to_string()).with_source(error)
    }
}

impl From<percale_trust::Error> for Error {
    fn from(error: percale_trust::Error) -> Self {
        Self::new(error.code(), error.to_string()).with_source(error)
    }
}
