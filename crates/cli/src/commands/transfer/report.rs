//! What a transfer says: a line for each item where that was asked for, and the sum at the end.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use percale_client::{Error, Item, Outcome, Report};
use percale_core::ErrorCode;
use serde_json::{Value, json};

use super::OnItem;
use crate::context::Context;
use crate::failure::{Failure, Result, of_all};
use crate::output::{Lines, Output, count, duration, size};
use crate::progress::Bar;

/// Failures that are told with their text; the rest is counted, and all are in the report.
const SHOWN_FAILURES: u64 = 20;

/// Tells what becomes of each item.
pub struct Reporter {
    shared: Arc<Shared>,
    dry_run: bool,
}

struct Shared {
    output: Output,
    dry_run: bool,
    file: Option<(PathBuf, Mutex<BufWriter<File>>)>,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    failures: u64,
    /// The first error of writing standard output or the report.
    broken: Option<Failure>,
}

impl Reporter {
    /// Opens the report, if one is wanted.
    pub fn new(context: &Context, report: Option<&Path>, dry_run: bool) -> Result<Self> {
        let file = match report {
            Some(path) => {
                let file =
                    File::create(path).map_err(|error| Failure::local("write the report", path, &error))?;
                Some((path.to_owned(), Mutex::new(BufWriter::new(file))))
            }
            None => None,
        };
        let shared = Shared { output: context.output, dry_run, file, told: Mutex::default() };
        Ok(Self { shared: Arc::new(shared), dry_run })
    }

    /// Returns what is to be called with each item.
    pub fn on_item(&self) -> OnItem {
        let shared = self.shared.clone();
        Arc::new(move |item| shared.tell(item))
    }

    /// Says something to a person.
    pub fn talk(&self, text: &str) {
        self.shared.output.talk(text);
    }

    /// Adds what became of one source. A source that could not be begun counts as one failed item if others go on.
    pub fn join(&self, whole: Result<Report>, part: Result<Report, Error>) -> Result<Report> {
        let mut whole = whole?;
        let part = part?;
        whole.done += part.done;
        whole.bytes += part.bytes;
        whole.same += part.same;
        whole.removed += part.removed;
        whole.passed_over += part.passed_over;
        whole.failed += part.failed;
        whole.interrupted |= part.interrupted;
        whole.failures.extend(part.failures);
        Ok(whole)
    }

    /// Says the sum and decides how the command ends.
    pub async fn finish(self, context: &Context, bar: Bar, report: Report, error_on_noop: bool) -> Result {
        let took = bar.finish().await;
        let output = context.output;
        if let Some((path, file)) = &self.shared.file {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            file.flush().map_err(|error| Failure::local("write the report", path, &error))?;
        }
        let told = std::mem::take(&mut *self.shared.told.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(broken) = told.broken {
            return Err(broken);
        }
        if told.failures > SHOWN_FAILURES && !output.json {
            output.talk(format!("… and {} more", told.failures - SHOWN_FAILURES));
        }
        self.sum(output, &report, took)?;
        if report.interrupted {
            let message = "interrupted; nothing half-written is visible, and what was transferred is kept";
            return Err(Failure::new(ErrorCode::Interrupted, message)
                .with_hint("Run the same command again: it goes on where it stopped."));
        }
        if let Some(code) = code_of(&report) {
            return Err(Failure::told(code));
        }
        if error_on_noop && report.done + report.removed == 0 {
            return Err(Failure::new(ErrorCode::NothingToDo, "everything was there already"));
        }
        Ok(())
    }

    fn sum(&self, output: Output, report: &Report, took: std::time::Duration) -> Result {
        if output.json {
            let sum = json!({"summary": {
                "dry_run": self.dry_run,
                "done": report.done,
                "bytes": report.bytes,
                "same": report.same,
                "removed": report.removed,
                "passed_over": report.passed_over,
                "failed": report.failed,
                "interrupted": report.interrupted,
                "seconds": took.as_secs_f64(),
            }});
            return output.line(sum.to_string());
        }
        let mut text = format!("{}, {}", count(report.done, "file"), size(report.bytes));
        if self.dry_run {
            text = format!("{text} would be transferred");
        } else if report.done > 0 {
            let rate = report.bytes as f64 / took.as_secs_f64().max(1e-6);
            text = format!("{text} in {} ({}/s)", duration(took), size(rate as u64));
        }
        for (number, what) in [
            (report.same, "the same already"),
            (report.removed, if self.dry_run { "would be removed" } else { "removed" }),
            (report.passed_over, "passed over"),
            (report.failed, "failed"),
        ] {
            if number > 0 {
                text = format!("{text}, {number} {what}");
            }
        }
        output.talk(text);
        Ok(())
    }
}

/// With which code a transfer ends.
fn code_of(report: &Report) -> Option<ErrorCode> {
    let code = |item: &Item| match &item.outcome {
        Outcome::Failed(error) => error.code(),
        _ => ErrorCode::Internal,
    };
    let codes: Vec<ErrorCode> = report.failures.iter().map(code).collect();
    of_all(&codes, report.done + report.same + report.removed > 0)
}

impl Shared {
    fn tell(&self, item: &Item) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let result = self.write(item, &mut told);
        if let Err(failure) = result {
            told.broken.get_or_insert(failure);
        }
    }

    fn write(&self, item: &Item, told: &mut Told) -> Result {
        if let Some((path, file)) = &self.file {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            let written = writeln!(file, "{}", to_json(item));
            written.map_err(|error| Failure::local("write the report", path, &error))?;
        }
        if self.output.json {
            let mut out = Lines::open();
            out.json(&to_json(item))?;
            return out.finish();
        }
        match &item.outcome {
            Outcome::Failed(error) => {
                told.failures += 1;
                if told.failures <= SHOWN_FAILURES {
                    let (mark, code) = (self.output.paint("31", "failed:"), error.code());
                    let hint = Failure::from(error).hint().to_owned();
                    eprintln!("{mark} {error} ({code})");
                    if told.failures == 1 && !self.output.quiet {
                        eprintln!("{} {hint}", self.output.paint("36", "hint:"));
                    }
                }
                Ok(())
            }
            Outcome::PassedOver(why) => {
                self.output.talk(format!("passed over {}: it is {why}", item.from));
                Ok(())
            }
            Outcome::Planned { replaces } => {
                let what = if *replaces { "would replace" } else { "would make" };
                self.output.line(format!("{what} {}  <- {}  ({})", item.to, item.from, size(item.bytes)))
            }
            Outcome::Removed if self.dry_run => self.output.line(format!("would remove {}", item.to)),
            Outcome::Done { .. } if self.output.quiet => self.output.line(&item.to),
            _ => Ok(()),
        }
    }
}

fn to_json(item: &Item) -> Value {
    let mut json = json!({"from": item.from, "to": item.to, "bytes": item.bytes});
    let status = match &item.outcome {
        Outcome::Done { version, root, replaced } => {
            json["version"] = json!(version);
            json["root"] = json!(root);
            json["replaced"] = json!(replaced);
            "done"
        }
        Outcome::Same => "same",
        Outcome::Removed => "removed",
        Outcome::Planned { replaces } => {
            json["replaces"] = json!(replaces);
            "planned"
        }
        Outcome::PassedOver(why) => {
            json["why"] = json!(why);
            "passed_over"
        }
        Outcome::Failed(error) => {
            json["error"] = Failure::from(error).to_json()["error"].take();
            "failed"
        }
        _ => "unknown",
    };
    json["status"] = json!(status);
    json
}
