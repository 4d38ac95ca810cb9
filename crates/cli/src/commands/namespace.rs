//! `mv`, `rm`, `mkdir`.

use clap::Args;
use percale_api::entries::Kind;
use percale_api::tasks::{NewTask, TaskSpec};
use percale_client::Client;
use percale_core::{ErrorCode, ObjectPath};
use serde_json::json;

use super::grant::fabric_path;
use super::task::attach;
use crate::address::{FabricPath, show};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{Lines, count};
use crate::wildcards::expand;

/// `percale mv`
#[derive(Debug, Args)]
#[command(after_help = "\
A rename moves no bytes, however large the collection is. It stays within its space.

Examples:
  percale mv percale:/climate/a.nc percale:/climate/b.nc
  percale mv percale:/climate/run7 percale:/climate/old/        into the collection
  percale mv 'percale:/climate/*.tmp' percale:/climate/scratch
  percale mv -n percale:/climate/run7 percale:/climate/run8     shows what would happen")]
pub struct MvArgs {
    /// What to move, then where to
    #[arg(value_parser = fabric_path, required = true, num_args = 2.., value_name = "PATH")]
    paths: Vec<FabricPath>,
    /// Replace an object that is there
    #[arg(long)]
    overwrite: bool,
    /// Show what would happen and change nothing
    #[arg(long, short = 'n', visible_alias = "dryrun")]
    dry_run: bool,
}

/// `percale rm`
#[derive(Debug, Args)]
#[command(after_help = "\
A tree is removed by a task at the site: Ctrl-C leaves it running, --detach does not wait for it.

Examples:
  percale rm percale:/climate/a.nc
  percale rm 'percale:/climate/*.tmp'
  percale rm -r percale:/climate/run7            asks first
  percale rm -r -y percale:/climate/run7         does not
  percale rm -r -n percale:/climate/run7         shows what would go")]
pub struct RmArgs {
    /// What to remove
    #[arg(value_parser = fabric_path, required = true)]
    paths: Vec<FabricPath>,
    /// Collections too, with everything below
    #[arg(long, short)]
    recursive: bool,
    /// What is not there is no error
    #[arg(long, short)]
    force: bool,
    /// Do not wait; print the id of the task
    #[arg(long)]
    detach: bool,
    /// Show what would happen and change nothing
    #[arg(long, short = 'n', visible_alias = "dryrun")]
    dry_run: bool,
}

/// `percale mkdir`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale mkdir percale:/climate/run8
  percale mkdir -p percale:/climate/2024/11/21
  percale mkdir percale:/climate/a percale:/climate/b")]
pub struct MkdirArgs {
    /// The collections
    #[arg(value_parser = fabric_path, required = true)]
    paths: Vec<FabricPath>,
    /// Those above too; and one that is there is no error
    #[arg(long, short)]
    parents: bool,
    /// Show what would happen and change nothing
    #[arg(long, short = 'n', visible_alias = "dryrun")]
    dry_run: bool,
}

/// Renames.
pub async fn mv(mut args: MvArgs, context: &Context) -> Result {
    let client = context.client_for(&args.paths)?;
    let Some(destination) = args.paths.pop() else { return Ok(()) };
    let sources = expand(&client, args.paths).await?;
    let into = goes_into(&client, &destination, sources.len()).await?;
    for source in &sources {
        let target = target_of(&source.path, &destination.path, into)?;
        if source.path.space() != target.space() {
            let failure =
                Failure::new(ErrorCode::Unsupported, format!("cannot move {source} to another space"));
            return Err(failure.with_hint(format!(
                "Copy it and then remove it: `percale cp -r {source} {destination}`, `percale rm -r {source}`."
            )));
        }
        if source.path == target {
            return Err(Failure::usage(format!("{source} is where it should go already")));
        }
        if args.dry_run {
            let kind = client.stat(&source.path).await?.kind;
            plan(context, "move", Some(kind), &source.path, Some(&target))?;
            continue;
        }
        client.rename(&source.path, &target, args.overwrite).await?;
        done(context, "moved", &source.path, Some(&target))?;
    }
    Ok(())
}

/// Tells whether things go into the destination, rather than becoming it.
pub async fn goes_into(client: &Client, destination: &FabricPath, sources: usize) -> Result<bool> {
    refuse_root(destination)?;
    let entry = client.find(&destination.path).await?;
    let is_collection = entry.as_ref().is_some_and(|entry| entry.kind == Kind::Collection);
    if sources > 1 && entry.is_some() && !is_collection {
        let message = format!("{destination} is an object, and several things cannot become one");
        return Err(Failure::new(ErrorCode::NotACollection, message));
    }
    Ok(is_collection || destination.means_contents || sources > 1)
}

/// Refuses the list of spaces as a destination.
pub fn refuse_root(destination: &FabricPath) -> Result {
    if !destination.path.is_root() {
        return Ok(());
    }
    let failure = Failure::usage("the destination must lie in a space, not in the list of spaces");
    Err(failure.with_hint("`percale space create NAME` makes a space."))
}

fn target_of(source: &ObjectPath, destination: &ObjectPath, into: bool) -> Result<ObjectPath> {
    match (into, source.name()) {
        (true, Some(name)) => destination
            .join(name)
            .map_err(|error| Failure::new(error.code(), format!("cannot use {name}: {error}"))),
        (true, None) => Err(Failure::usage("the list of spaces cannot be moved or copied")),
        (false, _) => Ok(destination.clone()),
    }
}

/// Prints a step of a dry run.
fn plan(
    context: &Context,
    verb: &str,
    kind: Option<Kind>,
    from: &ObjectPath,
    to: Option<&ObjectPath>,
) -> Result {
    if context.output.json {
        let mut out = Lines::open();
        out.json(&json!({"status": "planned", "action": verb, "from": from, "to": to}))?;
        return out.finish();
    }
    let slash = if kind == Some(Kind::Collection) { "/" } else { "" };
    let to = to.map_or(String::new(), |to| format!(" -> {}{slash}", show(to)));
    context.output.line(format!("would {verb} {}{slash}{to}", show(from)))
}

/// Prints a step that was done.
fn done(context: &Context, verb: &str, path: &ObjectPath, to: Option<&ObjectPath>) -> Result {
    if context.output.json {
        let mut out = Lines::open();
        out.json(&json!({"status": verb, "from": path, "to": to}))?;
        return out.finish();
    }
    if context.output.quiet {
        return context.output.line(show(to.unwrap_or(path)));
    }
    match to {
        Some(to) => context.output.talk(format!("{verb} {} -> {}", show(path), show(to))),
        None => context.output.talk(format!("{verb} {}", show(path))),
    }
    Ok(())
}

/// Removes.
pub async fn rm(args: RmArgs, context: &Context) -> Result {
    let client = context.client_for(&args.paths)?;
    let paths = match context.interruptible(expand(&client, args.paths)).await? {
        Err(failure) if args.force && failure.code() == ErrorCode::NotFound => return Ok(()),
        paths => paths?,
    };
    let mut wanted = Vec::new();
    for path in paths {
        if path.path.is_root() || path.path.is_space() {
            let failure = Failure::usage(format!("{path} is not an entry of a space"));
            return Err(failure.with_hint(
                "`percale space remove` removes a space; 'percale:/space/*' names what is in it.",
            ));
        }
        match context.interruptible(client.find(&path.path)).await?? {
            Some(entry) if entry.kind == Kind::Collection && !args.recursive => {
                let message = format!("{path} is a collection");
                return Err(Failure::new(ErrorCode::IsCollection, message)
                    .with_hint("Add -r to remove it with everything below."));
            }
            Some(entry) => wanted.push(entry),
            None if args.force => {}
            None => return Err(Failure::new(ErrorCode::NotFound, format!("{path} does not exist"))),
        }
    }
    if args.dry_run {
        for entry in &wanted {
            plan(context, "remove", Some(entry.kind), &entry.path, None)?;
        }
        return Ok(());
    }
    let collections = wanted.iter().filter(|entry| entry.kind == Kind::Collection).count() as u64;
    if collections > 0 {
        let first = wanted.iter().find(|entry| entry.kind == Kind::Collection).map(|entry| show(&entry.path));
        let what = match collections {
            1 => first.unwrap_or_default(),
            several => count(several, "collection"),
        };
        context.confirm(&format!("Remove {what} and everything below?"))?;
    }
    for entry in wanted {
        let only_version = entry.content.as_ref().map(|content| content.version);
        if entry.kind == Kind::Object {
            match context.interruptible(client.remove(&entry.path, false, only_version)).await? {
                Err(error) if args.force && error.code() == ErrorCode::NotFound => {}
                result => result?,
            }
        } else {
            let spec = TaskSpec::Delete { path: entry.path.clone() };
            let task = client.submit(&NewTask::new(spec)).await?;
            if args.detach {
                context.output.one(&task, |task| task.id.to_string(), |task| task.id.to_string())?;
                continue;
            }
            let task = attach(context, &client, task, "removing", None).await?;
            super::task::outcome(context, &client, &task).await?;
        }
        done(context, "removed", &entry.path, None)?;
    }
    Ok(())
}

/// Makes collections.
pub async fn mkdir(args: MkdirArgs, context: &Context) -> Result {
    let client = context.client_for(&args.paths)?;
    for path in &args.paths {
        if path.path.is_root() || path.path.is_space() {
            let failure = Failure::usage(format!("{path} is not a collection within a space"));
            return Err(failure.with_hint("`percale space create` makes a space."));
        }
        if args.dry_run {
            plan(context, "make", Some(Kind::Collection), &path.path, None)?;
            continue;
        }
        let is_new = client.make_collection(&path.path, args.parents).await?;
        if !is_new && !args.parents {
            let message = format!("{path} exists already");
            return Err(
                Failure::new(ErrorCode::AlreadyExists, message).with_hint("With -p that is no error.")
            );
        }
        done(context, if is_new { "made" } else { "found" }, &path.path, None)?;
    }
    Ok(())
}
