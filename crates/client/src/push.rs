//! Many small files in one stream of frames, published by the server as one batch.

use std::path::PathBuf;
use std::sync::Arc;

use percale_api::Problem;
use percale_api::uploads::{Committed, Condition, ItemDone, PushItem, PushResult, PushResults};
use percale_core::tree::{GROUP_SIZE, HashTree, RootHash, group_count, hash_group};
use percale_core::{ErrorCode, ObjectPath};
use percale_mover::Encoder;

use crate::answer::parse_json;
use crate::body::{Parts, Pieces, body};
use crate::client::Client;
use crate::error::{Error, ErrorKind, Retry};
use crate::local::{Buffers, Source};
use crate::progress::Progress;

/// Most files of a batch. Beyond some hundreds the cost of a batch (two transactions, two flushes) no longer shows.
pub(crate) const MAX_FILES: usize = 500;
/// Most bytes of a batch: what is sent again if the answer is lost.
pub(crate) const MAX_BYTES: u64 = 32 << 20;
/// Largest answer: 500 results with long paths.
const MAX_ANSWER: usize = 8 << 20;

/// One file of a batch.
#[derive(Debug, Clone)]
pub(crate) struct PushFile {
    pub local: PathBuf,
    pub target: ObjectPath,
    pub size: u64,
    pub condition: Condition,
}

/// What became of it.
pub(crate) enum Pushed {
    Committed(Committed),
    /// Something is there already, and it has the same content.
    Same,
    Failed(Error),
}

/// Pushes a batch, again as long as that can help. The answer has a result for each file, in their order.
pub(crate) async fn push(client: &Client, files: Vec<PushFile>, progress: &Arc<Progress>) -> Vec<Pushed> {
    let files = Arc::new(files);
    let mut attempts = client.attempts();
    let mut results: Vec<Option<Pushed>> = files.iter().map(|_| None).collect();
    // After a fault the next request carries half as many, so that even a link that breaks all the time carries some.
    let mut most = files.len();
    loop {
        let open: Vec<usize> = (0..files.len()).filter(|at| results[*at].is_none()).take(most).collect();
        let operation = match open.as_slice() {
            [] => break,
            [only] => format!("put {}", files[*only].target),
            several => format!("put {} files", several.len()),
        };
        let mut fault = None;
        match push_once(client, &operation, &files, &open, progress).await {
            Ok(outcomes) => {
                for (at, outcome) in open.iter().copied().zip(outcomes) {
                    match settle(client, &files[at], outcome).await {
                        Pushed::Failed(error) if error.retry() == Retry::Temporary => {
                            progress.retract(files[at].size);
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
        let Some(error) = fault else { continue };
        if let Err(last) = attempts.pause_after(error).await {
            for (at, result) in results.iter_mut().enumerate().filter(|(_, result)| result.is_none()) {
                *result = Some(Pushed::Failed(repeat_error(&last, &files[at].target)));
            }
            break;
        }
    }
    let no_result = || Error::new(ErrorKind::Protocol, ErrorCode::Internal, "put a file", "it has no result");
    results.into_iter().map(|result| result.unwrap_or_else(|| Pushed::Failed(no_result()))).collect()
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
async fn settle(client: &Client, file: &PushFile, sent: Sent) -> Pushed {
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

async fn push_once(
    client: &Client,
    operation: &str,
    files: &Arc<Vec<PushFile>>,
    open: &[usize],
    progress: &Arc<Progress>,
) -> crate::Result<Vec<Sent>> {
    let Parts { pieces, closer, sent, body } = body(client.limit());
    let producer = tokio::task::spawn_blocking({
        let (files, open, progress) = (files.clone(), open.to_vec(), progress.clone());
        move || produce(&files, &open, &pieces, &progress)
    });
    let sending = async {
        let response = client.send_frames(operation, "/v1/frames/push", None, body, &sent).await?;
        let body = client.read_bytes(operation, response, MAX_ANSWER).await?;
        parse_json::<PushResults>(operation, &body)
    };
    let answer = sending.await;
    closer.close();
    let produced = producer.await.unwrap_or_default();
    let answer = answer.inspect_err(|_| {
        progress.retract(produced.iter().map(|item| item.moved).sum());
    })?;
    if answer.items.len() != open.len() || produced.len() != open.len() {
        let detail = format!("{} files were sent, but the answer has {}", open.len(), answer.items.len());
        return Err(Error::new(ErrorKind::Protocol, ErrorCode::Internal, operation, detail));
    }
    let sent = produced.into_iter().zip(answer.items).zip(open).map(|((produced, result), at)| {
        let outcome = match (produced.error, result) {
            (Some(error), _) => Err(error),
            (None, PushResult::Committed(committed)) => Ok(committed),
            (None, PushResult::Failed(problem)) => {
                Err(Error::problem(format!("put {}", files[*at].target), problem))
            }
        };
        Sent { root: produced.root, outcome }
    });
    Ok(sent.collect())
}

/// What became of one file on this side.
struct Produced {
    root: Option<RootHash>,
    error: Option<Error>,
    moved: u64,
}

/// Reads, hashes and encodes the files. Runs on a thread of its own; ends early when nobody wants the pieces any more.
fn produce(files: &[PushFile], open: &[usize], pieces: &Pieces, progress: &Progress) -> Vec<Produced> {
    let mut encoder = Encoder::new();
    let mut pool = Buffers::default();
    let mut produced = Vec::with_capacity(open.len());
    for file in open.iter().filter_map(|at| files.get(*at)) {
        let result = produce_file(file, &mut encoder, &mut pool, pieces, progress);
        let Some(result) = result else { return produced };
        produced.push(result);
    }
    encoder.end();
    pieces.send(&mut encoder);
    produced
}

/// Returns nothing if nobody wants the pieces any more.
fn produce_file(
    file: &PushFile,
    encoder: &mut Encoder,
    pool: &mut Buffers,
    pieces: &Pieces,
    progress: &Progress,
) -> Option<Produced> {
    let announce = |encoder: &mut Encoder, size, mtime| {
        let info = PushItem { path: file.target.clone(), condition: file.condition, parents: true, mtime };
        encoder.item(size, &to_json(&info))
    };
    let mut moved = 0;
    let source = match Source::open(&file.local) {
        Ok(source) => source,
        Err(error) => {
            // Announced all the same: the answer has a result for each file.
            let item = announce(encoder, percale_core::ByteCount::ZERO, None);
            encoder.fail(item, &to_json(&Problem::new(error.code(), "the sender cannot read it")));
            return pieces.send(encoder).then_some(Produced { root: None, error: Some(error), moved });
        }
    };
    let (size, mtime) = (source.size(), Some(source.fingerprint.mtime()));
    let mut send = |encoder: &mut Encoder| -> Result<Option<RootHash>, Error> {
        if size.0 <= GROUP_SIZE {
            // Known before the ITEM is written, since the one group is the whole content.
            let bytes = source.group(0, pool);
            let hash = bytes.as_ref().ok().map(|bytes| hash_group(size, 0, bytes));
            let item = announce(encoder, size, mtime);
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
        let item = announce(encoder, size, mtime);
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
    pieces.send(encoder).then_some(Produced { root, error, moved })
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
