//! Checks and code generation for this workspace.
//!
//! `cargo xtask check` proves the rules of the house that a compiler does not; `cargo xtask codegen` writes the
//! generated files; `cargo xtask doc-commands` lists the commands that the documents show.

mod checks;
mod codegen;
mod markdown;
mod shell;
mod workspace;

use std::process::ExitCode;

use anyhow::{Result, bail};
use workspace::Workspace;

const HELP: &str = "\
cargo xtask COMMAND

  check          prove the rules of the house; exits with 1 if one is broken
  codegen        write the generated files
  doc-commands   print every `percale` command line of the documents, as JSON lines {file, line, command, tags}
";

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}

fn run() -> Result<ExitCode> {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    if let Some(extra) = args.next() {
        bail!("unexpected argument {extra:?}\n\n{HELP}");
    }
    let workspace = Workspace::open()?;
    match command.as_str() {
        "check" => return Ok(checks::run(&workspace)),
        "codegen" => codegen::write_all(workspace.root())?,
        "doc-commands" => checks::commands::print_all(&workspace)?,
        "" | "help" | "-h" | "--help" => print!("{HELP}"),
        other => bail!("unknown command {other:?}\n\n{HELP}"),
    }
    Ok(ExitCode::SUCCESS)
}
