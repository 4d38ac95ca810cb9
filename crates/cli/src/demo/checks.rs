//! The checks of a site at work.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use percale_api::access::NewGrant;
use percale_api::entries::{Entry, Kind};
use percale_api::spaces::{Layout, NewSpace, NewStore};
use percale_api::tasks::{NewTask, Task, TaskSpec};
use percale_client::get::GetOptions;
use percale_client::put::PutOptions;
use percale_client::{Client, Item, ListOptions, Outcome, Report};
use percale_core::ObjectPath;
use percale_core::access::Permission;
use percale_core::path::SpaceName;
use percale_core::state::TaskState;
use percale_core::tree::RootHash;

use super::Demo;
use super::disk::{self, blocking};
use super::fabric::{ALPS, Fabric};
use super::lines::{Line, mb_per_s, rate, size};
use super::sources::Origin;

const STORE: &str = "disk";
const TASK_DEADLINE: Duration = Duration::from_secs(600);
const SMALL_FILES: usize = 2000;
const SMALL_SIZE: u64 = 10_000;
/// Enough to know the time of one, without spending half of the demo on it.
const SMALL_SAMPLE: u32 = 200;

/// What was acknowledged, with its size and hash.
#[derive(Debug, Default)]
pub struct Expected(BTreeMap<ObjectPath, (u64, RootHash)>);

impl Expected {
    /// Notes an object.
    pub fn add(&mut self, path: ObjectPath, size: u64, root: RootHash) {
        self.0.insert(path, (size, root));
    }

    /// Takes an object out.
    pub fn remove(&mut self, path: &ObjectPath) {
        self.0.remove(path);
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the largest object below a collection.
    pub fn largest(&self, below: &str) -> Option<&ObjectPath> {
        let inside = self.0.iter().filter(|(path, _)| path.as_str().starts_with(below));
        inside.max_by_key(|(_, (size, _))| *size).map(|(path, _)| path)
    }

    /// Returns the hash of an object.
    pub fn root_of(&self, path: &ObjectPath) -> Option<RootHash> {
        self.0.get(path).map(|(_, root)| *root)
    }

    /// Compares with what the site has: the same objects, no more and no fewer, each with its size and hash.
    pub fn compare(&self, entries: &[Entry]) -> anyhow::Result<()> {
        let mut found = 0;
        for entry in entries.iter().filter(|entry| entry.kind == Kind::Object) {
            let (size, root) =
                self.0.get(&entry.path).with_context(|| format!("{} was never acknowledged", entry.path))?;
            let content = entry.content.as_ref().with_context(|| format!("{} has no content", entry.path))?;
            ensure!(
                content.size == *size && content.root == Some(*root),
                "{} has another content",
                entry.path
            );
            found += 1;
        }
        ensure!(
            found == self.0.len(),
            "{} of {} acknowledged objects are gone",
            self.0.len() - found,
            self.0.len()
        );
        Ok(())
    }
}

/// Makes a store at each site, and a space of its own for this run, at home at the first one; the administrators of the
/// others may write to it.
///
/// # Errors
/// A site refuses.
pub async fn prepare_space(fabric: &Fabric) -> anyhow::Result<SpaceName> {
    for (site, client) in fabric.sites.iter().zip(&fabric.clients) {
        if !client.all_stores().await?.iter().any(|store| store.name == STORE) {
            let store = NewStore {
                name: STORE.to_owned(),
                connector: "posix".to_owned(),
                layout: Layout::Managed,
                config: serde_json::json!({ "root": site.place().store() }),
                secret: None,
            };
            client.add_store(&store).await?;
        }
    }
    let home = &fabric.clients[ALPS];
    let taken = home.all_spaces().await?;
    let mut number = 1;
    let name = loop {
        let text = if number == 1 { "demo".to_owned() } else { format!("demo-{number}") };
        let name: SpaceName = text.parse()?;
        if !taken.iter().any(|space| space.name == name) {
            break name;
        }
        number += 1;
    };
    home.create_space(&NewSpace { store: Some(STORE.to_owned()), ..NewSpace::new(name.clone()) }).await?;
    for (site, client) in fabric.sites.iter().zip(&fabric.clients).skip(1) {
        let user = client.whoami().await?.user.context("the administrator's token names nobody")?;
        let subject = format!("{user}@site:{}", site.name()).parse()?;
        let grant = NewGrant { subject, permission: Permission::Write };
        home.grant(&ObjectPath::of_space(&name), &grant).await?;
    }
    Ok(name)
}

/// Puts every file of the sources.
pub async fn ingest(demo: &mut Demo) -> anyhow::Result<Line> {
    let (files, bytes) = totals(demo);
    let all = files.clone();
    // Read once before, so that neither the put nor the disk is measured with cold files.
    let _ = blocking(move || disk::read_all(&all)).await?;
    let folder = demo.folder.work("");
    let disk_took = blocking(move || disk::write_and_flush(&folder, bytes)).await?;

    let began = Instant::now();
    for source in demo.sources.clone() {
        let target = demo.path(&source.name)?;
        let (options, noted) = noting();
        let report = demo.client.put_tree(&source.root, &target, &options).await?;
        all_done(&report, source.files.len())?;
        take_note(demo, &noted)?;
    }
    let took = began.elapsed();

    let mut formats = BTreeMap::new();
    for source in &demo.sources {
        for (format, count) in &source.formats {
            *formats.entry(*format).or_insert(0) += count;
        }
    }
    let formats: Vec<_> = formats.iter().map(|(format, count)| format!("{count} {format}")).collect();
    let origin = match demo.sources.first().map(|source| source.origin) {
        Some(Origin::Own) => "your own files".to_owned(),
        Some(Origin::Package) => {
            let names: Vec<_> = demo.sources.iter().map(|source| source.name.as_str()).collect();
            format!("real files of {}", names.join(", "))
        }
        _ => "look-alikes made here, since no package with real files is installed".to_owned(),
    };
    Ok(Line::new(format!("{} files, {} → percale:/{}", files.len(), size(bytes), demo.space))
        .time(took)
        .rate(rate(bytes, took), format!("disk alone, one file, one fsync: {}", rate(bytes, disk_took)))
        .note(format!("{origin}: {}", formats.join(", ")))
        .figure("files", files.len() as u64)
        .figure("bytes", bytes)
        .figure("put_mb_per_s", mb_per_s(bytes, took))
        .figure("disk_mb_per_s", mb_per_s(bytes, disk_took)))
}

/// Lists everything.
pub async fn listing(demo: &mut Demo) -> anyhow::Result<Line> {
    let began = Instant::now();
    let entries = list_all(&demo.client, &demo.root()).await?;
    let took = began.elapsed();
    demo.expected.compare(&entries)?;
    let per_second = entries.len() as f64 / took.as_secs_f64().max(1e-9);
    Ok(Line::new(format!("{} entries, each with size, hash and time", entries.len()))
        .time(took)
        .rate(format!("{per_second:.0}/s"), "")
        .figure("entries", entries.len() as u64))
}

/// Gets everything back and compares every byte.
pub async fn read_back(demo: &mut Demo) -> anyhow::Result<Line> {
    let (files, bytes) = totals(demo);
    let (all, folder) = (files.clone(), demo.folder.work(""));
    let copy_took = blocking(move || disk::copy_all(&all, &folder)).await?;
    let back = demo.folder.work("back");
    let began = Instant::now();
    for source in &demo.sources {
        let target = demo.path(&source.name)?;
        let report = demo.client.get_tree(&target, &back.join(&source.name), &GetOptions::default()).await?;
        all_done(&report, source.files.len())?;
    }
    let took = began.elapsed();
    let sources = demo.sources.clone();
    let compared = blocking(move || {
        let mut compared = 0;
        for source in &sources {
            for path in &source.files {
                let got = back.join(&source.name).join(path.strip_prefix(&source.root)?);
                ensure!(same_bytes(path, &got)?, "{} came back with other bytes", path.display());
                compared += 1;
            }
        }
        fs::remove_dir_all(&back)?;
        Ok(compared)
    })
    .await?;
    ensure!(compared == files.len(), "only {compared} of {} files came back", files.len());
    Ok(Line::new(format!("{compared} files got, byte for byte the same as the originals"))
        .time(took)
        .rate(rate(bytes, took), format!("cp of the same files: {}", rate(bytes, copy_took)))
        .figure("files", compared as u64)
        .figure("get_mb_per_s", mb_per_s(bytes, took))
        .figure("cp_mb_per_s", mb_per_s(bytes, copy_took)))
}

/// Has the sites read and hash every copy.
pub async fn verify(demo: &mut Demo) -> anyhow::Result<Line> {
    let entries = list_copies(&demo.client, &demo.root()).await?;
    let (mut copies, mut bytes, mut sites) = (0, 0, BTreeSet::new());
    for entry in &entries {
        let replicas = entry.replicas.as_deref().unwrap_or_default();
        copies += replicas.len() as u64;
        bytes += entry.content.as_ref().map_or(0, |content| content.size * replicas.len() as u64);
        sites.extend(replicas.iter().map(|replica| replica.site.as_str()));
    }
    ensure!(copies >= demo.expected.len() as u64, "{copies} copies of {} objects", demo.expected.len());
    let began = Instant::now();
    let task = deep_check(demo, demo.root(), false).await?;
    let took = began.elapsed();
    ensure!(task.state == TaskState::Succeeded, "the task ended as {}: {:?}", task.state, task.problem);
    ensure!(
        task.progress.items_done == copies && task.progress.items_failed == 0,
        "{} good, {} not, of {copies}",
        task.progress.items_done,
        task.progress.items_failed
    );
    let sites: Vec<_> = sites.into_iter().collect();
    Ok(Line::new(format!("{copies} copies at {} re-read and hashed: all good", sites.join(", ")))
        .time(took)
        .rate(rate(bytes, took), "each by the site that has it")
        .figure("good", copies)
        .figure("verify_mb_per_s", mb_per_s(bytes, took)))
}

/// Puts many small files.
pub async fn small_files(demo: &mut Demo) -> anyhow::Result<Line> {
    let (local, folder) = (demo.folder.work("small"), demo.folder.work(""));
    let from = local.clone();
    let alone = blocking(move || {
        let mut options = percale_samples::content::TreeOptions::default();
        options.files = SMALL_FILES;
        options.min_size = SMALL_SIZE;
        options.max_size = SMALL_SIZE;
        percale_samples::content::write_tree(&from, &options)?;
        disk::create_small(&folder, SMALL_SAMPLE, usize::try_from(SMALL_SIZE)?)
    })
    .await?;
    let target = demo.path("small")?;
    let (options, noted) = noting();
    let began = Instant::now();
    let report = demo.client.put_tree(&local, &target, &options).await?;
    let took = began.elapsed();
    all_done(&report, SMALL_FILES)?;
    take_note(demo, &noted)?;
    let per_second = SMALL_FILES as f64 / took.as_secs_f64();
    let disk_per_second = 1.0 / alone.as_secs_f64().max(1e-9);
    Ok(Line::new(format!("{SMALL_FILES} × {} put, durable", size(SMALL_SIZE)))
        .time(took)
        .rate(
            format!("{per_second:.0} files/s"),
            format!("disk alone, an fsync each: {disk_per_second:.0} files/s"),
        )
        .figure("files", SMALL_FILES as u64)
        .figure("put_files_per_s", per_second.round())
        .figure("disk_files_per_s", disk_per_second.round()))
}

/// Makes a backup while the site serves, and verifies it.
pub async fn backup(demo: &mut Demo) -> anyhow::Result<Line> {
    let file = demo.folder.work("backup.pcb");
    let began = Instant::now();
    let write = demo
        .alps()
        .command(&["admin", "backup", "--config"])?
        .arg(demo.alps().place().config())
        .arg(&file)
        .output();
    succeeded(&write.await?)?;
    let took = began.elapsed();
    let verify = demo.alps().command(&["admin", "backup", "--verify"])?.arg(&file).output();
    succeeded(&verify.await?)?;
    let bytes = {
        let file = file.clone();
        blocking(move || bytes_below(&file)).await?
    };
    ensure!(bytes > 0, "the backup is empty");
    let entries = list_all(&demo.client, &demo.root()).await?;
    demo.expected.compare(&entries)?;
    Ok(Line::new(format!(
        "catalog of {} entries saved while serving, verified: {}",
        entries.len(),
        size(bytes)
    ))
    .time(took)
    .figure("bytes", bytes))
}

fn succeeded(output: &std::process::Output) -> anyhow::Result<()> {
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "percale admin backup ended with {}: {}", output.status, said.trim());
    Ok(())
}

/// Verifies every copy below a path, with repairs if that is wanted, and waits for the end.
///
/// # Errors
/// The task is refused or does not end. What it finds is in its progress and items.
pub async fn deep_check(demo: &Demo, path: ObjectPath, repair: bool) -> anyhow::Result<Task> {
    run_task(demo, TaskSpec::Verify { path, repair, unverified: false }).await
}

/// Submits a task at the first site and waits for its end, wherever it works.
///
/// # Errors
/// The task is refused, or does not end. How it ended is in its state.
pub async fn run_task(demo: &Demo, spec: TaskSpec) -> anyhow::Result<Task> {
    let began = Instant::now();
    let new = NewTask { label: Some("demo".to_owned()), ..NewTask::new(spec) };
    let mut task = demo.client.submit(&new).await?;
    while !task.state.is_final() {
        if began.elapsed() > TASK_DEADLINE {
            bail!("the task does not end: {:?}", task.progress);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        task = demo.client.task(task.id).await?;
    }
    Ok(task)
}

/// Lists everything below a path, as a site sees it.
pub async fn list_all(client: &Client, path: &ObjectPath) -> anyhow::Result<Vec<Entry>> {
    list(client, path, false).await
}

/// The same, with the copies of each object.
pub async fn list_copies(client: &Client, path: &ObjectPath) -> anyhow::Result<Vec<Entry>> {
    list(client, path, true).await
}

async fn list(client: &Client, path: &ObjectPath, replicas: bool) -> anyhow::Result<Vec<Entry>> {
    let options = ListOptions { recursive: true, replicas, limit: Some(10_000) };
    let mut entries = Vec::new();
    let mut cursor = None;
    loop {
        let page = client.list(path, options, cursor.as_deref()).await?;
        entries.extend(page.items);
        match page.next {
            Some(next) => cursor = Some(next),
            None => return Ok(entries),
        }
    }
}

/// What a put acknowledged, as it is told.
pub type Noted = Arc<Mutex<Vec<(String, u64, RootHash)>>>;

/// Returns options of a put that notes what is acknowledged.
pub fn noting() -> (PutOptions, Noted) {
    let noted = Noted::default();
    let mut options = PutOptions::default();
    let notes = noted.clone();
    options.on_item = Some(Arc::new(move |item: &Item| {
        if let Outcome::Done { root: Some(root), .. } = &item.outcome {
            let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
            notes.push((item.to.clone(), item.bytes, *root));
        }
    }));
    (options, noted)
}

/// Moves what was noted to what must be there.
pub fn take_note(demo: &mut Demo, noted: &Noted) -> anyhow::Result<()> {
    for (path, size, root) in noted.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        demo.expected.add(ObjectPath::parse(&path)?, size, root);
    }
    Ok(())
}

/// Fails unless every file was transferred.
pub fn all_done(report: &Report, files: usize) -> anyhow::Result<()> {
    if let Some(Item { to, outcome: Outcome::Failed(error), .. }) = report.failures.first() {
        bail!("{} failed, the first one {to}: {error}", report.failed);
    }
    ensure!(report.done == files as u64, "{} of {files} files were transferred", report.done);
    Ok(())
}

fn totals(demo: &Demo) -> (Vec<PathBuf>, u64) {
    let files = demo.sources.iter().flat_map(|source| source.files.iter().cloned()).collect();
    (files, demo.sources.iter().map(|source| source.bytes).sum())
}

fn same_bytes(one: &std::path::Path, other: &std::path::Path) -> anyhow::Result<bool> {
    use std::io::Read;
    let open = |path: &std::path::Path| {
        fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))
    };
    let (mut one, mut other) = (open(one)?, open(other)?);
    let size = one.metadata()?.len();
    if size != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut rest = size;
    while rest > 0 {
        let now = usize::try_from(rest).unwrap_or(left.len()).min(left.len());
        one.read_exact(&mut left[..now])?;
        other.read_exact(&mut right[..now])?;
        if left[..now] != right[..now] {
            return Ok(false);
        }
        rest -= now as u64;
    }
    Ok(true)
}

/// Bytes of a file, or of all files below a folder.
pub fn bytes_below(path: &std::path::Path) -> anyhow::Result<u64> {
    let metadata = match fs::symlink_metadata(path) {
        // It may go while we look.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        other => other?,
    };
    if !metadata.is_dir() {
        return Ok(metadata.len());
    }
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        bytes += bytes_below(&entry?.path())?;
    }
    Ok(bytes)
}
