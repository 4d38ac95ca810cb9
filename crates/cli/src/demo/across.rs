//! The checks between sites at peace: the same tree everywhere, reading and writing far from the bytes, further copies.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use percale_api::entries::Kind;
use percale_api::tasks::TaskSpec;
use percale_client::Client;
use percale_client::get::GetOptions;
use percale_client::put::hash_local;
use percale_core::ObjectPath;
use percale_core::state::{ReplicaState, TaskState};
use percale_core::tree::RootHash;

use super::Demo;
use super::checks::{all_done, list_all, list_copies, noting, run_task, take_note};
use super::disk::blocking;
use super::fabric::{ALPS, BALTIC, COAST, Fabric, NAMES, eventually};
use super::lines::{Line, mb_per_s, rate, seconds, size};
use super::network::LinkOptions;

/// Enough for a link to be filled for a while.
const FAR_BYTES: u64 = 64 << 20;
/// Within this a follower must have what its home has.
pub const FOLLOW_DEADLINE: Duration = Duration::from_secs(30);

/// Says how the sites are and how they reach each other.
pub async fn sites(fabric: &Fabric, link: LinkOptions, took: Duration) -> anyhow::Result<Line> {
    let engine = if fabric.postgres.is_some() { "PostgreSQL" } else { "SQLite" };
    let text = format!("{} sites, {engine}, TLS by their own authorities, joined", NAMES.len());
    let mut line = Line::new(text).time(took).rate("", link_text(link));
    let known = fabric.clients[ALPS].all_sites().await?;
    for (site, name) in fabric.sites.iter().zip(NAMES) {
        let status = known.iter().find(|known| known.member.name == name);
        let status = status.with_context(|| format!("{} does not know {name}", NAMES[ALPS]))?;
        let way = match (status.route.as_str(), status.rtt_ms) {
            ("self", _) => String::new(),
            ("reverse", rtt) => format!("only dials out, reached over its own connections, {}", millis(rtt)),
            (route, rtt) => format!("{route}, {}", millis(rtt)),
        };
        line = line.note(format!("● {name:<6}  {}  {way}", site.url()));
        if let Some(rtt) = status.rtt_ms {
            line = line.figure(&format!("{name}_rtt_ms"), (rtt * 10.0).round() / 10.0);
        }
    }
    Ok(line)
}

fn millis(rtt: Option<f64>) -> String {
    let answer = |rtt: f64| format!("first answer in {rtt:.0} ms, with opening a connection");
    rtt.map_or_else(|| "not measured yet".to_owned(), answer)
}

fn link_text(link: LinkOptions) -> String {
    format!("emulated: {} Mbit/s, {} each way", link.bits_per_second / 1_000_000, seconds(link.delay))
}

/// What the link lets through, to stand beside a rate.
fn limit(demo: &Demo) -> String {
    format!("link: {:.0} MB/s", demo.link.mb_per_s())
}

/// Waits until a site has exactly what must be there. Returns how long that took.
///
/// # Errors
/// It does not get there in time; says what is missing or too much.
pub async fn caught_up(demo: &Demo, site: usize) -> anyhow::Result<Duration> {
    let (began, root) = (Instant::now(), demo.root());
    loop {
        let differs = match list_all(&demo.fabric.clients[site], &root).await {
            Ok(entries) => demo.expected.compare(&entries).err(),
            // The space itself may not be known yet.
            Err(error) => Some(error),
        };
        match differs {
            None => return Ok(began.elapsed()),
            Some(error) if began.elapsed() > FOLLOW_DEADLINE => {
                return Err(error.context(format!("{} does not follow", NAMES[site])));
            }
            Some(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Lists what was ingested at one site at the others.
pub async fn followers(demo: &mut Demo) -> anyhow::Result<Line> {
    let began = Instant::now();
    for site in [BALTIC, COAST] {
        caught_up(demo, site).await?;
    }
    let took = began.elapsed();
    let began = Instant::now();
    let entries = list_all(&demo.fabric.clients[COAST], &demo.root()).await?.len();
    let listing = began.elapsed();
    ensure!(entries > 0, "{} lists nothing", NAMES[COAST]);
    let per_second = entries as f64 / listing.as_secs_f64().max(1e-9);
    Ok(Line::new(format!("the same {entries} entries at {} and {}", NAMES[BALTIC], NAMES[COAST]))
        .time(took)
        .rate(format!("{per_second:.0}/s"), "listed from their own rows, without asking anybody")
        .figure("entries", entries as u64)
        .figure("list_ms", (listing.as_secs_f64() * 1e3).round()))
}

/// Reads at one site what lies at another.
pub async fn read(demo: &mut Demo) -> anyhow::Result<Line> {
    let path = demo.path("far/from-alps.dat")?;
    let root = put_large(demo, ALPS, &path, 7).await?;
    let reader = &demo.fabric.clients[COAST];
    appears(reader, &path).await?;
    ensure!(sites_of(reader, &path).await? == [NAMES[ALPS]], "{path} is not at {} alone", NAMES[ALPS]);
    let took = get_and_compare(demo, COAST, &path, root).await?;
    Ok(Line::new(format!("{} at {} read at {}, hash equal", size(FAR_BYTES), NAMES[ALPS], NAMES[COAST]))
        .time(took)
        .rate(rate(FAR_BYTES, took), limit(demo))
        .figure("mb_per_s", mb_per_s(FAR_BYTES, took))
        .figure("link_mb_per_s", demo.link.mb_per_s()))
}

/// Writes at a site that is not the home of the space.
pub async fn write(demo: &mut Demo) -> anyhow::Result<Line> {
    let path = demo.path("far/from-coast.dat")?;
    let began = Instant::now();
    let root = put_large(demo, COAST, &path, 8).await?;
    let took = began.elapsed();
    // The home committed before the writer was told.
    let at_home = demo.client.find(&path).await?;
    let at_home = at_home.with_context(|| format!("{path} was acknowledged and is not at its home"))?;
    ensure!(
        at_home.content.and_then(|content| content.root) == Some(root),
        "{path} has another content at its home"
    );
    let acknowledged = Instant::now();
    appears(&demo.fabric.clients[BALTIC], &path).await?;
    let elsewhere = acknowledged.elapsed();
    ensure!(
        sites_of(&demo.client, &path).await? == [NAMES[COAST]],
        "{path} is not at {} alone",
        NAMES[COAST]
    );
    let back = get_and_compare(demo, ALPS, &path, root).await?;
    Ok(Line::new(format!("{} written at {}, at once at {}", size(FAR_BYTES), NAMES[COAST], NAMES[ALPS]))
        .time(took)
        .rate(rate(FAR_BYTES, took), "the bytes stay where they were written")
        .note(format!(
            "at {} {} later; read at {}, over connections that {} dialled, at {} ({})",
            NAMES[BALTIC],
            seconds(elsewhere),
            NAMES[ALPS],
            NAMES[COAST],
            rate(FAR_BYTES, back),
            limit(demo)
        ))
        .figure("put_mb_per_s", mb_per_s(FAR_BYTES, took))
        .figure("read_mb_per_s", mb_per_s(FAR_BYTES, back))
        .figure("elsewhere_ms", (elsewhere.as_secs_f64() * 1e3).round()))
}

/// Puts a large object at a site and returns its hash.
async fn put_large(demo: &mut Demo, site: usize, path: &ObjectPath, seed: u64) -> anyhow::Result<RootHash> {
    let local = demo.folder.work("large.dat");
    let to = local.clone();
    let root = blocking(move || {
        percale_samples::content::write_file(&to, seed, FAR_BYTES)?;
        Ok(hash_local(&to)?)
    })
    .await?;
    let (options, noted) = noting();
    let report = demo.fabric.clients[site].put_file(&local, path, &options).await?;
    all_done(&report, 1)?;
    take_note(demo, &noted)?;
    fs::remove_file(local)?;
    Ok(root)
}

/// Gets an object at a site, compares its hash, and returns how long the get took.
async fn get_and_compare(
    demo: &Demo,
    site: usize,
    path: &ObjectPath,
    root: RootHash,
) -> anyhow::Result<Duration> {
    let local = demo.folder.work("got.dat");
    let began = Instant::now();
    let report = demo.fabric.clients[site].get_file(path, &local, &GetOptions::default()).await?;
    let took = began.elapsed();
    all_done(&report, 1)?;
    let of_file = {
        let local = local.clone();
        blocking(move || Ok(hash_local(&local)?)).await?
    };
    ensure!(of_file == root, "{path} came to {} with other bytes", NAMES[site]);
    fs::remove_file(local)?;
    Ok(took)
}

/// Waits until a site has an object.
pub async fn appears(client: &Client, path: &ObjectPath) -> anyhow::Result<()> {
    let is_there = async || Ok(client.find(path).await?.is_some());
    eventually(&format!("{path} to appear at {}", client.url()), FOLLOW_DEADLINE, is_there).await
}

/// The sites with a good copy of an object, by name.
pub async fn sites_of(client: &Client, path: &ObjectPath) -> anyhow::Result<Vec<String>> {
    let replicas = client.stat(path).await?.replicas.unwrap_or_default();
    let good = replicas.into_iter().filter(|replica| replica.state == ReplicaState::Good);
    let mut sites: Vec<String> = good.map(|replica| replica.site).collect();
    sites.sort();
    Ok(sites)
}

/// Has a site make copies of everything below a path, and waits until it has.
///
/// # Errors
/// The task is refused, failed, or does not end.
pub async fn replicate_to(demo: &Demo, site: usize, path: &ObjectPath) -> anyhow::Result<()> {
    let to = NAMES[site].to_owned();
    // Asked for at the first site, which hands it over to the one that gets the bytes.
    let task = run_task(demo, TaskSpec::Replicate { path: path.clone(), to, from: None }).await?;
    ensure!(
        task.state == TaskState::Succeeded,
        "the replication ended as {}: {:?} {:?}",
        task.state,
        task.progress,
        task.problem
    );
    Ok(())
}

/// Makes second copies of what was ingested at another site.
pub async fn replicate(demo: &mut Demo) -> anyhow::Result<Line> {
    let path = demo.path(&demo.sources.first().context("nothing was ingested")?.name)?;
    let began = Instant::now();
    replicate_to(demo, BALTIC, &path).await?;
    let took = began.elapsed();
    let (mut objects, mut bytes) = (0_u64, 0);
    for entry in list_copies(&demo.client, &path).await?.iter().filter(|entry| entry.kind == Kind::Object) {
        let has_both = [ALPS, BALTIC].iter().all(|site| {
            let mut replicas = entry.replicas.iter().flatten();
            replicas.any(|replica| replica.site == NAMES[*site] && replica.state == ReplicaState::Good)
        });
        ensure!(has_both, "{} has no good copy at both sites", entry.path);
        objects += 1;
        bytes += entry.content.as_ref().map_or(0, |content| content.size);
    }
    ensure!(objects > 0, "nothing lies below {path}");
    Ok(Line::new(format!("{objects} second copies at {}, {}, each verified", NAMES[BALTIC], size(bytes)))
        .time(took)
        .rate(rate(bytes, took), limit(demo))
        .figure("copies", objects)
        .figure("mb_per_s", mb_per_s(bytes, took))
        .figure("link_mb_per_s", demo.link.mb_per_s()))
}
