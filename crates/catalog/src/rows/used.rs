//! How many bytes the objects of a space have, in their current versions. The database keeps the number by itself.

use std::collections::HashMap;

use percale_core::ByteCount;
use percale_core::ids::SpaceId;

use crate::engine::{Sql, Tx, row};
use crate::error::Result;

/// PostgreSQL has several rows for a space.
static OF_SPACES: Sql = Sql::each(
    "SELECT s.id, CAST(u.bytes AS INTEGER) FROM space s JOIN used u ON u.sp = s.sp WHERE s.id = $1 AND u.bytes > 0",
    "SELECT s.id, CAST(LEAST(SUM(u.bytes), 9223372036854775807) AS bigint) FROM UNNEST($1::uuid[]) AS k(id) \
     JOIN space s ON s.id = k.id JOIN used u ON u.sp = s.sp GROUP BY s.id HAVING SUM(u.bytes) > 0",
);
static REMOVE_OF_SPACE: Sql = Sql::both("DELETE FROM used WHERE sp = $1");

/// Returns what spaces have, where that is anything.
pub(crate) async fn of_spaces<T: Tx>(tx: &T, spaces: Vec<SpaceId>) -> Result<HashMap<SpaceId, ByteCount>> {
    let rows = tx.many(&OF_SPACES, spaces.into_iter().map(|space| row![space]).collect()).await?;
    rows.into_iter().map(|mut row| Ok((SpaceId(row.uuid()?), ByteCount(row.number()?)))).collect()
}

/// Forgets a space, whose entries are gone.
pub(crate) async fn remove_of_space<T: Tx>(tx: &T, sp: i64) -> Result<()> {
    tx.execute(&REMOVE_OF_SPACE, row![sp]).await.map(drop)
}
