//! The site, its spaces and stores.

use percale_core::access::Subject;
use percale_core::ids::{SiteId, SpaceId, StoreId};
use percale_core::path::SpaceName;
use percale_core::{ByteCount, Position};
use serde_json::Value as Json;

use crate::engine::{Row, Sql, Tx, row, to_json};
use crate::error::Result;
use crate::model::{
    ExtractionMode, SealedSecret, Site, Space, SpaceScope, SpaceState, Store, StoreLayout, StoreState,
};

macro_rules! space_columns {
    () => {
        "s.sp, s.id, s.name, s.owner, s.scope, s.store, s.state, s.term, s.seq, s.created, s.home, s.behind, s.extraction, s.quota"
    };
}
pub(crate) use space_columns;

/// The word in `space.state` of a space that was removed. Its row stays, for its journal and so that its number is not
/// used again; its name is then `~` and its id, which no space can have.
const REMOVED: &str = "removed";

/// A row of `space`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpaceRow {
    pub sp: i64,
    pub space: Space,
    pub is_removed: bool,
}

impl SpaceRow {
    /// Checks that changes are decided here.
    pub fn require_home(&self) -> Result<()> {
        match self.space.home {
            None => Ok(()),
            Some(home) => {
                let message = format!("the space '{}' is at home at site {home}", self.space.name);
                Err(crate::Error::new(crate::ErrorKind::Foreign { home }, message))
            }
        }
    }
}

pub(crate) fn decode_space(row: &mut Row) -> Result<SpaceRow> {
    let sp = row.int()?;
    let id = SpaceId(row.uuid()?);
    let name = row.text()?;
    let owner: Subject = row.parse()?;
    let scope: SpaceScope = row.parse()?;
    let store = row.opt_uuid()?.map(StoreId);
    let state = row.text()?;
    let term = row.small()?;
    let seq = row.number()?;
    let created = row.time()?;
    let home = row.opt_uuid()?.map(SiteId);
    let behind = row.opt_text()?;
    // Spaces of releases before it have none.
    let extraction = match row.opt_text()? {
        None => ExtractionMode::Off,
        Some(word) => {
            word.parse().map_err(|error| crate::Error::corrupt(format!("space {id}")).with_source(error))?
        }
    };
    let quota = row.opt_number()?.map(ByteCount);
    let is_removed = state == REMOVED;
    let wrong = |error: percale_core::path::PathError| {
        crate::Error::corrupt(format!("space {id}")).with_source(error)
    };
    let name = SpaceName::parse(if is_removed { "removed" } else { &name }).map_err(wrong)?;
    let state = if state == SpaceState::Active.as_str() { SpaceState::Active } else { SpaceState::ReadOnly };
    let position = Position { space: id, term, seq };
    let space =
        Space { id, name, owner, scope, store, state, extraction, quota, created, home, behind, position };
    Ok(SpaceRow { sp, space, is_removed })
}

fn decode_spaces(rows: Vec<Row>) -> Result<Vec<SpaceRow>> {
    rows.into_iter().map(|mut row| decode_space(&mut row)).collect()
}

static SPACES: Sql = Sql::both(concat!(
    "SELECT ",
    space_columns!(),
    " FROM space s WHERE s.state <> 'removed' ORDER BY s.name"
));
static SPACES_BY_NAME: Sql = Sql::each(
    concat!("SELECT ", space_columns!(), " FROM space s WHERE s.name = $1"),
    concat!(
        "SELECT ",
        space_columns!(),
        " FROM UNNEST($1::text[]) AS k(name) JOIN space s ON s.name = k.name"
    ),
);
static SPACES_BY_SP: Sql = Sql::each(
    concat!("SELECT ", space_columns!(), " FROM space s WHERE s.sp = $1"),
    concat!("SELECT ", space_columns!(), " FROM UNNEST($1::bigint[]) AS k(sp) JOIN space s ON s.sp = k.sp"),
);
static SPACE_BY_ID: Sql = Sql::both(concat!("SELECT ", space_columns!(), " FROM space s WHERE s.id = $1"));
static LOCK_SPACE: Sql =
    Sql::each("SELECT sp FROM space WHERE sp = $1", "SELECT sp FROM space WHERE sp = $1 FOR UPDATE");
static INSERT_SPACE: Sql = Sql::each(
    "INSERT INTO space (sp, id, name, owner, scope, store, state, term, seq, next_id, created, home, behind, extraction, quota) \
     SELECT COALESCE(MAX(sp), 0) + 1, $1, $2, $3, $4, $5, $6, $7, $8, 2, $9, $10, $11, $12, $13 FROM space WHERE true \
     RETURNING sp",
    "INSERT INTO space (sp, id, name, owner, scope, store, state, term, seq, next_id, created, home, behind, extraction, quota) \
     SELECT COALESCE(MAX(sp), 0) + 1, $1::uuid, $2::text, $3::text, $4::text, $5::uuid, $6::text, $7::bigint, \
     $8::bigint, 2, $9::bigint, $10::uuid, $11::text, $12::text, $13::bigint FROM space RETURNING sp",
);
static UPDATE_SPACE: Sql = Sql::both(
    "UPDATE space SET name = $1, owner = $2, scope = $3, store = $4, state = $5, home = $6, behind = $7, \
     extraction = $8, quota = $9 WHERE sp = $10",
);
static REMOVE_SPACE: Sql = Sql::both("UPDATE space SET state = 'removed', name = $1 WHERE sp = $2");
pub(crate) static TAKE_IDS: Sql =
    Sql::both("UPDATE space SET next_id = next_id + $1 WHERE sp = $2 RETURNING next_id");
static SUM: Sql = Sql::each(
    "SELECT COALESCE(SUM(seq), 0) + COALESCE(SUM(term), 0) + COUNT(*) FROM space",
    "SELECT (COALESCE(SUM(seq), 0) + COALESCE(SUM(term), 0) + COUNT(*))::bigint FROM space",
);

/// Returns all spaces that were not removed, by name.
pub(crate) async fn spaces<T: Tx>(tx: &T) -> Result<Vec<SpaceRow>> {
    decode_spaces(tx.query(&SPACES, row![]).await?)
}

/// Looks up spaces by name.
pub(crate) async fn spaces_by_name<T: Tx>(tx: &T, names: Vec<String>) -> Result<Vec<SpaceRow>> {
    decode_spaces(tx.many(&SPACES_BY_NAME, names.into_iter().map(|name| row![name]).collect()).await?)
}

/// Looks up spaces by their number.
pub(crate) async fn spaces_by_sp<T: Tx>(tx: &T, sps: Vec<i64>) -> Result<Vec<SpaceRow>> {
    decode_spaces(tx.many(&SPACES_BY_SP, sps.into_iter().map(|sp| row![sp]).collect()).await?)
}

/// Looks up a space by id, also a removed one.
pub(crate) async fn space_by_id<T: Tx>(tx: &T, id: SpaceId) -> Result<Option<SpaceRow>> {
    Ok(decode_spaces(tx.query(&SPACE_BY_ID, row![id]).await?)?.pop())
}

/// Locks a space's row.
pub(crate) async fn lock_space<T: Tx>(tx: &T, sp: i64) -> Result<()> {
    tx.query(&LOCK_SPACE, row![sp]).await.map(drop)
}

/// Writes a new space and returns its number.
pub(crate) async fn insert_space<T: Tx>(tx: &T, space: &Space) -> Result<i64> {
    let params = row![
        space.id,
        space.name.as_str(),
        space.owner.to_string(),
        space.scope.as_str(),
        space.store,
        space.state.as_str(),
        space.position.term,
        space.position.seq,
        space.created,
        space.home,
        space.behind.clone(),
        space.extraction.as_str(),
        space.quota.map(|quota| quota.0),
    ];
    let mut rows = tx.query(&INSERT_SPACE, params).await?;
    match rows.first_mut() {
        Some(row) => row.int(),
        None => Err(crate::Error::internal("cannot insert a space: no row came back")),
    }
}

/// Writes what may change about a space.
pub(crate) async fn update_space<T: Tx>(tx: &T, sp: i64, space: &Space) -> Result<()> {
    let params = row![
        space.name.as_str(),
        space.owner.to_string(),
        space.scope.as_str(),
        space.store,
        space.state.as_str(),
        space.home,
        space.behind.clone(),
        space.extraction.as_str(),
        space.quota.map(|quota| quota.0),
        sp,
    ];
    tx.execute(&UPDATE_SPACE, params).await.map(drop)
}

/// Leaves only the memory of a space.
pub(crate) async fn remove_space<T: Tx>(tx: &T, sp: i64, id: SpaceId) -> Result<()> {
    tx.execute(&REMOVE_SPACE, row![format!("~{id}"), sp]).await.map(drop)
}

/// Returns a number that grows with every record of any journal.
pub(crate) async fn journal_sum<T: Tx>(tx: &T) -> Result<u64> {
    match tx.query(&SUM, row![]).await?.first_mut() {
        Some(row) => row.number(),
        None => Ok(0),
    }
}

static SITE: Sql = Sql::both("SELECT id, name, created FROM site");
static SET_SITE: Sql =
    Sql::both("UPDATE site SET id = $1, name = $2, created = $3 WHERE one = 1 AND id IS NULL");
static NEXT_FENCE: Sql = Sql::both("UPDATE site SET fence = fence + $1 WHERE one = 1 RETURNING fence");

/// Returns the site, once it has a name.
pub(crate) async fn site<T: Tx>(tx: &T) -> Result<Option<Site>> {
    let mut rows = tx.query(&SITE, row![]).await?;
    let Some(row) = rows.first_mut() else { return Ok(None) };
    match row.opt_uuid()? {
        Some(id) => Ok(Some(Site { id: SiteId(id), name: row.text()?, created: row.time()? })),
        None => Ok(None),
    }
}

/// Gives the site its name, if it has none.
pub(crate) async fn set_site<T: Tx>(tx: &T, site: &Site) -> Result<u64> {
    tx.execute(&SET_SITE, row![site.id, site.name.as_str(), site.created]).await
}

/// Takes `count` fences and returns the first.
pub(crate) async fn take_fences<T: Tx>(tx: &T, count: u64) -> Result<u64> {
    match tx.query(&NEXT_FENCE, row![count]).await?.first_mut() {
        Some(row) => Ok((row.number()? + 1).saturating_sub(count)),
        None => Err(crate::Error::corrupt("the catalog has no row for its site")),
    }
}

/// A row of `store`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StoreRow {
    pub st: i64,
    pub store: Store,
}

macro_rules! store_columns {
    () => {
        "s.st, s.id, s.name, s.connector, s.layout, s.config, s.secret, s.state, s.site"
    };
}

fn decode_stores(rows: Vec<Row>) -> Result<Vec<StoreRow>> {
    let decode = |mut row: Row| {
        let st = row.int()?;
        let id = StoreId(row.uuid()?);
        let name = row.text()?;
        let connector = row.text()?;
        let layout: StoreLayout = row.parse()?;
        let config: Json = row.json()?;
        let secret = row.opt_bytes()?.map(SealedSecret);
        let state: StoreState = row.parse()?;
        let site = row.opt_uuid()?.map(SiteId);
        Ok(StoreRow { st, store: Store { id, site, name, connector, layout, config, secret, state } })
    };
    rows.into_iter().map(decode).collect()
}

static STORES: Sql = Sql::both(concat!("SELECT ", store_columns!(), " FROM store s ORDER BY s.name"));
static STORES_BY_ID: Sql = Sql::each(
    concat!("SELECT ", store_columns!(), " FROM store s WHERE s.id = $1"),
    concat!("SELECT ", store_columns!(), " FROM UNNEST($1::uuid[]) AS k(id) JOIN store s ON s.id = k.id"),
);
static INSERT_STORE: Sql = Sql::each(
    "INSERT INTO store (st, id, name, connector, layout, config, secret, state, site) \
     SELECT COALESCE(MAX(st), 0) + 1, $1, $2, $3, $4, $5, $6, $7, $8 FROM store WHERE true RETURNING st",
    "INSERT INTO store (st, id, name, connector, layout, config, secret, state, site) \
     SELECT COALESCE(MAX(st), 0) + 1, $1::uuid, $2::text, $3::text, $4::text, $5::text, $6::bytea, $7::text, \
     $8::uuid FROM store RETURNING st",
);
static UPDATE_STORE: Sql = Sql::both("UPDATE store SET config = $1, secret = $2, state = $3 WHERE id = $4");
static PUT_FOREIGN_STORE: Sql = Sql::both(
    "UPDATE store SET name = $1, layout = $2, state = $3, site = $4 WHERE id = $5 AND site IS NOT NULL",
);
static DELETE_STORE: Sql = Sql::both("DELETE FROM store WHERE st = $1");
static STORE_IS_USED: Sql = Sql::both(
    "SELECT st FROM store WHERE st = $1 AND (EXISTS (SELECT 1 FROM replica WHERE st = $1) \
     OR EXISTS (SELECT 1 FROM intent WHERE st = $1) OR EXISTS (SELECT 1 FROM garbage WHERE st = $1) \
     OR EXISTS (SELECT 1 FROM arrival WHERE st = $1))",
);

/// Returns all stores, also those of other sites, by name.
pub(crate) async fn stores<T: Tx>(tx: &T) -> Result<Vec<StoreRow>> {
    decode_stores(tx.query(&STORES, row![]).await?)
}

/// Looks up stores by id.
pub(crate) async fn stores_by_id<T: Tx>(tx: &T, ids: Vec<StoreId>) -> Result<Vec<StoreRow>> {
    decode_stores(tx.many(&STORES_BY_ID, ids.into_iter().map(|id| row![id]).collect()).await?)
}

/// Writes a new store and returns its number.
pub(crate) async fn insert_store<T: Tx>(tx: &T, store: &Store) -> Result<i64> {
    let params = row![
        store.id,
        store.name.as_str(),
        store.connector.as_str(),
        store.layout.as_str(),
        to_json(&store.config)?,
        store.secret.as_ref().map(|secret| secret.0.clone()),
        store.state.as_str(),
        store.site,
    ];
    match tx.query(&INSERT_STORE, params).await?.first_mut() {
        Some(row) => row.int(),
        None => Err(crate::Error::internal("cannot insert a store: no row came back")),
    }
}

/// Writes what may change about a store.
pub(crate) async fn update_store<T: Tx>(tx: &T, store: &Store) -> Result<()> {
    let secret = store.secret.as_ref().map(|secret| secret.0.clone());
    let params = row![to_json(&store.config)?, secret, store.state.as_str(), store.id];
    tx.execute(&UPDATE_STORE, params).await.map(drop)
}

/// Writes what another site says of its store.
pub(crate) async fn put_foreign_store<T: Tx>(tx: &T, store: &Store) -> Result<()> {
    let params = row![store.name.as_str(), store.layout.as_str(), store.state.as_str(), store.site, store.id];
    tx.execute(&PUT_FOREIGN_STORE, params).await.map(drop)
}

/// Tells whether anything lies on a store.
pub(crate) async fn store_is_used<T: Tx>(tx: &T, st: i64) -> Result<bool> {
    Ok(!tx.query(&STORE_IS_USED, row![st]).await?.is_empty())
}

/// Deletes a store.
pub(crate) async fn delete_store<T: Tx>(tx: &T, st: i64) -> Result<()> {
    tx.execute(&DELETE_STORE, row![st]).await.map(drop)
}
