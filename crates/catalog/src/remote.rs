//! What the home of a space answers to other sites about new versions whose bytes lie there (docs/design/following.md).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use percale_core::Timestamp;
use percale_core::ids::{SiteId, StoreId};
use percale_core::path::{MAX_PATH_BYTES, check_name};

use crate::batch::{Batch, PathLock, Wants, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Arrival, ArrivalId, ArrivalState, Committed, Content, Publication, RemotePublication};
use crate::publish::version::{self, Decided, Draft, FirstCopy, Runs};
use crate::publish::{MAX_PUBLISH, each, one_outcome, refuse_all};
use crate::record::{CreatedItem, kind};
use crate::rows::publish::actor;
use crate::rows::site::{self, StoreRow};
use crate::rows::told::{self, LateAnswer, Told};
use crate::rows::{Lock, arrival};

/// For how long after it was made an arrival may be told of.
const TOLD_WITHIN: Duration = Duration::from_secs(7 * 24 * 3600);

/// By how much the clock of another site may be ahead, as everywhere in [trust](../../../docs/design/trust.md).
const MAX_AHEAD: Duration = Duration::from_secs(15 * 60);

/// For how long answers are kept. An answer was given at most [`MAX_AHEAD`] before the time in its arrival's id, so that an
/// arrival whose answer is forgotten is older than [`TOLD_WITHIN`] and is refused.
pub(crate) const KEEP_TOLD: Duration = Duration::from_secs(8 * 24 * 3600);

/// What a home answers to the site where the bytes of new versions lie. The server lets only that site ask.
impl Catalog {
    /// Makes versions whose bytes are good on stores of `site`, each with its own outcome, in one transaction. Asked
    /// again with the same arrival, within 7 days, it answers the same.
    ///
    /// - `site` may be this one: arrivals of a space that came to be at home here.
    ///
    /// # Errors
    /// For each, those of publishing: `AlreadyExists`, `PreconditionFailed`, `IsCollection`, `NotFound`, `NotACollection`,
    /// `Denied`, `ReadOnly`, `Foreign` if the space is not at home here. Besides:
    /// - `NotAllowed` for a store of another site, or a caller with the scope `admin`, which never crosses.
    /// - `Conflict` if the publication was given up, the key is another copy's, or the store is not known yet.
    /// - `InvalidRequest` for an arrival that is older than 7 days or from the future, or a key that no store has.
    pub async fn publish_from(&self, site: SiteId, items: Vec<RemotePublication>) -> Vec<Result<Committed>> {
        let count = items.len();
        if count > MAX_PUBLISH {
            return refuse_all(count);
        }
        each(count, self.change(PublishFrom { site, items }).await)
    }

    /// Makes sure that publications of `site` never become visible, and returns those that already are, in the order in
    /// which they were asked about.
    ///
    /// # Errors
    /// `InvalidRequest`, and nothing is changed, for arrivals whose answers are not kept any more: they are never
    /// published from now on, but whether they were is only seen in the space. Also for one of a further copy.
    pub async fn abandon_publications(
        &self,
        site: SiteId,
        ids: Vec<ArrivalId>,
    ) -> Result<Vec<Option<Committed>>> {
        self.change(AbandonFrom { site, ids }).await
    }
}

/// What a site was answered about arrivals.
#[derive(Debug)]
pub(crate) struct Asked {
    site: SiteId,
    known: HashMap<ArrivalId, Told>,
}

impl Asked {
    /// Looks up what was answered.
    pub async fn load<T: Tx>(tx: &T, site: SiteId, ids: BTreeSet<ArrivalId>) -> Result<Self> {
        let known: HashMap<_, _> = told::of(tx, site, ids.into_iter().collect()).await?.into_iter().collect();
        if known.values().any(|told| *told == Told::Deciding) {
            // A fault of the statement kind, after which each change has a transaction of its own: the second sees the answer.
            return Err(Error::internal("an arrival was asked about twice in one transaction"));
        }
        Ok(Self { site, known })
    }

    /// Tells whether an arrival was answered.
    pub fn has(&self, id: ArrivalId) -> bool {
        self.known.contains_key(&id)
    }

    /// Returns what was answered about an arrival. Without an answer, the arrival must be young enough for it to be certain
    /// that there was none.
    pub fn get(&self, id: ArrivalId, now: Timestamp) -> Result<Option<&Told>> {
        let told = self.known.get(&id);
        let made = match (told, id.made()) {
            (Some(_), _) => return Ok(told),
            (None, Some(made)) => made,
            (None, None) => {
                return Err(Error::invalid(format!("the id of arrival {id} does not say when it was made")));
            }
        };
        if made > now.after(MAX_AHEAD) {
            let site = self.site;
            return Err(Error::invalid(format!(
                "arrival {id} was made at {made}, after now: check the clock of site {site}"
            )));
        }
        if made.after(TOLD_WITHIN) < now {
            return Err(Error::invalid(format!(
                "arrival {id} was made at {made}: what became of arrivals is remembered for 7 days only"
            )));
        }
        Ok(None)
    }
}

/// Returns this site's id.
pub(crate) async fn this_site<T: Tx>(batch: &Batch<'_, T>) -> Result<SiteId> {
    let missing = || Error::new(ErrorKind::NotFound, "the catalog does not belong to a site yet");
    site::site(batch.tx).await?.map(|site| site.id).ok_or_else(missing)
}

/// Returns a store of a site; `here` is this one.
pub(crate) async fn store_of<T: Tx>(
    batch: &mut Batch<'_, T>,
    store: StoreId,
    site: SiteId,
    here: SiteId,
) -> Result<Arc<StoreRow>> {
    let unknown = || {
        let message = format!("the store {store} of site {site} is not known here yet: ask again");
        Error::new(ErrorKind::Conflict { version: None }, message)
    };
    let row = match batch.store(store).await {
        Err(error) if *error.kind() == ErrorKind::NotFound => return Err(unknown()),
        row => row?,
    };
    match row.store.site.unwrap_or(here) {
        owner if owner == site => Ok(row),
        owner if owner.0.is_nil() => Err(unknown()),
        owner => {
            let message = format!("the store {store} belongs to site {owner}, not to site {site}");
            Err(Error::new(ErrorKind::NotAllowed, message))
        }
    }
}

/// Checks a key that another site gave.
pub(crate) fn check_key(key: &str) -> Result<()> {
    match key.len() <= MAX_PATH_BYTES && key.split('/').all(|part| check_name(part).is_ok()) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "the key of a copy has at most {MAX_PATH_BYTES} bytes, in names that are separated by '/'"
        ))),
    }
}

/// Returns own arrivals that are good on disk, locked.
pub(crate) async fn own_arrivals<T: Tx>(tx: &T, ids: Vec<ArrivalId>) -> Result<HashMap<ArrivalId, Arrival>> {
    let rows = arrival::by_ids(tx, ids, Lock::Update).await?;
    let written = rows.into_iter().map(|row| row.arrival).filter(|row| row.state == ArrivalState::Written);
    Ok(written.map(|arrival| (arrival.id, arrival)).collect())
}

/// Checks that bytes lie where an own arrival has put them.
pub(crate) fn require_arrival(
    arrivals: &HashMap<ArrivalId, Arrival>,
    id: ArrivalId,
    at: (StoreId, &str),
) -> Result<()> {
    match arrivals.get(&id) {
        Some(arrival) if (arrival.store, arrival.key.as_str()) == at => Ok(()),
        _ => {
            let message = format!("no bytes of arrival {id} are settled at '{}' on store {}", at.1, at.0);
            Err(Error::new(ErrorKind::Conflict { version: None }, message))
        }
    }
}

struct PublishFrom {
    site: SiteId,
    items: Vec<RemotePublication>,
}

/// A publication that was made before or in this transaction.
pub(crate) enum Answered {
    Before(Committed),
    Now(ArrivalId, Draft),
}

impl Change for PublishFrom {
    type Draft = Vec<Result<Answered>>;
    type Out = Vec<Result<Committed>>;

    fn want(&self, wants: &mut Wants) {
        for RemotePublication { publication, store, key, .. } in &self.items {
            wants.path(&publication.path, PathLock::CHANGE, &publication.caller);
            wants.key(*store, key.clone());
        }
    }

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Self::Draft> {
        let here = this_site(batch).await?;
        let ids: BTreeSet<ArrivalId> = self.items.iter().map(|item| item.id).collect();
        let own = match self.site == here {
            true => own_arrivals(batch.tx, ids.iter().copied().collect()).await?,
            false => HashMap::new(),
        };
        let asked = Asked::load(batch.tx, self.site, ids).await?;
        let mut made = Runs::default();
        let mut decided = Vec::new();
        let mut outcomes = Vec::with_capacity(self.items.len());
        let mut of_id: HashMap<ArrivalId, usize> = HashMap::new();
        for item in &self.items {
            if let Some(at) = of_id.get(&item.id) {
                outcomes.push(Ok(Err(*at)));
                continue;
            }
            outcomes.push(match asked.get(item.id, batch.now()) {
                Err(error) => Err(error),
                Ok(Some(Told::Committed(committed))) => Ok(Ok(committed.clone())),
                Ok(Some(_)) => {
                    let message = format!("the publication {} was given up", item.id);
                    Err(Error::new(ErrorKind::Conflict { version: None }, message))
                }
                Ok(None) => {
                    let one = publish_one(batch, (self.site, here), item, &own, &mut made).await;
                    one_outcome(one)?.map(|one| {
                        of_id.insert(item.id, decided.len());
                        decided.push(Ok(one));
                        Err(decided.len() - 1)
                    })
                }
            });
        }
        made.record(batch, kind::ENTRIES_CREATED)?;
        let drafts: Vec<Draft> = version::record(batch, decided)?.into_iter().collect::<Result<_>>()?;
        let deciding: Vec<_> = of_id.into_keys().map(|id| (id, Told::Deciding)).collect();
        told::insert(batch.tx, self.site, &deciding).await?;
        let answer = |(item, outcome): (&RemotePublication, Result<_>)| match outcome? {
            Ok(committed) => Ok(Answered::Before(committed)),
            Err(at) => match drafts.get::<usize>(at) {
                Some(draft) => Ok(Answered::Now(item.id, draft.clone())),
                None => Err(Error::internal("a publication was decided and is not there")),
            },
        };
        Ok(self.items.iter().zip(outcomes).map(answer).collect())
    }

    fn told(&self, draft: &Self::Draft, written: &Written) -> Vec<LateAnswer> {
        let new = draft.iter().flatten().filter_map(|answered| match answered {
            Answered::Now(id, draft) => Some((*id, draft.to_committed(written))),
            Answered::Before(_) => None,
        });
        new.map(|(id, committed)| (self.site, id, Told::Committed(committed))).collect()
    }

    fn finish(self, draft: Self::Draft, written: &Written) -> Self::Out {
        let answer = |answered| match answered {
            Answered::Before(committed) => committed,
            Answered::Now(_, draft) => draft.to_committed(written),
        };
        draft.into_iter().map(|outcome| outcome.map(answer)).collect()
    }
}

/// Decides on a publication of one site at another, the home.
async fn publish_one<T: Tx>(
    batch: &mut Batch<'_, T>,
    (site, here): (SiteId, SiteId),
    item: &RemotePublication,
    own: &HashMap<ArrivalId, Arrival>,
    made: &mut Runs<CreatedItem>,
) -> Result<Decided> {
    let RemotePublication { publication, store, key, .. } = item;
    let Publication { caller, path, condition, parents, .. } = publication;
    if caller.is_admin() && site != here {
        let message = format!("cannot publish {path}: administrators of site {site} are ordinary users here");
        return Err(Error::new(ErrorKind::NotAllowed, message));
    }
    let (walk, base) = version::enter(batch, caller, path, PathLock::CHANGE, (*condition, *parents)).await?;
    let row = store_of(batch, *store, site, here).await?;
    check_key(key)?;
    let is_own = site == here;
    if is_own {
        require_arrival(own, item.id, (*store, key))?;
    } else if batch.is_taken(row.st, key).await? {
        let message = format!("cannot publish {path}: the store {store} has another copy at '{key}'");
        return Err(Error::new(ErrorKind::Conflict { version: base }, message));
    }
    if publication.size.get() > i64::MAX as u64 {
        return Err(Error::invalid(format!("cannot publish {path}: its size is more than 2^63 - 1 bytes")));
    }
    let object = walk.target().map(AsRef::as_ref);
    batch.require_quota(&walk.space, path.as_str(), object, publication.size).await?;
    let place = version::place(batch, caller, path, &walk, made).await?;
    let content = Content {
        version: place.version,
        size: publication.size,
        root: publication.root,
        mtime: publication.mtime,
        mode: publication.mode,
        digests: publication.digests.clone(),
    };
    let copy = FirstCopy {
        store: *store,
        st: row.st,
        is_own,
        key: key.clone(),
        reserved: Some(key),
        generation: item.generation.clone(),
    };
    version::add(batch, &actor(caller), place, base, content, copy).await
}

struct AbandonFrom {
    site: SiteId,
    ids: Vec<ArrivalId>,
}

impl Change for AbandonFrom {
    type Draft = Vec<Option<Committed>>;
    type Out = Vec<Option<Committed>>;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Self::Draft> {
        let asked = Asked::load(batch.tx, self.site, self.ids.iter().copied().collect()).await?;
        let mut abandoned = BTreeSet::new();
        let mut outcomes = Vec::with_capacity(self.ids.len());
        for id in &self.ids {
            outcomes.push(match asked.get(*id, batch.now())? {
                Some(Told::Committed(committed)) => Some(committed.clone()),
                Some(Told::Copied(_)) => {
                    let message = format!("arrival {id} is a further copy and no publication");
                    return Err(Error::invalid(message));
                }
                Some(_) => None,
                None => {
                    abandoned.insert(*id);
                    None
                }
            });
        }
        let abandoned: Vec<_> = abandoned.into_iter().map(|id| (id, Told::Abandoned)).collect();
        told::insert(batch.tx, self.site, &abandoned).await?;
        Ok(outcomes)
    }

    fn finish(self, draft: Self::Draft, _written: &Written) -> Self::Out {
        draft
    }
}
