//! Programs of the site's own that read the headers of formats that nobody else knows (docs/search.md).

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use bytes::Bytes;
use futures::future::BoxFuture;
use globset::{Glob, GlobMatcher};
use percale_core::{AttributeValue, ByteRange, ErrorCode};
use percale_discovery::header::Header;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process_group, prlimit};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

use crate::config::ExtractorConfig;
use crate::{ApiError, Result};

/// Most bytes of its output that are read, as much as attributes of one object may have, with room for how they are written.
const MAX_OUTPUT: u64 = 16 << 20;
/// Bytes of what it says that are kept in case it fails, the last ones.
const COMPLAINT: usize = 4096;
/// Most memory that it may take.
const MEMORY: u64 = 4 << 30;
/// Bytes of a file that are read at once.
const PIECE: u64 = 4 << 20;

/// A program, for files whose names match.
pub(super) struct Program {
    names: GlobMatcher,
    config: ExtractorConfig,
}

/// A line of its output.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    name: String,
    #[serde(default)]
    value: Option<Word>,
    #[serde(default)]
    values: Vec<Word>,
}

/// A value as JSON has it; a time is `{"time": "2024-06-01T12:00:00Z"}`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Word {
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    Typed(AttributeValue),
}

impl From<Word> for AttributeValue {
    fn from(word: Word) -> Self {
        match word {
            Word::Bool(is_so) => Self::Bool(is_so),
            Word::Integer(number) => Self::Integer(number),
            Word::Float(number) => Self::Float(percale_core::attribute::Float(number)),
            Word::Text(text) => Self::Text(text),
            Word::Typed(value) => value,
        }
    }
}

impl Program {
    /// Takes a program as the configuration has it, which was validated.
    pub fn new(config: &ExtractorConfig) -> Option<Self> {
        Some(Self { names: Glob::new(&config.files).ok()?.compile_matcher(), config: config.clone() })
    }

    /// Tells whether it is for files of this name.
    pub fn is_for(&self, name: &str) -> bool {
        self.names.is_match(name)
    }

    /// Has it read the beginning of a file, and adds what it finds; or why it finds nothing.
    ///
    /// # Errors
    /// That of `read`, and if the site cannot run anything.
    pub async fn read(
        &self,
        name: &str,
        size: u64,
        read: &(impl Fn(ByteRange) -> BoxFuture<'static, Result<Bytes>> + Send + Sync),
        header: &mut Header,
    ) -> Result<()> {
        let cannot = |error: io::Error| {
            let detail = format!("the program for {} cannot be given a file: {error}", self.config.files);
            ApiError::new(ErrorCode::StoreUnavailable, detail)
        };
        let folder = tempfile::Builder::new().prefix("percale-header-").tempdir().map_err(cannot)?;
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o700)).map_err(cannot)?;
        let path = folder.path().join(name);
        let mut file = tokio::fs::File::create(&path).await.map_err(cannot)?;
        let end = size.min(self.config.head_bytes);
        let mut at = 0;
        while at < end {
            let piece = read(ByteRange::at(at, PIECE.min(end - at))).await?;
            file.write_all(&piece).await.map_err(cannot)?;
            at += piece.len() as u64;
        }
        file.flush().await.map_err(cannot)?;
        drop(file);
        if let Err(why) = self.run(&path, folder.path(), header).await {
            header.fail(&format!("{}: {why}", self.config.command.join(" ")));
        }
        Ok(())
    }

    /// Runs it. The error is said in words.
    async fn run(&self, path: &Path, folder: &Path, header: &mut Header) -> std::result::Result<(), String> {
        let Some((program, arguments)) = self.config.command.split_first() else { return Ok(()) };
        let mut command = Command::new(program);
        command.args(arguments).arg(path).current_dir(folder).env_clear();
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("LANG", "C.UTF-8").env("TMPDIR", folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        let child = command.spawn().map_err(|error| format!("cannot be started: {error}"))?;
        let mut child = Group::of(child);
        if let Some(pid) = child.leader {
            let limit = Rlimit { current: Some(MEMORY), maximum: Some(MEMORY) };
            let _ = prlimit(Some(pid), Resource::As, limit);
        }
        let seconds = self.config.timeout;
        match tokio::time::timeout(seconds, child.finish()).await {
            Ok(Ok(output)) => take(&output, header),
            Ok(Err(why)) => Err(why),
            Err(_) => Err(format!("did not end within {} s", seconds.as_secs())),
        }
    }
}

/// A process with those that it started, which end with it.
struct Group {
    child: Child,
    leader: Option<Pid>,
}

impl Group {
    fn of(child: Child) -> Self {
        let leader = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        Self { child, leader }
    }

    /// Waits for its end, and returns what it printed.
    async fn finish(&mut self) -> std::result::Result<Vec<u8>, String> {
        let (out, err) = (self.child.stdout.take(), self.child.stderr.take());
        let (out, err) = tokio::join!(beginning(out), end(err));
        if out.len() as u64 > MAX_OUTPUT {
            return Err(format!("prints more than {} MiB", MAX_OUTPUT >> 20));
        }
        let status = self.child.wait().await.map_err(|error| error.to_string())?;
        if status.success() {
            return Ok(out);
        }
        let said = String::from_utf8_lossy(&err);
        // The last line is where Python says what was wrong.
        let why = said.trim().lines().last().unwrap_or_default().to_owned();
        Err(if why.is_empty() { status.to_string() } else { why })
    }
}

/// Reads as much as is taken, and a byte more of what is too much.
async fn beginning(from: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        let _ = from.take(MAX_OUTPUT + 1).read_to_end(&mut bytes).await;
    }
    bytes
}

/// Reads everything, since what complains much must not wait for room in the pipe, and keeps the end of it.
async fn end(from: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(mut from) = from else { return kept };
    while from.read_buf(&mut kept).await.is_ok_and(|read| read > 0) {
        kept.drain(..kept.len().saturating_sub(COMPLAINT));
    }
    kept
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(pid) = self.leader {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

/// Takes what it printed: an attribute in each line.
fn take(output: &[u8], header: &mut Header) -> std::result::Result<(), String> {
    for (number, line) in output.split(|byte| *byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let Line { name, value, values } = serde_json::from_slice(line)
            .map_err(|error| format!("line {} of its output cannot be read: {error}", number + 1))?;
        header.add(&name, value.into_iter().chain(values).map(AttributeValue::from));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(output: &str) -> std::result::Result<Vec<String>, String> {
        let mut header = Header::default();
        take(output.as_bytes(), &mut header)?;
        let show = |value: &AttributeValue| format!("{value} ({})", value.type_name());
        let found = header.finish().into_iter();
        Ok(found
            .map(|one| format!("{}={}", one.name, one.values.iter().map(show).collect::<String>()))
            .collect())
    }

    #[test]
    fn each_line_is_an_attribute() {
        let output = r#"{"name": "rate", "value": 4}
            {"name": "units", "values": ["ms", 0.5, true]}

            {"name": "taken", "value": {"time": "2024-06-01T12:00:00Z"}}
            {"name": "empty"}"#;
        let wanted = [
            "rate=4 (integer)",
            "units=ms (text)0.5 (float)true (bool)",
            "taken=2024-06-01T12:00:00Z (time)",
            "empty= (text)",
        ];
        assert_eq!(found(output).unwrap(), wanted);
        for wrong in [
            "rate 4",
            r#"{"value": 4}"#,
            r#"{"name": "a", "value": [1]}"#,
            r#"{"name": "a", "colour": 1}"#,
            "{} ",
        ] {
            assert!(found(wrong).unwrap_err().starts_with("line 1 of its output"), "{wrong}");
        }
    }
}
