//! How the headers of versions are read, whatever keeps some of them from it.

use std::collections::{HashMap, HashSet};
use std::iter;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use percale_catalog::{Described, Header, OpenVersion, SpaceRules};
use percale_core::ErrorCode;
use percale_core::ids::VersionId;
use percale_discovery::frame::BLOCK;
use percale_discovery::header::Header as Gathered;
use percale_store::ErrorKind;

use super::attributes_of;
use super::elsewhere::Elsewhere;
use super::ranges::bytes_of;
use crate::publish::key;
use crate::reading::{READS, Reach, Source, TOGETHER, in_batches};
use crate::{ApiError, AppState, Result};

/// How headers are read.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a> {
    pub app: &'a AppState,
    pub rules: &'a SpaceRules,
    pub reach: &'a Reach,
    /// No user has asked for it: stores that do not answer are left alone for a while.
    pub by_itself: bool,
    /// What cannot be read now is passed over, and marked as such.
    pub marks: bool,
    /// What other sites have read.
    pub elsewhere: Option<&'a Elsewhere>,
    /// What was read ahead.
    pub ahead: Option<&'a Ahead>,
}

/// Small objects, each with its bytes.
pub(super) type Ahead = HashMap<VersionId, (Arc<Source>, Bytes)>;

/// Tells whether it may be the store that keeps something from being read, and not what is read.
fn is_of_store(error: &ApiError) -> bool {
    use ErrorCode::{Offline, RateLimited, StoreUnavailable, Timeout};
    error.is_retryable() && matches!(error.code(), Offline | RateLimited | StoreUnavailable | Timeout)
}

impl<'a> Reading<'a> {
    /// Reads what can be read now.
    pub fn new(app: &'a AppState, rules: &'a SpaceRules, reach: &'a Reach) -> Self {
        Self { app, rules, reach, by_itself: false, marks: false, elsewhere: None, ahead: None }
    }

    /// Reads the headers of versions, some at once; in their order.
    pub async fn all(self, versions: &[Described]) -> Vec<Result<Header>> {
        let ahead = self.read_ahead(versions).boxed().await;
        let reading = Reading { ahead: Some(&ahead), ..self };
        let read = versions.iter().map(|version| reading.one(version).boxed());
        let read: Vec<BoxFuture<'_, Result<Header>>> = read.collect();
        // The bytes of the next ones are looked for meanwhile.
        stream::iter(read).buffered(self.app.extraction.at_once * 2).collect().await
    }

    /// Reads the objects and documents of which the first look sees all there is, several together. What cannot be read is left out.
    async fn read_ahead(self, versions: &[Described]) -> Ahead {
        let reader = &self.app.reader;
        let (mut sources, mut seen) = (Vec::new(), HashSet::new());
        let all: Vec<&OpenVersion> = all_of(versions).collect();
        for version in all {
            let is_left_out = !(1..=BLOCK).contains(&version.size.0)
                || self.elsewhere.is_some_and(|elsewhere| elsewhere.has(version.version))
                || (self.by_itself && self.app.extraction.away.has_all_stores_of(version));
            if !is_left_out
                && seen.insert(version.version)
                && let Ok(source) = reader.source(version.clone(), self.reach).await
            {
                sources.push(Arc::new(source));
            }
        }
        let together = in_batches(sources, |source| source.version.size.0, || TOGETHER);
        let read = together.into_iter().map(|some| {
            let read = async move {
                let read = reader.read_together(&some, true).await;
                let found = some.into_iter().zip(read);
                let found =
                    found.filter_map(|(source, bytes)| Some((source.version.version, (source, bytes?))));
                found.collect::<Vec<_>>()
            };
            read.boxed()
        });
        let read: Vec<BoxFuture<'_, _>> = read.collect();
        stream::iter(read).buffered(READS).flat_map(stream::iter).collect().await
    }

    /// Reads the header of a version, and what the documents beside it say.
    async fn one(self, Described { object, by, as_of }: &Described) -> Result<Header> {
        let mut gathered = match self.gather(object).await {
            // Who asks is told what it was.
            Err(error) if self.passes_over(&error) && (self.by_itself || !by.is_empty()) => not_read(&error),
            gathered => gathered?,
        };
        for document in by {
            let name = document.path.name().unwrap_or_default();
            match self.gather(document).await {
                Ok(said) => gathered.describe(name, said.finish()),
                Err(error) if self.passes_over(&error) => {
                    gathered.describe(name, not_read(&error).finish());
                    if error.is_retryable() {
                        gathered.leave_unread();
                    }
                }
                Err(error) => return Err(error),
            }
        }
        let is_partial = gathered.is_unread();
        let found = attributes_of(gathered, &self.rules.at(&object.path));
        let (entry, version) = (object.entry, object.version);
        Ok(Header { entry, version, as_of: as_of.clone(), found, is_partial })
    }

    fn passes_over(self, error: &ApiError) -> bool {
        self.marks || !error.is_retryable()
    }

    pub async fn gather(self, version: &OpenVersion) -> Result<Gathered> {
        if let Some(found) = self.elsewhere.and_then(|elsewhere| elsewhere.of(version.version)) {
            return found;
        }
        if !self.by_itself {
            return self.header(version).await;
        }
        let away = &self.app.extraction.away;
        let store_is_away = || {
            let detail = format!("the store of {} does not answer", version.path);
            Err(ApiError::new(ErrorCode::StoreUnavailable, detail))
        };
        if away.has_all_stores_of(version) {
            return store_is_away();
        }
        let gathered = self.header(version).await;
        let Err(error) = &gathered else { return gathered };
        // There is a copy at another site, too, which comes to nothing here.
        let is_abroad = error.code() == ErrorCode::SiteUnavailable
            && self.app.stores.have(version).await.unwrap_or(false);
        if !is_abroad && !is_of_store(error) {
            return gathered;
        }
        // A disk may have a fault where this file is, and nowhere else.
        if !self.do_stores_answer(version).await {
            away.note_stores_of(version);
        }
        if is_abroad { store_is_away() } else { gathered }
    }

    async fn header(self, version: &OpenVersion) -> Result<Gathered> {
        let name = version.path.name().unwrap_or_default();
        let (source, first) = match self.ahead.and_then(|ahead| ahead.get(&version.version)) {
            Some((source, bytes)) => (source.clone(), Some(bytes.clone())),
            None => (Arc::new(self.app.reader.source(version.clone(), self.reach).await?), None),
        };
        let read = bytes_of(self.app, source, first);
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

/// Returns objects, each with the documents that describe it.
fn all_of(versions: &[Described]) -> impl Iterator<Item = &OpenVersion> {
    versions.iter().flat_map(|Described { object, by, .. }| iter::once(object).chain(by))
}

/// Says why something was not read, and whether it is tried again.
fn not_read(error: &ApiError) -> Gathered {
    let mut gathered = Gathered::default();
    match error.is_retryable() {
        true => {
            gathered.fail(&format!("{}; it is tried again by itself", error.detail()));
            gathered.leave_unread();
        }
        false => gathered.fail(error.detail()),
    }
    gathered
}
