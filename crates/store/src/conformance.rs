//! The suite that every store passes: each connector, each wrapper, and each door that shows files as a store.
//!
//! There is a trial for each bullet of [`crate::Store`] and [`crate::Stage`]. A store that claims a capability must have it; one that
//! does not must answer `Unsupported`. A connector is tested by about ten lines:
//!
//! ```no_run
//! # async fn test() {
//! use percale_store::conformance::{self, Fixture};
//! use percale_store::memory::Memory;
//!
//! conformance::run("memory", || async { Fixture::new(Memory::file_system()) }).await.assert_passed();
//! # }
//! ```

mod context;
mod keys;
mod publishing;
mod reading;
mod staging;

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use self::context::Context;
use crate::{SharedStore, Store, StoreKey};

/// Longest time that one trial may take. Far more than any needs, so that a hang is a failure and not a wait.
const TRIAL_LIMIT: Duration = Duration::from_secs(60);

/// Changes a file behind the store's back.
pub type Tamper = Box<dyn Fn(&StoreKey, &[u8]) + Send + Sync>;

/// An empty store for one trial.
pub struct Fixture {
    store: SharedStore,
    tamper: Option<Tamper>,
    keep: Vec<Box<dyn Any + Send + Sync>>,
}

impl Fixture {
    /// Takes an empty store.
    pub fn new(store: impl Store) -> Self {
        Self::shared(Arc::new(store))
    }

    /// Takes an empty store as it is handed around.
    pub fn shared(store: SharedStore) -> Self {
        Self { store, tamper: None, keep: Vec::new() }
    }

    /// Gives a way to change a file behind the store's back, for the trials of changes during a read.
    #[must_use]
    pub fn tamper(mut self, tamper: impl Fn(&StoreKey, &[u8]) + Send + Sync + 'static) -> Self {
        self.tamper = Some(Box::new(tamper));
        self
    }

    /// Keeps something for as long as the trial lasts, such as a temporary directory.
    #[must_use]
    pub fn keep(mut self, thing: impl Any + Send + Sync) -> Self {
        self.keep.push(Box::new(thing));
        self
    }

    /// Puts another store in front, such as a wrapper.
    #[must_use]
    pub fn wrap(mut self, wrap: impl FnOnce(SharedStore) -> SharedStore) -> Self {
        self.store = wrap(self.store);
        self
    }
}

/// Why a trial failed.
#[derive(Debug)]
pub struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<crate::Error> for Failure {
    fn from(error: crate::Error) -> Self {
        let mut text = format!("unexpected error: {error}");
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text.push_str(&format!(": {cause}"));
            source = cause.source();
        }
        Self(text)
    }
}

impl From<crate::KeyError> for Failure {
    fn from(error: crate::KeyError) -> Self {
        Self(error.to_string())
    }
}

type Outcome = Result<(), Failure>;
type TrialFuture = Pin<Box<dyn Future<Output = Outcome> + Send>>;

struct Trial {
    name: &'static str,
    run: fn(Context) -> TrialFuture,
}

/// Makes `trials()`, the list of a module's trials.
macro_rules! trials {
    ($($name:ident),* $(,)?) => {
        pub(super) fn trials() -> Vec<super::Trial> {
            vec![$(super::Trial { name: stringify!($name), run: |context| Box::pin($name(context)) }),*]
        }
    };
}

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(super::Failure(format!($($message)+)));
        }
    };
}

use {ensure, trials};

/// What became of the trials of one store.
#[derive(Debug)]
pub struct Report {
    store: String,
    passed: Vec<&'static str>,
    failed: Vec<(&'static str, Failure)>,
}

impl Report {
    /// Returns the names of the trials that passed.
    pub fn passed(&self) -> &[&'static str] {
        &self.passed
    }

    /// Returns the trials that failed, each with the reason.
    pub fn failed(&self) -> &[(&'static str, Failure)] {
        &self.failed
    }

    /// Does nothing if all trials passed.
    ///
    /// # Panics
    /// If one failed; the message names each with its reason.
    pub fn assert_passed(&self) {
        assert!(self.failed.is_empty(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} trials passed, {} failed", self.store, self.passed.len(), self.failed.len())?;
        for (name, failure) in &self.failed {
            write!(f, "\n  {name}: {failure}")?;
        }
        Ok(())
    }
}

/// Runs every trial, each on an empty store of its own. Needs a tokio runtime with time.
pub async fn run<M, F>(name: &str, make: M) -> Report
where
    M: Fn() -> F,
    F: Future<Output = Fixture>,
{
    let mut report = Report { store: name.to_owned(), passed: Vec::new(), failed: Vec::new() };
    let trials = [keys::trials(), reading::trials(), staging::trials(), publishing::trials()];
    for trial in trials.into_iter().flatten() {
        let Fixture { store, tamper, keep } = make().await;
        let context = Context::new(store, tamper);
        let outcome = tokio::time::timeout(TRIAL_LIMIT, (trial.run)(context)).await;
        match outcome.unwrap_or_else(|_| Err(Failure(format!("took longer than {TRIAL_LIMIT:?}")))) {
            Ok(()) => report.passed.push(trial.name),
            Err(failure) => report.failed.push((trial.name, failure)),
        }
        drop(keep);
    }
    report
}
