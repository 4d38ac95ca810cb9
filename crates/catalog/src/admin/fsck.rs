//! Checks that the rows agree with each other.

use percale_core::ids::{SiteId, SpaceId};

use crate::catalog::Catalog;
use crate::engine::{Query, Sql, Tx, row};
use crate::error::{ErrorKind, Result};
use crate::model::{ArrivalId, Finding, LeaseKind};
use crate::rows::{arrival, entry, lease, outbox, peer, replica, site, told};

/// Most findings of each kind: who has more has one reason for all of them.
const MAX_FINDINGS: usize = 1000;
/// Rows that are decoded at once.
const PAGE: usize = 5000;

/// Checks.
impl Catalog {
    /// Checks that the rows agree with each other, as of one moment, and returns what does not: at most 1000 findings of
    /// each kind. Changes nothing.
    pub async fn fsck(&self) -> Result<Vec<Finding>> {
        self.ask(Fsck).await
    }
}

struct Check {
    kind: &'static str,
    sql: Sql,
}

/// A statement that returns the id of the space, on what, and what was found.
macro_rules! check {
    ($kind:literal, $text:expr) => {
        Check { kind: $kind, sql: Sql::both(concat!($text, " LIMIT $1")) }
    };
}

static CHECKS: &[Check] = &[
    check!(
        "root_missing",
        "SELECT p.id, 'space ' || p.name, 'entry 1 is not there as the root collection' FROM space p \
         WHERE p.state <> 'removed' AND NOT EXISTS (SELECT 1 FROM entry e WHERE e.sp = p.sp AND e.id = 1 \
         AND e.parent = 0 AND e.kind = 1)"
    ),
    check!(
        "orphan",
        "SELECT p.id, 'entry ' || CAST(e.id AS TEXT), 'its collection ' || CAST(e.parent AS TEXT) || \
         ' is missing or none' FROM entry e JOIN space p ON p.sp = e.sp \
         LEFT JOIN entry c ON c.sp = e.sp AND c.id = e.parent AND c.kind = 1 \
         WHERE e.id <> 1 AND c.id IS NULL"
    ),
    check!(
        "cycle",
        "SELECT p.id, 'entry ' || CAST(e.id AS TEXT), 'it is not connected to the root of its space' FROM ( \
         WITH RECURSIVE down(sp, id) AS (SELECT sp, id FROM entry WHERE id = 1 AND parent = 0 \
         UNION ALL SELECT c.sp, c.id FROM down d JOIN entry c ON c.sp = d.sp AND c.parent = d.id) \
         SELECT sp, id FROM entry EXCEPT SELECT sp, id FROM down) AS lost \
         JOIN entry e ON e.sp = lost.sp AND e.id = lost.id JOIN entry c ON c.sp = e.sp AND c.id = e.parent \
         JOIN space p ON p.sp = e.sp"
    ),
    check!(
        "content_missing",
        "SELECT p.id, 'entry ' || CAST(e.id AS TEXT), CASE WHEN e.kind = 2 THEN 'an object has no version' \
         ELSE 'a collection or link has a version' END FROM entry e JOIN space p ON p.sp = e.sp \
         WHERE (e.kind <> 2 AND e.version IS NOT NULL) OR (e.kind = 2 AND (e.version IS NULL OR e.size IS NULL))"
    ),
    check!(
        "target_missing",
        "SELECT p.id, 'entry ' || CAST(e.id AS TEXT), 'a link has no target, or something else has one' \
         FROM entry e JOIN space p ON p.sp = e.sp WHERE (e.kind = 3) <> (e.target IS NOT NULL)"
    ),
    check!(
        "replica_missing",
        "SELECT p.id, 'entry ' || CAST(e.id AS TEXT), 'its version ' || CAST(e.version AS TEXT) || \
         ' has no copy' FROM entry e JOIN space p ON p.sp = e.sp WHERE e.version IS NOT NULL \
         AND NOT EXISTS (SELECT 1 FROM replica r WHERE r.sp = e.sp AND r.version = e.version)"
    ),
    check!(
        "replica_dangling",
        "SELECT p.id, 'copy ' || r.key, 'its version ' || CAST(r.version AS TEXT) || \
         ' is neither current nor remembered' FROM replica r JOIN space p ON p.sp = r.sp \
         WHERE NOT EXISTS (SELECT 1 FROM entry e WHERE e.sp = r.sp AND e.id = r.entry AND e.version = r.version) \
         AND NOT EXISTS (SELECT 1 FROM version v WHERE v.sp = r.sp AND v.id = r.version AND v.entry = r.entry)"
    ),
    check!(
        "version_empty",
        "SELECT p.id, 'version ' || CAST(v.id AS TEXT), 'it is remembered without any bytes' \
         FROM version v JOIN space p ON p.sp = v.sp \
         WHERE NOT EXISTS (SELECT 1 FROM replica r WHERE r.sp = v.sp AND r.version = v.id) \
         AND NOT EXISTS (SELECT 1 FROM garbage g WHERE g.sp = v.sp AND g.version = v.id)"
    ),
    check!(
        "grant_dangling",
        "SELECT p.id, 'grant to ' || g.subject, 'its entry ' || CAST(g.entry AS TEXT) || ' is missing' \
         FROM grants g JOIN space p ON p.sp = g.sp \
         WHERE NOT EXISTS (SELECT 1 FROM entry e WHERE e.sp = g.sp AND e.id = g.entry)"
    ),
    check!(
        "attribute_dangling",
        "SELECT p.id, 'attribute ' || a.name, 'its entry ' || CAST(a.entry AS TEXT) || ' is missing' \
         FROM attribute a JOIN space p ON p.sp = a.sp \
         WHERE NOT EXISTS (SELECT 1 FROM entry e WHERE e.sp = a.sp AND e.id = a.entry)"
    ),
    check!(
        "tally",
        "SELECT p.id, 'attribute ' || t.name, 'the entries with \"' || t.value || '\" are ' || CAST(-SUM(t.n) AS TEXT) || \
         ' more than are counted' FROM (SELECT sp, name, type, value, n FROM tally WHERE name <> '' \
         UNION ALL SELECT sp, name, CASE WHEN own THEN type ELSE 0 END, CASE WHEN own THEN value ELSE '' END, -1 \
         FROM (SELECT DISTINCT sp, entry, name, type, value, type = 5 OR type = 3 AND length(value) <= 64 \
         OR type = 1 AND length(value) <= 5 AS own FROM attribute) AS a) AS t JOIN space p ON p.sp = t.sp \
         GROUP BY p.id, t.name, t.type, t.value HAVING SUM(t.n) <> 0"
    ),
    check!(
        "word_missing",
        "SELECT p.id, 'attribute ' || a.name, 'the text \"' || a.word || '\" is not among those that are searched' \
         FROM (SELECT DISTINCT sp, name, word FROM attribute WHERE word IS NOT NULL) AS a JOIN space p ON p.sp = a.sp \
         WHERE NOT EXISTS (SELECT 1 FROM word w WHERE w.sp = a.sp AND w.name = a.name AND w.word = a.word)"
    ),
    Check {
        kind: "tally",
        sql: Sql::each(
            "SELECT NULL, '', '' WHERE $1 < 0",
            "SELECT p.id, 'space ' || p.name, 'it has ' || CAST(-SUM(t.n) AS TEXT) || ' more entries than are counted' \
             FROM (SELECT sp, type, n FROM tally WHERE name = '' \
             UNION ALL SELECT sp, kind, -1 FROM entry WHERE id > 1) AS t JOIN space p ON p.sp = t.sp \
             GROUP BY p.id, p.name, t.type HAVING SUM(t.n) <> 0 LIMIT $1",
        ),
    },
    Check {
        kind: "used",
        // SQLite adds whole MiB and the rest, since a sum that is too large for an integer is an error there; what is a float is not exact.
        sql: Sql::each(
            "SELECT p.id, 'space ' || p.name, 'its objects have ' || CAST(IFNULL(e.mib * 1048576 + e.rest, 0) - IFNULL(u.bytes, 0) AS TEXT) || \
             ' more bytes than are counted' FROM space p LEFT JOIN used u ON u.sp = p.sp LEFT JOIN ( \
             SELECT sp, SUM(size >> 20) AS mib, SUM(size & 1048575) AS rest FROM entry WHERE size > 0 GROUP BY sp \
             ) AS e ON e.sp = p.sp WHERE IFNULL(e.mib * 1048576 + e.rest, 0) <> IFNULL(u.bytes, 0) \
             AND typeof(u.bytes) <> 'real' LIMIT $1",
            "SELECT p.id, 'space ' || p.name, 'its objects have ' || CAST(-SUM(u.bytes) AS TEXT) || ' more bytes than are counted' \
             FROM (SELECT sp, bytes FROM used UNION ALL SELECT sp, -size FROM entry WHERE size > 0) AS u \
             JOIN space p ON p.sp = u.sp GROUP BY p.id, p.name HAVING SUM(u.bytes) <> 0 LIMIT $1",
        ),
    },
    check!(
        "journal_gap",
        "SELECT p.id, 'space ' || p.name, 'the journal has ' || CAST(j.kept AS TEXT) || ' records from ' || \
         CAST(j.first AS TEXT) || ' to ' || CAST(j.last AS TEXT) || ', the space is at ' || CAST(p.seq AS TEXT) \
         FROM (SELECT sp, COUNT(*) AS kept, MIN(seq) AS first, MAX(seq) AS last, MAX(term) AS term FROM journal \
         GROUP BY sp) AS j JOIN space p ON p.sp = j.sp \
         WHERE j.kept <> j.last - j.first + 1 OR j.last <> p.seq OR j.term > p.term"
    ),
    check!(
        "counter",
        "SELECT p.id, 'space ' || p.name, 'id ' || CAST(u.id AS TEXT) || ' is used, the next is ' || \
         CAST(p.next_id AS TEXT) FROM (SELECT sp, MAX(id) AS id FROM (SELECT sp, id FROM entry \
         UNION ALL SELECT sp, version FROM replica UNION ALL SELECT sp, id FROM version \
         UNION ALL SELECT sp, version FROM intent UNION ALL SELECT sp, version FROM garbage) AS ids GROUP BY sp) AS u \
         JOIN space p ON p.sp = u.sp WHERE u.id >= p.next_id"
    ),
    check!(
        "counter",
        "SELECT NULL, 'site', 'fence ' || CAST(l.fence AS TEXT) || ' is used, the last is ' || \
         CAST(t.fence AS TEXT) FROM (SELECT MAX(fence) AS fence FROM lease) AS l JOIN site t ON l.fence > t.fence"
    ),
    check!(
        "key_twice",
        "SELECT p.id, 'key ' || k.key, 'it is taken ' || CAST(k.times AS TEXT) || ' times' FROM (SELECT st, key, \
         COUNT(*) AS times, MIN(sp) AS sp FROM (SELECT st, key, sp FROM replica UNION ALL SELECT st, key, sp FROM intent \
         UNION ALL SELECT st, key, sp FROM garbage \
         UNION ALL SELECT a.st, a.key, a.sp FROM arrival a WHERE a.state <> 'written' OR NOT EXISTS (SELECT 1 \
         FROM replica r WHERE r.st = a.st AND r.key = a.key)) AS keys GROUP BY st, key HAVING COUNT(*) > 1) AS k \
         LEFT JOIN space p ON p.sp = k.sp"
    ),
    check!(
        "lease_missing",
        "SELECT p.id, 'intent for ' || i.name, 'the lease it was prepared under is missing' FROM intent i \
         LEFT JOIN space p ON p.sp = i.sp WHERE NOT EXISTS (SELECT 1 FROM lease l WHERE l.id = i.lease)"
    ),
    check!(
        "lease_missing",
        "SELECT p.id, 'arrival at ' || a.key, 'the lease it lies under is missing' FROM arrival a \
         LEFT JOIN space p ON p.sp = a.sp WHERE NOT EXISTS (SELECT 1 FROM lease l WHERE l.id = a.lease)"
    ),
    check!(
        "arrival_foreign",
        "SELECT p.id, 'arrival at ' || a.key, 'its store is not one of this site' FROM arrival a \
         LEFT JOIN space p ON p.sp = a.sp WHERE p.sp IS NULL \
         OR NOT EXISTS (SELECT 1 FROM store s WHERE s.st = a.st AND s.site IS NULL)"
    ),
    check!(
        "report_dangling",
        "SELECT p.id, 'report ' || CAST(o.number AS TEXT), 'nobody is to hear of it: the space is gone or at home \
         here, or the store is not one of this site' FROM outbox o LEFT JOIN space p ON p.sp = o.sp \
         WHERE p.home IS NULL OR p.state = 'removed' \
         OR NOT EXISTS (SELECT 1 FROM store s WHERE s.st = o.st AND s.site IS NULL)"
    ),
    check!(
        "told_undecided",
        "SELECT NULL, 'arrival of another site', 'what was answered about it was never written' \
         FROM told t WHERE t.answer LIKE '%\"deciding\"%'"
    ),
];

/// Lets PostgreSQL scan and hash, with as many processes as it does by default: these are the only statements that look at everything.
static PLAN: Sql = Sql::each(
    "SELECT 1",
    "SELECT set_config('enable_seqscan', 'on', true), set_config('enable_hashjoin', 'on', true), \
     set_config('enable_mergejoin', 'on', true), set_config('plan_cache_mode', 'force_custom_plan', true), \
     set_config('max_parallel_workers_per_gather', '2', true)",
);

struct Fsck;

impl Query for Fsck {
    type Out = Vec<Finding>;

    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<Finding>> {
        tx.query(&PLAN, row![]).await?;
        let mut findings = Vec::new();
        for Check { kind, sql } in CHECKS {
            for mut row in tx.query(sql, row![MAX_FINDINGS]).await? {
                let space = row.opt_uuid()?.map(SpaceId);
                findings.push(Finding { kind, space, subject: row.text()?, detail: row.text()? });
            }
        }
        findings.extend(undecodable(tx).await?);
        Ok(findings)
    }
}

/// Decodes what can hold a word or form that this release does not know.
async fn undecodable<T: Tx>(tx: &T) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut note = |subject: &str, outcome: Result<()>| match outcome {
        Err(error) if *error.kind() == ErrorKind::Corrupt => {
            let (subject, detail) = (subject.to_owned(), error.to_string());
            findings.push(Finding { kind: "undecodable", space: None, subject, detail });
            Ok(())
        }
        outcome => outcome,
    };
    let spaces = site::spaces(tx).await;
    let stores = site::stores(tx).await;
    note("spaces", spaces.as_ref().map(drop).map_err(Clone::clone))?;
    note("stores", stores.as_ref().map(drop).map_err(Clone::clone))?;
    note("peers", peer::peers(tx).await.map(drop))?;
    for kind in LeaseKind::ALL {
        note("leases", lease::of_kind(tx, *kind).await.map(drop))?;
    }
    let mut after = Some(ArrivalId(uuid::Uuid::nil()));
    while let Some(id) = after {
        let found = arrival::scan(tx, id, PAGE).await;
        after = found.clone().unwrap_or_default();
        note("arrivals", found.map(drop))?;
    }
    let mut after = Some(0);
    while let Some(number) = after {
        let found = outbox::scan(tx, number, PAGE).await;
        after = found.clone().unwrap_or_default();
        note("reports", found.map(drop))?;
    }
    let mut after = Some((SiteId(uuid::Uuid::nil()), ArrivalId(uuid::Uuid::nil())));
    while let Some(answer) = after {
        let found = told::scan(tx, answer, PAGE).await;
        after = found.clone().unwrap_or_default();
        note("answers to other sites", found.map(drop))?;
    }
    for space in spaces.unwrap_or_default() {
        let subject = format!("entries of space {}", space.space.name);
        let mut after = Some(0);
        while let Some(id) = after {
            match entry::scan(tx, space.sp, id, PAGE).await {
                Ok(last) => after = last,
                Err(error) => {
                    note(&subject, Err(error))?;
                    after = None;
                }
            }
        }
    }
    for store in stores.unwrap_or_default() {
        let subject = format!("copies on store {}", store.store.name);
        let mut after = Some(String::new());
        while let Some(key) = after {
            match replica::on_store(tx, store.store.id, &key, PAGE).await {
                Ok(found) => after = found.last().map(|last| last.replica.key.clone()),
                Err(error) => {
                    note(&subject, Err(error))?;
                    after = None;
                }
            }
        }
    }
    Ok(findings)
}
