//! `ls`.

use clap::Args;
use percale_api::entries::{Entry, Kind};
use percale_client::{Client, ListOptions};
use percale_core::{ErrorCode, ObjectPath};

use super::grant::fabric_path;
use crate::address::{FabricPath, show};
use crate::context::Context;
use crate::failure::Result;
use crate::output::{Lines, size, time};
use crate::wildcards::expand;

/// `percale ls`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale ls                                   the spaces
  percale ls -l percale:/climate/era5          with size and time
  percale ls -L percale:/climate/era5/2024.nc  with the replicas and their states
  percale ls -R 'percale:/climate/*/2024*.nc'  wildcards are quoted
  percale ls -R --json percale:/climate | jq -r 'select(.content.size > 1e9) | .path'")]
pub struct LsArgs {
    /// What to list; the spaces if absent
    #[arg(value_parser = fabric_path, default_value = "percale:/", hide_default_value = true)]
    paths: Vec<FabricPath>,
    /// With size and modification time
    #[arg(long, short)]
    long: bool,
    /// With the replicas of each object and their states
    #[arg(long, short = 'L')]
    replicas: bool,
    /// Everything below
    #[arg(long, short = 'R')]
    recursive: bool,
    /// The collections themselves, not what is in them
    #[arg(long, short)]
    directory: bool,
    /// At most so many entries
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

/// Lists collections.
pub async fn run(args: LsArgs, context: &Context) -> Result {
    let client = context.client_for(&args.paths)?;
    let paths = expand(&client, args.paths.clone()).await?;
    let mut left = args.limit.unwrap_or(u64::MAX);
    let several = paths.len() > 1 && !args.recursive && !args.directory;
    for (at, path) in paths.iter().enumerate() {
        let is_plain = !context.output.json && !context.output.quiet;
        if several && is_plain {
            let gap = if at == 0 { "" } else { "\n" };
            context.output.line(format!("{gap}{path}:"))?;
        }
        list(&client, path, &args, context, &mut left).await?;
        if left == 0 {
            break;
        }
    }
    Ok(())
}

async fn list(
    client: &Client,
    path: &FabricPath,
    args: &LsArgs,
    context: &Context,
    left: &mut u64,
) -> Result {
    let options = ListOptions {
        recursive: args.recursive,
        replicas: args.replicas,
        limit: args.limit.map(clamp_limit),
    };
    if args.directory && !path.path.is_root() {
        return print(&[client.stat(&path.path).await?], &path.path, args, context, left);
    }
    let mut cursor = None;
    loop {
        let page = match client.list(&path.path, options, cursor.as_deref()).await {
            Ok(page) => page,
            // An object lists itself, as files do.
            Err(error) if error.code() == ErrorCode::NotACollection => {
                let entry = client.stat(&path.path).await?;
                return print(&[entry], &path.path, args, context, left);
            }
            Err(error) if error.code() == ErrorCode::IsLink => {
                let behind = FabricPath { path: client.resolve(&path.path).await?.path, ..path.clone() };
                return Box::pin(list(client, &behind, args, context, left)).await;
            }
            Err(error) => return Err(error.into()),
        };
        print(&page.items, &path.path, args, context, left)?;
        match page.next {
            Some(next) if *left > 0 => cursor = Some(next),
            _ => return Ok(()),
        }
    }
}

fn clamp_limit(limit: u64) -> u32 {
    u32::try_from(limit.max(1)).unwrap_or(u32::MAX)
}

/// Prints a page.
fn print(entries: &[Entry], root: &ObjectPath, args: &LsArgs, context: &Context, left: &mut u64) -> Result {
    let shown = usize::try_from(*left).unwrap_or(usize::MAX).min(entries.len());
    *left -= shown as u64;
    let entries = &entries[..shown];
    let mut out = Lines::open();
    if context.output.json {
        entries.iter().try_for_each(|entry| out.json(entry))?;
        return out.finish();
    }
    if context.output.quiet {
        entries.iter().try_for_each(|entry| out.line(show(&entry.path)))?;
        return out.finish();
    }
    let width = entries.iter().map(|entry| size_of(entry).len()).max().unwrap_or(0).max(8);
    for entry in entries {
        let name = name_below(entry, root);
        let line = if args.long || args.replicas {
            let when = entry.content.as_ref().map_or(entry.modified, |content| content.mtime);
            format!("{:>width$}  {}  {name}", size_of(entry), time(when))
        } else {
            name
        };
        out.line(line)?;
        if args.replicas {
            replica_lines(entry).into_iter().try_for_each(|line| out.line(line))?;
        }
    }
    out.finish()
}

fn size_of(entry: &Entry) -> String {
    entry.content.as_ref().map_or("-".into(), |content| size(content.size))
}

/// The path below what was listed, with a slash behind a collection.
fn name_below(entry: &Entry, root: &ObjectPath) -> String {
    let below: Vec<&str> = entry.path.components().skip(root.components().count()).collect();
    let name = if below.is_empty() { entry.path.name().unwrap_or("/").to_owned() } else { below.join("/") };
    match entry.kind {
        Kind::Collection => format!("{name}/"),
        Kind::Object => name,
        Kind::Link => match &entry.target {
            Some(target) => format!("{name} -> {target}"),
            None => name,
        },
    }
}

/// One line for each replica.
pub fn replica_lines(entry: &Entry) -> Vec<String> {
    let replicas = entry.replicas.iter().flatten();
    replicas
        .map(|replica| {
            let checked =
                replica.checked.map_or("never checked".into(), |at| format!("checked {}", time(at)));
            format!("            {} {}:{}  {checked}", replica.state, replica.site, replica.store)
        })
        .collect()
}
