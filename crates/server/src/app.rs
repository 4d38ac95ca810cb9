//! What every request and every background task shares.

use std::ops::Deref;
use std::sync::Arc;

use percale_catalog::{Catalog, Site};
use percale_core::access::{Caller, Identity};
use percale_federation::Fabric;
use percale_trust::{Sealer, ServerTls};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Config;
use crate::abroad::Abroad;
use crate::extraction::Extraction;
use crate::fetch::Unfinished;
use crate::http::auth::Authenticator;
use crate::lease::ServerLease;
use crate::plain::Plain;
use crate::publish::Publisher;
use crate::reading::Reader;
use crate::stores::Registry;
use crate::tasks::Tasks;
use crate::traffic::Traffic;
use crate::upload::Uploads;

/// The server's parts.
pub struct App {
    /// What was configured.
    pub config: Arc<Config>,
    /// The site.
    pub site: Site,
    /// Where what is.
    pub catalog: Catalog,
    /// Who is asking.
    pub authenticator: Authenticator,
    /// What the listener shows; nothing without TLS.
    pub tls: Option<Arc<ServerTls>>,
    /// Held while this server takes another key of the site up.
    pub taking_key_up: tokio::sync::Mutex<()>,
    /// The other sites.
    pub fabric: Fabric,
    /// Seals the credentials of stores for the catalog.
    pub sealer: Arc<Sealer>,
    /// The site's stores.
    pub stores: Arc<Registry>,
    /// Publishes in spaces of other homes.
    pub abroad: Arc<Abroad>,
    /// Makes staged bytes visible.
    pub publisher: Arc<Publisher>,
    /// Reads versions.
    pub reader: Arc<Reader>,
    /// Reads what stands in the headers of files.
    pub extraction: Arc<Extraction>,
    /// Resumable uploads.
    pub uploads: Arc<Uploads>,
    /// Held while each further piece of a long answer to a search is looked up, by half of the processors: the first pieces of others find
    /// one soon, and what was found is written meanwhile.
    pub pieces: Semaphore,
    /// What this server has in hand.
    pub lease: Arc<ServerLease>,
    /// The unfinished copies that this server has in hand.
    pub copying: Unfinished,
    /// Frames that go to other sites without encryption.
    pub plain: Arc<Plain>,
    /// What bytes between sites keep to.
    pub traffic: Arc<Traffic>,
    /// The managed tasks that this server works on.
    pub tasks: Tasks,
    /// Whose turn it is of the requests of each mount.
    pub turns: crate::mounts::Turns,
    /// Owns what runs in the background: whatever is spawned here ends by itself once [`App::stopping`] is cancelled. Requests that change
    /// something are here, too, and end when they are answered.
    pub background: TaskTracker,
    /// Cancelled when the server is to end: background work stops, long answers are ended.
    pub stopping: CancellationToken,
}

/// The server's parts, cheap to clone.
#[derive(Clone)]
pub struct AppState(Arc<App>);

impl AppState {
    /// Shares the parts.
    pub fn new(app: App) -> Self {
        Self(Arc::new(app))
    }
}

impl Deref for AppState {
    type Target = App;
    fn deref(&self) -> &App {
        &self.0
    }
}

/// Returns the caller that the server itself acts as, where nobody asked.
pub fn system_caller() -> Caller {
    Caller::admin(Identity::local("system"))
}
