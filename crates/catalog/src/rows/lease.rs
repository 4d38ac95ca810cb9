//! Leases.

use percale_core::Timestamp;
use percale_core::ids::{Fence, LeaseId};
use serde_json::Value as Json;

use super::{Lock, with_locks};
use crate::engine::{Row, Sql, Tx, row, to_json};
use crate::error::Result;
use crate::model::{Lease, LeaseKind};

macro_rules! columns {
    () => {
        "l.id, l.kind, l.holder, l.fence, l.expires, l.body"
    };
}

static BY_ID: [Sql; 3] = with_locks!(
    concat!("SELECT ", columns!(), " FROM lease l WHERE l.id = $1"),
    concat!(
        "SELECT ",
        columns!(),
        " FROM UNNEST($1::uuid[]) AS k(id) JOIN lease l ON l.id = k.id ORDER BY l.id"
    ),
    "l"
);
static OF_KIND: Sql =
    Sql::both(concat!("SELECT ", columns!(), " FROM lease l WHERE l.kind = $1 ORDER BY l.id"));
static OF_HOLDER: Sql = Sql::both(concat!(
    "SELECT ",
    columns!(),
    " FROM lease l WHERE l.kind = $1 AND l.holder = $2 ORDER BY l.id"
));
static LAPSED: Sql = Sql::each(
    concat!(
        "SELECT ",
        columns!(),
        " FROM lease l WHERE l.expires <= $1 AND ($2 IS NULL OR l.kind = $2) ORDER BY l.expires LIMIT $3"
    ),
    concat!(
        "SELECT ",
        columns!(),
        " FROM lease l WHERE l.expires <= $1 AND ($2::text IS NULL OR l.kind = $2) ORDER BY l.expires LIMIT $3 \
         FOR UPDATE SKIP LOCKED"
    ),
);
static INSERT: Sql =
    Sql::both("INSERT INTO lease (id, kind, holder, fence, expires, body) VALUES ($1, $2, $3, $4, $5, $6)");
static UPDATE: Sql =
    Sql::both("UPDATE lease SET holder = $1, fence = $2, expires = $3, body = $4 WHERE id = $5");
static EXPIRE: Sql =
    Sql::both("UPDATE lease SET expires = $1 WHERE kind = $2 AND holder = $3 AND expires > $1");
static DELETE: Sql = Sql::both("DELETE FROM lease WHERE id = $1");

fn decode_all(rows: Vec<Row>) -> Result<Vec<Lease>> {
    let decode = |mut row: Row| {
        let id = LeaseId(row.uuid()?);
        let kind: LeaseKind = row.parse()?;
        let holder = row.text()?;
        let fence = Fence(row.number()?);
        let expires = row.time()?;
        let body: Json = row.json()?;
        Ok(Lease { id, kind, holder, fence, expires, body })
    };
    rows.into_iter().map(decode).collect()
}

/// What commits look at, got ready together.
pub(crate) static LOOKS: [&Sql; 1] = [&BY_ID[1]];

/// Looks up leases.
pub(crate) async fn by_ids<T: Tx>(tx: &T, ids: Vec<LeaseId>, lock: Lock) -> Result<Vec<Lease>> {
    decode_all(tx.many(lock.pick(&BY_ID), ids.into_iter().map(|id| row![id]).collect()).await?)
}

/// Returns the leases of a kind.
pub(crate) async fn of_kind<T: Tx>(tx: &T, kind: LeaseKind) -> Result<Vec<Lease>> {
    decode_all(tx.query(&OF_KIND, row![kind.as_str()]).await?)
}

/// Returns the leases of a kind that a holder has, also lapsed ones.
pub(crate) async fn of_holder<T: Tx>(tx: &T, kind: LeaseKind, holder: &str) -> Result<Vec<Lease>> {
    decode_all(tx.query(&OF_HOLDER, row![kind.as_str(), holder]).await?)
}

/// Returns leases that lapsed by `now` and nobody else is taking over.
pub(crate) async fn lapsed<T: Tx>(
    tx: &T,
    now: Timestamp,
    kind: Option<LeaseKind>,
    limit: usize,
) -> Result<Vec<Lease>> {
    decode_all(tx.query(&LAPSED, row![now, kind.map(LeaseKind::as_str), limit]).await?)
}

/// Writes a new lease.
pub(crate) async fn insert<T: Tx>(tx: &T, lease: &Lease) -> Result<()> {
    let params = row![
        lease.id,
        lease.kind.as_str(),
        lease.holder.as_str(),
        lease.fence,
        lease.expires,
        to_json(&lease.body)?
    ];
    tx.execute(&INSERT, params).await.map(drop)
}

/// Writes a changed lease.
pub(crate) async fn update<T: Tx>(tx: &T, lease: &Lease) -> Result<()> {
    let params = row![lease.holder.as_str(), lease.fence, lease.expires, to_json(&lease.body)?, lease.id];
    tx.execute(&UPDATE, params).await.map(drop)
}

/// Makes the leases of a kind that a holder has end now.
pub(crate) async fn expire<T: Tx>(tx: &T, kind: LeaseKind, holder: &str, now: Timestamp) -> Result<()> {
    tx.execute(&EXPIRE, row![now, kind.as_str(), holder]).await.map(drop)
}

/// Deletes a lease.
pub(crate) async fn delete<T: Tx>(tx: &T, id: LeaseId) -> Result<()> {
    tx.execute(&DELETE, row![id]).await.map(drop)
}
