//! The streams that all files of a transfer share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Rights to a stream. There are as many as the path asks for, which may be known only after the first answer.
#[derive(Debug)]
pub struct Slots {
    free: Arc<Semaphore>,
    given: AtomicUsize,
}

impl Default for Slots {
    fn default() -> Self {
        Self { free: Arc::new(Semaphore::new(0)), given: AtomicUsize::new(0) }
    }
}

impl Slots {
    /// Waits for a slot, where so many are worth it at least; it is free again when it is dropped.
    pub async fn take(&self, worth: usize) -> Option<OwnedSemaphorePermit> {
        let given = self.given.fetch_max(worth, Relaxed);
        self.free.add_permits(worth.saturating_sub(given));
        // Nobody closes it.
        self.free.clone().acquire_owned().await.ok()
    }

    /// Returns how many are taken at present.
    pub fn taken(&self) -> usize {
        self.given.load(Relaxed).saturating_sub(self.free.available_permits())
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn there_are_more_once_more_are_worth_it() {
        let slots = Slots::default();
        let mut taken: Vec<_> = (0..3).map(|_| slots.take(3).now_or_never().unwrap()).collect();
        assert!(slots.take(3).now_or_never().is_none(), "three are worth it");
        taken.push(slots.take(4).now_or_never().unwrap());
        assert!(slots.take(2).now_or_never().is_none());
        assert_eq!(slots.taken(), 4);
        taken.pop();
        assert_eq!(slots.taken(), 3);
        assert!(slots.take(2).now_or_never().is_some());
    }
}
