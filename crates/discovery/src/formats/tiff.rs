//! TIFF and GeoTIFF: the tags of the first image.

use percale_core::AttributeValue;
use percale_core::attribute::{Float, MAX_ATTRIBUTE_VALUES};
use tiff::decoder::Decoder;
use tiff::decoder::ifd::Value;
use tiff::tags::Tag;

use super::geotiff::{self, Keys};
use super::{Unreadable, single};
use crate::header::{Header, unsigned};
use crate::source::File;

/// Tags that say where the bytes of the image are, and nothing of it.
const OF_PLACES: [Tag; 4] = [Tag::StripOffsets, Tag::StripByteCounts, Tag::TileOffsets, Tag::TileByteCounts];
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
            keys = Keys::new(numbers(&value));
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
    geotiff::describe(&mut header, &keys);
    Ok(header)
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
