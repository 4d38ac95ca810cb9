//! Tables as text: the names of the columns.

use std::io::Read as _;

use ::csv::ReaderBuilder;
use percale_core::AttributeValue;

use super::{Unreadable, text_of};
use crate::header::Header;
use crate::source::File;

/// Bytes of the first line that are read.
const FIRST: u64 = 256 * 1024;

/// Tells what separates columns in a file of this name; nothing if it is no table.
pub(super) fn separator(name: &str) -> Option<u8> {
    match name.rsplit_once('.')?.1.to_ascii_lowercase().as_str() {
        "csv" => Some(b','),
        "tsv" => Some(b'\t'),
        _ => None,
    }
}

/// Reads the first line.
pub(super) fn read(file: &File, separator: u8) -> Result<Header, Unreadable> {
    let mut table = ReaderBuilder::new().delimiter(separator).from_reader(file.reader().take(FIRST));
    let first = table.byte_headers().map_err(|error| Unreadable::new(error.to_string()))?;
    let mut header = Header::of_format(if separator == b',' { "csv" } else { "tsv" });
    header.number("columns", first.len() as u64);
    // A table from a spreadsheet may begin with the mark of its encoding.
    let names = first.iter().map(|name| text_of(name).trim_start_matches('\u{feff}').trim().to_owned());
    header.add("column", names.map(AttributeValue::Text));
    Ok(header)
}
