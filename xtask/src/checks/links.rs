//! Every relative link of every document leads somewhere.

use std::collections::HashMap;
use std::path::{Component, Path};

use anyhow::Result;

use super::Outcome;
use crate::markdown::Document;
use crate::workspace::Workspace;

/// Resolves the links of every Markdown file, with their anchors.
pub fn check(workspace: &Workspace) -> Result<Outcome> {
    let mut documents = HashMap::new();
    for path in workspace.files(&["md"]) {
        documents.insert(path, Document::parse(&workspace.read(path)?));
    }
    let mut outcome = Outcome::default();
    let mut links = 0;
    for path in workspace.files(&["md"]) {
        let document = &documents[path];
        for (line, reference) in &document.undefined {
            outcome.failures.push(format!("{path}:{line}: the reference [{reference}] is not defined"));
        }
        for (line, link) in &document.links {
            if is_external(link) {
                continue;
            }
            links += 1;
            if let Some(complaint) = complaint(workspace, &documents, path, link) {
                outcome.failures.push(format!("{path}:{line}: {link}: {complaint}"));
            }
        }
    }
    outcome.counted = format!("{links} links in {} documents", documents.len());
    Ok(outcome)
}

/// Tells whether a link leaves the repository: `https:`, `mailto:`, `percale:`.
fn is_external(link: &str) -> bool {
    link.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty()
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
    })
}

fn complaint(
    workspace: &Workspace,
    documents: &HashMap<&str, Document>,
    from: &str,
    link: &str,
) -> Option<&'static str> {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() { Some(from.to_owned()) } else { resolve(from, path) };
    let Some(target) = target else { return Some("leads out of the repository") };
    if !workspace.exists(&target) {
        return Some("no such file");
    }
    if anchor.is_empty() {
        return None;
    }
    match documents.get(target.as_str()) {
        Some(document) if document.anchors.contains(anchor) => None,
        Some(_) => Some("no such heading"),
        // A line of a source file, `#L12`, moves with every change: only the file is proved.
        None => None,
    }
}

/// Resolves a link against the folder of its document; `None` if it leaves the repository.
fn resolve(from: &str, link: &str) -> Option<String> {
    if link.starts_with('/') {
        return None;
    }
    let mut parts: Vec<&str> =
        Path::new(from).parent().into_iter().flat_map(Path::iter).filter_map(|p| p.to_str()).collect();
    for component in Path::new(link).components() {
        match component {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::ParentDir => {
                parts.pop()?;
            }
            _ => {}
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_resolve_against_their_document() {
        assert_eq!(resolve("docs/a.md", "../README.md").as_deref(), Some("README.md"));
        assert_eq!(resolve("docs/a.md", "./b/c.md").as_deref(), Some("docs/b/c.md"));
        assert_eq!(resolve("README.md", "../x.md"), None);
        assert_eq!(resolve("README.md", "/etc/passwd"), None);
    }

    #[test]
    fn schemes_are_external() {
        assert!(is_external("https://example.org/a"));
        assert!(is_external("percale:/climate"));
        assert!(!is_external("docs/a.md#b:c"));
    }
}
