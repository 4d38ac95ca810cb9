//! Going through the entries of a space: some after the other, in windows of their ids.
//!
//! The rows that an attribute has are found in two ways: looked up for each entry, or, where the entries have few attributes each, by going
//! through all rows of the window at once. The second is several times faster for each row on PostgreSQL, but goes through the
//! index of all other attributes, too.

use super::sql::Members;
use super::{Looked, Searched};
use crate::engine::{Sql, Tx, row};
use crate::error::Result;
use crate::rows::entry;

/// Entry ids that one statement looks at, where no attribute leads to few of them.
pub(super) const WINDOW: u64 = 50_000;
/// A page for which it is worth looking at how many attributes the entries have.
const LONG: usize = 1000;
/// Ids of entries whose attributes are counted for that, and at how many of these that ends.
const SAMPLE: u64 = 200;
const MOST: usize = 4000;
/// How many attributes an entry has at most, so that all are gone through. On PostgreSQL 15 a row costs 0.16 µs, and a look-up 2.4 µs
/// (`searches`, 2 cores of an EPYC); behind the half of what that makes there is little to win.
const FEW_EACH: u64 = 8;

static ATTRIBUTES: Sql = Sql::both(
    "SELECT COUNT(*), COUNT(DISTINCT c.entry) FROM (\
     SELECT a.entry FROM attribute a WHERE a.sp = $1 AND a.entry > $2 AND a.entry <= $3 LIMIT $4) AS c",
);

/// Has PostgreSQL plan each statement for its values, which going through windows needs: whether the attributes of a window are found by their entries or by their
/// name depends on how many entries have the name.
pub(super) static PLAN_EACH: Sql =
    Sql::each("SELECT 1", "SELECT set_config('plan_cache_mode', 'force_custom_plan', true)");
/// And no longer.
pub(super) static PLAN_ONCE: Sql =
    Sql::each("SELECT 1", "SELECT set_config('plan_cache_mode', 'force_generic_plan', true)");

impl Searched<'_> {
    /// Tells whether all attributes of a window are to be gone through for one that the filters ask for, by what the next entries have.
    pub(super) async fn have_few_attributes<T: Tx>(&self, tx: &T, limit: usize) -> Result<bool> {
        if T::LOOKS_UP_FAST || limit < LONG || !self.filters.name_attribute() {
            return Ok(false);
        }
        let until = self.after.saturating_add(SAMPLE);
        let mut rows = tx.query(&ATTRIBUTES, row![self.space.row.sp, self.after, until, MOST]).await?;
        let Some(row) = rows.first_mut() else { return Ok(false) };
        let (attributes, entries) = (row.number()?, row.number()?);
        Ok(entries > 0 && attributes <= entries * FEW_EACH)
    }

    /// Looks at the next window of entries with ids up to `end`. Where all attributes in it are gone through, it has `ids` of them, or as many
    /// as are to be found, and the next one as many as these were too many or too few.
    pub(super) async fn next_window<T: Tx>(
        &self,
        tx: &T,
        (after, ids): (u64, usize),
        limit: usize,
        end: u64,
    ) -> Result<Looked> {
        let ids = if self.goes_through { ids.max(limit) as u64 } else { WINDOW };
        let window = after.saturating_add(ids.min(WINDOW)).min(end);
        let mut builder = self.builder();
        builder.goes_through = self.goes_through;
        let members = Members::Window(after, window, self.filters);
        let sql = builder.next(self.space.row.sp, &members, limit)?;
        let rows = entry::found(tx, &sql, builder.params).await?;
        let is_full = rows.len() == limit;
        let mut reached = rows.last().filter(|_| is_full).map_or(window, |last| last.id);
        let together = reached.saturating_sub(after) as usize * limit / rows.len().max(1);
        if rows.is_empty() && reached < end {
            // A space that got another home or was restored goes on billions of ids later, which nobody need go through.
            let next = entry::next_id(tx, self.space.row.sp, reached).await?;
            reached = next.map_or(end, |next| end.min(next.saturating_sub(1)));
        }
        Ok(Looked { rows, after: reached, together, is_last: !is_full && reached >= end })
    }
}
