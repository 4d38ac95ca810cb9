//! What was changed through the mount and is not published yet, kept in order.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fuser::Errno;
use percale_api::attributes::AttributeChange;
use percale_api::mounts::{MountChange, MountChanges, MountDone};
use percale_api::uploads::Condition;
use percale_core::ids::EntryId;
use percale_core::{ErrorCode, FileMode, ObjectPath, Timestamp};
use tokio::sync::{Notify, oneshot};

use crate::error::errno;
use crate::names::{NodeId, carry};
use crate::owned::Name;
use crate::session::Place;
use crate::state::{Shared, State};

/// How often the first changes are tried while a program waits for its own, where the site answers: about 20 s.
const MOST_ATTEMPTS: u64 = 10;
/// Changes that may wait; beyond that, programs that change more are held back.
const MOST_WAITING: usize = 50_000;

/// Why a change did not come about.
#[derive(Debug, Clone)]
pub struct Refused {
    /// Its code.
    pub code: ErrorCode,
    /// In words.
    pub detail: String,
    /// Whether it may come about later.
    pub is_retryable: bool,
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

/// A change.
#[derive(Debug, Clone)]
pub enum Change {
    /// A file becomes a version.
    Publish(Staged),
    /// People say something of an object that was not in the catalog when they did.
    Say(ObjectPath, AttributeChange),
    /// Anything else.
    Name(MountChange),
}

impl Change {
    /// Returns the paths that it is about; the second is the one that something gets.
    fn paths(&self) -> (&ObjectPath, Option<&ObjectPath>) {
        match self {
            Self::Publish(staged) => (&staged.path, None),
            Self::Say(path, _) => (path, None),
            Self::Name(change @ MountChange::Move { to, .. }) => (change.path(), Some(to)),
            Self::Name(change) => (change.path(), None),
        }
    }

    /// Takes over that a collection has another path. Tells whether the change is of something there.
    fn moved(&mut self, from: &ObjectPath, to: &ObjectPath) -> bool {
        let (path, other) = match self {
            Self::Publish(Staged { path, .. }) | Self::Say(path, _) => (path, None),
            Self::Name(change) => match change {
                MountChange::Move { from, to, .. } => (from, Some(to)),
                MountChange::Publish { path, .. }
                | MountChange::Writing { path, .. }
                | MountChange::Written { path, .. }
                | MountChange::SetAttributes { path, .. }
                | MountChange::MakeCollection { path }
                | MountChange::MakeLink { path, .. }
                | MountChange::Remove { path, .. } => (path, None),
            },
        };
        let is_other = other.is_some_and(|other| carry(other, from, to));
        carry(path, from, to) || is_other
    }
}

/// Hears what became of a change.
pub type Answer = oneshot::Sender<Result<MountDone, Refused>>;

#[derive(Debug)]
struct Waiting {
    number: u64,
    change: Change,
    /// The names that mean something else by it.
    names: Vec<Name>,
    /// Whether the site may have made it, as far as is known.
    is_sent: bool,
    /// Whether that is so since an answer was lost.
    may_be_made: bool,
    answer: Option<Answer>,
}

impl Waiting {
    /// Tells whether it gives a directory another path, which those behind it are to be asked for under.
    fn moves_directory(&self) -> bool {
        self.answer.is_some() && matches!(self.change, Change::Name(MountChange::Move { .. }))
    }
}

/// A change that is sent, as it is then.
#[derive(Debug)]
pub struct Sent {
    /// The change.
    pub change: Change,
    /// The names of a directory that it moves: the new one, and the one before.
    pub moves: Option<Vec<Name>>,
}

/// A change that was made or refused.
#[derive(Debug)]
pub struct Ended {
    /// Its number.
    pub number: u64,
    /// As it was sent.
    pub sent: Change,
    /// As it is now: what it is about may be elsewhere.
    pub now: Change,
    /// The names that meant something else by it.
    pub names: Vec<Name>,
    /// Who waits for it.
    pub answer: Option<Answer>,
    /// What became of it.
    pub outcome: Result<MountDone, Refused>,
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
        queue.waiting.push_back(Waiting {
            number,
            change,
            names,
            is_sent: false,
            may_be_made: false,
            answer,
        });
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
        self.tell();
        Some(taken.names)
    }

    /// Takes over that a collection has another path, for all changes that wait. Returns where files lie that belong elsewhere now.
    pub fn moved(&self, from: &ObjectPath, to: &ObjectPath) -> Vec<(Place, ObjectPath)> {
        let mut moved = Vec::new();
        for waiting in &mut self.queue().waiting {
            if waiting.change.moved(from, to)
                && let Change::Publish(staged) = &waiting.change
            {
                moved.push((staged.place.clone(), staged.path.clone()));
            }
        }
        moved
    }

    /// Takes over which entry has a path, for what waits to be moved or removed there, and where it was moved to.
    pub fn found(&self, path: &ObjectPath, found: EntryId) {
        let mut at = path.clone();
        for waiting in &mut self.queue().waiting {
            match &mut waiting.change {
                Change::Name(MountChange::Move { from, to, entry, .. }) if *from == at => {
                    entry.get_or_insert(found);
                    at = to.clone();
                }
                // It was replaced.
                Change::Name(MountChange::Move { to, .. }) if *to == at => return,
                Change::Name(MountChange::Remove { path, entry }) if *path == at => {
                    entry.get_or_insert(found);
                    return;
                }
                _ => {}
            }
        }
    }

    /// Waits until there are changes, and returns those that go into the next request: from here on the site may have made them.
    pub async fn next(&self) -> Vec<Sent> {
        loop {
            let sent = self.batch();
            if !sent.is_empty() {
                return sent;
            }
            self.added.notified().await;
        }
    }

    fn batch(&self) -> Vec<Sent> {
        let mut queue = self.queue();
        let count = batch_len(&queue.waiting);
        let sent = queue.waiting.iter_mut().take(count);
        sent.map(|waiting| {
            waiting.is_sent = true;
            let moves = waiting.moves_directory().then(|| waiting.names.clone());
            Sent { change: waiting.change.clone(), moves }
        })
        .collect()
    }

    /// Takes out what was sent and has ended. What `may_pass` stays, and is sent again; tells whether there is such, and counts it unless
    /// that is of no consequence yet.
    pub fn sent(
        &self,
        sent: Vec<Sent>,
        outcomes: Vec<Result<MountDone, Refused>>,
        is_counted: impl Fn(&Refused) -> bool,
        may_pass: impl Fn(&Change, &Refused) -> bool,
    ) -> (Vec<Ended>, bool) {
        let (mut ended, mut rest) = (Vec::with_capacity(sent.len()), VecDeque::new());
        let mut queue = self.queue();
        for (Sent { change, .. }, outcome) in sent.into_iter().zip(outcomes) {
            let Some(mut waiting) = queue.waiting.pop_front() else { break };
            match outcome {
                Err(refused) if may_pass(&waiting.change, &refused) => {
                    // One that waits for another, which was overtaken by a removal, is made by the next request.
                    if rest.is_empty() && is_counted(&refused) {
                        tracing::warn!(code = %refused.code, error = refused.detail, "a change cannot be published yet");
                        queue.refused = (queue.refused.0 + 1, Some(refused.code));
                    }
                    // What is refused now may have been made by an earlier request all the same.
                    waiting.may_be_made |= may_be_made(refused.code);
                    waiting.is_sent = waiting.may_be_made;
                    rest.push_back(waiting);
                }
                outcome => {
                    let Waiting { number, change: now, names, answer, .. } = waiting;
                    ended.push(Ended { number, sent: change, now, names, answer, outcome });
                }
            }
        }
        let is_again = !rest.is_empty();
        while let Some(waiting) = rest.pop_back() {
            queue.waiting.push_front(waiting);
        }
        (ended, is_again)
    }

    /// Has those look again who wait for something to end.
    pub fn tell(&self) {
        self.done.notify_waiters();
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

    /// Waits until a change is done, or everything that was added up to now.
    ///
    /// # Errors
    /// Why the changes that are first in the queue cannot be made, since the site is away, or too often.
    pub async fn until_done_or_away(&self, number: Option<u64>) -> Result<(), ErrorCode> {
        tokio::select! {
            biased;
            () = self.until_done(number) => Ok(()),
            code = self.until_away() => Err(code),
        }
    }

    /// Waits until the changes that are first in the queue cannot be made since the site is away, or too often. Returns why.
    async fn until_away(&self) -> ErrorCode {
        let (before, _) = self.queue().refused;
        let away = self.until(|queue| match queue.refused {
            (count, Some(why)) if count != before && is_away(why) => Some(why),
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
    ///
    /// # Errors
    /// What a program is told if there will be none for now, since the site is away.
    pub async fn room(&self) -> Result<(), Errno> {
        let has_room = self.until(|queue| (queue.waiting.len() <= MOST_WAITING).then_some(()));
        tokio::select! {
            biased;
            () = has_room => Ok(()),
            code = self.until_away() => Err(errno(code)),
        }
    }

    /// Tells whether programs are to be held back.
    pub fn is_full(&self) -> bool {
        self.len() > MOST_WAITING
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

/// Tells whether a change that was answered so may have been made all the same.
pub fn may_be_made(code: ErrorCode) -> bool {
    use ErrorCode::{CatalogUnavailable, Internal, SiteUnavailable, Timeout};
    matches!(code, SiteUnavailable | Timeout | CatalogUnavailable | Internal)
}

/// Tells whether an answer means that the site is away. Any other that may pass tells that it is there: so it is asked for a while.
fn is_away(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::SiteUnavailable | ErrorCode::Timeout)
}

/// Returns how many changes go into the next request: as many as it may have, but a file of the spool goes alone, as does what is said of
/// a file, a directory that is moved last, and no two at one path. A request whose answer was lost is sent again, after the site made all
/// of it: a removal must not find what came after it then, nor a publication what its file became after that. A removal that names its
/// entry finds nothing else, so what takes its place goes with it.
fn batch_len(waiting: &VecDeque<Waiting>) -> usize {
    if waiting.front().is_some_and(|first| goes_alone(&first.change)) {
        return 1;
    }
    let (mut known, mut removed) = (HashSet::new(), HashSet::new());
    let mut count = 0;
    for one in waiting.iter().take(MountChanges::MOST) {
        let (path, other) = one.change.paths();
        let takes_place = matches!(one.change, Change::Publish(_)) && removed.remove(path);
        let is_new = (known.insert(path) || takes_place) && other.is_none_or(|other| known.insert(other));
        if matches!(one.change, Change::Name(MountChange::Remove { entry: Some(_), .. })) {
            removed.insert(path);
        }
        if !is_new || goes_alone(&one.change) {
            break;
        }
        count += 1;
        if one.moves_directory() {
            break;
        }
    }
    count
}

/// Tells whether a change is a request of its own.
fn goes_alone(change: &Change) -> bool {
    is_spooled(change) || matches!(change, Change::Say(..))
}

/// Tells whether a change publishes a file of the spool.
pub fn is_spooled(change: &Change) -> bool {
    matches!(change, Change::Publish(Staged { place: Place { store: None, .. }, .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::StoreNumber;

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
            // Full disks, and a server that hands its work to another.
            let passing = [ErrorCode::NoSpace, ErrorCode::CatalogUnavailable, ErrorCode::Internal];
            for (count, code) in (1..).zip(passing) {
                refuse(count, code);
                tokio::task::yield_now().await;
                assert!(waiting.get(), "{code} may take as long as it takes");
            }
            refuse(4, ErrorCode::SiteUnavailable);
        };
        assert_eq!(tokio::join!(away, site).0, ErrorCode::SiteUnavailable);
        let often = async { refuse(4 + MOST_ATTEMPTS, ErrorCode::CatalogUnavailable) };
        assert_eq!(tokio::join!(changes.until_away(), often).0, ErrorCode::CatalogUnavailable);
    }

    #[tokio::test]
    async fn who_waits_for_all_changes_or_for_room_does_not_wait_for_a_site_that_is_away() {
        let changes = Changes::default();
        assert_eq!((changes.until_done_or_away(None).await, changes.room().await), (Ok(()), Ok(())));
        for _ in 0..=MOST_WAITING {
            changes.push(publish("/lab/a"), Vec::new(), None);
        }
        let away = async {
            changes.queue().refused = (1, Some(ErrorCode::SiteUnavailable));
            changes.tell();
        };
        let (all, room, ()) = tokio::join!(changes.until_done_or_away(None), changes.room(), away);
        assert_eq!((all, room), (Err(ErrorCode::SiteUnavailable), Err(Errno::EHOSTDOWN)));
        let done = async {
            changes.queue().waiting.clear();
            changes.tell();
        };
        let (all, room, ()) = tokio::join!(changes.until_done_or_away(None), changes.room(), done);
        assert_eq!((all, room), (Ok(()), Ok(())));
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
        Change::Name(MountChange::Move { from, to, overwrite: true, entry: None })
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
        assert_eq!(batch_len(&changes.queue().waiting), 2, "the last is moved after it was published");
        let moved = changes.moved(&"/lab/a".parse().unwrap(), &"/lab/b".parse().unwrap());
        assert_eq!(moved.iter().map(|(_, path)| path.as_str()).collect::<Vec<_>>(), ["/lab/b/x"]);
        let paths: Vec<String> = (changes.queue().waiting.iter())
            .map(|waiting| match &waiting.change {
                Change::Publish(staged) => staged.path.to_string(),
                Change::Name(MountChange::Move { from, to, .. }) => format!("{from} {to}"),
                _ => String::new(),
            })
            .collect();
        assert_eq!(paths, ["/lab/b/x", "/lab/ab", "/lab/b/x /lab/b/y"]);
    }

    #[test]
    fn a_request_that_is_sent_again_finds_nothing_that_came_after_a_change_of_it() {
        let remove = |path: &str| {
            Change::Name(MountChange::Remove { path: path.parse().unwrap(), entry: Some(EntryId(7)) })
        };
        let batches = |all: Vec<Change>| {
            let changes = Changes::default();
            for change in all {
                changes.push(change, Vec::new(), None);
            }
            let mut lens = Vec::new();
            while changes.has_waiting() {
                lens.push(batch_len(&changes.queue().waiting));
                changes.queue().waiting.drain(..lens[lens.len() - 1]);
            }
            lens
        };
        assert_eq!(batches(vec![remove("/lab/a"), publish("/lab/b"), publish("/lab/a")]), [3]);
        assert_eq!(batches(vec![remove("/lab/a"), publish("/lab/a"), publish("/lab/a")]), [2, 1]);
        assert_eq!(batches(vec![remove("/lab/a"), publish("/lab/a"), remove("/lab/a")]), [2, 1]);
        assert_eq!(batches(vec![rename("/lab/a", "/lab/a.bak"), publish("/lab/a")]), [1, 1]);
        assert_eq!(batches(vec![publish("/lab/x"), rename("/lab/x", "/lab/y")]), [1, 1]);
        let rotated = vec![rename("/lab/1", "/lab/2"), rename("/lab/0", "/lab/1"), publish("/lab/0")];
        assert_eq!(batches(rotated), [1, 1, 1]);
        assert_eq!(batches(vec![remove("/lab/a/x"), remove("/lab/a/y"), remove("/lab/a")]), [3]);
    }

    #[test]
    fn what_is_moved_or_removed_before_it_is_known_in_the_catalog_is_just_that() {
        let changes = Changes::default();
        for change in [rename("/lab/a", "/lab/b"), publish("/lab/a"), rename("/lab/b", "/lab/c")] {
            changes.push(change, Vec::new(), None);
        }
        let remove =
            |path: &str| Change::Name(MountChange::Remove { path: path.parse().unwrap(), entry: None });
        for path in ["/lab/b", "/lab/c", "/lab/c"] {
            changes.push(remove(path), Vec::new(), None);
        }
        changes.found(&"/lab/a".parse().unwrap(), EntryId(7));
        let entries: Vec<_> = (changes.queue().waiting.iter())
            .map(|waiting| match &waiting.change {
                Change::Name(MountChange::Move { entry, .. } | MountChange::Remove { entry, .. }) => *entry,
                _ => None,
            })
            .collect();
        let found = Some(EntryId(7));
        assert_eq!(entries, [found, None, found, None, found, None]);
    }

    #[test]
    fn what_is_moved_while_it_is_on_its_way_is_known_as_it_was_sent() {
        let changes = Changes::default();
        changes.push(publish("/lab/a/x"), Vec::new(), None);
        let sent = changes.batch();
        changes.moved(&"/lab/a".parse().unwrap(), &"/lab/b".parse().unwrap());
        let path = |change: &Change| match change {
            Change::Publish(staged) => staged.path.to_string(),
            _ => String::new(),
        };
        let refused = Refused { code: ErrorCode::NotFound, detail: String::new(), is_retryable: false };
        let (ended, is_again) = changes.sent(sent, vec![Err(refused)], |_| true, |_, _| false);
        let paths: Vec<_> = ended.iter().map(|ended| (path(&ended.sent), path(&ended.now))).collect();
        assert_eq!(paths, [("/lab/a/x".to_owned(), "/lab/b/x".to_owned())]);
        assert!(!is_again && !changes.has_waiting());
    }
}
