//! Grants.

use percale_core::access::{Caller, Permission, Subject};
use percale_core::ids::EntryId;
use percale_core::{ObjectPath, Position};

use crate::access::{enter, resolve};
use crate::batch::{Batch, Mark, PathLock, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Query, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::Grant;
use crate::record::{GrantItem, Items, kind};
use crate::rows::grant::{self, GrantRow};
use crate::rows::publish::actor;

/// Grants. Each call needs `manage` on the path; one's own are told by [`Catalog::permission`].
impl Catalog {
    /// Gives a permission on a path and what is below it, in place of what the subject had there.
    pub async fn set_grant(
        &self,
        caller: &Caller,
        path: &ObjectPath,
        subject: Subject,
        permission: Permission,
    ) -> Result<Position> {
        let (caller, path) = (caller.clone(), path.clone());
        self.change(SetGrant { caller, path, subject, permission: Some(permission) }).await
    }

    /// Takes back what was given on exactly this path.
    ///
    /// # Errors
    /// `NotFound` if nothing was.
    pub async fn remove_grant(
        &self,
        caller: &Caller,
        path: &ObjectPath,
        subject: &Subject,
    ) -> Result<Position> {
        let (caller, path, subject) = (caller.clone(), path.clone(), subject.clone());
        self.change(SetGrant { caller, path, subject, permission: None }).await
    }

    /// Returns the grants on a path and those it inherits, the highest collection first.
    pub async fn grants(&self, caller: &Caller, path: &ObjectPath) -> Result<Vec<Grant>> {
        self.ask(ListGrants { caller: caller.clone(), path: path.clone() }).await
    }

    /// Returns the highest permission that the caller has on a path, whether or not anything is there.
    pub async fn permission(&self, caller: &Caller, path: &ObjectPath) -> Result<Option<Permission>> {
        self.ask(HasPermission { caller: caller.clone(), path: path.clone() }).await
    }
}

struct SetGrant {
    caller: Caller,
    path: ObjectPath,
    subject: Subject,
    permission: Option<Permission>,
}

impl Change for SetGrant {
    type Draft = Mark;
    type Out = Position;
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Mark> {
        let Self { caller, path, subject, permission } = self;
        // The entry is locked for changing, so that it cannot be removed and leave a grant behind.
        let walk = batch.enter(caller, Permission::Manage, path, PathLock::CHANGE).await?;
        let target = walk.existing(path)?;
        let (sp, entry) = (target.sp, target.id);
        match permission {
            Some(permission) => {
                let (subject, permission) = (subject.clone(), *permission);
                grant::set(batch.tx, &GrantRow { sp, entry, subject, permission }).await?;
            }
            None => {
                if grant::remove(batch.tx, sp, entry, subject).await? == 0 {
                    return Err(Error::new(
                        ErrorKind::NotFound,
                        format!("nothing was granted to {subject} on {path}"),
                    ));
                }
            }
        }
        let item = GrantItem { entry: EntryId(entry), subject: subject.clone(), permission: *permission };
        batch.record(sp, &actor(caller), kind::GRANTS_CHANGED, &Items { items: vec![item] })
    }

    fn finish(self, mark: Mark, written: &Written) -> Position {
        written.position(mark)
    }
}

struct ListGrants {
    caller: Caller,
    path: ObjectPath,
}

impl Query for ListGrants {
    type Out = Vec<Grant>;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<Grant>> {
        let Self { caller, path } = self;
        let resolved = enter(tx, caller, Permission::Manage, path).await?;
        let target = resolved.target(path)?;
        let mut at = path.clone();
        let mut paths = vec![at.clone()];
        while let Some(parent) = at.parent().filter(|parent| !parent.is_root()) {
            paths.push(parent.clone());
            at = parent;
        }
        paths.reverse();
        let mut grants = Vec::new();
        for (depth, subject, permission) in &resolved.grants {
            let (Some(entry), Some(path)) = (resolved.chain.get(*depth), paths.get(*depth)) else { continue };
            grants.push(Grant {
                path: path.clone(),
                entry: EntryId(entry.id),
                subject: subject.clone(),
                permission: *permission,
                inherited: entry.id != target.id,
            });
        }
        Ok(grants)
    }
}

struct HasPermission {
    caller: Caller,
    path: ObjectPath,
}

impl Query for HasPermission {
    type Out = Option<Permission>;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Option<Permission>> {
        let Self { caller, path } = self;
        Ok(resolve(tx, path).await?.and_then(|resolved| resolved.permission(caller, path)))
    }
}
