//! Zarr, versions 2 and 3: what its objects of JSON say. The attributes are those of the object itself; where it has those of the arrays
//! below it as well (consolidated metadata), these are variables.

use serde_json::{Map, Value};

use super::Unreadable;
use super::document::add;
use crate::header::Header;
use crate::source::File;

/// By which xarray keeps the names of dimensions in version 2
/// (<https://docs.xarray.dev/en/stable/internals/zarr-encoding-spec.html>).
const NAMES_OF_2: &str = "_ARRAY_DIMENSIONS";
/// Largest object that is read.
const MAX_SIZE: u64 = 64 << 20;

/// Reads an object.
pub(super) fn read(file: &File, name: &str) -> Result<Header, Unreadable> {
    if file.size() > MAX_SIZE {
        return Err(Unreadable::new("metadata of Zarr have at most 64 MiB"));
    }
    let bytes = file.beginning(MAX_SIZE as usize)?;
    let whole: Value = serde_json::from_slice(&bytes).map_err(|error| Unreadable::new(error.to_string()))?;
    let Value::Object(whole) = whole else { return Err(Unreadable::new("it is no JSON object")) };
    let mut header = Header::of_format("zarr");
    match name {
        ".zattrs" => attributes(&mut header, "", &whole),
        ".zarray" => array(&mut header, "", &whole),
        ".zmetadata" => {
            for (key, node) in nodes(&whole, "metadata") {
                let (path, last) = key.rsplit_once('/').unwrap_or(("", key));
                match last {
                    ".zattrs" => attributes(&mut header, &before(path), node),
                    ".zarray" => {
                        array(&mut header, &before(path), node);
                        let beside = format!("{}.zattrs", key.strip_suffix(last).unwrap_or_default());
                        let beside = whole.get("metadata").and_then(|all| all.get(beside));
                        dimensions(&mut header, path, node, beside.and_then(|beside| beside.get(NAMES_OF_2)));
                    }
                    _ => {}
                }
            }
        }
        _ => {
            node(&mut header, "", &whole);
            let below = whole.get("consolidated_metadata").and_then(Value::as_object);
            for (path, inner) in below.into_iter().flat_map(|below| nodes(below, "metadata")) {
                node(&mut header, path, inner);
            }
        }
    }
    Ok(header)
}

fn nodes<'a>(
    of: &'a Map<String, Value>,
    name: &str,
) -> impl Iterator<Item = (&'a str, &'a Map<String, Value>)> {
    let nodes = of.get(name).and_then(Value::as_object);
    nodes.into_iter().flatten().filter_map(|(path, node)| Some((path.as_str(), node.as_object()?)))
}

/// What stands before the attributes of a node below the one that is read.
fn before(path: &str) -> String {
    match dotted(path) {
        path if path.is_empty() => path,
        path => format!("var.{path}"),
    }
}

fn dotted(path: &str) -> String {
    path.trim_matches('/').replace('/', ".")
}

fn node(header: &mut Header, path: &str, node: &Map<String, Value>) {
    let name = before(path);
    if node.get("node_type").and_then(Value::as_str) == Some("array") {
        array(header, &name, node);
        dimensions(header, path, node, node.get("dimension_names"));
    }
    if let Some(Value::Object(found)) = node.get("attributes") {
        attributes(header, &name, found);
    }
}

fn array(header: &mut Header, name: &str, array: &Map<String, Value>) {
    let join = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
    let kind = array.get("data_type").or_else(|| array.get("dtype"));
    let kind = match kind {
        Some(Value::String(kind)) => kind.clone(),
        Some(kind) => kind.get("name").and_then(Value::as_str).unwrap_or("other").to_owned(),
        None => return,
    };
    header.text(&if name.is_empty() { "dtype".to_owned() } else { name.to_owned() }, kind);
    for key in ["shape", "dimension_names"] {
        if let Some(value) = array.get(key) {
            add(header, &join(key), value, 0);
        }
    }
}

/// Adds the dimensions of an array. Those of one name are the same within a group.
fn dimensions(header: &mut Header, path: &str, array: &Map<String, Value>, names: Option<&Value>) {
    let (Some(Value::Array(names)), Some(Value::Array(sizes))) = (names, array.get("shape")) else { return };
    if names.len() != sizes.len() {
        return;
    }
    let group = match path.trim_matches('/').rsplit_once('/') {
        Some((group, _)) => format!("{}.", dotted(group)),
        None => String::new(),
    };
    for (name, size) in names.iter().zip(sizes) {
        if let (Some(name), Some(size)) = (name.as_str(), size.as_u64()) {
            header.dimension(&format!("{group}{name}"), size);
        }
    }
}

fn attributes(header: &mut Header, name: &str, found: &Map<String, Value>) {
    for (key, value) in found {
        let key = if key == NAMES_OF_2 { "dimension_names" } else { key };
        let name = if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
        add(header, &name, value, 0);
    }
}
