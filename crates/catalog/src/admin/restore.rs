//! Restore: an empty catalog is filled from an archive of either engine, in one transaction.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use tokio::sync::mpsc;

use super::archive::{End, Found, Header, TABLES, Table, io_error, read};
use super::backup::info;
use crate::batch::{Batch, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Sql, Tx, Value, row};
use crate::error::{Error, ErrorKind, Result};
use crate::model::BackupInfo;
use crate::rows::site;

/// Rows that are written at once.
const PAGE: usize = 1000;

/// How far the counters of ids and fences jump. What was given out after the backup was taken is in no row any more, but
/// may still be the name of a file in a store; it must not be given out again.
const JUMP: u64 = 1 << 30;

/// Restore.
impl Catalog {
    /// Fills this catalog, which must be empty, from an archive of either engine, in one transaction.
    ///
    /// - The term of every space that is at home here grows, so that no position of before is taken for one of this history. The journal
    ///   begins anew: nobody could continue reading the old records.
    /// - Spaces of other homes keep their term and are marked behind, so that they are followed anew from a snapshot.
    /// - Ids and fences go on far behind those of the archive.
    ///
    /// # Errors
    /// `AlreadyExists` if the catalog is not empty, and those of [`Catalog::verify_backup`].
    pub async fn restore(&self, from: &Path) -> Result<BackupInfo> {
        // Wholly checked before anything is written.
        let checked = Self::verify_backup(from).await?;
        let schema = self.schema_version().await?;
        if checked.schema > schema {
            let message = format!(
                "the backup has schema {} of a newer release; this one knows {schema}",
                checked.schema
            );
            return Err(Error::unsupported(message));
        }
        self.change(Restore { from: from.to_owned() }).await
    }
}

struct Restore {
    from: PathBuf,
}

enum Piece {
    Header(Header),
    Rows(&'static Table, Vec<Vec<Value>>),
    End(End),
}

static IS_USED: Sql = Sql::both(
    "SELECT one FROM site WHERE id IS NOT NULL OR EXISTS (SELECT 1 FROM space) OR EXISTS (SELECT 1 FROM store) \
     OR EXISTS (SELECT 1 FROM lease) OR EXISTS (SELECT 1 FROM task) OR EXISTS (SELECT 1 FROM token)",
);
static CLEAR_SITE: Sql = Sql::both("DELETE FROM site");
static RAISE_TERMS: Sql =
    Sql::both("UPDATE space SET term = term + 1, next_id = next_id + $1 WHERE home IS NULL");
/// What another site orders may have gone back behind what was reported to it.
static FOLLOW_ANEW: Sql = Sql::both("UPDATE space SET behind = 'restored' WHERE home IS NOT NULL");

impl Change for Restore {
    type Draft = BackupInfo;
    type Out = BackupInfo;
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<BackupInfo> {
        let tx = batch.tx;
        if !tx.query(&IS_USED, row![]).await?.is_empty() {
            let message = "cannot restore into a catalog that is in use: begin with an empty one";
            return Err(Error::new(ErrorKind::AlreadyExists { version: None }, message));
        }
        tx.execute(&CLEAR_SITE, row![]).await?;
        let (sender, mut pieces) = mpsc::channel(4);
        let path = self.from.clone();
        // Its end is that of the channel: it stops when it has read all or nobody listens.
        std::thread::spawn(move || read_all(&path, &sender));
        let (mut header, mut end) = (None, None);
        while let Some(piece) = pieces.recv().await {
            match piece? {
                Piece::Header(found) => header = Some(found),
                Piece::Rows(table, rows) => drop(tx.execute_many(&table.insert(), rows).await?),
                Piece::End(found) => end = Some(found),
            }
        }
        let info = info(header, end)?;
        site::take_fences(tx, JUMP).await?;
        tx.execute(&RAISE_TERMS, row![JUMP]).await?;
        tx.execute(&FOLLOW_ANEW, row![]).await?;
        Ok(info)
    }

    fn finish(self, info: BackupInfo, _written: &Written) -> BackupInfo {
        info
    }
}

fn read_all(path: &Path, sender: &mpsc::Sender<Result<Piece>>) {
    let closed = || Error::internal("nobody takes what is restored");
    let send = |piece| sender.blocking_send(Ok(piece)).map_err(|_| closed());
    let mut table: &'static Table = &TABLES[0];
    let mut rows: Vec<Vec<Value>> = Vec::new();
    let outcome =
        File::open(path).map_err(|error| io_error("read the backup", path, error)).and_then(|file| {
            read(BufReader::with_capacity(1 << 20, file), |found| match found {
                Found::Header(header) => send(Piece::Header(header)),
                Found::Row(of, _) if of.name == "journal" => Ok(()),
                Found::Row(of, row) => {
                    if of.name != table.name || rows.len() == PAGE {
                        send(Piece::Rows(table, std::mem::take(&mut rows)))?;
                    }
                    table = of;
                    rows.push(row);
                    Ok(())
                }
                Found::End(end) => {
                    send(Piece::Rows(table, std::mem::take(&mut rows)))?;
                    send(Piece::End(end))
                }
            })
        });
    if let Err(error) = outcome {
        // Nobody listens if the transaction is over already.
        let _ = sender.blocking_send(Err(error));
    }
}
