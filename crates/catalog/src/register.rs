//! Registering files of native stores in place: many at once, without a byte being moved (docs/design/importing.md).
//!
//! A file is on its store already, so that there is nothing to prepare and nothing to undo: one transaction makes it an
//! object. Where nothing is known of a range of keys and names, which is so for all of a first import, one look at each says
//! so for a whole folder, and rows are written as they come.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use percale_core::access::{Caller, Permission};
use percale_core::ids::{EntryId, SiteId, SpaceId, StoreId, VersionId};
use percale_core::path::{MAX_PATH_BYTES, check_name};
use percale_core::state::ReplicaState;
use percale_core::{ObjectPath, Position};

use crate::batch::{Batch, IdCache, Mark, PathLock, Wants, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Query, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{
    Content, EntryKind, KnownFile, NativeFile, NativeFolder, Register, RegisterAnswer, Registered, Replica,
    StoreLayout, StoreState,
};
use crate::namespace::make_parents;
use crate::publish::one_outcome;
use crate::record::{CreatedItem, Items, PublishedItem, ReplicaItem, kind};
use crate::remote::{check_key, store_of, this_site};
use crate::replica::{FileState, change_file};
use crate::rows::entry::EntryRow;
use crate::rows::publish::actor;
use crate::rows::replica::ReplicaRow;
use crate::rows::site::StoreRow;
use crate::rows::{Lock, entry, publish, replica};

/// Most files in one call.
pub const MAX_REGISTER: usize = 10_000;

/// Most objects in one record of the journal, which followers read whole.
const RECORD_ITEMS: usize = 1000;

/// Files of native stores.
impl Catalog {
    /// Makes objects of files that lie on a native store, in one transaction, each with its own outcome. `site` owns the
    /// store; nothing means this one. Asked again it changes nothing.
    ///
    /// - A file that was registered before with another generation is a new version of its object, wherever that is below
    ///   [`Register::within`]; copies of the former one become stale.
    /// - A file whose copy was `lost` is a new version as well: nobody saw what became of it meanwhile.
    ///
    /// # Errors
    /// - `InvalidRequest` for more than [`MAX_REGISTER`] files, folders that come twice or are not in one space, or a name or
    ///   key that cannot be; `Unsupported` for a managed store; `ReadOnly` for one that is away; `Foreign`, `NotAllowed` or
    ///   `Conflict` for a store of another site than `site`, or one that is not known yet.
    /// - For a folder: `Denied`, `NotFound`, `NotACollection`, `ReadOnly`, `Foreign` if the space is not at home here.
    /// - For a file: `Conflict` if its key or path is another object's, or a mount is writing it; `IsCollection`.
    pub async fn register(&self, site: Option<SiteId>, files: Register) -> Result<RegisterAnswer> {
        let count: usize = files.folders.iter().map(|folder| folder.files.len()).sum();
        if count > MAX_REGISTER {
            return Err(Error::invalid(format!("more than {MAX_REGISTER} files in one call")));
        }
        check(&files)?;
        self.change(RegisterFiles { site, files }).await
    }

    /// Returns what is known of the files of a store with keys between `after` and `before`, in the order of their keys.
    pub async fn known_files(
        &self,
        store: StoreId,
        after: &str,
        before: &str,
        limit: usize,
    ) -> Result<Vec<KnownFile>> {
        let limit = limit.clamp(1, crate::MAX_LIST);
        self.ask(KnownFiles { store, after: after.to_owned(), before: before.to_owned(), limit }).await
    }

    /// Returns where an entry is, or nothing if it is gone. This call is the server's own.
    pub async fn path_of(&self, space: SpaceId, entry: EntryId) -> Result<Option<ObjectPath>> {
        self.ask(PathOf { space, entry }).await
    }
}

struct PathOf {
    space: SpaceId,
    entry: EntryId,
}

impl Query for PathOf {
    type Out = Option<ObjectPath>;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Option<ObjectPath>> {
        let mut ids = IdCache::default();
        let mut batch = Batch::new(tx, &mut ids);
        let Some(space) = batch.space_by_id(self.space).await? else { return Ok(None) };
        if self.entry != EntryId::ROOT && batch.entry(space.sp, self.entry.0, Lock::None).await?.is_none() {
            return Ok(None);
        }
        batch.path_of(space.sp, self.entry.0).await.map(Some)
    }
}

struct KnownFiles {
    store: StoreId,
    after: String,
    before: String,
    limit: usize,
}

impl Query for KnownFiles {
    type Out = Vec<KnownFile>;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<KnownFile>> {
        replica::known_files(tx, self.store, (&self.after, &self.before), self.limit).await
    }
}

/// Checks what does not depend on what is there.
fn check(files: &Register) -> Result<()> {
    let (mut paths, mut keys) = (HashSet::new(), HashSet::new());
    for folder in &files.folders {
        if !folder.path.is_within(&files.within) {
            return Err(Error::invalid(format!("{} is not within {}", folder.path, files.within)));
        }
        if !paths.insert(&folder.path) || !keys.insert(&folder.key) {
            return Err(Error::invalid(format!("the folder {} comes twice", folder.path)));
        }
        if let Some(key) = &folder.key {
            check_key(key)?;
        }
        let above = folder.path.as_str().len().max(folder.key.as_ref().map_or(0, String::len));
        let mut last = None;
        for file in &folder.files {
            check_name(&file.name)
                .map_err(|error| Error::invalid("a file has a name that cannot be").with_source(error))?;
            if last.is_some_and(|last| last >= file.name.as_str()) {
                return Err(Error::invalid(format!("files of {} are not in order", folder.path)));
            }
            last = Some(file.name.as_str());
            if above + 1 + file.name.len() > MAX_PATH_BYTES {
                return Err(Error::invalid(format!("a path has at most {MAX_PATH_BYTES} bytes")));
            }
            if file.size.get() > i64::MAX as u64 || file.generation.len() > 1000 {
                return Err(Error::invalid(format!("file '{}' cannot be as it is said to be", file.name)));
            }
        }
    }
    Ok(())
}

struct RegisterFiles {
    site: Option<SiteId>,
    files: Register,
}

/// What was decided, before the journal has numbers.
pub(crate) struct Draft {
    folders: Vec<Result<Vec<Result<Registered>>>>,
    mark: Option<Mark>,
}

/// What is written at the end, past what the batch keeps in memory.
struct Decided {
    sp: Option<i64>,
    entries: Vec<EntryRow>,
    replicas: Vec<ReplicaRow>,
    made: Vec<CreatedItem>,
    published: Vec<PublishedItem>,
    stale: Vec<ReplicaItem>,
}

impl Change for RegisterFiles {
    type Draft = Draft;
    type Out = RegisterAnswer;
    // Its rows are written past the batch.
    const ALONE: bool = true;

    fn want(&self, wants: &mut Wants) {
        wants.store(self.files.store);
        for folder in &self.files.folders {
            wants.path(&folder.path, PathLock::ADD, &self.files.caller);
        }
    }

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Draft> {
        let store = self.store(batch).await?;
        let has_in_hand = publish::has_in_hand(batch.tx, store.st).await?;
        let mut decided = Decided {
            sp: None,
            entries: Vec::new(),
            replicas: Vec::new(),
            made: Vec::new(),
            published: Vec::new(),
            stale: Vec::new(),
        };
        let mut folders = Vec::with_capacity(self.files.folders.len());
        for folder in &self.files.folders {
            folders.push(one_outcome(self.folder(batch, &store, folder, has_in_hand, &mut decided).await)?);
        }
        let mark = self.write(batch, decided).await?;
        Ok(Draft { folders, mark })
    }

    fn finish(self, draft: Draft, written: &Written) -> RegisterAnswer {
        let position: Option<Position> = draft.mark.map(|mark| written.position(mark));
        RegisterAnswer { folders: draft.folders, position }
    }
}

impl RegisterFiles {
    async fn store<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Arc<StoreRow>> {
        let id = self.files.store;
        let here = this_site(batch).await?;
        let row = match self.site {
            Some(site) => store_of(batch, id, site, here).await?,
            None => {
                let row = batch.store(id).await?;
                crate::store::own(&row)?;
                row
            }
        };
        if self.site.is_some_and(|site| site != here) && self.files.caller.is_admin() {
            let message = "administrators of other sites are ordinary users here";
            return Err(Error::new(ErrorKind::NotAllowed, message));
        }
        if row.store.layout != StoreLayout::Native {
            let message = format!(
                "cannot register files of store {}: it is managed, and only holds what was put there through a site",
                row.store.name
            );
            return Err(Error::unsupported(message));
        }
        if row.store.state == StoreState::Offline {
            let message = format!("cannot register files of store {}: it is away", row.store.name);
            return Err(Error::new(ErrorKind::ReadOnly, message));
        }
        Ok(row)
    }

    /// Decides on the files of one folder.
    async fn folder<T: Tx>(
        &self,
        batch: &mut Batch<'_, T>,
        store: &StoreRow,
        folder: &NativeFolder,
        has_in_hand: bool,
        decided: &mut Decided,
    ) -> Result<Vec<Result<Registered>>> {
        let Register { caller, within, .. } = &self.files;
        let walk = batch.enter(caller, Permission::Write, &folder.path, PathLock::ADD).await?;
        let sp = walk.space.sp;
        if *decided.sp.get_or_insert(sp) != sp {
            return Err(Error::invalid("files of one call go to one space"));
        }
        let is_new = walk.target().is_none();
        let (made, parent) = make_parents(batch, &folder.path, &walk, 0).await?;
        decided.made.extend(made);
        if !parent.is_collection() {
            return Err(crate::access::through(&folder.path, &parent, 0));
        }
        let known = Known::load(batch, store.st, folder, &parent, is_new, has_in_hand).await?;
        let at = Place { sp, st: store.st, is_own: store.store.site.is_none(), parent: parent.id };
        let mut outcomes = Vec::with_capacity(folder.files.len());
        for file in &folder.files {
            let key = folder.key_of(&file.name);
            let outcome = match known.copies.get(&key) {
                Some(copy) => known_file(batch, (caller, within), &at, copy, file, decided).await,
                None => match known.refuse(&key, file) {
                    Some(error) => Err(error),
                    None => new_file(batch, &at, self.files.store, key, file, decided).await,
                },
            };
            outcomes.push(one_outcome(outcome)?);
        }
        Ok(outcomes)
    }

    async fn write<T: Tx>(&self, batch: &mut Batch<'_, T>, decided: Decided) -> Result<Option<Mark>> {
        let Decided { sp, entries, replicas, made, published, stale } = decided;
        let Some(sp) = sp else { return Ok(None) };
        batch.flush().await?;
        entry::insert(batch.tx, &entries.iter().collect::<Vec<_>>()).await?;
        replica::insert(batch.tx, &replicas.iter().collect::<Vec<_>>()).await?;
        let who = actor(&self.files.caller);
        if !made.is_empty() {
            batch.record(sp, &who, kind::ENTRIES_CREATED, &Items { items: made })?;
        }
        if !stale.is_empty() {
            batch.record(sp, &who, kind::REPLICAS_CHANGED, &Items { items: stale })?;
        }
        let mut rest = published;
        while !rest.is_empty() {
            let behind = rest.split_off(rest.len().min(RECORD_ITEMS));
            let items = std::mem::replace(&mut rest, behind);
            batch.record(sp, &who, kind::OBJECTS_PUBLISHED, &Items { items })?;
        }
        Ok(Some(batch.no_record(sp)))
    }
}

/// What is there already of the keys and names of a folder's files.
struct Known {
    copies: HashMap<String, ReplicaRow>,
    names: HashMap<String, EntryRow>,
    /// Keys that are an intent's, garbage or an arrival's.
    in_hand: HashSet<String>,
}

impl Known {
    async fn load<T: Tx>(
        batch: &mut Batch<'_, T>,
        st: i64,
        folder: &NativeFolder,
        parent: &EntryRow,
        is_new: bool,
        has_in_hand: bool,
    ) -> Result<Self> {
        let mut known = Self { copies: HashMap::new(), names: HashMap::new(), in_hand: HashSet::new() };
        let (Some(first), Some(last)) = (folder.files.first(), folder.files.last()) else { return Ok(known) };
        let keys = || folder.files.iter().map(|file| (st, folder.key_of(&file.name))).collect::<Vec<_>>();
        let (first_key, last_key) = (folder.key_of(&first.name), folder.key_of(&last.name));
        if replica::has_keys(batch.tx, st, &first_key, &last_key).await? {
            let found = replica::by_keys(batch.tx, keys()).await?;
            known.copies = found.into_iter().map(|row| (row.replica.key.clone(), row)).collect();
        }
        if has_in_hand {
            let taken = publish::taken(batch.tx, keys()).await?;
            known.in_hand = taken.into_iter().map(|(_, key)| key).collect();
        }
        let at = (parent.sp, parent.id);
        if !is_new && entry::has_names(batch.tx, at, &first.name, &last.name).await? {
            let is_unknown = |file: &&NativeFile| !known.copies.contains_key(&folder.key_of(&file.name));
            let names = folder.files.iter().filter(is_unknown);
            let names = names.map(|file| (at.0, at.1, file.name.clone())).collect();
            let found = entry::by_names(batch.tx, names, Lock::None).await?;
            known.names = found.into_iter().map(|row| (row.name.clone(), row)).collect();
        }
        Ok(known)
    }

    /// Returns why a file whose key is no copy's cannot be registered.
    fn refuse(&self, key: &str, file: &NativeFile) -> Option<Error> {
        let name = &file.name;
        match self.names.get(name) {
            Some(there) if there.is_collection() => {
                let message = format!("cannot register file '{name}': a collection has its name");
                Some(Error::new(ErrorKind::IsCollection, message))
            }
            Some(there) if there.target.is_some() => {
                let message = format!("cannot register file '{name}': a link has its name");
                Some(Error::new(ErrorKind::Conflict { version: None }, message))
            }
            Some(there) => {
                let message = format!(
                    "cannot register file '{name}': an object whose bytes lie elsewhere has its name"
                );
                Some(Error::new(ErrorKind::Conflict { version: there.version() }, message))
            }
            None if self.in_hand.contains(key) => {
                let message = format!("cannot register file '{name}': the site is writing or deleting it");
                Some(Error::new(ErrorKind::Conflict { version: None }, message))
            }
            None => None,
        }
    }
}

/// Where files go.
struct Place {
    sp: i64,
    st: i64,
    is_own: bool,
    /// The collection.
    parent: u64,
}

/// Decides on a file that is known by its key.
async fn known_file<T: Tx>(
    batch: &mut Batch<'_, T>,
    (caller, within): (&Caller, &ObjectPath),
    at: &Place,
    copy: &ReplicaRow,
    file: &NativeFile,
    decided: &mut Decided,
) -> Result<Registered> {
    let name = &file.name;
    let conflict = |why: &str, version| {
        let message = format!("cannot register file '{name}': {why}");
        Err(Error::new(ErrorKind::Conflict { version }, message))
    };
    if copy.sp != at.sp {
        return conflict("it belongs to an object of another space", None);
    }
    if copy.replica.state == ReplicaState::Writing {
        return conflict("a mount writes it, and tells itself what becomes of it", None);
    }
    let is_unchanged = copy.replica.generation.as_deref() == Some(file.generation.as_str())
        && copy.replica.state != ReplicaState::Lost;
    let lock = if is_unchanged { Lock::None } else { Lock::Update };
    let Some(entry) = batch.entry(at.sp, copy.entry, lock).await? else {
        return conflict("its object was removed", None);
    };
    if (entry.parent, &entry.name) != (at.parent, name) {
        let path = batch.path_of(at.sp, entry.id).await?;
        if !path.is_within(within) {
            return conflict(&format!("it belongs to {path}"), entry.version());
        }
        if !is_unchanged {
            batch.enter(caller, Permission::Write, &path, PathLock::NONE).await?;
        }
    }
    if is_unchanged {
        return Ok(Registered::Unchanged);
    }
    let old = match &entry.content {
        Some(content) if content.version == copy.replica.version => content.clone(),
        _ => return conflict("it holds an older version of its object, and was changed", entry.version()),
    };
    // Not as it was read past the batch, which may know more of it.
    let row = crate::replica::copy_of(batch, at.sp, copy.replica.version, copy.replica.store).await?;
    let state = file.root.map_or(ReplicaState::Unverified, |_| ReplicaState::Good);
    let NativeFile { size, generation, mtime, mode, root, .. } = file;
    let now = FileState { size: *size, generation, mtime: *mtime, mode: *mode, state, root: *root };
    let (item, stale) = change_file(batch, &row, &entry, &old, now).await?;
    decided.published.push(item);
    decided.stale.extend(stale);
    Ok(Registered::Changed)
}

/// Makes an object of a file that nothing is known of.
async fn new_file<T: Tx>(
    batch: &mut Batch<'_, T>,
    at: &Place,
    store: StoreId,
    key: String,
    file: &NativeFile,
    decided: &mut Decided,
) -> Result<Registered> {
    let NativeFile { name, size, generation, mtime, mode, root } = file;
    let now = batch.now();
    let (id, version) = (batch.next_id(at.sp).await?, VersionId(batch.next_id(at.sp).await?));
    let replica = Replica {
        version,
        store,
        key,
        state: root.map_or(ReplicaState::Unverified, |_| ReplicaState::Good),
        generation: Some(generation.clone()),
        checked: root.map(|_| now),
    };
    decided.published.push(PublishedItem {
        id: EntryId(id),
        parent: EntryId(at.parent),
        name: name.clone(),
        version,
        size: *size,
        root: *root,
        mtime: *mtime,
        mode: *mode,
        base: None,
        replica: ReplicaItem::new(&replica, None),
        digests: Vec::new(),
    });
    decided.entries.push(EntryRow {
        sp: at.sp,
        id,
        parent: at.parent,
        name: name.clone(),
        kind: EntryKind::Object,
        created: now,
        modified: now,
        content: Some(Content {
            version,
            size: *size,
            root: *root,
            mtime: *mtime,
            mode: *mode,
            digests: Vec::new(),
        }),
        target: None,
    });
    let Place { sp, st, is_own, .. } = *at;
    decided.replicas.push(ReplicaRow { sp, st, entry: id, is_own, replica });
    Ok(Registered::Created)
}
