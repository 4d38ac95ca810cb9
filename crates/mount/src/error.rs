//! What can go wrong with a mount, and what programs are told.

use std::path::PathBuf;

use fuser::Errno;
use percale_core::ErrorCode;

/// Why a mount could not be made or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What the site answered.
    #[error(transparent)]
    Site(#[from] percale_client::Error),
    /// What this host answered.
    #[error("{what}: {source}")]
    Local {
        /// What was attempted, on what.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// This host does not mount or unmount.
    #[error("cannot {what} {}: {source}", at.display())]
    Mount {
        /// What was attempted.
        what: &'static str,
        /// The directory.
        at: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// What was asked for cannot be.
    #[error("{0}")]
    Usage(String),
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn local(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Local { what: what.into(), source }
    }

    /// Returns the code under which `spec/errors.yaml` has it.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Site(error) => error.code(),
            Self::Local { .. } | Self::Mount { .. } => ErrorCode::Internal,
            Self::Usage(_) => ErrorCode::InvalidRequest,
        }
    }
}

/// Returns what a program is told when the site answers an error.
pub fn errno(code: ErrorCode) -> Errno {
    match code {
        ErrorCode::NotFound | ErrorCode::SpaceNotFound => Errno::ENOENT,
        ErrorCode::AlreadyExists => Errno::EEXIST,
        ErrorCode::Forbidden | ErrorCode::Unauthenticated | ErrorCode::TokenExpired => Errno::EACCES,
        ErrorCode::IsCollection => Errno::EISDIR,
        ErrorCode::NotACollection => Errno::ENOTDIR,
        ErrorCode::NotEmpty => Errno::ENOTEMPTY,
        ErrorCode::NoSpace => Errno::ENOSPC,
        ErrorCode::QuotaExceeded => Errno::EDQUOT,
        ErrorCode::ReadOnly => Errno::EROFS,
        ErrorCode::InvalidPath => Errno::EINVAL,
        ErrorCode::PayloadTooLarge => Errno::EFBIG,
        ErrorCode::VersionChanged | ErrorCode::Conflict | ErrorCode::PreconditionFailed => Errno::ESTALE,
        ErrorCode::SiteUnavailable | ErrorCode::Timeout => Errno::EHOSTDOWN,
        ErrorCode::Unsupported => Errno::EOPNOTSUPP,
        _ => Errno::EIO,
    }
}

/// Returns what a program is told of an error of this host's file systems.
pub fn from_rustix(errno: rustix::io::Errno) -> Errno {
    Errno::from_i32(errno.raw_os_error())
}

/// The same for one of the standard library.
pub fn from_io(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_i32)
}
