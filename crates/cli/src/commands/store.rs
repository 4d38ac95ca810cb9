//! `store`: the storages of the site.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use percale_api::spaces::{Layout, NewStore, Store, StoreChange, StoreState};
use percale_api::tasks::{NewTask, TaskSpec};
use serde_json::{Map, Value, json};

use super::task;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::size;

/// `percale store`
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Add a storage to the site
    Add(AddArgs),
    /// List stores
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show one store
    Show(ShowArgs),
    /// Let a store take new data, or only reads
    Set(SetArgs),
    /// Move everything off a store to the site's other stores
    Drain(DrainArgs),
    /// Remove a store that nothing lies on any more
    #[command(visible_alias = "rm")]
    Remove(RemoveArgs),
}

/// `percale store add`
#[derive(Debug, Args)]
#[command(after_help = "\
A managed store belongs to the site: only it writes there, and versions never change. A native store holds ordinary files
that programs at the site read and write too.

Examples:
  percale store add disk --posix /srv/percale             a directory of the server
  percale store add lustre --posix /lustre/project --native
  percale store add cloud --connector s3 --set bucket=data --set endpoint=https://s3.example.org --secret-file keys.json
  percale store add archive --connector s3 --native --set bucket=archive --secret-file keys.json
  percale store add scratch --connector memory            for trying out; empty after a restart")]
pub struct AddArgs {
    /// Its name
    name: String,
    /// A directory of the server; the same as --connector posix --set root=DIR
    #[arg(long, value_name = "DIR")]
    posix: Option<PathBuf>,
    /// The kind of storage: posix, s3 or memory
    #[arg(long, value_name = "KIND", conflicts_with = "posix", required_unless_present = "posix")]
    connector: Option<String>,
    /// Programs at the site write there too
    #[arg(long)]
    native: bool,
    /// A setting of the connector. Text that looks like a number stands in double quotes: 'bucket="2024"'
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// A file with the connector's secret as JSON, mode 0600; kept sealed at the site
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
}

/// `percale store list`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale store list
  percale store list --json")]
pub struct ListArgs {}

/// `percale store show`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale store show disk
  percale store show disk --json")]
pub struct ShowArgs {
    /// Its name
    name: String,
}

/// `percale store set`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale store set disk --state draining       takes no new data any more
  percale store set disk --state active")]
pub struct SetArgs {
    /// Its name
    name: String,
    /// active or draining
    #[arg(long, value_parser = ["active", "draining"])]
    state: String,
}

/// `percale store drain`
#[derive(Debug, Args)]
#[command(after_help = "\
The store takes no new data from then on. What has no good copy on another store of the site is copied to one, verified,
before the copy here goes; names, readers and copies at other sites notice nothing. The work is a task: Ctrl-C leaves it
running. The store can be removed when it is done.

Examples:
  percale store drain disk
  percale store drain disk --detach       prints the id of the task
  percale store set disk --state active   takes new data again")]
pub struct DrainArgs {
    /// Its name
    name: String,
    /// Do not wait; print the id of the task
    #[arg(long)]
    detach: bool,
}

/// `percale store remove`
#[derive(Debug, Args)]
#[command(after_help = "\
The storage itself is not touched.

Examples:
  percale store remove scratch")]
pub struct RemoveArgs {
    /// Its name
    name: String,
}

/// Runs a command of the group.
pub async fn run(command: StoreCommand, context: &Context) -> Result {
    let output = context.output;
    match command {
        StoreCommand::Add(args) => {
            let new = new_store(args)?;
            let store = context.client()?.add_store(&new).await?;
            output.one(&store, |store| store.name.clone(), show)?;
            output.next(format!("percale space create NAME --store {}", store.name));
            Ok(())
        }
        StoreCommand::List(ListArgs {}) => {
            let stores = context.client()?.all_stores().await?;
            if stores.is_empty() {
                output.next("percale store add disk --posix /srv/percale");
            }
            output.list(
                &stores,
                &["store", "kind", "layout", "state", "free#", "total#"],
                |store| store.name.clone(),
                |store| {
                    let bytes = |bytes: Option<u64>| bytes.map_or("-".into(), size);
                    let (free, total) = (bytes(store.free_bytes), bytes(store.total_bytes));
                    let (layout, state) = (word(&store.layout), word(&store.state));
                    vec![store.name.clone(), store.connector.clone(), layout, state, free, total]
                },
            )
        }
        StoreCommand::Show(args) => {
            let store = context.client()?.store(&args.name).await?;
            output.one(&store, |store| store.name.clone(), show)
        }
        StoreCommand::Set(args) => {
            let state = if args.state == "active" { StoreState::Active } else { StoreState::Draining };
            let change = StoreChange { state: Some(state) };
            let store = context.client()?.change_store(&args.name, &change).await?;
            output.one(&store, |store| store.name.clone(), show)
        }
        StoreCommand::Drain(args) => drain(args, context).await,
        StoreCommand::Remove(args) => {
            let client = context.client()?;
            context.confirm(&format!("Remove the store {} from the site?", args.name))?;
            client.remove_store(&args.name).await?;
            output.talk(format!("store {} is removed; its files were not touched", args.name));
            Ok(())
        }
    }
}

async fn drain(args: DrainArgs, context: &Context) -> Result {
    let client = context.client()?;
    let change = StoreChange { state: Some(StoreState::Draining) };
    client.change_store(&args.name, &change).await?;
    let spec = TaskSpec::Empty { store: args.name.clone() };
    let task = client.submit(&NewTask::new(spec)).await?;
    if args.detach {
        return context.output.one(&task, |task| task.id.to_string(), |task| task.id.to_string());
    }
    let ended = task::attach(context, &client, task, "draining", None).await?;
    if context.output.json {
        context.output.document(&ended)?;
    }
    task::outcome(context, &client, &ended).await?;
    context.output.next(format!("percale store remove {}", args.name));
    Ok(())
}

fn new_store(args: AddArgs) -> Result<NewStore> {
    let mut config = Map::new();
    for setting in &args.settings {
        let Some((key, value)) = setting.split_once('=') else {
            return Err(Failure::usage(format!("cannot use --set {setting}: expected KEY=VALUE")));
        };
        // `true` and `8` are meant as such; anything else is text, also `"8"`.
        let value = serde_json::from_str::<Value>(value)
            .ok()
            .filter(|value| value.is_boolean() || value.is_number() || value.is_string())
            .unwrap_or_else(|| json!(value));
        config.insert(key.to_owned(), value);
    }
    let connector = match args.posix {
        Some(root) => {
            // The path is the server's, which may be another computer: it is not looked at here.
            let root = std::path::absolute(&root).map_err(|error| Failure::local("find", &root, &error))?;
            config.insert("root".into(), json!(root.display().to_string()));
            "posix".to_owned()
        }
        None => args.connector.unwrap_or_default(),
    };
    let secret = match args.secret_file {
        Some(path) => Some(read_secret(&path)?),
        None => None,
    };
    let layout = if args.native { Layout::Native } else { Layout::Managed };
    Ok(NewStore { name: args.name, connector, layout, config: Value::Object(config), secret })
}

fn read_secret(path: &std::path::Path) -> Result<Value> {
    let text =
        std::fs::read_to_string(path).map_err(|error| Failure::local("read the secret", path, &error))?;
    // The error's text would quote the secret, so it is left out.
    serde_json::from_str(&text)
        .map_err(|_| Failure::usage(format!("cannot use the secret in {}: it is not JSON", path.display())))
}

/// Returns the word that a value has on the wire.
pub fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

fn show(store: &Store) -> String {
    let mut lines = vec![
        format!("store    {}", store.name),
        format!("id       {}", store.id),
        format!("kind     {}", store.connector),
        format!("layout   {}", word(&store.layout)),
        format!("state    {}", word(&store.state)),
    ];
    if let Value::Object(config) = &store.config {
        for (key, value) in config {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            lines.push(format!("{key:<8} {value}"));
        }
    }
    if let (Some(free), Some(total)) = (store.free_bytes, store.total_bytes) {
        lines.push(format!("free     {} of {}", size(free), size(total)));
    }
    lines.join("\n")
}
