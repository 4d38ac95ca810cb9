//! A writer of NetCDF classic files, in the form with 64-bit offsets (CDF-2).
//!
//! The layout is that of the NetCDF User's Guide, appendix "File Format Specifications": a header of dimensions, global
//! attributes and variables, all big-endian and padded to 4 bytes, then the data of each variable whole, then the
//! records. Written in one pass, since the header holds the offsets and all sizes are known before.
//!
//! Non-goals: reading, HDF5-based NetCDF-4, types that the samples do not use.

use std::io::{self, Write};

const TAG_DIMENSION: u32 = 10;
const TAG_VARIABLE: u32 = 11;
const TAG_ATTRIBUTE: u32 = 12;
const TYPE_CHAR: u32 = 2;
const TYPE_INT: u32 = 4;
const TYPE_FLOAT: u32 = 5;
const TYPE_DOUBLE: u32 = 6;

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Text.
    Text(String),
    /// Whole numbers.
    Ints(Vec<i32>),
    /// Single precision.
    Floats(Vec<f32>),
    /// Double precision.
    Doubles(Vec<f64>),
}

/// The type of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// Single precision, 4 bytes.
    Float,
    /// Double precision, 8 bytes.
    Double,
}

impl Type {
    const fn size(self) -> u64 {
        match self {
            Self::Float => 4,
            Self::Double => 8,
        }
    }
}

/// A named attribute.
pub type Attribute = (String, Value);

/// A dimension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dimension {
    /// Its name.
    pub name: String,
    /// Its length.
    pub len: u32,
    /// Whether it is the record dimension, along which files are appended to. At most one is.
    pub is_record: bool,
}

/// A variable, without its values.
#[derive(Debug, Clone, PartialEq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its dimensions, as indices into [`Dataset::dimensions`]; the record dimension only first.
    pub dimensions: Vec<usize>,
    /// Its type.
    pub kind: Type,
    /// Its attributes.
    pub attributes: Vec<Attribute>,
}

/// The description of a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Dataset {
    /// The dimensions.
    pub dimensions: Vec<Dimension>,
    /// The global attributes.
    pub attributes: Vec<Attribute>,
    /// The variables.
    pub variables: Vec<Variable>,
}

impl Dataset {
    /// Writes the file. `values(variable, record, out)` appends the values of a variable's one record, or all of them for
    /// a variable without the record dimension (then `record` is 0).
    ///
    /// # Errors
    /// Those of the writer, and `InvalidInput` if the description is wrong or `values` gives another number of values
    /// than the dimensions say.
    pub fn write(
        &self,
        out: &mut impl Write,
        mut values: impl FnMut(usize, u32, &mut Vec<f64>),
    ) -> io::Result<()> {
        let records =
            self.dimensions.iter().find(|dimension| dimension.is_record).map_or(0, |found| found.len);
        let sizes: Vec<u64> =
            (0..self.variables.len()).map(|index| self.piece_size(index)).collect::<io::Result<_>>()?;
        // All offsets have the same width, so a header with other offsets is as long.
        let header_len = self.header(records, &sizes, &vec![0; sizes.len()])?.len() as u64;
        let mut offsets = vec![0; sizes.len()];
        let mut at = header_len;
        for is_record in [false, true] {
            for index in 0..self.variables.len() {
                if self.is_record(index) == is_record {
                    offsets[index] = at;
                    at += sizes[index];
                }
            }
        }
        out.write_all(&self.header(records, &sizes, &offsets)?)?;
        let mut buffer = Vec::new();
        for index in (0..self.variables.len()).filter(|index| !self.is_record(*index)) {
            self.write_piece(out, index, 0, &mut buffer, &mut values)?;
        }
        for record in 0..records {
            for index in (0..self.variables.len()).filter(|index| self.is_record(*index)) {
                self.write_piece(out, index, record, &mut buffer, &mut values)?;
            }
        }
        Ok(())
    }

    fn is_record(&self, variable: usize) -> bool {
        let first = self.variables[variable].dimensions.first();
        first.is_some_and(|dimension| self.dimensions[*dimension].is_record)
    }

    fn piece_len(&self, variable: usize) -> io::Result<u64> {
        let mut len = 1;
        for (place, dimension) in self.variables[variable].dimensions.iter().enumerate() {
            let dimension =
                self.dimensions.get(*dimension).ok_or_else(|| wrong("there is no such dimension"))?;
            match (dimension.is_record, place) {
                (true, 0) => {}
                (true, _) => return Err(wrong("the record dimension must be the first")),
                (false, _) => len *= u64::from(dimension.len),
            }
        }
        Ok(len)
    }

    /// Bytes of a variable, or of one record of it. 4 and 8 bytes need no padding.
    fn piece_size(&self, variable: usize) -> io::Result<u64> {
        Ok(self.piece_len(variable)? * self.variables[variable].kind.size())
    }

    fn write_piece(
        &self,
        out: &mut impl Write,
        variable: usize,
        record: u32,
        buffer: &mut Vec<f64>,
        values: &mut impl FnMut(usize, u32, &mut Vec<f64>),
    ) -> io::Result<()> {
        buffer.clear();
        values(variable, record, buffer);
        if buffer.len() as u64 != self.piece_len(variable)? {
            return Err(wrong("the number of values does not fit the dimensions"));
        }
        let mut bytes = Vec::with_capacity(buffer.len() * 8);
        for value in buffer {
            match self.variables[variable].kind {
                Type::Float => bytes.extend_from_slice(&(*value as f32).to_be_bytes()),
                Type::Double => bytes.extend_from_slice(&value.to_be_bytes()),
            }
        }
        out.write_all(&bytes)
    }

    fn header(&self, records: u32, sizes: &[u64], offsets: &[u64]) -> io::Result<Vec<u8>> {
        let mut out = b"CDF\x02".to_vec();
        put_number(&mut out, records);
        put_list(&mut out, TAG_DIMENSION, self.dimensions.len())?;
        for dimension in &self.dimensions {
            put_name(&mut out, &dimension.name)?;
            put_number(&mut out, if dimension.is_record { 0 } else { dimension.len });
        }
        put_attributes(&mut out, &self.attributes)?;
        put_list(&mut out, TAG_VARIABLE, self.variables.len())?;
        for ((variable, size), offset) in self.variables.iter().zip(sizes).zip(offsets) {
            put_name(&mut out, &variable.name)?;
            put_number(&mut out, count(variable.dimensions.len())?);
            for dimension in &variable.dimensions {
                put_number(&mut out, count(*dimension)?);
            }
            put_attributes(&mut out, &variable.attributes)?;
            put_number(&mut out, if variable.kind == Type::Float { TYPE_FLOAT } else { TYPE_DOUBLE });
            // Readers do not rely on it where it does not fit (the specification's note on `vsize`).
            put_number(&mut out, u32::try_from(*size).unwrap_or(u32::MAX));
            out.extend_from_slice(&offset.to_be_bytes());
        }
        Ok(out)
    }
}

fn wrong(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

fn count(len: usize) -> io::Result<u32> {
    u32::try_from(len).map_err(|_| wrong("too many items for a NetCDF file"))
}

fn put_number(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_be_bytes());
}

/// An empty list has the tag 0.
fn put_list(out: &mut Vec<u8>, tag: u32, len: usize) -> io::Result<()> {
    put_number(out, if len == 0 { 0 } else { tag });
    put_number(out, count(len)?);
    Ok(())
}

fn put_padded(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn put_name(out: &mut Vec<u8>, name: &str) -> io::Result<()> {
    put_number(out, count(name.len())?);
    put_padded(out, name.as_bytes());
    Ok(())
}

fn put_attributes(out: &mut Vec<u8>, attributes: &[Attribute]) -> io::Result<()> {
    put_list(out, TAG_ATTRIBUTE, attributes.len())?;
    for (name, value) in attributes {
        put_name(out, name)?;
        let (kind, len, bytes) = match value {
            Value::Text(text) => (TYPE_CHAR, text.len(), text.as_bytes().to_vec()),
            Value::Ints(ints) => (TYPE_INT, ints.len(), ints.iter().flat_map(|v| v.to_be_bytes()).collect()),
            Value::Floats(floats) => {
                (TYPE_FLOAT, floats.len(), floats.iter().flat_map(|v| v.to_be_bytes()).collect())
            }
            Value::Doubles(values) => {
                (TYPE_DOUBLE, values.len(), values.iter().flat_map(|v| v.to_be_bytes()).collect())
            }
        };
        put_number(out, kind);
        put_number(out, count(len)?);
        put_padded(out, &bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dimension(name: &str, len: u32, is_record: bool) -> Dimension {
        Dimension { name: name.into(), len, is_record }
    }

    /// Worked out by hand from the specification: one dimension of 2, one attribute, one variable.
    #[test]
    fn a_small_file_is_byte_for_byte_as_specified() {
        let dataset = Dataset {
            dimensions: vec![dimension("x", 2, false)],
            attributes: vec![("a".into(), Value::Text("b".into()))],
            variables: vec![Variable {
                name: "v".into(),
                dimensions: vec![0],
                kind: Type::Float,
                attributes: vec![],
            }],
        };
        let mut file = Vec::new();
        dataset.write(&mut file, |_, _, out| out.extend([1.0, 2.0])).unwrap();
        let mut expected = b"CDF\x02\0\0\0\0".to_vec();
        let words =
            |numbers: &[u32]| numbers.iter().flat_map(|number| number.to_be_bytes()).collect::<Vec<_>>();
        expected.extend(words(&[10, 1, 1]));
        expected.extend(b"x\0\0\0");
        expected.extend(words(&[2, 12, 1, 1]));
        expected.extend(b"a\0\0\0");
        expected.extend(words(&[2, 1]));
        expected.extend(b"b\0\0\0");
        expected.extend(words(&[11, 1, 1]));
        expected.extend(b"v\0\0\0");
        expected.extend(words(&[1, 0, 0, 0, 5, 8, 0, 104]));
        assert_eq!(expected.len(), 104);
        expected.extend([0x3f, 0x80, 0, 0, 0x40, 0, 0, 0]);
        assert_eq!(file, expected);
    }

    #[test]
    fn wrong_descriptions_are_refused() {
        let mut dataset = Dataset {
            dimensions: vec![dimension("time", 3, true), dimension("x", 2, false)],
            attributes: vec![],
            variables: vec![Variable {
                name: "v".into(),
                dimensions: vec![1, 0],
                kind: Type::Double,
                attributes: vec![],
            }],
        };
        assert!(
            dataset.write(&mut Vec::new(), |_, _, out| out.extend([0.0; 2])).is_err(),
            "records come first"
        );
        dataset.variables[0].dimensions = vec![0, 1];
        assert!(
            dataset.write(&mut Vec::new(), |_, _, out| out.extend([0.0; 3])).is_err(),
            "one value too many"
        );
        dataset.write(&mut Vec::new(), |_, _, out| out.extend([0.0; 2])).unwrap();
        dataset.variables[0].dimensions = vec![0, 7];
        assert!(
            dataset.write(&mut Vec::new(), |_, _, out| out.extend([0.0; 2])).is_err(),
            "no such dimension"
        );
    }
}
