//! Bytes of a version, group by group, from one copy after the other.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use percale_core::ByteRange;
use percale_core::ids::SiteId;
use percale_core::tree::{GROUP_SIZE, group_range};
use percale_store::{FileRange, ReadStream};

use super::{Copy, Reader, Source};
use crate::error::{ApiError, Result};

/// Whole groups of one copy, in order.
pub(super) enum Groups {
    Store(Box<dyn ReadStream>),
    Site(Box<percale_client::read::Reader>),
}

/// Bytes of a version, each group verified. Where a copy fails, the next one goes on. Ends early, with an error, before the
/// first wrong byte.
pub struct VerifiedRead {
    reader: Arc<Reader>,
    source: Arc<Source>,
    /// The copy that is read, by its number.
    copy: usize,
    groups: Option<Groups>,
    wanted: ByteRange,
    at: u64,
    end: u64,
    pending: BytesMut,
    is_compared: bool,
}

/// A whole group: verified, unless nobody hashed the version yet or the receiver does it ([`VerifiedRead::leave_to_receiver`]).
#[derive(Debug, Clone)]
pub struct Piece {
    /// Where it begins in the content.
    pub offset: u64,
    /// Its bytes.
    pub bytes: Bytes,
}

impl VerifiedRead {
    pub(super) async fn begin(reader: Arc<Reader>, source: Arc<Source>, wanted: ByteRange) -> Result<Self> {
        // Whole groups, since only those can be verified.
        let covering = wanted.align_out(GROUP_SIZE, source.version.size);
        let (at, end) = (covering.start(), covering.end());
        let pending = BytesMut::new();
        let mut read =
            Self { reader, source, copy: 0, groups: None, wanted, at, end, pending, is_compared: true };
        read.open().await?;
        Ok(read)
    }

    /// Hands bytes out without comparing them: for whoever has the version's tree, and does that itself.
    pub fn leave_to_receiver(&mut self) {
        self.is_compared = false;
    }

    /// Returns where the groups lie that have not come, if they can be had from a file of this host and whoever receives them compares
    /// them. Nothing comes any more then. Otherwise nothing, and they come by [`VerifiedRead::next_piece`].
    pub async fn take_file(&mut self) -> Option<FileRange> {
        let may = !self.is_compared && self.source.tree.is_some() && self.pending.is_empty();
        let Some(Groups::Store(stream)) = self.groups.as_mut().filter(|_| may) else { return None };
        let taken = stream.take_file().await?;
        self.at = self.end;
        Some(taken)
    }

    /// Opens the present copy, or the next that can be opened.
    async fn open(&mut self) -> Result<()> {
        let rest = ByteRange::at(self.at, self.end.saturating_sub(self.at));
        loop {
            let Some(copy) = self.source.copies.get(self.copy) else {
                return Err(ApiError::internal("a version without copies was opened"));
            };
            match self.reader.open(&self.source, copy, rest).await {
                Ok(groups) => {
                    self.groups = Some(groups);
                    return Ok(());
                }
                Err(error) if self.copy + 1 >= self.source.copies.len() => return Err(error),
                Err(_) => self.copy += 1,
            }
        }
    }

    /// Goes on with the next copy, or ends with the error of this one.
    async fn fail_over(&mut self, error: ApiError) -> Result<()> {
        self.copy += 1;
        self.groups = None;
        self.pending.clear();
        if self.copy >= self.source.copies.len() {
            return Err(error);
        }
        let path = &self.source.version.path;
        tracing::warn!(%path, %error, "the next copy goes on where this one failed");
        self.open().await
    }

    /// Returns the next piece of what was asked for, or nothing at the end.
    ///
    /// # Errors
    /// `Integrity` for damage, `VersionChanged` for a native file that changed, or what the last copy answers.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        let Some(Piece { offset, bytes }) = self.next_piece().await? else { return Ok(None) };
        let have = ByteRange::at(offset, bytes.len() as u64);
        let Some(part) = have.intersect(self.wanted) else { return Ok(None) };
        let start = (part.start() - offset) as usize;
        Ok(Some(bytes.slice(start..start + part.len() as usize)))
    }

    /// Returns the site whose copy is read; nothing if it is one of this site.
    pub fn site(&self) -> Option<SiteId> {
        self.source.copies.get(self.copy).and_then(Copy::site)
    }

    /// Returns the next whole group of those that cover what was asked for.
    ///
    /// # Errors
    /// As [`VerifiedRead::next`].
    pub async fn next_piece(&mut self) -> Result<Option<Piece>> {
        let group = self.at / GROUP_SIZE;
        let len = group_range(self.source.version.size, group).len() as usize;
        if len == 0 {
            return Ok(None);
        }
        loop {
            let bytes = match self.whole(len).await {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return Ok(None),
                Err(error) => {
                    self.fail_over(error).await?;
                    continue;
                }
            };
            let tree = self.source.tree.as_ref().filter(|_| self.is_compared);
            if tree.is_some_and(|tree| tree.verify(group, &bytes).is_err()) {
                let error = match self.source.copies.get(self.copy) {
                    Some(copy) => {
                        self.reader.found_wrong(&self.source, copy, &format!("group {group}")).await
                    }
                    None => ApiError::internal("a copy is gone while it is read"),
                };
                self.fail_over(error).await?;
                continue;
            }
            let offset = self.at;
            self.at += len as u64;
            return Ok(Some(Piece { offset, bytes }));
        }
    }

    /// Collects exactly `len` bytes; copies only if the store gives other pieces than groups.
    async fn whole(&mut self, len: usize) -> Result<Option<Bytes>> {
        loop {
            if self.pending.len() >= len {
                return Ok(Some(self.pending.split_to(len).freeze()));
            }
            match self.read().await? {
                Some(bytes) if self.pending.is_empty() && bytes.len() == len => return Ok(Some(bytes)),
                Some(bytes) => self.pending.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
    }

    async fn read(&mut self) -> Result<Option<Bytes>> {
        match (self.groups.as_mut(), self.source.copies.get(self.copy)) {
            (Some(groups), Some(copy)) => self.reader.next_of(&self.source, copy, groups).await,
            _ => Ok(None),
        }
    }
}
