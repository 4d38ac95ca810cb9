//! Directories that removals leave empty.
//!
//! On a managed store they go at once: only the site puts anything there, and makes them anew when it does. On a native store they are
//! somebody's, and go with the collection that an import makes of them: the next pass would else make that anew.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Mutex, PoisonError};

use futures::future::{BoxFuture, FutureExt};
use percale_api::tasks::TaskSpec;
use percale_catalog::{Catalog, EntryKind, TaskFilter};
use percale_core::ErrorCode;
use percale_core::ids::StoreId;
use percale_store::{Delete, ErrorKind, Kind, ListOptions, StoreKey};

use crate::app::system_caller;
use crate::error::Result;
use crate::stores::OpenStore;
use crate::tasks::Stored;
use crate::tasks::import::source::Source;

/// Directories that are remembered because their collections are still there. What is beyond stays on the store.
const WAITING: usize = 1000;
/// Imports that are looked at, the newest.
const IMPORTS: usize = 1000;
/// Empty directories within one that are removed with it, at most.
const WITHIN: usize = 1000;

/// Removes directories that were emptied.
#[derive(Debug, Default)]
pub(super) struct Emptied {
    /// Directories of native stores. Forgotten by a server that ends: what they are then is what an import makes of an empty directory.
    waiting: Mutex<BTreeSet<(StoreId, StoreKey)>>,
}

/// What becomes of a directory once it is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Goes,
    /// It has a collection.
    Waits,
    Stays,
}

/// A store, and which of its directories are collections where.
struct Place<'a> {
    emptied: &'a Emptied,
    catalog: &'a Catalog,
    store: &'a OpenStore,
    /// Of a native store.
    imports: Vec<Source>,
}

impl Emptied {
    /// Removes the directories that files had which were deleted, and others that wait for it, as far as they are empty. Nothing that keeps one
    /// from it is an error: it stays.
    ///
    /// # Errors
    /// What the catalog answers.
    pub async fn remove(&self, catalog: &Catalog, store: &OpenStore, deleted: &[String]) -> Result<()> {
        let mut dirs = self.take(store.row.id);
        dirs.extend(deleted.iter().filter_map(|key| StoreKey::parse(key).ok()?.parent()));
        if dirs.is_empty() || !store.store.capabilities().collections {
            return Ok(());
        }
        let imports = if store.is_managed() { Vec::new() } else { imports_of(catalog, store).await? };
        let place = Place { emptied: self, catalog, store, imports };
        // What is within goes before what it is in.
        while let Some(depth) = dirs.iter().map(depth_of).max() {
            let deepest: Vec<StoreKey> = dirs.extract_if(.., |dir| depth_of(dir) == depth).collect();
            dirs.extend(place.clear(deepest).await?.iter().filter_map(StoreKey::parent));
        }
        Ok(())
    }

    /// Tells whether directories of a store wait.
    pub fn is_waiting(&self, store: StoreId) -> bool {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.iter().any(|(of, _)| *of == store)
    }

    fn take(&self, store: StoreId) -> BTreeSet<StoreKey> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (mine, others) = std::mem::take(&mut *waiting).into_iter().partition(|(of, _)| *of == store);
        *waiting = others;
        BTreeSet::into_iter(mine).map(|(_, dir)| dir).collect()
    }

    fn wait(&self, store: StoreId, dir: StoreKey) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < WAITING {
            waiting.insert((store, dir));
        }
    }
}

impl Place<'_> {
    /// Removes directories, and the empty ones within each. Returns those that are gone.
    fn clear(&self, dirs: Vec<StoreKey>) -> BoxFuture<'_, Result<Vec<StoreKey>>> {
        async move {
            let mut going = Vec::with_capacity(dirs.len());
            for dir in dirs {
                match self.fate(&dir).await? {
                    Fate::Goes => going.push(dir),
                    Fate::Waits => self.emptied.wait(self.store.row.id, dir),
                    Fate::Stays => {}
                }
            }
            let (mut gone, full) = self.delete(going).await;
            for dir in full {
                let Some(within) = self.only_directories(&dir).await else { continue };
                let all = within.len();
                if self.clear(within).await?.len() == all {
                    gone.extend(self.delete(vec![dir]).await.0);
                }
            }
            Ok(gone)
        }
        .boxed()
    }

    async fn fate(&self, dir: &StoreKey) -> Result<Fate> {
        if dir.is_reserved() {
            return Ok(Fate::Stays);
        }
        if self.store.is_managed() {
            return Ok(Fate::Goes);
        }
        let mut fate = Fate::Stays;
        for import in self.imports.iter().filter(|import| import.has_within(dir)) {
            let Ok(collection) = import.collection(Some(dir)) else { return Ok(Fate::Stays) };
            match self.catalog.stat(&system_caller(), &collection).await {
                Ok(entry) if entry.kind == EntryKind::Collection => return Ok(Fate::Waits),
                Ok(_) => fate = Fate::Goes,
                // The last two: something else has the path of what it was in.
                Err(error)
                    if matches!(
                        error.code(),
                        ErrorCode::NotFound | ErrorCode::NotACollection | ErrorCode::IsLink
                    ) =>
                {
                    fate = Fate::Goes;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(fate)
    }

    /// Deletes directories. Returns those that are gone, and those that something is in.
    async fn delete(&self, dirs: Vec<StoreKey>) -> (Vec<StoreKey>, Vec<StoreKey>) {
        let (mut gone, mut full) = (Vec::with_capacity(dirs.len()), Vec::new());
        let items = dirs.iter().cloned().map(Delete::collection).collect();
        let outcomes = match self.store.store.delete(items).await {
            Ok(outcomes) => outcomes,
            Err(error) => {
                tracing::debug!(store = %self.store.row.name, %error, "empty directories stay");
                return (gone, full);
            }
        };
        for (dir, outcome) in dirs.into_iter().zip(outcomes) {
            match outcome {
                Ok(_) => gone.push(dir),
                Err(error) if error.kind() == ErrorKind::NotEmpty => full.push(dir),
                Err(error) => {
                    tracing::debug!(store = %self.store.row.name, %dir, %error, "an empty directory stays")
                }
            }
        }
        (gone, full)
    }

    /// Returns what is in a directory, if that is nothing but directories.
    async fn only_directories(&self, dir: &StoreKey) -> Option<Vec<StoreKey>> {
        let options = ListOptions::of(dir.clone()).page_size(WITHIN);
        let mut pages = self.store.store.list(options).await.ok()?;
        let page = pages.next().await.ok()??;
        let is_all = page.skipped.is_empty()
            && page.entries.iter().all(|entry| entry.meta.kind == Kind::Collection)
            && pages.next().await.ok()?.is_none();
        is_all.then(|| page.entries.into_iter().map(|entry| entry.key).collect())
    }
}

fn depth_of(dir: &StoreKey) -> usize {
    dir.as_str().matches('/').count()
}

/// Returns what this site's imports make of the directories of a store.
async fn imports_of(catalog: &Catalog, store: &OpenStore) -> Result<Vec<Source>> {
    let filter = TaskFilter { kind: Some("import".to_owned()), ..TaskFilter::default() };
    let tasks = catalog.tasks(&system_caller(), filter, None, IMPORTS).await?.items;
    let (mut known, mut found) = (HashSet::new(), Vec::new());
    for task in tasks {
        let Ok(TaskSpec::Import(import)) = Stored::read(&task.spec).map(|stored| stored.spec) else {
            continue;
        };
        // Mostly they are one, done again and again.
        if import.dry_run || !known.insert((import.source.clone(), import.to.clone())) {
            continue;
        }
        // A store that was removed since has no directories any more.
        let Ok(source) = Source::find(catalog, &import.source, &import.to).await else { continue };
        if source.store.id == store.row.id {
            found.push(source);
        }
    }
    Ok(found)
}
