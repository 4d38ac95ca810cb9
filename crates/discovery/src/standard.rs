//! What each format says in a way of its own, under one name: when, where, by whom and with what.
//!
//! Sources: the Attribute Convention for Data Discovery 1.3 (<https://wiki.esipfed.org/Attribute_Convention_for_Data_Discovery_1-3>), the
//! CF conventions 1.11, 4.1 and 4.2 (<https://cfconventions.org>), FITS 4.0, EXIF 2.3, and STAC 1.0.

use percale_core::attribute::Float;
use percale_core::{AttributeValue, Timestamp};

use crate::header::{Header, times_of};

/// The first time that there is anything of.
pub const START: &str = "coverage.start";
/// The last one.
pub const END: &str = "coverage.end";
/// The longitude where what is covered begins, from -180 to less than 180.
pub const WEST: &str = "coverage.west";
/// The longitude where it ends, not before [`WEST`]: more than 180 behind the date line.
pub const EAST: &str = "coverage.east";
/// The southernmost latitude.
pub const SOUTH: &str = "coverage.south";
/// The northernmost latitude.
pub const NORTH: &str = "coverage.north";

/// Names that all formats share, each with those by which some say it.
const SAME: [(&str, &[&str]); 4] = [
    ("creator", &["creator_name", "author", "Author", "AUTHOR", "OBSERVER", "Artist"]),
    ("instrument", &["INSTRUME", "Model"]),
    ("license", &["licence", "License", "rights", "Copyright"]),
    ("platform", &["TELESCOP", "Make"]),
];

/// Attributes of times: of ACDD, FITS, EXIF and items of STAC 1.0.
const TIMES: [&str; 8] = [
    "time_coverage_start",
    "time_coverage_end",
    "DATE-OBS",
    "DATE-END",
    "DateTimeOriginal",
    "properties.datetime",
    "properties.start_datetime",
    "properties.end_datetime",
];

/// Those of them that are ends: a date in one is meant to its last moment.
pub(crate) const ENDS: [&str; 3] = ["time_coverage_end", "DATE-END", "properties.end_datetime"];
/// Those that are the only ones where there is no end, so that a date is meant as a whole.
const WHOLE: [&str; 3] = ["DATE-OBS", "DateTimeOriginal", "properties.datetime"];

/// Units by which CF knows a latitude (4.1), and a longitude (4.2).
const OF_LATITUDE: [&str; 6] =
    ["degrees_north", "degree_north", "degree_N", "degrees_N", "degreeN", "degreesN"];
const OF_LONGITUDE: [&str; 6] =
    ["degrees_east", "degree_east", "degree_E", "degrees_E", "degreeE", "degreesE"];

pub(crate) fn is_latitude(units: &str) -> bool {
    OF_LATITUDE.contains(&units)
}

pub(crate) fn is_longitude(units: &str) -> bool {
    OF_LONGITUDE.contains(&units)
}

/// Returns a longitude as one from -180 to less than 180.
pub(crate) fn turned(longitude: f64) -> f64 {
    match (-180.0..180.0).contains(&longitude) {
        true => longitude,
        false => (longitude + 180.0).rem_euclid(360.0) - 180.0,
    }
}

/// What part of time and of the Earth something is about.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Coverage {
    time: Option<(Timestamp, Timestamp)>,
    /// West and east.
    longitude: Option<(f64, f64)>,
    /// South and north.
    latitude: Option<(f64, f64)>,
}

impl Coverage {
    /// Adds a time.
    pub fn at(&mut self, time: Timestamp) {
        let (first, last) = self.time.unwrap_or((time, time));
        self.time = Some((first.min(time), last.max(time)));
    }

    /// Adds latitudes, in degrees.
    pub fn latitudes(&mut self, one: f64, other: f64) {
        let (south, north) = (one.min(other), one.max(other));
        if -90.0 <= south && north <= 90.0 {
            let (least, most) = self.latitude.unwrap_or((south, north));
            self.latitude = Some((least.min(south), most.max(north)));
        }
    }

    /// Adds longitudes, in degrees, from the west to the east.
    pub fn longitudes(&mut self, west: f64, east: f64) {
        if !(-360.0..=720.0).contains(&west) || !(-360.0..=720.0).contains(&east) {
            return;
        }
        let wide = if east < west { east - west + 360.0 } else { east - west };
        let (west, east) = match turned(west) {
            _ if wide >= 360.0 => (-180.0, 180.0),
            west => (west, west + wide),
        };
        let (first, last) = self.longitude.unwrap_or((west, east));
        let (west, east) = (first.min(west), last.max(east));
        self.longitude = Some(if east - west >= 360.0 { (-180.0, 180.0) } else { (west, east) });
    }

    /// Adds an axis of longitudes with such steps. One that ends a step before where it begins goes round the Earth.
    #[cfg(feature = "formats")]
    pub fn axis(&mut self, west: f64, east: f64, step: f64) {
        let is_round = (east - west).rem_euclid(360.0) + step * 1.01 >= 360.0;
        self.longitudes(west, if is_round { west + 360.0 } else { east });
    }

    /// Says it, where nothing says it yet.
    pub fn say(self, header: &mut Header) {
        let mut say = |name: &str, value: AttributeValue| {
            if header.values(name).is_none() {
                header.add(name, [value]);
            }
        };
        if let Some((first, last)) = self.time {
            say(START, AttributeValue::Time(first));
            say(END, AttributeValue::Time(last));
        }
        // Half a place cannot be searched for.
        if let (Some((west, east)), Some((south, north))) = (self.longitude, self.latitude) {
            for (name, degrees) in [(WEST, west), (EAST, east), (SOUTH, south), (NORTH, north)] {
                say(name, AttributeValue::Float(Float(degrees)));
            }
        }
    }
}

/// Adds what the attributes of a header say by conventions.
pub(crate) fn add(header: &mut Header) {
    for (name, others) in SAME {
        if header.values(name).is_none()
            && let Some(values) = others.iter().find_map(|other| header.values(other))
        {
            header.add(name, values.to_vec());
        }
    }
    let mut coverage = Coverage::default();
    for name in TIMES {
        let times = header.values(name).unwrap_or_default().iter().filter_map(time);
        times.for_each(|time| coverage.at(time));
    }
    if ENDS.iter().all(|name| header.values(name).is_none()) {
        let texts = WHOLE.iter().flat_map(|name| header.values(name).unwrap_or_default());
        let last = |value: &AttributeValue| match value {
            AttributeValue::Text(text) => times_of(text).map(|(_, last)| last),
            _ => None,
        };
        texts.filter_map(last).for_each(|last| coverage.at(last));
    }
    let first = |name: &str| header.values(name).and_then(|values| values.iter().find_map(number));
    if let (Some(south), Some(north)) = (first("geospatial_lat_min"), first("geospatial_lat_max")) {
        coverage.latitudes(south, north);
    }
    if let (Some(west), Some(east)) = (first("geospatial_lon_min"), first("geospatial_lon_max")) {
        coverage.longitudes(west, east);
    }
    if coverage.latitude.is_none() || coverage.longitude.is_none() {
        by_ranges(header, &mut coverage);
    }
    // An item of STAC, perhaps with heights.
    let corners: Vec<f64> = header.values("bbox").unwrap_or_default().iter().filter_map(number).collect();
    if let [west, south, east, north] | [west, south, _, east, north, _] = *corners {
        coverage.latitudes(south, north);
        coverage.longitudes(west, east);
    }
    if let (Some(latitude), Some(longitude)) =
        (angle(header, "GPSLatitude", 'S'), angle(header, "GPSLongitude", 'W'))
    {
        coverage.latitudes(latitude, latitude);
        coverage.longitudes(longitude, longitude);
    }
    coverage.say(header);
}

/// Takes the ranges of coordinates, `actual_range` (CF 1.11, 2.5.1), of the variables whose units are those of latitudes and longitudes.
fn by_ranges(header: &Header, coverage: &mut Coverage) {
    let mut found = Vec::new();
    for (name, values) in header.all() {
        let Some(variable) = name.strip_prefix("var.").and_then(|name| name.strip_suffix(".units")) else {
            continue;
        };
        let Some(AttributeValue::Text(units)) = values.first() else { continue };
        let is_latitude = is_latitude(units.trim());
        if !is_latitude && !is_longitude(units.trim()) {
            continue;
        }
        let range = header.values(&format!("var.{variable}.actual_range")).unwrap_or_default();
        if let [one, other] = *range.iter().filter_map(number).collect::<Vec<_>>() {
            found.push((is_latitude, one, other));
        }
    }
    for (is_latitude, one, other) in found {
        match is_latitude {
            true => coverage.latitudes(one, other),
            false => coverage.longitudes(one.min(other), one.max(other)),
        }
    }
}

/// Returns an angle that EXIF has in degrees, minutes and seconds, and in a word which way it counts.
fn angle(header: &Header, name: &str, negative: char) -> Option<f64> {
    let parts: Vec<f64> = header.values(name)?.iter().filter_map(number).collect();
    let [degrees, minutes, seconds] = *parts else { return None };
    let is_negative = match header.values(&format!("{name}Ref")).and_then(<[_]>::first) {
        Some(AttributeValue::Text(way)) => way.starts_with(negative),
        _ => false,
    };
    let angle = degrees + minutes / 60.0 + seconds / 3600.0;
    Some(if is_negative { -angle } else { angle })
}

fn time(value: &AttributeValue) -> Option<Timestamp> {
    match value {
        AttributeValue::Time(time) => Some(*time),
        _ => None,
    }
}

/// Returns a number, also one that is written as text: ACDD has both.
pub(crate) fn number(value: &AttributeValue) -> Option<f64> {
    match value {
        AttributeValue::Integer(number) => Some(*number as f64),
        AttributeValue::Float(number) => Some(number.0),
        AttributeValue::Text(text) => text.trim().parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(attributes: &[(&str, &[AttributeValue])]) -> Vec<String> {
        let mut header = Header::default();
        for (name, values) in attributes {
            header.add(name, values.to_vec());
        }
        let found = header.finish().into_iter().skip(attributes.len());
        found
            .map(|found| {
                let values: Vec<String> = found.values.iter().map(ToString::to_string).collect();
                format!("{}={}", found.name, values.join(" "))
            })
            .collect()
    }

    fn text(text: &str) -> AttributeValue {
        AttributeValue::Text(text.into())
    }

    fn float(number: f64) -> AttributeValue {
        AttributeValue::Float(Float(number))
    }

    #[test]
    fn conventions_say_when_and_where() {
        let acdd = [
            ("time_coverage_start", &[text("2018-03-01")][..]),
            ("time_coverage_end", &[text("2018-03-02T12:00:00Z")]),
            ("geospatial_lat_min", &[float(-10.0)]),
            ("geospatial_lat_max", &[text("20.5")]),
            ("geospatial_lon_min", &[float(350.0)]),
            ("geospatial_lon_max", &[AttributeValue::Integer(370)]),
            ("creator_name", &[text("Ada")]),
        ];
        let wanted = [
            "creator=Ada",
            "coverage.start=2018-03-01T00:00:00Z",
            "coverage.end=2018-03-02T12:00:00Z",
            "coverage.west=-10.0",
            "coverage.east=10.0",
            "coverage.south=-10.0",
            "coverage.north=20.5",
        ];
        assert_eq!(found(&acdd), wanted);
        let cf = [
            ("var.y.units", &[text("degrees_north")][..]),
            ("var.y.actual_range", &[float(80.0), float(-80.0)]),
            ("var.x.units", &[text("degrees_east")]),
            ("var.x.actual_range", &[float(0.0), float(360.0)]),
        ];
        let wanted =
            ["coverage.west=-180.0", "coverage.east=180.0", "coverage.south=-80.0", "coverage.north=80.0"];
        assert_eq!(found(&cf), wanted);
        let exif = [
            ("GPSLatitude", &[float(48.0), float(30.0), float(0.0)][..]),
            ("GPSLatitudeRef", &[text("N")]),
            ("GPSLongitude", &[float(11.0), float(0.0), float(36.0)]),
            ("GPSLongitudeRef", &[text("W")]),
        ];
        let wanted =
            ["coverage.west=-11.01", "coverage.east=-11.01", "coverage.south=48.5", "coverage.north=48.5"];
        assert_eq!(found(&exif), wanted);
    }

    #[test]
    fn dates_are_covered_to_their_end() {
        let covered = |attributes: &[(&str, &str)]| {
            let attributes: Vec<_> = attributes.iter().map(|(name, value)| (*name, [text(value)])).collect();
            let attributes: Vec<_> = attributes.iter().map(|(name, values)| (*name, &values[..])).collect();
            found(&attributes)
        };
        let both =
            |start: &str, end: &str| vec![format!("coverage.start={start}"), format!("coverage.end={end}")];
        for (start, end, first, last) in [
            ("2018", "2018", "2018-01-01T00:00:00Z", "2018-12-31T23:59:59.999999Z"),
            ("2018-03", "2018-04", "2018-03-01T00:00:00Z", "2018-04-30T23:59:59.999999Z"),
            ("2018-01-01", "2018-12-31", "2018-01-01T00:00:00Z", "2018-12-31T23:59:59.999999Z"),
            ("2018-01-01", "2018-12-31T12:00:00Z", "2018-01-01T00:00:00Z", "2018-12-31T12:00:00Z"),
        ] {
            let said = covered(&[("time_coverage_start", start), ("time_coverage_end", end)]);
            assert_eq!(said, both(first, last), "{start} {end}");
        }
        let day = both("2018-03-01T00:00:00Z", "2018-03-01T23:59:59.999999Z");
        assert_eq!(covered(&[("DATE-OBS", "2018-03-01")]), day);
        let until = both("2018-03-01T00:00:00Z", "2018-03-01T05:00:00Z");
        assert_eq!(covered(&[("DATE-OBS", "2018-03-01"), ("DATE-END", "2018-03-01T05:00:00")]), until);
    }

    #[test]
    fn places_go_round_the_earth() {
        let longitudes = |pairs: &[(f64, f64)]| {
            let mut coverage = Coverage::default();
            pairs.iter().for_each(|(west, east)| coverage.longitudes(*west, *east));
            coverage.longitude
        };
        assert_eq!(longitudes(&[(170.0, -170.0)]), Some((170.0, 190.0)));
        assert_eq!(longitudes(&[(170.0, 190.0)]), Some((170.0, 190.0)));
        assert_eq!(longitudes(&[(0.0, 360.0)]), Some((-180.0, 180.0)));
        assert_eq!(longitudes(&[(180.0, 180.0)]), Some((-180.0, -180.0)));
        assert_eq!(longitudes(&[(-180.0, 180.0)]), Some((-180.0, 180.0)));
        assert_eq!(longitudes(&[(1.0, 2.0), (5.0, 6.0)]), Some((1.0, 6.0)));
        assert_eq!(longitudes(&[(f64::NAN, 5.0), (1e30, 5.0)]), None);
        let mut coverage = Coverage::default();
        coverage.latitudes(100.0, 20.0);
        assert_eq!(coverage, Coverage::default());
    }

    #[test]
    fn what_a_file_says_itself_stays() {
        let said = [("instrument", &[text("MODIS")][..]), ("INSTRUME", &[text("other")])];
        assert_eq!(found(&said), Vec::<String>::new());
    }
}
