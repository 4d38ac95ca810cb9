//! Finding entries by their names.

use percale_core::ObjectPath;
use percale_core::access::{Caller, Permission};

use crate::access::enter;
use crate::batch::{Batch, IdCache};
use crate::catalog::Catalog;
use crate::engine::{Query, Tx};
use crate::error::{Error, Result};
use crate::model::{FindOptions, Listed, MAX_LIST, Page};
use crate::rows::entry::{self, ByName};

/// Finding.
impl Catalog {
    /// Finds the entries below a collection whose names match a pattern, in the order of the names' bytes.
    ///
    /// A pattern that begins with a part of the name costs what it finds; another one looks at all names of the space, which takes some
    /// tenths of a second for a million. A page may have fewer entries than the limit although there are more.
    ///
    /// # Errors
    /// As [`Catalog::list`]; `InvalidRequest` for a place to go on from that is none.
    pub async fn find(
        &self,
        caller: &Caller,
        path: &ObjectPath,
        options: FindOptions,
    ) -> Result<Page<Listed>> {
        self.ask(Find { caller: caller.clone(), path: path.clone(), options }).await
    }
}

struct Find {
    caller: Caller,
    path: ObjectPath,
    options: FindOptions,
}

impl Query for Find {
    type Out = Page<Listed>;

    async fn run<T: Tx>(&self, tx: &T) -> Result<Page<Listed>> {
        let Self { caller, path, options } = self;
        let limit = options.limit.clamp(1, MAX_LIST);
        let resolved = enter(tx, caller, Permission::Read, path).await?;
        let target = resolved.target(path)?;
        let (sp, space, position) = (target.sp, resolved.space.space.id, resolved.position());
        let after = options.after.as_deref().map(place).transpose()?;
        let (glob, like) = options.name.of_engines();
        let wanted = ByName { prefix: options.name.prefix(), glob: &glob, like: &like, after };
        let found = entry::by_own_name(tx, sp, &wanted, limit).await?;
        let next = found.last().filter(|_| found.len() == limit);
        let next = next.map(|last| format!("{}/{}", last.id, last.name));
        let mut ids = IdCache::default();
        let mut batch = Batch::new(tx, &mut ids);
        let mut items = Vec::new();
        for row in found {
            if !options.name.is_match(&row.name) {
                continue;
            }
            let at = batch.path_of(sp, row.id).await?;
            if at.is_within(path) && at != *path {
                items.push(Listed { path: at, entry: row.to_entry(space), replicas: Vec::new() });
            }
        }
        Ok(Page { items, next, position: Some(position) })
    }
}

/// Reads where to go on: behind which name, and of that behind which entry.
fn place(after: &str) -> Result<(&str, u64)> {
    let place = after.split_once('/').and_then(|(id, name)| Some((name, id.parse().ok()?)));
    place.ok_or_else(|| Error::invalid("it cannot be gone on from there"))
}
