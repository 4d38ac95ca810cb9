//! What is kept about requests: tokens and the answers under idempotency keys.

use percale_core::Timestamp;
use percale_core::access::Scope;
use percale_core::ids::TokenId;

use crate::engine::{Row, Sql, Tx, row, to_json};
use crate::error::Result;
use crate::model::{Answer, AnswerKey, TokenRecord};

static INSERT_TOKEN: Sql = Sql::both(
    "INSERT INTO token (id, subject, scopes, label, issued, expires, revoked) VALUES ($1, $2, $3, $4, $5, $6, $7)",
);
static TOKENS: Sql = Sql::each(
    "SELECT id, subject, scopes, label, issued, expires, revoked FROM token \
     WHERE ($1 IS NULL OR subject = $1) AND expires > $2 ORDER BY id",
    "SELECT id, subject, scopes, label, issued, expires, revoked FROM token \
     WHERE ($1::text IS NULL OR subject = $1) AND expires > $2 ORDER BY id",
);
static TOKEN: Sql =
    Sql::both("SELECT id, subject, scopes, label, issued, expires, revoked FROM token WHERE id = $1");
static REVOKE: Sql = Sql::both("UPDATE token SET revoked = $1 WHERE id = $2 AND revoked IS NULL");
static REVOKED: Sql = Sql::both("SELECT id FROM token WHERE revoked >= $1 AND expires > $2 ORDER BY id");
static PRUNE_TOKENS: Sql = Sql::both("DELETE FROM token WHERE expires <= $1");

fn decode_token(mut row: Row) -> Result<TokenRecord> {
    let id = TokenId(row.uuid()?);
    let subject = row.parse()?;
    let scopes: Vec<Scope> = row.json()?;
    Ok(TokenRecord {
        id,
        subject,
        scopes,
        label: row.opt_text()?,
        issued: row.time()?,
        expires: row.time()?,
        revoked: row.opt_time()?,
    })
}

/// Writes a token.
pub(crate) async fn insert_token<T: Tx>(tx: &T, token: &TokenRecord) -> Result<()> {
    let params = row![
        token.id,
        token.subject.to_string(),
        to_json(&token.scopes)?,
        token.label.clone(),
        token.issued,
        token.expires,
        token.revoked
    ];
    tx.execute(&INSERT_TOKEN, params).await.map(drop)
}

/// Returns tokens that end after a time, of one subject or all.
pub(crate) async fn tokens<T: Tx>(
    tx: &T,
    subject: Option<String>,
    now: Timestamp,
) -> Result<Vec<TokenRecord>> {
    tx.query(&TOKENS, row![subject, now]).await?.into_iter().map(decode_token).collect()
}

/// Returns a token.
pub(crate) async fn token<T: Tx>(tx: &T, id: TokenId) -> Result<Option<TokenRecord>> {
    tx.query(&TOKEN, row![id]).await?.pop().map(decode_token).transpose()
}

/// Withdraws a token, if it is not withdrawn.
pub(crate) async fn revoke_token<T: Tx>(tx: &T, id: TokenId, at: Timestamp) -> Result<u64> {
    tx.execute(&REVOKE, row![at, id]).await
}

/// Returns tokens withdrawn at or after a time that would end after `now`.
pub(crate) async fn revoked_since<T: Tx>(tx: &T, since: Timestamp, now: Timestamp) -> Result<Vec<TokenId>> {
    let rows = tx.query(&REVOKED, row![since, now]).await?;
    rows.into_iter().map(|mut row| row.uuid().map(TokenId)).collect()
}

/// Deletes tokens that have ended.
pub(crate) async fn prune_tokens<T: Tx>(tx: &T, before: Timestamp) -> Result<u64> {
    tx.execute(&PRUNE_TOKENS, row![before]).await
}

/// A row of `idempotency`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeptAnswer {
    pub hash: Vec<u8>,
    pub answer: Option<Answer>,
    pub since: Timestamp,
    pub expires: Timestamp,
}

static ANSWER: Sql = Sql::each(
    "SELECT hash, status, answer, since, expires FROM idempotency WHERE caller = $1 AND key = $2",
    "SELECT hash, status, answer, since, expires FROM idempotency WHERE caller = $1 AND key = $2 FOR UPDATE",
);
static BEGIN: Sql =
    Sql::both("INSERT INTO idempotency (caller, key, hash, since, expires) VALUES ($1, $2, $3, $4, $5)");
static BEGIN_AGAIN: Sql = Sql::both(
    "UPDATE idempotency SET hash = $1, status = NULL, answer = NULL, since = $2, expires = $3 \
     WHERE caller = $4 AND key = $5",
);
static SET_ANSWER: Sql =
    Sql::both("UPDATE idempotency SET status = $1, answer = $2, expires = $3 WHERE caller = $4 AND key = $5");
static FORGET: Sql = Sql::both("DELETE FROM idempotency WHERE caller = $1 AND key = $2 AND answer IS NULL");
static PRUNE_ANSWERS: Sql = Sql::both("DELETE FROM idempotency WHERE expires <= $1");

/// Returns what is kept under a key.
pub(crate) async fn answer<T: Tx>(tx: &T, key: &AnswerKey) -> Result<Option<KeptAnswer>> {
    let mut rows = tx.query(&ANSWER, row![key.caller.as_str(), key.key.as_str()]).await?;
    let Some(row) = rows.first_mut() else { return Ok(None) };
    let hash = row.opt_bytes()?.unwrap_or_default();
    let status = row.opt_number()?.and_then(|status| u16::try_from(status).ok());
    let body = row.opt_text()?;
    let answer = match (status, body) {
        (Some(status), Some(body)) => Some(Answer { status, body }),
        _ => None,
    };
    Ok(Some(KeptAnswer { hash, answer, since: row.time()?, expires: row.time()? }))
}

/// Notes that a request has begun; `again` if its key is there.
pub(crate) async fn begin<T: Tx>(tx: &T, key: &AnswerKey, kept: &KeptAnswer, again: bool) -> Result<()> {
    let (caller, name) = (key.caller.as_str(), key.key.as_str());
    if again {
        tx.execute(&BEGIN_AGAIN, row![kept.hash.clone(), kept.since, kept.expires, caller, name]).await?;
    } else {
        tx.execute(&BEGIN, row![caller, name, kept.hash.clone(), kept.since, kept.expires]).await?;
    }
    Ok(())
}

/// Keeps an answer.
pub(crate) async fn set_answer<T: Tx>(
    tx: &T,
    key: &AnswerKey,
    answer: &Answer,
    expires: Timestamp,
) -> Result<u64> {
    let params =
        row![i64::from(answer.status), answer.body.as_str(), expires, key.caller.as_str(), key.key.as_str()];
    tx.execute(&SET_ANSWER, params).await
}

/// Deletes what is kept under a key.
pub(crate) async fn forget<T: Tx>(tx: &T, key: &AnswerKey) -> Result<()> {
    tx.execute(&FORGET, row![key.caller.as_str(), key.key.as_str()]).await.map(drop)
}

/// Deletes answers that have expired.
pub(crate) async fn prune_answers<T: Tx>(tx: &T, before: Timestamp) -> Result<u64> {
    tx.execute(&PRUNE_ANSWERS, row![before]).await
}
