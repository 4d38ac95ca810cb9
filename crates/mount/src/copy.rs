//! The copy that a change of a file begins with: made at once where that is short, else beside, while other programs go on.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use fuser::Errno;
use percale_core::ids::VersionId;
use percale_core::{FileMode, Timestamp};
use rustix::fs::Timestamps;

use crate::error::from_io;
use crate::files::{Bytes, Obstacle, timespec};
use crate::names::{NodeId, What};
use crate::object::Object;
use crate::state::{Shared, State};

/// Up to this size a file is copied at once, while everything else waits for it: about a millisecond.
const COPIED_AT_ONCE: u64 = 1 << 20;
/// What was modified less than this ago may be modified again at a time that looks the same: a tick of a slow kernel is a hundredth of it.
const RECENT: Duration = Duration::from_secs(1);

/// Tells whether a time is so near that a change made now may have the same.
pub fn is_recent(at: Timestamp) -> bool {
    at.as_micros().abs_diff(Timestamp::now().as_micros()) < RECENT.as_micros() as u64
}

/// Gives the copy of a file, which has not been written to yet, the time that the file was modified, or one shortly before: whatever is
/// written to it then has another.
pub fn set_mtime(copy: &File, mtime: Timestamp) -> std::io::Result<()> {
    let mtime = match is_recent(mtime) {
        true => Timestamp::from_micros(mtime.as_micros() - 2 * RECENT.as_micros() as i64),
        false => mtime,
    };
    let at = timespec(mtime);
    Ok(rustix::fs::futimens(copy, &Timestamps { last_access: at, last_modification: at })?)
}

/// What a file is copied from before it is changed, and what it was then.
struct Source {
    bytes: Bytes,
    size: u64,
    mtime: Timestamp,
    mode: FileMode,
    version: Option<VersionId>,
    /// The staged file that is on its way to the site, if it is that.
    sent: Option<Box<str>>,
}

impl Source {
    /// Tells whether a file is still what it was.
    fn is(&self, object: &Object) -> bool {
        let sent = object.publishing().and(object.work.as_ref()).map(|work| &work.place.token);
        let version = object.content.as_ref().map(|content| content.version);
        version == self.version && sent == self.sent.as_ref() && object.work.is_some() == self.sent.is_some()
    }
}

impl Shared {
    /// Brings the bytes of a file into a staged one, so that they can be changed.
    ///
    /// # Errors
    /// What programs are told.
    pub async fn bring(self: &Arc<Self>, node: NodeId) -> Result<(), Errno> {
        let source = self.source(&self.state(), node)?;
        // If it is another thing by now, something else stands in the way, or nothing.
        let Some(source) = source else { return Ok(()) };
        let (file, work) = self.stage(source.mode)?;
        let brought = self.copy_from(&source, &file).await;
        let brought = brought.and_then(|()| set_mtime(&file, source.mtime).map_err(|error| from_io(&error)));
        let mut state = self.state();
        let object = state.names.object_mut(node).filter(|object| brought.is_ok() && source.is(object));
        match object {
            Some(object) if !object.is_open() => {
                if let Some(sent) = object.work.take() {
                    object.sent = Some(sent);
                }
                self.begin_work(&mut state, node, work);
            }
            // It was opened meanwhile.
            Some(object) if object.work.is_none() => {
                if let Some(other) = replace_open(&mut state, node) {
                    self.begin_work(&mut state, other, work);
                    return Err(Errno::ESTALE);
                }
                self.session.discard(&work.place);
                return Err(Errno::ENOENT);
            }
            _ => self.session.discard(&work.place),
        }
        brought
    }

    /// Returns what a file is copied from; nothing if that is not what stands in the way any more.
    fn source(&self, state: &State, node: NodeId) -> Result<Option<Source>, Errno> {
        let object = state.names.object(node).ok_or(Errno::ENOENT)?;
        let mode = object.mode.unwrap_or(FileMode::DEFAULT);
        let version = object.content.as_ref().map(|content| content.version);
        if object.is_open() {
            return Ok(None);
        }
        if let Some(work) = &object.work {
            let Some(publishing) = object.publishing() else { return Ok(None) };
            let Ok(file) = self.open_work(work) else { return Ok(None) };
            let (size, mtime) = (publishing.staged.size, publishing.staged.mtime);
            let sent = Some(work.place.token.clone());
            return Ok(Some(Source { bytes: Bytes::Here(file), size, mtime, mode, version, sent }));
        }
        let content = object.content.clone().ok_or(Errno::ESTALE)?;
        let (size, mtime) = (content.size, content.mtime);
        let bytes = match self.open_here(object) {
            Some(file) => Bytes::Here(file),
            None => Bytes::Elsewhere(self.open_remote(state, node, content)?),
        };
        Ok(Some(Source { bytes, size, mtime, mode, version, sent: None }))
    }

    async fn copy_from(&self, source: &Source, file: &File) -> Result<(), Errno> {
        use std::os::unix::fs::FileExt as _;
        const PIECE: u64 = 4 << 20;
        let remote = match &source.bytes {
            Bytes::Elsewhere(remote) => remote,
            Bytes::Here(from) => {
                let files = from.try_clone().and_then(|from| Ok((from, file.try_clone()?)));
                let (mut from, mut to) = files.map_err(|error| from_io(&error))?;
                let copied = tokio::task::spawn_blocking(move || std::io::copy(&mut from, &mut to)).await;
                return copied.map_err(|_| Errno::EIO)?.map(drop).map_err(|error| from_io(&error));
            }
        };
        let mut at = 0;
        while at < source.size {
            let bytes = self.remote.read(remote, at, PIECE).await?;
            let file = file.try_clone().map_err(|error| from_io(&error))?;
            let len = bytes.len() as u64;
            let written = tokio::task::spawn_blocking(move || file.write_all_at(&bytes, at)).await;
            written.map_err(|_| Errno::EIO)?.map_err(|error| from_io(&error))?;
            at += len;
        }
        Ok(())
    }
}

/// Gives the name of a file that programs have open to another node: they go on with what it was. The kernel finds the other one when it
/// looks again, which it does for `ESTALE`. Nothing if it has no name any more.
pub fn replace_open(state: &mut State, node: NodeId) -> Option<NodeId> {
    let object = state.names.object(node)?;
    let other = Object {
        content: object.content.clone(),
        copy: object.copy.clone(),
        mode: object.mode,
        ..Object::default()
    };
    state.names.replace(node, What::Object(Box::new(other)))
}

/// Copies a file, if its blocks can be shared or are few.
pub fn copy_at_once(from: &File, to: &File) -> Result<(), Obstacle> {
    if rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let len = from.metadata().map_err(|error| from_io(&error))?.len();
    if len > COPIED_AT_ONCE {
        return Err(Obstacle::NeedsCopy);
    }
    let (mut from, mut to) = (from, to);
    std::io::copy(&mut from, &mut to).map(drop).map_err(|error| from_io(&error).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_is_not_written_to_has_a_time_that_no_write_could_give_it() {
        let copy = tempfile::tempfile().unwrap();
        let mtime = |copy: &File| Timestamp::from(copy.metadata().unwrap().modified().unwrap());
        let old = Timestamp::from_micros(1_000_000_000_000_000);
        set_mtime(&copy, old).unwrap();
        assert_eq!(mtime(&copy), old);
        let now = Timestamp::now();
        set_mtime(&copy, now).unwrap();
        assert!(mtime(&copy) < now && !is_recent(mtime(&copy)));
    }
}
