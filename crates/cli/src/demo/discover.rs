//! The check of finding: what stands in the headers of the files, asked for at a site that has none of them.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Context, ensure};
use percale_api::attributes::Source;
use percale_api::tasks::TaskSpec;
use percale_client::{Client, Search};
use percale_core::state::TaskState;
use percale_core::{AttributeValue, ObjectPath};

use super::Demo;
use super::across::FOLLOW_DEADLINE;
use super::checks::run_task;
use super::fabric::{ALPS, BALTIC, NAMES, eventually};
use super::lines::Line;

/// Times that one thing is searched for; the half of them took less than what is shown.
const QUESTIONS: usize = 21;

/// Reads the headers of all files, and finds them at the first site and at another one.
pub async fn search(demo: &mut Demo) -> anyhow::Result<Line> {
    let began = Instant::now();
    let task = run_task(demo, TaskSpec::Extract { path: demo.root() }).await?;
    let took = began.elapsed();
    let has_ended = matches!(task.state, TaskState::Succeeded | TaskState::Partial);
    ensure!(has_ended, "the task ended as {}: {:?}", task.state, task.problem);
    let (home, other) = (&demo.fabric.clients[ALPS], &demo.fabric.clients[BALTIC]);
    let all = format!("format:* path:{}", demo.root());
    let wanted = found(home, &all).await?;
    ensure!(!wanted.is_empty(), "no header was read");
    let mut attributes = 0;
    let mut question = None;
    for path in &wanted {
        let said = home.attributes(path).await?;
        let said = said.iter().filter(|one| one.source == Source::Header);
        for one in said {
            attributes += 1;
            if let (Some(units), [AttributeValue::Text(_)]) =
                (one.name.as_str().strip_suffix(".units"), one.values.as_slice())
            {
                question.get_or_insert_with(|| format!("`{units}.units`:*"));
            }
        }
    }
    eventually("the same at the other site", FOLLOW_DEADLINE, async || {
        Ok(found(other, &all).await? == wanted)
    })
    .await?;
    let question = format!("{} path:{}", question.unwrap_or_else(|| "format:*".into()), demo.root());
    let mut times = Vec::with_capacity(QUESTIONS);
    let mut last = BTreeSet::new();
    for _ in 0..QUESTIONS {
        let began = Instant::now();
        last = found(other, &question).await?;
        times.push(began.elapsed());
    }
    ensure!(!last.is_empty() && last.is_subset(&wanted), "{question} finds something else");
    times.sort_unstable();
    let half = times.get(QUESTIONS / 2).context("nothing was asked")?.as_secs_f64() * 1000.0;
    let text = format!(
        "{attributes} attributes out of {} headers, found at {} as at {}",
        wanted.len(),
        NAMES[BALTIC],
        NAMES[ALPS]
    );
    Ok(Line::new(text)
        .time(took)
        .rate(format!("{:.0} headers/s", task.progress.items_done as f64 / took.as_secs_f64()), "")
        .note(format!("{question}: {} found at {} in {half:.1} ms", last.len(), NAMES[BALTIC]))
        .figure("headers", wanted.len() as u64)
        .figure("attributes", attributes)
        .figure("search_ms", half))
}

async fn found(client: &Client, query: &str) -> anyhow::Result<BTreeSet<ObjectPath>> {
    let (mut found, mut cursor) = (BTreeSet::new(), None);
    loop {
        let page =
            match client.search(&Search { query, cursor: cursor.as_deref(), ..Search::default() }).await {
                Ok(page) => page,
                // Nothing that is known here has such an attribute yet.
                Err(error) if error.code() == percale_core::ErrorCode::InvalidRequest => return Ok(found),
                Err(error) => return Err(error.into()),
            };
        found.extend(page.items.into_iter().map(|found| found.entry.path));
        cursor = page.next;
        if cursor.is_none() {
            return Ok(found);
        }
    }
}
