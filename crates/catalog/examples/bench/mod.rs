//! What measuring programs begin with: engines, and a site with a space in each.

use percale_catalog::*;
use percale_core::access::{Caller, Identity, Subject};
use percale_core::ids::StoreId;
use serde_json::json;

pub type Failed = Box<dyn std::error::Error + Send + Sync>;

/// A site with the space `bench`.
#[derive(Clone)]
pub struct Bench {
    /// Where its database is.
    #[allow(dead_code, reason = "not every one of these programs needs it")]
    pub url: String,
    /// The name of its engine.
    pub engine: String,
    pub catalog: Catalog,
    pub admin: Caller,
    /// Its only store.
    pub store: StoreId,
    /// Whether it was there, from a run before.
    pub is_old: bool,
}

/// Runs something with a new site on each URL; without any, on SQLite in a folder of its own below the working directory. The URL
/// `postgres` starts a server. A site that is there from a run before is taken as it is.
pub fn for_each(
    mut urls: Vec<String>,
    layout: StoreLayout,
    run: impl AsyncFn(&Bench) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let folder = tempfile::Builder::new().prefix("percale-bench-").tempdir_in(".")?;
        if urls.is_empty() {
            urls.push(format!("sqlite:{}", folder.path().join("catalog.db").display()));
        }
        for url in urls {
            let server = match url.as_str() {
                "postgres" => {
                    let server = percale_testkit::postgres::Server::start_with(&settings()?);
                    Some(server.ok_or("PostgreSQL is skipped")?)
                }
                _ => None,
            };
            let bench = Bench::open(&server.as_ref().map_or(url, |server| server.database()), layout).await?;
            run(&bench).await?;
            bench.catalog.close().await;
        }
        Ok(())
    })
}

/// Returns what a server that is measured has more than one of a test: a quarter of the memory, as its manual advises
/// (<https://www.postgresql.org/docs/current/runtime-config-resource.html>), and checkpoints that are not made all the time.
fn settings() -> Result<String, Failed> {
    let memory = std::fs::read_to_string("/proc/meminfo")?;
    let total = memory.split_whitespace().nth(1).ok_or("/proc/meminfo says nothing")?;
    let quarter = total.parse::<u64>()? / 4;
    Ok(format!("shared_buffers = {quarter}kB\nmax_wal_size = 16GB\n"))
}

impl Bench {
    /// Fails if it was there, from a run before.
    #[allow(dead_code, reason = "not every one of these programs needs it")]
    pub fn require_new(&self) -> Result<(), Failed> {
        if self.is_old {
            Err("the database is that of a run before; name an empty one".into())
        } else {
            Ok(())
        }
    }

    async fn open(url: &str, layout: StoreLayout) -> Result<Self, Failed> {
        let engine = url.split(':').next().unwrap_or_default().to_owned();
        let catalog = Catalog::open(&CatalogConfig::new(url)).await?;
        let admin = Caller::admin(Identity::local("bench"));
        catalog.init_site("bench").await?;
        let old = catalog.spaces(&admin).await?.into_iter().find(|space| space.name.as_str() == "bench");
        if let Some(store) = old.and_then(|space| space.store) {
            return Ok(Self { url: url.into(), engine, catalog, admin, store, is_old: true });
        }
        let store = NewStore {
            name: "disk".into(),
            connector: "memory".into(),
            layout,
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
            extraction: ExtractionMode::Async,
            quota: None,
            rules: Vec::new(),
        };
        catalog.create_space(&admin, space).await?;
        Ok(Self { url: url.into(), engine, catalog, admin, store, is_old: false })
    }
}

/// Prints how fast objects were written.
#[allow(dead_code, reason = "not every one of these programs needs it")]
pub fn say_loaded(engine: &str, what: &str, objects: usize, seconds: f64) {
    println!(
        "{engine}: {what}: objects {objects}, seconds {seconds:.1}, objects_per_s {:.0}",
        objects as f64 / seconds
    );
}

/// Prints the half and the hundredth that took longest, in milliseconds.
#[allow(dead_code, reason = "not every one of these programs needs it")]
pub fn say_times(engine: &str, what: &str, took: &mut [f64], found: f64) {
    took.sort_by(f64::total_cmp);
    let at = |part: usize| took.get(took.len() * part / 100).copied().unwrap_or_default();
    println!("{engine}: {what}: found {found:.1}, p50_ms {:.2}, p99_ms {:.2}", at(50), at(99));
}
