//! Tasks, their items and events.

use std::collections::BTreeSet;

use percale_core::Timestamp;
use percale_core::access::Caller;
use percale_core::ids::{LeaseId, SiteId, TaskId};
use percale_core::state::TaskState;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::{Lock, with_locks};
use crate::engine::{Row, Sql, Tx, Value, row, to_json};
use crate::error::Result;
use crate::model::{MAX_TASK_COPIES, Task, TaskCopies, TaskCopy, TaskEvent, TaskItem};

/// The body of `task.spec`: what was submitted and by whom. `v` is the form.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SpecBody {
    /// 1.
    pub v: u32,
    /// On whose behalf.
    pub caller: Caller,
    /// What exactly.
    pub spec: Json,
}

macro_rules! columns {
    () => {
        "t.id, t.kind, t.state, t.spec, t.cursor, t.progress, t.fault, t.lease, t.attempt, t.vain, \
         t.not_before, t.deadline, t.created, t.changed"
    };
}

static BY_ID: [Sql; 3] = with_locks!(
    concat!("SELECT ", columns!(), " FROM task t WHERE t.id = $1"),
    concat!("SELECT ", columns!(), " FROM task t WHERE t.id = $1"),
    "t"
);
static BY_KEY: Sql =
    Sql::both(concat!("SELECT ", columns!(), " FROM task t WHERE t.owner = $1 AND t.idempotency_key = $2"));
static LIST: Sql = Sql::each(
    concat!(
        "SELECT ",
        columns!(),
        " FROM task t WHERE ($1 IS NULL OR t.owner = $1) AND ($2 IS NULL OR t.id < $2) \
         AND ($3 IS NULL OR t.kind = $3) AND ($4 IS NULL OR t.state IN (SELECT value FROM json_each($4))) \
         ORDER BY t.id DESC LIMIT $5"
    ),
    concat!(
        "SELECT ",
        columns!(),
        " FROM task t WHERE ($1::text IS NULL OR t.owner = $1) AND ($2::uuid IS NULL OR t.id < $2) \
         AND ($3::text IS NULL OR t.kind = $3) AND ($4::text[] IS NULL OR t.state = ANY($4)) \
         ORDER BY t.id DESC LIMIT $5"
    ),
);
/// Whose turn it is: of the owners of tasks that may run now and of whom not too many run under the lease, the one of whom the
/// fewest run, and of these the one whose last turn is the longest ago. `$3` is the lease, `$4` how many are not too many.
macro_rules! turn {
    ($kinds:literal) => {
        concat!(
            "WITH ready AS (SELECT DISTINCT q.owner FROM task q WHERE q.state = 'queued' \
             AND q.not_before <= $1 AND (q.deadline IS NULL OR q.deadline > $1) AND ",
            $kinds,
            "), turn AS (SELECT ready.owner, \
             (SELECT COUNT(*) FROM task r WHERE r.state = 'running' AND r.owner = ready.owner) AS running, \
             (SELECT COUNT(*) FROM task r WHERE r.state = 'running' AND r.owner = ready.owner AND r.lease = $3) AS here, \
             (SELECT MAX(c.claimed) FROM task c WHERE c.owner = ready.owner AND c.claimed IS NOT NULL) AS last FROM ready) \
             SELECT ",
            columns!(),
            " FROM task t JOIN turn u ON u.owner = t.owner WHERE t.state = 'queued' \
             AND t.not_before <= $1 AND (t.deadline IS NULL OR t.deadline > $1) AND u.here < $4 AND "
        )
    };
}

static NEXT: Sql = Sql::each(
    concat!(
        turn!("($2 IS NULL OR q.kind IN (SELECT value FROM json_each($2)))"),
        "($2 IS NULL OR t.kind IN (SELECT value FROM json_each($2))) \
         ORDER BY u.running, COALESCE(u.last, 0), t.not_before, t.id LIMIT 1"
    ),
    concat!(
        turn!("($2::text[] IS NULL OR q.kind = ANY($2))"),
        "($2::text[] IS NULL OR t.kind = ANY($2)) \
         ORDER BY u.running, COALESCE(u.last, 0), t.not_before, t.id LIMIT 1 FOR UPDATE OF t SKIP LOCKED"
    ),
);
static OVERDUE: Sql = Sql::each(
    concat!(
        "SELECT ",
        columns!(),
        " FROM task t WHERE t.state = 'queued' AND t.deadline <= $1 ORDER BY t.id LIMIT $2"
    ),
    concat!(
        "SELECT ",
        columns!(),
        " FROM task t WHERE t.state = 'queued' AND t.deadline <= $1 ORDER BY t.id LIMIT $2 FOR UPDATE SKIP LOCKED"
    ),
);
static IS_OVERDUE: Sql =
    Sql::both("SELECT t.deadline FROM task t WHERE t.state = 'queued' AND t.deadline <= $1 LIMIT 1");
static CLAIMED: Sql = Sql::both("UPDATE task SET claimed = $1 WHERE id = $2");
static UNDER_LEASE: Sql = Sql::each(
    concat!("SELECT ", columns!(), " FROM task t WHERE t.lease = $1 AND t.state = 'running' ORDER BY t.id"),
    concat!(
        "SELECT ",
        columns!(),
        " FROM task t WHERE t.lease = $1 AND t.state = 'running' ORDER BY t.id FOR UPDATE"
    ),
);
static INSERT: Sql = Sql::both(
    "INSERT INTO task (id, kind, state, owner, spec, progress, attempt, not_before, deadline, created, changed, \
     idempotency_key) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
);
static UPDATE: Sql = Sql::both(
    "UPDATE task SET state = $1, cursor = $2, progress = $3, fault = $4, lease = $5, attempt = $6, vain = $7, \
     not_before = $8, deadline = $9, changed = $10 WHERE id = $11",
);
static PRUNE: Sql = Sql::both(
    "DELETE FROM task WHERE changed < $1 AND state IN ('succeeded', 'partial', 'failed', 'cancelled')",
);
static PRUNE_ITEMS: Sql = Sql::both("DELETE FROM task_item WHERE task NOT IN (SELECT id FROM task)");
static PRUNE_COPIES: Sql = Sql::both("DELETE FROM task_copy WHERE task NOT IN (SELECT id FROM task)");
static PRUNE_EVENTS: Sql = Sql::both("DELETE FROM task_event WHERE task NOT IN (SELECT id FROM task)");

static ITEM_COUNT: Sql = Sql::each(
    "SELECT COALESCE(MAX(number), 0) FROM task_item WHERE task = $1",
    "SELECT COALESCE(MAX(number), 0)::bigint FROM task_item WHERE task = $1",
);
static INSERT_ITEMS: Sql = Sql::each(
    "INSERT INTO task_item (task, number, path, outcome, code, detail) VALUES ($1, $2, $3, $4, $5, $6)",
    "INSERT INTO task_item (task, number, path, outcome, code, detail) SELECT * FROM UNNEST($1::uuid[], \
     $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[])",
);
static ITEMS: Sql = Sql::both(
    "SELECT number, path, outcome, code, detail FROM task_item WHERE task = $1 AND number > $2 \
     ORDER BY number LIMIT $3",
);
static FORGET_ITEMS: Sql = Sql::both("DELETE FROM task_item WHERE task = $1");
static COPY_COUNT: Sql = Sql::each(
    "SELECT COALESCE(MAX(number), 0) FROM task_copy WHERE task = $1",
    "SELECT COALESCE(MAX(number), 0)::bigint FROM task_copy WHERE task = $1",
);
static INSERT_COPIES: Sql =
    Sql::both("INSERT INTO task_copy (task, number, bytes, sources, body) VALUES ($1, $2, $3, $4, $5)");
static COPIES: Sql =
    Sql::both("SELECT number, body FROM task_copy WHERE task = $1 AND number > $2 ORDER BY number LIMIT 1");
static COPY_SUMS: Sql = Sql::each(
    "SELECT sources, MAX(number), SUM(bytes) FROM task_copy WHERE task = $1 GROUP BY sources",
    "SELECT sources, MAX(number)::bigint, SUM(bytes)::bigint FROM task_copy WHERE task = $1 GROUP BY sources",
);
/// Not the last event, whose number the next one counts on from.
static FORGET_TURNS: Sql = Sql::both(
    "DELETE FROM task_event WHERE task = $1 AND kind IN ('claimed', 'requeued') \
     AND number < (SELECT MAX(number) FROM task_event WHERE task = $1)",
);
static INSERT_EVENT: Sql = Sql::each(
    "INSERT INTO task_event (task, number, at, kind, detail) \
     SELECT $1, COALESCE(MAX(number), 0) + 1, $2, $3, $4 FROM task_event WHERE task = $1",
    "INSERT INTO task_event (task, number, at, kind, detail) \
     SELECT $1::uuid, COALESCE(MAX(number), 0) + 1, $2::bigint, $3::text, $4::text FROM task_event \
     WHERE task = $1::uuid",
);
static EVENTS: Sql = Sql::both(
    "SELECT number, at, kind, detail FROM task_event WHERE task = $1 AND number > $2 ORDER BY number LIMIT 10000",
);

fn decode(row: &mut Row) -> Result<Task> {
    let id = TaskId(row.uuid()?);
    let kind = row.text()?;
    let state: TaskState = row.parse()?;
    let SpecBody { caller, spec, .. } = row.json()?;
    Ok(Task {
        id,
        kind,
        state,
        caller,
        spec,
        cursor: row.opt_json()?,
        progress: row.json()?,
        fault: row.opt_json()?,
        lease: row.opt_uuid()?.map(LeaseId),
        attempt: row.small()?,
        vain: u32::try_from(row.opt_number()?.unwrap_or_default()).unwrap_or(u32::MAX),
        not_before: row.time()?,
        deadline: row.opt_time()?,
        created: row.time()?,
        changed: row.time()?,
    })
}

fn decode_all(rows: Vec<Row>) -> Result<Vec<Task>> {
    rows.into_iter().map(|mut row| decode(&mut row)).collect()
}

/// Returns a task.
pub(crate) async fn by_id<T: Tx>(tx: &T, id: TaskId, lock: Lock) -> Result<Option<Task>> {
    Ok(decode_all(tx.query(lock.pick(&BY_ID), row![id]).await?)?.pop())
}

/// Returns the task that an owner submitted under a key.
pub(crate) async fn by_key<T: Tx>(tx: &T, owner: &str, key: &str) -> Result<Option<Task>> {
    Ok(decode_all(tx.query(&BY_KEY, row![owner, key]).await?)?.pop())
}

fn texts(words: Vec<String>) -> Value {
    if words.is_empty() { Value::Null } else { Value::Texts(words) }
}

/// Returns tasks, the newest first.
pub(crate) async fn list<T: Tx>(
    tx: &T,
    owner: Option<String>,
    before: Option<TaskId>,
    kind: Option<String>,
    states: Vec<String>,
    limit: usize,
) -> Result<Vec<Task>> {
    let mut params = row![owner, before, kind];
    params.push(texts(states));
    params.push(Value::from(limit));
    decode_all(tx.query(&LIST, params).await?)
}

/// Returns the queued task whose turn it is, of these kinds or any, for a lease under which at most so many of one owner run.
pub(crate) async fn next<T: Tx>(
    tx: &T,
    now: Timestamp,
    kinds: Vec<String>,
    lease: LeaseId,
    per_owner: Option<u32>,
) -> Result<Option<Task>> {
    let most = per_owner.unwrap_or(u32::MAX);
    let params = vec![Value::from(now), texts(kinds), Value::from(lease), Value::from(most)];
    Ok(decode_all(tx.query(&NEXT, params).await?)?.pop())
}

/// Returns tasks that wait though their deadline is over, at most so many.
pub(crate) async fn overdue<T: Tx>(tx: &T, now: Timestamp, most: usize) -> Result<Vec<Task>> {
    decode_all(tx.query(&OVERDUE, row![now, most]).await?)
}

/// Tells whether there is one.
pub(crate) async fn is_any_overdue<T: Tx>(tx: &T, now: Timestamp) -> Result<bool> {
    Ok(!tx.query(&IS_OVERDUE, row![now]).await?.is_empty())
}

/// Notes that its owner had a turn.
pub(crate) async fn claimed<T: Tx>(tx: &T, id: TaskId, at: Timestamp) -> Result<()> {
    tx.execute(&CLAIMED, row![at, id]).await.map(drop)
}

/// Returns the running tasks of a lease.
pub(crate) async fn under_lease<T: Tx>(tx: &T, lease: LeaseId) -> Result<Vec<Task>> {
    decode_all(tx.query(&UNDER_LEASE, row![lease]).await?)
}

/// Writes a new task.
pub(crate) async fn insert<T: Tx>(tx: &T, task: &Task, owner: &str, key: Option<&str>) -> Result<()> {
    let spec = SpecBody { v: 1, caller: task.caller.clone(), spec: task.spec.clone() };
    let params = row![
        task.id,
        task.kind.as_str(),
        task.state.as_str(),
        owner,
        to_json(&spec)?,
        to_json(&task.progress)?,
        task.attempt,
        task.not_before,
        task.deadline,
        task.created,
        task.changed,
        key,
    ];
    tx.execute(&INSERT, params).await.map(drop)
}

/// Writes a changed task.
pub(crate) async fn update<T: Tx>(tx: &T, task: &Task) -> Result<()> {
    let params = row![
        task.state.as_str(),
        task.cursor.as_ref().map(to_json).transpose()?,
        to_json(&task.progress)?,
        task.fault.as_ref().map(to_json).transpose()?,
        task.lease,
        task.attempt,
        u64::from(task.vain),
        task.not_before,
        task.deadline,
        task.changed,
        task.id,
    ];
    tx.execute(&UPDATE, params).await.map(drop)
}

/// Deletes tasks that ended before a time, with what belongs to them.
pub(crate) async fn prune<T: Tx>(tx: &T, before: Timestamp) -> Result<u64> {
    let deleted = tx.execute(&PRUNE, row![before]).await?;
    if deleted > 0 {
        tx.execute(&PRUNE_ITEMS, row![]).await?;
        tx.execute(&PRUNE_COPIES, row![]).await?;
        tx.execute(&PRUNE_EVENTS, row![]).await?;
    }
    Ok(deleted)
}

/// Returns the number of the last item of a task.
pub(crate) async fn item_count<T: Tx>(tx: &T, id: TaskId) -> Result<u64> {
    match tx.query(&ITEM_COUNT, row![id]).await?.first_mut() {
        Some(row) => row.number(),
        None => Ok(0),
    }
}

/// Writes items behind number `after`.
pub(crate) async fn insert_items<T: Tx>(tx: &T, id: TaskId, after: u64, items: &[TaskItem]) -> Result<()> {
    let params = (after + 1..).zip(items).map(|(number, item)| {
        let code = item.code.map(|code| code.as_str());
        row![id, number, item.path.as_str(), item.outcome.as_str(), code, item.detail.as_str()]
    });
    tx.execute_many(&INSERT_ITEMS, params.collect()).await.map(drop)
}

/// Returns items behind a number, each with its number.
pub(crate) async fn items<T: Tx>(
    tx: &T,
    id: TaskId,
    after: u64,
    limit: usize,
) -> Result<Vec<(u64, TaskItem)>> {
    let rows = tx.query(&ITEMS, row![id, after, limit]).await?;
    let mut items = Vec::with_capacity(rows.len());
    for mut row in rows {
        let number = row.number()?;
        let path = row.text()?;
        let outcome = row.text()?;
        // A code of a newer release is left out rather than refused.
        let code = row.opt_text()?.and_then(|code| code.parse().ok());
        items.push((number, TaskItem { path, outcome, code, detail: row.text()? }));
    }
    Ok(items)
}

/// Deletes the items of a task.
pub(crate) async fn forget_items<T: Tx>(tx: &T, id: TaskId) -> Result<()> {
    tx.execute(&FORGET_ITEMS, row![id]).await.map(drop)
}

/// Deletes all but the last of the events that say that a task was taken and put back.
pub(crate) async fn forget_turns<T: Tx>(tx: &T, id: TaskId) -> Result<()> {
    tx.execute(&FORGET_TURNS, row![id]).await.map(drop)
}

/// The body of `task_copy`. `v` is the form.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct CopiesBody {
    /// 1.
    v: u32,
    copies: Vec<TaskCopy>,
}

/// Writes what a task has brought, behind what is there.
pub(crate) async fn insert_copies<T: Tx>(tx: &T, id: TaskId, copies: &[TaskCopy]) -> Result<()> {
    let mut number = match tx.query(&COPY_COUNT, row![id]).await?.first_mut() {
        Some(row) => row.number()?,
        None => 0,
    };
    for copies in copies.chunks(MAX_TASK_COPIES) {
        number += copies.len() as u64;
        let bytes: u64 = copies.iter().map(|copy| copy.size).sum();
        let sources: BTreeSet<SiteId> = copies.iter().flat_map(|copy| copy.sources.iter().copied()).collect();
        let body = CopiesBody { v: 1, copies: copies.to_vec() };
        tx.execute(&INSERT_COPIES, row![id, number, bytes, to_json(&sources)?, to_json(&body)?]).await?;
    }
    Ok(())
}

/// Returns the copies of a task behind a number, of one record, with the number of the last one; nothing at the end.
pub(crate) async fn copies<T: Tx>(tx: &T, id: TaskId, after: u64) -> Result<Option<(u64, Vec<TaskCopy>)>> {
    let mut rows = tx.query(&COPIES, row![id, after]).await?;
    let Some(row) = rows.first_mut() else { return Ok(None) };
    let last = row.number()?;
    let CopiesBody { mut copies, .. } = row.json()?;
    let new = usize::try_from(last - after).unwrap_or(usize::MAX);
    copies.drain(..copies.len().saturating_sub(new));
    Ok(Some((last, copies)))
}

/// Returns how much a task has brought.
pub(crate) async fn copy_sums<T: Tx>(tx: &T, id: TaskId) -> Result<TaskCopies> {
    let mut sums = TaskCopies::default();
    for mut row in tx.query(&COPY_SUMS, row![id]).await? {
        let sources: Vec<SiteId> = row.json()?;
        sums.sources.extend(sources);
        sums.count = sums.count.max(row.number()?);
        sums.bytes += row.number()?;
    }
    Ok(sums)
}

/// Notes that something happened to a task.
pub(crate) async fn insert_event<T: Tx>(
    tx: &T,
    id: TaskId,
    at: Timestamp,
    kind: &str,
    detail: &Json,
) -> Result<()> {
    tx.execute(&INSERT_EVENT, row![id, at, kind, to_json(detail)?]).await.map(drop)
}

/// Returns events behind a number.
pub(crate) async fn events<T: Tx>(tx: &T, id: TaskId, after: u64) -> Result<Vec<TaskEvent>> {
    let rows = tx.query(&EVENTS, row![id, after]).await?;
    let decode = |mut row: Row| {
        Ok(TaskEvent { number: row.number()?, at: row.time()?, kind: row.text()?, detail: row.json()? })
    };
    rows.into_iter().map(decode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Committed, TaskFault, TaskProgress};

    /// The stored samples of form 1. Never changed; a new form gets samples of its own.
    #[test]
    fn bodies_of_form_1_are_still_read_and_written() {
        fn round_trips<T: Serialize + for<'de> Deserialize<'de>>(sample: &str) {
            let value: T = serde_json::from_str(sample).unwrap();
            assert_eq!(to_json(&value).unwrap(), sample.trim());
        }
        round_trips::<SpecBody>(include_str!("../../samples/task-spec-v1.json"));
        round_trips::<TaskProgress>(include_str!("../../samples/task-progress-v1.json"));
        round_trips::<TaskFault>(include_str!("../../samples/task-fault-v1.json"));
        round_trips::<CopiesBody>(include_str!("../../samples/task-copies-v1.json"));
        round_trips::<Committed>(include_str!("../../samples/committed-v1.json"));
        let partial: TaskProgress = serde_json::from_str(r#"{"items_done":1,"new":2}"#).unwrap();
        assert_eq!((partial.items_done, partial.items_failed), (1, 0), "fields may come and go");
    }
}
