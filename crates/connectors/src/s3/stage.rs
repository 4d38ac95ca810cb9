//! Staged files: uploads that this process has begun.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use opendal::Writer;
use percale_core::ids::Fence;
use percale_core::{ByteCount, ByteRange};
use percale_store::error::refuse_stage;
use percale_store::{
    Error, ErrorKind, FileIdentity, Operation, Publish, PublishMode, Published, Result, Stage, StageOptions,
    StageToken, Staged, StoreKey,
};

use super::error::{from_opendal, unsupported};
use super::{FIRST_WAIT, IDENTITY, Inner, MAX_OBJECT};

/// Most parts of an upload (<https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html>).
const MAX_PARTS: u64 = 10_000;

/// How often an upload is aborted that the storage does not drop: for about three seconds.
const ABORT_ATTEMPTS: u32 = 5;

/// The uploads under way.
#[derive(Debug, Default)]
pub(super) struct StageArea(Mutex<BTreeMap<StageToken, Arc<Upload>>>);

pub(super) struct Upload {
    key: StoreKey,
    identity: FileIdentity,
    size: Option<ByteCount>,
    /// How many bytes were written; also seen while a write is under way.
    written: std::sync::atomic::AtomicU64,
    writer: tokio::sync::Mutex<State>,
}

struct State {
    writer: Writer,
    /// A write was begun and did not come back with success: what the upload holds is not known.
    is_broken: bool,
    is_finished: bool,
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upload")
            .field("key", &self.key)
            .field("written", &self.written())
            .finish_non_exhaustive()
    }
}

impl Upload {
    fn written(&self) -> u64 {
        self.written.load(std::sync::atomic::Ordering::Acquire)
    }
}

impl StageArea {
    fn uploads(&self) -> MutexGuard<'_, BTreeMap<StageToken, Arc<Upload>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, token: &StageToken) -> Option<Arc<Upload>> {
        self.uploads().get(token).cloned()
    }

    pub(super) fn list(&self, fence: Option<Fence>) -> Vec<Staged> {
        let uploads = self.uploads();
        let wanted = uploads.iter().filter(|(token, _)| fence.is_none_or(|fence| token.fence() == fence));
        wanted.map(|(token, upload)| describe(token, upload)).collect()
    }
}

fn describe(token: &StageToken, upload: &Upload) -> Staged {
    Staged {
        token: token.clone(),
        size: ByteCount(upload.written()),
        identity: Some(upload.identity.clone()),
    }
}

impl Inner {
    pub(super) async fn begin(self: Arc<Self>, options: StageOptions) -> Result<S3Stage> {
        let StageOptions { token, key, size, resume, .. } = options;
        let fail = |kind, detail: &str| Err(Error::new(kind, Operation::Stage).on(&token).detail(detail));
        if resume {
            return fail(ErrorKind::Unsupported, "an upload to a bucket cannot be continued");
        }
        let Some(key) = key else {
            return fail(ErrorKind::InvalidInput, "the key must be named when staging begins");
        };
        if size.is_some_and(|size| size > MAX_OBJECT) {
            return fail(ErrorKind::InvalidInput, "larger than the largest object");
        }
        // Room to spare below the limit of parts: its last may be small.
        let part = self.config.part_size.0.max(size.unwrap_or_default().0.div_ceil(MAX_PARTS - 1));
        let identity = FileIdentity::new(uuid::Uuid::new_v4().simple().to_string());
        let writer = self
            .operator
            .writer_with(self.path(Operation::Stage, &key)?)
            .chunk(usize::try_from(part).unwrap_or(usize::MAX))
            .concurrent(self.config.concurrency_per_file.get() as usize)
            .if_not_exists(self.capabilities.write.publish_if_absent)
            .user_metadata([(IDENTITY.to_owned(), identity.to_string())])
            .await
            .map_err(|error| from_opendal(Operation::Stage, error).on(&token))?;
        let state = State { writer, is_broken: false, is_finished: false };
        let upload = Arc::new(Upload { key, identity, size, written: 0.into(), writer: state.into() });
        {
            let mut uploads = self.area.uploads();
            if uploads.contains_key(&token) {
                return fail(ErrorKind::AlreadyExists, "the token is in use");
            }
            uploads.insert(token.clone(), upload.clone());
        }
        Ok(S3Stage { inner: self, token, upload })
    }

    pub(super) async fn publish_one(&self, file: Publish) -> Result<Published> {
        refuse_stage(Operation::Publish, &file.key)?;
        let fail =
            |kind, detail: &str| Err(Error::new(kind, Operation::Publish).on(&file.key).detail(detail));
        let claimed = match file.mode {
            PublishMode::IfAbsent => self.capabilities.write.publish_if_absent,
            PublishMode::Replace => self.capabilities.write.replace,
        };
        if !claimed {
            return fail(ErrorKind::Unsupported, "the storage does not publish in this way");
        }
        let Some(upload) = self.area.get(&file.token) else {
            return match self.published_before(&file.key, file.identity.as_ref()).await? {
                Some(published) => Ok(published),
                None => fail(ErrorKind::NotFound, "nothing is staged"),
            };
        };
        if upload.key != file.key {
            return fail(ErrorKind::InvalidInput, "staged for another key");
        }
        let mut state = upload.writer.lock().await;
        if state.is_broken || !state.is_finished {
            return fail(ErrorKind::Incomplete, "the upload was not finished");
        }
        let closed = state.writer.close().await;
        let Err(error) = closed else {
            self.area.uploads().remove(&file.token);
            return self.told(&file.key).await;
        };
        let error = from_opendal(Operation::Publish, error).on(&file.key);
        // The refusal may be that of a repetition after an answer that was lost.
        if let Ok(Some(published)) = self.published_before(&file.key, Some(&upload.identity)).await {
            self.area.uploads().remove(&file.token);
            return Ok(published);
        }
        if !error.is_temporary() {
            self.area.uploads().remove(&file.token);
            abort(&mut state.writer, &upload.key).await;
        }
        Err(error)
    }

    async fn told(&self, key: &StoreKey) -> Result<Published> {
        let meta = self.stat(Operation::Publish, key).await?;
        Ok(Published { key: key.clone(), meta })
    }

    async fn published_before(
        &self,
        key: &StoreKey,
        identity: Option<&FileIdentity>,
    ) -> Result<Option<Published>> {
        let Some(identity) = identity else { return Ok(None) };
        match self.told(key).await {
            Ok(published) if published.meta.identity.as_ref() == Some(identity) => Ok(Some(published)),
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn discard(&self, token: &StageToken) -> Result<bool> {
        let removed = self.area.uploads().remove(token);
        let Some(upload) = removed else { return Ok(false) };
        let mut state = upload.writer.lock().await;
        state.is_broken = true;
        abort(&mut state.writer, &upload.key).await;
        Ok(true)
    }
}

/// Ends an upload. Nobody can publish it any more.
///
/// A part that was under way may keep the storage from dropping the upload, so this is repeated for a while
/// (<https://docs.aws.amazon.com/AmazonS3/latest/API/API_AbortMultipartUpload.html>). What it keeps even then goes by its
/// lifecycle rule.
async fn abort(writer: &mut Writer, key: &StoreKey) {
    let mut wait = FIRST_WAIT;
    for _ in 0..ABORT_ATTEMPTS {
        match writer.abort().await {
            Ok(()) => return,
            Err(error) if error.kind() == opendal::ErrorKind::NotFound => return,
            Err(error) => tracing::debug!(%key, %error, "upload not aborted yet"),
        }
        tokio::time::sleep(wait).await;
        wait *= 2;
    }
    tracing::warn!(%key, "an upload could not be aborted: its parts stay in the bucket until a lifecycle rule removes them");
}

/// A staged file that is being written.
#[derive(Debug)]
pub(super) struct S3Stage {
    inner: Arc<Inner>,
    token: StageToken,
    upload: Arc<Upload>,
}

impl S3Stage {
    fn error(&self, kind: ErrorKind, operation: Operation, detail: &str) -> Error {
        Error::new(kind, operation).on(&self.token).detail(detail)
    }
}

#[async_trait]
impl Stage for S3Stage {
    fn token(&self) -> &StageToken {
        &self.token
    }

    fn identity(&self) -> Option<&FileIdentity> {
        Some(&self.upload.identity)
    }

    async fn size(&self) -> Result<ByteCount> {
        Ok(ByteCount(self.upload.written()))
    }

    async fn write_at(&self, offset: u64, bytes: Bytes) -> Result<()> {
        let end = offset.saturating_add(bytes.len() as u64);
        if end > self.upload.size.unwrap_or(MAX_OBJECT).0 {
            return Err(self.error(ErrorKind::InvalidInput, Operation::Write, "behind the announced size"));
        }
        let mut state = self.upload.writer.lock().await;
        if state.is_broken || state.is_finished {
            return Err(self.error(
                ErrorKind::InvalidInput,
                Operation::Write,
                "the upload failed or is finished",
            ));
        }
        if offset != self.upload.written() {
            return Err(unsupported(Operation::Write, "writes must come in order").on(&self.token));
        }
        // Stays set if this future is dropped half-way.
        state.is_broken = true;
        state
            .writer
            .write(bytes)
            .await
            .map_err(|error| from_opendal(Operation::Write, error).on(&self.token))?;
        state.is_broken = false;
        self.upload.written.store(end, std::sync::atomic::Ordering::Release);
        Ok(())
    }

    async fn read_at(&self, _range: ByteRange) -> Result<Bytes> {
        Err(unsupported(Operation::ReadStaged, "parts of an upload cannot be read").on(&self.token))
    }

    async fn sync_progress(&self) -> Result<()> {
        Err(unsupported(Operation::Sync, "an upload to a bucket cannot be continued").on(&self.token))
    }

    async fn write_marker(&self, _marker: Bytes) -> Result<()> {
        Err(unsupported(Operation::Marker, "an upload to a bucket cannot be continued").on(&self.token))
    }

    async fn read_marker(&self) -> Result<Option<Bytes>> {
        Err(unsupported(Operation::Marker, "an upload to a bucket cannot be continued").on(&self.token))
    }

    async fn finish(self: Box<Self>) -> Result<Staged> {
        let mut state = self.upload.writer.lock().await;
        let is_short = self.upload.size.is_some_and(|size| size.0 != self.upload.written());
        if state.is_broken || is_short {
            return Err(self.error(ErrorKind::Incomplete, Operation::Finish, "bytes are missing"));
        }
        if self.inner.area.get(&self.token).is_none_or(|upload| !Arc::ptr_eq(&upload, &self.upload)) {
            return Err(self.error(ErrorKind::NotFound, Operation::Finish, "the upload was discarded"));
        }
        state.is_finished = true;
        Ok(describe(&self.token, &self.upload))
    }
}
