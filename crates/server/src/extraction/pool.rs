//! The processes that read headers, as the server has them: some at once, each for one file after the other.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::BoxFuture;
use percale_core::ByteRange;
use percale_discovery::frame::{Asked, BLOCK, HEAD, Hello, Kind, Outcome, Range, What, head, read_head};
use percale_discovery::recognise::format_of;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Semaphore;

use crate::{ApiError, Result};

/// How long a process may take with one file, and to take what it is sent, without what it waits for the bytes of the file.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long one range of a file may be.
const MAX_RANGE: u64 = 64 << 20;
/// Most bytes of one file that are read.
const MAX_READ: u64 = 512 << 20;
/// Files after which a process is replaced, so that nothing that it lost along the way adds up.
const MOST_FILES: u32 = 1000;

/// What is the matter with a process, not with a file.
#[derive(Debug)]
struct Broken(String);

impl From<std::io::Error> for Broken {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<serde_json::Error> for Broken {
    fn from(error: serde_json::Error) -> Self {
        Self(error.to_string())
    }
}

/// Why a process has no outcome for a file.
enum Ended {
    /// The bytes of the file cannot be read.
    Source(ApiError),
    /// The file takes more than a file may.
    File(String),
    /// The process ended, or does not keep to what was agreed.
    Broken(Broken),
}

impl<E: Into<Broken>> From<E> for Ended {
    fn from(error: E) -> Self {
        Self::Broken(error.into())
    }
}

/// Processes that read headers.
pub(super) struct Pool {
    program: PathBuf,
    patience: Duration,
    room: Semaphore,
    idle: Mutex<Vec<Process>>,
}

impl Pool {
    /// Starts none yet. `program` is what is run, with the argument `read-headers`.
    pub fn new(program: PathBuf, at_once: usize) -> Self {
        Self { program, patience: PATIENCE, room: Semaphore::new(at_once), idle: Mutex::default() }
    }

    /// Reads the header of a file, whose bytes `read` gives.
    ///
    /// # Errors
    /// That of `read`. What a file does to its process is an outcome of the file.
    pub async fn read(
        &self,
        asked: &Asked,
        read: &(impl Fn(ByteRange) -> BoxFuture<'static, Result<Bytes>> + Send + Sync),
    ) -> Result<Outcome> {
        let closed = |_| ApiError::internal("headers are not read any more");
        // While others are read.
        let first = match asked.size {
            0 => Bytes::new(),
            size => read(ByteRange::at(0, size.min(BLOCK))).await?,
        };
        // The way to a process and back costs more than this look.
        if asked.what == What::Header && format_of(&asked.name, &first).is_none() {
            return Ok(Outcome::NoFormat);
        }
        let _room = self.room.acquire().await.map_err(closed)?;
        let mut why = String::new();
        // What ends a process may be meant for it and not for the file: it must happen twice.
        for is_first in [true, false] {
            match self.once((asked, &first), read, is_first).await? {
                Ok(outcome) => return Ok(outcome),
                Err(broken) => why = broken.0,
            }
        }
        tracing::warn!(name = asked.name, why, "what reads headers ended at a file");
        Ok(Outcome::Unreadable(format!("the process that reads headers ended at it ({why})")))
    }

    /// Takes a process that waits for a file and did not end meanwhile.
    fn idle(&self) -> Option<Process> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut process = idle.pop()?;
            if matches!(process.child.try_wait(), Ok(None)) {
                return Some(process);
            }
        }
    }

    async fn once(
        &self,
        asked: (&Asked, &Bytes),
        read: &(impl Fn(ByteRange) -> BoxFuture<'static, Result<Bytes>> + Send + Sync),
        may_be_used: bool,
    ) -> Result<std::result::Result<Outcome, Broken>> {
        let idle = if may_be_used { self.idle() } else { None };
        let mut process = match idle {
            Some(process) => process,
            None => Process::start(&self.program).await?,
        };
        // A process that is not put back is killed when it is dropped.
        match process.read(asked, read, self.patience).await {
            Ok(outcome) => {
                process.files += 1;
                if process.files < MOST_FILES {
                    self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(process);
                }
                Ok(Ok(outcome))
            }
            Err(Ended::Source(error)) => Err(error),
            Err(Ended::File(why)) => Ok(Ok(Outcome::Unreadable(why))),
            Err(Ended::Broken(Broken(why))) => {
                let ended = tokio::time::timeout(Duration::from_secs(1), process.child.wait()).await;
                let why = ended.ok().and_then(std::io::Result::ok).map_or(why, |status| status.to_string());
                Ok(Err(Broken(why)))
            }
        }
    }
}

struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    files: u32,
}

impl Process {
    async fn start(program: &PathBuf) -> Result<Self> {
        let cannot = |error: String| {
            let detail = format!("cannot run {} to read headers: {error}", program.display());
            ApiError::internal(detail)
        };
        let mut command = Command::new(program);
        // Nothing of the server's environment is its business.
        command.arg("read-headers").env_clear();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| cannot(error.to_string()))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or_else(|| cannot("it has no pipes".into()))?;
        let mut process = Self { child, input, output: BufReader::new(output), files: 0 };
        let hello = tokio::time::timeout(PATIENCE, process.receive()).await;
        let hello: Hello = match hello {
            Ok(Ok((Kind::Hello, hello))) => parse(&hello).map_err(|Broken(why)| cannot(why))?,
            Ok(Ok(_)) => return Err(cannot("it says something else".into())),
            Ok(Err(Broken(why))) => return Err(cannot(why)),
            Err(_) => return Err(cannot("it does not answer".into())),
        };
        for open in hello.open {
            tracing::warn!(open, "what reads headers is not shut in as it should be");
        }
        Ok(process)
    }

    async fn send(&mut self, kind: Kind, content: &[u8]) -> std::result::Result<(), Broken> {
        let mut frame = Vec::with_capacity(HEAD + content.len());
        frame.extend_from_slice(&head(kind, content.len()));
        frame.extend_from_slice(content);
        self.input.write_all(&frame).await?;
        Ok(self.input.flush().await?)
    }

    async fn receive(&mut self) -> std::result::Result<(Kind, Vec<u8>), Broken> {
        let mut begin = [0; HEAD];
        self.output.read_exact(&mut begin).await?;
        let (kind, len) = read_head(begin).ok_or_else(|| Broken("it sent what is no frame".into()))?;
        let mut content = vec![0; len];
        self.output.read_exact(&mut content).await?;
        Ok((kind, content))
    }

    async fn read(
        &mut self,
        (asked, first): (&Asked, &Bytes),
        read: &(impl Fn(ByteRange) -> BoxFuture<'static, Result<Bytes>> + Send + Sync),
        patience: Duration,
    ) -> std::result::Result<Outcome, Ended> {
        let mut time = Left(patience);
        // One that takes nothing is at fault itself: the file has done nothing yet.
        let takes_nothing = || Broken("it does not take what it is sent".into());
        let asked_for = serde_json::to_vec(asked)?;
        let sent = async {
            self.send(Kind::File, &asked_for).await?;
            self.send(Kind::Bytes, first).await
        };
        time.within(sent).await.ok_or_else(takes_nothing)??;
        let mut bytes = MAX_READ;
        loop {
            let answer = time.within(self.receive()).await;
            let seconds = patience.as_secs();
            match answer
                .ok_or_else(|| Ended::File(format!("its header was not read within {seconds} s")))??
            {
                (Kind::Done, outcome) => return Ok(parse(&outcome)?),
                (Kind::Want, range) => {
                    let Range { offset, len } = parse(&range)?;
                    let end = offset.checked_add(len).filter(|end| *end <= asked.size && len <= MAX_RANGE);
                    if end.is_none() {
                        return Err(Broken("it asked for bytes that the file does not have".into()).into());
                    }
                    bytes = bytes.checked_sub(len).ok_or_else(|| {
                        Ended::File(format!("its header is spread over more than {} MiB", MAX_READ >> 20))
                    })?;
                    let bytes = read(ByteRange::at(offset, len)).await.map_err(Ended::Source)?;
                    time.within(self.send(Kind::Bytes, &bytes)).await.ok_or_else(takes_nothing)??;
                }
                _ => return Err(Broken("it answered something else".into()).into()),
            }
        }
    }
}

/// What is left of the time that a process may take with a file.
struct Left(Duration);

impl Left {
    /// Waits for a step, and counts how long that takes. Nothing if there is not so much time.
    async fn within<T>(&mut self, step: impl Future<Output = T>) -> Option<T> {
        let began = Instant::now();
        let done = tokio::time::timeout(self.0, step).await.ok();
        self.0 = self.0.saturating_sub(began.elapsed());
        done
    }
}

fn parse<T: DeserializeOwned>(content: &[u8]) -> std::result::Result<T, Broken> {
    Ok(serde_json::from_slice(content)?)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use futures::FutureExt as _;

    use super::*;

    /// What says hello and reads nothing more, but for when it is started the second time: then it takes what comes and answers.
    const PROGRAM: &str = r#"#!/bin/sh
printf 'H\013\000\000\000{"open":[]}'
if mkdir "$0.started"; then exec sleep 1000; fi
head -c 65541 >/dev/null
printf 'D\013\000\000\000"no_format"'
"#;

    #[tokio::test]
    async fn a_process_that_takes_nothing_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("reader");
        std::fs::write(&program, PROGRAM).unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        let pool = Pool { patience: Duration::from_secs(2), ..Pool::new(program, 1) };
        let read = |range: ByteRange| {
            let mut bytes = vec![0; range.len() as usize];
            bytes[..8].copy_from_slice(b"\x89HDF\r\n\x1a\n");
            let bytes = Bytes::from(bytes);
            async move { Ok(bytes) }.boxed()
        };
        // More than a pipe takes while nobody reads it.
        let asked = Asked { name: "x.h5".into(), size: 2 * BLOCK, what: What::Header };
        let outcome = tokio::time::timeout(Duration::from_secs(30), pool.read(&asked, &read)).await;
        assert_eq!(outcome.expect("an end").unwrap(), Outcome::NoFormat);
    }
}
