//! `check`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use futures::stream::{self, StreamExt};
use percale_api::entries::{Entry, Kind};
use percale_api::tasks::{NewTask, TaskSpec};
use percale_client::Client;
use percale_client::put::Candidate;
use percale_core::state::{ReplicaState, TaskState};
use percale_core::tree::RootHash;
use percale_core::{ErrorCode, ObjectPath};
use serde::Serialize;
use serde_json::json;

use super::task;
use super::usage::for_each_below;
use crate::address::{Address, FabricPath, LocalPath, show};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::filters::FilterArgs;
use crate::output::{Lines, count, size};

/// Local files that are hashed at once.
const HASHED_AT_ONCE: usize = 4;

/// `percale check`
#[derive(Debug, Args)]
#[command(after_help = "\
With one path of the fabric: counts the replicas by state; --deep has every one of them read and hashed by the site that
holds it, as a task; --repair replaces what is damaged or lost there, if there is a good one elsewhere.
With a local path and one of the fabric: compares them by content, reading the local files only.
Exit code 7 if something is missing, different or damaged.

Examples:
  percale check percale:/climate
  percale check --deep percale:/climate
  percale check --deep --repair percale:/climate
  percale check --deep --detach percale:/climate       prints the id of the task
  percale check ./run7 percale:/climate/run7
  percale check --one-way --json ./run7 percale:/climate/run7 | jq -r 'select(.status != \"same\") | .path'")]
pub struct CheckArgs {
    /// A path of the fabric; or two paths to compare, one of them local
    #[arg(required = true, num_args = 1..=2, value_name = "PATH")]
    paths: Vec<String>,
    /// Read and hash every replica
    #[arg(long)]
    deep: bool,
    /// Replace replicas that are damaged or lost by good ones from elsewhere
    #[arg(long, requires = "deep")]
    repair: bool,
    /// Do not wait for a deep check; print the id of its task
    #[arg(long, requires = "deep")]
    detach: bool,
    /// When comparing: what is only at the second path is no difference
    #[arg(long)]
    one_way: bool,
    #[command(flatten)]
    filters: FilterArgs,
}

/// Checks.
pub async fn run(args: CheckArgs, context: &Context) -> Result {
    let addresses: Vec<Address> =
        args.paths.iter().map(|text| Address::parse(text)).collect::<Result<_>>()?;
    match addresses.as_slice() {
        [Address::Fabric(path)] if args.deep => deep(&args, path, context).await,
        [Address::Fabric(path)] => context.interruptible(states(path, context)).await?,
        [Address::Local(local), Address::Fabric(path)] | [Address::Fabric(path), Address::Local(local)] => {
            if args.deep {
                let failure = Failure::usage("--deep looks at replicas, so it takes one path of the fabric");
                return Err(failure);
            }
            let local_is_first = matches!(addresses.first(), Some(Address::Local(_)));
            let compare = compare(&args, local, path, local_is_first, context);
            context.interruptible(compare).await?
        }
        [Address::Local(_)] => {
            let failure = Failure::usage("a local path is compared with one of the fabric, which is missing");
            Err(failure.with_hint(format!("`percale check {} percale:/SPACE/PATH`", args.paths[0])))
        }
        _ => {
            Err(Failure::usage("one path of the fabric, or one local path and one of the fabric, are needed"))
        }
    }
}

/// Has the site read everything.
async fn deep(args: &CheckArgs, path: &FabricPath, context: &Context) -> Result {
    let client = context.client_for([path])?;
    let spec = TaskSpec::Verify { path: path.path.clone(), repair: args.repair, unverified: false };
    let submitted = context.interruptible(client.submit(&NewTask::new(spec))).await??;
    if args.detach {
        return context.output.one(&submitted, |task| task.id.to_string(), |task| task.id.to_string());
    }
    let ended = task::attach(context, &client, submitted, "checking", None).await?;
    let progress = &ended.progress;
    if !matches!(ended.state, TaskState::Succeeded | TaskState::Partial) {
        return task::outcome(context, &client, &ended).await;
    }
    let bad = if progress.items_failed > 0 { client.all_task_items(ended.id).await? } else { Vec::new() };
    let mut out = Lines::open();
    for item in &bad {
        if context.output.json {
            out.json(&json!({"path": item.path, "status": "bad", "code": item.code, "detail": item.detail}))?;
        } else if context.output.quiet {
            out.line(&item.path)?;
        } else {
            out.line(format!("{}  {}  {}", item.path, item.code, item.detail))?;
        }
    }
    if context.output.json {
        out.json(&json!({"summary": {
            "task": ended.id,
            "replicas": progress.items_done + progress.items_failed,
            "good": progress.items_done,
            "bad": progress.items_failed,
            "bytes": progress.bytes_done,
        }}))?;
    }
    out.finish()?;
    if !context.output.json {
        context.output.talk(format!(
            "{} read and hashed ({}): {} good, {} bad",
            count(progress.items_done + progress.items_failed, "replica"),
            size(progress.bytes_done),
            progress.items_done,
            progress.items_failed
        ));
    }
    match progress.items_failed {
        0 => Ok(()),
        bad => {
            let failure = Failure::new(ErrorCode::Integrity, format!("{} not good", count(bad, "replica")));
            let hint = match args.repair {
                true => {
                    "Nothing wrong is served. There is no good replica to repair them from: put the files again."
                }
                false => {
                    "Nothing wrong is served. --repair replaces them from good replicas; where there is none, put the files again."
                }
            };
            Err(failure.with_hint(hint))
        }
    }
}

/// Counts the replicas by state, as the catalogue has them.
async fn states(path: &FabricPath, context: &Context) -> Result {
    let client = context.client_for([path])?;
    let mut states: BTreeMap<&'static str, u64> = BTreeMap::new();
    let (mut objects, mut without) = (0_u64, 0_u64);
    let mut bad: Vec<(ObjectPath, ReplicaState)> = Vec::new();
    let mut look = |entry: &Entry| {
        if entry.kind != Kind::Object {
            return;
        }
        objects += 1;
        let replicas = entry.replicas.as_deref().unwrap_or_default();
        without += u64::from(!replicas.iter().any(|replica| replica.state.is_readable()));
        for replica in replicas {
            *states.entry(replica.state.as_str()).or_default() += 1;
            if matches!(replica.state, ReplicaState::Suspect | ReplicaState::Lost) {
                bad.push((entry.path.clone(), replica.state));
            }
        }
    };
    let whole = if path.path.is_root() { None } else { Some(client.resolve(&path.path).await?) };
    match whole {
        Some(object) if object.kind == Kind::Object => look(&object),
        _ => {
            for_each_below(&client, &path.path, true, |entry| {
                look(&entry);
                Ok(())
            })
            .await?;
        }
    }
    let mut out = Lines::open();
    if context.output.json {
        out.json(&json!({"objects": objects, "replicas": states, "without_readable_replica": without, "bad": bad.len()}))?;
    } else if context.output.quiet {
        bad.iter().try_for_each(|(path, _)| out.line(show(path)))?;
    } else {
        bad.iter().try_for_each(|(path, state)| out.line(format!("{state}  {}", show(path))))?;
        let states: Vec<_> = states.iter().map(|(state, number)| format!("{number} {state}")).collect();
        let states = if states.is_empty() { "no replicas".into() } else { states.join(", ") };
        out.line(format!("{}: {states}", count(objects, "object")))?;
    }
    out.finish()?;
    context.output.next(format!("percale check --deep {path}"));
    if bad.is_empty() && without == 0 {
        return Ok(());
    }
    let message = format!("{} without a readable replica", count(without, "object"));
    Err(Failure::new(ErrorCode::Integrity, message))
}

/// One difference, or none.
#[derive(Debug, Serialize)]
struct Compared {
    path: String,
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    Same,
    Differs,
    OnlyLocal,
    OnlyFabric,
    /// The object was not hashed yet, so only sizes were compared.
    NotHashed,
    Failed,
}

/// Compares a local tree or file with one of the fabric.
async fn compare(
    args: &CheckArgs,
    local: &LocalPath,
    path: &FabricPath,
    local_is_first: bool,
    context: &Context,
) -> Result {
    let client = context.client_for([path])?;
    let filter = args.filters.build()?;
    let metadata =
        std::fs::metadata(&local.path).map_err(|error| Failure::local("read", &local.path, &error))?;
    let entry = client.resolve(&path.path).await?;
    if metadata.is_dir() != (entry.kind == Kind::Collection) {
        let message = format!("{} and {path} are not of the same kind", local.path.display());
        return Err(Failure::usage(message));
    }
    let wants = |path: &str, is_directory: bool, size: u64| {
        filter.as_ref().is_none_or(|filter| filter(Candidate::new(path, is_directory, size)))
    };
    let mut remote: BTreeMap<String, (u64, Option<RootHash>)> = BTreeMap::new();
    if let Some(content) = &entry.content {
        remote.insert(String::new(), (content.size, content.root));
    } else {
        remote = list_remote(&client, &entry.path, wants).await?;
    }
    let files = if metadata.is_dir() {
        let root = local.path.clone();
        let walked = tokio::task::spawn_blocking(move || list_local(&root)).await;
        let files = walked.map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))??;
        files.into_iter().filter(|(path, size)| within_filter(path, *size, &wants)).collect()
    } else {
        vec![(String::new(), metadata.len())]
    };

    let mut compared = Vec::new();
    let mut to_hash = Vec::new();
    for (name, size) in files {
        let Some((remote_size, root)) = remote.remove(&name) else {
            compared.push(Compared { path: name, status: Status::OnlyLocal, detail: None });
            continue;
        };
        match root {
            _ if remote_size != size => {
                let detail = format!("{size} bytes here, {remote_size} in the fabric");
                compared.push(Compared { path: name, status: Status::Differs, detail: Some(detail) });
            }
            None => compared.push(Compared { path: name, status: Status::NotHashed, detail: None }),
            Some(root) => to_hash.push((name, root)),
        }
    }
    compared.extend(remote.into_keys().map(|path| Compared {
        path,
        status: Status::OnlyFabric,
        detail: None,
    }));
    let base = local.path.clone();
    let hashed: Vec<Compared> = stream::iter(to_hash)
        .map(|(name, root)| {
            let file = if name.is_empty() { base.clone() } else { base.join(&name) };
            async move {
                let hashed =
                    tokio::task::spawn_blocking(move || percale_client::put::hash_local(&file)).await;
                match hashed {
                    Ok(Ok(hash)) if hash == root => {
                        Compared { path: name, status: Status::Same, detail: None }
                    }
                    Ok(Ok(_)) => {
                        Compared { path: name, status: Status::Differs, detail: Some("other content".into()) }
                    }
                    Ok(Err(error)) => {
                        Compared { path: name, status: Status::Failed, detail: Some(error.to_string()) }
                    }
                    Err(error) => {
                        Compared { path: name, status: Status::Failed, detail: Some(error.to_string()) }
                    }
                }
            }
        })
        .buffer_unordered(HASHED_AT_ONCE)
        .collect()
        .await;
    compared.extend(hashed);
    compared.sort_by(|left, right| left.path.cmp(&right.path));
    let extra = if local_is_first { Status::OnlyFabric } else { Status::OnlyLocal };
    tell(compared, args.one_way.then_some(extra), context)
}

/// A file counts only if the filter wants it and every directory above it.
fn within_filter(path: &str, size: u64, wants: &impl Fn(&str, bool, u64) -> bool) -> bool {
    let above = path.match_indices('/').all(|(at, _)| wants(&path[..at], true, 0));
    above && wants(path, false, size)
}

async fn list_remote(
    client: &Client,
    root: &ObjectPath,
    wants: impl Fn(&str, bool, u64) -> bool,
) -> Result<BTreeMap<String, (u64, Option<RootHash>)>> {
    let depth = root.components().count();
    let mut found = BTreeMap::new();
    for_each_below(client, root, false, |entry| {
        if let Some(content) = &entry.content {
            let below = entry.path.components().skip(depth).collect::<Vec<_>>().join("/");
            if within_filter(&below, content.size, &wants) {
                found.insert(below, (content.size, content.root));
            }
        }
        Ok(())
    })
    .await?;
    Ok(found)
}

fn list_local(root: &Path) -> Result<Vec<(String, u64)>> {
    let mut found = Vec::new();
    let mut stack: Vec<(PathBuf, String)> = vec![(root.to_owned(), String::new())];
    while let Some((directory, below)) = stack.pop() {
        let cannot = |error: std::io::Error| Failure::local("list", &directory, &error);
        for entry in std::fs::read_dir(&directory).map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if below.is_empty() { name } else { format!("{below}/{name}") };
            let metadata = entry.metadata().map_err(cannot)?;
            if metadata.is_dir() {
                stack.push((entry.path(), path));
            } else if metadata.is_file() {
                found.push((path, metadata.len()));
            }
        }
    }
    Ok(found)
}

/// Prints the differences and decides how the command ends.
fn tell(compared: Vec<Compared>, ignored: Option<Status>, context: &Context) -> Result {
    let number = |status| compared.iter().filter(|one| one.status == status).count() as u64;
    let is_fine =
        |status: Status| matches!(status, Status::Same | Status::NotHashed) || Some(status) == ignored;
    let mut out = Lines::open();
    for one in &compared {
        if context.output.json {
            out.json(one)?;
        } else if !is_fine(one.status) {
            let name = if one.path.is_empty() { "the file" } else { &one.path };
            let what = match one.status {
                Status::Differs => "differs",
                Status::OnlyLocal => "only local",
                Status::OnlyFabric => "only in the fabric",
                Status::Failed => "failed",
                Status::Same | Status::NotHashed => "same",
            };
            let detail = one.detail.as_ref().map_or(String::new(), |detail| format!("  ({detail})"));
            out.line(if context.output.quiet {
                name.to_owned()
            } else {
                format!("{what:<18}  {name}{detail}")
            })?;
        }
    }
    let failed = number(Status::Failed);
    let wrong = compared.iter().filter(|one| !is_fine(one.status)).count() as u64;
    if context.output.json {
        out.json(&json!({"summary": {
            "same": number(Status::Same), "differs": number(Status::Differs), "only_local": number(Status::OnlyLocal),
            "only_fabric": number(Status::OnlyFabric), "not_hashed": number(Status::NotHashed), "failed": failed,
        }}))?;
    }
    out.finish()?;
    if !context.output.json {
        let mut text = format!("{} the same", count(number(Status::Same), "file"));
        for (status, what) in [
            (Status::Differs, "different"),
            (Status::OnlyLocal, "only local"),
            (Status::OnlyFabric, "only in the fabric"),
            (Status::NotHashed, "of the same size but not hashed yet"),
            (Status::Failed, "failed"),
        ] {
            let number = number(status);
            if number > 0 {
                text = format!("{text}, {number} {what}");
            }
        }
        context.output.talk(text);
    }
    match (wrong, failed) {
        (0, _) => Ok(()),
        (wrong, failed) if wrong == failed => {
            Err(Failure::new(ErrorCode::Partial, "some files could not be read"))
        }
        (wrong, _) => {
            let failure =
                Failure::new(ErrorCode::Integrity, format!("{} not the same", count(wrong, "file")));
            Err(failure
                .with_hint("`percale put` or `percale get` with -r and --overwrite makes them the same."))
        }
    }
}
