//! Reading and pruning the journal (docs/design/journal.md).

use std::time::Duration;

use percale_core::access::{Caller, Permission};
use percale_core::ids::SpaceId;
use percale_core::{ObjectPath, Position, Timestamp};

use crate::access::enter;
use crate::batch::{Batch, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Query, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{MAX_JOURNAL, Record};
use crate::rows::{journal, kept, peer, site, task, told};

/// The journal.
impl Catalog {
    /// Returns at most `limit` (at most [`MAX_JOURNAL`]) records behind a position, or from the first that is kept; where they are long, no
    /// more than about a mebibyte of them, but always one if there is one. Needs `read` on the root of the space; that of a removed space is
    /// for administrators.
    ///
    /// # Errors
    /// - `PreconditionFailed` for a position of another term, one whose following records are not kept any more, or one
    ///   behind the end: its holder begins again from a snapshot.
    /// - `SpaceNotFound`, `Denied`.
    pub async fn journal(
        &self,
        caller: &Caller,
        space: SpaceId,
        after: Option<Position>,
        limit: usize,
    ) -> Result<Vec<Record>> {
        let limit = limit.clamp(1, MAX_JOURNAL);
        self.ask(Read { caller: caller.clone(), space, after, limit }).await
    }

    /// Deletes records older than `keep`, but none of the last `keep_records` of a space. Returns how many.
    pub async fn prune_journal(&self, keep: Duration, keep_records: u64) -> Result<u64> {
        self.change(PruneJournal { keep, keep_records }).await
    }

    /// Deletes answers, also to other sites, tokens and invitations that have ended, and tasks that ended longer than
    /// `keep_tasks` ago. Returns how many.
    pub async fn prune(&self, keep_tasks: Duration) -> Result<u64> {
        self.change(Prune { keep_tasks }).await
    }
}

struct Read {
    caller: Caller,
    space: SpaceId,
    after: Option<Position>,
    limit: usize,
}

impl Query for Read {
    type Out = Vec<Record>;

    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<Record>> {
        let Self { caller, space, after, limit } = self;
        let missing = || {
            let message = format!("there is no space {space}, or you may not read it");
            Error::new(ErrorKind::SpaceNotFound, message)
        };
        let found = site::space_by_id(tx, *space).await?;
        let row = found.filter(|row| !row.is_removed || caller.is_admin()).ok_or_else(missing)?;
        if !row.is_removed {
            let path = ObjectPath::of_space(&row.space.name);
            if let Err(error) = enter(tx, caller, Permission::Read, &path).await {
                // The name of the space is not for those who may not read it.
                let is_hidden = error.code() == percale_core::ErrorCode::NotFound;
                return Err(if is_hidden { missing() } else { error });
            }
        }
        let end = row.space.position;
        let gone = |message: String| Error::new(ErrorKind::PreconditionFailed { version: None }, message);
        let seq = match after {
            None => 0,
            Some(after) if after.space != *space => {
                return Err(Error::invalid(format!("position {after} is not of space {space}")));
            }
            Some(after) if after.term != end.term || after.seq > end.seq => {
                let message =
                    format!("position {after} is not of this journal, which is at {end}: begin anew");
                return Err(gone(message));
            }
            Some(after) => after.seq,
        };
        let records = journal::read(tx, row.sp, *space, seq, *limit).await?;
        let first = records.first().map(|record| record.position.seq);
        if after.is_some() && seq < end.seq && first != Some(seq + 1) {
            return Err(gone(format!(
                "the records behind {space}.{}.{seq} are not kept any more: begin anew",
                end.term
            )));
        }
        Ok(records)
    }
}

struct PruneJournal {
    keep: Duration,
    keep_records: u64,
}

/// Returns the time that lies this long before another.
fn before(now: Timestamp, keep: Duration) -> Timestamp {
    let keep = i64::try_from(keep.as_micros()).unwrap_or(i64::MAX);
    Timestamp::from_micros(now.as_micros().saturating_sub(keep))
}

impl Change for PruneJournal {
    type Draft = u64;
    type Out = u64;
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<u64> {
        let before = before(batch.now(), self.keep);
        let mut deleted = 0;
        for row in site::spaces(batch.tx).await? {
            let up_to = row.space.position.seq.saturating_sub(self.keep_records);
            if journal::first(batch.tx, row.sp).await?.is_some_and(|first| first <= up_to) {
                deleted += journal::prune(batch.tx, row.sp, up_to, before).await?;
            }
        }
        Ok(deleted)
    }

    fn finish(self, deleted: u64, _written: &Written) -> u64 {
        deleted
    }
}

struct Prune {
    keep_tasks: Duration,
}

impl Change for Prune {
    type Draft = u64;
    type Out = u64;
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<u64> {
        let now = batch.now();
        let answers = kept::prune_answers(batch.tx, now).await?;
        let tokens = kept::prune_tokens(batch.tx, now).await?;
        let invitations =
            peer::prune_invitations(batch.tx, now).await? + peer::forget_retired_keys(batch.tx, now).await?;
        let tasks = task::prune(batch.tx, before(now, self.keep_tasks)).await?;
        let told = told::prune(batch.tx, before(now, crate::remote::KEEP_TOLD)).await?;
        Ok(answers + tokens + invitations + tasks + told)
    }

    fn finish(self, deleted: u64, _written: &Written) -> u64 {
        deleted
    }
}
