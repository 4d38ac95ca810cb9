//! `space`: the roots of the namespace.

use clap::{Args, Subcommand, ValueEnum};
use percale_api::access::NewGrant;
use percale_api::spaces::{Extraction, NewSpace, Promoted, Space, SpaceChange, SpaceScope};
use percale_core::access::Subject;
use percale_core::path::SpaceName;
use percale_core::{ByteCount, ObjectPath};

use super::store::word;
use crate::address::show as show_path;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{count, time};

/// `percale space`
#[derive(Debug, Subcommand)]
pub enum SpaceCommand {
    /// Make a space
    Create(CreateArgs),
    /// List spaces
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show one space
    Show(ShowArgs),
    /// Change a space
    Set(SetArgs),
    /// Make the site the home of a space whose home is lost
    Promote(PromoteArgs),
    /// Make another site the home of a space
    MoveHome(MoveHomeArgs),
    /// Remove an empty space
    #[command(visible_alias = "rm")]
    Remove(RemoveArgs),
}

/// Who sees a space.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum ScopeArg {
    /// Its owner, until others are granted something
    Private,
    /// Those it is granted to
    Members,
    /// Everybody may read
    Public,
}

impl From<ScopeArg> for SpaceScope {
    fn from(scope: ScopeArg) -> Self {
        match scope {
            ScopeArg::Private => Self::Private,
            ScopeArg::Members => Self::Members,
            ScopeArg::Public => Self::Public,
        }
    }
}

/// When headers are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExtractionArg {
    /// Only when somebody asks
    Off,
    /// Soon after an object was written
    Async,
    /// Before a write is answered
    Sync,
}

impl From<ExtractionArg> for Extraction {
    fn from(mode: ExtractionArg) -> Self {
        match mode {
            ExtractionArg::Off => Self::Off,
            ExtractionArg::Async => Self::Async,
            ExtractionArg::Sync => Self::Sync,
        }
    }
}

/// `percale space create`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale space create climate
  percale space create climate --store lustre --scope members
  percale space create wp3 --owner user:alice --member group:wp3=write --member user:bob=manage
  percale space create wp4 --template wp3 --owner user:carol
  percale space create ocean --extraction sync   headers are read before a write is answered
  percale space create ice --quota 10TB          it never has more than that
  percale space create open --scope public")]
pub struct CreateArgs {
    /// Its name: 1 to 63 of a-z, 0-9, '.', '_', '-'
    name: SpaceName,
    /// Its owner; oneself if absent
    #[arg(long, value_name = "USER")]
    owner: Option<Subject>,
    /// A space to make it like: its scope, store, quota, members, rules, and when headers are read
    #[arg(long, value_name = "SPACE")]
    template: Option<SpaceName>,
    /// Who sees it; as the template, or private, if absent
    #[arg(long, value_name = "SCOPE")]
    scope: Option<ScopeArg>,
    /// The store that new data goes to; that of the template, or the site's first one, if absent
    #[arg(long, value_name = "STORE")]
    store: Option<String>,
    /// When the headers of its objects are read for what they say; as the template, or async, if absent
    #[arg(long, value_name = "WHEN")]
    extraction: Option<ExtractionArg>,
    /// How many bytes its objects may have together; as the template, or without a limit, if absent
    #[arg(long, value_name = "SIZE")]
    quota: Option<ByteCount>,
    /// Who else may read, write or manage it; may be repeated
    #[arg(long = "member", value_name = "SUBJECT=PERMISSION", value_parser = member)]
    members: Vec<NewGrant>,
}

fn member(text: &str) -> Result<NewGrant, String> {
    let (subject, permission) =
        text.rsplit_once('=').ok_or("write SUBJECT=PERMISSION, such as user:alice=write")?;
    let subject = subject.parse().map_err(|error| format!("{error}"))?;
    let permission = permission.parse().map_err(|error| format!("{error}"))?;
    Ok(NewGrant { subject, permission })
}

/// `percale space list`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale space list
  percale space list --json
  percale -q space list")]
pub struct ListArgs {}

/// `percale space show`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale space show climate
  percale space show climate --json")]
pub struct ShowArgs {
    /// Its name
    name: SpaceName,
}

/// `percale space set`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale space set climate --scope public
  percale space set climate --extraction sync   headers are read before a write is answered
  percale space set climate --store lustre      new data goes there from now on
  percale space set climate --quota 50TB        for administrators, as is --store
  percale space set climate --quota none")]
pub struct SetArgs {
    /// Its name
    name: SpaceName,
    /// Who sees it
    #[arg(long, value_name = "SCOPE")]
    scope: Option<ScopeArg>,
    /// The store that new data goes to
    #[arg(long, value_name = "STORE")]
    store: Option<String>,
    /// When the headers of its objects are read for what they say
    #[arg(long, value_name = "WHEN")]
    extraction: Option<ExtractionArg>,
    /// How many bytes its objects may have together, or 'none' for no limit
    #[arg(long, value_name = "SIZE", value_parser = quota)]
    quota: Option<Quota>,
}

/// A limit, or that there is none.
#[derive(Debug, Clone, Copy)]
struct Quota(Option<ByteCount>);

fn quota(text: &str) -> Result<Quota, String> {
    match text {
        "none" => Ok(Quota(None)),
        size => size.parse().map(|size| Quota(Some(size))).map_err(|error| format!("{error}")),
    }
}

/// `percale space promote`
#[derive(Debug, Args)]
#[command(after_help = "\
Ask the site that is to become the home. What the lost home committed and this site has not heard of is lost; the answer
says how much is known of that. If the old home comes back, it sets its rows aside and follows.

Examples:
  percale space promote climate
  percale space promote climate --yes --json")]
pub struct PromoteArgs {
    /// Its name
    name: SpaceName,
}

/// `percale space move-home`
#[derive(Debug, Args)]
#[command(after_help = "\
Ask the present home. Nothing is lost; changes wait for as long as it takes, usually less than a second.

Examples:
  percale space move-home climate baltic")]
pub struct MoveHomeArgs {
    /// Its name
    name: SpaceName,
    /// The site that is to be its home
    site: String,
}

/// `percale space remove`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale space remove climate
  percale rm -r percale:/climate/ && percale space remove climate")]
pub struct RemoveArgs {
    /// Its name
    name: SpaceName,
}

/// Runs a command of the group.
pub async fn run(command: SpaceCommand, context: &Context) -> Result {
    let client = context.client()?;
    let output = context.output;
    match command {
        SpaceCommand::Create(args) => {
            let mut new = NewSpace::new(args.name);
            (new.owner, new.template) = (args.owner, args.template);
            (new.scope, new.store, new.members) = (args.scope.map(Into::into), args.store, args.members);
            new.extraction = args.extraction.map(Into::into);
            new.quota = args.quota.map(|quota| quota.0);
            let space = client.create_space(&new).await?;
            output.one(&space, |space| space.name.to_string(), show)?;
            let root = show_path(&ObjectPath::of_space(&space.name));
            output.next(format!("percale put -r DIRECTORY {root}/"));
            Ok(())
        }
        SpaceCommand::List(ListArgs {}) => {
            let spaces = client.all_spaces().await?;
            if spaces.is_empty() {
                output.next("percale space create NAME");
            }
            output.list(
                &spaces,
                &["space", "owner", "scope", "store", "created"],
                |space| space.name.to_string(),
                |space| {
                    let store = space.store.clone().unwrap_or_else(|| "-".into());
                    let (owner, scope) = (space.owner.to_string(), word(&space.scope));
                    vec![space.name.to_string(), owner, scope, store, time(space.created)]
                },
            )
        }
        SpaceCommand::Show(args) => {
            let space = client.space(&args.name).await?;
            output.one(&space, |space| space.name.to_string(), show)
        }
        SpaceCommand::Set(args) => {
            let SetArgs { name, scope, store, extraction, quota } = args;
            if scope.is_none() && store.is_none() && extraction.is_none() && quota.is_none() {
                let failure = Failure::usage("nothing to set");
                return Err(failure.with_hint("Add --scope, --store, --extraction or --quota."));
            }
            let (scope, extraction) = (scope.map(Into::into), extraction.map(Into::into));
            let quota = quota.map(|Quota(quota)| quota.map(|quota| quota.0));
            let change = SpaceChange { scope, store, extraction, quota };
            let space = client.change_space(&name, &change).await?;
            output.one(&space, |space| space.name.to_string(), show)
        }
        SpaceCommand::Promote(args) => {
            let question =
                format!("Make this site the home of {}? What it has not heard of is lost.", args.name);
            context.confirm(&question)?;
            output.one(&client.promote_space(&args.name).await?, |made| made.position.clone(), promoted)
        }
        SpaceCommand::MoveHome(args) => {
            let made = client.move_space(&args.name, &args.site).await?;
            output.one(&made, |made| made.position.clone(), promoted)
        }
        SpaceCommand::Remove(args) => {
            context.confirm(&format!("Remove the space {}?", args.name))?;
            client.remove_space(&args.name).await?;
            output.talk(format!("space {} is removed", args.name));
            Ok(())
        }
    }
}

fn promoted(made: &Promoted) -> String {
    let mut lines = vec![
        format!("space     {}", made.space),
        format!("home      {}", made.home),
        format!("position  {}", made.position),
        format!("before    {}", made.before),
    ];
    if let Some(heard) = &made.heard {
        lines.push(format!("heard of  {heard}"));
    }
    lines.push(format!("lost      {} known of", count(made.lost, "record")));
    lines.join("\n")
}

fn show(space: &Space) -> String {
    let unread = match space.unread {
        Some(unread) if unread > 0 => format!(", {} to look at", count(unread, "record")),
        _ => String::new(),
    };
    let used = match space.quota {
        Some(quota) => format!("{} of {}", ByteCount(space.used), ByteCount(quota)),
        None => ByteCount(space.used).to_string(),
    };
    format!(
        "space     {}\nid        {}\nowner     {}\nscope     {}\nstore     {}\nused      {used}\nheaders   {}{unread}\nhome      {}\ncreated   {} UTC\nposition  {}",
        space.name,
        space.id,
        space.owner,
        word(&space.scope),
        space.store.as_deref().unwrap_or("-"),
        word(&space.extraction),
        space.home,
        time(space.created),
        space.position,
    )
}
