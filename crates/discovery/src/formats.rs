//! Which format a file has, and what its header says.
//!
//! Attributes of the file keep their names; those of a group have its path before them, those of a variable `var.` and its path, with
//! dots between: `var.forecast.tas.units`. `var.tas` itself is the type, `var.tas.shape` the shape, `dim.time` a dimension.

mod axis;
mod csv;
mod document;
mod fits;
mod geotiff;
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
use crate::recognise::{BEGINNING, Format, format_of};
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

/// Reads the header of a file, whose name helps where its bytes do not say what it is. Nothing if it has no format that is known.
///
/// # Errors
/// What is wrong with it, in words.
pub fn read(file: &File, name: &str) -> Result<Option<Header>, Unreadable> {
    let Some(format) = format_of(name, &file.beginning(BEGINNING)?) else { return Ok(None) };
    match format {
        Format::Netcdf3 => netcdf3::read(file),
        Format::Fits => fits::read(file),
        Format::Tiff => tiff::read(file),
        Format::Parquet => parquet::read(file),
        Format::Grib => grib::read(file),
        Format::Image(format) => image::read(file, format),
        Format::Hdf5 => hdf5::read(file),
        Format::Nifti => nifti::read(file),
        Format::CompressedNifti => return nifti::read_compressed(file),
        Format::Zarr => zarr::read(file, name),
        Format::Table(separator) => csv::read(file, separator),
        Format::Document(format) => document::read(file, format),
    }
    .map(Some)
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
