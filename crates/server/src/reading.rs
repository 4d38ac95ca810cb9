//! Reading versions: which copy, and every group verified before it leaves, unless its receiver does that
//! (`docs/design/transfers.md`, "Who compares").

mod small;
mod verified;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use percale_api::entries::Content;
use percale_catalog::{Catalog, NativeChange, OpenVersion, Replica, ReplicaReport};
use percale_client::Client;
use percale_core::access::Caller;
use percale_core::ids::SiteId;
use percale_core::state::ReplicaState;
use percale_core::tree::{GROUP_SIZE, HashTree, RootHash, TreeHasher, group_count};
use percale_core::{ByteCount, ByteRange, ErrorCode};
use percale_federation::{Acting, Fabric, Member};
use percale_store::{ErrorKind, Operation, ReadOptions, StoreExt};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::error::{ApiError, Result};
use crate::lease::ServerLease;
use crate::publish::{key, put_tree, tree_key};
use crate::stores::{OpenStore, Registry};
pub use small::{READS, TOGETHER, in_batches};
use verified::Groups;
pub use verified::{Piece, VerifiedRead};

/// Memory for hash trees that were read lately: those of 1 TB of content.
const TREE_CACHE_BYTES: u64 = 32 << 20;
/// Largest tree that is read: that of 64 TiB of content.
const MAX_TREE: ByteCount = ByteCount::gib(2);
/// For how long a site that failed comes last.
const AVOID_FOR: Duration = Duration::from_secs(60);
/// The distance of a site that can be dialled, and did not fail lately.
const DIALABLE: u8 = 1;

#[derive(Clone)]
struct TreeWeight;

impl Weighter<RootHash, Arc<HashTree>> for TreeWeight {
    fn weight(&self, _: &RootHash, tree: &Arc<HashTree>) -> u64 {
        64 + 32 * tree.groups().len() as u64
    }
}

/// Opens versions for reading.
pub struct Reader {
    catalog: Catalog,
    stores: Arc<Registry>,
    fabric: Fabric,
    lease: Arc<ServerLease>,
    trees: Cache<RootHash, Arc<HashTree>, TreeWeight>,
    /// Sites that failed, and when.
    failed: Mutex<HashMap<SiteId, Instant>>,
}

/// From where bytes may come.
#[derive(Debug, Clone)]
pub enum Reach {
    /// From own stores only, since another site asks.
    Here,
    /// Also from other sites, on behalf of a caller or task.
    Fabric(Acting),
}

impl Reach {
    /// Also from other sites, on behalf of this caller.
    pub fn of(caller: &Caller) -> Self {
        Self::Fabric(match caller.user {
            Some(_) => Acting::User(caller.clone()),
            None => Acting::Site,
        })
    }
}

/// A version with the copies to read it from; at least one.
pub struct Source {
    /// The version.
    pub version: OpenVersion,
    /// The copies, in the order in which they are tried.
    copies: Vec<Copy>,
    /// The version's tree; none while nobody hashed it.
    pub tree: Option<Arc<HashTree>>,
}

/// A copy that can be read.
struct Copy {
    replica: Replica,
    place: Place,
}

enum Place {
    Store(Arc<OpenStore>),
    Site { member: Arc<Member>, acting: Acting },
}

impl Copy {
    fn site(&self) -> Option<SiteId> {
        match &self.place {
            Place::Store(_) => None,
            Place::Site { member, .. } => Some(member.id),
        }
    }
}

impl Source {
    /// Returns the state of the copy that is read first.
    pub fn state(&self) -> ReplicaState {
        self.copies.first().map_or(ReplicaState::Good, |copy| copy.replica.state)
    }

    /// Reads the copies of a site before all others.
    pub fn prefer(&mut self, site: SiteId) {
        self.copies.sort_by_key(|copy| copy.site() != Some(site));
    }

    /// Returns the sites of the copies, in the order in which they are tried; nothing stands for this one.
    pub fn sites(&self) -> impl Iterator<Item = Option<SiteId>> {
        self.copies.iter().map(Copy::site)
    }

    /// Returns the store and the copy that is read first, if it is one of this site.
    pub fn on_own_store(&self) -> Option<(&Arc<OpenStore>, &Replica)> {
        match self.copies.first() {
            Some(Copy { replica, place: Place::Store(store) }) => Some((store, replica)),
            _ => None,
        }
    }
}

impl Reader {
    /// Makes a reader.
    pub fn new(catalog: Catalog, stores: Arc<Registry>, fabric: Fabric, lease: Arc<ServerLease>) -> Self {
        let trees = Cache::with_weighter(10_000, TREE_CACHE_BYTES, TreeWeight);
        Self { catalog, stores, fabric, lease, trees, failed: Mutex::default() }
    }

    /// Chooses the copies of a version: on own stores, then at sites that can be dialled, then at those that only dial
    /// out, then at those that failed in the last minute.
    ///
    /// # Errors
    /// - `Offline` if the only copies are on stores that are away.
    /// - `Integrity` if the only copies are known to be damaged or lost.
    /// - `SiteUnavailable` if the only copies are at sites that cannot be reached, or not on behalf of another site.
    pub async fn source(&self, version: OpenVersion, reach: &Reach) -> Result<Source> {
        let copies = self.copies(&version, reach).await?;
        let tree = self.tree(&version, &copies).await?;
        Ok(Source { version, copies, tree })
    }

    /// Returns the site to which a client is sent for a version, none of those that are called `not`: the first one with
    /// a good copy that can be dialled and did not fail in the last minute. Nothing if a copy can be read here.
    pub async fn elsewhere(
        &self,
        version: &OpenVersion,
        reach: &Reach,
        not: &[String],
    ) -> Option<Arc<Member>> {
        // Most versions have a copy here, and most clients ask.
        for replica in version.replicas.iter().filter(|replica| replica.state.is_readable()) {
            if let Ok(Place::Store(_)) = self.place(replica, reach).await {
                return None;
            }
        }
        let copies = self.copies(version, reach).await.ok()?;
        copies.into_iter().find_map(|copy| match &copy.place {
            Place::Site { member, .. }
                if copy.replica.state == ReplicaState::Good
                    && self.distance(&copy.place) == DIALABLE
                    && !not.contains(&member.name) =>
            {
                Some(member.clone())
            }
            _ => None,
        })
    }

    /// Returns the copies of a version in the order in which they are tried; at least one.
    async fn copies(&self, version: &OpenVersion, reach: &Reach) -> Result<Vec<Copy>> {
        let mut copies = Vec::new();
        let mut last = None;
        for replica in version.replicas.iter().filter(|replica| replica.state.is_readable()) {
            match self.place(replica, reach).await {
                Ok(place) => copies.push(Copy { replica: replica.clone(), place }),
                Err(error) => last = Some(error),
            }
        }
        if copies.is_empty() {
            return Err(match last {
                Some(error) => error.with_path(&version.path),
                None => unreadable(version),
            });
        }
        // A copy that was hashed before one that was not.
        copies.sort_by_key(|copy| (self.distance(&copy.place), copy.replica.state != ReplicaState::Good));
        Ok(copies)
    }

    async fn place(&self, replica: &Replica, reach: &Reach) -> Result<Place> {
        let Some(site) = self.stores.site_of(replica.store).await? else {
            return self.stores.get(replica.store).await.map(Place::Store);
        };
        let member = self.fabric.member(site)?;
        match reach {
            Reach::Here => {
                let detail = format!("the copy is at site {}, not here", member.name);
                Err(ApiError::new(ErrorCode::SiteUnavailable, detail))
            }
            Reach::Fabric(acting) => Ok(Place::Site { member, acting: acting.clone() }),
        }
    }

    fn distance(&self, place: &Place) -> u8 {
        let Place::Site { member, .. } = place else { return 0 };
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        match failed.get(&member.id) {
            Some(at) if at.elapsed() < AVOID_FOR => 3,
            _ if member.is_dialable => DIALABLE,
            _ => 2,
        }
    }

    /// Returns the tree of a version: from memory, from beside a copy, made anew from the copy if it is not there, or from
    /// another site.
    async fn tree(&self, version: &OpenVersion, copies: &[Copy]) -> Result<Option<Arc<HashTree>>> {
        let Some(root) = version.root else { return Ok(None) };
        if group_count(version.size) == 1 {
            let tree =
                HashTree::of_single_group(version.size, root).map_err(|error| damaged(version, &error))?;
            return Ok(Some(Arc::new(tree)));
        }
        if let Some(tree) = self.trees.get(&root) {
            return Ok(Some(tree));
        }
        let mut last = None;
        for copy in copies {
            let tree = match &copy.place {
                Place::Store(store) => self.stored_tree(version, store, &copy.replica, root).await,
                Place::Site { member, acting } => self.tree_of_site(version, member, acting, root).await,
            };
            match tree {
                Ok(tree) => {
                    let tree = Arc::new(tree);
                    self.trees.insert(root, tree.clone());
                    return Ok(Some(tree));
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| unreadable(version)))
    }

    async fn stored_tree(
        &self,
        version: &OpenVersion,
        store: &OpenStore,
        replica: &Replica,
        root: RootHash,
    ) -> Result<HashTree> {
        let at = tree_key(version.space, version.version)?;
        let tree = match store.store.read_all(&at, ReadOptions::default(), MAX_TREE).await {
            Ok(stored) => HashTree::decode(&stored)
                .ok()
                .filter(|tree| tree.root() == root && tree.size() == version.size),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        match tree {
            Some(tree) => Ok(tree),
            None => self.rebuild(version, store, replica, root).await,
        }
    }

    async fn tree_of_site(
        &self,
        version: &OpenVersion,
        member: &Member,
        acting: &Acting,
        root: RootHash,
    ) -> Result<HashTree> {
        let client = self.client(member, acting, version)?;
        let tree = client.peer_tree(version.space, version.version).await;
        let tree = tree.map_err(|error| self.site_fault(version, member, error))?;
        if tree.root() == root && tree.size() == version.size {
            return Ok(tree);
        }
        self.avoid(member.id);
        let detail =
            format!("site {} sent the hash tree of another content; nothing of it was used", member.name);
        Err(ApiError::new(ErrorCode::Integrity, detail).with_path(&version.path))
    }

    /// Returns a client that asks a site for a version; that site waits until it knows of it.
    fn client(&self, member: &Member, acting: &Acting, version: &OpenVersion) -> Result<Client> {
        Ok(self.fabric.client_at(member.id, acting, Some(version.position))?)
    }

    /// Puts a site last for a minute, since it failed.
    pub(crate) fn avoid(&self, site: SiteId) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).insert(site, Instant::now());
    }

    /// Turns what another site said, or did not say, into what the reader is told.
    fn site_fault(&self, version: &OpenVersion, member: &Member, error: percale_client::Error) -> ApiError {
        self.avoid(member.id);
        if error.code() == ErrorCode::Integrity {
            tracing::error!(path = %version.path, site = member.name, %error, "damaged copy at another site");
            metrics::counter!("percale_checksum_mismatches_total").increment(1);
        }
        let error = ApiError::from(percale_federation::Error::from(error));
        error.context(format!("cannot read from site {}", member.name)).with_path(&version.path)
    }

    /// Makes a tree from the bytes of a copy, and puts it beside them for the next time.
    async fn rebuild(
        &self,
        version: &OpenVersion,
        store: &OpenStore,
        replica: &Replica,
        root: RootHash,
    ) -> Result<HashTree> {
        tracing::warn!(path = %version.path, version = version.version.0, "hash tree is missing or damaged; made anew");
        let tree = match hash(store, replica).await {
            Ok(tree) if tree.root() == root => tree,
            Ok(_) => return Err(self.found_damaged(version, replica, "the whole content").await),
            Err(error) => return Err(self.store_fault(version, store, replica, error).await),
        };
        if let Err(error) = self.keep_tree(version, store, &tree).await {
            tracing::warn!(path = %version.path, %error, "the hash tree could not be kept");
        }
        Ok(tree)
    }

    /// Puts a tree beside its content, in place of what is there and cannot be used.
    async fn keep_tree(&self, version: &OpenVersion, store: &OpenStore, tree: &HashTree) -> Result<()> {
        put_tree(&self.lease, store, version.space, version.version, tree).await
    }

    /// Begins to read bytes of a version, from the first of its copies that answers.
    ///
    /// # Errors
    /// - `VersionChanged` if a native file is no longer the one that was registered.
    /// - Whatever the last copy answers.
    pub async fn read(self: &Arc<Self>, source: Arc<Source>, range: ByteRange) -> Result<VerifiedRead> {
        let size = source.version.size;
        let wanted =
            ByteRange::at(range.start().min(size.0), range.len().min(size.0 - range.start().min(size.0)));
        VerifiedRead::begin(self.clone(), source, wanted).await
    }

    /// Opens one copy for reading whole groups.
    async fn open(&self, source: &Source, copy: &Copy, covering: ByteRange) -> Result<Groups> {
        let version = &source.version;
        match &copy.place {
            Place::Store(store) => {
                let options = ReadOptions::range(covering)
                    .if_generation(store.expected_generation(copy.replica.generation.as_deref()))
                    .piece_size(ByteCount(GROUP_SIZE));
                match store.store.read(&key(&copy.replica.key)?, options).await {
                    Ok(stream) if stream.range() == covering => Ok(Groups::Store(stream)),
                    Ok(_) => Err(self.found_damaged(version, &copy.replica, "its size").await),
                    Err(error) => Err(self.store_fault(version, store, &copy.replica, error).await),
                }
            }
            Place::Site { member, acting } => {
                let client = self.client(member, acting, version)?;
                let content = Content {
                    version: version.version,
                    size: version.size.0,
                    root: version.root,
                    mtime: version.mtime.unwrap_or(version.modified),
                    mode: version.mode,
                    digests: Vec::new(),
                };
                let stream = client.read_version(version.space, &version.path, &content, covering);
                Ok(Groups::Site(Box::new(stream)))
            }
        }
    }

    /// Returns the next bytes of a copy, or nothing at the end.
    async fn next_of(&self, source: &Source, copy: &Copy, groups: &mut Groups) -> Result<Option<Bytes>> {
        match (groups, &copy.place) {
            (Groups::Store(stream), Place::Store(store)) => match stream.next().await {
                Ok(piece) => Ok(piece),
                Err(error) => Err(self.store_fault(&source.version, store, &copy.replica, error).await),
            },
            (Groups::Site(stream), Place::Site { member, .. }) => {
                stream.next().await.map_err(|error| self.site_fault(&source.version, member, error))
            }
            _ => Err(ApiError::internal("a copy is read from where it is not")),
        }
    }

    /// Notes that bytes of a copy are wrong.
    async fn found_wrong(&self, source: &Source, copy: &Copy, what: &str) -> ApiError {
        match &copy.place {
            Place::Store(_) => self.found_damaged(&source.version, &copy.replica, what).await,
            Place::Site { member, .. } => {
                self.avoid(member.id);
                let path = &source.version.path;
                tracing::error!(%path, site = member.name, "wrong bytes from another site: {what}");
                metrics::counter!("percale_checksum_mismatches_total").increment(1);
                let detail =
                    format!("site {} sent wrong bytes ({what}); nothing of them was served", member.name);
                ApiError::new(ErrorCode::Integrity, detail).with_path(path)
            }
        }
    }

    /// Turns what a store said while reading into what the reader is told, and notes what it means for the copy.
    async fn store_fault(
        &self,
        version: &OpenVersion,
        store: &OpenStore,
        replica: &Replica,
        error: percale_store::Error,
    ) -> ApiError {
        match error.kind() {
            kind if kind.is_absent() => {
                self.report(version, replica, ReplicaState::Lost).await;
                let detail = format!("the copy on store {} is gone", store.row.name);
                ApiError::new(ErrorCode::Integrity, detail).with_path(&version.path)
            }
            ErrorKind::Changed if store.is_managed() => {
                self.found_damaged(version, replica, "its file, which was changed from outside").await
            }
            ErrorKind::Changed => {
                self.native_changed(version, store, replica).await;
                let detail = "the file was changed at its site while it was read; read it again";
                ApiError::new(ErrorCode::VersionChanged, detail).with_path(&version.path)
            }
            ErrorKind::Integrity => self.found_damaged(version, replica, "what the store returned").await,
            _ => ApiError::from(error).with_path(&version.path),
        }
    }

    async fn native_changed(&self, version: &OpenVersion, store: &OpenStore, replica: &Replica) {
        let Ok(at) = key(&replica.key) else { return };
        let Ok(meta) = store.store.stat(&at).await else { return };
        let Some(generation) = meta.generation else { return };
        let change = NativeChange {
            space: version.space,
            version: version.version,
            store: replica.store,
            size: meta.size,
            generation: generation.to_string(),
            mtime: meta.modified,
            mode: meta.mode,
            state: ReplicaState::Unverified,
        };
        if let Err(error) = self.catalog.native_changed(&crate::app::system_caller(), change).await {
            tracing::warn!(path = %version.path, %error, "cannot note that a native file changed");
        }
    }

    async fn found_damaged(&self, version: &OpenVersion, replica: &Replica, what: &str) -> ApiError {
        self.report(version, replica, ReplicaState::Suspect).await;
        tracing::error!(path = %version.path, version = version.version.0, key = replica.key, "damaged copy: {what}");
        metrics::counter!("percale_checksum_mismatches_total").increment(1);
        let detail = format!("a copy is damaged ({what} does not match its hash); nothing of it was served");
        ApiError::new(ErrorCode::Integrity, detail).with_path(&version.path)
    }

    /// Notes the state of a copy; a failure to do so is logged, since the reader has its own error to hear.
    pub async fn report(&self, version: &OpenVersion, replica: &Replica, state: ReplicaState) {
        let report = ReplicaReport {
            space: version.space,
            version: version.version,
            store: replica.store,
            key: Some(replica.key.clone()),
            state,
            generation: None,
            root: None,
            is_checked: true,
        };
        for outcome in self.catalog.report_replicas(&crate::app::system_caller(), vec![report]).await {
            if let Err(error) = outcome {
                tracing::warn!(path = %version.path, %error, "cannot note the state of a copy");
            }
        }
    }

    /// Reads a whole copy from its store, whatever its state, and notes whether it is right. Returns its tree if it is.
    ///
    /// # Errors
    /// `Integrity` if it is damaged or lost; what the store answers if it could not be looked at.
    pub async fn check(&self, version: &OpenVersion, replica: &Replica) -> Result<HashTree> {
        let store = self.stores.get(replica.store).await?;
        let outcome = hash(&store, replica).await;
        let tree = match outcome {
            Ok(tree) => tree,
            Err(error) => return Err(self.store_fault(version, &store, replica, error).await),
        };
        let is_right = tree.size() == version.size && version.root.is_none_or(|root| root == tree.root());
        if !is_right {
            return Err(self.found_damaged(version, replica, "the whole content").await);
        }
        if tree.groups().len() > 1 && version.root.is_none() {
            self.keep_tree(version, &store, &tree).await?;
        }
        let report = ReplicaReport {
            space: version.space,
            version: version.version,
            store: replica.store,
            key: Some(replica.key.clone()),
            state: ReplicaState::Good,
            generation: None,
            root: Some(tree.root()),
            is_checked: true,
        };
        for outcome in self.catalog.report_replicas(&crate::app::system_caller(), vec![report]).await {
            outcome?;
        }
        Ok(tree)
    }
}

/// Hashes a whole file.
async fn hash(store: &OpenStore, replica: &Replica) -> percale_store::Result<HashTree> {
    let at = percale_store::StoreKey::parse(&replica.key).map_err(|error| {
        percale_store::Error::new(ErrorKind::InvalidKey, Operation::Read).on(&replica.key).caused_by(error)
    })?;
    let mut stream = store
        .store
        .read(
            &at,
            ReadOptions::default().if_generation(store.expected_generation(replica.generation.as_deref())),
        )
        .await?;
    let mut hasher = TreeHasher::new();
    while let Some(piece) = stream.next().await? {
        // 1 MiB takes about 0.15 ms; the store reads the next piece meanwhile.
        hasher.update(&piece);
    }
    Ok(hasher.finish())
}

fn unreadable(version: &OpenVersion) -> ApiError {
    let is = |state| version.replicas.iter().any(|replica| replica.state == state);
    let (code, detail) = if is(ReplicaState::Offline) || is(ReplicaState::Nearline) {
        (ErrorCode::Offline, "every copy is on a store that is away")
    } else if is(ReplicaState::Writing) {
        (ErrorCode::VersionChanged, "the file is being written at its site")
    } else if version.replicas.is_empty() {
        (ErrorCode::Integrity, "there is no copy of this version any more")
    } else {
        (ErrorCode::Integrity, "every copy is damaged or lost")
    };
    ApiError::new(code, detail).with_path(&version.path)
}

fn damaged(version: &OpenVersion, error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(ErrorCode::Internal, format!("the hash tree cannot be used: {error}"))
        .with_path(&version.path)
}
