//! `config`: profiles, and where each value comes from.

use clap::{Args, Subcommand};
use percale_client::{Client, ClientOptions};
use serde::Serialize;

use super::login::profile_of;
use crate::config::{self, ConfigFile, TokenSource};
use crate::context::Context;
use crate::failure::{Failure, Result};

/// `percale config`
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show what holds for this run
    Show(ShowArgs),
    /// List the profiles
    Profiles(ProfilesArgs),
    /// Make or change a profile
    SetProfile(SetProfileArgs),
    /// Remove a profile and its token
    RemoveProfile(RemoveProfileArgs),
}

/// `percale config show`
#[derive(Debug, Args)]
#[command(after_help = "\
A flag goes over the environment, that over the profile, that over the default. Tokens are not shown.

Examples:
  percale config show
  percale config show --origin
  PERCALE_URL=https://other percale config show --origin --json")]
pub struct ShowArgs {
    /// Show where each value comes from
    #[arg(long)]
    origin: bool,
}

/// `percale config profiles`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale config profiles
  percale config profiles --json
  percale -q config profiles")]
pub struct ProfilesArgs {}

/// `percale config set-profile`
#[derive(Debug, Args)]
#[command(after_help = "\
The options --url, --ca-file and --token-file are kept in the profile; what is not given stays.

Examples:
  percale config set-profile work --url https://data.example.org
  percale config set-profile work --ca-file /etc/ssl/our-ca.pem
  percale config set-profile work --set-default")]
pub struct SetProfileArgs {
    /// The profile's name
    name: String,
    /// Use this profile from now on when none is named
    #[arg(long)]
    set_default: bool,
}

/// `percale config remove-profile`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale config remove-profile work")]
pub struct RemoveProfileArgs {
    /// The profile's name
    name: String,
}

#[derive(Debug, Serialize)]
struct Shown {
    key: &'static str,
    value: Option<String>,
    origin: String,
}

/// Runs a command of the group.
pub fn run(command: ConfigCommand, context: &Context) -> Result {
    match command {
        ConfigCommand::Show(args) => show(&args, context),
        ConfigCommand::Profiles(ProfilesArgs {}) => profiles(context),
        ConfigCommand::SetProfile(args) => set_profile(args, context),
        ConfigCommand::RemoveProfile(args) => remove_profile(&args, context),
    }
}

fn show(args: &ShowArgs, context: &Context) -> Result {
    let effective = context.effective()?;
    let token = match &effective.token.value {
        TokenSource::Environment(_) => Some("set".to_owned()),
        TokenSource::File(path) => Some(format!("in {}", path.display())),
        TokenSource::None => None,
    };
    let ca_file = effective.ca_file.value.map(|path| path.display().to_string());
    let shown = [
        Shown {
            key: "profile",
            value: Some(effective.profile.value),
            origin: effective.profile.origin.to_string(),
        },
        Shown { key: "url", value: Some(effective.url.value), origin: effective.url.origin.to_string() },
        Shown { key: "token", value: token, origin: effective.token.origin.to_string() },
        Shown { key: "ca_file", value: ca_file, origin: effective.ca_file.origin.to_string() },
    ];
    let headers: &[&str] = if args.origin { &["setting", "value", "origin"] } else { &["setting", "value"] };
    context.output.list(
        &shown,
        headers,
        |shown| shown.value.clone().unwrap_or_default(),
        |shown| {
            let mut row = vec![shown.key.to_owned(), shown.value.clone().unwrap_or_else(|| "-".into())];
            row.extend(args.origin.then(|| shown.origin.clone()));
            row
        },
    )
}

#[derive(Debug, Serialize)]
struct ShownProfile {
    name: String,
    url: Option<String>,
    logged_in: bool,
    default: bool,
}

fn profiles(context: &Context) -> Result {
    let file = ConfigFile::load()?;
    let default = file.default_profile.clone().unwrap_or_else(|| config::DEFAULT_PROFILE.to_owned());
    let shown: Vec<ShownProfile> = file
        .profiles
        .iter()
        .map(|(name, profile)| ShownProfile {
            name: name.clone(),
            url: profile.url.clone(),
            logged_in: profile.token_file.is_some()
                || config::token_path(name).is_ok_and(|path| path.exists()),
            default: *name == default,
        })
        .collect();
    context.output.list(
        &shown,
        &["profile", "url", "logged in", "default"],
        |profile| profile.name.clone(),
        |profile| {
            let yes = |is: bool| if is { "yes".to_owned() } else { "-".to_owned() };
            let url = profile.url.clone().unwrap_or_else(|| "-".into());
            vec![profile.name.clone(), url, yes(profile.logged_in), yes(profile.default)]
        },
    )
}

fn set_profile(args: SetProfileArgs, context: &Context) -> Result {
    config::check_profile_name(&args.name)?;
    let mut file = ConfigFile::load()?;
    let mut profile = profile_of(&file, &args.name);
    let flags = &context.flags;
    if let Some(url) = &flags.url {
        // Whether it is one is found out now and not at the next command.
        Client::new(ClientOptions::new(url))?;
        profile.url = Some(url.trim_end_matches('/').to_owned());
    }
    let absolute = |path: &std::path::PathBuf| {
        std::path::absolute(path).map_err(|error| Failure::local("find", path, &error))
    };
    if let Some(path) = &flags.ca_file {
        profile.ca_file = Some(absolute(path)?);
    }
    if let Some(path) = &flags.token_file {
        profile.token_file = Some(absolute(path)?);
    }
    file.profiles.insert(args.name.clone(), profile);
    if args.set_default {
        file.default_profile = Some(args.name.clone());
    }
    file.save()?;
    context.output.talk(format!("profile {} is saved", args.name));
    context.output.next(format!("percale login --profile {}", args.name));
    Ok(())
}

fn remove_profile(args: &RemoveProfileArgs, context: &Context) -> Result {
    let mut file = ConfigFile::load()?;
    if file.profiles.remove(&args.name).is_none() {
        let message = format!("there is no profile '{}'", args.name);
        return Err(Failure::new(percale_core::ErrorCode::NotFound, message)
            .with_hint("`percale config profiles` lists what there is."));
    }
    if file.default_profile.as_deref() == Some(&args.name) {
        file.default_profile = None;
    }
    file.save()?;
    let token = config::token_path(&args.name)?;
    match std::fs::remove_file(&token) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Failure::local("remove the token", &token, &error));
        }
        _ => {}
    }
    context.output.talk(format!("profile {} is removed", args.name));
    Ok(())
}
