//! The roster and invitations.

use percale_core::Timestamp;
use percale_core::ids::SiteId;

use crate::engine::{Row, Sql, Tx, row, to_json};
use crate::error::{Error, Result};
use crate::model::Peer;

static PEERS: Sql = Sql::both(
    "SELECT id, name, key, old_key, old_key_until, key_change, confirmed, urls, dialable, issuers, state, changed, \
     changed_by FROM peer ORDER BY id",
);
/// Changes of the roster take turns.
static LOCK: Sql =
    Sql::each("SELECT one FROM site WHERE one = 1", "SELECT one FROM site WHERE one = 1 FOR UPDATE");
static UPSERT: Sql = Sql::both(
    "INSERT INTO peer (id, name, key, old_key, old_key_until, key_change, confirmed, urls, dialable, issuers, state, \
     changed, changed_by) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) ON CONFLICT (id) DO UPDATE SET \
     name = excluded.name, \
     key = excluded.key, old_key = excluded.old_key, old_key_until = excluded.old_key_until, \
     key_change = excluded.key_change, confirmed = excluded.confirmed, urls = excluded.urls, dialable = excluded.dialable, issuers = excluded.issuers, state = excluded.state, \
     changed = excluded.changed, changed_by = excluded.changed_by",
);
static RETIRED: Sql = Sql::both("SELECT key, until FROM retired_key WHERE until > $1 ORDER BY key");
static RETIRE: Sql = Sql::both(
    "INSERT INTO retired_key (key, until) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET until = excluded.until",
);
static FORGET_RETIRED: Sql = Sql::both("DELETE FROM retired_key WHERE until <= $1");
static ADD_INVITATION: Sql = Sql::both("INSERT INTO invitation (hash, made_by, expires) VALUES ($1, $2, $3)");
static INVITATION: Sql = Sql::each(
    "SELECT expires, used_by FROM invitation WHERE hash = $1",
    "SELECT expires, used_by FROM invitation WHERE hash = $1 FOR UPDATE",
);
static USE_INVITATION: Sql = Sql::both("UPDATE invitation SET used_by = $1 WHERE hash = $2");
static HASHES: Sql = Sql::both("SELECT hash FROM invitation WHERE expires > $1 ORDER BY hash");
static PRUNE: Sql = Sql::both("DELETE FROM invitation WHERE expires <= $1");

fn hash(bytes: Option<Vec<u8>>) -> Result<[u8; 32]> {
    let bytes = bytes.unwrap_or_default();
    bytes.try_into().map_err(|_| Error::corrupt("a key or hash of the roster does not have 32 bytes"))
}

fn decode(mut row: Row) -> Result<Peer> {
    let id = SiteId(row.uuid()?);
    let name = row.text()?;
    let key = hash(row.opt_bytes()?)?;
    let (old, until) = (row.opt_bytes()?, row.opt_time()?);
    let old_key = match (old, until) {
        (Some(old), Some(until)) => Some((hash(Some(old))?, until)),
        _ => None,
    };
    Ok(Peer {
        id,
        name,
        key,
        old_key,
        key_change: row.opt_text()?,
        is_confirmed: row.int()? != 0,
        urls: row.json()?,
        is_dialable: row.int()? != 0,
        issuers: row.json()?,
        state: row.parse()?,
        changed: row.time()?,
        changed_by: SiteId(row.uuid()?),
    })
}

/// Returns the roster.
pub(crate) async fn peers<T: Tx>(tx: &T) -> Result<Vec<Peer>> {
    tx.query(&PEERS, row![]).await?.into_iter().map(decode).collect()
}

/// Keeps others from changing the roster until the end of the transaction.
pub(crate) async fn lock<T: Tx>(tx: &T) -> Result<()> {
    tx.query(&LOCK, row![]).await.map(drop)
}

/// Writes a site, known or not.
pub(crate) async fn put<T: Tx>(tx: &T, peer: &Peer) -> Result<()> {
    let params = row![
        peer.id,
        peer.name.as_str(),
        peer.key.to_vec(),
        peer.old_key.map(|(key, _)| key.to_vec()),
        peer.old_key.map(|(_, until)| until),
        peer.key_change.as_deref(),
        i64::from(peer.is_confirmed),
        to_json(&peer.urls)?,
        i64::from(peer.is_dialable),
        to_json(&peer.issuers)?,
        peer.state.as_str(),
        peer.changed,
        peer.changed_by,
    ];
    tx.execute(&UPSERT, params).await.map(drop)
}

/// Returns the keys that this site had before and whose tokens are still good, and until when.
pub(crate) async fn retired_keys<T: Tx>(tx: &T, now: Timestamp) -> Result<Vec<([u8; 32], Timestamp)>> {
    let rows = tx.query(&RETIRED, row![now]).await?;
    rows.into_iter().map(|mut row| Ok((hash(row.opt_bytes()?)?, row.time()?))).collect()
}

/// Notes a key that this site had, and until when its tokens are good.
pub(crate) async fn retire_key<T: Tx>(tx: &T, key: &[u8; 32], until: Timestamp) -> Result<()> {
    tx.execute(&RETIRE, row![key.to_vec(), until]).await.map(drop)
}

/// Deletes the keys whose tokens are good no longer than that.
pub(crate) async fn forget_retired_keys<T: Tx>(tx: &T, until: Timestamp) -> Result<u64> {
    tx.execute(&FORGET_RETIRED, row![until]).await
}

/// Writes an invitation.
pub(crate) async fn add_invitation<T: Tx>(
    tx: &T,
    hash: &[u8; 32],
    made_by: &str,
    expires: Timestamp,
) -> Result<()> {
    tx.execute(&ADD_INVITATION, row![hash.to_vec(), made_by, expires]).await.map(drop)
}

/// Returns when an invitation ends and who used it, and locks it.
pub(crate) async fn invitation<T: Tx>(
    tx: &T,
    hash: &[u8; 32],
) -> Result<Option<(Timestamp, Option<SiteId>)>> {
    match tx.query(&INVITATION, row![hash.to_vec()]).await?.pop() {
        Some(mut row) => Ok(Some((row.time()?, row.opt_uuid()?.map(SiteId)))),
        None => Ok(None),
    }
}

/// Notes who used an invitation.
pub(crate) async fn use_invitation<T: Tx>(tx: &T, hash: &[u8; 32], by: SiteId) -> Result<()> {
    tx.execute(&USE_INVITATION, row![by, hash.to_vec()]).await.map(drop)
}

/// Returns the invitations that have not ended.
pub(crate) async fn invitation_hashes<T: Tx>(tx: &T, now: Timestamp) -> Result<Vec<[u8; 32]>> {
    let rows = tx.query(&HASHES, row![now]).await?;
    rows.into_iter().map(|mut row| hash(row.opt_bytes()?)).collect()
}

/// Deletes the invitations that have ended.
pub(crate) async fn prune_invitations<T: Tx>(tx: &T, now: Timestamp) -> Result<u64> {
    tx.execute(&PRUNE, row![now]).await
}
