//! Publishes what mounts have staged.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use percale_api::mounts::{MountChange, MountDone};
use percale_catalog::{Lease, TaskHolder};
use percale_core::access::Caller;
use percale_core::ids::StoreId;
use percale_core::tree::{GROUP_SIZE, HashTree, TreeHasher};
use percale_core::{ByteCount, ByteRange, ErrorCode};
use percale_store::{StageOptions, StageToken, Staged};

use super::{done, token};
use crate::http::uploads::condition;
use crate::publish::{self, Item, NewObject, StagedContent, find_published};
use crate::stores::OpenStore;
use crate::{ApiError, AppState, Result};

/// Large staged files that are hashed side by side.
const HASHED_AT_ONCE: usize = 8;
/// Staged files of at most so many bytes are read together.
const SMALL: ByteCount = ByteCount::kib(64);
/// So many of them, 4 MiB at most.
const READ_TOGETHER: usize = 64;

/// A staged file and its tree; nothing if it is not staged any more.
type Read = Result<Option<(Staged, HashTree)>>;

/// A file that is to be published, before it was looked at.
struct Wanted {
    object: NewObject,
    store: Arc<OpenStore>,
    token: StageToken,
    /// As it was announced.
    size: ByteCount,
}

/// Publishes staged files.
pub(super) async fn publish_all(
    app: &AppState,
    caller: &Caller,
    lease: &Lease,
    changes: Vec<MountChange>,
) -> Vec<Result<MountDone>> {
    let prepared = prepare_all(app, caller, lease, &changes).await;
    // What a file became is filled in where it is published now.
    let (mut items, mut places, mut outcomes) = (Vec::new(), Vec::new(), Vec::with_capacity(prepared.len()));
    for (change, one) in changes.iter().zip(prepared) {
        outcomes.push(match one {
            Ok(Some(item)) => {
                items.push(item);
                places.push(outcomes.len());
                Err(ApiError::internal("a publication ended without a result"))
            }
            Ok(None) => made_before(app, caller, change).await,
            Err(error) => Err(error),
        });
    }
    let roots: Vec<_> = items.iter().map(|(_, content)| content.tree.root()).collect();
    let holder = TaskHolder { lease: lease.id, fence: lease.fence };
    let published = app.publisher.publish_staged(holder, items).await;
    for ((at, root), committed) in places.into_iter().zip(roots).zip(published) {
        let outcome = committed.map(|committed| MountDone {
            entry: Some(committed.entry),
            version: Some(committed.version),
            root: Some(root),
            ..done(committed.position)
        });
        if let Some(place) = outcomes.get_mut(at) {
            *place = outcome;
        }
    }
    outcomes
}

/// Returns what a publication made whose answer was lost: its staged file is gone, and the object is what it would be.
///
/// # Errors
/// `version_changed` if the object is not that.
async fn made_before(app: &AppState, caller: &Caller, change: &MountChange) -> Result<MountDone> {
    let path = change.path();
    let not_staged =
        || ApiError::new(ErrorCode::VersionChanged, "the file is not staged any more").with_path(path);
    let MountChange::Publish { size, mtime, .. } = change else { return Err(not_staged()) };
    let entry = match app.catalog.stat(caller, path).await {
        Ok(entry) => entry,
        Err(error) if error.code() == ErrorCode::NotFound => return Err(not_staged()),
        Err(error) => return Err(ApiError::from(error).with_path(path)),
    };
    let content = entry.content.filter(|content| content.size.0 == *size && content.mtime == Some(*mtime));
    let content = content.ok_or_else(not_staged)?;
    let (version, root) = (Some(content.version), content.root);
    Ok(MountDone { entry: Some(entry.id), version, root, position: None })
}

/// Finds and hashes staged files, each with its own result: nothing for one that is not staged any more.
async fn prepare_all(
    app: &AppState,
    caller: &Caller,
    lease: &Lease,
    changes: &[MountChange],
) -> Vec<Result<Option<Item>>> {
    let sizes = changes.iter().map(|change| match change {
        MountChange::Publish { size, .. } => ByteCount(*size),
        _ => ByteCount::ZERO,
    });
    let wanted = changes.iter().map(|change| change.path().clone()).zip(sizes).collect();
    // Also where another site decides: what it refuses would have to be staged again.
    let quotas = app.publisher.require_quotas(wanted).await;
    let mut prepared: Vec<Option<Result<Option<Item>>>> = Vec::with_capacity(changes.len());
    let (mut small, mut large) = (Vec::new(), Vec::new());
    for (at, (change, quota)) in changes.iter().zip(quotas).enumerate() {
        let one = match quota {
            Ok(()) => describe_one(app, caller, lease, change).await,
            Err(error) => Err(error),
        };
        prepared.push(match one {
            Ok(one) => {
                let kind = if one.size <= SMALL { &mut small } else { &mut large };
                kind.push((at, one));
                None
            }
            Err(error) => Some(Err(error)),
        });
    }
    let large = stream::iter(large).map(async |(at, one): (usize, Wanted)| {
        let read = hash(&one.store, &one.token, one.size).await;
        (at, one, read)
    });
    let mut read: Vec<(usize, Wanted, Read)> = large.buffer_unordered(HASHED_AT_ONCE).collect().await;
    read.extend(hash_small(small).await);
    for (at, one, read) in read {
        let found = match read {
            Ok(None) => begun(app, lease, &one.store, &one.token, one.size).await,
            read => read,
        };
        let Wanted { object, store, .. } = one;
        let item =
            found.map(|found| found.map(|(staged, tree)| (object, StagedContent { store, staged, tree })));
        prepared[at] = Some(item);
    }
    let unread = || Err(ApiError::internal("a staged file was not looked at"));
    let named = prepared.into_iter().zip(changes).map(|(one, change)| {
        one.unwrap_or_else(unread).map_err(|error| error.with_path(change.path().clone()))
    });
    named.collect()
}

async fn describe_one(
    app: &AppState,
    caller: &Caller,
    lease: &Lease,
    change: &MountChange,
) -> Result<Wanted> {
    let MountChange::Publish { path, store, token: name, size, mtime, mode, condition: wanted } = change
    else {
        return Err(ApiError::internal("only staged files are published"));
    };
    let object = NewObject {
        caller: caller.clone(),
        delegation: None,
        path: path.clone(),
        parents: false,
        condition: condition(*wanted),
        mtime: Some(*mtime),
        mode: *mode,
        digests: Vec::new(),
        answer: None,
    };
    let store = app.stores.get(*store).await?;
    Ok(Wanted { object, store, token: token(lease, name)?, size: ByteCount(*size) })
}

/// Reads small staged files through, many at a time: handing each to another thread would cost more than reading it.
async fn hash_small(files: Vec<(usize, Wanted)>) -> Vec<(usize, Wanted, Read)> {
    let mut by_store: HashMap<StoreId, Vec<(usize, Wanted)>> = HashMap::new();
    for file in files {
        by_store.entry(file.1.store.row.id).or_default().push(file);
    }
    let mut hashed = Vec::new();
    for (_, mut files) in by_store {
        while !files.is_empty() {
            let some: Vec<_> = files.drain(..files.len().min(READ_TOGETHER)).collect();
            let Some((_, first)) = some.first() else { break };
            let tokens = some.iter().map(|(_, one)| one.token.clone()).collect();
            match first.store.store.read_staged(tokens, SMALL).await {
                Ok(read) => hashed.extend(some.into_iter().zip(read).map(|((at, one), read)| {
                    let read = read.map_err(ApiError::from).and_then(|read| whole(read, one.size));
                    (at, one, read)
                })),
                Err(error) => {
                    let error = ApiError::from(error);
                    hashed.extend(some.into_iter().map(|(at, one)| (at, one, Err(error.clone()))));
                }
            }
        }
    }
    hashed
}

/// Hashes a small staged file.
///
/// # Errors
/// `version_changed` if it does not have the size that was said: it is being written.
fn whole(read: Option<(Staged, Bytes)>, size: ByteCount) -> Read {
    let Some((staged, bytes)) = read else { return Ok(None) };
    if staged.size != size || bytes.len() as u64 != size.0 {
        return Err(changed(staged.size, size));
    }
    Ok(Some((staged, HashTree::of(&bytes))))
}

fn changed(there: ByteCount, size: ByteCount) -> ApiError {
    let detail = format!("the staged file has {there}, not the {size} that were announced");
    ApiError::new(ErrorCode::VersionChanged, detail)
}

/// Finds a file that has its key already, since a server that published it died then.
async fn begun(
    app: &AppState,
    lease: &Lease,
    store: &OpenStore,
    token: &StageToken,
    size: ByteCount,
) -> Read {
    let name = token.to_string();
    let intents = app.catalog.intents_of(lease.id).await?;
    if let Some(row) = intents.into_iter().find(|row| row.token == name) {
        let keys =
            [publish::key(&row.intent.key)?, publish::version_key(row.intent.space, row.intent.version)?];
        return find_published(store, keys, (token, row.identity.as_deref()), size).await;
    }
    let arrivals = app.catalog.arrivals_of(lease.id).await?;
    let Some(arrival) = arrivals.into_iter().find(|arrival| arrival.token == name) else { return Ok(None) };
    let keys = [publish::key(&arrival.key)?, crate::abroad::own_key(arrival.id)?];
    find_published(store, keys, (token, arrival.identity.as_deref()), size).await
}

/// Reads a staged file through; nothing if there is none.
///
/// # Errors
/// `version_changed` if it does not have the size that was said: it is being written.
async fn hash(store: &OpenStore, token: &StageToken, size: ByteCount) -> Read {
    let stage = store.store.stage(StageOptions::new(token.clone()).resume()).await?;
    let there = stage.size().await?;
    if there == ByteCount::ZERO && size != ByteCount::ZERO {
        // It was begun just now, by looking.
        drop(stage);
        store.store.discard(token).await?;
        return Ok(None);
    }
    if there != size {
        return Err(changed(there, size));
    }
    let mut hasher = TreeHasher::new();
    let mut at = 0;
    while at < size.0 {
        let bytes = stage.read_at(ByteRange::at(at, GROUP_SIZE.min(size.0 - at))).await?;
        if bytes.is_empty() {
            return Err(changed(ByteCount(at), size));
        }
        at += bytes.len() as u64;
        let hashed = tokio::task::spawn_blocking(move || {
            hasher.update(&bytes);
            hasher
        });
        hasher =
            hashed.await.map_err(|error| ApiError::internal("hashing did not end").with_source(error))?;
    }
    let staged = stage.finish().await?;
    Ok(Some((staged, hasher.finish())))
}
