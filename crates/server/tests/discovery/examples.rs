//! The examples of the query language, read and answered: on SQLite, and on PostgreSQL where there is one.

use std::time::Duration;

use percale_catalog::{
    Catalog, CatalogConfig, Commit, Condition as When, ErrorKind, ExtractionMode, Lease, LeaseKind, NewSpace,
    NewStore, Prepare, SearchOptions, SpaceScope, StoreLayout,
};
use percale_core::access::{Caller, Identity, Subject};
use percale_core::attribute::Float;
use percale_core::digest::{Algorithm, Digest};
use percale_core::ids::StoreId;
use percale_core::query::Condition;
use percale_core::tree::RootHash;
use percale_core::{AttributeValue, ByteCount, Timestamp};
use percale_discovery::{cql2, parse, write};
use serde_json::json;

struct Site {
    catalog: Catalog,
    admin: Caller,
    store: StoreId,
    lease: Lease,
}

impl Site {
    async fn open(url: String) -> Self {
        let catalog = Catalog::open(&CatalogConfig::new(url)).await.unwrap();
        let admin = Caller::admin(Identity::local("admin"));
        catalog.init_site("alps").await.unwrap();
        let store = NewStore {
            name: "disk".into(),
            connector: "memory".into(),
            layout: StoreLayout::Managed,
            config: json!({ "v": 1 }),
            secret: None,
        };
        let store = catalog.add_store(store).await.unwrap().id;
        for name in ["climate", "lab"] {
            let space = NewSpace {
                name: name.parse().unwrap(),
                owner: Subject::User(Identity::local("owner")),
                scope: SpaceScope::Private,
                store: Some(store),
                members: Vec::new(),
                extraction: ExtractionMode::Off,
                quota: None,
                rules: Vec::new(),
            };
            catalog.create_space(&admin, space).await.unwrap();
        }
        let hour = Duration::from_secs(3600);
        let lease =
            catalog.acquire_lease(LeaseKind::Server, "server 1", hour, json!({ "v": 1 })).await.unwrap();
        Self { catalog, admin, store, lease }
    }

    /// Publishes an object whose header says this.
    async fn put(&self, path: &str, size: u64, found: &[(&str, AttributeValue)]) {
        let wanted = Prepare {
            caller: self.admin.clone(),
            path: path.parse().unwrap(),
            parents: true,
            condition: When::Any,
            lease: self.lease.id,
            fence: self.lease.fence,
            store: self.store,
            natural_key: true,
            token: format!("token of {path}"),
            identity: None,
            size: None,
            mtime: None,
            mode: None,
        };
        let intent = self.catalog.prepare(vec![wanted]).await.pop().unwrap().unwrap();
        let root = RootHash::of(path.as_bytes());
        let mut commit = Commit::new(intent.id, ByteCount(size), Some(root));
        commit.digests = vec![digest(path)];
        commit.found =
            Some(found.iter().map(|(name, value)| (name.parse().unwrap(), vec![value.clone()])).collect());
        self.catalog.commit(vec![commit]).await.pop().unwrap().unwrap();
    }

    async fn find(&self, condition: Condition) -> percale_catalog::Result<Vec<String>> {
        let page = self.catalog.search(&self.admin, SearchOptions::new(condition)).await?.page;
        assert_eq!(page.next, None);
        let mut found: Vec<String> = page.items.iter().map(|item| item.path.to_string()).collect();
        found.sort();
        Ok(found)
    }

    /// Finds the same by a query, by how it is written in full, and as CQL2.
    async fn found(&self, query: &str) -> Vec<String> {
        let now = Timestamp::now();
        let condition = parse(query, now).unwrap();
        let found = self.find(condition.clone()).await.unwrap_or_else(|error| panic!("{query}: {error}"));
        for same in [
            parse(&write(&condition), now).unwrap(),
            cql2::parse_json(&cql2::write(&condition).to_string(), now).unwrap(),
        ] {
            assert_eq!(self.find(same).await.unwrap(), found, "{query}");
        }
        found
    }
}

/// Some bytes that follow from the path.
fn digest(path: &str) -> Digest {
    Digest::new(Algorithm::Sha256, blake3::hash(path.as_bytes()).as_bytes().to_vec()).unwrap()
}

fn text(text: &str) -> AttributeValue {
    AttributeValue::Text(text.into())
}

fn time(text: &str) -> AttributeValue {
    AttributeValue::Time(text.parse().unwrap())
}

fn number(number: f64) -> AttributeValue {
    AttributeValue::Float(Float(number))
}

async fn each_example_finds_what_it_means(site: Site) {
    let warm = [
        ("instrument", text("MODIS")),
        ("date", time("2017-06-01T00:00:00Z")),
        ("location", text("North Pacific Ocean")),
        ("units", text("K")),
        ("var.temperature", text("float32")),
        ("var.tas.units", text("K")),
        ("dim.time", AttributeValue::Integer(365)),
        ("cloud_cover", number(5.5)),
        ("publication_date", time("2017-05-01T00:00:00Z")),
        ("coverage.start", time("2019-06-10T00:00:00Z")),
        ("coverage.end", time("2019-06-20T23:59:59.999999Z")),
        ("coverage.west", number(5.0)),
        ("coverage.east", number(10.0)),
        ("coverage.south", number(40.0)),
        ("coverage.north", number(50.0)),
        ("day_night", text("day")),
        ("level", AttributeValue::Integer(500)),
        ("format", text("zarr")),
        ("model_id", text("CMIP6-AWI")),
        ("title", text("Daily Sea Surface Temperature")),
    ];
    let cold = [
        ("instrument", text("modis")),
        ("date", time("2016-06-01T00:00:00Z")),
        ("location", text("Atlantic")),
        ("units", text("m")),
        ("var.tas.units", text("degC")),
        ("dim.time", AttributeValue::Integer(10)),
        ("cloud_cover", number(7.0)),
        ("tag", text("draft")),
        ("publication_date", time("2018-12-31T23:00:00Z")),
        ("coverage.start", time("2020-01-01T00:00:00Z")),
        ("coverage.end", time("2020-12-31T00:00:00Z")),
        ("coverage.west", number(170.0)),
        ("coverage.east", number(190.0)),
        ("coverage.south", number(-10.0)),
        ("coverage.north", number(10.0)),
        ("day_night", text("night")),
        ("level", AttributeValue::Integer(850)),
        ("format", text("netcdf4")),
        ("model_id", text("CMIP5")),
    ];
    site.put("/climate/warm.nc", 2_000_000_000, &warm).await;
    site.put("/climate/deep/cold.nc", 1000, &cold).await;
    site.put("/lab/[x]{y}.txt", 10, &[("day_night", text("dusk")), ("level", AttributeValue::Integer(600))])
        .await;
    let (warm, cold, other) = ("/climate/warm.nc", "/climate/deep/cold.nc", "/lab/[x]{y}.txt");
    let by_hash = format!("hash:sha256:{}*", &digest(cold).to_hex()[..6]);
    let cases: [(&str, &[&str]); 37] = [
        // The fifteen, of which the twelfth has the digits of what is here.
        ("instrument=MODIS", &[cold, warm]),
        ("instrument = MODIS AND date > 2017-03-01", &[warm]),
        (r#"location like "%Pacific%""#, &[warm]),
        ("ext:nc size:>1GB modified:>-7d", &[warm]),
        // Without an operator it is a word, which stands nowhere.
        ("@units=K var.temperature", &[]),
        ("@units=K var.temperature:*", &[warm]),
        ("var.tas.units:(K OR degC) dim.time:>=365", &[warm]),
        ("@cloud_cover:0..10 -tag:draft", &[warm]),
        ("publication_date:[2017 TO 2018]", &[cold, warm]),
        ("bbox:(-10,35,30,60) time:2019-06..2019-08", &[warm]),
        ("path:/climate/** NOT site:lrz", &["/climate/deep", cold, warm]),
        ("replicas<2 policy:*", &[]),
        (&by_hash, &[cold]),
        ("day_night IN (day, night) AND level BETWEEN 500 AND 850", &[cold, warm]),
        ("state:stale", &[]),
        (r#""sea surface temperature" format:zarr @model_id:CMIP6*"#, &[warm]),
        // Times and places.
        ("time:2019-06-20T12:00", &[warm]),
        ("time:2019-06-21", &[]),
        ("time>2019", &[cold]),
        ("time:{2019 TO 2021}", &[cold]),
        ("near:(11,45,100km)", &[warm]),
        ("near:(12,45,50km)", &[]),
        ("bbox:(-175,-5,-170,5)", &[cold]),
        ("bbox:(165,-5,-175,5)", &[cold]),
        ("NOT bbox:(-10,35,30,60) ext:nc", &[cold]),
        // Ranges without their bounds.
        ("level:[500 TO 850]", &[cold, warm, other]),
        ("level:{500 TO 850}", &[other]),
        ("level:[500 TO 850}", &[warm, other]),
        ("level:{500 TO *}", &[cold, other]),
        ("publication_date:{2017 TO 2018]", &[cold]),
        ("size:{10 TO 1kB]", &[cold]),
        // Patterns of paths.
        ("path:/climate/* type:object", &[warm]),
        ("path LIKE '/climate/%' type:object", &[cold, warm]),
        ("path LIKE '/CLIMATE/%.nc'", &[cold, warm]),
        ("path LIKE '/lab/[x]{_}.txt'", &[other]),
        ("path LIKE '/lab/%' NOT path LIKE '%[x]%'", &[]),
        ("path LIKE '%c' type:object", &[cold, warm]),
    ];
    for (query, wanted) in cases {
        assert_eq!(site.found(query).await, wanted, "{query}");
    }
    // The catalog knows owners of spaces, and none of entries.
    let owned = parse("owner:me state:stale", Timestamp::now()).unwrap();
    let error = site.find(owned).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidRequest), "{error}");
    assert!(error.to_string().contains("'owner'"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_example_finds_what_it_means_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("catalog.db").display());
    each_example_finds_what_it_means(Site::open(url).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_example_finds_what_it_means_on_postgres() {
    let server = tokio::task::spawn_blocking(percale_testkit::postgres::shared).await.unwrap();
    let Some(server) = server else { return };
    let url = tokio::task::spawn_blocking(|| server.database()).await.unwrap();
    each_example_finds_what_it_means(Site::open(url).await).await;
}
