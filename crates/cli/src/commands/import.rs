//! `import`: files of a site's storage, registered in place.

use clap::{Args, ValueEnum};
use percale_api::importing::{Hashing, Import};
use percale_api::tasks::{NewTask, TaskSpec};

use super::grant::fabric_path;
use super::task;
use crate::address::{FabricPath, RawPath, show};
use crate::context::Context;
use crate::duration::Span;
use crate::failure::{Failure, Result};
use crate::filters::FilterArgs;

/// How often a tree is looked at if nothing is said.
const EVERY: &str = "1m";

/// `percale import`
#[derive(Debug, Args)]
#[command(after_help = "\
What is in the directory appears in the collection, with or without a slash at the end. The files stay where they are, as they are:
no byte is moved, and programs at the site go on using them. Run again, it registers what is new, makes new versions of what
changed, and marks copies of what is gone as lost; the rest costs next to nothing.

The directory must lie in the root of a native store (`percale store add NAME --posix DIR --native`), or what is to be registered in
its bucket (`--connector s3 --native`). Its path is the site's own, so it needs a token with the scope admin of that site, and a
server of it: see --url.

The work is a task of the site: Ctrl-C stops the watching, not the task.

Examples:
  percale import alps:/data/run7 percale:/climate/run7
  percale import -n alps:/data/run7 percale:/climate/run7           shows what would be registered, and changes nothing
  percale import alps:/data percale:/climate --include '*.nc' --exclude tmp/
  percale import alps:s3://archive/2018 percale:/climate/2018       the objects of a bucket whose keys begin with 2018/
  percale import alps:/data/run7 percale:/climate/run7 --hash now   registers only what was read and hashed
  percale import alps:/data/run7 percale:/climate/run7 --extract    found by what stands in the headers when it ends
  percale import alps:/data/live percale:/climate/live --follow     looks again and again, until the task is cancelled")]
pub struct ImportArgs {
    /// The directory, as SITE:/path, or a prefix of keys in a bucket, as SITE:s3://bucket/path
    #[arg(value_parser = raw_path, value_name = "SITE:/DIR")]
    from: RawPath,
    /// The collection that gets what is in it; made if it is missing
    #[arg(value_parser = fabric_path, value_name = "PATH")]
    to: FabricPath,
    /// When files are hashed
    #[arg(long, value_name = "WHEN", default_value = "later")]
    hash: HashArg,
    /// Read the headers of what is new or changed before it ends, whatever the space says
    #[arg(long)]
    extract: bool,
    /// Show what would happen and change nothing
    #[arg(long, short = 'n', visible_alias = "dryrun")]
    dry_run: bool,
    /// Look again and again until the task is cancelled: soon after a change on the server's host, and at the latest so long after the last
    /// time
    #[arg(long, value_name = "EVERY", num_args = 0..=1, require_equals = true, default_missing_value = EVERY, conflicts_with = "dry_run")]
    follow: Option<Span>,
    /// Do not wait; print the id of the task
    #[arg(long, conflicts_with = "dry_run")]
    detach: bool,
    #[command(flatten)]
    filters: FilterArgs,
}

/// When files are hashed.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum HashArg {
    /// Before they are registered
    Now,
    /// By another task, once all are registered
    Later,
    /// When somebody reads or checks them
    Never,
}

fn raw_path(text: &str) -> Result<RawPath, String> {
    RawPath::parse(text).map_err(|failure| format!("{failure}\n{}", failure.hint()))
}

/// Registers files.
pub async fn run(args: ImportArgs, context: &Context) -> Result {
    if args.to.path.is_root() {
        let failure = Failure::usage(format!("{} is in no space", args.to));
        return Err(failure.with_hint("`percale ls percale:/` lists the spaces; name one."));
    }
    args.filters.build()?;
    let follow_s = match args.follow {
        Some(Span(every)) => {
            Some(u32::try_from(every.as_secs()).map_err(|_| Failure::usage("that is too long"))?)
        }
        None => None,
    };
    let client = context.client_for([&args.to])?;
    let spec = TaskSpec::Import(Import {
        source: args.from.path,
        to: args.to.path.clone(),
        at: Some(args.from.site),
        hash: match args.hash {
            HashArg::Now => Hashing::Now,
            HashArg::Later => Hashing::Later,
            HashArg::Never => Hashing::Never,
        },
        select: args.filters.selection(),
        extract: args.extract,
        dry_run: args.dry_run,
        follow_s,
    });
    let task = context.interruptible(client.submit(&NewTask::new(spec))).await??;
    if args.detach || follow_s.is_some() {
        context.output.one(&task, |task| task.id.to_string(), |task| task.id.to_string())?;
        if follow_s.is_some() {
            let id = task.id;
            context.output.talk(format!(
                "`percale task show {id}` shows the last pass, `percale task cancel {id}` ends it"
            ));
        }
        return Ok(());
    }
    let ended = task::attach(context, &client, task, "importing", None).await?;
    if context.output.json {
        context.output.document(&ended)?;
    } else if args.dry_run {
        name(context, &client, &ended, &args.to).await?;
    }
    task::outcome(context, &client, &ended).await
}

/// Says of the first files what would become of them.
async fn name(
    context: &Context,
    client: &percale_client::Client,
    task: &percale_api::tasks::Task,
    to: &FabricPath,
) -> Result {
    let items = client.all_task_items(task.id).await?;
    for (what, words) in
        [("registered", "register"), ("changed", "make a new version of"), ("lost", "mark as lost")]
    {
        let named: Vec<_> = items.iter().filter(|item| item.code == what).collect();
        for item in &named {
            context.output.line(format!("would {words} {}", item.path))?;
        }
        let all = task.progress.counts.get(what).copied().unwrap_or_default();
        if all > named.len() as u64 {
            context.output.line(format!("would {words} {} more", all - named.len() as u64))?;
        }
    }
    context.output.next(format!("run it without -n to have them in {}", show(&to.path)));
    Ok(())
}
