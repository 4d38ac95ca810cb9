//! An orderly start and an orderly end.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use percale_catalog::{Catalog, CatalogConfig, TokenRecord};
use percale_core::ids::SiteId;
use percale_core::{ErrorCode, Timestamp};
use percale_federation::tell;
use percale_federation::{
    Fabric, Member, OwnKey, OwnSite, follow, keys as federation_keys, reverse, servers,
};
use percale_trust::admin_token::ADMIN_TOKEN_FILE;
use percale_trust::tls::{CertificateSource, SiteCertificate};
use percale_trust::{Sealer, ServerTls, SiteKey, SitePublicKey};
use rustix::fs::{FlockOperation, Mode, OFlags};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::abroad::Abroad;
use crate::app::App;
use crate::config::{Config, TlsMode};
use crate::extraction::{self, Extraction};
use crate::http::auth::{self, Authenticator};
use crate::http::observe;
use crate::lease::ServerLease;
use crate::listener::{Listener, PeerKey, serve_reversed};
use crate::plain::Plain;
use crate::publish::Publisher;
use crate::reading::Reader;
use crate::recovery::Recovery;
use crate::stores::Registry;
use crate::upload::Uploads;
use crate::{ApiError, AppState, Result};

/// Journal records of a space that are kept whatever their age.
const JOURNAL_KEEP_RECORDS: u64 = 100_000;
/// How often arrivals that nobody asks for any more are looked for.
const TIDY_EVERY: Duration = Duration::from_secs(5);
/// How often uploads are looked for whose time is over.
const UPLOADS_EVERY: Duration = Duration::from_secs(60);
/// How often old records are removed.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);
/// How often a certificate that is about to end is looked for.
const TLS_EVERY: Duration = Duration::from_secs(24 * 3600);
/// How often the metrics' memory is put in order.
const METRICS_EVERY: Duration = Duration::from_secs(5);
/// How long background work may take to notice that the server ends, and requests whose clients are gone to end.
const END_WITHIN: Duration = Duration::from_secs(10);

/// A server that runs in this process.
pub struct Running {
    app: AppState,
    address: SocketAddr,
    ca: Option<PathBuf>,
    serving: JoinHandle<()>,
    /// The renewal of the lease, which ends behind the last request that publishes.
    keeping: (CancellationToken, JoinHandle<()>),
    // Held for as long as the server runs; the operating system gives it back if the process dies.
    _lock: Option<std::os::fd::OwnedFd>,
}

impl Running {
    /// Returns what a client on this computer connects to.
    pub fn url(&self) -> String {
        let scheme = if self.app.config.tls.mode == TlsMode::Off { "http" } else { "https" };
        let host = match self.address.ip() {
            ip if ip.is_unspecified() => "localhost".to_owned(),
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        format!("{scheme}://{host}:{}", self.address.port())
    }

    /// Returns the address that is listened on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the file with the administrator's first token.
    pub fn admin_token_path(&self) -> PathBuf {
        self.app.config.site.state_dir.join(ADMIN_TOKEN_FILE)
    }

    /// Returns the file with the site's own CA, if it has one.
    pub fn ca_path(&self) -> Option<&Path> {
        self.ca.as_deref()
    }

    /// Returns the server's parts.
    pub fn app(&self) -> &AppState {
        &self.app
    }

    /// Takes no new requests, lets those in progress end, gives the lease back and closes the catalog. What does not end in time keeps the
    /// lease, as that of a dead server.
    pub async fn shutdown(self) {
        let Self { app, serving, keeping: (until, keeping), .. } = self;
        notify("STOPPING=1");
        app.stopping.cancel();
        if let Err(error) = serving.await {
            tracing::error!(%error, "the listener ended early");
        }
        app.background.close();
        let is_over = tokio::time::timeout(END_WITHIN, app.background.wait()).await;
        until.cancel();
        // Or it would take a new lease when it finds this one gone.
        if let Err(error) = keeping.await {
            tracing::error!(%error, "the renewal of the lease ended early");
        }
        match is_over {
            Ok(()) => app.lease.release().await,
            // What that has staged is removed by whoever takes the lease over.
            Err(_) => tracing::warn!(left = app.background.len(), "background work did not end in time"),
        }
        app.catalog.close().await;
        tracing::info!("stopped");
    }
}

/// Starts a server: opens what it needs, recovers what another left behind, and serves.
///
/// # Errors
/// `invalid_configuration`, or whatever keeps it from starting.
pub async fn start(config: Config) -> Result<Running> {
    config.validate()?;
    percale_trust::install_crypto_provider();
    observe::metrics();
    let config = Arc::new(config);
    let state_dir = config.site.state_dir.clone();
    let url = config.catalog_url()?;
    let is_embedded = url.starts_with("sqlite");
    let (sealer, lock) = {
        let state_dir = state_dir.clone();
        blocking(move || {
            make_state_dir(&state_dir)?;
            // Several servers may share a PostgreSQL catalog, and then also a state directory.
            let lock = if is_embedded { Some(lock(&state_dir)?) } else { None };
            SiteKey::load_or_create(&state_dir)?;
            Ok((Sealer::load_or_create(&state_dir)?, lock))
        })
        .await?
    };

    let catalog = Catalog::open(&catalog_config(&config, url)).await.map_err(|error| {
        ApiError::from(error.clone()).context(format!("cannot open the catalog ({error})"))
    })?;
    let site = catalog.init_site(&config.site.name).await.map_err(|error| {
        ApiError::new(
            ErrorCode::InvalidConfiguration,
            format!("cannot serve as site '{}': {error}", config.site.name),
        )
    })?;
    let own_row = catalog.peers().await?.into_iter().find(|peer| peer.id == site.id);
    let announced = own_row.map(|row| SitePublicKey(row.key));
    let retired = catalog.retired_keys().await?;
    let (authenticator, certificate, mut own, key) = {
        let (directory, config, id) = (state_dir.clone(), config.clone(), site.id);
        let (authenticator, admin, tls, own, key) = blocking(move || {
            let key = federation_keys::key_at_start(&directory, announced)?;
            prepare(&directory, &config, key, &retired, id)
        })
        .await?;
        if let Some(record) = admin
            && let Err(error) = catalog.record_token(record).await
        {
            // The next start makes and records a new one.
            let _ = std::fs::remove_file(state_dir.join(ADMIN_TOKEN_FILE));
            return Err(ApiError::from(error).context("cannot record the administrator's token"));
        }
        (authenticator, tls.map(Arc::new), own, key)
    };
    authenticator.refresh(&catalog, Timestamp::EPOCH).await?;
    let listener = Listener::bind(&config.http, certificate.as_ref().map(|tls| tls.configs())).await?;
    let plain = Arc::new(Plain::new(&config.federation));
    let listener = listener.with_plain(plain.clone());
    let address = listener.address()?;
    own.urls = reachable_at(&config, address);

    let sealer = Arc::new(sealer);
    let stores = Arc::new(Registry::new(catalog.clone(), sealer.clone()));
    for (name, error) in stores.open_all().await? {
        tracing::warn!(store = name, %error, "a store cannot be opened; what lies on it is away");
    }
    let holder = format!("{} pid {}", host_name(), std::process::id());
    let recovery = Recovery::new(catalog.clone(), stores.clone(), holder.clone());
    if is_embedded {
        recovery.at_start().await?;
    }
    let body = servers::lease_body(&own.urls);
    let lease = Arc::new(ServerLease::acquire(catalog.clone(), holder, body).await?);
    let fabric = Fabric::open(own, key, catalog.clone()).await?;
    let abroad = Arc::new(Abroad::new(catalog.clone(), fabric.clone(), lease.clone()));
    let extraction = Arc::new(Extraction::new(&config.extraction));
    let publisher = Publisher::new(catalog.clone(), lease.clone(), abroad.clone(), extraction.clone());
    let reader = Arc::new(Reader::new(catalog.clone(), stores.clone(), fabric.clone(), lease.clone()));
    let uploads =
        Arc::new(Uploads::new(catalog.clone(), stores.clone(), publisher.clone(), config.uploads.lease));
    let ca = certificate.as_ref().and_then(|tls| tls.ca_file());
    let app = AppState::new(App {
        config: config.clone(),
        site,
        catalog,
        authenticator,
        tls: certificate,
        taking_key_up: tokio::sync::Mutex::default(),
        fabric,
        sealer,
        stores,
        abroad,
        publisher,
        reader,
        extraction,
        uploads,
        pieces: Semaphore::new(
            std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2)),
        ),
        lease,
        copying: crate::fetch::Unfinished::default(),
        plain,
        traffic: Arc::new(crate::traffic::Traffic::new(&config.transfers)),
        tasks: crate::tasks::Tasks::default(),
        turns: crate::mounts::Turns::default(),
        background: TaskTracker::new(),
        stopping: CancellationToken::new(),
    });
    spawn_background(&app, recovery.under(app.lease.clone()));
    let (keeper, until) = (app.lease.clone(), CancellationToken::new());
    let ends = until.clone();
    let keeping = (until, tokio::spawn(async move { keeper.keep(ends).await }));
    let router = crate::http::router(app.clone());
    spawn_federation(&app, &router);
    let serving = tokio::spawn(listener.serve(router, app.stopping.clone()));
    notify("READY=1");
    tracing::info!(site = app.site.name, %address, version = env!("CARGO_PKG_VERSION"), "serving");
    Ok(Running { app, address, ca, serving, keeping, _lock: lock })
}

/// Tells the service manager, if one asked to be told (`sd_notify(3)`).
fn notify(state: &str) {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let Ok(name) = std::env::var("NOTIFY_SOCKET") else { return };
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!(%error, state, "cannot tell the service manager");
    }
}

fn spawn_background(app: &AppState, recovery: Recovery) {
    app.background.spawn(recovery.run(app.stopping.clone()));
    app.background.spawn(auth::follow_revocations(app.clone()));
    app.background.spawn(crate::tasks::run(app.clone()));
    app.background.spawn(extraction::run(app.clone()));
    every(app, PRUNE_EVERY, |app| async move {
        let pruned =
            match app.catalog.prune_journal(app.config.catalog.journal_keep, JOURNAL_KEEP_RECORDS).await {
                Ok(records) => app.catalog.prune(app.config.tasks.keep).await.map(|rows| (records, rows)),
                Err(error) => Err(error),
            };
        match pruned {
            Ok((records, rows)) => tracing::debug!(records, rows, "old rows removed"),
            Err(error) => tracing::warn!(%error, "cannot remove old rows; will try again"),
        }
    });
    every(app, UPLOADS_EVERY, |app| async move {
        if let Err(error) = app.uploads.forget_lapsed().await {
            tracing::debug!(%error, "cannot look after uploads; will try again");
        }
    });
    every(app, METRICS_EVERY, |_| async {
        if let Some(metrics) = observe::metrics() {
            metrics.run_upkeep();
        }
    });
    app.background.spawn(crate::keys::keep(app.clone()));
    if let Some(certificate) = app.tls.clone() {
        every(app, TLS_EVERY, move |_| {
            let certificate = certificate.clone();
            async move {
                if let Err(error) = blocking(move || Ok(certificate.refresh(Timestamp::now())?)).await {
                    tracing::error!(%error, "cannot renew the certificate; the old one stays in use");
                }
            }
        });
    }
}

fn spawn_federation(app: &AppState, router: &Router) {
    let (fabric, stopping) = (app.fabric.clone(), app.stopping.clone());
    app.background.spawn(follow::run(fabric.clone(), app.background.clone(), stopping.clone()));
    app.background.spawn(tell::run(fabric.clone(), stopping.clone()));
    every(app, TIDY_EVERY, |app| async move {
        if let Err(error) = app.abroad.tidy().await {
            tracing::warn!(%error, "cannot look after arrivals; will try again");
        }
    });
    if !fabric.own().is_dialable() {
        let (limits, router, ends) = (app.config.http.clone(), router.clone(), stopping.clone());
        let known = fabric.clone();
        let serve = move |connection, member: Arc<Member>| {
            let peer = PeerKey(SitePublicKey(member.key));
            let serving = serve_reversed(router.clone(), limits.clone(), connection, peer, ends.clone());
            let known = known.clone();
            async move {
                tokio::select! {
                    () = serving => {}
                    () = known.until_key_ends(peer.0) => {}
                }
            }
        };
        app.background.spawn(reverse::dial_all(fabric, serve, app.background.clone(), stopping));
    }
}

/// Returns where other sites reach this one; nothing if they cannot.
fn reachable_at(config: &Config, address: SocketAddr) -> Vec<String> {
    if config.federation.outgoing_only || config.tls.mode == TlsMode::Off {
        return Vec::new();
    }
    if !config.federation.urls.is_empty() {
        return config.federation.urls.clone();
    }
    let host = match address.ip() {
        ip if ip.is_unspecified() => host_name(),
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    vec![format!("https://{host}:{}", address.port())]
}

/// Does something again and again, first after one period.
fn every<F>(app: &AppState, period: Duration, work: impl Fn(AppState) -> F + Send + 'static)
where
    F: Future<Output = ()> + Send,
{
    let app = app.clone();
    app.clone().background.spawn(async move {
        loop {
            tokio::select! {
                () = app.stopping.cancelled() => return,
                () = tokio::time::sleep(period) => {}
            }
            work(app.clone()).await;
        }
    });
}

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => Err(ApiError::internal("blocking work ended early").with_source(error)),
    }
}

fn catalog_config(config: &Config, url: String) -> CatalogConfig {
    let mut catalog = CatalogConfig::new(url);
    catalog.pool_size = config.catalog.pool_size;
    catalog.retry_budget = config.catalog.retry_budget;
    catalog.search_timeout = config.catalog.search_timeout;
    catalog
}

fn make_state_dir(path: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| {
        let detail = format!("cannot make the state directory {}: {error}", path.display());
        ApiError::new(ErrorCode::InvalidConfiguration, detail)
    })
}

/// Keeps a second server away from an embedded catalog: both would take themselves for the only one.
fn lock(state_dir: &Path) -> Result<std::os::fd::OwnedFd> {
    let path = state_dir.join("server.lock");
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    let wrong = |error: rustix::io::Errno| {
        let why = match error {
            rustix::io::Errno::WOULDBLOCK => "another server uses this state directory".to_owned(),
            error => error.to_string(),
        };
        let detail = format!("cannot lock {}: {why}", path.display());
        ApiError::new(ErrorCode::InvalidConfiguration, detail)
    };
    let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(wrong)?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(wrong)?;
    Ok(file)
}

type Prepared = (Authenticator, Option<TokenRecord>, Option<ServerTls>, OwnSite, OwnKey);

fn prepare(
    state_dir: &Path,
    config: &Config,
    key: SiteKey,
    retired: &[([u8; 32], Timestamp)],
    site: SiteId,
) -> Result<Prepared> {
    let now = Timestamp::now();
    let (issuer, verifier) = crate::keys::tokens(&key, None, retired, site);
    let record = crate::keys::admin_token(state_dir, &issuer, &verifier)?;
    let source = match config.tls.mode {
        TlsMode::Off => None,
        TlsMode::Files => match (&config.tls.cert_file, &config.tls.key_file) {
            (Some(certificate), Some(key)) => {
                Some(CertificateSource::Files { certificate: certificate.clone(), key: key.clone() })
            }
            _ => {
                let detail = "tls.mode 'files' needs tls.cert_file and tls.key_file";
                return Err(ApiError::new(ErrorCode::InvalidConfiguration, detail));
            }
        },
        TlsMode::Auto => Some(CertificateSource::OwnCa {
            directory: state_dir.join("tls"),
            names: certificate_names(config),
        }),
    };
    let certificate = SiteCertificate::new(&key, site, now)?;
    let tls = source.map(|source| ServerTls::load(source, Some(certificate.clone()), now)).transpose()?;
    let name = config.site.name.clone();
    let (urls, state_dir) = (Vec::new(), state_dir.to_owned());
    let stall_timeout = config.federation.stall_timeout;
    let integrity_only = config.federation.integrity_only.clone();
    let own = OwnSite { id: site, name, urls, state_dir, stall_timeout, integrity_only };
    Ok((Authenticator::new(issuer, verifier), record, tls, own, OwnKey { key, certificate }))
}

fn certificate_names(config: &Config) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let listen = config.http.listen.ip();
    if listen.is_unspecified() {
        names.push(host_name());
    } else {
        names.push(listen.to_string());
    }
    names.extend(config.tls.names.iter().cloned());
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
