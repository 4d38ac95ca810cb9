//! Every `percale …` that a document shows is a command that exists.
//!
//! Looked at are README.md and docs/ (without docs/decisions/, which tells what was true on its date): lines in `sh`
//! fences, lines behind a `$ ` prompt in `console` fences, and code within the text that begins with `percale `. Words
//! behind a fence's language are its tags; a test that runs the examples may read them (`sh no-run`).
//!
//! What exists is asked of the program itself. `percale __commands`, a hidden command, prints a JSON array with one
//! element for the program and for each of its commands, at every depth; an alias that help shows has an element too:
//!
//! ```json
//! [{"path": [],              "flags": ["-h", "--help", "-V", "--version"], "options": ["--profile"], "arguments": false},
//!  {"path": ["store"],       "flags": ["-h", "--help"], "options": ["--profile"], "arguments": false},
//!  {"path": ["store", "add"],"flags": ["-h", "--help", "--json"], "options": ["-o", "--output", "--profile"], "arguments": true}]
//! ```
//!
//! - `path`: the words that lead to the command, without the program's name.
//! - `flags`: every spelling of every option that takes no value, global ones and visible aliases included.
//! - `options`: the same for the ones that take a value.
//! - `arguments`: whether the command takes words that are neither.

use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::Outcome;
use crate::markdown::{Document, Fence};
use crate::shell;
use crate::workspace::Workspace;

const PROGRAM: &str = "percale";

/// One line of a document that calls the program.
#[derive(Serialize)]
struct Example<'a> {
    file: &'a str,
    line: usize,
    command: String,
    tags: Vec<String>,
}

/// One command of the program, as `percale __commands` tells it.
#[derive(Deserialize)]
struct Known {
    path: Vec<String>,
    flags: Vec<String>,
    options: Vec<String>,
    arguments: bool,
}

/// Prints every example of the documents' fences as a line of JSON.
pub fn print_all(workspace: &Workspace) -> Result<()> {
    for file in documents(workspace) {
        let document = Document::parse(&workspace.read(file)?);
        for example in document.fences.iter().flat_map(|fence| examples(file, fence)) {
            println!("{}", serde_json::to_string(&example)?);
        }
    }
    Ok(())
}

/// Compares the documents' commands with the program's.
pub fn check(workspace: &Workspace) -> Result<Outcome> {
    if !workspace.exists("crates/cli/Cargo.toml") {
        return Ok(Outcome {
            counted: "not checked: there is no crates/cli yet".to_owned(),
            ..Outcome::default()
        });
    }
    let known = ask_program(workspace)?;
    let mut outcome = Outcome::default();
    let mut commands = 0;
    for file in documents(workspace) {
        let document = Document::parse(&workspace.read(file)?);
        let fenced = document
            .fences
            .iter()
            .flat_map(|fence| examples(file, fence))
            .map(|example| (example.line, example.command));
        let inline = document.inline.iter().filter(|(_, code)| is_call(code)).cloned();
        for (line, text) in fenced.chain(inline) {
            for words in shell::commands(&text) {
                let Some(arguments) = shell::arguments(&words, PROGRAM) else { continue };
                commands += 1;
                if let Err(complaint) = resolve(&known, arguments) {
                    outcome.failures.push(format!("{file}:{line}: `{}`: {complaint}", words.join(" ")));
                }
            }
        }
    }
    outcome.counted = format!("{commands} commands");
    Ok(outcome)
}

fn documents(workspace: &Workspace) -> impl Iterator<Item = &str> {
    workspace.files(&["md"]).filter(|path| {
        *path == "README.md" || (path.starts_with("docs/") && !path.starts_with("docs/decisions/"))
    })
}

/// Tells whether code within a text is a command line and not, say, the program's name or its output.
fn is_call(code: &str) -> bool {
    let rest = code.strip_prefix(PROGRAM).and_then(|rest| rest.strip_prefix(' '));
    rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '-'))
}

fn examples<'a>(file: &'a str, fence: &Fence) -> Vec<Example<'a>> {
    let has_prompt = match fence.language.as_str() {
        "sh" | "bash" | "shell" => false,
        "console" => true,
        _ => return Vec::new(),
    };
    let mut found = Vec::new();
    let mut lines = fence.code.lines().enumerate();
    while let Some((offset, line)) = lines.next() {
        let line = line.trim_start();
        let Some(start) = line.strip_prefix("$ ").or((!has_prompt).then_some(line)) else { continue };
        let mut command = start.to_owned();
        while let Some(continued) = command.strip_suffix('\\') {
            let next = lines.next().map_or("", |(_, next)| next.trim_start());
            command = format!("{}{}{next}", continued.trim_end(), if next.is_empty() { "" } else { " " });
        }
        if shell::commands(&command).iter().any(|words| shell::arguments(words, PROGRAM).is_some()) {
            found.push(Example { file, line: fence.line + offset, command, tags: fence.tags.clone() });
        }
    }
    found
}

fn ask_program(workspace: &Workspace) -> Result<Vec<Known>> {
    let metadata = workspace.metadata()?;
    let program = metadata.target_directory.join("debug").join(PROGRAM);
    if is_outdated(workspace, &program) {
        let built = Command::new("cargo")
            .args(["build", "--quiet", "--package", "percale-cli"])
            .current_dir(workspace.root())
            .output()
            .context("cannot start cargo build")?;
        if !built.status.success() {
            // What is wrong in it is for the compiler to say, not here.
            bail!("`cargo build --package percale-cli` fails");
        }
    }
    let output = Command::new(&program)
        .arg("__commands")
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    if !output.status.success() {
        bail!("{PROGRAM} __commands failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    serde_json::from_slice(&output.stdout).with_context(|| format!("cannot parse {PROGRAM} __commands"))
}

/// Tells whether the program is missing or older than a source of it.
fn is_outdated(workspace: &Workspace, program: &Path) -> bool {
    let modified = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let Some(built) = modified(program) else { return true };
    let newest: Option<SystemTime> = workspace
        .files(&["rs", "toml", "sql"])
        .filter(|path| path.starts_with("crates/"))
        .filter_map(|path| modified(&workspace.root().join(path)))
        .max();
    newest.is_some_and(|newest| newest > built)
}

/// Follows the words to a command and checks the options behind it.
fn resolve(known: &[Known], arguments: &[String]) -> Result<(), String> {
    let find = |path: &[&str]| known.iter().find(|command| command.path == path);
    let mut path: Vec<&str> = Vec::new();
    let mut current = find(&path).ok_or("`percale __commands` does not list the program itself")?;
    let mut words = arguments.iter().map(String::as_str);
    let mut has_argument = false;
    let mut asks_help = false;
    while let Some(word) = words.next() {
        if word == "--" {
            // Only plain arguments are left, whatever they look like.
            break;
        }
        if word.len() > 1 && word.starts_with('-') {
            asks_help |= matches!(word, "-h" | "--help" | "-V" | "--version");
            if takes_next_word(current, word)? {
                words.next();
            }
            continue;
        }
        path.push(word);
        match find(&path) {
            Some(command) if !has_argument => current = command,
            _ if current.arguments => {
                path.pop();
                has_argument = true;
            }
            _ => return Err(format!("no command `{PROGRAM} {}`", path.join(" "))),
        }
    }
    let is_group = known
        .iter()
        .any(|other| other.path.len() > current.path.len() && other.path.starts_with(&current.path));
    if is_group && !current.arguments && !asks_help {
        return Err("a command is missing behind it".to_owned());
    }
    Ok(())
}

/// Checks one option word; tells whether its value is the next word.
fn takes_next_word(command: &Known, word: &str) -> Result<bool, String> {
    let is_flag = |name: &str| command.flags.iter().any(|flag| flag == name);
    let is_option = |name: &str| command.options.iter().any(|option| option == name);
    let unknown = |name: &str| {
        let path = [&[PROGRAM.to_owned()], command.path.as_slice()].concat().join(" ");
        Err(format!("`{path}` has no option {name}"))
    };
    if word.starts_with("--") {
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        return match (is_flag(name), is_option(name)) {
            (_, true) => Ok(value.is_none()),
            (true, false) if value.is_none() => Ok(false),
            _ => unknown(name),
        };
    }
    // `-lR` is two flags; in `-d1` and `-rj8` what follows the option is its value.
    let mut rest = word.chars().skip(1).peekable();
    while let Some(letter) = rest.next() {
        let name = format!("-{letter}");
        if is_option(&name) {
            return Ok(rest.peek().is_none());
        }
        if !is_flag(&name) {
            return unknown(&name);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(path: &[&str], arguments: bool) -> Known {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Known {
            path: owned(path),
            flags: owned(&["-h", "--help", "-l", "-R", "--json"]),
            options: owned(&["-j", "--jobs", "--profile"]),
            arguments,
        }
    }

    fn resolved(line: &str) -> Result<(), String> {
        let all = [
            known(&[], false),
            known(&["ls"], true),
            known(&["store"], false),
            known(&["store", "add"], true),
        ];
        let words = shell::commands(line).remove(0);
        resolve(&all, shell::arguments(&words, PROGRAM).unwrap_or_default())
    }

    #[test]
    fn commands_that_exist_are_accepted() {
        for line in [
            "percale ls -lR percale:/a",
            "percale --profile store ls -j8 a b",
            "percale ls --jobs=3 -- -x",
            "percale store add ls",
            "percale store --help",
        ] {
            assert_eq!(resolved(line), Ok(()), "{line}");
        }
    }

    #[test]
    fn what_does_not_exist_is_named() {
        for (line, expected) in [
            ("percale list", "no command `percale list`"),
            ("percale store drop x", "no command `percale store drop`"),
            ("percale store", "a command is missing"),
            ("percale ls -q", "has no option -q"),
            ("percale ls --json=1", "has no option --json"),
        ] {
            assert!(resolved(line).is_err_and(|complaint| complaint.contains(expected)), "{line}");
        }
    }

    #[test]
    fn examples_keep_their_line_and_join_continued_lines() {
        let text = "```console\n$ percale ls \\\n    -l\npercale 0.1.0\n$ A=1 percale du\n```\n";
        let document = Document::parse(text);
        let found = examples("README.md", &document.fences[0]);
        let found: Vec<_> = found.iter().map(|example| (example.line, example.command.as_str())).collect();
        assert_eq!(found, [(2, "percale ls -l"), (5, "A=1 percale du")]);
    }
}
