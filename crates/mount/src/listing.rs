//! What is in collections, asked for when somebody looks: listed in whole, or name by name where that would be too much.

use std::collections::HashSet;
use std::sync::PoisonError;
use std::time::Duration;

use fuser::Errno;
use percale_api::entries::Entry;
use percale_core::access::Permission;
use percale_core::{ErrorCode, ObjectPath, Position};

use crate::names::{NodeId, SpaceNumber};
use crate::state::{Shared, State};

/// For how long a listing waits for what was changed here before.
const PUBLISH_WAIT: Duration = Duration::from_secs(5);
/// How often a listing that changes while it is read is begun again.
const LISTINGS: usize = 3;
/// How many names of a collection of more than a page are asked for before it is listed: a million names are a hundred pages,
/// so at worst twice as much is asked as a listing at once would have.
const ASKED_FOR: u32 = 100;

impl Shared {
    /// Lists a collection, if it is not known what is in it.
    ///
    /// # Errors
    /// What the site answers, logged.
    pub async fn list(&self, id: NodeId) -> Result<(), Errno> {
        self.ensure_listed(id, false).await.map(drop)
    }

    /// Lists a collection for one name in it, unless it has more than a page of names and was not asked for many of them yet.
    /// Tells whether it is listed now.
    ///
    /// # Errors
    /// What the site answers, logged.
    pub async fn list_for_a_name(&self, id: NodeId) -> Result<bool, Errno> {
        let is_large = {
            let mut state = self.state();
            let collection = state.names.collection_mut(id).ok_or(Errno::ENOTDIR)?;
            let is_large = !collection.is_listed && (1..ASKED_FOR).contains(&collection.asked_for);
            collection.asked_for += u32::from(is_large);
            is_large
        };
        if is_large { Ok(false) } else { self.ensure_listed(id, true).await }
    }

    /// Finds out what has a name that is about to be changed: lists the collection, or asks for the name alone if it is large.
    ///
    /// # Errors
    /// What the site answers, logged.
    pub async fn know(&self, parent: NodeId, name: &str) -> Result<(), Errno> {
        if !self.list_for_a_name(parent).await? {
            self.ask_for(parent, name).await?;
        }
        Ok(())
    }

    async fn ensure_listed(&self, id: NodeId, for_a_name: bool) -> Result<bool, Errno> {
        if self.is_listed(id)? {
            return Ok(true);
        }
        let one = self.loads.lock().unwrap_or_else(PoisonError::into_inner).entry(id).or_default().clone();
        let outcome = {
            let _one = one.lock().await;
            if self.is_listed(id)? { Ok(true) } else { self.load(id, for_a_name).await }
        };
        self.loads.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        outcome
    }

    fn is_listed(&self, id: NodeId) -> Result<bool, Errno> {
        let state = self.state();
        let collection = state.names.collection(id).ok_or(Errno::ENOTDIR)?;
        Ok(collection.is_listed)
    }

    async fn load(&self, id: NodeId, for_a_name: bool) -> Result<bool, Errno> {
        let (path, space, needs_all) = {
            let state = self.state();
            let path = self.path(&state, id).ok_or(Errno::ENOENT)?;
            let space = state.names.get(id).and_then(|node| node.space).ok_or(Errno::ENOENT)?;
            let collection = state.names.collection(id).ok_or(Errno::ENOTDIR)?;
            let needs_all = !for_a_name || collection.asked_for >= ASKED_FOR;
            if !needs_all && collection.asked_for > 0 {
                // Somebody found out while this was waited for.
                return Ok(false);
            }
            (path, space, needs_all)
        };
        // What was changed here before is part of what is listed.
        let _ = tokio::time::timeout(PUBLISH_WAIT, self.changes.until_done(None)).await;
        let _reading = Reading::begin(self);
        for round in 1.. {
            self.state().names.collection_mut(id).ok_or(Errno::ENOENT)?.is_touched = false;
            let read = self.read_listing(&path, needs_all).await;
            let mut state = self.state();
            let is_gone = read.as_ref().is_err_and(|error| error.code() == ErrorCode::NotFound);
            let is_kept = is_gone
                && (state.names.get(id).is_some_and(|node| node.entry.is_none()) || state.names.waits(id));
            let collection = state.names.collection_mut(id).ok_or(Errno::ENOENT)?;
            let has_changed = collection.is_touched;
            let listed = match read {
                // Others removed it: what is in it is what waits to be published.
                Err(_) if is_kept => Listed { is_whole: true, ..Listed::default() },
                read => read.map_err(|error| self.session.not_seen(&path, &error))?,
            };
            if !listed.is_whole {
                collection.permission = listed.permission;
                collection.asked_for = collection.asked_for.max(1);
                return Ok(false);
            }
            if has_changed && round < LISTINGS {
                continue;
            }
            self.merge(&mut state, (id, space), listed);
            if let Some(collection) = state.names.collection_mut(id) {
                collection.is_listed = !has_changed;
                collection.is_restless = has_changed;
                collection.asked_for = 0;
            }
            break;
        }
        Ok(true)
    }

    /// Reads a listing, or its first page if not all is needed and there are more.
    async fn read_listing(&self, path: &ObjectPath, needs_all: bool) -> percale_client::Result<Listed> {
        let mut listed = Listed::default();
        let mut cursor = None;
        loop {
            let listing =
                self.session.client.list_by_mount(self.session.id(), path, cursor.as_deref()).await?;
            listed.entries.extend(listing.page.items);
            listed.permission = listing.permission.or(listed.permission);
            listed.position = listed.position.or(listing.position);
            cursor = listing.page.next;
            listed.is_whole = cursor.is_none();
            if listed.is_whole || !needs_all {
                return Ok(listed);
            }
        }
    }

    /// Asks for one name in a collection that is not listed, and takes over what has it. Returns that.
    ///
    /// # Errors
    /// What the site answers, logged.
    pub async fn ask_for(&self, parent: NodeId, name: &str) -> Result<Option<NodeId>, Errno> {
        let (path, space) = {
            let state = self.state();
            if state.owned.covers(parent, name, None) {
                // What was changed here last.
                return Ok(state.names.child(parent, name));
            }
            let space = state.names.get(parent).and_then(|node| node.space).ok_or(Errno::ENOENT)?;
            // Nothing has a name that cannot be one.
            let Ok(path) = self.path_in(&state, parent, name) else { return Ok(None) };
            (path, space)
        };
        let _reading = Reading::begin(self);
        let found = self.session.client.entry_by_mount(self.session.id(), &path).await;
        let found = found.map_err(|error| self.session.not_seen(&path, &error))?;
        let mut state = self.state();
        match found {
            _ if state.owned.covers(parent, name, None) => {}
            Some(entry) => self.put(&mut state, (parent, space), name, &entry),
            None => {
                let known = state.names.child(parent, name);
                if let Some(known) = known.filter(|known| !self.is_ours(&state, (parent, *known), None)) {
                    state.names.unlink(known);
                }
            }
        }
        Ok(state.names.child(parent, name))
    }

    /// Tells whether a node is not in the catalog since what was made here is not published yet, or what is below it.
    fn is_ours(&self, state: &State, (parent, child): (NodeId, NodeId), at: Option<Position>) -> bool {
        state.names.get(child).is_some_and(|node| {
            state.owned.covers(parent, &node.name, at) || node.entry.is_none() || state.names.waits(child)
        })
    }

    /// Takes a listing over. What was made here and is not published yet stays.
    fn merge(&self, state: &mut State, (id, space): (NodeId, SpaceNumber), listed: Listed) {
        let Listed { entries, permission, position, .. } = listed;
        let mut there: HashSet<Box<str>> = HashSet::with_capacity(entries.len());
        for entry in entries {
            let Some(name) = entry.path.name() else { continue };
            there.insert(name.into());
            if state.owned.covers(id, name, position) {
                // What is on its way here decides what the name will mean.
                continue;
            }
            self.put(state, (id, space), name, &entry);
        }
        let gone: Vec<NodeId> = match state.names.collection(id) {
            Some(collection) => {
                let gone = collection.children.iter().filter(|(name, _)| !there.contains(*name));
                gone.map(|(_, child)| *child).collect()
            }
            None => return,
        };
        for child in gone {
            if !self.is_ours(state, (id, child), position) {
                state.names.unlink(child);
            }
        }
        if let Some(collection) = state.names.collection_mut(id) {
            collection.permission = permission;
            collection.listed_at = position.or(collection.listed_at);
        }
    }
}

/// Lasts while a listing is read, and until it was taken over.
struct Reading<'a>(&'a Shared);

impl<'a> Reading<'a> {
    fn begin(shared: &'a Shared) -> Self {
        shared.state().owned.reading();
        Self(shared)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.state().owned.merged();
    }
}

#[derive(Default)]
struct Listed {
    entries: Vec<Entry>,
    permission: Option<Permission>,
    position: Option<Position>,
    is_whole: bool,
}
