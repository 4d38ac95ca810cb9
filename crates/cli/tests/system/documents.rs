//! What the documents tell people to type works: every example of the README and of `docs/` that is not tagged `no-run` is run
//! against a site, in order, in one folder for each document.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use percale_testkit::process::Site;

use crate::world::{World, add_space};

/// One line of a document, as `cargo xtask doc-commands` prints it.
#[derive(Debug, Deserialize)]
struct Example {
    file: String,
    line: usize,
    command: String,
    tags: Vec<String>,
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_of_the_documents_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output =
        Command::new(env!("CARGO")).args(["xtask", "doc-commands"]).current_dir(&root).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let examples: Vec<Example> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(!examples.is_empty(), "the documents show no command");

    // The name that the documents give to a first site.
    let site = Site::start(World::options().set("site.name", "\"alps\""));
    // What `make demo` leaves running, for the README.
    add_space(&site, "demo-disk", "demo").await;
    let mut failures = Vec::new();
    let mut folders = std::collections::BTreeMap::new();
    let mut ran = 0;
    for example in examples.iter().filter(|example| !example.tags.iter().any(|tag| tag == "no-run")) {
        let folder = folders.entry(&example.file).or_insert_with(|| prepared_folder(&site));
        let command = site.command(&[]);
        let output = Command::new("sh")
            .arg("-euc")
            .arg(&example.command)
            .current_dir(folder.path())
            .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .env("PATH", path_with_the_binary())
            .env("HOME", folder.path())
            .output()
            .unwrap();
        ran += 1;
        if !output.status.success() {
            failures.push(format!(
                "{}:{}: `{}` ended with {}: {}",
                example.file,
                example.line,
                example.command,
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            ));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    eprintln!("{ran} of {} examples were run", examples.len());
}

/// What the examples take for granted: some data of one's own, and at home the state directory of the site.
fn prepared_folder(site: &Site) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut options = percale_testkit::data::climate::Options::default();
    options.files = 4;
    options.bytes = 1 << 20;
    percale_testkit::data::climate::write_tree(&folder.path().join("mydata"), &options).unwrap();
    std::os::unix::fs::symlink(site.state_directory(), folder.path().join("percale")).unwrap();
    folder
}

fn path_with_the_binary() -> std::ffi::OsString {
    let binary = Path::new(env!("CARGO_BIN_EXE_percale"));
    let mut paths = vec![binary.parent().unwrap().to_owned()];
    paths.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    std::env::join_paths(paths).unwrap()
}
