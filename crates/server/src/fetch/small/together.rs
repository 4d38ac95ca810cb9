//! Small objects that several streams bring together: each comes over whichever stream the sender has room in.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use percale_api::uploads::PullItem;
use percale_client::Transport;
use percale_client::pull::Checks;
use percale_core::ids::{LeaseId, SiteId, VersionId};
use percale_core::{ErrorCode, Position};
use percale_mover::{Frame, Late, in_parts};
use serde::Deserialize;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::requests::LEAST;
use super::{ADMITTED, Parts, Request, STREAMS, Small};
use crate::fetch::{self, Fetch, OnEnd, cannot_read};
use crate::{ApiError, Result};

/// Objects of one space that are brought so.
pub(super) struct Together {
    /// What the streams are called.
    id: String,
    /// Where the site is to stand in the journal of the space to know all of them.
    position: Option<Position>,
    left: Mutex<Left>,
    /// Told when everything has come.
    whole: Notify,
    /// Held by each stream while it reads.
    reading: Arc<()>,
    /// Streams that have ended.
    ended: AtomicUsize,
}

#[derive(Default)]
struct Left {
    /// All that the streams may bring.
    asked: HashSet<VersionId>,
    /// What has not come yet.
    objects: HashMap<VersionId, Small>,
    /// What is asked for by itself: what came and was wrong, and versions that are among the others already, since an object may be seen
    /// at several paths.
    alone: Vec<Small>,
    /// Why a stream failed, if the site is to blame.
    fault: Option<ApiError>,
}

/// One of the streams, until it is given up.
pub(super) struct Stream<'a> {
    together: &'a Together,
    given_up: CancellationToken,
}

/// What is of interest here of a [`PulledItem`](percale_api::uploads::PulledItem).
#[derive(Deserialize)]
struct Announced {
    version: VersionId,
}

impl Together {
    /// Begins with what each stream asks for.
    fn new(parts: Vec<Vec<Small>>) -> (Vec<Vec<PullItem>>, Self) {
        let mut left = Left::default();
        let items = parts.into_iter().map(|part| {
            let mut items = Vec::with_capacity(part.len());
            for one in part {
                match left.objects.entry(one.wanted.version.version) {
                    Entry::Vacant(place) => {
                        items.push(one.item());
                        place.insert(one);
                    }
                    Entry::Occupied(_) => left.alone.push(one),
                }
            }
            items
        });
        let items = items.collect();
        left.asked = left.objects.keys().copied().collect();
        let positions = left.objects.values().map(|one| one.wanted.version.position);
        let position = positions.max_by_key(|position| (position.term, position.seq));
        let (left, id) = (Mutex::new(left), LeaseId::new().to_string());
        let (whole, reading, ended) = (Notify::new(), Arc::default(), AtomicUsize::default());
        (items, Self { id, position, left, whole, reading, ended })
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many streams read.
    fn streams(&self) -> usize {
        Arc::strong_count(&self.reading) - 1
    }

    /// Takes an object that a stream brings. Nothing if it has come over another one.
    fn take(&self, version: VersionId) -> Option<Small> {
        let mut left = self.left();
        let one = left.objects.remove(&version);
        if left.objects.is_empty() {
            self.whole.notify_one();
        }
        one
    }

    /// Returns what has not come, with its bytes.
    fn missing(&self) -> Vec<(PullItem, u64)> {
        self.left().objects.values().map(|one| (one.item(), one.size())).collect()
    }

    /// Returns what did not come, and why if the site is to blame.
    fn end(self) -> (Vec<Small>, Option<ApiError>) {
        let Left { objects, alone, fault, .. } =
            self.left.into_inner().unwrap_or_else(PoisonError::into_inner);
        (objects.into_values().chain(alone).collect(), fault)
    }
}

impl Fetch {
    /// Fetches the last objects of one site over several streams, which the site sends together. What is late is asked for over other
    /// streams as well. What has not come when all have ended is asked for by one stream alone: then it is known why.
    pub(super) async fn together(&self, site: SiteId, parts: Vec<Vec<Small>>, done: OnEnd<'_>) -> Vec<Small> {
        let Some(first) = parts.first().and_then(|part| part.first()) else { return Vec::new() };
        let store = first.wanted.store.clone();
        let (rtt, most) = (self.app.fabric.contact(site).rtt, self.flow.at_most(STREAMS));
        let (parts, together) = Together::new(parts);
        let request = |items, given_up: &CancellationToken| {
            let stream = Stream { together: &together, given_up: given_up.clone() };
            self.written(&store, Request::Together(site, items, stream), done).boxed()
        };
        let (mut asked, mut late) = (parts.len(), Late::default());
        let given_up = CancellationToken::new();
        let mut running: FuturesUnordered<_> =
            parts.into_iter().map(|items| request(items, &given_up)).collect();
        loop {
            tokio::select! {
                ended = running.next() => if ended.is_none() { break },
                // What comes now has come over another stream.
                () = together.whole.notified(), if late.was_asked_again() => given_up.cancel(),
                () = late.lull(self.flow.meter(), rtt, || together.streams()) => {
                    let (missing, reading) = (together.missing(), together.streams());
                    let bytes = missing.iter().map(|(_, bytes)| bytes).sum();
                    let are_begun = reading + together.ended.load(Relaxed) == asked;
                    if !are_begun || !late.ask_again(bytes, reading, most) {
                        continue;
                    }
                    fetch::count_late(reading);
                    tracing::debug!(%site, bytes, streams = reading, "streams have stalled; what they were to bring is asked for over others");
                    let parts = in_parts(missing, |(_, bytes)| *bytes, most - reading, LEAST);
                    asked += parts.len();
                    for part in parts {
                        running.push(request(part.into_iter().map(|(item, _)| item).collect(), &given_up));
                    }
                }
            }
        }
        drop(running);
        match together.end() {
            // All of it came over others.
            (left, Some(_)) if left.is_empty() => left,
            (left, None) => self.request(Some(site), left, done).await,
            (mut left, Some(fault)) => {
                tracing::warn!(%site, error = %fault, "a source of copies failed; the next is asked for the rest");
                self.app.reader.avoid(site);
                left.iter_mut().for_each(|one| one.blame(fault.clone()));
                left
            }
        }
    }

    /// Asks a site for objects over one of the streams that bring them together.
    pub(super) async fn pull_together(
        &self,
        site: SiteId,
        items: Vec<PullItem>,
        Stream { together, given_up }: Stream<'_>,
        arriving: &mut Parts<'_>,
    ) {
        let _reading = together.reading.clone();
        if let Err(error) = self.receive_together(site, items, together, &given_up, arriving).await {
            together.left().fault = Some(error);
        }
        together.ended.fetch_add(1, Relaxed);
    }

    /// # Errors
    /// The site cannot be asked, or broke off. What came and was wrong is no fault yet: it is asked for again.
    async fn receive_together(
        &self,
        site: SiteId,
        items: Vec<PullItem>,
        together: &Together,
        given_up: &CancellationToken,
        arriving: &mut Parts<'_>,
    ) -> Result<()> {
        let member = self.app.fabric.member(site)?;
        let from = |error: percale_client::Error| cannot_read(&member, error);
        let client = self.app.fabric.client_at(site, &self.acting, together.position)?;
        let _turn = self.flow.turn(site).await;
        let share = Some(&*together.id);
        let open = fetch::open(&self.flow, &client, items, Checks::Here, share);
        let Some(opened) = given_up.run_until_cancelled(open).await else { return Ok(()) };
        let mut stream = opened.map_err(from)?;
        let meter = self.flow.meter();
        // The version of each item that this stream has announced, in their order.
        let mut announced = Vec::new();
        let mut to_admit = 0;
        loop {
            let next = fetch::next(&self.flow, &mut stream);
            let frame = match given_up.run_until_cancelled(next).await {
                Some(Ok(Some(frame))) => frame,
                Some(Ok(None)) | None => break,
                // Whoever is on the way may be to blame.
                Some(Err(_)) if stream.transport() == Transport::IntegrityOnly => break,
                Some(Err(error)) => return Err(from(error)),
            };
            match frame {
                Frame::Item { info, .. } => {
                    announced.push(serde_json::from_slice(&info).ok().map(|Announced { version }| version));
                }
                Frame::Data(data) => {
                    let version: Option<VersionId> = announced.get(data.item as usize).copied().flatten();
                    let is_asked = |version: &VersionId| together.left().asked.contains(version);
                    let Some(version) = version.filter(is_asked) else {
                        tracing::warn!(site = member.name, "a site sent what it was not asked for");
                        break;
                    };
                    // It was late, asked for over another stream, and has come there.
                    let Some(one) = together.take(version) else { continue };
                    if data.offset != 0 || one.tree.verify_hash(0, data.found).is_err() {
                        metrics::counter!("percale_checksum_mismatches_total").increment(1);
                        let path = &one.wanted.version.path;
                        tracing::error!(%path, site = member.name, "wrong bytes from another site");
                        together.left().alone.push(one);
                        let detail = format!("site {} sent wrong bytes", member.name);
                        fetch::wrong(&mut stream, ApiError::new(ErrorCode::Integrity, detail));
                        break;
                    }
                    meter.received(data.bytes.len() as u64);
                    to_admit += data.bytes.len() as u64;
                    if to_admit >= ADMITTED {
                        self.flow.admit(std::mem::take(&mut to_admit)).await;
                    }
                    arriving.add(one, data.bytes).await;
                }
                _ => {}
            }
        }
        self.flow.admit(to_admit).await;
        Ok(())
    }
}
