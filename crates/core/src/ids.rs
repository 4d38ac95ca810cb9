//! Identifiers. Each is a newtype, so that one kind is never taken for another.
//!
//! Entries and versions have 64-bit numbers that are unique within their space and never used again: they serve as
//! `st_ino` in a mount. Everything that is named across sites has a UUID of version 7, which sorts by creation time.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// Makes a new id from the clock and the operating system's random numbers (UUIDv7).
            #[allow(clippy::new_without_default)]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(text).map(Self)
            }
        }
    };
}

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIntError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }
    };
}

uuid_id!(
    /// A space of the namespace.
    SpaceId
);
uuid_id!(
    /// A site of the fabric.
    SiteId
);
uuid_id!(
    /// A store of a site.
    StoreId
);
uuid_id!(
    /// A managed task.
    TaskId
);
uuid_id!(
    /// A lease: a right that ends by itself, such as an unfinished upload.
    LeaseId
);
uuid_id!(
    /// An issued token, so that it can be named and revoked.
    TokenId
);
number_id!(
    /// A collection or object within its space. The space's root collection is [`EntryId::ROOT`].
    EntryId
);
number_id!(
    /// A version within its space.
    VersionId
);
number_id!(
    /// A number that grows with every lease of a site. Work done under a lapsed lease carries a smaller number than
    /// that of its successor, and is refused.
    Fence
);

impl EntryId {
    /// The root collection of every space.
    pub const ROOT: EntryId = EntryId(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_ids_sort_by_creation_and_round_trip() {
        let first = SpaceId::new();
        let second = SpaceId::new();
        assert!(first < second);
        assert_eq!(first.to_string().parse(), Ok(first));
    }

    #[test]
    fn number_ids_refuse_signs_and_text() {
        assert_eq!("7".parse(), Ok(VersionId(7)));
        assert!("-7".parse::<VersionId>().is_err());
        assert!("x".parse::<EntryId>().is_err());
    }
}
