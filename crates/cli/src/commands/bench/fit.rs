//! The model of a transfer, `T = S0 + N·t0 + B/R`, fitted to what was measured.
//!
//! N files of B bytes together take T seconds: a start, something for each file, and the bytes at a rate. The three costs are
//! found by ordinary least squares. A cost cannot be less than nothing; one that comes out so is taken as zero, and the others
//! are fitted again.

use serde::Serialize;

/// The three costs.
const COSTS: usize = 3;

/// 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// A transfer that was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sample {
    /// Files.
    pub files: u64,
    /// Bytes of all files together.
    pub bytes: u64,
    /// Seconds from the start to the end.
    pub seconds: f64,
}

/// A value with its 95 % interval, cut off at zero.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end; absent if there is none.
    pub high: Option<f64>,
}

/// Why there is no model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// Fewer measurements than an interval needs.
    TooFew,
    /// Files or bytes did not vary, or only together, so that their costs cannot be told apart.
    TooAlike,
    /// A time is no number, or below zero.
    NoTime,
}

/// What a transfer costs.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// S0 in seconds, t0 in seconds a file, 1/R in seconds a byte.
    costs: [f64; COSTS],
    /// Variance of the costs, in units of the error's.
    spread: [[f64; COSTS]; COSTS],
    /// How far a single transfer is from the model, as a standard error in seconds.
    error: f64,
    /// Student's quantile.
    quantile: f64,
}

impl Model {
    /// Fits the model.
    pub fn fit(samples: &[Sample]) -> Result<Self, Unfit> {
        if samples.len() <= COSTS {
            return Err(Unfit::TooFew);
        }
        if samples.iter().any(|sample| !sample.seconds.is_finite() || sample.seconds < 0.0) {
            return Err(Unfit::NoTime);
        }
        // Bytes are a thousand million times seconds: without a common scale the inverse would be noise.
        let rows: Vec<[f64; COSTS]> = samples.iter().map(|sample| row(sample.files, sample.bytes)).collect();
        let mut scale = [1.0; COSTS];
        for (column, scale) in scale.iter_mut().enumerate() {
            *scale = rows.iter().map(|row| row[column]).fold(0.0, f64::max);
            if *scale == 0.0 {
                return Err(Unfit::TooAlike);
            }
        }
        let scaled: Vec<[f64; COSTS]> =
            rows.iter().map(|row| std::array::from_fn(|column| row[column] / scale[column])).collect();
        let seconds: Vec<f64> = samples.iter().map(|sample| sample.seconds).collect();

        let all = [true; COSTS];
        let (free, inverse) = solve(&scaled, &seconds, all).ok_or(Unfit::TooAlike)?;
        let freedom = samples.len() - COSTS;
        let error = (squares(&scaled, &seconds, &free) / freedom as f64).sqrt();
        let costs = at_least_zero(&scaled, &seconds).ok_or(Unfit::TooAlike)?;
        Ok(Self {
            costs: std::array::from_fn(|cost| costs[cost] / scale[cost]),
            spread: std::array::from_fn(|row| {
                std::array::from_fn(|column| inverse[row][column] / scale[row] / scale[column])
            }),
            error,
            quantile: student(freedom),
        })
    }

    /// S0: what a transfer costs before it moves anything, in seconds.
    pub fn start(&self) -> Estimate {
        self.cost(0)
    }

    /// t0: what each file costs, in seconds.
    pub fn per_file(&self) -> Estimate {
        self.cost(1)
    }

    /// R: bytes a second. Nothing if the bytes cost too little to be seen in what was measured.
    pub fn rate(&self) -> Option<Estimate> {
        let cost = self.cost(2);
        let invert = |cost: f64| (cost > 0.0).then(|| cost.recip());
        let value = invert(cost.value)?;
        Some(Estimate { value, low: cost.high.and_then(invert).unwrap_or(0.0), high: invert(cost.low) })
    }

    /// How far a single transfer is from the model: a standard error, in seconds.
    pub fn error(&self) -> f64 {
        self.error
    }

    /// How long a transfer takes, in seconds. The interval is that of a single transfer, so it holds both what the measurements left open and
    /// how much one transfer differs from the next.
    pub fn predict(&self, files: u64, bytes: u64) -> Estimate {
        let row = row(files, bytes);
        let value: f64 = (0..COSTS).map(|cost| row[cost] * self.costs[cost]).sum();
        let spread: f64 = (0..COSTS)
            .flat_map(|left| (0..COSTS).map(move |right| (left, right)))
            .map(|(left, right)| row[left] * self.spread[left][right] * row[right])
            .sum();
        around(value, self.quantile * self.error * (1.0 + spread).sqrt())
    }

    fn cost(&self, cost: usize) -> Estimate {
        around(self.costs[cost], self.quantile * self.error * self.spread[cost][cost].sqrt())
    }
}

fn row(files: u64, bytes: u64) -> [f64; COSTS] {
    [1.0, files as f64, bytes as f64]
}

fn around(value: f64, half: f64) -> Estimate {
    Estimate { value, low: (value - half).max(0.0), high: Some(value + half) }
}

fn student(freedom: usize) -> f64 {
    STUDENT.get(freedom.saturating_sub(1)).copied().unwrap_or(1.96 + 2.4 / freedom as f64)
}

/// The best costs of which none is below zero: of all ways to leave some out, the one with the least squares.
fn at_least_zero(rows: &[[f64; COSTS]], seconds: &[f64]) -> Option<[f64; COSTS]> {
    (1_usize..1 << COSTS)
        .filter_map(|subset| solve(rows, seconds, std::array::from_fn(|cost| subset >> cost & 1 == 1)))
        .map(|(costs, _)| costs)
        .filter(|costs| costs.iter().all(|cost| *cost >= 0.0))
        .min_by(|left, right| squares(rows, seconds, left).total_cmp(&squares(rows, seconds, right)))
}

fn squares(rows: &[[f64; COSTS]], seconds: &[f64], costs: &[f64; COSTS]) -> f64 {
    let off = |row: &[f64; COSTS], seconds: f64| {
        (seconds - row.iter().zip(costs).map(|(size, cost)| size * cost).sum::<f64>()).powi(2)
    };
    rows.iter().zip(seconds).map(|(row, seconds)| off(row, *seconds)).sum()
}

/// The costs with the least squares, those that are not wanted being zero, and the inverse of the normal matrix. Nothing if the wanted ones
/// cannot be told apart.
fn solve(
    rows: &[[f64; COSTS]],
    seconds: &[f64],
    wanted: [bool; COSTS],
) -> Option<([f64; COSTS], [[f64; COSTS]; COSTS])> {
    let mut normal = [[0.0; COSTS]; COSTS];
    let mut right = [0.0; COSTS];
    for (row, seconds) in rows.iter().zip(seconds) {
        for left in (0..COSTS).filter(|left| wanted[*left]) {
            right[left] += row[left] * seconds;
            for column in (0..COSTS).filter(|column| wanted[*column]) {
                normal[left][column] += row[left] * row[column];
            }
        }
    }
    for cost in (0..COSTS).filter(|cost| !wanted[*cost]) {
        normal[cost][cost] = 1.0;
    }
    let inverse = invert(normal)?;
    let costs =
        std::array::from_fn(|row| (0..COSTS).map(|column| inverse[row][column] * right[column]).sum());
    Some((costs, inverse))
}

/// Gauss and Jordan, with the largest pivot. Nothing for a matrix that is singular, or nearly so.
fn invert(mut matrix: [[f64; COSTS]; COSTS]) -> Option<[[f64; COSTS]; COSTS]> {
    let largest = matrix.iter().flatten().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    let mut inverse: [[f64; COSTS]; COSTS] =
        std::array::from_fn(|row| std::array::from_fn(|column| if row == column { 1.0 } else { 0.0 }));
    for step in 0..COSTS {
        let pivot = (step..COSTS)
            .max_by(|left, right| matrix[*left][step].abs().total_cmp(&matrix[*right][step].abs()))?;
        if matrix[pivot][step].abs() <= largest * 1e-12 {
            return None;
        }
        matrix.swap(step, pivot);
        inverse.swap(step, pivot);
        let by = matrix[step][step];
        for column in 0..COSTS {
            matrix[step][column] /= by;
            inverse[step][column] /= by;
        }
        for row in (0..COSTS).filter(|row| *row != step) {
            let by = matrix[row][step];
            for column in 0..COSTS {
                matrix[row][column] -= by * matrix[step][column];
                inverse[row][column] -= by * inverse[step][column];
            }
        }
    }
    Some(inverse)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPES: [(u64, u64); 6] = [
        (1, 1000),
        (1, 128_000_000),
        (1, 256_000_000),
        (500, 500_000),
        (1000, 1_000_000),
        (1000, 256_000_000),
    ];

    /// Three rounds of transfers that take what the costs say, and `noise` times a number from -1 to 1 that follows from the seed.
    fn samples(start: f64, per_file: f64, rate: f64, noise: f64, seed: u64) -> Vec<Sample> {
        let mut random = percale_samples::Random::new(seed);
        let rounds = std::iter::repeat_n(SHAPES, 3).flatten();
        rounds
            .map(|(files, bytes)| {
                let seconds = start + files as f64 * per_file + bytes as f64 / rate;
                Sample { files, bytes, seconds: (seconds + noise * (2.0 * random.unit() - 1.0)).max(0.0) }
            })
            .collect()
    }

    fn is_near(value: f64, expected: f64) -> bool {
        (value - expected).abs() <= 1e-6 * expected.abs()
    }

    #[test]
    fn costs_that_are_exact_are_found_exactly() {
        let model = Model::fit(&samples(0.3, 0.0001, 140e6, 0.0, 1)).unwrap();
        assert!(is_near(model.start().value, 0.3), "{model:?}");
        assert!(is_near(model.per_file().value, 0.0001), "{model:?}");
        assert!(is_near(model.rate().unwrap().value, 140e6), "{model:?}");
        let whole = model.predict(3_000_000, 4_000_000_000_000);
        assert!(is_near(whole.value, 0.3 + 300.0 + 4e12 / 140e6), "{whole:?}");
        assert!(is_near(whole.low, whole.value) && is_near(whole.high.unwrap(), whole.value), "{whole:?}");
    }

    #[test]
    fn intervals_hold_the_truth_about_as_often_as_they_say() {
        let mut held = [0; 4];
        let rounds = 400;
        for seed in 0..rounds {
            let model = Model::fit(&samples(2.0, 0.004, 140e6, 0.3, seed)).unwrap();
            let inside = |estimate: Estimate, truth: f64| {
                estimate.low <= truth && estimate.high.is_none_or(|high| truth <= high)
            };
            // A transfer like those that were fitted, with a noise that they have not seen.
            let noise = 0.3 * (2.0 * percale_samples::Random::new(seed + 1_000_000).unit() - 1.0);
            let truths = [
                inside(model.start(), 2.0),
                inside(model.per_file(), 0.004),
                inside(model.rate().unwrap(), 140e6),
                inside(model.predict(700, 200_000_000), 2.0 + 2.8 + 2e8 / 140e6 + noise),
            ];
            for (held, is_inside) in held.iter_mut().zip(truths) {
                *held += u64::from(is_inside);
            }
        }
        for held in held {
            let share = held as f64 / rounds as f64;
            assert!((0.90..=1.0).contains(&share), "{held} of {rounds}");
        }
    }

    #[test]
    fn intervals_narrow_with_the_noise_and_widen_with_the_distance() {
        let width = |estimate: Estimate| estimate.high.unwrap() - estimate.low;
        let quiet = Model::fit(&samples(2.0, 0.004, 140e6, 0.01, 7)).unwrap();
        let loud = Model::fit(&samples(2.0, 0.004, 140e6, 0.3, 7)).unwrap();
        assert!(width(quiet.per_file()) * 10.0 < width(loud.per_file()));
        assert!(quiet.error() * 10.0 < loud.error());
        assert!(width(loud.predict(1, 1000)) * 100.0 < width(loud.predict(3_000_000, 4_000_000_000_000)));
    }

    #[test]
    fn no_cost_is_below_zero() {
        // The more files, the faster: by accident, but so it was measured.
        let odd: Vec<Sample> = samples(1.0, 0.0, 100e6, 0.0, 1)
            .into_iter()
            .map(|sample| Sample { seconds: sample.seconds - sample.files as f64 * 0.0001, ..sample })
            .collect();
        let model = Model::fit(&odd).unwrap();
        assert_eq!(model.per_file().value, 0.0);
        assert_eq!(model.per_file().low, 0.0);
        let few = model.predict(1, 1_000_000_000);
        let many = model.predict(1_000_000, 1_000_000_000);
        assert!(many.value >= few.value && few.value > 0.0, "{few:?} {many:?}");
    }

    #[test]
    fn a_rate_that_cannot_be_seen_is_not_named() {
        let flat: Vec<Sample> = SHAPES
            .iter()
            .map(|&(files, bytes)| Sample {
                files,
                bytes,
                seconds: 1.0 + files as f64 * 0.01 - bytes as f64 * 1e-12,
            })
            .collect();
        assert_eq!(Model::fit(&flat).unwrap().rate(), None);
        // With noise over it, a rate may have no upper end.
        let loud = Model::fit(&samples(1.0, 0.001, 100e9, 0.05, 3)).unwrap();
        assert!(loud.rate().is_none_or(|rate| rate.high.is_none()), "{loud:?}");
    }

    #[test]
    fn what_cannot_be_told_apart_is_refused() {
        let sample = |files, bytes| Sample { files, bytes, seconds: 1.0 };
        assert_eq!(Model::fit(&[sample(1, 1), sample(2, 9), sample(3, 2)]), Err(Unfit::TooFew));
        assert_eq!(Model::fit(&[sample(1, 10); 5]), Err(Unfit::TooAlike));
        let together: Vec<Sample> = (1..9).map(|files| sample(files, files * 1000)).collect();
        assert_eq!(Model::fit(&together), Err(Unfit::TooAlike));
        let none: Vec<Sample> = (1..9).map(|files| sample(files, 0)).collect();
        assert_eq!(Model::fit(&none), Err(Unfit::TooAlike));
        let mut broken = samples(1.0, 0.1, 1e6, 0.0, 1);
        broken[0].seconds = f64::NAN;
        assert_eq!(Model::fit(&broken), Err(Unfit::NoTime));
    }

    #[test]
    fn quantiles_fall_to_that_of_the_normal_distribution() {
        let all: Vec<f64> = (1..200).map(student).collect();
        assert!(all.windows(2).all(|pair| pair[0] >= pair[1]), "{all:?}");
        assert!((student(100_000) - 1.96).abs() < 0.001);
    }
}
