//! What must be there: the acknowledged, and for what was cut off, each state that would be right.

use std::collections::BTreeMap;

use percale_api::entries::Entry;
use percale_core::ObjectPath;
use percale_core::tree::RootHash;

/// What is at some paths; nothing, or a content.
pub type State = BTreeMap<ObjectPath, Option<RootHash>>;

/// The book of one actor, who alone works on its paths.
#[derive(Debug, Default)]
pub struct Ledger {
    certain: BTreeMap<ObjectPath, RootHash>,
    /// Each change that was not answered: before or after, and nothing in between.
    doubts: Vec<[State; 2]>,
}

/// What the cut-off changes turned out to be.
#[derive(Debug, Default, Clone, Copy)]
pub struct Resolved {
    pub done: u32,
    pub undone: u32,
}

impl Ledger {
    /// What was acknowledged to be at a path.
    pub fn at(&self, path: &ObjectPath) -> Option<RootHash> {
        self.certain.get(path).copied()
    }

    /// The acknowledged objects.
    pub fn objects(&self) -> impl Iterator<Item = (&ObjectPath, RootHash)> {
        self.certain.iter().map(|(path, root)| (path, *root))
    }

    /// A change was acknowledged.
    pub fn acknowledged(&mut self, after: State) {
        for (path, root) in after {
            match root {
                Some(root) => drop(self.certain.insert(path, root)),
                None => drop(self.certain.remove(&path)),
            }
        }
    }

    /// A change was not answered, so either state is right, for all of its paths together.
    pub fn unanswered(&mut self, after: State) {
        let before: State = after.keys().map(|path| (path.clone(), self.certain.remove(path))).collect();
        self.doubts.push([before, after]);
    }

    /// Compares with what is there. What was in doubt becomes certain.
    ///
    /// # Panics
    /// If an acknowledged object is gone or has another content, a change is half done, or something is there that
    /// nobody put. `all` must have the entries of this ledger's paths and of no others.
    pub fn settle(&mut self, name: &str, all: &[Entry]) -> Resolved {
        let mut there: BTreeMap<ObjectPath, RootHash> = BTreeMap::new();
        for entry in all {
            let content =
                entry.content.as_ref().unwrap_or_else(|| panic!("{name}: {} has no content", entry.path));
            let root = content.root.unwrap_or_else(|| panic!("{name}: {} has no hash", entry.path));
            there.insert(entry.path.clone(), root);
        }
        let mut resolved = Resolved::default();
        for [before, after] in std::mem::take(&mut self.doubts) {
            let holds = |state: &State| state.iter().all(|(path, root)| there.get(path) == root.as_ref());
            let state = if holds(&after) {
                resolved.done += 1;
                after
            } else if holds(&before) {
                resolved.undone += 1;
                before
            } else {
                let found: Vec<_> = after.keys().map(|path| (path, there.get(path))).collect();
                panic!("{name}: a change is half done: {found:?}, neither {before:?} nor {after:?}");
            };
            self.acknowledged(state);
        }
        for (path, root) in &self.certain {
            match there.remove(path) {
                Some(found) if found == *root => {}
                Some(found) => panic!("{name}: {path} was acknowledged as {root} and is {found}"),
                None => panic!("{name}: {path} was acknowledged and is gone"),
            }
        }
        assert!(there.is_empty(), "{name}: nobody put {:?}", there.keys().collect::<Vec<_>>());
        resolved
    }
}
