//! Which objects have to be read for what their bytes say of them, and what was found.
//!
//! What was published since is in the journal: a place in it, kept in the transaction that writes what was found up to there, is all
//! that has to be remembered. Where there is no such place, or its records are not kept any more, all objects of the space are looked
//! at, in the order of their ids. What is read twice is found again, and changes nothing. Documents that describe an object are read with
//! it, and it is read again when one of them comes, changes or goes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use percale_core::Position;
use percale_core::attribute::{AttributeName, AttributeValue};
use percale_core::ids::{EntryId, SpaceId, VersionId};

use crate::attribute::{check_values, gather, write};
use crate::batch::{Batch, IdCache, Mark, Written};
use crate::catalog::Catalog;
use crate::copies::home_space;
use crate::description;
use crate::engine::{Change, Query, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{
    Attribute, AttributeSource, Described, EntryKind, ExtractionPlace, FoundAttribute, Header, OpenVersion,
    ToExtract,
};
use crate::read::open_current;
use crate::record::{AttributesItem, FormerPlace, Items, RecordChange, SetAttribute, kind};
use crate::rows::entry::EntryRow;
use crate::rows::site::SpaceRow;
use crate::rows::{Lock, attribute, entry, extraction, journal};

/// Records of the journal that are looked at together.
const RECORDS: usize = 500;
/// Objects of which no further record is looked at.
const MANY: usize = 2000;

/// Attributes out of the bytes of objects. These calls are the server's own.
impl Catalog {
    /// Returns the next versions of a space whose bytes were not read yet by this release of the extractor, with where that is then.
    ///
    /// # Errors
    /// `SpaceNotFound`; `Foreign` if the space has another home.
    pub async fn to_extract(&self, space: SpaceId, extractor: u32, limit: usize) -> Result<ToExtract> {
        self.ask(Next { space, extractor, limit }).await
    }

    /// Returns how far a space was read by this release of the extractor; nothing if it was not read at all.
    ///
    /// # Errors
    /// `SpaceNotFound`; `Foreign` if the space has another home.
    pub async fn extraction_place(&self, space: SpaceId, extractor: u32) -> Result<Option<ExtractionPlace>> {
        self.ask(Place { space, extractor }).await
    }

    /// Returns objects of a space behind one of them, in the order of their ids, in whose headers an attribute is true; and behind which one
    /// there may be more.
    ///
    /// # Errors
    /// As [`Catalog::to_extract`].
    pub async fn extracted_with(
        &self,
        space: SpaceId,
        attribute: &AttributeName,
        after: Option<EntryId>,
        limit: usize,
    ) -> Result<(Vec<Described>, Option<EntryId>)> {
        self.ask(With { space, attribute: attribute.clone(), after, limit }).await
    }

    /// Puts what was found in the bytes of versions in the place of what was known of them before, unless it is partial, and keeps `place`
    /// together with it.
    /// What is not the current version any more, or is described by other documents now, is passed over: the journal names it again.
    /// Returns the journal up to which it is so.
    ///
    /// # Errors
    /// As [`Catalog::to_extract`]; `InvalidRequest` for values that an attribute cannot have.
    pub async fn extracted(
        &self,
        space: SpaceId,
        place: Option<ExtractionPlace>,
        headers: Vec<Header>,
    ) -> Result<Position> {
        headers.iter().try_for_each(|header| check_found(&header.found))?;
        self.change(Extracted { space, place, headers }).await
    }
}

/// Fails for values that an attribute cannot have.
pub(crate) fn check_found(found: &[FoundAttribute]) -> Result<()> {
    found.iter().try_for_each(|(name, values)| check_values(name, values).map_err(Error::invalid))
}

/// Returns the row of a space that is at home here.
pub(crate) async fn home_row<T: Tx>(batch: &mut Batch<'_, T>, space: SpaceId) -> Result<Arc<SpaceRow>> {
    let missing = || Error::new(ErrorKind::SpaceNotFound, format!("there is no space {space}"));
    let sp = home_space(batch, space).await?.ok_or_else(missing)?;
    batch.space(sp).await
}

struct Place {
    space: SpaceId,
    extractor: u32,
}

impl Query for Place {
    type Out = Option<ExtractionPlace>;

    async fn run<T: Tx>(&self, tx: &T) -> Result<Option<ExtractionPlace>> {
        let mut ids = IdCache::default();
        let sp = home_row(&mut Batch::new(tx, &mut ids), self.space).await?.sp;
        let place = extraction::of_space(tx, sp).await?;
        Ok(place.filter(|place| place.extractor == self.extractor))
    }
}

struct Next {
    space: SpaceId,
    extractor: u32,
    limit: usize,
}

impl Query for Next {
    type Out = ToExtract;

    async fn run<T: Tx>(&self, tx: &T) -> Result<ToExtract> {
        let Self { space, extractor, limit } = self;
        let mut ids = IdCache::default();
        let mut batch = Batch::new(tx, &mut ids);
        let row = home_row(&mut batch, *space).await?;
        let (sp, end) = (row.sp, row.space.position);
        let from = match extraction::of_space(tx, sp).await? {
            Some(known) if known.extractor == *extractor && is_kept(tx, sp, end, known).await? => known,
            _ => ExtractionPlace { term: end.term, seq: end.seq, scan: Some(0), extractor: *extractor },
        };
        let mut place = from;
        let mut news = News::default();
        let mut all: Vec<u64> = Vec::new();
        match from.scan {
            Some(after) => {
                let rows = entry::of_kind(tx, sp, EntryKind::Object, after, *limit).await?;
                place.scan = rows.last().filter(|_| rows.len() == *limit).map(|last| last.id);
                all.extend(rows.iter().map(|row| row.id));
            }
            None => {
                for record in journal::read(tx, sp, *space, from.seq, RECORDS).await? {
                    place.seq = record.position.seq;
                    // A kind of a later release says nothing of bytes.
                    news.learn(record.change().unwrap_or(RecordChange::Unknown));
                    if news.published.len() + news.documents.len() >= MANY {
                        break;
                    }
                }
                let described = description::of_documents(tx, sp, &news.documents).await?;
                news.again.extend(described.iter().map(|object| object.id));
                all.extend(news.published.keys().chain(&news.again).copied().collect::<BTreeSet<_>>());
            }
        }
        let mut current = load(&mut batch, sp, all).await?;
        current.retain(|found| news.is_current(found));
        let documents = description::of_objects(tx, &current).await?;
        current.retain(|found| !news.was_read(found) || documents.contains_key(&found.id));
        let due = described(&mut batch, sp, end, current, documents).await?;
        let is_done = place == from && from.scan.is_none();
        Ok(ToExtract { due, place, is_done })
    }
}

struct With {
    space: SpaceId,
    attribute: AttributeName,
    after: Option<EntryId>,
    limit: usize,
}

impl Query for With {
    type Out = (Vec<Described>, Option<EntryId>);

    async fn run<T: Tx>(&self, tx: &T) -> Result<Self::Out> {
        let mut ids = IdCache::default();
        let mut batch = Batch::new(tx, &mut ids);
        let row = home_row(&mut batch, self.space).await?;
        let after = self.after.map_or(0, |after| after.0);
        let all = attribute::with_true(tx, row.sp, &self.attribute, after, self.limit).await?;
        let last = all.last().filter(|_| all.len() == self.limit).copied().map(EntryId);
        let mut current = load(&mut batch, row.sp, all).await?;
        current.retain(|found| found.version().is_some());
        let documents = description::of_objects(tx, &current).await?;
        Ok((described(&mut batch, row.sp, row.space.position, current, documents).await?, last))
    }
}

/// Returns entries of a space, with what is above them at hand.
async fn load<T: Tx>(batch: &mut Batch<'_, T>, sp: i64, all: Vec<u64>) -> Result<Vec<Arc<EntryRow>>> {
    let keys = all.iter().map(|id| (sp, *id)).collect();
    batch.learn_all(entry::with_ancestors(batch.tx, keys).await?, Lock::None)?;
    let mut found = Vec::with_capacity(all.len());
    for id in all {
        found.extend(batch.entry(sp, id, Lock::None).await?);
    }
    Ok(found)
}

/// Opens the current versions of objects, and of the documents that describe them. What cannot be named is passed over.
async fn described<T: Tx>(
    batch: &mut Batch<'_, T>,
    sp: i64,
    end: Position,
    objects: Vec<Arc<EntryRow>>,
    documents: HashMap<u64, Vec<EntryRow>>,
) -> Result<Vec<Described>> {
    let keys = objects.iter().filter_map(|found| Some((sp, found.version()?)));
    batch.load_replicas(keys.collect()).await?;
    let mut versions: Vec<OpenVersion> = Vec::with_capacity(objects.len());
    for found in objects {
        let Some(version) = found.version() else { continue };
        let path = match batch.path_of(sp, found.id).await {
            // Something above it was renamed, and nobody would find it.
            Err(error) if matches!(error.kind(), ErrorKind::InvalidRequest) => continue,
            path => path?,
        };
        let replicas = batch.replicas(sp, version).await?.into_iter().map(|row| row.replica).collect();
        versions.push(open_current(&path, &found, end, replicas)?);
    }
    description::with_documents(batch, sp, versions, documents).await
}

/// What records of the journal say of what is to be read.
#[derive(Default)]
struct News {
    /// The last versions of objects that were published, and whether they were read then.
    published: BTreeMap<u64, (VersionId, bool)>,
    /// What is to be read as it is now, whenever it was published.
    again: BTreeSet<u64>,
    /// Collections and names of what may be documents that came, changed or went.
    documents: BTreeSet<(u64, String)>,
}

impl News {
    fn learn(&mut self, change: RecordChange) {
        match change {
            RecordChange::ObjectsPublished(items) => {
                for item in items {
                    self.published.insert(item.id.0, (item.version, false));
                    self.document(item.parent, item.name);
                }
            }
            RecordChange::EntriesMoved(items) => {
                for item in items {
                    // It is by its name that some formats are known.
                    self.again.insert(item.id.0);
                    self.document(item.parent, item.name);
                    self.former(item.from);
                }
            }
            RecordChange::EntriesRemoved(items) => items.into_iter().for_each(|item| self.former(item.from)),
            RecordChange::AttributesChanged(items) => {
                for item in items.iter().filter(|item| item.source == AttributeSource::Header) {
                    if let Some((version, is_read)) = self.published.get_mut(&item.entry.0)
                        && item.version == Some(*version)
                    {
                        *is_read = true;
                    }
                }
            }
            _ => {}
        }
    }

    fn document(&mut self, parent: EntryId, name: String) {
        if description::is_document(&name) {
            self.documents.insert((parent.0, name));
        }
    }

    fn former(&mut self, place: Option<FormerPlace>) {
        if let Some(FormerPlace { parent, name }) = place {
            self.document(parent, name);
        }
    }

    /// Tells whether an object is to be looked at as it is now. One that was published again since stands further on in the journal.
    fn is_current(&self, found: &EntryRow) -> bool {
        let published = self.published.get(&found.id);
        let is_last = published.is_none_or(|(version, _)| found.version() == Some(*version));
        found.version().is_some() && (is_last || self.again.contains(&found.id))
    }

    /// Tells whether the bytes of an object were read when they were published, and nothing else calls for it.
    fn was_read(&self, found: &EntryRow) -> bool {
        let was_read = self.published.get(&found.id).is_some_and(|(_, is_read)| *is_read);
        was_read && !self.again.contains(&found.id)
    }
}

/// Tells whether the records behind a place are in the journal.
async fn is_kept<T: Tx>(tx: &T, sp: i64, end: Position, known: ExtractionPlace) -> Result<bool> {
    if known.term != end.term || known.seq > end.seq {
        return Ok(false);
    }
    Ok(known.seq == end.seq || journal::first(tx, sp).await?.is_some_and(|first| first <= known.seq + 1))
}

struct Extracted {
    space: SpaceId,
    place: Option<ExtractionPlace>,
    headers: Vec<Header>,
}

impl Change for Extracted {
    type Draft = Mark;
    type Out = Position;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Mark> {
        let Self { space, place, headers } = self;
        let sp = home_row(batch, *space).await?.sp;
        let keys: Vec<(i64, u64)> = headers.iter().map(|header| (sp, header.entry.0)).collect();
        batch.load_entries(&keys, Lock::Update).await?;
        let mut there = Vec::with_capacity(headers.len());
        for Header { entry, version, .. } in headers {
            let found = batch.entry(sp, entry.0, Lock::Update).await?;
            there.extend(found.filter(|found| found.version() == Some(*version)));
        }
        let described = description::of_objects(batch.tx, &there).await?;
        let there: HashSet<u64> = there.iter().map(|found| found.id).collect();
        let mut current = Vec::with_capacity(there.len());
        for Header { entry, version, as_of, found, is_partial } in headers {
            let now = described.get(&entry.0).map(Vec::as_slice).unwrap_or_default();
            if there.contains(&entry.0) && now.iter().filter_map(EntryRow::version).eq(as_of.iter().copied())
            {
                current.push(NewHeader { entry: *entry, version: *version, found, is_partial: *is_partial });
            }
        }
        if let Some(place) = *place {
            extraction::set(batch.tx, sp, place).await?;
        }
        let known = current.iter().map(|header| header.entry).collect();
        write_headers(batch, sp, &current, known).await
    }

    fn finish(self, mark: Mark, written: &Written) -> Position {
        written.position(mark)
    }
}

/// A [`Header`] of a version that is current.
pub(crate) struct NewHeader<'a> {
    pub entry: EntryId,
    pub version: VersionId,
    pub found: &'a [FoundAttribute],
    pub is_partial: bool,
}

/// Puts what was found in the bytes of current versions in the place of what was known of their entries; nothing is known of others than
/// `known`. Returns the record.
pub(crate) async fn write_headers<T: Tx>(
    batch: &mut Batch<'_, T>,
    sp: i64,
    headers: &[NewHeader<'_>],
    known: Vec<EntryId>,
) -> Result<Mark> {
    let keys = known.into_iter().map(|entry| (sp, entry.0)).collect();
    let mut rows: HashMap<u64, Vec<_>> = HashMap::new();
    for row in attribute::of_entries(batch.tx, keys).await? {
        if row.source == AttributeSource::Header {
            rows.entry(row.entry).or_default().push(row);
        }
    }
    let known: HashMap<u64, Vec<Attribute>> =
        rows.into_iter().map(|(entry, rows)| (entry, gather(rows))).collect();
    let known_of = |entry: EntryId| known.get(&entry.0).map_or(&[][..], Vec::as_slice);
    let mut items = Vec::new();
    for NewHeader { entry, version, found, is_partial } in headers {
        let mut set = difference(known_of(*entry), found);
        set.retain(|one| !is_partial || !one.values.is_empty());
        if !set.is_empty() {
            let source = AttributeSource::Header;
            items.push(AttributesItem { entry: *entry, source, version: Some(*version), set });
        }
    }
    let may_have = |entry, name: &AttributeName| known_of(entry).iter().any(|one| one.name == *name);
    write(batch.tx, sp, &items, may_have).await?;
    match items.is_empty() {
        true => Ok(batch.no_record(sp)),
        false => batch.record(sp, "system", kind::ATTRIBUTES_CHANGED, &Items { items }),
    }
}

/// Returns what makes the one list of attributes the other.
fn difference(known: &[Attribute], found: &[FoundAttribute]) -> Vec<SetAttribute> {
    let new: HashMap<&AttributeName, &Vec<AttributeValue>> =
        found.iter().map(|(name, values)| (name, values)).collect();
    let old: HashMap<&AttributeName, &Vec<AttributeValue>> =
        known.iter().map(|one| (&one.name, &one.values)).collect();
    let gone = known.iter().filter(|one| !new.contains_key(&one.name));
    let gone = gone.map(|one| SetAttribute { name: one.name.clone(), values: Vec::new() });
    let changed = found.iter().filter(|(name, values)| old.get(name) != Some(&values));
    let changed = changed.map(|(name, values)| SetAttribute { name: name.clone(), values: values.clone() });
    gone.chain(changed).collect()
}
