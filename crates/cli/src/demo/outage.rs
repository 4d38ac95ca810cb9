//! The checks between sites in trouble: a site that is cut off and catches up, a site that is drained.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use percale_api::peer::MemberState;
use percale_client::{Client, RetryPolicy};
use percale_core::{ErrorCode, ObjectPath};

use super::Demo;
use super::across::{FOLLOW_DEADLINE, appears, caught_up};
use super::checks::{all_done, list_all, list_copies, noting, take_note};
use super::disk::blocking;
use super::fabric::{ALPS, BALTIC, COAST, NAMES, eventually};
use super::faults::read_whole;
use super::lines::{Line, seconds};

/// What is written while a site is away.
const FILES: usize = 100;
const FILE_BYTES: u64 = 10_000;
/// Listings at the site that is cut off.
const LOOKS: usize = 5;

/// Cuts a site off, writes meanwhile, connects it again.
pub async fn outage(demo: &mut Demo) -> anyhow::Result<Line> {
    let local = demo.folder.work("outage");
    let to = local.clone();
    blocking(move || {
        let mut options = percale_samples::content::TreeOptions::default();
        options.files = FILES;
        options.min_size = FILE_BYTES;
        options.max_size = FILE_BYTES;
        Ok(percale_samples::content::write_tree(&to, &options)?)
    })
    .await?;
    caught_up(demo, BALTIC).await?;
    let own = copy_at(demo, BALTIC).await?;
    let away = demo.fabric.clients[BALTIC].with_retry(RetryPolicy::never());

    demo.fabric.network.cut(BALTIC);
    let cut = Instant::now();
    let outcome = while_cut_off(demo, &away, own.as_ref(), &local).await;
    let lasted = cut.elapsed();
    demo.fabric.network.heal(BALTIC);
    let healed = Instant::now();
    let (slowest, kept) = outcome?;
    caught_up(demo, BALTIC).await?;
    let caught_up_after = healed.elapsed();
    let missed = demo.path("outage/late")?;
    // Changes get through as before, too.
    let gets_through = async || Ok(away.make_collection(&missed, true).await.is_ok());
    eventually("a change at the site that was cut off", FOLLOW_DEADLINE, gets_through).await?;

    let name = NAMES[BALTIC];
    let reads = match kept {
        true => "and a copy of its own was read",
        false => "no copy of its own to read",
    };
    Ok(Line::new(format!("{name} cut off, {FILES} files put at {} → {name} has them", NAMES[ALPS]))
        .time(caught_up_after)
        .rate("", format!("after {} without a link", seconds(lasted)))
        .note(format!(
            "meanwhile {name} listed everything it knew ({LOOKS} times, the slowest {}), {reads}; a change was refused as \
             retryable",
            seconds(slowest)
        ))
        .figure("outage_ms", (lasted.as_secs_f64() * 1e3).round())
        .figure("caught_up_ms", (caught_up_after.as_secs_f64() * 1e3).round()))
}

/// What a site does without the others. Returns its slowest listing, and whether there was a copy of its own to read.
async fn while_cut_off(
    demo: &mut Demo,
    away: &Client,
    own: Option<&ObjectPath>,
    local: &std::path::Path,
) -> anyhow::Result<(Duration, bool)> {
    let (options, noted) = noting();
    let target = demo.path("outage")?;
    let before = list_all(away, &demo.root()).await?;
    let report = demo.client.put_tree(local, &target, &options).await?;
    all_done(&report, FILES)?;

    let mut slowest = Duration::ZERO;
    for _ in 0..LOOKS {
        let began = Instant::now();
        let entries = list_all(away, &demo.root()).await?;
        slowest = slowest.max(began.elapsed());
        ensure!(entries == before, "{} lists another tree while nobody reaches it", NAMES[BALTIC]);
    }
    if let Some(path) = own {
        let expected = demo.expected.root_of(path).with_context(|| format!("{path} is not known"))?;
        ensure!(read_whole(away, path).await? == expected, "{path} was read with other bytes");
    }
    match away.make_collection(&demo.path("outage/never")?, true).await {
        Err(error) if error.code() == ErrorCode::SiteUnavailable => {}
        Err(error) => bail!("a change at a site that is cut off was refused for another reason: {error}"),
        Ok(_) => bail!("a change was accepted without the home of the space"),
    }
    take_note(demo, &noted)?;
    Ok((slowest, own.is_some()))
}

/// Finds an object with a good copy at a site.
async fn copy_at(demo: &Demo, site: usize) -> anyhow::Result<Option<ObjectPath>> {
    let entries = list_copies(&demo.fabric.clients[site], &demo.root()).await?;
    let path = entries.into_iter().find(|entry| {
        let mut replicas = entry.replicas.iter().flatten();
        replicas.any(|replica| replica.site == NAMES[site])
    });
    Ok(path.map(|entry| entry.path))
}

/// Drains a site, sees that all know and that it goes on serving and following, and takes it back.
pub async fn drain(demo: &mut Demo) -> anyhow::Result<Line> {
    let began = Instant::now();
    set_state(demo, MemberState::Drained).await?;
    let known = began.elapsed();
    let served = serves_and_follows(demo).await;
    let began = Instant::now();
    set_state(demo, MemberState::Active).await?;
    let resumed = began.elapsed();
    served?;
    let name = NAMES[BALTIC];
    Ok(Line::new(format!("{name} drained at {}: known to all, still serves", NAMES[ALPS]))
        .time(known)
        .note(format!("taken back, known to all {} later", seconds(resumed)))
        .figure("known_ms", (known.as_secs_f64() * 1e3).round())
        .figure("resumed_ms", (resumed.as_secs_f64() * 1e3).round()))
}

/// Changes the tree at its home, and reads a copy at the second site.
async fn serves_and_follows(demo: &Demo) -> anyhow::Result<()> {
    demo.client.make_collection(&demo.path("while-drained")?, true).await?;
    appears(&demo.fabric.clients[BALTIC], &demo.path("while-drained")?).await?;
    let path = copy_at(demo, BALTIC).await?.context("the drained site has no copy")?;
    let expected = demo.expected.root_of(&path).with_context(|| format!("{path} is not known"))?;
    let read = read_whole(&demo.fabric.clients[BALTIC], &path).await?;
    ensure!(read == expected, "{path} was read with other bytes");
    Ok(())
}

/// Changes a site's state at the first one, and waits until all know.
async fn set_state(demo: &Demo, state: MemberState) -> anyhow::Result<()> {
    demo.client.change_member(NAMES[BALTIC], state).await?;
    for site in [ALPS, BALTIC, COAST] {
        let client = &demo.fabric.clients[site];
        let knows = async || Ok(client.member(NAMES[BALTIC]).await?.member.state == state);
        let what = format!("{} to hear that {} is {state:?}", NAMES[site], NAMES[BALTIC]);
        eventually(&what, FOLLOW_DEADLINE, knows).await?;
    }
    Ok(())
}
