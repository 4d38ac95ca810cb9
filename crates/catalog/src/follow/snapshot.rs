//! Writing the rows of a space: a snapshot for a follower, and the digest by which two sites compare.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use percale_core::Position;
use percale_core::access::Subject;
use percale_core::ids::{EntryId, SpaceId, VersionId};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinHandle;

use super::lines::{End, GrantLine, Head, Line, PLAIN, ReplicaLine, WITH_ATTRIBUTES, WITH_LINKS};
use super::no_space;
use crate::catalog::Catalog;
use crate::engine::{Query, Tx, to_json};
use crate::error::{Error, ErrorKind, Result};
use crate::model::EntryKind;
use crate::record::SpaceBody;
use crate::rows::grant::{self, GrantRow};
use crate::rows::replica::{self, ReplicaRow};
use crate::rows::site::SpaceRow;
use crate::rows::{attribute, entry, follow, peer, site};

/// How large pieces are at least, in bytes, but for the last.
const PIECE: usize = 256 * 1024;
/// Rows that are read at once.
const PAGE: usize = 1000;
/// Pieces that wait for the reader.
const AHEAD: usize = 2;
/// For how long a piece waits for the reader. A snapshot holds a connection of the catalog; a reader that stops taking
/// it, and would hold it for as long as it likes, begins anew.
const PATIENCE: Duration = Duration::from_secs(60);

/// A snapshot on its way out. Dropping it ends it.
#[derive(Debug)]
pub struct SpaceSnapshot {
    pieces: mpsc::Receiver<Result<Bytes>>,
    task: JoinHandle<()>,
}

impl SpaceSnapshot {
    /// Returns the next piece, whole lines of at least 256 KiB in all but the last, or nothing behind the end.
    ///
    /// # Errors
    /// `Unavailable`; what was returned before is then of no use.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        self.pieces.recv().await.transpose()
    }
}

impl Drop for SpaceSnapshot {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Begins a snapshot.
pub(super) async fn begin(catalog: &Catalog, space: SpaceId) -> Result<SpaceSnapshot> {
    catalog.ask(IsHome(space)).await?;
    let permit = catalog.snapshot_permit().await?;
    let (sender, pieces) = mpsc::channel(AHEAD);
    let catalog = catalog.clone();
    let task = tokio::spawn(async move {
        let answer = sender.clone();
        let dump = Dump { space, sender, has_begun: AtomicBool::new(false), _permit: permit };
        if let Err(error) = catalog.ask(dump).await {
            // Nobody listens if the reader went away, which is why it ended.
            let _ = answer.send(Err(error)).await;
        }
    });
    Ok(SpaceSnapshot { pieces, task })
}

async fn space_at_home<T: Tx>(tx: &T, id: SpaceId) -> Result<SpaceRow> {
    let row = site::space_by_id(tx, id).await?.filter(|row| !row.is_removed).ok_or_else(|| no_space(id))?;
    row.require_home()?;
    Ok(row)
}

struct IsHome(SpaceId);

impl Query for IsHome {
    type Out = ();
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<()> {
        space_at_home(tx, self.0).await.map(drop)
    }
}

struct Dump {
    space: SpaceId,
    sender: mpsc::Sender<Result<Bytes>>,
    has_begun: AtomicBool,
    /// Held for as long as the connection.
    _permit: OwnedSemaphorePermit,
}

impl Query for Dump {
    type Out = ();

    async fn run<T: Tx>(&self, tx: &T) -> Result<()> {
        if self.has_begun.swap(true, Ordering::Relaxed) {
            // The question is asked again after the database was away, but what was sent cannot be taken back.
            return Err(Error::new(ErrorKind::Unavailable, "the database went away during a snapshot"));
        }
        let row = space_at_home(tx, self.space).await?;
        let home = site::site(tx).await?.map(|site| site.id);
        let form = form(tx, row.sp).await?;
        let head = Head {
            form,
            space: SpaceBody::new(&row.space, home),
            position: row.space.position,
            next_id: follow::next_id(tx, row.sp).await?,
        };
        let mut writer = Writer::new(Some(&self.sender));
        writer.line(&Line::Snapshot(head))?;
        writer.rows(tx, row.sp, Subject::clone).await?;
        let blake3 = writer.hasher.finalize().to_hex().to_string();
        let end = End { lines: writer.lines, blake3 };
        writer.line(&Line::End(end))?;
        writer.send().await
    }
}

/// Returns the earliest form that can say all that is in a space.
async fn form<T: Tx>(tx: &T, sp: i64) -> Result<u32> {
    if !entry::of_kind(tx, sp, EntryKind::Link, 0, 1).await?.is_empty() {
        return Ok(WITH_LINKS);
    }
    Ok(if attribute::any(tx, sp).await? { WITH_ATTRIBUTES } else { PLAIN })
}

/// The hash over the rows that a home and its followers have equal.
pub(super) struct Digest(pub SpaceId);

impl Query for Digest {
    type Out = (Position, [u8; 32]);

    async fn run<T: Tx>(&self, tx: &T) -> Result<Self::Out> {
        let found = site::space_by_id(tx, self.0).await?.filter(|row| !row.is_removed);
        let row = found.ok_or_else(|| no_space(self.0))?;
        let unnamed = |what: String| Error::new(ErrorKind::NotFound, what);
        let here = site::site(tx).await?;
        let here = here.ok_or_else(|| unnamed("the catalog does not belong to a site yet".into()))?;
        let (home, name) = match row.space.home {
            Some(home) if home != here.id => {
                let peer = peer::peers(tx).await?.into_iter().find(|peer| peer.id == home);
                let peer = peer.ok_or_else(|| {
                    unnamed(format!("the roster has no site {home}, the home of {}", self.0))
                })?;
                (home, peer.name)
            }
            // Also while it was handed over to this site, which has not taken it yet.
            _ => (here.id, here.name.clone()),
        };
        let mut space = row.space.clone();
        space.owner = space.owner.seen(&here.name, &name);
        let mut writer = Writer::new(None);
        writer.text(&to_json(&SpaceBody::new(&space, Some(home)))?);
        writer.rows(tx, row.sp, |subject| subject.seen(&here.name, &name)).await?;
        Ok((row.space.position, *writer.hasher.finalize().as_bytes()))
    }
}

/// Writes lines, hashes them, and sends them if somebody wants them.
struct Writer<'a> {
    hasher: blake3::Hasher,
    lines: u64,
    out: Vec<u8>,
    to: Option<&'a mpsc::Sender<Result<Bytes>>>,
}

impl<'a> Writer<'a> {
    fn new(to: Option<&'a mpsc::Sender<Result<Bytes>>>) -> Self {
        Self { hasher: blake3::Hasher::new(), lines: 0, out: Vec::new(), to }
    }

    fn line(&mut self, line: &Line) -> Result<()> {
        self.text(&to_json(line)?);
        Ok(())
    }

    fn text(&mut self, text: &str) {
        self.hasher.update(text.as_bytes()).update(b"\n");
        self.lines += 1;
        if self.to.is_some() {
            self.out.extend_from_slice(text.as_bytes());
            self.out.push(b'\n');
        }
    }

    async fn send_full(&mut self) -> Result<()> {
        if self.out.len() < PIECE { Ok(()) } else { self.send().await }
    }

    async fn send(&mut self) -> Result<()> {
        let Some(to) = self.to else { return Ok(()) };
        let piece = Bytes::from(std::mem::take(&mut self.out));
        let away = || Error::new(ErrorKind::Unavailable, "nobody takes the snapshot any more");
        match tokio::time::timeout(PATIENCE, to.send(Ok(piece))).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(away()),
        }
    }

    /// Writes the rows of a space in their order (`lines.rs`), with subjects as the home calls them.
    async fn rows<T: Tx>(
        &mut self,
        tx: &T,
        sp: i64,
        seen: impl Fn(&Subject) -> Subject + Send,
    ) -> Result<()> {
        for kind in [EntryKind::Collection, EntryKind::Object, EntryKind::Link] {
            let mut after = Some(0);
            while let Some(behind) = after {
                let page = entry::of_kind(tx, sp, kind, behind, PAGE).await?;
                after = page.last().filter(|_| page.len() == PAGE).map(|last| last.id);
                for row in page {
                    self.line(&row.into())?;
                }
                self.send_full().await?;
            }
        }
        let mut after = Some(VersionId(0));
        while let Some(behind) = after {
            let page = replica::former(tx, sp, behind, PAGE).await?;
            after = page.last().filter(|_| page.len() == PAGE).map(|last| last.id);
            for row in page {
                self.line(&row.into())?;
            }
            self.send_full().await?;
        }
        self.replicas(tx, sp).await?;
        self.grants(tx, sp, seen).await?;
        self.attributes(tx, sp).await
    }

    async fn attributes<T: Tx>(&mut self, tx: &T, sp: i64) -> Result<()> {
        let mut last = None;
        loop {
            let page = attribute::of_space(tx, sp, last.as_ref(), PAGE).await?;
            let is_last = page.len() < PAGE;
            last = page.last().cloned();
            for row in page {
                self.line(&row.into())?;
            }
            self.send_full().await?;
            if is_last {
                return Ok(());
            }
        }
    }

    /// Each site numbers stores for itself, so the copies of a version are put in the order of their stores' ids.
    async fn replicas<T: Tx>(&mut self, tx: &T, sp: i64) -> Result<()> {
        let mut group: Vec<ReplicaRow> = Vec::new();
        let mut after = Some((VersionId(0), 0));
        while let Some(behind) = after {
            let page = replica::of_space(tx, sp, behind, PAGE).await?;
            after = page.last().filter(|_| page.len() == PAGE).map(|last| (last.replica.version, last.st));
            for row in page {
                if group.first().is_some_and(|first| first.replica.version != row.replica.version) {
                    self.copies(&mut group)?;
                }
                group.push(row);
            }
            self.send_full().await?;
        }
        self.copies(&mut group)
    }

    fn copies(&mut self, group: &mut Vec<ReplicaRow>) -> Result<()> {
        group.sort_by_key(|row| row.replica.store);
        for ReplicaRow { entry, replica, .. } in group.drain(..) {
            self.line(&Line::Replica(ReplicaLine {
                version: replica.version,
                store: replica.store,
                entry: EntryId(entry),
                key: replica.key,
                state: replica.state,
                generation: replica.generation,
            }))?;
        }
        Ok(())
    }

    /// As with copies: a subject has another name at each site.
    async fn grants<T: Tx>(
        &mut self,
        tx: &T,
        sp: i64,
        seen: impl Fn(&Subject) -> Subject + Send,
    ) -> Result<()> {
        let mut group: Vec<(String, GrantLine)> = Vec::new();
        let mut after = Some((0, String::new()));
        while let Some((entry, subject)) = after {
            let page = grant::of_space(tx, sp, (entry, &subject), PAGE).await?;
            after =
                page.last().filter(|_| page.len() == PAGE).map(|last| (last.entry, last.subject.to_string()));
            for GrantRow { entry, subject, permission, .. } in page {
                if group.first().is_some_and(|(_, first)| first.entry.0 != entry) {
                    self.grants_on(&mut group)?;
                }
                let subject = seen(&subject);
                group.push((subject.to_string(), GrantLine { entry: EntryId(entry), subject, permission }));
            }
            self.send_full().await?;
        }
        self.grants_on(&mut group)
    }

    fn grants_on(&mut self, group: &mut Vec<(String, GrantLine)>) -> Result<()> {
        group.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (_, line) in group.drain(..) {
            self.line(&Line::Grant(line))?;
        }
        Ok(())
    }
}
