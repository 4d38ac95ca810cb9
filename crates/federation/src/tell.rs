//! Telling homes about copies that lie at this site (`docs/design/following.md`, "Own stores in other sites' spaces").

use std::collections::BTreeMap;
use std::time::Duration;

use percale_api::Problem;
use percale_api::peer::{self, CopyReport, CopyReports, Outcome};
use percale_catalog::{Arrival, ArrivalBody, ArrivalEnd, ArrivalId, ArrivalState, OutboxDone, ReportAnswer};
use percale_core::ids::SiteId;
use percale_core::state::ReplicaState;
use percale_core::{ErrorCode, Position};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::fabric::{Acting, Fabric};

/// Most reports in one request.
const BATCH: usize = 1000;
/// What is waiting is looked for that often.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Sends what waits, and ends the arrivals that no record ended, until `stopping`.
pub async fn run(fabric: Fabric, stopping: CancellationToken) {
    let work = async {
        loop {
            if let Err(error) = look(&fabric).await {
                tracing::debug!(%error, "cannot tell a home about copies; will tell it again");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    stopping.run_until_cancelled(work).await;
}

async fn look(fabric: &Fabric) -> Result<()> {
    fabric.catalog().finish_arrived().await?;
    flush(fabric).await
}

/// Sends what waits now: what is told afterwards is told behind it.
///
/// # Errors
/// No home could be reached; what waits stays, and is sent again.
pub async fn flush(fabric: &Fabric) -> Result<()> {
    while once(fabric).await? {}
    Ok(())
}

/// What a home answered about a further copy.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    /// It is a copy now, by the record before this position of the home's journal.
    Noted(Position),
    /// It is not needed: the version is gone, or the store has another copy of it. It becomes garbage.
    NotWanted,
    /// The home does not take it, for example since it has other bytes than the version. It becomes garbage.
    Refused(Problem),
}

/// Sends one batch of states; tells whether more may wait.
async fn once(fabric: &Fabric) -> Result<bool> {
    let catalog = fabric.catalog();
    let rows = catalog.outbox(BATCH).await?;
    let is_full = rows.len() == BATCH;
    let mut by_home: BTreeMap<SiteId, Vec<(u64, CopyReport)>> = BTreeMap::new();
    for row in rows {
        let report = row.report;
        let wire = CopyReport {
            arrival: None,
            space: report.space,
            version: report.version,
            store: report.store,
            key: report.key,
            state: report.state,
            generation: report.generation,
            root: report.root,
            is_checked: report.is_checked,
        };
        by_home.entry(row.home).or_default().push((row.number, wire));
    }
    let mut told = 0;
    let mut fault = None;
    for (home, reports) in by_home {
        match tell_states(fabric, home, reports).await {
            Ok(done) => told += done,
            Err(error) => fault = Some(error),
        }
    }
    match fault {
        Some(error) if told == 0 => Err(error),
        _ => Ok(is_full && told > 0),
    }
}

/// Tells one home about states; returns how many of them it answered for good.
async fn tell_states(fabric: &Fabric, home: SiteId, reports: Vec<(u64, CopyReport)>) -> Result<usize> {
    let (numbers, items): (Vec<u64>, Vec<CopyReport>) = reports.into_iter().unzip();
    let answers = ask(fabric, home, &Acting::Site, items).await?;
    let mut done = Vec::with_capacity(numbers.len());
    for (number, answer) in numbers.into_iter().zip(answers) {
        let answer = match answer {
            Outcome::Done(peer::CopyAnswer::Noted(position)) => ReportAnswer::Noted { position },
            Outcome::Done(peer::CopyAnswer::Refused { state, generation, position }) => {
                ReportAnswer::Refused { state, generation, position }
            }
            Outcome::Done(peer::CopyAnswer::Gone | peer::CopyAnswer::Known(_)) => ReportAnswer::Gone,
            Outcome::Failed(problem) if problem.retryable => continue,
            Outcome::Failed(problem) => {
                tracing::warn!(detail = problem.detail, "a home refused to hear of a copy");
                ReportAnswer::Gone
            }
        };
        done.push(OutboxDone { number, answer });
    }
    let count = done.len();
    fabric.catalog().outbox_done(done).await?;
    Ok(count)
}

async fn ask(
    fabric: &Fabric,
    home: SiteId,
    acting: &Acting,
    items: Vec<CopyReport>,
) -> Result<Vec<Outcome<peer::CopyAnswer>>> {
    let count = items.len();
    let client = fabric.client(home, acting)?;
    let answers = client.peer_copies(&CopyReports { actor: None, items }).await?.items;
    match answers.len() == count {
        true => Ok(answers),
        false => Err(Error::new(ErrorCode::Internal, "a home answered for another number of copies")),
    }
}

/// Tells a home about copies that are good and durable here, and ends those that it does not take. Returns its answers in
/// the order of the arrivals. What is no further copy, is not written yet or was told before is passed over, as nothing.
///
/// What it took is not noted: its record ends the arrival, mostly within a round trip.
///
/// # Errors
/// The home could not be reached, or has trouble: the arrivals stay, and are told again.
pub async fn tell_copies(
    fabric: &Fabric,
    home: SiteId,
    acting: &Acting,
    arrivals: &[Arrival],
) -> Result<Vec<Option<Told>>> {
    let mut outcomes: Vec<Option<Told>> = vec![None; arrivals.len()];
    let mut asked: Vec<(usize, ArrivalId)> = Vec::new();
    let mut items = Vec::new();
    for (at, arrival) in arrivals.iter().enumerate() {
        let ArrivalBody::Copy { root, .. } = &arrival.body else { continue };
        let Some(version) = arrival.version else { continue };
        if arrival.state != ArrivalState::Written || arrival.told.is_some() {
            continue;
        }
        asked.push((at, arrival.id));
        items.push(CopyReport {
            arrival: Some(arrival.id.0),
            space: arrival.space,
            version,
            store: arrival.store,
            key: Some(arrival.key.clone()),
            state: ReplicaState::Good,
            generation: arrival.generation.clone(),
            root: Some(*root),
            is_checked: true,
        });
    }
    if items.is_empty() {
        return Ok(outcomes);
    }
    let answers = ask(fabric, home, acting, items).await?;
    let (mut garbage, mut fault) = (Vec::new(), None);
    for ((at, id), answer) in asked.into_iter().zip(answers) {
        let outcome = match answer {
            Outcome::Done(peer::CopyAnswer::Noted(position)) => Told::Noted(position),
            Outcome::Done(_) => {
                garbage.push(id);
                Told::NotWanted
            }
            Outcome::Failed(problem) if problem.retryable => {
                fault = Some(Error::new(ErrorCode::SiteUnavailable, problem.detail));
                continue;
            }
            Outcome::Failed(problem) => {
                tracing::warn!(detail = problem.detail, "a home refused a copy; its bytes are removed");
                garbage.push(id);
                Told::Refused(problem)
            }
        };
        if let Some(place) = outcomes.get_mut(at) {
            *place = Some(outcome);
        }
    }
    let catalog = fabric.catalog();
    catalog.end_arrivals(garbage, ArrivalEnd::Garbage).await.into_iter().collect::<Result<(), _>>()?;
    match fault {
        Some(fault) => Err(fault),
        None => Ok(outcomes),
    }
}
