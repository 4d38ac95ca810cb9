//! Errors of OpenDAL as those of a store.

use opendal::ErrorKind as Opendal;
use percale_store::{Error, ErrorKind, Operation, RetryClass};

pub(super) fn from_opendal(operation: Operation, error: opendal::Error) -> Error {
    let kind = match error.kind() {
        Opendal::NotFound => ErrorKind::NotFound,
        Opendal::PermissionDenied => ErrorKind::Denied,
        Opendal::AlreadyExists => ErrorKind::AlreadyExists,
        Opendal::RateLimited => ErrorKind::RateLimited,
        Opendal::IsADirectory => ErrorKind::IsACollection,
        Opendal::NotADirectory => ErrorKind::NotACollection,
        Opendal::ConfigInvalid => ErrorKind::InvalidInput,
        Opendal::Unsupported => ErrorKind::Unsupported,
        Opendal::RangeNotSatisfied => ErrorKind::Changed,
        Opendal::ConditionNotMatch if operation == Operation::Publish => ErrorKind::AlreadyExists,
        Opendal::ConditionNotMatch => ErrorKind::Changed,
        _ => ErrorKind::Unavailable,
    };
    let retry = if error.is_temporary() {
        RetryClass::Temporary
    } else if error.is_persistent() {
        RetryClass::Exhausted
    } else {
        RetryClass::Permanent
    };
    Error::new(kind, operation).retry(retry).caused_by(error)
}

/// An error of a stream, which has one of OpenDAL inside.
pub(super) fn from_io(operation: Operation, error: std::io::Error) -> Error {
    match error.downcast::<opendal::Error>() {
        Ok(inner) => from_opendal(operation, inner),
        Err(error) => Error::from_io(operation, error),
    }
}

pub(super) fn unsupported(operation: Operation, detail: &str) -> Error {
    Error::unsupported(operation, detail)
}
