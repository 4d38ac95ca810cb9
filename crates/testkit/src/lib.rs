//! What the tests of several crates need. Only ever a dev-dependency.
//!
//! | module | holds |
//! |---|---|
//! | [`clock`] | processes whose clock is wrong |
//! | [`data`] | files that look like those of science, and contents that follow from a seed |
//! | [`faults`] | seeds, and schedules of faults that can be repeated |
//! | [`link`] | a link that is cut without a word |
//! | [`postgres`] | a PostgreSQL server on loopback, a database for each test |
//! | [`process`] | a site: the real binary serving on a port of its own, killed and started at will |
//! | [`s3`] | an S3 server on loopback, with a bucket |
//! | [`tmpfs`] | a small file system that fills up |
//! | [`tools`] | what `scripts/bootstrap` installs for tests |
//! | [`wait`] | waiting for a condition, with a deadline |
//!
//! Everything here panics when it cannot go on: the test has failed then.

pub mod clock;
pub mod faults;
pub mod link;
pub mod postgres;
pub mod process;
pub mod s3;
pub mod tmpfs;
pub mod tools;
pub mod wait;

pub use percale_samples as data;
