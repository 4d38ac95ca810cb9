//! What is staged and where it belongs, so that a mount that was killed goes on: the next process of the same session publishes what
//! programs had written.
//!
//! One JSON object in each line, appended as it happens. A line that was cut by the death of the process is the last one, and is passed
//! over. The file is small again after each start.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use percale_core::ObjectPath;
use percale_core::ids::{LeaseId, StoreId};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// What was staged and not published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Where it belongs.
    pub path: ObjectPath,
    /// The store; nothing for the spool.
    pub store: Option<StoreId>,
    /// Where it lies in the store, if it was written in place.
    pub key: Option<Box<str>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// The session that all that follows is of.
    Session { v: u32, id: LeaseId },
    /// A file is staged, or belongs elsewhere now.
    Staged {
        token: Box<str>,
        store: Option<StoreId>,
        path: ObjectPath,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<Box<str>>,
    },
    /// A file was published or is not wanted any more.
    Done { token: Box<str> },
}

/// The log.
#[derive(Debug)]
pub struct Log {
    file: Mutex<File>,
}

/// What an earlier process left.
#[derive(Debug, Default)]
pub struct Before {
    /// Its session.
    pub session: Option<LeaseId>,
    /// What was not published, by the names of the staged files.
    pub left: BTreeMap<Box<str>, Left>,
}

fn path_in(dir: &Path) -> PathBuf {
    dir.join("staged.jsonl")
}

/// Reads what an earlier process left in a directory.
///
/// # Errors
/// The file is there and cannot be read.
pub fn read(dir: &Path) -> Result<Before> {
    let path = path_in(dir);
    let mut text = String::new();
    match File::open(&path).and_then(|mut file| file.read_to_string(&mut text)) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Before::default()),
        Err(error) => return Err(Error::local(format!("cannot read {}", path.display()), error)),
    }
    let mut before = Before::default();
    for line in text.lines() {
        match serde_json::from_str(line) {
            Ok(Line::Session { id, .. }) => before = Before { session: Some(id), left: BTreeMap::new() },
            Ok(Line::Staged { token, store, path, key }) => {
                drop(before.left.insert(token, Left { path, store, key }));
            }
            Ok(Line::Done { token }) => drop(before.left.remove(&token)),
            Err(error) => tracing::debug!(%error, "a line of the log of a mount is not whole"),
        }
    }
    Ok(before)
}

impl Log {
    /// Begins the log of a session anew, with what is still to be published of it.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn begin(dir: &Path, session: LeaseId, left: &BTreeMap<Box<str>, Left>) -> Result<Self> {
        let (path, new) = (path_in(dir), dir.join("staged.jsonl-new"));
        let failed = |error| Error::local(format!("cannot write {}", path.display()), error);
        std::fs::create_dir_all(dir).map_err(failed)?;
        let file = File::create(&new).map_err(failed)?;
        let log = Self { file: Mutex::new(file) };
        log.append(&Line::Session { v: 1, id: session });
        for (token, left) in left {
            log.staged(token, left);
        }
        std::fs::rename(&new, &path).map_err(failed)?;
        Ok(log)
    }

    /// Notes a file that programs write, and where it belongs.
    pub fn staged(&self, token: &str, left: &Left) {
        let Left { path, store, key } = left.clone();
        self.append(&Line::Staged { token: token.into(), store, path, key });
    }

    /// Notes that a staged file was published, or is not wanted any more.
    pub fn done(&self, token: &str) {
        self.append(&Line::Done { token: token.into() });
    }

    /// Makes what was noted up to now durable.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn sync(&self) -> std::io::Result<()> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner).try_clone()?;
        file.sync_data()
    }

    fn append(&self, line: &Line) {
        let Ok(mut text) = serde_json::to_vec(line) else { return };
        text.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = file.write_all(&text) {
            tracing::error!(%error, "cannot note what is staged; if this process is killed now, what was written last is not published");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(path: &str) -> Left {
        Left { path: path.parse().unwrap(), store: None, key: None }
    }

    #[test]
    fn what_was_not_published_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let session = LeaseId::new();
        let log = Log::begin(dir.path(), session, &BTreeMap::new()).unwrap();
        log.staged("1", &left("/lab/a"));
        log.staged("2", &left("/lab/a"));
        log.staged("2", &left("/lab/b"));
        log.done("1");
        let before = read(dir.path()).unwrap();
        assert_eq!(before.session, Some(session));
        assert_eq!(before.left.keys().map(|token| &**token).collect::<Vec<_>>(), ["2"]);
        assert_eq!(before.left["2"].path.as_str(), "/lab/b");
    }

    #[test]
    fn a_line_that_was_cut_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::begin(dir.path(), LeaseId::new(), &BTreeMap::new()).unwrap();
        log.staged("1", &left("/lab/a"));
        let path = path_in(dir.path());
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&text[..], b"{\"done\":{\"tok"].concat()).unwrap();
        assert_eq!(read(dir.path()).unwrap().left.len(), 1);
    }

    #[test]
    fn nothing_before_is_no_error() {
        let before = read(tempfile::tempdir().unwrap().path()).unwrap();
        assert!(before.session.is_none() && before.left.is_empty());
    }
}
