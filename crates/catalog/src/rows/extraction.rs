//! How far attributes were taken out of the bytes of a space's objects.

use crate::engine::{Sql, Tx, row};
use crate::error::Result;

/// A row of `extraction`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExtractionRow {
    /// The term of the journal.
    pub term: u32,
    /// Up to which record what was published was looked at.
    pub seq: u64,
    /// Behind which entry all objects are looked at, while they are.
    pub scan: Option<u64>,
    /// By which release of the extractor.
    pub extractor: u32,
}

static OF_SPACE: Sql = Sql::both("SELECT term, seq, scan, extractor FROM extraction WHERE sp = $1");
static SET: Sql = Sql::both(
    "INSERT INTO extraction (sp, term, seq, scan, extractor) VALUES ($1, $2, $3, $4, $5) \
     ON CONFLICT (sp) DO UPDATE SET term = excluded.term, seq = excluded.seq, scan = excluded.scan, \
     extractor = excluded.extractor",
);
static REMOVE_OF_SPACE: Sql = Sql::both("DELETE FROM extraction WHERE sp = $1");

/// Returns how far a space is.
pub(crate) async fn of_space<T: Tx>(tx: &T, sp: i64) -> Result<Option<ExtractionRow>> {
    let mut rows = tx.query(&OF_SPACE, row![sp]).await?;
    let Some(row) = rows.first_mut() else { return Ok(None) };
    let (term, seq) = (row.small()?, row.number()?);
    let scan = row.opt_int()?.map(|scan| scan.unsigned_abs());
    Ok(Some(ExtractionRow { term, seq, scan, extractor: row.small()? }))
}

/// Notes how far a space is.
pub(crate) async fn set<T: Tx>(tx: &T, sp: i64, row: ExtractionRow) -> Result<()> {
    let ExtractionRow { term, seq, scan, extractor } = row;
    tx.execute(&SET, row![sp, term, seq, scan, extractor]).await.map(drop)
}

/// Forgets a space.
pub(crate) async fn remove_of_space<T: Tx>(tx: &T, sp: i64) -> Result<()> {
    tx.execute(&REMOVE_OF_SPACE, row![sp]).await.map(drop)
}
