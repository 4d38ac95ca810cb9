//! One large object over several streams.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use percale_api::uploads::PullItem;
use percale_core::range::RangeSet;
use percale_core::tree::HashTree;
use percale_core::{ByteCount, ByteRange, ErrorCode};
use percale_mover::tuning::{Segment, cut, share_of};
use percale_mover::{DataFrame, Frame, Late, Meter, ReceivedGroups, Slots, Wait};
use tokio::sync::{OnceCell, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::ahead::Ahead;
use super::transfer::under_way;
use super::{Wanted, lock};
use crate::client::Client;
use crate::elsewhere::{Opened, Place, Way};
use crate::error::{Error, ErrorKind, Retry};
use crate::local::PartFile;
use crate::progress::{Active, Progress};
use crate::pull::{Comparing, FrameStream, parse_problem};
use crate::read::verify;
use crate::upload::blocking;

/// Smallest and largest range that a stream asks for at a time.
const SEGMENT: std::ops::RangeInclusive<u64> = 1 << 20..=64 << 20;
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
    segments: Mutex<VecDeque<Segment>>,
    /// The id of the streams that bring the last segments together.
    share: String,
    comparing: Comparing,
    received: Mutex<ReceivedGroups>,
    /// What comes, and what the streams wait for.
    meter: Meter,
    /// Ends the streams that are late, once what they were to bring has come over others.
    given_up: CancellationToken,
    active: Active,
}

/// Gets an object; what came is kept if it fails.
pub(super) async fn get(
    client: &Client,
    wanted: &Wanted,
    ahead: Option<Ahead>,
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
        share: Uuid::new_v4().simple().to_string(),
        comparing: Comparing::default(),
        received: Mutex::new(ReceivedGroups::new(size)),
        meter: Meter::default(),
        given_up: CancellationToken::new(),
        active,
    });
    if is_resumed {
        find_what_came(&shared).await?;
    }
    let ahead = ahead.filter(|_| !is_resumed);
    let (tree, received) = tokio::join!(shared.tree(), receive(&shared, ahead));
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

    /// Returns the next frame of a stream; nothing at its end, or once it is given up.
    async fn next(&self, frames: &mut FrameStream) -> crate::Result<Option<Frame>> {
        let next = self.meter.waiting(Wait::Bytes, frames.next());
        self.given_up.run_until_cancelled(next).await.unwrap_or(Ok(None))
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

async fn receive(shared: &Arc<Shared>, ahead: Option<Ahead>) -> crate::Result<()> {
    if let Some(ahead) = ahead {
        take_up(shared, ahead).await;
    }
    let mut attempts = shared.client.attempts();
    // What fails is asked for again of one stream alone: another one may still be sent by a server that has not noticed that it was cut.
    let mut may_share = true;
    loop {
        let missing = lock(&shared.received).missing();
        if lock(&shared.received).is_complete() {
            return Ok(());
        }
        let before = missing.total();
        let streams = plan(shared, &missing, std::mem::take(&mut may_share));
        let mut running = JoinSet::new();
        begin_streams(shared, streams, &mut running);
        let result = all_ended(shared, running).await;
        if lock(&shared.received).missing().total() < before {
            attempts.progressed();
        }
        match result {
            _ if lock(&shared.received).is_complete() => return Ok(()),
            // At once and of any client: from now on nothing comes that its site has not compared. All that is missing, since a stream
            // of many that share brings what another one was asked for.
            Err(error) if is_again(&error) => {}
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

/// Takes what was asked for before it was known what there is. What does not come of it is asked for as if it had not been.
async fn take_up(shared: &Arc<Shared>, mut ahead: Ahead) {
    let mut running = JoinSet::new();
    while let Some(frames) = ahead.next(shared.wanted.content.version).await {
        let shared = shared.clone();
        running.spawn(async move { bring(&shared, frames).await });
    }
    if let Err(error) = all_ended(shared, running).await {
        tracing::debug!(%error, "what was asked for ahead did not all come");
    }
}

/// Begins to work on segments over so many streams.
fn begin_streams(shared: &Arc<Shared>, streams: usize, running: &mut JoinSet<crate::Result<()>>) {
    for _ in 0..streams {
        let shared = shared.clone();
        running.spawn(async move {
            loop {
                // Some more than there are streams: while one waits for its answer, the others fill the line. Without a
                // slot nothing is asked for, since an answer that nobody reads is cut off.
                let _slot = shared.slots.take(under_way(shared.client.streams())).await;
                let segment = lock(&shared.segments).pop_front();
                let Some(segment) = segment else { return Ok(()) };
                stream(&shared, segment).await?;
            }
        });
    }
}

/// Waits for the end of all streams. What is late is asked for over others as well.
async fn all_ended(shared: &Arc<Shared>, mut running: JoinSet<crate::Result<()>>) -> crate::Result<()> {
    let (mut result, mut late) = (Ok(()), Late::default());
    loop {
        let (open, most) = (running.len(), shared.client.streams());
        tokio::select! {
            joined = running.join_next() => {
                let Some(joined) = joined else { return result };
                let ended = joined.unwrap_or_else(|error| {
                    Err(Error::new(ErrorKind::Local, ErrorCode::Internal, &shared.operation, error.to_string()))
                });
                if result.is_ok() && ended.is_err() {
                    result = ended;
                    lock(&shared.segments).clear();
                }
            }
            () = late.lull(&shared.meter, shared.client.rtt(), || open) => {
                let missing = lock(&shared.received).missing();
                // All that is waited for is the end of a stream that has brought its last byte.
                if missing.total() == ByteCount::ZERO {
                    shared.given_up.cancel();
                }
                let are_begun = result.is_ok() && lock(&shared.segments).is_empty();
                if !are_begun || !late.ask_again(missing.total().0, open, most) {
                    continue;
                }
                tracing::debug!(missing = missing.total().0, streams = open, "streams have stalled; what they were to bring is asked for over others");
                let streams = plan(shared, &missing, false).min(most - open);
                begin_streams(shared, streams, &mut running);
            }
        }
        // What comes now has come over another stream.
        if late.was_asked_again() && lock(&shared.received).is_complete() {
            shared.given_up.cancel();
        }
    }
}

/// Hands out what is missing and returns how many streams that is worth.
fn plan(shared: &Shared, missing: &RangeSet, may_share: bool) -> usize {
    let (streams, segment) = share_of(shared.client.streams(), shared.larges.taken(), &SEGMENT);
    let segments = cut(missing, streams, segment, may_share);
    let worth = streams.min(segments.len());
    *lock(&shared.segments) = segments;
    worth
}

/// Brings a segment; if that fails at another site, what is missing of it through the one that was asked. Other streams bring parts of one
/// that is shared.
async fn stream(
    shared: &Arc<Shared>,
    Segment { range: segment, mut is_shared }: Segment,
) -> crate::Result<()> {
    let mut ranges = vec![segment];
    loop {
        let (place, outcome) = stream_once(shared, ranges, is_shared).await;
        is_shared = false;
        match outcome {
            Err(error) if !is_again(&error) && shared.way.failed(place.as_ref(), &error) => {}
            outcome => return outcome,
        }
        let missing = lock(&shared.received).missing();
        ranges = missing.iter().filter_map(|range| range.intersect(segment)).collect();
        if ranges.is_empty() {
            return Ok(());
        }
    }
}

/// One request, and the place that answered it.
async fn stream_once(
    shared: &Arc<Shared>,
    ranges: Vec<ByteRange>,
    is_shared: bool,
) -> (Option<Place>, crate::Result<()>) {
    let item = PullItem {
        path: shared.wanted.path.clone(),
        version: Some(shared.wanted.content.version),
        space: None,
        ranges: Some(ranges),
    };
    let share = is_shared.then_some(&*shared.share);
    let open = shared.way.open(&shared.operation, item, share, shared.comparing.checks());
    let open = shared.meter.waiting(Wait::Bytes, open);
    let Opened { frames, place } = match shared.given_up.run_until_cancelled(open).await {
        Some(Ok(opened)) => opened,
        Some(Err(error)) => return (None, Err(error)),
        None => return (None, Ok(())),
    };
    (place, bring(shared, frames).await)
}

/// Frames are read here, and verified and written on a thread of their own.
async fn bring(shared: &Arc<Shared>, mut frames: FrameStream) -> crate::Result<()> {
    let (groups, queue) = mpsc::channel(QUEUED_GROUPS);
    let writer = tokio::task::spawn_blocking({
        let shared = shared.clone();
        move || write(&shared, queue)
    });
    let read = async {
        // One that is given up still writes what it has brought.
        while let Some(frame) = shared.next(&mut frames).await? {
            let wanted = match frame {
                Frame::Data(data) => {
                    // The first bytes are read while it is on its way: the system lets more come only to who reads.
                    shared.tree().await?;
                    groups.send(data).await.is_ok()
                }
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
    written.and(read).map_err(|error| shared.comparing.judge(error, frames.is_unchecked()))
}

/// Tells whether the same place is to be asked again: it has sent wrong bytes that it had not compared.
fn is_again(error: &Error) -> bool {
    error.kind() == ErrorKind::Integrity && error.retry() == Retry::Temporary
}

fn write(shared: &Shared, mut queue: mpsc::Receiver<DataFrame>) -> crate::Result<()> {
    while let Some(data) = queue.blocking_recv() {
        let tree = shared.tree.get().and_then(Option::as_ref);
        verify(&shared.operation, tree, shared.wanted.content.size, &data)?;
        shared.file.write(data.offset, &data.bytes)?;
        if lock(&shared.received).insert(data.group(), data.hash) {
            shared.active.moved(data.bytes.len() as u64);
            shared.meter.received(data.bytes.len() as u64);
        }
    }
    Ok(())
}
