//! Bytes in and out of a real server over HTTP: content, uploads, frames, and what happens when things go wrong.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

mod ahead;
mod content;
mod damage;
mod frames;
mod full;
mod mounts;
mod site;
mod uploads;
