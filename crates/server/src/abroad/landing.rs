//! Bytes get their keys on own stores: the steps before the home is told.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use percale_catalog::{
    Arrival, ArrivalBody, ArrivalEnd, ArrivalId, ArrivalState, Catalog, NewArrival, Settled, Space,
    TaskHolder,
};
use percale_core::ids::{LeaseId, VersionId};
use percale_core::{ErrorCode, ObjectPath};
use percale_store::{ErrorKind, FileIdentity, Publish as PublishFile, StageToken, StoreExt, StoreKey};

use super::{Abroad, Left, lost};
use crate::error::{ApiError, Result};
use crate::publish::{StagedContent, discard_one, key, key_for_stage, may_have_natural_key, stage_again};
use crate::stores::{OpenStore, Registry};

/// Staged bytes for a space of another home.
pub(super) struct Landing {
    pub(super) space: Space,
    pub(super) path: ObjectPath,
    pub(super) version: Option<VersionId>,
    pub(super) content: StagedContent,
    pub(super) body: ArrivalBody,
}

/// Bytes that are good and durable at their key.
pub(super) struct Landed {
    pub(super) arrival: Arrival,
    pub(super) content: StagedContent,
}

/// Tells whether two publications are of the same bytes for the same name.
fn is_same_content(one: &ArrivalBody, other: &ArrivalBody) -> bool {
    match (one, other) {
        (ArrivalBody::Publication(one), ArrivalBody::Publication(other)) => {
            (one.size, one.root, &one.path) == (other.size, other.root, &other.path)
        }
        (one, other) => one == other,
    }
}

/// One of many, with its number among them.
type Numbered = (usize, Landed);

impl Abroad {
    /// Steps 2 to 6: reserved, flushed, renamed, settled.
    pub(super) async fn land(
        &self,
        holder: TaskHolder,
        wanted: Vec<Landing>,
        left: Left,
    ) -> Vec<Result<Landed>> {
        let begun = match left {
            Left::ToUpload | Left::ToHost => self.catalog.arrivals_of(holder.lease).await,
            Left::Removed => Ok(Vec::new()),
        };
        let begun = match begun {
            Ok(begun) => begun,
            Err(error) => return wanted.iter().map(|_| Err(error.clone().into())).collect(),
        };
        let begun = self.still_wanted(begun, &wanted).await;
        let mut outcomes: Vec<Option<Result<Landed>>> = wanted.iter().map(|_| None).collect();
        let mut landing: Vec<(usize, Landed)> = Vec::new();
        let (mut fresh, mut fresh_at) = (Vec::new(), Vec::new());
        let mut contents = Vec::with_capacity(wanted.len());
        for (at, one) in wanted.into_iter().enumerate() {
            let token = one.content.staged.token.to_string();
            contents.push(Some(one.content.clone()));
            match begun.get(&token) {
                Some(arrival) if arrival.state == ArrivalState::Written => {
                    outcomes[at] = Some(Ok(Landed { arrival: arrival.clone(), content: one.content }));
                }
                Some(arrival) => {
                    landing.push((at, Landed { arrival: arrival.clone(), content: one.content }))
                }
                None => {
                    fresh_at.push(at);
                    fresh.push(NewArrival {
                        lease: holder.lease,
                        fence: holder.fence,
                        space: one.space.id,
                        store: one.content.store.row.id,
                        path: may_have_natural_key(&one.content.store).then_some(one.path),
                        version: one.version,
                        token,
                        identity: one.content.staged.identity.as_ref().map(ToString::to_string),
                        body: one.body,
                    });
                }
            }
        }
        for (at, reserved) in fresh_at.into_iter().zip(self.catalog.reserve_arrivals(fresh).await) {
            let Some(content) = contents[at].take() else { continue };
            match reserved {
                Ok(arrival) => landing.push((at, Landed { arrival, content })),
                Err(error) => {
                    if left == Left::Removed {
                        discard(&content).await;
                    }
                    outcomes[at] = Some(Err(error.into()));
                }
            }
        }
        {
            let mut going = self.going.lock().unwrap_or_else(PoisonError::into_inner);
            going.extend(landing.iter().map(|(_, landed)| landed.arrival.id));
        }
        for (at, outcome) in self.to_stores(landing).await {
            outcomes[at] = Some(match outcome {
                Ok(landed) => Ok(landed),
                Err((landed, error)) => {
                    self.let_go(landed.arrival.id);
                    if left == Left::Removed {
                        self.undo(&landed.content.store, &landed.arrival).await;
                    }
                    Err(error)
                }
            });
        }
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| Err(lost()))).collect()
    }

    /// Returns the arrivals of these files, by their tokens. A host may have written a file again since: the home must not be told what
    /// it was.
    async fn still_wanted(&self, begun: Vec<Arrival>, wanted: &[Landing]) -> HashMap<String, Arrival> {
        if begun.is_empty() {
            return HashMap::new();
        }
        let wanted: HashMap<String, &ArrivalBody> =
            wanted.iter().map(|one| (one.content.staged.token.to_string(), &one.body)).collect();
        let mut same = HashMap::new();
        for arrival in begun {
            match wanted.get(&arrival.token) {
                Some(body) if is_same_content(&arrival.body, body) => {
                    same.insert(arrival.token.clone(), arrival);
                }
                // Its home may have made a version of it all the same, and is asked. One whose file may not be at its key is left to the
                // end of its lease.
                Some(_) if arrival.state == ArrivalState::Written => {
                    self.let_go(arrival.id);
                    if let Err(error) = self.tidy_at(arrival.home, vec![arrival]).await {
                        tracing::debug!(%error, "what a host has written again cannot be given up yet");
                    }
                }
                _ => {}
            }
        }
        same
    }

    /// Stages what a home refused as before. Tells whether its arrival may end.
    pub(super) async fn give_back(&self, landed: &Landed) -> bool {
        let Landed { arrival, content } = landed;
        self.let_go(arrival.id);
        let staged = async { stage_again(content, &[key(&arrival.key)?]).await };
        match staged.await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(arrival = %arrival.id, %error, "what a home refused is kept, but not where it was staged");
                false
            }
        }
    }

    /// Gives files their keys and settles their arrivals.
    async fn to_stores(
        &self,
        landing: Vec<(usize, Landed)>,
    ) -> Vec<(usize, Result<Landed, (Landed, ApiError)>)> {
        let mut by_store: HashMap<_, (Arc<OpenStore>, Vec<Numbered>)> = HashMap::new();
        for (at, landed) in landing {
            let store = landed.content.store.clone();
            by_store.entry(store.row.id).or_insert_with(|| (store, Vec::new())).1.push((at, landed));
        }
        let mut outcomes = Vec::new();
        let mut settled = Vec::new();
        for (store, group) in by_store.into_values() {
            let published = give_keys(&store, group.iter().map(|(_, landed)| landed)).await;
            for ((at, landed), outcome) in group.into_iter().zip(published) {
                match outcome {
                    Ok(wanted) => settled.push((at, landed, wanted)),
                    Err(error) => outcomes.push((at, Err((landed, error)))),
                }
            }
        }
        let wanted = settled.iter().map(|(_, _, wanted)| wanted.clone()).collect();
        for ((at, mut landed, wanted), outcome) in
            settled.into_iter().zip(self.catalog.settle_arrivals(wanted).await)
        {
            outcomes.push(match outcome {
                Ok(()) => {
                    landed.arrival.state = ArrivalState::Written;
                    if let Some(key) = wanted.key {
                        landed.arrival.key = key;
                    }
                    landed.arrival.generation = wanted.generation;
                    (at, Ok(landed))
                }
                Err(error) => (at, Err((landed, error.into()))),
            });
        }
        outcomes
    }

    async fn undo(&self, store: &OpenStore, arrival: &Arrival) {
        match undo_files(store, arrival).await {
            Ok(()) => self.end(vec![arrival.id], ArrivalEnd::Removed).await,
            Err(error) => tracing::warn!(arrival = %arrival.id, %error, "cannot undo an arrival yet"),
        }
    }
}

/// Flushes and renames files of one store, each with its own outcome: where it is and what it is told by.
async fn give_keys(store: &OpenStore, landing: impl Iterator<Item = &Landed>) -> Vec<Result<Settled>> {
    let landing: Vec<&Landed> = landing.collect();
    let mut outcomes: Vec<Result<Settled>> = landing.iter().map(|_| Err(lost())).collect();
    let mut files: Vec<(usize, PublishFile)> = Vec::with_capacity(landing.len());
    for (at, landed) in landing.iter().enumerate() {
        let staged = &landed.content.staged;
        let wanted = key_for_stage(store, &staged.token)
            .and_then(|early| early.map_or_else(|| key(&landed.arrival.key), Ok));
        match wanted {
            Ok(key) => {
                files.push((at, PublishFile::if_absent(staged.token.clone(), key, staged.identity.clone())));
            }
            Err(error) => outcomes[at] = Err(error),
        }
    }
    // Where another's file lies at the wanted key or above it, ours goes where only we write.
    for attempt in 0..2 {
        if files.is_empty() {
            break;
        }
        let wanted = files.iter().map(|(_, file)| file.clone()).collect();
        let published = match store.store.publish(wanted).await {
            Ok(published) => published,
            Err(error) => {
                let error = ApiError::from(error);
                for (at, _) in files {
                    outcomes[at] = Err(error.clone());
                }
                break;
            }
        };
        let mut taken = Vec::new();
        for ((at, mut file), outcome) in files.into_iter().zip(published) {
            let id = landing[at].arrival.id;
            outcomes[at] = match outcome {
                Ok(done) => Ok(Settled {
                    id,
                    key: Some(done.key.to_string()),
                    generation: done.meta.generation.as_ref().map(ToString::to_string),
                }),
                Err(error) if error.kind().is_taken() => {
                    let can_move = store.store.capabilities().write.late_key && attempt == 0;
                    match own_key(id) {
                        Ok(own) if can_move && file.key != own => {
                            file.key = own;
                            taken.push((at, file));
                            Err(lost())
                        }
                        _ => {
                            let detail =
                                format!("the key '{}' is taken on store {}", file.key, store.row.name);
                            Err(ApiError::new(ErrorCode::Conflict, detail))
                        }
                    }
                }
                Err(error) => Err(error.into()),
            };
        }
        files = taken;
    }
    outcomes
}

/// Undoes the arrivals of a lease that lapsed whose bytes may not be at their keys. The others are ended by
/// [`Abroad::tidy`], once nobody holds the lease.
///
/// # Errors
/// Those of the catalog and the stores; then it is done again.
pub async fn undo_reserved(catalog: &Catalog, stores: &Registry, lease: LeaseId) -> Result<()> {
    let arrivals = catalog.arrivals_of(lease).await?;
    for arrival in arrivals.into_iter().filter(|arrival| arrival.state == ArrivalState::Reserved) {
        let store = stores.get(arrival.store).await?;
        undo_files(&store, &arrival).await?;
        let ended = catalog.end_arrivals(vec![arrival.id], ArrivalEnd::Removed).await;
        ended.into_iter().collect::<Result<(), _>>()?;
    }
    Ok(())
}

/// Returns the key of an arrival whose natural key is taken.
///
/// # Errors
/// Never for an id.
pub(crate) fn own_key(arrival: ArrivalId) -> Result<StoreKey> {
    key(&format!(".percale/arrivals/{arrival}"))
}

/// Removes the bytes of an arrival from wherever they may be. Another's file at its key is told by its identity and stays.
async fn undo_files(store: &OpenStore, arrival: &Arrival) -> Result<()> {
    let token: StageToken = arrival.token.parse().map_err(|error| {
        ApiError::internal(format!("arrival {} names no staged file", arrival.id)).with_source(error)
    })?;
    discard_one(store, &token).await?;
    let own = own_key(arrival.id)?;
    if let Some(identity) = arrival.identity.as_deref().filter(|_| arrival.key != own.as_str()) {
        match store.store.delete_one(&key(&arrival.key)?, Some(FileIdentity::new(identity))).await {
            Err(error) if error.kind() != ErrorKind::Changed => return Err(error.into()),
            _ => {}
        }
    }
    store.store.delete_one(&own, None).await?;
    if let Some(early) = key_for_stage(store, &token)? {
        store.store.delete_one(&early, None).await?;
    }
    Ok(())
}

async fn discard(content: &StagedContent) {
    if let Err(error) = discard_one(&content.store, &content.staged.token).await {
        tracing::info!(token = %content.staged.token, %error, "staged bytes are left to the next take-over");
    }
}
