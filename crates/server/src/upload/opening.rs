//! Uploads that are being opened, while what their senders send beside it waits.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard};

use percale_core::ids::LeaseId;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Which uploads are being opened under ids that their senders chose.
#[derive(Default)]
pub(super) struct Opening {
    ids: Mutex<HashSet<LeaseId>>,
    /// Told when one is there, or will not be.
    ended: Notify,
}

impl Opening {
    fn ids(&self) -> MutexGuard<'_, HashSet<LeaseId>> {
        self.ids.lock().expect("no holder of this lock panics")
    }

    /// Returns nothing if another request opens this one.
    pub(super) fn begin(&self, id: LeaseId) -> Option<OpeningOf<'_>> {
        let is_first = self.ids().insert(id);
        // Made only then: what is dropped ends the opening.
        is_first.then(|| OpeningOf { all: self, id })
    }

    /// Waits for the next end of an opening, of whichever.
    pub(super) fn ended(&self) -> Notified<'_> {
        self.ended.notified()
    }

    /// Tells whether this one is being opened.
    pub(super) fn has(&self, id: LeaseId) -> bool {
        self.ids().contains(&id)
    }
}

/// Lasts while one is opened.
pub(super) struct OpeningOf<'a> {
    all: &'a Opening,
    id: LeaseId,
}

impl Drop for OpeningOf<'_> {
    fn drop(&mut self) {
        self.all.ids().remove(&self.id);
        self.all.ended.notify_waiters();
    }
}
