//! What the disk does by itself, to compare with. Plain system calls, one file after the other, in the same folder.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;

const PIECE: usize = 1 << 20;

/// Runs what blocks beside the asynchronous work.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(work).await.context("the work was cut off")?
}

/// Writes so many bytes to one file and flushes it once. Returns the time.
pub fn write_and_flush(folder: &Path, bytes: u64) -> anyhow::Result<Duration> {
    let path = folder.join("disk-alone.tmp");
    let mut piece = vec![0; PIECE];
    percale_samples::content::fill(1, 0, &mut piece);
    let began = Instant::now();
    let mut file = File::create(&path)?;
    let mut left = bytes;
    while left > 0 {
        let now = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        file.write_all(&piece[..now])?;
        left -= now as u64;
    }
    file.sync_all()?;
    let took = began.elapsed();
    fs::remove_file(&path)?;
    Ok(took)
}

/// Reads every file to its end. Returns the time.
pub fn read_all(files: &[PathBuf]) -> anyhow::Result<Duration> {
    let mut piece = vec![0; PIECE];
    let began = Instant::now();
    for path in files {
        let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        while file.read(&mut piece)? > 0 {}
    }
    Ok(began.elapsed())
}

/// Copies every file below `folder`, as `cp` would, and removes the copies. Returns the time of the copying.
pub fn copy_all(files: &[PathBuf], folder: &Path) -> anyhow::Result<Duration> {
    let place = folder.join("disk-alone");
    fs::create_dir_all(&place)?;
    let mut piece = vec![0; PIECE];
    let began = Instant::now();
    for (number, path) in files.iter().enumerate() {
        let mut from = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut to = File::create(place.join(number.to_string()))?;
        loop {
            let read = from.read(&mut piece)?;
            if read == 0 {
                break;
            }
            to.write_all(&piece[..read])?;
        }
    }
    let took = began.elapsed();
    fs::remove_dir_all(&place)?;
    Ok(took)
}

/// Creates small files, each flushed with its own fsync. Returns the time for one.
pub fn create_small(folder: &Path, count: u32, size: usize) -> anyhow::Result<Duration> {
    let place = folder.join("disk-alone");
    fs::create_dir_all(&place)?;
    let content = percale_samples::content::bytes(2, size);
    let began = Instant::now();
    for number in 0..count {
        let mut file = File::create(place.join(number.to_string()))?;
        file.write_all(&content)?;
        file.sync_all()?;
    }
    let took = began.elapsed();
    fs::remove_dir_all(&place)?;
    Ok(took / count.max(1))
}
