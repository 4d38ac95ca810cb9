//! Copies that arrive on own stores, at the site that owns the store (docs/design/following.md).

mod end;

use std::collections::{HashMap, HashSet};

use percale_core::Position;
use percale_core::ids::{Fence, LeaseId, SpaceId, VersionId};

use crate::batch::{Batch, Wants, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Query, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{
    Arrival, ArrivalBody, ArrivalEnd, ArrivalId, ArrivalState, NewArrival, Settled, StoreState, ToldArrival,
};
use crate::publish::{MAX_PUBLISH, each, natural_key, one_outcome, prove_lease, refuse_all};
use crate::rows::Lock;
use crate::rows::arrival::{self, ArrivalRow};
use crate::rows::site::{self, SpaceRow};

use end::Finish;

/// Copies that arrive on own stores, of versions that another site, or this one, orders (docs/design/following.md).
///
/// The order: `reserve_arrivals`, rename and flush, `settle_arrivals`, tell the home; the arrival ends when this site applies
/// the home's record. What the home answered is noted, by `note_told`, of publications, and of copies that the record keeps
/// waiting; `finish_arrived` ends those that it has passed by. Each may be repeated.
impl Catalog {
    /// Takes keys for staged bytes, each with its own outcome, in one transaction.
    ///
    /// # Errors
    /// For each: `LeaseExpired`, `SpaceNotFound`, `NotFound`, `Foreign` for a store of another site, `ReadOnly`,
    /// `InvalidRequest` for a copy without its version, or a new version in a space that is at home here.
    pub async fn reserve_arrivals(&self, wanted: Vec<NewArrival>) -> Vec<Result<Arrival>> {
        let count = wanted.len();
        if count > MAX_PUBLISH {
            return refuse_all(count);
        }
        each(count, self.change(Reserve(wanted)).await)
    }

    /// Notes that the bytes of arrivals are good and durable at their keys. One that is settled already stays so.
    ///
    /// # Errors
    /// For each: `LeaseExpired`, `NotFound`, `Conflict` if another key is given and is taken.
    pub async fn settle_arrivals(&self, settled: Vec<Settled>) -> Vec<Result<()>> {
        let count = settled.len();
        if count > MAX_PUBLISH {
            return refuse_all(count);
        }
        each(count, self.change(Settle(settled)).await)
    }

    /// Notes what the home answered: of which version an arrival is a copy, and where its journal says so. Of one that is not
    /// there, since its record came first, there is nothing to note.
    ///
    /// # Errors
    /// For each: `Conflict` if it is noted with another version or its bytes are not settled. What a home answered that was
    /// replaced since, at a smaller term, may be answered otherwise by its successor.
    pub async fn note_told(&self, told: Vec<ToldArrival>) -> Vec<Result<()>> {
        each(told.len(), self.change(NoteTold(told)).await)
    }

    /// Returns the arrivals under a lease, for recovery.
    pub async fn arrivals_of(&self, lease: LeaseId) -> Result<Vec<Arrival>> {
        self.ask(OfLease(lease)).await
    }

    /// Returns arrivals whose bytes are settled, behind `after`, in the order of their ids. Those without
    /// [`Arrival::told`] are to be told; some were, and their records have not come.
    pub async fn written_arrivals(&self, limit: usize, after: Option<ArrivalId>) -> Result<Vec<Arrival>> {
        let after = after.unwrap_or(ArrivalId(uuid::Uuid::nil()));
        self.ask(ListWritten { after, limit: limit.clamp(1, MAX_PUBLISH) }).await
    }

    /// Puts the arrivals of a holder that lost its lease under another one, each with its own outcome.
    ///
    /// # Errors
    /// For each: `NotFound`, `Conflict` while its lease is held, `LeaseExpired` if the new one is not.
    pub async fn adopt_arrivals(
        &self,
        arrivals: Vec<ArrivalId>,
        lease: LeaseId,
        fence: Fence,
    ) -> Vec<Result<()>> {
        each(arrivals.len(), self.change(Adopt { arrivals, lease, fence }).await)
    }

    /// Ends arrivals, each with its own outcome. One that is not there has ended.
    ///
    /// - Bytes that have a name by now, a copy with the same key, never become garbage; the arrival just ends.
    /// - Where the home's record was applied and the copy has gone again, its bytes become garbage in any case.
    ///
    /// # Errors
    /// For each `Conflict`, and the arrival stays: `Done` before the home's record was applied here; `Garbage` or
    /// `Removed` after the home promised to keep it; `Garbage` before the bytes were settled, since the file at the key
    /// may be another's.
    pub async fn end_arrivals(&self, arrivals: Vec<ArrivalId>, end: ArrivalEnd) -> Vec<Result<()>> {
        each(arrivals.len(), self.change(Finish { arrivals, end }).await)
    }

    /// Ends all arrivals that the home has answered and whose record was applied here. Returns how many.
    ///
    /// - One that was promised by a home which was replaced, and is not known to its successor, is to be told again, or to
    ///   be given up: what that home had taken and nobody else heard of is lost.
    pub async fn finish_arrived(&self) -> Result<u64> {
        let mut after = None;
        let mut finished = 0;
        loop {
            let mut written = self.written_arrivals(1000, after).await?;
            let Some(last) = written.last() else { return Ok(finished) };
            after = Some(last.id);
            written.retain(|arrival| arrival.told.is_some());
            if !written.is_empty() {
                let arrivals = written.iter().map(|arrival| arrival.id).collect();
                let ends = self.change(Finish { arrivals, end: ArrivalEnd::Done }).await?;
                finished += ends.iter().filter(|end| end.is_ok()).count() as u64;
            }
        }
    }
}

fn missing(id: ArrivalId) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no arrival {id}"))
}

fn conflict(message: String) -> Error {
    Error::new(ErrorKind::Conflict { version: None }, message)
}

/// Returns the rows of these arrivals, locked.
async fn locked<T: Tx>(tx: &T, ids: &[ArrivalId]) -> Result<HashMap<ArrivalId, ArrivalRow>> {
    let ids: HashSet<ArrivalId> = ids.iter().copied().collect();
    let rows = arrival::by_ids(tx, ids.into_iter().collect(), Lock::Update).await?;
    Ok(rows.into_iter().map(|row| (row.arrival.id, row)).collect())
}

struct Reserve(Vec<NewArrival>);

impl Change for Reserve {
    type Draft = Vec<Result<Arrival>>;
    type Out = Vec<Result<Arrival>>;

    fn want(&self, wants: &mut Wants) {
        for wanted in &self.0 {
            wants.lease(wanted.lease);
            wants.store(wanted.store);
            if let Some(path) = &wanted.path {
                wants.key(wanted.store, natural_key(path).to_owned());
            }
        }
    }

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Self::Draft> {
        let mut spaces = HashMap::new();
        let mut keys = HashSet::new();
        let mut rows = Vec::with_capacity(self.0.len());
        for wanted in &self.0 {
            if let std::collections::hash_map::Entry::Vacant(slot) = spaces.entry(wanted.space) {
                let found = site::space_by_id(batch.tx, wanted.space).await?;
                slot.insert(found.filter(|row| !row.is_removed));
            }
            rows.push(one_outcome(reserve_one(batch, wanted, &spaces, &mut keys).await)?);
        }
        let new: Vec<&ArrivalRow> = rows.iter().flatten().collect();
        arrival::insert(batch.tx, &new).await?;
        for (st, key) in keys {
            batch.forget_key(st, &key);
        }
        Ok(rows.into_iter().map(|row| row.map(|row| row.arrival)).collect())
    }

    fn finish(self, draft: Self::Draft, _written: &Written) -> Self::Out {
        draft
    }
}

async fn reserve_one<T: Tx>(
    batch: &mut Batch<'_, T>,
    wanted: &NewArrival,
    spaces: &HashMap<SpaceId, Option<SpaceRow>>,
    keys: &mut HashSet<(i64, String)>,
) -> Result<ArrivalRow> {
    prove_lease(batch, wanted.lease, wanted.fence).await?;
    let no_space = || Error::new(ErrorKind::SpaceNotFound, format!("there is no space {}", wanted.space));
    let space = spaces.get(&wanted.space).and_then(Option::as_ref).ok_or_else(no_space)?;
    match (&wanted.body, wanted.version) {
        (ArrivalBody::Copy { .. }, None) => return Err(Error::invalid("a copy is one of a version")),
        (ArrivalBody::Publication(_), Some(_)) => {
            return Err(Error::invalid("a publication gets its version from the home of its space"));
        }
        (ArrivalBody::Publication(_), None) if space.space.home.is_none() => {
            let message = format!("the space '{}' is at home here: publish in it", space.space.name);
            return Err(Error::invalid(message));
        }
        _ => {}
    }
    let row = batch.store(wanted.store).await?;
    let store = crate::store::own(&row)?;
    if store.state != StoreState::Online {
        let message = format!("cannot take in a copy: the store {} is {}", store.name, store.state);
        return Err(Error::new(ErrorKind::ReadOnly, message));
    }
    let id = ArrivalId::new();
    let mut key = format!(".percale/arrivals/{id}");
    if let Some(path) = &wanted.path {
        let natural = natural_key(path);
        if !keys.contains(&(row.st, natural.to_owned())) && !batch.is_taken(row.st, natural).await? {
            key = natural.to_owned();
        }
    }
    keys.insert((row.st, key.clone()));
    let arrival = Arrival {
        id,
        state: ArrivalState::Reserved,
        lease: wanted.lease,
        fence: wanted.fence,
        space: wanted.space,
        home: space.space.home,
        store: wanted.store,
        key,
        token: wanted.token.clone(),
        identity: wanted.identity.clone(),
        version: wanted.version,
        generation: None,
        told: None,
        body: wanted.body.clone(),
    };
    Ok(ArrivalRow { sp: space.sp, st: row.st, arrival, json: serde_json::Value::Null })
}

struct Settle(Vec<Settled>);

impl Change for Settle {
    type Draft = Vec<Result<()>>;
    type Out = Vec<Result<()>>;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Self::Draft> {
        let ids: Vec<ArrivalId> = self.0.iter().map(|settled| settled.id).collect();
        let mut rows = locked(batch.tx, &ids).await?;
        let mut outcomes = Vec::with_capacity(self.0.len());
        let mut changed = Vec::new();
        let mut keys: HashSet<(i64, String)> = HashSet::new();
        for settled in &self.0 {
            let outcome = match rows.get(&settled.id) {
                None => Err(missing(settled.id)),
                Some(row) => one_outcome(settle_one(batch, settled, row, &keys).await)?,
            };
            outcomes.push(outcome.map(|new| {
                if let Some(new) = new {
                    keys.extend(rows.get(&settled.id).map(|old| (old.st, old.arrival.key.clone())));
                    keys.insert((new.st, new.arrival.key.clone()));
                    rows.insert(settled.id, new.clone());
                    changed.push(new);
                }
            }));
        }
        arrival::update(batch.tx, &changed).await?;
        for (st, key) in keys {
            batch.forget_key(st, &key);
        }
        Ok(outcomes)
    }

    fn finish(self, draft: Self::Draft, _written: &Written) -> Self::Out {
        draft
    }
}

async fn settle_one<T: Tx>(
    batch: &mut Batch<'_, T>,
    settled: &Settled,
    row: &ArrivalRow,
    keys: &HashSet<(i64, String)>,
) -> Result<Option<ArrivalRow>> {
    let arrival = &row.arrival;
    prove_lease(batch, arrival.lease, arrival.fence).await?;
    let other = settled.key.as_ref().filter(|key| **key != arrival.key);
    match arrival.state {
        ArrivalState::Written if other.is_none() => return Ok(None),
        ArrivalState::Written => {
            let message = format!("arrival {} is settled with the key '{}'", arrival.id, arrival.key);
            return Err(conflict(message));
        }
        ArrivalState::Reserved => {}
    }
    let mut new = row.clone();
    if let Some(key) = other {
        if keys.contains(&(row.st, key.clone())) || batch.is_taken(row.st, key).await? {
            return Err(conflict(format!("cannot settle arrival {}: the key '{key}' is taken", arrival.id)));
        }
        new.arrival.key.clone_from(key);
    }
    new.arrival.state = ArrivalState::Written;
    new.arrival.generation.clone_from(&settled.generation);
    Ok(Some(new))
}

struct NoteTold(Vec<ToldArrival>);

impl Change for NoteTold {
    type Draft = Vec<Result<()>>;
    type Out = Vec<Result<()>>;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Self::Draft> {
        let ids: Vec<ArrivalId> = self.0.iter().map(|told| told.id).collect();
        let mut rows = locked(batch.tx, &ids).await?;
        let mut outcomes = Vec::with_capacity(self.0.len());
        let mut changed = Vec::new();
        for ToldArrival { id, version, position } in &self.0 {
            outcomes.push(match rows.get_mut(id) {
                None => Ok(()),
                Some(row) if position.space != row.arrival.space => {
                    Err(Error::invalid(format!("position {position} is not of the space of arrival {id}")))
                }
                Some(row) if row.arrival.state != ArrivalState::Written => {
                    Err(conflict(format!("the bytes of arrival {id} are not settled")))
                }
                Some(row) if is_another(&row.arrival, *version, *position) => {
                    Err(conflict(format!("arrival {id} is not one of version {version}")))
                }
                Some(row) => {
                    row.arrival.version = Some(*version);
                    row.arrival.told = Some(*position);
                    changed.push(row.clone());
                    Ok(())
                }
            });
        }
        arrival::update(batch.tx, &changed).await?;
        Ok(outcomes)
    }

    fn finish(self, draft: Self::Draft, _written: &Written) -> Self::Out {
        draft
    }
}

/// Tells whether the home answered with another version than is known. A publication that a replaced home had taken may get
/// another one from its successor.
fn is_another(arrival: &Arrival, version: VersionId, position: Position) -> bool {
    let is_void = matches!(arrival.body, ArrivalBody::Publication(_))
        && arrival.told.is_some_and(|told| told.term < position.term);
    arrival.version.is_some_and(|known| known != version) && !is_void
}

struct Adopt {
    arrivals: Vec<ArrivalId>,
    lease: LeaseId,
    fence: Fence,
}

impl Change for Adopt {
    type Draft = Vec<Result<()>>;
    type Out = Vec<Result<()>>;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Self::Draft> {
        prove_lease(batch, self.lease, self.fence).await?;
        // Leases are locked before what lies under them, as everywhere.
        let ids = self.arrivals.clone();
        let seen = arrival::by_ids(batch.tx, ids, Lock::None).await?;
        let mut held = HashSet::new();
        for ArrivalRow { arrival, .. } in &seen {
            let lease = (arrival.lease, arrival.fence);
            if one_outcome(prove_lease(batch, lease.0, lease.1).await)?.is_ok() {
                held.insert(lease);
            }
        }
        let mut rows = locked(batch.tx, &self.arrivals).await?;
        let looked_at: HashSet<_> = seen.iter().map(|row| (row.arrival.lease, row.arrival.fence)).collect();
        let mut outcomes = Vec::with_capacity(self.arrivals.len());
        let mut changed = Vec::new();
        for id in &self.arrivals {
            let Some(row) = rows.get_mut(id) else {
                outcomes.push(Err(missing(*id)));
                continue;
            };
            let lease = (row.arrival.lease, row.arrival.fence);
            if lease == (self.lease, self.fence) {
                outcomes.push(Ok(()));
            } else if held.contains(&lease) || !looked_at.contains(&lease) {
                outcomes.push(Err(conflict(format!("the lease of arrival {id} is held"))));
            } else {
                (row.arrival.lease, row.arrival.fence) = (self.lease, self.fence);
                changed.push(row.clone());
                outcomes.push(Ok(()));
            }
        }
        arrival::update(batch.tx, &changed).await?;
        Ok(outcomes)
    }

    fn finish(self, draft: Self::Draft, _written: &Written) -> Self::Out {
        draft
    }
}

struct OfLease(LeaseId);

impl Query for OfLease {
    type Out = Vec<Arrival>;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<Arrival>> {
        Ok(arrival::of_lease(tx, self.0).await?.into_iter().map(|row| row.arrival).collect())
    }
}

struct ListWritten {
    after: ArrivalId,
    limit: usize,
}

impl Query for ListWritten {
    type Out = Vec<Arrival>;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<Arrival>> {
        let rows = arrival::written(tx, self.after, self.limit).await?;
        Ok(rows.into_iter().map(|row| row.arrival).collect())
    }
}
