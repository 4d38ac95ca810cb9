//! What a caller may: asked early, before the bytes of a write are taken (the answer that counts is given again in the
//! transaction that makes the version), and cut down for a task that acts in the caller's name.

use percale_catalog::Catalog;
use percale_core::access::{Caller, Permission, Scope};
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

/// Returns a caller who may do no more than `most` at and below a path: what a task on that path is given of its user.
///
/// # Errors
/// `Forbidden` if the caller's token allows nothing there.
pub fn limited(caller: &Caller, path: &ObjectPath, most: Permission) -> Result<Caller> {
    let scopes: Vec<Scope> = match caller.is_admin() || caller.scopes.is_empty() {
        true => vec![Scope::Path(most, path.clone())],
        false => caller.scopes.iter().filter_map(|scope| within(scope, path, most)).collect(),
    };
    if scopes.is_empty() {
        let detail = format!("the scopes of the token allow nothing on {path}");
        return Err(ApiError::new(ErrorCode::Forbidden, detail).with_path(path));
    }
    Ok(Caller { scopes, ..caller.clone() })
}

fn within(scope: &Scope, path: &ObjectPath, most: Permission) -> Option<Scope> {
    match scope {
        Scope::Path(given, root) if path.is_within(root) => Some(Scope::Path(most.min(*given), path.clone())),
        Scope::Path(given, root) if root.is_within(path) => Some(Scope::Path(most.min(*given), root.clone())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use percale_core::access::Identity;

    #[test]
    fn a_task_is_given_no_more_than_its_path() {
        let limit = |scopes: &[&str]| {
            let scopes = scopes.iter().map(|scope| scope.parse().unwrap()).collect();
            let caller = Caller { scopes, ..Caller::user(Identity::local("alice")) };
            let limited = limited(&caller, &"/s/a".parse().unwrap(), Permission::Write)?;
            Ok::<_, ApiError>(limited.scopes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(limit(&[]).unwrap(), "write:/s/a");
        assert_eq!(limit(&["admin"]).unwrap(), "write:/s/a");
        assert_eq!(limit(&["manage:/s"]).unwrap(), "write:/s/a");
        assert_eq!(limit(&["read:/s", "write:/s/a/b"]).unwrap(), "read:/s/a write:/s/a/b");
        assert_eq!(limit(&["write:/s/b", "read:/t"]).unwrap_err().code(), ErrorCode::Forbidden);
    }
}
