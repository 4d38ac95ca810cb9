//! HDF5, and with it NetCDF-4: attributes of groups, and of datasets with their types and shapes.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use hdf5_reader::error::{ByteOrder, Error, Result as Hdf5Result};
use hdf5_reader::group::Group;
use hdf5_reader::messages::datatype::{Datatype, ReferenceType, StringPadding, StringSize, VarLenKind};
use hdf5_reader::storage::{Storage, StorageBuffer};
use hdf5_reader::{Attribute, Dataset, EnumMember, Hdf5File, OpenOptions, SliceInfo, SliceInfoElem};
use percale_core::AttributeValue;
use percale_core::attribute::{Float, MAX_ATTRIBUTE_VALUES};

use super::axis::Axis;
use super::{Unreadable, dotted, single, text_of};
use crate::header::{FORMAT, Header, unsigned};
use crate::source::File;
use crate::standard::{self, Coverage};

/// Most groups and datasets that are looked at.
pub(super) const MAX_OBJECTS: usize = 100_000;
/// How deep groups are followed.
pub(super) const MAX_DEPTH: usize = 64;
/// Largest object header that is read: attributes that are not too many for one lie in there.
pub(super) const MAX_OBJECT_HEADER: usize = 64 << 20;
/// Names by which NetCDF-4 keeps dimensions in HDF5, and which it shows to nobody
/// (<https://docs.unidata.ucar.edu/netcdf-c/current/file_format_specifications.html>).
pub(super) const OF_DIMENSIONS: [&str; 8] = [
    "CLASS",
    "DIMENSION_LIST",
    "NAME",
    "REFERENCE_LIST",
    "_NCProperties",
    "_Netcdf4Coordinates",
    "_Netcdf4Dimid",
    "_nc3_strict",
];
/// How the `NAME` of a dimension begins that has no variable.
pub(super) const NO_VARIABLE: &str = "This is a netCDF dimension but not a netCDF variable";

impl Storage for File {
    fn len(&self) -> u64 {
        self.size()
    }

    fn read_range(&self, offset: u64, len: usize) -> Hdf5Result<StorageBuffer> {
        match self.range(offset, len) {
            Ok(bytes) => Ok(StorageBuffer::from_vec(bytes)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(Error::OffsetOutOfBounds(offset))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Reads the header of a file.
pub(super) fn read(file: &File) -> Result<Header, Unreadable> {
    let options = OpenOptions { max_object_header_bytes: MAX_OBJECT_HEADER, ..OpenOptions::default() };
    let hdf5 = Hdf5File::from_storage_with_options(Arc::new(file.clone()), options)?;
    let root = hdf5.root_group()?;
    let mut walk = Walk {
        root: root.clone(),
        seen: HashMap::new(),
        objects: 0,
        above: Vec::new(),
        references: Vec::new(),
        dimensions: HashMap::new(),
        extents: Vec::new(),
        is_netcdf: false,
        coverage: Coverage::default(),
    };
    let mut header = Header::default();
    if let Err(error) = walk.group(&root, &[], &mut header) {
        // Its attributes are there, although one of its members cannot be read.
        header.fail(&format!("/: {error}"));
    }
    walk.resolve(&mut header);
    header.text(FORMAT, if walk.is_netcdf { "netcdf4" } else { "hdf5" });
    standard::add(&mut header);
    walk.coverage.say(&mut header);
    Ok(header)
}

struct Walk {
    /// Of the file, by which what lies elsewhere in it is found.
    root: Group,
    /// The paths of the objects that were looked at, by their addresses.
    seen: HashMap<u64, String>,
    /// How many were looked at; one that is linked to several times counts as often.
    objects: usize,
    /// The addresses of the groups that the present one is in.
    above: Vec<u64>,
    /// Attributes that refer to objects.
    references: Vec<(String, Vec<u64>)>,
    /// Dimensions by the addresses of their scales: their names, and their sizes as far as they are known.
    dimensions: HashMap<u64, (String, u64)>,
    /// Which dimensions datasets have, and how long they are there.
    extents: Vec<(u64, u64)>,
    is_netcdf: bool,
    coverage: Coverage,
}

impl Walk {
    fn group(&mut self, group: &Group, path: &[String], header: &mut Header) -> Result<(), Unreadable> {
        if path.len() > MAX_DEPTH || self.objects >= MAX_OBJECTS {
            header.leave_out(1);
            return Ok(());
        }
        if self.above.contains(&group.address()) {
            // A link to what it is in.
            return Ok(());
        }
        self.objects += 1;
        self.seen.entry(group.address()).or_insert_with(|| format!("/{}", path.join("/")));
        self.above.push(group.address());
        let read = self.members(group, path, header);
        self.above.pop();
        read
    }

    fn members(&mut self, group: &Group, path: &[String], header: &mut Header) -> Result<(), Unreadable> {
        // What there is of the group otherwise is read all the same.
        let attributes = group.attributes().unwrap_or_else(|error| {
            header.fail(&format!("attributes of /{}: {error}", path.join("/")));
            Vec::new()
        });
        for attribute in attributes {
            self.is_netcdf |= path.is_empty() && attribute.name == "_NCProperties";
            if !OF_DIMENSIONS.contains(&attribute.name.as_str()) {
                self.attribute(&dotted("", path, &attribute.name), &attribute, header);
            }
        }
        let (groups, datasets) = group.members()?;
        for dataset in datasets {
            self.dataset(&dataset, path, header);
        }
        for inner in groups {
            let path = [path, &[inner.name().to_owned()]].concat();
            if let Err(error) = self.group(&inner, &path, header) {
                header.fail(&format!("/{}: {error}", path.join("/")));
            }
        }
        Ok(())
    }

    fn dataset(&mut self, dataset: &Dataset, path: &[String], header: &mut Header) {
        if self.objects >= MAX_OBJECTS {
            return header.leave_out(1);
        }
        self.objects += 1;
        let at = format!("/{}", [path, &[dataset.name().to_owned()]].concat().join("/"));
        self.seen.entry(dataset.address()).or_insert(at);
        self.extents.extend(attached(&self.root, dataset));
        let attributes = dataset.attributes();
        let text = |name: &str| {
            let attribute = attributes.iter().find(|attribute| attribute.name == name)?;
            match self.values(attribute).pop() {
                Some(AttributeValue::Text(text)) => Some(text),
                _ => None,
            }
        };
        let is_scale = text("CLASS").is_some_and(|class| class == "DIMENSION_SCALE");
        let named = text("NAME").unwrap_or_default();
        let axis = text("units")
            .filter(|_| is_scale)
            .and_then(|units| Axis::of(&units, text("calendar").as_deref()));
        if let (Some(axis), [count]) = (axis, dataset.shape())
            && let (Some(first), Some(last)) =
                (number_at(dataset, 0), number_at(dataset, count.saturating_sub(1)))
        {
            axis.cover(&mut self.coverage, first, last, *count);
        }
        let is_bare = is_scale && named.starts_with(NO_VARIABLE);
        self.is_netcdf |=
            is_bare || attributes.iter().any(|attribute| attribute.name.starts_with("_Netcdf4"));
        if is_scale && let Some(size) = dataset.shape().first() {
            self.dimensions.insert(dataset.address(), (dotted("", path, dataset.name()), *size));
        }
        if is_bare {
            return;
        }
        let variable = dotted("var.", path, dataset.name());
        header.text(&variable, type_name(dataset.dtype()));
        if !dataset.shape().is_empty() {
            header.add(&format!("{variable}.shape"), dataset.shape().iter().map(|size| unsigned(*size)));
        }
        for attribute in &attributes {
            if !OF_DIMENSIONS.contains(&attribute.name.as_str()) {
                self.attribute(&format!("{variable}.{}", attribute.name), attribute, header);
            }
        }
    }

    fn attribute(&mut self, name: &str, attribute: &Attribute, header: &mut Header) {
        let count = attribute.num_elements().unwrap_or_default();
        header.leave_out(count.saturating_sub(MAX_ATTRIBUTE_VALUES as u64));
        match &attribute.datatype {
            Datatype::Reference { ref_type: ReferenceType::Object, size } => {
                let addresses = elements(&attribute.raw_data, usize::from(*size), count);
                self.references.push((name.to_owned(), addresses.map(address).collect()));
            }
            Datatype::Compound { size, fields } => {
                for field in fields {
                    let from = field.byte_offset as usize;
                    let parts = elements(&attribute.raw_data, *size as usize, count);
                    let parts = parts.filter_map(|part| part.get(from..));
                    let values = parts.flat_map(|part| self.element(&field.datatype, part));
                    header.add(&format!("{name}.{}", field.name), values.collect::<Vec<_>>());
                }
            }
            _ => header.add(name, self.values(attribute)),
        }
    }

    fn values(&self, attribute: &Attribute) -> Vec<AttributeValue> {
        let text = |text: &str| AttributeValue::Text(text.to_owned());
        let count = attribute.num_elements().unwrap_or_default();
        if let Some(strings) = &attribute.decoded_strings {
            return strings.iter().take(MAX_ATTRIBUTE_VALUES).map(|string| text(string)).collect();
        }
        if let Datatype::VarLen { kind: VarLenKind::String, .. } = &attribute.datatype
            && attribute.shape.is_empty()
        {
            // The reader has put the bytes in place of where they lie.
            return vec![AttributeValue::Text(trimmed(&attribute.raw_data, StringPadding::NullTerminate))];
        }
        let Some(size) = size_of(&attribute.datatype, self.root.offset_size()) else { return Vec::new() };
        let parts = elements(&attribute.raw_data, size, count);
        parts.flat_map(|part| self.element(&attribute.datatype, part)).take(MAX_ATTRIBUTE_VALUES).collect()
    }

    /// Reads the value, or the values, of one element, which is at the beginning of `bytes`.
    fn element(&self, datatype: &Datatype, bytes: &[u8]) -> Vec<AttributeValue> {
        let Some(size) = size_of(datatype, self.root.offset_size()) else { return Vec::new() };
        let Some(bytes) = bytes.get(..size) else { return Vec::new() };
        match datatype {
            Datatype::FixedPoint { signed, byte_order, .. } => {
                integer(bytes, *byte_order, *signed).into_iter().collect()
            }
            Datatype::Bitfield { byte_order, .. } => integer(bytes, *byte_order, false).into_iter().collect(),
            Datatype::FloatingPoint { byte_order, .. } => float(bytes, *byte_order).into_iter().collect(),
            Datatype::String { size: StringSize::Fixed(_), padding, .. } => {
                vec![AttributeValue::Text(trimmed(bytes, *padding))]
            }
            Datatype::Enum { base, members } => match is_bool(members) {
                true => vec![AttributeValue::Bool(bytes.first() == Some(&1))],
                false => self.element(base, bytes),
            },
            Datatype::Array { base, dims } => {
                let count = dims.iter().fold(1u64, |count, dim| count.saturating_mul(*dim));
                let Some(size) = size_of(base, self.root.offset_size()) else { return Vec::new() };
                elements(bytes, size, count).flat_map(|part| self.element(base, part)).collect()
            }
            Datatype::VarLen { base, kind, padding, .. } => {
                let unit = size_of(base, self.root.offset_size()).unwrap_or(1);
                let Ok(content) = self.root.resolve_vlen_reference_bytes(bytes, unit) else {
                    return Vec::new();
                };
                match kind {
                    VarLenKind::String => vec![AttributeValue::Text(trimmed(&content, *padding))],
                    _ => {
                        let count = (content.len() / unit.max(1)) as u64;
                        elements(&content, unit, count).flat_map(|part| self.element(base, part)).collect()
                    }
                }
            }
            Datatype::Opaque { .. } => {
                let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
                vec![AttributeValue::Text(digits.collect())]
            }
            Datatype::Compound { fields, .. } => {
                let parts = fields.iter().filter_map(|field| {
                    bytes.get(field.byte_offset as usize..).map(|part| (&field.datatype, part))
                });
                parts.flat_map(|(datatype, part)| self.element(datatype, part)).collect()
            }
            Datatype::Reference { ref_type: ReferenceType::Object, .. } => {
                let path = self.seen.get(&address(bytes));
                vec![AttributeValue::Text(path.cloned().unwrap_or_default())]
            }
            Datatype::Reference { .. } | Datatype::String { .. } => {
                vec![AttributeValue::Text(String::new())]
            }
        }
    }

    /// Gives the attributes that refer to objects the paths of these, and dimensions their sizes: one without limit is as long as the
    /// longest dataset that has it.
    fn resolve(&mut self, header: &mut Header) {
        for (scale, size) in std::mem::take(&mut self.extents) {
            if let Some((_, known)) = self.dimensions.get_mut(&scale) {
                *known = size.max(*known);
            }
        }
        let mut dimensions: Vec<(String, u64)> =
            self.dimensions.drain().map(|(_, dimension)| dimension).collect();
        dimensions.sort_unstable();
        for (name, size) in dimensions {
            header.dimension(&name, size);
        }
        for (name, addresses) in std::mem::take(&mut self.references) {
            let paths = addresses.iter().map(|address| self.seen.get(address).cloned().unwrap_or_default());
            header.add(&name, paths.map(AttributeValue::Text));
        }
    }
}

/// Tells whether an enumeration is yes and no, as h5py has it.
pub(super) fn is_bool(members: &[EnumMember]) -> bool {
    let has = |name: &str, value: u8| {
        members.iter().any(|member| member.name == name && member.value.first() == Some(&value))
    };
    members.len() == 2 && has("TRUE", 1) && has("FALSE", 0)
}

/// Returns the addresses of the scales of a dataset, each with how long the dataset is there.
fn attached(root: &Group, dataset: &Dataset) -> Vec<(u64, u64)> {
    let scales = scales(root, dataset).into_iter().zip(dataset.shape());
    scales.filter_map(|(scale, size)| Some((scale?, *size))).collect()
}

/// Returns the address of the scale of each dimension of a dataset, where it has one.
pub(super) fn scales(root: &Group, dataset: &Dataset) -> Vec<Option<u64>> {
    let Ok(list) = dataset.attribute("DIMENSION_LIST") else { return Vec::new() };
    let Some(size) = size_of(&list.datatype, root.offset_size()) else { return Vec::new() };
    let unit = usize::from(root.offset_size());
    let parts = elements(&list.raw_data, size, dataset.shape().len() as u64);
    let scales = parts.map(|part| {
        let scale = root.resolve_vlen_reference_bytes(part, unit).ok()?;
        scale.get(..unit).map(address)
    });
    scales.collect()
}

/// Parts bytes into the elements that an attribute has at most values of.
fn elements(bytes: &[u8], size: usize, count: u64) -> impl Iterator<Item = &[u8]> {
    let count = usize::try_from(count).unwrap_or(usize::MAX).min(MAX_ATTRIBUTE_VALUES);
    bytes.chunks_exact(size.max(1)).take(if size == 0 { 0 } else { count })
}

pub(super) fn size_of(datatype: &Datatype, offset_size: u8) -> Option<usize> {
    Some(match datatype {
        Datatype::FixedPoint { size, .. }
        | Datatype::FloatingPoint { size, .. }
        | Datatype::Bitfield { size, .. }
        | Datatype::Reference { size, .. } => usize::from(*size),
        Datatype::String { size: StringSize::Fixed(size), .. }
        | Datatype::Compound { size, .. }
        | Datatype::Opaque { size, .. } => *size as usize,
        Datatype::String { size: StringSize::Variable, .. } | Datatype::VarLen { .. } => {
            // The length, an address and a number within the heap.
            8 + usize::from(offset_size)
        }
        Datatype::Enum { base, .. } => size_of(base, offset_size)?,
        Datatype::Array { base, dims } => {
            dims.iter().try_fold(size_of(base, offset_size)?, |size, dim| {
                size.checked_mul(usize::try_from(*dim).ok()?)
            })?
        }
    })
}

/// Puts bytes in the order from the least to the most significant.
pub(super) fn ordered(bytes: &[u8], order: ByteOrder) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if order == ByteOrder::BigEndian {
        bytes.reverse();
    }
    bytes
}

fn integer(bytes: &[u8], order: ByteOrder, is_signed: bool) -> Option<AttributeValue> {
    let bytes = ordered(bytes, order);
    let is_negative = is_signed && bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut whole = [if is_negative { 0xff } else { 0 }; 8];
    whole.get_mut(..bytes.len())?.copy_from_slice(&bytes);
    Some(if is_signed {
        AttributeValue::Integer(i64::from_le_bytes(whole))
    } else {
        unsigned(u64::from_le_bytes(whole))
    })
}

pub(super) fn float(bytes: &[u8], order: ByteOrder) -> Option<AttributeValue> {
    let bytes = ordered(bytes, order);
    if let Ok(bytes) = <[u8; 8]>::try_from(bytes.as_slice()) {
        return Some(AttributeValue::Float(Float(f64::from_le_bytes(bytes))));
    }
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes.as_slice()) {
        return Some(single(f32::from_le_bytes(bytes)));
    }
    let bits = u16::from_le_bytes(bytes.try_into().ok()?);
    // IEEE 754 binary16: a sign, 5 bits of exponent and 10 of fraction.
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff) / 1024.0);
    let size = match exponent {
        0 => fraction * 2f64.powi(-14),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction) * 2f64.powi(exponent - 15),
    };
    Some(AttributeValue::Float(Float(if bits & 0x8000 == 0 { size } else { -size })))
}

pub(super) fn address(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |address, byte| address << 8 | u64::from(*byte))
}

pub(super) fn trimmed(bytes: &[u8], padding: StringPadding) -> String {
    let end = match padding {
        StringPadding::NullTerminate => bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()),
        StringPadding::NullPad => bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1),
        StringPadding::SpacePad => bytes.iter().rposition(|byte| *byte != b' ').map_or(0, |at| at + 1),
    };
    text_of(bytes.get(..end).unwrap_or_default())
}

/// Returns the name of a type, as NumPy calls it.
fn type_name(datatype: &Datatype) -> String {
    match datatype {
        Datatype::FixedPoint { size, signed, .. } => {
            format!("{}int{}", if *signed { "" } else { "u" }, u32::from(*size) * 8)
        }
        Datatype::FloatingPoint { size, .. } => format!("float{}", u32::from(*size) * 8),
        Datatype::Bitfield { size, .. } => format!("bits{}", u32::from(*size) * 8),
        Datatype::String { .. } | Datatype::VarLen { kind: VarLenKind::String, .. } => "string".into(),
        Datatype::VarLen { base, .. } => format!("list of {}", type_name(base)),
        Datatype::Array { base, dims } => format!("{}{dims:?}", type_name(base)),
        Datatype::Enum { base, .. } => format!("enum of {}", type_name(base)),
        Datatype::Compound { fields, .. } => {
            let fields: Vec<&str> = fields.iter().take(20).map(|field| field.name.as_str()).collect();
            format!("compound of {}", fields.join(", "))
        }
        Datatype::Opaque { size, .. } => format!("opaque{}", u64::from(*size) * 8),
        Datatype::Reference { .. } => "reference".into(),
    }
}

/// Reads one number of a dataset that has one dimension.
fn number_at(dataset: &Dataset, at: u64) -> Option<f64> {
    let only = SliceInfo { selections: vec![SliceInfoElem::Slice { start: at, end: at + 1, step: 1 }] };
    macro_rules! read {
        ($kind:ty) => {
            dataset.read_slice::<$kind>(&only).ok()?.first().map(|number| *number as f64)
        };
    }
    match type_name(dataset.dtype()).as_str() {
        "float64" => read!(f64),
        "float32" => read!(f32),
        "int64" => read!(i64),
        "int32" => read!(i32),
        "int16" => read!(i16),
        _ => None,
    }
}
