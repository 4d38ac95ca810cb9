//! Progress for people: bars on a terminal, else a line each 30 s.

use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use percale_client::Progress;
use tokio::task::JoinHandle;

use crate::output::{Output, count, duration, size};

/// Lines of large files beneath the total.
const FILE_LINES: usize = 4;
/// Between two lines where there is no terminal: seldom enough for a job's log, often enough to see that it lives.
const LINE_EVERY: Duration = Duration::from_secs(30);
const DRAW_EVERY: Duration = Duration::from_millis(100);

/// Shows a transfer until it is finished or dropped.
pub struct Bar {
    began: Instant,
    shower: Option<JoinHandle<()>>,
    bars: Option<MultiProgress>,
}

impl Bar {
    /// Begins to show.
    pub fn start(output: Output, progress: Arc<Progress>, verb: &'static str) -> Self {
        let began = Instant::now();
        let (shower, bars) = if output.quiet || output.json {
            (None, None)
        } else if output.is_interactive() {
            let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
            (Some(tokio::spawn(draw(progress, bars.clone(), verb))), Some(bars))
        } else {
            (Some(tokio::spawn(tell(output, progress, verb, began))), None)
        };
        Self { began, shower, bars }
    }

    /// Ends the show and returns how long it took.
    pub async fn finish(mut self) -> Duration {
        let took = self.began.elapsed();
        if let Some(shower) = self.shower.take() {
            shower.abort();
            // Until it has really ended, it may draw once more over what is said next.
            let _ = shower.await;
        }
        took
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(shower) = &self.shower {
            shower.abort();
        }
        if let Some(bars) = &self.bars {
            let _ = bars.clear();
        }
    }
}

/// Draws bars on a terminal.
async fn draw(progress: Arc<Progress>, bars: MultiProgress, verb: &'static str) {
    let style = |template: &str| {
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        style.progress_chars("━╸ ")
    };
    let total = bars.add(ProgressBar::new(1));
    total.set_style(style("{prefix} {bar:24} {percent:>3}%  {decimal_bytes}/{decimal_total_bytes}  {decimal_bytes_per_sec}  {msg}"));
    total.set_prefix(verb);
    let mut lines: Vec<ProgressBar> = Vec::new();
    let mut ticks = tokio::time::interval(DRAW_EVERY);
    loop {
        ticks.tick().await;
        let now = progress.snapshot();
        total.set_length(now.planned_bytes.max(now.done_bytes));
        total.set_position(now.done_bytes);
        let more = if now.is_planned { "" } else { "+" };
        let eta = match now.is_planned {
            true => format!("  {} left", duration(total.eta())),
            false => String::new(),
        };
        total.set_message(format!("{}/{}{more} files{eta}", now.ended_files, now.planned_files));
        let shown = now.active.len().min(FILE_LINES);
        while let Some(file) = now.active.get(lines.len()).filter(|_| lines.len() < shown) {
            let line = bars.add(ProgressBar::new(file.size.max(1)));
            line.set_style(style("  {bar:22} {percent:>3}%  {msg}"));
            lines.push(line);
        }
        while lines.len() > shown {
            if let Some(line) = lines.pop() {
                bars.remove(&line);
            }
        }
        for (line, file) in lines.iter().zip(&now.active) {
            if line.message() != file.name {
                line.reset();
                line.set_message(file.name.clone());
            }
            line.set_length(file.size);
            line.set_position(file.done());
        }
    }
}

/// Writes a line now and then.
async fn tell(output: Output, progress: Arc<Progress>, verb: &'static str, began: Instant) {
    let mut ticks = tokio::time::interval(LINE_EVERY);
    ticks.tick().await;
    let mut before = 0;
    loop {
        ticks.tick().await;
        let now = progress.snapshot();
        let rate = now.done_bytes.saturating_sub(before) / LINE_EVERY.as_secs();
        before = now.done_bytes;
        let more = if now.is_planned { "" } else { " or more" };
        output.talk(format!(
            "{verb}: {} of {}{more}, {} of {}{more}, {}/s, {} failed, after {}",
            size(now.done_bytes),
            size(now.planned_bytes),
            now.ended_files,
            count(now.planned_files, "file"),
            size(rate),
            now.failed_files,
            duration(began.elapsed()),
        ));
    }
}
