//! How far attributes were taken out of the bytes of a space's objects.

use crate::engine::{Sql, Tx, row};
use crate::error::Result;
use crate::model::ExtractionPlace;

static OF_SPACE: Sql = Sql::both("SELECT term, seq, scan, extractor FROM extraction WHERE sp = $1");
static SET: Sql = Sql::both(
    "INSERT INTO extraction (sp, term, seq, scan, extractor) VALUES ($1, $2, $3, $4, $5) \
     ON CONFLICT (sp) DO UPDATE SET term = excluded.term, seq = excluded.seq, scan = excluded.scan, \
     extractor = excluded.extractor",
);
static REMOVE_OF_SPACE: Sql = Sql::both("DELETE FROM extraction WHERE sp = $1");

/// Returns how far a space is.
pub(crate) async fn of_space<T: Tx>(tx: &T, sp: i64) -> Result<Option<ExtractionPlace>> {
    let mut rows = tx.query(&OF_SPACE, row![sp]).await?;
    let Some(row) = rows.first_mut() else { return Ok(None) };
    let (term, seq) = (row.small()?, row.number()?);
    let scan = row.opt_int()?.map(|scan| scan.unsigned_abs());
    Ok(Some(ExtractionPlace { term, seq, scan, extractor: row.small()? }))
}

/// Notes how far a space is.
pub(crate) async fn set<T: Tx>(tx: &T, sp: i64, place: ExtractionPlace) -> Result<()> {
    let ExtractionPlace { term, seq, scan, extractor } = place;
    tx.execute(&SET, row![sp, term, seq, scan, extractor]).await.map(drop)
}

/// Forgets a space.
pub(crate) async fn remove_of_space<T: Tx>(tx: &T, sp: i64) -> Result<()> {
    tx.execute(&REMOVE_OF_SPACE, row![sp]).await.map(drop)
}
