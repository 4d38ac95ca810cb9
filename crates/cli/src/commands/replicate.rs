//! `replicate`, `evict`: which sites hold copies.

use std::path::{Path, PathBuf};

use clap::Args;
use percale_api::tasks::{NewTask, TaskSpec, Verification};
use percale_client::Client;
use percale_core::{Rate, Timestamp};

use super::grant::fabric_path;
use super::task;
use super::task::Terms;
use crate::address::FabricPath;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::listed::{listed, resolve};

/// `percale replicate`
#[derive(Debug, Args)]
#[command(after_help = "\
Every object gets a copy at the site unless it has a good one there. Bytes go from site to site, each group of 1 MiB
verified; this computer only watches. The work is a task of the site that gets the copies: Ctrl-C stops the watching, not
the task. Run again, it does only what is missing.

Examples:
  percale replicate percale:/climate/run7 --to baltic
  percale replicate percale:/climate/run7 --to baltic --to coast
  percale replicate percale:/climate/run7 --to baltic --from alps     reads the copies at alps first
  percale replicate percale:/climate/run7 --to baltic --limit 200Mbit/s --deadline 8h
  percale replicate percale:/climate/run7 --to baltic --verify medium    reads back what was written
  percale replicate 'percale:/climate/*.nc' --to baltic --detach      prints the ids of the tasks
  percale -q search tag:final 'replicas<2' | percale replicate --file - --to baltic")]
pub struct ReplicateArgs {
    /// What to copy, with everything below
    #[arg(value_parser = fabric_path, required_unless_present = "file", value_name = "PATH")]
    paths: Vec<FabricPath>,
    /// Also the paths in this file, one in each line, as they are; `-` is standard input. Each is a task of its own
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The site that gets the copies; may be repeated
    #[arg(long, value_name = "SITE", required = true)]
    to: Vec<String>,
    /// The site whose copies are read first
    #[arg(long, value_name = "SITE")]
    from: Option<String>,
    #[command(flatten)]
    terms: Terms,
    /// At most so fast, such as 200Mbit/s or 25MB/s; each task by itself
    #[arg(long, value_name = "SPEED")]
    limit: Option<Rate>,
    /// Do not wait; print the ids of the tasks
    #[arg(long)]
    detach: bool,
}

/// `percale evict`
#[derive(Debug, Args)]
#[command(after_help = "\
An object keeps its last good copy: where the site has it, that is said, and the exit code is 6. The names stay, and the
content can be read from the other sites.

Examples:
  percale evict percale:/climate/run7 --from coast
  percale evict percale:/climate/run7 percale:/climate/run8 --from coast --detach")]
pub struct EvictArgs {
    /// What to remove the copies of, with everything below
    #[arg(value_parser = fabric_path, required_unless_present = "file", value_name = "PATH")]
    paths: Vec<FabricPath>,
    /// Also the paths in this file, one in each line, as they are; `-` is standard input. Each is a task of its own
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The site whose copies are removed
    #[arg(long, value_name = "SITE")]
    from: String,
    /// Do not wait; print the ids of the tasks
    #[arg(long)]
    detach: bool,
}

/// Has copies made.
pub async fn replicate(args: ReplicateArgs, context: &Context) -> Result {
    let (client, paths) = wanted(args.paths, args.file.as_deref(), context).await?;
    let mut specs = Vec::new();
    for path in paths {
        for to in &args.to {
            let (path, to, from) = (path.path.clone(), to.clone(), args.from.clone());
            specs.push(TaskSpec::Replicate { path, to, from });
        }
    }
    let (deadline, verify) = (args.terms.deadline(), args.terms.verify());
    let order = Order { deadline, verify, limit: args.limit, detach: args.detach };
    run(&client, specs, "replicating", order, context).await
}

/// Has copies removed.
pub async fn evict(args: EvictArgs, context: &Context) -> Result {
    let (client, paths) = wanted(args.paths, args.file.as_deref(), context).await?;
    let specs = paths.into_iter().map(|path| TaskSpec::Evict { path: path.path, from: args.from.clone() });
    let order = Order { deadline: None, verify: Verification::default(), limit: None, detach: args.detach };
    run(&client, specs.collect(), "evicting", order, context).await
}

/// Returns what is named, in arguments, which may have wildcards, and in a file, and the client of the site that is asked.
async fn wanted(
    paths: Vec<FabricPath>,
    file: Option<&Path>,
    context: &Context,
) -> Result<(Client, Vec<FabricPath>)> {
    let listed = file.map_or_else(|| Ok(Vec::new()), listed)?;
    let (client, paths) = resolve(paths, listed, context).await?;
    match paths.iter().find(|path| path.path.is_root()) {
        Some(path) => {
            let failure = Failure::usage(format!("{path} is in no space"));
            Err(failure.with_hint("`percale ls percale:/` lists the spaces; name one."))
        }
        None => Ok((client, paths)),
    }
}

/// What holds for all tasks of a command.
#[derive(Clone, Copy)]
struct Order {
    deadline: Option<Timestamp>,
    verify: Verification,
    limit: Option<Rate>,
    detach: bool,
}

/// Has tasks done on the same terms.
async fn run(
    client: &Client,
    specs: Vec<TaskSpec>,
    verb: &'static str,
    Order { deadline, verify, limit, detach }: Order,
    context: &Context,
) -> Result {
    let order = |spec| NewTask { deadline, limit, verify, ..NewTask::new(spec) };
    task::run_all(context, client, specs.into_iter().map(order).collect(), verb, detach).await
}
