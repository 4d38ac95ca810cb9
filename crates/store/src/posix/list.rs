//! Listing a directory tree, in the byte order of whole keys.
//!
//! In that order `a`, `a.b` and `a/x` follow each other: what is in a collection comes behind the entries beside it whose
//! names go on with a byte below the slash. So a directory is in the queue twice, as `a` and, once it is known to be one, as
//! `a/`, from where the walk goes down.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use async_trait::async_trait;
use rustix::fs::FileType;
use rustix::io::Errno;
use tokio::task::JoinHandle;

use super::Inner;
use super::account::Executor;
use super::config::Layout;
use super::root::{Root, listed_meta, path_error, statx_at};
use crate::{
    Entry, Error, ErrorKind, Kind, ListOptions, ListPage, ListStream, Meta, Operation, RESERVED, Result,
    Skipped, StoreKey,
};

/// Directories kept open; those above them are opened again when the walk comes back.
const OPEN_DIRS: usize = 64;

/// A place in the walk. Holds the names of the directories on its way, so its memory grows with the largest of them.
pub(super) struct Walker {
    options: ListOptions,
    shows_reserved: bool,
    frames: Vec<Frame>,
}

struct Frame {
    key: Option<StoreKey>,
    dir: Option<OwnedFd>,
    /// In order; what ends with a slash is a directory to go down to.
    names: VecDeque<Box<str>>,
    unnameable: Vec<Skipped>,
    /// What of `after` lies below this directory, if the walk shall continue there.
    after: Option<String>,
}

impl Walker {
    pub(super) fn new(root: &Root, options: ListOptions) -> Result<Self> {
        let prefix = options.prefix.clone();
        let shows_reserved = options.reserved || prefix.as_ref().is_some_and(StoreKey::is_reserved);
        let mut after = None;
        if let Some(last) = &options.after {
            let below = match &prefix {
                Some(prefix) => {
                    last.as_str().strip_prefix(prefix.as_str()).and_then(|rest| rest.strip_prefix('/'))
                }
                None => Some(last.as_str()),
            };
            let Some(below) = below else {
                return Err(Error::new(ErrorKind::InvalidInput, Operation::List)
                    .on(last)
                    .detail("the key to continue after is not in the collection"));
            };
            after = Some(below.to_owned());
        }
        let first = Frame::open(root, prefix.clone(), after).map_err(|errno| {
            let error = path_error(Operation::List, errno);
            match &prefix {
                Some(prefix) => error.on(prefix),
                None => error,
            }
        })?;
        Ok(Self { options, shows_reserved, frames: vec![first] })
    }

    /// Returns the next page, or nothing when the walk is over.
    fn page(&mut self, root: &Root) -> Option<ListPage> {
        let mut page = ListPage::default();
        let full = self.options.page_size.max(1);
        while page.entries.len() < full && page.skipped.len() < full {
            let Some(frame) = self.frames.last_mut() else { break };
            page.skipped.append(&mut frame.unnameable);
            let Some(name) = frame.names.pop_front() else {
                self.frames.pop();
                continue;
            };
            if let Some(name) = name.strip_suffix('/') {
                let after = frame.after_below(name);
                if let Some(key) = frame.child(name, &mut page.skipped) {
                    self.descend(root, key, after, &mut page.skipped);
                }
                continue;
            }
            let Some(key) = frame.child(&name, &mut page.skipped) else { continue };
            if (key.is_reserved() && !self.shows_reserved) || key.is_stage() {
                continue;
            }
            let meta = match frame.look(root, &key, &name) {
                Ok(Some(meta)) => meta,
                Ok(None) => continue,
                Err(errno) => {
                    page.skipped.push(skipped(key.as_str(), errno));
                    continue;
                }
            };
            if meta.kind == Kind::Collection && self.options.recursive {
                frame.will_descend(&name);
            }
            if frame.after.as_deref().is_none_or(|after| &*name > after) {
                page.entries.push(Entry { key, meta });
            }
        }
        (!page.entries.is_empty() || !page.skipped.is_empty()).then_some(page)
    }

    fn descend(&mut self, root: &Root, key: StoreKey, after: Option<String>, shown: &mut Vec<Skipped>) {
        match Frame::open(root, Some(key.clone()), after) {
            Ok(frame) => self.frames.push(frame),
            // Gone again.
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            // A link to a collection counts as one, but is not followed: links may form circles.
            Err(Errno::LOOP) => {}
            Err(errno) => shown.push(skipped(key.as_str(), errno)),
        }
        let far = self.frames.len().checked_sub(OPEN_DIRS + 1);
        if let Some(frame) = far.and_then(|far| self.frames.get_mut(far)) {
            frame.dir = None;
        }
    }
}

/// What is told of a path that cannot be looked at.
fn skipped(path: &str, errno: Errno) -> Skipped {
    let kind = path_error(Operation::List, errno).kind();
    Skipped { path: path.to_owned(), kind, reason: std::io::Error::from(errno).to_string() }
}

impl Frame {
    fn open(root: &Root, key: Option<StoreKey>, after: Option<String>) -> rustix::io::Result<Self> {
        let dir = root.open_dir(key.as_ref().map(StoreKey::as_str))?;
        let mut names: Vec<Box<str>> = Vec::new();
        let mut unnameable = Vec::new();
        let is_behind = |name: &str| {
            // One that `after` begins with may be a directory from which the walk goes on.
            after.as_deref().is_none_or(|after| name > after || after.starts_with(name))
        };
        for entry in rustix::fs::Dir::read_from(&dir)? {
            let entry = entry?;
            match entry.file_name().to_str() {
                Ok("." | "..") => {}
                Ok(name) if is_behind(name) => names.push(name.into()),
                Ok(_) => {}
                Err(_) => {
                    let name = entry.file_name().to_string_lossy();
                    unnameable.push(Skipped {
                        path: key.as_ref().map_or(name.to_string(), |key| format!("{key}/{name}")),
                        kind: ErrorKind::InvalidKey,
                        reason: "its name is not UTF-8 (EILSEQ)".into(),
                    });
                }
            }
        }
        names.sort_unstable();
        Ok(Self { key, dir: Some(dir), names: names.into(), unnameable, after })
    }

    /// Returns what of `after` lies below a directory in this one.
    fn after_below(&self, name: &str) -> Option<String> {
        let below = self.after.as_deref()?.strip_prefix(name)?.strip_prefix('/')?;
        Some(below.to_owned())
    }

    /// Goes down to a directory when its turn comes, unless all in it lies before the place to continue at.
    fn will_descend(&mut self, name: &str) {
        let below = format!("{name}/");
        if self.after.as_deref().is_none_or(|after| *below > *after || after.starts_with(&below)) {
            let at = self.names.partition_point(|other| **other < *below);
            self.names.insert(at, below.into());
        }
    }

    fn child(&self, name: &str, skipped: &mut Vec<Skipped>) -> Option<StoreKey> {
        let child = match &self.key {
            Some(key) => key.join(name),
            None => StoreKey::parse(name),
        };
        match child {
            Ok(child) => Some(child),
            Err(error) => {
                let within = self.key.as_ref().map_or("", StoreKey::as_str);
                let (path, reason) = (format!("{within}/{name}"), error.to_string());
                skipped.push(Skipped { path, kind: ErrorKind::InvalidKey, reason });
                None
            }
        }
    }

    /// Looks at an entry; nothing if it is gone.
    fn look(&mut self, root: &Root, key: &StoreKey, name: &str) -> rustix::io::Result<Option<Meta>> {
        let dir = match self.dir.take() {
            Some(dir) => dir,
            None => root.open_dir(self.key.as_ref().map(StoreKey::as_str))?,
        };
        let stat = statx_at(self.dir.insert(dir), name);
        match stat {
            Ok(stat) if FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Symlink => {
                let mut meta = listed_meta(&stat);
                if root.layout() == Layout::Native && key.components().next() != Some(RESERVED) {
                    meta = root.stat(key).unwrap_or(meta);
                    // See `descend`.
                    if meta.kind == Kind::Collection {
                        meta.kind = Kind::Other;
                    }
                }
                Ok(Some(meta))
            }
            Ok(stat) => Ok(Some(listed_meta(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// A walk, with the next page made while one is used.
pub(super) struct Lister {
    inner: Arc<Inner>,
    executor: Executor,
    state: State,
}

enum State {
    Idle(Walker),
    Working(JoinHandle<Result<(Walker, Option<ListPage>)>>),
    Done,
}

impl Lister {
    pub(super) fn new(inner: Arc<Inner>, executor: Executor, walker: Walker) -> Self {
        Self { inner, executor, state: State::Idle(walker) }
    }

    fn begin(&self, mut walker: Walker) -> State {
        let (inner, executor) = (self.inner.clone(), self.executor.clone());
        State::Working(tokio::spawn(async move {
            executor
                .run(Operation::List, move || {
                    let page = walker.page(&inner.root);
                    Ok((walker, page))
                })
                .await
        }))
    }
}

#[async_trait]
impl ListStream for Lister {
    async fn next(&mut self) -> Result<Option<ListPage>> {
        self.state = match std::mem::replace(&mut self.state, State::Done) {
            State::Idle(walker) => self.begin(walker),
            other => other,
        };
        // Left in place while it is awaited: a cancelled wait loses no page.
        let State::Working(work) = &mut self.state else { return Ok(None) };
        let done = work.await;
        self.state = State::Done;
        let panicked = |panic| Err(Error::new(ErrorKind::Other, Operation::List).caused_by(panic));
        let (walker, page) = done.unwrap_or_else(panicked)?;
        if page.is_some() {
            self.state = self.begin(walker);
        }
        Ok(page)
    }
}
