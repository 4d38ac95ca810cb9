//! What a site keeps of spaces and stores of others (docs/design/following.md).

use percale_core::Position;
use percale_core::ids::StoreId;
use serde::{Deserialize, Serialize};

use super::{StoreLayout, StoreState};

/// A store of another site, as that site describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignStore {
    /// Its id.
    pub id: StoreId,
    /// Its name, unique at its site.
    pub name: String,
    /// How it keeps files.
    pub layout: StoreLayout,
    /// Whether its site uses it.
    pub state: StoreState,
}

/// How far a space was followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Followed {
    /// Where the rows stand now.
    pub position: Position,
    /// Why the rows cannot be trusted from here on, if a record is not known to this release: the home answers until a
    /// snapshot was taken.
    pub behind: Option<String>,
}

/// What became of a space that got another home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promoted {
    /// The end of its journal, in the new term.
    pub position: Position,
    /// Where it stood before. What the old home wrote behind it is lost.
    pub before: Position,
}
