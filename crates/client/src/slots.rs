//! How many streams the files of a transfer share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::client::Client;

/// What the streams of all files of a transfer share. The path's round trip may be known only after the first answer, so
/// there may be more of them later on.
#[derive(Debug)]
pub(crate) struct Slots {
    client: Client,
    free: Arc<Semaphore>,
    given: AtomicUsize,
}

impl Slots {
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone(), free: Arc::new(Semaphore::new(0)), given: AtomicUsize::new(0) }
    }

    /// Waits for one; it is free again when it is dropped.
    pub async fn take(&self) -> Option<OwnedSemaphorePermit> {
        let worth = self.client.streams();
        let given = self.given.fetch_max(worth, Relaxed);
        self.free.add_permits(worth.saturating_sub(given));
        // Nobody closes it.
        self.free.clone().acquire_owned().await.ok()
    }
}
