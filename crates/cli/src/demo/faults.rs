//! The checks of a site in trouble: a flipped byte, a crash, two writers.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use percale_api::entries::Entry;
use percale_client::put::PutOptions;
use percale_client::{Client, Outcome};
use percale_core::state::{ReplicaState, TaskState};
use percale_core::tree::RootHash;
use percale_core::{ErrorCode, ObjectPath};

use super::Demo;
use super::across::caught_up;
use super::checks::{all_done, bytes_below, deep_check, list_all, list_copies, noting, take_note};
use super::disk::blocking;
use super::fabric::{ALPS, BALTIC, COAST, NAMES};
use super::lines::{Line, seconds, size};

/// Large enough to be killed in the midst of, on any disk.
const LARGE_BYTES: u64 = 256 << 20;
/// How much of it must have arrived before the kill.
const ARRIVED_BYTES: u64 = 32 << 20;
const ARRIVAL_DEADLINE: Duration = Duration::from_secs(60);
/// Recovery may still be removing what the dead server left.
const CLEAN_DEADLINE: Duration = Duration::from_secs(30);
const ROUNDS: usize = 20;

/// Flips a byte of an object's only copy, behind the site's back.
pub async fn damage(demo: &mut Demo) -> anyhow::Result<Line> {
    let path = demo.path("far/from-alps.dat")?;
    let root = demo.expected.root_of(&path).with_context(|| format!("{path} was never put"))?;
    let file = own_file(demo, &path).await?;
    let good = demo.folder.work("good-copy");
    let (damaged, copy) = (file.clone(), good.clone());
    blocking(move || {
        fs::copy(&damaged, copy)?;
        flip(&damaged)
    })
    .await?;

    let began = Instant::now();
    let task = deep_check(demo, demo.path("far")?, false).await?;
    let found = began.elapsed();
    let items = demo.client.all_task_items(task.id).await?;
    ensure!(
        items.len() == 1 && items[0].path.ends_with(path.as_str()),
        "the check names {:?} instead of {path}",
        items.iter().map(|item| &item.path).collect::<Vec<_>>()
    );
    let state = state_at(demo, ALPS, &path).await?;
    ensure!(state == ReplicaState::Suspect, "the damaged replica is {state}");
    let refusal = match read_whole(&demo.client, &path).await {
        Ok(_) => bail!("{path} was read although it is damaged"),
        Err(error) => error,
    };
    let refused = refusal.downcast_ref::<percale_client::Error>().map(percale_client::Error::code);
    ensure!(
        matches!(refused, Some(ErrorCode::Integrity | ErrorCode::DataLost)),
        "the damaged object was refused for another reason: {refusal:#}"
    );

    demo.client.remove(&path, false, None).await?;
    let report = demo.client.put_file(&good, &path, &PutOptions::default()).await?;
    all_done(&report, 1)?;
    ensure!(
        read_whole(&demo.client, &path).await? == root,
        "{path} has another content than before the damage"
    );
    fs::remove_file(good)?;
    let refused = refused.map_or("", ErrorCode::as_str);
    Ok(Line::new("a byte of an only copy flipped on the disk → found by the check")
        .time(found)
        .note(format!("{path}: read refused ({refused}), whole again once removed and put anew"))
        .figure("found_ms", (found.as_secs_f64() * 1e3).round()))
}

/// Flips a byte of one of two copies: readers get the other one, and a check makes it whole.
pub async fn repair(demo: &mut Demo) -> anyhow::Result<Line> {
    let entries = list_copies(&demo.client, &demo.root()).await?;
    let has_both = |entry: &&Entry| {
        let good = |site: &str| {
            let mut replicas = entry.replicas.iter().flatten();
            replicas.any(|replica| replica.site == site && replica.state == ReplicaState::Good)
        };
        let size = entry.content.as_ref().map_or(0, |content| content.size);
        size > 0 && good(NAMES[ALPS]) && good(NAMES[BALTIC])
    };
    let entry = entries.iter().find(has_both).context("there is no object with two copies")?;
    let path = entry.path.clone();
    let root = demo.expected.root_of(&path).with_context(|| format!("{path} was never put"))?;
    let file = own_file(demo, &path).await?;
    let damaged = file.clone();
    blocking(move || flip(&damaged)).await?;

    // Nobody has noticed yet: the first reader does.
    let began = Instant::now();
    ensure!(read_whole(&demo.client, &path).await? == root, "{path} was read with other bytes");
    let read = began.elapsed();
    let state = state_at(demo, ALPS, &path).await?;
    ensure!(state == ReplicaState::Suspect, "the damaged copy is {state}");

    let began = Instant::now();
    let task = deep_check(demo, path.clone(), true).await?;
    let repaired = began.elapsed();
    let items = demo.client.all_task_items(task.id).await?;
    ensure!(task.state == TaskState::Succeeded, "the repair ended as {}: {items:?}", task.state);
    for site in [ALPS, BALTIC] {
        let state = state_at(demo, site, &path).await?;
        ensure!(state == ReplicaState::Good, "the copy at {} is {state} after the repair", NAMES[site]);
    }
    let file = own_file(demo, &path).await?;
    ensure!(blocking(move || hash_file(&file)).await? == root, "{path} has other bytes on the disk");
    Ok(Line::new(format!("a byte at {} flipped → read from {}, then repaired", NAMES[ALPS], NAMES[BALTIC]))
        .time(repaired)
        .note(format!("{path}: right bytes to the first reader, in {}", seconds(read)))
        .figure("read_ms", (read.as_secs_f64() * 1e3).round())
        .figure("repaired_ms", (repaired.as_secs_f64() * 1e3).round()))
}

/// Kills the server while a large put is under way.
pub async fn crash(demo: &mut Demo) -> anyhow::Result<Line> {
    let local = demo.folder.work("large.dat");
    let path = demo.path("large.dat")?;
    let to = local.clone();
    blocking(move || Ok(percale_samples::content::write_file(&to, 42, LARGE_BYTES)?)).await?;
    let (mut options, noted) = noting();
    options.state_dir = Some(demo.folder.work("client"));
    let (client, from, target) = (demo.client.clone(), local.clone(), path.clone());
    let mut put = tokio::spawn(async move { client.put_file(&from, &target, &options).await });

    // In the midst of it: bytes lie in the stage, and the put has not been answered.
    let began = Instant::now();
    let mut arrived = 0;
    while arrived < ARRIVED_BYTES {
        ensure!(!put.is_finished(), "the put ended before it could be interrupted");
        ensure!(began.elapsed() < ARRIVAL_DEADLINE, "only {arrived} bytes arrived");
        tokio::time::sleep(Duration::from_millis(2)).await;
        let stage = demo.alps().stage();
        arrived = blocking(move || bytes_below(&stage)).await?;
    }
    demo.fabric.sites[ALPS].kill().await?;
    ensure!(!put.is_finished(), "the put was answered before the kill");
    let restarted = demo.fabric.sites[ALPS].launch().await?;

    // The client waits for the site by itself and goes on.
    let resumed = Instant::now();
    let mut looks = 0;
    let report = loop {
        if put.is_finished() {
            break (&mut put).await.context("the put was cut off")??;
        }
        // Until it is acknowledged, it is not there at all.
        if let Some(entry) = demo.client.find(&path).await? {
            let whole = entry.content.as_ref().is_some_and(|content| content.size == LARGE_BYTES);
            ensure!(whole, "{path} is visible but not whole");
        }
        looks += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let resumed = resumed.elapsed();
    all_done(&report, 1)?;
    take_note(demo, &noted)?;
    let of_file = {
        let local = local.clone();
        blocking(move || hash_file(&local)).await?
    };
    ensure!(read_whole(&demo.client, &path).await? == of_file, "{path} came back with other bytes");
    demo.expected.compare(&list_all(&demo.client, &demo.root()).await?)?;

    let began = Instant::now();
    loop {
        let stage = demo.alps().stage();
        let left = blocking(move || names_below(&stage)).await?;
        if left.is_empty() {
            break;
        }
        ensure!(began.elapsed() < CLEAN_DEADLINE, "temporary files are left: {}", left.join(", "));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    fs::remove_file(local)?;
    let acknowledged = demo.expected.len();
    for site in [BALTIC, COAST] {
        caught_up(demo, site).await?;
    }
    // It has served its purpose, and who looks around afterwards wants to find scientific files.
    demo.client.remove(&path, false, None).await?;
    demo.expected.remove(&path);
    Ok(Line::new(format!("kill -9 with {} of {} arrived → serves again", size(arrived), size(LARGE_BYTES)))
        .time(restarted)
        .note(format!("the put went on by itself and ended {} later, all of its bytes right", seconds(resumed)))
        .note(format!(
            "{acknowledged} acknowledged objects there; nothing half-written seen in {looks} looks; no temporary file left"
        ))
        .note(format!("{} and {} follow it again, with all of them", NAMES[BALTIC], NAMES[COAST]))
        .figure("arrived_bytes", arrived)
        .figure("restart_ms", (restarted.as_secs_f64() * 1e3).round())
        .figure("resumed_ms", (resumed.as_secs_f64() * 1e3).round())
        .figure("objects", acknowledged as u64))
}

/// Puts two contents at one path at once, at two sites, again and again.
pub async fn two_writers(demo: &mut Demo) -> anyhow::Result<Line> {
    let folder = demo.folder.work("writers");
    fs::create_dir_all(&folder)?;
    let files = [folder.join("one"), folder.join("other")];
    // Of the same size, so that a mixture would not show by its length.
    for (seed, file) in (100..).zip(&files) {
        fs::write(file, percale_samples::content::bytes(seed, 3 << 20))?;
    }
    let roots = [RootHash::of(&fs::read(&files[0])?), RootHash::of(&fs::read(&files[1])?)];
    let began = Instant::now();
    for round in 0..ROUNDS {
        let path = demo.path(&format!("writers/round-{round:02}"))?;
        let options = PutOptions::default();
        let (one, other) = tokio::join!(
            demo.client.put_file(&files[0], &path, &options),
            demo.fabric.clients[COAST].put_file(&files[1], &path, &options)
        );
        let reports = [one?, other?];
        let winners: Vec<_> = (0..2).filter(|writer| reports[*writer].done == 1).collect();
        let [winner] = winners[..] else { bail!("{} of 2 writers won at {path}", winners.len()) };
        let loser = &reports[1 - winner];
        let Some(Outcome::Failed(error)) = loser.failures.first().map(|item| &item.outcome) else {
            bail!("the second writer at {path} was not told that it lost");
        };
        ensure!(
            matches!(
                error.code(),
                ErrorCode::Conflict | ErrorCode::AlreadyExists | ErrorCode::PreconditionFailed
            ),
            "the second writer at {path} got another error: {error}"
        );
        ensure!(
            read_whole(&demo.client, &path).await? == roots[winner],
            "{path} does not have the winner's bytes"
        );
        demo.expected.add(path, 3 << 20, roots[winner]);
    }
    let sites = format!("{} and {}", NAMES[ALPS], NAMES[COAST]);
    Ok(Line::new(format!("{ROUNDS} × at {sites} at once: one wins, one is told"))
        .time(began.elapsed())
        .figure("rounds", ROUNDS as u64))
}

/// Reads an object to its end and hashes what came.
pub async fn read_whole(client: &Client, path: &ObjectPath) -> anyhow::Result<RootHash> {
    let mut reader = client.read(path, None).await?;
    let mut hasher = percale_core::tree::TreeHasher::new();
    while let Some(bytes) = reader.next().await? {
        hasher.update(&bytes);
    }
    Ok(hasher.finish().root())
}

/// The state of the copy at a site, as the first one knows it.
async fn state_at(demo: &Demo, site: usize, path: &ObjectPath) -> anyhow::Result<ReplicaState> {
    let replicas = demo.client.stat(path).await?.replicas.unwrap_or_default();
    let replica = replicas.into_iter().find(|replica| replica.site == NAMES[site]);
    Ok(replica.with_context(|| format!("{path} has no copy at {}", NAMES[site]))?.state)
}

/// Where the first site keeps its copy.
async fn own_file(demo: &Demo, path: &ObjectPath) -> anyhow::Result<PathBuf> {
    let replicas = demo.client.stat(path).await?.replicas.unwrap_or_default();
    let replica = replicas.into_iter().find(|replica| replica.site == NAMES[ALPS]);
    let replica = replica.with_context(|| format!("{path} has no copy at {}", NAMES[ALPS]))?;
    Ok(demo.alps().place().store().join(replica.key.context("the administrator sees no key")?))
}

/// Flips one bit in the middle of a file. What the site holds may be read-only, which would be no hindrance to a failing disk.
fn flip(path: &Path) -> anyhow::Result<()> {
    let cannot = || format!("cannot damage {}", path.display());
    let metadata = fs::metadata(path).with_context(cannot)?;
    let (before, offset) = (metadata.permissions(), metadata.len() / 2);
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).with_context(cannot)?;
    let file = fs::File::options().read(true).write(true).open(path).with_context(cannot)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset)?;
    file.write_all_at(&[byte[0] ^ 0x10], offset)?;
    file.sync_all()?;
    fs::set_permissions(path, before).with_context(cannot)
}

fn hash_file(path: &Path) -> anyhow::Result<RootHash> {
    use std::io::Read;
    let mut file = fs::File::open(path)?;
    let mut hasher = percale_core::tree::TreeHasher::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hasher.finish().root()),
            read => hasher.update(&piece[..read]),
        }
    }
}

/// Names of the files below a folder; folders themselves do not count.
fn names_below(path: &Path) -> anyhow::Result<Vec<String>> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.extend(names_below(&entry.path())?);
        } else {
            names.push(entry.path().display().to_string());
        }
    }
    Ok(names)
}
