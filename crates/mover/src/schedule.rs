//! Speeds by time of day.

use std::fmt;
use std::str::FromStr;

use percale_core::{Rate, Timestamp};
use serde::{Deserialize, Serialize};

const MINUTES_OF_A_DAY: u16 = 24 * 60;
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
/// The first day of the count of time, 1970-01-01, was a Thursday.
const FIRST_WEEKDAY: i64 = 3;

/// A time of day to the minute, in UTC: `08:00`. `24:00` is the end of a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TimeOfDay(u16);

/// A set of days of the week: `mon-fri`, `sat,sun`, `fri-mon`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Days(u8);

/// A speed for some hours of some days.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hours {
    /// When they begin, UTC.
    pub from: TimeOfDay,
    /// When they end, UTC; at or before the beginning it is a time of the next day.
    pub to: TimeOfDay,
    /// The days on which they begin. Default all.
    #[serde(default)]
    pub days: Days,
    /// The speed.
    pub limit: Rate,
}

/// A speed, and others for some hours.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The speed where no hours say otherwise; nothing is no limit.
    pub limit: Option<Rate>,
    /// Those that do. The first that fits counts.
    pub times: Vec<Hours>,
}

impl Schedule {
    /// Returns the speed at a time.
    pub fn at(&self, now: Timestamp) -> Option<Rate> {
        let minutes = now.as_micros().div_euclid(60_000_000);
        let minute = minutes.rem_euclid(i64::from(MINUTES_OF_A_DAY)) as u16;
        let weekday = (minutes.div_euclid(i64::from(MINUTES_OF_A_DAY)) + FIRST_WEEKDAY).rem_euclid(7) as u8;
        let hours = self.times.iter().find(|hours| hours.hold(weekday, minute));
        hours.map_or(self.limit, |hours| Some(hours.limit))
    }
}

impl Hours {
    fn hold(&self, weekday: u8, minute: u16) -> bool {
        let (from, to) = (self.from.0, self.to.0);
        let today = self.days.has(weekday);
        if from < to {
            return today && (from..to).contains(&minute);
        }
        // What began yesterday ends this morning.
        (today && minute >= from) || (self.days.has((weekday + 6) % 7) && minute < to)
    }
}

impl Days {
    fn has(self, weekday: u8) -> bool {
        self.0 & (1 << weekday) != 0
    }
}

impl Default for Days {
    fn default() -> Self {
        Self(0x7f)
    }
}

/// A text that is no time of day or no days.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// Not a time.
    #[error("'{0}' is not a time of day: expected 00:00 to 24:00, such as 08:30")]
    Time(String),
    /// Not days.
    #[error("'{0}' are not days: expected such as mon-fri or sat,sun")]
    Days(String),
}

impl FromStr for TimeOfDay {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let wrong = || ScheduleError::Time(text.chars().take(40).collect());
        let is_shaped = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b':');
        let (hours, minutes) = text.split_once(':').filter(|_| is_shaped).ok_or_else(wrong)?;
        let hours: u16 = hours.parse().map_err(|_| wrong())?;
        let minutes: u16 = minutes.parse().map_err(|_| wrong())?;
        let time = hours * 60 + minutes;
        if minutes >= 60 || time > MINUTES_OF_A_DAY {
            return Err(wrong());
        }
        Ok(Self(time))
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

impl FromStr for Days {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let wrong = || ScheduleError::Days(text.chars().take(40).collect());
        let day = |name: &str| DAYS.iter().position(|day| *day == name.trim()).ok_or_else(wrong);
        let mut days = 0_u8;
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (mut at, last) = (day(first)?, day(last)?);
            days |= 1 << at;
            while at != last {
                at = (at + 1) % DAYS.len();
                days |= 1 << at;
            }
        }
        Ok(Self(days))
    }
}

impl fmt::Display for Days {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named: Vec<&str> =
            (0_u8..).zip(DAYS).filter(|(at, _)| self.has(*at)).map(|(_, name)| name).collect();
        f.write_str(&named.join(","))
    }
}

impl TryFrom<String> for TimeOfDay {
    type Error = ScheduleError;
    fn try_from(text: String) -> Result<Self, ScheduleError> {
        text.parse()
    }
}

impl From<TimeOfDay> for String {
    fn from(time: TimeOfDay) -> Self {
        time.to_string()
    }
}

impl TryFrom<String> for Days {
    type Error = ScheduleError;
    fn try_from(text: String) -> Result<Self, ScheduleError> {
        text.parse()
    }
}

impl From<Days> for String {
    fn from(days: Days) -> Self {
        days.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hours(from: &str, to: &str, days: &str, limit: &str) -> Hours {
        let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
        Hours { from, to, days: days.parse().unwrap(), limit: limit.parse().unwrap() }
    }

    #[test]
    fn the_first_hours_that_fit_count() {
        let schedule = Schedule {
            limit: Some("10Gbit/s".parse().unwrap()),
            times: vec![
                hours("12:00", "13:00", "wed", "5Gbit/s"),
                hours("08:00", "18:00", "mon-fri", "500Mbit/s"),
                hours("22:00", "06:00", "fri,sat", "20Gbit/s"),
            ],
        };
        // 2026-11-21 is a Saturday.
        for (at, limit) in [
            ("2026-11-23T07:59:59Z", "10Gbit/s"),
            ("2026-11-23T08:00:00Z", "500Mbit/s"),
            ("2026-11-27T17:59:59.999999Z", "500Mbit/s"),
            ("2026-11-27T18:00:00Z", "10Gbit/s"),
            ("2026-11-25T12:30:00Z", "5Gbit/s"),
            ("2026-11-24T12:30:00Z", "500Mbit/s"),
            ("2026-11-21T12:00:00Z", "10Gbit/s"),
            ("2026-11-20T23:00:00Z", "20Gbit/s"),
            ("2026-11-21T05:59:00Z", "20Gbit/s"),
            ("2026-11-21T06:00:00Z", "10Gbit/s"),
            ("2026-11-22T03:00:00Z", "20Gbit/s"),
            ("2026-11-23T03:00:00Z", "10Gbit/s"),
            ("1969-12-31T09:00:00Z", "500Mbit/s"),
        ] {
            let expected = limit.parse().unwrap();
            assert_eq!(schedule.at(at.parse().unwrap()), Some(expected), "{at}");
        }
        assert_eq!(Schedule::default().at(Timestamp::EPOCH), None);
    }

    #[test]
    fn times_and_days_are_read_as_people_write_them() {
        for (text, shown) in
            [("mon-fri", "mon,tue,wed,thu,fri"), ("sat,sun", "sat,sun"), ("fri-mon", "mon,fri,sat,sun")]
        {
            assert_eq!(text.parse::<Days>().unwrap().to_string(), shown);
        }
        assert_eq!("mon-sun".parse(), Ok(Days::default()));
        for text in ["", "monday", "mon-", "1-5", "mon;tue"] {
            assert!(text.parse::<Days>().is_err(), "{text}");
        }
        for text in ["00:00", "08:05", "24:00"] {
            assert_eq!(text.parse::<TimeOfDay>().unwrap().to_string(), text);
        }
        for text in ["", "8:00", "24:01", "12:60", "12.30", "-1:00", "+1:00", "12:00:00"] {
            assert!(text.parse::<TimeOfDay>().is_err(), "{text}");
        }
        // From 00:00 to 24:00 is the whole day.
        let always = Schedule { limit: None, times: vec![hours("00:00", "24:00", "mon-sun", "1MB/s")] };
        assert!(always.at(Timestamp::EPOCH).is_some());
    }
}
