//! Listing a directory tree: a collection before what is in it, names in byte order.

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
use super::root::{Root, meta, path_error, statx_at};
use crate::{
    Entry, Error, ErrorKind, Kind, ListOptions, ListPage, ListStream, Meta, Operation, RESERVED, Result,
    StoreKey,
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
    names: VecDeque<String>,
    unnameable: Vec<String>,
    /// The components of `after` from this directory on, if the walk shall continue there.
    after: Vec<String>,
}

impl Walker {
    pub(super) fn new(root: &Root, options: ListOptions) -> Result<Self> {
        let prefix = options.prefix.clone();
        let shows_reserved = options.reserved || prefix.as_ref().is_some_and(StoreKey::is_reserved);
        let mut after: Vec<String> = Vec::new();
        if let Some(last) = &options.after {
            let skipped = prefix.as_ref().map_or(0, |prefix| prefix.components().count());
            let is_below = prefix.as_ref().is_none_or(|prefix| last.is_within(prefix) && last != prefix);
            if !is_below {
                return Err(Error::new(ErrorKind::InvalidInput, Operation::List)
                    .on(last)
                    .detail("the key to continue after is not in the collection"));
            }
            after = last.components().skip(skipped).map(str::to_owned).collect();
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
            let after = frame.continues_in(&name);
            let Some(key) = frame.child(&name, &mut page.skipped) else { continue };
            if (key.is_reserved() && !self.shows_reserved) || key.is_stage() {
                continue;
            }
            let meta = match frame.look(root, &key, &name) {
                Ok(Some(meta)) => meta,
                Ok(None) => continue,
                Err(errno) => {
                    page.skipped.push(format!("{key}: {}", std::io::Error::from(errno)));
                    continue;
                }
            };
            let kind = meta.kind;
            if after.is_none() {
                page.entries.push(Entry { key: key.clone(), meta });
            }
            if kind == Kind::Collection && self.options.recursive {
                self.descend(root, key, after.unwrap_or_default(), &mut page.skipped);
            }
        }
        (!page.entries.is_empty() || !page.skipped.is_empty()).then_some(page)
    }

    fn descend(&mut self, root: &Root, key: StoreKey, after: Vec<String>, skipped: &mut Vec<String>) {
        match Frame::open(root, Some(key.clone()), after) {
            Ok(frame) => self.frames.push(frame),
            // Gone again.
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            // A link to a collection counts as one, but is not followed: links may form circles.
            Err(Errno::LOOP) => {}
            Err(errno) => skipped.push(format!("{key}: {}", std::io::Error::from(errno))),
        }
        let far = self.frames.len().checked_sub(OPEN_DIRS + 1);
        if let Some(frame) = far.and_then(|far| self.frames.get_mut(far)) {
            frame.dir = None;
        }
    }
}

impl Frame {
    fn open(root: &Root, key: Option<StoreKey>, after: Vec<String>) -> rustix::io::Result<Self> {
        let dir = root.open_dir(key.as_ref().map(StoreKey::as_str))?;
        let mut names = Vec::new();
        let mut unnameable = Vec::new();
        let shown = |name: &str| match &key {
            Some(key) => format!("{key}/{name}"),
            None => name.to_owned(),
        };
        for entry in rustix::fs::Dir::read_from(&dir)? {
            let entry = entry?;
            match entry.file_name().to_str() {
                Ok("." | "..") => {}
                // Those before the place to continue at were in an earlier page.
                Ok(name) if after.first().is_some_and(|first| name < first.as_str()) => {}
                Ok(name) => names.push(name.to_owned()),
                Err(_) => {
                    let name = entry.file_name().to_string_lossy();
                    unnameable.push(format!("{}: name is not valid UTF-8", shown(&name)));
                }
            }
        }
        names.sort_unstable();
        Ok(Self { key, dir: Some(dir), names: names.into(), unnameable, after })
    }

    /// If the walk is to be continued at or below this name, returns the rest of the way.
    fn continues_in(&mut self, name: &str) -> Option<Vec<String>> {
        if self.after.first().is_none_or(|first| first != name) {
            return None;
        }
        let mut rest = std::mem::take(&mut self.after);
        rest.remove(0);
        Some(rest)
    }

    fn child(&self, name: &str, skipped: &mut Vec<String>) -> Option<StoreKey> {
        let child = match &self.key {
            Some(key) => key.join(name),
            None => StoreKey::parse(name),
        };
        match child {
            Ok(child) => Some(child),
            Err(error) => {
                let within = self.key.as_ref().map_or("", StoreKey::as_str);
                skipped.push(format!("{within}/{name}: {error}"));
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
                let mut meta = meta(&stat);
                if root.layout() == Layout::Native && key.components().next() != Some(RESERVED) {
                    meta = root.stat(key).unwrap_or(meta);
                    // See `descend`.
                    if meta.kind == Kind::Collection {
                        meta.kind = Kind::Other;
                    }
                }
                Ok(Some(meta))
            }
            Ok(stat) => Ok(Some(meta(&stat))),
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
