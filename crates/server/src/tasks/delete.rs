//! Removes a tree step by step, the leaves first, so that a million entries do not make one transaction.

use percale_core::{ErrorCode, ObjectPath};

use super::Attempt;
use crate::{ApiError, Result};

/// Entries in one step: what keeps a transaction below some tens of milliseconds.
const STEP: usize = 1000;

pub(super) async fn run(attempt: &Attempt, path: &ObjectPath) -> Result<()> {
    // What an earlier attempt removed is not there any more, and the path itself goes last.
    let mut is_begun = attempt.progress.after().is_some() || attempt.task.vain > 1;
    loop {
        match attempt.app.catalog.remove_some(&attempt.task.caller, path, STEP).await {
            Ok(removed) => {
                attempt.progress.achieved(removed.entries, 0);
                attempt.progress.step(Some("removing".to_owned()));
                if removed.is_done {
                    return Ok(());
                }
                is_begun = true;
            }
            Err(error) if is_begun && error.code() == ErrorCode::NotFound => return Ok(()),
            Err(error) => return Err(ApiError::from(error).with_path(path)),
        }
    }
}
