//! What a store can do, declared once and tested by the conformance suite.

use percale_core::ByteCount;
use percale_core::digest::Algorithm;
use serde::{Deserialize, Serialize};

/// What a store can do. What it does not claim, it answers with [`crate::ErrorKind::Unsupported`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Capabilities {
    /// Reading.
    pub read: ReadCapabilities,
    /// Staging and publishing.
    pub write: WriteCapabilities,
    /// Collections exist by themselves: they may be empty, are made and removed, and are listed.
    pub collections: bool,
    /// [`crate::Store::list`] works.
    pub list: bool,
    /// [`crate::Store::rename`] works, atomically and never over something.
    pub rename: bool,
    /// The digests that [`crate::Store::checksum`] returns without reading the file.
    pub native_digests: Vec<Algorithm>,
    /// [`crate::Meta::generation`] of a file is there, and differs after every change of it.
    pub generations: bool,
    /// [`crate::Meta::identity`] of a file is there, and is the one that its stage had.
    pub identities: bool,
    /// What was acknowledged survives a loss of power.
    pub durable: bool,
    /// [`crate::Store::usage`] works.
    pub usage: bool,
    /// The size of reads and writes that this storage handles best.
    pub block_size: ByteCount,
    /// How many operations at once this storage handles best.
    pub concurrency: u32,
}

/// What a store can do for reading.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReadCapabilities {
    /// A part can be read without what lies before it.
    pub ranges: bool,
    /// [`crate::Store::read_back`] works: what was written can be read from the medium, past what is held in memory.
    #[serde(default)]
    pub medium: bool,
}

/// What a store can do for writing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WriteCapabilities {
    /// Parts of a staged file may be written in any order, several at once, and read back. Otherwise each write begins
    /// where the one before it ended.
    pub positioned: bool,
    /// A staged file outlives the process, with its marker, and may be continued.
    pub resumable: bool,
    /// Publishing never replaces what is there, and of several at once exactly one wins.
    pub publish_if_absent: bool,
    /// Publishing may replace what is there, atomically.
    pub replace: bool,
    /// The key may be chosen at publishing. Otherwise it is named when staging begins.
    pub late_key: bool,
    /// [`crate::Store::clone_to_stage`] works: a copy made by the storage itself.
    pub clone: bool,
    /// The smallest part but the last, for storages that collect parts themselves; zero if there is no such limit.
    pub multipart_min: ByteCount,
    /// The largest file, if there is a limit below that of the key's 64-bit size.
    pub max_size: Option<ByteCount>,
}

impl Capabilities {
    /// A store that can do nothing but read whole files and write them once; connectors add to it.
    pub fn minimal() -> Self {
        Self {
            read: ReadCapabilities::default(),
            write: WriteCapabilities::default(),
            collections: false,
            list: false,
            rename: false,
            native_digests: Vec::new(),
            generations: false,
            identities: false,
            durable: false,
            usage: false,
            block_size: ByteCount::mib(1),
            concurrency: 1,
        }
    }
}
