//! `search`.

mod references;

use std::path::PathBuf;

use clap::Args;
use percale_api::attributes::AwaySite;
use percale_api::entries::Entry;
use percale_api::{DEFAULT_PAGE, MAX_PAGE};
use percale_client::Client;
use percale_discovery::references::MergeOptions;

use crate::address::show;
use crate::context::Context;
use crate::failure::Result;
use crate::output::Lines;

/// `percale search`
#[derive(Debug, Args)]
#[command(after_help = "\
Words are looked for in names and in texts of attributes; NAME=VALUE, NAME:VALUE, NAME>VALUE and the like test attributes and what is
known of every entry: name, path, ext, type, size, created, modified, site, store, replicas, state, hash, space. All tests
must hold, unless OR stands between them; - or NOT before one turns it round (a word that begins with - goes behind --, or with the
others into quotes). docs/search.md has the whole language.

Examples:
  percale search instrument=MODIS 'date>2017-03-01'
  percale search ext:nc 'size:>1GB' 'modified:>-7d'
  percale search '\"sea surface temperature\"' 'level:500..850'
  percale search 'path:/climate/** -tag:draft' --limit 10
  percale search --count 'replicas<2'
  percale search --facet instrument,ext 'size:>1GB'
  percale search --sort=-modified --limit 10 ext:nc
  percale search 'var.tas.units:K path:/climate/cmip6' --refs tas.json
  percale -q search tag:final | percale meta set --file - checked=true")]
pub struct SearchArgs {
    /// The query; several words are one
    #[arg(required = true)]
    query: Vec<String>,
    /// At most so many; of each facet, at most so many values, 20 if absent
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Print those that come first by a field, 1000 if --limit does not say how many; -FIELD from the largest on
    #[arg(long, value_name = "FIELD", allow_hyphen_values = true, conflicts_with_all = ["count", "facets"])]
    sort: Option<String>,
    /// Print only how many there are
    #[arg(long)]
    count: bool,
    /// Print how many of them have which values of a field: an attribute, type, ext, space, site, store or state
    #[arg(long = "facet", value_name = "FIELD", value_delimiter = ',')]
    facets: Vec<String>,
    /// Write where the arrays of the HDF5 and NetCDF files lie to a file, as one store of Zarr for xarray
    #[arg(long, value_name = "FILE", conflicts_with_all = ["count", "facets"])]
    refs: Option<PathBuf>,
    /// The dimension along which the files follow each other; time if absent
    #[arg(long, value_name = "DIMENSION", requires = "refs")]
    concat: Option<String>,
}

/// Seconds for which all is counted; what is left then is estimated. Less than what the connection may be silent for.
const COUNTING: u32 = 50;
/// Seconds after which facets are estimated.
const FACETS: u32 = 5;

/// Searches.
pub async fn run(args: SearchArgs, context: &Context) -> Result {
    let query = args.query.join(" ");
    if args.count || !args.facets.is_empty() {
        return summarize(&args, &query, context).await;
    }
    let client = context.client()?;
    if let Some(to) = &args.refs {
        let mut found = Vec::new();
        let keep = |entry: Entry| {
            found.push(entry);
            Ok(())
        };
        each(&args, &query, &client, context, keep).await?;
        let options = MergeOptions { concat: args.concat.clone(), keep_order: args.sort.is_some() };
        return references::write(&client, found, to, options, context).await;
    }
    let mut out = Lines::open();
    let print = |entry: Entry| match context.output.json {
        true => out.json(&entry),
        false => out.line(show(&entry.path)),
    };
    each(&args, &query, &client, context, print).await?;
    out.finish()
}

/// Goes through what a query finds, and says which sites were away.
async fn each(
    args: &SearchArgs,
    query: &str,
    client: &Client,
    context: &Context,
    mut take: impl FnMut(Entry) -> Result,
) -> Result {
    let most = args.limit.unwrap_or(u64::MAX);
    let (mut found, mut cursor) = (0, None);
    let mut told = Vec::new();
    while found < most {
        let limit = u32::try_from(most - found).unwrap_or(MAX_PAGE).min(MAX_PAGE);
        let page = match &args.sort {
            Some(sort) => {
                client.search_sorted(query, args.limit.map_or(DEFAULT_PAGE, |_| limit), sort).await?
            }
            None => client.search(query, Some(limit), cursor.as_deref()).await?,
        };
        found += page.items.len() as u64;
        page.items.into_iter().try_for_each(&mut take)?;
        for site in page.away {
            if !told.contains(&site) {
                context.output.talk(away(&site));
                told.push(site);
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    Ok(())
}

fn away(site: &AwaySite) -> String {
    let since = match site.seen {
        Some(seen) => format!("has not answered since {seen}"),
        None => "does not answer".to_owned(),
    };
    format!("site {} {since}: what was changed in its spaces meanwhile is not looked at", site.site)
}

/// Prints how many entries there are, and how many have which values.
async fn summarize(args: &SearchArgs, query: &str, context: &Context) -> Result {
    let facets = (!args.facets.is_empty()).then(|| args.facets.join(","));
    let within = if args.count { COUNTING } else { FACETS };
    let values = args.limit.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX));
    let summary = context.client()?.summarize(query, facets.as_deref(), values, within).await?;
    if context.output.json {
        return context.output.document(&summary);
    }
    if args.count {
        context.output.line(summary.count.to_string())?;
    }
    let mut rows = Vec::new();
    for facet in &summary.facets {
        let mut row =
            |value: String, count: u64| rows.push(vec![facet.field.clone(), value, count.to_string()]);
        facet.values.iter().for_each(|one| row(one.value.to_string(), one.count));
        if facet.others > 0 {
            row("(others)".into(), facet.others);
        }
    }
    if !rows.is_empty() {
        context.output.line(context.output.table(&["field", "value", "entries#"], rows))?;
    }
    if summary.is_estimate {
        context.output.talk("these numbers are estimates: there was no time to look at everything");
    }
    summary.away.iter().for_each(|site| context.output.talk(away(site)));
    Ok(())
}
