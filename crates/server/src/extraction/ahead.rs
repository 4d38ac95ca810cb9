//! Headers of what is about to become visible, so that it can be found by them from the first moment.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use percale_catalog::FoundAttribute;
use percale_core::ids::SpaceId;
use percale_core::{ByteCount, ByteRange, ObjectPath};
use percale_store::{ReadOptions, StoreExt as _, StoreKey};
use tokio::time::Instant;

use super::{Extraction, TOGETHER, attributes_of, size_of};
use crate::stores::OpenStore;

/// For how long a publication waits for its headers. What takes longer is read behind the journal.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// Bytes that lie in their place, and are not visible yet.
pub struct Arrived<'a> {
    /// The space that it will be in.
    pub space: SpaceId,
    /// What it will be called.
    pub path: &'a ObjectPath,
    /// Where it lies.
    pub store: &'a Arc<OpenStore>,
    /// Under which key.
    pub key: &'a StoreKey,
    /// Its bytes.
    pub size: ByteCount,
}

impl Extraction {
    /// Reads the headers of files that are `sync`. Nothing for others, and for one that takes too long or cannot be read now, which is
    /// read later.
    pub async fn ahead(&self, files: &[Arrived<'_>]) -> Vec<Option<Vec<FoundAttribute>>> {
        if !files.iter().any(|file| self.is_read_ahead(file)) {
            return files.iter().map(|_| None).collect();
        }
        let until = Instant::now() + PATIENCE;
        let read = files.iter().map(|file| self.header_ahead(file, until).boxed());
        let read: Vec<BoxFuture<'_, _>> = read.collect();
        let mut found: Vec<_> = stream::iter(read).buffered(self.at_once * 2).collect().await;
        // What one transaction takes.
        let mut bytes = 0;
        for one in &mut found {
            bytes += one.as_deref().map_or(0, size_of);
            one.take_if(|_| bytes > TOGETHER);
        }
        found
    }

    fn is_read_ahead(&self, file: &Arrived<'_>) -> bool {
        let name = file.path.name().unwrap_or_default();
        // A program of the site's own may take its time.
        let may_take_long = || self.programs.iter().any(|program| program.is_for(name));
        self.pool.is_some() && self.is_sync(file.space, file.path) && !may_take_long()
    }

    async fn header_ahead(&self, file: &Arrived<'_>, until: Instant) -> Option<Vec<FoundAttribute>> {
        if !self.is_read_ahead(file) || Instant::now() >= until {
            return None;
        }
        let name = file.path.name().unwrap_or_default();
        let (store, key) = (file.store.clone(), file.key.clone());
        let read = move |range: ByteRange| {
            let (store, key) = (store.clone(), key.clone());
            async move {
                let limit = ByteCount(range.len());
                Ok(store.store.read_all(&key, ReadOptions::range(range), limit).await?)
            }
            .boxed()
        };
        let gathered =
            tokio::time::timeout_at(until, self.gather(name, file.size, &read)).await.ok()?.ok()?;
        let rules = self.state(file.space, |state| state.rules.clone());
        Some(attributes_of(gathered, &rules.at(file.path)))
    }
}
