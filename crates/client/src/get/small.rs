//! Many small objects in one stream, or in several that bring them together.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::join_all;
use percale_api::uploads::PullItem;
use percale_core::{ErrorCode, ObjectPath};
use percale_mover::{Frame, Slots, in_parts};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::Wanted;
use super::transfer::under_way;
use crate::client::Client;
use crate::elsewhere::Places;
use crate::error::{Error, ErrorKind, Retry};
use crate::progress::Progress;
use crate::pull::{Ask, Checks, Comparing, FrameStream};
use crate::report::{Item, Outcome};

mod writer;

use writer::{Writer, Written};

/// Frames that wait to be written, each at most 1 MiB.
const QUEUED_FRAMES: usize = 16;
/// What one of several streams has at least, in objects or in bytes: it is opened for that, and its window opens with the others'.
const LEAST: (usize, u64) = (10, 1 << 20);

/// What small objects are got with.
#[derive(Clone)]
pub(super) struct Means {
    pub client: Client,
    /// Each stream takes one of them.
    pub slots: Arc<Slots>,
    pub progress: Arc<Progress>,
    /// Hears of each object that has come.
    pub done: mpsc::UnboundedSender<Item>,
}

/// Gets a batch over as many streams at most, again as long as that can help. The answer has an item for each object that did not come.
pub(super) async fn get(means: &Means, batch: Vec<Wanted>, streams: usize) -> Vec<Item> {
    let client = &means.client;
    let asking = Asking { client, means };
    let mut attempts = client.attempts();
    let mut failed = Vec::new();
    let mut open = batch;
    let mut follow = true;
    let comparing = Comparing::default();
    while !open.is_empty() {
        let before = open.len();
        let checks = comparing.checks();
        let Asked { failures, mut left, away, mut fault, .. } =
            asking.together(open, streams, follow, checks).await;
        let is_away = !away.is_empty();
        let failures = failures
            .into_iter()
            .map(|(wanted, error)| (wanted, comparing.judge(error, checks == Checks::Here)));
        let (elsewhere, not_there) = asking.elsewhere(away).await;
        left.extend(not_there);
        for (wanted, error) in elsewhere.into_iter().chain(failures) {
            if error.retry() == Retry::Temporary {
                fault = Some(error);
                left.push(wanted);
            } else {
                failed.push(wanted.item(Outcome::Failed(error)));
            }
        }
        open = left;
        if open.is_empty() {
            break;
        }
        if open.len() < before {
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
            failed.extend(open.into_iter().map(|wanted| {
                let operation = format!("get {}", wanted.path);
                let error = match last.as_problem() {
                    Some(problem) => Error::problem(operation, problem.clone()),
                    None => Error::new(last.kind(), last.code(), operation, last.detail()),
                };
                wanted.item(Outcome::Failed(error.with_retry(last.retry())))
            }));
            break;
        }
    }
    failed
}

/// Objects that were sent, and what was the matter with each.
type Failures = Vec<(Wanted, Error)>;

/// What one request came to, or several that were made together.
#[derive(Default)]
struct Asked {
    failures: Failures,
    /// Objects that did not come.
    left: Vec<Wanted>,
    /// Objects that are elsewhere, for each stream that said so.
    away: Vec<Away>,
    /// Whether all requests were answered.
    is_answered: bool,
    /// What ended a stream early.
    fault: Option<Error>,
}

/// Objects, by their place.
#[derive(Default)]
struct Away {
    places: Places,
    objects: BTreeMap<u64, Vec<Wanted>>,
}

/// What streams are asked for and none has brought. An object may be wanted at several paths of this host.
struct Open(Mutex<HashMap<ObjectPath, Vec<Wanted>>>);

impl Open {
    fn new(wanted: Vec<Wanted>) -> Self {
        let mut open: HashMap<_, Vec<_>> = HashMap::with_capacity(wanted.len());
        for one in wanted {
            open.entry(one.path.clone()).or_default().push(one);
        }
        Self(Mutex::new(open))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectPath, Vec<Wanted>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an object that a stream brings. Nothing for what was not asked for, or was brought already: a site sends each once.
    fn take(&self, path: &ObjectPath) -> Option<Wanted> {
        self.lock().get_mut(path)?.pop()
    }

    /// Takes all that nobody brought.
    fn take_all(&self) -> impl Iterator<Item = Wanted> + use<> {
        std::mem::take(&mut *self.lock()).into_values().flatten()
    }
}

/// Who is asked.
struct Asking<'a> {
    client: &'a Client,
    means: &'a Means,
}

impl Asking<'_> {
    /// Asks once, over as many streams as are worth it. The site sends over each what it has left.
    async fn together(&self, wanted: Vec<Wanted>, streams: usize, follow: bool, checks: Checks) -> Asked {
        let item = |wanted: &Wanted| {
            let (path, version) = (wanted.path.clone(), Some(wanted.content.version));
            (PullItem { path, version, space: None, ranges: None }, wanted.content.size)
        };
        let parts = in_parts(wanted.iter().map(item).collect(), |(_, size)| *size, streams, LEAST);
        let share = (parts.len() > 1).then(|| Uuid::new_v4().simple().to_string());
        let ask = Ask { follow, share: share.as_deref(), checks };
        let open = Arc::new(Open::new(wanted));
        let asked = parts
            .into_iter()
            .map(|part| self.ask(ask, part.into_iter().map(|(item, _)| item).collect(), &open));
        let mut all = Asked { is_answered: true, ..Asked::default() };
        for Asked { failures, left, away, is_answered, fault } in join_all(asked).await {
            all.failures.extend(failures);
            all.left.extend(left);
            all.away.extend(away);
            all.is_answered &= is_answered;
            all.fault = all.fault.or(fault);
        }
        all.left.extend(open.take_all());
        all
    }

    /// Asks the places where objects are. Returns those that failed for good, and the others that did not come.
    async fn elsewhere(&self, away: Vec<Away>) -> (Failures, Vec<Wanted>) {
        let (mut failures, mut left) = (Failures::new(), Vec::new());
        let Some(elsewhere) = self.client.elsewhere() else { return (failures, left) };
        let mut asked = Vec::new();
        for Away { places, objects } in away {
            for (number, wanted) in objects {
                match usize::try_from(number).ok().and_then(|number| places.get(number).cloned()) {
                    Some(place) => asked.push(async move {
                        // What does not fit comes from the site that was asked, which would not learn of a damaged copy there.
                        let there = Asking { client: &place.client, ..*self };
                        (there.together(wanted, 1, false, Checks::There).await, place)
                    }),
                    None => left.extend(wanted),
                }
            }
        }
        for (asked, place) in join_all(asked).await {
            left.extend(asked.left);
            for (wanted, error) in asked.failures {
                if elsewhere.failed(&place, &error) {
                    left.push(wanted);
                } else {
                    failures.push((wanted, error));
                }
            }
            match asked.fault {
                Some(error) if asked.is_answered => drop(elsewhere.failed(&place, &error)),
                Some(error) => elsewhere.refused(&place, &error),
                None => {}
            }
        }
        (failures, left)
    }

    /// Asks over one stream, and takes whatever comes of what is open.
    async fn ask(&self, ask: Ask<'_>, items: Vec<PullItem>, open: &Arc<Open>) -> Asked {
        let _slot = self.means.slots.take(under_way(self.client.streams())).await;
        let operation = match &*items {
            [only] => format!("get {}", only.path),
            several => format!("get {} objects", several.len()),
        };
        let mut frames = match FrameStream::open(self.client, &operation, items, ask).await {
            Ok(frames) => frames,
            Err(error) => return Asked { fault: Some(error), ..Asked::default() },
        };
        let (sender, queue) = mpsc::channel(QUEUED_FRAMES);
        let writer = tokio::task::spawn_blocking({
            let (open, means) = (open.clone(), self.means.clone());
            move || Writer::new(&open, &means).run(queue)
        });
        let mut places = Places::default();
        let cut = loop {
            let frame = match frames.next().await {
                Ok(Some(frame)) => frame,
                Ok(None) => break None,
                Err(error) => break Some(error),
            };
            if let (Frame::Away { place, info, .. }, Some(elsewhere)) = (&frame, self.client.elsewhere())
                && let Err(error) = places.take(elsewhere, &operation, *place, info)
            {
                break Some(error);
            }
            if sender.send(frame).await.is_err() {
                break None;
            }
        };
        drop(sender);
        let Written { failures, left, away, fault } = match writer.await {
            Ok(written) => written,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Written::default(),
        };
        let away = Vec::from_iter((!away.is_empty()).then_some(Away { places, objects: away }));
        Asked { failures, left, away, is_answered: true, fault: cut.or(fault) }
    }
}
