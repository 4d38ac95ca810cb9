//! The process that reads headers: shut in, with two pipes to the server as its only way to anything.

use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use crate::frame::{Asked, HEAD, Hello, Kind, MAX_FRAME, Outcome, Range, What, head, read_head};
use crate::source::{File, Source};
use crate::{formats, sandbox};

/// Reads one file after the other, until the server ends it by closing the pipe.
///
/// # Errors
/// What is the matter with the pipes.
pub fn serve(input: impl Read + Send + 'static, output: impl Write + Send + 'static) -> io::Result<()> {
    let hello = Hello { open: sandbox::shut_in() };
    let pipes = Arc::new(Pipes(Mutex::new((Box::new(input), Box::new(output)))));
    pipes.send(Kind::Hello, &to_json(&hello)?)?;
    while let Some((kind, asked)) = pipes.receive()? {
        if kind != Kind::File {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let asked: Asked = serde_json::from_slice(&asked)?;
        let Some((Kind::Bytes, first)) = pipes.receive()? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let mut outcome = to_json(&read(&asked, first, pipes.clone()))?;
        if outcome.len() > MAX_FRAME {
            outcome =
                to_json(&Outcome::Unreadable("there is more to say of it than is said of a file".into()))?;
        }
        pipes.send(Kind::Done, &outcome)?;
    }
    Ok(())
}

fn to_json(value: &impl Serialize) -> io::Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(io::Error::from)
}

fn read(asked: &Asked, first: Vec<u8>, pipes: Arc<Pipes>) -> Outcome {
    let file = File::new(Arc::new(Remote { size: asked.size, first, pipes }));
    // What a reader of a format did not think of costs this file only.
    let read = || -> Result<Option<Outcome>, formats::Unreadable> {
        Ok(match asked.what {
            What::Header => formats::read(&file, &asked.name)?.map(|header| Outcome::Found(header.finish())),
            What::References => formats::references::read(&file)?.map(Outcome::References),
        })
    };
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(Some(outcome))) => outcome,
        Ok(Ok(None)) => Outcome::NoFormat,
        Ok(Err(error)) => Outcome::Unreadable(error.to_string()),
        Err(_) => Outcome::Unreadable("what reads this format has a fault with this file".into()),
    }
}

type Ends = (Box<dyn Read + Send>, Box<dyn Write + Send>);

struct Pipes(Mutex<Ends>);

impl Pipes {
    fn send(&self, kind: Kind, content: &[u8]) -> io::Result<()> {
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ends.1.write_all(&head(kind, content.len()))?;
        ends.1.write_all(content)?;
        ends.1.flush()
    }

    /// Receives the next frame; nothing at the end.
    fn receive(&self) -> io::Result<Option<(Kind, Vec<u8>)>> {
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut begin = [0; HEAD];
        match ends.0.read_exact(&mut begin) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let (kind, len) = read_head(begin).ok_or(io::ErrorKind::InvalidData)?;
        let mut content = vec![0; len];
        ends.0.read_exact(&mut content)?;
        Ok(Some((kind, content)))
    }
}

/// A file whose bytes the server reads.
struct Remote {
    size: u64,
    /// Its first bytes, which came without being asked for.
    first: Vec<u8>,
    pipes: Arc<Pipes>,
}

impl Source for Remote {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        if offset == 0
            && let Some(bytes) = self.first.get(..len)
        {
            return Ok(bytes.to_vec());
        }
        self.pipes.send(Kind::Want, &to_json(&Range { offset, len: len as u64 })?)?;
        match self.pipes.receive()? {
            Some((Kind::Bytes, bytes)) if bytes.len() == len => Ok(bytes),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}
