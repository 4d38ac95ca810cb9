//! The stores of many files as one: arrays with the dimension along which the files follow each other are joined along it, all others
//! are those of the first file.
//!
//! What is one must be of one kind: the same type, units, packing and chunks. Whatever would make other values of those that the files
//! have is an error, which names two files.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::LeftOut;
use super::join::{MAX_JOINED, Of, Out, join};
use super::part::{Array, Part};

/// The dimension along which files follow each other if nobody says.
const TIME: &str = "time";
/// Attributes that say what numbers mean.
const MEANING: [&str; 11] = [
    "units",
    "calendar",
    "scale_factor",
    "add_offset",
    "missing_value",
    "_Unsigned",
    "flag_values",
    "flag_masks",
    "flag_meanings",
    "positive",
    "standard_name",
];

/// Why files cannot be one, in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct MergeError {
    message: String,
    hint: Option<String>,
}

impl MergeError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Returns what may help.
    pub fn what_helps(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

/// How files become one.
#[derive(Debug, Clone, Default)]
pub struct MergeOptions {
    /// The dimension along which they follow each other; `time` if absent.
    pub concat: Option<String>,
    /// Whether they stay in the order in which they are given. Otherwise it is that of the first value of the dimension's coordinate.
    pub keep_order: bool,
}

/// One store of many files.
#[derive(Debug)]
pub struct Merged {
    /// The addresses of the files.
    pub(super) urls: Vec<String>,
    pub(super) groups: BTreeMap<String, Map<String, Value>>,
    pub(super) arrays: BTreeMap<String, Out>,
    /// The dimension along which they are joined; nothing if there is one file.
    pub concat: Option<String>,
    /// How many arrays were joined.
    pub joined: usize,
    /// How many there are in all.
    pub variables: usize,
    /// Arrays that it has not.
    pub left_out: Vec<LeftOut>,
    /// What somebody should know.
    pub notes: Vec<String>,
}

/// Makes one store of those of some files, at least one.
///
/// # Errors
/// Why they cannot be one.
pub fn merge(mut parts: Vec<Part>, options: &MergeOptions) -> Result<Merged, MergeError> {
    let mut merged = Merged {
        urls: Vec::new(),
        groups: BTreeMap::new(),
        arrays: BTreeMap::new(),
        concat: None,
        joined: 0,
        variables: 0,
        left_out: Vec::new(),
        notes: Vec::new(),
    };
    merged.concat = dimension(&parts, options)?;
    if let Some(dimension) = &merged.concat {
        check_lengths(&parts, dimension)?;
        let notes = put_in_order(&mut parts, dimension, options.keep_order)?;
        merged.notes = notes;
    }
    let chunks = |part: &Part| part.arrays.values().map(|array| array.ranges.len() as u64).sum::<u64>();
    let chunks: u64 = parts.iter().map(chunks).sum();
    if chunks > MAX_JOINED {
        let message = format!("the files have {chunks} chunks, more than {MAX_JOINED}");
        return Err(MergeError::new(message).hint("Search for fewer files."));
    }
    let paths: BTreeSet<&String> = parts.iter().flat_map(|part| part.arrays.keys()).collect();
    for path in paths {
        match one(path, &parts, merged.concat.as_deref())? {
            Ok((out, is_joined)) => {
                merged.joined += usize::from(is_joined);
                merged.arrays.insert(path.clone(), out);
            }
            Err(why) => merged.left_out.push(LeftOut { variable: path.clone(), why }),
        }
    }
    let mut said = BTreeSet::new();
    for part in &parts {
        for LeftOut { variable, why } in &part.missing {
            // Once, for the first of the files.
            if said.insert((variable, why)) {
                let why = format!("in {}: {why}", part.name);
                merged.left_out.push(LeftOut { variable: variable.clone(), why });
            }
        }
        for (variable, why) in &part.left_out {
            if !merged.left_out.iter().any(|one| one.variable == *variable) {
                let why = format!("in {}: {why}", part.name);
                merged.left_out.push(LeftOut { variable: variable.clone(), why });
            }
        }
    }
    merged.variables = merged.arrays.len();
    merged.urls = parts.iter().map(|part| part.url.clone()).collect();
    merged.groups = parts.into_iter().next().map(|part| part.groups).unwrap_or_default();
    Ok(merged)
}

/// Finds the dimension along which files follow each other.
fn dimension(parts: &[Part], options: &MergeOptions) -> Result<Option<String>, MergeError> {
    let first = parts.first().ok_or_else(|| MergeError::new("there is no file"))?;
    if parts.len() == 1 && options.concat.is_none() {
        return Ok(None);
    }
    let has = |part: &Part, name: &str| part.arrays.values().any(|array| array.axis(name).is_some());
    let name = options.concat.as_deref().unwrap_or(TIME);
    let Some(without) = parts.iter().find(|part| !has(part, name)) else { return Ok(Some(name.to_owned())) };
    let dimensions = without.arrays.values().flat_map(|array| &array.dimensions);
    let dimensions: BTreeSet<&str> = dimensions.map(String::as_str).collect();
    let dimensions = dimensions.into_iter().collect::<Vec<_>>().join(", ");
    let message = match has(first, name) {
        true => format!("{} has the dimension {name}, and {} has not", first.name, without.name),
        false => format!("{} has no dimension {name}", without.name),
    };
    let hint = match (dimensions.is_empty(), options.concat.is_none()) {
        (true, _) => format!("{} has no dimensions at all.", without.name),
        (false, true) => {
            format!("Say along which dimension they follow each other, with --concat: {dimensions}.")
        }
        (false, false) => format!("It has these: {dimensions}."),
    };
    Err(MergeError::new(message).hint(hint))
}

fn group_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(group, _)| group)
}

/// Checks that all arrays of a file, in one group, are equally long along a dimension.
fn check_lengths(parts: &[Part], dimension: &str) -> Result<(), MergeError> {
    for part in parts {
        let mut known: BTreeMap<&str, (&String, u64)> = BTreeMap::new();
        for (path, array) in &part.arrays {
            let Some(axis) = array.axis(dimension) else { continue };
            let len = array.len(axis);
            let (other, known) = *known.entry(group_of(path)).or_insert((path, len));
            if known != len {
                return Err(MergeError::new(format!(
                    "in {}, {other} is {known} long along {dimension} and {path} is {len} long",
                    part.name
                )));
            }
        }
    }
    Ok(())
}

/// The array that has the values of a dimension, in whichever group comes first.
fn coordinate<'a>(part: &'a Part, dimension: &str) -> Option<(&'a String, &'a Array)> {
    let is_coordinate = |path: &str, array: &Array| {
        path.rsplit('/').next() == Some(dimension)
            && matches!(&array.dimensions[..], [only] if only == dimension)
    };
    part.arrays.iter().find(|(path, array)| is_coordinate(path, array))
}

/// Puts files in the order of their coordinate. Returns what somebody should know of it.
fn put_in_order(parts: &mut [Part], dimension: &str, keep: bool) -> Result<Vec<String>, MergeError> {
    let first = parts.first().map(|part| (part.name.clone(), coordinate(part, dimension)));
    if let Some((name, Some((path, array)))) = &first {
        for part in parts.iter().skip(1) {
            if let Some(other) = part.arrays.get(*path) {
                check_meaning(path, (name, array), (&part.name, other))?;
            }
        }
    }
    let ends = |part: &Part| {
        let (_, array) = coordinate(part, dimension)?;
        Some((array.end(true)?, array.end(false)?))
    };
    if parts.len() < 2 {
        return Ok(Vec::new());
    }
    if parts.iter().any(|part| ends(part).is_none()) {
        let unknown = format!(
            "the values of {dimension} are not known here: the files follow each other in the order of their paths"
        );
        return Ok(if keep { Vec::new() } else { vec![unknown] });
    }
    let begin = |part: &Part| ends(part).map_or(f64::NAN, |(first, _)| first);
    if !keep {
        parts.sort_by(|a, b| begin(a).total_cmp(&begin(b)));
    }
    let mut notes = Vec::new();
    for pair in parts.windows(2) {
        let [a, b] = pair else { continue };
        let (Some((_, end)), Some((begin_b, _))) = (ends(a), ends(b)) else { continue };
        if begin(a) == begin_b {
            let message = format!("{} and {} both begin with {dimension} {begin_b}", a.name, b.name);
            let hint = "Files of several models or runs are several arrays: search for those of one.";
            return Err(MergeError::new(message).hint(hint));
        }
        if end >= begin_b && notes.is_empty() {
            let (a, b) = (&a.name, &b.name);
            notes.push(format!("{a} ends with {dimension} {end}, and {b} behind it begins with {begin_b}"));
        }
    }
    Ok(notes)
}

/// Makes one array of those of the files. An error within is why there is none.
#[allow(clippy::type_complexity, reason = "one of two, or a failure of all")]
fn one(path: &str, parts: &[Part], concat: Option<&str>) -> Result<Result<(Out, bool), String>, MergeError> {
    if let Some((part, why)) = parts.iter().find_map(|part| Some((part, part.left_out.get(path)?))) {
        return Ok(Err(format!("in {}: {why}", part.name)));
    }
    let of = |(file, part): (usize, &'_ Part)| -> Option<(u32, String)> {
        part.arrays.get(path).map(|_| (file as u32, part.name.clone()))
    };
    let has: Vec<(u32, String)> = parts.iter().enumerate().filter_map(of).collect();
    let arrays: Vec<Of<'_>> = has
        .iter()
        .filter_map(|(file, name)| {
            let array = parts.get(*file as usize)?.arrays.get(path)?;
            Some(Of { file: *file, name, array })
        })
        .collect();
    let Some(first) = arrays.first().copied() else { return Ok(Err("no file has it".into())) };
    let axis = concat.and_then(|concat| first.array.axis(concat));
    if let Some(without) = parts.iter().find(|part| !part.arrays.contains_key(path)) {
        if axis.is_some() {
            let message = format!("{} has {path}, and {} has not", first.name, without.name);
            let hint = format!(
                "Search for files that have the same variables, as with 'var.{}:*'.",
                path.replace('/', ".")
            );
            return Err(MergeError::new(message).hint(hint));
        }
        if first.file != 0 {
            return Ok(Err(format!("{} has it, and {} has not", first.name, without.name)));
        }
    }
    for other in arrays.iter().skip(1) {
        check_kind(path, first, *other, axis)?;
        check_meaning(path, (first.name, first.array), (other.name, other.array))?;
    }
    if let Some(axis) = axis {
        return Ok(Ok((join(path, &arrays, axis)?, true)));
    }
    let differs = |other: &&Of<'_>| match (&first.array.values, &other.array.values) {
        (Some(a), Some(b)) => a != b,
        _ => false,
    };
    if let Some(other) = arrays.iter().find(differs) {
        let differ = format!("it has other values in {} than in {}", other.name, first.name);
        let name = path.rsplit('/').next().unwrap_or_default();
        if matches!(&first.array.dimensions[..], [only] if only == name) {
            let message = format!("{path} has other values in {} than in {}", other.name, first.name);
            return Err(MergeError::new(message)
                .hint("Files on several grids are several arrays: search for those of one."));
        }
        return Ok(Err(differ));
    }
    Ok(Ok((Out::of(first.file, first.array), false)))
}

/// Checks that two arrays have the same dimensions and type.
fn check_kind(path: &str, a: Of<'_>, b: Of<'_>, axis: Option<usize>) -> Result<(), MergeError> {
    let differ = |what: &str, of_a: String, of_b: String| {
        Err(MergeError::new(format!("{path} has {what} {of_a} in {} and {of_b} in {}", a.name, b.name)))
    };
    let (meta_a, meta_b) = (&a.array.meta, &b.array.meta);
    if a.array.dimensions != b.array.dimensions {
        return differ("the dimensions", a.array.dimensions.join(", "), b.array.dimensions.join(", "));
    }
    if meta_a.dtype != meta_b.dtype {
        return differ("the type", meta_a.dtype.clone(), meta_b.dtype.clone());
    }
    let lengths = meta_a.shape.iter().zip(&meta_b.shape).enumerate();
    if lengths.clone().any(|(at, (len_a, len_b))| Some(at) != axis && len_a != len_b) {
        return differ("the shape", format!("{:?}", meta_a.shape), format!("{:?}", meta_b.shape));
    }
    if meta_a.fill_value != meta_b.fill_value {
        return differ("_FillValue", meta_a.fill_value.to_string(), meta_b.fill_value.to_string());
    }
    Ok(())
}

/// Checks that the numbers of two arrays mean the same.
fn check_meaning(path: &str, a: (&str, &Array), b: (&str, &Array)) -> Result<(), MergeError> {
    for name in MEANING {
        let (of_a, of_b) = (a.1.attributes.get(name), b.1.attributes.get(name));
        if of_a != of_b {
            let said = |value: Option<&Value>| match value {
                Some(Value::String(text)) => format!("'{text}'"),
                Some(other) => other.to_string(),
                None => "no such attribute".to_owned(),
            };
            let (of_a, of_b) = (said(of_a), said(of_b));
            return Err(MergeError::new(format!(
                "{path} has {name} {of_a} in {} and {of_b} in {}: its numbers would not mean the same",
                a.0, b.0
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
