//! Places where a test ends the process, to see that what is stored there is enough to recover.
//!
//! `PERCALE_FAILPOINT=NAME` or `NAME:N` aborts the process the first or the N-th time it comes to the place, without any
//! clean-up, as `kill -9` would. Only in builds with debug assertions; elsewhere the function is empty.

/// Ends the process here if the environment asks for it.
#[cfg(debug_assertions)]
pub fn failpoint(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static WANTED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static SEEN: AtomicU64 = AtomicU64::new(0);
    let wanted = WANTED.get_or_init(|| {
        let text = std::env::var("PERCALE_FAILPOINT").ok()?;
        let (name, count) = text.split_once(':').unwrap_or((&text, "1"));
        Some((name.to_owned(), count.parse().unwrap_or(1)))
    });
    if let Some((wanted, count)) = wanted
        && wanted == name
        && SEEN.fetch_add(1, Ordering::Relaxed) + 1 == *count
    {
        eprintln!("failpoint {name}: the process ends here");
        std::process::abort();
    }
}

/// Does nothing in this build.
#[cfg(not(debug_assertions))]
pub fn failpoint(_: &str) {}
