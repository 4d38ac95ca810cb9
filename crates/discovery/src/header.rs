//! What is found in the header of a file.

use std::collections::{HashMap, HashSet};

use percale_core::attribute::{
    Float, MAX_ATTRIBUTE_NAME, MAX_ATTRIBUTE_TEXT, MAX_ATTRIBUTE_VALUES, MAX_HEADER_ATTRIBUTES,
    MAX_HEADER_BYTES,
};
use percale_core::{AttributeName, AttributeValue, Timestamp};
use serde::{Deserialize, Serialize};

use crate::language::dates;
use crate::standard::{self, ENDS};

/// The attribute that says in which format a file is.
pub const FORMAT: &str = "format";
/// The attribute that says how many values there was no room for.
pub const LEFT_OUT: &str = "extraction.left_out";
/// The attribute that says why nothing, or not all, could be read.
pub const ERROR: &str = "extraction.error";
/// The attribute that says that it is tried again by itself, since what has the bytes did not answer.
pub const UNREAD: &str = "extraction.unread";
/// The attribute that names the documents beside a file that describe it.
pub const DESCRIBED_BY: &str = "described_by";

/// An attribute of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Its name.
    pub name: AttributeName,
    /// Its values, at least one.
    pub values: Vec<AttributeValue>,
}

/// Attributes on their way out of a file, within bounds whatever the file has.
#[derive(Debug, Default)]
pub struct Header {
    found: Vec<Found>,
    places: HashMap<AttributeName, usize>,
    bytes: usize,
    left_out: u64,
    is_unread: bool,
}

impl Header {
    /// Begins with the name of the format.
    pub fn of_format(format: &str) -> Self {
        let mut header = Self::default();
        header.add(FORMAT, [AttributeValue::Text(format.to_owned())]);
        header
    }

    /// Adds values to an attribute. A name becomes one that an attribute may have; a text that is too long is cut. An attribute without
    /// any value has an empty text, so that it is there. What there is no room for is counted, together with what was counted before.
    pub fn add(&mut self, name: &str, values: impl IntoIterator<Item = AttributeValue>) {
        let Some(name) = name_of(name) else { return self.leave_out(1) };
        if name.as_str() == LEFT_OUT {
            let counts = values.into_iter().map(|value| match value {
                AttributeValue::Integer(count) => u64::try_from(count).unwrap_or_default(),
                _ => 1,
            });
            return self.leave_out(counts.fold(0, u64::saturating_add));
        }
        // No file says that of itself.
        if name.as_str() == UNREAD {
            return;
        }
        let at = match self.places.get(&name) {
            Some(at) => *at,
            None if self.found.len() >= MAX_HEADER_ATTRIBUTES
                || self.bytes + name.as_str().len() > MAX_HEADER_BYTES =>
            {
                return self.leave_out(1);
            }
            None => {
                self.bytes += name.as_str().len();
                self.places.insert(name.clone(), self.found.len());
                self.found.push(Found { name, values: Vec::new() });
                self.found.len() - 1
            }
        };
        let Some(found) = self.found.get_mut(at) else { return };
        for value in values {
            let value = within_bounds(value);
            if found.values.len() >= MAX_ATTRIBUTE_VALUES || self.bytes + value.size() > MAX_HEADER_BYTES {
                self.left_out += 1;
                continue;
            }
            self.bytes += value.size();
            found.values.push(value);
        }
        if found.values.is_empty() {
            found.values.push(AttributeValue::Text(String::new()));
        }
    }

    /// Returns what an attribute has so far.
    pub fn values(&self, name: &str) -> Option<&[AttributeValue]> {
        let at = self.places.get(&name_of(name)?)?;
        self.found.get(*at).map(|found| found.values.as_slice())
    }

    /// Returns all attributes so far.
    pub fn all(&self) -> impl Iterator<Item = (&str, &[AttributeValue])> {
        self.found.iter().map(|found| (found.name.as_str(), found.values.as_slice()))
    }

    /// Adds one text.
    pub fn text(&mut self, name: &str, text: impl Into<String>) {
        self.add(name, [AttributeValue::Text(text.into())]);
    }

    /// Adds one whole number without sign; one that is too large becomes another number.
    pub fn number(&mut self, name: &str, number: u64) {
        self.add(name, [unsigned(number)]);
    }

    /// Adds the length of a dimension: once, if all that have it agree.
    pub fn dimension(&mut self, name: &str, size: u64) {
        let (name, size) = (format!("dim.{name}"), unsigned(size));
        if !self.values(&name).is_some_and(|known| known.contains(&size)) {
            self.add(&name, [size]);
        }
    }

    /// Counts values that there was no room for.
    pub fn leave_out(&mut self, values: u64) {
        self.left_out = self.left_out.saturating_add(values);
    }

    /// Says that what there is could not all be read.
    pub fn fail(&mut self, why: &str) {
        self.text(ERROR, why);
    }

    /// Says that what could not be read is tried again.
    pub fn leave_unread(&mut self) {
        self.is_unread = true;
    }

    /// Tells whether that was said.
    pub fn is_unread(&self) -> bool {
        self.is_unread
    }

    /// Adds what a document beside the file says of it, where the file itself and the documents before say nothing.
    pub fn describe(&mut self, document: &str, said: Vec<Found>) {
        self.text(DESCRIBED_BY, document);
        let known: HashSet<AttributeName> = self.places.keys().cloned().collect();
        for Found { name, values } in said {
            match (name.as_str(), values.first()) {
                // They are the document's own.
                (FORMAT | LEFT_OUT, _) => {}
                (ERROR, Some(AttributeValue::Text(why))) => self.fail(&format!("{document}: {why}")),
                _ if known.contains(&name) => {}
                _ => self.add(name.as_str(), values),
            }
        }
    }

    /// Returns what was found.
    pub fn finish(mut self) -> Vec<Found> {
        self.add_times();
        standard::add(&mut self);
        if self.left_out > 0 {
            let left_out = i64::try_from(self.left_out).unwrap_or(i64::MAX);
            self.close(LEFT_OUT, AttributeValue::Integer(left_out));
        }
        if self.is_unread {
            self.close(UNREAD, AttributeValue::Bool(true));
        }
        self.found
    }

    /// Adds what there is room for, whatever there is.
    fn close(&mut self, name: &str, value: AttributeValue) {
        self.found.extend(name_of(name).map(|name| Found { name, values: vec![value] }));
    }

    /// Gives the texts that ACDD keeps times in a second value, the time; of a date that is an end, that is the last moment of it.
    ///
    /// <https://wiki.esipfed.org/Attribute_Convention_for_Data_Discovery_1-3>: these have values of ISO 8601.
    fn add_times(&mut self) {
        const TIMES: [&str; 12] = [
            "time_coverage_start",
            "time_coverage_end",
            "date_created",
            "date_modified",
            "date_issued",
            "date_metadata_modified",
            "creation_date",
            "DATE-OBS",
            "DATE-END",
            "properties.datetime",
            "properties.start_datetime",
            "properties.end_datetime",
        ];
        for name in TIMES {
            let at = name_of(name).and_then(|name| self.places.get(&name).copied());
            let Some(found) = at.and_then(|at| self.found.get_mut(at)) else { continue };
            if let [AttributeValue::Text(text)] = found.values.as_slice()
                && let Some((first, last)) = times_of(text)
            {
                found.values.push(AttributeValue::Time(if ENDS.contains(&name) { last } else { first }));
            }
        }
    }
}

/// Microseconds of a day.
const DAY: i64 = 24 * 3600 * 1_000_000;

/// Reads a time in ISO 8601; without a zone it is in UTC. A date without a time of the day has a first and a last moment, and so has a month or
/// a year.
pub(crate) fn times_of(text: &str) -> Option<(Timestamp, Timestamp)> {
    let text = text.trim();
    let at = |text: &str| text.parse::<Timestamp>().ok();
    let time = at(text).or_else(|| at(&format!("{}Z", text.replacen(' ', "T", 1))));
    if let Some(time) = time {
        return Some((time, time));
    }
    if let Some((first, end)) = dates(text) {
        return Some((first, Timestamp::from_micros(end.as_micros() - 1)));
    }
    // A day without hyphens.
    let day = at(&format!("{text}T00:00:00Z"))?;
    Some((day, Timestamp::from_micros(day.as_micros() + DAY - 1)))
}

/// Makes a name that an attribute may have.
fn name_of(name: &str) -> Option<AttributeName> {
    let plain = |char: char| if char.is_control() || char == '`' { '_' } else { char };
    let mut name: String = name.trim().chars().map(plain).collect();
    name.truncate(name.floor_char_boundary(MAX_ATTRIBUTE_NAME));
    name.trim().parse().ok()
}

fn within_bounds(value: AttributeValue) -> AttributeValue {
    match value {
        AttributeValue::Text(mut text) => {
            if text.contains('\0') {
                text = text.replace('\0', "\u{fffd}");
            }
            text.truncate(text.floor_char_boundary(MAX_ATTRIBUTE_TEXT));
            AttributeValue::Text(text)
        }
        other => other,
    }
}

/// Returns a whole number without sign; one that is too large becomes another number.
pub(crate) fn unsigned(number: u64) -> AttributeValue {
    i64::try_from(number).map_or(AttributeValue::Float(Float(number as f64)), AttributeValue::Integer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> AttributeValue {
        AttributeValue::Text(text.into())
    }

    #[test]
    fn documents_say_what_the_file_does_not() {
        let mut file = Header::of_format("netcdf3");
        file.text("title", "the file's");
        let mut document = Header::of_format("json");
        document.text("title", "the document's");
        document.text("license", "CC-BY-4.0");
        document.leave_out(3);
        document.fail("cut");
        file.leave_out(2);
        file.describe("a.json", document.finish());
        let mut again = Header::default();
        file.finish().into_iter().for_each(|found| again.add(found.name.as_str(), found.values));
        again.leave_out(1);
        let found: Vec<_> =
            again.finish().into_iter().map(|found| (found.name.to_string(), found.values)).collect();
        let wanted = [
            ("format", text("netcdf3")),
            ("title", text("the file's")),
            ("described_by", text("a.json")),
            ("license", text("CC-BY-4.0")),
            ("extraction.error", text("a.json: cut")),
            // The document's own are its own.
            ("extraction.left_out", AttributeValue::Integer(3)),
        ];
        assert_eq!(found, wanted.map(|(name, value)| (name.to_owned(), vec![value])));
    }

    #[test]
    fn no_file_says_that_it_is_unread() {
        let mut header = Header::default();
        header.add(UNREAD, [AttributeValue::Bool(true)]);
        assert_eq!((header.is_unread(), header.finish()), (false, Vec::new()));
        let mut header = Header::default();
        header.leave_unread();
        let mark = Found { name: UNREAD.parse().unwrap(), values: vec![AttributeValue::Bool(true)] };
        assert_eq!((header.is_unread(), header.finish()), (true, vec![mark]));
    }

    #[test]
    fn names_and_texts_become_what_attributes_may_have() {
        let mut header = Header::default();
        header.text(" a\n`b` ", "x\0y");
        header.text(&"ä".repeat(300), "ö".repeat(8000));
        header.text("", "no name");
        header.add("empty", []);
        header.text("empty", "more");
        let found = header.finish();
        assert_eq!((found[0].name.as_str(), &found[0].values[..]), ("a__b_", &[text("x\u{fffd}y")][..]));
        assert_eq!(found[1].name.as_str().len(), 254);
        assert_eq!(found[1].values, [text(&"ö".repeat(4096))]);
        assert_eq!(found[2].values, [text(""), text("more")]);
        assert_eq!(
            (found[3].name.as_str(), &found[3].values[..]),
            (LEFT_OUT, &[AttributeValue::Integer(1)][..])
        );
    }

    #[test]
    fn what_there_is_no_room_for_is_counted() {
        let mut header = Header::default();
        for n in 0..MAX_HEADER_ATTRIBUTES + 10 {
            header.text(&format!("a{n}"), "x");
        }
        header.add("a1", (0..1000).map(AttributeValue::Integer));
        let found = header.finish();
        assert_eq!(found.len(), MAX_HEADER_ATTRIBUTES + 1);
        let left = 10 + 1001 - MAX_ATTRIBUTE_VALUES as i64;
        assert_eq!(found.last().unwrap().values, [AttributeValue::Integer(left)]);
        let mut header = Header::default();
        for n in 0..1000 {
            header.text(&format!("a{n}"), "x".repeat(8000));
        }
        let bytes = |found: &Found| {
            found.name.as_str().len() + found.values.iter().map(AttributeValue::size).sum::<usize>()
        };
        assert!(header.finish().iter().map(bytes).sum::<usize>() < MAX_HEADER_BYTES + 100);
    }

    #[test]
    fn times_by_convention_are_times_too() {
        let mut header = Header::default();
        header.text("time_coverage_start", "2018-03-01");
        header.text("date_created", "2018-03-01T10:20:30Z");
        header.text("time_coverage_end", "2018-03-01 10:20:30");
        header.text("date_modified", "March");
        header.text("date_issued", "2018");
        header.text("DATE-END", "2018-12-31");
        header.text("properties.end_datetime", "2018-02");
        assert_eq!(times_of("20181231"), times_of("2018-12-31"));
        let found = header.finish();
        let time = |text: &str| AttributeValue::Time(text.parse().unwrap());
        assert_eq!(found[0].values[1], time("2018-03-01T00:00:00Z"));
        assert_eq!(found[1].values[1], time("2018-03-01T10:20:30Z"));
        assert_eq!(found[2].values[1], time("2018-03-01T10:20:30Z"));
        assert_eq!(found[3].values.len(), 1);
        assert_eq!(found[4].values[1], time("2018-01-01T00:00:00Z"));
        assert_eq!(found[5].values[1], time("2018-12-31T23:59:59.999999Z"));
        assert_eq!(found[6].values[1], time("2018-02-28T23:59:59.999999Z"));
    }
}
