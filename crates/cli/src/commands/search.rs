//! `search`.

mod parquet;
mod references;

use std::path::PathBuf;

use clap::Args;
use percale_api::attributes::{AwaySite, Found, Mismatch, Source};
use percale_api::{DEFAULT_PAGE, MAX_PAGE};
use percale_client::{Client, Search};
use percale_core::{AttributeName, AttributeValue};
use percale_discovery::parse_attributes;
use percale_discovery::references::MergeOptions;

use super::grant::fabric_path;
use crate::address::{FabricPath, show};
use crate::context::Context;
use crate::failure::{Failure, Result};
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
  percale search --saved percale:/climate:modis 'level>500'
  percale search --explain 'bbox:(-10,35,30,60) ext:nc'
  percale search instrument=MODIS --attributes title,level --parquet modis.parquet
  percale search 'var.tas.units:K path:/climate/cmip6' --refs tas.json
  percale -q search tag:final | percale meta set --file - checked=true")]
pub struct SearchArgs {
    /// The query; several words are one
    #[arg(required_unless_present = "saved")]
    query: Vec<String>,
    /// A query that a collection keeps as its attribute `search.NAME`; what else is asked for must hold, too
    #[arg(long, value_name = "PATH:NAME", value_parser = saved)]
    saved: Option<Saved>,
    /// At most so many; of each facet, at most so many values, 20 if absent
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Print those that come first by a field, 1000 if --limit does not say how many, at most 10000; -FIELD from the largest on
    #[arg(long, value_name = "FIELD", allow_hyphen_values = true, conflicts_with_all = ["count", "facets"])]
    sort: Option<String>,
    /// Print only how many there are
    #[arg(long)]
    count: bool,
    /// Print how the query was understood and how it would be searched for, and do not search
    #[arg(long, conflicts_with_all = ["count", "facets", "sort", "refs"])]
    explain: bool,
    /// Print how many of them have which values of a field: an attribute, type, ext, space, site, store or state
    #[arg(long = "facet", value_name = "FIELD", value_delimiter = ',')]
    facets: Vec<String>,
    /// Also print the values of attributes, names with commas between, with tabs before them
    #[arg(long, value_name = "NAMES", conflicts_with_all = ["count", "facets", "explain", "refs"])]
    attributes: Option<String>,
    /// Write what is found to a file, as a table with a column for each of --attributes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["count", "facets", "explain", "refs"])]
    parquet: Option<PathBuf>,
    /// Write where the arrays of the HDF5 and NetCDF files lie to a file, as one store of Zarr for xarray
    #[arg(long, value_name = "FILE", conflicts_with_all = ["count", "facets"])]
    refs: Option<PathBuf>,
    /// The dimension along which the files follow each other; time if absent
    #[arg(long, value_name = "DIMENSION", requires = "refs")]
    concat: Option<String>,
}

/// A query that is kept.
#[derive(Debug, Clone)]
struct Saved {
    collection: FabricPath,
    attribute: AttributeName,
}

fn saved(text: &str) -> std::result::Result<Saved, String> {
    let wrong = || format!("'{text}' is not a collection and a name, such as percale:/climate:modis");
    let (collection, name) = text.rsplit_once(':').ok_or_else(wrong)?;
    let attribute = format!("search.{name}").parse().map_err(|error| format!("{error}"))?;
    Ok(Saved { collection: fabric_path(collection).map_err(|_| wrong())?, attribute })
}

impl Saved {
    /// Returns the query, with another one that must hold, too.
    async fn with(&self, query: &str, context: &Context) -> Result<String> {
        let Self { collection, attribute } = self;
        let attributes = context.client_for([collection])?.attributes(&collection.path).await?;
        let kept = attributes.into_iter().find(|one| one.name == *attribute && one.source == Source::Person);
        match kept.as_ref().and_then(|kept| kept.values.first()) {
            Some(kept) if query.is_empty() => Ok(kept.to_string()),
            Some(kept) => Ok(format!("({kept}) ({query})")),
            None => {
                let (path, name) = (show(&collection.path), attribute);
                Err(Failure::usage(format!(
                    "{path} keeps no query '{name}'; percale meta set {path} {name}=QUERY keeps one"
                )))
            }
        }
    }
}

/// Seconds for which all is counted; what is left then is estimated. Less than what the connection may be silent for.
const COUNTING: u32 = 50;
/// Seconds after which facets are estimated.
const FACETS: u32 = 5;

/// Searches.
pub async fn run(args: SearchArgs, context: &Context) -> Result {
    let mut query = args.query.join(" ");
    if let Some(saved) = &args.saved {
        query = saved.with(&query, context).await?;
    }
    if args.explain {
        return explain(&query, context).await;
    }
    if args.count || !args.facets.is_empty() {
        return summarize(&args, &query, context).await;
    }
    if args.sort.is_some() && args.limit.is_some_and(|limit| limit > u64::from(MAX_PAGE)) {
        return Err(Failure::usage(format!(
            "--sort prints at most {MAX_PAGE}, those that come first; without it, --limit may be any number"
        )));
    }
    let client = context.client()?;
    if let Some(to) = &args.refs {
        let mut found = Vec::new();
        let keep = |one: Found| {
            found.push(one.entry);
            Ok(())
        };
        each(&args, &query, &client, context, keep).await?;
        let options = MergeOptions { concat: args.concat.clone(), keep_order: args.sort.is_some() };
        return references::write(&client, found, to, options, context).await;
    }
    let names = match &args.attributes {
        Some(list) => parse_attributes(list).map_err(|error| Failure::usage(error.to_string()))?,
        None => Vec::new(),
    };
    if let Some(to) = &args.parquet {
        let mut table = parquet::Table::begin(to, names)?;
        each(&args, &query, &client, context, |one| table.add(&one)).await?;
        return table.write(context);
    }
    let mut out = Lines::open();
    let print = |one: Found| match context.output.json {
        true => out.json(&one),
        false => out.line(line(&one, &names)),
    };
    each(&args, &query, &client, context, print).await?;
    out.finish()
}

fn line(Found { entry, attributes }: &Found, names: &[AttributeName]) -> String {
    let mut line = show(&entry.path);
    for name in names {
        let values = attributes.get(name).map(Vec::as_slice).unwrap_or_default();
        let values: Vec<String> = values.iter().map(AttributeValue::to_string).collect();
        line.push('\t');
        // What would end the cell is a space.
        line.push_str(&values.join("; ").replace(['\t', '\n', '\r'], " "));
    }
    line
}

/// Goes through what a query finds, and says which sites were away.
async fn each(
    args: &SearchArgs,
    query: &str,
    client: &Client,
    context: &Context,
    mut take: impl FnMut(Found) -> Result,
) -> Result {
    let most = args.limit.unwrap_or(u64::MAX);
    let (mut found, mut cursor) = (0, None);
    let (mut told, mut mismatches) = (Vec::new(), Vec::new());
    while found < most {
        let limit = u32::try_from(most - found).unwrap_or(MAX_PAGE).min(MAX_PAGE);
        let is_one_page = args.sort.is_some() && args.limit.is_none();
        let search = Search {
            query,
            limit: Some(if is_one_page { DEFAULT_PAGE } else { limit }),
            cursor: cursor.as_deref(),
            sort: args.sort.as_deref(),
            attributes: args.attributes.as_deref(),
        };
        let page = client.search(&search).await?;
        found += page.items.len() as u64;
        page.items.into_iter().try_for_each(&mut take)?;
        for site in page.away {
            if !told.contains(&site) {
                context.output.warn(away(&site));
                told.push(site);
            }
        }
        mismatches.extend(page.mismatches);
        for name in page.unknown {
            context.output.talk(format!("nothing has an attribute '{name}'"));
        }
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    mismatches.iter().for_each(|one| context.output.talk(mismatch(one)));
    Ok(())
}

fn mismatch(Mismatch { name, are_text, count, is_most }: &Mismatch) -> String {
    let least = if *is_most { "at least " } else { "" };
    let kind = if *are_text { "texts" } else { "no texts" };
    format!("values of '{name}' that were not compared, since they are {kind}: {least}{count}")
}

async fn explain(query: &str, context: &Context) -> Result {
    let plan = context.client()?.explain(query).await?;
    if context.output.json {
        return context.output.document(&plan);
    }
    context.output.line(if plan.query.is_empty() { "(everything)" } else { plan.query.as_str() })?;
    // A site of an earlier release does not say it.
    if !plan.filter.is_null() {
        context.output.line(format!("CQL2: {}", plan.filter))?;
    }
    let rows = plan.spaces.into_iter().map(|space| {
        // What depends on entries that one may not read is not said.
        let otherwise = if space.looked_at.is_some() { "(all entries)" } else { "-" };
        let by = space.by.unwrap_or_else(|| otherwise.to_owned());
        let looked_at = space.looked_at.map_or_else(|| "-".to_owned(), |count| count.to_string());
        vec![space.space, by, looked_at]
    });
    context.output.line(context.output.table(&["space", "looked for by", "entries#"], rows.collect()))
}

fn away(site: &AwaySite) -> String {
    if let Some(why) = &site.why {
        return format!("what changes in spaces of site {} is not seen here for now: {why}", site.site);
    }
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
    summary.away.iter().for_each(|site| context.output.warn(away(site)));
    Ok(())
}
