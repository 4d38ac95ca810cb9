//! Reading back what was staged, from the medium, before it has a name (`docs/design/transfers.md`, "Read back").
//!
//! What is wrong there is brought once more. If it is wrong again, the storage cannot be trusted with it, and nothing of it is
//! published.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use percale_api::tasks::Verification;
use percale_catalog::Verified;
use percale_core::ids::SiteId;
use percale_core::tree::{HashTree, group_range};
use percale_core::{ByteCount, ErrorCode, ObjectPath};
use percale_mover::{Meter, Wait};
use percale_store::{SmallFile, StageToken, Staged};

use super::Fetch;
use super::large::Large;
use crate::publish::key_for_stage;
use crate::stores::OpenStore;
use crate::{ApiError, AppState, Result};

/// What a receipt says of a copy that was verified so.
pub(super) fn verified(how: Verification) -> Verified {
    match how {
        Verification::Frames => Verified::Frames,
        Verification::Medium => Verified::Medium,
    }
}

/// Fails if a store cannot be read back.
///
/// # Errors
/// `Unsupported`.
pub(crate) fn may_verify(store: &OpenStore, how: Verification) -> Result<()> {
    if how == Verification::Frames || store.store.capabilities().read.medium {
        return Ok(());
    }
    let detail = format!(
        "the store {} ({}) cannot be read back from its medium, so 'medium' cannot be verified there",
        store.row.name, store.row.connector
    );
    Err(ApiError::new(ErrorCode::Unsupported, detail))
}

/// Returns the groups of a staged file that are not what they should be on the medium.
///
/// # Errors
/// Those of the store.
pub(super) async fn wrong_groups(
    store: &OpenStore,
    meter: &Meter,
    token: &StageToken,
    tree: &HashTree,
) -> Result<Vec<u64>> {
    let count = tree.groups().len() as u64;
    let mut wrong = Vec::new();
    let mut read = meter.waiting(Wait::Disk, store.store.read_back(token)).await?;
    let mut pending = BytesMut::new();
    for group in 0..count {
        let len = group_range(tree.size(), group).len() as usize;
        while pending.len() < len {
            match meter.waiting(Wait::Disk, read.next()).await? {
                Some(piece) => pending.extend_from_slice(&piece),
                // It is shorter than it was written.
                None => {
                    wrong.extend(group..count);
                    return Ok(wrong);
                }
            }
        }
        let bytes = pending.split_to(len);
        // At most 1 MiB, which takes about 0.15 ms.
        if meter.working(Wait::Verify, || tree.verify(group, &bytes).is_err()) {
            wrong.push(group);
        }
    }
    Ok(wrong)
}

/// Tells the operator.
pub(super) fn note(store: &OpenStore, path: &ObjectPath, wrong: &[u64]) {
    metrics::counter!("percale_checksum_mismatches_total").increment(1);
    let (store, groups) = (&store.row.name, wrong.len());
    tracing::error!(%path, store, groups, first = wrong.first(), "wrong bytes were read back from the medium");
}

/// The error for what was wrong twice.
pub(super) fn wrong_again(store: &OpenStore, path: &ObjectPath) -> ApiError {
    let detail = format!(
        "what was read back from the medium of store {} was wrong, and again when it was written anew; nothing of it was kept",
        store.row.name
    );
    ApiError::new(ErrorCode::Integrity, detail).with_path(path)
}

impl Fetch {
    /// Reads a large object back, if that was asked for, and brings once more what is wrong.
    ///
    /// # Errors
    /// `Integrity` if it is wrong again; those of the store and of the sources.
    pub(super) async fn read_back(
        &self,
        store: &OpenStore,
        large: &Large<'_>,
        sites: &VecDeque<SiteId>,
    ) -> Result<()> {
        if self.verify == Verification::Frames {
            return Ok(());
        }
        let path = &large.version.path;
        for is_last in [false, true] {
            let _open = self.flow.meter().stream();
            let wrong = wrong_groups(store, self.flow.meter(), large.stage.token(), &large.tree).await?;
            if wrong.is_empty() {
                return Ok(());
            }
            note(store, path, &wrong);
            if is_last {
                break;
            }
            for group in wrong {
                large.arrived.remove(group);
            }
            large.bring(sites.clone(), Vec::new()).await?;
        }
        Err(wrong_again(store, path))
    }
}

/// Small files that are read back at once.
const READS: usize = 16;

/// A small file that is staged, and what it was made of.
pub(super) struct SmallStaged<'a> {
    pub staged: Staged,
    pub bytes: Bytes,
    pub tree: &'a HashTree,
    pub path: &'a ObjectPath,
}

/// Reads small files back, several at once, each with its own outcome in their order: what is staged in the end.
pub(super) async fn read_small_back<'a>(
    app: &'a AppState,
    store: &'a OpenStore,
    meter: &'a Meter,
    files: Vec<SmallStaged<'a>>,
) -> Vec<Result<Staged>> {
    let looks: Vec<BoxFuture<'_, Result<Staged>>> =
        files.into_iter().map(|file| one_back(app, store, meter, file).boxed()).collect();
    stream::iter(looks).buffered(READS).collect().await
}

async fn one_back(
    app: &AppState,
    store: &OpenStore,
    meter: &Meter,
    SmallStaged { mut staged, bytes, tree, path }: SmallStaged<'_>,
) -> Result<Staged> {
    for is_last in [false, true] {
        let looked = wrong_groups(store, meter, &staged.token, tree).await;
        let wrong = match looked {
            Ok(wrong) if wrong.is_empty() => return Ok(staged),
            Ok(wrong) => wrong,
            Err(error) => {
                discard(store, &staged.token).await;
                return Err(error.with_path(path));
            }
        };
        note(store, path, &wrong);
        discard(store, &staged.token).await;
        // What is written again is what came and was verified, unless memory fails as well.
        if is_last || tree.size() != ByteCount(bytes.len() as u64) || tree.verify(0, &bytes).is_err() {
            break;
        }
        let token = app.lease.token()?;
        let file = SmallFile { key: key_for_stage(store, &token)?, token, bytes: bytes.clone() };
        let again = meter.waiting(Wait::Disk, store.store.stage_small(vec![file])).await?.pop();
        staged = again.ok_or_else(|| ApiError::internal("a small file was staged without a result"))??;
    }
    Err(wrong_again(store, path))
}

async fn discard(store: &OpenStore, token: &StageToken) {
    if let Err(error) = store.store.discard(token).await {
        tracing::info!(%error, "a staged copy was not discarded; it goes with the server's lease");
    }
}
