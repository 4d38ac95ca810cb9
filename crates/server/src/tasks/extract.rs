//! Reads the headers of all objects below a path, whatever was read of them before.

use percale_catalog::EntryKind;
use percale_core::ObjectPath;

use super::Attempt;
use super::replicate::space_of;
use super::verify::opened;
use crate::Result;
use crate::extraction::{extract, may_extract};

/// Entries in one step.
const STEP: usize = 200;

pub(super) async fn run(attempt: &Attempt, path: &ObjectPath) -> Result<()> {
    may_extract(&attempt.app, path).await?;
    let space = space_of(attempt, path).await?;
    let mut after = attempt.progress.after();
    loop {
        let page = attempt.list(path, after, STEP).await?;
        let position = page.position;
        let objects = page.items.into_iter().filter(|listed| listed.entry.kind == EntryKind::Object);
        let versions: Vec<_> = objects.filter_map(|listed| opened(listed, position)).collect();
        let paths: Vec<ObjectPath> = versions.iter().map(|version| version.path.clone()).collect();
        for (path, outcome) in
            paths.iter().zip(extract(&attempt.app, &space, versions, &attempt.acting).await?)
        {
            match outcome {
                Ok(()) => attempt.progress.done(1, 0),
                Err(error) => attempt.failed(path, "failed", &error),
            }
        }
        attempt.step(page.next.clone())?;
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}
