//! Objects of one group, read whole and several at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use percale_core::tree::GROUP_SIZE;
use percale_core::{ByteCount, ByteRange};
use percale_store::{ReadOptions, StoreKey};

use super::{Reader, Source, key};
use crate::error::Result;
use crate::stores::OpenStore;

/// Objects that are read in one go, and their bytes. By then the way to the store and back costs little beside them; more would wait for each
/// other where the disk takes long.
pub const TOGETHER: (usize, u64) = (8, GROUP_SIZE);

/// Such batches that are read side by side.
pub const READS: usize = 8;

/// Objects of one store.
#[derive(Default)]
struct OfStore {
    store: Option<Arc<OpenStore>>,
    /// Their numbers.
    places: Vec<usize>,
    files: Vec<(StoreKey, ReadOptions)>,
}

impl Reader {
    /// Reads versions of one group whole, each verified if it `is_compared`, in the order given. About [`TOGETHER`] are worth it, since all are in
    /// memory and none comes before the last.
    ///
    /// # Errors
    /// As [`Reader::read`] and what it returns, for each by itself.
    pub async fn read_small(
        self: &Arc<Self>,
        sources: &[Arc<Source>],
        is_compared: bool,
    ) -> Vec<Result<Bytes>> {
        let read = self.read_together(sources, is_compared).await;
        // What is wrong with a copy is found out, and noted, by reading it alone, which also goes on with the next.
        let each = sources.iter().zip(read).map(async |(source, read)| match read {
            Some(bytes) => Ok(bytes),
            None => self.read_alone(source.clone(), is_compared).await,
        });
        join_all(each).await
    }

    /// The same only of what is on own stores. Nothing where that fails, or something else comes.
    pub async fn read_together(&self, sources: &[Arc<Source>], is_compared: bool) -> Vec<Option<Bytes>> {
        let mut stores: BTreeMap<_, OfStore> = BTreeMap::new();
        for (place, source) in sources.iter().enumerate() {
            let Some((store, replica)) = source.on_own_store() else { continue };
            let Ok(at) = key(&replica.key) else { continue };
            let options = ReadOptions::default()
                .if_generation(store.expected_generation(replica.generation.as_deref()))
                .piece_size(ByteCount(GROUP_SIZE));
            let of_store = stores.entry(replica.store).or_default();
            of_store.store.get_or_insert_with(|| store.clone());
            of_store.places.push(place);
            of_store.files.push((at, options));
        }
        let mut found = vec![None; sources.len()];
        for OfStore { store, places, files } in stores.into_values() {
            let Some(store) = store else { continue };
            let Ok(read) = store.store.read_small(files).await else { continue };
            for (place, bytes) in places.into_iter().zip(read) {
                found[place] = bytes.ok().filter(|bytes| is_right(&sources[place], bytes, is_compared));
            }
        }
        found
    }

    async fn read_alone(self: &Arc<Self>, source: Arc<Source>, is_compared: bool) -> Result<Bytes> {
        let whole = ByteRange::whole(source.version.size);
        let mut read = self.read(source, whole).await?;
        if !is_compared {
            read.leave_to_receiver();
        }
        Ok(read.next().await?.unwrap_or_default())
    }
}

fn is_right(source: &Source, bytes: &Bytes, is_compared: bool) -> bool {
    let tree = source.tree.as_ref().filter(|_| is_compared);
    bytes.len() as u64 == source.version.size.0 && tree.is_none_or(|tree| tree.verify(0, bytes).is_ok())
}

/// Cuts objects into batches, in their order. `most` is asked how many objects and bytes the next one may have; it has one object at
/// least.
pub fn in_batches<T>(
    all: Vec<T>,
    size: fn(&T) -> u64,
    mut most: impl FnMut() -> (usize, u64),
) -> Vec<Vec<T>> {
    let mut batches: Vec<Vec<T>> = Vec::new();
    let (mut items, mut bytes) = (0, 0);
    for one in all {
        let size = size(&one);
        match batches.last_mut().filter(|batch| batch.len() < items && size <= bytes) {
            Some(batch) => batch.push(one),
            None => {
                (items, bytes) = most();
                batches.push(vec![one]);
            }
        }
        bytes = bytes.saturating_sub(size);
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_keep_the_order_and_to_what_they_may_have() {
        let sizes = vec![3, 3, 3, 20, 1, 1, 1, 1, 5, 5];
        let batches = in_batches(sizes.clone(), |size| *size, || (3, 10));
        assert_eq!(batches, [vec![3, 3, 3], vec![20], vec![1, 1, 1], vec![1, 5], vec![5]]);
        assert_eq!(batches.concat(), sizes);
        assert!(in_batches(Vec::new(), |size: &u64| *size, || (3, 10)).is_empty());
    }
}
