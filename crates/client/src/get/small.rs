//! Many small objects in one stream.

use std::collections::BTreeMap;
use std::sync::Arc;

use percale_api::uploads::PullItem;
use percale_core::ErrorCode;
use percale_core::tree::{GroupHash, HashTree, group_count};
use percale_mover::{DataFrame, Frame};
use tokio::sync::mpsc;

use super::Wanted;
use crate::client::Client;
use crate::elsewhere::Places;
use crate::error::{Error, ErrorKind, Retry};
use crate::local::PartFile;
use crate::progress::Progress;
use crate::pull::{Ask, Checks, Comparing, FrameStream, parse_item, parse_problem};
use crate::report::{Item, Outcome};

/// Frames that wait to be written, each at most 1 MiB.
const QUEUED_FRAMES: usize = 16;

/// Gets a batch, again as long as that can help. The answer has an item for each object.
pub(super) async fn get(client: &Client, batch: Vec<Wanted>, progress: &Arc<Progress>) -> Vec<Item> {
    let batch = Arc::new(batch);
    let mut attempts = client.attempts();
    let mut results: Vec<Option<Item>> = batch.iter().map(|_| None).collect();
    let mut follow = true;
    let comparing = Comparing::default();
    loop {
        let open: Arc<[usize]> = (0..batch.len()).filter(|at| results[*at].is_none()).collect();
        if open.is_empty() {
            break;
        }
        let before = open.len();
        let checks = comparing.checks();
        let ask_for = Ask { follow, share: None, checks };
        let Asked { outcomes, away, mut fault, .. } = ask(client, ask_for, &batch, &open, progress).await;
        let is_away = !away.is_empty();
        let outcomes = outcomes.into_iter().map(|(at, outcome)| {
            (at, outcome.map_err(|error| comparing.judge(error, checks == Checks::Here)))
        });
        for (at, outcome) in get_elsewhere(client, away, &batch, progress).await.into_iter().chain(outcomes) {
            match outcome {
                Ok(()) => results[at] = Some(batch[at].done()),
                Err(error) if error.retry() == Retry::Temporary => fault = Some(error),
                Err(error) => results[at] = Some(batch[at].item(Outcome::Failed(error))),
            }
        }
        let left = results.iter().filter(|result| result.is_none()).count();
        if left == 0 {
            break;
        }
        if left < before {
            attempts.progressed();
        }
        if is_away {
            // What did not come from where it is comes through the site that was asked.
            follow = false;
            continue;
        }
        if comparing.checks() != checks {
            // What was wrong is asked for once more in any case, and compared at the site.
            continue;
        }
        let fault = fault.unwrap_or_else(|| {
            let detail = "the site did not send all that was asked for";
            Error::new(ErrorKind::Connection, ErrorCode::SiteUnavailable, "get files", detail)
        });
        if let Err(last) = attempts.pause_after(fault).await {
            for at in 0..batch.len() {
                if results[at].is_none() {
                    let operation = format!("get {}", batch[at].path);
                    let error = match last.as_problem() {
                        Some(problem) => Error::problem(operation, problem.clone()),
                        None => Error::new(last.kind(), last.code(), operation, last.detail()),
                    };
                    results[at] = Some(batch[at].item(Outcome::Failed(error.with_retry(last.retry()))));
                }
            }
            break;
        }
    }
    results.into_iter().flatten().collect()
}

type Outcomes = Vec<(usize, Result<(), Error>)>;

/// What one request came to.
#[derive(Default)]
struct Asked {
    /// What became of each object that was dealt with.
    outcomes: Outcomes,
    /// Objects that are elsewhere.
    away: Away,
    /// Whether the request was answered.
    is_answered: bool,
    /// What ended the stream early.
    fault: Option<Error>,
}

/// Objects, by their place.
#[derive(Default)]
struct Away {
    places: Places,
    items: BTreeMap<usize, Vec<usize>>,
}

impl Away {
    fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

/// Asks the places where objects are. Returns what became of those that are dealt with for good.
async fn get_elsewhere(
    client: &Client,
    away: Away,
    batch: &Arc<Vec<Wanted>>,
    progress: &Arc<Progress>,
) -> Outcomes {
    let mut done = Outcomes::new();
    let Some(elsewhere) = client.elsewhere() else { return done };
    for (number, items) in away.items {
        let Some(place) = away.places.get(number) else { continue };
        // What does not fit comes from the site that was asked, which would not learn of a damaged copy there.
        let ask_for = Ask { follow: false, share: None, checks: Checks::There };
        let asked = ask(&place.client, ask_for, batch, &items.into(), progress).await;
        for (at, outcome) in asked.outcomes {
            if !outcome.as_ref().is_err_and(|error| elsewhere.failed(place, error)) {
                done.push((at, outcome));
            }
        }
        match asked.fault {
            Some(error) if asked.is_answered => drop(elsewhere.failed(place, &error)),
            Some(error) => elsewhere.refused(place, &error),
            None => {}
        }
    }
    done
}

/// Asks once.
async fn ask(
    client: &Client,
    ask: Ask<'_>,
    batch: &Arc<Vec<Wanted>>,
    open: &Arc<[usize]>,
    progress: &Arc<Progress>,
) -> Asked {
    let mut asked = Asked::default();
    let operation = match &**open {
        [only] => format!("get {}", batch[*only].path),
        several => format!("get {} objects", several.len()),
    };
    let items = open.iter().map(|at| {
        let Wanted { path, content, .. } = &batch[*at];
        PullItem { path: path.clone(), version: Some(content.version), space: None, ranges: None }
    });
    let mut frames = match FrameStream::open(client, &operation, items.collect(), ask).await {
        Ok(frames) => frames,
        Err(error) => return Asked { fault: Some(error), ..asked },
    };
    asked.is_answered = true;
    let (sender, queue) = mpsc::channel(QUEUED_FRAMES);
    let writer = tokio::task::spawn_blocking({
        let (batch, open, progress) = (batch.clone(), open.clone(), progress.clone());
        move || {
            Writer { batch: &batch, open: &open, progress: &progress, outcomes: Vec::new(), current: None }
                .run(queue)
        }
    });
    asked.fault = loop {
        match frames.next().await {
            Ok(Some(Frame::Away { item, place, info })) => {
                let (Some(at), Some(elsewhere)) = (open.get(item as usize), client.elsewhere()) else {
                    continue;
                };
                match asked.away.places.take(elsewhere, &operation, place, &info) {
                    Ok(number) => asked.away.items.entry(number).or_default().push(*at),
                    Err(error) => break Some(error),
                }
            }
            Ok(Some(frame)) => {
                if sender.send(frame).await.is_err() {
                    break None;
                }
            }
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    drop(sender);
    asked.outcomes = writer.await.unwrap_or_default();
    asked
}

/// Verifies and writes, one object after the other.
struct Writer<'a> {
    batch: &'a [Wanted],
    open: &'a [usize],
    progress: &'a Progress,
    outcomes: Outcomes,
    current: Option<Current>,
}

struct Current {
    item: u32,
    /// Opened once there is something to write.
    file: Option<PartFile>,
    hashes: Vec<GroupHash>,
    moved: u64,
}

impl Current {
    fn file(&mut self, wanted: &Wanted) -> Result<&PartFile, Error> {
        Ok(match &mut self.file {
            Some(file) => file,
            file => file.insert(PartFile::open(&wanted.local, wanted.content.size)?),
        })
    }

    fn discard(self) {
        if let Some(file) = self.file {
            file.discard();
        }
    }
}

impl Writer<'_> {
    fn run(mut self, mut queue: mpsc::Receiver<Frame>) -> Outcomes {
        while let Some(frame) = queue.blocking_recv() {
            let (item, result) = match frame {
                Frame::Item { item, info, .. } => (item, self.begin(item, &info)),
                Frame::Data(data) => (data.item, self.write(&data)),
                Frame::Done { item, .. } => {
                    let result = self.finish(item);
                    if matches!(result, Ok(true)) {
                        self.end(item, Ok(()));
                    }
                    (item, result.map(drop))
                }
                Frame::Fail { item, problem } => {
                    let operation = self.wanted(item).map(|wanted| format!("get {}", wanted.path));
                    (item, Err(parse_problem(&operation.unwrap_or_default(), &problem)))
                }
                Frame::Away { .. } | Frame::Error { .. } | Frame::End { .. } => continue,
            };
            if let Err(error) = result {
                self.end(item, Err(error));
            }
        }
        if let Some(current) = self.current.take() {
            self.progress.retract(current.moved);
            current.discard();
        }
        self.outcomes
    }

    fn wanted(&self, item: u32) -> Option<&Wanted> {
        self.open.get(item as usize).and_then(|at| self.batch.get(*at))
    }

    fn end(&mut self, item: u32, outcome: Result<(), Error>) {
        if let Some(current) = self.current.take_if(|current| current.item == item) {
            if outcome.is_err() {
                self.progress.retract(current.moved);
            }
            current.discard();
        }
        if let Some(at) = self.open.get(item as usize) {
            self.outcomes.push((*at, outcome));
        }
    }

    fn begin(&mut self, item: u32, info: &[u8]) -> Result<(), Error> {
        let Some(wanted) = self.wanted(item) else { return Ok(()) };
        let operation = format!("get {}", wanted.path);
        let pulled = parse_item(&operation, info)?;
        // Version 0 is none: the site says in the next frame why it cannot send it.
        if pulled.version.0 == 0 {
            return Ok(());
        }
        if pulled.path != wanted.path || pulled.version != wanted.content.version {
            let detail = format!("version {} of {} was sent instead", pulled.version, pulled.path);
            return Err(Error::new(ErrorKind::Protocol, ErrorCode::Internal, operation, detail));
        }
        if let Some(left) = self.current.replace(Current { item, file: None, hashes: Vec::new(), moved: 0 }) {
            left.discard();
        }
        Ok(())
    }

    /// Data of an object that failed already is passed over.
    fn write(&mut self, data: &DataFrame) -> Result<(), Error> {
        let Some(wanted) = self.wanted(data.item).cloned() else { return Ok(()) };
        let Some(current) = self.current.as_mut().filter(|current| current.item == data.item) else {
            return Ok(());
        };
        let operation = || format!("get {}", wanted.path);
        // Its groups come in order, from the first; the whole is compared with the root at the end.
        if data.size.0 != wanted.content.size || data.group() != current.hashes.len() as u64 {
            let detail = "the site sent other groups than were asked for";
            return Err(Error::new(ErrorKind::Protocol, ErrorCode::Internal, operation(), detail));
        }
        data.verify().map_err(|error| {
            Error::new(ErrorKind::Integrity, ErrorCode::Integrity, operation(), error.to_string())
        })?;
        current.file(&wanted)?.write(data.offset, &data.bytes)?;
        current.hashes.push(data.hash);
        current.moved += data.bytes.len() as u64;
        self.progress.moved(data.bytes.len() as u64);
        Ok(())
    }

    /// Returns whether the object was the current one and is complete now.
    fn finish(&mut self, item: u32) -> Result<bool, Error> {
        let Some(wanted) = self.wanted(item).cloned() else { return Ok(false) };
        let Some(mut current) = self.current.take_if(|current| current.item == item) else {
            return Ok(false);
        };
        let operation = format!("get {}", wanted.path);
        let size = percale_core::ByteCount(wanted.content.size);
        current.file(&wanted)?;
        let Current { file, mut hashes, moved, .. } = current;
        let Some(file) = file else { return Ok(false) };
        if hashes.is_empty() && size.0 == 0 && group_count(size) == 1 {
            hashes.push(percale_core::tree::hash_group(size, 0, &[]));
        }
        let problem = match (HashTree::from_groups(size, hashes), wanted.content.root) {
            (Err(error), _) => Some(error.to_string()),
            (Ok(tree), Some(root)) if tree.root() != root => {
                Some(format!("what came has the hash {}, and the version has {root}", tree.root()))
            }
            (Ok(_), _) => None,
        };
        if let Some(detail) = problem {
            self.progress.retract(moved);
            file.discard();
            return Err(Error::new(ErrorKind::Integrity, ErrorCode::Integrity, operation, detail));
        }
        file.publish(&wanted.content, wanted.replaces, false)?;
        Ok(true)
    }
}
