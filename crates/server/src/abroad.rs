//! Bytes on own stores of which the home of their space is told (`docs/design/following.md`, "Own stores in other sites'
//! spaces"); further copies also where that is this site.
//!
//! New versions and further copies go the same way: their key is reserved, the file flushed and renamed, the arrival
//! settled, the home told. What a server leaves in the middle is ended by whoever comes next: [`Abroad::tidy`].

mod landing;
mod tidy;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use percale_api::Problem;
use percale_api::peer::{Changes, Outcome, Publication as Published, Publish, PublishCondition};
use percale_catalog::{
    Arrival, ArrivalBody, ArrivalEnd, ArrivalId, Catalog, Committed, Condition, CopyAnswer, NewCopy,
    Publication, Space, TaskHolder, ToldArrival,
};
use percale_core::access::Caller;
use percale_core::ids::{SiteId, VersionId};
use percale_core::path::SpaceName;
use percale_core::{ByteCount, ErrorCode, ObjectPath, Position};
use percale_federation::tell::{Told, tell_copies};
use percale_federation::{Acting, Fabric, follow};

use crate::error::{ApiError, Result};
use crate::lease::ServerLease;
use crate::publish::{Item, StagedContent, put_tree};
pub(crate) use landing::own_key;
pub use landing::undo_reserved;
use landing::{Landed, Landing};

/// How long an answer waits for this site's follower, so that the next request sees the change.
const CATCH_UP: Duration = Duration::from_secs(1);

/// Publishes in spaces of other homes.
pub struct Abroad {
    catalog: Catalog,
    fabric: Fabric,
    lease: Arc<ServerLease>,
    /// Arrivals that a request of this server is about.
    going: Mutex<HashSet<ArrivalId>>,
}

/// What becomes of the bytes of what fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// They are removed, once the home can no longer make a version of them.
    Removed,
    /// They stay under the lease of their upload, whose client asks again.
    ToUpload,
    /// They are staged as before, for a host that has them nowhere else.
    ToHost,
}

/// What became of a further copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copied {
    /// It has a name, by the record before this position of the space's journal.
    At(Position),
    /// It is not needed: the version is gone, or its store has another copy of it.
    NotWanted,
}

impl Abroad {
    /// Makes it.
    pub fn new(catalog: Catalog, fabric: Fabric, lease: Arc<ServerLease>) -> Self {
        Self { catalog, fabric, lease, going: Mutex::default() }
    }

    /// Returns the spaces among these that another site orders.
    ///
    /// # Errors
    /// Those of the catalog.
    pub async fn spaces(&self, names: HashSet<SpaceName>) -> Result<HashMap<SpaceName, Space>> {
        let mut abroad = HashMap::new();
        // A site on its own has none, and need not look.
        if self.fabric.others().is_empty() {
            return Ok(abroad);
        }
        for name in names {
            match self.catalog.space(&crate::app::system_caller(), &name).await {
                Ok(space) if space.home.is_some() => drop(abroad.insert(name, space)),
                Ok(_) => {}
                // The publication is refused where it is decided.
                Err(error) if matches!(error.code(), ErrorCode::SpaceNotFound | ErrorCode::NotFound) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(abroad)
    }

    /// Checks that spaces have room for objects of so many bytes, each by itself, before they are sent or staged in vain. The home decides: a
    /// refusal by what is known of it here is looked at again once this site knows what the home does now.
    ///
    /// # Errors
    /// `quota_exceeded`; `site_unavailable` if the home does not say; those of the catalog.
    pub async fn require_quotas(&self, wanted: Vec<(ObjectPath, ByteCount)>) -> Vec<Result<()>> {
        let outcomes = self.catalog.require_quotas(wanted.clone()).await;
        let mut outcomes: Vec<Result<()>> =
            outcomes.into_iter().map(|outcome| outcome.map_err(Into::into)).collect();
        let is_over = |outcome: &Result<()>| {
            outcome.as_ref().is_err_and(|error| error.code() == ErrorCode::QuotaExceeded)
        };
        let over: Vec<usize> = (0..outcomes.len()).filter(|at| is_over(&outcomes[*at])).collect();
        if over.is_empty() {
            return outcomes;
        }
        let again: Vec<_> = over.iter().map(|at| wanted[*at].clone()).collect();
        let spaces = again.iter().filter_map(|(path, _)| path.space()).collect();
        let caught_up = self.catch_up(spaces).await;
        for (at, outcome) in over.into_iter().zip(self.catalog.require_quotas(again).await) {
            outcomes[at] = caught_up.clone().and(outcome.map_err(Into::into));
        }
        outcomes
    }

    /// Waits until what the homes of spaces have done by now is known here.
    async fn catch_up(&self, spaces: HashSet<SpaceName>) -> Result<()> {
        for space in self.spaces(spaces).await?.into_values() {
            let Some(home) = space.home else { continue };
            let client = self.fabric.client(home, &Acting::Site)?;
            let asked = Changes { positions: Vec::new(), known: None, wait_s: 0 };
            let told = client.peer_changes(&asked).await.map_err(percale_federation::Error::from)?;
            let now = told.homes.into_iter().flatten().find(|known| known.id == space.id);
            if let Some(now) = now {
                follow::caught_up(&self.fabric, now.position, CATCH_UP).await?;
            }
        }
        Ok(())
    }

    /// Publishes new versions, each with its own outcome. Answers once the homes have committed them.
    pub async fn publish(
        &self,
        holder: TaskHolder,
        items: Vec<(Item, Space)>,
        left: Left,
    ) -> Vec<Result<Committed>> {
        let paths: Vec<ObjectPath> = items.iter().map(|((object, _), _)| object.path.clone()).collect();
        let answers: Vec<_> = items.iter().map(|((object, _), _)| object.answer.clone()).collect();
        let delegations: Vec<_> = items.iter().map(|((object, _), _)| object.delegation.clone()).collect();
        let wanted = items.into_iter().map(|((object, content), space)| {
            let body = Publication {
                caller: object.caller,
                path: object.path.clone(),
                parents: object.parents,
                condition: object.condition,
                size: content.tree.size(),
                root: Some(content.tree.root()),
                mtime: object.mtime,
                mode: object.mode,
                digests: object.digests,
            };
            let body = ArrivalBody::Publication(Box::new(body));
            Landing { space, path: object.path, version: None, content, body }
        });
        let landed = self.land(holder, wanted.collect(), left).await;
        let mut outcomes: Vec<Result<Committed>> = paths.iter().map(|_| Err(lost())).collect();
        let mut going: Vec<(usize, Landed)> = Vec::new();
        for (at, landed) in landed.into_iter().enumerate() {
            match landed {
                Ok(landed) => going.push((at, landed)),
                Err(error) => outcomes[at] = Err(error),
            }
        }
        let told = going.iter().map(|(at, landed)| (&landed.arrival, delegations[*at].as_deref()));
        let told = self.tell_publications(told.collect()).await;
        let mut refused = Vec::new();
        let mut reached: HashMap<_, Position> = HashMap::new();
        for ((at, landed), outcome) in going.into_iter().zip(told) {
            let id = landed.arrival.id;
            outcomes[at] = match outcome {
                Ok(committed) => {
                    let furthest = reached.entry(committed.position.space).or_insert(committed.position);
                    if (furthest.term, furthest.seq) < (committed.position.term, committed.position.seq) {
                        *furthest = committed.position;
                    }
                    self.keep_tree(&landed, committed.version).await;
                    if let Some(key) = &answers[at] {
                        self.keep_answer(key, &committed).await;
                    }
                    Ok(committed)
                }
                Err(error) => {
                    if !error.is_retryable() && (left != Left::ToHost || self.give_back(&landed).await) {
                        refused.push(id);
                    }
                    Err(error)
                }
            };
            if left == Left::Removed {
                self.let_go(id);
            }
        }
        self.end(refused, ArrivalEnd::Garbage).await;
        for position in reached.into_values() {
            if let Err(error) = follow::caught_up(&self.fabric, position, CATCH_UP).await {
                tracing::debug!(%error, "cannot see yet what a home committed");
            }
        }
        for (outcome, path) in outcomes.iter_mut().zip(&paths) {
            if let Err(error) = outcome {
                *error = error.clone().with_path(path);
            }
        }
        outcomes
    }

    /// Makes further copies of versions of a space, each with its own outcome. Copies whose home could not be told stay, and
    /// are told later.
    ///
    /// # Cancellation
    /// Not to be dropped: what is under way then stays until the server ends. Spawn it.
    pub async fn copies(
        &self,
        holder: TaskHolder,
        space: &Space,
        copies: Vec<(ObjectPath, VersionId, StagedContent)>,
    ) -> Vec<Result<Copied>> {
        let wanted = copies.into_iter().map(|(path, version, content)| {
            let body = ArrivalBody::Copy { size: content.tree.size(), root: content.tree.root() };
            Landing { space: space.clone(), path, version: Some(version), content, body }
        });
        let landed = self.land(holder, wanted.collect(), Left::Removed).await;
        let arrivals: Vec<Arrival> =
            landed.iter().filter_map(|landed| Some(landed.as_ref().ok()?.arrival.clone())).collect();
        let mut answers = match space.home {
            Some(home) => match tell_copies(&self.fabric, home, &Acting::Site, &arrivals).await {
                Ok(told) => told.into_iter().map(copied).collect(),
                Err(error) => {
                    let error = ApiError::from(error);
                    arrivals.iter().map(|_| Err(error.clone())).collect()
                }
            },
            None => self.tell_own(&arrivals).await,
        }
        .into_iter();
        let mut outcomes = Vec::with_capacity(landed.len());
        for landed in landed {
            outcomes.push(match landed {
                Ok(landed) => {
                    let answer = answers.next().unwrap_or_else(|| Err(lost()));
                    if let (Some(version), Ok(Copied::At(_))) = (landed.arrival.version, &answer) {
                        self.keep_tree(&landed, version).await;
                    }
                    self.let_go(landed.arrival.id);
                    answer
                }
                Err(error) => Err(error),
            });
        }
        outcomes
    }

    /// Step 7 for copies in spaces that are at home here.
    async fn tell_own(&self, arrivals: &[Arrival]) -> Vec<Result<Copied>> {
        let mut copies = Vec::with_capacity(arrivals.len());
        for arrival in arrivals {
            if let (Some(version), ArrivalBody::Copy { root, .. }) = (arrival.version, &arrival.body) {
                copies.push(NewCopy {
                    id: arrival.id,
                    space: arrival.space,
                    version,
                    store: arrival.store,
                    key: arrival.key.clone(),
                    generation: arrival.generation.clone(),
                    root: *root,
                });
            }
        }
        let told = self.catalog.add_copies(None, &crate::app::system_caller(), copies).await;
        let mut garbage = Vec::new();
        let mut outcomes = Vec::with_capacity(arrivals.len());
        for (arrival, told) in arrivals.iter().zip(told) {
            outcomes.push(match told {
                // The arrival has ended with it.
                Ok(CopyAnswer::Added { position }) => Ok(Copied::At(position)),
                Ok(CopyAnswer::Known { .. } | CopyAnswer::Gone) => {
                    garbage.push(arrival.id);
                    Ok(Copied::NotWanted)
                }
                Err(error) => {
                    let error = ApiError::from(error);
                    if !error.is_retryable() {
                        garbage.push(arrival.id);
                    }
                    Err(error)
                }
            });
        }
        self.end(garbage, ArrivalEnd::Garbage).await;
        outcomes
    }

    /// Step 7 for new versions: the homes give the ids and commit. With each comes the delegation of the task that makes it.
    async fn tell_publications(&self, arrivals: Vec<(&Arrival, Option<&str>)>) -> Vec<Result<Committed>> {
        let mut outcomes: Vec<Result<Committed>> = arrivals.iter().map(|_| Err(lost())).collect();
        let mut groups: Vec<(Asking<'_>, Vec<usize>)> = Vec::new();
        for (at, (arrival, delegation)) in arrivals.iter().enumerate() {
            let ArrivalBody::Publication(publication) = &arrival.body else { continue };
            let Some(home) = arrival.home else {
                let detail = "the space came to this site meanwhile; send the content again";
                outcomes[at] = Err(ApiError::new(ErrorCode::Conflict, detail));
                continue;
            };
            let key = (home, &publication.caller, *delegation);
            match groups.iter_mut().find(|(known, _)| *known == key) {
                Some((_, group)) => group.push(at),
                None => groups.push((key, vec![at])),
            }
        }
        for ((home, caller, delegation), group) in groups {
            let items: Vec<Published> = group.iter().filter_map(|at| to_wire(arrivals[*at].0)).collect();
            let answered = self.ask_home(home, caller, delegation, items).await;
            match answered {
                Ok(answers) if answers.len() == group.len() => {
                    let mut told = Vec::new();
                    for (at, answer) in group.into_iter().zip(answers) {
                        outcomes[at] = match answer {
                            Outcome::Done(published) => {
                                let committed = committed(published);
                                told.push(ToldArrival {
                                    id: arrivals[at].0.id,
                                    version: committed.version,
                                    position: committed.position,
                                });
                                Ok(committed)
                            }
                            Outcome::Failed(problem) => Err(from_problem(problem)),
                        };
                    }
                    // The home answers the same again, if this is not noted.
                    for outcome in self.catalog.note_told(told).await {
                        if let Err(error) = outcome {
                            tracing::warn!(%error, "cannot note what a home answered; it will be asked again");
                        }
                    }
                }
                Ok(_) => {
                    for at in group {
                        let detail = "the home of the space answered for another number of objects";
                        outcomes[at] = Err(ApiError::new(ErrorCode::SiteUnavailable, detail));
                    }
                }
                Err(error) => {
                    for at in group {
                        outcomes[at] = Err(error.clone());
                    }
                }
            }
        }
        outcomes
    }

    async fn ask_home(
        &self,
        home: SiteId,
        caller: &Caller,
        delegation: Option<&str>,
        items: Vec<Published>,
    ) -> Result<Vec<Outcome<percale_api::peer::Published>>> {
        let member = self.fabric.member(home)?;
        let acting = delegation.map_or(Acting::Site, |text| Acting::Task(text.to_owned()));
        let client = self.fabric.client(home, &acting)?;
        let caller = caller.seen(&self.fabric.own().name, &member.name);
        let publish = Publish { caller, items, abandoned: Vec::new() };
        match client.peer_publish(&publish).await {
            Ok(answer) => Ok(answer.items),
            Err(error) => Err(percale_federation::Error::from(error).into()),
        }
    }

    async fn end(&self, arrivals: Vec<ArrivalId>, end: ArrivalEnd) {
        for outcome in self.catalog.end_arrivals(arrivals, end).await {
            if let Err(error) = outcome {
                tracing::warn!(%error, "an arrival is ended later");
            }
        }
    }

    fn let_go(&self, id: ArrivalId) {
        self.going.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// Tells whether a request or task of this server has an arrival in hand.
    pub(crate) fn is_going(&self, id: ArrivalId) -> bool {
        self.going.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }

    /// Puts the tree beside the content, whose version is known now. Without it, it is made anew when it is needed.
    async fn keep_tree(&self, landed: &Landed, version: VersionId) {
        let content = &landed.content;
        if content.tree.groups().len() < 2 {
            return;
        }
        let kept = put_tree(&self.lease, &content.store, landed.arrival.space, version, &content.tree).await;
        if let Err(error) = kept {
            tracing::warn!(version = version.0, %error, "the hash tree could not be kept");
        }
    }

    async fn keep_answer(&self, key: &percale_catalog::AnswerKey, committed: &Committed) {
        let kept = async {
            let body = serde_json::to_string(committed)
                .map_err(|error| ApiError::internal("cannot keep an answer").with_source(error))?;
            let answer = percale_catalog::Answer { status: 200, body };
            self.catalog.answer(key, answer).await.map_err(ApiError::from)
        };
        // A repetition then asks the home, which answers the same.
        if let Err(error) = kept.await {
            tracing::warn!(%error, "cannot keep the answer of an upload");
        }
    }
}

/// Which home is asked, for whom, and by which delegation.
type Asking<'a> = (SiteId, &'a Caller, Option<&'a str>);

fn to_wire(arrival: &Arrival) -> Option<Published> {
    let ArrivalBody::Publication(publication) = &arrival.body else { return None };
    Some(Published {
        id: arrival.id.0,
        path: publication.path.clone(),
        parents: publication.parents,
        condition: match publication.condition {
            Condition::New => PublishCondition::New,
            Condition::Match(version) => PublishCondition::Match(version),
            Condition::Existing => PublishCondition::Existing,
            Condition::Any => PublishCondition::Any,
        },
        size: publication.size,
        root: publication.root?,
        mtime_us: publication.mtime.map(|mtime| mtime.as_micros()),
        mode: publication.mode,
        digests: publication.digests.clone(),
        store: arrival.store,
        key: arrival.key.clone(),
        generation: arrival.generation.clone(),
    })
}

fn committed(published: percale_api::peer::Published) -> Committed {
    let percale_api::peer::Published { path, entry, version, position, created } = published;
    Committed { path, entry, version, position, created }
}

fn copied(told: Option<Told>) -> Result<Copied> {
    match told {
        Some(Told::Noted(position)) => Ok(Copied::At(position)),
        Some(Told::NotWanted) => Ok(Copied::NotWanted),
        Some(Told::Refused(problem)) => Err(from_problem(problem)),
        None => Err(lost()),
    }
}

/// What a home refused, in its words.
pub(crate) fn from_problem(problem: Problem) -> ApiError {
    let error = ApiError::new(problem.error_code(), problem.detail);
    if problem.retryable { error } else { error.permanent() }
}

fn lost() -> ApiError {
    ApiError::internal("a publication ended without a result")
}
