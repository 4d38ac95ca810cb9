//! Dependencies between our own packages point downwards only.

use std::path::Path;

use anyhow::Result;

use super::Outcome;
use crate::workspace::{Dependency, Package, Workspace};

/// Any package of ours but `testkit`.
const ANY: &str = "*";

/// Folder → what it may use. Folders without a prefix lie in `crates/`.
///
/// `catalog`, `mover` and `discovery` do not know each other: they meet in `server`. Only tests use `testkit`.
const MAY_USE: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("samples", &[]),
    ("trust", &["core"]),
    ("store", &["core"]),
    ("connectors", &["store", "core"]),
    ("catalog", &["core"]),
    ("mover", &["store", "core"]),
    ("discovery", &["core"]),
    ("api", &["core"]),
    ("client", &["api", "mover", "trust", "store", "core"]),
    ("federation", &["catalog", "client", "trust", "api", "core"]),
    ("mount", &["client", "api", "core"]),
    (
        "server",
        &[
            "federation",
            "client",
            "api",
            "discovery",
            "mover",
            "catalog",
            "connectors",
            "store",
            "trust",
            "core",
        ],
    ),
    (
        "doors/*",
        &[
            "server",
            "federation",
            "client",
            "api",
            "discovery",
            "mover",
            "catalog",
            "connectors",
            "store",
            "trust",
            "core",
        ],
    ),
    ("cli", &[ANY]),
    ("testkit", &[ANY]),
    ("./python", &["client", "core"]),
    ("./tests", &[ANY]),
    ("./bench", &[ANY, "testkit"]),
    ("./fuzz", &["discovery", "core"]),
    ("./xtask", &[]),
];

/// What tests may use besides: the testkit, and the store for its conformance suite.
const TESTS_MAY_USE: &[&str] = &["testkit", "store"];

/// Proves `MAY_USE` for every member of the workspace.
pub fn check(workspace: &Workspace) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut edges = 0;
    for package in &workspace.metadata()?.packages {
        let manifest = relative(workspace.root(), &package.manifest_path);
        let Some(folder) = folder(workspace.root(), package.manifest_path.parent()) else { continue };
        if let Some(failure) = misnamed(package, &folder) {
            outcome.failures.push(format!("{manifest}: {failure}"));
        }
        let Some(may_use) = row(&folder) else {
            outcome.failures.push(format!(
                "{manifest}: no line for {folder:?} in xtask/src/checks/edges.rs; say there what it may use"
            ));
            continue;
        };
        for dependency in &package.dependencies {
            let Some(used) = folder_of_dependency(workspace.root(), dependency) else { continue };
            edges += 1;
            let is_dev = dependency.kind.as_deref() == Some("dev");
            if used != folder && !allowed(may_use, &used, is_dev) {
                let line = line_of(workspace, &manifest, &dependency.name);
                let kind = if is_dev { ", not even in tests" } else { "" };
                outcome.failures.push(format!("{manifest}:{line}: {folder} may not use {used}{kind}"));
            }
        }
    }
    outcome.counted = format!("{edges} edges");
    Ok(outcome)
}

fn allowed(may_use: &[&str], used: &str, is_dev: bool) -> bool {
    may_use.contains(&used)
        || (may_use.contains(&ANY) && used != "testkit")
        || (is_dev && TESTS_MAY_USE.contains(&used))
}

fn row(folder: &str) -> Option<&'static [&'static str]> {
    let key = if folder.starts_with("doors/") { "doors/*" } else { folder };
    MAY_USE.iter().find(|(name, _)| *name == key).map(|(_, may_use)| *may_use)
}

/// Returns what stands in the table for a package's folder: `core`, `doors/s3`, `./xtask`.
fn folder(root: &Path, path: Option<&Path>) -> Option<String> {
    let path = path?.strip_prefix(root).ok()?.to_str()?;
    Some(path.strip_prefix("crates/").map_or_else(|| format!("./{path}"), str::to_owned))
}

fn folder_of_dependency(root: &Path, dependency: &Dependency) -> Option<String> {
    folder(root, dependency.path.as_deref())
}

fn misnamed(package: &Package, folder: &str) -> Option<String> {
    if folder.starts_with("./") {
        return None;
    }
    let expected = format!("percale-{}", folder.replace('/', "-"));
    (package.name != expected).then(|| format!("the package is named {}, not {expected}", package.name))
}

fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

/// Finds the line that names a dependency; the first one serves where it stands in two sections.
fn line_of(workspace: &Workspace, manifest: &str, name: &str) -> usize {
    let text = workspace.read(manifest).unwrap_or_default();
    text.lines().position(|line| line.trim_start().starts_with(name)).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_names_known_folders() {
        for (folder, may_use) in MAY_USE {
            for used in *may_use {
                assert!(*used == ANY || row(used).is_some(), "{folder} names unknown {used}");
            }
        }
    }

    #[test]
    fn the_table_has_no_cycle() {
        // A row may only use what stands above it, except the ones that may use all.
        for (position, (folder, may_use)) in MAY_USE.iter().enumerate() {
            for used in may_use.iter().filter(|used| **used != ANY) {
                let above = MAY_USE.iter().position(|(name, _)| name == used);
                assert!(above.is_some_and(|above| above < position), "{folder} uses {used} from below");
            }
        }
    }

    #[test]
    fn only_tests_use_the_testkit() {
        assert!(!allowed(&[ANY], "testkit", false));
        assert!(allowed(&["core"], "testkit", true));
        assert!(!allowed(&["core"], "catalog", true));
    }
}
