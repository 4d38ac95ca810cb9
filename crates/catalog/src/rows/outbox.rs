//! Reports about copies on own stores that the homes of their spaces have not answered yet.

use std::collections::HashSet;

use percale_core::Position;
use percale_core::ids::{SiteId, SpaceId, StoreId, VersionId};
use percale_core::state::ReplicaState;
use percale_core::tree::RootHash;
use serde::{Deserialize, Serialize};

use crate::engine::{Row, Sql, Tx, row, to_json};
use crate::error::{Error, Result};
use crate::model::{OutboxRow, ReplicaReport};

/// The body of a report. `v` is the form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReportBody {
    /// 1.
    pub v: u32,
    /// Where the copy lies; not in rows from before it was noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    pub state: ReplicaState,
    #[serde(default)]
    pub generation: Option<String>,
    #[serde(default)]
    pub root: Option<RootHash>,
    #[serde(default)]
    pub is_checked: bool,
    /// The last record about the copy that was passed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed: Option<Passed>,
}

impl ReportBody {
    fn is_about(&self, key: &str) -> bool {
        self.key.as_deref().is_none_or(|own| own == key)
    }
}

/// What a record said about a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Passed {
    /// The place behind the record.
    pub position: Position,
    pub state: ReplicaState,
    #[serde(default)]
    pub generation: Option<String>,
}

/// A row of `outbox`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredReport {
    pub sp: i64,
    pub st: i64,
    pub row: OutboxRow,
    pub passed: Option<Passed>,
}

macro_rules! columns {
    () => {
        "o.number, o.sp, p.id, p.home, o.version, o.st, s.id, o.body"
    };
}

static LIST: Sql = Sql::both(concat!(
    "SELECT ",
    columns!(),
    " FROM outbox o JOIN space p ON p.sp = o.sp JOIN store s ON s.st = o.st \
     WHERE p.home IS NOT NULL ORDER BY o.number LIMIT $1"
));
static OF_SPACE: Sql = Sql::both(concat!(
    "SELECT ",
    columns!(),
    " FROM outbox o JOIN space p ON p.sp = o.sp JOIN store s ON s.st = o.st \
     WHERE o.sp = $1 ORDER BY o.number"
));
static BY_NUMBER: Sql = Sql::each(
    concat!(
        "SELECT ",
        columns!(),
        " FROM outbox o JOIN space p ON p.sp = o.sp JOIN store s ON s.st = o.st WHERE o.number = $1"
    ),
    concat!(
        "SELECT ",
        columns!(),
        " FROM UNNEST($1::bigint[]) AS k(number) JOIN outbox o ON o.number = k.number \
         JOIN space p ON p.sp = o.sp JOIN store s ON s.st = o.st ORDER BY o.number"
    ),
);
static INSERT: Sql = Sql::each(
    "INSERT INTO outbox (number, sp, version, st, body) VALUES ($1, $2, $3, $4, $5)",
    "INSERT INTO outbox (number, sp, version, st, body) \
     SELECT * FROM UNNEST($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[])",
);
static DELETE: Sql = Sql::each(
    "DELETE FROM outbox WHERE number = $1",
    "DELETE FROM outbox o USING UNNEST($1::bigint[]) AS k(number) WHERE o.number = k.number",
);
static PENDING: Sql = Sql::each(
    "SELECT DISTINCT sp, version, st FROM outbox WHERE sp = $1 AND version = $2 AND st = $3",
    "SELECT DISTINCT o.sp, o.version, o.st FROM UNNEST($1::bigint[], $2::bigint[], $3::bigint[]) \
     AS k(sp, version, st) JOIN outbox o ON o.sp = k.sp AND o.version = k.version AND o.st = k.st",
);

fn decode(row: &mut Row) -> Result<StoredReport> {
    let number = row.number()?;
    let sp = row.int()?;
    let space = SpaceId(row.uuid()?);
    let home = SiteId(row.opt_uuid()?.unwrap_or_default());
    let version = VersionId(row.number()?);
    let st = row.int()?;
    let store = StoreId(row.uuid()?);
    let ReportBody { v, key, state, generation, root, is_checked, passed } = row.json()?;
    if v != 1 {
        let message = format!("report {number} has form {v}, which this release does not know");
        return Err(Error::unsupported(message));
    }
    let report = ReplicaReport { space, version, store, key, state, generation, root, is_checked };
    Ok(StoredReport { sp, st, row: OutboxRow { number, home, report }, passed })
}

/// Returns the oldest reports, in their order.
pub(crate) async fn list<T: Tx>(tx: &T, limit: usize) -> Result<Vec<OutboxRow>> {
    let rows = tx.query(&LIST, row![limit]).await?;
    rows.into_iter().map(|mut row| decode(&mut row).map(|stored| stored.row)).collect()
}

/// Decodes the reports behind a number, and returns the last of them.
pub(crate) async fn scan<T: Tx>(tx: &T, after: u64, limit: usize) -> Result<Option<u64>> {
    let mut last = None;
    for mut row in tx.query(&SCAN, row![after, limit]).await? {
        last = Some(decode(&mut row)?.row.number);
    }
    Ok(last)
}

/// Looks up reports.
pub(crate) async fn by_numbers<T: Tx>(tx: &T, numbers: Vec<u64>) -> Result<Vec<StoredReport>> {
    let rows = tx.many(&BY_NUMBER, numbers.into_iter().map(|number| row![number]).collect()).await?;
    rows.into_iter().map(|mut row| decode(&mut row)).collect()
}

/// Writes new reports.
pub(crate) async fn insert<T: Tx>(tx: &T, reports: &[StoredReport]) -> Result<()> {
    let mut params = Vec::with_capacity(reports.len());
    for StoredReport { sp, st, row: OutboxRow { number, report, .. }, passed } in reports {
        let body = ReportBody {
            v: 1,
            key: report.key.clone(),
            state: report.state,
            generation: report.generation.clone(),
            root: report.root,
            is_checked: report.is_checked,
            passed: passed.clone(),
        };
        params.push(row![*number, *sp, report.version, *st, to_json(&body)?]);
    }
    tx.execute_many(&INSERT, params).await.map(drop)
}

/// Deletes reports.
pub(crate) async fn delete<T: Tx>(tx: &T, numbers: Vec<u64>) -> Result<u64> {
    tx.execute_many(&DELETE, numbers.into_iter().map(|number| row![number]).collect()).await
}

static BODIES: Sql = Sql::both("SELECT number, body FROM outbox WHERE sp = $1 AND version = $2 AND st = $3");
static BODIES_AND_COPIES: Sql = Sql::both(
    // In this order: SQLite would otherwise look at all copies of the space.
    "SELECT o.number, o.body, r.state, r.generation, r.key FROM outbox o CROSS JOIN replica r \
     WHERE o.sp = $1 AND r.sp = o.sp AND r.version = o.version AND r.st = o.st",
);
static SCAN: Sql = Sql::both(concat!(
    "SELECT ",
    columns!(),
    " FROM outbox o JOIN space p ON p.sp = o.sp JOIN store s ON s.st = o.st \
     WHERE o.number > $1 ORDER BY o.number LIMIT $2"
));
static SET_BODY: Sql = Sql::each(
    "UPDATE outbox SET body = $1 WHERE number = $2",
    "UPDATE outbox o SET body = k.body FROM UNNEST($1::text[], $2::bigint[]) AS k(body, number) \
     WHERE o.number = k.number",
);

/// Notes with the reports that wait about a copy, given by space, version and store, what a record said of it. Tells
/// whether there are any.
pub(crate) async fn pass<T: Tx>(tx: &T, copy: (i64, VersionId, i64), passed: Passed) -> Result<bool> {
    let mut changed = Vec::new();
    for mut row in tx.query(&BODIES, row![copy.0, copy.1, copy.2]).await? {
        let number = row.number()?;
        let body: ReportBody = row.json()?;
        changed.push(row![to_json(&ReportBody { passed: Some(passed.clone()), ..body })?, number]);
    }
    Ok(tx.execute_many(&SET_BODY, changed).await? > 0)
}

/// Notes with all reports that wait about copies of a space what the home knows of those copies at a position: the rows
/// as a snapshot gave them. Those about copies whose place was taken by others are forgotten.
pub(crate) async fn pass_all<T: Tx>(tx: &T, sp: i64, position: Position) -> Result<()> {
    let (mut changed, mut overtaken) = (Vec::new(), Vec::new());
    for mut row in tx.query(&BODIES_AND_COPIES, row![sp]).await? {
        let number = row.number()?;
        let body: ReportBody = row.json()?;
        let passed = Passed { position, state: row.parse()?, generation: row.opt_text()? };
        if body.is_about(&row.text()?) {
            changed.push(row![to_json(&ReportBody { passed: Some(passed), ..body })?, number]);
        } else {
            overtaken.push(number);
        }
    }
    delete(tx, overtaken).await?;
    tx.execute_many(&SET_BODY, changed).await.map(drop)
}

/// Forgets the reports that wait about what lay at other keys, now that a copy lies at this one: their home would not know
/// what they are about.
pub(crate) async fn forget_overtaken<T: Tx>(tx: &T, copy: (i64, VersionId, i64), key: &str) -> Result<()> {
    let mut overtaken = Vec::new();
    for mut row in tx.query(&BODIES, row![copy.0, copy.1, copy.2]).await? {
        let number = row.number()?;
        if !row.json::<ReportBody>()?.is_about(key) {
            overtaken.push(number);
        }
    }
    delete(tx, overtaken).await.map(drop)
}

/// Returns the reports about copies in a space, in their order. Without a home it is nil.
pub(crate) async fn of_space<T: Tx>(tx: &T, sp: i64) -> Result<Vec<StoredReport>> {
    tx.query(&OF_SPACE, row![sp]).await?.into_iter().map(|mut row| decode(&mut row)).collect()
}

/// Returns those of these copies, by space, version and store, about which a report waits for its answer.
pub(crate) async fn pending<T: Tx>(
    tx: &T,
    keys: Vec<(i64, VersionId, i64)>,
) -> Result<HashSet<(i64, VersionId, i64)>> {
    let params = keys.into_iter().map(|(sp, version, st)| row![sp, version, st]).collect();
    let rows = tx.many(&PENDING, params).await?;
    rows.into_iter().map(|mut row| Ok((row.int()?, VersionId(row.number()?), row.int()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stored samples of form 1. Never changed; a new form gets samples of its own.
    #[test]
    fn the_body_of_form_1_is_still_read_and_written() {
        let sample = include_str!("../../samples/outbox-body-v1.jsonl");
        for sample in sample.lines() {
            let body: ReportBody = serde_json::from_str(sample).unwrap();
            assert_eq!(to_json(&body).unwrap(), sample);
        }
    }
}
