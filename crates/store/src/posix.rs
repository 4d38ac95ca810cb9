//! A directory tree of a POSIX file system.
//!
//! **Goals.** A file of the store is an ordinary file at the path of its key. Nothing outside the root is ever touched,
//! whatever lies in it. What was acknowledged survives a loss of power.
//!
//! **How paths are resolved.** Always from the open root directory, by `openat2` with `RESOLVE_BENEATH`, so by the kernel
//! and without a gap between a check and a use. A managed store follows no symbolic link; a native one follows those that
//! stay inside the root and do not lead to what is reserved there. What leads elsewhere is `Denied`.
//!
//! **Layout.** Below `.percale`: `store`, which says whose root this is; `stage/<fence>/<name>`, the staged files, with
//! `<name>.marker`, their restart markers. All else is the server's (`docs/design/publishing.md`).
//!
//! **Durability.** Publishing flushes the staged files, renames them with `RENAME_NOREPLACE`, then flushes the
//! directories; with more than a few files or directories by one `syncfs`. Deleting and renaming flush directories too.
//!
//! **Limits.** A change is seen by size, mtime and ctime: a program that writes through a shared mapping moves mtime only
//! when the kernel writes the page out, and kernels before 6.13 count time in ticks of 1 to 10 ms.

mod account;
mod config;
mod list;
mod names;
mod publish;
mod read;
mod root;
mod stage;
mod workers;

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use percale_core::ByteCount;
use percale_core::digest::{Algorithm, Digest};
use percale_core::ids::Fence;

pub use self::account::Account;
use self::account::Executor;
pub use self::config::{Layout, Ownership, PosixConfig};
use self::root::Root;
use self::stage::StageArea;
use crate::error::refuse_stage;
use crate::{
    Capabilities, Delete, Error, ErrorKind, ListOptions, ListStream, Meta, Operation, Publish, Published,
    ReadCapabilities, ReadOptions, ReadStream, Result, SmallFile, Stage, StageOptions, StageToken, Staged,
    Store, StoreKey, Usage, WriteCapabilities,
};

/// A store in a directory tree.
#[derive(Debug, Clone)]
pub struct Posix {
    inner: Arc<Inner>,
    executor: Executor,
}

/// What all sessions of one store share.
#[derive(Debug)]
pub(crate) struct Inner {
    capabilities: Capabilities,
    config: PosixConfig,
    root: Root,
    /// Nothing, if the root cannot be written.
    area: Option<StageArea>,
    /// Flushes of the whole file system; see `publish.rs`.
    syncs: publish::Syncs,
    other_names: names::OtherNames,
}

impl Posix {
    /// Opens the tree, and makes what the store needs below `.percale` if it can be written.
    ///
    /// # Errors
    /// `InvalidInput` if the root is not an absolute path; `Unavailable` if it is not there, or is not that of the store
    /// that the configuration names, as when its file system is not mounted; `Unsupported` if the kernel has no `openat2`
    /// (before 5.6), or accounts are to be mapped and the process may not change them.
    pub async fn open(config: PosixConfig) -> Result<Self> {
        let open = move || {
            let root = Root::open(&config)?;
            let area = root.prepare(&config)?.map(|dir| StageArea::new(dir, &config));
            if config.ownership == Ownership::Mapped {
                account::check_may_change()?;
            }
            let capabilities = capabilities(&config, area.is_some());
            Ok(Inner {
                capabilities,
                config,
                root,
                area,
                syncs: Default::default(),
                other_names: Default::default(),
            })
        };
        let service = Executor::default();
        let inner = Arc::new(service.run(Operation::Open, open).await?);
        let executor = match inner.config.ownership {
            Ownership::Service { .. } => service,
            Ownership::Mapped => service.nobody(),
        };
        Ok(Self { inner, executor })
    }

    /// Returns a session in which files are read and written as a local account, for a store with mapped accounts.
    ///
    /// The store itself then touches only what is reserved and what is staged.
    ///
    /// # Errors
    /// `Unsupported`, if the store does not map accounts.
    pub fn with_account(&self, account: Account) -> Result<Self> {
        match self.inner.config.ownership {
            Ownership::Mapped => {
                Ok(Self { inner: self.inner.clone(), executor: self.executor.account(account) })
            }
            Ownership::Service { .. } => {
                Err(Error::unsupported(Operation::Open, "the store does its work as the service account"))
            }
        }
    }

    /// Does blocking work on keys: as the session's account, or as the service where that may touch the keys.
    async fn run<T, W>(&self, operation: Operation, keys: &[&StoreKey], work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(&Inner) -> Result<T> + Send + 'static,
    {
        for key in keys {
            refuse_stage(operation, key)?;
        }
        let inner = self.inner.clone();
        let all_reserved = !keys.is_empty() && keys.iter().all(|key| key.is_reserved());
        self.executor.for_keys(all_reserved).run(operation, move || work(&inner)).await
    }

    /// Makes the directories of fences as the service, where an account could not.
    async fn make_fences(&self, fences: impl IntoIterator<Item = Fence>) -> Result<()> {
        if !self.executor.is_account() {
            return Ok(());
        }
        let fences: BTreeSet<Fence> = fences.into_iter().collect();
        let inner = self.inner.clone();
        let work = move || {
            let area = inner.area(Operation::Stage)?;
            for fence in fences {
                area.make_fence(fence).map_err(|errno| root::path_error(Operation::Stage, errno))?;
            }
            Ok(())
        };
        self.executor.service().run(Operation::Stage, work).await
    }

    /// Does blocking work on staged files.
    async fn run_staged<T, W>(&self, operation: Operation, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(&Inner, &StageArea) -> Result<T> + Send + 'static,
    {
        let inner = self.inner.clone();
        self.executor.for_keys(true).run(operation, move || work(&inner, inner.area(operation)?)).await
    }
}

impl Inner {
    fn area(&self, operation: Operation) -> Result<&StageArea> {
        self.area.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::Denied, operation).detail("the root of the store cannot be written")
        })
    }
}

fn capabilities(config: &PosixConfig, is_writable: bool) -> Capabilities {
    Capabilities {
        read: ReadCapabilities { ranges: true, medium: is_writable },
        write: WriteCapabilities {
            positioned: is_writable,
            resumable: is_writable,
            publish_if_absent: is_writable,
            replace: is_writable && config.layout == Layout::Native,
            late_key: is_writable,
            clone: is_writable,
            multipart_min: ByteCount::ZERO,
            max_size: None,
        },
        collections: true,
        list: true,
        rename: is_writable,
        native_digests: Vec::new(),
        generations: true,
        identities: true,
        durable: true,
        usage: true,
        block_size: ByteCount::mib(1),
        concurrency: 32,
    }
}

#[async_trait]
impl Store for Posix {
    fn capabilities(&self) -> &Capabilities {
        &self.inner.capabilities
    }

    async fn stat(&self, key: &StoreKey) -> Result<Meta> {
        let wanted = key.clone();
        self.run(Operation::Stat, &[key], move |inner| inner.root.stat(&wanted)).await
    }

    async fn list(&self, options: ListOptions) -> Result<Box<dyn ListStream>> {
        let keys: Vec<&StoreKey> = options.prefix.iter().collect();
        let wanted = options.clone();
        let walker =
            self.run(Operation::List, &keys, move |inner| list::Walker::new(&inner.root, wanted)).await?;
        let reserved = options.prefix.as_ref().is_some_and(StoreKey::is_reserved);
        Ok(Box::new(list::Lister::new(self.inner.clone(), self.executor.for_keys(reserved), walker)))
    }

    async fn read(&self, key: &StoreKey, options: ReadOptions) -> Result<Box<dyn ReadStream>> {
        let wanted = key.clone();
        let reader = self
            .run(Operation::Read, &[key], move |inner| read::Reader::open(&inner.root, wanted, &options))
            .await?;
        Ok(Box::new(reader))
    }

    async fn read_small(&self, files: Vec<(StoreKey, ReadOptions)>) -> Result<Vec<Result<Bytes>>> {
        let inner = self.inner.clone();
        let reserved = files.iter().all(|(key, _)| key.is_reserved());
        let read = move |(key, options)| read::small(&inner.root, key, &options);
        let work = move || Ok(files.into_iter().map(read).collect());
        self.executor.for_keys(reserved).run(Operation::ReadSmall, work).await
    }

    async fn stage(&self, options: StageOptions) -> Result<Box<dyn Stage>> {
        self.make_fences([options.token.fence()]).await?;
        let open = move |_: &Inner, area: &StageArea| area.open(options);
        Ok(Box::new(self.run_staged(Operation::Stage, open).await?))
    }

    async fn stage_small(&self, files: Vec<SmallFile>) -> Result<Vec<Result<Staged>>> {
        self.make_fences(files.iter().map(|file| file.token.fence())).await?;
        self.run_staged(Operation::StageSmall, move |_, area| Ok(area.write_small(files))).await
    }

    async fn read_staged(
        &self,
        tokens: Vec<StageToken>,
        most: ByteCount,
    ) -> Result<Vec<Result<Option<(Staged, Bytes)>>>> {
        let work = move |_: &Inner, area: &StageArea| {
            Ok(tokens.into_iter().map(|token| area.read(token, most)).collect())
        };
        self.run_staged(Operation::ReadStaged, work).await
    }

    async fn read_back(&self, token: &StageToken) -> Result<Box<dyn ReadStream>> {
        let token = token.clone();
        let work = move |inner: &Inner, area: &StageArea| {
            let (file, key) = area.open_from_medium(&token)?;
            read::Reader::back(file, key, inner.root.layout())
        };
        Ok(Box::new(self.run_staged(Operation::ReadBack, work).await?))
    }

    async fn publish(&self, files: Vec<Publish>) -> Result<Vec<Result<Published>>> {
        let inner = self.inner.clone();
        let reserved = files.iter().all(|file| file.key.is_reserved());
        let work = move || Ok(inner.publish(inner.area(Operation::Publish)?, files));
        self.executor.for_keys(reserved).run(Operation::Publish, work).await
    }

    async fn discard(&self, token: &StageToken) -> Result<bool> {
        let token = token.clone();
        let work = move |_: &Inner, area: &StageArea| area.discard(&token);
        self.run_staged(Operation::Discard, work).await
    }

    async fn discard_fence(&self, fence: Fence) -> Result<u64> {
        // As the service also in a session: what lies under a fence may belong to several accounts.
        let inner = self.inner.clone();
        let work = move || inner.area(Operation::Discard)?.discard_fence(fence);
        self.executor.service().run(Operation::Discard, work).await
    }

    async fn staged(&self, fence: Option<Fence>) -> Result<Vec<Staged>> {
        let inner = self.inner.clone();
        let work = move || inner.area(Operation::Staged)?.list(fence);
        self.executor.service().run(Operation::Staged, work).await
    }

    async fn delete(&self, items: Vec<Delete>) -> Result<Vec<Result<bool>>> {
        let inner = self.inner.clone();
        let reserved = items.iter().all(|item| item.key.is_reserved());
        self.executor.for_keys(reserved).run(Operation::Delete, move || Ok(inner.delete(items))).await
    }

    async fn mkdir(&self, key: &StoreKey) -> Result<bool> {
        let wanted = key.clone();
        self.run(Operation::Mkdir, &[key], move |inner| inner.mkdir(&wanted)).await
    }

    async fn rename(&self, from: &StoreKey, to: &StoreKey) -> Result<()> {
        let (old, new) = (from.clone(), to.clone());
        self.run(Operation::Rename, &[from, to], move |inner| inner.rename(&old, &new)).await
    }

    async fn clone_to_stage(&self, from: &StoreKey, options: StageOptions) -> Result<Box<dyn Stage>> {
        self.make_fences([options.token.fence()]).await?;
        let original = from.clone();
        let work =
            move |inner: &Inner| inner.area(Operation::Clone)?.clone_file(&inner.root, &original, options);
        Ok(Box::new(self.run(Operation::Clone, &[from], work).await?))
    }

    async fn checksum(&self, key: &StoreKey, algorithm: Algorithm) -> Result<Digest> {
        Err(Error::unsupported(Operation::Checksum, format!("file systems keep no {algorithm}")).on(key))
    }

    async fn usage(&self) -> Result<Usage> {
        let inner = self.inner.clone();
        self.executor.service().run(Operation::Usage, move || inner.root.usage()).await
    }
}
