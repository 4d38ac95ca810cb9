//! What lies in a directory of a store, compared with what the catalog knows of it.
//!
//! Both are in the byte order of keys, so that one pass over both tells everything, in the memory of some pages.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use percale_catalog::{Catalog, KnownFile, NativeFile};
use percale_client::put::{Candidate, Filter};
use percale_core::ErrorCode;
use percale_core::ids::{EntryId, SpaceId, StoreId};
use percale_core::state::ReplicaState;
use percale_store::{Entry, Kind, ListOptions, ListPage, ListStream, Meta, SharedStore, StoreKey};
use tokio::sync::mpsc::Sender;
use tokio_util::task::AbortOnDropHandle;

use super::chunk::Chunk;
use super::source::Source;
use super::watch::Watch;
use crate::{ApiError, Result};

/// Files of which is asked at once.
const PAGE: usize = 4000;
/// Collections whose place is remembered.
const PLACES: usize = 10_000;

/// A pass over a directory.
pub(super) struct Scan<'a> {
    pub catalog: &'a Catalog,
    pub store: SharedStore,
    pub source: &'a Source,
    /// The space that the files go to.
    pub space: SpaceId,
    pub filter: Option<Filter>,
    /// Whether files are hashed before they are registered.
    pub is_read: bool,
    /// Whether there will be other passes.
    pub is_followed: bool,
    /// Hears of changes from here on.
    pub watch: Mutex<Option<Watch>>,
}

/// A page of what is known, asked for while the one before is used.
type Page = AbortOnDropHandle<percale_catalog::Result<Vec<KnownFile>>>;

/// What is known of the store, by key.
struct Known<'a> {
    catalog: &'a Catalog,
    store: StoreId,
    before: String,
    page: VecDeque<KnownFile>,
    next: Option<Page>,
}

impl<'a> Known<'a> {
    fn begin(catalog: &'a Catalog, store: StoreId, after: String, before: String) -> Self {
        let mut known = Self { catalog, store, before, page: VecDeque::new(), next: None };
        known.ask(after);
        known
    }

    fn ask(&mut self, after: String) {
        let (catalog, store, before) = (self.catalog.clone(), self.store, self.before.clone());
        let page = tokio::spawn(async move { catalog.known_files(store, &after, &before, PAGE).await });
        self.next = Some(AbortOnDropHandle::new(page));
    }

    /// Returns the next one, which stays until it is taken.
    async fn peek(&mut self) -> Result<Option<&KnownFile>> {
        if self.page.is_empty()
            && let Some(next) = self.next.take()
        {
            let page =
                next.await.map_err(|error| ApiError::internal("a page was lost").with_source(error))??;
            if let Some(last) = page.last().filter(|_| page.len() == PAGE) {
                self.ask(last.key.clone());
            }
            self.page = page.into();
        }
        Ok(self.page.front())
    }

    fn take(&mut self) -> Option<KnownFile> {
        self.page.pop_front()
    }
}

/// What is there, by key.
struct There {
    pages: Box<dyn ListStream>,
    page: VecDeque<Entry>,
}

impl There {
    /// Returns the next one, which stays until it is taken. What could not be looked at is added to the chunk.
    async fn peek(&mut self, source: &Source, chunk: &mut Chunk) -> Result<Option<&Entry>> {
        while self.page.is_empty() {
            let Some(ListPage { entries, skipped }) = self.pages.next().await? else { return Ok(None) };
            self.page = entries.into();
            for skipped in skipped {
                let code = percale_store::Error::from(skipped.clone()).code();
                let error = ApiError::new(code, format!("cannot be registered: {}", skipped.reason));
                chunk.failed.push((source.shown(&skipped.path), error));
            }
        }
        Ok(self.page.front())
    }
}

/// Where a pass is.
struct At {
    chunk: Chunk,
    /// Directories in which nothing was seen yet, with a slash at their end. They are only seen before what is in them.
    bare: Vec<String>,
    /// Directories that are left out, with a slash at their end.
    left_out: Vec<String>,
    /// The last key behind which a repetition finds all that this pass finds.
    through: Option<String>,
    /// Whether collections are below the one that all goes to.
    within: HashMap<EntryId, bool>,
}

impl Scan<'_> {
    /// Compares everything behind `after`, and sends what is found. The last chunk has no key to go on behind.
    ///
    /// # Errors
    /// What the store or the catalog answer: `NotFound` or `NotACollection` if the source is not there or no directory.
    pub async fn run(&self, after: Option<String>, found: Sender<Chunk>) -> Result<()> {
        self.watch(self.source.prefix.as_ref().map(StoreKey::as_str));
        let mut options = ListOptions::default().recursive().page_size(PAGE);
        options.prefix.clone_from(&self.source.prefix);
        options.after = after.as_deref().and_then(|after| StoreKey::parse(after).ok());
        let mut there = There { pages: self.store.list(options).await?, page: VecDeque::new() };
        let (first, before) = self.source.range();
        let store = self.source.store.id;
        let mut known = Known::begin(self.catalog, store, after.clone().unwrap_or(first), before);
        let mut at = At {
            chunk: Chunk::default(),
            bare: Vec::new(),
            left_out: self.left_out_above(after.as_deref()),
            through: after,
            within: HashMap::new(),
        };
        let is_bare =
            known.peek().await?.is_none() && there.peek(self.source, &mut at.chunk).await?.is_none();
        let may_be_missing = self.source.prefix.is_some() && !self.has_collections();
        if is_bare
            && may_be_missing
            && !self.is_followed
            && at.through.is_none()
            && at.chunk.failed.is_empty()
        {
            // A directory that is not there is told when it is listed. What is followed may come yet.
            let detail = format!("nothing begins with {}/", self.source.shown(""));
            return Err(ApiError::new(ErrorCode::NotFound, detail));
        }
        loop {
            let known_key = known.peek().await?.map(|known| known.key.as_str());
            let entry = there.peek(self.source, &mut at.chunk).await?;
            let key = match (entry.map(|entry| entry.key.as_str()), known_key) {
                (None, None) => break,
                (Some(key), None) | (None, Some(key)) => key,
                (Some(entry), Some(known)) => entry.min(known),
            };
            let key = key.to_owned();
            let has = |other: Option<&str>| other == Some(key.as_str());
            let is_known = has(known_key);
            let is_there = has(entry.map(|entry| entry.key.as_str()));
            let known = if is_known { known.take() } else { None };
            let entry = if is_there { there.page.pop_front() } else { None };
            at.pass(&key, self)?;
            match (entry, known) {
                (Some(entry), known) => self.look(&mut at, entry, known).await?,
                (None, Some(known)) => self.gone(&mut at, known).await?,
                (None, None) => {}
            }
            if at.bare.is_empty() {
                at.through = Some(key);
            }
            if at.chunk.is_full(self.is_read) {
                at.chunk.through.clone_from(&at.through);
                if found.send(std::mem::take(&mut at.chunk)).await.is_err() {
                    return Ok(());
                }
            }
        }
        at.pass("\u{10ffff}", self)?;
        // Whoever does not listen any more has its own reason.
        let _ = found.send(at.chunk).await;
        Ok(())
    }

    /// Returns what is left out from the beginning: what is another store's, and the directories above a key, since a pass that goes on behind
    /// it does not come to them again.
    fn left_out_above(&self, after: Option<&str>) -> Vec<String> {
        let mut left_out = self.source.others.clone();
        let Some(after) = after else { return left_out };
        let first = after.len() - self.source.below(after).len();
        let above = after.match_indices('/').filter(|(at, _)| *at > first);
        let above = above.filter_map(|(at, _)| after.get(..at));
        let above = above.filter(|above| !self.is_wanted(above, true, 0));
        left_out.extend(above.map(|above| format!("{above}/")));
        left_out
    }

    fn watch(&self, key: Option<&str>) {
        if let Some(watch) = self.watch.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            watch.add(key);
        }
    }

    fn is_wanted(&self, key: &str, is_directory: bool, size: u64) -> bool {
        let Some(filter) = &self.filter else { return true };
        filter(Candidate::new(self.source.below(key), is_directory, size))
    }

    /// Decides on what is there.
    async fn look(&self, at: &mut At, entry: Entry, known: Option<KnownFile>) -> Result<()> {
        let Entry { key, meta } = entry;
        if at.is_left_out(key.as_str()) {
            return Ok(());
        }
        match meta.kind {
            Kind::Collection => {
                let below = format!("{key}/");
                if !self.is_wanted(key.as_str(), true, 0) {
                    at.left_out.push(below);
                } else {
                    self.watch(Some(key.as_str()));
                    if self.filter.is_none() {
                        at.bare.push(below);
                    }
                }
            }
            Kind::File => {
                if self.is_wanted(key.as_str(), false, meta.size.0)
                    && (self.has_collections() || self.is_wanted_above(key.as_str()))
                {
                    self.file(at, &key, meta, known).await?;
                }
                return Ok(());
            }
            Kind::Other if self.is_wanted(key.as_str(), false, 0) => {
                let error = match self.store.stat(&key).await {
                    Err(error) => ApiError::from(error),
                    Ok(_) => ApiError::new(
                        ErrorCode::Unsupported,
                        "is not a regular file: a device or pipe, or a symbolic link to a collection, to nothing, or \
                         out of the store",
                    ),
                };
                at.chunk.failed.push((self.source.shown(key.as_str()), error));
            }
            Kind::Other => {}
        }
        match known {
            Some(known) => self.gone(at, known).await,
            None => Ok(()),
        }
    }

    async fn file(
        &self,
        at: &mut At,
        key: &StoreKey,
        mut meta: Meta,
        known: Option<KnownFile>,
    ) -> Result<()> {
        if let Some(known) = known {
            if known.space == self.space && is_same(&known, &meta) {
                if self.is_within(at, &known).await? {
                    at.chunk.unchanged += 1;
                } else {
                    let detail =
                        "it belongs to an object elsewhere in the space, which was registered or put there";
                    let error = ApiError::new(ErrorCode::Conflict, detail).permanent();
                    at.chunk.failed.push((self.source.shown(key.as_str()), error));
                }
                return Ok(());
            }
            // It may have been replaced by the site itself between the two looks, one at the store and one at the catalog.
            meta = match self.store.stat(key).await {
                Ok(meta) if meta.is_file() => meta,
                Ok(_) => return self.gone(at, known).await,
                Err(error) if error.kind().is_absent() => return self.gone(at, known).await,
                Err(error) => {
                    at.chunk.failed.push((self.source.shown(key.as_str()), error.into()));
                    return Ok(());
                }
            };
            if !is_same(&known, &meta) {
                at.chunk.changed.insert(known.key);
            }
        }
        let parent = key.parent();
        let folder = at
            .chunk
            .folder(parent.as_ref().map(StoreKey::as_str), || self.source.collection(parent.as_ref()));
        match folder {
            Ok(folder) => at.chunk.add(folder, found(key.name(), &meta, None)),
            Err(error) => at.chunk.failed.push((self.source.shown(key.as_str()), error)),
        }
        Ok(())
    }

    /// Decides on a file that is known and was not listed. It is looked for once more, since the site itself may have put it
    /// there meanwhile, or a directory above it could not be read.
    async fn gone(&self, at: &mut At, known: KnownFile) -> Result<()> {
        let is_reserved = StoreKey::parse(&known.key).map_or(true, |key| key.is_reserved());
        if is_reserved || at.is_left_out(&known.key) || !self.is_wanted_at_all(&known.key) {
            return Ok(());
        }
        if !matches!(known.state, ReplicaState::Lost | ReplicaState::Writing) {
            at.chunk.gone.push(known);
        }
        Ok(())
    }

    /// Tells whether a filter leaves a file in, whatever its size, and all directories above it.
    fn is_wanted_at_all(&self, key: &str) -> bool {
        self.is_wanted_above(key) && self.is_wanted(key, false, u64::MAX / 2)
    }

    /// Tells whether a filter leaves in all directories above a file.
    fn is_wanted_above(&self, key: &str) -> bool {
        let Some(filter) = &self.filter else { return true };
        let below = self.source.below(key);
        let mut above = below.match_indices('/').map(|(at, _)| below.get(..at).unwrap_or_default());
        above.all(|above| filter(Candidate::new(above, true, 0)))
    }

    /// Tells whether directories are listed, and not only told by the keys of what is in them.
    fn has_collections(&self) -> bool {
        self.store.capabilities().collections
    }

    /// Tells whether a file's object is where the import puts it, or was renamed below there.
    async fn is_within(&self, at: &mut At, known: &KnownFile) -> Result<bool> {
        if let Some(is_within) = at.within.get(&known.parent) {
            return Ok(*is_within);
        }
        let path = self.catalog.path_of(known.space, known.parent).await?;
        // An object that was removed meanwhile is nowhere; its file is about to be.
        let is_within = path.is_none_or(|path| path.is_within(self.source.to()));
        if at.within.len() >= PLACES {
            at.within.clear();
        }
        at.within.insert(known.parent, is_within);
        Ok(is_within)
    }
}

/// Makes a file of what the store knows of it.
pub(crate) fn found(name: &str, meta: &Meta, root: Option<percale_core::tree::RootHash>) -> NativeFile {
    NativeFile {
        name: name.to_owned(),
        size: meta.size,
        generation: meta.generation.as_ref().map(ToString::to_string).unwrap_or_default(),
        mtime: meta.modified,
        mode: meta.mode,
        root,
    }
}

/// Tells whether a file is as it was registered, or is being written by a mount, which tells itself what it becomes.
fn is_same(known: &KnownFile, meta: &Meta) -> bool {
    if known.state == ReplicaState::Writing {
        return true;
    }
    known.state != ReplicaState::Lost
        && known.generation.as_deref() == meta.generation.as_ref().map(|generation| generation.as_str())
}

impl At {
    /// Tells whether a directory above is left out.
    fn is_left_out(&self, key: &str) -> bool {
        self.left_out.iter().any(|below| key.starts_with(below.as_str()))
    }

    /// Notes that the pass has come to a key. Directories behind it in which nothing was seen are empty.
    fn pass(&mut self, key: &str, scan: &Scan<'_>) -> Result<()> {
        self.left_out.retain(|below| key.starts_with(below.as_str()) || key < below.as_str());
        if self.bare.is_empty() {
            return Ok(());
        }
        for below in std::mem::take(&mut self.bare) {
            if key.starts_with(&below) {
                continue;
            }
            if key < below.as_str() {
                self.bare.push(below);
                continue;
            }
            let key = StoreKey::parse(below.trim_end_matches('/')).map_err(percale_store::Error::from)?;
            if let Err(error) = self.chunk.folder(Some(key.as_str()), || scan.source.collection(Some(&key))) {
                self.chunk.failed.push((scan.source.shown(key.as_str()), error));
            }
        }
        Ok(())
    }
}
