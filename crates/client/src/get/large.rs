//! One large object over several streams.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use percale_api::uploads::PullItem;
use percale_core::range::RangeSet;
use percale_core::tree::HashTree;
use percale_core::{ByteCount, ByteRange, ErrorCode};
use percale_mover::tuning::cut;
use percale_mover::{DataFrame, Frame, ReceivedGroups};
use tokio::sync::{Semaphore, mpsc};
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
/// Groups that wait to be written in each stream.
const QUEUED_GROUPS: usize = 6;

struct Shared {
    client: Client,
    way: Way,
    operation: String,
    wanted: Wanted,
    /// Absent for an object that was not hashed yet: then only the transport is checked.
    tree: Option<HashTree>,
    file: PartFile,
    segments: Mutex<VecDeque<ByteRange>>,
    received: Mutex<ReceivedGroups>,
    active: Active,
}

/// Gets an object; what came is kept if it fails.
pub(super) async fn get(
    client: &Client,
    wanted: &Wanted,
    slots: Arc<Semaphore>,
    progress: &Arc<Progress>,
) -> crate::Result<()> {
    let operation = format!("get {}", wanted.path);
    let size = ByteCount(wanted.content.size);
    let tree = match wanted.content.root {
        Some(_) => Some(client.verified_tree(&wanted.path, &wanted.content).await?),
        None => None,
    };
    let opened = {
        let (local, tree) = (wanted.local.clone(), tree.clone());
        blocking(&operation, move || {
            let file = PartFile::open(&local, size.0)?;
            let received = match &tree {
                Some(tree) => file.received(tree)?,
                None => ReceivedGroups::new(size),
            };
            Ok((file, received))
        })
    };
    let (file, received) = opened.await?;
    let active = progress.begin(wanted.path.to_string(), size.0);
    active.moved(size.0 - received.missing().total().0);
    let shared = Arc::new(Shared {
        client: client.clone(),
        way: Way::new(client),
        operation,
        wanted: wanted.clone(),
        tree,
        file,
        segments: Mutex::default(),
        received: Mutex::new(received),
        active,
    });
    receive(&shared, &slots).await?;
    let operation = shared.operation.clone();
    let Some(shared) = Arc::into_inner(shared) else {
        let detail = "a stream is still writing";
        return Err(Error::new(ErrorKind::Local, ErrorCode::Internal, operation, detail));
    };
    blocking(&operation, move || {
        shared.file.publish(wanted_mtime(&shared.wanted), shared.wanted.replaces, true)
    })
    .await
}

fn wanted_mtime(wanted: &Wanted) -> percale_core::Timestamp {
    wanted.content.mtime
}

async fn receive(shared: &Arc<Shared>, slots: &Arc<Semaphore>) -> crate::Result<()> {
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
            let (shared, slots) = (shared.clone(), slots.clone());
            running.spawn(async move {
                let Ok(_slot) = slots.acquire_owned().await else { return Ok(()) };
                loop {
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
    let streams = shared.client.streams();
    let segments = cut(missing, streams, SEGMENT);
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
        verify(&shared.operation, shared.tree.as_ref(), shared.wanted.content.size, &data)?;
        shared.file.write(data.offset, &data.bytes)?;
        if lock(&shared.received).insert(data.group(), data.hash) {
            shared.active.moved(data.bytes.len() as u64);
        }
    }
    Ok(())
}
