//! Where a search goes on: what stands between a page and the next.

use std::fmt;
use std::str::FromStr;

use percale_core::ids::SpaceId;

use super::{FEW, MANY};
use crate::error::{Error, Result};

/// Where to go on.
pub(super) struct Place {
    pub space: SpaceId,
    /// Behind which entry.
    pub after: u64,
    pub lead: Lead,
}

/// How a space is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lead {
    /// By the filter that leads to the fewest entries, if they are not more than this.
    Open(usize),
    /// By this filter.
    By(usize),
    /// By none: all entries are gone through.
    None {
        /// Whether that is not thought over any more.
        is_final: bool,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { space, after, lead } = self;
        match lead {
            Lead::By(driver) => write!(f, "{space}/{after}/{driver}"),
            Lead::None { is_final: false } => write!(f, "{space}/{after}/-"),
            Lead::None { is_final: true } => write!(f, "{space}/{after}/!"),
            Lead::Open(MANY) => write!(f, "{space}/{after}/?"),
            Lead::Open(_) => write!(f, "{space}/{after}/."),
        }
    }
}

impl FromStr for Place {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let read = || {
            let mut parts = text.split('/');
            let (space, after) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            let lead = match parts.next()? {
                "-" => Lead::None { is_final: false },
                "!" => Lead::None { is_final: true },
                "?" => Lead::Open(MANY),
                "." => Lead::Open(FEW),
                driver => Lead::By(driver.parse().ok()?),
            };
            Some(Self { space, after, lead })
        };
        read().ok_or_else(nowhere)
    }
}

pub(super) fn nowhere() -> Error {
    Error::invalid("it cannot be gone on from there")
}
