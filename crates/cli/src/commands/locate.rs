//! `where`: which sites hold what.

use std::collections::BTreeMap;

use clap::Args;
use percale_api::entries::{Entry, Kind};
use percale_client::ListOptions;
use percale_core::state::ReplicaState;
use serde::Serialize;

use super::grant::fabric_path;
use crate::address::{FabricPath, show};
use crate::context::Context;
use crate::failure::Result;
use crate::output::size;
use crate::wildcards::expand;

/// `percale where`
#[derive(Debug, Args)]
#[command(after_help = "\
A site is complete if it has a good copy of every object, in its present version.

Examples:
  percale where percale:/climate/era5
  percale where percale:/climate/era5/2024.nc
  percale where --site alps percale:/climate
  percale where --json percale:/climate | jq -r 'select(.missing == 0) | .site'")]
pub struct WhereArgs {
    /// What to look for
    #[arg(value_parser = fabric_path, required = true)]
    paths: Vec<FabricPath>,
    /// Only this site
    #[arg(long, value_name = "SITE")]
    site: Option<String>,
}

/// What one site holds of a path.
#[derive(Debug, Default, Serialize)]
struct Holding {
    path: String,
    site: String,
    /// Objects with a good copy.
    good: u64,
    /// Bytes of those.
    bytes: u64,
    /// Objects with a copy that is not known to be good.
    other: u64,
    /// Objects without a copy.
    missing: u64,
}

/// Shows which sites hold copies.
pub async fn run(args: WhereArgs, context: &Context) -> Result {
    let client = context.client_for(&args.paths)?;
    let mut holdings = Vec::new();
    for path in expand(&client, args.paths).await? {
        let mut sites: BTreeMap<String, Holding> = BTreeMap::new();
        let mut objects = 0;
        let entry = client.resolve(&path.path).await?;
        if entry.kind == Kind::Object {
            objects += 1;
            count(&mut sites, &entry);
        } else {
            let options = ListOptions { recursive: true, replicas: true, limit: None };
            let mut cursor: Option<String> = None;
            loop {
                let page = client.list(&entry.path, options, cursor.as_deref()).await?;
                for entry in page.items.iter().filter(|entry| entry.kind == Kind::Object) {
                    objects += 1;
                    count(&mut sites, entry);
                }
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
        }
        for (site, mut holding) in sites {
            if args.site.as_ref().is_some_and(|wanted| *wanted != site) {
                continue;
            }
            holding.missing = objects - holding.good - holding.other;
            (holding.path, holding.site) = (show(&path.path), site);
            holdings.push(holding);
        }
    }
    context.output.list(
        &holdings,
        &["site", "path", "good#", "size#", "other#", "missing#"],
        |holding| holding.site.clone(),
        |holding| {
            vec![
                holding.site.clone(),
                holding.path.clone(),
                holding.good.to_string(),
                size(holding.bytes),
                holding.other.to_string(),
                holding.missing.to_string(),
            ]
        },
    )
}

fn count(sites: &mut BTreeMap<String, Holding>, entry: &Entry) {
    // A site with several copies counts by its best one.
    let mut best: BTreeMap<&str, bool> = BTreeMap::new();
    for replica in entry.replicas.iter().flatten() {
        *best.entry(&replica.site).or_default() |= replica.state == ReplicaState::Good;
    }
    for (site, is_good) in best {
        let holding = sites.entry(site.to_owned()).or_default();
        match is_good {
            true => {
                holding.good += 1;
                holding.bytes += entry.content.as_ref().map_or(0, |content| content.size);
            }
            false => holding.other += 1,
        }
    }
}
