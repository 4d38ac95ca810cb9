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
mod small;
mod whole;

use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use percale_api::tasks::Verification;
use percale_api::uploads::PullItem;
use percale_catalog::{Committed, OpenVersion, Space, TaskCopy, Verified};
use percale_client::Client;
use percale_client::pull::{Checks, FrameStream};
use percale_core::ids::{SiteId, VersionId};
use percale_core::{ErrorCode, ObjectPath, Timestamp};
use percale_federation::{Acting, Member};
use percale_mover::meter::InHand;
use percale_mover::{Frame, Room, Slots, Wait};

pub use self::flow::Flow;
pub use self::kept::{ForTask, Unfinished, is_of_task};
use self::large::Failing;
pub(crate) use self::medium::may_verify;
use self::medium::verified;
use self::small::Small;
use crate::abroad::Copied;
use crate::publish::{NewObject, StagedContent};
use crate::reading::{Reach, Source};
use crate::stores::OpenStore;
use crate::{ApiError, AppState, Result};

/// Large objects in hand at once. Their streams are shared, so this is not what the line or the memory bounds: each has to be asked for its
/// tree, flushed, and told to its home, which takes some round trips, during which others come.
const LARGE: usize = 32;
/// The same for a store that takes bytes in order: of each it has some parts in memory, and one that waits too long is begun anew.
const LARGE_IN_ORDER: usize = 4;
/// What a source is asked for; completes "cannot …".
const OPERATION: &str = "fetch copies from another site";

/// A version that is wanted on an own store.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The version, with its copies. Those of its copies that must not be read are left out.
    pub version: OpenVersion,
    /// Where the copy goes.
    pub store: Arc<OpenStore>,
    /// What is made with it, if it is not to be a further copy of the version.
    pub object: Option<Arc<NewObject>>,
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
    object: Option<Arc<NewObject>>,
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
    Copies(Box<Space>),
    /// The objects that are given with the versions.
    Objects,
}

/// Brings the bytes of versions of one space.
pub struct Fetch {
    app: AppState,
    goal: Arc<Become>,
    acting: Acting,
    first: Option<SiteId>,
    flow: Flow,
    /// How many large objects are in hand, and how many streams they take, all together.
    larges: Slots,
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

impl Fetch {
    /// Makes one. `acting` is for whom other sites are asked, `first` the site that is asked before others, `flow` what the
    /// bytes keep to.
    pub fn new(app: AppState, goal: Become, acting: Acting, first: Option<SiteId>, flow: Flow) -> Self {
        let (larges, slots, pulls) = (Slots::default(), Slots::default(), Slots::default());
        let memory = Room::new(small::MEMORY);
        let (failing, verify) = (Failing::default(), Verification::default());
        let (goal, requests) = (Arc::new(goal), AtomicUsize::new(0));
        Self {
            app,
            goal,
            acting,
            first,
            flow,
            larges,
            slots,
            pulls,
            memory,
            requests,
            failing,
            task: None,
            verify,
        }
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
    /// What was staged is removed, unless a task goes on with it. Whole large objects, and parts of small ones that were handed on,
    /// are written and told.
    pub fn all<'a>(&'a self, wanted: Vec<Wanted>, done: OnEnd<'a>) -> BoxFuture<'a, ()> {
        self.bring(wanted, done).boxed()
    }

    async fn bring(&self, wanted: Vec<Wanted>, done: OnEnd<'_>) {
        let (mut small, mut large) = (Vec::new(), Vec::new());
        for wanted in wanted {
            if let Err(error) = may_verify(&wanted.store, self.verify) {
                done(&wanted.version, Err(error.with_path(&wanted.version.path)));
            } else if Small::is_one(&wanted.version) {
                let source = self.source(&wanted.version).await.map(Arc::new);
                match source.and_then(|source| Small::new(&wanted, &source)) {
                    Ok(one) => small.push(one),
                    Err(error) => done(&wanted.version, Err(error)),
                }
            } else {
                large.push(self.large(wanted, done).boxed());
            }
        }
        tokio::join!(self.small(small, done), join_all(large));
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

    async fn large(&self, wanted: Wanted, done: OnEnd<'_>) {
        let is_positioned = wanted.store.store.capabilities().write.positioned;
        let _place = self.larges.take(if is_positioned { LARGE } else { LARGE_IN_ORDER }).await;
        // It asks another site for the tree.
        let source = match self.source(&wanted.version).await {
            Ok(source) => Arc::new(source),
            Err(error) => return done(&wanted.version, Err(error)),
        };
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
        let (path, object) = (path.clone(), wanted.object.clone());
        let copies = vec![Ready { path, version, object, content, sources, verified }];
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
    checks: Checks,
    share: Option<&str>,
) -> Result<FrameStream, percale_client::Error> {
    let open = FrameStream::open_bulk(client, OPERATION, items, checks, share);
    let stream = flow.meter().waiting(Wait::Bytes, open).await?;
    flow.note_transport(stream.transport());
    Ok(stream)
}

/// Returns the next frame of a stream.
async fn next(flow: &Flow, stream: &mut FrameStream) -> Result<Option<Frame>, percale_client::Error> {
    let next = flow.meter().waiting(Wait::Bytes, stream.next()).await;
    flow.meter().reassign(Wait::Bytes, Wait::Verify, stream.take_hashing());
    next.inspect_err(|_| count_altered(stream))
}

/// Judges wrong bytes of a stream, or bytes that nobody asked for. Those of one without encryption may be another's doing, and those that
/// the site had not compared a fault of its disk: they are asked for again, over TLS and compared there, before the site is given up.
fn wrong(stream: &mut FrameStream, error: ApiError) -> ApiError {
    let why = if stream.distrust(error.detail()) {
        count_altered(stream);
        "it came without encryption, and is asked for over TLS"
    } else if stream.is_unchecked() {
        "the site had not compared it, and is asked to do so"
    } else {
        return error;
    };
    ApiError::new(ErrorCode::SiteUnavailable, format!("{}; {why}", error.detail()))
}

fn count_altered(stream: &FrameStream) {
    if stream.is_altered() {
        metrics::counter!("percale_altered_streams_total").increment(1);
    }
}

fn count_late(streams: usize) {
    metrics::counter!("percale_late_streams_total").increment(streams as u64);
}

fn cannot_read(member: &Member, error: percale_client::Error) -> ApiError {
    let error = ApiError::from(percale_federation::Error::from(error));
    error.context(format!("cannot read from site {}", member.name))
}

async fn tell(app: &AppState, goal: &Become, copies: Vec<Ready>) -> Result<Vec<Result<Brought>>> {
    let mut told = Vec::with_capacity(copies.len());
    let mut contents = Vec::with_capacity(copies.len());
    let mut objects = Vec::new();
    for Ready { path, version, object, content, sources, verified } in copies {
        let (size, root) = (content.tree.size().0, content.tree.root());
        let store = Some(content.store.row.name.to_string());
        contents.push((path.clone(), version, content));
        objects.push(object);
        told.push(TaskCopy { path, version, size, root, sources, store, verified, at_us: 0 });
    }
    let paths: Vec<ObjectPath> = contents.iter().map(|(path, ..)| path.clone()).collect();
    let outcomes: Vec<Result<(Copied, Option<Committed>)>> = match goal {
        Become::Copies(space) => {
            let copied = app.abroad.copies(app.lease.current()?, space, contents).await;
            copied.into_iter().map(|copied| copied.map(|copied| (copied, None))).collect()
        }
        Become::Objects => {
            let mut items = Vec::with_capacity(contents.len());
            for ((.., content), object) in contents.into_iter().zip(objects) {
                let unknown = || ApiError::internal("a version was fetched that is to become nothing");
                items.push((object.map(Arc::unwrap_or_clone).ok_or_else(unknown)?, content));
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
