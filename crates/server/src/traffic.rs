//! What the bytes between this site and others have to keep to, whichever task or reader moves them, and whether any are being moved.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use percale_api::uploads::PullItem;
use percale_catalog::OpenVersion;
use percale_core::Timestamp;
use percale_core::access::Identity;
use percale_core::ids::{SiteId, SpaceId, VersionId};
use percale_mover::{Bucket, Queues, Schedule, Share};
use tokio::sync::Semaphore;

use crate::Result;
use crate::config::TransfersConfig;

/// Shared by all that this server does.
#[derive(Debug)]
pub struct Traffic {
    /// For what comes from other sites.
    pub into: Bucket,
    /// For what other sites fetch.
    pub out: Arc<Bucket>,
    per_source: usize,
    sources: Mutex<HashMap<SiteId, Arc<Semaphore>>>,
    /// Of each owner at each source, while they have turns there.
    owners: Mutex<HashMap<(SiteId, String), Weak<Semaphore>>>,
    /// Versions that are being sent over several streams.
    shares: Together<Share>,
    /// Whole objects that are.
    queues: Together<Queues<ToSend>>,
    began: Instant,
    /// When objects were moved last, in milliseconds since `began`.
    moved: AtomicU64,
}

/// An object that a stream was asked for, and what it has found of it.
pub type ToSend = (PullItem, Result<OpenVersion>);

/// What streams have in common while there is one.
#[derive(Debug)]
struct Together<T>(Mutex<HashMap<Sent, Weak<T>>>);

impl<T> Default for Together<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Default> Together<T> {
    fn of(&self, what: Sent) -> Arc<T> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = all.get(&what).and_then(Weak::upgrade) {
            return one;
        }
        all.retain(|_, one| one.strong_count() > 0);
        let one = Arc::default();
        all.insert(what, Arc::downgrade(&one));
        one
    }
}

/// Which streams send together for one reader: the id that the reader made up, and, so that none sends what it was not asked for
/// by somebody who may have it, the reader and the version.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sent {
    /// What the reader called it.
    pub id: Box<str>,
    /// Who reads.
    pub user: Option<Identity>,
    /// The site that asks, if it is another one.
    pub site: Option<SiteId>,
    /// What is read, if that is one version.
    pub version: Option<(SpaceId, VersionId)>,
}

impl Traffic {
    /// Keeps to what is configured.
    pub fn new(config: &TransfersConfig) -> Self {
        let schedule = Arc::new(Schedule { limit: config.limit, times: config.times.clone() });
        let bucket = || {
            let schedule = schedule.clone();
            Bucket::following(move || schedule.at(Timestamp::now()))
        };
        Self {
            into: bucket(),
            out: Arc::new(bucket()),
            per_source: config.per_source,
            sources: Mutex::default(),
            owners: Mutex::default(),
            shares: Together::default(),
            queues: Together::default(),
            began: Instant::now(),
            moved: AtomicU64::new(0),
        }
    }

    /// Notes that objects are being moved, in streams of frames: what can wait leaves the processors to them.
    pub fn note_moving(&self) {
        self.moved.store(self.began.elapsed().as_millis() as u64, Relaxed);
    }

    /// Returns for how long none were.
    pub fn rests(&self) -> Duration {
        self.began.elapsed().saturating_sub(Duration::from_millis(self.moved.load(Relaxed)))
    }

    /// Returns what the streams share that send a version.
    pub fn share_of(&self, what: Sent) -> Arc<Share> {
        self.shares.of(what)
    }

    /// Returns the queues of the streams that send whole objects.
    pub fn queues_of(&self, what: Sent) -> Arc<Queues<ToSend>> {
        self.queues.of(what)
    }

    /// Returns what the tasks that read from a site take a permit of, in the order in which they asked.
    pub fn source(&self, site: SiteId) -> Arc<Semaphore> {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.entry(site).or_insert_with(|| Arc::new(Semaphore::new(self.per_source))).clone()
    }

    /// Returns what the tasks of one owner take a permit of before that, one fewer than there are in all: who comes with a short task does not
    /// wait for long ones that are all of somebody else.
    pub fn share(&self, site: SiteId, owner: &str) -> Arc<Semaphore> {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (site, owner.to_owned());
        if let Some(share) = owners.get(&key).and_then(Weak::upgrade) {
            return share;
        }
        owners.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(self.per_source.saturating_sub(1).max(1)));
        owners.insert(key, Arc::downgrade(&share));
        share
    }
}
