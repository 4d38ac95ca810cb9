//! Documents that describe the objects beside them, as `scan.json` describes `scan.nii.gz`
//! (docs/decisions/2026-11-25-documents-describe-what-is-beside-them.md).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use percale_core::ids::{EntryId, SpaceId, VersionId};

use crate::batch::{Batch, IdCache};
use crate::catalog::Catalog;
use crate::engine::{Query, Tx};
use crate::error::Result;
use crate::extraction::home_row;
use crate::model::{Described, OpenVersion};
use crate::read::open_current;
use crate::rows::Lock;
use crate::rows::entry::{self, EntryRow};

/// How the names of documents end; of two documents the first has the word.
const DOCUMENTS: [&str; 3] = [".json", ".yaml", ".yml"];
/// Endings that stand behind the one that tells the format.
const PACKED: [&str; 4] = ["gz", "bz2", "xz", "zst"];
/// Names beginning as a document's that are looked at for what it describes, when it changes.
const MOST: usize = 10_000;
/// Documents for which that is done together.
const TOGETHER: usize = 20;

/// The name without the ending of a document; nothing if it is no document's.
fn stem_of_document(name: &str) -> Option<&str> {
    DOCUMENTS.iter().find_map(|ending| name.strip_suffix(ending)).filter(|stem| !stem.is_empty())
}

/// Tells whether an object of this name is a document.
pub(crate) fn is_document(name: &str) -> bool {
    stem_of_document(name).is_some()
}

/// Returns the names that a document may have besides its ending to describe an object of this name: the whole name, and the one without
/// what tells the format. Nothing describes documents.
fn stems(name: &str) -> impl Iterator<Item = &str> {
    let whole = (!is_document(name)).then_some(name);
    let bare = whole.and_then(|name| {
        let (stem, ending) = name.rsplit_once('.')?;
        match stem.rsplit_once('.') {
            Some((stem, _)) if PACKED.contains(&ending) => Some(stem),
            _ => Some(stem),
        }
    });
    whole.into_iter().chain(bare.filter(|stem| !stem.is_empty()))
}

/// Returns the names of documents that describe an object of this name, in the order of their word.
fn names_of_documents(name: &str) -> impl Iterator<Item = String> {
    stems(name).flat_map(|stem| DOCUMENTS.iter().map(move |ending| format!("{stem}{ending}")))
}

/// Finds the documents that describe objects of a space, for each object that has any, in the order of their word.
pub(crate) async fn of_objects<T: Tx>(
    tx: &T,
    objects: &[Arc<EntryRow>],
) -> Result<HashMap<u64, Vec<EntryRow>>> {
    let mut keys: BTreeSet<(i64, u64, String)> = BTreeSet::new();
    for object in objects {
        keys.extend(names_of_documents(&object.name).map(|name| (object.sp, object.parent, name)));
    }
    let mut found: HashMap<(u64, String), EntryRow> = HashMap::new();
    for document in entry::by_names(tx, keys.into_iter().collect(), Lock::None).await? {
        if document.version().is_some() {
            found.insert((document.parent, document.name.clone()), document);
        }
    }
    let mut described = HashMap::new();
    for object in objects {
        let by = names_of_documents(&object.name);
        let by: Vec<_> = by.filter_map(|name| found.get(&(object.parent, name)).cloned()).collect();
        if !by.is_empty() {
            described.insert(object.id, by);
        }
    }
    Ok(described)
}

/// Finds the objects that documents of a space describe, by the collections and names of these. Other names are passed over.
pub(crate) async fn of_documents<T: Tx>(
    tx: &T,
    sp: i64,
    documents: &BTreeSet<(u64, String)>,
) -> Result<Vec<EntryRow>> {
    let wanted = documents.iter().filter_map(|(parent, name)| Some((*parent, stem_of_document(name)?)));
    let wanted: BTreeSet<(u64, &str)> = wanted.collect();
    let wanted: Vec<(u64, &str)> = wanted.into_iter().collect();
    let mut described = Vec::new();
    for some in wanted.chunks(TOGETHER) {
        let keys = some.iter().map(|(parent, stem)| (sp, *parent, (*stem).to_owned())).collect();
        let known: HashSet<&(u64, &str)> = some.iter().collect();
        let found = entry::by_stems(tx, keys, MOST).await?.into_iter().filter(|found| {
            found.version().is_some() && stems(&found.name).any(|stem| known.contains(&(found.parent, stem)))
        });
        described.extend(found);
    }
    Ok(described)
}

/// Adds to versions of a space the documents that describe them, which are in `by`.
pub(crate) async fn with_documents<T: Tx>(
    batch: &mut Batch<'_, T>,
    sp: i64,
    versions: Vec<OpenVersion>,
    mut by: HashMap<u64, Vec<EntryRow>>,
) -> Result<Vec<Described>> {
    // One document may describe many.
    let keys: BTreeSet<_> = by.values().flatten().filter_map(EntryRow::version).collect();
    batch.load_replicas(keys.into_iter().map(|version| (sp, version)).collect()).await?;
    let mut described = Vec::with_capacity(versions.len());
    for object in versions {
        let documents = by.remove(&object.entry.0).unwrap_or_default();
        let as_of: Vec<VersionId> = documents.iter().filter_map(EntryRow::version).collect();
        let mut by = Vec::with_capacity(documents.len());
        for (document, version) in documents.iter().zip(&as_of) {
            // Its path may be longer than a path may be.
            let path = object.path.parent().and_then(|parent| parent.join(&document.name).ok());
            let Some(path) = path else { continue };
            let replicas = batch.replicas(sp, *version).await?.into_iter().map(|row| row.replica).collect();
            by.push(open_current(&path, document, object.position, replicas)?);
        }
        described.push(Described { object, by, as_of });
    }
    Ok(described)
}

/// Documents beside objects. These calls are the server's own.
impl Catalog {
    /// Finds the documents that describe current versions of a space, in the order of the versions.
    ///
    /// # Errors
    /// `SpaceNotFound`; `Foreign` if the space has another home.
    pub async fn described(&self, space: SpaceId, versions: Vec<OpenVersion>) -> Result<Vec<Described>> {
        self.ask(Find { space, versions }).await
    }

    /// Returns those among objects of a space that documents describe, or that describe others.
    ///
    /// # Errors
    /// As [`Catalog::described`].
    pub async fn not_alone(&self, space: SpaceId, objects: Vec<EntryId>) -> Result<HashSet<EntryId>> {
        self.ask(NotAlone { space, objects }).await
    }
}

async fn objects<T: Tx>(tx: &T, sp: i64, ids: impl Iterator<Item = EntryId>) -> Result<Vec<Arc<EntryRow>>> {
    let found = entry::by_ids(tx, ids.map(|id| (sp, id.0)).collect(), Lock::None).await?;
    Ok(found.into_iter().map(Arc::new).collect())
}

struct Find {
    space: SpaceId,
    versions: Vec<OpenVersion>,
}

impl Query for Find {
    type Out = Vec<Described>;

    async fn run<T: Tx>(&self, tx: &T) -> Result<Self::Out> {
        let mut ids = IdCache::default();
        let mut batch = Batch::new(tx, &mut ids);
        let sp = home_row(&mut batch, self.space).await?.sp;
        let objects = objects(tx, sp, self.versions.iter().map(|version| version.entry)).await?;
        let by = of_objects(tx, &objects).await?;
        with_documents(&mut batch, sp, self.versions.clone(), by).await
    }
}

struct NotAlone {
    space: SpaceId,
    objects: Vec<EntryId>,
}

impl Query for NotAlone {
    type Out = HashSet<EntryId>;

    async fn run<T: Tx>(&self, tx: &T) -> Result<Self::Out> {
        let mut ids = IdCache::default();
        let sp = home_row(&mut Batch::new(tx, &mut ids), self.space).await?.sp;
        let objects = objects(tx, sp, self.objects.iter().copied()).await?;
        let described = of_objects(tx, &objects).await?;
        let documents: BTreeSet<_> = objects.iter().map(|one| (one.parent, one.name.clone())).collect();
        let others = of_documents(tx, sp, &documents).await?;
        let described_by: HashSet<(u64, &str)> =
            others.iter().flat_map(|one| stems(&one.name).map(|stem| (one.parent, stem))).collect();
        let describes = |object: &EntryRow| {
            stem_of_document(&object.name).is_some_and(|stem| described_by.contains(&(object.parent, stem)))
        };
        let found = objects.iter().filter(|one| described.contains_key(&one.id) || describes(one));
        Ok(found.map(|one| EntryId(one.id)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_have_the_name_of_what_they_describe_with_or_without_its_ending() {
        let names = |name: &str| names_of_documents(name).collect::<Vec<_>>().join(" ");
        assert_eq!(
            names("scan.nii.gz"),
            "scan.nii.gz.json scan.nii.gz.yaml scan.nii.gz.yml scan.json scan.yaml scan.yml"
        );
        assert_eq!(names("a.b.nc"), "a.b.nc.json a.b.nc.yaml a.b.nc.yml a.b.json a.b.yaml a.b.yml");
        assert_eq!(names("raw"), "raw.json raw.yaml raw.yml");
        assert_eq!(names("x.gz"), "x.gz.json x.gz.yaml x.gz.yml x.json x.yaml x.yml");
        assert_eq!(names(".hidden"), ".hidden.json .hidden.yaml .hidden.yml");
        for document in ["a.json", "a.nc.yaml", "a.yml"] {
            assert_eq!((names(document).as_str(), is_document(document)), ("", true));
        }
        for other in ["a.nc", "json", ".json", "a.JSON"] {
            assert!(!is_document(other), "{other}");
        }
    }
}
