//! Reads the headers of all objects below a path, whatever was read of them before.

use percale_catalog::{EntryKind, ListOptions};
use percale_core::ObjectPath;

use super::Attempt;
use super::verify::opened;
use crate::extraction::{extract, may_extract};
use crate::{OnPath as _, Result};

/// Entries in one step.
const STEP: usize = 200;

pub(super) async fn run(attempt: &Attempt, path: &ObjectPath) -> Result<()> {
    may_extract(&attempt.app, path).await?;
    let mut after = attempt.progress.after();
    loop {
        let mut options = ListOptions::default();
        options.after = after;
        options.limit = STEP;
        options.recursive = true;
        options.replicas = true;
        let page = attempt.app.catalog.list(&attempt.task.caller, path, options).await.on_path(path)?;
        let position = page.position;
        let objects = page.items.into_iter().filter(|listed| listed.entry.kind == EntryKind::Object);
        let versions: Vec<_> = objects.filter_map(|listed| opened(listed, position)).collect();
        for (version, outcome) in versions.iter().zip(extract(&attempt.app, &versions).await?) {
            match outcome {
                Ok(()) => attempt.progress.done(1, 0),
                Err(error) => attempt.failed(&version.path, "failed", &error),
            }
        }
        attempt.step(page.next.clone())?;
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}
