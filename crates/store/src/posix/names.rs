//! Files that have several names (hard links), of which some were deleted here.
//!
//! The generation of a file tells when its inode was changed, and deleting one of its names changes that. Whoever knows the others by the
//! generation that they had would take them for files that somebody has written since.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::Generation;

/// Generations that are remembered, of some hundred bytes each. Where there are more, those before are forgotten: a name that is still to
/// be deleted then stays.
const MOST: usize = 10_000;

/// What generations have become by deletions of other names.
#[derive(Debug, Default)]
pub(super) struct OtherNames(Mutex<HashMap<Generation, Generation>>);

impl OtherNames {
    /// Returns the generation that a file has now which had this one, as far as only its names were deleted since.
    pub fn now(&self, known: Generation) -> Generation {
        let became = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        became.get(&known).cloned().unwrap_or(known)
    }

    /// Remembers what a generation has become.
    pub fn note(&self, known: Generation, now: Generation) {
        let mut became = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if became.len() >= MOST {
            became.clear();
        }
        became.insert(known, now);
    }
}
