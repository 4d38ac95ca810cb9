//! Which format a file has, and what its header says.
//!
//! Attributes of the file keep their names; those of a group have its path before them, those of a variable `var.` and its path, with
//! dots between: `var.forecast.tas.units`. `var.tas` itself is the type, `var.tas.shape` the shape, `dim.time` a dimension.

mod hdf5;
mod netcdf3;

use std::io;

use crate::header::Header;
use crate::source::File;

/// Why a header cannot be read, in words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(String);

macro_rules! unreadable_by {
    ($($error:ty),*) => {
        $(impl From<$error> for Unreadable {
            fn from(error: $error) -> Self {
                Self(error.to_string())
            }
        })*
    };
}

unreadable_by!(io::Error, hdf5_reader::error::Error, netcdf_reader::Error);

/// Where the superblock of HDF5 may be: at the beginning, or behind a block of the user's own.
const HDF5_AT: [u64; 5] = [0, 512, 1024, 2048, 4096];
const HDF5: &[u8] = b"\x89HDF\r\n\x1a\n";

/// Reads the header of a file, whose name helps where its bytes do not say what it is. Nothing if it has no format that is known.
///
/// # Errors
/// What is wrong with it, in words.
pub fn read(file: &File, name: &str) -> Result<Option<Header>, Unreadable> {
    let _ = name;
    let begin = file.beginning(16)?;
    if begin.starts_with(b"CDF") && matches!(begin.get(3), Some(1 | 2 | 5)) {
        return netcdf3::read(file).map(Some);
    }
    for at in HDF5_AT {
        if at + 8 <= file.size() && file.range(at, 8)? == HDF5 {
            return hdf5::read(file).map(Some);
        }
    }
    Ok(None)
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
