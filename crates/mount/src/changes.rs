//! What was changed through the mount and is not published yet: kept in order, published in the background, in batches.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fuser::Errno;
use percale_api::Problem;
use percale_api::entries::{Attributes, Content};
use percale_api::mounts::{MountChange, MountChanges, MountDone, MountResult};
use percale_api::uploads::Condition;
use percale_client::put::PutOptions;
use percale_client::{Item, Outcome, Retry};
use percale_core::{ErrorCode, FileMode, ObjectPath, Position, Timestamp};
use tokio::sync::{Notify, oneshot};

use crate::error::errno;
use crate::names::{LEFT, NodeId};
use crate::object::LocalCopy;
use crate::session::{Place, is_over};
use crate::state::{Shared, State};

/// The first pause after a failure that may pass, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often the first changes are tried while a program waits for its own, where the site answers: about 20 s.
const MOST_ATTEMPTS: u64 = 10;
/// Changes that may wait; beyond that, programs that change more are held back.
const MOST_WAITING: usize = 50_000;

/// Why a change did not come about.
#[derive(Debug, Clone)]
pub struct Refused {
    code: ErrorCode,
    detail: String,
    is_retryable: bool,
}

/// A file that was written and is to be published.
#[derive(Debug, Clone)]
pub struct Staged {
    /// The node.
    pub node: NodeId,
    /// Where.
    pub path: ObjectPath,
    /// Where it lies.
    pub place: Place,
    /// Its size.
    pub size: u64,
    /// Its inode.
    pub inode: u64,
    /// When it was modified.
    pub mtime: Timestamp,
    /// Its permission bits.
    pub mode: FileMode,
    /// What must be there.
    pub condition: Condition,
}

impl Staged {
    /// Returns where it lies in the store once it is published: under the object's own path, unless something else does.
    pub fn key(&self) -> &str {
        self.place.key.as_deref().unwrap_or(self.path.as_str().trim_start_matches('/'))
    }
}

/// A name in a collection.
pub type Name = (NodeId, Box<str>);

/// A change.
#[derive(Debug, Clone)]
pub enum Change {
    /// A file becomes a version.
    Publish(Staged),
    /// Anything else.
    Name(MountChange),
}

impl Change {
    /// Takes over that a collection has another path.
    fn moved(&mut self, from: &ObjectPath, to: &ObjectPath) {
        let (path, other) = match self {
            Self::Publish(Staged { path, .. }) => (path, None),
            Self::Name(change) => match change {
                MountChange::Move { from, to, .. } => (from, Some(to)),
                MountChange::Publish { path, .. }
                | MountChange::Writing { path, .. }
                | MountChange::Written { path, .. }
                | MountChange::SetAttributes { path, .. }
                | MountChange::MakeCollection { path }
                | MountChange::MakeLink { path, .. }
                | MountChange::Remove { path } => (path, None),
            },
        };
        for path in [Some(path), other].into_iter().flatten() {
            if let Some(below) = path.as_str().strip_prefix(from.as_str()).filter(|_| path.is_within(from))
                && let Ok(moved) = ObjectPath::parse(&format!("{to}{below}"))
            {
                *path = moved;
            }
        }
    }
}

type Answer = oneshot::Sender<Result<MountDone, Refused>>;

#[derive(Debug)]
struct Waiting {
    number: u64,
    change: Change,
    /// The names that mean something else by it.
    names: Vec<Name>,
    /// Whether the site may have made it, as far as is known.
    is_sent: bool,
    answer: Option<Answer>,
}

impl Waiting {
    /// Tells whether it gives a directory another path, which those behind it are to be asked for under.
    fn moves_directory(&self) -> bool {
        self.answer.is_some() && matches!(self.change, Change::Name(MountChange::Move { .. }))
    }
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// The number of the last one that was added, and up to which all are done.
    last: u64,
    /// How often the first ones could not be made, and why they could not the last time.
    refused: (u64, Option<ErrorCode>),
}

impl Queue {
    /// Tells whether all changes up to a number are done.
    fn is_done(&self, number: u64) -> bool {
        self.waiting.front().is_none_or(|first| first.number > number)
    }
}

/// The changes that wait.
#[derive(Debug, Default)]
pub struct Changes {
    queue: Mutex<Queue>,
    added: Notify,
    done: Notify,
}

impl Changes {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, change: Change, names: Vec<Name>, answer: Option<Answer>) -> u64 {
        let mut queue = self.queue();
        queue.last += 1;
        let number = queue.last;
        queue.waiting.push_back(Waiting { number, change, names, is_sent: false, answer });
        drop(queue);
        self.added.notify_one();
        number
    }

    /// Takes a change out of the queue, unless the site may have made it. Returns the names that it was about.
    fn take(&self, number: u64) -> Option<Vec<Name>> {
        let mut queue = self.queue();
        let at = queue.waiting.iter().position(|waiting| waiting.number == number && !waiting.is_sent)?;
        let taken = queue.waiting.remove(at)?;
        drop(queue);
        self.done.notify_waiters();
        Some(taken.names)
    }

    /// Takes over that a collection has another path, for all changes that wait.
    pub fn moved(&self, from: &ObjectPath, to: &ObjectPath) {
        for waiting in &mut self.queue().waiting {
            waiting.change.moved(from, to);
        }
    }

    /// Tells whether anything waits or is on its way.
    pub fn has_waiting(&self) -> bool {
        !self.queue().waiting.is_empty()
    }

    /// Returns how many wait.
    pub fn len(&self) -> usize {
        self.queue().waiting.len()
    }

    /// Waits until a change is done, or everything that was added up to now.
    pub async fn until_done(&self, number: Option<u64>) {
        let last = number.unwrap_or(u64::MAX);
        let last = last.min(self.queue().last);
        self.until(|queue| queue.is_done(last).then_some(())).await;
    }

    /// Waits until a change is done.
    ///
    /// # Errors
    /// Why the changes that are first in the queue cannot be made for now, as when the site is away.
    pub async fn until_done_or_refused(&self, number: u64) -> Result<(), ErrorCode> {
        let (before, _) = self.queue().refused;
        let ended = self.until(|queue| match queue.refused {
            _ if queue.is_done(number) => Some(Ok(())),
            (count, Some(why)) if count != before => Some(Err(why)),
            _ => None,
        });
        ended.await
    }

    /// Waits until the changes that are first in the queue cannot be made since the site is away, or too often. Returns why.
    async fn until_away(&self) -> ErrorCode {
        let (before, _) = self.queue().refused;
        let away = self.until(|queue| match queue.refused {
            (count, Some(why)) if count != before && may_be_made(why) => Some(why),
            (count, why) if count >= before + MOST_ATTEMPTS => why,
            _ => None,
        });
        away.await
    }

    /// Waits until the queue is as wanted.
    async fn until<T>(&self, wanted: impl Fn(&Queue) -> Option<T>) -> T {
        loop {
            let done = self.done.notified();
            tokio::pin!(done);
            // From here on it hears of the end, so none can fall between the look and the wait.
            done.as_mut().enable();
            if let Some(found) = wanted(&self.queue()) {
                return found;
            }
            done.await;
        }
    }

    /// Waits until there is room for more.
    pub async fn room(&self) {
        while self.len() > MOST_WAITING {
            let last = self.queue().waiting.front().map(|first| first.number);
            self.until_done(last).await;
        }
    }

    /// Tells whether programs are to be held back.
    pub fn is_full(&self) -> bool {
        self.len() > MOST_WAITING
    }
}

/// What this mount does itself to a name: the journal's records of it say what is known here, or what comes before it.
#[derive(Debug, Default)]
pub struct Own {
    /// Changes that are not made yet.
    waiting: u32,
    /// Where the last one stands in the journal.
    until: Option<Position>,
}

/// The names that this mount changes.
#[derive(Debug, Default)]
pub struct Owned {
    names: HashMap<Name, Own>,
    /// Listings that are being read: they may be older than what the journal has passed.
    listings: u32,
}

impl Owned {
    fn begin(&mut self, names: &[Name]) {
        for name in names {
            self.names.entry(name.clone()).or_default().waiting += 1;
        }
    }

    fn end(&mut self, names: &[Name], position: Option<Position>) {
        for name in names {
            let Some(own) = self.names.get_mut(name) else { continue };
            own.waiting = own.waiting.saturating_sub(1);
            own.until = position.or(own.until);
            if own.waiting == 0 && own.until.is_none() {
                self.names.remove(name);
            }
        }
    }

    /// Notes that a listing is going to be read. Until [`Owned::merged`] nothing is forgotten.
    pub fn reading(&mut self) {
        self.listings += 1;
    }

    /// Notes that a listing was taken over, or given up.
    pub fn merged(&mut self) {
        // What can be forgotten goes with the next record.
        self.listings = self.listings.saturating_sub(1);
    }

    /// Tells whether a record of the journal about a name says nothing new, since this mount changes it itself.
    pub fn covers(&self, parent: NodeId, name: &str, at: Option<Position>) -> bool {
        // The key of a map of pairs cannot be borrowed in parts.
        let Some(own) = self.names.get(&(parent, Box::from(name))) else { return false };
        let is_before = |until: Position| at.is_none_or(|at| at.term == until.term && at.seq <= until.seq);
        own.waiting > 0 || own.until.is_some_and(is_before)
    }

    /// Forgets what the journal has passed.
    pub fn passed(&mut self, at: Position) {
        if self.listings > 0 {
            return;
        }
        self.names.retain(|_, own| {
            own.waiting > 0
                || own.until.is_some_and(|until| {
                    until.space != at.space || (until.term == at.term && until.seq > at.seq)
                })
        });
    }
}

impl Shared {
    /// Adds a change. Nobody waits for it.
    pub fn submit(&self, state: &mut State, change: Change, names: Vec<Name>) -> u64 {
        state.owned.begin(&names);
        self.changes.push(change, names, None)
    }

    /// Adds a change, and returns what it is waited for by.
    pub fn ask(&self, state: &mut State, change: Change, names: Vec<Name>) -> Pending {
        let (sender, answer) = oneshot::channel();
        state.owned.begin(&names);
        let number = self.changes.push(change, names, Some(sender));
        Pending { number, answer }
    }

    /// Takes a change back. Tells whether it was still waiting.
    pub fn take_back(&self, state: &mut State, number: u64) -> bool {
        let Some(names) = self.changes.take(number) else { return false };
        state.owned.end(&names, None);
        true
    }
}

/// A change that somebody waits for.
#[derive(Debug)]
pub struct Pending {
    number: u64,
    answer: oneshot::Receiver<Result<MountDone, Refused>>,
}

impl Pending {
    /// Waits until it was made.
    ///
    /// # Errors
    /// What a program is told of why it was not. If the site is away the change is taken back; one that was sent may be made yet.
    pub async fn done(self, shared: &Shared) -> Result<MountDone, Errno> {
        tokio::select! {
            biased;
            outcome = self.answer => match outcome {
                Ok(outcome) => outcome.map_err(|refused| errno(refused.code)),
                // The mount ends.
                Err(_) => Err(Errno::EIO),
            },
            code = shared.changes.until_away() => {
                shared.take_back(&mut shared.state(), self.number);
                Err(errno(code))
            }
        }
    }
}

/// Publishes what is added, until the mount ends.
pub async fn publish(shared: Arc<Shared>) {
    let changes = &shared.changes;
    let mut pause = FIRST_PAUSE;
    loop {
        let batch: Vec<Change> = {
            let mut queue = changes.queue();
            let count = batch_len(&queue.waiting);
            let sent = queue.waiting.iter_mut().take(count);
            sent.map(|waiting| {
                waiting.is_sent = true;
                waiting.change.clone()
            })
            .collect()
        };
        if batch.is_empty() {
            changes.added.notified().await;
            continue;
        }
        let outcomes = send(&shared, &batch).await;
        let mut again = false;
        let mut ended = Vec::with_capacity(batch.len());
        {
            let mut queue = changes.queue();
            let mut rest = VecDeque::new();
            for outcome in outcomes {
                let Some(mut waiting) = queue.waiting.pop_front() else { break };
                match outcome {
                    Err(refused) if may_pass(&shared, &waiting.change, &refused) => {
                        // One that waits for another, which was overtaken by a removal, is made by the next request.
                        if !again && (pause > FIRST_PAUSE || may_be_made(refused.code)) {
                            tracing::warn!(code = %refused.code, error = refused.detail, "a change cannot be published yet");
                            queue.refused = (queue.refused.0 + 1, Some(refused.code));
                        }
                        again = true;
                        waiting.is_sent = may_be_made(refused.code);
                        rest.push_back(waiting);
                    }
                    outcome => ended.push((waiting, outcome)),
                }
            }
            while let Some(waiting) = rest.pop_back() {
                queue.waiting.push_front(waiting);
            }
        }
        for (waiting, outcome) in ended {
            end(&shared, waiting, outcome);
        }
        changes.done.notify_waiters();
        if again {
            tokio::time::sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        } else {
            pause = FIRST_PAUSE;
        }
    }
}

/// Tells whether a change that failed is to be tried again.
fn may_pass(shared: &Shared, change: &Change, refused: &Refused) -> bool {
    let is_gone = match change {
        // Removed while it was on its way.
        Change::Publish(staged) => shared.session.stat_written(&staged.place).is_err(),
        Change::Name(_) => false,
    };
    let is_over = is_gone && refused.code == ErrorCode::VersionChanged;
    refused.is_retryable && !is_over && shared.session.lost().is_none()
}

/// Tells whether a change that was answered so may have been made all the same.
fn may_be_made(code: ErrorCode) -> bool {
    use ErrorCode::{CatalogUnavailable, Internal, SiteUnavailable, Timeout};
    matches!(code, SiteUnavailable | Timeout | CatalogUnavailable | Internal)
}

/// Returns how many changes go into the next request: as many as it may have, but a file of the spool goes alone, and a directory that is
/// moved last.
fn batch_len(waiting: &VecDeque<Waiting>) -> usize {
    let is_spooled = |waiting: &&Waiting| is_spooled(&waiting.change);
    match waiting.front() {
        Some(first) if is_spooled(&first) => 1,
        _ => {
            let most = waiting.iter().take(MountChanges::MOST).take_while(|waiting| !is_spooled(waiting));
            let mut is_behind = false;
            most.take_while(|waiting| !std::mem::replace(&mut is_behind, waiting.moves_directory())).count()
        }
    }
}

fn is_spooled(change: &Change) -> bool {
    matches!(change, Change::Publish(Staged { place: Place { store: None, .. }, .. }))
}

async fn send(shared: &Shared, batch: &[Change]) -> Vec<Result<MountDone, Refused>> {
    if let [change @ Change::Publish(staged)] = batch
        && is_spooled(change)
    {
        return vec![upload(shared, staged).await];
    }
    let wire = |change: &Change| match change {
        Change::Name(change) => Some(change.clone()),
        Change::Publish(staged) if staged.place.is_the_copy() => Some(MountChange::Written {
            path: staged.path.clone(),
            store: shared.session.store_id(staged.place.store?)?,
        }),
        Change::Publish(staged) => Some(MountChange::Publish {
            path: staged.path.clone(),
            store: shared.session.store_id(staged.place.store?)?,
            token: staged.place.token.to_string(),
            size: staged.size,
            mtime: staged.mtime,
            mode: Some(staged.mode),
            condition: staged.condition,
        }),
    };
    let wanted: Vec<MountChange> = batch.iter().filter_map(wire).collect();
    match shared.session.client.change_by_mount(shared.session.id(), wanted).await {
        Ok(results) => results
            .into_iter()
            .map(|result| match result {
                MountResult::Done(done) => Ok(done),
                MountResult::Failed(problem) => Err(refused(problem)),
            })
            .collect(),
        Err(error) => {
            let code = error.code();
            // Without its session nothing can be published; the files stay where they are.
            let is_over = is_over(code);
            if is_over {
                shared.session.set_lost(error.to_string());
            }
            let refused = Refused { code, detail: error.to_string(), is_retryable: !is_over };
            batch.iter().map(|_| Err(refused.clone())).collect()
        }
    }
}

fn refused(problem: Problem) -> Refused {
    Refused { code: problem.error_code(), is_retryable: problem.retryable, detail: problem.detail }
}

/// Uploads a file of the spool.
async fn upload(shared: &Shared, staged: &Staged) -> Result<MountDone, Refused> {
    let local = shared.session.spooled(&staged.place.token);
    let mut options = PutOptions::default();
    // Where something must not be there yet, the same bytes may: they are what was sent before, if the answer was lost.
    options.overwrite = staged.condition != Condition::New;
    let client = &shared.session.client;
    let failed = |error: percale_client::Error| Refused {
        code: error.code(),
        detail: error.to_string(),
        is_retryable: error.retry() != Retry::Permanent || error.code().is_retryable(),
    };
    let report = client.put_file(&local, &staged.path, &options).await.map_err(failed)?;
    if let Some(Item { outcome: Outcome::Failed(error), .. }) = report.failures.into_iter().next() {
        return Err(failed(error));
    }
    let entry = client.stat(&staged.path).await.map_err(failed)?;
    let content = entry.content.as_ref();
    if content.is_some_and(|content| content.mode != Some(staged.mode)) {
        // The spooled file has others: this process must be able to write it again.
        let attributes = Attributes { mtime: None, mode: Some(staged.mode) };
        let change = MountChange::SetAttributes { path: staged.path.clone(), attributes };
        let told = client.change_by_mount(shared.session.id(), vec![change]).await.map_err(failed)?;
        if let Some(MountResult::Failed(problem)) = told.into_iter().next() {
            return Err(refused(problem));
        }
    }
    Ok(MountDone {
        entry: Some(entry.id),
        version: content.map(|content| content.version),
        root: content.and_then(|content| content.root),
        position: None,
    })
}

/// Takes over what became of a change.
fn end(shared: &Shared, waiting: Waiting, outcome: Result<MountDone, Refused>) {
    let Waiting { number, change, names, answer, .. } = waiting;
    let mut forget = Vec::new();
    {
        let mut state = shared.state();
        let position = outcome.as_ref().ok().and_then(|done| done.position.as_deref()?.parse().ok());
        state.owned.end(&names, position);
        if let (Change::Name(MountChange::Move { from, to, .. }), Ok(_), true) =
            (&change, &outcome, answer.is_some())
        {
            shared.moved(&mut state, &names, (from, to));
        }
        // Nobody takes over what was made for a program that waits no more.
        let is_untold = answer.as_ref().is_some_and(Answer::is_closed);
        if outcome.is_err() || is_untold {
            // What is there instead is asked for.
            for (parent, _) in &names {
                if let Some(collection) = state.names.collection_mut(*parent) {
                    collection.is_listed = false;
                }
            }
        }
        if is_untold {
            forget.clone_from(&names);
        }
    }
    match (&change, &outcome) {
        (Change::Publish(staged), Ok(done)) => published(shared, number, staged, done),
        (Change::Publish(staged), Err(refused)) => failed(shared, number, staged, refused),
        (Change::Name(_), Ok(_)) => {}
        // Somebody else was faster, or it was removed before it was published.
        (Change::Name(MountChange::Remove { .. } | MountChange::SetAttributes { .. }), Err(refused))
            if refused.code == ErrorCode::NotFound => {}
        // When it was written, it will be said why that cannot be published.
        (Change::Name(MountChange::Writing { .. }), Err(refused)) => {
            tracing::debug!(code = %refused.code, error = refused.detail, "a file is written in place without a mark");
        }
        (Change::Name(change), Err(refused)) => {
            if answer.is_none() {
                let path = change.path();
                tracing::error!(%path, code = %refused.code, error = refused.detail, "a change was refused after a program was told that it was made");
                forget.extend(names.first().cloned());
            }
        }
    }
    for (parent, name) in forget {
        shared.forget_name(parent, name);
    }
    if let Some(answer) = answer {
        // Whoever waited may have gone.
        let _ = answer.send(outcome);
    }
}

fn published(shared: &Shared, number: u64, staged: &Staged, done: &MountDone) {
    let key = staged.key();
    let copy = staged.place.store.and_then(|store| {
        let stat = shared.session.stat_copy(store, key).ok()?;
        (stat.stx_ino == staged.inode).then(|| LocalCopy { store, key: key.into() })
    });
    if staged.place.store.is_none() {
        shared.session.discard(&staged.place);
    }
    let mut state = shared.state();
    // Who renames the file notes that before, or does not find it any more.
    shared.log.done(&staged.place.token);
    if let Some(entry) = done.entry {
        state.names.published(staged.node, entry);
    }
    if let Some(object) = state.names.object_mut(staged.node) {
        let mut mtime = staged.mtime;
        object.sent.take_if(|sent| sent.is_published_by(number));
        if let Some(work) = object.work.take_if(|work| work.is_published_by(number)) {
            // What a program said of it meanwhile comes after it.
            mtime = work.publishing.map_or(mtime, |publishing| publishing.staged.mtime);
        }
        if let Some(version) = done.version {
            let is_newest = crate::names::is_older(object.content.as_ref(), version);
            if is_newest {
                let (size, mode) = (staged.size, Some(staged.mode));
                let root = done.root;
                object.content = Some(Content { version, size, root, mtime, mode, digests: Vec::new() });
                object.copy = copy;
            } else if object.copy.is_none() {
                object.copy = copy;
            }
        }
    }
    state.names.drop_unused(staged.node);
}

/// Notes that what was written cannot be published. Programs on this host see it, and publish it when they close it again.
fn failed(shared: &Shared, number: u64, staged: &Staged, refused: &Refused) {
    let path = &staged.path;
    let mut state = shared.state();
    if refused.code == ErrorCode::QuotaExceeded {
        shared.over_quota(&mut state, staged.node);
    }
    if staged.node == LEFT && shared.session.stat_written(&staged.place).is_ok() {
        tracing::error!(
            %path, code = %refused.code, error = refused.detail, staged = %staged.place.token,
            "what was written before this process began cannot be published; the next mount at this directory tries again"
        );
        state.left += 1;
        return;
    }
    if let Some(object) = state.names.object_mut(staged.node) {
        object.sent.take_if(|sent| sent.is_published_by(number));
        if object.work.as_ref().is_none_or(|work| work.place.token != staged.place.token) {
            tracing::debug!(%path, code = %refused.code, error = refused.detail, "what was written again since was not published");
            shared.session.discard(&staged.place);
            shared.log.done(&staged.place.token);
            // Whatever comes of the other one has it.
            object.work.iter_mut().for_each(|work| work.is_dirty = true);
            state.names.drop_unused(staged.node);
            return;
        }
    }
    if state.names.get(staged.node).is_none() {
        shared.session.discard(&staged.place);
        shared.log.done(&staged.place.token);
    }
    if state.names.get(staged.node).is_none_or(|node| !node.is_linked) {
        // It was removed meanwhile.
        tracing::debug!(%path, code = %refused.code, error = refused.detail, "what was removed was not published");
        if let Some(work) = state.names.object_mut(staged.node).and_then(|object| object.work.as_mut()) {
            work.publishing = None;
        }
        shared.drop_work(&mut state, staged.node);
        state.names.drop_unused(staged.node);
        return;
    }
    if staged.place.is_the_copy() {
        tracing::error!(
            %path, code = %refused.code, error = refused.detail,
            "what a program wrote cannot be published; it lies where the file is in its store"
        );
        shared.log.done(&staged.place.token);
        if let Some(object) = state.names.object_mut(staged.node) {
            object.work = None;
        }
        return;
    }
    tracing::error!(
        %path, code = %refused.code, error = refused.detail, staged = %staged.place.token,
        "what a program wrote cannot be published; it is only on this host until it is written again or removed"
    );
    let is_moved =
        shared.session.stat_written(&staged.place).is_ok_and(|found| found.stx_ino != staged.inode);
    let Some(object) = state.names.object_mut(staged.node) else { return };
    let is_open = object.is_open();
    if let Some(work) = object.work.as_mut().filter(|work| work.is_published_by(number)) {
        work.publishing = None;
        work.is_dirty = true;
        work.is_moved = is_moved && is_open;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::StoreNumber;

    fn at(seq: u64) -> Position {
        format!("00000000-0000-7000-8000-000000000001.1.{seq}").parse().unwrap()
    }

    #[tokio::test]
    async fn who_waits_while_the_site_is_away_is_told_so() {
        let changes = Changes::default();
        let refuse = |count, code| {
            changes.queue().refused = (count, Some(code));
            changes.done.notify_waiters();
        };
        let waiting = std::cell::Cell::new(true);
        let away = async {
            let code = changes.until_away().await;
            waiting.set(false);
            code
        };
        let site = async {
            refuse(1, ErrorCode::NoSpace);
            tokio::task::yield_now().await;
            assert!(waiting.get(), "that may take as long as it takes");
            refuse(2, ErrorCode::SiteUnavailable);
        };
        assert_eq!(tokio::join!(away, site).0, ErrorCode::SiteUnavailable);
        let often = async { refuse(2 + MOST_ATTEMPTS, ErrorCode::NoSpace) };
        assert_eq!(tokio::join!(changes.until_away(), often).0, ErrorCode::NoSpace);
    }

    fn publish(path: &str) -> Change {
        let place = Place { store: Some(StoreNumber(0)), token: "1".into(), key: None };
        Change::Publish(Staged {
            node: 5,
            path: path.parse().unwrap(),
            place,
            size: 0,
            inode: 0,
            mtime: Timestamp::from_micros(0),
            mode: FileMode::DEFAULT,
            condition: Condition::Any,
        })
    }

    fn rename(from: &str, to: &str) -> Change {
        let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
        Change::Name(MountChange::Move { from, to, overwrite: true })
    }

    #[test]
    fn what_waits_behind_a_directory_that_is_moved_goes_where_that_is_then() {
        let changes = Changes::default();
        changes.push(publish("/lab/a/before"), Vec::new(), None);
        let (answer, _pending) = oneshot::channel();
        changes.push(rename("/lab/a", "/lab/b"), Vec::new(), Some(answer));
        for path in ["/lab/a/x", "/lab/ab"] {
            changes.push(publish(path), Vec::new(), None);
        }
        changes.push(rename("/lab/a/x", "/lab/a/y"), Vec::new(), None);
        assert_eq!(batch_len(&changes.queue().waiting), 2, "the rest is sent when it was moved");
        changes.queue().waiting.drain(..2);
        assert_eq!(batch_len(&changes.queue().waiting), 3);
        changes.moved(&"/lab/a".parse().unwrap(), &"/lab/b".parse().unwrap());
        let paths: Vec<String> = (changes.queue().waiting.iter())
            .map(|waiting| match &waiting.change {
                Change::Publish(staged) => staged.path.to_string(),
                Change::Name(MountChange::Move { from, to, .. }) => format!("{from} {to}"),
                Change::Name(_) => String::new(),
            })
            .collect();
        assert_eq!(paths, ["/lab/b/x", "/lab/ab", "/lab/b/x /lab/b/y"]);
    }

    #[test]
    fn the_journal_says_nothing_new_of_what_is_changed_here() {
        let mut owned = Owned::default();
        let names = vec![(1, "a".into())];
        assert!(!owned.covers(1, "a", Some(at(5))));
        owned.begin(&names);
        assert!(owned.covers(1, "a", Some(at(5))) && !owned.covers(1, "b", Some(at(5))));
        owned.begin(&names);
        owned.end(&names, Some(at(6)));
        assert!(owned.covers(1, "a", Some(at(9))), "another change waits");
        owned.end(&names, Some(at(8)));
        assert!(owned.covers(1, "a", Some(at(8))));
        assert!(!owned.covers(1, "a", Some(at(9))), "somebody else changed it after that");
        owned.passed(at(7));
        assert!(owned.covers(1, "a", Some(at(8))));
        owned.passed(at(8));
        assert!(owned.names.is_empty());
    }

    #[test]
    fn a_listing_that_is_older_than_what_was_changed_here_says_nothing_of_it() {
        let mut owned = Owned::default();
        let names = vec![(1, "a".into())];
        owned.begin(&names);
        owned.reading();
        owned.end(&names, Some(at(8)));
        owned.passed(at(9));
        assert!(owned.covers(1, "a", Some(at(7))) && !owned.covers(1, "a", Some(at(9))));
        owned.begin(&names);
        owned.end(&names, None);
        assert!(owned.covers(1, "a", Some(at(8))));
        owned.merged();
        owned.passed(at(10));
        assert!(owned.names.is_empty());
    }

    #[test]
    fn a_change_that_failed_leaves_nothing_behind() {
        let mut owned = Owned::default();
        let names = vec![(1, "a".into())];
        owned.begin(&names);
        owned.end(&names, None);
        assert!(owned.names.is_empty());
    }
}
