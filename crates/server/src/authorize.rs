//! Asks early whether a write will be allowed, before its bytes are taken. The answer that counts is given again in the
//! transaction that makes the version.

use percale_catalog::Catalog;
use percale_core::access::{Caller, Permission};
use percale_core::{ErrorCode, ObjectPath};

use crate::{ApiError, Result};

/// Fails unless the caller has the permission on a path, or, where nothing is yet, on the collection that would hold it.
///
/// # Errors
/// What `docs/design/rest.md` says under "Not found or not allowed".
pub async fn authorize(
    catalog: &Catalog,
    caller: &Caller,
    path: &ObjectPath,
    permission: Permission,
) -> Result<()> {
    let has =
        catalog.permission(caller, path).await.map_err(|error| ApiError::from(error).with_path(path))?;
    let (code, detail) = match has {
        Some(has) if has >= permission => return Ok(()),
        Some(has) => {
            (ErrorCode::Forbidden, format!("{permission} on {path} is needed, the grants give {has}"))
        }
        None if caller.user.is_none() => {
            (ErrorCode::Unauthenticated, format!("{permission} on {path} needs a sign-in"))
        }
        None => (ErrorCode::NotFound, format!("{path} does not exist, or may not be seen")),
    };
    Err(ApiError::new(code, detail).with_path(path))
}
