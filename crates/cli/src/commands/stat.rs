//! `stat`.

use clap::Args;
use percale_api::entries::Entry;

use super::grant::fabric_path;
use super::ls::replica_lines;
use crate::address::{FabricPath, show};
use crate::context::Context;
use crate::failure::Result;
use crate::output::{Lines, size, time};
use crate::wildcards::expand;

/// `percale stat`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale stat percale:/climate/era5/2024.nc
  percale stat percale:/climate
  percale stat --json percale:/climate/era5/2024.nc | jq -r .content.root
  percale stat 'percale:/climate/era5/*.nc'")]
pub struct StatArgs {
    /// What to show
    #[arg(value_parser = fabric_path, required = true)]
    paths: Vec<FabricPath>,
}

/// Shows everything about paths.
pub async fn run(args: StatArgs, context: &Context) -> Result {
    let client = context.client_for(&args.paths)?;
    let paths = expand(&client, args.paths).await?;
    let is_one = paths.len() == 1;
    for (at, path) in paths.iter().enumerate() {
        let entry = client.stat(&path.path).await?;
        if context.output.json && !is_one {
            let mut out = Lines::open();
            out.json(&entry)?;
            out.finish()?;
            continue;
        }
        if at > 0 && !context.output.quiet {
            context.output.line("")?;
        }
        context.output.one(&entry, |entry| show(&entry.path), describe)?;
    }
    Ok(())
}

fn describe(entry: &Entry) -> String {
    let mut lines = vec![
        format!("path      {}", show(&entry.path)),
        format!("kind      {}", entry.kind.as_str()),
        format!("id        {}", entry.id),
        format!("created   {} UTC", time(entry.created)),
        format!("changed   {} UTC", time(entry.modified)),
    ];
    if let Some(target) = &entry.target {
        lines.push(format!("leads to  {target}"));
    }
    if let Some(content) = &entry.content {
        lines.push(format!("size      {} ({} bytes)", size(content.size), content.size));
        lines.push(format!("version   {}", content.version));
        lines.push(format!("modified  {} UTC", time(content.mtime)));
        lines.extend(content.mode.map(|mode| format!("mode      {mode}")));
        let root = content.root.map_or("not hashed yet".to_owned(), |root| root.to_string());
        lines.push(format!("blake3    {root}"));
        lines.extend(
            content
                .digests
                .iter()
                .map(|digest| format!("{:<9} {}", digest.algorithm().as_str(), digest.to_hex())),
        );
    }
    if let Some(replicas) = &entry.replicas {
        lines.push(format!("replicas  {}", replicas.len()));
        lines.extend(replica_lines(entry));
        lines.extend(replicas.iter().filter_map(|replica| {
            Some(format!("            at {}:{}", replica.store, replica.key.as_ref()?))
        }));
    }
    lines.join("\n")
}
