//! Care of the catalog: backup, restore, checks.

mod archive;
mod backup;
mod fsck;
mod restore;
