//! What the bytes between this site and others have to keep to, whichever task or reader moves them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use percale_core::Timestamp;
use percale_core::access::Identity;
use percale_core::ids::{SiteId, SpaceId, VersionId};
use percale_mover::{Bucket, Schedule, Share};
use tokio::sync::Semaphore;

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
    shares: Mutex<HashMap<(SiteId, String), Weak<Semaphore>>>,
    /// What is being sent over several streams.
    sent: Mutex<HashMap<Sent, Weak<Share>>>,
}

/// What streams have in common that send for one reader: the id that the reader made up, and, so that none sends what it was not asked for
/// by somebody who may have it, the reader and the version.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sent {
    /// What the reader called it.
    pub id: Box<str>,
    /// Who reads.
    pub user: Option<Identity>,
    /// The site that asks, if it is another one.
    pub site: Option<SiteId>,
    /// What is read.
    pub version: (SpaceId, VersionId),
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
            shares: Mutex::default(),
            sent: Mutex::default(),
        }
    }

    /// Returns what the streams share that send this.
    pub fn sent(&self, what: Sent) -> Arc<Share> {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = sent.get(&what).and_then(Weak::upgrade) {
            return share;
        }
        sent.retain(|_, share| share.strong_count() > 0);
        let share = Arc::default();
        sent.insert(what, Arc::downgrade(&share));
        share
    }

    /// Returns what the tasks that read from a site take a permit of, in the order in which they asked.
    pub fn source(&self, site: SiteId) -> Arc<Semaphore> {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.entry(site).or_insert_with(|| Arc::new(Semaphore::new(self.per_source))).clone()
    }

    /// Returns what the tasks of one owner take a permit of before that, one fewer than there are in all: who comes with a short task does not
    /// wait for long ones that are all of somebody else.
    pub fn share(&self, site: SiteId, owner: &str) -> Arc<Semaphore> {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (site, owner.to_owned());
        if let Some(share) = shares.get(&key).and_then(Weak::upgrade) {
            return share;
        }
        shares.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(self.per_source.saturating_sub(1).max(1)));
        shares.insert(key, Arc::downgrade(&share));
        share
    }
}
