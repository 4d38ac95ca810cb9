//! Breaks files and queries at random and has them read: `percale-fuzz SECONDS [SEED] [FOLDER…]`.
//!
//! The files are a small one of each format, and those below the folders, of at most 256 KiB each. Bytes are changed, cut out and taken from another file. What panics
//! counts, since the process that reads headers catches that; what takes a processor longer than 20 s, or more than 1 GiB of memory, ends it with an
//! error, and so does any panic of the query language. The same seed breaks them in the same way.

mod files;
#[path = "../../crates/discovery/tests/made/mod.rs"]
mod made;
mod queries;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use self::files::Named;

/// How much of a processor one file may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Queries for each file.
const QUERIES: u64 = 20;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    let Some(seconds) = arguments.next().and_then(|word| word.parse().ok()) else {
        eprintln!("percale-fuzz SECONDS [SEED] [FOLDER…]");
        return ExitCode::from(2);
    };
    let seed =
        arguments.next_if(|word| word.parse::<u64>().is_ok()).and_then(|word| word.parse().ok()).unwrap_or(1);
    let files = files::all(arguments);
    let limit = Rlimit { current: Some(1 << 30), maximum: Some(1 << 30) };
    if let Err(error) = setrlimit(Resource::As, limit) {
        eprintln!("memory is not limited: {error}");
    }
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    match run(&files, seed, Instant::now() + Duration::from_secs(seconds)) {
        Ok(said) => {
            println!("{said}; seed {seed}, {} to break", files.len());
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            eprintln!("{wrong}");
            ExitCode::FAILURE
        }
    }
}

/// Breaks and reads until then. Returns what was read, or what was wrong.
fn run(files: &[Named], seed: u64, until: Instant) -> Result<String, String> {
    let mut random = Rng::with_seed(seed);
    let (mut read, mut panics, mut queries) = (0_u64, 0_u64, 0_u64);
    while Instant::now() < until {
        if let Some(broken) = files::broken(files, &mut random) {
            read += 1;
            let began = worked();
            let outcome = catch_unwind(AssertUnwindSafe(|| files::read(&broken)));
            let took = worked().saturating_sub(began);
            let (name, bytes) = &broken;
            if matches!(outcome, Ok(false)) {
                return Err(format!(
                    "{name} is referred to where it has no bytes (seed {seed}, file {read})"
                ));
            }
            let keep = || {
                let kept = std::env::temp_dir().join(format!("fuzz-{seed}-{read}-{name}"));
                std::fs::write(&kept, bytes)
                    .map_or_else(|error| error.to_string(), |()| kept.display().to_string())
            };
            if took > PATIENCE {
                return Err(format!("{name} took {took:?}; it is {}", keep()));
            }
            if outcome.is_err() {
                panics += 1;
                eprintln!("{name} was caught in it; it is {}", keep());
            }
        }
        for _ in 0..QUERIES {
            queries::read(&mut random).map_err(|query| format!("the query {query:?} panics"))?;
            queries += 1;
        }
    }
    Ok(format!("{read} files, of which {panics} were caught in a panic; {queries} queries"))
}

/// Returns how long this thread has had a processor: others may have one meanwhile.
fn worked() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
