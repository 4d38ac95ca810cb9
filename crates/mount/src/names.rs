//! The namespace as this mount knows it: nodes, their names, and what is in the collections that were listed.
//!
//! A node id, which is also the inode number that programs see, is the entry's id in the catalog, with the number of its space above
//! it. Two kinds of node differ, in their highest bits: one that was made here and is not published yet, and one that took the place
//! of another which programs still have open ([`Names::replace`]). The kernel holds ids until it forgets them, so a node keeps its id
//! as long as it is known.

use std::collections::{BTreeMap, HashMap};

use percale_api::entries::Content;
use percale_core::access::Permission;
use percale_core::ids::{EntryId, VersionId};
use percale_core::{ErrorCode, LinkTarget, ObjectPath, Position, Timestamp};

use crate::object::Object;

/// Names a node, to the kernel too.
pub type NodeId = u64;

/// The top of the mount.
pub const TOP: NodeId = 1;

/// No node: of what an earlier process had staged.
pub const LEFT: NodeId = 0;

/// Bits of an entry's id; a space would have to make a million entries a second for nine years to need more.
const ENTRY_BITS: u32 = 48;
/// Bits of a space's number.
const SPACE_BITS: u32 = 12;
/// Set in ids of nodes that are not those of their entries.
const OWN: u64 = 1 << 63;

/// A space's number within this mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceNumber(pub u16);

impl SpaceNumber {
    /// The most spaces that one mount shows.
    pub const MOST: usize = 1 << SPACE_BITS;
}

/// A name, and what has it.
#[derive(Debug)]
pub struct Node {
    /// The space that it is in; none for the top of a mount of several.
    pub space: Option<SpaceNumber>,
    /// Its id in the catalog, once it is there.
    pub entry: Option<EntryId>,
    /// The collection that it is in.
    pub parent: NodeId,
    /// Its name there.
    pub name: Box<str>,
    /// Whether the name is still its own. Without it, it goes when nobody uses it.
    pub is_linked: bool,
    /// How often the kernel was told of it, and has not forgotten.
    pub lookups: u64,
    /// What it is.
    pub what: What,
    /// The version by which it is found.
    indexed: Option<VersionId>,
}

impl Node {
    /// Returns the version that it has, if it is a file that has one.
    fn version(&self) -> Option<VersionId> {
        match &self.what {
            What::Object(object) => object.content.as_ref().map(|content| content.version),
            What::Collection(_) | What::Link(_) => None,
        }
    }

    /// Tells whether it is a file that has something that is not published.
    fn has_work(&self) -> bool {
        matches!(&self.what, What::Object(object) if object.work.is_some())
    }
}

/// What a node is.
#[derive(Debug)]
pub enum What {
    /// A directory.
    Collection(Box<Collection>),
    /// A file.
    Object(Box<Object>),
    /// A symbolic link.
    Link(Link),
}

/// A symbolic link.
#[derive(Debug)]
pub struct Link {
    /// Where it leads.
    pub target: LinkTarget,
    /// When it was made.
    pub modified: Timestamp,
}

/// A directory.
#[derive(Debug, Default)]
pub struct Collection {
    /// What is in it, as far as it is known.
    pub children: BTreeMap<Box<str>, NodeId>,
    /// Whether that is everything.
    pub is_listed: bool,
    /// How many names in it were asked for one by one, since it has more than a page of them; 0 while that is not known.
    pub asked_for: u32,
    /// What the caller may do there, once it or a first page of it was listed.
    pub permission: Option<Permission>,
    /// When its entries last changed, as far as is known.
    pub modified: Option<Timestamp>,
    /// Up to which record of the journal its listing was made.
    pub listed_at: Option<Position>,
    /// Whether something in it changed since it was last begun to be listed.
    pub is_touched: bool,
    /// Whether it changes faster than it can be listed. It is asked for each time.
    pub is_restless: bool,
    /// Why something in it was refused after a program was told that it was done, until one that asks hears of it.
    pub refused: Option<ErrorCode>,
    /// How often its entries changed.
    changes: u64,
    /// As of which change the kernel keeps its listing.
    kept: Option<u64>,
    /// How many have it open.
    readers: u32,
}

/// What the kernel does with the listing of a directory that is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// It may use what it kept.
    Kept,
    /// It may keep what it reads now, in place of what it kept.
    Anew,
    /// It may keep nothing: somebody is still reading an older listing, and could fill it in.
    Nothing,
}

impl Collection {
    /// A directory of which nothing is known but when it changed.
    pub fn new(modified: Option<Timestamp>) -> Self {
        Self { modified, ..Self::default() }
    }

    fn set(&mut self, name: &str, id: NodeId) {
        self.changes += 1;
        self.children.insert(name.into(), id);
    }

    fn unset(&mut self, name: &str, id: NodeId) {
        if self.children.get(name) == Some(&id) {
            self.changes += 1;
            self.children.remove(name);
        }
    }

    /// Notes that somebody opens it, and tells what the kernel may keep.
    pub fn opened(&mut self) -> Keep {
        let is_first = self.readers == 0;
        self.readers += 1;
        if self.kept == Some(self.changes) {
            return Keep::Kept;
        }
        if !is_first {
            return Keep::Nothing;
        }
        self.kept = Some(self.changes);
        Keep::Anew
    }

    /// Notes that somebody closed it.
    pub fn closed(&mut self) {
        self.readers = self.readers.saturating_sub(1);
    }
}

/// All nodes.
#[derive(Debug)]
pub struct Names {
    /// In boxes: a table has up to twice the room that it needs.
    nodes: HashMap<NodeId, Box<Node>>,
    /// Nodes of entries whose id is not that of the entry.
    elsewhere: HashMap<NodeId, NodeId>,
    /// Files by their versions: the journal names these alone where it tells of copies.
    versions: HashMap<(SpaceNumber, VersionId), NodeId>,
    next_own: u64,
}

fn id_of(space: SpaceNumber, entry: EntryId) -> NodeId {
    (u64::from(space.0) << ENTRY_BITS) | (entry.0 & ((1 << ENTRY_BITS) - 1))
}

impl Names {
    /// Makes the table with its top: the collection of that entry of the first space, or a collection of spaces.
    pub fn new(top: Option<EntryId>) -> Self {
        let node = Node {
            space: top.map(|_| SpaceNumber(0)),
            entry: top,
            parent: TOP,
            name: "".into(),
            is_linked: true,
            lookups: 1,
            what: What::Collection(Box::default()),
            indexed: None,
        };
        let mut elsewhere = HashMap::new();
        if let Some(entry) = top
            && entry != EntryId::ROOT
        {
            elsewhere.insert(id_of(SpaceNumber(0), entry), TOP);
        }
        Self { nodes: HashMap::from([(TOP, node.into())]), elsewhere, versions: HashMap::new(), next_own: 0 }
    }

    /// Returns a node.
    pub fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id).map(Box::as_ref)
    }

    /// Returns a node, to change it.
    pub fn get_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(&id).map(Box::as_mut)
    }

    /// Returns a collection.
    pub fn collection(&self, id: NodeId) -> Option<&Collection> {
        match &self.nodes.get(&id)?.what {
            What::Collection(collection) => Some(collection),
            What::Object(_) | What::Link(_) => None,
        }
    }

    /// Returns a collection, to change it.
    pub fn collection_mut(&mut self, id: NodeId) -> Option<&mut Collection> {
        match &mut self.nodes.get_mut(&id)?.what {
            What::Collection(collection) => Some(collection),
            What::Object(_) | What::Link(_) => None,
        }
    }

    /// Returns an object.
    pub fn object(&self, id: NodeId) -> Option<&Object> {
        match &self.nodes.get(&id)?.what {
            What::Object(object) => Some(object),
            What::Collection(_) | What::Link(_) => None,
        }
    }

    /// Returns an object, to change it.
    pub fn object_mut(&mut self, id: NodeId) -> Option<&mut Object> {
        match &mut self.nodes.get_mut(&id)?.what {
            What::Object(object) => Some(object),
            What::Collection(_) | What::Link(_) => None,
        }
    }

    /// Returns the node of an entry, if it is known under a name.
    pub fn of_entry(&self, space: SpaceNumber, entry: EntryId) -> Option<NodeId> {
        let id = id_of(space, entry);
        let id = self.elsewhere.get(&id).copied().unwrap_or(id);
        // A node without a name may still be open, and the entry be there again.
        let node = self.nodes.get(&id).filter(|node| node.is_linked && node.entry == Some(entry))?;
        (node.space == Some(space)).then_some(id)
    }

    /// Returns what has a name.
    pub fn child(&self, parent: NodeId, name: &str) -> Option<NodeId> {
        self.collection(parent)?.children.get(name).copied()
    }

    /// Adds a node for an entry of the catalog, which must not be known yet.
    pub fn add(
        &mut self,
        parent: NodeId,
        name: &str,
        (space, entry): (SpaceNumber, EntryId),
        what: What,
    ) -> NodeId {
        let id = id_of(space, entry);
        let id = match self.nodes.contains_key(&id) {
            // An old node that programs still have open has it.
            true => self.own_id(Some(id)),
            false => id,
        };
        self.insert(id, Node { space: Some(space), entry: Some(entry), ..new_node(parent, name, what) });
        id
    }

    /// Adds a node that is not in the catalog yet.
    pub fn add_new(&mut self, parent: NodeId, name: &str, space: SpaceNumber, what: What) -> NodeId {
        let id = self.own_id(None);
        self.insert(id, Node { space: Some(space), ..new_node(parent, name, what) });
        id
    }

    fn own_id(&mut self, entry: Option<NodeId>) -> NodeId {
        self.next_own += 1;
        let id = OWN | self.next_own;
        if let Some(entry) = entry {
            self.elsewhere.insert(entry, id);
        }
        id
    }

    fn insert(&mut self, id: NodeId, node: Node) {
        let (parent, name) = (node.parent, node.name.clone());
        self.nodes.insert(id, node.into());
        self.changed_version(id);
        if let Some(collection) = self.collection_mut(parent) {
            collection.set(&name, id);
        }
    }

    /// Takes over that a file has another version, by which it is found from now on.
    pub fn changed_version(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let (space, version) = (node.space, node.version());
        let before = std::mem::replace(&mut node.indexed, version);
        let Some(space) = space else { return };
        if let Some(before) = before.filter(|before| Some(*before) != version) {
            self.forget_version(id, space, before);
        }
        if let Some(version) = version {
            self.versions.insert((space, version), id);
        }
    }

    fn forget_version(&mut self, id: NodeId, space: SpaceNumber, version: VersionId) {
        // Another that took its place may be found by it.
        if self.versions.get(&(space, version)) == Some(&id) {
            self.versions.remove(&(space, version));
        }
    }

    /// Notes the id that a node got in the catalog.
    pub fn published(&mut self, id: NodeId, entry: EntryId) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if node.entry == Some(entry) {
            return;
        }
        node.entry = Some(entry);
        if let Some(space) = node.space {
            let natural = id_of(space, entry);
            if natural != id {
                self.elsewhere.insert(natural, id);
            }
        }
    }

    /// Puts another node in the place of one that programs have open, and that keeps what it is; nothing if that has no name any more.
    pub fn replace(&mut self, id: NodeId, what: What) -> Option<NodeId> {
        let old = self.nodes.get_mut(&id).filter(|node| node.is_linked)?;
        let (space, entry, parent, name) = (old.space?, old.entry.take(), old.parent, old.name.clone());
        old.is_linked = false;
        let new = self.own_id(entry.map(|entry| id_of(space, entry)));
        self.insert(new, Node { space: Some(space), entry, ..new_node(parent, &name, what) });
        Some(new)
    }

    /// Gives a node another name, and takes it from whatever had it, which is returned. A node that would be below itself stays.
    pub fn rename(&mut self, id: NodeId, parent: NodeId, name: &str) -> Option<NodeId> {
        if self.is_within(parent, id) {
            return None;
        }
        let replaced = self.child(parent, name).filter(|child| *child != id);
        if let Some(replaced) = replaced {
            self.unlink(replaced);
        }
        let node = self.nodes.get_mut(&id)?;
        let (old_parent, old_name) = (node.parent, std::mem::replace(&mut node.name, name.into()));
        node.parent = parent;
        if let Some(old) = self.collection_mut(old_parent) {
            old.unset(&old_name, id);
        }
        if let Some(new) = self.collection_mut(parent) {
            new.set(name, id);
        }
        replaced
    }

    /// Takes its name from a node.
    pub fn unlink(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.is_linked = false;
        let (parent, name) = (node.parent, node.name.clone());
        if let (Some(space), Some(entry)) = (node.space, node.entry) {
            let natural = id_of(space, entry);
            if self.elsewhere.get(&natural) == Some(&id) {
                self.elsewhere.remove(&natural);
            }
        }
        if let Some(collection) = self.collection_mut(parent) {
            collection.unset(&name, id);
        }
        self.drop_unused(id);
    }

    /// Notes that the kernel was told of a node.
    pub fn looked_up(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups += 1;
        }
    }

    /// Notes that the kernel forgot a node.
    pub fn forget(&mut self, id: NodeId, count: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups = node.lookups.saturating_sub(count);
        }
        self.drop_unused(id);
    }

    /// Removes a node that has no name and that nobody uses.
    pub fn drop_unused(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get(&id) else { return };
        let is_open = matches!(&node.what, What::Object(object) if object.is_in_use());
        if !node.is_linked && node.lookups == 0 && !is_open {
            if let (Some(space), Some(version)) = (node.space, node.indexed) {
                self.forget_version(id, space, version);
            }
            self.nodes.remove(&id);
        }
    }

    /// Doubts what is known to be in a collection, so that it is listed anew. Returns the names in it.
    pub fn doubt(&mut self, id: NodeId) -> Vec<Box<str>> {
        let Some(collection) = self.collection_mut(id) else { return Vec::new() };
        collection.is_listed = false;
        collection.is_touched = true;
        // The first page tells what may be done there.
        collection.permission = None;
        collection.asked_for = 0;
        collection.children.keys().cloned().collect()
    }

    /// Returns where a node is, from the top of the mount on, the names of the nodes above it first.
    pub fn components(&self, id: NodeId) -> Option<Vec<&str>> {
        let mut names = Vec::new();
        let mut at = id;
        while at != TOP {
            let node = self.nodes.get(&at)?;
            if !node.is_linked {
                return None;
            }
            names.push(&*node.name);
            at = node.parent;
        }
        names.reverse();
        Some(names)
    }

    /// Tells whether a node is another one, or below it.
    pub fn is_within(&self, id: NodeId, ancestor: NodeId) -> bool {
        let mut at = id;
        loop {
            if at == ancestor {
                return true;
            }
            match self.nodes.get(&at) {
                Some(node) if at != TOP => at = node.parent,
                _ => return false,
            }
        }
    }

    /// Returns the object whose current version that is.
    pub fn of_version(&mut self, space: SpaceNumber, version: VersionId) -> Option<&mut Object> {
        let id = *self.versions.get(&(space, version))?;
        self.object_mut(id)
    }

    /// Returns all collections.
    pub fn collections(&self) -> Vec<NodeId> {
        self.nodes
            .iter()
            .filter(|(_, node)| matches!(node.what, What::Collection(_)))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Returns how many files have something that is not published, be it on its way or refused.
    pub fn works(&self) -> usize {
        self.nodes.values().filter(|node| node.has_work()).count()
    }

    /// Notes why something in a collection was refused, for a program that asks.
    pub fn note_refused(&mut self, parent: NodeId, code: ErrorCode) {
        if let Some(collection) = self.collection_mut(parent) {
            collection.refused.get_or_insert(code);
        }
    }

    /// Tells whether something at a node or below it was changed here and is not published.
    pub fn waits(&self, id: NodeId) -> bool {
        !self.works_within(id).is_empty()
    }

    /// Returns which files those are.
    pub fn works_within(&self, id: NodeId) -> Vec<NodeId> {
        let (mut works, mut rest) = (Vec::new(), vec![id]);
        while let Some(id) = rest.pop() {
            match self.get(id) {
                Some(Node { what: What::Collection(collection), .. }) => {
                    rest.extend(collection.children.values())
                }
                Some(node) if node.has_work() => works.push(id),
                _ => {}
            }
        }
        works
    }

    /// Returns how many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }
}

fn new_node(parent: NodeId, name: &str, what: What) -> Node {
    Node {
        space: None,
        entry: None,
        parent,
        name: name.into(),
        is_linked: true,
        lookups: 0,
        what,
        indexed: None,
    }
}

/// Joins names to a path below another.
///
/// # Errors
/// In words, if it is none.
pub fn join(top: &ObjectPath, components: &[&str]) -> Result<ObjectPath, String> {
    components.iter().try_fold(top.clone(), |path, name| path.join(name)).map_err(|error| error.to_string())
}

/// Gives a path that is another one, or below it, the path that it has when that other was moved. Tells whether it is.
pub fn carry(path: &mut ObjectPath, from: &ObjectPath, to: &ObjectPath) -> bool {
    let below = path.as_str().strip_prefix(from.as_str()).filter(|_| path.is_within(from));
    match below.and_then(|below| ObjectPath::parse(&format!("{to}{below}")).ok()) {
        Some(moved) => {
            *path = moved;
            true
        }
        None => false,
    }
}

/// Tells whether a content is an older one than a version.
pub fn is_older(content: Option<&Content>, version: VersionId) -> bool {
    content.is_none_or(|content| content.version < version)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: SpaceNumber = SpaceNumber(0);

    fn file() -> What {
        What::Object(Box::default())
    }

    fn names() -> Names {
        Names::new(Some(EntryId::ROOT))
    }

    #[test]
    fn an_entry_has_its_own_id_as_its_node() {
        let mut names = names();
        let id = names.add(TOP, "a", (SPACE, EntryId(7)), file());
        assert_eq!((id, names.of_entry(SPACE, EntryId(7))), (7, Some(7)));
        assert_eq!(names.components(id).unwrap(), ["a"]);
        let other = names.add(TOP, "b", (SpaceNumber(3), EntryId(7)), file());
        assert_eq!(other, (3 << 48) | 7);
    }

    #[test]
    fn what_was_made_here_is_found_by_the_id_that_it_gets() {
        let mut names = names();
        let id = names.add_new(TOP, "a", SPACE, file());
        names.looked_up(id);
        names.published(id, EntryId(9));
        assert_eq!(names.of_entry(SPACE, EntryId(9)), Some(id));
        names.unlink(id);
        assert_eq!((names.of_entry(SPACE, EntryId(9)), names.child(TOP, "a")), (None, None));
        assert!(names.get(id).is_some(), "the kernel still knows it");
        names.forget(id, 1);
        assert!(names.get(id).is_none());
    }

    #[test]
    fn a_node_that_is_open_gives_its_name_to_another() {
        let mut names = names();
        let old = names.add(TOP, "a", (SPACE, EntryId(5)), file());
        names.looked_up(old);
        let new = names.replace(old, file()).unwrap();
        assert_ne!(old, new);
        assert_eq!((names.child(TOP, "a"), names.of_entry(SPACE, EntryId(5))), (Some(new), Some(new)));
        assert!(names.get(old).is_some() && names.components(old).is_none());
        // An entry that comes back while its old node is still known.
        names.unlink(new);
        assert_eq!((names.replace(new, file()), names.child(TOP, "a")), (None, None), "it was removed");
        let again = names.add(TOP, "b", (SPACE, EntryId(5)), file());
        assert_eq!(names.of_entry(SPACE, EntryId(5)), Some(again));
        assert_ne!(again, old);
    }

    #[test]
    fn a_rename_takes_the_name_from_what_had_it() {
        let mut names = names();
        let directory = names.add(TOP, "d", (SPACE, EntryId(2)), What::Collection(Box::default()));
        let (a, b) = (
            names.add(TOP, "a", (SPACE, EntryId(3)), file()),
            names.add(directory, "b", (SPACE, EntryId(4)), file()),
        );
        assert_eq!(names.rename(a, directory, "b"), Some(b));
        assert_eq!((names.child(TOP, "a"), names.child(directory, "b")), (None, Some(a)));
        assert_eq!(names.components(a).unwrap(), ["d", "b"]);
        assert!(names.is_within(a, directory) && !names.is_within(directory, a));
        assert_eq!(names.rename(directory, TOP, "e"), None);
        assert_eq!(names.components(a).unwrap(), ["e", "b"]);
    }

    #[test]
    fn a_file_is_found_by_the_version_that_it_has() {
        let version = |version| Content {
            version: VersionId(version),
            size: 0,
            root: None,
            mtime: Timestamp::from_micros(0),
            mode: None,
            digests: Vec::new(),
        };
        let of = |content| What::Object(Box::new(Object::of_content(content, None)));
        let mut names = names();
        let id = names.add(TOP, "a", (SPACE, EntryId(5)), of(version(7)));
        assert!(names.of_version(SPACE, VersionId(7)).is_some());
        assert!(names.of_version(SpaceNumber(1), VersionId(7)).is_none());
        names.object_mut(id).unwrap().content = Some(version(8));
        names.changed_version(id);
        assert!(names.of_version(SPACE, VersionId(7)).is_none());
        // Another takes its name while it is open, with the same version.
        names.looked_up(id);
        let other = names.replace(id, of(version(8))).unwrap();
        names.object_mut(other).unwrap().changed = Some(std::time::SystemTime::now());
        names.forget(id, 1);
        assert!(names.get(id).is_none());
        assert!(names.of_version(SPACE, VersionId(8)).is_some_and(|object| object.changed.is_some()));
        names.unlink(other);
        assert!(names.of_version(SPACE, VersionId(8)).is_none() && names.versions.is_empty());
    }

    #[test]
    fn a_directory_does_not_come_below_itself() {
        let mut names = names();
        let directory = || What::Collection(Box::default());
        let a = names.add(TOP, "a", (SPACE, EntryId(2)), directory());
        let b = names.add(a, "b", (SPACE, EntryId(3)), directory());
        assert_eq!(names.rename(a, b, "a"), None);
        assert_eq!((names.components(b).unwrap(), names.child(b, "a")), (vec!["a", "b"], None));
    }

    #[test]
    fn only_who_reads_the_newest_listing_fills_what_the_kernel_keeps() {
        let mut names = names();
        let open = |names: &mut Names| names.collection_mut(TOP).unwrap().opened();
        assert_eq!(open(&mut names), Keep::Anew);
        assert_eq!(open(&mut names), Keep::Kept);
        names.add(TOP, "a", (SPACE, EntryId(3)), file());
        assert_eq!(open(&mut names), Keep::Nothing, "two still read what was there before");
        for _ in 0..3 {
            names.collection_mut(TOP).unwrap().closed();
        }
        assert_eq!(open(&mut names), Keep::Anew);
        assert_eq!(open(&mut names), Keep::Kept);
    }
}
