//! Conveniences over any store.

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use percale_core::ByteCount;

use crate::{
    Delete, Error, ErrorKind, FileIdentity, ListOptions, ListPage, Operation, Publish, Published,
    ReadOptions, Result, SmallFile, StageToken, Store, StoreKey,
};

/// Conveniences over any store, none of which a store implements itself.
#[async_trait]
pub trait StoreExt: Store {
    /// Reads the bytes asked for into memory.
    ///
    /// # Errors
    /// As [`Store::read`], and `InvalidInput` if there are more than `limit` bytes.
    async fn read_all(&self, key: &StoreKey, options: ReadOptions, limit: ByteCount) -> Result<Bytes>;

    /// Stages and publishes a few bytes where nothing is.
    ///
    /// # Errors
    /// As [`Store::stage_small`] and [`Store::publish`]. What was staged is discarded then.
    async fn put_small(&self, token: StageToken, key: StoreKey, bytes: Bytes) -> Result<Published>;

    /// Publishes one staged file.
    ///
    /// # Errors
    /// As [`Store::publish`].
    async fn publish_one(&self, file: Publish) -> Result<Published>;

    /// Deletes one file or empty collection; returns whether it was there.
    ///
    /// # Errors
    /// As [`Store::delete`].
    async fn delete_one(&self, key: &StoreKey, if_identity: Option<FileIdentity>) -> Result<bool>;

    /// Lists everything asked for as one page.
    ///
    /// # Errors
    /// As [`Store::list`], and `InvalidInput` if there are more than `limit` entries.
    async fn list_all(&self, options: ListOptions, limit: usize) -> Result<ListPage>;
}

#[async_trait]
impl<S: Store + ?Sized> StoreExt for S {
    async fn read_all(&self, key: &StoreKey, options: ReadOptions, limit: ByteCount) -> Result<Bytes> {
        let mut stream = self.read(key, options).await?;
        if stream.range().len() > limit.0 {
            return Err(Error::too_much(key, stream.range().len(), limit.0));
        }
        let Some(first) = stream.next().await? else { return Ok(Bytes::new()) };
        if first.len() as u64 == stream.range().len() {
            // Also sees the end of the stream: only then is the read known to be whole.
            return match stream.next().await? {
                None => Ok(first),
                Some(_) => Err(Error::new(ErrorKind::Other, Operation::Read)
                    .on(key)
                    .detail("more bytes than announced")),
            };
        }
        let mut all = BytesMut::from(&first[..]);
        while let Some(piece) = stream.next().await? {
            all.extend_from_slice(&piece);
        }
        Ok(all.freeze())
    }

    async fn put_small(&self, token: StageToken, key: StoreKey, bytes: Bytes) -> Result<Published> {
        let file = SmallFile { token: token.clone(), key: Some(key.clone()), bytes };
        let staged = only(self.stage_small(vec![file]).await?, Operation::StageSmall)?;
        let published = self.publish_one(Publish::if_absent(token.clone(), key, staged.identity)).await;
        if published.is_err() {
            // The failure to publish is what the caller must hear of; what stays is found by its fence.
            let _ = self.discard(&token).await;
        }
        published
    }

    async fn publish_one(&self, file: Publish) -> Result<Published> {
        only(self.publish(vec![file]).await?, Operation::Publish)
    }

    async fn delete_one(&self, key: &StoreKey, if_identity: Option<FileIdentity>) -> Result<bool> {
        only(self.delete(vec![Delete::key(key.clone()).if_identity(if_identity)]).await?, Operation::Delete)
    }

    async fn list_all(&self, options: ListOptions, limit: usize) -> Result<ListPage> {
        let mut stream = self.list(options).await?;
        let mut all = ListPage::default();
        while let Some(page) = stream.next().await? {
            all.entries.extend(page.entries);
            all.skipped.extend(page.skipped);
            if all.entries.len() > limit {
                return Err(Error::new(ErrorKind::InvalidInput, Operation::List)
                    .detail(format!("more than {limit} entries")));
            }
        }
        Ok(all)
    }
}

fn only<T>(mut results: Vec<Result<T>>, operation: Operation) -> Result<T> {
    let missing = || Err(Error::new(ErrorKind::Other, operation).detail("the store gave no result"));
    results.pop().unwrap_or_else(missing)
}
