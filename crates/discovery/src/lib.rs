//! Finding data by what it is about: the query language.
//!
//! | module | holds |
//! |---|---|
//! | [`language`] | [`parse`]: what people write, as the conditions of [`percale_core::query`] |

pub mod language;

pub use language::{QueryError, parse};
