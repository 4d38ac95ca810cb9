//! Copies that come and go at the word of the sites that hold them, at the home of their space.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use percale_core::access::Caller;
use percale_core::ids::{SiteId, SpaceId};
use percale_core::state::ReplicaState;

use crate::batch::{Batch, Mark, Wants, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{
    Arrival, ArrivalId, Content, CopyAnswer, CopyId, EvictAnswer, NewCopy, PeerState, Replica, StoreState,
};
use crate::publish::{MAX_PUBLISH, each, one_outcome, refuse_all};
use crate::record::{Items, ReplicaItem, ReplicaRemovedItem, kind};
use crate::remote::{Asked, check_key, own_arrivals, require_arrival, store_of, this_site};
use crate::replica::lock_copies;
use crate::rows::entry::EntryRow;
use crate::rows::publish::actor;
use crate::rows::replica::ReplicaRow;
use crate::rows::told::{self, LateAnswer, Told};
use crate::rows::{Lock, arrival, peer};

/// Copies of versions in spaces that are at home here. These calls are the server's own; `actor` is only for the journal.
impl Catalog {
    /// Adds further copies, each with its own outcome, in one transaction. `site` has them on its stores; nothing means
    /// this one, whose arrival ends with it. Asked again with the same arrival, within 7 days, it answers the same.
    ///
    /// - A copy takes the place of one on the same store that is `suspect` or `lost`.
    /// - A version that has no root yet gets it only from the site that has all its copies, or from this one.
    ///
    /// # Errors
    /// For each:
    /// - `DoesNotFit` if the copy has another root than the version: the site is wrong about its bytes.
    /// - `NotAllowed` for a store of another site.
    /// - `Foreign` if the space is not at home here, `SpaceNotFound`.
    /// - `Conflict` if the key is another copy's, the store is not known yet, the version has no root yet, or, for this
    ///   site, the arrival is not settled.
    /// - `InvalidRequest` for an arrival that is older than 7 days or from the future, or a key that no store has.
    pub async fn add_copies(
        &self,
        site: Option<SiteId>,
        actor: &Caller,
        copies: Vec<NewCopy>,
    ) -> Vec<Result<CopyAnswer>> {
        let count = copies.len();
        if count > MAX_PUBLISH {
            return refuse_all(count);
        }
        each(count, self.change(AddCopies { site, actor: actor.clone(), copies }).await)
    }

    /// Takes copies away, each with its own outcome, in one transaction. `site` has them on its stores; nothing means this
    /// one, where their bytes become garbage at once. At another site they do when that applies the record.
    ///
    /// - A copy of the current version goes only if another one is `good`, on a store that is not away and whose site was
    ///   not removed from the fabric.
    ///
    /// # Errors
    /// For each: `Conflict` for the last good copy, `NotAllowed` for a store of another site, `Foreign` if the space is
    /// not at home here, `SpaceNotFound`.
    pub async fn remove_copies(
        &self,
        site: Option<SiteId>,
        actor: &Caller,
        copies: Vec<CopyId>,
    ) -> Vec<Result<EvictAnswer>> {
        let count = copies.len();
        if count > MAX_PUBLISH {
            return refuse_all(count);
        }
        each(count, self.change(RemoveCopies { site, actor: actor.clone(), copies }).await)
    }
}

/// Returns the number of a space that is at home here, or nothing if it was removed.
pub(crate) async fn home_space<T: Tx>(batch: &mut Batch<'_, T>, id: SpaceId) -> Result<Option<i64>> {
    let missing = || Error::new(ErrorKind::SpaceNotFound, format!("there is no space {id}"));
    let row = batch.space_by_id(id).await?.ok_or_else(missing)?;
    row.require_home()?;
    Ok(if row.is_removed { None } else { Some(row.sp) })
}

struct AddCopies {
    site: Option<SiteId>,
    actor: Caller,
    copies: Vec<NewCopy>,
}

/// What is decided on a copy.
enum Added {
    /// Nothing changes.
    Answer(CopyAnswer),
    /// It is there already.
    There(i64),
    /// It is new.
    New { sp: i64, item: ReplicaItem },
}

/// What is answered about a copy, perhaps before the journal has numbers.
#[derive(Debug, Clone)]
pub(crate) enum Copied {
    Answer(CopyAnswer),
    At(Mark),
}

impl Copied {
    fn answer(&self, written: &Written) -> CopyAnswer {
        match self {
            Copied::Answer(answer) => answer.clone(),
            Copied::At(mark) => CopyAnswer::Added { position: written.position(*mark) },
        }
    }
}

/// The answers to copies, and those of them that are new.
pub(crate) struct AddedCopies {
    outcomes: Vec<Result<Copied>>,
    new: Vec<(ArrivalId, Copied)>,
}

impl Change for AddCopies {
    type Draft = AddedCopies;
    type Out = Vec<Result<CopyAnswer>>;

    fn want(&self, wants: &mut Wants) {
        for copy in &self.copies {
            wants.key(copy.store, copy.key.clone());
        }
    }

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<AddedCopies> {
        let here = this_site(batch).await?;
        let site = self.site.unwrap_or(here);
        let ids: BTreeSet<ArrivalId> = self.copies.iter().map(|copy| copy.id).collect();
        // The rows of own arrivals stand for what is kept about those of other sites.
        let (own, asked) = match self.site {
            None => (Some(own_arrivals(batch.tx, ids.into_iter().collect()).await?), None),
            Some(site) => (None, Some(Asked::load(batch.tx, site, ids).await?)),
        };
        lock_copies(batch, self.copies.iter().map(|copy| (copy.space, copy.version)).collect()).await?;
        let mut decided: Vec<Result<Added>> = Vec::with_capacity(self.copies.len());
        let mut of_id: HashMap<ArrivalId, usize> = HashMap::new();
        for (at, copy) in self.copies.iter().enumerate() {
            let before = match &asked {
                Some(asked) => asked.get(copy.id, batch.now()),
                None => Ok(None),
            };
            decided.push(match before {
                Err(error) => Err(error),
                Ok(Some(Told::Copied(answer))) => Ok(Added::Answer(answer.clone())),
                Ok(Some(_)) => Err(Error::invalid(format!("arrival {} is a publication", copy.id))),
                Ok(None) => one_outcome(add_one(batch, (site, here), copy, own.as_ref()).await)?,
            });
            if matches!(decided.last(), Some(Ok(_))) {
                of_id.entry(copy.id).or_insert(at);
            }
        }
        let marks = record_added(batch, &actor(&self.actor), &decided)?;
        let no_mark = || Error::internal("a new copy has no record");
        let outcome = |added: Result<Added>| match added? {
            Added::Answer(answer) => Ok(Copied::Answer(answer)),
            Added::There(sp) => Ok(Copied::At(batch.no_record(sp))),
            Added::New { sp, .. } => marks.get(&sp).copied().map(Copied::At).ok_or_else(no_mark),
        };
        let outcomes: Vec<Result<Copied>> = decided.into_iter().map(outcome).collect();
        let first = of_id.into_iter().filter(|(id, _)| asked.as_ref().is_none_or(|asked| !asked.has(*id)));
        let new: Vec<(ArrivalId, Copied)> =
            first.filter_map(|(id, at)| Some((id, outcomes.get(at)?.as_ref().ok()?.clone()))).collect();
        if own.is_some() {
            let named = new.iter().filter(|(_, copied)| matches!(copied, Copied::At(_)));
            arrival::delete(batch.tx, named.map(|(id, _)| *id).collect()).await?;
            return Ok(AddedCopies { outcomes, new: Vec::new() });
        }
        let kept = |(id, copied): &(ArrivalId, Copied)| match copied {
            Copied::Answer(answer) => (*id, Told::Copied(answer.clone())),
            Copied::At(_) => (*id, Told::Deciding),
        };
        told::insert(batch.tx, site, &new.iter().map(kept).collect::<Vec<_>>()).await?;
        Ok(AddedCopies { outcomes, new })
    }

    fn told(&self, draft: &AddedCopies, written: &Written) -> Vec<LateAnswer> {
        let Some(site) = self.site else { return Vec::new() };
        let late = draft.new.iter().filter(|(_, copied)| matches!(copied, Copied::At(_)));
        late.map(|(id, copied)| (site, *id, Told::Copied(copied.answer(written)))).collect()
    }

    fn finish(self, draft: AddedCopies, written: &Written) -> Self::Out {
        draft.outcomes.into_iter().map(|outcome| outcome.map(|copied| copied.answer(written))).collect()
    }
}

/// Writes the records of new copies, and returns the mark of each space.
fn record_added<T: Tx>(
    batch: &mut Batch<'_, T>,
    actor: &str,
    decided: &[Result<Added>],
) -> Result<BTreeMap<i64, Mark>> {
    let mut of_space: BTreeMap<i64, Vec<&ReplicaItem>> = BTreeMap::new();
    for added in decided.iter().flatten() {
        if let Added::New { sp, item } = added {
            of_space.entry(*sp).or_default().push(item);
        }
    }
    let mut marks = BTreeMap::new();
    for (sp, items) in of_space {
        marks.insert(sp, batch.record(sp, actor, kind::REPLICAS_CHANGED, &Items { items })?);
    }
    Ok(marks)
}

/// Decides on one copy.
async fn add_one<T: Tx>(
    batch: &mut Batch<'_, T>,
    (site, here): (SiteId, SiteId),
    copy: &NewCopy,
    own: Option<&HashMap<ArrivalId, Arrival>>,
) -> Result<Added> {
    let NewCopy { id, space, version, store, key, .. } = copy;
    let row = store_of(batch, *store, site, here).await?;
    check_key(key)?;
    let Some(sp) = home_space(batch, *space).await? else { return Ok(Added::Answer(CopyAnswer::Gone)) };
    let copies = batch.replicas(sp, *version).await?;
    let Some(of_entry) = copies.first().map(|row| row.entry) else {
        return Ok(Added::Answer(CopyAnswer::Gone));
    };
    let entry = batch.entry(sp, of_entry, Lock::Update).await?;
    let current = entry.and_then(|entry| Some((entry.content.clone()?, entry)));
    let Some((content, entry)) = current.filter(|(content, _)| content.version == *version) else {
        return Ok(Added::Answer(CopyAnswer::Gone));
    };
    let known = copies.iter().find(|known| known.st == row.st).cloned();
    match &known {
        Some(known) if known.replica.key == *key => return Ok(Added::There(sp)),
        Some(known) if !matches!(known.replica.state, ReplicaState::Suspect | ReplicaState::Lost) => {
            return Ok(Added::Answer(CopyAnswer::Known { key: known.replica.key.clone() }));
        }
        _ => {}
    }
    let mut is_first_root = false;
    match content.root {
        Some(root) if root != copy.root => {
            let message = format!(
                "the copy of version {version} on store {store} does not have the version's root: its bytes are others"
            );
            return Err(Error::new(ErrorKind::DoesNotFit, message));
        }
        Some(_) => {}
        None => {
            for other in &copies {
                let owner = batch.store(other.replica.store).await?.store.site.unwrap_or(here);
                if site != here && owner != site {
                    let message = format!(
                        "version {version} has no root yet, which site {owner} has to find: verify its copy there first"
                    );
                    return Err(Error::new(ErrorKind::Conflict { version: Some(*version) }, message));
                }
            }
            is_first_root = true;
        }
    }
    match own {
        Some(arrivals) => require_arrival(arrivals, *id, (*store, key))?,
        None if batch.is_taken(row.st, key).await? => {
            let message =
                format!("cannot add a copy of version {version}: the store {store} has another at '{key}'");
            return Err(Error::new(ErrorKind::Conflict { version: Some(*version) }, message));
        }
        None => {}
    }
    if let Some(known) = known {
        batch.remove_copy(known);
    }
    if is_first_root {
        let content = Some(Content { root: Some(copy.root), ..content });
        batch.change(EntryRow { content, ..(*entry).clone() });
    }
    let replica = Replica {
        version: *version,
        store: *store,
        key: key.clone(),
        state: ReplicaState::Good,
        generation: copy.generation.clone(),
        checked: Some(batch.now()),
    };
    let item = ReplicaItem::new(&replica, is_first_root.then_some(copy.root));
    batch.add_replica(ReplicaRow { sp, st: row.st, entry: entry.id, is_own: site == here, replica });
    Ok(Added::New { sp, item })
}

struct RemoveCopies {
    site: Option<SiteId>,
    actor: Caller,
    copies: Vec<CopyId>,
}

impl Change for RemoveCopies {
    type Draft = Vec<Result<Option<Mark>>>;
    type Out = Vec<Result<EvictAnswer>>;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Self::Draft> {
        let here = this_site(batch).await?;
        let site = self.site.unwrap_or(here);
        let peers = peer::peers(batch.tx).await?;
        let removed: HashSet<SiteId> =
            peers.into_iter().filter(|peer| peer.state == PeerState::Removed).map(|peer| peer.id).collect();
        lock_copies(batch, self.copies.iter().map(|copy| (copy.space, copy.version)).collect()).await?;
        let mut decided = Vec::with_capacity(self.copies.len());
        let mut items: BTreeMap<i64, Vec<ReplicaRemovedItem>> = BTreeMap::new();
        for copy in &self.copies {
            let outcome = one_outcome(remove_one(batch, (site, here), *copy, &removed).await)?;
            if let Ok(Some(sp)) = outcome {
                let item = ReplicaRemovedItem { version: copy.version, store: copy.store };
                items.entry(sp).or_default().push(item);
            }
            decided.push(outcome);
        }
        let mut marks = BTreeMap::new();
        for (sp, items) in items {
            let mark = batch.record(sp, &actor(&self.actor), kind::REPLICAS_REMOVED, &Items { items })?;
            marks.insert(sp, mark);
        }
        Ok(decided.into_iter().map(|outcome| outcome.map(|sp| marks.get(&sp?).copied())).collect())
    }

    fn finish(self, draft: Self::Draft, written: &Written) -> Self::Out {
        let answer = |mark: Option<Mark>| match mark {
            Some(mark) => EvictAnswer::Removed { position: written.position(mark) },
            None => EvictAnswer::Gone,
        };
        draft.into_iter().map(|outcome| outcome.map(answer)).collect()
    }
}

/// Decides on taking one copy away. Returns its space if it was there.
async fn remove_one<T: Tx>(
    batch: &mut Batch<'_, T>,
    (site, here): (SiteId, SiteId),
    copy: CopyId,
    removed: &HashSet<SiteId>,
) -> Result<Option<i64>> {
    let CopyId { space, version, store } = copy;
    let st = store_of(batch, store, site, here).await?.st;
    let Some(sp) = home_space(batch, space).await? else { return Ok(None) };
    let copies = batch.replicas(sp, version).await?;
    let Some(row) = copies.iter().find(|row| row.st == st).cloned() else { return Ok(None) };
    let entry = batch.entry(sp, row.entry, Lock::Update).await?;
    if entry.is_some_and(|entry| entry.version() == Some(version)) {
        let mut is_kept = false;
        for other in &copies {
            if other.st != row.st && other.replica.state == ReplicaState::Good {
                let store = &batch.store(other.replica.store).await?.store;
                is_kept |= store.state != StoreState::Offline
                    && store.site.is_none_or(|owner| !removed.contains(&owner));
            }
        }
        if !is_kept {
            let message = format!(
                "cannot remove the copy of version {version} on store {store}: no other copy that can be reached is good; \
                 make one first"
            );
            return Err(Error::new(ErrorKind::Conflict { version: Some(version) }, message));
        }
    }
    batch.remove_copy(row);
    Ok(Some(sp))
}
