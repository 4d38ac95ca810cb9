//! Backup: everything as of one moment, while work goes on.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tokio::sync::mpsc;

use super::archive::{End, Found, Header, TABLES, Table, io_error, line, read, row_line, table_line};
use crate::catalog::Catalog;
use crate::engine::{Query, Tx, Value};
use crate::error::{Error, Result};
use crate::model::BackupInfo;
use crate::rows::site;

/// Rows that are read at once.
const PAGE: usize = 2000;
/// Pieces of an archive on their way to the disk.
const AHEAD: usize = 4;

/// Backup.
impl Catalog {
    /// Writes everything to one archive file (see `admin/archive.rs`), as of one moment, while work goes on; then reads
    /// it back and checks it. The file appears under its name only when it is whole and on disk.
    ///
    /// # Errors
    /// `AlreadyExists` if the file is there, `NoSpace`, `Unavailable`.
    pub async fn backup(&self, to: &Path) -> Result<BackupInfo> {
        let schema = self.schema_version().await?;
        let (sender, pieces) = mpsc::channel(AHEAD);
        let target = to.to_owned();
        let writer = tokio::task::spawn_blocking(move || write(&target, pieces));
        let asked = self.ask(Dump { schema, sender }).await;
        let written = writer
            .await
            .map_err(|error| Error::internal("the backup's writer broke off").with_source(error))?;
        // The disk's error explains the question's, which then only knows that nobody listens.
        written?;
        asked?;
        Self::verify_backup(&partial(to)).await?;
        publish(to).await?;
        Self::verify_backup(to).await
    }

    /// Reads an archive and checks it. Needs no catalog.
    ///
    /// # Errors
    /// `Corrupt`, `Unsupported` for a form of a newer release, `NotFound`.
    pub async fn verify_backup(path: &Path) -> Result<BackupInfo> {
        let path = path.to_owned();
        let checked = tokio::task::spawn_blocking(move || check(&path)).await;
        checked.map_err(|error| Error::internal("the check of a backup broke off").with_source(error))?
    }
}

/// The name of a file that is not whole yet.
fn partial(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    path.with_file_name(name)
}

async fn publish(to: &Path) -> Result<()> {
    let to = to.to_owned();
    let renamed = tokio::task::spawn_blocking(move || {
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // A link and not a rename: a file that is there is not replaced.
        std::fs::hard_link(partial(&to), &to).map_err(|error| io_error("write the backup", &to, error))?;
        std::fs::remove_file(partial(&to))
            .and_then(|()| File::open(folder)?.sync_all())
            .map_err(|error| io_error("write the backup", &to, error))
    });
    renamed.await.map_err(|error| Error::internal("the backup's writer broke off").with_source(error))?
}

fn check(path: &Path) -> Result<BackupInfo> {
    let file = File::open(path).map_err(|error| io_error("read the backup", path, error))?;
    let (mut header, mut end) = (None, None);
    read(BufReader::with_capacity(1 << 20, file), |found| {
        match found {
            Found::Header(found) => header = Some(found),
            Found::End(found) => end = Some(found),
            Found::Row(..) => {}
        }
        Ok(())
    })?;
    info(header, end)
}

/// Says what an archive is that was read to its end.
pub(super) fn info(header: Option<Header>, end: Option<End>) -> Result<BackupInfo> {
    let (Some(header), Some(end)) = (header, end) else {
        return Err(Error::corrupt("the archive has no beginning or no end"));
    };
    let Header { v, schema, site, taken, positions, .. } = header;
    Ok(BackupInfo { format: v, schema, site, taken, rows: end.rows, blake3: end.blake3, positions })
}

/// A piece of an archive.
enum Piece {
    /// What was written so far counts for nothing: the database was away, and it begins again.
    Begin,
    /// Whole lines with so many rows.
    Lines(Vec<u8>, u64),
    /// All was read.
    End,
}

/// Makes a file for its owner only: sealed secrets lie in it.
fn create(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path)
}

fn write(to: &Path, mut pieces: mpsc::Receiver<Piece>) -> Result<()> {
    let path = partial(to);
    if to.exists() {
        let error = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        return Err(io_error("write the backup", to, error));
    }
    let wrong = |error| io_error("write the backup", to, error);
    let mut hasher = blake3::Hasher::new();
    let mut rows = 0;
    let mut file = BufWriter::with_capacity(1 << 20, create(&path).map_err(wrong)?);
    let outcome = loop {
        let written = match pieces.blocking_recv() {
            Some(Piece::Begin) => {
                (hasher, rows) = (blake3::Hasher::new(), 0);
                create(&path).map(|new| file = BufWriter::with_capacity(1 << 20, new))
            }
            Some(Piece::Lines(lines, count)) => {
                hasher.update(&lines);
                rows += count;
                file.write_all(&lines)
            }
            Some(Piece::End) => {
                let mut last = Vec::new();
                line(&mut last, &End::new(rows, hasher.finalize()))?;
                break file
                    .write_all(&last)
                    .and_then(|()| file.flush())
                    .and_then(|()| file.get_ref().sync_all());
            }
            // The question failed, and its caller knows why.
            None => {
                let _ = std::fs::remove_file(&path);
                return Ok(());
            }
        };
        if written.is_err() {
            break written;
        }
    };
    outcome.map_err(|error| {
        let _ = std::fs::remove_file(&path);
        wrong(error)
    })
}

struct Dump {
    schema: u32,
    sender: mpsc::Sender<Piece>,
}

impl Dump {
    async fn send(&self, piece: Piece) -> Result<()> {
        self.sender.send(piece).await.map_err(|_| Error::internal("the backup's writer stopped"))
    }

    async fn table<T: Tx>(&self, tx: &T, table: &Table) -> Result<()> {
        let mut lines = Vec::new();
        table_line(&mut lines, table)?;
        let mut behind: Option<Vec<Value>> = None;
        loop {
            let sql = table.read(behind.is_none());
            let mut params = behind.take().unwrap_or_default();
            params.push(Value::from(PAGE));
            let found = tx.query(&sql, params).await?;
            let count = found.len();
            for mut row in found {
                let mut values = Vec::with_capacity(table.columns.len());
                for _ in table.columns {
                    values.push(row.value()?);
                }
                row_line(&mut lines, table, &values)?;
                values.truncate(table.key);
                behind = Some(values);
            }
            self.send(Piece::Lines(std::mem::take(&mut lines), count as u64)).await?;
            if count < PAGE {
                return Ok(());
            }
        }
    }
}

impl Query for Dump {
    type Out = ();

    async fn run<T: Tx>(&self, tx: &T) -> Result<()> {
        self.send(Piece::Begin).await?;
        let site = site::site(tx).await?.map(|site| site.id);
        let positions = site::spaces(tx).await?.into_iter().map(|row| row.space.position).collect();
        let mut lines = Vec::new();
        line(&mut lines, &Header::new(self.schema, site, tx.now(), positions))?;
        self.send(Piece::Lines(lines, 0)).await?;
        for table in TABLES {
            self.table(tx, table).await?;
        }
        self.send(Piece::End).await
    }
}
