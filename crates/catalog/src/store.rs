//! The site's stores.

use percale_core::ids::StoreId;
use percale_core::path::SpaceName;

use crate::batch::{Batch, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Query, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{NewStore, Store, StoreChange, StoreState};
use crate::rows::site::{self, StoreRow};

/// Stores. These calls take no caller: the server lets only administrators make them.
impl Catalog {
    /// Adds a store.
    ///
    /// # Errors
    /// `AlreadyExists` if the name is taken, `InvalidRequest`.
    pub async fn add_store(&self, new: NewStore) -> Result<Store> {
        let added = self.change(AddStore(new)).await;
        self.notice();
        added
    }

    /// Returns the site's own stores, by name.
    pub async fn stores(&self) -> Result<Vec<Store>> {
        let mut stores = self.all_stores().await?;
        stores.retain(|store| store.site.is_none());
        Ok(stores)
    }

    /// Returns all stores that are known, also those of other sites, by name.
    pub async fn all_stores(&self) -> Result<Vec<Store>> {
        self.ask(ListStores).await
    }

    /// Changes a store.
    pub async fn update_store(&self, id: StoreId, change: StoreChange) -> Result<Store> {
        let updated = self.change(UpdateStore { id, change }).await;
        self.notice();
        updated
    }

    /// Removes a store.
    ///
    /// # Errors
    /// `NotEmpty` while replicas, intentions or garbage lie on it.
    pub async fn remove_store(&self, id: StoreId) -> Result<()> {
        let removed = self.change(RemoveStore(id)).await;
        self.notice();
        removed
    }
}

/// Checks that a store is this site's.
pub(crate) fn own(row: &StoreRow) -> Result<&Store> {
    match row.store.site {
        None => Ok(&row.store),
        Some(home) => {
            let message = format!("the store '{}' belongs to site {home}", row.store.name);
            Err(Error::new(ErrorKind::Foreign { home }, message))
        }
    }
}

struct AddStore(NewStore);

impl Change for AddStore {
    type Draft = Store;
    type Out = Store;
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Store> {
        let NewStore { name, connector, layout, config, secret } = &self.0;
        if SpaceName::parse(name).is_err() {
            let message = "the name of a store has 1 to 63 of a-z, 0-9, '.', '_' and '-'";
            return Err(Error::invalid(message));
        }
        if !config.is_object() || connector.is_empty() {
            return Err(Error::invalid("a store needs a connector and settings that are an object"));
        }
        let is_taken = |row: &StoreRow| row.store.site.is_none() && row.store.name == *name;
        if site::stores(batch.tx).await?.iter().any(is_taken) {
            let message = format!("there is a store '{name}' already");
            return Err(Error::new(ErrorKind::AlreadyExists { version: None }, message));
        }
        let store = Store {
            id: StoreId::new(),
            site: None,
            name: name.clone(),
            connector: connector.clone(),
            layout: *layout,
            config: config.clone(),
            secret: secret.clone(),
            state: StoreState::Online,
        };
        site::insert_store(batch.tx, &store).await?;
        Ok(store)
    }

    fn finish(self, store: Store, _written: &Written) -> Store {
        store
    }
}

struct ListStores;

impl Query for ListStores {
    type Out = Vec<Store>;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<Store>> {
        Ok(site::stores(tx).await?.into_iter().map(|row| row.store).collect())
    }
}

struct UpdateStore {
    id: StoreId,
    change: StoreChange,
}

impl Change for UpdateStore {
    type Draft = Store;
    type Out = Store;
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Store> {
        let Self { id, change } = self;
        let row = batch.store(*id).await?;
        let mut store = own(&row)?.clone();
        if let Some(config) = &change.config {
            if !config.is_object() {
                return Err(Error::invalid("the settings of a store are an object"));
            }
            store.config = config.clone();
        }
        if let Some(secret) = &change.secret {
            store.secret = secret.clone();
        }
        store.state = change.state.unwrap_or(store.state);
        site::update_store(batch.tx, &store).await?;
        Ok(store)
    }

    fn finish(self, store: Store, _written: &Written) -> Store {
        store
    }
}

struct RemoveStore(StoreId);

impl Change for RemoveStore {
    type Draft = ();
    type Out = ();
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<()> {
        let store = batch.store(self.0).await?;
        own(&store)?;
        if site::store_is_used(batch.tx, store.st).await? {
            let message = format!("the store '{}' still has bytes", store.store.name);
            return Err(Error::new(ErrorKind::NotEmpty, message));
        }
        site::delete_store(batch.tx, store.st).await
    }

    fn finish(self, (): (), _written: &Written) {}
}
