//! Checks and code generation for this workspace.
//!
//! `cargo xtask check` proves the rules of the house that a compiler does not; `cargo xtask codegen` writes the
//! generated files; `cargo xtask doc-commands` lists the commands that the documents show.

mod codegen;
mod workspace;

use anyhow::{Result, bail};

const HELP: &str = "\
cargo xtask COMMAND

  codegen        write the generated files
";

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    if let Some(extra) = args.next() {
        bail!("unexpected argument {extra:?}\n\n{HELP}");
    }
    let root = workspace::root();
    match command.as_str() {
        "codegen" => codegen::write_all(&root),
        "" | "help" | "-h" | "--help" => {
            print!("{HELP}");
            Ok(())
        }
        other => bail!("unknown command {other:?}\n\n{HELP}"),
    }
}
