//! Grants.

use percale_core::access::{Permission, Subject};

use crate::engine::{Sql, Tx, row};
use crate::error::{Error, Result};

/// A row of `grants`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GrantRow {
    pub sp: i64,
    pub entry: u64,
    pub subject: Subject,
    pub permission: Permission,
}

static OF_ENTRIES: Sql = Sql::each(
    "SELECT sp, entry, subject, permission FROM grants WHERE sp = $1 AND entry = $2",
    "SELECT g.sp, g.entry, g.subject, g.permission FROM UNNEST($1::bigint[], $2::bigint[]) AS k(sp, entry) \
     JOIN grants g ON g.sp = k.sp AND g.entry = k.entry",
);
static ON_ROOTS: Sql = Sql::both("SELECT sp, entry, subject, permission FROM grants WHERE entry = 1");
static ALL: Sql = Sql::both("SELECT sp, entry, subject, permission FROM grants");
static OF_SPACE: Sql = Sql::both(
    "SELECT sp, entry, subject, permission FROM grants WHERE sp = $1 AND (entry, subject) > ($2, $3) \
     ORDER BY sp, entry, subject LIMIT $4",
);
static INSERT: Sql = Sql::each(
    "INSERT INTO grants (sp, entry, subject, permission) VALUES ($1, $2, $3, $4)",
    "INSERT INTO grants (sp, entry, subject, permission) \
     SELECT * FROM UNNEST($1::bigint[], $2::bigint[], $3::text[], $4::text[])",
);
static SET: Sql = Sql::both(
    "INSERT INTO grants (sp, entry, subject, permission) VALUES ($1, $2, $3, $4) \
     ON CONFLICT (sp, entry, subject) DO UPDATE SET permission = excluded.permission",
);
static REMOVE: Sql = Sql::both("DELETE FROM grants WHERE sp = $1 AND entry = $2 AND subject = $3");
static REMOVE_OF_ENTRIES: Sql = Sql::each(
    "DELETE FROM grants WHERE sp = $1 AND entry = $2",
    "DELETE FROM grants g USING UNNEST($1::bigint[], $2::bigint[]) AS k(sp, entry) \
     WHERE g.sp = k.sp AND g.entry = k.entry",
);

pub(crate) fn decode(subject: &str, permission: &str) -> Result<(Subject, Permission)> {
    let wrong = |error| Error::corrupt("cannot read a grant").with_source(error);
    Ok((subject.parse().map_err(wrong)?, permission.parse().map_err(wrong)?))
}

fn decode_all(rows: Vec<crate::engine::Row>) -> Result<Vec<GrantRow>> {
    let mut grants = Vec::with_capacity(rows.len());
    for mut row in rows {
        let (sp, entry) = (row.int()?, row.number()?);
        let (subject, permission) = decode(&row.text()?, &row.text()?)?;
        grants.push(GrantRow { sp, entry, subject, permission });
    }
    Ok(grants)
}

/// What a batch writes with, got ready together.
pub(crate) static WRITES: [&Sql; 1] = [&REMOVE_OF_ENTRIES];

/// Returns the grants given on these entries.
pub(crate) async fn of_entries<T: Tx>(tx: &T, keys: Vec<(i64, u64)>) -> Result<Vec<GrantRow>> {
    decode_all(tx.many(&OF_ENTRIES, keys.into_iter().map(|(sp, id)| row![sp, id]).collect()).await?)
}

/// Returns the grants on the roots of all spaces.
pub(crate) async fn on_roots<T: Tx>(tx: &T) -> Result<Vec<GrantRow>> {
    decode_all(tx.query(&ON_ROOTS, row![]).await?)
}

/// Returns all grants.
pub(crate) async fn all<T: Tx>(tx: &T) -> Result<Vec<GrantRow>> {
    decode_all(tx.query(&ALL, row![]).await?)
}

/// Returns grants of a space whose entries and subjects are greater than `after`, by entry and subject.
pub(crate) async fn of_space<T: Tx>(
    tx: &T,
    sp: i64,
    after: (u64, &str),
    limit: usize,
) -> Result<Vec<GrantRow>> {
    decode_all(tx.query(&OF_SPACE, row![sp, after.0, after.1, limit]).await?)
}

/// Writes new grants.
pub(crate) async fn insert<T: Tx>(tx: &T, grants: &[GrantRow]) -> Result<()> {
    let params = grants.iter().map(|grant| {
        let GrantRow { sp, entry, subject, permission } = grant;
        row![*sp, *entry, subject.to_string(), permission.as_str()]
    });
    tx.execute_many(&INSERT, params.collect()).await.map(drop)
}

/// Gives a permission in place of what the subject had there.
pub(crate) async fn set<T: Tx>(tx: &T, grant: &GrantRow) -> Result<()> {
    let params = row![grant.sp, grant.entry, grant.subject.to_string(), grant.permission.as_str()];
    tx.execute(&SET, params).await.map(drop)
}

/// Takes a permission back.
pub(crate) async fn remove<T: Tx>(tx: &T, sp: i64, entry: u64, subject: &Subject) -> Result<u64> {
    tx.execute(&REMOVE, row![sp, entry, subject.to_string()]).await
}

/// Takes back whatever was given on entries that are gone.
pub(crate) async fn remove_of_entries<T: Tx>(tx: &T, keys: Vec<(i64, u64)>) -> Result<()> {
    let params = keys.into_iter().map(|(sp, id)| row![sp, id]).collect();
    tx.execute_many(&REMOVE_OF_ENTRIES, params).await.map(drop)
}
