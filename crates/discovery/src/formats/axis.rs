//! Coordinates by the conventions of CF: the first and the last value of an axis say when and where.
//!
//! That is so of coordinate variables alone, whose values go up or down (CF 1.11, 1.3); the positions of a ship along its way do not.

use netcdf_reader::cf::{CfCalendar, CfTimeRef, decode_time_exact, parse_time_units};

use percale_core::Timestamp;

use crate::standard::{Coverage, is_latitude, is_longitude};

/// What an axis counts.
pub(super) enum Axis {
    Latitude,
    Longitude,
    Time(CfTimeRef),
}

impl Axis {
    /// Tells what a variable of one dimension counts, by its units. Nothing if it is no time and no place.
    pub fn of(units: &str, calendar: Option<&str>) -> Option<Self> {
        match units.trim() {
            units if is_latitude(units) => Some(Self::Latitude),
            units if is_longitude(units) => Some(Self::Longitude),
            units => {
                let (unit, epoch) = units.split_once(" since ")?;
                // Also as ISO 8601 has it.
                let epoch = epoch.trim_end_matches("UTC").trim_end_matches('Z').replacen('T', " ", 1);
                let calendar = CfCalendar::parse(calendar.unwrap_or("standard"));
                // The year 0 stands for any year (CF 1.11, 4.4): a climatology.
                let since = parse_time_units(&format!("{unit} since {epoch}"), calendar)
                    .ok()
                    .filter(|since| since.epoch.year != 0);
                since.map(Self::Time)
            }
        }
    }

    /// Adds what lies between the first and the last of so many values.
    pub fn cover(&self, coverage: &mut Coverage, first: f64, last: f64, count: u64) {
        match self {
            Self::Latitude => coverage.latitudes(first, last),
            Self::Longitude => {
                let (west, east) = (first.min(last), first.max(last));
                coverage.axis(west, east, (east - west) / count.saturating_sub(1).max(1) as f64);
            }
            Self::Time(since) => {
                [first, last]
                    .iter()
                    .filter_map(|value| time(*value, since))
                    .for_each(|time| coverage.at(time));
            }
        }
    }
}

/// A day that its calendar has and everybody's has not, such as the thirtieth of February, is the one before it.
fn time(value: f64, since: &CfTimeRef) -> Option<Timestamp> {
    let at = decode_time_exact(value, since).ok()?;
    (0..=2).find_map(|less: u8| {
        let day = at.day.checked_sub(less)?;
        let text = format!(
            "{:04}-{:02}-{day:02}T{:02}:{:02}:{:02}.{:09}Z",
            at.year, at.month, at.hour, at.minute, at.second, at.nanosecond
        );
        text.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::Header;
    use crate::standard::{END, START};

    fn times(units: &str, calendar: Option<&str>, first: f64, last: f64) -> Vec<String> {
        let mut coverage = Coverage::default();
        Axis::of(units, calendar).unwrap().cover(&mut coverage, first, last, 10);
        let mut header = Header::default();
        coverage.say(&mut header);
        let of = |name| header.values(name).map(|values| values[0].to_string());
        [START, END].into_iter().filter_map(of).collect()
    }

    #[test]
    fn times_are_those_of_their_calendar() {
        let wanted = ["2000-01-01T12:00:00Z", "2001-01-01T00:00:00Z"];
        assert_eq!(times("days since 2000-01-01", None, 0.5, 366.0), wanted);
        assert_eq!(times("days since 2000-01-01 00:00:00", Some("noleap"), 0.5, 365.0), wanted);
        assert_eq!(times("hours since 2000-01-01T00:00:00Z", Some("360_day"), 12.0, 8640.0), wanted);
        assert_eq!(times("days since 2000-01-01", Some("360_day"), 59.0, 59.0)[0], "2000-02-29T00:00:00Z");
        assert_eq!(times("seconds since 1970-01-01", None, f64::NAN, f64::INFINITY), Vec::<String>::new());
        assert_eq!(times("seconds since 1970-01-01", None, 1e300, -1e300), Vec::<String>::new());
    }

    #[test]
    fn what_is_no_axis_is_left() {
        for units in [
            "K",
            "m since",
            "degrees",
            "fortnights since 2000-01-01",
            "days since the flood",
            "hours since 0000-01-01",
        ] {
            assert!(Axis::of(units, None).is_none(), "{units}");
        }
    }
}
