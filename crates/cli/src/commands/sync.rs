//! `sync`: a destination like its source.

use std::collections::HashMap;

use clap::Args;
use percale_api::entries::{Content, Entry, Kind};
use percale_api::tasks::{Looks, NewTask, TaskSpec};
use percale_client::extra::ExtraOptions;
use percale_client::put::Compare;
use percale_client::{Client, ListOptions, Progress, Report};
use percale_core::{ErrorCode, ObjectPath};
use serde_json::json;

use super::task;
use super::task::Terms;
use super::transfer::{CommonArgs, Reporter, Route, get_options, put_options, with_jobs};
use crate::address::{FabricPath, LocalPath, show};
use crate::context::Context;
use crate::failure::{Failure, Result};

/// `percale sync`
#[derive(Debug, Args)]
#[command(after_help = "\
What is in the source comes to be in the destination, with or without a slash at the end: what is missing is copied, what
differs replaced. What only the destination has stays, unless --delete is given; nothing is removed if anything could not
be copied, and never what a filter leaves out.

Between two places in the fabric the site that gets the bytes does the work, as a task: Ctrl-C leaves it running.

Examples:
  percale sync ./out percale:/climate/out
  percale sync -n --delete ./out percale:/climate/out     shows what would be copied, replaced and removed
  percale sync --delete percale:/climate/out ./out
  percale sync --compare mtime ./out percale:/climate/out  trusts size and time, reads nothing that has the same
  percale sync --to baltic percale:/climate/out percale:/archive/out")]
pub struct SyncArgs {
    /// The directory or collection that is taken as it is
    #[arg(value_name = "SOURCE")]
    source: String,
    /// The one that is changed; made if it is missing
    #[arg(value_name = "DESTINATION")]
    destination: String,
    /// Remove what the source has not
    #[arg(long)]
    delete: bool,
    /// Within the fabric: do not wait; print the id of the task
    #[arg(long)]
    detach: bool,
    /// Within the fabric: the site whose store gets the bytes; the one that is asked if absent
    #[arg(long, value_name = "SITE")]
    to: Option<String>,
    /// What a task is for, shown in lists
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    #[command(flatten)]
    terms: Terms,
    #[command(flatten)]
    common: CommonArgs,
}

/// Makes a destination like its source.
pub async fn run(args: SyncArgs, context: &Context) -> Result {
    let route = Route::of(&[args.source.clone(), args.destination.clone()])?;
    match route {
        Route::Put(from, to) => put(&args, context, only(from)?, to).await,
        Route::Get(from, to) => get(&args, context, only(from)?, to).await,
        Route::Within(from, to) => within(&args, context, only(from)?, to).await,
    }
}

fn only<T>(sources: Vec<T>) -> Result<T> {
    sources.into_iter().next().ok_or_else(|| Failure::usage("there is no source"))
}

async fn put(args: &SyncArgs, context: &Context, from: LocalPath, to: FabricPath) -> Result {
    let client = with_jobs(context, &args.common).client_for([&to])?;
    let progress = Progress::new();
    let reporter = Reporter::new(context, args.common.report.as_deref(), args.common.dry_run)?;
    let mut options = put_options(context, &args.common, &progress, &reporter)?;
    options.overwrite = true;
    let bar = context.bar(&progress, "sync");
    let copied = client.put_tree(&from.path, &to.path, &options).await?;
    let removed = match may_remove(args, &copied, &reporter) {
        true if args.common.dry_run && is_missing(&client, &to.path).await? => Report::default(),
        true => {
            let extra = extra_options(args, context, &reporter)?;
            client.remove_extra_objects(&from.path, &to.path, &extra).await
        }
        false => Report::default(),
    };
    let whole = reporter.join(Ok(copied), Ok(removed))?;
    reporter.finish(context, bar, whole, args.common.error_on_noop).await
}

async fn get(args: &SyncArgs, context: &Context, from: FabricPath, to: LocalPath) -> Result {
    let client = with_jobs(context, &args.common).client_for([&from])?;
    let progress = Progress::new();
    let reporter = Reporter::new(context, args.common.report.as_deref(), args.common.dry_run)?;
    let mut options = get_options(context, &args.common, &progress, &reporter)?;
    options.overwrite = true;
    let bar = context.bar(&progress, "sync");
    let copied = client.get_tree(&from.path, &to.path, &options).await?;
    let removed = match may_remove(args, &copied, &reporter) && to.path.is_dir() {
        true => {
            let extra = extra_options(args, context, &reporter)?;
            client.remove_extra_files(&from.path, &to.path, &extra).await
        }
        false => Report::default(),
    };
    let whole = reporter.join(Ok(copied), Ok(removed))?;
    reporter.finish(context, bar, whole, args.common.error_on_noop).await
}

/// Tells whether what the source has not is to be removed: it was asked for, and all else was done.
fn may_remove(args: &SyncArgs, copied: &Report, reporter: &Reporter) -> bool {
    let is_whole = copied.failed == 0 && !copied.interrupted;
    if args.delete && !is_whole {
        reporter.talk("nothing was removed, since not all could be copied");
    }
    args.delete && is_whole
}

fn extra_options(args: &SyncArgs, context: &Context, reporter: &Reporter) -> Result<ExtraOptions> {
    let mut options = ExtraOptions::default();
    options.dry_run = args.common.dry_run;
    options.filter = args.common.filters.build()?;
    options.on_item = Some(reporter.on_item());
    options.cancel = context.cancel.clone();
    Ok(options)
}

async fn is_missing(client: &Client, path: &ObjectPath) -> Result<bool> {
    match client.stat(path).await {
        Ok(_) => Ok(false),
        Err(error) if error.code() == ErrorCode::NotFound => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// A sync within the fabric, which the site that gets the bytes makes.
async fn within(args: &SyncArgs, context: &Context, from: FabricPath, to: FabricPath) -> Result {
    if args.common.filters.build()?.is_some() {
        let failure = Failure::new(ErrorCode::Unsupported, "a sync within the fabric takes no filters");
        return Err(failure.with_hint("Sync the collections that are wanted one by one."));
    }
    let client = context.client_for([&from, &to])?;
    let entry = context.interruptible(client.resolve(&from.path)).await??;
    if entry.kind == Kind::Object {
        let message = format!("{from} is an object; only collections are kept alike");
        return Err(
            Failure::new(ErrorCode::NotACollection, message).with_hint("`percale cp` copies one object.")
        );
    }
    if args.common.dry_run {
        return context.interruptible(show_plan(args, context, &client, &entry.path, &to.path)).await?;
    }
    let spec = TaskSpec::Sync {
        from: entry.path,
        to: to.path.clone(),
        compare: args.common.compare.into(),
        delete: args.delete,
        at: args.to.clone(),
    };
    let new = NewTask {
        label: args.label.clone(),
        deadline: args.terms.deadline(),
        verify: args.terms.verify(),
        limit: args.common.limit,
        ..NewTask::new(spec)
    };
    let submitted = context.interruptible(client.submit(&new)).await??;
    if args.detach {
        return context.output.one(&submitted, |task| task.id.to_string(), |task| task.id.to_string());
    }
    let ended = task::attach(context, &client, submitted, "syncing", None).await?;
    if context.output.json {
        context.output.document(&ended)?;
    }
    task::outcome(context, &client, &ended).await?;
    context.output.next(format!("percale ls -L {}", show(&to.path)));
    Ok(())
}

/// Shows what a sync within the fabric would do.
async fn show_plan(
    args: &SyncArgs,
    context: &Context,
    client: &Client,
    from: &ObjectPath,
    to: &ObjectPath,
) -> Result {
    let mut there = match is_missing(client, to).await? {
        true => HashMap::new(),
        false => entries(client, to).await?,
    };
    let tell = |status: &str, action: &str, path: &ObjectPath| match context.output.json {
        true => context.output.line(json!({"status": status, "action": action, "to": path}).to_string()),
        false => context.output.line(format!("would {action} {}", show(path))),
    };
    let compare: Compare = args.common.compare.into();
    let mut wanted: Vec<(String, Entry)> = entries(client, from).await?.into_iter().collect();
    wanted.sort_by(|left, right| left.0.cmp(&right.0));
    for (below, entry) in wanted {
        let Some(new) = entry.content else {
            there.remove(&below);
            continue;
        };
        let target = ObjectPath::parse(&format!("{to}{below}"))
            .map_err(|error| Failure::new(error.code(), format!("cannot copy {}: {error}", entry.path)))?;
        match there.remove(&below).and_then(|old| old.content) {
            Some(old) if compare.is_same(looks(&old), looks(&new)) => {}
            Some(_) => tell("planned", "replace", &target)?,
            None => tell("planned", "make", &target)?,
        }
    }
    let mut extra: Vec<ObjectPath> = there.into_values().map(|entry| entry.path).collect();
    extra.sort();
    for path in extra.iter().filter(|_| args.delete) {
        tell("planned", "remove", path)?;
    }
    Ok(())
}

/// Lists what is below a collection, by the path below it.
async fn entries(client: &Client, root: &ObjectPath) -> Result<HashMap<String, Entry>> {
    let options = ListOptions { recursive: true, limit: Some(percale_api::MAX_PAGE), replicas: false };
    let (mut entries, mut cursor) = (HashMap::new(), None);
    loop {
        let page = client.list(root, options, cursor.as_deref()).await?;
        for entry in page.items.into_iter().filter(|entry| entry.path != *root) {
            let below = entry.path.as_str().strip_prefix(root.as_str()).unwrap_or_default().to_owned();
            entries.insert(below, entry);
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(entries);
        }
    }
}

fn looks(content: &Content) -> Looks {
    Looks { size: content.size, root: content.root, mtime: Some(content.mtime) }
}
