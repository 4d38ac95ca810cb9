//! Many objects into the fabric in one stream: `/v1/frames/push` (`docs/design/frames.md`).

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use percale_api::Problem;
use percale_api::uploads::{ItemDone, PushItem, PushResult, PushResults};
use percale_core::access::{Caller, Permission};
use percale_core::path::SpaceName;
use percale_core::tree::{HashTree, group_count};
use percale_core::{ByteCount, ErrorCode, ObjectPath};
use percale_mover::{DataFrame, Decoder, Frame, FrameError, ReceivedGroups};
use percale_store::{SmallFile, Stage, StageOptions};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::Auth;
use super::extract::{Json, body_error, drain, parse_json};
use super::put::committed_body;
use super::uploads::require_frames;
use crate::publish::{NewObject, StagedContent, key_for_stage};
use crate::stores::OpenStore;
use crate::upload::space_of;
use crate::{ApiError, AppState, Result};

/// Bytes of small objects that make a batch: what is written and flushed at once in some tens of milliseconds, and what each
/// stream may hold in memory besides what is on its way.
const BATCH_BYTES: u64 = 4 << 20;
/// Most small objects of a batch. Transactions and flushes of batches that wait are joined, so more would only come later.
const BATCH: usize = 128;
/// Batches of one stream that are on their way while the next arrives.
const BATCHES: usize = 4;
/// Items that are begun and not done, at most; a sender that sends one after the other has one.
const OPEN: usize = 64;
/// Small objects that are a batch already if none is on its way: so that little is left to do once the last byte has arrived.
const EARLY: usize = 16;

/// The routes of this file.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(push))
}

/// Writes many whole objects.
///
/// Each item is an object of its own, with its own result; those that fail do not harm the others. Items are published
/// in batches while the stream goes on. If the stream is cut, what was published stays.
#[utoipa::path(
    post, path = "/v1/frames/push", tag = "data",
    request_body(content = Vec<u8>, content_type = "application/vnd.percale.frames"),
    responses(
        (status = 200, description = "a result for each item, in their order", body = PushResults),
        (status = "default", description = "a problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn push(
    State(app): State<AppState>,
    Auth(caller): Auth,
    request: Request,
) -> Result<Json<PushResults>> {
    let is_frames = require_frames(&request);
    let mut body = request.into_body().into_data_stream().map_err(body_error);
    let mut decoder = Decoder::new();
    let mut push = Push::new(app, caller);
    let outcome = async {
        is_frames?;
        while let Some(piece) = body.next().await {
            decoder.feed(piece?);
            push.app.traffic.note_moving();
            while let Some(frame) = decoder.next().map_err(frame_error)? {
                push.take(frame).await?;
            }
        }
        decoder.finish().map_err(frame_error)
    };
    match outcome.await {
        Ok(()) => push.finish().await.map(Json),
        Err(error) => {
            push.give_up().await;
            drain(body).await;
            Err(error)
        }
    }
}

fn too_much(detail: String) -> ApiError {
    ApiError::new(ErrorCode::PayloadTooLarge, detail)
}

fn frame_error(error: FrameError) -> ApiError {
    ApiError::new(error.code(), format!("cannot take the frames: {error}"))
}

/// An item whose bytes arrive.
enum Receiving {
    /// At most one group: kept until it is staged with its batch.
    Small { object: NewObject, bytes: Option<Bytes>, tree: Option<HashTree> },
    /// More: written as it comes.
    Large { object: NewObject, store: Arc<OpenStore>, stage: Box<dyn Stage>, groups: ReceivedGroups },
    /// Failed; the rest of its bytes is passed over.
    Failed,
}

impl Receiving {
    /// Returns how many of its bytes are kept in memory.
    fn held(&self) -> u64 {
        match self {
            Self::Small { bytes: Some(bytes), .. } => bytes.len() as u64,
            Self::Small { .. } | Self::Large { .. } | Self::Failed => 0,
        }
    }
}

type Published = Vec<(u32, Result<PushResult>)>;

struct Push {
    app: AppState,
    caller: Caller,
    receiving: HashMap<u32, Receiving>,
    results: Vec<Option<PushResult>>,
    batch: Vec<(u32, NewObject, Bytes, HashTree)>,
    batch_bytes: u64,
    running: JoinSet<Published>,
    places: Arc<Semaphore>,
}

impl Push {
    fn new(app: AppState, caller: Caller) -> Self {
        Self {
            app,
            caller,
            receiving: HashMap::new(),
            results: Vec::new(),
            batch: Vec::new(),
            batch_bytes: 0,
            running: JoinSet::new(),
            places: Arc::new(Semaphore::new(BATCHES)),
        }
    }

    async fn take(&mut self, frame: Frame) -> Result<()> {
        match frame {
            Frame::Item { item, size, info } => {
                if self.receiving.len() >= OPEN {
                    return Err(too_much(format!("more than {OPEN} items are begun and not done")));
                }
                self.results.push(None);
                let receiving = match self.begin(size, &info).await {
                    Ok(receiving) => receiving,
                    Err(error) => self.fail(item, &error),
                };
                self.receiving.insert(item, receiving);
                Ok(())
            }
            Frame::Data(group) => self.data(group).await,
            Frame::Done { item, info } => self.done(item, &info).await,
            Frame::Fail { item, .. } => {
                let error = ApiError::new(ErrorCode::Cancelled, "the sender could not read the rest of it");
                if let Some(receiving) = self.receiving.remove(&item) {
                    self.fail(item, &error);
                    if let Receiving::Large { store, stage, .. } = receiving {
                        discard(&store, stage.as_ref()).await;
                    }
                }
                Ok(())
            }
            Frame::Error { .. } => Err(ApiError::new(
                ErrorCode::UploadIncomplete,
                "the sender gave up in the middle of the stream",
            )),
            Frame::Away { .. } => Err(ApiError::invalid("what is pushed is sent here, not named elsewhere")),
            Frame::End { .. } => Ok(()),
        }
    }

    fn fail(&mut self, item: u32, error: &ApiError) -> Receiving {
        if let Some(result) = self.results.get_mut(item as usize) {
            *result = Some(PushResult::Failed(error.to_problem()));
        }
        Receiving::Failed
    }

    async fn begin(&self, size: ByteCount, info: &[u8]) -> Result<Receiving> {
        let PushItem { path, condition, parents, mtime, mode } = parse_json(info)?;
        let object = NewObject {
            caller: self.caller.clone(),
            delegation: None,
            path: path.clone(),
            parents,
            condition: super::uploads::condition(condition),
            mtime,
            mode,
            digests: Vec::new(),
            answer: None,
        };
        space_of(&path)?;
        if group_count(size) == 1 {
            return Ok(Receiving::Small { object, bytes: None, tree: None });
        }
        if size > crate::upload::MAX_SIZE {
            return Err(ApiError::new(
                ErrorCode::PayloadTooLarge,
                format!("{size} are too much for one object"),
            )
            .with_path(&path));
        }
        crate::authorize::authorize(&self.app.catalog, &self.caller, &path, Permission::Write).await?;
        let store = self.app.stores.for_new_data(&space_of(&path)?).await?;
        let mut options = StageOptions::new(self.app.lease.token()?).size(size);
        options.key = key_for_stage(&store, &options.token)?;
        let stage = store.store.stage(options).await?;
        Ok(Receiving::Large { object, store, stage, groups: ReceivedGroups::new(size) })
    }

    /// Takes one group. Bytes that do not match their hash end the stream: its sender is broken or lies.
    async fn data(&mut self, group: DataFrame) -> Result<()> {
        let item = group.item;
        let held = self.receiving.values().map(Receiving::held).sum::<u64>();
        if held > BATCH_BYTES {
            let detail = format!("small items with {} are begun and not done", ByteCount(held));
            return Err(too_much(detail));
        }
        let Some(receiving) = self.receiving.get_mut(&item) else {
            return Err(ApiError::invalid(format!("item {item} was sent already")));
        };
        let failed = match receiving {
            Receiving::Failed => return Ok(()),
            Receiving::Small { bytes, tree, .. } => {
                group.verify().map_err(frame_error)?;
                let root = percale_core::tree::RootHash(group.hash.0);
                *tree = HashTree::of_single_group(group.size, root).ok();
                *bytes = Some(group.bytes);
                return Ok(());
            }
            Receiving::Large { stage, groups, .. } => {
                group.verify().map_err(frame_error)?;
                match stage.write_at(group.offset, group.bytes.clone()).await {
                    Ok(()) => {
                        groups.insert(group.group(), group.hash);
                        return Ok(());
                    }
                    Err(error) => ApiError::from(error),
                }
            }
        };
        let failed = self.fail(item, &failed);
        if let Some(Receiving::Large { store, stage, .. }) = self.receiving.insert(item, failed) {
            discard(&store, stage.as_ref()).await;
        }
        Ok(())
    }

    async fn done(&mut self, item: u32, info: &[u8]) -> Result<()> {
        let ItemDone { root } = parse_json(info)?;
        let Some(receiving) = self.receiving.remove(&item) else {
            return Err(ApiError::invalid(format!("item {item} was sent already")));
        };
        let incomplete = |path: &ObjectPath| {
            ApiError::new(ErrorCode::UploadIncomplete, "not all of its bytes were sent").with_path(path)
        };
        let mismatch = |path: &ObjectPath| {
            ApiError::new(ErrorCode::DigestMismatch, "what arrived does not have the sender's root")
                .with_path(path)
        };
        match receiving {
            Receiving::Failed => {}
            Receiving::Small { object, bytes: Some(bytes), tree: Some(tree) } => {
                if root.is_some_and(|root| root != tree.root()) {
                    self.fail(item, &mismatch(&object.path));
                    return Ok(());
                }
                self.batch_bytes += bytes.len() as u64;
                self.batch.push((item, object, bytes, tree));
                let is_idle = self.places.available_permits() == BATCHES;
                if self.batch.len() >= BATCH
                    || self.batch_bytes >= BATCH_BYTES
                    || (is_idle && self.batch.len() >= EARLY)
                {
                    self.send_batch().await;
                }
            }
            Receiving::Small { object, .. } => drop(self.fail(item, &incomplete(&object.path))),
            Receiving::Large { object, store, stage, groups } => match groups.tree() {
                Ok(tree) if root.is_none_or(|root| root == tree.root()) => match stage.finish().await {
                    Ok(staged) => self.send_large(item, object, StagedContent { store, staged, tree }).await,
                    Err(error) => drop(self.fail(item, &ApiError::from(error).with_path(&object.path))),
                },
                Ok(_) => {
                    discard(&store, stage.as_ref()).await;
                    self.fail(item, &mismatch(&object.path));
                }
                Err(_) => {
                    discard(&store, stage.as_ref()).await;
                    self.fail(item, &incomplete(&object.path));
                }
            },
        }
        Ok(())
    }

    async fn send_large(&mut self, item: u32, object: NewObject, content: StagedContent) {
        let (size, root) = (content.tree.size(), content.tree.root());
        let app = self.app.clone();
        let place = self.place().await;
        self.running.spawn(async move {
            let _place = place;
            let outcome = app.publisher.publish_one(object, content).await;
            vec![(
                item,
                outcome.map(|committed| PushResult::Committed(committed_body(committed, size, root))),
            )]
        });
    }

    /// Sends the batch on its way. Waits while too many are, so that memory is bounded and the sender is held back.
    async fn send_batch(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        let bytes = std::mem::take(&mut self.batch_bytes);
        let app = self.app.clone();
        let place = self.place().await;
        let room = app.publisher.room().take(bytes).await;
        self.running.spawn(async move {
            let (_place, _room) = (place, room);
            publish_batch(&app, batch).await
        });
    }

    async fn place(&mut self) -> Option<tokio::sync::OwnedSemaphorePermit> {
        self.places.clone().acquire_owned().await.ok()
    }

    async fn finish(mut self) -> Result<PushResults> {
        if !self.batch.is_empty() {
            self.send_batch().await;
        }
        while let Some(published) = self.running.join_next().await {
            for (item, result) in
                published.map_err(|error| ApiError::internal("a batch ended early").with_source(error))?
            {
                let result = result.unwrap_or_else(|error| PushResult::Failed(error.to_problem()));
                if let Some(place) = self.results.get_mut(item as usize) {
                    *place = Some(result);
                }
            }
        }
        for (item, receiving) in std::mem::take(&mut self.receiving) {
            if let Receiving::Large { store, stage, .. } = &receiving {
                discard(store, stage.as_ref()).await;
            }
            if !matches!(receiving, Receiving::Failed) {
                self.fail(
                    item,
                    &ApiError::new(ErrorCode::UploadIncomplete, "the stream ended before the item did"),
                );
            }
        }
        let lost = || PushResult::Failed(ApiError::internal("an item ended without a result").to_problem());
        Ok(PushResults {
            items: self.results.into_iter().map(|result| result.unwrap_or_else(lost)).collect(),
        })
    }

    /// Removes what was staged of items that did not come whole. Batches on their way go on to their end.
    async fn give_up(mut self) {
        for receiving in std::mem::take(&mut self.receiving).into_values() {
            if let Receiving::Large { store, stage, .. } = receiving {
                discard(&store, stage.as_ref()).await;
            }
        }
        self.running.detach_all();
    }
}

async fn discard(store: &OpenStore, stage: &dyn Stage) {
    if let Err(error) = store.store.discard(stage.token()).await {
        tracing::info!(token = %stage.token(), %error, "staged bytes are left to the next take-over");
    }
}

/// Stages small objects together, and publishes them together.
async fn publish_batch(app: &AppState, batch: Vec<(u32, NewObject, Bytes, HashTree)>) -> Published {
    let mut published = Vec::with_capacity(batch.len());
    let mut by_space: HashMap<SpaceName, Vec<_>> = HashMap::new();
    for one in batch {
        match space_of(&one.1.path) {
            Ok(space) => by_space.entry(space).or_default().push(one),
            Err(error) => published.push((one.0, Err(error))),
        }
    }
    for (space, objects) in by_space {
        let (items, objects): (Vec<u32>, Vec<_>) =
            objects.into_iter().map(|(item, object, bytes, tree)| (item, (object, bytes, tree))).unzip();
        match publish_in(app, &space, objects).await {
            Ok(results) => published.extend(items.into_iter().zip(results)),
            Err(error) => published.extend(items.into_iter().map(|item| (item, Err(error.clone())))),
        }
    }
    published
}

async fn publish_in(
    app: &AppState,
    space: &SpaceName,
    objects: Vec<(NewObject, Bytes, HashTree)>,
) -> Result<Vec<Result<PushResult>>> {
    let store = app.stores.for_new_data(space).await?;
    let mut files = Vec::with_capacity(objects.len());
    for (_, bytes, _) in &objects {
        let token = app.lease.token()?;
        files.push(SmallFile { key: key_for_stage(&store, &token)?, token, bytes: bytes.clone() });
    }
    let staged = store.store.stage_small(files).await?;
    let mut results: Vec<Option<Result<PushResult>>> = Vec::with_capacity(objects.len());
    let mut going = Vec::with_capacity(objects.len());
    for ((object, _, tree), staged) in objects.into_iter().zip(staged) {
        match staged {
            Ok(staged) => {
                going.push((object, StagedContent { store: store.clone(), staged, tree }));
                results.push(None);
            }
            Err(error) => results.push(Some(Err(ApiError::from(error).with_path(&object.path)))),
        }
    }
    let contents: Vec<_> =
        going.iter().map(|(_, content)| (content.tree.size(), content.tree.root())).collect();
    let outcomes = app.publisher.publish_many(going).await;
    let mut outcomes = outcomes.into_iter().zip(contents).map(|(outcome, (size, root))| {
        outcome.map(|committed| PushResult::Committed(committed_body(committed, size, root)))
    });
    let missing = || Err(ApiError::internal("an object ended without a result"));
    Ok(results.into_iter().map(|result| result.or_else(|| outcomes.next()).unwrap_or_else(missing)).collect())
}
