//! Following the journals of other homes (docs/design/following.md).

mod apply;
mod lines;
mod receive;
mod replace;
mod snapshot;
mod stores;

use bytes::Bytes;
use percale_core::Position;
use percale_core::access::Subject;
use percale_core::ids::{SiteId, SpaceId};
use tokio::sync::mpsc;

use crate::batch::{Batch, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Query, Tx};
use crate::error::{Error, ErrorKind, Fault, Result};
use crate::model::{Followed, ForeignStore, Record, Space};
use crate::rows::{follow, site};

pub use snapshot::SpaceSnapshot;

/// Following other homes. These calls take no caller: the server makes them for itself and for members of the fabric.
impl Catalog {
    /// Takes what another site says of all its stores. One that it does not list any more stays for the copies on it and
    /// goes offline.
    ///
    /// # Errors
    /// `InvalidRequest` if one of them belongs to this site or a third one; then nothing is changed.
    pub async fn learn_stores(&self, site: SiteId, stores: Vec<ForeignStore>) -> Result<()> {
        self.change(stores::Learn { site, stores }).await
    }

    /// Returns where the spaces of a home stand here that can be followed from there: neither removed nor behind.
    pub async fn followed(&self, home: SiteId) -> Result<Vec<Position>> {
        self.ask(ListFollowed(home)).await
    }

    /// Returns a space of another home that is followed here, or nothing if it is not, is at home here, or was removed.
    pub async fn followed_space(&self, id: SpaceId) -> Result<Option<Space>> {
        self.ask(GetFollowed(id)).await
    }

    /// Applies records of a space's home, in their order, in one transaction that also moves the position.
    ///
    /// - Each counts once: those up to the position are passed over.
    /// - They are kept as the home wrote them; the rows name users as this site does.
    /// - A record of a kind or form that this release does not know is kept and ends the call: the space is behind, and
    ///   no record is taken until [`Catalog::follow_snapshot`].
    /// - A copy on an own store that loses its version becomes garbage. What the home says of the state of one is passed
    ///   over while a report about it waits in the outbox.
    ///
    /// # Errors
    /// - `SpaceNotFound`, `Foreign` if another site, or this one, orders the space.
    /// - `DoesNotFit` for a gap, another term, or a record that contradicts the rows: a snapshot has to be taken.
    /// - `AlreadyExists` if the space got a name that another one has here.
    ///
    /// Nothing is changed then.
    pub async fn follow(
        &self,
        space: SpaceId,
        home: SiteId,
        home_name: &str,
        own_name: &str,
        records: Vec<Record>,
    ) -> Result<Followed> {
        let names = Names::new(home_name, own_name);
        self.change(Follow { space, home, names, records }).await
    }

    /// Begins a snapshot of a space that is at home here, as of one moment, in the form of `follow/lines.rs`. Two at a time
    /// are written; a further one waits. One that nobody reads from for a minute ends.
    ///
    /// # Errors
    /// `SpaceNotFound`, `Foreign`.
    pub async fn snapshot(&self, space: SpaceId) -> Result<SpaceSnapshot> {
        snapshot::begin(self, space).await
    }

    /// Puts a snapshot, of which `lines` are the pieces up to the end of the channel, in place of all rows of a space, in
    /// one transaction. A space that is not known here is one from then on.
    ///
    /// - When copies on own stores were looked at stays, and so do reports that wait in the outbox, arrivals and garbage.
    /// - Copies on own stores that the home does not know become garbage, unless an arrival has their key. Garbage that
    ///   the home knows as a copy is one again, not verified.
    /// - It is first received to its end, in a file without a name beside an SQLite catalog or in the folder for
    ///   temporary files.
    ///
    /// # Errors
    /// - `DoesNotFit` if it is cut, altered or contradicts itself, `Unsupported` for a newer form.
    /// - `Foreign` if the space is at home here, or at another site with a term that is not smaller;
    ///   `PreconditionFailed` if it is of an older term.
    /// - `AlreadyExists` if another space has its name here.
    /// - `NoSpace`, `Unavailable`.
    ///
    /// Nothing is changed then.
    ///
    /// # Cancellation
    /// What was received is forgotten once the sender is gone.
    pub async fn follow_snapshot(
        &self,
        space: SpaceId,
        home: SiteId,
        home_name: &str,
        own_name: &str,
        lines: mpsc::Receiver<Bytes>,
    ) -> Result<Position> {
        let folder = self.spool_folder();
        let received = tokio::task::spawn_blocking(move || receive::receive(lines, &folder)).await;
        let received = received
            .map_err(|error| Error::internal("receiving a snapshot broke off").with_source(error))??;
        let names = Names::new(home_name, own_name);
        self.change(replace::Replace { space, home, names, received }).await
    }

    /// Stops following a space that its home does not have any more, as if the record of its removal had come. Nothing
    /// happens if it is not followed here.
    ///
    /// # Errors
    /// `Foreign` if another site than `home` orders it.
    pub async fn unfollow(&self, space: SpaceId, home: SiteId) -> Result<()> {
        self.change(Unfollow { space, home }).await
    }

    /// Returns a hash over the rows of a space that its home and its followers have equal at equal positions, with users
    /// as the home calls them. Not in it: when copies were checked, former versions without copies, ids not given out. While
    /// reports wait in an outbox, states and roots differ.
    ///
    /// # Errors
    /// `SpaceNotFound`; `NotFound` if the roster does not have the home.
    pub async fn space_digest(&self, space: SpaceId) -> Result<(Position, [u8; 32])> {
        self.ask(snapshot::Digest(space)).await
    }
}

/// What the home of a space and this site are called: their users change names in between.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    home: String,
    own: String,
}

impl Names {
    fn new(home: &str, own: &str) -> Self {
        Self { home: home.to_owned(), own: own.to_owned() }
    }

    /// Returns what this site calls whom the home calls `subject`.
    fn seen(&self, subject: &Subject) -> Subject {
        subject.seen(&self.home, &self.own)
    }
}

/// The error for a space that is not here.
pub(crate) fn no_space(id: SpaceId) -> Error {
    Error::new(ErrorKind::SpaceNotFound, format!("there is no space {id}"))
}

/// Ends the transaction with an error, since something was written.
fn ending(error: Error) -> Error {
    if error.fault().is_some() { error } else { error.with_fault(Fault::Statement) }
}

/// Nobody else writes rows of a space whose row is locked: a key that is taken is no race.
fn misfit(error: Error) -> Error {
    match error.fault() {
        Some(Fault::Unique) => {
            Error::does_not_fit("rows of another site meet others here").with_source(error)
        }
        _ => error,
    }
}

struct ListFollowed(SiteId);

impl Query for ListFollowed {
    type Out = Vec<Position>;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<Position>> {
        follow::followed(tx, self.0).await
    }
}

struct GetFollowed(SpaceId);

impl Query for GetFollowed {
    type Out = Option<Space>;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Option<Space>> {
        let found = site::space_by_id(tx, self.0).await?;
        Ok(found.filter(|row| !row.is_removed && row.space.home.is_some()).map(|row| row.space))
    }
}

struct Follow {
    space: SpaceId,
    home: SiteId,
    names: Names,
    records: Vec<Record>,
}

/// Returns the locked row of a space that `home` orders.
async fn space_of<T: Tx>(tx: &T, space: SpaceId, home: SiteId) -> Result<site::SpaceRow> {
    let row = follow::locked_space(tx, space).await?.ok_or_else(|| no_space(space))?;
    let orders = match row.space.home {
        Some(orders) if orders == home => return Ok(row),
        Some(orders) => orders,
        None => site::site(tx).await?.map_or(SiteId(uuid::Uuid::nil()), |site| site.id),
    };
    let message = format!("the space '{}' is at home at site {orders}, not at site {home}", row.space.name);
    Err(Error::new(ErrorKind::Foreign { home: orders }, message))
}

impl Change for Follow {
    type Draft = Followed;
    type Out = Followed;
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Followed> {
        let row = space_of(batch.tx, self.space, self.home).await?;
        let before = row.space.position;
        let news: Vec<&Record> =
            self.records.iter().filter(|record| record.position.seq > before.seq).collect();
        if row.is_removed || row.space.behind.is_some() || news.is_empty() {
            return Ok(Followed { position: before, behind: row.space.behind });
        }
        for (record, seq) in news.iter().zip(before.seq + 1..) {
            let expected = Position { seq, ..before };
            if record.position != expected {
                let message = format!("record {} came where {expected} was expected", record.position);
                return Err(Error::does_not_fit(message));
            }
        }
        let followed = apply::apply(batch, row, &self.names, &news).await.map_err(misfit).map_err(ending)?;
        batch.journal_grew();
        Ok(followed)
    }

    fn finish(self, followed: Followed, _written: &Written) -> Followed {
        followed
    }
}

struct Unfollow {
    space: SpaceId,
    home: SiteId,
}

impl Change for Unfollow {
    type Draft = ();
    type Out = ();
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<()> {
        let row = match space_of(batch.tx, self.space, self.home).await {
            Ok(row) if !row.is_removed => row,
            Ok(_) => return Ok(()),
            Err(error) if *error.kind() == ErrorKind::SpaceNotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        apply::remove_space(batch, row.sp, self.space).await.map_err(ending)
    }

    fn finish(self, (): (), _written: &Written) {}
}
