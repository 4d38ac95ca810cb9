//! Removing what a destination has and its source has not: the second half of a sync.
//!
//! - A directory and its collection are compared name by name; where both have a directory of that name, what is in it is.
//! - What the filter refuses is left alone on both sides, and so is a collection or directory that holds such things.
//! - An object is only removed as the version that was seen.
//! - Symbolic links are never followed. One in the source keeps the object of its name; one at the destination is removed itself.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream};
use percale_api::entries::{Entry, Kind};
use percale_core::{ErrorCode, ObjectPath};
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::control::ListOptions;
use crate::error::Error;
use crate::local::is_part_name;
use crate::put::{Candidate, Filter};
use crate::report::{Item, OnItem, Outcome, Report};
use crate::upload::blocking;

/// Directories that are compared at once.
const DIRECTORIES: usize = 8;
/// Objects of one collection that are removed at once.
const REMOVALS: usize = 16;

/// How to remove.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct ExtraOptions {
    /// Finds out everything, changes nothing.
    pub dry_run: bool,
    /// What belongs to the sync; all if absent.
    pub filter: Option<Filter>,
    /// Is told of each item.
    pub on_item: Option<OnItem>,
    /// Stops the work.
    pub cancel: CancellationToken,
}

impl ExtraOptions {
    fn wants(&self, path: &str, is_directory: bool, size: u64) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter(Candidate::new(path, is_directory, size)))
    }

    fn tell(&self, report: &mut Report, item: Item) {
        if let Some(on_item) = &self.on_item {
            on_item(&item);
        }
        report.add(item);
    }
}

/// A directory and the collection of the same path below the roots.
#[derive(Debug, Clone)]
struct Pair {
    /// Nothing where the source has no such directory.
    local: Option<PathBuf>,
    /// Nothing where the source has no such collection.
    remote: Option<ObjectPath>,
    /// Path below the roots, without a slash at its end.
    below: String,
}

impl Pair {
    fn below(&self, name: &str) -> String {
        if self.below.is_empty() { name.to_owned() } else { format!("{}/{name}", self.below) }
    }
}

/// What a name of a local directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LocalKind {
    Directory,
    File(u64),
    /// A symbolic link, a device.
    Other,
}

/// Which side is the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Local,
    Fabric,
}

/// What comparing one pair ends with.
#[derive(Default)]
struct Compared {
    below: Vec<Pair>,
    items: Vec<Item>,
}

impl Client {
    /// Removes from a collection what a local directory has not.
    ///
    /// # Errors
    /// None; what failed is in the report.
    ///
    /// # Cancellation
    /// By [`ExtraOptions::cancel`], or by dropping the future: what was removed stays so.
    pub async fn remove_extra_objects(
        &self,
        local: &Path,
        target: &ObjectPath,
        options: &ExtraOptions,
    ) -> Report {
        let root = Pair { local: Some(local.to_owned()), remote: Some(target.clone()), below: String::new() };
        self.remove_extra(root, Source::Local, options).await
    }

    /// Removes from a local directory what a collection has not.
    ///
    /// # Errors
    /// None; what failed is in the report.
    ///
    /// # Cancellation
    /// As [`Client::remove_extra_objects`].
    pub async fn remove_extra_files(
        &self,
        from: &ObjectPath,
        local: &Path,
        options: &ExtraOptions,
    ) -> Report {
        let root = Pair { local: Some(local.to_owned()), remote: Some(from.clone()), below: String::new() };
        self.remove_extra(root, Source::Fabric, options).await
    }

    async fn remove_extra(&self, root: Pair, source: Source, options: &ExtraOptions) -> Report {
        let mut report = Report::default();
        let work = async {
            let mut pairs = vec![root];
            while !pairs.is_empty() {
                let compared: Vec<BoxFuture<'_, Compared>> = pairs
                    .drain(..)
                    .map(|pair| {
                        async move {
                            match source {
                                Source::Local => self.in_collection(pair, options).await,
                                Source::Fabric => self.in_directory(pair, options).await,
                            }
                        }
                        .boxed()
                    })
                    .collect();
                let mut compared = stream::iter(compared).buffer_unordered(DIRECTORIES);
                while let Some(Compared { below, items }) = compared.next().await {
                    pairs.extend(below);
                    items.into_iter().for_each(|item| options.tell(&mut report, item));
                }
            }
        };
        let interrupted = tokio::select! {
            () = work => false,
            () = options.cancel.cancelled() => true,
        };
        report.interrupted = interrupted;
        report
    }

    /// Removes from one collection what its directory has not.
    async fn in_collection(&self, pair: Pair, options: &ExtraOptions) -> Compared {
        let mut compared = Compared::default();
        let Some(collection) = &pair.remote else { return compared };
        let names = read_names(pair.local.clone()).await;
        let both = match names {
            Ok(names) => self.entries(collection).await.map(|entries| (names, entries)),
            Err(error) => Err(error),
        };
        let (names, entries) = match both {
            Ok(both) => both,
            Err(error) => {
                compared.items.push(item(collection, Outcome::Failed(error)));
                return compared;
            }
        };
        let mut extra = Vec::new();
        for (name, entry) in entries {
            let below = pair.below(&name);
            let size = entry.content.as_ref().map_or(0, |content| content.size);
            let is_collection = entry.kind == Kind::Collection;
            if !options.wants(&below, is_collection, size) {
                continue;
            }
            match (names.get(&name), is_collection) {
                (Some(LocalKind::Directory), true) => {
                    let local = pair.local.as_ref().map(|local| local.join(&name));
                    compared.below.push(Pair { local, remote: Some(entry.path), below });
                }
                (Some(LocalKind::File(_)), false) | (Some(LocalKind::Other), _) => {}
                // The filter may refuse something in it.
                (_, true) if options.filter.is_some() => {
                    compared.below.push(Pair { local: None, remote: Some(entry.path), below });
                }
                _ => extra.push(entry),
            }
        }
        let removals: Vec<BoxFuture<'_, Item>> =
            extra.into_iter().map(|entry| self.remove_entry(entry, options.dry_run).boxed()).collect();
        compared.items = stream::iter(removals).buffer_unordered(REMOVALS).collect().await;
        compared
    }

    async fn remove_entry(&self, entry: Entry, dry_run: bool) -> Item {
        if dry_run {
            return item(&entry.path, Outcome::Removed);
        }
        let version = entry.content.as_ref().map(|content| content.version);
        match self.remove(&entry.path, entry.kind == Kind::Collection, version).await {
            Ok(()) => item(&entry.path, Outcome::Removed),
            Err(error) if error.code() == ErrorCode::NotFound => item(&entry.path, Outcome::Removed),
            Err(error) => item(&entry.path, Outcome::Failed(error)),
        }
    }

    /// Removes from one directory what its collection has not.
    async fn in_directory(&self, pair: Pair, options: &ExtraOptions) -> Compared {
        let mut compared = Compared::default();
        let Some(directory) = &pair.local else { return compared };
        let entries = match &pair.remote {
            Some(collection) => self.entries(collection).await,
            None => Ok(Vec::new()),
        };
        let both = match entries {
            Ok(entries) => read_names(Some(directory.clone())).await.map(|names| (names, entries)),
            Err(error) => Err(error),
        };
        let (names, entries) = match both {
            Ok(both) => both,
            Err(error) => {
                compared.items.push(item(directory.display(), Outcome::Failed(error)));
                return compared;
            }
        };
        let entries: HashMap<String, Entry> = entries.into_iter().collect();
        for (name, kind) in names {
            let (below, local) = (pair.below(&name), directory.join(&name));
            let (is_directory, size) = match kind {
                LocalKind::Directory => (true, 0),
                LocalKind::File(size) => (false, size),
                LocalKind::Other => (false, 0),
            };
            if is_part_name(&name) || !options.wants(&below, is_directory, size) {
                continue;
            }
            match entries.get(&name) {
                Some(entry) if is_directory && entry.kind == Kind::Collection => {
                    let remote = Some(entry.path.clone());
                    compared.below.push(Pair { local: Some(local), remote, below });
                }
                Some(entry) if !is_directory && entry.kind != Kind::Collection => {}
                // The filter may refuse something in it.
                _ if is_directory && options.filter.is_some() => {
                    compared.below.push(Pair { local: Some(local), remote: None, below });
                }
                _ => compared.items.push(remove_local(local, is_directory, options.dry_run).await),
            }
        }
        compared
    }

    /// Lists a collection; nothing is in one that is not there.
    async fn entries(&self, collection: &ObjectPath) -> crate::Result<Vec<(String, Entry)>> {
        let options = ListOptions { limit: Some(percale_api::MAX_PAGE), ..ListOptions::default() };
        let (mut entries, mut cursor) = (Vec::new(), None);
        loop {
            let page = self.list(collection, options, cursor.as_deref()).await?;
            let named = page.items.into_iter().filter_map(|entry| {
                let name = entry.path.name()?.to_owned();
                Some((name, entry))
            });
            entries.extend(named);
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(entries),
            }
        }
    }
}

fn item(what: impl std::fmt::Display, outcome: Outcome) -> Item {
    Item { from: String::new(), to: what.to_string(), bytes: 0, outcome }
}

async fn remove_local(path: PathBuf, is_directory: bool, dry_run: bool) -> Item {
    let shown = path.clone();
    if dry_run {
        return item(shown.display(), Outcome::Removed);
    }
    let removed = blocking("remove a local file", move || {
        let removed = if is_directory { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|error| Error::local("remove", &path, error)),
        }
    });
    match removed.await {
        Ok(()) => item(shown.display(), Outcome::Removed),
        Err(error) => item(shown.display(), Outcome::Failed(error)),
    }
}

/// Reads the names in a directory. Names that are not valid UTF-8 cannot be in the fabric and are left out.
async fn read_names(directory: Option<PathBuf>) -> crate::Result<HashMap<String, LocalKind>> {
    let Some(directory) = directory else { return Ok(HashMap::new()) };
    blocking("list a local directory", move || {
        let cannot = |error| Error::local("list a local directory", &directory, error);
        let mut names = HashMap::new();
        for entry in std::fs::read_dir(&directory).map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let kind = match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => LocalKind::Directory,
                Ok(metadata) if metadata.is_file() => LocalKind::File(metadata.len()),
                Ok(_) => LocalKind::Other,
                // What vanished since the directory was read is not there.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(cannot(error)),
            };
            names.insert(name, kind);
        }
        Ok(names)
    })
    .await
}
