//! A test that is switched off says why.

use anyhow::Result;

use super::Outcome;
use crate::workspace::Workspace;

/// Counts the ignored tests and wants a reason for each.
pub fn check(workspace: &Workspace) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut ignored = 0;
    for path in workspace.files(&["rs"]) {
        for (index, line) in workspace.read(path)?.lines().enumerate() {
            let Some(rest) = line.trim_start().strip_prefix("#[ignore") else { continue };
            ignored += 1;
            if !has_reason(rest) {
                let line = index + 1;
                outcome
                    .failures
                    .push(format!("{path}:{line}: an ignored test without a reason: #[ignore = \"why\"]"));
            }
        }
    }
    outcome.counted = format!("{ignored} tests");
    Ok(outcome)
}

/// Tells whether ` = "why"]` follows, with something between the quotes.
fn has_reason(rest: &str) -> bool {
    let reason = rest.trim_start().strip_prefix('=').map(str::trim_start).and_then(|r| r.strip_prefix('"'));
    reason.is_some_and(|reason| !reason.trim_start().is_empty() && !reason.starts_with('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_a_text() {
        assert!(has_reason(" = \"needs root\"]"));
        assert!(!has_reason(" = \"\"]"));
        assert!(!has_reason("]"));
    }
}
