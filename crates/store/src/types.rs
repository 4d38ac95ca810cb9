//! What goes into a store's operations and comes out of them.

use std::fmt;

use bytes::Bytes;
use percale_core::{ByteCount, ByteRange, FileMode, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, Operation, Result, StageToken, StoreKey};

/// Bytes in one piece of a read, unless asked otherwise: one group of the hash tree.
pub const DEFAULT_PIECE_SIZE: ByteCount = ByteCount::mib(1);

/// Entries in one page of a listing, unless asked otherwise.
pub const DEFAULT_PAGE_SIZE: usize = 1000;

macro_rules! opaque_text {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Box<str>);

        impl $name {
            /// Takes a text that a store gave, as it was kept in the catalog.
            pub fn new(text: impl Into<Box<str>>) -> Self {
                Self(text.into())
            }

            /// Returns the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

opaque_text!(
    /// One state of a file: another one after every change of its bytes. Compared, never interpreted. On a file system it
    /// is inode, size, mtime and ctime; in a bucket the entity tag.
    Generation
);
opaque_text!(
    /// Which file it is, from the moment it is staged on: the same after publishing and renaming, never that of another
    /// file. Kept in the intent, so that recovery knows its own file. On a file system it is inode and birth time.
    FileIdentity
);

/// What a key names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Has bytes.
    File,
    /// Has entries.
    Collection,
    /// A device, a socket, a symbolic link that leads nowhere or out of the store: neither read nor written.
    Other,
}

/// What a store knows of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Meta {
    /// What it is.
    pub kind: Kind,
    /// Number of bytes; zero unless it is a file.
    pub size: ByteCount,
    /// When the bytes were last changed, by the storage's clock.
    pub modified: Option<Timestamp>,
    /// Its permission bits, where the storage has such.
    pub mode: Option<FileMode>,
    /// See [`Generation`].
    pub generation: Option<Generation>,
    /// See [`FileIdentity`]. Listings may leave it out.
    pub identity: Option<FileIdentity>,
}

impl Meta {
    /// Makes one with nothing but a kind and a size.
    pub fn new(kind: Kind, size: ByteCount) -> Self {
        Self { kind, size, modified: None, mode: None, generation: None, identity: None }
    }

    /// Tells whether it has bytes.
    pub fn is_file(&self) -> bool {
        self.kind == Kind::File
    }
}

/// What to list. Nothing set: the entries at the top, without reserved ones.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ListOptions {
    /// The collection whose entries are listed; nothing means the top.
    pub prefix: Option<StoreKey>,
    /// Also what lies in collections below.
    pub recursive: bool,
    /// Leaves out everything up to and including this key, in the order of the listing.
    pub after: Option<StoreKey>,
    /// Most entries in a page (default [`DEFAULT_PAGE_SIZE`], at least 1).
    pub page_size: usize,
    /// Also what is [reserved](crate::RESERVED). A prefix that is itself reserved is listed in any case.
    pub reserved: bool,
}

impl Default for ListOptions {
    fn default() -> Self {
        Self { prefix: None, recursive: false, after: None, page_size: DEFAULT_PAGE_SIZE, reserved: false }
    }
}

impl ListOptions {
    /// The entries of a collection.
    pub fn of(prefix: StoreKey) -> Self {
        Self { prefix: Some(prefix), ..Self::default() }
    }

    /// Also what lies in collections below.
    #[must_use]
    pub fn recursive(mut self) -> Self {
        self.recursive = true;
        self
    }

    /// Continues after this key.
    #[must_use]
    pub fn after(mut self, key: StoreKey) -> Self {
        self.after = Some(key);
        self
    }

    /// Sets the most entries in a page.
    #[must_use]
    pub fn page_size(mut self, entries: usize) -> Self {
        self.page_size = entries.max(1);
        self
    }

    /// Also what is reserved.
    #[must_use]
    pub fn with_reserved(mut self) -> Self {
        self.reserved = true;
        self
    }
}

/// One line of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: StoreKey,
    /// What the store knows of it.
    pub meta: Meta,
}

/// A part of a listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListPage {
    /// The entries, in the listing's order.
    pub entries: Vec<Entry>,
    /// What is there but cannot have a key (a name that is not UTF-8, a path too long) or could not be looked at.
    pub skipped: Vec<Skipped>,
}

/// What a listing leaves out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Its path, made readable.
    pub path: String,
    /// Why.
    pub kind: ErrorKind,
    /// Why, in words.
    pub reason: String,
}

impl From<Skipped> for Error {
    fn from(skipped: Skipped) -> Self {
        Self::new(skipped.kind, Operation::List).on(skipped.path).detail(skipped.reason)
    }
}

/// What to read. Nothing set: the whole file, in pieces of 1 MiB.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ReadOptions {
    /// The bytes to read; what lies behind the end of the file is left out.
    pub range: Option<ByteRange>,
    /// Fails with [`crate::ErrorKind::Changed`] if the file has another generation.
    pub if_generation: Option<Generation>,
    /// Most bytes in a piece (default [`DEFAULT_PIECE_SIZE`]; between 4 KiB and 16 MiB, cut to that).
    pub piece_size: ByteCount,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { range: None, if_generation: None, piece_size: DEFAULT_PIECE_SIZE }
    }
}

impl ReadOptions {
    /// A part of the file.
    pub fn range(range: ByteRange) -> Self {
        Self { range: Some(range), ..Self::default() }
    }

    /// Only if the file has this generation.
    #[must_use]
    pub fn if_generation(mut self, generation: Option<Generation>) -> Self {
        self.if_generation = generation;
        self
    }

    /// Sets the most bytes in a piece.
    #[must_use]
    pub fn piece_size(mut self, size: ByteCount) -> Self {
        self.piece_size = size;
        self
    }

    /// Returns the most bytes in a piece, within the limits.
    pub fn piece_len(&self) -> usize {
        self.piece_size.0.clamp(4 << 10, 16 << 20) as usize
    }

    /// Returns the bytes to read of a file of this size.
    pub fn resolve(&self, size: ByteCount) -> ByteRange {
        let wanted = self.range.unwrap_or(ByteRange::whole(size));
        let start = wanted.start().min(size.0);
        ByteRange::at(start, wanted.end().min(size.0).saturating_sub(start))
    }
}

/// How to begin or continue a staged file.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StageOptions {
    /// Its name.
    pub token: StageToken,
    /// Where it will be published. Needed where [`crate::WriteCapabilities::late_key`] is not claimed.
    pub key: Option<StoreKey>,
    /// How many bytes it will have. A full disk is then found out early where the storage can.
    pub size: Option<ByteCount>,
    /// Continues what is there under this token, instead of beginning anew.
    pub resume: bool,
}

impl StageOptions {
    /// Begins a file of unknown size whose key is not known yet.
    pub fn new(token: StageToken) -> Self {
        Self { token, key: None, size: None, resume: false }
    }

    /// Names the key.
    #[must_use]
    pub fn key(mut self, key: StoreKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Announces the size.
    #[must_use]
    pub fn size(mut self, size: ByteCount) -> Self {
        self.size = Some(size);
        self
    }

    /// Continues what is there.
    #[must_use]
    pub fn resume(mut self) -> Self {
        self.resume = true;
        self
    }
}

/// A whole small file to be staged.
#[derive(Debug, Clone)]
pub struct SmallFile {
    /// Its name.
    pub token: StageToken,
    /// Where it will be published. Needed where [`crate::WriteCapabilities::late_key`] is not claimed.
    pub key: Option<StoreKey>,
    /// Its bytes.
    pub bytes: Bytes,
}

/// A file that is staged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staged {
    /// Its name.
    pub token: StageToken,
    /// How many bytes it has, or reaches to, where parts may be missing.
    pub size: ByteCount,
    /// See [`FileIdentity`].
    pub identity: Option<FileIdentity>,
}

/// What publishing does if the key is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishMode {
    /// It fails with [`crate::ErrorKind::AlreadyExists`].
    IfAbsent,
    /// It replaces the file that is there, atomically; a collection is never replaced.
    Replace,
}

/// A staged file to be published.
#[derive(Debug, Clone)]
pub struct Publish {
    /// The staged file.
    pub token: StageToken,
    /// Its key from now on.
    pub key: StoreKey,
    /// What to do if the key is taken.
    pub mode: PublishMode,
    /// The identity it had when it was staged, so that a publishing whose answer was lost may be repeated.
    pub identity: Option<FileIdentity>,
}

impl Publish {
    /// Publishes where nothing is.
    pub fn if_absent(token: StageToken, key: StoreKey, identity: Option<FileIdentity>) -> Self {
        Self { token, key, mode: PublishMode::IfAbsent, identity }
    }
}

/// A file that was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// Its key.
    pub key: StoreKey,
    /// What the store knows of it, as of now.
    pub meta: Meta,
}

/// Something to be deleted.
#[derive(Debug, Clone)]
pub struct Delete {
    /// Its key.
    pub key: StoreKey,
    /// Only if it is this file.
    pub if_identity: Option<FileIdentity>,
    /// Only if the file has this generation.
    pub if_generation: Option<Generation>,
    /// Only if it is a collection.
    pub if_collection: bool,
}

impl Delete {
    /// Deletes whatever has the key.
    pub fn key(key: StoreKey) -> Self {
        Self { key, if_identity: None, if_generation: None, if_collection: false }
    }

    /// Deletes an empty collection, and no file or link that has taken its place.
    pub fn collection(key: StoreKey) -> Self {
        Self { if_collection: true, ..Self::key(key) }
    }

    /// Only if it is this file, where one is given.
    #[must_use]
    pub fn if_identity(self, if_identity: Option<FileIdentity>) -> Self {
        Self { if_identity, ..self }
    }

    /// Only if the file has this generation, where one is given.
    #[must_use]
    pub fn if_generation(self, if_generation: Option<Generation>) -> Self {
        Self { if_generation, ..self }
    }

    /// Refuses to delete what is not meant.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Changed`] if it is another file or has another generation, [`crate::ErrorKind::NotACollection`] if it is none and is
    /// to be one.
    pub fn check(&self, there: &Meta) -> Result<()> {
        if self.if_collection && there.kind != Kind::Collection {
            return Err(Error::new(ErrorKind::NotACollection, Operation::Delete).on(&self.key));
        }
        let changed = |detail| Error::new(ErrorKind::Changed, Operation::Delete).on(&self.key).detail(detail);
        if self.if_identity.is_some() && there.identity != self.if_identity {
            return Err(changed("it is another file"));
        }
        if self.if_generation.is_some() && there.generation != self.if_generation {
            return Err(changed("the file was changed"));
        }
        Ok(())
    }
}

/// How full the storage is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// All the room there is.
    pub total: ByteCount,
    /// The room that this store may still use.
    pub free: ByteCount,
}
