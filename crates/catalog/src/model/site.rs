//! The site, its spaces, stores, grants, tokens and remembered answers.

use std::fmt;
use std::time::Duration;

use percale_core::access::{Identity, Permission, Scope, Subject};
use percale_core::ids::{EntryId, SiteId, SpaceId, StoreId, TokenId};
use percale_core::path::SpaceName;
use percale_core::{ByteCount, ObjectPath, Position, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{FoundAttribute, words};

/// Where the catalog is and how it is used.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CatalogConfig {
    /// `sqlite:/path/catalog.db` or a PostgreSQL URL (`postgres://user:password@host:port/database`).
    pub url: String,
    /// Most connections that are open at once. Default 16. SQLite uses at most 4 of them, for reading.
    pub pool_size: usize,
    /// For how long a request is repeated while the database is away. Default 25 s, which outlasts a failover.
    pub retry_budget: Duration,
    /// How long one statement of a search may take. Default 20 s.
    pub search_timeout: Duration,
    /// Most changes that wait for the writer; further callers wait for room. Default 4096.
    pub queue: usize,
    /// Most changes that are committed together. Default 256.
    pub batch: usize,
}

impl CatalogConfig {
    /// Makes a configuration with the defaults.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            pool_size: 16,
            retry_budget: Duration::from_secs(25),
            search_timeout: Duration::from_secs(20),
            queue: 4096,
            batch: 256,
        }
    }
}

/// The site that this catalog belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// Its id.
    pub id: SiteId,
    /// Its name.
    pub name: String,
    /// When the catalog was made.
    pub created: Timestamp,
}

words!(
    /// Who learns that a space exists.
    SpaceScope {
        /// Only those with a grant on its root.
        Private = "private",
        /// Everybody who signed in; what is inside is for those with a grant.
        Members = "members",
        /// Everybody: `anyone` has a grant to read.
        Public = "public",
    }
);

words!(
    /// Whether a space takes writes.
    SpaceState {
        /// Reads and writes.
        Active = "active",
        /// Only reads.
        ReadOnly = "read_only",
    }
);

/// A space that is to be made.
#[derive(Debug, Clone)]
pub struct NewSpace {
    /// Its name, the first component of its paths.
    pub name: SpaceName,
    /// Who gets `manage` on it.
    pub owner: Subject,
    /// Who learns that it exists.
    pub scope: SpaceScope,
    /// Where new objects go unless something else is said.
    pub store: Option<StoreId>,
    /// Who else gets what on it. What is said of the owner is not heard.
    pub members: Vec<(Subject, Permission)>,
    /// When attributes are taken out of the bytes of its objects.
    pub extraction: ExtractionMode,
    /// How many bytes its objects may have together; as many as there is room for if absent.
    pub quota: Option<ByteCount>,
    /// The rules of its root, as attributes.
    pub rules: Vec<FoundAttribute>,
}

words!(
    /// When attributes are taken out of the bytes of the objects of a space.
    ExtractionMode {
        /// Only when somebody asks.
        Off = "off",
        /// Soon after a version was published.
        Async = "async",
        /// Before a write is answered.
        Sync = "sync",
    }
);

impl ExtractionMode {
    /// Tells whether it is off.
    pub fn is_off(&self) -> bool {
        *self == Self::Off
    }
}

/// A space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Space {
    /// Its id.
    pub id: SpaceId,
    /// Its name.
    pub name: SpaceName,
    /// Its owner.
    pub owner: Subject,
    /// Who learns that it exists.
    pub scope: SpaceScope,
    /// Where new objects go unless something else is said.
    pub store: Option<StoreId>,
    /// Whether it takes writes.
    pub state: SpaceState,
    /// When attributes are taken out of the bytes of its objects.
    pub extraction: ExtractionMode,
    /// How many bytes its objects may have together, in their current versions.
    pub quota: Option<ByteCount>,
    /// When it was made.
    pub created: Timestamp,
    /// The site that orders it, if it is another one; then only its records change anything here.
    pub home: Option<SiteId>,
    /// Why this site's rows of another home's space cannot be trusted until a snapshot was taken.
    pub behind: Option<String>,
    /// The end of its journal.
    pub position: Position,
}

/// What is to be changed about a space; nothing means that it stays.
#[derive(Debug, Clone, Default)]
pub struct SpaceChange {
    /// The new owner, who also gets `manage`. The old owner's grant stays.
    pub owner: Option<Subject>,
    /// The new scope.
    pub scope: Option<SpaceScope>,
    /// The new default store, or none.
    pub store: Option<Option<StoreId>>,
    /// The new state.
    pub state: Option<SpaceState>,
    /// When attributes are taken out of the bytes of its objects.
    pub extraction: Option<ExtractionMode>,
    /// How many bytes its objects may have together, or as many as there is room for.
    pub quota: Option<Option<ByteCount>>,
}

words!(
    /// How a store keeps files.
    StoreLayout {
        /// Ours alone: versions never change.
        Managed = "managed",
        /// Ordinary files that others write too: one live generation each.
        Native = "native",
    }
);

words!(
    /// Whether a store is used.
    StoreState {
        /// Reads and writes.
        Online = "online",
        /// Only reads.
        ReadOnly = "read_only",
        /// Neither, for now.
        Offline = "offline",
    }
);

/// A credential, encrypted by the server before it came here. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct SealedSecret(pub Vec<u8>);

impl fmt::Debug for SealedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedSecret({} bytes)", self.0.len())
    }
}

/// A store that is to be added.
#[derive(Debug, Clone)]
pub struct NewStore {
    /// Its name, unique at the site.
    pub name: String,
    /// The driver that speaks to it, such as `posix`.
    pub connector: String,
    /// How it keeps files.
    pub layout: StoreLayout,
    /// The driver's settings, a JSON object.
    pub config: Value,
    /// Its credential.
    pub secret: Option<SealedSecret>,
}

/// A store.
#[derive(Debug, Clone, PartialEq)]
pub struct Store {
    /// Its id.
    pub id: StoreId,
    /// The site that owns it, if it is another one: then it has no settings and no credential here. The nil id stands
    /// for a site that is not known yet.
    pub site: Option<SiteId>,
    /// Its name, unique at its site.
    pub name: String,
    /// The driver; empty for a store of another site.
    pub connector: String,
    /// How it keeps files.
    pub layout: StoreLayout,
    /// The driver's settings.
    pub config: Value,
    /// Its credential.
    pub secret: Option<SealedSecret>,
    /// Whether it is used.
    pub state: StoreState,
}

/// What is to be changed about a store; nothing means that it stays.
#[derive(Debug, Clone, Default)]
pub struct StoreChange {
    /// The new state.
    pub state: Option<StoreState>,
    /// The new settings.
    pub config: Option<Value>,
    /// The new credential, or none.
    pub secret: Option<Option<SealedSecret>>,
}

/// A grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Where it was given.
    pub path: ObjectPath,
    /// The collection or object where it was given.
    pub entry: EntryId,
    /// To whom.
    pub subject: Subject,
    /// What it allows.
    pub permission: Permission,
    /// Whether it was given above the path that was asked about.
    pub inherited: bool,
}

/// What the catalog keeps of an issued token: enough to list and to revoke it, not the token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRecord {
    /// Its id.
    pub id: TokenId,
    /// Whose it is.
    pub subject: Identity,
    /// What it is restricted to.
    pub scopes: Vec<Scope>,
    /// What it is for, in its maker's words.
    pub label: Option<String>,
    /// When it was issued.
    pub issued: Timestamp,
    /// When it ends.
    pub expires: Timestamp,
    /// When it was withdrawn.
    pub revoked: Option<Timestamp>,
}

/// The answer to a request that is remembered under its idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body, as the server wrote it.
    pub body: String,
}

/// Whose idempotency key: the caller as text, and the key that it chose.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AnswerKey {
    /// The caller, as text.
    pub caller: String,
    /// The key.
    pub key: String,
}

/// What is known of an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remembered {
    /// The request is new. It counts as in progress until it is answered, or for [`crate::IN_PROGRESS_FOR`].
    First,
    /// It was answered.
    Same(Answer),
    /// It has begun and is not answered yet.
    InProgress,
    /// The key was used for another request.
    Mismatch,
}

/// Something that `fsck` found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What is wrong, one word for each kind: `orphan`, `cycle`, `root_missing`, `content_missing`, `replica_missing`,
    /// `replica_dangling`, `version_empty`, `grant_dangling`, `attribute_dangling`, `word_missing`, `tally`, `used`, `journal_gap`, `counter`, `key_twice`, `lease_missing`,
    /// `arrival_foreign`, `report_dangling`, `told_undecided`, `undecodable`.
    pub kind: &'static str,
    /// The space it is in, if it is in one.
    pub space: Option<SpaceId>,
    /// On what.
    pub subject: String,
    /// What was found and what was expected.
    pub detail: String,
}

/// What is known of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BackupInfo {
    /// The form of the archive.
    pub format: u32,
    /// The version of the schema it was taken from.
    pub schema: u32,
    /// The site.
    pub site: Option<SiteId>,
    /// The database's time when it was taken.
    pub taken: Timestamp,
    /// The number of rows in it.
    pub rows: u64,
    /// The BLAKE3 hash that it ends with, in hexadecimal.
    pub blake3: String,
    /// The positions of its spaces.
    pub positions: Vec<Position>,
}
