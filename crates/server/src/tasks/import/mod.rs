//! Registers files of a native store in place (`docs/design/importing.md`).
//!
//! A pass lists the directory and what the catalog knows of it side by side. What is as it was costs nothing more; what is
//! new or changed is registered some thousands at a time, while the next are looked at; what is gone is marked lost.
//! Killed anywhere it goes on behind the last key that was done, and what is done twice changes nothing.

mod chunk;
mod hash;
pub(crate) mod registrar;
mod scan;
pub(crate) mod source;
mod watch;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use percale_api::importing::{Hashing, Import};
use percale_api::tasks::TaskSpec;
use percale_catalog::{KnownFile, NativeFolder, NewTask, ReplicaReport};
use percale_client::selection;
use percale_core::access::{Caller, Permission};
use percale_core::state::ReplicaState;
use percale_core::{ErrorCode, Position};
use percale_store::{SharedStore, StoreKey};
use tokio::sync::mpsc;

use super::replicate::space_of;
use super::{Attempt, Stored};
use crate::authorize::authorize;
use crate::extraction::{drain, may_extract};
use crate::http::auth::require_admin;
use crate::{ApiError, AppState, Result};
pub(crate) use hash::hash_one;
pub(crate) use registrar::{reason, register_at, settle};
pub(crate) use scan::found;

use chunk::Chunk;
use registrar::{Answer, Registrar};
use scan::Scan;
use source::Source;
use watch::Watch;

/// Chunks that are found ahead of the one that is registered.
const AHEAD: usize = 2;
/// Items of each kind that a dry run names.
const NAMED: u64 = 20;
/// Least and most seconds between two passes.
const FOLLOW_S: std::ops::RangeInclusive<u32> = 5..=86_400;

/// Finds out whether files of a storage of this site may be registered. Their paths are the site's own, and so is the say.
pub(crate) async fn may_import(app: &AppState, caller: &Caller, import: &Import) -> Result<()> {
    let Import { source, to, at, follow_s, .. } = import;
    if let Some(site) = at.as_ref().filter(|site| **site != app.site.name) {
        app.fabric.named(site)?;
        let detail = format!(
            "cannot import '{source}' of site {site} from site {}: an administrator of {site} asks a server there",
            app.site.name
        );
        return Err(ApiError::new(ErrorCode::Forbidden, detail));
    }
    require_admin(caller, "importing files of a site's storage")?;
    if to.is_root() {
        return Err(ApiError::invalid("files are imported into one space: name it").with_path(to));
    }
    if follow_s.is_some_and(|seconds| !FOLLOW_S.contains(&seconds)) {
        let (least, most) = (FOLLOW_S.start(), FOLLOW_S.end());
        return Err(ApiError::invalid(format!("a tree is followed every {least} to {most} seconds")));
    }
    if follow_s.is_some() && import.dry_run {
        return Err(ApiError::invalid("a dry run is done once"));
    }
    if import.extract {
        may_extract(app, to).await?;
    }
    filter(import)?;
    authorize(&app.catalog, caller, to, Permission::Write).await?;
    Source::find(&app.catalog, source, to).await.map(drop)
}

/// Reads the filter of an import.
///
/// # Errors
/// `InvalidRequest` for a pattern that cannot be.
fn filter(import: &Import) -> Result<Option<percale_client::put::Filter>> {
    selection::filter(&import.select).map_err(|error| ApiError::invalid(error.detail().to_owned()))
}

pub(super) async fn run(attempt: &Attempt, import: &Import) -> Result<()> {
    let app = &attempt.app;
    let after = attempt.progress.after();
    if after.is_none() {
        attempt.progress.begin_anew();
    }
    if let Some(seconds) = import.follow_s {
        attempt.do_again_in(Duration::from_secs(seconds.into()));
    }
    let space = space_of(attempt, &import.to).await?;
    let source = Source::find(&app.catalog, &import.source, &import.to).await?;
    let store = app.stores.get(source.store.id).await?.store.clone();
    let began = Instant::now();
    let watch = import.follow_s.and_then(|_| Watch::new(&source.root()?));
    let scan = Scan {
        catalog: &app.catalog,
        store: store.clone(),
        source: &source,
        space: space.id,
        filter: filter(import)?,
        is_read: import.hash == Hashing::Now,
        is_followed: import.follow_s.is_some(),
        watch: Mutex::new(watch),
    };
    let registrar = Registrar::new(attempt, &source, &space);
    let furthest = Mutex::new(None);
    let work = Work { attempt, import, source: &source, store, registrar: &registrar, furthest: &furthest };
    let (found, chunks) = mpsc::channel(AHEAD);
    tokio::try_join!(scan.run(after, found), work.all(chunks))?;
    let watch = scan.watch.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let (Some(watch), Some(seconds)) = (watch, import.follow_s) {
        let (within, took) = (Duration::from_secs(seconds.into()), began.elapsed());
        app.background.spawn(watch.wake(app.clone(), attempt.task.id, within, took));
    }
    let position = furthest.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(position) = position {
        settle(&attempt.app, position).await;
    }
    if import.extract && !import.dry_run {
        drain(app, &import.to).await?;
    }
    let has_news = ["registered", "changed"].iter().any(|what| attempt.progress.counted(what) > 0);
    if import.hash == Hashing::Later && !import.dry_run && has_news {
        verify_later(attempt, import).await?;
    }
    Ok(())
}

/// Has another task hash what is registered, in the name of the same user.
async fn verify_later(attempt: &Attempt, import: &Import) -> Result<()> {
    let spec = TaskSpec::Verify { path: import.to.clone(), repair: false, unverified: true };
    let mut stored = Stored::new(spec);
    stored.label = Some(format!("after import {}", attempt.task.id));
    let task = NewTask {
        id: None,
        kind: stored.kind().to_owned(),
        spec: stored.write()?,
        deadline: None,
        // Once for each pass, also where its end is repeated.
        idempotency_key: Some(format!("import {} {}", attempt.task.id, attempt.task.not_before.as_micros())),
    };
    attempt.app.catalog.submit_task(&attempt.task.caller, task).await?;
    attempt.app.tasks.wake();
    Ok(())
}

/// What is done with what a scan found.
struct Work<'a> {
    attempt: &'a Attempt,
    import: &'a Import,
    source: &'a Source,
    store: SharedStore,
    registrar: &'a Registrar<'a>,
    furthest: &'a Mutex<Option<Position>>,
}

impl Work<'_> {
    async fn all(&self, mut chunks: mpsc::Receiver<Chunk>) -> Result<()> {
        while let Some(mut chunk) = chunks.recv().await {
            let through = chunk.through.take();
            match self.import.dry_run {
                true => self.name(chunk),
                false => self.register(chunk).await?,
            }
            if through.is_some() {
                self.attempt.step(through)?;
            }
        }
        Ok(())
    }

    fn failed(&self, failed: Vec<(String, ApiError)>) {
        for (path, error) in failed {
            self.attempt.progress.failed_at(path, "failed", &error);
        }
    }

    /// Says what would be done.
    fn name(&self, chunk: Chunk) {
        let progress = &self.attempt.progress;
        self.failed(chunk.failed);
        progress.count("unchanged", chunk.unchanged);
        let name = |what: &str, key: &str| {
            if progress.counted(what) < NAMED {
                progress.name(self.source.shown(key), what);
            }
            progress.count(what, 1);
        };
        for folder in chunk.folders {
            for file in &folder.files {
                let key = folder.key_of(&file.name);
                name(if chunk.changed.contains(&key) { "changed" } else { "registered" }, &key);
            }
        }
        for known in chunk.gone {
            name("lost", &known.key);
        }
    }

    async fn register(&self, chunk: Chunk) -> Result<()> {
        let Chunk { mut folders, gone, unchanged, failed, .. } = chunk;
        let progress = &self.attempt.progress;
        self.failed(failed);
        progress.count("unchanged", unchanged);
        if self.import.hash == Hashing::Now {
            let failed =
                hash::hash_all(&self.store, self.source, &mut folders, |bytes| progress.done(0, bytes)).await;
            self.failed(failed);
        }
        if !folders.is_empty() {
            self.take(folders).await?;
        }
        if !gone.is_empty() {
            self.lose(gone).await;
        }
        Ok(())
    }

    /// Registers files, and notes what became of each.
    async fn take(&self, folders: Vec<NativeFolder>) -> Result<()> {
        let progress = &self.attempt.progress;
        let names: Vec<Vec<String>> = folders
            .iter()
            .map(|folder| folder.files.iter().map(|file| folder.key_of(&file.name)).collect())
            .collect();
        let keys: Vec<String> = folders.iter().map(|folder| folder.key.clone().unwrap_or_default()).collect();
        let Answer { created, changed, unchanged, failed, position } =
            self.registrar.register(folders).await?;
        for (what, count) in [("registered", created), ("changed", changed), ("unchanged", unchanged)] {
            progress.count(what, count);
        }
        for failed in failed {
            let of_folder = names.get(failed.folder).map(Vec::as_slice).unwrap_or_default();
            let wrong: Vec<&str> = match failed.file {
                Some(file) => of_folder.get(file).map(String::as_str).into_iter().collect(),
                None if of_folder.is_empty() => {
                    keys.get(failed.folder).map(String::as_str).into_iter().collect()
                }
                None => of_folder.iter().map(String::as_str).collect(),
            };
            let error = reason(failed);
            for key in wrong {
                progress.failed_at(self.source.shown(key), "failed", &error);
            }
        }
        if position.is_some() {
            *self.furthest.lock().unwrap_or_else(PoisonError::into_inner) = position;
        }
        Ok(())
    }

    /// Marks files lost that are gone. Each is looked for once more: the site itself may have put it there between the two
    /// looks at the store and the catalog, or a directory above it cannot be read.
    async fn lose(&self, gone: Vec<KnownFile>) {
        let mut reports = Vec::with_capacity(gone.len());
        let mut keys = Vec::with_capacity(gone.len());
        for known in gone {
            let Ok(key) = StoreKey::parse(&known.key) else { continue };
            match self.store.stat(&key).await {
                Err(error) if error.kind().is_absent() => {}
                Ok(meta) if !meta.is_file() => {}
                // It is there, or nobody can tell; the next pass looks again.
                Ok(_) | Err(_) => continue,
            }
            reports.push(ReplicaReport {
                space: known.space,
                version: known.version,
                store: self.source.store.id,
                key: Some(known.key.clone()),
                state: ReplicaState::Lost,
                generation: None,
                root: None,
                is_checked: true,
            });
            keys.push(known.key);
        }
        let outcomes = self.attempt.app.catalog.report_replicas(&self.attempt.task.caller, reports).await;
        for (key, outcome) in keys.into_iter().zip(outcomes) {
            match outcome {
                Ok(_) => self.attempt.progress.count("lost", 1),
                // Its object was removed, or another copy took its place.
                Err(error) if error.code() == ErrorCode::NotFound => {}
                Err(error) => {
                    self.attempt.progress.failed_at(self.source.shown(&key), "failed", &error.into())
                }
            }
        }
    }
}
