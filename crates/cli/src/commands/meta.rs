//! `meta`: what objects and collections are about.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use futures::{StreamExt as _, stream};
use percale_api::MAX_PAGE;
use percale_api::attributes::{AttributeChange, Source};
use percale_api::tasks::{NewTask, TaskSpec};
use percale_core::attribute::Float;
use percale_core::{AttributeName, AttributeValue};
use serde_json::json;

use super::grant::fabric_path;
use super::task;
use crate::address::{FabricPath, show};
use crate::context::Context;
use crate::failure::{Failure, Result, of_all};
use crate::listed::{listed, resolve};
use crate::output::Lines;
use crate::wildcards::expand;

/// Changes on their way at once; those that arrive together are committed together.
const AT_ONCE: usize = 32;

/// `percale meta`
#[derive(Debug, Subcommand)]
pub enum MetaCommand {
    /// Show what is said of objects and collections
    Get(GetArgs),
    /// Set attributes
    Set(SetArgs),
    /// Remove attributes that a person set
    #[command(visible_alias = "remove")]
    Rm(RmArgs),
    /// Show what was said when, and by whom
    History(HistoryArgs),
    /// Read headers again for what they say
    Extract(ExtractArgs),
}

/// `percale meta extract`
#[derive(Debug, Args)]
#[command(after_help = "\
The work is a task of the site that is the home of the space: Ctrl-C stops the watching, not the task.

Examples:
  percale meta extract percale:/climate/run7
  percale meta extract percale:/climate --detach")]
pub struct ExtractArgs {
    /// Of what, with all below it
    #[arg(value_parser = fabric_path)]
    path: FabricPath,
    /// Do not wait; print the id of the task
    #[arg(long)]
    detach: bool,
}

/// `percale meta get`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale meta get percale:/climate/a.nc
  percale meta get 'percale:/climate/*.nc' --json")]
pub struct GetArgs {
    /// Of what
    #[arg(value_parser = fabric_path, required = true)]
    paths: Vec<FabricPath>,
}

/// `percale meta history`
#[derive(Debug, Args)]
#[command(after_help = "\
The last change comes first. It goes back as far as the site keeps the journal of the space, 30 days if it was not told otherwise.

Examples:
  percale meta history percale:/climate/a.nc
  percale meta history percale:/climate/a.nc --limit 10 --json")]
pub struct HistoryArgs {
    /// Of what
    #[arg(value_parser = fabric_path)]
    path: FabricPath,
    /// At most so many changes
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

/// `percale meta set`
#[derive(Debug, Args)]
#[command(after_help = "\
What looks like a number, like true or false, or like a time in RFC 3339 becomes that, everything else is text; --type says it
instead. A name that is given twice has both values. What the attribute had before goes.

Examples:
  percale meta set percale:/climate/a.nc instrument=MODIS level=500
  percale meta set percale:/climate/a.nc band=1 band=2
  percale meta set percale:/climate/a.nc version=2 --type text
  percale -q search 'ext:nc -tag:*' | percale meta set --file - tag=new")]
pub struct SetArgs {
    /// Of what, then NAME=VALUE, of which there may be several
    #[arg(required = true, value_name = "PATH|NAME=VALUE")]
    words: Vec<String>,
    /// Also of the paths in this file, one in each line, as they are; `-` is standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// What the values are
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<TypeArg>,
}

/// `percale meta rm`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale meta rm percale:/climate/a.nc tag
  percale -q search tag:draft | percale meta rm --file - tag")]
pub struct RmArgs {
    /// Of what, then the names of attributes
    #[arg(required = true, value_name = "PATH|NAME")]
    words: Vec<String>,
    /// Also of the paths in this file, one in each line, as they are; `-` is standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// A type of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TypeArg {
    /// A whole number
    Integer,
    /// A number
    Float,
    /// Text
    Text,
    /// A time in RFC 3339
    Time,
    /// true or false
    Bool,
}

impl TypeArg {
    fn read(self, text: &str) -> Result<AttributeValue> {
        let value = match self {
            Self::Integer => text.parse().ok().map(AttributeValue::Integer),
            Self::Float => text.parse::<Float>().ok().map(AttributeValue::Float),
            Self::Text => Some(AttributeValue::Text(text.to_owned())),
            Self::Time => text.parse().ok().map(AttributeValue::Time),
            Self::Bool => text.parse().ok().map(AttributeValue::Bool),
        };
        let name = self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        value.ok_or_else(|| Failure::usage(format!("'{text}' is no value of the type {name}")))
    }
}

/// Runs a command of the group.
pub async fn run(command: MetaCommand, context: &Context) -> Result {
    match command {
        MetaCommand::Get(args) => get(args, context).await,
        MetaCommand::History(args) => history(args, context).await,
        MetaCommand::Extract(args) => extract(args, context).await,
        MetaCommand::Set(args) => {
            let named = Named::read(args.words, args.file)?;
            let set = set_of(&named.words, args.kind)?;
            change(named, set, context).await
        }
        MetaCommand::Rm(args) => {
            let named = Named::read(args.words, args.file)?;
            let set =
                named.words.iter().map(|name| Ok((name_of(name)?, Vec::new()))).collect::<Result<_>>()?;
            change(named, AttributeChange { set }, context).await
        }
    }
}

async fn get(args: GetArgs, context: &Context) -> Result {
    let client = context.client_for(&args.paths)?;
    let paths = expand(&client, args.paths).await?;
    let is_one = paths.len() == 1;
    let mut out = Lines::open();
    for path in &paths {
        let attributes = client.attributes(&path.path).await?;
        if context.output.json {
            out.json(&json!({ "path": path.path, "attributes": attributes }))?;
            continue;
        }
        if !is_one {
            out.line(show(&path.path))?;
        }
        for attribute in attributes {
            let indent = if is_one { "" } else { "  " };
            let shown = shown(&attribute.name, &attribute.values, attribute.source);
            out.line(format!("{indent}{shown}"))?;
        }
    }
    out.finish()
}

fn shown(name: &AttributeName, values: &[AttributeValue], source: Source) -> String {
    let source = match source {
        Source::Header => "header",
        Source::Person => "person",
    };
    let Some(first) = values.first() else { return format!("{name} removed  ({source})") };
    let kind = first.type_name();
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    format!("{name} = {}  ({kind}, {source})", values.join(", "))
}

async fn history(args: HistoryArgs, context: &Context) -> Result {
    let client = context.client_for([&args.path])?;
    let (mut left, mut cursor) = (args.limit.unwrap_or(u64::MAX), None);
    let mut out = Lines::open();
    while left > 0 {
        let limit = u32::try_from(left).unwrap_or(MAX_PAGE).min(MAX_PAGE);
        let page = client.attribute_history(&args.path.path, Some(limit), cursor.as_deref()).await?;
        left -= page.items.len() as u64;
        for event in page.items {
            if context.output.json {
                out.json(&event)?;
                continue;
            }
            out.line(format!("{}  {}", event.at, event.actor))?;
            for (name, values) in &event.set {
                out.line(format!("  {}", shown(name, values, event.source)))?;
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    out.finish()
}

async fn extract(args: ExtractArgs, context: &Context) -> Result {
    let client = context.client_for([&args.path])?;
    let spec = TaskSpec::Extract { path: args.path.path.clone() };
    let task = client.submit(&NewTask::new(spec)).await?;
    if args.detach {
        return context.output.one(&task, |task| task.id.to_string(), |task| task.id.to_string());
    }
    let ended = task::attach(context, &client, task, "reading", None).await?;
    if context.output.json {
        context.output.document(&ended)?;
    }
    task::outcome(context, &client, &ended).await
}

/// What the words of a command name.
struct Named {
    /// Paths of the command line, which may have patterns.
    paths: Vec<FabricPath>,
    /// Paths of a file, which are as they are.
    listed: Vec<FabricPath>,
    /// What is no path.
    words: Vec<String>,
}

impl Named {
    fn read(words: Vec<String>, file: Option<PathBuf>) -> Result<Self> {
        let is_path = |word: &String| word.starts_with("percale:");
        let (paths, words): (Vec<String>, Vec<String>) = words.into_iter().partition(is_path);
        if paths.is_empty() && file.is_none() {
            return Err(Failure::usage(
                "nothing is named whose attributes these are; a path such as percale:/space/name is needed",
            ));
        }
        if words.is_empty() {
            return Err(Failure::usage("no attribute is named"));
        }
        let listed = file.map_or_else(|| Ok(Vec::new()), |file| listed(&file))?;
        let paths = paths.iter().map(|path| fabric_path(path).map_err(Failure::usage));
        Ok(Self { paths: paths.collect::<Result<_>>()?, listed, words })
    }
}

fn name_of(text: &str) -> Result<AttributeName> {
    text.parse().map_err(|error| Failure::usage(format!("{error}")))
}

fn set_of(words: &[String], kind: Option<TypeArg>) -> Result<AttributeChange> {
    let mut set: BTreeMap<AttributeName, Vec<AttributeValue>> = BTreeMap::new();
    for word in words {
        let Some((name, text)) = word.split_once('=') else {
            return Err(Failure::usage(format!("'{word}' is neither a path nor NAME=VALUE")));
        };
        let value = kind.map_or_else(|| Ok(AttributeValue::guess(text)), |kind| kind.read(text))?;
        set.entry(name_of(name)?).or_default().push(value);
    }
    Ok(AttributeChange { set })
}

async fn change(named: Named, change: AttributeChange, context: &Context) -> Result {
    let Named { paths, listed, .. } = named;
    if paths.is_empty() && listed.is_empty() {
        return Ok(());
    }
    let (client, paths) = resolve(paths, listed, context).await?;
    let is_one = paths.len() == 1;
    let (client, change) = (&client, &change);
    let changed = stream::iter(paths)
        .map(|path| async move { (client.change_attributes(&path.path, change).await, path) })
        .buffered(AT_ONCE);
    let mut changed = std::pin::pin!(changed);
    let mut out = Lines::open();
    let (mut done, mut failed) = (0_usize, Vec::new());
    while let Some((result, path)) = changed.next().await {
        let failure = match result {
            Ok(_) => {
                done += 1;
                match context.output.json {
                    true => out.json(&json!({ "path": path.path }))?,
                    false => out.line(show(&path.path))?,
                }
                continue;
            }
            Err(error) if is_one => return Err(error.into()),
            Err(error) => Failure::from(error),
        };
        // One that cannot be changed holds up none of the others.
        failed.push(failure.code());
        match context.output.json {
            true => context.output.failure(&failure.when(show(&path.path))),
            false => {
                let (mark, code) = (context.output.paint("31", "failed:"), failure.code());
                context.output.warn(format!("{mark} {}: {failure} ({code})", show(&path.path)));
            }
        }
    }
    out.finish()?;
    match of_all(&failed, done > 0) {
        None => Ok(()),
        Some(code) => Err(Failure::told(code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_values_of_their_type() {
        let words = ["band=1", "band=2", "note=a=b"].map(str::to_owned);
        let set = set_of(&words, None).unwrap().set;
        assert_eq!(set[&"band".parse().unwrap()], [AttributeValue::Integer(1), AttributeValue::Integer(2)]);
        assert_eq!(set[&"note".parse().unwrap()], [AttributeValue::Text("a=b".into())]);
        let set = set_of(&words[..1], Some(TypeArg::Text)).unwrap().set;
        assert_eq!(set[&"band".parse().unwrap()], [AttributeValue::Text("1".into())]);
        assert!(set_of(&words[2..], Some(TypeArg::Float)).is_err());
        assert!(set_of(&["x".to_owned()], None).is_err());
    }
}
