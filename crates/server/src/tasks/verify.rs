//! Reads every copy below a path from its store and hashes it. What is found is noted in the catalog copy by copy.

use futures::{StreamExt as _, stream};
use percale_catalog::{EntryKind, ListOptions, Listed, OpenVersion, Replica};
use percale_core::state::ReplicaState;
use percale_core::{ErrorCode, ObjectPath, Position};

use super::Attempt;
use crate::{ApiError, OnPath as _, Result};

/// Entries in one step.
const STEP: usize = 100;
/// Copies that are read at once.
const AT_ONCE: usize = 4;

pub(super) async fn run(attempt: &Attempt, path: &ObjectPath) -> Result<()> {
    let caller = &attempt.task.caller;
    let mut after = attempt.progress.after();
    loop {
        let mut options = ListOptions::default();
        options.after = after;
        options.limit = STEP;
        options.recursive = true;
        options.replicas = true;
        let page = attempt.app.catalog.list(caller, path, options).await.on_path(path)?;
        let position = page.position;
        let copies = page.items.into_iter().filter(|listed| listed.entry.kind == EntryKind::Object).flat_map(
            |listed| {
                let version = opened(listed, position);
                let replicas = version.as_ref().map(|version| version.replicas.clone()).unwrap_or_default();
                replicas.into_iter().filter_map(move |replica| Some((version.clone()?, replica)))
            },
        );
        stream::iter(copies)
            .for_each_concurrent(AT_ONCE, |(version, replica)| check(attempt, version, replica))
            .await;
        attempt.progress.step(page.next.clone());
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// A line of a listing as a version to be read.
pub(super) fn opened(listed: Listed, position: Option<Position>) -> Option<OpenVersion> {
    let Listed { path, entry, replicas } = listed;
    let content = entry.content?;
    Some(OpenVersion {
        path,
        space: entry.space,
        entry: entry.id,
        version: content.version,
        is_current: true,
        size: content.size,
        root: content.root,
        digests: content.digests,
        mtime: content.mtime,
        modified: entry.modified,
        replicas,
        position: position.unwrap_or(Position { space: entry.space, term: 0, seq: 0 }),
    })
}

async fn check(attempt: &Attempt, version: OpenVersion, replica: Replica) {
    let skipped = match replica.state {
        ReplicaState::Writing => Some((ErrorCode::Conflict, "this copy is being written")),
        ReplicaState::Offline | ReplicaState::Nearline => {
            Some((ErrorCode::Offline, "this copy is on a store that is away, or on tape"))
        }
        ReplicaState::Stale => Some((ErrorCode::VersionChanged, "this copy holds an older version")),
        _ => None,
    };
    if let Some((code, why)) = skipped {
        let error = ApiError::new(code, format!("{why} (store {})", replica.store));
        return attempt.progress.failed(&version.path, "skipped", &error);
    }
    match attempt.app.reader.check(&version, &replica).await {
        Ok(_) => attempt.progress.done(1, version.size.0),
        Err(error) => {
            let outcome = match error.code() {
                ErrorCode::Integrity | ErrorCode::DataLost => "damaged",
                _ => "failed",
            };
            attempt.progress.failed(&version.path, outcome, &error);
        }
    }
}
