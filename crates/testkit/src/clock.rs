//! Clocks that are wrong: a process whose time of day is another one, for all that it is made of.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Adds an offset to the time of day. Time that only goes on, for pauses and timeouts, stays as it is.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long offset(void) {
    static long known, is_known;
    if (!is_known) {
        const char *text = getenv("PERCALE_TEST_CLOCK_S");
        known = text ? atol(text) : 0;
        is_known = 1;
    }
    return known;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int outcome = real(clock, now);
    if (outcome == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += offset();
    return outcome;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}
"#;

/// Returns the variables with which a process started by a test has a clock that is so many seconds ahead, or behind if
/// negative. What it starts has the same.
///
/// # Panics
/// If the C compiler, with which Rust links too, cannot make the library that does it.
pub fn ahead_by(seconds: i64, folder: &Path) -> Vec<(String, String)> {
    vec![
        ("LD_PRELOAD".to_owned(), library(folder).display().to_string()),
        ("PERCALE_TEST_CLOCK_S".to_owned(), seconds.to_string()),
    ]
}

fn library(folder: &Path) -> PathBuf {
    let (source, made) = (folder.join("clock.c"), folder.join("clock.so"));
    if !made.exists() {
        std::fs::write(&source, SHIM).expect("cannot write a source");
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&made)
            .arg(&source)
            .arg("-ldl")
            .output()
            .expect("cannot run cc");
        assert!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr));
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_another_time_of_day() {
        let folder = tempfile::tempdir().unwrap();
        let now = || {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            i64::try_from(since.as_secs()).unwrap()
        };
        for by in [600, -600] {
            let output = Command::new("date").arg("+%s").envs(ahead_by(by, folder.path())).output().unwrap();
            let told: i64 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
            assert!((told - now() - by).abs() < 60, "{told}");
        }
    }
}
