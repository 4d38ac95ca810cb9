//! Makes objects with the content of others: a copy of a tree, or a collection that is like another one.
//!
//! Every byte is read and verified before it is published, wherever it comes from; where source and target are one store
//! that can, the storage copies large files by itself. Names are made by the home of the target's space.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use percale_api::tasks::Compare;
use percale_catalog::{Condition, Content, Entry, EntryKind, ListOptions, Listed, OpenVersion};
use percale_core::ids::VersionId;
use percale_core::{ErrorCode, ObjectPath};

use super::Attempt;
use super::home::{Home, looks};
use super::steps::{self, PAGE, Page, Walk};
use super::unhashed::bring;
use super::verify::opened;
use crate::fetch::{Become, Brought, Fetch, Wanted};
use crate::publish::NewObject;
use crate::upload::space_of;
use crate::{ApiError, OnPath as _, Result};

/// Names that are looked at, made or removed at once: each may be a round trip.
const NAMES: usize = 32;
/// Before the cursors of the two passes of a sync.
const COPYING: &str = "copy:";
const REMOVING: &str = "remove:";

/// What happens to what is at the target already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Existing {
    /// It is in the way.
    Refused,
    /// It stays if it is the same, and is replaced if not.
    Replaced(Compare),
}

/// What has to be done for an object.
#[derive(Debug)]
enum Look {
    /// It is brought; this must be there then.
    Bring(Condition),
    /// This is there, and is the same.
    Same(Box<Content>),
}

/// An object, where it goes, and what was found there.
type Looked = (Listed, ObjectPath, Result<Look>);

/// What is made of a page of the source.
#[derive(Default)]
struct Work {
    /// Collections and links, with their places at the target.
    names: Vec<(Listed, ObjectPath)>,
    wanted: Vec<Wanted>,
    /// Where the content of each of these goes.
    originals: HashMap<VersionId, (ObjectPath, Content)>,
}

struct Copier<'a> {
    attempt: &'a Attempt,
    from: &'a ObjectPath,
    to: &'a ObjectPath,
    home: Home<'a>,
    existing: Existing,
    fetch: Fetch,
}

/// Copies an entry and all below it to where nothing is.
pub(super) async fn run(attempt: &Attempt, from: &ObjectPath, to: &ObjectPath) -> Result<()> {
    let home = Home::of(attempt, to).await?;
    let entry = attempt.app.catalog.stat_no_link(&attempt.task.caller, from).await.on_path(from)?;
    if entry.kind == EntryKind::Collection {
        home.make_collection(to).await?;
    }
    let copier = Copier::new(attempt, (from, to), home, Existing::Refused);
    steps::run(attempt, &copier, attempt.progress.after()).await
}

/// Makes a collection like another one.
pub(super) async fn sync(
    attempt: &Attempt,
    from: &ObjectPath,
    to: &ObjectPath,
    compare: Compare,
    delete: bool,
) -> Result<()> {
    let home = Home::of(attempt, to).await?;
    let copier = Copier::new(attempt, (from, to), home, Existing::Replaced(compare));
    let cursor = attempt.progress.after().unwrap_or_else(|| COPYING.to_owned());
    if let Some(after) = cursor.strip_prefix(COPYING) {
        copier.home.make_collection(to).await?;
        steps::run(attempt, &copier, (!after.is_empty()).then(|| after.to_owned())).await?;
    }
    if !delete {
        return Ok(());
    }
    if attempt.progress.has_failures() {
        let detail = "nothing was removed, since not all could be copied";
        attempt.progress.failed(to, "skipped", &ApiError::new(ErrorCode::Partial, detail));
        attempt.progress.step(Some(REMOVING.to_owned()));
        return Ok(());
    }
    let after = cursor.strip_prefix(REMOVING).filter(|after| !after.is_empty()).map(str::to_owned);
    copier.remove_extra(after).await
}

/// Returns the path below `to` of something below `from`.
fn moved(from: &ObjectPath, to: &ObjectPath, path: &ObjectPath) -> Result<ObjectPath> {
    let rest = path.as_str().strip_prefix(from.as_str()).unwrap_or_default();
    Ok(ObjectPath::parse(&format!("{to}{rest}"))?)
}

impl Walk for Copier<'_> {
    type Work = Work;

    async fn page(&self, after: Option<String>) -> Result<Page<Work>> {
        let attempt = self.attempt;
        let page = attempt.list(self.from, after, PAGE).await?;
        let items = page.items.len() as u64;
        let (mut work, mut objects) = (Work::default(), Vec::new());
        for listed in page.items {
            let target = moved(self.from, self.to, &listed.path)?;
            match listed.entry.kind {
                EntryKind::Object => objects.push((listed, target)),
                EntryKind::Collection | EntryKind::Link => work.names.push((listed, target)),
            }
        }
        if !objects.is_empty() {
            let store = attempt.app.stores.for_new_data(&space_of(self.to)?).await?;
            for (listed, target, condition) in self.looked_at(objects).await {
                let condition = match condition {
                    Ok(Look::Bring(condition)) => condition,
                    Ok(Look::Same(there)) => {
                        attempt.progress.found_there(&target, there.version, there.size.0, there.root);
                        continue;
                    }
                    Err(error) => {
                        attempt.failed(&listed.path, "failed", &error);
                        continue;
                    }
                };
                let content = listed.entry.content.clone();
                let Some((version, content)) = opened(listed, page.position).zip(content) else { continue };
                let object = Some(Arc::new(self.object(&version, &target, condition)));
                work.originals.insert(version.version, (target, content));
                work.wanted.push(Wanted { version, store: store.clone(), object });
            }
        }
        let bytes = work.wanted.iter().map(|one| one.version.size.0).sum();
        Ok(Page { work, items, bytes, next: page.next })
    }

    async fn work(&self, Work { names, wanted, originals }: Work) {
        let made = names.into_iter().map(|(listed, target)| self.name(listed, target).boxed());
        let made: Vec<BoxFuture<'_, ()>> = made.collect();
        let made = stream::iter(made).buffer_unordered(NAMES).collect::<Vec<()>>();
        tokio::join!(made, self.objects(wanted, &originals));
    }

    fn cursor(&self, next: Option<String>) -> Option<String> {
        match (self.existing, next) {
            (Existing::Refused, next) => next,
            (Existing::Replaced(_), Some(next)) => Some(format!("{COPYING}{next}")),
            (Existing::Replaced(_), None) => Some(REMOVING.to_owned()),
        }
    }
}

impl<'a> Copier<'a> {
    fn new(
        attempt: &'a Attempt,
        (from, to): (&'a ObjectPath, &'a ObjectPath),
        home: Home<'a>,
        existing: Existing,
    ) -> Self {
        let fetch = attempt.fetch(Become::Objects, None);
        Self { attempt, from, to, home, existing, fetch }
    }

    /// Looks what is where objects go.
    async fn looked_at(&self, objects: Vec<(Listed, ObjectPath)>) -> Vec<Looked> {
        let looks = objects.into_iter().map(|(listed, target)| {
            async move {
                let condition = self.condition(&listed, &target).await;
                (listed, target, condition)
            }
            .boxed()
        });
        let looks: Vec<BoxFuture<'_, Looked>> = looks.collect();
        stream::iter(looks).buffered(NAMES).collect().await
    }

    /// Returns what is made with the content of a version.
    fn object(&self, version: &OpenVersion, target: &ObjectPath, condition: Condition) -> NewObject {
        NewObject {
            caller: self.attempt.task.caller.clone(),
            delegation: self.attempt.delegation(),
            path: target.clone(),
            parents: true,
            condition,
            mtime: version.mtime,
            mode: version.mode,
            digests: version.digests.clone(),
            answer: None,
        }
    }

    /// Makes a collection or a link.
    async fn name(&self, listed: Listed, target: ObjectPath) {
        let made = match listed.entry.kind {
            EntryKind::Link => self.link(&listed.entry, &target).await,
            _ => self.home.make_collection(&target).await,
        };
        match made {
            Ok(()) => self.attempt.progress.done(1, 0),
            Err(error) => self.attempt.failed(&listed.path, "failed", &error),
        }
    }

    /// Makes a link that leads where another one does, by the same words. Of two trees that are made alike, one that leads
    /// elsewhere is replaced.
    async fn link(&self, entry: &Entry, target: &ObjectPath) -> Result<()> {
        let Some(leads_to) = &entry.target else { return Ok(()) };
        let mut made = self.home.make_link(target, leads_to).await;
        if made.as_ref().is_err_and(|error| error.code() == ErrorCode::NotFound)
            && let Some(parent) = target.parent()
        {
            // The collection that it is in is on its way, or was not listed yet.
            self.home.make_collection(&parent).await?;
            made = self.home.make_link(target, leads_to).await;
        }
        let is_taken = made.as_ref().is_err_and(|error| error.code() == ErrorCode::AlreadyExists);
        if !is_taken || matches!(self.existing, Existing::Refused) {
            return made;
        }
        let there = self.attempt.app.catalog.stat(&self.attempt.task.caller, target).await.on_path(target)?;
        if there.kind != EntryKind::Link {
            return made;
        }
        self.home.remove(target).await?;
        self.home.make_link(target, leads_to).await
    }

    /// Brings the contents of objects, and makes these.
    async fn objects(&self, wanted: Vec<Wanted>, originals: &HashMap<VersionId, (ObjectPath, Content)>) {
        let attempt = self.attempt;
        let doubtful = Mutex::new(Vec::new());
        let done = |version: &OpenVersion, outcome: Result<Brought>| match outcome {
            Ok(Brought { copy, .. }) => attempt.progress.brought(copy),
            Err(error) => match error.code() {
                ErrorCode::AlreadyExists | ErrorCode::PreconditionFailed => {
                    let mut doubtful = doubtful.lock().unwrap_or_else(PoisonError::into_inner);
                    doubtful.push((version.clone(), error));
                }
                _ => attempt.not_brought(&version.path, &error),
            },
        };
        bring(attempt, &self.fetch, None, wanted, &done).await;
        // What is in the way may be what an earlier attempt made and this site has not seen yet.
        let may_be_ours = attempt.task.attempt > 1 || self.existing != Existing::Refused;
        for (version, error) in doubtful.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let there = match originals.get(&version.version) {
                Some((target, content)) if may_be_ours => {
                    // It may have been hashed after it was listed.
                    let root = version.root.or(content.root);
                    self.home.has_now(target, root).await.map(|there| (target, there, content.size, root))
                }
                _ => None,
            };
            match there {
                Some((target, there, size, root)) => {
                    attempt.progress.found_there(target, there, size.0, root);
                }
                None => attempt.failed(&version.path, "failed", &error),
            }
        }
    }

    /// Decides what must be at the target when the object is published, unless the same is there already.
    async fn condition(&self, listed: &Listed, target: &ObjectPath) -> Result<Look> {
        let there = match self.attempt.app.catalog.stat(&self.attempt.task.caller, target).await {
            Ok(there) => there,
            Err(error) if error.code() == ErrorCode::NotFound => return Ok(Look::Bring(Condition::New)),
            Err(error) => return Err(ApiError::from(error).with_path(target)),
        };
        let compare = match self.existing {
            Existing::Replaced(compare) => compare,
            Existing::Refused => Compare::Content,
        };
        let same = |old: &Content| {
            listed.entry.content.as_ref().is_some_and(|new| compare.is_same(looks(old), looks(new)))
        };
        match (&there, self.existing) {
            (Entry { content: Some(old), .. }, Existing::Replaced(_)) if same(old) => {
                Ok(Look::Same(Box::new(old.clone())))
            }
            (Entry { content: Some(old), .. }, Existing::Replaced(_)) => {
                Ok(Look::Bring(Condition::Match(old.version)))
            }
            (Entry { content: Some(old), .. }, Existing::Refused)
                if self.attempt.task.attempt > 1 && old.root.is_some() && same(old) =>
            {
                Ok(Look::Same(Box::new(old.clone())))
            }
            (Entry { kind: EntryKind::Collection, .. }, _) => {
                let detail = format!("cannot copy to {target}: a collection is there");
                Err(ApiError::new(ErrorCode::IsCollection, detail))
            }
            _ => {
                let detail = format!("cannot copy to {target}: it exists");
                Err(ApiError::new(ErrorCode::AlreadyExists, detail))
            }
        }
    }

    /// Removes an entry and all below it.
    async fn remove(&self, path: &ObjectPath) {
        match self.home.remove(path).await {
            Ok(()) => self.attempt.progress.achieved(1, 0),
            Err(error) => self.attempt.failed(path, "failed", &error),
        }
    }

    /// Removes what the source has not.
    async fn remove_extra(&self, mut after: Option<String>) -> Result<()> {
        let attempt = self.attempt;
        let (catalog, caller) = (&attempt.app.catalog, &attempt.task.caller);
        // A source that went away meanwhile is no reason to remove everything.
        catalog.stat(caller, self.from).await.on_path(self.from)?;
        loop {
            let mut options = ListOptions::default();
            options.after = after;
            options.limit = PAGE;
            options.recursive = true;
            let page = catalog.list(caller, self.to, options).await.on_path(self.to)?;
            let mut removed: HashSet<ObjectPath> = HashSet::new();
            for listed in page.items {
                if listed.path == *self.to || removed.iter().any(|above| listed.path.is_within(above)) {
                    continue;
                }
                let original = moved(self.to, self.from, &listed.path)?;
                let is_extra = match catalog.stat(caller, &original).await {
                    Ok(original) => original.kind != listed.entry.kind,
                    Err(error) if error.code() == ErrorCode::NotFound => true,
                    Err(error) => return Err(ApiError::from(error).with_path(&original)),
                };
                if is_extra {
                    removed.insert(listed.path);
                }
            }
            let removals = removed.iter().map(|path| self.remove(path).boxed());
            let removals: Vec<BoxFuture<'_, ()>> = removals.collect();
            stream::iter(removals).buffer_unordered(NAMES).collect::<Vec<()>>().await;
            after = page.next;
            attempt.step(after.as_ref().map(|after| format!("{REMOVING}{after}")))?;
            if after.is_none() {
                return Ok(());
            }
        }
    }
}
