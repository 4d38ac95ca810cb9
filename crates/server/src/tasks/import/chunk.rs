//! What a scan found, some thousands of files at a time.

use std::collections::{HashMap, HashSet};

use percale_catalog::{KnownFile, MAX_REGISTER, NativeFile, NativeFolder};
use percale_core::ObjectPath;

use crate::ApiError;

/// Files that are registered in one transaction, or one request to another site.
const FILES: usize = 4000;
/// Bytes of their names and generations: a request takes 4 MiB.
const BYTES: usize = 1 << 20;
/// Files that are gone, or items that failed, in one chunk.
const OTHERS: usize = 1000;
/// Bytes of files that are hashed before any of them is registered: what a server that dies has hashed for nothing.
const CONTENT: u64 = 4 << 30;
/// Files that need nothing, after which it is said how far the work is.
const UNCHANGED: u64 = 50_000;
const _: () = assert!(FILES < MAX_REGISTER);

/// A part of what a scan found.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// Files that are new or changed.
    pub folders: Vec<NativeFolder>,
    /// The keys of those that are known, and changed.
    pub changed: HashSet<String>,
    /// Files whose bytes were found gone.
    pub gone: Vec<KnownFile>,
    /// Files that are as they were.
    pub unchanged: u64,
    /// What cannot be registered: its path at the site, and why.
    pub failed: Vec<(String, ApiError)>,
    /// Behind which key a repetition goes on.
    pub through: Option<String>,
    by_key: HashMap<Option<String>, usize>,
    files: usize,
    bytes: usize,
    content: u64,
}

impl Chunk {
    /// Returns the folder with a key, which goes to this collection.
    pub fn folder(
        &mut self,
        key: Option<&str>,
        path: impl FnOnce() -> crate::Result<ObjectPath>,
    ) -> crate::Result<usize> {
        // Looked up for each file: the key is only copied for a new one.
        let key = key.map(str::to_owned);
        if let Some(at) = self.by_key.get(&key) {
            return Ok(*at);
        }
        let at = self.folders.len();
        self.folders.push(NativeFolder { path: path()?, key: key.clone(), files: Vec::new() });
        self.by_key.insert(key, at);
        self.bytes += 200;
        Ok(at)
    }

    /// Adds a file of a folder.
    pub fn add(&mut self, folder: usize, file: NativeFile) {
        if let Some(folder) = self.folders.get_mut(folder) {
            self.files += 1;
            self.content += file.size.0;
            self.bytes += file.name.len() + file.generation.len() + 100;
            folder.files.push(file);
        }
    }

    /// Tells whether it is to be worked on before more is added. `is_read`: its files are hashed first.
    pub fn is_full(&self, is_read: bool) -> bool {
        self.files >= FILES
            || (is_read && self.content >= CONTENT)
            || self.bytes >= BYTES
            || self.gone.len() >= OTHERS
            || self.failed.len() >= OTHERS
            || self.unchanged >= UNCHANGED
    }
}
