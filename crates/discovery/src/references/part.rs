//! The store of one file, in the form in which those of many are joined.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{ArrayMeta, LeftOut, MergeError, Reference, References, inlined};

/// The store of one file.
#[derive(Debug)]
pub struct Part {
    /// What the file is called.
    pub(super) name: String,
    /// Where its bytes are.
    pub(super) url: String,
    /// The attributes of its groups, by their paths.
    pub(super) groups: BTreeMap<String, Map<String, Value>>,
    pub(super) arrays: BTreeMap<String, Array>,
    /// Arrays that it should have and has not, with the reason.
    pub(super) left_out: BTreeMap<String, String>,
    /// What is missing of arrays that it has.
    pub(super) missing: Vec<LeftOut>,
}

/// An array of one file.
#[derive(Debug)]
pub(super) struct Array {
    pub meta: ArrayMeta,
    pub dimensions: Vec<String>,
    pub attributes: Map<String, Value>,
    /// Chunks that are ranges of the file.
    pub ranges: Vec<Placed>,
    /// Chunks that stand in the references.
    pub texts: Vec<(u64, String)>,
    /// Its values, if they are known.
    pub values: Option<Vec<u8>>,
}

/// A chunk that is a range of a file. Its number counts chunks row by row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    pub number: u64,
    pub offset: u64,
    pub len: u64,
}

impl Part {
    /// Takes the references of a file, which has a name in what is said to people, and an address.
    ///
    /// # Errors
    /// They are not such references.
    pub fn new(
        name: impl Into<String>,
        url: impl Into<String>,
        references: References,
    ) -> Result<Self, MergeError> {
        let (name, url) = (name.into(), url.into());
        let wrong =
            |what: &str| MergeError::new(format!("the references of {name} are not understood: {what}"));
        let References { refs, mut values, left_out } = references;
        let (mut groups, mut arrays) = (BTreeMap::new(), BTreeMap::new());
        for (key, reference) in &refs {
            let (path, last) = key.rsplit_once('/').unwrap_or(("", key));
            let Reference::Text(text) = reference else { continue };
            let attributes = || -> Result<Map<String, Value>, MergeError> {
                let key = if path.is_empty() { ".zattrs".to_owned() } else { format!("{path}/.zattrs") };
                match refs.get(&key) {
                    Some(Reference::Text(text)) => serde_json::from_str(text).map_err(|_| wrong(&key)),
                    _ => Ok(Map::new()),
                }
            };
            match last {
                ".zgroup" => drop(groups.insert(path.to_owned(), attributes()?)),
                ".zarray" => {
                    let meta: ArrayMeta = serde_json::from_str(text).map_err(|_| wrong(key))?;
                    let array = Array::new(meta, attributes()?).ok_or_else(|| wrong(key))?;
                    arrays.insert(path.to_owned(), array);
                }
                _ => {}
            }
        }
        for (key, reference) in refs {
            let (path, last) = key.rsplit_once('/').unwrap_or(("", &key));
            if matches!(last, ".zgroup" | ".zarray" | ".zattrs") {
                continue;
            }
            let array = arrays.get_mut(path).ok_or_else(|| wrong(&key))?;
            let number = array.number(last).ok_or_else(|| wrong(&key))?;
            match reference {
                Reference::Range(offset, len) => array.ranges.push(Placed { number, offset, len }),
                Reference::Text(text) => array.texts.push((number, text)),
            }
        }
        for (path, array) in &mut arrays {
            array.ranges.sort_unstable_by_key(|placed| placed.number);
            array.values = match (values.remove(path), &array.texts[..]) {
                (Some(text), _) => inlined(&text),
                (None, [(0, text)])
                    if (array.meta.is_unpacked() || array.meta.is_text())
                        && array.meta.grid().all(|along| along == 1) =>
                {
                    inlined(text)
                }
                _ => None,
            };
            array.values = array.values.take().filter(|values| array.has_size(values));
        }
        let (missing, left_out): (Vec<LeftOut>, Vec<LeftOut>) =
            left_out.into_iter().partition(|one| arrays.contains_key(&one.variable));
        let left_out = left_out.into_iter().map(|one| (one.variable, one.why)).collect();
        Ok(Self { name, url, groups, arrays, left_out, missing })
    }
}

impl Array {
    fn new(meta: ArrayMeta, mut attributes: Map<String, Value>) -> Option<Self> {
        let dimensions = match attributes.remove("_ARRAY_DIMENSIONS")? {
            Value::Array(names) => {
                names.into_iter().map(|name| name.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()?
            }
            _ => return None,
        };
        let rank = meta.shape.len();
        let is_sound = meta.zarr_format == 2
            && meta.order == 'C'
            && meta.compressor.is_none()
            && meta.chunks.len() == rank
            && dimensions.len() == rank
            && meta.chunks.iter().all(|chunk| *chunk > 0)
            && (meta.is_text() || meta.item_size().is_some());
        let count = meta.shape.iter().try_fold(16u64, |count, len| count.checked_mul((*len).max(1)));
        count.filter(|_| is_sound)?;
        let (ranges, texts) = (Vec::new(), Vec::new());
        Some(Self { meta, dimensions, attributes, ranges, texts, values: None })
    }

    /// Reads the number of a chunk from the last part of its key.
    fn number(&self, last: &str) -> Option<u64> {
        if self.meta.shape.is_empty() {
            return (last == "0").then_some(0);
        }
        let mut number = 0u64;
        let mut grid = self.meta.grid();
        for at in last.split('.') {
            let (at, along) = (at.parse::<u64>().ok()?, grid.next()?);
            number = number.checked_mul(along)?.checked_add(at).filter(|_| at < along)?;
        }
        grid.next().is_none().then_some(number)
    }

    fn has_size(&self, values: &[u8]) -> bool {
        match self.meta.item_size() {
            Some(item) => {
                let bytes = self.meta.shape.iter().try_fold(item, |bytes, len| bytes.checked_mul(*len));
                bytes == Some(values.len() as u64)
            }
            None => self.meta.is_text() && values.len() >= 4,
        }
    }

    /// Tells along which of its dimensions one lies.
    pub fn axis(&self, dimension: &str) -> Option<usize> {
        self.dimensions.iter().position(|name| name == dimension)
    }

    /// Returns how long it is along one of its dimensions.
    pub fn len(&self, axis: usize) -> u64 {
        self.meta.shape.get(axis).copied().unwrap_or_default()
    }

    /// Reads one of its values as a number, the first or the last, if they are known.
    pub fn end(&self, is_first: bool) -> Option<f64> {
        let item = usize::try_from(self.meta.item_size()?).ok()?;
        let values = self.values.as_ref()?;
        let value =
            if is_first { values.get(..item)? } else { values.get(values.len().checked_sub(item)?..)? };
        let mut value = value.to_vec();
        if self.meta.dtype.starts_with('>') {
            value.reverse();
        }
        Some(match (self.meta.dtype.get(1..2)?, item) {
            ("f", 8) => f64::from_le_bytes(value.try_into().ok()?),
            ("f", 4) => f32::from_le_bytes(value.try_into().ok()?).into(),
            ("i" | "u", 1..=8) => {
                let is_negative = self.meta.dtype.get(1..2)? == "i" && value.last()? & 0x80 != 0;
                let mut whole = [if is_negative { 0xff } else { 0 }; 8];
                whole.get_mut(..item)?.copy_from_slice(&value);
                match is_negative {
                    true => i64::from_le_bytes(whole) as f64,
                    false => u64::from_le_bytes(whole) as f64,
                }
            }
            _ => return None,
        })
    }
}
