//! The entries and staged files of a store in memory.

use std::collections::BTreeMap;

use bytes::Bytes;
use percale_core::{ByteCount, Timestamp};

use crate::{
    Delete, Entry, Error, ErrorKind, FileIdentity, Generation, Kind, ListOptions, ListPage, Meta, Operation,
    Result, StageToken, Staged, StoreKey,
};

/// Everything in the store. Keys are ordered by their text, so listings are too.
#[derive(Debug, Default)]
pub(super) struct Tree {
    nodes: BTreeMap<StoreKey, Node>,
    pub(super) staged: BTreeMap<StageToken, StagedFile>,
    counter: u64,
}

#[derive(Debug, Clone)]
enum Node {
    File { bytes: Bytes, meta: Meta },
    Collection,
}

#[derive(Debug)]
pub(super) struct StagedFile {
    pub(super) bytes: Vec<u8>,
    pub(super) key: Option<StoreKey>,
    pub(super) size: Option<ByteCount>,
    pub(super) identity: FileIdentity,
    pub(super) marker: Option<Bytes>,
}

impl StagedFile {
    pub(super) fn describe(&self, token: &StageToken) -> Staged {
        Staged {
            token: token.clone(),
            size: ByteCount(self.bytes.len() as u64),
            identity: Some(self.identity.clone()),
        }
    }
}

impl Node {
    fn meta(&self) -> Meta {
        match self {
            Self::File { meta, .. } => meta.clone(),
            Self::Collection => Meta::new(Kind::Collection, ByteCount::ZERO),
        }
    }
}

impl Tree {
    pub(super) fn used(&self) -> u64 {
        let files = self.nodes.values().map(|node| node.meta().size.0).sum::<u64>();
        files + self.staged.values().map(|staged| staged.bytes.len() as u64).sum::<u64>()
    }

    fn count(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    pub(super) fn new_identity(&mut self) -> FileIdentity {
        FileIdentity::new(format!("m{}", self.count()))
    }

    pub(super) fn stat(&self, key: &StoreKey) -> Result<Meta> {
        self.nodes.get(key).map(Node::meta).ok_or_else(|| Error::new(ErrorKind::NotFound, Operation::Stat))
    }

    pub(super) fn open(&self, key: &StoreKey) -> Result<(Bytes, Meta)> {
        match self.nodes.get(key) {
            Some(Node::File { bytes, meta }) => Ok((bytes.clone(), meta.clone())),
            Some(Node::Collection) => Err(Error::new(ErrorKind::IsACollection, Operation::Read)),
            None => Err(Error::new(ErrorKind::NotFound, Operation::Read)),
        }
    }

    pub(super) fn insert(&mut self, key: StoreKey, bytes: Bytes, identity: FileIdentity) -> Meta {
        let mut meta = Meta::new(Kind::File, ByteCount(bytes.len() as u64));
        meta.modified = Some(Timestamp::now());
        meta.generation = Some(Generation::new(format!("g{}", self.count())));
        meta.identity = Some(identity);
        self.nodes.insert(key, Node::File { bytes, meta: meta.clone() });
        meta
    }

    pub(super) fn tamper(&mut self, key: &StoreKey, bytes: Bytes) -> bool {
        let identity = self.stat(key).ok().and_then(|meta| meta.identity);
        identity.map(|identity| self.insert(key.clone(), bytes, identity)).is_some()
    }

    pub(super) fn make_parents(&mut self, key: &StoreKey, operation: Operation) -> Result<()> {
        let Some(parent) = key.parent() else { return Ok(()) };
        match self.nodes.get(&parent) {
            Some(Node::Collection) => Ok(()),
            Some(Node::File { .. }) => Err(Error::new(ErrorKind::NotACollection, operation).on(key)),
            None => {
                self.make_parents(&parent, operation)?;
                self.nodes.insert(parent, Node::Collection);
                Ok(())
            }
        }
    }

    pub(super) fn mkdir(&mut self, key: &StoreKey) -> Result<bool> {
        match self.nodes.get(key) {
            Some(Node::Collection) => Ok(false),
            Some(Node::File { .. }) => Err(Error::new(ErrorKind::AlreadyExists, Operation::Mkdir).on(key)),
            None => {
                self.make_parents(key, Operation::Mkdir)?;
                self.nodes.insert(key.clone(), Node::Collection);
                Ok(true)
            }
        }
    }

    fn below(&self, key: &StoreKey) -> impl Iterator<Item = &StoreKey> {
        self.nodes.keys().filter(move |other| *other != key && other.is_within(key))
    }

    pub(super) fn delete(&mut self, item: &Delete) -> Result<bool> {
        let Some(node) = self.nodes.get(&item.key) else { return Ok(false) };
        if matches!(node, Node::Collection) && self.below(&item.key).next().is_some() {
            return Err(Error::new(ErrorKind::NotEmpty, Operation::Delete));
        }
        item.check(&node.meta())?;
        Ok(self.nodes.remove(&item.key).is_some())
    }

    pub(super) fn rename(&mut self, from: &StoreKey, to: &StoreKey) -> Result<()> {
        let fail = |kind, key: &StoreKey| Err(Error::new(kind, Operation::Rename).on(key));
        if !self.nodes.contains_key(from) {
            return fail(ErrorKind::NotFound, from);
        }
        if self.nodes.contains_key(to) {
            return fail(ErrorKind::AlreadyExists, to);
        }
        if to.is_within(from) {
            return fail(ErrorKind::InvalidInput, to);
        }
        self.make_parents(to, Operation::Rename)?;
        let moved: Vec<StoreKey> = std::iter::once(from).chain(self.below(from)).cloned().collect();
        for old in moved {
            let rest = old.as_str().get(from.as_str().len()..).unwrap_or_default();
            let new = StoreKey::parse(&format!("{to}{rest}"))?;
            if let Some(node) = self.nodes.remove(&old) {
                self.nodes.insert(new, node);
            }
        }
        Ok(())
    }

    pub(super) fn list(&self, options: &ListOptions, has_collections: bool) -> Result<Vec<ListPage>> {
        if let Some(prefix) = options.prefix.as_ref().filter(|_| has_collections) {
            match self.nodes.get(prefix) {
                Some(Node::Collection) => {}
                Some(Node::File { .. }) => {
                    return Err(Error::new(ErrorKind::NotACollection, Operation::List).on(prefix));
                }
                None => return Err(Error::new(ErrorKind::NotFound, Operation::List).on(prefix)),
            }
        }
        let shows_reserved = options.reserved || options.prefix.as_ref().is_some_and(StoreKey::is_reserved);
        let depth = options.prefix.as_ref().map_or(0, |prefix| prefix.components().count());
        let mut entries: Vec<Entry> = Vec::new();
        for (key, node) in &self.nodes {
            let is_below =
                options.prefix.as_ref().is_none_or(|prefix| key != prefix && key.is_within(prefix));
            if !is_below || (key.is_reserved() && !shows_reserved) {
                continue;
            }
            let mut entry = Entry { key: key.clone(), meta: node.meta() };
            if !options.recursive && key.components().count() > depth + 1 {
                // A collection that exists only by what is below it.
                let above: Vec<&str> = key.components().take(depth + 1).collect();
                entry = Entry {
                    key: StoreKey::parse(&above.join("/"))?,
                    meta: Meta::new(Kind::Collection, ByteCount::ZERO),
                };
            }
            entries.push(entry);
        }
        entries.sort_by(|a, b| a.key.cmp(&b.key));
        entries.dedup_by(|a, b| a.key == b.key);
        entries.retain(|entry| options.after.as_ref().is_none_or(|after| entry.key > *after));
        let page = |entries: &[Entry]| ListPage { entries: entries.to_vec(), skipped: Vec::new() };
        Ok(entries.chunks(options.page_size.max(1)).map(page).collect())
    }
}
