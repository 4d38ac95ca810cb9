//! A catalog to test with, and what most cases do with it.

use std::time::Duration;

use percale_catalog::*;
use percale_core::access::{Caller, Identity, Subject};
use percale_core::ids::{SiteId, SpaceId, StoreId, VersionId};
use percale_core::tree::RootHash;
use percale_core::{ByteCount, ObjectPath, Timestamp};
use serde_json::json;

/// Makes of each case a test on SQLite and one on PostgreSQL.
macro_rules! on_both {
    ($($case:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case($crate::site::Site::sqlite().await).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if let Some(site) = $crate::site::Site::postgres().await {
                    super::$case(site).await;
                }
            })*
        }
    };
}

/// A site with a space `lab`, a managed store and a server's lease.
pub struct Site {
    pub catalog: Catalog,
    pub config: CatalogConfig,
    pub admin: Caller,
    pub store: StoreId,
    pub lease: Lease,
    pub space: Space,
    pub _folder: Option<tempfile::TempDir>,
}

pub fn path(text: &str) -> ObjectPath {
    text.parse().unwrap()
}

pub fn user(name: &str) -> Caller {
    Caller::user(Identity::local(name))
}

pub fn subject(name: &str) -> Subject {
    Subject::User(Identity::local(name))
}

pub fn root(seed: u64) -> RootHash {
    RootHash::of(&seed.to_le_bytes())
}

pub fn new_store(name: &str, layout: StoreLayout) -> NewStore {
    NewStore {
        name: name.into(),
        connector: "memory".into(),
        layout,
        config: json!({ "v": 1 }),
        secret: None,
    }
}

/// Makes the id of an arrival that says that it was made at this time.
pub fn arrival_made(at: Timestamp) -> ArrivalId {
    let (seconds, micros) = (at.as_micros().div_euclid(1_000_000), at.as_micros().rem_euclid(1_000_000));
    let nanos = u32::try_from(micros).unwrap() * 1000;
    let at = uuid::Timestamp::from_unix(uuid::NoContext, u64::try_from(seconds).unwrap(), nanos);
    ArrivalId(uuid::Uuid::new_v7(at))
}

pub const HOUR: Duration = Duration::from_secs(3600);

impl Site {
    pub async fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = CatalogConfig::new(format!("sqlite:{}", folder.path().join("catalog.db").display()));
        Self::open(config, Some(folder)).await
    }

    pub async fn postgres() -> Option<Self> {
        let server = tokio::task::spawn_blocking(percale_testkit::postgres::shared).await.unwrap()?;
        let url = tokio::task::spawn_blocking(|| server.database()).await.unwrap();
        Some(Self::open(CatalogConfig::new(url), None).await)
    }

    pub async fn open(config: CatalogConfig, folder: Option<tempfile::TempDir>) -> Self {
        let catalog = Catalog::open(&config).await.unwrap();
        let admin = Caller::admin(Identity::local("admin"));
        catalog.init_site("alps").await.unwrap();
        let store = catalog.add_store(new_store("disk", StoreLayout::Managed)).await.unwrap().id;
        let space = NewSpace {
            name: "lab".parse().unwrap(),
            owner: subject("owner"),
            scope: SpaceScope::Private,
            store: Some(store),
            members: Vec::new(),
            extraction: ExtractionMode::Async,
            quota: None,
            rules: Vec::new(),
        };
        let space = catalog.create_space(&admin, space).await.unwrap();
        let lease =
            catalog.acquire_lease(LeaseKind::Server, "server 1", HOUR, json!({ "v": 1 })).await.unwrap();
        Self { catalog, config, admin, store, lease, space, _folder: folder }
    }

    /// A second server on the same database; on SQLite the same catalog again.
    pub async fn second(&self) -> Catalog {
        if self.is_postgres() { Catalog::open(&self.config).await.unwrap() } else { self.catalog.clone() }
    }

    pub fn is_postgres(&self) -> bool {
        self.config.url.starts_with("postgres")
    }

    /// Runs a statement on the database beside the catalog, as damage does.
    pub async fn tamper(&self, sql: &str) {
        if self.is_postgres() {
            let (client, connection) =
                tokio_postgres::connect(&self.config.url, tokio_postgres::NoTls).await.unwrap();
            let driver = tokio::spawn(connection);
            client.batch_execute(sql).await.unwrap();
            drop(client);
            driver.await.unwrap().unwrap();
        } else {
            let file = self.config.url.strip_prefix("sqlite:").unwrap();
            rusqlite::Connection::open(file).unwrap().execute_batch(sql).unwrap();
        }
    }

    /// Gives a space another home, as following it leaves it.
    pub async fn set_home(&self, space: SpaceId, home: SiteId) {
        let (space, home) = (self.uuid(space.0), self.uuid(home.0));
        self.tamper(&format!("UPDATE space SET home = {home} WHERE id = {space}")).await;
    }

    /// Adds a store of another site, as hearing of it does.
    pub async fn add_foreign_store(&self, name: &str, owner: SiteId) -> StoreId {
        let store = StoreId::new();
        let (id, owner) = (self.uuid(store.0), self.uuid(owner.0));
        self.tamper(&format!(
            "INSERT INTO store (st, id, name, connector, layout, config, state, site) \
             SELECT MAX(st) + 1, {id}, '{name}', '', 'managed', '{{}}', 'online', {owner} FROM store"
        ))
        .await;
        store
    }

    /// Writes a UUID as the database reads it in a statement.
    pub fn uuid(&self, id: uuid::Uuid) -> String {
        if self.is_postgres() { format!("'{id}'::uuid") } else { format!("x'{}'", id.simple()) }
    }

    /// Asserts that the rows agree with each other.
    pub async fn assert_sound(&self) {
        assert_eq!(self.catalog.fsck().await.unwrap(), []);
    }

    pub fn wanted(&self, at: &str, condition: Condition) -> Prepare {
        Prepare {
            caller: self.admin.clone(),
            path: path(at),
            parents: true,
            condition,
            lease: self.lease.id,
            fence: self.lease.fence,
            store: self.store,
            natural_key: true,
            token: format!("token of {at}"),
            identity: Some("8:15".into()),
            size: None,
            mtime: None,
            mode: None,
        }
    }

    pub async fn prepare(&self, wanted: Prepare) -> Result<Intent> {
        self.catalog.prepare(vec![wanted]).await.pop().unwrap()
    }

    pub async fn commit(&self, intent: &Intent, size: u64) -> Result<Committed> {
        let commit = Commit::new(intent.id, ByteCount(size), Some(root(size)));
        self.catalog.commit(vec![commit]).await.pop().unwrap()
    }

    /// Publishes an object, whatever is there.
    pub async fn put(&self, at: &str, size: u64) -> Committed {
        let intent = self.prepare(self.wanted(at, Condition::Any)).await.unwrap();
        self.commit(&intent, size).await.unwrap()
    }

    pub async fn put_many(&self, paths: &[String]) -> Vec<Committed> {
        let mut done = Vec::new();
        for paths in paths.chunks(1000) {
            let wanted = paths.iter().map(|at| self.wanted(at, Condition::Any)).collect();
            let intents: Result<Vec<_>> = self.catalog.prepare(wanted).await.into_iter().collect();
            let commits = intents.unwrap().into_iter().enumerate();
            let commits =
                commits.map(|(n, intent)| Commit::new(intent.id, ByteCount(n as u64), Some(root(n as u64))));
            let committed: Result<Vec<_>> =
                self.catalog.commit(commits.collect()).await.into_iter().collect();
            done.extend(committed.unwrap());
        }
        done
    }

    pub async fn mkdir(&self, at: &str) -> Entry {
        self.catalog.create_collection(&self.admin, &path(at), true).await.unwrap().entry
    }

    pub async fn stat(&self, at: &str) -> Result<Entry> {
        self.catalog.stat(&self.admin, &path(at)).await
    }

    pub async fn version(&self, at: &str) -> VersionId {
        self.stat(at).await.unwrap().content.unwrap().version
    }

    pub async fn rename(&self, from: &str, to: &str, overwrite: bool) -> Result<Changed> {
        let options = RenameOptions::default().overwrite(overwrite);
        self.catalog.rename(&self.admin, &path(from), &path(to), options).await
    }

    pub async fn remove(&self, at: &str, recursive: bool) -> Result<Removed> {
        let options = RemoveOptions::default().recursive(recursive);
        self.catalog.remove(&self.admin, &path(at), options).await
    }

    /// Lists the names in a collection.
    pub async fn names(&self, at: &str) -> Vec<String> {
        let page = self.catalog.list(&self.admin, &path(at), ListOptions::default()).await.unwrap();
        page.items.into_iter().map(|item| item.entry.name).collect()
    }

    /// Lists everything below a path, with a mark behind collections.
    pub async fn tree(&self, at: &str) -> Vec<String> {
        let mut options = ListOptions::default();
        options.recursive = true;
        options.limit = MAX_LIST;
        let page = self.catalog.list(&self.admin, &path(at), options).await.unwrap();
        let line = |item: &Listed| match item.entry.kind {
            EntryKind::Collection => format!("{}/", item.path),
            EntryKind::Object => item.path.to_string(),
            EntryKind::Link => format!("{} -> {}", item.path, item.entry.target.as_ref().unwrap()),
        };
        page.items.iter().map(line).collect()
    }

    /// Collects all garbage of the store, as the collector does.
    pub async fn collect(&self) -> Vec<Garbage> {
        let garbage = self.catalog.garbage(self.store, 100_000).await.unwrap();
        self.catalog.collected(garbage.clone()).await.unwrap();
        garbage
    }
}

/// Returns the kind of an error.
pub fn kind<T: std::fmt::Debug>(outcome: Result<T>) -> ErrorKind {
    outcome.expect_err("it succeeded").kind().clone()
}
