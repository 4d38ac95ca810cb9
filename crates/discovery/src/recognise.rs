//! Which format a file has, by its name and its first bytes. Nothing is taken out of them, so whoever has the bytes may look before the
//! process that reads headers is asked.

/// A format whose headers are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The classic format of NetCDF, and its forms for large files.
    Netcdf3,
    /// FITS.
    Fits,
    /// TIFF and BigTIFF, GeoTIFF among them.
    Tiff,
    /// Parquet.
    Parquet,
    /// GRIB, either edition.
    Grib,
    /// An image that may have EXIF, by what its format is called.
    Image(&'static str),
    /// HDF5, and so NetCDF-4.
    Hdf5,
    /// NIfTI.
    Nifti,
    /// By its name one of NIfTI that is compressed; it may be none.
    CompressedNifti,
    /// An object of metadata of a Zarr store.
    Zarr,
    /// A table of text, by what is between its columns.
    Table(u8),
    /// A document, by what its format is called.
    Document(&'static str),
}

/// How many bytes from its beginning tell all that there is to tell of a file; fewer if it has fewer.
pub const BEGINNING: usize = HDF5_AT[HDF5_AT.len() - 1] + HDF5.len();

/// Where the superblock of HDF5 may be: at the beginning, or behind a block of the user's own. Larger blocks are not looked
/// behind.
const HDF5_AT: [usize; 5] = [0, 512, 1024, 2048, 4096];
const HDF5: &[u8] = b"\x89HDF\r\n\x1a\n";

/// Where a header of NIfTI says what it is.
const NIFTI_1: std::ops::Range<usize> = 344..348;
const NIFTI_2: std::ops::Range<usize> = 4..12;

/// Returns the format of a file that has this name and begins so, in [`BEGINNING`] bytes or more. What the bytes say comes first.
pub fn format_of(name: &str, begin: &[u8]) -> Option<Format> {
    by_begin(begin).or_else(|| by_name(name))
}

fn by_begin(begin: &[u8]) -> Option<Format> {
    Some(match begin {
        [b'C', b'D', b'F', 1 | 2 | 5, ..] => Format::Netcdf3,
        [b'S', b'I', b'M', b'P', b'L', b'E', b' ', b' ', b'=', ..] => Format::Fits,
        [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => Format::Tiff,
        [b'P', b'A', b'R', b'1', ..] => Format::Parquet,
        [b'G', b'R', b'I', b'B', ..] => Format::Grib,
        [0xff, 0xd8, 0xff, ..] => Format::Image("jpeg"),
        [0x89, b'P', b'N', b'G', ..] => Format::Image("png"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Format::Image("webp"),
        [_, _, _, _, b'f', b't', b'y', b'p', b'h', b'e', b'i' | b'v', ..] => Format::Image("heif"),
        _ if is_hdf5(begin) => Format::Hdf5,
        _ if is_nifti_1(begin) || is_nifti_2(begin) => Format::Nifti,
        _ => return None,
    })
}

fn by_name(name: &str) -> Option<Format> {
    match name {
        "zarr.json" | ".zattrs" | ".zarray" | ".zgroup" | ".zmetadata" => return Some(Format::Zarr),
        _ if name.ends_with(".nii.gz") => return Some(Format::CompressedNifti),
        _ => {}
    }
    match name.rsplit_once('.')?.1.to_ascii_lowercase().as_str() {
        "csv" => Some(Format::Table(b',')),
        "tsv" => Some(Format::Table(b'\t')),
        "json" => Some(Format::Document("json")),
        "yaml" | "yml" => Some(Format::Document("yaml")),
        _ => None,
    }
}

fn is_hdf5(begin: &[u8]) -> bool {
    HDF5_AT.iter().any(|at| begin.get(*at..).is_some_and(|rest| rest.starts_with(HDF5)))
}

/// Tells whether a file that begins so has the first kind of header of NIfTI.
pub fn is_nifti_1(begin: &[u8]) -> bool {
    matches!(begin.get(NIFTI_1), Some(b"n+1\0" | b"ni1\0"))
}

/// Tells whether a file that begins so has the second kind of header of NIfTI.
pub fn is_nifti_2(begin: &[u8]) -> bool {
    matches!(begin.get(NIFTI_2), Some(b"n+2\0\r\n\x1a\n" | b"ni2\0\r\n\x1a\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_come_before_the_name_and_may_be_few() {
        let mut behind_a_block = vec![b'x'; 4096];
        behind_a_block.extend_from_slice(HDF5);
        assert_eq!(behind_a_block.len(), BEGINNING);
        for (name, begin, format) in [
            ("x.csv", HDF5, Some(Format::Hdf5)),
            ("x.csv", &behind_a_block, Some(Format::Hdf5)),
            ("x.csv", &behind_a_block[..BEGINNING - 1], Some(Format::Table(b','))),
            ("x.TSV", b"", Some(Format::Table(b'\t'))),
            (".zattrs", b"{}", Some(Format::Zarr)),
            ("x.zattrs", b"{}", None),
            ("x.nii.gz", b"\x1f\x8b", Some(Format::CompressedNifti)),
            ("x.json", b"CDF\x01", Some(Format::Netcdf3)),
            ("x.nc", b"CDF\x03", None),
            ("csv", b"", None),
        ] {
            assert_eq!(format_of(name, begin), format, "{name} {begin:?}");
        }
    }
}
