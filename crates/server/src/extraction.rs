//! Attributes out of the bytes of objects, behind the journal of each space
//! (docs/decisions/2026-11-23-headers-are-read-behind-the-journal.md), and ahead of it in spaces that are `sync`
//! (docs/decisions/2026-11-23-a-sync-header-comes-with-its-version.md).

mod ahead;
mod elsewhere;
mod pause;
mod pool;
mod program;
mod ranges;
mod reading;
mod references;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use percale_catalog::{
    Catalog, Described, ExtractionMode, ExtractionPlace, FoundAttribute, Header, OpenVersion, Rules, Space,
    SpaceRules, ToExtract,
};
use percale_core::ids::SpaceId;
use percale_core::{AttributeName, AttributeValue, ByteCount, ByteRange, ErrorCode, ObjectPath, Position};
use percale_discovery::EXTRACTOR;
use percale_discovery::frame::{Asked, Outcome, What};
use percale_discovery::header::{ERROR, Found, Header as Gathered};
use percale_federation::Acting;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;

use crate::app::system_caller;
use crate::config::ExtractionConfig;
use crate::http::forward;
use crate::reading::Reach;
use crate::{ApiError, AppState, Result};
pub use ahead::Arrived;
use elsewhere::Elsewhere;
pub use elsewhere::read_for_home;
use pause::Pause;
use pool::Pool;
use program::Program;
use reading::{AwayStores, Patience, Reading, is_of_store};
pub use references::references;

/// Spaces of which a page is read at once, so that one whose store does not answer holds up none of the others.
const SPACES: usize = 4;
/// Versions that are looked at together.
const PAGE: usize = 500;
/// Headers that are written together, while the next ones are read.
const SOME: usize = 50;
/// Bytes of names and values that are written together.
const TOGETHER: usize = 4 << 20;
/// Times that a space is tried whose objects cannot be read although their stores answer, before they count as unreadable: with the waits
/// between, some two minutes.
const TRIES: u32 = 6;
/// Times that it is tried while a store does not answer, before it is gone on behind what lies there: some forty minutes.
const STORE_TRIES: u32 = 14;
/// The first wait; each one is twice as long as the one before.
const FIRST_WAIT: Duration = Duration::from_secs(4);
/// For how long the answer to a write in a space that is `sync` waits.
const WAIT: Duration = Duration::from_secs(60);
/// And for how long while other servers of the site get no further: there may be none that reads.
const STILL: Duration = Duration::from_secs(10);
/// How often the catalog is asked meanwhile what other servers of the site have read, where this one reads nothing.
const POLL: Duration = Duration::from_millis(200);

/// How far a space is, as this server knows it.
#[derive(Debug, Clone, Default)]
struct State {
    /// What the space says; nothing if its home is another site.
    mode: Option<ExtractionMode>,
    /// What its collections say.
    rules: Arc<SpaceRules>,
    /// Where the journal was when they were looked up.
    rules_at: Option<Position>,
    place: Option<ExtractionPlace>,
    tries: u32,
    /// When it is tried again.
    not_before: Option<Instant>,
    pause: Pause,
    /// Held by who reads a page of it.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl State {
    /// Tells whether any object of the space is read in such a way.
    fn any(&self, is: impl Fn(ExtractionMode) -> bool) -> bool {
        self.mode.is_some_and(|mode| is(mode) || self.rules.any(is))
    }

    /// Returns when an object is read.
    fn mode_of(&self, path: &ObjectPath) -> ExtractionMode {
        let mode = self.mode.unwrap_or(ExtractionMode::Off);
        self.rules.at(path).extraction().unwrap_or(mode)
    }

    fn is_off(&self) -> bool {
        !self.any(|mode| !mode.is_off())
    }
}

/// Reads headers, and knows how far each space is.
pub struct Extraction {
    pool: Option<Pool>,
    programs: Vec<Program>,
    at_once: usize,
    /// How many may be asked for references at once: the others go on reading headers.
    for_references: Semaphore,
    spaces: Mutex<HashMap<SpaceId, State>>,
    /// Counts what was found.
    further: watch::Sender<u64>,
    /// Somebody waits for what is read.
    asked: Notify,
}

impl Extraction {
    /// Reads headers by processes of the program that the configuration names; none without one.
    pub fn new(config: &ExtractionConfig) -> Self {
        let at_once = config.workers;
        let program = config.program.clone().filter(|_| at_once > 0);
        let pool = program.map(|program| Pool::new(program, at_once));
        let programs = config.programs.iter().filter_map(Program::new).collect();
        let for_references = Semaphore::new(at_once.div_ceil(2));
        let (spaces, further, asked) = (Mutex::default(), watch::channel(0).0, Notify::new());
        Self { pool, programs, at_once, for_references, spaces, further, asked }
    }

    fn state<T>(&self, space: SpaceId, change: impl FnOnce(&mut State) -> T) -> T {
        let mut spaces = self.spaces.lock().unwrap_or_else(PoisonError::into_inner);
        change(spaces.entry(space).or_default())
    }

    /// Learns when the objects of a space are read, ahead of the next look.
    ///
    /// # Errors
    /// What the catalog answers.
    pub async fn note(&self, catalog: &Catalog, space: &Space) -> Result<()> {
        let is_known = self.state(space.id, |state| {
            state.mode = space.home.is_none().then_some(space.extraction);
            // Rules change with a record of the journal.
            state.mode.is_none() || state.rules_at == Some(space.position)
        });
        if !is_known {
            self.note_rules(catalog, space.id).await?;
            self.state(space.id, |state| state.rules_at = Some(space.position));
        }
        Ok(())
    }

    /// Learns the rules of a space's collections, likewise.
    ///
    /// # Errors
    /// What the catalog answers.
    pub async fn note_rules(&self, catalog: &Catalog, space: SpaceId) -> Result<Arc<SpaceRules>> {
        let rules = Arc::new(catalog.rules(space).await?);
        self.state(space, |state| state.rules = rules.clone());
        Ok(rules)
    }

    /// Returns how many records of the journal were not looked at up to a position; nothing if this server does not read the objects of
    /// the space, or looks at all of them.
    pub fn left(&self, position: Position) -> Option<u64> {
        let spaces = self.spaces.lock().unwrap_or_else(PoisonError::into_inner);
        spaces.get(&position.space).filter(|state| !state.is_off())?.place?.left(position)
    }

    /// Waits until the object that was published at a position was read, by this server or another one of the site, if its space or a
    /// collection above it wants that; at most a minute from when its writer began to wait, and not for long where all objects of a large
    /// space are being looked at, or where a store does not answer.
    pub async fn settle(&self, catalog: &Catalog, path: &ObjectPath, position: Position, began: Instant) {
        if !self.is_sync(position.space, path) {
            return;
        }
        let is_read = match self.pool {
            Some(_) => self.read_here(path, position, began).await,
            None => self.read_elsewhere(catalog, path, position, began).await,
        };
        if !is_read {
            tracing::warn!(%position, "a write is answered before its attributes were found");
        }
    }

    /// Waits for what this server reads. Tells whether it was read, or need not be any more.
    async fn read_here(&self, path: &ObjectPath, position: Position, began: Instant) -> bool {
        let mut further = self.further.subscribe();
        self.asked.notify_one();
        let is_behind = self.state(position.space, |state| {
            state.tries > 0 || state.place.is_some_and(|place| place.looks_at_all())
        });
        let until = began + if is_behind { ahead::PATIENCE } else { WAIT };
        let read = async {
            while self.is_sync(position.space, path)
                && !self.is_read(position)
                && further.changed().await.is_ok()
            {}
        };
        tokio::time::timeout_at(until.into(), read).await.is_ok()
    }

    /// Waits for what the other servers of the site read, likewise.
    async fn read_elsewhere(
        &self,
        catalog: &Catalog,
        path: &ObjectPath,
        position: Position,
        began: Instant,
    ) -> bool {
        let (mut last, mut moved) = (None, began);
        while self.is_sync(position.space, path) {
            // A catalog that does not answer says nothing new.
            let place = catalog.extraction_place(position.space, EXTRACTOR).await.ok().flatten();
            let left = place.and_then(|place| place.left(position));
            let patience = match left {
                Some(0) => return true,
                Some(_) => STILL,
                None => ahead::PATIENCE,
            };
            if left != last {
                (last, moved) = (left, Instant::now());
            }
            if moved.elapsed() >= patience || began.elapsed() >= WAIT {
                return false;
            }
            tokio::time::sleep(POLL).await;
        }
        true
    }

    fn is_sync(&self, space: SpaceId, path: &ObjectPath) -> bool {
        self.state(space, |state| state.mode.is_some() && state.mode_of(path) == ExtractionMode::Sync)
    }

    fn is_read(&self, position: Position) -> bool {
        self.left(position) == Some(0)
    }
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
            && let Some(space) = due.pop_front()
        {
            reading.spawn(turn(app.clone(), space));
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
                        taken = due.iter().map(|space: &Space| space.id).collect();
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
                for space in found {
                    match taken.insert(space.id) {
                        true => due.push_back(space),
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
async fn look(app: &AppState) -> Result<Vec<Space>> {
    let extraction = &app.extraction;
    let mut due = Vec::new();
    for space in app.catalog.spaces(&system_caller()).await? {
        extraction.note(&app.catalog, &space).await?;
        let (is_off, is_awaited) = extraction
            .state(space.id, |state| (state.is_off(), state.any(|mode| mode == ExtractionMode::Sync)));
        if is_off || extraction.pool.is_none() || extraction.is_read(space.position) {
            continue;
        }
        if extraction.state(space.id, |state| state.not_before.is_some_and(|at| at > Instant::now())) {
            continue;
        }
        if is_awaited || is_pause_over(app, &space).await? {
            due.push(space);
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
        state.pause.is_over(&app.config.extraction, left, space.position, used)
    }))
}

/// Reads a page of a space, and sees to it that one that cannot be read is tried later. Tells whether nothing is left for now.
async fn turn(app: AppState, space: Space) -> (SpaceId, bool) {
    let is_done = page(&app, &space, false).await.unwrap_or_else(|error| {
        let tries = app.extraction.state(space.id, |state| {
            state.not_before = Some(Instant::now() + FIRST_WAIT * 2u32.pow(state.tries.min(TRIES)));
            state.tries = state.tries.saturating_add(1);
            state.tries
        });
        tracing::warn!(%error, space = %space.name, tries, "headers cannot be read now; will try again");
        true
    });
    (space.id, is_done)
}

/// Reads a page of a space, also of what is not read by itself if that `is_asked` for. Tells whether nothing is left.
async fn page(app: &AppState, space: &Space, is_asked: bool) -> Result<bool> {
    let extraction = &app.extraction;
    let turn = extraction.state(space.id, |state| state.turn.clone());
    let _turn = turn.lock().await;
    let ToExtract { mut due, place, is_done } = app.catalog.to_extract(space.id, EXTRACTOR, PAGE).await?;
    let rules = extraction.state(space.id, |state| {
        due.retain(|due| is_asked || !state.mode_of(&due.object.path).is_off());
        state.rules.clone()
    });
    let tries = extraction.state(space.id, |state| state.tries);
    let patience = Patience { is_over: tries + 1 >= TRIES, is_over_for_stores: tries + 1 >= STORE_TRIES };
    let (mut away, mut headers, mut are_left) = (None, Vec::new(), false);
    let stores = AwayStores::default();
    for some in due.chunks(SOME) {
        // What was read is written while more is read.
        let read = async {
            let elsewhere = Elsewhere::read(app, space, some).boxed().await;
            let (away, elsewhere) = (Some(&stores), Some(&elsewhere));
            let reading = Reading::new(app, &rules, &Reach::Here);
            Reading { away, elsewhere, patience, ..reading }.all(some).await
        };
        let (read, written) = tokio::join!(read, write(app, space.id, None, std::mem::take(&mut headers)));
        written?;
        for (Described { object: version, .. }, found) in some.iter().zip(read) {
            match found {
                Ok(header) => headers.push(header),
                Err(error) if patience.ends_with(&error) => {
                    are_left |= is_of_store(&error) || error.code() == ErrorCode::SiteUnavailable;
                    headers.push(unreadable(version, &error));
                }
                Err(error) => away = Some(error),
            }
        }
    }
    // One that is away for now is tried again with its page, and holds up none of the others in that.
    let place_now = (!is_done && away.is_none()).then_some(place);
    write(app, space.id, place_now, headers).await?;
    if let Some(error) = away {
        return Err(error);
    }
    extraction.state(space.id, |state| {
        // Behind what was left at a store that does not answer, the rest of it is not waited for again.
        (state.tries, state.not_before) = (if are_left { tries } else { 0 }, None);
        state.place = Some(place);
    });
    extraction.further.send_modify(|count| *count += 1);
    Ok(is_done)
}

/// Writes what was found, not too much of it together, and with the last of it the place.
async fn write(
    app: &AppState,
    space: SpaceId,
    place: Option<ExtractionPlace>,
    headers: Vec<Header>,
) -> Result<()> {
    let (mut together, mut bytes) = (Vec::new(), 0);
    for header in headers {
        bytes += size_of(&header.found);
        together.push(header);
        if bytes >= TOGETHER {
            app.catalog.extracted(space, None, std::mem::take(&mut together)).await?;
            bytes = 0;
        }
    }
    if !together.is_empty() || place.is_some() {
        app.catalog.extracted(space, place, together).await?;
    }
    Ok(())
}

/// Fails if this server reads no headers.
///
/// # Errors
/// `Unsupported`.
pub fn require_readers(app: &AppState) -> Result<()> {
    let none =
        || ApiError::new(ErrorCode::Unsupported, "this server reads no headers: extraction.workers is 0");
    app.extraction.pool.as_ref().map(drop).ok_or_else(none)
}

/// Finds out whether headers of a space can be read here.
///
/// # Errors
/// `Unsupported` if another site is its home, or if this server reads no headers.
pub async fn may_extract(app: &AppState, path: &ObjectPath) -> Result<()> {
    require_readers(app)?;
    if let Some(name) = path.space()
        && let Some(home) = forward::home_of(app, &name).await?
    {
        let detail = format!("the headers of what is in {name} are read by its home, site {}", home.name);
        return Err(ApiError::new(ErrorCode::Unsupported, detail));
    }
    Ok(())
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

/// Reads versions of a space whatever it says, also from other sites on behalf of whom that is done, and notes what is found. Returns for
/// each whether its header could be read.
///
/// # Errors
/// What the catalog answers.
pub async fn extract(
    app: &AppState,
    space: SpaceId,
    versions: Vec<OpenVersion>,
    acting: &Acting,
) -> Result<Vec<Result<()>>> {
    let (mut headers, mut outcomes) = (Vec::new(), Vec::with_capacity(versions.len()));
    let rules = app.extraction.note_rules(&app.catalog, space).await?;
    let described = app.catalog.described(space, versions).await?;
    let reach = Reach::Fabric(acting.clone());
    let reading = Reading::new(app, &rules, &reach);
    for found in reading.all(&described).await {
        outcomes.push(found.and_then(|header| {
            let outcome = error_of(&header);
            headers.push(header);
            outcome
        }));
    }
    write(app, space, None, headers).await?;
    Ok(outcomes)
}

fn error_of(header: &Header) -> Result<()> {
    let error = header.found.iter().find(|(name, _)| name.as_str() == ERROR);
    match error.and_then(|(_, values)| values.first()) {
        Some(AttributeValue::Text(why)) => {
            Err(ApiError::new(ErrorCode::Unsupported, format!("its header cannot be read: {why}")))
        }
        _ => Ok(()),
    }
}

impl Extraction {
    /// Gathers what a file says of itself, whose bytes `read` gives.
    ///
    /// # Errors
    /// That of `read`. What is wrong with the file is an attribute.
    async fn gather(
        &self,
        name: &str,
        size: ByteCount,
        read: &(impl Fn(ByteRange) -> BoxFuture<'static, Result<Bytes>> + Send + Sync),
    ) -> Result<Gathered> {
        let Some(pool) = &self.pool else {
            return Err(ApiError::internal("headers are not read here"));
        };
        let ByteCount(size) = size;
        let outcome = pool.read(&Asked { name: name.to_owned(), size, what: What::Header }, read).await?;
        let mut gathered = Gathered::default();
        let what = match outcome {
            Outcome::Found(found) => {
                // It is gathered once more, since the bounds are not the process' to keep.
                found.into_iter().for_each(|Found { name, values }| gathered.add(name.as_str(), values));
                "found"
            }
            // It was not asked for them.
            Outcome::References(_) | Outcome::NoFormat => "no_format",
            Outcome::Unreadable(why) => {
                gathered.fail(&why);
                "unreadable"
            }
        };
        for program in self.programs.iter().filter(|program| program.is_for(name)) {
            program.read(name, size, read, &mut gathered).await?;
        }
        metrics::counter!("percale_headers_read_total", "outcome" => what).increment(1);
        Ok(gathered)
    }
}

fn unreadable(version: &OpenVersion, error: &ApiError) -> Header {
    let mut gathered = Gathered::default();
    gathered.fail(error.detail());
    header_of(version, attributes_of(gathered, &Rules::default()))
}

fn header_of(version: &OpenVersion, found: Vec<FoundAttribute>) -> Header {
    Header { entry: version.entry, version: version.version, as_of: Vec::new(), found }
}

/// Returns what is kept of what was gathered.
fn attributes_of(gathered: Gathered, rules: &Rules) -> Vec<FoundAttribute> {
    let found = gathered.finish().into_iter().map(|Found { name, values }| (name, values));
    found.filter(|(name, _)| rules.keeps(name.as_str())).collect()
}

/// Returns how many bytes names and values have.
fn size_of(found: &[FoundAttribute]) -> usize {
    found.iter().map(|(name, values)| size_of_one(name, values)).sum()
}

fn size_of_one(name: &AttributeName, values: &[AttributeValue]) -> usize {
    name.as_str().len() + values.iter().map(AttributeValue::size).sum::<usize>()
}
