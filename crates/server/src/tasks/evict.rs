//! Lets the copies of this site go, of what is below a path. The home of the space is asked first, and keeps the last good
//! copy of each object; only its record makes the bytes garbage here.

use std::time::Duration;

use percale_api::peer::{Evict, MAX_COPIES, Outcome, OwnCopy};
use percale_catalog::{CopyId, EntryKind, EvictAnswer, Space};
use percale_core::{ErrorCode, ObjectPath, Position};
use percale_federation::follow;

use super::Attempt;
use super::replicate::space_of;
use crate::abroad::from_problem;
use crate::{ApiError, Result};

/// Entries in one step.
const STEP: usize = 500;
/// How long this site's follower is waited for, so that whoever looks at the end sees that the copies are gone.
const CATCH_UP: Duration = Duration::from_secs(2);

/// A copy at this site.
pub(super) struct Own {
    pub path: ObjectPath,
    pub bytes: u64,
    pub copy: CopyId,
}

pub(super) async fn run(attempt: &Attempt, path: &ObjectPath) -> Result<()> {
    let app = &attempt.app;
    let space = space_of(attempt, path).await?;
    let mut after = attempt.progress.after();
    let mut furthest = None;
    loop {
        let page = attempt.list(path, after, STEP).await?;
        let mut copies = Vec::new();
        for listed in page.items.into_iter().filter(|listed| listed.entry.kind == EntryKind::Object) {
            let bytes = listed.entry.content.as_ref().map_or(0, |content| content.size.0);
            for replica in &listed.replicas {
                if attempt.app.stores.is_own(replica.store).await? {
                    let (version, store) = (replica.version, replica.store);
                    let copy = CopyId { space: space.id, version, store };
                    copies.push(Own { path: listed.path.clone(), bytes, copy });
                }
            }
        }
        for some in copies.chunks(MAX_COPIES) {
            if let Some(position) = let_go(attempt, &space, some).await? {
                furthest = Some(position);
            }
        }
        attempt.step(page.next.clone())?;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if let Some(position) = furthest {
        drop(follow::caught_up(&app.fabric, position, CATCH_UP).await);
    }
    Ok(())
}

/// Asks the home about copies, and notes its answers. Returns where its journal says of the last one.
pub(super) async fn let_go(attempt: &Attempt, space: &Space, copies: &[Own]) -> Result<Option<Position>> {
    let app = &attempt.app;
    let answers: Vec<Result<Option<Position>>> = match space.home {
        None => {
            let ids = copies.iter().map(|own| own.copy).collect();
            let answers = app.catalog.remove_copies(None, &attempt.task.caller, ids).await;
            let position = |answer| match answer {
                EvictAnswer::Removed { position } => Some(position),
                EvictAnswer::Gone => None,
            };
            answers.into_iter().map(|answer| answer.map(position).map_err(ApiError::from)).collect()
        }
        Some(home) => {
            let items = copies.iter().map(|Own { copy, .. }| OwnCopy {
                space: copy.space,
                version: copy.version,
                store: copy.store,
            });
            let client = app.fabric.client(home, &attempt.acting)?;
            let answers = client.peer_evict(&Evict { items: items.collect() }).await;
            let answers = answers.map_err(percale_federation::Error::from)?.items;
            if answers.len() != copies.len() {
                return Err(ApiError::internal(
                    "the home of the space answered for another number of copies",
                ));
            }
            let outcome = |answer| match answer {
                Outcome::Done(position) => Ok(position),
                Outcome::Failed(problem) => Err(from_problem(problem)),
            };
            answers.into_iter().map(outcome).collect()
        }
    };
    let mut furthest = None;
    for (own, answer) in copies.iter().zip(answers) {
        match answer {
            Ok(position) => {
                furthest = position.or(furthest);
                attempt.progress.achieved(1, own.bytes);
            }
            // Asking again does not help while there is no other good copy.
            Err(error) if error.code() == ErrorCode::Conflict => {
                attempt.progress.failed(&own.path, "kept", &error);
            }
            Err(error) => attempt.failed(&own.path, "failed", &error),
        }
    }
    Ok(furthest)
}
