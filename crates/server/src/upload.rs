//! Resumable uploads: bytes arrive in any order over any number of requests, survive the server, and become a version at
//! the end.
//!
//! What is known of an upload is in its lease's row; what has arrived, in the restart marker beside the partial data.

mod opening;
mod session;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use percale_api::uploads::{CommitUpload, NewUpload, SentGroup, SentGroups, Upload};
use percale_catalog::{
    AnswerKey, ArrivalEnd, Catalog, Committed, Condition, EntryKind, Lease, LeaseKind, Remembered,
};
use percale_core::access::{Caller, Permission};
use percale_core::ids::LeaseId;
use percale_core::tree::{GROUP_SIZE, RootHash, group_count, group_range, hash_group};
use percale_core::{ByteCount, ErrorCode, ObjectPath};
use percale_mover::DataFrame;
use percale_store::StageToken;

use self::opening::Opening;
pub use self::session::Session;
use self::session::{Begun, Body, Writing};
use crate::error::{ApiError, OnPath as _, Result};
use crate::publish::{NewObject, Publisher, StagedContent, find_published};
use crate::stores::{OpenStore, Registry};

/// Largest content of one object: what 32 bytes of hash for each MiB keep below 2 GiB of memory.
pub const MAX_SIZE: ByteCount = ByteCount::gib(64 << 10);
/// Uploads that one server works on at a time.
const MAX_SESSIONS: usize = 10_000;
/// How often who waits for an upload to be opened looks whether another server of the site opened it.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// How long a request waits for another one that is committing the same upload.
const COMMITTING: Duration = Duration::from_secs(30);

/// An upload that became a version.
#[derive(Debug, Clone)]
pub struct Done {
    /// The version.
    pub committed: Committed,
    /// Its size.
    pub size: ByteCount,
    /// Its root.
    pub root: RootHash,
}

/// The resumable uploads of this site.
pub struct Uploads {
    catalog: Catalog,
    stores: Arc<Registry>,
    publisher: Arc<Publisher>,
    ttl: Duration,
    sessions: tokio::sync::Mutex<Sessions>,
    opening: Opening,
}

/// An upload that is being opened again.
type TakingUp = Shared<BoxFuture<'static, Result<Arc<Session>>>>;

/// The uploads that this server knows.
#[derive(Default)]
struct Sessions {
    open: HashMap<LeaseId, Arc<Session>>,
    /// Those that are taken up from what another process left. All of a file may have to be read for that.
    taking_up: HashMap<LeaseId, TakingUp>,
}

impl Uploads {
    /// Makes the service. `ttl` is how long an upload lives after its last byte.
    pub fn new(catalog: Catalog, stores: Arc<Registry>, publisher: Arc<Publisher>, ttl: Duration) -> Self {
        Self {
            catalog,
            stores,
            publisher,
            ttl,
            sessions: tokio::sync::Mutex::default(),
            opening: Opening::default(),
        }
    }

    /// Opens an upload. Nothing is visible until it is committed.
    ///
    /// # Errors
    /// - `PayloadTooLarge` beyond [`MAX_SIZE`] or what the store takes.
    /// - `AlreadyExists`, `IsCollection` if the condition says that nothing is there: said before bytes are sent in vain.
    /// - `NoSpace`, `QuotaExceeded` if there is no room for it: said before bytes are sent in vain, too.
    /// - `InvalidRequest`, `Conflict` if the id that its sender chose is none, or another upload's.
    /// - What [`Catalog::permission`] says of the path.
    pub async fn open(
        self: &Arc<Self>,
        caller: &Caller,
        new: NewUpload,
        condition: Condition,
    ) -> Result<Upload> {
        let Some(id) = new.id else { return self.open_as(caller, LeaseId::new(), new, condition).await };
        if id.0.get_version_num() != 7 {
            let detail = format!("{id} is not a UUID of version 7, as an upload's id must be");
            return Err(ApiError::new(ErrorCode::InvalidRequest, detail).with_path(&new.path));
        }
        // Held until there is a session or none will be, so that nobody opens one from a lease that is not complete yet.
        let Some(opening) = self.opening.begin(id) else {
            let detail = format!("upload {id} is being opened by another request");
            return Err(ApiError::new(ErrorCode::Conflict, detail).with_path(&new.path));
        };
        let (path, size) = (new.path.clone(), ByteCount(new.size));
        let opened = self.open_as(caller, id, new, condition).await;
        drop(opening);
        match opened {
            // Asked again after the answer was lost.
            Err(error) if error.code() == ErrorCode::Conflict => match self.session(caller, id).await {
                Ok(session) if session.path() == &path && session.size() == size => Ok(session.describe()),
                _ => Err(error.with_path(path)),
            },
            opened => opened,
        }
    }

    async fn open_as(
        &self,
        caller: &Caller,
        id: LeaseId,
        new: NewUpload,
        condition: Condition,
    ) -> Result<Upload> {
        let size = ByteCount(new.size);
        crate::authorize::authorize(&self.catalog, caller, &new.path, Permission::Write).await?;
        if condition == Condition::New {
            self.require_nothing(caller, &new.path).await?;
        }
        let store = self.stores.for_new_data(&space_of(&new.path)?).await?;
        let most = store.store.capabilities().write.max_size.unwrap_or(MAX_SIZE).min(MAX_SIZE);
        if size > most {
            let detail = format!("{size} are more than the {most} that one object may have here");
            return Err(ApiError::new(ErrorCode::PayloadTooLarge, detail).with_path(&new.path));
        }
        store.require_room(size).await.on_path(&new.path)?;
        self.publisher.require_quota(&new.path, size).await.on_path(&new.path)?;
        let owner = owner_of(caller);
        let lease = self
            .catalog
            .acquire_lease_as(id, LeaseKind::Upload, &owner, self.ttl, serde_json::json!({"v": 1}))
            .await?;
        let token = StageToken::new(lease.fence, "upload")
            .map_err(|error| ApiError::new(ErrorCode::Internal, error.to_string()))?;
        let body = Body {
            v: 1,
            path: new.path,
            size,
            condition,
            parents: new.parents,
            mtime: new.mtime,
            mode: new.mode,
            store: store.row.id,
            token: token.clone(),
        };
        let session = match self.begin(&lease, body, store.clone(), owner).await {
            Ok(session) => session,
            Err(error) => {
                // Where that fails, what is staged goes when the lease lapses.
                if store.store.discard(&token).await.is_ok() {
                    self.catalog.release_lease(lease.id, lease.fence).await?;
                }
                return Err(error);
            }
        };
        let upload = session.describe();
        self.keep(session).await;
        Ok(upload)
    }

    async fn require_nothing(&self, caller: &Caller, path: &ObjectPath) -> Result<()> {
        let entry = match self.catalog.stat_no_link(caller, path).await {
            Ok(entry) => entry,
            Err(error) if error.code() == ErrorCode::IsLink => {
                return Err(ApiError::from(error).with_path(path));
            }
            // The commit, which decides, says it better.
            Err(_) => return Ok(()),
        };
        let error = match entry.kind {
            EntryKind::Collection => {
                ApiError::new(ErrorCode::IsCollection, format!("{path} is a collection"))
            }
            EntryKind::Object | EntryKind::Link => {
                ApiError::new(ErrorCode::AlreadyExists, format!("{path} is there already"))
            }
        };
        Err(error.with_path(path))
    }

    async fn begin(
        &self,
        lease: &Lease,
        body: Body,
        store: Arc<OpenStore>,
        owner: String,
    ) -> Result<Arc<Session>> {
        let json = serde_json::to_value(&body).map_err(|error| {
            ApiError::new(ErrorCode::Internal, format!("cannot describe an upload: {error}"))
        })?;
        // In this order: another server that is asked for this upload must not open what is not staged yet.
        let session = Session::open(lease, body, store, owner, Begun::New).await?;
        self.catalog.update_lease_body(lease.id, lease.fence, json).await?;
        Ok(session)
    }

    async fn keep(&self, session: Arc<Session>) {
        let open = &mut self.sessions.lock().await.open;
        if open.len() >= MAX_SESSIONS {
            // Idle ones can be opened again from their marker.
            open.retain(|_, session| Arc::strong_count(session) > 1);
        }
        open.insert(session.id, session);
    }

    /// Lets go of uploads whose time is over: each keeps its file open, whose bytes stay on the disk as long, though it was removed.
    ///
    /// # Errors
    /// Those of the catalog, whose time it is.
    pub async fn forget_lapsed(&self) -> Result<()> {
        let now = self.catalog.now().await?;
        let open = &mut self.sessions.lock().await.open;
        open.retain(|_, session| Arc::strong_count(session) > 1 || session.arrived().expires > now);
        Ok(())
    }

    /// Returns an upload of the caller, opened again from its marker if another process had it.
    ///
    /// # Errors
    /// `NotFound` if there is none, or it is another's.
    pub async fn session(self: &Arc<Self>, caller: &Caller, id: LeaseId) -> Result<Arc<Session>> {
        let missing = || no_upload(id);
        let is_allowed = |owner: &str| caller.is_admin() || owner == owner_of(caller);
        if self.opening.has(id) {
            return Err(missing());
        }
        let mut sessions = self.sessions.lock().await;
        if let Some(session) = sessions.open.get(&id) {
            return if is_allowed(&session.owner) { Ok(session.clone()) } else { Err(missing()) };
        }
        let lease = self.catalog.lease(id).await.map_err(|error| match error.code() {
            ErrorCode::NotFound => missing(),
            _ => error.into(),
        })?;
        // Whoever opens it says so until its session is here, which cannot be as long as the lock is held. A second session would not hear
        // of what arrives at the first.
        if self.opening.has(id) || lease.kind != LeaseKind::Upload || !is_allowed(&lease.holder) {
            return Err(missing());
        }
        let body: Body = serde_json::from_value(lease.body.clone()).map_err(|_| missing())?;
        // Once for all who ask meanwhile, and to its end though they go away.
        let taking_up = sessions.taking_up.entry(id).or_insert_with(|| self.take_up(lease, body)).clone();
        drop(sessions);
        taking_up.await
    }

    /// Opens an upload again that another process had.
    fn take_up(self: &Arc<Self>, lease: Lease, body: Body) -> TakingUp {
        let (all, id) = (self.clone(), lease.id);
        let work = tokio::spawn(async move {
            let opened = async {
                let store = all.stores.get(body.store).await?;
                let begun = all.begun(&lease, &body, &store).await?;
                Session::open(&lease, body, store, lease.holder.clone(), begun).await
            };
            let opened = opened.await;
            let mut sessions = all.sessions.lock().await;
            sessions.taking_up.remove(&id);
            if let Ok(session) = &opened {
                sessions.open.insert(id, session.clone());
            }
            opened
        });
        let all = self.clone();
        let opened = async move {
            match work.await {
                Ok(opened) => opened,
                Err(error) => {
                    all.sessions.lock().await.taking_up.remove(&id);
                    Err(ApiError::internal("the opening of an upload ended early").with_source(error))
                }
            }
        };
        opened.boxed().shared()
    }

    /// As [`Uploads::session`], and waits for it to be opened, for so long at most: its sender chose the id, and what it
    /// sends beside the request that opens it may be here first.
    ///
    /// # Errors
    /// As [`Uploads::session`].
    pub async fn session_within(
        self: &Arc<Self>,
        caller: &Caller,
        id: LeaseId,
        wait: Duration,
    ) -> Result<Arc<Session>> {
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            let ended = self.opening.ended();
            tokio::pin!(ended);
            // From here on it hears of an end, so none can fall between the look and the wait.
            ended.as_mut().enable();
            match self.session(caller, id).await {
                Err(error)
                    if error.code() == ErrorCode::NotFound && tokio::time::Instant::now() < deadline => {}
                outcome => return outcome,
            }
            let _ =
                tokio::time::timeout_at(deadline.min(tokio::time::Instant::now() + LOOK_AGAIN), ended).await;
        }
    }

    /// Finds out how far an upload got that this process does not know.
    async fn begun(&self, lease: &Lease, body: &Body, store: &OpenStore) -> Result<Begun> {
        let token = body.token.to_string();
        let intents = self.catalog.intents_of(lease.id).await?;
        let Some(row) = intents.into_iter().find(|row| row.token == token) else {
            return self.begun_abroad(lease, body, store).await;
        };
        let staged = store.store.staged(Some(body.token.fence())).await?;
        if staged.iter().any(|staged| staged.token == body.token) {
            return Ok(Begun::Resumed);
        }
        let own = crate::publish::version_key(row.intent.space, row.intent.version)?;
        let keys = [crate::publish::key(&row.intent.key)?, own];
        match find_published(store, keys, (&body.token, row.identity.as_deref()), body.size).await? {
            Some((staged, tree)) => Ok(Begun::Published(staged, tree)),
            None => {
                // Neither staged nor published: it begins anew, without the intent that speaks of other bytes.
                self.catalog.abandon(vec![row.intent.id]).await?;
                Ok(Begun::Resumed)
            }
        }
    }

    /// As [`Uploads::begun`], for a space that another site orders.
    async fn begun_abroad(&self, lease: &Lease, body: &Body, store: &OpenStore) -> Result<Begun> {
        let token = body.token.to_string();
        let arrivals = self.catalog.arrivals_of(lease.id).await?;
        let Some(arrival) = arrivals.into_iter().find(|arrival| arrival.token == token) else {
            return Ok(Begun::Resumed);
        };
        let staged = store.store.staged(Some(body.token.fence())).await?;
        if staged.iter().any(|staged| staged.token == body.token) {
            return Ok(Begun::Resumed);
        }
        let keys = [crate::publish::key(&arrival.key)?, crate::abroad::own_key(arrival.id)?];
        let named = (&body.token, arrival.identity.as_deref());
        if let Some((staged, tree)) = find_published(store, keys, named, body.size).await? {
            return Ok(Begun::Published(staged, tree));
        }
        for ended in self.catalog.end_arrivals(vec![arrival.id], ArrivalEnd::Removed).await {
            ended?;
        }
        Ok(Begun::Resumed)
    }

    /// Verifies and writes a group, and lengthens the upload's life.
    ///
    /// # Errors
    /// - `DigestMismatch` if the bytes are not those of the hash.
    /// - `LeaseExpired` if the upload lapsed or was committed meanwhile.
    pub async fn write(&self, session: &Arc<Session>, group: DataFrame) -> Result<()> {
        group
            .verify()
            .map_err(|error| ApiError::new(error.code(), error.to_string()).with_path(&session.body.path))?;
        if group.size != session.body.size {
            let detail = format!("the upload has {}, the frames speak of {}", session.body.size, group.size);
            return Err(ApiError::new(ErrorCode::InvalidRequest, detail).with_path(&session.body.path));
        }
        session.write(&group).await?;
        self.lengthen(session).await
    }

    /// Takes groups for arrived that were sent before, where they lie staged with these hashes.
    ///
    /// # Errors
    /// - `InvalidRequest` if there are too many, or one is behind the end.
    /// - `LeaseExpired` if the upload lapsed or was committed meanwhile.
    pub async fn recall(&self, session: &Arc<Session>, sent: SentGroups) -> Result<()> {
        let count = group_count(session.body.size);
        let most = SentGroups::MOST;
        if sent.groups.len() > most || sent.groups.iter().any(|sent| sent.group >= count) {
            let detail = format!("at most {most} groups may be named at once, of the {count} that there are");
            return Err(ApiError::new(ErrorCode::InvalidRequest, detail).with_path(&session.body.path));
        }
        for SentGroup { group, hash } in sent.groups {
            session.recall(group, hash).await?;
        }
        self.lengthen(session).await
    }

    /// Takes plain bytes from where the upload stands. What does not fill a whole group at the end of a cut request is
    /// dropped, so the next offset is always a multiple of 1 MiB.
    ///
    /// # Errors
    /// `Conflict` if `offset` is not where the upload stands.
    pub async fn append<S>(&self, session: &Arc<Session>, offset: u64, body: &mut S) -> Result<ByteCount>
    where
        S: futures::Stream<Item = Result<Bytes>> + Unpin + Send,
    {
        use futures::StreamExt;
        let stands = session.contiguous();
        if offset != stands.0 {
            let detail = format!("the upload stands at {}, not at {offset}", stands.0);
            return Err(ApiError::new(ErrorCode::Conflict, detail).with_path(&session.body.path));
        }
        let size = session.body.size;
        let mut at = offset;
        let mut pending = BytesMut::new();
        loop {
            let group = at / GROUP_SIZE;
            let len = group_range(size, group).len() as usize;
            if pending.len() >= len && at < size.0 {
                let bytes = pending.split_to(len).freeze();
                let hash = hash_group(size, group, &bytes);
                let frame = DataFrame { item: 0, size, offset: at, hash, found: hash, bytes };
                session.write(&frame).await?;
                self.lengthen(session).await?;
                at += len as u64;
                continue;
            }
            match body.next().await {
                Some(piece) => pending.extend_from_slice(&piece?),
                None => break,
            }
            if at + pending.len() as u64 > size.0 {
                let detail = format!("more bytes than the {size} that were announced");
                return Err(ApiError::new(ErrorCode::InvalidRequest, detail).with_path(&session.body.path));
            }
        }
        Ok(session.contiguous())
    }

    async fn lengthen(&self, session: &Session) -> Result<()> {
        {
            let mut arrived = session.arrived();
            if arrived.renewed.elapsed() < self.ttl / 4 {
                return Ok(());
            }
            arrived.renewed = Instant::now();
        }
        let lease = self.catalog.renew_lease(session.holder.lease, session.holder.fence, self.ttl).await?;
        session.arrived().expires = lease.expires;
        Ok(())
    }

    /// Verifies the whole and publishes it. Asked again after the answer was lost, gives the same answer. What is on its way
    /// is waited for, for so long at most, so that a sender need not wait itself for the last byte to be told.
    ///
    /// # Errors
    /// - `UploadIncomplete` if something is missing; it can still be sent.
    /// - `DigestMismatch` if the root or a digest is not what the sender said; the upload stays.
    /// - `Conflict`, `PreconditionFailed`, `AlreadyExists` if another writer was first; the upload is over.
    /// - `Timeout` while another request commits it.
    pub async fn commit(
        self: &Arc<Self>,
        caller: &Caller,
        id: LeaseId,
        claimed: CommitUpload,
        wait: Duration,
    ) -> Result<Done> {
        let key = answer_key(caller, id);
        if let Some(done) = self.committed_before(&key, id).await? {
            return Ok(done);
        }
        let began = Instant::now();
        let session = match self.session_within(caller, id, wait).await {
            Ok(session) => session,
            Err(error) => {
                // It may have become a version meanwhile.
                if let Some(done) = self.committed_before(&key, id).await? {
                    return Ok(done);
                }
                self.catalog.forget(&key).await?;
                return Err(error);
            }
        };
        session.until_complete(wait.saturating_sub(began.elapsed())).await;
        let tree = match session.verify(&claimed).await {
            // Its bytes are in another request's hands.
            Err(error) if error.code() == ErrorCode::LeaseExpired => {
                return self.committed_meanwhile(&key, &session).await;
            }
            verified => verified?,
        };
        // The marker then names every group, should this server die before the end.
        session.mark().await?;
        let Some(writing) = session.writing.write().await.take() else {
            return self.committed_meanwhile(&key, &session).await;
        };
        let staged = match writing {
            Writing::Stage(stage) => stage.finish().await.map_err(ApiError::from),
            Writing::Published(staged) => Ok(staged),
        };
        let (size, root) = (tree.size(), tree.root());
        let Body { path, condition, parents, mtime, mode, .. } = session.body.clone();
        let outcome = match staged {
            Ok(staged) => {
                let content = StagedContent { store: session.store.clone(), staged, tree };
                let object = NewObject {
                    caller: caller.clone(),
                    delegation: None,
                    path,
                    parents,
                    condition,
                    mtime,
                    mode,
                    digests: claimed.digests,
                    answer: Some(key.clone()),
                };
                self.publisher.publish_upload(session.holder, object, content).await
            }
            Err(error) => Err(error.with_path(&path)),
        };
        if outcome.as_ref().err().is_none_or(|error| !keeps_bytes(error)) {
            self.end(&session).await;
        }
        // Whatever came of it, the next request begins from what is stored; not before that is over.
        self.sessions.lock().await.open.remove(&session.id);
        if outcome.is_err() {
            self.catalog.forget(&key).await?;
        }
        outcome.map(|committed| Done { committed, size, root })
    }

    /// Waits for what another request makes of an upload that it commits.
    ///
    /// # Errors
    /// `Timeout` if that takes long, or fails: asked again, the commit begins from what is stored.
    async fn committed_meanwhile(&self, key: &AnswerKey, session: &Arc<Session>) -> Result<Done> {
        let began = Instant::now();
        while began.elapsed() < COMMITTING {
            let is_over = !self.sessions.lock().await.open.contains_key(&session.id);
            if let Some(done) = self.committed_before(key, session.id).await? {
                return Ok(done);
            }
            if is_over {
                break;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        let detail = "another request is committing the upload; ask again";
        Err(ApiError::new(ErrorCode::Timeout, detail).with_path(&session.body.path))
    }

    /// Returns what a commit gave whose answer was lost. One that was begun and not ended, since its server died, is
    /// begun again: only one of two can take the upload.
    async fn committed_before(&self, key: &AnswerKey, id: LeaseId) -> Result<Option<Done>> {
        let answer = match self.catalog.remember(key, request_hash(id)).await? {
            Remembered::Same(answer) => answer,
            Remembered::First | Remembered::InProgress | Remembered::Mismatch => return Ok(None),
        };
        let committed: Committed = serde_json::from_str(&answer.body).map_err(|error| {
            ApiError::internal(format!("cannot read the answer kept for upload {id}")).with_source(error)
        })?;
        let system = crate::app::system_caller();
        let at = committed.position;
        let version = match self.catalog.open_by_id(&system, at.space, committed.version).await {
            Err(error) if error.code() == ErrorCode::NotFound => {
                let here = self.catalog.position(at.space).await?;
                if (here.term, here.seq) >= (at.term, at.seq) {
                    return Err(error.into());
                }
                // Its home has committed it, and this site's follower, which may have been cut off, is not there yet.
                let detail = "the object is committed, but this site has not heard of it from its home yet";
                return Err(ApiError::new(ErrorCode::SiteUnavailable, detail).with_path(&committed.path));
            }
            opened => opened?,
        };
        let root = version
            .root
            .ok_or_else(|| ApiError::internal(format!("upload {id} gave a version without a root")))?;
        Ok(Some(Done { committed, size: version.size, root }))
    }

    /// Gives an upload up and removes what arrived.
    pub async fn abort(&self, session: &Session) -> Result<()> {
        session.writing.write().await.take();
        self.sessions.lock().await.open.remove(&session.id);
        // A publication that was begun is undone with the lease.
        let lease = session.holder.lease;
        let is_begun = !self.catalog.intents_of(lease).await?.is_empty()
            || !self.catalog.arrivals_of(lease).await?.is_empty();
        if !is_begun {
            self.end(session).await;
        } else {
            self.catalog.renew_lease(lease, session.holder.fence, Duration::ZERO).await?;
        }
        Ok(())
    }

    /// Removes what is left of an upload. What fails is left to the take-over of its lease.
    async fn end(&self, session: &Session) {
        // The fence is this upload's alone.
        let discarded =
            session.store.store.discard_fence(session.holder.fence).await.map(drop).map_err(ApiError::from);
        let ended = match discarded {
            Ok(()) => self
                .catalog
                .release_lease(session.holder.lease, session.holder.fence)
                .await
                .map_err(ApiError::from),
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            tracing::info!(upload = %session.id, %error, "the rest of an upload is left to its lease");
        }
    }
}

/// Tells whether asking again can help, so that what arrived is kept.
pub(crate) fn keeps_bytes(error: &ApiError) -> bool {
    matches!(
        error.code(),
        ErrorCode::CatalogUnavailable
            | ErrorCode::StoreUnavailable
            | ErrorCode::SiteUnavailable
            | ErrorCode::Timeout
            | ErrorCode::NoSpace
            | ErrorCode::RateLimited
    )
}

fn no_upload(id: LeaseId) -> ApiError {
    ApiError::new(ErrorCode::NotFound, format!("no upload {id}: it ended, or was never opened"))
}

fn answer_key(caller: &Caller, id: LeaseId) -> AnswerKey {
    AnswerKey { caller: owner_of(caller), key: format!("upload:{id}") }
}

fn request_hash(id: LeaseId) -> [u8; 32] {
    RootHash::of(id.0.as_bytes()).0
}

/// Returns the space of a path that names something in one.
///
/// # Errors
/// `InvalidPath` for `/` and for the root of a space.
pub fn space_of(path: &ObjectPath) -> Result<percale_core::path::SpaceName> {
    match path.space() {
        Some(space) if !path.is_space() => Ok(space),
        _ => {
            Err(ApiError::new(ErrorCode::InvalidPath, format!("{path} cannot be an object")).with_path(path))
        }
    }
}

/// Returns how a lease names its holder.
pub fn owner_of(caller: &Caller) -> String {
    caller.user.as_ref().map_or_else(|| "anyone".to_owned(), |user| format!("user:{user}"))
}
