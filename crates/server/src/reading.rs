//! Reading versions: which copy, and every group verified before it leaves.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use percale_catalog::{Catalog, NativeChange, OpenVersion, Replica, ReplicaReport};
use percale_core::state::ReplicaState;
use percale_core::tree::{GROUP_SIZE, HashTree, RootHash, TreeHasher, group_count, group_range};
use percale_core::{ByteCount, ByteRange, ErrorCode};
use percale_store::{ErrorKind, Generation, Operation, ReadOptions, ReadStream, StoreExt};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::error::{ApiError, Result};
use crate::lease::ServerLease;
use crate::publish::{key, tree_key};
use crate::stores::{OpenStore, Registry};

/// Memory for hash trees that were read lately: those of 4 TB of content.
const TREE_CACHE_BYTES: u64 = 128 << 20;
/// Largest tree that is read: that of 64 TiB of content.
const MAX_TREE: ByteCount = ByteCount::gib(2);

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
    lease: Arc<ServerLease>,
    trees: Cache<RootHash, Arc<HashTree>, TreeWeight>,
}

/// A version with a copy to read it from.
pub struct Source {
    /// The version.
    pub version: OpenVersion,
    /// The copy.
    pub replica: Replica,
    /// Its store.
    pub store: Arc<OpenStore>,
    /// The version's tree; none while nobody hashed it.
    pub tree: Option<Arc<HashTree>>,
}

impl Reader {
    /// Makes a reader.
    pub fn new(catalog: Catalog, stores: Arc<Registry>, lease: Arc<ServerLease>) -> Self {
        let trees = Cache::with_weighter(10_000, TREE_CACHE_BYTES, TreeWeight);
        Self { catalog, stores, lease, trees }
    }

    /// Chooses a copy of a version.
    ///
    /// # Errors
    /// - `Offline` if the only copies are on stores that are away.
    /// - `Integrity` if the only copies are known to be damaged or lost.
    pub async fn source(&self, version: OpenVersion) -> Result<Source> {
        let mut readable: Vec<_> =
            version.replicas.iter().filter(|replica| replica.state.is_readable()).cloned().collect();
        // A copy that was hashed before one that was not.
        readable.sort_by_key(|replica| replica.state != ReplicaState::Good);
        let mut last = None;
        for replica in readable {
            match self.stores.get(replica.store).await {
                Ok(store) => {
                    let tree = self.tree(&version, &store, &replica).await?;
                    return Ok(Source { version, replica, store, tree });
                }
                Err(error) => last = Some(error),
            }
        }
        Err(match last {
            Some(error) => error.with_path(&version.path),
            None => unreadable(&version),
        })
    }

    /// Returns the tree of a version: from memory, from beside the copy, or made anew from the copy if it is not there.
    async fn tree(
        &self,
        version: &OpenVersion,
        store: &OpenStore,
        replica: &Replica,
    ) -> Result<Option<Arc<HashTree>>> {
        let Some(root) = version.root else { return Ok(None) };
        if group_count(version.size) == 1 {
            let tree =
                HashTree::of_single_group(version.size, root).map_err(|error| damaged(version, &error))?;
            return Ok(Some(Arc::new(tree)));
        }
        if let Some(tree) = self.trees.get(&root) {
            return Ok(Some(tree));
        }
        let at = tree_key(version.space, version.version)?;
        let tree = match store.store.read_all(&at, ReadOptions::default(), MAX_TREE).await {
            Ok(stored) => HashTree::decode(&stored)
                .ok()
                .filter(|tree| tree.root() == root && tree.size() == version.size),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        let tree = match tree {
            Some(tree) => tree,
            None => self.rebuild(version, store, replica, root).await?,
        };
        let tree = Arc::new(tree);
        self.trees.insert(root, tree.clone());
        Ok(Some(tree))
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
            Err(error) => return Err(ApiError::from(error).with_path(&version.path)),
        };
        if let Err(error) = self.keep_tree(version, store, &tree).await {
            tracing::warn!(path = %version.path, %error, "the hash tree could not be kept");
        }
        Ok(tree)
    }

    /// Puts a tree beside its content, in place of what is there and cannot be used.
    async fn keep_tree(&self, version: &OpenVersion, store: &OpenStore, tree: &HashTree) -> Result<()> {
        let at = tree_key(version.space, version.version)?;
        store.store.delete_one(&at, None).await?;
        store.store.put_small(self.lease.token()?, at, tree.encode().into()).await?;
        Ok(())
    }

    /// Begins to read bytes of a version.
    ///
    /// # Errors
    /// - `VersionChanged` if a native file is no longer the one that was registered.
    /// - Whatever the store answers.
    pub async fn read(self: &Arc<Self>, source: Arc<Source>, range: ByteRange) -> Result<VerifiedRead> {
        let size = source.version.size;
        let wanted =
            ByteRange::at(range.start().min(size.0), range.len().min(size.0 - range.start().min(size.0)));
        // Whole groups, since only those can be verified.
        let covering = wanted.align_out(GROUP_SIZE, size);
        let options = ReadOptions::range(covering)
            .if_generation(expected_generation(&source.store, &source.replica))
            .piece_size(ByteCount(GROUP_SIZE));
        let opened = source.store.store.read(&key(&source.replica.key)?, options).await;
        let stream = match opened {
            Ok(stream) if stream.range() == covering => stream,
            Ok(_) => return Err(self.found_damaged(&source.version, &source.replica, "its size").await),
            Err(error) => return Err(self.store_fault(&source, error).await),
        };
        Ok(VerifiedRead {
            reader: self.clone(),
            source,
            stream,
            wanted,
            at: covering.start(),
            pending: BytesMut::new(),
        })
    }

    /// Turns what a store said while reading into what the reader is told, and notes what it means for the copy.
    async fn store_fault(&self, source: &Source, error: percale_store::Error) -> ApiError {
        let (version, replica) = (&source.version, &source.replica);
        match error.kind() {
            ErrorKind::NotFound => {
                self.report(version, replica, ReplicaState::Lost).await;
                let detail = format!("the copy on store {} is gone", source.store.row.name);
                ApiError::new(ErrorCode::Integrity, detail).with_path(&version.path)
            }
            ErrorKind::Changed if source.store.is_managed() => {
                self.found_damaged(version, replica, "its file, which was changed from outside").await
            }
            ErrorKind::Changed => {
                self.native_changed(source).await;
                let detail = "the file was changed at its site while it was read; read it again";
                ApiError::new(ErrorCode::VersionChanged, detail).with_path(&version.path)
            }
            ErrorKind::Integrity => self.found_damaged(version, replica, "what the store returned").await,
            _ => ApiError::from(error).with_path(&version.path),
        }
    }

    async fn native_changed(&self, source: &Source) {
        let Ok(at) = key(&source.replica.key) else { return };
        let Ok(meta) = source.store.store.stat(&at).await else { return };
        let Some(generation) = meta.generation else { return };
        let change = NativeChange {
            space: source.version.space,
            version: source.version.version,
            store: source.replica.store,
            size: meta.size,
            generation: generation.to_string(),
            mtime: meta.modified,
            state: ReplicaState::Unverified,
        };
        if let Err(error) = self.catalog.native_changed(&crate::app::system_caller(), change).await {
            tracing::warn!(path = %source.version.path, %error, "cannot note that a native file changed");
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
            Err(error) => {
                let source = Source { version: version.clone(), replica: replica.clone(), store, tree: None };
                return Err(self.store_fault(&source, error).await);
            }
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

/// The generation that a native file must have. Files of a managed store are told by their hashes alone: a restored
/// backup or a changed owner is no damage.
fn expected_generation(store: &OpenStore, replica: &Replica) -> Option<Generation> {
    if store.is_managed() { None } else { replica.generation.as_deref().map(Generation::new) }
}

/// Hashes a whole file.
async fn hash(store: &OpenStore, replica: &Replica) -> percale_store::Result<HashTree> {
    let at = percale_store::StoreKey::parse(&replica.key).map_err(|error| {
        percale_store::Error::new(ErrorKind::InvalidKey, Operation::Read).on(&replica.key).caused_by(error)
    })?;
    let mut stream = store
        .store
        .read(&at, ReadOptions::default().if_generation(expected_generation(store, replica)))
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

/// Bytes of a version, each group verified. Ends early, with an error, before the first wrong byte.
pub struct VerifiedRead {
    reader: Arc<Reader>,
    source: Arc<Source>,
    stream: Box<dyn ReadStream>,
    wanted: ByteRange,
    at: u64,
    pending: BytesMut,
}

/// A whole group: verified, unless nobody hashed the version yet.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Where it begins in the content.
    pub offset: u64,
    /// Its bytes.
    pub bytes: Bytes,
}

impl VerifiedRead {
    /// Returns the next piece of what was asked for, or nothing at the end.
    ///
    /// # Errors
    /// `Integrity` for damage, `VersionChanged` for a native file that changed, or what the store answers.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        let Some(Piece { offset, bytes }) = self.next_piece().await? else { return Ok(None) };
        let have = ByteRange::at(offset, bytes.len() as u64);
        let Some(part) = have.intersect(self.wanted) else { return Ok(None) };
        let start = (part.start() - offset) as usize;
        Ok(Some(bytes.slice(start..start + part.len() as usize)))
    }

    /// Returns the next whole group of those that cover what was asked for.
    ///
    /// # Errors
    /// As [`VerifiedRead::next`].
    pub async fn next_piece(&mut self) -> Result<Option<Piece>> {
        let group = self.at / GROUP_SIZE;
        let len = group_range(self.source.version.size, group).len() as usize;
        if len == 0 {
            return Ok(None);
        }
        let Some(bytes) = self.whole(len).await? else { return Ok(None) };
        let tree = self.source.tree.as_ref();
        if tree.is_some_and(|tree| tree.verify(group, &bytes).is_err()) {
            let what = format!("group {group}");
            return Err(self.reader.found_damaged(&self.source.version, &self.source.replica, &what).await);
        }
        let offset = self.at;
        self.at += len as u64;
        Ok(Some(Piece { offset, bytes }))
    }

    /// Collects exactly `len` bytes; copies only if the store gives other pieces than groups.
    async fn whole(&mut self, len: usize) -> Result<Option<Bytes>> {
        loop {
            if self.pending.len() >= len {
                return Ok(Some(self.pending.split_to(len).freeze()));
            }
            match self.read().await? {
                Some(bytes) if self.pending.is_empty() && bytes.len() == len => return Ok(Some(bytes)),
                Some(bytes) => self.pending.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
    }

    async fn read(&mut self) -> Result<Option<Bytes>> {
        match self.stream.next().await {
            Ok(piece) => Ok(piece),
            Err(error) => Err(self.reader.store_fault(&self.source, error).await),
        }
    }
}
