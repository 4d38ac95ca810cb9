//! Points in time.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A point in time, in microseconds since 1970-01-01T00:00:00Z: what both database engines keep exactly. On the wire it
/// is RFC 3339 text in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Timestamp(i64);

/// 0001-01-01T00:00:00Z and 9999-12-30T00:00:00Z.
const FIRST_MICROS: i64 = -62_135_596_800_000_000;
const LAST_MICROS: i64 = 253_402_128_000_000_000;

impl Timestamp {
    /// The beginning of the count.
    pub const EPOCH: Timestamp = Timestamp(0);

    /// Returns the time of this computer's clock. Leases use the database's clock instead.
    pub fn now() -> Self {
        Self::from(SystemTime::now())
    }

    /// Makes a time from microseconds since 1970. Values beyond the years 1 to 9999, which RFC 3339 cannot write, are
    /// cut to them.
    pub fn from_micros(micros: i64) -> Self {
        Self(micros.clamp(FIRST_MICROS, LAST_MICROS))
    }

    /// Returns microseconds since 1970.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Returns this time plus a duration.
    pub fn after(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Self::from_micros(self.0.saturating_add(micros))
    }

    /// Returns how long this is after `earlier`, or zero if it is not.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    fn to_jiff(self) -> jiff::Timestamp {
        jiff::Timestamp::from_microsecond(self.0).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
    }

    /// Formats as HTTP wants it in `Last-Modified`: `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, 5.6.7).
    pub fn to_http_date(self) -> String {
        self.to_jiff().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
    }
}

impl Timestamp {
    /// Reads what [`Timestamp::to_http_date`] writes; none for anything else.
    pub fn from_http_date(text: &str) -> Option<Self> {
        let mut parts = text.split_ascii_whitespace().skip(1);
        let (day, month, year, clock) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
        let month = MONTHS.find(month).filter(|at| at % 3 == 0)? / 3 + 1;
        format!("{year}-{month:02}-{day:0>2}T{clock}Z").parse().ok()
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let micros = match time.duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |micros| -micros),
        };
        Self::from_micros(micros)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_jiff().fmt(f)
    }
}

/// A text that is not an RFC 3339 time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a time: expected RFC 3339, such as 2026-11-21T08:30:00Z")]
pub struct TimestampError(String);

impl FromStr for Timestamp {
    type Err = TimestampError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let time: jiff::Timestamp =
            text.parse().map_err(|_| TimestampError(text.chars().take(60).collect()))?;
        Ok(Self(time.as_microsecond()))
    }
}

impl TryFrom<String> for Timestamp {
    type Error = TimestampError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Timestamp> for String {
    fn from(time: Timestamp) -> Self {
        time.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_messages_are_read() {
        let time: Timestamp = "2026-11-06T08:49:37Z".parse().unwrap();
        assert_eq!(Timestamp::from_http_date(&time.to_http_date()), Some(time));
        for junk in ["", "now", "Sun, 06 anF 1994 08:49:37 GMT", "Sun, 99 Nov 1994 08:49:37 GMT"] {
            assert_eq!(Timestamp::from_http_date(junk), None, "{junk:?}");
        }
    }

    #[test]
    fn text_round_trips_and_extremes_do_not_panic() {
        let time: Timestamp = "2026-11-21T08:30:00.000001Z".parse().unwrap();
        assert_eq!(time.to_string().parse(), Ok(time));
        assert_eq!(time.to_http_date(), "Sat, 21 Nov 2026 08:30:00 GMT");
        for micros in [i64::MIN, i64::MAX] {
            let extreme = Timestamp::from_micros(micros);
            assert_eq!(extreme.to_string().parse(), Ok(extreme));
        }
        assert_eq!(time.since(time.after(Duration::from_secs(1))), Duration::ZERO);
    }
}
