//! `find`.

use std::str::FromStr;

use clap::{Args, ValueEnum};
use percale_api::MAX_PAGE;
use percale_api::entries::{Entry, Kind};
use percale_client::Client;
use percale_core::{ByteCount, ObjectPath, Timestamp};

use super::grant::fabric_path;
use super::usage::{for_each_below, resolved};
use crate::address::{FabricPath, show};
use crate::context::Context;
use crate::duration::Span;
use crate::failure::{Failure, Result};
use crate::filters::glob;
use crate::output::Lines;

/// `percale find`
#[derive(Debug, Args)]
#[command(after_help = "\
All tests must hold. Times are those of the last modification of the content. With --name the site looks the names up, and a
name whose beginning is given is found at once among millions; what is found is in the order of the names.

Examples:
  percale find percale:/climate --name '*.nc'
  percale find percale:/climate --size +1GB --newer-than 7d
  percale find percale:/climate --type collection --name 'run*'
  percale -q find percale:/climate --older-than 1y --size -1kB
  percale find percale:/climate --path '**/2024/*.nc' --json")]
pub struct FindArgs {
    /// Where to look
    #[arg(value_parser = fabric_path, required = true)]
    paths: Vec<FabricPath>,
    /// The name matches
    #[arg(long, value_name = "PATTERN")]
    name: Option<String>,
    /// The path below the start matches
    #[arg(long, value_name = "PATTERN")]
    path: Option<String>,
    /// At least (+SIZE), at most (-SIZE) or exactly (SIZE) so many bytes
    #[arg(long, value_name = "[+-]SIZE", allow_hyphen_values = true)]
    size: Option<SizeTest>,
    /// Modified within this time
    #[arg(long, value_name = "TIME")]
    newer_than: Option<Span>,
    /// Not modified within this time
    #[arg(long, value_name = "TIME")]
    older_than: Option<Span>,
    /// Only objects, or only collections
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<KindArg>,
    /// At most so many
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

/// What to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum KindArg {
    /// Objects
    #[value(alias = "f")]
    Object,
    /// Collections
    #[value(alias = "d")]
    Collection,
    /// Symbolic links
    #[value(alias = "l")]
    Link,
}

impl KindArg {
    const fn of(kind: Kind) -> Self {
        match kind {
            Kind::Object => Self::Object,
            Kind::Collection => Self::Collection,
            Kind::Link => Self::Link,
        }
    }
}

/// A test of a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SizeTest {
    AtLeast(u64),
    AtMost(u64),
    Exactly(u64),
}

impl FromStr for SizeTest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read =
            |text: &str| text.parse::<ByteCount>().map(ByteCount::get).map_err(|error| error.to_string());
        match (text.strip_prefix('+'), text.strip_prefix('-')) {
            (Some(size), _) => read(size).map(Self::AtLeast),
            (_, Some(size)) => read(size).map(Self::AtMost),
            _ => read(text).map(Self::Exactly),
        }
    }
}

impl SizeTest {
    fn holds(self, size: u64) -> bool {
        match self {
            Self::AtLeast(least) => size >= least,
            Self::AtMost(most) => size <= most,
            Self::Exactly(wanted) => size == wanted,
        }
    }
}

/// Finds entries.
pub async fn run(args: FindArgs, context: &Context) -> Result {
    let client = context.client_for(&args.paths)?;
    let name = args.name.as_deref().map(glob).transpose()?;
    let path_pattern = args.path.as_deref().map(glob).transpose()?;
    let now = Timestamp::now();
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut found = 0_u64;
    for root in &args.paths {
        let root = resolved(&client, &root.path).await?;
        let depth = root.components().count();
        let wanted = |entry: &Entry| {
            let size = entry.content.as_ref().map(|content| content.size);
            let modified = entry.content.as_ref().map_or(entry.modified, |content| content.mtime);
            let age = now.since(modified);
            let kind = KindArg::of(entry.kind);
            let below = || entry.path.components().skip(depth).collect::<Vec<_>>().join("/");
            args.kind.is_none_or(|wanted| wanted == kind)
                && args.size.is_none_or(|test| size.is_some_and(|size| test.holds(size)))
                && args.newer_than.is_none_or(|span| age <= span.0)
                && args.older_than.is_none_or(|span| age > span.0)
                && name.as_ref().is_none_or(|name| entry.path.name().is_some_and(|text| name.is_match(text)))
                && path_pattern.as_ref().is_none_or(|pattern| pattern.is_match(below()))
        };
        let mut out = Lines::open();
        let take = |entry: Entry| {
            if left > 0 && wanted(&entry) {
                found += 1;
                left -= 1;
                return if context.output.json { out.json(&entry) } else { out.line(show(&entry.path)) };
            }
            // The limit is reached: no page more is asked for.
            if left == 0 { Err(Failure::told(percale_core::ErrorCode::NothingToDo)) } else { Ok(()) }
        };
        let walked = match &args.name {
            // The site looks names up.
            Some(name) if !root.is_root() => for_each_named(&client, &root, name, take).await,
            _ => for_each_below(&client, &root, false, take).await,
        };
        out.finish()?;
        match walked {
            Err(failure) if !failure.is_told() => return Err(failure),
            _ => {}
        }
    }
    tracing::debug!(found, "searched");
    Ok(())
}

/// Calls `each` for everything below a path whose name matches, page by page.
async fn for_each_named(
    client: &Client,
    path: &ObjectPath,
    name: &str,
    mut each: impl FnMut(Entry) -> Result,
) -> Result {
    let mut cursor = None;
    loop {
        let page = client.find_by_name(path, name, Some(MAX_PAGE), cursor.as_deref()).await?;
        page.items.into_iter().try_for_each(&mut each)?;
        match page.next {
            Some(next) => cursor = Some(next),
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_tested() {
        assert_eq!("+1kB".parse(), Ok(SizeTest::AtLeast(1000)));
        assert_eq!("-1KiB".parse(), Ok(SizeTest::AtMost(1024)));
        assert_eq!("0".parse(), Ok(SizeTest::Exactly(0)));
        assert!("+".parse::<SizeTest>().is_err());
        assert!(
            SizeTest::AtLeast(5).holds(5) && SizeTest::AtMost(5).holds(5) && !SizeTest::Exactly(5).holds(4)
        );
    }
}
