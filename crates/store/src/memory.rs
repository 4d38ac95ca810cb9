//! A store in memory, for tests: like a file system or like a bucket.

mod tree;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use percale_core::digest::{Algorithm, Digest, Hasher};
use percale_core::ids::Fence;
use percale_core::{ByteCount, ByteRange};

use self::tree::{StagedFile, Tree};
use crate::error::refuse_stage;
use crate::{
    Capabilities, Delete, Error, ErrorKind, FileIdentity, FileRange, Kind, ListOptions, ListPage, ListStream,
    Meta, Operation, Publish, PublishMode, Published, ReadCapabilities, ReadOptions, ReadStream, Result,
    SmallFile, Stage, StageOptions, StageToken, Staged, Store, StoreExt as _, StoreKey, Usage,
    WriteCapabilities,
};

/// Which kind of storage a [`Memory`] behaves like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// Positioned and resumable writes, collections, rename, copies.
    FileSystem,
    /// Writes in order to a key named beforehand, no collections, md5 kept by the store.
    Bucket,
}

/// A store that forgets everything when it is dropped.
#[derive(Debug, Clone)]
pub struct Memory {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    capabilities: Capabilities,
    capacity: ByteCount,
    tree: Mutex<Tree>,
}

impl Memory {
    /// Makes an empty store of this kind, with room for this many bytes, staged ones included.
    pub fn new(flavour: Flavour, capacity: ByteCount) -> Self {
        let is_fs = flavour == Flavour::FileSystem;
        let capabilities = Capabilities {
            read: ReadCapabilities { ranges: true, medium: false },
            write: WriteCapabilities {
                positioned: is_fs,
                resumable: is_fs,
                publish_if_absent: true,
                replace: true,
                late_key: is_fs,
                clone: is_fs,
                multipart_min: ByteCount::ZERO,
                max_size: Some(capacity),
            },
            collections: is_fs,
            list: true,
            rename: is_fs,
            native_digests: if is_fs { Vec::new() } else { vec![Algorithm::Md5] },
            generations: true,
            identities: true,
            durable: false,
            usage: true,
            block_size: ByteCount::mib(1),
            concurrency: 64,
        };
        Self { shared: Arc::new(Shared { capabilities, capacity, tree: Mutex::new(Tree::default()) }) }
    }

    /// Makes an empty store that behaves like a file system, with room for 1 GiB.
    pub fn file_system() -> Self {
        Self::new(Flavour::FileSystem, ByteCount::gib(1))
    }

    /// Makes an empty store that behaves like a bucket, with room for 1 GiB.
    pub fn bucket() -> Self {
        Self::new(Flavour::Bucket, ByteCount::gib(1))
    }

    /// Changes the bytes of a file behind everybody's back, as another program would. Returns whether it was there.
    pub fn tamper(&self, key: &StoreKey, bytes: Bytes) -> bool {
        self.shared.tree().tamper(key, bytes)
    }
}

impl Shared {
    /// A panic of another holder leaves no half-made change: each change is one insertion or removal.
    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> &WriteCapabilities {
        &self.capabilities.write
    }

    fn check_room(&self, tree: &Tree, more: u64, operation: Operation) -> Result<()> {
        if tree.used().saturating_add(more) > self.capacity.0 {
            return Err(Error::new(ErrorKind::NoSpace, operation));
        }
        Ok(())
    }

    fn begin(&self, tree: &mut Tree, options: &StageOptions) -> Result<FileIdentity> {
        let fail =
            |kind, detail: &str| Err(Error::new(kind, Operation::Stage).on(&options.token).detail(detail));
        if options.resume && !self.write().resumable {
            return fail(ErrorKind::Unsupported, "staged files cannot be continued");
        }
        if !self.write().late_key && options.key.is_none() {
            return fail(ErrorKind::InvalidInput, "the key must be named when staging begins");
        }
        if let Some(size) = options.size {
            self.check_room(tree, size.0, Operation::Stage).map_err(|error| error.on(&options.token))?;
        }
        match tree.staged.get_mut(&options.token) {
            Some(_) if !options.resume => fail(ErrorKind::AlreadyExists, "the token is in use"),
            Some(staged) => {
                staged.size = options.size;
                Ok(staged.identity.clone())
            }
            None => {
                let identity = tree.new_identity();
                let staged = StagedFile {
                    bytes: Vec::new(),
                    key: options.key.clone(),
                    size: options.size,
                    identity: identity.clone(),
                    marker: None,
                };
                tree.staged.insert(options.token.clone(), staged);
                Ok(identity)
            }
        }
    }

    fn publish(&self, tree: &mut Tree, file: &Publish) -> Result<Published> {
        let fail = |kind| Err(Error::new(kind, Operation::Publish).on(&file.key));
        refuse_stage(Operation::Publish, &file.key)?;
        let Some(staged) = tree.staged.get(&file.token) else {
            let there = tree
                .stat(&file.key)
                .ok()
                .filter(|meta| file.identity.is_some() && meta.identity == file.identity);
            return match there {
                Some(meta) => Ok(Published { key: file.key.clone(), meta }),
                None => fail(ErrorKind::NotFound),
            };
        };
        if !self.write().late_key && staged.key.as_ref() != Some(&file.key) {
            return Err(Error::new(ErrorKind::InvalidInput, Operation::Publish)
                .on(&file.key)
                .detail("staged for another key"));
        }
        match (tree.stat(&file.key), file.mode) {
            (Ok(meta), PublishMode::Replace) if meta.kind == Kind::Collection => {
                return fail(ErrorKind::IsACollection);
            }
            (Ok(_), PublishMode::IfAbsent) => return fail(ErrorKind::AlreadyExists),
            _ => {}
        }
        if self.capabilities.collections {
            tree.make_parents(&file.key, Operation::Publish)?;
        }
        let Some(staged) = tree.staged.remove(&file.token) else { return fail(ErrorKind::NotFound) };
        let meta = tree.insert(file.key.clone(), staged.bytes.into(), staged.identity);
        Ok(Published { key: file.key.clone(), meta })
    }

    fn unsupported(&self, claimed: bool, operation: Operation, what: &str) -> Result<()> {
        if claimed { Ok(()) } else { Err(Error::unsupported(operation, what)) }
    }
}

#[async_trait]
impl Store for Memory {
    fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    async fn stat(&self, key: &StoreKey) -> Result<Meta> {
        refuse_stage(Operation::Stat, key)?;
        self.shared.tree().stat(key).map_err(|error| error.on(key))
    }

    async fn list(&self, options: ListOptions) -> Result<Box<dyn ListStream>> {
        if let Some(prefix) = &options.prefix {
            refuse_stage(Operation::List, prefix)?;
        }
        let mut pages = self.shared.tree().list(&options, self.shared.capabilities.collections)?;
        pages.reverse();
        Ok(Box::new(Pages(pages)))
    }

    async fn read(&self, key: &StoreKey, options: ReadOptions) -> Result<Box<dyn ReadStream>> {
        refuse_stage(Operation::Read, key)?;
        let (bytes, meta) = self.shared.tree().open(key).map_err(|error| error.on(key))?;
        if options.if_generation.is_some() && options.if_generation != meta.generation {
            return Err(Error::new(ErrorKind::Changed, Operation::Read).on(key));
        }
        let range = options.resolve(meta.size);
        let left = bytes.slice(range.start() as usize..range.end() as usize);
        let piece = options.piece_len();
        Ok(Box::new(Reader { shared: self.shared.clone(), key: key.clone(), meta, range, left, piece }))
    }

    async fn read_small(&self, files: Vec<(StoreKey, ReadOptions)>) -> Result<Vec<Result<Bytes>>> {
        let mut results = Vec::with_capacity(files.len());
        for (key, options) in files {
            let most = ByteCount(options.piece_len() as u64);
            results.push(self.read_all(&key, options, most).await);
        }
        Ok(results)
    }

    async fn stage(&self, options: StageOptions) -> Result<Box<dyn Stage>> {
        let identity = self.shared.begin(&mut self.shared.tree(), &options)?;
        Ok(Box::new(MemoryStage { shared: self.shared.clone(), token: options.token, identity }))
    }

    async fn stage_small(&self, files: Vec<SmallFile>) -> Result<Vec<Result<Staged>>> {
        let mut results = Vec::with_capacity(files.len());
        for file in files {
            let size = ByteCount(file.bytes.len() as u64);
            let options =
                StageOptions { token: file.token.clone(), key: file.key, size: Some(size), resume: false };
            let mut tree = self.shared.tree();
            results.push(self.shared.begin(&mut tree, &options).map(|identity| {
                if let Some(staged) = tree.staged.get_mut(&file.token) {
                    staged.bytes = file.bytes.to_vec();
                }
                Staged { token: file.token, size, identity: Some(identity) }
            }));
        }
        Ok(results)
    }

    async fn read_staged(
        &self,
        tokens: Vec<StageToken>,
        most: ByteCount,
    ) -> Result<Vec<Result<Option<(Staged, Bytes)>>>> {
        self.shared.unsupported(
            self.shared.write().resumable,
            Operation::ReadStaged,
            "no durable staged files",
        )?;
        let tree = self.shared.tree();
        let read = |token: &StageToken| {
            let staged = tree.staged.get(token)?;
            let len = most.0.min(staged.bytes.len() as u64) as usize;
            Some((staged.describe(token), Bytes::copy_from_slice(&staged.bytes[..len])))
        };
        Ok(tokens.iter().map(|token| Ok(read(token))).collect())
    }

    async fn read_back(&self, token: &StageToken) -> Result<Box<dyn ReadStream>> {
        Err(Error::unsupported(Operation::ReadBack, "memory has no medium below it").on(token))
    }

    async fn publish(&self, files: Vec<Publish>) -> Result<Vec<Result<Published>>> {
        let mut tree = self.shared.tree();
        Ok(files.iter().map(|file| self.shared.publish(&mut tree, file)).collect())
    }

    async fn discard(&self, token: &StageToken) -> Result<bool> {
        Ok(self.shared.tree().staged.remove(token).is_some())
    }

    async fn discard_fence(&self, fence: Fence) -> Result<u64> {
        let staged = &mut self.shared.tree().staged;
        let before = staged.len();
        staged.retain(|token, _| token.fence() != fence);
        Ok((before - staged.len()) as u64)
    }

    async fn staged(&self, fence: Option<Fence>) -> Result<Vec<Staged>> {
        let tree = self.shared.tree();
        let wanted = tree.staged.iter().filter(|(token, _)| fence.is_none_or(|fence| token.fence() == fence));
        Ok(wanted.map(|(token, staged)| staged.describe(token)).collect())
    }

    async fn delete(&self, items: Vec<Delete>) -> Result<Vec<Result<bool>>> {
        let mut tree = self.shared.tree();
        Ok(items
            .iter()
            .map(|item| {
                refuse_stage(Operation::Delete, &item.key)?;
                tree.delete(item).map_err(|error| error.on(&item.key))
            })
            .collect())
    }

    async fn mkdir(&self, key: &StoreKey) -> Result<bool> {
        refuse_stage(Operation::Mkdir, key)?;
        self.shared.unsupported(self.shared.capabilities.collections, Operation::Mkdir, "no collections")?;
        self.shared.tree().mkdir(key)
    }

    async fn rename(&self, from: &StoreKey, to: &StoreKey) -> Result<()> {
        refuse_stage(Operation::Rename, from)?;
        refuse_stage(Operation::Rename, to)?;
        self.shared.unsupported(self.shared.capabilities.rename, Operation::Rename, "no rename")?;
        self.shared.tree().rename(from, to)
    }

    async fn clone_to_stage(&self, from: &StoreKey, options: StageOptions) -> Result<Box<dyn Stage>> {
        refuse_stage(Operation::Clone, from)?;
        self.shared.unsupported(self.shared.write().clone, Operation::Clone, "no copies by the store")?;
        let (bytes, _) = self.shared.tree().open(from).map_err(|error| error.on(from))?;
        let token = options.token.clone();
        let stage = self.stage(options).await?;
        if let Some(staged) = self.shared.tree().staged.get_mut(&token) {
            staged.bytes = bytes.to_vec();
        }
        Ok(stage)
    }

    async fn checksum(&self, key: &StoreKey, algorithm: Algorithm) -> Result<Digest> {
        refuse_stage(Operation::Checksum, key)?;
        let claimed = self.shared.capabilities.native_digests.contains(&algorithm);
        self.shared.unsupported(claimed, Operation::Checksum, "digest not kept by the store")?;
        let (bytes, _) = self.shared.tree().open(key).map_err(|error| error.on(key))?;
        let mut hasher = Hasher::new([algorithm]);
        hasher.update(&bytes);
        hasher.finish().pop().ok_or_else(|| Error::new(ErrorKind::Other, Operation::Checksum).on(key))
    }

    async fn usage(&self) -> Result<Usage> {
        let used = self.shared.tree().used();
        let total = self.shared.capacity;
        Ok(Usage { total, free: ByteCount(total.0.saturating_sub(used)) })
    }
}

struct Pages(Vec<ListPage>);

#[async_trait]
impl ListStream for Pages {
    async fn next(&mut self) -> Result<Option<ListPage>> {
        Ok(self.0.pop())
    }
}

struct Reader {
    shared: Arc<Shared>,
    key: StoreKey,
    meta: Meta,
    range: ByteRange,
    left: Bytes,
    piece: usize,
}

#[async_trait]
impl ReadStream for Reader {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn range(&self) -> ByteRange {
        self.range
    }

    async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.left.is_empty() {
            return Ok(None);
        }
        let now = self.shared.tree().stat(&self.key).ok().and_then(|meta| meta.generation);
        if now != self.meta.generation {
            return Err(Error::new(ErrorKind::Changed, Operation::Read).on(&self.key));
        }
        Ok(Some(self.left.split_to(self.piece.min(self.left.len()))))
    }

    async fn take_file(&mut self) -> Option<FileRange> {
        None
    }
}

#[derive(Debug)]
struct MemoryStage {
    shared: Arc<Shared>,
    token: StageToken,
    identity: FileIdentity,
}

impl MemoryStage {
    fn with<T>(&self, operation: Operation, work: impl FnOnce(&mut StagedFile) -> Result<T>) -> Result<T> {
        let mut tree = self.shared.tree();
        let staged = tree.staged.get_mut(&self.token).filter(|staged| staged.identity == self.identity);
        let gone = || Error::new(ErrorKind::NotFound, operation);
        staged.ok_or_else(gone).and_then(work).map_err(|error| error.on(&self.token))
    }
}

#[async_trait]
impl Stage for MemoryStage {
    fn token(&self) -> &StageToken {
        &self.token
    }

    fn identity(&self) -> Option<&FileIdentity> {
        Some(&self.identity)
    }

    async fn size(&self) -> Result<ByteCount> {
        self.with(Operation::Stage, |staged| Ok(ByteCount(staged.bytes.len() as u64)))
    }

    async fn write_at(&self, offset: u64, bytes: Bytes) -> Result<()> {
        let end = offset.saturating_add(bytes.len() as u64);
        let room = self.shared.capacity.0.saturating_sub(self.shared.tree().used());
        let positioned = self.shared.write().positioned;
        self.with(Operation::Write, |staged| {
            if staged.size.is_some_and(|size| end > size.0) {
                return Err(
                    Error::new(ErrorKind::InvalidInput, Operation::Write).detail("behind the announced size")
                );
            }
            if !positioned && offset != staged.bytes.len() as u64 {
                return Err(Error::unsupported(Operation::Write, "writes must come in order"));
            }
            if end.saturating_sub(staged.bytes.len() as u64) > room {
                return Err(Error::new(ErrorKind::NoSpace, Operation::Write));
            }
            let (start, end) = (offset as usize, end as usize);
            if staged.bytes.len() < end {
                staged.bytes.resize(end, 0);
            }
            if let Some(place) = staged.bytes.get_mut(start..end) {
                place.copy_from_slice(&bytes);
            }
            Ok(())
        })
    }

    async fn read_at(&self, range: ByteRange) -> Result<Bytes> {
        self.shared.unsupported(
            self.shared.write().positioned,
            Operation::ReadStaged,
            "no reading of staged files",
        )?;
        self.with(Operation::ReadStaged, |staged| {
            let end = range.end().min(staged.bytes.len() as u64);
            let part = staged.bytes.get(range.start() as usize..end as usize);
            Ok(Bytes::copy_from_slice(part.unwrap_or_default()))
        })
    }

    async fn sync_progress(&self) -> Result<()> {
        self.shared.unsupported(self.shared.write().resumable, Operation::Sync, "no durable staged files")?;
        self.with(Operation::Sync, |_| Ok(()))
    }

    async fn write_marker(&self, marker: Bytes) -> Result<()> {
        self.shared.unsupported(self.shared.write().resumable, Operation::Marker, "no restart markers")?;
        self.with(Operation::Marker, |staged| {
            staged.marker = Some(marker);
            Ok(())
        })
    }

    async fn read_marker(&self) -> Result<Option<Bytes>> {
        self.shared.unsupported(self.shared.write().resumable, Operation::Marker, "no restart markers")?;
        self.with(Operation::Marker, |staged| Ok(staged.marker.clone()))
    }

    async fn finish(self: Box<Self>) -> Result<Staged> {
        self.with(Operation::Finish, |staged| {
            if staged.size.is_some_and(|size| size.0 != staged.bytes.len() as u64) {
                return Err(Error::new(ErrorKind::Incomplete, Operation::Finish));
            }
            Ok(staged.describe(&self.token))
        })
    }
}
