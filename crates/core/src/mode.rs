//! Permission bits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The permission bits of a file, as its owner gave them: read, write and execute for owner, group and others. They say what
/// programs on a host see; who may do what in the fabric is decided by grants alone. On the wire it is octal text, `0644`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FileMode(u16);

impl FileMode {
    /// The bits that are kept; set-user-id, set-group-id and sticky are not.
    pub const ALL: u16 = 0o777;
    /// What a file has of which nothing is known.
    pub const DEFAULT: Self = Self(0o644);

    /// Takes the permission bits out of a mode.
    pub const fn of(mode: u32) -> Self {
        Self((mode & Self::ALL as u32) as u16)
    }

    /// Returns the bits.
    pub const fn bits(self) -> u16 {
        self.0
    }
}

/// Text that is no permission bits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no permission bits; write them in octal, 0000 to 0777")]
pub struct InvalidFileMode(String);

impl FromStr for FileMode {
    type Err = InvalidFileMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_octal =
            (3..=4).contains(&text.len()) && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
        let bits = u16::from_str_radix(text, 8).ok().filter(|bits| is_octal && *bits <= Self::ALL);
        bits.map(Self).ok_or_else(|| InvalidFileMode(text.chars().take(20).collect()))
    }
}

impl TryFrom<String> for FileMode {
    type Error = InvalidFileMode;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<FileMode> for String {
    fn from(mode: FileMode) -> Self {
        mode.to_string()
    }
}

impl fmt::Display for FileMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_octal_text() {
        assert_eq!(FileMode::of(0o100_755).to_string(), "0755");
        assert_eq!("0640".parse(), Ok(FileMode(0o640)));
        assert_eq!("755".parse(), Ok(FileMode(0o755)));
        assert_eq!(serde_json::to_string(&FileMode(0o7)).unwrap(), "\"0007\"");
        for wrong in ["", "7", "0888", "1777", "07777", "-755", "+755", "rwx"] {
            assert!(wrong.parse::<FileMode>().is_err(), "{wrong}");
        }
    }
}
