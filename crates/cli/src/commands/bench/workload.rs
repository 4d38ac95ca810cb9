//! What a prediction is wanted for, as people write it: `4TB in 3M files`.

use std::fmt;
use std::str::FromStr;

use percale_core::ByteCount;
use serde::Serialize;

use crate::output::{count, size};

/// Files, and bytes of all of them together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Workload {
    /// Files, at least 1.
    pub files: u64,
    /// Bytes.
    pub bytes: u64,
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong =
            || format!("'{text}' is no amount of files: expected such as '500GB' or '4TB in 3M files'");
        let (bytes, files) = match text.split_once(" in ") {
            Some((bytes, files)) => (bytes, number_of_files(files).ok_or_else(wrong)?),
            None => (text, 1),
        };
        let bytes: ByteCount = bytes.parse().map_err(|_| wrong())?;
        if files == 0 {
            return Err(wrong());
        }
        Ok(Self { files, bytes: bytes.get() })
    }
}

/// Reads `3M files`, `20k`, `1 file`: a number with or without a factor, then perhaps the word.
fn number_of_files(text: &str) -> Option<u64> {
    let text = text.trim();
    let number = text.strip_suffix("files").or_else(|| text.strip_suffix("file")).unwrap_or(text).trim();
    // The units of counts are those of decimal bytes, without the B.
    if number.contains(['i', 'I', 'b', 'B']) {
        return None;
    }
    number.parse::<ByteCount>().ok().map(ByteCount::get)
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", size(self.bytes), count(self.files, "file"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_read_as_people_write_them() {
        for (text, files, bytes) in [
            ("4TB in 3M files", 3_000_000, 4_000_000_000_000),
            ("500 GB", 1, 500_000_000_000),
            ("1.5GiB in 20k", 20_000, 1_610_612_736),
            ("10 kB in 1 file", 1, 10_000),
            ("0B in 1000 files", 1000, 0),
        ] {
            assert_eq!(text.parse(), Ok(Workload { files, bytes }), "{text}");
        }
        for text in
            ["", "files", "4TB in", "4TB in files", "4TB in 0 files", "4TB in 3MB files", "3M files", "-1GB"]
        {
            assert!(text.parse::<Workload>().is_err(), "{text}");
        }
        assert_eq!("4TB in 3M files".parse::<Workload>().unwrap().to_string(), "4.00 TB in 3000000 files");
    }
}
