//! Measures registering files in place: `registers [URL…]`, by default SQLite in a folder of its own.
//!
//! A million files in a thousand collections, in calls of 4000; then the same files are looked at again, and what is known
//! of the store is listed.

mod bench;

use std::time::Instant;

use percale_catalog::*;
use percale_core::ids::StoreId;
use percale_core::{ByteCount, Timestamp};

use crate::bench::{Bench, Failed};

const FOLDERS: usize = 1000;
const FILES: usize = 1000;
const FOLDERS_IN_CALL: usize = 4;

fn main() -> Result<(), Failed> {
    bench::for_each(std::env::args().skip(1).collect(), StoreLayout::Native, run)
}

async fn run(bench: &Bench) -> Result<(), Failed> {
    bench.require_new()?;
    let Bench { engine, catalog, admin, store, .. } = bench;
    for pass in ["new", "unchanged"] {
        let start = Instant::now();
        for call in 0..FOLDERS / FOLDERS_IN_CALL {
            let folders = (call * FOLDERS_IN_CALL..(call + 1) * FOLDERS_IN_CALL).map(folder);
            let folders = folders.collect::<Result<Vec<_>, _>>()?;
            let files =
                Register { caller: admin.clone(), store: *store, within: "/bench/raw".parse()?, folders };
            for outcomes in catalog.register(None, files).await?.folders {
                for outcome in outcomes? {
                    outcome?;
                }
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        println!("{engine}: {} {pass} files in {seconds:.1} s", FOLDERS * FILES);
    }
    let start = Instant::now();
    let listed = list(catalog, *store).await?;
    println!("{engine}: {listed} known files listed in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn folder(n: usize) -> Result<NativeFolder, Failed> {
    let files = (0..FILES).map(|file| NativeFile {
        name: format!("file-{file:06}.dat"),
        size: ByteCount(0),
        generation: format!("{}:0:1763800000123456789:1763800000123456789", n * FILES + file),
        mtime: Some(Timestamp::from_micros(1_763_800_000_123_456)),
        mode: None,
        root: None,
    });
    Ok(NativeFolder {
        path: format!("/bench/raw/{n:04}").parse()?,
        key: Some(format!("raw/{n:04}")),
        files: files.collect(),
    })
}

async fn list(catalog: &Catalog, store: StoreId) -> Result<usize, Failed> {
    let mut listed = 0;
    let mut after = "raw/".to_owned();
    loop {
        let page = catalog.known_files(store, &after, "raw0", MAX_LIST).await?;
        let Some(last) = page.last() else { return Ok(listed) };
        after = last.key.clone();
        listed += page.len();
    }
}
