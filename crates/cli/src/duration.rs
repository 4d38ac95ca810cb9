//! Lengths of time as people write them: `30s`, `10m`, `7d10h`; and times that may be written as such.

use std::str::FromStr;
use std::time::Duration;

use percale_core::Timestamp;

/// A length of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong =
            || format!("'{text}' is not a length of time: expected such as 30s, 10m, 8h, 7d or 7d10h");
        let mut seconds: u64 = 0;
        let mut rest = text.trim();
        if rest.is_empty() {
            return Err(wrong());
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let (number, behind) = rest.split_at(digits);
            let number: u64 = number.parse().map_err(|_| wrong())?;
            let unit = behind.chars().next();
            let factor = match unit {
                None | Some('s') => 1,
                Some('m') => 60,
                Some('h') => 3600,
                Some('d') => 86_400,
                Some('w') => 7 * 86_400,
                Some('y') => 365 * 86_400,
                Some(_) => return Err(wrong()),
            };
            seconds =
                number.checked_mul(factor).and_then(|add| seconds.checked_add(add)).ok_or_else(wrong)?;
            rest = behind.get(unit.map_or(0, char::len_utf8)..).unwrap_or_default();
        }
        Ok(Self(Duration::from_secs(seconds)))
    }
}

/// When something gives up: after a length of time, or at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deadline {
    /// After so long.
    In(Span),
    /// Then.
    At(Timestamp),
}

impl Deadline {
    /// Returns the time that is meant now.
    pub fn time(self, now: Timestamp) -> Timestamp {
        match self {
            Self::In(span) => now.after(span.0),
            Self::At(time) => time,
        }
    }
}

impl FromStr for Deadline {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let span = text.parse().map(Self::In).ok();
        span.or_else(|| text.parse().map(Self::At).ok()).ok_or_else(|| {
            format!("'{text}' is neither a length of time such as 2h nor a time such as 2026-12-01T00:00Z")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_a_length_of_time_or_a_time() {
        let now: Timestamp = "2026-11-30T22:00:00Z".parse().unwrap();
        for (text, time) in [
            ("2h", "2026-12-01T00:00:00Z"),
            ("2026-12-01T00:00Z", "2026-12-01T00:00:00Z"),
            ("2026-12-01T01:30:00+01:30", "2026-12-01T00:00:00Z"),
        ] {
            assert_eq!(text.parse::<Deadline>().unwrap().time(now).to_string(), time, "{text}");
        }
        for text in ["", "tomorrow", "2026-12-01", "2h later", "2026-13-01T00:00Z"] {
            let error = text.parse::<Deadline>().unwrap_err();
            assert!(error.contains("such as 2h"), "{error}");
        }
    }

    #[test]
    fn spans_are_read_as_people_write_them() {
        for (text, seconds) in
            [("30", 30), ("30s", 30), ("10m", 600), ("7d10h", 7 * 86_400 + 36_000), ("1w", 604_800)]
        {
            assert_eq!(text.parse::<Span>().unwrap().0.as_secs(), seconds, "{text}");
        }
        for text in ["", "x", "10 minutes", "-1s", "99999999999999999999d", "1dd", "18446744073709551615y"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
