//! The server's configuration: one structure, filled from the defaults, a TOML file, the environment and flags; each
//! goes over those before it.
//!
//! An environment variable is named by its place: `PERCALE__HTTP__LISTEN` is `listen` in `[http]`. A key that nothing
//! reads is an error. A secret is not written here but in a file of its own, named by a key that ends with `_file`.

mod load;

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use percale_core::{ErrorCode, Rate};
use percale_mover::schedule::Hours;
use serde::{Deserialize, Serialize};

pub use load::{Loaded, Setting, Sources};

use crate::ApiError;

/// Everything that can be set about a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The site.
    pub site: SiteConfig,
    /// The address and its limits.
    pub http: HttpConfig,
    /// Encryption of the address.
    pub tls: TlsConfig,
    /// The database.
    pub catalog: CatalogConfig,
    /// Resumable uploads.
    pub uploads: UploadsConfig,
    /// Managed tasks.
    pub tasks: TasksConfig,
    /// What stands in the headers of files.
    pub extraction: ExtractionConfig,
    /// Bytes between sites.
    pub transfers: TransfersConfig,
    /// Other sites.
    pub federation: FederationConfig,
    /// What is logged.
    pub log: LogConfig,
}

/// `[site]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SiteConfig {
    /// The site's name, given once when its catalog is made: 1 to 63 of `a-z`, `0-9`, `.`, `_`, `-`. Default `site`.
    /// Set it before the first start, since other sites will know the site by it. Since 0.1.
    pub name: String,
    /// Where the site keeps its keys, its first token and, unless said otherwise, its database. Default:
    /// `$STATE_DIRECTORY` (set by systemd), `/var/lib/percale` for root, else `$XDG_STATE_HOME/percale` or
    /// `~/.local/state/percale`. Since 0.1.
    pub state_dir: PathBuf,
}

impl Default for SiteConfig {
    fn default() -> Self {
        Self { name: "site".into(), state_dir: default_state_dir() }
    }
}

fn default_state_dir() -> PathBuf {
    let from_env = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(directory) = from_env("STATE_DIRECTORY") {
        return directory;
    }
    if rustix::process::geteuid().is_root() {
        return "/var/lib/percale".into();
    }
    let state_home = from_env("XDG_STATE_HOME").or_else(|| Some(from_env("HOME")?.join(".local/state")));
    state_home.unwrap_or_else(|| ".".into()).join("percale")
}

/// `[http]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpConfig {
    /// Address and port; port 0 takes a free one. Default `127.0.0.1:8787`. Set it to serve other computers. Since 0.1.
    pub listen: SocketAddr,
    /// Most connections at once; further ones wait in the operating system's queue. Default 4096. Raise it with the
    /// limit of open files. Since 0.1.
    pub max_connections: usize,
    /// Within this time a client must have sent the whole header of a request; an idle connection is closed after it.
    /// Default `30s`. Since 0.1.
    #[serde(with = "humantime_serde")]
    pub header_timeout: Duration,
    /// A body, in either direction, that stands still for so long is given up. Default `60s`. Raise it for clients on
    /// links that stall longer. Since 0.1.
    #[serde(with = "humantime_serde")]
    pub stall_timeout: Duration,
    /// For how long requests in progress may go on after the server was told to stop. Default `30s`. Since 0.1.
    #[serde(with = "humantime_serde")]
    pub drain_timeout: Duration,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8787)),
            max_connections: 4096,
            header_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(30),
        }
    }
}

/// Where the certificate comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TlsMode {
    /// The site makes its own authority and certificate in the state directory.
    #[default]
    Auto,
    /// From `cert_file` and `key_file`.
    Files,
    /// No encryption; only on a loopback address.
    Off,
}

/// `[tls]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// `auto`, `files` or `off`. Default `auto`. Set `files` to use a certificate that clients know already. Since 0.1.
    pub mode: TlsMode,
    /// The certificate chain, PEM; only with mode `files`. Since 0.1.
    pub cert_file: Option<PathBuf>,
    /// The certificate's key, PEM, readable by its owner only; only with mode `files`. Since 0.1.
    pub key_file: Option<PathBuf>,
    /// Names and addresses that clients use for this server, besides `localhost` and the address listened on; only with
    /// mode `auto`. Default none. Since 0.1.
    pub names: Vec<String>,
}

/// `[catalog]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CatalogConfig {
    /// `sqlite` for `catalog.db` in the state directory, `sqlite:/path`, or `postgres://user@host:port/database`.
    /// Default `sqlite`. Set PostgreSQL to run several servers; it has to have the extension `pg_trgm`, which comes with it. A URL with a
    /// password belongs into `url_file`. Since 0.1.
    pub url: String,
    /// A file, readable by its owner only, that holds the URL instead. Default none. Since 0.1.
    pub url_file: Option<PathBuf>,
    /// Most connections to the database. Default 16. Since 0.1.
    pub pool_size: usize,
    /// For how long a request is repeated while the database is away. Default `25s`, which outlasts a failover of
    /// PostgreSQL. Since 0.1.
    #[serde(with = "humantime_serde")]
    pub retry_budget: Duration,
    /// How long one statement of a search may take; a search that needs more is refused. Default `20s`; raise it where people search
    /// millions of objects by what no index leads to, and may wait. Since 0.1.
    #[serde(with = "humantime_serde")]
    pub search_timeout: Duration,
    /// For how long journal records are kept; the last 100 000 of a space are kept in any case. Default `30d`. Raise it
    /// for readers that may be away longer. Since 0.1.
    #[serde(with = "humantime_serde")]
    pub journal_keep: Duration,
}

impl Default for CatalogConfig {
    fn default() -> Self {
        Self {
            url: "sqlite".into(),
            url_file: None,
            pool_size: 16,
            retry_budget: Duration::from_secs(25),
            search_timeout: Duration::from_secs(20),
            journal_keep: Duration::from_secs(30 * 24 * 3600),
        }
    }
}

/// `[uploads]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UploadsConfig {
    /// How long an unfinished upload is kept after its last byte, and a large object that a task has brought in part.
    /// Default `24h`. Since 0.1.
    #[serde(with = "humantime_serde")]
    pub lease: Duration,
}

impl Default for UploadsConfig {
    fn default() -> Self {
        Self { lease: Duration::from_secs(24 * 3600) }
    }
}

/// `[tasks]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TasksConfig {
    /// Tasks that this server works on at once; 0 leaves them to other servers. One user gets at most all but one of them,
    /// so that another does not wait for a long task's end. Default 4. Since 0.1.
    pub workers: usize,
    /// How long the record of a finished task is kept. Default `90d`. Since 0.1.
    #[serde(with = "humantime_serde")]
    pub keep: Duration,
}

impl Default for TasksConfig {
    fn default() -> Self {
        Self { workers: 4, keep: Duration::from_secs(90 * 24 * 3600) }
    }
}

/// `[extraction]`. Of this server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExtractionConfig {
    /// Processes that read the headers of files at once, each shut in by itself; 0 leaves them to other servers. Default 2.
    /// Since 0.1.
    pub workers: usize,
    /// How long nothing must have changed in a space that is `async`, and this server have moved no objects, before the new ones are
    /// read: who writes many is not held up, nor who copies or fetches them. Default `1s`. Since 0.1.
    #[serde(with = "humantime_serde")]
    pub delay: Duration,
    /// After how long they are read although that goes on. Default `10s`. Since 0.1.
    #[serde(with = "humantime_serde")]
    pub at_latest: Duration,
    /// And once so many records of its journal were not looked at: one for each change of an object. Default 100000. Since 0.1.
    pub at_count: u64,
    /// And once the space has grown by so many bytes meanwhile. Default 64 GiB. Since 0.1.
    pub at_bytes: u64,
    /// For how long a store or a site that did not answer is not asked, and how often what could not be read for that is tried again; less
    /// often where very much waits. Default `1m`. Since 0.1.
    #[serde(with = "humantime_serde")]
    pub again: Duration,
    /// The program that reads headers: it is run with the argument `read-headers`. Default: the one that serves. Since 0.1.
    pub program: Option<PathBuf>,
    /// Programs of the site's own for formats that nobody else knows, such as
    /// `[{ files = "*.sgy", command = ["/usr/bin/python3", "/etc/percale/segy.py"] }]` (docs/search.md). Default none. Since 0.1.
    pub programs: Vec<ExtractorConfig>,
}

impl Default for ExtractionConfig {
    fn default() -> Self {
        Self {
            workers: 2,
            delay: Duration::from_secs(1),
            at_latest: Duration::from_secs(10),
            at_count: 100_000,
            at_bytes: 64 << 30,
            again: Duration::from_secs(60),
            program: None,
            programs: Vec::new(),
        }
    }
}

/// One of `extraction.programs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtractorConfig {
    /// For which files: a pattern of their names, such as `*.sgy`. Of several programs that match, each is run.
    pub files: String,
    /// The program and its arguments; the path of a copy of the file comes last.
    pub command: Vec<String>,
    /// How many bytes of a file the copy has, from its beginning. Default 64 MiB.
    #[serde(default = "head_of_a_file")]
    pub head_bytes: u64,
    /// How long it may take with one file. Default `60s`.
    #[serde(default = "a_minute", with = "humantime_serde")]
    pub timeout: Duration,
}

fn head_of_a_file() -> u64 {
    64 << 20
}

fn a_minute() -> Duration {
    Duration::from_secs(60)
}

/// `[transfers]`. Of this server: where a site has several, each gets its share of the line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransfersConfig {
    /// How fast bytes come from other sites, and how fast they go to other sites, in each direction by itself, all tasks
    /// together: `500Mbit/s`, `60MB/s`; at least `1Mbit/s`. What clients read and write here does not count. Default none.
    /// Set it where others need the line too. Since 0.1.
    pub limit: Option<Rate>,
    /// Other limits for some hours, such as
    /// `[{ from = "08:00", to = "18:00", days = "mon-fri", limit = "500Mbit/s" }]`: the first that fits counts. Times are
    /// UTC; without `days`, every day. Default none. Since 0.1.
    pub times: Vec<Hours>,
    /// Tasks that read from one other site at once; others wait for their turn in the order in which they came. One user
    /// gets at most all but one of them. Default 3:
    /// while one plans or waits for a catalog, two keep the line and the source's disks busy; and of the 4 tasks that a
    /// server works on, one is left for another source if this one is slow. Raise it with `tasks.workers`. Since 0.1.
    pub per_source: usize,
}

impl Default for TransfersConfig {
    fn default() -> Self {
        Self { limit: None, times: Vec::new(), per_source: 3 }
    }
}

/// `[federation]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FederationConfig {
    /// Where other sites reach this server, such as `https://data.example.org`. Default: the address listened on, or the
    /// name of the host if that is every address. The site can be reached at what all of its servers name. Since 0.1.
    pub urls: Vec<String>,
    /// Whether no other site can dial this one, since a firewall is in front of it: then it dials them, and holds a
    /// session over which they reach it. Default false. Since 0.1.
    pub outgoing_only: bool,
    /// How long another site may be silent while it is asked something, before the connection is given up. Default
    /// `30s`; at least `1s`. Lower it only where links are short, since a catalog that fails over is silent for up to 25 s.
    /// Since 0.1.
    #[serde(with = "humantime_serde")]
    pub stall_timeout: Duration,
    /// The names of the sites with which copies are exchanged without encryption, every byte authenticated, such as `["baltic"]`;
    /// used only where the other site names this one too. Default none. Set it where the processors are the limit, and whoever
    /// is on the way may read what is copied, with its paths. Since 0.1.
    pub integrity_only: Vec<String>,
}

impl Default for FederationConfig {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            outgoing_only: false,
            stall_timeout: Duration::from_secs(30),
            integrity_only: Vec::new(),
        }
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    #[default]
    Auto,
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// `[log]`. The log goes to standard error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// `auto`, `text` or `json`. Default `auto`. Since 0.1.
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug`, `trace`, or directives such as `info,percale_server=debug`. Default `info`.
    /// With `debug`, each request has a line. Since 0.1.
    pub level: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Auto, level: "info".into() }
    }
}

impl Config {
    /// Checks what a type cannot say, and names everything that is wrong.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidConfiguration`].
    pub fn validate(&self) -> Result<(), ApiError> {
        let mut wrong = Vec::new();
        let mut require = |holds: bool, complaint: String| {
            if !holds {
                wrong.push(complaint);
            }
        };
        require(
            is_plain_name(&self.site.name),
            format!("site.name '{}' is not 1 to 63 of a-z, 0-9, '.', '_', '-'", self.site.name),
        );
        require(!self.site.state_dir.as_os_str().is_empty(), "site.state_dir is empty".into());
        require(self.http.max_connections > 0, "http.max_connections is 0".into());
        for (key, value) in [
            ("http.header_timeout", self.http.header_timeout),
            ("http.stall_timeout", self.http.stall_timeout),
            ("uploads.lease", self.uploads.lease),
            ("catalog.search_timeout", self.catalog.search_timeout),
        ] {
            require(value >= Duration::from_secs(1), format!("{key} is less than 1s"));
        }
        require(
            self.catalog.search_timeout <= Duration::from_secs(24 * 3600),
            "catalog.search_timeout is more than a day".into(),
        );
        for ExtractorConfig { files, command, timeout, .. } in &self.extraction.programs {
            let what = format!("extraction.programs for '{files}'");
            require(globset::Glob::new(files).is_ok(), format!("{what}: that is no pattern"));
            require(!command.is_empty(), format!("{what}: the command is empty"));
            require(*timeout >= Duration::from_secs(1), format!("{what}: the timeout is less than 1s"));
        }
        let tls = &self.tls;
        match tls.mode {
            TlsMode::Off => require(
                self.http.listen.ip().is_loopback(),
                format!("tls.mode 'off' needs a loopback address, but http.listen is {}", self.http.listen),
            ),
            TlsMode::Files => require(
                tls.cert_file.is_some() && tls.key_file.is_some(),
                "tls.mode 'files' needs tls.cert_file and tls.key_file".into(),
            ),
            TlsMode::Auto => {}
        }
        require(
            tls.mode == TlsMode::Files || (tls.cert_file.is_none() && tls.key_file.is_none()),
            "tls.cert_file and tls.key_file are only read with tls.mode 'files'".into(),
        );
        require(
            self.catalog.url_file.is_none() || self.catalog.url == CatalogConfig::default().url,
            "both catalog.url and catalog.url_file are set".into(),
        );
        require(
            self.catalog.url == "sqlite"
                || ["sqlite:", "postgres://", "postgresql://"]
                    .iter()
                    .any(|s| self.catalog.url.starts_with(s)),
            "catalog.url is none of sqlite, sqlite:/path, postgres://…".into(),
        );
        require(self.catalog.pool_size > 0, "catalog.pool_size is 0".into());
        require(self.transfers.per_source > 0, "transfers.per_source is 0".into());
        require(
            self.federation.stall_timeout >= Duration::from_secs(1),
            "federation.stall_timeout is less than 1s".into(),
        );
        for name in &self.federation.integrity_only {
            require(
                is_plain_name(name) && *name != self.site.name,
                format!("federation.integrity_only has '{name}', which is not the name of another site"),
            );
        }
        for url in &self.federation.urls {
            require(url.starts_with("https://"), format!("federation.urls has '{url}', which is not https"));
        }
        require(
            self.federation.urls.is_empty() || self.tls.mode != TlsMode::Off,
            "federation.urls names addresses, and tls.mode is 'off': other sites are served over TLS only"
                .into(),
        );
        require(
            self.federation.urls.is_empty() || !self.federation.outgoing_only,
            "federation.urls names addresses, and federation.outgoing_only says that there are none".into(),
        );
        require(
            self.log.level.parse::<tracing_subscriber::filter::Targets>().is_ok(),
            format!("log.level '{}' is not a level or list of directives", self.log.level),
        );
        if wrong.is_empty() {
            return Ok(());
        }
        Err(ApiError::new(
            ErrorCode::InvalidConfiguration,
            format!("cannot use the configuration: {}", wrong.join("; ")),
        ))
    }

    /// Returns the catalog's URL: the one set, the one in its file, or that of the embedded database.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidConfiguration`]: the file cannot be read, or others can.
    pub fn catalog_url(&self) -> Result<String, ApiError> {
        if let Some(path) = &self.catalog.url_file {
            let wrong = |why: String| {
                let detail = format!("cannot use catalog.url_file {}: {why}", path.display());
                ApiError::new(ErrorCode::InvalidConfiguration, detail)
            };
            let mode = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?.mode() & 0o777;
            if mode & 0o077 != 0 {
                return Err(wrong(format!("mode {mode:04o} opens it to others, set it to 0600")));
            }
            let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
            return Ok(text.trim().to_owned());
        }
        match self.catalog.url.as_str() {
            "sqlite" => Ok(format!("sqlite:{}", self.site.state_dir.join("catalog.db").display())),
            url => Ok(url.to_owned()),
        }
    }
}

/// Tells whether a text may name a site or store.
pub(crate) fn is_plain_name(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b))
        && name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
}
