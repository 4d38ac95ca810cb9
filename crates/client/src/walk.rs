//! Walking a local tree and the collections it goes to, side by side.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use percale_api::entries::{Content, Entry, Kind};
use percale_core::{ErrorCode, ObjectPath};
use tokio::sync::mpsc;

use crate::client::Client;
use crate::control::ListOptions;
use crate::error::{Error, ErrorKind};
use crate::local::is_part_name;
use crate::upload::blocking;

/// Directories that are read at once.
const DIRECTORIES_AT_ONCE: usize = 8;

/// What a filter looks at.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Candidate<'a> {
    /// Path below the source's root, `/` between names.
    pub path: &'a str,
    /// Whether it is a directory or collection. One that is refused is not entered.
    pub is_directory: bool,
    /// Bytes; 0 for a directory.
    pub size: u64,
}

impl<'a> Candidate<'a> {
    /// Describes something to a filter.
    pub fn new(path: &'a str, is_directory: bool, size: u64) -> Self {
        Self { path, is_directory, size }
    }
}

/// Tells whether something is wanted.
pub type Filter = Arc<dyn Fn(Candidate<'_>) -> bool + Send + Sync>;

/// What the walk finds.
pub(crate) enum Found {
    File {
        local: PathBuf,
        target: ObjectPath,
        size: u64,
        /// What is at the target.
        existing: Option<Content>,
    },
    /// A directory with nothing in it that is wanted.
    EmptyDirectory {
        local: PathBuf,
        target: ObjectPath,
        exists: bool,
    },
    PassedOver {
        local: PathBuf,
        why: &'static str,
    },
    Failed {
        local: PathBuf,
        target: String,
        error: Error,
    },
}

#[derive(Debug, Clone)]
struct Directory {
    local: PathBuf,
    target: ObjectPath,
    /// Path below the root, without a slash at its end.
    below: String,
    /// Whether the collection may have entries already.
    may_exist: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum LocalKind {
    Directory,
    File(u64),
    Other(&'static str),
}

/// How symbolic links are treated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Links {
    /// They are passed over, and the report says so.
    #[default]
    PassOver,
    /// What they point at is taken instead. Links in circles end at the system's limit.
    Follow,
}

/// Walks `root` and sends what it finds, until nobody receives any more.
pub(crate) async fn walk(
    client: Client,
    root: PathBuf,
    target: ObjectPath,
    target_exists: bool,
    links: Links,
    filter: Option<Filter>,
    found: mpsc::Sender<Found>,
) {
    let walker = Walker { client, links, filter, found };
    let mut stack = vec![Directory { local: root, target, below: String::new(), may_exist: target_exists }];
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < DIRECTORIES_AT_ONCE
            && let Some(directory) = stack.pop()
        {
            running.push(walker.directory(directory));
        }
        match running.next().await {
            Some(Some(below)) => stack.extend(below),
            // Nobody receives.
            Some(None) => return,
            None => return,
        }
    }
}

struct Walker {
    client: Client,
    links: Links,
    filter: Option<Filter>,
    found: mpsc::Sender<Found>,
}

impl Walker {
    fn wants(&self, path: &str, is_directory: bool, size: u64) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter(Candidate { path, is_directory, size }))
    }

    /// Sends what is in a directory and returns the directories below it.
    async fn directory(&self, directory: Directory) -> Option<Vec<Directory>> {
        let links = self.links;
        let local = directory.local.clone();
        let names = blocking("list a local directory", move || read_directory(&local, links));
        let (names, existing) = tokio::join!(names, self.existing(&directory));
        let (names, existing) = match (names, existing) {
            (Ok(names), Ok(existing)) => (names, existing),
            (Err(error), _) | (_, Err(error)) => {
                let target = directory.target.to_string();
                self.found.send(Found::Failed { local: directory.local, target, error }).await.ok()?;
                return Some(Vec::new());
            }
        };
        let mut below = Vec::new();
        let mut is_empty = true;
        for (name, kind) in names {
            let local = directory.local.join(&name);
            let target = match name.to_str().map(|name| directory.target.join(name)) {
                Some(Ok(target)) => target,
                named => {
                    let detail = match named {
                        Some(Err(error)) => error.to_string(),
                        _ => "the name is not valid UTF-8".to_owned(),
                    };
                    let operation = format!("put {}", local.display());
                    let error = Error::new(ErrorKind::Usage, ErrorCode::InvalidPath, operation, detail);
                    let target = directory.target.to_string();
                    self.found.send(Found::Failed { local, target, error }).await.ok()?;
                    continue;
                }
            };
            let text = target.name().unwrap_or_default();
            let path = if directory.below.is_empty() {
                text.to_owned()
            } else {
                format!("{}/{text}", directory.below)
            };
            let there = existing.get(text);
            match kind {
                LocalKind::Directory if self.wants(&path, true, 0) => {
                    is_empty = false;
                    let may_exist = there.is_some_and(|entry| entry.kind == Kind::Collection);
                    below.push(Directory { local, target, below: path, may_exist });
                }
                LocalKind::File(_) if is_part_name(text) => {
                    let why = "the unfinished file of a download";
                    self.found.send(Found::PassedOver { local, why }).await.ok()?;
                }
                LocalKind::File(size) if self.wants(&path, false, size) => {
                    is_empty = false;
                    let found = match there {
                        Some(entry) if entry.kind == Kind::Link => {
                            Found::PassedOver { local, why: "there is a symbolic link of its name" }
                        }
                        Some(entry) if entry.kind == Kind::Collection => {
                            let operation = format!("put {target}");
                            let error = Error::new(
                                ErrorKind::Usage,
                                ErrorCode::IsCollection,
                                operation,
                                "a collection of that name is there",
                            );
                            Found::Failed { local, target: target.to_string(), error }
                        }
                        there => Found::File {
                            local,
                            size,
                            existing: there.and_then(|entry| entry.content.clone()),
                            target,
                        },
                    };
                    self.found.send(found).await.ok()?;
                }
                LocalKind::Other(why) => self.found.send(Found::PassedOver { local, why }).await.ok()?,
                LocalKind::Directory | LocalKind::File(_) => {}
            }
        }
        if is_empty {
            let Directory { local, target, may_exist, .. } = directory;
            self.found.send(Found::EmptyDirectory { local, target, exists: may_exist }).await.ok()?;
        }
        Some(below)
    }

    /// Lists what is in the collection that a directory goes to.
    async fn existing(&self, directory: &Directory) -> crate::Result<HashMap<String, Entry>> {
        let mut existing = HashMap::new();
        if !directory.may_exist {
            return Ok(existing);
        }
        let options = ListOptions { limit: Some(percale_api::MAX_PAGE), ..ListOptions::default() };
        let mut cursor = None;
        loop {
            let page = match self.client.list(&directory.target, options, cursor.as_deref()).await {
                Ok(page) => page,
                // Removed in the meantime.
                Err(error) if error.code() == ErrorCode::NotFound => return Ok(existing),
                Err(error) => return Err(error),
            };
            for entry in page.items {
                if let Some(name) = entry.path.name() {
                    existing.insert(name.to_owned(), entry);
                }
            }
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(existing),
            }
        }
    }
}

/// Lists a directory by name.
fn read_directory(path: &Path, links: Links) -> crate::Result<Vec<(std::ffi::OsString, LocalKind)>> {
    let cannot = |error| Error::local("list a local directory", path, error);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let kind = local_kind(&entry, links).map_err(|error| Error::local("look at", &entry.path(), error));
        // What vanished since the directory was read is not there.
        match kind {
            Ok(kind) => names.push((entry.file_name(), kind)),
            Err(error) if error.code() == ErrorCode::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    names.sort_unstable_by(|left, right| left.0.cmp(&right.0));
    Ok(names)
}

fn local_kind(entry: &std::fs::DirEntry, links: Links) -> std::io::Result<LocalKind> {
    let file_type = entry.file_type()?;
    let metadata = if file_type.is_symlink() {
        if links == Links::PassOver {
            return Ok(LocalKind::Other("a symbolic link"));
        }
        match std::fs::metadata(entry.path()) {
            Ok(metadata) => metadata,
            Err(_) => return Ok(LocalKind::Other("a symbolic link that leads nowhere")),
        }
    } else {
        entry.metadata()?
    };
    Ok(if metadata.is_dir() {
        LocalKind::Directory
    } else if metadata.is_file() {
        LocalKind::File(metadata.len())
    } else {
        LocalKind::Other("neither a file nor a directory")
    })
}
