//! One large object over several streams, from one site after the other.
//!
//! What is missing is cut into segments; each stream asks for one at a time, so that a slow stream takes fewer. Every group is
//! verified against the version's tree, which this site knows, and then written where it belongs, in whatever order they
//! come. A site that fails or lies is asked for nothing more, and what it did not send is asked for at the next one.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use percale_api::uploads::PullItem;
use percale_catalog::OpenVersion;
use percale_client::pull::{FrameStream, parse_problem};
use percale_core::ids::SiteId;
use percale_core::tree::HashTree;
use percale_core::{ByteRange, ErrorCode};
use percale_federation::Acting;
use percale_mover::tuning::cut;
use percale_mover::{DataFrame, Frame, ReceivedGroups};
use percale_store::Stage;
use tokio::sync::{Semaphore, mpsc};

use super::OPERATION;
use crate::{ApiError, AppState, Result};

/// What a stream asks for at a time, at least and at most. Small enough that all end together, large enough that the round trip
/// between two requests does not show.
const SEGMENT: RangeInclusive<u64> = 4 << 20..=64 << 20;
/// Groups that wait to be written in each stream.
const QUEUED_GROUPS: usize = 4;

/// An object that is brought.
pub(super) struct Large<'a> {
    pub app: &'a AppState,
    pub acting: &'a Acting,
    pub version: &'a OpenVersion,
    pub tree: Arc<HashTree>,
    pub stage: &'a dyn Stage,
    /// What the streams of all objects of a fetch share.
    pub slots: &'a Semaphore,
}

struct Work {
    segments: VecDeque<ByteRange>,
    received: ReceivedGroups,
    /// Those that are still asked, the first one at present.
    sites: VecDeque<SiteId>,
    fault: Option<ApiError>,
}

fn lock(work: &Mutex<Work>) -> MutexGuard<'_, Work> {
    work.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Large<'_> {
    /// Brings all of it into the staged file.
    ///
    /// # Errors
    /// What the last site answered, or the store.
    pub async fn bring(&self, sites: VecDeque<SiteId>, streams: usize) -> Result<()> {
        let size = self.version.size;
        let received = ReceivedGroups::new(size);
        let segments = cut(&received.missing(), streams, SEGMENT);
        let work = Mutex::new(Work { segments, received, sites, fault: None });
        loop {
            let count = streams.min(lock(&work).segments.len());
            let mut running: FuturesUnordered<_> =
                (0..count).map(|_| self.stream_after_stream(&work).boxed()).collect();
            while let Some(outcome) = running.next().await {
                outcome?;
            }
            drop(running);
            let mut work = lock(&work);
            if work.received.is_complete() {
                return Ok(());
            }
            // Each time round a site was given up, so this ends.
            if work.sites.is_empty() {
                let none = || ApiError::internal("a version without copies was fetched");
                return Err(work.fault.take().unwrap_or_else(none));
            }
            work.segments = cut(&work.received.missing(), streams, SEGMENT);
        }
    }

    /// Works on segments until there are none, or nobody to ask.
    ///
    /// # Errors
    /// Those of the store: no other site can help.
    async fn stream_after_stream(&self, work: &Mutex<Work>) -> Result<()> {
        loop {
            let Ok(_slot) = self.slots.acquire().await else { return Ok(()) };
            let (segment, site) = {
                let mut work = lock(work);
                let Some(site) = work.sites.front().copied() else { return Ok(()) };
                let Some(segment) = work.segments.pop_front() else { return Ok(()) };
                (segment, site)
            };
            let Err(Fault { error, is_ours }) = self.stream(work, site, segment).await else { continue };
            if is_ours {
                return Err(error);
            }
            let mut work = lock(work);
            let missing = work.received.missing();
            work.segments.extend(missing.iter().filter_map(|range| range.intersect(segment)));
            // Another stream may have given it up already.
            if work.sites.front() == Some(&site) {
                tracing::warn!(%site, %error, path = %self.version.path, "a source of a copy failed; the next is asked for the rest");
                work.sites.pop_front();
                self.app.reader.avoid(site);
                work.fault = Some(error);
            }
        }
    }

    /// One request.
    async fn stream(&self, work: &Mutex<Work>, site: SiteId, segment: ByteRange) -> Result<(), Fault> {
        let member = self.app.fabric.member(site).map_err(|error| Fault::theirs(error.into()))?;
        let from = |error: percale_client::Error| {
            let error = ApiError::from(percale_federation::Error::from(error));
            Fault::theirs(error.context(format!("cannot read from site {}", member.name)))
        };
        let position = Some(self.version.position);
        let client = self.app.fabric.client_at(site, self.acting, position);
        let client = client.map_err(|error| Fault::theirs(error.into()))?;
        let item = PullItem {
            path: self.version.path.clone(),
            version: Some(self.version.version),
            space: Some(self.version.space),
            ranges: Some(vec![segment]),
        };
        let mut frames = FrameStream::open(&client, OPERATION, vec![item]).await.map_err(from)?;
        let (groups, queue) = mpsc::channel(QUEUED_GROUPS);
        let read = async {
            while let Some(frame) = frames.next().await.map_err(from)? {
                let is_wanted = match frame {
                    Frame::Data(data) => groups.send(data).await.is_ok(),
                    Frame::Fail { problem, .. } => return Err(from(parse_problem(OPERATION, &problem))),
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
        let (written, read) = tokio::join!(self.write(work, &member.name, segment, queue), read);
        written?;
        read?;
        let left = lock(work).received.missing().iter().any(|range| range.intersect(segment).is_some());
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
        work: &Mutex<Work>,
        site: &str,
        segment: ByteRange,
        mut queue: mpsc::Receiver<DataFrame>,
    ) -> Result<(), Fault> {
        while let Some(data) = queue.recv().await {
            let range = ByteRange::at(data.offset, data.bytes.len() as u64);
            if !segment.contains(range) || lock(work).received.get(data.group()).is_some() {
                let detail = format!("site {site} sent bytes that were not asked for");
                return Err(Fault::theirs(ApiError::new(ErrorCode::Integrity, detail)));
            }
            let tree = self.tree.clone();
            // 0.15 ms for a group: too long to hold up others.
            let verified = tokio::task::spawn_blocking(move || {
                let is_right = tree.verify(data.group(), &data.bytes).is_ok();
                (data, is_right)
            });
            let ended = |error| ApiError::internal("hashing did not end").with_source(error);
            let (data, is_right) = verified.await.map_err(|error| Fault::ours(ended(error)))?;
            if !is_right {
                metrics::counter!("percale_checksum_mismatches_total").increment(1);
                tracing::error!(path = %self.version.path, site, "wrong bytes from another site");
                let detail = format!("site {site} sent wrong bytes; nothing of them was kept");
                return Err(Fault::theirs(ApiError::new(ErrorCode::Integrity, detail)));
            }
            let (group, hash) = (data.group(), data.hash);
            let written = self.stage.write_at(data.offset, data.bytes).await;
            written.map_err(|error| Fault::ours(error.into()))?;
            lock(work).received.insert(group, hash);
        }
        Ok(())
    }
}

/// Why a stream ended early.
struct Fault {
    error: ApiError,
    /// Whether it is one of this site, which no other source can mend.
    is_ours: bool,
}

impl Fault {
    fn ours(error: ApiError) -> Self {
        Self { error, is_ours: true }
    }

    fn theirs(error: ApiError) -> Self {
        Self { error, is_ours: false }
    }
}
