//! The command line as clap reads it. Nothing here touches a file or the network.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::commands::{
    admin, api, bench, cat, check, completion, config, doctor, events, export, find, grant, header, import,
    ln, locate, login, ls, meta, mount, namespace, replicate, search, serve, site, space, stat, store, sync,
    task, token, transfer, usage,
};
use crate::demo::DemoArgs;
use crate::output::ColorWhen;

const AFTER: &str = "\
Paths: PATH is on this computer, percale:/space/path is in the fabric. Quote wildcards: 'percale:/climate/*.nc'.
A directory with a slash at its end means what is in it, without one the directory itself; -n shows what would happen.

Exit codes: 0 ok, 1 other, 2 usage, 3 not found, 4 not allowed, 5 temporary, 6 partial, 7 integrity, 8 conflict,
9 nothing to do, 10 wait timed out, 11 no space, 130 interrupted.

Every option can be set by the environment: --url is PERCALE_URL, --json is PERCALE_JSON=1.

Examples:
  percale serve                                        run a site on this computer
  percale login https://data.example.org --token-file token
  percale put -r ./run7 percale:/climate/              copy a directory into the fabric
  percale ls -L percale:/climate/run7                  list it with its replicas
  percale get -r percale:/climate/run7 ./copy          and get it back, verified
  percale check --deep percale:/climate                read and hash every replica";

const DEMO: &str = "\
Examples:
  percale demo                          then look around until Ctrl-C
  percale demo --check                  ends after the checks; the exit code says whether all passed
  percale demo --data ./mydata          with files of your own
  percale demo --delay 40 --rate 400    sites far apart: 80 ms there and back, 400 Mbit/s
  percale demo --catalog postgres       with PostgreSQL, which must be installed
  percale demo --clean                  removes what it made";

/// One namespace over the storage of research sites: verified transfers, checked replicas.
#[derive(Debug, Parser)]
#[command(name = "percale", version, after_help = AFTER, max_term_width = 120, propagate_version = false)]
#[command(subcommand_required = true, arg_required_else_help = true, infer_subcommands = false)]
pub struct Cli {
    #[command(flatten)]
    pub global: GlobalArgs,
    #[command(subcommand)]
    pub command: Command,
}

/// The options that every command takes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub struct GlobalArgs {
    /// The profile to use (also PERCALE_PROFILE)
    #[arg(long, global = true, value_name = "NAME")]
    pub profile: Option<String>,
    /// The site's URL (also PERCALE_URL)
    #[arg(long, global = true, value_name = "URL")]
    pub url: Option<String>,
    /// A file with the token, mode 0600 (also PERCALE_TOKEN_FILE; PERCALE_TOKEN has the token itself)
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// CA certificates to trust besides the system's (also PERCALE_CA_FILE)
    #[arg(long, global = true, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Print JSON: a document for one thing, a line each for many; errors too
    #[arg(long, global = true)]
    pub json: bool,
    /// Print only ids and paths
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Answer every question with yes
    #[arg(long, short, global = true)]
    pub yes: bool,
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", hide_possible_values = true)]
    pub color: ColorWhen,
    /// Say on standard error what is done; twice for more
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a site: catalogue, stores and interface in one process
    Serve(serve::ServeArgs),
    /// Keep a token for a site in a profile
    Login(login::LoginArgs),
    /// Remove a profile's token
    Logout(login::LogoutArgs),
    /// Show who the site takes you for
    Whoami(login::WhoamiArgs),
    /// List collections
    #[command(visible_alias = "list")]
    Ls(ls::LsArgs),
    /// Show everything about one path
    Stat(stat::StatArgs),
    /// Show which sites hold copies
    Where(locate::WhereArgs),
    /// Show collections as a tree
    Tree(usage::TreeArgs),
    /// Sum up sizes
    Du(usage::DuArgs),
    /// Find entries by name, size and time
    Find(find::FindArgs),
    /// Find data by what it is about, in all spaces
    Search(search::SearchArgs),
    /// Show and set what data is about
    #[command(subcommand)]
    Meta(meta::MetaCommand),
    /// Show what the file of an object says of itself: dimensions, variables, attributes
    Header(header::HeaderArgs),
    /// Write the bytes of objects to standard output
    Cat(cat::CatArgs),
    /// Write the first bytes of an object to standard output
    Head(cat::HeadArgs),
    /// Copy from the fabric to this computer
    Get(transfer::GetArgs),
    /// Copy from this computer to the fabric
    Put(transfer::PutArgs),
    /// Copy in either direction, or within the fabric
    Cp(transfer::CpArgs),
    /// Make a destination like its source
    Sync(sync::SyncArgs),
    /// Rename
    Mv(namespace::MvArgs),
    /// Remove
    Rm(namespace::RmArgs),
    /// Make collections
    Mkdir(namespace::MkdirArgs),
    /// Make a symbolic link
    Ln(ln::LnArgs),
    /// Compare with local files, or read and hash every replica
    #[command(visible_alias = "verify")]
    Check(check::CheckArgs),
    /// Make copies at a site
    Replicate(replicate::ReplicateArgs),
    /// Remove the copies of a site
    Evict(replicate::EvictArgs),
    /// Mount spaces as directories of this host
    Mount(mount::MountArgs),
    /// Register files of a site's storage in place
    Import(import::ImportArgs),
    /// Make a directory of links or files of a collection
    Export(export::ExportArgs),
    /// Look after managed tasks
    #[command(subcommand)]
    Task(task::TaskCommand),
    /// Follow what changes
    Events(events::EventsArgs),
    /// Make and revoke tokens
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Look after stores
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Look after spaces
    #[command(subcommand)]
    Space(space::SpaceCommand),
    /// Look after the sites of the fabric
    #[command(subcommand)]
    Site(site::SiteCommand),
    /// Share paths with users and groups
    #[command(subcommand)]
    Grant(grant::GrantCommand),
    /// Look after the server, on its own host
    #[command(subcommand)]
    Admin(admin::AdminCommand),
    /// Measure how fast things are
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Check everything that a support person would ask for
    Doctor(doctor::DoctorArgs),
    /// Run three sites here with sample data, and put them through their paces
    #[command(after_help = DEMO)]
    Demo(DemoArgs),
    /// Show and change profiles
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Print completions for a shell
    Completion(completion::CompletionArgs),
    /// Make any call of the HTTP interface
    Api(api::ApiArgs),
    /// Show the versions of this program and of the site
    Version(api::VersionArgs),
    /// Read headers of files for a server, which runs it
    #[command(hide = true)]
    ReadHeaders,
    /// Print every command as JSON, for the checks of the documents
    #[command(name = "__commands", hide = true)]
    Commands,
}

/// Returns the command line as clap knows it, each option with its variable of the environment.
pub fn command() -> clap::Command {
    with_environment(Cli::command())
}

/// Options that are resolved by [`crate::config`], which must know where a value comes from.
const RESOLVED_ELSEWHERE: [&str; 4] = ["profile", "url", "token_file", "ca_file"];

fn with_environment(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let id = arg.get_id().as_str();
        let skip = RESOLVED_ELSEWHERE.contains(&id) || matches!(id, "help" | "version");
        match arg.get_long().map(|long| format!("PERCALE_{}", long.replace('-', "_").to_uppercase())) {
            Some(variable) if !skip && arg.get_env().is_none() => {
                // `PERCALE_JSON=1` is as good as `true`.
                let arg = match arg.get_action() {
                    clap::ArgAction::SetTrue => arg.value_parser(BoolishValueParser::new()),
                    _ => arg,
                };
                arg.env(variable).hide_env(true)
            }
            _ => arg,
        }
    });
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, with_environment))
}
