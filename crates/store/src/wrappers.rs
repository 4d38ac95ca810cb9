//! Stores around stores: names, retries, limits, timeouts, metrics, injected faults.
//!
//! Each is an ordinary [`crate::Store`] with the capabilities of the one inside. [`standard_stack`] puts them in this order, from the
//! caller to the storage:
//!
//! 1. [`Named`]: outermost, so that every error says of which store it is.
//! 2. [`Retry`]: so that each attempt is limited, timed and seen by itself, and a wait between attempts holds no permit.
//! 3. [`Limit`]: outside of the timeout, so that the wait for a permit is not counted as a fault of the storage.
//! 4. [`Timeout`]: bounds what the storage itself takes.
//! 5. [`Observe`]: innermost, so that the figures are those of the storage.
//!
//! [`Chaos`] stands in the place of a storage that misbehaves: directly around the store, inside all the others.

mod chaos;
mod layer;
mod limit;
mod named;
mod observe;
mod retry;
mod timeout;

use std::sync::Arc;

pub use self::chaos::{Chaos, ChaosPolicy, ChaosSwitch};
pub use self::layer::Wrapped;
pub use self::limit::{Limit, LimitPolicy};
pub use self::named::Named;
pub use self::observe::Observe;
pub use self::retry::{Retry, RetryPolicy};
pub use self::timeout::{Timeout, TimeoutPolicy};
use crate::SharedStore;

/// How a store is treated.
#[derive(Debug, Clone)]
pub struct StackPolicy {
    /// The store's name in errors and metrics.
    pub name: String,
    /// How often and how fast operations are repeated.
    pub retry: RetryPolicy,
    /// How much is done at once.
    pub limit: LimitPolicy,
    /// How long operations may take.
    pub timeout: TimeoutPolicy,
}

impl StackPolicy {
    /// The defaults, with as many operations at once as the store prefers.
    pub fn new(name: impl Into<String>, store: &SharedStore) -> Self {
        Self {
            name: name.into(),
            retry: RetryPolicy::default(),
            limit: LimitPolicy::new(store.capabilities().concurrency),
            timeout: TimeoutPolicy::default(),
        }
    }
}

/// Wraps a store as every store in use is, in the order that the module's text gives.
pub fn standard_stack(store: SharedStore, policy: &StackPolicy) -> SharedStore {
    let store: SharedStore = Arc::new(Observe::new(store, policy.name.clone()));
    let store: SharedStore = Arc::new(Timeout::new(store, policy.timeout));
    let store: SharedStore = Arc::new(Limit::new(store, policy.limit));
    let store: SharedStore = Arc::new(Retry::new(store, policy.retry));
    Arc::new(Named::new(store, policy.name.clone()))
}
