//! Names that are made, changed and removed, through the mount or by others.

use fuser::Errno;
use percale_api::mounts::MountChange;
use percale_core::{ErrorCode, LinkTarget, ObjectPath};

use crate::changes::{Change, Pending};
use crate::error::errno;
use crate::names::{Node, NodeId, What, carry};
use crate::object::Object;
use crate::owned::Name;
use crate::state::{Shared, State};

impl Shared {
    /// Asks for a collection.
    ///
    /// # Errors
    /// What programs are told.
    pub fn ask_for_collection(&self, parent: NodeId, name: &str) -> Result<Pending, Errno> {
        let mut state = self.state();
        self.may_change(&state, parent)?;
        if state.names.child(parent, name).is_some() {
            return Err(Errno::EEXIST);
        }
        let path = self.path_in(&state, parent, name)?;
        let change = Change::Name(MountChange::MakeCollection { path });
        Ok(self.ask(&mut state, change, vec![(parent, name.into())]))
    }

    /// Asks for a symbolic link.
    ///
    /// # Errors
    /// What programs are told.
    pub fn ask_for_link(&self, parent: NodeId, name: &str, target: LinkTarget) -> Result<Pending, Errno> {
        let mut state = self.state();
        self.may_change(&state, parent)?;
        if state.names.child(parent, name).is_some() {
            return Err(Errno::EEXIST);
        }
        let path = self.path_in(&state, parent, name)?;
        let change = Change::Name(MountChange::MakeLink { path, target });
        Ok(self.ask(&mut state, change, vec![(parent, name.into())]))
    }

    /// Removes a file, if it is known what is in the collection.
    pub fn unlink_now(&self, parent: NodeId, name: &str) -> Option<Result<(), Errno>> {
        let mut state = self.state();
        let is_listed = state.names.collection(parent).is_some_and(|collection| collection.is_listed);
        if !is_listed || self.changes.is_full() {
            return None;
        }
        Some(self.unlink_in(&mut state, parent, name))
    }

    /// Removes a file or link.
    ///
    /// # Errors
    /// What programs are told.
    pub async fn unlink(&self, parent: NodeId, name: &str) -> Result<(), Errno> {
        self.changes.room().await?;
        self.know(parent, name).await?;
        self.unlink_in(&mut self.state(), parent, name)
    }

    fn unlink_in(&self, state: &mut State, parent: NodeId, name: &str) -> Result<(), Errno> {
        self.may_change(state, parent)?;
        let node = state.names.child(parent, name).ok_or(Errno::ENOENT)?;
        let path = self.path(state, node).ok_or(Errno::ENOENT)?;
        if state.names.collection(node).is_some() {
            return Err(Errno::EISDIR);
        }
        let replaces = state.names.object(node).is_some_and(Object::replaces);
        self.drop_work(state, node);
        let node_now = state.names.get(node).ok_or(Errno::ENOENT)?;
        let entry = node_now.entry;
        let has_entry = entry.is_some() || replaces;
        let is_published = state.names.object(node).is_some_and(Object::is_publishing);
        if let Some(work) =
            state.names.object(node).and_then(|object| object.work.as_ref().filter(|_| !object.is_open()))
        {
            // On its way: the room that it takes is free again, whatever becomes of it.
            self.session.discard(&work.place);
        }
        if has_entry || is_published {
            let change = MountChange::Remove { path, entry };
            self.submit(state, Change::Name(change), vec![(parent, name.into())]);
        }
        state.names.unlink(node);
        self.touch(state, parent);
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// What programs are told.
    pub async fn remove_collection(&self, parent: NodeId, name: &str) -> Result<(), Errno> {
        self.know(parent, name).await?;
        let node = {
            let state = self.state();
            self.may_change(&state, parent)?;
            let node = state.names.child(parent, name).ok_or(Errno::ENOENT)?;
            state.names.collection(node).ok_or(Errno::ENOTDIR)?;
            node
        };
        self.list(node).await?;
        let asked = {
            let mut state = self.state();
            let collection = state.names.collection(node).ok_or(Errno::ENOENT)?;
            if !collection.children.is_empty() {
                return Err(Errno::ENOTEMPTY);
            }
            let path = self.path(&state, node).ok_or(Errno::ENOENT)?;
            let entry = state.names.get(node).and_then(|node| node.entry);
            self.ask(
                &mut state,
                Change::Name(MountChange::Remove { path, entry }),
                vec![(parent, name.into())],
            )
        };
        match asked.done(self).await {
            // Somebody else removed it, and it was only kept for what programs wrote in it.
            Ok(_) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
        let mut state = self.state();
        if state.names.child(parent, name) == Some(node) {
            state.names.unlink(node);
        }
        self.touch(&mut state, parent);
        Ok(())
    }

    /// Waits until everything that was changed before is published.
    ///
    /// # Errors
    /// What programs are told: that the site is away, or, once, that something in this directory was refused.
    pub async fn sync_directory(&self, node: NodeId) -> Result<(), Errno> {
        self.end_mappings();
        self.changes.until_done_or_away(None).await.map_err(errno)?;
        let refused =
            self.state().names.collection_mut(node).and_then(|collection| collection.refused.take());
        match refused {
            None => Ok(()),
            Some(ErrorCode::NoSpace) => Err(Errno::ENOSPC),
            Some(ErrorCode::QuotaExceeded) => Err(Errno::EDQUOT),
            Some(_) => Err(Errno::EIO),
        }
    }

    /// Renames.
    ///
    /// # Errors
    /// What programs are told.
    pub async fn rename(
        &self,
        (parent, name): (NodeId, &str),
        (new_parent, new_name): (NodeId, &str),
        replaces: bool,
    ) -> Result<(), Errno> {
        self.know(parent, name).await?;
        self.know(new_parent, new_name).await?;
        let target = self.state().names.child(new_parent, new_name);
        if let Some(target) = target
            && self.state().names.collection(target).is_some()
        {
            // A directory gives way if it is empty.
            let is_directory = {
                let state = self.state();
                let node = state.names.child(parent, name).ok_or(Errno::ENOENT)?;
                if node == target {
                    return Ok(());
                }
                state.names.collection(node).is_some()
            };
            if !replaces {
                return Err(Errno::EEXIST);
            }
            if !is_directory {
                return Err(Errno::EISDIR);
            }
            self.remove_collection(new_parent, new_name).await?;
        }
        let waited = {
            let mut state = self.state();
            self.rename_in(&mut state, (parent, name), (new_parent, new_name), replaces)?
        };
        // A directory: whether it may be is decided where its space is ordered, and it gets its name with the answer.
        match waited {
            Some(pending) => pending.done(self).await.map(drop),
            None => Ok(()),
        }
    }

    /// Gives a directory the name that the site has moved it to, as a program asked.
    pub fn moved(&self, state: &mut State, names: &[Name], (from, to): (&ObjectPath, &ObjectPath)) {
        let [(new_parent, new_name), (parent, name)] = names else { return };
        match state.names.child(*parent, name) {
            Some(node) => self.move_node(state, node, (*new_parent, new_name)),
            None => self.move_paths(state, from, to),
        }
    }

    /// Gives a node the name that it has at the site, whoever moved it there. What programs wrote at it or below it belongs there now;
    /// what was refused is published there. One that would be below itself stays where it is, and is looked for again.
    pub fn move_node(&self, state: &mut State, id: NodeId, (parent, name): (NodeId, &str)) {
        if state.names.is_within(parent, id) {
            return self.misplaced(state, id, parent);
        }
        let from = self.path(state, id);
        state.names.rename(id, parent, name);
        if let (Some(from), Some(to)) = (from, self.path(state, id)) {
            for work in state.names.works_within(id) {
                let Some(object) = state.names.object_mut(work) else { continue };
                for work in object.work.iter_mut().chain(&mut object.sent) {
                    work.publishing.iter_mut().for_each(|publishing| {
                        carry(&mut publishing.staged.path, &from, &to);
                    });
                }
            }
            self.move_paths(state, &from, &to);
        }
        self.note_again(state, id);
        for work in state.names.works_within(id) {
            self.end_work(state, work);
        }
    }

    /// Doubts where a collection is, and all between it and one that is known to be below it and that it is said to be in by now: that
    /// one was moved to where nothing is known of. Both are found when somebody looks there.
    fn misplaced(&self, state: &mut State, id: NodeId, inner: NodeId) {
        let above = state.names.get(id).map(|node| node.parent);
        let mut at = inner;
        while at != id {
            let Some(node) = state.names.get(at) else { break };
            let parent = node.parent;
            self.doubt(state, at);
            at = parent;
        }
        self.doubt(state, id);
        above.into_iter().for_each(|above| self.doubt(state, above));
    }

    /// Doubts what is known to be in a collection, and has the kernel ask again.
    pub fn doubt(&self, state: &mut State, id: NodeId) {
        for name in state.names.doubt(id) {
            self.forget_name(id, name);
        }
    }

    /// Takes over that what is at a path, and all below it, has another: for what waits, which was asked for under the old one.
    fn move_paths(&self, state: &mut State, from: &ObjectPath, to: &ObjectPath) {
        crate::left::moved(self, state, from, to);
        for (place, path) in self.changes.moved(from, to) {
            self.note(&place, &path);
        }
    }

    /// Renames a file; of a directory it returns what is to be waited for.
    fn rename_in(
        &self,
        state: &mut State,
        (parent, name): (NodeId, &str),
        (new_parent, new_name): (NodeId, &str),
        replaces: bool,
    ) -> Result<Option<Pending>, Errno> {
        let space = self.may_change(state, parent)?;
        if self.may_change(state, new_parent)? != space {
            // As between two file systems: programs copy then.
            return Err(Errno::EXDEV);
        }
        let node = state.names.child(parent, name).ok_or(Errno::ENOENT)?;
        let from = self.path(state, node).ok_or(Errno::ENOENT)?;
        let to = self.path_in(state, new_parent, new_name)?;
        let target = state.names.child(new_parent, new_name);
        if target == Some(node) {
            return Ok(None);
        }
        if target.is_some() && !replaces {
            return Err(Errno::EEXIST);
        }
        let is_collection = state.names.collection(node).is_some();
        if is_collection && target.is_some() {
            return Err(Errno::ENOTDIR);
        }
        if is_collection && state.names.is_within(new_parent, node) {
            return Err(Errno::EINVAL);
        }
        let names = vec![(new_parent, new_name.into()), (parent, name.into())];
        let entry = state.names.get(node).and_then(|node| node.entry);
        let change = MountChange::Move { from: from.clone(), to: to.clone(), overwrite: replaces, entry };
        self.touch(state, parent);
        self.touch(state, new_parent);
        if is_collection {
            return Ok(Some(self.ask(state, Change::Name(change), names)));
        }
        let mut replaces = false;
        if let Some(target) = target {
            let in_catalog = |state: &State| {
                state.names.get(target).is_some_and(|node| node.entry.is_some())
                    || state
                        .names
                        .object(target)
                        .is_some_and(|object| object.is_publishing() || object.replaces())
            };
            replaces = state.names.object(target).is_some_and(Object::replaces);
            // What was written to it and not published is gone, as its name is.
            self.drop_work(state, target);
            replaces |= in_catalog(state);
        }
        let is_link = |node: &Node| matches!(node.what, What::Link(_));
        let replaces_link = target.and_then(|target| state.names.get(target)).is_some_and(is_link);
        let (has_entry, replaced_before) = match state.names.get(node) {
            Some(node) => match &node.what {
                What::Object(object) => (node.entry.is_some(), object.replaces()),
                What::Collection(_) | What::Link(_) => (true, false),
            },
            None => return Err(Errno::ENOENT),
        };
        // What waits to be published is published under its new name, in place of what has it.
        self.recall(state, node);
        let is_publishing = state.names.object(node).is_some_and(Object::is_publishing);
        if replaces_link && !has_entry && !is_publishing {
            // No version takes the place of a link, so it goes first.
            replaces = false;
            let entry = target.and_then(|target| state.names.get(target)).and_then(|link| link.entry);
            let change = MountChange::Remove { path: to, entry };
            self.submit(state, Change::Name(change), vec![(new_parent, new_name.into())]);
        }
        if let Some(work) = state.names.object_mut(node).and_then(|object| object.work.as_mut()) {
            work.is_exclusive = false;
            work.replaces = replaces && !has_entry && !is_publishing;
        }
        if has_entry || is_publishing {
            self.submit(state, Change::Name(change), names);
        } else if replaced_before {
            // What it would have replaced under its old name goes all the same.
            self.submit(state, Change::Name(MountChange::Remove { path: from, entry: None }), names);
        }
        state.names.rename(node, new_parent, new_name);
        // Also what is on its way: if this process dies before the answer comes, it belongs where the program wanted it last.
        self.note_again(state, node);
        // Also what was refused under its old name.
        self.end_work(state, node);
        Ok(None)
    }
}
