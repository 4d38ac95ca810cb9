//! What one stream brings, verified and written, one object after the other.

use std::collections::BTreeMap;

use percale_core::tree::{GroupHash, HashTree, group_count, hash_group};
use percale_core::{ByteCount, ErrorCode};
use percale_mover::{DataFrame, Frame};
use tokio::sync::mpsc;

use super::super::Wanted;
use super::{Failures, Means, Open};
use crate::error::{Error, ErrorKind};
use crate::local::PartFile;
use crate::progress::Progress;
use crate::pull::{parse_item, parse_problem};

/// What became of the objects of a stream, but for those that have come.
#[derive(Default)]
pub struct Written {
    pub failures: Failures,
    /// Those that did not come to their end.
    pub left: Vec<Wanted>,
    /// Those that are elsewhere, by the number of their place.
    pub away: BTreeMap<u64, Vec<Wanted>>,
    /// What is wrong with the stream as a whole.
    pub fault: Option<Error>,
}

/// Takes the frames of one stream.
pub struct Writer<'a> {
    open: &'a Open,
    means: &'a Means,
    written: Written,
    current: Option<Current>,
}

/// The object that the stream is at.
struct Current {
    item: u32,
    wanted: Wanted,
    /// Opened once there is something to write.
    file: Option<PartFile>,
    hashes: Vec<GroupHash>,
    moved: u64,
}

impl Current {
    fn operation(&self) -> String {
        format!("get {}", self.wanted.path)
    }

    fn file(&mut self) -> Result<&PartFile, Error> {
        Ok(match &mut self.file {
            Some(file) => file,
            file => file.insert(PartFile::open(&self.wanted.local, self.wanted.content.size)?),
        })
    }

    /// Leaves nothing of it.
    fn discard(self, progress: &Progress) -> Wanted {
        progress.retract(self.moved);
        if let Some(file) = self.file {
            file.discard();
        }
        self.wanted
    }

    /// Data of a group, in their order.
    fn write(&mut self, data: &DataFrame) -> Result<(), Error> {
        // Its groups come in order, from the first; the whole is compared with the root at the end.
        if data.size.0 != self.wanted.content.size || data.group() != self.hashes.len() as u64 {
            let detail = "the site sent other groups than were asked for";
            return Err(Error::new(ErrorKind::Protocol, ErrorCode::Internal, self.operation(), detail));
        }
        data.verify().map_err(|error| {
            Error::new(ErrorKind::Integrity, ErrorCode::Integrity, self.operation(), error.to_string())
        })?;
        self.file()?.write(data.offset, &data.bytes)?;
        self.hashes.push(data.hash);
        self.moved += data.bytes.len() as u64;
        Ok(())
    }

    /// Compares the whole with what is wanted, and has it appear at its path.
    fn publish(&mut self) -> Result<(), Error> {
        self.file()?;
        let size = ByteCount(self.wanted.content.size);
        let mut hashes = std::mem::take(&mut self.hashes);
        if hashes.is_empty() && size.0 == 0 && group_count(size) == 1 {
            hashes.push(hash_group(size, 0, &[]));
        }
        let problem = match (HashTree::from_groups(size, hashes), self.wanted.content.root) {
            (Err(error), _) => Some(error.to_string()),
            (Ok(tree), Some(root)) if tree.root() != root => {
                Some(format!("what came has the hash {}, and the version has {root}", tree.root()))
            }
            (Ok(_), _) => None,
        };
        if let Some(detail) = problem {
            return Err(Error::new(ErrorKind::Integrity, ErrorCode::Integrity, self.operation(), detail));
        }
        match self.file.take() {
            Some(file) => file.publish(&self.wanted.content, self.wanted.replaces, false),
            None => Ok(()),
        }
    }
}

impl<'a> Writer<'a> {
    /// Writes what is open.
    pub fn new(open: &'a Open, means: &'a Means) -> Self {
        Self { open, means, written: Written::default(), current: None }
    }

    /// Takes all frames.
    pub fn run(mut self, mut queue: mpsc::Receiver<Frame>) -> Written {
        while let Some(frame) = queue.blocking_recv() {
            match frame {
                Frame::Item { item, info, .. } => {
                    self.leave();
                    match self.begin(item, &info) {
                        Ok(current) => self.current = current,
                        Err(fault) => self.written.fault = Some(fault),
                    }
                }
                Frame::Data(data) => self.write(&data),
                Frame::Done { item, .. } => {
                    if let Some(mut current) = self.take(item) {
                        let published = current.publish();
                        self.end(current, published);
                    }
                }
                Frame::Fail { item, problem } => {
                    if let Some(current) = self.take(item) {
                        let error = parse_problem(&current.operation(), &problem);
                        self.end(current, Err(error));
                    }
                }
                Frame::Away { item, place, .. } => {
                    if let Some(current) = self.take(item) {
                        let wanted = current.discard(&self.means.progress);
                        self.written.away.entry(place).or_default().push(wanted);
                    }
                }
                Frame::Error { .. } | Frame::End { .. } => {}
            }
        }
        self.leave();
        self.written
    }

    /// Gives up the object that the stream is at, if it is at one.
    fn leave(&mut self) {
        if let Some(current) = self.current.take() {
            self.written.left.push(current.discard(&self.means.progress));
        }
    }

    fn take(&mut self, item: u32) -> Option<Current> {
        self.current.take_if(|current| current.item == item)
    }

    fn end(&mut self, current: Current, outcome: Result<(), Error>) {
        match outcome {
            // Nobody listens any more if the get was stopped.
            Ok(()) => drop(self.means.done.send(current.wanted.done())),
            Err(error) => self.written.failures.push((current.discard(&self.means.progress), error)),
        }
    }

    /// Finds out which object is announced; nothing for one that is dealt with already.
    fn begin(&mut self, item: u32, info: &[u8]) -> Result<Option<Current>, Error> {
        let operation = "get objects";
        let pulled = parse_item(operation, info)?;
        let Some(wanted) = self.open.take(&pulled.path) else {
            let detail = format!("the site sent {}, which it was not asked for", pulled.path);
            return Err(Error::new(ErrorKind::Protocol, ErrorCode::Internal, operation, detail));
        };
        let current = Current { item, wanted, file: None, hashes: Vec::new(), moved: 0 };
        // Version 0 is none: the site says in the next frame why it cannot send it.
        if pulled.version.0 == 0 || pulled.version == current.wanted.content.version {
            return Ok(Some(current));
        }
        let detail = format!("version {} of {} was sent instead", pulled.version, pulled.path);
        let error = Error::new(ErrorKind::Protocol, ErrorCode::Internal, current.operation(), detail);
        self.end(current, Err(error));
        Ok(None)
    }

    /// Data of an object that failed already is passed over.
    fn write(&mut self, data: &DataFrame) {
        let Some(mut current) = self.take(data.item) else { return };
        match current.write(data) {
            Ok(()) => {
                self.means.progress.moved(data.bytes.len() as u64);
                self.current = Some(current);
            }
            error => self.end(current, error),
        }
    }
}
