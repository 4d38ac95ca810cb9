//! The rows of the database: each table's statements, in the words of both engines, and their decoding.
//!
//! The layout is described in docs/design/rows.md.

pub(crate) mod arrival;
pub(crate) mod attribute;
pub(crate) mod entry;
pub(crate) mod extraction;
pub(crate) mod follow;
pub(crate) mod grant;
pub(crate) mod journal;
pub(crate) mod kept;
pub(crate) mod lease;
pub(crate) mod outbox;
pub(crate) mod peer;
pub(crate) mod publish;
pub(crate) mod replica;
pub(crate) mod site;
pub(crate) mod tally;
pub(crate) mod task;
pub(crate) mod told;
pub(crate) mod used;
pub(crate) mod word;

/// How strongly rows are locked while they are read. SQLite has one writer and needs none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lock {
    /// Not at all.
    None,
    /// Nobody may change it until the end of the transaction.
    Share,
    /// Nobody else may change or lock it.
    Update,
}

impl Lock {
    /// Picks a statement of those for `None`, `Share` and `Update`.
    pub(crate) fn pick(self, of: &[crate::engine::Sql; 3]) -> &crate::engine::Sql {
        match self {
            Lock::None => &of[0],
            Lock::Share => &of[1],
            Lock::Update => &of[2],
        }
    }
}

/// Makes a statement for each kind of [`Lock`] of a PostgreSQL text that can be followed by `FOR …`.
macro_rules! with_locks {
    ($sqlite:expr, $postgres:expr, $table:literal) => {
        [
            $crate::engine::Sql::each($sqlite, $postgres),
            $crate::engine::Sql::each($sqlite, concat!($postgres, " FOR SHARE OF ", $table)),
            $crate::engine::Sql::each($sqlite, concat!($postgres, " FOR UPDATE OF ", $table)),
        ]
    };
}
pub(crate) use with_locks;
