//! What is changed through the mount, sent to the site in the background, in batches, and what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use percale_api::Problem;
use percale_api::entries::{Attributes, Content};
use percale_api::mounts::{MountChange, MountDone, MountResult};
use percale_api::uploads::Condition;
use percale_client::put::PutOptions;
use percale_client::{Item, Outcome, Retry};
use percale_core::ErrorCode;

use crate::changes::{Answer, Change, Ended, Refused, Sent, Staged, is_spooled, may_be_made};
use crate::names::{LEFT, NodeId};
use crate::object::LocalCopy;
use crate::owned::Name;
use crate::session::is_over;
use crate::state::{Shared, State};

/// The first pause after a failure that may pass, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Publishes what is added, until the mount ends.
pub async fn publish(shared: Arc<Shared>) {
    let changes = &shared.changes;
    let mut pause = FIRST_PAUSE;
    loop {
        let sent = changes.next().await;
        let mut outcomes = send(&shared, &sent).await;
        for (Sent { change, moves }, outcome) in sent.iter().zip(&mut outcomes) {
            if let (Some(names), Err(refused)) = (moves, &*outcome)
                && refused.code == ErrorCode::NotFound
                && is_moved(&shared, names, change).await
            {
                *outcome = Ok(MountDone::default());
            }
        }
        let is_counted = |refused: &Refused| pause > FIRST_PAUSE || may_be_made(refused.code);
        let may_pass = |change: &Change, refused: &Refused| may_pass(&shared, change, refused);
        let (ended, is_again) = changes.sent(sent, outcomes, is_counted, may_pass);
        for ended in ended {
            end(&shared, ended);
        }
        changes.tell();
        if is_again {
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
        Change::Say(..) | Change::Name(_) => false,
    };
    let is_superseded = is_gone && refused.code == ErrorCode::VersionChanged;
    refused.is_retryable && !is_superseded && !shared.session.is_lost()
}

/// Tells whether a directory is where it was to be moved to, though it is not found where it was: the answer that it was moved was lost.
/// What is queued behind it must know before it is sent.
async fn is_moved(shared: &Shared, names: &[Name], change: &Change) -> bool {
    let (Change::Name(MountChange::Move { to, .. }), [_, (parent, name)]) = (change, names) else {
        return false;
    };
    let entry = {
        let state = shared.state();
        let node = state.names.child(*parent, name).and_then(|node| state.names.get(node));
        node.and_then(|node| node.entry)
    };
    let found = shared.session.client.entry_by_mount(shared.session.id(), to);
    // Everything behind it waits for this.
    let found = tokio::time::timeout(LONGEST_PAUSE, found).await;
    matches!(found, Ok(Ok(Some(found))) if Some(found.id) == entry)
}

async fn send(shared: &Shared, batch: &[Sent]) -> Vec<Result<MountDone, Refused>> {
    if let [Sent { change: change @ Change::Publish(staged), .. }] = batch
        && is_spooled(change)
    {
        return vec![upload(shared, staged).await];
    }
    if let [Sent { change: Change::Say(path, said), .. }] = batch {
        let said = shared.session.client.change_attributes(path, said).await;
        return vec![said.map(|_| MountDone::default()).map_err(not_done)];
    }
    let wire = |change: &Change| match change {
        Change::Say(..) => None,
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
    let wanted: Vec<MountChange> = batch.iter().filter_map(|sent| wire(&sent.change)).collect();
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

/// Returns why a request of its own came to nothing.
fn not_done(error: percale_client::Error) -> Refused {
    Refused {
        code: error.code(),
        detail: error.to_string(),
        is_retryable: error.retry() != Retry::Permanent || error.code().is_retryable(),
    }
}

/// Uploads a file of the spool.
async fn upload(shared: &Shared, staged: &Staged) -> Result<MountDone, Refused> {
    let local = shared.session.spooled(&staged.place.token);
    let mut options = PutOptions::default();
    // Where something must not be there yet, the same bytes may: they are what was sent before, if the answer was lost.
    options.overwrite = staged.condition != Condition::New;
    let client = &shared.session.client;
    if let Some(parent) = staged.path.parent().filter(|_| !is_parent_known(shared, staged.node)) {
        // An upload makes the collections above it, also where others have moved or removed them.
        client.stat(&parent).await.map_err(not_done)?;
    }
    let report = client.put_file(&local, &staged.path, &options).await.map_err(not_done)?;
    if let Some(Item { outcome: Outcome::Failed(error), .. }) = report.failures.into_iter().next() {
        return Err(not_done(error));
    }
    let entry = client.stat(&staged.path).await.map_err(not_done)?;
    let content = entry.content.as_ref();
    if content.is_some_and(|content| content.mode != Some(staged.mode)) {
        // The spooled file has others: this process must be able to write it again.
        let attributes = Attributes { mtime: None, mode: Some(staged.mode) };
        let change = MountChange::SetAttributes { path: staged.path.clone(), attributes };
        let told = client.change_by_mount(shared.session.id(), vec![change]).await.map_err(not_done)?;
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

/// Tells whether the collection that a file is in is there, as far as the journal tells.
fn is_parent_known(shared: &Shared, node: NodeId) -> bool {
    let state = shared.state();
    let parent = state.names.get(node).and_then(|node| state.names.get(node.parent));
    parent.is_some_and(|parent| {
        let space = parent.space.and_then(|space| state.spaces.get(usize::from(space.0)));
        parent.entry.is_some() && space.is_some_and(|space| space.is_followed)
    })
}

/// Takes over what became of a change.
fn end(shared: &Shared, Ended { number, sent, now, names, answer, outcome }: Ended) {
    let mut forget = Vec::new();
    {
        let mut state = shared.state();
        let position = outcome.as_ref().ok().and_then(|done| done.position.as_deref()?.parse().ok());
        state.owned.end(&names, position);
        if let (Change::Name(MountChange::Move { from, to, .. }), Ok(_), true) =
            (&sent, &outcome, answer.is_some())
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
    match (&sent, &outcome) {
        (Change::Publish(staged), Ok(done)) => published(shared, number, staged, done),
        (Change::Publish(staged), Err(refused)) => failed(shared, number, staged, (refused, &now)),
        (Change::Say(..) | Change::Name(_), Ok(_)) => {}
        (Change::Say(path, _), Err(refused)) => {
            tracing::error!(%path, code = %refused.code, error = refused.detail, "what a program said of a file is not kept");
        }
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
                let mut state = shared.state();
                names.iter().for_each(|(parent, _)| state.names.note_refused(*parent, refused.code));
                drop(state);
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
        if staged.node != LEFT && shared.path(&state, staged.node).is_none_or(|now| now != staged.path) {
            shared.changes.found(&staged.path, entry);
        }
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
    state.names.changed_version(staged.node);
    let said = state.names.object_mut(staged.node).and_then(|object| object.said.take());
    let said = said.filter(|said| !said.set.is_empty());
    if let (Some(said), Some(path)) = (said, shared.path(&state, staged.node)) {
        shared.submit(&mut state, Change::Say(path, said), Vec::new());
    }
    state.names.drop_unused(staged.node);
}

/// Notes that what was written cannot be published. Programs on this host see it, and publish it when they close it again. What is
/// elsewhere by now is published there.
fn failed(shared: &Shared, number: u64, staged: &Staged, (refused, now): (&Refused, &Change)) {
    let path = &staged.path;
    let mut state = shared.state();
    if let Change::Publish(now) = now
        && now.node == LEFT
        && now.path != *path
    {
        shared.submit(&mut state, Change::Publish(now.clone()), Vec::new());
        return;
    }
    if refused.code == ErrorCode::QuotaExceeded {
        shared.over_quota(&mut state, staged.node);
    }
    if staged.node == LEFT && shared.session.stat_written(&staged.place).is_ok() {
        tracing::error!(
            %path, code = %refused.code, error = refused.detail, staged = %staged.place.token,
            "what was written before this process began cannot be published; the next mount at this directory tries again"
        );
        return crate::left::refused(shared, &mut state, &staged.place, path.clone());
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
    if shared.path(&state, staged.node).is_some_and(|now| now != *path) {
        tracing::debug!(%path, code = %refused.code, error = refused.detail, "what was moved meanwhile is published where it is now");
        keep(shared, &mut state, number, staged);
        return shared.end_work(&mut state, staged.node);
    }
    if let Some(parent) = state.names.get(staged.node).map(|node| node.parent) {
        state.names.note_refused(parent, refused.code);
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
    keep(shared, &mut state, number, staged);
}

/// Notes that a file that was refused is to be published again.
fn keep(shared: &Shared, state: &mut State, number: u64, staged: &Staged) {
    let is_moved =
        shared.session.stat_written(&staged.place).is_ok_and(|found| found.stx_ino != staged.inode);
    let Some(object) = state.names.object_mut(staged.node) else { return };
    let is_open = object.is_open();
    if let Some(work) = object.work.as_mut().filter(|work| work.is_published_by(number)) {
        shared.keep_staged(work);
        work.is_moved = is_moved && is_open;
    }
}
