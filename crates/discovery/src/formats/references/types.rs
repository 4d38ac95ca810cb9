//! Types and values of HDF5 as Zarr and JSON write them.

use base64::Engine as _;
use hdf5_reader::group::Group;
use hdf5_reader::messages::datatype::{Datatype, StringPadding, StringSize, VarLenKind};
use hdf5_reader::{Attribute, ByteOrder};
use serde_json::{Map, Number, Value};

use super::super::hdf5::{OF_DIMENSIONS, is_bool, ordered, size_of, trimmed};

/// Most values of an attribute.
const MAX_VALUES: usize = 100_000;
/// The attribute that NetCDF has for the value that counts as missing; Zarr has it beside the type.
pub(super) const FILL_VALUE: &str = "_FillValue";

/// Where the parts of numbers of IEEE 754 are, as HDF5 says it behind a type: offset, precision, exponent, its bits, fraction, its bits, bias.
const IEEE: [(u8, [u8; 12]); 3] = [
    (2, [0, 0, 16, 0, 10, 5, 0, 10, 15, 0, 0, 0]),
    (4, [0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0]),
    (8, [0, 0, 64, 0, 52, 11, 0, 52, 0xff, 0x03, 0, 0]),
];

/// Returns a type as NumPy writes it. `encoded` is how the file has it.
///
/// # Errors
/// Why it cannot be said.
pub(super) fn dtype_of(datatype: &Datatype, encoded: &[u8]) -> Result<String, String> {
    let details = encoded.get(8..).unwrap_or_default();
    match datatype {
        Datatype::FixedPoint { size, signed, byte_order } => {
            // The offset and the number of the bits that count.
            if details.get(..4) != Some(&[0, 0, size.saturating_mul(8), 0]) {
                return Err("its numbers do not fill their bytes".into());
            }
            integer_type(*size, *signed, *byte_order)
        }
        Datatype::Bitfield { size, byte_order } => integer_type(*size, false, *byte_order),
        Datatype::Enum { base, .. } => match base.as_ref() {
            Datatype::FixedPoint { size, signed, byte_order } => integer_type(*size, *signed, *byte_order),
            _ => Err("it is an enumeration of what are no whole numbers".into()),
        },
        Datatype::FloatingPoint { size, byte_order } => {
            // Of the order VAX, which is none of the two, only the bit with the value 64 tells.
            let is_vax = encoded.get(1).is_some_and(|flags| flags & 0x40 != 0);
            let is_plain = IEEE.iter().any(|(of, parts)| of == size && details.get(..12) == Some(parts));
            if is_vax || !is_plain {
                let bits = u32::from(*size) * 8;
                return Err(format!("its numbers of {bits} bits are not of a form that NumPy has"));
            }
            Ok(format!("{}f{size}", order_of(*byte_order)))
        }
        Datatype::String { size: StringSize::Fixed(size), .. } => Ok(format!("|S{size}")),
        Datatype::Compound { .. } => Err("its values have several fields".into()),
        Datatype::Array { .. } => Err("its values are arrays".into()),
        Datatype::VarLen { .. } => Err("its values are lists of any length".into()),
        Datatype::Opaque { .. } => Err("its values are opaque".into()),
        Datatype::Reference { .. } => Err("its values are references".into()),
        Datatype::String { .. } => Err("its values are texts of any length".into()),
    }
}

fn order_of(order: ByteOrder) -> char {
    if order == ByteOrder::BigEndian { '>' } else { '<' }
}

fn integer_type(size: u8, is_signed: bool, order: ByteOrder) -> Result<String, String> {
    let kind = if is_signed { 'i' } else { 'u' };
    match size {
        1 => Ok(format!("|{kind}1")),
        2 | 4 | 8 => Ok(format!("{}{kind}{size}", order_of(order))),
        _ => Err(format!("its numbers have {size} bytes")),
    }
}

/// Tells whether values are texts of any length.
pub(super) fn is_text(datatype: &Datatype) -> bool {
    matches!(
        datatype,
        Datatype::String { size: StringSize::Variable, .. }
            | Datatype::VarLen { kind: VarLenKind::String, .. }
    )
}

/// Returns a value as the `fill_value` of Zarr, which is a text where JSON has no such number. Nothing for what is none.
pub(super) fn fill_value(datatype: &Datatype, bytes: &[u8]) -> Option<Value> {
    match datatype {
        Datatype::String { size: StringSize::Fixed(size), .. } => {
            let mut bytes = bytes.to_vec();
            bytes.resize(*size as usize, 0);
            Some(Value::String(base64::engine::general_purpose::STANDARD.encode(bytes)))
        }
        Datatype::FloatingPoint { byte_order, .. } => Some(fill_number(float(bytes, *byte_order)?)),
        Datatype::Enum { base, .. } => fill_value(base, bytes),
        _ => match number(datatype, bytes)? {
            Ok(number) => Some(Value::Number(number)),
            Err(_) => None,
        },
    }
}

/// Returns a number as a `fill_value`.
pub(super) fn fill_number(number: f64) -> Value {
    match Number::from_f64(number) {
        Some(number) => Value::Number(number),
        None if number.is_nan() => "NaN".into(),
        None if number > 0.0 => "Infinity".into(),
        None => "-Infinity".into(),
    }
}

/// Reads a number; an error for one that JSON does not have, nothing for what is no number.
fn number(datatype: &Datatype, bytes: &[u8]) -> Option<Result<Number, f64>> {
    let whole = |size: u8, is_signed: bool, order: ByteOrder| -> Option<Number> {
        let bytes = ordered(bytes.get(..usize::from(size))?, order);
        let is_negative = is_signed && bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut whole = [if is_negative { 0xff } else { 0 }; 8];
        whole.get_mut(..bytes.len())?.copy_from_slice(&bytes);
        Some(if is_signed { i64::from_le_bytes(whole).into() } else { u64::from_le_bytes(whole).into() })
    };
    match datatype {
        Datatype::FixedPoint { size, signed, byte_order } => whole(*size, *signed, *byte_order).map(Ok),
        Datatype::Bitfield { size, byte_order } => whole(*size, false, *byte_order).map(Ok),
        Datatype::FloatingPoint { size, byte_order } => {
            let number = float(bytes.get(..usize::from(*size))?, *byte_order)?;
            Some(Number::from_f64(number).ok_or(number))
        }
        _ => None,
    }
}

/// Reads a number to the last digit.
fn float(bytes: &[u8], order: ByteOrder) -> Option<f64> {
    let bytes = ordered(bytes, order);
    match bytes.len() {
        8 => Some(f64::from_le_bytes(bytes.try_into().ok()?)),
        4 => Some(f64::from(f32::from_le_bytes(bytes.try_into().ok()?))),
        2 => match super::super::hdf5::float(&bytes, ByteOrder::LittleEndian)? {
            percale_core::AttributeValue::Float(float) => Some(float.0),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the attributes that programs show, as JSON; and those that JSON cannot say, with the reason.
pub(super) fn attributes(root: &Group, all: &[Attribute]) -> (Map<String, Value>, Vec<(String, String)>) {
    let (mut kept, mut left) = (Map::new(), Vec::new());
    for attribute in all {
        let name = attribute.name.as_str();
        if OF_DIMENSIONS.contains(&name) || name == FILL_VALUE {
            continue;
        }
        match attribute_value(root, attribute) {
            Ok(value) => drop(kept.insert(name.to_owned(), value)),
            Err(why) => left.push((name.to_owned(), why)),
        }
    }
    (kept, left)
}

/// Returns the attributes that NetCDF-4 keeps for itself.
pub(super) fn of_dimensions(root: &Group, all: &[Attribute]) -> Map<String, Value> {
    let own = all.iter().filter(|attribute| OF_DIMENSIONS.contains(&attribute.name.as_str()));
    own.filter_map(|attribute| Some((attribute.name.clone(), attribute_value(root, attribute).ok()?)))
        .collect()
}

fn attribute_value(root: &Group, attribute: &Attribute) -> Result<Value, String> {
    let count = attribute.num_elements().map_err(|error| error.to_string())?;
    if count > MAX_VALUES as u64 {
        return Err(format!("it has {count} values"));
    }
    if let Some(texts) = &attribute.decoded_strings {
        return Ok(one_or_many(texts.iter().cloned().map(Value::String).collect()));
    }
    if let Datatype::VarLen { kind: VarLenKind::String, .. } = &attribute.datatype
        && attribute.shape.is_empty()
    {
        return Ok(trimmed(&attribute.raw_data, StringPadding::NullTerminate).into());
    }
    let size = size_of(&attribute.datatype, root.offset_size()).filter(|size| *size > 0);
    let size = size.ok_or("it has a type that JSON has not")?;
    let parts = attribute.raw_data.chunks_exact(size).take(count as usize);
    let values = parts.map(|part| value(root, &attribute.datatype, part)).collect::<Result<Vec<_>, _>>()?;
    if values.is_empty() && matches!(attribute.datatype, Datatype::String { .. }) {
        return Ok(Value::String(String::new()));
    }
    Ok(one_or_many(values))
}

/// A list of one value is that value, as in NetCDF.
pub(super) fn one_or_many(mut values: Vec<Value>) -> Value {
    match values.len() {
        1 => values.pop().unwrap_or_default(),
        _ => Value::Array(values),
    }
}

fn value(root: &Group, datatype: &Datatype, bytes: &[u8]) -> Result<Value, String> {
    match datatype {
        Datatype::String { size: StringSize::Fixed(_), padding, .. } => Ok(trimmed(bytes, *padding).into()),
        Datatype::VarLen { kind: VarLenKind::String, padding, .. } => {
            let text = root.resolve_vlen_reference_bytes(bytes, 1).map_err(|error| error.to_string())?;
            Ok(trimmed(&text, *padding).into())
        }
        Datatype::Enum { members, .. } if is_bool(members) => Ok(Value::Bool(bytes.first() == Some(&1))),
        Datatype::Enum { base, .. } => value(root, base, bytes),
        _ => match number(datatype, bytes) {
            Some(Ok(number)) => Ok(Value::Number(number)),
            Some(Err(number)) => Err(not_finite(number)),
            None => Err("it has a type that JSON has not".into()),
        },
    }
}

/// Says why a number is no value of an attribute.
pub(super) fn not_finite(number: f64) -> String {
    format!("JSON has no number {number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_digits() {
        let single = Datatype::FloatingPoint { size: 4, byte_order: ByteOrder::BigEndian };
        let fill = |number: f32| fill_value(&single, &number.to_be_bytes()).unwrap().to_string();
        assert_eq!(fill(0.1), "0.10000000149011612");
        assert_eq!(fill(9.969_21e36), "9.969209968386869e+36");
        assert_eq!([fill(f32::NAN), fill(f32::NEG_INFINITY)], ["\"NaN\"", "\"-Infinity\""]);
        let large = Datatype::FixedPoint { size: 8, signed: false, byte_order: ByteOrder::LittleEndian };
        assert_eq!(fill_value(&large, &[0xff; 8]).unwrap().to_string(), "18446744073709551615");
        let signed = Datatype::FixedPoint { size: 2, signed: true, byte_order: ByteOrder::LittleEndian };
        assert_eq!(fill_value(&signed, &(-9999_i16).to_le_bytes()).unwrap(), -9999);
    }

    #[test]
    fn numbers_that_are_not_ieee_are_none() {
        let double = Datatype::FloatingPoint { size: 8, byte_order: ByteOrder::LittleEndian };
        let mut encoded = [[0x11, 0x20, 63, 0, 8, 0, 0, 0].as_slice(), &IEEE[2].1].concat();
        assert_eq!(dtype_of(&double, &encoded).as_deref(), Ok("<f8"));
        encoded[1] |= 0x40;
        assert!(dtype_of(&double, &encoded).is_err());
        let brain = Datatype::FloatingPoint { size: 2, byte_order: ByteOrder::LittleEndian };
        let encoded = [0x11, 0x20, 15, 0, 2, 0, 0, 0, 0, 0, 16, 0, 7, 8, 0, 7, 127, 0, 0, 0];
        assert!(dtype_of(&brain, &encoded).is_err());
    }
}
