//! What all wrappers share: one implementation of the store over what a wrapper adds to each operation.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use percale_core::digest::{Algorithm, Digest};
use percale_core::ids::Fence;
use percale_core::{ByteCount, ByteRange};

use crate::{
    Capabilities, Delete, Error, FileIdentity, FileRange, ListOptions, ListPage, ListStream, Meta, Operation,
    Publish, Published, ReadOptions, ReadStream, Result, SharedStore, SmallFile, Stage, StageOptions,
    StageToken, Staged, Store, StoreKey, Usage,
};

/// An operation under way.
pub type Work<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// What a wrapper adds. Not implemented outside of this crate, so that the rule against default methods need not hold: each wrapper is
/// run through the conformance suite.
pub trait Layer: Debug + Send + Sync + 'static {
    /// Does an operation that must not be repeated.
    fn step<'a, T: Send + 'a>(&'a self, operation: Operation, work: Work<'a, T>) -> Work<'a, T>;

    /// Does an operation that may be repeated.
    fn call<'a, T, W>(&'a self, operation: Operation, work: W) -> Work<'a, T>
    where
        T: Send + 'a,
        W: Fn() -> Work<'a, T> + Send + Sync + 'a,
    {
        self.step(operation, work())
    }

    /// Does an operation on several items, each of which may be repeated by itself.
    fn batch<'a, I, T, W>(&'a self, operation: Operation, items: Vec<I>, work: W) -> Work<'a, Vec<Result<T>>>
    where
        I: Clone + Send + Sync + 'a,
        T: Send + 'a,
        W: Fn(Vec<I>) -> Work<'a, Vec<Result<T>>> + Send + Sync + 'a,
    {
        self.step(operation, work(items))
    }

    /// Is told of bytes that were read, or are to be written; may wait.
    fn moved(&self, _operation: Operation, _bytes: u64) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Says how much of a piece is handed out at once.
    fn cut(&self, len: usize) -> usize {
        len
    }

    /// May change the bytes written.
    fn alter_written(&self, bytes: Bytes) -> Bytes {
        bytes
    }

    /// Says whether bytes may be read from their file without passing through here.
    fn shows_files(&self) -> bool {
        true
    }

    /// May change the bytes read.
    fn alter(&self, piece: Bytes) -> Bytes {
        piece
    }

    /// Says after which wait a stream that failed is opened again where it stopped, if at all.
    fn resume_after(&self, _error: &Error, _attempt: u32) -> Option<Duration> {
        None
    }

    /// Marks the error of a stream that is not opened again.
    fn give_up(&self, error: Error) -> Error {
        error
    }
}

/// A store with something added to each operation.
#[derive(Debug)]
pub struct Wrapped<L> {
    store: SharedStore,
    layer: Arc<L>,
}

impl<L> Clone for Wrapped<L> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), layer: self.layer.clone() }
    }
}

impl<L: Layer> Wrapped<L> {
    pub(super) fn over(store: SharedStore, layer: L) -> Self {
        Self { store, layer: Arc::new(layer) }
    }

    fn wrap_stage(&self, inner: Box<dyn Stage>) -> Box<dyn Stage> {
        let can_repeat = self.store.capabilities().write.positioned;
        Box::new(WrappedStage { layer: self.layer.clone(), inner, can_repeat })
    }

    async fn open_read(&self, key: &StoreKey, options: &ReadOptions) -> Result<Box<dyn ReadStream>> {
        self.layer.call(Operation::Read, || self.store.read(key, options.clone())).await
    }

    async fn open_list(&self, options: &ListOptions) -> Result<Box<dyn ListStream>> {
        self.layer.call(Operation::List, || self.store.list(options.clone())).await
    }

    /// Stages, and before a repetition removes what an attempt may have left whose answer was lost.
    async fn stage_anew<'a, W>(
        &'a self,
        operation: Operation,
        options: &'a StageOptions,
        work: W,
    ) -> Result<Box<dyn Stage>>
    where
        W: Fn() -> Work<'a, Box<dyn Stage>> + Send + Sync + 'a,
    {
        let is_repetition = AtomicBool::new(false);
        let attempt = || -> Work<'_, Box<dyn Stage>> {
            let discards = is_repetition.swap(true, Ordering::Relaxed) && !options.resume;
            let work = work();
            Box::pin(async move {
                if discards {
                    self.discard(&options.token).await?;
                }
                work.await
            })
        };
        self.layer.call(operation, attempt).await
    }
}

#[async_trait]
impl<L: Layer> Store for Wrapped<L> {
    fn capabilities(&self) -> &Capabilities {
        self.store.capabilities()
    }

    async fn stat(&self, key: &StoreKey) -> Result<Meta> {
        self.layer.call(Operation::Stat, || self.store.stat(key)).await
    }

    async fn list(&self, options: ListOptions) -> Result<Box<dyn ListStream>> {
        let inner = self.open_list(&options).await?;
        Ok(Box::new(WrappedList { wrapped: self.clone(), inner, options, attempt: 0 }))
    }

    async fn read(&self, key: &StoreKey, options: ReadOptions) -> Result<Box<dyn ReadStream>> {
        let inner = self.open_read(key, &options).await?;
        let (meta, range) = (inner.meta().clone(), inner.range());
        Ok(Box::new(WrappedRead {
            wrapped: self.clone(),
            inner,
            key: key.clone(),
            options,
            meta,
            range,
            at: range.start(),
            rest: Bytes::new(),
            attempt: 0,
        }))
    }

    async fn read_small(&self, files: Vec<(StoreKey, ReadOptions)>) -> Result<Vec<Result<Bytes>>> {
        let read = |files| self.store.read_small(files);
        let mut results = self.layer.batch(Operation::ReadSmall, files, read).await?;
        let bytes = results.iter().flatten().map(|bytes| bytes.len() as u64).sum();
        self.layer.moved(Operation::ReadSmall, bytes).await;
        for bytes in results.iter_mut().flatten() {
            *bytes = self.layer.alter(std::mem::take(bytes));
        }
        Ok(results)
    }

    async fn stage(&self, options: StageOptions) -> Result<Box<dyn Stage>> {
        let stage = self.stage_anew(Operation::Stage, &options, || self.store.stage(options.clone())).await?;
        Ok(self.wrap_stage(stage))
    }

    async fn stage_small(&self, files: Vec<SmallFile>) -> Result<Vec<Result<Staged>>> {
        let bytes: u64 = files.iter().map(|file| file.bytes.len() as u64).sum();
        let altered = |file: SmallFile| SmallFile { bytes: self.layer.alter_written(file.bytes), ..file };
        let files: Vec<SmallFile> = files.into_iter().map(altered).collect();
        self.layer.moved(Operation::StageSmall, bytes).await;
        let is_repetition = AtomicBool::new(false);
        let attempt = |files: Vec<SmallFile>| -> Work<'_, Vec<Result<Staged>>> {
            let discards = is_repetition.swap(true, Ordering::Relaxed);
            Box::pin(async move {
                for file in files.iter().filter(|_| discards) {
                    self.discard(&file.token).await?;
                }
                self.store.stage_small(files).await
            })
        };
        self.layer.batch(Operation::StageSmall, files, attempt).await
    }

    async fn read_staged(
        &self,
        tokens: Vec<StageToken>,
        most: ByteCount,
    ) -> Result<Vec<Result<Option<(Staged, Bytes)>>>> {
        let read = |tokens| self.store.read_staged(tokens, most);
        let mut results = self.layer.batch(Operation::ReadStaged, tokens, read).await?;
        for (_, bytes) in results.iter_mut().flatten().flatten() {
            self.layer.moved(Operation::ReadStaged, bytes.len() as u64).await;
            *bytes = self.layer.alter(std::mem::take(bytes));
        }
        Ok(results)
    }

    async fn read_back(&self, token: &StageToken) -> Result<Box<dyn ReadStream>> {
        let inner = self.layer.call(Operation::ReadBack, || self.store.read_back(token)).await?;
        Ok(Box::new(WrappedBack { layer: self.layer.clone(), inner }))
    }

    async fn publish(&self, files: Vec<Publish>) -> Result<Vec<Result<Published>>> {
        self.layer.batch(Operation::Publish, files, |files| self.store.publish(files)).await
    }

    async fn discard(&self, token: &StageToken) -> Result<bool> {
        self.layer.call(Operation::Discard, || self.store.discard(token)).await
    }

    async fn discard_fence(&self, fence: Fence) -> Result<u64> {
        self.layer.call(Operation::Discard, || self.store.discard_fence(fence)).await
    }

    async fn staged(&self, fence: Option<Fence>) -> Result<Vec<Staged>> {
        self.layer.call(Operation::Staged, || self.store.staged(fence)).await
    }

    async fn delete(&self, items: Vec<Delete>) -> Result<Vec<Result<bool>>> {
        self.layer.batch(Operation::Delete, items, |items| self.store.delete(items)).await
    }

    async fn mkdir(&self, key: &StoreKey) -> Result<bool> {
        self.layer.call(Operation::Mkdir, || self.store.mkdir(key)).await
    }

    async fn rename(&self, from: &StoreKey, to: &StoreKey) -> Result<()> {
        // Not repeated: after a lost answer it would say `NotFound`.
        self.layer.step(Operation::Rename, self.store.rename(from, to)).await
    }

    async fn clone_to_stage(&self, from: &StoreKey, options: StageOptions) -> Result<Box<dyn Stage>> {
        let work = || self.store.clone_to_stage(from, options.clone());
        let stage = self.stage_anew(Operation::Clone, &options, work).await?;
        Ok(self.wrap_stage(stage))
    }

    async fn checksum(&self, key: &StoreKey, algorithm: Algorithm) -> Result<Digest> {
        self.layer.call(Operation::Checksum, || self.store.checksum(key, algorithm)).await
    }

    async fn usage(&self) -> Result<Usage> {
        self.layer.call(Operation::Usage, || self.store.usage()).await
    }
}

struct WrappedRead<L> {
    wrapped: Wrapped<L>,
    inner: Box<dyn ReadStream>,
    key: StoreKey,
    options: ReadOptions,
    /// Of the first opening.
    meta: Meta,
    range: ByteRange,
    /// Where the next piece begins.
    at: u64,
    /// What is left of the last piece.
    rest: Bytes,
    /// Repetitions since the last piece that came.
    attempt: u32,
}

impl<L: Layer> WrappedRead<L> {
    /// Opens the same file again where the read stopped. Only where a generation proves that it is the same.
    async fn reopen(&mut self) -> Result<()> {
        let mut options = self.options.clone().if_generation(self.meta.generation.clone());
        options.range = Some(ByteRange::at(self.at, self.range.end() - self.at));
        self.inner = self.wrapped.open_read(&self.key, &options).await?;
        Ok(())
    }

    fn hand_out(&mut self) -> Bytes {
        let now = self.wrapped.layer.cut(self.rest.len()).clamp(1, self.rest.len());
        self.at += now as u64;
        self.rest.split_to(now)
    }
}

#[async_trait]
impl<L: Layer> ReadStream for WrappedRead<L> {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn range(&self) -> ByteRange {
        self.range
    }

    async fn next(&mut self) -> Result<Option<Bytes>> {
        if !self.rest.is_empty() {
            return Ok(Some(self.hand_out()));
        }
        loop {
            let layer = self.wrapped.layer.clone();
            let error = match layer.step(Operation::Read, self.inner.next()).await {
                Ok(None) => return Ok(None),
                Ok(Some(piece)) => {
                    layer.moved(Operation::Read, piece.len() as u64).await;
                    self.attempt = 0;
                    self.rest = layer.alter(piece);
                    return Ok(Some(self.hand_out()));
                }
                Err(error) => error,
            };
            let Some(wait) = layer.resume_after(&error, self.attempt) else {
                return Err(layer.give_up(error));
            };
            if self.meta.generation.is_none() || !self.wrapped.store.capabilities().read.ranges {
                return Err(error);
            }
            tokio::time::sleep(wait).await;
            self.attempt += 1;
            self.reopen().await?;
        }
    }

    async fn take_file(&mut self) -> Option<FileRange> {
        if !self.rest.is_empty() || !self.wrapped.layer.shows_files() {
            return None;
        }
        let taken = self.inner.take_file().await?;
        self.wrapped.layer.moved(Operation::Read, taken.range.len()).await;
        Some(taken)
    }
}

/// A staged file that is read back. A read that failed is not repeated: the whole is read back again by whoever asked.
struct WrappedBack<L> {
    layer: Arc<L>,
    inner: Box<dyn ReadStream>,
}

#[async_trait]
impl<L: Layer> ReadStream for WrappedBack<L> {
    fn meta(&self) -> &Meta {
        self.inner.meta()
    }

    fn range(&self) -> ByteRange {
        self.inner.range()
    }

    async fn next(&mut self) -> Result<Option<Bytes>> {
        let Some(piece) = self.layer.step(Operation::ReadBack, self.inner.next()).await? else {
            return Ok(None);
        };
        self.layer.moved(Operation::ReadBack, piece.len() as u64).await;
        Ok(Some(self.layer.alter(piece)))
    }

    /// What is read back is looked at.
    async fn take_file(&mut self) -> Option<FileRange> {
        None
    }
}

struct WrappedList<L> {
    wrapped: Wrapped<L>,
    inner: Box<dyn ListStream>,
    /// Continues after the last entry that came.
    options: ListOptions,
    attempt: u32,
}

#[async_trait]
impl<L: Layer> ListStream for WrappedList<L> {
    async fn next(&mut self) -> Result<Option<ListPage>> {
        loop {
            let layer = self.wrapped.layer.clone();
            let error = match layer.step(Operation::List, self.inner.next()).await {
                Ok(page) => {
                    if let Some(last) = page.as_ref().and_then(|page| page.entries.last()) {
                        self.options.after = Some(last.key.clone());
                    }
                    self.attempt = 0;
                    return Ok(page);
                }
                Err(error) => error,
            };
            let Some(wait) = layer.resume_after(&error, self.attempt) else {
                return Err(layer.give_up(error));
            };
            tokio::time::sleep(wait).await;
            self.attempt += 1;
            self.inner = self.wrapped.open_list(&self.options).await?;
        }
    }
}

#[derive(Debug)]
struct WrappedStage<L> {
    layer: Arc<L>,
    inner: Box<dyn Stage>,
    /// Whether a write may be repeated: where it names its place, it does the same again.
    can_repeat: bool,
}

#[async_trait]
impl<L: Layer> Stage for WrappedStage<L> {
    fn token(&self) -> &StageToken {
        self.inner.token()
    }

    fn identity(&self) -> Option<&FileIdentity> {
        self.inner.identity()
    }

    async fn size(&self) -> Result<ByteCount> {
        self.layer.call(Operation::Stage, || self.inner.size()).await
    }

    async fn write_at(&self, offset: u64, bytes: Bytes) -> Result<()> {
        self.layer.moved(Operation::Write, bytes.len() as u64).await;
        let bytes = self.layer.alter_written(bytes);
        if self.can_repeat {
            self.layer.call(Operation::Write, || self.inner.write_at(offset, bytes.clone())).await
        } else {
            self.layer.step(Operation::Write, self.inner.write_at(offset, bytes)).await
        }
    }

    async fn read_at(&self, range: ByteRange) -> Result<Bytes> {
        let bytes = self.layer.call(Operation::ReadStaged, || self.inner.read_at(range)).await?;
        self.layer.moved(Operation::ReadStaged, bytes.len() as u64).await;
        Ok(self.layer.alter(bytes))
    }

    async fn sync_progress(&self) -> Result<()> {
        self.layer.call(Operation::Sync, || self.inner.sync_progress()).await
    }

    async fn write_marker(&self, marker: Bytes) -> Result<()> {
        self.layer.call(Operation::Marker, || self.inner.write_marker(marker.clone())).await
    }

    async fn read_marker(&self) -> Result<Option<Bytes>> {
        self.layer.call(Operation::Marker, || self.inner.read_marker()).await
    }

    async fn finish(self: Box<Self>) -> Result<Staged> {
        let Self { layer, inner, .. } = *self;
        layer.step(Operation::Finish, inner.finish()).await
    }
}
