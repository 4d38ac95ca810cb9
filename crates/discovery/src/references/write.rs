//! Writing references of many files in the form of kerchunk, piece by piece.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::join::Out;
use super::{Merged, chunk_key, index_of};

impl Merged {
    /// Writes the references as JSON: version 1 of <https://fsspec.github.io/kerchunk/spec.html>, with the metadata also in one, as
    /// `.zmetadata`, so that whoever opens them need not look for it.
    ///
    /// # Errors
    /// What prevents writing.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut keys = Keys { out, is_first: true };
        keys.out.write_all(b"{\"version\":1,\"refs\":{")?;
        let mut all = Map::new();
        for (path, attributes) in &self.groups {
            let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
            all.insert(format!("{prefix}.zgroup"), json!({ "zarr_format": 2 }));
            all.insert(format!("{prefix}.zattrs"), Value::Object(attributes.clone()));
        }
        for (path, array) in &self.arrays {
            let mut attributes = array.attributes.clone();
            attributes.insert("_ARRAY_DIMENSIONS".into(), array.dimensions.clone().into());
            all.insert(format!("{path}/.zarray"), serde_json::to_value(&array.meta)?);
            all.insert(format!("{path}/.zattrs"), Value::Object(attributes));
        }
        for (key, value) in &all {
            keys.text(key, &value.to_string())?;
        }
        let whole = json!({ "zarr_consolidated_format": 1, "metadata": all });
        keys.text(".zmetadata", &whole.to_string())?;
        let urls = self.urls.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
        for (path, array) in &self.arrays {
            keys.chunks(path, array, &urls)?;
        }
        keys.out.write_all(b"}}\n")
    }
}

struct Keys<'a, W> {
    out: &'a mut W,
    is_first: bool,
}

impl<W: Write> Keys<'_, W> {
    fn key(&mut self, key: &str) -> io::Result<()> {
        self.out.write_all(if self.is_first { b"\n" } else { b",\n" })?;
        self.is_first = false;
        serde_json::to_writer(&mut self.out, key)?;
        self.out.write_all(b":")
    }

    fn text(&mut self, key: &str, text: &str) -> io::Result<()> {
        self.key(key)?;
        Ok(serde_json::to_writer(&mut self.out, text)?)
    }

    /// Writes the chunks of an array. `urls` are JSON already.
    fn chunks(&mut self, path: &str, array: &Out, urls: &[String]) -> io::Result<()> {
        let grid: Vec<u64> = array.meta.grid().collect();
        for (number, text) in &array.texts {
            self.text(&chunk_key(path, &index_of(*number, &grid)), text)?;
        }
        for (file, placed) in &array.ranges {
            self.key(&chunk_key(path, &index_of(placed.number, &grid)))?;
            let url = urls.get(*file as usize).map_or("null", String::as_str);
            write!(self.out, "[{url},{},{}]", placed.offset, placed.len)?;
        }
        Ok(())
    }
}
