//! One large object over several streams.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use percale_api::uploads::PullItem;
use percale_core::range::RangeSet;
use percale_core::tree::HashTree;
use percale_core::{ByteCount, ByteRange, ErrorCode};
use percale_mover::tuning::{cut, share_of};
use percale_mover::{DataFrame, Frame, ReceivedGroups, Slots};
use tokio::sync::{OnceCell, mpsc};
use tokio::task::JoinSet;

use super::{Wanted, lock};
use crate::client::Client;
use crate::elsewhere::{Opened, Place, Way};
use crate::error::{Error, ErrorKind};
use crate::local::PartFile;
use crate::progress::{Active, Progress};
use crate::pull::parse_problem;
use crate::read::verify;
use crate::upload::blocking;

/// Smallest and largest range that a stream asks for at a time.
const SEGMENT: std::ops::RangeInclusive<u64> = 1 << 20..=64 << 20;
/// For how many streams one more request is under way: a file of 10 to 20 MB comes for about a second over its share of a line of
/// 1.2 Gbit/s, and waits for a tenth of that at 50 ms.
const WAITING_SHARE: usize = 4;
/// Groups that wait to be written in each stream.
const QUEUED_GROUPS: usize = 6;

struct Shared {
    client: Client,
    way: Way,
    operation: String,
    wanted: Wanted,
    /// What every group is compared with. It is asked for while the first bytes are on their way.
    tree: OnceCell<Option<HashTree>>,
    file: PartFile,
    /// What the streams of all files of a transfer share.
    slots: Arc<Slots>,
    /// The large files that are in hand at present.
    larges: Arc<Slots>,
    segments: Mutex<VecDeque<ByteRange>>,
    received: Mutex<ReceivedGroups>,
    active: Active,
}

/// Gets an object; what came is kept if it fails.
pub(super) async fn get(
    client: &Client,
    wanted: &Wanted,
    (slots, larges): (Arc<Slots>, Arc<Slots>),
    progress: &Arc<Progress>,
) -> crate::Result<()> {
    let operation = format!("get {}", wanted.path);
    let size = ByteCount(wanted.content.size);
    let file = {
        let local = wanted.local.clone();
        blocking(&operation, move || PartFile::open(&local, size.0)).await?
    };
    let active = progress.begin(wanted.path.to_string(), size.0);
    let is_resumed = file.is_resumed();
    let shared = Arc::new(Shared {
        client: client.clone(),
        way: Way::new(client),
        operation,
        wanted: wanted.clone(),
        tree: OnceCell::new(),
        file,
        slots,
        larges,
        segments: Mutex::default(),
        received: Mutex::new(ReceivedGroups::new(size)),
        active,
    });
    if is_resumed {
        find_what_came(&shared).await?;
    }
    let (tree, received) = tokio::join!(shared.tree(), receive(&shared));
    tree?;
    received?;
    let operation = shared.operation.clone();
    let Some(shared) = Arc::into_inner(shared) else {
        let detail = "a stream is still writing";
        return Err(Error::new(ErrorKind::Local, ErrorCode::Internal, operation, detail));
    };
    blocking(&operation, move || shared.file.publish(&shared.wanted.content, shared.wanted.replaces, true))
        .await
}

impl Shared {
    /// Returns the tree; nothing for an object that was not hashed yet: then only the transport is checked.
    async fn tree(&self) -> crate::Result<Option<&HashTree>> {
        let Wanted { path, content, .. } = &self.wanted;
        let tree = self.tree.get_or_try_init(|| async {
            match content.root {
                Some(_) => self.client.verified_tree(path, content).await.map(Some),
                None => Ok(None),
            }
        });
        tree.await.map(Option::as_ref)
    }
}

/// Looks for the groups that an earlier attempt brought.
async fn find_what_came(shared: &Arc<Shared>) -> crate::Result<()> {
    if shared.tree().await?.is_none() {
        return Ok(());
    }
    let came = {
        let shared = shared.clone();
        let operation = shared.operation.clone();
        let came = blocking(&operation, move || match shared.tree.get() {
            Some(Some(tree)) => shared.file.received(tree),
            _ => Ok(ReceivedGroups::new(ByteCount(shared.wanted.content.size))),
        });
        came.await?
    };
    shared.active.moved(shared.wanted.content.size - came.missing().total().0);
    *lock(&shared.received) = came;
    Ok(())
}

async fn receive(shared: &Arc<Shared>) -> crate::Result<()> {
    let mut attempts = shared.client.attempts();
    loop {
        let missing = lock(&shared.received).missing();
        if lock(&shared.received).is_complete() {
            return Ok(());
        }
        let before = missing.total();
        let streams = plan(shared, &missing);
        let mut running = JoinSet::new();
        for _ in 0..streams {
            let shared = shared.clone();
            running.spawn(async move {
                loop {
                    // Some more than there are streams: while one waits for its answer, the others fill the line. Without a
                    // slot nothing is asked for, since an answer that nobody reads is cut off.
                    let streams = shared.client.streams();
                    let _slot = shared.slots.take(streams + streams / WAITING_SHARE).await;
                    let segment = lock(&shared.segments).pop_front();
                    let Some(segment) = segment else { return Ok(()) };
                    stream(&shared, segment).await?;
                }
            });
        }
        let mut result = Ok(());
        while let Some(joined) = running.join_next().await {
            let ended = joined.unwrap_or_else(|error| {
                Err(Error::new(ErrorKind::Local, ErrorCode::Internal, &shared.operation, error.to_string()))
            });
            if result.is_ok() && ended.is_err() {
                result = ended;
                lock(&shared.segments).clear();
            }
        }
        if lock(&shared.received).missing().total() < before {
            attempts.progressed();
        }
        match result {
            Ok(()) if lock(&shared.received).is_complete() => return Ok(()),
            Ok(()) => {
                let detail = "the site did not send all that was asked for";
                let error =
                    Error::new(ErrorKind::Connection, ErrorCode::SiteUnavailable, &shared.operation, detail);
                attempts.pause_after(error).await?;
            }
            Err(error) => attempts.pause_after(error).await?,
        }
    }
}

/// Hands out what is missing and returns how many streams that is worth.
fn plan(shared: &Shared, missing: &RangeSet) -> usize {
    let (streams, segment) = share_of(shared.client.streams(), shared.larges.taken(), &SEGMENT);
    let segments = cut(missing, streams, segment);
    let worth = streams.min(segments.len());
    *lock(&shared.segments) = segments;
    worth
}

/// Brings a segment; if that fails at another site, what is missing of it through the one that was asked.
async fn stream(shared: &Arc<Shared>, segment: ByteRange) -> crate::Result<()> {
    let mut ranges = vec![segment];
    loop {
        let (place, outcome) = stream_once(shared, ranges).await;
        match outcome {
            Err(error) if shared.way.failed(place.as_ref(), &error) => {}
            outcome => return outcome,
        }
        let missing = lock(&shared.received).missing();
        ranges = missing.iter().filter_map(|range| range.intersect(segment)).collect();
        if ranges.is_empty() {
            return Ok(());
        }
    }
}

/// One request, and the place that answered it. Frames are read here, and verified and written on a thread of their own.
async fn stream_once(shared: &Arc<Shared>, ranges: Vec<ByteRange>) -> (Option<Place>, crate::Result<()>) {
    let item = PullItem {
        path: shared.wanted.path.clone(),
        version: Some(shared.wanted.content.version),
        space: None,
        ranges: Some(ranges),
    };
    let Opened { mut frames, place } = match shared.way.open(&shared.operation, item).await {
        Ok(opened) => opened,
        Err(error) => return (None, Err(error)),
    };
    let (groups, queue) = mpsc::channel(QUEUED_GROUPS);
    let writer = tokio::task::spawn_blocking({
        let shared = shared.clone();
        move || write(&shared, queue)
    });
    let read = async {
        shared.tree().await?;
        while let Some(frame) = frames.next().await? {
            let wanted = match frame {
                Frame::Data(data) => groups.send(data).await.is_ok(),
                Frame::Fail { problem, .. } => return Err(parse_problem(&shared.operation, &problem)),
                _ => true,
            };
            // If the writer failed, it says why itself.
            if !wanted {
                break;
            }
        }
        Ok(())
    };
    let read = read.await;
    drop(groups);
    let written = writer.await.unwrap_or_else(|error| {
        Err(Error::new(ErrorKind::Local, ErrorCode::Internal, &shared.operation, error.to_string()))
    });
    (place, written.and(read))
}

fn write(shared: &Shared, mut queue: mpsc::Receiver<DataFrame>) -> crate::Result<()> {
    while let Some(data) = queue.blocking_recv() {
        let tree = shared.tree.get().and_then(Option::as_ref);
        verify(&shared.operation, tree, shared.wanted.content.size, &data)?;
        shared.file.write(data.offset, &data.bytes)?;
        if lock(&shared.received).insert(data.group(), data.hash) {
            shared.active.moved(data.bytes.len() as u64);
        }
    }
    Ok(())
}
