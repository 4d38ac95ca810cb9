//! Where the workspace is, which files belong to it, and what cargo knows about it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

/// Folders that hold nothing written here.
const SKIPPED_FOLDERS: &[&str] =
    &["target", "node_modules", "percale-demo", "__pycache__", "dist", "corpus", "artifacts"];

/// Hidden folders that are looked into; every other hidden folder is passed over.
const HIDDEN_FOLDERS: &[&str] = &[".cargo", ".ci", ".config", ".github"];

/// The workspace's root and the list of its files.
pub struct Workspace {
    root: PathBuf,
    files: Vec<String>,
}

impl Workspace {
    /// Lists the files of the workspace around the current folder.
    ///
    /// Not of the one that this program was built in: two working copies may share a target folder.
    pub fn open() -> Result<Self> {
        let current = std::env::current_dir().context("there is no current folder")?;
        let root = current.ancestors().find(|folder| folder.join("xtask/Cargo.toml").is_file());
        let root =
            root.with_context(|| format!("{} is not in a working copy", current.display()))?.to_path_buf();
        let mut files = Vec::new();
        collect(&root, "", &mut files)?;
        files.sort();
        Ok(Self { root, files })
    }

    /// Returns the root of the workspace.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the files whose name ends with one of the extensions, relative to the root and sorted.
    pub fn files<'a>(&'a self, extensions: &'a [&str]) -> impl Iterator<Item = &'a str> {
        self.files.iter().map(String::as_str).filter(|path| {
            Path::new(path).extension().and_then(|e| e.to_str()).is_some_and(|e| extensions.contains(&e))
        })
    }

    /// Tells whether a file or folder of this path, relative to the root, exists.
    pub fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// Reads a text file, relative to the root.
    pub fn read(&self, path: &str) -> Result<String> {
        fs::read_to_string(self.root.join(path)).with_context(|| format!("cannot read {path}"))
    }

    /// Asks cargo for the members of the workspace and their direct dependencies.
    pub fn metadata(&self) -> Result<Metadata> {
        let output = Command::new("cargo")
            .args(["metadata", "--format-version", "1", "--no-deps"])
            .current_dir(&self.root)
            .output()
            .context("cannot start cargo metadata")?;
        if !output.status.success() {
            bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        serde_json::from_slice(&output.stdout).context("cannot parse the output of cargo metadata")
    }
}

fn collect(root: &Path, folder: &str, files: &mut Vec<String>) -> Result<()> {
    let listed = fs::read_dir(root.join(folder)).with_context(|| format!("cannot list {folder:?}"))?;
    for entry in listed {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { bail!("a file name in {folder:?} is not UTF-8: {name:?}") };
        let path = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
        // A file may vanish between the listing and this question: another program's temporary file.
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            let hidden = name.starts_with('.') && !HIDDEN_FOLDERS.contains(&name);
            if !hidden && !SKIPPED_FOLDERS.contains(&name) {
                collect(root, &path, files)?;
            }
        } else if kind.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

/// The part of `cargo metadata` that the checks read.
#[derive(Deserialize)]
pub struct Metadata {
    /// The members of the workspace.
    pub packages: Vec<Package>,
    /// Where cargo puts what it builds.
    pub target_directory: PathBuf,
}

/// One member of the workspace.
#[derive(Deserialize)]
pub struct Package {
    /// The package's name.
    pub name: String,
    /// The absolute path of its `Cargo.toml`.
    pub manifest_path: PathBuf,
    /// Its direct dependencies of every kind.
    pub dependencies: Vec<Dependency>,
}

/// One direct dependency.
#[derive(Deserialize)]
pub struct Dependency {
    /// The name of the package depended on.
    pub name: String,
    /// `None` for a normal one, else `dev` or `build`.
    pub kind: Option<String>,
    /// Where it lies, if it is a path: this is how our own packages are known.
    pub path: Option<PathBuf>,
}
