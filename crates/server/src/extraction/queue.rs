//! What is read by itself: what the journal of a space says is new, and again what could not be read.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use percale_catalog::{Described, ExtractionMode, Header, Space, ToExtract};
use percale_core::ids::{EntryId, SpaceId};
use percale_core::{AttributeName, ObjectPath, Position};
use percale_discovery::EXTRACTOR;
use percale_discovery::header::UNREAD;
use tokio::task::JoinSet;

use super::elsewhere::Elsewhere;
use super::reading::Reading;
use super::{SOME, may_extract, write};
use crate::app::system_caller;
use crate::reading::Reach;
use crate::{ApiError, AppState, Result};

/// Spaces of which a page is read at once, so that one whose store does not answer holds up none of the others.
const SPACES: usize = 4;
/// Versions that are looked at together.
const PAGE: usize = 500;
/// How much longer than a round the pause behind it is at least: many objects of a site that is away take a while to look at.
const PAUSES: u32 = 10;
/// How long a space is left alone where the catalog does not answer.
const WAIT: Duration = Duration::from_secs(4);

/// How far a space is with what could not be read before.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Again {
    /// When its next round begins.
    at: Option<Instant>,
    /// When this one began, and behind which object it goes on.
    round: Option<(Instant, EntryId)>,
}

impl Again {
    fn is_due(self) -> bool {
        self.round.is_some() || self.at.is_none_or(|at| at <= Instant::now())
    }

    /// Notes where a round that began then has come to.
    fn went_on(began: Instant, after: Option<EntryId>, pause: Duration) -> Self {
        let at = Instant::now() + pause.max(began.elapsed() * PAUSES);
        Self { at: Some(at), round: after.map(|after| (began, after)) }
    }
}

/// A space whose turn it is.
struct Due {
    space: Space,
    /// What is new is read now.
    is_new: bool,
}

/// Reads what was published, in all spaces that are at home here, until the server ends; a server that reads nothing only learns which of
/// them are `sync`.
pub async fn run(app: AppState) {
    // Tasks of their own: while spaces are looked for, they go on, and hold up nobody who waits for the catalog behind them.
    let mut reading = JoinSet::new();
    // Spaces that wait for their turn, and these with those that have it.
    let (mut due, mut taken) = (VecDeque::new(), HashSet::new());
    let (mut look_at, mut is_more) = (tokio::time::Instant::now(), false);
    loop {
        while reading.len() < SPACES
            && let Some(one) = due.pop_front()
        {
            reading.spawn(turn(app.clone(), one));
        }
        tokio::select! {
            () = app.stopping.cancelled() => return,
            Some(ended) = reading.join_next() => {
                let is_done = match ended {
                    Ok((space, is_done)) => {
                        taken.remove(&space);
                        is_done
                    }
                    Err(error) => {
                        tracing::error!(%error, "reading headers of a space broke off");
                        // Whichever that was may be read again; the others wait for their turn at it.
                        taken = due.iter().map(|one: &Due| one.space.id).collect();
                        true
                    }
                };
                if !is_done || is_more {
                    look_at = tokio::time::Instant::now();
                }
            }
            () = app.extraction.asked.notified() => look_at = tokio::time::Instant::now(),
            () = tokio::time::sleep_until(look_at) => {
                let found = look(&app).await.unwrap_or_else(|error| {
                    tracing::warn!(%error, "cannot look for what was published; will look again");
                    Vec::new()
                });
                is_more = false;
                for one in found {
                    match taken.insert(one.space.id) {
                        true => due.push_back(one),
                        // What came since its page was begun may not be in it.
                        false => is_more = true,
                    }
                }
                look_at = tokio::time::Instant::now() + app.config.extraction.delay;
            }
        }
    }
}

/// Returns the spaces of which something is to be read now.
async fn look(app: &AppState) -> Result<Vec<Due>> {
    let extraction = &app.extraction;
    let mut due = Vec::new();
    for space in app.catalog.spaces(&system_caller()).await? {
        extraction.note(&app.catalog, &space).await?;
        let (is_off, is_awaited, is_again, not_before) = extraction.state(space.id, |state| {
            let is_awaited = state.any(|mode| mode == ExtractionMode::Sync);
            (state.is_off(), is_awaited, state.again.is_due(), state.not_before)
        });
        if is_off || extraction.pool.is_none() || not_before.is_some_and(|at| at > Instant::now()) {
            continue;
        }
        let is_new =
            !extraction.is_read(space.position) && (is_awaited || is_pause_over(app, &space).await?);
        if is_new || is_again {
            due.push(Due { space, is_new });
        }
    }
    Ok(due)
}

/// Tells whether who writes to a space is not waited for any longer.
async fn is_pause_over(app: &AppState, space: &Space) -> Result<bool> {
    let used = app.catalog.used(vec![space.id]).await?.remove(&space.id).unwrap_or_default();
    Ok(app.extraction.state(space.id, |state| {
        // Where this server has read nothing yet, all of the journal counts.
        let left = |end: Position| state.place.map_or(Some(end.seq), |place| place.left(end));
        state.pause.is_over(&app.config.extraction, app.traffic.rests(), left, space.position, used)
    }))
}

/// Reads a page of what is new in a space, and one of what is tried again if it is time for that. Tells whether nothing is left for now.
async fn turn(app: AppState, Due { space, is_new }: Due) -> (SpaceId, bool) {
    let read = async {
        let is_done = !is_new || page(&app, &space, false).await?;
        Ok::<_, ApiError>(again(&app, &space).await? && is_done)
    };
    let read = read.await;
    let not_before = read.is_err().then(|| Instant::now() + WAIT);
    app.extraction.state(space.id, |state| state.not_before = not_before);
    let is_done = read.unwrap_or_else(|error| {
        tracing::warn!(%error, space = %space.name, "headers cannot be read now; will try again");
        true
    });
    (space.id, is_done)
}

/// Reads a page of a space, also of what is not read by itself if that `is_asked` for: then all of it, or it fails. Tells whether nothing is
/// left.
async fn page(app: &AppState, space: &Space, is_asked: bool) -> Result<bool> {
    let extraction = &app.extraction;
    let turn = extraction.state(space.id, |state| state.turn.clone());
    let _turn = turn.lock().await;
    let ToExtract { mut due, place, is_done } = app.catalog.to_extract(space.id, EXTRACTOR, PAGE).await?;
    if !is_asked {
        retain_wanted(app, space, &mut due);
    }
    let (headers, unread) = read(app, space, &due, !is_asked).await?;
    let place_now = (!is_done && unread.is_none()).then_some(place);
    write(app, space.id, place_now, headers).await?;
    if let Some(error) = unread {
        return Err(error);
    }
    extraction.state(space.id, |state| state.place = Some(place));
    extraction.further.send_modify(|count| *count += 1);
    Ok(is_done)
}

/// Tries a page of what could not be read before, if it is time for that. Tells whether nothing is left of this round.
async fn again(app: &AppState, space: &Space) -> Result<bool> {
    let extraction = &app.extraction;
    let (turn, again) = extraction.state(space.id, |state| (state.turn.clone(), state.again));
    if !again.is_due() {
        return Ok(true);
    }
    let _turn = turn.lock().await;
    let mark: AttributeName = UNREAD.parse().map_err(|_| ApiError::internal("the name of a mark"))?;
    let (began, after) = again.round.unzip();
    let began = began.unwrap_or_else(Instant::now);
    let (mut due, after) = app.catalog.extracted_with(space.id, &mark, after, PAGE).await?;
    retain_wanted(app, space, &mut due);
    // What is still away is marked already.
    let (headers, _) = read(app, space, &due, false).await?;
    write(app, space.id, None, headers).await?;
    let again = Again::went_on(began, after, app.config.extraction.again);
    extraction.state(space.id, |state| state.again = again);
    Ok(after.is_none())
}

fn retain_wanted(app: &AppState, space: &Space, due: &mut Vec<Described>) {
    app.extraction.state(space.id, |state| due.retain(|due| !state.mode_of(&due.object.path).is_off()));
}

/// Reads the headers of versions, and writes them but for the last. Returns these, and why others were not read: unless that is
/// marked in them.
async fn read(
    app: &AppState,
    space: &Space,
    due: &[Described],
    marks: bool,
) -> Result<(Vec<Header>, Option<ApiError>)> {
    let rules = app.extraction.state(space.id, |state| state.rules.clone());
    let (mut headers, mut unread) = (Vec::new(), None);
    for some in due.chunks(SOME) {
        // What was read is written while more is read.
        let read = async {
            let elsewhere = &Elsewhere::read(app, space, some).boxed().await;
            let reading = Reading::new(app, &rules, &Reach::Here);
            Reading { by_itself: true, marks, elsewhere: Some(elsewhere), ..reading }.all(some).await
        };
        let (read, written) = tokio::join!(read, write(app, space.id, None, std::mem::take(&mut headers)));
        written?;
        for found in read {
            match found {
                Ok(header) => headers.push(header),
                Err(error) => unread = Some(error),
            }
        }
    }
    Ok((headers, unread))
}

/// Reads all that was published in the space of a path and not read yet, whatever the space says.
///
/// # Errors
/// As [`may_extract`]; what keeps a header from being read.
pub async fn drain(app: &AppState, path: &ObjectPath) -> Result<()> {
    may_extract(app, path).await?;
    let name = path.space().ok_or_else(|| ApiError::invalid(format!("{path} is in no space")))?;
    let space = app.catalog.space(&system_caller(), &name).await?;
    app.extraction.note(&app.catalog, &space).await?;
    while !page(app, &space, true).await? {}
    Ok(())
}
