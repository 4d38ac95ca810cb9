//! Words that may be numbers, sizes, times or truths.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Span, ToSpan as _};
use percale_core::Timestamp;
use percale_core::query::Literal;

/// Reads a word in each way in which it can be read.
pub(super) fn read(word: &str, now: Timestamp) -> Literal {
    let bool = match word {
        _ if word.eq_ignore_ascii_case("true") => Some(true),
        _ if word.eq_ignore_ascii_case("false") => Some(false),
        _ => None,
    };
    Literal {
        text: word.to_owned(),
        number: number(word),
        span: relative(word, now).or_else(|| span(word)),
        bool,
    }
}

/// Bytes in what sizes are counted in.
const UNITS: [(&str, f64); 9] = [
    ("kb", 1e3),
    ("mb", 1e6),
    ("gb", 1e9),
    ("tb", 1e12),
    ("kib", 1024.0),
    ("mib", 1_048_576.0),
    ("gib", 1_073_741_824.0),
    ("tib", 1_099_511_627_776.0),
    ("b", 1.0),
];

fn number(word: &str) -> Option<f64> {
    let begins = word.starts_with(|char: char| char.is_ascii_digit() || "+-.".contains(char));
    if !begins {
        return None;
    }
    if let Ok(number) = word.parse() {
        return Some(number);
    }
    let digits = word.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let unit = word.get(digits.len()..)?.to_ascii_lowercase();
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
    Some(digits.parse::<f64>().ok()? * factor)
}

/// Reads a length, `50km` or `500m`, in kilometres.
pub(super) fn kilometres(word: &str) -> Option<f64> {
    match word.strip_suffix("km") {
        Some(number) => number.parse().ok(),
        None => word.strip_suffix('m')?.parse::<f64>().ok().map(|metres| metres / 1000.0),
    }
}

/// Reads `-7d` or `now-7d`: that long before now.
fn relative(word: &str, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
    let count = word.strip_prefix("now").unwrap_or(word);
    let count = count.strip_prefix('-')?;
    let unit = count.chars().last()?;
    let count: i64 = count.strip_suffix(unit)?.parse().ok()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        'w' => 604_800,
        // As long as a Gregorian year is on average.
        'y' => 31_556_952,
        _ => return None,
    };
    let micros = count.checked_mul(seconds)?.checked_mul(1_000_000)?;
    let at = Timestamp::from_micros(now.as_micros().checked_sub(micros)?);
    Some((at, Timestamp::from_micros(at.as_micros() + 1)))
}

/// Reads a date, or a part of one, in UTC unless it says otherwise.
pub(super) fn span(word: &str) -> Option<(Timestamp, Timestamp)> {
    if !word.is_ascii() || !word.starts_with(|char: char| char.is_ascii_digit()) {
        return None;
    }
    dates(word).or_else(|| time(word))
}

/// Reads a year, a month or a day, in UTC: from its beginning to before its end.
pub(crate) fn dates(word: &str) -> Option<(Timestamp, Timestamp)> {
    let part = |from: usize, to: usize| -> Option<i16> { word.get(from..to)?.parse().ok() };
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let dashes = |places: &[usize]| {
        word.bytes()
            .enumerate()
            .all(|(at, byte)| if places.contains(&at) { byte == b'-' } else { byte.is_ascii_digit() })
    };
    match word.len() {
        4 if is_digits(word) => between(day(part(0, 4)?, 1, 1)?, 1.year()),
        7 if dashes(&[4]) => between(day(part(0, 4)?, part(5, 7)?, 1)?, 1.month()),
        10 if dashes(&[4, 7]) => between(day(part(0, 4)?, part(5, 7)?, part(8, 10)?)?, 1.day()),
        _ => None,
    }
}

fn day(year: i16, month: i16, day: i16) -> Option<DateTime> {
    let small = |number: i16| i8::try_from(number).ok();
    Some(Date::new(year, small(month)?, small(day)?).ok()?.at(0, 0, 0, 0))
}

fn between(first: DateTime, long: Span) -> Option<(Timestamp, Timestamp)> {
    let micros = |at: DateTime| at.to_zoned(TimeZone::UTC).ok().map(|at| at.timestamp().as_microsecond());
    let end = first.checked_add(long).ok()?;
    Some((Timestamp::from_micros(micros(first)?), Timestamp::from_micros(micros(end)?)))
}

/// Reads a date with a time of the day: of a minute, a second or a part of it.
fn time(word: &str) -> Option<(Timestamp, Timestamp)> {
    let at = word.find(['T', 't'])?;
    let clock = word.get(at + 1..)?.trim_end_matches(['Z', 'z']);
    let clock = clock.split(['+', '-']).next()?;
    let long = match clock.len() {
        5 => 60_000_000,
        8 => 1_000_000,
        _ => 1,
    };
    let first = match word.parse::<jiff::Timestamp>() {
        Ok(first) => first,
        // Without an offset it is UTC.
        Err(_) => word.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp(),
    };
    let first = first.as_microsecond();
    Some((Timestamp::from_micros(first), Timestamp::from_micros(first.checked_add(long)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn span_of(word: &str) -> Option<(Timestamp, Timestamp)> {
        read(word, at("2024-06-15T12:00:00Z")).span
    }

    #[test]
    fn parts_of_dates_are_spans() {
        let spans = [
            ("2024", "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z"),
            ("2024-02", "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"),
            ("2023-12-31", "2023-12-31T00:00:00Z", "2024-01-01T00:00:00Z"),
            ("2024-06-01T10:30", "2024-06-01T10:30:00Z", "2024-06-01T10:31:00Z"),
            ("2024-06-01T10:30:15Z", "2024-06-01T10:30:15Z", "2024-06-01T10:30:16Z"),
            ("2024-06-01T10:30:15+02:00", "2024-06-01T08:30:15Z", "2024-06-01T08:30:16Z"),
            ("-7d", "2024-06-08T12:00:00Z", "2024-06-08T12:00:00.000001Z"),
            ("now-1h", "2024-06-15T11:00:00Z", "2024-06-15T11:00:00.000001Z"),
        ];
        for (word, first, end) in spans {
            assert_eq!(span_of(word), Some((at(first), at(end))), "{word}");
        }
        for word in [
            "20240",
            "2024-13",
            "2024-02-30",
            "2024_01",
            "-7",
            "-7q",
            "now",
            "2024-06-01T25:00",
            "é024",
            "9999-12-31T",
        ] {
            assert_eq!(span_of(word), None, "{word}");
        }
    }

    #[test]
    fn numbers_may_be_sizes() {
        let numbers = [
            ("7", 7.0),
            ("-7.5e3", -7500.0),
            ("1GB", 1e9),
            ("2GiB", 2_147_483_648.0),
            ("1.5kb", 1500.0),
            (".5", 0.5),
        ];
        for (word, number) in numbers {
            assert_eq!(read(word, Timestamp::EPOCH).number, Some(number), "{word}");
        }
        for word in ["inf", "nan", "7x", "GB", "1e", "", "-"] {
            assert_eq!(read(word, Timestamp::EPOCH).number, None, "{word}");
        }
        assert!(read("MODIS", Timestamp::EPOCH).is_text_alone());
        assert_eq!(read("True", Timestamp::EPOCH).bool, Some(true));
    }
}
