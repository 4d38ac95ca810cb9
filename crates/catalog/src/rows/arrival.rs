//! Arrivals on own stores.

use percale_core::Position;
use percale_core::ids::{Fence, LeaseId, SiteId, SpaceId, StoreId, VersionId};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::replica::{GarbageRow, ReplicaRow};
use super::{Lock, with_locks};
use crate::engine::{Row, Sql, Tx, row, to_json};
use crate::error::{Error, Result};
use crate::model::{Arrival, ArrivalBody, ArrivalId, ArrivalState};

/// The body of an arrival. `v` is the form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredBody {
    /// 1.
    pub v: u32,
    pub arrival: ArrivalBody,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<Position>,
}

/// A row of `arrival`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ArrivalRow {
    pub sp: i64,
    pub st: i64,
    pub arrival: Arrival,
    /// The body as it was read, so that fields of a newer release are kept.
    pub json: Json,
}

impl ArrivalRow {
    /// Returns the body with what is known by now.
    fn body(&self) -> Result<String> {
        let mut json = self.json.clone();
        let known = StoredBody {
            v: 1,
            arrival: self.arrival.body.clone(),
            generation: self.arrival.generation.clone(),
            told: self.arrival.told,
        };
        let known = serde_json::to_value(known)
            .map_err(|error| Error::internal("cannot write an arrival as JSON").with_source(error))?;
        match (&mut json, known) {
            (Json::Object(json), Json::Object(known)) => {
                for name in ["generation", "told"] {
                    json.remove(name);
                }
                for (name, value) in known {
                    // What arrived never changes, and may have fields that are not known here.
                    if name != "arrival" || !json.contains_key("arrival") {
                        json.insert(name, value);
                    }
                }
            }
            (json, known) => *json = known,
        }
        to_json(&json)
    }
}

macro_rules! columns {
    () => {
        "a.id, a.state, a.lease, a.fence, a.sp, p.id, p.home, a.st, s.id, a.key, a.token, a.identity, a.version, a.body"
    };
}

static BY_ID: [Sql; 3] = with_locks!(
    concat!(
        "SELECT ",
        columns!(),
        " FROM arrival a JOIN space p ON p.sp = a.sp JOIN store s ON s.st = a.st WHERE a.id = $1"
    ),
    concat!(
        "SELECT ",
        columns!(),
        " FROM UNNEST($1::uuid[]) AS k(id) JOIN arrival a ON a.id = k.id JOIN space p ON p.sp = a.sp \
         JOIN store s ON s.st = a.st ORDER BY a.id"
    ),
    "a"
);
static OF_LEASE: Sql = Sql::both(concat!(
    "SELECT ",
    columns!(),
    " FROM arrival a JOIN space p ON p.sp = a.sp JOIN store s ON s.st = a.st WHERE a.lease = $1 ORDER BY a.id"
));
static WRITTEN: Sql = Sql::both(concat!(
    "SELECT ",
    columns!(),
    " FROM arrival a JOIN space p ON p.sp = a.sp JOIN store s ON s.st = a.st \
     WHERE a.state = 'written' AND a.id > $1 ORDER BY a.id LIMIT $2"
));
static SCAN: Sql = Sql::both(concat!(
    "SELECT ",
    columns!(),
    " FROM arrival a JOIN space p ON p.sp = a.sp JOIN store s ON s.st = a.st WHERE a.id > $1 ORDER BY a.id LIMIT $2"
));
/// Those that have a name here: a copy at the same key.
static NAMED: Sql = Sql::each(
    "SELECT a.id FROM arrival a JOIN replica r ON r.st = a.st AND r.key = a.key WHERE a.id = $1",
    "SELECT a.id FROM UNNEST($1::uuid[]) AS k(id) JOIN arrival a ON a.id = k.id \
     JOIN replica r ON r.st = a.st AND r.key = a.key",
);
static INSERT: Sql = Sql::each(
    "INSERT INTO arrival (id, state, lease, fence, sp, st, key, token, identity, version, body) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
    "INSERT INTO arrival (id, state, lease, fence, sp, st, key, token, identity, version, body) \
     SELECT * FROM UNNEST($1::uuid[], $2::text[], $3::uuid[], $4::bigint[], $5::bigint[], $6::bigint[], \
     $7::text[], $8::text[], $9::text[], $10::bigint[], $11::text[])",
);
static UPDATE: Sql = Sql::each(
    "UPDATE arrival SET state = $1, lease = $2, fence = $3, key = $4, version = $5, body = $6 WHERE id = $7",
    "UPDATE arrival a SET state = k.state, lease = k.lease, fence = k.fence, key = k.key, version = k.version, \
     body = k.body FROM UNNEST($1::text[], $2::uuid[], $3::bigint[], $4::text[], $5::bigint[], $6::text[], \
     $7::uuid[]) AS k(state, lease, fence, key, version, body, id) WHERE a.id = k.id",
);
static DELETE: Sql = Sql::each(
    "DELETE FROM arrival WHERE id = $1",
    "DELETE FROM arrival a USING UNNEST($1::uuid[]) AS k(id) WHERE a.id = k.id",
);
/// In the order of the ids, as everywhere.
static DELETE_NAMED: Sql = Sql::each(
    "DELETE FROM arrival WHERE st = $1 AND key = $2 AND version = $3",
    "DELETE FROM arrival WHERE id IN (\
     SELECT a.id FROM UNNEST($1::bigint[], $2::text[], $3::bigint[]) AS k(st, key, version) \
     JOIN arrival a ON a.st = k.st AND a.key = k.key AND a.version = k.version ORDER BY a.id FOR UPDATE OF a)",
);
/// The version may have come, gone and become garbage before the arrival ended.
static TO_GARBAGE: Sql = Sql::each(
    "INSERT INTO garbage (st, key, sp, version, generation, since) VALUES ($1, $2, $3, $4, $5, $6) \
     ON CONFLICT (st, key) DO NOTHING",
    "INSERT INTO garbage (st, key, sp, version, generation, since) \
     SELECT * FROM UNNEST($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::bigint[]) \
     ON CONFLICT (st, key) DO NOTHING",
);

fn decode(row: &mut Row) -> Result<ArrivalRow> {
    let id = ArrivalId(row.uuid()?);
    let state: ArrivalState = row.parse()?;
    let lease = LeaseId(row.uuid()?);
    let fence = Fence(row.number()?);
    let sp = row.int()?;
    let space = SpaceId(row.uuid()?);
    let home = row.opt_uuid()?.map(SiteId);
    let st = row.int()?;
    let store = StoreId(row.uuid()?);
    let key = row.text()?;
    let token = row.text()?;
    let identity = row.opt_text()?;
    let version = row.opt_number()?.map(VersionId);
    let json: Json = row.json()?;
    let body = StoredBody::deserialize(&json)
        .map_err(|error| Error::corrupt(format!("cannot read arrival {id}")).with_source(error))?;
    if body.v != 1 {
        let message = format!("arrival {id} has form {}, which this release does not know", body.v);
        return Err(Error::unsupported(message));
    }
    let StoredBody { arrival: body, generation, told, .. } = body;
    let arrival = Arrival {
        id,
        state,
        lease,
        fence,
        space,
        home,
        store,
        key,
        token,
        identity,
        version,
        generation,
        told,
        body,
    };
    Ok(ArrivalRow { sp, st, arrival, json })
}

fn decode_all(rows: Vec<Row>) -> Result<Vec<ArrivalRow>> {
    rows.into_iter().map(|mut row| decode(&mut row)).collect()
}

/// Looks up arrivals, in the order of their ids.
pub(crate) async fn by_ids<T: Tx>(tx: &T, ids: Vec<ArrivalId>, lock: Lock) -> Result<Vec<ArrivalRow>> {
    decode_all(tx.many(lock.pick(&BY_ID), ids.into_iter().map(|id| row![id.0]).collect()).await?)
}

/// Returns the arrivals under a lease.
pub(crate) async fn of_lease<T: Tx>(tx: &T, lease: LeaseId) -> Result<Vec<ArrivalRow>> {
    decode_all(tx.query(&OF_LEASE, row![lease]).await?)
}

/// Returns arrivals whose bytes are there and whose ids are greater than `after`.
pub(crate) async fn written<T: Tx>(tx: &T, after: ArrivalId, limit: usize) -> Result<Vec<ArrivalRow>> {
    decode_all(tx.query(&WRITTEN, row![after.0, limit]).await?)
}

/// Decodes the arrivals behind an id, and returns the last of them.
pub(crate) async fn scan<T: Tx>(tx: &T, after: ArrivalId, limit: usize) -> Result<Option<ArrivalId>> {
    Ok(decode_all(tx.query(&SCAN, row![after.0, limit]).await?)?.last().map(|row| row.arrival.id))
}

/// Returns those of these arrivals whose keys are those of copies.
pub(crate) async fn named<T: Tx>(tx: &T, ids: Vec<ArrivalId>) -> Result<Vec<ArrivalId>> {
    let rows = tx.many(&NAMED, ids.into_iter().map(|id| row![id.0]).collect()).await?;
    rows.into_iter().map(|mut row| row.uuid().map(ArrivalId)).collect()
}

/// Writes new arrivals.
pub(crate) async fn insert<T: Tx>(tx: &T, rows: &[&ArrivalRow]) -> Result<()> {
    let mut params = Vec::with_capacity(rows.len());
    for row in rows {
        let arrival = &row.arrival;
        params.push(row![
            arrival.id.0,
            arrival.state.as_str(),
            arrival.lease,
            arrival.fence,
            row.sp,
            row.st,
            arrival.key.as_str(),
            arrival.token.as_str(),
            arrival.identity.clone(),
            arrival.version,
            row.body()?,
        ]);
    }
    tx.execute_many(&INSERT, params).await.map(drop)
}

/// Writes what may change about arrivals.
pub(crate) async fn update<T: Tx>(tx: &T, rows: &[ArrivalRow]) -> Result<()> {
    let mut params = Vec::with_capacity(rows.len());
    for row in rows {
        let arrival = &row.arrival;
        params.push(row![
            arrival.state.as_str(),
            arrival.lease,
            arrival.fence,
            arrival.key.as_str(),
            arrival.version,
            row.body()?,
            arrival.id.0,
        ]);
    }
    tx.execute_many(&UPDATE, params).await.map(drop)
}

/// Deletes arrivals.
pub(crate) async fn delete<T: Tx>(tx: &T, ids: Vec<ArrivalId>) -> Result<u64> {
    tx.execute_many(&DELETE, ids.into_iter().map(|id| row![id.0]).collect()).await
}

/// Deletes arrivals whose keys are those of these copies now, and whose versions are known.
pub(crate) async fn delete_named<T: Tx>(tx: &T, copies: &[ReplicaRow]) -> Result<u64> {
    let named = copies.iter().map(|row| row![row.st, row.replica.key.as_str(), row.replica.version]);
    tx.execute_many(&DELETE_NAMED, named.collect()).await
}

/// Makes garbage of bytes that are not garbage yet.
pub(crate) async fn to_garbage<T: Tx>(tx: &T, rows: &[GarbageRow]) -> Result<()> {
    tx.execute_many(&TO_GARBAGE, rows.iter().map(GarbageRow::params).collect()).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stored samples of form 1. Never changed; a new form gets samples of its own.
    #[test]
    fn bodies_of_form_1_are_still_read_and_written() {
        for sample in include_str!("../../samples/arrival-body-v1.jsonl").lines() {
            let body: StoredBody = serde_json::from_str(sample).unwrap();
            assert_eq!(to_json(&body).unwrap(), sample);
        }
    }
}
