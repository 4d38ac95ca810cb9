//! Pictures: their size, and what the camera wrote into them as EXIF.

use std::io::BufReader;

use exif::{Context, Field, In, Value};
use percale_core::AttributeValue;
use percale_core::attribute::{Float, MAX_ATTRIBUTE_VALUES};

use super::{Unreadable, single, text_of};
use crate::header::Header;
use crate::source::File;

/// Reads the header of a picture.
pub(super) fn read(file: &File, format: &str) -> Result<Header, Unreadable> {
    let mut header = Header::of_format(format);
    let size = imagesize::reader_size(BufReader::new(file.reader()));
    let size = size.map_err(|error| Unreadable::new(error.to_string()))?;
    header.number("width", size.width as u64);
    header.number("height", size.height as u64);
    match exif::Reader::new().read_from_container(&mut BufReader::new(file.reader())) {
        Ok(exif) => exif
            .fields()
            .filter(|field| field.ifd_num == In::PRIMARY)
            .for_each(|field| add(&mut header, field)),
        Err(exif::Error::NotFound(_)) => {}
        Err(error) => header.fail(&error.to_string()),
    }
    Ok(header)
}

fn add(header: &mut Header, field: &Field) {
    let name = match field.tag.description() {
        Some(_) => field.tag.to_string(),
        None => format!("tag{}", field.tag.number()),
    };
    let values: Vec<AttributeValue> = match &field.value {
        Value::Ascii(texts) => texts.iter().map(|text| AttributeValue::Text(text_of(text))).collect(),
        Value::Byte(numbers) => integers(numbers.iter().copied()),
        Value::Short(numbers) => integers(numbers.iter().copied()),
        Value::Long(numbers) => integers(numbers.iter().copied()),
        Value::SByte(numbers) => integers(numbers.iter().copied()),
        Value::SShort(numbers) => integers(numbers.iter().copied()),
        Value::SLong(numbers) => integers(numbers.iter().copied()),
        Value::Rational(numbers) => floats(numbers.iter().map(exif::Rational::to_f64)),
        Value::SRational(numbers) => floats(numbers.iter().map(exif::SRational::to_f64)),
        Value::Float(numbers) => numbers.iter().copied().take(MAX_ATTRIBUTE_VALUES).map(single).collect(),
        Value::Double(numbers) => floats(numbers.iter().copied()),
        // Of no type, such as the notes of makers.
        Value::Undefined(..) | Value::Unknown(..) => return,
    };
    let time = match (field.tag.context(), values.first()) {
        (Context::Tiff | Context::Exif, Some(AttributeValue::Text(text))) if name.starts_with("DateTime") => {
            time_of(text)
        }
        _ => None,
    };
    header.add(&name, values.into_iter().chain(time));
}

/// Reads `2018:03:01 10:20:30`, which has no zone and is taken as UTC.
fn time_of(text: &str) -> Option<AttributeValue> {
    let (date, time) = text.trim().split_once(' ')?;
    format!("{}T{time}Z", date.replace(':', "-")).parse().ok().map(AttributeValue::Time)
}

fn integers<T: Into<i64>>(numbers: impl Iterator<Item = T>) -> Vec<AttributeValue> {
    numbers.take(MAX_ATTRIBUTE_VALUES).map(|number| AttributeValue::Integer(number.into())).collect()
}

fn floats(numbers: impl Iterator<Item = f64>) -> Vec<AttributeValue> {
    numbers.take(MAX_ATTRIBUTE_VALUES).map(|number| AttributeValue::Float(Float(number))).collect()
}
