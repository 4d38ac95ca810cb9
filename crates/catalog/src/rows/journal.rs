//! The journal.

use percale_core::ids::SpaceId;
use percale_core::{Position, Timestamp};

use crate::engine::{Row, Sql, Tx, row};
use crate::error::Result;
use crate::model::Record;

/// A record that is to be written, without its number.
#[derive(Debug, Clone)]
pub(crate) struct NewRecord {
    pub actor: String,
    pub kind: &'static str,
    pub v: u32,
    /// JSON.
    pub body: String,
}

/// For SQLite: takes places of a space's journal.
pub(crate) static ADVANCE: Sql =
    Sql::both("UPDATE space SET seq = seq + $1 WHERE sp = $2 AND home IS NULL RETURNING seq, term");
/// For SQLite: writes a record.
pub(crate) static INSERT: Sql = Sql::both(
    "INSERT INTO journal (sp, seq, term, at, actor, kind, v, body) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
);
static READ: Sql = Sql::both(
    "SELECT seq, term, at, actor, kind, v, body FROM journal WHERE sp = $1 AND seq > $2 ORDER BY seq LIMIT $3",
);
/// Backwards. What is looked for in the body is only more or less what is wanted.
static READ_BACK: Sql = Sql::both(
    "SELECT seq, term, at, actor, kind, v, body FROM journal WHERE sp = $1 AND seq > $2 AND seq <= $3 AND kind = $4 \
     AND body LIKE $5 ORDER BY seq DESC LIMIT $6",
);
static FIRST: Sql = Sql::both("SELECT seq FROM journal WHERE sp = $1 ORDER BY seq LIMIT 1");
/// Stops at the first record that is young, since times are not quite in the order of numbers.
static PRUNE: Sql = Sql::both(
    "DELETE FROM journal WHERE sp = $1 AND seq <= $2 AND seq < COALESCE((SELECT j.seq FROM journal j \
     WHERE j.sp = $1 AND j.at >= $3 ORDER BY j.seq LIMIT 1), 9223372036854775807)",
);

/// Bytes of bodies after which no more records are read together: decoded they take about ten times as much, and one record may tell of a
/// thousand objects.
const MANY_BYTES: usize = 1 << 20;
/// Records that one statement reads before it is known how long they are; the next reads as many as there were so far.
const AT_FIRST: usize = 2;
/// Most records that one statement reads: a long one may follow on many short ones.
const TOGETHER: usize = 32;

/// Reads at most `limit` records behind `after`; where they are long, some of them.
pub(crate) async fn read<T: Tx>(
    tx: &T,
    sp: i64,
    space: SpaceId,
    mut after: u64,
    limit: usize,
) -> Result<Vec<Record>> {
    let (mut records, mut bytes) = (Vec::new(), 0);
    let mut next = AT_FIRST.min(limit);
    loop {
        let rows = tx.query(&READ, row![sp, after, next]).await?;
        let is_last = rows.len() < next;
        bytes += rows.iter().map(Row::text_bytes).sum::<usize>();
        records.append(&mut decode(space, rows)?);
        let room = limit.saturating_sub(records.len());
        let Some(last) = records.last().filter(|_| !is_last && room > 0 && bytes < MANY_BYTES) else {
            return Ok(records);
        };
        after = last.position.seq;
        let each = bytes.div_ceil(records.len()).max(1);
        next = (MANY_BYTES - bytes).div_ceil(each).min(room).min(records.len()).min(TOGETHER);
    }
}

/// Reads records of a kind, from the last one on, of those behind `window.0` and up to `window.1` whose bodies match a pattern of `LIKE`.
pub(crate) async fn read_back<T: Tx>(
    tx: &T,
    (sp, space): (i64, SpaceId),
    (after, end): (u64, u64),
    (kind, like): (&str, &str),
    limit: usize,
) -> Result<Vec<Record>> {
    decode(space, tx.query(&READ_BACK, row![sp, after, end, kind, like, limit]).await?)
}

fn decode(space: SpaceId, rows: Vec<Row>) -> Result<Vec<Record>> {
    let decode = |mut row: Row| {
        let (seq, term) = (row.number()?, row.small()?);
        Ok(Record {
            position: Position { space, term, seq },
            at: row.time()?,
            actor: row.text()?,
            kind: row.text()?,
            v: row.small()?,
            body: row.json()?,
        })
    };
    rows.into_iter().map(decode).collect()
}

/// Returns the number of the first record that is kept.
pub(crate) async fn first<T: Tx>(tx: &T, sp: i64) -> Result<Option<u64>> {
    tx.query(&FIRST, row![sp]).await?.first_mut().map(|row| row.number()).transpose()
}

/// Deletes records up to a number that are older than a time.
pub(crate) async fn prune<T: Tx>(tx: &T, sp: i64, up_to: u64, before: Timestamp) -> Result<u64> {
    tx.execute(&PRUNE, row![sp, up_to, before]).await
}
