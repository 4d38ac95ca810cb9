//! A site with a store and a space, and clients of it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use percale_api::entries::{Entry, Kind};
use percale_api::spaces::{Layout, NewSpace, NewStore};
use percale_client::put::PutOptions;
use percale_client::{Client, ClientOptions, Item, ListOptions, Outcome, Report};
use percale_core::ObjectPath;
use percale_core::tree::{RootHash, TreeHasher};
use percale_testkit::process::{Site, SiteOptions};
use percale_testkit::{postgres, wait};

/// Name of the one space.
pub const SPACE: &str = "kill";
/// Name of its store, and of the store's directory.
const STORE: &str = "disk";

/// A site under test.
pub struct World {
    pub site: Site,
    /// The database, if it is not the embedded one.
    pub postgres: Option<postgres::Server>,
    catalog: Catalog,
}

/// Where the catalog can be looked at behind the site's back.
enum Catalog {
    Sqlite(PathBuf),
    Postgres(String),
}

impl World {
    /// Starts a site and makes its store and space.
    pub async fn new(options: SiteOptions) -> Self {
        let site = Site::start(options);
        add_space(&site, STORE, SPACE).await;
        let catalog = Catalog::Sqlite(site.state_directory().join("catalog.db"));
        Self { site, postgres: None, catalog }
    }

    /// The same, with a PostgreSQL server of its own. Nothing if tests with PostgreSQL are skipped.
    pub async fn on_postgres(mut options: SiteOptions) -> Option<Self> {
        let server = postgres::Server::start()?;
        let url = server.database();
        options.catalog_url = Some(url.clone());
        let world = Self::new(options).await;
        Some(Self { postgres: Some(server), catalog: Catalog::Postgres(url), ..world })
    }

    /// The options that most tests want: uploads that nobody goes on with end soon. `PERCALE_TEST_BINARY` names another
    /// binary to test than the one just built, such as that of a release.
    pub fn options() -> SiteOptions {
        let binary = std::env::var_os("PERCALE_TEST_BINARY");
        let binary = binary.map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_percale")), PathBuf::from);
        SiteOptions::new(binary).set("uploads.lease", "\"10s\"")
    }

    /// A client that tries again, as they all do.
    pub fn client(&self) -> Client {
        Client::new(client_options(&self.site)).unwrap()
    }

    /// A client that reports the first fault.
    pub fn impatient_client(&self) -> Client {
        let mut options = client_options(&self.site);
        options.retry.give_up_after = Duration::ZERO;
        Client::new(options).unwrap()
    }

    pub fn store(&self) -> PathBuf {
        self.site.directory().join(STORE)
    }

    /// Files in the stage, with their sizes.
    pub fn staged(&self) -> Vec<(PathBuf, u64)> {
        files_below(&self.store().join(".percale/stage"))
    }

    /// Waits until nothing is left of what was given up: no staged file, no intent, no lease of an upload, no garbage. There
    /// is no other file in the store than the replicas and their trees.
    pub async fn wait_until_tidy(&self) {
        wait::until_async("a tidy site", Duration::from_secs(60), || async {
            (self.staged().is_empty() && self.left_over().await.is_empty()).then_some(())
        })
        .await;
        let known = self.replica_files().await;
        for (file, _) in files_below(&self.store()) {
            let key = file.strip_prefix(self.store()).unwrap().to_str().unwrap().to_owned();
            assert!(key == ".percale/store" || known.contains(&key), "no row names {key}");
        }
    }

    /// Rows that speak of unfinished work, and leases of servers that are gone.
    async fn left_over(&self) -> Vec<String> {
        let mut left = Vec::new();
        for (what, expected) in [
            ("intent", "0"),
            ("garbage", "0"),
            ("lease WHERE kind = 'upload'", "0"),
            ("lease WHERE kind = 'server'", "1"),
        ] {
            let found = self.catalog.column(&format!("SELECT CAST(count(*) AS TEXT) FROM {what}")).await;
            if found != [expected] {
                left.push(format!("{found:?} rows of {what} instead of {expected}"));
            }
        }
        left
    }

    /// The keys of all replicas, and of the trees that they may have.
    async fn replica_files(&self) -> BTreeSet<String> {
        let mut files = BTreeSet::from_iter(self.catalog.column("SELECT key FROM replica").await);
        let (tables, space) =
            ("replica JOIN space ON space.sp = replica.sp", self.catalog.text_of("space.id"));
        let trees = format!("SELECT {space} || '/' || CAST(replica.version AS TEXT) FROM {tables}");
        for tree in self.catalog.column(&trees).await {
            let (space, version) = tree.split_once('/').unwrap();
            let space: uuid::Uuid = space.parse().unwrap();
            files.insert(format!(".percale/trees/{space}/{version}"));
        }
        files
    }

    /// Lists every object.
    pub async fn objects(&self) -> Vec<Entry> {
        let client = self.client();
        let options = ListOptions { recursive: true, replicas: false, limit: Some(10_000) };
        let mut entries = Vec::new();
        let mut cursor = None;
        loop {
            let page = client.list(&path(""), options, cursor.as_deref()).await.unwrap();
            entries.extend(page.items.into_iter().filter(|entry| entry.kind == Kind::Object));
            match page.next {
                Some(next) => cursor = Some(next),
                None => return entries,
            }
        }
    }

    /// Hashes an object's bytes as a client gets them.
    pub async fn read(&self, path: &ObjectPath) -> RootHash {
        let mut reader =
            self.client().read(path, None).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut hasher = TreeHasher::new();
        while let Some(bytes) = reader.next().await.unwrap_or_else(|error| panic!("{path}: {error}")) {
            hasher.update(&bytes);
        }
        hasher.finish().root()
    }

    /// Runs a command of the binary as the administrator; it must succeed. Returns what it printed.
    pub fn run(&self, arguments: &[&str]) -> String {
        let output = self.site.command(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(
            output.status.success(),
            "percale {} ended with {}\n{}{}",
            arguments.join(" "),
            output.status,
            text(&output.stdout),
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    /// Every replica is hashed and every row compared with the others; nothing may be wrong.
    pub fn check_everything(&self) {
        self.run(&["check", "--deep", &format!("percale:/{SPACE}")]);
        let config = self.site.config_file();
        let output = self.site.command(&["admin", "fsck", "--config"]).arg(config).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "fsck ended with {}: {said}", output.status);
    }
}

impl Catalog {
    /// Returns the one column of text that a query has. The server goes on meanwhile.
    async fn column(&self, query: &str) -> Vec<String> {
        match self {
            Self::Sqlite(file) => {
                let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
                let catalog = rusqlite::Connection::open_with_flags(file, flags).unwrap();
                catalog.busy_timeout(Duration::from_secs(10)).unwrap();
                let mut query = catalog.prepare(query).unwrap();
                query.query_map([], |row| row.get(0)).unwrap().map(|row| row.unwrap()).collect()
            }
            Self::Postgres(url) => {
                let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
                tokio::spawn(connection);
                client.query(query, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
            }
        }
    }

    /// The expression for an id as text.
    fn text_of(&self, id: &str) -> String {
        match self {
            Self::Sqlite(_) => format!("hex({id})"),
            Self::Postgres(_) => format!("CAST({id} AS TEXT)"),
        }
    }
}

/// Adds a store and a space that uses it.
pub async fn add_space(site: &Site, store: &str, space: &str) {
    let client = Client::new(client_options(site)).unwrap();
    let root = site.directory().join(store);
    fs::create_dir_all(&root).unwrap();
    let new = NewStore {
        name: store.into(),
        connector: "posix".into(),
        layout: Layout::Managed,
        config: serde_json::json!({ "root": root }),
        secret: None,
    };
    client.add_store(&new).await.unwrap();
    let new = NewSpace { store: Some(store.into()), ..NewSpace::new(space.parse().unwrap()) };
    client.create_space(&new).await.unwrap();
}

fn client_options(site: &Site) -> ClientOptions {
    let mut options = ClientOptions::new(site.url());
    options.token = Some(site.admin_token().into());
    options.ca_file = Some(site.ca_file());
    options
}

/// A path in the space.
pub fn path(rest: &str) -> ObjectPath {
    ObjectPath::parse(&format!("/{SPACE}/{rest}")).unwrap()
}

/// Writes a local file and returns its hash.
pub fn local_file(path: &Path, seed: u64, size: u64) -> RootHash {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let content = percale_testkit::data::content::bytes(seed, usize::try_from(size).unwrap());
    fs::write(path, &content).unwrap();
    RootHash::of(&content)
}

/// What a put acknowledged.
pub type Acknowledged = Arc<Mutex<Vec<(ObjectPath, RootHash)>>>;

/// Returns options of a put, and what it will have acknowledged.
pub fn noting() -> (PutOptions, Acknowledged) {
    let noted = Acknowledged::default();
    let notes = noted.clone();
    let mut options = PutOptions::default();
    options.on_item = Some(Arc::new(move |item: &Item| {
        if let Outcome::Done { root: Some(root), .. } = &item.outcome {
            notes.lock().unwrap().push((ObjectPath::parse(&item.to).unwrap(), *root));
        }
    }));
    (options, noted)
}

/// Tells whether everything was transferred.
pub fn is_whole(report: &Report) -> bool {
    report.failed == 0 && !report.interrupted
}

pub fn files_below(folder: &Path) -> Vec<(PathBuf, u64)> {
    let mut files = Vec::new();
    // It may be removed while we look.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => files.extend(files_below(&entry.path())),
            Ok(metadata) => files.push((entry.path(), metadata.len())),
            Err(_) => {}
        }
    }
    files
}
