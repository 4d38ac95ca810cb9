//! The names that this mount changes itself: until the journal has passed such a change, what it tells of the name is of the past.

use std::collections::HashMap;

use percale_core::Position;

use crate::names::NodeId;

/// A name in a collection.
pub type Name = (NodeId, Box<str>);

/// What this mount does itself to a name: the journal's records of it say what is known here, or what comes before it.
#[derive(Debug, Default)]
pub struct Own {
    /// Changes that are not made yet.
    waiting: u32,
    /// Where the last one stands in the journal.
    until: Option<Position>,
}

/// The names that this mount changes.
#[derive(Debug, Default)]
pub struct Owned {
    names: HashMap<Name, Own>,
    /// Listings that are being read: they may be older than what the journal has passed.
    listings: u32,
}

impl Owned {
    /// Notes that names are changed here.
    pub fn begin(&mut self, names: &[Name]) {
        for name in names {
            self.names.entry(name.clone()).or_default().waiting += 1;
        }
    }

    /// Notes that a change of names has ended, and where it stands in the journal if it was made.
    pub fn end(&mut self, names: &[Name], position: Option<Position>) {
        for name in names {
            let Some(own) = self.names.get_mut(name) else { continue };
            own.waiting = own.waiting.saturating_sub(1);
            own.until = position.or(own.until);
            if own.waiting == 0 && own.until.is_none() {
                self.names.remove(name);
            }
        }
    }

    /// Notes that a listing is going to be read. Until [`Owned::merged`] nothing is forgotten.
    pub fn reading(&mut self) {
        self.listings += 1;
    }

    /// Notes that a listing was taken over, or given up.
    pub fn merged(&mut self) {
        // What can be forgotten goes with the next record.
        self.listings = self.listings.saturating_sub(1);
    }

    /// Tells whether a record of the journal about a name says nothing new, since this mount changes it itself.
    pub fn covers(&self, parent: NodeId, name: &str, at: Option<Position>) -> bool {
        // The key of a map of pairs cannot be borrowed in parts.
        let Some(own) = self.names.get(&(parent, Box::from(name))) else { return false };
        let is_before = |until: Position| at.is_none_or(|at| at.term == until.term && at.seq <= until.seq);
        own.waiting > 0 || own.until.is_some_and(is_before)
    }

    /// Forgets what the journal has passed.
    pub fn passed(&mut self, at: Position) {
        if self.listings > 0 {
            return;
        }
        self.names.retain(|_, own| {
            own.waiting > 0
                || own.until.is_some_and(|until| {
                    until.space != at.space || (until.term == at.term && until.seq > at.seq)
                })
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seq: u64) -> Position {
        format!("00000000-0000-7000-8000-000000000001.1.{seq}").parse().unwrap()
    }

    #[test]
    fn the_journal_says_nothing_new_of_what_is_changed_here() {
        let mut owned = Owned::default();
        let names = vec![(1, "a".into())];
        assert!(!owned.covers(1, "a", Some(at(5))));
        owned.begin(&names);
        assert!(owned.covers(1, "a", Some(at(5))) && !owned.covers(1, "b", Some(at(5))));
        owned.begin(&names);
        owned.end(&names, Some(at(6)));
        assert!(owned.covers(1, "a", Some(at(9))), "another change waits");
        owned.end(&names, Some(at(8)));
        assert!(owned.covers(1, "a", Some(at(8))));
        assert!(!owned.covers(1, "a", Some(at(9))), "somebody else changed it after that");
        owned.passed(at(7));
        assert!(owned.covers(1, "a", Some(at(8))));
        owned.passed(at(8));
        assert!(owned.names.is_empty());
    }

    #[test]
    fn a_listing_that_is_older_than_what_was_changed_here_says_nothing_of_it() {
        let mut owned = Owned::default();
        let names = vec![(1, "a".into())];
        owned.begin(&names);
        owned.reading();
        owned.end(&names, Some(at(8)));
        owned.passed(at(9));
        assert!(owned.covers(1, "a", Some(at(7))) && !owned.covers(1, "a", Some(at(9))));
        owned.begin(&names);
        owned.end(&names, None);
        assert!(owned.covers(1, "a", Some(at(8))));
        owned.merged();
        owned.passed(at(10));
        assert!(owned.names.is_empty());
    }

    #[test]
    fn a_change_that_failed_leaves_nothing_behind() {
        let mut owned = Owned::default();
        let names = vec![(1, "a".into())];
        owned.begin(&names);
        owned.end(&names, None);
        assert!(owned.names.is_empty());
    }
}
