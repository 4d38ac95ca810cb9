//! No file grows beyond what one person can hold in mind.

use anyhow::Result;

use super::Outcome;
use crate::codegen;
use crate::workspace::Workspace;

const EXTENSIONS: &[&str] = &["rs", "py", "ts", "tsx", "sql"];

/// Above this a file gets a note: look for a second responsibility in it.
const SOFT_LIMIT: usize = 500;

/// Above this the check fails.
const HARD_LIMIT: usize = 1000;

/// Files that may be longer, each with its reason. Generated files need no line here.
const EXCEPTIONS: &[(&str, &str)] = &[];

/// Counts the lines of every source file.
pub fn check(workspace: &Workspace) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut files = 0;
    for path in workspace.files(EXTENSIONS) {
        files += 1;
        let is_excepted = EXCEPTIONS.iter().any(|(excepted, _)| *excepted == path);
        let is_generated = codegen::GENERATED.iter().any(|(generated, _)| *generated == path);
        if is_excepted || is_generated {
            continue;
        }
        let lines = workspace.read(path)?.lines().count();
        if lines > HARD_LIMIT {
            outcome.failures.push(format!("{path}:{lines}: longer than {HARD_LIMIT} lines; split it"));
        } else if lines > SOFT_LIMIT {
            outcome.notes.push(format!("{path}:{lines}: longer than {SOFT_LIMIT} lines"));
        }
    }
    for (path, reason) in EXCEPTIONS {
        if !workspace.exists(path) {
            outcome.failures.push(format!("xtask/src/checks/lengths.rs: {path} is gone ({reason})"));
        }
    }
    outcome.counted = format!("{files} files");
    Ok(outcome)
}
