//! TIFF and GeoTIFF: the tags of the first image.

use std::ops::RangeInclusive;

use percale_core::AttributeValue;
use percale_core::attribute::{Float, MAX_ATTRIBUTE_VALUES};
use tiff::decoder::Decoder;
use tiff::decoder::ifd::Value;
use tiff::tags::Tag;

use super::{Unreadable, single};
use crate::header::{Header, unsigned};
use crate::source::File;
use crate::standard::{Coverage, number};

/// Tags that say where the bytes of the image are, and nothing of it.
const OF_PLACES: [Tag; 4] = [Tag::StripOffsets, Tag::StripByteCounts, Tag::TileOffsets, Tag::TileByteCounts];
/// Keys of GeoTIFF (OGC GeoTIFF 1.1, 7.2 and 7.4), and what they say of coordinates in degrees from Greenwich.
const MODEL: u64 = 1024;
const GEOGRAPHIC: u64 = 2;
const RASTER: u64 = 1025;
const OF_POINTS: u64 = 2;
const GEODETIC: u64 = 2048;
const MERIDIAN: u64 = 2051;
const GREENWICH: u64 = 8901;
const UNITS: u64 = 2054;
const DEGREES: u64 = 9102;
const PROJECTED: u64 = 3072;
const ELLIPSOID: u64 = 2056;
/// The semi-major and the semi-minor axis of an ellipsoid, in metres, which stand among the numbers of another tag.
const SEMI_AXES: [u64; 2] = [2057, 2058];
const GEO_DOUBLE_PARAMS: u64 = 34736;
/// How long either may be for one of the Earth: the next in size are Venus, 6.05e6 m, and Uranus, 25.6e6 m.
const OF_EARTH: RangeInclusive<f64> = 6.3e6..=6.4e6;
/// The number for a coordinate system of one's own.
const USER_DEFINED: u64 = 32767;

/// Reads the tags of a file.
pub(super) fn read(file: &File) -> Result<Header, Unreadable> {
    let mut decoder = Decoder::new(file.reader())?;
    let mut header = Header::of_format("tiff");
    let mut keys = Keys::default();
    for tag in decoder.tag_iter() {
        let (tag, value) = match tag {
            Ok(found) => found,
            Err(error) => {
                header.fail(&error.to_string());
                continue;
            }
        };
        if OF_PLACES.contains(&tag) {
            continue;
        }
        if tag == Tag::GeoKeyDirectoryTag {
            keys = Keys(numbers(&value));
            continue;
        }
        let name = match tag {
            Tag::Unknown(number) => format!("tag{number}"),
            tag => format!("{tag:?}"),
        };
        let values = values(&value);
        header.leave_out(values.len().saturating_sub(MAX_ATTRIBUTE_VALUES) as u64);
        header.add(&name, values.into_iter().take(MAX_ATTRIBUTE_VALUES));
    }
    for code in [GEODETIC, PROJECTED].into_iter().filter_map(|key| keys.get(key)) {
        if is_of_epsg(code) {
            header.number("epsg", code);
        }
    }
    if keys.are_degrees()
        && keys.are_of_earth(&floats(&header, "GeoDoubleParamsTag"))
        && let Some(coverage) = place(&header, keys.get(RASTER) == Some(OF_POINTS))
    {
        coverage.say(&mut header);
    }
    Ok(header)
}

/// The directory of keys of GeoTIFF.
#[derive(Default)]
struct Keys(Vec<u64>);

impl Keys {
    /// Returns the code that a key has, or its place among the numbers of a tag.
    fn find(&self, wanted: u64, tag: u64) -> Option<u64> {
        // A head of four numbers, then four for each key; of those whose value stands there itself, the second is 0.
        self.0.chunks_exact(4).skip(1).find_map(|key| match *key {
            [id, within, _, code] if id == wanted && within == tag => Some(code),
            _ => None,
        })
    }

    /// Returns the code that a key has.
    fn get(&self, wanted: u64) -> Option<u64> {
        self.find(wanted, 0)
    }

    /// Tells whether coordinates are longitudes and latitudes in degrees from Greenwich.
    fn are_degrees(&self) -> bool {
        let is = |key, code| self.get(key).is_none_or(|found| found == code);
        // The systems of EPSG that count from Paris, Ferro and the like, some of them in grads: all of its data set 12.029 whose datum has
        // another meridian than 8901 (https://epsg.org; `geodetic_crs` in the database of PROJ 9.8).
        let is_elsewhere = matches!(self.get(GEODETIC), Some(4801..=4821 | 4901..=4904 | 5229 | 8042 | 8043));
        self.get(MODEL) == Some(GEOGRAPHIC) && is(UNITS, DEGREES) && is(MERIDIAN, GREENWICH) && !is_elsewhere
    }

    /// Tells whether they are on the Earth, as far as a system of one's own says what it is of. The numbers are those of `GEO_DOUBLE_PARAMS`.
    fn are_of_earth(&self, numbers: &[f64]) -> bool {
        if self.get(GEODETIC).is_some_and(is_of_epsg) {
            return true;
        }
        let mut axes = SEMI_AXES.into_iter().filter_map(|axis| self.find(axis, GEO_DOUBLE_PARAMS)).peekable();
        if axes.peek().is_none() {
            // EPSG has ellipsoids of the Earth alone; what is above is of one's own.
            return self.get(ELLIPSOID).is_none_or(|code| code == 0 || is_of_epsg(code));
        }
        axes.all(|at| {
            let axis = usize::try_from(at).ok().and_then(|at| numbers.get(at));
            axis.is_some_and(|axis| OF_EARTH.contains(axis))
        })
    }
}

/// Tells whether a code is one of EPSG: 0 is none, and from 32767 on they are of one's own (OGC GeoTIFF 1.1, section 7.4).
fn is_of_epsg(code: u64) -> bool {
    (1..USER_DEFINED).contains(&code)
}

fn floats(header: &Header, name: &str) -> Vec<f64> {
    header.values(name).unwrap_or_default().iter().filter_map(number).collect()
}

/// Returns where an image lies whose coordinates are degrees. Its pixels are areas, or the points in their middle.
fn place(header: &Header, are_points: bool) -> Option<Coverage> {
    let all = |name: &str| floats(header, name);
    let (scale, tie, matrix) =
        (all("ModelPixelScaleTag"), all("ModelTiepointTag"), all("ModelTransformationTag"));
    // What a column and a row add to each coordinate, and where the first of both is (OGC GeoTIFF 1.1, annex B.6).
    let ([x_column, x_row, x], [y_column, y_row, y]) = match (&*scale, &*tie, &*matrix) {
        ([width, height, ..], [column, row, _, x, y, ..], _) => {
            ([*width, 0.0, x - column * width], [0.0, -height, y + row * height])
        }
        (_, _, [a, b, _, d, e, f, _, h, ..]) => ([*a, *b, *d], [*e, *f, *h]),
        _ => return None,
    };
    if !(x_column * y_row - x_row * y_column).is_normal() {
        // A line or a point, which is how some say that they do not know.
        return None;
    }
    let less = if are_points { 1.0 } else { 0.0 };
    let columns = all("ImageWidth").first()? - less;
    let rows = all("ImageLength").first()? - less;
    let corners = [(0.0, 0.0), (columns, 0.0), (0.0, rows), (columns, rows)];
    let ends = |by_column: f64, by_row: f64, at: f64| {
        let along = corners.map(|(column, row)| at + by_column * column + by_row * row);
        (along.into_iter().fold(f64::INFINITY, f64::min), along.into_iter().fold(f64::NEG_INFINITY, f64::max))
    };
    let (west, east) = ends(x_column, x_row, x);
    let (south, north) = ends(y_column, y_row, y);
    // Areas round points at the poles, as many grids have them, reach half a pixel beyond.
    let most = 90.0 + y_row.abs() * 0.51;
    let on_earth =
        |latitude: f64| if latitude.abs() <= most { latitude.clamp(-90.0, 90.0) } else { latitude };
    let mut coverage = Coverage::default();
    coverage.latitudes(on_earth(south), on_earth(north));
    coverage.axis(west, east, if are_points { x_column.abs() } else { 0.0 });
    Some(coverage)
}

fn numbers(value: &Value) -> Vec<u64> {
    let parts = match value {
        Value::List(parts) => parts.as_slice(),
        one => std::slice::from_ref(one),
    };
    let number = |value: &Value| match value {
        Value::Short(number) => u64::from(*number),
        Value::Unsigned(number) => u64::from(*number),
        _ => 0,
    };
    parts.iter().map(number).collect()
}

fn values(value: &Value) -> Vec<AttributeValue> {
    let ratio = |above: f64, below: f64| AttributeValue::Float(Float(above / below));
    vec![match value {
        Value::List(parts) => return parts.iter().flat_map(values).collect(),
        Value::Byte(number) => unsigned((*number).into()),
        Value::Short(number) => unsigned((*number).into()),
        Value::Unsigned(number) | Value::Ifd(number) => unsigned((*number).into()),
        Value::UnsignedBig(number) | Value::IfdBig(number) => unsigned(*number),
        Value::SignedByte(number) => AttributeValue::Integer((*number).into()),
        Value::SignedShort(number) => AttributeValue::Integer((*number).into()),
        Value::Signed(number) => AttributeValue::Integer((*number).into()),
        Value::SignedBig(number) => AttributeValue::Integer(*number),
        Value::Float(number) => single(*number),
        Value::Double(number) => AttributeValue::Float(Float(*number)),
        Value::Rational(above, below) => ratio((*above).into(), (*below).into()),
        Value::SRational(above, below) => ratio((*above).into(), (*below).into()),
        Value::Ascii(text) => AttributeValue::Text(text.trim_end_matches('\0').to_owned()),
        _ => return Vec::new(),
    }]
}
