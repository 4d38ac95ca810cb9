//! Pseudo-random numbers that are the same everywhere.

/// SplitMix64 (Steele, Lea and Flood 2014): small, quick, and good enough for weather and for schedules.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Begins the series of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Begins a series of its own for a part of the work, so that parts may be made in any order.
    pub fn fork(&self, part: u64) -> Self {
        let mut fork = Self(self.0 ^ part.wrapping_mul(0xd134_2543_de82_ef95));
        fork.next();
        fork
    }

    /// Returns the next number.
    #[allow(
        clippy::should_implement_trait,
        reason = "an endless series is not worth an iterator's interface"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`, or 0 if that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        // The upper half of the product: without the bias of a remainder that could be noticed here.
        u64::try_from((u128::from(self.next()) * u128::from(limit)) >> 64).unwrap_or(0)
    }

    /// Returns a number from 0 up to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Tells yes with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_is_fixed_and_stays_in_bounds() {
        // The reference values of the algorithm's authors for seed 1234567.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
        for _ in 0..1000 {
            assert!(random.below(7) < 7);
            assert!((0.0..1.0).contains(&random.unit()));
        }
        assert_eq!(random.below(0), 0);
        assert_ne!(random.fork(1).next(), random.fork(2).next());
    }
}
