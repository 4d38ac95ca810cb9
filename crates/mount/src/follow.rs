//! What changes elsewhere: the journal of each space, applied to what is known here, and told to the kernel.

use std::sync::Arc;
use std::time::Duration;

use percale_api::entries::{Attributes, Content};
use percale_api::tasks::Event;
use percale_client::{Client, Retry, RetryPolicy};
use percale_core::ids::{EntryId, StoreId, VersionId};
use percale_core::state::ReplicaState;
use percale_core::tree::RootHash;
use percale_core::{FileMode, LinkTarget, Position, Timestamp};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::names::{Collection, Link, NodeId, SpaceNumber, What};
use crate::object::{LocalCopy, Object};
use crate::state::{Shared, State};

/// How long it takes until a journal that cannot be followed is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// For how long one that broke off is taken up again before the kernel is told to believe less.
const TAKEN_UP: Duration = Duration::from_secs(5);

#[derive(Debug, Deserialize)]
struct Created {
    id: EntryId,
    parent: EntryId,
    name: String,
    at: Timestamp,
}

#[derive(Debug, Deserialize)]
struct Published {
    id: EntryId,
    parent: EntryId,
    name: String,
    version: VersionId,
    size: u64,
    root: Option<RootHash>,
    mtime: Option<Timestamp>,
    mode: Option<FileMode>,
    replica: Replica,
}

#[derive(Debug, Deserialize)]
struct Replica {
    version: VersionId,
    store: StoreId,
    state: ReplicaState,
    key: String,
}

#[derive(Debug, Deserialize)]
struct Changed {
    id: EntryId,
    mtime: Option<Timestamp>,
    mode: Option<FileMode>,
}

#[derive(Debug, Deserialize)]
struct Linked {
    id: EntryId,
    parent: EntryId,
    name: String,
    target: LinkTarget,
    at: Timestamp,
}

#[derive(Debug, Deserialize)]
struct Moved {
    id: EntryId,
    parent: EntryId,
    name: String,
}

#[derive(Debug, Deserialize)]
struct Removed {
    id: EntryId,
}

#[derive(Deserialize)]
struct Items<T> {
    items: Vec<T>,
}

/// Follows the journal of a space from a position on, until the mount ends.
pub async fn follow(shared: Arc<Shared>, number: SpaceNumber, mut since: Option<Position>) {
    let mut policy = RetryPolicy::default();
    policy.give_up_after = TAKEN_UP;
    let client = shared.session.client.with_retry(policy);
    let mut is_told = false;
    loop {
        let ended = follow_once(&shared, &client, number, since.take()).await;
        is_told &= !set_followed(&shared, number, false);
        match ended {
            // The site is away: what is known is all that there is, and is doubted when the site is there again.
            Err(error) if error.retry() != Retry::Permanent => {
                if !is_told {
                    tracing::warn!(%error, "cannot follow a space; what is known of it is believed until the site is back");
                }
                is_told = true;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot follow a space; what is known of it is asked for anew");
                doubt(&shared, number);
            }
            Ok(()) => doubt(&shared, number),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn follow_once(
    shared: &Shared,
    client: &Client,
    number: SpaceNumber,
    since: Option<Position>,
) -> percale_client::Result<()> {
    let Some(name) = shared.state().spaces.get(usize::from(number.0)).map(|space| space.name.clone()) else {
        return Ok(());
    };
    let from = match since {
        Some(since) => since.to_string(),
        None => client.space(&name).await?.position,
    };
    let mut events = client.events(&name, Some(from)).await?;
    set_followed(shared, number, true);
    if since.is_none() {
        // What was listed since the journal broke off may be older than where it is followed from.
        doubt(shared, number);
    }
    while let Some(event) = events.next().await? {
        apply(shared, number, &event);
    }
    Ok(())
}

/// Notes whether the journal of a space is followed. Tells whether it was before.
fn set_followed(shared: &Shared, number: SpaceNumber, is_followed: bool) -> bool {
    let mut state = shared.state();
    let space = state.spaces.get_mut(usize::from(number.0));
    space.is_some_and(|space| std::mem::replace(&mut space.is_followed, is_followed))
}

/// Doubts what is known of a space, since something may have been missed.
fn doubt(shared: &Shared, number: SpaceNumber) {
    doubt_all(shared, &mut shared.state(), number);
}

fn doubt_all(shared: &Shared, state: &mut State, number: SpaceNumber) {
    for id in state.names.collections() {
        if state.names.get(id).is_some_and(|node| node.space == Some(number)) {
            shared.doubt(state, id);
        }
    }
}

/// The place of a record: its space, its position there, and when it was made.
#[derive(Debug, Clone, Copy)]
struct At {
    space: SpaceNumber,
    position: Option<Position>,
    time: Timestamp,
}

fn apply(shared: &Shared, number: SpaceNumber, event: &Event) {
    let position: Option<Position> = event.position.parse().ok();
    let at = At { space: number, position, time: event.at };
    let mut state = shared.state();
    match event.kind.as_str() {
        "entries.created" => items(event).into_iter().for_each(|item| created(shared, &mut state, at, item)),
        "links.created" => items(event).into_iter().for_each(|item| linked(shared, &mut state, at, item)),
        "objects.published" => {
            items(event).into_iter().for_each(|item| published(shared, &mut state, at, item))
        }
        "objects.changed" => items(event).into_iter().for_each(|item| changed(shared, &mut state, at, item)),
        "entries.moved" => items(event).into_iter().for_each(|item| moved(shared, &mut state, at, item)),
        "entries.removed" => {
            items(event).into_iter().for_each(|item: Removed| removed(shared, &mut state, at, item.id))
        }
        "replicas.changed" => {
            items(event).into_iter().for_each(|item: Replica| replica(shared, &mut state, number, &item))
        }
        // What may be seen and done is another thing now.
        "grants.changed" | "space.changed" | "space.removed" => doubt_all(shared, &mut state, number),
        _ => {}
    }
    if let Some(position) = position {
        state.owned.passed(position);
    }
}

fn items<T: DeserializeOwned>(event: &Event) -> Vec<T> {
    match Items::deserialize(&event.body) {
        Ok(Items { items }) => items,
        Err(error) => {
            tracing::warn!(kind = event.kind, position = event.position, %error, "a record of the journal is not understood");
            Vec::new()
        }
    }
}

/// Returns a collection in which a record is to be applied to a name: one whose listing is known and older than the record.
fn open_collection(
    shared: &Shared,
    state: &mut State,
    at: At,
    (parent, name): (EntryId, &str),
) -> Option<NodeId> {
    let id = state.names.of_entry(at.space, parent)?;
    shared.touch(state, id);
    if !state.names.collection(id)?.is_listed {
        if !state.owned.covers(id, name, at.position) {
            // While it was, the kernel may have been told that nothing has the name.
            shared.forget_name(id, name.into());
        }
        return None;
    }
    is_news(state, at, id).then_some(id)
}

/// Tells whether a record is newer than what was listed of a collection.
fn is_news(state: &State, at: At, id: NodeId) -> bool {
    match (state.names.collection(id).and_then(|collection| collection.listed_at), at.position) {
        (Some(listed), Some(position)) => listed.term != position.term || listed.seq < position.seq,
        _ => true,
    }
}

fn created(shared: &Shared, state: &mut State, at: At, item: Created) {
    let what = What::Collection(Collection::new(Some(item.at)).into());
    made(shared, state, at, (item.parent, item.id, item.name), what);
}

fn linked(shared: &Shared, state: &mut State, at: At, item: Linked) {
    let what = What::Link(Link { target: item.target, modified: item.at });
    made(shared, state, at, (item.parent, item.id, item.name), what);
}

fn made(
    shared: &Shared,
    state: &mut State,
    at: At,
    (parent, id, name): (EntryId, EntryId, String),
    what: What,
) {
    let Some(parent) = open_collection(shared, state, at, (parent, &name)) else { return };
    if state.names.of_entry(at.space, id).is_some() || state.owned.covers(parent, &name, at.position) {
        return;
    }
    if let Some(other) = state.names.child(parent, &name) {
        if state.names.waits(other) {
            return shared.come_back(state, other, (id, matches!(what, What::Collection(_))));
        }
        state.names.unlink(other);
    }
    state.names.add(parent, &name, (at.space, id), what);
    shared.forget_name(parent, name.into());
}

fn published(shared: &Shared, state: &mut State, at: At, item: Published) {
    let parent = open_collection(shared, state, at, (item.parent, &item.name));
    let copy = copy_of(shared, &item.replica);
    let mtime = item.mtime.unwrap_or(at.time);
    let Published { version, size, root, mode, .. } = item;
    let content = Content { version, size, root, mtime, mode, digests: Vec::new() };
    if let Some(known) = state.names.of_entry(at.space, item.id) {
        return shared.overwritten(state, known, content, copy);
    }
    let Some(parent) = parent.filter(|parent| !state.owned.covers(*parent, &item.name, at.position)) else {
        return;
    };
    if let Some(other) = state.names.child(parent, &item.name) {
        // Its own publication is told here before it was answered, or it will be decided who was first.
        if state.names.waits(other) {
            return;
        }
        state.names.unlink(other);
    }
    let object = Object::of_content(content, copy);
    state.names.add(parent, &item.name, (at.space, item.id), What::Object(Box::new(object)));
    shared.forget_name(parent, item.name.into());
}

fn changed(shared: &Shared, state: &mut State, at: At, item: Changed) {
    let Some(known) = state.names.of_entry(at.space, item.id) else { return };
    let Some(node) = state.names.get(known) else { return };
    // What is changed here after it is on its way.
    if !state.owned.covers(node.parent, &node.name, at.position) {
        shared.said(state, known, Attributes { mtime: item.mtime, mode: item.mode });
    }
}

fn copy_of(shared: &Shared, replica: &Replica) -> Option<LocalCopy> {
    let store = shared.session.number(replica.store)?;
    let is_usable = shared.session.is_usable(store, replica.state);
    is_usable.then(|| LocalCopy { store, key: replica.key.as_str().into() })
}

fn moved(shared: &Shared, state: &mut State, at: At, item: Moved) {
    let parent = open_collection(shared, state, at, (item.parent, &item.name));
    let known = state.names.of_entry(at.space, item.id);
    match (known, parent) {
        (Some(id), Some(parent)) => {
            let Some(node) = state.names.get(id) else { return };
            let is_own = |parent, name: &str| state.owned.covers(parent, name, at.position);
            if (node.parent == parent && *node.name == *item.name)
                || is_own(parent, &item.name)
                || is_own(node.parent, &node.name)
            {
                return;
            }
            if state.names.child(parent, &item.name).is_some_and(|other| state.names.waits(other)) {
                // It will be decided who was first.
                return removed(shared, state, at, item.id);
            }
            shared.forget_name(node.parent, node.name.clone());
            shared.move_node(state, id, (parent, &item.name));
            shared.forget_name(parent, item.name.into());
        }
        (Some(id), None) => {
            let known = state.names.of_entry(at.space, item.parent);
            let Some(node) = state.names.get(id) else { return };
            let is_there = Some(node.parent) == known && *node.name == *item.name;
            let is_own = |parent, name: &str| state.owned.covers(parent, name, at.position);
            if is_there || is_own(node.parent, &node.name) || !is_news(state, at, node.parent) {
                // Or it was listed where it is after it was moved.
                return;
            }
            if state.names.collection(id).is_none() || !state.names.waits(id) {
                // To where nothing is known of: it is found there when somebody looks.
                return removed(shared, state, at, item.id);
            }
            // What programs write below it needs a path: where it is now, if it is known what that is in.
            let (old, old_name) = (node.parent, node.name.clone());
            let has_room = |parent: NodeId| {
                let other = state.names.child(parent, &item.name);
                state.names.collection(parent).is_some()
                    && other.is_none_or(|other| !state.names.waits(other))
            };
            match known.filter(|parent| has_room(*parent)) {
                Some(parent) => {
                    shared.move_node(state, id, (parent, &item.name));
                    shared.forget_name(parent, item.name.into());
                }
                None => {
                    // It is looked for when its old place is listed again, and stays there as long as nobody finds it.
                    if let Some(collection) = state.names.collection_mut(old) {
                        collection.is_listed = false;
                    }
                }
            }
            shared.forget_name(old, old_name);
        }
        // From where nothing is known of: the collection is listed anew.
        (None, Some(parent)) if !state.owned.covers(parent, &item.name, at.position) => {
            if let Some(collection) = state.names.collection_mut(parent) {
                collection.is_listed = false;
            }
            shared.forget_name(parent, item.name.into());
        }
        (None, _) => {}
    }
}

fn removed(shared: &Shared, state: &mut State, at: At, id: EntryId) {
    let Some(known) = state.names.of_entry(at.space, id) else { return };
    let Some(node) = state.names.get(known) else { return };
    let (parent, name) = (node.parent, node.name.clone());
    if state.owned.covers(parent, &name, at.position) {
        return;
    }
    shared.touch(state, parent);
    if state.names.waits(known) {
        // It comes back when what programs write is published. What is below a collection cannot be, but renamed, or it waits until
        // somebody makes the collection again.
        if let Some(node) = state.names.get_mut(known) {
            node.entry = None;
        }
        return;
    }
    state.names.unlink(known);
    shared.forget_name(parent, name);
}

/// Notes that a copy that this host sees is there, or cannot be read any more.
fn replica(shared: &Shared, state: &mut State, number: SpaceNumber, item: &Replica) {
    let Some(store) = shared.session.number(item.store) else { return };
    let is_usable = shared.session.is_usable(store, item.state);
    let Some(object) = state.names.of_version(number, item.version) else { return };
    if is_usable {
        object.copy.get_or_insert_with(|| LocalCopy { store, key: item.key.as_str().into() });
    } else if object.copy.as_ref().is_some_and(|copy| copy.store == store) {
        object.copy = None;
    }
}
