//! What sites say about copies on their stores, and how it gets to the homes of the spaces (docs/design/following.md).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use percale_core::Position;
use percale_core::access::Caller;
use percale_core::ids::SiteId;
use percale_core::state::ReplicaState;
use percale_core::tree::RootHash;

use crate::batch::{Batch, Mark, Written};
use crate::catalog::Catalog;
use crate::copies::home_space;
use crate::engine::{Change, Query, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Content, OutboxDone, OutboxRow, ReplicaReport, ReportAnswer};
use crate::publish::{each, one_outcome};
use crate::record::{Items, ReplicaItem, kind};
use crate::remote::{store_of, this_site};
use crate::replica::{copy_of, find_copy, lock_copies};
use crate::rows::entry::EntryRow;
use crate::rows::outbox::{self, StoredReport};
use crate::rows::publish::actor;
use crate::rows::replica::{self, ReplicaRow};
use crate::rows::{Lock, site};

/// States of copies. These calls are the server's own; `actor` is only for the journal.
impl Catalog {
    /// Notes what was found out about copies on own stores, each with its own outcome.
    ///
    /// - Of a space with another home it counts here at once, and waits in the outbox for the home to hear of it.
    ///
    /// # Errors
    /// For each: `NotFound`, `SpaceNotFound`, `Foreign` for a store of another site, `Conflict` if the state may not follow
    /// the one that is known (docs/design/replicas.md) or the root is not the version's.
    pub async fn report_replicas(
        &self,
        actor: &Caller,
        reports: Vec<ReplicaReport>,
    ) -> Vec<Result<Position>> {
        each(reports.len(), self.change(Report { actor: actor.clone(), reports }).await)
    }

    /// Notes what a site says about copies on its stores, each with its own outcome. Asked again it notes nothing new.
    ///
    /// - A report of another root than the version's makes the copy `suspect`, and is refused.
    ///
    /// # Errors
    /// For each: `Foreign` if the space is not at home here, `SpaceNotFound`, `NotAllowed` for a store of another site,
    /// `Conflict` if the store is not known yet.
    pub async fn report_from(&self, site: SiteId, reports: Vec<ReplicaReport>) -> Vec<Result<ReportAnswer>> {
        each(reports.len(), self.change(ReportFrom { site, reports }).await)
    }

    /// Returns reports that the homes of their spaces have not answered, in the order in which they must hear of them.
    pub async fn outbox(&self, limit: usize) -> Result<Vec<OutboxRow>> {
        self.ask(ListOutbox(limit)).await
    }

    /// Notes what homes answered. What a home refused is as it knows it, unless it will hear of another report. Rows that
    /// are gone are passed over.
    pub async fn outbox_done(&self, done: Vec<OutboxDone>) -> Result<()> {
        self.change(Done(done)).await
    }
}

/// What a report makes of a copy.
enum Verdict {
    /// The state may not follow the known one.
    Refused,
    /// The version has another root.
    OtherRoot,
    /// It does follow; with the version's root if that is new.
    Fits(Option<RootHash>),
}

/// Tells whether a report is about a copy that is known, and not about one whose place it took.
fn is_about(report: &ReplicaReport, row: &ReplicaRow) -> bool {
    report.key.as_ref().is_none_or(|key| *key == row.replica.key)
}

/// Compares a report with what is known of the copy. The object is locked.
async fn judge<T: Tx>(
    batch: &mut Batch<'_, T>,
    row: &ReplicaRow,
    current: Option<&Arc<EntryRow>>,
    report: &ReplicaReport,
) -> Result<Verdict> {
    if !row.replica.state.may_become(report.state) {
        return Ok(Verdict::Refused);
    }
    let Some(root) = report.root else { return Ok(Verdict::Fits(None)) };
    let known = match current {
        Some(entry) => entry.content.as_ref().and_then(|content| content.root),
        None => replica::version(batch.tx, row.sp, report.version).await?.and_then(|former| former.root),
    };
    Ok(match known {
        Some(known) if known != root => Verdict::OtherRoot,
        Some(_) => Verdict::Fits(None),
        None => Verdict::Fits(Some(root)),
    })
}

/// Returns the object of which the reported version is the current one.
async fn current_of<T: Tx>(batch: &mut Batch<'_, T>, row: &ReplicaRow) -> Result<Option<Arc<EntryRow>>> {
    let entry = batch.entry(row.sp, row.entry, Lock::Update).await?;
    Ok(entry.filter(|entry| entry.version() == Some(row.replica.version)))
}

/// Gives a version its root.
async fn set_root<T: Tx>(
    batch: &mut Batch<'_, T>,
    row: &ReplicaRow,
    current: Option<&Arc<EntryRow>>,
    root: RootHash,
) -> Result<()> {
    match current {
        Some(entry) => {
            let content = entry.content.clone().map(|content| Content { root: Some(root), ..content });
            batch.change(EntryRow { content, ..(**entry).clone() });
        }
        None => drop(replica::set_version_root(batch.tx, row.sp, row.replica.version, root).await?),
    }
    Ok(())
}

/// Makes a copy what a report says. Tells whether others have to hear of it.
fn apply<T: Tx>(batch: &mut Batch<'_, T>, row: &mut ReplicaRow, report: &ReplicaReport) -> bool {
    let mut new = row.clone();
    new.replica.state = report.state;
    if report.generation.is_some() {
        new.replica.generation.clone_from(&report.generation);
    }
    if report.is_checked {
        new.replica.checked = Some(batch.now());
    }
    let is_news = new.replica.state != row.replica.state || new.replica.generation != row.replica.generation;
    if new != *row {
        batch.change_replica(new.clone());
        *row = new;
    }
    is_news
}

/// Writes a record for each space in which something is new, and returns its mark; for the others the end of the journal.
fn record<T: Tx>(
    batch: &mut Batch<'_, T>,
    actor: &str,
    items: BTreeMap<i64, Vec<ReplicaItem>>,
) -> Result<BTreeMap<i64, Mark>> {
    let mut marks = BTreeMap::new();
    for (sp, items) in items {
        let mark = match items.is_empty() {
            true => batch.no_record(sp),
            false => batch.record(sp, actor, kind::REPLICAS_CHANGED, &Items { items })?,
        };
        marks.insert(sp, mark);
    }
    Ok(marks)
}

fn mark_of(marks: &BTreeMap<i64, Mark>, sp: i64) -> Result<Mark> {
    marks.get(&sp).copied().ok_or_else(|| Error::internal("a report has no record"))
}

struct Report {
    actor: Caller,
    reports: Vec<ReplicaReport>,
}

impl Change for Report {
    type Draft = Vec<Result<Mark>>;
    type Out = Vec<Result<Position>>;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Self::Draft> {
        let mut followed = HashSet::new();
        for report in &self.reports {
            followed.extend(
                batch
                    .space_by_id(report.space)
                    .await?
                    .filter(|row| row.space.home.is_some())
                    .map(|row| row.sp),
            );
        }
        for sp in followed {
            // Not while records are applied: those of a copy that is reported on are passed over.
            site::lock_space(batch.tx, sp).await?;
        }
        lock_copies(batch, self.reports.iter().map(|report| (report.space, report.version)).collect())
            .await?;
        let mut decided = Vec::with_capacity(self.reports.len());
        let mut items: BTreeMap<i64, Vec<ReplicaItem>> = BTreeMap::new();
        let mut told = Vec::new();
        for report in &self.reports {
            let outcome = one_outcome(report_one(batch, report).await)?;
            decided.push(outcome.map(|Reported { sp, item, to_home }| {
                items.entry(sp).or_default().extend(item);
                told.extend(to_home);
                sp
            }));
        }
        if !told.is_empty() {
            // Fences count up over the whole site and each is taken once, so they are in the order of commits.
            let first = site::take_fences(batch.tx, told.len() as u64).await?;
            for (number, stored) in (first..).zip(&mut told) {
                stored.row.number = number;
            }
            outbox::insert(batch.tx, &told).await?;
        }
        let marks = record(batch, &actor(&self.actor), items)?;
        Ok(decided.into_iter().map(|outcome| mark_of(&marks, outcome?)).collect())
    }

    fn finish(self, draft: Self::Draft, written: &Written) -> Self::Out {
        draft.into_iter().map(|draft| draft.map(|mark| written.position(mark))).collect()
    }
}

/// What a report makes new.
struct Reported {
    sp: i64,
    /// For the journal.
    item: Option<ReplicaItem>,
    /// For the outbox, without its number.
    to_home: Option<StoredReport>,
}

/// Decides on a report about a copy on an own store.
async fn report_one<T: Tx>(batch: &mut Batch<'_, T>, report: &ReplicaReport) -> Result<Reported> {
    let ReplicaReport { version, store, state, .. } = report;
    let missing = || Error::new(ErrorKind::SpaceNotFound, format!("there is no space {}", report.space));
    let space = batch.space_by_id(report.space).await?.filter(|row| !row.is_removed).ok_or_else(missing)?;
    let sp = space.sp;
    crate::store::own(&*batch.store(*store).await?)?;
    let mut row = copy_of(batch, sp, *version, *store).await?;
    if !is_about(report, &row) {
        let message =
            format!("another copy of version {version} on store {store} took the place of the one looked at");
        return Err(Error::new(ErrorKind::NotFound, message));
    }
    let current = current_of(batch, &row).await?;
    let conflict = |message| Err(Error::new(ErrorKind::Conflict { version: Some(*version) }, message));
    let root = match judge(batch, &row, current.as_ref(), report).await? {
        Verdict::Fits(root) => root,
        Verdict::Refused => {
            return conflict(format!(
                "the copy of version {version} on store {store} is {} and cannot become {state}",
                row.replica.state
            ));
        }
        Verdict::OtherRoot => {
            return conflict(format!(
                "the copy of version {version} on store {store} does not have the version's root"
            ));
        }
    };
    let is_news = apply(batch, &mut row, report) || root.is_some();
    if let Some(home) = space.space.home {
        let stored = || StoredReport {
            sp,
            st: row.st,
            row: OutboxRow {
                number: 0,
                home,
                report: ReplicaReport { key: Some(row.replica.key.clone()), ..report.clone() },
            },
            passed: None,
        };
        return Ok(Reported { sp, item: None, to_home: is_news.then(stored) });
    }
    if let Some(root) = root {
        set_root(batch, &row, current.as_ref(), root).await?;
    }
    let item = is_news.then(|| ReplicaItem::new(&row.replica, root));
    Ok(Reported { sp, item, to_home: None })
}

struct ReportFrom {
    site: SiteId,
    reports: Vec<ReplicaReport>,
}

/// What is answered to a report, before the journal has numbers.
pub(crate) enum Answered {
    Noted(i64),
    Refused(i64, ReplicaState, Option<String>),
    Gone,
}

impl Change for ReportFrom {
    type Draft = Vec<Result<(Answered, Option<Mark>)>>;
    type Out = Vec<Result<ReportAnswer>>;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Self::Draft> {
        let here = this_site(batch).await?;
        lock_copies(batch, self.reports.iter().map(|report| (report.space, report.version)).collect())
            .await?;
        let mut decided = Vec::with_capacity(self.reports.len());
        let mut items: BTreeMap<i64, Vec<ReplicaItem>> = BTreeMap::new();
        for report in &self.reports {
            let outcome = one_outcome(report_one_from(batch, (self.site, here), report, &mut items).await)?;
            decided.push(outcome);
        }
        let marks = record(batch, &format!("site:{}", self.site), items)?;
        let with_mark = |answered: Answered| match &answered {
            Answered::Noted(sp) | Answered::Refused(sp, ..) => {
                let mark = mark_of(&marks, *sp)?;
                Ok((answered, Some(mark)))
            }
            Answered::Gone => Ok((answered, None)),
        };
        Ok(decided.into_iter().map(|outcome| outcome.and_then(with_mark)).collect())
    }

    fn finish(self, draft: Self::Draft, written: &Written) -> Self::Out {
        let answer = |(answered, mark): (Answered, Option<Mark>)| match (answered, mark) {
            (Answered::Noted(_), Some(mark)) => ReportAnswer::Noted { position: written.position(mark) },
            (Answered::Refused(_, state, generation), Some(mark)) => {
                ReportAnswer::Refused { state, generation, position: written.position(mark) }
            }
            _ => ReportAnswer::Gone,
        };
        draft.into_iter().map(|outcome| outcome.map(answer)).collect()
    }
}

/// Decides on a report of a site about a copy on a store of it.
async fn report_one_from<T: Tx>(
    batch: &mut Batch<'_, T>,
    (site, here): (SiteId, SiteId),
    report: &ReplicaReport,
    items: &mut BTreeMap<i64, Vec<ReplicaItem>>,
) -> Result<Answered> {
    let ReplicaReport { version, store, .. } = report;
    store_of(batch, *store, site, here).await?;
    let Some(sp) = home_space(batch, report.space).await? else { return Ok(Answered::Gone) };
    let row = find_copy(batch, sp, *version, *store).await?;
    let Some(mut row) = row.filter(|row| is_about(report, row)) else { return Ok(Answered::Gone) };
    let current = current_of(batch, &row).await?;
    let items = items.entry(sp).or_default();
    Ok(match judge(batch, &row, current.as_ref(), report).await? {
        Verdict::Refused => {
            let replica = row.replica;
            Answered::Refused(sp, replica.state, replica.generation)
        }
        Verdict::OtherRoot => {
            // Its site hashed it and found bytes that are not the version's, whatever it made of that.
            let doubt = ReplicaReport { state: ReplicaState::Suspect, ..report.clone() };
            if row.replica.state.may_become(doubt.state) && apply(batch, &mut row, &doubt) {
                items.push(ReplicaItem::new(&row.replica, None));
            }
            let replica = row.replica;
            Answered::Refused(sp, replica.state, replica.generation)
        }
        Verdict::Fits(root) => {
            let is_news = apply(batch, &mut row, report);
            if let Some(root) = root {
                set_root(batch, &row, current.as_ref(), root).await?;
            }
            if is_news || root.is_some() {
                items.push(ReplicaItem::new(&row.replica, root));
            }
            Answered::Noted(sp)
        }
    })
}

struct ListOutbox(usize);

impl Query for ListOutbox {
    type Out = Vec<OutboxRow>;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<OutboxRow>> {
        outbox::list(tx, self.0).await
    }
}

struct Done(Vec<OutboxDone>);

impl Change for Done {
    type Draft = ();
    type Out = ();

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<()> {
        let numbers: Vec<u64> = self.0.iter().map(|done| done.number).collect();
        let rows = outbox::by_numbers(batch.tx, numbers.clone()).await?;
        let spaces: HashSet<i64> = rows.iter().map(|stored| stored.sp).collect();
        for sp in spaces {
            site::lock_space(batch.tx, sp).await?;
        }
        // Records may have been passed over until the space was locked.
        let rows = outbox::by_numbers(batch.tx, numbers.clone()).await?;
        outbox::delete(batch.tx, numbers).await?;
        let answers: BTreeMap<u64, &ReportAnswer> =
            self.0.iter().map(|done| (done.number, &done.answer)).collect();
        let of_copy = |stored: &StoredReport| (stored.sp, stored.row.report.version, stored.st);
        let waiting: HashSet<_> = outbox::pending(batch.tx, rows.iter().map(of_copy).collect()).await?;
        lock_copies(
            batch,
            rows.iter().map(|stored| (stored.row.report.space, stored.row.report.version)).collect(),
        )
        .await?;
        let mut seen = waiting;
        for stored in rows.iter().rev() {
            // Only the last report about a copy says what it is, if no other waits.
            if let Some(answer) = answers.get(&stored.row.number)
                && seen.insert(of_copy(stored))
            {
                settle(batch, stored, answer).await?;
            }
        }
        Ok(())
    }

    fn finish(self, (): (), _written: &Written) {}
}

/// Makes a copy what its home knows of it now, after the last report about it was answered.
async fn settle<T: Tx>(batch: &mut Batch<'_, T>, stored: &StoredReport, answer: &ReportAnswer) -> Result<()> {
    let (position, refused) = match answer {
        ReportAnswer::Noted { position } => (position, None),
        ReportAnswer::Refused { state, generation, position } => {
            (position, Some((*state, generation.clone())))
        }
        // Its record takes the copy away here.
        ReportAnswer::Gone => return Ok(()),
    };
    let place = |at: Position| (at.term, at.seq);
    // A record behind the answer that was passed over is younger than the answer.
    let passed = stored.passed.as_ref().filter(|passed| place(passed.position) > place(*position));
    let known = passed.map(|passed| (passed.state, passed.generation.clone())).or(refused);
    let report = &stored.row.report;
    let Some((state, generation)) = known else { return Ok(()) };
    let row = find_copy(batch, stored.sp, report.version, report.store).await?;
    let Some(mut row) = row.filter(|row| is_about(report, row)) else { return Ok(()) };
    row.replica.state = state;
    row.replica.generation = generation;
    batch.change_replica(row);
    Ok(())
}

/// Writes reports about copies in a space that wait for a home which is this site from now on into the journal.
pub(crate) async fn record_waiting<T: Tx>(batch: &mut Batch<'_, T>, sp: i64) -> Result<()> {
    let rows = outbox::of_space(batch.tx, sp).await?;
    let versions = rows.iter().map(|stored| (stored.row.report.space, stored.row.report.version));
    lock_copies(batch, versions.collect()).await?;
    let mut items: Vec<ReplicaItem> = Vec::new();
    let mut seen = HashSet::new();
    for StoredReport { st, row: OutboxRow { report, .. }, .. } in &rows {
        let ReplicaReport { version, store, .. } = report;
        let row = find_copy(batch, sp, *version, *store).await?;
        let Some(row) = row.filter(|row| is_about(report, row)) else { continue };
        let current = current_of(batch, &row).await?;
        let root = match judge(batch, &row, current.as_ref(), report).await? {
            Verdict::Fits(root) => root,
            Verdict::Refused | Verdict::OtherRoot => None,
        };
        if let Some(root) = root {
            set_root(batch, &row, current.as_ref(), root).await?;
        }
        // It counted here from the beginning; only the record is missing.
        if seen.insert((*version, *st)) || root.is_some() {
            items.push(ReplicaItem::new(&row.replica, root));
        }
    }
    if !items.is_empty() {
        batch.record(sp, "system", kind::REPLICAS_CHANGED, &Items { items })?;
    }
    outbox::delete(batch.tx, rows.iter().map(|stored| stored.row.number).collect()).await.map(drop)
}
