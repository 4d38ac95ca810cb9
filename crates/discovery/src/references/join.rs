//! One array of those of many files, behind each other along a dimension.

use serde_json::{Map, Value};

use super::part::{Array, Placed};
use super::{ArrayMeta, MergeError, inline};

/// Bytes of a chunk of values that stand in the references.
const PIECE: u64 = 1 << 20;
/// Most chunks of all files together.
pub(super) const MAX_JOINED: u64 = 20_000_000;

/// An array of the store of many files.
#[derive(Debug)]
pub(super) struct Out {
    pub meta: ArrayMeta,
    pub dimensions: Vec<String>,
    pub attributes: Map<String, Value>,
    /// Chunks that are ranges, each with the number of its file.
    pub ranges: Vec<(u32, Placed)>,
    /// Chunks that stand in the references.
    pub texts: Vec<(u64, String)>,
}

/// An array of one of the files.
#[derive(Debug, Clone, Copy)]
pub(super) struct Of<'a> {
    /// The number of the file.
    pub file: u32,
    /// What it is called.
    pub name: &'a str,
    pub array: &'a Array,
}

impl Out {
    /// Takes an array as it is in one file.
    pub fn of(file: u32, array: &Array) -> Self {
        if let Some(values) = &array.values {
            return Self::whole(array, array.meta.shape.clone(), values);
        }
        let ranges = array.ranges.iter().map(|placed| (file, *placed)).collect();
        Self { ranges, texts: array.texts.clone(), ..Self::like(array, array.meta.clone()) }
    }

    fn like(array: &Array, meta: ArrayMeta) -> Self {
        let (dimensions, attributes) = (array.dimensions.clone(), array.attributes.clone());
        Self { meta, dimensions, attributes, ranges: Vec::new(), texts: Vec::new() }
    }

    /// Makes an array whose values stand in the references.
    fn whole(array: &Array, shape: Vec<u64>, values: &[u8]) -> Self {
        let mut meta = ArrayMeta::plain(shape, array.meta.dtype.clone());
        meta.fill_value = array.meta.fill_value.clone();
        let mut out = Self::like(array, meta);
        if out.meta.shape.contains(&0) {
            return out;
        }
        if let (Some(_), Some(first)) = (out.meta.item_size(), out.meta.shape.first().copied()) {
            let row = (values.len() as u64 / first).max(1);
            let rows = (PIECE / row).clamp(1, first);
            out.meta.chunks.first_mut().into_iter().for_each(|chunk| *chunk = rows);
            let piece = usize::try_from(rows * row).unwrap_or(usize::MAX);
            out.texts = values.chunks(piece).zip(0..).map(|(bytes, n)| (n, padded(bytes, piece))).collect();
        } else {
            out.texts = vec![(0, inline(values))];
        }
        out
    }
}

/// Chunks are all of one size; what is behind the end of the array is not looked at.
fn padded(bytes: &[u8], len: usize) -> String {
    let mut bytes = bytes.to_vec();
    bytes.resize(len, 0);
    inline(&bytes)
}

/// Puts arrays behind each other along an axis; they agree in all but their lengths along it, and in their chunks.
///
/// # Errors
/// Their chunks do not fit behind each other.
pub(super) fn join(path: &str, arrays: &[Of<'_>], axis: usize) -> Result<Out, MergeError> {
    let first = arrays.first().ok_or_else(|| MergeError::new(format!("no file has {path}")))?;
    let mut shape = first.array.meta.shape.clone();
    let total = arrays.iter().try_fold(0u64, |total, of| total.checked_add(of.array.len(axis)));
    let total = total.ok_or_else(|| MergeError::new(format!("{path} is too long")))?;
    shape.get_mut(axis).into_iter().for_each(|len| *len = total);
    if let Some(values) = values(arrays, axis) {
        return Ok(Out::whole(first.array, shape, &values));
    }
    let arrays: Vec<Of<'_>> = arrays.iter().filter(|of| of.array.len(axis) > 0).copied().collect();
    match misfit(path, &arrays, axis) {
        None => {
            let chunk = first.array.meta.chunks.get(axis).copied().unwrap_or(1);
            Ok(shifted(&arrays, shape, axis, chunk, |_, placed| vec![placed]))
        }
        Some(why) => by_rows(&arrays, &shape, axis).ok_or(why),
    }
}

/// Returns the values of all, if they are known.
fn values(arrays: &[Of<'_>], axis: usize) -> Option<Vec<u8>> {
    let all: Vec<&[u8]> = arrays.iter().map(|of| of.array.values.as_deref()).collect::<Option<_>>()?;
    let first = arrays.first()?.array;
    if first.meta.is_text() {
        // How many there are stands before them.
        (first.meta.shape.len() == 1).then_some(())?;
        let count: u64 = arrays.iter().map(|of| of.array.len(axis)).sum();
        let mut joined = u32::try_from(count).ok()?.to_le_bytes().to_vec();
        for values in all {
            joined.extend_from_slice(values.get(4..)?);
        }
        return Some(joined);
    }
    let outer: u64 = first.meta.shape.iter().take(axis).product();
    let mut joined = Vec::with_capacity(all.iter().map(|values| values.len()).sum());
    for row in 0..usize::try_from(outer).ok()? {
        for values in &all {
            let len = values.len() / usize::try_from(outer).ok()?;
            joined.extend_from_slice(values.get(row * len..(row + 1) * len)?);
        }
    }
    Some(joined)
}

/// Says why chunks do not fit behind each other as they are.
fn misfit(path: &str, arrays: &[Of<'_>], axis: usize) -> Option<MergeError> {
    let (first, rest) = arrays.split_first()?;
    for other in rest {
        let (a, b) = (&first.array.meta, &other.array.meta);
        let what = if a.chunks != b.chunks {
            format!("chunks of {:?} in {} and of {:?} in {}", a.chunks, first.name, b.chunks, other.name)
        } else if a.filters != b.filters {
            let said = |meta: &ArrayMeta| match &meta.filters {
                Some(filters) => Value::Array(filters.clone()).to_string(),
                None => "nothing".to_owned(),
            };
            format!("chunks packed with {} in {} and with {} in {}", said(a), first.name, said(b), other.name)
        } else {
            continue;
        };
        return Some(MergeError::new(format!("{path} has {what}: they cannot be one array")));
    }
    let chunk = first.array.meta.chunks.get(axis).copied().unwrap_or(1);
    let (_, before) = arrays.split_last()?;
    let (at, odd) = before.iter().enumerate().find(|(_, of)| of.array.len(axis) % chunk != 0)?;
    let next = arrays.get(at + 1).map_or("", |of| of.name);
    let dimension = first.array.dimensions.get(axis).map_or("", String::as_str);
    Some(MergeError::new(format!(
        "{path} has {} steps of {dimension} in {}, in chunks of {chunk}: {next} cannot follow within a chunk",
        odd.array.len(axis),
        odd.name,
    )))
}

/// Puts the chunks of each file behind those of the files before. `split` may make several of one, and says where they are in the file's
/// own grid of chunks that are `chunk` long.
fn shifted(
    arrays: &[Of<'_>],
    shape: Vec<u64>,
    axis: usize,
    chunk: u64,
    split: impl Fn(&Array, Placed) -> Vec<Placed>,
) -> Out {
    let mut meta = arrays.first().map_or(ArrayMeta::plain(Vec::new(), "|u1"), |of| of.array.meta.clone());
    meta.shape = shape;
    meta.chunks.get_mut(axis).into_iter().for_each(|len| *len = chunk);
    let grid: Vec<u64> = meta.grid().collect();
    let inner: u64 = grid.iter().skip(axis + 1).product();
    let all = grid.get(axis).copied().unwrap_or(1);
    let (mut ranges, mut texts, mut before) = (Vec::new(), Vec::new(), 0);
    for of in arrays {
        let along = of.array.len(axis).div_ceil(chunk);
        // The number in the grid of the file, and the one in that of all.
        let number = |number: u64| {
            let (outer, rest) = (number / (along * inner), number % (along * inner));
            (outer * all + rest / inner + before) * inner + rest % inner
        };
        for placed in of.array.ranges.iter().flat_map(|placed| split(of.array, *placed)) {
            ranges.push((of.file, Placed { number: number(placed.number), ..placed }));
        }
        texts.extend(of.array.texts.iter().map(|(n, text)| (number(*n), text.clone())));
        before += along;
    }
    let like = arrays.first().map(|of| Out::like(of.array, meta.clone()));
    let none = Out { meta, dimensions: Vec::new(), attributes: Map::new(), ranges: vec![], texts: vec![] };
    Out { ranges, texts, ..like.unwrap_or(none) }
}

/// Divides chunks whose rows lie one behind the other, as they are, into such that fit behind each other. Nothing if that cannot be done.
fn by_rows(arrays: &[Of<'_>], shape: &[u64], axis: usize) -> Option<Out> {
    let is_plain = |array: &Array| {
        array.meta.is_unpacked()
            && array.texts.is_empty()
            && array.meta.shape.iter().zip(&array.meta.chunks).skip(1).all(|(len, chunk)| len == chunk)
    };
    if axis != 0 || !arrays.iter().all(|of| is_plain(of.array)) {
        return None;
    }
    let (last, before) = arrays.split_last()?;
    let chunk_of = |of: &Of<'_>| of.array.meta.chunks.first().copied().unwrap_or(1);
    let chunk =
        before.iter().fold(chunk_of(last), |chunk, of| gcd(gcd(chunk, chunk_of(of)), of.array.len(0)));
    if chunk == 0 || shape.first()?.div_ceil(chunk) > MAX_JOINED {
        return None;
    }
    let split = |array: &Array, placed: Placed| {
        let parts = array.meta.chunks.first().copied().unwrap_or(1) / chunk;
        let (len, rows) = (placed.len / parts.max(1), array.len(0).div_ceil(chunk));
        let part = |n: u64| Placed {
            number: placed.number * parts + n,
            offset: placed.offset.saturating_add(n * len),
            len,
        };
        (0..parts).map(part).filter(|part| part.number < rows).collect()
    };
    Some(shifted(arrays, shape.to_vec(), 0, chunk, split))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
