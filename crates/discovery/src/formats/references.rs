//! Where the pieces of the arrays of a file lie, for the formats whose arrays are read as they are: HDF5 with NetCDF-4, and the classic
//! forms of NetCDF.

mod hdf5;
mod netcdf3;
mod stored;
mod types;

use std::collections::HashSet;

use percale_core::tree::GROUP_SIZE;
use serde_json::{Map, Value};

use super::Unreadable;
use crate::recognise::{BEGINNING, Format, format_of};
use crate::references::{
    ArrayMeta, LeftOut, MAX_CHUNKS, Reference, References, TEXTS, chunk_key, index_of, inline,
};
use crate::source::File;

/// Bytes of keys, and of what stands at them, with room below the longest frame for how JSON writes them.
const MAX_TEXT: usize = 36 << 20;
/// Bytes of attributes.
const MAX_ATTRIBUTES: usize = 2 << 20;
/// Bytes that a range takes, as JSON.
const RANGE: usize = 44;
/// Most arrays that are named with a reason.
const MAX_LEFT_OUT: usize = 1000;
/// Bytes of the values of a coordinate that are read, which whoever opens the store reads at once.
const MAX_COORDINATE: u64 = 512 << 10;
/// Bytes of the values of another array that are read.
const MAX_SMALL: u64 = 16 << 10;
/// Bytes of the values of one file that are read.
const MAX_VALUES: u64 = 2 << 20;
/// Groups of the file that are read for values, as a server reads and verifies them: no more than half of what may be read of one.
const MAX_BLOCKS: usize = 256;
/// Bytes of a piece of an array that lies in the file in one, so that its pieces can be read at once.
const PIECE: u64 = 16 << 20;

/// Reads where the pieces of the arrays of a file lie. Nothing if it has no format for which that can be said.
///
/// # Errors
/// What is wrong with the file, in words.
pub fn read(file: &File) -> Result<Option<References>, Unreadable> {
    match format_of("", &file.beginning(BEGINNING)?) {
        Some(Format::Netcdf3) => netcdf3::read(file).map(Some),
        Some(Format::Hdf5) => hdf5::read(file).map(Some),
        _ => Ok(None),
    }
}

/// An array as the file has it.
struct Array {
    path: String,
    dimensions: Vec<String>,
    attributes: Map<String, Value>,
    meta: ArrayMeta,
    chunks: Vec<Chunk>,
    /// Its values, if they were read.
    values: Option<Vec<u8>>,
}

/// Where a chunk is.
struct Chunk {
    index: Vec<u64>,
    place: Place,
}

enum Place {
    Range { offset: u64, len: u64 },
    Bytes(String),
}

/// References on their way out of a file, within bounds whatever the file has.
struct Gathered {
    found: References,
    file_size: u64,
    chunks: usize,
    text: usize,
    attributes: usize,
    values: u64,
    blocks: HashSet<u64>,
}

impl Gathered {
    fn new(file_size: u64) -> Self {
        let found = References::default();
        Self { found, file_size, chunks: 0, text: 0, attributes: 0, values: 0, blocks: HashSet::new() }
    }

    fn leave_out(&mut self, variable: &str, why: impl Into<String>) {
        if self.found.left_out.len() < MAX_LEFT_OUT {
            self.found.left_out.push(LeftOut { variable: variable.to_owned(), why: why.into() });
        }
    }

    /// Tells whether the values of an array are to be read, which takes these ranges, and counts them if so.
    fn wants_values(&mut self, array: &Array, bytes: u64, ranges: &[(u64, u64)]) -> bool {
        let name = array.path.rsplit('/').next().unwrap_or_default();
        let is_coordinate = matches!(&array.dimensions[..], [only] if only == name);
        let most = if is_coordinate { MAX_COORDINATE } else { MAX_SMALL };
        if bytes > most || self.values + bytes > MAX_VALUES {
            return false;
        }
        let mut blocks = HashSet::new();
        for (offset, len) in ranges {
            let last = offset.saturating_add(len.saturating_sub(1)) / GROUP_SIZE;
            for block in offset / GROUP_SIZE..=last {
                if !self.blocks.contains(&block) {
                    blocks.insert(block);
                }
                if self.blocks.len() + blocks.len() > MAX_BLOCKS {
                    return false;
                }
            }
        }
        self.blocks.extend(blocks);
        self.values += bytes;
        true
    }

    /// Adds a group with its attributes.
    fn group(&mut self, path: &str, attributes: Map<String, Value>) {
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let attributes = self.within_bounds(path, attributes);
        let added = [
            (format!("{prefix}.zgroup"), r#"{"zarr_format":2}"#.to_owned()),
            (format!("{prefix}.zattrs"), Value::Object(attributes).to_string()),
        ];
        for (key, text) in added {
            self.text += key.len() + text.len();
            self.found.refs.insert(key, Reference::Text(text));
        }
    }

    /// Adds an array, or names it as one that is left out.
    fn array(&mut self, array: Array) {
        let path = array.path.clone();
        if let Err(why) = self.try_array(array) {
            self.leave_out(&path, why);
        }
    }

    fn try_array(&mut self, mut array: Array) -> Result<(), String> {
        let path = &array.path;
        let name = path.rsplit('/').next().unwrap_or_default();
        if name.is_empty() || name.starts_with(".z") || name == "." || name == ".." {
            return Err("its name cannot be that of an array of Zarr".into());
        }
        if path.chars().any(char::is_control) {
            return Err("its name has control characters".into());
        }
        if self.found.refs.contains_key(&format!("{path}/.zarray")) {
            return Err("there are two of this name".into());
        }
        let room = MAX_CHUNKS.saturating_sub(self.chunks);
        if array.chunks.len() > room {
            let count = array.chunks.len();
            return Err(format!("there is room for {room} more chunks of the file, and it has {count}"));
        }
        let mut text = path.len();
        for Chunk { index, place } in &array.chunks {
            // Digits of the index, and the dots between.
            text += path.len() + index.len() * 8;
            text += match place {
                Place::Bytes(bytes) => bytes.len(),
                Place::Range { offset, len } => {
                    let end = offset.checked_add(*len).filter(|end| *end <= self.file_size);
                    end.ok_or("a part of it lies beyond the end of the file")?;
                    RANGE
                }
            };
        }
        let values = array.values.take().map(|bytes| inline(&bytes));
        text += values.as_ref().map_or(0, String::len);
        if self.text + text > MAX_TEXT {
            return Err("there is no room for it beside the other arrays of the file".into());
        }
        let dimensions = array.dimensions.iter().cloned().map(Value::String).collect();
        let mut attributes = self.within_bounds(path, array.attributes);
        attributes.insert("_ARRAY_DIMENSIONS".into(), Value::Array(dimensions));
        let meta = serde_json::to_string(&array.meta).map_err(|error| error.to_string())?;
        self.text += text + meta.len();
        self.chunks += array.chunks.len();
        let refs = &mut self.found.refs;
        refs.insert(format!("{path}/.zarray"), Reference::Text(meta));
        refs.insert(format!("{path}/.zattrs"), Reference::Text(Value::Object(attributes).to_string()));
        for Chunk { index, place } in array.chunks {
            let place = match place {
                Place::Range { offset, len } => Reference::Range(offset, len),
                Place::Bytes(bytes) => Reference::Text(bytes),
            };
            refs.insert(chunk_key(path, &index), place);
        }
        if let Some(values) = values {
            self.found.values.insert(path.clone(), values);
        }
        Ok(())
    }

    /// Leaves only the attributes that there is room for.
    fn within_bounds(&mut self, path: &str, attributes: Map<String, Value>) -> Map<String, Value> {
        let mut kept = Map::new();
        for (name, value) in attributes {
            let bytes = name.len() + value.to_string().len();
            if self.attributes + bytes > MAX_ATTRIBUTES {
                let path = if path.is_empty() { "/" } else { path };
                self.leave_out(path, format!("attribute {name}: there is no room for it"));
                continue;
            }
            self.attributes += bytes;
            kept.insert(name, value);
        }
        kept
    }
}

impl Array {
    /// Makes it an array whose one chunk stands in the references.
    fn in_place(&mut self, bytes: &[u8]) {
        let fill_value = std::mem::take(&mut self.meta.fill_value);
        self.meta = ArrayMeta {
            fill_value,
            ..ArrayMeta::plain(std::mem::take(&mut self.meta.shape), std::mem::take(&mut self.meta.dtype))
        };
        self.values = None;
        self.chunks.clear();
        if !self.meta.shape.contains(&0) {
            let index = vec![0; self.meta.shape.len()];
            self.chunks.push(Chunk { index, place: Place::Bytes(inline(bytes)) });
        }
    }
}

/// Writes texts as the codec of texts of any length does: how many there are, and each with its length before it.
fn packed_texts(texts: &[String]) -> Option<Vec<u8>> {
    debug_assert_eq!(TEXTS, "vlen-utf8");
    let length = |len: usize| u32::try_from(len).ok().map(u32::to_le_bytes);
    let mut bytes = length(texts.len())?.to_vec();
    for text in texts {
        bytes.extend(length(text.len())?);
        bytes.extend(text.as_bytes());
    }
    Some(bytes)
}

/// Divides an array whose values lie in one piece into pieces that can be read at once. All are of one size, as chunks are; an array that
/// cannot be divided in this way stays whole.
fn divided(shape: &[u64], item: u64) -> Vec<u64> {
    let mut chunks: Vec<u64> = shape.iter().map(|len| (*len).max(1)).collect();
    for axis in 0..chunks.len() {
        let behind = chunks.iter().skip(axis + 1).fold(item, |row, len| row.saturating_mul(*len));
        let Some(len) = chunks.get_mut(axis) else { break };
        if behind.saturating_mul(*len) <= PIECE {
            break;
        }
        if behind > PIECE {
            *len = 1;
            continue;
        }
        let most = PIECE / behind;
        let (mut below, mut above) = (1, *len);
        for divisor in
            (1..).take_while(|divisor| divisor * divisor <= *len).filter(|divisor| *len % divisor == 0)
        {
            for divisor in [divisor, *len / divisor] {
                if divisor <= most {
                    below = below.max(divisor);
                } else {
                    above = above.min(divisor);
                }
            }
        }
        // Pieces that are much too small cost more than those that are too large.
        *len = if below * behind >= PIECE / 16 { below } else { above };
        break;
    }
    chunks
}

/// Returns the chunks of an array whose values lie in one piece of the file.
fn pieces(meta: &ArrayMeta, offset: u64, item: u64) -> Vec<Chunk> {
    let grid: Vec<u64> = meta.grid().collect();
    let len = meta.chunks.iter().fold(item, |len, chunk| len.saturating_mul(*chunk));
    let count = grid.iter().fold(1u64, |count, along| count.saturating_mul(*along));
    let mut chunks = Vec::new();
    for n in 0..count.min(MAX_CHUNKS as u64 + 1) {
        let place = Place::Range { offset: offset.saturating_add(n.saturating_mul(len)), len };
        chunks.push(Chunk { index: index_of(n, &grid), place });
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_one_piece_is_divided_evenly() {
        assert_eq!(divided(&[], 8), Vec::<u64>::new());
        assert_eq!(divided(&[1000, 1000], 8), [1000, 1000]);
        // 30 rows of 8 MB: two of them are a piece.
        assert_eq!(divided(&[30, 1000, 1000], 8), [2, 1000, 1000]);
        assert_eq!(divided(&[31, 1000, 1000], 8), [1, 1000, 1000]);
        // 80 MB in one row each, then 1000 rows of 8 kB.
        assert_eq!(divided(&[5, 10_000, 1000], 8), [1, 2000, 1000]);
        // A prime number of small rows stays whole.
        assert_eq!(divided(&[10_000_019], 8), [10_000_019]);
        assert_eq!(divided(&[0, 5], 8), [1, 5]);
    }

    #[test]
    fn pieces_lie_one_behind_the_other() {
        let mut meta = ArrayMeta::plain(vec![2, 4], "<f4");
        meta.chunks = vec![1, 2];
        let places: Vec<(String, u64, u64)> = pieces(&meta, 100, 4)
            .into_iter()
            .map(|chunk| match chunk.place {
                Place::Range { offset, len } => (chunk_key("x", &chunk.index), offset, len),
                Place::Bytes(_) => unreachable!(),
            })
            .collect();
        assert_eq!(places[3], ("x/1.1".to_owned(), 124, 8));
        assert_eq!(places[1], ("x/0.1".to_owned(), 108, 8));
    }

    #[test]
    fn what_there_is_no_room_for_is_left_out_by_name() {
        let mut gathered = Gathered::new(1000);
        let array = |path: &str, offset: u64, count: u64| Array {
            path: path.into(),
            dimensions: vec!["x".into()],
            attributes: Map::new(),
            meta: ArrayMeta::plain(vec![count], "|u1"),
            chunks: (0..count)
                .map(|n| Chunk { index: vec![n], place: Place::Range { offset, len: 1 } })
                .collect(),
            values: None,
        };
        gathered.array(array("a", 999, 1));
        gathered.array(array("beyond", 1000, 1));
        gathered.array(array("a", 0, 1));
        gathered.array(array(".zarray", 0, 1));
        gathered.array(array("many", 0, MAX_CHUNKS as u64));
        let names: Vec<&str> = gathered.found.left_out.iter().map(|one| one.variable.as_str()).collect();
        assert_eq!(names, ["beyond", "a", ".zarray", "many"]);
        assert_eq!(gathered.found.refs["a/0"], Reference::Range(999, 1));
    }
}
