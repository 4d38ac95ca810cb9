//! The `percale` command: the command line of the fabric, and the server in the same binary.
//!
//! The command line is read first ([`args`], no input or output), then resolved against environment and profile
//! ([`config`], [`context`]), then run ([`commands`], one file for each group of verbs). Standard output is data,
//! standard error is talk. Exit codes come from `spec/errors.yaml`.

mod address;
mod args;
mod atomic_file;
mod commands;
mod config;
mod context;
mod demo;
mod duration;
mod failure;
mod filters;
mod listed;
mod output;
mod progress;
mod wildcards;

use std::process::ExitCode;
use std::time::Duration;

use clap::FromArgMatches;
use percale_core::ErrorCode;
use tokio_util::sync::CancellationToken;

use crate::args::{Cli, Command};
use crate::config::Flags;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::Output;

/// Batches of small objects and pages of the catalog come from one thread and go on another, for which the system's allocator
/// keeps memory per thread: 300 000 files of 0 to 4 kB left a site with twice as much, and took a sixth more of its processor.
/// SQLite and the cryptography allocate from it as well.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Within this an interrupted command must have tidied up.
const TIDY_UP: Duration = Duration::from_secs(15);

fn main() -> ExitCode {
    let matches = match args::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return unreadable(&error),
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => return unreadable(&error.format(&mut args::command())),
    };
    let output = Output::new(cli.global.json, cli.global.quiet, cli.global.color);
    match run(cli, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_broken_pipe() && !failure.is_told() {
                output.failure(&failure);
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

/// A command line that clap does not take, or help that was asked for.
fn unreadable(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    ExitCode::from(if error.use_stderr() { ErrorCode::InvalidRequest.exit_code() } else { 0 })
}

fn run(cli: Cli, output: Output) -> Result {
    if matches!(cli.command, Command::ReadHeaders) {
        // Before there are other threads, which would not be shut in.
        return commands::serve::read_headers();
    }
    percale_trust::install_crypto_provider();
    let global = cli.global;
    let context = Context {
        output,
        flags: Flags {
            profile: global.profile,
            url: global.url,
            token_file: global.token_file,
            ca_file: global.ca_file,
        },
        yes: global.yes,
        jobs: None,
        limit: None,
        cancel: CancellationToken::new(),
    };
    // The server has its own log, and its own way to end.
    let is_server = matches!(cli.command, Command::Serve(_));
    let is_mount = matches!(cli.command, Command::Mount(_));
    if !is_server {
        listen_to(global.verbose);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(ErrorCode::Internal, format!("cannot start threads: {error}")))?;
    let result = runtime.block_on(async {
        if is_server {
            return commands::run(cli.command, &context).await;
        }
        interrupt_on_ctrl_c(&context);
        let work = commands::run(cli.command, &context);
        tokio::pin!(work);
        tokio::select! {
            result = &mut work => return result,
            () = context.cancel.cancelled() => {}
        }
        if is_mount {
            // It ends when the last program has closed its files.
            return work.await;
        }
        // Transfers stop by themselves and say what is left; whatever does not is left behind.
        match tokio::time::timeout(TIDY_UP, work).await {
            Ok(result) => result,
            Err(_) => Err(Failure::new(ErrorCode::Interrupted, "interrupted")),
        }
    });
    // Threads that wait for a disk or for standard input must not keep the process.
    runtime.shutdown_background();
    result
}

/// The first Ctrl-C asks the command to stop, the second ends the process.
fn interrupt_on_ctrl_c(context: &Context) {
    let cancel = context.cancel.clone();
    tokio::spawn(async move {
        use tokio::signal::unix::{SignalKind, signal};
        let (Ok(mut interrupt), Ok(mut terminate)) =
            (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
        else {
            return;
        };
        for is_second in [false, true] {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if is_second {
                std::process::exit(i32::from(ErrorCode::Interrupted.exit_code()));
            }
            cancel.cancel();
        }
    });
}

/// Shows the client's log on standard error.
fn listen_to(verbose: u8) {
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;
    let level = match verbose {
        0 => "percale_client=warn,percale_mount=warn",
        1 => "percale_client=debug,percale_cli=debug,percale_mount=debug",
        _ => "debug",
    };
    let filter: Targets = level.parse().unwrap_or_default();
    let log =
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).without_time().with_target(verbose > 1);
    let _ = tracing_subscriber::registry().with(log).with(filter).try_init();
}
