//! Tests of when and where: what is said of times and places, as comparisons of the attributes that all formats share
//! ([`crate::standard`]).

use percale_core::query::{Comparison, Condition, Field, Literal, Test};
use winnow::ascii::Caseless;
use winnow::token::literal;

use super::{Outcome, Reader, fault, value};
use crate::standard::{EAST, END, NORTH, SOUTH, START, WEST, turned};

/// Kilometres of a degree of latitude: 10 007.5 km, a quarter of a meridian (WGS 84), by 90.
const DEGREE: f64 = 111.195;

impl Reader<'_> {
    /// Reads `bbox:(…)` or `near:(…)`. Nothing if neither is there.
    pub(super) fn place(&mut self) -> Outcome<Option<Condition>> {
        let start = self.rest;
        let is_box = self.take((literal(Caseless("bbox")), ':')).is_some();
        if !is_box && self.take((literal(Caseless("near")), ':')).is_none() {
            return Ok(None);
        }
        let expected = match is_box {
            true => "bbox:(west, south, east, north) in degrees is expected, such as bbox:(-10,35,30,60)",
            false => "near:(longitude, latitude, distance) is expected, such as near:(11.6,48.1,50km)",
        };
        let mut words = Vec::new();
        let mut separator = "(";
        while words.len() < 4 && self.symbol(separator) {
            self.space();
            words.push(self.bare_value());
            self.space();
            separator = ",";
        }
        let is_closed = self.symbol(")");
        let number = |word: &str| word.parse::<f64>().ok();
        let condition = match (is_box, words.as_slice()) {
            (true, [west, south, east, north]) => {
                let corners = [west, south, east, north].map(|word| number(word));
                match corners {
                    [Some(west), Some(south), Some(east), Some(north)] => within([west, south, east, north]),
                    _ => None,
                }
            }
            (false, [longitude, latitude, distance]) => number(longitude)
                .zip(number(latitude))
                .zip(value::kilometres(distance))
                .and_then(|((longitude, latitude), distance)| near(longitude, latitude, distance)),
            _ => None,
        };
        match condition.filter(|_| is_closed) {
            Some(condition) => Ok(Some(condition)),
            None => fault(start, expected),
        }
    }
}

fn is(name: &str, test: Test) -> Option<Condition> {
    Some(Condition::Is(Field::Attribute(name.parse().ok()?), test))
}

fn compared(name: &str, comparison: Comparison, number: f64) -> Option<Condition> {
    let value = Literal { number: Some(number), ..Literal::text(number.to_string()) };
    is(name, Test::Compare(comparison, value))
}

/// What covers a time that a test holds for.
pub(super) fn during(test: Test) -> Option<Condition> {
    match test {
        Test::Compare(comparison @ (Comparison::Less | Comparison::AtMost), value) => {
            is(START, Test::Compare(comparison, value))
        }
        Test::Compare(comparison @ (Comparison::More | Comparison::AtLeast), value) => {
            is(END, Test::Compare(comparison, value))
        }
        Test::Compare(Comparison::Equal, value) | Test::Has(value) => {
            during(Test::Between(Some(value.clone()), Some(value)))
        }
        Test::Between(low, high) => {
            let begins = high.map(|high| is(START, Test::Compare(Comparison::AtMost, high)));
            let ends = low.map(|low| is(END, Test::Compare(Comparison::AtLeast, low)));
            Some(Condition::All([ends, begins].into_iter().flatten().collect::<Option<_>>()?))
        }
        Test::Matches(_) | Test::Regex(_) | Test::Exists => is(START, test),
    }
}

/// What covers some of a box of longitudes and latitudes, in degrees. One whose west is east of its east goes over the date line.
///
/// Nothing for what is no such box.
pub(super) fn within([west, south, east, north]: [f64; 4]) -> Option<Condition> {
    let is_longitude = |degrees: &f64| (-180.0..=360.0).contains(degrees);
    let is_latitude = |degrees: &f64| (-90.0..=90.0).contains(degrees);
    if ![west, east].iter().all(is_longitude) || ![south, north].iter().all(is_latitude) || south > north {
        return None;
    }
    let wide = if east < west { east - west + 360.0 } else { east - west };
    let mut parts =
        vec![compared(SOUTH, Comparison::AtMost, north)?, compared(NORTH, Comparison::AtLeast, south)?];
    if wide < 360.0 {
        let west = turned(west);
        let east = west + wide;
        // What is covered begins between -180 and 180 and may go on behind it, and so may the box.
        let mut ways = vec![
            Condition::All(vec![
                compared(WEST, Comparison::AtMost, east)?,
                compared(EAST, Comparison::AtLeast, west)?,
            ]),
            compared(EAST, Comparison::AtLeast, west + 360.0)?,
        ];
        if east >= 180.0 {
            ways.push(compared(WEST, Comparison::AtMost, east - 360.0)?);
        }
        parts.push(Condition::Any(ways));
    }
    Some(Condition::All(parts))
}

/// What covers some of the box round all that is so near to a place.
pub(super) fn near(longitude: f64, latitude: f64, kilometres: f64) -> Option<Condition> {
    if !(-90.0..=90.0).contains(&latitude) || !(0.0..=20_038.0).contains(&kilometres) {
        return None;
    }
    let high = kilometres / DEGREE;
    let (south, north) = ((latitude - high).max(-90.0), (latitude + high).min(90.0));
    // The box is as wide as at its latitude that is nearest to a pole; over a pole it goes round the Earth.
    let narrowest = south.abs().max(north.abs()).to_radians().cos();
    let wide = if narrowest > 1e-6 { high / narrowest } else { 180.0 };
    if wide >= 180.0 {
        return within([-180.0, south, 180.0, north]);
    }
    within([turned(longitude - wide), south, turned(longitude + wide), north])
}
