//! Bytes of a file, wherever it lies.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex, PoisonError};

use crate::frame::BLOCK;

/// Blocks that are kept.
const MAX_BLOCKS: usize = 512;

/// Bytes of a file.
pub trait Source: Send + Sync {
    /// Returns how many there are.
    fn size(&self) -> u64;

    /// Reads a range, which lies within the file.
    ///
    /// # Errors
    /// What prevents it.
    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>>;
}

impl Source for Vec<u8> {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let range = self.get(from..from.saturating_add(len));
        range.map(Self::from).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

#[derive(Default)]
struct Blocks {
    blocks: HashMap<u64, Arc<Vec<u8>>>,
    /// In the order in which they came.
    order: VecDeque<u64>,
}

/// A file whose blocks are kept for a while.
#[derive(Clone)]
pub struct File {
    source: Arc<dyn Source>,
    blocks: Arc<Mutex<Blocks>>,
}

impl File {
    /// Opens a file.
    pub fn new(source: Arc<dyn Source>) -> Self {
        Self { source, blocks: Arc::default() }
    }

    /// Returns how many bytes it has.
    pub fn size(&self) -> u64 {
        self.source.size()
    }

    /// Reads a range.
    ///
    /// # Errors
    /// `UnexpectedEof` if it is not within the file; what prevents reading it.
    pub fn range(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let end = offset.checked_add(len as u64).filter(|end| *end <= self.size());
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        if len as u64 > BLOCK {
            return self.source.read(offset, len);
        }
        let mut bytes = Vec::with_capacity(len);
        let mut at = offset;
        while at < end {
            let block = self.block(at / BLOCK)?;
            let from = (at % BLOCK) as usize;
            let to = block.len().min(from + (end - at) as usize);
            let part = block.get(from..to).filter(|part| !part.is_empty());
            let part = part.ok_or(io::ErrorKind::UnexpectedEof)?;
            bytes.extend_from_slice(part);
            at += part.len() as u64;
        }
        Ok(bytes)
    }

    /// Reads the first bytes, or all if there are fewer.
    ///
    /// # Errors
    /// What prevents it.
    pub fn beginning(&self, len: usize) -> io::Result<Vec<u8>> {
        self.range(0, len.min(usize::try_from(self.size()).unwrap_or(usize::MAX)))
    }

    fn block(&self, number: u64) -> io::Result<Arc<Vec<u8>>> {
        let mut kept = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(block) = kept.blocks.get(&number) {
            return Ok(block.clone());
        }
        let from = number * BLOCK;
        let len = BLOCK.min(self.size().saturating_sub(from));
        let block = Arc::new(self.source.read(from, len as usize)?);
        if kept.order.len() >= MAX_BLOCKS
            && let Some(oldest) = kept.order.pop_front()
        {
            kept.blocks.remove(&oldest);
        }
        kept.order.push_back(number);
        kept.blocks.insert(number, block.clone());
        Ok(block)
    }

    /// Reads it from the beginning on.
    pub fn reader(&self) -> Reader {
        self.reader_at(0)
    }

    /// Reads it from some place on.
    pub fn reader_at(&self, at: u64) -> Reader {
        Reader { file: self.clone(), at }
    }
}

/// Reads a file from some place on.
pub struct Reader {
    file: File,
    at: u64,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.file.size().saturating_sub(self.at);
        let len = buffer.len().min(BLOCK as usize).min(usize::try_from(left).unwrap_or(usize::MAX));
        let bytes = self.file.range(self.at, len)?;
        if let Some(buffer) = buffer.get_mut(..len) {
            buffer.copy_from_slice(&bytes);
        }
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for Reader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.file.size().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counted {
        bytes: Vec<u8>,
        reads: Mutex<Vec<(u64, usize)>>,
    }

    impl Source for Counted {
        fn size(&self) -> u64 {
            self.bytes.len() as u64
        }

        fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
            self.reads.lock().unwrap().push((offset, len));
            self.bytes.read(offset, len)
        }
    }

    #[test]
    fn ranges_are_read_once_and_whole() {
        let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        let counted = Arc::new(Counted { bytes: bytes.clone(), reads: Mutex::default() });
        let file = File::new(counted.clone());
        assert_eq!(file.range(1_048_570, 12).unwrap(), bytes[1_048_570..1_048_582]);
        assert_eq!(file.range(0, 8).unwrap(), bytes[..8]);
        assert_eq!(file.range(2_999_990, 10).unwrap(), bytes[2_999_990..]);
        let reads = [(983_040, 65_536), (1_048_576, 65_536), (0, 65_536), (2_949_120, 50_880)];
        assert_eq!(*counted.reads.lock().unwrap(), reads);
        assert!(file.range(2_999_999, 2).is_err());
        assert!(file.range(u64::MAX, 2).is_err());
        assert_eq!(file.range(10, 2_000_000).unwrap(), bytes[10..2_000_010]);
        let mut all = Vec::new();
        file.reader().read_to_end(&mut all).unwrap();
        assert_eq!(all, bytes);
        let mut reader = file.reader();
        reader.seek(SeekFrom::End(-2)).unwrap();
        assert_eq!(reader.read(&mut [0; 9]).unwrap(), 2);
    }
}
