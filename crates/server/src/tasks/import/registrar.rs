//! Who makes objects of files: this site's catalog, or the home of the space that they go to.

use std::time::Duration;

use percale_api::importing::{Folder, FoundFile, NotRegistered, RegisterFiles};
use percale_catalog::{NativeFolder, Register, Registered, Space};
use percale_core::access::Caller;
use percale_core::ids::SiteId;
use percale_core::{Position, Timestamp};
use percale_federation::follow;

use super::source::Source;
use crate::abroad::from_problem;
use crate::tasks::Attempt;
use crate::{ApiError, AppState, Result};

/// How long this site's follower is waited for, so that whoever looks at the end sees the objects.
const CATCH_UP: Duration = Duration::from_secs(2);

/// Makes objects of files.
pub(super) struct Registrar<'a> {
    attempt: &'a Attempt,
    source: &'a Source,
    /// The home of the space. Nothing where that is this site.
    home: Option<SiteId>,
}

/// What became of files.
pub(crate) type Answer = percale_api::importing::Registered;

impl<'a> Registrar<'a> {
    /// Makes it for the space that the files go to.
    pub fn new(attempt: &'a Attempt, source: &'a Source, space: &Space) -> Self {
        Self { attempt, source, home: space.home }
    }

    /// Registers files. Again it changes nothing.
    ///
    /// # Errors
    /// Those of the catalog or the home, for all of them; what is the matter with some is in the answer.
    pub async fn register(&self, folders: Vec<NativeFolder>) -> Result<Answer> {
        let (store, within) = (self.source.store.id, self.source.to().clone());
        let caller = self.attempt.task.caller.clone();
        register_at(&self.attempt.app, self.home, Register { caller, store, within, folders }).await
    }
}

/// Waits for a moment until this site knows what the home of a space has registered.
pub(crate) async fn settle(app: &AppState, position: Position) {
    drop(follow::caught_up(&app.fabric, position, CATCH_UP).await);
}

/// Registers files where their space is ordered: at another site, or here.
///
/// # Errors
/// `SiteUnavailable` if the home is not known or does not answer; what it answers.
pub(crate) async fn register_at(app: &AppState, home: Option<SiteId>, files: Register) -> Result<Answer> {
    let Some(home) = home else { return register(app, None, files).await };
    let member = app.fabric.member(home)?;
    let Register { caller, store, within, folders } = files;
    let caller = caller.seen(&app.fabric.own().name, &member.name);
    let folders = folders.into_iter().map(to_wire).collect();
    let client = app.fabric.client(home, &percale_federation::Acting::Site)?;
    let answer = client.peer_register(&RegisterFiles { caller, store, within, folders }).await;
    answer.map_err(|error| percale_federation::Error::from(error).into())
}

/// Registers files in this site's catalog. `site` has them, if it is another one.
pub(crate) async fn register(app: &AppState, site: Option<SiteId>, files: Register) -> Result<Answer> {
    let answered = app.catalog.register(site, files).await?;
    let mut answer = Answer { position: answered.position, ..Answer::default() };
    for (folder, outcomes) in answered.folders.into_iter().enumerate() {
        let outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(error) => {
                answer.failed.push(not_registered(folder, None, error));
                continue;
            }
        };
        for (file, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                Ok(Registered::Created) => answer.created += 1,
                Ok(Registered::Changed) => answer.changed += 1,
                Ok(Registered::Unchanged) => answer.unchanged += 1,
                Err(error) => answer.failed.push(not_registered(folder, Some(file), error)),
            }
        }
    }
    Ok(answer)
}

fn not_registered(folder: usize, file: Option<usize>, error: percale_catalog::Error) -> NotRegistered {
    NotRegistered { folder, file, problem: ApiError::from(error).to_problem() }
}

/// Returns why a file was not registered.
pub(crate) fn reason(failed: NotRegistered) -> ApiError {
    from_problem(failed.problem)
}

fn to_wire(folder: NativeFolder) -> Folder {
    let file = |file: percale_catalog::NativeFile| FoundFile {
        name: file.name,
        size: file.size,
        generation: file.generation,
        mtime_us: file.mtime.map(Timestamp::as_micros),
        mode: file.mode,
        root: file.root,
    };
    let files = folder.files.into_iter().map(file).collect();
    Folder { path: folder.path, key: folder.key, files }
}

/// Reads what another site asks to be registered.
pub(crate) fn from_wire(caller: Caller, files: RegisterFiles) -> Register {
    let file = |file: FoundFile| percale_catalog::NativeFile {
        name: file.name,
        size: file.size,
        generation: file.generation,
        mtime: file.mtime_us.map(Timestamp::from_micros),
        mode: file.mode,
        root: file.root,
    };
    let folder = |folder: Folder| {
        let files = folder.files.into_iter().map(file).collect();
        NativeFolder { path: folder.path, key: folder.key, files }
    };
    let RegisterFiles { store, within, folders, .. } = files;
    Register { caller, store, within, folders: folders.into_iter().map(folder).collect() }
}
