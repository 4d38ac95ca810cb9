//! The one error type of the catalog.

use std::fmt;
use std::sync::Arc;

use percale_core::access::Denied;
use percale_core::ids::{SiteId, VersionId};
use percale_core::{ErrorCode, ObjectPath};

/// What the catalog's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, for deciding by.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Nothing of that name or id, as far as the caller may know.
    NotFound,
    /// No space of that name or id.
    SpaceNotFound,
    /// The name is taken.
    AlreadyExists {
        /// The current version, if an object is there.
        version: Option<VersionId>,
    },
    /// The collection, space or store still holds something.
    NotEmpty,
    /// A collection where an object is needed.
    IsCollection,
    /// An object where a collection is needed.
    NotACollection,
    /// A link on the way, or where what it leads to is needed.
    IsLink {
        /// Where the path leads by it, if that is a path of the fabric.
        to: Option<ObjectPath>,
    },
    /// Somebody else changed it first.
    Conflict {
        /// The version that is current now, if an object is there.
        version: Option<VersionId>,
    },
    /// It is not in the state that was made a condition.
    PreconditionFailed {
        /// The version that is current now, if an object is there.
        version: Option<VersionId>,
    },
    /// No grant, or a scope too small.
    Denied(Denied),
    /// The space or store takes no writes.
    ReadOnly,
    /// Another site decides about the space or owns the store.
    Foreign {
        /// That site.
        home: SiteId,
    },
    /// A site asks for what only another one may ask for.
    NotAllowed,
    /// What another site sent does not agree with the rows that are here: they cannot be trusted.
    DoesNotFit,
    /// The lease is gone, lapsed, or another holder has it.
    LeaseExpired,
    /// A parameter is outside its limits.
    InvalidRequest,
    /// The database cannot be reached or is overloaded; the request was not carried out.
    Unavailable,
    /// The database has no room left.
    NoSpace,
    /// The space would have more bytes than it may.
    QuotaExceeded,
    /// A stored row or archive cannot be what this program wrote.
    Corrupt,
    /// Cannot be done here.
    Unsupported,
    /// The configuration cannot be used.
    InvalidConfiguration,
    /// A fault of the program.
    Internal,
}

/// Whether a repetition can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The same request fails again.
    Permanent,
    /// The same request may succeed later.
    Temporary,
    /// It was already repeated for as long as the configuration allows; it may still succeed later.
    Exhausted,
}

/// What a database engine reported, so that a batch knows whether to begin again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Lost a race that a repetition decides: deadlock, serialisation failure, or what was looked at has changed.
    Race,
    /// Met a row with the same key, which a repetition sees.
    Unique,
    /// The connection is gone and the transaction with it.
    Connection,
    /// No room is left.
    Full,
    /// A statement was ended since its time was over, or by who looks after the database.
    Late,
    /// Any other error of the database: the transaction is over.
    Statement,
}

/// An error of the catalog.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    message: Box<str>,
    fault: Option<Fault>,
    exhausted: bool,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// Makes an error. `message` says what was attempted on what, in lower case and without a full stop.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message: String = message.into();
        Self { kind, message: message.into_boxed_str(), fault: None, exhausted: false, source: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidRequest, message)
    }

    /// Ends the transaction, since it may be found after something was written.
    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message).with_fault(Fault::Statement)
    }

    /// Ends the transaction, as [`Error::corrupt`].
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message).with_fault(Fault::Statement)
    }

    /// Ends the transaction, as [`Error::corrupt`].
    pub(crate) fn does_not_fit(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::DoesNotFit, message).with_fault(Fault::Statement)
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    pub(crate) fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    pub(crate) fn with_fault(mut self, fault: Fault) -> Self {
        self.fault = Some(fault);
        self
    }

    pub(crate) fn exhausted(mut self) -> Self {
        self.exhausted = true;
        self
    }

    /// What the engine reported, if the error is one of the database and ends the transaction.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Returns what went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Returns whether a repetition can help.
    pub fn retry(&self) -> Retry {
        match self.kind {
            _ if self.exhausted => Retry::Exhausted,
            ErrorKind::Unavailable | ErrorKind::Conflict { .. } | ErrorKind::Foreign { .. } => {
                Retry::Temporary
            }
            _ => Retry::Permanent,
        }
    }

    /// Returns the code under which users see this error.
    ///
    /// A denial for a path that the caller may not even read has the code of a path that does not exist.
    pub fn code(&self) -> ErrorCode {
        match &self.kind {
            ErrorKind::NotFound => ErrorCode::NotFound,
            ErrorKind::SpaceNotFound => ErrorCode::SpaceNotFound,
            ErrorKind::AlreadyExists { .. } => ErrorCode::AlreadyExists,
            ErrorKind::NotEmpty => ErrorCode::NotEmpty,
            ErrorKind::IsCollection => ErrorCode::IsCollection,
            ErrorKind::NotACollection => ErrorCode::NotACollection,
            ErrorKind::IsLink { .. } => ErrorCode::IsLink,
            ErrorKind::Conflict { .. } => ErrorCode::Conflict,
            ErrorKind::PreconditionFailed { .. } => ErrorCode::PreconditionFailed,
            ErrorKind::Denied(Denied::NotSignedIn { .. }) => ErrorCode::Unauthenticated,
            ErrorKind::Denied(Denied::NoGrant { may_read: false, .. }) => ErrorCode::NotFound,
            ErrorKind::Denied(_) => ErrorCode::Forbidden,
            ErrorKind::ReadOnly => ErrorCode::ReadOnly,
            ErrorKind::Foreign { .. } => ErrorCode::NotHome,
            ErrorKind::NotAllowed => ErrorCode::Forbidden,
            ErrorKind::DoesNotFit => ErrorCode::Integrity,
            ErrorKind::LeaseExpired => ErrorCode::LeaseExpired,
            ErrorKind::InvalidRequest => ErrorCode::InvalidRequest,
            ErrorKind::Unavailable => ErrorCode::CatalogUnavailable,
            ErrorKind::NoSpace => ErrorCode::NoSpace,
            ErrorKind::QuotaExceeded => ErrorCode::QuotaExceeded,
            ErrorKind::Corrupt => ErrorCode::Integrity,
            ErrorKind::Unsupported => ErrorCode::Unsupported,
            ErrorKind::InvalidConfiguration => ErrorCode::InvalidConfiguration,
            ErrorKind::Internal => ErrorCode::Internal,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.source {
            // Drivers print their own causes in `Debug` only; a reader of a log line needs one level.
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.kind)
            .field("message", &self.message)
            .field("source", &self.source)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as &(dyn std::error::Error + 'static))
    }
}

impl From<Denied> for Error {
    fn from(denied: Denied) -> Self {
        // The message of a denial that hides the path is that of a missing path: both must read alike.
        let message = match &denied {
            Denied::NoGrant { path, may_read: false, .. } => missing(path),
            denied => denied.to_string(),
        };
        Self::new(ErrorKind::Denied(denied), message)
    }
}

/// The words for a path where nothing is, or nothing that the caller may know of.
pub(crate) fn missing(path: &ObjectPath) -> String {
    format!("nothing at {path}, or you may not read it")
}
