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

/// Room that somebody has, until it is dropped.
#[derive(Debug, Default)]
pub struct Taken(Option<OwnedSemaphorePermit>);

impl Room {
    /// Makes room for so many MiB.
    pub fn new(mebibytes: u32) -> Self {
        Self { free: Arc::new(Semaphore::new(mebibytes as usize)), mebibytes }
    }

    /// Waits until there is room for so many bytes, begun MiB as whole ones; for more than there ever is, until all is free.
    pub async fn take(&self, bytes: u64) -> Taken {
        let mut taken = Taken::default();
        self.extend(&mut taken, bytes).await;
        taken
    }

    /// Waits until there is room for so many bytes with what is taken already. All who extend what they have must fit into the
    /// room at their largest: else they wait for each other.
    pub async fn extend(&self, taken: &mut Taken, bytes: u64) {
        let wanted = u32::try_from(bytes.div_ceil(MIB)).unwrap_or(u32::MAX).min(self.mebibytes);
        let has = taken.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = (wanted as usize).saturating_sub(has);
        if more == 0 {
            return;
        }
        // Nobody closes it.
        let Ok(more) = self.free.clone().acquire_many_owned(more as u32).await else { return };
        match &mut taken.0 {
            Some(has) => has.merge(more),
            none => *none = Some(more),
        }
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

    #[test]
    fn what_is_taken_grows_by_what_it_lacks() {
        let room = Room::new(4);
        let mut first = room.take(1).now_or_never().unwrap();
        assert!(room.extend(&mut first, MIB).now_or_never().is_some());
        let second = room.take(3 * MIB).now_or_never().expect("it had this much");
        assert!(room.extend(&mut first, 2 * MIB).now_or_never().is_none());
        drop(second);
        assert!(room.extend(&mut first, 4 * MIB).now_or_never().is_some());
        assert!(room.take(1).now_or_never().is_none());
    }
}
