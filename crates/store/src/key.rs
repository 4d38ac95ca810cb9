//! Keys of a store, and tokens of staged files.

use std::fmt;
use std::str::FromStr;

use percale_core::ids::Fence;
use percale_core::path::{PathError, check_name};
use serde::{Deserialize, Serialize};

/// Longest key, in bytes of UTF-8 (Linux `PATH_MAX`; S3 allows 1024, which that store checks itself).
pub const MAX_KEY_BYTES: usize = 4096;

/// The top-level name under which a store keeps what is not user data: staged files, hash trees, old versions.
pub const RESERVED: &str = ".percale";

/// Where staged files lie, below [`RESERVED`].
pub const STAGE: &str = ".percale/stage";

/// Longest name in a [`StageToken`], in bytes. Leaves room for the suffix of a restart marker within a file name.
pub const MAX_TOKEN_BYTES: usize = 128;

/// The name of something in a store: relative, normalised, `collection/name`.
///
/// - Has no leading or trailing slash and no empty component.
/// - No component is `.` or `..`, holds a NUL, or is longer than 255 bytes; the whole has at most [`MAX_KEY_BYTES`].
/// - Is UTF-8, kept byte for byte.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StoreKey(Box<str>);

/// Why a text is not a [`StoreKey`] or [`StageToken`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Begins with a slash.
    #[error("store key begins with '/'")]
    Absolute,
    /// Longer than [`MAX_KEY_BYTES`].
    #[error("store key has {0} bytes, at most {MAX_KEY_BYTES} are allowed")]
    TooLong(usize),
    /// A component breaks a rule.
    #[error("store key is malformed: {0}")]
    Component(#[from] PathError),
    /// Not a token.
    #[error(
        "not the token of a staged file: expected FENCE/NAME, NAME of 1 to {MAX_TOKEN_BYTES} of a-z, A-Z, 0-9, '-', '_'"
    )]
    Token,
}

impl StoreKey {
    /// Parses a key. Nothing is normalised: a text that is not a key as it stands is refused.
    ///
    /// # Errors
    /// [`KeyError`], naming the rule that is broken.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        if text.len() > MAX_KEY_BYTES {
            return Err(KeyError::TooLong(text.len()));
        }
        if text.starts_with('/') {
            return Err(KeyError::Absolute);
        }
        for name in text.split('/') {
            check_name(name)?;
        }
        Ok(Self(text.into()))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the components.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &str> + Clone {
        self.0.split('/')
    }

    /// Returns the last component.
    pub fn name(&self) -> &str {
        self.split().1
    }

    /// Returns the key of the enclosing collection, or nothing at the top.
    pub fn parent(&self) -> Option<Self> {
        self.split().0.map(|parent| Self(parent.into()))
    }

    /// Returns the texts of the enclosing collection, if there is one, and of the last component.
    pub fn split(&self) -> (Option<&str>, &str) {
        match self.0.rsplit_once('/') {
            Some((parent, name)) => (Some(parent), name),
            None => (None, &self.0),
        }
    }

    /// Returns the key of an entry in this collection.
    ///
    /// # Errors
    /// [`KeyError`], if the name is not one, or the whole becomes too long.
    pub fn join(&self, name: &str) -> Result<Self, KeyError> {
        check_name(name)?;
        Self::parse(&format!("{self}/{name}"))
    }

    /// Tells whether this is `ancestor` or lies below it, by whole components.
    pub fn is_within(&self, ancestor: &StoreKey) -> bool {
        self.0.strip_prefix(&*ancestor.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Tells whether this is [`RESERVED`] or lies below it, so is no user data.
    pub fn is_reserved(&self) -> bool {
        self.components().next() == Some(RESERVED)
    }

    /// Tells whether this is [`STAGE`] or lies below it. Such a key names no data; the store's operations on keys refuse it.
    pub fn is_stage(&self) -> bool {
        self.0.strip_prefix(STAGE).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl fmt::Display for StoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for StoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl FromStr for StoreKey {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl TryFrom<String> for StoreKey {
    type Error = KeyError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text)
    }
}

impl From<StoreKey> for String {
    fn from(key: StoreKey) -> Self {
        key.0.into()
    }
}

/// The name of a staged file: the fence of the lease under which it is written, and a name within it. Its text is
/// `FENCE/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StageToken {
    fence: Fence,
    name: Box<str>,
}

impl StageToken {
    /// Makes a token from a fence and a name of 1 to [`MAX_TOKEN_BYTES`] letters, digits, `-` and `_`.
    ///
    /// # Errors
    /// [`KeyError::Token`].
    pub fn new(fence: Fence, name: impl AsRef<str>) -> Result<Self, KeyError> {
        let name = name.as_ref();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if (1..=MAX_TOKEN_BYTES).contains(&name.len()) && name.bytes().all(is_plain) {
            Ok(Self { fence, name: name.into() })
        } else {
            Err(KeyError::Token)
        }
    }

    /// Returns the fence.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Returns the name within the fence.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for StageToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.fence, self.name)
    }
}

impl FromStr for StageToken {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (fence, name) = text.split_once('/').ok_or(KeyError::Token)?;
        Self::new(fence.parse().map_err(|_| KeyError::Token)?, name)
    }
}

impl TryFrom<String> for StageToken {
    type Error = KeyError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<StageToken> for String {
    fn from(token: StageToken) -> Self {
        token.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn escapes_are_refused() {
        for text in ["", "/", "/a", "a/", "a//b", "a/../b", "..", ".", "a/.", "a\0b"] {
            assert!(StoreKey::parse(text).is_err(), "{text:?} was accepted");
        }
        assert!(StoreKey::parse(&"x".repeat(256)).is_err());
        assert!(StoreKey::parse(&"x/".repeat(3000)).is_err());
        for text in ["x", "/x", "1/", "1/../x", "1/a/b", "-1/a", "1/a.marker"] {
            assert!(text.parse::<StageToken>().is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn reserved_keys_are_told_apart_by_whole_components() {
        let key = |text| StoreKey::parse(text).unwrap();
        assert!(key(".percale").is_reserved() && key(".percale/trees/x").is_reserved());
        assert!(!key(".percaled").is_reserved() && !key("a/.percale").is_reserved());
        assert!(key(".percale/stage/1/x").is_stage() && !key(".percale/stages").is_stage());
        assert!(key("a/b").is_within(&key("a")) && !key("ab").is_within(&key("a")));
        assert_eq!(key("a/b/c").parent(), Some(key("a/b")));
        assert_eq!((key("a").parent(), key("a").name()), (None, "a"));
    }

    proptest! {
        #[test]
        fn texts_round_trip_and_never_panic(text in "\\PC*", fence in any::<u64>(), name in "[a-zA-Z0-9_-]{1,128}") {
            if let Ok(key) = StoreKey::parse(&text) {
                prop_assert_eq!(key.as_str(), text.as_str());
                prop_assert!(key.join("x").is_ok_and(|child| child.parent() == Some(key)));
            }
            let token = StageToken::new(Fence(fence), name).unwrap();
            prop_assert_eq!(token.to_string().parse(), Ok(token));
        }
    }
}
