//! Reading a file, with the next pieces fetched while one is used.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use percale_core::ByteRange;
use rustix::fs::{Advice, Statx};
use rustix::io::Errno;
use tokio::task::JoinHandle;

use super::config::Layout;
use super::root::{Fingerprint, Root, meta, path_error, statx_fd};
use crate::error::refuse_stage;
use crate::{Error, ErrorKind, FileRange, Meta, Operation, ReadOptions, ReadStream, Result, StoreKey};

/// Pieces fetched ahead of the one that is used. Two keep a disk or the page cache busy while the network sends; a slow
/// reader holds them as memory, not as threads.
const AHEAD: usize = 2;

pub(super) struct Reader {
    source: Arc<Source>,
    meta: Meta,
    range: ByteRange,
    piece: u64,
    /// Where the next piece to be fetched begins.
    next: u64,
    first: Option<Bytes>,
    ahead: VecDeque<JoinHandle<Result<Bytes>>>,
    failed: bool,
}

struct Source {
    file: Arc<OwnedFd>,
    key: StoreKey,
    layout: Layout,
    opened: Fingerprint,
}

/// Reads a file, or a part of it, that is one piece.
pub(super) fn small(root: &Root, key: StoreKey, options: &ReadOptions) -> Result<Bytes> {
    refuse_stage(Operation::Read, &key)?;
    let mut reader = Reader::open(root, key, options)?;
    if reader.range.len() > reader.piece {
        return Err(Error::too_much(&reader.source.key, reader.range.len(), reader.piece));
    }
    Ok(reader.first.take().unwrap_or_default())
}

impl Reader {
    /// Opens the file, and reads it if it is one piece: a small file costs one hop to a blocking thread.
    pub(super) fn open(root: &Root, key: StoreKey, options: &ReadOptions) -> Result<Self> {
        let (file, stat) = root.open_file(&key, Operation::Read)?;
        Self::of(file, &stat, key, root.layout(), options)
    }

    /// Reads an open file whole.
    pub(super) fn back(file: OwnedFd, key: StoreKey, layout: Layout) -> Result<Self> {
        let stat = statx_fd(&file).map_err(|errno| path_error(Operation::ReadBack, errno).on(&key))?;
        Self::of(file, &stat, key, layout, &ReadOptions::default())
    }

    fn of(file: OwnedFd, stat: &Statx, key: StoreKey, layout: Layout, options: &ReadOptions) -> Result<Self> {
        let meta = meta(stat);
        if options.if_generation.is_some() && options.if_generation != meta.generation {
            return Err(Error::new(ErrorKind::Changed, Operation::Read).on(&key));
        }
        let range = options.resolve(meta.size);
        let piece = options.piece_len() as u64;
        if range.len() > piece {
            // Only advice: without it the read is right as well.
            let _ = rustix::fs::fadvise(
                &file,
                range.start(),
                std::num::NonZeroU64::new(range.len()),
                Advice::Sequential,
            );
        }
        let opened = Fingerprint::of(layout, stat);
        let source = Source { file: Arc::new(file), key, layout, opened };
        let mut reader = Self {
            source: Arc::new(source),
            meta,
            range,
            piece,
            next: range.start(),
            first: None,
            ahead: VecDeque::with_capacity(AHEAD),
            failed: false,
        };
        if reader.range.len() <= reader.piece
            && let Some(first) = reader.take_next()
        {
            reader.first = Some(reader.source.fetch(first)?);
        }
        Ok(reader)
    }

    fn take_next(&mut self) -> Option<ByteRange> {
        let left = self.range.end() - self.next;
        let piece = ByteRange::at(self.next, left.min(self.piece));
        self.next = piece.end();
        (!piece.is_empty()).then_some(piece)
    }
}

impl Source {
    /// Reads a piece, then compares the file with what it was when it was opened: a piece is handed out only if nothing
    /// had changed after it was read.
    fn fetch(&self, range: ByteRange) -> Result<Bytes> {
        let fail = |errno: Errno| path_error(Operation::Read, errno).on(&self.key);
        let changed = || Error::new(ErrorKind::Changed, Operation::Read).on(&self.key);
        let len = range.len() as usize;
        let mut bytes: Vec<u8> = Vec::with_capacity(len);
        while bytes.len() < len {
            let offset = range.start() + bytes.len() as u64;
            match rustix::io::pread(&self.file, rustix::buffer::spare_capacity(&mut bytes), offset) {
                Ok(0) => return Err(changed()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(fail(errno)),
            }
        }
        // The allocator may have given more room than was asked for.
        bytes.truncate(len);
        let now = statx_fd(&self.file).map_err(fail)?;
        if Fingerprint::of(self.layout, &now) != self.opened {
            return Err(changed());
        }
        Ok(bytes.into())
    }
}

#[async_trait]
impl ReadStream for Reader {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn range(&self) -> ByteRange {
        self.range
    }

    async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.failed {
            return Err(Error::new(ErrorKind::Changed, Operation::Read)
                .on(&self.source.key)
                .detail("after a failure"));
        }
        while self.ahead.len() < AHEAD {
            let Some(piece) = self.take_next() else { break };
            let source = self.source.clone();
            self.ahead.push_back(tokio::task::spawn_blocking(move || source.fetch(piece)));
        }
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        // Left in the queue while it is awaited: a cancelled wait loses no piece.
        let Some(fetch) = self.ahead.front_mut() else { return Ok(None) };
        let fetched = fetch.await;
        self.ahead.pop_front();
        let piece = fetched
            .unwrap_or_else(|panic| Err(Error::new(ErrorKind::Other, Operation::Read).caused_by(panic)));
        self.failed = piece.is_err();
        piece.map(Some)
    }

    async fn take_file(&mut self) -> Option<FileRange> {
        // What is being fetched comes by `next`.
        if self.failed || self.first.is_some() || !self.ahead.is_empty() {
            return None;
        }
        let range = ByteRange::at(self.next, self.range.end() - self.next);
        self.next = self.range.end();
        (!range.is_empty()).then(|| FileRange { file: self.source.file.clone(), range })
    }
}
