//! Listing collections.

use std::collections::VecDeque;

use percale_core::ObjectPath;
use percale_core::access::{Caller, Permission};

use crate::access::{enter, is_link};
use crate::catalog::Catalog;
use crate::engine::{Query, Tx};
use crate::error::{Error, Result};
use crate::model::{ListOptions, Listed, MAX_LIST, Page};
use crate::rows::Lock;
use crate::rows::entry::{self, EntryRow};
use crate::rows::replica;

/// Listing.
impl Catalog {
    /// Lists a collection in the order of the names' bytes; of an object, just that.
    ///
    /// - A page is as of one moment; the pages of one listing are not. What is there throughout is listed once.
    /// - Recursively, a collection comes right before its contents.
    ///
    /// # Errors
    /// As [`Catalog::stat`], and `IsLink` for a link.
    pub async fn list(
        &self,
        caller: &Caller,
        path: &ObjectPath,
        options: ListOptions,
    ) -> Result<Page<Listed>> {
        self.ask(List { caller: caller.clone(), path: path.clone(), options }).await
    }
}

struct List {
    caller: Caller,
    path: ObjectPath,
    options: ListOptions,
}

impl Query for List {
    type Out = Page<Listed>;

    async fn run<T: Tx>(&self, tx: &T) -> Result<Page<Listed>> {
        let Self { caller, path, options } = self;
        let limit = options.limit.clamp(1, MAX_LIST);
        let resolved = enter(tx, caller, Permission::Read, path).await?;
        let target = resolved.target(path)?;
        let (sp, space) = (target.sp, resolved.space.space.id);
        let mut rows: Vec<(ObjectPath, EntryRow)> = Vec::new();
        let mut next = None;
        if let Some(leads_to) = &target.target {
            return Err(is_link(path, leads_to, 0));
        }
        if !target.is_collection() {
            if options.after.is_none() {
                rows.push((path.clone(), target.clone()));
            }
        } else if options.recursive {
            next = walk(tx, path, target, options.after.as_deref(), limit, &mut rows).await?;
        } else {
            let after = options.after.as_deref().unwrap_or_default();
            let found = entry::children(tx, (sp, target.id), after, limit, Lock::None).await?;
            next = found.last().filter(|_| found.len() == limit).map(|last| last.name.clone());
            for child in found {
                rows.push((join(path, &child.name)?, child));
            }
        }
        let mut replicas = Vec::new();
        if options.replicas {
            let versions = rows.iter().filter_map(|(_, entry)| Some((sp, entry.version()?))).collect();
            replicas = replica::of_versions(tx, versions).await?;
            replicas.sort_by_key(|row| (row.replica.version, row.st));
        }
        let items = rows.into_iter().map(|(path, row)| {
            let of_version = row.version().map_or(&[][..], |version| {
                let begin = replicas.partition_point(|row| row.replica.version < version);
                let end = replicas.partition_point(|row| row.replica.version <= version);
                replicas.get(begin..end).unwrap_or_default()
            });
            let replicas = of_version.iter().map(|row| row.replica.clone()).collect();
            Listed { path, entry: row.to_entry(space), replicas }
        });
        Ok(Page { items: items.collect(), next, position: Some(resolved.position()) })
    }
}

fn join(path: &ObjectPath, name: &str) -> Result<ObjectPath> {
    let wrong = |error| Error::invalid(format!("cannot list '{name}' in {path}")).with_source(error);
    path.join(name).map_err(wrong)
}

/// Entries that are read at once for each collection on the way down. With the longest path this bounds the memory of
/// a listing.
const CHUNK: usize = 256;

/// A collection that is being listed, with the entries of it that were read ahead.
struct Frame {
    path: ObjectPath,
    id: u64,
    after: String,
    ahead: VecDeque<EntryRow>,
    is_read: bool,
}

impl Frame {
    fn new(path: ObjectPath, id: u64, after: &str) -> Self {
        Self { path, id, after: after.to_owned(), ahead: VecDeque::new(), is_read: false }
    }

    async fn next<T: Tx>(&mut self, tx: &T, sp: i64, wanted: usize) -> Result<Option<EntryRow>> {
        if self.ahead.is_empty() && !self.is_read {
            let limit = wanted.clamp(1, CHUNK);
            self.ahead = entry::children(tx, (sp, self.id), &self.after, limit, Lock::None).await?.into();
            self.is_read = self.ahead.len() < limit;
            if let Some(last) = self.ahead.back() {
                self.after = last.name.clone();
            }
        }
        Ok(self.ahead.pop_front())
    }
}

/// Lists a tree, depth first, from behind the relative path `after`. Returns the relative path to go on from.
async fn walk<T: Tx>(
    tx: &T,
    top: &ObjectPath,
    collection: &EntryRow,
    after: Option<&str>,
    limit: usize,
    rows: &mut Vec<(ObjectPath, EntryRow)>,
) -> Result<Option<String>> {
    let sp = collection.sp;
    let mut frames = resume(tx, top, collection, after.unwrap_or_default()).await?;
    while rows.len() < limit {
        let Some(frame) = frames.last_mut() else { return Ok(None) };
        let Some(found) = frame.next(tx, sp, limit - rows.len()).await? else {
            frames.pop();
            continue;
        };
        let path = join(&frame.path, &found.name)?;
        if found.is_collection() {
            frames.push(Frame::new(path.clone(), found.id, ""));
        }
        rows.push((path, found));
    }
    let last = rows.last().and_then(|(path, _)| path.as_str().strip_prefix(top.as_str()));
    Ok(last.map(|relative| relative.trim_start_matches('/').to_owned()))
}

/// Finds the way back to where the page before ended, also if what was there is gone.
async fn resume<T: Tx>(tx: &T, top: &ObjectPath, collection: &EntryRow, after: &str) -> Result<Vec<Frame>> {
    let sp = collection.sp;
    let mut frames = Vec::new();
    let (mut path, mut id) = (top.clone(), collection.id);
    for name in after.split('/').filter(|name| !name.is_empty()) {
        frames.push(Frame::new(path.clone(), id, name));
        let child = entry::by_names(tx, vec![(sp, id, name.to_owned())], Lock::None).await?.pop();
        let Some(child) = child.filter(EntryRow::is_collection) else { return Ok(frames) };
        path = join(&path, name)?;
        id = child.id;
    }
    frames.push(Frame::new(path, id, ""));
    Ok(frames)
}
