//! Leases (docs/design/leases.md).

use std::time::Duration;

use percale_core::ids::{Fence, LeaseId};
use serde_json::Value as Json;

use crate::batch::{Batch, Wants, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Query, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{LapsedLease, Lease, LeaseKind};
use crate::rows::Lock;
use crate::rows::{lease, publish, site};
use crate::task::requeue_of_lease;

/// Leases (docs/design/leases.md). Times are the database's.
impl Catalog {
    /// Takes a lease, with a fence larger than any before.
    pub async fn acquire_lease(
        &self,
        kind: LeaseKind,
        holder: &str,
        ttl: Duration,
        body: Json,
    ) -> Result<Lease> {
        self.change(Acquire { id: None, kind, holder: holder.to_owned(), ttl, body }).await
    }

    /// Takes a new lease under an id that its holder chose.
    ///
    /// # Errors
    /// `Conflict` if a lease has this id, whoever holds it.
    pub async fn acquire_lease_as(
        &self,
        id: LeaseId,
        kind: LeaseKind,
        holder: &str,
        ttl: Duration,
        body: Json,
    ) -> Result<Lease> {
        self.change(Acquire { id: Some(id), kind, holder: holder.to_owned(), ttl, body }).await
    }

    /// Makes a lease end `ttl` from now.
    ///
    /// # Errors
    /// `LeaseExpired` if it has lapsed or another holder has it.
    pub async fn renew_lease(&self, id: LeaseId, fence: Fence, ttl: Duration) -> Result<Lease> {
        self.change(Renew { id, fence, ttl: Some(ttl), body: None }).await
    }

    /// Replaces what the holder keeps with its lease.
    ///
    /// # Errors
    /// As [`Catalog::renew_lease`].
    pub async fn update_lease_body(&self, id: LeaseId, fence: Fence, body: Json) -> Result<()> {
        self.change(Renew { id, fence, ttl: None, body: Some(body) }).await.map(drop)
    }

    /// Gives a lease back, also a lapsed one. Running tasks under it go back to the queue.
    ///
    /// # Errors
    /// `LeaseExpired` if another holder has it, `NotEmpty` while intentions lie under it. Without the lease there is
    /// nothing to do.
    pub async fn release_lease(&self, id: LeaseId, fence: Fence) -> Result<()> {
        self.change(Release { id, fence }).await
    }

    /// Returns a lease, also a lapsed one.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn lease(&self, id: LeaseId) -> Result<Lease> {
        let missing = || Error::new(ErrorKind::NotFound, format!("there is no lease {id}"));
        self.ask(ById(id)).await?.ok_or_else(missing)
    }

    /// Returns the leases of a kind, in the order in which they were first taken.
    pub async fn leases(&self, kind: LeaseKind) -> Result<Vec<Lease>> {
        self.ask(OfKind(kind)).await
    }

    /// Returns the leases of a kind that a holder has, also lapsed ones, in the order in which they were first taken.
    pub async fn leases_of(&self, kind: LeaseKind, holder: &str) -> Result<Vec<Lease>> {
        self.ask(OfHolder(kind, holder.to_owned())).await
    }

    /// Takes over at most `limit` leases that have lapsed, of one kind or any, for `ttl`. Each has a new fence, so that
    /// its old holder cannot commit any more; its running tasks go back to the queue. What a server kept with its lease goes.
    pub async fn take_over_lapsed(
        &self,
        kind: Option<LeaseKind>,
        holder: &str,
        ttl: Duration,
        limit: usize,
    ) -> Result<Vec<LapsedLease>> {
        let which = Which::Lapsed { kind, limit };
        self.change(TakeOver { which, holder: holder.to_owned(), ttl }).await
    }

    /// Takes over every lease of a kind, lapsed or not: for the start of the only server of an embedded catalog.
    pub async fn take_over_all(
        &self,
        kind: LeaseKind,
        holder: &str,
        ttl: Duration,
    ) -> Result<Vec<LapsedLease>> {
        self.change(TakeOver { which: Which::All(kind), holder: holder.to_owned(), ttl }).await
    }
}

struct Acquire {
    id: Option<LeaseId>,
    kind: LeaseKind,
    holder: String,
    ttl: Duration,
    body: Json,
}

impl Change for Acquire {
    type Draft = Lease;
    type Out = Lease;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Lease> {
        let Self { id, kind, holder, ttl, body } = self;
        if let Some(id) = id
            && !lease::by_ids(batch.tx, vec![*id], Lock::None).await?.is_empty()
        {
            let message = format!("there is a lease {id} already");
            return Err(Error::new(ErrorKind::Conflict { version: None }, message));
        }
        let fence = Fence(site::take_fences(batch.tx, 1).await?);
        let expires = batch.now().after(*ttl);
        let (holder, body) = (holder.clone(), body.clone());
        let id = id.unwrap_or_else(LeaseId::new);
        let lease = Lease { id, kind: *kind, holder, fence, expires, body };
        lease::insert(batch.tx, &lease).await?;
        Ok(lease)
    }

    fn finish(self, lease: Lease, _written: &Written) -> Lease {
        lease
    }
}

/// Returns a lease that is held with this fence, locked for changing.
async fn held<T: Tx>(batch: &mut Batch<'_, T>, id: LeaseId, fence: Fence) -> Result<Lease> {
    batch.forget_lease(id);
    let lost = || {
        let message = format!("lease {id} with fence {fence} is not held any more");
        Error::new(ErrorKind::LeaseExpired, message)
    };
    let lease = lease::by_ids(batch.tx, vec![id], Lock::Update).await?.pop().ok_or_else(lost)?;
    if lease.fence == fence { Ok(lease) } else { Err(lost()) }
}

struct Renew {
    id: LeaseId,
    fence: Fence,
    ttl: Option<Duration>,
    body: Option<Json>,
}

impl Change for Renew {
    type Draft = Lease;
    type Out = Lease;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Lease> {
        let Self { id, fence, ttl, body } = self;
        let mut lease = held(batch, *id, *fence).await?;
        let now = batch.now();
        if lease.expires <= now {
            let message = format!("lease {id} expired at {}", lease.expires);
            return Err(Error::new(ErrorKind::LeaseExpired, message));
        }
        if let Some(ttl) = ttl {
            lease.expires = now.after(*ttl);
        }
        if let Some(body) = body {
            lease.body = body.clone();
        }
        lease::update(batch.tx, &lease).await?;
        Ok(lease)
    }

    fn finish(self, lease: Lease, _written: &Written) -> Lease {
        lease
    }
}

struct Release {
    id: LeaseId,
    fence: Fence,
}

impl Change for Release {
    type Draft = ();
    type Out = ();

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<()> {
        let Self { id, fence } = self;
        batch.forget_lease(*id);
        if lease::by_ids(batch.tx, vec![*id], Lock::None).await?.is_empty() {
            return Ok(());
        }
        held(batch, *id, *fence).await?;
        // Intentions that changes before this one ended must not be seen any more.
        batch.flush().await?;
        if publish::lease_has(batch.tx, *id).await? {
            let message = format!("cannot release lease {id}: publications under it are not finished");
            return Err(Error::new(ErrorKind::NotEmpty, message));
        }
        requeue_of_lease(batch, *id, false).await?;
        lease::delete(batch.tx, *id).await
    }

    fn finish(self, (): (), _written: &Written) {}
}

enum Which {
    Lapsed { kind: Option<LeaseKind>, limit: usize },
    All(LeaseKind),
}

struct TakeOver {
    which: Which,
    holder: String,
    ttl: Duration,
}

impl Change for TakeOver {
    type Draft = Vec<LapsedLease>;
    type Out = Vec<LapsedLease>;

    fn want(&self, _wants: &mut Wants) {}

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Vec<LapsedLease>> {
        let now = batch.now();
        let leases = match &self.which {
            Which::Lapsed { kind, limit } => lease::lapsed(batch.tx, now, *kind, *limit).await?,
            Which::All(kind) => lease::of_kind(batch.tx, *kind).await?,
        };
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let mut fence = site::take_fences(batch.tx, leases.len() as u64).await?;
        let mut taken = Vec::with_capacity(leases.len());
        for old in leases {
            batch.forget_lease(old.id);
            let (old_fence, old_holder) = (old.fence, old.holder.clone());
            let lease = Lease {
                holder: self.holder.clone(),
                fence: Fence(fence),
                expires: now.after(self.ttl),
                // What a server said of itself died with it; what is known of an upload is needed to undo it.
                body: if old.kind == LeaseKind::Server { serde_json::json!({"v": 1}) } else { old.body },
                ..old
            };
            fence += 1;
            lease::update(batch.tx, &lease).await?;
            requeue_of_lease(batch, lease.id, true).await?;
            taken.push(LapsedLease { lease, old_fence, old_holder });
        }
        Ok(taken)
    }

    fn finish(self, taken: Vec<LapsedLease>, _written: &Written) -> Vec<LapsedLease> {
        taken
    }
}

struct ById(LeaseId);

impl Query for ById {
    type Out = Option<Lease>;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Option<Lease>> {
        Ok(lease::by_ids(tx, vec![self.0], Lock::None).await?.pop())
    }
}

struct OfKind(LeaseKind);

impl Query for OfKind {
    type Out = Vec<Lease>;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<Lease>> {
        lease::of_kind(tx, self.0).await
    }
}

struct OfHolder(LeaseKind, String);

impl Query for OfHolder {
    type Out = Vec<Lease>;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<Lease>> {
        lease::of_holder(tx, self.0, &self.1).await
    }
}
