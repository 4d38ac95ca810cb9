//! What is found: headers that are read whatever happens, and queries as people write them.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

#[path = "../common/mod.rs"]
mod common;

mod examples;
mod extraction;
