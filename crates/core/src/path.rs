//! Paths of the namespace.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ErrorCode;

/// Longest path, in bytes of UTF-8 (Linux `PATH_MAX`, so that every path fits a mount).
pub const MAX_PATH_BYTES: usize = 4096;
/// Longest name of one component, in bytes of UTF-8 (`NAME_MAX`).
pub const MAX_NAME_BYTES: usize = 255;
/// Longest name of a space, in bytes. Short, since it becomes part of URLs and of directory names of stores.
pub const MAX_SPACE_NAME_BYTES: usize = 63;

/// A normalised absolute path, `/<space>/<collection>/…/<object>`.
///
/// - Begins with `/`; `/` alone is the list of spaces.
/// - Repeated and trailing slashes are dropped when it is parsed.
/// - No component is `.` or `..`, holds a NUL, or is longer than [`MAX_NAME_BYTES`].
/// - The first component is a [space name](SpaceName).
/// - Is UTF-8 and otherwise kept byte for byte: no case folding, no Unicode normalisation, since names come from file
///   systems that do neither.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ObjectPath(Box<str>);

/// Why a text is not an [`ObjectPath`] or a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// The path is relative.
    #[error("path does not begin with '/'")]
    NotAbsolute,
    /// The path is longer than [`MAX_PATH_BYTES`].
    #[error("path has {0} bytes, at most {MAX_PATH_BYTES} are allowed")]
    TooLong(usize),
    /// A component is longer than [`MAX_NAME_BYTES`].
    #[error("name has {0} bytes, at most {MAX_NAME_BYTES} are allowed")]
    NameTooLong(usize),
    /// A component is `.` or `..`.
    #[error("path has the component '{0}', which is not allowed")]
    Dot(&'static str),
    /// A component holds a NUL or a slash.
    #[error("name holds a NUL or a slash")]
    ForbiddenByte,
    /// A component is empty.
    #[error("name is empty")]
    Empty,
    /// The bytes are not UTF-8.
    #[error("name is not valid UTF-8")]
    NotUtf8,
    /// The first component is not the name of a space.
    #[error(
        "'{0}' cannot be the name of a space: 1 to {MAX_SPACE_NAME_BYTES} of a-z, 0-9, '.', '_' and '-', \
         beginning with a letter or digit"
    )]
    SpaceName(String),
}

impl PathError {
    /// The code under which users see this error.
    pub fn code(&self) -> ErrorCode {
        ErrorCode::InvalidPath
    }
}

impl ObjectPath {
    /// The root of the namespace, where the spaces are listed.
    pub fn root() -> Self {
        Self("/".into())
    }

    /// Parses and normalises a path.
    ///
    /// # Errors
    /// [`PathError`], if the text breaks one of the rules of [`ObjectPath`].
    pub fn parse(text: &str) -> Result<Self, PathError> {
        if !text.starts_with('/') {
            return Err(PathError::NotAbsolute);
        }
        // Bounded before anything is copied: the text comes from outside.
        if text.len() > 2 * MAX_PATH_BYTES {
            return Err(PathError::TooLong(text.len()));
        }
        let mut normal = String::with_capacity(text.len());
        for name in text.split('/').filter(|name| !name.is_empty()) {
            check_name(name)?;
            if normal.is_empty() {
                SpaceName::check(name)?;
            }
            normal.push('/');
            normal.push_str(name);
        }
        if normal.len() > MAX_PATH_BYTES {
            return Err(PathError::TooLong(normal.len()));
        }
        if normal.is_empty() {
            normal.push('/');
        }
        Ok(Self(normal.into_boxed_str()))
    }

    /// Parses a path from bytes that may not be UTF-8, as they come from a file system or a URL.
    ///
    /// # Errors
    /// As [`ObjectPath::parse`], and [`PathError::NotUtf8`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PathError> {
        Self::parse(std::str::from_utf8(bytes).map_err(|_| PathError::NotUtf8)?)
    }

    /// Returns the root collection of a space.
    pub fn of_space(space: &SpaceName) -> Self {
        Self(format!("/{space}").into_boxed_str())
    }

    /// Returns the normalised text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Tells whether this is `/`.
    pub fn is_root(&self) -> bool {
        &*self.0 == "/"
    }

    /// Returns the components, the space first.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &str> + Clone {
        self.0.split('/').filter(|name| !name.is_empty())
    }

    /// Returns the components below the space, so the path within it.
    pub fn within_space(&self) -> impl Iterator<Item = &str> + Clone {
        self.components().skip(1)
    }

    /// Returns the name of the space, or nothing for `/`.
    pub fn space(&self) -> Option<SpaceName> {
        self.components().next().map(|name| SpaceName(name.into()))
    }

    /// Tells whether this is the root collection of a space.
    pub fn is_space(&self) -> bool {
        self.components().count() == 1
    }

    /// Returns the last component, or nothing for `/`.
    pub fn name(&self) -> Option<&str> {
        self.components().next_back()
    }

    /// Returns the path of the enclosing collection, or nothing for `/`.
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        match self.0.rfind('/') {
            Some(0) | None => Some(Self::root()),
            Some(end) => Some(Self(self.0[..end].into())),
        }
    }

    /// Returns the path of an entry in this collection.
    ///
    /// # Errors
    /// [`PathError`], if the name is not one, or the whole becomes too long.
    pub fn join(&self, name: &str) -> Result<Self, PathError> {
        check_name(name)?;
        let base = if self.is_root() { "" } else { self.as_str() };
        Self::parse(&format!("{base}/{name}"))
    }

    /// Tells whether this is `ancestor` or lies below it, by whole components: `/a/bc` is not below `/a/b`.
    pub fn is_within(&self, ancestor: &ObjectPath) -> bool {
        ancestor.is_root()
            || self.0.strip_prefix(&*ancestor.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// Checks the name of a collection or object: 1 to 255 bytes, not `.` or `..`, no NUL, no slash.
///
/// # Errors
/// [`PathError`], naming the rule that is broken.
pub fn check_name(name: &str) -> Result<(), PathError> {
    match name {
        "" => Err(PathError::Empty),
        "." => Err(PathError::Dot(".")),
        ".." => Err(PathError::Dot("..")),
        _ if name.len() > MAX_NAME_BYTES => Err(PathError::NameTooLong(name.len())),
        _ if name.bytes().any(|byte| byte == 0 || byte == b'/') => Err(PathError::ForbiddenByte),
        _ => Ok(()),
    }
}

impl fmt::Display for ObjectPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ObjectPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl FromStr for ObjectPath {
    type Err = PathError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl TryFrom<String> for ObjectPath {
    type Error = PathError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text)
    }
}

impl From<ObjectPath> for String {
    fn from(path: ObjectPath) -> Self {
        path.0.into()
    }
}

/// The name of a space: 1 to 63 of `a-z`, `0-9`, `.`, `_`, `-`, beginning with a letter or digit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SpaceName(Box<str>);

impl SpaceName {
    fn check(name: &str) -> Result<(), PathError> {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let well_formed = name.len() <= MAX_SPACE_NAME_BYTES
            && name.bytes().next().is_some_and(is_plain)
            && name.bytes().all(|byte| is_plain(byte) || matches!(byte, b'.' | b'_' | b'-'));
        if well_formed { Ok(()) } else { Err(PathError::SpaceName(name.chars().take(80).collect())) }
    }

    /// Parses a name.
    ///
    /// # Errors
    /// [`PathError::SpaceName`].
    pub fn parse(name: &str) -> Result<Self, PathError> {
        Self::check(name)?;
        Ok(Self(name.into()))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SpaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for SpaceName {
    type Err = PathError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl TryFrom<String> for SpaceName {
    type Error = PathError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text)
    }
}

impl From<SpaceName> for String {
    fn from(name: SpaceName) -> Self {
        name.0.into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn slashes_are_normalised() {
        let path = ObjectPath::parse("//climate///era5/").unwrap();
        assert_eq!(path.as_str(), "/climate/era5");
        assert_eq!(path.name(), Some("era5"));
        assert_eq!(path.parent().unwrap().as_str(), "/climate");
        assert_eq!(path.parent().unwrap().parent().unwrap(), ObjectPath::root());
        assert_eq!(ObjectPath::root().parent(), None);
    }

    #[test]
    fn escapes_are_refused() {
        for text in ["a", "", "/a/../b", "/a/.", "/a/b\0c", "/..", "/A", "/-a", "/a b/c"] {
            assert!(ObjectPath::parse(text).is_err(), "{text:?} was accepted");
        }
        assert_eq!(ObjectPath::from_bytes(b"/a/\xff"), Err(PathError::NotUtf8));
    }

    #[test]
    fn limits_are_exact() {
        let name = "x".repeat(MAX_NAME_BYTES);
        assert!(ObjectPath::parse(&format!("/s/{name}")).is_ok());
        assert_eq!(ObjectPath::parse(&format!("/s/{name}x")), Err(PathError::NameTooLong(256)));
        let deep = "/s".to_string() + &"/y".repeat((MAX_PATH_BYTES - 2) / 2);
        assert_eq!(deep.len(), MAX_PATH_BYTES);
        assert!(ObjectPath::parse(&deep).is_ok());
        assert_eq!(ObjectPath::parse(&format!("{deep}/z")), Err(PathError::TooLong(MAX_PATH_BYTES + 2)));
        assert!(ObjectPath::parse(&"/".repeat(100_000)).is_err());
    }

    #[test]
    fn within_counts_whole_components() {
        let path = |text| ObjectPath::parse(text).unwrap();
        assert!(path("/a/b/c").is_within(&path("/a/b")));
        assert!(path("/a/b").is_within(&path("/a/b")));
        assert!(path("/a").is_within(&ObjectPath::root()));
        assert!(!path("/a/bc").is_within(&path("/a/b")));
    }

    proptest! {
        #[test]
        fn parsing_is_idempotent_and_never_panics(text in "\\PC*") {
            if let Ok(path) = ObjectPath::parse(&text) {
                prop_assert_eq!(ObjectPath::parse(path.as_str()), Ok(path));
            }
        }

        #[test]
        fn joining_and_parent_are_inverse(names in prop::collection::vec("[a-z0-9][^/\u{0}]{0,20}x", 1..6)) {
            let mut path = ObjectPath::parse("/space").unwrap();
            for name in &names {
                let child = path.join(name).unwrap();
                prop_assert_eq!(child.parent(), Some(path));
                prop_assert_eq!(child.name(), Some(name.as_str()));
                path = child;
            }
            let json = serde_json::to_string(&path).unwrap();
            prop_assert_eq!(serde_json::from_str::<ObjectPath>(&json).unwrap(), path);
        }
    }
}
