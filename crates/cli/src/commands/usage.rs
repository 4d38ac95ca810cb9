//! `tree` and `du`.

use std::collections::BTreeMap;

use clap::Args;
use percale_api::entries::{Entry, Kind};
use percale_client::{Client, ListOptions};
use percale_core::ObjectPath;
use serde_json::json;

use super::grant::fabric_path;
use crate::address::{FabricPath, show};
use crate::context::Context;
use crate::failure::Result;
use crate::output::{Lines, count, size};
use crate::wildcards::expand;

/// `percale tree`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale tree percale:/climate
  percale tree -d 2 percale:/climate
  percale tree --collections percale:/climate")]
pub struct TreeArgs {
    /// Where to begin
    #[arg(value_parser = fabric_path)]
    path: FabricPath,
    /// At most so many levels
    #[arg(long, short, value_name = "LEVELS")]
    depth: Option<usize>,
    /// Only collections
    #[arg(long)]
    collections: bool,
}

/// `percale du`
#[derive(Debug, Args)]
#[command(after_help = "\
Sizes are those of the contents, each counted once, however many replicas there are.

Examples:
  percale du percale:/climate
  percale du -d 1 percale:/climate
  percale du --bytes percale:/climate
  percale du --json -d 1 percale:/climate")]
pub struct DuArgs {
    /// What to sum up
    #[arg(value_parser = fabric_path, required = true)]
    paths: Vec<FabricPath>,
    /// Show collections so many levels down
    #[arg(long, short, value_name = "LEVELS", default_value_t = 0)]
    depth: usize,
    /// Whole bytes instead of kB, MB, GB
    #[arg(long)]
    bytes: bool,
}

/// Calls `each` for everything below a path, page by page.
pub async fn for_each_below(
    client: &Client,
    path: &ObjectPath,
    replicas: bool,
    mut each: impl FnMut(Entry) -> Result,
) -> Result {
    let options = ListOptions { recursive: true, replicas, limit: Some(percale_api::MAX_PAGE) };
    let mut cursor = None;
    loop {
        let page = client.list(path, options, cursor.as_deref()).await?;
        page.items.into_iter().try_for_each(&mut each)?;
        match page.next {
            Some(next) => cursor = Some(next),
            None => return Ok(()),
        }
    }
}

/// Returns what a path leads to over links.
pub async fn resolved(client: &Client, path: &ObjectPath) -> Result<ObjectPath> {
    match path.is_root() {
        true => Ok(path.clone()),
        false => Ok(client.resolve(path).await?.path),
    }
}

/// Shows a tree.
pub async fn tree(args: TreeArgs, context: &Context) -> Result {
    let client = context.client_for([&args.path])?;
    let root = resolved(&client, &args.path.path).await?;
    let depth = root.components().count();
    let mut out = Lines::open();
    if !context.output.json && !context.output.quiet {
        out.line(args.path.to_string())?;
    }
    let (mut collections, mut objects, mut bytes) = (0, 0, 0);
    for_each_below(&client, &root, false, |entry| {
        let level = entry.path.components().count().saturating_sub(depth);
        let is_object = entry.kind != Kind::Collection;
        if level == 0 || args.depth.is_some_and(|most| level > most) || (is_object && args.collections) {
            return Ok(());
        }
        if is_object {
            objects += 1
        } else {
            collections += 1
        }
        bytes += entry.content.as_ref().map_or(0, |content| content.size);
        if context.output.json {
            return out.json(&entry);
        }
        if context.output.quiet {
            return out.line(show(&entry.path));
        }
        let indent = "  ".repeat(level);
        let name = entry.path.name().unwrap_or_default();
        match (&entry.content, &entry.target) {
            (Some(content), _) => out.line(format!("{indent}{name}  ({})", size(content.size))),
            (None, Some(target)) => out.line(format!("{indent}{name} -> {target}")),
            (None, None) => out.line(format!("{indent}{name}/")),
        }
    })
    .await?;
    out.finish()?;
    if !context.output.json {
        let what =
            format!("{}, {}, {}", count(collections, "collection"), count(objects, "object"), size(bytes));
        context.output.talk(what);
    }
    Ok(())
}

/// Sums up sizes.
pub async fn du(args: DuArgs, context: &Context) -> Result {
    let client = context.client_for(&args.paths)?;
    for path in expand(&client, args.paths.clone()).await? {
        let whole = match path.path.is_root() {
            true => None,
            false => Some(client.resolve(&path.path).await?),
        };
        let root = whole.as_ref().map_or_else(ObjectPath::root, |whole| whole.path.clone());
        let depth = root.components().count();
        // Only as many collections are kept as are shown.
        let mut sums: BTreeMap<ObjectPath, (u64, u64)> = BTreeMap::new();
        sums.insert(root.clone(), (0, 0));
        let mut add = |entry: &Entry| {
            let bytes = entry.content.as_ref().map_or(0, |content| content.size);
            let objects = u64::from(entry.kind == Kind::Object);
            let mut at =
                if entry.kind != Kind::Collection { entry.path.parent() } else { Some(entry.path.clone()) };
            while let Some(collection) = at.filter(|collection| collection.is_within(&root)) {
                let level = collection.components().count() - depth;
                if level <= args.depth {
                    let sum = sums.entry(collection.clone()).or_default();
                    sum.0 += bytes;
                    sum.1 += objects;
                }
                at = collection.parent();
            }
        };
        if let Some(object) = whole.filter(|whole| whole.kind == Kind::Object) {
            let bytes = object.content.map_or(0, |content| content.size);
            sums.insert(root.clone(), (bytes, 1));
        } else {
            for_each_below(&client, &root, false, |entry| {
                add(&entry);
                Ok(())
            })
            .await?;
        }
        let mut out = Lines::open();
        for (collection, (bytes, objects)) in sums.iter().rev() {
            if context.output.json {
                out.json(&json!({"path": collection, "bytes": bytes, "objects": objects}))?;
            } else if context.output.quiet {
                out.line(bytes.to_string())?;
            } else {
                let bytes = if args.bytes { bytes.to_string() } else { size(*bytes) };
                out.line(format!("{bytes:>10}  {objects:>8}  {}", show(collection)))?;
            }
        }
        out.finish()?;
    }
    Ok(())
}
