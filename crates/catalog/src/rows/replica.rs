//! Copies of versions, versions that are history, and garbage.

use percale_core::ids::{EntryId, SpaceId, StoreId, VersionId};
use percale_core::state::ReplicaState;
use percale_core::tree::RootHash;
use percale_core::{ByteCount, Timestamp};

use crate::engine::{Row, Sql, Tx, Value, row};
use crate::error::Result;
use crate::model::{Garbage, KnownFile, Replica, StoredReplica};

/// A row of `replica`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReplicaRow {
    pub sp: i64,
    pub st: i64,
    pub entry: u64,
    /// Whether the store is this site's, so that this site makes garbage of it.
    pub is_own: bool,
    pub replica: Replica,
}

macro_rules! columns {
    () => {
        "r.sp, r.version, r.st, s.id, r.entry, r.key, r.state, r.generation, r.checked, s.site"
    };
}

fn decode(row: &mut Row) -> Result<ReplicaRow> {
    let sp = row.int()?;
    let version = VersionId(row.number()?);
    let st = row.int()?;
    let store = StoreId(row.uuid()?);
    let entry = row.number()?;
    let key = row.text()?;
    let state: ReplicaState = row.parse()?;
    let generation = row.opt_text()?;
    let checked = row.opt_time()?;
    let is_own = row.opt_uuid()?.is_none();
    let replica = Replica { version, store, key, state, generation, checked };
    Ok(ReplicaRow { sp, st, entry, is_own, replica })
}

static OF_VERSIONS: Sql = Sql::each(
    concat!(
        "SELECT ",
        columns!(),
        " FROM replica r JOIN store s ON s.st = r.st WHERE r.sp = $1 AND r.version = $2 ORDER BY r.st"
    ),
    concat!(
        "SELECT ",
        columns!(),
        " FROM UNNEST($1::bigint[], $2::bigint[]) AS k(sp, version) \
         JOIN replica r ON r.sp = k.sp AND r.version = k.version JOIN store s ON s.st = r.st \
         ORDER BY r.sp, r.version, r.st"
    ),
);

/// The copies of the versions that are not current any more, by object.
static OF_FORMER: Sql = Sql::each(
    concat!(
        "SELECT ",
        columns!(),
        // In this order: SQLite would otherwise look at all copies of the space for each object.
        " FROM version v CROSS JOIN replica r ON r.sp = v.sp AND r.version = v.id CROSS JOIN store s ON s.st = r.st \
         WHERE v.sp = $1 AND v.entry = $2"
    ),
    concat!(
        "SELECT ",
        columns!(),
        " FROM UNNEST($1::bigint[], $2::bigint[]) AS k(sp, entry) \
         JOIN version v ON v.sp = k.sp AND v.entry = k.entry \
         JOIN replica r ON r.sp = v.sp AND r.version = v.id JOIN store s ON s.st = r.st"
    ),
);

static BY_KEY: Sql = Sql::each(
    concat!(
        "SELECT ",
        columns!(),
        " FROM replica r JOIN store s ON s.st = r.st WHERE r.st = $1 AND r.key = $2"
    ),
    concat!(
        "SELECT ",
        columns!(),
        " FROM UNNEST($1::bigint[], $2::text[]) AS k(st, key) \
         JOIN replica r ON r.st = k.st AND r.key = k.key JOIN store s ON s.st = r.st"
    ),
);

static HAS_KEYS: Sql =
    Sql::both("SELECT version FROM replica WHERE st = $1 AND key >= $2 AND key <= $3 LIMIT 1");

static KNOWN_FILES: Sql = Sql::both(
    "SELECT r.key, r.generation, r.state, r.version, p.id, e.parent, e.name, e.version FROM replica r \
     JOIN space p ON p.sp = r.sp LEFT JOIN entry e ON e.sp = r.sp AND e.id = r.entry \
     WHERE r.st = (SELECT st FROM store WHERE id = $1) AND r.key > $2 AND r.key < $3 ORDER BY r.key LIMIT $4",
);

static INSERT: Sql = Sql::each(
    "INSERT INTO replica (sp, version, st, entry, key, state, generation, checked) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
    "INSERT INTO replica (sp, version, st, entry, key, state, generation, checked) \
     SELECT * FROM UNNEST($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], \
     $7::text[], $8::bigint[])",
);

static UPDATE: Sql = Sql::each(
    "UPDATE replica SET state = $1, generation = $2, checked = $3 WHERE sp = $4 AND version = $5 AND st = $6",
    "UPDATE replica r SET state = k.state, generation = k.generation, checked = k.checked \
     FROM UNNEST($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[]) \
     AS k(state, generation, checked, sp, version, st) \
     WHERE r.sp = k.sp AND r.version = k.version AND r.st = k.st",
);

static DELETE: Sql = Sql::each(
    "DELETE FROM replica WHERE sp = $1 AND version = $2 AND st = $3",
    "DELETE FROM replica r USING UNNEST($1::bigint[], $2::bigint[], $3::bigint[]) AS k(sp, version, st) \
     WHERE r.sp = k.sp AND r.version = k.version AND r.st = k.st",
);

static OF_SPACE: Sql = Sql::both(concat!(
    "SELECT ",
    columns!(),
    " FROM replica r JOIN store s ON s.st = r.st WHERE r.sp = $1 AND (r.version, r.st) > ($2, $3) \
     ORDER BY r.sp, r.version, r.st LIMIT $4"
));

/// Copies on a store with what is known of their versions.
macro_rules! stored {
    ($condition:literal) => {
        Sql::both(concat!(
            "SELECT ",
            columns!(),
            ", p.id, COALESCE(e.size, v.size), CASE WHEN e.id IS NULL THEN v.root ELSE e.root END, e.id \
             FROM replica r JOIN store s ON s.st = r.st JOIN space p ON p.sp = r.sp \
             LEFT JOIN entry e ON e.sp = r.sp AND e.id = r.entry AND e.version = r.version \
             LEFT JOIN version v ON v.sp = r.sp AND v.id = r.version WHERE s.id = $1 AND ",
            $condition
        ))
    };
}

static ON_STORE: Sql = stored!("r.key > $2 ORDER BY r.key LIMIT $3");

// Reads all copies of the store: asked when a mount has died.
static IN_STATE: Sql = stored!("r.state = $2");

/// What a batch writes with, got ready together.
pub(crate) static WRITES: [&Sql; 5] = [&DELETE, &INSERT, &UPDATE, &INSERT_VERSION, &INSERT_GARBAGE];

/// What commits look at, got ready together.
pub(crate) static LOOKS: [&Sql; 1] = [&OF_VERSIONS];

/// Returns the copies of these versions.
pub(crate) async fn of_versions<T: Tx>(tx: &T, keys: Vec<(i64, VersionId)>) -> Result<Vec<ReplicaRow>> {
    let params = keys.into_iter().map(|(sp, version)| row![sp, version]).collect();
    tx.many(&OF_VERSIONS, params).await?.into_iter().map(|mut row| decode(&mut row)).collect()
}

/// Returns the copies with these keys.
pub(crate) async fn by_keys<T: Tx>(tx: &T, keys: Vec<(i64, String)>) -> Result<Vec<ReplicaRow>> {
    let params = keys.into_iter().map(|(st, key)| row![st, key]).collect();
    tx.many(&BY_KEY, params).await?.into_iter().map(|mut row| decode(&mut row)).collect()
}

/// Tells whether any copy on a store has a key from `first` to `last`.
pub(crate) async fn has_keys<T: Tx>(tx: &T, st: i64, first: &str, last: &str) -> Result<bool> {
    Ok(!tx.query(&HAS_KEYS, row![st, first, last]).await?.is_empty())
}

/// Returns what is known of the files of a store with keys between `after` and `before`, by key.
pub(crate) async fn known_files<T: Tx>(
    tx: &T,
    store: StoreId,
    (after, before): (&str, &str),
    limit: usize,
) -> Result<Vec<KnownFile>> {
    let rows = tx.query(&KNOWN_FILES, row![store, after, before, limit]).await?;
    let mut found = Vec::with_capacity(rows.len());
    for mut row in rows {
        let key = row.text()?;
        let generation = row.opt_text()?;
        let state = row.parse()?;
        let version = VersionId(row.number()?);
        let space = SpaceId(row.uuid()?);
        let parent = EntryId(row.opt_number()?.unwrap_or_default());
        let name = row.opt_text()?.unwrap_or_default();
        let is_current = row.opt_number()? == Some(version.0);
        found.push(KnownFile { key, generation, state, version, space, parent, name, is_current });
    }
    Ok(found)
}

/// Returns the copies of the former versions of these objects.
pub(crate) async fn of_former<T: Tx>(tx: &T, entries: Vec<(i64, u64)>) -> Result<Vec<ReplicaRow>> {
    let params = entries.into_iter().map(|(sp, entry)| row![sp, entry]).collect();
    tx.many(&OF_FORMER, params).await?.into_iter().map(|mut row| decode(&mut row)).collect()
}

/// Returns copies of a space whose versions and stores are greater than `after`, by version and store.
pub(crate) async fn of_space<T: Tx>(
    tx: &T,
    sp: i64,
    after: (VersionId, i64),
    limit: usize,
) -> Result<Vec<ReplicaRow>> {
    let rows = tx.query(&OF_SPACE, row![sp, after.0, after.1, limit]).await?;
    rows.into_iter().map(|mut row| decode(&mut row)).collect()
}

/// Writes new copies.
pub(crate) async fn insert<T: Tx>(tx: &T, rows: &[&ReplicaRow]) -> Result<()> {
    let params = rows.iter().map(|row| {
        let ReplicaRow { sp, st, entry, replica, .. } = row;
        row![
            *sp,
            replica.version,
            *st,
            *entry,
            replica.key.as_str(),
            replica.state.as_str(),
            replica.generation.clone(),
            replica.checked,
        ]
    });
    tx.execute_many(&INSERT, params.collect()).await.map(drop)
}

/// Writes the state, generation and time of copies that are there.
pub(crate) async fn update<T: Tx>(tx: &T, rows: &[&ReplicaRow]) -> Result<()> {
    let params = rows.iter().map(|row| {
        let ReplicaRow { sp, st, replica, .. } = row;
        row![replica.state.as_str(), replica.generation.clone(), replica.checked, *sp, replica.version, *st]
    });
    tx.execute_many(&UPDATE, params.collect()).await.map(drop)
}

/// Deletes copies, by space, version and store.
pub(crate) async fn delete<T: Tx>(tx: &T, keys: Vec<(i64, VersionId, i64)>) -> Result<()> {
    let params = keys.into_iter().map(|(sp, version, st)| row![sp, version, st]).collect();
    tx.execute_many(&DELETE, params).await.map(drop)
}

/// Returns the copies on a store whose keys are greater than `after`, by key.
pub(crate) async fn on_store<T: Tx>(
    tx: &T,
    store: StoreId,
    after: &str,
    limit: usize,
) -> Result<Vec<StoredReplica>> {
    stored(tx.query(&ON_STORE, row![store, after, limit]).await?)
}

/// Returns the copies on a store that are in a state.
pub(crate) async fn in_state<T: Tx>(
    tx: &T,
    store: StoreId,
    state: ReplicaState,
) -> Result<Vec<StoredReplica>> {
    stored(tx.query(&IN_STATE, row![store, state.as_str()]).await?)
}

fn stored(rows: Vec<Row>) -> Result<Vec<StoredReplica>> {
    let mut found = Vec::with_capacity(rows.len());
    for mut row in rows {
        let replica = decode(&mut row)?.replica;
        let space = SpaceId(row.uuid()?);
        let size = ByteCount(row.opt_number()?.unwrap_or_default());
        let root = row.opt_root()?;
        let is_current = row.opt_number()?.is_some();
        found.push(StoredReplica { space, replica, size, root, is_current });
    }
    Ok(found)
}

/// A row of `version`: one that is not current any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VersionRow {
    pub sp: i64,
    pub id: VersionId,
    pub entry: u64,
    pub size: ByteCount,
    pub root: Option<RootHash>,
    pub created: Timestamp,
    pub superseded: Timestamp,
}

static VERSION: Sql =
    Sql::both("SELECT sp, id, entry, size, root, created, superseded FROM version WHERE sp = $1 AND id = $2");
static FORMER: Sql = Sql::both(
    "SELECT v.sp, v.id, v.entry, v.size, v.root, v.created, v.superseded FROM version v WHERE v.sp = $1 AND v.id > $2 \
     AND EXISTS (SELECT 1 FROM replica r WHERE r.sp = v.sp AND r.version = v.id) ORDER BY v.sp, v.id LIMIT $3",
);
static INSERT_VERSION: Sql = Sql::each(
    "INSERT INTO version (sp, id, entry, size, root, created, superseded) VALUES ($1, $2, $3, $4, $5, $6, $7)",
    "INSERT INTO version (sp, id, entry, size, root, created, superseded) SELECT * FROM UNNEST($1::bigint[], \
     $2::bigint[], $3::bigint[], $4::bigint[], $5::bytea[], $6::bigint[], $7::bigint[])",
);
static SET_VERSION_ROOT: Sql =
    Sql::both("UPDATE version SET root = $1 WHERE sp = $2 AND id = $3 AND root IS NULL");
/// A version is remembered only as long as bytes of it are.
static FORGET_VERSIONS: Sql = Sql::each(
    "DELETE FROM version WHERE sp = $1 AND id = $2 \
     AND NOT EXISTS (SELECT 1 FROM replica r WHERE r.sp = version.sp AND r.version = version.id) \
     AND NOT EXISTS (SELECT 1 FROM garbage g WHERE g.sp = version.sp AND g.version = version.id)",
    "DELETE FROM version v USING UNNEST($1::bigint[], $2::bigint[]) AS k(sp, id) \
     WHERE v.sp = k.sp AND v.id = k.id \
     AND NOT EXISTS (SELECT 1 FROM replica r WHERE r.sp = v.sp AND r.version = v.id) \
     AND NOT EXISTS (SELECT 1 FROM garbage g WHERE g.sp = v.sp AND g.version = v.id)",
);

/// Returns a version that is not current any more.
pub(crate) async fn version<T: Tx>(tx: &T, sp: i64, id: VersionId) -> Result<Option<VersionRow>> {
    tx.query(&VERSION, row![sp, id]).await?.pop().map(|mut row| decode_version(&mut row)).transpose()
}

fn decode_version(row: &mut Row) -> Result<VersionRow> {
    Ok(VersionRow {
        sp: row.int()?,
        id: VersionId(row.number()?),
        entry: row.number()?,
        size: ByteCount(row.number()?),
        root: row.opt_root()?,
        created: row.time()?,
        superseded: row.time()?,
    })
}

/// Returns former versions of a space with copies whose ids are greater than `after`, by id.
pub(crate) async fn former<T: Tx>(
    tx: &T,
    sp: i64,
    after: VersionId,
    limit: usize,
) -> Result<Vec<VersionRow>> {
    let rows = tx.query(&FORMER, row![sp, after, limit]).await?;
    rows.into_iter().map(|mut row| decode_version(&mut row)).collect()
}

/// Writes versions that are not current any more.
pub(crate) async fn insert_versions<T: Tx>(tx: &T, rows: &[VersionRow]) -> Result<()> {
    let params = rows.iter().map(|version| {
        let VersionRow { sp, id, entry, size, root, created, superseded } = version;
        row![*sp, *id, *entry, *size, *root, *created, *superseded]
    });
    tx.execute_many(&INSERT_VERSION, params.collect()).await.map(drop)
}

/// Gives a version that is not current any more its root, if it has none.
pub(crate) async fn set_version_root<T: Tx>(tx: &T, sp: i64, id: VersionId, root: RootHash) -> Result<u64> {
    tx.execute(&SET_VERSION_ROOT, row![root, sp, id]).await
}

/// Deletes those of these versions of which no bytes are left.
pub(crate) async fn forget_versions<T: Tx>(tx: &T, keys: Vec<(i64, VersionId)>) -> Result<()> {
    let params = keys.into_iter().map(|(sp, id)| row![sp, id]).collect();
    tx.execute_many(&FORGET_VERSIONS, params).await.map(drop)
}

/// A row of `garbage`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GarbageRow {
    pub st: i64,
    pub key: String,
    pub sp: i64,
    pub version: VersionId,
    pub generation: Option<String>,
    pub since: Timestamp,
}

impl GarbageRow {
    /// Its columns, in the order of this struct.
    pub fn params(&self) -> Vec<Value> {
        let Self { st, key, sp, version, generation, since } = self;
        row![*st, key.as_str(), *sp, *version, generation.as_deref(), *since]
    }
}

static GARBAGE: Sql = Sql::both(
    "SELECT g.key, p.id, g.version, g.generation, g.since FROM garbage g JOIN store s ON s.st = g.st \
     JOIN space p ON p.sp = g.sp WHERE s.id = $1 ORDER BY g.st, g.since, g.key LIMIT $2",
);
static INSERT_GARBAGE: Sql = Sql::each(
    "INSERT INTO garbage (st, key, sp, version, generation, since) VALUES ($1, $2, $3, $4, $5, $6)",
    "INSERT INTO garbage (st, key, sp, version, generation, since) \
     SELECT * FROM UNNEST($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::bigint[])",
);
static COLLECTED: Sql = Sql::each(
    "DELETE FROM garbage WHERE st = $1 AND key = $2 RETURNING sp, version",
    "DELETE FROM garbage g USING UNNEST($1::bigint[], $2::text[]) AS k(st, key) \
     WHERE g.st = k.st AND g.key = k.key RETURNING g.sp, g.version",
);
static SPACE_HAS_BYTES: Sql = Sql::both(
    "SELECT sp FROM space WHERE sp = $1 AND (EXISTS (SELECT 1 FROM replica WHERE sp = $1) \
     OR EXISTS (SELECT 1 FROM garbage WHERE sp = $1) OR EXISTS (SELECT 1 FROM intent WHERE sp = $1))",
);

/// Returns garbage of a store, the oldest first.
pub(crate) async fn garbage<T: Tx>(tx: &T, store: StoreId, limit: usize) -> Result<Vec<Garbage>> {
    let rows = tx.query(&GARBAGE, row![store, limit]).await?;
    let mut found = Vec::with_capacity(rows.len());
    for mut row in rows {
        let key = row.text()?;
        let space = SpaceId(row.uuid()?);
        let version = VersionId(row.number()?);
        let generation = row.opt_text()?;
        found.push(Garbage { store, key, space, version, generation, since: row.time()? });
    }
    Ok(found)
}

/// Writes new garbage.
pub(crate) async fn insert_garbage<T: Tx>(tx: &T, rows: &[GarbageRow]) -> Result<()> {
    tx.execute_many(&INSERT_GARBAGE, rows.iter().map(GarbageRow::params).collect()).await.map(drop)
}

/// Deletes garbage, by store and key, and returns the versions it was.
pub(crate) async fn collected<T: Tx>(tx: &T, keys: Vec<(i64, String)>) -> Result<Vec<(i64, VersionId)>> {
    let params = keys.into_iter().map(|(st, key)| row![st, key]).collect();
    let rows = tx.many(&COLLECTED, params).await?;
    rows.into_iter().map(|mut row| Ok((row.int()?, VersionId(row.number()?)))).collect()
}

/// Tells whether bytes of a space are left anywhere.
pub(crate) async fn space_has_bytes<T: Tx>(tx: &T, sp: i64) -> Result<bool> {
    Ok(!tx.query(&SPACE_HAS_BYTES, row![sp]).await?.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With one condition on `replica` alone a step of a removal would read all copies of a space for each of its objects.
    #[test]
    fn copies_of_former_versions_are_found_by_their_versions() {
        let catalog = rusqlite::Connection::open_in_memory().unwrap();
        for schema in [
            include_str!("../../migrations/sqlite/V1__first.sql"),
            include_str!("../../migrations/sqlite/V2__sites_together.sql"),
        ] {
            catalog.execute_batch(schema).unwrap();
        }
        let mut plan = catalog.prepare(&format!("EXPLAIN QUERY PLAN {}", OF_FORMER.sqlite)).unwrap();
        let steps = plan.query_map([1, 1], |row| row.get::<_, String>(3)).unwrap();
        let steps: Vec<String> = steps.map(Result::unwrap).collect();
        assert_eq!(steps.len(), 3, "{steps:?}");
        assert!(steps[0].contains("version_entry (sp=? AND entry=?)"), "{steps:?}");
        assert!(steps[1].contains("PRIMARY KEY (sp=? AND version=?)"), "{steps:?}");
    }
}
