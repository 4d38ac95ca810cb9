//! A space gets another home: promotion of a follower, handing over, stepping down (docs/design/following.md).

use percale_core::Position;
use percale_core::ids::{SiteId, SpaceId};

use crate::batch::{Batch, Mark, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::follow::no_space;
use crate::model::{PeerState, Promoted};
use crate::record::{SpaceMovedBody, SpacePromotedBody, kind};
use crate::rows::site::{self, SpaceRow};
use crate::rows::{follow, peer};

/// Who causes these records: an administrator's word is not that of a user of the space.
const SYSTEM: &str = "system";

/// How far the ids of entries and versions jump. The home before gave out ids that this site has not heard of: behind the
/// position, and in blocks and prepared publications ahead of it. None may be given out again, since files in stores are
/// named by them and copies of the lost history come back with its home. 2^32 is what a home gives out in 12 hours at
/// 100 000 a second, or in 130 days at the 380 a second of a site that writes 16 million objects a day. Even 2 million
/// promotions stay below 2^53, up to which JavaScript's numbers are exact.
const JUMP: u64 = 1 << 32;

/// Other homes for spaces. These calls take no caller: the server lets only administrators and members make them.
impl Catalog {
    /// Makes this site the home of a space that it follows, while its home is lost: the term grows by one at the position
    /// that the rows have. What the old home wrote behind it is lost. Reports that waited for it are recorded here.
    ///
    /// # Errors
    /// `SpaceNotFound`; `AlreadyExists` if the space is at home here; `PreconditionFailed` if the rows are behind.
    pub async fn promote(&self, space: SpaceId) -> Result<Promoted> {
        self.change(Promote { space, at: None }).await
    }

    /// Makes this site the home of a space that its home handed over to it, at exactly this position.
    ///
    /// # Errors
    /// As [`Catalog::promote`]; `Foreign` if it was not handed over to this site, or the record of that has not come
    /// yet; `PreconditionFailed` if the rows stand elsewhere.
    pub async fn take_over(&self, space: SpaceId, position: Position) -> Result<Promoted> {
        self.change(Promote { space, at: Some(position) }).await
    }

    /// Stops all changes of a space that is at home here, also those that are prepared, and says in its journal that
    /// `to` is its home from there on. Returns the position of that record, at which the other takes over. Until it does,
    /// nobody can change the space; [`Catalog::promote`] takes it back.
    ///
    /// # Errors
    /// `SpaceNotFound`, `Foreign`; `NotFound` if the roster has no such active site.
    pub async fn hand_over(&self, space: SpaceId, to: SiteId) -> Result<Position> {
        self.change(HandOver { space, to }).await
    }

    /// Gives way to another home of a space that is at home here too, and has won it: its position has a greater term, or
    /// the same and its id is smaller. From then on the rows are behind; they are replaced by [`Catalog::follow_snapshot`].
    /// The caller has put them into an archive before. Nothing happens if the space is at home there already.
    ///
    /// # Errors
    /// `SpaceNotFound`; `Foreign` if a third site orders it; `PreconditionFailed` if this home has won.
    pub async fn step_down(&self, space: SpaceId, home: SiteId, position: Position) -> Result<()> {
        self.change(StepDown { space, home, position }).await
    }
}

/// Returns the locked row of a space, and the id of this site.
async fn locked<T: Tx>(tx: &T, id: SpaceId) -> Result<(SpaceRow, SiteId)> {
    let row =
        follow::locked_space(tx, id).await?.filter(|row| !row.is_removed).ok_or_else(|| no_space(id))?;
    let unnamed = || Error::new(ErrorKind::NotFound, "the catalog does not belong to a site yet");
    Ok((row, site::site(tx).await?.ok_or_else(unnamed)?.id))
}

fn precondition(message: String) -> Error {
    Error::new(ErrorKind::PreconditionFailed { version: None }, message)
}

struct Promote {
    space: SpaceId,
    /// Where the space was handed over, if it was.
    at: Option<Position>,
}

impl Change for Promote {
    type Draft = (Position, Mark);
    type Out = Promoted;
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Self::Draft> {
        let (row, here) = locked(batch.tx, self.space).await?;
        let (name, before) = (&row.space.name, row.space.position);
        let Some(from) = row.space.home else {
            let message = format!("the space '{name}' is at home here already, at {before}");
            return Err(Error::new(ErrorKind::AlreadyExists { version: None }, message));
        };
        if self.at.is_some() && from != here {
            let message =
                format!("the space '{name}' was not handed over to this site, as far as it has heard");
            return Err(Error::new(ErrorKind::Foreign { home: from }, message));
        }
        if let Some(at) = self.at.filter(|at| *at != before) {
            return Err(precondition(format!(
                "the space '{name}' was handed over at {at}, and stands at {before}"
            )));
        }
        if let Some(behind) = &row.space.behind {
            let message =
                format!("the rows of the space '{name}' cannot be trusted and need a snapshot: {behind}");
            return Err(precondition(message));
        }
        follow::come_home(batch.tx, row.sp, JUMP).await?;
        let body = SpacePromotedBody { home: here, from, before };
        let mark = batch.record(row.sp, SYSTEM, kind::SPACE_PROMOTED, &body)?;
        crate::report::record_waiting(batch, row.sp).await?;
        Ok((before, mark))
    }

    fn finish(self, (before, mark): Self::Draft, written: &Written) -> Promoted {
        Promoted { position: written.position(mark), before }
    }
}

struct HandOver {
    space: SpaceId,
    to: SiteId,
}

impl Change for HandOver {
    type Draft = Position;
    type Out = Position;
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Position> {
        let (row, _) = locked(batch.tx, self.space).await?;
        row.require_home()?;
        let peers = peer::peers(batch.tx).await?;
        if !peers.iter().any(|peer| peer.id == self.to && peer.state == PeerState::Active) {
            let message = format!(
                "cannot hand over the space '{}': the roster has no active site {}",
                row.space.name, self.to
            );
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        // The last record of this home, and then it is none: numbered here, since the batch numbers at its end.
        let body = SpaceMovedBody { to: self.to };
        let position = follow::append(batch.tx, &row, SYSTEM, kind::SPACE_MOVED, &body).await?;
        follow::leave(batch.tx, row.sp, self.to, None).await?;
        batch.journal_grew();
        Ok(position)
    }

    fn finish(self, position: Position, _written: &Written) -> Position {
        position
    }
}

struct StepDown {
    space: SpaceId,
    home: SiteId,
    position: Position,
}

impl Change for StepDown {
    type Draft = ();
    type Out = ();
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<()> {
        let Self { space, home, position } = self;
        let (row, here) = locked(batch.tx, *space).await?;
        let (name, own) = (&row.space.name, row.space.position);
        match row.space.home {
            Some(known) if known == *home => return Ok(()),
            Some(known) => {
                let message = format!("the space '{name}' is at home at site {known}, not here");
                return Err(Error::new(ErrorKind::Foreign { home: known }, message));
            }
            None => {}
        }
        if position.space != *space || *home == here {
            return Err(Error::invalid(format!(
                "site {home} at {position} is no other home of space {space}"
            )));
        }
        if (position.term, here) <= (own.term, *home) {
            let message = format!(
                "the space '{name}' stays at home here: at {own} this site has won it over site {home} at {position}"
            );
            return Err(precondition(message));
        }
        let behind = format!("it was at home here until {own}, and is at site {home} since {position}");
        follow::leave(batch.tx, row.sp, *home, Some(behind)).await
    }

    fn finish(self, (): (), _written: &Written) {}
}
