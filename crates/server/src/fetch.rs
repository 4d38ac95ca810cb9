//! Brings the bytes of versions to own stores, from wherever good copies are (`docs/design/federation.md`, "Tasks across
//! sites"): as further copies of these versions, or as other objects.
//!
//! Small objects of one source come many in a stream of frames, large ones alone, group by group. Nothing is kept that does
//! not have the version's root; where a source fails, lies or has not what it should, the next one is asked. What a task has
//! brought of a large object stays for its next attempt ([`kept`]).

mod flow;
mod kept;
mod large;
mod medium;
mod whole;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt as _, stream};
use percale_api::tasks::Verification;
use percale_api::uploads::PullItem;
use percale_catalog::{Committed, OpenVersion, Space, TaskCopy, Verified};
use percale_client::pull::{FrameStream, parse_problem};
use percale_client::{Client, Transport};
use percale_core::ids::{SiteId, StoreId, VersionId};
use percale_core::tree::{HashTree, group_count};
use percale_core::{ByteRange, ErrorCode, ObjectPath, Timestamp};
use percale_federation::{Acting, Member};
use percale_mover::meter::InHand;
use percale_mover::tuning::next_request;
use percale_mover::{Frame, Room, Slots, Wait};
use percale_store::{SmallFile, Staged};

pub use self::flow::Flow;
pub use self::kept::{ForTask, Unfinished, is_of_task};
use self::large::Failing;
pub(crate) use self::medium::may_verify;
use self::medium::{SmallStaged, read_small_back, verified};
use crate::abroad::Copied;
use crate::publish::{MAX_BATCH, NewObject, StagedContent, key_for_stage};
use crate::reading::{Reach, Reader, Source};
use crate::stores::OpenStore;
use crate::{ApiError, AppState, Result};

/// Bytes of small objects in one stream: what is flushed at once in some tens of milliseconds.
const BATCH_BYTES: u64 = 4 << 20;
/// Streams of small objects at once.
const BATCHES: usize = 8;
/// Batches of a stream: while some are written and told, which takes two round trips, the next arrive.
const BATCHES_IN_HAND: usize = 2;
/// MiB of small objects in memory at once, of a task.
const MEMORY: u32 = 64;
/// Large objects at once.
const LARGE: usize = 4;
/// Small objects that are read at once from own stores.
const READS: usize = 16;
/// What a source is asked for; completes "cannot …".
const OPERATION: &str = "fetch copies from another site";

/// A version that is wanted on an own store.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The version, with its copies. Those of its copies that must not be read are left out.
    pub version: OpenVersion,
    /// Where the copy goes.
    pub store: Arc<OpenStore>,
}

/// What was brought.
#[derive(Debug, Clone)]
pub struct Brought {
    /// Whether it has a name.
    pub copied: Copied,
    /// What it is, as a receipt lists it.
    pub copy: TaskCopy,
}

/// Is called with what became of a copy.
pub type OnEnd<'a> = &'a (dyn Fn(&OpenVersion, Result<Brought>) + Sync);

/// Bytes that are staged, and whose they are.
struct Ready {
    path: ObjectPath,
    version: VersionId,
    content: StagedContent,
    /// The sites that gave them.
    sources: Vec<SiteId>,
    verified: Verified,
}

/// The sites that have given bytes of an object.
#[derive(Debug, Default)]
struct Givers(Mutex<BTreeSet<SiteId>>);

impl Givers {
    fn note(&self, site: SiteId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(site);
    }

    fn sites(&self) -> Vec<SiteId> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

/// What the bytes become.
#[derive(Debug)]
pub enum Become {
    /// Further copies of the versions, in this space.
    Copies(Space),
    /// Objects of their own, by the version that each has the content of. All versions are of one space.
    Objects(HashMap<VersionId, NewObject>),
}

/// Brings the bytes of versions of one space.
pub struct Fetch {
    app: AppState,
    goal: Arc<Become>,
    acting: Acting,
    first: Option<SiteId>,
    flow: Flow,
    /// How many streams large objects take, all together.
    slots: Slots,
    /// How many streams small objects take, all together, and what of them is in memory.
    pulls: Slots,
    memory: Room,
    /// Requests for small objects up to now.
    requests: AtomicUsize,
    /// What the streams of all large objects know of the sites that they ask.
    failing: Failing,
    /// The task that goes on with what was brought of large objects, if an attempt ends early.
    task: Option<ForTask>,
    /// How copies are verified.
    verify: Verification,
}

/// A small object and the sites that are still to be asked for it; nothing stands for this one.
struct Small {
    wanted: Wanted,
    source: Arc<Source>,
    tree: HashTree,
    sites: VecDeque<Option<SiteId>>,
    fault: Option<ApiError>,
}

impl Fetch {
    /// Makes one. `acting` is for whom other sites are asked, `first` the site that is asked before others, `flow` what the
    /// bytes keep to.
    pub fn new(app: AppState, goal: Become, acting: Acting, first: Option<SiteId>, flow: Flow) -> Self {
        let (slots, pulls, memory) = (Slots::default(), Slots::default(), Room::new(MEMORY));
        let (failing, verify) = (Failing::default(), Verification::default());
        let (goal, requests) = (Arc::new(goal), AtomicUsize::new(0));
        Self { app, goal, acting, first, flow, slots, pulls, memory, requests, failing, task: None, verify }
    }

    /// Keeps what was brought of large objects for the next attempt of a task, where an attempt ends early.
    #[must_use]
    pub fn for_task(mut self, task: ForTask) -> Self {
        self.task = Some(task);
        self
    }

    /// Verifies copies in another way than by frames alone.
    #[must_use]
    pub fn verifying(mut self, how: Verification) -> Self {
        self.verify = how;
        self
    }

    /// Brings bytes, several at once, and calls `done` with what became of each. Called again before it has ended, it begins
    /// with these while the last of those are written and told.
    ///
    /// - A copy is told to its home before `done` hears of it. Where the home did not answer, the copy stays and is told
    ///   later, and `done` gets the error. An object is removed in that case.
    ///
    /// # Cancellation
    /// What was staged is removed, unless a task goes on with it; what has arrived whole is written and told.
    pub fn all<'a>(&'a self, wanted: Vec<Wanted>, done: OnEnd<'a>) -> BoxFuture<'a, ()> {
        self.bring(wanted, done).boxed()
    }

    async fn bring(&self, wanted: Vec<Wanted>, done: OnEnd<'_>) {
        let (mut small, mut large) = (Vec::new(), Vec::new());
        for wanted in wanted {
            if let Err(error) = may_verify(&wanted.store, self.verify) {
                done(&wanted.version, Err(error.with_path(&wanted.version.path)));
                continue;
            }
            match self.source(&wanted.version).await.map(Arc::new) {
                Ok(source) => match as_small(&wanted, &source) {
                    Some(one) => small.push(one),
                    None => large.push((wanted, source)),
                },
                Err(error) => done(&wanted.version, Err(error)),
            }
        }
        let large: Vec<BoxFuture<'_, ()>> =
            large.into_iter().map(|(wanted, source)| self.large(wanted, source, done).boxed()).collect();
        let large = stream::iter(large).buffer_unordered(LARGE).collect::<Vec<()>>();
        tokio::join!(self.small(small, done), large);
    }

    async fn source(&self, version: &OpenVersion) -> Result<Source> {
        if version.root.is_none() && matches!(*self.goal, Become::Copies(_)) {
            let detail = "nobody has hashed this version yet; a deep check at the site that has it does";
            return Err(ApiError::new(ErrorCode::Unsupported, detail).with_path(&version.path));
        }
        let reach = Reach::Fabric(self.acting.clone());
        let mut source = self.app.reader.source(version.clone(), &reach).await?;
        if let Some(first) = self.first {
            source.prefer(first);
        }
        Ok(source)
    }

    /// Asks for small objects, in rounds: what one source did not give, the next is asked for.
    async fn small(&self, mut left: Vec<Small>, done: OnEnd<'_>) {
        let most = self.flow.at_most(BATCHES);
        if !left.is_empty() {
            self.flow.note_batches(most);
        }
        while !left.is_empty() {
            let mut groups: BTreeMap<(Option<SiteId>, StoreId), Vec<Small>> = BTreeMap::new();
            for mut one in left.drain(..) {
                match one.sites.pop_front() {
                    Some(site) => groups.entry((site, one.wanted.store.row.id)).or_default().push(one),
                    None => {
                        let none = || ApiError::internal("a version without copies was fetched");
                        done(&one.wanted.version, Err(one.fault.unwrap_or_else(none)));
                    }
                }
            }
            let batches = groups.into_iter().flat_map(|((site, _), group)| {
                in_batches(group, &self.requests).into_iter().map(move |batch| (site, batch))
            });
            let batches: Vec<BoxFuture<'_, Vec<Small>>> =
                batches.map(|(site, batch)| self.batch(site, batch, done).boxed()).collect();
            let mut ended = stream::iter(batches).buffer_unordered(BATCHES_IN_HAND * most);
            while let Some(missing) = ended.next().await {
                left.extend(missing);
            }
        }
    }

    /// Fetches and writes one batch from one source. Returns what it did not give.
    async fn batch(&self, site: Option<SiteId>, batch: Vec<Small>, done: OnEnd<'_>) -> Vec<Small> {
        let bytes: u64 = batch.iter().map(|one| one.wanted.version.size.0).sum();
        let _memory = self.memory.take(bytes).await;
        let pull = self.pulls.take(self.flow.at_most(BATCHES)).await;
        let _open = self.flow.meter().stream();
        let (fetched, missing) = match site {
            Some(site) => self.pull(site, batch).await,
            None => self.read(batch).await,
        };
        drop(pull);
        let Some((first, _)) = fetched.first() else { return missing };
        let store = first.wanted.store.clone();
        let versions: Vec<OpenVersion> = fetched.iter().map(|(one, _)| one.wanted.version.clone()).collect();
        let (app, goal, flow) = (self.app.clone(), self.goal.clone(), self.flow.clone());
        // What has arrived is written and told, whatever becomes of the task meanwhile.
        let (source, verify) = (site.unwrap_or(app.site.id), self.verify);
        let written = self
            .app
            .background
            .spawn(async move { write_small(&app, &goal, &flow, &store, (source, verify), fetched).await });
        let outcomes = match written.await {
            Ok(Ok(outcomes)) => outcomes,
            Ok(Err(error)) => versions.iter().map(|_| Err(error.clone())).collect(),
            Err(error) => {
                let error = ApiError::internal("a batch of copies ended early").with_source(error);
                versions.iter().map(|_| Err(error.clone())).collect()
            }
        };
        for (version, outcome) in versions.iter().zip(outcomes) {
            done(version, outcome);
        }
        missing
    }

    /// Reads small objects from own stores. What cannot be read is asked for at the next site.
    async fn read(&self, batch: Vec<Small>) -> (Vec<(Small, Bytes)>, Vec<Small>) {
        let reads = batch.into_iter().map(|one| {
            let reader = &self.app.reader;
            async move {
                let bytes = read_small(reader, &one.source).await;
                (one, bytes)
            }
        });
        let reads: Vec<BoxFuture<'_, (Small, Result<Bytes>)>> = reads.map(FutureExt::boxed).collect();
        let (mut fetched, mut missing) = (Vec::new(), Vec::new());
        let reads = stream::iter(reads).buffered(READS).collect::<Vec<_>>();
        for (mut one, bytes) in self.flow.meter().waiting(Wait::OwnDisk, reads).await {
            match bytes {
                Ok(bytes) => {
                    self.flow.meter().received(bytes.len() as u64);
                    fetched.push((one, bytes));
                }
                Err(error) => {
                    one.fault = Some(error.with_path(&one.wanted.version.path));
                    missing.push(one);
                }
            }
        }
        (fetched, missing)
    }

    /// Asks a site for small objects in one stream. Returns those that came, and those that the next site is asked for.
    async fn pull(&self, site: SiteId, batch: Vec<Small>) -> (Vec<(Small, Bytes)>, Vec<Small>) {
        let mut came: Vec<Option<Bytes>> = batch.iter().map(|_| None).collect();
        let mut refused: BTreeMap<usize, ApiError> = BTreeMap::new();
        let fault = self.receive(site, &batch, &mut came, &mut refused).await.err();
        if let Some(error) = &fault {
            tracing::warn!(%site, %error, "a source of copies failed; the next is asked for the rest");
            self.app.reader.avoid(site);
        }
        let (mut fetched, mut missing) = (Vec::new(), Vec::new());
        for (at, (mut one, bytes)) in batch.into_iter().zip(came).enumerate() {
            match bytes {
                Some(bytes) => fetched.push((one, bytes)),
                None => {
                    let silent = || ApiError::internal("the site did not send it");
                    let error = refused.remove(&at).or_else(|| fault.clone()).unwrap_or_else(silent);
                    one.fault = Some(error.with_path(&one.wanted.version.path));
                    missing.push(one);
                }
            }
        }
        (fetched, missing)
    }

    async fn receive(
        &self,
        site: SiteId,
        batch: &[Small],
        came: &mut [Option<Bytes>],
        refused: &mut BTreeMap<usize, ApiError>,
    ) -> Result<()> {
        let member = self.app.fabric.member(site)?;
        let from = |error: percale_client::Error| cannot_read(&member, error);
        let position = batch.first().map(|one| one.wanted.version.position);
        let client = self.app.fabric.client_at(site, &self.acting, position)?;
        let items = batch.iter().map(|one| {
            let version = &one.wanted.version;
            let (space, id) = (Some(version.space), Some(version.version));
            PullItem { path: version.path.clone(), version: id, space, ranges: None }
        });
        let _turn = self.flow.turn(site).await;
        let items: Vec<PullItem> = items.collect();
        let mut stream = open(&self.flow, &client, items.clone()).await.map_err(from)?;
        match self.take(&mut stream, &member, batch, came, refused).await {
            // It came without encryption, and whoever is on the way may be to blame. The site is asked again, over TLS.
            Err(_) if stream.transport() == Transport::IntegrityOnly => {
                let mut stream = open(&self.flow, &client, items).await.map_err(from)?;
                self.take(&mut stream, &member, batch, came, refused).await
            }
            taken => taken,
        }
    }

    /// Takes what a stream brings of a batch.
    async fn take(
        &self,
        stream: &mut FrameStream,
        member: &Member,
        batch: &[Small],
        came: &mut [Option<Bytes>],
        refused: &mut BTreeMap<usize, ApiError>,
    ) -> Result<()> {
        let meter = self.flow.meter();
        let from = |error: percale_client::Error| cannot_read(member, error);
        while let Some(frame) = next(&self.flow, stream).await.map_err(from)? {
            match frame {
                Frame::Data(data) => {
                    let at = data.item as usize;
                    let (Some(one), Some(place)) = (batch.get(at), came.get_mut(at)) else {
                        let detail = format!("site {} sent what was not asked for", member.name);
                        return Err(wrong(stream, ApiError::new(ErrorCode::Integrity, detail)));
                    };
                    let verify = || data.offset == 0 && one.tree.verify(0, &data.bytes).is_ok();
                    let is_right = meter.working(Wait::Verify, verify);
                    if !is_right {
                        // The sender is broken or lies: nothing more of this stream is used.
                        metrics::counter!("percale_checksum_mismatches_total").increment(1);
                        let path = &one.wanted.version.path;
                        tracing::error!(%path, site = member.name, "wrong bytes from another site");
                        let detail =
                            format!("site {} sent wrong bytes; nothing of them was kept", member.name);
                        return Err(wrong(stream, ApiError::new(ErrorCode::Integrity, detail)));
                    }
                    meter.received(data.bytes.len() as u64);
                    self.flow.admit(data.bytes.len() as u64).await;
                    *place = Some(data.bytes);
                }
                Frame::Fail { item, problem } => {
                    drop(refused.insert(item as usize, from(parse_problem(OPERATION, &problem))));
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn large(&self, wanted: Wanted, source: Arc<Source>, done: OnEnd<'_>) {
        let in_hand = self.flow.meter().in_hand();
        let outcome = self.large_one(&wanted, source, &in_hand).await;
        if outcome.is_ok() {
            self.flow.meter().ended(1);
        }
        drop(in_hand);
        done(&wanted.version, outcome);
    }

    /// Brings one object. What has arrived of it is told, whatever becomes of the task meanwhile.
    async fn large_one(&self, wanted: &Wanted, source: Arc<Source>, in_hand: &InHand<'_>) -> Result<Brought> {
        let path = &wanted.version.path;
        let givers = Givers::default();
        let staged = self.stage(wanted, source, in_hand, &givers).await;
        let (content, kept) = staged.map_err(|error| error.with_path(path))?;
        let (sources, verified) = (givers.sites(), verified(self.verify));
        let version = wanted.version.version;
        let copies = vec![Ready { path: path.clone(), version, content, sources, verified }];
        let (app, goal) = (self.app.clone(), self.goal.clone());
        let told = self.app.background.spawn(async move {
            let outcome = match tell(&app, &goal, copies).await {
                Ok(mut outcomes) => {
                    let lost = || Err(ApiError::internal("a copy ended without a result"));
                    outcomes.pop().unwrap_or_else(lost)
                }
                Err(error) => Err(error),
            };
            if let Some(kept) = kept {
                kept.told(outcome.as_ref().err()).await;
            }
            outcome
        });
        let _open = self.flow.meter().stream();
        let told = self.flow.meter().waiting(Wait::Catalog, told).await;
        told.map_err(|error| ApiError::internal("a copy ended early").with_source(error))?
    }
}

/// Asks a site for frames, which come over TLS, or without encryption where both sites have agreed on that.
async fn open(
    flow: &Flow,
    client: &Client,
    items: Vec<PullItem>,
) -> Result<FrameStream, percale_client::Error> {
    let opened = flow.meter().waiting(Wait::Bytes, FrameStream::open_bulk(client, OPERATION, items)).await;
    let stream = opened?;
    flow.note_transport(stream.transport());
    Ok(stream)
}

/// Returns the next frame of a stream.
async fn next(flow: &Flow, stream: &mut FrameStream) -> Result<Option<Frame>, percale_client::Error> {
    let next = flow.meter().waiting(Wait::Bytes, stream.next()).await;
    next.inspect_err(|_| count_altered(stream))
}

/// Judges wrong bytes of a stream, or bytes that nobody asked for. Those of one without encryption may be another's doing: they
/// are asked for again, over TLS, before the site is given up.
fn wrong(stream: &mut FrameStream, error: ApiError) -> ApiError {
    if !stream.distrust(error.detail()) {
        return error;
    }
    count_altered(stream);
    let detail = format!("{}; it came without encryption, and is asked for over TLS", error.detail());
    ApiError::new(ErrorCode::SiteUnavailable, detail)
}

fn count_altered(stream: &FrameStream) {
    if stream.is_altered() {
        metrics::counter!("percale_altered_streams_total").increment(1);
    }
}

fn cannot_read(member: &Member, error: percale_client::Error) -> ApiError {
    let error = ApiError::from(percale_federation::Error::from(error));
    error.context(format!("cannot read from site {}", member.name))
}

/// Tells whether an object comes with others: it has one group.
fn as_small(wanted: &Wanted, source: &Arc<Source>) -> Option<Small> {
    let version = &wanted.version;
    let root = version.root.filter(|_| group_count(version.size) == 1)?;
    let tree = HashTree::of_single_group(version.size, root).ok()?;
    let sites = source.sites().collect();
    Some(Small { wanted: wanted.clone(), source: source.clone(), tree, sites, fault: None })
}

/// Reads a whole version of one group, verified.
async fn read_small(reader: &Arc<Reader>, source: &Arc<Source>) -> Result<Bytes> {
    let mut read = reader.read(source.clone(), ByteRange::whole(source.version.size)).await?;
    Ok(read.next().await?.unwrap_or_default())
}

/// Cuts small objects into batches that fit into memory, small ones first. `requests` counts them.
fn in_batches(group: Vec<Small>, requests: &AtomicUsize) -> Vec<Vec<Small>> {
    let mut batches: Vec<Vec<Small>> = Vec::new();
    let (mut bytes, mut most) = (0, 0);
    for one in group {
        let size = one.wanted.version.size.0;
        match batches.last_mut() {
            Some(batch) if batch.len() < most && bytes + size <= BATCH_BYTES => {
                bytes += size;
                batch.push(one);
            }
            _ => {
                bytes = size;
                most = next_request(requests.fetch_add(1, Relaxed), BATCHES, MAX_BATCH);
                batches.push(vec![one]);
            }
        }
    }
    batches
}

/// Stages small objects together and makes what they are to be of them.
async fn write_small(
    app: &AppState,
    goal: &Become,
    flow: &Flow,
    store: &Arc<OpenStore>,
    (source, verify): (SiteId, Verification),
    fetched: Vec<(Small, Bytes)>,
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
        let OpenVersion { path, version, .. } = wanted.version;
        outcomes.push(match staged {
            Ok(staged) => {
                let content = StagedContent { store: store.clone(), staged, tree };
                let (sources, verified) = (vec![source], verified(verify));
                copies.push(Ready { path, version, content, sources, verified });
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

async fn tell(app: &AppState, goal: &Become, copies: Vec<Ready>) -> Result<Vec<Result<Brought>>> {
    let mut told = Vec::with_capacity(copies.len());
    let mut contents = Vec::with_capacity(copies.len());
    for Ready { path, version, content, sources, verified } in copies {
        let (size, root) = (content.tree.size().0, content.tree.root());
        let store = Some(content.store.row.name.to_string());
        contents.push((path.clone(), version, content));
        told.push(TaskCopy { path, version, size, root, sources, store, verified, at_us: 0 });
    }
    let paths: Vec<ObjectPath> = contents.iter().map(|(path, ..)| path.clone()).collect();
    let outcomes: Vec<Result<(Copied, Option<Committed>)>> = match goal {
        Become::Copies(space) => {
            let copied = app.abroad.copies(app.lease.current()?, space, contents).await;
            copied.into_iter().map(|copied| copied.map(|copied| (copied, None))).collect()
        }
        Become::Objects(objects) => {
            let mut items = Vec::with_capacity(contents.len());
            for (_, version, content) in contents {
                let object = objects.get(&version).cloned();
                let unknown = || ApiError::internal("a version was fetched that is to become nothing");
                items.push((object.ok_or_else(unknown)?, content));
            }
            let published = app.publisher.publish_many(items).await;
            published
                .into_iter()
                .map(|done| done.map(|done| (Copied::At(done.position), Some(done))))
                .collect()
        }
    };
    let at_us = Timestamp::now().as_micros();
    let brought = told.into_iter().zip(outcomes).zip(&paths).map(|((mut copy, outcome), path)| {
        let (copied, made) = outcome.map_err(|error| error.with_path(path))?;
        copy.at_us = at_us;
        if let Some(made) = made {
            (copy.path, copy.version) = (made.path, made.version);
        }
        Ok(Brought { copied, copy })
    });
    Ok(brought.collect())
}
