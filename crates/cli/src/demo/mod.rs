//! `percale demo`: three sites on this machine with an emulated network between them, filled with scientific files and put
//! through what sites meet: damage, a crash, an outage, two writers, a backup. It uses the same client, the same server and
//! the same commands as everybody.
//!
//! | file | holds |
//! |---|---|
//! | [`folder`] | the folder that everything lies in |
//! | [`fabric`], [`site`] | the sites, each a process of its own |
//! | [`network`], [`owner`] | the network between them |
//! | [`postgres`] | a PostgreSQL server for their catalogs, if it is wanted |
//! | [`sources`] | the files that are ingested, real ones where there are any |
//! | [`disk`] | what the disk does by itself, to compare with |
//! | [`lines`] | the lines that are printed |
//! | [`checks`], [`faults`] | what the lines are about, at one site |
//! | [`across`], [`outage`] | the same, between sites |

mod across;
mod checks;
mod discover;
mod disk;
mod fabric;
mod faults;
mod folder;
mod lines;
mod network;
mod outage;
mod owner;
mod ports;
mod postgres;
mod site;
mod sources;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use percale_client::Client;
use percale_core::ObjectPath;
use percale_core::path::SpaceName;
use tokio_util::sync::CancellationToken;

use fabric::{ALPS, Fabric};
use folder::Folder;
use lines::Lines;
use network::LinkOptions;
pub use postgres::NotInstalled;
use site::Site;
use sources::Source;

/// Arguments of `percale demo`.
#[derive(Debug, Clone, clap::Args)]
pub struct DemoArgs {
    /// Ingest the files below this directory instead of the sample data.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// End after the checks; the exit code says whether all of them passed.
    #[arg(long)]
    pub check: bool,
    /// Keep what an earlier run made, and with --check also what this one makes.
    #[arg(long)]
    pub keep: bool,
    /// Remove what earlier runs made, and do nothing else.
    #[arg(long, conflicts_with_all = ["data", "check", "keep"])]
    pub clean: bool,
    /// Where everything is put.
    #[arg(long, value_name = "DIR", default_value = "percale-demo")]
    pub dir: PathBuf,
    /// Port of the first site on 127.0.0.1; 8787, or a free one if that is taken.
    #[arg(long, value_name = "N")]
    pub port: Option<u16>,
    /// Milliseconds that a byte takes from one site to another, 0 to 10000; a round trip takes twice as long.
    #[arg(long, value_name = "MS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=10_000))]
    pub delay: u64,
    /// Megabits per second that go through between two sites, in each direction.
    #[arg(long, value_name = "MBIT", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub rate: u64,
    /// What holds the sites' catalogs. For PostgreSQL a server is started, which must be installed.
    #[arg(long, value_name = "ENGINE", default_value = "sqlite")]
    pub catalog: CatalogEngine,
}

/// What holds a site's catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CatalogEngine {
    /// SQLite, in the site's folder.
    Sqlite,
    /// A PostgreSQL server, with a database for each site.
    Postgres,
}

/// What the checks work with.
struct Demo {
    folder: Folder,
    fabric: Fabric,
    link: LinkOptions,
    /// Of the first site.
    client: Client,
    /// At home at the first site.
    space: SpaceName,
    sources: Vec<Source>,
    /// What was acknowledged and must be there, whatever happens.
    expected: checks::Expected,
}

impl Demo {
    /// The first site.
    fn alps(&self) -> &Site {
        &self.fabric.sites[ALPS]
    }

    /// The root of the demo's space.
    fn root(&self) -> ObjectPath {
        ObjectPath::of_space(&self.space)
    }

    /// A path below the demo's space.
    fn path(&self, rest: &str) -> anyhow::Result<ObjectPath> {
        Ok(ObjectPath::parse(&format!("/{}/{rest}", self.space))?)
    }
}

/// How the demo ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Every check passed.
    Passed,
    /// A check failed; its line says why.
    Failed,
    /// It was stopped before its end.
    Interrupted,
}

/// Runs the demo; with `json` each line is an object. Ends in order when `cancel` says so.
///
/// # Errors
/// The folder cannot be used, or no site comes up at all. A check that fails is not an error but a line that says so.
pub async fn run(args: DemoArgs, json: bool, cancel: CancellationToken) -> anyhow::Result<Ended> {
    if args.clean {
        let removed = Folder::remove(&args.dir)?;
        let what = if removed { "removed" } else { "nothing to remove at" };
        println!("{what} {}", args.dir.display());
        return Ok(Ended::Passed);
    }
    let began = Instant::now();
    let folder = Folder::prepare(&args.dir, args.keep)?;
    let mut lines = Lines::new(json, std::io::stdout().is_terminal());
    lines.title(&format!(
        "percale {} demo · state in {} · Ctrl-C stops, `percale demo --clean` removes",
        env!("CARGO_PKG_VERSION"),
        folder.root().display()
    ));
    let run = async {
        let mut demo = begin(&args, folder, &mut lines).await?;
        run_checks(&mut demo, &mut lines).await;
        anyhow::Ok(demo)
    };
    let mut demo = tokio::select! {
        demo = run => demo?,
        () = cancel.cancelled() => {
            // The site ends with the future that owned it.
            eprintln!("interrupted; the state stays in {}", args.dir.display());
            return Ok(Ended::Interrupted);
        }
    };
    let passed = lines.all_passed();
    if !args.check {
        next_steps(&demo, &lines);
    }
    lines.summary(began.elapsed());
    if !args.check {
        lines.note("serving until Ctrl-C");
        cancel.cancelled().await;
    }
    demo.fabric.stop().await?;
    if args.check && passed && !args.keep {
        drop(demo);
        Folder::remove(&args.dir)?;
    } else if args.check && !passed {
        lines.note(&format!("the servers' logs are {}/*/serve.log", demo.folder.root().display()));
    }
    Ok(if passed { Ended::Passed } else { Ended::Failed })
}

/// Chooses the files, starts the sites, joins them, makes their stores and the space.
async fn begin(args: &DemoArgs, folder: Folder, lines: &mut Lines) -> anyhow::Result<Demo> {
    let sources = sources::choose(args.data.clone(), folder.generated()).await?;
    let link =
        LinkOptions { delay: Duration::from_millis(args.delay), bits_per_second: args.rate * 1_000_000 };
    let began = Instant::now();
    let fabric = Fabric::start(&folder, args.port, link, args.catalog).await?;
    fabric.join().await?;
    let line = across::sites(&fabric, link, began.elapsed()).await?;
    lines.check("sites", async { Ok(line) }).await;
    let space = checks::prepare_space(&fabric).await?;
    let client = fabric.clients[ALPS].clone();
    Ok(Demo { folder, fabric, link, client, space, sources, expected: checks::Expected::default() })
}

/// Each check is a line. One that fails does not keep the others from being made.
async fn run_checks(demo: &mut Demo, lines: &mut Lines) {
    lines.check("ingest", checks::ingest(demo)).await;
    lines.check("followers", across::followers(demo)).await;
    lines.check("listing", checks::listing(demo)).await;
    lines.check("search", discover::search(demo)).await;
    lines.check("read back", checks::read_back(demo)).await;
    lines.check("small files", checks::small_files(demo)).await;
    lines.check("read afar", across::read(demo)).await;
    lines.check("write afar", across::write(demo)).await;
    lines.check("replicate", across::replicate(demo)).await;
    lines.check("verify", checks::verify(demo)).await;
    lines.check("damage", faults::damage(demo)).await;
    lines.check("repair", faults::repair(demo)).await;
    lines.check("outage", outage::outage(demo)).await;
    lines.check("drain", outage::drain(demo)).await;
    lines.check("crash", faults::crash(demo)).await;
    lines.check("two writers", faults::two_writers(demo)).await;
    lines.check("backup", checks::backup(demo)).await;
}

fn next_steps(demo: &Demo, lines: &Lines) {
    let space = &demo.space;
    let sources =
        demo.sources.first().map_or_else(String::new, |source| format!("/{space}/{}/", source.name));
    let object = demo.expected.largest(&sources).map_or_else(|| format!("/{space}"), |path| path.to_string());
    lines.next("Site", &demo.alps().url());
    for site in &demo.fabric.sites {
        let name = if site.name() == demo.alps().name() { "CLI" } else { "" };
        lines.next(
            name,
            &format!(
                "export PERCALE_URL={} PERCALE_TOKEN_FILE={} PERCALE_CA_FILE={}   # {}",
                site.url(),
                site.place().token_file().display(),
                site.place().ca_file().display(),
                site.name()
            ),
        );
    }
    lines.next("Next", "percale site list");
    lines.next("", &format!("percale ls -l percale:/{space}"));
    lines.next("", &format!("percale where percale:/{space}"));
    lines.next("", &format!("percale search 'format:* path:/{space}'"));
    lines.next("", &format!("percale header percale:{object}"));
    lines.next("", &format!("percale stat percale:{object}"));
    lines.next("", &format!("percale get percale:{object} ."));
    lines.next("", &format!("percale put -r ./mydata percale:/{space}"));
}
