//! Many small files in one stream of frames, published by the server while it goes on.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use percale_api::Problem;
use percale_api::uploads::{Committed, ItemDone, PushItem, PushResult, PushResults};
use percale_core::tree::{GROUP_SIZE, HashTree, RootHash, group_count, hash_group};
use percale_core::{ErrorCode, ObjectPath};
use percale_mover::Encoder;
use reqwest::Method;

use crate::answer::parse_json;
use crate::body::{Parts, Pieces, body};
use crate::call::Call;
use crate::client::Client;
use crate::error::{Error, ErrorKind, Retry};
use crate::feed::{Taker, Wanted};
use crate::local::{Buffers, Source};
use crate::progress::Progress;
use crate::retry::Attempts;

/// Most files of a stream, so that their results fit one answer.
const MAX_FILES: usize = 2000;
/// Most bytes of a stream: what is sent again if the answer is lost.
const MAX_BYTES: u64 = 32 << 20;
/// Most bytes of paths and what else is said of the files. The format allows 4 MiB (`docs/design/frames.md`).
const MAX_INFO: usize = 3 << 20;
/// What is said of a file beside its path, at most.
const INFO: usize = 256;
/// Largest answer: 2000 results, or fewer with long paths, each of which may be repeated in a hint.
const MAX_ANSWER: usize = 16 << 20;
/// For how long a stream waits for a further file before it ends, and files that are too few for one wait for others.
pub(crate) const WAIT: Duration = Duration::from_millis(20);
/// Files that are compared at once with what is there already.
const COMPARED_AT_ONCE: usize = 16;

/// What became of it.
pub(crate) enum Pushed {
    Committed(Committed),
    /// Something is there already, and it has the same content.
    Same,
    Failed(Error),
}

/// Pushes files as they come, as many as a stream takes, and those that failed again as long as that can help. Returns what
/// became of each, in the order in which they were taken.
pub(crate) async fn push(client: &Client, taker: Taker, progress: &Arc<Progress>) -> Vec<(Wanted, Pushed)> {
    let files = Files::default();
    let mut results: Vec<Option<Pushed>> = Vec::new();
    let mut attempts = client.attempts();
    let mut source = taker.next(MAX_BYTES, Duration::ZERO).map(|first| Take::Feed(first, taker));
    // After a fault the next request carries half as many, so that even a link that breaks all the time carries some.
    let mut most = usize::MAX;
    while let Some(take) = source.take() {
        let mut fault = None;
        let open = match &take {
            Take::Feed(..) => None,
            Take::Again(open) => Some(open.clone()),
        };
        let sent = push_once(client, &files, take, progress, &mut attempts).await;
        let known = files.known();
        results.resize_with(known.len(), || None);
        let open = open.unwrap_or_else(|| (0..known.len()).collect());
        match sent {
            Ok(outcomes) => {
                let mut settling = Vec::with_capacity(open.len());
                for (at, outcome) in open.iter().zip(outcomes) {
                    settling.push(settle(client, &known[*at], outcome));
                }
                let settling = futures::stream::iter(settling).buffered(COMPARED_AT_ONCE);
                let settled: Vec<Pushed> = settling.collect().await;
                for (at, settled) in open.iter().copied().zip(settled) {
                    match settled {
                        Pushed::Failed(error) if error.retry() == Retry::Temporary => {
                            progress.retract(known[at].size);
                            fault = Some(error);
                        }
                        settled => {
                            results[at] = Some(settled);
                            attempts.progressed();
                        }
                    }
                }
            }
            Err(error) => {
                most = (open.len() / 2).max(1);
                fault = Some(error);
            }
        }
        if let Some(error) = fault
            && let Err(last) = attempts.pause_after(error).await
        {
            for (at, result) in results.iter_mut().enumerate().filter(|(_, result)| result.is_none()) {
                *result = Some(Pushed::Failed(repeat_error(&last, &known[at].target)));
            }
        }
        let open: Vec<usize> = (0..known.len()).filter(|at| results[*at].is_none()).take(most).collect();
        source = (!open.is_empty()).then_some(Take::Again(open));
    }
    let no_result = || Error::new(ErrorKind::Protocol, ErrorCode::Internal, "put a file", "it has no result");
    let results = results.into_iter().map(|result| result.unwrap_or_else(|| Pushed::Failed(no_result())));
    files.known().into_iter().zip(results).collect()
}

/// The files that a stream took on, which the thread that reads them adds to: whatever becomes of it, they are known.
#[derive(Debug, Clone, Default)]
struct Files(Arc<Mutex<Vec<Wanted>>>);

impl Files {
    fn known(&self) -> Vec<Wanted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, file: Wanted) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(file);
    }
}

/// Where the next request takes its files from.
enum Take {
    Feed(Wanted, Taker),
    /// Known ones, by number.
    Again(Vec<usize>),
}

/// One error of a whole batch, told once for each of its files.
fn repeat_error(error: &Error, target: &ObjectPath) -> Error {
    let copy = match error.as_problem() {
        Some(problem) => Error::problem(format!("put {target}"), problem.clone()),
        None => Error::new(error.kind(), error.code(), format!("put {target}"), error.detail()),
    };
    copy.with_retry(error.retry())
}

/// What the sender knows and what the server answered about one file.
struct Sent {
    root: Option<RootHash>,
    outcome: Result<Committed, Error>,
}

/// Decides what a refusal means. Something that is there may be what an earlier attempt wrote whose answer was lost, or
/// what an earlier run wrote: if it is the same content, all is well.
async fn settle(client: &Client, file: &Wanted, sent: Sent) -> Pushed {
    let error = match (sent.outcome, sent.root) {
        (Ok(committed), Some(root)) if committed.root != root => {
            let detail = format!("the site says it stored {}, but {root} was sent", committed.root);
            let operation = format!("put {}", file.target);
            return Pushed::Failed(Error::new(ErrorKind::Integrity, ErrorCode::Integrity, operation, detail));
        }
        (Ok(committed), _) => return Pushed::Committed(committed),
        (Err(error), _) => error,
    };
    let is_taken = matches!(
        error.code(),
        ErrorCode::AlreadyExists | ErrorCode::PreconditionFailed | ErrorCode::Conflict
    );
    if is_taken
        && let Some(root) = sent.root
        && let Ok(entry) = client.stat(&file.target).await
        && entry.content.is_some_and(|content| content.root == Some(root))
    {
        return Pushed::Same;
    }
    Pushed::Failed(error)
}

/// Sends one request. The results are in the order of its files. What time it took to send them is no part of the patience
/// of `attempts`.
async fn push_once(
    client: &Client,
    files: &Files,
    take: Take,
    progress: &Arc<Progress>,
    attempts: &mut Attempts,
) -> crate::Result<Vec<Sent>> {
    let operation = match &take {
        Take::Again(open) if open.len() == 1 => match files.known().get(open[0]) {
            Some(only) => format!("put {}", only.target),
            None => "put a file".to_owned(),
        },
        _ => "put small files".to_owned(),
    };
    let Parts { pieces, closer, sent, body } = body(client.limit(), None);
    let producer = tokio::task::spawn_blocking({
        let (files, progress) = (files.clone(), progress.clone());
        move || produce(&files, take, &pieces, &progress)
    });
    let sending = async {
        let response =
            client.send_frames(Call::new(&operation, Method::POST, "/v1/frames/push"), body, &sent).await?;
        let body = client.read_bytes(&operation, response, MAX_ANSWER).await?;
        parse_json::<PushResults>(&operation, &body)
    };
    let begun = sent.at();
    let answer = sending.await;
    attempts.leave_out(sent.at().saturating_duration_since(begun));
    closer.close();
    let produced = producer.await.unwrap_or_default();
    let answer = answer.inspect_err(|_| {
        progress.retract(produced.iter().map(|item| item.moved).sum());
    })?;
    if answer.items.len() != produced.len() {
        let detail = format!("{} files were sent, but the answer has {}", produced.len(), answer.items.len());
        return Err(Error::new(ErrorKind::Protocol, ErrorCode::Internal, operation, detail));
    }
    let sent = produced.into_iter().zip(answer.items).map(|(produced, result)| {
        let outcome = match (produced.error, result) {
            (Some(error), _) => Err(error),
            (None, PushResult::Committed(committed)) => Ok(committed),
            (None, PushResult::Failed(problem)) => {
                Err(Error::problem(format!("put {}", produced.target), problem))
            }
        };
        Sent { root: produced.root, outcome }
    });
    Ok(sent.collect())
}

/// What became of one file on this side.
struct Produced {
    target: ObjectPath,
    root: Option<RootHash>,
    error: Option<Error>,
    moved: u64,
}

/// Reads, hashes and encodes the files. Runs on a thread of its own; ends early when nobody wants the pieces any more.
fn produce(files: &Files, take: Take, pieces: &Pieces, progress: &Progress) -> Vec<Produced> {
    let mut encoder = Encoder::new();
    let mut pool = Buffers::default();
    let mut produced = Vec::new();
    let mut send = |file: &Wanted| match produce_file(file, &mut encoder, &mut pool, pieces, progress) {
        Some(result) => {
            produced.push(result);
            true
        }
        None => false,
    };
    let is_whole = match take {
        Take::Again(open) => {
            let known = files.known();
            open.iter().filter_map(|at| known.get(*at)).all(&mut send)
        }
        Take::Feed(first, taker) => {
            let (mut next, mut count, mut bytes, mut info) = (Some(first), 0, 0, 0);
            loop {
                let Some(file) = next else { break true };
                files.add(file.clone());
                (count, bytes, info) =
                    (count + 1, bytes + file.size, info + file.target.as_str().len() + INFO);
                if !send(&file) {
                    break false;
                }
                let is_full = count == MAX_FILES || info >= MAX_INFO;
                next = if is_full { None } else { taker.next(MAX_BYTES.saturating_sub(bytes), WAIT) };
            }
        }
    };
    if is_whole {
        encoder.end();
        pieces.send(&mut encoder);
    }
    produced
}

/// Returns nothing if nobody wants the pieces any more.
fn produce_file(
    file: &Wanted,
    encoder: &mut Encoder,
    pool: &mut Buffers,
    pieces: &Pieces,
    progress: &Progress,
) -> Option<Produced> {
    let announce = |encoder: &mut Encoder, size, mtime, mode| {
        let info =
            PushItem { path: file.target.clone(), condition: file.condition(), parents: true, mtime, mode };
        encoder.item(size, &to_json(&info))
    };
    let mut moved = 0;
    let source = match Source::open(&file.local) {
        Ok(source) => source,
        Err(error) => {
            // Announced all the same: the answer has a result for each file.
            let item = announce(encoder, percale_core::ByteCount::ZERO, None, None);
            encoder.fail(item, &to_json(&Problem::new(error.code(), "the sender cannot read it")));
            return pieces.send(encoder).then_some(Produced {
                target: file.target.clone(),
                root: None,
                error: Some(error),
                moved,
            });
        }
    };
    let (size, mtime, mode) = (source.size(), Some(source.fingerprint.mtime()), Some(source.mode));
    let mut send = |encoder: &mut Encoder| -> Result<Option<RootHash>, Error> {
        if size.0 <= GROUP_SIZE {
            // Known before the ITEM is written, since the one group is the whole content.
            let bytes = source.group(0, pool);
            let hash = bytes.as_ref().ok().map(|bytes| hash_group(size, 0, bytes));
            let item = announce(encoder, size, mtime, mode);
            let (bytes, hash) = (bytes.map_err(|error| (item, error)), hash);
            let bytes = fail(encoder, bytes)?;
            if let Some(hash) = hash {
                moved += bytes.len() as u64;
                progress.moved(bytes.len() as u64);
                encoder.data(item, 0, hash, bytes);
            }
            fail(encoder, source.check_unchanged().map_err(|error| (item, error)))?;
            let root = hash.map(|hash| RootHash(hash.0));
            encoder.done(item, &to_json(&ItemDone { root }));
            return Ok(root);
        }
        let item = announce(encoder, size, mtime, mode);
        let mut hashes = Vec::new();
        for index in 0..group_count(size) {
            let bytes = fail(encoder, source.group(index, pool).map_err(|error| (item, error)))?;
            let hash = hash_group(size, index, &bytes);
            hashes.push(hash);
            moved += bytes.len() as u64;
            progress.moved(bytes.len() as u64);
            encoder.data(item, index * GROUP_SIZE, hash, bytes);
            if !pieces.send(encoder) {
                return Ok(None);
            }
        }
        fail(encoder, source.check_unchanged().map_err(|error| (item, error)))?;
        let root = HashTree::from_groups(size, hashes).ok().map(|tree| tree.root());
        encoder.done(item, &to_json(&ItemDone { root }));
        Ok(root)
    };
    let result = send(encoder);
    if result.is_err() {
        progress.retract(moved);
        moved = 0;
    }
    let (root, error) = match result {
        Ok(root) => (root, None),
        Err(error) => (None, Some(error)),
    };
    pieces.send(encoder).then_some(Produced { target: file.target.clone(), root, error, moved })
}

/// Tells the server that an item cannot be sent, if it cannot.
fn fail<T>(encoder: &mut Encoder, result: Result<T, (u32, Error)>) -> Result<T, Error> {
    result.map_err(|(item, error)| {
        encoder.fail(item, &to_json(&Problem::new(error.code(), "the sender cannot send it as announced")));
        error
    })
}

pub(crate) fn to_json(info: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(info).expect("wire types have string keys and cannot fail")
}
