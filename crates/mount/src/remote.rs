//! Files whose bytes are not on this host: read in groups of 1 MiB, ahead of programs that read in order, verified, and kept on disk.
//!
//! A group on disk is verified again when it is read from there: one that was damaged is fetched again, and never served.

use std::collections::HashMap;
use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use fuser::Errno;
use percale_api::entries::Content;
use percale_client::Client;
use percale_core::ids::{SpaceId, VersionId};
use percale_core::tree::{GROUP_SIZE, HashTree, RootHash, group_count, group_range};
use percale_core::{ByteCount, ByteRange, ErrorCode, ObjectPath};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokio::runtime::Handle as Runtime;
use tokio::sync::{OnceCell, watch};

use crate::error::errno;
use crate::pattern::{Ahead, Pattern, RUN};

/// Groups in memory, of all files.
const MEMORY: u64 = 256 << 20;
/// How often a group is asked for before a program is told that it cannot be read.
const ATTEMPTS: usize = 3;

#[derive(Debug, Clone)]
struct BySize;

impl Weighter<GroupId, Bytes> for BySize {
    fn weight(&self, _: &GroupId, bytes: &Bytes) -> u64 {
        bytes.len().max(64) as u64
    }
}

/// A group of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct GroupId {
    space: SpaceId,
    version: VersionId,
    group: u64,
}

/// What is read from other hosts.
#[derive(Debug)]
pub struct Remote {
    client: Client,
    runtime: Runtime,
    memory: Arc<Cache<GroupId, Bytes, BySize>>,
    /// Where groups are kept; nowhere if nothing is kept.
    disk: Option<Arc<Disk>>,
}

/// The groups on disk.
#[derive(Debug)]
struct Disk {
    dir: PathBuf,
    most: u64,
    used: AtomicU64,
}

/// A file that is read.
#[derive(Debug)]
pub struct RemoteFile {
    space: SpaceId,
    path: ObjectPath,
    content: Content,
    tree: OnceCell<Option<HashTree>>,
    loading: Mutex<HashMap<u64, watch::Receiver<()>>>,
    reader: Mutex<Pattern>,
}

impl Remote {
    /// Makes it; groups are kept in a directory, as many bytes as that.
    pub fn new(client: Client, runtime: Runtime, kept: Option<(PathBuf, u64)>) -> Self {
        let memory = Arc::new(Cache::with_weighter(256, MEMORY, BySize));
        let disk = kept.map(|(dir, most)| {
            let used = used_in(&dir);
            Arc::new(Disk { dir, most, used: AtomicU64::new(used) })
        });
        Self { client, runtime, memory, disk }
    }

    /// Opens a content.
    pub fn open(&self, space: SpaceId, path: ObjectPath, content: Content) -> Arc<RemoteFile> {
        let (tree, loading, reader) = (OnceCell::new(), Mutex::default(), Mutex::default());
        Arc::new(RemoteFile { space, path, content, tree, loading, reader })
    }

    /// Reads, cut at the end of the file.
    ///
    /// # Errors
    /// `EIO` for bytes that are nowhere right, and what the site answers otherwise, logged.
    pub async fn read(
        self: &Arc<Self>,
        file: &Arc<RemoteFile>,
        offset: u64,
        len: u64,
    ) -> Result<Bytes, Errno> {
        let end = offset.saturating_add(len).min(file.content.size);
        if offset >= end {
            return Ok(Bytes::new());
        }
        let Ahead { following, pieces } = file.reader().learn(offset, end, file.content.size);
        let mut read = BytesMut::new();
        let mut at = offset;
        while at < end {
            let group = at / GROUP_SIZE;
            self.fetch_ahead(file, group, following);
            pieces.iter().for_each(|(first, count)| self.fetch_ahead(file, *first, *count));
            let bytes = self.group(file, group).await?;
            let from = at - group * GROUP_SIZE;
            let to = (end - group * GROUP_SIZE).min(bytes.len() as u64);
            if to <= from {
                return Err(Errno::EIO);
            }
            let part = bytes.slice(
                usize::try_from(from).unwrap_or(usize::MAX)..usize::try_from(to).unwrap_or(usize::MAX),
            );
            at += to - from;
            if at == end && read.is_empty() {
                // Most reads lie in one group, and need not be copied.
                return Ok(part);
            }
            read.extend_from_slice(&part);
        }
        Ok(read.freeze())
    }

    /// Returns a group, from wherever it is.
    async fn group(self: &Arc<Self>, file: &Arc<RemoteFile>, group: u64) -> Result<Bytes, Errno> {
        let id = file.id(group);
        for _ in 0..ATTEMPTS {
            if let Some(bytes) = self.memory.get(&id) {
                return Ok(bytes);
            }
            let loading = file.loading().get(&group).cloned();
            let Some(mut loading) = loading else {
                self.load(file, group, 1);
                continue;
            };
            // Told of each group that came; it ends when the load does, however that is.
            while loading.changed().await.is_ok() {
                if let Some(bytes) = self.memory.get(&id) {
                    return Ok(bytes);
                }
            }
        }
        // The last one tells why.
        let (sender, _) = watch::channel(());
        self.fetch(file, group, 1, &sender).await?;
        self.memory.get(&id).ok_or(Errno::EIO)
    }

    fn fetch_ahead(self: &Arc<Self>, file: &Arc<RemoteFile>, group: u64, ahead: u64) {
        let last = group_count(ByteCount(file.content.size));
        let end = (group + ahead).min(last);
        let mut at = group;
        while at < end {
            // Who reads on gets whole runs, who reads pieces no more than those.
            let run = if ahead < RUN { end - at } else { RUN.min(last - at) };
            let is_known =
                |group| self.memory.get(&file.id(group)).is_some() || file.loading().contains_key(&group);
            match is_known(at) {
                true => at += 1,
                false => {
                    let run = (0..run).take_while(|next| !is_known(at + next)).count() as u64;
                    self.load(file, at, run);
                    at += run;
                }
            }
        }
    }

    /// Begins to load groups.
    fn load(self: &Arc<Self>, file: &Arc<RemoteFile>, first: u64, count: u64) {
        let (sender, receiver) = watch::channel(());
        {
            let mut loading = file.loading();
            for group in first..first + count {
                loading.insert(group, receiver.clone());
            }
        }
        let (remote, file) = (self.clone(), file.clone());
        self.runtime.spawn(async move {
            if let Err(errno) = remote.fetch(&file, first, count, &sender).await {
                tracing::debug!(path = %file.path, first, count, ?errno, "groups did not come");
            }
            let mut loading = file.loading();
            for group in first..first + count {
                loading.remove(&group);
            }
            drop(loading);
            drop(sender);
        });
    }

    /// Brings groups into memory, from disk or from a site that has them.
    async fn fetch(
        &self,
        file: &RemoteFile,
        first: u64,
        count: u64,
        came: &watch::Sender<()>,
    ) -> Result<(), Errno> {
        let mut missing = first;
        let end = first + count;
        while missing < end {
            let Some(bytes) = self.read_disk(file, missing).await? else { break };
            self.memory.insert(file.id(missing), bytes);
            missing += 1;
            let _ = came.send(());
        }
        if missing == end {
            return Ok(());
        }
        let size = ByteCount(file.content.size);
        let range =
            ByteRange::new(missing * GROUP_SIZE, group_range(size, end - 1).end()).ok_or(Errno::EIO)?;
        let mut reader = self.client.read_version(file.space, &file.path, &file.content, range);
        // The tree comes beside the bytes.
        let first = async { reader.next().await.map_err(|error| unread(file, &error)) };
        let (tree, mut next) = tokio::try_join!(self.tree(file), first)?;
        let mut at = missing;
        while let Some(bytes) = next {
            let verified = verify(tree, at, bytes).await;
            let bytes = verified.ok_or_else(|| {
                tracing::error!(path = %file.path, group = at, "wrong bytes came; they are not served");
                Errno::EIO
            })?;
            self.memory.insert(file.id(at), bytes.clone());
            // Nobody may be waiting.
            let _ = came.send(());
            self.write_disk(file, at, bytes);
            at += 1;
            next = reader.next().await.map_err(|error| unread(file, &error))?;
        }
        Ok(())
    }

    async fn tree<'a>(&self, file: &'a RemoteFile) -> Result<Option<&'a HashTree>, Errno> {
        let size = ByteCount(file.content.size);
        let tree = file.tree.get_or_try_init(|| async {
            match file.content.root {
                Some(root) if group_count(size) == 1 => Ok(HashTree::of_single_group(size, root).ok()),
                Some(_) => {
                    self.client.verified_tree_in(Some(file.space), &file.path, &file.content).await.map(Some)
                }
                None => Ok(None),
            }
        });
        let tree = tree.await.map_err(|error| unread(file, &error))?;
        Ok(tree.as_ref())
    }

    /// Returns a group that is on disk, if it is right.
    async fn read_disk(&self, file: &RemoteFile, group: u64) -> Result<Option<Bytes>, Errno> {
        // What nobody has hashed cannot be told from something else.
        let (Some(disk), Some(root)) = (self.disk.clone(), file.content.root) else { return Ok(None) };
        let path = disk.path(root, group);
        let read = tokio::task::spawn_blocking(move || std::fs::read(path)).await;
        let Ok(Ok(bytes)) = read else { return Ok(None) };
        let Some(tree) = self.tree(file).await? else { return Ok(None) };
        let right = verify(Some(tree), group, bytes.into()).await;
        if right.is_none() {
            tracing::warn!(path = %file.path, group, "a group in the cache is damaged; it is fetched again");
        }
        Ok(right)
    }

    fn write_disk(&self, file: &RemoteFile, group: u64, bytes: Bytes) {
        if let (Some(disk), Some(root)) = (self.disk.clone(), file.content.root) {
            self.runtime.spawn_blocking(move || disk.keep(root, group, &bytes));
        }
    }
}

/// Returns what a program is told whose file cannot be read.
fn unread(file: &RemoteFile, error: &percale_client::Error) -> Errno {
    match error.code() {
        // It was replaced, and its bytes are gone; or it may not be read any more. Who opens it again finds out.
        ErrorCode::VersionChanged | ErrorCode::NotFound => {
            tracing::debug!(path = %file.path, %error, "a version that a program reads is gone");
            Errno::ESTALE
        }
        code => {
            tracing::warn!(path = %file.path, %error, "cannot read a file that is elsewhere");
            errno(code)
        }
    }
}

/// Hashes a group, and returns its bytes if they are right.
async fn verify(tree: Option<&HashTree>, group: u64, bytes: Bytes) -> Option<Bytes> {
    // 0.2 ms for a whole one.
    match tree {
        Some(tree) => tree.verify(group, &bytes).is_ok().then_some(bytes),
        None => Some(bytes),
    }
}

impl RemoteFile {
    fn loading(&self) -> MutexGuard<'_, HashMap<u64, watch::Receiver<()>>> {
        self.loading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reader(&self) -> MutexGuard<'_, Pattern> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn id(&self, group: u64) -> GroupId {
        GroupId { space: self.space, version: self.content.version, group }
    }
}

impl Disk {
    fn path(&self, root: RootHash, group: u64) -> PathBuf {
        let root = root.to_string();
        let (first, rest) = root.split_at(2);
        self.dir.join(first).join(rest).join(group.to_string())
    }

    fn keep(&self, root: RootHash, group: u64, bytes: &[u8]) {
        let len = bytes.len() as u64;
        if self.used.fetch_add(len, Ordering::Relaxed) + len > self.most {
            self.evict();
        }
        let path = self.path(root, group);
        // Under its name it is whole: another may be looking for it.
        let new = path.with_extension("new");
        let written = path
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| std::fs::write(&new, bytes))
            .and_then(|()| std::fs::rename(&new, &path));
        if let Err(error) = written {
            // The cache is full or gone: everything goes on without.
            tracing::debug!(%error, "a group is not kept on disk");
            let _ = std::fs::remove_file(&new);
            self.used.fetch_sub(len, Ordering::Relaxed);
        }
    }

    /// Removes the files that were not read for longest, until a quarter is free.
    fn evict(&self) {
        let mut files = Vec::new();
        for file in contents(&self.dir) {
            let Ok(meta) = file.metadata() else { continue };
            files.push((meta.accessed().or_else(|_| meta.modified()).ok(), meta.len(), file.path()));
        }
        files.sort();
        let mut used: u64 = files.iter().map(|(_, len, _)| len).sum();
        for (_, len, path) in files {
            if used <= self.most / 4 * 3 {
                break;
            }
            if std::fs::remove_file(&path).is_ok() {
                used -= len;
            }
        }
        self.used.store(used, Ordering::Relaxed);
    }
}

/// Returns the files three levels below a directory.
fn contents(dir: &Path) -> impl Iterator<Item = DirEntry> {
    fn below(path: &Path) -> impl Iterator<Item = DirEntry> + use<> {
        std::fs::read_dir(path).into_iter().flatten().flatten()
    }
    below(dir).flat_map(|first| below(&first.path())).flat_map(|root| below(&root.path()))
}

fn used_in(dir: &Path) -> u64 {
    contents(dir).filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}
