//! Intents, and which keys are taken.

use percale_core::access::Subject;
use percale_core::ids::{EntryId, Fence, LeaseId, SpaceId, StoreId, VersionId};
use percale_core::{FileMode, ObjectPath, Timestamp};
use serde::{Deserialize, Serialize};

use super::{Lock, with_locks};
use crate::engine::{Row, Sql, Tx, row, to_json};
use crate::error::Result;
use crate::model::{Intent, IntentId, IntentRow};

/// The body of an intent: what only its commit and its undoing need. `v` is the form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IntentBody {
    /// 1.
    pub v: u32,
    /// Who prepared it, for the journal.
    pub actor: String,
    /// The path at the time of preparation.
    pub path: Option<ObjectPath>,
    /// The modification time to keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtime: Option<Timestamp>,
    /// The permission bits to keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FileMode>,
}

/// What a batch writes with, got ready together.
pub(crate) static WRITES: [&Sql; 2] = [&DELETE, &INSERT];

/// Names who does something, for the journal.
pub(crate) fn actor(caller: &percale_core::access::Caller) -> String {
    match &caller.user {
        Some(user) => Subject::User(user.clone()).to_string(),
        None => Subject::Anyone.to_string(),
    }
}

/// A row of `intent`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredIntent {
    pub sp: i64,
    pub st: i64,
    pub row: IntentRow,
    pub body: IntentBody,
}

macro_rules! columns {
    () => {
        "i.id, i.lease, i.fence, i.sp, p.id, i.version, i.entry, i.parent, i.name, i.base, i.st, s.id, i.key, \
         i.token, i.identity, i.body"
    };
}

static BY_ID: [Sql; 3] = with_locks!(
    concat!(
        "SELECT ",
        columns!(),
        " FROM intent i JOIN space p ON p.sp = i.sp JOIN store s ON s.st = i.st WHERE i.id = $1"
    ),
    concat!(
        "SELECT ",
        columns!(),
        " FROM UNNEST($1::uuid[]) AS k(id) JOIN intent i ON i.id = k.id JOIN space p ON p.sp = i.sp \
         JOIN store s ON s.st = i.st ORDER BY i.id"
    ),
    "i"
);
static OF_LEASE: Sql = Sql::both(concat!(
    "SELECT ",
    columns!(),
    " FROM intent i JOIN space p ON p.sp = i.sp JOIN store s ON s.st = i.st WHERE i.lease = $1 ORDER BY i.id"
));
static LEASE_HAS: Sql = Sql::both(
    "SELECT id FROM intent WHERE lease = $1 UNION ALL SELECT id FROM arrival WHERE lease = $1 LIMIT 1",
);
static INSERT: Sql = Sql::each(
    "INSERT INTO intent (id, lease, fence, sp, version, entry, parent, name, base, st, key, token, identity, body) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
    "INSERT INTO intent (id, lease, fence, sp, version, entry, parent, name, base, st, key, token, identity, body) \
     SELECT * FROM UNNEST($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], \
     $7::bigint[], $8::text[], $9::bigint[], $10::bigint[], $11::text[], $12::text[], $13::text[], $14::text[])",
);
static DELETE: Sql = Sql::each(
    "DELETE FROM intent WHERE id = $1",
    "DELETE FROM intent i USING UNNEST($1::uuid[]) AS k(id) WHERE i.id = k.id",
);
static TAKEN: Sql = Sql::each(
    "SELECT $1, $2 WHERE EXISTS (SELECT 1 FROM replica r WHERE r.st = $1 AND r.key = $2) \
     OR EXISTS (SELECT 1 FROM intent i WHERE i.st = $1 AND i.key = $2) \
     OR EXISTS (SELECT 1 FROM garbage g WHERE g.st = $1 AND g.key = $2) \
     OR EXISTS (SELECT 1 FROM arrival a WHERE a.st = $1 AND a.key = $2)",
    // Joins and not four EXISTS: PostgreSQL would hash whole tables for those.
    "WITH k AS (SELECT * FROM UNNEST($1::bigint[], $2::text[]) AS k(st, key)) \
     SELECT k.st, k.key FROM k JOIN replica r ON r.st = k.st AND r.key = k.key \
     UNION ALL SELECT k.st, k.key FROM k JOIN intent i ON i.st = k.st AND i.key = k.key \
     UNION ALL SELECT k.st, k.key FROM k JOIN garbage g ON g.st = k.st AND g.key = k.key \
     UNION ALL SELECT k.st, k.key FROM k JOIN arrival a ON a.st = k.st AND a.key = k.key",
);

static IN_HAND: Sql = Sql::both(
    "SELECT st FROM store WHERE st = $1 AND (EXISTS (SELECT 1 FROM intent i WHERE i.st = $1) \
     OR EXISTS (SELECT 1 FROM garbage g WHERE g.st = $1) OR EXISTS (SELECT 1 FROM arrival a WHERE a.st = $1))",
);

fn decode(row: &mut Row) -> Result<StoredIntent> {
    let id = IntentId(row.uuid()?);
    let lease = LeaseId(row.uuid()?);
    let fence = Fence(row.number()?);
    let sp = row.int()?;
    let space = SpaceId(row.uuid()?);
    let version = VersionId(row.number()?);
    let entry = EntryId(row.number()?);
    let parent = EntryId(row.number()?);
    let name = row.text()?;
    let base = row.opt_number()?.map(VersionId);
    let st = row.int()?;
    let store = StoreId(row.uuid()?);
    let key = row.text()?;
    let token = row.text()?;
    let identity = row.opt_text()?;
    let body: IntentBody = row.json()?;
    let path = body.path.clone();
    let intent = Intent { id, space, entry, version, store, key, base };
    let row = IntentRow { intent, lease, fence, parent, name, token, identity, path };
    Ok(StoredIntent { sp, st, row, body })
}

/// Looks up intents.
pub(crate) async fn by_ids<T: Tx>(tx: &T, ids: Vec<IntentId>, lock: Lock) -> Result<Vec<StoredIntent>> {
    let params = ids.into_iter().map(|id| row![id]).collect();
    tx.many(lock.pick(&BY_ID), params).await?.into_iter().map(|mut row| decode(&mut row)).collect()
}

/// Returns the intents under a lease.
pub(crate) async fn of_lease<T: Tx>(tx: &T, lease: LeaseId) -> Result<Vec<IntentRow>> {
    let rows = tx.query(&OF_LEASE, row![lease]).await?;
    rows.into_iter().map(|mut row| decode(&mut row).map(|intent| intent.row)).collect()
}

/// Tells whether intents or arrivals lie under a lease.
pub(crate) async fn lease_has<T: Tx>(tx: &T, lease: LeaseId) -> Result<bool> {
    Ok(!tx.query(&LEASE_HAS, row![lease]).await?.is_empty())
}

/// Writes new intents.
pub(crate) async fn insert<T: Tx>(tx: &T, intents: &[&StoredIntent]) -> Result<()> {
    let mut params = Vec::with_capacity(intents.len());
    for stored in intents {
        let IntentRow { intent, lease, fence, parent, name, token, identity, .. } = &stored.row;
        params.push(row![
            intent.id,
            *lease,
            *fence,
            stored.sp,
            intent.version,
            intent.entry,
            *parent,
            name.as_str(),
            intent.base,
            stored.st,
            intent.key.as_str(),
            token.as_str(),
            identity.clone(),
            to_json(&stored.body)?,
        ]);
    }
    tx.execute_many(&INSERT, params).await.map(drop)
}

/// Deletes intents.
pub(crate) async fn delete<T: Tx>(tx: &T, ids: Vec<IntentId>) -> Result<u64> {
    tx.execute_many(&DELETE, ids.into_iter().map(|id| row![id]).collect()).await
}

/// Returns those of these keys that something has: a copy, an intent, garbage or an arrival.
pub(crate) async fn taken<T: Tx>(tx: &T, keys: Vec<(i64, String)>) -> Result<Vec<(i64, String)>> {
    let params = keys.into_iter().map(|(st, key)| row![st, key]).collect();
    let rows = tx.many(&TAKEN, params).await?;
    rows.into_iter().map(|mut row| Ok((row.int()?, row.text()?))).collect()
}

/// Tells whether any key of a store is taken by something else than a copy.
pub(crate) async fn has_in_hand<T: Tx>(tx: &T, st: i64) -> Result<bool> {
    Ok(!tx.query(&IN_HAND, row![st]).await?.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stored sample of form 1. Never changed; a new form gets a sample of its own.
    #[test]
    fn the_body_of_form_1_is_still_read_and_written() {
        let sample = include_str!("../../samples/intent-body-v1.json").trim();
        let body: IntentBody = serde_json::from_str(sample).unwrap();
        assert_eq!(to_json(&body).unwrap(), sample);
        let least: IntentBody =
            serde_json::from_str(r#"{"v":1,"actor":"system","path":null,"new":1}"#).unwrap();
        assert_eq!(least.mtime, None);
    }
}
