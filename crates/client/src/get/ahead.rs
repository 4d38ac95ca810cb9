//! Asking for the bytes of an object before it is known what there is at its path.
//!
//! A round trip earlier than who asks for the object first, and then for its bytes. Nobody knows yet how much there is: so each
//! stream is asked for a group, then for two further on, for four, and so on, the last one for all behind: so all have about as much, whatever
//! there is, and the site hands out the rest to whichever has room. A stream that had next to nothing of its own would be done before the site
//! hears of those that have.

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

/// How often what a stream is asked for doubles: from one group of 1 MiB to 64.
const DOUBLED: u32 = 6;

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
            let ranges = Some(ranges(number, count));
            let item = PullItem { path: path.clone(), version: None, space: None, ranges };
            let (client, share, operation) = (self.clone(), share.clone(), format!("get {path}"));
            streams.spawn(async move {
                let ask = Ask { follow: true, share: Some(&share), checks: Checks::Here };
                FrameStream::open(&client, &operation, vec![item], ask).await
            });
        }
        Some(Ahead { path: path.clone(), streams })
    }
}

/// Returns what one of so many streams is asked for.
fn ranges(number: u64, count: u64) -> Vec<ByteRange> {
    let range = |doubled| {
        let len = GROUP_SIZE << doubled;
        let is_last = doubled == DOUBLED && number + 1 == count;
        ByteRange::at(count * (len - GROUP_SIZE) + number * len, if is_last { u64::MAX } else { len })
    };
    (0..=DOUBLED).map(range).collect()
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

#[cfg(test)]
mod tests {
    use percale_core::range::RangeSet;

    use super::*;

    #[test]
    fn each_stream_is_asked_for_about_as_much_of_whatever_there_is() {
        for count in [1, 4, 10] {
            for groups in [1, count, 5 * count + 1, 30, 100, 127 * count, 2000] {
                let whole = ByteRange::at(0, groups * GROUP_SIZE);
                let of =
                    |number| ranges(number, count).into_iter().filter_map(|range| range.intersect(whole));
                let lens = (0..count).map(|number| of(number).map(|range| range.len()).sum::<u64>());
                let lens: Vec<_> = lens.collect();
                assert_eq!(lens.iter().sum::<u64>(), whole.len(), "{count} {groups}: {lens:?}");
                let all: RangeSet = (0..count).flat_map(of).collect();
                assert_eq!(all.iter().collect::<Vec<_>>(), [whole]);
                if groups >= count && groups <= 127 * count {
                    let (least, most) = (lens.iter().min().unwrap(), lens.iter().max().unwrap());
                    assert!(*most <= 3 * least, "{count} {groups}: {lens:?}");
                }
            }
        }
    }
}
