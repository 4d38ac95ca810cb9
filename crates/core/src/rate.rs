//! How fast bytes move.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A speed that people set, in whole bytes a second. On the wire, in files and on the command line it is text such as
/// `200Mbit/s` or `25MB/s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate(u64);

/// By how many bytes a second a unit counts. Lines are sold in decimal bits, files come in bytes of either kind.
const UNITS: [(&str, f64); 11] = [
    ("Gbit/s", 125e6),
    ("Mbit/s", 125e3),
    ("kbit/s", 125.0),
    ("bit/s", 0.125),
    ("GiB/s", 1_073_741_824.0),
    ("MiB/s", 1_048_576.0),
    ("KiB/s", 1024.0),
    ("GB/s", 1e9),
    ("MB/s", 1e6),
    ("kB/s", 1e3),
    ("B/s", 1.0),
];

impl Rate {
    /// The slowest: 1 Mbit/s. A group of 1 MiB, the least that is moved and verified, then takes 8 s, well below the time
    /// after which whoever waits for it gives it up.
    pub const LEAST: Self = Self(125_000);
    /// The fastest: 1 Tbit/s.
    pub const MOST: Self = Self(125_000_000_000);

    /// Returns bytes a second.
    pub const fn bytes_per_second(self) -> u64 {
        self.0
    }
}

/// A text that is no speed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// It does not read as a number and a unit.
    #[error(
        "'{0}' is not a speed: expected a number and bit/s, kbit/s, Mbit/s, Gbit/s, MB/s or MiB/s, such as 200Mbit/s"
    )]
    Unreadable(String),
    /// It reads as one, but as one that is not taken.
    #[error("'{0}' is not between 1Mbit/s and 1000Gbit/s")]
    OutOfRange(String),
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let text = text.trim();
        let shown = || text.chars().take(60).collect::<String>();
        let read = UNITS.iter().find_map(|(unit, bytes)| {
            let number = text.strip_suffix(unit)?.trim_end();
            let is_plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            number.parse::<f64>().ok().filter(|_| is_plain).map(|number| number * bytes)
        });
        let bytes = read.ok_or_else(|| RateError::Unreadable(shown()))?;
        if !(Self::LEAST.0 as f64..=Self::MOST.0 as f64).contains(&bytes) {
            return Err(RateError::OutOfRange(shown()));
        }
        Ok(Self(bytes.round() as u64))
    }
}

impl fmt::Display for Rate {
    /// Writes it so that it reads as the same again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = u128::from(self.0) * 8;
        match () {
            () if bits % 1_000_000_000 == 0 => write!(f, "{}Gbit/s", bits / 1_000_000_000),
            () if bits % 1_000_000 == 0 => write!(f, "{}Mbit/s", bits / 1_000_000),
            () if bits % 1000 == 0 => write!(f, "{}kbit/s", bits / 1000),
            () => write!(f, "{}B/s", self.0),
        }
    }
}

impl TryFrom<String> for Rate {
    type Error = RateError;
    fn try_from(text: String) -> Result<Self, RateError> {
        text.parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        rate.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_read_in_bits_and_bytes_and_written_exactly() {
        for (text, bytes, shown) in [
            ("200Mbit/s", 25_000_000, "200Mbit/s"),
            ("25MB/s", 25_000_000, "200Mbit/s"),
            ("1.5 Gbit/s", 187_500_000, "1500Mbit/s"),
            ("2Gbit/s", 250_000_000, "2Gbit/s"),
            ("100MiB/s", 104_857_600, "104857600B/s"),
            ("125001B/s", 125_001, "125001B/s"),
            (" 1000kbit/s ", 125_000, "1Mbit/s"),
            ("1000Gbit/s", 125_000_000_000, "1000Gbit/s"),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate.bytes_per_second(), bytes, "{text}");
            assert_eq!(rate.to_string().parse(), Ok(rate), "{text}");
            assert_eq!(rate.to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_speed_is_refused_with_the_reason() {
        for text in ["", "200", "200M", "200Mbps", "200mbit/s", "-1Mbit/s", "1e3Mbit/s", "infMB/s", "Mbit/s"]
        {
            assert!(matches!(text.parse::<Rate>(), Err(RateError::Unreadable(_))), "{text}");
        }
        for text in ["0MB/s", "999kbit/s", "1001Gbit/s", "99999999999999999999GB/s"] {
            assert!(matches!(text.parse::<Rate>(), Err(RateError::OutOfRange(_))), "{text}");
        }
        assert!("9Mbps".parse::<Rate>().unwrap_err().to_string().contains("such as 200Mbit/s"));
    }

    #[test]
    fn it_is_text_on_the_wire() {
        let rate: Rate = serde_json::from_str("\"40Mbit/s\"").unwrap();
        assert_eq!(serde_json::to_string(&rate).unwrap(), "\"40Mbit/s\"");
        assert!(serde_json::from_str::<Rate>("5000000").is_err());
    }
}
