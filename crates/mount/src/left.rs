//! What a process that was killed had staged, published by the next one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use percale_api::uploads::Condition;
use percale_core::{FileMode, ObjectPath};
use rustix::io::Errno;
use tokio::task::JoinHandle;

use crate::changes::{Change, Staged};
use crate::log::Left;
use crate::names::LEFT;
use crate::session::Place;
use crate::state::{Shared, modified};

/// How often it is looked whether a program that goes on writing has closed its file, at first and at the most.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_secs(1);

/// The pauses between looks at something that ends by itself, sooner or later.
pub fn looks() -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(FIRST_LOOK), |pause| Some(LAST_LOOK.min(*pause * 2)))
}

/// Publishes what was staged. A file that a program has open goes on being written without the mount that it was opened in, where the
/// kernel writes it itself: it is published when that is over. Returns what waits for it.
pub fn publish(shared: &Arc<Shared>, left: &BTreeMap<Box<str>, Left>) -> Vec<JoinHandle<()>> {
    let mut waiting = Vec::new();
    for (token, Left { path, store, key }) in left {
        let number = store.and_then(|store| shared.session.number(store));
        if store.is_some() && number.is_none() {
            tracing::error!(%path, %token, "what was written before lies on a store that this host does not see now; a later mount at this directory publishes it");
            shared.state().left += 1;
            continue;
        }
        let place = Place { store: number, token: token.clone(), key: key.clone() };
        if shared.session.is_written(&place) {
            tracing::warn!(%path, "a program still writes what it opened before this process began; it is published when it closes it");
            shared.state().left += 1;
            let (shared, path) = (shared.clone(), path.clone());
            waiting.push(shared.runtime.clone().spawn(async move {
                for pause in looks() {
                    tokio::time::sleep(pause).await;
                    if !shared.session.is_written(&place) {
                        shared.state().left -= 1;
                        publish_one(&shared, place, path);
                        return;
                    }
                }
            }));
        } else {
            publish_one(shared, place, path.clone());
        }
    }
    waiting
}

fn publish_one(shared: &Shared, place: Place, path: ObjectPath) {
    let stat = match shared.session.stat_written(&place) {
        Ok(stat) => stat,
        // It was published, and only the answer is missing in the log.
        Err(Errno::NOENT) => return shared.log.done(&place.token),
        Err(errno) => {
            tracing::error!(
                %path, %errno, staged = %place.token,
                "what was written before this process began cannot be looked at; the next mount at this directory tries again"
            );
            shared.state().left += 1;
            return;
        }
    };
    tracing::info!(%path, bytes = stat.stx_size, "publishing what was written before this process began");
    let staged = Staged {
        node: LEFT,
        path,
        place,
        size: stat.stx_size,
        inode: stat.stx_ino,
        mtime: modified(&stat),
        mode: FileMode::of(stat.stx_mode.into()),
        condition: Condition::Any,
    };
    shared.submit(&mut shared.state(), Change::Publish(staged), Vec::new());
}
