//! What a task has brought of a large object, which its next attempt goes on with (`docs/design/transfers.md`, "Restarts").
//!
//! The staged file lies under a lease of the task's own, not under that of a server: so it outlives the server, and goes with
//! the task. Beside it lies a marker of what is safe on the disk.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use percale_catalog::{Lease, LeaseKind, TaskHolder};
use percale_core::ids::{LeaseId, SpaceId, StoreId, TaskId, VersionId};
use percale_core::range::RangeSet;
use percale_core::tree::{HashTree, RootHash};
use percale_core::{ByteCount, ByteRange, ErrorCode, ObjectPath};
use percale_mover::Held;
use percale_store::{Stage, StageOptions, StageToken, Staged};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, RwLock};

use super::Wanted;
use crate::stores::OpenStore;
use crate::{ApiError, AppState, Result};

/// From this size on an object is worth a lease of its own: less than that may be sent again.
const KEEP_FROM: u64 = 16 << 20;
/// A marker is written after so many bytes, or after this time: what a loss of power costs at most, with what arrives while it is
/// written.
const MARK_EVERY: u64 = 8 << 20;
const MARK_WITHIN: Duration = Duration::from_secs(1);
/// The name of the staged file under its fence; those of servers are numbers.
const NAME: &str = "copy";

/// Tells whether a staged file lies under the lease of a task. A publication that comes to nothing leaves it to that lease.
pub fn is_of_task(token: &StageToken) -> bool {
    token.name() == NAME
}

/// The task for which objects are brought.
#[derive(Debug, Clone)]
pub struct ForTask {
    /// Its id.
    pub id: TaskId,
    /// Counts bytes of unfinished objects that the next attempt need not bring again.
    pub safe: Arc<AtomicU64>,
}

/// What the lease of an object that was brought in part keeps, version 1.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Body {
    v: u32,
    path: ObjectPath,
    space: SpaceId,
    version: VersionId,
    size: ByteCount,
    root: RootHash,
    store: StoreId,
    /// The most bytes that were ever safe. What is brought again for whatever reason is no progress.
    furthest: ByteCount,
}

/// The unfinished objects that attempts of this server have in hand. Two attempts of one task overlap for a moment where
/// the server lost its lease and has a new one.
#[derive(Debug, Default)]
pub struct Unfinished {
    leases: Mutex<HashSet<LeaseId>>,
    freed: Notify,
}

impl Unfinished {
    fn leases(&self) -> MutexGuard<'_, HashSet<LeaseId>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An unfinished object in hand, until it is dropped.
struct Hand {
    app: AppState,
    lease: LeaseId,
}

impl Hand {
    /// Waits until nobody else has it.
    async fn take(app: &AppState, lease: LeaseId) -> Self {
        loop {
            let freed = app.copying.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if app.copying.leases().insert(lease) {
                return Self { app: app.clone(), lease };
            }
            freed.await;
        }
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        self.app.copying.leases().remove(&self.lease);
        self.app.copying.freed.notify_waiters();
    }
}

/// What has arrived of an object, shared by its streams and by who writes the marker.
pub(super) struct Arrived {
    state: Mutex<State>,
    /// A marker is due.
    due: Notify,
}

struct State {
    held: Held,
    /// Bytes that came since the last marker.
    unmarked: u64,
}

impl Arrived {
    pub fn new(held: Held) -> Self {
        Self { state: Mutex::new(State { held, unmarked: 0 }), due: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a group was verified and written.
    pub fn insert(&self, group: u64, bytes: u64) {
        let mut state = self.state();
        state.held.insert(group);
        state.unmarked += bytes;
        if state.unmarked >= MARK_EVERY {
            self.due.notify_one();
        }
    }

    /// Notes that a group is not what the marker said.
    pub fn remove(&self, group: u64) {
        self.state().held.remove(group);
    }

    pub fn has_any(&self, range: ByteRange) -> bool {
        self.state().held.has_any(range)
    }

    pub fn missing(&self) -> RangeSet {
        self.state().held.missing()
    }

    fn total(&self) -> ByteCount {
        self.state().held.total()
    }

    /// Returns what a marker would name, if that is more than the last one did, and how many bytes more.
    fn to_mark(&self) -> Option<(Held, u64)> {
        let state = self.state();
        (state.unmarked > 0).then(|| (state.held.clone(), state.unmarked))
    }

    fn marked(&self, bytes: u64) {
        self.state().unmarked -= bytes;
    }
}

/// An object on its way, with the lease that it lies under. Where it is dropped, it is left to the next attempt.
pub(super) struct Kept(Arc<Inner>);

struct Inner {
    app: AppState,
    store: Arc<OpenStore>,
    task: ForTask,
    lease: TaskHolder,
    body: Body,
    furthest: AtomicU64,
    /// Taken out when it is complete.
    stage: RwLock<Option<Box<dyn Stage>>>,
    arrived: Arrived,
    /// One at a time: a marker must not be older than the one it replaces.
    marking: tokio::sync::Mutex<()>,
    /// Whether an earlier attempt brought something.
    is_known: bool,
    is_over: AtomicBool,
    _hand: Hand,
}

impl Kept {
    /// Tells whether an object of this size is kept on a store.
    pub fn is_for(store: &OpenStore, size: ByteCount) -> bool {
        let can = &store.store.capabilities().write;
        size.0 >= KEEP_FROM && can.resumable && can.positioned && can.late_key
    }

    /// Goes on with what an earlier attempt of the task has brought of a version, or begins with nothing. What was brought of
    /// another version of the object is removed.
    ///
    /// # Errors
    /// Those of the catalog and of the store.
    pub async fn open(app: &AppState, task: &ForTask, wanted: &Wanted, tree: &HashTree) -> Result<Self> {
        let (version, store) = (&wanted.version, &wanted.store);
        let (ttl, holder) = (app.config.uploads.lease, task.id.to_string());
        let wants = Body {
            v: 1,
            path: version.path.clone(),
            space: version.space,
            version: version.version,
            size: version.size,
            root: tree.root(),
            store: store.row.id,
            furthest: ByteCount::ZERO,
        };
        let known = find(app, task, &wants).await?;
        let is_known = known.is_some();
        let (lease, body, hand) = match known {
            Some(known) => known,
            None => {
                let body = serde_json::to_value(&wants).map_err(|error| {
                    ApiError::internal("cannot describe an unfinished copy").with_source(error)
                })?;
                let lease = app.catalog.acquire_lease(LeaseKind::Task, &holder, ttl, body).await?;
                let hand = Hand::take(app, lease.id).await;
                (lease, wants, hand)
            }
        };
        let token = token_of(&lease)?;
        let options = StageOptions::new(token).size(version.size).resume();
        let stage = store.store.stage(options).await;
        let mut held = Held::new(body.size, body.root);
        if let (true, Ok(stage)) = (is_known, &stage) {
            // A marker that cannot be read counts as none, as a damaged one.
            let marker = stage.read_marker().await.unwrap_or_default();
            let marked = marker.and_then(|marker| Held::decode(&marker, body.size, body.root));
            let (path, size) = (&body.path, body.size);
            match marked {
                Some(marked) => {
                    let (here, task) = (marked.total(), task.id);
                    tracing::info!(%task, %path, %here, %size, "a copy goes on with what an earlier attempt brought");
                    held = marked;
                }
                None => {
                    let (store, task) = (&store.row.name, task.id);
                    tracing::info!(%task, %path, store, %size, "a copy begins anew: no marker of what an earlier attempt brought is here");
                }
            }
        }
        let (stage, fault) = match stage {
            Ok(stage) => (Some(stage), None),
            Err(error) => (None, Some(ApiError::from(error))),
        };
        let kept = Self(Arc::new(Inner {
            app: app.clone(),
            store: store.clone(),
            task: task.clone(),
            lease: TaskHolder { lease: lease.id, fence: lease.fence },
            furthest: AtomicU64::new(body.furthest.0.max(held.total().0)),
            body,
            stage: RwLock::new(stage),
            arrived: Arrived::new(held),
            marking: tokio::sync::Mutex::default(),
            is_known,
            is_over: AtomicBool::new(false),
            _hand: hand,
        }));
        match fault {
            None => Ok(kept),
            Some(error) => {
                kept.failed(&error).await;
                Err(error)
            }
        }
    }

    /// Returns the groups that a marker named. They may not be what it says.
    pub fn believed(&self) -> Vec<u64> {
        self.0.arrived.state().held.groups().collect()
    }

    /// Returns what has arrived.
    pub fn arrived(&self) -> &Arrived {
        &self.0.arrived
    }

    /// Returns the staged file.
    pub fn stage(&self) -> &RwLock<Option<Box<dyn Stage>>> {
        &self.0.stage
    }

    /// Writes markers and renews the lease, until it is lost.
    pub async fn keep(&self) -> ApiError {
        let (app, TaskHolder { lease, fence }) = (&self.0.app, self.0.lease);
        let ttl = app.config.uploads.lease;
        let mut renewed = Instant::now();
        loop {
            // Either way it is looked whether anything came.
            let _ = tokio::time::timeout(MARK_WITHIN, self.0.arrived.due.notified()).await;
            if !self.0.mark().await {
                tokio::time::sleep(MARK_WITHIN).await;
            }
            if renewed.elapsed() >= ttl / 4 {
                match app.catalog.renew_lease(lease, fence, ttl).await {
                    Ok(_) => renewed = Instant::now(),
                    Err(error) if error.code() == ErrorCode::LeaseExpired => return error.into(),
                    Err(error) => tracing::warn!(%error, "cannot renew the lease of an unfinished copy"),
                }
            }
        }
    }

    /// Ends the writing; all of it has arrived. The marker names all of it, should this server die before it is published.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn finish(&self) -> Result<Staged> {
        self.0.mark().await;
        let stage = self.0.stage.write().await.take();
        let stage = stage.ok_or_else(|| ApiError::internal("an unfinished copy ended twice"))?;
        Ok(stage.finish().await?)
    }

    /// Says that it could not be brought. It is left to the next attempt if that can help and anything has arrived, else removed.
    pub async fn failed(self, error: &ApiError) {
        // What another version of the source has is of no use.
        let may_help = error.is_retryable() && error.code() != ErrorCode::VersionChanged;
        if may_help && (self.0.is_known || self.0.arrived.total() > ByteCount::ZERO) {
            self.0.leave().await;
        } else {
            self.0.end().await;
        }
    }

    /// Says what became of it once it was complete.
    pub async fn told(self, error: Option<&ApiError>) {
        match error {
            Some(error) => self.failed(error).await,
            None => self.0.end().await,
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.0.is_over.load(Ordering::Relaxed) {
            return;
        }
        let inner = self.0.clone();
        self.0.app.background.spawn(async move { inner.leave().await });
    }
}

impl Inner {
    /// Writes a marker of what has arrived, if anything has since the last one. Tells whether that is safe now. Goes on to its end
    /// where it is dropped, since two at once would spoil each other.
    async fn mark(self: &Arc<Self>) -> bool {
        let inner = self.clone();
        let marked = self.app.background.spawn(async move { inner.mark_now().await });
        marked.await.unwrap_or(false)
    }

    /// Flushes what arrived and writes the marker, in this order: the marker never names what a power failure can take.
    async fn mark_now(&self) -> bool {
        let _one = self.marking.lock().await;
        let Some((held, bytes)) = self.arrived.to_mark() else { return true };
        let stage = self.stage.read().await;
        let Some(stage) = stage.as_ref() else { return true };
        let marked = async {
            stage.sync_progress().await?;
            stage.write_marker(held.encode().into()).await
        };
        if let Err(error) = marked.await {
            // Then more is brought again after a crash; the flush before publishing finds out whether the bytes are there.
            tracing::warn!(path = %self.body.path, %error, "cannot write the restart marker of a copy");
            return false;
        }
        self.arrived.marked(bytes);
        let total = held.total().0;
        let before = self.furthest.fetch_max(total, Ordering::Relaxed);
        self.task.safe.fetch_add(total.saturating_sub(before), Ordering::Relaxed);
        true
    }

    /// Leaves it to the next attempt.
    async fn leave(self: &Arc<Self>) {
        self.is_over.store(true, Ordering::Relaxed);
        self.mark().await;
        let furthest = ByteCount(self.furthest.load(Ordering::Relaxed));
        let TaskHolder { lease, fence } = self.lease;
        let kept = async {
            if furthest > self.body.furthest {
                let body = Body { furthest, ..self.body.clone() };
                let body = serde_json::to_value(&body).map_err(|error| {
                    ApiError::internal("cannot describe an unfinished copy").with_source(error)
                })?;
                self.app.catalog.update_lease_body(lease, fence, body).await?;
            }
            self.app.catalog.renew_lease(lease, fence, self.app.config.uploads.lease).await?;
            Ok::<_, ApiError>(())
        };
        if let Err(error) = kept.await {
            // It is so where the task was cancelled: then whoever takes the lease over removes it.
            tracing::debug!(path = %self.body.path, %error, "the lease of an unfinished copy is not renewed");
        }
    }

    /// Removes what is left of it. What fails is left to the take-over of its lease.
    async fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.stage.write().await.take();
        end(&self.app, &self.store, self.lease).await;
    }
}

/// Finds what an earlier attempt of the task left of a version, and ends what it left of another one of the same object.
async fn find(app: &AppState, task: &ForTask, wants: &Body) -> Result<Option<(Lease, Body, Hand)>> {
    let mut found = None;
    for lease in app.catalog.leases_of(LeaseKind::Task, &task.id.to_string()).await? {
        let Ok(body) = serde_json::from_value::<Body>(lease.body.clone()) else { continue };
        let is_same = (body.space, body.version) == (wants.space, wants.version);
        if body.v != 1 || !(is_same || body.path == wants.path) {
            continue;
        }
        let hand = Hand::take(app, lease.id).await;
        let fits = is_same && (body.store, body.size, body.root) == (wants.store, wants.size, wants.root);
        if !fits || found.is_some() {
            tracing::info!(task = %task.id, path = %body.path, "what was brought of a copy is not wanted any more");
            let holder = TaskHolder { lease: lease.id, fence: lease.fence };
            match app.stores.get(body.store).await {
                Ok(store) => end(app, &store, holder).await,
                Err(error) => tracing::info!(%error, "the rest of a copy is left to its lease"),
            }
            continue;
        }
        match app.catalog.renew_lease(lease.id, lease.fence, app.config.uploads.lease).await {
            Ok(lease) => found = Some((lease, body, hand)),
            // It lapsed, and whoever takes it over removes what lies under it.
            Err(error) if error.code() == ErrorCode::LeaseExpired => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

async fn end(app: &AppState, store: &OpenStore, TaskHolder { lease, fence }: TaskHolder) {
    let ended = async {
        // The fence is this object's alone.
        store.store.discard_fence(fence).await?;
        app.catalog.release_lease(lease, fence).await?;
        Ok::<_, ApiError>(())
    };
    if let Err(error) = ended.await {
        tracing::info!(%lease, %error, "the rest of a copy is left to its lease");
    }
}

fn token_of(lease: &Lease) -> Result<StageToken> {
    StageToken::new(lease.fence, NAME).map_err(|error| ApiError::internal(error.to_string()))
}
