//! Words that may not stay in the source.

use std::path::Path;

use anyhow::Result;

use super::Outcome;
use crate::workspace::Workspace;

const EXTENSIONS: &[&str] = &["rs", "py", "ts", "tsx", "sql", "sh", "toml", "yaml", "yml"];

// Put together here, so that this file does not break its own rule.
const STUBS: &[&str] = &[concat!("todo", "!("), concat!("unimplemented", "!(")];
const MARKERS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME")];
const DRAWERS: &[&str] = &["utils", "util", "helpers", "misc"];

/// Looks for stubs, for markers without an issue, and for files that are named after nothing.
pub fn check(workspace: &Workspace) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut files = 0;
    for path in workspace.files(EXTENSIONS) {
        files += 1;
        if let Some(name) = drawer(path) {
            outcome.failures.push(format!("{path}:1: named {name:?}; name it after what it holds"));
        }
        for (index, line) in workspace.read(path)?.lines().enumerate() {
            if let Some(complaint) = complaint(line) {
                outcome.failures.push(format!("{path}:{}: {complaint}", index + 1));
            }
        }
    }
    outcome.counted = format!("{files} files");
    Ok(outcome)
}

/// Returns the part of the path that is called by one of the names for a drawer of all sorts.
fn drawer(path: &str) -> Option<&str> {
    let stem = Path::new(path).file_stem().and_then(|stem| stem.to_str());
    let folders = Path::new(path).parent().into_iter().flat_map(Path::iter).filter_map(|part| part.to_str());
    folders.chain(stem).find(|part| DRAWERS.contains(part))
}

fn complaint(line: &str) -> Option<String> {
    if let Some(stub) = STUBS.iter().find(|stub| line.contains(**stub)) {
        return Some(format!("{}…) is left", stub));
    }
    for marker in MARKERS {
        let Some((before, after)) = line.split_once(marker) else { continue };
        let is_word = !before.ends_with(is_word_letter) && !after.starts_with(is_word_letter);
        if is_word && !names_an_issue(after) {
            return Some(format!("{marker} without an issue; write {marker}(#123)"));
        }
    }
    None
}

fn is_word_letter(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn names_an_issue(text: &str) -> bool {
    text.split('#').skip(1).any(|rest| rest.starts_with(|digit: char| digit.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_needs_an_issue() {
        let marker = MARKERS[0];
        assert!(complaint(&format!("// {marker}: later")).is_some());
        assert!(complaint(&format!("// {marker}(#12): later")).is_none());
        assert!(complaint(&format!("const {marker}_LIST: u8 = 1;")).is_none());
    }

    #[test]
    fn a_drawer_is_found_by_file_and_by_folder() {
        assert_eq!(drawer("crates/core/src/utils.rs"), Some("utils"));
        assert_eq!(drawer("crates/core/src/utils/path.rs"), Some("utils"));
        assert_eq!(drawer("crates/core/src/path.rs"), None);
    }
}
