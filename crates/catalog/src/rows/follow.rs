//! What only followers of another home's journal need: places taken as the home gave them, and all rows of a space
//! replaced (docs/design/following.md).
//!
//! While a snapshot takes the place of a space's rows, the copies on own stores are set aside under the negative numbers
//! of their space and store. There no key meets another and no reader finds them; nothing is left of it at the end of
//! the transaction.

use percale_core::ids::SiteId;
use percale_core::{Position, Timestamp};
use serde::Serialize;

use crate::engine::{Sql, Tx, row, to_json};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Record, Space};
use crate::rows::journal::NewRecord;
use crate::rows::replica::VersionRow;
use crate::rows::site::{self, SpaceRow};

static KEEP: Sql = Sql::each(
    "INSERT INTO journal (sp, seq, term, at, actor, kind, v, body) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
    "INSERT INTO journal (sp, seq, term, at, actor, kind, v, body) SELECT * FROM UNNEST($1::bigint[], $2::bigint[], \
     $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::bigint[], $8::text[])",
);
/// The next id stays above all that were seen.
static STAND: Sql = Sql::each(
    "UPDATE space SET term = $1, seq = $2, next_id = MAX(next_id, $3), behind = $4 WHERE sp = $5",
    "UPDATE space SET term = $1, seq = $2, next_id = GREATEST(next_id, $3), behind = $4 WHERE sp = $5",
);
static FOLLOWED: Sql = Sql::both(
    "SELECT id, term, seq FROM space WHERE home = $1 AND behind IS NULL AND state <> 'removed' ORDER BY id",
);
static NEXT_ID: Sql = Sql::both("SELECT next_id FROM space WHERE sp = $1");
static SET_CREATED: Sql = Sql::both("UPDATE space SET created = $1 WHERE sp = $2");
static COME_HOME: Sql = Sql::both(
    "UPDATE space SET home = NULL, behind = NULL, term = term + 1, next_id = next_id + $1 WHERE sp = $2",
);
static LEAVE: Sql = Sql::both("UPDATE space SET home = $1, behind = $2 WHERE sp = $3");
static HAS_CHILDREN: Sql = Sql::each(
    "SELECT parent FROM entry WHERE sp = $1 AND parent = $2 LIMIT 1",
    "SELECT e.parent FROM UNNEST($1::bigint[], $2::bigint[]) AS k(sp, id) \
     JOIN entry e ON e.sp = k.sp AND e.parent = k.id LIMIT 1",
);
static IS_GARBAGE: Sql = Sql::both("SELECT version FROM garbage WHERE st = $1 AND key = $2");
static FORGET_REPORTS: Sql = Sql::both("DELETE FROM outbox WHERE sp = $1");

/// Keeps records at their places, as the home wrote them.
pub(crate) async fn keep<T: Tx>(tx: &T, sp: i64, records: &[&Record]) -> Result<()> {
    let mut params = Vec::with_capacity(records.len());
    for record in records {
        let Record { position, at, actor, kind, v, body } = record;
        let body = to_json(body)?;
        params.push(row![sp, position.seq, position.term, *at, actor.as_str(), kind.as_str(), *v, body]);
    }
    tx.execute_many(&KEEP, params).await.map(drop)
}

/// Notes where the rows of a space stand, and above which id the next one is.
pub(crate) async fn stand<T: Tx>(
    tx: &T,
    sp: i64,
    position: Position,
    next_id: u64,
    behind: Option<String>,
) -> Result<()> {
    tx.execute(&STAND, row![position.term, position.seq, next_id, behind, sp]).await.map(drop)
}

/// Returns where the spaces of a home stand that can be followed further.
pub(crate) async fn followed<T: Tx>(tx: &T, home: SiteId) -> Result<Vec<Position>> {
    let rows = tx.query(&FOLLOWED, row![home]).await?;
    let decode = |mut row: crate::engine::Row| {
        let space = percale_core::ids::SpaceId(row.uuid()?);
        Ok(Position { space, term: row.small()?, seq: row.number()? })
    };
    rows.into_iter().map(decode).collect()
}

/// Returns a space, with its row locked so that nobody else follows it or changes its home meanwhile.
pub(crate) async fn locked_space<T: Tx>(tx: &T, id: percale_core::ids::SpaceId) -> Result<Option<SpaceRow>> {
    let Some(found) = site::space_by_id(tx, id).await? else { return Ok(None) };
    site::lock_space(tx, found.sp).await?;
    site::space_by_id(tx, id).await
}

/// Returns the id that the space gives out next.
pub(crate) async fn next_id<T: Tx>(tx: &T, sp: i64) -> Result<u64> {
    match tx.query(&NEXT_ID, row![sp]).await?.first_mut() {
        Some(row) => row.number(),
        None => Err(Error::corrupt(format!("space number {sp} is missing"))),
    }
}

/// Writes all about a space but where it stands, also of one that was removed here.
pub(crate) async fn put_space<T: Tx>(tx: &T, sp: i64, space: &Space) -> Result<()> {
    site::update_space(tx, sp, space).await?;
    tx.execute(&SET_CREATED, row![space.created, sp]).await.map(drop)
}

/// Makes this site the home of a space, in the next term, with ids that go on far behind those that were seen.
pub(crate) async fn come_home<T: Tx>(tx: &T, sp: i64, jump: u64) -> Result<()> {
    tx.execute(&COME_HOME, row![jump, sp]).await.map(drop)
}

/// Makes another site the home of a space.
pub(crate) async fn leave<T: Tx>(tx: &T, sp: i64, home: SiteId, behind: Option<String>) -> Result<()> {
    tx.execute(&LEAVE, row![home, behind, sp]).await.map(drop)
}

/// Writes a record of a space that is at home here at once, and returns its position.
pub(crate) async fn append<T: Tx, B: Serialize>(
    tx: &T,
    row: &SpaceRow,
    actor: &str,
    kind: &'static str,
    body: &B,
) -> Result<Position> {
    let record = NewRecord { actor: actor.to_owned(), kind, v: 1, body: to_json(body)? };
    match tx.append(row.sp, &[record]).await? {
        Some((seq, term)) => Ok(Position { space: row.space.id, term, seq }),
        None => Err(crate::batch::raced("a space got another home before a change of it was written")),
    }
}

/// Checks that no other space has a name.
///
/// # Errors
/// `AlreadyExists`, naming the site that the other space is at home at.
pub(crate) async fn require_free_name<T: Tx>(tx: &T, space: &Space) -> Result<()> {
    let found = site::spaces_by_name(tx, vec![space.name.as_str().to_owned()]).await?;
    let Some(other) = found.into_iter().find(|other| other.space.id != space.id) else { return Ok(()) };
    let holder = match other.space.home {
        None => "this site".to_owned(),
        Some(home) => match super::peer::peers(tx).await?.into_iter().find(|peer| peer.id == home) {
            Some(peer) => format!("the site '{}'", peer.name),
            None => format!("site {home}"),
        },
    };
    let message = format!(
        "cannot follow space {}: its name '{}' is that of another space, {}, which is at home at {holder}; one of the \
         two has to be renamed",
        space.id, space.name, other.space.id
    );
    Err(Error::new(ErrorKind::AlreadyExists { version: None }, message))
}

/// Returns one of these collections that still has entries.
pub(crate) async fn with_children<T: Tx>(tx: &T, sp: i64, ids: Vec<u64>) -> Result<Option<u64>> {
    let rows = tx.many(&HAS_CHILDREN, ids.into_iter().map(|id| row![sp, id]).collect()).await?;
    rows.into_iter().next().map(|mut row| row.number()).transpose()
}

/// Tells whether a key of a store is garbage.
pub(crate) async fn is_garbage<T: Tx>(tx: &T, st: i64, key: &str) -> Result<bool> {
    Ok(!tx.query(&IS_GARBAGE, row![st, key]).await?.is_empty())
}

/// Lets PostgreSQL scan and hash: these statements look at all rows of a space.
static PLAN: Sql = Sql::each(
    "SELECT 1",
    "SELECT set_config('enable_seqscan', 'on', true), set_config('enable_hashjoin', 'on', true), \
     set_config('enable_mergejoin', 'on', true), set_config('plan_cache_mode', 'force_custom_plan', true)",
);

/// Deletes the rows of a space but for garbage and what is remembered of it; the copies on own stores are set aside.
/// Entries first: who is about to say something of a copy has locked one of them.
static CLEAR: [Sql; 7] = [
    Sql::both("DELETE FROM entry WHERE sp = $1"),
    Sql::both("DELETE FROM replica WHERE sp = $1 AND st IN (SELECT st FROM store WHERE site IS NOT NULL)"),
    Sql::both("UPDATE replica SET sp = -sp, st = -st WHERE sp = $1"),
    Sql::both("DELETE FROM grants WHERE sp = $1"),
    Sql::both("DELETE FROM attribute WHERE sp = $1"),
    Sql::both("DELETE FROM journal WHERE sp = $1"),
    Sql::both(
        "DELETE FROM version WHERE sp = $1 AND NOT EXISTS (SELECT 1 FROM garbage g \
         WHERE g.sp = version.sp AND g.version = version.id)",
    ),
];

/// Deletes the rows of a space and sets the copies on own stores aside, for [`settle`] or [`discard_aside`].
pub(crate) async fn clear<T: Tx>(tx: &T, sp: i64) -> Result<()> {
    tx.query(&PLAN, row![]).await?;
    for sql in &CLEAR {
        tx.execute(sql, row![sp]).await?;
    }
    Ok(())
}

static PUT_VERSION: Sql = Sql::each(
    "INSERT INTO version (sp, id, entry, size, root, created, superseded) VALUES ($1, $2, $3, $4, $5, $6, $7) \
     ON CONFLICT (sp, id) DO UPDATE SET entry = excluded.entry, size = excluded.size, root = excluded.root, \
     created = excluded.created, superseded = excluded.superseded",
    "INSERT INTO version (sp, id, entry, size, root, created, superseded) SELECT * FROM UNNEST($1::bigint[], \
     $2::bigint[], $3::bigint[], $4::bigint[], $5::bytea[], $6::bigint[], $7::bigint[]) \
     ON CONFLICT (sp, id) DO UPDATE SET entry = excluded.entry, size = excluded.size, root = excluded.root, \
     created = excluded.created, superseded = excluded.superseded",
);

/// Writes former versions, in place of what may be remembered of them here.
pub(crate) async fn put_versions<T: Tx>(tx: &T, rows: &[VersionRow]) -> Result<()> {
    let params = rows.iter().map(|version| {
        let VersionRow { sp, id, entry, size, root, created, superseded } = version;
        row![*sp, *id, *entry, *size, *root, *created, *superseded]
    });
    tx.execute_many(&PUT_VERSION, params.collect()).await.map(drop)
}

/// When its bytes were looked at is known here only.
static TAKE_CHECKED: Sql = Sql::both(
    "UPDATE replica SET checked = (SELECT o.checked FROM replica o WHERE o.sp = -replica.sp \
     AND o.version = replica.version AND o.st = -replica.st AND o.key = replica.key) \
     WHERE sp = $1 AND EXISTS (SELECT 1 FROM replica o WHERE o.sp = -replica.sp AND o.version = replica.version \
     AND o.st = -replica.st AND o.key = replica.key)",
);
/// What the home has not answered yet is newer than what the home says.
static TAKE_REPORTED: Sql = Sql::both(
    "UPDATE replica SET state = (SELECT o.state FROM replica o WHERE o.sp = -replica.sp \
     AND o.version = replica.version AND o.st = -replica.st), generation = (SELECT o.generation FROM replica o \
     WHERE o.sp = -replica.sp AND o.version = replica.version AND o.st = -replica.st) WHERE sp = $1 \
     AND EXISTS (SELECT 1 FROM outbox b WHERE b.sp = replica.sp AND b.version = replica.version AND b.st = replica.st) \
     AND EXISTS (SELECT 1 FROM replica o WHERE o.sp = -replica.sp AND o.version = replica.version \
     AND o.st = -replica.st AND o.key = replica.key)",
);
/// A native file that a mount writes stays where it lies.
static UNNAMED: Sql = Sql::each(
    "INSERT INTO garbage (st, key, sp, version, generation, since) \
     SELECT -o.st, o.key, -o.sp, o.version, o.generation, $1 FROM replica o WHERE o.sp = -$2 AND o.state <> 'writing' \
     AND NOT EXISTS (SELECT 1 FROM replica r WHERE r.st = -o.st AND r.key = o.key) \
     AND NOT EXISTS (SELECT 1 FROM arrival a WHERE a.st = -o.st AND a.key = o.key) \
     ON CONFLICT (st, key) DO NOTHING",
    "INSERT INTO garbage (st, key, sp, version, generation, since) \
     SELECT -o.st, o.key, -o.sp, o.version, o.generation, $1::bigint FROM replica o WHERE o.sp = -$2::bigint AND o.state <> 'writing' \
     AND NOT EXISTS (SELECT 1 FROM replica r WHERE r.st = -o.st AND r.key = o.key) \
     AND NOT EXISTS (SELECT 1 FROM arrival a WHERE a.st = -o.st AND a.key = o.key) ON CONFLICT (st, key) DO NOTHING",
);
static DISCARD: Sql = Sql::each(
    "INSERT INTO garbage (st, key, sp, version, generation, since) SELECT -o.st, o.key, -o.sp, o.version, \
     CASE WHEN o.state = 'writing' THEN NULL ELSE o.generation END, $1 FROM replica o \
     WHERE o.sp = -$2 ON CONFLICT (st, key) DO NOTHING",
    "INSERT INTO garbage (st, key, sp, version, generation, since) SELECT -o.st, o.key, -o.sp, o.version, \
     CASE WHEN o.state = 'writing' THEN NULL ELSE o.generation END, $1::bigint FROM replica o \
     WHERE o.sp = -$2::bigint ON CONFLICT (st, key) DO NOTHING",
);
static DROP_ASIDE: Sql =
    Sql::each("DELETE FROM replica WHERE sp = -$1", "DELETE FROM replica WHERE sp = -$1::bigint");
/// Bytes that had lost their name and have one again. The collector may be deleting them already, so a reader has to find
/// out; where the bytes were another version's, they must not be read.
static RESCUE: [Sql; 3] = [
    Sql::both(
        "UPDATE replica SET state = 'unverified', checked = NULL WHERE sp = $1 AND state = 'good' \
         AND EXISTS (SELECT 1 FROM garbage g WHERE g.st = replica.st AND g.key = replica.key \
         AND g.sp = replica.sp AND g.version = replica.version)",
    ),
    Sql::both(
        "UPDATE replica SET state = 'suspect', checked = NULL WHERE sp = $1 AND EXISTS (SELECT 1 FROM garbage g \
         WHERE g.st = replica.st AND g.key = replica.key AND NOT (g.sp = replica.sp AND g.version = replica.version))",
    ),
    Sql::both(
        "DELETE FROM garbage WHERE EXISTS (SELECT 1 FROM replica r WHERE r.st = garbage.st AND r.key = garbage.key \
         AND r.sp = $1)",
    ),
];
/// A version that is current, or of which nothing is left, is not history.
static FORGET: Sql = Sql::both(
    "DELETE FROM version WHERE sp = $1 AND (EXISTS (SELECT 1 FROM entry e WHERE e.sp = version.sp \
     AND e.id = version.entry AND e.version = version.id) OR (NOT EXISTS (SELECT 1 FROM replica r \
     WHERE r.sp = version.sp AND r.version = version.id) AND NOT EXISTS (SELECT 1 FROM garbage g \
     WHERE g.sp = version.sp AND g.version = version.id)))",
);

/// Joins what is known here only with the rows that a snapshot gave: when copies on own stores were checked, reports that
/// wait, garbage. Copies on own stores that the home does not know become garbage, unless an arrival has their key. The
/// snapshot is as of `position`.
pub(crate) async fn settle<T: Tx>(tx: &T, sp: i64, position: Position, now: Timestamp) -> Result<()> {
    tx.execute(&TAKE_CHECKED, row![sp]).await?;
    super::outbox::pass_all(tx, sp, position).await?;
    tx.execute(&TAKE_REPORTED, row![sp]).await?;
    tx.execute(&UNNAMED, row![now, sp]).await?;
    tx.execute(&DROP_ASIDE, row![sp]).await?;
    for sql in &RESCUE {
        tx.execute(sql, row![sp]).await?;
    }
    tx.execute(&FORGET, row![sp]).await.map(drop)
}

/// Makes garbage of all copies that were set aside: the space is gone.
pub(crate) async fn discard_aside<T: Tx>(tx: &T, sp: i64, now: Timestamp) -> Result<()> {
    tx.execute(&DISCARD, row![now, sp]).await?;
    tx.execute(&DROP_ASIDE, row![sp]).await?;
    tx.execute(&FORGET_REPORTS, row![sp]).await?;
    tx.execute(&FORGET, row![sp]).await.map(drop)
}

/// What must be true of the rows of a space, and what one that breaks it is called.
static UNFIT: [(&str, Sql); 4] = [
    (
        "entries that are not connected to the root",
        Sql::both(
            "WITH RECURSIVE down(id) AS (SELECT id FROM entry WHERE sp = $1 AND id = 1 AND parent = 0 AND kind = 1 \
             UNION SELECT e.id FROM down d JOIN entry e ON e.sp = $1 AND e.parent = d.id AND e.kind = 1) \
             SELECT id FROM entry e WHERE e.sp = $1 AND e.id <> 1 \
             AND NOT EXISTS (SELECT 1 FROM down d WHERE d.id = e.parent) \
             UNION ALL SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM down) LIMIT 1",
        ),
    ),
    (
        "copies of versions that no object has",
        Sql::both(
            "SELECT r.version FROM replica r WHERE r.sp = $1 AND NOT EXISTS (SELECT 1 FROM entry e WHERE e.sp = r.sp \
             AND e.id = r.entry AND e.version = r.version) AND NOT EXISTS (SELECT 1 FROM version v \
             WHERE v.sp = r.sp AND v.id = r.version AND v.entry = r.entry) LIMIT 1",
        ),
    ),
    (
        "grants on nothing",
        Sql::both(
            "SELECT g.entry FROM grants g WHERE g.sp = $1 AND NOT EXISTS (SELECT 1 FROM entry e WHERE e.sp = g.sp \
             AND e.id = g.entry) LIMIT 1",
        ),
    ),
    (
        "attributes of nothing",
        Sql::both(
            "SELECT a.entry FROM attribute a WHERE a.sp = $1 AND NOT EXISTS (SELECT 1 FROM entry e WHERE e.sp = a.sp \
             AND e.id = a.entry) LIMIT 1",
        ),
    ),
];

/// Checks that the rows of a space fit together.
///
/// # Errors
/// `DoesNotFit`.
pub(crate) async fn check_fit<T: Tx>(tx: &T, sp: i64) -> Result<()> {
    for (what, sql) in &UNFIT {
        if let Some(mut row) = tx.query(sql, row![sp]).await?.pop() {
            let id = row.number()?;
            return Err(Error::does_not_fit(format!("there are {what}, such as {id}")));
        }
    }
    Ok(())
}
