//! One large object over several streams, from one site after the other.
//!
//! What is missing is cut into segments; each stream asks for one at a time, so that a slow stream takes fewer. The last ones are handed
//! out by the site that sends, so that all streams end together. Every group is
//! verified against the version's tree, which this site knows, and then written where it belongs, in whatever order they
//! come. A site that lies is asked for nothing more; one that fails is asked again, behind the others and after a pause if there
//! are no others, until nothing has come from it for a while. What it did not send is asked for wherever it is its turn.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use percale_api::uploads::PullItem;
use percale_catalog::OpenVersion;
use percale_client::pull::Checks;
use percale_core::ids::SiteId;
use percale_core::tree::{GROUP_SIZE, HashTree, group_range};
use percale_core::{ByteCount, ByteRange, ErrorCode};
use percale_federation::Acting;
use percale_mover::meter::InHand;
use percale_mover::tuning::{Segment, cut, share_of};
use percale_mover::{DataFrame, Frame, Late, Slots, Wait};
use percale_store::Stage;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::kept::Arrived;
use super::{Flow, Givers};
use crate::{ApiError, AppState, Result};

/// What a stream asks for at a time, at least and at most. Small enough that all end together, large enough that the round trip
/// between two requests does not show. Objects that are brought side by side share the streams ([`share_of`]).
const SEGMENT: RangeInclusive<u64> = 1 << 20..=64 << 20;
/// Groups that wait to be written in each stream.
const QUEUED_GROUPS: usize = 4;

/// How many groups behind what an earlier attempt wrote another of its streams may have begun: a segment, and one of which nothing
/// had come.
const AHEAD: u64 = 2 * *SEGMENT.end() / GROUP_SIZE;
/// Whether these bytes of a group are all zero tells whether it is worth a look there.
const GLANCE: u64 = 4 << 10;

/// For how long a site that fails is asked again, if nothing at all comes from it meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pauses before a site is asked again: the first, twice as long each time, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Sites that fail, and since when nothing has come from them. Shared by all objects of a fetch, so that a site that is gone is
/// waited for once.
#[derive(Debug, Default)]
pub(super) struct Failing {
    since: Mutex<HashMap<SiteId, Instant>>,
    /// Those that are to compare what they send, since wrong bytes came that they had not looked at.
    doubted: Mutex<HashSet<SiteId>>,
}

impl Failing {
    fn sites(&self) -> MutexGuard<'_, HashMap<SiteId, Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn doubted(&self) -> MutexGuard<'_, HashSet<SiteId>> {
        self.doubted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells who is to compare what a site sends.
    fn checks(&self, site: SiteId) -> Checks {
        if self.doubted().contains(&site) { Checks::There } else { Checks::Here }
    }

    /// Notes that a site failed; tells whether to ask it again.
    fn failed(&self, site: SiteId) -> bool {
        self.sites().entry(site).or_insert_with(Instant::now).elapsed() < PATIENCE
    }

    /// Notes that something came from a site.
    fn came(&self, site: SiteId) {
        self.sites().remove(&site);
    }

    fn all(&self, sites: &VecDeque<SiteId>) -> bool {
        let failing = self.sites();
        sites.iter().all(|site| failing.contains_key(site))
    }
}

/// An object that is brought.
pub(super) struct Large<'a> {
    pub app: &'a AppState,
    pub acting: &'a Acting,
    pub version: &'a OpenVersion,
    pub tree: Arc<HashTree>,
    pub stage: &'a dyn Stage,
    /// What is here of it.
    pub arrived: &'a Arrived,
    /// What the streams of all objects of a fetch share.
    pub slots: &'a Slots,
    /// How many streams there are, for all of them together.
    pub streams: usize,
    /// The id of the streams that bring its last segments together.
    pub share: String,
    /// The large objects that are in hand at present.
    pub larges: &'a Slots,
    pub failing: &'a Failing,
    pub flow: &'a Flow,
    pub in_hand: &'a InHand<'a>,
    pub givers: &'a Givers,
}

struct Work {
    segments: VecDeque<Segment>,
    /// Ends the streams that are late, once what they were to bring has come over others.
    given_up: CancellationToken,
    /// Those that are still asked, the first one at present.
    sites: VecDeque<SiteId>,
    fault: Option<ApiError>,
}

fn lock(work: &Mutex<Work>) -> MutexGuard<'_, Work> {
    work.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Large<'_> {
    /// Brings all of it into the staged file, but for what is there already. The groups that are only `believed` to be there are
    /// read back meanwhile, and brought where they are not what they should be.
    ///
    /// # Errors
    /// What the last site answered, or the store.
    pub async fn bring(&self, sites: VecDeque<SiteId>, believed: Vec<u64>) -> Result<()> {
        if !believed.is_empty() {
            self.find_unmarked().await?;
        }
        tokio::try_join!(self.check(believed), self.bring_missing(sites.clone()))?;
        self.bring_missing(sites).await
    }

    /// Finds what an earlier attempt wrote without having written a marker, since it was killed. A stream writes a segment in order, so
    /// that lies at the beginning of what is missing; streams that began one since the last marker wrote it at the beginning of that.
    async fn find_unmarked(&self) -> Result<()> {
        for missing in self.arrived.missing().iter() {
            let (mut follows, mut passed) = (true, 0);
            for group in missing.start() / GROUP_SIZE..missing.end().div_ceil(GROUP_SIZE) {
                follows = (follows || self.is_begun(group).await) && self.is_written(group).await?;
                if follows {
                    self.arrived.insert(group, group_range(self.version.size, group).len());
                }
                passed = if follows { 0 } else { passed + 1 };
                if passed > AHEAD {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Tells whether anything but zeros lies where a group begins. Cheap, also where nothing was written; a group that begins with
    /// zeros is brought again.
    async fn is_begun(&self, group: u64) -> bool {
        let range = group_range(self.version.size, group);
        let glance = ByteRange::at(range.start(), range.len().min(GLANCE));
        let bytes = self.stage.read_at(glance).await.unwrap_or_default();
        bytes.iter().any(|byte| *byte != 0)
    }

    /// Reads groups back and forgets those that are wrong.
    async fn check(&self, believed: Vec<u64>) -> Result<()> {
        let mut wrong = 0_u64;
        for group in believed {
            if !self.is_written(group).await? {
                self.arrived.remove(group);
                wrong += 1;
            }
        }
        if wrong > 0 {
            let path = &self.version.path;
            tracing::warn!(%path, groups = wrong, "parts of what an earlier attempt brought are not right; they are brought again");
        }
        Ok(())
    }

    /// Tells whether a group lies in the staged file as it should. What cannot be read is as good as wrong.
    async fn is_written(&self, group: u64) -> Result<bool> {
        let bytes = self.stage.read_at(group_range(self.version.size, group)).await.unwrap_or_default();
        let tree = self.tree.clone();
        let verified = tokio::task::spawn_blocking(move || tree.verify(group, &bytes).is_ok());
        verified.await.map_err(|error| ApiError::internal("hashing did not end").with_source(error))
    }

    async fn bring_missing(&self, sites: VecDeque<SiteId>) -> Result<()> {
        let (segments, given_up) = (VecDeque::new(), CancellationToken::new());
        let work = Mutex::new(Work { segments, given_up, sites, fault: None });
        // What did not come of the last segments is asked for once more, each of one stream alone: then it is known who did not send it.
        let mut may_share = true;
        loop {
            let missing = self.arrived.missing();
            if missing.total() == ByteCount::ZERO {
                return Ok(());
            }
            let count = {
                let mut work = lock(&work);
                // Streams only end while something is missing when there is nobody left to ask, or when they shared it.
                if work.sites.is_empty() {
                    let none = || ApiError::internal("a version without copies was fetched");
                    return Err(work.fault.take().unwrap_or_else(none));
                }
                let (streams, segment) = share_of(self.streams, self.larges.taken(), &SEGMENT);
                work.segments = cut(&missing, streams, segment, std::mem::take(&mut may_share));
                work.given_up = CancellationToken::new();
                self.streams.min(work.segments.len())
            };
            self.run(&work, count).await?;
        }
    }

    /// Works on segments over so many streams. Once there are none left, what is late is asked for over others as well.
    async fn run(&self, work: &Mutex<Work>, count: usize) -> Result<()> {
        let mut running: FuturesUnordered<_> =
            (0..count).map(|_| self.stream_after_stream(work).boxed()).collect();
        let mut late = Late::default();
        loop {
            let open = running.len();
            let site = lock(work).sites.front().copied();
            let rtt = site.and_then(|site| self.app.fabric.contact(site).rtt);
            tokio::select! {
                ended = running.next() => match ended {
                    Some(ended) => ended?,
                    None => return Ok(()),
                },
                () = late.lull(self.flow.meter(), rtt, || open) => {
                    let missing = self.arrived.missing();
                    // All that is waited for is the end of a stream that has brought its last byte.
                    if missing.total() == ByteCount::ZERO {
                        lock(work).given_up.cancel();
                    }
                    let are_begun = lock(work).segments.is_empty();
                    if !are_begun || !late.ask_again(missing.total().0, open, self.streams) {
                        continue;
                    }
                    super::count_late(open);
                    tracing::debug!(path = %self.version.path, missing = missing.total().0, streams = open, "streams have stalled; what they were to bring is asked for over others");
                    let idle = self.streams - open;
                    let segments = cut(&missing, idle, SEGMENT, false);
                    let count = idle.min(segments.len());
                    lock(work).segments = segments;
                    running.extend((0..count).map(|_| self.stream_after_stream(work).boxed()));
                }
            }
            // What comes now has come over another stream.
            if late.was_asked_again() && self.arrived.missing().total() == ByteCount::ZERO {
                lock(work).given_up.cancel();
            }
        }
    }

    /// Works on segments until there are none, or nobody to ask.
    ///
    /// # Errors
    /// Those of the store: no other site can help.
    async fn stream_after_stream(&self, work: &Mutex<Work>) -> Result<()> {
        let mut pause = FIRST_PAUSE;
        let given_up = lock(work).given_up.clone();
        loop {
            let slot = self.slots.take(self.streams).await;
            let (segment, site) = {
                let mut work = lock(work);
                let Some(site) = work.sites.front().copied() else { return Ok(()) };
                let Some(segment) = work.segments.pop_front() else { return Ok(()) };
                (segment, site)
            };
            let mut brought = self.stream(site, segment, &given_up).await;
            if brought.as_ref().is_err_and(|fault| fault.is_doubt) {
                brought = self.compared_there(site, segment.range, &given_up).await;
            }
            let Err(Fault { error, is_ours, .. }) = brought else {
                pause = FIRST_PAUSE;
                continue;
            };
            if is_ours {
                return Err(error);
            }
            drop(slot);
            if self.give_back(work, site, segment.range, error) {
                tokio::time::sleep(pause).await;
                pause = LONGEST_PAUSE.min(pause * 2);
            }
        }
    }

    /// Asks the site for what is missing of a segment once more, since what came was wrong and it had not looked at it: whatever another
    /// site has, this one is to find out whether its copy is damaged.
    async fn compared_there(
        &self,
        site: SiteId,
        segment: ByteRange,
        given_up: &CancellationToken,
    ) -> Result<(), Fault> {
        let missing = self.arrived.missing();
        for left in missing.iter().filter_map(|range| range.intersect(segment)) {
            self.stream(site, Segment { range: left, is_shared: false }, given_up).await?;
        }
        Ok(())
    }

    /// Puts back what a site did not send, and decides who is asked for it. Tells whether to wait before that.
    fn give_back(&self, work: &Mutex<Work>, site: SiteId, segment: ByteRange, error: ApiError) -> bool {
        let mut work = lock(work);
        let missing = self.arrived.missing();
        let left = missing.iter().filter_map(|range| range.intersect(segment));
        work.segments.extend(left.map(|range| Segment { range, is_shared: false }));
        self.app.reader.avoid(site);
        let is_again = may_pass(&error) && self.failing.failed(site);
        // Another stream may have given it up already.
        if let Some(at) = work.sites.iter().position(|known| *known == site) {
            let path = &self.version.path;
            if !is_again {
                tracing::warn!(%site, %error, %path, "a source of a copy failed; another is asked for the rest, if there is one");
                work.sites.remove(at);
            } else {
                tracing::debug!(%site, %error, %path, "a source of a copy failed; it is asked again");
                // Behind those that may not fail.
                if at == 0 {
                    work.sites.rotate_left(1);
                }
            }
            work.fault = Some(error);
        }
        is_again && self.failing.all(&work.sites)
    }

    /// One request.
    async fn stream(
        &self,
        site: SiteId,
        Segment { range: segment, is_shared }: Segment,
        given_up: &CancellationToken,
    ) -> Result<(), Fault> {
        let meter = self.flow.meter();
        let _open = meter.stream();
        let _turn = self.flow.turn(site).await;
        let member = self.app.fabric.member(site).map_err(|error| Fault::theirs(error.into()))?;
        let from = |error: percale_client::Error| Fault::theirs(super::cannot_read(&member, error));
        let position = Some(self.version.position);
        let client = self.app.fabric.client_at(site, self.acting, position);
        let client = client.map_err(|error| Fault::theirs(error.into()))?;
        let item = PullItem {
            path: self.version.path.clone(),
            version: Some(self.version.version),
            space: Some(self.version.space),
            ranges: Some(vec![segment]),
        };
        let share = is_shared.then_some(&*self.share);
        let checks = self.failing.checks(site);
        let open = super::open(self.flow, &client, vec![item], checks, share);
        let Some(opened) = given_up.run_until_cancelled(open).await else { return Ok(()) };
        let mut frames = opened.map_err(from)?;
        // Some of it may come over other streams, and of theirs over this one.
        let may_come = if is_shared { ByteRange::whole(self.version.size) } else { segment };
        let (groups, queue) = mpsc::channel(QUEUED_GROUPS);
        let read = async {
            // One that is given up still writes what it has brought.
            while let Some(next) = given_up.run_until_cancelled(super::next(self.flow, &mut frames)).await {
                let Some(frame) = next.map_err(from)? else { break };
                let is_wanted = match frame {
                    Frame::Data(data) => {
                        self.flow.admit(data.bytes.len() as u64).await;
                        groups.send(data).await.is_ok()
                    }
                    Frame::Fail { problem, .. } => return Err(from(frames.refused(&problem))),
                    _ => true,
                };
                // If the writer failed, it says why itself.
                if !is_wanted {
                    break;
                }
            }
            drop(groups);
            Ok(())
        };
        let (written, read) = tokio::join!(self.write(site, &member.name, may_come, queue), read);
        if let Err(Fault { error, is_ours, .. }) = written {
            return Err(match is_ours {
                true => Fault::ours(error),
                false => {
                    let is_doubt = frames.is_unchecked();
                    if is_doubt {
                        self.failing.doubted().insert(site);
                    }
                    Fault { is_doubt, ..Fault::theirs(super::wrong(&mut frames, error)) }
                }
            });
        }
        read?;
        let left =
            !is_shared && self.arrived.missing().iter().any(|range| range.intersect(segment).is_some());
        match left {
            false => Ok(()),
            true => {
                let detail = format!("site {} did not send all that was asked for", member.name);
                Err(Fault::theirs(ApiError::new(ErrorCode::SiteUnavailable, detail)))
            }
        }
    }

    async fn write(
        &self,
        id: SiteId,
        site: &str,
        may_come: ByteRange,
        mut queue: mpsc::Receiver<DataFrame>,
    ) -> Result<(), Fault> {
        let mut left = may_come.len();
        while let Some(data) = queue.recv().await {
            let range = ByteRange::at(data.offset, data.bytes.len() as u64);
            if !may_come.contains(range) || range.len() > left {
                let detail = format!("site {site} sent bytes that were not asked for");
                return Err(Fault::theirs(ApiError::new(ErrorCode::Integrity, detail)));
            }
            left -= range.len();
            // It was on its way over another stream when it was asked for again.
            if self.arrived.has_any(range) {
                continue;
            }
            let (group, offset, bytes) = (data.group(), data.offset, data.bytes);
            if self.tree.verify_hash(group, data.found).is_err() {
                metrics::counter!("percale_checksum_mismatches_total").increment(1);
                tracing::error!(path = %self.version.path, site, "wrong bytes from another site");
                let detail = format!("site {site} sent wrong bytes; nothing of them was kept");
                return Err(Fault::theirs(ApiError::new(ErrorCode::Integrity, detail)));
            }
            let len = bytes.len() as u64;
            let write = self.stage.write_at(offset, bytes);
            let written = self.flow.meter().waiting(Wait::Disk, write).await;
            written.map_err(|error| Fault::ours(error.into()))?;
            self.in_hand.add(len);
            self.arrived.insert(group, len);
            self.givers.note(id);
            self.failing.came(id);
        }
        Ok(())
    }
}

/// Tells whether a fault may be over in a moment. What was changed or removed is not, though a later attempt may find another
/// version.
fn may_pass(error: &ApiError) -> bool {
    let may = matches!(
        error.code(),
        ErrorCode::SiteUnavailable
            | ErrorCode::StoreUnavailable
            | ErrorCode::CatalogUnavailable
            | ErrorCode::Timeout
            | ErrorCode::RequestTimeout
            | ErrorCode::RateLimited
    );
    may && error.is_retryable()
}

/// Why a stream ended early.
struct Fault {
    error: ApiError,
    /// Whether it is one of this site, which no other source can mend.
    is_ours: bool,
    /// Whether wrong bytes came that their site had not looked at.
    is_doubt: bool,
}

impl Fault {
    fn ours(error: ApiError) -> Self {
        Self { error, is_ours: true, is_doubt: false }
    }

    fn theirs(error: ApiError) -> Self {
        Self { error, is_ours: false, is_doubt: false }
    }
}
