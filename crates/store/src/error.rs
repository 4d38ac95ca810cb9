//! What can go wrong in a store.

use std::fmt;

use percale_core::ErrorCode;

use crate::{KeyError, StoreKey};

/// The outcome of a store's operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. Callers decide by this and by [`RetryClass`], never by text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Nothing has that key or token.
    NotFound,
    /// The key is taken.
    AlreadyExists,
    /// The storage refuses access, or the key leads out of the store.
    Denied,
    /// The storage is full, or the quota of its account is used up.
    NoSpace,
    /// The file is no longer the one that was named, or changed while it was read.
    Changed,
    /// The storage returned or kept bytes that are not those it was given.
    Integrity,
    /// The store cannot do this; [`crate::Capabilities`] said so.
    Unsupported,
    /// A key that this store cannot have.
    InvalidKey,
    /// An argument outside its limits.
    InvalidInput,
    /// A staged file does not have all the bytes that were announced.
    Incomplete,
    /// The storage does not answer, or reports a fault of its own.
    Unavailable,
    /// The storage did not answer in time; whether the work was done is not known.
    TimedOut,
    /// The storage asks to slow down.
    RateLimited,
    /// A file is where a collection is needed.
    NotACollection,
    /// A collection is where a file is needed.
    IsACollection,
    /// The collection has entries.
    NotEmpty,
    /// Anything else.
    Other,
}

impl ErrorKind {
    /// Tells whether it says, of a key that was looked for, that nothing has it: it may be below a file.
    pub const fn is_absent(self) -> bool {
        matches!(self, Self::NotFound | Self::NotACollection)
    }

    /// Tells whether it says, of a key that something was to get, that another file is there, or above it.
    pub const fn is_taken(self) -> bool {
        matches!(self, Self::AlreadyExists | Self::NotACollection)
    }

    /// Returns the words used in messages and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not found",
            Self::AlreadyExists => "already exists",
            Self::Denied => "access denied",
            Self::NoSpace => "no space left",
            Self::Changed => "changed",
            Self::Integrity => "damaged",
            Self::Unsupported => "not supported by this store",
            Self::InvalidKey => "invalid key",
            Self::InvalidInput => "invalid argument",
            Self::Incomplete => "incomplete",
            Self::Unavailable => "storage unavailable",
            Self::TimedOut => "no answer in time",
            Self::RateLimited => "too many requests",
            Self::NotACollection => "not a collection",
            Self::IsACollection => "is a collection",
            Self::NotEmpty => "not empty",
            Self::Other => "failed",
        }
    }
}

/// Whether the same operation may succeed later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RetryClass {
    /// It will fail again until somebody changes something.
    Permanent,
    /// It may succeed if repeated now.
    Temporary,
    /// It was repeated often enough; outer loops shall not multiply the attempts.
    Exhausted,
}

/// What was attempted; each is named after the operation of [`crate::Store`] or [`crate::Stage`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are those of the operations")]
pub enum Operation {
    Open,
    Stat,
    List,
    Read,
    ReadSmall,
    Stage,
    StageSmall,
    Write,
    ReadStaged,
    ReadBack,
    Sync,
    Marker,
    Finish,
    Publish,
    Discard,
    Staged,
    Delete,
    Mkdir,
    Rename,
    Clone,
    Checksum,
    Usage,
}

impl Operation {
    /// Returns the word used in messages and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Stat => "stat",
            Self::List => "list",
            Self::Read => "read",
            Self::ReadSmall => "read_small",
            Self::Stage => "stage",
            Self::StageSmall => "stage_small",
            Self::Write => "write",
            Self::ReadStaged => "read_staged",
            Self::ReadBack => "read_back",
            Self::Sync => "sync",
            Self::Marker => "marker",
            Self::Finish => "finish",
            Self::Publish => "publish",
            Self::Discard => "discard",
            Self::Staged => "staged",
            Self::Delete => "delete",
            Self::Mkdir => "mkdir",
            Self::Rename => "rename",
            Self::Clone => "clone",
            Self::Checksum => "checksum",
            Self::Usage => "usage",
        }
    }
}

type Source = Box<dyn std::error::Error + Send + Sync>;

/// A failed operation: what was attempted on what, why it failed, and whether repeating it may help.
///
/// Its text has no source in it; print the chain.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    retry: RetryClass,
    operation: Operation,
    store: Option<String>,
    subject: Option<String>,
    detail: Option<String>,
    source: Option<Source>,
}

impl Error {
    /// Makes an error. Unavailable, timed out, rate limited and changed are temporary, the others permanent.
    pub fn new(kind: ErrorKind, operation: Operation) -> Self {
        let retry = match kind {
            ErrorKind::Unavailable | ErrorKind::TimedOut | ErrorKind::RateLimited => RetryClass::Temporary,
            _ => RetryClass::Permanent,
        };
        Self(Box::new(Inner {
            kind,
            retry,
            operation,
            store: None,
            subject: None,
            detail: None,
            source: None,
        }))
    }

    /// Makes the error of an operation that a store does not have.
    pub fn unsupported(operation: Operation, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, operation).detail(detail)
    }

    /// More bytes of a file than are read at once.
    pub(crate) fn too_much(key: &StoreKey, bytes: u64, most: u64) -> Self {
        let detail = format!("{bytes} bytes, at most {most} are read at once");
        Self::new(ErrorKind::InvalidInput, Operation::Read).on(key).detail(detail)
    }

    /// Names the key, token or path that it was about.
    #[must_use]
    pub fn on(mut self, subject: impl fmt::Display) -> Self {
        self.0.subject = Some(subject.to_string());
        self
    }

    /// Names the store.
    #[must_use]
    pub fn of(mut self, store: &str) -> Self {
        self.0.store = Some(store.to_owned());
        self
    }

    /// Says more about the cause.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.0.detail = Some(detail.into());
        self
    }

    /// Keeps the error behind it.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Source>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Sets whether repeating may help.
    #[must_use]
    pub fn retry(mut self, retry: RetryClass) -> Self {
        self.0.retry = retry;
        self
    }

    /// Returns what went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns whether repeating may help.
    pub fn retry_class(&self) -> RetryClass {
        self.0.retry
    }

    /// Tells whether the same operation may succeed if repeated now.
    pub fn is_temporary(&self) -> bool {
        self.0.retry == RetryClass::Temporary
    }

    /// Returns what was attempted.
    pub fn operation(&self) -> Operation {
        self.0.operation
    }

    /// Returns the key, token or path that it was about.
    pub fn subject(&self) -> Option<&str> {
        self.0.subject.as_deref()
    }

    /// Returns the code under which users see this error.
    pub fn code(&self) -> ErrorCode {
        match self.0.kind {
            ErrorKind::NotFound => ErrorCode::NotFound,
            ErrorKind::AlreadyExists => ErrorCode::AlreadyExists,
            ErrorKind::Denied => ErrorCode::StoreDenied,
            ErrorKind::NoSpace => ErrorCode::NoSpace,
            ErrorKind::Changed => ErrorCode::VersionChanged,
            ErrorKind::Integrity => ErrorCode::Integrity,
            ErrorKind::Unsupported => ErrorCode::Unsupported,
            ErrorKind::InvalidKey => ErrorCode::InvalidPath,
            ErrorKind::InvalidInput => ErrorCode::InvalidRequest,
            ErrorKind::Incomplete => ErrorCode::UploadIncomplete,
            ErrorKind::Unavailable => ErrorCode::StoreUnavailable,
            ErrorKind::TimedOut => ErrorCode::Timeout,
            ErrorKind::RateLimited => ErrorCode::RateLimited,
            ErrorKind::NotACollection => ErrorCode::NotACollection,
            ErrorKind::IsACollection => ErrorCode::IsCollection,
            ErrorKind::NotEmpty => ErrorCode::NotEmpty,
            ErrorKind::Other => ErrorCode::Internal,
        }
    }

    /// Makes an error from one of the operating system.
    pub fn from_io(operation: Operation, source: std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let kind = match source.kind() {
            Io::NotFound => ErrorKind::NotFound,
            Io::AlreadyExists => ErrorKind::AlreadyExists,
            Io::PermissionDenied | Io::ReadOnlyFilesystem => ErrorKind::Denied,
            Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge => ErrorKind::NoSpace,
            Io::NotADirectory => ErrorKind::NotACollection,
            Io::IsADirectory => ErrorKind::IsACollection,
            Io::DirectoryNotEmpty => ErrorKind::NotEmpty,
            Io::InvalidFilename => ErrorKind::InvalidKey,
            Io::TimedOut => ErrorKind::TimedOut,
            Io::Unsupported => ErrorKind::Unsupported,
            Io::StaleNetworkFileHandle
            | Io::HostUnreachable
            | Io::NetworkUnreachable
            | Io::NetworkDown
            | Io::ConnectionReset
            | Io::ConnectionRefused
            | Io::ConnectionAborted
            | Io::NotConnected
            | Io::BrokenPipe
            | Io::ResourceBusy
            | Io::Interrupted
            | Io::WouldBlock => ErrorKind::Unavailable,
            _ => match source.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
                Some(rustix::io::Errno::IO | rustix::io::Errno::NODEV | rustix::io::Errno::NXIO) => {
                    ErrorKind::Unavailable
                }
                Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE | rustix::io::Errno::NOMEM) => {
                    ErrorKind::Unavailable
                }
                // A symbolic link where none is followed.
                Some(rustix::io::Errno::LOOP) => ErrorKind::Denied,
                _ => ErrorKind::Other,
            },
        };
        Self::new(kind, operation).caused_by(source)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        write!(f, "cannot {}", inner.operation.as_str().replace('_', " "))?;
        if let Some(subject) = &inner.subject {
            write!(f, " '{subject}'")?;
        }
        if let Some(store) = &inner.store {
            write!(f, " at store {store}")?;
        }
        write!(f, ": {}", inner.kind.as_str())?;
        match &inner.detail {
            Some(detail) => write!(f, " ({detail})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl From<KeyError> for Error {
    fn from(source: KeyError) -> Self {
        Self::new(ErrorKind::InvalidKey, Operation::Open).detail(source.to_string()).caused_by(source)
    }
}

/// Refuses keys of the stage area, which only the operations on tokens may touch.
pub fn refuse_stage(operation: Operation, key: &StoreKey) -> Result<()> {
    if key.is_stage() {
        return Err(Error::new(ErrorKind::InvalidKey, operation)
            .on(key)
            .detail("the stage area is reached by tokens only"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn says_what_was_attempted_on_what_and_keeps_the_cause() {
        let io = std::io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
        let error = Error::from_io(Operation::Write, io).on("a/b");
        assert_eq!(error.to_string(), "cannot write 'a/b': no space left");
        let error = error.of("disk");
        assert_eq!(error.to_string(), "cannot write 'a/b' at store disk: no space left");
        assert_eq!((error.kind(), error.code()), (ErrorKind::NoSpace, ErrorCode::NoSpace));
        assert!(!error.is_temporary() && error.source().is_some());
    }

    #[test]
    fn faults_of_the_storage_are_temporary_and_full_quotas_are_full_disks() {
        let of = |errno: rustix::io::Errno| {
            Error::from_io(Operation::Read, std::io::Error::from_raw_os_error(errno.raw_os_error()))
        };
        assert!(of(rustix::io::Errno::IO).is_temporary());
        assert!(of(rustix::io::Errno::STALE).is_temporary());
        assert_eq!(of(rustix::io::Errno::DQUOT).kind(), ErrorKind::NoSpace);
        assert_eq!(of(rustix::io::Errno::LOOP).kind(), ErrorKind::Denied);
    }
}
