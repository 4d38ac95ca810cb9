//! `ln`.

use clap::Args;
use percale_api::entries::Kind;
use percale_client::Client;
use percale_core::link::InvalidLinkTarget;
use percale_core::{ErrorCode, LinkTarget, ObjectPath};
use serde_json::json;

use super::grant::fabric_path;
use super::namespace::refuse_root;
use crate::address::{Address, FabricPath, show};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::Lines;

/// `percale ln`
#[derive(Debug, Args)]
#[command(after_help = "\
A link leads to another entry, in the same space or in another one. Who follows it needs leave to read there; nothing need
be there yet. `percale:/…` is kept relative to the link, so that what is moved together stays together; other text is kept
as it is.

Examples:
  percale ln percale:/climate/run42 percale:/climate/latest
  percale ln -f percale:/climate/run43 percale:/climate/latest     leads elsewhere from now on
  percale ln percale:/ocean/sst.nc percale:/paper/figures/          a view of a file of another space
  percale ln ../raw/x.h5 percale:/climate/run42/input.h5")]
pub struct LnArgs {
    /// Where the link leads: `percale:/…`, or the text that is kept
    target: String,
    /// The link; into the collection, if one is there or it ends with a slash
    #[arg(value_parser = fabric_path)]
    link: FabricPath,
    /// Replace a link that is there
    #[arg(long, short)]
    force: bool,
    /// Show what would happen and change nothing
    #[arg(long, short = 'n', visible_alias = "dryrun")]
    dry_run: bool,
}

/// Makes a link.
pub async fn run(args: LnArgs, context: &Context) -> Result {
    let client = context.client_for([&args.link])?;
    refuse_root(&args.link)?;
    let mut link = args.link.path.clone();
    let mut there = client.find(&link).await?;
    let is_collection = there.as_ref().is_some_and(|there| there.kind == Kind::Collection);
    if is_collection || args.link.means_contents {
        let name = args.target.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        link = link
            .join(name)
            .map_err(|error| Failure::usage(format!("the link cannot have the name '{name}': {error}")))?;
        there = client.find(&link).await?;
    }
    let target = target_of(&args.target, &link)?;
    let is_same = there.as_ref().is_some_and(|there| there.target.as_ref() == Some(&target));
    match &there {
        Some(_) if is_same => {}
        Some(there) if there.kind == Kind::Link && args.force => {}
        Some(there) => {
            let message = format!("{} is there already, {}", show(&link), kind_of(there.kind));
            let hint = match there.kind {
                Kind::Link => "`--force` replaces it.",
                _ => "`percale rm` removes it.",
            };
            return Err(Failure::new(ErrorCode::AlreadyExists, message).with_hint(hint));
        }
        None => {}
    }
    let word = match (args.dry_run, is_same) {
        (true, _) => "planned",
        (false, true) => "found",
        (false, false) => "made",
    };
    if word == "made" {
        match there {
            Some(_) => replace(&client, &link, &target).await?,
            None => drop(client.make_link(&link, &target).await?),
        }
    }
    if context.output.json {
        let mut out = Lines::open();
        out.json(&json!({"status": word, "path": link, "target": target}))?;
        return out.finish();
    }
    if context.output.quiet {
        return context.output.line(show(&link));
    }
    let line = format!("{} -> {target}", show(&link));
    match args.dry_run {
        true => context.output.line(format!("would make {line}")),
        false => {
            context.output.talk(format!("{word} {line}"));
            Ok(())
        }
    }
}

fn target_of(text: &str, link: &ObjectPath) -> Result<LinkTarget> {
    let wrong = |error: InvalidLinkTarget| Failure::usage(error.to_string());
    if !text.starts_with("percale:") {
        return text.parse().map_err(wrong);
    }
    let path = Address::parse_fabric(text)?.path;
    LinkTarget::between(link, &path).map_err(wrong)
}

const fn kind_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Collection => "a collection",
        Kind::Object => "an object",
        Kind::Link => "a link that leads elsewhere",
    }
}

/// Puts a link in place of another, so that there always is one.
async fn replace(client: &Client, link: &ObjectPath, target: &LinkTarget) -> Result {
    let name = format!(".percale-link-{:016x}", fastrand::u64(..));
    let beside = link.parent().unwrap_or_else(ObjectPath::root).join(&name);
    let beside = beside.map_err(|error| Failure::usage(error.to_string()))?;
    client.make_link(&beside, target).await?;
    if let Err(error) = client.rename(&beside, link, true).await {
        // What is left of it can only be told of.
        if let Err(left) = client.remove(&beside, false, None).await {
            tracing::warn!(path = %beside, error = %left, "the new link stays beside the old one");
        }
        return Err(error.into());
    }
    Ok(())
}
