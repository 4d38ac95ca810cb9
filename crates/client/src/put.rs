//! Local files and trees into the fabric.
//!
//! Small files travel in batches, large ones in uploads that can be taken up again; both at the same time and over the
//! same few streams. What is there already with the same content is not sent. What is there with another content is only
//! replaced where that was asked for, and then only if it is still the version that was seen.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use percale_api::entries::Kind;
use percale_core::{ErrorCode, ObjectPath};
use percale_mover::Slots;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::error::{Error, ErrorKind, Retry};
use crate::feed::{Feed, Wanted};
use crate::local::{Fingerprint, has_content};
use crate::progress::Progress;
use crate::push::{self, Pushed};
use crate::report::{Item, OnItem, Outcome, Report};
use crate::upload::{UploadPlan, blocking, upload};
use crate::walk::{Found, walk};

pub use percale_api::tasks::Compare;

pub use crate::upload::default_state_dir;
pub use crate::walk::{Candidate, Filter, Links};

/// Files from this size on are sent by uploads of their own. Below it a repeated batch costs less than the two extra
/// calls of an upload.
const LARGE: u64 = 8 << 20;
/// The same for a file that is put alone: there are no others to fill the streams.
const LARGE_ALONE: u64 = 2 << 20;
/// What the walk may be ahead of the transfer.
const FOUND_AHEAD: usize = 2048;

/// How to put.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct PutOptions {
    /// Whether objects with another content are replaced.
    pub overwrite: bool,
    /// When an object counts as the same.
    pub compare: Compare,
    /// Whether a collection at the path of a single file takes it in, under the file's own name.
    pub into: bool,
    /// Finds out everything, changes nothing.
    pub dry_run: bool,
    /// What becomes of symbolic links in a tree.
    pub links: Links,
    /// What of a tree is wanted; all if absent.
    pub filter: Option<Filter>,
    /// Where notes for a later resume are kept ([`default_state_dir`]); nowhere if absent.
    pub state_dir: Option<PathBuf>,
    /// Counts what happens.
    pub progress: Arc<Progress>,
    /// Is told of each item.
    pub on_item: Option<OnItem>,
    /// Stops the transfer. What was sent of large files is kept for a later run.
    pub cancel: CancellationToken,
}

impl Client {
    /// Puts one local file at a path. Collections above it are made.
    ///
    /// # Errors
    /// Nothing could be begun; what failed later is in the report.
    ///
    /// # Cancellation
    /// By [`PutOptions::cancel`], or by dropping the future: nothing half-written becomes visible, and what arrived of a
    /// large file is kept for as long as its lease lives.
    pub async fn put_file(
        &self,
        local: &Path,
        target: &ObjectPath,
        options: &PutOptions,
    ) -> crate::Result<Report> {
        // A large one is sent on the chance that nothing is there yet, which saves a round trip; else the site says so.
        let size = size_of(local, target).await?;
        let is_direct = size >= LARGE_ALONE && !options.overwrite && !options.dry_run;
        let entry = async { if is_direct { Ok(None) } else { self.find(target).await } };
        let entry = tokio::select! {
            entry = entry => entry?,
            () = options.cancel.cancelled() => return Ok(Report { interrupted: true, ..Report::default() }),
        };
        if entry.as_ref().is_some_and(|entry| entry.kind == Kind::Link) {
            let target = self.resolve(target).await?.path;
            return Box::pin(self.put_file(local, &target, options)).await;
        }
        let is_collection = entry.as_ref().is_some_and(|entry| entry.kind == Kind::Collection);
        if is_collection && options.into {
            let (target, options) = (inside(target, local)?, PutOptions { into: false, ..options.clone() });
            return Box::pin(self.put_file(local, &target, &options)).await;
        }
        if is_collection {
            let (operation, detail) = (format!("put {target}"), format!("{target} is a collection"));
            return Err(Error::new(ErrorKind::Usage, ErrorCode::IsCollection, operation, detail));
        }
        let existing = entry.and_then(|entry| entry.content);
        let (sender, found) = mpsc::channel(1);
        let file = Found::File { local: local.to_owned(), target: target.clone(), size, existing };
        // There is room for one, and the receiver is alive.
        let _ = sender.try_send(file);
        drop(sender);
        Ok(self.transfer(found, LARGE_ALONE, options).await)
    }

    /// Puts what is in a local directory into a collection, which is made if it is missing.
    ///
    /// # Errors
    /// As [`Client::put_file`].
    ///
    /// # Cancellation
    /// As [`Client::put_file`].
    pub async fn put_tree(
        &self,
        local: &Path,
        target: &ObjectPath,
        options: &PutOptions,
    ) -> crate::Result<Report> {
        let operation = format!("put {}", local.display());
        let path = local.to_owned();
        blocking(&operation, move || {
            std::fs::read_dir(&path)
                .map_err(|error| Error::local("list a local directory", &path, error))
                .map(drop)
        })
        .await?;
        let exists = if options.dry_run {
            let entry = self.find(target).await?;
            if entry.as_ref().is_some_and(|entry| entry.kind == Kind::Object) {
                return Err(is_object(&operation, target));
            }
            entry.is_some()
        } else {
            let made = self.make_collection(target, true).await;
            !made.map_err(|error| match error.code() {
                ErrorCode::AlreadyExists => is_object(&operation, target).with_source(error),
                _ => error,
            })?
        };
        let (sender, found) = mpsc::channel(FOUND_AHEAD);
        let walk = walk(
            self.clone(),
            local.to_owned(),
            target.clone(),
            exists,
            options.links,
            options.filter.clone(),
            sender,
        );
        let walking = tokio::spawn(walk);
        let report = self.transfer(found, LARGE, options).await;
        walking.abort();
        Ok(report)
    }

    async fn transfer(&self, found: mpsc::Receiver<Found>, large: u64, options: &PutOptions) -> Report {
        let mut report = Report::default();
        let transfer = Transfer {
            client: self.clone(),
            options,
            large,
            slots: Arc::default(),
            larges: Arc::default(),
            jobs: JoinSet::new(),
            pushes: JoinSet::new(),
            feed: Arc::default(),
        };
        let cancelled = tokio::select! {
            () = transfer.run(found, &mut report) => false,
            () = options.cancel.cancelled() => true,
        };
        report.interrupted = cancelled;
        report
    }
}

/// What a job ends with.
enum Ended {
    Items(Vec<Item>),
    /// It was compared and must be sent.
    Send(Wanted),
}

struct Transfer<'a> {
    client: Client,
    options: &'a PutOptions,
    /// Files from this size on are sent alone.
    large: u64,
    slots: Arc<Slots>,
    larges: Arc<Slots>,
    jobs: JoinSet<Ended>,
    /// Streams of small files.
    pushes: JoinSet<Vec<Item>>,
    feed: Arc<Feed>,
}

impl Transfer<'_> {
    async fn run(mut self, mut found: mpsc::Receiver<Found>, report: &mut Report) {
        let mut walking = true;
        loop {
            let may_take = walking && self.jobs.len() < self.client.streams() + 2;
            let has_room = self.feed.has_room();
            tokio::select! {
                biased;
                Some(joined) = self.jobs.join_next() => match joined {
                    Ok(Ended::Items(items)) => items.into_iter().for_each(|item| self.tell(report, item)),
                    Ok(Ended::Send(wanted)) => self.begin(wanted, report),
                    Err(error) => self.broke_off(report, &error),
                },
                Some(joined) = self.pushes.join_next() => match joined {
                    Ok(items) => items.into_iter().for_each(|item| self.tell(report, item)),
                    Err(error) => self.broke_off(report, &error),
                },
                next = found.recv(), if may_take && has_room => match next {
                    Some(next) => self.take(next, report),
                    None => {
                        walking = false;
                        self.options.progress.planned();
                    }
                },
                () = self.feed.drained(), if may_take && !has_room => {}
                () = tokio::time::sleep(push::WAIT), if self.feed.is_left_alone() => self.push(),
                else => break,
            }
            if !walking && self.jobs.is_empty() {
                self.feed.end();
            }
            let idle = self.client.streams().saturating_sub(self.pushes.len());
            (0..self.feed.lacks().min(idle)).for_each(|_| self.push());
        }
    }

    /// A job that panicked: its files have no result, which must not look like success.
    fn broke_off(&self, report: &mut Report, error: &tokio::task::JoinError) {
        let error = Error::new(ErrorKind::Local, ErrorCode::Internal, "put files", error.to_string());
        let (from, to) = (String::new(), String::new());
        self.tell(report, Item { from, to, bytes: 0, outcome: Outcome::Failed(error) });
    }

    fn tell(&self, report: &mut Report, item: Item) {
        self.options.progress.ended(&item.outcome);
        if let Some(on_item) = &self.options.on_item {
            on_item(&item);
        }
        report.add(item);
    }

    fn take(&mut self, found: Found, report: &mut Report) {
        match found {
            Found::File { local, target, size, existing } => {
                self.options.progress.plan(size);
                let wanted = Wanted { local, target, size, existing };
                if wanted.existing.is_some() { self.compare(wanted) } else { self.begin(wanted, report) }
            }
            Found::EmptyDirectory { exists: true, .. } => {}
            Found::EmptyDirectory { .. } if self.options.dry_run => {}
            Found::EmptyDirectory { local, target, .. } => {
                let client = self.client.clone();
                self.jobs.spawn(async move {
                    let items = match client.make_collection(&target, true).await {
                        Ok(_) => Vec::new(),
                        Err(error) => {
                            let (from, to) = (local.display().to_string(), target.to_string());
                            vec![Item { from, to, bytes: 0, outcome: Outcome::Failed(error) }]
                        }
                    };
                    Ended::Items(items)
                });
            }
            Found::PassedOver { local, why } => {
                let (from, to) = (local.display().to_string(), String::new());
                self.tell(report, Item { from, to, bytes: 0, outcome: Outcome::PassedOver(why) });
            }
            Found::Failed { local, target, error } => {
                self.options.progress.plan(0);
                let from = local.display().to_string();
                self.tell(report, Item { from, to: target, bytes: 0, outcome: Outcome::Failed(error) });
            }
        }
    }

    /// Finds out whether what is there is the same.
    fn compare(&mut self, wanted: Wanted) {
        let (compare, overwrite) = (self.options.compare, self.options.overwrite);
        let progress = self.options.progress.clone();
        self.jobs.spawn(async move {
            let same = is_same(&wanted, compare).await;
            Ended::Items(vec![match same {
                Ok(true) => {
                    progress.moved(wanted.size);
                    wanted.item(Outcome::Same)
                }
                Ok(false) if overwrite => return Ended::Send(wanted),
                Ok(false) => wanted.item(Outcome::Failed(taken(&wanted))),
                Err(error) => wanted.item(Outcome::Failed(error)),
            }])
        });
    }

    /// Sends a file, alone or with others.
    fn begin(&mut self, wanted: Wanted, report: &mut Report) {
        if self.options.dry_run {
            let replaces = wanted.existing.is_some();
            self.tell(report, wanted.item(Outcome::Planned { replaces }));
        } else if wanted.size >= self.large {
            self.upload(wanted);
        } else {
            self.feed.add(wanted);
        }
    }

    /// Begins a stream of small files.
    fn push(&mut self) {
        let (client, slots, progress) =
            (self.client.clone(), self.slots.clone(), self.options.progress.clone());
        let taker = self.feed.taker();
        self.pushes.spawn(async move {
            let _slot = slots.take(client.streams()).await;
            let pushed = push::push(&client, taker, &progress).await;
            let items = pushed.into_iter().map(|(wanted, pushed)| match pushed {
                Pushed::Committed(committed) => wanted.committed(committed),
                Pushed::Same => wanted.item(Outcome::Same),
                Pushed::Failed(error) => wanted.item(Outcome::Failed(if is_taken(&error) {
                    taken(&wanted).with_source(error)
                } else {
                    error
                })),
            });
            items.collect()
        });
    }

    fn upload(&mut self, mut wanted: Wanted) {
        let (client, progress) = (self.client.clone(), self.options.progress.clone());
        let (slots, larges) = (self.slots.clone(), self.larges.clone());
        let state_dir = self.options.state_dir.clone();
        let (compare, mut into) = (self.options.compare, self.options.into);
        self.jobs.spawn(async move {
            let outcome = loop {
                let plan = UploadPlan {
                    local: wanted.local.clone(),
                    target: wanted.target.clone(),
                    condition: wanted.condition(),
                    state_dir: state_dir.clone(),
                    slots: slots.clone(),
                    larges: larges.clone(),
                };
                let error = match upload(&client, plan, &progress).await {
                    Ok(committed) => return Ended::Items(vec![wanted.committed(committed)]),
                    Err(error) => error,
                };
                if is_taken(&error) {
                    let there = client.find(&wanted.target).await.ok().flatten();
                    wanted.existing = there.and_then(|entry| entry.content).or(wanted.existing);
                    // A lost answer of ours may be what is in the way.
                    break match is_same(&wanted, compare).await {
                        Ok(true) => Outcome::Same,
                        _ => Outcome::Failed(taken(&wanted).with_source(error)),
                    };
                }
                if into && error.code() == ErrorCode::IsCollection {
                    into = false;
                    match inside(&wanted.target, &wanted.local) {
                        Ok(target) => wanted.target = target,
                        Err(error) => break Outcome::Failed(error),
                    }
                    continue;
                }
                break Outcome::Failed(error);
            };
            Ended::Items(vec![wanted.item(outcome)])
        });
    }
}

fn is_object(operation: &str, target: &ObjectPath) -> Error {
    Error::new(ErrorKind::Usage, ErrorCode::NotACollection, operation, format!("{target} is an object"))
}

fn is_taken(error: &Error) -> bool {
    matches!(error.code(), ErrorCode::AlreadyExists | ErrorCode::PreconditionFailed)
        && error.retry() == Retry::Permanent
}

fn taken(wanted: &Wanted) -> Error {
    let (code, detail) = match &wanted.existing {
        Some(content) => (
            ErrorCode::AlreadyExists,
            format!(
                "version {} with another content is there; it is only replaced if asked for",
                content.version
            ),
        ),
        None => (ErrorCode::AlreadyExists, "somebody else has just put another content there".to_owned()),
    };
    Error::new(ErrorKind::Usage, code, format!("put {}", wanted.target), detail)
}

async fn is_same(wanted: &Wanted, compare: Compare) -> crate::Result<bool> {
    let Some(content) = wanted.existing.clone() else { return Ok(false) };
    let (local, size) = (wanted.local.clone(), wanted.size);
    blocking(&format!("compare {}", local.display()), move || match compare {
        Compare::Exists => Ok(true),
        Compare::Size => Ok(content.size == size),
        Compare::Mtime => {
            let metadata = std::fs::metadata(&local)
                .map_err(|error| Error::local("read a local file", &local, error))?;
            Ok(content.size == metadata.len() && content.mtime == Fingerprint::of(&metadata).mtime())
        }
        Compare::Content => has_content(&local, content.size, content.root),
    })
    .await
}

async fn size_of(local: &Path, target: &ObjectPath) -> crate::Result<u64> {
    let local = local.to_owned();
    blocking(&format!("put {target}"), move || {
        let metadata = std::fs::metadata(&local);
        metadata
            .map(|metadata| metadata.len())
            .map_err(|error| Error::local("read a local file", &local, error))
    })
    .await
}

/// Returns where a local file goes in a collection: under its own name.
///
/// # Errors
/// It has no name, or none that an object can have.
pub fn inside(collection: &ObjectPath, local: &Path) -> crate::Result<ObjectPath> {
    let cannot = |why: String| {
        Error::new(ErrorKind::Usage, ErrorCode::InvalidPath, format!("put {}", local.display()), why)
    };
    let name = local
        .file_name()
        .ok_or_else(|| cannot("it has no name of its own; add a slash to mean what is in it".into()))?;
    let name = name.to_str().ok_or_else(|| cannot("its name is not valid UTF-8".into()))?;
    collection.join(name).map_err(|error| cannot(error.to_string()))
}

/// Hashes a whole local file; fails if it changes meanwhile. Blocks.
///
/// # Errors
/// The file cannot be read, or was changed.
pub fn hash_local(path: &Path) -> crate::Result<percale_core::tree::RootHash> {
    crate::local::hash_file(path).map(|tree| tree.root())
}
