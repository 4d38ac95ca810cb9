//! Breaks files and queries at random and has them read: `fuzz SECONDS [SEED] [FOLDER…]`.
//!
//! The files are a small one of each format, and those below the folders, of at most 256 KiB each. Bytes are changed, cut out and taken from another file. What panics
//! counts, since the process that reads headers catches that; what takes a processor longer than 20 s, or more than 1 GiB of memory, ends it with an
//! error, and so does any panic of the query language. The same seed breaks them in the same way.

#[path = "../tests/made/mod.rs"]
mod made;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use percale_core::Timestamp;
use percale_discovery::references::{Reference, References};
use percale_discovery::source::File;
use percale_discovery::{cql2, formats, parse};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Largest file that is broken.
const MAX_SIZE: u64 = 256 * 1024;
/// Most files.
const MAX_FILES: usize = 2000;
/// How much of a processor one file may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Numbers at which readers stumble.
const EDGES: [u64; 8] = [0, 1, 0x7f, 0xff, 0x7fff_ffff, 0xffff_ffff, i64::MAX.unsigned_abs(), u64::MAX];
/// What queries are made of.
const WORDS: [&str; 42] = [
    "a",
    "@b",
    "`c d`",
    "name",
    "size",
    ":",
    "=",
    "!=",
    ">",
    "<=",
    "..",
    "(",
    ")",
    "[",
    "]",
    "{",
    "AND",
    "OR",
    "NOT",
    "-",
    "TO",
    "BETWEEN",
    "IN",
    "LIKE",
    "'x''y'",
    "\"",
    "1e309",
    "2024-06",
    "bbox:(",
    "near:(",
    ",",
    "5km",
    "time",
    "IS",
    "NULL",
    "T_DURING(",
    "INTERVAL(",
    "DATE(",
    "S_INTERSECTS(",
    "BBOX(",
    "CASEI(",
    "%_\\",
];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    let Some(seconds) = arguments.next().and_then(|word| word.parse().ok()) else {
        eprintln!("fuzz SECONDS [SEED] [FOLDER…]");
        return ExitCode::from(2);
    };
    let seed =
        arguments.next_if(|word| word.parse::<u64>().is_ok()).and_then(|word| word.parse().ok()).unwrap_or(1);
    let mut files: Vec<_> = made::all().into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
    arguments.for_each(|folder| gather(Path::new(&folder), &mut files));
    let limit = Rlimit { current: Some(1 << 30), maximum: Some(1 << 30) };
    if let Err(error) = setrlimit(Resource::As, limit) {
        eprintln!("memory is not limited: {error}");
    }
    std::panic::set_hook(Box::new(|_| {}));
    let mut random = Rng::with_seed(seed);
    let (until, mut read, mut panics, mut queries) =
        (Instant::now() + Duration::from_secs(seconds), 0u64, 0u64, 0u64);
    while Instant::now() < until {
        if let Some((name, bytes)) = broken(&files, &mut random) {
            let began = worked();
            let file = File::new(Arc::new(bytes.clone()));
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let _ = formats::read(&file, &name).map(|found| found.map(|found| found.finish()));
                formats::references::read(&file)
                    .ok()
                    .flatten()
                    .is_none_or(|found| is_within(&found, file.size()))
            }));
            if matches!(outcome, Ok(false)) {
                eprintln!("{name} is referred to where it has no bytes (seed {seed}, file {read})");
                return ExitCode::FAILURE;
            }
            read += 1;
            if outcome.is_err() {
                panics += 1;
            }
            let took = worked().saturating_sub(began);
            if took > PATIENCE {
                let kept = std::env::temp_dir().join(format!("fuzz-{seed}-{read}-{name}"));
                let _ = std::fs::write(&kept, bytes);
                eprintln!("{name} took {took:?}; it is {}", kept.display());
                return ExitCode::FAILURE;
            }
        }
        for _ in 0..20 {
            let query: String = (0..random.usize(0..24))
                .map(|_| {
                    format!(
                        "{}{}",
                        random.choice(WORDS).unwrap_or_default(),
                        random.choice(["", " "]).unwrap_or_default()
                    )
                })
                .collect();
            queries += 1;
            let read = || {
                let _ = parse(&query, Timestamp::EPOCH);
                let _ = cql2::parse_json(&query, Timestamp::EPOCH);
                cql2::parse_text(&query, Timestamp::EPOCH).map(|condition| cql2::write(&condition))
            };
            if catch_unwind(read).is_err() {
                eprintln!("the query {query:?} panics");
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "{read} files, of which {panics} were caught in a panic; {queries} queries; seed {seed}, {} to break",
        files.len()
    );
    ExitCode::SUCCESS
}

/// Returns how long this thread has had a processor: others may have one meanwhile.
fn worked() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

fn gather(folder: &Path, files: &mut Vec<(String, Vec<u8>)>) {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries {
        let Ok(about) = path.symlink_metadata() else { continue };
        if about.is_dir() {
            gather(&path, files);
        } else if about.is_file() && about.len() <= MAX_SIZE && files.len() < MAX_FILES {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Ok(bytes) = std::fs::read(&path) else { continue };
            // What is of no format stays so.
            let file = File::new(Arc::new(bytes.clone()));
            if matches!(
                catch_unwind(AssertUnwindSafe(
                    || formats::read(&file, &name).is_ok_and(|found| found.is_some())
                )),
                Ok(true)
            ) {
                files.push((name, bytes));
            }
        }
    }
}

/// Tells whether all references are to bytes that there are.
fn is_within(found: &References, size: u64) -> bool {
    found.refs.values().all(|reference| match reference {
        Reference::Range(offset, len) => offset.checked_add(*len).is_some_and(|end| end <= size),
        Reference::Text(_) => true,
    })
}

/// Breaks one of the files.
fn broken(files: &[(String, Vec<u8>)], random: &mut Rng) -> Option<(String, Vec<u8>)> {
    let (name, bytes) = random.choice(files)?;
    let mut bytes = bytes.clone();
    for _ in 0..=random.usize(0..8) {
        // Most of what is read stands at the beginning.
        let most = if random.bool() { bytes.len().min(1024) } else { bytes.len() };
        let at = random.usize(0..most.max(1));
        match random.u8(0..6) {
            0 => bytes.truncate(at),
            1 => {
                let edge = random.choice(EDGES).unwrap_or_default();
                let width = random.choice([1, 2, 4, 8]).unwrap_or(1);
                let digits = if random.bool() {
                    edge.to_le_bytes()
                } else {
                    edge.rotate_left(64 - width as u32 * 8).to_be_bytes()
                };
                for (byte, digit) in bytes.iter_mut().skip(at).zip(digits).take(width) {
                    *byte = digit;
                }
            }
            2 => {
                let (_, other) = random.choice(files)?;
                let from = random.usize(0..other.len().max(1));
                for (byte, taken) in bytes.iter_mut().skip(at).zip(other.iter().skip(from)).take(64) {
                    *byte = *taken;
                }
            }
            3 => drop(bytes.drain(
                at.min(bytes.len())..(at + random.usize(0..64)).min(bytes.len()).max(at.min(bytes.len())),
            )),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.u32(0..8);
                }
            }
        }
    }
    Some((name.clone(), bytes))
}
