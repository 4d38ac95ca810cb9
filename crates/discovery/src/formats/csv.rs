//! Tables as text: the names of the columns, and their types as far as the first rows tell them.

use std::io::Read;

use ::csv::{ByteRecord, Reader, ReaderBuilder};
use percale_core::AttributeValue;

use super::{Unreadable, text_of};
use crate::frame::BLOCK;
use crate::header::{Header, times_of};
use crate::source::File;

/// Bytes of the first line that are read.
const FIRST: u64 = 256 * 1024;
/// What stands where there is no value, in any case.
const NOTHING: [&str; 5] = ["", "na", "n/a", "nan", "null"];
const INTEGER: &str = "int64";
const FLOAT: &str = "float64";
const TEXT: &str = "string";

/// Reads the first line, and the rows that are in the same block of the file.
pub(super) fn read(file: &File, separator: u8) -> Result<Header, Unreadable> {
    let mut table = table(file.reader().take(FIRST), separator);
    let mut first = ByteRecord::new();
    table.read_byte_record(&mut first)?;
    let mut header = Header::of_format(if separator == b',' { "csv" } else { "tsv" });
    header.number("columns", first.len() as u64);
    // A table from a spreadsheet may begin with the mark of its encoding.
    let names: Vec<String> =
        first.iter().map(|name| text_of(name).trim_start_matches('\u{feff}').trim().to_owned()).collect();
    // One without any text is a row itself, and names nothing.
    if names.iter().any(|name| kind_of(name) == Some(TEXT)) {
        header.add("column", names.iter().cloned().map(AttributeValue::Text));
        let begin = table.position().byte();
        // The rest of a first line that is not read to its end is no row.
        let is_cut = begin == FIRST && FIRST < file.size();
        let kinds = if is_cut { Vec::new() } else { kinds(file, separator, begin, names.len())? };
        for (name, kind) in names.iter().zip(kinds) {
            if let Some(kind) = kind.filter(|_| !name.is_empty()) {
                header.text(&format!("var.{name}"), kind);
            }
        }
    }
    Ok(header)
}

fn table<R: Read>(bytes: R, separator: u8) -> Reader<R> {
    ReaderBuilder::new().delimiter(separator).has_headers(false).flexible(true).from_reader(bytes)
}

/// Returns the types of columns by the rows from some place on, up to the end of the block of the file that this is in. Rows with
/// values behind the last column tell nothing: the names of rows may stand before them, as R writes them.
fn kinds(
    file: &File,
    separator: u8,
    begin: u64,
    columns: usize,
) -> Result<Vec<Option<&'static str>>, Unreadable> {
    let end = (begin / BLOCK + 1) * BLOCK;
    let mut rows = table(file.reader_at(begin).take(end - begin), separator);
    let mut kinds = vec![None; columns];
    let mut row = ByteRecord::new();
    while rows.read_byte_record(&mut row)? {
        // The last one is cut.
        if begin + rows.position().byte() == end && end < file.size() {
            break;
        }
        if row.iter().skip(columns).any(|value| !value.is_empty()) {
            continue;
        }
        for (kind, value) in kinds.iter_mut().zip(&row) {
            if *kind != Some(TEXT) {
                *kind = joined(*kind, kind_of(text_of(value).trim()));
            }
        }
    }
    Ok(kinds)
}

/// Returns the type of a value, as NumPy calls it. Nothing if there is none.
fn kind_of(value: &str) -> Option<&'static str> {
    let is = |word: &&str| value.eq_ignore_ascii_case(word);
    if NOTHING.iter().any(is) {
        return None;
    }
    Some(match value {
        _ if value.parse::<i64>().is_ok() => INTEGER,
        _ if value.parse::<f64>().is_ok() => FLOAT,
        _ if ["true", "false"].iter().any(is) => "bool",
        _ if times_of(value).is_some() => "datetime64",
        _ => TEXT,
    })
}

/// Returns the type that has the values of both.
fn joined(one: Option<&'static str>, other: Option<&'static str>) -> Option<&'static str> {
    match (one, other) {
        (None, kind) | (kind, None) => kind,
        (Some(one), Some(other)) if one == other => Some(one),
        (Some(INTEGER | FLOAT), Some(INTEGER | FLOAT)) => Some(FLOAT),
        _ => Some(TEXT),
    }
}
