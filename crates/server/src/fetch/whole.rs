//! Large objects: from where each comes, and what it is written to.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use percale_api::tasks::Verification;
use percale_core::ids::SiteId;
use percale_core::tree::{GROUP_SIZE, HashTree, TreeHasher};
use percale_core::{ByteRange, ErrorCode};
use percale_mover::meter::InHand;
use percale_mover::{Held, Streams, Wait};
use percale_store::{Stage, StageOptions, StageToken, Staged, StoreKey};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::kept::{Arrived, Kept};
use super::large::Large;
use super::medium::{note, wrong_again, wrong_groups};
use super::{Fetch, Flow, Givers, Wanted};
use crate::publish::{StagedContent, key_for_stage};
use crate::reading::Source;
use crate::stores::OpenStore;
use crate::{ApiError, AppState, Result};

/// Bytes that a stream brings at a time for a store that takes them in order. They are in memory until those before are written; on a
/// line of 50 ms a stream of 3 MB in flight still moves 37 MB/s so.
const PIECE: u64 = 4 * GROUP_SIZE;

impl Fetch {
    /// Brings all bytes of a version into a staged file: over several streams, if it comes from other sites and was hashed, and in any
    /// order, if the store takes them so. It is returned with the lease of its own that it may lie under.
    ///
    /// # Errors
    /// As the last copy and the store answer.
    pub(super) async fn stage(
        &self,
        wanted: &Wanted,
        source: Arc<Source>,
        in_hand: &InHand<'_>,
        givers: &Givers,
    ) -> Result<(StagedContent, Option<Kept>)> {
        let sites: Option<VecDeque<SiteId>> = source.sites().collect();
        let positioned = wanted.store.store.capabilities().write.positioned;
        match (sites, source.tree.clone()) {
            (Some(sites), Some(tree)) if positioned => {
                self.stage_from(wanted, sites, tree, in_hand, givers).await
            }
            _ => Ok((self.stage_in_order(wanted, source, in_hand, givers).await?, None)),
        }
    }

    /// Brings a version from other sites, over several streams.
    async fn stage_from(
        &self,
        wanted: &Wanted,
        sites: VecDeque<SiteId>,
        tree: Arc<HashTree>,
        in_hand: &InHand<'_>,
        givers: &Givers,
    ) -> Result<(StagedContent, Option<Kept>)> {
        let store = &wanted.store;
        let contact = sites.front().map(|site| self.app.fabric.contact(*site)).unwrap_or_default();
        let streams = Streams::for_path(contact.rtt, contact.window);
        tracing::debug!(path = %wanted.version.path, %streams, "a large object is fetched");
        let streams = self.flow.choose(streams);
        let content = |staged| StagedContent { store: store.clone(), staged, tree: HashTree::clone(&tree) };
        let Some(task) = self.task.as_ref().filter(|_| Kept::is_for(store, wanted.version.size)) else {
            let (staging, options) = Staging::begin(&self.app, wanted)?;
            let stage = store.store.stage(options).await?;
            let arrived = Arrived::new(Held::new(tree.size(), tree.root()));
            let large = self.streams(wanted, &tree, &*stage, (&arrived, in_hand, givers), streams);
            large.bring(sites.clone(), Vec::new()).await?;
            self.read_back(store, &large, &sites).await?;
            let staged = finish(&self.flow, stage).await?;
            staging.keep();
            return Ok((content(staged), None));
        };
        let kept = Kept::open(&self.app, task, wanted, &tree).await?;
        let brought = async {
            let stage = kept.stage().read().await;
            let stage = stage.as_deref().ok_or_else(|| ApiError::internal("nothing is staged"))?;
            let large = self.streams(wanted, &tree, stage, (kept.arrived(), in_hand, givers), streams);
            let brought = async {
                large.bring(sites.clone(), kept.believed()).await?;
                self.read_back(store, &large, &sites).await
            };
            tokio::select! {
                brought = brought => brought,
                lost = kept.keep() => Err(lost),
            }
        };
        let staged = match brought.await {
            Ok(()) => {
                let _open = self.flow.meter().stream();
                self.flow.meter().waiting(Wait::Disk, kept.finish()).await
            }
            Err(error) => Err(error),
        };
        match staged {
            Ok(staged) => Ok((content(staged), Some(kept))),
            Err(error) => {
                kept.failed(&error).await;
                Err(error)
            }
        }
    }

    fn streams<'a>(
        &'a self,
        wanted: &'a Wanted,
        tree: &Arc<HashTree>,
        stage: &'a dyn Stage,
        (arrived, in_hand, givers): (&'a Arrived, &'a InHand<'a>, &'a Givers),
        streams: usize,
    ) -> Large<'a> {
        Large {
            app: &self.app,
            acting: &self.acting,
            version: &wanted.version,
            tree: tree.clone(),
            stage,
            arrived,
            slots: &self.slots,
            larges: &self.larges,
            streams,
            share: uuid::Uuid::new_v4().simple().to_string(),
            failing: &self.failing,
            flow: &self.flow,
            in_hand,
            givers,
        }
    }

    /// Writes a version from its first byte to its last, as the store takes it; or has the storage copy it. Once more, if it was to be read
    /// back and was wrong.
    async fn stage_in_order(
        &self,
        wanted: &Wanted,
        source: Arc<Source>,
        in_hand: &InHand<'_>,
        givers: &Givers,
    ) -> Result<StagedContent> {
        let Wanted { store, version, .. } = wanted;
        for _ in 0..2 {
            let (staging, options) = Staging::begin(&self.app, wanted)?;
            let can = &store.store.capabilities().write;
            let original = source.on_own_store().filter(|(from, _)| from.row.id == store.row.id);
            let (staged, tree) = match original.filter(|_| can.clone && can.positioned) {
                Some((_, replica)) => {
                    givers.note(self.app.site.id);
                    clone_whole(store, &replica.key, &source, options).await?
                }
                None => {
                    let stage = store.store.stage(options).await?;
                    match (source.sites().next().flatten(), source.tree.clone()) {
                        (Some(site), Some(tree)) => {
                            self.write_pieces(&source, (site, tree), stage, in_hand, givers).await?
                        }
                        _ => write_whole(&self.app, &source, stage, &self.flow, in_hand, givers).await?,
                    }
                }
            };
            let wrong = match self.verify {
                Verification::Frames => Vec::new(),
                Verification::Medium => wrong_groups(store, self.flow.meter(), &staged.token, &tree).await?,
            };
            if wrong.is_empty() {
                staging.keep();
                return Ok(StagedContent { store: store.clone(), staged, tree });
            }
            note(store, &version.path, &wrong);
        }
        Err(wrong_again(store, &version.path))
    }
}

/// A piece of a version, verified.
struct Piece {
    bytes: Vec<Bytes>,
    /// Its right to a stream, and so to the memory that it takes until the store has taken it.
    _slot: Option<OwnedSemaphorePermit>,
}

impl Fetch {
    /// Brings a version of another site in pieces, several at once, and writes them in their order.
    ///
    /// # Errors
    /// As the last copy and the store answer.
    async fn write_pieces(
        &self,
        source: &Arc<Source>,
        (site, tree): (SiteId, Arc<HashTree>),
        stage: Box<dyn Stage>,
        in_hand: &InHand<'_>,
        givers: &Givers,
    ) -> Result<(Staged, HashTree)> {
        let contact = self.app.fabric.contact(site);
        let streams = self.flow.choose(Streams::for_path(contact.rtt, contact.window));
        let pieces = (0..source.version.size.0.div_ceil(PIECE))
            .map(|piece| self.piece(source, (site, givers), ByteRange::at(piece * PIECE, PIECE), streams));
        let mut pieces = stream::iter(pieces).buffered(streams.max(1)).boxed();
        // Nobody who reads waits for the store: a stream that is not read is cut. The rights of those that wait bound how much that is.
        let (arrived, mut queue) = mpsc::unbounded_channel();
        let read = async move {
            while let Some(piece) = pieces.try_next().await? {
                // Who writes says itself why it does not any more.
                if arrived.send(piece).is_err() {
                    break;
                }
            }
            Ok::<_, ApiError>(())
        };
        let written = async {
            let mut at = 0;
            while let Some(Piece { bytes, _slot }) = queue.recv().await {
                for bytes in bytes {
                    let len = bytes.len() as u64;
                    self.flow.meter().waiting(Wait::Disk, stage.write_at(at, bytes)).await?;
                    in_hand.add(len);
                    at += len;
                }
            }
            Ok::<_, ApiError>(())
        };
        tokio::try_join!(written, read)?;
        Ok((finish(&self.flow, stage).await?, HashTree::clone(&tree)))
    }

    /// Reads a piece. Each of its groups is verified.
    async fn piece(
        &self,
        source: &Arc<Source>,
        (site, givers): (SiteId, &Givers),
        range: ByteRange,
        streams: usize,
    ) -> Result<Piece> {
        let slot = self.slots.take(streams).await;
        let meter = self.flow.meter();
        let _open = meter.stream();
        let _turn = self.flow.turn(site).await;
        let mut read = meter.waiting(Wait::Bytes, self.app.reader.read(source.clone(), range)).await?;
        let mut pieces = Vec::new();
        while let Some(bytes) = meter.waiting(Wait::Bytes, read.next()).await? {
            self.flow.admit(bytes.len() as u64).await;
            givers.note(read.site().unwrap_or(self.app.site.id));
            pieces.push(bytes);
        }
        Ok(Piece { bytes: pieces, _slot: slot })
    }
}

/// A staged file that is removed unless it is kept, also when whoever writes it is dropped.
struct Staging {
    app: AppState,
    store: Arc<OpenStore>,
    token: StageToken,
    is_kept: bool,
}

impl Staging {
    /// Names a staged file under this server's lease.
    fn begin(app: &AppState, wanted: &Wanted) -> Result<(Self, StageOptions)> {
        let token = app.lease.token()?;
        let mut options = StageOptions::new(token.clone()).size(wanted.version.size);
        if let Some(key) = key_for_stage(&wanted.store, &token)? {
            options = options.key(key);
        }
        Ok((Self { app: app.clone(), store: wanted.store.clone(), token, is_kept: false }, options))
    }

    fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        let (store, token) = (self.store.clone(), self.token.clone());
        self.app.background.spawn(async move {
            if let Err(error) = store.store.discard(&token).await {
                tracing::info!(%error, "a staged copy was not discarded; it goes with the server's lease");
            }
        });
    }
}

/// Has the storage copy a file of its own, and reads the copy back.
async fn clone_whole(
    store: &OpenStore,
    original: &str,
    source: &Source,
    options: StageOptions,
) -> Result<(Staged, HashTree)> {
    let original = StoreKey::parse(original)
        .map_err(|error| ApiError::internal("a copy's key cannot be used").with_source(error))?;
    let stage = store.store.clone_to_stage(&original, options).await?;
    let size = source.version.size;
    let mut hasher = TreeHasher::new();
    while hasher.size() < size {
        let bytes = stage.read_at(ByteRange::at(hasher.size().0, GROUP_SIZE)).await?;
        if bytes.is_empty() {
            break;
        }
        hasher.update(&bytes);
    }
    let tree = expected(hasher.finish(), source)?;
    Ok((stage.finish().await?, tree))
}

/// Reads a version whole into a staged file, over one stream, and compares what was read with the version's root.
///
/// # Errors
/// As the last copy and the store answer; `Integrity` if it has another root.
async fn write_whole(
    app: &AppState,
    source: &Arc<Source>,
    stage: Box<dyn Stage>,
    flow: &Flow,
    in_hand: &InHand<'_>,
    givers: &Givers,
) -> Result<(Staged, HashTree)> {
    let meter = flow.meter();
    let open = meter.stream();
    let (site, wait) = match source.sites().next().flatten() {
        Some(site) => (Some(site), Wait::Bytes),
        None => (None, Wait::OwnDisk),
    };
    let turn = match site {
        Some(site) => flow.turn(site).await,
        None => None,
    };
    let begun = app.reader.read(source.clone(), ByteRange::whole(source.version.size));
    let mut read = meter.waiting(wait, begun).await?;
    let mut hasher = TreeHasher::new();
    let mut at = 0;
    while let Some(bytes) = meter.waiting(wait, read.next()).await? {
        let len = bytes.len() as u64;
        if site.is_some() {
            flow.admit(len).await;
        }
        // At most 1 MiB, which takes about 0.15 ms.
        meter.working(Wait::Verify, || hasher.update(&bytes));
        meter.waiting(Wait::Disk, stage.write_at(at, bytes)).await?;
        givers.note(read.site().unwrap_or(app.site.id));
        in_hand.add(len);
        at += len;
    }
    drop((turn, open));
    let tree = expected(hasher.finish(), source)?;
    Ok((finish(flow, stage).await?, tree))
}

/// Has everything that was written kept for good.
async fn finish(flow: &Flow, stage: Box<dyn Stage>) -> Result<Staged> {
    let _open = flow.meter().stream();
    Ok(flow.meter().waiting(Wait::Disk, stage.finish()).await?)
}

/// Compares a tree with the version that it should be of.
///
/// # Errors
/// `Integrity`.
fn expected(tree: HashTree, source: &Source) -> Result<HashTree> {
    let is_right =
        tree.size() == source.version.size && source.version.root.is_none_or(|root| root == tree.root());
    if is_right {
        return Ok(tree);
    }
    Err(ApiError::new(ErrorCode::Integrity, "the copy does not have the hash of the original"))
}
