//! Sites that make one fabric, each a server of its own in this process, over real TLS.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test says what it expects by failing")]

#[path = "../common/mod.rs"]
mod common;

mod buckets;
mod copying;
mod cuts;
mod fabric;
mod faults;
mod homes;
mod importing;
mod joining;
mod keys;
mod late;
mod liar;
mod limits;
mod lying;
mod meddler;
mod medium;
mod namespace;
mod outgoing;
mod plain;
mod receipts;
mod redirects;
mod refusals;
mod restarts;
mod search;
mod tasks;
mod trust;
