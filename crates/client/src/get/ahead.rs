//! Asking for the bytes of an object before it is known what there is at its path.
//!
//! A round trip earlier than who asks for the object first, and then for its bytes. Nobody knows yet how much there is: so each
//! stream is asked for a group at the beginning and a part further on, the last one for all behind, and the site hands out what
//! there is of it to whichever stream has room.

use std::path::Path;

use percale_api::uploads::PullItem;
use percale_core::ids::VersionId;
use percale_core::tree::GROUP_SIZE;
use percale_core::{ByteRange, ObjectPath};
use percale_mover::Frame;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::client::Client;
use crate::local::part_path;
use crate::pull::{Ask, Checks, FrameStream, parse_item};

/// What each stream is asked for behind the first groups, but for the last one.
const PART: u64 = 64 << 20;

/// Streams of an object that is not looked at yet. Dropping them costs what is on its way.
#[derive(Debug)]
pub struct Ahead {
    path: ObjectPath,
    streams: JoinSet<crate::Result<FrameStream>>,
}

impl Client {
    /// Asks for the object at a path, if it may be got into this file as it is: nothing is there, nor a part of an earlier attempt. Not with
    /// a limit of speed.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn ask_ahead(&self, path: &ObjectPath, local: &Path) -> Option<Ahead> {
        let is_free = |local: &Path| std::fs::symlink_metadata(local).is_err();
        if self.limit().is_some() || !is_free(local) || !is_free(&part_path(local).ok()?) {
            return None;
        }
        let count = self.first_streams() as u64;
        let share = Uuid::new_v4().simple().to_string();
        let mut streams = JoinSet::new();
        for number in 0..count {
            let (first, part) = (number * GROUP_SIZE, count * GROUP_SIZE + number * PART);
            let len = if number + 1 == count { u64::MAX } else { PART };
            let ranges = vec![ByteRange::at(first, GROUP_SIZE), ByteRange::at(part, len)];
            let item = PullItem { path: path.clone(), version: None, space: None, ranges: Some(ranges) };
            let (client, share, operation) = (self.clone(), share.clone(), format!("get {path}"));
            streams.spawn(async move {
                let ask = Ask { follow: true, share: Some(&share), checks: Checks::Here };
                FrameStream::open(&client, &operation, vec![item], ask).await
            });
        }
        Some(Ahead { path: path.clone(), streams })
    }
}

impl Ahead {
    /// Tells whether it is of this object, as far as it is known.
    pub(super) fn is_of(&self, path: &ObjectPath) -> bool {
        self.path == *path
    }

    /// Returns the streams, as they come, that bring parts of this version.
    pub(super) async fn next(&mut self, version: VersionId) -> Option<FrameStream> {
        while let Some(opened) = self.streams.join_next().await {
            // One that panicked brings nothing.
            let Ok(opened) = opened else { continue };
            match only_of(version, opened).await {
                Ok(Some(frames)) => return Some(frames),
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "what was asked for ahead did not come"),
            }
        }
        None
    }
}

/// Returns a stream if it is of this version.
async fn only_of(
    version: VersionId,
    opened: crate::Result<FrameStream>,
) -> crate::Result<Option<FrameStream>> {
    let mut frames = opened?;
    let Some(Frame::Item { info, .. }) = frames.next().await? else { return Ok(None) };
    let item = parse_item("get an object", &info)?;
    Ok((item.version == version).then_some(frames))
}
