//! What the bytes between this site and others have to keep to, whichever task or reader moves them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use percale_core::Timestamp;
use percale_core::ids::SiteId;
use percale_mover::{Bucket, Schedule};
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
        }
    }

    /// Returns what the tasks that read from a site take a permit of, in the order in which they asked.
    pub fn source(&self, site: SiteId) -> Arc<Semaphore> {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.entry(site).or_insert_with(|| Arc::new(Semaphore::new(self.per_source))).clone()
    }
}
