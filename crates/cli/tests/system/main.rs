//! Tests of the whole: the real binary, real files, real crashes.
//!
//! | module | proves |
//! |---|---|
//! | [`kill`] | nothing acknowledged is lost, nothing partial is seen, however often the server is killed |
//! | [`fabric_kill`] | tasks across sites end by themselves, whoever is killed |
//! | [`restart`] | a copy of a large file goes on within the file, whoever is killed |
//! | [`clocks`] | clocks of sites may be apart |
//! | [`servers`] | a site of several servers goes on when one of them is killed |
//! | [`publish_steps`] | the same at each single step of the publish order |
//! | [`documents`] | what the documents tell people to type works |
//! | [`disk_full`] | a full disk is an error and no loss |
//! | [`full_fabric`] | the same for copies from another site |
//! | [`importing`] | files registered in place, the server killed and the disk full |
//! | [`many_items`] | tasks of many items: some are bad, cancelled half-way, a site is drained or stopped |
//! | [`bench`] | the model of transfers between two sites |
//! | [`ways`] | `percale doctor` says which sites can dial which |
//! | [`demo`] | the demo's checks pass |

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

mod bench;
mod clocks;
mod demo;
mod disk_full;
mod documents;
mod fabric_kill;
mod full_fabric;
mod importing;
mod kill;
mod ledger;
mod many_items;
mod publish_steps;
mod restart;
mod servers;
mod sites;
mod ways;
mod world;
