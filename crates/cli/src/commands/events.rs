//! `events`.

use clap::Args;
use percale_core::path::SpaceName;

use crate::context::Context;
use crate::failure::Result;
use crate::output::{Lines, time};

/// `percale events`
#[derive(Debug, Args)]
#[command(after_help = "\
Follows the journal until Ctrl-C. A position is printed with each event: --since begins behind it.

Examples:
  percale events climate
  percale events climate --json | jq -r 'select(.kind == \"objects.published\") | .body.items[].name'
  percale events climate --since 0193a1b2-0000-7000-8000-000000000001.1.42")]
pub struct EventsArgs {
    /// The space
    space: SpaceName,
    /// Begin behind this position, instead of now
    #[arg(long, value_name = "POSITION")]
    since: Option<String>,
}

/// Follows what changes.
pub async fn run(args: EventsArgs, context: &Context) -> Result {
    let mut events = context.client()?.events(&args.space, args.since).await?;
    while let Some(event) = events.next().await? {
        let mut out = Lines::open();
        if context.output.json {
            out.json(&event)?;
        } else if context.output.quiet {
            out.line(&event.position)?;
        } else {
            out.line(format!(
                "{}  {}  {}  {}  {}",
                time(event.at),
                event.position,
                event.actor,
                event.kind,
                event.body
            ))?;
        }
        out.finish()?;
    }
    Ok(())
}
