//! `login`, `logout`, `whoami`.

use std::fs;
use std::io::{BufRead, IsTerminal, Read};
use std::path::PathBuf;

use clap::Args;
use percale_client::{Client, ClientOptions};
use percale_core::{ErrorCode, Timestamp};
use percale_trust::Secret;
use rustix::termios;

use crate::config::{self, ConfigFile, DEFAULT_PROFILE, Profile};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::duration;

/// `percale login`
#[derive(Debug, Args)]
#[command(after_help = "\
The token is read from --token-file, from PERCALE_TOKEN, or from standard input (asked for on a terminal). It is never
an argument, since every user of the computer sees those. It is kept in ~/.config/percale/tokens/ (mode 0600).

Examples:
  percale login https://data.example.org                       asks for the token
  percale login https://data.example.org --token-file token
  percale login https://data.example.org --profile work < token
  percale login https://127.0.0.1:8787 --token-file /var/lib/percale/admin.token --ca-file /var/lib/percale/ca.pem")]
pub struct LoginArgs {
    /// The site's URL; the profile's if absent
    #[arg(value_name = "URL")]
    site: Option<String>,
    /// Use this profile from now on when none is named
    #[arg(long)]
    set_default: bool,
}

/// `percale logout`
#[derive(Debug, Args)]
#[command(after_help = "\
The token itself stays valid until it ends: `percale token revoke` takes it back at the site.

Examples:
  percale logout
  percale logout --profile work")]
pub struct LogoutArgs {}

/// `percale whoami`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale whoami
  percale whoami --profile work
  percale whoami --json | jq -r .user")]
pub struct WhoamiArgs {}

/// Checks a token at the site and keeps it.
pub async fn login(args: LoginArgs, context: &Context) -> Result {
    let mut file = ConfigFile::load()?;
    let name = context
        .flags
        .profile
        .clone()
        .or_else(|| std::env::var("PERCALE_PROFILE").ok().filter(|name| !name.is_empty()))
        .or_else(|| file.default_profile.clone())
        .unwrap_or_else(|| DEFAULT_PROFILE.to_owned());
    config::check_profile_name(&name)?;
    let mut profile = file.profiles.get(&name).cloned().unwrap_or_default();
    // Values of flags and the environment are for this profile; one that does not exist yet is being made.
    file.profiles.entry(name.clone()).or_default();
    let mut flags = context.flags.clone();
    flags.profile = Some(name.clone());
    flags.url = args.site.clone().or(flags.url);
    let effective = file.effective(&flags)?;
    let token = match (&context.flags.token_file, std::env::var("PERCALE_TOKEN")) {
        (Some(path), _) => config::read_token(path)?,
        (None, Ok(token)) if !token.is_empty() => config::check_token(&token, "PERCALE_TOKEN")?,
        _ => ask_for_token(context, &effective.url.value)?,
    };
    let mut options = ClientOptions::new(&effective.url.value);
    options.token = Some(token.clone());
    options.ca_file.clone_from(&effective.ca_file.value);
    let client = Client::new(options)?;
    let whoami = context.interruptible(client.whoami()).await??;
    let Some(user) = &whoami.user else {
        let message = format!("{} does not take this token for anybody's", client.url());
        return Err(Failure::new(ErrorCode::TokenInvalid, message));
    };

    config::write_private(&config::token_path(&name)?, token.expose().as_bytes())?;
    profile.url = Some(client.url().as_str().trim_end_matches('/').to_owned());
    profile.token_file = None;
    profile.ca_file = match effective.ca_file.value {
        Some(path) => {
            Some(fs::canonicalize(&path).map_err(|error| Failure::local("find the CA file", &path, &error))?)
        }
        None => profile.ca_file,
    };
    let is_first = file.profiles.len() == 1;
    if args.set_default || (is_first && name != DEFAULT_PROFILE) {
        file.default_profile = Some(name.clone());
    }
    let url = profile.url.clone().unwrap_or_default();
    file.profiles.insert(name.clone(), profile);
    file.save()?;

    if context.output.json {
        context.output.document(&whoami)?;
    } else {
        context.output.line(format!("logged in at {url} as {user} (profile {name})"))?;
        context.output.next("percale ls percale:/");
    }
    Ok(())
}

/// Reads the token from standard input, without showing it if a person types it.
fn ask_for_token(context: &Context, url: &str) -> Result<Secret<String>> {
    let stdin = std::io::stdin();
    let cannot = |error: std::io::Error| {
        Failure::new(ErrorCode::InvalidRequest, format!("cannot read the token from standard input: {error}"))
    };
    let mut text = String::new();
    if !stdin.is_terminal() {
        stdin.lock().take(64 << 10).read_to_string(&mut text).map_err(cannot)?;
        return config::check_token(&text, "standard input");
    }
    context.output.talk(format!("Token for {url} (not shown): "));
    let before = termios::tcgetattr(&stdin).ok();
    if let Some(mut quiet) = before.clone() {
        quiet.local_modes.remove(termios::LocalModes::ECHO);
        let _ = termios::tcsetattr(&stdin, termios::OptionalActions::Flush, &quiet);
    }
    let read = stdin.lock().read_line(&mut text);
    if let Some(before) = before {
        let _ = termios::tcsetattr(&stdin, termios::OptionalActions::Flush, &before);
    }
    read.map_err(cannot)?;
    config::check_token(&text, "the terminal")
}

/// Removes the token of a profile.
pub fn logout(_args: &LogoutArgs, context: &Context) -> Result {
    let effective = context.effective()?;
    let name = effective.profile.value;
    let path: PathBuf = config::token_path(&name)?;
    match fs::remove_file(&path) {
        Ok(()) => context.output.line(format!("logged out of profile {name}")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            context.output.talk(format!("profile {name} had no token"));
            Ok(())
        }
        Err(error) => Err(Failure::local("remove the token", &path, &error)),
    }
}

/// Shows who the site takes the caller for.
pub async fn whoami(_args: &WhoamiArgs, context: &Context) -> Result {
    let client = context.client()?;
    let whoami = context.interruptible(client.whoami()).await??;
    let effective = context.effective()?;
    context.output.one(
        &whoami,
        |whoami| whoami.user.as_ref().map_or("anyone".into(), ToString::to_string),
        |whoami| {
            let list = |items: Vec<String>| if items.is_empty() { "-".into() } else { items.join(", ") };
            let user = whoami.user.as_ref().map_or("nobody (not logged in)".into(), ToString::to_string);
            let groups = list(whoami.groups.iter().map(ToString::to_string).collect());
            let scopes = list(whoami.scopes.iter().map(ToString::to_string).collect());
            let expires = whoami.expires.map_or("-".into(), |expires| {
                let left = expires.since(Timestamp::now());
                format!("{} (in {})", crate::output::time(expires), duration(left))
            });
            format!(
                "user     {user}\ngroups   {groups}\nscopes   {scopes}\nexpires  {expires}\nsite     {} ({})",
                effective.url.value, effective.url.origin
            )
        },
    )
}

/// Returns a profile that `config set-profile` begins with.
pub fn profile_of(file: &ConfigFile, name: &str) -> Profile {
    file.profiles.get(name).cloned().unwrap_or_default()
}
