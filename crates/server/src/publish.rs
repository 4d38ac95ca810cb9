//! The publish order: from staged bytes to visible versions (`docs/design/publishing.md`).
//!
//! Single objects that arrive at the same time are published together, as a group commit: whoever finds the queue free
//! takes all that wait.

mod files;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use percale_catalog::{
    AnswerKey, Catalog, Commit, Committed, Condition, Intent, IntentRow, Prepare, TaskHolder,
};
use percale_core::access::Caller;
use percale_core::digest::Digest;
use percale_core::ids::{EntryId, LeaseId, SpaceId};
use percale_core::tree::HashTree;
use percale_core::{ByteCount, ErrorCode, FileMode, ObjectPath, Timestamp};
use percale_mover::Room;
use percale_store::failpoint::failpoint;
use percale_store::{StageToken, Staged};
use tokio::sync::{mpsc, oneshot};

use crate::abroad::{Abroad, Left};
use crate::error::{ApiError, Result};
use crate::extraction::{Arrived, Extraction};
use crate::fetch::is_of_task;
use crate::lease::ServerLease;
use crate::stores::OpenStore;
use files::{by_store, discard, to_store, undo};
pub(crate) use files::{discard_one, key, may_have_natural_key, put_tree, stage_again, undo_files};
pub use files::{find_published, key_for_stage, tree_key, version_key};

/// Most objects in one batch: what keeps a transaction and a flush below some tens of milliseconds.
pub const MAX_BATCH: usize = 512;
/// Batches at once: while one waits for the disk, the next is in the database.
const WORKERS: usize = 2;
/// Single objects that may wait; beyond that, writers are held back.
const QUEUE: usize = 4 * MAX_BATCH;

/// MiB of small objects that are on their way to stores at once, of all streams: what bounds a server's memory however many
/// clients send.
const ROOM: u32 = 64;

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
        self.settled(&path, done, Instant::now()).await
    }

    /// Waits for what the space of a new version wants to be done before a write is answered.
    async fn settled(&self, path: &ObjectPath, done: Result<Done>, began: Instant) -> Result<Committed> {
        let Done { committed, has_header } = done?;
        if !has_header {
            self.to.extraction.settle(&self.to.catalog, path, committed.position, began).await;
        }
        Ok(committed)
    }

    async fn all_settled(&self, paths: &[ObjectPath], all: Vec<Result<Done>>) -> Vec<Result<Committed>> {
        let (mut results, began) = (Vec::with_capacity(all.len()), Instant::now());
        for (path, done) in paths.iter().zip(all) {
            results.push(self.settled(path, done, began).await);
        }
        results
    }

    /// Publishes many objects, each with its own outcome, in their order.
    pub async fn publish_many(&self, items: Vec<Item>) -> Vec<Result<Committed>> {
        let paths = paths_of(&items);
        self.all_settled(&paths, self.to.publish_direct(items).await).await
    }

    /// Checks that a space has room for an object of so many bytes: see [`Abroad::require_quotas`].
    ///
    /// # Errors
    /// As there.
    pub async fn require_quota(&self, path: &ObjectPath, size: ByteCount) -> Result<()> {
        let mut outcomes = self.require_quotas(vec![(path.clone(), size)]).await;
        outcomes.pop().unwrap_or(Ok(()))
    }

    /// The same for many objects, each by itself, in their order.
    pub async fn require_quotas(&self, wanted: Vec<(ObjectPath, ByteCount)>) -> Vec<Result<()>> {
        self.to.abroad.require_quotas(wanted).await
    }

    /// Publishes objects that a host staged, under its own lease. The bytes of those that fail are staged as before: nobody else has
    /// them. What was prepared before and not committed, and may be asked for again, goes on from there.
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
                Some(intent) => prepared.push(Prepared { index, lease: holder.lease, intent, item }),
                None => {
                    fresh.push(item);
                    fresh_at.push(index);
                }
            }
        }
        let mut results = match prepared.is_empty() {
            true => (0..count).map(|_| Err(lost())).collect(),
            false => self.to.finish(prepared, count, OnFailure::GiveBack).await,
        };
        for (at, result) in
            fresh_at.into_iter().zip(self.to.publish(holder, fresh, OnFailure::GiveBack).await)
        {
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
                let item = (object, content);
                let prepared = vec![Prepared { index: 0, lease: holder.lease, intent, item }];
                self.to.finish(prepared, 1, OnFailure::Keep).await
            }
            None => self.to.publish(holder, vec![(object, content)], OnFailure::Keep).await,
        };
        self.settled(&path, results.pop().unwrap_or_else(|| Err(lost())), Instant::now()).await
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
        let holder = match self.lease.current() {
            Ok(holder) => holder,
            Err(error) => {
                discard(&items).await;
                return items.iter().map(|_| Err(error.clone())).collect();
            }
        };
        // What was staged under a lease that this server lost since is removed by whoever took that over.
        let is_held = |token: &StageToken| token.fence() == holder.fence || is_of_task(token);
        let lapsed = |path: &ObjectPath| {
            let detail = "this server lost its lease while the bytes arrived; send them again";
            Err(ApiError::new(ErrorCode::LeaseExpired, detail).with_path(path))
        };
        let refused: Vec<Option<_>> = items
            .iter()
            .map(|(object, content)| (!is_held(&content.staged.token)).then(|| lapsed(&object.path)))
            .collect();
        let held = items.into_iter().zip(&refused).filter(|(_, refused)| refused.is_none());
        let held = held.map(|(item, _)| item).collect();
        let mut published = self.publish(holder, held, OnFailure::Discard).await.into_iter();
        let results = refused.into_iter().map(|refused| refused.or_else(|| published.next()));
        results.map(|result| result.unwrap_or_else(|| Err(lost()))).collect()
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
            OnFailure::GiveBack => Left::ToHost,
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
                Ok(intent) => prepared.push(Prepared { index, lease: holder.lease, intent, item }),
                Err(error) => {
                    let error = ApiError::from(error).with_path(&item.0.path);
                    if on_failure != OnFailure::GiveBack && !on_failure.keeps(&error) {
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
                            self.take_back(&one, on_failure).await;
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
        let has_header = self.have_headers(&committed, has_header).await;
        for (((one, _), has_header), outcome) in published.into_iter().zip(has_header).zip(committed) {
            results[one.index] = match outcome {
                Ok(committed) => Ok(Done { committed, has_header }),
                Err(error) => {
                    let error = ApiError::from(error).with_path(&one.item.0.path);
                    if !on_failure.keeps(&error) {
                        self.take_back(&one, on_failure).await;
                    }
                    Err(error)
                }
            };
        }
        results
    }

    /// Undoes a publication that failed, unless its intention has ended: another request that asked for the same has committed it, and the
    /// bytes are those of a version, or has undone it.
    async fn take_back(&self, one: &Prepared, on_failure: OnFailure) {
        // What is sent again is another staged file, which nobody else publishes.
        if on_failure == OnFailure::Discard {
            return undo(&self.catalog, one, on_failure).await;
        }
        match self.catalog.intents_of(one.lease).await {
            Ok(rows) if rows.iter().any(|row| row.intent.id == one.intent.id) => {
                undo(&self.catalog, one, on_failure).await;
            }
            Ok(_) => {}
            Err(error) => {
                let version = one.intent.version.0;
                tracing::warn!(version, %error, "cannot undo a publication yet");
            }
        }
    }

    /// Tells which of the versions have nothing left to read: no document describes them, nor do they describe anything. Of two that are
    /// committed at once the later one finds the other.
    async fn have_headers(
        &self,
        committed: &[percale_catalog::Result<Committed>],
        were_read: Vec<bool>,
    ) -> Vec<bool> {
        let mut read: HashMap<SpaceId, Vec<EntryId>> = HashMap::new();
        for (committed, was_read) in committed.iter().zip(&were_read) {
            if let (Ok(committed), true) = (committed, was_read) {
                read.entry(committed.position.space).or_default().push(committed.entry);
            }
        }
        let mut not_alone = HashSet::new();
        for (space, entries) in read {
            // Where that cannot be told, their writers wait.
            let found = self.catalog.not_alone(space, entries.clone()).await;
            let found = found.unwrap_or_else(|_| entries.into_iter().collect());
            not_alone.extend(found.into_iter().map(|entry| (space, entry)));
        }
        let is_alone =
            |committed: &Committed| !not_alone.contains(&(committed.position.space, committed.entry));
        let all = committed.iter().zip(were_read);
        all.map(|(committed, was_read)| was_read && committed.as_ref().is_ok_and(is_alone)).collect()
    }
}

/// What becomes of the bytes of an item that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnFailure {
    /// They are removed: their sender has them and sends them again.
    Discard,
    /// They are kept if asking again can help: they belong to a resumable upload.
    Keep,
    /// The same, and else they are staged as before: a host has them nowhere else.
    GiveBack,
}

impl OnFailure {
    /// While the catalog is away it may not be known whether a version was committed. Its intent stays then in any case;
    /// who takes over the lease, or asks again for the upload, finds out.
    fn keeps(self, error: &ApiError) -> bool {
        match (self, error.code()) {
            (_, ErrorCode::CatalogUnavailable) => true,
            (Self::Discard, _) => false,
            (Self::Keep, _) => crate::upload::keeps_bytes(error),
            // A host asks again where it is told so, and shows the file as it was staged else.
            (Self::GiveBack, _) => crate::upload::keeps_bytes(error) && error.is_retryable(),
        }
    }
}

struct Prepared {
    index: usize,
    /// The lease under which it is prepared.
    lease: LeaseId,
    intent: Intent,
    item: Item,
}

fn lost() -> ApiError {
    ApiError::new(ErrorCode::Internal, "a publication ended without a result")
}
