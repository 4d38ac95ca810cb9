//! Makes objects with the content of others: a copy of a tree, or a collection that is like another one.
//!
//! Every byte is read and verified before it is published, wherever it comes from; where source and target are one store
//! that can, the storage copies large files by itself. Names are made by the home of the target's space.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use percale_api::tasks::Compare;
use percale_catalog::{Condition, Content, Entry, EntryKind, ListOptions, Listed, OpenVersion};
use percale_core::ids::VersionId;
use percale_core::{ErrorCode, ObjectPath, Position};

use super::Attempt;
use super::home::{Home, looks};
use super::verify::opened;
use crate::fetch::{Become, Brought, Wanted};
use crate::publish::NewObject;
use crate::upload::space_of;
use crate::{ApiError, OnPath as _, Result};

/// Entries in one step: what small objects fill all streams with.
const STEP: usize = 4000;
/// Names that are looked at or made at once.
const NAMES: usize = 16;
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

struct Copier<'a> {
    attempt: &'a Attempt,
    from: &'a ObjectPath,
    to: &'a ObjectPath,
    home: Home<'a>,
    existing: Existing,
}

/// Copies an entry and all below it to where nothing is.
pub(super) async fn run(attempt: &Attempt, from: &ObjectPath, to: &ObjectPath) -> Result<()> {
    let home = Home::of(attempt, to).await?;
    let entry = attempt.app.catalog.stat_no_link(&attempt.task.caller, from).await.on_path(from)?;
    if entry.kind == EntryKind::Collection {
        home.make_collection(to).await?;
    }
    let copier = Copier { attempt, from, to, home, existing: Existing::Refused };
    let mut after = attempt.progress.after();
    loop {
        after = copier.page(after).await?;
        attempt.step(after.clone())?;
        if after.is_none() {
            return Ok(());
        }
    }
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
    let copier = Copier { attempt, from, to, home, existing: Existing::Replaced(compare) };
    let cursor = attempt.progress.after().unwrap_or_else(|| COPYING.to_owned());
    if let Some(after) = cursor.strip_prefix(COPYING) {
        let mut after = (!after.is_empty()).then(|| after.to_owned());
        copier.home.make_collection(to).await?;
        loop {
            after = copier.page(after).await?;
            let next = after.as_ref().map(|after| format!("{COPYING}{after}"));
            attempt.step(Some(next.unwrap_or_else(|| REMOVING.to_owned())))?;
            if after.is_none() {
                break;
            }
        }
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

impl Copier<'_> {
    /// Copies one page of the source. Returns where the next begins.
    async fn page(&self, after: Option<String>) -> Result<Option<String>> {
        let attempt = self.attempt;
        let page = attempt.list(self.from, after, STEP).await?;
        let (mut collections, mut objects, mut links) = (Vec::new(), Vec::new(), Vec::new());
        for listed in page.items {
            let target = moved(self.from, self.to, &listed.path)?;
            match listed.entry.kind {
                EntryKind::Collection => collections.push((listed.path, target)),
                EntryKind::Object => objects.push((listed, target)),
                EntryKind::Link => links.push((listed, target)),
            }
        }
        // In their order: one may be in another.
        for (path, target) in collections {
            match self.home.make_collection(&target).await {
                Ok(()) => attempt.progress.done(1, 0),
                Err(error) => attempt.failed(&path, "failed", &error),
            }
        }
        for (listed, target) in links {
            match self.link(&listed.entry, &target).await {
                Ok(()) => attempt.progress.done(1, 0),
                Err(error) => attempt.failed(&listed.path, "failed", &error),
            }
        }
        self.objects(objects, page.position, page.next.is_none()).await?;
        Ok(page.next)
    }

    /// Makes a link that leads where another one does, by the same words. Of two trees that are made alike, one that leads
    /// elsewhere is replaced.
    async fn link(&self, entry: &Entry, target: &ObjectPath) -> Result<()> {
        let Some(leads_to) = &entry.target else { return Ok(()) };
        let made = self.home.make_link(target, leads_to).await;
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

    async fn objects(
        &self,
        objects: Vec<(Listed, ObjectPath)>,
        position: Option<Position>,
        is_last: bool,
    ) -> Result<()> {
        let attempt = self.attempt;
        if objects.is_empty() {
            return Ok(());
        }
        let store = attempt.app.stores.for_new_data(&space_of(self.to)?).await?;
        let looks = objects.into_iter().map(|(listed, target)| {
            async move {
                let condition = self.condition(&listed, &target).await;
                (listed, target, condition)
            }
            .boxed()
        });
        let looks: Vec<BoxFuture<'_, Looked>> = looks.collect();
        let mut wanted = Vec::new();
        let mut become_objects = HashMap::new();
        let mut originals: HashMap<VersionId, (ObjectPath, Content)> = HashMap::new();
        for (listed, target, condition) in stream::iter(looks).buffered(NAMES).collect::<Vec<_>>().await {
            let path = listed.path.clone();
            let condition = match condition {
                Ok(Look::Bring(condition)) => condition,
                Ok(Look::Same(there)) => {
                    attempt.progress.found_there(&target, there.version, there.size.0, there.root);
                    continue;
                }
                Err(error) => {
                    attempt.failed(&path, "failed", &error);
                    continue;
                }
            };
            let content = listed.entry.content.clone();
            let Some((version, content)) = opened(listed, position).zip(content) else { continue };
            let object = NewObject {
                caller: attempt.task.caller.clone(),
                delegation: attempt.delegation(),
                path: target.clone(),
                parents: true,
                condition,
                mtime: version.mtime,
                mode: version.mode,
                digests: version.digests.clone(),
                answer: None,
            };
            become_objects.insert(version.version, object);
            originals.insert(version.version, (target, content));
            wanted.push(Wanted { version, store: store.clone() });
        }
        let goal = Become::Objects(become_objects);
        let fetch = attempt.fetch(goal, None);
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
        let bytes = wanted.iter().map(|one| one.version.size.0).sum();
        attempt.progress.found(attempt.progress.ended(), wanted.len() as u64, bytes, is_last);
        fetch.all(wanted, &done).await;
        // What is in the way may be what an earlier attempt made and this site has not seen yet.
        let may_be_ours = attempt.task.attempt > 1 || self.existing != Existing::Refused;
        for (version, error) in doubtful.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let there = match originals.get(&version.version) {
                Some((target, content)) if may_be_ours => {
                    self.home.has_now(target, content).await.map(|there| (target, there, content))
                }
                _ => None,
            };
            match there {
                Some((target, there, content)) => {
                    attempt.progress.found_there(target, there, content.size.0, content.root);
                }
                None => attempt.failed(&version.path, "failed", &error),
            }
        }
        Ok(())
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

    /// Removes what the source has not.
    async fn remove_extra(&self, mut after: Option<String>) -> Result<()> {
        let attempt = self.attempt;
        let (catalog, caller) = (&attempt.app.catalog, &attempt.task.caller);
        // A source that went away meanwhile is no reason to remove everything.
        catalog.stat(caller, self.from).await.on_path(self.from)?;
        loop {
            let mut options = ListOptions::default();
            options.after = after;
            options.limit = STEP;
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
                    match self.home.remove(&listed.path).await {
                        Ok(()) => attempt.progress.achieved(1, 0),
                        Err(error) => attempt.failed(&listed.path, "failed", &error),
                    }
                    removed.insert(listed.path);
                }
            }
            after = page.next;
            attempt.step(after.as_ref().map(|after| format!("{REMOVING}{after}")))?;
            if after.is_none() {
                return Ok(());
            }
        }
    }
}
