//! Files that look like those of science, made from a seed: for the demo where no real ones are at hand, for tests and
//! for benchmarks.
//!
//! | module | holds |
//! |---|---|
//! | [`netcdf3`] | a writer of NetCDF classic files, good enough for `ncdump` |
//! | [`climate`] | a tree of NetCDF files like the output of a climate model |
//! | [`content`] | bytes that follow from a seed and an offset, and trees of them |
//!
//! The same seed gives the same bytes on every machine.

pub mod climate;
pub mod content;
pub mod netcdf3;
mod random;

use std::path::PathBuf;

pub use random::Random;

/// A file that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleFile {
    /// Its path below the directory that was given.
    pub path: PathBuf,
    /// Its bytes.
    pub size: u64,
}
