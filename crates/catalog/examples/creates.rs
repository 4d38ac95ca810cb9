//! Measures durable creates: `creates [URL…]`, by default SQLite in a folder of its own.
//!
//! A create is what a PUT of a small file asks of the catalog: a prepare and a commit, one by one from 32 clients; then
//! the same in batches of 1000 from one client.

use std::time::{Duration, Instant};

use percale_catalog::*;
use percale_core::ByteCount;
use percale_core::access::{Caller, Identity, Subject};
use percale_core::tree::RootHash;
use serde_json::json;

const CLIENTS: usize = 32;
const SECONDS: Duration = Duration::from_secs(5);
const BATCHES: usize = 40;
const BATCH: usize = 1000;
const DAY: Duration = Duration::from_secs(24 * 3600);

#[derive(Clone)]
struct Bench {
    catalog: Catalog,
    admin: Caller,
    store: percale_core::ids::StoreId,
    lease: Lease,
}

type Failed = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let folder = tempfile::Builder::new().prefix("percale-creates-").tempdir_in(".")?;
        let mut urls: Vec<String> = std::env::args().skip(1).collect();
        if urls.is_empty() {
            urls.push(format!("sqlite:{}", folder.path().join("catalog.db").display()));
        }
        if urls.iter().any(|url| url == "postgres") {
            let server = percale_testkit::postgres::Server::start().ok_or("PostgreSQL is skipped")?;
            run(&server.database()).await?;
            urls.retain(|url| url != "postgres");
        }
        for url in urls {
            run(&url).await?;
        }
        Ok(())
    })
}

async fn run(url: &str) -> Result<(), Failed> {
    let engine = url.split(':').next().unwrap_or_default();
    let catalog = Catalog::open(&CatalogConfig::new(url)).await?;
    let admin = Caller::admin(Identity::local("bench"));
    catalog.init_site("bench").await?;
    let store = NewStore {
        name: "disk".into(),
        connector: "memory".into(),
        layout: StoreLayout::Managed,
        config: json!({}),
        secret: None,
    };
    let store = catalog.add_store(store).await?.id;
    let space = NewSpace {
        name: "bench".parse()?,
        owner: Subject::User(Identity::local("bench")),
        scope: SpaceScope::Private,
        store: Some(store),
        members: Vec::new(),
    };
    catalog.create_space(&admin, space).await?;
    let lease = catalog.acquire_lease(LeaseKind::Server, "bench", DAY, json!({})).await?;
    let bench = Bench { catalog, admin, store, lease };

    let (creates, latencies) = one_by_one(&bench).await?;
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
        bench.create(&names).await?;
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
    bench.catalog.close().await;
    Ok(())
}

async fn one_by_one(bench: &Bench) -> Result<(usize, Vec<Duration>), Failed> {
    let end = Instant::now() + SECONDS;
    let clients = (0..CLIENTS).map(|client| {
        let bench = bench.clone();
        tokio::spawn(async move {
            let mut latencies = Vec::new();
            while Instant::now() < end {
                let start = Instant::now();
                bench.create(&[format!("/bench/one/{client}-{}", latencies.len())]).await?;
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

impl Bench {
    async fn create(&self, paths: &[String]) -> percale_catalog::Result<()> {
        let mut wanted = Vec::with_capacity(paths.len());
        for path in paths {
            let Ok(path) = path.parse() else { continue };
            wanted.push(Prepare {
                caller: self.admin.clone(),
                path,
                parents: true,
                condition: Condition::New,
                lease: self.lease.id,
                fence: self.lease.fence,
                store: self.store,
                natural_key: true,
                token: "0197c0de-aaaa-7bbb-8ccc-000000000000".into(),
                identity: Some("2049:1234567".into()),
                size: Some(ByteCount(10_000)),
                mtime: None,
                mode: None,
            });
        }
        let mut commits = Vec::with_capacity(paths.len());
        for intent in self.catalog.prepare(wanted).await {
            commits.push(Commit::new(intent?.id, ByteCount(10_000), Some(RootHash([7; 32]))));
        }
        for done in self.catalog.commit(commits).await {
            done?;
        }
        Ok(())
    }
}
