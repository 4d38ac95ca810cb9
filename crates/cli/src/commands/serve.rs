//! `serve`: the server of a site.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use percale_core::ErrorCode;
use percale_server::config::{Loaded, Sources};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::context::Context;
use crate::failure::{Failure, Result};

/// Where the configuration is looked for when no file is named.
const CONFIG_FILE: &str = "/etc/percale/percale.toml";

/// `percale serve`
#[derive(Debug, Args)]
#[command(after_help = "\
A flag goes over the environment (PERCALE__HTTP__LISTEN is `listen` in `[http]`), that over the file, that over the default.
Without --config, /etc/percale/percale.toml is read if it is there. The log goes to standard error. SIGTERM and Ctrl-C end
the server in an orderly way: requests in progress may finish.

Examples:
  percale serve                                     on 127.0.0.1:8787, state in the user's state directory
  percale serve --config /etc/percale/percale.toml
  percale serve --check                             shows every setting and where it comes from
  percale serve --listen 0.0.0.0:443 --site-name alps --state-dir /srv/percale
  percale serve --set log.level=debug --set tls.mode=off")]
pub struct ServeArgs {
    /// The configuration file
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Show the configuration with the origin of each value, and do not serve
    #[arg(long)]
    check: bool,
    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Where the site keeps its keys and its database
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// The site's name
    #[arg(long, value_name = "NAME")]
    site_name: Option<String>,
    /// Any other setting
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

/// Turns an error of the server into one of the command line.
pub fn server_failure(error: &percale_server::ApiError) -> Failure {
    let problem = error.to_problem();
    Failure::new(problem.error_code(), problem.detail).with_hint(problem.hint)
}

/// Reads the server's configuration.
pub fn load(config: Option<&Path>, flags: Vec<(String, String)>) -> Result<Loaded> {
    let default = Path::new(CONFIG_FILE);
    let file = config.map(Path::to_owned).or_else(|| default.exists().then(|| default.to_owned()));
    Sources { file, flags }.load().map_err(|error| server_failure(&error))
}

impl ServeArgs {
    fn flags(&self) -> Result<Vec<(String, String)>> {
        let mut flags = Vec::new();
        for setting in &self.settings {
            let Some((key, value)) = setting.split_once('=') else {
                return Err(Failure::usage(format!("cannot use --set {setting}: expected KEY=VALUE")));
            };
            flags.push((key.to_owned(), value.to_owned()));
        }
        let named = [
            ("http.listen", self.listen.map(|listen| listen.to_string())),
            ("site.state_dir", self.state_dir.as_ref().map(|path| path.display().to_string())),
            ("site.name", self.site_name.clone()),
        ];
        flags.extend(named.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
        Ok(flags)
    }
}

/// Reads the headers of files that a server hands over, shut in, until that ends.
pub fn read_headers() -> Result {
    let cannot = |error: std::io::Error| {
        Failure::new(ErrorCode::Internal, format!("cannot go on reading headers: {error}"))
    };
    percale_discovery::reader::serve(std::io::stdin(), std::io::stdout()).map_err(cannot)
}

/// Runs a server until it is told to end.
pub async fn run(args: ServeArgs, context: &Context) -> Result {
    let mut loaded = load(args.config.as_deref(), args.flags()?)?;
    if args.check {
        return check(&loaded, context);
    }
    percale_server::logging::init(&loaded.config.log).map_err(|error| server_failure(&error))?;
    // Asked for before anything is started, so that no signal is missed.
    let cannot = |error: std::io::Error| {
        Failure::new(ErrorCode::Internal, format!("cannot wait for signals: {error}"))
    };
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    if loaded.config.extraction.program.is_none() {
        loaded.config.extraction.program = std::env::current_exe().ok();
    }
    let running = percale_server::start(loaded.config).await.map_err(|error| server_failure(&error))?;
    announce(&running, context)?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    context.output.talk("ending: requests in progress may finish, a second signal ends at once");
    tokio::select! {
        () = running.shutdown() => Ok(()),
        _ = interrupt.recv() => Err(Failure::new(ErrorCode::Interrupted, "ended before everything was finished")),
        _ = terminate.recv() => Err(Failure::new(ErrorCode::Interrupted, "ended before everything was finished")),
    }
}

/// Says where the server is and how to sign in. Programs read the one line of JSON to learn the port.
fn announce(running: &percale_server::Running, context: &Context) -> Result {
    let (url, token) = (running.url(), running.admin_token_path());
    if context.output.json {
        let line = json!({"url": url, "admin_token_file": token, "ca_file": running.ca_path(), "pid": std::process::id()});
        return context.output.line(line.to_string());
    }
    context.output.line(format!("serving at {url}"))?;
    if context.output.is_interactive() {
        let ca = running.ca_path().map_or(String::new(), |ca| format!(" --ca-file {}", ca.display()));
        context.output.next(format!("percale login {url} --token-file {}{ca}", token.display()));
    }
    Ok(())
}

fn check(loaded: &Loaded, context: &Context) -> Result {
    #[derive(serde::Serialize)]
    struct Shown {
        key: String,
        value: String,
        origin: String,
    }
    let settings: Vec<Shown> = loaded
        .settings()
        .into_iter()
        .map(|setting| Shown { key: setting.key, value: setting.value, origin: setting.origin })
        .collect();
    context.output.list(
        &settings,
        &["setting", "value", "origin"],
        |setting| format!("{}={}", setting.key, setting.value),
        |setting| vec![setting.key.clone(), setting.value.clone(), setting.origin.clone()],
    )
}
