//! Where the values of the classic forms of NetCDF lie: those of a variable in one piece, or a piece in each record.

use netcdf_reader::classic::data::compute_record_stride;
use netcdf_reader::{NcAttrValue, NcAttribute, NcGroup, NcType, NcVariable};
use serde_json::{Map, Number, Value};

use super::super::Unreadable;
use super::super::netcdf3::open;
use super::types::{FILL_VALUE, fill_number, not_finite, one_or_many};
use super::{Array, Chunk, Gathered, Place, divided, pieces};
use crate::references::{ArrayMeta, MAX_CHUNKS, References};
use crate::source::File;

/// Reads where the values lie.
pub(super) fn read(file: &File) -> Result<References, Unreadable> {
    let netcdf = open(file)?;
    let NcGroup { attributes, variables, .. } = netcdf.root_group();
    let stride = compute_record_stride(variables)?;
    let mut gathered = Gathered::new(file.size());
    let all = json_of(&mut gathered, "", attributes);
    gathered.group("", all);
    for variable in variables {
        let attributes = json_of(&mut gathered, &variable.name, &variable.attributes);
        match array(variable, stride, netcdf.numrecs(), file.size()) {
            Ok(mut array) => {
                array.attributes = attributes;
                array.values = values(&mut gathered, file, &array);
                gathered.array(array);
            }
            Err(why) => gathered.leave_out(&variable.name, why),
        }
    }
    Ok(gathered.found)
}

fn array(variable: &NcVariable, stride: u64, records: u64, file_size: u64) -> Result<Array, String> {
    let (dtype, item) = dtype_of(&variable.dtype).ok_or("its type is none of the classic forms")?;
    let mut meta = ArrayMeta::plain(variable.shape(), dtype);
    let bytes = meta.shape.iter().try_fold(item, |bytes, len| bytes.checked_mul(*len));
    let bytes = bytes.ok_or("it is too large")?;
    let fill = variable.attributes.iter().find(|attribute| attribute.name == FILL_VALUE);
    meta.fill_value = fill.and_then(|fill| fill_value(&fill.value, &variable.dtype)).unwrap_or_default();
    let chunks = if meta.shape.contains(&0) {
        Vec::new()
    } else if variable.is_record_var {
        if records > MAX_CHUNKS as u64 {
            return Err(format!("it has {records} records, more than there is room for"));
        }
        meta.chunks.first_mut().into_iter().for_each(|first| *first = 1);
        let chunk = |record: u64| {
            let offset = variable.data_offset.saturating_add(stride.saturating_mul(record));
            let mut index = vec![0; meta.shape.len()];
            index.first_mut().into_iter().for_each(|first| *first = record);
            Chunk { index, place: Place::Range { offset, len: variable.record_size } }
        };
        (0..records).map(chunk).collect()
    } else {
        let end = variable.data_offset.checked_add(bytes).filter(|end| *end <= file_size);
        end.ok_or("a part of it lies beyond the end of the file")?;
        meta.chunks = divided(&meta.shape, item);
        pieces(&meta, variable.data_offset, item)
    };
    let dimensions = variable.dimensions.iter().map(|dimension| dimension.name.clone()).collect();
    Ok(Array { path: variable.name.clone(), dimensions, attributes: Map::new(), meta, chunks, values: None })
}

/// Reads the values of a small variable; they lie one behind the other in its chunks.
fn values(gathered: &mut Gathered, file: &File, array: &Array) -> Option<Vec<u8>> {
    let ranges = array.chunks.iter().filter_map(|chunk| match &chunk.place {
        Place::Range { offset, len } => Some((*offset, *len)),
        Place::Bytes(_) => None,
    });
    let ranges: Vec<(u64, u64)> = ranges.collect();
    let bytes = ranges.iter().fold(0u64, |bytes, (_, len)| bytes.saturating_add(*len));
    if !gathered.wants_values(array, bytes, &ranges) {
        return None;
    }
    let parts = ranges.iter().map(|(offset, len)| file.range(*offset, usize::try_from(*len).ok()?).ok());
    Some(parts.collect::<Option<Vec<_>>>()?.concat())
}

/// Returns a type as NumPy writes it, and the bytes of a value.
fn dtype_of(kind: &NcType) -> Option<(&'static str, u64)> {
    Some(match kind {
        NcType::Byte => ("|i1", 1),
        NcType::Char => ("|S1", 1),
        NcType::Short => (">i2", 2),
        NcType::Int => (">i4", 4),
        NcType::Float => (">f4", 4),
        NcType::Double => (">f8", 8),
        NcType::UByte => ("|u1", 1),
        NcType::UShort => (">u2", 2),
        NcType::UInt => (">u4", 4),
        NcType::Int64 => (">i8", 8),
        NcType::UInt64 => (">u8", 8),
        _ => return None,
    })
}

/// Returns an attribute as the value of a variable of the same type that counts as missing.
fn fill_value(value: &NcAttrValue, kind: &NcType) -> Option<Value> {
    Some(match (value, kind) {
        (NcAttrValue::Bytes(values), NcType::Byte) => (*values.first()?).into(),
        (NcAttrValue::Shorts(values), NcType::Short) => (*values.first()?).into(),
        (NcAttrValue::Ints(values), NcType::Int) => (*values.first()?).into(),
        (NcAttrValue::Int64s(values), NcType::Int64) => (*values.first()?).into(),
        (NcAttrValue::UBytes(values), NcType::UByte) => (*values.first()?).into(),
        (NcAttrValue::UShorts(values), NcType::UShort) => (*values.first()?).into(),
        (NcAttrValue::UInts(values), NcType::UInt) => (*values.first()?).into(),
        (NcAttrValue::UInt64s(values), NcType::UInt64) => (*values.first()?).into(),
        (NcAttrValue::Floats(values), NcType::Float | NcType::Double) => {
            fill_number((*values.first()?).into())
        }
        (NcAttrValue::Doubles(values), NcType::Float | NcType::Double) => fill_number(*values.first()?),
        (NcAttrValue::Chars(text), NcType::Char) => {
            use base64::Engine as _;
            // A character of NetCDF is one byte.
            let byte = u8::try_from(text.chars().next().map_or(0, u32::from)).ok()?;
            base64::engine::general_purpose::STANDARD.encode([byte]).into()
        }
        _ => return None,
    })
}

/// Returns attributes as JSON, and names those that it cannot say.
fn json_of(gathered: &mut Gathered, path: &str, attributes: &[NcAttribute]) -> Map<String, Value> {
    fn numbers<T: Copy + Into<Number>>(values: &[T]) -> Result<Value, String> {
        Ok(one_or_many(values.iter().map(|value| Value::Number((*value).into())).collect()))
    }
    fn floats<T: Copy + Into<f64>>(values: &[T]) -> Result<Value, String> {
        let number = |value: &T| -> Result<Value, String> {
            let value: f64 = (*value).into();
            Number::from_f64(value).map(Value::Number).ok_or_else(|| not_finite(value))
        };
        Ok(one_or_many(values.iter().map(number).collect::<Result<_, _>>()?))
    }
    let mut kept = Map::new();
    for NcAttribute { name, value } in attributes {
        if name == FILL_VALUE {
            continue;
        }
        let value = match value {
            NcAttrValue::Chars(text) => Ok(text.trim_end_matches('\0').into()),
            NcAttrValue::Strings(texts) => {
                Ok(one_or_many(texts.iter().cloned().map(Value::String).collect()))
            }
            NcAttrValue::Bytes(values) => numbers(values),
            NcAttrValue::Shorts(values) => numbers(values),
            NcAttrValue::Ints(values) => numbers(values),
            NcAttrValue::Int64s(values) => numbers(values),
            NcAttrValue::UBytes(values) => numbers(values),
            NcAttrValue::UShorts(values) => numbers(values),
            NcAttrValue::UInts(values) => numbers(values),
            NcAttrValue::UInt64s(values) => numbers(values),
            NcAttrValue::Floats(values) => floats(values),
            NcAttrValue::Doubles(values) => floats(values),
            NcAttrValue::UserDefined { .. } => Err("it has a type that JSON has not".into()),
        };
        match value {
            Ok(value) => drop(kept.insert(name.clone(), value)),
            Err(why) => gathered
                .leave_out(if path.is_empty() { "/" } else { path }, format!("attribute {name}: {why}")),
        }
    }
    kept
}
