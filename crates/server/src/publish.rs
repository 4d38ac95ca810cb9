//! The publish order: from staged bytes to visible versions (`docs/design/publishing.md`).
//!
//! Single objects that arrive at the same time are published together, as a group commit: whoever finds the queue free
//! takes all that wait.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use percale_catalog::{
    AnswerKey, Catalog, Commit, Committed, Condition, Intent, IntentRow, Prepare, TaskHolder,
};
use percale_core::access::Caller;
use percale_core::digest::Digest;
use percale_core::ids::{SpaceId, VersionId};
use percale_core::tree::{HashTree, TreeHasher};
use percale_core::{ByteCount, ErrorCode, FileMode, ObjectPath, Timestamp};
use percale_mover::Room;
use percale_store::failpoint::failpoint;
use percale_store::{
    ErrorKind, FileIdentity, Publish, Published, ReadOptions, SmallFile, StageToken, Staged, StoreExt,
    StoreKey,
};
use tokio::sync::{mpsc, oneshot};

use crate::abroad::{Abroad, Left};
use crate::error::{ApiError, Result};
use crate::extraction::{Arrived, Extraction};
use crate::fetch::is_of_task;
use crate::lease::ServerLease;
use crate::stores::OpenStore;

/// Most objects in one batch: what keeps a transaction and a flush below some tens of milliseconds.
pub const MAX_BATCH: usize = 512;
/// Batches at once: while one waits for the disk, the next is in the database.
const WORKERS: usize = 2;
/// Single objects that may wait; beyond that, writers are held back.
const QUEUE: usize = 4 * MAX_BATCH;

/// MiB of small objects that are on their way to stores at once, of all streams: what bounds a server's memory however many
/// clients send.
const ROOM: u32 = 64;

/// Returns where the hash tree of a version lies.
pub fn tree_key(space: SpaceId, version: VersionId) -> Result<StoreKey> {
    key(&format!(".percale/trees/{space}/{version}"))
}

/// Returns the key of a version whose natural key is taken.
pub fn version_key(space: SpaceId, version: VersionId) -> Result<StoreKey> {
    key(&format!(".percale/versions/{space}/{version}"))
}

/// Returns the key of bytes that go to a store which must know it from the beginning. Tokens are never used twice.
fn early_key(token: &StageToken) -> Result<StoreKey> {
    key(&format!(".percale/objects/{}-{}", token.fence(), token.name()))
}

/// Returns the key that a store wants to know when bytes are staged; none if it can wait until they are published.
///
/// # Errors
/// Never for a token of ours.
pub fn key_for_stage(store: &OpenStore, token: &StageToken) -> Result<Option<StoreKey>> {
    if store.store.capabilities().write.late_key { Ok(None) } else { early_key(token).map(Some) }
}

pub(crate) fn key(text: &str) -> Result<StoreKey> {
    StoreKey::parse(text)
        .map_err(|error| ApiError::new(ErrorCode::Internal, format!("store key '{text}': {error}")))
}

/// Finds a staged file that has its key already, since a commit got as far and the server died then or the catalog was away.
///
/// # Errors
/// What the store answers.
pub async fn find_published(
    store: &OpenStore,
    keys: [StoreKey; 2],
    (token, identity): (&StageToken, Option<&str>),
    size: ByteCount,
) -> Result<Option<(Staged, HashTree)>> {
    let identity = identity.map(FileIdentity::new);
    for key in keys {
        let meta = match store.store.stat(&key).await {
            Ok(meta) => meta,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error.into()),
        };
        if meta.identity.is_none() || meta.identity != identity || meta.size != size {
            continue;
        }
        // Hashed again rather than believed: the tree beside it may not have been flushed.
        let mut stream = store.store.read(&key, ReadOptions::default()).await?;
        let mut hasher = TreeHasher::new();
        while let Some(piece) = stream.next().await? {
            hasher.update(&piece);
        }
        return Ok(Some((Staged { token: token.clone(), size: meta.size, identity }, hasher.finish())));
    }
    Ok(None)
}

/// What is to be published where.
#[derive(Debug, Clone)]
pub struct NewObject {
    /// Who publishes.
    pub caller: Caller,
    /// What lets a task publish in the name of a user for whom another site vouches.
    pub delegation: Option<String>,
    /// Where.
    pub path: ObjectPath,
    /// Whether missing collections above are made.
    pub parents: bool,
    /// What must be there.
    pub condition: Condition,
    /// When its owner last modified it.
    pub mtime: Option<Timestamp>,
    /// Its permission bits; nothing leaves those of the object.
    pub mode: Option<FileMode>,
    /// Further digests to keep.
    pub digests: Vec<Digest>,
    /// Where the answer is recorded in the transaction that makes the version.
    pub answer: Option<AnswerKey>,
}

/// Bytes that are staged and hashed.
#[derive(Debug, Clone)]
pub struct StagedContent {
    /// Where they are.
    pub store: Arc<OpenStore>,
    /// The staged file.
    pub staged: Staged,
    /// Their tree.
    pub tree: HashTree,
}

/// One object on its way.
pub type Item = (NewObject, StagedContent);

struct Waiting {
    item: Item,
    answer: oneshot::Sender<Result<Done>>,
}

/// A publication that is visible, and whether its header was read before.
struct Done {
    committed: Committed,
    has_header: bool,
}

/// Publishes staged bytes under this server's lease.
pub struct Publisher {
    to: Arc<Destination>,
    queue: mpsc::Sender<Waiting>,
    room: Room,
}

/// Where publications are committed: in this site's catalog, or by the homes of their spaces.
struct Destination {
    catalog: Catalog,
    lease: Arc<ServerLease>,
    abroad: Arc<Abroad>,
    extraction: Arc<Extraction>,
}

impl Publisher {
    /// Makes the publisher and its workers, which end when it is dropped.
    pub fn new(
        catalog: Catalog,
        lease: Arc<ServerLease>,
        abroad: Arc<Abroad>,
        extraction: Arc<Extraction>,
    ) -> Arc<Self> {
        let to = Arc::new(Destination { catalog, lease, abroad, extraction });
        let (queue, waiting) = mpsc::channel(QUEUE);
        let waiting = Arc::new(tokio::sync::Mutex::new(waiting));
        for _ in 0..WORKERS {
            tokio::spawn(work(to.clone(), waiting.clone()));
        }
        Arc::new(Self { to, queue, room: Room::new(ROOM) })
    }

    /// Returns what small objects take room in that are on their way to stores.
    pub fn room(&self) -> &Room {
        &self.room
    }

    /// Publishes one object, together with others that wait.
    ///
    /// # Cancellation
    /// Dropping the future does not stop the publication.
    pub async fn publish_one(&self, object: NewObject, content: StagedContent) -> Result<Committed> {
        let (answer, result) = oneshot::channel();
        let path = object.path.clone();
        let stopping = |_| ApiError::new(ErrorCode::StoreUnavailable, "the server is stopping");
        self.queue
            .send(Waiting { item: (object, content), answer })
            .await
            .map_err(|error| stopping(error.to_string()))?;
        let done = result.await.map_err(|error| stopping(error.to_string()))?;
        self.settled(&path, done).await
    }

    /// Waits for what the space of a new version wants to be done before a write is answered.
    async fn settled(&self, path: &ObjectPath, done: Result<Done>) -> Result<Committed> {
        let Done { committed, has_header } = done?;
        if !has_header {
            self.to.extraction.settle(path, committed.position).await;
        }
        Ok(committed)
    }

    async fn all_settled(&self, paths: &[ObjectPath], all: Vec<Result<Done>>) -> Vec<Result<Committed>> {
        let mut results = Vec::with_capacity(all.len());
        for (path, done) in paths.iter().zip(all) {
            results.push(self.settled(path, done).await);
        }
        results
    }

    /// Publishes many objects, each with its own outcome, in their order.
    pub async fn publish_many(&self, items: Vec<Item>) -> Vec<Result<Committed>> {
        let paths = paths_of(&items);
        self.all_settled(&paths, self.to.publish_direct(items).await).await
    }

    /// Publishes objects whose bytes were staged under another lease than this server's. Where asking again can help, the bytes of
    /// those that fail are kept; what was prepared before and not committed goes on from there.
    pub async fn publish_staged(&self, holder: TaskHolder, items: Vec<Item>) -> Vec<Result<Committed>> {
        let begun = match self.to.catalog.intents_of(holder.lease).await {
            Ok(begun) => begun,
            Err(error) => return items.iter().map(|_| Err(error.clone().into())).collect(),
        };
        let mut begun: HashMap<String, Intent> =
            begun.into_iter().map(|row| (row.token, row.intent)).collect();
        let (count, paths) = (items.len(), paths_of(&items));
        let (mut prepared, mut fresh, mut fresh_at) = (Vec::new(), Vec::new(), Vec::new());
        for (index, item) in items.into_iter().enumerate() {
            match begun.remove(&item.1.staged.token.to_string()) {
                Some(intent) => prepared.push(Prepared { index, intent, item }),
                None => {
                    fresh.push(item);
                    fresh_at.push(index);
                }
            }
        }
        let mut results = match prepared.is_empty() {
            true => (0..count).map(|_| Err(lost())).collect(),
            false => self.to.finish(prepared, count, OnFailure::Keep).await,
        };
        for (at, result) in fresh_at.into_iter().zip(self.to.publish(holder, fresh, OnFailure::Keep).await) {
            results[at] = result;
        }
        self.all_settled(&paths, results).await
    }

    /// Publishes one object whose bytes were staged under an upload's own lease. What was prepared before and not
    /// committed, since a server died or the catalog was away, goes on from there.
    pub async fn publish_upload(
        &self,
        holder: TaskHolder,
        object: NewObject,
        content: StagedContent,
    ) -> Result<Committed> {
        let begun = self.to.catalog.intents_of(holder.lease).await?;
        let begun = begun.into_iter().find(|row| row.token == content.staged.token.to_string());
        let path = object.path.clone();
        let mut results = match begun {
            Some(IntentRow { intent, .. }) => {
                let prepared = vec![Prepared { index: 0, intent, item: (object, content) }];
                self.to.finish(prepared, 1, OnFailure::Keep).await
            }
            None => self.to.publish(holder, vec![(object, content)], OnFailure::Keep).await,
        };
        self.settled(&path, results.pop().unwrap_or_else(|| Err(lost()))).await
    }
}

fn paths_of(items: &[Item]) -> Vec<ObjectPath> {
    items.iter().map(|(object, _)| object.path.clone()).collect()
}

async fn work(to: Arc<Destination>, waiting: Arc<tokio::sync::Mutex<mpsc::Receiver<Waiting>>>) {
    let mut batch = Vec::with_capacity(MAX_BATCH);
    loop {
        // Held only to take what waits; the other worker takes the next batch while this one is on its way.
        let taken = waiting.lock().await.recv_many(&mut batch, MAX_BATCH).await;
        if taken == 0 {
            return;
        }
        let (items, answers): (Vec<_>, Vec<_>) =
            batch.drain(..).map(|one: Waiting| (one.item, one.answer)).unzip();
        let results = to.publish_direct(items).await;
        for (answer, result) in answers.into_iter().zip(results) {
            // Nobody waits for it if the client went away; it is published all the same.
            let _ = answer.send(result);
        }
    }
}

impl Destination {
    /// Publishes what was staged under this server's own lease.
    async fn publish_direct(&self, items: Vec<Item>) -> Vec<Result<Done>> {
        match self.lease.current() {
            Ok(holder) => self.publish(holder, items, OnFailure::Discard).await,
            Err(error) => {
                discard(&items).await;
                items.iter().map(|_| Err(error.clone())).collect()
            }
        }
    }

    /// Publishes each item where its space is ordered.
    async fn publish(
        &self,
        holder: TaskHolder,
        items: Vec<Item>,
        on_failure: OnFailure,
    ) -> Vec<Result<Done>> {
        let names = items.iter().filter_map(|(object, _)| object.path.space()).collect();
        let spaces = match self.abroad.spaces(names).await {
            Ok(spaces) => spaces,
            Err(error) => {
                if on_failure == OnFailure::Discard {
                    discard(&items).await;
                }
                return items.iter().map(|_| Err(error.clone())).collect();
            }
        };
        let mut results: Vec<Result<Done>> = items.iter().map(|_| Err(lost())).collect();
        let (mut here, mut here_at, mut abroad, mut abroad_at) = (vec![], vec![], vec![], vec![]);
        for (at, item) in items.into_iter().enumerate() {
            match item.0.path.space().and_then(|name| spaces.get(&name)) {
                Some(space) => {
                    abroad_at.push(at);
                    abroad.push((item, space.clone()));
                }
                None => {
                    here_at.push(at);
                    here.push(item);
                }
            }
        }
        let left = match on_failure {
            OnFailure::Discard => Left::Removed,
            OnFailure::Keep => Left::ToUpload,
        };
        // Nothing to do is done at once, so neither waits for the other in the common case.
        let (here, abroad) = tokio::join!(
            async {
                match here.is_empty() {
                    true => Vec::new(),
                    false => self.publish_here(holder, here, on_failure).await,
                }
            },
            async {
                match abroad.is_empty() {
                    true => Vec::new(),
                    false => self.abroad.publish(holder, abroad, left).await,
                }
            }
        );
        // Who orders the space there reads its headers.
        let abroad = abroad.into_iter().map(|one| one.map(|committed| Done { committed, has_header: false }));
        for (at, result) in here_at.into_iter().zip(here).chain(abroad_at.into_iter().zip(abroad)) {
            results[at] = result;
        }
        results
    }

    /// Step 2, then the rest. Consumes the staged bytes of every item that fails for good.
    async fn publish_here(
        &self,
        holder: TaskHolder,
        items: Vec<Item>,
        on_failure: OnFailure,
    ) -> Vec<Result<Done>> {
        failpoint("publish.after_stage");
        let count = items.len();
        let wanted = items.iter().map(|(object, content)| Prepare {
            caller: object.caller.clone(),
            path: object.path.clone(),
            parents: object.parents,
            condition: object.condition,
            lease: holder.lease,
            fence: holder.fence,
            store: content.store.row.id,
            natural_key: may_have_natural_key(&content.store),
            token: content.staged.token.to_string(),
            identity: content.staged.identity.as_ref().map(ToString::to_string),
            size: Some(content.tree.size()),
            mtime: object.mtime,
            mode: object.mode,
        });
        let intents = self.catalog.prepare(wanted.collect()).await;
        failpoint("publish.after_prepare");

        let mut failed = Vec::new();
        let mut prepared = Vec::with_capacity(count);
        let mut refused = Vec::new();
        for (index, (item, intent)) in items.into_iter().zip(intents).enumerate() {
            match intent {
                Ok(intent) => prepared.push(Prepared { index, intent, item }),
                Err(error) => {
                    let error = ApiError::from(error).with_path(&item.0.path);
                    if on_failure == OnFailure::Discard || !on_failure.keeps(&error) {
                        refused.push(item);
                    }
                    failed.push((index, error));
                }
            }
        }
        discard(&refused).await;
        let mut results = self.finish(prepared, count, on_failure).await;
        for (index, error) in failed {
            results[index] = Err(error);
        }
        results
    }

    /// Steps 3 to 6 for what was prepared. `count` is the number of results; those of items not in `prepared` are filled in
    /// by the caller.
    async fn finish(
        &self,
        prepared: Vec<Prepared>,
        count: usize,
        on_failure: OnFailure,
    ) -> Vec<Result<Done>> {
        let mut results: Vec<Result<Done>> = (0..count).map(|_| Err(lost())).collect();
        let mut published = Vec::with_capacity(prepared.len());
        for (store, group) in by_store(prepared) {
            for (one, outcome) in to_store(&self.lease, &store, group).await {
                match outcome {
                    Ok(at) => published.push((one, at)),
                    Err(error) => {
                        if !on_failure.keeps(&error) {
                            undo(&self.catalog, &one).await;
                        }
                        results[one.index] = Err(error.with_path(&one.item.0.path));
                    }
                }
            }
        }

        let arrived = published.iter().map(|(one, at)| Arrived {
            space: one.intent.space,
            path: &one.item.0.path,
            store: &one.item.1.store,
            key: &at.key,
            size: one.item.1.tree.size(),
        });
        let headers = self.extraction.ahead(&arrived.collect::<Vec<_>>()).await;
        let has_header: Vec<bool> = headers.iter().map(Option::is_some).collect();
        let written = published.iter().zip(headers).map(|((one, at), found)| Commit {
            found,
            key: Some(at.key.to_string()),
            digests: one.item.0.digests.clone(),
            generation: at.meta.generation.as_ref().map(ToString::to_string),
            mtime: one.item.0.mtime,
            answer: one.item.0.answer.clone(),
            ..Commit::new(one.intent.id, one.item.1.tree.size(), Some(one.item.1.tree.root()))
        });
        let committed = self.catalog.commit(written.collect()).await;
        failpoint("publish.after_commit");
        for (((one, _), has_header), outcome) in published.into_iter().zip(has_header).zip(committed) {
            results[one.index] = match outcome {
                Ok(committed) => Ok(Done { committed, has_header }),
                Err(error) => {
                    let error = ApiError::from(error).with_path(&one.item.0.path);
                    if !on_failure.keeps(&error) {
                        undo(&self.catalog, &one).await;
                    }
                    Err(error)
                }
            };
        }
        results
    }
}

/// What becomes of the bytes of an item that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnFailure {
    /// They are removed: their sender has them and sends them again.
    Discard,
    /// They are kept if asking again can help: they belong to a resumable upload.
    Keep,
}

impl OnFailure {
    /// While the catalog is away it may not be known whether a version was committed. Its intent stays then in any case;
    /// who takes over the lease, or asks again for the upload, finds out.
    fn keeps(self, error: &ApiError) -> bool {
        match error.code() {
            ErrorCode::CatalogUnavailable => true,
            _ => self == Self::Keep && crate::upload::keeps_bytes(error),
        }
    }
}

struct Prepared {
    index: usize,
    intent: Intent,
    item: Item,
}

/// A file may have its object's own path as key only where recovery can tell our file from another's that was there.
pub(crate) fn may_have_natural_key(store: &OpenStore) -> bool {
    let can = store.store.capabilities();
    can.identities && can.write.publish_if_absent && can.write.late_key
}

fn by_store(prepared: Vec<Prepared>) -> Vec<(Arc<OpenStore>, Vec<Prepared>)> {
    let mut groups: HashMap<_, (Arc<OpenStore>, Vec<Prepared>)> = HashMap::new();
    for one in prepared {
        let store = one.item.1.store.clone();
        groups.entry(store.row.id).or_insert_with(|| (store, Vec::new())).1.push(one);
    }
    groups.into_values().collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Content,
    Tree,
}

/// Steps 3 to 5: flush, rename, flush, for the contents and for the trees of those of more than one group.
async fn to_store(
    lease: &ServerLease,
    store: &Arc<OpenStore>,
    group: Vec<Prepared>,
) -> Vec<(Prepared, Result<Published>)> {
    let trees = stage_trees(lease, store, &group).await;
    let mut files = Vec::with_capacity(group.len() + trees.len());
    let mut unusable = HashMap::new();
    for (at, one) in group.iter().enumerate() {
        let staged = &one.item.1.staged;
        let at_key = key_for_stage(store, &staged.token)
            .and_then(|early| early.map_or_else(|| key(&one.intent.key), Ok));
        match at_key {
            Ok(key) => files.push((
                at,
                Part::Content,
                Publish::if_absent(staged.token.clone(), key, staged.identity.clone()),
            )),
            Err(error) => drop(unusable.insert(at, error)),
        }
    }
    for (at, tree) in trees {
        match tree {
            Ok(file) => files.push((at, Part::Tree, file)),
            Err(error) => drop(unusable.insert(at, error)),
        }
    }
    files.retain(|(at, ..)| !unusable.contains_key(at));

    let outcomes = publish_files(store, &files).await;
    let mut published: HashMap<usize, Published> = HashMap::new();
    let mut taken = Vec::new();
    for ((at, part, file), outcome) in files.into_iter().zip(outcomes) {
        match (part, outcome) {
            (Part::Content, Ok(Some(done))) => drop(published.insert(at, done)),
            // A foreign file lies at the natural key; ours goes where only we write.
            (Part::Content, Ok(None)) => taken.push((at, Part::Content, file)),
            (Part::Tree, Ok(Some(_))) => {}
            // An earlier attempt got as far; the tree of a version is the same whoever writes it.
            (Part::Tree, Ok(None)) => drop(store.store.discard(&file.token).await),
            (_, Err(error)) => drop(unusable.insert(at, error)),
        }
    }
    let mut elsewhere = Vec::new();
    for (at, part, mut file) in taken {
        let intent = &group[at].intent;
        match version_key(intent.space, intent.version) {
            Ok(key) if store.store.capabilities().write.late_key && file.key != key => {
                file.key = key;
                elsewhere.push((at, part, file));
            }
            _ => drop(unusable.insert(
                at,
                ApiError::new(
                    ErrorCode::Conflict,
                    format!("the key '{}' is taken on store {}", file.key, store.row.name),
                ),
            )),
        }
    }
    let outcomes = publish_files(store, &elsewhere).await;
    for ((at, ..), outcome) in elsewhere.into_iter().zip(outcomes) {
        match outcome {
            Ok(Some(done)) => drop(published.insert(at, done)),
            Ok(None) => drop(unusable.insert(at, lost())),
            Err(error) => drop(unusable.insert(at, error)),
        }
    }

    let mut outcome = |at| match (unusable.remove(&at), published.remove(&at)) {
        (None, Some(done)) => Ok(done),
        (Some(error), _) => Err(error),
        (None, None) => Err(lost()),
    };
    group.into_iter().enumerate().map(|(at, one)| (one, outcome(at))).collect()
}

/// Publishes files, each with its own outcome; of one that lies at the key already, `Ok(None)`.
async fn publish_files(
    store: &OpenStore,
    files: &[(usize, Part, Publish)],
) -> Vec<Result<Option<Published>>> {
    if files.is_empty() {
        return Vec::new();
    }
    match store.store.publish(files.iter().map(|(.., file)| file.clone()).collect()).await {
        Ok(outcomes) => outcomes
            .into_iter()
            .map(|outcome| match outcome {
                Ok(published) => Ok(Some(published)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
                Err(error) => Err(error.into()),
            })
            .collect(),
        Err(error) => {
            let error = ApiError::from(error);
            files.iter().map(|_| Err(error.clone())).collect()
        }
    }
}

/// Stages the trees of contents of more than one group, under this server's lease.
async fn stage_trees(
    lease: &ServerLease,
    store: &OpenStore,
    group: &[Prepared],
) -> Vec<(usize, Result<Publish>)> {
    let mut wanted = Vec::new();
    let mut files = Vec::new();
    for (at, one) in group.iter().enumerate().filter(|(_, one)| one.item.1.tree.groups().len() > 1) {
        let named = tree_key(one.intent.space, one.intent.version).and_then(|key| Ok((key, lease.token()?)));
        match named {
            Ok((key, token)) => {
                let bytes = Bytes::from(one.item.1.tree.encode());
                files.push(SmallFile { token: token.clone(), key: Some(key.clone()), bytes });
                wanted.push((at, Ok((token, key))));
            }
            Err(error) => wanted.push((at, Err(error))),
        }
    }
    if files.is_empty() {
        return wanted.into_iter().map(|(at, outcome)| (at, outcome.and_then(|_| Err(lost())))).collect();
    }
    let mut staged = match store.store.stage_small(files).await {
        Ok(staged) => staged.into_iter(),
        Err(error) => {
            let error = ApiError::from(error);
            return wanted.into_iter().map(|(at, _)| (at, Err(error.clone()))).collect();
        }
    };
    wanted
        .into_iter()
        .map(|(at, outcome)| {
            let file = outcome.and_then(|(token, key)| {
                let staged = staged.next().ok_or_else(lost)??;
                Ok(Publish::if_absent(token, key, staged.identity))
            });
            (at, file)
        })
        .collect()
}

/// Puts a tree beside its content, in place of what is there.
///
/// # Errors
/// Whatever the store answers.
pub(crate) async fn put_tree(
    lease: &ServerLease,
    store: &OpenStore,
    space: SpaceId,
    version: VersionId,
    tree: &HashTree,
) -> Result<()> {
    let at = tree_key(space, version)?;
    store.store.delete_one(&at, None).await?;
    store.store.put_small(lease.token()?, at, tree.encode().into()).await?;
    Ok(())
}

/// Removes the bytes of an object that did not become visible, and then its intent. What fails here is left to whoever
/// takes the lease over.
async fn undo(catalog: &Catalog, one: &Prepared) {
    let (_, content) = &one.item;
    let Staged { token, identity, .. } = &content.staged;
    let undone = undo_files(&content.store, &one.intent, token, identity.as_ref()).await;
    let version = one.intent.version.0;
    match undone {
        Ok(()) => {
            if let Err(error) = catalog.abandon(vec![one.intent.id]).await {
                tracing::warn!(version, %error, "cannot delete an intent yet");
            }
        }
        Err(error) => tracing::warn!(version, %error, "cannot undo a publication yet"),
    }
}

/// Removes the bytes of an intent from the places where they may be: staged, at the reserved key, at the key of the
/// version, and the tree. Another's file at the reserved key is told by its identity and stays, as what a task has staged does. May be
/// repeated.
///
/// # Errors
/// Whatever the store answers; then something may be left.
pub(crate) async fn undo_files(
    store: &OpenStore,
    intent: &Intent,
    token: &StageToken,
    identity: Option<&FileIdentity>,
) -> Result<()> {
    discard_one(store, token).await?;
    let own = version_key(intent.space, intent.version)?;
    let reserved = key(&intent.key)?;
    if reserved != own
        && let Some(identity) = identity
    {
        match store.store.delete_one(&reserved, Some(identity.clone())).await {
            Err(error) if error.kind() != ErrorKind::Changed => return Err(error.into()),
            _ => {}
        }
    }
    store.store.delete_one(&own, None).await?;
    if let Some(early) = key_for_stage(store, token)? {
        store.store.delete_one(&early, None).await?;
    }
    store.store.delete_one(&tree_key(intent.space, intent.version)?, None).await?;
    Ok(())
}

/// Removes a staged file, unless a task goes on with it: what a task has staged goes with its own lease.
pub(crate) async fn discard_one(store: &OpenStore, token: &StageToken) -> Result<()> {
    if !is_of_task(token) {
        store.store.discard(token).await?;
    }
    Ok(())
}

async fn discard(items: &[Item]) {
    for (_, content) in items {
        if let Err(error) = discard_one(&content.store, &content.staged.token).await {
            tracing::info!(token = %content.staged.token, %error, "staged bytes are left to the next take-over");
        }
    }
}

fn lost() -> ApiError {
    ApiError::new(ErrorCode::Internal, "a publication ended without a result")
}
