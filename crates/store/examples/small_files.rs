//! Measures a POSIX store: many small files staged and published durably, then listed; one large file written and read.
//!
//! Wait for half a minute between two runs: ext4 passes over inodes deleted in the last seconds one by one
//! (`recently_deleted`), which makes staging several times slower after the files of a run are removed.
//!
//! `cargo run --release -p percale-store --example small_files -- DIR [FILES [BYTES [BATCH]]]`

use std::path::PathBuf;
use std::time::Instant;

use bytes::Bytes;
use percale_core::ids::Fence;
use percale_core::{ByteCount, ByteRange};
use percale_store::posix::{Layout, Posix, PosixConfig};
use percale_store::{
    ListOptions, Publish, ReadOptions, SmallFile, StageOptions, StageToken, Store, StoreKey,
};

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let root = PathBuf::from(args.next().ok_or("usage: small_files DIR [FILES [BYTES [BATCH]]]")?);
    let mut number = |default: usize| args.next().map_or(Ok(default), |text| text.parse::<usize>());
    let (files, bytes, batch) = (number(10_000)?, number(10_000)?, number(500)?);
    let root = root.join(format!("percale-bench-{}", std::process::id()));
    let store = Posix::open(PosixConfig::new(&root, Layout::Managed).create()).await?;

    for (label, dirs) in [("one collection", 1), ("100 collections", 100)] {
        small(&store, label, files, bytes, batch, dirs).await?;
    }
    list(&store).await?;
    large(&store).await?;
    std::fs::remove_dir_all(&root)?;
    Ok(())
}

async fn small(
    store: &Posix,
    label: &str,
    files: usize,
    bytes: usize,
    batch: usize,
    dirs: usize,
) -> Result<(), Failure> {
    let content = Bytes::from(vec![7; bytes]);
    let (mut staging, mut publishing) = (0.0, 0.0);
    let began = Instant::now();
    for first in (0..files).step_by(batch.max(1)) {
        let indices = first..(first + batch).min(files);
        let token = |index: usize| StageToken::new(Fence(1), format!("{dirs}-{index}"));
        let mut wanted = Vec::new();
        for index in indices.clone() {
            wanted.push(SmallFile { token: token(index)?, key: None, bytes: content.clone() });
        }
        let at = Instant::now();
        let staged = store.stage_small(wanted).await?;
        staging += at.elapsed().as_secs_f64();
        let mut publish = Vec::new();
        for (staged, index) in staged.into_iter().zip(indices) {
            let staged = staged?;
            let key = StoreKey::parse(&format!("space{dirs}/{}/{index}", index % dirs))?;
            publish.push(Publish::if_absent(staged.token, key, staged.identity));
        }
        let at = Instant::now();
        for result in store.publish(publish).await? {
            result?;
        }
        publishing += at.elapsed().as_secs_f64();
    }
    let total = began.elapsed().as_secs_f64();
    println!(
        "{files} files of {bytes} bytes, batches of {batch}, {label}: {total:.2} s \
         (staging {staging:.2} s, publishing {publishing:.2} s), {:.0} files/s, durable",
        files as f64 / total
    );
    Ok(())
}

async fn list(store: &Posix) -> Result<(), Failure> {
    let began = Instant::now();
    let mut stream = store.list(ListOptions::default().recursive()).await?;
    let mut entries = 0;
    while let Some(page) = stream.next().await? {
        entries += page.entries.len();
    }
    let took = began.elapsed().as_secs_f64();
    println!("{entries} entries listed with their sizes: {took:.2} s ({:.0}/s)", entries as f64 / took);
    Ok(())
}

async fn large(store: &Posix) -> Result<(), Failure> {
    const SIZE: u64 = 1 << 30;
    const PIECE: u64 = 1 << 20;
    let token = StageToken::new(Fence(1), "large")?;
    let key = StoreKey::parse("large")?;
    let content = Bytes::from(vec![9; PIECE as usize]);
    let began = Instant::now();
    let stage = store.stage(StageOptions::new(token.clone()).size(ByteCount(SIZE))).await?;
    for offset in (0..SIZE).step_by(PIECE as usize) {
        stage.write_at(offset, content.clone()).await?;
    }
    let staged = stage.finish().await?;
    let written = began.elapsed().as_secs_f64();
    for result in store.publish(vec![Publish::if_absent(token, key.clone(), staged.identity)]).await? {
        result?;
    }
    let published = began.elapsed().as_secs_f64();
    println!(
        "1 GiB written in {written:.2} s, durable after {published:.2} s ({:.2} GB/s)",
        SIZE as f64 / 1e9 / published
    );

    for piece in [ByteCount::kib(256), ByteCount::mib(1)] {
        for _ in 0..2 {
            let began = Instant::now();
            let mut stream =
                store.read(&key, ReadOptions::range(ByteRange::at(0, SIZE)).piece_size(piece)).await?;
            let mut total = 0;
            while let Some(part) = stream.next().await? {
                total += part.len();
            }
            let took = began.elapsed().as_secs_f64();
            println!(
                "{total} bytes read in pieces of {piece}: {took:.2} s ({:.2} GB/s)",
                total as f64 / 1e9 / took
            );
        }
    }
    Ok(())
}
