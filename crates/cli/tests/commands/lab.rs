//! A site with a store and a space, a folder to work in, and commands to run.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use percale_testkit::process::{Site, SiteOptions};
use percale_testkit::wait;
use serde_json::Value;

/// The one space of a lab.
pub const SPACE: &str = "percale:/lab";

pub struct Lab {
    pub site: Site,
    folder: tempfile::TempDir,
}

/// How a command ended.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// The command succeeded.
    #[track_caller]
    pub fn ok(self) -> Self {
        self.code(0)
    }

    /// The command ended with this code.
    #[track_caller]
    pub fn code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.out, self.err);
        self
    }

    /// Standard output as one JSON document.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }

    /// Standard output as lines of JSON.
    #[track_caller]
    pub fn json_lines(&self) -> Vec<Value> {
        self.out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
            .collect()
    }

    /// The error on standard error, printed with `--json`.
    #[track_caller]
    pub fn error(&self) -> Value {
        let line = self.err.lines().last().unwrap_or_default();
        let error: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {}", self.err));
        error["error"].clone()
    }
}

impl Lab {
    /// Starts a site and makes the store and the space.
    pub fn new() -> Self {
        Self::of(Site::start(SiteOptions::new(env!("CARGO_BIN_EXE_percale"))))
    }

    /// Makes the store and the space at a site.
    pub fn of(site: Site) -> Self {
        let lab = Self { site, folder: tempfile::tempdir().unwrap() };
        let store = lab.site.directory().join("store");
        lab.run(["store", "add", "disk", "--posix", store.to_str().unwrap()]).ok();
        lab.run(["space", "create", "lab", "--store", "disk"]).ok();
        lab
    }

    /// Whether the folder has a file that was not written to its end.
    pub fn has_partial_files(&self) -> bool {
        let files = std::fs::read_dir(self.path("")).unwrap();
        files.map(|file| file.unwrap().file_name()).any(|name| name.to_string_lossy().ends_with(".partial"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    pub fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.site.command(&[]);
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("XDG_STATE_HOME", self.folder.path().join("state"))
            .env("NO_COLOR", "1")
            .stdin(Stdio::null());
        command
    }

    pub fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Ran {
        ran(&mut self.command(arguments))
    }

    /// Runs a line of words, as a person types it.
    pub fn line(&self, line: &str) -> Ran {
        self.run(line.split_whitespace())
    }

    /// Starts a command and leaves it running.
    pub fn start<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Child {
        self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Waits until so many groups of 1 MiB of an upload lie in the stage.
    pub fn wait_for_staged(&self, groups: usize) {
        let stage = self.site.directory().join("store/.percale/stage");
        wait::until("groups of the upload", Duration::from_secs(60), || {
            (files_below(&stage).iter().map(|file| groups_of(file)).sum::<usize>() >= groups).then_some(())
        });
    }

    /// Every path of the space with its size, or `-` for a collection.
    pub fn listing(&self) -> Vec<String> {
        let entries = self.run(["ls", "-R", "--json", SPACE]).ok().json_lines();
        entries
            .iter()
            .map(|entry| match entry["content"]["size"].as_u64() {
                Some(size) => format!("{} {size}", entry["path"].as_str().unwrap()),
                None => format!("{} -", entry["path"].as_str().unwrap()),
            })
            .collect()
    }
}

pub fn ran(command: &mut Command) -> Ran {
    let output = command.output().unwrap();
    finished(output)
}

pub fn finished(output: std::process::Output) -> Ran {
    use std::os::unix::process::ExitStatusExt;
    let code = output.status.code().unwrap_or_else(|| -output.status.signal().unwrap());
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ran { code, out: text(output.stdout), err: text(output.stderr) }
}

/// Every file below a directory; none if it is not there.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let each = entries.flatten().map(|entry| entry.path());
    each.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// How many groups of a file hold anything, by their first bytes. Its size says nothing: the room is reserved at once.
pub fn groups_of(path: &Path) -> usize {
    use std::os::unix::fs::FileExt;
    let Ok(file) = fs::File::open(path) else { return 0 };
    let len = file.metadata().map_or(0, |metadata| metadata.len());
    let mut start = [0; 16];
    (0..len >> 20)
        .filter(|group| file.read_exact_at(&mut start, group << 20).is_ok() && start != [0; 16])
        .count()
}

/// Every file below a directory with its content, every directory with nothing.
pub fn tree(root: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut found = Vec::new();
    let mut stack = vec![root.to_owned()];
    while let Some(directory) = stack.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_owned();
            if path.is_dir() {
                found.push((name, None));
                stack.push(path);
            } else {
                found.push((name, Some(fs::read(&path).unwrap())));
            }
        }
    }
    found.sort();
    found
}
