//! How a POSIX store is set up.

use std::path::PathBuf;

use percale_core::ids::StoreId;
use serde::{Deserialize, Serialize};

/// Whose hands the files are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// Only ours: files are never changed once published, and no symbolic link is followed.
    Managed,
    /// Other programs read and write them as well: files change in place, and links inside the root are followed.
    Native,
}

/// As whom files are read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ownership {
    /// As the account of this process.
    Service {
        /// The group that files and collections get (default: as the file system decides).
        group: Option<u32>,
        /// The mode bits of files (default: 0666 less the umask, so that a default ACL of the root decides).
        file_mode: Option<u32>,
        /// The mode bits of collections (default: 0777 less the umask).
        dir_mode: Option<u32>,
    },
    /// As the caller's local account, in a session of [`super::Posix::with_account`]. Needs the right to change accounts
    /// (`CAP_SETUID`, `CAP_SETGID`).
    Mapped,
}

impl Default for Ownership {
    fn default() -> Self {
        Self::Service { group: None, file_mode: None, dir_mode: None }
    }
}

/// How a POSIX store is set up.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PosixConfig {
    /// The directory in which everything lies; absolute.
    pub root: PathBuf,
    /// Whose hands the files are in.
    pub layout: Layout,
    /// As whom files are read and written (default: the service account).
    pub ownership: Ownership,
    /// Whose root it must be, as said by `.percale/store` in it (default: not compared). Protects from taking the empty
    /// directory below an unmounted file system for a store that lost everything.
    pub store_id: Option<StoreId>,
    /// Makes the root, and claims it for `store_id`, if nobody has: for a store that is being added.
    pub create: bool,
}

impl PosixConfig {
    /// A store that must be there, as the service account.
    pub fn new(root: impl Into<PathBuf>, layout: Layout) -> Self {
        Self { root: root.into(), layout, ownership: Ownership::default(), store_id: None, create: false }
    }

    /// Sets as whom files are read and written.
    #[must_use]
    pub fn ownership(mut self, ownership: Ownership) -> Self {
        self.ownership = ownership;
        self
    }

    /// Sets whose root it must be.
    #[must_use]
    pub fn store_id(mut self, id: StoreId) -> Self {
        self.store_id = Some(id);
        self
    }

    /// Makes and claims the root if nobody has.
    #[must_use]
    pub fn create(mut self) -> Self {
        self.create = true;
        self
    }
}
