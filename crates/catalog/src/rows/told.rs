//! What other sites were answered about their arrivals.

use percale_core::Timestamp;
use percale_core::ids::SiteId;
use serde::{Deserialize, Serialize};

use crate::engine::{Sql, Tx, row, to_json};
use crate::error::{Error, Result};
use crate::model::{ArrivalId, Committed, CopyAnswer};

/// What became of an arrival at another site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Told {
    /// It is being decided, in the transaction that sees this.
    Deciding,
    /// It was a publication, and is visible.
    Committed(Committed),
    /// It is not a publication that is or ever will be visible.
    Abandoned,
    /// It was a further copy.
    Copied(CopyAnswer),
}

/// The answer in a row of `told`. `v` is the form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ToldBody {
    /// 1.
    pub v: u32,
    pub told: Told,
}

static OF: Sql = Sql::each(
    "SELECT id, answer FROM told WHERE site = $1 AND id = $2",
    "SELECT t.id, t.answer FROM UNNEST($1::uuid[], $2::uuid[]) AS k(site, id) \
     JOIN told t ON t.site = k.site AND t.id = k.id",
);
static INSERT: Sql = Sql::each(
    "INSERT INTO told (site, id, answer, since) VALUES ($1, $2, $3, $4)",
    "INSERT INTO told (site, id, answer, since) \
     SELECT * FROM UNNEST($1::uuid[], $2::uuid[], $3::text[], $4::bigint[])",
);
static SET: Sql = Sql::each(
    "UPDATE told SET answer = $1 WHERE site = $2 AND id = $3",
    "UPDATE told t SET answer = k.answer FROM UNNEST($1::text[], $2::uuid[], $3::uuid[]) AS k(answer, site, id) \
     WHERE t.site = k.site AND t.id = k.id",
);
static PRUNE: Sql = Sql::both("DELETE FROM told WHERE since < $1");

/// Returns what a site was answered about these of its arrivals.
pub(crate) async fn of<T: Tx>(tx: &T, site: SiteId, ids: Vec<ArrivalId>) -> Result<Vec<(ArrivalId, Told)>> {
    let rows = tx.many(&OF, ids.into_iter().map(|id| row![site, id.0]).collect()).await?;
    let mut found = Vec::with_capacity(rows.len());
    for mut row in rows {
        let id = ArrivalId(row.uuid()?);
        let ToldBody { v, told } = row.json()?;
        if v != 1 {
            let message =
                format!("the answer about arrival {id} has form {v}, which this release does not know");
            return Err(Error::unsupported(message));
        }
        found.push((id, told));
    }
    Ok(found)
}

static SCAN: Sql =
    Sql::both("SELECT site, id, answer FROM told WHERE (site, id) > ($1, $2) ORDER BY site, id LIMIT $3");

/// Decodes the answers behind one of a site, and returns the last of them.
pub(crate) async fn scan<T: Tx>(
    tx: &T,
    after: (SiteId, ArrivalId),
    limit: usize,
) -> Result<Option<(SiteId, ArrivalId)>> {
    let mut last = None;
    for mut row in tx.query(&SCAN, row![after.0, after.1.0, limit]).await? {
        last = Some((SiteId(row.uuid()?), ArrivalId(row.uuid()?)));
        row.json::<ToldBody>()?;
    }
    Ok(last)
}

/// Keeps new answers.
pub(crate) async fn insert<T: Tx>(tx: &T, site: SiteId, told: &[(ArrivalId, Told)]) -> Result<()> {
    let now = tx.now();
    let mut params = Vec::with_capacity(told.len());
    for (id, told) in told {
        params.push(row![site, id.0, to_json(&ToldBody { v: 1, told: told.clone() })?, now]);
    }
    tx.execute_many(&INSERT, params).await.map(drop)
}

/// An answer that could not be written before the journal had numbers.
pub(crate) type LateAnswer = (SiteId, ArrivalId, Told);

/// Writes answers in place of those that were being decided.
pub(crate) async fn set<T: Tx>(tx: &T, answers: Vec<LateAnswer>) -> Result<()> {
    let mut params = Vec::with_capacity(answers.len());
    for (site, id, told) in answers {
        params.push(row![to_json(&ToldBody { v: 1, told })?, site, id.0]);
    }
    tx.execute_many(&SET, params).await.map(drop)
}

/// Deletes answers that were given before a time.
pub(crate) async fn prune<T: Tx>(tx: &T, before: Timestamp) -> Result<u64> {
    tx.execute(&PRUNE, row![before]).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stored samples of form 1. Never changed; a new form gets samples of its own.
    #[test]
    fn answers_of_form_1_are_still_read_and_written() {
        for sample in include_str!("../../samples/told-v1.jsonl").lines() {
            let body: ToldBody = serde_json::from_str(sample).unwrap();
            assert_eq!(to_json(&body).unwrap(), sample);
        }
    }
}
