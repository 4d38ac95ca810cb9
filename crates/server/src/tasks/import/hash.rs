//! Hashing files before they are registered.

use futures::{StreamExt as _, stream};
use percale_catalog::{NativeFile, NativeFolder};
use percale_core::ErrorCode;
use percale_core::tree::{RootHash, TreeHasher};
use percale_store::{ErrorKind, ReadOptions, SharedStore, StoreKey};

use super::scan::found;
use super::source::Source;
use crate::{ApiError, Result};

/// Files that are read at once.
const AT_ONCE: usize = 4;
/// How often a file is read that is changed meanwhile.
const TRIES: u32 = 3;

/// Hashes the files of folders, and takes those away that cannot be: their paths at the site, and why.
pub(super) async fn hash_all(
    store: &SharedStore,
    source: &Source,
    folders: &mut [NativeFolder],
    done: impl Fn(u64),
) -> Vec<(String, ApiError)> {
    let mut failed = Vec::new();
    for folder in folders {
        let keys: Vec<String> = folder.files.iter().map(|file| folder.key_of(&file.name)).collect();
        let files = std::mem::take(&mut folder.files).into_iter().zip(keys);
        let hashed = files.map(|(file, key)| async move {
            let hashed = hash_one(store, &key, file).await;
            (key, hashed)
        });
        // In their order, which registering asks for.
        let mut hashed = stream::iter(hashed).buffered(AT_ONCE);
        while let Some((key, outcome)) = hashed.next().await {
            match outcome {
                Ok(file) => {
                    done(file.size.0);
                    folder.files.push(file);
                }
                Err(error) => failed.push((source.shown(&key), error)),
            }
        }
    }
    failed
}

/// Hashes a file. Returns it as it was while it was hashed, which may be later than it was found.
///
/// # Errors
/// What the store answers; `version_changed` if it was changed each time that it was read.
pub(crate) async fn hash_one(store: &SharedStore, key: &str, file: NativeFile) -> Result<NativeFile> {
    let key = StoreKey::parse(key).map_err(percale_store::Error::from)?;
    for _ in 0..TRIES {
        // A read that ends without an error gave the bytes of one generation.
        match read(store, &key).await {
            Ok((root, meta)) => return Ok(found(&file.name, &meta, Some(root))),
            Err(error) if error.kind() == ErrorKind::Changed => {}
            Err(error) => return Err(error.into()),
        }
    }
    let detail = format!("it was changed each of the {TRIES} times that it was hashed");
    Err(ApiError::new(ErrorCode::VersionChanged, detail))
}

async fn read(store: &SharedStore, key: &StoreKey) -> percale_store::Result<(RootHash, percale_store::Meta)> {
    let mut stream = store.read(key, ReadOptions::default()).await?;
    let mut hasher = TreeHasher::new();
    while let Some(piece) = stream.next().await? {
        // 1 MiB takes about 0.15 ms; the store reads the next piece meanwhile.
        hasher.update(&piece);
    }
    Ok((hasher.finish().root(), stream.meta().clone()))
}
