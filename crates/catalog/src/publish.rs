//! Publishing: prepare, then commit (docs/design/publishing.md).

pub(crate) mod version;

use std::collections::{BTreeMap, HashSet};

use percale_core::ids::{EntryId, Fence, LeaseId, VersionId};
use percale_core::{ByteCount, ObjectPath};

use crate::access::resolve;
use crate::batch::{Batch, PathLock, Wants, Written, check_quota};
use crate::catalog::Catalog;
use crate::engine::{Change, Query, Tx, to_json};
use crate::error::{Error, ErrorKind, Result};
use crate::extraction::{NewHeader, check_found, write_headers};
use crate::model::{
    Answer, AnswerKey, Commit, Committed, Content, FoundAttribute, Intent, IntentId, IntentRow, Prepare,
    StoreState,
};
use crate::record::{CreatedItem, kind};
use crate::rows::publish::{IntentBody, StoredIntent, actor};
use crate::rows::used;
use version::{Decided, Draft, FirstCopy, Place, Runs};

/// Most publications in one call.
pub const MAX_PUBLISH: usize = 10_000;

/// Publishing (docs/design/publishing.md).
impl Catalog {
    /// Prepares publications, each with its own outcome, in one transaction: checks permission, condition and lease,
    /// gives ids, reserves keys. The outcomes are in the order of what was wanted.
    ///
    /// # Errors
    /// For each: `AlreadyExists`, `PreconditionFailed`, `IsCollection`, `NotFound`, `NotACollection`, `LeaseExpired`,
    /// `ReadOnly`, `QuotaExceeded`.
    pub async fn prepare(&self, wanted: Vec<Prepare>) -> Vec<Result<Intent>> {
        let count = wanted.len();
        if count > MAX_PUBLISH {
            return refuse_all(count);
        }
        each(count, self.change(PrepareAll(wanted)).await)
    }

    /// Makes prepared publications visible, each with its own outcome, in one transaction. Their records are packed into
    /// one for each space.
    ///
    /// # Errors
    /// For each: `Conflict` if the object is not as it was at the preparation, `LeaseExpired`, `NotFound` if the
    /// intention or the collection is gone, `QuotaExceeded`. For all: `InvalidRequest` for values that an attribute cannot have.
    pub async fn commit(&self, written: Vec<Commit>) -> Vec<Result<Committed>> {
        let count = written.len();
        if count > MAX_PUBLISH {
            return refuse_all(count);
        }
        if let Err(error) =
            written.iter().flat_map(|commit| &commit.found).try_for_each(|found| check_found(found))
        {
            return each(count, Err(error));
        }
        each(count, self.change(CommitAll(written)).await)
    }

    /// Checks, before bytes are sent, that the quotas of spaces leave room for objects of so many, each by itself, in their order. The commit
    /// decides.
    ///
    /// # Errors
    /// `QuotaExceeded`
    pub async fn require_quotas(&self, wanted: Vec<(ObjectPath, ByteCount)>) -> Vec<Result<()>> {
        let count = wanted.len();
        each(count, self.ask(RequireQuotas(wanted)).await)
    }

    /// Gives up prepared publications whose bytes were removed. Those that are not there any more are passed over.
    pub async fn abandon(&self, intents: Vec<IntentId>) -> Result<()> {
        self.change(Abandon(intents)).await
    }

    /// Returns the intentions prepared under a lease.
    pub async fn intents_of(&self, lease: LeaseId) -> Result<Vec<IntentRow>> {
        self.ask(IntentsOf(lease)).await
    }

    /// Deletes an intention that was undone.
    pub async fn delete_intent(&self, intent: IntentId) -> Result<()> {
        self.abandon(vec![intent]).await
    }
}

pub(crate) fn each<R>(count: usize, outcome: Result<Vec<Result<R>>>) -> Vec<Result<R>> {
    match outcome {
        Ok(outcomes) => outcomes,
        Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
    }
}

pub(crate) fn refuse_all<R>(count: usize) -> Vec<Result<R>> {
    (0..count)
        .map(|_| Err(Error::invalid(format!("more than {MAX_PUBLISH} publications in one call"))))
        .collect()
}

/// The key under which a version is found whatever its object is called.
fn version_key(space: percale_core::ids::SpaceId, version: VersionId) -> String {
    format!(".percale/versions/{space}/{version}")
}

/// The key that is the object's own path.
pub(crate) fn natural_key(path: &ObjectPath) -> &str {
    path.as_str().trim_start_matches('/')
}

/// Checks that a lease is held, in the transaction that depends on it: its row is locked until the end.
pub(crate) async fn prove_lease<T: Tx>(batch: &mut Batch<'_, T>, id: LeaseId, fence: Fence) -> Result<()> {
    let now = batch.now();
    match batch.lease(id).await? {
        Some(lease) if lease.fence == fence && lease.expires > now => Ok(()),
        Some(lease) if lease.fence == fence => {
            let message = format!("lease {id} expired at {}", lease.expires);
            Err(Error::new(ErrorKind::LeaseExpired, message))
        }
        _ => Err(Error::new(
            ErrorKind::LeaseExpired,
            format!("lease {id} with fence {fence} is not held any more"),
        )),
    }
}

/// Ends a batch at once if the database failed; keeps what is the matter with one item otherwise.
pub(crate) fn one_outcome<R>(outcome: Result<R>) -> Result<Result<R>> {
    match outcome {
        Err(error) if error.fault().is_some() => Err(error),
        outcome => Ok(outcome),
    }
}

struct PrepareAll(Vec<Prepare>);

impl Change for PrepareAll {
    type Draft = Vec<Result<Intent>>;
    type Out = Vec<Result<Intent>>;

    fn want(&self, wants: &mut Wants) {
        for wanted in &self.0 {
            wants.path(&wanted.path, PathLock::NONE, &wanted.caller);
            wants.lease(wanted.lease);
            wants.store(wanted.store);
            if wanted.natural_key {
                wants.key(wanted.store, natural_key(&wanted.path).to_owned());
            }
        }
    }

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Self::Draft> {
        let mut outcomes = Vec::with_capacity(self.0.len());
        let mut made = Runs::default();
        for wanted in &self.0 {
            outcomes.push(one_outcome(prepare_one(batch, wanted, &mut made).await)?);
        }
        made.record(batch, kind::ENTRIES_CREATED)?;
        Ok(outcomes)
    }

    fn finish(self, draft: Self::Draft, _written: &Written) -> Self::Out {
        draft
    }
}

async fn prepare_one<T: Tx>(
    batch: &mut Batch<'_, T>,
    wanted: &Prepare,
    made: &mut Runs<CreatedItem>,
) -> Result<Intent> {
    let Prepare { caller, path, condition, parents, .. } = wanted;
    let (walk, base) = version::enter(batch, caller, path, PathLock::NONE, (*condition, *parents)).await?;
    prove_lease(batch, wanted.lease, wanted.fence).await?;
    let store = batch.store(wanted.store).await?;
    crate::store::own(&store)?;
    if store.store.state != StoreState::Online {
        let message = format!("cannot write {path}: the store {} is {}", store.store.name, store.store.state);
        return Err(Error::new(ErrorKind::ReadOnly, message));
    }
    if let Some(size) = wanted.size {
        batch.require_quota(&walk.space, path.as_str(), walk.target().map(AsRef::as_ref), size).await?;
    }
    let Place { sp, parent, name, entry, version } = version::place(batch, caller, path, &walk, made).await?;
    let space = walk.space.space.id;
    let key = match wanted.natural_key && !batch.is_taken(store.st, natural_key(path)).await? {
        true => natural_key(path).to_owned(),
        false => version_key(space, version),
    };
    let id = IntentId::new();
    let intent = Intent { id, space, entry, version, store: wanted.store, key, base };
    let row = IntentRow {
        intent: intent.clone(),
        lease: wanted.lease,
        fence: wanted.fence,
        parent,
        name,
        token: wanted.token.clone(),
        identity: wanted.identity.clone(),
        path: Some(path.clone()),
    };
    let body = IntentBody {
        v: 1,
        actor: actor(caller),
        path: Some(path.clone()),
        mtime: wanted.mtime,
        mode: wanted.mode,
    };
    batch.add_intent(StoredIntent { sp, st: store.st, row, body });
    Ok(intent)
}

struct CommitAll(Vec<Commit>);

impl Change for CommitAll {
    type Draft = Vec<Result<Draft>>;
    type Out = Vec<Result<Committed>>;

    fn want(&self, wants: &mut Wants) {
        for written in &self.0 {
            wants.intent(written.intent);
        }
    }

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Self::Draft> {
        let mut decided = Vec::with_capacity(self.0.len());
        for written in &self.0 {
            decided.push(one_outcome(commit_one(batch, written).await)?);
        }
        let mut drafts = version::record(batch, decided)?;
        let published = self
            .0
            .iter()
            .zip(&mut drafts)
            .filter_map(|(commit, draft)| Some((draft.as_mut().ok()?, commit.found.as_deref()?)));
        let mut spaces: BTreeMap<i64, Vec<(&mut Draft, &[FoundAttribute])>> = BTreeMap::new();
        for (draft, found) in published {
            spaces.entry(draft.sp).or_default().push((draft, found));
        }
        for (sp, published) in spaces {
            let new = |draft: &Draft, found| {
                let (entry, version) = (draft.entry, draft.version);
                NewHeader { entry, version, found, is_partial: false }
            };
            let headers: Vec<_> = published.iter().map(|(draft, found)| new(draft, *found)).collect();
            let replaced = published.iter().filter(|(draft, _)| !draft.created).map(|(draft, _)| draft.entry);
            let replaced: Vec<EntryId> = replaced.collect();
            let mark = write_headers(batch, sp, &headers, replaced).await?;
            published.into_iter().for_each(|(draft, _)| draft.mark = mark);
        }
        Ok(drafts)
    }

    fn answers(&self, draft: &Self::Draft, written: &Written) -> Result<Vec<(AnswerKey, Answer)>> {
        let mut answers = Vec::new();
        for (commit, draft) in self.0.iter().zip(draft) {
            if let (Some(key), Ok(draft)) = (&commit.answer, draft) {
                let status = if draft.created { 201 } else { 200 };
                let body = to_json(&draft.to_committed(written))?;
                answers.push((key.clone(), Answer { status, body }));
            }
        }
        Ok(answers)
    }

    fn finish(self, draft: Self::Draft, written: &Written) -> Self::Out {
        draft.into_iter().map(|draft| draft.map(|draft| draft.to_committed(written))).collect()
    }
}

async fn commit_one<T: Tx>(batch: &mut Batch<'_, T>, commit: &Commit) -> Result<Decided> {
    let Some(stored) = batch.intent(commit.intent).await? else {
        let message = format!("intent {} is not there: committed, undone or never made", commit.intent);
        return Err(Error::new(ErrorKind::NotFound, message));
    };
    let StoredIntent { sp, st, row, body } = stored.as_ref();
    let IntentRow { intent, name, parent, .. } = row;
    prove_lease(batch, row.lease, row.fence).await?;
    let place =
        Place { sp: *sp, parent: *parent, name: name.clone(), entry: intent.entry, version: intent.version };
    let copy = FirstCopy {
        store: intent.store,
        st: *st,
        is_own: true,
        key: commit.key.clone().unwrap_or_else(|| intent.key.clone()),
        reserved: Some(&intent.key),
        generation: commit.generation.clone(),
    };
    let content = Content {
        version: intent.version,
        size: commit.size,
        root: commit.root,
        mtime: commit.mtime.or(body.mtime),
        mode: body.mode,
        digests: commit.digests.clone(),
    };
    let decided = version::add(batch, &body.actor, place, intent.base, content, copy).await?;
    batch.end_intent(commit.intent);
    Ok(decided)
}

struct RequireQuotas(Vec<(ObjectPath, ByteCount)>);

impl Query for RequireQuotas {
    type Out = Vec<Result<()>>;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<Result<()>>> {
        let mut unbounded = HashSet::new();
        let mut outcomes = Vec::with_capacity(self.0.len());
        for (path, size) in &self.0 {
            if path.space().is_some_and(|space| unbounded.contains(&space)) {
                outcomes.push(Ok(()));
                continue;
            }
            // The commit says better what else is the matter with the path.
            let Some(resolved) = resolve(tx, path).await? else {
                outcomes.push(Ok(()));
                continue;
            };
            let space = &resolved.space.space;
            if space.quota.is_none() {
                unbounded.insert(space.name.clone());
                outcomes.push(Ok(()));
                continue;
            }
            let used = used::of_spaces(tx, vec![space.id]).await?.remove(&space.id).unwrap_or_default();
            outcomes.push(check_quota(space, used, path.as_str(), resolved.target(path).ok(), *size));
        }
        Ok(outcomes)
    }
}

struct Abandon(Vec<IntentId>);

impl Change for Abandon {
    type Draft = ();
    type Out = ();

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<()> {
        for id in &self.0 {
            batch.end_intent(*id);
        }
        Ok(())
    }

    fn finish(self, (): (), _written: &Written) {}
}

struct IntentsOf(LeaseId);

impl Query for IntentsOf {
    type Out = Vec<IntentRow>;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<IntentRow>> {
        crate::rows::publish::of_lease(tx, self.0).await
    }
}
