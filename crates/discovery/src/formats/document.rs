//! JSON and YAML, as they stand beside data to describe it: each value by its path.

use percale_core::AttributeValue;
use percale_core::attribute::Float;
use serde_json::Value;

use super::Unreadable;
use crate::header::{FORMAT, Header};
use crate::source::File;

/// Largest document that is read: a larger one is data.
const MAX_SIZE: u64 = 1 << 20;
/// How deep values in values are followed.
const MAX_DEPTH: usize = 8;

/// Reads a document.
pub(super) fn read(file: &File, format: &str) -> Result<Header, Unreadable> {
    let mut header = Header::default();
    if file.size() > MAX_SIZE {
        header.text(FORMAT, format);
        return Ok(header);
    }
    let bytes = file.beginning(MAX_SIZE as usize)?;
    let whole: Value = match format {
        "json" => serde_json::from_slice(&bytes).map_err(|error| Unreadable::new(error.to_string()))?,
        _ => serde_saphyr::from_slice(&bytes)
            .map_err(|error| Unreadable::new(first_line(&error.to_string())))?,
    };
    if let Value::Object(parts) = whole {
        for (key, value) in parts {
            add(&mut header, &key, &value, 0);
        }
    }
    // What the document itself calls its format stands beside it.
    header.text(FORMAT, format);
    Ok(header)
}

/// The rest of such an error draws the place.
fn first_line(error: &str) -> &str {
    error.lines().next().unwrap_or_default()
}

/// Adds a value of JSON: lists have several values, what is in objects has their names before it.
pub(super) fn add(header: &mut Header, name: &str, value: &Value, depth: usize) {
    if depth > MAX_DEPTH {
        return header.leave_out(1);
    }
    match value {
        Value::Null => header.add(name, []),
        Value::Object(parts) => {
            for (key, part) in parts {
                add(header, &format!("{name}.{key}"), part, depth + 1);
            }
        }
        Value::Array(parts) if parts.is_empty() => header.add(name, []),
        Value::Array(parts) => parts.iter().for_each(|part| add(header, name, part, depth + 1)),
        Value::String(text) => header.text(name, text.as_str()),
        Value::Bool(is_so) => header.add(name, [AttributeValue::Bool(*is_so)]),
        Value::Number(number) => header.add(
            name,
            [match number.as_i64() {
                Some(number) => AttributeValue::Integer(number),
                None => AttributeValue::Float(Float(number.as_f64().unwrap_or(f64::NAN))),
            }],
        ),
    }
}
