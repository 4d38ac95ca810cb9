//! Transfers of generated files, made to be measured.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use percale_api::tasks::{NewTask, TaskSpec};
use percale_client::get::GetOptions;
use percale_client::put::PutOptions;
use percale_client::{Client, Outcome, Report};
use percale_core::state::TaskState;
use percale_core::{ErrorCode, ObjectPath};
use percale_samples::content;

use super::fit::Sample;
use crate::address::show;
use crate::commands::task;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{count, duration, size};

/// What each of many small files has.
const SMALL: u64 = 1 << 10;
/// How long the removal of the probes at the site is waited for.
const REMOVAL: Duration = Duration::from_secs(10);

/// Between which two places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// From this computer to the site in use.
    Put,
    /// From the site in use to this computer.
    Get,
    /// From one site to another, by a task.
    Between {
        /// The site that has the files.
        from: String,
        /// The site that gets them.
        to: String,
    },
}

/// Files, and bytes of all of them together.
#[derive(Debug, Clone, Copy)]
struct Shape {
    files: u64,
    bytes: u64,
}

/// Six shapes from which the three costs can be told apart: nothing much, many bytes, many files, and both.
fn shapes(files: u64, bytes: u64) -> [Shape; 6] {
    let shape = |files, bytes| Shape { files, bytes };
    [
        shape(1, SMALL),
        shape(1, bytes / 2),
        shape(1, bytes),
        shape(files / 2, files / 2 * SMALL),
        shape(files, files * SMALL),
        shape(files, bytes),
    ]
}

/// How much is transferred.
#[derive(Debug, Clone, Copy)]
pub struct Series {
    /// Bytes of the largest transfer.
    pub bytes: u64,
    /// Files of the longest one.
    pub files: u64,
    /// How often each is made.
    pub rounds: u32,
}

impl Series {
    /// Returns what the space must have room for.
    pub fn room(&self) -> u64 {
        shapes(self.files, self.bytes).iter().map(|shape| shape.bytes).sum()
    }
}

/// Probes between two places. What they leave is removed by [`Probes::remove`]; local files also when this is dropped.
pub struct Probes<'a> {
    context: &'a Context,
    client: Client,
    way: Way,
    /// Of the fabric; has all probes.
    root: ObjectPath,
    local: PathBuf,
}

impl<'a> Probes<'a> {
    /// Makes a collection below `parent` and a local directory, both of a new name.
    pub async fn prepare(
        context: &'a Context,
        client: Client,
        way: Way,
        parent: &ObjectPath,
        local: &Path,
    ) -> Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let name = format!("percale-bench-{now:x}");
        let root = parent.join(&name).map_err(|error| Failure::new(error.code(), error.to_string()))?;
        let local = local.join(name);
        std::fs::create_dir_all(&local)
            .map_err(|error| Failure::local("make the directory", &local, &error))?;
        let probes = Self { context, client, way, root, local };
        context.interruptible(probes.client.make_collection(&probes.root, true)).await??;
        Ok(probes)
    }

    /// Makes all transfers, each shape once in a round, so that what changes while they run falls on all alike. A round before the first
    /// is not counted: it opens connections and fills caches.
    pub async fn measure(&self, series: Series) -> Result<Vec<Sample>> {
        let shapes = shapes(series.files, series.bytes);
        for (number, shape) in shapes.iter().enumerate() {
            self.generate(number, *shape).await?;
            if self.way != Way::Put {
                self.place(number).await?;
            }
        }
        self.once(0, shapes[0], "warm").await?;
        let mut samples = Vec::new();
        for round in 0..series.rounds {
            for (number, shape) in shapes.iter().enumerate() {
                let took = self.once(number, *shape, &round.to_string()).await?;
                self.context.output.talk(format!(
                    "round {} of {}: {} in {}: {}",
                    round + 1,
                    series.rounds,
                    size(shape.bytes),
                    count(shape.files, "file"),
                    duration(took)
                ));
                let seconds = took.as_secs_f64();
                samples.push(Sample { files: shape.files, bytes: shape.bytes, seconds });
            }
        }
        Ok(samples)
    }

    /// Removes what was made, also after an interruption. What cannot be removed is named.
    pub async fn remove(self) -> Result {
        let removed = tokio::time::timeout(REMOVAL, self.delete(&self.root)).await;
        let why = match removed {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(failure)) => failure.to_string(),
            Err(_) => format!("not done within {}", duration(REMOVAL)),
        };
        let root = show(&self.root);
        let message = format!("cannot remove the probes at {root}: {why}");
        Err(Failure::new(ErrorCode::Partial, message)
            .with_hint(format!("`percale rm -r -y {root}` removes them.")))
    }

    fn files(&self, number: usize) -> PathBuf {
        self.local.join(format!("probe-{number}"))
    }

    fn target(&self, name: &str) -> Result<ObjectPath> {
        self.root.join(name).map_err(|error| Failure::new(error.code(), error.to_string()))
    }

    /// Writes the files of a shape; no two have the same content, and none can be compressed.
    async fn generate(&self, number: usize, shape: Shape) -> Result {
        let folder = self.files(number);
        let each = shape.bytes / shape.files;
        let make = move || {
            std::fs::create_dir(&folder)
                .map_err(|error| Failure::local("make the directory", &folder, &error))?;
            for file in 0..shape.files {
                let path = folder.join(format!("{file:07}"));
                // What the division leaves is in the first file.
                let more = if file == 0 { shape.bytes % shape.files } else { 0 };
                content::write_file(&path, (number as u64) << 32 | file, each + more)
                    .map_err(|error| Failure::local("write", &path, &error))?;
            }
            Ok(())
        };
        tokio::task::spawn_blocking(make)
            .await
            .map_err(|error| Failure::new(ErrorCode::Internal, format!("cannot make the probes: {error}")))?
    }

    /// Brings a shape to where it is read from, and nowhere else.
    async fn place(&self, number: usize) -> Result {
        let path = self.target(&format!("probe-{number}"))?;
        self.put(&self.client, number, &path).await?;
        let Way::Between { from, to: _ } = &self.way else { return Ok(()) };
        let site = self.context.interruptible(self.client.site()).await??.name;
        if site != *from {
            self.task(TaskSpec::Replicate { path: path.clone(), to: from.clone(), from: None }).await?;
            self.task(TaskSpec::Evict { path, from: site }).await?;
        }
        Ok(())
    }

    /// Makes one transfer, tells how long it took, and removes what it made.
    async fn once(&self, number: usize, shape: Shape, name: &str) -> Result<Duration> {
        let path = self.target(&format!("probe-{number}"))?;
        match &self.way {
            Way::Put => {
                let path = self.target(&format!("probe-{number}-{name}"))?;
                let began = Instant::now();
                // As a command does: with connections of its own.
                let client = self.context.client()?;
                self.warm_up(&client, shape);
                self.put(&client, number, &path).await?;
                let took = began.elapsed();
                self.delete(&path).await?;
                Ok(took)
            }
            Way::Get => {
                let back = self.local.join("back");
                let mut options = GetOptions::default();
                options.cancel = self.context.cancel.clone();
                let began = Instant::now();
                let client = self.context.client()?;
                self.warm_up(&client, shape);
                whole(client.get_tree(&path, &back, &options).await?)?;
                let took = began.elapsed();
                std::fs::remove_dir_all(&back).map_err(|error| Failure::local("remove", &back, &error))?;
                Ok(took)
            }
            Way::Between { from, to } => {
                let spec =
                    TaskSpec::Replicate { path: path.clone(), to: to.clone(), from: Some(from.clone()) };
                let took = self.task(spec).await?;
                self.task(TaskSpec::Evict { path, from: to.clone() }).await?;
                Ok(took)
            }
        }
    }

    fn warm_up(&self, client: &Client, shape: Shape) {
        if shape.bytes >= crate::commands::transfer::BULK {
            client.warm_up();
        }
    }

    async fn put(&self, client: &Client, number: usize, path: &ObjectPath) -> Result {
        let mut options = PutOptions::default();
        options.cancel = self.context.cancel.clone();
        whole(client.put_tree(&self.files(number), path, &options).await?)
    }

    /// Has a site do something; tells how long the site took, from accepting it to its end.
    async fn task(&self, spec: TaskSpec) -> Result<Duration> {
        let new = NewTask { label: Some("bench".to_owned()), ..NewTask::new(spec) };
        let task = self.context.interruptible(self.client.submit(&new)).await??;
        let quiet = Context { output: self.context.output.silent(), ..self.context.clone() };
        let id = task.id;
        let ended = match task::attach(&quiet, &self.client, task, "probing", None).await {
            Err(failure) if self.context.cancel.is_cancelled() => {
                // Nobody wants it any more, and what it writes would be in the way of the removal.
                let _ = self.client.cancel_task(id).await;
                return Err(failure);
            }
            ended => ended?,
        };
        task::outcome(&quiet, &self.client, &ended).await?;
        Ok(ended.changed.since(ended.created))
    }

    /// Removes a collection at the site; goes on after Ctrl-C.
    async fn delete(&self, path: &ObjectPath) -> Result {
        let spec = TaskSpec::Delete { path: path.clone() };
        let new = NewTask { label: Some("bench".to_owned()), ..NewTask::new(spec) };
        let mut task = self.client.submit(&new).await?;
        while !task.state.is_final() {
            tokio::time::sleep(Duration::from_millis(50)).await;
            task = self.client.task(task.id).await?;
        }
        match task.state {
            TaskState::Succeeded => Ok(()),
            state => Err(Failure::new(ErrorCode::Partial, format!("task {} is {state}", task.id))
                .with_hint(format!("`percale task show {}` says more.", task.id))),
        }
    }
}

impl Drop for Probes<'_> {
    fn drop(&mut self) {
        // A directory of our own, with nothing in it that is wanted.
        let _ = std::fs::remove_dir_all(&self.local);
    }
}

/// A transfer counts only if all of it was made.
fn whole(mut report: Report) -> Result {
    if report.interrupted {
        return Err(Failure::new(ErrorCode::Interrupted, "interrupted"));
    }
    if let Some(item) = report.failures.pop()
        && let Outcome::Failed(error) = item.outcome
    {
        return Err(Failure::from(error).when(format!("cannot probe with {}", item.to)));
    }
    Ok(())
}
