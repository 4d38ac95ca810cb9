//! `export`: a part of the namespace as an ordinary directory, of links to where the files lie, or of copies.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use clap::Args;
use percale_api::entries::{Entry, Kind};
use percale_client::put::{Candidate, Filter};
use percale_client::{Client, ListOptions};
use percale_core::ids::StoreId;
use percale_core::{ErrorCode, ObjectPath};
use serde_json::json;

use super::grant::fabric_path;
use super::transfer::{CommonArgs, get_contents};
use crate::address::FabricPath;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::count;

/// Entries of which is asked at once.
const PAGE: u32 = 10_000;
/// Objects without a link that are shown; the rest is counted.
const SHOWN: usize = 20;

/// `percale export`
#[derive(Debug, Args)]
#[command(after_help = "\
What is in the collection appears in the directory, which is made if it is missing. Run again, it brings the directory up to date;
what is in the directory besides stays.

With --links each object is a symbolic link to the file of its copy at this site: nothing is copied, and nothing verified. That needs a
token with the scope admin, which is told where stores lie, and a computer that has the stores' directories. A link leads to the
version that was current, and to nothing once that version is gone. Objects without a copy that can be read here are named, and the exit code is
6. Read through the links; only files of native stores may be written.

With --copy it is the same as `percale get -r PATH/ DIR`.

Examples:
  percale export --links percale:/climate/run7 ./run7
  percale export --links -n percale:/climate/run7 ./run7
  percale export --copy percale:/climate/run7 ./run7 --include '*.nc'")]
pub struct ExportArgs {
    /// The collection
    #[arg(value_parser = fabric_path, value_name = "PATH")]
    from: FabricPath,
    /// The directory that gets what is in it
    #[arg(value_name = "DIR")]
    to: PathBuf,
    /// Links to files of this site's stores
    #[arg(long, conflicts_with = "copy", required_unless_present = "copy")]
    links: bool,
    /// Files with the objects' bytes, verified
    #[arg(long)]
    copy: bool,
    #[command(flatten)]
    common: CommonArgs,
}

/// Makes a directory of a part of the namespace.
pub async fn run(args: ExportArgs, context: &Context) -> Result {
    match args.copy {
        true => get_contents(context, args.common, args.from, args.to).await,
        false => links(args, context).await,
    }
}

/// What became of objects.
#[derive(Debug, Default)]
struct Outcome {
    made: u64,
    same: u64,
    failed: Vec<(String, String)>,
}

/// What links are made with.
struct Links {
    /// The collection.
    from: ObjectPath,
    to: PathBuf,
    /// Where the stores of this site lie.
    roots: HashMap<StoreId, PathBuf>,
    filter: Option<Filter>,
    dry_run: bool,
}

async fn links(args: ExportArgs, context: &Context) -> Result {
    let client = context.client_for([&args.from])?;
    let entry = context.interruptible(client.resolve(&args.from.path)).await??;
    if entry.kind != Kind::Collection {
        let failure = Failure::new(ErrorCode::NotACollection, format!("{} is an object", args.from));
        return Err(failure.with_hint("Export the collection that it is in, with --include."));
    }
    let links = Links {
        from: entry.path,
        to: args.to,
        roots: roots(&client, context).await?,
        filter: args.common.filters.build()?,
        dry_run: args.common.dry_run,
    };
    let mut outcome = Outcome::default();
    if !links.dry_run {
        fs::create_dir_all(&links.to)
            .map_err(|error| Failure::local("make the directory", &links.to, &error))?;
    }
    let options = ListOptions { recursive: true, replicas: true, limit: Some(PAGE) };
    let mut cursor = None;
    loop {
        let page = context.interruptible(client.list(&links.from, options, cursor.as_deref())).await??;
        for entry in &page.items {
            links.one(entry, &mut outcome, context)?;
        }
        cursor = page.next;
        if cursor.is_none() || context.cancel.is_cancelled() {
            break;
        }
    }
    told(outcome, context)
}

/// Returns where the site's stores lie that are directories.
async fn roots(client: &Client, context: &Context) -> Result<HashMap<StoreId, PathBuf>> {
    let stores = context.interruptible(client.all_stores()).await??;
    let root = |store: percale_api::spaces::Store| {
        let root = store.config.get("root").and_then(|root| root.as_str()).map(PathBuf::from)?;
        Some((store.id, root)).filter(|_| store.connector == "posix")
    };
    Ok(stores.into_iter().filter_map(root).collect())
}

impl Links {
    /// Makes what stands for an entry.
    fn one(&self, entry: &Entry, outcome: &mut Outcome, context: &Context) -> Result {
        let below =
            entry.path.as_str().strip_prefix(self.from.as_str()).unwrap_or_default().trim_start_matches('/');
        if !self.is_wanted(below, entry) {
            return Ok(());
        }
        let at = self.to.join(below);
        let done = match entry.kind {
            Kind::Collection => self.directory(&at).map(|()| None),
            Kind::Link => match inside(entry, &self.from) {
                Some(target) => self.link(Path::new(target), &at).map(Some),
                None => Err("it is a symbolic link that leads out of what is exported".to_owned()),
            },
            Kind::Object => match self.file_of(entry) {
                Some(file) => self.link(&file, &at).map(Some),
                None => {
                    Err("no copy of it lies in a store of this site that can be read on this computer"
                        .to_owned())
                }
            },
        };
        match done {
            Ok(None) => {}
            Ok(Some(true)) => {
                outcome.made += 1;
                if self.dry_run && !context.output.json {
                    context.output.line(format!("would link {}", at.display()))?;
                }
            }
            Ok(Some(false)) => outcome.same += 1,
            Err(why) => outcome.failed.push((entry.path.to_string(), why)),
        }
        Ok(())
    }

    /// Tells whether an entry and all collections above it are wanted.
    fn is_wanted(&self, below: &str, entry: &Entry) -> bool {
        let Some(filter) = &self.filter else { return true };
        let size = entry.content.as_ref().map_or(0, |content| content.size);
        let mut above = below.match_indices('/').filter_map(|(at, _)| below.get(..at));
        above.all(|above| filter(Candidate::new(above, true, 0)))
            && filter(Candidate::new(below, entry.kind == Kind::Collection, size))
    }

    /// Finds the file of a copy on a store of this site.
    fn file_of(&self, entry: &Entry) -> Option<PathBuf> {
        let size = entry.content.as_ref()?.size;
        let replicas = entry.replicas.iter().flatten().filter(|replica| replica.state.is_readable());
        let mut files = replicas
            .filter_map(|replica| Some(self.roots.get(&replica.store_id)?.join(replica.key.as_ref()?)));
        // A store of the same path may be another computer's, so the file has to look like the one that is meant.
        files.find(|file| {
            fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.len() == size)
                && fs::File::open(file).is_ok()
        })
    }

    fn directory(&self, at: &Path) -> Result<(), String> {
        match fs::symlink_metadata(at) {
            // Not through a link: what is made below must lie in the directory.
            Ok(meta) if meta.is_dir() => Ok(()),
            Ok(_) => Err(format!("{} is in the way and is no directory", at.display())),
            Err(_) if self.dry_run => Ok(()),
            Err(_) => fs::create_dir(at).map_err(|error| format!("cannot make {}: {error}", at.display())),
        }
    }

    /// Makes a link, and tells whether there was none like it.
    fn link(&self, file: &Path, at: &Path) -> Result<bool, String> {
        match fs::symlink_metadata(at) {
            Ok(meta) if !meta.is_symlink() => {
                return Err(format!("{} is in the way and is no link", at.display()));
            }
            Ok(_) if fs::read_link(at).is_ok_and(|leads| leads == file) => return Ok(false),
            _ => {}
        }
        if self.dry_run {
            return Ok(true);
        }
        make_link(file, at).map_err(|error| format!("cannot make {}: {error}", at.display()))?;
        Ok(true)
    }
}

/// Returns where a link leads, if that is below what is exported.
fn inside<'a>(entry: &'a Entry, root: &ObjectPath) -> Option<&'a str> {
    let target = entry.target.as_ref()?;
    target.stays_within(&entry.path, root).then_some(target.as_str())
}

/// Makes a link in place of the one that may be there, at no time without one.
fn make_link(file: &Path, at: &Path) -> io::Result<()> {
    match symlink(file, at) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        done => return done,
    }
    let name = at.file_name().unwrap_or_default().to_string_lossy();
    let beside = at.with_file_name(format!(
        ".percale-{}-{}",
        std::process::id(),
        name.chars().take(40).collect::<String>()
    ));
    symlink(file, &beside)?;
    fs::rename(&beside, at).inspect_err(|_| drop(fs::remove_file(&beside)))
}

fn told(outcome: Outcome, context: &Context) -> Result {
    let Outcome { made, same, failed } = outcome;
    if context.output.json {
        let items: Vec<_> = failed.iter().map(|(path, why)| json!({ "path": path, "detail": why })).collect();
        context.output.document(&json!({ "made": made, "same": same, "failed": items }))?;
    } else {
        for (path, why) in failed.iter().take(SHOWN) {
            context.output.talk(format!("{} {path}: {why}", context.output.paint("31", "failed:")));
        }
        context.output.talk(format!("{} made, {same} as before", count(made, "link")));
    }
    match failed.len() {
        _ if context.cancel.is_cancelled() => Err(Failure::new(ErrorCode::Interrupted, "interrupted")),
        0 => Ok(()),
        failed => {
            let message = format!("{} got no link", count(failed as u64, "item"));
            Err(Failure::new(ErrorCode::Partial, message)
                .with_hint("`percale replicate PATH --to SITE` makes copies at a site; --copy needs none."))
        }
    }
}
