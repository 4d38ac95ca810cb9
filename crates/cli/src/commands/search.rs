//! `search`.

use clap::Args;
use percale_api::MAX_PAGE;

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
  percale -q search tag:final | percale meta set --file - checked=true")]
pub struct SearchArgs {
    /// The query; several words are one
    #[arg(required = true)]
    query: Vec<String>,
    /// At most so many
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Print only how many there are
    #[arg(long)]
    count: bool,
}

/// Searches.
pub async fn run(args: SearchArgs, context: &Context) -> Result {
    let client = context.client()?;
    let query = args.query.join(" ");
    let most = args.limit.unwrap_or(u64::MAX);
    let (mut found, mut cursor) = (0, None);
    let mut out = Lines::open();
    while found < most {
        let limit = u32::try_from(most - found).unwrap_or(MAX_PAGE).min(MAX_PAGE);
        let page = client.search(&query, Some(limit), cursor.as_deref()).await?;
        found += page.items.len() as u64;
        for entry in page.items.iter().filter(|_| !args.count) {
            match context.output.json {
                true => out.json(entry)?,
                false => out.line(show(&entry.path))?,
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    if args.count {
        match context.output.json {
            true => out.json(&serde_json::json!({ "count": found }))?,
            false => out.line(found.to_string())?,
        }
    }
    out.finish()
}
