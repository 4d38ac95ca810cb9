//! `site`: the sites of the fabric.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use percale_api::peer::{MemberState, SiteStatus};
use percale_client::Client;
use percale_core::access::is_site_name;
use percale_core::{ErrorCode, Timestamp};
use serde_json::json;

use super::store::word;
use crate::context::Context;
use crate::duration::Span;
use crate::failure::{Failure, Result};
use crate::output::time;

/// Longest invitation that is read, in bytes.
const MAX_INVITATION: u64 = 16 << 10;

/// `percale site`
#[derive(Debug, Subcommand)]
pub enum SiteCommand {
    /// Write the configuration of a new site on this computer
    Init(InitArgs),
    /// List the sites of the fabric and how they are reached
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show one site
    Show(NameArgs),
    /// Make an invitation for another site: one line, good once
    Invite(InviteArgs),
    /// Join the fabric of the site that made an invitation
    Join(JoinArgs),
    /// Change the key of the site that is asked
    RotateKey(RotateKeyArgs),
    /// Confirm the key of another site, after comparing it
    ConfirmKey(ConfirmKeyArgs),
    /// Send no new data to a site
    Drain(DrainArgs),
    /// Take a drain back
    Resume(ResumeArgs),
    /// Remove a site from the fabric, for good
    #[command(visible_alias = "rm")]
    Remove(RemoveArgs),
}

/// `percale site init`
#[derive(Debug, Args)]
#[command(after_help = "\
Writes DIR/percale.toml and makes the site's key below DIR/state. Nothing that is there is changed.

Examples:
  percale site init alps ./alps
  percale site init alps /srv/percale --listen 0.0.0.0:8787 --reach https://data.example.org:8787
  percale site init lab ./lab --outgoing-only      behind a firewall: this site dials the others")]
pub struct InitArgs {
    /// Its name: 1 to 63 of a-z, 0-9, '.', '_', '-'
    name: String,
    /// The folder to keep it in
    directory: PathBuf,
    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8787")]
    listen: SocketAddr,
    /// Where other sites reach it; the address that is listened on if absent
    #[arg(long = "reach", value_name = "URL", conflicts_with = "outgoing_only")]
    urls: Vec<String>,
    /// No other site can dial it: it holds sessions with those that it can dial
    #[arg(long)]
    outgoing_only: bool,
}

/// `percale site list`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale site list
  percale site list --json
  percale -q site list")]
pub struct ListArgs {}

/// `percale site show`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale site show alps
  percale site show alps --json")]
pub struct NameArgs {
    /// Its name
    name: String,
}

/// `percale site invite`
#[derive(Debug, Args)]
#[command(after_help = "\
The line goes to the administrator of the other site, over a channel that you trust: whoever has it can join.

Examples:
  percale site invite
  percale site invite --life 1h
  percale -q site invite > invitation")]
pub struct InviteArgs {
    /// For how long it is good, at most 30d
    #[arg(long, value_name = "DURATION", default_value = "24h")]
    life: Span,
}

/// `percale site join`
#[derive(Debug, Args)]
#[command(after_help = "\
Run it at the site that joins. From then on both know each other's key, and all other sites hear of the new one.

Examples:
  percale site join percale-invite:eyJ2Ijox…
  percale site join - < invitation")]
pub struct JoinArgs {
    /// The line, or - to read it from standard input
    invitation: String,
}

/// `percale site rotate-key`
#[derive(Debug, Args)]
#[command(after_help = "\
The other sites are told before the new key is used, and accept the old one for 24 hours; one that is away learns of it later.
Tokens and running tasks go on.

If others may know the old key, say --compromised: nobody accepts it any more, tokens that it signed are void, tasks that it
allowed at other sites fail, and an administrator of each other site confirms the new key.

Examples:
  percale site rotate-key
  percale site rotate-key --compromised")]
pub struct RotateKeyArgs {
    /// Others may know the old key: accept it no more
    #[arg(long)]
    compromised: bool,
}

/// `percale site confirm-key`
#[derive(Debug, Args)]
#[command(after_help = "\
For a site that revoked its key, or whose changes were missed here: `percale site show` says so. Compare the key with what
`percale site show` says at that site, over a channel that you trust; whoever has the key is believed to be the site.

Examples:
  percale site confirm-key alps 5e31ac20b87f4d16          the key id, if alps has told of the key
  percale site confirm-key alps 7d5e…                     all 64 digits of the key")]
pub struct ConfirmKeyArgs {
    /// The site's name
    name: String,
    /// The key, or its id
    key: String,
}

/// `percale site drain`
#[derive(Debug, Args)]
#[command(after_help = "\
The site accepts no tasks that bring copies to it; those that it accepted before go on to their end.

Examples:
  percale site drain alps      what it has stays readable
  percale site resume alps     takes that back")]
pub struct DrainArgs {
    /// Its name
    name: String,
}

/// `percale site resume`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale site resume alps")]
pub struct ResumeArgs {
    /// Its name
    name: String,
}

/// `percale site remove`
#[derive(Debug, Args)]
#[command(after_help = "\
Nothing that a removed site asks or signs is accepted any more. It can only come back as a new site.

Examples:
  percale site remove alps
  percale site remove alps --yes")]
pub struct RemoveArgs {
    /// Its name
    name: String,
}

/// Runs a command of the group.
pub async fn run(command: SiteCommand, context: &Context) -> Result {
    let command = match command {
        SiteCommand::Init(args) => return init(&args, context),
        command => command,
    };
    let client = context.client()?;
    let output = context.output;
    match command {
        SiteCommand::Init(_) => Ok(()),
        SiteCommand::List(ListArgs {}) => list(&client.all_sites().await?, context),
        SiteCommand::Show(args) => {
            let site = client.member(&args.name).await?;
            output.one(&site, |site| site.member.name.clone(), show)
        }
        SiteCommand::Invite(args) => {
            let made = client.invite_site(Some(args.life.0)).await?;
            output.one(&made, |made| made.invitation.clone(), |made| made.invitation.clone())?;
            output.talk(format!("good once, until {} UTC; at the other site:", time(made.expires)));
            output.next("percale site join INVITATION");
            Ok(())
        }
        SiteCommand::Join(args) => {
            let line = if args.invitation == "-" { read_line()? } else { args.invitation };
            let sites = client.join_site(line.trim()).await?;
            list(&sites, context)?;
            output.next("percale ls");
            Ok(())
        }
        SiteCommand::RotateKey(args) => rotate_key(&client, &args, context).await,
        SiteCommand::ConfirmKey(args) => {
            let site = client.confirm_key(&args.name, &args.key).await?;
            output.one(&site, |site| site.member.name.clone(), show)
        }
        SiteCommand::Drain(args) => {
            let site = client.change_member(&args.name, MemberState::Drained).await?;
            output.one(&site, |site| site.member.name.clone(), show)
        }
        SiteCommand::Resume(args) => {
            let site = client.change_member(&args.name, MemberState::Active).await?;
            output.one(&site, |site| site.member.name.clone(), show)
        }
        SiteCommand::Remove(args) => {
            context.confirm(&format!("Remove the site {} from the fabric, for good?", args.name))?;
            client.remove_member(&args.name).await?;
            output.talk(format!("site {} is removed", args.name));
            Ok(())
        }
    }
}

/// Changes the key of the site that is asked.
async fn rotate_key(client: &Client, args: &RotateKeyArgs, context: &Context) -> Result {
    let own = client.site().await?;
    let known = client.member(&own.name).await?.member.key;
    if args.compromised {
        context.confirm(&format!(
            "Void every token of {} and refuse it at every other site until its new key is confirmed there?",
            own.name
        ))?;
    }
    let made = client.rotate_key(&known, args.compromised).await?;
    let output = context.output;
    output.one(
        &made,
        |made| made.key_id.clone(),
        |made| {
            let mut lines = vec![
                format!("site     {}", made.site),
                format!("key      {}", made.key),
                format!("key id   {}", made.key_id),
            ];
            if let Some(until) = made.old_key_until {
                lines.push(format!("old key  accepted until {} UTC", time(until)));
            }
            for (what, names) in [("told", &made.told), ("untold", &made.untold)] {
                if !names.is_empty() {
                    lines.push(format!("{what:<8} {}", names.join(" ")));
                }
            }
            lines.join("\n")
        },
    )?;
    if args.compromised {
        output.talk(
            "all tokens are void; the administrator's new one is in admin.token in the state directory",
        );
        output.talk("at every other site, after comparing the key id:");
        output.next(format!("percale site confirm-key {} {}", made.site, made.key));
    }
    Ok(())
}

/// Writes the configuration of a new site, and makes its key.
fn init(args: &InitArgs, context: &Context) -> Result {
    if !is_site_name(&args.name) {
        let failure = Failure::usage(format!("'{}' cannot be the name of a site", args.name));
        return Err(failure.with_hint("Use 1 to 63 of a-z, 0-9, '.', '_' and '-'."));
    }
    let cannot = |what: &str, path: &Path, error: &dyn std::fmt::Display| {
        Failure::new(ErrorCode::InvalidConfiguration, format!("cannot {what} {}: {error}", path.display()))
    };
    std::fs::create_dir_all(&args.directory).map_err(|error| cannot("make", &args.directory, &error))?;
    let directory = args.directory.canonicalize().map_err(|error| cannot("find", &args.directory, &error))?;
    let (state, file) = (directory.join("state"), directory.join("percale.toml"));
    // JSON's quotes are also TOML's.
    let quoted = |value: serde_json::Value| value.to_string();
    let mut text = format!(
        "# A site of Percale. `percale serve --config {} --check` shows every setting.\n\
         [site]\nname = {}\nstate_dir = {}\n\n[http]\nlisten = {}\n\n[federation]\n",
        file.display(),
        quoted(json!(args.name)),
        quoted(json!(state)),
        quoted(json!(args.listen.to_string())),
    );
    match (args.outgoing_only, args.urls.is_empty()) {
        (true, _) => text.push_str("outgoing_only = true\n"),
        (false, false) => text.push_str(&format!("urls = {}\n", quoted(json!(args.urls)))),
        (false, true) => {
            text.push_str("# urls = [\"https://data.example.org\"]    where other sites reach it\n")
        }
    }
    let mut made = std::fs::File::create_new(&file).map_err(|error| {
        let failure = cannot("write", &file, &error);
        failure
            .with_hint("An existing configuration is never written over: choose another folder, or edit it.")
    })?;
    made.write_all(text.as_bytes()).map_err(|error| cannot("write", &file, &error))?;
    percale_trust::install_crypto_provider();
    let key = percale_trust::SiteKey::load_or_create(&state)
        .map_err(|error| Failure::new(error.code(), error.to_string()))?;
    let shown = json!({"name": args.name, "config": file, "key": key.public().to_string()});
    context.output.one(
        &shown,
        |_| file.display().to_string(),
        |_| format!("site    {}\nconfig  {}\nkey     {}", args.name, file.display(), key.public()),
    )?;
    context.output.next(format!("percale serve --config {}", file.display()));
    Ok(())
}

fn read_line() -> Result<String> {
    let mut line = String::new();
    std::io::stdin().take(MAX_INVITATION).read_to_string(&mut line).map_err(|error| {
        Failure::new(ErrorCode::InvalidRequest, format!("cannot read the invitation: {error}"))
    })?;
    Ok(line)
}

fn list(sites: &[SiteStatus], context: &Context) -> Result {
    context.output.list(
        sites,
        &["site", "state", "reached", "rtt ms#", "clock ms#", "seen"],
        |site| site.member.name.clone(),
        |site| {
            let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
            let seen = site.seen.map_or("-".to_owned(), time);
            vec![
                site.member.name.clone(),
                word(&site.member.state),
                site.route.clone(),
                number(site.rtt_ms),
                number(site.clock_ms),
                seen,
            ]
        },
    )?;
    for trouble in sites.iter().filter_map(|site| site.key_trouble.as_ref()) {
        context.output.talk(trouble);
    }
    Ok(())
}

fn show(site: &SiteStatus) -> String {
    let member = &site.member;
    let mut lines = vec![
        format!("site     {}{}", member.name, if site.is_self { " (the one that answers)" } else { "" }),
        format!("id       {}", member.id),
        format!("key      {}", member.key),
        format!("key id   {}", site.key_id),
        format!("state    {}", word(&member.state)),
        format!("reached  {}", site.route),
    ];
    match member.is_dialable {
        true => lines.push(format!("at       {}", member.urls.join(" "))),
        false => lines.push("at       it only dials out".to_owned()),
    }
    if let Some(rtt) = site.rtt_ms {
        lines.push(format!("rtt      {rtt:.1} ms"));
    }
    if let Some(clock) = site.clock_ms {
        lines.push(format!("clock    {clock:+.1} ms"));
    }
    if let Some(seen) = site.seen {
        lines.push(format!("seen     {} UTC", time(seen)));
    }
    if let Some(transport) = &site.transport {
        let reason = site.transport_reason.as_ref().map(|reason| format!("; {reason}"));
        let words = super::task::words_of_transport(transport);
        lines.push(format!("copies   {words}{}", reason.unwrap_or_default()));
    }
    if let Some(until) = member.old_key_until.filter(|until| *until > Timestamp::now()) {
        lines.push(format!("old key  accepted until {} UTC", time(until)));
    }
    if let Some(trouble) = &site.key_trouble {
        lines.push(format!("trouble  {trouble}"));
    }
    if let Some(fault) = &site.fault {
        lines.push(format!("fault    {fault}"));
    }
    lines.join("\n")
}
