//! Stores of other sites.

use std::collections::{HashMap, HashSet};

use percale_core::ids::{SiteId, StoreId};
use uuid::Uuid;

use crate::batch::{Batch, Written, raced};
use crate::engine::{Change, Tx};
use crate::error::{Error, Fault, Result};
use crate::model::{ForeignStore, Store, StoreLayout, StoreState};
use crate::rows::site::{self, StoreRow};

/// The owner of a store that records name before its site has told of it.
const NOBODY_YET: SiteId = SiteId(Uuid::nil());

/// A store as copies name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub st: i64,
    pub is_own: bool,
}

/// The numbers of stores, as far as they were asked for.
#[derive(Debug, Default)]
pub(super) struct Places(HashMap<StoreId, Place>);

impl Places {
    /// Finds stores, and notes those that are not known yet without their site.
    pub async fn find<T: Tx>(&mut self, tx: &T, ids: impl Iterator<Item = StoreId>) -> Result<()> {
        let news: HashSet<StoreId> = ids.filter(|id| !self.0.contains_key(id)).collect();
        if news.is_empty() {
            return Ok(());
        }
        for StoreRow { st, store } in site::stores_by_id(tx, news.iter().copied().collect()).await? {
            self.0.insert(store.id, Place { st, is_own: store.site.is_none() });
        }
        let mut news: Vec<StoreId> = news.into_iter().filter(|id| !self.0.contains_key(id)).collect();
        news.sort();
        for id in news {
            let store = Store { name: id.to_string(), state: StoreState::Offline, ..foreign(id, NOBODY_YET) };
            let st = insert(tx, &store).await?;
            self.0.insert(id, Place { st, is_own: false });
        }
        Ok(())
    }

    /// Returns a store that was found before.
    pub fn get(&self, id: StoreId) -> Result<Place> {
        self.0.get(&id).copied().ok_or_else(|| Error::internal(format!("store {id} was not looked up")))
    }
}

fn foreign(id: StoreId, site: SiteId) -> Store {
    Store {
        id,
        site: Some(site),
        name: String::new(),
        connector: String::new(),
        layout: StoreLayout::Managed,
        config: serde_json::json!({}),
        secret: None,
        state: StoreState::Online,
    }
}

/// Another server may learn of the same store at the same time.
async fn insert<T: Tx>(tx: &T, store: &Store) -> Result<i64> {
    site::insert_store(tx, store).await.map_err(|error| match error.fault() {
        Some(Fault::Unique) => raced("a store was learned of twice at once"),
        _ => error,
    })
}

/// What a site says of its stores.
pub(super) struct Learn {
    pub site: SiteId,
    pub stores: Vec<ForeignStore>,
}

impl Change for Learn {
    type Draft = ();
    type Out = ();
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<()> {
        let Self { site: owner, stores } = self;
        let is_here = site::site(batch.tx).await?.is_some_and(|here| here.id == *owner);
        if is_here || *owner == NOBODY_YET {
            return Err(Error::invalid(format!(
                "cannot learn of the stores of site {owner}: it is no other site"
            )));
        }
        let known: HashMap<StoreId, Store> =
            site::stores(batch.tx).await?.into_iter().map(|row| (row.store.id, row.store)).collect();
        let mut listed = HashSet::new();
        for store in stores {
            let claimed = match known.get(&store.id).map(|store| store.site) {
                Some(None) => Some("this site".to_owned()),
                Some(Some(site)) if site != *owner && site != NOBODY_YET => Some(format!("site {site}")),
                _ => None,
            };
            if let Some(holder) = claimed {
                let message =
                    format!("site {owner} names store {} as its own, which is of {holder}", store.id);
                return Err(Error::invalid(message));
            }
            if !listed.insert(store.id) {
                return Err(Error::invalid(format!("site {owner} names store {} twice", store.id)));
            }
        }
        for ForeignStore { id, name, layout, state } in stores {
            let new = Store { name: name.clone(), layout: *layout, state: *state, ..foreign(*id, *owner) };
            match known.get(id) {
                None => drop(insert(batch.tx, &new).await?),
                Some(before) if *before != new => site::put_foreign_store(batch.tx, &new).await?,
                Some(_) => {}
            }
        }
        // Copies may lie on a store that its site does not list any more; nothing is read from there.
        let gone =
            known.into_values().filter(|store| store.site == Some(*owner) && !listed.contains(&store.id));
        for store in gone.filter(|store| store.state != StoreState::Offline) {
            site::put_foreign_store(batch.tx, &Store { state: StoreState::Offline, ..store }).await?;
        }
        Ok(())
    }

    fn finish(self, (): (), _written: &Written) {}
}
