//! Where an image of GeoTIFF lies.

use std::ops::RangeInclusive;

use proj_core::{CrsDef, Transform, lookup_epsg};

use crate::header::Header;
use crate::standard::{Coverage, number};

/// Keys of GeoTIFF (OGC GeoTIFF 1.1, 7.2 and 7.4), and what they say of coordinates.
const MODEL: u64 = 1024;
const IN_A_PLANE: u64 = 1;
const GEOGRAPHIC: u64 = 2;
const RASTER: u64 = 1025;
const OF_POINTS: u64 = 2;
const GEODETIC: u64 = 2048;
const MERIDIAN: u64 = 2051;
const GREENWICH: u64 = 8901;
const UNITS: u64 = 2054;
const DEGREES: u64 = 9102;
const PROJECTED: u64 = 3072;
const UNITS_OF_PLANE: u64 = 3076;
const ELLIPSOID: u64 = 2056;
/// The semi-major and the semi-minor axis of an ellipsoid, in metres, which stand among the numbers of another tag.
const SEMI_AXES: [u64; 2] = [2057, 2058];
const GEO_DOUBLE_PARAMS: u64 = 34736;
/// How long either may be for one of the Earth: the next in size are Venus, 6.05e6 m, and Uranus, 25.6e6 m.
const OF_EARTH: RangeInclusive<f64> = 6.3e6..=6.4e6;
/// The number for a coordinate system of one's own.
const USER_DEFINED: u64 = 32767;

/// Lengths that coordinates of a plane are counted in, in metres (https://epsg.org: units 9001 to 9003).
const LENGTHS: [(u64, f64); 3] = [(9001, 1.0), (9002, 0.3048), (9003, 1200.0 / 3937.0)];
/// Points of each side of an image of which longitude and latitude are looked for, since its sides are curves there: as many as PROJ and GDAL
/// recommend (`densify_pts` of `proj_trans_bounds` and `OCTTransformBounds`).
const OF_A_SIDE: u32 = 21;

/// Says by which systems the coordinates of an image are, and which part of the Earth it shows if it is about the Earth.
pub(super) fn describe(header: &mut Header, keys: &Keys) {
    for code in [GEODETIC, PROJECTED].into_iter().filter_map(|key| keys.get(key)) {
        if is_of_epsg(code) {
            header.number("epsg", code);
        }
    }
    let Some(image) = Image::of(header, keys.get(RASTER) == Some(OF_POINTS)) else { return };
    let coverage = match keys.projection() {
        Some(projection) => image.unproject(&projection),
        None if keys.are_degrees() && keys.are_of_earth(&floats(header, "GeoDoubleParamsTag")) => {
            Some(image.in_degrees())
        }
        None => None,
    };
    if let Some(coverage) = coverage {
        coverage.say(header);
    }
}

/// The directory of keys of GeoTIFF.
#[derive(Default)]
pub(super) struct Keys(Vec<u64>);

impl Keys {
    /// Takes the numbers of the tag.
    pub fn new(numbers: Vec<u64>) -> Self {
        Self(numbers)
    }

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
        self.get(MODEL) == Some(GEOGRAPHIC)
            && is(UNITS, DEGREES)
            && is(MERIDIAN, GREENWICH)
            && !self.get(GEODETIC).is_some_and(is_from_elsewhere)
    }

    /// Returns what makes longitudes and latitudes of coordinates in a plane, if these are by a system of EPSG.
    fn projection(&self) -> Option<Transform> {
        let code =
            self.get(PROJECTED).filter(|code| is_of_epsg(*code) && self.get(MODEL) == Some(IN_A_PLANE))?;
        let plane = lookup_epsg(u32::try_from(code).ok()?)?;
        let CrsDef::Projected(known) = &plane else { return None };
        // Most files say the unit of the system once more. Where they say another one, one of both is wrong.
        let is_unit = |code: u64| {
            let length = LENGTHS.iter().find(|(unit, _)| *unit == code).map(|(_, length)| *length);
            length.is_some_and(|length| (known.linear_unit_to_meter() / length - 1.0).abs() < 1e-9)
        };
        if !self.get(UNITS_OF_PLANE).is_none_or(is_unit) {
            return None;
        }
        // By the datum of the system itself: that of others is at most some hundred metres away.
        let degrees = plane.base_geographic_crs_epsg().filter(|code| !is_from_elsewhere((*code).into()))?;
        Transform::from_crs_defs(&plane, &lookup_epsg(degrees)?).ok()
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

/// Tells whether a system of EPSG counts from Paris, Ferro and the like, some of them in grads: all of its data set 12.029 whose datum has
/// another meridian than 8901 (https://epsg.org; `geodetic_crs` in the database of PROJ 9.8).
fn is_from_elsewhere(code: u64) -> bool {
    matches!(code, 4801..=4821 | 4901..=4904 | 5229 | 8042 | 8043)
}

fn floats(header: &Header, name: &str) -> Vec<f64> {
    header.values(name).unwrap_or_default().iter().filter_map(number).collect()
}

/// The grid of an image. Its pixels are areas, or the points in their middle.
struct Image {
    columns: f64,
    rows: f64,
    are_points: bool,
    /// What a column and a row add to each coordinate, and where the first of both is.
    x: [f64; 3],
    y: [f64; 3],
}

impl Image {
    /// Returns the grid that tags tell of (OGC GeoTIFF 1.1, annex B.6); nothing if it is a line or a point, which is how some say that they
    /// do not know.
    fn of(header: &Header, are_points: bool) -> Option<Self> {
        let all = |name: &str| floats(header, name);
        let (scale, tie, matrix) =
            (all("ModelPixelScaleTag"), all("ModelTiepointTag"), all("ModelTransformationTag"));
        let (x, y) = match (&*scale, &*tie, &*matrix) {
            ([width, height, ..], [column, row, _, x, y, ..], _) => {
                ([*width, 0.0, x - column * width], [0.0, -height, y + row * height])
            }
            (_, _, [a, b, _, d, e, f, _, h, ..]) => ([*a, *b, *d], [*e, *f, *h]),
            _ => return None,
        };
        let less = if are_points { 1.0 } else { 0.0 };
        let columns = all("ImageWidth").first()? - less;
        let rows = all("ImageLength").first()? - less;
        (x[0] * y[1] - x[1] * y[0]).is_normal().then_some(Self { columns, rows, are_points, x, y })
    }

    /// Returns the coordinates of a place in the grid, of which both sides have the length 1.
    fn at(&self, (across, down): (f64, f64)) -> (f64, f64) {
        let (column, row) = (across * self.columns, down * self.rows);
        let along = |[by_column, by_row, first]: [f64; 3]| first + by_column * column + by_row * row;
        (along(self.x), along(self.y))
    }

    /// Returns where it lies if coordinates are longitudes and latitudes.
    fn in_degrees(&self) -> Coverage {
        let corners = [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)].map(|corner| self.at(corner));
        let (west, east) = ends(corners.iter().map(|(x, _)| *x));
        let (south, north) = ends(corners.iter().map(|(_, y)| *y));
        // Areas round points at the poles, as many grids have them, reach half a pixel beyond.
        let most = 90.0 + self.y[1].abs() * 0.51;
        let on_earth =
            |latitude: f64| if latitude.abs() <= most { latitude.clamp(-90.0, 90.0) } else { latitude };
        let mut coverage = Coverage::default();
        coverage.latitudes(on_earth(south), on_earth(north));
        coverage.axis(west, east, if self.are_points { self.x[0].abs() } else { 0.0 });
        coverage
    }

    /// Returns where it lies if they are those of a plane; nothing if not all of its sides are on the Earth.
    fn unproject(&self, projection: &Transform) -> Option<Coverage> {
        let steps = || (0..OF_A_SIDE).map(|step| f64::from(step) / f64::from(OF_A_SIDE));
        let round = steps()
            .map(|step| (step, 0.0))
            .chain(steps().map(|step| (1.0, step)))
            .chain(steps().map(|step| (1.0 - step, 1.0)))
            .chain(steps().map(|step| (0.0, 1.0 - step)))
            .chain([(0.0, 0.0)]);
        let mut places: Vec<(f64, f64)> = Vec::new();
        for place in round {
            let (longitude, latitude) = projection.convert(self.at(place)).ok()?;
            if !longitude.is_finite() || !latitude.is_finite() {
                return None;
            }
            // The date line is not where it ends.
            let turns = places.last().map_or(0.0, |(before, _)| ((before - longitude) / 360.0).round());
            places.push((longitude + turns * 360.0, latitude));
        }
        let (first, last) = (places.first()?.0, places.last()?.0);
        let (mut west, mut east) = ends(places.iter().map(|(longitude, _)| *longitude));
        let (mut south, mut north) = ends(places.iter().map(|(_, latitude)| *latitude));
        if (first - last).abs() > 180.0 {
            // Its sides go round a pole.
            (west, east) = (-180.0, 180.0);
            match south + north > 0.0 {
                true => north = 90.0,
                false => south = -90.0,
            }
        }
        let mut coverage = Coverage::default();
        coverage.latitudes(south, north);
        coverage.longitudes(west, east);
        Some(coverage)
    }
}

fn ends(along: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    (along.clone().fold(f64::INFINITY, f64::min), along.fold(f64::NEG_INFINITY, f64::max))
}
