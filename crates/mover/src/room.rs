//! Memory that bytes on their way may take.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const MIB: u64 = 1 << 20;

/// Room for so many MiB, which all who move bytes share.
#[derive(Debug)]
pub struct Room {
    free: Arc<Semaphore>,
    mebibytes: u32,
}

impl Room {
    /// Makes room for so many MiB.
    pub fn new(mebibytes: u32) -> Self {
        Self { free: Arc::new(Semaphore::new(mebibytes as usize)), mebibytes }
    }

    /// Waits until there is room for so many bytes, begun MiB as whole ones; for more than there ever is, until all is free. It is
    /// taken until what is returned is dropped.
    pub async fn take(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let wanted = u32::try_from(bytes.div_ceil(MIB)).unwrap_or(u32::MAX).min(self.mebibytes);
        // Nobody closes it.
        self.free.clone().acquire_many_owned(wanted).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn no_more_is_taken_than_there_is() {
        let room = Room::new(4);
        let first = room.take(MIB + 1).now_or_never().unwrap();
        assert!(room.take(3 * MIB).now_or_never().is_none());
        let second = room.take(2 * MIB).now_or_never().unwrap();
        drop((first, second));
        assert!(room.take(u64::MAX).now_or_never().is_some(), "what is larger than all of it goes alone");
    }
}
