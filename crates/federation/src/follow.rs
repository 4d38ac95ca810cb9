//! Following the journals of other homes (`docs/design/following.md`).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use percale_api::peer::{Changed, Changes, HomeSpace, JournalRecord, SpaceChanges};
use percale_api::spaces::{Layout, StoreState as WireState};
use percale_catalog::{ForeignStore, Record, StoreLayout, StoreState};
use percale_core::ids::{SiteId, SpaceId};
use percale_core::{ErrorCode, Position, Timestamp};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::{Error, Result};
use crate::fabric::{Acting, Fabric};
use crate::roster::Member;

/// How long a home holds an answer while nothing is new.
const WAIT: Duration = Duration::from_secs(20);
/// After an exchange that failed.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest of these pauses: what a site that was away is behind at most when it is back.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// Rosters are exchanged that often even if nothing changed.
const ROSTER_EVERY: Duration = Duration::from_secs(30);
/// The roster is read from the catalog that often, since another server of the site may have changed it.
const RELOAD_EVERY: Duration = Duration::from_secs(5);
/// How often a follower is looked at while nothing is heard of it.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Pieces of a snapshot that wait to be written.
const SNAPSHOT_QUEUE: usize = 16;

/// Follows every other member, also those that join later, until `stopping`.
pub async fn run(fabric: Fabric, tasks: TaskTracker, stopping: CancellationToken) {
    let mut following: HashSet<SiteId> = HashSet::new();
    let mut changed = fabric.watch();
    loop {
        if let Err(error) = take_what_was_handed_over(&fabric).await {
            tracing::warn!(%error, "cannot take over a space yet");
        }
        let members = fabric.others();
        following.retain(|id| members.iter().any(|member| member.id == *id));
        for member in members {
            if following.insert(member.id) {
                tasks.spawn(follow(fabric.clone(), member.id, stopping.clone()));
            }
        }
        tokio::select! {
            () = stopping.cancelled() => return,
            _ = changed.changed() => {}
            () = tokio::time::sleep(RELOAD_EVERY) => {
                if let Err(error) = fabric.look_around().await {
                    tracing::debug!(%error, "cannot read the roster; will read it again");
                }
            }
        }
    }
}

/// Becomes the home of spaces that were handed over to this site, which was stopped then.
async fn take_what_was_handed_over(fabric: &Fabric) -> Result<()> {
    for position in fabric.catalog().followed(fabric.own().id).await? {
        fabric.catalog().take_over(position.space, position).await?;
    }
    Ok(())
}

/// Follows one member until it is removed.
async fn follow(fabric: Fabric, home: SiteId, stopping: CancellationToken) {
    let mut pause = FIRST_PAUSE;
    let mut follower = Follower {
        fabric: fabric.clone(),
        home,
        known: None,
        roster_at: None,
        waiting: Vec::new(),
        blocked: HashMap::new(),
    };
    while fabric.member(home).is_ok() {
        let outcome = tokio::select! {
            outcome = follower.exchange() => outcome,
            () = stopping.cancelled() => return,
        };
        match outcome {
            Ok(()) => pause = FIRST_PAUSE,
            Err(error) => {
                tracing::debug!(site = %home, %error, "cannot follow a site; will ask again");
                fabric.note(home, Err(error.to_string()));
                follower.known = None;
                // Its key or ours may have changed, or what was to be told of the roster did not come: an exchange finds out.
                follower.roster_at = None;
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = stopping.cancelled() => return,
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// Waits until this site stands at a position, at most so long. Returns the home of the space if it does not get there.
///
/// # Errors
/// Those of the catalog; `site_refused` if the home is no member any more.
pub async fn caught_up(fabric: &Fabric, position: Position, within: Duration) -> Result<Option<Arc<Member>>> {
    let deadline = Instant::now() + within;
    let mut watch = fabric.catalog().watch();
    loop {
        watch.borrow_and_update();
        let Some(space) = fabric.catalog().followed_space(position.space).await? else { return Ok(None) };
        // A space that was handed over to this site is nobody else's to ask about.
        let Some(home) = space.home.filter(|home| *home != fabric.own().id) else { return Ok(None) };
        let here = space.position;
        if space.behind.is_none() && (here.term, here.seq) >= (position.term, position.seq) {
            return Ok(None);
        }
        if Instant::now() >= deadline || space.behind.is_some() {
            return fabric.member(home).map(Some);
        }
        tokio::select! {
            _ = watch.changed() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

struct Follower {
    fabric: Fabric,
    home: SiteId,
    /// The fingerprint of the lists that were taken.
    known: Option<String>,
    roster_at: Option<Instant>,
    /// Spaces of the list that were not taken up yet.
    waiting: Vec<HomeSpace>,
    /// Spaces that cannot be followed, and since when they are left alone: they must not keep the others back.
    blocked: HashMap<SpaceId, Instant>,
}

impl Follower {
    /// Asks once and applies what comes.
    async fn exchange(&mut self) -> Result<()> {
        if self.roster_at.is_none_or(|at| at.elapsed() > ROSTER_EVERY) {
            if self.roster_at.is_none() {
                // The first one opens the connection, which would count as its round trip.
                self.fabric.exchange(self.home).await?;
            }
            let began = Instant::now();
            self.fabric.exchange(self.home).await?;
            self.fabric.note(self.home, Ok((Some(began.elapsed()), None)));
            self.roster_at = Some(Instant::now());
        }
        let catalog = self.fabric.catalog();
        self.blocked.retain(|_, since| since.elapsed() < LONGEST_PAUSE);
        let mut positions: Vec<Position> = catalog.followed(self.home).await?;
        positions.retain(|position| !self.blocked.contains_key(&position.space));
        // The first question is answered at once, so that the lists and the clock are known.
        // Well before the silence of a home that has nothing to say would be taken for that of one that is away.
        let longest = WAIT.min(self.fabric.own().stall_timeout * 2 / 3);
        let wait = if self.blocked.is_empty() { longest } else { longest.min(LONGEST_PAUSE) };
        let wait_s = if self.known.is_some() { wait.as_secs() as u32 } else { 0 };
        let client = self.fabric.client(self.home, &Acting::Site)?;
        let changes = Changes { positions, known: self.known.clone(), wait_s };
        let began = Instant::now();
        let Changed { spaces, homes, stores, known, now_us, window } = client.peer_changes(&changes).await?;
        // What a home says of the time is as old as half the round trip; only a short one says anything.
        let (took, now) = (began.elapsed(), Timestamp::now().as_micros());
        let clock = now_us - (now - i64::try_from(took.as_micros() / 2).unwrap_or_default());
        let is_short = took < Duration::from_secs(2);
        self.fabric.note(self.home, Ok((None, is_short.then_some(clock))));
        self.fabric.note_window(self.home, window);
        if let Some(stores) = stores {
            let stores = stores.into_iter().map(|store| ForeignStore {
                id: store.id,
                name: store.name,
                layout: match store.layout {
                    Layout::Managed => StoreLayout::Managed,
                    Layout::Native => StoreLayout::Native,
                },
                state: match store.state {
                    WireState::Active => StoreState::Online,
                    WireState::Draining => StoreState::ReadOnly,
                },
            });
            catalog.learn_stores(self.home, stores.collect()).await?;
        }
        let mut trouble = None;
        for SpaceChanges { space, records, is_gone } in spaces {
            let outcome = match is_gone {
                true => self.snapshot(space).await,
                false => self.apply(space, records).await,
            };
            trouble = self.block(space, outcome).or(trouble);
        }
        if let Some(homes) = homes {
            self.waiting = homes;
        }
        for space in std::mem::take(&mut self.waiting) {
            self.fabric.hear(space.position);
            if self.blocked.contains_key(&space.id) {
                self.waiting.push(space);
                continue;
            }
            let outcome = self.begin(&space).await;
            if let Some(error) = self.block(space.id, outcome) {
                trouble = Some(error);
                self.waiting.push(space);
            }
        }
        self.known = Some(known);
        if trouble.is_some() || self.blocked.is_empty() {
            self.fabric.note_trouble(self.home, trouble);
        }
        Ok(())
    }

    /// Leaves a space alone for a while that cannot be followed; says why it cannot.
    fn block(&mut self, space: SpaceId, outcome: Result<()>) -> Option<String> {
        let error = outcome.err()?;
        tracing::warn!(%space, home = %self.home, %error, "a space cannot be followed; it is tried again");
        self.blocked.insert(space, Instant::now());
        Some(error.to_string())
    }

    /// Tells whether the other site's claim to be the home goes over this one's: the greater term, then the smaller id.
    fn has_won(&self, theirs: Position, ours: Position) -> bool {
        theirs.term > ours.term || theirs.term == ours.term && self.home < self.fabric.own().id
    }

    /// Sets the rows of a space aside, which another site has become the home of while this one was away.
    async fn give_way(&self, space: &HomeSpace, ours: Position) -> Result<()> {
        let name = format!("set-aside-{}-term-{}.pcbak", space.name, ours.term);
        let path = self.fabric.own().state_dir.join(name);
        // A copy of an earlier attempt is as good.
        if !path.exists() {
            self.fabric.catalog().backup(&path).await?;
        }
        self.fabric.catalog().step_down(space.id, self.home, space.position).await?;
        let file = path.display();
        tracing::warn!(space = %space.name, home = %self.home, %file, "another site is the home of a space now; what was here is set aside");
        Ok(())
    }

    /// Takes up a space that is not followed yet.
    async fn begin(&self, space: &HomeSpace) -> Result<()> {
        let catalog = self.fabric.catalog();
        match catalog.followed_space(space.id).await? {
            Some(known) if known.home == Some(self.home) && known.behind.is_none() => return Ok(()),
            // It moves between others: the greater term decides.
            Some(known) if known.position.term >= space.position.term && known.behind.is_none() => {
                return Ok(());
            }
            Some(_) => {}
            None => match catalog.position(space.id).await {
                Ok(ours) if self.has_won(space.position, ours) => self.give_way(space, ours).await?,
                Ok(_) => return Ok(()),
                Err(error) if error.code() == ErrorCode::SpaceNotFound => {}
                Err(error) => return Err(error.into()),
            },
        }
        self.snapshot(space.id).await
    }

    async fn apply(&self, space: SpaceId, records: Vec<JournalRecord>) -> Result<()> {
        let Some(last) = records.last() else { return Ok(()) };
        self.fabric.hear(last.position);
        let (home_name, own_name) = self.names()?;
        let records = records.into_iter().map(record).collect();
        let outcome = self.fabric.catalog().follow(space, self.home, &home_name, &own_name, records).await;
        match outcome {
            Ok(followed) => {
                if let Some(why) = followed.behind {
                    tracing::warn!(%space, why, "a follower must wait for a newer release");
                }
                Ok(())
            }
            Err(error) if error.code() == ErrorCode::Integrity => {
                tracing::warn!(%space, %error, "records do not fit the rows here; a snapshot replaces them");
                self.snapshot(space).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Replaces all rows of a space by those of its home.
    async fn snapshot(&self, space: SpaceId) -> Result<()> {
        let (home_name, own_name) = self.names()?;
        let client = self.fabric.client(self.home, &Acting::Site)?;
        let mut stream = client.peer_snapshot(space).await?;
        let (sender, lines) = mpsc::channel(SNAPSHOT_QUEUE);
        let read = async move {
            while let Some(piece) = stream.next().await? {
                if sender.send(piece).await.is_err() {
                    break;
                }
            }
            Ok::<_, Error>(())
        };
        let write = self.fabric.catalog().follow_snapshot(space, self.home, &home_name, &own_name, lines);
        let (read, written) = tokio::join!(read, write);
        // What broke the connection says more than that the snapshot was cut.
        read?;
        let position = written?;
        tracing::info!(%space, %position, "a snapshot was taken");
        Ok(())
    }

    fn names(&self) -> Result<(String, String)> {
        Ok((self.fabric.member(self.home)?.name.clone(), self.fabric.own().name.clone()))
    }
}

fn record(record: JournalRecord) -> Record {
    let JournalRecord { position, at_us, actor, kind, v, body } = record;
    Record { position, at: Timestamp::from_micros(at_us), actor, kind, v, body }
}
