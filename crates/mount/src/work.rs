//! What programs write: a staged file, or the owner's own on a native store, from the first writer until the last one has closed it,
//! and no mapping of a staged one can be written any more.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use fuser::Errno;
use percale_api::mounts::MountChange;
use percale_api::uploads::Condition;
use percale_core::{ErrorCode, FileMode, ObjectPath, Timestamp};
use rustix::fs::{Statx, Timestamps};

use crate::changes::{Change, Staged};
use crate::copy::{copy_at_once, is_recent, replace_open, set_mtime};
use crate::error::{from_io, from_rustix};
use crate::files::{Obstacle, timespec};
use crate::log::Left;
use crate::names::NodeId;
use crate::object::{LocalCopy, Open, Publishing, Work};
use crate::session::Place;
use crate::state::{Shared, State, modified};

/// Returns what tells whether a file was changed.
fn looks(stat: &Statx) -> (u64, i128, i128) {
    let nanos =
        |at: rustix::fs::StatxTimestamp| i128::from(at.tv_sec) * 1_000_000_000 + i128::from(at.tv_nsec);
    (stat.stx_size, nanos(stat.stx_mtime), nanos(stat.stx_ctime))
}

impl Shared {
    /// Stages an empty file.
    pub fn stage(&self, mode: FileMode) -> Result<(File, Work), Errno> {
        let (store, token) = (self.session.for_new_data(), self.session.token());
        let file = self.session.create_staged(store, &token, mode).map_err(from_rustix)?;
        Ok((file, Work::at(Place { store, token, key: None })))
    }

    /// Notes for the next process where a file lies that is written, and where it belongs.
    pub fn note(&self, place: &Place, path: &ObjectPath) {
        let store = place.store.and_then(|store| self.session.store_id(store));
        self.log.staged(&place.token, &Left { path: path.clone(), store, key: place.key.clone() });
    }

    /// Notes where the staged files of a node belong, and of all that are below it.
    pub fn note_again(&self, state: &mut State, node: NodeId) {
        for id in state.names.works_within(node) {
            let Some(path) = self.path(state, id) else { continue };
            let Some(object) = state.names.object(id) else { continue };
            // The newer one last, which is what is published last then.
            for work in object.sent.iter().chain(&object.work) {
                self.note(&work.place, &path);
            }
        }
    }

    /// Returns the staged file of an object, made if there is none.
    ///
    /// # Errors
    /// What stands in the way.
    pub fn to_work(&self, state: &mut State, node: NodeId, is_truncated: bool) -> Result<File, Obstacle> {
        let parent = state.names.get(node).ok_or(Errno::ENOENT)?.parent;
        self.may_change(state, parent)?;
        let object = state.names.object_mut(node).ok_or(Errno::EISDIR)?;
        if object.publishing().is_some() && !self.recall(state, node) {
            return self.write_again(state, node, is_truncated);
        }
        let object = state.names.object_mut(node).ok_or(Errno::EISDIR)?;
        let is_open = object.is_open();
        if let Some(work) = &mut object.work {
            if work.is_moved && is_open {
                // The kernel allows one file for each node, and what is written to the one that it was is lost.
                return Err(Errno::EBUSY.into());
            }
            work.is_moved = false;
            let file = self.session.open_written(&work.place).map_err(from_rustix)?;
            if is_truncated {
                file.set_len(0).map_err(|error| from_io(&error))?;
                work.is_dirty = true;
            }
            return Ok(file);
        }
        if let Some(file) = self.write_in_place(state, node, is_truncated)? {
            return Ok(file);
        }
        let object = state.names.object_mut(node).ok_or(Errno::EISDIR)?;
        if object.is_open() {
            // One that has no name any more is not looked for again.
            let other = replace_open(state, node);
            return Err(other.map_or(Errno::ENOENT, |_| Errno::ESTALE).into());
        }
        let before = match is_truncated || object.size() == 0 {
            true => None,
            false => Some(self.open_here(object).ok_or(Obstacle::NeedsCopy)?),
        };
        let is_changed = is_truncated && object.size() > 0;
        let before = before.map(|file| (file, object.mtime()));
        self.stage_from(state, node, before, is_changed)
    }

    /// Begins to write a file again whose last writing is on its way to the site, which may have made a version of it: what comes of
    /// it now is the next one.
    fn write_again(&self, state: &mut State, node: NodeId, is_truncated: bool) -> Result<File, Obstacle> {
        let object = state.names.object_mut(node).ok_or(Errno::EISDIR)?;
        let publishing = object.publishing().ok_or(Errno::ESTALE)?;
        let (number, size, mtime) = (publishing.number, publishing.staged.size, publishing.staged.mtime);
        let is_open = object.is_open();
        let sent = object.work.take().ok_or(Errno::ESTALE)?;
        let begun = if sent.place.is_the_copy() {
            let begun = self.write_in_place(state, node, is_truncated);
            begun.and_then(|file| file.ok_or(Obstacle::Publishing(number)))
        } else if is_open {
            // Whoever has it open goes on with what it was, and the kernel allows one file for each node.
            Err(Obstacle::Publishing(number))
        } else if is_truncated || size == 0 {
            self.stage_from(state, node, None, is_truncated && size > 0)
        } else {
            let before = self.open_work(&sent);
            before.and_then(|before| self.stage_from(state, node, Some((before, mtime)), false))
        };
        if let Some(object) = state.names.object_mut(node) {
            match begun {
                Ok(_) => object.sent = Some(sent),
                Err(_) => object.work = Some(sent),
            }
        }
        begun
    }

    /// Opens a file that was written, to be read; one that is being published may have its place already.
    pub fn open_work(&self, work: &Work) -> Result<File, Obstacle> {
        let error = match self.session.open_to_read(&work.place) {
            Ok(file) => return Ok(file),
            Err(error) => error,
        };
        let Some(Publishing { number, staged }) = work.publishing.as_deref() else {
            return Err(from_rustix(error).into());
        };
        let placed = staged.place.store.and_then(|store| self.session.open_copy(store, staged.key()).ok());
        // Else it is under another key, which comes with the answer.
        let placed = placed.filter(|file| file.metadata().is_ok_and(|meta| meta.ino() == staged.inode));
        placed.ok_or(Obstacle::Publishing(*number))
    }

    /// Takes back what waits to be published of a file, which is then to be published again. Tells whether it was still waiting.
    pub fn recall(&self, state: &mut State, node: NodeId) -> bool {
        let Some(number) = state.names.object(node).and_then(|object| Some(object.publishing()?.number))
        else {
            return false;
        };
        if !self.take_back(state, number) {
            return false;
        }
        if let Some(work) = state.names.object_mut(node).and_then(|object| object.work.as_mut()) {
            self.keep_staged(work);
        }
        true
    }

    /// Notes that a file that was to be published is not, and is to be again. The time that a program set while it was on its way was to
    /// be told after it, so the file does not have it yet.
    pub fn keep_staged(&self, work: &mut Work) {
        work.is_dirty = true;
        let Some(publishing) = work.publishing.take().filter(|_| !work.place.is_the_copy()) else { return };
        let wanted = publishing.staged.mtime;
        if self.session.stat_written(&work.place).map_or(true, |stat| modified(&stat) == wanted) {
            return;
        }
        let at = timespec(wanted);
        let set = self.session.open_written(&work.place).map_err(std::io::Error::from).and_then(|file| {
            Ok(rustix::fs::futimens(&file, &Timestamps { last_access: at, last_modification: at })?)
        });
        if let Err(error) = set {
            tracing::warn!(staged = %work.place.token, %error, "a file that is not published yet does not keep the time that a program set");
        }
    }

    /// Stages a file with the bytes of another, which was modified then, and notes that it is written.
    ///
    /// # Errors
    /// What stands in the way: as a rule that there are too many bytes to be copied at once.
    fn stage_from(
        &self,
        state: &mut State,
        node: NodeId,
        before: Option<(File, Timestamp)>,
        is_changed: bool,
    ) -> Result<File, Obstacle> {
        let mode = state.names.object(node).ok_or(Errno::EISDIR)?.mode.unwrap_or(FileMode::DEFAULT);
        let (file, mut work) = self.stage(mode)?;
        let copied = before.map_or(Ok(()), |(before, mtime)| {
            copy_at_once(&before, &file)?;
            set_mtime(&file, mtime).map_err(|error| from_io(&error).into())
        });
        if let Err(obstacle) = copied {
            self.session.discard(&work.place);
            return Err(obstacle);
        }
        work.is_dirty = is_changed;
        self.begin_work(state, node, work);
        Ok(file)
    }

    /// Opens a copy on a native store to be written where it lies; nothing if there is none.
    ///
    /// # Errors
    /// What stands in the way.
    fn write_in_place(
        &self,
        state: &mut State,
        node: NodeId,
        is_truncated: bool,
    ) -> Result<Option<File>, Obstacle> {
        let object = state.names.object(node).ok_or(Errno::EISDIR)?;
        let Some(LocalCopy { store, key }) = object.copy.clone() else { return Ok(None) };
        // Who reads an older version over the network shares the kernel's pages of the node.
        let is_shared = object.is_open() && state.handles.is_remote(node);
        if !self.session.is_native(store) || is_shared {
            return Ok(None);
        }
        let place = Place { store: Some(store), token: self.session.token(), key: Some(key) };
        // Gone, or not for this account: what is published then is a staged file.
        let Ok(file) = self.session.open_written(&place) else { return Ok(None) };
        let begun = self.session.stat_written(&place).ok();
        if is_truncated {
            file.set_len(0).map_err(|error| from_io(&error))?;
        }
        let path = self.path(state, node).ok_or(Errno::ENOENT)?;
        let id = self.session.store_id(store).ok_or(Errno::ESTALE)?;
        let mut work = Work::at(place);
        self.note(&work.place, &path);
        let mark = Change::Name(MountChange::Writing { path, store: id });
        work.mark = Some(self.submit(state, mark, Vec::new()));
        work.is_dirty = begun.as_ref().is_none_or(|stat| is_recent(modified(stat)));
        work.begun = begun.as_ref().map(looks);
        state.names.object_mut(node).ok_or(Errno::EISDIR)?.work = Some(work.into());
        Ok(Some(file))
    }

    /// Notes a staged file that has the content of the version.
    pub fn begin_work(&self, state: &mut State, node: NodeId, mut work: Work) {
        let stat = self.session.stat_written(&work.place).ok();
        work.begun = stat.as_ref().map(looks);
        if let Some(path) = self.path(state, node) {
            self.note(&work.place, &path);
        }
        if let Some(object) = state.names.object_mut(node) {
            object.work = Some(work.into());
        }
    }

    /// Counts as a writer whoever can go on writing a staged file by a mapping, after the last handle was closed: the kernel says
    /// nothing of those that it made itself.
    pub fn count_mapping(self: &Arc<Self>, state: &mut State, node: NodeId) {
        if state.names.get(node).is_none_or(|node| !node.is_linked) {
            return;
        }
        let Some(work) = state.names.object_mut(node).and_then(|object| object.work.as_mut()) else { return };
        if work.writers > 0 || work.publishing.is_some() || !self.session.is_written(&work.place) {
            return;
        }
        work.writers = 1;
        let (shared, place) = (self.clone(), work.place.clone());
        state.mapped.push((node, place.clone()));
        self.runtime.spawn(async move {
            for pause in crate::left::pauses() {
                tokio::time::sleep(pause).await;
                if shared.end_mapping(node, &place) {
                    return;
                }
            }
        });
    }

    /// Has those files published whose mappings have ended, without waiting until that is looked at by itself.
    pub fn end_mappings(&self) {
        let mapped = self.state().mapped.clone();
        for (node, place) in mapped {
            self.end_mapping(node, &place);
        }
    }

    /// Has a file published that was mapped, if it is not any more. Tells whether there is nothing more to be waited for.
    fn end_mapping(&self, node: NodeId, place: &Place) -> bool {
        let mut state = self.state();
        let Some(at) = state.mapped.iter().position(|(other, at)| *other == node && at == place) else {
            return true;
        };
        let work = state.names.object_mut(node).and_then(|object| object.work.as_mut());
        if let Some(work) = work.filter(|work| work.place == *place) {
            if work.writers > 1 || self.session.is_written(place) {
                return false;
            }
            work.writers = 0;
        }
        state.mapped.swap_remove(at);
        self.end_work(&mut state, node);
        state.names.drop_unused(node);
        true
    }

    /// Has what was written published, if nobody writes any more and it was changed.
    pub fn end_work(&self, state: &mut State, id: NodeId) {
        let Some(node) = state.names.get(id) else { return };
        let (is_linked, parent, name) = (node.is_linked, node.parent, node.name.clone());
        let path = self.path(state, id);
        let Some(object) = state.names.object_mut(id) else { return };
        let is_new = object.content.is_none() && object.sent.is_none();
        let is_open = !matches!(object.open, Open::No);
        let mode = object.mode;
        let Some(work) = &mut object.work else { return };
        if work.writers > 0 || work.publishing.is_some() {
            return;
        }
        let stat = self.session.stat_written(&work.place);
        let is_as_before = match &stat {
            Ok(stat) => work.begun == Some(looks(stat)),
            // Its owner has removed it.
            Err(errno) => work.place.is_the_copy() && *errno == rustix::io::Errno::NOENT,
        };
        // If it has been said that it is written, it is said that it is not any more.
        let mark = work.mark.take();
        let is_marked = mark.is_some_and(|number| !self.take_back(state, number));
        let Some(work) = state.names.object_mut(id).and_then(|object| object.work.as_mut()) else { return };
        let is_changed = work.is_dirty || !is_as_before || is_marked || is_new;
        let is_gone = stat.is_err() && is_as_before;
        if !is_linked || !is_changed || is_gone {
            // Readers go on with the staged file; it goes with the last of them.
            if !is_open {
                self.session.discard(&work.place);
                self.log.done(&work.place.token);
                // If it was opened again and nothing was written, what is on its way is what it is.
                state.names.object_mut(id).into_iter().for_each(|object| {
                    object.work = object.sent.take();
                });
            }
            return;
        }
        let (stat, path) = match (stat, path) {
            (Ok(stat), Some(path)) => (stat, path),
            (stat, path) => {
                // As what was refused: it is staged, and the log says where it belonged.
                work.is_dirty = true;
                tracing::error!(
                    name = %name, path = path.as_ref().map(tracing::field::display), error = stat.err().map(tracing::field::display),
                    staged = %work.place.token,
                    "what a program wrote cannot be published, since its directory is gone or it cannot be looked at; it is only on this host until it is written again or removed"
                );
                state.names.note_refused(parent, ErrorCode::Internal);
                return;
            }
        };
        let staged = Staged {
            node: id,
            path,
            place: work.place.clone(),
            size: stat.stx_size,
            inode: stat.stx_ino,
            mtime: modified(&stat),
            mode: mode.unwrap_or(FileMode::of(stat.stx_mode.into())),
            condition: if work.is_exclusive { Condition::New } else { Condition::Any },
        };
        let number = self.submit(state, Change::Publish(staged.clone()), vec![(parent, name)]);
        if let Some(work) = state.names.object_mut(id).and_then(|object| object.work.as_mut()) {
            work.publishing = Some(Box::new(Publishing { number, staged }));
        }
        self.touch(state, parent);
    }

    /// Forgets what a file that loses its name has staged. While programs have it open it stays, and the next process has nothing to do
    /// with it. What is on its way does not count as forgotten: the change that takes the name is sent after it was answered.
    pub fn drop_work(&self, state: &mut State, id: NodeId) {
        let is_publishing = state.names.object(id).is_some_and(|object| object.publishing().is_some());
        if is_publishing && !self.recall(state, id) {
            return;
        }
        let Some(object) = state.names.object_mut(id) else { return };
        let is_open = !matches!(object.open, Open::No);
        let Some(work) = &mut object.work else { return };
        work.publishing = None;
        self.log.done(&work.place.token);
        if work.writers == 0 && !is_open {
            self.session.discard(&work.place);
            object.work = None;
        }
    }
}
