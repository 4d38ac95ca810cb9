//! NIfTI-1 and NIfTI-2: the header of a volume, also where the file is compressed as a whole.

use std::io::Read as _;

use flate2::read::GzDecoder;
use nifti::NiftiHeader;
use percale_core::AttributeValue;
use percale_core::attribute::Float;

use super::{Unreadable, single, text_of};
use crate::header::{Header, unsigned};
use crate::recognise::{is_nifti_1, is_nifti_2};
use crate::source::File;

/// Bytes of the longer of the headers, that of NIfTI-2.
const HEADER: usize = 540;

/// Reads the header at the beginning of a file.
pub(super) fn read(file: &File) -> Result<Header, Unreadable> {
    header(&file.beginning(HEADER)?)
}

/// Reads the header of a file that is compressed as a whole; nothing if it has none.
pub(super) fn read_compressed(file: &File) -> Result<Option<Header>, Unreadable> {
    let mut begin = Vec::new();
    GzDecoder::new(file.reader()).take(HEADER as u64).read_to_end(&mut begin)?;
    (is_nifti_1(&begin) || is_nifti_2(&begin)).then(|| header(&begin)).transpose()
}

fn header(begin: &[u8]) -> Result<Header, Unreadable> {
    if is_nifti_2(begin) {
        return second(begin).ok_or_else(|| Unreadable::new("its header is not whole"));
    }
    let nifti = NiftiHeader::from_reader(begin).map_err(|error| Unreadable::new(error.to_string()))?;
    let dim = nifti.dim().map_err(|error| Unreadable::new(error.to_string()))?;
    let mut header = Header::of_format("nifti");
    header.add("dim", dim.iter().map(|size| unsigned((*size).into())));
    header.add("pixdim", nifti.pixdim.iter().skip(1).take(dim.len()).map(|size| single(*size)));
    codes(&mut header, &nifti);
    for (name, number) in [
        ("scl_slope", nifti.scl_slope),
        ("scl_inter", nifti.scl_inter),
        ("cal_min", nifti.cal_min),
        ("cal_max", nifti.cal_max),
        ("toffset", nifti.toffset),
    ] {
        header.add(name, [single(number)]);
    }
    Ok(header)
}

/// Reads a header of NIfTI-2, which has the fields of NIfTI-1 in other places and wider
/// (<https://nifti.nimh.nih.gov/pub/dist/doc/nifti2.h>).
fn second(begin: &[u8]) -> Option<Header> {
    let is_little = begin.first_chunk::<4>().map(|size| i32::from_le_bytes(*size))? == HEADER as i32;
    let bytes = |at: usize| {
        let mut bytes: [u8; 8] = begin.get(at..at + 8)?.try_into().ok()?;
        if !is_little {
            bytes.reverse();
        }
        Some(bytes)
    };
    let long = |at| bytes(at).map(i64::from_le_bytes);
    let float = |at| bytes(at).map(f64::from_le_bytes);
    // The bytes that come first are the lower ones, or were the last of eight.
    let int =
        |at: usize| bytes(if is_little { at } else { at - 4 }).map(|all| i64::from_le_bytes(all) as i32);
    let short =
        |at: usize| bytes(if is_little { at } else { at - 6 }).map(|all| i64::from_le_bytes(all) as i16);
    let dims = usize::try_from(long(16)?).ok().filter(|dims| (1..=7).contains(dims))?;
    let mut header = Header::of_format("nifti2");
    for (name, read) in [("dim", 16_usize), ("pixdim", 104)] {
        let values: Option<Vec<AttributeValue>> = (1..=dims)
            .map(|n| match name {
                "dim" => long(read + 8 * n).map(AttributeValue::Integer),
                _ => float(read + 8 * n).map(|size| AttributeValue::Float(Float(size))),
            })
            .collect();
        header.add(name, values?);
    }
    let mut fields = NiftiHeader {
        datatype: short(12)?,
        xyzt_units: u8::try_from(int(500)?).unwrap_or_default(),
        intent_code: i16::try_from(int(504)?).unwrap_or_default(),
        qform_code: i16::try_from(int(344)?).unwrap_or_default(),
        sform_code: i16::try_from(int(348)?).unwrap_or_default(),
        descrip: begin.get(240..320)?.to_vec(),
        ..NiftiHeader::default()
    };
    fields.aux_file = begin.get(320..344)?.try_into().ok()?;
    fields.intent_name = begin.get(508..524)?.try_into().ok()?;
    codes(&mut header, &fields);
    for (name, at) in
        [("scl_slope", 176), ("scl_inter", 184), ("cal_min", 200), ("cal_max", 192), ("toffset", 216)]
    {
        header.add(name, [AttributeValue::Float(Float(float(at)?))]);
    }
    Some(header)
}

/// Adds what both versions have as codes and texts.
fn codes(header: &mut Header, nifti: &NiftiHeader) {
    let kind =
        nifti.data_type().map_or_else(|_| "other".to_owned(), |kind| format!("{kind:?}").to_lowercase());
    header.text("datatype", kind);
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
    for (name, code) in [
        ("intent_code", nifti.intent_code),
        ("qform_code", nifti.qform_code),
        ("sform_code", nifti.sform_code),
    ] {
        header.add(name, [AttributeValue::Integer(code.into())]);
    }
}
