//! What is staged and where it belongs, so that a mount that was killed goes on: the next process of the same session publishes what
//! programs had written.
//!
//! One JSON object in each line, appended as it happens. A line that was cut by the death of the process is the last one, and is passed
//! over. The file is small again after each start.

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use percale_core::ObjectPath;
use percale_core::ids::{LeaseId, StoreId};
use rustix::io::Errno;
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

impl Line {
    fn staged(token: &str, left: &Left) -> Self {
        let Left { path, store, key } = left.clone();
        Self::Staged { token: token.into(), store, path, key }
    }
}

/// The log.
#[derive(Debug)]
pub struct Log {
    lines: Mutex<Lines>,
    /// Held as long as this process is there.
    _lock: Lock,
}

/// The file, and what could not be written to it yet: the disk was full. It is written with what comes next.
#[derive(Debug)]
struct Lines {
    file: File,
    unwritten: Vec<u8>,
}

impl Lines {
    fn flush(&mut self) -> std::io::Result<()> {
        while !self.unwritten.is_empty() {
            match self.file.write(&self.unwritten) {
                Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
                Ok(len) => drop(self.unwritten.drain(..len)),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Says that a state directory is this process's alone, for as long as it lives.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "closing it gives it up")] File);

/// Takes a state directory for this process on this host. It is made if it is missing.
///
/// # Errors
/// Another process has it; what the file system answers.
pub fn lock(dir: &Path, host: &str) -> Result<Lock> {
    let path = dir.join("lock");
    let failed = |error| Error::local(format!("cannot lock {}", path.display()), error);
    std::fs::create_dir_all(dir).map_err(failed)?;
    let mut options = File::options();
    let mut file = options.read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::Error(error)) if has_no_locks(&error) => tracing::warn!(
            dir = %dir.display(), %error,
            "the file system of the state directory has no locks; nothing but you sees to it that no other mount uses it"
        ),
        Err(TryLockError::Error(error)) => return Err(failed(error)),
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // Whoever took it just now has not said who it is.
            let _ = file.read_to_string(&mut holder);
            let holder = if holder.is_empty() { "unknown" } else { holder.trim() };
            return Err(Error::Usage(format!(
                "another mount, process {holder}, has its state in {}: mount there when it has ended, or name another directory with --state-dir",
                dir.display()
            )));
        }
    }
    file.set_len(0).and_then(|()| writeln!(file, "{} on {host}", std::process::id())).map_err(failed)?;
    Ok(Lock(file))
}

/// Tells whether a file could not be locked since there are no locks where it is, as on some network file systems.
fn has_no_locks(error: &std::io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| matches!(errno, Errno::NOSYS | Errno::NOLCK | Errno::OPNOTSUPP))
}

/// What an earlier process left.
#[derive(Debug, Default)]
pub struct Before {
    /// Its session.
    pub session: Option<LeaseId>,
    /// What was not published: the names of the staged files, and where they belong. In the order in which that was last noted, which is
    /// that in which they are to be published: of two that belong at one path, the later one is what programs saw last.
    pub left: Vec<(Box<str>, Left)>,
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
    let mut session = None;
    let mut left = HashMap::new();
    for (at, line) in text.lines().enumerate() {
        match serde_json::from_str(line) {
            Ok(Line::Session { id, .. }) => {
                session = Some(id);
                left.clear();
            }
            Ok(Line::Staged { token, store, path, key }) => {
                drop(left.insert(token, (at, Left { path, store, key })));
            }
            Ok(Line::Done { token }) => drop(left.remove(&token)),
            Err(error) => tracing::debug!(%error, "a line of the log of a mount is not whole"),
        }
    }
    let mut left: Vec<_> = left.into_iter().collect();
    left.sort_unstable_by_key(|(_, (at, _))| *at);
    Ok(Before { session, left: left.into_iter().map(|(token, (_, left))| (token, left)).collect() })
}

/// Notes beside the log what a session that is over had not published, since it may still lie somewhere. Returns where that is noted.
///
/// # Errors
/// What the file system answers.
pub fn put_aside(dir: &Path, session: LeaseId, lost: &[(Box<str>, Left)]) -> Result<PathBuf> {
    let aside = dir.join(format!("staged.jsonl-{session}"));
    write(&aside, session, lost)
        .map_err(|error| Error::local(format!("cannot write {}", aside.display()), error))?;
    Ok(aside)
}

/// Makes a log anew, durably, and returns the file.
fn write(path: &Path, session: LeaseId, left: &[(Box<str>, Left)]) -> std::io::Result<File> {
    let staged = left.iter().map(|(token, left)| Line::staged(token, left));
    let mut text = Vec::new();
    for line in std::iter::once(Line::Session { v: 1, id: session }).chain(staged) {
        serde_json::to_writer(&mut text, &line)?;
        text.push(b'\n');
    }
    let mut file = File::create(path)?;
    file.write_all(&text)?;
    file.sync_all()?;
    Ok(file)
}

impl Log {
    /// Begins the log of a session anew, with what is still to be published of it.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn begin((dir, lock): (&Path, Lock), session: LeaseId, left: &[(Box<str>, Left)]) -> Result<Self> {
        let (path, new) = (path_in(dir), dir.join("staged.jsonl-new"));
        let failed = |error| Error::local(format!("cannot write {}", path.display()), error);
        // It takes the place of one that may be all that tells what was written.
        let file = write(&new, session, left).map_err(failed)?;
        std::fs::rename(&new, &path).map_err(failed)?;
        Ok(Self { lines: Mutex::new(Lines { file, unwritten: Vec::new() }), _lock: lock })
    }

    /// Notes a file that programs write, and where it belongs.
    pub fn staged(&self, token: &str, left: &Left) {
        self.append(&Line::staged(token, left));
    }

    /// Notes that a staged file was published, or is not wanted any more.
    pub fn done(&self, token: &str) {
        self.append(&Line::Done { token: token.into() });
    }

    /// Makes what was noted up to now durable.
    ///
    /// # Errors
    /// What the file system answers, also to what was to be written before.
    pub fn sync(&self) -> std::io::Result<()> {
        let file = {
            let mut lines = self.lines();
            lines.flush()?;
            lines.file.try_clone()?
        };
        file.sync_data()
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn append(&self, line: &Line) {
        let Ok(text) = serde_json::to_vec(line) else { return };
        let mut lines = self.lines();
        lines.unwritten.extend(text);
        lines.unwritten.push(b'\n');
        if let Err(error) = lines.flush() {
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

    fn begin(dir: &Path, session: LeaseId) -> Log {
        Log::begin((dir, lock(dir, "host").unwrap()), session, &[]).unwrap()
    }

    #[test]
    fn a_state_directory_is_of_one_process() {
        let dir = tempfile::tempdir().unwrap();
        let log = begin(dir.path(), LeaseId::new());
        let refused = lock(dir.path(), "other").unwrap_err().to_string();
        assert!(refused.contains(&format!("{} on host", std::process::id())), "{refused}");
        drop(log);
        lock(dir.path(), "other").unwrap();
    }

    #[test]
    fn where_there_are_no_locks_a_mount_goes_on_without() {
        let error = |errno: Errno| std::io::Error::from(errno);
        assert!([Errno::NOSYS, Errno::NOLCK, Errno::OPNOTSUPP].map(error).iter().all(has_no_locks));
        assert!(!has_no_locks(&error(Errno::IO)));
    }

    #[test]
    fn what_could_not_be_noted_is_told_and_noted_later() {
        let dir = tempfile::tempdir().unwrap();
        let log = begin(dir.path(), LeaseId::new());
        let full = File::options().write(true).open("/dev/full").unwrap();
        let file = std::mem::replace(&mut log.lines().file, full);
        log.staged("1", &left("/lab/a"));
        assert_eq!(log.sync().unwrap_err().kind(), std::io::ErrorKind::StorageFull);
        log.lines().file = file;
        log.staged("2", &left("/lab/b"));
        log.sync().unwrap();
        assert_eq!(read(dir.path()).unwrap().left.len(), 2);
    }

    #[test]
    fn what_was_not_published_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let session = LeaseId::new();
        let log = begin(dir.path(), session);
        log.staged("1", &left("/lab/a"));
        log.staged("2", &left("/lab/a"));
        log.staged("2", &left("/lab/b"));
        log.done("1");
        let before = read(dir.path()).unwrap();
        assert_eq!(before.session, Some(session));
        assert_eq!(before.left, [("2".into(), left("/lab/b"))]);
    }

    #[test]
    fn what_is_left_is_found_in_the_order_in_which_it_was_noted() {
        let dir = tempfile::tempdir().unwrap();
        let session = LeaseId::new();
        let log = begin(dir.path(), session);
        // As earlier releases named them, which did not sort.
        for (token, path) in [("a-f", "/lab/a"), ("a-10", "/lab/a"), ("a-0", "/lab/b"), ("a-f", "/lab/c")] {
            log.staged(token, &left(path));
        }
        drop(log);
        let wanted =
            [("a-10".into(), left("/lab/a")), ("a-0".into(), left("/lab/b")), ("a-f".into(), left("/lab/c"))];
        let before = read(dir.path()).unwrap();
        assert_eq!(before.left, wanted);
        drop(Log::begin((dir.path(), lock(dir.path(), "host").unwrap()), session, &before.left).unwrap());
        assert_eq!(read(dir.path()).unwrap().left, wanted, "the log that is begun with it has it, too");
        put_aside(dir.path(), session, &before.left).unwrap();
        let aside = std::fs::read_to_string(dir.path().join(format!("staged.jsonl-{session}"))).unwrap();
        assert_eq!(aside, std::fs::read_to_string(path_in(dir.path())).unwrap());
    }

    #[test]
    fn a_line_that_was_cut_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let log = begin(dir.path(), LeaseId::new());
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
