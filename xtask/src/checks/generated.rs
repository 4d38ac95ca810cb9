//! Generated files are what their generators make today.

use anyhow::{Context as _, Result};

use super::Outcome;
use crate::codegen::GENERATED;
use crate::workspace::Workspace;

/// Runs every generator in memory and compares.
pub fn check(workspace: &Workspace) -> Result<Outcome> {
    let mut outcome = Outcome { counted: format!("{} files", GENERATED.len()), ..Outcome::default() };
    for (path, generate) in GENERATED {
        let wanted = generate(workspace.root()).with_context(|| format!("cannot generate {path}"))?;
        let present = if workspace.exists(path) { workspace.read(path)? } else { String::new() };
        if wanted != present {
            let line = first_difference(&wanted, &present);
            outcome.failures.push(format!("{path}:{line}: not up to date; run `cargo xtask codegen`"));
        }
    }
    Ok(outcome)
}

/// Returns the number of the first line that differs, counted from 1.
fn first_difference(left: &str, right: &str) -> usize {
    left.lines().zip(right.lines()).take_while(|(l, r)| l == r).count() + 1
}
