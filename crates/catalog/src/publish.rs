//! Publishing: prepare, then commit (docs/design/publishing.md).

use std::collections::BTreeMap;

use percale_core::ObjectPath;
use percale_core::access::Permission;
use percale_core::ids::{EntryId, Fence, LeaseId, VersionId};
use percale_core::state::ReplicaState;
use percale_core::tree::RootHash;

use crate::access::through_object;
use crate::batch::{Batch, Mark, PathLock, Walk, Wants, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Query, Tx, to_json};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{
    Answer, AnswerKey, Commit, Committed, Condition, Content, EntryKind, Intent, IntentId, IntentRow,
    Prepare, Replica, SpaceState, StoreState,
};
use crate::namespace::{exists, make_parents, require_parent};
use crate::record::{CreatedItem, Items, PublishedItem, ReplicaItem, kind};
use crate::rows::Lock;
use crate::rows::entry::EntryRow;
use crate::rows::publish::{IntentBody, StoredIntent, actor};
use crate::rows::replica::ReplicaRow;

/// Most publications in one call.
pub const MAX_PUBLISH: usize = 10_000;

/// Publishing (docs/design/publishing.md).
impl Catalog {
    /// Prepares publications, each with its own outcome, in one transaction: checks permission, condition and lease,
    /// gives ids, reserves keys. The outcomes are in the order of what was wanted.
    ///
    /// # Errors
    /// For each: `AlreadyExists`, `PreconditionFailed`, `IsCollection`, `NotFound`, `NotACollection`, `LeaseExpired`,
    /// `ReadOnly`.
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
    /// intention or the collection is gone.
    pub async fn commit(&self, written: Vec<Commit>) -> Vec<Result<Committed>> {
        let count = written.len();
        if count > MAX_PUBLISH {
            return refuse_all(count);
        }
        each(count, self.change(CommitAll(written)).await)
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
        let mut made: BTreeMap<(i64, String), Vec<CreatedItem>> = BTreeMap::new();
        for wanted in &self.0 {
            outcomes.push(one_outcome(prepare_one(batch, wanted, &mut made).await)?);
        }
        for ((sp, actor), items) in made {
            batch.record(sp, &actor, kind::ENTRIES_CREATED, &Items { items })?;
        }
        Ok(outcomes)
    }

    fn finish(self, draft: Self::Draft, _written: &Written) -> Self::Out {
        draft
    }
}

async fn prepare_one<T: Tx>(
    batch: &mut Batch<'_, T>,
    wanted: &Prepare,
    made: &mut BTreeMap<(i64, String), Vec<CreatedItem>>,
) -> Result<Intent> {
    let Prepare { caller, path, .. } = wanted;
    let walk = batch.enter(caller, Permission::Write, path, PathLock::NONE).await?;
    if path.is_space() {
        return Err(Error::new(ErrorKind::IsCollection, format!("{path} is the root of a space")));
    }
    let base = check_condition(wanted, &walk)?;
    prove_lease(batch, wanted.lease, wanted.fence).await?;
    let store = batch.store(wanted.store).await?;
    crate::store::own(&store)?;
    if store.store.state != StoreState::Online {
        let message = format!("cannot write {path}: the store {} is {}", store.store.name, store.store.state);
        return Err(Error::new(ErrorKind::ReadOnly, message));
    }
    let sp = walk.space.sp;
    let space = walk.space.space.id;
    let name = path.name().unwrap_or_default().to_owned();
    // From here on nothing is refused, since collections may be made.
    let (parent, entry) = match walk.target() {
        Some(object) => (object.parent, object.id),
        None => {
            let (items, parent) = make_parents(batch, path, &walk, 1).await?;
            if !items.is_empty() {
                made.entry((sp, actor(caller))).or_default().extend(items);
            }
            (parent.id, batch.next_id(sp).await?)
        }
    };
    let version = VersionId(batch.next_id(sp).await?);
    let key = match wanted.natural_key && !batch.is_taken(store.st, natural_key(path)).await? {
        true => natural_key(path).to_owned(),
        false => version_key(space, version),
    };
    let id = IntentId::new();
    let intent = Intent { id, space, entry: EntryId(entry), version, store: wanted.store, key, base };
    let row = IntentRow {
        intent: intent.clone(),
        lease: wanted.lease,
        fence: wanted.fence,
        parent: EntryId(parent),
        name,
        token: wanted.token.clone(),
        identity: wanted.identity.clone(),
        path: Some(path.clone()),
    };
    let body = IntentBody { v: 1, actor: actor(caller), path: Some(path.clone()), mtime: wanted.mtime };
    batch.add_intent(StoredIntent { sp, st: store.st, row, body });
    Ok(intent)
}

/// Checks what must be at the path and returns the version that is.
fn check_condition(wanted: &Prepare, walk: &Walk) -> Result<Option<VersionId>> {
    let Prepare { path, condition, parents, .. } = wanted;
    let failed =
        |version, message: String| Err(Error::new(ErrorKind::PreconditionFailed { version }, message));
    let Some(target) = walk.target() else {
        if !walk.last()?.is_collection() {
            return Err(through_object(path));
        }
        return match condition {
            Condition::Match(version) => failed(None, format!("{path} does not have version {version}")),
            Condition::Existing => failed(None, format!("{path} does not exist")),
            Condition::New | Condition::Any if *parents => Ok(None),
            Condition::New | Condition::Any => require_parent(path, walk).map(|()| None),
        };
    };
    let version = target.version();
    match (target.kind, condition) {
        (EntryKind::Collection, _) => {
            Err(Error::new(ErrorKind::IsCollection, format!("cannot write {path}: it is a collection")))
        }
        (_, Condition::New) => Err(exists(path, version)),
        (_, Condition::Match(wanted)) if Some(*wanted) != version => {
            failed(version, format!("{path} does not have version {wanted}"))
        }
        _ => Ok(version),
    }
}

struct CommitAll(Vec<Commit>);

/// A publication whose record has no number yet.
pub(crate) struct Draft {
    path: ObjectPath,
    entry: EntryId,
    version: VersionId,
    created: bool,
    mark: Mark,
}

impl Draft {
    fn to_committed(&self, written: &Written) -> Committed {
        let Draft { path, entry, version, created, mark } = self;
        Committed {
            path: path.clone(),
            entry: *entry,
            version: *version,
            position: written.position(*mark),
            created: *created,
        }
    }
}

/// A publication that is decided.
struct Decided {
    sp: i64,
    actor: String,
    item: PublishedItem,
    path: ObjectPath,
}

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
        let mut items: BTreeMap<(i64, &str), Vec<&PublishedItem>> = BTreeMap::new();
        for one in decided.iter().flatten() {
            items.entry((one.sp, one.actor.as_str())).or_default().push(&one.item);
        }
        let mut marks = BTreeMap::new();
        for ((sp, actor), items) in items {
            marks.insert((sp, actor), batch.record(sp, actor, kind::OBJECTS_PUBLISHED, &Items { items })?);
        }
        let mut drafts = Vec::with_capacity(decided.len());
        for one in &decided {
            drafts.push(match one {
                Err(error) => Err(error.clone()),
                Ok(Decided { sp, actor, item, path }) => {
                    let mark = marks.get(&(*sp, actor.as_str())).copied();
                    let mark = mark.ok_or_else(|| Error::internal("a publication has no record"))?;
                    let created = item.base.is_none();
                    Ok(Draft { path: path.clone(), entry: item.id, version: item.version, created, mark })
                }
            });
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
    let (sp, st) = (*sp, *st);
    let IntentRow { intent, name, parent, .. } = row;
    prove_lease(batch, row.lease, row.fence).await?;
    let space = batch.space(sp).await?;
    space.require_home()?;
    if space.is_removed || space.space.state != SpaceState::Active {
        let message = format!("cannot publish '{name}': the space {} takes no writes", space.space.name);
        return Err(Error::new(ErrorKind::ReadOnly, message));
    }
    match batch.entry(sp, parent.0, Lock::Share).await? {
        Some(parent) if parent.is_collection() => {}
        _ => {
            let message = format!("cannot publish '{name}': its collection was removed");
            return Err(Error::new(ErrorKind::NotFound, message));
        }
    }
    let current = batch.child(sp, parent.0, name, Lock::Update).await?;
    let current_version = current.as_ref().and_then(|entry| entry.version());
    if current_version != intent.base || current.as_ref().is_some_and(|entry| entry.is_collection()) {
        let message = format!("cannot publish '{name}': it was changed by somebody else in the meantime");
        return Err(Error::new(ErrorKind::Conflict { version: current_version }, message));
    }
    let key = match &commit.key {
        Some(key) if *key != intent.key => {
            if batch.is_taken(st, key).await? {
                let message = format!("cannot publish '{name}': the key '{key}' is taken");
                return Err(Error::new(ErrorKind::Conflict { version: current_version }, message));
            }
            key.clone()
        }
        _ => intent.key.clone(),
    };
    let parent_path = batch.path_of(sp, parent.0).await?;
    let path = parent_path
        .join(name)
        .map_err(|error| Error::invalid(format!("cannot publish '{name}'")).with_source(error))?;
    let now = batch.now();
    let content = Content {
        version: intent.version,
        size: commit.size,
        root: commit.root,
        mtime: commit.mtime.or(body.mtime),
        digests: commit.digests.clone(),
    };
    if commit.size.get() > i64::MAX as u64 {
        return Err(Error::invalid(format!("cannot publish '{name}': its size is more than 2^63 - 1 bytes")));
    }
    let entry = match current {
        Some(entry) => {
            if let Some(old) = &entry.content {
                batch.supersede(sp, entry.id, old, entry.modified).await?;
            }
            batch.change(EntryRow { modified: now, content: Some(content.clone()), ..(*entry).clone() })
        }
        None => batch.add(EntryRow {
            sp,
            id: intent.entry.0,
            parent: parent.0,
            name: name.clone(),
            kind: EntryKind::Object,
            created: now,
            modified: now,
            content: Some(content.clone()),
        }),
    };
    let replica = first_replica(intent, key, commit.root, commit.generation.clone(), now);
    let item = PublishedItem {
        id: EntryId(entry.id),
        parent: *parent,
        name: name.clone(),
        version: intent.version,
        size: content.size,
        root: content.root,
        mtime: content.mtime,
        base: intent.base,
        replica: ReplicaItem::new(&replica, None),
        digests: content.digests,
    };
    batch.add_replica(ReplicaRow { sp, st, entry: entry.id, is_own: true, replica });
    batch.end_intent(commit.intent);
    Ok(Decided { sp, actor: body.actor.clone(), item, path })
}

fn first_replica(
    intent: &Intent,
    key: String,
    root: Option<RootHash>,
    generation: Option<String>,
    now: percale_core::Timestamp,
) -> Replica {
    Replica {
        version: intent.version,
        store: intent.store,
        key,
        state: if root.is_some() { ReplicaState::Good } else { ReplicaState::Unverified },
        generation,
        checked: root.map(|_| now),
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
