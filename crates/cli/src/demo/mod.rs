//! `percale demo`: a site on this machine, filled with scientific files and put through what sites meet: damage, a crash,
//! two writers, a backup. It uses the same client, the same server and the same commands as everybody.
//!
//! | file | holds |
//! |---|---|
//! | [`folder`] | the folder that everything lies in |
//! | [`site`] | the server, as a process of its own |
//! | [`sources`] | the files that are ingested, real ones where there are any |
//! | [`disk`] | what the disk does by itself, to compare with |
//! | [`lines`] | the lines that are printed |
//! | [`checks`], [`faults`] | what the lines are about |

mod checks;
mod disk;
mod faults;
mod folder;
mod lines;
mod site;
mod sources;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Instant;

use percale_client::Client;
use percale_core::ObjectPath;
use percale_core::path::SpaceName;
use tokio_util::sync::CancellationToken;

use folder::Folder;
use lines::{Line, Lines};
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
    /// Port on 127.0.0.1; 8787, or a free one if that is taken.
    #[arg(long, value_name = "N")]
    pub port: Option<u16>,
}

/// What the checks work with.
struct Demo {
    folder: Folder,
    site: Site,
    client: Client,
    space: SpaceName,
    sources: Vec<Source>,
    /// What was acknowledged and must be there, whatever happens.
    expected: checks::Expected,
}

impl Demo {
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
    demo.site.stop().await?;
    if args.check && passed && !args.keep {
        drop(demo);
        Folder::remove(&args.dir)?;
    } else if args.check && !passed {
        lines.note(&format!("the server's log is {}", demo.folder.log().display()));
    }
    Ok(if passed { Ended::Passed } else { Ended::Failed })
}

/// Chooses the files, starts the site, makes its store and space.
async fn begin(args: &DemoArgs, folder: Folder, lines: &mut Lines) -> anyhow::Result<Demo> {
    let sources = sources::choose(args.data.clone(), folder.generated()).await?;
    let (site, took) = Site::start(&folder, args.port).await?;
    let client = site.client()?;
    let space = checks::prepare_space(&client, &folder).await?;
    let line = Line::new(format!("● {}, SQLite, TLS by its own authority", site.url())).time(took);
    lines.check("site", async { Ok(line) }).await;
    Ok(Demo { folder, site, client, space, sources, expected: checks::Expected::default() })
}

/// Each check is a line. One that fails does not keep the others from being made.
async fn run_checks(demo: &mut Demo, lines: &mut Lines) {
    lines.check("ingest", checks::ingest(demo)).await;
    lines.check("listing", checks::listing(demo)).await;
    lines.check("read back", checks::read_back(demo)).await;
    lines.check("verify", checks::verify(demo)).await;
    lines.check("small files", checks::small_files(demo)).await;
    lines.check("damage", faults::damage(demo)).await;
    lines.check("crash", faults::crash(demo)).await;
    lines.check("two writers", faults::two_writers(demo)).await;
    lines.check("backup", checks::backup(demo)).await;
}

fn next_steps(demo: &Demo, lines: &Lines) {
    let space = &demo.space;
    let object = demo.expected.largest().map_or_else(|| format!("/{space}"), |path| path.to_string());
    lines.next("Site", &demo.site.url());
    lines.next(
        "CLI",
        &format!(
            "export PERCALE_URL={} PERCALE_TOKEN_FILE={} PERCALE_CA_FILE={}",
            demo.site.url(),
            demo.folder.token_file().display(),
            demo.folder.ca_file().display()
        ),
    );
    lines.next("Next", &format!("percale ls -l percale:/{space}"));
    lines.next("", &format!("percale stat percale:{object}"));
    lines.next("", &format!("percale get percale:{object} ."));
    lines.next("", &format!("percale put -r ./mydata percale:/{space}/mydata"));
}
