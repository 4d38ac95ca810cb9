//! How the headers of versions are read, whatever keeps some of them from it.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use percale_catalog::{Described, Header, OpenVersion, SpaceRules};
use percale_core::ErrorCode;
use percale_core::ids::StoreId;
use percale_discovery::header::Header as Gathered;
use percale_store::ErrorKind;

use super::elsewhere::Elsewhere;
use super::ranges::bytes_of;
use super::{attributes_of, header_of};
use crate::publish::key;
use crate::reading::Reach;
use crate::{ApiError, AppState, Result};

/// How headers are read.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a> {
    pub app: &'a AppState,
    pub rules: &'a SpaceRules,
    pub reach: &'a Reach,
    /// Stores of which nothing more is asked, where there are others to read meanwhile.
    pub away: Option<&'a AwayStores>,
    /// What other sites have read.
    pub elsewhere: Option<&'a Elsewhere>,
    pub patience: Patience,
}

/// Whether what cannot be read now is tried again by itself.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Patience {
    /// It is not.
    pub is_over: bool,
    /// Nor is what lies on a store that does not answer.
    pub is_over_for_stores: bool,
}

impl Patience {
    /// Tells whether something is not tried again that failed so.
    pub fn ends_with(self, error: &ApiError) -> bool {
        !error.is_retryable() || (self.is_over && (self.is_over_for_stores || !is_of_store(error)))
    }
}

/// The stores that did not answer while a page was read: not one object after the other waits for them.
#[derive(Default)]
pub(super) struct AwayStores(Mutex<HashSet<StoreId>>);

impl AwayStores {
    fn note(&self, version: &OpenVersion) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(stores_of(version));
    }

    /// Tells whether there is no copy of a version but in these stores.
    fn have_all_of(&self, version: &OpenVersion) -> bool {
        let away = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stores = stores_of(version).peekable();
        stores.peek().is_some() && stores.all(|store| away.contains(&store))
    }
}

fn stores_of(version: &OpenVersion) -> impl Iterator<Item = StoreId> {
    version.replicas.iter().filter(|replica| replica.state.is_readable()).map(|replica| replica.store)
}

/// Tells whether it may be the store that keeps something from being read, and not what is read.
pub(super) fn is_of_store(error: &ApiError) -> bool {
    use ErrorCode::{Offline, RateLimited, StoreUnavailable, Timeout};
    error.is_retryable() && matches!(error.code(), Offline | RateLimited | StoreUnavailable | Timeout)
}

impl<'a> Reading<'a> {
    /// Reads what can be read now.
    pub fn new(app: &'a AppState, rules: &'a SpaceRules, reach: &'a Reach) -> Self {
        Self { app, rules, reach, away: None, elsewhere: None, patience: Patience::default() }
    }

    /// Reads the headers of versions, some at once; in their order.
    pub async fn all(self, versions: &[Described]) -> Vec<Result<Header>> {
        let read = versions.iter().map(|version| self.one(version).boxed());
        let read: Vec<BoxFuture<'_, Result<Header>>> = read.collect();
        // The bytes of the next ones are looked for meanwhile.
        stream::iter(read).buffered(self.app.extraction.at_once * 2).collect().await
    }

    /// Reads the header of a version, and what the documents beside it say.
    async fn one(self, Described { object, by, as_of }: &Described) -> Result<Header> {
        let mut gathered = match self.gather(object).await {
            Err(error) if self.patience.ends_with(&error) && !by.is_empty() => {
                let mut gathered = Gathered::default();
                gathered.fail(error.detail());
                gathered
            }
            gathered => gathered?,
        };
        for document in by {
            let name = document.path.name().unwrap_or_default();
            match self.gather(document).await {
                Ok(said) => gathered.describe(name, said.finish()),
                Err(error) if self.patience.ends_with(&error) => {
                    gathered.fail(&format!("{name}: {}", error.detail()))
                }
                Err(error) => return Err(error),
            }
        }
        let found = attributes_of(gathered, &self.rules.at(&object.path));
        Ok(Header { as_of: as_of.clone(), ..header_of(object, found) })
    }

    pub async fn gather(self, version: &OpenVersion) -> Result<Gathered> {
        if let Some(found) = self.elsewhere.and_then(|elsewhere| elsewhere.of(version.version)) {
            return found;
        }
        let Some(away) = self.away else { return self.header(version).await };
        let store_is_away = || {
            let detail = format!("the store of {} does not answer now", version.path);
            Err(ApiError::new(ErrorCode::StoreUnavailable, detail))
        };
        if away.have_all_of(version) {
            return store_is_away();
        }
        match self.header(version).await {
            // There is a copy at another site, too, which comes to nothing here.
            Err(error)
                if error.code() == ErrorCode::SiteUnavailable
                    && self.app.stores.have(version).await.unwrap_or(false) =>
            {
                away.note(version);
                store_is_away()
            }
            // A disk may have a fault where this file is, and nowhere else.
            Err(error)
                if is_of_store(&error) && self.patience.is_over && self.do_stores_answer(version).await =>
            {
                Err(error.permanent())
            }
            Err(error) if is_of_store(&error) => {
                away.note(version);
                Err(error)
            }
            gathered => gathered,
        }
    }

    async fn header(self, version: &OpenVersion) -> Result<Gathered> {
        let name = version.path.name().unwrap_or_default();
        let read = bytes_of(self.app, version, self.reach).await?;
        self.app.extraction.gather(name, version.size, &read).await
    }

    /// Tells whether all stores here that have a copy of a version answer.
    async fn do_stores_answer(self, version: &OpenVersion) -> bool {
        for replica in version.replicas.iter().filter(|replica| replica.state.is_readable()) {
            if self.app.stores.site_of(replica.store).await.is_ok_and(|site| site.is_some()) {
                continue;
            }
            let (Ok(store), Ok(key)) = (self.app.stores.get(replica.store).await, key(&replica.key)) else {
                return false;
            };
            if let Err(error) = store.store.stat(&key).await
                && let ErrorKind::Unavailable | ErrorKind::TimedOut | ErrorKind::RateLimited = error.kind()
            {
                return false;
            }
        }
        true
    }
}
