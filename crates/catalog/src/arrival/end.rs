//! How arrivals end, and what becomes of their bytes.

use std::collections::{HashMap, HashSet};

use percale_core::ids::VersionId;

use super::{conflict, locked};
use crate::batch::{Batch, Written};
use crate::engine::{Change, Tx};
use crate::error::Result;
use crate::model::{Arrival, ArrivalBody, ArrivalEnd, ArrivalId, ArrivalState};
use crate::rows::arrival;
use crate::rows::replica::GarbageRow;
use crate::rows::site::SpaceRow;

/// The end of arrivals.
pub(super) struct Finish {
    pub arrivals: Vec<ArrivalId>,
    pub end: ArrivalEnd,
}

impl Change for Finish {
    type Draft = Vec<Result<()>>;
    type Out = Vec<Result<()>>;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Self::Draft> {
        // Copies that changes before this one added must be seen.
        batch.flush().await?;
        let rows = locked(batch.tx, &self.arrivals).await?;
        // Where the spaces stand is read before the copies: what another server applies in between shows more copies than the
        // position says, never fewer, or a copy that was just noted would be taken for one that has gone again.
        let mut spaces = HashMap::new();
        for row in rows.values() {
            spaces.insert(row.sp, batch.space(row.sp).await?);
        }
        let named: HashSet<_> =
            arrival::named(batch.tx, rows.keys().copied().collect()).await?.into_iter().collect();
        let mut outcomes = Vec::with_capacity(self.arrivals.len());
        let mut gone = HashSet::new();
        let mut retold = Vec::new();
        let mut garbage = Vec::new();
        for id in &self.arrivals {
            let row = rows.get(id).filter(|_| !gone.contains(id));
            let Some((row, space)) = row.and_then(|row| Some((row, spaces.get(&row.sp)?))) else {
                outcomes.push(Ok(()));
                continue;
            };
            let outcome = may_end(&row.arrival, space, named.contains(id), self.end);
            if let Ok(becomes_garbage) = &outcome {
                gone.insert(*id);
                if *becomes_garbage {
                    garbage.push(GarbageRow {
                        st: row.st,
                        key: row.arrival.key.clone(),
                        sp: row.sp,
                        version: row.arrival.version.unwrap_or(VersionId(0)),
                        generation: row.arrival.generation.clone(),
                        since: batch.now(),
                    });
                }
                batch.forget_key(row.st, &row.arrival.key);
            } else if self.end == ArrivalEnd::Done && is_void(&row.arrival, space) {
                let mut row = row.clone();
                row.arrival.told = None;
                if matches!(row.arrival.body, ArrivalBody::Publication(_)) {
                    row.arrival.version = None;
                }
                retold.push(row);
            }
            outcomes.push(outcome.map(drop));
        }
        arrival::update(batch.tx, &retold).await?;
        arrival::delete(batch.tx, gone.into_iter().collect()).await?;
        arrival::to_garbage(batch.tx, &garbage).await?;
        Ok(outcomes)
    }

    fn finish(self, draft: Self::Draft, _written: &Written) -> Self::Out {
        draft
    }
}

/// Tells whether a home that was replaced since has promised to keep an arrival.
fn is_void(arrival: &Arrival, space: &SpaceRow) -> bool {
    space.space.behind.is_none() && arrival.told.is_some_and(|told| told.term < space.space.position.term)
}

/// Decides whether an arrival may end so, and whether its bytes become garbage.
fn may_end(arrival: &Arrival, space: &SpaceRow, is_named: bool, end: ArrivalEnd) -> Result<bool> {
    let here = space.space.position;
    if is_named {
        return Ok(false);
    }
    // The copy was here and has gone with its version, or came and went before a snapshot. In the first case its bytes are
    // garbage already or deleted, which deleting them again does not hurt: nobody else got the key.
    let is_applied = arrival
        .told
        .is_some_and(|told| space.space.behind.is_none() && told.term == here.term && told.seq <= here.seq);
    if is_applied || space.is_removed && end == ArrivalEnd::Done {
        return Ok(true);
    }
    let is_promised = arrival.told.is_some_and(|told| told.term >= here.term) && !space.is_removed;
    let id = arrival.id;
    match end {
        ArrivalEnd::Done => {
            Err(conflict(format!("the copy that arrival {id} brought is not known here yet")))
        }
        _ if is_promised => Err(conflict(format!("arrival {id} is promised to be a copy of a version"))),
        ArrivalEnd::Removed => Ok(false),
        ArrivalEnd::Garbage if arrival.state == ArrivalState::Written => Ok(true),
        ArrivalEnd::Garbage => {
            let message = format!("the file at the key of arrival {id} may be another's: it is not settled");
            Err(conflict(message))
        }
    }
}
