//! Finding entries by their names.
//!
//! The index has the names of a whole space, of which the caller may read no more than what is below the collection that is searched. Then
//! nothing of an answer depends on what is beside it: a page ends at an entry that is in it, however many others were met before.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use percale_core::access::{Caller, Permission};
use percale_core::{ObjectPath, Position};

use crate::access::enter;
use crate::batch::{Batch, IdCache};
use crate::catalog::Catalog;
use crate::engine::{Query, Tx};
use crate::error::{Error, Result};
use crate::model::{FindOptions, Listed, MAX_LIST, Page};
use crate::rows::Lock;
use crate::rows::entry::{self, ByName};

/// How many times more names are looked at together than before, where they were beside the collection.
const GROWTH: usize = 4;
/// How long is looked for more, where something was found.
const PATIENCE: Duration = Duration::from_millis(300);
/// And how long for the first of a page.
const MOST_PATIENCE: Duration = Duration::from_secs(20);

/// Finding.
impl Catalog {
    /// Finds the entries below a collection whose names match a pattern, in the order of the names' bytes.
    ///
    /// A pattern that begins with a part of the name costs what it finds; another one looks at all names of the space, which takes about
    /// 0.1 s for a million. A page may have fewer entries than the limit although there are more.
    ///
    /// # Errors
    /// As [`Catalog::list`]; `InvalidRequest` for a place to go on from that is none, and, for who may not read all of the space, where nothing
    /// was found below the collection within 20 s among the names beside it.
    pub async fn find(
        &self,
        caller: &Caller,
        path: &ObjectPath,
        options: FindOptions,
    ) -> Result<Page<Listed>> {
        let begun = Instant::now();
        let limit = options.limit.clamp(1, MAX_LIST);
        let mut find = Find { caller: caller.clone(), path: path.clone(), options };
        find.options.limit = limit;
        let (mut items, mut position) = (Vec::new(), None);
        loop {
            let looked = self.ask(find.clone()).await?;
            items.extend(looked.below);
            let position = *position.get_or_insert(looked.position);
            let is_over = begun.elapsed() >= PATIENCE && (looked.is_whole || !items.is_empty());
            if items.len() >= limit || looked.after.is_none() || is_over {
                if looked.is_whole && items.len() < limit {
                    return Ok(Page { items, next: looked.after, position: Some(position) });
                }
                // A full page may be the last one: whether anything comes behind it is not known without a look at what is beside.
                let goes_on = items.len() >= limit || looked.after.is_some();
                items.truncate(limit);
                let last = items.last().filter(|_| goes_on);
                let next = last.and_then(|last| Some(format!("{}/{}", last.entry.id, last.path.name()?)));
                return Ok(Page { items, next, position: Some(position) });
            }
            if begun.elapsed() >= MOST_PATIENCE {
                return Err(Error::invalid(format!(
                    "there are more names beside '{path}' than can be looked at within {} s; say how the names begin",
                    MOST_PATIENCE.as_secs()
                )));
            }
            find.options.after = looked.after;
            find.options.limit = (find.options.limit * GROWTH).min(MAX_LIST);
        }
    }
}

/// Looks at the next names of a space, as many as the limit says.
#[derive(Clone)]
struct Find {
    caller: Caller,
    path: ObjectPath,
    options: FindOptions,
}

struct Looked {
    /// What of it is below the collection.
    below: Vec<Listed>,
    /// Up to where was looked, unless that was all.
    after: Option<String>,
    /// Whether the caller may read the whole space, and may be told.
    is_whole: bool,
    position: Position,
}

impl Query for Find {
    type Out = Looked;
    const IS_SEARCH: bool = true;

    async fn run<T: Tx>(&self, tx: &T) -> Result<Looked> {
        let Self { caller, path, options } = self;
        let resolved = enter(tx, caller, Permission::Read, path).await?;
        let target = resolved.target(path)?;
        let (sp, space, position) = (target.sp, resolved.space.space.id, resolved.position());
        let after = options.after.as_deref().map(place).transpose()?;
        let (glob, like) = options.name.of_engines();
        let wanted = ByName { prefix: options.name.prefix(), glob: &glob, like: &like, after };
        let found = entry::by_own_name(tx, sp, &wanted, options.limit).await?;
        let after = found.last().filter(|_| found.len() == options.limit);
        let after = after.map(|last| format!("{}/{}", last.id, last.name));
        // Many are in one collection, whose path is made once.
        let parents: HashSet<u64> = found.iter().map(|row| row.parent).collect();
        let mut ids = IdCache::default();
        let mut batch = Batch::new(tx, &mut ids);
        let chains = entry::with_ancestors(tx, parents.iter().map(|id| (sp, *id)).collect()).await?;
        batch.learn_all(chains, Lock::None)?;
        let mut paths: HashMap<u64, ObjectPath> = HashMap::with_capacity(parents.len());
        for parent in parents {
            // What cannot be named, since a rename above it made its path too long, is not found.
            if let Ok(at) = batch.path_of(sp, parent).await
                && at.is_within(path)
            {
                paths.insert(parent, at);
            }
        }
        let mut below = Vec::new();
        for row in found.into_iter().filter(|row| options.name.is_match(&row.name)) {
            if let Some(Ok(at)) = paths.get(&row.parent).map(|parent| parent.join(&row.name)) {
                below.push(Listed { path: at, entry: row.into_entry(space), replicas: Vec::new() });
            }
        }
        let root = ObjectPath::of_space(&resolved.space.space.name);
        let is_whole = enter(tx, caller, Permission::Read, &root).await.is_ok();
        Ok(Looked { below, after, is_whole, position })
    }
}

/// Reads where to go on: behind which name, and of that behind which entry.
fn place(after: &str) -> Result<(&str, u64)> {
    let place = after.split_once('/').and_then(|(id, name)| Some((name, id.parse().ok()?)));
    place.ok_or_else(|| Error::invalid("it cannot be gone on from there"))
}
