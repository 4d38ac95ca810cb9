//! Places in a space's journal.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::SpaceId;

/// A place in the journal of a space: behind record `seq` of `term`.
///
/// `seq` has no gaps and is in the order of commits. `term` grows when the home is restored, promoted or moved; a
/// position of an older term is refused, since its records may have been undone. `seq` 0 is before the first record.
///
/// Its text, `<space>.<term>.<seq>`, is what clients send back to read their own writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Position {
    /// The space whose journal it is.
    pub space: SpaceId,
    /// The term in which the record was written.
    pub term: u32,
    /// The number of the record.
    pub seq: u64,
}

/// A text that is not a [`Position`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a journal position: expected <space id>.<term>.<seq>")]
pub struct PositionError(String);

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.space, self.term, self.seq)
    }
}

impl FromStr for Position {
    type Err = PositionError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let mut parts = text.split('.');
            let space = parts.next()?.parse().ok()?;
            let term = parts.next()?.parse().ok()?;
            let seq = parts.next()?.parse().ok()?;
            parts.next().is_none().then_some(Position { space, term, seq })
        };
        parse().ok_or_else(|| PositionError(text.chars().take(80).collect()))
    }
}

impl TryFrom<String> for Position {
    type Error = PositionError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Position> for String {
    fn from(position: Position) -> Self {
        position.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        let position = Position { space: SpaceId::new(), term: 2, seq: 17 };
        assert_eq!(position.to_string().parse(), Ok(position));
        assert!("x.1.2".parse::<Position>().is_err());
        assert!(format!("{position}.3").parse::<Position>().is_err());
    }
}
