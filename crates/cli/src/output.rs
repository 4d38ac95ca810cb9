//! What a command prints: data on standard output, talk on standard error.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use comfy_table::{CellAlignment, Table, presets};
use percale_core::{ByteCount, Timestamp};
use serde::Serialize;

use crate::failure::{Failure, Result};

/// Columns below which folding a table makes it unreadable.
const NARROWEST: u16 = 40;

/// When colours are used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ColorWhen {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How a command speaks.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// Whether data is JSON.
    pub json: bool,
    /// Whether only ids and paths are printed, and no talk.
    pub quiet: bool,
    color: bool,
    stderr_is_terminal: bool,
    stdout_is_terminal: bool,
}

impl Output {
    /// Finds out what is connected.
    pub fn new(json: bool, quiet: bool, color: ColorWhen) -> Self {
        let stderr_is_terminal = io::stderr().is_terminal();
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let color = match color {
            ColorWhen::Auto => stderr_is_terminal && !no_color,
            ColorWhen::Always => true,
            ColorWhen::Never => false,
        };
        Self { json, quiet, color, stderr_is_terminal, stdout_is_terminal: io::stdout().is_terminal() }
    }

    /// Returns an output that says nothing to a person, for steps of a larger command.
    pub fn silent(self) -> Self {
        Self { quiet: true, json: false, ..self }
    }

    /// Tells whether talk goes to a person at a terminal.
    pub fn is_interactive(&self) -> bool {
        self.stderr_is_terminal
    }

    /// Prints one object as a JSON document.
    pub fn document(&self, value: &impl Serialize) -> Result {
        let mut out = Lines::open();
        serde_json::to_writer_pretty(&mut out.0, value).map_err(io::Error::from)?;
        out.0.write_all(b"\n")?;
        out.finish()
    }

    /// Prints one thing in the form that was asked for: a JSON document, its id, or what `show` makes of it.
    pub fn one<T: Serialize>(
        &self,
        value: &T,
        id: impl FnOnce(&T) -> String,
        show: impl FnOnce(&T) -> String,
    ) -> Result {
        if self.json {
            return self.document(value);
        }
        self.line(if self.quiet { id(value) } else { show(value) })
    }

    /// Prints a list in the form that was asked for: JSON lines, ids, or a table.
    pub fn list<T: Serialize>(
        &self,
        items: &[T],
        headers: &[&str],
        id: impl Fn(&T) -> String,
        row: impl Fn(&T) -> Vec<String>,
    ) -> Result {
        let mut out = Lines::open();
        if self.json || self.quiet {
            for item in items {
                if self.json { out.json(item)? } else { out.line(id(item))? }
            }
        } else if !items.is_empty() {
            let rows = items.iter().map(row).collect();
            out.line(self.table(headers, rows))?;
        }
        out.finish()
    }

    /// Makes a table. Columns whose heading ends with `#` are numbers. Folded to a terminal's width, never cut.
    pub fn table(&self, headers: &[&str], rows: Vec<Vec<String>>) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        // A terminal that does not say how wide it is counts as wide.
        if self.stdout_is_terminal && table.width().is_some_and(|width| width >= NARROWEST) {
            table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
        }
        table.set_header(headers.iter().map(|header| header.trim_end_matches('#').to_uppercase()));
        for row in rows {
            table.add_row(row);
        }
        for (at, header) in headers.iter().enumerate() {
            if let Some(column) = table.column_mut(at) {
                let (left, right) = if at == 0 { (0, 1) } else { (1, 1) };
                column.set_padding((left, right));
                if header.ends_with('#') {
                    column.set_cell_alignment(CellAlignment::Right);
                }
            }
        }
        table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
    }

    /// Prints a line of data.
    pub fn line(&self, text: impl AsRef<str>) -> Result {
        let mut out = Lines::open();
        out.line(text)?;
        out.finish()
    }

    /// Says something to the person at the terminal.
    pub fn talk(&self, text: impl AsRef<str>) {
        if !self.quiet {
            let _ = writeln!(io::stderr(), "{}", text.as_ref());
        }
    }

    /// Says, also to programs, what is missing in the data, or wrong with it.
    pub fn warn(&self, text: impl AsRef<str>) {
        let _ = writeln!(io::stderr(), "{}", text.as_ref());
    }

    /// Says what one may do next.
    pub fn next(&self, text: impl AsRef<str>) {
        if !self.quiet && !self.json {
            let _ = writeln!(io::stderr(), "{} {}", self.paint("2", "next:"), text.as_ref());
        }
    }

    /// Says why a command failed.
    pub fn failure(&self, failure: &Failure) {
        let mut stderr = io::stderr().lock();
        // There is nowhere to complain about standard error itself.
        let _ = if self.json {
            writeln!(stderr, "{}", failure.to_json())
        } else {
            let mut text = format!("{} {failure}", self.paint("31;1", "error:"));
            if !self.quiet {
                text += &format!("\n{} {}", self.paint("36", "hint:"), failure.hint());
                text += &format!("\n{}", self.paint("2", &format!("code: {}", failure.code())));
                if let Some(trace_id) = failure.trace_id() {
                    text += &self.paint("2", &format!("  trace: {trace_id}"));
                }
            }
            writeln!(stderr, "{text}")
        };
    }

    /// Colours a text of the talk by an SGR number, if colours are wanted.
    pub fn paint(&self, sgr: &str, text: &str) -> String {
        if self.color { format!("\x1b[{sgr}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Standard output, many lines at once.
pub struct Lines(BufWriter<StdoutLock<'static>>);

impl Lines {
    /// Begins to print.
    pub fn open() -> Self {
        Self(BufWriter::with_capacity(64 << 10, io::stdout().lock()))
    }

    /// Prints a line.
    pub fn line(&mut self, text: impl AsRef<str>) -> Result {
        self.0.write_all(text.as_ref().as_bytes())?;
        Ok(self.0.write_all(b"\n")?)
    }

    /// Prints a line of JSON.
    pub fn json(&mut self, value: &impl Serialize) -> Result {
        serde_json::to_writer(&mut self.0, value).map_err(io::Error::from)?;
        Ok(self.0.write_all(b"\n")?)
    }

    /// Prints bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result {
        Ok(self.0.write_all(bytes)?)
    }

    /// Hands everything out.
    pub fn finish(mut self) -> Result {
        Ok(self.0.flush()?)
    }
}

/// Writes a time as `2026-11-21 08:30`, in UTC.
pub fn time(time: Timestamp) -> String {
    let text = time.to_string();
    let (date, clock) = text.split_once('T').unwrap_or((&text, ""));
    format!("{date} {}", clock.get(..5).unwrap_or_default())
}

/// Writes a number of bytes as people read it.
pub fn size(bytes: u64) -> String {
    ByteCount(bytes).to_string()
}

/// Writes how long something takes: `0.42 s`, `3 min 20 s`, `89 d 23 h`.
pub fn duration(duration: std::time::Duration) -> String {
    let seconds = duration.as_secs_f64();
    match duration.as_secs() {
        0..60 if seconds < 9.95 => format!("{seconds:.2} s"),
        0..60 => format!("{seconds:.0} s"),
        whole @ 60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        whole @ 3600..172_800 => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
        whole => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3600),
    }
}

/// `1 file`, `2 files`.
pub fn count(number: u64, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}
