//! A snapshot takes the place of all rows of a space.

use percale_core::Position;
use percale_core::ids::{SiteId, SpaceId};

use super::Names;
use super::lines::{GrantLine, Head, Line, ReplicaLine};
use super::receive::Received;
use super::stores::Places;
use crate::batch::{Batch, Written, raced};
use crate::engine::{Change, Tx};
use crate::error::{Error, ErrorKind, Fault, Result};
use crate::model::{Replica, Space};
use crate::record::SpaceBody;
use crate::rows::attribute;
use crate::rows::entry::{self, EntryRow};
use crate::rows::follow;
use crate::rows::grant::{self, GrantRow};
use crate::rows::replica::{self, ReplicaRow};
use crate::rows::site::{self, SpaceRow};

/// Lines that are written at once.
const PART: usize = 1000;

/// A snapshot that was received, and who sent it.
pub(super) struct Replace {
    pub space: SpaceId,
    pub home: SiteId,
    pub names: Names,
    pub received: Received,
}

impl Change for Replace {
    type Draft = Position;
    type Out = Position;
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Position> {
        let space = self.space()?;
        let tx = batch.tx;
        let sp = match follow::locked_space(tx, self.space).await? {
            Some(row) => {
                self.may_replace(tx, &row).await?;
                follow::require_free_name(tx, &space).await?;
                row.sp
            }
            None => {
                follow::require_free_name(tx, &space).await?;
                site::insert_space(tx, &space).await.map_err(|error| match error.fault() {
                    Some(Fault::Unique) => raced("a space was followed twice at once"),
                    _ => error,
                })?
            }
        };
        self.replace(batch, sp, &space).await.map_err(super::ending)?;
        batch.journal_grew();
        Ok(space.position)
    }

    fn finish(self, position: Position, _written: &Written) -> Position {
        position
    }
}

impl Replace {
    /// Makes what is kept of the space here.
    fn space(&self) -> Result<Space> {
        let Head {
            space: SpaceBody { id, name, owner, scope, store, state, extraction, quota, created, home, .. },
            position,
            ..
        } = self.received.head.clone();
        if id != self.space || position.space != self.space || home != Some(self.home) {
            let message = format!(
                "site {} sent a snapshot of space {id} at {position} for one of space {}",
                self.home, self.space
            );
            return Err(Error::does_not_fit(message));
        }
        let owner = self.names.seen(&owner);
        let (home, behind) = (Some(self.home), None);
        Ok(Space { id, name, owner, scope, store, state, extraction, quota, created, home, behind, position })
    }

    /// Checks that the sender orders the space. Another home than the one that is known must have won it: its term is
    /// greater, or equal and its id smaller.
    async fn may_replace<T: Tx>(&self, tx: &T, row: &SpaceRow) -> Result<()> {
        let (known, sent) = (row.space.position, self.received.head.position);
        let Some(home) = row.space.home else {
            let here = site::site(tx).await?.map(|site| site.id);
            let message =
                format!("the space '{}' is at home here, not at site {}", row.space.name, self.home);
            let home = here.unwrap_or(SiteId(uuid::Uuid::nil()));
            return Err(Error::new(ErrorKind::Foreign { home }, message));
        };
        if home != self.home && (sent.term, home) <= (known.term, self.home) {
            let message = format!(
                "the space '{}' is at home at site {home} in term {}, not at site {} in term {}",
                row.space.name, known.term, self.home, sent.term
            );
            return Err(Error::new(ErrorKind::Foreign { home }, message));
        }
        if sent.term < known.term {
            let message = format!("the snapshot is as of {sent}, of an older term than {known}");
            return Err(Error::new(ErrorKind::PreconditionFailed { version: None }, message));
        }
        Ok(())
    }

    async fn replace<T: Tx>(&self, batch: &mut Batch<'_, T>, sp: i64, space: &Space) -> Result<()> {
        let tx = batch.tx;
        follow::clear(tx, sp).await?;
        follow::put_space(tx, sp, space).await?;
        let mut places = Places::default();
        let mut parts = self.received.parts(PART);
        let mut is_whole = false;
        while let Some(part) = parts.recv().await {
            is_whole |= self.write(tx, sp, part?, &mut places).await?;
        }
        if !is_whole {
            return Err(Error::internal("a snapshot was not read again to its end"));
        }
        follow::check_fit(tx, sp).await?;
        let Head { position, next_id, .. } = &self.received.head;
        follow::settle(tx, sp, *position, batch.now()).await?;
        follow::stand(tx, sp, *position, *next_id, None).await
    }

    /// Writes lines, and tells whether the last was among them.
    async fn write<T: Tx>(&self, tx: &T, sp: i64, lines: Vec<Line>, places: &mut Places) -> Result<bool> {
        let (mut entries, mut versions, mut copies, mut grants, mut attributes) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut is_last = false;
        for line in lines {
            match line {
                Line::Collection(line) => entries.push(line.into_row(sp)),
                Line::Object(line) => entries.push(line.into_row(sp)),
                Line::Link(line) => entries.push(line.into_row(sp)),
                Line::Version(line) => versions.push(line.into_row(sp)),
                Line::Replica(line) => copies.push(line),
                Line::Grant(GrantLine { entry, subject, permission }) => {
                    let subject = self.names.seen(&subject);
                    grants.push(GrantRow { sp, entry: entry.0, subject, permission });
                }
                Line::Attribute(line) => attributes.push(line.into_row(sp)),
                Line::End(_) => is_last = true,
                Line::Snapshot(_) => return Err(Error::internal("a snapshot has two heads")),
            }
        }
        places.find(tx, copies.iter().map(|copy| copy.store)).await?;
        let mut replicas = Vec::with_capacity(copies.len());
        for ReplicaLine { version, store, entry, key, state, generation } in copies {
            let place = places.get(store)?;
            let replica = Replica { version, store, key, state, generation, checked: None };
            replicas.push(ReplicaRow { sp, st: place.st, entry: entry.0, is_own: place.is_own, replica });
        }
        let entries: Vec<&EntryRow> = entries.iter().collect();
        let replicas: Vec<&ReplicaRow> = replicas.iter().collect();
        let written = async {
            entry::insert(tx, &entries).await?;
            follow::put_versions(tx, &versions).await?;
            replica::insert(tx, &replicas).await?;
            grant::insert(tx, &grants).await?;
            attribute::insert(tx, &attributes).await
        };
        // The space's row is locked: nobody else writes rows of it, so it is the snapshot's own.
        written.await.map_err(super::misfit)?;
        Ok(is_last)
    }
}
