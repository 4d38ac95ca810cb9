//! Objects and trees out of the fabric.
//!
//! Large objects come over several streams, each group checked against the version's stored tree before it is written
//! beside the destination. An earlier attempt is taken up by hashing what it left: a group that is right need not come
//! again. Small objects come many in one stream, the last ones over whichever of several streams the site has room in.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use futures::{StreamExt as _, stream};
use percale_api::Page;
use percale_api::entries::{Content, Entry, Kind};
use percale_core::{ErrorCode, ObjectPath};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::control::ListOptions;
use crate::error::{Error, ErrorKind};
use crate::local::flush_file_system;
use crate::progress::Progress;
use crate::put::{Candidate, Compare, Filter};
use crate::report::{Item, OnItem, Outcome, Report};
use crate::upload::blocking;

mod ahead;
mod directories;
mod large;
mod links;
mod small;
mod transfer;

pub use ahead::Ahead;
use directories::Directories;
use transfer::Transfer;

/// Objects from this size on come over several streams.
const LARGE: u64 = 8 << 20;
/// The same for one that is got alone: there are no others to fill the streams.
const LARGE_ALONE: u64 = 2 << 20;
/// What the listing may be ahead of the transfer.
const FOUND_AHEAD: usize = 4096;
/// Objects that are looked at together, where each is named by itself.
const LOOKED_UP_AT_ONCE: usize = 32;
/// Entries of the first page, so that the transfer begins soon; and by what each is larger than the one before.
const FIRST_PAGE: u32 = 100;
const PAGES_GROW: u32 = 4;

/// How to get.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct GetOptions {
    /// Whether local files with another content are replaced.
    pub overwrite: bool,
    /// When a local file counts as the same.
    pub compare: Compare,
    /// Finds out everything, changes nothing.
    pub dry_run: bool,
    /// What of a tree is wanted; all if absent.
    pub filter: Option<Filter>,
    /// Counts what happens.
    pub progress: Arc<Progress>,
    /// Is told of each item.
    pub on_item: Option<OnItem>,
    /// Stops the transfer. What came of large objects is kept for a later run.
    pub cancel: CancellationToken,
}

/// What a path leads to.
#[derive(Debug, Clone)]
pub enum Tree {
    /// A collection, whose listing has begun.
    Collection(Collection),
    /// An object.
    Object(Box<Entry>),
}

/// A collection, with the first page of what is below it.
#[derive(Debug, Clone)]
pub struct Collection {
    path: ObjectPath,
    first: Page<Entry>,
}

/// One object that is wanted.
#[derive(Debug, Clone)]
struct Wanted {
    path: ObjectPath,
    content: Content,
    local: PathBuf,
    /// Whether a local file is there.
    replaces: bool,
}

impl Wanted {
    fn item(&self, outcome: Outcome) -> Item {
        let (from, to) = (self.path.to_string(), self.local.display().to_string());
        Item { from, to, bytes: self.content.size, outcome }
    }

    fn done(&self) -> Item {
        let (version, root) = (Some(self.content.version), self.content.root);
        self.item(Outcome::Done { version, root, replaced: self.replaces })
    }
}

impl Client {
    /// Gets one object into a local file.
    ///
    /// # Errors
    /// Nothing could be begun; what failed later is in the report.
    ///
    /// # Cancellation
    /// By [`GetOptions::cancel`], or by dropping the future: the destination is untouched, and what came of a large
    /// object lies beside it for a later run.
    pub async fn get_file(
        &self,
        path: &ObjectPath,
        local: &Path,
        options: &GetOptions,
    ) -> crate::Result<Report> {
        let may_ask = !options.dry_run && !self.is_here();
        let ahead = if may_ask { self.ask_ahead(path, local) } else { None };
        self.get_found(self.resolve(path).await?, ahead, local, options).await
    }

    /// The same for an object that was looked at already, and whose bytes may have been [asked for](Client::ask_ahead) before that.
    ///
    /// # Errors
    /// As [`Client::get_file`].
    ///
    /// # Cancellation
    /// As [`Client::get_file`].
    pub async fn get_found(
        &self,
        entry: Entry,
        ahead: Option<Ahead>,
        local: &Path,
        options: &GetOptions,
    ) -> crate::Result<Report> {
        let path = &entry.path;
        let (sender, found) = mpsc::channel(1);
        let Some(content) = entry.content else {
            let detail = format!("{path} is a collection");
            return Err(Error::new(ErrorKind::Usage, ErrorCode::IsCollection, format!("get {path}"), detail));
        };
        let wanted = Wanted { path: path.clone(), content, local: local.to_owned(), replaces: false };
        // There is room for one, and the receiver is alive.
        let _ = sender.try_send(Ok(wanted));
        drop(sender);
        let parent = local.parent().filter(|parent| !parent.as_os_str().is_empty()).map(Path::to_owned);
        let ahead = ahead.filter(|ahead| ahead.is_of(path));
        Ok(self.fetch_all(found, ahead, LARGE_ALONE, parent.unwrap_or_else(|| ".".into()), options).await)
    }

    /// Gets what is in a collection into a local directory, which is made if it is missing.
    ///
    /// # Errors
    /// As [`Client::get_file`].
    ///
    /// # Cancellation
    /// As [`Client::get_file`].
    pub async fn get_tree(
        &self,
        path: &ObjectPath,
        local: &Path,
        options: &GetOptions,
    ) -> crate::Result<Report> {
        // A path that is not there, or may not be read, is an error of the whole call.
        match self.open_tree(path).await? {
            Tree::Collection(collection) => self.get_collection(collection, local, options).await,
            Tree::Object(_) => {
                let (operation, detail) = (format!("get {path}"), format!("{path} is an object"));
                Err(Error::new(ErrorKind::Usage, ErrorCode::NotACollection, operation, detail))
            }
        }
    }

    /// Finds out what a path leads to, over links to their ends, and begins to list it: one question for both.
    ///
    /// # Errors
    /// As the server answers; `is_link` for a link that leads nowhere in the fabric.
    pub async fn open_tree(&self, path: &ObjectPath) -> crate::Result<Tree> {
        let mut path = path.clone();
        let mut first = match ask_page(self, &path, FIRST_PAGE, None).await {
            Err(error) if error.code() == ErrorCode::IsLink => {
                path = self.resolve(&path).await?.path;
                ask_page(self, &path, FIRST_PAGE, None).await?
            }
            page => page?,
        };
        // The list of an object is that object.
        let is_object =
            first.items.first().is_some_and(|entry| entry.kind == Kind::Object && entry.path == path);
        match first.items.pop_if(|_| is_object) {
            Some(entry) => Ok(Tree::Object(Box::new(entry))),
            None => Ok(Tree::Collection(Collection { path, first })),
        }
    }

    /// As [`Client::get_tree`], for a collection whose listing has begun.
    ///
    /// # Errors
    /// As [`Client::get_file`].
    ///
    /// # Cancellation
    /// As [`Client::get_file`].
    pub async fn get_collection(
        &self,
        collection: Collection,
        local: &Path,
        options: &GetOptions,
    ) -> crate::Result<Report> {
        let (client, into, own) = (self.clone(), Directories::below(local), options.clone());
        self.fetch_below(local, options, |sender| list(client, collection, into, own, sender)).await
    }

    /// Gets objects, each below a local directory under its whole path.
    ///
    /// # Errors
    /// As [`Client::get_file`].
    ///
    /// # Cancellation
    /// As [`Client::get_file`].
    pub async fn get_listed(
        &self,
        paths: Vec<ObjectPath>,
        local: &Path,
        options: &GetOptions,
    ) -> crate::Result<Report> {
        let (client, into, dry_run) = (self.clone(), Directories::below(local), options.dry_run);
        self.fetch_below(local, options, |sender| look_up(client, paths, into, dry_run, sender)).await
    }

    /// Gets what is found meanwhile into a directory, which is made if it is missing.
    async fn fetch_below<F: Future<Output = ()> + Send + 'static>(
        &self,
        local: &Path,
        options: &GetOptions,
        find: impl FnOnce(mpsc::Sender<Result<Wanted, Item>>) -> F,
    ) -> crate::Result<Report> {
        if !options.dry_run {
            directories::make_all(local.to_owned()).await?;
        }
        let (sender, found) = mpsc::channel(FOUND_AHEAD);
        let finding = tokio::spawn(find(sender));
        let report = self.fetch_all(found, None, LARGE, local.to_owned(), options).await;
        finding.abort();
        Ok(report)
    }

    async fn fetch_all(
        &self,
        found: mpsc::Receiver<Result<Wanted, Item>>,
        ahead: Option<Ahead>,
        large: u64,
        root: PathBuf,
        options: &GetOptions,
    ) -> Report {
        let mut report = Report::default();
        let transfer = Transfer::new(self, options, large, ahead);
        let wrote_small = transfer.wrote_small();
        report.interrupted = tokio::select! {
            () = transfer.run(found, &mut report) => false,
            () = options.cancel.cancelled() => true,
        };
        // Small files are not flushed one by one; all of them are on disk when the call returns.
        if wrote_small.load(Ordering::Relaxed) {
            let flushed = blocking("flush files", move || flush_file_system(&root)).await;
            if let Err(error) = flushed {
                let outcome = Outcome::Failed(error);
                report.add(Item { from: String::new(), to: String::new(), bytes: 0, outcome });
            }
        }
        report
    }
}

/// Looks at objects and sends them; makes the directories that they go to.
async fn look_up(
    client: Client,
    paths: Vec<ObjectPath>,
    local: Directories,
    dry_run: bool,
    found: mpsc::Sender<Result<Wanted, Item>>,
) {
    let (client, local) = (&client, &local);
    let entries = stream::iter(paths).map(|path| async move {
        let target: PathBuf = std::iter::once(local.root()).chain(path.components().map(Path::new)).collect();
        let failed = |error| {
            let (from, to) = (path.to_string(), target.display().to_string());
            Err(Item { from, to, bytes: 0, outcome: Outcome::Failed(error) })
        };
        let entry = match client.resolve(&path).await {
            Ok(entry) => entry,
            Err(error) => return failed(error),
        };
        let Some(content) = entry.content else {
            let (operation, detail) = (format!("get {path}"), format!("{path} is a collection"));
            return failed(Error::new(ErrorKind::Usage, ErrorCode::IsCollection, operation, detail));
        };
        if let Some(parent) = target.parent().filter(|_| !dry_run)
            && let Err(error) = local.make(parent).await
        {
            return failed(error);
        }
        Ok(Wanted { path: entry.path, content, local: target, replaces: false })
    });
    let mut entries = std::pin::pin!(entries.buffered(LOOKED_UP_AT_ONCE));
    while let Some(wanted) = entries.next().await {
        if found.send(wanted).await.is_err() {
            return;
        }
    }
}

/// Lists a tree and sends its objects; makes its directories.
async fn list(
    client: Client,
    Collection { path: root, first }: Collection,
    local: Directories,
    options: GetOptions,
    found: mpsc::Sender<Result<Wanted, Item>>,
) {
    let mut refused: Vec<ObjectPath> = Vec::new();
    let mut limit = FIRST_PAGE;
    let mut asked = Some(Ok(first));
    while let Some(page) = asked.take() {
        let page = match page {
            Ok(page) => page,
            Err(error) => {
                let (from, to) = (root.to_string(), local.root().display().to_string());
                let _ = found.send(Err(Item { from, to, bytes: 0, outcome: Outcome::Failed(error) })).await;
                return;
            }
        };
        limit = (limit * PAGES_GROW).min(percale_api::MAX_PAGE);
        // The next page comes while this one is taken.
        let next = async {
            match page.next {
                Some(cursor) => Some(ask_page(&client, &root, limit, Some(&cursor)).await),
                None => None,
            }
        };
        let taken = async {
            for entry in page.items {
                if let Some(found_item) = place(&entry, &root, &local, &options, &mut refused).await
                    && found.send(found_item).await.is_err()
                {
                    return false;
                }
            }
            true
        };
        let (next, is_wanted) = tokio::join!(next, taken);
        asked = next.filter(|_| is_wanted);
    }
}

async fn ask_page(
    client: &Client,
    root: &ObjectPath,
    limit: u32,
    cursor: Option<&str>,
) -> crate::Result<Page<Entry>> {
    client.list(root, ListOptions { recursive: true, limit: Some(limit), replicas: false }, cursor).await
}

/// Decides where an entry goes. `refused` are the collections that the filter refused and that are not left yet.
async fn place(
    entry: &Entry,
    root: &ObjectPath,
    local: &Directories,
    options: &GetOptions,
    refused: &mut Vec<ObjectPath>,
) -> Option<Result<Wanted, Item>> {
    let below: Vec<&str> = entry.path.components().skip(root.components().count()).collect();
    if below.is_empty() || refused.iter().any(|collection| entry.path.is_within(collection)) {
        return None;
    }
    // Names are checked when the path is parsed: none is `..` or holds a slash.
    let target: PathBuf = std::iter::once(local.root()).chain(below.iter().map(Path::new)).collect();
    let is_directory = entry.kind == Kind::Collection;
    let size = entry.content.as_ref().map_or(0, |content| content.size);
    let candidate = Candidate { path: &below.join("/"), is_directory, size };
    if options.filter.as_ref().is_some_and(|filter| !filter(candidate)) {
        if is_directory {
            refused.retain(|collection| entry.path < *collection);
            refused.push(entry.path.clone());
        }
        return None;
    }
    let directory = if is_directory { Some(target.as_path()) } else { target.parent() };
    if let Some(directory) = directory.filter(|_| !options.dry_run)
        && let Err(error) = local.make(directory).await
    {
        let (from, to) = (entry.path.to_string(), target.display().to_string());
        return Some(Err(Item { from, to, bytes: 0, outcome: Outcome::Failed(error) }));
    }
    match &entry.content {
        Some(content) => Some(Ok(Wanted {
            path: entry.path.clone(),
            content: content.clone(),
            local: target,
            replaces: false,
        })),
        None if entry.kind == Kind::Link => Some(Err(links::make(entry, root, &target, options).await)),
        None => None,
    }
}

/// Locks what cannot be left in a bad state by a panic: plain queues and sets.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
