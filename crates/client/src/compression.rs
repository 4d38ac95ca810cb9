//! Requests whose JSON is compressed, for a site that says that it takes that ([RFC 7694](https://www.rfc-editor.org/rfc/rfc7694)).
//!
//! A list of 500 names is 70 kB, and an eighth of it in gzip. A connection carries 14 kB in its first round trip, and twice as much in
//! each that follows.

use std::collections::HashSet;
use std::io::Write as _;
use std::sync::{PoisonError, RwLock};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use percale_core::ErrorCode;
use reqwest::Response;
use reqwest::header::{ACCEPT_ENCODING, HeaderMap};

use crate::call::Call;
use crate::error::Error;

/// The name of the coding.
pub const CODING: &str = "gzip";
/// What fits the first packets anyway is sent as it is.
const FROM: usize = 4096;

/// The addresses of a site that take compressed requests, by what their answers said last.
#[derive(Debug, Default)]
pub struct Compressed(RwLock<HashSet<String>>);

impl Compressed {
    /// Returns the JSON of a call compressed, if it is long and its address takes that.
    pub fn of(&self, call: &Call) -> Option<Bytes> {
        let json = call.json.as_ref().filter(|json| json.len() >= FROM)?;
        if !self.0.read().unwrap_or_else(PoisonError::into_inner).contains(&call.path) {
            return None;
        }
        let mut encoder = GzEncoder::new(Vec::with_capacity(json.len() / 4), Compression::fast());
        encoder.write_all(json).ok()?;
        Some(encoder.finish().ok()?.into())
    }

    /// Takes up what an answer says, or that there was none that a call like this asks for.
    pub fn note(&self, call: &Call, answer: Option<&Response>) {
        if call.json.is_none() {
            return;
        }
        let takes = answer.is_some_and(|answer| does_take(answer.headers()));
        let is_known = self.0.read().unwrap_or_else(PoisonError::into_inner).contains(&call.path);
        if takes != is_known {
            let mut paths = self.0.write().unwrap_or_else(PoisonError::into_inner);
            if takes {
                paths.insert(call.path.clone())
            } else {
                paths.remove(&call.path)
            };
        }
    }
}

fn does_take(headers: &HeaderMap) -> bool {
    let said = headers.get(ACCEPT_ENCODING).and_then(|said| said.to_str().ok()).unwrap_or_default();
    said.split(',')
        .any(|coding| coding.split(';').next().is_some_and(|name| name.trim().eq_ignore_ascii_case(CODING)))
}

/// Tells whether a server says that it could not read what it was sent.
pub fn is_refused(error: &Error) -> bool {
    matches!(error.code(), ErrorCode::InvalidRequest | ErrorCode::UnsupportedMediaType)
        && error.as_problem().is_some()
}
