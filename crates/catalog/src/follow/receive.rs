//! A snapshot on its way in. It is wholly received and checked, in a file without a name, before the transaction that
//! makes rows of it begins: a slow home must not hold up the one writer of a site.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::lines::{Head, Line, MAX_LINE, Reader};
use crate::error::{Error, ErrorKind, Result};

/// A snapshot that was received and checked.
#[derive(Debug, Clone)]
pub(super) struct Received {
    pub head: Head,
    file: Arc<File>,
}

/// Makes a file in a folder that nobody else can open and that is gone when it is closed.
fn nameless(folder: &Path) -> std::io::Result<File> {
    let path = folder.join(format!(".snapshot-{}", uuid::Uuid::new_v4()));
    let file = OpenOptions::new().create_new(true).read(true).write(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

fn io_error(folder: &Path, error: std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("cannot keep a snapshot in {} while it is received", folder.display()))
        .with_source(error)
}

/// Receives a snapshot to its end, which is that of the channel. Blocks.
///
/// # Errors
/// `DoesNotFit` if it is cut, altered, or no snapshot; `Unsupported` for a newer form; `NoSpace`, `Unavailable`.
pub(super) fn receive(mut pieces: mpsc::Receiver<Bytes>, folder: &Path) -> Result<Received> {
    let mut file = nameless(folder).map_err(|error| io_error(folder, error))?;
    let mut reader = Reader::new();
    let mut head = None;
    let mut begun: Vec<u8> = Vec::new();
    while let Some(piece) = pieces.blocking_recv() {
        file.write_all(&piece).map_err(|error| io_error(folder, error))?;
        let mut rest: &[u8] = &piece;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, behind) = rest.split_at(end);
            rest = behind.get(1..).unwrap_or_default();
            begun.extend_from_slice(line);
            if begun.len() > MAX_LINE {
                return Err(too_long(&reader));
            }
            if let Line::Snapshot(found) = reader.line(&begun)? {
                head = Some(found);
            }
            begun.clear();
        }
        begun.extend_from_slice(rest);
        if begun.len() > MAX_LINE {
            return Err(too_long(&reader));
        }
    }
    match head {
        Some(head) if reader.is_done() && begun.is_empty() => Ok(Received { head, file: Arc::new(file) }),
        _ => Err(reader.wrong("the snapshot is cut")),
    }
}

fn too_long(reader: &Reader) -> Error {
    reader.wrong(&format!("it has more than {MAX_LINE} bytes"))
}

/// The file from its beginning; each reader has a place of its own.
struct FromStart {
    file: Arc<File>,
    at: u64,
}

impl Read for FromStart {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Received {
    /// Reads the lines behind the head in parts of at most `count`, on a thread of its own. It ends when all is read or
    /// nobody listens.
    pub fn parts(&self, count: usize) -> mpsc::Receiver<Result<Vec<Line>>> {
        let (sender, parts) = mpsc::channel(2);
        let from = FromStart { file: self.file.clone(), at: 0 };
        std::thread::spawn(move || {
            let mut lines = BufReader::with_capacity(1 << 18, from).split(b'\n').skip(1);
            loop {
                let part: Result<Vec<Line>> = lines.by_ref().take(count).map(read_again).collect();
                let has_failed = part.is_err();
                let is_empty = part.as_ref().is_ok_and(Vec::is_empty);
                if is_empty || sender.blocking_send(part).is_err() || has_failed {
                    return;
                }
            }
        });
        parts
    }
}

/// Reads a line that was checked before.
fn read_again(line: std::io::Result<Vec<u8>>) -> Result<Line> {
    let wrong = || Error::internal("a snapshot cannot be read again after it was received");
    let line = line.map_err(|error| wrong().with_source(error))?;
    serde_json::from_slice(&line).map_err(|error| wrong().with_source(error))
}
