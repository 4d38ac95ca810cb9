//! Small objects: asked for many at a time in a stream of frames, and handed on to be written a part at a time while more
//! arrive.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt as _, stream};
use percale_api::tasks::Verification;
use percale_api::uploads::PullItem;
use percale_catalog::OpenVersion;
use percale_client::Transport;
use percale_client::pull::{Checks, FrameStream};
use percale_core::ErrorCode;
use percale_core::ids::{SiteId, StoreId};
use percale_core::tree::{HashTree, group_count};
use percale_federation::Member;
use percale_mover::room::Taken;
use percale_mover::{Frame, Wait};
use percale_store::{SmallFile, Staged};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::flow::Flow;
use super::medium::{SmallStaged, read_small_back, verified};
use super::{Become, Brought, Fetch, OnEnd, Ready, Wanted, cannot_read, tell};
use crate::publish::{StagedContent, key_for_stage};
use crate::reading::{READS, Source, TOGETHER, in_batches};
use crate::stores::OpenStore;
use crate::{ApiError, AppState, Result};

mod requests;
mod together;

use requests::in_requests;
use together::Stream;

/// Streams of small objects at once.
const STREAMS: usize = 8;
/// Requests of a stream: while the last objects of some are written and told, which takes two round trips, the next come.
const IN_HAND: usize = 2;
/// What is written, flushed and told together: what is flushed in some tens of milliseconds.
const PART_ITEMS: usize = 256;
const PART_BYTES: u64 = 4 << 20;
/// MiB of small objects in memory at once, of a task. The parts of all streams fit in, at their largest.
pub(super) const MEMORY: u32 = 64;
/// Bytes that are counted against a limit together. The streams of a task wait for each other in turn, those of large objects
/// with a group each time: one small object each time would leave small ones nearly nothing.
const ADMITTED: u64 = 256 << 10;
const _: () =
    assert!(STREAMS as u64 * (PART_BYTES + percale_core::tree::GROUP_SIZE) <= (MEMORY as u64) << 20);

/// A small object and the sites that are still to be asked for it; nothing stands for this one.
pub(super) struct Small {
    wanted: Wanted,
    source: Arc<Source>,
    tree: HashTree,
    sites: VecDeque<Option<SiteId>>,
    fault: Option<ApiError>,
}

impl Small {
    /// Tells whether a version comes with others: it has one group.
    pub fn is_one(version: &OpenVersion) -> bool {
        version.root.is_some() && group_count(version.size) == 1
    }

    /// Makes one.
    ///
    /// # Errors
    /// It has several groups, or was not hashed.
    pub fn new(wanted: &Wanted, source: &Arc<Source>) -> Result<Self> {
        let OpenVersion { size, root, path, .. } = &wanted.version;
        let tree = root.and_then(|root| HashTree::of_single_group(*size, root).ok());
        let tree = tree.ok_or_else(|| ApiError::internal("no small object").with_path(path))?;
        let sites = source.sites().collect();
        Ok(Self { wanted: wanted.clone(), source: source.clone(), tree, sites, fault: None })
    }

    fn size(&self) -> u64 {
        self.wanted.version.size.0
    }

    /// Returns how a site is asked for it.
    fn item(&self) -> PullItem {
        let version = &self.wanted.version;
        let (space, id) = (Some(version.space), Some(version.version));
        PullItem { path: version.path.clone(), version: id, space, ranges: None }
    }

    fn blame(&mut self, error: ApiError) {
        self.fault = Some(error.with_path(&self.wanted.version.path));
    }
}

/// Small objects that have arrived, to be written together.
type Arrived = Vec<(Small, Bytes)>;

/// A part that is on its way to the store and its home.
struct Part {
    versions: Vec<OpenVersion>,
    written: JoinHandle<Result<Vec<Result<Brought>>>>,
}

impl Part {
    /// Waits for its end, and calls `done` with what became of each object.
    async fn end(self, done: OnEnd<'_>) {
        let all = |error: &ApiError| self.versions.iter().map(|_| Err(error.clone())).collect();
        let outcomes = match self.written.await {
            Ok(Ok(outcomes)) => outcomes,
            Ok(Err(error)) => all(&error),
            Err(error) => all(&ApiError::internal("a batch of copies ended early").with_source(error)),
        };
        for (version, outcome) in self.versions.iter().zip(outcomes) {
            done(version, outcome);
        }
    }
}

/// Takes what arrives of one request, and hands it on in parts.
struct Parts<'a> {
    fetch: &'a Fetch,
    source: SiteId,
    store: Arc<OpenStore>,
    arrived: Arrived,
    bytes: u64,
    taken: Taken,
    handed_on: mpsc::UnboundedSender<Part>,
}

impl Parts<'_> {
    /// Takes one in, once there is room for it.
    async fn add(&mut self, one: Small, bytes: Bytes) {
        self.bytes += bytes.len() as u64;
        self.fetch.memory.extend(&mut self.taken, self.bytes).await;
        self.arrived.push((one, bytes));
        if self.arrived.len() >= PART_ITEMS || self.bytes >= PART_BYTES {
            self.hand_on();
        }
    }

    /// Has what is there written and told, whatever becomes of the task meanwhile.
    fn hand_on(&mut self) {
        let (arrived, taken) = (std::mem::take(&mut self.arrived), std::mem::take(&mut self.taken));
        self.bytes = 0;
        if arrived.is_empty() {
            return;
        }
        let versions = arrived.iter().map(|(one, _)| one.wanted.version.clone()).collect();
        let Fetch { app, goal, flow, verify, .. } = self.fetch;
        let (app, goal, flow, verify) = (app.clone(), goal.clone(), flow.clone(), *verify);
        let (store, source) = (self.store.clone(), self.source);
        let written = self.fetch.app.background.spawn(async move {
            let _taken = taken;
            write(&app, &goal, &flow, &store, (source, verify), arrived).await
        });
        // Nobody listens any more if the task was stopped.
        drop(self.handed_on.send(Part { versions, written }));
    }
}

/// What one stream asks for.
enum Request<'a> {
    /// Objects that are read from own stores.
    Own(Vec<Small>),
    /// Objects of a site that come over this stream.
    Alone(SiteId, Vec<Small>),
    /// Objects of a site that may come over any of several streams.
    Together(SiteId, Vec<PullItem>, Stream<'a>),
}

impl Fetch {
    /// Asks for small objects, in rounds: what one source did not give, the next is asked for.
    pub(super) async fn small(&self, mut left: Vec<Small>, done: OnEnd<'_>) {
        let most = self.flow.at_most(STREAMS);
        if !left.is_empty() {
            self.flow.note_batches(most);
        }
        while !left.is_empty() {
            let mut by_source: BTreeMap<(Option<SiteId>, StoreId), Vec<Small>> = BTreeMap::new();
            for mut one in left.drain(..) {
                match one.sites.pop_front() {
                    Some(site) => by_source.entry((site, one.wanted.store.row.id)).or_default().push(one),
                    None => {
                        let none = || ApiError::internal("a version without copies was fetched");
                        done(&one.wanted.version, Err(one.fault.unwrap_or_else(none)));
                    }
                }
            }
            let mut requests: Vec<BoxFuture<'_, Vec<Small>>> = Vec::new();
            for ((site, _), all) in by_source {
                let (alone, together) = match site {
                    Some(_) => in_requests(all, Small::size, most, &self.requests),
                    None => (in_batches(all, Small::size, || (PART_ITEMS, PART_BYTES)), Vec::new()),
                };
                requests.extend(alone.into_iter().map(|request| self.request(site, request, done).boxed()));
                if let (Some(site), false) = (site, together.is_empty()) {
                    requests.push(self.together(site, together, done).boxed());
                }
            }
            let mut ended = stream::iter(requests).buffer_unordered(IN_HAND * most);
            while let Some(missing) = ended.next().await {
                left.extend(missing);
            }
        }
    }

    /// Fetches objects from one source, and writes them. Returns what it did not give.
    async fn request(&self, site: Option<SiteId>, wanted: Vec<Small>, done: OnEnd<'_>) -> Vec<Small> {
        let Some(first) = wanted.first() else { return wanted };
        let store = first.wanted.store.clone();
        let request = match site {
            Some(site) => Request::Alone(site, wanted),
            None => Request::Own(wanted),
        };
        self.written(&store, request, done).await
    }

    /// Fetches the objects of a request once it has its turn, and writes them while they come.
    async fn written(&self, store: &Arc<OpenStore>, request: Request<'_>, done: OnEnd<'_>) -> Vec<Small> {
        let (handed_on, mut parts) = mpsc::unbounded_channel();
        let source = match &request {
            Request::Own(_) => self.app.site.id,
            Request::Alone(site, _) | Request::Together(site, ..) => *site,
        };
        let mut arriving = Parts {
            fetch: self,
            source,
            store: store.clone(),
            arrived: Vec::new(),
            bytes: 0,
            taken: Taken::default(),
            handed_on,
        };
        let pull = self.pulls.take(self.flow.at_most(STREAMS)).await;
        let _open = self.flow.meter().stream();
        let fetched = async {
            let missing = match request {
                Request::Own(wanted) => self.read(wanted, &mut arriving).await,
                Request::Alone(site, wanted) => self.pull(site, wanted, &mut arriving).await,
                Request::Together(site, items, stream) => {
                    self.pull_together(site, items, stream, &mut arriving).await;
                    Vec::new()
                }
            };
            arriving.hand_on();
            drop((arriving, pull));
            missing
        };
        let written = async {
            while let Some(part) = parts.recv().await {
                part.end(done).await;
            }
        };
        tokio::join!(fetched, written).0
    }

    /// Reads small objects from own stores. What cannot be read is asked for at the next site.
    async fn read(&self, wanted: Vec<Small>, arriving: &mut Parts<'_>) -> Vec<Small> {
        arriving.taken = self.memory.take(wanted.iter().map(Small::size).sum()).await;
        let together = in_batches(wanted, Small::size, || TOGETHER).into_iter().map(async |some| {
            let sources: Vec<_> = some.iter().map(|one| one.source.clone()).collect();
            let read = self.app.reader.read_small(&sources, true).await;
            some.into_iter().zip(read).collect::<Vec<_>>()
        });
        let reads = stream::iter(together).buffered(READS).collect::<Vec<_>>();
        let mut missing = Vec::new();
        for (mut one, bytes) in self.flow.meter().waiting(Wait::OwnDisk, reads).await.into_iter().flatten() {
            match bytes {
                Ok(bytes) => {
                    self.flow.meter().received(bytes.len() as u64);
                    arriving.add(one, bytes).await;
                }
                Err(error) => {
                    one.blame(error);
                    missing.push(one);
                }
            }
        }
        missing
    }

    /// Asks a site for small objects in one stream. Returns those that the next site is asked for.
    async fn pull(&self, site: SiteId, wanted: Vec<Small>, arriving: &mut Parts<'_>) -> Vec<Small> {
        let wanted = wanted.into_iter().map(Some).collect();
        let mut asked = Asked { wanted, refused: BTreeMap::new(), is_doubted: false };
        let fault = self.receive(site, &mut asked, arriving).await.err();
        if let Some(error) = &fault {
            tracing::warn!(%site, %error, "a source of copies failed; the next is asked for the rest");
            self.app.reader.avoid(site);
        }
        let mut missing = Vec::new();
        for (at, one) in asked.wanted.into_iter().enumerate() {
            let Some(mut one) = one else { continue };
            let silent = || ApiError::internal("the site did not send it");
            one.blame(asked.refused.remove(&at).or_else(|| fault.clone()).unwrap_or_else(silent));
            missing.push(one);
        }
        missing
    }

    async fn receive(&self, site: SiteId, asked: &mut Asked, arriving: &mut Parts<'_>) -> Result<()> {
        let member = self.app.fabric.member(site)?;
        let from = |error: percale_client::Error| cannot_read(&member, error);
        let position = asked.wanted.iter().flatten().next().map(|one| one.wanted.version.position);
        let client = self.app.fabric.client_at(site, &self.acting, position)?;
        let _turn = self.flow.turn(site).await;
        let open = |items, checks| super::open(&self.flow, &client, items, checks, None);
        let mut stream = open(asked.items(), Checks::Here).await.map_err(from)?;
        match self.take(&mut stream, &member, asked, arriving).await {
            // It came without encryption, and whoever is on the way may be to blame; or the site had not compared it. It is asked
            // again, over TLS, and to compare what it sends.
            Err(_) if asked.is_doubted || stream.transport() == Transport::IntegrityOnly => {
                asked.forget_what_came();
                let mut stream = open(asked.items(), Checks::There).await.map_err(from)?;
                self.take(&mut stream, &member, asked, arriving).await
            }
            taken => taken,
        }
    }

    /// Takes what a stream brings of what was asked for.
    async fn take(
        &self,
        stream: &mut FrameStream,
        member: &Member,
        asked: &mut Asked,
        arriving: &mut Parts<'_>,
    ) -> Result<()> {
        let meter = self.flow.meter();
        let from = |error: percale_client::Error| cannot_read(member, error);
        let mut to_admit = 0;
        while let Some(frame) = super::next(&self.flow, stream).await.map_err(from)? {
            match frame {
                Frame::Data(data) => {
                    let wanted = asked.wanted.get_mut(data.item as usize);
                    let Some((place, one)) = wanted.and_then(|place| place.take().map(|one| (place, one)))
                    else {
                        let detail = format!("site {} sent what was not asked for", member.name);
                        return Err(super::wrong(stream, ApiError::new(ErrorCode::Integrity, detail)));
                    };
                    let is_right = data.offset == 0 && one.tree.verify_hash(0, data.found).is_ok();
                    if !is_right {
                        // The sender is broken or lies: nothing more of this stream is used.
                        metrics::counter!("percale_checksum_mismatches_total").increment(1);
                        let path = &one.wanted.version.path;
                        tracing::error!(%path, site = member.name, "wrong bytes from another site");
                        *place = Some(one);
                        asked.is_doubted = true;
                        let detail =
                            format!("site {} sent wrong bytes; nothing of them was kept", member.name);
                        return Err(super::wrong(stream, ApiError::new(ErrorCode::Integrity, detail)));
                    }
                    meter.received(data.bytes.len() as u64);
                    to_admit += data.bytes.len() as u64;
                    if to_admit >= ADMITTED {
                        self.flow.admit(std::mem::take(&mut to_admit)).await;
                    }
                    arriving.add(one, data.bytes).await;
                }
                Frame::Fail { item, problem } => {
                    drop(asked.refused.insert(item as usize, from(stream.refused(&problem))));
                }
                _ => {}
            }
        }
        self.flow.admit(to_admit).await;
        Ok(())
    }
}

/// What a stream was asked for.
struct Asked {
    /// By number. Nothing where it has come.
    wanted: Vec<Option<Small>>,
    /// Why not, as the site says.
    refused: BTreeMap<usize, ApiError>,
    /// Whether something came that was wrong.
    is_doubted: bool,
}

impl Asked {
    fn items(&self) -> Vec<PullItem> {
        self.wanted.iter().flatten().map(Small::item).collect()
    }

    /// Numbers what is still wanted anew, for another stream.
    fn forget_what_came(&mut self) {
        self.wanted.retain(Option::is_some);
        self.refused.clear();
    }
}

/// Stages small objects together and makes what they are to be of them.
async fn write(
    app: &AppState,
    goal: &Become,
    flow: &Flow,
    store: &Arc<OpenStore>,
    (source, verify): (SiteId, Verification),
    fetched: Arrived,
) -> Result<Vec<Result<Brought>>> {
    let mut files = Vec::with_capacity(fetched.len());
    for (_, bytes) in &fetched {
        let token = app.lease.token()?;
        files.push(SmallFile { key: key_for_stage(store, &token)?, token, bytes: bytes.clone() });
    }
    let staged = flow.meter().waiting(Wait::Disk, store.store.stage_small(files)).await?;
    let staged: Vec<Result<Staged>> = match verify {
        Verification::Frames => staged.into_iter().map(|staged| staged.map_err(ApiError::from)).collect(),
        Verification::Medium => read_back(app, store, flow, &fetched, staged).await,
    };
    let mut outcomes: Vec<Option<Result<Brought>>> = Vec::with_capacity(fetched.len());
    let mut copies = Vec::with_capacity(fetched.len());
    for ((Small { wanted, tree, .. }, _), staged) in fetched.into_iter().zip(staged) {
        let (OpenVersion { path, version, .. }, object) = (wanted.version, wanted.object);
        outcomes.push(match staged {
            Ok(staged) => {
                let content = StagedContent { store: store.clone(), staged, tree };
                let (sources, verified) = (vec![source], verified(verify));
                copies.push(Ready { path, version, object, content, sources, verified });
                None
            }
            Err(error) => Some(Err(error.with_path(&path))),
        });
    }
    flow.meter().ended(copies.len() as u64);
    let mut told = flow.meter().waiting(Wait::Catalog, tell(app, goal, copies)).await?.into_iter();
    let lost = || Err(ApiError::internal("a copy ended without a result"));
    Ok(outcomes.into_iter().map(|outcome| outcome.or_else(|| told.next()).unwrap_or_else(lost)).collect())
}

/// Reads small files back, of those that were staged.
async fn read_back(
    app: &AppState,
    store: &OpenStore,
    flow: &Flow,
    fetched: &[(Small, Bytes)],
    staged: Vec<percale_store::Result<Staged>>,
) -> Vec<Result<Staged>> {
    let mut outcomes: Vec<Option<Result<Staged>>> = Vec::with_capacity(staged.len());
    let mut files = Vec::with_capacity(staged.len());
    for ((small, bytes), staged) in fetched.iter().zip(staged) {
        outcomes.push(match staged {
            Ok(staged) => {
                let path = &small.wanted.version.path;
                files.push(SmallStaged { staged, bytes: bytes.clone(), tree: &small.tree, path });
                None
            }
            Err(error) => Some(Err(error.into())),
        });
    }
    let mut back = read_small_back(app, store, flow.meter(), files).await.into_iter();
    let lost = || Err(ApiError::internal("a copy was read back without a result"));
    outcomes.into_iter().map(|outcome| outcome.or_else(|| back.next()).unwrap_or_else(lost)).collect()
}
