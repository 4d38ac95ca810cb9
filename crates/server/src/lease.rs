//! This server's own lease: what it has in hand ends with it (`docs/design/leases.md`).

use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use percale_catalog::{Catalog, LeaseKind, TaskHolder};
use percale_core::ErrorCode;
use percale_core::ids::{Fence, LeaseId};
use percale_store::StageToken;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::error::{ApiError, Result};

/// How long a server lives without renewing.
pub const TTL: Duration = Duration::from_secs(15);
/// How often it renews: twice more may fail before it is too late.
const RENEW: Duration = Duration::from_secs(5);
/// Bytes are not accepted under a lease that may have lapsed before they are committed.
const MARGIN: Duration = Duration::from_secs(2);

/// The lease under which this process writes.
pub struct ServerLease {
    catalog: Catalog,
    holder: String,
    /// What is kept with it.
    body: Value,
    held: RwLock<Option<Held>>,
    next_token: AtomicU64,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    id: LeaseId,
    fence: Fence,
    renewed: Instant,
}

impl ServerLease {
    /// Takes a lease. `holder` says in words who holds it: host and process. `body` is kept with it.
    pub async fn acquire(catalog: Catalog, holder: String, body: Value) -> Result<Self> {
        let lease = Self { catalog, holder, body, held: RwLock::new(None), next_token: AtomicU64::new(0) };
        lease.take().await?;
        Ok(lease)
    }

    async fn take(&self) -> Result<()> {
        let renewed = Instant::now();
        let lease =
            self.catalog.acquire_lease(LeaseKind::Server, &self.holder, TTL, self.body.clone()).await?;
        self.set(Some(Held { id: lease.id, fence: lease.fence, renewed }));
        Ok(())
    }

    fn set(&self, held: Option<Held>) {
        *self.held.write().expect("no holder of this lock panics") = held;
    }

    fn held(&self) -> Option<Held> {
        *self.held.read().expect("no holder of this lock panics")
    }

    /// Returns who holds it, in words.
    pub fn holder(&self) -> &str {
        &self.holder
    }

    /// Returns the lease and its fence.
    ///
    /// # Errors
    /// `CatalogUnavailable` while it could not be renewed in time.
    pub fn current(&self) -> Result<TaskHolder> {
        match self.held() {
            Some(held) if held.renewed.elapsed() + MARGIN < TTL => {
                Ok(TaskHolder { lease: held.id, fence: held.fence })
            }
            _ => Err(ApiError::new(
                ErrorCode::CatalogUnavailable,
                "this server could not renew its lease and takes no writes until it can",
            )),
        }
    }

    /// Tells whether no server of the site has held its lease for longer.
    ///
    /// # Errors
    /// As [`ServerLease::current`]; those of the catalog.
    pub async fn is_oldest(&self) -> Result<bool> {
        let own = self.current()?;
        let now = self.catalog.now().await?;
        let leases = self.catalog.leases(LeaseKind::Server).await?;
        // By fence, not by id: a lease that was taken over from a dead server is young again.
        let alive = leases.iter().filter(|lease| lease.expires > now);
        Ok(alive.min_by_key(|lease| lease.fence.0).is_some_and(|lease| lease.id == own.lease))
    }

    /// Returns a new token for a staged file.
    ///
    /// # Errors
    /// As [`ServerLease::current`].
    pub fn token(&self) -> Result<StageToken> {
        let fence = self.current()?.fence;
        let number = self.next_token.fetch_add(1, Ordering::Relaxed);
        StageToken::new(fence, format!("{number:x}"))
            .map_err(|error| ApiError::new(ErrorCode::Internal, error.to_string()))
    }

    /// Renews the lease until `stop`, and takes a new one if it was lost.
    pub async fn keep(&self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(RENEW) => {}
            }
            let Some(held) = self.held() else { continue };
            let began = Instant::now();
            match self.catalog.renew_lease(held.id, held.fence, TTL).await {
                Ok(_) => self.set(Some(Held { renewed: began, ..held })),
                Err(error) if error.code() == ErrorCode::LeaseExpired => {
                    tracing::warn!(fence = held.fence.0, "lost the server lease; taking a new one");
                    if let Err(error) = self.take().await {
                        tracing::error!(%error, "cannot take a new server lease");
                    }
                }
                Err(error) => tracing::warn!(%error, "cannot renew the server lease"),
            }
        }
    }

    /// Gives the lease back at an orderly end. What still lies under it is left to whoever takes it over.
    pub async fn release(&self) {
        if let Some(held) = self.held() {
            self.set(None);
            if let Err(error) = self.catalog.release_lease(held.id, held.fence).await {
                tracing::info!(%error, "server lease not released; the next server takes it over");
            }
        }
    }
}
