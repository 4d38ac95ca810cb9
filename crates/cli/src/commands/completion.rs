//! `completion`.

use clap::Args;
use clap_complete::Shell;

use crate::args;
use crate::failure::Result;
use crate::output::Lines;

/// `percale completion`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale completion bash > ~/.local/share/bash-completion/completions/percale
  percale completion zsh > ~/.zfunc/_percale
  percale completion fish > ~/.config/fish/completions/percale.fish
  source <(percale completion bash)")]
pub struct CompletionArgs {
    /// bash, zsh or fish
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the completions.
pub fn run(args: &CompletionArgs) -> Result {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut args::command(), "percale", &mut text);
    let mut out = Lines::open();
    out.bytes(&text)?;
    out.finish()
}
