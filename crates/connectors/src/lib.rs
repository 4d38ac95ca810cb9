//! Stores on storages other than a directory tree, each behind a feature.
//!
//! No type of the libraries behind them is in a public signature.

#[cfg(feature = "s3")]
pub mod s3;
