//! Queries that are made of words at random.

use std::panic::catch_unwind;

use fastrand::Rng;
use percale_core::Timestamp;
use percale_discovery::{cql2, parse};

/// What queries are made of.
const WORDS: [&str; 43] = [
    "a",
    "@b",
    "`c d`",
    "name",
    "size",
    ":",
    "=",
    "!=",
    ">",
    "<=",
    "..",
    "(",
    ")",
    "[",
    "]",
    "{",
    "AND",
    "OR",
    "NOT",
    "-",
    "TO",
    "BETWEEN",
    "IN",
    "LIKE",
    "GLOB",
    "'x''y'",
    "\"",
    "1e309",
    "2024-06",
    "bbox:(",
    "near:(",
    ",",
    "5km",
    "time",
    "IS",
    "NULL",
    "T_DURING(",
    "INTERVAL(",
    "DATE(",
    "S_INTERSECTS(",
    "BBOX(",
    "CASEI(",
    "%_\\",
];

/// Makes a query and has it read as one of each language.
///
/// # Errors
/// The query, if a parser panics.
pub fn read(random: &mut Rng) -> Result<(), String> {
    let query: String = (0..random.usize(0..24))
        .map(|_| {
            let word = random.choice(WORDS).unwrap_or_default();
            format!("{word}{}", random.choice(["", " "]).unwrap_or_default())
        })
        .collect();
    let read = || {
        let _ = parse(&query, Timestamp::EPOCH);
        let _ = cql2::parse_json(&query, Timestamp::EPOCH);
        cql2::parse_text(&query, Timestamp::EPOCH).map(|condition| cql2::write(&condition))
    };
    catch_unwind(read).map(drop).map_err(|_| query.clone())
}
