//! Care of the catalog: backup, restore, checks.

use std::path::Path;

use crate::catalog::Catalog;
use crate::error::{Error, Result};
use crate::model::{BackupInfo, Finding};

/// Care.
impl Catalog {
    /// Writes everything to one archive file, as of one moment, while work goes on; then reads it back and checks it.
    pub async fn backup(&self, to: &Path) -> Result<BackupInfo> {
        Err(Error::unsupported(format!("cannot write a backup to {} yet", to.display())))
    }

    /// Reads an archive and checks it. Needs no catalog.
    pub async fn verify_backup(path: &Path) -> Result<BackupInfo> {
        Err(Error::unsupported(format!("cannot check the backup {} yet", path.display())))
    }

    /// Fills this catalog, which must be empty, from an archive of either engine. The term of every space grows.
    pub async fn restore(&self, from: &Path) -> Result<BackupInfo> {
        Err(Error::unsupported(format!("cannot restore {} yet", from.display())))
    }

    /// Checks that the rows agree with each other.
    pub async fn fsck(&self) -> Result<Vec<Finding>> {
        Err(Error::unsupported("cannot check the catalog yet"))
    }
}
