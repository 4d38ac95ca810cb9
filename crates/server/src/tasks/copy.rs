//! Copies a tree within the site, by the storage itself where source and target are one store that can.
//!
//! Every byte of a copy is read and hashed before it is published, whichever way it was made.

use std::sync::Arc;

use futures::{StreamExt as _, stream};
use percale_catalog::{Condition, EntryKind, ListOptions, Listed};
use percale_core::tree::{GROUP_SIZE, HashTree, TreeHasher};
use percale_core::{ByteRange, ErrorCode, ObjectPath};
use percale_store::{Stage, StageOptions, StoreKey};

use super::Attempt;
use super::verify::opened;
use crate::fetch::{expected, write_whole};
use crate::publish::{NewObject, StagedContent, key};
use crate::reading::{Reach, Source};
use crate::stores::OpenStore;
use crate::upload::space_of;
use crate::{ApiError, OnPath as _, Result};

/// Entries in one step; the objects of a step are published together.
const STEP: usize = 100;
/// Objects that are copied at once.
const AT_ONCE: usize = 4;

pub(super) async fn run(attempt: &Attempt, from: &ObjectPath, to: &ObjectPath) -> Result<()> {
    let catalog = &attempt.app.catalog;
    let caller = &attempt.task.caller;
    let entry = catalog.stat(caller, from).await.on_path(from)?;
    if entry.kind == EntryKind::Collection {
        catalog.create_collection(caller, to, false).await.on_path(to)?;
    }
    let mut after = attempt.progress.after();
    loop {
        let mut options = ListOptions::default();
        options.after = after;
        options.limit = STEP;
        options.recursive = true;
        options.replicas = true;
        let page = catalog.list(caller, from, options).await.on_path(from)?;
        let mut objects = Vec::new();
        for listed in page.items {
            let target = target(from, to, &listed.path)?;
            match listed.entry.kind {
                EntryKind::Object => objects.push((listed, target)),
                EntryKind::Collection => {
                    if let Err(error) = catalog.create_collection(caller, &target, true).await {
                        attempt.progress.failed(&listed.path, "failed", &error.into());
                    } else {
                        attempt.progress.done(1, 0);
                    }
                }
            }
        }
        copy_objects(attempt, objects).await;
        attempt.progress.step(page.next.clone());
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// Returns the new path of something below `from`.
fn target(from: &ObjectPath, to: &ObjectPath, path: &ObjectPath) -> Result<ObjectPath> {
    let rest = path.as_str().strip_prefix(from.as_str()).unwrap_or_default();
    Ok(ObjectPath::parse(&format!("{to}{rest}"))?)
}

async fn copy_objects(attempt: &Attempt, objects: Vec<(Listed, ObjectPath)>) {
    let staged = stream::iter(objects)
        .map(|(listed, target)| async move {
            let path = listed.path.clone();
            let staged = stage(attempt, listed, target).await;
            (path, staged)
        })
        .buffered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    let mut paths = Vec::new();
    let mut items = Vec::new();
    for (path, staged) in staged {
        match staged {
            Ok(Some(item)) => {
                paths.push((path, item.1.tree.size()));
                items.push(item);
            }
            Ok(None) => attempt.progress.done(1, 0),
            Err(error) => attempt.progress.failed(&path, "failed", &error),
        }
    }
    for ((path, size), published) in paths.iter().zip(attempt.app.publisher.publish_many(items).await) {
        match published {
            Ok(_) => attempt.progress.done(1, size.0),
            Err(error) => attempt.progress.failed(path, "failed", &error),
        }
    }
}

/// Makes the copy of one object, not visible yet. Nothing if an earlier attempt made it already.
async fn stage(
    attempt: &Attempt,
    listed: Listed,
    target: ObjectPath,
) -> Result<Option<(NewObject, StagedContent)>> {
    let app = &attempt.app;
    let caller = attempt.task.caller.clone();
    match app.catalog.stat(&caller, &target).await {
        Ok(there) => {
            let (old, new) = (there.content.as_ref(), listed.entry.content.as_ref());
            let is_copy = old.zip(new).is_some_and(|(old, new)| old.root.is_some() && old.root == new.root);
            if is_copy && attempt.task.attempt > 1 {
                return Ok(None);
            }
            return Err(ApiError::new(
                ErrorCode::AlreadyExists,
                format!("cannot copy to {target}: it exists"),
            ));
        }
        Err(error) if error.code() == ErrorCode::NotFound => {}
        Err(error) => return Err(ApiError::from(error).with_path(&target)),
    }
    let path = listed.path.clone();
    let version = opened(listed, None)
        .ok_or_else(|| ApiError::new(ErrorCode::IsCollection, format!("{path} has no content")))?;
    let (mtime, digests) = (version.mtime, version.digests.clone());
    let store = app.stores.for_new_data(&space_of(&target)?).await?;
    let source = Arc::new(app.reader.source(version, &Reach::of(&attempt.task.caller)).await?);
    let mut options = StageOptions::new(app.lease.token()?).size(source.version.size);
    if !store.store.capabilities().write.late_key {
        let at = key(&format!(".percale/direct/{}", options.token))?;
        options = options.key(at);
    }
    let token = options.token.clone();
    let content = match fill(attempt, &source, &store, options).await {
        Ok((staged, tree)) => StagedContent { store: store.clone(), staged, tree },
        Err(error) => {
            if let Err(error) = store.store.discard(&token).await {
                tracing::info!(%error, "a staged copy was not discarded; it goes with the server's lease");
            }
            return Err(error.context(format!("cannot copy {path} to {target}")));
        }
    };
    let object = NewObject {
        caller,
        path: target,
        parents: true,
        condition: Condition::New,
        mtime,
        digests,
        answer: None,
    };
    Ok(Some((object, content)))
}

async fn fill(
    attempt: &Attempt,
    source: &Arc<Source>,
    store: &OpenStore,
    options: StageOptions,
) -> Result<(percale_store::Staged, HashTree)> {
    let can = store.store.capabilities();
    let original = source.on_own_store().filter(|(from, _)| from.row.id == store.row.id);
    if let Some((_, replica)) = original.filter(|_| can.write.clone && can.write.positioned) {
        let original = StoreKey::parse(&replica.key)
            .map_err(|error| ApiError::internal("a copy's key cannot be used").with_source(error))?;
        let stage = store.store.clone_to_stage(&original, options).await?;
        let tree = hash_stage(&*stage, source).await?;
        return Ok((stage.finish().await?, tree));
    }
    let stage = store.store.stage(options).await?;
    write_whole(&attempt.app.reader, source, stage).await
}

/// Reads back what the storage copied.
async fn hash_stage(stage: &dyn Stage, source: &Source) -> Result<HashTree> {
    let size = source.version.size;
    let mut hasher = TreeHasher::new();
    while hasher.size() < size {
        let bytes = stage.read_at(ByteRange::at(hasher.size().0, GROUP_SIZE)).await?;
        if bytes.is_empty() {
            break;
        }
        hasher.update(&bytes);
    }
    expected(hasher.finish(), source)
}
