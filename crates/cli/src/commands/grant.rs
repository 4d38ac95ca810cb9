//! `grant`: who may do what.

use clap::{Args, Subcommand};
use percale_api::access::NewGrant;
use percale_core::access::{Permission, Subject};

use crate::address::{Address, FabricPath};
use crate::context::Context;
use crate::failure::Result;

/// `percale grant`
#[derive(Debug, Subcommand)]
pub enum GrantCommand {
    /// Give a permission on a path and everything below it
    Add(AddArgs),
    /// List the grants that hold on a path
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Take a grant away
    #[command(visible_alias = "rm")]
    Remove(RemoveArgs),
}

/// `percale grant add`
#[derive(Debug, Args)]
#[command(after_help = "\
read: list, stat, read. write: also create, overwrite, rename, delete. manage: also change grants.

Examples:
  percale grant add percale:/climate user:bob read
  percale grant add percale:/climate/era5 group:wp3 write
  percale grant add percale:/climate/public anyone read
  percale grant add percale:/climate user:carol@https://id.example.org manage")]
pub struct AddArgs {
    /// The space or collection
    #[arg(value_parser = fabric_path)]
    path: FabricPath,
    /// user:NAME, group:NAME or anyone
    subject: Subject,
    /// read, write or manage
    permission: Permission,
}

/// `percale grant list`
#[derive(Debug, Args)]
#[command(after_help = "\
Grants given above the path hold on it too, and are shown with the collection that they were given on.

Examples:
  percale grant list percale:/climate
  percale grant list percale:/climate/era5 --json")]
pub struct ListArgs {
    /// The path
    #[arg(value_parser = fabric_path)]
    path: FabricPath,
}

/// `percale grant remove`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale grant remove percale:/climate user:bob
  percale grant remove percale:/climate/public anyone")]
pub struct RemoveArgs {
    /// The space or collection that it was given on
    #[arg(value_parser = fabric_path)]
    path: FabricPath,
    /// To whom it was given
    subject: Subject,
}

/// Reads a path of the fabric for clap.
pub fn fabric_path(text: &str) -> Result<FabricPath, String> {
    Address::parse_fabric(text).map_err(|failure| format!("{failure}\n{}", failure.hint()))
}

/// Runs a command of the group.
pub async fn run(command: GrantCommand, context: &Context) -> Result {
    match command {
        GrantCommand::Add(args) => {
            let grant = NewGrant { subject: args.subject, permission: args.permission };
            context.client_for([&args.path])?.grant(&args.path.path, &grant).await?;
            context.output.talk(format!("{} may {} {}", grant.subject, grant.permission, args.path));
            Ok(())
        }
        GrantCommand::List(args) => {
            let grants = context.client_for([&args.path])?.grants(&args.path.path).await?;
            context.output.list(
                &grants,
                &["subject", "permission", "given on"],
                |grant| grant.subject.to_string(),
                |grant| vec![grant.subject.to_string(), grant.permission.to_string(), grant.path.clone()],
            )
        }
        GrantCommand::Remove(args) => {
            context.client_for([&args.path])?.revoke_grant(&args.path.path, &args.subject).await?;
            context.output.talk(format!("{} has no grant on {} any more", args.subject, args.path));
            Ok(())
        }
    }
}
