//! What a trial works with.

use std::sync::Arc;

use bytes::Bytes;
use percale_core::ByteCount;
use percale_core::ids::Fence;

use super::{Failure, Tamper};
use crate::{
    Capabilities, ErrorKind, ListOptions, Publish, Published, ReadOptions, Result, SharedStore, SmallFile,
    Stage, StageOptions, StageToken, StoreExt, StoreKey,
};

/// The fence under which trials stage, unless they need another.
pub(super) const FENCE: Fence = Fence(7);

/// Most bytes that a trial reads at once.
const READ_LIMIT: ByteCount = ByteCount::mib(64);

#[derive(Clone)]
pub(super) struct Context {
    pub(super) store: SharedStore,
    pub(super) tamper: Option<Arc<Tamper>>,
}

impl Context {
    pub(super) fn new(store: SharedStore, tamper: Option<Tamper>) -> Self {
        Self { store, tamper: tamper.map(Arc::new) }
    }

    pub(super) fn can(&self) -> Capabilities {
        self.store.capabilities().clone()
    }

    /// Begins a staged file as any store allows it: with its key.
    pub(super) async fn stage(&self, name: &str, to: &str) -> Result<Box<dyn Stage>> {
        self.store.stage(StageOptions::new(token(name)).key(key(to))).await
    }

    /// Stages bytes in pieces that any store takes: in order, each of the smallest size allowed or more.
    pub(super) async fn stage_bytes(&self, name: &str, to: &str, bytes: &[u8]) -> Result<Publish> {
        let stage = self.stage(name, to).await?;
        let piece = self.can().write.multipart_min.0.max(1 << 20) as usize;
        for (index, part) in bytes.chunks(piece).enumerate() {
            stage.write_at((index * piece) as u64, Bytes::copy_from_slice(part)).await?;
        }
        let staged = stage.finish().await?;
        Ok(Publish::if_absent(token(name), key(to), staged.identity))
    }

    /// Publishes bytes under a key.
    pub(super) async fn put(&self, to: &str, bytes: &[u8]) -> Result<Published> {
        // One token for each key, since trials put several files.
        let name: String = to.bytes().map(|byte| format!("{byte:02x}")).collect();
        let file = self.stage_bytes(&name.chars().take(100).collect::<String>(), to, bytes).await?;
        self.store.publish_one(file).await
    }

    pub(super) fn small(&self, name: &str, to: &str, bytes: &'static [u8]) -> SmallFile {
        SmallFile { token: token(name), key: Some(key(to)), bytes: Bytes::from_static(bytes) }
    }

    pub(super) async fn get(&self, from: &str) -> Result<Bytes> {
        self.store.read_all(&key(from), ReadOptions::default(), READ_LIMIT).await
    }

    pub(super) async fn keys(&self, options: ListOptions) -> Result<Vec<String>> {
        let page = self.store.list_all(options, 100_000).await?;
        Ok(page.entries.into_iter().map(|entry| entry.key.to_string()).collect())
    }
}

/// Fails unless the result is an error of one of these kinds.
pub(super) fn expect<T>(
    result: Result<T>,
    kinds: &[ErrorKind],
    what: &str,
) -> std::result::Result<(), Failure> {
    match result {
        Err(error) if kinds.contains(&error.kind()) => Ok(()),
        Err(error) => Err(Failure(format!("{what}: expected {kinds:?}, got {:?}: {error}", error.kind()))),
        Ok(_) => Err(Failure(format!("{what}: expected {kinds:?}, but it succeeded"))),
    }
}

pub(super) fn key(text: &str) -> StoreKey {
    StoreKey::parse(text).expect("keys of trials are well formed")
}

pub(super) fn token(name: &str) -> StageToken {
    StageToken::new(FENCE, name).expect("tokens of trials are well formed")
}

/// Bytes that differ at every offset that a mistake could mix up.
pub(super) fn content(len: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes
}
