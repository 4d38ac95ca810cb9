//! Stores and sites that did not answer: not one object after the other waits for them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use percale_catalog::OpenVersion;
use percale_core::ids::{SiteId, StoreId};

/// What is not asked for a while.
pub(super) struct Away {
    pause: Duration,
    until: Mutex<HashMap<Place, Instant>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Store(StoreId),
    Site(SiteId),
}

impl Away {
    pub fn new(pause: Duration) -> Self {
        Self { pause, until: Mutex::default() }
    }

    /// Notes what did not answer.
    pub fn note(&self, place: Place) {
        let now = Instant::now();
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.retain(|_, until| *until > now);
        until.insert(place, now + self.pause);
    }

    /// Notes that no store answered that has a version.
    pub fn note_stores_of(&self, version: &OpenVersion) {
        stores_of(version).for_each(|store| self.note(Place::Store(store)));
    }

    /// Tells whether something is not asked now.
    pub fn has(&self, place: Place) -> bool {
        let until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.get(&place).is_some_and(|until| *until > Instant::now())
    }

    /// Tells whether there is no copy of a version but in stores that are not asked now.
    pub fn has_all_stores_of(&self, version: &OpenVersion) -> bool {
        let mut stores = stores_of(version).peekable();
        stores.peek().is_some() && stores.all(|store| self.has(Place::Store(store)))
    }
}

fn stores_of(version: &OpenVersion) -> impl Iterator<Item = StoreId> {
    version.replicas.iter().filter(|replica| replica.state.is_readable()).map(|replica| replica.store)
}
