//! The lines that the demo prints: for people, or JSON.

use std::future::Future;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

/// Prints numbered lines, one for each check.
pub struct Lines {
    json: bool,
    color: bool,
    number: u32,
    failed: u32,
}

/// One line that is being put together.
#[derive(Debug, Default)]
pub struct Line {
    text: String,
    time: Option<Duration>,
    rate: String,
    limit: String,
    notes: Vec<String>,
    figures: Map<String, Value>,
}

impl Line {
    /// Begins with what is said.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// Adds the time that it took.
    pub fn time(mut self, time: Duration) -> Self {
        self.time = Some(time);
        self.figure("ms", (time.as_secs_f64() * 1e4).round() / 10.0)
    }

    /// Adds how fast it was, and what to compare it with.
    pub fn rate(mut self, rate: impl Into<String>, limit: impl Into<String>) -> Self {
        (self.rate, self.limit) = (rate.into(), limit.into());
        self
    }

    /// Adds a line below.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// Adds a number for programs.
    pub fn figure(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.figures.insert(name.to_owned(), value.into());
        self
    }

    /// For people, without the number and name.
    fn shown(&self) -> String {
        let mut shown = self.text.clone();
        if let Some(time) = self.time {
            // What is too long for its column moves the next ones, but never touches them.
            shown = format!("{shown:<TEXT_WIDTH$} {:>7} {:>13}", seconds(time), self.rate);
        }
        if !self.limit.is_empty() {
            shown = format!("{shown}   ({})", self.limit);
        }
        for note in &self.notes {
            shown = format!("{}\n{:INDENT$}{note}", shown.trim_end(), "");
        }
        shown.trim_end().to_owned()
    }
}

/// Columns before the text, and those that most texts fit into.
const INDENT: usize = 16;
const TEXT_WIDTH: usize = 60;

impl Lines {
    /// Begins.
    pub fn new(json: bool, is_terminal: bool) -> Self {
        let color = is_terminal && !json && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { json, color, number: 0, failed: 0 }
    }

    /// Prints the title.
    pub fn title(&self, text: &str) {
        if !self.json {
            println!("{text}\n");
        }
    }

    /// Makes a check and prints its line.
    pub async fn check(&mut self, name: &str, check: impl Future<Output = anyhow::Result<Line>>) {
        let began = Instant::now();
        match check.await {
            Ok(line) => self.print(name, &line, true, began.elapsed()),
            Err(error) => {
                self.failed += 1;
                let line = Line::new(format!("FAILED: {error:#}"));
                self.print(name, &line, false, began.elapsed());
            }
        }
    }

    fn print(&mut self, name: &str, line: &Line, passed: bool, took: Duration) {
        self.number += 1;
        if self.json {
            let line = json!({
                "line": self.number,
                "name": name,
                "passed": passed,
                "text": line.text,
                "notes": line.notes,
                "took_ms": (took.as_secs_f64() * 1e3).round(),
                "figures": line.figures,
            });
            println!("{line}");
        } else {
            let (red, plain) = if self.color && !passed { ("\x1b[31m", "\x1b[0m") } else { ("", "") };
            println!("{red}{:>2} {name:<12} {}{plain}", self.number, line.shown());
        }
    }

    /// Tells whether no check failed.
    pub fn all_passed(&self) -> bool {
        self.failed == 0
    }

    /// Prints what to do next.
    pub fn next(&self, name: &str, text: &str) {
        if self.json {
            println!("{}", json!({ "next": name, "text": text }));
        } else {
            println!("{}  {name:<5} {text}", if name == "Site" { "\n" } else { "" });
        }
    }

    /// Prints how many checks passed.
    pub fn summary(&self, took: Duration) {
        let passed = self.number - self.failed;
        if self.json {
            let took = (took.as_secs_f64() * 1e3).round();
            println!("{}", json!({ "passed": passed, "failed": self.failed, "took_ms": took }));
        } else if self.failed == 0 {
            println!("\n{passed} checks passed in {}", seconds(took));
        } else {
            println!("\n{passed} checks passed, {} FAILED, in {}", self.failed, seconds(took));
        }
    }

    /// Says something to people.
    pub fn note(&self, text: &str) {
        eprintln!("{text}");
    }
}

/// Bytes as people say them.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.0} KB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

/// A rate in megabytes a second.
pub fn rate(bytes: u64, time: Duration) -> String {
    let per_second = bytes as f64 / time.as_secs_f64().max(1e-9) / 1e6;
    if per_second < 10.0 { format!("{per_second:.1} MB/s") } else { format!("{per_second:.0} MB/s") }
}

/// The same for programs.
pub fn mb_per_s(bytes: u64, time: Duration) -> f64 {
    (bytes as f64 / time.as_secs_f64().max(1e-9) / 1e5).round() / 10.0
}

/// A time as people say it.
pub fn seconds(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{:.0} ms", time.as_secs_f64() * 1e3)
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!(size(999), "999 B");
        assert_eq!(size(1_500_000), "1.5 MB");
        assert_eq!(rate(5_000_000, Duration::from_secs(1)), "5.0 MB/s");
        assert_eq!(rate(500_000_000, Duration::from_millis(500)), "1000 MB/s");
        assert_eq!(seconds(Duration::from_millis(1500)), "1.5 s");
    }

    #[test]
    fn figures_stand_in_columns() {
        let line = Line::new("two files")
            .time(Duration::from_millis(1500))
            .rate("5 MB/s", "disk alone 9 MB/s")
            .note("real");
        let expected =
            format!("{:<61}  1.5 s        5 MB/s   (disk alone 9 MB/s)\n                real", "two files");
        assert_eq!(line.shown(), expected);
        let long = Line::new("x".repeat(70)).time(Duration::from_secs(20)).rate("16737.25 files/s", "");
        assert_eq!(long.shown(), format!("{}  20.0 s 16737.25 files/s", "x".repeat(70)));
        assert_eq!(Line::new("only words").shown(), "only words");
    }
}
