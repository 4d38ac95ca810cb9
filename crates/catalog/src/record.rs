//! The bodies of journal records, form 1 (docs/design/journal.md).
//!
//! Participants: the home site writes them, in the transaction of the change; events, followers, mounts and the indexer
//! read them. A reader keeps fields it does not know (they stay in [`Record::body`]) and passes over kinds it does not
//! know. A new field is optional; anything else is a new form with a new sample in `samples/`, and this one stays.

use percale_core::access::{Permission, Subject};
use percale_core::attribute::{AttributeName, AttributeValue};
use percale_core::digest::Digest;
use percale_core::ids::{EntryId, SiteId, SpaceId, StoreId, VersionId};
use percale_core::path::SpaceName;
use percale_core::state::ReplicaState;
use percale_core::tree::RootHash;
use percale_core::{ByteCount, FileMode, LinkTarget, Position, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::model::{AttributeSource, ExtractionMode, Record, Replica, Space, SpaceScope, SpaceState};

/// The kinds of records.
pub(crate) mod kind {
    pub const SPACE_CREATED: &str = "space.created";
    pub const SPACE_CHANGED: &str = "space.changed";
    pub const SPACE_REMOVED: &str = "space.removed";
    pub const SPACE_MOVED: &str = "space.moved";
    pub const SPACE_PROMOTED: &str = "space.promoted";
    pub const ENTRIES_CREATED: &str = "entries.created";
    pub const LINKS_CREATED: &str = "links.created";
    pub const OBJECTS_PUBLISHED: &str = "objects.published";
    pub const OBJECTS_CHANGED: &str = "objects.changed";
    pub const ENTRIES_MOVED: &str = "entries.moved";
    pub const ENTRIES_REMOVED: &str = "entries.removed";
    pub const REPLICAS_CHANGED: &str = "replicas.changed";
    pub const REPLICAS_REMOVED: &str = "replicas.removed";
    pub const GRANTS_CHANGED: &str = "grants.changed";
    pub const ATTRIBUTES_CHANGED: &str = "attributes.changed";
}

/// A list of what changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Items<T> {
    pub items: Vec<T>,
}

/// A space as it is after the change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceBody {
    /// Its id.
    pub id: SpaceId,
    /// Its name.
    pub name: SpaceName,
    /// Its owner.
    pub owner: Subject,
    /// Who learns that it exists.
    pub scope: SpaceScope,
    /// Its default store.
    pub store: Option<StoreId>,
    /// Whether it takes writes.
    pub state: SpaceState,
    /// When attributes are taken out of the bytes of its objects.
    #[serde(default = "off", skip_serializing_if = "ExtractionMode::is_off")]
    pub extraction: ExtractionMode,
    /// How many bytes its objects may have together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<ByteCount>,
    /// When it was made.
    pub created: Timestamp,
    /// The site that orders its journal.
    pub home: Option<SiteId>,
    /// What manages its settings from outside, if anything does.
    #[serde(default)]
    pub managed_by: Option<String>,
}

const fn off() -> ExtractionMode {
    ExtractionMode::Off
}

impl SpaceBody {
    pub(crate) fn new(space: &Space, home: Option<SiteId>) -> Self {
        Self {
            id: space.id,
            name: space.name.clone(),
            owner: space.owner.clone(),
            scope: space.scope,
            store: space.store,
            state: space.state,
            extraction: space.extraction,
            quota: space.quota,
            created: space.created,
            home,
            managed_by: None,
        }
    }
}

/// The last record of a home that hands its space over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceMovedBody {
    /// The home from here on.
    pub to: SiteId,
}

/// The first record of a new home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpacePromotedBody {
    /// The home from here on.
    pub home: SiteId,
    /// The home before.
    pub from: SiteId,
    /// Where the new home stood in the old one's journal.
    pub before: Position,
}

/// A collection that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreatedItem {
    /// Its id.
    pub id: EntryId,
    /// The collection it is in.
    pub parent: EntryId,
    /// Its name.
    pub name: String,
    /// When.
    pub at: Timestamp,
}

/// A link that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkItem {
    /// Its id.
    pub id: EntryId,
    /// The collection it is in.
    pub parent: EntryId,
    /// Its name.
    pub name: String,
    /// Where it leads.
    pub target: LinkTarget,
    /// When.
    pub at: Timestamp,
}

/// An object that has a new version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedItem {
    /// The object, new or not.
    pub id: EntryId,
    /// The collection it is in.
    pub parent: EntryId,
    /// Its name.
    pub name: String,
    /// The version that is current now.
    pub version: VersionId,
    /// Its size.
    pub size: ByteCount,
    /// The root of its hash tree.
    pub root: Option<RootHash>,
    /// The modification time that its owner gave it.
    pub mtime: Option<Timestamp>,
    /// The permission bits that its owner gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FileMode>,
    /// The version that it replaced.
    pub base: Option<VersionId>,
    /// Its first copy.
    pub replica: ReplicaItem,
    /// Further digests.
    #[serde(default)]
    pub digests: Vec<Digest>,
}

/// An object of which something else is said, while its version stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedItem {
    /// The object.
    pub id: EntryId,
    /// When it was modified; nothing if that stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtime: Option<Timestamp>,
    /// Its permission bits; nothing if they stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FileMode>,
}

/// Where an entry was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerPlace {
    /// The collection.
    pub parent: EntryId,
    /// Its name there.
    pub name: String,
}

/// An entry that has another place or name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedItem {
    /// The entry.
    pub id: EntryId,
    /// The collection it is in now.
    pub parent: EntryId,
    /// Its name now.
    pub name: String,
    /// The entry that was removed to make room.
    pub replaced: Option<EntryId>,
    /// Where it was before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<FormerPlace>,
}

/// An entry that is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedItem {
    /// The entry.
    pub id: EntryId,
    /// The versions it had.
    pub versions: Vec<VersionId>,
    /// Where it was, unless that collection is removed by the same record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<FormerPlace>,
}

/// A copy as it is after the change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaItem {
    /// The version.
    pub version: VersionId,
    /// The store.
    pub store: StoreId,
    /// Its state.
    pub state: ReplicaState,
    /// Where it is on the store.
    pub key: String,
    /// What tells its content from the next.
    #[serde(default)]
    pub generation: Option<String>,
    /// The version's root, if it became known with this.
    #[serde(default)]
    pub root: Option<RootHash>,
}

impl ReplicaItem {
    pub(crate) fn new(replica: &Replica, root: Option<RootHash>) -> Self {
        Self {
            version: replica.version,
            store: replica.store,
            state: replica.state,
            key: replica.key.clone(),
            generation: replica.generation.clone(),
            root,
        }
    }
}

/// A copy that is gone, while its version stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaRemovedItem {
    /// The version.
    pub version: VersionId,
    /// The store.
    pub store: StoreId,
}

/// A grant that was given, changed or taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantItem {
    /// On which entry.
    pub entry: EntryId,
    /// To whom.
    pub subject: Subject,
    /// What; nothing means that it was taken back.
    pub permission: Option<Permission>,
}

/// What is said of an entry now, by one who says it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttributesItem {
    /// The entry.
    pub entry: EntryId,
    /// Who says it.
    pub source: AttributeSource,
    /// The version in whose bytes they were found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionId>,
    /// The attributes that are other ones; what is not named stays.
    pub set: Vec<SetAttribute>,
}

/// An attribute with its values now; without any it is gone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SetAttribute {
    /// Its name.
    pub name: AttributeName,
    /// Its values.
    pub values: Vec<AttributeValue>,
}

/// What a record says.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RecordChange {
    /// The space was made.
    SpaceCreated(SpaceBody),
    /// The space has other settings.
    SpaceChanged(SpaceBody),
    /// The space is gone.
    SpaceRemoved,
    /// The space has another home, which takes it over.
    SpaceMoved(SpaceMovedBody),
    /// The space has another home, in a new term.
    SpacePromoted(SpacePromotedBody),
    /// Collections were made.
    EntriesCreated(Vec<CreatedItem>),
    /// Links were made.
    LinksCreated(Vec<LinkItem>),
    /// Objects have new versions.
    ObjectsPublished(Vec<PublishedItem>),
    /// Objects have other times or permission bits.
    ObjectsChanged(Vec<ChangedItem>),
    /// Entries have other places or names.
    EntriesMoved(Vec<MovedItem>),
    /// Entries are gone.
    EntriesRemoved(Vec<RemovedItem>),
    /// Copies have other states.
    ReplicasChanged(Vec<ReplicaItem>),
    /// Copies are gone.
    ReplicasRemoved(Vec<ReplicaRemovedItem>),
    /// Grants are other ones.
    GrantsChanged(Vec<GrantItem>),
    /// Other things are said of entries.
    AttributesChanged(Vec<AttributesItem>),
    /// A kind that this release does not know.
    Unknown,
}

impl Record {
    /// Decodes the body.
    ///
    /// # Errors
    /// `Unsupported` for a newer form of a known kind, `Corrupt` for a body that is not of its form.
    pub fn change(&self) -> Result<RecordChange> {
        let change = match self.kind.as_str() {
            kind::SPACE_CREATED => RecordChange::SpaceCreated(self.decode()?),
            kind::SPACE_CHANGED => RecordChange::SpaceChanged(self.decode()?),
            kind::SPACE_REMOVED => RecordChange::SpaceRemoved,
            kind::SPACE_MOVED => RecordChange::SpaceMoved(self.decode()?),
            kind::SPACE_PROMOTED => RecordChange::SpacePromoted(self.decode()?),
            kind::ENTRIES_CREATED => RecordChange::EntriesCreated(self.items()?),
            kind::LINKS_CREATED => RecordChange::LinksCreated(self.items()?),
            kind::OBJECTS_PUBLISHED => RecordChange::ObjectsPublished(self.items()?),
            kind::OBJECTS_CHANGED => RecordChange::ObjectsChanged(self.items()?),
            kind::ENTRIES_MOVED => RecordChange::EntriesMoved(self.items()?),
            kind::ENTRIES_REMOVED => RecordChange::EntriesRemoved(self.items()?),
            kind::REPLICAS_CHANGED => RecordChange::ReplicasChanged(self.items()?),
            kind::REPLICAS_REMOVED => RecordChange::ReplicasRemoved(self.items()?),
            kind::GRANTS_CHANGED => RecordChange::GrantsChanged(self.items()?),
            kind::ATTRIBUTES_CHANGED => RecordChange::AttributesChanged(self.items()?),
            _ => RecordChange::Unknown,
        };
        Ok(change)
    }

    fn items<T: DeserializeOwned>(&self) -> Result<Vec<T>> {
        self.decode::<Items<T>>().map(|body| body.items)
    }

    fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        let Record { kind, v, position, .. } = self;
        if *v != 1 {
            return Err(Error::unsupported(format!(
                "record {position} of kind {kind} has the unknown form {v}"
            )));
        }
        T::deserialize(&self.body).map_err(|error| {
            Error::corrupt(format!("cannot read record {position} of kind {kind}")).with_source(error)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Line {
        kind: String,
        v: u32,
        body: serde_json::Value,
    }

    fn record(kind: &str, v: u32, body: serde_json::Value) -> Record {
        let position = Position { space: SpaceId::new(), term: 1, seq: 1 };
        Record { position, at: Timestamp::EPOCH, actor: "system".into(), kind: kind.into(), v, body }
    }

    fn samples() -> Vec<Record> {
        let lines = include_str!("../samples/journal-v1.jsonl").lines();
        lines
            .map(|line| {
                let Line { kind, v, body } = serde_json::from_str(line).unwrap();
                record(&kind, v, body)
            })
            .collect()
    }

    /// The stored samples of form 1. Never changed; a new form gets samples of its own.
    #[test]
    fn form_1_samples_are_still_read_and_written() {
        let mut kinds = Vec::new();
        for sample in samples() {
            let again = match sample.change().unwrap() {
                RecordChange::SpaceCreated(body) | RecordChange::SpaceChanged(body) => {
                    serde_json::to_value(body)
                }
                RecordChange::SpaceRemoved => Ok(serde_json::json!({})),
                RecordChange::SpaceMoved(body) => serde_json::to_value(body),
                RecordChange::SpacePromoted(body) => serde_json::to_value(body),
                RecordChange::EntriesCreated(items) => serde_json::to_value(Items { items }),
                RecordChange::LinksCreated(items) => serde_json::to_value(Items { items }),
                RecordChange::ObjectsPublished(items) => serde_json::to_value(Items { items }),
                RecordChange::ObjectsChanged(items) => serde_json::to_value(Items { items }),
                RecordChange::EntriesMoved(items) => serde_json::to_value(Items { items }),
                RecordChange::EntriesRemoved(items) => serde_json::to_value(Items { items }),
                RecordChange::ReplicasChanged(items) => serde_json::to_value(Items { items }),
                RecordChange::ReplicasRemoved(items) => serde_json::to_value(Items { items }),
                RecordChange::GrantsChanged(items) => serde_json::to_value(Items { items }),
                RecordChange::AttributesChanged(items) => serde_json::to_value(Items { items }),
                RecordChange::Unknown => panic!("{} is not known", sample.kind),
            };
            assert_eq!(again.unwrap(), sample.body, "{}", sample.kind);
            kinds.push(sample.kind);
        }
        assert_eq!(kinds.len(), 21, "a sample of each kind, and of what was added to one");
    }

    #[test]
    fn newer_records_are_passed_over_or_refused_but_not_guessed() {
        for mut sample in samples() {
            if let Some(body) = sample.body.as_object_mut() {
                body.insert("new_field".into(), 7.into());
            }
            assert!(sample.change().is_ok(), "a new field is optional");
            sample.v = 2;
            let outcome = sample.change();
            assert!(outcome.is_err() || sample.kind == kind::SPACE_REMOVED, "a new form is refused by name");
        }
        let unknown = record("stars.aligned", 1, serde_json::json!({}));
        assert_eq!(unknown.change().unwrap(), RecordChange::Unknown);
        assert!(record(kind::ENTRIES_MOVED, 1, serde_json::json!({ "items": 7 })).change().is_err());
    }
}
