//! What changes elsewhere: the journal of each space, applied to what is known here, and told to the kernel.

use std::sync::Arc;
use std::time::Duration;

use percale_api::entries::Content;
use percale_api::tasks::Event;
use percale_core::ids::{EntryId, StoreId, VersionId};
use percale_core::state::ReplicaState;
use percale_core::tree::RootHash;
use percale_core::{Position, Timestamp};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::names::{Collection, NodeId, SpaceNumber, What};
use crate::object::{Copy, Object, Open};
use crate::state::{Shared, State};

/// How long it takes until a journal that cannot be followed is tried again.
const PAUSE: Duration = Duration::from_secs(1);

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

/// What the kernel is to be told.
#[derive(Debug, Default)]
struct News {
    names: Vec<(NodeId, Box<str>)>,
    contents: Vec<NodeId>,
}

/// Follows the journal of a space from a position on, until the mount ends.
pub async fn follow(shared: Arc<Shared>, number: SpaceNumber, mut since: Option<Position>) {
    loop {
        if let Err(error) = follow_once(&shared, number, since.take()).await {
            tracing::warn!(%error, "cannot follow a space; what is known of it is asked for anew");
        }
        forget_all(&shared, number);
        tokio::time::sleep(PAUSE).await;
    }
}

async fn follow_once(
    shared: &Shared,
    number: SpaceNumber,
    since: Option<Position>,
) -> percale_client::Result<()> {
    let Some(name) = shared.state().spaces.get(usize::from(number.0)).map(|space| space.name.clone()) else {
        return Ok(());
    };
    let since = match since {
        Some(since) => since.to_string(),
        None => shared.session.client.space(&name).await?.position,
    };
    let mut events = shared.session.client.events(&name, Some(since)).await?;
    if let Some(space) = shared.state().spaces.get_mut(usize::from(number.0)) {
        space.is_followed = true;
    }
    while let Some(event) = events.next().await? {
        let news = apply(shared, number, &event);
        for (parent, name) in news.names {
            shared.forget_name(parent, name);
        }
        for node in news.contents {
            shared.forget_content(node);
        }
    }
    Ok(())
}

/// Forgets what is known of a space, since something may have been missed.
fn forget_all(shared: &Shared, number: SpaceNumber) {
    let mut names = Vec::new();
    {
        let mut state = shared.state();
        if let Some(space) = state.spaces.get_mut(usize::from(number.0)) {
            space.is_followed = false;
        }
        names.extend(forget_children(&mut state, number));
    }
    for (parent, name) in names {
        shared.forget_name(parent, name);
    }
}

fn forget_children(state: &mut State, number: SpaceNumber) -> Vec<(NodeId, Box<str>)> {
    let mut names = Vec::new();
    for id in state.names.collections() {
        if state.names.get(id).is_some_and(|node| node.space == Some(number)) {
            let children = state.names.forget_children(id);
            names.extend(children.into_iter().map(|name| (id, name)));
        }
    }
    names
}

fn apply(shared: &Shared, number: SpaceNumber, event: &Event) -> News {
    let mut news = News::default();
    let position: Option<Position> = event.position.parse().ok();
    let mut state = shared.state();
    let at = (number, position);
    match event.kind.as_str() {
        "entries.created" => {
            items(event).into_iter().for_each(|item| created(shared, &mut state, at, item, &mut news))
        }
        "objects.published" => {
            items(event).into_iter().for_each(|item| published(shared, &mut state, at, item, &mut news))
        }
        "entries.moved" => {
            items(event).into_iter().for_each(|item| moved(shared, &mut state, at, item, &mut news))
        }
        "entries.removed" => items(event)
            .into_iter()
            .for_each(|item: Removed| removed(shared, &mut state, at, item.id, &mut news)),
        "replicas.changed" => {
            items(event).into_iter().for_each(|item: Replica| replica(shared, &mut state, number, &item))
        }
        "grants.changed" | "space.changed" | "space.removed" => {
            // What may be seen and done is another thing now.
            news.names.extend(forget_children(&mut state, number));
        }
        _ => {}
    }
    if let Some(position) = position {
        state.owned.passed(position);
    }
    news
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

type At = (SpaceNumber, Option<Position>);

/// Returns a collection in which a record is to be applied: one whose listing is known and older than the record.
fn open_collection(
    shared: &Shared,
    state: &mut State,
    (number, position): At,
    parent: EntryId,
) -> Option<NodeId> {
    let id = state.names.of_entry(number, parent)?;
    shared.touch(state, id);
    let is_listed = state.names.collection(id)?.is_listed;
    let is_newer = match (state.listed_at.get(&id), position) {
        (Some(listed), Some(position)) => listed.term != position.term || listed.seq < position.seq,
        _ => true,
    };
    (is_listed && is_newer).then_some(id)
}

fn created(shared: &Shared, state: &mut State, at: At, item: Created, news: &mut News) {
    let Some(parent) = open_collection(shared, state, at, item.parent) else { return };
    if state.names.of_entry(at.0, item.id).is_some() || state.owned.covers(parent, &item.name, at.1) {
        return;
    }
    if let Some(other) = state.names.child(parent, &item.name) {
        if waits(state, other) {
            return;
        }
        state.names.unlink(other);
    }
    let what = What::Collection(Collection::new(Some(item.at)));
    state.names.add(parent, &item.name, (at.0, item.id), what);
    news.names.push((parent, item.name.into()));
}

/// Tells whether a node was changed here, and that is not published yet.
fn waits(state: &State, id: NodeId) -> bool {
    state.names.object(id).is_some_and(|object| object.work.is_some())
}

fn published(shared: &Shared, state: &mut State, at: At, item: Published, news: &mut News) {
    let parent = open_collection(shared, state, at, item.parent);
    let copy = copy_of(shared, &item.replica);
    let mtime = item.mtime.unwrap_or_else(Timestamp::now);
    let content =
        Content { version: item.version, size: item.size, root: item.root, mtime, digests: Vec::new() };
    if let Some(known) = state.names.of_entry(at.0, item.id) {
        return overwritten(state, known, content, copy, news);
    }
    let Some(parent) = parent.filter(|parent| !state.owned.covers(*parent, &item.name, at.1)) else { return };
    if let Some(other) = state.names.child(parent, &item.name) {
        // Its own publication is told here before it was answered, or it will be decided who was first.
        if waits(state, other) {
            return;
        }
        state.names.unlink(other);
    }
    let object = Object::of_content(content, copy);
    state.names.add(parent, &item.name, (at.0, item.id), What::Object(Box::new(object)));
    news.names.push((parent, item.name.into()));
}

/// Takes a new version of an object over.
fn overwritten(state: &mut State, id: NodeId, content: Content, copy: Option<Copy>, news: &mut News) {
    let Some(node) = state.names.get(id) else { return };
    let place = (node.parent, node.name.clone());
    let Some(object) = state.names.object_mut(id) else { return };
    if !crate::names::is_older(object.content.as_ref(), content.version) {
        // What this mount published itself, or knows already; but where it lies is told here.
        if object.content.as_ref().is_some_and(|known| known.version == content.version) && copy.is_some() {
            object.copy = copy;
        }
        return;
    }
    if object.work.is_some() {
        // Programs are writing it: what they write comes after this version.
        object.content = Some(content);
        object.copy = copy;
        return;
    }
    if matches!(object.open, Open::No) {
        object.content = Some(content);
        object.copy = copy;
        object.mode = None;
        news.contents.push(id);
    } else {
        // Whoever has it open goes on with what it was.
        let other = Object::of_content(content, copy);
        state.names.replace(id, What::Object(Box::new(other)));
    }
    news.names.push(place);
}

fn copy_of(shared: &Shared, replica: &Replica) -> Option<Copy> {
    let is_readable = matches!(replica.state, ReplicaState::Good | ReplicaState::Unverified);
    let store = shared.session.number(replica.store).filter(|_| is_readable)?;
    Some(Copy { store, key: replica.key.as_str().into() })
}

fn moved(shared: &Shared, state: &mut State, at: At, item: Moved, news: &mut News) {
    let parent = open_collection(shared, state, at, item.parent);
    let known = state.names.of_entry(at.0, item.id);
    match (known, parent) {
        (Some(id), Some(parent)) => {
            let Some(node) = state.names.get(id) else { return };
            let is_own = |parent, name: &str| state.owned.covers(parent, name, at.1);
            if (node.parent == parent && *node.name == *item.name)
                || is_own(parent, &item.name)
                || is_own(node.parent, &node.name)
            {
                return;
            }
            news.names.push((node.parent, node.name.clone()));
            state.names.rename(id, parent, &item.name);
            news.names.push((parent, item.name.into()));
        }
        // To where nothing is known of: it is found there when somebody looks.
        (Some(_), None) => removed(shared, state, at, item.id, news),
        // From where nothing is known of: the collection is listed anew.
        (None, Some(parent)) if !state.owned.covers(parent, &item.name, at.1) => {
            if let Some(collection) = state.names.collection_mut(parent) {
                collection.is_listed = false;
            }
            news.names.push((parent, item.name.into()));
        }
        (None, _) => {}
    }
}

fn removed(shared: &Shared, state: &mut State, (number, position): At, id: EntryId, news: &mut News) {
    let Some(known) = state.names.of_entry(number, id) else { return };
    let Some(node) = state.names.get(known) else { return };
    let place = (node.parent, node.name.clone());
    if state.owned.covers(place.0, &place.1, position) {
        return;
    }
    shared.touch(state, place.0);
    if waits(state, known) {
        // It comes back when what programs write is published.
        if let Some(node) = state.names.get_mut(known) {
            node.entry = None;
        }
        return;
    }
    state.names.unlink(known);
    news.names.push(place);
}

/// Notes that a copy that this host sees is there, or cannot be read any more.
fn replica(shared: &Shared, state: &mut State, number: SpaceNumber, item: &Replica) {
    // Only objects that are known matter, and a version is found by looking at them; that is rare.
    let Some(store) = shared.session.number(item.store) else { return };
    let is_readable = matches!(item.state, ReplicaState::Good | ReplicaState::Unverified);
    let Some(object) = state.names.of_version(number, item.version) else { return };
    if is_readable {
        object.copy.get_or_insert_with(|| Copy { store, key: item.key.as_str().into() });
    } else if object.copy.as_ref().is_some_and(|copy| copy.store == store) {
        object.copy = None;
    }
}
