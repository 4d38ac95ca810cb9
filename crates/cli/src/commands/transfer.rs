//! `get`, `put`, `cp`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use percale_api::entries::Kind;
use percale_api::tasks::{NewTask, TaskSpec};
use percale_client::get::{GetOptions, Tree};
use percale_client::put::{Compare, Links, PutOptions, default_state_dir, inside};
use percale_client::{Client, Progress, Report};
use percale_core::{ErrorCode, ObjectPath, Rate};

use super::namespace::{goes_into, refuse_root};
use super::task;
use super::task::Terms;
use crate::address::{Address, FabricPath, LocalPath, show};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::filters::FilterArgs;
use crate::listed::listed;
use crate::wildcards::expand;

mod report;

pub(super) use report::Reporter;

/// From so many bytes on, connections are opened while it is still found out what to do.
pub(super) const BULK: u64 = 2 << 20;

/// What all three take.
#[derive(Debug, Args)]
pub struct TransferArgs {
    /// Directories too, with everything below: under their names in the destination, or only what is
    /// in them where the path ends with a slash
    #[arg(long, short)]
    recursive: bool,
    /// Replace what is there with another content
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    common: CommonArgs,
}

/// What these and `sync` take.
#[derive(Debug, Args)]
pub struct CommonArgs {
    /// Show what would happen and change nothing
    #[arg(long, short = 'n', visible_alias = "dryrun")]
    pub dry_run: bool,
    /// When something that is there counts as the same: content, mtime, size, exists
    #[arg(long, value_name = "HOW", default_value = "content", hide_possible_values = true)]
    pub compare: CompareArg,
    /// Streams at once; as many as the round trip to the site asks for if absent
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub jobs: Option<u8>,
    /// At most so fast, all streams together, such as 200Mbit/s or 25MB/s
    #[arg(long, value_name = "SPEED")]
    pub limit: Option<Rate>,
    /// Take what symbolic links point at, instead of passing them over
    #[arg(long)]
    pub follow_links: bool,
    /// Write a line of JSON for each file to FILE
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Nothing to transfer is an error (exit code 9)
    #[arg(long)]
    pub error_on_noop: bool,
    #[command(flatten)]
    pub filters: FilterArgs,
}

/// When something counts as the same.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum CompareArg {
    /// The hashes are the same
    Content,
    /// Size and modification time are the same
    Mtime,
    /// The sizes are the same
    Size,
    /// It is there
    Exists,
}

impl From<CompareArg> for Compare {
    fn from(compare: CompareArg) -> Self {
        match compare {
            CompareArg::Content => Self::Content,
            CompareArg::Mtime => Self::Mtime,
            CompareArg::Size => Self::Size,
            CompareArg::Exists => Self::Exists,
        }
    }
}

/// `percale get`
#[derive(Debug, Args)]
#[command(after_help = "\
Every byte is verified before a file takes its name. A command that was interrupted goes on where it stopped when it is
run again. What is there with the same content is not fetched.

Examples:
  percale get percale:/climate/era5/2024.nc                 into the current directory
  percale get percale:/climate/era5/2024.nc ./copy.nc
  percale get -r percale:/climate/run7 ./data               makes ./data/run7
  percale get -r percale:/climate/run7/ ./data              what is in it goes into ./data
  percale get 'percale:/climate/*.nc' ./data
  percale get -r --limit 200Mbit/s percale:/climate/run7 ./data
  percale get -r -n --include '*.nc' percale:/climate ./data
  percale -q search ext:nc tag:final | percale get --file - ./data    makes ./data/climate/… and so on")]
pub struct GetArgs {
    /// What to get, then where to (the current directory if absent)
    #[arg(required_unless_present = "file", value_name = "PATH")]
    paths: Vec<String>,
    /// Get the objects in this file, one in each line, as they are; `-` is standard input. Each keeps its whole path below the destination
    #[arg(long, value_name = "FILE", conflicts_with = "recursive")]
    file: Option<PathBuf>,
    #[command(flatten)]
    transfer: TransferArgs,
}

/// `percale put`
#[derive(Debug, Args)]
#[command(after_help = "\
What is there with the same content is not sent; with another content it is only replaced with --overwrite. A command that
was interrupted goes on where it stopped when it is run again. A file that is changed while it is sent is refused.

Examples:
  percale put a.nc percale:/climate/                        makes percale:/climate/a.nc
  percale put a.nc percale:/climate/b.nc
  percale put -r ./run7 percale:/climate/                   makes percale:/climate/run7
  percale put -r ./run7/ percale:/climate/run7              what is in it goes there
  percale put -r --exclude '*.tmp' ./out percale:/climate/
  percale put -r -n --overwrite ./run7 percale:/climate/    shows what would be sent and replaced")]
pub struct PutArgs {
    /// What to put, then where to
    #[arg(required = true, num_args = 2.., value_name = "PATH")]
    paths: Vec<String>,
    #[command(flatten)]
    transfer: TransferArgs,
}

/// `percale cp`
#[derive(Debug, Args)]
#[command(after_help = "\
Between this computer and the fabric as get and put. Within the fabric the site that gets the bytes copies, as a task:
Ctrl-C leaves it running, --detach does not wait for it.

Examples:
  percale cp a.nc percale:/climate/
  percale cp percale:/climate/a.nc .
  percale cp -r percale:/climate/run7 percale:/archive/     a task at the site
  percale cp -r --detach percale:/climate/run7 percale:/archive/
  percale cp -r --to baltic percale:/climate/run7 percale:/archive/   the bytes go to baltic
  percale cp -r --deadline 2h --limit 25MB/s percale:/climate/run7 percale:/archive/
  percale cp -n percale:/climate/a.nc percale:/archive/b.nc")]
pub struct CpArgs {
    /// What to copy, then where to
    #[arg(required = true, num_args = 2.., value_name = "PATH")]
    paths: Vec<String>,
    /// Do not wait for a copy within the fabric; print the id of the task
    #[arg(long)]
    detach: bool,
    /// The site whose store gets the bytes of a copy within the fabric; the one that is asked if absent
    #[arg(long, value_name = "SITE")]
    to: Option<String>,
    /// What a task is for, shown in lists
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    #[command(flatten)]
    terms: Terms,
    #[command(flatten)]
    transfer: TransferArgs,
}

/// Sources and destination of a command line.
pub(super) enum Route {
    Put(Vec<LocalPath>, FabricPath),
    Get(Vec<FabricPath>, LocalPath),
    Within(Vec<FabricPath>, FabricPath),
}

impl Route {
    pub(super) fn of(paths: &[String]) -> Result<Self> {
        let mut addresses: Vec<Address> =
            paths.iter().map(|text| Address::parse(text)).collect::<Result<_>>()?;
        if addresses.contains(&Address::Standard) {
            let failure = Failure::new(ErrorCode::Unsupported, "'-' cannot be copied from or to");
            return Err(failure.with_hint("`percale cat` writes an object to standard output."));
        }
        let Some(destination) = addresses.pop() else {
            return Err(Failure::usage("no paths were given"));
        };
        let mut local = Vec::new();
        let mut fabric = Vec::new();
        for address in addresses {
            match address {
                Address::Local(path) => local.push(path),
                Address::Fabric(path) => fabric.push(path),
                Address::Standard => {}
            }
        }
        match (destination, local.is_empty(), fabric.is_empty()) {
            (Address::Fabric(to), false, true) => Ok(Self::Put(local, to)),
            (Address::Fabric(to), true, false) => Ok(Self::Within(fabric, to)),
            (Address::Local(to), true, false) => Ok(Self::Get(fabric, to)),
            (Address::Local(to), false, true) => {
                let message = "both source and destination are local paths";
                let hint = format!(
                    "Did you mean 'percale:/{}'?",
                    to.path.display().to_string().trim_start_matches(['.', '/'])
                );
                Err(Failure::usage(message).with_hint(hint))
            }
            (_, false, false) => Err(Failure::usage("the sources are partly local and partly in the fabric")
                .with_hint("Run one command for each kind.")),
            (_, true, true) | (Address::Standard, ..) => Err(Failure::usage("there is no source")),
        }
    }
}

/// `percale get`
pub async fn get(args: GetArgs, context: &Context) -> Result {
    let mut paths = args.paths;
    if let Some(file) = args.file {
        return get_listed(context, &args.transfer, &file, &paths).await;
    }
    // With no local path at the end, the current directory is meant.
    if paths.last().is_some_and(|last| matches!(Address::parse(last), Ok(Address::Fabric(_)))) {
        paths.push(".".to_owned());
    }
    match Route::of(&paths)? {
        Route::Get(from, to) => get_all(context, &args.transfer, from, to).await,
        _ => Err(Failure::usage("get copies from the fabric to this computer")
            .with_hint("The other way is `percale put`; `percale cp` takes both.")),
    }
}

/// `percale get -r` of what is in a collection.
pub(super) async fn get_contents(
    context: &Context,
    common: CommonArgs,
    from: FabricPath,
    to: PathBuf,
) -> Result {
    let args = TransferArgs { recursive: true, overwrite: true, common };
    let from = vec![FabricPath { means_contents: true, ..from }];
    get_all(context, &args, from, LocalPath { path: to, means_contents: true }).await
}

/// `percale put`
pub async fn put(args: PutArgs, context: &Context) -> Result {
    match Route::of(&args.paths)? {
        Route::Put(from, to) => put_all(context, &args.transfer, from, to).await,
        _ => Err(Failure::usage("put copies from this computer to the fabric")
            .with_hint("The other way is `percale get`; `percale cp` takes both.")),
    }
}

/// `percale cp`
pub async fn cp(args: CpArgs, context: &Context) -> Result {
    match Route::of(&args.paths)? {
        Route::Put(from, to) => put_all(context, &args.transfer, from, to).await,
        Route::Get(from, to) => get_all(context, &args.transfer, from, to).await,
        Route::Within(from, to) => copy_within(context, &args, from, to).await,
    }
}

pub(super) fn with_jobs(context: &Context, args: &CommonArgs) -> Context {
    Context { jobs: args.jobs.map(usize::from), limit: args.limit, ..context.clone() }
}

pub(super) fn put_options(
    context: &Context,
    args: &CommonArgs,
    progress: &Arc<Progress>,
    reporter: &Reporter,
) -> Result<PutOptions> {
    let mut options = PutOptions::default();
    options.compare = args.compare.into();
    options.dry_run = args.dry_run;
    options.links = if args.follow_links { Links::Follow } else { Links::PassOver };
    options.filter = args.filters.build()?;
    options.state_dir = default_state_dir();
    options.progress = progress.clone();
    options.on_item = Some(reporter.on_item());
    options.cancel = context.cancel.clone();
    Ok(options)
}

pub(super) fn get_options(
    context: &Context,
    args: &CommonArgs,
    progress: &Arc<Progress>,
    reporter: &Reporter,
) -> Result<GetOptions> {
    let mut options = GetOptions::default();
    options.compare = args.compare.into();
    options.dry_run = args.dry_run;
    options.filter = args.filters.build()?;
    options.progress = progress.clone();
    options.on_item = Some(reporter.on_item());
    options.cancel = context.cancel.clone();
    Ok(options)
}

fn needs_recursive(what: &str) -> Failure {
    Failure::new(ErrorCode::IsCollection, format!("{what} is a directory or collection"))
        .with_hint("Add -r to copy it with everything below.")
}

async fn put_all(context: &Context, args: &TransferArgs, from: Vec<LocalPath>, to: FabricPath) -> Result {
    let client = with_jobs(context, &args.common).client_for([&to])?;
    let progress = Progress::new();
    let reporter = Reporter::new(context, args.common.report.as_deref(), args.common.dry_run)?;
    let mut options = put_options(context, &args.common, &progress, &reporter)?;
    options.overwrite = args.overwrite;

    // Everything is looked at before anything is sent.
    let mut sources = Vec::new();
    for source in from {
        let metadata =
            std::fs::metadata(&source.path).map_err(|error| Failure::local("read", &source.path, &error))?;
        if metadata.is_dir() && !args.recursive {
            return Err(needs_recursive(&source.path.display().to_string()));
        }
        sources.push((source, metadata.is_dir()));
    }
    let several = sources.len();
    // A large file of which nothing is asked first opens its connections itself, with its first bytes.
    let asks_first = several > 1 || options.overwrite || options.dry_run;
    let is_bulk = |path: &Path| std::fs::metadata(path).is_ok_and(|metadata| metadata.len() >= BULK);
    if sources.iter().any(|(source, is_directory)| *is_directory || (asks_first && is_bulk(&source.path))) {
        client.warm_up();
    }
    refuse_root(&to)?;
    // The site is not asked what is there before a single thing is sent: it says so itself.
    options.into = several == 1 && !to.means_contents;
    let into = match several {
        1 => to.means_contents,
        _ => context.interruptible(goes_into(&client, &to, several)).await??,
    };
    let bar = context.bar(&progress, "put");
    let mut whole = Ok(Report::default());
    for (source, is_directory) in sources {
        let result = if is_directory {
            let target =
                if source.means_contents { to.path.clone() } else { inside(&to.path, &source.path)? };
            client.put_tree(&source.path, &target, &options).await
        } else {
            let target = if into { inside(&to.path, &source.path)? } else { to.path.clone() };
            client.put_file(&source.path, &target, &options).await
        };
        whole = reporter.join(whole, result);
        if context.cancel.is_cancelled() {
            break;
        }
    }
    reporter.finish(context, bar, whole?, args.common.error_on_noop).await
}

/// Returns where a source goes: into the destination, or in its place.
fn target_of(source: &FabricPath, to: &LocalPath, into: bool) -> PathBuf {
    if into { to.path.join(source.path.name().unwrap_or_default()) } else { to.path.clone() }
}

async fn get_all(context: &Context, args: &TransferArgs, from: Vec<FabricPath>, to: LocalPath) -> Result {
    let client = with_jobs(context, &args.common).client_for(&from)?;
    let mut ahead = match &*from {
        [only] if !(client.is_here() || args.recursive || args.common.dry_run || only.has_wildcards()) => {
            client.ask_ahead(&only.path, &target_of(only, &to, to.path.is_dir() || to.means_contents))
        }
        _ => None,
    };
    // Those that are asked ahead open connections themselves.
    if ahead.is_none() {
        client.warm_up();
    }
    let from = context.interruptible(expand(&client, from)).await??;
    let progress = Progress::new();
    let reporter = Reporter::new(context, args.common.report.as_deref(), args.common.dry_run)?;
    let mut options = get_options(context, &args.common, &progress, &reporter)?;
    options.overwrite = args.overwrite;

    let mut sources = Vec::new();
    for source in from {
        if source.path.is_root() {
            return Err(Failure::usage("the list of spaces cannot be copied")
                .with_hint("Name a space: 'percale:/SPACE'."));
        }
        let found = if args.recursive {
            context.interruptible(client.open_tree(&source.path)).await??
        } else {
            let entry = context.interruptible(client.resolve(&source.path)).await??;
            if entry.kind == Kind::Collection {
                return Err(needs_recursive(&source.to_string()));
            }
            Tree::Object(Box::new(entry))
        };
        sources.push((source, found));
    }
    let is_directory = to.path.is_dir();
    let into = is_directory || to.means_contents || sources.len() > 1;
    if sources.len() > 1 && to.path.exists() && !is_directory {
        let message = format!("{} is a file, and several things cannot become one", to.path.display());
        return Err(Failure::new(ErrorCode::NotACollection, message));
    }
    let bar = context.bar(&progress, "get");
    let mut whole = Ok(Report::default());
    for (source, found) in sources {
        let result = match found {
            Tree::Collection(collection) => {
                let target = target_of(&source, &to, !source.means_contents);
                client.get_collection(collection, &target, &options).await
            }
            Tree::Object(entry) => {
                if into && !args.common.dry_run {
                    let made = std::fs::create_dir_all(&to.path);
                    made.map_err(|error| Failure::local("make the directory", &to.path, &error))?;
                }
                let target = target_of(&source, &to, into);
                client.get_found(*entry, ahead.take(), &target, &options).await
            }
        };
        whole = reporter.join(whole, result);
        if context.cancel.is_cancelled() {
            break;
        }
    }
    reporter.finish(context, bar, whole?, args.common.error_on_noop).await
}

/// Gets what a file lists.
async fn get_listed(context: &Context, args: &TransferArgs, file: &Path, to: &[String]) -> Result {
    let to = match to {
        [] => PathBuf::from("."),
        [to] => match Address::parse(to)? {
            Address::Local(to) => to.path,
            Address::Fabric(_) | Address::Standard => {
                return Err(Failure::usage("with --file, only the directory is named where the objects go"));
            }
        },
        _ => return Err(Failure::usage("with --file, only the directory is named where the objects go")),
    };
    let from = listed(file)?;
    let client = with_jobs(context, &args.common).client_for(&from)?;
    let progress = Progress::new();
    let reporter = Reporter::new(context, args.common.report.as_deref(), args.common.dry_run)?;
    let mut options = get_options(context, &args.common, &progress, &reporter)?;
    options.overwrite = args.overwrite;
    let bar = context.bar(&progress, "get");
    let paths = from.into_iter().map(|from| from.path).collect();
    let whole = reporter.join(Ok(Report::default()), client.get_listed(paths, &to, &options).await);
    reporter.finish(context, bar, whole?, args.common.error_on_noop).await
}

/// A copy within the fabric, which the site makes.
async fn copy_within(context: &Context, args: &CpArgs, from: Vec<FabricPath>, to: FabricPath) -> Result {
    let client = context.client_for(from.iter().chain([&to]))?;
    if args.transfer.overwrite {
        let failure =
            Failure::new(ErrorCode::Unsupported, "a copy within the fabric does not replace what is there");
        return Err(failure.with_hint("Remove the destination first, or choose another one."));
    }
    let plan = async {
        let from = expand(&client, from).await?;
        let into = goes_into(&client, &to, from.len()).await?;
        plan_copies(&client, &from, &to, into, args.transfer.recursive).await
    };
    let copies = context.interruptible(plan).await??;
    if args.transfer.common.dry_run {
        for (from, to) in &copies {
            if context.output.json {
                let line = serde_json::json!({"status": "planned", "action": "copy", "from": from, "to": to});
                context.output.line(line.to_string())?;
            } else {
                context.output.line(format!("would copy {} -> {}", show(from), show(to)))?;
            }
        }
        return Ok(());
    }
    let (deadline, verify) = (args.terms.deadline(), args.terms.verify());
    let order = |(from, to)| {
        let spec = TaskSpec::Copy { from, to, at: args.to.clone() };
        let (label, limit) = (args.label.clone(), args.transfer.common.limit);
        NewTask { label, deadline, limit, verify, ..NewTask::new(spec) }
    };
    task::run_all(context, &client, copies.into_iter().map(order).collect(), "copying", args.detach).await
}

/// Decides what goes where.
async fn plan_copies(
    client: &Client,
    from: &[FabricPath],
    to: &FabricPath,
    into: bool,
    recursive: bool,
) -> Result<Vec<(ObjectPath, ObjectPath)>> {
    let mut copies = Vec::new();
    for source in from {
        let entry = client.resolve(&source.path).await?;
        let is_collection = entry.kind == Kind::Collection;
        if is_collection && !recursive {
            return Err(needs_recursive(&source.to_string()));
        }
        let target = match source.path.name() {
            Some(name) if into && !(is_collection && source.means_contents) => to
                .path
                .join(name)
                .map_err(|error| Failure::new(error.code(), format!("cannot copy {source}: {error}")))?,
            _ => to.path.clone(),
        };
        if target.is_within(&entry.path) {
            let message = format!("cannot copy {source} into itself ({})", show(&target));
            return Err(Failure::usage(message));
        }
        copies.push((entry.path, target));
    }
    Ok(copies)
}

/// What a reporter calls with each item.
type OnItem = Arc<dyn Fn(&percale_client::Item) + Send + Sync>;
