//! The rules of the house, one file per rule.

pub mod commands;
mod edges;
mod generated;
mod ignored;
mod lengths;
mod links;
mod words;

use std::process::ExitCode;

use anyhow::Result;

use crate::workspace::Workspace;

/// What one check found.
#[derive(Default)]
pub struct Outcome {
    /// What was looked at, with its number: "41 files".
    pub counted: String,
    /// What breaks the rule, as `file:line: text`.
    pub failures: Vec<String>,
    /// What is worth saying but breaks nothing.
    pub notes: Vec<String>,
}

type Check = fn(&Workspace) -> Result<Outcome>;

const CHECKS: &[(&str, Check)] = &[
    ("dependency edges", edges::check),
    ("file lengths", lengths::check),
    ("generated files", generated::check),
    ("document links", links::check),
    ("document commands", commands::check),
    ("ignored tests", ignored::check),
    ("forbidden words", words::check),
];

/// Runs every check and prints one line for each, then what was found.
pub fn run(workspace: &Workspace) -> ExitCode {
    let mut failures = Vec::new();
    let mut notes = Vec::new();
    for (name, check) in CHECKS {
        let outcome = check(workspace).unwrap_or_else(|error| Outcome {
            counted: "could not run".to_owned(),
            failures: vec![format!("the check of {name} could not run: {error:#}")],
            notes: Vec::new(),
        });
        let verdict = if outcome.failures.is_empty() { "ok" } else { "FAILED" };
        print!("{verdict:<7} {name:<18} {}", outcome.counted);
        match outcome.failures.len() {
            0 => println!(),
            count => println!(" · {count} broken"),
        }
        notes.extend(outcome.notes);
        failures.extend(outcome.failures);
    }
    for note in &notes {
        println!("note: {note}");
    }
    for failure in &failures {
        println!("error: {failure}");
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
