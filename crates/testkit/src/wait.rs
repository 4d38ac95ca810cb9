//! Waiting for a condition, with a deadline. A test never sleeps for a while and hopes.

use std::time::{Duration, Instant};

/// Pauses between looks grow from the first to the second.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Looks until `condition` gives something, and returns it.
///
/// # Panics
/// If the deadline passes. `what` says what was waited for.
pub fn until<T>(what: &str, deadline: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(start.elapsed() < deadline, "waited {deadline:?} in vain for {what}");
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// As [`until`], on an asynchronous runtime.
///
/// # Panics
/// If the deadline passes.
pub async fn until_async<T, F>(what: &str, deadline: Duration, mut condition: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(found) = condition().await {
            return found;
        }
        assert!(start.elapsed() < deadline, "waited {deadline:?} in vain for {what}");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_again_until_the_condition_holds() {
        let mut looks = 0;
        let found = until("the third look", Duration::from_secs(5), || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(found, 3);
    }

    #[test]
    #[should_panic(expected = "in vain for nothing at all")]
    fn it_gives_up_at_the_deadline() {
        until("nothing at all", Duration::from_millis(5), || None::<()>);
    }
}
