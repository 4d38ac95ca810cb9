//! How many entries of a space have which value of an attribute, and how many entries there are. The database keeps the numbers by itself.

use percale_core::attribute::AttributeName;

use crate::engine::{Sql, Tx, row};
use crate::error::Result;
use crate::rows::attribute::fold;

/// The type under which values are counted together that are not counted one by one: times, floats, long texts and large integers.
const TOGETHER: i64 = 0;

/// Values that are looked through for one.
const FEW: usize = 64;

/// PostgreSQL has several rows for a value.
static VALUES: Sql = Sql::both(
    "SELECT type, value, CAST(SUM(n) AS bigint) FROM tally WHERE sp = $1 AND name = $2 \
     GROUP BY type, value HAVING SUM(n) > 0 ORDER BY type, value LIMIT $3",
);
/// SQLite counts a million faster than it would keep their number.
static ENTRIES: Sql = Sql::each(
    "SELECT kind, COUNT(*) FROM entry WHERE sp = $1 AND id > 1 GROUP BY kind",
    "SELECT type, CAST(SUM(n) AS bigint) FROM tally WHERE sp = $1 AND name = '' GROUP BY type HAVING SUM(n) > 0",
);
/// Likewise, but up to a number.
static AT_MOST: Sql = Sql::each(
    "SELECT COUNT(*) FROM (SELECT id FROM entry WHERE sp = $1 AND id > 1 LIMIT $2)",
    "SELECT LEAST(CAST(COALESCE(SUM(n), 0) AS bigint), $2) FROM tally WHERE sp = $1 AND name = ''",
);
static REMOVE_OF_SPACE: Sql = Sql::both("DELETE FROM tally WHERE sp = $1");

/// Returns each value that an attribute has in a space, by the number of its type and its text, and how many entries have it; nothing if not
/// all of them are counted one by one, or if there are more than `most`.
pub(crate) async fn values<T: Tx>(
    tx: &T,
    sp: i64,
    name: &AttributeName,
    most: usize,
) -> Result<Option<Vec<((i64, String), u64)>>> {
    let mut values = Vec::new();
    for mut row in tx.query(&VALUES, row![sp, name.as_str(), most + 1]).await? {
        let (kind, value) = (row.int()?, row.text()?);
        if kind == TOGETHER || values.len() == most {
            return Ok(None);
        }
        values.push(((kind, value), row.number()?));
    }
    Ok(Some(values))
}

/// Returns how many entries have a value at least, in whatever case it is written: exactly, if the attribute has few values.
pub(crate) async fn at_least<T: Tx>(tx: &T, sp: i64, name: &AttributeName, value: &str) -> Result<u64> {
    let (mut count, value) = (0, fold(value));
    for mut row in tx.query(&VALUES, row![sp, name.as_str(), FEW]).await? {
        let (kind, text, n) = (row.int()?, row.text()?, row.number()?);
        if kind != TOGETHER && fold(&text) == value {
            count += n;
        }
    }
    Ok(count)
}

/// Returns how many entries of which kind are in a space, without its root.
pub(crate) async fn entries<T: Tx>(tx: &T, sp: i64) -> Result<Vec<(i64, u64)>> {
    let rows = tx.query(&ENTRIES, row![sp]).await?;
    rows.into_iter().map(|mut row| Ok((row.int()?, row.number()?))).collect()
}

/// Returns how many entries are in a space, without its root.
pub(crate) async fn all<T: Tx>(tx: &T, sp: i64) -> Result<u64> {
    Ok(entries(tx, sp).await?.iter().map(|(_, count)| count).sum())
}

/// Returns how many entries are in a space, or `most` if they are more.
pub(crate) async fn at_most<T: Tx>(tx: &T, sp: i64, most: usize) -> Result<u64> {
    tx.query(&AT_MOST, row![sp, most]).await?.first_mut().map_or(Ok(0), |row| row.number())
}

/// Forgets a space, whose entries and attributes are gone.
pub(crate) async fn remove_of_space<T: Tx>(tx: &T, sp: i64) -> Result<()> {
    tx.execute(&REMOVE_OF_SPACE, row![sp]).await.map(drop)
}
