//! Collections, objects and links.

use percale_core::digest::Digest;
use percale_core::ids::{EntryId, SpaceId, VersionId};
use percale_core::{ByteCount, FileMode, LinkTarget, Timestamp};

use super::{Lock, with_locks};
use crate::engine::{Row, Sql, Tx, Value, row, to_json};
use crate::error::{Error, Result};
use crate::model::{Content, Entry, EntryKind};
use crate::rows::site::SpaceRow;

/// A row of `entry`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EntryRow {
    pub sp: i64,
    pub id: u64,
    pub parent: u64,
    pub name: String,
    pub kind: EntryKind,
    pub created: Timestamp,
    pub modified: Timestamp,
    pub content: Option<Content>,
    pub target: Option<LinkTarget>,
}

impl EntryRow {
    /// Makes a collection.
    pub fn collection(sp: i64, id: u64, parent: u64, name: &str, now: Timestamp) -> Self {
        Self {
            sp,
            id,
            parent,
            name: name.to_owned(),
            kind: EntryKind::Collection,
            created: now,
            modified: now,
            content: None,
            target: None,
        }
    }

    /// Makes a link.
    pub fn link(sp: i64, id: u64, parent: u64, name: &str, target: LinkTarget, now: Timestamp) -> Self {
        let kind = EntryKind::Link;
        Self { kind, target: Some(target), ..Self::collection(sp, id, parent, name, now) }
    }

    pub fn is_collection(&self) -> bool {
        self.kind == EntryKind::Collection
    }

    pub fn version(&self) -> Option<VersionId> {
        self.content.as_ref().map(|content| content.version)
    }

    /// Makes what callers get.
    pub fn to_entry(&self, space: SpaceId) -> Entry {
        self.clone().into_entry(space)
    }

    /// Becomes what callers get.
    pub fn into_entry(self, space: SpaceId) -> Entry {
        Entry {
            space,
            id: EntryId(self.id),
            parent: EntryId(self.parent),
            name: self.name,
            kind: self.kind,
            created: self.created,
            modified: self.modified,
            content: self.content,
            target: self.target,
        }
    }
}

macro_rules! columns {
    () => {
        "e.sp, e.id, e.parent, e.name, e.kind, e.created, e.modified, e.version, e.size, e.root, e.mtime, e.mode, e.digests, \
         e.target"
    };
}

/// What a search selects, before its conditions on `entry e`.
pub(crate) const FOUND: &str = concat!("SELECT ", columns!());

static BY_NAME: [Sql; 3] = with_locks!(
    concat!("SELECT ", columns!(), " FROM entry e WHERE e.sp = $1 AND e.parent = $2 AND e.name = $3"),
    concat!(
        "SELECT ",
        columns!(),
        " FROM UNNEST($1::bigint[], $2::bigint[], $3::text[]) AS k(sp, parent, name) \
         JOIN entry e ON e.sp = k.sp AND e.parent = k.parent AND e.name = k.name ORDER BY e.sp, e.id"
    ),
    "e"
);

static BY_ID: [Sql; 3] = with_locks!(
    concat!("SELECT ", columns!(), " FROM entry e WHERE e.sp = $1 AND e.id = $2"),
    concat!(
        "SELECT ",
        columns!(),
        " FROM UNNEST($1::bigint[], $2::bigint[]) AS k(sp, id) \
         JOIN entry e ON e.sp = k.sp AND e.id = k.id ORDER BY e.sp, e.id"
    ),
    "e"
);

static ANCESTORS: Sql = Sql::each(
    concat!(
        "WITH RECURSIVE up(sp, id) AS (SELECT $1, $2 \
         UNION SELECT e.sp, e.parent FROM up JOIN entry e ON e.sp = up.sp AND e.id = up.id) SELECT ",
        columns!(),
        " FROM up JOIN entry e ON e.sp = up.sp AND e.id = up.id"
    ),
    concat!(
        "WITH RECURSIVE up(sp, id) AS (\
         SELECT k.sp, k.id FROM UNNEST($1::bigint[], $2::bigint[]) AS k(sp, id) \
         UNION SELECT e.sp, e.parent FROM up JOIN entry e ON e.sp = up.sp AND e.id = up.id) SELECT ",
        columns!(),
        " FROM up JOIN entry e ON e.sp = up.sp AND e.id = up.id"
    ),
);

static CHILDREN: [Sql; 3] = with_locks!(
    concat!(
        "SELECT ",
        columns!(),
        " FROM entry e WHERE e.sp = $1 AND e.parent = $2 AND e.name > $3 ORDER BY e.name LIMIT $4"
    ),
    concat!(
        "SELECT ",
        columns!(),
        " FROM entry e WHERE e.sp = $1 AND e.parent = $2 AND e.name > $3 ORDER BY e.name LIMIT $4"
    ),
    "e"
);

static SCAN: Sql = Sql::both(concat!(
    "SELECT ",
    columns!(),
    " FROM entry e WHERE e.sp = $1 AND e.id > $2 ORDER BY e.sp, e.id LIMIT $3"
));

static OF_KIND: Sql = Sql::both(concat!(
    "SELECT ",
    columns!(),
    " FROM entry e WHERE e.sp = $1 AND e.kind = $2 AND e.id > $3 ORDER BY e.sp, e.id LIMIT $4"
));

static NEXT_ID: Sql = Sql::both("SELECT id FROM entry WHERE sp = $1 AND id > $2 ORDER BY id LIMIT 1");
/// One look into the index for each window.
static WINDOWS: Sql = Sql::both(
    "WITH RECURSIVE w(id) AS (SELECT * FROM (SELECT id FROM entry WHERE sp = $1 AND id > 1 ORDER BY id LIMIT 1) AS f \
     UNION ALL SELECT (SELECT e.id FROM entry e WHERE e.sp = $1 AND e.id >= w.id + $2 ORDER BY e.id LIMIT 1) \
     FROM w WHERE w.id IS NOT NULL) SELECT id FROM w WHERE id IS NOT NULL",
);

/// Looked for in the index alone, then fetched: SQLite would fetch each row before it compares the name. Ids are compared first, so that a
/// search from its beginning compares no name with an empty one, which takes longer than all the rest.
macro_rules! by_own_name {
    ($condition:literal) => {
        concat!(
            "SELECT ",
            columns!(),
            " FROM (SELECT sp, id FROM entry WHERE sp = $1 AND name >= $2 AND name <= $3 AND (id > $4 OR name > $5) AND ",
            $condition,
            " ORDER BY name, id LIMIT $8) k JOIN entry e ON e.sp = k.sp AND e.id = k.id ORDER BY e.name, e.id"
        )
    };
}

static BY_OWN_NAME: Sql = Sql::each(
    by_own_name!("name GLOB $6 AND $7 IS NOT NULL"),
    by_own_name!("$6::text IS NOT NULL AND name LIKE $7"),
);

static HAS_CHILDREN: Sql = Sql::both("SELECT id FROM entry WHERE sp = $1 AND parent = $2 LIMIT 1");

static HAS_NAMES: Sql =
    Sql::both("SELECT id FROM entry WHERE sp = $1 AND parent = $2 AND name >= $3 AND name <= $4 LIMIT 1");

/// The ids of what has a name, or that name and one or two endings. '/' comes behind '.' and is in no name. Endings are counted in the
/// index alone.
macro_rules! ids_by_stem {
    ($sp:literal, $parent:literal, $stem:literal, $most:literal) => {
        concat!(
            "SELECT id FROM entry WHERE sp = ",
            $sp,
            " AND parent = ",
            $parent,
            " AND name = ",
            $stem,
            " UNION ALL SELECT id FROM (SELECT id, substr(name, length(",
            $stem,
            ") + 2) AS endings FROM entry WHERE sp = ",
            $sp,
            " AND parent = ",
            $parent,
            " AND name >= ",
            $stem,
            " || '.' AND name <= ",
            $stem,
            " || '/' ORDER BY name LIMIT ",
            $most,
            ") n WHERE length(endings) - length(replace(endings, '.', '')) < 2"
        )
    };
}

static BY_STEM: Sql = Sql::each(
    concat!(
        "SELECT ",
        columns!(),
        " FROM entry e WHERE e.sp = $1 AND e.id IN (",
        ids_by_stem!("$1", "$2", "$3", "$4"),
        ")"
    ),
    concat!(
        "SELECT ",
        columns!(),
        " FROM UNNEST($1::bigint[], $2::bigint[], $3::text[], $4::bigint[]) AS k(sp, parent, stem, most) CROSS JOIN LATERAL (",
        ids_by_stem!("k.sp", "k.parent", "k.stem", "k.most"),
        ") w JOIN entry e ON e.sp = k.sp AND e.id = w.id"
    ),
);

static SUBTREE: Sql = Sql::both(
    "WITH RECURSIVE down(sp, id) AS (SELECT sp, id FROM entry WHERE sp = $1 AND id = $2 \
     UNION ALL SELECT e.sp, e.id FROM down JOIN entry e ON e.sp = down.sp AND e.parent = down.id) \
     SELECT id FROM down LIMIT $3",
);

static INSERT: Sql = Sql::each(
    "INSERT INTO entry (sp, id, parent, name, kind, created, modified, version, size, root, mtime, mode, digests, target) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
    "INSERT INTO entry (sp, id, parent, name, kind, created, modified, version, size, root, mtime, mode, digests, target) \
     SELECT * FROM UNNEST($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::bigint[], \
     $7::bigint[], $8::bigint[], $9::bigint[], $10::bytea[], $11::bigint[], $12::bigint[], $13::text[], \
     $14::text[])",
);

static UPDATE: Sql = Sql::each(
    "UPDATE entry SET parent = $1, name = $2, modified = $3, version = $4, size = $5, root = $6, mtime = $7, \
     mode = $8, digests = $9 WHERE sp = $10 AND id = $11",
    "UPDATE entry e SET parent = k.parent, name = k.name, modified = k.modified, version = k.version, \
     size = k.size, root = k.root, mtime = k.mtime, mode = k.mode, digests = k.digests FROM UNNEST($1::bigint[], $2::text[], \
     $3::bigint[], $4::bigint[], $5::bigint[], $6::bytea[], $7::bigint[], $8::bigint[], $9::text[], \
     $10::bigint[], $11::bigint[]) AS k(parent, name, modified, version, size, root, mtime, mode, digests, sp, id) \
     WHERE e.sp = k.sp AND e.id = k.id",
);

static DELETE: Sql = Sql::each(
    "DELETE FROM entry WHERE sp = $1 AND id = $2",
    "DELETE FROM entry e USING UNNEST($1::bigint[], $2::bigint[]) AS k(sp, id) \
     WHERE e.sp = k.sp AND e.id = k.id",
);

static DELETE_ALL: Sql = Sql::both("DELETE FROM entry WHERE sp = $1");

/// The path from a space's root as far as it exists, with the space and the grants at each step, in one statement.
static RESOLVE: Sql = Sql::each(
    concat!(
        "WITH RECURSIVE walk(depth, sp, id) AS (SELECT 0, s.sp, 1 FROM space s WHERE s.name = $1 \
         UNION ALL SELECT w.depth + 1, w.sp, e.id FROM walk w JOIN entry e ON e.sp = w.sp AND e.parent = w.id \
         AND e.name = json_extract($2, '$[' || w.depth || ']')) SELECT ",
        columns!(),
        ", g.subject, g.permission, ",
        super::site::space_columns!(),
        " FROM walk w JOIN space s ON s.sp = w.sp JOIN entry e ON e.sp = w.sp AND e.id = w.id \
         LEFT JOIN grants g ON g.sp = w.sp AND g.entry = w.id ORDER BY w.depth"
    ),
    concat!(
        "WITH RECURSIVE walk(depth, sp, id) AS (SELECT 0, s.sp, 1::bigint FROM space s WHERE s.name = $1 \
         UNION ALL SELECT w.depth + 1, w.sp, e.id FROM walk w JOIN entry e ON e.sp = w.sp AND e.parent = w.id \
         AND e.name = ($2::text[])[w.depth + 1]) SELECT ",
        columns!(),
        ", g.subject, g.permission, ",
        super::site::space_columns!(),
        " FROM walk w JOIN space s ON s.sp = w.sp JOIN entry e ON e.sp = w.sp AND e.id = w.id \
         LEFT JOIN grants g ON g.sp = w.sp AND g.entry = w.id ORDER BY w.depth"
    ),
);

/// One step of a resolved path, once for each grant on it.
#[derive(Debug)]
pub(crate) struct Step {
    pub entry: EntryRow,
    pub grant: Option<(percale_core::access::Subject, percale_core::access::Permission)>,
    pub space: SpaceRow,
}

pub(crate) fn decode(row: &mut Row) -> Result<EntryRow> {
    let sp = row.int()?;
    let id = row.number()?;
    let parent = row.number()?;
    let name = row.text()?;
    let kind = match row.int()? {
        1 => EntryKind::Collection,
        2 => EntryKind::Object,
        3 => EntryKind::Link,
        other => return Err(Error::corrupt(format!("entry {id} has the unknown kind {other}"))),
    };
    let created = row.time()?;
    let modified = row.time()?;
    let version = row.opt_number()?;
    let size = row.opt_number()?;
    let root = row.opt_root()?;
    let mtime = row.opt_time()?;
    let mode = mode_of(id, row.opt_number()?)?;
    let digests: Option<Vec<Digest>> = row.opt_json()?;
    let content = match (version, size) {
        (Some(version), Some(size)) => Some(Content {
            version: VersionId(version),
            size: ByteCount(size),
            root,
            mtime,
            mode,
            digests: digests.unwrap_or_default(),
        }),
        _ => None,
    };
    let target = target_of(id, kind, row.opt_text()?)?;
    Ok(EntryRow { sp, id, parent, name, kind, created, modified, content, target })
}

fn target_of(id: u64, kind: EntryKind, text: Option<String>) -> Result<Option<LinkTarget>> {
    let wrong = |what: &str| Error::corrupt(format!("entry {id}, of the kind {kind}, {what}"));
    match (kind, text) {
        (EntryKind::Link, Some(text)) => match text.parse() {
            Ok(target) => Ok(Some(target)),
            Err(error) => Err(wrong("has a target that is none").with_source(error)),
        },
        (EntryKind::Link, None) => Err(wrong("has no target")),
        (_, Some(_)) => Err(wrong("has a target")),
        (_, None) => Ok(None),
    }
}

fn mode_of(id: u64, bits: Option<u64>) -> Result<Option<FileMode>> {
    match bits {
        None => Ok(None),
        Some(bits) if bits <= u64::from(FileMode::ALL) => Ok(Some(FileMode::of(bits as u32))),
        Some(bits) => Err(Error::corrupt(format!("entry {id} has the permission bits {bits:o}"))),
    }
}

fn decode_all(rows: Vec<Row>) -> Result<Vec<EntryRow>> {
    rows.into_iter().map(|mut row| decode(&mut row)).collect()
}

/// What a batch writes with, got ready together.
pub(crate) static WRITES: [&Sql; 3] = [&DELETE, &UPDATE, &INSERT];

/// What commits look at, got ready together.
pub(crate) static LOOKS: [&Sql; 3] = [&ANCESTORS, &BY_ID[1], &BY_NAME[2]];

/// Looks up entries by collection and name; those that are not there are missing in the answer.
pub(crate) async fn by_names<T: Tx>(
    tx: &T,
    keys: Vec<(i64, u64, String)>,
    lock: Lock,
) -> Result<Vec<EntryRow>> {
    let params = keys.into_iter().map(|(sp, parent, name)| row![sp, parent, name]).collect();
    decode_all(tx.many(lock.pick(&BY_NAME), params).await?)
}

/// Looks up entries by id.
pub(crate) async fn by_ids<T: Tx>(tx: &T, keys: Vec<(i64, u64)>, lock: Lock) -> Result<Vec<EntryRow>> {
    let params = keys.into_iter().map(|(sp, id)| row![sp, id]).collect();
    decode_all(tx.many(lock.pick(&BY_ID), params).await?)
}

/// Returns the entries and all collections above them, in no order, each at least once.
pub(crate) async fn with_ancestors<T: Tx>(tx: &T, keys: Vec<(i64, u64)>) -> Result<Vec<EntryRow>> {
    let params = keys.into_iter().map(|(sp, id)| row![sp, id]).collect();
    decode_all(tx.many(&ANCESTORS, params).await?)
}

/// Returns entries of a collection whose names are greater than `after`, by name.
pub(crate) async fn children<T: Tx>(
    tx: &T,
    (sp, parent): (i64, u64),
    after: &str,
    limit: usize,
    lock: Lock,
) -> Result<Vec<EntryRow>> {
    decode_all(tx.query(lock.pick(&CHILDREN), row![sp, parent, after, limit]).await?)
}

/// Which names are looked for.
pub(crate) struct ByName<'a> {
    /// What all of them begin with.
    pub prefix: String,
    /// A pattern of SQLite.
    pub glob: &'a str,
    /// The same for PostgreSQL.
    pub like: &'a str,
    /// The name and id behind which they are.
    pub after: Option<(&'a str, u64)>,
}

/// Returns entries of a space by their own names, in the order of names and ids.
pub(crate) async fn by_own_name<T: Tx>(
    tx: &T,
    sp: i64,
    wanted: &ByName<'_>,
    limit: usize,
) -> Result<Vec<EntryRow>> {
    let ByName { prefix, glob, like, after } = wanted;
    let (name, id) = after.unwrap_or_default();
    let first = if name > prefix.as_str() { name } else { prefix };
    // Behind every name of at most 255 bytes that begins so.
    let last = format!("{prefix}{}", "\u{10ffff}".repeat(64));
    decode_all(tx.query(&BY_OWN_NAME, row![sp, first, last, id, name, *glob, *like, limit]).await?)
}

/// Decodes entries of a space whose ids are greater than `after`, and returns the last id unless all were seen.
pub(crate) async fn scan<T: Tx>(tx: &T, sp: i64, after: u64, limit: usize) -> Result<Option<u64>> {
    let found = decode_all(tx.query(&SCAN, row![sp, after, limit]).await?)?;
    Ok(found.last().filter(|_| found.len() == limit).map(|last| last.id))
}

/// Returns the first id of a space behind another one.
pub(crate) async fn next_id<T: Tx>(tx: &T, sp: i64, after: u64) -> Result<Option<u64>> {
    tx.query(&NEXT_ID, row![sp, after]).await?.first_mut().map(|row| row.number()).transpose()
}

/// Returns the first ids of windows, each of them behind the window before, so that all entries of a space but its root are in one and none
/// is without any.
pub(crate) async fn windows<T: Tx>(tx: &T, sp: i64, ids: u64) -> Result<Vec<u64>> {
    tx.query(&WINDOWS, row![sp, ids]).await?.into_iter().map(|mut row| row.number()).collect()
}

/// Returns collections, objects or links of a space whose ids are greater than `after`, by id.
pub(crate) async fn of_kind<T: Tx>(
    tx: &T,
    sp: i64,
    kind: EntryKind,
    after: u64,
    limit: usize,
) -> Result<Vec<EntryRow>> {
    decode_all(tx.query(&OF_KIND, row![sp, number_of(kind), after, limit]).await?)
}

/// Tells whether a collection has entries.
pub(crate) async fn has_children<T: Tx>(tx: &T, sp: i64, parent: u64) -> Result<bool> {
    Ok(!tx.query(&HAS_CHILDREN, row![sp, parent]).await?.is_empty())
}

/// Tells whether a collection has an entry with a name from `first` to `last`.
pub(crate) async fn has_names<T: Tx>(
    tx: &T,
    (sp, parent): (i64, u64),
    first: &str,
    last: &str,
) -> Result<bool> {
    Ok(!tx.query(&HAS_NAMES, row![sp, parent, first, last]).await?.is_empty())
}

/// Returns entries by collection and name, and those whose names have one or two endings besides. For each at most `limit` names with
/// endings are looked at, the first ones.
pub(crate) async fn by_stems<T: Tx>(
    tx: &T,
    keys: Vec<(i64, u64, String)>,
    limit: usize,
) -> Result<Vec<EntryRow>> {
    let params = keys.into_iter().map(|(sp, parent, stem)| row![sp, parent, stem, limit]).collect();
    decode_all(tx.many(&BY_STEM, params).await?)
}

/// Returns the ids of an entry and everything below it, at most `limit`.
pub(crate) async fn subtree<T: Tx>(tx: &T, sp: i64, id: u64, limit: usize) -> Result<Vec<u64>> {
    let rows = tx.query(&SUBTREE, row![sp, id, limit]).await?;
    rows.into_iter().map(|mut row| row.number()).collect()
}

/// Resolves a path in one statement.
pub(crate) async fn resolve<T: Tx>(tx: &T, space: &str, names: Vec<String>) -> Result<Vec<Step>> {
    let rows = tx.query(&RESOLVE, vec![Value::from(space), Value::Texts(names)]).await?;
    let mut steps = Vec::with_capacity(rows.len());
    for mut row in rows {
        let entry = decode(&mut row)?;
        let subject = row.opt_text()?;
        let permission = row.opt_text()?;
        let grant = match (subject, permission) {
            (Some(subject), Some(permission)) => Some(super::grant::decode(&subject, &permission)?),
            _ => None,
        };
        let space = super::site::decode_space(&mut row)?;
        steps.push(Step { entry, grant, space });
    }
    Ok(steps)
}

pub(crate) fn number_of(kind: EntryKind) -> i64 {
    match kind {
        EntryKind::Collection => 1,
        EntryKind::Object => 2,
        EntryKind::Link => 3,
    }
}

fn digests(content: Option<&Content>) -> Result<Option<String>> {
    match content {
        Some(content) if !content.digests.is_empty() => to_json(&content.digests).map(Some),
        _ => Ok(None),
    }
}

/// Runs a statement that begins with [`FOUND`].
pub(crate) async fn found<T: Tx>(tx: &T, sql: &Sql, params: Vec<Value>) -> Result<Vec<EntryRow>> {
    decode_all(tx.query(sql, params).await?)
}

/// Writes new entries.
pub(crate) async fn insert<T: Tx>(tx: &T, rows: &[&EntryRow]) -> Result<()> {
    let mut params = Vec::with_capacity(rows.len());
    for entry in rows {
        let content = entry.content.as_ref();
        params.push(row![
            entry.sp,
            entry.id,
            entry.parent,
            entry.name.as_str(),
            number_of(entry.kind),
            entry.created,
            entry.modified,
            content.map(|content| content.version),
            content.map(|content| content.size),
            content.and_then(|content| content.root),
            content.and_then(|content| content.mtime),
            content.and_then(|content| content.mode).map(|mode| i64::from(mode.bits())),
            digests(content)?,
            entry.target.as_ref().map(LinkTarget::as_str),
        ]);
    }
    tx.execute_many(&INSERT, params).await.map(drop)
}

/// Writes changed entries, which must be there.
pub(crate) async fn update<T: Tx>(tx: &T, rows: &[&EntryRow]) -> Result<u64> {
    let mut params = Vec::with_capacity(rows.len());
    for entry in rows {
        let content = entry.content.as_ref();
        params.push(row![
            entry.parent,
            entry.name.as_str(),
            entry.modified,
            content.map(|content| content.version),
            content.map(|content| content.size),
            content.and_then(|content| content.root),
            content.and_then(|content| content.mtime),
            content.and_then(|content| content.mode).map(|mode| i64::from(mode.bits())),
            digests(content)?,
            entry.sp,
            entry.id,
        ]);
    }
    tx.execute_many(&UPDATE, params).await
}

/// Deletes entries.
pub(crate) async fn delete<T: Tx>(tx: &T, keys: Vec<(i64, u64)>) -> Result<u64> {
    let params = keys.into_iter().map(|(sp, id)| row![sp, id]).collect();
    tx.execute_many(&DELETE, params).await
}

/// Deletes all entries of a space.
pub(crate) async fn delete_all<T: Tx>(tx: &T, sp: i64) -> Result<u64> {
    tx.execute(&DELETE_ALL, row![sp]).await
}
