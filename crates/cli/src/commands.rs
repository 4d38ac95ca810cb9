//! The commands, one file for each group of verbs.

pub mod admin;
pub mod api;
pub mod bench;
pub mod cat;
pub mod check;
pub mod completion;
pub mod config;
pub mod doctor;
pub mod events;
pub mod export;
pub mod find;
pub mod grant;
pub mod header;
pub mod import;
mod known;
pub mod ln;
pub mod locate;
pub mod login;
pub mod ls;
pub mod meta;
pub mod mount;
pub mod namespace;
pub mod receipt;
pub mod replicate;
pub mod search;
pub mod serve;
pub mod site;
pub mod space;
pub mod stat;
pub mod store;
pub mod sync;
pub mod task;
pub mod token;
pub mod transfer;
pub mod usage;

use percale_core::ErrorCode;

use crate::args::Command;
use crate::context::Context;
use crate::failure::{Failure, Result};

/// Runs a command.
pub async fn run(command: Command, context: &Context) -> Result {
    match command {
        Command::Serve(args) => serve::run(args, context).await,
        Command::Login(args) => login::login(args, context).await,
        Command::Logout(args) => login::logout(&args, context),
        Command::Whoami(args) => login::whoami(&args, context).await,
        Command::Ls(args) => context.interruptible(ls::run(args, context)).await?,
        Command::Stat(args) => context.interruptible(stat::run(args, context)).await?,
        Command::Where(args) => context.interruptible(locate::run(args, context)).await?,
        Command::Tree(args) => context.interruptible(usage::tree(args, context)).await?,
        Command::Du(args) => context.interruptible(usage::du(args, context)).await?,
        Command::Find(args) => context.interruptible(find::run(args, context)).await?,
        Command::Search(args) => context.interruptible(search::run(args, context)).await?,
        Command::Meta(command) => context.interruptible(meta::run(command, context)).await?,
        Command::Header(args) => context.interruptible(header::run(args, context)).await?,
        Command::Cat(args) => context.interruptible(cat::cat(args, context)).await?,
        Command::Head(args) => context.interruptible(cat::head(args, context)).await?,
        Command::Get(args) => transfer::get(args, context).await,
        Command::Put(args) => transfer::put(args, context).await,
        Command::Cp(args) => transfer::cp(args, context).await,
        Command::Sync(args) => sync::run(args, context).await,
        Command::Mv(args) => context.interruptible(namespace::mv(args, context)).await?,
        Command::Rm(args) => namespace::rm(args, context).await,
        Command::Mkdir(args) => context.interruptible(namespace::mkdir(args, context)).await?,
        Command::Ln(args) => context.interruptible(ln::run(args, context)).await?,
        Command::Check(args) => check::run(args, context).await,
        Command::Replicate(args) => replicate::replicate(args, context).await,
        Command::Evict(args) => replicate::evict(args, context).await,
        Command::Mount(args) => mount::run(args, context).await,
        Command::Export(args) => export::run(args, context).await,
        Command::Import(args) => import::run(args, context).await,
        Command::Task(command) => task::run(command, context).await,
        Command::Events(args) => context.interruptible(events::run(args, context)).await?,
        Command::Token(command) => context.interruptible(token::run(command, context)).await?,
        Command::Store(command) => context.interruptible(store::run(command, context)).await?,
        Command::Space(command) => context.interruptible(space::run(command, context)).await?,
        Command::Site(command) => context.interruptible(site::run(command, context)).await?,
        Command::Grant(command) => context.interruptible(grant::run(command, context)).await?,
        Command::Admin(command) => admin::run(command, context).await,
        Command::Bench(command) => bench::run(command, context).await,
        Command::Doctor(args) => context.interruptible(doctor::run(args, context)).await?,
        Command::Demo(args) => demo(args, context).await,
        Command::Config(command) => config::run(command, context),
        Command::Completion(args) => completion::run(&args),
        Command::Api(args) => context.interruptible(api::run(args, context)).await?,
        Command::Version(args) => context.interruptible(api::version(args, context)).await?,
        Command::Commands | Command::ReadHeaders => known::run(),
    }
}

/// Runs the demo, whose lines say what failed.
async fn demo(args: crate::demo::DemoArgs, context: &Context) -> Result {
    use crate::demo::Ended;
    match crate::demo::run(args, context.output.json, context.cancel.clone()).await {
        Ok(Ended::Passed) => Ok(()),
        Ok(Ended::Failed) => Err(Failure::told(ErrorCode::Internal)),
        Ok(Ended::Interrupted) => Err(Failure::told(ErrorCode::Interrupted)),
        Err(error) if error.is::<crate::demo::NotInstalled>() => {
            let failure = Failure::usage(error.to_string());
            Err(failure.with_hint("Install the package postgresql, or leave --catalog out to use SQLite."))
        }
        Err(error) => {
            let failure = Failure::new(ErrorCode::Internal, format!("cannot run the demo: {error:#}"));
            Err(failure.with_hint("`percale demo --clean` removes what an earlier run left."))
        }
    }
}
