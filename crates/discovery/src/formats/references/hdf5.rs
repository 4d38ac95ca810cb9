//! Where the chunks of the datasets of HDF5 lie, with the dimensions of NetCDF-4 where the file has them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use hdf5_reader::group::Group;
use hdf5_reader::messages::datatype::Datatype;
use hdf5_reader::{Attribute, Dataset, Hdf5File, OpenOptions};
use serde_json::Value;

use super::super::Unreadable;
use super::super::hdf5::{MAX_DEPTH, MAX_OBJECT_HEADER, MAX_OBJECTS, NO_VARIABLE, scales};
use super::stored::{Stored, stored};
use super::types::{self, FILL_VALUE, dtype_of};
use super::{Array, Gathered, Place, packed_texts};
use crate::references::{ArrayMeta, References};
use crate::source::File;

/// Largest chunk that is unpacked for values.
const MAX_UNPACKED: usize = 8 << 20;
/// Most chunks of values of which it is not known where they lie.
const MAX_UNKNOWN: u64 = 16;
/// Bytes of texts of any length.
const MAX_TEXTS: u64 = 256 << 10;
/// What NetCDF-4 puts before the name of a variable that has the name of a dimension and is not its coordinate.
const NO_COORDINATE: &str = "_nc4_non_coord_";

/// Reads where the chunks lie.
pub(super) fn read(file: &File) -> Result<References, Unreadable> {
    let options = OpenOptions {
        max_object_header_bytes: MAX_OBJECT_HEADER,
        max_chunk_bytes: MAX_UNPACKED,
        chunk_cache_bytes: 0,
        ..OpenOptions::default()
    };
    let hdf5 = Hdf5File::from_storage_with_options(Arc::new(file.clone()), options)?;
    let root = hdf5.root_group()?;
    let mut walk = Walk {
        hdf5: &hdf5,
        root: root.clone(),
        gathered: Gathered::new(file.size()),
        objects: 0,
        above: Vec::new(),
        found: Vec::new(),
        dimensions: HashMap::new(),
        by_id: HashMap::new(),
        unnamed: BTreeMap::new(),
        named: 0,
    };
    walk.group(&root, "", 0);
    walk.measure();
    walk.named = walk.dimensions.len();
    for found in std::mem::take(&mut walk.found) {
        walk.dataset(found);
    }
    Ok(walk.gathered.found)
}

/// A dimension that has a scale.
struct Dimension {
    name: String,
    len: u64,
}

/// A dataset in its group.
struct Found {
    group: String,
    dataset: Dataset,
    attributes: Vec<Attribute>,
    is_scale: bool,
    /// The scales of its dimensions, by their addresses.
    scales: Vec<Option<u64>>,
}

struct Walk<'a> {
    hdf5: &'a Hdf5File,
    root: Group,
    gathered: Gathered,
    objects: usize,
    /// The addresses of the groups that the present one is in.
    above: Vec<u64>,
    found: Vec<Found>,
    /// By the addresses of their scales.
    dimensions: HashMap<u64, Dimension>,
    /// The addresses of scales by the numbers that NetCDF-4 gives dimensions.
    by_id: HashMap<i64, u64>,
    /// Dimensions without a scale, of each group: how long they are, whether without limit, and how they are called.
    unnamed: BTreeMap<String, Vec<(u64, bool, String)>>,
    /// How many dimensions have a name.
    named: usize,
}

fn joined(group: &str, name: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{group}/{name}") }
}

fn group_name(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

fn is_unlimited(dataset: &Dataset, axis: usize) -> bool {
    dataset.max_dims().and_then(|most| most.get(axis)) == Some(&u64::MAX)
}

impl Walk<'_> {
    fn group(&mut self, group: &Group, path: &str, depth: usize) {
        if depth > MAX_DEPTH || self.objects >= MAX_OBJECTS {
            return self
                .gathered
                .leave_out(group_name(path), "it has more groups, or deeper ones, than are read");
        }
        // A link to what it is in.
        if self.above.contains(&group.address()) {
            return;
        }
        self.objects += 1;
        let attributes = match group.attributes() {
            Ok(attributes) => self.attributes(path, &attributes),
            Err(error) => {
                self.gathered.leave_out(group_name(path), format!("attributes: {error}"));
                serde_json::Map::new()
            }
        };
        self.gathered.group(path, attributes);
        self.above.push(group.address());
        match group.members() {
            Ok((groups, datasets)) => {
                datasets.into_iter().for_each(|dataset| self.find(path, dataset));
                for inner in groups {
                    self.group(&inner, &joined(path, inner.name()), depth + 1);
                }
            }
            Err(_) => self.one_by_one(group, path, depth),
        }
        self.above.pop();
    }

    /// Looks at the members of a group of which one cannot be read.
    fn one_by_one(&mut self, group: &Group, path: &str, depth: usize) {
        let (groups, datasets) = match group.member_names() {
            Ok(names) => names,
            Err(error) => return self.gathered.leave_out(group_name(path), error.to_string()),
        };
        for name in datasets {
            match group.dataset(&name) {
                Ok(dataset) => self.find(path, dataset),
                Err(error) => self.gathered.leave_out(&joined(path, &name), error.to_string()),
            }
        }
        for name in groups {
            match group.group(&name) {
                Ok(inner) => self.group(&inner, &joined(path, &name), depth + 1),
                Err(error) => self.gathered.leave_out(&joined(path, &name), error.to_string()),
            }
        }
    }

    fn attributes(&mut self, path: &str, all: &[Attribute]) -> serde_json::Map<String, Value> {
        let (kept, left) = types::attributes(&self.root, all);
        for (name, why) in left {
            self.gathered.leave_out(group_name(path), format!("attribute {name}: {why}"));
        }
        kept
    }

    /// Notes a dataset, and which dimension it is the scale of.
    fn find(&mut self, group: &str, dataset: Dataset) {
        if self.objects >= MAX_OBJECTS {
            let path = joined(group, dataset.name());
            return self.gathered.leave_out(&path, "the file has more objects than are read");
        }
        self.objects += 1;
        let attributes = dataset.attributes();
        let known = types::of_dimensions(&self.root, &attributes);
        let is_scale = known.get("CLASS").is_some_and(|class| class == "DIMENSION_SCALE");
        let is_bare =
            known.get("NAME").and_then(Value::as_str).is_some_and(|name| name.starts_with(NO_VARIABLE));
        if is_scale {
            // The scale of one without a variable may be shorter than what has it.
            let is_open = is_bare && is_unlimited(&dataset, 0);
            let len = if is_open { 0 } else { dataset.shape().first().copied().unwrap_or_default() };
            let name = dataset.name().to_owned();
            self.dimensions.insert(dataset.address(), Dimension { name, len });
            if let Some(id) = known.get("_Netcdf4Dimid").and_then(Value::as_i64) {
                self.by_id.insert(id, dataset.address());
            }
        }
        if is_scale && is_bare {
            return;
        }
        let mut own = scales(&self.root, &dataset);
        own.resize(dataset.shape().len(), None);
        let found = Found { group: group.to_owned(), attributes, is_scale, scales: own, dataset };
        self.found.push(found);
    }

    /// Finds out which dimensions the scales themselves have, and how long those without limit are: as long as the longest dataset.
    fn measure(&mut self) {
        for found in &mut self.found {
            if found.is_scale {
                let known = types::of_dimensions(&self.root, &found.attributes);
                let ids = match known.get("_Netcdf4Coordinates") {
                    Some(Value::Array(ids)) => ids.clone(),
                    Some(id) => vec![id.clone()],
                    None => Vec::new(),
                };
                let by_id = |id: &Value| id.as_i64().and_then(|id| self.by_id.get(&id).copied());
                let several = ids.iter().map(by_id).collect::<Vec<_>>();
                match found.scales.len() {
                    rank if rank > 1 && several.len() == rank => found.scales = several,
                    _ => found.scales.first_mut().into_iter().for_each(|first| {
                        first.get_or_insert(found.dataset.address());
                    }),
                }
            }
            for (axis, (scale, len)) in found.scales.iter().zip(found.dataset.shape()).enumerate() {
                if let Some(dimension) = scale.and_then(|scale| self.dimensions.get_mut(&scale))
                    && is_unlimited(&found.dataset, axis)
                {
                    dimension.len = dimension.len.max(*len);
                }
            }
        }
    }

    /// Names the dimensions of a dataset, and says how long it is along each.
    fn dimensions(&mut self, found: &Found) -> (Vec<String>, Vec<u64>) {
        let (mut names, mut shape) = (Vec::new(), Vec::new());
        let mut used = Vec::new();
        for (axis, len) in found.dataset.shape().iter().enumerate() {
            let scale = found.scales.get(axis).copied().flatten();
            let is_unlimited = is_unlimited(&found.dataset, axis);
            if let Some(dimension) = scale.and_then(|scale| self.dimensions.get(&scale)) {
                names.push(dimension.name.clone());
                shape.push(if is_unlimited { dimension.len.max(*len) } else { *len });
                continue;
            }
            // As NetCDF names what has no name: those that are as long as each other are one, except within a dataset.
            let known = self.unnamed.values().map(Vec::len).sum::<usize>() + self.named;
            let in_group = self.unnamed.entry(found.group.clone()).or_default();
            let like = |(at, one): (usize, &(u64, bool, String))| {
                (one.0 == *len && one.1 == is_unlimited && !used.contains(&at)).then_some(at)
            };
            let at = in_group.iter().enumerate().find_map(like).unwrap_or_else(|| {
                in_group.push((*len, is_unlimited, format!("phony_dim_{known}")));
                in_group.len() - 1
            });
            used.push(at);
            names.extend(in_group.get(at).map(|(_, _, name)| name.clone()));
            shape.push(*len);
        }
        (names, shape)
    }

    fn dataset(&mut self, found: Found) {
        let (dimensions, shape) = self.dimensions(&found);
        let name = found.dataset.name();
        let path = joined(&found.group, name.strip_prefix(NO_COORDINATE).unwrap_or(name));
        if found.dataset.num_elements().is_ok_and(|count| count == 0) && shape.is_empty() {
            return self.gathered.leave_out(&path, "it has no values, and no shape either");
        }
        let attributes = self.attributes(&path, &found.attributes);
        let dtype = match types::is_text(found.dataset.dtype()) {
            true => Ok("|O".to_owned()),
            false => match found.dataset.raw_datatype() {
                Ok(encoded) => dtype_of(found.dataset.dtype(), &encoded),
                Err(error) => Err(error.to_string()),
            },
        };
        let read = dtype.and_then(|dtype| {
            let meta = ArrayMeta::plain(shape, dtype);
            let mut array =
                Array { path: path.clone(), dimensions, attributes, meta, chunks: Vec::new(), values: None };
            match array.meta.is_text() {
                true => self.texts(&found, &mut array)?,
                false => self.values(&found, &mut array)?,
            }
            Ok(array)
        });
        match read {
            Ok(array) => self.gathered.array(array),
            Err(why) => self.gathered.leave_out(&path, why),
        }
    }

    /// Finds the chunks of a dataset of values of one size, and reads them where they are few.
    fn values(&mut self, found: &Found, array: &mut Array) -> Result<(), String> {
        let item = array.meta.item_size().ok_or("its values have no size")?;
        let fill = self.fill_value(found, array);
        let stored = stored(self.hdf5, &found.dataset, item).and_then(|mut stored| {
            let is_shorter = |axis: usize, len: u64| {
                let chunk = stored.shape.get(axis).copied().unwrap_or(1).max(1);
                array.meta.shape.get(axis) != Some(&len) && !len.is_multiple_of(chunk)
            };
            if found.dataset.shape().iter().enumerate().any(|(axis, len)| is_shorter(axis, *len)) {
                return Err("it is shorter than its dimension, within a chunk".into());
            }
            let is_whole = stored.is_whole(&array.meta.shape);
            if types::fill_value(found.dataset.dtype(), &stored.fill) != fill || fill.is_none() {
                stored.spell_out_missing(&array.meta.shape)?;
            }
            Ok((stored, is_whole))
        });
        array.meta.fill_value = fill.unwrap_or_default();
        let bytes = array.meta.shape.iter().try_fold(item, |bytes, len| bytes.checked_mul(*len));
        match stored {
            Ok((Stored { compact: Some(bytes), .. }, _)) => array.in_place(&bytes),
            Ok((stored, is_whole)) => {
                array.chunks = stored.chunks;
                array.meta.chunks = stored.shape.iter().map(|len| (*len).max(1)).collect();
                array.meta.filters = (!stored.filters.is_empty()).then_some(stored.filters);
                let range = |place: &Place| match place {
                    Place::Range { offset, len } => Some((*offset, *len)),
                    Place::Bytes(_) => None,
                };
                let ranges: Vec<(u64, u64)> =
                    array.chunks.iter().filter_map(|chunk| range(&chunk.place)).collect();
                // The reader takes the attribute for the value of what was never written where the file says none.
                if (is_whole || stored.has_fill)
                    && let Some(bytes) = bytes
                    && self.gathered.wants_values(array, bytes, &ranges)
                {
                    array.values = self.read(found, &array.meta, bytes).ok();
                }
            }
            Err(why) => {
                let chunks = found.dataset.chunks().map(|chunk| {
                    let along = found.dataset.shape().iter().zip(chunk);
                    along.map(|(len, chunk)| len.div_ceil(u64::from(chunk).max(1))).product::<u64>()
                });
                let is_little = chunks.unwrap_or(1) <= MAX_UNKNOWN;
                let bytes = bytes
                    .filter(|bytes| is_little && self.gathered.wants_values(array, *bytes, &[]))
                    .ok_or(why.clone())?;
                array.in_place(&self.read(found, &array.meta, bytes).map_err(|_| why)?);
            }
        }
        Ok(())
    }

    fn read(&self, found: &Found, meta: &ArrayMeta, bytes: u64) -> Result<Vec<u8>, String> {
        let dataset = found.dataset.clone().with_padded_shape(&meta.shape);
        let values =
            dataset.and_then(|dataset| dataset.read_raw_bytes()).map_err(|error| error.to_string())?;
        match values.len() as u64 == bytes {
            true => Ok(values),
            false => Err("its values have another size than it should have".into()),
        }
    }

    /// Returns the value that counts as missing, as Zarr has it beside the type.
    fn fill_value(&mut self, found: &Found, array: &Array) -> Option<Value> {
        let attribute = found.attributes.iter().find(|attribute| attribute.name == FILL_VALUE)?;
        let dtype = found.dataset.dtype();
        let fits = match (dtype, &attribute.datatype) {
            (
                Datatype::FloatingPoint { .. },
                Datatype::FloatingPoint { .. } | Datatype::FixedPoint { .. },
            ) => true,
            (
                Datatype::FixedPoint { size, signed, .. },
                Datatype::FixedPoint { size: of_size, signed: of_signed, .. },
            ) => size == of_size && signed == of_signed,
            (Datatype::String { .. }, Datatype::String { .. }) => true,
            (dtype, other) => dtype == other,
        };
        let value = types::fill_value(&attribute.datatype, &attribute.raw_data);
        if !fits || value.is_none() || attribute.num_elements().ok() != Some(1) {
            self.gathered.leave_out(
                &array.path,
                format!("attribute {FILL_VALUE}: it is no value of the variable's type"),
            );
            return None;
        }
        match (&array.meta.dtype, &attribute.datatype) {
            // It is as long as a value of the variable.
            (dtype, Datatype::String { .. }) if dtype.starts_with("|S") => {
                types::fill_value(found.dataset.dtype(), &attribute.raw_data)
            }
            _ => value,
        }
    }

    /// Reads texts of any length, which no range of the file has as they are.
    fn texts(&mut self, found: &Found, array: &mut Array) -> Result<(), String> {
        let too_many = || "its values are texts of any length, too many for the references".to_owned();
        if found.dataset.shape() != &array.meta.shape[..] {
            return Err("its values are texts of any length, and it is shorter than its dimension".into());
        }
        let item = found.dataset.vlen_reference_size() as u64;
        let bytes = found.dataset.num_elements().ok().and_then(|count| count.checked_mul(item));
        let bytes = bytes.ok_or_else(too_many)?;
        let stored = stored(self.hdf5, &found.dataset, item)?;
        let range = |place: &Place| match place {
            Place::Range { offset, len } => Some((*offset, *len)),
            Place::Bytes(_) => None,
        };
        let ranges: Vec<(u64, u64)> = stored.chunks.iter().filter_map(|chunk| range(&chunk.place)).collect();
        if !self.gathered.wants_values(array, bytes, &ranges) {
            return Err(too_many());
        }
        let references = self.read(found, &array.meta, bytes)?;
        // Each begins with its length.
        let lengths = references.chunks_exact(item as usize).filter_map(|one| one.first_chunk::<4>());
        if lengths.map(|len| u64::from(u32::from_le_bytes(*len))).sum::<u64>() > MAX_TEXTS {
            return Err(too_many());
        }
        let texts = found.dataset.read_strings().map_err(|error| error.to_string())?;
        array.in_place(&packed_texts(&texts).ok_or_else(too_many)?);
        Ok(())
    }
}
