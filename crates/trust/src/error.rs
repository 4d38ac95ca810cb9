//! The error of this crate. Refused tokens have their own, [`crate::TokenError`], since they are no fault of the site.

use std::fmt;
use std::io;
use std::path::Path;

use percale_core::ErrorCode;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// What kind of fault it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A file could not be read or written.
    Io,
    /// The disk is full.
    NoSpace,
    /// A secret file may be read by others.
    Exposed,
    /// A file or sealed value is not in the form that it should have.
    Malformed,
    /// A file or sealed value has a form that this release does not know.
    UnknownFormat,
    /// A sealed value was sealed with another key or for another purpose, or was altered.
    NotAuthentic,
    /// The request asks for something that may not be, such as a token for another issuer's user.
    InvalidRequest,
    /// The cryptographic library refused.
    Crypto,
}

/// Something that could not be done with a key, a certificate or a sealed value.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    /// What was attempted, on what, and why it failed; lower case, without secrets.
    message: String,
    source: Option<Source>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(crate) fn with_source(mut self, source: impl Into<Source>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// `operation` is such as "cannot read the site key".
    pub(crate) fn io(operation: &str, path: &Path, source: io::Error) -> Self {
        let kind = match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
            _ => ErrorKind::Io,
        };
        Self::new(kind, format!("{operation} at {}", path.display())).with_source(source)
    }

    /// Returns what kind of fault it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the code under which users see this error.
    pub fn code(&self) -> ErrorCode {
        match self.kind {
            ErrorKind::NoSpace => ErrorCode::NoSpace,
            ErrorKind::Io | ErrorKind::Exposed | ErrorKind::Malformed | ErrorKind::UnknownFormat => {
                ErrorCode::InvalidConfiguration
            }
            ErrorKind::NotAuthentic => ErrorCode::Integrity,
            ErrorKind::InvalidRequest => ErrorCode::InvalidRequest,
            ErrorKind::Crypto => ErrorCode::Internal,
        }
    }

    /// Tells whether the same request may succeed later without anybody changing it.
    pub fn is_retryable(&self) -> bool {
        self.code().is_retryable()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
