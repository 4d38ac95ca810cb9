//! Which format a file has, and what its header says.
//!
//! Attributes of the file keep their names; those of a group have its path before them, those of a variable `var.` and its path, with
//! dots between: `var.forecast.tas.units`. `var.tas` itself is the type, `var.tas.shape` the shape, `dim.time` a dimension.

mod axis;
mod csv;
mod document;
mod fits;
mod grib;
mod hdf5;
mod image;
mod netcdf3;
mod nifti;
mod parquet;
pub mod references;
mod tiff;
mod zarr;

use std::io;

use percale_core::AttributeValue;
use percale_core::attribute::Float;

use crate::header::Header;
use crate::source::File;

/// Why a header cannot be read, in words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(String);

impl Unreadable {
    fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

macro_rules! unreadable_by {
    ($($error:ty),*) => {
        $(impl From<$error> for Unreadable {
            fn from(error: $error) -> Self {
                Self(error.to_string())
            }
        })*
    };
}

unreadable_by!(
    io::Error,
    hdf5_reader::error::Error,
    grib_core::Error,
    netcdf_reader::Error,
    ::csv::Error,
    ::parquet::errors::ParquetError,
    ::tiff::TiffError
);

/// Where the superblock of HDF5 may be: at the beginning, or behind a block of the user's own.
const HDF5_AT: [u64; 5] = [0, 512, 1024, 2048, 4096];
const HDF5: &[u8] = b"\x89HDF\r\n\x1a\n";

/// Reads the header of a file, whose name helps where its bytes do not say what it is. Nothing if it has no format that is known.
///
/// # Errors
/// What is wrong with it, in words.
pub fn read(file: &File, name: &str) -> Result<Option<Header>, Unreadable> {
    let begin = file.beginning(16)?;
    if let Some(read) = by_begin(file, &begin) {
        return read.map(Some);
    }
    if is_hdf5(file)? {
        return hdf5::read(file).map(Some);
    }
    if let Some(begin) = nifti::find(file, name)? {
        return nifti::read(&begin).map(Some);
    }
    if zarr::is_metadata(name) {
        return zarr::read(file, name).map(Some);
    }
    if let Some(separator) = csv::separator(name) {
        return csv::read(file, separator).map(Some);
    }
    if let Some(format) = document::format(name) {
        return document::read(file, format).map(Some);
    }
    Ok(None)
}

fn is_hdf5(file: &File) -> io::Result<bool> {
    for at in HDF5_AT {
        if at + 8 <= file.size() && file.range(at, 8)? == HDF5 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads a file of a format that is known by its first bytes.
fn by_begin(file: &File, begin: &[u8]) -> Option<Result<Header, Unreadable>> {
    match begin {
        [b'C', b'D', b'F', 1 | 2 | 5, ..] => Some(netcdf3::read(file)),
        [b'S', b'I', b'M', b'P', b'L', b'E', b' ', b' ', b'=', ..] => Some(fits::read(file)),
        [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => Some(tiff::read(file)),
        [b'P', b'A', b'R', b'1', ..] => Some(parquet::read(file)),
        [b'G', b'R', b'I', b'B', ..] => Some(grib::read(file)),
        [0xff, 0xd8, 0xff, ..] => Some(image::read(file, "jpeg")),
        [0x89, b'P', b'N', b'G', ..] => Some(image::read(file, "png")),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(image::read(file, "webp")),
        [_, _, _, _, b'f', b't', b'y', b'p', b'h', b'e', b'i' | b'v', ..] => Some(image::read(file, "heif")),
        _ => None,
    }
}

/// Joins a kind, a path of groups and a name.
fn dotted(kind: &str, path: &[String], name: &str) -> String {
    let mut whole = kind.to_owned();
    for part in path {
        whole.push_str(part);
        whole.push('.');
    }
    whole.push_str(name);
    whole
}

/// Reads text that is to be UTF-8, and otherwise was written when that was Latin-1.
fn text_of(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().copied().map(char::from).collect(),
    }
}

/// Returns a number of single precision as it is written: 0.1, not the number of double precision that is next to it.
fn single(number: f32) -> AttributeValue {
    AttributeValue::Float(Float(match number.is_finite() {
        true => number.to_string().parse().unwrap_or_else(|_| f64::from(number)),
        false => f64::from(number),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::unsigned;

    #[test]
    fn numbers_are_as_they_are_written() {
        assert_eq!(single(0.1), AttributeValue::Float(Float(0.1)));
        assert_eq!(single(f32::NAN), AttributeValue::Float(Float(f64::NAN)));
        assert_eq!(unsigned(u64::MAX), AttributeValue::Float(Float(u64::MAX as f64)));
        assert_eq!(text_of(b"caf\xe9"), "café");
    }
}
