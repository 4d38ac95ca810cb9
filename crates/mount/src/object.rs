//! A file of the mount: what is known of its content, and how it is open.

use std::sync::Arc;
use std::time::SystemTime;

use fuser::BackingId;
use percale_api::attributes::AttributeChange;
use percale_api::entries::Content;
use percale_core::{FileMode, Timestamp};

use crate::changes::Staged;
use crate::session::{Place, StoreNumber};

/// A file.
#[derive(Debug, Default)]
pub struct Object {
    /// The current version, if it has one.
    pub content: Option<Content>,
    /// A good copy of it on a store that this host sees.
    pub copy: Option<LocalCopy>,
    /// What is written and not published yet.
    pub work: Option<Box<Work>>,
    /// What was written before that, if it is still on its way to the site and cannot be taken back.
    pub sent: Option<Box<Work>>,
    /// How programs have it open.
    pub open: Open,
    /// Its permission bits, where they are known: as programs here or the catalog said last.
    pub mode: Option<FileMode>,
    /// When its attributes were last changed through this mount.
    pub changed: Option<SystemTime>,
    /// What people said of it before it was in the catalog, which is told when it is.
    pub said: Option<AttributeChange>,
}

/// A copy that this host sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalCopy {
    /// The store.
    pub store: StoreNumber,
    /// Where it lies there.
    pub key: Box<str>,
}

/// A file that programs write: a staged one, or the copy on a native store itself.
#[derive(Debug, Clone)]
pub struct Work {
    /// Where it lies.
    pub place: Place,
    /// Whether the object was made with `O_EXCL`.
    pub is_exclusive: bool,
    /// Whether the catalog has another object under its name, which goes when this one is published.
    pub replaces: bool,
    /// Handles that may write, and one more as long as a mapping may that outlives them.
    pub writers: u32,
    /// Whether it has to be published.
    pub is_dirty: bool,
    /// Whether it was staged anew when it was refused, while programs had it open: they have the file that it was before.
    pub is_moved: bool,
    /// How it is published, once that is on its way.
    pub publishing: Option<Box<Publishing>>,
    /// The size, the modification and the change time that it had when it was opened.
    pub begun: Option<(u64, i128, i128)>,
    /// The number of the change that says that it is written in place.
    pub mark: Option<u64>,
}

/// A file that is being published.
#[derive(Debug, Clone)]
pub struct Publishing {
    /// The number of the change.
    pub number: u64,
    /// What it was when the last writer closed it: it may have its place in the store by now.
    pub staged: Staged,
}

impl Work {
    /// Tells whether a change publishes it.
    pub fn is_published_by(&self, number: u64) -> bool {
        self.publishing.as_ref().is_some_and(|publishing| publishing.number == number)
    }

    /// A file that nobody has written to yet.
    pub fn at(place: Place) -> Self {
        Self {
            place,
            is_exclusive: false,
            replaces: false,
            writers: 0,
            is_dirty: false,
            is_moved: false,
            publishing: None,
            begun: None,
            mark: None,
        }
    }
}

/// How programs have a file open. The kernel allows one way for each node as long as any handle is open.
#[derive(Debug, Default)]
pub enum Open {
    /// Not at all.
    #[default]
    No,
    /// Through this process, by so many handles.
    Daemon(u32),
    /// By the kernel alone, by so many handles.
    Passthrough(Arc<BackingId>, u32),
}

impl Object {
    /// A file that is in the catalog.
    pub fn of_content(content: Content, copy: Option<LocalCopy>) -> Self {
        Self { mode: content.mode, content: Some(content), copy, ..Self::default() }
    }

    /// Tells whether programs have it open, or something of it is not published.
    pub fn is_in_use(&self) -> bool {
        self.is_open() || self.work.is_some()
    }

    /// Tells whether programs have it open.
    pub fn is_open(&self) -> bool {
        !matches!(self.open, Open::No)
    }

    /// Tells whether it, or what it was before it was written again, is on its way to being published.
    pub fn is_publishing(&self) -> bool {
        self.sent.is_some() || self.publishing().is_some()
    }

    /// Returns how it is published, if that is on its way.
    pub fn publishing(&self) -> Option<&Publishing> {
        self.work.as_ref()?.publishing.as_deref()
    }

    /// Tells whether the catalog has another object under its name, which goes when this one is published.
    pub fn replaces(&self) -> bool {
        self.work.as_ref().is_some_and(|work| work.replaces)
    }

    /// Returns its size, as far as the catalog knows.
    pub fn size(&self) -> u64 {
        self.content.as_ref().map_or(0, |content| content.size)
    }

    /// Returns when it was modified, as far as the catalog knows.
    pub fn mtime(&self) -> Timestamp {
        self.content.as_ref().map_or(Timestamp::from_micros(0), |content| content.mtime)
    }

    /// Notes that a handle is gone.
    pub fn closed(&mut self) {
        self.open = match std::mem::take(&mut self.open) {
            Open::No => Open::No,
            Open::Daemon(count) if count > 1 => Open::Daemon(count - 1),
            Open::Passthrough(id, count) if count > 1 => Open::Passthrough(id, count - 1),
            Open::Daemon(_) | Open::Passthrough(..) => Open::No,
        };
    }
}
