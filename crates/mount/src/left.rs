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
use crate::names::{LEFT, carry};
use crate::session::Place;
use crate::state::{Shared, State, modified};

/// How often it is looked whether a program that goes on writing has closed its file, at first and at the most.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_secs(1);

/// The pauses between looks at something that ends by itself, sooner or later.
pub fn pauses() -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(FIRST_LOOK), |pause| Some(LAST_LOOK.min(*pause * 2)))
}

/// What an earlier process staged that is neither published nor on its way, by the names of the staged files.
pub type Lefts = BTreeMap<Box<str>, Behind>;

/// A file of these.
#[derive(Debug)]
pub struct Behind {
    /// Where it lies, and where it belongs.
    pub left: Left,
    /// Whether it was refused, or could not be looked at: it is tried again when it belongs elsewhere. Else a program still writes it,
    /// or its store is not seen.
    pub is_refused: bool,
}

/// Publishes what was staged, in that order. A file that a program has open goes on being written without the mount that it was opened
/// in, where the kernel writes it itself: it is published when that is over. Returns what waits for it.
pub fn publish(shared: &Arc<Shared>, left: Vec<(Box<str>, Left)>) -> Vec<JoinHandle<()>> {
    let mut waiting = Vec::new();
    for (token, left) in left {
        let path = left.path.clone();
        let Some(place) = place_of(shared, &token, &left) else {
            tracing::error!(%path, %token, "what was written before lies on a store that this host does not see now; a later mount at this directory publishes it");
            shared.state().left.insert(token, Behind { left, is_refused: false });
            continue;
        };
        if shared.session.is_written(&place) {
            tracing::warn!(%path, "a program still writes what it opened before this process began; it is published when it closes it");
            shared.state().left.insert(token, Behind { left, is_refused: false });
            let shared = shared.clone();
            waiting.push(shared.runtime.clone().spawn(async move {
                for pause in pauses() {
                    tokio::time::sleep(pause).await;
                    if !shared.session.is_written(&place) {
                        let mut state = shared.state();
                        // Its directory may have been moved meanwhile.
                        let path = state.left.get(&place.token).map(|behind| behind.left.path.clone());
                        path.into_iter().for_each(|path| publish_one(&shared, &mut state, &place, path));
                        return;
                    }
                }
            }));
        } else {
            publish_one(shared, &mut shared.state(), &place, path);
        }
    }
    waiting
}

/// Returns where a file lies, if this host sees its store.
fn place_of(shared: &Shared, token: &str, left: &Left) -> Option<Place> {
    let store = match left.store {
        Some(store) => Some(shared.session.number(store)?),
        None => None,
    };
    Some(Place { store, token: token.into(), key: left.key.clone() })
}

/// Takes over that a collection has another path, for all that belong in it.
pub fn moved(shared: &Shared, state: &mut State, from: &ObjectPath, to: &ObjectPath) {
    let mut again = Vec::new();
    for (token, behind) in &mut state.left {
        if carry(&mut behind.left.path, from, to) {
            shared.log.staged(token, &behind.left);
            let place = place_of(shared, token, &behind.left).filter(|_| behind.is_refused);
            again.extend(place.map(|place| (place, behind.left.path.clone())));
        }
    }
    for (place, path) in again {
        publish_one(shared, state, &place, path);
    }
}

/// Notes that a file cannot be published for now.
pub fn refused(shared: &Shared, state: &mut State, place: &Place, path: ObjectPath) {
    let store = place.store.and_then(|store| shared.session.store_id(store));
    let left = Left { path, store, key: place.key.clone() };
    state.left.insert(place.token.clone(), Behind { left, is_refused: true });
}

fn publish_one(shared: &Shared, state: &mut State, place: &Place, path: ObjectPath) {
    let stat = match shared.session.stat_written(place) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => {
            // It was published, and only the answer is missing in the log.
            shared.log.done(&place.token);
            state.left.remove(&place.token);
            return;
        }
        Err(errno) => {
            tracing::error!(
                %path, %errno, staged = %place.token,
                "what was written before this process began cannot be looked at; the next mount at this directory tries again"
            );
            return refused(shared, state, place, path);
        }
    };
    tracing::info!(%path, bytes = stat.stx_size, "publishing what was written before this process began");
    let staged = Staged {
        node: LEFT,
        path,
        place: place.clone(),
        size: stat.stx_size,
        inode: stat.stx_ino,
        mtime: modified(&stat),
        mode: FileMode::of(stat.stx_mode.into()),
        condition: Condition::Any,
    };
    shared.submit(state, Change::Publish(staged), Vec::new());
    // Not before: whoever finds nothing here and nothing on its way ends the session, and all that is staged in it.
    state.left.remove(&place.token);
}
