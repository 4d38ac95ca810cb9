//! The trait of all storages.
//!
//! **Participants.** A *connector* implements [`Store`] for one kind of storage. Wrappers implement it over another store.
//! Whoever publishes (the server) follows `docs/design/publishing.md`.
//!
//! **What it is not.** It knows nothing of versions, digests of contents, permissions or leases: those are the catalog's. It
//! does not retry: the wrapper [`crate::wrappers::Retry`] does.
//!
//! **Rules for all operations.** Dropping a future cancels the wait, not always the work: what was begun may still
//! happen, and is then undone or repeated by its token. Operations on keys refuse those of the stage area with
//! `InvalidKey`. There is one trial in [`crate::conformance`] for each bullet.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use percale_core::digest::{Algorithm, Digest};
use percale_core::ids::Fence;
use percale_core::{ByteCount, ByteRange};

use crate::{
    Capabilities, Delete, FileIdentity, ListOptions, ListPage, Meta, Publish, Published, ReadOptions, Result,
    SmallFile, StageOptions, StageToken, Staged, StoreKey, Usage,
};

/// A store as it is handed around.
pub type SharedStore = Arc<dyn Store>;

/// A storage.
///
/// There are no default methods, so that a wrapper cannot forget one; conveniences are in [`crate::StoreExt`].
#[async_trait]
pub trait Store: Debug + Send + Sync + 'static {
    /// Returns what this store can do.
    ///
    /// - What it does not claim fails with `Unsupported`.
    fn capabilities(&self) -> &Capabilities;

    /// Returns what the store knows of a key.
    ///
    /// - Of a missing key: `NotFound`.
    /// - Of a key below a file: `NotFound` or `NotACollection`.
    /// - Where generations are claimed, a file's generation is the same until the file changes, and another afterwards.
    async fn stat(&self, key: &StoreKey) -> Result<Meta>;

    /// Lists what is in a collection.
    ///
    /// - Each entry comes once. The order is the same in each listing, and `after` continues in that order.
    /// - Recursive listings are in the byte order of whole keys: `a.b` before `a/x`.
    /// - Recursive listings hold the files at any depth and, where collections are claimed, the collections.
    /// - Not recursive, collections below come as one entry each.
    /// - A missing prefix is `NotFound` where collections are claimed, else an empty listing. A prefix that is a file is
    ///   `NotACollection` where collections are claimed.
    /// - Reserved keys are hidden unless asked for; staged files are never listed.
    async fn list(&self, options: ListOptions) -> Result<Box<dyn ListStream>>;

    /// Reads a file.
    ///
    /// - The range is cut at the end of the file; a range behind the end gives nothing.
    /// - Where ranges are not claimed, a range that does not begin at 0 is `Unsupported`.
    /// - Of a missing key: `NotFound`, here and not at the first piece. Of a collection: `IsACollection`.
    /// - With `if_generation`, another generation is `Changed`, here.
    /// - Where generations are claimed, a file that changes while it is read gives `Changed` before its last piece, or all
    ///   bytes of what it was: never bytes of two versions.
    /// - A read that ends without an error gave every byte of the range.
    async fn read(&self, key: &StoreKey, options: ReadOptions) -> Result<Box<dyn ReadStream>>;

    /// Reads parts of files, or whole ones, each with its own result, in the order given. Each is one piece at most. Holds all of them in
    /// memory.
    ///
    /// - Does what `read` with the same options would do.
    /// - What is more than the piece of its options is `InvalidInput`.
    async fn read_small(&self, files: Vec<(StoreKey, ReadOptions)>) -> Result<Vec<Result<Bytes>>>;

    /// Begins or continues a staged file, which nobody sees.
    ///
    /// - A token that is staged already is `AlreadyExists`, unless `resume` is set.
    /// - With `resume`, what was written under the token is there, where resumable writes are claimed; a token that is not
    ///   staged is begun. Where they are not, `resume` is `Unsupported`.
    /// - Where late keys are not claimed, a missing key is `InvalidInput`.
    async fn stage(&self, options: StageOptions) -> Result<Box<dyn Stage>>;

    /// Stages whole small files, each with its own result, in the order given. They need not be flushed yet.
    ///
    /// - Does what `stage`, one write and `finish` would do.
    async fn stage_small(&self, files: Vec<SmallFile>) -> Result<Vec<Result<Staged>>>;

    /// Reads staged files from their beginning, so many bytes of each at most, each with its own result, in the order given: what is staged,
    /// as it was behind the last byte, and its bytes. Holds all of them in memory.
    ///
    /// - A token that is not staged gives nothing.
    /// - Does what `stage` to resume, one read and `finish` would do, but begins nothing. Where resumable writes are not claimed, it is
    ///   `Unsupported`.
    async fn read_staged(
        &self,
        tokens: Vec<StageToken>,
        most: ByteCount,
    ) -> Result<Vec<Result<Option<(Staged, Bytes)>>>>;

    /// Flushes a staged file whose writing has ended, and reads it from the medium: not what the system still has in memory of
    /// what was written.
    ///
    /// - Where reading from the medium is not claimed, it is `Unsupported`.
    /// - A token that is not staged is `NotFound`.
    /// - The file can be published afterwards as before.
    async fn read_back(&self, token: &StageToken) -> Result<Box<dyn ReadStream>>;

    /// Makes staged files visible under their keys, each with its own result, in the order given.
    ///
    /// - Collections above a key are made as needed.
    /// - When it returns, the files published are durable where that is claimed, together with their names.
    /// - A key is never visible with less than all bytes.
    /// - `IfAbsent`: a key that is taken is `AlreadyExists`, and what is there is untouched; of several at once exactly one
    ///   wins. Where `publish_if_absent` is not claimed, it is `Unsupported`.
    /// - `Replace`: readers see the old file or the new one. Where `replace` is not claimed, it is `Unsupported`.
    /// - A token that is not staged is `NotFound`, unless the key has the identity given: then it was published before, and
    ///   that is told again.
    /// - A file that failed to be published stays staged where resumable writes are claimed.
    /// - Where late keys are not claimed, a key other than that of the stage is `InvalidInput`.
    async fn publish(&self, files: Vec<Publish>) -> Result<Vec<Result<Published>>>;

    /// Removes a staged file and its marker.
    ///
    /// - Returns whether it was there; a missing one is no error.
    /// - Published files are not touched.
    async fn discard(&self, token: &StageToken) -> Result<bool>;

    /// Removes everything that was staged under a fence, when its lease is taken over.
    ///
    /// - Returns how many files there were. May be repeated.
    /// - Files of other fences are not touched.
    async fn discard_fence(&self, fence: Fence) -> Result<u64>;

    /// Returns what is staged, of one fence or of all; at most 100 000.
    ///
    /// - Where resumable writes are not claimed, only what this process staged.
    async fn staged(&self, fence: Option<Fence>) -> Result<Vec<Staged>>;

    /// Deletes files or empty collections, each with its own result: whether it was there.
    ///
    /// - A missing key is no error.
    /// - A collection with entries is `NotEmpty`, where collections are claimed.
    /// - With `if_collection`, anything else is `NotACollection` and stays.
    /// - With `if_identity`, another file is `Changed` and stays. Where identities are not claimed, that is `Unsupported`.
    /// - With `if_generation`, a file of another generation is `Changed` and stays. What changes between that look and the
    ///   deletion is deleted: storage can rarely do both in one step. Where generations are not claimed, no file has one.
    /// - When it returns, the deletions are durable where that is claimed.
    async fn delete(&self, items: Vec<Delete>) -> Result<Vec<Result<bool>>>;

    /// Makes a collection and those above it.
    ///
    /// - Returns whether it was made; one that is there is no error.
    /// - A file in the way is `AlreadyExists` or `NotACollection`.
    /// - Where collections are not claimed, it is `Unsupported`.
    async fn mkdir(&self, key: &StoreKey) -> Result<bool>;

    /// Gives a file or collection another key.
    ///
    /// - A key that is taken is `AlreadyExists`, and both stay as they are.
    /// - Collections above the new key are made as needed.
    /// - A missing file is `NotFound`.
    async fn rename(&self, from: &StoreKey, to: &StoreKey) -> Result<()>;

    /// Stages a copy of a file without its bytes passing through us, sharing them with the original where the storage can.
    ///
    /// - The copy is independent of later changes of the original.
    /// - An original that changed meanwhile is `Changed`.
    async fn clone_to_stage(&self, from: &StoreKey, options: StageOptions) -> Result<Box<dyn Stage>>;

    /// Returns a digest that the storage keeps by itself. Never reads the file.
    ///
    /// - Another algorithm than those claimed is `Unsupported`.
    async fn checksum(&self, key: &StoreKey, algorithm: Algorithm) -> Result<Digest>;

    /// Returns how full the storage is.
    async fn usage(&self) -> Result<Usage>;
}

/// A listing, page by page.
#[async_trait]
pub trait ListStream: Send {
    /// Returns the next page, or nothing at the end. A page may have no entries.
    async fn next(&mut self) -> Result<Option<ListPage>>;
}

/// A read, piece by piece.
#[async_trait]
pub trait ReadStream: Send {
    /// Returns what the store knew of the file when it was opened.
    fn meta(&self) -> &Meta;

    /// Returns the bytes that will come: the range asked for, cut at the end of the file.
    fn range(&self) -> ByteRange;

    /// Returns the next piece, never an empty one, or nothing at the end.
    async fn next(&mut self) -> Result<Option<Bytes>>;

    /// Gives the read up, and returns where the bytes that have not come lie in an open file: for whoever hands them to the
    /// operating system without looking at them. Nothing where they can only be had by [`ReadStream::next`].
    ///
    /// - Behind it the stream is at its end.
    /// - Nobody looks any more whether the file is still the same: who receives the bytes compares them with what they should be.
    async fn take_file(&mut self) -> Option<FileRange>;
}

/// Bytes in an open file.
#[derive(Debug, Clone)]
pub struct FileRange {
    /// The file.
    pub file: Arc<OwnedFd>,
    /// Where in it they are.
    pub range: ByteRange,
}

/// A staged file that is being written. Dropping it leaves the bytes as they are, to be continued or discarded.
#[async_trait]
pub trait Stage: Debug + Send + Sync {
    /// Returns its token.
    fn token(&self) -> &StageToken;

    /// Returns its identity, the same that the published file will have, where identities are claimed.
    fn identity(&self) -> Option<&FileIdentity>;

    /// Returns how many bytes it has, or reaches to, where parts may be missing.
    async fn size(&self) -> Result<ByteCount>;

    /// Writes bytes at an offset.
    ///
    /// - Positioned: in any order, several at once; writing the same place again replaces it.
    /// - Otherwise: a write that does not begin where the last one ended is `Unsupported`.
    /// - A write behind the announced size is `InvalidInput`.
    /// - A full storage is `NoSpace`; what was written before stays.
    async fn write_at(&self, offset: u64, bytes: Bytes) -> Result<()>;

    /// Reads bytes that were written, cut at the end. Where positioned writes are not claimed, it is `Unsupported`.
    async fn read_at(&self, range: ByteRange) -> Result<Bytes>;

    /// Makes durable what was written so far, so that a marker may speak of it.
    ///
    /// - Where resumable writes are not claimed, it is `Unsupported`.
    async fn sync_progress(&self) -> Result<()>;

    /// Keeps a restart marker with the staged file, in place of the last one, atomically and durably.
    ///
    /// - Where resumable writes are not claimed, it is `Unsupported`.
    async fn write_marker(&self, marker: Bytes) -> Result<()>;

    /// Returns the last restart marker.
    async fn read_marker(&self) -> Result<Option<Bytes>>;

    /// Ends the writing; the file can be published then.
    ///
    /// - If a size was announced and the file has less, `Incomplete`; it stays staged.
    async fn finish(self: Box<Self>) -> Result<Staged>;
}
