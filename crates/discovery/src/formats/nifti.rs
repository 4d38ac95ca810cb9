//! NIfTI-1: the header of a volume, also where the file is compressed as a whole.

use std::io::Read as _;

use flate2::read::GzDecoder;
use nifti::NiftiHeader;
use percale_core::AttributeValue;

use super::{Unreadable, single, text_of};
use crate::header::{Header, unsigned};
use crate::source::File;

/// Bytes of a header, and of what says whether others stand behind it.
const HEADER: usize = 352;

/// Where the header says what it is, and how.
const MAGIC: std::ops::Range<usize> = 344..348;

/// Returns the header if the file begins with one.
pub(super) fn find(file: &File, name: &str) -> Result<Option<Vec<u8>>, Unreadable> {
    let begin = match name.ends_with(".nii.gz") {
        true => {
            let mut begin = Vec::new();
            GzDecoder::new(file.reader()).take(HEADER as u64).read_to_end(&mut begin)?;
            begin
        }
        false => file.beginning(HEADER)?,
    };
    let is_nifti = matches!(begin.get(MAGIC), Some(b"n+1\0" | b"ni1\0"));
    Ok(is_nifti.then_some(begin))
}

/// Reads a header.
pub(super) fn read(begin: &[u8]) -> Result<Header, Unreadable> {
    let nifti = NiftiHeader::from_reader(begin).map_err(|error| Unreadable::new(error.to_string()))?;
    let mut header = Header::of_format("nifti");
    let dim = nifti.dim().map_err(|error| Unreadable::new(error.to_string()))?;
    let kind =
        nifti.data_type().map_or_else(|_| "other".to_owned(), |kind| format!("{kind:?}").to_lowercase());
    header.text("datatype", kind);
    header.add("dim", dim.iter().map(|size| unsigned((*size).into())));
    header.add("pixdim", nifti.pixdim.iter().skip(1).take(dim.len()).map(|size| single(*size)));
    if let Ok((space, time)) = nifti.xyzt_units() {
        header.text("space_unit", format!("{space:?}").to_lowercase());
        header.text("time_unit", format!("{time:?}").to_lowercase());
    }
    for (name, bytes) in [
        ("descrip", nifti.descrip.as_slice()),
        ("aux_file", &nifti.aux_file),
        ("intent_name", &nifti.intent_name),
    ] {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        header.text(name, text_of(bytes.get(..end).unwrap_or_default()).trim());
    }
    for (name, number) in [
        ("scl_slope", nifti.scl_slope),
        ("scl_inter", nifti.scl_inter),
        ("cal_min", nifti.cal_min),
        ("cal_max", nifti.cal_max),
        ("toffset", nifti.toffset),
    ] {
        header.add(name, [single(number)]);
    }
    for (name, code) in [
        ("intent_code", nifti.intent_code),
        ("qform_code", nifti.qform_code),
        ("sform_code", nifti.sform_code),
    ] {
        header.add(name, [AttributeValue::Integer(code.into())]);
    }
    Ok(header)
}
