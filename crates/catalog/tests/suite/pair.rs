//! A home and a follower of its space, on different engines where there are two.

use bytes::Bytes;
use percale_catalog::*;
use percale_core::access::{Caller, Identity};
use percale_core::ids::{SiteId, SpaceId, StoreId};
use percale_core::{Position, Timestamp};
use serde_json::json;
use tokio::sync::mpsc;

use crate::site::{HOUR, Site, new_store, subject};

/// What the follower is called.
pub const OWN: &str = "baltic";
/// What the home is called.
pub const HOME: &str = "alps";

/// A home, and a site that follows its space `lab`.
pub struct Pair {
    pub home: Site,
    pub own: Site,
    pub home_id: SiteId,
    pub own_id: SiteId,
}

/// A key that no other site has.
pub fn key(id: SiteId) -> [u8; 32] {
    let mut key = [7; 32];
    key[..16].copy_from_slice(id.0.as_bytes());
    key
}

pub fn peer(id: SiteId, name: &str) -> Peer {
    Peer {
        id,
        name: name.into(),
        key: key(id),
        old_key: None,
        key_change: None,
        is_confirmed: true,
        urls: Vec::new(),
        is_dialable: true,
        issuers: Vec::new(),
        state: PeerState::Active,
        changed: Timestamp::from_micros(1),
        changed_by: id,
    }
}

/// A site of another name than that of [`Site::open`], with a space `own`, on the other engine than `site` if there is one.
pub async fn other(site: &Site, name: &str) -> Site {
    let postgres = match site.is_postgres() {
        true => None,
        false => tokio::task::spawn_blocking(percale_testkit::postgres::shared).await.unwrap(),
    };
    let (config, folder) = match postgres {
        Some(server) => {
            let url = tokio::task::spawn_blocking(|| server.database()).await.unwrap();
            (CatalogConfig::new(url), None)
        }
        None => {
            let folder = tempfile::tempdir().unwrap();
            let url = format!("sqlite:{}", folder.path().join("catalog.db").display());
            (CatalogConfig::new(url), Some(folder))
        }
    };
    let catalog = Catalog::open(&config).await.unwrap();
    let admin = Caller::admin(Identity::local("admin"));
    catalog.init_site(name).await.unwrap();
    let store = catalog.add_store(new_store("disk", StoreLayout::Managed)).await.unwrap().id;
    let space = NewSpace {
        name: "own".parse().unwrap(),
        owner: subject("owner"),
        scope: SpaceScope::Private,
        store: Some(store),
        members: Vec::new(),
        extraction: ExtractionMode::Async,
        quota: None,
        rules: Vec::new(),
    };
    let space = catalog.create_space(&admin, space).await.unwrap();
    let lease = catalog.acquire_lease(LeaseKind::Server, "server 1", HOUR, json!({ "v": 1 })).await.unwrap();
    Site { catalog, config, admin, store, lease, space, _folder: folder }
}

/// Reads a snapshot to its end.
pub async fn snapshot(catalog: &Catalog, space: SpaceId) -> Vec<Bytes> {
    let mut snapshot = catalog.snapshot(space).await.unwrap();
    let mut pieces = Vec::new();
    while let Some(piece) = snapshot.next().await.unwrap() {
        pieces.push(piece);
    }
    pieces
}

/// Makes a channel that gives these pieces.
pub fn channel(pieces: Vec<Bytes>) -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(pieces.len().max(1));
    for piece in pieces {
        sender.try_send(piece).unwrap();
    }
    receiver
}

/// Makes a snapshot, whole in form, of the lines of another.
pub fn sealed(lines: &[String]) -> Vec<Bytes> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let hash = blake3::hash(text.as_bytes()).to_hex();
    let end = format!("{{\"end\":{{\"lines\":{},\"blake3\":\"{hash}\"}}}}\n", lines.len());
    vec![Bytes::from(text), Bytes::from(end)]
}

/// Returns a site's own stores as it describes them to others.
pub async fn described(catalog: &Catalog) -> Vec<ForeignStore> {
    let stores = catalog.stores().await.unwrap().into_iter();
    stores
        .map(|store| ForeignStore {
            id: store.id,
            name: store.name,
            layout: store.layout,
            state: store.state,
        })
        .collect()
}

impl Pair {
    /// Makes a follower of the home, which stands where the home does.
    pub async fn of(home: Site) -> Self {
        let own = other(&home, OWN).await;
        let (home_id, own_id) = (home.catalog.site().await.unwrap().id, own.catalog.site().await.unwrap().id);
        own.catalog.merge_peers(vec![peer(home_id, HOME)]).await.unwrap();
        home.catalog.merge_peers(vec![peer(own_id, OWN)]).await.unwrap();
        let pair = Self { home, own, home_id, own_id };
        pair.learn().await;
        pair.take_snapshot().await.unwrap();
        pair
    }

    pub fn space(&self) -> SpaceId {
        self.home.space.id
    }

    /// Tells the follower of the home's stores.
    pub async fn learn(&self) {
        let stores = described(&self.home.catalog).await;
        self.own.catalog.learn_stores(self.home_id, stores).await.unwrap();
    }

    /// Gives a snapshot of the home to the follower.
    pub async fn take_snapshot(&self) -> Result<Position> {
        self.give(snapshot(&self.home.catalog, self.space()).await).await
    }

    /// Gives the pieces of a snapshot to the follower.
    pub async fn give(&self, pieces: Vec<Bytes>) -> Result<Position> {
        self.own.catalog.follow_snapshot(self.space(), self.home_id, HOME, OWN, channel(pieces)).await
    }

    /// Gives records to the follower.
    pub async fn follow(&self, records: Vec<Record>) -> Result<Followed> {
        self.own.catalog.follow(self.space(), self.home_id, HOME, OWN, records).await
    }

    /// Returns where the follower stands.
    pub async fn stands(&self) -> Position {
        self.own.catalog.position(self.space()).await.unwrap()
    }

    /// Returns the home's records behind a position.
    pub async fn records(&self, after: Position, limit: usize) -> Vec<Record> {
        self.home.catalog.journal(&self.home.admin, self.space(), Some(after), limit).await.unwrap()
    }

    /// Returns a record that follows where the follower stands.
    pub async fn record(&self, kind: &str, body: serde_json::Value) -> Record {
        let mut position = self.stands().await;
        position.seq += 1;
        let at = Timestamp::from_micros(1_800_000_000_000_000);
        Record { position, at, actor: "user:alice".into(), kind: kind.into(), v: 1, body }
    }

    /// Applies one record of the test's making.
    pub async fn apply(&self, kind: &str, body: serde_json::Value) -> Result<Followed> {
        let record = self.record(kind, body).await;
        self.follow(vec![record]).await
    }

    /// Follows until nothing is left, at most `limit` records at a time.
    pub async fn catch_up(&self, limit: usize) {
        loop {
            let records = self.records(self.stands().await, limit).await;
            let Some(last) = records.last().map(|record| record.position) else { return };
            let followed = self.follow(records).await.unwrap();
            assert_eq!(followed, Followed { position: last, behind: None });
        }
    }

    /// Asserts that both have the same rows, which agree with each other.
    pub async fn assert_same(&self) {
        let home = self.home.catalog.space_digest(self.space()).await.unwrap();
        let own = self.own.catalog.space_digest(self.space()).await.unwrap();
        if home != own {
            let lines = |rows: Vec<String>| rows.join("\n");
            assert_eq!(lines(self.home.tree("/lab").await), lines(self.own.tree("/lab").await));
        }
        assert_eq!(home, own);
        self.home.assert_sound().await;
        self.own.assert_sound().await;
    }

    /// Publishes an object on a store of the home.
    pub async fn put_on(&self, at: &str, store: StoreId, size: u64) -> Option<Committed> {
        let mut wanted = self.home.wanted(at, Condition::Any);
        wanted.store = store;
        let intent = self.home.prepare(wanted).await.ok()?;
        let done = self.home.commit(&intent, size).await;
        if done.is_err() {
            self.home.catalog.abandon(vec![intent.id]).await.unwrap();
        }
        done.ok()
    }
}
