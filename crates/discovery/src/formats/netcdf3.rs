//! NetCDF in its classic forms, CDF-1, CDF-2 and CDF-5.

use std::sync::Arc;

use netcdf_reader::classic::ClassicFile;
use netcdf_reader::{NcAttrValue, NcFormat, NcGroup, NcSliceInfo, NcSliceInfoElem, NcVariable};
use percale_core::AttributeValue;
use percale_core::attribute::{Float, MAX_ATTRIBUTE_VALUES};

use super::axis::Axis;
use super::{Unreadable, single};
use crate::header::{Header, unsigned};
use crate::source::File;
use crate::standard::{self, Coverage};

/// Largest file that is read as a whole where its header cannot be read by itself.
const MAX_WHOLE: u64 = 128 << 20;

/// Opens a file.
pub(super) fn open(file: &File) -> Result<ClassicFile, Unreadable> {
    let format = match file.range(3, 1)?.first() {
        Some(1) => NcFormat::Classic,
        Some(2) => NcFormat::Offset64,
        _ => NcFormat::Cdf5,
    };
    Ok(match ClassicFile::from_storage(Arc::new(file.clone()), format) {
        // The reader takes an attribute that goes beyond the part of the header that it has read for a wrong one.
        Err(netcdf_reader::Error::InvalidData(_)) if file.size() <= MAX_WHOLE => {
            ClassicFile::from_vec(file.beginning(usize::MAX)?, format)?
        }
        opened => opened?,
    })
}

/// Reads the header of a file.
pub(super) fn read(file: &File) -> Result<Header, Unreadable> {
    let netcdf = open(file)?;
    let format = netcdf.format();
    let mut coverage = Coverage::default();
    let mut header = Header::of_format(if format == NcFormat::Cdf5 { "netcdf5" } else { "netcdf3" });
    let NcGroup { attributes, dimensions, variables, .. } = netcdf.root_group();
    for attribute in attributes {
        add(&mut header, &attribute.name, &attribute.value);
    }
    for dimension in dimensions {
        header.dimension(&dimension.name, dimension.size);
    }
    for variable in variables {
        let name = format!("var.{}", variable.name);
        header.text(&name, type_name(variable.dtype()));
        let shape = variable.shape();
        if !shape.is_empty() {
            header.add(&format!("{name}.shape"), shape.into_iter().map(unsigned));
        }
        for attribute in variable.attributes() {
            add(&mut header, &format!("{name}.{}", attribute.name), &attribute.value);
        }
        if let Some((axis, count)) = axis(variable)
            && let Ok([first, last]) = ends(&netcdf, &variable.name, count)
        {
            axis.cover(&mut coverage, first, last, count);
        }
    }
    standard::add(&mut header);
    coverage.say(&mut header);
    Ok(header)
}

/// Tells what a coordinate variable, which has the name of its dimension, counts, and how many values it has.
fn axis(variable: &NcVariable) -> Option<(Axis, u64)> {
    let ([count], [dimension]) = (&variable.shape()[..], variable.dimensions()) else { return None };
    let (count, is_coordinate) = (*count, dimension.name == variable.name);
    let text = |name: &str| {
        let attribute = variable.attributes().iter().find(|attribute| attribute.name == name)?;
        match &attribute.value {
            NcAttrValue::Chars(text) => Some(text.trim_end_matches('\0')),
            _ => None,
        }
    };
    Some((Axis::of(text("units")?, text("calendar"))?, count)).filter(|_| is_coordinate && count > 0)
}

/// Reads the first and the last value.
fn ends(netcdf: &ClassicFile, name: &str, count: u64) -> netcdf_reader::Result<[f64; 2]> {
    let at = |start: u64| -> netcdf_reader::Result<f64> {
        let only = NcSliceInfoElem::Slice { start, end: start + 1, step: 1 };
        let values = netcdf.read_variable_slice_as_f64(name, &NcSliceInfo { selections: vec![only] })?;
        Ok(values.first().copied().unwrap_or(f64::NAN))
    };
    Ok([at(0)?, at(count - 1)?])
}

fn add(header: &mut Header, name: &str, value: &NcAttrValue) {
    fn values<T: Copy>(numbers: &[T], value: impl Fn(T) -> AttributeValue) -> (Vec<AttributeValue>, usize) {
        (numbers.iter().take(MAX_ATTRIBUTE_VALUES).map(|number| value(*number)).collect(), numbers.len())
    }
    let signed = AttributeValue::Integer;
    let (values, count) = match value {
        NcAttrValue::Chars(text) => (vec![AttributeValue::Text(text.trim_end_matches('\0').to_owned())], 1),
        NcAttrValue::Strings(texts) => (
            texts.iter().take(MAX_ATTRIBUTE_VALUES).cloned().map(AttributeValue::Text).collect(),
            texts.len(),
        ),
        NcAttrValue::Bytes(numbers) => values(numbers, |number| signed(number.into())),
        NcAttrValue::Shorts(numbers) => values(numbers, |number| signed(number.into())),
        NcAttrValue::Ints(numbers) => values(numbers, |number| signed(number.into())),
        NcAttrValue::Int64s(numbers) => values(numbers, signed),
        NcAttrValue::UBytes(numbers) => values(numbers, |number| signed(number.into())),
        NcAttrValue::UShorts(numbers) => values(numbers, |number| signed(number.into())),
        NcAttrValue::UInts(numbers) => values(numbers, |number| signed(number.into())),
        NcAttrValue::UInt64s(numbers) => values(numbers, unsigned),
        NcAttrValue::Floats(numbers) => values(numbers, single),
        NcAttrValue::Doubles(numbers) => values(numbers, |number| AttributeValue::Float(Float(number))),
        // The classic forms have no types that users make.
        NcAttrValue::UserDefined { .. } => (Vec::new(), 0),
    };
    header.leave_out(count.saturating_sub(values.len()) as u64);
    header.add(name, values);
}

/// Returns the name of a type, as NumPy calls it.
fn type_name(datatype: &netcdf_reader::NcType) -> &'static str {
    use netcdf_reader::NcType;
    match datatype {
        NcType::Byte => "int8",
        NcType::Char => "char",
        NcType::Short => "int16",
        NcType::Int => "int32",
        NcType::Float => "float32",
        NcType::Double => "float64",
        NcType::UByte => "uint8",
        NcType::UShort => "uint16",
        NcType::UInt => "uint32",
        NcType::Int64 => "int64",
        NcType::UInt64 => "uint64",
        _ => "other",
    }
}
