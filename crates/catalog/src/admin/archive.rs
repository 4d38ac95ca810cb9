//! The archive of a catalog, form 1: what a backup writes and a restore reads, the same from both engines.
//!
//! Participants: `percale admin backup` writes, `restore` and a newer release read. Goals: as of one moment; damage and
//! cuts are noticed; readable with a text editor. Non-goals: size (it compresses well) and speed of single rows.
//!
//! UTF-8 text, a JSON value in each line:
//!
//! ```text
//! {"format":"percale-catalog","v":1,"schema":1,"site":…,"taken":…,"positions":[…]}
//! {"table":"space","columns":["sp","id",…]}          then its rows, in the order of its key:
//! [1,"0197…","lab",…]
//! …
//! {"end":true,"rows":1234,"blake3":"…"}              the hash is of all bytes before this line
//! ```
//!
//! Integers are JSON numbers, texts JSON strings, UUIDs their text, bytes hexadecimal, NULL is null. A reader takes
//! columns by name: one that it does not know is passed over, one that is missing is NULL. Tables that it does not know,
//! and other forms, are refused by name.

use std::io::BufRead;

use percale_core::ids::SiteId;
use percale_core::{Position, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::engine::{Sql, Value};
use crate::error::{Error, Result};

/// The form that is written.
pub(super) const FORM: u32 = 1;
/// The word in the first line.
const FORMAT: &str = "percale-catalog";

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Int,
    Text,
    Bytes,
    Uuid,
}

/// A table: its columns, of which the first `key` are its key.
#[derive(Debug)]
pub(super) struct Table {
    pub name: &'static str,
    pub key: usize,
    pub columns: &'static [(&'static str, Kind)],
}

use Kind::{Bytes, Int, Text, Uuid};

/// All tables, in the order in which they are restored. `outcome` of PostgreSQL is of no use to another server.
pub(super) static TABLES: &[Table] = &[
    Table {
        name: "site",
        key: 1,
        columns: &[("one", Int), ("id", Uuid), ("name", Text), ("fence", Int), ("created", Int)],
    },
    Table {
        name: "store",
        key: 1,
        columns: &[
            ("st", Int),
            ("id", Uuid),
            ("name", Text),
            ("connector", Text),
            ("layout", Text),
            ("config", Text),
            ("secret", Bytes),
            ("state", Text),
            ("site", Uuid),
        ],
    },
    Table {
        name: "space",
        key: 1,
        columns: &[
            ("sp", Int),
            ("id", Uuid),
            ("name", Text),
            ("owner", Text),
            ("scope", Text),
            ("store", Uuid),
            ("state", Text),
            ("term", Int),
            ("seq", Int),
            ("next_id", Int),
            ("created", Int),
            ("home", Uuid),
            ("behind", Text),
            ("extraction", Text),
            ("quota", Int),
        ],
    },
    Table {
        name: "entry",
        key: 2,
        columns: &[
            ("sp", Int),
            ("id", Int),
            ("parent", Int),
            ("name", Text),
            ("kind", Int),
            ("created", Int),
            ("modified", Int),
            ("version", Int),
            ("size", Int),
            ("root", Bytes),
            ("mtime", Int),
            ("mode", Int),
            ("digests", Text),
            ("target", Text),
        ],
    },
    Table {
        name: "version",
        key: 2,
        columns: &[
            ("sp", Int),
            ("id", Int),
            ("entry", Int),
            ("size", Int),
            ("root", Bytes),
            ("created", Int),
            ("superseded", Int),
        ],
    },
    Table {
        name: "replica",
        key: 3,
        columns: &[
            ("sp", Int),
            ("version", Int),
            ("st", Int),
            ("entry", Int),
            ("key", Text),
            ("state", Text),
            ("generation", Text),
            ("checked", Int),
        ],
    },
    Table {
        name: "grants",
        key: 3,
        columns: &[("sp", Int), ("entry", Int), ("subject", Text), ("permission", Text)],
    },
    Table {
        name: "attribute",
        key: 5,
        columns: &[
            ("sp", Int),
            ("entry", Int),
            ("name", Text),
            ("source", Int),
            ("ord", Int),
            ("type", Int),
            ("number", Int),
            ("word", Text),
            ("value", Text),
        ],
    },
    Table {
        name: "journal",
        key: 2,
        columns: &[
            ("sp", Int),
            ("seq", Int),
            ("term", Int),
            ("at", Int),
            ("actor", Text),
            ("kind", Text),
            ("v", Int),
            ("body", Text),
        ],
    },
    Table {
        name: "lease",
        key: 1,
        columns: &[
            ("id", Uuid),
            ("kind", Text),
            ("holder", Text),
            ("fence", Int),
            ("expires", Int),
            ("body", Text),
        ],
    },
    Table {
        name: "intent",
        key: 1,
        columns: &[
            ("id", Uuid),
            ("lease", Uuid),
            ("fence", Int),
            ("sp", Int),
            ("version", Int),
            ("entry", Int),
            ("parent", Int),
            ("name", Text),
            ("base", Int),
            ("st", Int),
            ("key", Text),
            ("token", Text),
            ("identity", Text),
            ("body", Text),
        ],
    },
    Table {
        name: "garbage",
        key: 2,
        columns: &[
            ("st", Int),
            ("key", Text),
            ("sp", Int),
            ("version", Int),
            ("since", Int),
            ("generation", Text),
        ],
    },
    Table {
        name: "task",
        key: 1,
        columns: &[
            ("id", Uuid),
            ("kind", Text),
            ("state", Text),
            ("owner", Text),
            ("spec", Text),
            ("cursor", Text),
            ("progress", Text),
            ("fault", Text),
            ("lease", Uuid),
            ("attempt", Int),
            ("vain", Int),
            ("not_before", Int),
            ("deadline", Int),
            ("created", Int),
            ("changed", Int),
            ("idempotency_key", Text),
        ],
    },
    Table {
        name: "task_item",
        key: 2,
        columns: &[
            ("task", Uuid),
            ("number", Int),
            ("path", Text),
            ("outcome", Text),
            ("code", Text),
            ("detail", Text),
        ],
    },
    Table {
        name: "task_event",
        key: 2,
        columns: &[("task", Uuid), ("number", Int), ("at", Int), ("kind", Text), ("detail", Text)],
    },
    Table {
        name: "task_copy",
        key: 2,
        columns: &[("task", Uuid), ("number", Int), ("bytes", Int), ("sources", Text), ("body", Text)],
    },
    Table {
        name: "idempotency",
        key: 2,
        columns: &[
            ("caller", Text),
            ("key", Text),
            ("hash", Bytes),
            ("status", Int),
            ("answer", Text),
            ("since", Int),
            ("expires", Int),
        ],
    },
    Table {
        name: "token",
        key: 1,
        columns: &[
            ("id", Uuid),
            ("subject", Text),
            ("scopes", Text),
            ("label", Text),
            ("issued", Int),
            ("expires", Int),
            ("revoked", Int),
        ],
    },
    Table {
        name: "peer",
        key: 1,
        columns: &[
            ("id", Uuid),
            ("name", Text),
            ("key", Bytes),
            ("old_key", Bytes),
            ("old_key_until", Int),
            ("key_change", Text),
            ("confirmed", Int),
            ("urls", Text),
            ("dialable", Int),
            ("issuers", Text),
            ("state", Text),
            ("changed", Int),
            ("changed_by", Uuid),
        ],
    },
    Table { name: "retired_key", key: 1, columns: &[("key", Bytes), ("until", Int)] },
    Table {
        name: "invitation",
        key: 1,
        columns: &[("hash", Bytes), ("made_by", Text), ("expires", Int), ("used_by", Uuid)],
    },
    Table {
        name: "arrival",
        key: 1,
        columns: &[
            ("id", Uuid),
            ("state", Text),
            ("lease", Uuid),
            ("fence", Int),
            ("sp", Int),
            ("st", Int),
            ("key", Text),
            ("token", Text),
            ("identity", Text),
            ("version", Int),
            ("body", Text),
        ],
    },
    Table {
        name: "outbox",
        key: 1,
        columns: &[("number", Int), ("sp", Int), ("version", Int), ("st", Int), ("body", Text)],
    },
    Table {
        name: "told",
        key: 2,
        columns: &[("site", Uuid), ("id", Uuid), ("answer", Text), ("since", Int)],
    },
];

impl Table {
    fn names(&self, count: usize) -> String {
        let names: Vec<&str> = self.columns.iter().take(count).map(|(name, _)| *name).collect();
        names.join(", ")
    }

    /// Returns the statement that reads rows in the order of their key, from the beginning or behind a key.
    pub fn read(&self, is_first: bool) -> Sql {
        let (columns, key, table) = (self.names(self.columns.len()), self.names(self.key), self.name);
        let params: Vec<String> = (1..=self.key).map(|at| format!("${at}")).collect();
        let condition = match is_first {
            true => String::new(),
            false => format!(" WHERE ({key}) > ({})", params.join(", ")),
        };
        let limit = if is_first { 1 } else { self.key + 1 };
        let text = format!("SELECT {columns} FROM {table}{condition} ORDER BY {key} LIMIT ${limit}");
        Sql { sqlite: text.clone().into(), postgres: text.into() }
    }

    /// Returns the statement that writes rows.
    pub fn insert(&self) -> Sql {
        let (columns, table) = (self.names(self.columns.len()), self.name);
        let (mut plain, mut arrays) = (Vec::new(), Vec::new());
        for (at, (_, kind)) in (1..).zip(self.columns) {
            plain.push(format!("${at}"));
            arrays.push(match kind {
                Int => format!("${at}::bigint[]"),
                Text => format!("${at}::text[]"),
                Bytes => format!("${at}::bytea[]"),
                Uuid => format!("${at}::uuid[]"),
            });
        }
        let sqlite = format!("INSERT INTO {table} ({columns}) VALUES ({})", plain.join(", "));
        let postgres = format!("INSERT INTO {table} ({columns}) SELECT * FROM UNNEST({})", arrays.join(", "));
        Sql { sqlite: sqlite.into(), postgres: postgres.into() }
    }
}

/// The first line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Header {
    format: String,
    pub v: u32,
    pub schema: u32,
    pub site: Option<SiteId>,
    pub taken: Timestamp,
    pub positions: Vec<Position>,
}

impl Header {
    pub fn new(schema: u32, site: Option<SiteId>, taken: Timestamp, positions: Vec<Position>) -> Self {
        Self { format: FORMAT.to_owned(), v: FORM, schema, site, taken, positions }
    }
}

/// The line before the rows of a table.
#[derive(Debug, Serialize, Deserialize)]
struct TableLine {
    table: String,
    columns: Vec<String>,
}

/// The last line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct End {
    end: bool,
    pub rows: u64,
    pub blake3: String,
}

impl End {
    pub fn new(rows: u64, hash: blake3::Hash) -> Self {
        Self { end: true, rows, blake3: hash.to_hex().to_string() }
    }
}

/// Writes a line.
pub(super) fn line<T: Serialize>(out: &mut Vec<u8>, value: &T) -> Result<()> {
    serde_json::to_writer(&mut *out, value)
        .map_err(|error| Error::internal("cannot write a line of an archive").with_source(error))?;
    out.push(b'\n');
    Ok(())
}

/// Writes the line before the rows of a table.
pub(super) fn table_line(out: &mut Vec<u8>, table: &Table) -> Result<()> {
    let columns = table.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
    line(out, &TableLine { table: table.name.to_owned(), columns })
}

/// Writes a row, whose values are in the order of the table's columns.
pub(super) fn row_line(out: &mut Vec<u8>, table: &Table, values: &[Value]) -> Result<()> {
    let mut row = Vec::with_capacity(values.len());
    for ((name, kind), value) in table.columns.iter().zip(values) {
        row.push(match (kind, value) {
            (_, Value::Null) => Json::Null,
            (Int, Value::Int(value)) => Json::from(*value),
            (Text, Value::Text(value)) => Json::from(value.as_str()),
            (Bytes, Value::Bytes(value)) => Json::from(hex::encode(value)),
            (Uuid, Value::Uuid(value)) => Json::from(value.to_string()),
            (Uuid, Value::Bytes(value)) => {
                uuid::Uuid::from_slice(value).map(|uuid| Json::from(uuid.to_string())).map_err(|error| {
                    Error::corrupt(format!("{}.{name} is not a UUID", table.name)).with_source(error)
                })?
            }
            _ => return Err(Error::corrupt(format!("{}.{name} has a value of another type", table.name))),
        });
    }
    line(out, &row)
}

/// What [`read`] finds.
pub(super) enum Found {
    Header(Header),
    Row(&'static Table, Vec<Value>),
    End(End),
}

/// Reads an archive and hands over what it holds, each line checked by itself; at the end the number of rows and the
/// hash are compared.
pub(super) fn read(mut from: impl BufRead, mut take: impl FnMut(Found) -> Result<()>) -> Result<()> {
    let mut hasher = blake3::Hasher::new();
    let mut reader = Lines { number: 0, bytes: Vec::new() };
    let header: Header = reader.next(&mut from)?.parse()?;
    if header.format != FORMAT {
        return Err(reader.wrong("this is not an archive of a catalog"));
    }
    if header.v != FORM {
        return Err(Error::unsupported(format!(
            "the archive has form {}; this release reads {FORM}",
            header.v
        )));
    }
    hasher.update(&reader.bytes);
    take(Found::Header(header))?;
    let mut table: Option<(&'static Table, Vec<Option<usize>>)> = None;
    let mut rows = 0;
    loop {
        reader.next(&mut from)?;
        let value: Json = reader.parse()?;
        match (&value, &table) {
            (Json::Array(values), Some((table, places))) => {
                let row = decode_row(table, places, values).map_err(|name| {
                    reader.wrong(&format!("{}.{name} has a value of another type", table.name))
                })?;
                rows += 1;
                take(Found::Row(table, row))?;
            }
            (Json::Object(fields), _) if fields.contains_key("table") => {
                let TableLine { table: name, columns } = reader.parse()?;
                let Some(known) = TABLES.iter().find(|known| known.name == name) else {
                    return Err(Error::unsupported(format!("the archive has the unknown table '{name}'")));
                };
                let place = |name: &str| columns.iter().position(|column| column == name);
                table = Some((known, known.columns.iter().map(|(name, _)| place(name)).collect()));
            }
            (Json::Object(fields), _) if fields.contains_key("end") => {
                let end: End = reader.parse()?;
                if end.rows != rows || end.blake3 != hasher.finalize().to_hex().as_str() {
                    return Err(reader.wrong("the rows are not those that were written"));
                }
                let rest = from.fill_buf().map_err(|error| reader.unreadable(error))?;
                if !rest.is_empty() {
                    return Err(reader.wrong("something follows the last line"));
                }
                return take(Found::End(end));
            }
            _ => return Err(reader.wrong("this line has no place here")),
        }
        hasher.update(&reader.bytes);
    }
}

struct Lines {
    number: u64,
    bytes: Vec<u8>,
}

impl Lines {
    fn next(&mut self, from: &mut impl BufRead) -> Result<&mut Self> {
        self.number += 1;
        self.bytes.clear();
        from.read_until(b'\n', &mut self.bytes).map_err(|error| self.unreadable(error))?;
        match self.bytes.last() {
            Some(b'\n') => Ok(self),
            _ => Err(self.wrong("the archive is cut")),
        }
    }

    fn parse<T: for<'de> Deserialize<'de>>(&self) -> Result<T> {
        serde_json::from_slice(&self.bytes)
            .map_err(|error| self.wrong("this is not what should be here").with_source(error))
    }

    fn wrong(&self, message: &str) -> Error {
        Error::corrupt(format!("cannot read line {} of the archive: {message}", self.number))
    }

    fn unreadable(&self, error: std::io::Error) -> Error {
        self.wrong("the file cannot be read").with_source(error)
    }
}

fn decode_row(
    table: &Table,
    places: &[Option<usize>],
    values: &[Json],
) -> std::result::Result<Vec<Value>, &'static str> {
    let mut row = Vec::with_capacity(table.columns.len());
    for ((name, kind), place) in table.columns.iter().zip(places) {
        let value = place.and_then(|place| values.get(place)).unwrap_or(&Json::Null);
        row.push(match (kind, value) {
            (_, Json::Null) => Value::Null,
            (Int, Json::Number(value)) => Value::Int(value.as_i64().ok_or(*name)?),
            (Text, Json::String(value)) => Value::Text(value.clone()),
            (Bytes, Json::String(value)) => Value::Bytes(hex::decode(value).map_err(|_| *name)?),
            (Uuid, Json::String(value)) => Value::Uuid(value.parse().map_err(|_| *name)?),
            _ => return Err(name),
        });
    }
    Ok(row)
}

/// Describes an error of the file system.
pub(super) fn io_error(what: &str, path: &std::path::Path, error: std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => crate::ErrorKind::NoSpace,
        std::io::ErrorKind::NotFound => crate::ErrorKind::NotFound,
        std::io::ErrorKind::AlreadyExists => crate::ErrorKind::AlreadyExists { version: None },
        _ => crate::ErrorKind::Unavailable,
    };
    Error::new(kind, format!("cannot {what} {}", path.display())).with_source(error)
}
