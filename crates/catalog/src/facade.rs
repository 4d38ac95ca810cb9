//! The interface of the catalog.

use std::path::Path;
use std::time::Duration;

use percale_core::access::{Caller, Permission, Subject};
use percale_core::ids::{Fence, LeaseId, SpaceId, StoreId, TaskId, TokenId, VersionId};
use percale_core::path::SpaceName;
use percale_core::{ObjectPath, Position, Timestamp};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::model::*;

/// The catalog of a site.
#[derive(Debug, Clone)]
pub struct Catalog {}

macro_rules! later {
    ($($arg:expr),*) => {{
        $(let _ = &$arg;)*
        Err(Error::unsupported("this call is not built yet"))
    }};
}

/// Opening and closing.
impl Catalog {
    /// Opens the catalog, makes it if it is new, and brings its schema up to date under a lock.
    ///
    /// # Errors
    /// `InvalidConfiguration` for a URL that cannot be used or a schema of a newer release, `Unavailable`.
    pub async fn open(config: &CatalogConfig) -> Result<Self> {
        later!(config)
    }

    /// Ends all work: changes that were taken are finished, later ones are refused.
    pub async fn close(&self) {}

    /// Asks the database for a sign of life, without repeating.
    pub async fn ping(&self) -> Result<()> {
        later!()
    }

    /// Returns the version of the schema.
    pub async fn schema_version(&self) -> Result<u32> {
        later!()
    }

    /// Returns the database's time, which leases go by.
    pub async fn now(&self) -> Result<Timestamp> {
        later!()
    }
}

/// The site.
impl Catalog {
    /// Gives the site its id and name; the same again if it has that name already.
    ///
    /// # Errors
    /// `AlreadyExists` if it has another name.
    pub async fn init_site(&self, name: &str) -> Result<Site> {
        later!(name)
    }

    /// Returns the site. # Errors: `NotFound` before [`Catalog::init_site`].
    pub async fn site(&self) -> Result<Site> {
        later!()
    }
}

/// Spaces.
impl Catalog {
    /// Makes a space; its owner gets `manage`. For administrators.
    pub async fn create_space(&self, caller: &Caller, new: NewSpace) -> Result<Space> {
        later!(caller, new)
    }

    /// Returns the spaces that the caller may know of, by name.
    pub async fn spaces(&self, caller: &Caller) -> Result<Vec<Space>> {
        later!(caller)
    }

    /// Returns a space that the caller may know of.
    pub async fn space(&self, caller: &Caller, name: &SpaceName) -> Result<Space> {
        later!(caller, name)
    }

    /// Changes a space. Needs `manage` on its root; a new default store needs an administrator.
    pub async fn update_space(
        &self,
        caller: &Caller,
        name: &SpaceName,
        change: SpaceChange,
    ) -> Result<Space> {
        later!(caller, name, change)
    }

    /// Removes an empty space. For administrators.
    pub async fn remove_space(&self, caller: &Caller, name: &SpaceName) -> Result<()> {
        later!(caller, name)
    }
}

/// Stores. The server checks that the caller is an administrator.
impl Catalog {
    /// Adds a store.
    pub async fn add_store(&self, new: NewStore) -> Result<Store> {
        later!(new)
    }

    /// Returns all stores, by name.
    pub async fn stores(&self) -> Result<Vec<Store>> {
        later!()
    }

    /// Changes a store.
    pub async fn update_store(&self, id: StoreId, change: StoreChange) -> Result<Store> {
        later!(id, change)
    }

    /// Removes a store. # Errors: `NotEmpty` while replicas, intents or garbage lie on it.
    pub async fn remove_store(&self, id: StoreId) -> Result<()> {
        later!(id)
    }
}

/// Grants. Each needs `manage` on the path.
impl Catalog {
    /// Gives a permission on a path and what is below it, in place of what the subject had there.
    pub async fn set_grant(
        &self,
        caller: &Caller,
        path: &ObjectPath,
        subject: Subject,
        permission: Permission,
    ) -> Result<Position> {
        later!(caller, path, subject, permission)
    }

    /// Takes back what was given on exactly this path.
    pub async fn remove_grant(
        &self,
        caller: &Caller,
        path: &ObjectPath,
        subject: &Subject,
    ) -> Result<Position> {
        later!(caller, path, subject)
    }

    /// Returns the grants on a path and those it inherits.
    pub async fn grants(&self, caller: &Caller, path: &ObjectPath) -> Result<Vec<Grant>> {
        later!(caller, path)
    }

    /// Returns the highest permission that the caller has on a path, if any.
    pub async fn permission(&self, caller: &Caller, path: &ObjectPath) -> Result<Option<Permission>> {
        later!(caller, path)
    }
}

/// Reading.
impl Catalog {
    /// Returns what is at a path.
    pub async fn stat(&self, caller: &Caller, path: &ObjectPath) -> Result<Entry> {
        later!(caller, path)
    }

    /// Lists a collection in the order of the names' bytes; of an object, just that.
    pub async fn list(
        &self,
        caller: &Caller,
        path: &ObjectPath,
        options: ListOptions,
    ) -> Result<Page<Listed>> {
        later!(caller, path, options)
    }

    /// Returns what is needed to read an object: its current version, or the given one if it is the object's.
    pub async fn open_object(
        &self,
        caller: &Caller,
        path: &ObjectPath,
        version: Option<VersionId>,
    ) -> Result<OpenVersion> {
        later!(caller, path, version)
    }

    /// The same by version id, wherever the object is now.
    pub async fn open_by_id(
        &self,
        caller: &Caller,
        space: SpaceId,
        version: VersionId,
    ) -> Result<OpenVersion> {
        later!(caller, space, version)
    }

    /// The same for many paths in few queries, in their order.
    pub async fn open_many(&self, caller: &Caller, paths: &[ObjectPath]) -> Vec<Result<OpenVersion>> {
        let _ = caller;
        paths.iter().map(|_| later!()).collect()
    }

    /// Returns the end of a space's journal.
    pub async fn position(&self, space: SpaceId) -> Result<Position> {
        later!(space)
    }
}

/// Changing the namespace.
impl Catalog {
    /// Makes a collection; with `parents` also those above it, and none is needed if it is there.
    pub async fn create_collection(
        &self,
        caller: &Caller,
        path: &ObjectPath,
        parents: bool,
    ) -> Result<Changed> {
        later!(caller, path, parents)
    }

    /// Renames within a space, atomically. Renaming something onto itself does nothing.
    pub async fn rename(
        &self,
        caller: &Caller,
        from: &ObjectPath,
        to: &ObjectPath,
        options: RenameOptions,
    ) -> Result<Changed> {
        later!(caller, from, to, options)
    }

    /// Removes an object or collection.
    pub async fn remove(
        &self,
        caller: &Caller,
        path: &ObjectPath,
        options: RemoveOptions,
    ) -> Result<Removed> {
        later!(caller, path, options)
    }

    /// Removes at most `max` entries of a tree, the leaves first; repeated until [`Removed::is_done`].
    pub async fn remove_some(&self, caller: &Caller, path: &ObjectPath, max: usize) -> Result<Removed> {
        later!(caller, path, max)
    }
}

/// Publishing (docs/design/publishing.md).
impl Catalog {
    /// Prepares publications, each with its own outcome, in one transaction.
    pub async fn prepare(&self, wanted: Vec<Prepare>) -> Vec<Result<Intent>> {
        wanted.iter().map(|_| later!()).collect()
    }

    /// Makes prepared publications visible, each with its own outcome, in one transaction.
    pub async fn commit(&self, written: Vec<Commit>) -> Vec<Result<Committed>> {
        written.iter().map(|_| later!()).collect()
    }

    /// Gives up prepared publications whose bytes were removed. Those that are not there any more are passed over.
    pub async fn abandon(&self, intents: Vec<IntentId>) -> Result<()> {
        later!(intents)
    }

    /// Returns the intentions prepared under a lease.
    pub async fn intents_of(&self, lease: LeaseId) -> Result<Vec<IntentRow>> {
        later!(lease)
    }

    /// Deletes an intention that was undone.
    pub async fn delete_intent(&self, intent: IntentId) -> Result<()> {
        later!(intent)
    }
}

/// Leases (docs/design/leases.md).
impl Catalog {
    /// Takes a lease.
    pub async fn acquire_lease(
        &self,
        kind: LeaseKind,
        holder: &str,
        ttl: Duration,
        body: Value,
    ) -> Result<Lease> {
        later!(kind, holder, ttl, body)
    }

    /// Makes a lease end `ttl` from now. # Errors: `LeaseExpired` if it has lapsed or is another's.
    pub async fn renew_lease(&self, id: LeaseId, fence: Fence, ttl: Duration) -> Result<Lease> {
        later!(id, fence, ttl)
    }

    /// Gives a lease back, also a lapsed one. Running tasks under it go back to the queue. # Errors: `LeaseExpired` if
    /// it is another's, `NotEmpty` while intents lie under it.
    pub async fn release_lease(&self, id: LeaseId, fence: Fence) -> Result<()> {
        later!(id, fence)
    }

    /// Returns a lease. # Errors: `NotFound`.
    pub async fn lease(&self, id: LeaseId) -> Result<Lease> {
        later!(id)
    }

    /// Replaces what the holder keeps with its lease.
    pub async fn update_lease_body(&self, id: LeaseId, fence: Fence, body: Value) -> Result<()> {
        later!(id, fence, body)
    }

    /// Takes over leases that have lapsed, of one kind or any, for `ttl`. Running tasks under them go back to the queue.
    pub async fn take_over_lapsed(
        &self,
        kind: Option<LeaseKind>,
        holder: &str,
        ttl: Duration,
        limit: usize,
    ) -> Result<Vec<LapsedLease>> {
        later!(kind, holder, ttl, limit)
    }

    /// Takes over every lease of a kind, lapsed or not: for the start of the only server of an embedded catalog.
    pub async fn take_over_all(
        &self,
        kind: LeaseKind,
        holder: &str,
        ttl: Duration,
    ) -> Result<Vec<LapsedLease>> {
        later!(kind, holder, ttl)
    }

    /// Returns the leases of a kind, for listing uploads.
    pub async fn leases(&self, kind: LeaseKind) -> Result<Vec<Lease>> {
        later!(kind)
    }
}

/// Garbage and replicas.
impl Catalog {
    /// Returns bytes on a store that the collector may delete, oldest first.
    pub async fn garbage(&self, store: StoreId, limit: usize) -> Result<Vec<Garbage>> {
        later!(store, limit)
    }

    /// Notes that these bytes are deleted.
    pub async fn collected(&self, deleted: Vec<Garbage>) -> Result<()> {
        later!(deleted)
    }

    /// Notes what a store's site says about copies. # Errors: for each: `Conflict` if the state may not follow.
    pub async fn report_replicas(
        &self,
        actor: &Caller,
        reports: Vec<ReplicaReport>,
    ) -> Vec<Result<Position>> {
        let _ = actor;
        reports.iter().map(|_| later!()).collect()
    }

    /// Returns the copies on a store in the order of their keys, after the given key.
    pub async fn replicas_on(
        &self,
        store: StoreId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StoredReplica>> {
        later!(store, after, limit)
    }

    /// Notes that a native file has new content: a new version is current, other copies become stale.
    pub async fn native_changed(&self, actor: &Caller, change: NativeChange) -> Result<Committed> {
        later!(actor, change)
    }
}

/// Tasks (docs/design/tasks.md). A task is its owner's and the administrators'.
impl Catalog {
    /// Submits a task, or returns the one that was submitted with the same idempotency key.
    pub async fn submit_task(&self, caller: &Caller, new: NewTask) -> Result<Task> {
        later!(caller, new)
    }

    /// Returns a task.
    pub async fn task(&self, caller: &Caller, id: TaskId) -> Result<Task> {
        later!(caller, id)
    }

    /// Returns the caller's tasks, all of them for an administrator, the newest first.
    pub async fn tasks(
        &self,
        caller: &Caller,
        filter: TaskFilter,
        after: Option<String>,
        limit: usize,
    ) -> Result<Page<Task>> {
        later!(caller, filter, after, limit)
    }

    /// Takes the oldest queued task of one of these kinds (any, if empty), if there is one that may run now.
    pub async fn claim_task(&self, holder: TaskHolder, kinds: &[String]) -> Result<Option<Task>> {
        later!(holder, kinds)
    }

    /// Records what was done. Returns the task: its worker stops if it is not `running` any more.
    ///
    /// # Errors
    /// `LeaseExpired` if the task is not held under this lease any more.
    pub async fn record_progress(&self, id: TaskId, holder: TaskHolder, report: TaskReport) -> Result<Task> {
        later!(id, holder, report)
    }

    /// Ends an attempt.
    pub async fn finish_task(
        &self,
        id: TaskId,
        holder: TaskHolder,
        report: TaskReport,
        outcome: TaskOutcome,
    ) -> Result<Task> {
        later!(id, holder, report, outcome)
    }

    /// Cancels a task that has not ended.
    pub async fn cancel_task(&self, caller: &Caller, id: TaskId) -> Result<Task> {
        later!(caller, id)
    }

    /// Puts a task that was not wholly successful back into the queue, with its attempts counted anew.
    pub async fn retry_task(&self, caller: &Caller, id: TaskId) -> Result<Task> {
        later!(caller, id)
    }

    /// Returns the items that did not succeed; `next` is the number of the last.
    pub async fn task_items(
        &self,
        caller: &Caller,
        id: TaskId,
        after: Option<String>,
        limit: usize,
    ) -> Result<Page<TaskItem>> {
        later!(caller, id, after, limit)
    }

    /// Returns what happened to a task after event number `after` (0: from the beginning).
    pub async fn task_events(&self, caller: &Caller, id: TaskId, after: u64) -> Result<Vec<TaskEvent>> {
        later!(caller, id, after)
    }
}

/// Tokens.
impl Catalog {
    /// Notes an issued token.
    pub async fn record_token(&self, token: TokenRecord) -> Result<()> {
        later!(token)
    }

    /// Withdraws a token: one's own, or any for an administrator.
    pub async fn revoke_token(&self, caller: &Caller, id: TokenId) -> Result<()> {
        later!(caller, id)
    }

    /// Returns the caller's tokens that have not ended, all of them for an administrator.
    pub async fn tokens(&self, caller: &Caller) -> Result<Vec<TokenRecord>> {
        later!(caller)
    }

    /// Returns the tokens that were withdrawn at or after a time and would not have ended yet.
    pub async fn revoked_since(&self, since: Timestamp) -> Result<Vec<TokenId>> {
        later!(since)
    }

    /// Tells whether a token was withdrawn.
    pub async fn is_revoked(&self, id: TokenId) -> Result<bool> {
        later!(id)
    }
}

/// Idempotency keys.
impl Catalog {
    /// Notes that a request with this key has begun, or tells what is known of it.
    pub async fn remember(&self, key: &AnswerKey, request_hash: [u8; 32]) -> Result<Remembered> {
        later!(key, request_hash)
    }

    /// Keeps the answer for 24 hours.
    pub async fn answer(&self, key: &AnswerKey, answer: Answer) -> Result<()> {
        later!(key, answer)
    }

    /// Forgets a request that failed and may be repeated with the same key.
    pub async fn forget(&self, key: &AnswerKey) -> Result<()> {
        later!(key)
    }
}

/// The journal (docs/design/journal.md).
impl Catalog {
    /// Returns the records behind a position, or from the first that is kept. Needs `read` on the space.
    ///
    /// # Errors
    /// `PreconditionFailed` for a position of an older term, or one whose records are not kept any more.
    pub async fn journal(
        &self,
        caller: &Caller,
        space: SpaceId,
        after: Option<Position>,
        limit: usize,
    ) -> Result<Vec<Record>> {
        later!(caller, space, after, limit)
    }

    /// Returns a number that grows when any journal grew, by this or another server. Others' records are noticed within
    /// 100 ms while somebody holds a receiver.
    pub fn watch(&self) -> tokio::sync::watch::Receiver<u64> {
        tokio::sync::watch::channel(0).1
    }

    /// Deletes records older than `keep`, but none of the last `keep_records` of a space. Returns how many.
    pub async fn prune_journal(&self, keep: Duration, keep_records: u64) -> Result<u64> {
        later!(keep, keep_records)
    }

    /// Deletes answers, tokens and finished tasks that nobody can ask for any more. Returns how many rows.
    pub async fn prune(&self, keep_tasks: Duration) -> Result<u64> {
        later!(keep_tasks)
    }
}

/// Care.
impl Catalog {
    /// Writes everything to one archive file, as of one moment, while work goes on; then reads it back and checks it.
    pub async fn backup(&self, to: &Path) -> Result<BackupInfo> {
        later!(to)
    }

    /// Reads an archive and checks it. Needs no catalog.
    pub async fn verify_backup(path: &Path) -> Result<BackupInfo> {
        later!(path)
    }

    /// Fills this catalog, which must be empty, from an archive of either engine. The term of every space grows.
    pub async fn restore(&self, from: &Path) -> Result<BackupInfo> {
        later!(from)
    }

    /// Checks that the rows agree with each other.
    pub async fn fsck(&self) -> Result<Vec<Finding>> {
        later!()
    }
}
