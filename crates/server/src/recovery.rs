//! What a dead server or an abandoned upload left behind, and bytes that lost their name (`docs/design/leases.md`,
//! `docs/design/publishing.md`).
//!
//! Every step may be repeated: a server that dies in the middle leaves a lapsed lease, and the next one begins again.

mod emptied;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use percale_catalog::{Catalog, Garbage, LapsedLease, LeaseKind};
use percale_core::ids::{Fence, LeaseId, StoreId};
use percale_store::{Delete, FileIdentity};
use tokio_util::sync::CancellationToken;

use crate::error::Result;
use crate::lease::{ServerLease, TTL};
use crate::publish::{key, tree_key, undo_files};
use crate::stores::Registry;

use emptied::Emptied;

/// How often lapsed leases are looked for.
const EVERY: Duration = Duration::from_secs(5);
/// Leases taken over, and files collected, in one step.
const STEP: usize = 1000;
/// Files collected before it is asked again whether this server still may.
const AT_ONCE: usize = 50;

/// Takes over what lapsed and collects garbage.
pub struct Recovery {
    catalog: Catalog,
    stores: std::sync::Arc<Registry>,
    holder: String,
    /// None before this server has its lease, when it is the only one.
    lease: Option<std::sync::Arc<ServerLease>>,
    /// Under which fences leases lapsed that could not be undone yet: each take-over gives a lease another one.
    owed: Mutex<HashMap<LeaseId, Fence>>,
    emptied: Emptied,
}

impl Recovery {
    /// Makes it for a server that has no lease yet.
    pub fn new(catalog: Catalog, stores: std::sync::Arc<Registry>, holder: String) -> Self {
        Self { catalog, stores, holder, lease: None, owed: Mutex::default(), emptied: Emptied::default() }
    }

    /// Goes on under this server's lease.
    #[must_use]
    pub fn under(self, lease: std::sync::Arc<ServerLease>) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// Undoes what servers before this one left, so that it does not wait for their leases to lapse. Only for an embedded
    /// catalog, which has one server at a time; to be called before this server takes its own lease.
    ///
    /// # Errors
    /// If the catalog does not answer. A store that does not answer keeps its leases for later.
    pub async fn at_start(&self) -> Result<()> {
        for lapsed in self.catalog.take_over_all(LeaseKind::Server, &self.holder, TTL).await? {
            self.undo_and_log(lapsed).await;
        }
        self.collect().await
    }

    /// Looks after lapsed leases and garbage until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        loop {
            if let Err(error) = self.step().await {
                tracing::warn!(%error, "recovery goes on later");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }

    async fn step(&self) -> Result<()> {
        for lapsed in self.catalog.take_over_lapsed(None, &self.holder, TTL, STEP).await? {
            self.undo_and_log(lapsed).await;
        }
        self.collect().await
    }

    async fn undo_and_log(&self, lapsed: LapsedLease) {
        let (kind, fence, id) = (lapsed.lease.kind, lapsed.old_fence.0, lapsed.lease.id);
        let first = *self.owed().entry(id).or_insert(lapsed.old_fence);
        // A take-over that died may have staged nothing, but its predecessor's files may be left.
        match self.undo(&lapsed, &[first, lapsed.old_fence, lapsed.lease.fence]).await {
            Ok(intents) => {
                self.owed().remove(&id);
                tracing::info!(%kind, fence, intents, old_holder = lapsed.old_holder, "lease taken over")
            }
            // As often as it is taken over.
            Err(error) if first != lapsed.old_fence => {
                tracing::debug!(%kind, fence, %error, "lease not undone yet; it is taken over again")
            }
            Err(error) => {
                tracing::warn!(%kind, fence, %error, "lease not undone yet; it is taken over again")
            }
        }
    }

    fn owed(&self) -> MutexGuard<'_, HashMap<LeaseId, Fence>> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Undoes the intents of a lease, removes what was staged under its fences, and gives it back. Where a store is away, the rest is done
    /// and the lease is kept.
    async fn undo(&self, lapsed: &LapsedLease, fences: &[Fence]) -> Result<usize> {
        let intents = self.catalog.intents_of(lapsed.lease.id).await?;
        let mut away = None;
        for row in &intents {
            let undone = async {
                let store = self.stores.get(row.intent.store).await?;
                let identity = row.identity.as_deref().map(FileIdentity::new);
                match row.token.parse() {
                    Ok(token) => undo_files(&store, &row.intent, &token, identity.as_ref()).await,
                    Err(error) => {
                        tracing::error!(token = row.token, %error, "an intent names no staged file");
                        Ok(())
                    }
                }
            };
            match undone.await {
                Ok(()) => self.catalog.delete_intent(row.intent.id).await?,
                Err(error) => drop(away.get_or_insert(error)),
            }
        }
        crate::abroad::undo_reserved(&self.catalog, &self.stores, lapsed.lease.id).await?;
        if lapsed.lease.kind == LeaseKind::Mount {
            // Another mount that writes one says so when it has written.
            crate::mounts::end_writing(&self.catalog).await?;
        }
        self.stores.discard_fences(fences).await?;
        if let Some(error) = away {
            return Err(error);
        }
        self.catalog.release_lease(lapsed.lease.id, lapsed.lease.fence).await?;
        Ok(intents.len())
    }

    /// Deletes bytes that lost their last name: the file and its tree, then the row. Only the oldest server of a site does,
    /// or one of them would delete what has just got a key again that another one freed.
    async fn collect(&self) -> Result<()> {
        if let Some(lease) = &self.lease
            && !lease.is_oldest().await?
        {
            return Ok(());
        }
        for store in self.catalog.stores().await? {
            while self.collect_from(store.id).await? == STEP {}
        }
        Ok(())
    }

    async fn collect_from(&self, store: StoreId) -> Result<usize> {
        let garbage = self.catalog.garbage(store, STEP).await?;
        if garbage.is_empty() && !self.emptied.is_waiting(store) {
            return Ok(0);
        }
        let open = self.stores.get(store).await?;
        let mut outcomes = Vec::with_capacity(2 * garbage.len());
        for some in garbage.chunks(AT_ONCE) {
            let mut files = Vec::with_capacity(2 * some.len());
            for one in some {
                let generation = open.expected_generation(one.generation.as_deref());
                files.push(Delete::key(key(&one.key)?).if_generation(generation));
                files.push(Delete::key(tree_key(one.space, one.version)?));
            }
            if let Some(lease) = &self.lease {
                // Whoever comes next does it, and may by now have given a key to another file that this one freed.
                lease.current()?;
            }
            outcomes.extend(open.store.delete(files).await?);
        }
        // What is another file by now is whose who wrote it; the key is free for an import to register it.
        let is_left = |outcome: &percale_store::Result<bool>| {
            outcome.as_ref().is_err_and(|error| error.kind() == percale_store::ErrorKind::Changed)
        };
        let is_settled = |outcome: &percale_store::Result<bool>| outcome.is_ok() || is_left(outcome);
        let (done, failed): (Vec<_>, Vec<_>) = garbage
            .into_iter()
            .zip(outcomes.chunks(2))
            .partition(|(_, outcomes)| outcomes.iter().all(is_settled));
        for (one, _) in done.iter().filter(|(_, outcomes)| is_left(&outcomes[0])) {
            tracing::warn!(store = %open.row.name, key = one.key, "a native file stays: it was changed since its object was known");
        }
        if let Some((one, _)) = failed.first() {
            tracing::warn!(store = %open.row.name, files = failed.len(), first = one.key, "cannot delete garbage yet");
        }
        let count = if failed.is_empty() { done.len() } else { 0 };
        let done: Vec<Garbage> = done.into_iter().map(|(one, _)| one).collect();
        let keys: Vec<String> = done.iter().map(|one| one.key.clone()).collect();
        if !done.is_empty() {
            self.catalog.collected(done).await?;
        }
        self.emptied.remove(&self.catalog, &open, &keys).await?;
        Ok(count)
    }
}
