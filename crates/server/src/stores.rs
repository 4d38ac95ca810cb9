//! The site's stores: which there are, and how each is opened.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use percale_catalog::{Catalog, NewStore, OpenVersion, StoreLayout, StoreState};
use percale_core::ids::{Fence, SiteId, StoreId};
use percale_core::path::SpaceName;
use percale_core::{ByteCount, ErrorCode};
use percale_store::wrappers::{StackPolicy, standard_stack};
use percale_store::{Generation, SharedStore};
use percale_trust::Sealer;

use crate::connect::Existing;
use crate::error::{ApiError, Result};

/// How long a server believes what it knows of stores and spaces that another server may have changed.
const BELIEF: Duration = Duration::from_secs(2);
/// What a store's credential is sealed for.
pub const SECRET_PURPOSE: &str = "store credential";

/// A store that is open.
#[derive(Debug)]
pub struct OpenStore {
    /// Its row in the catalog.
    pub row: percale_catalog::Store,
    /// What reads and writes it.
    pub store: SharedStore,
}

impl OpenStore {
    /// Tells whether the bytes under a key stay as they are until the key is given up.
    pub fn is_managed(&self) -> bool {
        self.row.layout == StoreLayout::Managed
    }

    /// The generation that a native file must have. Files of a managed store are told by their hashes alone: a restored
    /// backup or a changed owner is no damage.
    pub fn expected_generation(&self, known: Option<&str>) -> Option<Generation> {
        known.filter(|_| !self.is_managed()).map(Generation::new)
    }

    /// Fails if the storage tells that it has no room for so many bytes and [`KEPT_FREE`] besides.
    ///
    /// # Errors
    /// `NoSpace`.
    pub async fn require_room(&self, size: ByteCount) -> Result<()> {
        if !self.store.capabilities().usage {
            return Ok(());
        }
        // What cannot be asked is found out by writing.
        let Ok(usage) = self.store.usage().await else { return Ok(()) };
        if size.0.saturating_add(KEPT_FREE.0) <= usage.free.0 {
            return Ok(());
        }
        let (name, free) = (&self.row.name, usage.free);
        let detail =
            format!("store {name} has {free} free, {KEPT_FREE} of which are kept; {size} do not fit");
        Err(ApiError::new(ErrorCode::NoSpace, detail))
    }
}

/// Kept free of what is kept for a resume: the catalog often lies on the same disk, and without room for it nothing could be
/// given up any more.
const KEPT_FREE: ByteCount = ByteCount::mib(8);

/// The stores of this site, opened when they are first needed.
pub struct Registry {
    catalog: Catalog,
    sealer: Arc<Sealer>,
    open: RwLock<HashMap<StoreId, Arc<OpenStore>>>,
    defaults: RwLock<HashMap<SpaceName, (StoreId, Instant)>>,
    /// The owners of stores of other sites. A store never changes its owner.
    foreign: RwLock<HashMap<StoreId, SiteId>>,
}

impl Registry {
    /// Makes the registry; nothing is opened yet.
    pub fn new(catalog: Catalog, sealer: Arc<Sealer>) -> Self {
        Self {
            catalog,
            sealer,
            open: RwLock::default(),
            defaults: RwLock::default(),
            foreign: RwLock::default(),
        }
    }

    /// Returns a store.
    ///
    /// # Errors
    /// `NotFound` if the site has no such store, `StoreUnavailable` if it cannot be opened.
    pub async fn get(&self, id: StoreId) -> Result<Arc<OpenStore>> {
        if let Some(store) = self.known(id) {
            return Ok(store);
        }
        let rows = self.catalog.stores().await?;
        let row = rows.into_iter().find(|row| row.id == id);
        let row =
            row.ok_or_else(|| ApiError::new(ErrorCode::NotFound, format!("no store {id} at this site")))?;
        let opened = Arc::new(self.open(row, Existing::MustBeThere).await?);
        let mut open = self.open.write().expect("no holder of this lock panics");
        Ok(open.entry(id).or_insert(opened).clone())
    }

    /// Returns the site that owns a store, if it is another one.
    ///
    /// # Errors
    /// `SiteUnavailable` if this site has not heard of such a store yet.
    pub async fn site_of(&self, id: StoreId) -> Result<Option<SiteId>> {
        if self.known(id).is_some() {
            return Ok(None);
        }
        let foreign = self.foreign.read().expect("no holder of this lock panics").get(&id).copied();
        if foreign.is_some() {
            return Ok(foreign);
        }
        let row = self.catalog.all_stores().await?.into_iter().find(|row| row.id == id);
        let row = row.filter(|row| row.site != Some(SiteId(uuid::Uuid::nil())));
        let row = row.ok_or_else(|| {
            let detail = format!("the store {id} is of a site that has not told of it yet");
            ApiError::new(ErrorCode::SiteUnavailable, detail)
        })?;
        if let Some(site) = row.site {
            self.foreign.write().expect("no holder of this lock panics").insert(id, site);
        }
        Ok(row.site)
    }

    /// Tells whether a store is of this site; one that nobody has told of yet is not.
    ///
    /// # Errors
    /// What the catalog answers.
    pub async fn is_own(&self, id: StoreId) -> Result<bool> {
        match self.site_of(id).await {
            Ok(site) => Ok(site.is_none()),
            Err(error) if error.code() == ErrorCode::SiteUnavailable => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Tells whether this site has a copy of a version that can be read.
    ///
    /// # Errors
    /// What the catalog answers.
    pub async fn have(&self, version: &OpenVersion) -> Result<bool> {
        for replica in version.replicas.iter().filter(|replica| replica.state.is_readable()) {
            if self.is_own(replica.store).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns another site that has a copy of a version that can be read, `first` if it has one.
    pub async fn other_site_of(&self, version: &OpenVersion, first: Option<SiteId>) -> Option<SiteId> {
        let mut found = None;
        for replica in version.replicas.iter().filter(|replica| replica.state.is_readable()) {
            // A store that nobody has told of yet is passed over.
            let Ok(Some(site)) = self.site_of(replica.store).await else { continue };
            if Some(site) == first {
                return first;
            }
            found = found.or(Some(site));
        }
        found
    }

    fn known(&self, id: StoreId) -> Option<Arc<OpenStore>> {
        self.open.read().expect("no holder of this lock panics").get(&id).cloned()
    }

    /// Opens every store, and returns those that could not be opened with the reason.
    pub async fn open_all(&self) -> Result<Vec<(String, ApiError)>> {
        let mut failed = Vec::new();
        for row in self.catalog.stores().await? {
            if let Err(error) = self.get(row.id).await {
                failed.push((row.name, error));
            }
        }
        Ok(failed)
    }

    /// Removes what is staged under some fences, at every store that can be reached.
    ///
    /// # Errors
    /// That of a store which could not be; something may be left there.
    pub async fn discard_fences(&self, fences: &[Fence]) -> Result<()> {
        let mut away = self.open_all().await?.into_iter().next().map(|(_, error)| error);
        for store in self.all() {
            for fence in fences {
                if let Err(error) = store.store.discard_fence(*fence).await {
                    away.get_or_insert(error.into());
                }
            }
        }
        away.map_or(Ok(()), Err)
    }

    /// Returns every store that is open.
    pub fn all(&self) -> Vec<Arc<OpenStore>> {
        self.open.read().expect("no holder of this lock panics").values().cloned().collect()
    }

    /// Puts something around an open store, such as faults that somebody wants to see met.
    pub fn wrap(&self, id: StoreId, wrap: impl FnOnce(SharedStore) -> SharedStore) {
        let mut open = self.open.write().expect("no holder of this lock panics");
        if let Some(store) = open.get_mut(&id) {
            *store = Arc::new(OpenStore { row: store.row.clone(), store: wrap(store.store.clone()) });
        }
    }

    /// Forgets what is known of a store that was changed or removed.
    pub fn forget(&self, id: StoreId) {
        self.open.write().expect("no holder of this lock panics").remove(&id);
        self.defaults.write().expect("no holder of this lock panics").retain(|_, (store, _)| *store != id);
    }

    /// Forgets which store new data of a space goes to.
    pub fn forget_space(&self, space: &SpaceName) {
        self.defaults.write().expect("no holder of this lock panics").remove(space);
    }

    /// Returns the store that new data of a space goes to: the space's own, else the site's first that takes data.
    ///
    /// # Errors
    /// `ReadOnly` if there is none that takes data.
    pub async fn for_new_data(&self, space: &SpaceName) -> Result<Arc<OpenStore>> {
        let known = self.defaults.read().expect("no holder of this lock panics").get(space).copied();
        let id = match known {
            Some((id, since)) if since.elapsed() < BELIEF => id,
            _ => self.choose(space).await?,
        };
        self.get(id).await
    }

    /// Returns the row of an own store.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn named(&self, name: &str) -> Result<percale_catalog::Store> {
        let found = self.catalog.stores().await?.into_iter().find(|store| store.name == name);
        found.ok_or_else(|| {
            let shown: String = name.chars().take(80).collect();
            ApiError::new(ErrorCode::NotFound, format!("no store of this site is named '{shown}'"))
        })
    }

    /// Returns another store of this site for data of a space that is moved off one: the space's own if it takes new data,
    /// else any that does.
    ///
    /// # Errors
    /// `ReadOnly` if there is none.
    pub async fn in_place_of(&self, space: &SpaceName, store: StoreId) -> Result<Arc<OpenStore>> {
        let wanted = self.catalog.space(&crate::app::system_caller(), space).await?.store;
        let rows = self.catalog.stores().await?;
        let taking = rows
            .iter()
            .filter(|row| row.site.is_none() && row.state == StoreState::Online && row.id != store);
        let chosen = taking.min_by_key(|row| wanted != Some(row.id)).ok_or_else(|| {
            let detail = format!("no other store of this site takes data of space {space}");
            ApiError::new(ErrorCode::ReadOnly, detail)
        })?;
        self.get(chosen.id).await
    }

    async fn choose(&self, space: &SpaceName) -> Result<StoreId> {
        let system = crate::app::system_caller();
        let wanted = self.catalog.space(&system, space).await?.store;
        let rows = self.catalog.stores().await?;
        let mut taking = rows.iter().filter(|row| row.state == StoreState::Online);
        let chosen = match wanted {
            // The default of a space is a store at its home; elsewhere new data stays near its writer.
            Some(id) if rows.iter().any(|row| row.id == id) => taking.find(|row| row.id == id),
            _ => taking.next(),
        };
        let chosen = chosen.ok_or_else(|| {
            let detail = match wanted {
                Some(id) if rows.iter().any(|row| row.id == id) => {
                    format!("the store of space {space} takes no new data")
                }
                _ => format!("no store of this site takes new data for space {space}"),
            };
            // Somebody must change something; asking again does not help.
            ApiError::new(ErrorCode::ReadOnly, detail)
        })?;
        // A row that changed (another server drained or reconfigured it) is opened anew.
        if self.known(chosen.id).is_some_and(|open| open.row != *chosen) {
            self.forget(chosen.id);
        }
        let mut defaults = self.defaults.write().expect("no holder of this lock panics");
        defaults.insert(space.clone(), (chosen.id, Instant::now()));
        Ok(chosen.id)
    }

    /// Adds a store to the site: keeps its row, makes and claims its root, and finds out whether it can be used. If it
    /// cannot, the row is removed again.
    ///
    /// # Errors
    /// `InvalidRequest` for settings that cannot be, or whatever catalog or storage answer.
    pub async fn add(&self, new: NewStore) -> Result<percale_catalog::Store> {
        let row = self.catalog.add_store(new).await?;
        match self.try_new(row.clone()).await {
            Ok(()) => Ok(row),
            Err(error) => {
                self.catalog.remove_store(row.id).await?;
                Err(error)
            }
        }
    }

    async fn try_new(&self, row: percale_catalog::Store) -> Result<()> {
        let id = row.id;
        let open = self.open(row, Existing::MayBeNew).await?;
        if open.store.capabilities().usage {
            open.store.usage().await?;
        }
        self.open.write().expect("no holder of this lock panics").insert(id, Arc::new(open));
        Ok(())
    }

    async fn open(&self, row: percale_catalog::Store, existing: Existing) -> Result<OpenStore> {
        let secret = match &row.secret {
            Some(sealed) => Some(self.sealer.open(SECRET_PURPOSE, &sealed.0)?),
            None => None,
        };
        let secret = secret.as_ref().map(|secret| secret.expose().as_slice());
        let store = crate::connect::open(&row, secret, existing).await?;
        let policy = StackPolicy::new(&row.name, &store);
        Ok(OpenStore { store: standard_stack(store, &policy), row })
    }

    /// Returns what a caller who manages the site sees of a store's room: total and free bytes.
    pub async fn usage(&self, id: StoreId) -> Option<percale_store::Usage> {
        let open = self.get(id).await.ok()?;
        if open.store.capabilities().usage { open.store.usage().await.ok() } else { None }
    }
}
