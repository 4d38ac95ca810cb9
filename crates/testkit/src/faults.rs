//! Seeds, and schedules of faults that can be repeated.

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use percale_samples::Random;

/// The variable that repeats a run.
pub const SEED_VARIABLE: &str = "PERCALE_SEED";

/// Returns the seed of this run and prints it: `PERCALE_SEED`, or one from the clock.
///
/// # Panics
/// If the variable is not a number.
pub fn seed(test: &str) -> u64 {
    let seed = match std::env::var(SEED_VARIABLE) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{SEED_VARIABLE}={text} is not a number")),
        Err(_) => {
            let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::from(since_1970.subsec_nanos()) ^ (since_1970.as_secs() << 20)
        }
    };
    eprintln!("{test}: seed {seed}; {SEED_VARIABLE}={seed} repeats the schedule");
    seed
}

/// Returns a number from the environment, or a default: how many rounds a long test makes.
///
/// # Panics
/// If the variable is not a number.
pub fn rounds(variable: &str, default: u32) -> u32 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")),
        Err(_) => default,
    }
}

/// Decides what goes wrong, and when.
#[derive(Debug, Clone)]
pub struct Schedule(Random);

impl Schedule {
    /// Begins the schedule of a seed.
    pub fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    /// Returns a schedule of its own for one of several actors, which does not depend on how they interleave.
    pub fn actor(&self, number: u64) -> Self {
        Self(self.0.fork(number))
    }

    /// Returns a pause within bounds.
    pub fn pause(&mut self, bounds: Range<Duration>) -> Duration {
        let width = bounds.end.saturating_sub(bounds.start).as_micros();
        bounds.start + Duration::from_micros(self.0.below(u64::try_from(width).unwrap_or(u64::MAX)))
    }

    /// Returns one of several.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        let index = usize::try_from(self.0.below(choices.len() as u64)).unwrap_or(0);
        choices.get(index).expect("there is something to pick from")
    }

    /// Returns a number within bounds.
    pub fn number(&mut self, bounds: Range<u64>) -> u64 {
        bounds.start + self.0.below(bounds.end.saturating_sub(bounds.start))
    }

    /// Tells yes with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.0.chance(probability)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_schedule() {
        let run = || {
            let mut schedule = Schedule::new(7).actor(2);
            let bounds = Duration::from_millis(2)..Duration::from_millis(9);
            let pause = schedule.pause(bounds.clone());
            assert!(bounds.contains(&pause));
            (pause, *schedule.pick(&["kill", "cut", "fill"]), schedule.number(5..9), schedule.chance(0.5))
        };
        assert_eq!(run(), run());
    }
}
