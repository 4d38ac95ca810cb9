//! The one suite of the catalog, on both engines.
//!
//! A case is an `async fn(Site)`; `on_both!` makes of it a test on SQLite and one on PostgreSQL. Each has a file or
//! database of its own.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

#[macro_use]
mod site;

mod access;
mod arrivals;
mod at_once;
mod attributes;
mod care;
mod copies;
mod counting;
mod extraction;
mod faults;
mod following;
mod journal;
mod kept;
mod leases;
mod links;
mod listing;
mod model;
mod namespace;
mod outbox;
mod own_copies;
mod pair;
mod peers;
mod promotion;
mod publishing;
mod reading;
mod records;
mod register;
mod remote;
mod replicas;
mod rules;
mod searching;
mod snapshots;
mod sorting;
mod spaces;
mod tasks;
mod together;
