//! Where the pieces of the arrays of a file lie: the keys of a store of Zarr 2, whose metadata is spelled out and whose chunks are ranges of
//! the file.
//!
//! Participants: who reads the file (`formats::references`), a server that hands it on, and a client that makes one store of many
//! ([`merge`], [`Merged::write`]) in the form that kerchunk gave it (<https://fsspec.github.io/kerchunk/spec.html>, version 1).
//! Goal: who has the store reads the values by ranges of bytes, without any knowledge of the format. Non-goal: values that must be
//! changed on the way; an array of which only a piece cannot be said in this way is left out as a whole, by name.

mod join;
mod merge;
mod part;
mod write;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use merge::{MergeError, MergeOptions, Merged, merge};
pub use part::Part;

/// Most chunks of one file.
pub const MAX_CHUNKS: usize = 1_000_000;

/// The store of one file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct References {
    /// What stands at the keys of the store.
    pub refs: BTreeMap<String, Reference>,
    /// The values of small arrays, as [`inline`] writes bytes: in the type of the array, row by row.
    #[serde(default)]
    pub values: BTreeMap<String, String>,
    /// What could not be said in this way.
    #[serde(default)]
    pub left_out: Vec<LeftOut>,
}

/// What stands at a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Reference {
    /// The thing itself: metadata as JSON, or bytes as [`inline`] writes them.
    Text(String),
    /// A range of the file: where it begins, and its bytes.
    Range(u64, u64),
}

/// An array that the store has not, or not as the file has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Its path.
    pub variable: String,
    /// Why.
    pub why: String,
}

/// The `.zarray` of an array (<https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html>).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArrayMeta {
    /// 2.
    pub zarr_format: u8,
    /// How long it is along each dimension.
    pub shape: Vec<u64>,
    /// How long a chunk is.
    pub chunks: Vec<u64>,
    /// The type of a value, as NumPy writes it.
    pub dtype: String,
    /// What the chunks were packed with in the end; always nothing here, as `filters` says it all.
    pub compressor: Option<Value>,
    /// What was done to the chunks, in this order.
    pub filters: Option<Vec<Value>>,
    /// The value where there is no chunk, and which counts as missing.
    pub fill_value: Value,
    /// `C`: row by row.
    pub order: char,
}

/// The codec of texts of any length.
pub(crate) const TEXTS: &str = "vlen-utf8";

impl ArrayMeta {
    /// Describes an array that is one chunk of bytes as they are.
    pub fn plain(shape: Vec<u64>, dtype: impl Into<String>) -> Self {
        let chunks = shape.iter().map(|len| (*len).max(1)).collect();
        let dtype = dtype.into();
        let is_text = dtype == "|O";
        Self {
            zarr_format: 2,
            shape,
            chunks,
            dtype,
            compressor: None,
            filters: is_text.then(|| vec![serde_json::json!({ "id": TEXTS })]),
            fill_value: Value::Null,
            order: 'C',
        }
    }

    /// Returns the bytes of a value; nothing for texts of any length.
    pub fn item_size(&self) -> Option<u64> {
        self.dtype.get(2..)?.parse().ok().filter(|size| *size > 0 && !self.is_text())
    }

    /// Tells whether it has texts of any length.
    pub fn is_text(&self) -> bool {
        self.dtype == "|O"
    }

    /// Tells whether the chunks are values as they are.
    pub fn is_unpacked(&self) -> bool {
        self.compressor.is_none() && self.filters.as_ref().is_none_or(Vec::is_empty) && !self.is_text()
    }

    /// Returns how many chunks there are along each dimension.
    pub fn grid(&self) -> impl Iterator<Item = u64> {
        self.shape.iter().zip(&self.chunks).map(|(len, chunk)| len.div_ceil((*chunk).max(1)))
    }
}

/// Returns the key of a chunk of an array.
pub fn chunk_key(path: &str, index: &[u64]) -> String {
    use std::fmt::Write as _;
    let mut key = format!("{path}/");
    for (n, at) in index.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = write!(key, "{}{at}", if n == 0 { "" } else { "." });
    }
    if index.is_empty() {
        key.push('0');
    }
    key
}

/// Returns where the chunk of a number is along each dimension.
pub(crate) fn index_of(mut number: u64, grid: &[u64]) -> Vec<u64> {
    let mut index = vec![0; grid.len()];
    for (at, along) in index.iter_mut().zip(grid).rev() {
        *at = number % (*along).max(1);
        number /= (*along).max(1);
    }
    index
}

/// How the text of bytes begins.
const BASE64: &str = "base64:";

/// Writes bytes as the text of a reference.
pub fn inline(bytes: &[u8]) -> String {
    use base64::Engine as _;
    let mut text = BASE64.to_owned();
    base64::engine::general_purpose::STANDARD.encode_string(bytes, &mut text);
    text
}

/// Reads what [`inline`] wrote; nothing for another text.
pub fn inlined(text: &str) -> Option<Vec<u8>> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text.strip_prefix(BASE64)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_written_as_kerchunk_has_them() {
        let mut references = References::default();
        references.refs.insert(chunk_key("a/b", &[1, 20]), Reference::Range(7, 9));
        references.refs.insert(chunk_key("c", &[]), Reference::Text(inline(b"\0\xff")));
        let json = serde_json::to_string(&references).unwrap();
        assert_eq!(json, r#"{"refs":{"a/b/1.20":[7,9],"c/0":"base64:AP8="},"values":{},"left_out":[]}"#);
        assert_eq!(serde_json::from_str::<References>(&json).unwrap(), references);
        assert_eq!(inlined("base64:AP8="), Some(vec![0, 255]));
        assert_eq!(inlined("{}"), None);
    }

    #[test]
    fn sizes_of_types() {
        let size = |dtype: &str| ArrayMeta::plain(vec![2], dtype).item_size();
        assert_eq!(
            [size("<f8"), size("|S12"), size("|O"), size("<"), size("|b1")],
            [Some(8), Some(12), None, None, Some(1)]
        );
    }
}
