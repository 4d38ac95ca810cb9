//! GRIB 1 and 2: which fields there are, at which levels, for which times, on which grids. Data are passed over.

use grib::codetables::{CodeTable4_2, Lookup as _};
use grib_core::grib1;
use grib_core::grid::{GridDefinition, LatLonGrid};
use grib_core::metadata::{Parameter, ReferenceTime};
use grib_core::parameter::{grib1_parameter_description, grib1_parameter_name, lookup_parameter};
use grib_core::product::{FixedSurface, Identification, ProductDefinition};
use percale_core::attribute::{Float, MAX_ATTRIBUTE_VALUES};
use percale_core::tree::GROUP_SIZE;
use percale_core::{AttributeValue, Timestamp};

use super::Unreadable;
use crate::header::{FORMAT, Header};
use crate::source::File;
use crate::standard::Coverage;

/// Most messages that are looked at.
const MAX_MESSAGES: usize = 10_000;
/// Bytes of the file that are read at most, in groups as a server reads and verifies them: a large message takes one for itself.
const MAX_BLOCKS: u64 = 400;
/// Most bytes between two messages: they come out of bulletins, and are padded.
const MAX_GAP: usize = 4096;
/// Longest section that describes something.
const MAX_SECTION: u64 = 1024 * 1024;
/// The bit of a length in GRIB 1 that is too long.
const LARGE: u64 = 0x80_0000;
/// How parameters are called that a table does not have.
const UNKNOWN: &str = "unknown";

/// Reads what the messages of a file say.
pub(super) fn read(file: &File) -> Result<Header, Unreadable> {
    let mut messages = Messages { file, at: 0, last_block: u64::MAX, blocks: 0 };
    let mut fields = Fields::default();
    let mut count = 0;
    let mut ended = None;
    while let Some(begin) = messages.next()? {
        if count == MAX_MESSAGES || messages.blocks > MAX_BLOCKS {
            ended = Some(format!("only the first {count} messages were looked at"));
            break;
        }
        let read = match begin.edition {
            1 => messages.first_edition(&begin, &mut fields),
            2 => messages.second_edition(&begin, &mut fields),
            other => Err(Unreadable::new(format!("it is GRIB of edition {other}"))),
        };
        match read {
            Ok(()) => count += 1,
            Err(error) if count == 0 => return Err(error),
            // What was read of the others is there.
            Err(error) => {
                ended = Some(format!("message {}: {error}", count + 1));
                break;
            }
        }
    }
    let mut header = fields.header();
    header.number("messages", count as u64);
    if let Some(why) = ended {
        header.fail(&why);
    }
    Ok(header)
}

/// The beginning of a message.
struct Begin {
    at: u64,
    edition: u8,
    /// GRIB 2: what the parameters are about.
    discipline: u8,
    len: u64,
}

struct Messages<'f> {
    file: &'f File,
    at: u64,
    last_block: u64,
    blocks: u64,
}

/// Returns a number of as many bytes, the most significant first.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Messages<'_> {
    fn range(&mut self, at: u64, len: u64) -> Result<Vec<u8>, Unreadable> {
        if at / GROUP_SIZE != self.last_block {
            self.last_block = at / GROUP_SIZE;
            self.blocks += 1;
        }
        Ok(self.file.range(at, len as usize)?)
    }

    /// Finds the next message.
    fn next(&mut self) -> Result<Option<Begin>, Unreadable> {
        let left = self.file.size().saturating_sub(self.at);
        let bytes = self.range(self.at, left.min(MAX_GAP as u64 + 16))?;
        let Some(gap) = bytes.windows(4).position(|bytes| bytes == b"GRIB") else { return Ok(None) };
        let at = self.at + gap as u64;
        let Some([_, _, _, _, a, b, c, edition]) = bytes.get(gap..gap + 8) else { return Ok(None) };
        let short = number(&[*a, *b, *c]);
        let (discipline, len) = match edition {
            2 => {
                let long = self.range(at + 8, 8)?;
                (*c, number(&long))
            }
            _ => (0, short),
        };
        let begin = Begin { at, edition: *edition, discipline, len };
        self.at = match edition {
            1 if short & LARGE != 0 => at + self.large(&begin)?,
            _ => at.saturating_add(len.max(8)),
        };
        Ok(Some(begin))
    }

    /// Returns the length of a message that is too long for the three bytes that say it: they count 120 bytes each, and the section of
    /// data says how many of the last are not there (ECMWF's use, <https://confluence.ecmwf.int/display/ECC/GRIB+edition+1>).
    fn large(&mut self, begin: &Begin) -> Result<u64, Unreadable> {
        let [_, _, _, data] = self.first_sections(begin)?;
        let missing = number(&self.range(data, 3)?);
        let len = (begin.len & !LARGE) * 120;
        Ok(if missing < 120 { len.saturating_sub(missing).saturating_add(4) } else { begin.len })
    }

    /// Returns where the sections of product, grid, bitmap and data of GRIB 1 begin; 0 for one that is not there.
    fn first_sections(&mut self, begin: &Begin) -> Result<[u64; 4], Unreadable> {
        let product = begin.at + 8;
        let flags = number(&self.range(product + 7, 1)?);
        let mut at = product + number(&self.range(product, 3)?);
        let mut optional = |is_there: bool| -> Result<u64, Unreadable> {
            if !is_there {
                return Ok(0);
            }
            let begin = at;
            at += number(&self.range(begin, 3)?);
            Ok(begin)
        };
        let grid = optional(flags & 0x80 != 0)?;
        let bitmap = optional(flags & 0x40 != 0)?;
        Ok([product, grid, bitmap, at])
    }

    fn first_edition(&mut self, begin: &Begin, fields: &mut Fields) -> Result<(), Unreadable> {
        let [product, grid, ..] = self.first_sections(begin)?;
        let product = grib1::ProductDefinition::parse(&self.range(product, 28)?)?;
        let table = product.table_version;
        // The tables up to 127 are those of the WMO; what others count in theirs is something else.
        let (name, description) = match table {
            0..128 => (
                grib1_parameter_name(table, product.parameter_number),
                grib1_parameter_description(table, product.parameter_number),
            ),
            _ => (UNKNOWN, ""),
        };
        let (name, description) = match name {
            UNKNOWN => (format!("{}.{table}", product.parameter_number), String::new()),
            name => (name.to_owned(), description.to_owned()),
        };
        let grid = match grid {
            0 => None,
            at => {
                let len = number(&self.range(at, 3)?).min(MAX_SECTION);
                let grid = grib1::GridDescription::parse(&self.range(at, len)?)?.grid;
                Some(grid)
            }
        };
        fields.add(Field {
            edition: 1,
            name,
            description,
            centre: product.center_id.into(),
            level: level_of_first(product.level_type, product.level_value),
            reference: product.reference_time,
            forecast: product
                .valid_time_offset()
                .map(|offset| (product.forecast_time_unit, i64::from(offset))),
            end: None,
            grid: grid.as_ref(),
        });
        Ok(())
    }

    fn second_edition(&mut self, begin: &Begin, fields: &mut Fields) -> Result<(), Unreadable> {
        let end = begin.at.saturating_add(begin.len).min(self.file.size());
        let mut at = begin.at + 16;
        let mut identification = None;
        let mut grid = None;
        while at + 5 <= end {
            let head = self.range(at, 5)?;
            let Some((len, [section])) = head.split_last_chunk::<1>().map(|(len, kind)| (number(len), kind))
            else {
                break;
            };
            if len < 5 || head.starts_with(b"7777") {
                break;
            }
            if matches!(section, 1 | 3 | 4) {
                let bytes = self.range(at, len.min(MAX_SECTION))?;
                match section {
                    1 => identification = Some(Identification::parse(&bytes)?),
                    3 => grid = Some(GridDefinition::parse(&bytes)?),
                    _ => {
                        let identification = identification
                            .as_ref()
                            .ok_or_else(|| Unreadable::new("it does not say of whom it is"))?;
                        let product = ProductDefinition::parse(&bytes)?;
                        fields.add(second(begin.discipline, identification, grid.as_ref(), &product));
                    }
                }
            }
            at += len;
        }
        Ok(())
    }
}

/// What one field of a message says.
struct Field<'g> {
    edition: u8,
    name: String,
    description: String,
    centre: u64,
    level: (String, Option<f64>),
    reference: ReferenceTime,
    /// How long behind the reference time it holds, with its unit as a code.
    forecast: Option<(u8, i64)>,
    /// The end of the time that it is an average or sum of.
    end: Option<ReferenceTime>,
    grid: Option<&'g GridDefinition>,
}

fn second<'g>(
    discipline: u8,
    of: &Identification,
    grid: Option<&'g GridDefinition>,
    product: &ProductDefinition,
) -> Field<'g> {
    let (category, number) = (product.parameter_category, product.parameter_number);
    let Parameter { short_name, description, .. } =
        lookup_parameter(discipline, category, number, of.center_id, of.subcenter_id, of.local_table_version);
    let (name, description) = match &*short_name {
        UNKNOWN => {
            // This table has names that are long, and more of them. Numbers from 192 on are each centre's own.
            let long = CodeTable4_2::new(discipline, category).lookup(number.into()).to_string();
            let is_known = number < 192 && !long.is_empty() && !long.contains("not implemented");
            let long = if is_known { long } else { String::new() };
            (format!("{discipline}-{category}-{number}"), long)
        }
        name => (name.to_owned(), description.into_owned()),
    };
    Field {
        edition: 2,
        name,
        description,
        centre: of.center_id.into(),
        level: product.first_surface().map(level_of_second).unwrap_or_default(),
        reference: ReferenceTime {
            year: of.reference_year,
            month: of.reference_month,
            day: of.reference_day,
            hour: of.reference_hour,
            minute: of.reference_minute,
            second: of.reference_second,
        },
        forecast: product.forecast_time_unit().zip(product.forecast_time().map(i64::from)),
        end: product.end_of_overall_time_interval(),
        grid,
    }
}

/// Kinds of levels by their codes, in edition 1 (table 3) and 2 (table 4.5), as ecCodes calls them.
const LEVELS: [(u8, u8, &str); 17] = [
    (1, 1, "surface"),
    (2, 2, "cloudBase"),
    (3, 3, "cloudTop"),
    (6, 6, "maxWind"),
    (7, 7, "tropopause"),
    (8, 8, "nominalTop"),
    (100, 100, "isobaricInhPa"),
    (102, 101, "meanSea"),
    (103, 102, "heightAboveSea"),
    (105, 103, "heightAboveGround"),
    (107, 104, "sigma"),
    (109, 105, "hybrid"),
    (111, 106, "depthBelowLand"),
    (113, 107, "theta"),
    (117, 109, "potentialVorticity"),
    (160, 160, "depthBelowSea"),
    (200, 10, "entireAtmosphere"),
];

fn level_of_first(kind: u8, level: u16) -> (String, Option<f64>) {
    let known = LEVELS.iter().find(|(first, ..)| *first == kind);
    let name = known.map_or_else(|| kind.to_string(), |(.., name)| (*name).to_owned());
    // Those that are a place and no number have 0.
    let is_place = matches!(kind, 1..=9 | 102 | 200);
    (name, (!is_place).then(|| f64::from(level)))
}

fn level_of_second(surface: &FixedSurface) -> (String, Option<f64>) {
    let known = LEVELS.iter().find(|(_, second, _)| *second == surface.surface_type);
    let name = known.map_or_else(|| surface.surface_type.to_string(), |(.., name)| (*name).to_owned());
    let is_place = matches!(surface.surface_type, 1..=10 | 101);
    let level = surface.scaled_value_f64().filter(|_| !is_place);
    // In pascal here, and everywhere else in hectopascal.
    let scale = if surface.surface_type == 100 { 0.01 } else { 1.0 };
    (name, level.map(|level| level * scale))
}

/// Values, each once.
#[derive(Default)]
struct Values(Vec<AttributeValue>);

impl Values {
    fn add(&mut self, value: AttributeValue) {
        if self.0.len() < MAX_ATTRIBUTE_VALUES && !self.0.contains(&value) {
            self.0.push(value);
        }
    }
}

/// What all fields say.
#[derive(Default)]
struct Fields {
    edition: u8,
    coverage: Coverage,
    /// Of the file: names of attributes with their values.
    all: Vec<(&'static str, Values)>,
    variables: Vec<Variable>,
}

struct Variable {
    name: String,
    description: String,
    shape: Values,
    levels: Values,
    kinds: Values,
}

impl Fields {
    fn values(&mut self, name: &'static str) -> &mut Values {
        let at = self.all.iter().position(|(other, _)| *other == name).unwrap_or(self.all.len());
        if at == self.all.len() {
            self.all.push((name, Values::default()));
        }
        // It is there by now.
        &mut self.all[at].1
    }

    fn add(&mut self, field: Field<'_>) {
        let text = |text: &str| AttributeValue::Text(text.to_owned());
        self.edition = field.edition;
        self.values("centre").add(AttributeValue::Integer(field.centre as i64));
        self.values("parameter").add(text(&field.name));
        if !field.description.is_empty() {
            self.values("parameter_name").add(text(&field.description));
        }
        let (kind, level) = field.level;
        if !kind.is_empty() {
            self.values("level_type").add(text(&kind));
        }
        if let Some(level) = level {
            self.values("level").add(AttributeValue::Float(Float(level)));
        }
        self.times(&field.reference, field.forecast, field.end.as_ref(), field.edition);
        let (rows, columns) = field.grid.map(GridDefinition::shape).map_or((0, 0), |(x, y)| (y, x));
        if let Some(grid) = field.grid {
            self.values("grid").add(text(grid_name(grid)));
            self.place(grid);
        }
        let at = self.variables.iter().position(|variable| variable.name == field.name);
        let at = at.unwrap_or_else(|| {
            self.variables.push(Variable {
                name: field.name,
                description: field.description,
                shape: Values::default(),
                levels: Values::default(),
                kinds: Values::default(),
            });
            self.variables.len() - 1
        });
        let Some(variable) = self.variables.get_mut(at) else { return };
        if rows > 0 && variable.shape.0.is_empty() {
            variable.shape.0 = [rows, columns].map(|size| AttributeValue::Integer(size as i64)).to_vec();
        }
        variable.kinds.add(AttributeValue::Text(kind));
        if let Some(level) = level {
            variable.levels.add(AttributeValue::Float(Float(level)));
        }
    }

    fn times(
        &mut self,
        reference: &ReferenceTime,
        forecast: Option<(u8, i64)>,
        end: Option<&ReferenceTime>,
        edition: u8,
    ) {
        let valid = match forecast {
            Some((unit, value)) => reference.checked_add_forecast_time_by_edition(edition, unit, value),
            None => Some(*reference),
        };
        if let Some(time) = time_of(reference) {
            self.values("reference_time").add(AttributeValue::Time(time));
        }
        for time in valid.iter().chain(end).filter_map(time_of) {
            self.values("valid_time").add(AttributeValue::Time(time));
            self.coverage.at(time);
        }
    }

    fn place(&mut self, grid: &GridDefinition) {
        let degrees = |micros: i64| micros as f64 / 1e6;
        let (first, last, west, east, step) = match grid {
            GridDefinition::LatLon(LatLonGrid { lat_first, lat_last, lon_first, lon_last, di, .. }) => {
                (*lat_first, *lat_last, *lon_first, *lon_last, *di)
            }
            GridDefinition::RegularGaussian(grid) => {
                (grid.lat_first, grid.lat_last, grid.lon_first, grid.lon_last, grid.di)
            }
            _ => return,
        };
        self.coverage.latitudes(degrees(first.into()), degrees(last.into()));
        let (west, east) = (degrees(west.into()), degrees(east.into()));
        let step = if step == u32::MAX { 0.0 } else { degrees(step.into()) };
        self.coverage.axis(west, east, step);
    }

    fn header(self) -> Header {
        let mut header = Header::default();
        header.text(FORMAT, format!("grib{}", self.edition));
        for (name, values) in self.all {
            header.add(name, values.0);
        }
        for Variable { name, description, shape, levels, kinds } in self.variables {
            let variable = format!("var.{}", name.replace('.', "-"));
            // As ecCodes and all that is built on it give the numbers.
            header.text(&variable, "float64");
            for (what, values) in [("shape", shape.0), ("level", levels.0), ("level_type", kinds.0)] {
                if !values.is_empty() {
                    header.add(&format!("{variable}.{what}"), values);
                }
            }
            if !description.is_empty() {
                header.text(&format!("{variable}.long_name"), description);
            }
        }
        self.coverage.say(&mut header);
        header
    }
}

fn grid_name(grid: &GridDefinition) -> &'static str {
    match grid {
        GridDefinition::LatLon(_) => "regular_ll",
        GridDefinition::RotatedLatLon(_) => "rotated_ll",
        GridDefinition::Mercator(_) => "mercator",
        GridDefinition::AlbersEqualArea(_) => "albers",
        GridDefinition::LambertConformal(_) => "lambert",
        GridDefinition::PolarStereographic(_) => "polar_stereographic",
        GridDefinition::RegularGaussian(_) => "regular_gg",
        _ => "other",
    }
}

fn time_of(time: &ReferenceTime) -> Option<Timestamp> {
    let ReferenceTime { year, month, day, hour, minute, second } = time;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z").parse().ok()
}
