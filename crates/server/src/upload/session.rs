//! One upload that this server works on: what has arrived of it, in memory and beside the partial data.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use percale_api::uploads::{CommitUpload, Upload};
use percale_catalog::{Condition, Lease, TaskHolder};
use percale_core::digest::{Algorithm, Digest, Hasher};
use percale_core::ids::{LeaseId, StoreId};
use percale_core::tree::{GROUP_SIZE, GroupHash, HashTree, group_range, hash_group};
use percale_core::{ByteCount, ByteRange, ErrorCode, FileMode, ObjectPath, Timestamp};
use percale_mover::{DataFrame, ReceivedGroups};
use percale_store::{Stage, StageOptions, StageToken, Staged};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, RwLock};

use crate::error::{ApiError, Result};
use crate::publish::key_for_stage;
use crate::stores::OpenStore;

/// Bytes after which what arrived is flushed and the marker written, while others arrive: this much, and what comes while
/// the disk is flushed, is sent again after a loss of power.
const MARK_EVERY: u64 = 8 << 20;
/// So many times that much may come while the disk is flushed. Then senders are held back: a slow disk must not make more of
/// what would have to be sent again.
const MARKS_BEHIND: u64 = 2;
/// A marker has 40 bytes for each MiB, so for large contents it is written less often: at most this many times.
const MARKS: u64 = 1024;

/// What the lease of an upload keeps, version 1.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Body {
    pub(super) v: u32,
    pub(super) path: ObjectPath,
    pub(super) size: ByteCount,
    pub(super) condition: Condition,
    pub(super) parents: bool,
    pub(super) mtime: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) mode: Option<FileMode>,
    pub(super) store: StoreId,
    pub(super) token: StageToken,
}

/// An upload that this server works on.
pub struct Session {
    pub(super) id: LeaseId,
    pub(super) body: Body,
    pub(super) store: Arc<OpenStore>,
    pub(super) holder: TaskHolder,
    pub(super) owner: String,
    /// Taken out when the upload is committed. Writers share it, since parts are written side by side.
    pub(super) writing: RwLock<Option<Writing>>,
    pub(super) arrived: Mutex<Arrived>,
    /// Told when nothing is missing any more.
    pub(super) complete: Notify,
    /// Told when a marker was written, or could not be.
    pub(super) marked: Notify,
    /// One at a time: a marker must not be older than the one it replaces.
    pub(super) marking: tokio::sync::Mutex<()>,
    /// Held while a group is written, where the store takes bytes in order.
    in_order: tokio::sync::Mutex<()>,
}

pub(super) enum Writing {
    /// Bytes may still arrive.
    Stage(Box<dyn Stage>),
    /// A commit got as far as giving the file its key, and the server died then or the catalog was away.
    Published(Staged),
}

impl Writing {
    fn stage(&self) -> Option<&dyn Stage> {
        match self {
            Self::Stage(stage) => Some(stage.as_ref()),
            Self::Published(_) => None,
        }
    }
}

pub(super) struct Arrived {
    pub(super) groups: ReceivedGroups,
    pub(super) unmarked: u64,
    /// Whether a marker is being written.
    pub(super) is_marking: bool,
    pub(super) renewed: Instant,
    pub(super) expires: Timestamp,
}

impl Session {
    pub(super) async fn open(
        lease: &Lease,
        body: Body,
        store: Arc<OpenStore>,
        owner: String,
        begun: Begun,
    ) -> Result<Arc<Self>> {
        let size = body.size;
        let (writing, groups) = match begun {
            Begun::Published(staged, tree) => {
                let mut groups = ReceivedGroups::new(size);
                for (number, hash) in (0..).zip(tree.groups()) {
                    groups.insert(number, *hash);
                }
                (Writing::Published(staged), groups)
            }
            Begun::New | Begun::Resumed => {
                let can_resume = store.store.capabilities().write.resumable;
                let mut options = StageOptions::new(body.token.clone()).size(size);
                options.key = key_for_stage(&store, &body.token)?;
                let is_resumed = matches!(begun, Begun::Resumed) && can_resume;
                if is_resumed {
                    options = options.resume();
                }
                let stage = store.store.stage(options).await?;
                let marker = if is_resumed { stage.read_marker().await } else { Ok(None) };
                let marker = match marker {
                    Err(error) if error.is_temporary() => return Err(error.into()),
                    // One that can never be read counts as none, as a damaged one.
                    marker => marker.unwrap_or_default(),
                };
                let groups = marker.and_then(|marker| ReceivedGroups::decode(&marker, size));
                (Writing::Stage(stage), groups.unwrap_or_else(|| ReceivedGroups::new(size)))
            }
        };
        Ok(Arc::new(Self {
            id: lease.id,
            holder: TaskHolder { lease: lease.id, fence: lease.fence },
            body,
            store,
            owner,
            writing: RwLock::new(Some(writing)),
            arrived: Mutex::new(Arrived {
                groups,
                unmarked: 0,
                is_marking: false,
                renewed: Instant::now(),
                expires: lease.expires,
            }),
            complete: Notify::new(),
            marked: Notify::new(),
            marking: tokio::sync::Mutex::new(()),
            in_order: tokio::sync::Mutex::new(()),
        }))
    }

    pub(super) fn arrived(&self) -> std::sync::MutexGuard<'_, Arrived> {
        self.arrived.lock().expect("no holder of this lock panics")
    }

    pub(super) fn over(&self) -> ApiError {
        ApiError::new(ErrorCode::LeaseExpired, "the upload was committed or given up meanwhile")
            .with_path(&self.body.path)
    }

    /// Returns where the object will be.
    pub fn path(&self) -> &ObjectPath {
        &self.body.path
    }

    /// Returns the size that was announced.
    pub fn size(&self) -> ByteCount {
        self.body.size
    }

    /// Returns how many bytes have arrived from the beginning without a hole.
    pub fn contiguous(&self) -> ByteCount {
        self.arrived().groups.contiguous()
    }

    /// Tells whether groups may come in any order and over several connections.
    pub fn is_positioned(&self) -> bool {
        self.store.store.capabilities().write.positioned
    }

    /// Returns what the client is told.
    pub fn describe(&self) -> Upload {
        let arrived = self.arrived();
        Upload {
            id: self.id,
            path: self.body.path.clone(),
            size: self.body.size.0,
            missing: arrived.groups.missing(),
            expires: arrived.expires,
            positioned: self.is_positioned(),
        }
    }

    /// Writes a group, unless it is there. Whoever waits for that may be gone before it is noted, which only a store that takes bytes in
    /// any order takes once more.
    pub(super) async fn write(self: &Arc<Self>, group: &DataFrame) -> Result<()> {
        if self.is_positioned() {
            return self.write_once(group).await;
        }
        let (session, group) = (self.clone(), group.clone());
        let written = tokio::spawn(async move {
            let _one = session.in_order.lock().await;
            let stands = session.contiguous().0;
            if group.offset > stands {
                // Another connection is behind: that of a sender who did not know the store yet, or who has asked again.
                let detail =
                    format!("these bytes go to a store that takes them in order, and it stands at {stands}");
                return Err(ApiError::new(ErrorCode::UploadIncomplete, detail).with_path(&session.body.path));
            }
            session.write_once(&group).await
        });
        written.await.map_err(|error| ApiError::internal("writing did not end").with_source(error))?
    }

    async fn write_once(self: &Arc<Self>, group: &DataFrame) -> Result<()> {
        let number = group.group();
        match self.arrived().groups.get(number) {
            Some(hash) if hash == group.hash => return Ok(()),
            Some(_) => {
                let detail =
                    format!("other bytes than before for group {number}: the source changed meanwhile");
                return Err(ApiError::new(ErrorCode::VersionChanged, detail).with_path(&self.body.path));
            }
            None => {}
        }
        let written = {
            let writing = self.writing.read().await;
            let stage = writing.as_ref().and_then(Writing::stage).ok_or_else(|| self.over())?;
            stage.write_at(group.offset, group.bytes.clone()).await
        };
        if let Err(error) = written {
            if !self.is_positioned() {
                self.begin_anew().await;
            }
            return Err(error.into());
        }
        self.note(number, group.hash);
        self.keep_up().await;
        Ok(())
    }

    /// Begins from the first byte again: a store that takes bytes in order takes none behind one that it failed at.
    async fn begin_anew(&self) {
        let mut writing = self.writing.write().await;
        if !matches!(*writing, Some(Writing::Stage(_))) {
            return;
        }
        // If this fails the upload is over, and whoever sends it opens another.
        *writing = None;
        let stage = async {
            self.store.store.discard(&self.body.token).await?;
            let mut options = StageOptions::new(self.body.token.clone()).size(self.body.size);
            options.key = key_for_stage(&self.store, &self.body.token)?;
            Ok::<_, ApiError>(self.store.store.stage(options).await?)
        };
        match stage.await {
            Ok(stage) => {
                *writing = Some(Writing::Stage(stage));
                self.arrived().groups = ReceivedGroups::new(self.body.size);
            }
            Err(error) => tracing::info!(upload = %self.id, %error, "an upload cannot begin anew"),
        }
    }

    fn mark_every(&self) -> u64 {
        MARK_EVERY.max(self.body.size.0 / MARKS)
    }

    /// Waits for the marker that is being written, if much came since it was begun.
    async fn keep_up(&self) {
        loop {
            let marked = self.marked.notified();
            tokio::pin!(marked);
            // From here on it hears of an end, so none can fall between the look and the wait.
            marked.as_mut().enable();
            let is_behind = {
                let arrived = self.arrived();
                arrived.is_marking && arrived.unmarked >= MARKS_BEHIND * self.mark_every()
            };
            if !is_behind {
                return;
            }
            marked.await;
        }
    }

    /// Takes a group for arrived if it lies there, written by a server that was killed before it had written a marker.
    pub(super) async fn recall(self: &Arc<Self>, number: u64, hash: GroupHash) -> Result<()> {
        if self.arrived().groups.get(number).is_some() {
            return Ok(());
        }
        let size = self.body.size;
        let range = group_range(size, number);
        let bytes = {
            let writing = self.writing.read().await;
            let stage = writing.as_ref().and_then(Writing::stage).ok_or_else(|| self.over())?;
            stage.read_at(range).await
        };
        // What cannot be read, or ends before, is sent again.
        let Some(bytes) = bytes.ok().filter(|bytes| bytes.len() as u64 == range.len()) else { return Ok(()) };
        let found = tokio::task::spawn_blocking(move || hash_group(size, number, &bytes)).await;
        let found = found.map_err(|error| ApiError::internal("hashing did not end").with_source(error))?;
        if found == hash {
            self.note(number, hash);
        }
        Ok(())
    }

    /// Notes a group that is written, and has a marker written when one is due.
    fn note(self: &Arc<Self>, number: u64, hash: GroupHash) {
        let is_due = {
            let mut arrived = self.arrived();
            arrived.groups.insert(number, hash);
            if arrived.groups.is_complete() {
                self.complete.notify_waiters();
            }
            arrived.unmarked += group_range(self.body.size, number).len();
            let is_due = arrived.unmarked >= self.mark_every() && !arrived.is_marking;
            arrived.is_marking |= is_due;
            is_due
        };
        if is_due {
            let marking = Marking(self.clone());
            tokio::spawn(async move {
                let session = &marking.0;
                if let Err(error) = session.mark().await {
                    tracing::warn!(upload = %session.id, %error, "the marker of an upload was not written; more may have to be sent again");
                }
            });
        }
    }

    /// Flushes what arrived and writes the marker, in this order: the marker never names what a power failure can take.
    ///
    /// # Errors
    /// Whatever the store answers.
    pub async fn mark(&self) -> Result<()> {
        if !self.store.store.capabilities().write.resumable {
            return Ok(());
        }
        let _one = self.marking.lock().await;
        let groups = {
            let mut arrived = self.arrived();
            arrived.unmarked = 0;
            arrived.groups.clone()
        };
        let writing = self.writing.read().await;
        let Some(stage) = writing.as_ref().and_then(Writing::stage) else { return Ok(()) };
        stage.sync_progress().await?;
        stage.write_marker(groups.encode().into()).await?;
        Ok(())
    }

    /// Waits until nothing is missing, for so long at most.
    pub(super) async fn until_complete(&self, wait: Duration) {
        let complete = self.complete.notified();
        tokio::pin!(complete);
        // From here on it hears of the end, so none can fall between the look and the wait.
        complete.as_mut().enable();
        if !self.arrived().groups.is_complete() {
            let _ = tokio::time::timeout(wait, complete).await;
        }
    }

    /// Checks that everything arrived and is what the sender says, and returns its tree.
    pub(super) async fn verify(&self, claimed: &CommitUpload) -> Result<HashTree> {
        let size = self.body.size;
        let tree = {
            let mut arrived = self.arrived();
            if size == ByteCount::ZERO {
                // An empty content has one group, which nobody need send.
                arrived.groups.insert(0, hash_group(size, 0, b""));
            }
            arrived.groups.tree().map_err(|_| {
                let detail = format!("{} of {size} have not arrived", arrived.groups.missing().total());
                ApiError::new(ErrorCode::UploadIncomplete, detail).with_path(&self.body.path)
            })?
        };
        if let Some(root) = claimed.root.filter(|root| *root != tree.root()) {
            let detail = format!("the sender's root is {root}, that of what arrived is {}", tree.root());
            return Err(ApiError::new(ErrorCode::DigestMismatch, detail).with_path(&self.body.path));
        }
        let root = tree.root().to_digest();
        let others: Vec<Digest> = claimed.digests.iter().filter(|digest| **digest != root).cloned().collect();
        if others.is_empty() {
            return Ok(tree);
        }
        let algorithms: Vec<Algorithm> = others.iter().map(Digest::algorithm).collect();
        let computed = self.digests(algorithms).await?;
        match others.iter().find(|digest| !computed.contains(digest)) {
            None => Ok(tree),
            Some(digest) => {
                let detail = format!("what arrived does not have the digest {digest}");
                Err(ApiError::new(ErrorCode::DigestMismatch, detail).with_path(&self.body.path))
            }
        }
    }

    /// Reads back what arrived to compute digests that need all bytes in order.
    async fn digests(&self, algorithms: Vec<Algorithm>) -> Result<Vec<Digest>> {
        let mut hasher = Hasher::new(algorithms);
        let size = self.body.size;
        let mut at = 0;
        while at < size.0 {
            let range = ByteRange::at(at, GROUP_SIZE.min(size.0 - at));
            let bytes = {
                let writing = self.writing.read().await;
                let stage = writing.as_ref().and_then(Writing::stage).ok_or_else(|| self.over())?;
                stage.read_at(range).await?
            };
            at += bytes.len() as u64;
            let hashed = tokio::task::spawn_blocking(move || {
                hasher.update(&bytes);
                hasher
            });
            hasher =
                hashed.await.map_err(|error| ApiError::internal("hashing did not end").with_source(error))?;
        }
        Ok(hasher.finish())
    }
}

/// Lasts while a marker is written beside what arrives. Whatever ends it, who waits for it goes on.
struct Marking(Arc<Session>);

impl Drop for Marking {
    fn drop(&mut self) {
        self.0.arrived().is_marking = false;
        self.0.marked.notify_waiters();
    }
}

/// How far an upload is when a session for it is opened.
pub(super) enum Begun {
    /// It was just opened.
    New,
    /// Some of it may have arrived.
    Resumed,
    /// All of it arrived and has its key; only the catalog does not know yet.
    Published(Staged, HashTree),
}
