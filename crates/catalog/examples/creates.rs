//! Measures durable creates: `creates [URL…]`, by default SQLite in a folder of its own.
//!
//! A create is what a PUT of a small file asks of the catalog: a prepare and a commit, one by one from 32 clients; then
//! the same in batches of 1000 from one client.

mod bench;

use std::time::{Duration, Instant};

use percale_catalog::*;
use percale_core::ByteCount;
use percale_core::tree::RootHash;
use serde_json::json;

use crate::bench::{Bench, Failed};

const CLIENTS: usize = 32;
const SECONDS: Duration = Duration::from_secs(5);
const BATCHES: usize = 40;
const BATCH: usize = 1000;
const DAY: Duration = Duration::from_secs(24 * 3600);

fn main() -> Result<(), Failed> {
    bench::for_each(std::env::args().skip(1).collect(), StoreLayout::Managed, run)
}

async fn run(bench: &Bench) -> Result<(), Failed> {
    bench.require_new()?;
    let engine = &bench.engine;
    let lease = bench.catalog.acquire_lease(LeaseKind::Server, "bench", DAY, json!({})).await?;
    let writer = Writer { bench: bench.clone(), lease };

    let (creates, latencies) = one_by_one(&writer).await?;
    let rate = creates as f64 / SECONDS.as_secs_f64();
    let at = |part: f64| latencies[(latencies.len() as f64 * part) as usize].as_secs_f64() * 1e3;
    println!(
        "{engine}: {CLIENTS} clients, one by one: {rate:.0} creates/s, p50 {:.2} ms, p99 {:.2} ms",
        at(0.5),
        at(0.99)
    );

    let start = Instant::now();
    for batch in 0..BATCHES {
        let names: Vec<String> = (0..BATCH).map(|n| format!("/bench/batch{batch}/{n}")).collect();
        writer.create(&names).await?;
    }
    let rate = (BATCHES * BATCH) as f64 / start.elapsed().as_secs_f64();
    println!("{engine}: 1 client, batches of {BATCH}: {rate:.0} creates/s");

    let path = "/bench/batch3/77".parse()?;
    let start = Instant::now();
    for _ in 0..2000 {
        bench.catalog.open_object(&bench.admin, &path, None).await?;
    }
    println!("{engine}: open of one object: {:.0} µs", start.elapsed().as_secs_f64() * 1e6 / 2000.0);

    let start = Instant::now();
    let mut options = ListOptions::default();
    options.recursive = true;
    options.limit = MAX_LIST;
    let mut listed = 0;
    loop {
        let page = bench.catalog.list(&bench.admin, &"/bench".parse()?, options.clone()).await?;
        listed += page.items.len();
        options.after = page.next;
        if options.after.is_none() {
            break;
        }
    }
    println!("{engine}: recursive listing: {:.0} entries/s", listed as f64 / start.elapsed().as_secs_f64());
    Ok(())
}

#[derive(Clone)]
struct Writer {
    bench: Bench,
    lease: Lease,
}

async fn one_by_one(writer: &Writer) -> Result<(usize, Vec<Duration>), Failed> {
    let end = Instant::now() + SECONDS;
    let clients = (0..CLIENTS).map(|client| {
        let writer = writer.clone();
        tokio::spawn(async move {
            let mut latencies = Vec::new();
            while Instant::now() < end {
                let start = Instant::now();
                writer.create(&[format!("/bench/one/{client}-{}", latencies.len())]).await?;
                latencies.push(start.elapsed());
            }
            Ok::<_, percale_catalog::Error>(latencies)
        })
    });
    let mut latencies = Vec::new();
    for client in clients.collect::<Vec<_>>() {
        latencies.extend(client.await??);
    }
    latencies.sort_unstable();
    Ok((latencies.len(), latencies))
}

impl Writer {
    async fn create(&self, paths: &[String]) -> percale_catalog::Result<()> {
        let Bench { catalog, admin, store, .. } = &self.bench;
        let mut wanted = Vec::with_capacity(paths.len());
        for path in paths {
            let Ok(path) = path.parse() else { continue };
            wanted.push(Prepare {
                caller: admin.clone(),
                path,
                parents: true,
                condition: Condition::New,
                lease: self.lease.id,
                fence: self.lease.fence,
                store: *store,
                natural_key: true,
                token: "0197c0de-aaaa-7bbb-8ccc-000000000000".into(),
                identity: Some("2049:1234567".into()),
                size: Some(ByteCount(10_000)),
                mtime: None,
                mode: None,
            });
        }
        let mut commits = Vec::with_capacity(paths.len());
        for intent in catalog.prepare(wanted).await {
            commits.push(Commit::new(intent?.id, ByteCount(10_000), Some(RootHash([7; 32]))));
        }
        for done in catalog.commit(commits).await {
            done?;
        }
        Ok(())
    }
}
