//! One large file: a resumable upload over several streams.
//!
//! The server says which bytes it misses; they are handed out to the streams in segments, so that a slow stream takes
//! fewer of them. Every stream is a request of its own and ends after a while, so that the plan can be balanced anew and
//! a token that was renewed is used. Whatever happens, the next step is the same: ask what is missing, send that.
//!
//! A new upload is opened while its first bytes are on their way: the site lets them wait for it.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use percale_api::uploads::{
    CommitUpload, Committed, Condition, ItemDone, NewUpload, SentGroup, SentGroups, Upload,
};
use percale_core::ids::LeaseId;
use percale_core::range::RangeSet;
use percale_core::tree::{GROUP_SIZE, HashTree, group_count, group_range, hash_group};
use percale_core::{ByteCount, ByteRange, ErrorCode, ObjectPath};
use percale_mover::tuning::{cut, share_of};
use percale_mover::{Encoder, ReceivedGroups, Slots};
use reqwest::Method;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::body::{Parts, Pieces, body};
use crate::call::Call;
use crate::client::{Client, MAX_STREAMS};
use crate::error::{Error, ErrorKind, Retry};
use crate::local::{Buffers, Source};
use crate::progress::{Active, Progress};
use crate::push::to_json;

mod state;

pub(crate) use state::StateFile;

/// What a stream takes at a time, at most and at least. Small enough that all end together, large enough that a stream
/// reads ahead.
const SEGMENT: std::ops::RangeInclusive<u64> = 1 << 20..=8 << 20;
/// Time after which a stream begins no further segment (`docs/design/frames.md`: a body lasts at most about 60 s).
const BODY_TIME: Duration = Duration::from_secs(40);
/// How long the site waits at the commit for bytes that this host has already handed to its network.
const COMMIT_WAIT: Duration = Duration::from_secs(20);
/// How long the site lets bytes wait for the request that opens their upload: it may have to be repeated.
const OPEN_WAIT: Duration = Duration::from_secs(20);
/// Times in a row that the server may say "incomplete" at the commit, or fail, without any byte having arrived in between.
const MAX_VAIN_ROUNDS: usize = 64;

/// What to upload, and how.
pub(crate) struct UploadPlan {
    pub local: PathBuf,
    pub target: ObjectPath,
    pub condition: Condition,
    /// Where the note for a later resume is kept; none if absent.
    pub state_dir: Option<PathBuf>,
    /// What the streams of all files of a transfer share.
    pub slots: Arc<Slots>,
    /// The large files that are in hand at present.
    pub larges: Arc<Slots>,
}

/// The parts of an upload that its streams share.
struct Shared {
    client: Client,
    operation: String,
    source: Source,
    target: ObjectPath,
    id: LeaseId,
    /// Whether the site is known to have opened it.
    is_open: watch::Sender<bool>,
    slots: Arc<Slots>,
    larges: Arc<Slots>,
    segments: Mutex<VecDeque<ByteRange>>,
    hashes: Mutex<ReceivedGroups>,
    /// Told when the last group was hashed.
    hashed: Notify,
    active: Active,
}

impl Shared {
    fn next_segment(&self) -> Option<ByteRange> {
        let mut segments = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        let next = segments.pop_front();
        if next.is_some() && segments.is_empty() {
            // For the commit, which is sent while all others are still busy.
            self.client.open_ahead(1);
        }
        next
    }

    fn note(&self, group: u64, hash: percale_core::tree::GroupHash) {
        let mut hashes = self.hashes.lock().unwrap_or_else(PoisonError::into_inner);
        if hashes.insert(group, hash) && hashes.is_complete() {
            self.hashed.notify_one();
        }
    }

    /// Tells whether the whole file was read, so that a commit may have been sent.
    fn is_hashed(&self) -> bool {
        self.hashes.lock().unwrap_or_else(PoisonError::into_inner).is_complete()
    }

    fn knows(&self, group: u64) -> bool {
        self.hashes.lock().unwrap_or_else(PoisonError::into_inner).get(group).is_some()
    }

    /// Returns groups that the server misses and that this process has read for sending. A server that was killed may have
    /// written them without having noted it.
    fn sent(&self, missing: &RangeSet) -> SentGroups {
        let hashes = self.hashes.lock().unwrap_or_else(PoisonError::into_inner);
        let groups =
            missing.iter().flat_map(|hole| hole.start() / GROUP_SIZE..hole.end().div_ceil(GROUP_SIZE));
        let sent = groups.filter_map(|group| Some(SentGroup { group, hash: hashes.get(group)? }));
        SentGroups { groups: sent.take(SentGroups::MOST).collect() }
    }

    /// Returns how many streams this file takes.
    fn streams(&self) -> usize {
        share_of(self.client.first_streams(), self.larges.taken(), &SEGMENT).0
    }

    /// Hands out what the server misses.
    fn plan(&self, missing: &RangeSet) {
        let size = self.source.size();
        let aligned: RangeSet = missing.iter().map(|range| range.align_out(GROUP_SIZE, size)).collect();
        *self.segments.lock().unwrap_or_else(PoisonError::into_inner) =
            cut(&aligned, self.streams(), SEGMENT, false).into_iter().map(|segment| segment.range).collect();
        let missing = aligned.total().0;
        let arrived = size.0.saturating_sub(missing);
        let counted = self.active.done();
        if counted > arrived {
            self.active.retract(counted - arrived);
        } else {
            self.active.moved(arrived - counted);
        }
    }
}

/// Uploads one file and returns what was committed.
pub(crate) async fn upload(
    client: &Client,
    plan: UploadPlan,
    progress: &Arc<Progress>,
) -> crate::Result<Committed> {
    let operation = format!("put {}", plan.target);
    let _in_hand = plan.larges.take(MAX_STREAMS).await;
    let source = {
        let local = plan.local.clone();
        blocking(&operation, move || Source::open(&local)).await?
    };
    let size = source.size();
    let (mut state, taken_up) = take_up(client, &plan, &source).await?;
    let active = progress.begin(plan.local.display().to_string(), size.0);
    let shared = Arc::new(Shared {
        client: client.clone(),
        operation: operation.clone(),
        source,
        target: plan.target.clone(),
        id: taken_up.as_ref().map_or_else(LeaseId::new, |upload| upload.id),
        is_open: watch::Sender::new(taken_up.is_some()),
        slots: plan.slots.clone(),
        larges: plan.larges.clone(),
        segments: Mutex::default(),
        hashes: Mutex::new(ReceivedGroups::new(size)),
        hashed: Notify::new(),
        active,
    });
    let result = match taken_up {
        Some(upload) => go_on(&shared, upload, None).await,
        None => match open_and_send(&shared, &plan, &mut state).await {
            Ok((upload, outcome)) => go_on(&shared, upload, outcome).await,
            Err(error) => Err(error),
        },
    };
    match &result {
        Ok(_) => state.remove(),
        // What must not be taken up again is given up at once, so that its bytes do not lie about until their lease ends.
        Err(error) if is_hopeless(error) => {
            state.remove();
            if *shared.is_open.borrow() {
                let _ = client.abort_upload(shared.id).await;
            }
        }
        Err(_) => {}
    }
    result
}

fn is_hopeless(error: &Error) -> bool {
    error.kind() == ErrorKind::SourceChanged
        || matches!(
            error.code(),
            ErrorCode::DigestMismatch
                | ErrorCode::Integrity
                | ErrorCode::AlreadyExists
                | ErrorCode::PreconditionFailed
                | ErrorCode::LeaseExpired
                | ErrorCode::NotFound
        )
}

/// Takes up the upload of an earlier run if the note of it still fits.
async fn take_up(
    client: &Client,
    plan: &UploadPlan,
    source: &Source,
) -> crate::Result<(StateFile, Option<Upload>)> {
    let operation = format!("put {}", plan.target);
    let (folder, url) = (plan.state_dir.clone(), client.url().to_string());
    let (target, local) = (plan.target.clone(), plan.local.clone());
    let opened = blocking(&operation, move || {
        let mut state = match &folder {
            Some(folder) => StateFile::open(folder, &url, &target, &local),
            None => StateFile::none(),
        };
        let noted = state.noted();
        Ok((state, noted))
    });
    let (state, noted) = opened.await?;
    let Some(noted) = noted else { return Ok((state, None)) };
    let fits = noted.fingerprint == source.fingerprint && noted.condition == plan.condition;
    match client.upload(noted.upload).await {
        Ok(upload) if fits && upload.size == source.size().0 && upload.path == plan.target => {
            return Ok((state, Some(upload)));
        }
        Ok(upload) => {
            let _ = client.abort_upload(upload.id).await;
        }
        Err(error) if matches!(error.code(), ErrorCode::NotFound | ErrorCode::LeaseExpired) => {}
        Err(error) => return Err(error),
    }
    Ok((state, None))
}

/// Opens a new upload and sends everything meanwhile. Returns what is known of the upload, and what became of the sending
/// if that is over.
async fn open_and_send(
    shared: &Arc<Shared>,
    plan: &UploadPlan,
    state: &mut StateFile,
) -> crate::Result<(Upload, Option<crate::Result<Committed>>)> {
    let source = &shared.source;
    let (fingerprint, condition) = (source.fingerprint, plan.condition);
    let new = NewUpload {
        id: Some(shared.id),
        path: plan.target.clone(),
        size: source.size().0,
        condition,
        parents: true,
        mtime: Some(fingerprint.mtime()),
        mode: Some(source.mode),
    };
    shared.plan(&RangeSet::new().holes(source.size()));
    let sending = send_then_commit(shared, true);
    let opening = async {
        let upload = shared.client.open_upload(&new).await?;
        let (id, mut file) = (shared.id, std::mem::replace(state, StateFile::none()));
        let noted = blocking(&shared.operation, move || {
            file.note(id, fingerprint, condition);
            Ok(file)
        });
        *state = noted.await?;
        shared.is_open.send_replace(true);
        Ok(upload)
    };
    tokio::pin!(sending, opening);
    let (upload, outcome) = tokio::select! {
        upload = &mut opening => (upload?, None),
        outcome = &mut sending => (opening.await?, Some(outcome)),
    };
    match outcome {
        None if upload.positioned => Ok((upload, Some(sending.await))),
        // The site has refused, or will refuse, what came over several connections.
        _ if !upload.positioned => Ok((upload, None)),
        outcome => Ok((upload, outcome)),
    }
}

/// Goes on until everything is there and committed. `outcome` is that of a first round that is over already.
async fn go_on(
    shared: &Arc<Shared>,
    upload: Upload,
    mut outcome: Option<crate::Result<Committed>>,
) -> crate::Result<Committed> {
    let mut attempts = shared.client.attempts();
    let mut missing = upload.missing;
    let mut vain = 0;
    while vain < MAX_VAIN_ROUNDS {
        let before = missing.total();
        let outcome = match outcome.take() {
            Some(outcome) => outcome,
            None => {
                shared.plan(&missing);
                send_then_commit(shared, upload.positioned).await
            }
        };
        let error = match outcome {
            Ok(committed) => return Ok(committed),
            Err(error) => error,
        };
        let is_incomplete = error.code() == ErrorCode::UploadIncomplete;
        // A local fault, or a refusal: nothing that sending again could mend.
        if !is_incomplete && error.retry() != Retry::Temporary {
            return Err(error);
        }
        // Asked before the pause: a round that brought something on is no part of the time after which it is given up.
        let asked = Instant::now();
        missing = match shared.client.upload(shared.id).await {
            Ok(upload) => upload.missing,
            // A commit that was sent goes on at the site though its connection broke, and is answered again.
            Err(error) if error.code() == ErrorCode::NotFound && shared.is_hashed() => {
                return commit(shared, Duration::ZERO).await;
            }
            Err(error) => return Err(error),
        };
        let sent = shared.sent(&missing);
        if !sent.groups.is_empty() {
            // What is not found again is sent again.
            let found = shared.client.recall_groups(shared.id, &sent).await;
            missing = found.map_or(missing, |upload| upload.missing);
        }
        if missing.total() < before {
            attempts.progressed();
            vain = 0;
        } else {
            attempts.leave_out(asked.elapsed());
            vain += 1;
        }
        if !is_incomplete {
            attempts.pause_after(error).await?;
        }
    }
    let detail = "the site said again and again that bytes are missing that were sent";
    Err(Error::new(ErrorKind::Protocol, ErrorCode::UploadIncomplete, &shared.operation, detail))
}

/// Sends all segments and commits. As soon as the whole file was read and hashed the commit goes off too, which saves the
/// round trip that it takes to hear of the last byte's arrival: the site waits for what is on its way.
async fn send_then_commit(shared: &Arc<Shared>, positioned: bool) -> crate::Result<Committed> {
    let sent = send_all(shared, positioned);
    let is_begun = AtomicBool::new(false);
    let early = async {
        shared.hashed.notified().await;
        is_begun.store(true, Relaxed);
        commit(shared, COMMIT_WAIT).await
    };
    tokio::pin!(sent, early);
    tokio::select! {
        biased;
        committed = &mut early => match committed {
            // The streams are answered as well, and their connections stay good for what comes next.
            Ok(committed) => {
                let _ = sent.await;
                return Ok(committed);
            }
            Err(error) if error.code() == ErrorCode::UploadIncomplete => sent.await?,
            Err(error) => return Err(error),
        },
        result = &mut sent => {
            result?;
            if is_begun.load(Relaxed) {
                return early.await;
            }
        }
    }
    commit(shared, Duration::ZERO).await
}

/// Sends all segments. The first fault that is not one of the connection stops everything.
async fn send_all(shared: &Arc<Shared>, positioned: bool) -> crate::Result<()> {
    let mut streams = JoinSet::new();
    let first = if positioned { shared.streams() } else { 1 };
    begin_streams(shared, first, &mut streams);
    let mut opened = shared.is_open.subscribe();
    let mut may_begin_more = positioned && !*opened.borrow_and_update();
    let mut result = Ok(());
    loop {
        let joined = tokio::select! {
            joined = streams.join_next() => match joined {
                Some(joined) => joined,
                None => break,
            },
            // Now the round trip is known.
            _ = opened.changed(), if may_begin_more => {
                may_begin_more = false;
                begin_streams(shared, shared.streams().saturating_sub(first), &mut streams);
                continue;
            }
        };
        let ended = joined.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Local, ErrorCode::Internal, &shared.operation, error.to_string()))
        });
        if result.is_ok() && ended.is_err() {
            result = ended;
            // The others finish what they began: it is verified and need not be sent again.
            shared.segments.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }
    result
}

fn begin_streams(shared: &Arc<Shared>, count: usize, streams: &mut JoinSet<crate::Result<()>>) {
    for _ in 0..count {
        // Each has one before any may take another: the first would else have filled its buffers with all of a small file.
        let Some(first) = shared.next_segment() else { break };
        let shared = shared.clone();
        streams.spawn(async move {
            stream(&shared, first).await?;
            while let Some(next) = shared.next_segment() {
                stream(&shared, next).await?;
            }
            Ok(())
        });
    }
}

/// One request: this segment and further ones as frames, until there are none left or its time is over.
async fn stream(shared: &Arc<Shared>, first: ByteRange) -> crate::Result<()> {
    let slot = shared.slots.take(shared.client.first_streams()).await;
    let Parts { pieces, closer, sent, body } = body(shared.client.limit(), slot);
    let producer = tokio::task::spawn_blocking({
        let shared = shared.clone();
        move || produce(&shared, first, &pieces)
    });
    let mut call = Call::new(&shared.operation, Method::POST, format!("/v1/uploads/{}/frames", shared.id));
    if !*shared.is_open.borrow() {
        call = call.wait(OPEN_WAIT);
    }
    let sending = async {
        let response = shared.client.send_frames(call, body, &sent).await?;
        shared.client.read_bytes(&shared.operation, response, 64 << 20).await.map(drop)
    };
    let answer = sending.await;
    closer.close();
    let produced = producer.await.unwrap_or_else(|error| {
        Err(Error::new(ErrorKind::Local, ErrorCode::Internal, &shared.operation, error.to_string()))
    });
    // A local fault is the cause of whatever the server then said about a cut stream.
    produced.and(answer)
}

fn produce(shared: &Shared, first: ByteRange, pieces: &Pieces) -> crate::Result<()> {
    let began = Instant::now();
    let size = shared.source.size();
    let mut encoder = Encoder::new();
    let mut pool = Buffers::default();
    let item = encoder.item(size, b"{}");
    let mut next = Some(first);
    while let Some(segment) = next {
        for group in segment.start() / GROUP_SIZE..segment.end().div_ceil(GROUP_SIZE) {
            let bytes = shared.source.group(group, &mut pool)?;
            let hash = hash_group(size, group, &bytes);
            shared.note(group, hash);
            let len = bytes.len() as u64;
            encoder.data(item, group * GROUP_SIZE, hash, bytes);
            if !pieces.send(&mut encoder) {
                return Ok(());
            }
            shared.active.moved(len);
        }
        next = if began.elapsed() < BODY_TIME { shared.next_segment() } else { None };
    }
    encoder.done(item, &to_json(&ItemDone::default()));
    encoder.end();
    pieces.send(&mut encoder);
    Ok(())
}

async fn commit(shared: &Arc<Shared>, wait: Duration) -> crate::Result<Committed> {
    let tree = {
        let shared = shared.clone();
        blocking(&shared.operation.clone(), move || whole_tree(&shared)).await?
    };
    let commit = CommitUpload { root: Some(tree.root()), digests: Vec::new() };
    let committed = shared.client.commit_upload(shared.id, &shared.target, &commit, wait).await?;
    if committed.root != tree.root() {
        let detail = format!("the site says it stored {}, but {} was sent", committed.root, tree.root());
        return Err(Error::new(ErrorKind::Integrity, ErrorCode::Integrity, &shared.operation, detail));
    }
    Ok(committed)
}

/// Makes the tree of the file. Groups that an earlier run sent are read and hashed again: what is committed is what the
/// file holds now, or it is refused.
fn whole_tree(shared: &Shared) -> crate::Result<HashTree> {
    let size = shared.source.size();
    let mut pool = Buffers::default();
    for group in (0..group_count(size)).filter(|group| !shared.knows(*group)) {
        debug_assert!(!group_range(size, group).is_empty() || size == ByteCount::ZERO);
        let bytes = shared.source.group(group, &mut pool)?;
        shared.note(group, hash_group(size, group, &bytes));
    }
    shared.source.check_unchanged()?;
    let tree = shared.hashes.lock().unwrap_or_else(PoisonError::into_inner).tree();
    tree.map_err(|error| {
        Error::new(ErrorKind::Local, ErrorCode::Internal, &shared.operation, error.to_string())
            .with_source(error)
    })
}

/// Runs what reads files on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    operation: &str,
    work: impl FnOnce() -> crate::Result<T> + Send + 'static,
) -> crate::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(Error::new(ErrorKind::Local, ErrorCode::Internal, operation, error.to_string()))
    })
}

/// Returns where notes for a later resume are kept: `$XDG_STATE_HOME/percale/uploads`.
pub fn default_state_dir() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state =
        absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(Path::new(".local/state"))))?;
    Some(state.join("percale/uploads"))
}
