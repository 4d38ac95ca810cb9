//! `percale __commands`: every command as JSON, for the check that the documents name only what exists. The form is
//! described in `xtask/src/checks/commands.rs`.

use clap::Command;
use serde::Serialize;

use crate::args;
use crate::failure::Result;
use crate::output::Lines;

#[derive(Debug, Serialize)]
struct Known {
    path: Vec<String>,
    flags: Vec<String>,
    options: Vec<String>,
    arguments: bool,
}

/// Prints the list.
pub fn run() -> Result {
    let mut command = args::command();
    command.build();
    let mut known = Vec::new();
    collect(&command, &[], &mut known);
    let mut out = Lines::open();
    out.json(&known)?;
    out.finish()
}

fn collect(command: &Command, path: &[String], known: &mut Vec<Known>) {
    let (mut flags, mut options) = (Vec::new(), Vec::new());
    for option in command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set()) {
        let takes_value = option.get_action().takes_values();
        let spellings = if takes_value { &mut options } else { &mut flags };
        spellings.extend(
            option.get_long_and_visible_aliases().unwrap_or_default().into_iter().map(|l| format!("--{l}")),
        );
        spellings.extend(
            option.get_short_and_visible_aliases().unwrap_or_default().into_iter().map(|s| format!("-{s}")),
        );
    }
    flags.sort();
    options.sort();
    let arguments = command.get_positionals().next().is_some();
    known.push(Known { path: path.to_vec(), flags, options, arguments });
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        for name in std::iter::once(sub.get_name()).chain(sub.get_visible_aliases()) {
            let path: Vec<String> = path.iter().cloned().chain([name.to_owned()]).collect();
            collect(sub, &path, known);
        }
    }
}
