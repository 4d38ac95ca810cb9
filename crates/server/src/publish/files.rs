//! What a publication does in stores: where its files go, their flushes and renames, and what takes them back.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use percale_catalog::{Catalog, Intent};
use percale_core::ids::{SpaceId, VersionId};
use percale_core::tree::{HashTree, TreeHasher};
use percale_core::{ByteCount, ErrorCode};
use percale_store::{
    ErrorKind, FileIdentity, Publish, Published, ReadOptions, SmallFile, StageOptions, StageToken, Staged,
    StoreExt, StoreKey,
};

use super::{Item, OnFailure, Prepared, StagedContent, lost};
use crate::error::{ApiError, Result};
use crate::fetch::is_of_task;
use crate::lease::ServerLease;
use crate::stores::OpenStore;

/// Returns where the hash tree of a version lies.
pub fn tree_key(space: SpaceId, version: VersionId) -> Result<StoreKey> {
    key(&format!(".percale/trees/{space}/{version}"))
}

/// Returns the key of a version whose natural key is taken.
pub fn version_key(space: SpaceId, version: VersionId) -> Result<StoreKey> {
    key(&format!(".percale/versions/{space}/{version}"))
}

/// Returns the key of bytes that go to a store which must know it from the beginning. Tokens are never used twice.
fn early_key(token: &StageToken) -> Result<StoreKey> {
    key(&format!(".percale/objects/{}-{}", token.fence(), token.name()))
}

/// Returns the key that a store wants to know when bytes are staged; none if it can wait until they are published.
///
/// # Errors
/// Never for a token of ours.
pub fn key_for_stage(store: &OpenStore, token: &StageToken) -> Result<Option<StoreKey>> {
    if store.store.capabilities().write.late_key { Ok(None) } else { early_key(token).map(Some) }
}

pub(crate) fn key(text: &str) -> Result<StoreKey> {
    StoreKey::parse(text)
        .map_err(|error| ApiError::new(ErrorCode::Internal, format!("store key '{text}': {error}")))
}

/// Finds a staged file that has its key already, since a commit got as far and the server died then or the catalog was away.
///
/// # Errors
/// What the store answers.
pub async fn find_published(
    store: &OpenStore,
    keys: [StoreKey; 2],
    (token, identity): (&StageToken, Option<&str>),
    size: ByteCount,
) -> Result<Option<(Staged, HashTree)>> {
    let identity = identity.map(FileIdentity::new);
    for key in keys {
        let meta = match store.store.stat(&key).await {
            Ok(meta) => meta,
            Err(error) if error.kind().is_absent() => continue,
            Err(error) => return Err(error.into()),
        };
        if meta.identity.is_none() || meta.identity != identity || meta.size != size {
            continue;
        }
        // Hashed again rather than believed: the tree beside it may not have been flushed.
        let mut stream = store.store.read(&key, ReadOptions::default()).await?;
        let mut hasher = TreeHasher::new();
        while let Some(piece) = stream.next().await? {
            hasher.update(&piece);
        }
        return Ok(Some((Staged { token: token.clone(), size: meta.size, identity }, hasher.finish())));
    }
    Ok(None)
}

/// A file may have its object's own path as key only where recovery can tell our file from another's that was there.
pub(crate) fn may_have_natural_key(store: &OpenStore) -> bool {
    let can = store.store.capabilities();
    can.identities && can.write.publish_if_absent && can.write.late_key
}

pub(super) fn by_store(prepared: Vec<Prepared>) -> Vec<(Arc<OpenStore>, Vec<Prepared>)> {
    let mut groups: HashMap<_, (Arc<OpenStore>, Vec<Prepared>)> = HashMap::new();
    for one in prepared {
        let store = one.item.1.store.clone();
        groups.entry(store.row.id).or_insert_with(|| (store, Vec::new())).1.push(one);
    }
    groups.into_values().collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Content,
    Tree,
}

/// Steps 3 to 5: flush, rename, flush, for the contents and for the trees of those of more than one group.
pub(super) async fn to_store(
    lease: &ServerLease,
    store: &Arc<OpenStore>,
    group: Vec<Prepared>,
) -> Vec<(Prepared, Result<Published>)> {
    let trees = stage_trees(lease, store, &group).await;
    let mut files = Vec::with_capacity(group.len() + trees.len());
    let mut unusable = HashMap::new();
    for (at, one) in group.iter().enumerate() {
        let staged = &one.item.1.staged;
        let at_key = key_for_stage(store, &staged.token)
            .and_then(|early| early.map_or_else(|| key(&one.intent.key), Ok));
        match at_key {
            Ok(key) => files.push((
                at,
                Part::Content,
                Publish::if_absent(staged.token.clone(), key, staged.identity.clone()),
            )),
            Err(error) => drop(unusable.insert(at, error)),
        }
    }
    for (at, tree) in trees {
        match tree {
            Ok(file) => files.push((at, Part::Tree, file)),
            Err(error) => drop(unusable.insert(at, error)),
        }
    }
    files.retain(|(at, ..)| !unusable.contains_key(at));

    let outcomes = publish_files(store, &files).await;
    let mut published: HashMap<usize, Published> = HashMap::new();
    let mut taken = Vec::new();
    for ((at, part, file), outcome) in files.into_iter().zip(outcomes) {
        match (part, outcome) {
            (Part::Content, Ok(Some(done))) => drop(published.insert(at, done)),
            // Another's file lies at the natural key, or what had the path above it before; ours goes where only we write.
            (Part::Content, Ok(None)) => taken.push((at, Part::Content, file)),
            (Part::Tree, Ok(Some(_))) => {}
            // An earlier attempt got as far; the tree of a version is the same whoever writes it.
            (Part::Tree, Ok(None)) => drop(store.store.discard(&file.token).await),
            (_, Err(error)) => drop(unusable.insert(at, error)),
        }
    }
    let mut elsewhere = Vec::new();
    for (at, part, mut file) in taken {
        let intent = &group[at].intent;
        match version_key(intent.space, intent.version) {
            Ok(key) if store.store.capabilities().write.late_key && file.key != key => {
                file.key = key;
                elsewhere.push((at, part, file));
            }
            _ => drop(unusable.insert(
                at,
                ApiError::new(
                    ErrorCode::Conflict,
                    format!("the key '{}' is taken on store {}", file.key, store.row.name),
                ),
            )),
        }
    }
    let outcomes = publish_files(store, &elsewhere).await;
    for ((at, ..), outcome) in elsewhere.into_iter().zip(outcomes) {
        match outcome {
            Ok(Some(done)) => drop(published.insert(at, done)),
            Ok(None) => drop(unusable.insert(at, lost())),
            Err(error) => drop(unusable.insert(at, error)),
        }
    }

    let mut outcome = |at| match (unusable.remove(&at), published.remove(&at)) {
        (None, Some(done)) => Ok(done),
        (Some(error), _) => Err(error),
        (None, None) => Err(lost()),
    };
    group.into_iter().enumerate().map(|(at, one)| (one, outcome(at))).collect()
}

/// Publishes files, each with its own outcome; of one that lies at the key already, `Ok(None)`, and of a content also where one lies above.
async fn publish_files(
    store: &OpenStore,
    files: &[(usize, Part, Publish)],
) -> Vec<Result<Option<Published>>> {
    if files.is_empty() {
        return Vec::new();
    }
    match store.store.publish(files.iter().map(|(.., file)| file.clone()).collect()).await {
        Ok(outcomes) => outcomes
            .into_iter()
            .zip(files)
            .map(|(outcome, (_, part, _))| match outcome {
                Ok(published) => Ok(Some(published)),
                Err(error) if *part == Part::Content && error.kind().is_taken() => Ok(None),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
                Err(error) => Err(error.into()),
            })
            .collect(),
        Err(error) => {
            let error = ApiError::from(error);
            files.iter().map(|_| Err(error.clone())).collect()
        }
    }
}

/// Stages the trees of contents of more than one group, under this server's lease.
async fn stage_trees(
    lease: &ServerLease,
    store: &OpenStore,
    group: &[Prepared],
) -> Vec<(usize, Result<Publish>)> {
    let mut wanted = Vec::new();
    let mut files = Vec::new();
    for (at, one) in group.iter().enumerate().filter(|(_, one)| one.item.1.tree.groups().len() > 1) {
        let named = tree_key(one.intent.space, one.intent.version).and_then(|key| Ok((key, lease.token()?)));
        match named {
            Ok((key, token)) => {
                let bytes = Bytes::from(one.item.1.tree.encode());
                files.push(SmallFile { token: token.clone(), key: Some(key.clone()), bytes });
                wanted.push((at, Ok((token, key))));
            }
            Err(error) => wanted.push((at, Err(error))),
        }
    }
    if files.is_empty() {
        return wanted.into_iter().map(|(at, outcome)| (at, outcome.and_then(|_| Err(lost())))).collect();
    }
    let mut staged = match store.store.stage_small(files).await {
        Ok(staged) => staged.into_iter(),
        Err(error) => {
            let error = ApiError::from(error);
            return wanted.into_iter().map(|(at, _)| (at, Err(error.clone()))).collect();
        }
    };
    wanted
        .into_iter()
        .map(|(at, outcome)| {
            let file = outcome.and_then(|(token, key)| {
                let staged = staged.next().ok_or_else(lost)??;
                Ok(Publish::if_absent(token, key, staged.identity))
            });
            (at, file)
        })
        .collect()
}

/// Puts a tree beside its content, in place of what is there.
///
/// # Errors
/// Whatever the store answers.
pub(crate) async fn put_tree(
    lease: &ServerLease,
    store: &OpenStore,
    space: SpaceId,
    version: VersionId,
    tree: &HashTree,
) -> Result<()> {
    let at = tree_key(space, version)?;
    store.store.delete_one(&at, None).await?;
    store.store.put_small(lease.token()?, at, tree.encode().into()).await?;
    Ok(())
}

/// Removes the bytes of an object that did not become visible, and then its intent. What fails here is left to whoever
/// takes the lease over.
pub(super) async fn undo(catalog: &Catalog, one: &Prepared, on_failure: OnFailure) {
    let (_, content) = &one.item;
    let Staged { token, identity, .. } = &content.staged;
    let version = one.intent.version.0;
    let undone = async {
        if on_failure == OnFailure::GiveBack {
            let keys = [key(&one.intent.key)?, version_key(one.intent.space, one.intent.version)?];
            stage_again(content, &keys).await?;
            return remove_published(&content.store, &one.intent, token, identity.as_ref()).await;
        }
        undo_files(&content.store, &one.intent, token, identity.as_ref()).await
    };
    match undone.await {
        Ok(()) => {
            if let Err(error) = catalog.abandon(vec![one.intent.id]).await {
                tracing::warn!(version, %error, "cannot delete an intent yet");
            }
        }
        Err(error) => tracing::warn!(version, %error, "cannot undo a publication yet"),
    }
}

/// Stages a file as before that has one of these keys by now.
///
/// # Errors
/// Whatever the store answers, `NotFound` if the file is at none of them.
pub(crate) async fn stage_again(content: &StagedContent, keys: &[StoreKey]) -> Result<()> {
    let StagedContent { store, staged, .. } = content;
    let Staged { token, size, identity } = staged;
    match store.store.read_back(token).await {
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    for key in keys {
        match store.store.stat(key).await {
            Ok(meta) if meta.identity == *identity && meta.size == *size => {
                let options = StageOptions::new(token.clone()).size(*size);
                store.store.clone_to_stage(key, options).await?.finish().await?;
                return Ok(());
            }
            Ok(_) => {}
            Err(error) if error.kind().is_absent() => {}
            Err(error) => return Err(error.into()),
        }
    }
    let detail = format!("what was staged as {token} is nowhere any more");
    Err(ApiError::new(ErrorCode::NotFound, detail))
}

/// Removes the bytes of an intent from the places where they may be: staged, at the reserved key, at the key of the
/// version, and the tree. Another's file at the reserved key is told by its identity and stays, as what a task has staged does. May be
/// repeated.
///
/// # Errors
/// Whatever the store answers; then something may be left.
pub(crate) async fn undo_files(
    store: &OpenStore,
    intent: &Intent,
    token: &StageToken,
    identity: Option<&FileIdentity>,
) -> Result<()> {
    discard_one(store, token).await?;
    remove_published(store, intent, token, identity).await
}

/// The same, but for what is staged.
async fn remove_published(
    store: &OpenStore,
    intent: &Intent,
    token: &StageToken,
    identity: Option<&FileIdentity>,
) -> Result<()> {
    let own = version_key(intent.space, intent.version)?;
    let reserved = key(&intent.key)?;
    if reserved != own
        && let Some(identity) = identity
    {
        match store.store.delete_one(&reserved, Some(identity.clone())).await {
            Err(error) if error.kind() != ErrorKind::Changed => return Err(error.into()),
            _ => {}
        }
    }
    store.store.delete_one(&own, None).await?;
    if let Some(early) = key_for_stage(store, token)? {
        store.store.delete_one(&early, None).await?;
    }
    store.store.delete_one(&tree_key(intent.space, intent.version)?, None).await?;
    Ok(())
}

/// Removes a staged file, unless a task goes on with it: what a task has staged goes with its own lease.
pub(crate) async fn discard_one(store: &OpenStore, token: &StageToken) -> Result<()> {
    if !is_of_task(token) {
        store.store.discard(token).await?;
    }
    Ok(())
}

pub(super) async fn discard(items: &[Item]) {
    for (_, content) in items {
        if let Err(error) = discard_one(&content.store, &content.staged.token).await {
            tracing::info!(token = %content.staged.token, %error, "staged bytes are left to the next take-over");
        }
    }
}
