//! `bench`: how fast things are, here and now.

mod fit;
mod probe;
mod workload;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use percale_core::{ByteCount, ErrorCode};
use serde_json::{Value, json};

use self::fit::{Estimate, Model, Sample, Unfit};
use self::probe::{Probes, Series, Way};
use self::workload::Workload;
use super::grant::fabric_path;
use crate::address::{FabricPath, show};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{count, duration, size};

/// `percale bench`
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure what transfers between two places cost, and predict how long others take
    Model(ModelArgs),
}

/// `percale bench model`
#[derive(Debug, Args)]
#[command(after_help = "\
A transfer of N files and B bytes takes S0 + N·t0 + B/R: a start, something for each file, and the bytes at a rate. The three are
fitted to a short series of real transfers of generated files, each with its 95 % interval. The files are made below
PATH and in --local, and removed at the end, also when the command is interrupted; both need room for about three times --size.

Without --from the files are at this computer, without --to they come to it; with neither they go from this computer to the
site in use. Between two sites a task is measured, at the sites; to or from this computer, what `put` and `get` take.

A prediction is worth what the series saw: nothing else that used the link, no disk that fills. The larger --size, the
narrower its interval.

Examples:
  percale bench model percale:/climate --size 8MB --files 20
  percale bench model percale:/climate --from alps --to baltic
  percale bench model percale:/climate --from alps --to baltic --predict '4TB in 3M files'
  percale bench model percale:/climate --from alps --predict '500GB in 20k files' --json")]
pub struct ModelArgs {
    /// The collection below which the files are made
    #[arg(value_parser = fabric_path, value_name = "PATH")]
    path: FabricPath,
    /// The site that has the files; this computer if absent
    #[arg(long, value_name = "SITE")]
    from: Option<String>,
    /// The site that gets the files; this computer if absent and --from is given, else the site in use
    #[arg(long, value_name = "SITE")]
    to: Option<String>,
    /// Bytes of the largest transfer
    #[arg(long, value_name = "SIZE", default_value = "256MB")]
    size: ByteCount,
    /// Files of the longest transfer
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(2..=1_000_000))]
    files: u64,
    /// How often each transfer of the series is made
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Say how long a transfer like this takes, such as '4TB in 3M files'; may be repeated
    #[arg(long, value_name = "WHAT")]
    predict: Vec<Workload>,
    /// Where the files are generated at this computer; the folder for temporary files if absent
    #[arg(long, value_name = "DIR")]
    local: Option<PathBuf>,
}

/// Runs a command of the group.
pub async fn run(command: BenchCommand, context: &Context) -> Result {
    match command {
        BenchCommand::Model(args) => model(args, context).await,
    }
}

async fn model(args: ModelArgs, context: &Context) -> Result {
    if args.path.path.is_root() {
        let failure = Failure::usage(format!("{} is in no space", args.path));
        return Err(failure.with_hint("`percale ls percale:/` lists the spaces; name one."));
    }
    // Below this nothing but the start would be measured.
    if args.size.get() < args.files.saturating_mul(2048) {
        let message = format!("--size {} is too little for {}", args.size, count(args.files, "file"));
        return Err(Failure::usage(message).with_hint("Give at least 2 KiB for each file, or fewer --files."));
    }
    let client = context.client_for([&args.path])?;
    let here = context.interruptible(client.site()).await??.name;
    let way = way(&here, args.from.clone(), args.to.clone())?;
    let series = Series { bytes: args.size.get(), files: args.files, rounds: args.rounds };
    context.output.talk(format!(
        "{}: up to {} in {}, {}, below {}; {} for the probes",
        describe(&way, &here),
        size(series.bytes),
        count(series.files, "file"),
        count(series.rounds.into(), "round"),
        show(&args.path.path),
        size(series.room())
    ));
    let local = args.local.clone().unwrap_or_else(std::env::temp_dir);
    let probes = Probes::prepare(context, client, way.clone(), &args.path.path, &local).await?;
    let measured = probes.measure(series).await;
    let removed = probes.remove().await;
    // What went wrong first is told first.
    let samples = measured.inspect_err(|_| {
        if let Err(failure) = &removed {
            context.output.failure(failure);
        }
    })?;
    let model = Model::fit(&samples).map_err(unfit)?;
    match context.output.json {
        true => context.output.document(&document(&way, &here, &samples, &model, &args.predict))?,
        false => show_model(context, &way, &here, &samples, &model, &args.predict)?,
    }
    removed
}

/// Decides what is measured. This computer reaches the site in use, so that is where its own transfers go.
fn way(here: &str, from: Option<String>, to: Option<String>) -> Result<Way> {
    match (from, to) {
        (Some(from), Some(to)) if from == to => Err(Failure::usage(format!(
            "--from and --to are both {from}; a copy goes from one site to another"
        ))),
        (Some(from), Some(to)) => Ok(Way::Between { from, to }),
        (None, Some(other)) | (Some(other), None) if other != here => {
            let message =
                format!("this computer's transfers go to and from the site in use, {here}, not {other}");
            let hint =
                format!("Use the profile of {other} with --profile, or name two sites with --from and --to.");
            Err(Failure::usage(message).with_hint(hint))
        }
        (Some(_), None) => Ok(Way::Get),
        (None, _) => Ok(Way::Put),
    }
}

fn ends<'a>(way: &'a Way, here: &'a str) -> (Option<&'a str>, Option<&'a str>) {
    match way {
        Way::Put => (None, Some(here)),
        Way::Get => (Some(here), None),
        Way::Between { from, to } => (Some(from), Some(to)),
    }
}

fn describe(way: &Way, here: &str) -> String {
    let (from, to) = ends(way, here);
    let name = |end: Option<&str>| end.unwrap_or("this computer").to_owned();
    format!("from {} to {}", name(from), name(to))
}

fn unfit(why: Unfit) -> Failure {
    let (why, hint) = match why {
        Unfit::TooFew => ("there are too few transfers", "Make more --rounds."),
        Unfit::TooAlike => ("its transfers are too much alike", "Give a larger --size, or more --files."),
        Unfit::NoTime => ("the clock of a site jumped while it ran", "Run it again."),
    };
    Failure::new(ErrorCode::Internal, format!("no model fits the series: {why}")).with_hint(hint)
}

fn document(way: &Way, here: &str, samples: &[Sample], model: &Model, predict: &[Workload]) -> Value {
    let (from, to) = ends(way, here);
    let predictions: Vec<Value> = predict
        .iter()
        .map(|wanted| {
            let seconds = model.predict(wanted.files, wanted.bytes);
            json!({"files": wanted.files, "bytes": wanted.bytes, "seconds": seconds})
        })
        .collect();
    json!({
        "from": from,
        "to": to,
        "start_s": model.start(),
        "per_file_s": model.per_file(),
        "rate_bytes_per_s": model.rate(),
        "error_s": model.error(),
        "predictions": predictions,
        "probes": samples,
    })
}

fn show_model(
    context: &Context,
    way: &Way,
    here: &str,
    samples: &[Sample],
    model: &Model,
    predict: &[Workload],
) -> Result {
    let row = |what: &str, symbol: &str, estimate: Estimate, write: fn(f64) -> String| {
        let (low, high) = (write(estimate.low), estimate.high.map(write));
        let range = high.map_or_else(|| format!("at least {low}"), |high| format!("{low} to {high}"));
        vec![what.to_owned(), symbol.to_owned(), write(estimate.value), range]
    };
    let mut rows = vec![
        row("start", "S0", model.start(), time),
        row("each file", "t0", model.per_file(), |seconds| format!("{:.3} ms", seconds * 1e3)),
    ];
    rows.push(match model.rate() {
        Some(rate) => row("rate", "R", rate, |rate| format!("{}/s", size(rate as u64))),
        None => vec!["rate".into(), "R".into(), "too fast to be seen".into(), "give a larger --size".into()],
    });
    context
        .output
        .line(context.output.table(&[&describe(way, here), "", "value#", "95 % interval"], rows))?;
    let text = format!(
        "{}, which differ from the model by {} (standard error)",
        count(samples.len() as u64, "transfer"),
        time(model.error())
    );
    context.output.line(text)?;
    for wanted in predict {
        let estimate = model.predict(wanted.files, wanted.bytes);
        let range = estimate.high.map(|high| format!(" ({} to {})", time(estimate.low), time(high)));
        context.output.line(format!("{wanted}: {}{}", time(estimate.value), range.unwrap_or_default()))?;
    }
    Ok(())
}

fn time(seconds: f64) -> String {
    // Below a second hundredths are too coarse for a start.
    if seconds < 1.0 {
        format!("{seconds:.3} s")
    } else {
        duration(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_a_way_follow_from_what_was_named() {
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(way("alps", None, None).unwrap(), Way::Put);
        assert_eq!(way("alps", None, some("alps")).unwrap(), Way::Put);
        assert_eq!(way("alps", some("alps"), None).unwrap(), Way::Get);
        let between = Way::Between { from: "baltic".into(), to: "coast".into() };
        assert_eq!(way("alps", some("baltic"), some("coast")).unwrap(), between);
        for (from, to) in [(None, some("baltic")), (some("baltic"), None), (some("alps"), some("alps"))] {
            assert_eq!(way("alps", from, to).unwrap_err().code(), ErrorCode::InvalidRequest);
        }
    }
}
