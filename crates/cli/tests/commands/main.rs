//! The commands, end to end: the real binary against a real site.
//!
//! | module | proves |
//! |---|---|
//! | [`bench`] | the model of transfers that `bench model` measures |
//! | [`buckets`] | a store in a bucket, behind every command |
//! | [`faults`] | transfers over connections that break again and again |
//! | [`import`] | files of a storage, registered in place |
//! | [`links`] | symbolic links: made, shown, followed, copied |
//! | [`namespace`] | listing, looking, renaming, removing, sharing; exit codes; output for programs |
//! | [`references`] | files that a search finds, opened as one array |
//! | [`search`] | attributes set, shown, and data found by them |
//! | [`transfer`] | put and get of trees and large files, resumed, refused, dry |
//! | [`settings`] | profiles, tokens, where values come from; help and completions |
//! | [`sync`] | a destination like its source, in each direction |

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

mod bench;
mod buckets;
mod faults;
mod headers;
mod import;
mod lab;
mod links;
mod namespace;
mod references;
mod search;
mod settings;
mod sync;
mod transfer;
