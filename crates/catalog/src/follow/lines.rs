//! The snapshot of a space, forms 1 to 3: all rows that its home and its followers have equal, as of one position.
//!
//! Participants: the home writes, a follower reads. Goals: begun without the journal's past; of any size with little
//! memory on both sides; a cut or a change is noticed. Non-goals: what each site has of its own (leases, intents,
//! garbage, when copies were checked), the journal's past.
//!
//! UTF-8, a JSON object with one field in each line; the field names the kind of line:
//!
//! ```text
//! {"snapshot":{"form":1,"space":{…},"position":"0197….2.17","next_id":2001}}
//! {"collection":{"id":1,"parent":0,"name":"",…}}       by id
//! {"object":{"id":3,"parent":1,"name":"x.h5",…}}       by id
//! {"link":{"id":9,"parent":1,"name":"latest",…}}       form 3 only, by id
//! {"version":{"id":4,"entry":3,…}}                     former versions that have copies, by id
//! {"replica":{"version":5,"store":"0197…",…}}          by version and store
//! {"grant":{"entry":1,"subject":"user:alice",…}}       by entry and subject, as the home calls it
//! {"attribute":{"entry":3,"name":"level",…}}           from form 2 on: a value, by entry, name, source and place
//! {"end":{"lines":9,"blake3":"…"}}                     the number and hash of all lines before
//! ```
//!
//! Form 2 is written where a space has attributes, form 3 where it has links, so that a release that reads earlier forms
//! alone follows all other spaces.
//!
//! The order is part of the form: no line comes twice, and equal rows give equal lines. A collection may come before the
//! one that it is in, which may be younger; that all are connected is checked when all are there. A new field is
//! optional; another kind of line or order is a new form, and is refused by name.

use percale_core::access::{Permission, Subject};
use percale_core::attribute::{AttributeName, AttributeValue};
use percale_core::digest::Digest;
use percale_core::ids::{EntryId, StoreId, VersionId};
use percale_core::path::check_name;
use percale_core::state::ReplicaState;
use percale_core::tree::RootHash;
use percale_core::{ByteCount, FileMode, LinkTarget, Position, Timestamp};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::model::{AttributeSource, Content, EntryKind};
use crate::record::SpaceBody;
use crate::rows::attribute::AttributeRow;
use crate::rows::entry::EntryRow;
use crate::rows::replica::VersionRow;

/// The form without attributes.
pub(super) const PLAIN: u32 = 1;
/// The form with attributes.
pub(super) const WITH_ATTRIBUTES: u32 = 2;
/// The form with links.
pub(super) const WITH_LINKS: u32 = 3;

/// Longest line that is read, in bytes. The longest that is written has a text of 8192 bytes, each of them escaped.
pub(super) const MAX_LINE: usize = 65_536;

/// Longest key of a copy, in bytes, as the stores have it.
const MAX_KEY: usize = 4096;

/// A line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    Snapshot(Head),
    Collection(CollectionLine),
    Object(ObjectLine),
    Link(LinkLine),
    Version(VersionLine),
    Replica(ReplicaLine),
    Grant(GrantLine),
    Attribute(AttributeLine),
    End(End),
}

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    pub form: u32,
    pub space: SpaceBody,
    pub position: Position,
    /// Above all ids that were given out.
    pub next_id: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CollectionLine {
    pub id: EntryId,
    pub parent: EntryId,
    pub name: String,
    pub created: Timestamp,
    pub modified: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ObjectLine {
    pub id: EntryId,
    pub parent: EntryId,
    pub name: String,
    pub created: Timestamp,
    pub modified: Timestamp,
    pub version: VersionId,
    pub size: ByteCount,
    pub root: Option<RootHash>,
    pub mtime: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FileMode>,
    #[serde(default)]
    pub digests: Vec<Digest>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LinkLine {
    pub id: EntryId,
    pub parent: EntryId,
    pub name: String,
    pub target: LinkTarget,
    pub created: Timestamp,
    pub modified: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct VersionLine {
    pub id: VersionId,
    pub entry: EntryId,
    pub size: ByteCount,
    pub root: Option<RootHash>,
    pub created: Timestamp,
    pub superseded: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ReplicaLine {
    pub version: VersionId,
    pub store: StoreId,
    pub entry: EntryId,
    pub key: String,
    pub state: ReplicaState,
    pub generation: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GrantLine {
    pub entry: EntryId,
    pub subject: Subject,
    pub permission: Permission,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct AttributeLine {
    pub entry: EntryId,
    pub name: AttributeName,
    pub source: AttributeSource,
    pub ord: u64,
    pub value: AttributeValue,
}

/// The last line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    pub lines: u64,
    pub blake3: String,
}

impl From<EntryRow> for Line {
    fn from(row: EntryRow) -> Self {
        let EntryRow { id, parent, name, created, modified, content, target, .. } = row;
        let (id, parent) = (EntryId(id), EntryId(parent));
        if let Some(target) = target {
            return Line::Link(LinkLine { id, parent, name, target, created, modified });
        }
        match content {
            None => Line::Collection(CollectionLine { id, parent, name, created, modified }),
            Some(Content { version, size, root, mtime, mode, digests }) => Line::Object(ObjectLine {
                id,
                parent,
                name,
                created,
                modified,
                version,
                size,
                root,
                mtime,
                mode,
                digests,
            }),
        }
    }
}

impl From<VersionRow> for Line {
    fn from(row: VersionRow) -> Self {
        let VersionRow { id, entry, size, root, created, superseded, .. } = row;
        Line::Version(VersionLine { id, entry: EntryId(entry), size, root, created, superseded })
    }
}

impl From<AttributeRow> for Line {
    fn from(row: AttributeRow) -> Self {
        let AttributeRow { entry, name, source, ord, value, .. } = row;
        Line::Attribute(AttributeLine { entry: EntryId(entry), name, source, ord, value })
    }
}

impl AttributeLine {
    pub fn into_row(self, sp: i64) -> AttributeRow {
        let Self { entry, name, source, ord, value } = self;
        AttributeRow { sp, entry: entry.0, name, source, ord, value }
    }
}

impl CollectionLine {
    pub fn into_row(self, sp: i64) -> EntryRow {
        let Self { id, parent, name, created, modified } = self;
        let kind = EntryKind::Collection;
        let (content, target) = (None, None);
        EntryRow { sp, id: id.0, parent: parent.0, name, kind, created, modified, content, target }
    }
}

impl LinkLine {
    pub fn into_row(self, sp: i64) -> EntryRow {
        let Self { id, parent, name, target, created, modified } = self;
        let (kind, content, target) = (EntryKind::Link, None, Some(target));
        EntryRow { sp, id: id.0, parent: parent.0, name, kind, created, modified, content, target }
    }
}

impl ObjectLine {
    pub fn into_row(self, sp: i64) -> EntryRow {
        let Self { id, parent, name, created, modified, version, size, root, mtime, mode, digests } = self;
        let content = Some(Content { version, size, root, mtime, mode, digests });
        let (kind, target) = (EntryKind::Object, None);
        EntryRow { sp, id: id.0, parent: parent.0, name, kind, created, modified, content, target }
    }
}

impl VersionLine {
    pub fn into_row(self, sp: i64) -> VersionRow {
        let Self { id, entry, size, root, created, superseded } = self;
        VersionRow { sp, id, entry: entry.0, size, root, created, superseded }
    }
}

/// Checks a number from another site: ids and sizes are stored as signed numbers of 64 bits.
pub(super) fn check_number(number: u64) -> Result<()> {
    match i64::try_from(number) {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::does_not_fit(format!("the number {number} is larger than 2^63 - 1"))),
    }
}

/// Checks the name of an entry from another site.
pub(super) fn check_entry_name(name: &str) -> Result<()> {
    let wrong = |error| Error::does_not_fit("the name of an entry is none").with_source(error);
    check_name(name).map_err(wrong)
}

/// Checks the key of a copy from another site: stores go by it, also own ones.
pub(super) fn check_key(key: &str) -> Result<()> {
    let is_bounded = key.len() <= MAX_KEY;
    match is_bounded && key.split('/').all(|part| check_name(part).is_ok()) {
        true => Ok(()),
        false => Err(Error::does_not_fit("the key of a copy is none that a store has")),
    }
}

/// Where a line has its place: after all with a smaller one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Head,
    Collection(EntryId),
    Object(EntryId),
    Link(EntryId),
    Version(VersionId),
    Replica(VersionId, StoreId),
    Grant(EntryId, String),
    Attribute(EntryId, AttributeName, AttributeSource, u64),
    End,
}

impl Line {
    fn place(&self) -> Place {
        match self {
            Line::Snapshot(_) => Place::Head,
            Line::Collection(line) => Place::Collection(line.id),
            Line::Object(line) => Place::Object(line.id),
            Line::Link(line) => Place::Link(line.id),
            Line::Version(line) => Place::Version(line.id),
            Line::Replica(line) => Place::Replica(line.version, line.store),
            Line::Grant(line) => Place::Grant(line.entry, line.subject.to_string()),
            Line::Attribute(AttributeLine { entry, name, source, ord, .. }) => {
                Place::Attribute(*entry, name.clone(), *source, *ord)
            }
            Line::End(_) => Place::End,
        }
    }

    fn check(&self) -> Result<()> {
        match self {
            Line::Snapshot(Head { position, next_id, .. }) => {
                check_number(position.seq)?;
                check_number(*next_id)
            }
            Line::Collection(CollectionLine { id: EntryId::ROOT, parent: EntryId(0), name, .. })
                if name.is_empty() =>
            {
                Ok(())
            }
            Line::Collection(CollectionLine { id, name, .. }) => {
                check_number(id.0)?;
                check_entry_name(name)
            }
            Line::Object(ObjectLine { id, name, version, size, .. }) => {
                check_number(id.0)?;
                check_number(version.0)?;
                check_number(size.get())?;
                check_entry_name(name)
            }
            Line::Link(LinkLine { id, name, .. }) => {
                check_number(id.0)?;
                check_entry_name(name)
            }
            Line::Version(VersionLine { id, size, .. }) => {
                check_number(id.0)?;
                check_number(size.get())
            }
            Line::Replica(ReplicaLine { key, .. }) => check_key(key),
            Line::Attribute(AttributeLine { value, ord, .. }) => {
                check_number(*ord)?;
                value.check().map_err(Error::does_not_fit)
            }
            Line::Grant(_) | Line::End(_) => Ok(()),
        }
    }

    /// The greatest id that the line names.
    fn top(&self) -> u64 {
        match self {
            Line::Collection(line) => line.id.0,
            Line::Object(line) => line.id.0.max(line.version.0),
            Line::Link(line) => line.id.0,
            Line::Version(line) => line.id.0,
            _ => 0,
        }
    }
}

/// Reads lines one after the other, and checks each and their order.
#[derive(Debug)]
pub(super) struct Reader {
    hasher: blake3::Hasher,
    lines: u64,
    last: Option<Place>,
    next_id: u64,
    form: u32,
}

impl Reader {
    /// Begins before the first line.
    pub fn new() -> Self {
        Self { hasher: blake3::Hasher::new(), lines: 0, last: None, next_id: 0, form: PLAIN }
    }

    /// Tells whether the last line was read.
    pub fn is_done(&self) -> bool {
        self.last == Some(Place::End)
    }

    /// Reads a line, given without its end.
    ///
    /// # Errors
    /// `DoesNotFit`, or `Unsupported` for a newer form.
    pub fn line(&mut self, text: &[u8]) -> Result<Line> {
        let line = self.parse(text)?;
        line.check().map_err(|error| self.wrong("it cannot be stored").with_source(error))?;
        let place = line.place();
        match (&self.last, &line) {
            (None, Line::Snapshot(head)) => (self.next_id, self.form) = (head.next_id, head.form),
            (_, Line::Attribute(_)) if self.form == PLAIN => {
                return Err(self.wrong("its form has no attributes"));
            }
            (_, Line::Link(_)) if self.form < WITH_LINKS => {
                return Err(self.wrong("its form has no links"));
            }
            (None, _) => return Err(self.wrong("the head is missing")),
            (Some(last), _) if *last >= place => return Err(self.wrong("it is out of order")),
            _ => {}
        }
        if line.top() >= self.next_id {
            return Err(self.wrong("it has an id that was not given out"));
        }
        match &line {
            Line::End(end) => {
                if end.lines != self.lines || end.blake3 != self.hasher.finalize().to_hex().as_str() {
                    return Err(self.wrong("the lines before are not those that were written"));
                }
            }
            _ => {
                self.hasher.update(text).update(b"\n");
                self.lines += 1;
            }
        }
        self.last = Some(place);
        Ok(line)
    }

    fn parse(&self, text: &[u8]) -> Result<Line> {
        #[derive(Deserialize)]
        struct Probe {
            snapshot: Form,
        }
        #[derive(Deserialize)]
        struct Form {
            form: u32,
        }
        if self.last.is_none()
            && let Ok(Probe { snapshot: Form { form } }) = serde_json::from_slice(text)
            && !(PLAIN..=WITH_LINKS).contains(&form)
        {
            return Err(Error::unsupported(format!(
                "the snapshot has form {form}; this release reads {PLAIN} to {WITH_LINKS}"
            )));
        }
        serde_json::from_slice(text)
            .map_err(|error| self.wrong("this is not what should be here").with_source(error))
    }

    /// The error for the next line.
    pub fn wrong(&self, message: &str) -> Error {
        Error::does_not_fit(format!("cannot read line {} of a snapshot: {message}", self.lines + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::to_json;

    /// The stored samples. Never changed; a new form gets a sample of its own.
    const FORM_3: &str = include_str!("../../samples/snapshot-v3.jsonl");
    const FORM_2: &str = include_str!("../../samples/snapshot-v2.jsonl");
    const SAMPLE: &str = include_str!("../../samples/snapshot-v1.jsonl");

    fn read(text: &str) -> Result<Vec<Line>> {
        let mut reader = Reader::new();
        let lines: Result<Vec<Line>> = text.lines().map(|line| reader.line(line.as_bytes())).collect();
        lines.and_then(|lines| if reader.is_done() { Ok(lines) } else { Err(reader.wrong("it is cut")) })
    }

    #[test]
    fn form_1_is_still_read_and_written() {
        let lines = read(SAMPLE).unwrap();
        assert_eq!(lines.len(), 10, "a sample of each kind");
        for (line, text) in lines.iter().zip(SAMPLE.lines()) {
            assert_eq!(to_json(line).unwrap(), text);
        }
    }

    #[test]
    fn form_2_is_still_read_and_written() {
        let lines = read(FORM_2).unwrap();
        let values = lines.iter().filter(|line| matches!(line, Line::Attribute(_)));
        assert_eq!(values.count(), 6, "a value of each type, and one that is no number");
        for (line, text) in lines.iter().zip(FORM_2.lines()) {
            assert_eq!(to_json(line).unwrap(), text);
        }
        let error = read(&FORM_2.replacen("\"form\":2", "\"form\":1", 1)).unwrap_err();
        assert!(error.to_string().contains("its form has no attributes"), "{error}");
    }

    #[test]
    fn form_3_is_still_read_and_written() {
        let lines = read(FORM_3).unwrap();
        let links = lines.iter().filter(|line| matches!(line, Line::Link(_)));
        assert_eq!(links.count(), 2);
        for (line, text) in lines.iter().zip(FORM_3.lines()) {
            assert_eq!(to_json(line).unwrap(), text);
        }
        let error = read(&FORM_3.replacen("\"form\":3", "\"form\":2", 1)).unwrap_err();
        assert!(error.to_string().contains("its form has no links"), "{error}");
    }

    #[test]
    fn any_change_is_noticed() {
        let lines: Vec<&str> = SAMPLE.lines().collect();
        let text = |lines: &[&str]| lines.join("\n");
        for at in 0..lines.len() {
            let mut cut = lines.clone();
            cut.remove(at);
            assert!(read(&text(&cut)).is_err(), "line {at} is missing");
            let mut twice = lines.clone();
            twice.insert(at, lines[at]);
            assert!(read(&text(&twice)).is_err(), "line {at} is there twice");
            if at > 0 {
                let mut swapped = lines.clone();
                swapped.swap(at, at - 1);
                assert!(read(&text(&swapped)).is_err(), "line {at} is too early");
            }
        }
        for (at, byte) in SAMPLE.bytes().enumerate() {
            let mut altered = SAMPLE.as_bytes().to_vec();
            altered[at] = if byte == b'7' { b'8' } else { b'7' };
            let altered = String::from_utf8_lossy(&altered);
            assert!(read(&altered).is_err(), "byte {at}");
        }
    }

    #[test]
    fn what_cannot_be_stored_is_refused() {
        for (from, to) in [
            ("\"name\":\"x.h5\"", "\"name\":\"..\""),
            ("\"name\":\"x.h5\"", "\"name\":\"a/b\""),
            ("\"key\":\"lab/x.h5\"", "\"key\":\"../../etc/passwd\""),
            ("\"key\":\"lab/x.h5\"", "\"key\":\"/etc/passwd\""),
            ("\"size\":1048577", "\"size\":9223372036854775808"),
            ("\"id\":3,", "\"id\":3000,"),
        ] {
            assert!(SAMPLE.contains(from), "{from}");
            let error = read(&SAMPLE.replacen(from, to, 1)).unwrap_err();
            let why = std::error::Error::source(&error).is_some() || to.contains("3000");
            assert!(why, "{to} is refused for itself and not for the hash: {error}");
        }
        let newer = read(&SAMPLE.replacen("\"form\":1", "\"form\":4", 1)).unwrap_err();
        assert_eq!(*newer.kind(), crate::ErrorKind::Unsupported);
    }
}
