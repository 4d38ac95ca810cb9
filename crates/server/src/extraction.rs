//! Attributes out of the bytes of objects, behind the journal of each space
//! (docs/decisions/2026-11-23-headers-are-read-behind-the-journal.md), and ahead of it in spaces that are `sync`
//! (docs/decisions/2026-11-23-a-sync-header-comes-with-its-version.md).

mod ahead;
mod away;
mod elsewhere;
mod pause;
mod pool;
mod program;
mod queue;
mod ranges;
mod reading;
mod references;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use percale_catalog::{
    Catalog, ExtractionMode, ExtractionPlace, FoundAttribute, Header, OpenVersion, Rules, Space, SpaceRules,
};
use percale_core::ids::SpaceId;
use percale_core::{AttributeName, AttributeValue, ByteCount, ByteRange, ErrorCode, ObjectPath, Position};
use percale_discovery::EXTRACTOR;
use percale_discovery::frame::{Asked, Outcome, What};
use percale_discovery::header::{ERROR, Found, Header as Gathered};
use percale_federation::Acting;
use tokio::sync::{Notify, Semaphore, watch};

use crate::config::ExtractionConfig;
use crate::http::forward;
use crate::reading::Reach;
use crate::{ApiError, AppState, Result};
pub use ahead::Arrived;
use away::Away;
use elsewhere::Elsewhere;
pub use elsewhere::read_for_home;
use pause::Pause;
use pool::Pool;
use program::Program;
use queue::Again;
pub use queue::{drain, run};
use reading::Reading;
pub use references::references;

/// Headers that are asked for, or written, together.
const SOME: usize = 50;
/// Bytes of names and values that are written together.
const TOGETHER: usize = 4 << 20;
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
    /// Until when it is left alone, since the catalog did not answer.
    not_before: Option<Instant>,
    pause: Pause,
    again: Again,
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
    away: Away,
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
        let away = Away::new(config.again);
        let (spaces, further, asked) = (Mutex::default(), watch::channel(0).0, Notify::new());
        Self { pool, programs, at_once, for_references, away, spaces, further, asked }
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
    /// space are being looked at, or where the catalog did not answer. What cannot be read now, since its store does not answer, is not
    /// waited for.
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
            state.not_before.is_some() || state.place.is_some_and(|place| place.looks_at_all())
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

/// Reads versions of a space whatever it says, and notes what is found: what lies elsewhere is read there, and if that cannot be from here, on
/// behalf of whom all that is done. Returns for each whether its header could be read.
///
/// # Errors
/// What the catalog answers.
pub async fn extract(
    app: &AppState,
    space: &Space,
    versions: Vec<OpenVersion>,
    acting: &Acting,
) -> Result<Vec<Result<()>>> {
    let (mut headers, mut outcomes) = (Vec::new(), Vec::with_capacity(versions.len()));
    let rules = app.extraction.note_rules(&app.catalog, space.id).await?;
    let described = app.catalog.described(space.id, versions).await?;
    let reach = Reach::Fabric(acting.clone());
    for some in described.chunks(SOME) {
        let elsewhere = &Elsewhere::read(app, space, some).boxed().await.found();
        let reading = Reading { elsewhere: Some(elsewhere), ..Reading::new(app, &rules, &reach) };
        for found in reading.all(some).await {
            outcomes.push(found.and_then(|header| {
                let outcome = error_of(&header);
                headers.push(header);
                outcome
            }));
        }
    }
    write(app, space.id, None, headers).await?;
    Ok(outcomes)
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
