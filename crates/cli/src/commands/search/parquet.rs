//! `search --parquet`: what was found, as a table.
//!
//! A column of Parquet has one type, which is not known before the last row: rows wait in a file without a name, and the table is written
//! from it in groups of some ten thousand.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, BufWriter, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;
use percale_api::attributes::Found;
use percale_core::attribute::Float;
use percale_core::{AttributeName, AttributeValue};
use serde::Serialize;

use crate::atomic_file::AtomicFile;
use crate::context::Context;
use crate::failure::Result;

/// Most rows of a group.
const GROUP: usize = 50_000;
/// Bytes of rows, as JSON, after which a group ends: it is in memory.
const GROUP_BYTES: usize = 64 << 20;

/// What was written, for programs.
#[derive(Debug, Serialize)]
struct Written {
    table: PathBuf,
    rows: u64,
    columns: Vec<String>,
}

/// What the values of a column are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Integer,
    Float,
    Text,
    Time,
    Bool,
}

impl Kind {
    fn of(value: &AttributeValue) -> Self {
        match value {
            AttributeValue::Integer(_) => Self::Integer,
            AttributeValue::Float(_) => Self::Float,
            AttributeValue::Text(_) => Self::Text,
            AttributeValue::Time(_) => Self::Time,
            AttributeValue::Bool(_) => Self::Bool,
        }
    }

    /// Returns what values of both kinds are together: numbers are numbers, and all else is text.
    fn with(self, other: Self) -> Self {
        match (self, other) {
            (one, other) if one == other => one,
            (Self::Integer | Self::Float, Self::Integer | Self::Float) => Self::Float,
            _ => Self::Text,
        }
    }
}

/// A column.
#[derive(Debug)]
struct Column {
    name: String,
    /// Nothing while there is no value.
    kind: Option<Kind>,
    /// Whether a row has several values.
    is_list: bool,
}

/// A table that is being gathered.
pub(super) struct Table {
    to: AtomicFile,
    names: Vec<AttributeName>,
    columns: Vec<Column>,
    rows: BufWriter<File>,
    count: u64,
}

/// Columns that every table has.
const KNOWN: [(&str, Kind); 5] = [
    ("path", Kind::Text),
    ("type", Kind::Text),
    ("size", Kind::Integer),
    ("modified", Kind::Time),
    ("root", Kind::Text),
];

impl Table {
    /// Begins a table that will be written to a file.
    pub fn begin(to: &Path, names: Vec<AttributeName>) -> Result<Self> {
        let to = AtomicFile::create(to)?;
        let rows = tempfile::tempfile_in(to.folder()).map_err(|error| to.failure(&error))?;
        let known = KNOWN.map(|(name, kind)| Column { name: name.into(), kind: Some(kind), is_list: false });
        let mut columns = Vec::from(known);
        for name in &names {
            // What is known of every entry keeps its name.
            let is_known = KNOWN.iter().any(|(known, _)| *known == name.as_str());
            let name = if is_known { format!("@{name}") } else { name.to_string() };
            columns.push(Column { name, kind: None, is_list: false });
        }
        Ok(Self { to, names, columns, rows: BufWriter::new(rows), count: 0 })
    }

    /// Adds a row.
    pub fn add(&mut self, found: &Found) -> Result {
        for (column, name) in self.columns.iter_mut().skip(KNOWN.len()).zip(&self.names) {
            let values = found.attributes.get(name).map(Vec::as_slice).unwrap_or_default();
            column.is_list |= values.len() > 1;
            for kind in values.iter().map(Kind::of) {
                column.kind = Some(column.kind.map_or(kind, |known| known.with(kind)));
            }
        }
        let written = serde_json::to_writer(&mut self.rows, found).map_err(io::Error::from);
        let written = written.and_then(|()| self.rows.write_all(b"\n"));
        written.map_err(|error| self.to.failure(&error))?;
        self.count += 1;
        Ok(())
    }

    /// Writes the table.
    pub fn write(mut self, context: &Context) -> Result {
        self.write_columns().map_err(|error| self.to.failure(&io::Error::other(error)))?;
        let to = self.to.place().to_owned();
        self.to.put_in_place()?;
        let columns: Vec<String> = self.columns.into_iter().map(|column| column.name).collect();
        let (count, len) = (self.count, columns.len());
        if context.output.json {
            return context.output.document(&Written { table: to, rows: count, columns });
        }
        let said = format!("{}: rows: {count}, columns: {len}", to.display());
        context.output.line(if context.output.quiet { to.display().to_string() } else { said })
    }

    fn write_columns(&mut self) -> std::result::Result<(), ParquetError> {
        self.rows.flush()?;
        let file = self.rows.get_mut();
        file.rewind()?;
        let mut lines = BufReader::new(file).lines();
        let fields = self.columns.iter().map(Column::field).collect::<std::result::Result<_, _>>()?;
        let schema = Arc::new(Type::group_type_builder("found").with_fields(fields).build()?);
        let properties = Arc::new(WriterProperties::builder().build());
        let out = BufWriter::new(self.to.file());
        let mut writer = SerializedFileWriter::new(out, schema, properties)?;
        loop {
            let mut rows: Vec<Found> = Vec::new();
            let mut bytes = 0;
            for line in lines.by_ref() {
                let line = line?;
                bytes += line.len();
                let row = serde_json::from_str(&line);
                rows.push(row.map_err(|error| ParquetError::External(Box::new(error)))?);
                if rows.len() == GROUP || bytes >= GROUP_BYTES {
                    break;
                }
            }
            if rows.is_empty() {
                break;
            }
            let mut group = writer.next_row_group()?;
            for (at, column) in self.columns.iter().enumerate() {
                let name = at.checked_sub(KNOWN.len()).and_then(|at| self.names.get(at));
                let cells = rows.iter().map(|row| match name {
                    Some(name) => row.attributes.get(name).cloned().unwrap_or_default(),
                    None => known(row, &column.name).into_iter().collect(),
                });
                column.write(&mut group, cells)?;
            }
            group.close()?;
        }
        writer.close()?;
        Ok(())
    }
}

/// Returns what every entry has.
fn known(Found { entry, .. }: &Found, column: &str) -> Option<AttributeValue> {
    let content = entry.content.as_ref();
    match column {
        "path" => Some(AttributeValue::Text(entry.path.to_string())),
        "type" => Some(AttributeValue::Text(entry.kind.as_str().into())),
        "size" => content.and_then(|content| i64::try_from(content.size).ok()).map(AttributeValue::Integer),
        "modified" => Some(AttributeValue::Time(content.map_or(entry.modified, |content| content.mtime))),
        _ => content.and_then(|content| content.root).map(|root| AttributeValue::Text(root.to_string())),
    }
}

impl Column {
    /// Describes it: a value that may be missing, or a list as the format has it
    /// (<https://github.com/apache/parquet-format/blob/master/LogicalTypes.md#lists>).
    fn field(&self) -> std::result::Result<Arc<Type>, ParquetError> {
        let (physical, logical) = match self.kind.unwrap_or(Kind::Text) {
            Kind::Integer => (Physical::INT64, None),
            Kind::Float => (Physical::DOUBLE, None),
            Kind::Bool => (Physical::BOOLEAN, None),
            Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Kind::Time => (Physical::INT64, Some(LogicalType::timestamp(true, TimeUnit::MICROS))),
        };
        let value = |name: &str, repetition| {
            let value = Type::primitive_type_builder(name, physical).with_logical_type(logical.clone());
            value.with_repetition(repetition).build().map(Arc::new)
        };
        if !self.is_list {
            return value(&self.name, Repetition::OPTIONAL);
        }
        let list = Type::group_type_builder("list").with_repetition(Repetition::REPEATED);
        let list = list.with_fields(vec![value("element", Repetition::REQUIRED)?]).build()?;
        let whole = Type::group_type_builder(&self.name).with_repetition(Repetition::OPTIONAL);
        let whole = whole.with_logical_type(Some(LogicalType::List)).with_fields(vec![Arc::new(list)]);
        whole.build().map(Arc::new)
    }

    /// Writes the cells of a group.
    fn write(
        &self,
        group: &mut SerializedRowGroupWriter<'_, BufWriter<&File>>,
        cells: impl Iterator<Item = Vec<AttributeValue>>,
    ) -> std::result::Result<(), ParquetError> {
        let (mut values, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
        let present = if self.is_list { 2 } else { 1 };
        for cell in cells {
            if cell.is_empty() {
                definitions.push(0);
                repetitions.push(0);
            }
            for (at, value) in cell.into_iter().enumerate() {
                definitions.push(present);
                repetitions.push(i16::from(at > 0));
                values.push(value);
            }
        }
        let Some(mut column) = group.next_column()? else { return Ok(()) };
        let repetitions = self.is_list.then_some(&repetitions[..]);
        let levels = (&definitions[..], repetitions);
        match column.untyped() {
            ColumnWriter::Int64ColumnWriter(writer) => {
                let as_number = |value: &AttributeValue| match value {
                    AttributeValue::Integer(number) => *number,
                    AttributeValue::Time(time) => time.as_micros(),
                    _ => 0,
                };
                put::<Int64Type>(writer, &values, as_number, levels)?;
            }
            ColumnWriter::DoubleColumnWriter(writer) => {
                let as_number = |value: &AttributeValue| match value {
                    AttributeValue::Integer(number) => *number as f64,
                    AttributeValue::Float(Float(number)) => *number,
                    _ => f64::NAN,
                };
                put::<DoubleType>(writer, &values, as_number, levels)?;
            }
            ColumnWriter::BoolColumnWriter(writer) => {
                put::<BoolType>(writer, &values, |value| *value == AttributeValue::Bool(true), levels)?;
            }
            ColumnWriter::ByteArrayColumnWriter(writer) => {
                let as_text = |value: &AttributeValue| ByteArray::from(value.to_string().into_bytes());
                put::<ByteArrayType>(writer, &values, as_text, levels)?;
            }
            _ => return Err(ParquetError::General("a column of another type".into())),
        }
        column.close()
    }
}

fn put<T: DataType>(
    writer: &mut parquet::column::writer::ColumnWriterImpl<'_, T>,
    values: &[AttributeValue],
    value: impl Fn(&AttributeValue) -> T::T,
    (definitions, repetitions): (&[i16], Option<&[i16]>),
) -> std::result::Result<(), ParquetError> {
    let values: Vec<T::T> = values.iter().map(value).collect();
    writer.write_batch(&values, Some(definitions), repetitions).map(drop)
}
